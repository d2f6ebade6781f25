//! Questions to a tablet's rows that the disk has to be waited for: they are answered elsewhere, and come back.
//!
//! A read that comes back is answered only under a lease of the same reign (guarantee 12). A write whose conditions were
//! decided is proposed only in the same reign; its row's latch was held meanwhile, so that what was decided still holds.

use std::collections::BTreeMap;

use base::{CohortId, Epoch, Now};
use bytes::Bytes;
use store::sstable::{Io, TableError};
use tablets::request::Failure;
use tablets::{Evaluated, Evaluation};

use crate::contract::{Action, EvaluationId};
use crate::node::Node;
use crate::pending::{PendingId, Place};

/// The evaluations that are under way elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Evaluations {
    last: u64,
    under_way: BTreeMap<EvaluationId, UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    cohort: CohortId,
    /// The reign in which it was asked.
    epoch: Epoch,
    pending: PendingId,
    /// The row that is kept for it, if a write is to be decided.
    row: Option<Bytes>,
}

impl Node {
    /// Answers a request from rows: at once if they are in memory, otherwise when the disk has been read.
    pub(crate) fn evaluate(
        &mut self,
        id: PendingId,
        cohort: CohortId,
        evaluation: Evaluation,
        row: Option<Bytes>,
        now: Now,
    ) {
        match evaluation.answer(Io::CacheOnly) {
            Err(TableError::NotCached) => {}
            answer => return self.evaluated_in(cohort, id, row.as_ref(), answer, now),
        }
        let Some(replica) = self.replicas.get(&cohort) else { return };
        self.evaluations.last += 1;
        let number = EvaluationId(self.evaluations.last);
        let epoch = replica.cohort.promised().epoch;
        self.evaluations.under_way.insert(number, UnderWay { cohort, epoch, pending: id, row });
        self.counters.disk_reads += 1;
        self.pendings.place(id, Place::Evaluated);
        self.actions.push(Action::Evaluate { id: number, evaluation: Box::new(evaluation) });
    }

    pub(crate) fn evaluated(&mut self, id: EvaluationId, answer: Result<Evaluated, TableError>, now: Now) {
        let Some(UnderWay { cohort, epoch, pending, row }) = self.evaluations.under_way.remove(&id) else { return };
        let same_reign =
            |replica: &crate::replica::Replica| replica.cohort.leads() && replica.cohort.promised().epoch == epoch;
        if self.replicas.get(&cohort).is_some_and(same_reign) {
            self.evaluated_in(cohort, pending, row.as_ref(), answer, now);
        } else {
            self.pendings.place(pending, Place::Waiting);
        }
    }

    fn evaluated_in(
        &mut self,
        cohort: CohortId,
        id: PendingId,
        row: Option<&Bytes>,
        answer: Result<Evaluated, TableError>,
        now: Now,
    ) {
        match answer {
            Ok(Evaluated::Outcome(outcome)) => self.read_done(id, cohort, outcome, now),
            Ok(Evaluated::Command(command)) => self.propose_decided(id, cohort, &command, row, now),
            Ok(Evaluated::Elsewhere) => {
                self.leave_row(cohort, row);
                self.elsewhere(id, now);
            }
            Err(error) => {
                self.leave_row(cohort, row);
                let failure = Failure::Unavailable(format!("the leader can't read its disk: {error}"));
                self.complete(id, Err(failure), None);
                self.table_damaged(cohort, now);
            }
        }
    }

    /// What this replica has of the rows can't be read: another is to lead.
    pub(crate) fn table_damaged(&mut self, cohort: CohortId, now: Now) {
        self.counters.tables_damaged += 1;
        self.with_cohort(cohort, now, |cohort, out| cohort.stand_aside(now, out));
    }

    /// The lead is lost: what comes back is of an earlier reign.
    pub(crate) fn forget_evaluations(&mut self, cohort: CohortId) {
        let ended = self.evaluations.under_way.extract_if(.., |_, evaluation| evaluation.cohort == cohort);
        for (_, evaluation) in ended.collect::<Vec<_>>() {
            self.pendings.place(evaluation.pending, Place::Waiting);
        }
    }
}
