//! The sequencer (CORFU, section 3.3): hands out positions from memory and reports the tail of the log.
//!
//! A position is only a hint: two sequencers may hand out the same one, and the units accept one writer. The *tail* is
//! not a hint. It must be above every append that completed before the query, so a replaced sequencer must not answer.
//! The sequencer records its next position, and then asks every unit of one chain to confirm that its epoch is not
//! sealed (guarantee 20). This suffices: a successor is installed only after at least one unit of *every* chain was
//! sealed. So if the chain had been sealed first, one of its units would have refused. Hence the projection was the
//! newest when the tail was recorded, and every append completed by then has a position from this sequencer or below
//! its start.
//!
//! A client that takes positions and crashes leaves holes that readers wait for. So the number of positions per client
//! and time window is limited, and unwritten positions are filled in bulk ([`hole_fill`](crate::hole_fill)).
//!
//! A sequencer does not track appends: each position is handed out once in its epoch, and the client resolves the
//! outcome. Readers detect whether a retried append is in the log twice ([`duplicates`](crate::duplicates)).
//!
//! One check runs at a time. Queries that arrive meanwhile wait for its end and share the next one.
//!
//! A check grants a *lease* of [`LEASE`] from the time at which the units were asked: until it ends, the tail is
//! answered from memory. A recovery first seals every chain, so that one of the units is sealed after it confirmed, and
//! then waits for [`LEASE_GRACE`] before proposing. By then the lease has expired on any clock with a rate error below
//! 1%.

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};

use crate::limits::{
    GRANTED_CLIENTS_MAX, POSITION_MAX, POSITIONS_AT_ONCE_MAX, POSITIONS_OUTSTANDING_MAX, POSITIONS_WINDOW,
};
use crate::unit;
use crate::{AskId, ClientId, Position, Projection, ProjectionEpoch, SequencerId, UnitId};
/// A request to a sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Request consecutive positions for the exclusive use of one client.
    Positions {
        /// The epoch of the client's projection.
        epoch: ProjectionEpoch,
        client: ClientId,
        count: u64,
    },
    /// Query the tail of the log.
    Tail {
        /// The epoch of the client's projection.
        epoch: ProjectionEpoch,
    },
}

/// The reply of a sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Positions, valid in its epoch.
    Positions {
        first: Position,
        /// Number of positions. May be less than requested, or 0 if the client has reached its limit.
        count: u64,
    },
    /// Every append that completed before the query is below this position.
    Tail(Position),
    /// The process is not, or no longer, the sequencer of that epoch.
    Refused {
        /// The newest epoch that it knows of.
        newest: ProjectionEpoch,
    },
}

/// An effect for the driver to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<A> {
    /// Send a request to a unit; [`Sequencer::answered`] may follow.
    Ask {
        /// Matches the reply to the request.
        ask: AskId,
        unit: UnitId,
        /// The request to send.
        request: unit::Request,
    },
    /// Send a reply to a client.
    Reply {
        /// The requester, as passed to [`Sequencer::asked`].
        requester: A,
        /// The reply to send.
        reply: Reply,
    },
    /// Call [`Sequencer::timer`] at this time. Replaces the previous timer.
    SetTimer(Monotonic),
}

/// Timeout of a check, which is then repeated with another chain.
const CHECK_AGAIN: Duration = Duration::from_millis(50);
/// After a check, the tail is answered from memory for this time, counted from when the units were asked.
pub const LEASE: Duration = Duration::from_millis(40);
/// A recovery waits this long after sealing every chain: [`LEASE`] plus the drift between two clocks with a rate error
/// of 1%.
pub const LEASE_GRACE: Duration = Duration(LEASE.0 + LEASE.0 / 40);
/// Maximum waiting tail queries. Further ones get no reply.
const WAITING_MAX: usize = 16_384;

/// The sequencer of one epoch. `A` identifies a requester.
#[derive(Clone, Debug)]
pub struct Sequencer<A> {
    projection: Projection,
    next: Position,
    /// Positions handed out to each client in the current window.
    given: BTreeMap<ClientId, u64>,
    given_since: Monotonic,
    /// The newest known epoch. If it is above the own epoch, this sequencer is obsolete.
    newest: ProjectionEpoch,
    check: Option<Check<A>>,
    waiting: Vec<A>,
    /// No successor of the projection is installed before this time.
    leased_until: Monotonic,
    /// Counts checks and their repetitions, to rotate between chains.
    turn: usize,
    asks: AskId,
    actions: Vec<Action<A>>,
}

