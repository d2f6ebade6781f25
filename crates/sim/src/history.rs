//! Was it linearizable? A checker for histories of row operations, whoever made them: the simulator or real processes.
//!
//! The model is a row: a map from column to version and value, empty at first. A write is atomic over its mutations: if
//! every condition holds, every column put gets the write's version and every column deleted becomes absent; else
//! nothing changes. Versions of effective writes of one row grow strictly in the order of their effects.
//! Linearizability is local (Herlihy and Wing, 1990), so each row is judged by itself.
//!
//! The method is Wing and Gong's search with Lowe's memory ("Testing for linearizability", 2016), in three stages:
//!
//! 1. `parse`: an answer names versions, so most of the order is known before any search. Every version that
//!    was acknowledged, seen, named by a refusal or met by a condition belongs to exactly one write; together they are
//!    the *steps*, whose order is that of the versions. A write of unknown outcome whose version was seen is a step too.
//! 2. `slots`: everything else that was answered only *looks* at the row, and fits between two steps or
//!    nowhere. An answer that fits nowhere is found here, and the reason is short.
//! 3. `order`: the search for one order of all, steps in sequence, looks as early as they can be, and
//!    writes of unknown outcome only where their effect is needed.
//!
//! **Invariant:** the verdict is exact. What prunes the search never rules out the last order that explains a history,
//! and a search that is given up says so ([`Kind::Undecided`]) instead of passing.

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
    /// Who did it; only reports use it.
    pub client: u32,
    /// When it was called, on any clock or counter that never goes back and is one for the whole history.
    pub called: u64,
    /// When it was answered. None: never, and the outcome is unknown whatever `what` says. An operation precedes
    /// another if it was answered strictly before the other was called.
    pub returned: Option<u64>,
    /// The row.
    pub key: Bytes,
    /// What was asked and answered.
    pub what: What,
}

/// What an operation asked and what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A write of one row.
    Write {
        /// What it asked for, one mutation a column at most.
        mutations: Vec<Mutation>,
        /// What became of it.
        outcome: WriteOutcome,
    },
    /// A read of one row.
    Read {
        /// The columns asked for; none: all of them.
        columns: Option<Vec<Bytes>>,
        /// Those of them that were there.
        cells: Vec<Cell>,
    },
}

/// What became of a write, as far as its client knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It took effect once, between its call and its return, with this version.
    Written(Timestamp),
    /// It was refused at a moment between its call and its return, and changed nothing.
    Mismatch {
        /// The first column, in the order of the mutations, whose condition did not hold.
        column: Bytes,
        /// The version asked for.
        expected: Timestamp,
        /// The version it had; 0: it was absent.
        actual: Timestamp,
    },
    /// It may have taken effect once at any time after its call, even after its return, or never.
    Unknown,
    /// It took no effect and never will.
    NotDone,
}

/// What a good history was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Operations in all.
    pub operations: usize,
    /// Rows.
    pub keys: usize,
    /// Writes of unknown outcome.
    pub unknown: usize,
    /// Operations that overlap another one of the same row. A history with few of them shows little.
    pub overlapping: usize,
}

/// Why a history is not linearizable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An answer does not fit its own request.
    Malformed,
    /// A version was seen that no write of the history can have put there.
    Unwritten,
    /// Versions grow against time, or two writes have the same.
    Versions,
    /// One answer contradicts the writes around it.
    Misplaced,
    /// Every answer fits somewhere, but not all of them together.
    Inexplicable,
    /// The search was given up at its limit: neither good nor bad.
    Undecided,
}

/// What is wrong with a history.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// Which sort of wrong.
    pub kind: Kind,
    /// The row.
    pub key: Bytes,
    /// What is wrong, in a sentence; `#n` is the operation at index `n` of the history.
    pub what: String,
    /// The operations that the sentence is about, as indexes into the history.
    pub suspects: Vec<usize>,
    /// The suspects and what went on around them, one line each, in the order of their calls.
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

/// Judges a history that began with no row at all.
///
/// # Errors
/// The first violation, in the order of keys; or [`Kind::Undecided`] if a row is beyond the search's limit.
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

/// How many of `operations` overlap another one of them.
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
    /// Until when it may take effect.
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
