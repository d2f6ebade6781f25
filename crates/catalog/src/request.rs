//! Requests to the catalog, and its responses.

use base::codec::{Framed, Text};
use base::{Configuration, Durability, Duration, KeyRange, Timestamp};
use sharedlog::request::LogResponse;
use state_machine::{Failure, Request, Response};

use crate::catalog::NodeRecord;
use crate::command::CatalogCommand;
use crate::options::Replication;

/// The outcome of a request to the catalog.
pub type Outcome = state_machine::Outcome<CatalogResponse>;

/// A request to the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CatalogRequest {
    /// Commits a command to the catalog's log.
    Change(CatalogCommand),
    /// Lists the names of the tables that are not disks.
    ListTables,
    /// Lists the virtual disks.
    ListDisks,
    DescribeTable(String),
    /// Checks whether a table exists and is not being dropped.
    FindTable(String),
    /// Checks whether a table exists or is being dropped.
    FindRemnant(String),
    /// Lists the nodes, including those that have left.
    ListNodes,
    /// Lists the names of the logs.
    ListLogs,
    DescribeLog(String),
}

/// A successful response of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CatalogResponse {
    TableCreated {
        /// Whether it existed before the request.
        existed: bool,
    },
    /// The table was dropped in each of its cohorts.
    TableDropped,
    /// The range was split.
    RangeSplit {
        /// The new range's cohort.
        cohort: u32,
    },
    /// The move of a range's replicas was planned.
    MoveBegun,
    /// The node is leaving, or has left.
    LeaveBegun,
    /// All nodes that ever existed, in order of node number.
    Nodes(Vec<NodeDescription>),
    /// The names of the tables, sorted.
    Tables(Vec<String>),
    /// The description of a table.
    Table(TableDescription),
    /// A response about a shared log.
    Log(LogResponse),
    /// The disks, in order of name.
    Disks(Vec<DiskDescription>),
    /// The disk has the size.
    DiskResized,
}

impl From<CatalogCommand> for CatalogRequest {
    fn from(command: CatalogCommand) -> Self {
        Self::Change(command)
    }
}

impl Request for CatalogRequest {
    fn validate(&self) -> Result<(), Failure> {
        crate::validate(self)
    }

    fn reads(&self) -> bool {
        !matches!(self, Self::Change(_))
    }

    fn held_bytes(&self) -> usize {
        match self {
            Self::Change(CatalogCommand::CreateTable { name, split_at, .. }) => {
                name.len() + split_at.iter().map(|key| 32 + key.len()).sum::<usize>()
            }
            Self::Change(CatalogCommand::BeginSplit { name, key }) => name.len() + key.len(),
            Self::Change(CatalogCommand::ResizeDisk { name, .. }) => name.len(),
            Self::Change(CatalogCommand::BeginMove { nodes, .. }) => size_of_val(nodes.as_slice()),
            Self::Change(CatalogCommand::AddNode { node }) => node.peer.len() + node.grpc.len(),
            Self::DescribeTable(name) | Self::FindTable(name) | Self::FindRemnant(name) | Self::DescribeLog(name) => {
                name.len()
            }
            Self::Change(_) | Self::ListTables | Self::ListDisks | Self::ListNodes | Self::ListLogs => 0,
        }
    }
}

impl Response for CatalogResponse {
    fn is_of_read(&self) -> bool {
        let is_of_log = matches!(self, Self::Log(LogResponse::Logs(_) | LogResponse::Log(_)));
        is_of_log || matches!(self, Self::Nodes(_) | Self::Tables(_) | Self::Table(_) | Self::Disks(_))
    }
}

base::wire! {
    enum CatalogRequest, "catalog request" {
        1 => Change(command as Framed),
        2 => ListTables,
        3 => DescribeTable(name as Text("table name")),
        4 => FindTable(name as Text("table name")),
        5 => ListNodes,
        6 => ListLogs,
        7 => DescribeLog(name as Text("log name")),
        8 => FindRemnant(name as Text("table name")),
        9 => ListDisks,
    }
}

base::wire! {
    enum CatalogResponse, "response of the catalog" {
        1 => TableCreated { existed },
        2 => TableDropped,
        3 => RangeSplit { cohort },
        4 => MoveBegun,
        5 => LeaveBegun,
        6 => Nodes(nodes),
        7 => Tables(names as Text("table name")),
        8 => Table(table),
        9 => Log(response),
        10 => Disks(disks),
        11 => DiskResized,
    }
}

base::wire! {
    struct TableDescription { created, replicas, retention, durability, transactions, replication, disk_bytes, ranges }
}
base::wire! { struct DiskDescription { name as Text("disk name"), bytes, stripes, created, is_exclusive } }
base::wire! { struct RangeDescription { range, cohort, members, is_moving, configuration } }
base::wire! { struct NodeDescription { record, ranges } }

/// The description of a table for clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableDescription {
    /// Its ranges, in order of key.
    pub ranges: Vec<RangeDescription>,
    /// When it was created.
    pub created: Timestamp,
    /// Replicas of each range.
    pub replicas: u32,
    /// How long old versions are readable.
    pub retention: Duration,
    /// The storage that a write must have reached on a majority before it is acknowledged.
    pub durability: Durability,
    /// Whether it takes part in transactions.
    pub transactions: bool,
    /// How each range is replicated.
    pub replication: Replication,
    /// The size of the disk; 0: it is not one.
    pub disk_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DiskDescription {
    pub name: String,
    pub bytes: u64,
    /// The number of stripes: the ranges of its table.
    pub stripes: u32,
    /// When it was created.
    pub created: Timestamp,
    /// Whether it can be attached only under the name of a holder.
    pub is_exclusive: bool,
}

/// A range of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeDescription {
    pub range: KeyRange,
    /// The cohort that serves it.
    pub cohort: u32,
    /// The nodes of the planned members.
    pub members: Vec<u32>,
    /// Whether a move to these nodes is in progress.
    pub is_moving: bool,
    /// Its configuration, under primary/backup replication.
    pub configuration: Option<Configuration>,
}

/// The description of a node for clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeDescription {
    pub record: NodeRecord,
    /// The number of ranges with a replica on it, including replicas that will move away.
    pub ranges: u32,
}
