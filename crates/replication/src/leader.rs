//! Leadership: takeover, proposals, commit (Spinnaker 5 and 6.2, Gaios 3.1; guarantees 1, 12 and 17).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use base::canary::{Bug, planted};
use base::{Entry, Epoch, Lsn, Member, Monotonic, NodeId, Now, Sequence, SharedMembership, Timestamp};
use bytes::Bytes;

use crate::cohort::{Cohort, Role};
use crate::config::{Authority, Timing};
use crate::message::{Gap, Message, Reply};
use crate::outbox::{Durable, Outbox, Output};

/// A wall clock outside this range is ignored (guarantee 17): 2020 to 2200, in nanoseconds.
const WALL_CLOCK_RANGE: std::ops::Range<i64> = 1_577_836_800_000_000_000..7_258_118_400_000_000_000;

/// Committed entries that a learner may lack and still count as caught up. Under load some entries are always in
/// flight.
const CLOSE: u64 = 1_000;

/// A leader's state during its epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leader {
    pub(crate) epoch: Epoch,
    /// The first entry of this epoch: nothing counts as committed before it does.
    pub(crate) barrier: Sequence,
    /// The epoch began with the declaration of a loss.
    pub(crate) declares: bool,
    /// The barrier is committed and applied: reads may be served.
    pub(crate) open: bool,
    pub(crate) peers: BTreeMap<NodeId, Peer>,
    pub(crate) heartbeat_at: Monotonic,
    /// When to send the commit point to followers that do not know it; `NEVER` if all do.
    pub(crate) tell_at: Monotonic,
    /// Bytes of entries committed since all followers received the commit point.
    unannounced_bytes: usize,
    /// When the epoch began; a leader without a majority of replies resigns.
    pub(crate) since: Monotonic,
    /// Bytes of uncommitted entries, including re-proposed ones.
    pub(crate) uncommitted_bytes: usize,
    /// When the timestamp of an entry that a majority holds has passed; `NEVER` if none has to wait.
    pub(crate) waits_until: Monotonic,
    /// Since when the first of these waits.
    pub(crate) waits_since: Option<Monotonic>,
    /// How long the last committed entries waited.
    pub(crate) waited: base::Duration,
}

/// A leader's view of a follower.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub(crate) member: Member,
    /// The first entry not sent yet.
    next: Sequence,
    /// The last entry sent, so that later proposals can name it when it is no longer in memory.
    last_sent: Lsn,
    /// Its log equals the leader's, and is durable, through this sequence.
    pub(crate) matched: Sequence,
    pub(crate) committed: Sequence,
    /// The last commit point sent to it, repeated in messages until a newer one is due.
    commit_sent: Sequence,
    /// The latest reading of its clock before which everything committed is covered by that commit point.
    commit_sent_as_of: Option<Monotonic>,
    pub(crate) doubtful: bool,
    /// Whether it has voted in this epoch, and the send time of the newest answered message.
    pub(crate) voted: bool,
    pub(crate) vote_sent: Monotonic,
    /// Send time of the newest message that it has answered.
    pub(crate) heard_at: Monotonic,
    /// Clock reading of its newest reply.
    pub(crate) last_peer_clock: Option<Monotonic>,
    pub(crate) catch_up: CatchUp,
    /// The entry that its state includes, if the log on disk has to show whether it is in this leader's log.
    stands_at: Option<Lsn>,
    /// It receives heartbeats of this cohort even at rest.
    pub(crate) needs_heartbeat: bool,
    /// When the last probe was sent.
    probed_at: Monotonic,
    /// Highest sequence retransmitted, and when.
    retransmitted_through: Sequence,
    retransmitted_at: Monotonic,
    /// Proposals sent and not yet acknowledged.
    in_flight: VecDeque<InFlight>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct InFlight {
    through: Sequence,
    bytes: usize,
}

