//! Combines the status responses of a cluster's nodes, for `loggos status` and the console.
//!
//! Every node is queried, because each is the best source of its own liveness and of the state of its replicas. For a
//! cohort the leader of the newest epoch takes precedence, and the other responses supplement it. The catalog's map in
//! the newest response lists all cohorts and their planned replicas. The view includes those that no node reports.

mod document;
mod health;
mod progress;

use std::collections::{BTreeMap, BTreeSet};

use base::CohortId;
use sdk::admin::{
    Activity, Clock, Cohort, CohortConfiguration, DiskAttachment, Drop, LogPlacement, Lsn, Replica, StatusResponse,
    Transactions, Verification, ZooKeeper,
};
use serde_json::{Value, json};

use crate::range_field;

pub use document::document;
pub use health::{Health, health};
pub use progress::{Operation, leave_of, operations};

/// The addresses of nodes that the responses mention but that have not responded. They must be queried too: a node may
/// be alive although no responding node receives messages from it.
pub fn not_queried(answers: &[StatusResponse]) -> Vec<String> {
    let known = answers.iter().flat_map(|answer| &answer.nodes).filter(|node| !node.grpc.is_empty());
    let known: BTreeMap<u32, &String> = known.map(|node| (node.node, &node.grpc)).collect();
    let has_answered = |node: &u32| answers.iter().any(|answer| answer.node == *node);
    known.into_iter().filter(|(node, _)| !has_answered(node)).map(|(_, grpc)| grpc.clone()).collect()
}

/// Whether the error of a query shows that no process listens at the address.
pub fn is_refused(error: &sdk::Error) -> bool {
    matches!(error, sdk::Error::Unavailable(reason) if reason.contains("Connection refused"))
}

/// The combination of all responses.
#[derive(Debug, Default)]
pub struct View {
    pub nodes: BTreeMap<u32, Node>,
    pub cohorts: BTreeMap<u32, Cohort>,
    /// The copies of each log, according to the newest map.
    pub logs: BTreeMap<String, LogPlacement>,
    /// The tables and logs that are being dropped, according to the newest map.
    pub drops: Vec<Drop>,
    /// Descriptions of cluster-wide problems, reported by the leader of the catalog.
    pub troubles: Vec<String>,
    /// Descriptions of unavailable tables and logs, reported by the leader of the catalog.
    pub failures: Vec<String>,
    /// Descriptions of nodes that are not members of the cluster, or were not found to be: those with blank disks.
    pub strangers: Vec<String>,
    /// The connections of NBD clients, with the nodes that serve them.
    pub attachments: Vec<(u32, DiskAttachment)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    pub incarnation: u64,
    /// Whether it responded, or another node received a message from it within the last second and its address did not
    /// refuse a connection.
    pub alive: bool,
    /// Whether it is leaving, as far as the responses show.
    pub leaving: bool,
    /// Whether a node rejected it, because its disk was rolled back to an older copy.
    pub rolled_back: bool,
    /// Its address for clients; empty if unknown.
    pub grpc: String,
    /// Number of its boot; known only for nodes that responded, ...
    pub boot: Option<u64>,
    /// ... the address of its console, ...
    pub http: String,
    /// ... and its activity.
    pub activity: Option<Activity>,
    /// Problems that it reports about itself.
    pub troubles: Vec<String>,
    pub clock: Option<Clock>,
    /// Its ZooKeeper endpoint, if it serves clients.
    pub zookeeper: Option<ZooKeeper>,
    /// Transactions of its clients since its start.
    pub transactions: Option<Transactions>,
    /// The verification of the blocks of virtual disks, if it has some.
    pub verification: Option<Verification>,
}

impl View {
    pub fn of(answers: &[StatusResponse]) -> Self {
        let mut view = Self::default();
        for answer in answers {
            view.add_nodes(answer);
        }
        view.troubles.extend(answers.iter().flat_map(|answer| answer.cluster_troubles.clone()));
        view.failures.extend(answers.iter().flat_map(|answer| answer.cluster_failures.clone()));
        let of = |answer: &StatusResponse| {
            let node = answer.node;
            answer.disk_attachments.clone().into_iter().map(move |attachment| (node, attachment))
        };
        view.attachments = answers.iter().flat_map(of).collect();
        let mut cohorts: Vec<(&Cohort, u32)> =
            answers.iter().flat_map(|answer| answer.cohorts.iter().map(move |cohort| (cohort, answer.node))).collect();
        // The best source first: the newest epoch, and within it the leader.
        cohorts.sort_by_key(|(cohort, node)| std::cmp::Reverse((cohort.epoch, cohort.leader == Some(*node))));
        for (cohort, _) in cohorts {
            view.add_cohort(cohort);
        }
        let newest = answers.iter().max_by_key(|answer| answer.catalog_lsn.map(|lsn| (lsn.epoch, lsn.sequence)));
        if let Some(newest) = newest {
            view.add_map(&newest.cohorts);
            view.logs = newest.logs.iter().map(|log| (log.log.clone(), log.clone())).collect();
            view.drops.clone_from(&newest.drops);
        }
        view
    }

