//! The kinds of state machine that a node hosts: the one place that lists them.
//!
//! Each kind is a separate crate behind [`StateMachine`]. From one list, `kinds!` generates closed enums and the macros
//! `dispatch!` and `by_kind!`, so that requests, responses and reads are dispatched statically by `match` instead of
//! through trait objects. A new kind needs its number in [`Kind`], one line in the list, and no other change in this crate.

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Duration, Entry, Incarnation, Interval, KeyRange, Lsn, Membership, Timestamp};
use bytes::Bytes;
use catalog::{Catalog, CatalogRequest, CatalogResponse};
use sharedlog::log_unit::LogUnit;
use sharedlog::request::LogResponse;
use state_machine::interface::{
    Checked, Evaluated, Hold, Housekeeping, Kind, Past, Payload, Read as _, ReadStep, Request as _, Response as _,
    StateMachine, View as _, Wire,
};
use state_machine::storage::{self, Pressure, Storage};
use state_machine::{
    ApplyError, AsOf, Consistency, Failure, KeyOwner, KeyPosition, LockOwner, Locks, LogicalHash, Ownership, Progress,
    ReadError,
};
use store::Bulk;
use store::sstable::Io;
use store::tree::{Site, Tablespace};
use streams::stripe::Stripe;
use streams::stripe::request::StripeRequest;
use tablets::{TableRequest, TableResponse, Tablet};

use crate::request::Status;

