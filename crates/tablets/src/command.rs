//! What the log carries for a state machine: the payload of an entry.
//!
//! A payload is one tag byte and the command's fields; byte strings share the payload's buffer when it is read. An
//! *empty* payload is a leader's barrier (guarantee 1) and no command: states take it as "nothing happens". Tablets and the
//! catalogue have different tags, so an entry that strayed into the other's log is refused, not misread.
//!
//! What a client may ask was checked before it was proposed (`validate`), so these decoders check form only: limits may
//! differ between versions of Loggos, and an entry that is in the log must mean the same to all of them.

use base::codec::{DecodeError, Reader, Writer};
use base::{Boot, CohortId, Durability, Duration, Incarnation, KeyRange, Member, Membership, NodeId, Timestamp};
use bytes::Bytes;
use sharedlog::{LogId, Projection, SequencerId, UnitId};

use crate::catalogue::{NodeRecord, Standing};
use crate::request::{Mismatch, SessionId, SessionStamp, Write};

/// What a tablet is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// From here on the tablet owns that range, and answers for it (guarantee 19). Whoever leads it first takes the
    /// range from the catalogue; a second such entry changes nothing.
    Found {
        /// The range.
        range: KeyRange,
    },
    /// From here on the tablet's keys from that one on are another's, which begins with all that this tablet knows of
    /// them (guarantee 19). A second such entry changes nothing.
    Split {
        /// The first key of the other.
        key: Bytes,
        /// The other's cohort.
        child: CohortId,
        /// The members that it begins with: those of this one, as the catalogue knows them. They don't change
        /// meanwhile.
        members: Membership,
    },
    /// From here on the tablet owns nothing, and its rows may go: its table is dropped (guarantee 19).
    Drop,
    /// What was acknowledged before may be lost, from some entry on that nobody knows (guarantee 11).
    DeclareLoss,
    /// Open a session, named for this entry's sequence.
    OpenSession {
        /// A key that it is to be good for.
        key: Bytes,
    },
    /// Write columns of a row. Whoever proposed it has found its conditions met ([`crate::TabletView::decide`]).
    Write {
        /// Which write of which session it is.
        stamp: Option<SessionStamp>,
        /// The row.
        key: Bytes,
        /// The columns, each with its new value; none deletes it.
        columns: Vec<(Bytes, Option<Bytes>)>,
    },
    /// Delete a row, with all its columns.
    DeleteRow {
        /// Which write of which session it is.
        stamp: Option<SessionStamp>,
        /// The row.
        key: Bytes,
    },
    /// Write nothing, since a condition was not met: the session is to remember it, lest a retry be executed
    /// (guarantee 10).
    Refuse {
        /// Which write of which session it is.
        stamp: Option<SessionStamp>,
        /// The row.
        key: Bytes,
        /// What was not met.
        mismatch: Mismatch,
    },
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
        /// The keys at which a range ends and the next begins.
        split_at: Vec<Bytes>,
        /// Replicas of each range; 0: as many as is usual.
        replicas: u32,
        /// How long old versions are kept; zero: as long as is usual.
        retention: Duration,
        /// What its logs must be on before a write counts; none: as is usual.
        durability: Option<Durability>,
    },
    /// A range of the table is to be split; its cohort is about to be told.
    BeginSplit {
        /// The table's name.
        name: String,
        /// The key at which the new range begins.
        key: Bytes,
    },
    /// The cohort whose range is split has that in its log: from here on the map says so.
    EndSplit {
        /// The table's name.
        name: String,
        /// The new range's cohort.
        child: CohortId,
    },
    /// Nobody who asks for the table shall find it any more; its cohorts are about to be told.
    BeginDrop {
        /// Its name.
        name: String,
    },
    /// All cohorts of a table have the drop in their logs: it is gone.
    EndDrop {
        /// Its name.
        name: String,
        /// Its first range's cohort: the name may be another table's by now.
        table: CohortId,
    },
    /// A range's replicas are to be on these nodes.
    BeginMove {
        /// The range's cohort.
        cohort: CohortId,
        /// The nodes.
        nodes: Vec<NodeId>,
    },
    /// They are there.
    EndMove {
        /// The range's cohort.
        cohort: CohortId,
        /// The number of the plan that was carried out: another may have been made since.
        plan: u64,
    },
    /// Make nodes known, or their addresses.
    RegisterNodes {
        /// The nodes.
        nodes: Vec<NodeRecord>,
    },
    /// A node joins.
    AddNode {
        /// The node.
        node: NodeRecord,
    },
    /// Create a shared log unless it is there.
    CreateLog {
        /// Its name.
        name: String,
        /// Chains that its positions are spread over; 0: one.
        stripes: u32,
        /// Units of each chain; 0: as many as is usual.
        copies: u32,
        /// Who hands out its first positions.
        sequencer: SequencerId,
    },
    /// Put a projection in the place of the one before it.
    Project {
        /// It, which says of which log it is, and of which epoch.
        projection: Box<Projection>,
    },
    /// Name new units of a log, one on each of these nodes.
    AddUnits {
        /// The log.
        log: LogId,
        /// The nodes.
        nodes: Vec<NodeId>,
    },
    /// Forget units of a log, as far as they stand in no projection.
    ForgetSpares {
        /// The log.
        log: LogId,
        /// The units.
        units: Vec<UnitId>,
    },
    /// A node is to leave.
    BeginLeave {
        /// The node.
        node: NodeId,
    },
    /// Plan for the ranges on all nodes that are to leave to be elsewhere.
    MoveOff {
        /// Nodes that nothing was heard of lately: they are chosen last.
        absent: Vec<NodeId>,
    },
    /// It has left, if no range counts on it. The catalogue's own cohort does not: its log holds the removal before
    /// this.
    EndLeave {
        /// The node.
        node: NodeId,
    },
}

