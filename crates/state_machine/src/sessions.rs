//! Sessions: they make a retried write execute exactly once, across leader changes and restarts (guarantee 10).
//!
//! A client opens a session and numbers its writes from 1. The machine keeps the outcome of each numbered write until
//! the client acknowledges it. Failed outcomes are kept too: a retry must not succeed after its first attempt failed.
//! Each write carries the lowest number with an unacknowledged outcome, the session's *floor*. Only numbers from the
//! floor to the floor plus [`SESSION_WINDOW`] may be executed, so a session's memory is bounded.
//!
//! The sessions are part of the state: they are equal on all replicas at the same LSN, and in every checkpoint. A
//! session expires by an entry that contains the last use that its proposer saw. The entry applies only if the session
//! was not used since. After that the outcome of an earlier attempt is unknown, and its retry is never executed.
//!
//! If the table is full, opening a session evicts others as part of the same entry, so that one client cannot keep
//! others from writing: first sessions that never wrote, then the longest idle. An evicted session is like an expired
//! one.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};
use base::limits::{SESSION_WINDOW, SESSIONS_MAX};
use base::{CohortId, Sequence, Timestamp};
use bytes::Bytes;
use imbl::OrdMap;

use crate::checkpoint::{LoadError, Record, pack};
use crate::failure::{Failure, Outcome};
use crate::hash::LogicalHash;
use crate::interface::Wire;
use crate::progress::Progress;

/// Maximum sessions in one expiry entry, to keep entries small. The next tick expires more.
const EXPIRED_AT_ONCE_MAX: usize = 1_000;

/// Sessions that one opening evicts if the table is full. Finding them scans all sessions; this many pay for the scan.
const EVICTED_AT_ONCE: usize = 1_000;

/// Approximate bytes of a session without its outcomes.
const SESSION_BYTES: usize = size_of::<ClientSession<()>>() + 64;

/// A session id: the cohort that opened the session and the sequence of the opening entry. It is unique in the cluster
/// and never reused. So a session of one range is unknown in every other range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientSessionId(pub u64);

impl ClientSessionId {
    /// Bits of the entry's sequence: enough for three years at ten thousand entries per second. The other bits identify
    /// sixteen million cohorts.
    const SEQUENCE_BITS: u32 = 40;

    /// Cohorts that fit into a session id: no range gets an id from here on.
    pub const COHORTS_MAX: u64 = 1 << (u64::BITS - Self::SEQUENCE_BITS);

    /// The session that an entry of a cohort opens; none if the numbers do not fit into an id.
    #[must_use]
    pub fn new(cohort: CohortId, sequence: Sequence) -> Option<Self> {
        let fits = u64::from(cohort.0) < Self::COHORTS_MAX && sequence.0 >> Self::SEQUENCE_BITS == 0;
        fits.then(|| Self(u64::from(cohort.0) << Self::SEQUENCE_BITS | sequence.0))
    }

    /// The cohort that opened the session.
    #[must_use]
    pub fn cohort(self) -> CohortId {
        CohortId(u32::try_from(self.0 >> Self::SEQUENCE_BITS).unwrap_or(u32::MAX))
    }

    /// Whether an entry of this cohort up to `last` may have opened it, or an entry of a cohort with a lower id. A
    /// range inherits the sessions of its parent at a split, and parents have lower ids.
    pub(crate) fn may_be_known_to(self, cohort: CohortId, last: Sequence) -> bool {
        let sequence = Sequence(self.0 & ((1 << Self::SEQUENCE_BITS) - 1));
        let is_inherited = self.0 >> Self::SEQUENCE_BITS < u64::from(cohort.0);
        is_inherited || (Self::new(cohort, sequence) == Some(self) && sequence <= last)
    }
}

/// Identifies a write of a session: at most one write with a stamp is ever executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionStamp {
    pub session: ClientSessionId,
    /// The number of the write in the session, from 1.
    pub sequence: u64,
    /// The client knows the outcomes of all lower numbers; they may be discarded.
    pub first_incomplete: u64,
}

base::wire! { newtype ClientSessionId }
base::wire! { struct SessionStamp { session, sequence, first_incomplete } }

