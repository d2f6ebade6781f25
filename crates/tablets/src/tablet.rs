//! A tablet: the rows of one range of a table, and the sessions of its clients, as one deterministic state machine.
//!
//! The data model is Spinnaker's (section 3): a row is a key with any number of columns, and a column has a value and a
//! version. A version *is* the timestamp of the entry that wrote it. Old versions are kept down to the watermark, for
//! reads as of an earlier moment. `rows` stores the versions, `sessions` the outcomes that make retries idempotent
//! (guarantee 10), and `ownership` the key range (guarantee 19). `reads` evaluates reads on the applied state.
//!
//! Invariants:
//! * The conditions of a write are evaluated once, by the leader that proposes it ([`TabletView::decide`]). The leader
//!   evaluates them on applied entries, while the log contains no unapplied write of the row. The entry contains the
//!   result, so every replica applies it identically, without reading its disk.
//! * A write with a given session and number is executed at most once, and a retry returns the outcome of the first
//!   attempt.
//! * Replicas that applied the same entries are *logically* equal: they answer every read at or above the watermark
//!   identically. They may differ in the obsolete versions that they still store (guarantee 16).

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Entry, Incarnation, KeyRange, Lsn, Membership, Timestamp};
use bytes::Bytes;
use state_machine::failure::check_kept;
use state_machine::interface::{Applied, Effect, Housekeeping, Kind, Past, Payload, ReadStep, StateMachine, Wire};
use state_machine::sessions::{Admission, Remembered};
use state_machine::{ApplyError, Failure, KeyPosition, Locks, LogicalHash, Ownership, Progress, ReadError};
use store::tree::{Site, Tree};

use crate::checkpoint::TabletSnapshot;
use crate::command::Command;
use crate::evaluation::{Evaluation, Question};
use crate::request::{ClientSessionId, Mismatch, Outcome, SessionStamp, TableRequest, TableResponse};
use crate::transaction::{Prepare, SPLIT, TransactionId};

pub(crate) mod reads;
mod rows;
mod split;
pub mod transactions;

pub use reads::TabletView;

use rows::Rows;
use transactions::{TransactionDecided, Transactions, aborted};

/// The sessions of a tablet.
pub type ClientSessions = state_machine::sessions::ClientSessions<WriteOutcome>;

/// The rows and sessions of one range of a table.
#[derive(Debug)]
pub struct Tablet {
    pub(crate) progress: Progress,
    pub(crate) ownership: Ownership,
    /// The cohorts that were split off from its range.
    pub(crate) children: Vec<CohortId>,
    rows: Rows,
    pub(crate) sessions: ClientSessions,
    pub(crate) transactions: Transactions,
}

impl Tablet {
    pub(crate) fn of(
        progress: Progress,
        ownership: Ownership,
        children: Vec<CohortId>,
        watermark: Timestamp,
        sessions: ClientSessions,
        transactions: Transactions,
        tree: Tree,
    ) -> Self {
        Self { progress, ownership, children, rows: Rows::new(tree, watermark), sessions, transactions }
    }

