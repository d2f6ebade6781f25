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
//! a time, and what is not written is filled in bulk ([`janitor`](crate::janitor)).
//!
//! An append that has a stamp is given one place, whoever asks for it, and whichever sequencer. The first that is asked
//! for one in an epoch has the units tell which appends lie where of the epochs before (`sequencer/memory.rs`). Who
//! says how far back an earlier attempt may lie is told if that is further than anybody remembers.
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
    DUPLICATES_CLIENTS_MAX, POSITION_MAX, POSITIONS_AT_ONCE_MAX, POSITIONS_OUTSTANDING_MAX, POSITIONS_WINDOW,
};
use crate::unit;
use crate::{AskId, ClientId, Position, Projection, ProjectionEpoch, SequencerId, Stamp, UnitId};
use memory::{Asking, Gathering};
use places::{Place, Places};

mod memory;
mod places;

/// An append that its caller stamped, and may try again elsewhere: it gets one place in an epoch, whoever asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Which append it is.
    pub stamp: Stamp,
    /// The oldest append of its client that isn't decided.
    pub oldest_open: u64,
    /// Something else was decided there, and wherever the append was given a place before: it needs another.
    pub decided: Option<Position>,
    /// No attempt at it lies below, if its caller knows.
    pub since: Option<Position>,
}

/// The place of an append that is known by its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// It.
    pub position: Position,
    /// Its client's oldest append that wasn't decided when the place was given: what players are told. What was decided
    /// since then may lie above it.
    pub oldest_open: u64,
}

/// What an append that is known by its stamp is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It has this place. Below the epoch's start it lies there already, or did until it was trimmed.
    At(Placed),
    /// Its client has said that it is decided.
    Decided,
    /// It is said that no attempt at it lies below a position that the log does not reach: that can't be true of one that
    /// it gets.
    Beyond {
        /// The first position that was not given out.
        next: Position,
    },
    /// An attempt at it may lie where nobody remembers any more what did.
    Forgotten {
        /// All that lies here or after is remembered.
        known_from: Position,
    },
}

impl Told {
    /// The place, if it has one.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        if let Self::At(placed) = self { Some(placed.position) } else { None }
    }
}

/// What is asked of a sequencer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// So many positions that nobody else is given, in a row; and the places of appends that are known by their stamps.
    Positions {
        /// The projection of who asks.
        epoch: ProjectionEpoch,
        /// Who asks.
        client: ClientId,
        /// How many.
        count: u64,
        /// The places of these, too.
        named: Vec<Named>,
    },
    /// Where does the log end?
    Tail {
        /// The projection of who asks.
        epoch: ProjectionEpoch,
    },
}

