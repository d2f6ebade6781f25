//! Combines the status responses of a cluster's nodes, for `loggos status` and the console.
//!
//! Every node is queried, because each is the best source of its own liveness and of the state of its replicas. For a
//! cohort the leader of the newest epoch takes precedence, and the other responses supplement it.

mod document;
mod health;

use std::collections::BTreeMap;

use sdk::admin::{Activity, Cohort, Lsn, Replica, StatusResponse, ZooKeeper};
use serde_json::{Value, json};

use crate::cli::range_field;

pub(crate) use document::document;

/// The addresses of nodes that the responses mention but that have not responded. They must be queried too: a node may
/// be alive although no responding node receives messages from it.
pub(crate) fn not_queried(answers: &[StatusResponse]) -> Vec<String> {
    let known = answers.iter().flat_map(|answer| &answer.nodes).filter(|node| !node.grpc.is_empty());
    let known: BTreeMap<u32, &String> = known.map(|node| (node.node, &node.grpc)).collect();
    let has_answered = |node: &u32| answers.iter().any(|answer| answer.node == *node);
    known.into_iter().filter(|(node, _)| !has_answered(node)).map(|(_, grpc)| grpc.clone()).collect()
}

/// The combination of all responses.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) nodes: BTreeMap<u32, Node>,
    pub(crate) cohorts: BTreeMap<u32, Cohort>,
    /// Descriptions of cluster-wide problems, reported by the leader of the catalog.
    pub(crate) troubles: Vec<String>,
    /// Descriptions of unavailable tables and logs, reported by the leader of the catalog.
    pub(crate) failures: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Node {
    pub(crate) incarnation: u64,
    /// Whether it responded, or another node received a message from it within the last second.
    pub(crate) alive: bool,
    /// Whether it is leaving, as far as the responses show.
    pub(crate) leaving: bool,
    /// Its address for clients; empty if unknown.
    pub(crate) grpc: String,
    /// Number of its boot; known only for nodes that responded, ...
    pub(crate) boot: Option<u64>,
    /// ... the address of its console, ...
    pub(crate) http: String,
    /// ... and its activity.
    pub(crate) activity: Option<Activity>,
    /// Problems that it reports about itself.
    pub(crate) troubles: Vec<String>,
    /// Its ZooKeeper endpoint, if it serves clients.
    pub(crate) zookeeper: Option<ZooKeeper>,
}

impl View {
    pub(crate) fn of(answers: &[StatusResponse]) -> Self {
        let mut view = Self::default();
        for answer in answers {
            view.add_nodes(answer);
        }
        view.troubles.extend(answers.iter().flat_map(|answer| answer.cluster_troubles.clone()));
        view.failures.extend(answers.iter().flat_map(|answer| answer.cluster_failures.clone()));
        let mut cohorts: Vec<(&Cohort, u32)> =
            answers.iter().flat_map(|answer| answer.cohorts.iter().map(move |cohort| (cohort, answer.node))).collect();
        // The best source first: the newest epoch, and within it the leader.
        cohorts.sort_by_key(|(cohort, node)| std::cmp::Reverse((cohort.epoch, cohort.leader == Some(*node))));
        for (cohort, _) in cohorts {
            view.add_cohort(cohort);
        }
        view
    }

    fn add_nodes(&mut self, answer: &StatusResponse) {
        for seen in &answer.nodes {
            let node = self.nodes.entry(seen.node).or_default();
            node.incarnation = seen.incarnation;
            node.alive |= seen.alive;
            node.leaving |= seen.leaving;
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
        itself.zookeeper.clone_from(&answer.zookeeper);
    }

    fn add_cohort(&mut self, seen: &Cohort) {
        let blank = || Cohort { replicas: Vec::new(), writes_per_second: 0.0, reads_per_second: 0.0, ..seen.clone() };
        let known = self.cohorts.entry(seen.cohort).or_insert_with(blank);
        // Each node reports its own rates.
        known.writes_per_second += seen.writes_per_second;
        known.reads_per_second += seen.reads_per_second;
        known.losses = known.losses.max(seen.losses);
        for replica in &seen.replicas {
            if !known.replicas.iter().any(|other| other.node == replica.node) {
                known.replicas.push(*replica);
            }
        }
        known.replicas.sort_by_key(|replica| replica.node);
    }

    /// The nodes and then the cohorts as JSON objects. Scripts depend on the fields: they may be added to, but not
    /// changed.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let nodes = self.nodes.iter().map(|(number, node)| node_object(*number, node));
        nodes.chain(self.cohorts.values().map(cohort_object)).collect()
    }
}

fn node_object(number: u32, node: &Node) -> Value {
    let mut object =
        json!({ "node": number, "alive": node.alive, "incarnation": node.incarnation, "leaving": node.leaving });
    if let Some(boot) = node.boot {
        object["boot"] = boot.into();
        object["troubles"] = node.troubles.clone().into();
    }
    if let Some(zookeeper) = &node.zookeeper {
        object["zookeeper"] = zookeeper_object(zookeeper);
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

fn cohort_object(cohort: &Cohort) -> Value {
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
        "replicas": replicas,
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
pub(crate) fn owner(cohort: &Cohort) -> String {
    match (cohort.log.as_deref(), &*cohort.table) {
        (Some(""), _) => "(log unit)".to_owned(),
        (Some(log), _) => format!("(log {log})"),
        (None, "") => "(catalog)".to_owned(),
        (None, table) => table.to_owned(),
    }
}

/// How many entries a replica's log is behind the longest.
pub(crate) fn lag(cohort: &Cohort, replica: &Replica) -> u64 {
    let sequence = |replica: &Replica| replica.last_lsn.map_or(0, |lsn| lsn.sequence);
    let longest = cohort.replicas.iter().map(sequence).max().unwrap_or(0);
    longest - sequence(replica)
}

/// The LSN in its textual form.
pub(crate) fn lsn(lsn: Option<&Lsn>) -> String {
    lsn.map_or_else(|| "0.0".into(), |lsn| format!("{}.{}", lsn.epoch, lsn.sequence))
}

#[cfg(test)]
mod tests;
