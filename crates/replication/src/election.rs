//! Elections (Spinnaker 7 without its coordination service; guarantees 2 and 3).
//!
//! A replica without a leader asks the others whether it could win (pre-vote). If a majority agrees, it promises itself
//! the next epoch, forces that promise, requests promises, and leads once a majority has forced theirs. A replica
//! promises only to a candidate whose last LSN is not below its own, compared by epoch first; so the winner holds
//! everything that can have been committed.

use base::canary::{Bug, planted};
use base::{Epoch, Lsn, Member, NodeId, Now, Promise};

use crate::cohort::{Cohort, Role};
use crate::data_loss::{Grants, LogIntegrity};
use crate::message::Message;
use crate::outbox::{Durable, ManifestId, Outbox};

/// Number of leases for which a replica that stood aside does not stand for election: longer than the pause before its
/// failed operation is retried.
const ASIDE_FOR: u64 = 20;
/// Number of leases after which a leader may stand aside again.
const ASIDE_AGAIN_AFTER: u64 = 200;

impl Cohort {
    /// Stands for election, starting with pre-votes.
    pub(crate) fn stand(&mut self, now: Now, out: &mut Outbox) {
        let give_up_at = now.monotonic + self.config.timing.lease + self.jitter();
        if !self.may_stand(now) {
            self.role = Role::Follower { leader: None, stand_at: give_up_at };
            return;
        }
        let epoch = self.promised.epoch.next();
        self.role =
            Role::PreCandidate { epoch, granted: Grants::of(self.config.me.node, self.integrity()), give_up_at };
        let last = self.last();
        for peer in self.other_voters() {
            out.send(peer, Message::PreVote { epoch, last }, Durable::default());
        }
        self.count_pre_votes(now, out);
    }

    /// Requires a vote according to its own log, a log without doubt (except where losses can be declared), at least
    /// the cohort's initial state, the end of the grace period after a restart, and no valid lease vote for another.
    fn may_stand(&self, now: Now) -> bool {
        let doubts = self.doubtful && !self.is_in_memory() && !planted(Bug::DoubtfulPromises);
        let me = self.config.me;
        self.is_voter(me)
            && !doubts
            && !self.is_aside(now)
            && self.last() >= self.config.origin
            && self.installing.is_none()
            && now.monotonic >= self.voteless_until
            && !self.vote_forbids(me, now.monotonic)
    }

    /// Whether `epoch` may be promised to a candidate with a log that ends at `last`.
    fn may_promise(&self, candidate: Member, epoch: Epoch, last: Lsn, now: Now) -> bool {
        let unpromised = epoch > self.promised.epoch || (planted(Bug::PromiseTwice) && epoch == self.promised.epoch);
        // A leader of forgetful followers gets the time to catch them up, so that nothing is lost.
        let has_votes = || self.votes_end(now.monotonic).is_some_and(|end| end > now.monotonic);
        let leads_now = self.leads() && (self.is_in_memory() || has_votes());
        let doubts = self.doubtful && !self.is_in_memory() && !planted(Bug::DoubtfulPromises);
        unpromised
            && !doubts
            && !leads_now
            && self.installing.is_none()
            && now.monotonic >= self.voteless_until
            && !self.vote_forbids(candidate, now.monotonic)
            && last >= self.last()
    }

    pub(crate) fn pre_vote(&mut self, from: Member, epoch: Epoch, last: Lsn, now: Now, out: &mut Outbox) {
        let granted = self.may_promise(from, epoch, last, now);
        if granted {
            self.give_way(now);
        }
        let (integrity, promised) = (self.integrity(), self.promised.epoch);
        let reply = Message::PreVoteReply { epoch, granted, integrity, promised };
        out.send(from.node, reply, Durable::default());
    }

    /// Two concurrent candidates would split the promises: a replica that grants a pre-vote postpones its own
    /// candidacy.
    fn give_way(&mut self, now: Now) {
        let a_while = now.monotonic + self.config.timing.election_jitter + self.jitter();
        if let Role::Follower { stand_at, .. } = &mut self.role {
            *stand_at = a_while.max(*stand_at);
        }
    }

    pub(crate) fn pre_vote_reply(
        &mut self,
        (from, integrity): (Member, LogIntegrity),
        epoch: Epoch,
        granted: bool,
        promised: Epoch,
        now: Now,
        out: &mut Outbox,
    ) {
        let counts = self.is_voter(from);
        let Role::PreCandidate { epoch: asked, granted: voters, .. } = &mut self.role else { return };
        if *asked != epoch || !counts {
            return;
        }
        if granted {
            voters.add(from.node, integrity);
            self.count_pre_votes(now, out);
        } else if promised >= epoch {
            // Another replica is ahead: retry with a higher epoch.
            self.promised_elsewhere(promised, now, out);
        }
    }