    /// Adopts the planned nodes of the newest map, and adds the replicas that no node reports.
    fn add_map(&mut self, newest: &[Cohort]) {
        let mut planned: BTreeMap<u32, &Cohort> = newest.iter().map(|cohort| (cohort.cohort, cohort)).collect();
        let staying = self.nodes.iter().filter(|(_, node)| !node.leaving);
        let nodes: Vec<u32> = staying.map(|(number, _)| *number).collect();
        for cohort in self.cohorts.values_mut() {
            let planned = planned.remove(&cohort.cohort);
            cohort.replica_count = planned.map_or(0, |planned| planned.replica_count);
            cohort.planned_nodes = planned.map_or_else(Vec::new, |planned| planned.planned_nodes.clone());
            cohort.moving = planned.is_some_and(|planned| planned.moving);
            cohort.leaving_nodes = planned.map_or_else(Vec::new, |planned| planned.leaving_nodes.clone());
            if cohort.cohort == CohortId::CATALOG.0 {
                cohort.planned_nodes.clone_from(&nodes);
            }
            let is_known = |node: &u32| cohort.replicas.iter().any(|replica| replica.node == *node);
            let unknown: Vec<u32> = cohort.planned_nodes.iter().copied().filter(|node| !is_known(node)).collect();
            cohort.replicas.extend(unknown.into_iter().map(|node| Replica { node, ..Replica::default() }));
            cohort.replicas.sort_by_key(|replica| replica.node);
        }
        // Of a table that was dropped since, only an older map may be left.
        self.cohorts.retain(|_, cohort| !cohort.replicas.is_empty());
    }

    /// Notes addresses that refused a connection: there is no process, although other nodes received a message within the
    /// last second.
    pub fn refused(&mut self, addresses: &BTreeSet<String>) {
        for node in self.nodes.values_mut().filter(|node| node.boot.is_none()) {
            node.alive &= !addresses.contains(&node.grpc);
        }
    }

    /// Whether the node responded.
    fn responds(&self, node: u32) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.boot.is_some())
    }

    /// Whether neither the node itself nor a node that responds shows it to be alive.
    fn is_down(&self, node: u32) -> bool {
        !self.nodes.get(&node).is_some_and(|node| node.alive)
    }

    /// Whether the cohort has a leader that responds.
    pub fn is_led(&self, cohort: &Cohort) -> bool {
        cohort.leader.is_some_and(|leader| self.responds(leader))
    }

    /// The state of a replica in one word.
    pub fn state(&self, replica: &Replica) -> &'static str {
        match replica.last_lsn {
            _ if !self.responds(replica.node) => "down",
            // The node has not created it yet.
            None => "missing",
            Some(_) => "up",
        }
    }

    fn add_nodes(&mut self, answer: &StatusResponse) {
        for seen in &answer.nodes {
            let node = self.nodes.entry(seen.node).or_default();
            node.incarnation = seen.incarnation;
            node.alive |= seen.alive;
            node.leaving |= seen.leaving;
            node.rolled_back |= seen.rolled_back;
            if node.grpc.is_empty() {
                node.grpc.clone_from(&seen.grpc);
            }
        }
        let itself = self.nodes.entry(answer.node).or_default();
        itself.incarnation = answer.incarnation;
        itself.alive = true;
        itself.boot = Some(answer.boot);
        itself.http.clone_from(&answer.http);
        itself.activity.clone_from(&answer.activity);
        itself.troubles.clone_from(&answer.troubles);
        itself.clock.clone_from(&answer.clock);
        itself.zookeeper.clone_from(&answer.zookeeper);
        itself.transactions = answer.transactions;
        itself.verification = answer.verification;
    }

    fn add_cohort(&mut self, seen: &Cohort) {
        let blank = || Cohort { replicas: Vec::new(), writes_per_second: 0.0, reads_per_second: 0.0, ..seen.clone() };
        let known = self.cohorts.entry(seen.cohort).or_insert_with(blank);
        // Each node reports its own rates.
        known.writes_per_second += seen.writes_per_second;
        known.reads_per_second += seen.reads_per_second;
        known.losses = known.losses.max(seen.losses);
        known.bytes = known.bytes.max(seen.bytes);
        for replica in &seen.replicas {
            if !known.replicas.iter().any(|other| other.node == replica.node) {
                known.replicas.push(*replica);
            }
        }
        known.replicas.sort_by_key(|replica| replica.node);
    }

    /// The nodes as JSON objects. Scripts depend on the fields: they may be added to, but not changed.
    pub fn node_objects(&self) -> Vec<Value> {
        self.nodes.iter().map(|(number, node)| node_object(*number, node)).collect()
    }

    /// The cohorts as JSON objects, likewise.
    pub fn cohort_objects(&self) -> Vec<Value> {
        self.cohorts.values().map(|cohort| cohort_object(self, cohort)).collect()
    }
}

