//! Leading: takeover, proposals, commit (Spinnaker 5 and 6.2, Gaios 3.1; guarantees 1, 12 and 17).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use base::canary::{Bug, planted};
use base::{Entry, Epoch, Lsn, Member, Monotonic, NodeId, Now, Sequence, SharedMembership, Timestamp};
use bytes::Bytes;

use crate::cohort::{Cohort, Role};
use crate::config::Timing;
use crate::message::{Gap, Message, Reply};
use crate::outbox::{Durable, Outbox, Output};

/// Clock readings outside this range count as no clock (guarantee 17): 2020 to 2200.
const WALL_CLOCK_RANGE: std::ops::Range<i64> = 1_577_836_800_000_000_000..7_258_118_400_000_000_000;

/// Entries that a learner may lack of what is committed and still count as caught up: it streams, and under load some
/// are always on their way.
const CLOSE: u64 = 1_000;

/// A leader's state of its reign.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leader {
    pub(crate) epoch: Epoch,
    /// The first entry of our own epoch: nothing counts as committed before it does.
    pub(crate) barrier: Sequence,
    /// The reign began with the declaration of a loss.
    pub(crate) declares: bool,
    /// The barrier is committed and applied: reads may be answered.
    pub(crate) open: bool,
    pub(crate) peers: BTreeMap<NodeId, Peer>,
    pub(crate) heartbeat_at: Monotonic,
    /// When followers that have not been told of commits are told; never, if there are none.
    pub(crate) tell_at: Monotonic,
    /// Bytes of entries that were committed since all followers were told.
    untold_bytes: usize,
    /// When the reign began, for leaving it if nobody follows.
    since: Monotonic,
    /// Bytes of proposals, our own and those taken over, that aren't committed yet.
    pub(crate) uncommitted_bytes: usize,
}

/// A follower as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub(crate) member: Member,
    /// The first entry not sent yet.
    next: Sequence,
    /// The last entry that was sent, for proposals that go on from there when memory holds it no more.
    last_sent: Lsn,
    /// Its log equals ours, forced, through here.
    pub(crate) matched: Sequence,
    pub(crate) committed: Sequence,
    /// The commit point that it was sent last, and is sent until another is to be told.
    told: Sequence,
    /// What its clock had shown when all that was committed by anybody was within that commit point, as far as we can
    /// tell.
    told_as_of: Option<Monotonic>,
    pub(crate) doubtful: bool,
    /// Whether it has voted for us in this reign, and when the newest answered message was sent.
    pub(crate) voted: bool,
    pub(crate) vote_sent: Monotonic,
    /// Its clock, as its newest answer showed it.
    pub(crate) heard: Option<Monotonic>,
    pub(crate) catch_up: CatchUp,
    /// Its state is of this entry: our log on the disk is to tell whether it is in there.
    stands_at: Option<Lsn>,
    /// It is sent heartbeats of this cohort's own, at rest or not.
    pub(crate) is_roused: bool,
    /// When the last probe was sent.
    probed_at: Monotonic,
    /// Through here entries were sent anew that it lacked, at that moment for the last time.
    again: Sequence,
    again_at: Monotonic,
    /// Sent and not yet acknowledged.
    in_flight: VecDeque<InFlight>,
}

/// A proposal that a follower was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct InFlight {
    through: Sequence,
    bytes: usize,
    /// Others hand it on: it may still come until then. The beginning of time, if it was sent directly.
    until: Monotonic,
}

/// What a follower answered to a proposal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// When the proposal was sent.
    pub(crate) sent: Monotonic,
    pub(crate) voted: bool,
    pub(crate) reply: Reply,
    pub(crate) committed: Sequence,
    pub(crate) doubtful: bool,
    /// Its clock.
    pub(crate) at: Monotonic,
}

