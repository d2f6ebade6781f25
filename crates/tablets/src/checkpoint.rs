//! A tablet's checkpoint: its whole state except the rows, which are in the tables of its tree.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::codec::{Reader, Writer};
use base::{CohortId, Timestamp};
use bytes::Bytes;
use imbl::OrdMap;
use state_machine::checkpoint::{
    Chunked, Cursor, FIRST_PART, Keep, LoadError, Loader, Record, Snapshot, pack, unexpected,
};
use state_machine::interface::{StateMachine as _, Wire};
use state_machine::sessions::{Open, load_sessions, pack_sessions};
use state_machine::{ClientSessionId, Kind, Ownership, Progress};
use store::tree::Tree;

use crate::tablet::transactions::{DecidedTransactions, PreparedTransactions, Transactions};
use crate::tablet::{ClientSessions, Tablet, WriteOutcome};
use crate::transaction::{RowChange, TransactionId};

const SESSIONS: u8 = FIRST_PART;
const PREPARED: u8 = FIRST_PART + 1;
const DECIDED: u8 = FIRST_PART + 2;

/// An immutable snapshot of a tablet, without its rows.
#[derive(Clone, Debug)]
pub struct TabletSnapshot {
    progress: Progress,
    ownership: Ownership,
    children: Vec<CohortId>,
    watermark: Timestamp,
    sessions: Open<WriteOutcome>,
    prepared: PreparedTransactions,
    decided: DecidedTransactions,
}

impl TabletSnapshot {
    pub(crate) fn of(tablet: &Tablet) -> Self {
        Self {
            progress: tablet.progress,
            ownership: tablet.ownership.clone(),
            children: tablet.children.clone(),
            watermark: tablet.watermark(),
            sessions: tablet.sessions.open_sessions().clone(),
            prepared: if planted(Bug::PrepareNotInCheckpoint) { OrdMap::new() } else { tablet.prepared().clone() },
            decided: tablet.decided().clone(),
        }
    }
}

impl Chunked for TabletSnapshot {
    fn kind(&self) -> Kind {
        Tablet::KIND
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn header(&self, out: &mut Writer) {
        self.ownership.encode(out);
        self.children.encode(out);
        out.i64(self.watermark.0);
        out.u64(self.sessions.len() as u64);
        out.u64(self.prepared.len() as u64);
        out.u64(self.decided.len() as u64);
    }

    fn part(&self, after: &Cursor) -> Option<(Bytes, Cursor)> {
        let sessions = || {
            let last = after.last[..].try_into().ok().map(|last| ClientSessionId(u64::from_be_bytes(last)));
            let (chunk, ClientSessionId(last)) = pack_sessions(SESSIONS, &self.sessions, last)?;
            Some((chunk, Cursor { tag: SESSIONS, last: Bytes::copy_from_slice(&last.to_be_bytes()) }))
        };
        let prepared = || pack_transactions(PREPARED, &self.prepared, after);
        let decided = || pack_transactions(DECIDED, &self.decided, after);
        match after.tag {
            PREPARED => prepared().or_else(decided),
            DECIDED => decided(),
            _ => sessions().or_else(prepared).or_else(decided),
        }
    }
}

impl Snapshot for TabletSnapshot {
    type Machine = Tablet;
    type Loader = TabletLoader;

    fn keep(&self) -> Keep {
        Keep { watermark: self.watermark, cells: self.ownership.cells() }
    }

    fn is_dropped(&self) -> bool {
        self.ownership == Ownership::Dropped
    }

    fn into_machine(self, tree: Tree) -> Tablet {
        let Self { progress, ownership, children, watermark, sessions, prepared, decided } = self;
        let (sessions, transactions) = (ClientSessions::of(sessions), Transactions::of(prepared, decided));
        Tablet::of(progress, ownership, children, watermark, sessions, transactions, tree)
    }
}

/// Restores a snapshot from its chunks.
#[derive(Clone, Debug)]
pub struct TabletLoader {
    progress: Progress,
    ownership: Ownership,
    children: Vec<CohortId>,
    watermark: Timestamp,
    sessions: ClientSessions,
    prepared: PreparedTransactions,
    decided: DecidedTransactions,
    /// The numbers of sessions, and of prepared and decided transactions, according to the header.
    counts: [u64; 3],
}

impl Loader for TabletLoader {
    type Snapshot = TabletSnapshot;