    /// Another replica has promised `epoch`: the next candidacy must use a higher one. Records a promise to no
    /// candidate, which must be durable like any other.
    fn promised_elsewhere(&mut self, epoch: Epoch, now: Now, out: &mut Outbox) {
        if epoch > self.promised.epoch {
            self.promise(Promise { epoch, candidate: None }, out);
        }
        self.step_down(now, out);
    }

    fn count_pre_votes(&mut self, now: Now, out: &mut Outbox) {
        let Role::PreCandidate { granted, .. } = &self.role else { return };
        if granted.whole.len() >= self.quorum() {
            self.campaign(now, out);
        } else if self.may_declare(now) {
            self.campaign_as(true, now, out);
        }
    }

    /// Requests promises, its own first. The search calls this without a pre-vote.
    pub fn campaign(&mut self, now: Now, out: &mut Outbox) {
        self.campaign_as(false, now, out);
    }

    fn campaign_as(&mut self, declares: bool, now: Now, out: &mut Outbox) {
        if !self.may_stand(now) || self.leads() || self.is_managed() {
            return;
        }
        let epoch = self.promised.epoch.next();
        let give_up_at = now.monotonic + self.config.timing.lease + self.jitter();
        let (granted, refused) = (Grants::default(), Vec::new());
        self.role = Role::Candidate { epoch, granted, refused, give_up_at, declares };
        let manifest = self.promise(Promise { epoch, candidate: Some(self.config.me) }, out);
        let last = self.last();
        let forced_first = Durable { manifest, ..Durable::default() };
        for peer in self.other_voters() {
            let after = if self.stands_unforced() { Durable::default() } else { forced_first };
            out.send(peer, Message::Prepare { epoch, last }, after);
        }
        if self.stands_unforced() {
            self.own_promise_forced(manifest, now, out);
        }
    }

    /// A planted bug: a candidate does not force its own promise (guarantees 2 and 11).
    fn stands_unforced(&self) -> bool {
        planted(Bug::CandidateNotForced) || self.promises_unforced()
    }

    /// A planted bug: promises are not forced in cohorts with main-memory logs (guarantee 11).
    fn promises_unforced(&self) -> bool {
        self.is_in_memory() && planted(Bug::MemoryPromiseNotForced)
    }

    /// The replica's own promise is durable and counts.
    pub(crate) fn own_promise_forced(&mut self, manifest: ManifestId, now: Now, out: &mut Outbox) {
        let me = self.config.me.node;
        let (forced, integrity) = (manifest >= self.promise_manifest, self.integrity());
        if let Role::Candidate { granted, .. } = &mut self.role
            && forced
        {
            granted.add(me, integrity);
            self.count_promises(now, out);
        }
    }

    pub(crate) fn prepare(&mut self, from: Member, epoch: Epoch, last: Lsn, now: Now, out: &mut Outbox) {
        let again = self.promised == Promise { epoch, candidate: Some(from) };
        let granted = again || self.may_promise(from, epoch, last, now);
        if granted && !again {
            self.step_down(now, out);
            self.promise(Promise { epoch, candidate: Some(from) }, out);
            self.wait_for_candidate(now);
        }
        let mut after = Durable { manifest: self.promise_manifest, ..Durable::default() };
        if planted(Bug::PromiseNotForced) || self.promises_unforced() {
            after = Durable::default();
        }
        let (integrity, promised) = (self.integrity(), self.promised.epoch);
        let reply = Message::PrepareReply { epoch, granted, integrity, promised };
        out.send(from.node, reply, after);
    }

    /// Gives the promised candidate time to win.
    fn wait_for_candidate(&mut self, now: Now) {
        let patience = now.monotonic + self.config.timing.lease;
        self.follow(None, patience);
    }

    /// Records a promise in memory now, and in the next manifest.
    pub(crate) fn promise(&mut self, promise: Promise, out: &mut Outbox) -> ManifestId {
        assert!(
            promise.epoch > self.promised.epoch || planted(Bug::PromiseTwice) || planted(Bug::RestartedLeaderGoesOn),
            "an epoch is promised once"
        );
        self.promised = promise;
        self.promise_manifest = out.change_manifest();
        self.promise_manifest
    }

    pub(crate) fn prepare_reply(
        &mut self,
        (from, integrity): (Member, LogIntegrity),
        epoch: Epoch,
        granted: bool,
        promised: Epoch,
        now: Now,
        out: &mut Outbox,
    ) {
        let (counts, most) = (self.is_voter(from), self.membership().voters().len().saturating_sub(self.quorum()));
        let Role::Candidate { epoch: asked, granted: voters, refused, .. } = &mut self.role else { return };
        if *asked != epoch || !counts {
            return;
        }
        if granted {
            voters.add(from.node, integrity);
            self.count_promises(now, out);
            return;
        }
        add(refused, from.node);
        let lost = refused.len() > most;
        if lost || promised > epoch {
            // Another candidate uses the same or a newer epoch: retry soon instead of waiting for the timeout.
            self.promised_elsewhere(promised, now, out);
        }
    }