/// How a follower is being brought up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CatchUp {
    /// Where its log leaves ours is being looked for, one proposal at a time.
    Probe {
        /// Whether one is under way.
        waiting: bool,
    },
    /// It follows closely: proposals are sent without waiting for the answers to earlier ones.
    Stream,
    /// What it lacks is being read from our log.
    ReadingLog {
        /// Whether it is sent as a probe, and not as one more of many.
        probes: bool,
    },
    /// It is being sent the whole state.
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
            told: committed,
            told_as_of: None,
            doubtful: false,
            voted: false,
            vote_sent: Monotonic(0),
            heard: None,
            catch_up: CatchUp::Probe { waiting: false },
            stands_at: None,
            is_roused: false,
            probed_at: Monotonic(0),
            again: Sequence(0),
            again_at: Monotonic(0),
            in_flight: VecDeque::new(),
        }
    }

    /// The commit point for what is sent to it now, and what its clock had shown when all that was committed was within
    /// it. That counts from when this commit point was current, however often it is told.
    fn tell(&mut self, committed: Sequence, may_tell_ages: bool, timing: &Timing) -> (Sequence, Option<Monotonic>) {
        if timing.piggyback_commits {
            self.told = committed;
        }
        let is_current = self.told == committed || planted(Bug::AgeOfOldCommit);
        if is_current && may_tell_ages {
            self.told_as_of = self.told_as_of.max(self.heard);
        }
        (self.told, self.told_as_of)
    }

    /// Whether it neither knows that so much is committed nor was told.
    fn is_untold(&self, committed: Sequence) -> bool {
        self.told.max(self.committed) < committed
    }

    /// Whether its vote lives.
    pub(crate) fn has_voted(&self, lease: base::Duration, now: Monotonic) -> bool {
        self.voted && self.vote_sent + lease > now
    }

    /// Whether it follows so closely that it would hold up nothing as a voter.
    pub(crate) fn is_close(&self, committed: Sequence) -> bool {
        let lag = committed.0.saturating_sub(self.matched.0);
        self.catch_up == CatchUp::Stream && !self.doubtful && lag <= CLOSE
    }

    fn bytes_in_flight(&self) -> usize {
        self.in_flight.iter().map(|proposal| proposal.bytes).sum()
    }

    pub(crate) fn sent_through(&self) -> Sequence {
        self.next.previous()
    }

    /// Whether it follows closely, has voted for us since then, and has room for more.
    pub(crate) fn can_be_in_chain(&self, since: Monotonic, window_bytes: usize) -> bool {
        let is_close = self.catch_up == CatchUp::Stream && self.bytes_in_flight() < window_bytes;
        is_close && self.voted && self.vote_sent >= since
    }

    /// It was sent what goes on through there. Others hand it on until then, if they do at all.
    pub(crate) fn sent(&mut self, last: Lsn, bytes: usize, until: Monotonic) {
        self.next = last.sequence.next();
        self.last_sent = last;
        self.in_flight.push_back(InFlight { through: last.sequence, bytes, until });
    }

    /// The last entry before those that others may still hand on to it after that moment.
    fn before_handed_on(&self, moment: Monotonic) -> Sequence {
        let first = self.in_flight.iter().position(|proposal| proposal.until > moment);
        let Some(first) = first else { return self.next.previous() };
        first.checked_sub(1).map_or(self.matched, |place| self.in_flight[place].through)
    }

    /// The same peer under its other number.
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
            // What else it was sent while nothing came back is sent again, and is under way no more.
            self.catch_up = CatchUp::Stream;
            self.next = self.matched.next();
            self.in_flight.clear();
        }
        while self.in_flight.front().is_some_and(|proposal| proposal.through <= through) {
            self.in_flight.pop_front();
        }
        self.next = self.next.max(self.matched.next());
    }

    /// It has not the predecessor that a proposal named, sent at that moment. Says what is to be sent anew: the entries
    /// of the gap that were not since. What answers to proposals say that left before that is nothing new: to heed each
    /// would send everything again each time.
    fn lacks(&mut self, gap: Gap, sent: Monotonic) -> Range<Sequence> {
        let first = gap.after.max(self.matched).next();
        match self.catch_up {
            CatchUp::Stream if sent >= self.probed_at => {
                let known = if sent <= self.again_at { self.again.next() } else { first };
                return first.max(known)..gap.through.min(self.before_handed_on(sent)).next();
            }
            CatchUp::Probe { .. } if first < self.next => self.probe_from(first),
            CatchUp::Stream | CatchUp::Probe { .. } | CatchUp::ReadingLog { .. } | CatchUp::State => {}
        }
        first..first
    }

    /// It has voted for us, asked by what was sent at that moment.
    pub(crate) fn vote_given(&mut self, sent: Monotonic) {
        self.voted = true;
        self.vote_sent = self.vote_sent.max(sent);
    }

    /// Where what is sent to it next goes on, if that is the last entry that was sent.
    fn goes_on_after(&self) -> Option<Lsn> {
        (self.last_sent.sequence == self.next.previous()).then_some(self.last_sent)
    }

    /// What is under way comes before what is sent next.
    pub(crate) fn invariants(&self) {
        let goes_on = self.in_flight.iter().all(|proposal| proposal.through < self.next);
        assert!(goes_on, "what is to be sent again is not under way");
    }

    /// A probe leaves.
    fn probed(&mut self, now: Monotonic) {
        self.catch_up = CatchUp::Probe { waiting: true };
        self.probed_at = now;
    }
}

