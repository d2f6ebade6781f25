//! The interface between a node and the state machines that it hosts: one implementation a kind, each in a crate of its
//! own. The node's registry is the only place that lists the kinds.
//!
//! A request for a cohort is one of two sorts. A *read* is answered from the applied state, by [`StateMachine::read`] at
//! the leader or by a [`View`] on any thread and replica. A *change* becomes a command in the log, by
//! [`StateMachine::propose`]: at once, or after a [`Read`] has decided what the command is. What does not fit into
//! memory is a [`Read`] that is carried out again where the disk may be waited for.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Entry, Incarnation, KeyRange, Membership, Timestamp};
use bytes::Bytes;
use store::sstable::Io;
use store::tree::Site;

use crate::checkpoint::Snapshot;
use crate::consistency::Consistency;
use crate::failure::{Failure, Outcome};
use crate::hash::LogicalHash;
use crate::key_position::KeyPosition;
use crate::ownership::Ownership;
use crate::progress::{ApplyError, Progress};
use crate::storage::{ReadError, Storage};

/// Which kind of state machine a cohort replicates: the tag of its requests between nodes and of its checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u8);

impl Kind {
    /// The catalog, which is cohort 1.
    pub const CATALOG: Self = Self(1);
    /// A range of a table.
    pub const TABLET: Self = Self(2);
    /// A unit of a shared log.
    pub const LOG_UNIT: Self = Self(3);
    /// The first of the numbers that only tests use.
    pub const FIRST_OF_TESTS: Self = Self(0xf0);
}

/// A value with a binary form.
pub trait Wire: Sized {
    /// Appends the value to `out`.
    fn encode(&self, out: &mut Writer);

    /// Reads what [`Wire::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are something else. It never panics, and allocates no more than the input holds.
    fn decode(input: &mut Reader) -> Result<Self, DecodeError>;
}

impl<T: Wire> Wire for Box<T> {
    fn encode(&self, out: &mut Writer) {
        (**self).encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        T::decode(input).map(Self::new)
    }
}

/// A lock on one key of a machine that a change holds from its proposal until it is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock<'a> {
    /// The key.
    pub key: &'a Bytes,
    /// Whether the change must wait for earlier changes of the key, and later ones for its decision: its outcome depends on what
    /// the key holds. Others pass each other.
    pub is_exclusive: bool,
}

/// What a cohort is asked.
pub trait Request: Wire + Clone + fmt::Debug + PartialEq + Eq {
    /// Whether it only reads: it may be repeated at will. Otherwise the log decides.
    fn reads(&self) -> bool;

    /// Whether it may be sent again although an earlier attempt may have been executed.
    fn is_idempotent(&self) -> bool {
        self.reads()
    }

    /// What it may show, if it reads.
    fn consistency(&self) -> Consistency {
        Consistency::Strong
    }

    /// Where in the keys of a table it begins; none if it is about no key.
    fn position(&self) -> Option<KeyPosition> {
        None
    }

    /// The key that it changes, if it changes one.
    fn lock(&self) -> Option<Lock<'_>> {
        None
    }

    /// Bytes that it adds to the storage's memory: what write pacing counts.
    fn bytes(&self) -> u64 {
        0
    }

    /// Bytes of keys, values and names that it holds, roughly: what is under way at a node is bounded by it.
    fn held_bytes(&self) -> usize {
        0
    }
}

/// A definite good answer.
pub trait Response: Wire + Clone + fmt::Debug + PartialEq + Eq {
    /// Whether it answers a read: then a refusal may take its place, and the read may be asked again.
    fn is_of_read(&self) -> bool;
}

impl<R: Response> Response for Box<R> {
    fn is_of_read(&self) -> bool {
        (**self).is_of_read()
    }
}

/// How a read begins.
#[derive(Debug)]
pub enum Reading<R, Q> {
    /// This is the answer.
    Answer(Outcome<R>),
    /// This gives the answer, and may have to wait for the disk.
    Evaluate(Q),
}

