//! `loggos status`: nodes, cohorts, leaders, epochs, LSNs and lag.
//!
//! Every node is asked, because each knows best about itself: that it is alive, and what its replicas hold. Of a cohort
//! its leader knows most; the leader of the newest epoch is believed, and the others fill in what it doesn't say.

use std::collections::BTreeMap;

use sdk::admin::{Cohort, Lsn, Replica, StatusResponse};
use serde_json::{Value, json};

use super::Universe;
use super::output::{Output, Table};
use super::stop::Stop;

/// Asks and prints.
pub(crate) async fn run(universe: &Universe, output: Output) -> Result<(), Stop> {
    let mut answers = Vec::new();
    let mut last_error = None;
    for answer in universe.client()?.status_of_each().await {
        match answer {
            Ok(answer) => answers.push(answer),
            Err(error) => last_error = Some(error),
        }
    }
    if let (Some(error), true) = (last_error, answers.is_empty()) {
        return Err(error.into());
    }
    let others = not_asked(&answers);
    if !others.is_empty() {
        answers.extend(universe.client_at(others)?.status_of_each().await.into_iter().flatten());
    }
    View::of(&answers).print(output)
}

/// Where the nodes are that those who answered know of, and that did not answer themselves. Whether they live, only they
/// can tell: two nodes that share no leader hear nothing of each other.
fn not_asked(answers: &[StatusResponse]) -> Vec<String> {
    let known = answers.iter().flat_map(|answer| &answer.nodes).filter(|node| !node.grpc.is_empty());
    let known: BTreeMap<u32, &String> = known.map(|node| (node.node, &node.grpc)).collect();
    let has_answered = |node: &u32| answers.iter().any(|answer| answer.node == *node);
    known.into_iter().filter(|(node, _)| !has_answered(node)).map(|(_, grpc)| grpc.clone()).collect()
}

/// What all answers together say.
#[derive(Debug, Default)]
struct View {
    nodes: BTreeMap<u32, Node>,
    cohorts: BTreeMap<u32, Cohort>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Node {
    incarnation: u64,
    alive: bool,
    /// Known only of those that answered.
    boot: Option<u64>,
}

impl View {
    fn of(answers: &[StatusResponse]) -> Self {
        let mut view = Self::default();
        for answer in answers {
            view.add_nodes(answer);
        }
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
        }
        let itself = self.nodes.entry(answer.node).or_default();
        *itself = Node { incarnation: answer.incarnation, alive: true, boot: Some(answer.boot) };
    }

    fn add_cohort(&mut self, seen: &Cohort) {
        let known = self.cohorts.entry(seen.cohort).or_insert_with(|| Cohort { replicas: Vec::new(), ..seen.clone() });
        for replica in &seen.replicas {
            if !known.replicas.iter().any(|other| other.node == replica.node) {
                known.replicas.push(*replica);
            }
        }
        known.replicas.sort_by_key(|replica| replica.node);
    }

    fn print(&self, output: Output) -> Result<(), Stop> {
        if output.is_json() {
            for object in self.objects() {
                output.print(&object, String::new)?;
            }
            return Ok(());
        }
        output.print(&(), || format!("{}\n{}", self.node_table(), self.cohort_table()).trim_end().to_owned())
    }

    fn objects(&self) -> Vec<Value> {
        let mut objects = Vec::new();
        for (number, node) in &self.nodes {
            let mut object = json!({ "node": number, "alive": node.alive, "incarnation": node.incarnation });
            if let Some(boot) = node.boot {
                object["boot"] = boot.into();
            }
            objects.push(object);
        }
        objects.extend(self.cohorts.values().map(cohort_object));
        objects
    }

    fn node_table(&self) -> Table<4> {
        let mut table = Table::new(["NODE", "ALIVE", "BOOT", "INCARNATION"]);
        for (number, node) in &self.nodes {
            let alive = if node.alive { "yes" } else { "no" };
            table.add([number.to_string(), alive.into(), or_dash(node.boot), format!("{:016x}", node.incarnation)]);
        }
        table
    }

