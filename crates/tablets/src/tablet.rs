//! A tablet: the rows of one range of a table, and the sessions of its clients, as one deterministic state machine.
//!
//! It is Spinnaker's data model (section 3): a row is a key with any number of columns, a column has a value and a
//! version. A version *is* the timestamp of the entry that wrote it, and old ones are kept down to the watermark, so
//! that one can read as of a moment. `rows` keeps them, `sessions` keeps what makes a retry apply once (guarantee 10),
//! `ownership` keeps which keys are its own (guarantee 19), and `reads` answers from the applied state.
//!
//! Invariants:
//! * Whether the conditions of a write are met is decided once, by the leader that proposes it ([`TabletView::decide`]), from
//!   applied entries, while the log holds no write of the row that is not applied. What it decided is in the entry, so
//!   that every replica does the same, without a look at what lies on its disk.
//! * A write of one session and number is executed once at most, and a retry gets the first try's outcome.
//! * Replicas that applied the same entries are *logically* equal: they answer every read at or above the watermark
//!   alike. Which dead versions still take memory may differ (guarantee 16).

use base::{CohortId, Entry, Lsn, Timestamp};
use store::sstable::TableError;
use store::tree::Tree;

use crate::catalogue::Change;
use crate::command::Command;
use crate::hash::LogicalHash;
use crate::position::Position;
use crate::progress::{ApplyError, Progress};
use crate::request::{Failure, Outcome, Response, SessionId, SessionStamp};

mod ownership;
pub(crate) mod reads;
mod rows;
pub(crate) mod sessions;
mod split;

pub use ownership::Ownership;
pub use reads::TabletView;

use rows::Rows;
use sessions::{Admission, Sessions};

/// The rows and sessions of one range of a table.
#[derive(Debug)]
pub struct Tablet {
    pub(crate) progress: Progress,
    pub(crate) ownership: Ownership,
    /// The cohorts that parts of its range were split off to.
    pub(crate) children: Vec<CohortId>,
    rows: Rows,
    pub(crate) sessions: Sessions,
}

impl Tablet {
    /// A tablet before its first entry, with an empty tree.
    #[must_use]
    pub fn new(cohort: CohortId, tree: Tree) -> Self {
        Self::of(Progress::new(cohort), Ownership::default(), Vec::new(), Timestamp(0), Sessions::default(), tree)
    }

    pub(crate) fn of(
        progress: Progress,
        ownership: Ownership,
        children: Vec<CohortId>,
        watermark: Timestamp,
        sessions: Sessions,
        tree: Tree,
    ) -> Self {
        Self { progress, ownership, children, rows: Rows::new(tree, watermark), sessions }
    }

    /// Applies an entry: the outcome of a write or of the opening of a session, and what the node must act on.
    ///
    /// # Errors
    /// When the entry doesn't follow the last one or is no tablet's command. The tablet is unchanged, and the node must
    /// halt.
    pub fn apply(&mut self, entry: &Entry) -> Result<(Option<Outcome>, Option<Change>), ApplyError> {
        self.progress.check(entry)?;
        if entry.payload.is_empty() {
            self.progress.advance(entry);
            return Ok((None, None));
        }
        let command = Command::decode(entry.payload.clone()).map_err(|e| self.progress.undecodable(entry, e))?;
        self.progress.advance(entry);
        Ok(self.execute(command, entry))
    }

