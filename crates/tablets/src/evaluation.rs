//! Queries on a tablet's rows. They are evaluated from memory where blocking is not allowed, and otherwise on a thread
//! that may wait for the disk.

use bytes::Bytes;
use state_machine::interface::{Decision, Evaluated, Read, View};
use state_machine::{KeyPosition, ReadError};
use store::sstable::Io;

use crate::command::Command;
use crate::request::{Columns, Scan, TableRequest, TableResponse, Write};
use crate::tablet::TabletView;

/// A query on the rows of a tablet as of one moment.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// The rows.
    pub view: TabletView,
    /// The query.
    pub question: Question,
}

/// A query on rows.
#[derive(Clone, Debug)]
pub enum Question {
    /// Reads columns of a row.
    Get {
        /// The row.
        key: Bytes,
        /// The columns to read.
        columns: Columns,
    },
    /// Reads a page of rows.
    Scan(Scan),
    /// Checks the conditions of a write.
    Decide(Write),
}

impl Question {
    /// The query of a read request; none for a change.
    #[must_use]
    pub fn of(request: &TableRequest) -> Option<Self> {
        match request {
            TableRequest::Get { key, columns, .. } => Some(Self::Get { key: key.clone(), columns: columns.clone() }),
            TableRequest::Scan { scan, .. } => Some(Self::Scan(scan.clone())),
            _ => None,
        }
    }

    /// The key position at which it begins.
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
            Question::Get { key, columns } => Evaluated::Outcome(view.get(key, columns, io)?),
            Question::Scan(scan) => Evaluated::Outcome(view.scan(scan, io)?),
            Question::Decide(write) => {
                let command = view.decide(write, io)?;
                let refusal = match &command {
                    Command::Refuse { mismatch, .. } => Some(mismatch.clone().into()),
                    _ => None,
                };
                Evaluated::Decided(Decision { command: command.encode(), refusal })
            }
        })
    }
}

/// Only tests compare evaluations.
impl PartialEq for Evaluation {
    fn eq(&self, other: &Self) -> bool {
        self.view.is_same(&other.view)
    }
}

impl Eq for Evaluation {}
