//! Opening the log: creates it if it does not exist, and restores its newest snapshot.
//!
//! One request is in flight at a time. A read of position 0 shows whether the log exists and whether it was trimmed. If
//! it was trimmed, the port searches for a snapshot from the trim mark on and decodes it part by part.

use base::codec::DecodeError;
use base::{Duration, Monotonic};
use sharedlog::PositionRun;
use sharedlog::limits::BATCH_BYTES_MAX;
use sharedlog::request::{Content, LogEntry, LogRequest, LogResponse};
use sharedlog::snapshot::{Collect, Finder, There, Wanted};
use sharedlog::validate::COORDINATION_LOG;
use state_machine::Failure;

use super::following::FOLLOW_WAIT;
use super::{LogOutcome, LogPort, Output, PAUSE, Purpose, read};
use crate::state::{Restorer, State};

/// Deadline of the log's creation. Nodes do not retransmit it, so the port retries it, which is idempotent.
const CREATE_DEADLINE: Duration = Duration::from_millis(2_000);
/// Minimum interval between reports of failures.
const REPORT: Duration = Duration::from_millis(10_000);

/// The log is not open yet.
#[derive(Debug)]
pub(super) struct Opening {
    step: Step,
    /// When to retry after a failure.
    pub(super) retry_at: Monotonic,
    report_at: Monotonic,
}

#[derive(Debug)]
enum Step {
    /// Reads position 0.
    Probe,
    Create,
    /// Searches for a snapshot.
    Search(Box<Finder<Restorer>>),
}

impl LogPort {
    pub(super) fn begin_opening(&mut self, now: Monotonic) {
        self.opening = Some(Opening { step: Step::Probe, retry_at: Monotonic::NEVER, report_at: now + REPORT });
        self.probe(now);
    }

    pub(super) fn open_again(&mut self, now: Monotonic) {
        if let Some(opening) = &mut self.opening
            && opening.retry_at <= now
        {
            opening.retry_at = Monotonic::NEVER;
            self.probe(now);
        }
    }

    fn probe(&mut self, now: Monotonic) {
        self.ask(Purpose::Open, read(sharedlog::Position(0), 1, Duration::ZERO, BATCH_BYTES_MAX), now);
    }

    pub(super) fn opening_answered(&mut self, answer: LogOutcome, now: Monotonic) {
        let Some(mut opening) = self.opening.take() else {
            return debug_assert!(false, "replies to earlier requests are dropped");
        };
        let failure = match (std::mem::replace(&mut opening.step, Step::Probe), answer) {
            (Step::Probe, Ok(LogResponse::Entries(entries))) => match entries.first().map(|entry| &entry.content) {
                Some(Content::Trimmed { mark }) if mark.0 > 0 => {
                    return self.search(opening, Box::new(Finder::collecting(*mark)), now);
                }
                _ => return self.outputs.push(Output::Opened(Box::default())),
            },
            (Step::Probe, Err(Failure::UnknownLog(_))) => {
                opening.step = Step::Create;
                self.opening = Some(opening);
                let create = LogRequest::Create { name: COORDINATION_LOG.into(), stripes: 1, copies: self.copies };
                return self.ask_within(CREATE_DEADLINE, Purpose::Open, create, now);
            }
            // This node may learn of the log a little later.
            (Step::Create, Ok(_) | Err(Failure::Exists(_))) => None,
            (Step::Search(mut finder), Ok(LogResponse::Tail(tail))) => {
                finder.tail(tail);
                return self.search(opening, finder, now);
            }
            (Step::Search(mut finder), Ok(LogResponse::Entries(entries))) => {
                finder.read(entries.into_iter().map(there));
                return self.search(opening, finder, now);
            }
            (_, Err(failure)) => Some(failure),
            (_, Ok(response)) => Some(Failure::Unavailable(format!("unexpected response: {response:?}"))),
        };
        self.not_opened(opening, failure, now);
    }

    fn not_opened(&mut self, mut opening: Opening, failure: Option<Failure>, now: Monotonic) {
        if let Some(failure) = failure
            && now >= opening.report_at
        {
            opening.report_at = now + REPORT;
            self.outputs.push(Output::NotOpened(failure));
        }
        opening.retry_at = now + PAUSE;
        self.opening = Some(opening);
    }

    /// The next step of the search for a snapshot.
    fn search(&mut self, mut opening: Opening, finder: Box<Finder<Restorer>>, now: Monotonic) {
        let request = match finder.wants() {
            Wanted::Tail => LogRequest::Tail { log: COORDINATION_LOG.into() },
            // Positions below the tail that are not written yet are filled after a while.
            Wanted::Read(PositionRun { from, count, .. }) => read(from, count as u32, FOLLOW_WAIT, BATCH_BYTES_MAX),
            Wanted::Nothing => {
                return match restored(*finder) {
                    Ok(state) => self.outputs.push(Output::Opened(Box::new(state))),
                    Err(failure) => self.not_opened(opening, Some(failure), now),
                };
            }
        };
        opening.step = Step::Search(finder);
        self.opening = Some(opening);
        self.ask(Purpose::Open, request, now);
    }
}

impl Collect for Restorer {
    fn push(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        Self::push(self, bytes)
    }
}

fn restored(finder: Finder<Restorer>) -> Result<State, Failure> {
    match finder.collected() {
        Ok(snapshot) => snapshot
            .state
            .finish()
            .map_err(|error| Failure::Unavailable(format!("cannot decode the snapshot: {error}"))),
        Err(mark) => Err(Failure::Unavailable(format!("no snapshot found, and the log is trimmed below {mark}"))),
    }
}

fn there(LogEntry { position, content }: LogEntry) -> There {
    match content {
        Content::Data(data) => data.batch.records().map_or(There::Nothing, There::Records),
        Content::Trimmed { mark } if mark > position => There::TrimmedBelow(mark),
        Content::Trimmed { .. } | Content::Junk | Content::Lost => There::Nothing,
    }
}
