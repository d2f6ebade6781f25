//! What a unit is asked, what goes to its log, and what it answers, with their codecs.

use base::codec::{DecodeError, Reader, Writer};
use base::{Duration, Incarnation};
use bytes::Bytes;

use crate::limits::{AWAIT_MAX, MANY_BYTES_MAX, MANY_MAX, UNIT_STRIPES_MAX};
use crate::{Entry, Kept, Kind, LogId, Position, ProjectionEpoch, Run, Stripe};

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
    /// What lies at a position, once something does? Its answer may be held back until then, or until so much time has
    /// passed.
    Await {
        /// The projection of who asks.
        epoch: ProjectionEpoch,
        /// The position.
        position: Position,
        /// How long; no more than [`AWAIT_MAX`](crate::limits::AWAIT_MAX).
        wait: Duration,
        /// Bytes that it may have, as in [`Request::ReadMany`].
        bytes: usize,
    },
    /// What lies at these positions? No more than [`MANY_MAX`](crate::limits::MANY_MAX) are looked at.
    ReadMany {
        /// The projection of who asks.
        epoch: ProjectionEpoch,
        /// The positions.
        run: Run,
        /// Bytes of the values in the answer, at most: no more than [`MANY_BYTES_MAX`](crate::limits::MANY_BYTES_MAX)
        /// in any case, unless there is one value only.
        bytes: usize,
    },
    /// Is this epoch not sealed yet?
    Confirm {
        /// The epoch.
        epoch: ProjectionEpoch,
    },
    /// Which positions of a stripe does it not hold?
    Holes {
        /// The projection of who asks.
        epoch: ProjectionEpoch,
        /// The stripe.
        stripe: Stripe,
        /// The first position that is meant.
        from: Position,
        /// The first one after it that is not.
        to: Position,
    },
    /// Something is to be changed.
    Command(Command),
}

