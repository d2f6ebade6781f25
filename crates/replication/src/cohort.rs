//! One replica of a cohort: its state and its inputs.

use std::collections::VecDeque;

use base::canary::{Bug, planted};
use base::{
    Entry, Epoch, Force, LogRecord, Lsn, Member, Monotonic, NodeId, Now, Promise, Sequence, SharedMembership,
    SplitMix64, Timestamp,
};

use crate::config::{Authority, Config};
use crate::data_loss::Grants;
use crate::leader::{Answered, Leader};
use crate::lease::{Vote, grace};
use crate::log::MemoryLog;
use crate::main_memory::MainMemory;
use crate::managed::Managed;
use crate::membership::Memberships;
use crate::message::Message;
use crate::outbox::{Durable, ManifestId, Outbox, Output, WriteId};
use crate::read_index::ReadIndexChecks;
use crate::reorder_buffer::ReorderBuffer;
use crate::replay::Replayed;
use crate::staleness::Staleness;

/// The state from which a replica starts.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// The newest promise, from the manifest.
    pub promised: Promise,
    /// The LSN and timestamp of the checkpoint.
    pub checkpoint: (Lsn, Timestamp),
    /// The membership as of the checkpoint, or as of the cohort's creation without one. Empty if unknown.
    pub membership: SharedMembership,
    /// The log past the checkpoint.
    pub log: Replayed,
    /// Whether part of the log was lost: it does not promise or stand before it has caught up (guarantee 7).
    pub doubtful: bool,
    /// Whether the log was in main memory and the last process did not stop cleanly (guarantee 11).
    pub forgetful: bool,
    /// Times for a replica that was split off another one, instead of those after a start.
    pub split_off: Option<SplitOff>,
}

/// When a replica that was split off another takes part. It was part of the other until now, so the other's voteless
/// time covers all earlier processes.
#[derive(Clone, Copy, Debug)]
pub struct SplitOff {
    /// No promise and no vote before this time.
    pub voteless_until: Monotonic,
    /// No candidacy before this time, unless it is asked to stand.
    pub stand_at: Monotonic,
}

/// One replica of a cohort.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cohort {
    pub(crate) config: Config,
    pub(crate) role: Role,
    pub(crate) promised: Promise,
    /// The manifest that makes `promised`, or the end of a doubt, durable.
    pub(crate) promise_manifest: ManifestId,
    pub(crate) log: MemoryLog,
    pub(crate) memberships: Memberships,
    /// Appended entries without a completed force.
    pub(crate) unforced: VecDeque<Unforced>,
    /// The log is forced through this sequence.
    pub(crate) forced: Sequence,
    /// Everything through this sequence is known to be committed.
    pub(crate) committed: Sequence,
    pub(crate) applied: Sequence,
    /// As a follower: the log equals that of the leader of epoch `following` through this sequence.
    pub(crate) matched: Sequence,
    /// The epoch of the leader to which `matched` and `leader_committed` refer.
    pub(crate) following: Epoch,
    /// As a follower: the reorder buffer for that leader's proposals.
    pub(crate) reorder_buffer: ReorderBuffer,
    /// As a follower: that leader's commit point.
    pub(crate) leader_committed: Sequence,
    pub(crate) vote: Option<Vote>,
    /// A restarted replica does not promise or vote before this time (guarantee 2).
    pub(crate) voteless_until: Monotonic,
    pub(crate) doubtful: bool,
    /// When this replica started to leave leadership to others, because it cannot serve all requests.
    pub(crate) aside_since: Option<Monotonic>,
    /// The timestamp of the last entry that this replica proposed while its wall clock had a bound, and that bound.
    pub(crate) last_bound: Option<(Timestamp, base::Duration)>,
    /// A received snapshot that replaces the log once the manifest names it.
    pub(crate) installing: Option<Installing>,
    /// The last commit point written to the log.
    pub(crate) committed_logged: Sequence,
    pub(crate) staleness: Staleness,
    pub(crate) views: ReadIndexChecks,
    pub(crate) memory: MainMemory,
    pub(crate) managed: Managed,
    pub(crate) random: SplitMix64,
}

