//! The interface between a node and the state machines that it hosts. Each kind is implemented in a crate of its own,
//! and only the node's registry lists the kinds.
//!
//! A request to a cohort is a read or a change. A *read* is answered from the applied state, by [`StateMachine::read`]
//! at the leader or by a [`View`] on any thread and replica. A *change* becomes a command in the log, by
//! [`StateMachine::propose`]: immediately, or after a [`Read`] has determined the command. A [`Read`] that needs data
//! on disk is evaluated again on a thread that may block.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;

use base::{CohortId, Duration, Entry, Incarnation, KeyRange, Membership, Timestamp};
use bytes::Bytes;
use store::sstable::Io;
use store::tree::Site;

use crate::checkpoint::Snapshot;
use crate::consistency::Consistency;
use crate::failure::{Failure, Outcome};
use crate::hash::LogicalHash;
use crate::key_position::KeyPosition;
use crate::locks::{LockOwner, Locks};
use crate::ownership::Ownership;
use crate::progress::{ApplyError, Progress};
use crate::storage::{ReadError, Storage};

pub use base::codec::Wire;

/// The kind of state machine that a cohort replicates: the tag of its requests between nodes and of its checkpoints.
/// Numbers are permanent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u8);

base::wire! { newtype Kind }

/// The properties of a kind that the catalog must know. The catalog knows kinds by their numbers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindProperties {
    /// Whether its ranges can be split: [`StateMachine::split_request`] is implemented.
    pub can_split: bool,
}

impl KindProperties {
    const NONE: Self = Self { can_split: false };
}

impl Kind {
    /// The properties of a kind. All catalogs that apply an entry, now or in a replay, must decide alike. So a line never
    /// changes, and a new one needs a new version of the protocol between nodes: nodes without the line then do not
    /// apply entries that depend on it.
    const fn listed(self) -> Option<KindProperties> {
        match self.0 {
            // The catalog.
            1 => Some(KindProperties::NONE),
            // A range of a table with rows.
            2 => Some(KindProperties { can_split: true }),
            // A unit of a shared log.
            3 => Some(KindProperties::NONE),
            // A stripe of a virtual disk.
            5 => Some(KindProperties::NONE),
            // Reserved for tests.
            0xf0..=0xfd => Some(KindProperties::NONE),
            _ => None,
        }
    }

    /// Whether the number is assigned. The registry of a node checks it when it is compiled.
    #[must_use]
    pub const fn is_listed(self) -> bool {
        self.listed().is_some()
    }

    /// Its properties. A kind without a number has none.
    #[must_use]
    pub const fn properties(self) -> KindProperties {
        match self.listed() {
            Some(properties) => properties,
            None => KindProperties::NONE,
        }
    }
}

/// A request to a cohort.
pub trait Request: Wire + Clone + fmt::Debug + PartialEq + Eq {
    /// Checks its format and limits. Every endpoint does so before it submits the request.
    ///
    /// # Errors
    /// [`Failure::Invalid`] with the reason.
    fn validate(&self) -> Result<(), Failure>;

    /// Whether it is a read, which may be repeated. Otherwise it is a change, which goes through the log.
    fn reads(&self) -> bool;

    /// Whether it may be sent again although an earlier attempt may have been executed.
    fn is_idempotent(&self) -> bool {
        self.reads()
    }

    /// The consistency level, if it is a read.
    fn consistency(&self) -> Consistency {
        Consistency::Strong
    }

    /// The position in a table's keys at which it begins; none if it is not about a key.
    fn position(&self) -> Option<KeyPosition> {
        None
    }

    /// The keys that it locks, if it is a change.
    fn locks(&self) -> Locks {
        Locks::NONE
    }

    /// The transaction that it belongs to.
    fn owner(&self) -> Option<LockOwner> {
        None
    }

    /// Whether it opens a client's session.
    fn opens_session(&self) -> bool {
        false
    }

