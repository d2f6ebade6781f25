//! The sequencer (CORFU, section 3.3): hands positions out from memory, and says where the log ends.
//!
//! What it hands out is a hint: two sequencers may give one position out, and the units let one writer have it. The
//! *tail* is not a hint. It must lie above every append that ended before it was asked for, so a sequencer that was
//! replaced may not answer. It notes its next position, and then has every unit of one chain confirm that its epoch
//! isn't sealed (guarantee 20). Why that is enough: a projection that takes the place of ours is installed only after
//! at least one unit of
//! *every* chain is sealed. One unit of the chain that was asked, then, was sealed after it had confirmed. So ours was the
//! newest projection when the tail was noted, and every append that had ended by then had its position from us, or lay
//! below our start.
//!
//! Who takes positions and dies leaves holes that readers wait for. So one client is given a bounded number of them at
//! a time, and what is not written is filled in bulk ([`hole_fill`](crate::hole_fill)).
//!
//! A sequencer knows nothing of appends: each position is given once in its epoch, to one asker, which resolves what became
//! of it. Whether a retried append lies in the log already is for readers to tell ([`duplicates`](crate::duplicates)).
//!
//! One check is under way at a time. Whoever asks meanwhile waits for its end, however many they are.
//!
//! A check is good for a *lease*, [`LEASE`] from when the units were asked: until it ends the tail is answered from
//! memory. Whoever replaces the projection has every chain sealed first, so that one of them is sealed after it has
//! confirmed, and then waits for [`LEASE_GRACE`] before proposing: by then the lease has ended, on any clock within 1%
//! of true.

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};

use crate::limits::{
    GRANTED_CLIENTS_MAX, POSITION_MAX, POSITIONS_AT_ONCE_MAX, POSITIONS_OUTSTANDING_MAX, POSITIONS_WINDOW,
};
use crate::unit;
use crate::{AskId, ClientId, Position, Projection, ProjectionEpoch, SequencerId, UnitId};
/// What is asked of a sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Positions in a row, for this client alone.
    Positions {
        /// The projection of who asks.
        epoch: ProjectionEpoch,
        /// Who asks.
        client: ClientId,
        /// How many.
        count: u64,
    },
    /// Where does the log end?
    Tail {
        /// The projection of who asks.
        epoch: ProjectionEpoch,
    },
}

/// What a sequencer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Positions of its epoch.
    Positions {
        /// The first of them.
        first: Position,
        /// How many; they may be fewer than were asked for, or none, if the client has been given so many of late.
        count: u64,
    },
    /// Every append that ended before the request lies below this.
    Tail(Position),
    /// It is not, or no longer, the sequencer of that epoch.
    Refused {
        /// The newest epoch that it knows of.
        newest: ProjectionEpoch,
    },
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<A> {
    /// Ask a unit; [`Sequencer::answered`] may follow.
    Ask {
        /// Names the answer.
        ask: AskId,
        /// The unit.
        unit: UnitId,
        /// What it is asked.
        request: unit::Request,
    },
    /// Answer whoever asked.
    Answer {
        /// It.
        asker: A,
        /// The answer.
        reply: Reply,
    },
    /// Call [`Sequencer::timer`] at this time; it takes the place of the last one.
    SetTimer(Monotonic),
}

/// A check that has had no end for so long is made again, with another chain.
const CHECK_AGAIN: Duration = Duration::from_millis(50);
/// For so long from when units were asked to confirm an epoch, its sequencer answers the tail without asking again.
pub const LEASE: Duration = Duration::from_millis(40);
/// What replaces a projection waits for so long from when every chain was sealed: [`LEASE`], and what two clocks within
/// 1% of true can drift apart.
pub const LEASE_GRACE: Duration = Duration(LEASE.0 + LEASE.0 / 40);
/// Askers of the tail that may wait at one time, at most: more are refused by silence.
const WAITING_MAX: usize = 16_384;

/// The sequencer of one epoch. Whoever asks is an `A`.
#[derive(Clone, Debug)]
pub struct Sequencer<A> {
    projection: Projection,
    next: Position,
    /// How many positions each client was given since then.
    given: BTreeMap<ClientId, u64>,
    given_since: Monotonic,
    /// The newest epoch known; above our own, we are none any more.
    newest: ProjectionEpoch,
    check: Option<Check<A>>,
    waiting: Vec<A>,
    /// No projection takes the place of ours before this.
    leased_until: Monotonic,
    /// Counts checks and their repetitions: each goes to another chain.
    turn: usize,
    asks: AskId,
    actions: Vec<Action<A>>,
}

#[derive(Clone, Debug)]
struct Check<A> {
    noted: Position,
    askers: Vec<A>,
    asked_at: Monotonic,
    asked: Vec<(AskId, UnitId)>,
    confirmed: BTreeSet<UnitId>,
    again_at: Monotonic,
}

impl<A> Sequencer<A> {
    /// The sequencer that a projection names, if that is this process. A process begins one of an epoch once only:
    /// another one of the same epoch would hand out the same positions.
    #[must_use]
    pub fn begin(projection: &Projection, me: SequencerId) -> Option<Self> {
        let is_me = projection.sequencer == me || planted(Bug::SequencerReborn) && projection.sequencer.node == me.node;
        is_me.then(|| Self {
            next: projection.start,
            given: BTreeMap::new(),
            given_since: Monotonic(0),
            newest: projection.epoch,
            projection: projection.clone(),
            check: None,
            waiting: Vec::new(),
            leased_until: Monotonic(0),
            turn: 0,
            asks: AskId(0),
            actions: Vec::new(),
        })
    }

    /// The epoch that it is of.
    #[must_use]
    pub fn epoch(&self) -> ProjectionEpoch {
        self.projection.epoch
    }