/// A follower's reply to a proposal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// When the proposal was sent.
    pub(crate) sent: Monotonic,
    pub(crate) voted: bool,
    pub(crate) reply: Reply,
    pub(crate) committed: Sequence,
    pub(crate) doubtful: bool,
    pub(crate) at: Monotonic,
}

/// How a follower is brought up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CatchUp {
    /// Searching for the point where its log diverges, with one proposal at a time.
    Probe {
        /// Whether a probe is in flight.
        waiting: bool,
    },
    /// Pipelining: proposals are sent without waiting for earlier replies.
    Stream,
    /// Reading missing entries from the log on disk.
    ReadingLog {
        /// Whether they are sent as a probe, not pipelined.
        probes: bool,
    },
    /// Sending it a snapshot.
    State,
}

impl Peer {
    pub(crate) fn new(member: Member, next: Sequence, committed: Sequence) -> Self {
        Self {
            member,
            next,
            last_sent: Lsn::ZERO,
            matched: Sequence(0),
            committed: Sequence(0),
            commit_sent: committed,
            commit_sent_as_of: None,
            doubtful: false,
            voted: false,
            vote_sent: Monotonic(0),
            heard_at: Monotonic(0),
            last_peer_clock: None,
            catch_up: CatchUp::Probe { waiting: false },
            stands_at: None,
            needs_heartbeat: false,
            probed_at: Monotonic(0),
            retransmitted_through: Sequence(0),
            retransmitted_at: Monotonic(0),
            in_flight: VecDeque::new(),
        }
    }

    /// The commit point to send now, and the clock reading that it corresponds to. The reading counts from when this
    /// commit point was current, however often it is repeated.
    fn tell(&mut self, committed: Sequence, may_tell_ages: bool, timing: &Timing) -> (Sequence, Option<Monotonic>) {
        if timing.piggyback_commits {
            self.commit_sent = committed;
        }
        let is_current = self.commit_sent == committed || planted(Bug::AgeOfOldCommit);
        if is_current && may_tell_ages {
            self.commit_sent_as_of = self.commit_sent_as_of.max(self.last_peer_clock);
        }
        (self.commit_sent, self.commit_sent_as_of)
    }

    /// Whether it neither knows nor was sent this commit point. A follower in doubt must receive it: its own commit point
    /// may be that of a checkpoint, which does not end the doubt.
    fn is_unannounced(&self, committed: Sequence) -> bool {
        let known = if self.doubtful { Sequence(0) } else { self.committed };
        self.commit_sent.max(known) < committed
    }

    /// Whether its vote is still valid.
    pub(crate) fn has_voted(&self, lease: base::Duration, now: Monotonic) -> bool {
        self.voted && self.vote_sent + lease > now
    }

    /// Whether it would not delay commits as a voter.
    pub(crate) fn is_close(&self, committed: Sequence) -> bool {
        let lag = committed.0.saturating_sub(self.matched.0);
        self.catch_up == CatchUp::Stream && !self.doubtful && lag <= CLOSE
    }

    fn bytes_in_flight(&self) -> usize {
        self.in_flight.iter().map(|proposal| proposal.bytes).sum()
    }

    /// Records a proposal sent through `last`.
    fn sent(&mut self, last: Lsn, bytes: usize) {
        self.next = last.sequence.next();
        self.last_sent = last;
        self.in_flight.push_back(InFlight { through: last.sequence, bytes });
    }

    /// The same peer with its node renamed.
    pub(crate) fn renamed(self, rename: impl Fn(NodeId) -> NodeId) -> (NodeId, Self) {
        let node = rename(self.member.node);
        (node, Self { member: Member { node, ..self.member }, ..self })
    }

    fn probe_from(&mut self, next: Sequence) {
        self.next = next;
        self.in_flight.clear();
        self.catch_up = CatchUp::Probe { waiting: false };
    }

