//! How far a state has come in its cohort's log, and what it refuses to apply.
//!
//! Invariant: a state applies the direct successor of its last entry and nothing else (guarantee 1), and timestamps
//! grow from entry to entry (guarantee 17). Both are part of the state and of its checkpoint: a replica that starts
//! from a checkpoint has forgotten neither.

use base::codec::DecodeError;
use base::{CohortId, Entry, Epoch, Lsn, Sequence, Timestamp};

use crate::hash::LogicalHash;

/// The place in its log at which a machine that was split off another begins: no entry has it, and no log holds what
/// comes before. A replica that was not there at the split has nothing, and can't mistake that for this.
pub const SPLIT_OFF: Lsn = Lsn { epoch: Epoch(0), sequence: Sequence(1) };

/// Names that are left out at a loss: more than there are entries that a replica acknowledges before its disk has them
/// (`replication`'s `UNFORCED_MAX`), sixteen times over.
const NAMES_LOST: u64 = 1 << 24;

/// Why an entry can't be applied. Each is fatal: the node halts, or its replica would drift apart from the others. The
/// state is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The entry is not the direct successor of the last one applied.
    #[error("cohort {cohort}: entry {lsn} (after {previous}) does not follow {last_applied}, the last one applied")]
    NotSuccessor {
        /// The cohort.
        cohort: CohortId,
        /// The entry.
        lsn: Lsn,
        /// The predecessor it names.
        previous: Lsn,
        /// The last entry applied.
        last_applied: Lsn,
    },
    /// The entry's timestamp is not greater than that of the entry before it.
    #[error("cohort {cohort}: entry {lsn} has timestamp {timestamp}, not after {last_timestamp}, the last one applied")]
    TimestampNotAfter {
        /// The cohort.
        cohort: CohortId,
        /// The entry.
        lsn: Lsn,
        /// Its timestamp.
        timestamp: Timestamp,
        /// The timestamp of the last entry applied.
        last_timestamp: Timestamp,
    },
    /// The entry's payload is no command of this state machine.
    #[error("cohort {cohort}: the command of entry {lsn} can't be read: {source}")]
    Undecodable {
        /// The cohort.
        cohort: CohortId,
        /// The entry.
        lsn: Lsn,
        /// What is wrong with it.
        source: DecodeError,
    },
}

/// A state's place in its cohort's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The cohort.
    pub cohort: CohortId,
    /// The last entry applied.
    pub last_applied: Lsn,
    /// Its timestamp, the greatest in the state: new ones must exceed it (guarantee 17). 0 before the first.
    pub last_timestamp: Timestamp,
    /// Losses that were declared in the log (guarantee 11).
    pub losses: u32,
}

impl Progress {
    /// Before the first entry. Timestamp 0 is the version of what is absent: no entry ever has it.
    #[must_use]
    pub fn new(cohort: CohortId) -> Self {
        Self { cohort, last_applied: Lsn::ZERO, last_timestamp: Timestamp(0), losses: 0 }
    }

    /// Whether `entry` may be applied now.
    ///
    /// # Errors
    /// When it is not the successor of the last entry applied, or its timestamp doesn't grow.
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

    /// Takes the place of `entry`, which was checked.
    ///
    /// # Panics
    /// When it was not.
    pub fn advance(&mut self, entry: &Entry) {
        assert!(entry.lsn > self.last_applied && entry.timestamp > self.last_timestamp, "checked before");
        self.last_applied = entry.lsn;
        self.last_timestamp = entry.timestamp;
    }

    /// What an entry may be known by for ever. After a loss sequences are given out again: names go on past all that
    /// the lost entries can have had.
    #[must_use]
    pub fn name_of(&self, sequence: Sequence) -> Sequence {
        Sequence(sequence.0 + u64::from(self.losses) * NAMES_LOST)
    }

    /// The error for an entry whose command can't be read.
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
