//! Behavior on a full disk. Nothing is lost, because failed writes to the disk are retried. Row writes are rejected in
//! the meantime, which reserves the remaining space in log segments for operations that free space, such as dropping a
//! table or moving a range. The node informs its peers, hands its ranges to those with space, and gets no new ones. Under
//! primary/backup replication a secondary that cannot append is silent, so that it is removed like one that has failed.

use base::limits::SESSIONS_MAX;
use base::{CohortId, Duration, NodeId, Now, counted};

use crate::checkpoint_schedule::Checkpoints;
use crate::message::Message;
use crate::node::{AT_ONCE, Node};
use crate::replica::Replica;
use crate::roster::Peer;

/// How long the disk counts as full after a write failed for lack of space. Longer than the pause before the retry.
const FULL_FOR: Duration = Duration::from_millis(8_000);

impl Checkpoints {
    /// Whether changes that add bytes are refused.
    pub(crate) fn is_disk_full(&self, now: Now) -> bool {
        now.monotonic < self.full_until
    }
}

impl Node {
    /// A write to the disk failed for lack of space.
    pub(crate) fn disk_full(&mut self, now: Now) {
        self.checkpoints.full_until = now.monotonic + FULL_FOR;
        let peers: Vec<NodeId> = self.cluster.peers.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.send(peer, Message::DiskFull, AT_ONCE, None));
        self.hand_all_over(now);
    }

    /// The disk of a peer is full.
    pub(crate) fn peer_disk_full(&mut self, peer: NodeId, now: Now) {
        if let Some(peer) = self.cluster.peers.get_mut(&peer) {
            peer.full_until = now.monotonic + FULL_FOR;
        }
    }

    /// Whether a peer is alive, and its disk is not full, as far as this node knows.
    pub(crate) fn has_space(&self, node: NodeId, now: Now) -> bool {
        let is_full = |peer: &Peer| now.monotonic < peer.full_until;
        self.cluster.is_alive(node, now.monotonic) && !self.cluster.peers.get(&node).is_some_and(is_full)
    }

    /// Hands every range that this node leads to a replica on a node with space, if there is one.
    fn hand_all_over(&mut self, now: Now) {
        let peers = self.cluster.peers.keys().copied().filter(|node| self.has_space(*node, now));
        let peers: Vec<NodeId> = peers.collect();
        self.each_cohort(now, |cohort, out| _ = peers.iter().any(|peer| cohort.hand_to(*peer, now, out)));
    }

    /// Whether a replica is silent because it cannot append: its range waits for all members, and continues once the
    /// primary has removed this one.
    pub(crate) fn is_mute(&self, cohort: CohortId, now: Now) -> bool {
        let is_secondary = |replica: &Replica| replica.cohort.is_managed() && !replica.cohort.leads();
        self.checkpoints.is_disk_full(now)
            && self.outgoing.is_stuck_for(self.config.timing.lease, now)
            && self.replicas.get(&cohort).is_some_and(is_secondary)
    }

    /// Problems of this node, as messages for operators.
    pub(crate) fn troubles(&self, now: Now) -> Vec<String> {
        let full = "disk full: ranges that it leads are read-only until space is freed";
        let damaged = "damaged data file: other replicas serve its data, and the node's log names the file";
        let troubles = [(self.checkpoints.is_disk_full(now), full), (self.counters.sstables_damaged > 0, damaged)];
        let troubles = troubles.into_iter().filter(|(is_so, _)| *is_so).map(|(_, words)| words.to_owned());
        let lost = match self.mending.lost() {
            0 => None,
            lost => Some(format!(
                "{} without content on any replica: reads of them fail",
                counted(lost as u64, "damaged block")
            )),
        };
        let troubles = troubles.chain(lost).chain(self.ranges_at_session_limit()).chain(self.stranded_ranges());
        troubles.chain(self.clock_trouble(now)).collect()
    }

    /// The ranges under primary/backup replication that wait for an operator.
    fn stranded_ranges(&self) -> impl Iterator<Item = String> {
        let stranded = self.replicas.iter().filter(|(_, replica)| replica.cohort.is_stranded());
        stranded.map(|(id, replica)| {
            format!(
                "range {id} of table {} has stopped: this node is its only member, and its disk may have lost \
                 acknowledged writes; the way out is: loggos admin declare-loss",
                replica.table
            )
        })
    }

    /// The ranges that this node leads and that evict sessions, or will soon.
    fn ranges_at_session_limit(&self) -> impl Iterator<Item = String> {
        let led = self.replicas.iter().filter(|(_, replica)| replica.cohort.leads());
        let crowded = led.filter(|(_, replica)| replica.state.sessions_open() >= SESSIONS_MAX / 10 * 9);
        crowded.map(|(id, replica)| {
            format!(
                "range {id} of table {} has {} of {SESSIONS_MAX} client sessions: at the limit, sessions that never \
                 wrote and those idle for longest are evicted",
                replica.table,
                replica.state.sessions_open()
            )
        })
    }
}
