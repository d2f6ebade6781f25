//! What is answered from a tablet's rows, or a unit's values, alone: from memory where nobody may wait, and otherwise
//! wherever the disk may be waited for.

use bytes::Bytes;
use store::sstable::{Io, TableError};

use crate::command::Command;
use crate::log_unit::Lookup;
use crate::position::Position;
use crate::request::{Outcome, Scan, Write};
use crate::tablet::TabletView;

/// What may have to wait for the disk.
#[derive(Clone, Debug)]
pub enum Evaluation {
    /// A question to the rows of a tablet as they were at one moment.
    Rows {
        /// The rows.
        view: TabletView,
        /// What is asked.
        question: Question,
    },
    /// What lies at positions of a shared log.
    Positions(Lookup),
}

/// What may be asked of rows.
#[derive(Clone, Debug)]
pub enum Question {
    /// Columns of a row.
    Get {
        /// The row.
        key: Bytes,
        /// The columns; none: all of them.
        columns: Option<Vec<Bytes>>,
    },
    /// A page of rows.
    Scan(Scan),
    /// Whether a write's conditions are met.
    Decide(Write),
}

/// What the rows say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluated {
    /// The answer to a read.
    Outcome(Outcome),
    /// What the log is to carry of a write.
    Command(Command),
    /// The place where the question begins is not the tablet's own: whoever asked is to look it up again (guarantee
    /// 19).
    Elsewhere,
}

impl Question {
    /// Where in the table's keys it begins.
    #[must_use]
    pub fn position(&self) -> Position {
        match self {
            Self::Get { key, .. } | Self::Decide(Write { key, .. }) => Position::At(key.clone()),
            Self::Scan(scan) => scan.position(),
        }
    }
}

impl Evaluation {
    /// The rows that it is put to, if it is put to rows.
    #[must_use]
    pub fn rows(&self) -> Option<&TabletView> {
        if let Self::Rows { view, .. } = self { Some(view) } else { None }
    }

    /// The answer.
    ///
    /// # Errors
    /// When a table can't be read; [`TableError::NotCached`] when the disk would have to be waited for, and `io`
    /// doesn't allow that.
    pub fn answer(&self, io: Io) -> Result<Evaluated, TableError> {
        let (view, question) = match self {
            Self::Rows { view, question } => (view, question),
            Self::Positions(lookup) => return lookup.answer(io).map(Evaluated::Outcome),
        };
        if !view.holds(&question.position()) {
            return Ok(Evaluated::Elsewhere);
        }
        Ok(match question {
            Question::Get { key, columns } => Evaluated::Outcome(view.get(key, columns.as_deref(), io)?),
            Question::Scan(scan) => Evaluated::Outcome(view.scan(scan, io)?),
            Question::Decide(write) => Evaluated::Command(view.decide(write, io)?),
        })
    }
}
