//! A tablet: the rows of one table, and the sessions of its clients, as one deterministic state machine.
//!
//! It is Spinnaker's data model (section 3): a row is a key with any number of columns, a column has a value and a
//! version. A version *is* the timestamp of the entry that wrote it, and old ones are kept down to the watermark, so that
//! one can read as of a moment. `rows` keeps them, `sessions` keeps what makes a retry apply once (guarantee 10), and
//! `reads` answers from the applied state.
//!
//! Invariants:
//! * All conditions of a write are checked when its entry is applied, all before anything is written: every replica
//!   decides alike, and a refusal rests on committed entries (guarantee 12).
//! * A write of one session and number is executed once at most, and a retry gets the first try's outcome.
//! * Replicas that applied the same entries are *logically* equal: they answer every read at or above the watermark
//!   alike. Which dead versions still take memory may differ (guarantee 16).

use base::{CohortId, Entry, Lsn, Timestamp};

use crate::command::Command;
use crate::hash::LogicalHash;
use crate::progress::{ApplyError, Progress};
use crate::request::{Failure, Outcome, Response, SessionId, Write};

mod reads;
pub(crate) mod rows;
pub(crate) mod sessions;
pub(crate) mod versions;

use rows::Rows;
use sessions::{Admission, Sessions};

/// The rows and sessions of one table.
#[derive(Clone, Debug)]
pub struct Tablet {
    pub(crate) progress: Progress,
    pub(crate) rows: Rows,
    pub(crate) sessions: Sessions,
}

impl Tablet {
    /// A tablet before its first entry.
    #[must_use]
    pub fn new(cohort: CohortId) -> Self {
        Self { progress: Progress::new(cohort), rows: Rows::default(), sessions: Sessions::default() }
    }

    /// Applies an entry: the outcome of a write or of the opening of a session, none of anything else.
    ///
    /// # Errors
    /// When the entry doesn't follow the last one or is no tablet's command. The tablet is unchanged, and the node must
    /// halt.
    pub fn apply(&mut self, entry: &Entry) -> Result<Option<Outcome>, ApplyError> {
        self.progress.check(entry)?;
        if entry.payload.is_empty() {
            self.progress.advance(entry);
            return Ok(None);
        }
        let command = Command::decode(entry.payload.clone()).map_err(|e| self.progress.undecodable(entry, e))?;
        self.progress.advance(entry);
        let outcome = self.execute(command, entry);
        self.rows.sweep();
        Ok(outcome)
    }

    fn execute(&mut self, command: Command, entry: &Entry) -> Option<Outcome> {
        match command {
            Command::OpenSession => {
                let session = SessionId(entry.lsn.sequence.0);
                let opened = self.sessions.open(session, entry.timestamp);
                Some(opened.map(|()| Response::SessionOpened(session)))
            }
            Command::Write(write) => Some(self.write(&write, entry)),
            Command::ExpireSessions { sessions } => {
                self.sessions.expire(&sessions);
                None
            }
            Command::Watermark(watermark) => {
                // No read may ever ask for a moment that isn't over yet to be forgotten.
                self.rows.raise_watermark(watermark.min(entry.timestamp));
                None
            }
        }
    }

    fn write(&mut self, write: &Write, entry: &Entry) -> Outcome {
        let Some(stamp) = &write.stamp else {
            return self.rows.write(write, entry);
        };
        match self.sessions.admit(stamp, entry.timestamp) {
            Admission::Execute => {
                let outcome = self.rows.write(write, entry);
                self.sessions.record(stamp, &outcome);
                outcome
            }
            Admission::Answer(outcome) => outcome,
        }
    }

    /// The last entry applied.
    #[must_use]
    pub fn last_applied(&self) -> Lsn {
        self.progress.last_applied
    }

    /// The timestamp of the last entry applied; 0 before the first.
    #[must_use]
    pub fn last_timestamp(&self) -> Timestamp {
        self.progress.last_timestamp
    }

    /// Reads at earlier moments than this are refused.
    #[must_use]
    pub fn watermark(&self) -> Timestamp {
        self.rows.watermark()
    }

    /// How many sessions are open.
    #[must_use]
    pub fn sessions_open(&self) -> usize {
        self.sessions.len()
    }

    /// Sessions that were last used before `moment`, each with its last use, the oldest session first, 1,000 at most:
    /// what a leader proposes to expire. It looks at every open session.
    #[must_use]
    pub fn sessions_unused_since(&self, moment: Timestamp) -> Vec<(SessionId, Timestamp)> {
        self.sessions.unused_since(moment)
    }

    /// Bytes of memory that rows and sessions take, roughly.
    #[must_use]
    pub fn approximate_bytes(&self) -> usize {
        self.rows.bytes() + self.sessions.bytes()
    }

    /// Checks what must always hold; simulation calls it after every step.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn invariants(&self) {
        assert!(self.rows.watermark() <= self.last_timestamp(), "the watermark is a moment of the log");
        self.rows.invariants(self.last_timestamp());
        self.sessions.invariants(self.last_timestamp(), self.last_applied().sequence);
    }

    pub(crate) fn hash(&self, hash: &mut LogicalHash) {
        self.progress.hash(hash);
        self.sessions.hash(hash);
        self.rows.hash(hash);
    }
}

/// The refusal of a request that breaks a rule.
pub(crate) fn invalid(message: String) -> Failure {
    Failure::Invalid(message)
}

#[cfg(test)]
mod tests;
