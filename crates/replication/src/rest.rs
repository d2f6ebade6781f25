//! Cohorts at rest: what a leader and a follower would say to each other again and again, said by whoever keeps the
//! heartbeats of many cohorts at once (guarantees 2 and 14).
//!
//! A follower that holds all of its leader's log, forced, and knows all of it to be committed, is *at rest* with it. A
//! heartbeat to it is then a function of the epoch and the last LSN alone, and so is the answer: one lease vote and no
//! news. [`Cohort::rest_with`] says so on the leader's side, and the leader sends such a follower nothing by itself.
//! [`Cohort::vouch`] takes the place of the heartbeat's receipt, and [`Cohort::vouched`] that of its answer's.
//!
//! **Invariant:** where `vouch` does not refuse, it does exactly what the heartbeat would have done, and the heartbeat's
//! answer would have told the leader nothing but the vote. The search compares the two in every state that it meets.

use base::canary::{Bug, planted};
use base::{Epoch, Lsn, Member, Monotonic, NodeId, Now, Promise};

use crate::cohort::{Cohort, Role};
use crate::leader::{CatchUp, Leader};
use crate::outbox::ManifestId;

/// What a heartbeat to a follower at rest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rest {
    /// The leader's epoch.
    pub epoch: Epoch,
    /// The last entry of the leader's log: it is committed.
    pub last: Lsn,
}

impl Cohort {
    /// What a heartbeat to that follower would say, if it is at rest with us: none that we lead is sent to it then.
    #[must_use]
    pub fn rest_with(&self, peer: NodeId) -> Option<Rest> {
        let Role::Leader(leader) = &self.role else { return None };
        let (last, peer) = (self.log.last(), leader.peers.get(&peer)?);
        let has_all = peer.matched == last.sequence && peer.committed == last.sequence;
        let is_quiet = peer.catch_up == CatchUp::Stream && !peer.is_roused && peer.voted && !peer.doubtful;
        (self.has_nothing_open(leader) && has_all && is_quiet).then_some(Rest { epoch: leader.epoch, last })
    }

    /// Whether all that our log holds is forced here, committed and applied.
    fn has_nothing_open(&self, leader: &Leader) -> bool {
        let last = self.log.last().sequence;
        leader.open && self.applied == last && self.acknowledged() == last && self.committed_logged == last
    }

    /// Whether every follower is at rest: then there is no moment to wait for.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.peers().all(|peer| self.rest_with(peer).is_some())
    }

    /// A proposal is about to leave. Whoever was at rest learns of its commit by the next heartbeat, which makes no
    /// sense at once.
    pub(crate) fn end_rest(&mut self, now: Now) {
        let is_at_rest = self.is_at_rest();
        if let Role::Leader(leader) = &mut self.role
            && leader.heartbeat_at <= now.monotonic
            && is_at_rest
        {
            leader.heartbeat_at = now.monotonic + self.config.timing.heartbeat;
        }
    }

    /// Whoever keeps our heartbeats has had no answer for that follower, or a refusal: it is sent its own again, until
    /// it votes.
    pub fn rouse(&mut self, peer: NodeId, now: Now) {
        let Role::Leader(leader) = &mut self.role else { return };
        if let Some(peer) = leader.peers.get_mut(&peer) {
            peer.is_roused = true;
            leader.heartbeat_at = leader.heartbeat_at.min(now.monotonic);
        }
    }

    /// Takes a heartbeat that says this, as a follower: gives the vote that is asked for, which may leave once that
    /// manifest is forced. It learns that our clock had shown `heard` when the leader had all that was committed, if
    /// that is said. None, and nothing is done, if the answer would say more than that all is as it was: then the
    /// leader must ask by a message of its own.
    pub fn vouch(&mut self, leader: Member, rest: Rest, heard: Option<Monotonic>, now: Now) -> Option<ManifestId> {
        let agrees = self.agrees(leader, rest, now);
        if !agrees && !planted(Bug::BeatVouchedBlindly) {
            return None;
        }
        if agrees {
            self.renew_vote(leader, rest.epoch, now);
            self.learn_age(heard, rest.last.sequence, now.monotonic);
        }
        Some(self.promise_manifest)
    }

    /// Whether all is here as that leader's heartbeat says, and the vote can be given.
    #[must_use]
    pub fn agrees(&self, leader: Member, rest: Rest, now: Now) -> bool {
        let last = rest.last.sequence;
        let follows = matches!(self.role, Role::Follower { leader: Some(node), .. } if node == leader.node);
        let promised = Promise { epoch: rest.epoch, candidate: Some(leader) };
        let is_ours = follows && self.promised == promised && self.following == rest.epoch;
        let has_all = self.last() == rest.last && self.acknowledged() == last && self.matched == last;
        let knows_all = self.committed == last && self.leader_committed == last;
        let may_vote = self.installing.is_none() && !self.is_in_doubt() && now.monotonic >= self.voteless_until;
        is_ours && has_all && knows_all && may_vote
    }

    /// A heartbeat that was sent at that moment, and said this, was vouched for when the follower's clock showed `at`.
    /// Says whether all that was committed by anybody before is what we have committed, and no more than was said
    /// (guarantee 15).
    pub fn vouched(&mut self, peer: NodeId, rest: Rest, (sent, at): (Monotonic, Monotonic), now: Monotonic) -> bool {
        let Role::Leader(leader) = &mut self.role else { return false };
        if leader.epoch != rest.epoch {
            return false;
        }
        if let Some(peer) = leader.peers.get_mut(&peer) {
            peer.vote_given(sent);
            peer.heard = peer.heard.max(Some(at));
        }
        self.committed == rest.last.sequence && self.may_tell_ages(now)
    }
}