    fn execute(&mut self, command: Command, entry: &Entry) -> Execution {
        if !command.keys().all(|key| self.ownership.holds(&KeyPosition::At(key.clone()))) {
            // The range was split after the proposal. The write is not executed here, and its session does not record
            // it.
            return Applied::effect(Effect::Elsewhere);
        }
        match command {
            Command::AssignRange { range } => match self.ownership.assign_range(&range) {
                true => Applied::effect(Effect::RangeFounded),
                false => Applied::NOTHING,
            },
            Command::Split { key, child, members } => match self.split(&key, child) {
                Ok(None) => Applied::outcome(Ok(TableResponse::Split)),
                Ok(Some(range)) => Applied {
                    outcome: Some(Ok(TableResponse::Split)),
                    effect: Some(Effect::RangeSplit { child, members, range }),
                },
                Err(failure) => Applied::outcome(Err(failure)),
            },
            Command::Drop if self.has_transactions() && self.ownership != Ownership::Dropped => {
                // Participants may still ask for the outcome.
                let failure = Failure::Unavailable("not all transactions of the range are resolved yet".to_owned());
                Applied::outcome(Err(failure))
            }
            Command::Drop => {
                let is_news = self.drop_all();
                Applied { outcome: Some(Ok(TableResponse::Dropped)), effect: is_news.then_some(Effect::RangeDropped) }
            }
            Command::DeclareLoss => {
                self.progress.losses += 1;
                Applied::effect(Effect::LossDeclared)
            }
            Command::OpenSession { .. } => Applied::outcome(self.open_session(entry)),
            Command::Write { stamp, key, columns } => Applied::outcome(self.once(stamp.as_ref(), entry, |rows| {
                rows.put(&key, columns, entry);
                Ok(TableResponse::Written { version: entry.timestamp })
            })),
            Command::DeleteRow { stamp, key } => Applied::outcome(self.once(stamp.as_ref(), entry, |rows| {
                rows.delete_row(&key, entry);
                Ok(TableResponse::Written { version: entry.timestamp })
            })),
            Command::Refuse { stamp, mismatch, .. } => {
                Applied::outcome(self.once(stamp.as_ref(), entry, |_| Err(Failure::from(mismatch))))
            }
            Command::Commit { stamp, key, writes, participants } => {
                let decided = (!participants.is_empty()).then(|| TransactionDecided((&stamp).into()));
                let outcome = self.commit(&stamp, &key, writes, participants, entry);
                Applied { outcome: Some(outcome), effect: decided.map(Effect::Own) }
            }
            Command::Conflict { stamp, reason, .. } => {
                let outcome = self.once(Some(&stamp), entry, |_| Err(Failure::Aborted(reason)));
                Applied::outcome(self.with_participants(&stamp, outcome))
            }
            Command::Prepare { coordinator, owner, reads, writes } => {
                self.prepare((coordinator, owner), reads, writes, entry)
            }
            Command::Resolve { transaction, prepared, committed } => self.resolve(transaction, prepared, committed),
            Command::Abort { stamp, .. } => Applied::outcome(self.abort(&stamp, entry)),
            Command::Forget { transactions } => {
                self.forget(&transactions);
                Applied::NOTHING
            }
            Command::ExpireSessions { sessions } => {
                self.sessions.expire(&sessions);
                Applied::NOTHING
            }
            Command::Watermark(watermark) => {
                // A moment that is not over yet must stay readable.
                self.rows.raise_watermark(watermark.min(entry.timestamp));
                Applied::NOTHING
            }
        }
    }

    /// Applies the drop of the table: the tablet owns nothing any more, and its data is deleted. Entries that were
    /// proposed before the drop may follow it and have no effect. Returns false if it was dropped before.
    fn drop_all(&mut self) -> bool {
        let is_news = self.ownership != Ownership::Dropped;
        if is_news {
            self.ownership = Ownership::Dropped;
            self.sessions = ClientSessions::default();
            self.transactions = Transactions::default();
            self.rows.clear();
        }
        is_news
    }

    /// The part of the table's keys that it owns.
    #[must_use]
    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    fn open_session(&mut self, entry: &Entry) -> Outcome {
        let Some(range) = self.ownership.range().cloned() else {
            return Err(Failure::Unavailable("the range is not assigned yet".to_owned()));
        };
        let session = ClientSessionId::new(self.progress.cohort, self.progress.name_of(entry.lsn.sequence))
            .ok_or_else(|| Failure::Overloaded("session ids exhausted".to_owned()))?;
        self.sessions.open(session, entry.timestamp);
        Ok(TableResponse::SessionOpened { session, range })
    }

    /// Executes a session's write, unless it was executed before (guarantee 10).
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

    /// Answers a hold that the leader has recorded. A released one may be of any timestamp.
    fn held(&self, key: &Bytes, timestamp: Timestamp, release: bool) -> Outcome {
        if !release {
            check_kept(timestamp, self.watermark())?;
        }
        let range = self.ownership.check(&KeyPosition::At(key.clone()))?.clone();
        Ok(TableResponse::Held { range })
    }

