//! Index of each cohort's live entries in the log.
//!
//! A *run* covers the consecutive entries of a cohort within one batch, so group commit keeps the index small. It
//! follows the replay rule: an entry or a truncation first removes all runs, or parts of runs, at its sequence and
//! above.

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
    /// Bytes of the batch including padding.
    pub(super) bytes: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    cohorts: BTreeMap<CohortId, BTreeMap<Sequence, Run>>,
}

impl Index {
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

    /// Removes runs before `oldest`. The batches of live runs are in the order of their sequences, so these are the
    /// first runs of each cohort.
    pub(super) fn forget_before(&mut self, oldest: LogPosition) {
        self.cohorts.retain(|_, runs| {
            while let Some((first, _)) = runs.first_key_value().filter(|(_, run)| run.batch < oldest) {
                let first = *first;
                runs.remove(&first);
            }
            !runs.is_empty()
        });
    }

    /// The contiguous runs from `from` to below `below`, at most `max`.
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

    /// Checks that runs do not overlap and that live entries are in log order; for tests and the simulator.
    pub(super) fn invariants(&self) {
        for runs in self.cohorts.values() {
            let mut before: Option<&Run> = None;
            for (first, run) in runs {
                assert!(
                    *first == run.first && run.first <= run.last,
                    "a run is not empty and is indexed by its first sequence"
                );
                assert!(
                    before.is_none_or(|before| before.last < run.first && before.batch <= run.batch),
                    "runs do not overlap, and live entries are in log order"
                );
                before = Some(run);
            }
        }
    }
}
