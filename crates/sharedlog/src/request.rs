//! Client requests about shared logs, and their responses (guarantee 20).

use base::codec::{DecodeError, Reader, Writer};
use base::{Duration, NodeId};
use state_machine::Wire;

use crate::{Batch, Data, Position, Projection, ProjectionEpoch, Stamp, UnitId};

/// A request about a shared log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogRequest {
    /// Creates a log, unless it exists.
    Create {
        /// Name of the log.
        name: String,
        /// Number of chains; 0 means one.
        stripes: u32,
        /// Units per chain, each on a different node; 0 means the default.
        copies: u32,
    },
    /// Drops a log with all its entries.
    Drop {
        /// Name of the log.
        name: String,
        /// Declare the units that cannot be reached lost, and end the drop without them.
        force: bool,
    },
    /// Lists the logs.
    List,
    /// Describes a log: its extents and its sequencer.
    Describe {
        /// Name of the log.
        name: String,
    },
    /// Appends a batch of records as one entry.
    Append {
        /// Name of the log.
        log: String,
        /// The records to append.
        batch: Batch,
        /// Identifies the append, for callers that may retry it.
        stamp: Option<Stamp>,
    },
    /// Reads consecutive positions, up to the first unwritten one.
    Read {
        /// Name of the log.
        log: String,
        /// The first position.
        from: Position,
        /// Maximum number of positions.
        count: u32,
        /// How long to wait for the first position if it is unwritten; zero does not wait. After the wait the response
        /// has no entries.
        wait: Duration,
        /// Maximum bytes of entries in the response. If the first entry is larger, the response is
        /// [`LogResponse::Larger`].
        bytes: usize,
    },
    /// Queries the tail of the log.
    Tail {
        /// Name of the log.
        log: String,
    },
    /// Trims all positions below one.
    Trim {
        /// Name of the log.
        log: String,
        /// The first position to keep.
        before: Position,
    },
    /// Trims one position.
    TrimOne {
        /// Name of the log.
        log: String,
        /// The position to trim.
        position: Position,
    },
}

impl LogRequest {
    /// Name of the log; `None` for a request about all logs.
    #[must_use]
    pub fn log(&self) -> Option<&str> {
        match self {
            Self::List => None,
            Self::Create { name: log, .. } | Self::Drop { name: log, .. } | Self::Describe { name: log } => Some(log),
            Self::Append { log, .. } | Self::Read { log, .. } | Self::Tail { log } => Some(log),
            Self::Trim { log, .. } | Self::TrimOne { log, .. } => Some(log),
        }
    }

    /// Whether the request may have an effect, so that its outcome can be unknown.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Self::Create { .. } | Self::Drop { .. } => true,
            Self::Append { .. } | Self::Trim { .. } | Self::TrimOne { .. } => true,
            Self::List | Self::Describe { .. } | Self::Read { .. } | Self::Tail { .. } => false,
        }
    }
}

/// A successful response about a shared log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogResponse {
    /// The log exists.
    Created {
        /// Whether it existed before.
        existed: bool,
    },
    /// The log was dropped.
    Dropped,
    /// The names of all logs, sorted.
    Logs(Vec<String>),
    /// The description of a log.
    Log(Box<LogDescription>),
    /// The position of the batch, durable on every unit of its chain.
    Appended(Position),
    /// Consecutive positions from the requested one on.
    Entries(Vec<LogEntry>),
    /// The first entry exceeds the requested size. Never for a request that allows the largest batch.
    Larger,
    /// Every append that completed before the request is below this position.
    Tail(Position),
    /// The trim has completed.
    Trimmed,
    /// The newest projection of a log. Between nodes only.
    Projected(Box<Projection>),
    /// The projection was refused, because these units no longer exist. Between nodes only.
    UnitsGone(Vec<UnitId>),
}

/// A position and its content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogEntry {
    /// The position that was read.
    pub position: Position,
    pub content: Content,
}

/// The content of a position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// An appended entry.
    Data(Data),
    /// A filled hole: never written, and never will be.
    Junk,
    /// All units that held the entry are lost, as declared by an operator.
    Lost,
    /// The position was trimmed.
    Trimmed {
        /// Every position below this was trimmed.
        mark: Position,
    },
}