    /// A view of the current rows, for any thread.
    #[must_use]
    pub fn view_now(&self) -> TabletView {
        TabletView {
            ownership: self.ownership.clone(),
            rows: self.rows.tree.view(),
            applied: self.last_timestamp(),
            watermark: self.watermark(),
            prepared: self.transactions.rows().clone(),
        }
    }

    /// The tree with the rows.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.rows.tree
    }

    /// LSN of the last applied entry.
    #[must_use]
    pub fn last_applied(&self) -> Lsn {
        self.progress.last_applied
    }

    /// Timestamp of the last applied entry; 0 before the first.
    #[must_use]
    pub fn last_timestamp(&self) -> Timestamp {
        self.progress.last_timestamp
    }

    /// Reads as of an earlier moment than this are rejected.
    #[must_use]
    pub fn watermark(&self) -> Timestamp {
        self.rows.watermark()
    }

    /// The number of open sessions.
    #[must_use]
    pub fn sessions_open(&self) -> usize {
        self.sessions.len()
    }

    /// Sessions last used before `moment`, each with its last use, in order of session id; at most 1,000. A leader
    /// proposes to expire them. It scans all open sessions.
    #[must_use]
    pub fn sessions_unused_since(&self, moment: Timestamp) -> Vec<(ClientSessionId, Timestamp)> {
        self.sessions.unused_since(moment)
    }
}

/// The result of applying an entry.
type Execution = Applied<TableResponse, TransactionDecided>;

impl StateMachine for Tablet {
    const KIND: Kind = Kind(2);

    type Request = TableRequest;
    type Response = TableResponse;
    type Event = TransactionDecided;
    type Read = Evaluation;
    type View = TabletView;
    type Snapshot = TabletSnapshot;
    type Storage = Tree;

