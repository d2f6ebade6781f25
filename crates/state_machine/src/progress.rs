//! The position of a state in its cohort's log, and the check of the next entry.
//!
//! Invariant: a state applies only the direct successor of its last entry (guarantee 1), and timestamps increase from
//! entry to entry (guarantee 17). Both are part of the state and of its checkpoint, so they survive a restart from a
//! checkpoint.

use base::codec::DecodeError;
use base::{CohortId, Entry, Epoch, Lsn, Sequence, Timestamp};

use crate::hash::LogicalHash;

/// The log position at which a machine that was split off another one begins. No entry has this LSN, and no log
/// contains the entries before it. So a replica that was created after the split cannot mistake its empty state for
/// this one.
pub const SPLIT_OFF: Lsn = Lsn { epoch: Epoch(0), sequence: Sequence(1) };

/// Sequence numbers that names skip after a loss. This is 16 times the maximum of entries that a replica acknowledges
/// before they are on disk (`replication`'s `UNFORCED_MAX`).
const NAMES_LOST: u64 = 1 << 24;

/// Why an entry cannot be applied. Each error is fatal: the node must halt, or its replica would diverge. The state is
/// unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The entry is not the direct successor of the last one applied.
    #[error("cohort {cohort}: entry {lsn} (after {previous}) does not follow {last_applied}, the last one applied")]
    NotSuccessor {
        cohort: CohortId,
        lsn: Lsn,
        previous: Lsn,
        /// The last entry applied.
        last_applied: Lsn,
    },
    /// The entry's timestamp is not greater than that of the last one applied.
    #[error("cohort {cohort}: entry {lsn} has timestamp {timestamp}, not after {last_timestamp}, the last one applied")]
    TimestampNotAfter {
        cohort: CohortId,
        lsn: Lsn,
        timestamp: Timestamp,
        /// The timestamp of the last entry applied.
        last_timestamp: Timestamp,
    },
    /// The entry's payload is not a command of this state machine.
    #[error("cohort {cohort}: cannot decode the command of entry {lsn}: {source}")]
    Undecodable { cohort: CohortId, lsn: Lsn, source: DecodeError },
}

/// The position of a state in its cohort's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub cohort: CohortId,
    /// The LSN of the last applied entry.
    pub last_applied: Lsn,
    /// The timestamp of that entry, the greatest in the state: new ones must exceed it (guarantee 17). 0 before the
    /// first.
    pub last_timestamp: Timestamp,
    /// The number of losses declared in the log (guarantee 11).
    pub losses: u32,
}

impl Progress {
    /// The position before the first entry. Timestamp 0 is the version of absent columns: no entry ever has it.
    #[must_use]
    pub fn new(cohort: CohortId) -> Self {
        Self { cohort, last_applied: Lsn::ZERO, last_timestamp: Timestamp(0), losses: 0 }
    }

    /// Checks whether `entry` may be applied now.
    ///
    /// # Errors
    /// The entry is not the successor of the last one applied, or its timestamp does not increase.
    pub fn check(&self, entry: &Entry) -> Result<(), ApplyError> {
        let follows = entry.previous == self.last_applied
            && entry.lsn.sequence > self.last_applied.sequence
            && entry.lsn.sequence.previous() == self.last_applied.sequence
            && entry.lsn.epoch >= self.last_applied.epoch;
        if !follows {
            return Err(ApplyError::NotSuccessor {
                cohort: self.cohort,
                lsn: entry.lsn,
                previous: entry.previous,
                last_applied: self.last_applied,
            });
        }
        if entry.timestamp <= self.last_timestamp {
            return Err(ApplyError::TimestampNotAfter {
                cohort: self.cohort,
                lsn: entry.lsn,
                timestamp: entry.timestamp,
                last_timestamp: self.last_timestamp,
            });
        }
        Ok(())
    }

    /// Advances to `entry`.
    ///
    /// # Panics
    /// If [`Self::check`] would reject the entry.
    pub fn advance(&mut self, entry: &Entry) {
        assert!(entry.lsn > self.last_applied && entry.timestamp > self.last_timestamp, "checked before");
        self.last_applied = entry.lsn;
        self.last_timestamp = entry.timestamp;
    }

    /// A number that identifies an entry forever. After a loss the log reuses sequence numbers, so names skip all
    /// numbers that the lost entries may have had.
    #[must_use]
    pub fn name_of(&self, sequence: Sequence) -> Sequence {
        Sequence(sequence.0 + u64::from(self.losses) * NAMES_LOST)
    }

    /// The error for an entry with an undecodable command.
    #[must_use]
    pub fn undecodable(&self, entry: &Entry, source: DecodeError) -> ApplyError {
        ApplyError::Undecodable { cohort: self.cohort, lsn: entry.lsn, source }
    }

    /// Adds it to a hash.
    pub fn add_to(&self, hash: &mut LogicalHash) {
        hash.word(u64::from(self.cohort.0));
        hash.word(self.last_applied.epoch.0);
        hash.word(self.last_applied.sequence.0);
        hash.signed(self.last_timestamp.0);
        hash.word(u64::from(self.losses));
    }
}
