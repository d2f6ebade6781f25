//! Splits of the clients' table while it is in use: one client requests them, one at a time, at rows and between them.
//! The clients' history shows their effect on data. This module checks what no history shows: that no two leaders may
//! read the same key at any time.

use std::collections::BTreeMap;

use base::{CohortId, KeyRange, NodeId};
use bytes::Bytes;
use catalog::CatalogResponse;
use node::request::{Outcome, Response};
use state_machine::Failure;

use super::World;

impl World {
    /// Handles the response to a split request.
    pub(super) fn split_answered(&mut self, key: &Bytes, outcome: &Outcome, maybe_done: bool) {
        match outcome {
            Ok(Response::Catalog(CatalogResponse::RangeSplit { .. })) => {
                self.clients.splits.done.insert(key.clone());
                self.count("ranges split");
            }
            Err(Failure::Exists(_)) if maybe_done || self.clients.splits.done.contains(key) => {
                self.clients.splits.done.insert(key.clone());
                self.count("splits requested twice");
            }
            other => self.violate(&format!("the split at {key:?}: unexpected outcome {other:?}")),
        }
    }

    /// Checks that no two leaders that may read own the same key of a table, even in different cohorts.
    pub(super) fn check_owners(&mut self) {
        let mut owners: BTreeMap<(&str, &KeyRange, CohortId), NodeId> = BTreeMap::new();
        for (id, machine) in &self.hosts {
            let Some(process) = machine.process.as_ref() else { continue };
            let now = machine.clocks.monotonic(self.now);
            for (cohort, replica, state) in process.node.replicas() {
                let range = state.as_tablet().and_then(|tablet| tablet.ownership().range());
                if let Some(range) = range.filter(|_| replica.lease_end(now).is_some()) {
                    owners.insert((process.node.table_of(cohort), range, cohort), *id);
                }
            }
        }
        // Sorted by table and start, some pair of overlapping ranges is adjacent if any ranges overlap.
        let both = owners
            .iter()
            .zip(owners.iter().skip(1))
            .find(|(((one, first, _), _), ((other, second, _), _))| one == other && first.overlaps(second));
        let wrong = both.map(|(((table, first, cohort), node), ((_, second, other), other_node))| {
            format!(
                "cohort {cohort} on node {node} and cohort {other} on node {other_node} both serve keys of table {table}: \
                 {first} and {second}"
            )
        });
        if let Some(wrong) = wrong {
            self.violate(&wrong);
        }
    }
}
