//! A universe as its nodes tell of it, put together: what `loggos status` prints and what the console shows.
//!
//! Every node is asked, because each knows best about itself: that it is alive, and what its replicas hold. Of a cohort
//! its leader knows most; the leader of the newest epoch is believed, and the others fill in what it doesn't say.

mod document;
mod health;

use std::collections::BTreeMap;

use sdk::admin::{Activity, Cohort, Lsn, Replica, StatusResponse};
use serde_json::{Value, json};

use crate::cli::range_field;

pub(crate) use document::document;

/// Where the nodes are that those who answered know of, and that did not answer themselves. Whether they live, only
/// they can tell: two nodes that share no leader hear nothing of each other.
pub(crate) fn not_asked(answers: &[StatusResponse]) -> Vec<String> {
    let known = answers.iter().flat_map(|answer| &answer.nodes).filter(|node| !node.grpc.is_empty());
    let known: BTreeMap<u32, &String> = known.map(|node| (node.node, &node.grpc)).collect();
    let has_answered = |node: &u32| answers.iter().any(|answer| answer.node == *node);
    known.into_iter().filter(|(node, _)| !has_answered(node)).map(|(_, grpc)| grpc.clone()).collect()
}

/// What all answers together say.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) nodes: BTreeMap<u32, Node>,
    pub(crate) cohorts: BTreeMap<u32, Cohort>,
    /// What the universe lacks, in words, as whoever leads the catalogue says.
    pub(crate) troubles: Vec<String>,
    /// What can't be served, as the same says.
    pub(crate) failures: Vec<String>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Node {
    pub(crate) incarnation: u64,
    /// It answered, or another heard of it within the last second.
    pub(crate) alive: bool,
    /// Whether it is to leave, as far as those who answered know.
    pub(crate) leaving: bool,
    /// Where clients reach it; empty while nobody knows.
    pub(crate) grpc: String,
    /// Known only of those that answered: the number of its start, ...
    pub(crate) boot: Option<u64>,
    /// ... where its console is, ...
    pub(crate) http: String,
    /// ... and what it does.
    pub(crate) activity: Option<Activity>,
    /// What it says it can't do as it should.
    pub(crate) troubles: Vec<String>,
}

impl View {
    /// Puts the answers together.
    pub(crate) fn of(answers: &[StatusResponse]) -> Self {
        let mut view = Self::default();
        for answer in answers {
            view.add_nodes(answer);
        }
        view.troubles.extend(answers.iter().flat_map(|answer| answer.universe_troubles.clone()));
        view.failures.extend(answers.iter().flat_map(|answer| answer.universe_failures.clone()));
        let mut cohorts: Vec<(&Cohort, u32)> =
            answers.iter().flat_map(|answer| answer.cohorts.iter().map(move |cohort| (cohort, answer.node))).collect();
        // The best informed first: the newest epoch, and in it the leader.
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
    }

    fn add_cohort(&mut self, seen: &Cohort) {
        let blank = || Cohort { replicas: Vec::new(), writes_per_second: 0.0, reads_per_second: 0.0, ..seen.clone() };
        let known = self.cohorts.entry(seen.cohort).or_insert_with(blank);
        // Each node tells what it decided itself.
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

    /// As objects: the nodes, then the cohorts. Scripts lean on the shape: a field may be added, none changes.
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
    object
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

/// What a cohort keeps, as scripts know it.
fn kind(cohort: &Cohort) -> &'static str {
    match (&cohort.log, &*cohort.table) {
        (Some(_), _) => "log unit",
        (None, "") => "catalogue",
        (None, _) => "table",
    }
}

/// What a cohort belongs to: its table, or in parentheses what is none.
pub(crate) fn owner(cohort: &Cohort) -> String {
    match (cohort.log.as_deref(), &*cohort.table) {
        (Some(""), _) => "(log unit)".to_owned(),
        (Some(log), _) => format!("(log {log})"),
        (None, "") => "(catalogue)".to_owned(),
        (None, table) => table.to_owned(),
    }
}

/// How many entries a replica's log is behind the longest.
pub(crate) fn lag(cohort: &Cohort, replica: &Replica) -> u64 {
    let sequence = |replica: &Replica| replica.last_lsn.map_or(0, |lsn| lsn.sequence);
    let longest = cohort.replicas.iter().map(sequence).max().unwrap_or(0);
    longest - sequence(replica)
}

/// As people write it.
pub(crate) fn lsn(lsn: Option<&Lsn>) -> String {
    lsn.map_or_else(|| "0.0".into(), |lsn| format!("{}.{}", lsn.epoch, lsn.sequence))
}

#[cfg(test)]
mod tests;
