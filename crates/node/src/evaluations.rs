//! Reads of a machine's data that have to wait for the disk. Other threads evaluate them.
//!
//! A read is answered only under a lease of the same epoch (guarantee 12). A conditional write is proposed only in the
//! epoch in which its conditions were evaluated. It holds its latches in the meantime, so the conditions remain valid.

use std::collections::BTreeMap;

use base::{CohortId, Now};
use state_machine::interface::Evaluated;
use state_machine::{Failure, Locks, ReadError};
use store::sstable::Io;

use crate::contract::{Action, EvaluationId};
use crate::mending::damaged_block;
use crate::node::Node;
use crate::reads::ReadPath;
use crate::registry::Read;
use crate::replica::Replica;
use crate::request::Response;
use crate::request_table::{Pending, PendingId, RequestState};
use crate::requests::RequestStep;

/// The evaluations in progress.
#[derive(Debug, Default)]
pub(crate) struct Evaluations {
    last: u64,
    under_way: BTreeMap<EvaluationId, UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    cohort: CohortId,
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
    pub(crate) fn evaluate(&mut self, pending: Pending, cohort: CohortId, read: Read, path: ReadPath, now: Now) {
        match read.answer(Io::CacheOnly) {
            Err(ReadError::NotCached) => {}
            answer => return self.evaluated_in(cohort, pending, path, answer, now),
        }
        let number = self.evaluations.number();
        self.evaluations.under_way.insert(number, UnderWay { cohort, pending: pending.id, path });
        self.counters.disk_reads += 1;
        self.pending_requests.place(pending, RequestState::Evaluated);
        self.actions.push(Action::Evaluate { id: number, read: Box::new(read) });
    }

    pub(crate) fn evaluated(&mut self, id: EvaluationId, answer: Result<Evaluated<Response>, ReadError>, now: Now) {
        if let Some(call) = self.logs.units.lookups.remove(&id) {
            return self.values_found(&call, answer, now);
        }
        // `None` if the evaluation was cancelled when its epoch ended.
        let Some(UnderWay { cohort, pending, path }) = self.evaluations.under_way.remove(&id) else { return };
        let still_holds = |replica: &Replica| match &path {
            ReadPath::Leader { epoch, .. } => replica.cohort.leads() && replica.cohort.promised().epoch == *epoch,
            ReadPath::ReadIndex { .. } | ReadPath::Replica(_) => true,
        };
        if !self.replicas.get(&cohort).is_some_and(still_holds) {
            return self.pending_requests.retry(pending);
        }
        match self.pending_requests.take(pending) {
            Some(pending) => self.evaluated_in(cohort, pending, path, answer, now),
            // The deadline passed during the read of the disk: nothing was done.
            None => {
                self.end_evaluation(cohort, &path);
                if let Err(error) = &answer {
                    self.read_failed(cohort, error, now);
                }
            }
        }
    }

    fn evaluated_in(
        &mut self,
        cohort: CohortId,
        pending: Pending,
        path: ReadPath,
        answer: Result<Evaluated<Response>, ReadError>,
        now: Now,
    ) {
        match answer {
            Ok(Evaluated::Outcome(outcome)) => {
                self.end_evaluation(cohort, &path);
                if let Some(checked) = outcome.as_ref().ok().and_then(Response::checked) {
                    checked.damaged.iter().for_each(|block| self.mend((cohort, *block), now));
                }
                if pending.query.reads() {
                    self.reply_read(pending, cohort, outcome, path, now);
                } else {
                    // A refused change. Nothing was done, so this needs no lease.
                    self.respond(pending, outcome, None);
                }
            }
            Ok(Evaluated::Decided(decision)) => {
                let locks = if let ReadPath::Leader { locks, .. } = path { locks } else { Locks::NONE };
                self.propose_decided(pending, cohort, decision, locks, now);
            }
            Ok(Evaluated::Unresolved(awaited)) => {
                self.end_evaluation(cohort, &path);
                self.await_transactions(pending, cohort, awaited);
            }
            Ok(Evaluated::Elsewhere) => {
                self.end_evaluation(cohort, &path);
                self.proceed(pending, cohort, RequestStep::Elsewhere, now);
            }
            Err(error) => {
                self.end_evaluation(cohort, &path);
                if let Some(block) = damaged_block(&error) {
                    let is_of_leader = matches!(path, ReadPath::Leader { .. });
                    return self.block_damaged(pending, (cohort, block), is_of_leader, &error.to_string(), now);
                }
                let failure = Failure::Unavailable(format!("disk read failed: {error}"));
                self.respond(pending, Err(failure), None);
                self.read_failed(cohort, &error, now);
            }
        }
    }

    /// An evaluation leads to no proposal: other changes may take its latches.
    fn end_evaluation(&mut self, cohort: CohortId, path: &ReadPath) {
        if let (ReadPath::Leader { locks, .. }, Some(replica)) = (path, self.replicas.get_mut(&cohort)) {
            self.pending_requests.unlatch(replica.latches.abandon(locks));
        }
    }

    /// Data cannot be read. It is not damaged if only the log has not completed it yet.
    pub(crate) fn read_failed(&mut self, cohort: CohortId, error: &ReadError, now: Now) {
        match (damaged_block(error), error) {
            (Some(block), _) => self.mend((cohort, block), now),
            (None, ReadError::Incomplete(_)) => {}
            (None, _) => self.file_damaged(cohort, now),
        }
    }

    /// This replica can't read its data: another replica must lead.
    pub(crate) fn file_damaged(&mut self, cohort: CohortId, now: Now) {
        self.counters.sstables_damaged += 1;
        self.with_cohort(cohort, now, |cohort, out| cohort.stand_aside(now, out));
    }

    /// The epoch has ended: the results of running evaluations are discarded, and their latches released.
    pub(crate) fn forget_evaluations(&mut self, cohort: CohortId) {
        let is_of_term =
            |evaluation: &UnderWay| evaluation.cohort == cohort && matches!(evaluation.path, ReadPath::Leader { .. });
        let ended = self.evaluations.under_way.extract_if(.., |_, evaluation| is_of_term(evaluation));
        for (_, evaluation) in ended.collect::<Vec<_>>() {
            self.end_evaluation(evaluation.cohort, &evaluation.path);
            self.pending_requests.retry(evaluation.pending);
        }
    }
}