    fn acknowledged(&mut self, through: Sequence) {
        self.matched = self.matched.max(through);
        if let CatchUp::Probe { .. } = self.catch_up {
            // Anything else sent while there was no reply is sent again, and does not count as in flight.
            self.catch_up = CatchUp::Stream;
            self.next = self.matched.next();
            self.in_flight.clear();
        }
        while self.in_flight.front().is_some_and(|proposal| proposal.through <= through) {
            self.in_flight.pop_front();
        }
        self.next = self.next.max(self.matched.next());
    }

    /// Handles the report that it lacks the predecessor of a proposal sent at `sent`. Returns the entries of the gap to
    /// retransmit: those not retransmitted since. Replies to proposals sent before the last retransmission carry no
    /// news; handling each would repeat all retransmissions.
    fn lacks(&mut self, gap: Gap, sent: Monotonic) -> Range<Sequence> {
        let first = gap.after.max(self.matched).next();
        match self.catch_up {
            CatchUp::Stream if sent >= self.probed_at => {
                let known = if sent <= self.retransmitted_at { self.retransmitted_through.next() } else { first };
                return first.max(known)..gap.through.next().min(self.next);
            }
            CatchUp::Probe { .. } if first < self.next => self.probe_from(first),
            CatchUp::Stream | CatchUp::Probe { .. } | CatchUp::ReadingLog { .. } | CatchUp::State => {}
        }
        first..first
    }

    /// Records a vote in reply to a message sent at `sent`.
    pub(crate) fn vote_given(&mut self, sent: Monotonic) {
        self.voted = true;
        self.heard_at = self.heard_at.max(sent);
        self.vote_sent = self.vote_sent.max(sent);
    }

    /// The predecessor of the next entry to send, if that is the last one sent.
    fn goes_on_after(&self) -> Option<Lsn> {
        (self.last_sent.sequence == self.next.previous()).then_some(self.last_sent)
    }

    /// Entries in flight precede the next one to send.
    pub(crate) fn invariants(&self) {
        let goes_on = self.in_flight.iter().all(|proposal| proposal.through < self.next);
        assert!(goes_on, "what is to be sent again is not under way");
    }

    /// Records that a probe is sent.
    fn probed(&mut self, now: Monotonic) {
        self.catch_up = CatchUp::Probe { waiting: true };
        self.probed_at = now;
    }
}

impl Leader {
    /// The peer's process restarted: acknowledgements of the old process are discarded. Everything committed with its
    /// help is included in the next commit point, because the doubt of the new process could otherwise end too early
    /// (guarantee 7).
    pub(crate) fn restarted(&mut self, node: NodeId, committed: Sequence) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.matched = Sequence(0);
            peer.committed = Sequence(0);
            peer.commit_sent = committed;
            // Its clock may have restarted with its machine.
            (peer.last_peer_clock, peer.commit_sent_as_of) = (None, None);
            peer.probe_from(peer.next);
        }
    }

    pub(crate) fn forget_times(&mut self) {
        self.heartbeat_at = Monotonic(0);
        self.tell_at = Monotonic::NEVER;
        self.waits_until = Monotonic::NEVER;
        (self.waits_since, self.waited) = (None, base::Duration::ZERO);
        self.since = Monotonic(0);
        for peer in self.peers.values_mut() {
            peer.probed_at = Monotonic(0);
            peer.heard_at = Monotonic(0);
            peer.retransmitted_at = Monotonic(0);
            (peer.last_peer_clock, peer.commit_sent_as_of) = (None, None);
        }
    }

    pub(crate) fn forget_lapsed_votes(&mut self, lease: base::Duration, now: Monotonic) {
        for peer in self.peers.values_mut() {
            if peer.vote_sent + lease <= now && !planted(Bug::LeaseCheckedBefore) {
                peer.voted = false;
                peer.vote_sent = Monotonic(0);
            }
        }
    }

    /// Discards send state and matches below the commit point, which do not affect decisions.
    pub(crate) fn forget_sent(&mut self, committed: Sequence) {
        self.unannounced_bytes = 0;
        for peer in self.peers.values_mut() {
            if peer.matched <= committed {
                peer.matched = Sequence(0);
            }
            peer.probe_from(peer.matched.next());
            peer.retransmitted_through = Sequence(0);
            peer.last_sent = Lsn::ZERO;
            (peer.commit_sent, peer.commit_sent_as_of) = (Sequence(0), None);
            peer.needs_heartbeat = false;
        }
    }

    pub(crate) fn applied(&mut self, entry: &Entry) {
        self.uncommitted_bytes = self.uncommitted_bytes.saturating_sub(entry.size());
        self.unannounced_bytes += entry.size();
    }

    /// The most advanced follower, for a leadership transfer.
    pub(crate) fn successor(&self, may_lead: impl Fn(Member) -> bool) -> Option<NodeId> {
        let able = self.peers.iter().filter(|(_, peer)| peer.voted && !peer.doubtful && may_lead(peer.member));
        able.max_by_key(|(_, peer)| peer.matched).map(|(node, _)| *node)
    }
}