    /// Whether a table that is being dropped still answers it.
    fn is_for_remnant(&self) -> bool {
        false
    }

    /// The transaction that gives up its read locks with this request. The leader does that; the request is a read for
    /// everything else, and [`StateMachine::read`] answers it at once.
    fn unlocks(&self) -> Option<LockOwner> {
        None
    }

    /// The hold that it makes, renews or releases. The leader records that, and then answers the request as a strong read.
    fn hold(&self) -> Option<Hold> {
        None
    }

    /// The time within which it must be sent to its leader, if there is one: its client may have gone after that, so a node
    /// that held it longer answers that it is unavailable. The client repeats it.
    fn start_within(&self) -> Option<Duration> {
        None
    }

    /// Whether it needs a clock with a bound on its error.
    fn needs_clock(&self) -> bool {
        false
    }

    /// The least timestamp of its entry, if it is a change.
    fn floor(&self) -> Timestamp {
        Timestamp(0)
    }

    /// Bytes that it adds to the storage's memory. A change that adds none is neither delayed by write pacing nor
    /// refused on a full disk.
    fn bytes(&self) -> u64 {
        0
    }

    /// Approximate bytes of its keys, values and names, for the memory limit on requests in progress.
    fn held_bytes(&self) -> usize {
        0
    }
}

pub trait Response: Wire + Clone + fmt::Debug + PartialEq + Eq {
    /// Whether it answers a read. An error may replace such a response, because the read can be repeated.
    fn is_of_read(&self) -> bool;

    /// The result of a verification of blocks, if it is one.
    fn checked(&self) -> Option<Checked<'_>> {
        None
    }

    /// The response to a change that needs a clock ([`Request::needs_clock`]): with the uncertainty of the leader's clock,
    /// and how long the entry waited for its timestamp to pass, beyond the time that its replication took.
    #[must_use]
    fn committed(self, _uncertainty: Duration, _waited: Duration) -> Self {
        self
    }
}

impl<R: Response> Response for Box<R> {
    fn is_of_read(&self) -> bool {
        (**self).is_of_read()
    }

    fn checked(&self) -> Option<Checked<'_>> {
        (**self).checked()
    }

    fn committed(self, uncertainty: Duration, waited: Duration) -> Self {
        Self::new((*self).committed(uncertainty, waited))
    }
}

/// Blocks of a replica's data that were verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked<'a> {
    /// Those that are damaged.
    pub damaged: &'a [u64],
    /// The block to continue from; none at the end of the data.
    pub next: Option<u64>,
}

/// The first step of a read.
#[derive(Debug)]
pub enum ReadStep<R, Q> {
    Answer(Outcome<R>),
    /// A query that gives the outcome and may have to wait for the disk.
    Evaluate(Q),
}

/// The first step of a change.
#[derive(Debug)]
pub enum Payload<Q> {
    Command(Bytes),
    /// Evaluate this query to determine the command. The request holds its locks meanwhile.
    Decide(Q),
    /// Reject the request without a proposal.
    Refuse(Failure),
}

impl<R, Q> ReadStep<R, Q> {
    /// Converts to the types of a registry.
    pub fn map<S, P>(self, response: impl Fn(R) -> S, read: impl Fn(Q) -> P) -> ReadStep<S, P> {
        match self {
            Self::Answer(outcome) => ReadStep::Answer(outcome.map(response)),
            Self::Evaluate(question) => ReadStep::Evaluate(read(question)),
        }
    }
}

impl<Q> Payload<Q> {
    /// Converts to the types of a registry.
    pub fn map<P>(self, read: impl Fn(Q) -> P) -> Payload<P> {
        match self {
            Self::Command(command) => Payload::Command(command),
            Self::Decide(question) => Payload::Decide(read(question)),
            Self::Refuse(failure) => Payload::Refuse(failure),
        }
    }
}

