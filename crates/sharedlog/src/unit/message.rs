//! Messages of a unit: requests, logged commands and replies, with their encodings.

use base::codec::{DecodeError, Reader, Writer};
use base::{Duration, Incarnation};
use bytes::Bytes;

use crate::limits::{AWAIT_MAX, MANY_BYTES_MAX, MANY_MAX, UNIT_STRIPES_MAX};
use crate::{Entry, Kept, Kind, LogId, Position, PositionRun, ProjectionEpoch, Stripe};

/// A request to a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads a position. Readers ask the tail of a chain, fillers ask the head.
    Read {
        /// The epoch of the sender's projection.
        epoch: ProjectionEpoch,
        /// The position to read.
        position: Position,
    },
    /// Reads a position, waiting until it is written (long poll). The unit may park the request for up to `wait`.
    Await {
        /// The epoch of the sender's projection.
        epoch: ProjectionEpoch,
        /// The position to read.
        position: Position,
        /// Maximum wait; limited to [`AWAIT_MAX`](crate::limits::AWAIT_MAX).
        wait: Duration,
        /// Maximum bytes of the value, as in [`Request::ReadMany`].
        bytes: usize,
    },
    /// Reads several positions, at most [`MANY_MAX`](crate::limits::MANY_MAX).
    ReadMany {
        /// The epoch of the sender's projection.
        epoch: ProjectionEpoch,
        /// The positions to read.
        run: PositionRun,
        /// Maximum bytes of values in the reply. Limited to [`MANY_BYTES_MAX`](crate::limits::MANY_BYTES_MAX), unless
        /// there is only one value.
        bytes: usize,
    },
    /// Subscribes to the entries from a position on: the unit sends a [`Reply::Feed`] whenever it stores the next ones,
    /// for as long as the lease lasts. Readers ask the tail of a chain. The same request with the same return address
    /// renews the lease and the credit.
    Follow {
        /// The epoch of the sender's projection.
        epoch: ProjectionEpoch,
        /// The first position to send. Ignored by a renewal.
        from: Position,
        /// How long the subscription lasts; limited to [`FOLLOW_LEASE_MAX`](crate::limits::FOLLOW_LEASE_MAX).
        lease: Duration,
        /// Maximum bytes of entries that are sent before the subscription is renewed, not counting the last entry;
        /// limited to [`FOLLOW_CREDIT_MAX`](crate::limits::FOLLOW_CREDIT_MAX).
        credit: usize,
    },
    /// Asks to confirm that an epoch is not sealed.
    Confirm {
        /// The epoch to confirm.
        epoch: ProjectionEpoch,
    },
    /// Lists positions of a stripe that the unit does not hold.
    Holes {
        /// The epoch of the sender's projection.
        epoch: ProjectionEpoch,
        /// The stripe to examine.
        stripe: Stripe,
        /// The first position to examine.
        from: Position,
        /// The end of the positions, exclusive.
        to: Position,
    },
    /// Changes the unit's state.
    Command(EncodedCommand),
}

/// A command in a unit's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Starts a unit, empty. May be repeated while the unit is empty.
    Begin {
        /// The disk for which the unit was created. The unit starts on no other disk.
        disk: Incarnation,
        /// The log that the unit belongs to.
        log: LogId,
        /// The epoch before the projection that will include the unit. The unit starts as if sealed in it.
        epoch: ProjectionEpoch,
        /// Positions below are trimmed.
        trimmed: Position,
        /// The stripes that it will hold.
        stripes: Vec<Stripe>,
    },
    /// Writes a position, once.
    Write {
        /// The epoch of the writer's projection.
        epoch: ProjectionEpoch,
        /// The position to write.
        position: Position,
        /// The entry to write.
        entry: Entry,
    },
    /// Copies positions that a whole chain holds permanently, so it needs no epoch. Each position has its own reply.
    CopyMany {
        /// At most [`MANY_MAX`] positions with the chain's values: [`MANY_BYTES_MAX`] in all, or a single value.
        copies: Vec<(Position, Kept)>,
    },
    /// Records that the value of a position is unreadable. Accepted only from the unit's own node.
    Damaged {
        /// The damaged position.
        position: Position,
    },
    /// Restores a damaged position from another unit of the chain. It never replaces a readable value, so it needs no
    /// epoch.
    Repair {
        /// The damaged position.
        position: Position,
        /// The value held by another unit.
        kept: Kept,
    },
    /// Refuses all requests of this epoch and earlier ones from now on.
    Seal {
        /// The epoch to seal.
        epoch: ProjectionEpoch,
    },
    /// Trims all positions below one.
    Trim {
        /// The epoch of the sender's projection; `None` if a whole chain has already trimmed them, which is permanent.
        epoch: Option<ProjectionEpoch>,
        /// The first position to keep.
        before: Position,
    },
    /// Trims one position.
    TrimOne {
        /// The epoch of the sender's projection.
        epoch: ProjectionEpoch,
        /// The position to trim.
        position: Position,
    },
    /// Assigns stripes, so that the set of their positions stays compact.
    AssignStripes {
        /// The stripes to assign.
        stripes: Vec<Stripe>,
    },
}

/// A command with its encoding: its writer encodes it once for all units of a chain, and they log these bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedCommand {
    command: Command,
    bytes: Bytes,
}

