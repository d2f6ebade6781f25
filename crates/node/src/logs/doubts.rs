//! Log units that never answer again though their nodes live (guarantees 7 and 20).
//!
//! A replica whose disk lost something that it may have acknowledged is in doubt until it has caught up with others of
//! its cohort. A unit's cohort has no other: its doubt never ends, and it does not open. To the log it is as good as
//! lost with its disk, and only its own node knows. So the node says it, now and then, to whoever leads the catalogue,
//! as long as the catalogue names the unit. There it counts as gone: a projection without it follows, as far as its
//! chains have other units, and another unit takes its place; if it stood in none yet, it is forgotten. Then the
//! catalogue names it no more, and its node gives its replica up with what it holds.

use std::collections::BTreeSet;

use base::{CohortId, NodeId, Now};
use sharedlog::UnitId;
use tablets::{Catalogue, LogRecord};

use crate::message::Message;
use crate::node::{AT_ONCE, Node};
use crate::replica::Replica;

/// Units that a node says at one time, at most, and that it is believed of: more than one disk has in practice, and
/// what is over is said once some of these were replaced.
pub(super) const DOUBTS_MAX: usize = 4_096;

/// Units of other nodes and of this one that are in doubt, as whoever leads the catalogue was told. Only such are in it
/// as the catalogue names, each on the node that said so.
#[derive(Debug, Default)]
pub(super) struct Doubts(BTreeSet<UnitId>);

impl Doubts {
    pub(super) fn has(&self, unit: UnitId) -> bool {
        self.0.contains(&unit)
    }

    /// Those of a log.
    pub(super) fn of<'a>(&'a self, log: &'a LogRecord) -> impl Iterator<Item = UnitId> + 'a {
        log.units.iter().map(|(unit, _)| *unit).filter(|unit| self.has(*unit))
    }

    /// Forgets what is named no more.
    pub(super) fn keep(&mut self, logs: &[LogRecord]) {
        if !self.0.is_empty() {
            self.0 = logs.iter().flat_map(|log| self.of(log)).collect();
        }
    }

    /// Another node is told from now on.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Node {
    /// Says which units of this node are in doubt, if there are any.
    pub(super) fn tell_doubts(&mut self, now: Now) {
        let Some(catalogue) = self.replicas.get(&CohortId::CATALOGUE) else { return };
        let leader = catalogue.cohort.leader();
        let units: Vec<UnitId> = self.own_doubts().take(DOUBTS_MAX).collect();
        match leader.filter(|_| !units.is_empty()) {
            Some(leader) if leader == self.me.node => self.doubts_told(leader, &units, now),
            Some(leader) => self.send(leader, Message::UnitsInDoubt { units }, AT_ONCE, None),
            None => {}
        }
    }

    /// The units of this node that are in doubt, and that the catalogue names.
    fn own_doubts(&self) -> impl Iterator<Item = UnitId> {
        let catalogue = self.catalogue();
        let is_dead = |replica: &Replica| replica.state.as_unit().is_some() && replica.cohort.is_in_doubt();
        let dead = self.replicas.iter().filter(move |(_, replica)| is_dead(replica));
        dead.filter_map(move |(cohort, _)| Some(catalogue?.unit_of(*cohort)?.0))
    }

    /// A node says which of its units are in doubt. It is believed of its own alone.
    pub(crate) fn doubts_told(&mut self, from: NodeId, units: &[UnitId], now: Now) {
        let (Some(member), true) = (self.member(from), self.leads_catalogue()) else { return };
        let Some(catalogue) = self.catalogue() else { return };
        let is_its = |catalogue: &Catalogue, unit: UnitId| {
            let home = tablets::catalogue::cohort_of(unit).and_then(|cohort| catalogue.unit_of(cohort));
            home.is_some_and(|(_, home)| home == member)
        };
        let told: BTreeSet<UnitId> = units.iter().copied().take(DOUBTS_MAX).collect();
        let is_news = |unit: &UnitId| !self.logs.repairs.doubts.has(*unit) && is_its(catalogue, *unit);
        let news: Vec<UnitId> = told.into_iter().filter(is_news).collect();
        if !news.is_empty() {
            self.counters.log_units_lost += news.len() as u64;
            self.logs.repairs.doubts.0.extend(news);
            self.logs.repairs.look_at = now.monotonic;
        }
    }
}

#[cfg(test)]
mod tests;