    fn count_promises(&mut self, now: Now, out: &mut Outbox) {
        let Role::Candidate { epoch, granted, declares, .. } = &self.role else { return };
        let (epoch, quorum) = (*epoch, self.quorum());
        let is_whole = granted.whole.len() >= quorum;
        let is_lossy = *declares && self.suffice_for_loss(granted);
        if granted.contains(self.config.me.node) && (is_whole || is_lossy) {
            self.lead(epoch, !is_whole, now, out);
        }
    }

    /// A replica has promised a newer epoch than that of this leader or candidate.
    pub(crate) fn superseded(&mut self, promised: Epoch, now: Now, out: &mut Outbox) {
        let ours = match &self.role {
            Role::Leader(leader) => leader.epoch,
            Role::Candidate { epoch, .. } => *epoch,
            Role::Follower { .. } | Role::PreCandidate { .. } | Role::Appointed { .. } => return,
        };
        if promised > ours && self.is_managed() {
            // The catalog's entry decides which configuration follows. This replica never leads in this version again.
            self.step_down(now, out);
        } else if promised > ours {
            self.promised_elsewhere(promised, now, out);
        }
    }

    /// Resigns as the leader: first withdraws the read view, then releases the votes (guarantee 3). Names the most
    /// advanced follower as the successor.
    pub fn release(&mut self, now: Now, out: &mut Outbox) {
        if self.is_managed() {
            return self.hand_over(now, out);
        }
        let Role::Leader(leader) = &self.role else { return };
        let successor = leader.successor(|member| self.is_voter(member));
        self.release_to(successor, now, out);
    }

    /// Resigns as the leader in favor of a certain voter. Returns false, and continues, if it does not lead, or if that
    /// voter could not take over at once: it lacks committed entries, or does not vote for this leader.
    pub fn hand_to(&mut self, node: NodeId, now: Now, out: &mut Outbox) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        let peer = leader.peers.get(&node).filter(|peer| peer.voted && !peer.doubtful && self.is_voter(peer.member));
        let Some(member) = peer.filter(|peer| peer.matched >= self.committed).map(|peer| peer.member) else {
            return false;
        };
        match self.is_managed() {
            true => self.propose_primary(member, now, out),
            false => self.release_to(Some(node), now, out),
        }
        true
    }

    fn release_to(&mut self, successor: Option<NodeId>, now: Now, out: &mut Outbox) {
        let Role::Leader(leader) = &self.role else { return };
        let epoch = leader.epoch;
        let peers: Vec<NodeId> = leader.peers.keys().copied().collect();
        if !planted(Bug::ReadAfterRelease) {
            self.step_down(now, out);
            self.stay_out(now);
        }
        for peer in peers {
            out.send(peer, Message::Release { epoch, successor }, Durable::default());
        }
    }

    /// This replica cannot serve all requests: it resigns and does not stand for a while, but continues to vote and
    /// log. If it becomes the leader again afterwards, no other replica may be able to serve more: it then stays for a
    /// longer time and serves what it can. Calling this again while another replica leads has no further effect.
    pub fn stand_aside(&mut self, now: Now, out: &mut Outbox) {
        let was_aside = self.leases_aside(now).is_some_and(|leases| leases < ASIDE_AGAIN_AFTER);
        let follows = matches!(self.role, Role::Follower { leader: Some(_), .. });
        if !self.other_voters().is_empty() && (follows || !was_aside) {
            self.aside_since = Some(now.monotonic);
            self.release(now, out);
        }
    }

    pub(crate) fn is_aside(&self, now: Now) -> bool {
        self.leases_aside(now).is_some_and(|leases| leases < ASIDE_FOR)
    }

    /// Time since it stood aside, in leases.
    fn leases_aside(&self, now: Now) -> Option<u64> {
        self.aside_since.map(|since| now.monotonic.since(since).0 / self.config.timing.lease.0.max(1))
    }

    /// After a release, leaves the election to the others for a while.
    fn stay_out(&mut self, now: Now) {
        let patience = self.config.timing.lease;
        self.follow(None, now.monotonic + patience + patience);
    }

    pub(crate) fn release_received(
        &mut self,
        from: Member,
        epoch: Epoch,
        successor: Option<NodeId>,
        now: Now,
        out: &mut Outbox,
    ) {
        let theirs = self.vote.is_some_and(|vote| vote.leader == from && vote.epoch == epoch);
        if theirs {
            self.vote = None;
        }
        if self.is_managed() {
            return self.take_office(now, out);
        }
        let followed = matches!(self.role, Role::Follower { leader: Some(leader), .. } if leader == from.node);
        if !followed || self.promised.epoch != epoch {
            return;
        }
        if successor == Some(self.config.me.node) {
            self.stand(now, out);
        } else {
            self.follow(None, now.monotonic + self.config.timing.election_jitter);
        }
    }
}

pub(crate) fn add(nodes: &mut Vec<NodeId>, node: NodeId) {
    if !nodes.contains(&node) {
        nodes.push(node);
        nodes.sort_unstable();
    }
}
