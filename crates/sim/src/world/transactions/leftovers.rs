//! The transactional state of nodes: checks of the decisions during a run, and of the remaining state at its end.

use std::collections::BTreeMap;

use base::{CohortId, NodeId, Timestamp};
use tablets::transaction::TransactionId;

use crate::world::World;

/// The decisions that were seen in the states of replicas.
#[derive(Debug, Default)]
pub(in crate::world) struct Decisions {
    committed: BTreeMap<TransactionId, (CohortId, Timestamp)>,
}

impl World {
    /// Checks that a transaction is decided once, at a timestamp that is not below that of any prepare.
    pub(in crate::world) fn check_decisions(&mut self, id: NodeId) {
        let Some(process) = self.hosts.get(&id).and_then(|machine| machine.process.as_ref()) else { return };
        let mut wrong = None;
        for (cohort, _, state) in process.node.replicas() {
            let Some(tablet) = state.as_tablet() else { continue };
            for (transaction, decided) in tablet.decided() {
                let committed = &mut self.decisions.committed;
                let known = committed.entry(*transaction).or_insert((cohort, decided.timestamp));
                if known.1 != decided.timestamp {
                    wrong = Some(format!("{transaction:?} is committed at {} and at {}", known.1, decided.timestamp));
                }
                if let Some(late) = decided.participants.iter().find(|one| one.prepared > decided.timestamp) {
                    wrong = Some(format!("{transaction:?} is committed at {}, below {late:?}", decided.timestamp));
                }
            }
        }
        if let Some(wrong) = wrong {
            self.violate(&wrong);
        }
    }

    /// Checks that a replica owns every key that a transaction prepared in it reads or writes: a split waits.
    pub(in crate::world) fn check_prepared(&mut self, id: NodeId) {
        let Some(process) = self.hosts.get(&id).and_then(|machine| machine.process.as_ref()) else { return };
        let mut wrong = None;
        for (cohort, _, state) in process.node.replicas() {
            let Some(tablet) = state.as_tablet() else { continue };
            let owned = tablet.ownership().range();
            for prepared in tablet.prepared().values() {
                let has_writes =
                    prepared.writes.iter().all(|change| owned.is_some_and(|owned| owned.contains(&change.key)));
                if !has_writes || !prepared.reads.iter().all(|range| owned.is_some_and(|owned| owned.includes(range))) {
                    let transaction = &prepared.coordinator;
                    wrong = Some(format!("cohort {cohort} has prepared {transaction:?}, but owns only {owned:?}"));
                }
            }
        }
        if let Some(wrong) = wrong {
            self.violate(&wrong);
        }
    }

    /// Whether no member of the cluster holds a prepared or decided transaction, or a latch.
    pub(in crate::world) fn are_transactions_over(&self) -> bool {
        self.transactions_left().is_empty()
    }

    /// The transactions and latches that nodes still hold. A node that has left may keep replicas, because it learns
    /// no more outcomes.
    pub(in crate::world) fn transactions_left(&self) -> Vec<String> {
        let left_cluster = self.departed_members();
        let members = self.hosts.iter().filter(|(_, machine)| !left_cluster.contains(&machine.member));
        let processes = members.filter_map(|(id, machine)| Some((id, machine.process.as_ref()?)));
        let mut left = Vec::new();
        for (id, process) in processes {
            left.extend(process.node.transactions_left().into_iter().map(|what| format!("node {id}: {what}")));
        }
        left
    }
}
