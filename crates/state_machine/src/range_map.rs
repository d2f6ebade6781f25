//! The map of the tables' ranges, for machines that send requests to several ranges. The catalog is one.

use base::{CohortId, KeyRange, Timestamp};

use crate::key_position::KeyPosition;

/// The tables and their ranges, as a node knows them: a hint that may be stale.
pub trait RangeMap {
    type Table: TableRanges;

    /// The table of that name, unless it is being dropped.
    fn table(&self, name: &str) -> Option<&Self::Table>;

    /// Whether the range of a cohort was dropped.
    fn is_gone(&self, cohort: CohortId) -> bool;
}

/// The ranges of a table, which partition its keys.
pub trait TableRanges {
    /// When the table was created.
    fn created(&self) -> Timestamp;

    /// Whether the table takes part in transactions.
    fn takes_part(&self) -> bool;

    /// The cohort of the range that contains a position.
    fn cohort_at(&self, position: &KeyPosition) -> CohortId;

    /// The ranges in order of key, each with its cohort.
    fn cohorts(&self) -> impl Iterator<Item = (KeyRange, CohortId)>;
}
