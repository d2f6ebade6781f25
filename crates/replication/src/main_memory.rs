//! Main-memory logs (Spinnaker, D.6.2; guarantee 11): an entry counts once it is in the memories of a majority, and is
//! written to disk slightly later.
//!
//! Promises are forced before they are given, as everywhere. Further consequences:
//! * A replica with a process that did not stop cleanly starts *forgetful*: it may have acknowledged entries that it no
//!   longer holds. It does not count for a candidate until a live leader has caught it up (`Cohort::end_doubt`), and
//!   the commit point in its log does not count.
//! * If a majority is forgetful, the cohort may continue with the remaining entries and declares the loss (`data_loss`).
//! * After a loss, a replica may have applied entries that no other replica has. So being committed once does not imply
//!   being in the leader's log: LSNs are compared again in each epoch. A replica that has applied an entry that
//!   conflicts with the leader's log *has diverged*, and installs the leader's snapshot in place of its own state,
//!   whether newer or older.
//!
//! **Invariant:** a follower's state is within its leader's log once it has matched as much as it has applied.

use std::collections::VecDeque;

use base::canary::{Bug, planted};
use base::{Durability, Entry, Force, Lsn, Monotonic, Sequence};

use crate::cohort::{Cohort, Role};
use crate::message::Reply;
use crate::outbox::{Outbox, WriteId};
use crate::staleness::Staleness;

/// Maximum acknowledged entries that are not on disk. Bounds the possible loss. (State machines derive names from
/// sequences based on this; see `tablets`' `progress`.)
pub const UNFORCED_MAX: usize = 1 << 20;
/// Approximate maximum size of such entries: a stalled disk must not fill the memory.
pub const UNFORCED_BYTES_MAX: usize = 64 << 20;

/// State specific to replicas of main-memory cohorts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct MainMemory {
    /// An earlier process may have acknowledged entries that this one does not hold.
    pub(crate) forgetful: bool,
    /// Unforced entries that must be forced before they are acknowledged.
    pub(crate) firm: VecDeque<(WriteId, Sequence)>,
    /// Bytes of all unforced entries.
    pub(crate) unforced_bytes: usize,
    /// The state is not within the leader's log.
    pub(crate) is_apart: bool,
    /// End of the wait for other replicas before leading with a loss.
    pub(crate) patience_ends: Option<Monotonic>,
}

impl Cohort {
    pub(crate) fn is_in_memory(&self) -> bool {
        self.config.regime.durability() == Durability::Memory
    }

    /// Whether a new entry counts before it is on disk. Exceptions are the declaration of a loss, and membership
    /// changes, because a majority that forgot one could ask removed members. Entries above the limits do not count
    /// either.
    pub(crate) fn counts_unforced(&self, entry: &Entry) -> bool {
        let changes_members = entry.members.is_some() && !planted(Bug::MembersForgotten);
        let is_firm = changes_members || entry.payload == self.config.declaration;
        let has_room = self.unforced.len() < UNFORCED_MAX && self.memory.unforced_bytes < UNFORCED_BYTES_MAX;
        self.is_in_memory() && !is_firm && has_room
    }

    /// The log counts through this sequence: it is forced, or in memory where that is enough.
    #[must_use]
    pub fn acknowledged(&self) -> Sequence {
        if !self.is_in_memory() {
            return self.forced;
        }
        self.memory.firm.front().map_or_else(|| self.last().sequence, |(_, sequence)| sequence.previous())
    }

    /// Through this sequence the log equals that of any leader: committed entries are in every leader's log, unless
    /// they may have been lost.
    pub(crate) fn resolved(&self) -> Sequence {
        let trusts = !self.is_in_memory() || planted(Bug::StateBeyondWinnerKept);
        if trusts { self.committed } else { self.matched }
    }

    /// Starts to follow a new leader: resets the known match.
    pub(crate) fn begin_matching(&mut self) {
        self.memory.is_apart = false;
        self.matched = Sequence(0);
        self.matched = self.resolved();
    }

