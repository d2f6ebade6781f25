//! The transactions of a range: prepared ones, and those that it has decided as their coordinator, until all participants
//! have resolved them ([`crate::transaction`]).
//!
//! Invariants:
//! * The locks of prepared transactions are compatible: a row is written by at most one of them, and none reads what
//!   another writes. So a version that a resolve adds, below the timestamp of its entry, is still the newest of its cell.
//! * A prepared transaction blocks the split and the drop of the range. So its participant is the same cohort throughout.
//! * A decision is at the range that holds the coordinator's key.

use std::sync::Arc;

use base::canary::{self, Bug, planted};
use base::codec::{Wire as _, Writer};
use base::{Entry, KeyRange, Timestamp};
use bytes::Bytes;
use imbl::OrdMap;
use state_machine::interface::{Applied, Effect};
use state_machine::sessions::Admission;
use state_machine::{Failure, LockMode, LockOwner, Locks, LogicalHash, SessionStamp};

use super::{Execution, Tablet};
use crate::request::{Outcome, TableResponse};
use crate::transaction::{Coordinator, Participant, RowChange, TransactionId, TransactionOutcome, locks};

/// The rows that prepared transactions write, each with the timestamp of the prepare.
pub type PreparedRows = OrdMap<Bytes, Timestamp>;

/// Maximum transactions that are prepared, or decided and not forgotten, in one range.
pub(crate) const TRANSACTIONS_MAX: usize = 10_000;
/// Maximum bytes of the parts of prepared transactions in one range.
pub(crate) const PREPARED_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedTransaction {
    /// Where the outcome is decided.
    pub coordinator: Coordinator,
    /// The priority of its locks.
    pub owner: LockOwner,
    /// The timestamp of the prepare's entry.
    pub timestamp: Timestamp,
    /// The keys that were read.
    pub reads: Vec<KeyRange>,
    pub writes: Vec<RowChange>,
}

/// A transaction that was committed here as its coordinator, and that some participant may not have resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedTransaction {
    pub key: Bytes,
    pub timestamp: Timestamp,
    pub participants: Vec<Participant>,
}

base::wire! { struct PreparedTransaction { coordinator, owner, timestamp, reads, writes } }
base::wire! { struct DecidedTransaction { key, timestamp, participants } }

/// A coordinator has decided a transaction, and must notify its participants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionDecided(pub TransactionId);

/// The prepared transactions of a range.
pub type PreparedTransactions = OrdMap<TransactionId, Arc<PreparedTransaction>>;
/// The decided transactions of a range.
pub type DecidedTransactions = OrdMap<TransactionId, Arc<DecidedTransaction>>;

/// The transactions of a range.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transactions {
    prepared: PreparedTransactions,
    rows: PreparedRows,
    decided: DecidedTransactions,
    /// The decisions of the range that the last applied entry split off.
    given: DecidedTransactions,
    bytes: usize,
}

impl PreparedTransaction {
    /// The locks that it holds.
    #[must_use]
    pub fn locks(&self) -> Locks {
        locks(self.reads.iter(), &self.writes, LockMode::Exclusive).of(self.owner)
    }

    fn bytes(&self) -> usize {
        let of_read = |range: &KeyRange| 80 + range.start.len() + range.end.as_ref().map_or(0, Bytes::len);
        let reads = self.reads.iter().map(of_read).sum::<usize>();
        128 + self.coordinator.key.len() + reads + self.writes.iter().map(RowChange::held_bytes).sum::<usize>()
    }
}

impl Transactions {
    pub(crate) fn of(prepared: PreparedTransactions, decided: DecidedTransactions) -> Self {
        let rows =
            prepared.values().flat_map(|one| one.writes.iter().map(|change| (change.key.clone(), one.timestamp)));
        let (rows, bytes) = (rows.collect(), prepared.values().map(|one| one.bytes()).sum());
        Self { prepared, rows, decided, given: DecidedTransactions::new(), bytes }
    }

    pub(crate) fn prepared(&self) -> &PreparedTransactions {
        &self.prepared
    }

    pub(crate) fn decided(&self) -> &DecidedTransactions {
        &self.decided
    }

    pub(crate) fn rows(&self) -> &PreparedRows {
        &self.rows
    }

