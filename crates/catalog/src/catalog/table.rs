//! Metadata of a table: its ranges, and the placement of each.

use std::borrow::Cow;

use base::{CohortId, Configuration, KeyRange, Member, Timestamp, counted};
use bytes::Bytes;
use state_machine::{Failure, KeyPosition, LogicalHash};

use crate::options::TableOptions;
use crate::request::{CatalogResponse, RangeDescription, TableDescription};

/// Approximate bytes of a record, without its strings.
pub(super) const RECORD_BYTES: usize = 192;

/// Bytes of a range's record without a configuration.
const RANGE_BYTES: usize = size_of::<RangeRecord>() - size_of::<Option<Box<Configuration>>>();

/// A range of a table's keys. It ends where the next one begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeRecord {
    /// Its first key; empty for the first range.
    pub start: Bytes,
    /// The cohort that serves it.
    pub cohort: CohortId,
    /// The planned members, in order of node. The actual members are decided in the cohort's own log (guarantee 8).
    pub members: Vec<Member>,
    /// The members at the cohort's creation, in order of node.
    pub genesis: Vec<Member>,
    /// The number of the current placement plan; 0: it was never moved.
    pub plan: u64,
    /// While a move is in progress: the former members that the plan removes.
    pub leaving: Option<Vec<Member>>,
    /// The cohort of the range that it was split off from, if any.
    pub parent: Option<CohortId>,
    /// The split in progress, if any.
    pub split: Option<SplitRecord>,
    /// The current configuration, under primary/backup replication. It decides the actual members.
    pub configuration: Option<Box<Configuration>>,
}

impl RangeRecord {
    pub(super) fn new(start: Bytes, cohort: CohortId, members: Vec<Member>) -> Self {
        let (genesis, configuration) = (members.clone(), None);
        Self { start, cohort, genesis, members, plan: 0, leaving: None, parent: None, split: None, configuration }
    }

    fn all_members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().chain(&self.genesis).chain(self.leaving.iter().flatten())
    }
}

/// A split in progress: the cohort has not confirmed it yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SplitRecord {
    /// The key at which the new range begins.
    pub key: Bytes,
    /// The new range's cohort. It has the same members as the parent.
    pub child: CohortId,
}

/// A part of a table with a cohort of its own: a range in the map, or the part being split off from one.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// Its keys. The keys of a part being split off are also within its parent's range.
    pub range: KeyRange,
    /// The cohort that serves it.
    pub cohort: CohortId,
    /// The planned members, in order of node.
    pub members: &'a [Member],
    /// The members that the current plan removes.
    pub leaving: &'a [Member],
    /// The members at the cohort's creation, in order of node.
    pub genesis: &'a [Member],
    /// The number of the current placement plan; 0: it was never moved.
    pub plan: u64,
    /// The cohort that it was split off from, if any.
    pub parent: Option<CohortId>,
    /// The current configuration, under primary/backup replication.
    pub configuration: Option<Cow<'a, Configuration>>,
}

impl Part<'_> {
    /// Whether this disk has a replica, including one that the plan removes.
    #[must_use]
    pub fn is_on(&self, member: Member) -> bool {
        let is_configured = || self.configuration.as_ref().is_some_and(|configuration| configuration.has(member));
        self.members.contains(&member) || self.leaving.contains(&member) || is_configured()
    }
}

/// Metadata of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableRecord {
    pub options: TableOptions,
    /// Its ranges, in order of key. They partition the key space.
    pub ranges: Vec<RangeRecord>,
    /// When it was created.
    pub created: Timestamp,
    /// Whether it is being dropped. The record remains until all its cohorts have committed the drop.
    pub is_dropping: bool,
    /// Whether the drop ends without the cohorts that cannot be reached: the operator has declared them lost.
    pub is_drop_forced: bool,
}

impl TableRecord {
    /// The table's id, unique even among tables of the same name: the cohort of its first range.
    #[must_use]
    pub fn id(&self) -> CohortId {
        self.ranges[0].cohort
    }

    /// Whether the cohort serves one of its ranges.
    #[must_use]
    pub fn has(&self, cohort: CohortId) -> bool {
        self.ranges.iter().any(|range| range.cohort == cohort)
    }

    /// The range that contains a request's position.
    #[must_use]
    pub fn at(&self, position: &KeyPosition) -> &RangeRecord {
        let behind = match position {
            KeyPosition::At(key) => self.ranges.partition_point(|range| range.start <= *key),
            KeyPosition::Below(Some(end)) => self.ranges.partition_point(|range| range.start < *end),
            KeyPosition::Below(None) => self.ranges.len(),
        };
        &self.ranges[behind.saturating_sub(1)]
    }

    /// The cohort to retry a request at after the range's cohort rejected it: the child of a split in progress, if the
    /// position is in the part being split off.
    #[must_use]
    pub fn split_off_at(&self, position: &KeyPosition) -> Option<CohortId> {
        let (range, record) = self.ranges().find(|(range, _)| position.is_in(range))?;
        let split = record.split.as_ref()?;
        let given = KeyRange { start: split.key.clone(), end: range.end };
        position.is_in(&given).then_some(split.child)
    }

