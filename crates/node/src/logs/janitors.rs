//! The janitor of a log, where its sequencer is: that knows what it gave out, and so when there may be anything to
//! fill.

use base::{Duration, Monotonic, Now};
use sharedlog::client::{Answer, Error};
use sharedlog::janitor::{Action, Config, Janitor};
use sharedlog::{AskId, LogId, Position, Projection, ProjectionEpoch, unit};

use crate::logs::calls::Call;
use crate::logs::{Asker, Log};
use crate::node::Node;

const CONFIG: Config = Config { age: Duration::from_millis(2_000), again: Duration::from_millis(1_000), window: 32 };
/// How long a call of a janitor may take.
const PATIENCE: Duration = Duration::from_millis(2_000);

/// A janitor that rests while nothing is given out.
#[derive(Debug)]
pub(super) struct Caretaker {
    epoch: ProjectionEpoch,
    janitor: Janitor,
    /// When it wants to be called, or never while it rests.
    at: Monotonic,
}

impl Caretaker {
    /// It looks once through all that was given out before.
    pub(super) fn begin(projection: &Projection, now: Monotonic) -> Self {
        let janitor = Janitor::begin(projection.clone(), projection.first(), CONFIG, now);
        Self { epoch: projection.epoch, janitor, at: Monotonic::NEVER }
    }

    pub(super) fn at(&self) -> Monotonic {
        self.at
    }
}

impl Log {
    /// Calls the janitor, if its moment has come. It rests once all is filled that was given out.
    pub(super) fn tend(&mut self, now: Monotonic) {
        let (Some(caretaker), Some(sequencer)) = (&mut self.caretaker, &self.sequencer) else { return };
        if caretaker.at > now {
            return;
        }
        caretaker.at = Monotonic::NEVER;
        if caretaker.janitor.done() < sequencer.next() {
            caretaker.janitor.timer(now);
        }
    }

    /// Positions were given out: what is not written of them is filled in time.
    pub(super) fn wake_caretaker(&mut self, now: Monotonic) {
        if let Some(caretaker) = &mut self.caretaker
            && caretaker.at == Monotonic::NEVER
        {
            caretaker.at = now + CONFIG.age;
        }
    }
}

impl Node {
    /// Carries out what a log's janitor wants.
    pub(super) fn run_caretaker(&mut self, id: LogId, now: Now) {
        let Some(Log { caretaker: Some(caretaker), .. }) = self.logs.by_id.get_mut(&id) else { return };
        let epoch = caretaker.epoch;
        let deadline = now.monotonic + PATIENCE;
        for action in caretaker.janitor.take_actions() {
            match action {
                Action::Tail => self.call(id, Call::JanitorTail(epoch), |client, token| {
                    client.tail(token, deadline, now.monotonic);
                }),
                Action::Fill(position) => self.call(id, Call::JanitorFill(epoch, position), |client, token| {
                    client.fill(token, position, deadline, now.monotonic);
                }),
                Action::Ask { ask, unit, request } => self.ask_unit(id, Asker::Janitor(epoch, ask), unit, request, now),
                Action::SetTimer(at) => {
                    if let Some(Log { caretaker: Some(caretaker), .. }) = self.logs.by_id.get_mut(&id) {
                        caretaker.at = at;
                    }
                }
            }
        }
    }

    fn janitor_of(&mut self, id: LogId, epoch: ProjectionEpoch) -> Option<&mut Janitor> {
        let caretaker = self.touch_log(id)?.caretaker.as_mut();
        caretaker.filter(|caretaker| caretaker.epoch == epoch).map(|caretaker| &mut caretaker.janitor)
    }

    pub(super) fn janitor_heard(
        &mut self,
        id: LogId,
        epoch: ProjectionEpoch,
        ask: AskId,
        reply: unit::Reply,
        now: Now,
    ) {
        if let Some(janitor) = self.janitor_of(id, epoch) {
            janitor.answered(ask, reply, now.monotonic);
        }
    }

    pub(super) fn janitor_told(&mut self, id: LogId, epoch: ProjectionEpoch, outcome: Result<Answer, Error>, now: Now) {
        let tail = outcome.and_then(|answer| match answer {
            Answer::Tail(tail) => Ok(tail),
            _ => Err(Error::OutOfTime),
        });
        if let Some(janitor) = self.janitor_of(id, epoch) {
            janitor.tail(tail, now.monotonic);
        }
    }

    pub(super) fn janitor_filled(
        &mut self,
        id: LogId,
        epoch: ProjectionEpoch,
        position: Position,
        outcome: &Result<Answer, Error>,
        now: Now,
    ) {
        if matches!(outcome, Ok(Answer::Junk)) {
            self.counters.log_fills += 1;
        }
        if let Some(janitor) = self.janitor_of(id, epoch) {
            janitor.filled(position, outcome, now.monotonic);
        }
    }
}
