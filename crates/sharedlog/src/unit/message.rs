//! What a unit is asked, what goes to its log, and what it answers, with their codecs.

use base::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;

use crate::limits::UNIT_STRIPES_MAX;
use crate::{Entry, Kept, Kind, LogId, Position, ProjectionEpoch, Stripe};

/// What is asked of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// What lies at a position? Readers ask the tail of a chain, who fills asks the head.
    Read {
        /// The projection of who asks.
        epoch: ProjectionEpoch,
        /// The position.
        position: Position,
    },
    /// Is this epoch not sealed yet?
    Confirm {
        /// The epoch.
        epoch: ProjectionEpoch,
    },
    /// Something is to be changed.
    Command(Command),
}

/// What goes to a unit's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Begins a unit, empty. It may be repeated as long as the unit is empty.
    Begin {
        /// The log that it is of.
        log: LogId,
        /// The epoch in which it would be sealed, had it been there: that before the projection in which it will stand.
        epoch: ProjectionEpoch,
        /// What lies below was trimmed.
        trimmed: Position,
        /// What it will hold.
        stripes: Vec<Stripe>,
    },
    /// Writes a position, once.
    Write {
        /// The projection of who writes.
        epoch: ProjectionEpoch,
        /// The position.
        position: Position,
        /// What it is to hold.
        entry: Entry,
    },
    /// Copies what a whole chain holds, and will for ever: so it is of no epoch.
    Copy {
        /// The position.
        position: Position,
        /// What the chain holds there.
        kept: Kept,
    },
    /// Refuses everything of this epoch and before, from now on.
    Seal {
        /// The epoch.
        epoch: ProjectionEpoch,
    },
    /// Gives up what lies below a position.
    Trim {
        /// The projection of who trims; none where a whole chain has given it up already, which is so for ever.
        epoch: Option<ProjectionEpoch>,
        /// The first position that is kept.
        before: Position,
    },
    /// Gives up what lies at one position.
    TrimOne {
        /// The projection of who trims.
        epoch: ProjectionEpoch,
        /// The position.
        position: Position,
    },
    /// Tells which positions will come, so that they take little memory.
    Tell {
        /// The stripes.
        stripes: Vec<Stripe>,
    },
}

/// What a unit says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Everything of this epoch and before is refused.
    pub sealed: ProjectionEpoch,
    /// One more than the highest position ever written.
    pub tail: Position,
    /// What lies below is trimmed.
    pub trimmed: Position,
    /// Of each stripe that it was told of, the first position that it doesn't hold.
    pub whole: Vec<(Stripe, Position)>,
}

/// What a unit answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It holds what was to be written, forced.
    Written,
    /// It holds another entry there.
    Occupied {
        /// Of which kind.
        by: Kind,
    },
    /// It holds this there.
    Value(Entry),
    /// It holds nothing there.
    Unwritten,
    /// What lay there was given up.
    Trimmed {
        /// All below this was.
        mark: Position,
    },
    /// The request is of an epoch that is sealed.
    Refused {
        /// It, or a newer one.
        sealed: ProjectionEpoch,
    },
    /// It is sealed, forced.
    Sealed(Report),
    /// It has begun, forced.
    Begun(Report),
    /// It can't begin: it has held something, or is another log's.
    NotEmpty,
    /// The epoch is not sealed.
    Confirmed,
    /// It knows the stripes.
    Told(Report),
    /// It is done, forced.
    Done,
    /// There is no such unit.
    Unknown,
    /// What it held there is lost.
    Damaged,
}

impl Command {
    /// Writes it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        match self {
            Self::Begin { log, epoch, trimmed, stripes } => {
                writer.u8(1);
                writer.u64(log.0);
                writer.u64(epoch.0);
                writer.u64(trimmed.0);
                encode_stripes(&mut writer, stripes);
            }
            Self::Write { epoch, position, entry } => {
                writer.u8(2);
                writer.u64(epoch.0);
                writer.u64(position.0);
                entry.encode(&mut writer);
            }
            Self::Copy { position, kept } => {
                writer.u8(3);
                writer.u64(position.0);
                kept.encode(&mut writer);
            }
            Self::Seal { epoch } => {
                writer.u8(4);
                writer.u64(epoch.0);
            }
            Self::Trim { epoch, before } => {
                writer.u8(if epoch.is_some() { 5 } else { 8 });
                if let Some(epoch) = epoch {
                    writer.u64(epoch.0);
                }
                writer.u64(before.0);
            }
            Self::TrimOne { epoch, position } => {
                writer.u8(6);
                writer.u64(epoch.0);
                writer.u64(position.0);
            }
            Self::Tell { stripes } => {
                writer.u8(7);
                encode_stripes(&mut writer, stripes);
            }
        }
        writer.finish()
    }

    /// Reads it.
    ///
    /// # Errors
    /// When the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let epoch = |reader: &mut Reader| Ok(ProjectionEpoch(reader.u64()?));
        let command = match reader.u8()? {
            1 => Self::Begin {
                log: LogId(reader.u64()?),
                epoch: epoch(&mut reader)?,
                trimmed: Position::decode(&mut reader)?,
                stripes: decode_stripes(&mut reader)?,
            },
            2 => Self::Write {
                epoch: epoch(&mut reader)?,
                position: Position::decode(&mut reader)?,
                entry: Entry::decode(&mut reader)?,
            },
            3 => Self::Copy { position: Position::decode(&mut reader)?, kept: Kept::decode(&mut reader)? },
            4 => Self::Seal { epoch: epoch(&mut reader)? },
            5 => Self::Trim { epoch: Some(epoch(&mut reader)?), before: Position::decode(&mut reader)? },
            8 => Self::Trim { epoch: None, before: Position::decode(&mut reader)? },
            6 => Self::TrimOne { epoch: epoch(&mut reader)?, position: Position::decode(&mut reader)? },
            7 => Self::Tell { stripes: decode_stripes(&mut reader)? },
            tag => return Err(DecodeError::UnknownTag { what: "command of a log unit", tag: tag.into() }),
        };
        reader.end()?;
        Ok(command)
    }
}

fn encode_stripes(writer: &mut Writer, stripes: &[Stripe]) {
    writer.u32(stripes.len() as u32);
    stripes.iter().for_each(|stripe| stripe.encode(writer));
}

fn decode_stripes(reader: &mut Reader) -> Result<Vec<Stripe>, DecodeError> {
    let count = reader.count(Stripe::BYTES)?;
    if count > UNIT_STRIPES_MAX {
        return Err(DecodeError::Invalid { what: "number of stripes" });
    }
    (0..count).map(|_| Stripe::decode(reader)).collect()
}
