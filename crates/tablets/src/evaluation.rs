//! What is answered from a tablet's rows alone: from memory where nothing may block, and otherwise wherever the disk may
//! be waited for.

use bytes::Bytes;
use machine::state_machine::{Evaluated, Read, Verdict, View};
use machine::{KeyPosition, ReadError};
use store::sstable::Io;

use crate::command::Command;
use crate::request::{Scan, TableRequest, TableResponse, Write};
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

impl Question {
    /// What a request asks of rows, if it reads.
    #[must_use]
    pub fn of(request: &TableRequest) -> Option<Self> {
        match request {
            TableRequest::Get { key, columns, .. } => Some(Self::Get { key: key.clone(), columns: columns.clone() }),
            TableRequest::Scan { scan, .. } => Some(Self::Scan(scan.clone())),
            _ => None,
        }
    }

    /// Where in the table's keys it begins.
    #[must_use]
    pub fn position(&self) -> KeyPosition {
        match self {
            Self::Get { key, .. } | Self::Decide(Write { key, .. }) => KeyPosition::At(key.clone()),
            Self::Scan(scan) => scan.position(),
        }
    }
}

impl Read for Evaluation {
    type Response = TableResponse;

    fn answer(&self, io: Io) -> Result<Evaluated<TableResponse>, ReadError> {
        let Self { view, question } = self;
        if !view.holds(&question.position()) {
            return Ok(Evaluated::Elsewhere);
        }
        Ok(match question {
            Question::Get { key, columns } => Evaluated::Outcome(view.get(key, columns.as_deref(), io)?),
            Question::Scan(scan) => Evaluated::Outcome(view.scan(scan, io)?),
            Question::Decide(write) => {
                let command = view.decide(write, io)?;
                let refusal = match &command {
                    Command::Refuse { mismatch, .. } => Some(mismatch.clone().into()),
                    _ => None,
                };
                Evaluated::Decided(Verdict { command: command.encode(), refusal })
            }
        })
    }
}

/// Two of the same kind are only compared by tests.
impl PartialEq for Evaluation {
    fn eq(&self, other: &Self) -> bool {
        self.view.is_same(&other.view)
    }
}

impl Eq for Evaluation {}