/// The compact form of the outcome of an executed change. Only outcomes that a retry may receive have one.
pub trait Remembered: Wire + Clone + fmt::Debug + PartialEq + Eq {
    /// The machine's response type.
    type Response;

    /// The compact form of an outcome.
    ///
    /// # Panics
    /// If an executed change cannot have this outcome.
    fn of(outcome: &Outcome<Self::Response>) -> Self;

    fn outcome(&self) -> Outcome<Self::Response>;

    /// Bytes on the heap, without the size of the type.
    fn heap_bytes(&self) -> usize;

    fn encoded_bytes(&self) -> usize;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSession<O> {
    /// Timestamp of the last entry that used it.
    last_used: Timestamp,
    /// The client knows the outcomes of all lower numbers.
    floor: u64,
    /// Outcomes of numbers from the floor on, in order of number.
    outcomes: VecDeque<(u64, O)>,
}

/// An immutable snapshot of the open sessions.
pub type Open<O> = OrdMap<ClientSessionId, Arc<ClientSession<O>>>;

/// The open sessions of a state machine.
#[derive(Clone, Debug)]
pub struct ClientSessions<O> {
    open: Open<O>,
    bytes: usize,
}

impl<O> Default for ClientSessions<O> {
    fn default() -> Self {
        Self { open: Open::new(), bytes: 0 }
    }
}

/// How to proceed with a numbered write.
#[derive(Debug)]
pub enum Admission<R> {
    /// It was never executed: execute it.
    Execute,
    /// It must not be executed; this is its outcome.
    Answer(Outcome<R>),
}

impl<O: Remembered> ClientSessions<O> {
    /// Restores the sessions of a snapshot.
    #[must_use]
    pub fn of(open: Open<O>) -> Self {
        let bytes = open.values().map(|session| session.bytes()).sum();
        Self { open, bytes }
    }

    /// A snapshot of the sessions.
    #[must_use]
    pub fn open_sessions(&self) -> &Open<O> {
        &self.open
    }

    /// The number of open sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether no session is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Approximate memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Opens a session. If there are [`SESSIONS_MAX`], it first evicts some.
    ///
    /// # Panics
    /// If it is open already: each entry opens a session with its own id.
    pub fn open(&mut self, id: ClientSessionId, now: Timestamp) {
        if self.open.len() >= SESSIONS_MAX {
            self.evict(EVICTED_AT_ONCE);
        }
        let fresh = self.load(id, ClientSession { last_used: now, floor: 1, outcomes: VecDeque::new() });
        assert!(fresh, "a session's id contains its entry's sequence, which is unique");
    }

    /// Ends this many sessions: those that never wrote, then the others; in each group the longest idle first.
    /// The choice depends on the sessions alone, so all replicas make the same.
    fn evict(&mut self, count: usize) {
        let rank = |(id, session): (&ClientSessionId, &Arc<ClientSession<O>>)| {
            let protected = session.has_written() && !planted(Bug::WriterEvicted);
            (protected, session.last_used, *id)
        };
        let mut ranked: Vec<_> = self.open.iter().map(rank).collect();
        let count = count.min(ranked.len());
        if count < ranked.len() {
            ranked.select_nth_unstable(count);
        }
        for (_, _, id) in &ranked[..count] {
            if let Some(session) = self.open.remove(id) {
                self.bytes -= session.bytes();
            }
        }
    }

    /// Inserts a session; returns false if the id was already present.
    fn load(&mut self, id: ClientSessionId, session: ClientSession<O>) -> bool {
        if self.open.contains_key(&id) {
            return false;
        }
        self.bytes += session.bytes();
        self.open.insert(id, Arc::new(session));
        true
    }

    /// Decides how to proceed with the write of `stamp`, and marks its session as used.
    pub fn admit(&mut self, stamp: &SessionStamp, now: Timestamp) -> Admission<O::Response> {
        let Some(session) = self.open.get_mut(&stamp.session) else {
            if planted(Bug::UnknownSessionExecuted) {
                return Admission::Execute;
            }
            return Admission::Answer(Err(Failure::UnknownSession(stamp.session)));
        };
        let session = Arc::make_mut(session);
        session.last_used = now;
        self.bytes -= session.acknowledge(stamp);
        session.admit(stamp.sequence)
    }