/// A description of a log, for operators and clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogDescription {
    /// Number of the log.
    pub id: u64,
    /// The epoch of its projection.
    pub epoch: ProjectionEpoch,
    /// The node of its sequencer.
    pub sequencer: NodeId,
    /// Target number of chains.
    pub stripes: u32,
    /// Target number of units per chain.
    pub copies: u32,
    /// Its extents in ascending order.
    pub extents: Vec<ExtentDescription>,
}

/// A range of positions that are striped over the same chains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExtentDescription {
    /// Its first position.
    pub from: Position,
    /// Stripe width: consecutive positions in one chain.
    pub width: u64,
    /// Each chain's units from head to tail, with their nodes.
    pub chains: Vec<Vec<(u64, NodeId)>>,
}

const CREATED: u8 = 1;
const LOGS: u8 = 2;
const LOG: u8 = 3;
const PROJECTED: u8 = 4;
const UNITS_GONE: u8 = 5;
const DROPPED: u8 = 6;

/// Only responses of the catalog are sent between nodes: the node that receives a client's request handles reads and
/// appends itself.
impl Wire for LogResponse {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::Created { existed } => {
                out.u8(CREATED);
                out.bool(*existed);
            }
            Self::Dropped => out.u8(DROPPED),
            Self::Logs(names) => {
                out.u8(LOGS);
                out.count(names.len());
                names.iter().for_each(|name| out.bytes(name.as_bytes()));
            }
            Self::Log(log) => {
                out.u8(LOG);
                encode_log(log, out);
            }
            Self::Projected(projection) => {
                out.u8(PROJECTED);
                out.bytes(&projection.encode());
            }
            Self::UnitsGone(units) => {
                out.u8(UNITS_GONE);
                out.count(units.len());
                units.iter().for_each(|unit| out.u64(unit.0));
            }
            Self::Appended(_) | Self::Entries(_) | Self::Larger | Self::Tail(_) | Self::Trimmed => {
                debug_assert!(false, "only responses of the catalog are sent between nodes");
                out.u8(u8::MAX);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            CREATED => Self::Created { existed: input.bool()? },
            DROPPED => Self::Dropped,
            LOGS => {
                let count = input.count(4)?;
                Self::Logs((0..count).map(|_| input.text("log name")).collect::<Result<_, _>>()?)
            }
            LOG => Self::Log(Box::new(decode_log(input)?)),
            PROJECTED => Self::Projected(Box::new(Projection::decode(input.bytes()?)?)),
            UNITS_GONE => {
                let units = (0..input.count(8)?).map(|_| input.u64().map(UnitId));
                Self::UnitsGone(units.collect::<Result<_, _>>()?)
            }
            tag => return Err(DecodeError::UnknownTag { what: "response about a log", tag: u64::from(tag) }),
        })
    }
}

fn encode_log(log: &LogDescription, out: &mut Writer) {
    let LogDescription { id, epoch, sequencer, stripes, copies, extents } = log;
    out.u64(*id);
    out.u64(epoch.0);
    out.u32(sequencer.0);
    out.u32(*stripes);
    out.u32(*copies);
    out.count(extents.len());
    for ExtentDescription { from, width, chains } in extents {
        out.u64(from.0);
        out.u64(*width);
        out.count(chains.len());
        for chain in chains {
            out.count(chain.len());
            for (unit, node) in chain {
                out.u64(*unit);
                out.u32(node.0);
            }
        }
    }
}

fn decode_log(input: &mut Reader) -> Result<LogDescription, DecodeError> {
    let (id, epoch, sequencer) = (input.u64()?, ProjectionEpoch(input.u64()?), NodeId(input.u32()?));
    let (stripes, copies) = (input.u32()?, input.u32()?);
    let chain = |input: &mut Reader| {
        (0..input.count(12)?).map(|_| Ok((input.u64()?, NodeId(input.u32()?)))).collect::<Result<_, DecodeError>>()
    };
    let extent = |input: &mut Reader| {
        let (from, width) = (Position(input.u64()?), input.u64()?);
        let chains = (0..input.count(4)?).map(|_| chain(input)).collect::<Result<_, DecodeError>>()?;
        Ok(ExtentDescription { from, width, chains })
    };
    let extents = (0..input.count(20)?).map(|_| extent(input)).collect::<Result<_, DecodeError>>()?;
    Ok(LogDescription { id, epoch, sequencer, stripes, copies, extents })
}
