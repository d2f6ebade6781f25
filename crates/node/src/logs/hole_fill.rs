//! Drives the hole fill of a log ([`sharedlog::hole_fill`]) on the node of its sequencer.

use base::{Duration, Now};
use sharedlog::client::{Error, LogReply};
use sharedlog::hole_fill::{Action, Config, HoleFill};
use sharedlog::{LogId, Position, ProjectionEpoch};

use crate::logs::calls::Call;
use crate::logs::{Log, RequestSource};
use crate::node::Node;

pub(super) const CONFIG: Config =
    Config { age: Duration::from_millis(2_000), again: Duration::from_millis(1_000), window: 32 };
/// Timeout of a request for the tail, and of a fill.
pub(super) const TIMEOUT: Duration = Duration::from_millis(2_000);

impl Node {
    /// Passes on the sequencer's next position and carries out the actions.
    pub(super) fn run_hole_fill(&mut self, id: LogId, now: Now) {
        let Some(Log { hole_fill: Some(fill), sequencer: Some(sequencer), .. }) = self.logs.by_id.get_mut(&id) else {
            return;
        };
        fill.handed_out(sequencer.next(), now.monotonic);
        let (epoch, deadline) = (fill.epoch(), now.monotonic + TIMEOUT);
        for action in fill.take_actions() {
            match action {
                Action::Tail => self.call(id, Call::TailForFill(epoch), |client, token| {
                    client.tail(token, deadline, now.monotonic);
                }),
                Action::Fill(position) => self.call(id, Call::Fill(epoch, position), |client, token| {
                    client.fill(token, position, deadline, now.monotonic);
                }),
                Action::Ask { ask, unit, request } => {
                    self.ask_unit(id, RequestSource::HoleFill(epoch, ask), unit, request, now);
                }
                Action::SetTimer(at) => {
                    if let Some(log) = self.logs.by_id.get_mut(&id) {
                        log.hole_fill_at = at;
                    }
                }
            }
        }
    }

    /// The hole fill of an epoch, if it is running.
    pub(super) fn hole_fill(&mut self, id: LogId, epoch: ProjectionEpoch) -> Option<&mut HoleFill> {
        self.touch_log(id)?.hole_fill.as_mut().filter(|fill| fill.epoch() == epoch)
    }

    pub(super) fn tail_for_fill(
        &mut self,
        id: LogId,
        epoch: ProjectionEpoch,
        outcome: Result<LogReply, Error>,
        now: Now,
    ) {
        let tail = outcome.and_then(|answer| match answer {
            LogReply::Tail(tail) => Ok(tail),
            _ => Err(Error::OutOfTime),
        });
        if let Some(fill) = self.hole_fill(id, epoch) {
            fill.tail(tail, now.monotonic);
        }
    }

    pub(super) fn filled(
        &mut self,
        id: LogId,
        epoch: ProjectionEpoch,
        position: Position,
        outcome: &Result<LogReply, Error>,
        now: Now,
    ) {
        if matches!(outcome, Ok(LogReply::Junk)) {
            self.counters.log_fills += 1;
        }
        if let Some(fill) = self.hole_fill(id, epoch) {
            fill.filled(position, outcome, now.monotonic);
        }
    }
}