impl Cohort {
    /// Takes over: re-proposes the entries past the commit point unchanged, followed by a barrier of the new epoch. If
    /// acknowledged entries may be lost, a declaration comes before the barrier.
    pub(crate) fn lead(&mut self, epoch: Epoch, declares: bool, now: Now, out: &mut Outbox) {
        self.restamp(epoch, out);
        let last = self.last();
        self.drop_prepared(out);
        let members = self.configured();
        let unresolved = self.log.entries().filter(|entry| entry.lsn.sequence > self.committed);
        let declares = declares && !planted(Bug::LossNotDeclared);
        let first = last.sequence.next();
        self.role = Role::Leader(Leader {
            epoch,
            barrier: if declares { first.next() } else { first },
            declares,
            open: false,
            peers: BTreeMap::new(),
            heartbeat_at: now.monotonic + self.config.timing.heartbeat,
            tell_at: Monotonic::NEVER,
            unannounced_bytes: 0,
            since: now.monotonic,
            uncommitted_bytes: unresolved.map(Entry::size).sum(),
            waits_until: Monotonic::NEVER,
            waits_since: None,
            waited: base::Duration::ZERO,
        });
        self.keep_peers();
        if declares {
            self.append_own(epoch, self.config.declaration.clone(), None, Timestamp(0), now, out);
        }
        self.append_own(epoch, Bytes::new(), members, Timestamp(0), now, out);
        self.propose_pending(now, out);
        self.advance_commit(now, out);
    }

    /// A planted bug: gives unresolved entries LSNs of the new epoch.
    fn restamp(&mut self, epoch: Epoch, out: &mut Outbox) {
        if !planted(Bug::RestampReproposed) {
            return;
        }
        let unresolved = self.log.slice(self.committed.next(), usize::MAX);
        self.cut(self.committed.next());
        for mut entry in unresolved {
            entry.previous = self.last();
            entry.lsn.epoch = epoch;
            self.accept(entry, out);
        }
    }

    /// Proposes a new entry. Its outcome appears as [`Output::Apply`], or is unknown after [`Output::LeadLost`].
    /// Returns `None` if this replica is not the leader. Proposals are sent at [`Cohort::settle`].
    pub fn propose(&mut self, payload: Bytes, now: Now, out: &mut Outbox) -> Option<Lsn> {
        self.propose_from(payload, Timestamp(0), now, out)
    }

    /// [`Cohort::propose`] with a timestamp of at least `floor`.
    pub fn propose_from(&mut self, payload: Bytes, floor: Timestamp, now: Now, out: &mut Outbox) -> Option<Lsn> {
        let Role::Leader(leader) = &self.role else { return None };
        let epoch = leader.epoch;
        let lsn = self.append_own(epoch, payload, None, floor, now, out);
        if self.quorum() == 1 {
            // With a main-memory log no other event reports that it is committed.
            self.advance_commit(now, out);
        }
        Some(lsn)
    }

    /// Whether too many bytes are uncommitted, so that new proposals should be rejected (backpressure).
    #[must_use]
    pub fn overloaded(&self) -> bool {
        let limit = self.config.limits.uncommitted_bytes;
        matches!(&self.role, Role::Leader(leader) if leader.uncommitted_bytes > limit)
    }

