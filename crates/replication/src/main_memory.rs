//! Main-memory logs (Spinnaker, D.6.2; guarantee 11): an entry counts as soon as it is in the memories of a majority,
//! and disks have it a little later.
//!
//! Promises are forced before they are given, as everywhere. What else follows:
//! * A replica whose process ended other than by a clean stop starts *forgetful*: it may have acknowledged what it doesn't
//!   hold any more. It counts for no candidate until a live leader has caught it up ([`Cohort::end_doubt`]), and what its
//!   log calls committed counts for nothing.
//! * Where a majority is forgetful, what is left may be led on with all the same, and the loss is declared (`loss`).
//! * After a loss a replica may have applied what no other has. So nothing counts as known to a leader because it was
//!   committed once: LSNs are compared in each reign anew. Whoever has applied another entry than the leader's log holds there
//!   *stands apart*, and takes the leader's whole state in the place of its own, forwards or backwards.
//!
//! **Invariant:** a follower's state is within its leader's log once it has matched as much as it has applied.

use std::collections::VecDeque;

use base::canary::{Bug, planted};
use base::{Durability, Entry, Force, Lsn, Monotonic, Sequence};

use crate::cohort::{Cohort, Role};
use crate::message::Reply;
use crate::outbox::{Outbox, WriteId};
use crate::staleness::Staleness;

/// So many entries that its disk doesn't have a replica acknowledges at most: what can be lost is bounded by that.
/// (Names that the state machine makes of sequences rest on it; see `tablets`' `progress`.)
pub const UNFORCED_MAX: usize = 1 << 20;
/// About so many bytes of them at most: a disk that stands still must not fill the memory.
pub const UNFORCED_BYTES_MAX: usize = 64 << 20;

/// What a replica of a main-memory cohort knows of itself beside the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct MainMemory {
    /// An earlier process may have acknowledged what this one doesn't hold.
    pub(crate) forgetful: bool,
    /// What is not acknowledged before it is forced, as long as it isn't.
    pub(crate) firm: VecDeque<(WriteId, Sequence)>,
    /// Bytes of all that isn't forced.
    pub(crate) unforced_bytes: usize,
    /// Our state is not within the leader's log.
    pub(crate) is_apart: bool,
    /// Until then we wait for others before we lead on with a loss.
    pub(crate) patience_ends: Option<Monotonic>,
}

impl Cohort {
    pub(crate) fn is_in_memory(&self) -> bool {
        self.config.durability == Durability::Memory
    }

    /// Whether an entry that we take in counts before our disk has it. The declaration of a loss doesn't, nor does a
    /// change of the members: a majority that forgot who has a part in the cohort could ask those who have left it. Nor
    /// does what would make too much of what the disk lacks.
    pub(crate) fn counts_unforced(&self, entry: &Entry) -> bool {
        let changes_members = entry.members.is_some() && !planted(Bug::MembersForgotten);
        let is_firm = changes_members || entry.payload == self.config.declaration;
        let has_room = self.unforced.len() < UNFORCED_MAX && self.memory.unforced_bytes < UNFORCED_BYTES_MAX;
        self.is_in_memory() && !is_firm && has_room
    }

    /// Our log counts through here: it is forced, or in memory where that is enough.
    #[must_use]
    pub fn acknowledged(&self) -> Sequence {
        if !self.is_in_memory() {
            return self.forced;
        }
        self.memory.firm.front().map_or_else(|| self.last().sequence, |(_, sequence)| sequence.previous())
    }

    /// Through here our log is known to equal the leader's, whoever leads: what is committed is in every leader's, but
    /// where it may have been lost.
    pub(crate) fn resolved(&self) -> Sequence {
        let trusts = !self.is_in_memory() || planted(Bug::StateBeyondWinnerKept);
        if trusts { self.committed } else { self.matched }
    }

    /// A new leader is followed: what is known to equal its log.
    pub(crate) fn begin_matching(&mut self) {
        self.memory.is_apart = false;
        self.matched = Sequence(0);
        self.matched = self.resolved();
    }