    /// Approximate memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.decided.len() * 128
    }

    /// Why no more transactions can begin here, if so.
    pub(crate) fn is_full(&self) -> Option<Failure> {
        let is_full =
            self.prepared.len().max(self.decided.len()) >= TRANSACTIONS_MAX || self.bytes >= PREPARED_BYTES_MAX;
        is_full.then(|| Failure::Overloaded("too many transactions of the range wait for other ranges".to_owned()))
    }

    fn insert(&mut self, transaction: TransactionId, prepared: PreparedTransaction) {
        self.bytes += prepared.bytes();
        for change in &prepared.writes {
            self.rows.insert(change.key.clone(), prepared.timestamp);
        }
        self.prepared.insert(transaction, Arc::new(prepared));
    }

    fn remove(&mut self, transaction: TransactionId, timestamp: Timestamp) -> Option<Arc<PreparedTransaction>> {
        self.prepared.get(&transaction).filter(|prepared| prepared.timestamp == timestamp)?;
        let prepared = self.prepared.remove(&transaction)?;
        self.bytes -= prepared.bytes();
        for change in &prepared.writes {
            self.rows.remove(&change.key);
        }
        Some(prepared)
    }

    /// Splits off the decisions of coordinators at and above a key, on every replica, whether or not it has a part in the
    /// new range.
    pub(crate) fn split(&mut self, key: &Bytes) {
        let moves = |decided: &DecidedTransaction| decided.key >= *key;
        let all = std::mem::take(&mut self.decided);
        let (decided, kept) = all.into_iter().partition(|(_, decided)| moves(decided));
        (self.decided, self.given) = (kept, decided);
    }

    /// The transactions of the range that the last applied entry split off.
    pub(crate) fn split_off(&mut self) -> Self {
        Self { decided: std::mem::take(&mut self.given), ..Self::default() }
    }

    pub(crate) fn add_to(&self, hash: &mut LogicalHash) {
        hash.word(self.prepared.len() as u64);
        hash.word(self.decided.len() as u64);
        let mut out = Writer::new();
        for (id, prepared) in &self.prepared {
            id.encode(&mut out);
            prepared.encode(&mut out);
        }
        for (id, decided) in &self.decided {
            id.encode(&mut out);
            decided.encode(&mut out);
        }
        hash.bytes(out.as_slice());
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub(crate) fn invariants(&self, owned: Option<&KeyRange>, last: Timestamp) {
        let writes = self.prepared.values().map(|prepared| prepared.writes.len()).sum::<usize>();
        assert_eq!(writes, self.rows.len(), "a row is written by one prepared transaction");
        assert_eq!(self.bytes, self.prepared.values().map(|prepared| prepared.bytes()).sum::<usize>());
        for prepared in self.prepared.values() {
            assert!(prepared.timestamp <= last, "an applied entry has prepared it");
            let is_owned = |change: &RowChange| owned.is_some_and(|range| range.contains(&change.key));
            assert!(prepared.writes.iter().all(is_owned), "a prepared range is not split");
        }
    }
}

/// [`Failure::Aborted`] with this reason.
pub(crate) fn aborted(reason: &str) -> Failure {
    Failure::Aborted(reason.to_owned())
}

impl Tablet {
    /// Commits a transaction, unless its session has another outcome.
    pub(super) fn commit(
        &mut self,
        stamp: &SessionStamp,
        key: &Bytes,
        writes: Vec<RowChange>,
        participants: Vec<Participant>,
        entry: &Entry,
    ) -> Outcome {
        let outcome = match self.sessions.admit(stamp, entry.timestamp) {
            Admission::Answer(outcome) if !planted(Bug::CommitExecutedTwice) => {
                return self.with_participants(stamp, outcome);
            }
            _ => Ok(TableResponse::Written { version: entry.timestamp }),
        };
        for change in writes {
            self.rows.change(change, entry.timestamp, entry.payload.len());
        }
        if !participants.is_empty() {
            let key = Bytes::copy_from_slice(key);
            let decided = DecidedTransaction { key, timestamp: entry.timestamp, participants };
            self.transactions.decided.insert(stamp.into(), Arc::new(decided));
        }
        self.sessions.record(stamp, &outcome);
        outcome
    }

    /// The outcome of a commit that was executed before, with the participants that have not resolved it: the driver of
    /// the repetition may have prepared others, which it must release.
    pub(super) fn with_participants(&self, stamp: &SessionStamp, outcome: Outcome) -> Outcome {
        let Ok(TableResponse::Written { version: timestamp }) = outcome else { return outcome };
        let decided = self.transactions.decided.get(&TransactionId::from(stamp));
        let unresolved = decided.map(|decided| decided.participants.clone()).unwrap_or_default();
        Ok(TableResponse::Outcome(TransactionOutcome::Committed { timestamp, unresolved }))
    }