    /// Whether the state is known to be within the leader's log.
    pub(crate) fn is_within(&self) -> bool {
        !self.is_in_memory() || self.leads() || self.matched >= self.applied
    }

    /// Whether everything through that sequence is applied as in the log of the newest epoch's leader.
    #[must_use]
    pub fn has_applied(&self, through: Sequence) -> bool {
        let is_current = !self.is_in_memory() || self.leads() || self.following == self.promised.epoch;
        self.applied >= through && is_current && self.is_within()
    }

    /// The part of the leader's entries after this replica's last applied one, if that is among them.
    pub(crate) fn after_state(&self, previous: Lsn, mut entries: Vec<Entry>) -> (Lsn, Vec<Entry>) {
        let ours = if self.is_within() { None } else { self.log.lsn_at(self.applied) };
        match entries.iter().position(|entry| Some(entry.lsn) == ours) {
            Some(place) => (entries[place].lsn, entries.split_off(place + 1)),
            None => (previous, entries),
        }
    }

    /// Whether the leader's log conflicts with entries committed here.
    pub(crate) fn contradicts(&self, entries: &[Entry]) -> bool {
        let differs = |entry: &Entry| self.log.lsn_at(entry.lsn.sequence).is_some_and(|held| held != entry.lsn);
        let committed = self.committed;
        self.resolved() < committed && entries.iter().take_while(|entry| entry.lsn.sequence <= committed).any(differs)
    }

    /// Reports that the applied entries may not be in the leader's log. The leader looks for them, and sends a snapshot
    /// if it does not have them.
    pub(crate) fn report_divergence(&mut self) -> Reply {
        self.memory.is_apart = true;
        Reply::Apart(self.log.lsn_at(self.applied).unwrap_or_else(|| self.log.base()))
    }

    /// Whether the state is not within the leader's log.
    #[must_use]
    pub fn has_diverged(&self) -> bool {
        self.memory.is_apart
    }

    /// Whether a snapshot through that entry is useful.
    #[must_use]
    pub fn wants_state(&self, lsn: Lsn) -> bool {
        lsn.sequence > self.applied || self.memory.is_apart
    }

    /// The state is replaced by one that may be older: earlier acknowledgements no longer count.
    pub(crate) fn leave_state(&mut self, lsn: Lsn) {
        self.memory = MainMemory { forgetful: true, ..MainMemory::default() };
        self.staleness = Staleness::default();
        self.committed = lsn.sequence;
        self.committed_logged = lsn.sequence;
    }

    /// Whether an earlier process may have acknowledged entries that this one does not hold.
    #[must_use]
    pub fn forgetful(&self) -> bool {
        self.memory.forgetful
    }

    /// Whether the replica does not count for candidates, because its disk is damaged or it is forgetful.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.doubtful || self.memory.forgetful
    }

    /// Whether the log, once forced, will contain everything that this replica has acknowledged, and nothing that is no
    /// longer its own.
    #[must_use]
    pub fn leaves_whole(&self) -> bool {
        self.is_in_memory() && !self.is_in_doubt() && self.installing.is_none()
    }

    /// The replica holds everything that can have been committed with its help.
    pub(crate) fn end_all_doubt(&mut self, out: &mut Outbox) {
        self.memory.forgetful = false;
        if std::mem::take(&mut self.doubtful) {
            // A leader informed of this may count this replica as a voter: a crash must not bring the doubt back.
            self.promise_manifest = out.change_manifest();
        }
    }

    /// An open leader holds all remaining entries.
    pub(crate) fn remember(&mut self, out: &mut Outbox) {
        if matches!(&self.role, Role::Leader(leader) if leader.open) {
            self.end_all_doubt(out);
        }
    }

    /// Forces all appended records for a clean stop, including those that would wait for a later force.
    pub fn hurry(&mut self, out: &mut Outbox) {
        if let Some(lsn) = self.log.lsn_at(self.committed).filter(|lsn| *lsn != Lsn::ZERO) {
            out.append(base::LogRecord::CommitPoint(lsn), Force::Now);
        }
    }
}

#[cfg(test)]
mod tests;