fn node_object(number: u32, node: &Node) -> Value {
    let Node { incarnation, alive, leaving, rolled_back, .. } = node;
    let mut object = json!({
        "node": number, "alive": alive, "incarnation": format!("{incarnation:016x}"), "leaving": leaving, "rolled_back": rolled_back,
    });
    if let Some(boot) = node.boot {
        object["boot"] = boot.into();
        object["troubles"] = node.troubles.clone().into();
    }
    if let Some(Clock { source, uncertainty_ns, outlier, refusal }) = &node.clock {
        object["clock"] = json!({
            "source": source,
            "uncertainty_ns": uncertainty_ns,
            "outlier": outlier,
            "transactions": refusal.is_none(),
            "refusal": refusal,
        });
    }
    if let Some(zookeeper) = &node.zookeeper {
        object["zookeeper"] = zookeeper_object(zookeeper);
    }
    if let Some(Transactions { committed, aborted, lock_waits, prepared }) = node.transactions {
        object["transactions"] =
            json!({ "committed": committed, "aborted": aborted, "lock_waits": lock_waits, "prepared": prepared });
    }
    if let Some(Verification { cohort, block, completed_ns, damaged, mended }) = node.verification {
        object["verification"] = json!({
            "cohort": cohort, "block": block, "completed_ns": completed_ns, "damaged": damaged, "mended": mended,
        });
    }
    object
}

fn zookeeper_object(zookeeper: &ZooKeeper) -> Value {
    let ZooKeeper {
        mode,
        sessions,
        znodes,
        watches,
        connections,
        outstanding_requests,
        mean_latency_ms,
        playback_lag,
        playback_lag_seconds,
    } = zookeeper;
    json!({
        "mode": mode,
        "sessions": sessions,
        "znodes": znodes,
        "watches": watches,
        "connections": connections,
        "outstanding_requests": outstanding_requests,
        "mean_latency_ms": mean_latency_ms,
        "playback_lag": playback_lag,
        "playback_lag_seconds": playback_lag_seconds,
    })
}

fn cohort_object(view: &View, cohort: &Cohort) -> Value {
    let replicas: Vec<Value> = cohort
        .replicas
        .iter()
        .map(|replica| {
            json!({
                "node": replica.node,
                "last_lsn": lsn(replica.last_lsn.as_ref()),
                "committed_lsn": lsn(replica.committed_lsn.as_ref()),
                "lag": lag(cohort, replica),
                "doubtful": replica.doubtful,
                "state": view.state(replica),
            })
        })
        .collect();
    let (range, keys) = range_field(&cohort.start, cohort.end.as_deref());
    json!({
        "cohort": cohort.cohort,
        "kind": kind(cohort),
        "table": cohort.table,
        "log": cohort.log,
        range: keys,
        "leader": cohort.leader,
        "epoch": cohort.epoch,
        "durability": if cohort.in_memory { "memory" } else { "forced" },
        "losses": cohort.losses,
        "bytes": cohort.bytes,
        "configuration": cohort.configuration.as_ref().map(configuration_object),
        "led": view.is_led(cohort),
        "planned_nodes": cohort.planned_nodes,
        "replica_count": cohort.replica_count,
        "replicas": replicas,
    })
}

fn configuration_object(known: &CohortConfiguration) -> Value {
    json!({
        "version": known.version,
        "primary": known.primary,
        "members": known.members,
        "candidates": known.candidates,
        "stranded": known.stranded,
    })
}

/// The kind of a cohort, as scripts know it.
fn kind(cohort: &Cohort) -> &'static str {
    match (&cohort.log, &*cohort.table) {
        (Some(_), _) => "log unit",
        (None, "") => "catalog",
        (None, _) => "table",
    }
}

/// The owner of a cohort: its table, or a description in parentheses.
pub fn owner(cohort: &Cohort) -> String {
    match (cohort.log.as_deref(), &*cohort.table) {
        (Some(""), _) => "(log unit)".to_owned(),
        (Some(log), _) => format!("(log {log})"),
        (None, "") => "(catalog)".to_owned(),
        (None, table) => table.to_owned(),
    }
}

/// How many entries a replica's log is behind the longest; `None` if no node reports the replica.
pub fn lag(cohort: &Cohort, replica: &Replica) -> Option<u64> {
    let sequence = |replica: &Replica| Some(replica.last_lsn?.sequence);
    let longest = cohort.replicas.iter().filter_map(sequence).max()?;
    Some(longest - sequence(replica)?)
}

/// The LSN in its textual form.
pub fn lsn(lsn: Option<&Lsn>) -> Option<String> {
    lsn.map(|lsn| format!("{}.{}", lsn.epoch, lsn.sequence))
}

#[cfg(test)]
mod tests;