/// An entry without a completed force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Unforced {
    pub(crate) write: WriteId,
    pub(crate) sequence: Sequence,
    pub(crate) bytes: usize,
}

/// A snapshot that waits for its manifest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Installing {
    pub(crate) manifest: ManifestId,
    pub(crate) lsn: Lsn,
    pub(crate) timestamp: Timestamp,
    pub(crate) membership: SharedMembership,
}

/// The current role of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// Follows a leader, or waits for one.
    Follower {
        leader: Option<NodeId>,
        /// When to stand for election unless a leader sends a message first.
        stand_at: Monotonic,
    },
    /// Asks whether it could win.
    PreCandidate {
        epoch: Epoch,
        granted: Grants,
        give_up_at: Monotonic,
    },
    /// Requests promises. Its own counts once it is forced. It may declare a loss (`data_loss`).
    Candidate {
        epoch: Epoch,
        granted: Grants,
        refused: Vec<NodeId>,
        give_up_at: Monotonic,
        declares: bool,
    },
    /// The catalog has made it the primary. It leads once its promise is forced and its earlier votes have ended.
    Appointed {
        /// Whether it was the primary of the version before. Its proposals then remain proposed.
        led: bool,
        is_forced: bool,
        lead_at: Monotonic,
    },
    Leader(Leader),
}

/// The publicly visible state of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    pub node: NodeId,
    /// The last entry that it has acknowledged, as far as known.
    pub last: Lsn,
    /// The last entry that it knows to be committed.
    pub committed: Lsn,
    /// Whether its log may lack entries that it acknowledged.
    pub doubtful: bool,
}

impl Cohort {
    /// Starts a replica from its durable state. Entries known to be committed are applied at once.
    pub fn start(config: Config, start: Start, now: Now, out: &mut Outbox) -> Self {
        let (checkpoint, timestamp) = start.checkpoint;
        let timestamp = if planted(Bug::TimestampIgnoresCheckpoint) { Timestamp(0) } else { timestamp };
        let mut log = MemoryLog::new(checkpoint, timestamp);
        let mut memberships = Memberships::new(start.membership);
        for entry in start.log.entries {
            if let Some(members) = &entry.members {
                memberships.push(entry.lsn.sequence, SharedMembership::clone(members));
            }
            log.push(entry);
        }
        let last = log.last().sequence;
        let forgetful = start.forgetful && !planted(Bug::ForgetfulVotes);
        // A majority may have lost committed entries from memory.
        let committed = if start.forgetful { checkpoint.sequence } else { start.log.committed.min(last) };
        // A single voter has led since it was alone, and voted for no other.
        let is_alone = memberships.last().voters() == [config.me];
        let has_no_vote = match config.regime.authority() {
            Authority::Votes => is_alone,
            Authority::Manager => {
                start.promised.candidate == Some(config.me) && log.last().epoch == start.promised.epoch
            }
        };
        let wait = if has_no_vote || planted(Bug::VoteAfterRestart) {
            base::Duration::ZERO
        } else {
            grace(config.timing.lease)
        };
        // A new replica acknowledges nothing before its manifest records that it exists.
        let joins = if memberships.last().is_empty() { out.change_manifest() } else { ManifestId(0) };
        let random = SplitMix64::new(config.seed);
        let voteless_until = start.split_off.map_or(now.monotonic + wait, |split_off| split_off.voteless_until);
        let mut cohort = Self {
            role: Role::Follower { leader: None, stand_at: now.monotonic },
            promised: promised_at_start(&config, start.promised, log.last().epoch),
            promise_manifest: joins,
            log,
            memberships,
            unforced: VecDeque::new(),
            forced: last,
            committed,
            applied: checkpoint.sequence,
            matched: Sequence(0),
            following: Epoch(0),
            reorder_buffer: ReorderBuffer::default(),
            leader_committed: Sequence(0),
            vote: None,
            voteless_until,
            doubtful: start.doubtful,
            aside_since: None,
            last_bound: None,
            installing: None,
            committed_logged: committed,
            staleness: Staleness::default(),
            views: ReadIndexChecks::default(),
            managed: Managed::default(),
            memory: MainMemory { forgetful, ..MainMemory::default() },
            random,
            config,
        };
        if let Some(from) = start.log.cut {
            out.append(LogRecord::Truncation { from }, Force::Now);
        }
        match start.split_off {
            Some(SplitOff { stand_at, .. }) => cohort.role = Role::Follower { leader: None, stand_at },
            None => cohort.follow(None, voteless_until),
        }
        cohort.apply_committed(out);
        cohort.resume_lead(now, out);
        cohort
    }

