//! The commands in the catalog's log: the payloads of its entries.
//!
//! A payload is one tag byte and the command's fields. An *empty* payload is a leader's barrier (guarantee 1) and not a
//! command. Client requests are validated before they are proposed ([`mod@crate::validate`]). These decoders check the
//! format only: limits may differ between versions of Loggos, and every replica must interpret a committed entry
//! identically.

use base::codec::{DecodeError, Reader, Writer};
use base::{Boot, CohortId, Durability, Duration, Member, NodeId};
use bytes::Bytes;
use sharedlog::{LogId, Projection, SequencerId, UnitId};
use state_machine::Kind;

use crate::catalog::{NodeRecord, Standing};
use crate::options::TableOptions;

/// A command of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CatalogCommand {
    /// Create a table unless it exists.
    CreateTable {
        /// The table's name.
        name: String,
        /// The keys at which one range ends and the next begins.
        split_at: Vec<Bytes>,
        /// Its options.
        options: TableOptions,
    },
    /// Begin to split a range of a table. The range's cohort commits the split next.
    BeginSplit {
        /// The table's name.
        name: String,
        /// The key at which the new range begins.
        key: Bytes,
    },
    /// End a split: the range's cohort has committed it, and the map shows both ranges.
    EndSplit {
        /// The table's name.
        name: String,
        /// The new range's cohort.
        child: CohortId,
    },
    /// Begin to drop a table: clients no longer find it. Its cohorts commit the drop next.
    BeginDrop {
        /// The table's name.
        name: String,
        /// End the drop without the cohorts that cannot be reached.
        force: bool,
    },
    /// End a drop: all cohorts of the table have committed it, and the record is removed.
    EndDrop {
        /// The table's name.
        name: String,
        /// The table's id, which is the cohort of its first range: the name may have been reused.
        table: CohortId,
    },
    /// Plan to move a range's replicas to these nodes.
    BeginMove {
        /// The range's cohort.
        cohort: CohortId,
        /// The new members.
        nodes: Vec<NodeId>,
        /// Allow fewer replicas than the table should have.
        force: bool,
    },
    /// End a move: the cohort has carried out the plan.
    EndMove {
        /// The range's cohort.
        cohort: CohortId,
        /// The number of the completed plan; ignored if a newer plan exists.
        plan: u64,
    },
    /// Register the cluster's first nodes, or update their addresses.
    RegisterNodes { nodes: Vec<NodeRecord> },
    /// Add a node to the cluster.
    AddNode { node: NodeRecord },
    /// Create a shared log unless it exists.
    CreateLog {
        /// The log's name.
        name: String,
        /// The number of chains over which its positions are striped; 0: one.
        stripes: u32,
        /// Units of each chain; 0: the default.
        copies: u32,
        /// The sequencer of its first projection.
        sequencer: SequencerId,
    },
    /// Replace the current projection of a log.
    Project {
        /// The new projection. It contains the log's id and its epoch.
        projection: Box<Projection>,
    },
    /// Assign new spare units to a log, one on each of these nodes.
    AddUnits { log: LogId, nodes: Vec<NodeId> },
    /// Forget units of a log that are in no projection.
    ForgetSpares { log: LogId, units: Vec<UnitId> },
    /// Begin to drop a log: clients no longer find it. Its units are sealed next.
    BeginLogDrop {
        /// The log's name.
        name: String,
        /// End the drop without the units that cannot be reached.
        force: bool,
    },
    /// End the drop of a log: its units are sealed, and the record is removed.
    EndLogDrop {
        /// The log's name.
        name: String,
        /// The log's id: the name may have been reused.
        log: LogId,
    },
    /// Mark a node as leaving.
    BeginLeave { node: NodeId },
    /// Plan to move all ranges away from the nodes that are leaving.
    MoveOff {
        /// Nodes that the failure detector suspects: they are chosen last as targets.
        absent: Vec<NodeId>,
    },
    /// Mark a leaving node as having left, if no range counts on it. The catalog's own cohort does not count on it
    /// either: its removal from that cohort precedes this command in the same log.
    EndLeave { node: NodeId },
}

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
/// `BeginMove` without `force`. `BEGIN_MOVE` is older and has always been carried out unchecked.
const BEGIN_CHECKED_MOVE: u8 = 81;
const BEGIN_FORCED_DROP: u8 = 82;
const BEGIN_LOG_DROP: u8 = 83;
const BEGIN_FORCED_LOG_DROP: u8 = 84;
const END_LOG_DROP: u8 = 85;

