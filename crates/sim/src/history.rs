//! A linearizability checker for histories of row operations, from the simulator or from real processes.
//!
//! The model is a row: a map from column to version and value, initially empty. A write is atomic over its mutations:
//! if every condition holds, every column put gets the write's version and every column deleted becomes absent;
//! otherwise nothing changes. Versions of effective writes of one row increase strictly in the order of their effects.
//! Linearizability is local (Herlihy and Wing, 1990), so each row is checked separately.
//!
//! The method is Wing and Gong's search with Lowe's memoization ("Testing for linearizability", 2016), in three stages:
//!
//! 1. `parse`: responses name versions, which determines most of the order before any search. Every version that was
//!    acknowledged, read, named by a refusal or matched by a condition belongs to exactly one write; together these
//!    writes are the *steps*, ordered by version. A write of unknown outcome is a step if its version was seen.
//! 2. `slots`: every other operation with a response is an *observation*: it reads the row without changing it, and
//!    fits between two steps or nowhere. A response that fits nowhere is found here, with a short reason.
//! 3. `order`: the search for one total order: steps in sequence, observations as early as possible, and writes of
//!    unknown outcome only where their effect is needed.
//!
//! **Invariant:** the verdict is exact. Pruning never removes the last order that explains a history, and a search that
//! reaches its limit reports [`Kind::Undecided`] instead of passing.

mod order;
mod parse;
mod report;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use base::Timestamp;
use bytes::Bytes;
use tablets::request::{Cell, Mutation};

use report::Finding;

/// One operation of one client on one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The client that called it, used only in reports.
    pub client: u32,
    /// When it was called, on any clock or counter that is monotonic and common to the whole history.
    pub called: u64,
    /// When it returned. `None`: it never did, and the outcome is unknown regardless of `what`. An operation precedes
    /// another if it returned strictly before the other was called.
    pub returned: Option<u64>,
    /// The key of the row.
    pub key: Bytes,
    /// The request and the response.
    pub what: What,
}

/// The request and the response of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A write of one row.
    Write {
        /// The mutations, at most one per column.
        mutations: Vec<Mutation>,
        outcome: WriteOutcome,
    },
    /// A read of one row.
    Read {
        /// The columns requested; `None` means all.
        columns: Option<Vec<Bytes>>,
        /// The cells returned: those of the requested columns that existed.
        cells: Vec<Cell>,
    },
}

/// The outcome of a write, as far as its client knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It took effect exactly once, between its call and its return, with this version.
    Written(Timestamp),
    /// It was refused at some point between its call and its return, and changed nothing.
    Mismatch {
        /// The first column, in the order of the mutations, whose condition did not hold.
        column: Bytes,
        /// The version that the condition required.
        expected: Timestamp,
        /// The column's actual version; 0 if the column was absent.
        actual: Timestamp,
    },
    /// It may have taken effect once at any time after its call, even after its return, or never.
    Unknown,
    /// It took no effect and never will.
    NotDone,
}

/// Statistics of a linearizable history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub operations: usize,
    pub keys: usize,
    /// Writes of unknown outcome.
    pub unknown: usize,
    /// Operations that overlap another of the same row. A history with few overlaps tests little.
    pub overlapping: usize,
}

/// Why a history is not linearizable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A response does not match its own request.
    Malformed,
    /// A version was seen that no write in the history can have produced.
    Unwritten,
    /// Version order contradicts real-time order, or two writes have the same version.
    Versions,
    /// One response contradicts the writes around it.
    Misplaced,
    /// Each response fits somewhere, but no single order fits all of them.
    Inexplicable,
    /// The search reached its limit: the history is neither accepted nor rejected.
    Undecided,
}

/// A violation of linearizability in a history.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// The kind of violation.
    pub kind: Kind,
    /// The key of the row.
    pub key: Bytes,
    /// A sentence that describes the violation; `#n` is the operation at index `n` of the history.
    pub what: String,
    /// The operations that the sentence refers to, as indexes into the history.
    pub suspects: Vec<usize>,
    /// The suspects and the operations around them, one line each, in call order.
    pub excerpt: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = report::text(&self.key);
        match self.kind {
            Kind::Undecided => writeln!(f, "row {key}: undecided: {}", self.what)?,
            _ => writeln!(f, "row {key} is not linearizable: {}", self.what)?,
        }
        f.write_str(&self.excerpt)
    }
}

/// Checks a history in which every row is initially absent.
///
/// # Errors
/// The first violation, in key order; or [`Kind::Undecided`] if a row exceeds the search limit.
pub fn check(history: &[Operation]) -> Result<Summary, Violation> {
    let mut rows: BTreeMap<&Bytes, Vec<usize>> = BTreeMap::new();
    for (index, operation) in history.iter().enumerate() {
        rows.entry(&operation.key).or_default().push(index);
    }
    let mut summary = Summary { operations: history.len(), keys: rows.len(), ..Summary::default() };
    for (key, operations) in rows {
        check_row(history, &operations).map_err(|finding| report::violation(history, key, &operations, finding))?;
        summary.unknown += operations.iter().filter(|&&index| history[index].is_unknown_write()).count();
        summary.overlapping += overlapping(history, operations);
    }
    Ok(summary)
}

fn check_row(history: &[Operation], operations: &[usize]) -> Result<(), Finding> {
    let mut row = parse::parse(history, operations)?;
    let timelines = slots::narrow(&mut row)?;
    order::find(&row, &timelines)
}

/// How many of `operations` overlap another of them.
fn overlapping(history: &[Operation], mut operations: Vec<usize>) -> usize {
    operations.sort_by_key(|&index| history[index].called);
    let mut latest = None;
    let mut count = 0;
    for (at, &index) in operations.iter().enumerate() {
        let operation = &history[index];
        let with_earlier = latest.is_some_and(|latest| operation.called <= latest);
        let with_next = operations.get(at + 1).is_some_and(|&next| history[next].called <= operation.end());
        count += usize::from(with_earlier || with_next);
        latest = latest.max(Some(operation.end()));
    }
    count
}

impl Operation {
    /// The latest time at which it may take effect.
    fn end(&self) -> u64 {
        if self.is_unknown_write() { u64::MAX } else { self.returned.unwrap_or(u64::MAX) }
    }

    fn is_unknown_write(&self) -> bool {
        match &self.what {
            What::Write { outcome: WriteOutcome::NotDone, .. } | What::Read { .. } => false,
            What::Write { outcome, .. } => self.returned.is_none() || *outcome == WriteOutcome::Unknown,
        }
    }
}