/// A query on a machine's data as of one moment. Any thread can evaluate it.
pub trait Read: Clone + fmt::Debug + Send + 'static {
    /// The machine's response type.
    type Response;

    /// Evaluates the query.
    ///
    /// # Errors
    /// The data cannot be read; [`ReadError::NotCached`] if that would block on the disk and `io` does not allow it.
    fn answer(&self, io: Io) -> Result<Evaluated<Self::Response>, ReadError>;
}

/// The result of a [`Read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluated<R> {
    /// The outcome of a read.
    Outcome(Outcome<R>),
    /// The command of a change.
    Decided(Decision),
    /// Another cohort owns the position where the request begins (guarantee 19).
    Elsewhere,
    /// The outcome depends on prepared transactions: the request must be tried again once they are resolved.
    Unresolved(Awaited),
}

/// The prepared transactions that a read waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The timestamp of the state that was read.
    pub at: Timestamp,
    /// The timestamp of the first of the prepares, not above that of the state.
    pub first: Timestamp,
}

impl<R> Evaluated<R> {
    /// Converts to the types of a registry.
    pub fn map<S>(self, response: impl Fn(R) -> S) -> Evaluated<S> {
        match self {
            Self::Outcome(outcome) => Evaluated::Outcome(outcome.map(response)),
            Self::Decided(verdict) => Evaluated::Decided(verdict),
            Self::Elsewhere => Evaluated::Elsewhere,
            Self::Unresolved(awaited) => Evaluated::Unresolved(awaited),
        }
    }
}

/// The decision about a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The command to propose.
    pub command: Bytes,
    /// The failure that the command carries, if any: it is logged for retries, and changes nothing.
    pub refusal: Option<Failure>,
    /// Whether the locks stay after the entry is applied, until another entry releases them ([`Effect::Released`]).
    pub keeps_locks: bool,
}

/// A machine's data as of one moment, readable by any thread.
pub trait View: Clone + fmt::Debug + Send + Sync + 'static {
    /// The machine's request type.
    type Request;
    type Read;

    /// The query for a request; none if the view cannot answer it.
    fn read(&self, request: &Self::Request) -> Option<Self::Read>;

    /// The data as of an earlier moment.
    ///
    /// # Errors
    /// [`Failure::Precondition`] if that moment is no longer kept, [`Failure::Unavailable`] if it is in the future.
    fn at(self, moment: Timestamp) -> Result<Self, Failure>;

    /// The moment of the view.
    fn timestamp(&self) -> Timestamp;

    /// The keys it contains, if the machine is a range of a table.
    fn range(&self) -> Option<&KeyRange>;

    /// Whether no transaction is prepared in it.
    fn is_settled(&self) -> bool {
        true
    }

    /// Whether another view of the same replica has the same content.
    fn is_same(&self, other: &Self) -> bool;
}

/// The view type of a machine without views.
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

/// The result of applying an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied<R, E> {
    /// The outcome of the proposed request. None for entries without a client (a barrier, an expiry), and if the effect
    /// determines the outcome later.
    pub outcome: Option<Outcome<R>>,
    /// The effect that the node must act on.
    pub effect: Option<Effect<E>>,
}

impl<R, E> Applied<R, E> {
    /// No outcome and no effect.
    pub const NOTHING: Self = Self { outcome: None, effect: None };

    /// An outcome without an effect.
    pub fn outcome(outcome: Outcome<R>) -> Self {
        Self { outcome: Some(outcome), effect: None }
    }

    /// An effect without an outcome.
    pub fn effect(effect: Effect<E>) -> Self {
        Self { outcome: None, effect: Some(effect) }
    }
}

