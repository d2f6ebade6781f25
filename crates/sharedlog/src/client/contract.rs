//! What goes into the machine and what comes out of it.

use base::{Duration, Monotonic};

use crate::{AskId, Data, Position, ProjectionEpoch, Run, SequencerId, UnitId, sequencer, unit};

/// Names a call to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Many positions that are to be read at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMany {
    /// They, [`ROW_MAX`](crate::limits::ROW_MAX) at most.
    pub run: Run,
    /// What becomes of those where nothing lies yet.
    pub wait: Wait,
    /// Bytes of entries in the answer, at most. What is read for it comes to no more than three times as many, but for
    /// what is waited for at each position.
    pub bytes: usize,
}

/// What becomes of positions in a row where nothing lies yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The row ends there.
    No,
    /// The first is looked at again until so much time has passed, and then the row ends there, too: nothing is filled.
    Watch(Duration),
    /// The first is looked at again until so much time has passed, and then filled; at any other the row ends.
    First(Duration),
    /// Each of them is looked at again until so much time has passed, and then filled. The row ends at the log's tail.
    Each(Duration),
}

impl Wait {
    /// How long, if at all.
    pub(super) fn time(self) -> Option<Duration> {
        match self {
            Self::No => None,
            Self::Watch(time) | Self::First(time) | Self::Each(time) => Some(time),
        }
    }

    /// The same for another time.
    pub(super) fn with(self, time: Duration) -> Self {
        match self {
            Self::No => Self::No,
            Self::Watch(_) => Self::Watch(time),
            Self::First(_) => Self::First(time),
            Self::Each(_) => Self::Each(time),
        }
    }
}

/// How long a client waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// For the first answer of a unit or of the sequencer; twice as long each time.
    pub answer: Duration,
    /// Between an asking that failed and the next.
    pub pause: Duration,
    /// For a projection, before it is fetched again.
    pub fetch: Duration,
    /// After a unit has said that nothing lies there that was to answer when something does, before it is asked again.
    pub poll: Duration,
    /// For what it does without being asked: filling positions that it was given and doesn't need.
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

/// What keeps a call from going on. Whoever drives the machine may have a recovery begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suspect {
    /// The sequencer doesn't answer.
    Sequencer,
    /// A unit doesn't answer, or has lost what it held.
    Unit(UnitId),
    /// Units are sealed, and there is no newer projection.
    Projection,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a unit; [`unit_answered`](crate::client::Client::unit_answered) may follow.
    AskUnit {
        /// Names the answer.
        ask: AskId,
        /// The unit.
        unit: UnitId,
        /// What it is asked.
        request: unit::Request,
    },
    /// Ask the sequencer; [`sequencer_answered`](crate::client::Client::sequencer_answered) may follow.
    AskSequencer {
        /// Names the answer.
        ask: AskId,
        /// The process.
        sequencer: SequencerId,
        /// What it is asked.
        request: sequencer::Request,
    },
    /// Fetch the newest projection; [`projected`](crate::client::Client::projected) may follow. An older one does no
    /// harm.
    Fetch,
    /// Somebody keeps calls from going on.
    Suspect {
        /// In the projection of this epoch.
        epoch: ProjectionEpoch,
        /// Who.
        suspect: Suspect,
    },
    /// Call [`timer`](crate::client::Client::timer) at this time; it takes the place of the last one.
    SetTimer(Monotonic),
    /// Tell the caller.
    Done {
        /// The call.
        token: Token,
        /// What it came to.
        outcome: Result<Answer, Error>,
    },
}

/// What a call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The batch lies there, on every unit of the chain.
    Appended(Position),
    /// This lies there.
    Entry(Data),
    /// Nothing lies there, and nothing ever will.
    Junk,
    /// What lay there was given up.
    Trimmed {
        /// All below this was.
        mark: Position,
    },
    /// What lay there is lost, by an operator's word: its chain was given up.
    Lost,
    /// Nothing lies there yet.
    Unwritten,
    /// More bytes lie there than were asked for: of whom asked for a batch of the largest, never.
    Larger,
    /// What lies at the first positions that were asked for, in their order; at none of them, if nothing lies at the
    /// first yet. Each is what a read of that position comes to.
    Row(Vec<Self>),
    /// Every append that ended before lies below.
    Tail(Position),
    /// It is done.
    Done,
}

/// Why a call came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The deadline came first. Nothing was appended; what was to be trimmed or filled may be.
    #[error("there was no answer in time")]
    OutOfTime,
    /// It is not known whether the batch was appended: units did not answer in time, or its position was trimmed or lost.
    #[error("the batch may lie in the log, at position {position}")]
    Unknown {
        /// Its position, if this attempt appended it, or still does.
        position: Position,
    },
    /// What lies there can't be read on any unit that has it, or it isn't known what it is.
    #[error("what lies at position {position} is damaged")]
    Damaged {
        /// The position.
        position: Position,
    },
    /// There is no such position yet.
    #[error("the log ends at position {tail}")]
    BeyondTail {
        /// The first position that nothing was written at.
        tail: Position,
    },
    /// Two units of one chain hold different entries there: a promise was broken.
    #[error("the units disagree about position {position}")]
    Conflict {
        /// The position.
        position: Position,
    },
}