const OPEN_SESSION: u8 = 1;
const WRITE: u8 = 2;
const EXPIRE_SESSIONS: u8 = 3;
const WATERMARK: u8 = 4;
const DELETE_ROW: u8 = 5;
const REFUSE: u8 = 6;
const FOUND: u8 = 7;
const DROP: u8 = 8;
const SPLIT: u8 = 9;
const DECLARE_LOSS: u8 = 10;
const CREATE_TABLE: u8 = 65;
const REGISTER_NODES: u8 = 66;
const BEGIN_DROP: u8 = 67;
const END_DROP: u8 = 68;
const BEGIN_SPLIT: u8 = 69;
const END_SPLIT: u8 = 70;
const BEGIN_MOVE: u8 = 71;
const END_MOVE: u8 = 72;
const ADD_NODE: u8 = 73;
const BEGIN_LEAVE: u8 = 74;
const END_LEAVE: u8 = 75;
const MOVE_OFF: u8 = 76;
const CREATE_LOG: u8 = 77;
const PROJECT: u8 = 78;
const ADD_UNITS: u8 = 79;
const FORGET_SPARES: u8 = 80;

impl Command {
    /// A write that has no conditions, or whose conditions are met.
    #[must_use]
    pub fn unconditional(write: Write) -> Self {
        let Write { stamp, key, mutations } = write;
        let columns = mutations.into_iter().map(|mutation| (mutation.column, mutation.value)).collect();
        Self::Write { stamp, key, columns }
    }

    /// The key that it is about, if it is about one.
    pub(crate) fn key(&self) -> Option<&Bytes> {
        match self {
            Self::OpenSession { key }
            | Self::Write { key, .. }
            | Self::DeleteRow { key, .. }
            | Self::Refuse { key, .. } => Some(key),
            _ => None,
        }
    }

