//! Requests to the catalog, and its responses.

use base::codec::{DecodeError, Reader, Writer};
use base::{Durability, Duration, KeyRange, Timestamp};
use sharedlog::request::LogResponse;
use state_machine::{Failure, Request, Response, Wire};

use crate::catalog::NodeRecord;
use crate::command::{CatalogCommand, NODE_BYTES_MIN, decode_node, encode_node};

/// The outcome of a request to the catalog.
pub type Outcome = state_machine::Outcome<CatalogResponse>;

/// A request to the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CatalogRequest {
    /// Commits a command to the catalog's log.
    Change(CatalogCommand),
    /// Lists the names of the tables.
    ListTables,
    DescribeTable(String),
    /// Checks whether a table exists.
    FindTable(String),
    /// Lists the nodes, including those that have left.
    ListNodes,
    /// Lists the names of the logs.
    ListLogs,
    DescribeLog(String),
}

/// A successful response of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CatalogResponse {
    /// The table exists.
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
            Self::Change(CatalogCommand::BeginMove { nodes, .. }) => size_of_val(nodes.as_slice()),
            Self::Change(CatalogCommand::AddNode { node }) => node.peer.len() + node.grpc.len(),
            Self::DescribeTable(name) | Self::FindTable(name) | Self::DescribeLog(name) => name.len(),
            Self::Change(_) | Self::ListTables | Self::ListNodes | Self::ListLogs => 0,
        }
    }
}

impl Response for CatalogResponse {
    fn is_of_read(&self) -> bool {
        let is_of_log = matches!(self, Self::Log(LogResponse::Logs(_) | LogResponse::Log(_)));
        is_of_log || matches!(self, Self::Nodes(_) | Self::Tables(_) | Self::Table(_))
    }
}

const CHANGE: u8 = 1;
const LIST_TABLES: u8 = 2;
const DESCRIBE_TABLE: u8 = 3;
const FIND_TABLE: u8 = 4;
const LIST_NODES: u8 = 5;
const LIST_LOGS: u8 = 6;
const DESCRIBE_LOG: u8 = 7;

impl Wire for CatalogRequest {
    fn encode(&self, out: &mut Writer) {
        let mut named = |tag, name: &str| {
            out.u8(tag);
            out.bytes(name.as_bytes());
        };
        match self {
            Self::DescribeTable(name) => named(DESCRIBE_TABLE, name),
            Self::FindTable(name) => named(FIND_TABLE, name),
            Self::DescribeLog(name) => named(DESCRIBE_LOG, name),
            Self::Change(command) => {
                out.u8(CHANGE);
                out.bytes(&command.encode());
            }
            Self::ListTables => out.u8(LIST_TABLES),
            Self::ListNodes => out.u8(LIST_NODES),
            Self::ListLogs => out.u8(LIST_LOGS),
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            CHANGE => Self::Change(CatalogCommand::decode(input.bytes()?)?),
            LIST_TABLES => Self::ListTables,
            DESCRIBE_TABLE => Self::DescribeTable(input.text("table name")?),
            FIND_TABLE => Self::FindTable(input.text("table name")?),
            LIST_NODES => Self::ListNodes,
            LIST_LOGS => Self::ListLogs,
            DESCRIBE_LOG => Self::DescribeLog(input.text("log name")?),
            tag => return Err(DecodeError::UnknownTag { what: "catalog request", tag: u64::from(tag) }),
        })
    }
}

const TABLE_CREATED: u8 = 1;
const TABLE_DROPPED: u8 = 2;
const RANGE_SPLIT: u8 = 3;
const MOVE_BEGUN: u8 = 4;
const LEAVE_BEGUN: u8 = 5;
const NODES: u8 = 6;
const TABLES: u8 = 7;
const TABLE: u8 = 8;
const LOG: u8 = 9;

/// Minimum bytes of an encoded range: length of the start key, whether there is an end key, cohort, number of members.
const RANGE_BYTES_MIN: usize = 13;

impl Wire for CatalogResponse {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::TableCreated { existed } => {
                out.u8(TABLE_CREATED);
                out.bool(*existed);
            }
            Self::TableDropped => out.u8(TABLE_DROPPED),
            Self::RangeSplit { cohort } => {
                out.u8(RANGE_SPLIT);
                out.u32(*cohort);
            }
            Self::MoveBegun => out.u8(MOVE_BEGUN),
            Self::LeaveBegun => out.u8(LEAVE_BEGUN),
            Self::Nodes(nodes) => {
                out.u8(NODES);
                out.count(nodes.len());
                for NodeDescription { record, ranges } in nodes {
                    encode_node(record, out);
                    out.u32(*ranges);
                }
            }
            Self::Tables(names) => {
                out.u8(TABLES);
                out.count(names.len());
                names.iter().for_each(|name| out.bytes(name.as_bytes()));
            }
            Self::Table(table) => {
                out.u8(TABLE);
                table.encode(out);
            }
            Self::Log(response) => {
                out.u8(LOG);
                response.encode(out);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            TABLE_CREATED => Self::TableCreated { existed: input.bool()? },
            TABLE_DROPPED => Self::TableDropped,
            RANGE_SPLIT => Self::RangeSplit { cohort: input.u32()? },
            MOVE_BEGUN => Self::MoveBegun,
            LEAVE_BEGUN => Self::LeaveBegun,
            NODES => {
                let node =
                    |input: &mut Reader| Ok(NodeDescription { record: decode_node(input)?, ranges: input.u32()? });
                let count = input.count(NODE_BYTES_MIN + 4)?;
                Self::Nodes((0..count).map(|_| node(input)).collect::<Result<_, DecodeError>>()?)
            }
            TABLES => {
                let count = input.count(4)?;
                Self::Tables((0..count).map(|_| input.text("table name")).collect::<Result<_, _>>()?)
            }
            TABLE => Self::Table(TableDescription::decode(input)?),
            LOG => Self::Log(LogResponse::decode(input)?),
            tag => return Err(DecodeError::UnknownTag { what: "response of the catalog", tag: u64::from(tag) }),
        })
    }
}

impl Wire for TableDescription {
    fn encode(&self, out: &mut Writer) {
        let Self { ranges, created, replicas, retention, durability } = self;
        out.i64(created.0);
        out.u32(*replicas);
        out.u64(retention.0);
        durability.encode(out);
        out.count(ranges.len());
        for RangeDescription { range, cohort, members, is_moving } in ranges {
            range.encode(out);
            out.u32(*cohort);
            out.count(members.len());
            members.iter().for_each(|node| out.u32(*node));
            out.bool(*is_moving);
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let (created, replicas, retention) = (Timestamp(input.i64()?), input.u32()?, Duration(input.u64()?));
        let durability = Durability::decode(input)?;
        let range = |input: &mut Reader| {
            let (range, cohort) = (KeyRange::decode(input)?, input.u32()?);
            let members = (0..input.count(4)?).map(|_| input.u32()).collect::<Result<_, _>>()?;
            Ok(RangeDescription { range, cohort, members, is_moving: input.bool()? })
        };
        let ranges = (0..input.count(RANGE_BYTES_MIN)?).map(|_| range(input)).collect::<Result<_, DecodeError>>()?;
        Ok(Self { ranges, created, replicas, retention, durability })
    }
}

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
}

/// The description of a node for clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeDescription {
    pub record: NodeRecord,
    /// The number of ranges with a replica on it, including replicas that will move away.
    pub ranges: u32,
}