    /// Records the outcome of a write that was admitted and executed.
    ///
    /// # Panics
    /// If its session is not open, so the write was not admitted.
    pub fn record(&mut self, stamp: &SessionStamp, outcome: &Outcome<O::Response>) {
        let Some(session) = self.open.get_mut(&stamp.session) else {
            assert!(planted(Bug::UnknownSessionExecuted), "a write is admitted only if its session is open");
            return;
        };
        let remembered = O::of(outcome);
        self.bytes += outcome_bytes(&remembered);
        let replaced = Arc::make_mut(session).record(stamp.sequence, remembered);
        self.bytes -= replaced.map_or(0, |outcome| outcome_bytes(&outcome));
    }

    /// Ends each session that was not used after the given timestamp.
    pub fn expire(&mut self, sessions: &[(ClientSessionId, Timestamp)]) {
        for (id, last_used) in sessions {
            let unused = |session: &Arc<ClientSession<O>>| session.last_used <= *last_used;
            if self.open.get(id).is_some_and(unused)
                && let Some(session) = self.open.remove(id)
            {
                self.bytes -= session.bytes();
            }
        }
    }

    /// Sessions last used before `moment`, each with its last use; at most 1,000. It scans all sessions.
    #[must_use]
    pub fn unused_since(&self, moment: Timestamp) -> Vec<(ClientSessionId, Timestamp)> {
        let unused = self.open.iter().filter(|(_, session)| session.last_used < moment);
        unused.map(|(id, session)| (*id, session.last_used)).take(EXPIRED_AT_ONCE_MAX).collect()
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn invariants(&self, cohort: CohortId, last_timestamp: Timestamp, last: Sequence) {
        assert!(self.open.len() <= SESSIONS_MAX, "sessions are bounded");
        let mut bytes = 0;
        for (id, session) in &self.open {
            assert!(id.may_be_known_to(cohort, last), "sessions are opened by applied entries");
            assert!(session.last_used <= last_timestamp, "sessions are used by applied entries");
            assert!(session.is_bounded(), "outcomes are in order and within the window");
            bytes += session.bytes();
        }
        assert_eq!(bytes, self.bytes, "the byte count matches the sessions");
    }

    /// Adds everything that determines later outcomes to a hash.
    pub fn add_to(&self, hash: &mut LogicalHash) {
        hash.word(self.open.len() as u64);
        for (id, session) in &self.open {
            hash.word(id.0);
            session.hash(hash);
        }
    }
}

impl<O: Remembered> ClientSession<O> {
    /// Discards the outcomes that the client acknowledges, and returns the bytes freed. A stamp cannot acknowledge its
    /// own write, so the floor never passes a number that may still be retried.
    fn acknowledge(&mut self, stamp: &SessionStamp) -> usize {
        self.floor = self.floor.max(stamp.first_incomplete.min(stamp.sequence));
        let known = self.outcomes.partition_point(|(number, _)| *number < self.floor);
        self.outcomes.drain(..known).map(|(_, outcome)| outcome_bytes(&outcome)).sum()
    }

    fn admit(&self, number: u64) -> Admission<O::Response> {
        if number < self.floor {
            let floor = self.floor;
            let known = format!("outcome already acknowledged: write {number} is below the session's floor, {floor}");
            return Admission::Answer(Err(Failure::Unknown(known)));
        }
        if let Ok(index) = self.position(number)
            && !planted(Bug::DedupeOnlyInFlight)
        {
            return Admission::Answer(self.outcomes[index].1.outcome());
        }
        if number - self.floor >= SESSION_WINDOW {
            let floor = self.floor;
            return Admission::Answer(Err(Failure::Invalid(format!(
                "write {number} is outside the session's window: at most {SESSION_WINDOW} writes from {floor}, the first \
                 unacknowledged one, may be in progress"
            ))));
        }
        Admission::Execute
    }

    fn record(&mut self, number: u64, outcome: O) -> Option<O> {
        match self.position(number) {
            Ok(index) => Some(std::mem::replace(&mut self.outcomes[index].1, outcome)),
            Err(index) => {
                self.outcomes.insert(index, (number, outcome));
                None
            }
        }
    }

    fn position(&self, number: u64) -> Result<usize, usize> {
        self.outcomes.binary_search_by_key(&number, |(number, _)| *number)
    }

