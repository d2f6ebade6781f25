//! Copies older extents to new units, so that each position regains its target number of copies (CORFU, section 3.4).

use std::collections::{BTreeMap, BTreeSet};

use base::Monotonic;

use super::{Action, ClusterState, Controller, LogState, Requester};
use crate::copier::{self, Copier};
use crate::recovery::healings;
use crate::{LogId, ProjectionEpoch, UnitId};

/// Maximum logs copied concurrently, so that clients' requests keep most of the capacity.
const COPIERS_MAX: usize = 2;

/// Names a copier of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopierId(pub u64);

/// The copiers under way, at most one per log.
#[derive(Debug, Default)]
pub(super) struct ReReplication {
    by_log: BTreeMap<LogId, Copying>,
    /// The log for which a copier was started last.
    pub(super) last_log: LogId,
    last: CopierId,
}

#[derive(Debug)]
struct Copying {
    id: CopierId,
    /// The epoch of the projection that needs the copies. A newer projection may have other complete units.
    epoch: ProjectionEpoch,
    copier: Copier,
    at: Monotonic,
}

impl ReReplication {
    pub(super) fn next_timer(&self) -> Option<Monotonic> {
        self.by_log.values().map(|copying| copying.at).min()
    }

    pub(super) fn timer(&mut self, now: Monotonic) {
        for copying in self.by_log.values_mut().filter(|copying| copying.at <= now) {
            copying.at = Monotonic::NEVER;
            copying.copier.timer(now);
        }
    }

    /// Stops copiers of outdated projections, which frees slots for other logs.
    pub(super) fn keep(&mut self, cluster: &ClusterState) {
        let epoch = |log: &LogId| cluster.logs.get(log).map(|log| log.projection.epoch);
        self.by_log.retain(|log, copying| epoch(log) == Some(copying.epoch));
    }

    pub(super) fn stop(&mut self) {
        self.by_log.clear();
    }

    pub(super) fn copier(&mut self, log: LogId, id: CopierId) -> Option<&mut Copier> {
        self.by_log.get_mut(&log).filter(|copying| copying.id == id).map(|copying| &mut copying.copier)
    }
}

impl Controller {
    /// Starts a copier if an older extent of the log lacks copies. Units in `going` do not count as copies.
    pub(super) fn re_replicate(&mut self, log: &LogState, going: &BTreeSet<UnitId>, now: Monotonic) {
        let (id, epoch) = (log.id(), log.projection.epoch);
        if self.re_replication.by_log.get(&id).is_some_and(|copying| copying.epoch == epoch) {
            return;
        }
        self.re_replication.by_log.remove(&id);
        if self.re_replication.by_log.len() >= COPIERS_MAX {
            return;
        }
        let needed = healings(&log.projection, log.copies, &log.units, going);
        if needed.is_empty() {
            return;
        }
        self.re_replication.last_log = id;
        self.re_replication.last.0 += 1;
        let copier = Copier::begin(needed, self.config.copier, now);
        let copying = Copying { id: self.re_replication.last, epoch, copier, at: Monotonic::NEVER };
        self.re_replication.by_log.insert(id, copying);
        self.counters.copiers += 1;
    }

    /// Carries out the copiers' actions. Returns whether there were any.
    pub(super) fn run_copiers(&mut self, now: Monotonic) -> bool {
        let mut ended = Vec::new();
        let mut is_any = false;
        for (log, Copying { id, copier, at, .. }) in &mut self.re_replication.by_log {
            for action in copier.take_actions() {
                is_any = true;
                match action {
                    copier::Action::Ask { ask, unit, request } => {
                        let requester = Requester::Copier(*id);
                        self.actions.push(Action::Ask { log: *log, requester, ask, unit, request });
                    }
                    copier::Action::Read(run) => self.actions.push(Action::Read { log: *log, copier: *id, run }),
                    copier::Action::SetTimer(time) => *at = time,
                    copier::Action::Done { is_whole } => ended.push((*log, is_whole)),
                }
            }
        }
        for (log, is_whole) in ended {
            self.re_replication.by_log.remove(&log);
            if is_whole {
                self.counters.copied += 1;
                self.copied(log, now);
            }
        }
        is_any
    }
}
