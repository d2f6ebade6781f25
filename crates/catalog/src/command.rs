//! The commands in the catalog's log: the payloads of its entries.
//!
//! A payload is one tag byte and the command's fields. An *empty* payload is a leader's barrier (guarantee 1) and not a
//! command. Client requests are validated before they are proposed ([`mod@crate::validate`]). These decoders check the
//! format only: limits may differ between versions of Loggos, and every replica must interpret a committed entry
//! identically.

use base::codec::{DecodeError, Reader, Text, Wire, Writer};
use base::{CohortId, Configuration, Durability, NodeId};
use bytes::Bytes;
use sharedlog::{LogId, Projection, SequencerId, UnitId};

use crate::catalog::{NodeRecord, Standing};
use crate::options::{Replication, TableOptions};

/// A command of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CatalogCommand {
    /// Create a table unless it exists.
    CreateTable {
        name: String,
        /// The keys at which one range ends and the next begins.
        split_at: Vec<Bytes>,
        options: TableOptions,
    },
    /// Begin to split a range of a table. The range's cohort commits the split next.
    BeginSplit {
        name: String,
        /// The key at which the new range begins.
        key: Bytes,
    },
    /// End a split: the range's cohort has committed it, and the map shows both ranges.
    EndSplit {
        name: String,
        /// The new range's cohort.
        child: CohortId,
    },
    /// Begin to drop a table: clients no longer find it. Its cohorts commit the drop next.
    BeginDrop {
        name: String,
        /// End the drop without the cohorts that cannot be reached.
        force: bool,
    },
    /// End a drop: all cohorts of the table have committed it, and the record is removed.
    EndDrop {
        name: String,
        /// The table's id, which is the cohort of its first range: the name may have been reused.
        table: CohortId,
    },
    /// Plan to move a range's replicas to these nodes.
    BeginMove {
        cohort: CohortId,
        nodes: Vec<NodeId>,
        /// Allow fewer replicas than the table should have.
        force: bool,
    },
    /// End a move: the cohort has carried out the plan.
    EndMove {
        cohort: CohortId,
        /// The number of the completed plan; ignored if a newer plan exists.
        plan: u64,
    },
    /// Replace the configuration of a range under primary/backup replication, if its version is the next one.
    Configure { cohort: CohortId, configuration: Configuration },
    /// Continue a range under primary/backup replication with the replica of one node alone, although acknowledged
    /// updates may be lost. The other replicas are deleted.
    DeclareLoss {
        /// The name of its table, as a confirmation.
        table: String,
        cohort: CohortId,
        /// The node of the replica.
        node: NodeId,
    },
    /// Set the size of a virtual disk, which only grows.
    ResizeDisk { name: String, bytes: u64 },
    /// Register the cluster's first nodes, or update their addresses.
    RegisterNodes { nodes: Vec<NodeRecord> },
    /// Add a node to the cluster.
    AddNode { node: NodeRecord },
    /// Create a shared log unless it exists.
    CreateLog {
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
        name: String,
        /// End the drop without the units that cannot be reached.
        force: bool,
    },
    /// End the drop of a log: its units are sealed, and the record is removed.
    EndLogDrop {
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
    /// Plan other nodes for replicas under primary/backup replication that are lost, or on these absent nodes.
    Replace {
        absent: Vec<NodeId>,
        /// Nodes that do not respond, but may return: they take no place.
        suspected: Vec<NodeId>,
    },
    /// Record the nodes with a full disk: new ranges are placed on others if there are enough.
    NoteFull { nodes: Vec<NodeId> },
    /// Mark a leaving node as having left, if no range counts on it. The catalog's own cohort does not count on it
    /// either: its removal from that cohort precedes this command in the same log.
    EndLeave { node: NodeId },
}