/// How a change begins.
#[derive(Debug)]
pub enum Payload<Q> {
    /// The log is to carry this command.
    Command(Bytes),
    /// This decides what the log is to carry. The request's lock is exclusive meanwhile.
    Decide(Q),
    /// Nothing: the request is refused.
    Refuse(Failure),
}

impl<R, Q> Reading<R, Q> {
    /// The same in the types of a registry.
    pub fn map<S, P>(self, response: impl Fn(R) -> S, read: impl Fn(Q) -> P) -> Reading<S, P> {
        match self {
            Self::Answer(outcome) => Reading::Answer(outcome.map(response)),
            Self::Evaluate(question) => Reading::Evaluate(read(question)),
        }
    }
}

impl<Q> Payload<Q> {
    /// The same in the types of a registry.
    pub fn map<P>(self, read: impl Fn(Q) -> P) -> Payload<P> {
        match self {
            Self::Command(command) => Payload::Command(command),
            Self::Decide(question) => Payload::Decide(read(question)),
            Self::Refuse(failure) => Payload::Refuse(failure),
        }
    }
}

/// A question to a machine's data as it was at one moment. It can be answered on any thread.
pub trait Read: Clone + fmt::Debug + Send + 'static {
    /// What the machine answers.
    type Response;

    /// The answer.
    ///
    /// # Errors
    /// When the data can't be read; [`ReadError::NotCached`] when the disk would have to be waited for, and `io` doesn't
    /// allow that.
    fn answer(&self, io: Io) -> Result<Evaluated<Self::Response>, ReadError>;
}

/// What a [`Read`] comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluated<R> {
    /// The answer to a read.
    Outcome(Outcome<R>),
    /// The command of a change.
    Decided(Verdict),
    /// The position where the request begins is another cohort's (guarantee 19).
    Elsewhere,
}

impl<R> Evaluated<R> {
    /// The same in the types of a registry.
    pub fn map<S>(self, response: impl Fn(R) -> S) -> Evaluated<S> {
        match self {
            Self::Outcome(outcome) => Evaluated::Outcome(outcome.map(response)),
            Self::Decided(verdict) => Evaluated::Decided(verdict),
            Self::Elsewhere => Evaluated::Elsewhere,
        }
    }
}

/// What was decided about a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The command that the log is to carry.
    pub command: Bytes,
    /// The refusal that it carries, if it is one: it is logged, and changes nothing.
    pub refusal: Option<Failure>,
}

/// A machine's data at one moment, for any thread to read.
pub trait View: Clone + fmt::Debug + Send + Sync + 'static {
    /// What may be asked.
    type Request;
    /// What answers it.
    type Read;

    /// How a read is answered from here; none if it can't be.
    fn read(&self, request: &Self::Request) -> Option<Self::Read>;

    /// The data as of an earlier moment.
    ///
    /// # Errors
    /// [`Failure::Invalid`] for a moment that is no longer kept, [`Failure::Unavailable`] for one that has not come yet.
    fn at(self, moment: Timestamp) -> Result<Self, Failure>;

    /// The moment that it shows.
    fn timestamp(&self) -> Timestamp;

    /// The keys that it holds, if it is a range of a table.
    fn range(&self) -> Option<&KeyRange>;

    /// Whether another view of the same replica shows the same.
    fn is_same(&self, other: &Self) -> bool;
}

/// The view of a machine that has none.
#[derive(Debug)]
pub struct NoView<Q, R>(Infallible, PhantomData<(Q, R)>);

impl<Q, R> Clone for NoView<Q, R> {
    fn clone(&self) -> Self {
        match self.0 {}
    }
}

