//! The catalog's checkpoint. Its parts are, in order: nodes, tables, logs, drops of logs.

use std::ops::Bound::{Excluded, Unbounded};

use base::codec::{DecodeError, OrZero, Reader, Wire, WireAs, Writer};
use base::{CohortId, Configuration, Member, NodeId};
use bytes::Bytes;
use imbl::OrdMap;
use state_machine::checkpoint::{
    Chunked, Cursor, FIRST_PART, Keep, LoadError, Loader, Record, Snapshot, pack, unexpected,
};
use state_machine::{Kind, NoStorage, Progress, StateMachine as _};

use crate::catalog::{Catalog, LogRecord, NodeRecord, RangeRecord, SplitRecord, TableRecord};
use crate::options::{Replication, TableOptions};

const NODES: u8 = FIRST_PART;
const TABLES: u8 = FIRST_PART + 1;
const LOGS: u8 = FIRST_PART + 2;

/// An immutable snapshot of the catalog.
#[derive(Clone, Debug)]
pub struct CatalogSnapshot {
    progress: Progress,
    nodes: OrdMap<NodeId, NodeRecord>,
    tables: OrdMap<String, TableRecord>,
    logs: OrdMap<String, LogRecord>,
    next_cohort: CohortId,
    full: Vec<NodeId>,
}

impl CatalogSnapshot {
    pub(crate) fn of(catalog: &Catalog) -> Self {
        Self {
            progress: catalog.progress,
            nodes: catalog.nodes.clone(),
            tables: catalog.tables.clone(),
            logs: catalog.logs.clone(),
            next_cohort: catalog.next_cohort,
            full: catalog.full.clone(),
        }
    }
}

impl Chunked for CatalogSnapshot {
    fn kind(&self) -> Kind {
        Catalog::KIND
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn header(&self, out: &mut Writer) {
        self.next_cohort.encode(out);
        self.full.encode(out);
    }

    fn part(&self, after: &Cursor) -> Option<(Bytes, Cursor)> {
        let last = |tag| (after.tag == tag).then(|| after.last.clone());
        let name = |tag| last(tag).map_or(Unbounded, |last| Excluded(String::from_utf8_lossy(&last).into_owned()));
        if after.tag <= NODES {
            let node = last(NODES).and_then(|last| Some(NodeId(u32::from_be_bytes(last[..].try_into().ok()?))));
            let rest = self.nodes.range((node.map_or(Unbounded, Excluded), Unbounded)).map(|(_, node)| node);
            if let Some((chunk, node)) = pack(NODES, rest) {
                let last = Bytes::copy_from_slice(&node.member.node.0.to_be_bytes());
                return Some((chunk, Cursor { tag: NODES, last }));
            }
        }
        if after.tag <= TABLES
            && let Some((chunk, Named(name, _))) = pack(TABLES, named(self.tables.range((name(TABLES), Unbounded))))
        {
            return Some((chunk, Cursor { tag: TABLES, last: name.clone().into() }));
        }
        let (chunk, Named(name, _)) = pack(LOGS, named(self.logs.range((name(LOGS), Unbounded))))?;
        Some((chunk, Cursor { tag: LOGS, last: name.clone().into() }))
    }
}

impl Snapshot for CatalogSnapshot {
    type Machine = Catalog;
    type Loader = CatalogLoader;

    fn keep(&self) -> Keep {
        Keep::all()
    }

    fn into_machine(self, _: NoStorage) -> Catalog {
        Catalog::of(self.progress, self.nodes, self.tables, self.logs, (self.next_cohort, self.full))
    }
}

/// Restores a snapshot from its chunks.
#[derive(Clone, Debug)]
pub struct CatalogLoader(Catalog);

impl Loader for CatalogLoader {
    type Snapshot = CatalogSnapshot;

    fn begin(progress: Progress, mut header: Reader) -> Result<Self, LoadError> {
        let mut catalog = Catalog::empty();
        catalog.progress = progress;
        catalog.next_cohort = Wire::decode(&mut header)?;
        catalog.full = Wire::decode(&mut header)?;
        header.end()?;
        Ok(Self(catalog))
    }

    fn part(&mut self, tag: u8, mut input: Reader) -> Result<(), LoadError> {
        let Self(catalog) = self;
        while input.left() > 0 {
            let fresh = match tag {
                NODES => catalog.insert_node(Wire::decode(&mut input)?),
                TABLES => catalog.insert_table(input.text("table name")?, Wire::decode(&mut input)?),
                LOGS => catalog.insert_log(input.text("log name")?, Wire::decode(&mut input)?),
                _ => return Err(unexpected(tag)),
            };
            if !fresh {
                return Err(LoadError::Impossible("duplicate table, log or node, or the drop of an unknown log"));
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<CatalogSnapshot, LoadError> {
        self.0.check().map_err(LoadError::Impossible)?;
        Ok(CatalogSnapshot::of(&self.0))
    }
}

/// A record with its name.
#[derive(Debug)]
struct Named<'a, T>(&'a String, &'a T);

impl<T> Clone for Named<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Named<'_, T> {}

fn named<'a, T: 'a>(records: impl Iterator<Item = (&'a String, &'a T)>) -> impl Iterator<Item = Named<'a, T>> {
    records.map(|(name, record)| Named(name, record))
}

impl Record for &NodeRecord {
    fn size(&self) -> usize {
        21 + self.peer.len() + self.grpc.len()
    }

    fn encode(&self, out: &mut Writer) {
        Wire::encode(*self, out);
    }
}

impl Record for Named<'_, TableRecord> {
    fn size(&self) -> usize {
        let members = |range: &RangeRecord| {
            range.members.len() + range.genesis.len() + range.leaving.as_ref().map_or(0, Vec::len)
        };
        let split = |range: &RangeRecord| range.split.as_ref().map_or(0, |split| 8 + split.key.len());
        let configuration =
            |range: &RangeRecord| range.configuration.as_ref().map_or(0, |found| 24 + 12 * found.members.len());
        let range =
            |range: &RangeRecord| 34 + range.start.len() + 12 * members(range) + split(range) + configuration(range);
        40 + self.0.len() + self.1.ranges.iter().map(range).sum::<usize>()
    }

    fn encode(&self, out: &mut Writer) {
        out.bytes(self.0.as_bytes());
        self.1.encode(out);
    }
}

impl Record for Named<'_, LogRecord> {
    fn size(&self) -> usize {
        40 + self.0.len() + 20 * self.1.units.len() + self.1.projection.encode().len()
    }

