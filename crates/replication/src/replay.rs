//! What the records of the shared log mean for one cohort after a restart (guarantee 5).
//!
//! Replay is in log order: an accepted entry or a truncation kills every earlier record of its cohort with the same or a
//! higher sequence. Epochs are never compared to decide which record lives. This takes the place of Spinnaker's
//! skipped-LSN lists (6.1.1), which could get lost apart from the log.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{Entry, LogRecord, Lsn, Sequence};

/// Collects the records of one cohort in the order of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Replay {
    live: BTreeMap<Sequence, Entry>,
    committed: Lsn,
}

/// What is left of a cohort's log after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The unbroken chain of entries that starts after the checkpoint.
    pub entries: Vec<Entry>,
    /// How far the log knows entries to be committed; never below the checkpoint.
    pub committed: Sequence,
    /// From where live records don't belong to the chain, and must be cut: past its end, lest they match something later;
    /// or before a checkpoint that was taken over whole and did not replace them yet, lest they be sent to a laggard.
    pub cut: Option<Sequence>,
}

impl Replay {
    /// Takes the next record.
    pub fn record(&mut self, record: LogRecord) {
        match record {
            LogRecord::Entry(entry) => self.entry(entry),
            LogRecord::Truncation { from } => {
                self.live.split_off(&from);
            }
            LogRecord::CommitPoint(lsn) => {
                // A commit point speaks of the entry that is live where it stands in the log, and committed entries
                // are never cut: the newest point holds.
                if lsn.sequence > self.committed.sequence {
                    self.committed = lsn;
                }
            }
        }
    }

    fn entry(&mut self, entry: Entry) {
        let sequence = entry.lsn.sequence;
        if planted(Bug::ReplayByEpoch) {
            if self.live.get(&sequence).is_none_or(|held| held.lsn.epoch <= entry.lsn.epoch) {
                self.live.insert(sequence, entry);
            }
            return;
        }
        self.live.split_off(&sequence);
        self.live.insert(sequence, entry);
    }

    /// The log that follows a checkpoint at `checkpoint` ([`Lsn::ZERO`] if there is none): only the unbroken chain of
    /// predecessors that starts from it (guarantee 9).
    #[must_use]
    pub fn finish(mut self, checkpoint: Lsn) -> Replayed {
        let mut tail = self.live.split_off(&checkpoint.sequence.next());
        let mut last = checkpoint;
        let mut entries = Vec::new();
        while tail.get(&last.sequence.next()).is_some_and(|entry| entry.previous == last)
            && let Some((_, entry)) = tail.pop_first()
        {
            last = entry.lsn;
            entries.push(entry);
        }
        let leads_here = self.live.get(&checkpoint.sequence).is_some_and(|entry| entry.lsn == checkpoint);
        let stranded = self.live.keys().next().filter(|_| entries.is_empty() && !leads_here).copied();
        let leftover = (!tail.is_empty()).then_some(last.sequence.next());
        Replayed { committed: self.committed_within(checkpoint, &entries), entries, cut: stranded.or(leftover) }
    }

    fn committed_within(&self, checkpoint: Lsn, entries: &[Entry]) -> Sequence {
        let last = entries.last().map_or(checkpoint, |entry| entry.lsn);
        let point = self.committed.sequence.min(last.sequence);
        point.max(checkpoint.sequence)
    }
}
