//! The status of the node and its cohorts, for operators and scripts.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use base::{CohortId, KeyRange, NodeId, Now};
use catalog::{NodeRecord, Standing};
use replication::{Cohort, ReplicaView};
use state_machine::Ownership;

use crate::node::Node;
use crate::replica::Replica;
use crate::request::{AppliedCatalog, CohortStatus, ConfigurationStatus, NodeStatus, ReplicaStatus, Status};
use crate::roster::ALIVE;

impl Node {
    pub(crate) fn status(&self, now: Now) -> Status {
        let alive = |node| {
            let last_contact = self.cluster.peers.get(&node).and_then(|peer| peer.last_contact);
            node == self.cluster.me.node
                || last_contact.is_some_and(|last_contact| now.monotonic.since(last_contact) < ALIVE)
        };
        let known: BTreeMap<NodeId, &NodeRecord> =
            self.catalog().nodes().map(|node| (node.member.node, node)).collect();
        let nodes = self.cluster.members.iter().map(|member| NodeStatus {
            node: member.node.0,
            incarnation: member.incarnation.0,
            alive: alive(member.node),
            rolled_back: self.cluster.peers.get(&member.node).is_some_and(|peer| peer.is_rolled_back),
            leaving: known.get(&member.node).is_some_and(|node| node.standing == Standing::Leaving),
            grpc: known.get(&member.node).map_or_else(String::new, |node| node.grpc.clone()),
        });
        Status {
            node: self.cluster.me.node.0,
            incarnation: self.cluster.me.incarnation.0,
            boot: self.cluster.boot.0,
            nodes: nodes.collect(),
            clock: self.clock_status(now),
            cohorts: self.cohorts(),
            catalog: AppliedCatalog(self.catalog().clone()),
            counters: self.counters,
            transactions: self.transactions.counts,
            members_removed: self.configurations.removals,
            verification: self.mending.verification_status(),
            troubles: self.troubles(now),
            cluster_troubles: self.under_replicated_logs().into_iter().chain(self.clock_contradictions(now)).collect(),
            cluster_failures: self.logs_out_of_reach(),
        }
    }

    fn cohorts(&self) -> Vec<CohortStatus> {
        let units = self.catalog().logs().flat_map(|(name, log)| log.units.iter().map(move |(unit, _)| (unit.0, name)));
        let logs: BTreeMap<u64, &str> = units.collect();
        let status = |(id, replica): (&CohortId, &Replica)| {
            let log = || logs.get(&u64::from(id.0)).copied().unwrap_or_default().to_owned();
            cohort_status(id.0, replica.state.as_unit().is_some().then(log), replica)
        };
        self.replicas.iter().map(status).collect()
    }
}

fn cohort_status(cohort: u32, log: Option<String>, replica: &Replica) -> CohortStatus {
    CohortStatus {
        cohort,
        table: replica.table.clone(),
        log,
        range: owned(replica),
        leader: replica.cohort.leader().map(|node| node.0),
        epoch: replica.cohort.promised().epoch.0,
        replicas: replica.cohort.view().into_iter().map(replica_status).collect(),
        applied: replica.state.last_applied(),
        durability: replica.cohort.config().regime.durability(),
        losses: replica.state.progress().losses,
        configuration: configuration_status(&replica.cohort),
        sessions: replica.state.sessions_open(),
        prepared: replica.state.as_tablet().map_or(0, |tablet| tablet.prepared().len()),
        bytes: replica.state.as_tablet().map_or(0, |tablet| tablet.tree().bytes()),
        writes: replica.writes,
        reads: replica.reads + replica.reads_elsewhere.load(Ordering::Relaxed),
    }
}

fn configuration_status(cohort: &Cohort) -> Option<ConfigurationStatus> {
    let known = cohort.configuration()?;
    Some(ConfigurationStatus {
        version: known.version.0,
        primary: known.primary.node.0,
        members: known.members.iter().map(|member| member.node.0).collect(),
        candidates: cohort.candidates().iter().map(|(member, _)| member.node.0).collect(),
        is_stranded: cohort.is_stranded(),
    })
}

/// The range that the tablet owns according to its log, or its assigned range before the log has one.
fn owned(replica: &Replica) -> KeyRange {
    let owned = replica.state.ownership().and_then(Ownership::range);
    owned.unwrap_or(&replica.range).clone()
}

fn replica_status(view: ReplicaView) -> ReplicaStatus {
    ReplicaStatus { node: view.node.0, last_lsn: view.last, committed_lsn: view.committed, doubtful: view.doubtful }
}
