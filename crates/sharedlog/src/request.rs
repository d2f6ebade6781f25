//! Client requests about shared logs, and their responses (guarantee 20).

use base::codec::Text;
use base::{Duration, NodeId};

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
    pub from: Position,
    /// Stripe width: consecutive positions in one chain.
    pub width: u64,
    /// Each chain's units from head to tail, with their nodes.
    pub chains: Vec<Vec<(u64, NodeId)>>,
}

base::wire! {
    enum LogResponse, "response about a log" {
        1 => Created { existed },
        2 => Logs(names as Text("log name")),
        3 => Log(log),
        4 => Projected(projection),
        5 => UnitsGone(units),
        6 => Dropped,
        _ => "only responses of the catalog are sent between nodes",
    }
}

base::wire! { struct LogDescription { id, epoch, sequencer, stripes, copies, extents } }
base::wire! { struct ExtentDescription { from, width, chains } }