impl<Q, R> View for NoView<Q, R>
where
    Q: fmt::Debug + Send + Sync + 'static,
    R: fmt::Debug + Send + Sync + 'static,
{
    type Request = Q;
    type Read = R;

    fn read(&self, _: &Q) -> Option<R> {
        match self.0 {}
    }

    fn at(self, _: Timestamp) -> Result<Self, Failure> {
        match self.0 {}
    }

    fn timestamp(&self) -> Timestamp {
        match self.0 {}
    }

    fn range(&self) -> Option<&KeyRange> {
        match self.0 {}
    }

    fn is_same(&self, _: &Self) -> bool {
        match self.0 {}
    }
}

/// What applying an entry came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied<R, Q, E> {
    /// The answer to the request that was proposed; none for what no client asks for (a barrier, an expiry), and where
    /// the effect says how it is answered.
    pub outcome: Option<Outcome<R>>,
    /// What the node must act on.
    pub effect: Option<Effect<Q, E>>,
}

impl<R, Q, E> Applied<R, Q, E> {
    /// Nothing that anybody waits for.
    pub const NOTHING: Self = Self { outcome: None, effect: None };

    /// An answer, and nothing for the node to act on.
    pub fn outcome(outcome: Outcome<R>) -> Self {
        Self { outcome: Some(outcome), effect: None }
    }

    /// Something for the node to act on, and no answer.
    pub fn effect(effect: Effect<Q, E>) -> Self {
        Self { outcome: None, effect: Some(effect) }
    }
}

impl<R, Q, E> Applied<R, Q, E> {
    /// The same in the types of a registry.
    pub fn map<S, P, F>(
        self,
        response: impl Fn(R) -> S,
        read: impl Fn(Q) -> P,
        event: impl Fn(E) -> F,
    ) -> Applied<S, P, F> {
        let effect = self.effect.map(|effect| match effect {
            Effect::Elsewhere => Effect::Elsewhere,
            Effect::Evaluate(question) => Effect::Evaluate(read(question)),
            Effect::RangeFounded => Effect::RangeFounded,
            Effect::RangeSplit { child, members, range } => Effect::RangeSplit { child, members, range },
            Effect::RangeDropped => Effect::RangeDropped,
            Effect::LossDeclared => Effect::LossDeclared,
            Effect::Own(own) => Effect::Own(event(own)),
        });
        Applied { outcome: self.outcome.map(|outcome| outcome.map(response)), effect }
    }
}

/// What an applied entry makes the node do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<Q, E> {
    /// Nothing was executed: the key is another cohort's by now, and the proposer is to look it up again (guarantee 19).
    Elsewhere,
    /// The answer must be read.
    Evaluate(Q),
    /// The machine was given its range: it may answer.
    RangeFounded,
    /// A part of the range was split off: its replica here is to begin ([`StateMachine::split_off`]).
    RangeSplit {
        /// The new range's cohort.
        child: CohortId,
        /// That one's members.
        members: Membership,
        /// Its keys.
        range: KeyRange,
    },
    /// The table is dropped: the data is gone, and its files may go.
    RangeDropped,
    /// The log declares that acknowledged entries may be lost (guarantee 11).
    LossDeclared,
    /// Something that only this kind has.
    Own(E),
}

/// Moments of the log's past that housekeeping counts from; none: the log has not come so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// A session that was not used since may expire.
    pub session_lifetime: Option<Timestamp>,
    /// Versions from before may go.
    pub retention: Option<Timestamp>,
}

/// What a leader proposes now and then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Housekeeping {
    /// The commands.
    pub commands: Vec<Bytes>,
    /// How many sessions they expire.
    pub sessions_expired: u64,
}

/// What applying an entry to a machine came to.
pub type AppliedBy<M> = Applied<<M as StateMachine>::Response, <M as StateMachine>::Read, <M as StateMachine>::Event>;

/// A replicated state machine.
pub trait StateMachine: fmt::Debug + Sized {
    /// Its number, for ever.
    const KIND: Kind;