    /// A planted bug: a restarted leader continues (guarantee 3).
    fn resume_lead(&mut self, now: Now, out: &mut Outbox) {
        let mine = self.promised.candidate == Some(self.config.me);
        if planted(Bug::RestartedLeaderGoesOn) && mine && self.log.last().epoch == self.promised.epoch {
            self.lead(self.promised.epoch, false, now, out);
        }
    }

    /// Handles a message of another replica, member or not, because only one of the two may know the current
    /// membership. Majorities count only members according to this replica's log.
    pub fn message(&mut self, sender: Member, message: Message, now: Now, out: &mut Outbox) {
        if sender.node == self.config.me.node || (self.is_managed() && message.is_of_election()) {
            return;
        }
        match message {
            Message::PreVote { epoch, last } => self.pre_vote(sender, epoch, last, now, out),
            Message::PreVoteReply { epoch, granted, integrity, promised } => {
                self.pre_vote_reply((sender, integrity), epoch, granted, promised, now, out);
            }
            Message::Prepare { epoch, last } => self.prepare(sender, epoch, last, now, out),
            Message::PrepareReply { epoch, granted, integrity, promised } => {
                self.prepare_reply((sender, integrity), epoch, granted, promised, now, out);
            }
            Message::Propose { epoch, previous, entries, commit, sent, heard } => {
                self.propose_received(sender, epoch, (previous, entries), commit, (sent, heard), now, out);
            }
            Message::ProposeReply { epoch, sent, voted, reply, committed, doubtful, at } => {
                let sent = if planted(Bug::LeaseFromReceipt) { now.monotonic } else { sent };
                self.reply_received(sender, epoch, Answered { sent, voted, reply, committed, doubtful, at }, now, out);
            }
            Message::ViewCheck { check } => self.view_asked(sender, check, out),
            Message::ViewReply { check, epoch, stamp, commit } => {
                self.view_told(sender, check, (epoch, stamp), commit, now, out);
            }
            Message::Superseded { promised } => self.superseded(promised, now, out),
            Message::Release { epoch, successor } => self.release_received(sender, epoch, successor, now, out),
        }
    }

    /// The log is forced through `write`.
    pub fn log_forced(&mut self, write: WriteId, now: Now, out: &mut Outbox) {
        while let Some(entry) = self.unforced.pop_front_if(|entry| entry.write <= write) {
            self.memory.unforced_bytes -= entry.bytes;
            self.forced = entry.sequence;
        }
        self.memory.firm.retain(|(firm, _)| *firm > write);
        self.end_doubt(out);
        self.advance_commit(now, out);
    }

    /// The manifest is forced, in both of its places, through `manifest`.
    pub fn manifest_forced(&mut self, manifest: ManifestId, now: Now, out: &mut Outbox) {
        self.own_promise_forced(manifest, now, out);
        self.appointment_forced(manifest, now, out);
        if let Some(installing) = self.installing.take_if(|installing| installing.manifest <= manifest) {
            self.replace_log(installing, out);
        }
    }

    /// Runs the timer that is due.
    pub fn timer(&mut self, now: Now, out: &mut Outbox) {
        match &self.role {
            Role::Follower { stand_at, .. } if *stand_at <= now.monotonic => match self.config.regime.authority() {
                Authority::Votes => self.stand(now, out),
                Authority::Manager => self.petition_to_lead(now, out),
            },
            Role::Appointed { lead_at, .. } if *lead_at <= now.monotonic => self.take_office(now, out),
            Role::PreCandidate { give_up_at, .. } | Role::Candidate { give_up_at, .. }
                if *give_up_at <= now.monotonic =>
            {
                self.stand(now, out);
            }
            Role::Leader(leader) if leader.waits_until <= now.monotonic => self.advance_commit(now, out),
            Role::Leader(leader) if leader.heartbeat_at <= now.monotonic => self.heartbeat(now, out),
            Role::Leader(leader) if leader.tell_at <= now.monotonic => self.tell_commits(now, out),
            _ => {}
        }
    }

