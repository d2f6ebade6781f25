//! The catalog's checkpoint. Its parts are, in order: nodes, tables, logs, drops of logs.

use std::ops::Bound::{Excluded, Unbounded};

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Durability, Duration, Member, NodeId, Timestamp};
use bytes::Bytes;
use imbl::OrdMap;
use sharedlog::{LogId, Projection, UnitId};
use state_machine::checkpoint::{
    Chunked, Cursor, FIRST_PART, Keep, LoadError, Loader, Record, Snapshot, pack, unexpected,
};
use state_machine::{Kind, NoStorage, Progress, StateMachine as _};

use crate::catalog::{Catalog, LogRecord, NodeRecord, RangeRecord, SplitRecord, TableRecord};
use crate::command::{decode_node, encode_node};
use crate::options::TableOptions;

const NODES: u8 = FIRST_PART;
const TABLES: u8 = FIRST_PART + 1;
const LOGS: u8 = FIRST_PART + 2;
/// The logs that are being dropped.
const LOG_DROPS: u8 = FIRST_PART + 3;

/// An immutable snapshot of the catalog.
#[derive(Clone, Debug)]
pub struct CatalogSnapshot {
    progress: Progress,
    nodes: OrdMap<NodeId, NodeRecord>,
    tables: OrdMap<String, TableRecord>,
    logs: OrdMap<String, LogRecord>,
    next_cohort: CohortId,
}

impl CatalogSnapshot {
    pub(crate) fn of(catalog: &Catalog) -> Self {
        Self {
            progress: catalog.progress,
            nodes: catalog.nodes.clone(),
            tables: catalog.tables.clone(),
            logs: catalog.logs.clone(),
            next_cohort: catalog.next_cohort,
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
        out.u32(self.next_cohort.0);
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
        if after.tag <= LOGS
            && let Some((chunk, Named(name, _))) = pack(LOGS, named(self.logs.range((name(LOGS), Unbounded))))
        {
            return Some((chunk, Cursor { tag: LOGS, last: name.clone().into() }));
        }
        let drops = self.logs.range((name(LOG_DROPS), Unbounded)).filter(|(_, log)| log.is_dropping);
        let drops = drops.map(|(name, log)| LogDrop { name, is_forced: log.is_drop_forced });
        let (chunk, LogDrop { name, .. }) = pack(LOG_DROPS, drops)?;
        Some((chunk, Cursor { tag: LOG_DROPS, last: name.clone().into() }))
    }
}

impl Snapshot for CatalogSnapshot {
    type Machine = Catalog;
    type Loader = CatalogLoader;

    fn keep(&self) -> Keep {
        Keep::all()
    }

    fn into_machine(self, _: NoStorage) -> Catalog {
        Catalog::of(self.progress, self.nodes, self.tables, self.logs, self.next_cohort)
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
        catalog.next_cohort = CohortId(header.u32()?);
        header.end()?;
        Ok(Self(catalog))
    }

    fn part(&mut self, tag: u8, mut input: Reader) -> Result<(), LoadError> {
        let Self(catalog) = self;
        while input.left() > 0 {
            let fresh = match tag {
                NODES => catalog.insert_node(decode_node(&mut input)?),
                TABLES => {
                    let (name, table) = decode_table(&mut input)?;
                    catalog.insert_table(name, table)
                }
                LOGS => {
                    let (name, log) = decode_log(&mut input)?;
                    catalog.insert_log(name, log)
                }
                LOG_DROPS => {
                    let (name, is_forced) = (input.text("log name")?, input.bool()?);
                    catalog.resume_log_drop(&name, is_forced)
                }
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
        encode_node(self, out);
    }
}

impl Record for Named<'_, TableRecord> {
    fn size(&self) -> usize {
        let members = |range: &RangeRecord| {
            range.members.len() + range.genesis.len() + range.leaving.as_ref().map_or(0, Vec::len)
        };
        let split = |range: &RangeRecord| range.split.as_ref().map_or(0, |split| 8 + split.key.len());
        let range = |range: &RangeRecord| 34 + range.start.len() + 12 * members(range) + split(range);
        31 + self.0.len() + self.1.ranges.iter().map(range).sum::<usize>()
    }

    fn encode(&self, out: &mut Writer) {
        let Self(name, table) = self;
        let options = &table.options;
        out.bytes(name.as_bytes());
        out.u8(options.kind.0);
        out.i64(table.created.0);
        out.u32(options.replicas);
        out.u64(options.retention.0);
        out.u8(u8::from(table.is_dropping) + u8::from(table.is_drop_forced));
        options.durability().encode(out);
        out.count(table.ranges.len());
        for range in &table.ranges {
            out.bytes(&range.start);
            out.u32(range.cohort.0);
            encode_members(&range.members, out);
            encode_members(&range.genesis, out);
            out.u64(range.plan);
            out.bool(range.leaving.is_some());
            if let Some(leaving) = &range.leaving {
                encode_members(leaving, out);
            }
            out.u32(range.parent.map_or(0, |parent| parent.0));
            out.bool(range.split.is_some());
            if let Some(split) = &range.split {
                out.bytes(&split.key);
                out.u32(split.child.0);
            }
        }
    }
}

impl Record for Named<'_, LogRecord> {
    fn size(&self) -> usize {
        40 + self.0.len() + 20 * self.1.units.len() + self.1.projection.encode().len()
    }

