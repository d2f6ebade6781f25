//! Quiescence: replaces the regular heartbeats of idle cohorts by batched heartbeats between nodes (guarantees 2 and
//! 14).
//!
//! A follower is *at rest* with its leader if it holds all of the leader's log on disk and knows that it is committed.
//! A heartbeat to it then depends only on the epoch and the last LSN, and its reply is one lease vote without other
//! information. The leader checks this with [`Cohort::quiescence_with`] and sends such a follower no messages of its own.
//! [`Cohort::batched_heartbeat_received`] replaces the receipt of the heartbeat, and [`Cohort::batched_reply_received`]
//! that of its reply.
//!
//! **Invariant:** unless `batched_heartbeat_received` refuses, it has exactly the effect of the heartbeat, and the reply
//! to the heartbeat would have carried only the vote. The search compares the two in every state.

use base::canary::{Bug, planted};
use base::{Epoch, Lsn, Member, Monotonic, NodeId, Now, Promise};

use crate::cohort::{Cohort, Role};
use crate::leader::{CatchUp, Leader};
use crate::outbox::ManifestId;

/// The content of a heartbeat to a follower at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quiescence {
    pub epoch: Epoch,
    /// The last entry of the leader's log, which is committed.
    pub last: Lsn,
}

impl Cohort {
    /// The content of a heartbeat to that follower, if it is at rest; then this cohort sends it no heartbeats itself.
    #[must_use]
    pub fn quiescence_with(&self, peer: NodeId) -> Option<Quiescence> {
        let Role::Leader(leader) = &self.role else { return None };
        let (last, peer) = (self.log.last(), leader.peers.get(&peer)?);
        let has_all = peer.matched == last.sequence && peer.committed == last.sequence;
        let is_quiet = peer.catch_up == CatchUp::Stream && !peer.needs_heartbeat && peer.voted && !peer.doubtful;
        (self.has_nothing_open(leader) && has_all && is_quiet).then_some(Quiescence { epoch: leader.epoch, last })
    }

    /// Whether every entry of this log is forced here, committed and applied.
    fn has_nothing_open(&self, leader: &Leader) -> bool {
        let last = self.log.last().sequence;
        leader.open && self.applied == last && self.acknowledged() == last && self.committed_logged == last
    }

    /// Whether every follower is at rest, so that no timer is needed.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.peers().all(|peer| self.quiescence_with(peer).is_some())
    }

    /// Called before a proposal is sent. Followers at rest learn of its commit with the next heartbeat, so an overdue
    /// heartbeat is postponed.
    pub(crate) fn end_rest(&mut self, now: Now) {
        let is_at_rest = self.is_at_rest();
        if let Role::Leader(leader) = &mut self.role
            && leader.heartbeat_at <= now.monotonic
            && is_at_rest
        {
            leader.heartbeat_at = now.monotonic + self.config.timing.heartbeat;
        }
    }

    /// The batched heartbeat for that follower was refused or not answered: this cohort sends its own heartbeats until
    /// the follower votes.
    pub fn resume_heartbeats(&mut self, peer: NodeId, now: Now) {
        let Role::Leader(leader) = &mut self.role else { return };
        if let Some(peer) = leader.peers.get_mut(&peer) {
            peer.needs_heartbeat = true;
            leader.heartbeat_at = leader.heartbeat_at.min(now.monotonic);
        }
    }

    /// Handles a batched heartbeat as a follower: gives the vote, which may be sent once the returned manifest is
    /// forced. `heard` is a reading of this replica's clock at which the leader held every committed entry, if known.
    /// Returns `None` and does nothing if the reply would carry more than the vote: the leader must then send a message
    /// of its own.
    pub fn batched_heartbeat_received(
        &mut self,
        leader: Member,
        rest: Quiescence,
        heard: Option<Monotonic>,
        now: Now,
    ) -> Option<ManifestId> {
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

    /// Whether this replica's state matches the leader's heartbeat, and it can vote.
    #[must_use]
    pub fn agrees(&self, leader: Member, rest: Quiescence, now: Now) -> bool {
        let last = rest.last.sequence;
        let follows = matches!(self.role, Role::Follower { leader: Some(node), .. } if node == leader.node);
        let promised = Promise { epoch: rest.epoch, candidate: Some(leader) };
        let is_ours = follows && self.promised == promised && self.following == rest.epoch;
        let has_all = self.last() == rest.last && self.acknowledged() == last && self.matched == last;
        let knows_all = self.committed == last && self.leader_committed == last;
        let may_vote = self.installing.is_none() && !self.is_in_doubt() && now.monotonic >= self.voteless_until;
        is_ours && has_all && knows_all && may_vote
    }

    /// Handles the reply to a batched heartbeat sent at `sent`, when the follower's clock showed `at`. Returns whether
    /// everything committed by any leader before is committed here, and nothing beyond the heartbeat's last entry
    /// (guarantee 15).
    pub fn batched_reply_received(
        &mut self,
        peer: NodeId,
        rest: Quiescence,
        (sent, at): (Monotonic, Monotonic),
        now: Monotonic,
    ) -> bool {
        let Role::Leader(leader) = &mut self.role else { return false };
        if leader.epoch != rest.epoch {
            return false;
        }
        if let Some(peer) = leader.peers.get_mut(&peer) {
            peer.vote_given(sent);
            peer.last_peer_clock = peer.last_peer_clock.max(Some(at));
        }
        self.committed == rest.last.sequence && self.may_tell_ages(now)
    }
}
