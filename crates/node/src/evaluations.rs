//! Reads of a machine's data that have to wait for the disk. Other threads evaluate them.
//!
//! A read is answered only under a lease of the same epoch (guarantee 12). A conditional write is proposed only in the
//! epoch in which its conditions were evaluated. It holds its row's latch in the meantime, so the conditions remain
//! valid.

use std::collections::BTreeMap;

use base::{CohortId, Epoch, Now};
use state_machine::interface::Evaluated;
use state_machine::{AsOf, Failure, ReadError};
use store::sstable::Io;

use crate::contract::{Action, EvaluationId};
use crate::node::Node;
use crate::reads::ReadPath;
use crate::registry::Read;
use crate::replica::Replica;
use crate::request::{Outcome, Response};
use crate::request_table::{PendingId, RequestState};
use crate::views::dated;

/// The evaluations in progress.
#[derive(Debug, Default)]
pub(crate) struct Evaluations {
    last: u64,
    under_way: BTreeMap<EvaluationId, UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    cohort: CohortId,
    /// The epoch in which it started.
    epoch: Epoch,
    pending: PendingId,
    path: ReadPath,
}

impl Evaluations {
    pub(crate) fn number(&mut self) -> EvaluationId {
        self.last += 1;
        EvaluationId(self.last)
    }
}

impl Node {
    /// Answers a request from rows: at once if they are in memory, otherwise after a read of the disk.
    pub(crate) fn evaluate(&mut self, id: PendingId, cohort: CohortId, read: Read, path: ReadPath, now: Now) {
        match read.answer(Io::CacheOnly) {
            Err(ReadError::NotCached) => {}
            answer => return self.evaluated_in(cohort, id, path, answer, now),
        }
        let replica = expected!(self.replicas.get(&cohort), "rows are read from a local replica");
        let number = self.evaluations.number();
        let epoch = replica.cohort.promised().epoch;
        self.evaluations.under_way.insert(number, UnderWay { cohort, epoch, pending: id, path });
        self.counters.disk_reads += 1;
        self.pending_requests.place(id, RequestState::Evaluated);
        self.actions.push(Action::Evaluate { id: number, read: Box::new(read) });
    }

    pub(crate) fn evaluated(&mut self, id: EvaluationId, answer: Result<Evaluated<Response>, ReadError>, now: Now) {
        if let Some(call) = self.logs.units.lookups.remove(&id) {
            return self.values_found(&call, answer, now);
        }
        // `None` if the evaluation was cancelled when its epoch ended.
        let Some(UnderWay { cohort, epoch, pending, path }) = self.evaluations.under_way.remove(&id) else { return };
        let still_holds = |replica: &Replica| match &path {
            ReadPath::Leader { .. } => replica.cohort.leads() && replica.cohort.promised().epoch == epoch,
            ReadPath::ReadIndex | ReadPath::Replica(_) => true,
        };
        if self.replicas.get(&cohort).is_some_and(still_holds) {
            self.evaluated_in(cohort, pending, path, answer, now);
        } else {
            self.pending_requests.place(pending, RequestState::Waiting);
        }
    }

    fn evaluated_in(
        &mut self,
        cohort: CohortId,
        id: PendingId,
        path: ReadPath,
        answer: Result<Evaluated<Response>, ReadError>,
        now: Now,
    ) {
        let row = if let ReadPath::Leader { locked } = &path { locked.as_ref() } else { None };
        match answer {
            Ok(Evaluated::Outcome(outcome)) => match path {
                ReadPath::Leader { .. } => self.read_done(id, cohort, outcome, now),
                ReadPath::ReadIndex => self.checked_read_done(id, cohort, outcome),
                ReadPath::Replica(as_of) => self.own_read_done(id, cohort, outcome, *as_of),
            },
            Ok(Evaluated::Decided(verdict)) => self.propose_decided(id, cohort, verdict, row, now),
            Ok(Evaluated::Elsewhere) => {
                self.leave_row(cohort, row);
                self.elsewhere(id, now);
            }
            Err(error) => {
                self.leave_row(cohort, row);
                let failure = Failure::Unavailable(format!("disk read failed: {error}"));
                self.complete(id, Err(failure), None);
                self.file_damaged(cohort, now);
            }
        }
    }

    /// Completes a read of this replica's own state, which later changes don't invalidate.
    fn own_read_done(&mut self, id: PendingId, cohort: CohortId, outcome: Outcome, as_of: AsOf) {
        if let Some(replica) = self.replicas.get_mut(&cohort) {
            replica.reads += 1;
        }
        self.complete(id, dated(outcome, as_of), None);
    }

    /// This replica can't read its data: another replica must lead.
    pub(crate) fn file_damaged(&mut self, cohort: CohortId, now: Now) {
        self.counters.sstables_damaged += 1;
        self.with_cohort(cohort, now, |cohort, out| cohort.stand_aside(now, out));
    }

    /// The lead is lost: the results of running evaluations belong to an earlier epoch and are discarded.
    pub(crate) fn forget_evaluations(&mut self, cohort: CohortId) {
        let is_of_term =
            |evaluation: &UnderWay| evaluation.cohort == cohort && matches!(evaluation.path, ReadPath::Leader { .. });
        let ended = self.evaluations.under_way.extract_if(.., |_, evaluation| is_of_term(evaluation));
        for (_, evaluation) in ended.collect::<Vec<_>>() {
            self.pending_requests.place(evaluation.pending, RequestState::Waiting);
        }
    }
}
