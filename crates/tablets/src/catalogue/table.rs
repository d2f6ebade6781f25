//! What is known of a table: its ranges, and where each of them lies.

use base::{CohortId, KeyRange, Member, Timestamp};
use bytes::Bytes;

use crate::hash::LogicalHash;
use crate::position::Position;
use crate::request::{Failure, RangeDescription, Response, TableDescription};

/// Bytes of a record beside its strings, roughly.
pub(super) const RECORD_BYTES: usize = 192;

/// A range of a table's keys. It ends where the next one begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeRecord {
    /// Its first key; the first range's is empty.
    pub start: Bytes,
    /// The cohort that keeps its rows.
    pub cohort: CohortId,
    /// The cohort's members, in the order of nodes.
    pub members: Vec<Member>,
}

/// What is known of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableRecord {
    /// Its ranges, in the order of their keys: all of them together hold every key once.
    pub ranges: Vec<RangeRecord>,
    /// When it was created.
    pub created: Timestamp,
    /// Replicas that each range is to have.
    pub replicas: u32,
    /// Whether it is being dropped: then it is there only so that its cohorts are not forgotten before they know.
    pub is_dropping: bool,
}

impl TableRecord {
    /// What tells it from every other table, of its own name too: its first range's cohort.
    #[must_use]
    pub fn id(&self) -> CohortId {
        self.ranges[0].cohort
    }

    /// The range that a request is put to.
    #[must_use]
    pub fn at(&self, position: &Position) -> &RangeRecord {
        let behind = match position {
            Position::At(key) => self.ranges.partition_point(|range| range.start <= *key),
            Position::Below(Some(end)) => self.ranges.partition_point(|range| range.start < *end),
            Position::Below(None) => self.ranges.len(),
        };
        &self.ranges[behind.saturating_sub(1)]
    }

    /// Its ranges with their keys.
    pub fn ranges(&self) -> impl Iterator<Item = (KeyRange, &RangeRecord)> {
        let ends = self.ranges.iter().skip(1).map(|next| Some(next.start.clone())).chain([None]);
        self.ranges.iter().zip(ends).map(|(range, end)| (KeyRange { start: range.start.clone(), end }, range))
    }

    /// The answer to whoever asks for it to be created once more: it is there, and as it is asked for.
    pub(super) fn created_again(&self, name: &str, split_at: &[Bytes], replicas: u32) -> Result<Response, Failure> {
        let is_split_so = || self.ranges[1..].iter().map(|range| &range.start).eq(split_at);
        if !split_at.is_empty() && !is_split_so() {
            let ranges = self.ranges.len();
            return Err(Failure::Exists(format!(
                "table {name} is there, with {ranges} ranges that are split at other keys"
            )));
        }
        if replicas != 0 && replicas != self.replicas {
            let has = self.replicas;
            return Err(Failure::Exists(format!("table {name} is there, with {has} replicas of each range")));
        }
        Ok(Response::TableCreated { existed: true })
    }

    pub(super) fn describe(&self) -> Response {
        let range = |(range, record): (KeyRange, &RangeRecord)| RangeDescription {
            range,
            cohort: record.cohort.0,
            members: record.members.iter().map(|member| member.node.0).collect(),
        };
        Response::Table(TableDescription {
            ranges: self.ranges().map(range).collect(),
            created: self.created,
            replicas: self.replicas,
        })
    }

    /// Whether the ranges hold every key once.
    pub(super) fn is_whole(&self) -> bool {
        self.ranges.first().is_some_and(|first| first.start.is_empty())
            && self.ranges.is_sorted_by(|a, b| a.start < b.start)
    }

    pub(super) fn bytes(&self, name: &str) -> usize {
        let range =
            |range: &RangeRecord| size_of::<RangeRecord>() + range.start.len() + size_of_val(range.members.as_slice());
        RECORD_BYTES + name.len() + self.ranges.iter().map(range).sum::<usize>()
    }

    pub(super) fn hash(&self, hash: &mut LogicalHash) {
        hash.signed(self.created.0);
        hash.word(u64::from(self.replicas));
        hash.word(u64::from(self.is_dropping));
        hash.word(self.ranges.len() as u64);
        for range in &self.ranges {
            hash.bytes(&range.start);
            hash.word(u64::from(range.cohort.0));
            hash.word(range.members.len() as u64);
            range.members.iter().for_each(|member| super::hash_member(*member, hash));
        }
    }
}