    /// All parts in order of the map. A part being split off follows its parent.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.ranges().flat_map(|(range, record)| {
            let RangeRecord { cohort, members, genesis, plan, leaving, parent, split, configuration, .. } = record;
            let configuration = configuration.as_deref();
            let of_child = configuration.map(|known| Cow::Owned(known.for_child()));
            let configuration = configuration.map(Cow::Borrowed);
            let child = split.as_ref().map(|split| Part {
                range: KeyRange { start: split.key.clone(), end: range.end.clone() },
                cohort: split.child,
                members,
                leaving: &[],
                genesis: members,
                plan: 0,
                parent: Some(*cohort),
                configuration: of_child,
            });
            let leaving = leaving.as_deref().unwrap_or_default();
            let (cohort, plan, parent) = (*cohort, *plan, *parent);
            let whole = Part { range, cohort, members, leaving, genesis, plan, parent, configuration };
            std::iter::once(whole).chain(child)
        })
    }

    /// Its ranges, with their keys.
    pub fn ranges(&self) -> impl Iterator<Item = (KeyRange, &RangeRecord)> {
        let ends = self.ranges.iter().skip(1).map(|next| Some(next.start.clone())).chain([None]);
        self.ranges.iter().zip(ends).map(|(range, end)| (KeyRange { start: range.start.clone(), end }, range))
    }

    /// The outcome of a repeated creation: success, if the requested options equal the table's.
    pub(super) fn created_again(
        &self,
        name: &str,
        split_at: &[Bytes],
        wanted: &TableOptions,
    ) -> Result<CatalogResponse, Failure> {
        let is_split_so = || self.ranges[1..].iter().map(|range| &range.start).eq(split_at);
        if !split_at.is_empty() && !is_split_so() {
            let ranges = counted(self.ranges.len() as u64, "range");
            return Err(Failure::Exists(format!("table {name} already exists, with {ranges} and other split keys")));
        }
        self.options.check_same(name, wanted)?;
        Ok(CatalogResponse::TableCreated { existed: true })
    }

    pub(super) fn describe(&self) -> CatalogResponse {
        let range = |(range, record): (KeyRange, &RangeRecord)| RangeDescription {
            range,
            cohort: record.cohort.0,
            members: record.members.iter().map(|member| member.node.0).collect(),
            is_moving: record.leaving.is_some(),
            configuration: record.configuration.as_deref().cloned(),
        };
        CatalogResponse::Table(TableDescription {
            ranges: self.ranges().map(range).collect(),
            created: self.created,
            replicas: self.options.replicas,
            retention: self.options.retention,
            durability: self.options.durability(),
            transactions: self.options.takes_part(),
            replication: self.options.replication(),
            disk_bytes: self.options.disk_bytes,
        })
    }

    /// Whether the ranges partition the key space.
    pub(super) fn is_whole(&self) -> bool {
        self.ranges.first().is_some_and(|first| first.start.is_empty())
            && self.ranges.is_sorted_by(|a, b| a.start < b.start)
            && self.parts().all(|part| part.range.end.is_none_or(|end| part.range.start < end))
    }

    pub(super) fn bytes(&self, name: &str) -> usize {
        let range = |range: &RangeRecord| {
            let split = range.split.as_ref().map_or(0, |split| split.key.len());
            let members = range.all_members().count() * size_of::<Member>();
            let configuration = range.configuration.as_ref().map_or(0, |configuration| {
                size_of::<Configuration>() + configuration.members.len() * size_of::<Member>()
            });
            RANGE_BYTES + range.start.len() + split + members + configuration
        };
        RECORD_BYTES + name.len() + self.ranges.iter().map(range).sum::<usize>()
    }

    pub(super) fn hash(&self, hash: &mut LogicalHash) {
        self.options.hash(hash);
        hash.signed(self.created.0);
        hash.word(u64::from(self.is_dropping) + u64::from(self.is_drop_forced));
        hash.word(self.ranges.len() as u64);
        for range in &self.ranges {
            hash.bytes(&range.start);
            hash.word(u64::from(range.cohort.0));
            hash.word(range.plan);
            hash.word(u64::from(range.leaving.is_some()));
            hash.word(range.members.len() as u64);
            range.all_members().for_each(|member| super::hash_member(*member, hash));
            hash.word(range.parent.map_or(0, |parent| u64::from(parent.0)));
            hash.bytes(range.split.as_ref().map_or(&[], |split| &split.key));
            hash.word(range.split.as_ref().map_or(0, |split| u64::from(split.child.0)));
            if let Some(configuration) = &range.configuration {
                hash.word(configuration.version.0);
                hash.word(configuration.loss.0);
                hash.word(configuration.members.len() as u64);
                let primary = std::iter::once(&configuration.primary);
                configuration.members.iter().chain(primary).for_each(|member| super::hash_member(*member, hash));
            }
        }
    }
}
