//! Where each cohort's live entries lie in the log.
//!
//! One *run* for the consecutive entries of a cohort that one batch holds: as sparse as group commit makes it. The
//! replay rule keeps it: an entry or a truncation first removes every run, or part of one, at its sequence and above.

use std::collections::BTreeMap;

use base::{CohortId, LogRecord, Record, Sequence};

use super::LogPosition;
use super::frame::{BatchIdentity, padded};

/// Consecutive live entries in one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: Sequence,
    pub(super) last: Sequence,
    pub(super) batch: LogPosition,
    /// Bytes of the batch with its padding.
    pub(super) bytes: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    cohorts: BTreeMap<CohortId, BTreeMap<Sequence, Run>>,
}

impl Index {
    /// Takes note of a batch that is forced.
    pub(super) fn note<'a>(&mut self, batch: &BatchIdentity, records: impl Iterator<Item = &'a Record>) {
        for record in records {
            match &record.body {
                LogRecord::Entry(entry) => self.entry(record.cohort, entry.lsn.sequence, batch),
                LogRecord::Truncation { from } => self.kill(record.cohort, *from),
                LogRecord::CommitPoint(_) => {}
            }
        }
    }

    fn entry(&mut self, cohort: CohortId, sequence: Sequence, batch: &BatchIdentity) {
        self.kill(cohort, sequence);
        let runs = self.cohorts.entry(cohort).or_default();
        if let Some((_, run)) = runs.iter_mut().next_back()
            && run.batch == batch.position
            && run.last.next() == sequence
        {
            run.last = sequence;
            return;
        }
        let bytes = u32::try_from(padded(batch.length as usize)).expect("a batch is far below 4 GiB");
        runs.insert(sequence, Run { first: sequence, last: sequence, batch: batch.position, bytes });
    }

    fn kill(&mut self, cohort: CohortId, from: Sequence) {
        let Some(runs) = self.cohorts.get_mut(&cohort) else { return };
        while let Some(last) = runs.last_entry().filter(|last| *last.key() >= from) {
            last.remove();
        }
        if let Some(mut last) = runs.last_entry() {
            let run = last.get_mut();
            run.last = run.last.min(from.previous());
        }
    }

    /// Forgets what lies before `oldest`. Entries may be forgotten anywhere in the order of sequences, as a cohort's
    /// older batches may hold its higher ones only until they are killed: never so for live ones, whose batches grow
    /// with their sequences.
    pub(super) fn forget_before(&mut self, oldest: LogPosition) {
        self.cohorts.retain(|_, runs| {
            while let Some((first, _)) = runs.first_key_value().filter(|(_, run)| run.batch < oldest) {
                let first = *first;
                runs.remove(&first);
            }
            !runs.is_empty()
        });
    }

    /// The unbroken runs that hold `from` and what follows it below `below`, the first `max` of them.
    pub(super) fn runs(&self, cohort: CohortId, from: Sequence, below: Option<Sequence>, max: usize) -> Vec<Run> {
        let mut found = Vec::new();
        let Some(runs) = self.cohorts.get(&cohort) else { return found };
        let Some((first, _)) = runs.range(..=from).next_back() else { return found };
        let mut wanted = from;
        for run in runs.range(first..).map(|(_, run)| *run).take(max) {
            let last = below.map_or(run.last, |below| run.last.min(below.previous()));
            if !(run.first <= wanted && wanted <= last) {
                break;
            }
            found.push(Run { first: wanted, last, ..run });
            wanted = last.next();
        }
        found
    }

    /// Live entries of a batch, and their sequences' order, agree: checked by tests and by the simulator.
    pub(super) fn invariants(&self) {
        for runs in self.cohorts.values() {
            let mut before: Option<&Run> = None;
            for (first, run) in runs {
                assert!(*first == run.first && run.first <= run.last, "a run is not empty and lies under its own name");
                assert!(
                    before.is_none_or(|before| before.last < run.first && before.batch <= run.batch),
                    "runs don't overlap, and live entries lie in the log in their own order"
                );
                before = Some(run);
            }
        }
    }
}
