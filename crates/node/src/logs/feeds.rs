//! Subscriptions at this node's log units: a unit pushes the entries that it stores to the followers of its log, once
//! per turn ([`sharedlog::follower`]).

use std::collections::{BTreeMap, BTreeSet};

use base::{CohortId, Monotonic, NodeId, Now};
use sharedlog::follower::Follower;
use sharedlog::limits::{BATCH_BYTES_MAX, FOLLOW_CREDIT_MAX, FOLLOW_LEASE_MAX, FOLLOWED_MAX, MANY_MAX};
use sharedlog::log_unit::UnitResponse;
use sharedlog::unit::{Reply, Request};
use sharedlog::{Entry, Position, PositionRun, ProjectionEpoch};
use state_machine::interface::Evaluated;
use store::sstable::Io;

use super::units::UnitReplyTo;
use crate::node::Node;
use crate::registry::Read;
use crate::request::Response;

/// A follower's subscription at a unit.
#[derive(Debug)]
struct Feed {
    reply_to: UnitReplyTo,
    epoch: ProjectionEpoch,
    /// The next position to send.
    next: Position,
    /// Bytes that may be sent before the subscription is renewed.
    credit: usize,
    until: Monotonic,
    /// The last tail sent to the follower ([`Reply::Feed`]).
    tail: Position,
}

/// The subscriptions, at most one of each node for each unit.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    by_unit: BTreeMap<CohortId, BTreeMap<NodeId, Feed>>,
    /// Units with followers and new entries.
    touched: BTreeSet<CohortId>,
}

/// The next part of a feed.
enum Part {
    Entries(Vec<Entry>),
    /// The subscription ends with this reply.
    End(Reply),
}

impl Feeds {
    /// Records that a unit has stored entries, or was sealed or trimmed.
    pub(super) fn touch(&mut self, cohort: CohortId) {
        if self.by_unit.contains_key(&cohort) {
            self.touched.insert(cohort);
        }
    }

    /// The unit was removed. Renewals of its followers fail.
    pub(super) fn forget(&mut self, cohort: CohortId) {
        self.by_unit.remove(&cohort);
    }

    /// Starts or renews a subscription. Returns false if there are too many.
    pub(super) fn follow(
        &mut self,
        cohort: CohortId,
        reply_to: UnitReplyTo,
        request: &Request,
        now: Monotonic,
    ) -> bool {
        let Request::Follow { epoch, from, lease, credit } = *request else { return false };
        let is_live = |feed: &&Feed| feed.until >= now;
        let others = self.by_unit.iter().filter(|(of, _)| **of != cohort);
        if others.filter_map(|(_, feeds)| feeds.get(&reply_to.node)).filter(is_live).count() >= FOLLOWED_MAX {
            return false;
        }
        let feeds = self.by_unit.entry(cohort).or_default();
        let renewed = feeds.remove(&reply_to.node).filter(|feed| feed.reply_to == reply_to);
        let mut feed =
            renewed.unwrap_or(Feed { reply_to, epoch, next: from, credit: 0, until: now, tail: Position(0) });
        feed.credit = credit.min(FOLLOW_CREDIT_MAX);
        feed.until = now + lease.min(FOLLOW_LEASE_MAX);
        // Force a reply, even without new entries.
        feed.tail = Position(0);
        feeds.insert(reply_to.node, feed);
        self.touched.insert(cohort);
        true
    }
}

impl Node {
    /// Sends new entries to followers. Returns whether any message was sent.
    pub(super) fn run_feeds(&mut self, now: Now) -> bool {
        let mut has_sent = false;
        while let Some(cohort) = self.logs.units.feeds.touched.pop_first() {
            let Some(feeds) = self.logs.units.feeds.by_unit.remove(&cohort) else { continue };
            let mut kept = BTreeMap::new();
            for (node, mut feed) in feeds {
                if feed.until >= now.monotonic && self.feed(cohort, &mut feed, &mut has_sent) {
                    kept.insert(node, feed);
                }
            }
            if !kept.is_empty() {
                self.logs.units.feeds.by_unit.insert(cohort, kept);
            }
        }
        has_sent
    }

    /// Sends the missing entries to one follower. Returns whether its subscription continues.
    fn feed(&mut self, cohort: CohortId, feed: &mut Feed, has_sent: &mut bool) -> bool {
        loop {
            let unit = self.replicas.get(&cohort).and_then(|replica| replica.state.as_unit());
            let Some(unit) = unit else { return false };
            let part = if feed.credit > 0 { self.next_part(cohort, feed) } else { Part::Entries(Vec::new()) };
            let count = if let Part::Entries(entries) = &part { entries.len() } else { 0 };
            let next = Position(feed.next.0 + count as u64);
            let tail = if unit.holds(next) { next } else { unit.tail() };
            let entries = match part {
                Part::Entries(entries) if entries.is_empty() && tail == feed.tail => return true,
                Part::Entries(entries) => entries,
                Part::End(reply) => {
                    self.reply(feed.reply_to, reply);
                    *has_sent = true;
                    return false;
                }
            };
            let bytes: usize = entries.iter().map(Follower::cost).sum();
            feed.credit = feed.credit.saturating_sub(bytes);
            let from = std::mem::replace(&mut feed.next, next);
            feed.tail = tail;
            self.reply(feed.reply_to, Reply::Feed { from, entries, tail });
            *has_sent = true;
            if count == 0 {
                return true;
            }
        }
    }

    /// The entries at the next positions, as a read would return them. Uses only cached data.
    fn next_part(&self, cohort: CohortId, feed: &Feed) -> Part {
        let Some(unit) = self.replicas.get(&cohort).and_then(|replica| replica.state.as_unit()) else {
            return Part::End(Reply::Unknown);
        };
        let count = (unit.tail().0.saturating_sub(feed.next.0)).clamp(1, MANY_MAX as u64) as usize;
        // The last entry may exceed the credit, so that an entry of any size can be sent.
        let request =
            Request::ReadMany { epoch: feed.epoch, run: PositionRun::of(feed.next, count), bytes: BATCH_BYTES_MAX };
        let reply = match unit.decide(&request) {
            Some(UnitResponse::Reply(reply)) => reply,
            Some(UnitResponse::Lookup(lookup)) => match Read::Unit(lookup).answer(Io::CacheOnly) {
                Ok(Evaluated::Outcome(Ok(Response::Unit(reply)))) => *reply,
                // The follower reads from the disk like any other reader, which also reports damage.
                _ => return Part::End(Reply::Done),
            },
            None => return Part::End(Reply::Unknown),
        };
        let Reply::Many(replies) = reply else { return Part::End(reply) };
        let mut entries = Vec::with_capacity(replies.len());
        for reply in replies {
            match reply {
                Reply::Value(entry) => entries.push(entry),
                Reply::Unwritten => break,
                _ if entries.is_empty() => return Part::End(Reply::Done),
                _ => break,
            }
        }
        Part::Entries(entries)
    }
}