    fn execute(&mut self, command: Command, entry: &Entry) -> (Option<Outcome>, Option<Change>) {
        if command.key().is_some_and(|key| !self.ownership.holds(&Position::At(key.clone()))) {
            // The range was split since it was proposed. It was not executed here, nor will it be, and its session
            // doesn't hear of it.
            return (None, Some(Change::PutElsewhere));
        }
        let outcome = match command {
            Command::Found { range } => return (None, self.found(&range).then_some(Change::RangeFounded)),
            Command::Split { key, child, members } => {
                return match self.split(&key, child) {
                    Ok(None) => (Some(Ok(Response::RangeSplit { cohort: child.0 })), None),
                    Ok(Some(range)) => {
                        let change = Change::RangeSplit { child, members, range };
                        (Some(Ok(Response::RangeSplit { cohort: child.0 })), Some(change))
                    }
                    Err(failure) => (Some(Err(failure)), None),
                };
            }
            Command::Drop => {
                let is_news = self.drop_all();
                return (Some(Ok(Response::TableDropped)), is_news.then_some(Change::RangeDropped));
            }
            Command::DeclareLoss => {
                self.progress.losses += 1;
                return (None, Some(Change::LossDeclared));
            }
            Command::OpenSession { .. } => Some(self.open_session(entry)),
            Command::Write { stamp, key, columns } => Some(self.once(stamp.as_ref(), entry, |rows| {
                rows.put(&key, columns, entry);
                Ok(Response::Written { version: entry.timestamp })
            })),
            Command::DeleteRow { stamp, key } => Some(self.once(stamp.as_ref(), entry, |rows| {
                rows.delete_row(&key, entry);
                Ok(Response::Written { version: entry.timestamp })
            })),
            Command::Refuse { stamp, mismatch, .. } => {
                Some(self.once(stamp.as_ref(), entry, |_| Err(Failure::from(mismatch))))
            }
            Command::ExpireSessions { sessions } => {
                self.sessions.expire(&sessions);
                None
            }
            Command::Watermark(watermark) => {
                // No read may ever ask for a moment that isn't over yet to be forgotten.
                self.rows.raise_watermark(watermark.min(entry.timestamp));
                None
            }
        };
        (outcome, None)
    }

    fn open_session(&mut self, entry: &Entry) -> Outcome {
        let Some(range) = self.ownership.range().cloned() else {
            return Err(Failure::Unavailable("the range belongs to nobody yet".to_owned()));
        };
        let session = SessionId::new(self.progress.cohort, self.progress.name_of(entry.lsn.sequence))
            .ok_or_else(|| Failure::Overloaded("the numbers of sessions are used up".to_owned()))?;
        self.sessions.open(session, entry.timestamp)?;
        Ok(Response::SessionOpened { session, range })
    }

    /// Does what a session's write comes to, unless it was done before (guarantee 10).
    fn once(
        &mut self,
        stamp: Option<&SessionStamp>,
        entry: &Entry,
        execute: impl FnOnce(&mut Rows) -> Outcome,
    ) -> Outcome {
        let Some(stamp) = stamp else { return execute(&mut self.rows) };
        match self.sessions.admit(stamp, entry.timestamp) {
            Admission::Execute => {
                let outcome = execute(&mut self.rows);
                self.sessions.record(stamp, &outcome);
                outcome
            }
            Admission::Answer(outcome) => outcome,
        }
    }

    /// The rows as they are now, for any thread to read.
    #[must_use]
    pub fn view(&self) -> TabletView {
        TabletView {
            ownership: self.ownership.clone(),
            rows: self.rows.tree.view(),
            applied: self.last_timestamp(),
            watermark: self.watermark(),
        }
    }

    /// How many losses were declared in its log (guarantee 11).
    #[must_use]
    pub fn losses(&self) -> u32 {
        self.progress.losses
    }

    /// Where the rows are kept.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.rows.tree
    }

    /// Where the rows were kept.
    #[must_use]
    pub fn into_tree(self) -> Tree {
        self.rows.tree
    }

    /// Where the rows are kept, to be flushed and compacted.
    pub fn tree_mut(&mut self) -> &mut Tree {
        &mut self.rows.tree
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

    /// Bytes of memory that the sessions take, roughly.
    #[must_use]
    pub fn session_bytes(&self) -> usize {
        self.sessions.bytes()
    }

    /// Checks what must always hold; simulation calls it after every step.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn invariants(&self) {
        assert!(self.rows.watermark() <= self.last_timestamp(), "the watermark is a moment of the log");
        self.rows.tree.invariants();
        let last = self.progress.name_of(self.last_applied().sequence);
        self.sessions.invariants(self.progress.cohort, self.last_timestamp(), last);
    }

    pub(crate) fn hash(&self, hash: &mut LogicalHash) -> Result<(), TableError> {
        self.progress.hash(hash);
        self.ownership.hash(hash);
        hash.word(self.children.len() as u64);
        self.children.iter().for_each(|child| hash.word(u64::from(child.0)));
        self.sessions.hash(hash);
        self.rows.hash(self.ownership.cells(), hash)
    }
}

/// The refusal of a request that breaks a rule.
pub(crate) fn invalid(message: String) -> Failure {
    Failure::Invalid(message)
}

#[cfg(test)]
mod tests;
