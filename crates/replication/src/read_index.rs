//! View checks (Gaios, section 3.3.2; guarantee 13): linearizable reads at any replica, without clocks. Similar to
//! Raft's read index.
//!
//! A replica with pending reads asks all others for the leader that they know. The leader replies with a *stamp*: the
//! larger of its commit point and the last entry that it re-proposed at its start. It replies only after its first
//! entry is committed, so the commit point is the larger one. Once a majority of the voters in the leader's membership,
//! which may include the leader and this replica, report that they know no epoch newer than the leader's, the reads may
//! be served from the state through the stamp.
//!
//! Why this is correct: consider a write acknowledged before the check began. If a later leader had committed it, a
//! majority would have promised that leader's epoch before, and one of them would be among the replicas that later
//! reported no newer epoch. So this leader or an earlier one committed it. In the first case it was committed when the
//! leader gave its stamp; in the second the leader found it in its log at its start. Either way the stamp covers it.
//!
//! Majorities intersect despite membership changes: the next elected leader holds this leader's first entry. It was
//! elected by the last membership that this leader committed, or by the next one after that, and this leader's newest
//! membership is one of these two (guarantee 8). A leader without a committed first entry may have a membership that no
//! other replica adopts, and this replica's own log may be outdated by any number of changes.
//!
//! One check runs at a time. Reads that arrive meanwhile share the next one, which starts when the current one ends.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{Duration, Epoch, Member, Membership, Monotonic, Now, Sequence, SharedMembership};

use crate::cohort::{Cohort, Role};
use crate::message::Message;
use crate::outbox::{Durable, Outbox, Output};

/// Interval before a check is repeated, because messages may be lost.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Numbers the checks of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckId(pub u64);

/// The result of a check: a replica that has applied everything through the stamp may serve the reads, unless it has
/// learned of a newer epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checked {
    pub check: CheckId,
    pub epoch: Epoch,
    pub stamp: Sequence,
}

/// The checks of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ReadIndexChecks {
    last: CheckId,
    under_way: Option<UnderWay>,
    /// Reads wait for the check after the current one.
    is_wanted: bool,
    done: Option<Checked>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct UnderWay {
    asked_at: Monotonic,
    /// The newest epoch known to each other replica, with a stamp if it is that epoch's leader.
    answers: BTreeMap<Member, (Epoch, Option<Stamp>)>,
}

/// A leader's reply to a check.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Covers every write acknowledged before.
    pub committed: Sequence,
    /// The newest membership of the leader's log.
    pub membership: SharedMembership,
}

impl Cohort {
    /// Returns the check that a read arriving now may rely on. Starts one if none is in progress; otherwise it is the
    /// next one.
    pub fn want_view(&mut self, now: Now, out: &mut Outbox) -> CheckId {
        if self.views.under_way.is_some() {
            self.views.is_wanted = true;
            return CheckId(self.views.last.0 + 1);
        }
        self.begin_check(now, out);
        self.views.last
    }

    /// The result of that check or a later one; `None` until one has completed.
    #[must_use]
    pub fn checked(&self, check: CheckId) -> Option<Checked> {
        self.views.done.filter(|done| done.check >= check)
    }

    /// Whether a result is still valid here. If a newer epoch is known, the read needs another check.
    #[must_use]
    pub fn still_holds(&self, checked: Checked) -> bool {
        checked.epoch == self.promised.epoch
    }

    /// Repeats the current check if it is overdue. The caller with waiting reads must call this periodically.
    pub fn push_view(&mut self, now: Now, out: &mut Outbox) {
        if let Some(under_way) = &mut self.views.under_way
            && under_way.asked_at + ASK_AGAIN <= now.monotonic
        {
            under_way.asked_at = now.monotonic;
            self.ask_for_views(out);
            // This replica may have become the leader.
            self.finish_check(now, out);
        }
    }

    fn begin_check(&mut self, now: Now, out: &mut Outbox) {
        self.views.last.0 += 1;
        self.views.is_wanted = false;
        self.views.under_way = Some(UnderWay { asked_at: now.monotonic, answers: BTreeMap::new() });
        self.ask_for_views(out);
        self.finish_check(now, out);
    }

    fn ask_for_views(&self, out: &mut Outbox) {
        let check = self.views.last.0;
        for peer in self.peers() {
            out.send(peer, Message::ViewCheck { check }, Durable::default());
        }
    }

    fn own_stamp(&self) -> Option<Stamp> {
        let Role::Leader(leader) = &self.role else { return None };
        let (committed, membership) = (self.committed, SharedMembership::clone(self.membership()));
        // Under primary/backup replication a majority proves nothing: these reads are refused.
        (committed >= leader.barrier && !self.is_managed()).then_some(Stamp { committed, membership })
    }

    fn taken(&self, stamp: Sequence) -> Sequence {
        if planted(Bug::ViewStampIsOwn) { self.committed } else { stamp }
    }

    /// Whether these members and this replica form a majority.
    fn are_majority(&self, others: impl Iterator<Item = Member>, membership: &Membership) -> bool {
        let voters = others.chain([self.config.me]).filter(|member| membership.is_voter(*member));
        voters.count() >= membership.quorum()
    }

    /// The result of a view check by this replica with these others, all asked at the same time. For the search.
    #[must_use]
    pub fn view_of(&self, others: &[&Self]) -> Option<Sequence> {
        let epoch = self.promised.epoch;
        let of_epoch = || others.iter().filter(|other| other.promised.epoch == epoch);
        let stamp = self.own_stamp().or_else(|| of_epoch().find_map(|other| other.own_stamp()))?;
        let is_majority = self.are_majority(of_epoch().map(|other| other.config.me), &stamp.membership);
        is_majority.then(|| self.taken(stamp.committed))
    }

    /// Replies to a view check. Needs no force: a promised epoch counts as known before it is durable.
    pub(crate) fn view_asked(&self, from: Member, check: u64, out: &mut Outbox) {
        let (epoch, stamp, commit) = (self.promised.epoch, self.own_stamp(), self.committed);
        out.send(from.node, Message::ViewReply { check, epoch, stamp, commit }, Durable::default());
    }

    pub(crate) fn view_told(
        &mut self,
        from: Member,
        check: u64,
        (epoch, stamp): (Epoch, Option<Stamp>),
        commit: Sequence,
        now: Now,
        out: &mut Outbox,
    ) {
        if stamp.is_some() && self.follows(epoch) {
            // Lets reads that wait for the stamp proceed without waiting for the next heartbeat.
            self.learn_commit(commit, out);
        }
        if CheckId(check) != self.views.last {
            return;
        }
        if let Some(under_way) = &mut self.views.under_way {
            under_way.answers.insert(from, (epoch, stamp));
            self.finish_check(now, out);
        }
    }

    fn finish_check(&mut self, now: Now, out: &mut Outbox) {
        let epoch = self.promised.epoch;
        let Some(UnderWay { answers, .. }) = &self.views.under_way else { return };
        let of_epoch = || answers.iter().filter(|(_, (known, _))| *known == epoch);
        let stamp = self.own_stamp().or_else(|| of_epoch().find_map(|(_, (_, stamp))| stamp.clone()));
        let asked = of_epoch().map(|(member, _)| *member);
        let Some(stamp) = stamp.filter(|stamp| self.are_majority(asked, &stamp.membership)) else { return };
        let stamp = self.taken(stamp.committed);
        self.views.under_way = None;
        self.views.done = Some(Checked { check: self.views.last, epoch, stamp });
        out.push(Output::ReadIndexConfirmed);
        if self.views.is_wanted {
            self.begin_check(now, out);
        }
    }
}