    pub(crate) fn append_own(
        &mut self,
        epoch: Epoch,
        payload: Bytes,
        members: Option<SharedMembership>,
        floor: Timestamp,
        now: Now,
        out: &mut Outbox,
    ) -> Lsn {
        self.end_rest(now);
        let changes = members.is_some();
        let previous = self.last();
        let lsn = Lsn { epoch, sequence: previous.sequence.next() };
        let timestamp = self.next_timestamp(now).max(floor);
        if let Some(bound) = now.uncertainty {
            self.last_bound = Some((timestamp, bound));
        }
        let entry = Entry { lsn, previous, timestamp, payload, members };
        if let Role::Leader(leader) = &mut self.role {
            leader.uncommitted_bytes += entry.size();
        }
        self.accept(entry, out);
        if changes {
            self.keep_peers();
        }
        lsn
    }

    /// The timestamp of an entry proposed now: greater than every timestamp in the log, independent of the clock. The
    /// clock only keeps it close to real time (guarantee 17).
    #[must_use]
    pub fn next_timestamp(&self, now: Now) -> Timestamp {
        if planted(Bug::VersionFromWallClock) {
            return now.wall;
        }
        let reading = self.reading(now).0;
        let mut last = self.log.last_timestamp().0;
        if planted(Bug::TimestampIgnoresLog) && self.log.last().epoch != self.promised.epoch {
            last = 0;
        }
        Timestamp(reading.max(last.saturating_add(1)))
    }

    /// What the clock says about the timestamp of an entry proposed now: if entries wait for their timestamps, the end of
    /// the interval that contains true time. 0 if the clock cannot be right.
    #[must_use]
    pub fn reading(&self, now: Now) -> Timestamp {
        let wall = now.interval().filter(|_| self.config.waits).map_or(now.wall, |interval| interval.latest);
        let believed = WALL_CLOCK_RANGE.contains(&wall.0) || planted(Bug::WallClockOutOfRange);
        if believed { wall } else { Timestamp(0) }
    }

    /// As a leader, sends a message to every follower that is not at rest, in any catch-up state, with the commit
    /// point.
    pub fn heartbeat(&mut self, now: Now, out: &mut Outbox) {
        let lease = self.config.timing.lease;
        let votes_end = self.votes_end(now.monotonic);
        let Role::Leader(leader) = &mut self.role else { return };
        let votes_end = votes_end.unwrap_or(leader.since);
        let may_resign = self.config.regime.authority() == Authority::Votes;
        if may_resign && now.monotonic > votes_end + lease && now.monotonic > leader.since + lease + lease {
            // No majority has replied for two leases: resign, so that waiting clients get an error.
            self.step_down(now, out);
            return;
        }
        leader.heartbeat_at = now.monotonic + self.config.timing.heartbeat;
        self.petition_to_remove_silent(now, out);
        let nodes: Vec<NodeId> = self.peers().filter(|node| self.quiescence_with(*node).is_none()).collect();
        for node in nodes {
            self.send_heartbeat(node, now, out);
        }
    }

    /// Sends the commit point to followers that do not know it, if it is due. Followers that are still catching up
    /// receive it with their next entries.
    pub(crate) fn tell_commits(&mut self, now: Now, out: &mut Outbox) {
        let (committed, limit) = (self.committed, self.config.limits.unannounced_bytes);
        let Role::Leader(leader) = &mut self.role else { return };
        let unannounced = || leader.peers.iter().filter(|(_, peer)| peer.is_unannounced(committed));
        if unannounced().next().is_none() {
            (leader.tell_at, leader.unannounced_bytes) = (Monotonic::NEVER, 0);
            return;
        }
        leader.tell_at = leader.tell_at.min(now.monotonic + self.config.timing.commit_period);
        if leader.tell_at > now.monotonic && leader.unannounced_bytes <= limit {
            return;
        }
        let close = unannounced().filter(|(_, peer)| peer.catch_up == CatchUp::Stream);
        let close: Vec<NodeId> = close.map(|(node, _)| *node).collect();
        (leader.tell_at, leader.unannounced_bytes) = (Monotonic::NEVER, 0);
        leader.peers.values_mut().for_each(|peer| peer.commit_sent = committed);
        for node in close {
            self.send_heartbeat(node, now, out);
        }
    }

