//! A checker for histories of transactions that append to lists and read them, from the simulator or from real
//! processes. It decides strict serializability, and names the anomaly that a history contains.
//!
//! Every value is appended at most once, so a list that was read names the transactions that wrote it and their order.
//! From this the checker derives Adya's direct serialization graph, as Elle does (Kingsbury and Alvaro, VLDB 2020):
//!
//! * *write-write*: the writer of a value precedes the writer of the next value of the list;
//! * *write-read*: the writer of the last value of a list precedes its readers;
//! * *read-write*: a reader of a list precedes the writer of the next value;
//! * *real time*: a transaction precedes those that began after it had ended. (Clients are sequential, so this includes
//!   the order of each client.)
//!
//! A history is strictly serializable exactly if no single read shows an anomaly (`direct`) and the graph has no
//! cycle (`graph`). The kinds of edges in a cycle give the anomaly its name. Commit timestamps, if known, are checked
//! against the order of the lists and against real time (`timestamps`; Spanner's external consistency).
//!
//! **Invariant:** every anomaly reported is one. An anomaly is missed only if no read shows it: a transaction of unknown
//! outcome counts as committed if a committed transaction read one of its values, and is ignored otherwise.

mod direct;
mod graph;
#[cfg(test)]
mod tests;
mod timestamps;

use std::collections::BTreeMap;
use std::fmt;

use base::Timestamp;

pub type Key = u64;
/// A value of a list, unique in the whole history.
pub type Value = u64;

/// One transaction of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The client that ran it, used only in reports.
    pub client: u32,
    /// When it began, on any clock or counter that is monotonic and common to the whole history.
    pub begun: u64,
    /// When its outcome was known. It precedes another transaction if it ended strictly before the other began.
    pub ended: u64,
    /// Its outcome, as far as its client knows.
    pub outcome: Outcome,
    /// Its operations, in order.
    pub operations: Vec<Operation>,
}

/// The outcome of a transaction, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect. The commit timestamp, if the system reported one.
    Committed(Option<Timestamp>),
    /// It had no effect and never will.
    Aborted,
    /// It may have taken effect, or may still do so.
    Unknown,
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Appended a value to a list.
    Append(Key, Value),
    /// Read a whole list, including the transaction's own appends.
    Read(Key, Vec<Value>),
}

/// A violation of strict serializability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    pub kind: Kind,
    /// Indexes in the history of the transactions that show it. A cycle is given in order.
    pub transactions: Vec<usize>,
    pub reason: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.reason)
    }
}

/// Phenomena, by the names of Adya ("Weak consistency", 1999) where he has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The history is malformed: a value was appended twice.
    Malformed,
    /// A transaction does not see its own appends, or two of its reads of a list differ without an append in between.
    Internal,
    /// A read returned a value that was never appended, or not to this list.
    Garbage,
    /// A read returned a value twice.
    Duplicate,
    /// G1a: a read returned a value of an aborted transaction.
    AbortedRead,
    /// G1b: a read returned a state in the middle of another transaction.
    IntermediateRead,
    /// Two reads of a list are not prefixes of one list, or a list lost values.
    IncompatibleOrder,
    /// The values of one transaction are not adjacent in a list, or are out of order: it was not atomic.
    Torn,
    /// G0: a cycle of write-write edges.
    WriteCycle,
    /// G1c: a cycle of write-write and write-read edges.
    CircularInformationFlow,
    /// G-single: a cycle with one read-write edge, such as a lost update or read skew.
    SingleAntiDependency,
    /// G2: a cycle with several read-write edges, such as write skew or a long fork.
    AntiDependencyCycle,
    /// A serializable history whose order contradicts real time, such as a stale read.
    RealTimeCycle,
    /// Commit timestamps that contradict the order of a list or real time.
    Timestamps,
}

/// Checks a history.
///
/// # Errors
/// The first anomaly found.
pub fn check(history: &[Transaction]) -> Result<(), Anomaly> {
    let lists = direct::check(history)?;
    graph::check(history, &lists)?;
    timestamps::check(history, &lists)
}

/// The order of each list, as the reads of a history show it.
#[derive(Debug, Default)]
struct Lists {
    lists: BTreeMap<Key, List>,
    /// Whether a transaction is known to have taken effect.
    is_committed: Vec<bool>,
}

/// The order of one list.
#[derive(Debug, Default)]
struct List {
    /// The longest state that a committed transaction read.
    values: Vec<Value>,
    /// The transaction that appended each value of `values`.
    writers: Vec<usize>,
    /// Committed transactions with appends that no read has returned. They follow all of `values`.
    unread: Vec<usize>,
    /// Reads by committed transactions: the transaction, and the number of values before its own appends.
    reads: Vec<(usize, usize)>,
}
