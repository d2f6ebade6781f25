//! Following a leader: accepting entries, learning the commit point, installing a snapshot (Spinnaker 5, 6.1;
//! guarantees 1, 5, 7 and 9).

use base::canary::{Bug, planted};
use base::{
    Entry, Epoch, Force, LogRecord, Lsn, Member, Monotonic, NodeId, Now, Promise, Sequence, SharedMembership, Timestamp,
};

use crate::cohort::{Cohort, Installing, Role};
use crate::lease::grace;
use crate::log::MemoryLog;
use crate::membership::Memberships;
use crate::message::{Gap, Message, Reply};
use crate::outbox::{Durable, Outbox, Output, WriteId};

impl Cohort {
    #[expect(clippy::too_many_arguments, reason = "the fields of one message, and the moment")]
    pub(crate) fn propose_received(
        &mut self,
        from: Member,
        epoch: Epoch,
        (previous, entries): (Lsn, Vec<Entry>),
        commit: Sequence,
        (sent, heard): (Monotonic, Option<Monotonic>),
        now: Now,
        out: &mut Outbox,
    ) {
        if epoch < self.promised.epoch && !(self.is_managed() && planted(Bug::StaleVersionAccepted)) {
            self.refuse_old_leader(from, commit, out);
            return;
        }
        if self.is_managed() && !self.knows(epoch) {
            return;
        }
        if self.installing.is_some() || !self.follow_leader(from, epoch, now, out) {
            return;
        }
        let voted = self.give_vote(from, epoch, now.monotonic);
        let (last, is_bare) = (self.last(), entries.is_empty());
        let mut reply = self.reconcile(previous, entries, out);
        self.learn_commit(commit, out);
        if self.is_within() {
            self.learn_age(heard, commit, now.monotonic);
        }
        self.end_doubt(out);
        let mut after = self.durable_log();
        match &mut reply {
            // A vote must not wait for a slow or full disk, because the leader's reads depend on it. The reply
            // acknowledges only forced entries; replies to the proposals that carried the others acknowledge those.
            Reply::Matched(through) if is_bare && self.last() == last => {
                *through = self.acknowledged().min(*through);
                after.log = WriteId(0);
            }
            Reply::Matched(_) => {}
            // The reply acknowledges nothing.
            Reply::Missing(_) | Reply::Apart(_) => after.log = WriteId(0),
        }
        let (committed, doubtful, at) = (self.committed, self.is_in_doubt(), now.monotonic);
        let message = Message::ProposeReply { epoch, sent, voted, reply, committed, doubtful, at };
        out.send(from.node, message, after);
    }

    fn refuse_old_leader(&mut self, from: Member, commit: Sequence, out: &mut Outbox) {
        if planted(Bug::CommitFromOldLeader) {
            self.committed = self.committed.max(commit.min(self.last().sequence));
            self.apply_committed(out);
        }
        let after = Durable { manifest: self.promise_manifest, ..Durable::default() };
        out.send(from.node, Message::Superseded { promised: self.promised.epoch }, after);
    }

    /// Follows the sender as the leader of `epoch`. Accepting entries from a leader without having seen its prepare
    /// implies a promise: replies wait until that is durable.
    ///
    /// This replica may have promised the epoch to another candidate, even to itself. A proposal proves that its sender
    /// has promises of a majority, so that the other candidate can no longer win, and that promise is void. Keeping it
    /// would exclude this replica for the whole epoch.
    fn follow_leader(&mut self, from: Member, epoch: Epoch, now: Now, out: &mut Outbox) -> bool {
        let promise = Promise { epoch, candidate: Some(from) };
        if self.leads() && epoch == self.promised.epoch {
            return false;
        }
        if self.promised != promise {
            self.step_down(now, out);
            self.promised = promise;
            self.promise_manifest = out.change_manifest();
        }
        if self.following != epoch {
            self.following = epoch;
            self.leader_committed = Sequence(0);
            if !planted(Bug::EarlyOutlivesReign) {
                self.reorder_buffer.clear();
            }
            self.begin_matching();
            self.forget_unresolved(out);
        }
        self.await_leader(from.node, now);
        true
    }

    /// Follows a leader until it has been silent for one grace period.
    fn await_leader(&mut self, leader: NodeId, now: Now) {
        self.memory.patience_ends = None;
        self.follow(Some(leader), now.monotonic + grace(self.config.timing.lease));
    }