    /// The command as an entry's payload.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Found { range } => {
                let mut out = Writer::new();
                out.u8(FOUND);
                range.encode(&mut out);
                out.finish()
            }
            Self::Split { key, child, members } => {
                let mut out = Writer::with_capacity(9 + key.len() + members.bytes());
                out.u8(SPLIT);
                out.bytes(key);
                out.u32(child.0);
                members.encode(&mut out);
                out.finish()
            }
            Self::Drop => Bytes::from_static(&[DROP]),
            Self::DeclareLoss => Bytes::from_static(&[DECLARE_LOSS]),
            Self::OpenSession { key } => {
                let mut out = Writer::with_capacity(5 + key.len());
                out.u8(OPEN_SESSION);
                out.bytes(key);
                out.finish()
            }
            Self::Write { stamp, key, columns } => encode_write(stamp.as_ref(), key, columns),
            Self::DeleteRow { stamp, key } => {
                let mut out = Writer::with_capacity(30 + key.len());
                out.u8(DELETE_ROW);
                encode_stamp(stamp.as_ref(), &mut out);
                out.bytes(key);
                out.finish()
            }
            Self::Refuse { stamp, key, mismatch } => {
                let mut out = Writer::with_capacity(50 + key.len() + mismatch.column.len());
                out.u8(REFUSE);
                encode_stamp(stamp.as_ref(), &mut out);
                out.bytes(key);
                out.bytes(&mismatch.column);
                out.i64(mismatch.expected.0);
                out.i64(mismatch.actual.0);
                out.finish()
            }
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
            FOUND => Self::Found { range: KeyRange::decode(&mut input)? },
            SPLIT => {
                let (key, child) = (input.bytes()?, CohortId(input.u32()?));
                Self::Split { key, child, members: Membership::decode(&mut input)? }
            }
            DROP => Self::Drop,
            DECLARE_LOSS => Self::DeclareLoss,
            OPEN_SESSION => Self::OpenSession { key: input.bytes()? },
            WRITE => decode_write(&mut input)?,
            DELETE_ROW => Self::DeleteRow { stamp: decode_stamp(&mut input)?, key: input.bytes()? },
            REFUSE => Self::Refuse {
                stamp: decode_stamp(&mut input)?,
                key: input.bytes()?,
                mismatch: Mismatch {
                    column: input.bytes()?,
                    expected: Timestamp(input.i64()?),
                    actual: Timestamp(input.i64()?),
                },
            },
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
            Self::CreateTable { name, split_at, replicas, retention, durability } => {
                out.u8(CREATE_TABLE);
                out.bytes(name.as_bytes());
                out.u32(*replicas);
                out.u64(retention.0);
                Durability::encode_wanted(*durability, &mut out);
                out.u32(count(split_at.len()));
                split_at.iter().for_each(|key| out.bytes(key));
            }
            Self::BeginSplit { name, key } => {
                out.u8(BEGIN_SPLIT);
                out.bytes(name.as_bytes());
                out.bytes(key);
            }
            Self::EndSplit { name, child } => {
                out.u8(END_SPLIT);
                out.bytes(name.as_bytes());
                out.u32(child.0);
            }
            Self::BeginDrop { name } => {
                out.u8(BEGIN_DROP);
                out.bytes(name.as_bytes());
            }
            Self::EndDrop { name, table } => {
                out.u8(END_DROP);
                out.bytes(name.as_bytes());
                out.u32(table.0);
            }
            Self::BeginMove { cohort, nodes } => {
                out.u8(BEGIN_MOVE);
                out.u32(cohort.0);
                out.u32(count(nodes.len()));
                nodes.iter().for_each(|node| out.u32(node.0));
            }
            Self::EndMove { cohort, plan } => {
                out.u8(END_MOVE);
                out.u32(cohort.0);
                out.u64(*plan);
            }
            Self::RegisterNodes { nodes } => {
                out.u8(REGISTER_NODES);
                out.u32(count(nodes.len()));
                for node in nodes {
                    encode_node(node, &mut out);
                }
            }
            Self::AddNode { node } => {
                out.u8(ADD_NODE);
                encode_node(node, &mut out);
            }
            Self::BeginLeave { node } => {
                out.u8(BEGIN_LEAVE);
                out.u32(node.0);
            }
            Self::MoveOff { absent } => {
                out.u8(MOVE_OFF);
                out.u32(count(absent.len()));
                absent.iter().for_each(|node| out.u32(node.0));
            }
            Self::EndLeave { node } => {
                out.u8(END_LEAVE);
                out.u32(node.0);
            }
            Self::CreateLog { name, stripes, copies, sequencer } => {
                out.u8(CREATE_LOG);
                out.bytes(name.as_bytes());
                out.u32(*stripes);
                out.u32(*copies);
                out.u32(sequencer.node.0);
                out.u64(sequencer.boot.0);
            }
            Self::Project { projection } => {
                out.u8(PROJECT);
                out.bytes(&projection.encode());
            }
            Self::AddUnits { log, nodes } => {
                out.u8(ADD_UNITS);
                out.u64(log.0);
                out.u32(count(nodes.len()));
                nodes.iter().for_each(|node| out.u32(node.0));
            }
            Self::ForgetSpares { log, units } => {
                out.u8(FORGET_SPARES);
                out.u64(log.0);
                out.u32(count(units.len()));
                units.iter().for_each(|unit| out.u64(unit.0));
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
            CREATE_TABLE => {
                let name = decode_string(&mut input, "table name")?;
                let (replicas, retention) = (input.u32()?, Duration(input.u64()?));
                let durability = Durability::decode_wanted(&mut input)?;
                let split_at = (0..input.count(4)?).map(|_| input.bytes()).collect::<Result<_, _>>()?;
                Self::CreateTable { name, split_at, replicas, retention, durability }
            }
            BEGIN_SPLIT => {
                let name = decode_string(&mut input, "table name")?;
                Self::BeginSplit { name, key: input.bytes()? }
            }
            END_SPLIT => {
                let name = decode_string(&mut input, "table name")?;
                Self::EndSplit { name, child: CohortId(input.u32()?) }
            }
            BEGIN_DROP => Self::BeginDrop { name: decode_string(&mut input, "table name")? },
            END_DROP => {
                let name = decode_string(&mut input, "table name")?;
                Self::EndDrop { name, table: CohortId(input.u32()?) }
            }
            BEGIN_MOVE => {
                let cohort = CohortId(input.u32()?);
                Self::BeginMove { cohort, nodes: decode_numbers(&mut input)? }
            }
            END_MOVE => Self::EndMove { cohort: CohortId(input.u32()?), plan: input.u64()? },
            REGISTER_NODES => {
                let nodes = (0..input.count(NODE_BYTES_MIN)?)
                    .map(|_| decode_node(&mut input))
                    .collect::<Result<_, DecodeError>>()?;
                Self::RegisterNodes { nodes }
            }
            ADD_NODE => Self::AddNode { node: decode_node(&mut input)? },
            BEGIN_LEAVE => Self::BeginLeave { node: NodeId(input.u32()?) },
            MOVE_OFF => Self::MoveOff { absent: decode_numbers(&mut input)? },
            END_LEAVE => Self::EndLeave { node: NodeId(input.u32()?) },
            CREATE_LOG => {
                let name = decode_string(&mut input, "log name")?;
                let (stripes, copies) = (input.u32()?, input.u32()?);
                let sequencer = SequencerId { node: NodeId(input.u32()?), boot: Boot(input.u64()?) };
                Self::CreateLog { name, stripes, copies, sequencer }
            }
            PROJECT => Self::Project { projection: Box::new(Projection::decode(input.bytes()?)?) },
            ADD_UNITS => Self::AddUnits { log: LogId(input.u64()?), nodes: decode_numbers(&mut input)? },
            FORGET_SPARES => {
                let log = LogId(input.u64()?);
                let units =
                    (0..input.count(8)?).map(|_| Ok(UnitId(input.u64()?))).collect::<Result<_, DecodeError>>()?;
                Self::ForgetSpares { log, units }
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

fn decode_numbers(input: &mut Reader) -> Result<Vec<NodeId>, DecodeError> {
    (0..input.count(4)?).map(|_| Ok(NodeId(input.u32()?))).collect()
}

fn encode_write(stamp: Option<&SessionStamp>, key: &Bytes, columns: &[(Bytes, Option<Bytes>)]) -> Bytes {
    let fields = |(column, value): &(Bytes, Option<Bytes>)| 9 + column.len() + value.as_ref().map_or(0, Bytes::len);
    let mut out = Writer::with_capacity(34 + key.len() + columns.iter().map(fields).sum::<usize>());
    out.u8(WRITE);
    encode_stamp(stamp, &mut out);
    out.bytes(key);
    out.u32(count(columns.len()));
    for (column, value) in columns {
        out.bytes(column);
        out.bool(value.is_some());
        if let Some(value) = value {
            out.bytes(value);
        }
    }
    out.finish()
}

fn decode_write(input: &mut Reader) -> Result<Command, DecodeError> {
    let stamp = decode_stamp(input)?;
    let key = input.bytes()?;
    let column = |input: &mut Reader| {
        let column = input.bytes()?;
        let value = if input.bool()? { Some(input.bytes()?) } else { None };
        Ok((column, value))
    };
    let columns = (0..input.count(5)?).map(|_| column(input)).collect::<Result<_, DecodeError>>()?;
    Ok(Command::Write { stamp, key, columns })
}

/// Writes the stamp of a write that may have one.
pub fn encode_stamp(stamp: Option<&SessionStamp>, out: &mut Writer) {
    out.bool(stamp.is_some());
    if let Some(stamp) = stamp {
        out.u64(stamp.session.0);
        out.u64(stamp.sequence);
        out.u64(stamp.first_incomplete);
    }
}

/// Reads what [`encode_stamp`] wrote.
///
/// # Errors
/// When it is none.
pub fn decode_stamp(input: &mut Reader) -> Result<Option<SessionStamp>, DecodeError> {
    if !input.bool()? {
        return Ok(None);
    }
    let (session, sequence, first_incomplete) = (SessionId(input.u64()?), input.u64()?, input.u64()?);
    Ok(Some(SessionStamp { session, sequence, first_incomplete }))
}

/// Bytes of an encoded node, at least.
pub const NODE_BYTES_MIN: usize = 21;

/// Writes what is known of a node.
pub fn encode_node(node: &NodeRecord, out: &mut Writer) {
    encode_member(node.member, out);
    out.bytes(node.peer.as_bytes());
    out.bytes(node.grpc.as_bytes());
    out.u8(node.standing.tag());
}

/// Reads what [`encode_node`] wrote.
///
/// # Errors
/// When it is none.
pub fn decode_node(input: &mut Reader) -> Result<NodeRecord, DecodeError> {
    Ok(NodeRecord {
        member: decode_member(input)?,
        peer: decode_string(input, "peer address")?,
        grpc: decode_string(input, "gRPC address")?,
        standing: Standing::from_tag(input.u8()?).ok_or(DecodeError::Invalid { what: "standing of a node" })?,
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
