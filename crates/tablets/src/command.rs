//! What the log carries for a state machine: the payload of an entry.
//!
//! A payload is one tag byte and the command's fields; byte strings share the payload's buffer when it is read. An
//! *empty* payload is a leader's barrier (guarantee 1) and no command: states take it as "nothing happens". Tablets and the
//! catalogue have different tags, so an entry that strayed into the other's log is refused, not misread.
//!
//! What a client may ask was checked before it was proposed (`validate`), so these decoders check form only: limits may
//! differ between versions of Loggos, and an entry that is in the log must mean the same to all of them.

use base::codec::{DecodeError, Reader, Writer};
use base::{Incarnation, Member, NodeId, Timestamp};
use bytes::Bytes;

use crate::catalogue::NodeRecord;
use crate::request::{Mutation, SessionId, SessionStamp, Write};

/// What a tablet is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Open a session, named for this entry's sequence.
    OpenSession,
    /// Write a row, if its conditions are met.
    Write(Write),
    /// Forget sessions, each unless it was used after the given moment (guarantee 10).
    ExpireSessions {
        /// The sessions, each with its last use as the proposer saw it.
        sessions: Vec<(SessionId, Timestamp)>,
    },
    /// Nobody will read at an earlier moment any more: versions that only such reads could see may go (guarantee 16).
    Watermark(Timestamp),
}

/// What the catalogue is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CatalogueCommand {
    /// Create a table unless it is there.
    CreateTable {
        /// Its name.
        name: String,
    },
    /// Make nodes known, or their addresses.
    RegisterNodes {
        /// The nodes.
        nodes: Vec<NodeRecord>,
    },
}

const OPEN_SESSION: u8 = 1;
const WRITE: u8 = 2;
const EXPIRE_SESSIONS: u8 = 3;
const WATERMARK: u8 = 4;
const CREATE_TABLE: u8 = 65;
const REGISTER_NODES: u8 = 66;

const HAS_VALUE: u8 = 1;
const HAS_CONDITION: u8 = 2;

impl Command {
    /// The command as an entry's payload.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        match self {
            Self::OpenSession => Bytes::from_static(&[OPEN_SESSION]),
            Self::Write(write) => encode_write(write),
            Self::ExpireSessions { sessions } => {
                let mut out = Writer::with_capacity(5 + 16 * sessions.len());
                out.u8(EXPIRE_SESSIONS);
                out.u32(count(sessions.len()));
                for (session, last_used) in sessions {
                    out.u64(session.0);
                    out.i64(last_used.0);
                }
                out.finish()
            }
            Self::Watermark(watermark) => {
                let mut out = Writer::with_capacity(9);
                out.u8(WATERMARK);
                out.i64(watermark.0);
                out.finish()
            }
        }
    }

    /// Reads an entry's payload that is not empty. Byte strings are slices of it.
    ///
    /// # Errors
    /// When it is not a tablet's command. If it came through the log, that is fatal: the node must halt.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut input = Reader::new(payload);
        let command = match input.u8()? {
            OPEN_SESSION => Self::OpenSession,
            WRITE => Self::Write(decode_write(&mut input)?),
            EXPIRE_SESSIONS => {
                let sessions = (0..input.count(16)?)
                    .map(|_| Ok((SessionId(input.u64()?), Timestamp(input.i64()?))))
                    .collect::<Result<_, DecodeError>>()?;
                Self::ExpireSessions { sessions }
            }
            WATERMARK => Self::Watermark(Timestamp(input.i64()?)),
            tag => return Err(DecodeError::UnknownTag { what: "tablet command", tag: u64::from(tag) }),
        };
        input.end()?;
        Ok(command)
    }
}