    /// Prepares a transaction, unless it is prepared already.
    pub(super) fn prepare(
        &mut self,
        (coordinator, owner): (Coordinator, LockOwner),
        reads: Vec<KeyRange>,
        writes: Vec<RowChange>,
        entry: &Entry,
    ) -> Execution {
        let transaction = TransactionId::from(&coordinator.stamp);
        let owned = self.ownership.range();
        let is_within = |range: &KeyRange| owned.is_some_and(|owned| owned.includes(range));
        if !reads.iter().all(is_within) {
            return Applied::effect(Effect::Elsewhere);
        }
        if let Some(prepared) = self.transactions.prepared.get(&transaction) {
            return Applied::outcome(Ok(TableResponse::Prepared { timestamp: prepared.timestamp }));
        }
        let prepared = PreparedTransaction { coordinator, owner, timestamp: entry.timestamp, reads, writes };
        let locks = prepared.locks();
        self.transactions.insert(transaction, prepared);
        Applied {
            outcome: Some(Ok(TableResponse::Prepared { timestamp: entry.timestamp })),
            effect: Some(Effect::Locked(locks)),
        }
    }

    /// Ends a prepared transaction: its writes get the commit timestamp as their version.
    pub(super) fn resolve(
        &mut self,
        transaction: TransactionId,
        prepared: Timestamp,
        committed: Option<Timestamp>,
    ) -> Execution {
        let outcome = Some(Ok(TableResponse::Resolved));
        let Some(prepared) = self.transactions.remove(transaction, prepared) else {
            return Applied { outcome, effect: None };
        };
        if let Some(timestamp) = committed {
            // Otherwise a later entry could get an earlier version than the commit.
            let is_checked = canary::COMPILED_IN || cfg!(debug_assertions);
            let is_past = !is_checked || timestamp <= self.last_timestamp();
            assert!(is_past, "the entry that resolves a transaction is not below its commit");
            // The values are slices of the entry that prepared them.
            let buffer_bytes = prepared.bytes();
            for change in &prepared.writes {
                debug_assert!(self.rows.is_newest(&change.key, timestamp), "locks exclude newer versions of the row");
                self.rows.change(change.clone(), timestamp, buffer_bytes);
            }
        }
        Applied { outcome, effect: Some(Effect::Released(prepared.locks())) }
    }

    /// The outcome of a transaction, which is aborted from here on if it has none.
    pub(super) fn abort(&mut self, stamp: &SessionStamp, entry: &Entry) -> Outcome {
        let known =
            self.transactions.decided.get(&TransactionId::from(stamp)).filter(|_| !planted(Bug::AbortAfterCommit));
        if let Some(decided) = known {
            let (timestamp, unresolved) = (decided.timestamp, decided.participants.clone());
            return Ok(TableResponse::Outcome(TransactionOutcome::Committed { timestamp, unresolved }));
        }
        let outcome = match self.sessions.admit(stamp, entry.timestamp) {
            Admission::Answer(outcome) if !planted(Bug::AbortAfterCommit) => outcome,
            Admission::Answer(Err(Failure::UnknownSession(session))) => Err(Failure::UnknownSession(session)),
            _ => {
                let outcome = Err(aborted(ABORTED));
                if !planted(Bug::AbortNotRecorded) {
                    self.sessions.record(stamp, &outcome);
                }
                outcome
            }
        };
        Ok(TableResponse::Outcome(match outcome {
            Ok(TableResponse::Written { version: timestamp }) => {
                TransactionOutcome::Committed { timestamp, unresolved: Vec::new() }
            }
            Err(Failure::Aborted(_)) => TransactionOutcome::Aborted,
            _ => TransactionOutcome::Forgotten,
        }))
    }

    pub(super) fn forget(&mut self, transactions: &[TransactionId]) {
        for transaction in transactions {
            self.transactions.decided.remove(transaction);
        }
    }

    pub(super) fn has_transactions(&self) -> bool {
        !self.prepared().is_empty() || !self.decided().is_empty()
    }

    /// Descriptions of the transactions that are prepared or decided here, for the simulator.
    pub fn transactions_left(&self) -> impl Iterator<Item = String> {
        let prepared = self.prepared().keys().map(|id| format!("has prepared {id:?}"));
        prepared.chain(self.decided().keys().map(|id| format!("has decided {id:?}")))
    }

    #[must_use]
    pub fn prepared(&self) -> &PreparedTransactions {
        self.transactions.prepared()
    }

    /// The transactions that it has committed as their coordinator, and that are not resolved everywhere.
    #[must_use]
    pub fn decided(&self) -> &DecidedTransactions {
        self.transactions.decided()
    }
}

/// The reason of an aborted transaction, as its session remembers it.
pub(crate) const ABORTED: &str = "another transaction or write has changed what it has read, or it took too long";
