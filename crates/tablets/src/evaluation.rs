//! Queries on a tablet's rows. They are evaluated from memory where blocking is not allowed, and otherwise on a thread
//! that may wait for the disk.

use base::Timestamp;
use bytes::Bytes;
use state_machine::interface::{Awaited, Decision, Evaluated, Read, View};
use state_machine::{Consistency, Failure, KeyPosition, ReadError};
use store::sstable::Io;

use crate::command::Command;
use crate::request::{Columns, Scan, TableRequest, TableResponse, Write};
use crate::tablet::TabletView;
use crate::transaction::{Commit, Prepare};

/// A query on the rows of a tablet as of one moment.
#[derive(Clone, Debug)]
pub struct Evaluation {
    pub view: TabletView,
    pub question: Question,
    /// Whether it waits for prepared transactions that may change the answer.
    pub waits: bool,
}

impl Evaluation {
    /// The evaluation of a read request; none for a change.
    #[must_use]
    pub fn of(request: &TableRequest, view: TabletView) -> Option<Self> {
        // A timeline read returns what this replica has applied.
        let waits = !matches!(state_machine::Request::consistency(request), Consistency::Timeline { .. });
        Question::of(request).map(|question| Self { view, question, waits })
    }

    /// The evaluation that decides a change.
    pub(crate) fn deciding(question: Question, view: TabletView) -> Self {
        Self { view, question, waits: false }
    }
}

/// A query on rows.
#[derive(Clone, Debug)]
pub enum Question {
    /// Reads columns of a row.
    Get {
        key: Bytes,
        /// The columns to read.
        columns: Columns,
    },
    /// Reads a page of rows.
    Scan(Scan),
    /// Checks the conditions of a write.
    Decide(Write),
    /// Validates a transaction that is to be committed.
    Commit(Box<Commit>),
    /// Validates a transaction that is to be prepared.
    Prepare(Box<Prepare>),
    /// Asks for a transaction to be prepared that is prepared already.
    Prepared {
        /// A position of its keys.
        position: KeyPosition,
        /// The timestamp of the prepare.
        at: Timestamp,
    },
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
            Self::Commit(commit) => KeyPosition::At(commit.key.clone()),
            Self::Prepare(prepare) => prepare.part.position(),
            Self::Prepared { position, .. } => position.clone(),
        }
    }
}

impl Read for Evaluation {
    type Response = TableResponse;

    fn answer(&self, io: Io) -> Result<Evaluated<TableResponse>, ReadError> {
        let Self { view, question, waits } = self;
        if !view.holds(&question.position()) {
            return Ok(Evaluated::Elsewhere);
        }
        if *waits && let Some(first) = view.awaits(question) {
            return Ok(Evaluated::Unresolved(Awaited { at: view.timestamp(), first }));
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
                Evaluated::Decided(Decision { command: command.encode(), refusal, keeps_locks: false })
            }
            Question::Commit(commit) => {
                let conflict = view.conflict(&commit.part.reads, io)?;
                let refusal = conflict.clone().map(Failure::Aborted);
                let Commit { stamp, key, part, participants, .. } = (**commit).clone();
                let command = match conflict {
                    None => Command::Commit { stamp, key, writes: part.writes, participants },
                    Some(reason) => Command::Conflict { stamp, key, reason },
                };
                Evaluated::Decided(Decision { command: command.encode(), refusal, keeps_locks: false })
            }
            Question::Prepared { at, .. } => Evaluated::Outcome(Ok(TableResponse::Prepared { timestamp: *at })),
            Question::Prepare(prepare) => match view.conflict(&prepare.part.reads, io)? {
                // The driver of the transaction has its abort logged by the coordinator.
                Some(reason) => Evaluated::Outcome(Err(Failure::Aborted(reason))),
                None => {
                    let command = Command::prepare(prepare);
                    Evaluated::Decided(Decision { command: command.encode(), refusal: None, keeps_locks: true })
                }
            },
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
