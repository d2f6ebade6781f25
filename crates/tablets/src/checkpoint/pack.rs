//! Records into chunks.

use base::Member;
use base::codec::Writer;
use bytes::Bytes;

use super::{CHUNK_BYTES, format};
use crate::catalogue::{LogRecord, NodeRecord, RangeRecord, TableRecord};
use crate::command::{encode_member, encode_node};
use crate::request::SessionId;
use crate::tablet::sessions::{Remembered, Session};

/// What a chunk is made of.
pub(crate) trait Record: Copy {
    /// Bytes it takes, at most.
    fn size(&self) -> usize;

    /// Writes it.
    fn encode(&self, out: &mut Writer);
}

/// Packs records of one kind into a chunk: a tag, and records until it is full. Gives the last of them too; none if
/// there are no records.
pub(super) fn pack<R: Record>(tag: u8, records: impl Iterator<Item = R>) -> Option<(Bytes, R)> {
    let mut records = records.peekable();
    let mut last = records.next()?;
    let mut out = Writer::with_capacity(1 + last.size());
    out.u8(tag);
    last.encode(&mut out);
    while let Some(record) = records.next_if(|record| out.len() + record.size() <= CHUNK_BYTES) {
        record.encode(&mut out);
        last = record;
    }
    Some((out.finish(), last))
}

impl Record for (SessionId, &Session, bool) {
    fn size(&self) -> usize {
        let outcome = |outcome: &Remembered| match outcome {
            Remembered::Written(_) => 17,
            Remembered::Mismatch(mismatch) => 29 + mismatch.column.len(),
        };
        28 + self.1.outcomes.iter().map(|(_, remembered)| outcome(remembered)).sum::<usize>()
    }

    fn encode(&self, out: &mut Writer) {
        let (id, session, with_outcomes) = *self;
        out.u64(id.0);
        out.i64(session.last_used.0);
        out.u64(session.floor);
        let outcomes = session.outcomes.iter().filter(|_| with_outcomes);
        out.u32(u32::try_from(outcomes.clone().count()).expect("a session's window is below 2^32"));
        for (number, outcome) in outcomes {
            out.u64(*number);
            encode_outcome(outcome, out);
        }
    }
}

fn encode_outcome(outcome: &Remembered, out: &mut Writer) {
    match outcome {
        Remembered::Written(version) => {
            out.u8(format::WRITTEN);
            out.i64(version.0);
        }
        Remembered::Mismatch(mismatch) => {
            out.u8(format::MISMATCH);
            out.bytes(&mismatch.column);
            out.i64(mismatch.expected.0);
            out.i64(mismatch.actual.0);
        }
    }
}

impl Record for &NodeRecord {
    fn size(&self) -> usize {
        21 + self.peer.len() + self.grpc.len()
    }

    fn encode(&self, out: &mut Writer) {
        encode_node(self, out);
    }
}

impl Record for (&String, &TableRecord) {
    fn size(&self) -> usize {
        let members = |range: &RangeRecord| {
            range.members.len() + range.genesis.len() + range.leaving.as_ref().map_or(0, Vec::len)
        };
        let split = |range: &RangeRecord| range.split.as_ref().map_or(0, |split| 8 + split.key.len());
        let range = |range: &RangeRecord| 34 + range.start.len() + 12 * members(range) + split(range);
        30 + self.0.len() + self.1.ranges.iter().map(range).sum::<usize>()
    }

    fn encode(&self, out: &mut Writer) {
        let (name, table) = self;
        out.bytes(name.as_bytes());
        out.i64(table.created.0);
        out.u32(table.replicas);
        out.u64(table.retention.0);
        out.bool(table.is_dropping);
        table.durability.encode(out);
        out.u32(count(table.ranges.len()));
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

impl Record for (&String, &LogRecord) {
    fn size(&self) -> usize {
        40 + self.0.len() + 20 * self.1.units.len() + self.1.projection.encode().len()
    }

    fn encode(&self, out: &mut Writer) {
        let (name, log) = self;
        out.bytes(name.as_bytes());
        out.u64(log.id.0);
        out.i64(log.created.0);
        out.u32(log.stripes);
        out.u32(log.copies);
        out.bytes(&log.projection.encode());
        out.u32(count(log.units.len()));
        for (unit, member) in &log.units {
            out.u64(unit.0);
            encode_member(*member, out);
        }
    }
}

fn encode_members(members: &[Member], out: &mut Writer) {
    out.u32(count(members.len()));
    members.iter().for_each(|member| encode_member(*member, out));
}

fn count(items: usize) -> u32 {
    u32::try_from(items).expect("ranges and members are below 2^32")
}
