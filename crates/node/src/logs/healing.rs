//! Filling units with what older chains hold: whoever leads the catalogue has it done, so that each position has as
//! many copies as it should have again (CORFU, section 3.4).

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, Monotonic, Now};
use sharedlog::client::{Answer, Error, ReadMany, Wait};
use sharedlog::copier::{Action, Config, Copier};
use sharedlog::limits::BATCH_BYTES_MAX;
use sharedlog::recovery::healings;
use sharedlog::{AskId, LogId, ProjectionEpoch, Run, UnitId, unit};
use tablets::LogRecord;

use crate::logs::Asker;
use crate::logs::calls::Call;
use crate::logs::repairs::homes;
use crate::node::Node;

const CONFIG: Config = Config { window: 4, again: Duration::from_millis(500), failures: 8 };
/// Logs of which units are filled at one time, one after the other: who uses them goes before.
const HEALINGS_MAX: usize = 2;
/// How long one read of a copier may take.
const PATIENCE: Duration = Duration::from_millis(2_000);

/// Names a copier of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CopierId(u64);

/// The units that are being filled, one of each log at a time.
#[derive(Debug, Default)]
pub(super) struct Healings {
    by_log: BTreeMap<LogId, Healing>,
    /// The log whose turn was last.
    last_log: LogId,
    last: CopierId,
}

#[derive(Debug)]
struct Healing {
    id: CopierId,
    /// Of the projection of which it was needed. In the next one other units may be whole, or gone.
    epoch: ProjectionEpoch,
    copier: Copier,
    at: Monotonic,
}

impl Healings {
    pub(super) fn next_timer(&self) -> Option<Monotonic> {
        self.by_log.values().map(|healing| healing.at).min()
    }
}

impl Node {
    /// Has units filled that some older chain of a log needs, without those that are to go.
    pub(super) fn heal(&mut self, log: &LogRecord, going: &BTreeSet<UnitId>, now: Now) {
        let epoch = log.projection.epoch;
        if self.logs.healings.by_log.get(&log.id).is_some_and(|healing| healing.epoch == epoch) {
            return;
        }
        self.logs.healings.by_log.remove(&log.id);
        if self.logs.healings.by_log.len() >= HEALINGS_MAX {
            return;
        }
        let needed = healings(&log.projection, log.copies as usize, &homes(log), going);
        if needed.is_empty() {
            return;
        }
        self.logs.healings.last_log = log.id;
        self.logs.healings.last.0 += 1;
        let (id, copier) = (self.logs.healings.last, Copier::begin(needed, CONFIG, now.monotonic));
        self.logs.healings.by_log.insert(log.id, Healing { id, epoch, copier, at: Monotonic::NEVER });
        self.counters.log_healings += 1;
    }

    /// Another node has things filled from now on.
    pub(super) fn stop_healing(&mut self) {
        self.logs.healings.by_log.clear();
    }

    /// Carries out what copiers want; whether there was anything.
    pub(super) fn run_healings(&mut self, now: Now) -> bool {
        let mut wanted = Vec::new();
        for (log, healing) in &mut self.logs.healings.by_log {
            let id = healing.id;
            wanted.extend(healing.copier.take_actions().into_iter().map(|action| (*log, id, action)));
        }
        let is_any = !wanted.is_empty();
        for (log, id, action) in wanted {
            self.copier_wants(log, id, action, now);
        }
        is_any
    }

    fn copier_wants(&mut self, log: LogId, id: CopierId, action: Action, now: Now) {
        match action {
            Action::Ask { ask, unit, request } => self.ask_unit(log, Asker::Copier(id, ask), unit, request, now),
            Action::Read(run) => {
                self.use_log(log);
                self.show_projection(log, now);
                let deadline = now.monotonic + PATIENCE;
                let wait = Wait::Each(Duration::ZERO);
                let wanted = ReadMany { run, wait, bytes: BATCH_BYTES_MAX };
                self.call(log, Call::Copied(id, run), |client, token| {
                    client.read_many(token, wanted, deadline, now.monotonic);
                });
            }
            Action::SetTimer(at) => {
                if let Some(healing) = self.logs.healings.of(log, id) {
                    healing.at = at;
                }
            }
            Action::Done { is_whole } => {
                if self.logs.healings.of(log, id).is_some() {
                    self.logs.healings.by_log.remove(&log);
                }
                if is_whole {
                    self.repair_healed(log, now);
                }
            }
        }
    }

    /// Positions that a copier needs were read.
    pub(super) fn healing_read(
        &mut self,
        log: LogId,
        id: CopierId,
        run: Run,
        outcome: Result<Answer, Error>,
        now: Now,
    ) {
        if let Some(healing) = self.logs.healings.of(log, id) {
            healing.copier.read(run, outcome, now.monotonic);
        }
    }

    pub(super) fn healing_answered(&mut self, log: LogId, id: CopierId, ask: AskId, reply: unit::Reply, now: Now) {
        if let Some(healing) = self.logs.healings.of(log, id) {
            healing.copier.answered(ask, reply, now.monotonic);
        }
    }

    pub(super) fn healing_timers(&mut self, now: Now) {
        let due = |healing: &&mut Healing| healing.at <= now.monotonic;
        for healing in self.logs.healings.by_log.values_mut().filter(due) {
            healing.at = Monotonic::NEVER;
            healing.copier.timer(now.monotonic);
        }
    }
}

impl Healings {
    /// Ends what was needed of earlier projections of these logs: others wait for their turn.
    pub(super) fn keep(&mut self, logs: &[LogRecord]) {
        let epochs: BTreeMap<LogId, ProjectionEpoch> = logs.iter().map(|log| (log.id, log.projection.epoch)).collect();
        self.by_log.retain(|log, healing| epochs.get(log) == Some(&healing.epoch));
    }

    /// The place of the log whose turn is next, among logs in the order of their numbers.
    pub(super) fn turn(&self, logs: &[LogRecord]) -> usize {
        logs.partition_point(|log| log.id <= self.last_log)
    }

    fn of(&mut self, log: LogId, id: CopierId) -> Option<&mut Healing> {
        self.by_log.get_mut(&log).filter(|healing| healing.id == id)
    }
}