    fn cohort_table(&self) -> Table<8> {
        let mut table = Table::new(["COHORT", "TABLE", "LEADER", "EPOCH", "NODE", "LAST LSN", "COMMITTED", "LAG"]);
        for cohort in self.cohorts.values() {
            let name = if cohort.table.is_empty() { "(catalogue)" } else { &cohort.table };
            for replica in &cohort.replicas {
                let doubt = if replica.doubtful { " (doubts its log)" } else { "" };
                table.add([
                    cohort.cohort.to_string(),
                    name.to_owned(),
                    or_dash(cohort.leader),
                    cohort.epoch.to_string(),
                    replica.node.to_string(),
                    lsn(replica.last_lsn.as_ref()),
                    lsn(replica.committed_lsn.as_ref()),
                    format!("{}{doubt}", lag(cohort, replica)),
                ]);
            }
        }
        table
    }
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
    // So far a cohort has the whole range of its table.
    json!({
        "cohort": cohort.cohort,
        "table": cohort.table,
        "range": ["", null],
        "leader": cohort.leader,
        "epoch": cohort.epoch,
        "replicas": replicas,
    })
}

/// How many entries a replica's log is behind the longest.
fn lag(cohort: &Cohort, replica: &Replica) -> u64 {
    let sequence = |replica: &Replica| replica.last_lsn.map_or(0, |lsn| lsn.sequence);
    let longest = cohort.replicas.iter().map(sequence).max().unwrap_or(0);
    longest - sequence(replica)
}

fn lsn(lsn: Option<&Lsn>) -> String {
    lsn.map_or_else(|| "0.0".into(), |lsn| format!("{}.{}", lsn.epoch, lsn.sequence))
}

fn or_dash(number: Option<impl ToString>) -> String {
    number.map_or_else(|| "-".into(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(node: u32, sequence: u64) -> Replica {
        let lsn = Some(Lsn { epoch: 5, sequence });
        Replica { node, last_lsn: lsn, committed_lsn: lsn, doubtful: false }
    }

    fn answer(node: u32, epoch: u64, leader: u32, replicas: Vec<Replica>) -> StatusResponse {
        let nodes = (1..=3)
            .map(|other| sdk::admin::Node {
                node: other,
                incarnation: 7,
                alive: other == node,
                grpc: format!("h:{other}"),
            })
            .collect();
        let cohort = Cohort { cohort: 2, table: "t".into(), leader: Some(leader), epoch, replicas };
        StatusResponse { node, incarnation: 7, boot: 1, nodes, cohorts: vec![cohort] }
    }

    #[test]
    fn the_leader_of_the_newest_epoch_is_believed() {
        let stale = answer(1, 4, 1, vec![replica(1, 100), replica(2, 90), replica(3, 90)]);
        let newest = answer(2, 5, 2, vec![replica(1, 118), replica(2, 120)]);
        let view = View::of(&[stale, newest]);
        let cohort = &view.cohorts[&2];
        assert_eq!((cohort.epoch, cohort.leader), (5, Some(2)));
        assert_eq!(cohort.replicas, [replica(1, 118), replica(2, 120), replica(3, 90)]);
        assert_eq!(lag(cohort, &cohort.replicas[0]), 2);
        let alive: Vec<_> = view.nodes.values().map(|node| node.alive).collect();
        assert_eq!(alive, [true, true, false]);
    }

    #[test]
    fn whoever_is_known_is_asked_too() {
        let mut answers = vec![answer(1, 5, 1, Vec::new())];
        assert_eq!(not_asked(&answers), ["h:2", "h:3"]);
        answers.push(answer(2, 5, 1, Vec::new()));
        assert_eq!(not_asked(&answers), ["h:3"]);
    }

    #[test]
    fn objects_have_the_promised_shape() {
        let view = View::of(&[answer(1, 5, 1, vec![replica(1, 120)])]);
        let objects = view.objects();
        assert_eq!(objects[0], json!({ "node": 1, "alive": true, "incarnation": 7, "boot": 1 }));
        assert_eq!(objects[1], json!({ "node": 2, "alive": false, "incarnation": 7 }));
        let replicas =
            json!([{ "node": 1, "last_lsn": "5.120", "committed_lsn": "5.120", "lag": 0, "doubtful": false }]);
        let cohort = json!({
            "cohort": 2, "table": "t", "range": ["", null], "leader": 1, "epoch": 5, "replicas": replicas,
        });
        assert_eq!(objects[3], cohort);
    }
}