    /// What it may be asked.
    type Request: Request;
    /// What it answers.
    type Response: Response;
    /// What an entry may make the node do that only this kind has.
    type Event: Clone + fmt::Debug + PartialEq + Eq;
    /// What may have to wait for the disk.
    type Read: Read<Response = Self::Response>;
    /// What other threads may read.
    type View: View<Request = Self::Request, Read = Self::Read>;
    /// The state, frozen, without the data in its storage.
    type Snapshot: Snapshot<Machine = Self>;
    /// Where its bulk data lies.
    type Storage: Storage;

    /// The machine before its first entry, with an empty storage; `disk` is that of this replica.
    fn new(cohort: CohortId, disk: Incarnation, storage: Self::Storage) -> Self;

    /// How far it has come.
    fn progress(&self) -> &Progress;

    /// Applies an entry: the direct successor of the last one applied. Deterministic.
    ///
    /// # Errors
    /// When it isn't that, its timestamp doesn't grow, or its command can't be read. The state is unchanged; the node
    /// must halt, lest its replica drift apart from the others.
    fn apply(&mut self, entry: &Entry) -> Result<AppliedBy<Self>, ApplyError>;

    /// Begins a read, at a replica that may answer it.
    fn read(&self, request: &Self::Request) -> Reading<Self::Response, Self::Read>;

    /// Begins a change, at the leader.
    fn propose(&self, request: &Self::Request) -> Payload<Self::Read>;

    /// What other threads may read now; none if this kind is not read so.
    fn view(&self) -> Option<Self::View>;

    /// The state as it is now, frozen, without the data in its storage. It costs next to nothing to take.
    fn snapshot(&self) -> Self::Snapshot;

    /// Bytes that a checkpoint of the state would take, about.
    fn snapshot_bytes(&self) -> usize;

    /// Where the bulk data lies.
    fn storage(&self) -> &Self::Storage;

    /// Where the bulk data lies, to be flushed, compacted or replaced.
    fn storage_mut(&mut self) -> &mut Self::Storage;

    /// Where the bulk data lay.
    fn into_storage(self) -> Self::Storage;

    /// Adds what the state says, and its data, to a hash: equal for states that no read at or above the watermark, no
    /// retry and no later entry can tell apart (guarantee 16).
    ///
    /// # Errors
    /// When the data can't be read.
    fn hash(&self, hash: &mut LogicalHash) -> Result<(), ReadError>;

    /// Checks what must always hold; simulation calls it after every step.
    ///
    /// # Panics
    /// When an invariant is broken.
    fn invariants(&self);

    /// What the leader of its cohort proposes now and then.
    fn housekeeping(&self, _past: Past) -> Housekeeping {
        Housekeeping::default()
    }

    /// Bytes on the disk that a newer checkpoint than that one would free at once.
    fn reclaimable_bytes(&self, _checkpoint: Option<&Self::Snapshot>) -> u64 {
        0
    }

    /// Which part of a table's keys it owns; none for a machine that is no range of a table.
    fn ownership(&self) -> Option<&Ownership> {
        None
    }

    /// The cohorts that parts of its range were split off to.
    fn children(&self) -> &[CohortId] {
        &[]
    }

    /// The command that gives a range to a machine that owns nothing yet.
    #[must_use]
    fn found(_range: &KeyRange) -> Option<Bytes> {
        None
    }

    /// The request that has the log take the drop of its table.
    #[must_use]
    fn drop_request() -> Option<Self::Request> {
        None
    }

    /// The request that has the log give up the keys from `key` on to another cohort.
    #[must_use]
    fn split_request(_key: Bytes, _child: CohortId, _members: Membership) -> Option<Self::Request> {
        None
    }

    /// The machine that was split off with the entry applied last: to be asked for before the next is applied.
    fn split_off(&mut self, _range: KeyRange, _site: Site) -> Option<Self> {
        None
    }

    /// The command with which a leader declares that acknowledged entries may be lost, where logs are in main memory.
    #[must_use]
    fn declare_loss() -> Bytes {
        Bytes::new()
    }
}