    fn begin(progress: Progress, mut header: Reader) -> Result<Self, LoadError> {
        let ownership = Ownership::decode(&mut header)?;
        let children = Wire::decode(&mut header)?;
        let watermark = Timestamp(header.i64()?);
        if watermark < Timestamp(0) || watermark > progress.last_timestamp {
            return Err(LoadError::Impossible("the watermark exceeds the last timestamp"));
        }
        let counts = [header.u64()?, header.u64()?, header.u64()?];
        header.end()?;
        let (sessions, prepared, decided) = Default::default();
        Ok(Self { progress, ownership, children, watermark, sessions, prepared, decided, counts })
    }

    fn part(&mut self, tag: u8, mut input: Reader) -> Result<(), LoadError> {
        match tag {
            SESSIONS => load_sessions(&mut input, &self.progress, &mut self.sessions),
            PREPARED => load_transactions(&mut input, &mut self.prepared),
            DECIDED => load_transactions(&mut input, &mut self.decided),
            _ => Err(unexpected(tag)),
        }
    }

    fn finish(self) -> Result<TabletSnapshot, LoadError> {
        let Self { progress, ownership, children, watermark, sessions, prepared, decided, counts } = self;
        if [sessions.len(), prepared.len(), decided.len()].map(|count| count as u64) != counts {
            return Err(LoadError::Impossible("the count of sessions or transactions does not match the header"));
        }
        if prepared.values().any(|prepared| prepared.timestamp > progress.last_timestamp) {
            return Err(LoadError::Impossible("a transaction was prepared after the last entry"));
        }
        let mut rows = BTreeSet::new();
        let mut is_new = |change: &RowChange| {
            ownership.range().is_some_and(|range| range.contains(&change.key)) && rows.insert(change.key.clone())
        };
        if !prepared.values().all(|prepared| prepared.writes.iter().all(&mut is_new)) {
            return Err(LoadError::Impossible("prepared transactions change a row twice, or one of another range"));
        }
        let sessions = sessions.open_sessions().clone();
        Ok(TabletSnapshot { progress, ownership, children, watermark, sessions, prepared, decided })
    }
}

/// A transaction encoded for a checkpoint.
struct Packed<'a, T>(TransactionId, &'a T);

impl<T> Clone for Packed<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Packed<'_, T> {}

impl<T: Wire> Record for Packed<'_, T> {
    fn size(&self) -> usize {
        // Prepared transactions are few, so encoding one twice costs little.
        TransactionId::BYTES_MIN + self.1.to_bytes().len()
    }

    fn encode(&self, out: &mut Writer) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

/// The next checkpoint chunk with the transactions after a position, in order of id.
fn pack_transactions<T: Wire>(
    tag: u8,
    transactions: &OrdMap<TransactionId, Arc<T>>,
    after: &Cursor,
) -> Option<(Bytes, Cursor)> {
    let is_within = after.tag == tag;
    let last = is_within.then(|| TransactionId::from_bytes(after.last.clone()).ok()).flatten();
    let rest = transactions.range((last.map_or(Unbounded, Excluded), Unbounded));
    let (chunk, Packed(last, _)) = pack(tag, rest.map(|(id, transaction)| Packed(*id, &**transaction)))?;
    Some((chunk, Cursor { tag, last: last.to_bytes() }))
}

/// Decodes a chunk of [`pack_transactions`].
fn load_transactions<T: Wire + Clone>(
    input: &mut Reader,
    transactions: &mut OrdMap<TransactionId, Arc<T>>,
) -> Result<(), LoadError> {
    while input.left() > 0 {
        let (id, transaction) = (TransactionId::decode(input)?, T::decode(input)?);
        if transactions.insert(id, Arc::new(transaction)).is_some() {
            return Err(LoadError::Impossible("duplicate transaction"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