impl Leader {
    /// The peer has a new process: what the old one acknowledged is dropped. Whatever was committed with its help is
    /// told with the next message, or a doubt would end too early (guarantee 7).
    pub(crate) fn restarted(&mut self, node: NodeId, committed: Sequence) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.matched = Sequence(0);
            peer.committed = Sequence(0);
            peer.told = committed;
            // Its clock may begin anew with its machine.
            (peer.heard, peer.told_as_of) = (None, None);
            peer.probe_from(peer.next);
        }
    }

    pub(crate) fn forget_times(&mut self) {
        self.heartbeat_at = Monotonic(0);
        self.tell_at = Monotonic::NEVER;
        self.since = Monotonic(0);
        for peer in self.peers.values_mut() {
            peer.probed_at = Monotonic(0);
            peer.again_at = Monotonic(0);
            (peer.heard, peer.told_as_of) = (None, None);
        }
    }

    /// A vote that has lapsed counts for nothing.
    pub(crate) fn forget_lapsed_votes(&mut self, lease: base::Duration, now: Monotonic) {
        for peer in self.peers.values_mut() {
            if peer.vote_sent + lease <= now && !planted(Bug::LeaseCheckedBefore) {
                peer.voted = false;
                peer.vote_sent = Monotonic(0);
            }
        }
    }

    /// What is sent, and what is matched no further than we have committed, decides nothing.
    pub(crate) fn forget_sent(&mut self, committed: Sequence) {
        self.untold_bytes = 0;
        for peer in self.peers.values_mut() {
            if peer.matched <= committed {
                peer.matched = Sequence(0);
            }
            peer.probe_from(peer.matched.next());
            peer.again = Sequence(0);
            peer.last_sent = Lsn::ZERO;
            (peer.told, peer.told_as_of) = (Sequence(0), None);
            peer.is_roused = false;
        }
    }

    pub(crate) fn applied(&mut self, entry: &Entry) {
        self.uncommitted_bytes = self.uncommitted_bytes.saturating_sub(entry.size());
        self.untold_bytes += entry.size();
    }

    /// The follower that holds most, for a hand-over.
    pub(crate) fn successor(&self, may_lead: impl Fn(Member) -> bool) -> Option<NodeId> {
        let able = self.peers.iter().filter(|(_, peer)| peer.voted && !peer.doubtful && may_lead(peer.member));
        able.max_by_key(|(_, peer)| peer.matched).map(|(node, _)| *node)
    }
}