#[derive(Clone, Debug)]
struct Check<A> {
    noted: Position,
    requesters: Vec<A>,
    asked_at: Monotonic,
    asked: Vec<(AskId, UnitId)>,
    confirmed: BTreeSet<UnitId>,
    again_at: Monotonic,
}

impl<A> Sequencer<A> {
    /// Creates the sequencer of a projection if it names this process. A process must create the sequencer of an epoch
    /// only once, because a second one would hand out the same positions.
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

    /// The epoch of its projection.
    #[must_use]
    pub fn epoch(&self) -> ProjectionEpoch {
        self.projection.epoch
    }

    /// The first position that it has not handed out.
    #[must_use]
    pub fn next(&self) -> Position {
        self.next
    }

    /// Drains the queued actions, in order.
    pub fn take_actions(&mut self) -> Vec<Action<A>> {
        std::mem::take(&mut self.actions)
    }

    pub fn asked(&mut self, requester: A, request: Request, now: Monotonic) {
        let (Request::Positions { epoch, .. } | Request::Tail { epoch }) = request;
        if epoch != self.projection.epoch || self.newest > self.projection.epoch {
            let reply = Reply::Refused { newest: self.newest };
            return self.actions.push(Action::Reply { requester, reply });
        }
        match request {
            Request::Positions { client, count, .. } => {
                let (first, count) = self.hand_out(client, count, now);
                self.actions.push(Action::Reply { requester, reply: Reply::Positions { first, count } });
            }
            Request::Tail { .. } if planted(Bug::TailUnchecked) => {
                self.actions.push(Action::Reply { requester, reply: Reply::Tail(self.next) });
            }
            Request::Tail { .. } if now < self.leased_until => {
                self.actions.push(Action::Reply { requester, reply: Reply::Tail(self.next) });
                if self.leased_until.since(now) < Duration(LEASE.0 / 2) && self.check.is_none() {
                    self.begin_check(now);
                }
            }
            Request::Tail { .. } => {
                if self.waiting.len() < WAITING_MAX {
                    self.waiting.push(requester);
                }
                if self.check.is_none() {
                    self.begin_check(now);
                }
            }
        }
    }

    /// Hands out up to `count` positions.
    fn hand_out(&mut self, client: ClientId, count: u64, now: Monotonic) -> (Position, u64) {
        let left = POSITION_MAX.saturating_sub(self.next.0);
        let count = self.granted(client, count.min(POSITIONS_AT_ONCE_MAX).min(left), now);
        let first = self.next;
        self.next = Position(first.0 + count);
        (first, count)
    }

    /// The number of positions that a client may get now, at most `count`. Limits the positions that it can leave
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
        let requesters = std::mem::take(&mut self.waiting);
        self.check = Some(Check {
            noted: self.next,
            requesters,
            asked_at: now,
            asked: Vec::new(),
            confirmed: BTreeSet::new(),
            again_at: now,
        });
        self.ask_chain(now);
    }

    /// Asks every unit of the next chain to confirm the epoch. Earlier confirmations do not count.
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

    /// Handles the reply of a unit.
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
        let answer = |requester| Action::Reply { requester, reply: Reply::Tail(tail) };
        self.actions.extend(check.requesters.into_iter().chain(more).map(answer));
        if !self.waiting.is_empty() {
            self.begin_check(now);
        }
    }

    /// Handles the timer set by [`Action::SetTimer`].
    pub fn timer(&mut self, now: Monotonic) {
        if self.check.as_ref().is_some_and(|check| check.again_at <= now) {
            self.ask_chain(now);
        }
        self.set_timer();
    }

    fn set_timer(&mut self) {
        self.actions.extend(self.check.as_ref().map(|check| Action::SetTimer(check.again_at)));
    }

    /// A newer epoch exists or is about to: refuses all pending and later requests.
    pub fn superseded(&mut self, newest: ProjectionEpoch) {
        self.newest = self.newest.max(newest);
        if self.newest == self.projection.epoch {
            return;
        }
        let requesters = self.check.take().map(|check| check.requesters).unwrap_or_default();
        let newest = self.newest;
        for requester in requesters.into_iter().chain(std::mem::take(&mut self.waiting)) {
            self.actions.push(Action::Reply { requester, reply: Reply::Refused { newest } });
        }
    }
}

#[cfg(test)]
mod tests;
