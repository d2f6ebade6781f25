//! Sessions: what makes a retried write apply once, whoever leads and whatever was restarted (guarantee 10).
//!
//! A client opens a session and numbers its writes in it from 1. The tablet keeps the outcome of every numbered write
//! (a refused one's as well: a retry must not succeed where the first try was refused) until the client says that it
//! knows it: each write carries the lowest number whose outcome is still open, the session's *floor*. Between the floor
//! and the floor plus [`SESSION_WINDOW`] lie all numbers that may be executed; so a session's table is bounded.
//!
//! This table is part of the tablet: at the same LSN on every replica, in every checkpoint. A session ends by an entry
//! that names the last use its proposer saw, and applies only if that is still the last; after it, a retry's first try
//! is unknown, and the write is never executed.

use std::collections::VecDeque;
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::limits::{SESSION_WINDOW, SESSIONS_MAX};
use base::{CohortId, Sequence, Timestamp};
use imbl::OrdMap;

use crate::hash::LogicalHash;
use crate::request::{Failure, Mismatch, Outcome, Response, SessionId, SessionStamp};

/// Sessions that one expiry entry names, at most: a small entry; the next tick brings the next.
const EXPIRED_AT_ONCE_MAX: usize = 1_000;

/// Bytes of a session beside its outcomes, and of an outcome beside a column's name, roughly.
const SESSION_BYTES: usize = size_of::<Session>() + 64;
const OUTCOME_BYTES: usize = size_of::<(u64, Remembered)>();

/// The outcome of a write that was executed, in few bytes: only these two can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Remembered {
    Written(Timestamp),
    Mismatch(Box<Mismatch>),
}

/// One client's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    /// The timestamp of the last entry that used it.
    pub(crate) last_used: Timestamp,
    /// The client knows the outcomes of all lower numbers.
    pub(crate) floor: u64,
    /// Outcomes of numbers from the floor on, in order.
    pub(crate) outcomes: VecDeque<(u64, Remembered)>,
}

pub(crate) type Open = OrdMap<SessionId, Arc<Session>>;

/// The open sessions of a tablet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    open: Open,
    bytes: usize,
}

/// What is to be done with a numbered write.
pub(crate) enum Admission {
    /// It was never executed: now it is to be.
    Execute,
    /// It must not be executed; this is its answer.
    Answer(Outcome),
}

impl Sessions {
    /// Those of a snapshot.
    pub(crate) fn of(open: Open) -> Self {
        let bytes = open.values().map(|session| session.bytes()).sum();
        Self { open, bytes }
    }