/// What a sequencer answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Positions of its epoch.
    Positions {
        /// The first of them.
        first: Position,
        /// How many; they may be fewer than were asked for, or none, if the client has been given so many of late.
        count: u64,
        /// The places of the first of those that were named, or of all. There may be none yet: who asks again is told
        /// them once it is known which places appends have since the epochs before.
        named: Vec<Told>,
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
    /// A unit that every append needs has not answered for a while.
    Suspect(UnitId),
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
/// Who asks for places, and must wait until it is known which appends have some, is told so after so long: it is not to
/// take the sequencer for dead.
const ANSWER_BY: Duration = Duration::from_millis(50);
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
    places: Places,
    memory: Memory<A>,
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

/// What is known of the appends of the epochs before.
#[derive(Clone, Debug)]
enum Memory<A> {
    Unknown,
    /// Units are asked; these wait for what they tell.
    Gathering(Gathering, Vec<Wanting<A>>),
    /// What will be known: heads that were not waited for may answer still.
    Known(Gathering),
}

/// Somebody who asks for places.
#[derive(Clone, Debug)]
struct Wanting<A> {
    asker: A,
    client: ClientId,
    count: u64,
    named: Vec<Named>,
    since: Monotonic,
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
            places: Places::default(),
            memory: Memory::Unknown,
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

    /// Where its epoch's positions begin.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn start(&self) -> Position {
        self.projection.start
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
            Request::Positions { client, count, named, .. } => {
                let wanting = Wanting { asker, client, count, named, since: now };
                if wanting.named.is_empty() { self.give(wanting, now) } else { self.give_places(wanting, now) }
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
        if is_new && self.given.len() >= DUPLICATES_CLIENTS_MAX {
            return 0;
        }
        let given = self.given.entry(client).or_default();
        let count = count.min(POSITIONS_OUTSTANDING_MAX.saturating_sub(*given));
        *given += count;
        count
    }

    /// Gives places, once it is known which appends have some. Positions that any append may have don't wait for that.
    fn give_places(&mut self, mut wanting: Wanting<A>, now: Monotonic) {
        if let Memory::Unknown = self.memory {
            self.memory = Memory::Gathering(Gathering::begin(&self.projection, now), Vec::new());
        }
        match &mut self.memory {
            Memory::Gathering(_, waiting) if wanting.count == 0 => {
                // Who asks anew has given up what it asked before.
                waiting.retain(|other| other.client != wanting.client);
                if waiting.len() < WAITING_MAX {
                    waiting.push(wanting);
                }
            }
            Memory::Gathering(..) => {
                wanting.named.clear();
                self.give(wanting, now);
            }
            _ => return self.give(wanting, now),
        }
        self.gather(now);
    }

    /// Asks who has yet to tell what it remembers.
    fn gather(&mut self, now: Monotonic) {
        let epoch = self.projection.epoch;
        if let Memory::Gathering(gathering, _) | Memory::Known(gathering) = &mut self.memory {
            for Asking { head, from, is_suspect } in gathering.ask(now) {
                self.asks.0 += 1;
                gathering.asked(self.asks, head);
                let request = unit::Request::Recent { epoch, from };
                self.actions.push(Action::Ask { ask: self.asks, unit: head, request });
                self.actions.extend(is_suspect.then_some(Action::Suspect(head)));
            }
        }
        self.gathered(now);
        if let Memory::Gathering(_, waiting) = &mut self.memory {
            for late in waiting.extract_if(.., |wanting| now.since(wanting.since) >= ANSWER_BY) {
                let reply = Reply::Positions { first: self.next, count: 0, named: Vec::new() };
                self.actions.push(Action::Answer { asker: late.asker, reply });
            }
        }
        self.set_timer(now);
    }

    /// Goes on with those who wait, if there is nobody more to be waited for.
    fn gathered(&mut self, now: Monotonic) {
        let Memory::Gathering(gathering, waiting) = &mut self.memory else { return };
        if !gathering.has_ended(now) && !planted(Bug::MemoryNotAsked) {
            return;
        }
        let waiting = std::mem::take(waiting);
        if !planted(Bug::MemoryNotAsked) {
            self.places.lacks_below(gathering.known_from(&self.projection));
        }
        self.memory = Memory::Known(gathering.clone());
        waiting.into_iter().for_each(|wanting| self.give(wanting, now));
    }

    /// A unit tells which appends it remembers.
    fn told(
        &mut self,
        ask: AskId,
        (from, told_of): (Position, &[unit::Range]),
        appends: &[(Position, Stamp)],
        now: Monotonic,
    ) {
        let (Memory::Gathering(gathering, _) | Memory::Known(gathering)) = &mut self.memory else { return };
        let start = self.projection.start;
        let Some(head) = gathering.told(ask, (from, told_of), appends, start, now) else { return };
        for (position, stamp) in appends.iter().filter(|(position, _)| *position < start) {
            if memory::decides(&self.projection, head, *position) {
                self.places.remember(*stamp, *position);
            }
        }
        if let Memory::Known(gathering) = &self.memory {
            self.places.lacks_below(gathering.known_from(&self.projection));
        }
        // There may be more of it.
        self.gather(now);
    }

    fn give(&mut self, wanting: Wanting<A>, now: Monotonic) {
        let Wanting { asker, client, count, named, .. } = wanting;
        let (first, count) = self.hand_out(client, count, now);
        let (mut told, mut has_unchecked) = (Vec::new(), false);
        for named in named.into_iter().take(POSITIONS_AT_ONCE_MAX as usize) {
            match self.places.look_up(&named) {
                Place::Decided => told.push(Told::Decided),
                Place::Forgotten { known_from } => told.push(Told::Forgotten { known_from }),
                Place::At(placed) if !planted(Bug::PlaceForgotten) => told.push(Told::At(placed)),
                Place::New if named.since.is_some_and(|since| since > self.next) => {
                    // Unless it is said of a newer epoch's log.
                    if now >= self.leased_until {
                        has_unchecked = true;
                        break;
                    }
                    told.push(Told::Beyond { next: self.next });
                }
                Place::At(_) | Place::New => {
                    let (position, count) = self.hand_out(client, 1, now);
                    if count == 0 {
                        break;
                    }
                    let placed = Placed { position, oldest_open: named.oldest_open };
                    self.places.put(named.stamp, placed);
                    told.push(Told::At(placed));
                }
            }
        }
        self.actions.push(Action::Answer { asker, reply: Reply::Positions { first, count, named: told } });
        if has_unchecked && self.check.is_none() {
            self.begin_check(now);
        }
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
        self.set_timer(now);
    }

    /// A unit has answered.
    pub fn answered(&mut self, ask: AskId, reply: &unit::Reply, now: Monotonic) {
        if let Memory::Gathering(gathering, _) | Memory::Known(gathering) = &self.memory
            && gathering.has_asked(ask)
        {
            return match reply {
                unit::Reply::Recent { from, told_of, appends } => self.told(ask, (*from, told_of), appends, now),
                unit::Reply::Refused { sealed } => self.superseded(sealed.next()),
                _ => {}
            };
        }
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
        match &self.memory {
            Memory::Known(gathering) if gathering.again_at().is_none_or(|at| at > now) => {}
            Memory::Known(_) | Memory::Gathering(..) => self.gather(now),
            Memory::Unknown => {}
        }
        if self.check.as_ref().is_some_and(|check| check.again_at <= now) {
            self.ask_chain(now);
        }
        self.set_timer(now);
    }

    /// When to ask again what units remember, or to tell who waits for it that it isn't known yet.
    fn gathers_at(&self, now: Monotonic) -> Option<Monotonic> {
        match &self.memory {
            Memory::Gathering(gathering, waiting) => {
                let answers = waiting.iter().map(|wanting| wanting.since + ANSWER_BY);
                answers.chain([gathering.ends_at(now)]).chain(gathering.again_at()).min()
            }
            Memory::Known(gathering) => gathering.again_at(),
            Memory::Unknown => None,
        }
    }

    /// For the first of what is to be asked again.
    fn set_timer(&mut self, now: Monotonic) {
        let check = self.check.as_ref().map(|check| check.again_at);
        let first = check.into_iter().chain(self.gathers_at(now)).min();
        self.actions.extend(first.map(Action::SetTimer));
    }

    /// There is, or will be, a projection of that epoch: of ours nothing is handed out or answered any more.
    pub fn superseded(&mut self, newest: ProjectionEpoch) {
        self.newest = self.newest.max(newest);
        if self.newest == self.projection.epoch {
            return;
        }
        let askers = self.check.take().map(|check| check.askers).unwrap_or_default();
        let newest = self.newest;
        let wanting = match std::mem::replace(&mut self.memory, Memory::Unknown) {
            Memory::Gathering(_, waiting) => waiting,
            Memory::Unknown | Memory::Known(_) => Vec::new(),
        };
        let wanting = wanting.into_iter().map(|wanting| wanting.asker);
        for asker in askers.into_iter().chain(std::mem::take(&mut self.waiting)).chain(wanting) {
            self.actions.push(Action::Answer { asker, reply: Reply::Refused { newest } });
        }
    }
}

#[cfg(test)]
mod tests;
