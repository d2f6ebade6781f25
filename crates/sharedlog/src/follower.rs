//! Follows a log at its end: subscribes at the tail of the last chain, which pushes entries as they complete
//! ([`Request::Follow`]), and answers the reads of this node that wait for them.
//!
//! An entry at the tail of a chain is held by the whole chain, so a pushed entry equals the entry that a read of the
//! tail returns. All readers of a node share one subscription. The [`Client`](crate::client::Client) carries out reads
//! of other positions, and all reads while there is no subscription. It also carries out a read whose wait has ended,
//! because only the client can confirm that a position is unwritten.
//!
//! * *Gap.* If the tail holds later positions but not the next one, the writer has probably crashed. The follower has
//!   the position filled after [`GAP`].
//! * *Loss.* A feed that does not begin at the next position restarts the subscription, and a renewal without a reply
//!   ends it.
//! * *Flow control.* The tail sends a limited number of bytes until the subscription is renewed. The buffered
//!   entries are bounded as well: the client serves a slow reader that falls behind the buffer.
//!
//! Only logs with one chain in their last extent are followed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};

use crate::client::{LogReply, ReadMany, Token, Wait};
use crate::limits::{FOLLOW_BUFFER_BYTES, FOLLOW_CREDIT_MAX, FOLLOW_ENTRY_BYTES, FOLLOW_LEASE_MAX};
use crate::unit::{Reply, Request};
use crate::{AskId, Entry, Position, Projection, ProjectionEpoch, UnitId};

const RENEW: Duration = Duration::from_millis(250);
/// Timeout of a renewal or a new subscription.
const ANSWER: Duration = Duration::from_millis(200);
/// A subscription without readers ends after this time.
const IDLE: Duration = Duration::from_millis(2_000);
/// A position is filled when later ones have been complete for this time. If its writer is only slow, the writer
/// appends at another position.
pub const GAP: Duration = Duration::from_millis(100);
/// The client waits this long before it fills the position of a read whose wait has ended.
const FILL: Duration = Duration::from_millis(50);

/// An effect for the driver to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a request to a unit. Any number of calls of [`Follower::answered`] may follow.
    Ask {
        /// Matches the replies to the request.
        ask: AskId,
        unit: UnitId,
        /// The request to send.
        request: Request,
    },
    Done {
        token: Token,
        /// [`LogReply::Range`] or [`LogReply::Larger`].
        answer: LogReply,
    },
    /// Pass a read to the client.
    Read {
        token: Token,
        wanted: ReadMany,
        /// The deadline of the read.
        deadline: Monotonic,
    },
    /// Have the client fill a position.
    Fill(Position),
    /// Call [`Follower::timer`] at this time. Replaces the previous timer.
    SetTimer(Monotonic),
}

/// A read parked until the next entry arrives.
#[derive(Clone, Copy, Debug)]
struct Parked {
    wanted: ReadMany,
    until: Monotonic,
    deadline: Monotonic,
}

/// A subscription at the tail of a chain.
#[derive(Debug)]
struct Subscription {
    ask: AskId,
    unit: UnitId,
    epoch: ProjectionEpoch,
    /// When the last renewal was sent, and whether its reply is pending.
    renewed: Monotonic,
    is_unanswered: bool,
    /// Bytes received since the last renewal.
    received: usize,
    gap: Option<Gap>,
}

/// Consecutive unwritten positions, starting with the next one, below written ones.
#[derive(Clone, Copy, Debug)]
struct Gap {
    since: Monotonic,
    /// End of the positions that were known to be handed out when the gap was noticed.
    end: Position,
    /// The position that is being filled.
    filling: Option<Position>,
}

/// The last chain of a projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    epoch: ProjectionEpoch,
    from: Position,
    tail: UnitId,
}

/// A follower of one log.
///
/// Entry points take the current time, which never goes back, and queue [`Action`]s for [`Follower::take_actions`].
#[derive(Debug, Default)]
pub struct Follower {
    target: Option<Target>,
    subscription: Option<Subscription>,
    /// The next position that the tail sends.
    next: Position,
    /// Entries before the next position, while there is a subscription.
    entries: VecDeque<Entry>,
    bytes: usize,
    parked: BTreeMap<Token, Parked>,
    /// Time of the last read.
    used: Monotonic,
    last_ask: AskId,
    timer: Option<Monotonic>,
    actions: Vec<Action>,
}