    fn encode(&self, out: &mut Writer) {
        out.bytes(self.0.as_bytes());
        self.1.encode(out);
    }
}

base::wire! { struct LogRecord { id, created, stripes, copies, projection, units, is_dropping, is_drop_forced } }
base::wire! {
    struct Placed { start as Copied, cohort, members, genesis, plan, leaving, parent as OrZero, split }
}
/// A range without its configuration, which only primary/backup tables have.
struct Placed {
    start: Bytes,
    cohort: CohortId,
    members: Vec<Member>,
    genesis: Vec<Member>,
    plan: u64,
    leaving: Option<Vec<Member>>,
    parent: Option<CohortId>,
    split: Option<SplitRecord>,
}

impl Placed {
    fn of(range: &RangeRecord) -> Self {
        let RangeRecord { start, cohort, members, genesis, plan, leaving, parent, split, configuration: _ } =
            range.clone();
        Self { start, cohort, members, genesis, plan, leaving, parent, split }
    }

    fn with(self, configuration: Option<Configuration>) -> RangeRecord {
        let Self { start, cohort, members, genesis, plan, leaving, parent, split } = self;
        let configuration = configuration.map(Box::new);
        RangeRecord { start, cohort, members, genesis, plan, leaving, parent, split, configuration }
    }
}

/// In the byte with the state of a drop: the table has primary/backup replication, and a configuration follows for each
/// range. The record of other tables has no further fields.
const PRIMARY_BACKUP: u8 = 4;
/// In the same byte: the table is a virtual disk, and its size follows the ranges.
const DISK: u8 = 8;

base::wire! { struct SplitRecord { key as Copied, child } }

/// All options of a recorded table are set.
impl Wire for TableRecord {
    const BYTES_MIN: usize = 32;

    fn encode(&self, out: &mut Writer) {
        let options = &self.options;
        options.kind.encode(out);
        self.created.encode(out);
        options.replicas.encode(out);
        options.retention.encode(out);
        let is_managed = options.replication() == Replication::PrimaryBackup;
        let replication = if is_managed { PRIMARY_BACKUP } else { 0 };
        let disk = if options.is_disk() { DISK } else { 0 };
        out.u8(u8::from(self.is_dropping) + u8::from(self.is_drop_forced) + replication + disk);
        options.durability().encode(out);
        out.bool(options.takes_part());
        self.ranges.iter().map(Placed::of).collect::<Vec<_>>().encode(out);
        if is_managed {
            let configurations = self.ranges.iter().filter_map(|range| range.configuration.as_deref().cloned());
            configurations.collect::<Vec<_>>().encode(out);
        }
        if options.is_disk() {
            options.disk_bytes.encode(out);
            out.bool(options.is_exclusive);
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let (kind, created) = (Wire::decode(input)?, Wire::decode(input)?);
        let (replicas, retention) = (Wire::decode(input)?, Wire::decode(input)?);
        let tag = input.u8()?;
        let is_managed = tag & PRIMARY_BACKUP != 0;
        let (is_dropping, is_drop_forced) = match tag & !(PRIMARY_BACKUP | DISK) {
            0 => (false, false),
            1 => (true, false),
            2 => (true, true),
            _ => return Err(DecodeError::Invalid { what: "state of a drop" }),
        };
        let (durability, transactions) = (Some(Wire::decode(input)?), Some(input.bool()?));
        let replication = Some(if is_managed { Replication::PrimaryBackup } else { Replication::Paxos });
        let placed: Vec<Placed> = Wire::decode(input)?;
        let configurations: Vec<Configuration> = if is_managed { Wire::decode(input)? } else { Vec::new() };
        if is_managed && configurations.len() != placed.len() {
            return Err(DecodeError::Invalid { what: "number of configurations of a table" });
        }
        let (disk_bytes, is_exclusive) =
            if tag & DISK != 0 { (Wire::decode(input)?, input.bool()?) } else { (0, false) };
        let options =
            TableOptions { kind, replicas, retention, durability, transactions, replication, disk_bytes, is_exclusive };
        let configurations = configurations.into_iter().map(Some).chain(std::iter::repeat(None));
        let ranges = placed.into_iter().zip(configurations).map(|(placed, found)| placed.with(found)).collect();
        Ok(Self { options, ranges, created, is_dropping, is_drop_forced })
    }
}

/// A key that is copied when it is decoded, so that it does not keep its chunk in memory.
struct Copied;

impl WireAs<Bytes> for Copied {
    const BYTES_MIN: usize = 4;

    fn encode(&self, key: &Bytes, out: &mut Writer) {
        key.encode(out);
    }

    fn decode(&self, input: &mut Reader) -> Result<Bytes, DecodeError> {
        Ok(Bytes::copy_from_slice(&input.bytes()?))
    }
}

#[cfg(test)]
mod tests;