impl<R, E> Applied<R, E> {
    /// Converts to the types of a registry.
    pub fn map<S, F>(self, response: impl Fn(R) -> S, event: impl Fn(E) -> F) -> Applied<S, F> {
        let effect = self.effect.map(|effect| match effect {
            Effect::Elsewhere => Effect::Elsewhere,
            Effect::RangeFounded => Effect::RangeFounded,
            Effect::RangeSplit { child, members, range } => Effect::RangeSplit { child, members, range },
            Effect::RangeDropped => Effect::RangeDropped,
            Effect::LossDeclared => Effect::LossDeclared,
            Effect::Locked(locks) => Effect::Locked(locks),
            Effect::Released(locks) => Effect::Released(locks),
            Effect::Own(own) => Effect::Own(event(own)),
        });
        Applied { outcome: self.outcome.map(|outcome| outcome.map(response)), effect }
    }
}

/// The effect of an applied entry on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<E> {
    /// Nothing was executed: another cohort owns the key by now, and the proposer must look it up again (guarantee 19).
    Elsewhere,
    /// The machine was assigned its range: it can serve requests.
    RangeFounded,
    /// A part of the range was split off: the node starts a replica of it ([`StateMachine::split_off`]).
    RangeSplit {
        /// The new range's cohort.
        child: CohortId,
        /// The members of the new range's cohort.
        members: Membership,
        /// The keys of the new range.
        range: KeyRange,
    },
    /// The table was dropped: the data is gone, and its files may be deleted.
    RangeDropped,
    /// The log declares that acknowledged entries may be lost (guarantee 11).
    LossDeclared,
    /// The state holds these locks from here on.
    Locked(Locks),
    /// The state does not hold these locks any more.
    Released(Locks),
    /// An effect specific to this kind.
    Own(E),
}

/// Keeps the versions that a reader at a timestamp needs, like a protected timestamp of CockroachDB: while a leader knows
/// of the hold, it raises no watermark above the timestamp (guarantee 16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    /// A random number that the reader has chosen.
    pub owner: u64,
    /// The timestamp that it reads at.
    pub timestamp: Timestamp,
    pub release: bool,
}

/// Log timestamps from which housekeeping computes its deadlines; none while the log is younger than the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// Sessions that were last used before this may expire.
    pub session_lifetime: Option<Timestamp>,
    /// Versions visible only before this may be dropped.
    pub retention: Option<Timestamp>,
}

/// Commands that a leader proposes periodically.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Housekeeping {
    pub commands: Vec<Bytes>,
    /// The number of sessions that the commands expire.
    pub sessions_expired: u64,
}

/// The result of applying an entry to a machine of type `M`.
pub type AppliedBy<M> = Applied<<M as StateMachine>::Response, <M as StateMachine>::Event>;

/// A replicated state machine.
pub trait StateMachine: fmt::Debug + Sized {
    /// Its kind; never changes. [`Kind::properties`] must match the implementation.
    const KIND: Kind;

    type Request: Request;
    type Response: Response;
    /// Effects specific to this kind.
    type Event: Clone + fmt::Debug + PartialEq + Eq;
    /// Queries that may have to wait for the disk.
    type Read: Read<Response = Self::Response>;
    /// Views for other threads.
    type View: View<Request = Self::Request, Read = Self::Read>;
    /// Snapshots of the state, without the data in the storage.
    type Snapshot: Snapshot<Machine = Self>;
    /// The storage of the bulk data.
    type Storage: Storage;

    /// The machine before its first entry, with an empty storage. `disk` is the incarnation of this replica.
    fn new(cohort: CohortId, disk: Incarnation, storage: Self::Storage) -> Self;

    /// The log position of the state.
    fn progress(&self) -> &Progress;

    /// Applies an entry: the direct successor of the last one applied. Deterministic.
    ///
    /// # Errors
    /// The entry is not the successor, its timestamp does not increase, or its command cannot be decoded. The state is
    /// unchanged; the node must halt, because its replica would diverge.
    fn apply(&mut self, entry: &Entry) -> Result<AppliedBy<Self>, ApplyError>;

    /// Begins a read, at a replica that may answer it.
    fn read(&self, request: &Self::Request) -> ReadStep<Self::Response, Self::Read>;