    /// Whether a write was executed in it: its outcome is either kept, or acknowledged by a higher floor.
    fn has_written(&self) -> bool {
        self.floor > 1 || !self.outcomes.is_empty()
    }

    /// Whether the outcomes are in order, within the window from the floor.
    fn is_bounded(&self) -> bool {
        let within = |number: u64| number.checked_sub(self.floor).is_some_and(|above| above < SESSION_WINDOW);
        self.outcomes.iter().is_sorted_by(|(a, _), (b, _)| a < b)
            && self.outcomes.iter().all(|(number, _)| within(*number))
    }

    fn bytes(&self) -> usize {
        SESSION_BYTES + self.outcomes.iter().map(|(_, outcome)| outcome_bytes(outcome)).sum::<usize>()
    }

    fn hash(&self, hash: &mut LogicalHash) {
        hash.signed(self.last_used.0);
        hash.word(self.floor);
        hash.word(self.outcomes.len() as u64);
        for (number, outcome) in &self.outcomes {
            hash.word(*number);
            let mut out = Writer::new();
            outcome.encode(&mut out);
            hash.bytes(out.as_slice());
        }
    }
}

fn outcome_bytes<O: Remembered>(outcome: &O) -> usize {
    size_of::<(u64, O)>() + outcome.heap_bytes()
}

/// A session encoded for a checkpoint. The flag says whether outcomes are included; only a planted bug omits them.
impl<O: Remembered> Record for (ClientSessionId, &ClientSession<O>, bool) {
    fn size(&self) -> usize {
        28 + self.1.outcomes.iter().map(|(_, outcome)| 8 + outcome.encoded_bytes()).sum::<usize>()
    }

    fn encode(&self, out: &mut Writer) {
        let (id, session, with_outcomes) = *self;
        out.u64(id.0);
        out.i64(session.last_used.0);
        out.u64(session.floor);
        let outcomes = session.outcomes.iter().filter(|_| with_outcomes);
        out.count(outcomes.clone().count());
        for (number, outcome) in outcomes {
            out.u64(*number);
            outcome.encode(out);
        }
    }
}

/// The next checkpoint chunk with the sessions after `last`, in order of id.
#[must_use]
pub fn pack_sessions<O: Remembered>(
    tag: u8,
    open: &Open<O>,
    last: Option<ClientSessionId>,
) -> Option<(Bytes, ClientSessionId)> {
    let with_outcomes = !planted(Bug::DedupeNotInCheckpoint);
    let rest = open.range((last.map_or(Unbounded, Excluded), Unbounded));
    let rest = rest.map(|(id, session)| (*id, &**session, with_outcomes));
    pack(tag, rest).map(|(chunk, (id, ..))| (chunk, id))
}

/// Decodes a chunk of [`pack_sessions`] into the sessions of a machine at log position `progress`.
///
/// # Errors
/// The chunk contains sessions that the machine cannot have.
pub fn load_sessions<O: Remembered>(
    input: &mut Reader,
    progress: &Progress,
    sessions: &mut ClientSessions<O>,
) -> Result<(), LoadError> {
    while input.left() > 0 {
        let id = ClientSessionId(input.u64()?);
        let last_used = Timestamp(input.i64()?);
        let floor = input.u64()?;
        let count = input.count(8 + O::BYTES_MIN)?;
        if count as u64 > SESSION_WINDOW {
            return Err(LoadError::Impossible("more outcomes than a session's window allows"));
        }
        let outcomes = (0..count).map(|_| Ok((input.u64()?, O::decode(input)?)));
        let outcomes = outcomes.collect::<Result<VecDeque<_>, DecodeError>>()?;
        let session = ClientSession { last_used, floor, outcomes };
        let is_own = id.may_be_known_to(progress.cohort, progress.name_of(progress.last_applied.sequence));
        if !is_own || last_used > progress.last_timestamp || !session.is_bounded() {
            return Err(LoadError::Impossible(
                "a session of another cohort or a later entry, or with outcomes outside its window",
            ));
        }
        if sessions.len() >= SESSIONS_MAX || !sessions.load(id, session) {
            return Err(LoadError::Impossible("duplicate session, or too many sessions"));
        }
    }
    Ok(())
}
