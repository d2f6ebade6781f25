//! View checks (Gaios, section 3.3.2; guarantee 13): strong reads at any replica, without anybody's clock.
//!
//! A replica that has reads to answer asks all others whom they know as leader. The leader answers with a *stamp*: the
//! greater of what it has committed and of what it re-proposed at its start. It does so once its first entry is
//! committed: so what it has committed is the greater. Once a majority of the voters, by the leader's own word for who
//! they are, the leader and we perhaps among them, have said that they know no newer epoch than the leader's, the reads
//! may be answered from the state through the stamp.
//!
//! Let a write have been acknowledged before the check began. Had a later leader committed it, a majority would have
//! promised that leader's epoch before, and one of them is among those who said, later, that they know no newer one. So
//! it was committed by this leader, which had it committed when it gave its stamp, or by an earlier one, and then this
//! leader found it in its log at its start. Either way it lies within the stamp.
//!
//! Majorities meet although members come and go: whoever was elected next after the leader holds the leader's first
//! entry, and was elected by the last membership that the leader has committed, or by the one step that it has taken
//! from that; the leader's newest is one of these two (guarantee 8). A leader whose first entry is not committed may
//! have a membership that nobody else goes on with; our own log may have one that is older by any number of steps.
//!
//! One check is under way at a time. What comes meanwhile rests on the next, which begins when this one ends, however
//! many wait for it.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{Duration, Epoch, Member, Membership, Monotonic, Now, Sequence, SharedMembership};

use crate::cohort::{Cohort, Role};
use crate::message::Message;
use crate::outbox::{Durable, Outbox, Output};

/// A check that has had no end for so long is asked again: what was said may be lost.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Numbers the checks of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckId(pub u64);

/// What a check came to: who has applied everything through the stamp may answer, unless it knows a newer epoch by
/// then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checked {
    /// The check.
    pub check: CheckId,
    /// The leader's epoch.
    pub epoch: Epoch,
    /// The leader's stamp.
    pub stamp: Sequence,
}

/// The checks of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Views {
    last: CheckId,
    under_way: Option<UnderWay>,
    /// Reads wait for the check after the one under way.
    is_wanted: bool,
    /// The last one that came to its end.
    done: Option<Checked>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct UnderWay {
    asked_at: Monotonic,
    /// The newest epoch that each of the others knows, and the stamp if it leads in it.
    answers: BTreeMap<Member, (Epoch, Option<Stamp>)>,
}

/// What a leader says to a check.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// All that was acknowledged before lies within this.
    pub committed: Sequence,
    /// The newest membership of the leader's log.
    pub membership: SharedMembership,
}

impl Cohort {
    /// The check that a read which comes now may rest on. It is begun, if none is under way; otherwise it is the next.
    pub fn want_view(&mut self, now: Now, out: &mut Outbox) -> CheckId {
        if self.views.under_way.is_some() {
            self.views.is_wanted = true;
            return CheckId(self.views.last.0 + 1);
        }
        self.begin_check(now, out);
        self.views.last
    }

    /// What that check came to, or one that began later; none as long as none has ended.
    #[must_use]
    pub fn checked(&self, check: CheckId) -> Option<Checked> {
        self.views.done.filter(|done| done.check >= check)
    }

    /// Whether what a check came to still holds here: if a newer epoch is known by now, another check is wanted.
    #[must_use]
    pub fn still_holds(&self, checked: Checked) -> bool {
        checked.epoch == self.promised.epoch
    }

    /// Asks again if the check under way has had no end for a while. Whoever waits for one sees to that.
    pub fn push_view(&mut self, now: Now, out: &mut Outbox) {
        if let Some(under_way) = &mut self.views.under_way
            && under_way.asked_at + ASK_AGAIN <= now.monotonic
        {
            under_way.asked_at = now.monotonic;
            self.ask_for_views(out);
            // We may have come to lead.
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
        (committed >= leader.barrier).then_some(Stamp { committed, membership })
    }

    fn taken(&self, stamp: Sequence) -> Sequence {
        if planted(Bug::ViewStampIsOwn) { self.committed } else { stamp }
    }

    /// Whether these, and we, make up a majority.
    fn are_majority(&self, others: impl Iterator<Item = Member>, membership: &Membership) -> bool {
        let voters = others.chain([self.config.me]).filter(|member| membership.is_voter(*member));
        voters.count() >= membership.quorum()
    }

    /// What a view check came to that this replica made with these others, all of them asked at one moment: for the
    /// search.
    #[must_use]
    pub fn view_of(&self, others: &[&Self]) -> Option<Sequence> {
        let epoch = self.promised.epoch;
        let of_epoch = || others.iter().filter(|other| other.promised.epoch == epoch);
        let stamp = self.own_stamp().or_else(|| of_epoch().find_map(|other| other.own_stamp()))?;
        let is_majority = self.are_majority(of_epoch().map(|other| other.config.me), &stamp.membership);
        is_majority.then(|| self.taken(stamp.committed))
    }

    /// Says whom we know as leader. It waits for nothing: a newer epoch that we promised, forced or not, is one that we
    /// know.
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
            // Whoever waits for the stamp needn't wait for the next heartbeat.
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
        out.push(Output::ViewChecked);
        if self.views.is_wanted {
            self.begin_check(now, out);
        }
    }
}