    /// Whether the state that we have is known to be within the leader's log.
    pub(crate) fn is_within(&self) -> bool {
        !self.is_in_memory() || self.leads() || self.matched >= self.applied
    }

    /// Whether everything through there is applied, as the leader of the newest epoch has it.
    #[must_use]
    pub fn has_applied(&self, through: Sequence) -> bool {
        let is_current = !self.is_in_memory() || self.leads() || self.following == self.promised.epoch;
        self.applied >= through && is_current && self.is_within()
    }

    /// What follows our state of what a leader sends, if our last entry is among that.
    pub(crate) fn after_state(&self, previous: Lsn, mut entries: Vec<Entry>) -> (Lsn, Vec<Entry>) {
        let ours = if self.is_within() { None } else { self.log.lsn_at(self.applied) };
        match entries.iter().position(|entry| Some(entry.lsn) == ours) {
            Some(place) => (entries[place].lsn, entries.split_off(place + 1)),
            None => (previous, entries),
        }
    }

    /// Whether the leader's log has other entries than we have committed.
    pub(crate) fn contradicts(&self, entries: &[Entry]) -> bool {
        let differs = |entry: &Entry| self.log.lsn_at(entry.lsn.sequence).is_some_and(|held| held != entry.lsn);
        let committed = self.committed;
        self.resolved() < committed && entries.iter().take_while(|entry| entry.lsn.sequence <= committed).any(differs)
    }

    /// It isn't known whether what we have applied is in the leader's log. It may look for it, and if it hasn't got it,
    /// it sends us its whole state.
    pub(crate) fn stand_apart(&mut self) -> Reply {
        self.memory.is_apart = true;
        Reply::Apart(self.log.lsn_at(self.applied).unwrap_or_else(|| self.log.base()))
    }

    /// Whether our state is not within the leader's log.
    #[must_use]
    pub fn stands_apart(&self) -> bool {
        self.memory.is_apart
    }

    /// Whether a whole state through that entry is of use.
    #[must_use]
    pub fn wants_state(&self, lsn: Lsn) -> bool {
        lsn.sequence > self.applied || self.memory.is_apart
    }

    /// Our state gives way to another's that may be of before it: what we had acknowledged counts no more.
    pub(crate) fn leave_state(&mut self, lsn: Lsn) {
        self.memory = MainMemory { forgetful: true, ..MainMemory::default() };
        self.staleness = Staleness::default();
        self.committed = lsn.sequence;
        self.committed_logged = lsn.sequence;
    }

    /// Whether an earlier process may have acknowledged what this one doesn't hold.
    #[must_use]
    pub fn forgetful(&self) -> bool {
        self.memory.forgetful
    }

    /// Whether the replica counts for no candidate, by damage to its disk or since it has forgotten.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.doubtful || self.memory.forgetful
    }

    /// Whether all that this replica has acknowledged will be found in its log, once that is forced, and nothing that
    /// isn't its own any more.
    #[must_use]
    pub fn leaves_whole(&self) -> bool {
        self.is_in_memory() && !self.is_in_doubt() && self.installing.is_none()
    }

    /// We hold all that can have been committed with our help.
    pub(crate) fn end_all_doubt(&mut self, out: &mut Outbox) {
        self.memory.forgetful = false;
        if std::mem::take(&mut self.doubtful) {
            // Who is told of it may count on us, and give us a vote: a crash must not bring the doubt back.
            self.promise_manifest = out.change_manifest();
        }
    }

    /// A leader is open: what it holds is all there is.
    pub(crate) fn remember(&mut self, out: &mut Outbox) {
        if matches!(&self.role, Role::Leader(leader) if leader.open) {
            self.end_all_doubt(out);
        }
    }

    /// Has all that was appended forced now, for a clean stop: what waits for company, too, though nobody waits for it.
    pub fn hurry(&mut self, out: &mut Outbox) {
        if let Some(lsn) = self.log.lsn_at(self.committed).filter(|lsn| *lsn != Lsn::ZERO) {
            out.append(base::LogRecord::CommitPoint(lsn), Force::Now);
        }
    }
}

#[cfg(test)]
mod tests;
