//! What a client may ask of shared logs, and what it is told (guarantee 20).

use base::codec::{DecodeError, Reader, Writer};
use base::{Duration, NodeId};
use machine::Wire;

use crate::{Batch, Data, Position, Projection, ProjectionEpoch, Stamp, UnitId};

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
        /// Which append of which client it is, if the caller may retry it.
        stamp: Option<Stamp>,
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

const CREATED: u8 = 1;
const LOGS: u8 = 2;
const LOG: u8 = 3;
const PROJECTED: u8 = 4;
const UNITS_GONE: u8 = 5;

/// Only what the catalog answers travels between nodes: a log's own answers are given by the node that was asked.
impl Wire for LogResponse {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::Created { existed } => {
                out.u8(CREATED);
                out.bool(*existed);
            }
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
                debug_assert!(false, "the catalog answers nothing of the kind");
                out.u8(u8::MAX);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            CREATED => Self::Created { existed: input.bool()? },
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
            tag => return Err(DecodeError::UnknownTag { what: "answer about a log", tag: u64::from(tag) }),
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