    /// The first position that it has not handed out.
    #[must_use]
    pub fn next(&self) -> Position {
        self.next
    }

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action<A>> {
        std::mem::take(&mut self.actions)
    }

    /// Somebody asks.
    pub fn asked(&mut self, asker: A, request: Request, now: Monotonic) {
        let (Request::Positions { epoch, .. } | Request::Tail { epoch }) = request;
        if epoch != self.projection.epoch || self.newest > self.projection.epoch {
            let reply = Reply::Refused { newest: self.newest };
            return self.actions.push(Action::Answer { asker, reply });
        }
        match request {
            Request::Positions { client, count, .. } => {
                let (first, count) = self.hand_out(client, count, now);
                self.actions.push(Action::Answer { asker, reply: Reply::Positions { first, count } });
            }
            Request::Tail { .. } if planted(Bug::TailUnchecked) => {
                self.actions.push(Action::Answer { asker, reply: Reply::Tail(self.next) });
            }
            Request::Tail { .. } if now < self.leased_until => {
                self.actions.push(Action::Answer { asker, reply: Reply::Tail(self.next) });
                if self.leased_until.since(now) < Duration(LEASE.0 / 2) && self.check.is_none() {
                    self.begin_check(now);
                }
            }
            Request::Tail { .. } => {
                if self.waiting.len() < WAITING_MAX {
                    self.waiting.push(asker);
                }
                if self.check.is_none() {
                    self.begin_check(now);
                }
            }
        }
    }

    /// Hands out so many positions, or fewer.
    fn hand_out(&mut self, client: ClientId, count: u64, now: Monotonic) -> (Position, u64) {
        let left = POSITION_MAX.saturating_sub(self.next.0);
        let count = self.granted(client, count.min(POSITIONS_AT_ONCE_MAX).min(left), now);
        let first = self.next;
        self.next = Position(first.0 + count);
        (first, count)
    }

    /// How many of so many positions a client is given: with those that it was given of late no more than it may leave
    /// unwritten.
    fn granted(&mut self, client: ClientId, count: u64, now: Monotonic) -> u64 {
        if self.given_since + POSITIONS_WINDOW <= now {
            self.given.clear();
            self.given_since = now;
        }
        let is_new = !self.given.contains_key(&client);
        if is_new && self.given.len() >= GRANTED_CLIENTS_MAX {
            return 0;
        }
        let given = self.given.entry(client).or_default();
        let count = count.min(POSITIONS_OUTSTANDING_MAX.saturating_sub(*given));
        *given += count;
        count
    }

    fn begin_check(&mut self, now: Monotonic) {
        let askers = std::mem::take(&mut self.waiting);
        self.check = Some(Check {
            noted: self.next,
            askers,
            asked_at: now,
            asked: Vec::new(),
            confirmed: BTreeSet::new(),
            again_at: now,
        });
        self.ask_chain(now);
    }

    /// Has every unit of one chain confirm. What units of another said before does not count.
    fn ask_chain(&mut self, now: Monotonic) {
        let Some(check) = &mut self.check else { return };
        let chains = &self.projection.last().chains;
        let Some(chain) = chains.get(self.turn % chains.len().max(1)) else { return };
        self.turn += 1;
        check.asked_at = now;
        check.again_at = now + CHECK_AGAIN;
        check.confirmed.clear();
        check.asked.clear();
        for unit in chain {
            self.asks.0 += 1;
            check.asked.push((self.asks, *unit));
            let request = unit::Request::Confirm { epoch: self.projection.epoch };
            self.actions.push(Action::Ask { ask: self.asks, unit: *unit, request });
        }
        self.set_timer();
    }

    /// A unit has answered.
    pub fn answered(&mut self, ask: AskId, reply: &unit::Reply, now: Monotonic) {
        let Some(check) = &mut self.check else { return };
        let Some((_, unit)) = check.asked.iter().find(|(asked, _)| *asked == ask) else { return };
        match reply {
            unit::Reply::Confirmed => {
                check.confirmed.insert(*unit);
            }
            unit::Reply::Refused { sealed } => return self.superseded(sealed.next()),
            _ => return,
        }
        if check.confirmed.len() < check.asked.len() {
            return;
        }
        let Some(check) = self.check.take() else { return };
        self.leased_until = self.leased_until.max(check.asked_at + LEASE);
        let is_leased = now < self.leased_until;
        let tail = if is_leased { self.next } else { check.noted };
        let more = if is_leased { std::mem::take(&mut self.waiting) } else { Vec::new() };
        let answer = |asker| Action::Answer { asker, reply: Reply::Tail(tail) };
        self.actions.extend(check.askers.into_iter().chain(more).map(answer));
        if !self.waiting.is_empty() {
            self.begin_check(now);
        }
    }

    /// The time that [`Action::SetTimer`] named has come.
    pub fn timer(&mut self, now: Monotonic) {
        if self.check.as_ref().is_some_and(|check| check.again_at <= now) {
            self.ask_chain(now);
        }
        self.set_timer();
    }

    fn set_timer(&mut self) {
        self.actions.extend(self.check.as_ref().map(|check| Action::SetTimer(check.again_at)));
    }

    /// There is, or will be, a projection of that epoch: of ours nothing is handed out or answered any more.
    pub fn superseded(&mut self, newest: ProjectionEpoch) {
        self.newest = self.newest.max(newest);
        if self.newest == self.projection.epoch {
            return;
        }
        let askers = self.check.take().map(|check| check.askers).unwrap_or_default();
        let newest = self.newest;
        for asker in askers.into_iter().chain(std::mem::take(&mut self.waiting)) {
            self.actions.push(Action::Answer { asker, reply: Reply::Refused { newest } });
        }
    }
}

#[cfg(test)]
mod tests;
