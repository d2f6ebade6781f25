//! The meaning of the shared log's records for one cohort after a restart (guarantee 5).
//!
//! Replay is in log order: an accepted entry or a truncation invalidates every earlier record of its cohort with the
//! same or a higher sequence. Epochs are never compared to decide which record is valid. This replaces Spinnaker's
//! skipped-LSN lists (6.1.1), which could be lost separately from the log.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{Entry, LogRecord, Lsn, Sequence, SharedMembership};

/// Collects the records of one cohort in log order.
///
/// The checkpoint may become known before or after the records. Entries that it covers are not kept; only their effect
/// on replay is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Replay {
    /// The checkpoint that replay starts from.
    checkpoint: Lsn,
    /// Among the valid entries that the checkpoint covers: the first one, and the one at the checkpoint's sequence.
    first_covered: Option<Sequence>,
    at_checkpoint: Option<Lsn>,
    /// The valid entries past the checkpoint.
    live: BTreeMap<Sequence, Entry>,
    committed: Lsn,
}

/// The result of replaying a cohort's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The unbroken chain of entries after the checkpoint.
    pub entries: Vec<Entry>,
    /// The commit point recorded in the log; never below the checkpoint.
    pub committed: Sequence,
    /// Where to truncate valid records that do not belong to the chain. Records past its end could otherwise match
    /// later entries. Records before an installed snapshot that has not replaced them yet could be sent to a lagging
    /// follower.
    pub cut: Option<Sequence>,
}

impl Replay {
    /// An empty replay that starts from this checkpoint ([`Lsn::ZERO`] if there is none).
    #[must_use]
    pub fn after(checkpoint: Lsn) -> Self {
        Self { checkpoint, ..Self::default() }
    }

    /// Processes the next record.
    pub fn record(&mut self, record: LogRecord) {
        match record {
            LogRecord::Entry(entry) => self.entry(entry),
            LogRecord::Truncation { from } => self.kill(from),
            LogRecord::CommitPoint(lsn) => {
                // A commit point refers to the entry that is valid at that place in the log, so the newest one counts.
                if lsn.sequence > self.committed.sequence {
                    self.committed = lsn;
                }
            }
        }
    }

    /// The newest membership in the log past the checkpoint, if any.
    #[must_use]
    pub fn members(&self) -> Option<&SharedMembership> {
        self.live.values().rev().find_map(|entry| entry.members.as_ref())
    }

    fn entry(&mut self, entry: Entry) {
        let sequence = entry.lsn.sequence;
        if planted(Bug::ReplayByEpoch) {
            if sequence <= self.checkpoint.sequence {
                self.cover(sequence, entry.lsn);
            } else if self.live.get(&sequence).is_none_or(|held| held.lsn.epoch <= entry.lsn.epoch) {
                self.live.insert(sequence, entry);
            }
            return;
        }
        self.kill(sequence);
        if sequence > self.checkpoint.sequence {
            self.live.insert(sequence, entry);
        } else {
            self.cover(sequence, entry.lsn);
        }
    }

    fn kill(&mut self, from: Sequence) {
        if from <= self.committed.sequence {
            // A majority has lost committed entries (guarantee 11).
            self.committed.sequence = from.previous();
        }
        while let Some(last) = self.live.last_entry().filter(|last| *last.key() >= from) {
            last.remove();
        }
        if from <= self.checkpoint.sequence {
            self.at_checkpoint = None;
            self.first_covered = self.first_covered.filter(|first| *first < from);
        }
    }

    /// Records a valid entry that the checkpoint covers.
    fn cover(&mut self, sequence: Sequence, lsn: Lsn) {
        self.first_covered = self.first_covered.or(Some(sequence));
        if sequence == self.checkpoint.sequence {
            self.at_checkpoint = Some(lsn);
        }
    }

    /// Moves to a later checkpoint.
    fn rebase(&mut self, checkpoint: Lsn) {
        if checkpoint == self.checkpoint {
            return;
        }
        assert!(self.first_covered.is_none(), "what was not kept can't be looked at again");
        self.checkpoint = checkpoint;
        let past = self.live.split_off(&checkpoint.sequence.next());
        for (sequence, entry) in std::mem::replace(&mut self.live, past) {
            self.cover(sequence, entry.lsn);
        }
    }

    /// Whether the log has no entry past the checkpoint.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The log after the checkpoint ([`Lsn::ZERO`] if there is none): only the unbroken chain of predecessors that
    /// starts there (guarantee 9).
    #[must_use]
    pub fn finish(mut self, checkpoint: Lsn) -> Replayed {
        self.rebase(checkpoint);
        let mut tail = std::mem::take(&mut self.live);
        let mut last = checkpoint;
        let mut entries = Vec::new();
        while tail.get(&last.sequence.next()).is_some_and(|entry| entry.previous == last)
            && let Some((_, entry)) = tail.pop_first()
        {
            last = entry.lsn;
            entries.push(entry);
        }
        let leads_here = self.at_checkpoint == Some(checkpoint);
        let stranded = self.first_covered.filter(|_| entries.is_empty() && !leads_here);
        let leftover = (!tail.is_empty()).then_some(last.sequence.next());
        Replayed { committed: self.committed_within(checkpoint, &entries), entries, cut: stranded.or(leftover) }
    }

    fn committed_within(&self, checkpoint: Lsn, entries: &[Entry]) -> Sequence {
        let last = entries.last().map_or(checkpoint, |entry| entry.lsn);
        let point = self.committed.sequence.min(last.sequence);
        point.max(checkpoint.sequence)
    }
}

#[cfg(test)]
mod tests {
    use base::{SplitMix64, Timestamp};
    use bytes::Bytes;

    use super::*;

    /// The result does not depend on whether the checkpoint is known before or after the records.
    #[test]
    fn replay_discards_checkpointed_records() {
        let mut random = SplitMix64::new(7);
        for _ in 0..20_000 {
            let checkpoint = Lsn::new(random.below(3), random.below(5));
            let (mut kept, mut forgotten) = (Replay::default(), Replay::after(checkpoint));
            for _ in 0..random.below(8) {
                let lsn = Lsn::new(random.below(3), 1 + random.below(8));
                let previous = Lsn::new(random.below(3), lsn.sequence.0 - 1);
                let record = match random.below(5) {
                    0 => LogRecord::Truncation { from: lsn.sequence },
                    1 => LogRecord::CommitPoint(lsn),
                    _ => LogRecord::Entry(Entry {
                        lsn,
                        previous,
                        timestamp: Timestamp(1),
                        payload: Bytes::new(),
                        members: None,
                    }),
                };
                kept.record(record.clone());
                forgotten.record(record);
            }
            assert!(forgotten.live.keys().all(|sequence| *sequence > checkpoint.sequence));
            assert_eq!(kept.finish(checkpoint), forgotten.finish(checkpoint));
        }
    }
}