    /// Begins a change, at the leader.
    fn propose(&self, request: &Self::Request) -> Payload<Self::Read>;

    /// A view of the current state for other threads; none if this kind has no views.
    fn view(&self) -> Option<Self::View>;

    /// A snapshot of the current state, without the data in the storage. Cheap: it copies references.
    fn snapshot(&self) -> Self::Snapshot;

    /// Approximate bytes of a checkpoint of the state.
    fn snapshot_bytes(&self) -> usize;

    /// The storage of the bulk data.
    fn storage(&self) -> &Self::Storage;

    /// The storage, to be flushed, compacted or replaced.
    fn storage_mut(&mut self) -> &mut Self::Storage;

    /// Returns the storage, and drops the machine.
    fn into_storage(self) -> Self::Storage;

    /// Adds the logical content of the state and its data to a hash. Two states have equal hashes if no read at or
    /// above the watermark, no retry and no later entry can distinguish them (guarantee 16).
    ///
    /// # Errors
    /// The data cannot be read.
    fn hash(&self, hash: &mut LogicalHash) -> Result<(), ReadError>;

    /// Checks the invariants. The simulator calls it after every step.
    ///
    /// # Panics
    /// If an invariant is broken.
    fn invariants(&self);

    /// The commands that the cohort's leader proposes periodically.
    fn housekeeping(&self, _past: Past) -> Housekeeping {
        Housekeeping::default()
    }

    /// Disk bytes that a new checkpoint would free, compared to the given one.
    fn reclaimable_bytes(&self, _checkpoint: Option<&Self::Snapshot>) -> u64 {
        0
    }

    /// The keys it owns; none for a machine that is not a range of a table.
    fn ownership(&self) -> Option<&Ownership> {
        None
    }

    /// The clients' sessions that are open in its range, at most [`base::limits::SESSIONS_MAX`].
    fn sessions_open(&self) -> usize {
        0
    }

    /// Whether the state holds the locks of a request already, because an earlier one had the same effect.
    fn holds_locks_of(&self, _request: &Self::Request) -> bool {
        false
    }

    /// The locks that the state holds, each as of its own [`Effect::Locked`].
    fn held_locks(&self) -> Vec<Locks> {
        Vec::new()
    }

    /// The cohorts that were split off from its range.
    fn children(&self) -> &[CohortId] {
        &[]
    }

    /// The command that assigns a range to a machine that owns nothing yet.
    #[must_use]
    fn assign_range(_range: &KeyRange) -> Option<Bytes> {
        None
    }

    /// The read that verifies the blocks of this replica from one on. None if blocks of this kind cannot be mended.
    fn verify(&self, _first: u64) -> Option<Self::Request> {
        None
    }

    /// The read of a block of data at any other replica, if this one has damaged it ([`ReadError::DamagedBlock`]). None if
    /// blocks of this kind cannot be mended.
    fn reread(&self, _block: u64) -> Option<Self::Request> {
        None
    }

    /// The change that mends a block on all replicas, with what another replica has returned for it. None if nothing has to
    /// be mended.
    fn heal(&self, _block: u64, _found: Self::Response) -> Option<Self::Request> {
        None
    }

    /// The request that commits the drop of its table to its log.
    #[must_use]
    fn drop_request() -> Option<Self::Request> {
        None
    }

    /// The request that commits a split to its log: the keys from `key` on go to another cohort.
    #[must_use]
    fn split_request(_key: Bytes, _child: CohortId, _members: Membership) -> Option<Self::Request> {
        None
    }

    /// The machine that the last applied entry split off. Must be called before the next entry is applied.
    fn split_off(&mut self, _range: KeyRange, _site: Site) -> Option<Self> {
        None
    }

    /// The command with which a leader declares that acknowledged entries may be lost, for logs in main memory.
    #[must_use]
    fn declare_loss() -> Bytes {
        Bytes::new()
    }
}