    /// When to call [`Cohort::timer`]. Any step may move it earlier.
    ///
    /// A replica that has voted returns the end of its vote. That is the same for all followers of a leader, so none
    /// wakes its node separately only to find that it has voted again since.
    #[must_use]
    pub fn next_timer(&self, now: Monotonic) -> Monotonic {
        match &self.role {
            Role::Follower { stand_at, .. } => {
                let vote_ends = self.vote.map(|vote| vote.until).filter(|until| *until > now);
                vote_ends.map_or(*stand_at, |until| until.min(*stand_at))
            }
            Role::PreCandidate { give_up_at, .. } | Role::Candidate { give_up_at, .. } => *give_up_at,
            Role::Appointed { is_forced: true, lead_at, .. } => *lead_at,
            Role::Appointed { is_forced: false, .. } => Monotonic::NEVER,
            Role::Leader(leader) if self.is_at_rest() => leader.waits_until,
            Role::Leader(leader) => leader.heartbeat_at.min(leader.tell_at).min(leader.waits_until),
        }
    }

    /// Whether [`Cohort::log_forced`] could change anything.
    #[must_use]
    pub fn awaits_log(&self) -> bool {
        !self.unforced.is_empty()
    }

    /// Whether [`Cohort::manifest_forced`] could change anything.
    #[must_use]
    pub fn awaits_manifest(&self) -> bool {
        self.installing.is_some() || matches!(self.role, Role::Candidate { .. } | Role::Appointed { .. })
    }

    /// The peer's process restarted, or the peer rejoined: acknowledgements of the old process no longer count until
    /// the new one repeats them.
    pub fn peer_restarted(&mut self, peer: NodeId) {
        if let Role::Leader(leader) = &mut self.role {
            leader.restarted(peer, self.committed);
        }
    }

    pub(crate) fn follow(&mut self, leader: Option<NodeId>, stand_after: Monotonic) {
        self.role = Role::Follower { leader, stand_at: stand_after + self.jitter() };
    }

    /// Random delay that keeps replicas from standing at the same time.
    pub(crate) fn jitter(&mut self) -> base::Duration {
        base::Duration(self.random.below(self.config.timing.election_jitter.0))
    }

    /// Ends the current role and waits for a leader.
    pub(crate) fn step_down(&mut self, now: Now, out: &mut Outbox) {
        if self.leads() {
            self.note_end_of_lease(now.monotonic);
        }
        if self.keeps_proposals() {
            out.push(Output::LeadLost);
        }
        let free_at = self.vote.map_or(now.monotonic, |vote| vote.until.max(now.monotonic));
        self.follow(None, free_at.max(self.voteless_until));
    }

    /// Accepts an entry into the log: in memory, and as a record to force.
    pub(crate) fn accept(&mut self, entry: Entry, out: &mut Outbox) {
        let (sequence, bytes, waits) = (entry.lsn.sequence, entry.size(), !self.counts_unforced(&entry));
        let write = out.append(LogRecord::Entry(entry.clone()), if waits { Force::Now } else { Force::Soon });
        if self.is_in_memory() && waits {
            self.memory.firm.push_back((write, sequence));
        }
        if let Some(members) = &entry.members {
            self.memberships.push(sequence, SharedMembership::clone(members));
        }
        self.log.push(entry);
        self.unforced.push_back(Unforced { write, sequence, bytes });
        self.memory.unforced_bytes += bytes;
    }

