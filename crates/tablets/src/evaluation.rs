//! What is answered from a tablet's rows alone: from memory where nobody may wait, and otherwise wherever the disk may be
//! waited for.

use bytes::Bytes;
use store::sstable::{Io, TableError};

use crate::command::Command;
use crate::position::Position;
use crate::request::{Outcome, Scan, Write};
use crate::tablet::TabletView;

/// A question to the rows of a tablet as they were at one moment.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// The rows.
    pub view: TabletView,
    /// What is asked.
    pub question: Question,
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
    /// The place where the question begins is not the tablet's own: whoever asked is to look it up again (guarantee 19).
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
    /// The answer.
    ///
    /// # Errors
    /// When a table can't be read; [`TableError::NotCached`] when the disk would have to be waited for, and `io` doesn't
    /// allow that.
    pub fn answer(&self, io: Io) -> Result<Evaluated, TableError> {
        if !self.view.holds(&self.question.position()) {
            return Ok(Evaluated::Elsewhere);
        }
        Ok(match &self.question {
            Question::Get { key, columns } => Evaluated::Outcome(self.view.get(key, columns.as_deref(), io)?),
            Question::Scan(scan) => Evaluated::Outcome(self.view.scan(scan, io)?),
            Question::Decide(write) => Evaluated::Command(self.view.decide(write, io)?),
        })
    }
}