/// Defines the enums, with a variant for each kind, and the macros that dispatch on it. `$d` is a dollar sign, for the
/// variables of these macros.
macro_rules! kinds {
    ($d:tt $($(#[doc = $doc:literal])* $(#[cfg $cfg:tt])* $name:ident($machine:ty), $storage:ident;)*) => {
        /// Runs an expression on the value in any variant of an enum: of its machine type `$of_kind`, if given. Further
        /// arms match variants that belong to no kind.
        macro_rules! dispatch {
            ($d of:ident, $d value:expr, $d held:pat => $d body:expr) => {
                match $d value {
                    $($(#[cfg $cfg])* $d of::$name($d held) => $d body,)*
                }
            };
            ($d of:ident, $d value:expr, $d of_kind:ident, $d held:pat => $d body:expr
                $d(, $d other:pat => $d otherwise:expr)*) => {
                match $d value {
                    $($(#[cfg $cfg])* $d of::$name($d held) => {
                        type $d of_kind = $machine;
                        $d body
                    })*
                    $d($d other => $d otherwise,)*
                }
            };
        }

        /// Runs an expression for the machine type of a kind.
        macro_rules! by_kind {
            ($d kind:expr, $d of_kind:ident => $d body:expr, $d unknown:pat => $d otherwise:expr) => {
                match $d kind {
                    $($(#[cfg $cfg])* <$machine as StateMachine>::KIND => {
                        type $d of_kind = $machine;
                        $d body
                    })*
                    $d unknown => $d otherwise,
                }
            };
        }

        $(
            $(#[cfg $cfg])*
            const _: () = assert!(<$machine as StateMachine>::KIND.is_listed(), "the kind has no number in state_machine");
        )*

        #[cfg(test)]
        const KINDS: &[Kind] = &[$($(#[cfg $cfg])* <$machine as StateMachine>::KIND,)*];

        /// The state machine of a cohort.
        #[derive(Debug)]
        pub enum AnyMachine {
            $($(#[doc = $doc])* $(#[cfg $cfg])* $name(Box<$machine>),)*
        }

        /// A request to a cohort's state machine.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Ask {
            $($(#[doc = $doc])* $(#[cfg $cfg])* $name(<$machine as StateMachine>::Request),)*
        }

        /// A successful and definite result, from a state machine or another component of the node.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Response {
            $($(#[doc = $doc])* $(#[cfg $cfg])* $name(<$machine as StateMachine>::Response),)*
            /// The reply of a shared log, or of the catalog about one.
            Log(LogResponse),
            Status(Box<Status>),
            /// The interval that contains true time.
            Clock(Interval),
            /// The cohort's membership matches the requested plan.
            PlanDone,
            /// A result from a replica's own state, with the identity of that state.
            Dated {
                response: Box<Self>,
                as_of: Box<AsOf>,
            },
        }

        /// An event of one kind of state machine that the node handles.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum KindEvent {
            $($(#[doc = $doc])* $(#[cfg $cfg])* $name(<$machine as StateMachine>::Event),)*
        }

        /// A query of a machine's data that may have to wait for the disk.
        #[derive(Clone, Debug)]
        pub enum Read {
            $($(#[doc = $doc])* $(#[cfg $cfg])* $name(<$machine as StateMachine>::Read),)*
        }

        /// The part of a replica's state that other threads may read.
        #[derive(Clone, Debug)]
        pub enum View {
            $($(#[doc = $doc])* $(#[cfg $cfg])* $name(<$machine as StateMachine>::View),)*
        }

        /// A frozen snapshot of a machine's state without its bulk data.
        #[derive(Clone, Debug)]
        pub enum Snapshot {
            $($(#[doc = $doc])* $(#[cfg $cfg])* $name(<$machine as StateMachine>::Snapshot),)*
        }

        #[derive(Clone, Debug)]
        enum Parts {
            $($(#[doc = $doc])* $(#[cfg $cfg])* $name(<<$machine as StateMachine>::Snapshot as state_machine::Snapshot>::Loader),)*
        }

        $(
            $(#[cfg $cfg])*
            impl Hosted for $machine {
                fn machine(machine: Self) -> AnyMachine {
                    AnyMachine::$name(Box::new(machine))
                }

                fn ask(request: Self::Request) -> Ask {
                    Ask::$name(request)
                }

                fn request(ask: &Ask) -> Option<&Self::Request> {
                    if let Ask::$name(request) = ask { Some(request) } else { None }
                }

                fn response(response: Self::Response) -> Response {
                    Response::$name(response).flat()
                }

                fn of_response(response: Response) -> Option<Self::Response> {
                    match response {
                        Response::$name(response) => Some(response),
                        Response::Dated { response, .. } => Self::of_response(*response),
                        _ => None,
                    }
                }

                fn event(event: Self::Event) -> KindEvent {
                    KindEvent::$name(event)
                }

                fn question(read: Self::Read) -> Read {
                    Read::$name(read)
                }

                fn shown(view: Self::View) -> View {
                    View::$name(view)
                }

                fn viewed(view: &View) -> Option<&Self::View> {
                    if let View::$name(view) = view { Some(view) } else { None }
                }

                fn snapshot_of(snapshot: Self::Snapshot) -> Snapshot {
                    Snapshot::$name(snapshot)
                }

                fn frozen(snapshot: &Snapshot) -> Option<&Self::Snapshot> {
                    if let Snapshot::$name(snapshot) = snapshot { Some(snapshot) } else { None }
                }

                fn parts(parts: <Self::Snapshot as state_machine::Snapshot>::Loader) -> Parts {
                    Parts::$name(parts)
                }

                fn open_storage(found: Option<Bulk>, site: Site) -> Option<Box<dyn Storage>> {
                    $storage(found, site)
                }
            }
        )*
    };
}

// A line for each kind: the name of its variants, its machine, and its storage.
kinds! { $
    /// The directory of tables, logs and nodes: cohort 1.
    Catalog(Catalog), in_checkpoint;
    /// The rows of a range of a table.
    Tablet(Tablet), in_tree;
    /// Positions of a shared log.
    Unit(LogUnit), in_tree;
    /// A stripe of a virtual disk.
    Stripe(Stripe), in_place;
    /// A counter: a minimal machine for tests of this interface.
    #[cfg(feature = "counter")]
    Counter(counter::Counter), in_checkpoint;
}

mod loader;
mod response;
mod snapshot;
mod storages;
mod two_phase;
mod view;

pub use loader::Loader;
pub(crate) use storages::storage_found;
use storages::{in_checkpoint, in_place, in_tree};
pub use two_phase::TransactionRequest;
pub(crate) use two_phase::{Call, Destination, ReplyTag, TwoPhase, TwoPhaseAction, tablet_outcome};

/// Conversions between one kind's types and the enums.
trait Hosted: StateMachine {
    fn machine(machine: Self) -> AnyMachine;
    fn ask(request: Self::Request) -> Ask;
    fn request(ask: &Ask) -> Option<&Self::Request>;
    fn response(response: Self::Response) -> Response;
    fn of_response(response: Response) -> Option<Self::Response>;
    fn event(event: Self::Event) -> KindEvent;
    fn question(read: Self::Read) -> Read;
    fn shown(view: Self::View) -> View;
    fn viewed(view: &View) -> Option<&Self::View>;
    fn snapshot_of(snapshot: Self::Snapshot) -> Snapshot;
    fn frozen(snapshot: &Snapshot) -> Option<&Self::Snapshot>;
    fn parts(parts: <Self::Snapshot as state_machine::Snapshot>::Loader) -> Parts;
    fn open_storage(found: Option<Bulk>, site: Site) -> Option<Box<dyn Storage>>;
}

/// This version cannot host the cohort's state machine: it does not know the kind, or keeps its data in other files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("state machine kind {} is unknown, or its files are of another version", .0.0)]
pub struct UnknownKind(pub Kind);

/// The result of applying an entry.
pub type Applied = state_machine::Applied<Response, KindEvent>;

/// A side effect of an applied entry that the node carries out.
pub type Effect = state_machine::Effect<KindEvent>;

/// The storage of a machine of that kind, with the data found on disk.
pub(crate) fn storage_of(kind: Kind, found: Option<Bulk>, site: Site) -> Result<Box<dyn Storage>, UnknownKind> {
    by_kind!(kind, M => M::open_storage(found, site).ok_or(UnknownKind(kind)), other => Err(UnknownKind(other)))
}

/// The command that assigns a range to a machine of that kind.
pub(crate) fn assign_range(kind: Kind, range: &KeyRange) -> Option<Bytes> {
    by_kind!(kind, M => M::assign_range(range), _ => None)
}

/// The request that makes a machine of that kind drop all its data.
pub(crate) fn drop_request(kind: Kind) -> Option<Ask> {
    by_kind!(kind, M => M::drop_request().map(<M as Hosted>::ask), _ => None)
}

/// The request that makes a machine of that kind split off the keys from `key` on.
pub(crate) fn split_request(kind: Kind, key: Bytes, child: CohortId, members: Membership) -> Option<Ask> {
    by_kind!(kind, M => M::split_request(key, child, members).map(<M as Hosted>::ask), _ => None)
}

/// The command with which a leader of a machine of that kind declares data loss (guarantee 11).
pub(crate) fn declare_loss(kind: Kind) -> Bytes {
    by_kind!(kind, M => M::declare_loss(), _ => Bytes::new())
}

impl AnyMachine {
    /// The machine of a cohort before its first entry, on the given disk, with an empty storage.
    ///
    /// # Errors
    /// If this version does not know the kind.
    ///
    /// # Panics
    /// If the storage is of another kind.
    pub fn new(
        kind: Kind,
        cohort: CohortId,
        disk: Incarnation,
        storage: Box<dyn Storage>,
    ) -> Result<Self, UnknownKind> {
        by_kind!(
            kind,
            M => Ok(<M as Hosted>::machine(<M as StateMachine>::new(cohort, disk, storage::downcast(storage)))),
            other => Err(UnknownKind(other))
        )
    }

    /// The kind of the machine.
    #[must_use]
    pub fn kind(&self) -> Kind {
        dispatch!(Self, self, M, _ => M::KIND)
    }

    /// The catalog, if this is the machine of the first cohort.
    #[must_use]
    pub fn as_catalog(&self) -> Option<&Catalog> {
        if let Self::Catalog(catalog) = self { Some(catalog) } else { None }
    }

    /// The tablet, if it is a range of a table with rows.
    #[must_use]
    pub fn as_tablet(&self) -> Option<&Tablet> {
        if let Self::Tablet(tablet) = self { Some(tablet) } else { None }
    }

    /// The unit, if it is one of a shared log.
    #[must_use]
    pub fn as_unit(&self) -> Option<&LogUnit> {
        if let Self::Unit(unit) = self { Some(unit) } else { None }
    }

    /// The unit, if it is one of a shared log.
    pub(crate) fn as_unit_mut(&mut self) -> Option<&mut LogUnit> {
        if let Self::Unit(unit) = self { Some(unit) } else { None }
    }

    /// The last entry applied, its timestamp, and the cohort.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        dispatch!(Self, self, machine => machine.progress())
    }

    #[must_use]
    pub fn cohort(&self) -> CohortId {
        self.progress().cohort
    }

    /// The last entry applied.
    #[must_use]
    pub fn last_applied(&self) -> Lsn {
        self.progress().last_applied
    }

    /// The timestamp of the last entry applied; 0 before the first. It is the greatest in the state: new ones must
    /// exceed it (guarantee 17).
    #[must_use]
    pub fn last_timestamp(&self) -> Timestamp {
        self.progress().last_timestamp
    }

    /// Applies an entry, which must be the direct successor of the last one applied.
    ///
    /// # Errors
    /// If the entry is not the direct successor, its timestamp does not grow, or its command can't be decoded. The
    /// state is then unchanged, and the node must halt because its replica would otherwise diverge from the others.
    pub fn apply(&mut self, entry: &Entry) -> Result<Applied, ApplyError> {
        fn of<M: Hosted>(machine: &mut M, entry: &Entry) -> Result<Applied, ApplyError> {
            Ok(StateMachine::apply(machine, entry)?.map(M::response, M::event))
        }
        dispatch!(Self, self, machine => of(&mut **machine, entry))
    }

    /// Starts a read at a replica that may answer it.
    pub(crate) fn read(&self, ask: &Ask) -> ReadStep<Response, Read> {
        fn of<M: Hosted>(machine: &M, ask: &Ask) -> ReadStep<Response, Read> {
            match M::request(ask) {
                Some(request) => StateMachine::read(machine, request).map(M::response, M::question),
                None => ReadStep::Answer(Err(unanswerable())),
            }
        }
        dispatch!(Self, self, machine => of(&**machine, ask))
    }

    /// The read that verifies the blocks of this replica from one on ([`StateMachine::verify`]).
    pub(crate) fn verify(&self, first: u64) -> Option<Ask> {
        fn of<M: Hosted>(machine: &M, first: u64) -> Option<Ask> {
            machine.verify(first).map(M::ask)
        }
        dispatch!(Self, self, machine => of(&**machine, first))
    }

    /// The read of a damaged block at another replica ([`StateMachine::reread`]).
    pub(crate) fn reread(&self, block: u64) -> Option<Ask> {
        fn of<M: Hosted>(machine: &M, block: u64) -> Option<Ask> {
            machine.reread(block).map(M::ask)
        }
        dispatch!(Self, self, machine => of(&**machine, block))
    }

    /// The change that mends a block ([`StateMachine::heal`]).
    pub(crate) fn heal(&self, block: u64, found: Response) -> Option<Ask> {
        fn of<M: Hosted>(machine: &M, block: u64, found: Response) -> Option<Ask> {
            machine.heal(block, M::of_response(found)?).map(M::ask)
        }
        dispatch!(Self, self, machine => of(&**machine, block, found))
    }

    /// Whether the state holds the locks of a change already.
    pub(crate) fn holds_locks_of(&self, ask: &Ask) -> bool {
        fn of<M: Hosted>(machine: &M, ask: &Ask) -> bool {
            M::request(ask).is_some_and(|request| machine.holds_locks_of(request))
        }
        dispatch!(Self, self, machine => of(&**machine, ask))
    }

    /// The locks that the state holds.
    pub(crate) fn held_locks(&self) -> Vec<Locks> {
        dispatch!(Self, self, machine => StateMachine::held_locks(&**machine))
    }

    /// Starts a change at the leader.
    pub(crate) fn propose(&self, ask: &Ask) -> Payload<Read> {
        fn of<M: Hosted>(machine: &M, ask: &Ask) -> Payload<Read> {
            match M::request(ask) {
                Some(request) => machine.propose(request).map(M::question),
                None => Payload::Refuse(unanswerable()),
            }
        }
        dispatch!(Self, self, machine => of(&**machine, ask))
    }

    /// Whether the machine owns the first key position of a request (guarantee 19).
    pub(crate) fn owner_of(&self, position: Option<&KeyPosition>) -> KeyOwner {
        match (self.ownership(), position) {
            (Some(ownership), Some(position)) => ownership.owner_of(position),
            _ => KeyOwner::This,
        }
    }

    /// The state that other threads may read now; `None` for kinds without such reads.
    pub(crate) fn view(&self) -> Option<View> {
        fn of<M: Hosted>(machine: &M) -> Option<View> {
            StateMachine::view(machine).map(M::shown)
        }
        dispatch!(Self, self, machine => of(&**machine))
    }

    /// A frozen snapshot of the current state without its bulk data. Taking it is cheap.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        fn of<M: Hosted>(machine: &M) -> Snapshot {
            M::snapshot_of(StateMachine::snapshot(machine))
        }
        dispatch!(Self, self, machine => of(&**machine))
    }

    /// Approximate size of a checkpoint in bytes.
    #[must_use]
    pub fn snapshot_bytes(&self) -> usize {
        dispatch!(Self, self, machine => machine.snapshot_bytes())
    }

    /// The storage of its bulk data.
    #[must_use]
    pub fn storage(&self) -> &dyn Storage {
        dispatch!(Self, self, machine => StateMachine::storage(&**machine))
    }

    /// The storage of its bulk data, for flushes, compactions and replacement.
    pub(crate) fn storage_mut(&mut self) -> &mut dyn Storage {
        dispatch!(Self, self, machine => machine.storage_mut())
    }

    /// Replaces the state by a snapshot, and the bulk data as `replace` does.
    pub(crate) fn install(&mut self, snapshot: Snapshot, replace: impl FnOnce(&mut dyn Storage)) {
        let placeholder = Self::Catalog(Box::new(Catalog::empty()));
        let mut storage = std::mem::replace(self, placeholder).into_storage();
        replace(&mut *storage);
        *self = snapshot.into_machine(storage);
    }

    /// Consumes the machine and returns the storage of its bulk data.
    pub(crate) fn into_storage(self) -> Box<dyn Storage> {
        dispatch!(Self, self, machine => Box::new(machine.into_storage()))
    }

    /// The backpressure that its storage exerts on writers.
    pub(crate) fn pressure(&self) -> Pressure {
        dispatch!(Self, self, machine => StateMachine::storage(&**machine).pressure())
    }

    /// The periodic proposals of its leader.
    pub(crate) fn housekeeping(&self, past: Past) -> Housekeeping {
        dispatch!(Self, self, machine => machine.housekeeping(past))
    }

    /// Bytes on disk that a checkpoint newer than the given one would free immediately.
    pub(crate) fn reclaimable_bytes(&self, checkpoint: Option<&Snapshot>) -> u64 {
        fn of<M: Hosted>(machine: &M, checkpoint: Option<&Snapshot>) -> u64 {
            machine.reclaimable_bytes(checkpoint.and_then(M::frozen))
        }
        dispatch!(Self, self, machine => of(&**machine, checkpoint))
    }

    /// The keys of the table that it owns; `None` for a machine that is not a range of a table.
    #[must_use]
    pub fn ownership(&self) -> Option<&Ownership> {
        dispatch!(Self, self, machine => StateMachine::ownership(&**machine))
    }

    /// The clients' sessions that are open in its range.
    #[must_use]
    pub fn sessions_open(&self) -> usize {
        dispatch!(Self, self, machine => StateMachine::sessions_open(&**machine))
    }

    /// The cohorts that received parts of its range in splits.
    #[must_use]
    pub fn children(&self) -> &[CohortId] {
        dispatch!(Self, self, machine => StateMachine::children(&**machine))
    }

    /// The machine split off by the entry applied last, if this kind supports splits.
    pub(crate) fn split_off(&mut self, child: CohortId, range: KeyRange, space: &Tablespace) -> Option<Self> {
        fn of<M: Hosted>(machine: &mut M, child: CohortId, range: KeyRange, space: &Tablespace) -> Option<AnyMachine> {
            machine.split_off(range, space.site(child)).map(M::machine)
        }
        dispatch!(Self, self, machine => of(&mut **machine, child, range, space))
    }

    /// A hash of the logical state and its data. Two states have equal hashes if no read at or above the watermark, no
    /// retry and no later entry can distinguish them (guarantee 16). Reads all data, including data on disk.
    ///
    /// # Errors
    /// If the data can't be read.
    pub fn logical_hash(&self) -> Result<u64, ReadError> {
        let mut hash = LogicalHash::new();
        dispatch!(Self, self, machine => StateMachine::hash(&**machine, &mut hash)?);
        Ok(hash.finish())
    }

    /// Checks the machine's invariants. The simulator calls it after every step. Reads the whole state.
    ///
    /// # Panics
    /// If an invariant is violated.
    pub fn invariants(&self) {
        dispatch!(Self, self, machine => StateMachine::invariants(&**machine));
    }
}

pub(crate) fn unanswerable() -> Failure {
    Failure::Invalid("request not supported by the state machine of this cohort".to_owned())
}

impl From<CatalogRequest> for Ask {
    fn from(request: CatalogRequest) -> Self {
        Self::Catalog(request)
    }
}

impl From<TableResponse> for Response {
    fn from(response: TableResponse) -> Self {
        Self::Tablet(response)
    }
}

impl From<TableRequest> for Ask {
    fn from(request: TableRequest) -> Self {
        Self::Tablet(request)
    }
}

impl From<StripeRequest> for Ask {
    fn from(request: StripeRequest) -> Self {
        Self::Stripe(request)
    }
}

impl Ask {
    /// The kind of machine that the request is for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        dispatch!(Self, self, M, _ => M::KIND)
    }

    /// Checks its format and limits.
    ///
    /// # Errors
    /// [`Failure::Invalid`] with a description of the problem.
    pub fn validate(&self) -> Result<(), Failure> {
        dispatch!(Self, self, request => request.validate())
    }

    /// Whether it is read-only.
    #[must_use]
    pub fn reads(&self) -> bool {
        dispatch!(Self, self, request => request.reads())
    }

    /// Whether it may be sent again although an earlier attempt may have been executed.
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        dispatch!(Self, self, request => request.is_idempotent())
    }

    /// The time within which it must be sent to its leader, if there is one.
    #[must_use]
    pub fn start_within(&self) -> Option<Duration> {
        dispatch!(Self, self, request => request.start_within())
    }

    /// The consistency of a read.
    #[must_use]
    pub fn consistency(&self) -> Consistency {
        dispatch!(Self, self, request => request.consistency())
    }

    /// The first key position in the table.
    #[must_use]
    pub fn position(&self) -> Option<KeyPosition> {
        dispatch!(Self, self, request => request.position())
    }

    /// The keys that it locks.
    #[must_use]
    pub fn locks(&self) -> Locks {
        dispatch!(Self, self, request => request.locks())
    }

    /// The transaction that it belongs to.
    #[must_use]
    pub fn owner(&self) -> Option<LockOwner> {
        dispatch!(Self, self, request => request.owner())
    }

    /// Whether it opens a client's session.
    #[must_use]
    pub fn opens_session(&self) -> bool {
        dispatch!(Self, self, request => request.opens_session())
    }

    /// Whether a table that is being dropped still answers it.
    pub(crate) fn is_for_remnant(&self) -> bool {
        dispatch!(Self, self, request => request.is_for_remnant())
    }

    /// The transaction that gives up its read locks.
    #[must_use]
    pub fn unlocks(&self) -> Option<LockOwner> {
        dispatch!(Self, self, request => request.unlocks())
    }

    /// The hold that it makes, renews or releases.
    #[must_use]
    pub fn hold(&self) -> Option<Hold> {
        dispatch!(Self, self, request => request.hold())
    }

    /// Whether it needs a clock with a bound on its error.
    #[must_use]
    pub fn needs_clock(&self) -> bool {
        dispatch!(Self, self, request => request.needs_clock())
    }

    /// The least timestamp of its entry.
    #[must_use]
    pub fn floor(&self) -> Timestamp {
        dispatch!(Self, self, request => request.floor())
    }

    /// Bytes that it adds to the memory of the storage.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        dispatch!(Self, self, request => request.bytes())
    }

    /// Approximate size of its keys, values and names in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        dispatch!(Self, self, request => request.held_bytes())
    }

    /// Appends the body, without its kind, to `out`.
    pub(crate) fn encode_body(&self, out: &mut Writer) {
        dispatch!(Self, self, request => request.encode(out));
    }

    /// Decodes the body of a request of that kind.
    pub(crate) fn decode_body(kind: Kind, input: &mut Reader) -> Result<Self, DecodeError> {
        by_kind!(
            kind,
            M => Wire::decode(input).map(<M as Hosted>::ask),
            Kind(tag) => Err(DecodeError::UnknownTag { what: "kind of request", tag: u64::from(tag) })
        )
    }
}

impl Read {
    /// Evaluates the read.
    ///
    /// # Errors
    /// If the data can't be read. [`ReadError::NotCached`] if the read needs the disk and `io` does not allow that.
    pub fn answer(&self, io: Io) -> Result<Evaluated<Response>, ReadError> {
        dispatch!(Self, self, M, read => Ok(read.answer(io)?.map(<M as Hosted>::response)))
    }
}

#[cfg(test)]
mod tests;