impl Follower {
    /// Drains the queued actions, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        self.set_timer();
        std::mem::take(&mut self.actions)
    }

    /// Handles a projection. Parked reads continue at the new tail.
    pub fn projected(&mut self, projection: &Projection, now: Monotonic) {
        if self.target.is_some_and(|target| target.epoch >= projection.epoch) {
            return;
        }
        let last = projection.last();
        let tail = if let [chain] = &last.chains[..] {
            if planted(Bug::FeedFromHead) { chain.first().copied() } else { chain.last().copied() }
        } else {
            None
        };
        self.target = tail.map(|tail| Target { epoch: projection.epoch, from: last.from, tail });
        if self.subscription.is_some() {
            self.subscribe(self.next, now);
        }
    }

    /// Bytes charged for an entry, to the credit of a subscription and to the buffer of a follower.
    #[must_use]
    pub fn cost(entry: &Entry) -> usize {
        FOLLOW_ENTRY_BYTES + entry.bytes()
    }

    /// A waiting read has reached the end of the log, which is this position. Subscribes from there.
    pub fn caught_up(&mut self, next: Position, now: Monotonic) {
        // A reader may have asked for a position far beyond the end.
        let is_beyond = self.entries.is_empty() && next < self.next;
        if self.subscription.is_none() || is_beyond {
            self.subscribe(next, now);
        }
        if self.first() <= next && next <= self.next {
            self.used = now;
        }
    }

    /// Accepts a waiting read. Returns false if the client must carry it out.
    pub fn read(&mut self, token: Token, wanted: ReadMany, deadline: Monotonic, now: Monotonic) -> bool {
        let (from, next) = (wanted.run.from, self.next);
        let (Wait::First(wait) | Wait::Watch(wait)) = wanted.wait else { return false };
        if self.subscription.is_none() || from < self.first() || from > next {
            return false;
        }
        self.used = now;
        let until = now + wait;
        if from < next {
            let answer = self.answer(wanted);
            self.actions.push(Action::Done { token, answer });
        } else {
            self.parked.insert(token, Parked { wanted, until, deadline });
        }
        true
    }

    pub fn give_up(&mut self, tokens: &BTreeSet<Token>) {
        self.parked.retain(|token, _| !tokens.contains(token));
    }

    /// Handles a reply of a unit.
    pub fn answered(&mut self, ask: AskId, reply: Reply, now: Monotonic) {
        let Some(subscription) = self.subscription.as_mut().filter(|subscription| subscription.ask == ask) else {
            return;
        };
        match reply {
            Reply::Feed { from, entries, tail } if from == self.next || planted(Bug::FeedLossIgnored) => {
                subscription.is_unanswered = false;
                self.next = Position(self.next.0 + entries.len() as u64);
                let bytes: usize = entries.iter().map(Self::cost).sum();
                subscription.received += bytes;
                subscription.note_gap(self.next, tail, now);
                self.bytes += bytes;
                self.entries.extend(entries);
                self.answer_parked();
                self.evict();
                self.renew_if_due(now);
            }
            // A feed was lost in transit.
            Reply::Feed { .. } => self.subscribe(self.next, now),
            _ => self.end(now),
        }
    }

    /// Handles the expiry of the timer.
    pub fn timer(&mut self, now: Monotonic) {
        self.timer = None;
        let over = self.parked.extract_if(.., |_, parked| parked.until <= now);
        let over: Vec<_> = over.collect();
        over.into_iter().for_each(|(token, parked)| self.release(token, parked, now));
        let is_idle = self.parked.is_empty() && now.since(self.used) >= IDLE;
        let has_failed =
            |subscription: &Subscription| subscription.is_unanswered && now.since(subscription.renewed) >= ANSWER;
        if is_idle || self.subscription.as_ref().is_some_and(has_failed) {
            return self.end(now);
        }
        self.renew_if_due(now);
        if let Some(Subscription { gap: Some(gap), .. }) = &mut self.subscription
            && now.since(gap.since) >= GAP
            && gap.filling != Some(self.next)
        {
            gap.filling = Some(self.next);
            self.actions.push(Action::Fill(self.next));
        }
    }

    /// Starts a subscription. Buffered entries are kept if the subscription continues them.
    fn subscribe(&mut self, next: Position, now: Monotonic) {
        let Some(target) = self.target.filter(|target| next >= target.from) else { return self.end(now) };
        self.last_ask.0 += 1;
        if next != self.next {
            self.forget_entries();
            self.next = next;
        }
        self.subscription = Some(Subscription {
            ask: self.last_ask,
            unit: target.tail,
            epoch: target.epoch,
            renewed: now,
            is_unanswered: true,
            received: 0,
            gap: None,
        });
        self.ask();
    }

    /// Position of the first buffered entry.
    fn first(&self) -> Position {
        Position(self.next.0 - self.entries.len() as u64)
    }

    fn ask(&mut self) {
        let Some(Subscription { ask, unit, epoch, .. }) = self.subscription else { return };
        let request = Request::Follow { epoch, from: self.next, lease: FOLLOW_LEASE_MAX, credit: FOLLOW_CREDIT_MAX };
        self.actions.push(Action::Ask { ask, unit, request });
    }

    fn renew_if_due(&mut self, now: Monotonic) {
        let Some(subscription) = &mut self.subscription else { return };
        let is_due = now.since(subscription.renewed) >= RENEW || subscription.received >= FOLLOW_CREDIT_MAX / 2;
        if is_due && !subscription.is_unanswered {
            (subscription.renewed, subscription.is_unanswered, subscription.received) = (now, true, 0);
            self.ask();
        }
    }

    /// Ends the subscription and passes the parked reads to the client.
    fn end(&mut self, now: Monotonic) {
        self.subscription = None;
        self.forget_entries();
        for (token, parked) in std::mem::take(&mut self.parked) {
            self.release(token, parked, now);
        }
    }

    fn forget_entries(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// Passes a read to the client with the remaining wait. If the wait has ended, a read that may fill the position
    /// waits for [`FILL`], or for a quarter of the time before the deadline if that is less, so that the reply is in
    /// time.
    fn release(&mut self, token: Token, Parked { wanted, until, deadline }: Parked, now: Monotonic) {
        let left = until.since(now);
        let fill = FILL.min(Duration(deadline.since(now).0 / 4));
        let wait = match wanted.wait {
            Wait::First(_) => Wait::First(left.max(fill)),
            Wait::Watch(_) if left > Duration::ZERO => Wait::Watch(left),
            _ => Wait::No,
        };
        self.actions.push(Action::Read { token, wanted: ReadMany { wait, ..wanted }, deadline });
    }

    fn answer_parked(&mut self) {
        let ready = self.parked.extract_if(.., |_, parked| parked.wanted.run.from < self.next);
        let ready: Vec<_> = ready.collect();
        for (token, parked) in ready {
            let answer = self.answer(parked.wanted);
            self.actions.push(Action::Done { token, answer });
        }
    }

    /// The requested entries that are buffered.
    fn answer(&self, wanted: ReadMany) -> LogReply {
        let at = (wanted.run.from.0 - self.first().0) as usize;
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.bytes();
            bytes <= wanted.bytes
        };
        let row: Vec<LogReply> =
            self.entries.range(at..).take(wanted.run.count).take_while(fits).cloned().map(LogReply::from).collect();
        if row.is_empty() { LogReply::Larger } else { LogReply::Range(row) }
    }

    fn evict(&mut self) {
        while self.bytes > FOLLOW_BUFFER_BYTES
            && let Some(oldest) = self.entries.pop_front()
        {
            self.bytes -= Self::cost(&oldest);
        }
    }

    fn set_timer(&mut self) {
        let parked = self.parked.values().map(|parked| parked.until);
        let of_subscription = self.subscription.iter().flat_map(|subscription| {
            let renewal = subscription.renewed + if subscription.is_unanswered { ANSWER } else { RENEW };
            let gap = subscription.gap.filter(|gap| gap.filling != Some(self.next));
            [Some(renewal), gap.map(|gap| gap.since + GAP)]
        });
        let next = parked.chain(of_subscription.flatten()).min().unwrap_or(Monotonic::NEVER);
        if self.timer != Some(next) {
            self.timer = Some(next);
            self.actions.push(Action::SetTimer(next));
        }
    }
}

impl Subscription {
    /// Records that the tail unit holds positions up to `tail`. Positions of a known gap keep their age.
    fn note_gap(&mut self, next: Position, tail: Position, now: Monotonic) {
        self.gap = match self.gap {
            _ if tail <= next => None,
            Some(gap) if next < gap.end => Some(gap),
            _ => Some(Gap { since: now, end: tail, filling: None }),
        };
    }
}

impl From<Entry> for LogReply {
    fn from(entry: Entry) -> Self {
        match entry {
            Entry::Data(data) => Self::Entry(data),
            Entry::Junk => Self::Junk,
        }
    }
}

#[cfg(test)]
mod tests;