impl CatalogCommand {
    /// Encodes the command as an entry's payload.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::new();
        match self {
            Self::CreateTable { name, split_at, options } => {
                out.u8(CREATE_TABLE);
                out.bytes(name.as_bytes());
                let TableOptions { kind, replicas, retention, durability } = options;
                out.u8(kind.0);
                out.u32(*replicas);
                out.u64(retention.0);
                Durability::encode_wanted(*durability, &mut out);
                out.count(split_at.len());
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
            Self::BeginDrop { name, force } => {
                out.u8(if *force { BEGIN_FORCED_DROP } else { BEGIN_DROP });
                out.bytes(name.as_bytes());
            }
            Self::EndDrop { name, table } => {
                out.u8(END_DROP);
                out.bytes(name.as_bytes());
                out.u32(table.0);
            }
            Self::BeginMove { cohort, nodes, force } => {
                out.u8(if *force { BEGIN_MOVE } else { BEGIN_CHECKED_MOVE });
                out.u32(cohort.0);
                out.count(nodes.len());
                nodes.iter().for_each(|node| out.u32(node.0));
            }
            Self::EndMove { cohort, plan } => {
                out.u8(END_MOVE);
                out.u32(cohort.0);
                out.u64(*plan);
            }
            Self::RegisterNodes { nodes } => {
                out.u8(REGISTER_NODES);
                out.count(nodes.len());
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
                out.count(absent.len());
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
            Self::BeginLogDrop { name, force } => {
                out.u8(if *force { BEGIN_FORCED_LOG_DROP } else { BEGIN_LOG_DROP });
                out.bytes(name.as_bytes());
            }
            Self::EndLogDrop { name, log } => {
                out.u8(END_LOG_DROP);
                out.bytes(name.as_bytes());
                out.u64(log.0);
            }
            Self::Project { projection } => {
                out.u8(PROJECT);
                out.bytes(&projection.encode());
            }
            Self::AddUnits { log, nodes } => {
                out.u8(ADD_UNITS);
                out.u64(log.0);
                out.count(nodes.len());
                nodes.iter().for_each(|node| out.u32(node.0));
            }
            Self::ForgetSpares { log, units } => {
                out.u8(FORGET_SPARES);
                out.u64(log.0);
                out.count(units.len());
                units.iter().for_each(|unit| out.u64(unit.0));
            }
        }
        out.finish()
    }

    /// Decodes an entry's payload that is not empty.
    ///
    /// # Errors
    /// The payload is not a catalog command. For a committed entry this is fatal: the node must halt.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut input = Reader::new(payload);
        let command = match input.u8()? {
            CREATE_TABLE => {
                let name = input.text("table name")?;
                let (kind, replicas, retention) = (Kind(input.u8()?), input.u32()?, Duration(input.u64()?));
                let durability = Durability::decode_wanted(&mut input)?;
                let split_at = (0..input.count(4)?).map(|_| input.bytes()).collect::<Result<_, _>>()?;
                Self::CreateTable { name, split_at, options: TableOptions { kind, replicas, retention, durability } }
            }
            BEGIN_SPLIT => {
                let name = input.text("table name")?;
                Self::BeginSplit { name, key: input.bytes()? }
            }
            END_SPLIT => {
                let name = input.text("table name")?;
                Self::EndSplit { name, child: CohortId(input.u32()?) }
            }
            tag @ (BEGIN_DROP | BEGIN_FORCED_DROP) => {
                Self::BeginDrop { name: input.text("table name")?, force: tag == BEGIN_FORCED_DROP }
            }
            END_DROP => {
                let name = input.text("table name")?;
                Self::EndDrop { name, table: CohortId(input.u32()?) }
            }
            tag @ (BEGIN_MOVE | BEGIN_CHECKED_MOVE) => {
                let cohort = CohortId(input.u32()?);
                Self::BeginMove { cohort, nodes: decode_numbers(&mut input)?, force: tag == BEGIN_MOVE }
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
                let name = input.text("log name")?;
                let (stripes, copies) = (input.u32()?, input.u32()?);
                let sequencer = SequencerId { node: NodeId(input.u32()?), boot: Boot(input.u64()?) };
                Self::CreateLog { name, stripes, copies, sequencer }
            }
            tag @ (BEGIN_LOG_DROP | BEGIN_FORCED_LOG_DROP) => {
                Self::BeginLogDrop { name: input.text("log name")?, force: tag == BEGIN_FORCED_LOG_DROP }
            }
            END_LOG_DROP => {
                let name = input.text("log name")?;
                Self::EndLogDrop { name, log: LogId(input.u64()?) }
            }
            PROJECT => Self::Project { projection: Box::new(Projection::decode(input.bytes()?)?) },
            ADD_UNITS => Self::AddUnits { log: LogId(input.u64()?), nodes: decode_numbers(&mut input)? },
            FORGET_SPARES => {
                let log = LogId(input.u64()?);
                let units =
                    (0..input.count(8)?).map(|_| Ok(UnitId(input.u64()?))).collect::<Result<_, DecodeError>>()?;
                Self::ForgetSpares { log, units }
            }
            tag => return Err(DecodeError::UnknownTag { what: "catalog command", tag: u64::from(tag) }),
        };
        input.end()?;
        Ok(command)
    }
}

fn decode_numbers(input: &mut Reader) -> Result<Vec<NodeId>, DecodeError> {
    (0..input.count(4)?).map(|_| Ok(NodeId(input.u32()?))).collect()
}

/// Minimum bytes of an encoded node.
pub const NODE_BYTES_MIN: usize = 21;

/// Appends a node record.
pub fn encode_node(node: &NodeRecord, out: &mut Writer) {
    node.member.encode(out);
    out.bytes(node.peer.as_bytes());
    out.bytes(node.grpc.as_bytes());
    out.u8(node.standing.tag());
}

/// Decodes a node record.
///
/// # Errors
/// The bytes are not an encoded node record.
pub fn decode_node(input: &mut Reader) -> Result<NodeRecord, DecodeError> {
    Ok(NodeRecord {
        member: Member::decode(input)?,
        peer: input.text("peer address")?,
        grpc: input.text("gRPC address")?,
        standing: Standing::from_tag(input.u8()?).ok_or(DecodeError::Invalid { what: "standing of a node" })?,
    })
}

#[cfg(test)]
mod tests;