    /// Handles a heartbeat without news from the current leader (see `quiescence`).
    pub(crate) fn renew_vote(&mut self, leader: Member, epoch: Epoch, now: Now) {
        self.await_leader(leader.node, now);
        self.give_vote(leader, epoch, now.monotonic);
    }

    /// A planted bug, Spinnaker 6.1.1 to the letter: the follower truncates its log to its commit point. An
    /// acknowledged entry is lost if the leader crashes before it was fetched again.
    fn forget_unresolved(&mut self, out: &mut Outbox) {
        if planted(Bug::TruncateToCommitPoint) && self.last().sequence > self.committed {
            let from = self.committed.next();
            self.cut(from);
            out.append(LogRecord::Truncation { from }, Force::Now);
        }
    }

    /// Makes the log equal to the leader's through the last of `entries`, if it holds their predecessor, and through
    /// any buffered entries that follow.
    fn reconcile(&mut self, previous: Lsn, entries: Vec<Entry>, out: &mut Outbox) -> Reply {
        let (previous, entries) = self.after_state(previous, entries);
        if !self.holds(previous) {
            if previous.sequence <= self.committed {
                return self.report_divergence();
            }
            self.reorder_buffer.hold(previous, entries, self.config.limits.reorder_bytes);
            return Reply::Missing(self.gap_before(previous.sequence));
        }
        if self.contradicts(&entries) {
            return self.report_divergence();
        }
        self.take_in(previous, entries, out);
        while let Some((previous, entries)) = self.reorder_buffer.take_next(self.matched) {
            if self.contradicts(&entries) {
                return self.report_divergence();
            }
            if self.holds(previous) {
                self.take_in(previous, entries, out);
            }
        }
        if !self.is_within() {
            // The leader's entries are acknowledged all together or not at all.
            return self.report_divergence();
        }
        Reply::Matched(self.matched)
    }

    /// Whether this log holds that entry of the leader's.
    fn holds(&self, previous: Lsn) -> bool {
        if previous.sequence > self.last().sequence {
            return false;
        }
        // While nothing is known to equal the leader's log, its beginning is not either: the state may include other
        // entries.
        let resolved = self.resolved() > Sequence(0) && previous.sequence <= self.resolved();
        resolved || self.log.lsn_at(previous.sequence) == Some(previous) || planted(Bug::NoPredecessorCheck)
    }

    fn take_in(&mut self, previous: Lsn, entries: Vec<Entry>, out: &mut Outbox) {
        let through = entries.last().map_or(previous, |entry| entry.lsn).sequence;
        for entry in entries {
            self.reconcile_entry(entry, out);
        }
        self.matched = self.matched.max(through);
        self.memory.is_apart &= !self.is_within();
    }

    /// An entry already in the log is acknowledged and not logged again: its record would invalidate later ones at
    /// replay. The log is truncated only where the leader's log has another LSN.
    fn reconcile_entry(&mut self, entry: Entry, out: &mut Outbox) {
        let sequence = entry.lsn.sequence;
        if sequence <= self.resolved() || sequence < self.log.base().sequence {
            return;
        }
        let held = self.log.lsn_at(sequence);
        if held == Some(entry.lsn) {
            if planted(Bug::HeldEntryLoggedAgain) {
                out.append(LogRecord::Entry(entry), Force::Now);
            }
            return;
        }
        if held.is_some() {
            self.cut(sequence);
            out.push(Output::Cut(sequence));
        }
        self.accept(entry, out);
        if held.is_some() && planted(Bug::TruncationLoggedAgain) {
            out.append(LogRecord::Truncation { from: sequence }, Force::Now);
        }
    }

    /// The first gap. It ends with the first missing predecessor: `sequence`, or one that a buffered proposal needs.
    /// The log may hold a conflicting entry at that place even if `sequence` is past its end, so the search for the
    /// last match starts there, and the gap is never empty.
    fn gap_before(&self, sequence: Sequence) -> Gap {
        let through = self.reorder_buffer.first_lacking(self.matched).map_or(sequence, |first| first.min(sequence));
        let after = self.conflict_hint(through).max(self.matched);
        debug_assert!(after < through, "nothing would be sent");
        Gap { after, through }
    }

