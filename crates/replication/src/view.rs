//! View checks (Gaios, section 3.3.2; guarantee 13): strong reads at any replica, without anybody's clock.
//!
//! A replica that has reads to answer asks all others whom they know as leader. The leader answers with a *stamp*: the
//! greater of what it has committed and of what it re-proposed at its start. Once the leader and a majority, it and we among
//! it, have said that they know no newer epoch than the leader's, the reads may be answered from the state through the stamp.
//!
//! Let a write have been acknowledged before the check began. Had a later leader committed it, a majority would have promised
//! that leader's epoch before, and one of them is among those who said, later, that they know no newer one. So it was committed
//! by this leader, which had it committed when it gave its stamp, or by an earlier one, and then this leader found it in its
//! log at its start. Either way it lies within the stamp.
//!
//! One check is under way at a time. What comes meanwhile rests on the next, which begins when this one ends, however many
//! wait for it.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{Duration, Epoch, Monotonic, NodeId, Now, Sequence};

use crate::cohort::{Cohort, Role};
use crate::message::Message;
use crate::outbox::{Durable, Outbox, Output};

/// A check that has had no end for so long is asked again: what was said may be lost.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Numbers the checks of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckId(pub u64);

/// What a check came to: who has applied everything through the stamp may answer, unless it knows a newer epoch by then.
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
    answers: BTreeMap<NodeId, (Epoch, Option<Sequence>)>,
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
        for peer in self.config.peers() {
            out.send(peer, Message::ViewCheck { check }, Durable::default());
        }
    }

    /// The greater of what this leader has committed and what it re-proposed at its start.
    fn own_stamp(&self) -> Option<Sequence> {
        let Role::Leader(leader) = &self.role else { return None };
        Some(self.committed.max(leader.barrier.previous()))
    }

    fn taken(&self, stamp: Sequence) -> Sequence {
        if planted(Bug::ViewStampIsOwn) { self.committed } else { stamp }
    }

    /// What a view check came to that this replica made with these others, all of them asked at one moment: for the search.
    #[must_use]
    pub fn view_of(&self, others: &[&Self]) -> Option<Sequence> {
        let epoch = self.promised.epoch;
        let of_epoch = || others.iter().filter(|other| other.promised.epoch == epoch);
        let stamp = self.own_stamp().or_else(|| of_epoch().find_map(|other| other.own_stamp()));
        stamp.filter(|_| of_epoch().count() + 1 >= self.config.quorum()).map(|stamp| self.taken(stamp))
    }

    /// Says whom we know as leader. It waits for nothing: a newer epoch that we promised, forced or not, is one that we know.
    pub(crate) fn view_asked(&self, from: NodeId, check: u64, out: &mut Outbox) {
        let (epoch, stamp, commit) = (self.promised.epoch, self.own_stamp(), self.committed);
        out.send(from, Message::ViewReply { check, epoch, stamp, commit }, Durable::default());
    }

    pub(crate) fn view_told(
        &mut self,
        from: NodeId,
        check: u64,
        (epoch, stamp): (Epoch, Option<Sequence>),
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
        let of_epoch = || answers.values().filter(|(known, _)| *known == epoch);
        let stamp = self.own_stamp().or_else(|| of_epoch().find_map(|(_, stamp)| *stamp));
        let is_majority = of_epoch().count() + 1 >= self.config.quorum();
        let Some(stamp) = stamp.filter(|_| is_majority) else { return };
        let stamp = self.taken(stamp);
        self.views.under_way = None;
        self.views.done = Some(Checked { check: self.views.last, epoch, stamp });
        out.push(Output::ViewChecked);
        if self.views.is_wanted {
            self.begin_check(now, out);
        }
    }
}
