//! The library's own types for rows and tables. They are separate from the messages, so that the protocol can change.

use std::ops::{Range as Bounds, RangeFrom, RangeFull, RangeTo};
use std::time::Duration;

use api::columns as message;
use bytes::Bytes;
use client::Version;

/// A column of a row, with its value and version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cell {
    /// The name of the column.
    pub column: Bytes,
    /// The value.
    pub value: Bytes,
    /// The version. It increases with every write of the column.
    pub version: Version,
}

/// A row with the columns that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// The key.
    pub key: Bytes,
    /// The columns, in order of name.
    pub cells: Vec<Cell>,
}

/// The state that a read returned. Absent for linearizable reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsOf {
    /// The timestamp of the last write included, or the timestamp asked for.
    pub timestamp: Version,
    /// The staleness: all writes acknowledged this long before the call are included. None: unknown.
    pub age: Option<Duration>,
    /// The cohort of replicas that was read, by its id.
    pub cohort: u32,
    /// The epoch of the last log entry included.
    pub epoch: u64,
    /// The sequence number of that entry in its epoch.
    pub sequence: u64,
    /// The keys of the cohort.
    pub range: KeyRange,
}

/// The storage that a write must have reached on a majority of replicas before it is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Synced to disk: acknowledged writes are never lost.
    #[default]
    Forced,
    /// Main memory, with disk writes in the background. If a majority of a range's processes end at once, its latest
    /// writes may be lost. Such a range cannot be split.
    Memory,
}

/// How the ranges of a table are replicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replication {
    /// Multi-Paxos: a majority of the replicas commits a write and elects the leader.
    #[default]
    Paxos,
    /// Primary/backup: all members of a configuration commit a write. The catalog records the configuration, and removes
    /// members that are silent. Writes continue down to one replica.
    PrimaryBackup,
}

impl Replication {
    /// The name in commands and output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Paxos => "paxos",
            Self::PrimaryBackup => "primary-backup",
        }
    }
}

/// The members of a range under primary/backup replication.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Configuration {
    /// Grows by one with each change.
    pub version: u64,
    /// The node of the primary, which serves writes and strong reads.
    pub primary: u32,
    /// The nodes of all members, in order.
    pub members: Vec<u32>,
}

/// A table's options, ranges, and their placement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableDescription {
    /// The ranges, in order of key.
    pub ranges: Vec<Range>,
    /// The time of creation, in nanoseconds since 1970.
    pub created_ns: i64,
    /// Replicas of each range.
    pub replicas: u32,
    /// How long old versions are readable.
    pub retention: Duration,
    /// The storage that a write must have reached before it is acknowledged.
    pub durability: Durability,
    /// Whether the table takes part in transactions.
    pub transactions: bool,
    /// How each range is replicated.
    pub replication: Replication,
}

/// A range of a table: the keys from `start`, inclusive, to `end`, exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Range {
    /// The first key; empty: the beginning of the table.
    pub start: Bytes,
    /// The first key after the range; none: the end of the table.
    pub end: Option<Bytes>,
    /// The id of the cohort of replicas that serves it.
    pub cohort: u32,
    /// The nodes of the planned replicas, by number.
    pub members: Vec<u32>,
    /// Whether a move to these nodes is in progress.
    pub is_moving: bool,
    /// Its configuration, under [`Replication::PrimaryBackup`].
    pub configuration: Option<Configuration>,
}

/// An interval of keys. Converts from Rust's half-open ranges, such as `"a".."c"`, `"a"..`, `.."c"` and `..`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    pub(crate) start: Bytes,
    pub(crate) end: Option<Bytes>,
}

impl KeyRange {
    /// Whether it contains all keys.
    #[must_use]
    pub fn is_whole_table(&self) -> bool {
        self.start.is_empty() && self.end.is_none()
    }
}

impl Cell {
    /// A column with this name, value and version.
    #[must_use]
    pub fn new(column: impl Into<Bytes>, value: impl Into<Bytes>, version: Version) -> Self {
        Self { column: column.into(), value: value.into(), version }
    }
}

impl Row {
    /// A row with this key and these columns.
    #[must_use]
    pub fn new(key: impl Into<Bytes>, cells: Vec<Cell>) -> Self {
        Self { key: key.into(), cells }
    }

    /// The column with this name; none if it was not read or is absent.
    #[must_use]
    pub fn cell(&self, column: impl AsRef<[u8]>) -> Option<&Cell> {
        let column = column.as_ref();
        self.cells.iter().find(|cell| cell.column == column)
    }
}

