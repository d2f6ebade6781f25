//! Messages of a unit: requests, logged commands and replies, with their encodings.

use base::codec::{AtMost, DecodeError, Present, Reader, Wire, WireAs, Writer};
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
    Damaged { position: Position },
    /// Restores a damaged position from another unit of the chain. It never replaces a readable value, so it needs no
    /// epoch.
    Repair {
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

base::wire! {
    enum Command, "command of a log unit" {
        1 => Begin { disk, log, epoch, trimmed, stripes as STRIPES },
        2 => Write { epoch, position, entry },
        3 => CopyMany { copies as Copies },
        4 => Seal { epoch },
        8 => Trim { epoch = None, before },
        5 => Trim { epoch as Present, before },
        6 => TrimOne { epoch, position },
        7 => AssignStripes { stripes as STRIPES },
        9 => Damaged { position },
        10 => Repair { position, kept },
    }
}

const STRIPES: AtMost = AtMost(UNIT_STRIPES_MAX, "number of stripes");

impl Command {
    /// The encoding, as logged and sent.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        self.to_bytes()
    }

    /// Decodes a command.
    ///
    /// # Errors
    /// When the bytes are malformed or exceed a limit.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        Self::from_bytes(bytes)
    }
}

/// The bytes of the command, after their length.
impl Wire for EncodedCommand {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Writer) {
        self.bytes.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Self::decode(input.bytes()?)
    }
}

/// Copies within the limits of a command.
struct Copies;

impl WireAs<Vec<(Position, Kept)>> for Copies {
    const BYTES_MIN: usize = 4;

    fn encode(&self, copies: &Vec<(Position, Kept)>, out: &mut Writer) {
        copies.encode(out);
    }

    fn decode(&self, input: &mut Reader) -> Result<Vec<(Position, Kept)>, DecodeError> {
        let copies: Vec<(Position, Kept)> = AtMost(MANY_MAX, "number of copies").decode(input)?;
        let bytes: usize = copies.iter().map(|(_, kept)| kept.value_bytes()).sum();
        if copies.len() > 1 && bytes > MANY_BYTES_MAX {
            return Err(DecodeError::Invalid { what: "bytes of copies" });
        }
        Ok(copies)
    }
}
