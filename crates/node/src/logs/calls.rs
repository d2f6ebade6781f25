//! Requests of clients to shared logs: calls of a log's client machine, and their results.

use std::collections::BTreeSet;

use base::{Duration, Monotonic, Now};
use catalog::CatalogRequest;
use sharedlog::client::{Error, LogReply, ReadMany, Token};
use sharedlog::controller::CopierId;
use sharedlog::request::{Content, LogEntry, LogRequest, LogResponse};
use sharedlog::{LogId, Position, PositionRun, ProjectionEpoch};
use state_machine::Failure;

use crate::contract::RequestId;
use crate::logs::reading::wait_within;
use crate::message::Query;
use crate::node::Node;
use crate::registry::Response;
use crate::request::Outcome;
use crate::request_table::{Pending, PendingId, RequestState, Target};

/// The purpose of a call of a client machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Append(PendingId),
    Tail(PendingId),
    Trim(PendingId),
    /// A read from that position on.
    Read(PendingId, Position),
    /// A read for a copier.
    Copied(CopierId, PositionRun),
    /// A tail query for the hole fill of that epoch.
    TailForFill(ProjectionEpoch),
    /// A fill for the hole fill of that epoch.
    Fill(ProjectionEpoch, Position),
    /// A fill for the follower, which gets the result from the tail.
    FillGap,
}

impl Call {
    /// The client's request that the call serves, if any.
    pub(super) fn request(&self) -> Option<PendingId> {
        match self {
            Self::Append(id) | Self::Tail(id) | Self::Trim(id) | Self::Read(id, _) => Some(*id),
            Self::Copied(..) | Self::TailForFill(_) | Self::Fill(..) | Self::FillGap => None,
        }
    }
}

/// Client machines answer this long before the deadline of the request.
const MARGIN: Duration = Duration::from_millis(20);

impl Pending {
    /// The deadline for the log's client machine.
    pub(super) fn log_deadline(&self) -> Monotonic {
        Monotonic(self.deadline.0.saturating_sub(MARGIN.0))
    }
}

impl Node {
    /// Passes a request to the client machine of its log. If the local copy of the catalog has no such log, asks the
    /// catalog's leader.
    pub(crate) fn put_to_log(&mut self, pending: Pending, now: Now) {
        let (Target::Log(name), Query::Log(request)) = (&pending.target, &pending.query) else {
            debug_assert!(false, "only requests to logs have a log as their target");
            return self.respond(pending, Err(Failure::Invalid("not a request to a log".to_owned())), None);
        };
        let Some(log) = self.catalog().log(name) else {
            let query = Query::Machine(CatalogRequest::DescribeLog(name.clone()).into());
            return self.look_up(pending, query, now);
        };
        let (log, projection) = (log.id, log.projection.clone());
        let (id, deadline, request) = (pending.id, pending.log_deadline(), request.clone());
        self.pending_requests.place(pending, RequestState::AtLog);
        self.use_log(log);
        if let Some(known) = self.touch_log(log) {
            known.follower.projected(&projection, now.monotonic);
            known.client.projected(projection, now.monotonic);
        }
        match request {
            LogRequest::Append { batch, stamp, .. } => self.call(log, Call::Append(id), |client, token| {
                client.append(token, batch, stamp, deadline, now.monotonic);
            }),
            LogRequest::Tail { .. } => self.call(log, Call::Tail(id), |client, token| {
                client.tail(token, deadline, now.monotonic);
            }),
            LogRequest::Trim { before, .. } => self.call(log, Call::Trim(id), |client, token| {
                client.trim(token, before, deadline, now.monotonic);
            }),
            LogRequest::TrimOne { position, .. } => self.call(log, Call::Trim(id), |client, token| {
                client.trim_one(token, position, deadline, now.monotonic);
            }),
            LogRequest::Read { from, count, wait, bytes, .. } => {
                let (left, count) = (deadline.since(now.monotonic), count as usize);
                let wanted = ReadMany { run: PositionRun::of(from, count), wait: wait_within(wait, left), bytes };
                self.begin_shared_log_read(log, id, wanted, deadline, now);
            }
            LogRequest::Create { .. } | LogRequest::Drop { .. } | LogRequest::List | LogRequest::Describe { .. } => {}
        }
    }

    /// The log of a request was dropped. A read finds that out from the catalog; a change may have been made before.
    pub(super) fn log_dropped_under(&mut self, id: PendingId) {
        let Some(pending) = self.pending_requests.take(id) else { return };
        if pending.query.reads() {
            self.pending_requests.place(pending, RequestState::Waiting);
        } else {
            self.give_up(pending, "the log was dropped");
        }
    }