impl Range {
    /// Whether the range contains a key.
    #[must_use]
    pub fn contains(&self, key: impl AsRef<[u8]>) -> bool {
        let key = key.as_ref();
        *self.start <= *key && self.end.as_ref().is_none_or(|end| *key < **end)
    }
}

impl<K: Into<Bytes>> From<Bounds<K>> for KeyRange {
    fn from(bounds: Bounds<K>) -> Self {
        Self { start: bounds.start.into(), end: Some(bounds.end.into()) }
    }
}

impl<K: Into<Bytes>> From<RangeFrom<K>> for KeyRange {
    fn from(bounds: RangeFrom<K>) -> Self {
        Self { start: bounds.start.into(), end: None }
    }
}

impl<K: Into<Bytes>> From<RangeTo<K>> for KeyRange {
    fn from(bounds: RangeTo<K>) -> Self {
        Self { start: Bytes::new(), end: Some(bounds.end.into()) }
    }
}

impl From<RangeFull> for KeyRange {
    fn from(_: RangeFull) -> Self {
        Self::default()
    }
}

impl From<message::Cell> for Cell {
    fn from(message::Cell { column, value, version }: message::Cell) -> Self {
        Self { column, value, version: Version::from_nanos(version) }
    }
}

impl From<message::Row> for Row {
    fn from(message::Row { key, cells }: message::Row) -> Self {
        Self { key, cells: cells.into_iter().map(Into::into).collect() }
    }
}

impl From<message::AsOf> for AsOf {
    fn from(as_of: message::AsOf) -> Self {
        let message::CohortLsn { cohort, epoch, sequence } = as_of.lsn.unwrap_or_default();
        let age = as_of.age_ms.map(Duration::from_millis);
        let range = KeyRange { start: as_of.start, end: as_of.end };
        Self { timestamp: Version::from_nanos(as_of.timestamp_ns), age, cohort, epoch, sequence, range }
    }
}

impl From<Durability> for message::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Forced => Self::Forced,
            Durability::Memory => Self::Memory,
        }
    }
}

impl From<Replication> for message::Replication {
    fn from(replication: Replication) -> Self {
        match replication {
            Replication::Paxos => Self::Paxos,
            Replication::PrimaryBackup => Self::PrimaryBackup,
        }
    }
}

impl From<message::Configuration> for Configuration {
    fn from(message::Configuration { version, primary, members }: message::Configuration) -> Self {
        Self { version, primary, members }
    }
}

impl From<message::DescribeTableResponse> for TableDescription {
    fn from(known: message::DescribeTableResponse) -> Self {
        let durability = match known.durability() {
            message::Durability::Memory => Durability::Memory,
            message::Durability::Forced | message::Durability::Unspecified => Durability::Forced,
        };
        let replication = match known.replication() {
            message::Replication::PrimaryBackup => Replication::PrimaryBackup,
            message::Replication::Paxos | message::Replication::Unspecified => Replication::Paxos,
        };
        Self {
            ranges: known.ranges.into_iter().map(Into::into).collect(),
            created_ns: known.created_ns,
            replicas: known.replicas,
            retention: Duration::from_millis(known.retention_ms),
            durability,
            transactions: known.transactions,
            replication,
        }
    }
}

impl From<message::Range> for Range {
    fn from(message::Range { start, end, cohort, members, is_moving, configuration }: message::Range) -> Self {
        Self { start, end, cohort, members, is_moving, configuration: configuration.map(Into::into) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_range_from_rust_ranges() {
        let of = |range: KeyRange| (range.start, range.end);
        let (a, c) = (Bytes::from("a"), Bytes::from("c"));
        assert_eq!(of(("a".."c").into()), (a.clone(), Some(c.clone())));
        assert_eq!(of((String::from("a")..).into()), (a, None));
        assert_eq!(of((..vec![b'c']).into()), (Bytes::new(), Some(c)));
        assert_eq!(of((..).into()), (Bytes::new(), None));
    }

    #[test]
    fn range_contains_start_not_end() {
        let (start, end) = ("b".into(), Some("d".into()));
        let mut range = Range { start, end, cohort: 1, members: vec![], is_moving: false, configuration: None };
        assert_eq!(["a", "b", "c", "d"].map(|key| range.contains(key)), [false, true, true, false]);
        range.end = None;
        assert!(range.contains("z"));
    }
}