    /// The last sequence before `sequence` where the log may equal the leader's: its end, or the entry before all those
    /// of the conflicting epoch.
    fn conflict_hint(&self, sequence: Sequence) -> Sequence {
        if sequence > self.last().sequence {
            return self.last().sequence;
        }
        let conflicting = self.log.lsn_at(sequence).map(|lsn| lsn.epoch);
        let mut hint = sequence.previous();
        while hint > self.committed && self.log.lsn_at(hint).map(|lsn| lsn.epoch) == conflicting {
            hint = hint.previous();
        }
        hint.max(self.committed)
    }

    /// Advances the commit point, only as far as the log matches the *current* leader's (guarantee 1).
    pub(crate) fn learn_commit(&mut self, commit: Sequence, out: &mut Outbox) {
        self.leader_committed = self.leader_committed.max(commit);
        let bound = if planted(Bug::ApplyPastMatched) { self.last().sequence } else { self.matched };
        self.committed = self.committed.max(self.leader_committed.min(bound));
        self.apply_committed(out);
    }

    /// Ends the doubt of a replica that has caught up: it holds, durably, *everything* that a leader reports as
    /// committed, including the leader's own barrier. That covers any lost entry that may have been committed
    /// (guarantee 7). The replica's own commit point is not sufficient, because it only reaches as far as the log
    /// matches.
    pub(crate) fn end_doubt(&mut self, out: &mut Outbox) {
        if !self.is_in_doubt() || !matches!(self.role, Role::Follower { leader: Some(_), .. }) {
            return;
        }
        let all = self.leader_committed;
        let reached_barrier = self.log.lsn_at(all).is_some_and(|lsn| lsn.epoch == self.following);
        let held = self.matched >= all && self.acknowledged() >= all;
        if reached_barrier && held && self.following == self.promised.epoch {
            self.end_all_doubt(out);
        }
    }

    /// The snapshot as of `lsn` is on disk as a checkpoint: installs it once the manifest names it. The manifest comes
    /// first, the truncation of the log after it (guarantee 9). Includes the membership. Returns false if the replica's
    /// own state has advanced as far meanwhile.
    pub fn install(
        &mut self,
        lsn: Lsn,
        timestamp: Timestamp,
        membership: SharedMembership,
        now: Now,
        out: &mut Outbox,
    ) -> bool {
        if !self.wants_state(lsn) || self.leads() || self.installing.is_some() {
            return false;
        }
        self.step_down(now, out);
        self.installing = Some(Installing { manifest: out.change_manifest(), lsn, timestamp, membership });
        true
    }

    pub(crate) fn replace_log(&mut self, installing: Installing, out: &mut Outbox) {
        let Installing { lsn, timestamp, membership, .. } = installing;
        let gives_way = self.memory.is_apart;
        if self.log.lsn_at(lsn.sequence) == Some(lsn) && !gives_way {
            self.log.trim(lsn.sequence, 0);
            self.memberships.replace(lsn.sequence, membership);
        } else {
            // Entries that were not applied may come from a deposed leader: a restart or a lagging follower must not
            // get them. The same holds for applied ones if they are not in the snapshot's log.
            let kept = if gives_way { Sequence(0) } else { self.applied };
            if self.last().sequence > kept {
                out.append(LogRecord::Truncation { from: kept.next() }, Force::Now);
            }
            self.log = MemoryLog::new(lsn, timestamp);
            self.memberships = Memberships::new(membership);
            self.unforced.clear();
            self.memory.firm.clear();
            self.memory.unforced_bytes = 0;
            self.forced = lsn.sequence;
        }
        if gives_way {
            self.leave_state(lsn);
        }
        self.committed = self.committed.max(lsn.sequence);
        self.committed_logged = self.committed_logged.max(lsn.sequence);
        self.forced = self.forced.max(lsn.sequence);
        self.applied = lsn.sequence;
        self.matched = self.matched.min(self.last().sequence).max(lsn.sequence);
        if self.is_in_memory() {
            // The snapshot may be of an earlier leader than the current one: LSNs are compared again.
            (self.matched, self.following) = (Sequence(0), Epoch(0));
        }
        out.push(Output::Installed(lsn));
        self.apply_committed(out);
    }
}