    pub(crate) fn open_sessions(&self) -> &Open {
        &self.open
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Opens a session, unless there are too many.
    pub(crate) fn open(&mut self, id: SessionId, now: Timestamp) -> Result<(), Failure> {
        if self.open.len() >= SESSIONS_MAX {
            return Err(Failure::Overloaded(format!("{SESSIONS_MAX} sessions are open, and no more may be")));
        }
        let fresh = self.load(id, Session { last_used: now, floor: 1, outcomes: VecDeque::new() });
        assert!(fresh, "a session is named for its entry's sequence, which is never used twice");
        Ok(())
    }

    /// Puts a session in; false if it was there before.
    pub(crate) fn load(&mut self, id: SessionId, session: Session) -> bool {
        if self.open.contains_key(&id) {
            return false;
        }
        self.bytes += session.bytes();
        self.open.insert(id, Arc::new(session));
        true
    }

    /// Says what is to be done with the write of `stamp`, and notes that its session is in use.
    pub(crate) fn admit(&mut self, stamp: &SessionStamp, now: Timestamp) -> Admission {
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

    /// Keeps the outcome of a write that was admitted and executed.
    pub(crate) fn record(&mut self, stamp: &SessionStamp, outcome: &Outcome) {
        let Some(session) = self.open.get_mut(&stamp.session) else {
            assert!(planted(Bug::UnknownSessionExecuted), "only a known session's write is admitted");
            return;
        };
        let remembered = Remembered::new(outcome);
        self.bytes += remembered.bytes();
        let replaced = Arc::make_mut(session).record(stamp.sequence, remembered);
        self.bytes -= replaced.map_or(0, |outcome| outcome.bytes());
    }

    /// Ends sessions, each unless it was used after the moment given.
    pub(crate) fn expire(&mut self, sessions: &[(SessionId, Timestamp)]) {
        for (id, last_used) in sessions {
            let unused = |session: &Arc<Session>| session.last_used <= *last_used;
            if self.open.get(id).is_some_and(unused)
                && let Some(session) = self.open.remove(id)
            {
                self.bytes -= session.bytes();
            }
        }
    }

    pub(crate) fn unused_since(&self, moment: Timestamp) -> Vec<(SessionId, Timestamp)> {
        let unused = self.open.iter().filter(|(_, session)| session.last_used < moment);
        unused.map(|(id, session)| (*id, session.last_used)).take(EXPIRED_AT_ONCE_MAX).collect()
    }

    /// Checks what must always hold.
    pub(crate) fn invariants(&self, cohort: CohortId, last_timestamp: Timestamp, last: Sequence) {
        assert!(self.open.len() <= SESSIONS_MAX, "sessions are bounded");
        let mut bytes = 0;
        for (id, session) in &self.open {
            assert!(id.may_be_known_to(cohort, last), "a session is named for an entry that was applied");
            assert!(session.last_used <= last_timestamp, "a session was used by an entry that was applied");
            assert!(session.is_bounded(), "outcomes are in order and within the window");
            bytes += session.bytes();
        }
        assert_eq!(bytes, self.bytes, "the account of bytes is what the sessions take");
    }

    pub(crate) fn hash(&self, hash: &mut LogicalHash) {
        hash.word(self.open.len() as u64);
        for (id, session) in &self.open {
            hash.word(id.0);
            session.hash(hash);
        }
    }
}

impl Session {
    /// Forgets the outcomes that the client says it knows, and gives back the bytes they took. A stamp can't
    /// acknowledge its own write: the floor passes no number that might still be asked for.
    fn acknowledge(&mut self, stamp: &SessionStamp) -> usize {
        self.floor = self.floor.max(stamp.first_incomplete.min(stamp.sequence));
        let known = self.outcomes.partition_point(|(number, _)| *number < self.floor);
        self.outcomes.drain(..known).map(|(_, outcome)| outcome.bytes()).sum()
    }

    fn admit(&self, number: u64) -> Admission {
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
                "write {number} is out of its session's window: from {floor}, the first whose outcome the client has not \
                 acknowledged, {SESSION_WINDOW} writes may be under way"
            ))));
        }
        Admission::Execute
    }

    fn record(&mut self, number: u64, outcome: Remembered) -> Option<Remembered> {
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

    /// Whether outcomes are in order, and all from the floor on within the window.
    pub(crate) fn is_bounded(&self) -> bool {
        let within = |number: u64| number.checked_sub(self.floor).is_some_and(|above| above < SESSION_WINDOW);
        self.outcomes.iter().is_sorted_by(|(a, _), (b, _)| a < b)
            && self.outcomes.iter().all(|(number, _)| within(*number))
    }

    fn bytes(&self) -> usize {
        SESSION_BYTES + self.outcomes.iter().map(|(_, outcome)| outcome.bytes()).sum::<usize>()
    }

    fn hash(&self, hash: &mut LogicalHash) {
        hash.signed(self.last_used.0);
        hash.word(self.floor);
        hash.word(self.outcomes.len() as u64);
        for (number, outcome) in &self.outcomes {
            hash.word(*number);
            match outcome {
                Remembered::Written(version) => hash.signed(version.0),
                Remembered::Mismatch(mismatch) => {
                    hash.bytes(&mismatch.column);
                    hash.signed(mismatch.expected.0);
                    hash.signed(mismatch.actual.0);
                }
            }
        }
    }
}

impl Remembered {
    fn new(outcome: &Outcome) -> Self {
        match outcome {
            Ok(Response::Written { version }) => Self::Written(*version),
            Err(Failure::VersionMismatch { column, expected, actual }) => {
                Self::Mismatch(Box::new(Mismatch { column: column.clone(), expected: *expected, actual: *actual }))
            }
            other => unreachable!("a write that is executed is written or mismatched, not {other:?}"),
        }
    }

    fn outcome(&self) -> Outcome {
        match self {
            Self::Written(version) => Ok(Response::Written { version: *version }),
            Self::Mismatch(mismatch) => Err(Failure::VersionMismatch {
                column: mismatch.column.clone(),
                expected: mismatch.expected,
                actual: mismatch.actual,
            }),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Written(_) => OUTCOME_BYTES,
            Self::Mismatch(mismatch) => OUTCOME_BYTES + size_of::<Mismatch>() + mismatch.column.len(),
        }
    }
}