    fn encode(&self, out: &mut Writer) {
        let Self(name, log) = self;
        out.bytes(name.as_bytes());
        out.u64(log.id.0);
        out.i64(log.created.0);
        out.u32(log.stripes);
        out.u32(log.copies);
        out.bytes(&log.projection.encode());
        out.count(log.units.len());
        for (unit, member) in &log.units {
            out.u64(unit.0);
            member.encode(out);
        }
    }
}

/// A log that is being dropped.
#[derive(Clone, Copy, Debug)]
struct LogDrop<'a> {
    name: &'a String,
    is_forced: bool,
}

impl Record for LogDrop<'_> {
    fn size(&self) -> usize {
        5 + self.name.len()
    }

    fn encode(&self, out: &mut Writer) {
        out.bytes(self.name.as_bytes());
        out.bool(self.is_forced);
    }
}

fn encode_members(members: &[Member], out: &mut Writer) {
    out.count(members.len());
    members.iter().for_each(|member| member.encode(out));
}

fn decode_table(input: &mut Reader) -> Result<(String, TableRecord), LoadError> {
    let name = input.text("table name")?;
    let (kind, created) = (Kind(input.u8()?), Timestamp(input.i64()?));
    let (replicas, retention) = (input.u32()?, Duration(input.u64()?));
    let (is_dropping, is_drop_forced) = match input.u8()? {
        0 => (false, false),
        1 => (true, false),
        2 => (true, true),
        _ => return Err(DecodeError::Invalid { what: "state of a drop" }.into()),
    };
    let options = TableOptions { kind, replicas, retention, durability: Some(Durability::decode(input)?) };
    let ranges = (0..input.count(17)?).map(|_| decode_range(input)).collect::<Result<_, DecodeError>>()?;
    Ok((name, TableRecord { options, ranges, created, is_dropping, is_drop_forced }))
}

fn decode_log(input: &mut Reader) -> Result<(String, LogRecord), LoadError> {
    let name = input.text("log name")?;
    let (id, created) = (LogId(input.u64()?), Timestamp(input.i64()?));
    let (stripes, copies) = (input.u32()?, input.u32()?);
    let projection = Projection::decode(input.bytes()?)?;
    let unit = |input: &mut Reader| Ok((UnitId(input.u64()?), Member::decode(input)?));
    let units = (0..input.count(20)?).map(|_| unit(input)).collect::<Result<_, DecodeError>>()?;
    let (is_dropping, is_drop_forced) = (false, false);
    Ok((name, LogRecord { id, created, stripes, copies, projection, units, is_dropping, is_drop_forced }))
}

fn decode_range(input: &mut Reader) -> Result<RangeRecord, DecodeError> {
    let start = Bytes::copy_from_slice(&input.bytes()?);
    let cohort = CohortId(input.u32()?);
    let (members, genesis) = (decode_members(input)?, decode_members(input)?);
    let plan = input.u64()?;
    let leaving = if input.bool()? { Some(decode_members(input)?) } else { None };
    let parent = Some(CohortId(input.u32()?)).filter(|parent| parent.0 != 0);
    let split = match input.bool()? {
        true => Some(SplitRecord { key: Bytes::copy_from_slice(&input.bytes()?), child: CohortId(input.u32()?) }),
        false => None,
    };
    Ok(RangeRecord { start, cohort, members, genesis, plan, leaving, parent, split })
}

fn decode_members(input: &mut Reader) -> Result<Vec<Member>, DecodeError> {
    (0..input.count(12)?).map(|_| Member::decode(input)).collect()
}

#[cfg(test)]
mod tests;