impl CatalogueCommand {
    /// The command as an entry's payload.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::new();
        match self {
            Self::CreateTable { name } => {
                out.u8(CREATE_TABLE);
                out.bytes(name.as_bytes());
            }
            Self::RegisterNodes { nodes } => {
                out.u8(REGISTER_NODES);
                out.u32(count(nodes.len()));
                for node in nodes {
                    encode_node(node, &mut out);
                }
            }
        }
        out.finish()
    }

    /// Reads an entry's payload that is not empty.
    ///
    /// # Errors
    /// When it is not a command of the catalogue's. If it came through the log, that is fatal: the node must halt.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut input = Reader::new(payload);
        let command = match input.u8()? {
            CREATE_TABLE => Self::CreateTable { name: decode_string(&mut input, "table name")? },
            REGISTER_NODES => {
                let nodes = (0..input.count(NODE_BYTES_MIN)?)
                    .map(|_| decode_node(&mut input))
                    .collect::<Result<_, DecodeError>>()?;
                Self::RegisterNodes { nodes }
            }
            tag => return Err(DecodeError::UnknownTag { what: "catalogue command", tag: u64::from(tag) }),
        };
        input.end()?;
        Ok(command)
    }
}

fn count(items: usize) -> u32 {
    u32::try_from(items).expect("limits keep counts below 2^32")
}

fn encode_write(write: &Write) -> Bytes {
    let fields = |mutation: &Mutation| 17 + mutation.column.len() + mutation.value.as_ref().map_or(0, Bytes::len);
    let mut out = Writer::with_capacity(34 + write.key.len() + write.mutations.iter().map(fields).sum::<usize>());
    out.u8(WRITE);
    out.bool(write.stamp.is_some());
    if let Some(stamp) = &write.stamp {
        out.u64(stamp.session.0);
        out.u64(stamp.sequence);
        out.u64(stamp.first_incomplete);
    }
    out.bytes(&write.key);
    out.u32(count(write.mutations.len()));
    for mutation in &write.mutations {
        encode_mutation(mutation, &mut out);
    }
    out.finish()
}

fn encode_mutation(mutation: &Mutation, out: &mut Writer) {
    let value = if mutation.value.is_some() { HAS_VALUE } else { 0 };
    let condition = if mutation.condition.is_some() { HAS_CONDITION } else { 0 };
    out.u8(value | condition);
    out.bytes(&mutation.column);
    if let Some(value) = &mutation.value {
        out.bytes(value);
    }
    if let Some(version) = mutation.condition {
        out.i64(version.0);
    }
}

fn decode_write(input: &mut Reader) -> Result<Write, DecodeError> {
    let stamp = if input.bool()? {
        Some(SessionStamp { session: SessionId(input.u64()?), sequence: input.u64()?, first_incomplete: input.u64()? })
    } else {
        None
    };
    let key = input.bytes()?;
    let mutations =
        (0..input.count(5)?).map(|_| decode_mutation(input)).collect::<Result<Vec<Mutation>, DecodeError>>()?;
    Ok(Write { stamp, key, mutations })
}

fn decode_mutation(input: &mut Reader) -> Result<Mutation, DecodeError> {
    let flags = input.u8()?;
    if flags & !(HAS_VALUE | HAS_CONDITION) != 0 {
        return Err(DecodeError::Invalid { what: "mutation flags" });
    }
    let column = input.bytes()?;
    let value = if flags & HAS_VALUE == 0 { None } else { Some(input.bytes()?) };
    let condition = if flags & HAS_CONDITION == 0 { None } else { Some(Timestamp(input.i64()?)) };
    Ok(Mutation { column, value, condition })
}

/// Bytes of an encoded node, at least.
pub(crate) const NODE_BYTES_MIN: usize = 20;

pub(crate) fn encode_node(node: &NodeRecord, out: &mut Writer) {
    encode_member(node.member, out);
    out.bytes(node.peer.as_bytes());
    out.bytes(node.grpc.as_bytes());
}

pub(crate) fn decode_node(input: &mut Reader) -> Result<NodeRecord, DecodeError> {
    Ok(NodeRecord {
        member: decode_member(input)?,
        peer: decode_string(input, "peer address")?,
        grpc: decode_string(input, "gRPC address")?,
    })
}

pub(crate) fn encode_member(member: Member, out: &mut Writer) {
    out.u32(member.node.0);
    out.u64(member.incarnation.0);
}

pub(crate) fn decode_member(input: &mut Reader) -> Result<Member, DecodeError> {
    Ok(Member { node: NodeId(input.u32()?), incarnation: Incarnation(input.u64()?) })
}

pub(crate) fn decode_string(input: &mut Reader, what: &'static str) -> Result<String, DecodeError> {
    String::from_utf8(input.bytes()?.into()).map_err(|_| DecodeError::Invalid { what })
}

#[cfg(test)]
mod tests;