    /// Sends one message to a follower in any catch-up state: it requests a vote, carries the commit point, and detects
    /// losses.
    fn send_heartbeat(&mut self, node: NodeId, now: Now, out: &mut Outbox) {
        let base = self.log.base();
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peers.get_mut(&node) else { return };
        if let CatchUp::Probe { waiting } = &mut peer.catch_up {
            *waiting = false;
            if peer.next > base.sequence {
                self.send_next(node, now, out);
                return;
            }
        }
        let previous = self.log.lsn_at(peer.next.previous()).or_else(|| peer.goes_on_after()).unwrap_or(base);
        self.send_proposal(node, previous, Vec::new(), now, out);
        self.pump(node, now, out);
    }

    /// Sends a follower the entries from `next` on, even if it was sent them before. For the search.
    pub fn send_from(&mut self, node: NodeId, next: Sequence, now: Now, out: &mut Outbox) {
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peers.get_mut(&node) else { return };
        peer.probe_from(next);
        self.send_next(node, now, out);
    }

    /// Sends pending entries to every follower that can take them.
    pub(crate) fn propose_pending(&mut self, now: Now, out: &mut Outbox) {
        let Role::Leader(leader) = &self.role else { return };
        let nodes: Vec<NodeId> = leader.peers.keys().copied().collect();
        for node in nodes {
            self.pump(node, now, out);
        }
    }

    fn pump(&mut self, node: NodeId, now: Now, out: &mut Outbox) {
        while self.wants_more(node) {
            self.send_next(node, now, out);
        }
    }