    /// Truncates the log from `from` on. Needs no record: the entry that replaces them invalidates them at replay.
    pub(crate) fn cut(&mut self, from: Sequence) {
        assert!(from > self.applied, "an applied entry is never cut");
        self.log.truncate(from);
        self.memberships.truncate(from);
        self.unforced.retain(|entry| entry.sequence < from);
        self.memory.unforced_bytes = self.unforced.iter().map(|entry| entry.bytes).sum();
        self.memory.firm.retain(|(_, sequence)| *sequence < from);
        self.forced = self.forced.min(from.previous());
        self.matched = self.matched.min(from.previous());
    }

    pub(crate) fn apply_committed(&mut self, out: &mut Outbox) {
        while self.applied < self.committed {
            let Some(entry) = self.log.entry(self.applied.next()) else { break };
            self.applied = entry.lsn.sequence;
            if let Role::Leader(leader) = &mut self.role {
                leader.applied(entry);
            }
            out.push(Output::Apply(entry.clone()));
        }
        self.memberships.settle(self.applied);
    }

    /// Ends a step: sends pending messages, records the commit point for a fast restart, and removes entries above the
    /// memory limit.
    pub fn settle(&mut self, now: Now, out: &mut Outbox) {
        self.propose_pending(now, out);
        self.tell_commits(now, out);
        self.note_committed(out);
        // Entries not yet compared with the leader's log must remain in memory.
        let is_compared = !self.is_in_memory() || self.leads();
        let needless = if is_compared { self.applied } else { self.applied.min(self.matched) };
        self.log.trim(needless.min(self.forced), self.config.limits.memory_log_bytes);
    }

    /// Records the commit point in the log, before records of other cohorts that depend on it.
    pub fn note_committed(&mut self, out: &mut Outbox) {
        if self.committed > self.committed_logged
            && let Some(lsn) = self.log.lsn_at(self.committed)
        {
            out.append(LogRecord::CommitPoint(lsn), Force::WithNext);
            self.committed_logged = self.committed;
        }
    }

    /// Removes from the state everything that affects only efficiency: numbers become relative to the forced ones, a
    /// leader discards its send state, and expired timers and votes become equal. The search treats states that differ
    /// only in these as equal; it fires timers and sends any message that a leader could send at any time. Matches with
    /// an older leader are never used again, and a commit point beyond the match can be received again.
    pub fn canonical(&mut self, out: &mut Outbox, log: WriteId, manifest: ManifestId, now: Monotonic) {
        match &mut self.role {
            Role::Follower { stand_at: timer, .. }
            | Role::PreCandidate { give_up_at: timer, .. }
            | Role::Candidate { give_up_at: timer, .. }
            | Role::Appointed { lead_at: timer, .. } => *timer = Monotonic(0),
            Role::Leader(leader) => leader.forget_times(),
        }
        self.vote = self.vote.filter(|vote| vote.until > now);
        self.staleness = Staleness::default();
        self.managed.forget_times();
        if self.voteless_until <= now {
            self.voteless_until = Monotonic(0);
        }
        for entry in &mut self.unforced {
            entry.write.0 -= log.0;
        }
        self.promise_manifest.0 = self.promise_manifest.0.saturating_sub(manifest.0);
        out.renumber(log, manifest);
        if self.following != self.promised.epoch {
            self.following = Epoch(0);
            self.matched = Sequence(0);
        }
        if !self.doubtful {
            self.leader_committed = Sequence(0);
        }
        let lease = self.config.timing.lease;
        // A primary adds a candidate that holds everything committed.
        let useless = if self.is_managed() { self.committed.previous() } else { self.committed };
        if let Role::Leader(leader) = &mut self.role {
            leader.forget_lapsed_votes(lease, now);
            leader.forget_sent(useless);
        }
    }

    /// The durability required before the whole log may be acknowledged.
    pub(crate) fn durable_log(&self) -> Durable {
        if planted(Bug::AcknowledgeBeforeForce) {
            return Durable::default();
        }
        let last = if self.is_in_memory() {
            self.memory.firm.back().map(|(write, _)| *write)
        } else {
            self.unforced.back().map(|entry| entry.write)
        };
        Durable { log: last.unwrap_or(WriteId(0)), manifest: self.promise_manifest }
    }