/// What goes to a unit's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Begins a unit, empty. It may be repeated as long as the unit is empty.
    Begin {
        /// The disk that its number was given for: it begins on no other.
        disk: Incarnation,
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
    /// Copies what a whole chain holds, and will for ever: so it is of no epoch. Each position is answered by itself.
    CopyMany {
        /// Positions, [`MANY_MAX`] at most, with what the chain holds there: [`MANY_BYTES_MAX`] of values, or a single
        /// one.
        copies: Vec<(Position, Kept)>,
    },
    /// Notes that what lies at a position can't be read any more. A node says so of its own units, and heeds nobody
    /// else.
    Damaged {
        /// The position.
        position: Position,
    },
    /// Puts back what lay at a damaged position, as another unit of the chain holds it. It takes the place of nothing
    /// that can be read, so it is of no epoch.
    Mend {
        /// The position.
        position: Position,
        /// What another unit holds there.
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Report {
    /// Everything of this epoch and before is refused.
    pub sealed: ProjectionEpoch,
    /// One more than the highest position ever written.
    pub tail: Position,
    /// What lies below is trimmed.
    pub trimmed: Position,
    /// How many positions it knows to be damaged.
    pub damaged: u32,
    /// Of each stripe that it was told of, the first position that it doesn't hold, or that is damaged.
    pub whole: Vec<(Stripe, Position)>,
}

/// What a unit answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    /// Of each position what it would have said of that alone, in their order. It may end before they do: what it lacks
    /// is to be asked again. It has none only if the first value is larger than who asked would have.
    Many(Vec<Self>),
    /// It holds nothing there.
    Unwritten,
    /// It holds nothing at these, and something at all others up to the last one of them; if there are fewer than
    /// [`HOLES_MAX`](crate::limits::HOLES_MAX), at all others.
    Holes(Vec<Position>),
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
    /// It can't begin: its number was given for another disk.
    Elsewhere,
    /// The epoch is not sealed.
    Confirmed,
    /// It knows the stripes.
    Told(Report),
    /// It is done, forced.
    Done,
    /// There is no such unit.
    Unknown,
    /// What it holds there can't be read. Another unit of the chain may have it.
    Damaged,
}

impl Request {
    /// How long its answer may be held back.
    #[must_use]
    pub fn wait(&self) -> Duration {
        if let Self::Await { wait, .. } = self { (*wait).min(AWAIT_MAX) } else { Duration::ZERO }
    }

    /// The positions that it looks at or writes to, as they are answered one by one.
    #[must_use]
    pub fn positions(&self) -> Vec<Position> {
        match self {
            Self::Read { position, .. } | Self::Await { position, .. } => vec![*position],
            Self::ReadMany { run, .. } => run.first(MANY_MAX).positions().collect(),
            Self::Command(Command::Write { position, .. }) => vec![*position],
            Self::Command(Command::CopyMany { copies }) => copies.iter().map(|(position, _)| *position).collect(),
            Self::Confirm { .. } | Self::Holes { .. } | Self::Command(_) => Vec::new(),
        }
    }
}

impl Reply {
    /// Of each position that was asked for what it says: of one, or of many.
    #[must_use]
    pub fn each(&self) -> &[Self] {
        if let Self::Many(replies) = self { replies } else { std::slice::from_ref(self) }
    }

    /// Bytes of the value in it.
    fn value_bytes(&self) -> usize {
        if let Self::Value(Entry::Data(data)) = self { data.batch.len() } else { 0 }
    }

    /// The answer to many questions, from the answers to each, as long as there is room in it: for so many bytes of
    /// values, and no more than [`MANY_BYTES_MAX`] or a single value. Where one can't be had it ends before that.
    ///
    /// # Errors
    /// When the first can't be had.
    pub fn of_many<E>(replies: impl IntoIterator<Item = Result<Self, E>>, bytes_max: usize) -> Result<Self, E> {
        let (mut many, mut bytes) = (Vec::new(), 0);
        for reply in replies {
            let reply = match reply {
                Ok(reply) => reply,
                Err(error) if many.is_empty() => return Err(error),
                Err(_) => break,
            };
            bytes += reply.value_bytes();
            if bytes > bytes_max || bytes > MANY_BYTES_MAX && !many.is_empty() {
                break;
            }
            many.push(reply);
        }
        Ok(Self::Many(many))
    }
}

impl Command {
    /// Writes it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        match self {
            Self::Begin { disk, log, epoch, trimmed, stripes } => {
                writer.u8(1);
                writer.u64(disk.0);
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
            Self::CopyMany { copies } => {
                writer.u8(3);
                writer.u32(copies.len() as u32);
                for (position, kept) in copies {
                    writer.u64(position.0);
                    kept.encode(&mut writer);
                }
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
            Self::Damaged { position } => {
                writer.u8(9);
                writer.u64(position.0);
            }
            Self::Mend { position, kept } => {
                writer.u8(10);
                writer.u64(position.0);
                kept.encode(&mut writer);
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
                disk: Incarnation(reader.u64()?),
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
            3 => Self::CopyMany { copies: decode_copies(&mut reader)? },
            4 => Self::Seal { epoch: epoch(&mut reader)? },
            5 => Self::Trim { epoch: Some(epoch(&mut reader)?), before: Position::decode(&mut reader)? },
            8 => Self::Trim { epoch: None, before: Position::decode(&mut reader)? },
            6 => Self::TrimOne { epoch: epoch(&mut reader)?, position: Position::decode(&mut reader)? },
            7 => Self::Tell { stripes: decode_stripes(&mut reader)? },
            9 => Self::Damaged { position: Position::decode(&mut reader)? },
            10 => Self::Mend { position: Position::decode(&mut reader)?, kept: Kept::decode(&mut reader)? },
            tag => return Err(DecodeError::UnknownTag { what: "command of a log unit", tag: tag.into() }),
        };
        reader.end()?;
        Ok(command)
    }
}

fn decode_copies(reader: &mut Reader) -> Result<Vec<(Position, Kept)>, DecodeError> {
    const COPY_BYTES: usize = 9;
    let count = reader.count(COPY_BYTES)?;
    if count > MANY_MAX {
        return Err(DecodeError::Invalid { what: "number of copies" });
    }
    let copy = |reader: &mut Reader| Ok((Position::decode(reader)?, Kept::decode(reader)?));
    let copies = (0..count).map(|_| copy(reader)).collect::<Result<Vec<_>, DecodeError>>()?;
    let bytes: usize = copies.iter().map(|(_, kept)| kept.value_bytes()).sum();
    if count > 1 && bytes > MANY_BYTES_MAX {
        return Err(DecodeError::Invalid { what: "bytes of copies" });
    }
    Ok(copies)
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