    fn new(cohort: CohortId, _: Incarnation, tree: Tree) -> Self {
        let (sessions, transactions) = Default::default();
        Self::of(Progress::new(cohort), Ownership::default(), Vec::new(), Timestamp(0), sessions, transactions, tree)
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn apply(&mut self, entry: &Entry) -> Result<Execution, ApplyError> {
        self.progress.check(entry)?;
        if entry.payload.is_empty() {
            self.progress.advance(entry);
            return Ok(Applied::NOTHING);
        }
        let command = Command::decode(entry.payload.clone()).map_err(|e| self.progress.undecodable(entry, e))?;
        self.progress.advance(entry);
        Ok(self.execute(command, entry))
    }

    fn read(&self, request: &TableRequest) -> ReadStep<TableResponse, Evaluation> {
        if let TableRequest::Hold { key, timestamp, release, .. } = request {
            return ReadStep::Answer(self.held(key, *timestamp, *release));
        }
        if let TableRequest::Unlock { .. } = request {
            return ReadStep::Answer(Ok(TableResponse::Unlocked));
        }
        match Evaluation::of(request, self.view_now()) {
            Some(evaluation) => ReadStep::Evaluate(evaluation),
            None => ReadStep::Answer(Err(Failure::Invalid("a change is not a read".to_owned()))),
        }
    }

    fn propose(&self, request: &TableRequest) -> Payload<Evaluation> {
        let command = match request {
            TableRequest::Write(write) if write.is_conditional() => {
                let question = Question::Decide(write.clone());
                return Payload::Decide(Evaluation::deciding(question, self.view_now()));
            }
            TableRequest::Commit(commit) => {
                let view = self.view_now();
                let full = if commit.participants.is_empty() { None } else { self.transactions.is_full() };
                return match full {
                    Some(failure) => Payload::Refuse(failure),
                    // Not an abort: another attempt may have committed it before, so only the session knows.
                    None if !view.holds_all(&commit.part) => Payload::Refuse(Failure::Unavailable(SPLIT.to_owned())),
                    None => Payload::Decide(Evaluation::deciding(Question::Commit(commit.clone()), view)),
                };
            }
            TableRequest::Prepare(prepare) => {
                let view = self.view_now();
                // Before the search for an earlier prepare: that may have been for a part of these keys, if the range
                // was split between two attempts. A range with prepared transactions is not split.
                if !view.holds_all(&prepare.part) {
                    return Payload::Refuse(aborted(SPLIT));
                }
                if let Some(prepared) = self.prepared().get(&TransactionId::from(&prepare.coordinator.stamp)) {
                    // No entry: by the time that it is applied, the transaction may be resolved, and its keys locked by
                    // others.
                    let question = Question::Prepared { position: prepare.part.position(), at: prepared.timestamp };
                    return Payload::Decide(Evaluation::deciding(question, view));
                }
                return match self.transactions.is_full() {
                    Some(failure) => Payload::Refuse(failure),
                    None => Payload::Decide(Evaluation::deciding(Question::Prepare(prepare.clone()), view)),
                };
            }
            TableRequest::Resolve { transaction, prepared, committed } => {
                Command::Resolve { transaction: *transaction, prepared: *prepared, committed: *committed }
            }
            TableRequest::Abort { key, stamp } => Command::Abort { stamp: *stamp, key: key.clone() },
            TableRequest::Write(write) => Command::unconditional(write.clone()),
            TableRequest::OpenSession { key } => Command::OpenSession { key: key.clone() },
            TableRequest::DeleteRow { stamp, key } => Command::DeleteRow { stamp: *stamp, key: key.clone() },
            TableRequest::Split { key, child, members } => {
                Command::Split { key: key.clone(), child: *child, members: members.clone() }
            }
            TableRequest::Drop => Command::Drop,
            TableRequest::Get { .. }
            | TableRequest::Scan { .. }
            | TableRequest::Unlock { .. }
            | TableRequest::Hold { .. } => {
                return Payload::Refuse(Failure::Invalid("a read is not a change".to_owned()));
            }
        };
        Payload::Command(command.encode())
    }

    fn view(&self) -> Option<TabletView> {
        Some(self.view_now())
    }

    fn snapshot(&self) -> TabletSnapshot {
        TabletSnapshot::of(self)
    }

    fn snapshot_bytes(&self) -> usize {
        self.sessions.bytes() + self.transactions.bytes()
    }

    fn storage(&self) -> &Tree {
        &self.rows.tree
    }

    fn storage_mut(&mut self) -> &mut Tree {
        &mut self.rows.tree
    }

    fn into_storage(self) -> Tree {
        self.rows.tree
    }

    fn hash(&self, hash: &mut LogicalHash) -> Result<(), ReadError> {
        self.progress.add_to(hash);
        self.ownership.add_to(hash);
        hash.word(self.children.len() as u64);
        self.children.iter().for_each(|child| hash.word(u64::from(child.0)));
        self.sessions.add_to(hash);
        self.transactions.add_to(hash);
        Ok(self.rows.hash(self.ownership.cells(), hash)?)
    }

    fn invariants(&self) {
        assert!(self.rows.watermark() <= self.last_timestamp(), "the watermark does not exceed the last timestamp");
        self.rows.tree.invariants();
        let last = self.progress.name_of(self.last_applied().sequence);
        self.transactions.invariants(self.ownership.range(), self.last_timestamp());
        self.sessions.invariants(self.progress.cohort, self.last_timestamp(), last);
    }

    /// Expires sessions that were unused for a lifetime, and raises the watermark by the retention. An unchanged
    /// watermark is not proposed, so the log of an idle table does not grow.
    fn housekeeping(&self, past: Past) -> Housekeeping {
        let unused =
            past.session_lifetime.map(|moment| self.sessions_unused_since(Timestamp(moment.0.saturating_add(1))));
        let sessions = unused.unwrap_or_default();
        let sessions_expired = sessions.len() as u64;
        let expiry = (!sessions.is_empty()).then_some(Command::ExpireSessions { sessions });
        let watermark = past.retention.filter(|moment| *moment > self.watermark()).map(Command::Watermark);
        let commands = expiry.into_iter().chain(watermark).map(|command| command.encode()).collect();
        Housekeeping { commands, sessions_expired }
    }

    fn sessions_open(&self) -> usize {
        self.sessions_open()
    }

    fn holds_locks_of(&self, request: &TableRequest) -> bool {
        let id = |prepare: &Prepare| TransactionId::from(&prepare.coordinator.stamp);
        matches!(request, TableRequest::Prepare(prepare) if self.prepared().contains_key(&id(prepare)))
    }

    fn held_locks(&self) -> Vec<Locks> {
        self.prepared().values().map(|prepared| prepared.locks()).collect()
    }

    fn ownership(&self) -> Option<&Ownership> {
        Some(&self.ownership)
    }

    fn children(&self) -> &[CohortId] {
        &self.children
    }

    fn assign_range(range: &KeyRange) -> Option<Bytes> {
        Some(Command::AssignRange { range: range.clone() }.encode())
    }

    fn drop_request() -> Option<TableRequest> {
        Some(TableRequest::Drop)
    }

    fn split_request(key: Bytes, child: CohortId, members: Membership) -> Option<TableRequest> {
        Some(TableRequest::Split { key, child, members })
    }

    fn split_off(&mut self, range: KeyRange, site: Site) -> Option<Self> {
        Some(self.part_split_off(range, site))
    }

    fn declare_loss() -> Bytes {
        Command::DeclareLoss.encode()
    }
}

/// The outcome of an executed write, as a session stores it. An executed write has no other outcomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The write was applied, with this version.
    Written(Timestamp),
    /// A condition was not met.
    Mismatch(Box<Mismatch>),
    /// The transaction was aborted, for this reason.
    Aborted(Box<str>),
}