impl From<Command> for EncodedCommand {
    fn from(command: Command) -> Self {
        let bytes = command.encode();
        Self { command, bytes }
    }
}

impl EncodedCommand {
    /// Decodes a command and keeps its bytes.
    ///
    /// # Errors
    /// When the bytes are not a command.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        Ok(Self { command: Command::decode(bytes.clone())?, bytes })
    }

    #[must_use]
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// Its encoding.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// The status that a unit reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Report {
    /// Requests of this epoch and earlier ones are refused.
    pub sealed: ProjectionEpoch,
    /// One more than the highest position ever written.
    pub tail: Position,
    /// Positions below are trimmed.
    pub trimmed: Position,
    /// Number of positions known to be damaged.
    pub damaged: u32,
    /// For each assigned stripe, the first position that is missing or damaged.
    pub whole: Vec<(Stripe, Position)>,
}

/// The reply of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The unit holds the entry durably.
    Written,
    /// The unit holds another entry at the position.
    Occupied {
        /// The kind of that entry.
        by: Kind,
    },
    /// The unit holds this entry.
    Value(Entry),
    /// Replies for the first requested positions, in order, each as for a single request. The sender asks again for the
    /// others. Empty only if the first value exceeds the requested size.
    Many(Vec<Self>),
    /// The next entries of a subscription, and the answer to [`Request::Follow`]. A subscription ends with another
    /// reply: [`Reply::Refused`], or [`Reply::Done`] if the follower must read the next position with an ordinary
    /// request.
    Feed {
        /// The position of the first entry.
        from: Position,
        /// Entries at consecutive positions, at most [`MANY_MAX`].
        entries: Vec<Entry>,
        /// The end of the entries if the unit holds the position there, too, and otherwise one more than the highest
        /// position that it holds. If it is higher than the end of the entries, the position there is a hole so far.
        tail: Position,
    },
    /// The position is not written at this unit.
    Unwritten,
    /// The first positions that the unit does not hold. If there are fewer than
    /// [`HOLES_MAX`](crate::limits::HOLES_MAX), there are no others.
    Holes(Vec<Position>),
    /// The position was trimmed.
    Trimmed {
        /// Every position below this was trimmed.
        mark: Position,
    },
    /// The request's epoch is sealed.
    Refused {
        /// The highest sealed epoch.
        sealed: ProjectionEpoch,
    },
    /// The unit is sealed durably.
    Sealed(Report),
    /// The unit has started durably.
    Begun(Report),
    /// The unit cannot start: it has held positions, or belongs to another log.
    NotEmpty,
    /// The unit cannot start: it was created for another disk.
    Elsewhere,
    /// The epoch is not sealed.
    Confirmed,
    /// The stripes are assigned.
    StripesAssigned(Report),
    /// The command has completed durably.
    Done,
    /// The unit does not exist or was not started.
    Unknown,
    /// The value is unreadable. Another unit of the chain may hold it.
    Damaged,
}

impl Request {
    /// How long the unit may park the request.
    #[must_use]
    pub fn wait(&self) -> Duration {
        if let Self::Await { wait, .. } = self { (*wait).min(AWAIT_MAX) } else { Duration::ZERO }
    }

    /// The positions that it reads or writes, in the order of their replies.
    #[must_use]
    pub fn positions(&self) -> Vec<Position> {
        match self {
            Self::Read { position, .. } | Self::Await { position, .. } => vec![*position],
            Self::ReadMany { run, .. } => run.first(MANY_MAX).positions().collect(),
            Self::Command(command) => match command.command() {
                Command::Write { position, .. } => vec![*position],
                Command::CopyMany { copies } => copies.iter().map(|(position, _)| *position).collect(),
                _ => Vec::new(),
            },
            Self::Confirm { .. } | Self::Holes { .. } | Self::Follow { .. } => Vec::new(),
        }
    }
}

impl Reply {
    /// The reply for each requested position, one or several.
    #[must_use]
    pub fn each(&self) -> &[Self] {
        if let Self::Many(replies) = self { replies } else { std::slice::from_ref(self) }
    }

    /// Bytes of the contained value, 0 without one.
    fn value_bytes(&self) -> usize {
        if let Self::Value(Entry::Data(data)) = self { data.batch.len() } else { 0 }
    }

    /// Combines individual replies, up to `bytes_max` bytes of values, and [`MANY_BYTES_MAX`] or a single value. Ends
    /// before the first error.
    ///
    /// # Errors
    /// When the first reply is an error.
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
    /// The encoding, as logged and sent.
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
            Self::Repair { position, kept } => {
                writer.u8(10);
                writer.u64(position.0);
                kept.encode(&mut writer);
            }
            Self::AssignStripes { stripes } => {
                writer.u8(7);
                encode_stripes(&mut writer, stripes);
            }
        }
        writer.finish()
    }

    /// Decodes a command.
    ///
    /// # Errors
    /// When the bytes are malformed or exceed a limit.
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
            7 => Self::AssignStripes { stripes: decode_stripes(&mut reader)? },
            9 => Self::Damaged { position: Position::decode(&mut reader)? },
            10 => Self::Repair { position: Position::decode(&mut reader)?, kept: Kept::decode(&mut reader)? },
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