base::wire! {
    enum CatalogCommand, "catalog command" {
        65 => CreateTable { name as Text("table name"), options, split_at },
        66 => RegisterNodes { nodes },
        67 => BeginDrop { name as Text("table name"), force = false },
        68 => EndDrop { name as Text("table name"), table },
        69 => BeginSplit { name as Text("table name"), key },
        70 => EndSplit { name as Text("table name"), child },
        // Older than 81, and always carried out unchecked.
        71 => BeginMove { cohort, nodes, force = true },
        72 => EndMove { cohort, plan },
        73 => AddNode { node },
        74 => BeginLeave { node },
        75 => EndLeave { node },
        76 => MoveOff { absent },
        77 => CreateLog { name as Text("log name"), stripes, copies, sequencer },
        78 => Project { projection },
        79 => AddUnits { log, nodes },
        80 => ForgetSpares { log, units },
        81 => BeginMove { cohort, nodes, force = false },
        82 => BeginDrop { name as Text("table name"), force = true },
        83 => BeginLogDrop { name as Text("log name"), force = false },
        84 => BeginLogDrop { name as Text("log name"), force = true },
        85 => EndLogDrop { name as Text("log name"), log },
        86 => Configure { cohort, configuration },
        87 => DeclareLoss { table as Text("table name"), cohort, node },
        88 => Replace { absent, suspected },
        89 => ResizeDisk { name as Text("disk name"), bytes },
        90 => NoteFull { nodes },
    }
}

/// The bit of a byte of the options that says that the size of a disk follows.
const IS_DISK: u8 = 0x80;

/// The requested replication and durability share a byte, so that options without a replication are as before 86.
impl Wire for TableOptions {
    const BYTES_MIN: usize = 15;

    fn encode(&self, out: &mut Writer) {
        self.kind.encode(out);
        self.replicas.encode(out);
        self.retention.encode(out);
        let durability = match self.durability {
            None => 0,
            Some(Durability::Forced) => 1,
            Some(Durability::Memory) => 2,
        };
        let disk = if self.is_disk() { IS_DISK } else { 0 };
        out.u8(durability + 4 * self.replication.map_or(0, Replication::tag) + disk);
        self.transactions.encode(out);
        if self.is_disk() {
            self.disk_bytes.encode(out);
            out.bool(self.is_exclusive);
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let (kind, replicas, retention) = (Wire::decode(input)?, Wire::decode(input)?, Wire::decode(input)?);
        let tag = input.u8()?;
        let (tag, is_disk) = (tag & !IS_DISK, tag & IS_DISK != 0);
        let unknown = |what| DecodeError::UnknownTag { what, tag: u64::from(tag) };
        let durability = match tag % 4 {
            0 => None,
            1 => Some(Durability::Forced),
            2 => Some(Durability::Memory),
            _ => return Err(unknown("durability")),
        };
        let replication = match tag / 4 {
            0 => None,
            given => Some(Replication::from_tag(given).ok_or_else(|| unknown("replication"))?),
        };
        let transactions = Wire::decode(input)?;
        let (disk_bytes, is_exclusive) = if is_disk { (Wire::decode(input)?, input.bool()?) } else { (0, false) };
        if is_disk && disk_bytes == 0 {
            return Err(DecodeError::Invalid { what: "size of a disk" });
        }
        Ok(Self { kind, replicas, retention, durability, transactions, replication, disk_bytes, is_exclusive })
    }
}

impl Replication {
    fn tag(self) -> u8 {
        match self {
            Self::Paxos => 1,
            Self::PrimaryBackup => 2,
        }
    }

    fn from_tag(tag: u8) -> Option<Self> {
        [Self::Paxos, Self::PrimaryBackup].into_iter().find(|known| known.tag() == tag)
    }
}

impl Wire for Replication {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Writer) {
        out.u8(self.tag());
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Self::from_tag(input.u8()?).ok_or(DecodeError::Invalid { what: "replication of a table" })
    }
}

impl CatalogCommand {
    /// Encodes the command as an entry's payload.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        self.to_bytes()
    }

    /// Decodes an entry's payload that is not empty.
    ///
    /// # Errors
    /// The payload is not a catalog command. For a committed entry this is fatal: the node must halt.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        Self::from_bytes(payload)
    }
}

base::wire! { struct NodeRecord { member, peer as Text("peer address"), grpc as Text("gRPC address"), standing } }

impl Wire for Standing {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Writer) {
        out.u8(self.tag());
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Self::from_tag(input.u8()?).ok_or(DecodeError::Invalid { what: "standing of a node" })
    }
}

#[cfg(test)]
mod tests;