impl Cohort {
    /// Takes over: what the log holds past the commit point is proposed again as it is, and a barrier of our own epoch
    /// after it. Where acknowledged entries may be lost, that is declared before the barrier.
    pub(crate) fn lead(&mut self, epoch: Epoch, declares: bool, now: Now, out: &mut Outbox) {
        self.restamp(epoch, out);
        let last = self.last();
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
            untold_bytes: 0,
            since: now.monotonic,
            uncommitted_bytes: unresolved.map(Entry::size).sum(),
        });
        self.keep_peers();
        if declares {
            self.append_own(epoch, self.config.declaration.clone(), None, now, out);
        }
        self.append_own(epoch, Bytes::new(), None, now, out);
        self.propose_pending(now, out);
        self.advance_commit(out);
    }

    /// What a new leader must not do: give unresolved entries LSNs of its own epoch.
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

    /// Proposes a new entry; its fate shows when it comes back as [`Output::Apply`], or with [`Output::LeadLost`]. None
    /// if this replica doesn't lead. Proposals leave at [`Cohort::settle`].
    pub fn propose(&mut self, payload: Bytes, now: Now, out: &mut Outbox) -> Option<Lsn> {
        let Role::Leader(leader) = &self.role else { return None };
        let epoch = leader.epoch;
        let lsn = self.append_own(epoch, payload, None, now, out);
        if self.quorum() == 1 {
            // Where memory is enough, nobody else will tell us that it is committed.
            self.advance_commit(out);
        }
        Some(lsn)
    }

    /// Whether so much is proposed and not yet committed that new proposals should be refused.
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
        now: Now,
        out: &mut Outbox,
    ) -> Lsn {
        self.end_rest(now);
        let changes = members.is_some();
        let previous = self.last();
        let lsn = Lsn { epoch, sequence: previous.sequence.next() };
        let timestamp = self.next_timestamp(now.wall);
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

    /// What an entry is stamped with that is proposed now: greater than every timestamp in the log, whatever the clock
    /// says; the clock only makes it mean time (guarantee 17).
    #[must_use]
    pub fn next_timestamp(&self, wall: Timestamp) -> Timestamp {
        if planted(Bug::VersionFromWallClock) {
            return wall;
        }
        let believed = WALL_CLOCK_RANGE.contains(&wall.0) || planted(Bug::WallClockOutOfRange);
        let reading = if believed { wall.0 } else { 0 };
        let mut last = self.log.last_timestamp().0;
        if planted(Bug::TimestampIgnoresLog) && self.log.last().epoch != self.promised.epoch {
            last = 0;
        }
        Timestamp(reading.max(last.saturating_add(1)))
    }

    /// Sends every follower that is not at rest a message now, if we lead, whatever it is up to: the others learn the
    /// commit point.
    pub fn heartbeat(&mut self, now: Now, out: &mut Outbox) {
        let lease = self.config.timing.lease;
        let votes_end = self.votes_end(now.monotonic);
        let Role::Leader(leader) = &mut self.role else { return };
        let votes_end = votes_end.unwrap_or(leader.since);
        if now.monotonic > votes_end + lease && now.monotonic > leader.since + lease + lease {
            // No majority has answered for two leases: whoever waits for us is better told.
            self.step_down(now, out);
            return;
        }
        leader.heartbeat_at = now.monotonic + self.config.timing.heartbeat;
        let nodes: Vec<NodeId> = self.peers().filter(|node| self.rest_with(*node).is_none()).collect();
        for node in nodes {
            self.send_heartbeat(node, now, out);
        }
    }

    /// Notes from when on there is a commit that some follower was not told of, and tells it if it is time. Whoever is
    /// still being brought up to date hears of it with what it is sent next.
    pub(crate) fn tell_commits(&mut self, now: Now, out: &mut Outbox) {
        let (committed, limit) = (self.committed, self.config.limits.untold_bytes);
        let Role::Leader(leader) = &mut self.role else { return };
        let untold = || leader.peers.iter().filter(|(_, peer)| peer.is_untold(committed));
        if untold().next().is_none() {
            (leader.tell_at, leader.untold_bytes) = (Monotonic::NEVER, 0);
            return;
        }
        leader.tell_at = leader.tell_at.min(now.monotonic + self.config.timing.commit_period);
        if leader.tell_at > now.monotonic && leader.untold_bytes <= limit {
            return;
        }
        let close = untold().filter(|(_, peer)| peer.catch_up == CatchUp::Stream);
        let close: Vec<NodeId> = close.map(|(node, _)| *node).collect();
        (leader.tell_at, leader.untold_bytes) = (Monotonic::NEVER, 0);
        leader.peers.values_mut().for_each(|peer| peer.told = committed);
        for node in close {
            self.send_heartbeat(node, now, out);
        }
    }

    /// Sends one message to a follower whatever it is up to: it asks for a vote, tells the commit point, and finds out
    /// what got lost.
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

    /// Sends a follower what follows `next`, whatever it was sent before: for the search.
    pub fn send_from(&mut self, node: NodeId, next: Sequence, now: Now, out: &mut Outbox) {
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peers.get_mut(&node) else { return };
        peer.probe_from(next);
        self.send_next(node, now, out);
    }

    /// Sends what has gathered to every follower that can take it.
    pub(crate) fn propose_pending(&mut self, now: Now, out: &mut Outbox) {
        self.propose_in_chain(now, out);
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
            peer.sent(last.lsn, entries.iter().map(Entry::size).sum(), Monotonic(0));
        }
        self.send_proposal(node, previous, entries, now, out);
    }

    /// Sends a follower entries, or none, with what it is told of commits and of their age.
    pub(crate) fn send_proposal(
        &mut self,
        node: NodeId,
        previous: Lsn,
        entries: Vec<Entry>,
        now: Now,
        out: &mut Outbox,
    ) {
        let (committed, may_tell_ages) = (self.committed, self.may_tell_ages(now.monotonic));
        let Role::Leader(leader) = &mut self.role else { return };
        let (epoch, sent) = (leader.epoch, now.monotonic);
        let Some(peer) = leader.peers.get_mut(&node) else { return };
        let (commit, heard) = peer.tell(committed, may_tell_ages, &self.config.timing);
        let message = Message::Propose { epoch, previous, entries, commit, sent, heard };
        out.send(node, message, Durable::default());
    }

    /// Sends a follower entries anew that it lacks, and no others. What memory doesn't hold any more it is sent as
    /// anybody is who lags.
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
            (peer.again, peer.again_at) = (peer.again.max(last), now.monotonic);
            self.send_proposal(node, previous, entries, now, out);
            first = last.next();
        }
    }

    /// A follower's answer to a proposal.
    pub(crate) fn reply_received(&mut self, from: Member, epoch: Epoch, answer: Answered, now: Now, out: &mut Outbox) {
        let last = self.log.last().sequence;
        let Role::Leader(leader) = &mut self.role else { return };
        if leader.epoch != epoch {
            return;
        }
        let Some(peer) = leader.peers.get_mut(&from.node).filter(|peer| peer.member == from) else { return };
        if answer.voted {
            peer.vote_given(answer.sent);
            peer.is_roused = false;
        }
        peer.heard = peer.heard.max(Some(answer.at));
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
                    // The log on our disk has to tell.
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
        self.advance_commit(out);
        self.pump(from.node, now, out);
    }

    /// The peers that count in majorities.
    pub(crate) fn voting<'a>(&'a self, leader: &'a Leader) -> impl Iterator<Item = &'a Peer> {
        let counts = |peer: &&Peer| self.is_voter(peer.member) || planted(Bug::CandidateAcknowledges);
        leader.peers.values().filter(counts)
    }

    /// What a majority has forced is committed, if it is of our own epoch: with it everything before (guarantee 1). Any
    /// majority, we among it or not (Gaios 3.1).
    pub(crate) fn advance_commit(&mut self, out: &mut Outbox) {
        let Role::Leader(leader) = &self.role else { return };
        let epoch = leader.epoch;
        let mut held: Vec<Sequence> = self.voting(leader).map(|peer| peer.matched).collect();
        held.push(self.acknowledged());
        held.sort_unstable_by(|a, b| b.cmp(a));
        let mut reached = held[self.quorum() - 1];
        if planted(Bug::AnswerBeforeCommit) {
            reached = self.acknowledged();
        }
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

    /// The entries that [`Output::ReadLog`] asked for, in order from there; none if the log doesn't hold them any more.
    pub fn log_read(&mut self, node: NodeId, from: Sequence, entries: Option<Vec<Entry>>, now: Now, out: &mut Outbox) {
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peers.get_mut(&node) else { return };
        let CatchUp::ReadingLog { probes } = peer.catch_up else { return };
        if peer.next != from {
            // It has acknowledged more while the log was read.
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
        peer.sent(last.lsn, entries.iter().map(Entry::size).sum(), Monotonic(0));
        if probes {
            peer.probed(now.monotonic);
        } else {
            peer.catch_up = CatchUp::Stream;
        }
        let previous = first.previous;
        self.send_proposal(node, previous, entries, now, out);
        self.pump(node, now, out);
    }

    /// The follower has the whole state through `lsn` on its disk; or, with none, the sending came to nothing.
    pub fn state_sent(&mut self, node: NodeId, lsn: Option<Lsn>, now: Now, out: &mut Outbox) {
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peers.get_mut(&node) else { return };
        if peer.catch_up == CatchUp::State {
            let next = lsn.map_or(peer.next, |lsn| lsn.sequence.next());
            peer.probe_from(next);
            if lsn.is_none() {
                // There is no state yet, or it didn't get through: the next heartbeat finds out what is to be done.
                peer.catch_up = CatchUp::Probe { waiting: true };
            }
            self.pump(node, now, out);
        }
    }

    /// How each follower is being brought up to date.
    pub fn catch_ups(&self) -> impl Iterator<Item = (NodeId, CatchUp)> + '_ {
        let leader = if let Role::Leader(leader) = &self.role { Some(leader) } else { None };
        leader.into_iter().flat_map(|leader| leader.peers.iter().map(|(node, peer)| (*node, peer.catch_up)))
    }
}

/// How many of the entries, from the first on, follow one another.
fn chained(entries: &[Entry]) -> usize {
    let broken = entries.windows(2).position(|pair| pair[1].previous != pair[0].lsn);
    broken.map_or(entries.len(), |place| place + 1)
}