    fn wants_more(&self, node: NodeId) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        let Some(peer) = leader.peers.get(&node) else { return false };
        let pending = peer.next <= self.log.last().sequence;
        match peer.catch_up {
            CatchUp::Probe { waiting } => !waiting,
            CatchUp::Stream => pending && peer.bytes_in_flight() < self.config.limits.window_bytes,
            CatchUp::ReadingLog { .. } | CatchUp::State => false,
        }
    }

    /// Sends the next entries to a follower, or has them read from the log.
    fn send_next(&mut self, node: NodeId, now: Now, out: &mut Outbox) {
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peers.get_mut(&node) else { return };
        let Some(previous) = self.log.lsn_at(peer.next.previous()) else {
            peer.catch_up = CatchUp::ReadingLog { probes: matches!(peer.catch_up, CatchUp::Probe { .. }) };
            out.push(Output::ReadLog { peer: node, from: peer.next });
            return;
        };
        let entries = self.log.slice(peer.next, self.config.limits.propose_bytes);
        if let CatchUp::Probe { .. } = peer.catch_up {
            peer.probed(now.monotonic);
        } else if let Some(last) = entries.last() {
            peer.sent(last.lsn, entries.iter().map(Entry::size).sum());
        }
        self.send_proposal(node, previous, entries, now, out);
    }

    /// Sends a follower entries, or none, with the commit point and its age.
    fn send_proposal(&mut self, node: NodeId, previous: Lsn, entries: Vec<Entry>, now: Now, out: &mut Outbox) {
        let (committed, may_tell_ages) = (self.committed, self.may_tell_ages(now.monotonic));
        let Role::Leader(leader) = &mut self.role else { return };
        let (epoch, sent) = (leader.epoch, now.monotonic);
        let Some(peer) = leader.peers.get_mut(&node) else { return };
        let (commit, heard) = peer.tell(committed, may_tell_ages, &self.config.timing);
        let message = Message::Propose { epoch, previous, entries, commit, sent, heard };
        out.send(node, message, Durable::default());
    }

    /// Retransmits only the missing entries. If they are no longer in memory, the follower is probed like any lagging
    /// one.
    fn send_again(&mut self, node: NodeId, lacking: Range<Sequence>, now: Now, out: &mut Outbox) {
        let limit = self.config.limits.propose_bytes;
        let mut first = lacking.start;
        while first < lacking.end {
            let Role::Leader(leader) = &mut self.role else { return };
            let Some(peer) = leader.peers.get_mut(&node) else { return };
            let Some(previous) = self.log.lsn_at(first.previous()) else { return peer.probe_from(first) };
            let mut entries = self.log.slice(first, limit);
            entries.retain(|entry| entry.lsn.sequence < lacking.end);
            let Some(last) = entries.last().map(|entry| entry.lsn.sequence) else { return };
            (peer.retransmitted_through, peer.retransmitted_at) = (peer.retransmitted_through.max(last), now.monotonic);
            self.send_proposal(node, previous, entries, now, out);
            first = last.next();
        }
    }

    /// Handles a follower's reply to a proposal.
    pub(crate) fn reply_received(&mut self, from: Member, epoch: Epoch, answer: Answered, now: Now, out: &mut Outbox) {
        let last = self.log.last().sequence;
        let Role::Leader(leader) = &mut self.role else { return };
        if leader.epoch != epoch {
            return;
        }
        let Some(peer) = leader.peers.get_mut(&from.node).filter(|peer| peer.member == from) else { return };
        if answer.voted {
            peer.vote_given(answer.sent);
            peer.needs_heartbeat = false;
        }
        peer.heard_at = peer.heard_at.max(answer.sent);
        peer.last_peer_clock = peer.last_peer_clock.max(Some(answer.at));
        peer.committed = peer.committed.max(answer.committed);
        peer.doubtful = answer.doubtful;
        match answer.reply {
            Reply::Matched(through) if through <= last => peer.acknowledged(through),
            Reply::Missing(gap) if gap.after < last => {
                let lacking = peer.lacks(gap, answer.sent);
                self.send_again(from.node, lacking, now, out);
            }
            Reply::Apart(lsn) if matches!(peer.catch_up, CatchUp::Probe { .. } | CatchUp::Stream) => {
                match self.log.lsn_at(lsn.sequence) {
                    Some(ours) if ours == lsn => peer.probe_from(lsn.sequence.next()),
                    // Only the log on disk can show it.
                    None if lsn.sequence < self.log.base().sequence => {
                        peer.stands_at = Some(lsn);
                        peer.probe_from(lsn.sequence);
                    }
                    _ => {
                        peer.catch_up = CatchUp::State;
                        out.push(Output::SendState { peer: from.node });
                    }
                }
            }
            Reply::Matched(_) | Reply::Missing(_) | Reply::Apart(_) => return,
        }
        self.advance_commit(now, out);
        self.pump(from.node, now, out);
    }

    /// The peers that count in majorities.
    pub(crate) fn voting<'a>(&'a self, leader: &'a Leader) -> impl Iterator<Item = &'a Peer> {
        let joins = move |peer: &Peer| self.managed.joining.contains(&peer.member);
        let counts =
            move |peer: &&Peer| self.is_voter(peer.member) || joins(peer) || planted(Bug::CandidateAcknowledges);
        leader.peers.values().filter(counts)
    }

    /// Commits the entries that a majority holds durably, if the last of them is of this leader's epoch; earlier
    /// entries are committed with it (guarantee 1). Any majority counts, with or without the leader (Gaios 3.1).
    /// None does before its timestamp has passed, if entries wait for that.
    pub(crate) fn advance_commit(&mut self, now: Now, out: &mut Outbox) {
        let Role::Leader(leader) = &self.role else { return };
        let epoch = leader.epoch;
        let mut held: Vec<Sequence> = self.voting(leader).map(|peer| peer.matched).collect();
        held.push(self.acknowledged());
        held.sort_unstable_by(|a, b| b.cmp(a));
        let lax = planted(Bug::CommitWithoutMember) && self.is_managed();
        let quorum = if lax { self.membership().quorum() } else { self.quorum() };
        let mut reached = held[quorum - 1];
        if planted(Bug::AnswerBeforeCommit) {
            reached = self.acknowledged();
        }
        reached = self.past(reached, now);
        let own_epoch = self.log.lsn_at(reached).is_some_and(|lsn| lsn.epoch == epoch);
        if reached <= self.committed || !(own_epoch || planted(Bug::CommitOldEpochByCount)) {
            return;
        }
        self.committed = reached;
        if planted(Bug::MembershipOnCommit) {
            self.keep_peers();
        }
        self.apply_committed(out);
        let applied = self.applied;
        if let Role::Leader(leader) = &mut self.role {
            leader.open |= applied >= leader.barrier;
        }
        self.remember(out);
    }

    /// Handles the entries requested by [`Output::ReadLog`], in order from `from`; `None` if the log no longer contains
    /// them.
    pub fn log_read(&mut self, node: NodeId, from: Sequence, entries: Option<Vec<Entry>>, now: Now, out: &mut Outbox) {
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peers.get_mut(&node) else { return };
        let CatchUp::ReadingLog { probes } = peer.catch_up else { return };
        if peer.next != from {
            // It acknowledged more while the log was read.
            peer.probe_from(peer.next);
            self.pump(node, now, out);
            return;
        }
        let mut entries = entries.unwrap_or_default();
        entries.truncate(chained(&entries));
        let is_other = |first: &Entry| peer.stands_at.is_some_and(|at| at.sequence == from && at != first.lsn);
        if entries.first().is_some_and(is_other) {
            entries.clear();
        }
        peer.stands_at = None;
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            peer.catch_up = CatchUp::State;
            out.push(Output::SendState { peer: node });
            return;
        };
        assert_eq!(first.lsn.sequence, from, "the log was read from where it was asked for");
        peer.sent(last.lsn, entries.iter().map(Entry::size).sum());
        if probes {
            peer.probed(now.monotonic);
        } else {
            peer.catch_up = CatchUp::Stream;
        }
        let previous = first.previous;
        self.send_proposal(node, previous, entries, now, out);
        self.pump(node, now, out);
    }

    /// The follower has the snapshot through `lsn` on disk; `None` if the transfer failed.
    pub fn state_sent(&mut self, node: NodeId, lsn: Option<Lsn>, now: Now, out: &mut Outbox) {
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peers.get_mut(&node) else { return };
        if peer.catch_up == CatchUp::State {
            let next = lsn.map_or(peer.next, |lsn| lsn.sequence.next());
            peer.probe_from(next);
            if lsn.is_none() {
                // There is no snapshot yet, or the transfer failed: the next heartbeat determines the next step.
                peer.catch_up = CatchUp::Probe { waiting: true };
            }
            self.pump(node, now, out);
        }
    }

    /// The last entry through which a follower's log is known to equal this leader's; none at a replica that does not lead,
    /// or if it has no such follower.
    pub fn matched(&self, node: NodeId) -> Option<Sequence> {
        let Role::Leader(leader) = &self.role else { return None };
        leader.peers.get(&node).map(|peer| peer.matched)
    }

    /// The catch-up state of each follower.
    pub fn catch_ups(&self) -> impl Iterator<Item = (NodeId, CatchUp)> + '_ {
        let leader = if let Role::Leader(leader) = &self.role { Some(leader) } else { None };
        leader.into_iter().flat_map(|leader| leader.peers.iter().map(|(node, peer)| (*node, peer.catch_up)))
    }
}

/// Length of the prefix of entries that form a chain of predecessors.
fn chained(entries: &[Entry]) -> usize {
    let broken = entries.windows(2).position(|pair| pair[1].previous != pair[0].lsn);
    broken.map_or(entries.len(), |place| place + 1)
}
