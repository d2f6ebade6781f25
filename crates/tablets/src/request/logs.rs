//! What a client may ask of shared logs, and what it is told (guarantee 20).

use base::{Duration, NodeId};
use sharedlog::client::Stamped;
use sharedlog::{Batch, Data, Position, Projection, ProjectionEpoch, UnitId};

/// A request about a shared log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogRequest {
    /// Creates a log unless it is there.
    Create {
        /// Its name.
        name: String,
        /// Chains that its positions are spread over; 0: one.
        stripes: u32,
        /// Units of each chain, on as many nodes; 0: as many as is usual.
        copies: u32,
    },
    /// Lists the logs.
    List,
    /// Describes a log: where its positions lie, and who hands them out.
    Describe {
        /// Its name.
        name: String,
    },
    /// Appends a batch of records, as one entry.
    Append {
        /// The log's name.
        log: String,
        /// The records.
        batch: Batch,
        /// Which append of whom it is, for whoever wants to try it again, and the oldest append of that client that
        /// isn't decided.
        stamp: Option<Stamped>,
        /// No attempt at it lies below. If nobody remembers any more which appends lie from there on, it is refused.
        since: Option<Position>,
    },
    /// Reads what lies at positions in a row, until one where nothing lies yet.
    Read {
        /// The log's name.
        log: String,
        /// The first position.
        from: Position,
        /// How many positions, at most.
        count: u32,
        /// How long to wait for the first, if nothing lies there yet; zero: not at all. Who waited in vain is told of
        /// no entries.
        wait: Duration,
        /// Bytes of entries in the answer, at most. Where the first has more, that is the answer.
        bytes: usize,
    },
    /// Asks where the log ends.
    Tail {
        /// The log's name.
        log: String,
    },
    /// Gives up what lies below a position.
    Trim {
        /// The log's name.
        log: String,
        /// The first position that is kept.
        before: Position,
    },
    /// Gives up what lies at one position.
    TrimOne {
        /// The log's name.
        log: String,
        /// The position.
        position: Position,
    },
}

impl LogRequest {
    /// The log's name; none for what is about all of them.
    #[must_use]
    pub fn log(&self) -> Option<&str> {
        match self {
            Self::List => None,
            Self::Create { name: log, .. } | Self::Describe { name: log } => Some(log),
            Self::Append { log, .. } | Self::Read { log, .. } | Self::Tail { log } => Some(log),
            Self::Trim { log, .. } | Self::TrimOne { log, .. } => Some(log),
        }
    }

    /// Whether it may change something, so that its outcome can be in doubt.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Self::Create { .. } | Self::Append { .. } | Self::Trim { .. } | Self::TrimOne { .. } => true,
            Self::List | Self::Describe { .. } | Self::Read { .. } | Self::Tail { .. } => false,
        }
    }
}

/// A definite good answer about a shared log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogResponse {
    /// The log is there.
    Created {
        /// Whether it was there before.
        existed: bool,
    },
    /// The logs' names in order.
    Logs(Vec<String>),
    /// What is known of a log.
    Log(Box<LogDescription>),
    /// The batch lies there, forced on every unit of its chain.
    Appended(Position),
    /// What lies at positions in a row, from the one asked for on.
    Entries(Vec<LogEntry>),
    /// Something lies at the first position, and it has more bytes than were asked for: of whom asked for a batch of
    /// the largest, never.
    Larger,
    /// Every append that had ended lies below.
    Tail(Position),
    /// What was to be given up is.
    Trimmed,
    /// The newest projection of a log: what nodes tell each other, and no client.
    Projected(Box<Projection>),
    /// A projection was refused, since these of its units are there no more: what nodes tell each other, and no client.
    UnitsGone(Vec<UnitId>),
}

/// What lies at a position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogEntry {
    /// The position.
    pub position: Position,
    /// What lies there.
    pub content: Content,
}

/// What may lie at a position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// What was appended.
    Data(Data),
    /// A hole: whoever was to write there never did, and nobody will.
    Junk,
    /// What lay there is lost with all units that had it, and was given up by an operator's word.
    Lost,
    /// It was given up.
    Trimmed {
        /// All below this was.
        mark: Position,
    },
}

/// A log, for people and clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogDescription {
    /// Its number.
    pub id: u64,
    /// Counts its projections.
    pub epoch: ProjectionEpoch,
    /// The node that hands out positions.
    pub sequencer: NodeId,
    /// Chains that it should have.
    pub stripes: u32,
    /// Units that each should have.
    pub copies: u32,
    /// Where its positions lie.
    pub extents: Vec<ExtentDescription>,
}

/// Positions that are spread over the same chains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExtentDescription {
    /// The first of them.
    pub from: Position,
    /// How many in a row are of one chain, before the next one's come.
    pub width: u64,
    /// Each chain's units from head to tail, with the node of each.
    pub chains: Vec<Vec<(u64, NodeId)>>,
}
