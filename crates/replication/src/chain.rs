//! Chained replication of large proposals: the leader sends them to one follower, which relays them to the next one
//! while its own disk forces them (Gaios 3.1, PacificA 4.1). So the leader sends one copy for any number of replicas.
//!
//! A relayed message carries entries of the leader's log and nothing else: no commit point, no age, no request for a
//! lease vote. A follower accepts it only after a direct message of the leader in this epoch. The
//! message is then equivalent to a delayed proposal of that leader: an epoch has one log, which only grows (guarantee
//! 1). Each follower acknowledges to the leader the entries that it has forced itself.
//!
//! A broken chain only costs time. Replies to the messages that the leader sends after `PATIENCE` show which follower
//! lacks which entries, and these are sent directly.

use base::canary::{Bug, planted};
use base::{Duration, Entry, Monotonic, NodeId, Now, Promise, Sequence};

use crate::cohort::{Cohort, Role};
use crate::message::{Message, Relay};
use crate::outbox::{Durable, Outbox};

/// How long a follower may lack relayed entries before they are sent directly.
const PATIENCE: Duration = Duration::from_millis(100);

impl Cohort {
    /// Sends pending entries down a chain of all followers that can take them, as long as they are large.
    pub(crate) fn propose_in_chain(&mut self, now: Now, out: &mut Outbox) {
        let limits = self.config.limits;
        if limits.chain_bytes == 0 {
            return;
        }
        while let Some((previous, followers)) = self.in_step(now.monotonic) {
            let entries = self.log.slice(previous.next(), limits.propose_bytes);
            let bytes: usize = entries.iter().map(Entry::size).sum();
            let (Some(last), Some(previous)) = (entries.last(), self.log.lsn_at(previous)) else { return };
            let last = last.lsn;
            let Role::Leader(leader) = &self.role else { return };
            if bytes <= limits.chain_bytes {
                return;
            }
            let (epoch, me, sent) = (leader.epoch, self.config.me.node, now.monotonic);
            for follower in &followers {
                let Role::Leader(leader) = &mut self.role else { return };
                let Some(peer) = leader.peers.get_mut(follower) else { continue };
                peer.sent(last, bytes, sent + PATIENCE);
                self.send_proposal(*follower, previous, Vec::new(), now, out);
            }
            pass_on(Relay { leader: me, then: followers, epoch, previous, entries, sent }, out);
        }
    }

    /// The followers that were sent the same entries, if there are several, and the last of these. Excludes followers
    /// without a recent reply, which would delay the others.
    fn in_step(&self, now: Monotonic) -> Option<(Sequence, Vec<NodeId>)> {
        let Role::Leader(leader) = &self.role else { return None };
        let (heartbeat, window) = (self.config.timing.heartbeat, self.config.limits.window_bytes);
        let heard_since = now - heartbeat - heartbeat;
        let able = leader.peers.iter().filter(|(_, peer)| peer.can_be_in_chain(heard_since, window));
        let able: Vec<_> = able.map(|(node, peer)| (*node, peer.sent_through())).collect();
        let sent = able.iter().map(|(_, sent)| *sent).max()?;
        let followers: Vec<NodeId> =
            able.iter().filter(|(_, through)| *through == sent).map(|(node, _)| *node).collect();
        (followers.len() > 1).then_some((sent, followers))
    }

    /// Handles a proposal relayed by another follower, or sent by the leader to the first of a chain.
    pub(crate) fn relayed(&mut self, relay: Relay, now: Now, out: &mut Outbox) {
        let leader = relay.leader;
        let follows = matches!(self.role, Role::Follower { leader: Some(node), .. } if node == leader);
        let Promise { epoch, candidate } = self.promised;
        let is_promised = epoch == relay.epoch && candidate.is_some_and(|candidate| candidate.node == leader);
        let is_ours = follows && is_promised && self.following == relay.epoch;
        if self.leads() || self.installing.is_some() || !(is_ours || planted(Bug::RelayBelieved)) {
            return;
        }
        pass_on(relay.clone(), out);
        let Relay { epoch, previous, entries, sent, .. } = relay;
        let reply = self.reconcile(previous, entries, out);
        self.learn_commit(self.leader_committed, out);
        if self.is_within() {
            self.learn_age(None, self.leader_committed, now.monotonic);
        }
        self.end_doubt(out);
        let (committed, doubtful, at) = (self.committed, self.is_in_doubt(), now.monotonic);
        let message = Message::ProposeReply { epoch, sent, voted: false, reply, committed, doubtful, at };
        out.send(leader, message, self.durable_log());
    }
}

/// Sends the message to the next follower of the chain.
fn pass_on(mut relay: Relay, out: &mut Outbox) {
    if relay.then.is_empty() {
        return;
    }
    let next = relay.then.remove(0);
    out.send(next, Message::Relay(relay), Durable::default());
}