    /// The node of the leader, as far as known.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        match &self.role {
            Role::Leader(_) => Some(self.config.me.node),
            Role::Follower { leader, .. } => *leader,
            Role::PreCandidate { .. } | Role::Candidate { .. } | Role::Appointed { .. } => None,
        }
    }

    /// Whether this replica is the leader.
    #[must_use]
    pub fn leads(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// Whether proposals of this replica may still be committed by it: it leads, or led and was appointed again.
    #[must_use]
    pub fn keeps_proposals(&self) -> bool {
        matches!(self.role, Role::Leader(_) | Role::Appointed { led: true, .. })
    }

    /// Whether this replica leads an epoch that began with the declaration of a loss.
    #[must_use]
    pub fn declares_loss(&self) -> bool {
        matches!(&self.role, Role::Leader(leader) if leader.declares)
    }

    /// Whether this replica is the leader and its barrier is applied: the state includes everything in the log before
    /// this epoch.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(&self.role, Role::Leader(leader) if leader.open)
    }

    /// Whether this replica follows the leader of that epoch and has received a message from it.
    #[must_use]
    pub fn follows(&self, epoch: Epoch) -> bool {
        let is_follower = matches!(self.role, Role::Follower { .. });
        is_follower && self.following == epoch && self.promised.epoch == epoch
    }

    /// The newest promise, as the manifest must record it.
    #[must_use]
    pub fn promised(&self) -> Promise {
        self.promised
    }

    /// End of the time after a restart without promises and votes.
    #[must_use]
    pub fn voteless_until(&self) -> Monotonic {
        self.voteless_until
    }

    /// Whether the log may be incomplete, as the manifest must record it.
    #[must_use]
    pub fn doubtful(&self) -> bool {
        self.doubtful
    }

    /// Everything through this sequence is applied.
    #[must_use]
    pub fn applied(&self) -> Sequence {
        self.applied
    }

    /// Everything through this sequence is known to be committed.
    #[must_use]
    pub fn committed(&self) -> Sequence {
        self.committed
    }

    /// The log is forced through this sequence.
    #[must_use]
    pub fn forced(&self) -> Sequence {
        self.forced
    }

    /// The last entry of the log.
    #[must_use]
    pub fn last(&self) -> Lsn {
        self.log.last()
    }

    /// The timestamp of the last entry of the log.
    #[must_use]
    pub fn last_timestamp(&self) -> Timestamp {
        self.log.last_timestamp()
    }

    /// The LSN at a sequence, as far as entries are in memory.
    #[must_use]
    pub fn lsn_at(&self, sequence: Sequence) -> Option<Lsn> {
        self.log.lsn_at(sequence)
    }

    /// The entries in memory.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.log.entries()
    }

    /// The configuration of the replica.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The member that this replica is.
    #[must_use]
    pub fn me(&self) -> Member {
        self.config.me
    }

    /// The known replicas: all of them at a leader, otherwise only this one.
    #[must_use]
    pub fn view(&self) -> Vec<ReplicaView> {
        let lsn = |sequence: Sequence| self.log.lsn_at(sequence).unwrap_or_else(|| Lsn { sequence, ..self.log.base() });
        let mut views = vec![ReplicaView {
            node: self.config.me.node,
            last: lsn(self.acknowledged()),
            committed: lsn(self.committed),
            doubtful: self.is_in_doubt(),
        }];
        if let Role::Leader(leader) = &self.role {
            views.extend(leader.peers.iter().filter(|(_, peer)| peer.voted).map(|(node, peer)| ReplicaView {
                node: *node,
                last: lsn(peer.matched),
                committed: lsn(peer.committed),
                doubtful: peer.doubtful,
            }));
        }
        views.sort_by_key(|view| view.node);
        views
    }
}

/// The promise of a replica that starts. A crash may keep entries of a new version and lose the promise made with them.
/// They show that the version exists, so that older ones are over; for elections, candidates take this into account.
fn promised_at_start(config: &Config, promised: Promise, last: Epoch) -> Promise {
    match config.regime.authority() {
        Authority::Manager if last > promised.epoch => Promise { epoch: last, candidate: None },
        _ => promised,
    }
}
