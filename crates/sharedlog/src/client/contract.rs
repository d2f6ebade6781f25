//! Inputs and outputs of the client machine.

use base::{Duration, Monotonic};

use crate::{AskId, Data, Position, PositionRun, ProjectionEpoch, SequencerId, UnitId, sequencer, unit};

/// Chosen by the caller to identify a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A range read: many positions in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMany {
    /// The positions, at most [`ROW_MAX`](crate::limits::ROW_MAX).
    pub run: PositionRun,
    /// How unwritten positions are handled.
    pub wait: Wait,
    /// Maximum bytes of entries in the answer. The client holds or requests up to three times as many, not counting
    /// positions that are waited for individually.
    pub bytes: usize,
}

/// How a range read handles unwritten positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The answer ends there.
    No,
    /// Waits for the first position for this time; then the answer ends there. Fills nothing.
    Watch(Duration),
    /// Waits for the first position for this time, and then fills it. The answer ends at any other unwritten position.
    First(Duration),
    /// Waits for each position for this time, and then fills it. The answer ends at the log's tail.
    Each(Duration),
}

impl Wait {
    /// The time to wait, if any.
    pub(super) fn time(self) -> Option<Duration> {
        match self {
            Self::No => None,
            Self::Watch(time) | Self::First(time) | Self::Each(time) => Some(time),
        }
    }

    /// The same kind of wait with another time.
    pub(super) fn with(self, time: Duration) -> Self {
        match self {
            Self::No => Self::No,
            Self::Watch(_) => Self::Watch(time),
            Self::First(_) => Self::First(time),
            Self::Each(_) => Self::Each(time),
        }
    }
}

/// Timeouts and intervals of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// First timeout for a reply of a unit or the sequencer. Doubled for each retry.
    pub answer: Duration,
    /// First pause between a failed request and its retry. Doubled for each retry.
    pub pause: Duration,
    /// First interval between two fetches of the projection. Doubled for each retry.
    pub fetch: Duration,
    /// Pause before a read is repeated that a unit answered as unwritten although it was asked to wait.
    pub poll: Duration,
    /// Deadline of internal calls, which fill positions that were handed out to ended appends.
    pub errand: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            answer: Duration::from_millis(100),
            pause: Duration::from_millis(5),
            fetch: Duration::from_millis(20),
            poll: Duration::from_millis(2),
            errand: Duration::from_millis(2_000),
        }
    }
}

/// A component that blocks a call. The driver may start a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suspect {
    /// The sequencer does not reply.
    Sequencer,
    /// The unit does not reply, or its value is damaged.
    Unit(UnitId),
    /// Units are sealed, and there is no newer projection.
    Projection,
}

/// An effect for the driver to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a request to a unit; [`unit_answered`](crate::client::Client::unit_answered) may follow.
    AskUnit {
        /// Matches the reply to the request.
        ask: AskId,
        unit: UnitId,
        /// The request to send.
        request: unit::Request,
    },
    /// Send a request to the sequencer; [`sequencer_answered`](crate::client::Client::sequencer_answered) may follow.
    AskSequencer {
        /// Matches the reply to the request.
        ask: AskId,
        sequencer: SequencerId,
        /// The request to send.
        request: sequencer::Request,
    },
    /// Fetch the newest projection; [`projected`](crate::client::Client::projected) may follow. Delivering an older one
    /// is harmless.
    Fetch,
    /// Report a suspect to the controller.
    Suspect {
        /// The epoch in which it blocks calls.
        epoch: ProjectionEpoch,
        suspect: Suspect,
    },
    /// Call [`timer`](crate::client::Client::timer) at this time. Replaces the previous timer.
    SetTimer(Monotonic),
    /// Report the outcome of a call to its caller.
    Done {
        token: Token,
        /// The outcome of the call.
        outcome: Result<LogReply, Error>,
    },
}

/// The result of a successful call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogReply {
    /// Every unit of the chain holds the batch at this position.
    Appended(Position),
    /// The position holds this entry.
    Entry(Data),
    /// The position was filled and will never hold an entry.
    Junk,
    /// The entry was trimmed.
    Trimmed {
        /// Every position below this was trimmed.
        mark: Position,
    },
    /// The entry is lost: an operator declared all units of its chain lost.
    Lost,
    /// The position is unwritten.
    Unwritten,
    /// The entry exceeds the requested size. Never for a request that allows the largest batch.
    Larger,
    /// Answers for the first positions, in order, each as from a read of that position. Empty if the first one is
    /// unwritten.
    Range(Vec<Self>),
    /// Every append that completed before the call is below this position.
    Tail(Position),
    /// The call has completed.
    Done,
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The deadline passed. Nothing was appended; a trim or a fill may have happened.
    #[error("timed out")]
    OutOfTime,
    /// The append may have happened: units did not reply in time, or its position was trimmed or lost.
    #[error("outcome unknown: the batch may be in the log at position {position}")]
    Unknown {
        /// The position at which this attempt may have appended the batch, or still may.
        position: Position,
    },
    /// The value is unreadable on every unit that holds it, or cannot be determined.
    #[error("the entry at position {position} is damaged")]
    Damaged { position: Position },
    /// The position has not been handed out yet.
    #[error("position out of range: the log ends at position {tail}")]
    BeyondTail {
        /// The tail of the log: the first position that has not been handed out.
        tail: Position,
    },
    /// Two units of one chain hold different entries, which violates an invariant.
    #[error("units of one chain hold different entries at position {position}")]
    Conflict { position: Position },
}