    pub(super) fn call(&mut self, id: LogId, call: Call, begin: impl FnOnce(&mut sharedlog::client::Client, Token)) {
        let Some(log) = self.touch_log(id) else { return };
        log.last_token.0 += 1;
        log.calls.insert(log.last_token, call);
        begin(&mut log.client, log.last_token);
    }

    /// The clients of these requests have disconnected. Reads that wait for an entry end, because they could wait for a
    /// long time. Other requests continue: a change may be in a log already, and other reads end soon.
    pub(crate) fn clients_gone(&mut self, requests: &BTreeSet<RequestId>, now: Now) {
        let is_idle = |(_, pending): &(PendingId, &Pending)| pending.query.waits();
        let idle: BTreeSet<PendingId> =
            self.pending_requests.at_logs(requests).filter(is_idle).map(|(id, _)| id).collect();
        for (id, log) in &mut self.logs.by_id {
            let is_idle = |call: &Call| matches!(call, Call::Read(read, _) if idle.contains(read));
            let tokens: BTreeSet<Token> =
                log.calls.iter().filter(|(_, call)| is_idle(call)).map(|(token, _)| *token).collect();
            if !tokens.is_empty() {
                self.logs.touched.insert(*id);
                log.follower.give_up(&tokens);
                log.client.give_up(&tokens, now.monotonic);
                // Parked reads end without a result.
                log.calls.retain(|token, _| !tokens.contains(token));
            }
        }
        for id in idle {
            if let Some(pending) = self.pending_requests.take(id) {
                self.give_up(pending, "the client disconnected");
            }
        }
    }

    /// A call of a log's client machine has ended.
    pub(super) fn log_call_done(&mut self, id: LogId, token: Token, outcome: Result<LogReply, Error>, now: Now) {
        let Some(call) = self.logs.by_id.get_mut(&id).and_then(|log| log.calls.remove(&token)) else { return };
        match call {
            Call::Read(pending, from) => {
                let Some(pending) = self.pending_requests.take(pending) else { return };
                let outcome = entries(from, outcome);
                self.follow_if_at_end(id, &pending.query, &outcome, now);
                self.respond(pending, outcome, None);
            }
            Call::Append(pending) | Call::Tail(pending) | Call::Trim(pending) => {
                self.complete(pending, said(outcome), None);
            }
            Call::Copied(copier, run) => self.logs.controller.read(id, copier, run, outcome, now.monotonic),
            Call::TailForFill(epoch) => self.tail_for_fill(id, epoch, outcome, now),
            Call::FillGap => self.counters.log_fills += u64::from(outcome == Ok(LogReply::Junk)),
            Call::Fill(epoch, position) => self.filled(id, epoch, position, &outcome, now),
        }
    }
}

/// The entries at the first positions from `from` on.
fn entries(from: Position, outcome: Result<LogReply, Error>) -> Outcome {
    let answers = match outcome {
        Ok(LogReply::Range(answers)) => answers,
        Ok(LogReply::Larger) => return Ok(Response::Log(LogResponse::Larger)),
        // The wait ended without an entry.
        Ok(_) | Err(Error::BeyondTail { .. }) => Vec::new(),
        Err(error) => return Err(failure(error)),
    };
    let mut entries = Vec::with_capacity(answers.len());
    for (answer, position) in answers.into_iter().zip(from.0..) {
        let content = match answer {
            LogReply::Entry(data) => Content::Data(data),
            LogReply::Lost => Content::Lost,
            LogReply::Junk => Content::Junk,
            LogReply::Trimmed { mark } => Content::Trimmed { mark },
            LogReply::Unwritten | LogReply::Larger => break,
            LogReply::Range(_) | LogReply::Appended(_) | LogReply::Tail(_) | LogReply::Done => break,
        };
        entries.push(LogEntry { position: Position(position), content });
    }
    Ok(Response::Log(LogResponse::Entries(entries)))
}

fn said(outcome: Result<LogReply, Error>) -> Outcome {
    Ok(Response::Log(match outcome.map_err(failure)? {
        LogReply::Appended(position) => LogResponse::Appended(position),
        LogReply::Tail(position) => LogResponse::Tail(position),
        _ => LogResponse::Trimmed,
    }))
}

fn failure(error: Error) -> Failure {
    match error {
        Error::OutOfTime => Failure::Unavailable("no reply from the log's units or its sequencer".to_owned()),
        Error::Unknown { position } => Failure::MayLie { position: position.0 },
        Error::BeyondTail { .. } => Failure::Precondition(error.to_string()),
        Error::Conflict { .. } | Error::Damaged { .. } => Failure::Unavailable(error.to_string()),
    }
}