const WRITTEN: u8 = 1;
const MISMATCH: u8 = 2;
const ABORTED_TAG: u8 = 3;

impl Wire for WriteOutcome {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Writer) {
        match self {
            Self::Written(version) => {
                out.u8(WRITTEN);
                out.i64(version.0);
            }
            Self::Mismatch(mismatch) => {
                out.u8(MISMATCH);
                out.bytes(&mismatch.column);
                out.i64(mismatch.expected.0);
                out.i64(mismatch.actual.0);
            }
            Self::Aborted(reason) => {
                out.u8(ABORTED_TAG);
                out.bytes(reason.as_bytes());
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            WRITTEN => Self::Written(Timestamp(input.i64()?)),
            MISMATCH => Self::Mismatch(Box::new(Mismatch {
                column: Bytes::copy_from_slice(&input.bytes()?),
                expected: Timestamp(input.i64()?),
                actual: Timestamp(input.i64()?),
            })),
            ABORTED_TAG => Self::Aborted(input.text("reason of an abort")?.into()),
            tag => return Err(DecodeError::UnknownTag { what: "outcome", tag: u64::from(tag) }),
        })
    }
}

impl Remembered for WriteOutcome {
    type Response = TableResponse;

    fn of(outcome: &Outcome) -> Self {
        match outcome {
            Ok(TableResponse::Written { version }) => Self::Written(*version),
            Err(Failure::VersionMismatch { column, expected, actual }) => {
                // A copy: the column's name is part of the message that brought it, and must not keep that in memory.
                let column = Bytes::copy_from_slice(column);
                Self::Mismatch(Box::new(Mismatch { column, expected: *expected, actual: *actual }))
            }
            Err(Failure::Aborted(reason)) => Self::Aborted(reason.as_str().into()),
            other => unreachable!("an executed write has no outcome {other:?}"),
        }
    }

    fn outcome(&self) -> Outcome {
        match self {
            Self::Written(version) => Ok(TableResponse::Written { version: *version }),
            Self::Mismatch(mismatch) => Err(Failure::VersionMismatch {
                column: mismatch.column.clone(),
                expected: mismatch.expected,
                actual: mismatch.actual,
            }),
            Self::Aborted(reason) => Err(aborted(reason)),
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Written(_) => 0,
            Self::Aborted(reason) => reason.len(),
            Self::Mismatch(mismatch) => size_of::<Mismatch>() + mismatch.column.len(),
        }
    }

    fn encoded_bytes(&self) -> usize {
        match self {
            Self::Written(_) => 9,
            Self::Aborted(reason) => 5 + reason.len(),
            Self::Mismatch(mismatch) => 21 + mismatch.column.len(),
        }
    }
}

#[cfg(test)]
mod tests;
