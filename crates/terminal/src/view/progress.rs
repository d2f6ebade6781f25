//! Operations in progress: drops, moves, and departures of nodes, each with the conditions that it waits for.

use std::collections::BTreeSet;

use base::counted;
use sdk::admin::{Cohort, Drop, LogPlacement};
use serde_json::{Value, json};

use super::View;
use super::health::{name, nodes};

/// An operation that continues in the background.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// `drop`, `move` or `leave`.
    pub kind: &'static str,
    /// The table, log, range or node.
    pub what: String,
    /// The conditions that it waits for, with the way out if they may never hold.
    pub waits_for: String,
    /// Whether it waits for nodes that do not respond.
    pub is_blocked: bool,
}

impl Operation {
    /// The operation as one line.
    pub fn line(&self) -> String {
        format!("{} of {}, waits for {}", self.kind, self.what, self.waits_for)
    }

    /// The operation as a JSON object.
    pub fn object(&self) -> Value {
        let Self { kind, what, waits_for, is_blocked } = self;
        json!({ "operation": kind, "what": what, "waits_for": waits_for, "blocked": is_blocked })
    }
}

/// All operations in progress, according to the newest map.
pub fn operations(view: &View) -> Vec<Operation> {
    let drops = view.drops.iter().map(|of| drop_of(view, of));
    let moves = view.cohorts.values().filter(|cohort| cohort.moving).map(|cohort| move_of(view, cohort));
    let leaves = view.nodes.iter().filter(|(_, node)| node.leaving).map(|(number, _)| leave_of(view, *number));
    drops.chain(moves).chain(leaves).collect()
}

/// The departure of a node.
pub fn leave_of(view: &View, node: u32) -> Operation {
    let on_node = |cohort: &&Cohort| {
        cohort.log.is_none()
            && !cohort.table.is_empty()
            && (cohort.planned_nodes.contains(&node) || cohort.leaving_nodes.contains(&node))
    };
    let ranges: Vec<&Cohort> = view.cohorts.values().filter(on_node).collect();
    let tables: BTreeSet<&str> = ranges.iter().map(|cohort| &*cohort.table).collect();
    let logs: Vec<&LogPlacement> = view.logs.values().filter(|log| has_unit_on(log, node)).collect();
    let mut awaited = Vec::new();
    if !tables.is_empty() {
        let tables = listed("table", tables);
        awaited.push(format!("{} of {tables} to move", counted(ranges.len() as u64, "range")));
    }
    if !logs.is_empty() {
        let logs = listed("log", logs.iter().map(|log| &*log.log));
        awaited.push(format!("the copies of {logs} to be replaced"));
    }
    let dropping = view.drops.iter().filter(|of| of.cohorts.iter().any(|cohort| cohort.nodes.contains(&node)));
    awaited.extend(dropping.map(|of| format!("the drop of {}", dropped(of))));
    if awaited.is_empty() {
        awaited.push("the catalog to remove it".to_owned());
    }
    let lost = lost_parts(view, &ranges, &logs);
    let is_blocked = !lost.is_empty();
    let waits_for = match lost.is_empty() {
        true => awaited.join(", and "),
        false => format!("{}. {}", awaited.join(", and "), lost.join(". ")),
    };
    Operation { kind: "leave", what: format!("node {node}"), waits_for, is_blocked }
}

/// The ranges and logs that can't be moved because too few of their nodes respond, each with the way out.
fn lost_parts(view: &View, ranges: &[&Cohort], logs: &[&LogPlacement]) -> Vec<String> {
    let ranges = ranges.iter().filter_map(|cohort| {
        let silent = silent_replicas(view, cohort).filter(|_| !view.is_led(cohort))?;
        let way_out = format!("loggos columns drop {} --force", cohort.table);
        Some(format!(
            "{} has no leader, and {silent}; if a majority of its replicas is lost for good: {way_out}",
            name(cohort)
        ))
    });
    let logs = logs.iter().filter_map(|log| {
        let is_silent = |units: &[u32]| units.iter().all(|node| !view.responds(*node));
        let chains = log.chains.iter().map(nodes_of_chain);
        let silent: BTreeSet<u32> = chains.filter(|nodes| is_silent(nodes)).flatten().collect();
        if silent.is_empty() {
            return None;
        }
        let silent = not_responding(silent);
        Some(format!(
            "log {name} has positions without any other copy, and {silent}; if these copies are lost for good: \
             loggos log drop {name} --force",
            name = log.log
        ))
    });
    ranges.chain(logs).collect()
}

fn drop_of(view: &View, of: &Drop) -> Operation {
    let is_missing = |nodes: &[u32]| 2 * nodes.iter().filter(|node| view.responds(**node)).count() <= nodes.len();
    let missing = of.cohorts.iter().map(|cohort| &*cohort.nodes).filter(|nodes| is_missing(nodes));
    let silent: BTreeSet<u32> = missing.flatten().copied().filter(|node| !view.responds(*node)).collect();
    let is_blocked = !silent.is_empty();
    let parts = if of.log.is_empty() { "ranges" } else { "copies" };
    let waits_for = match (silent.is_empty(), of.force) {
        (true, _) => format!("its {parts} to record the drop"),
        (false, true) => format!("its other {parts}: those on {} are declared lost", nodes(silent)),
        (false, false) => {
            let silent = not_responding(silent);
            format!("its {parts}: {silent}; if these are lost for good, repeat the drop with --force")
        }
    };
    Operation { kind: "drop", what: dropped(of), waits_for, is_blocked }
}

fn move_of(view: &View, cohort: &Cohort) -> Operation {
    let planned = || cohort.planned_nodes.iter().copied();
    let silent: BTreeSet<u32> = planned().filter(|node| !view.responds(*node)).collect();
    let lacks = |node: &u32| {
        !cohort.replicas.iter().any(|replica| replica.node == *node && replica.last_lsn.is_some() && !replica.doubtful)
    };
    let lacking: BTreeSet<u32> = planned().filter(lacks).collect();
    let is_blocked = !silent.is_empty() || !view.is_led(cohort);
    let waits_for = if !view.is_led(cohort) {
        match silent_replicas(view, cohort) {
            Some(silent) => format!(
                "a leader: {silent}; if a majority of its replicas is lost for good: loggos columns drop {} --force",
                cohort.table
            ),
            None => "a leader".to_owned(),
        }
    } else if !silent.is_empty() {
        let does = if silent.len() == 1 { "does" } else { "do" };
        format!("{}, which {does} not respond", nodes(silent))
    } else if !lacking.is_empty() {
        format!("{} to catch up", nodes(lacking))
    } else {
        "its membership to change".to_owned()
    };
    let what = format!("{} to {}", name(cohort), nodes(planned()));
    Operation { kind: "move", what, waits_for, is_blocked }
}

/// The nodes with replicas of a range that do not respond, including replicas that a move removes. `None` if they are
/// fewer than half: the others elect a leader soon. Which of these nodes vote is known only to the cohort.
fn silent_replicas(view: &View, cohort: &Cohort) -> Option<String> {
    let all: BTreeSet<u32> = cohort.planned_nodes.iter().chain(&cohort.leaving_nodes).copied().collect();
    let silent: BTreeSet<u32> = all.iter().copied().filter(|node| !view.responds(*node)).collect();
    (2 * silent.len() >= all.len()).then(|| not_responding(silent))
}

fn not_responding(silent: BTreeSet<u32>) -> String {
    let does = if silent.len() == 1 { "does" } else { "do" };
    format!("{} {does} not respond", nodes(silent))
}

fn has_unit_on(log: &LogPlacement, node: u32) -> bool {
    log.chains.iter().flat_map(nodes_of_chain).any(|other| other == node)
}

fn nodes_of_chain(chain: &sdk::admin::ChainPlacement) -> Vec<u32> {
    chain.units.iter().map(|unit| unit.node).collect()
}

fn dropped(of: &Drop) -> String {
    if of.log.is_empty() { format!("table {}", of.table) } else { format!("log {}", of.log) }
}

fn listed<'a>(what: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("{what}{plural} {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use sdk::admin::{ChainPlacement, DroppedCohort, StatusResponse, UnitPlacement};

    use super::super::tests::{answer, elsewhere, replica};
    use super::*;

    fn lines(all: &[StatusResponse]) -> Vec<String> {
        operations(&View::of(all)).iter().map(Operation::line).collect()
    }

    fn cluster(answering: &[u32]) -> Vec<StatusResponse> {
        let replicas = || vec![replica(1, 10), replica(2, 10), replica(3, 10)];
        answering.iter().map(|node| answer(*node, 5, 1, replicas())).collect()
    }

    #[test]
    fn drop_names_missing_nodes() {
        let mut all = cluster(&[1, 2]);
        assert_eq!(lines(&all), [""; 0]);
        let cohorts = vec![DroppedCohort { cohort: 9, nodes: vec![2] }, DroppedCohort { cohort: 10, nodes: vec![3] }];
        let drop = |log: &str, table: &str, force| Drop {
            table: table.into(),
            log: log.into(),
            force,
            cohorts: cohorts.clone(),
        };
        for response in &mut all {
            response.drops = vec![drop("", "t", true), drop("l", "", false)];
        }
        let forced = "drop of table t, waits for its other ranges: those on node 3 are declared lost";
        let blocked = "drop of log l, waits for its copies: node 3 does not respond; if these are lost for good, repeat \
                       the drop with --force";
        assert_eq!(lines(&all), [forced, blocked]);
    }

    #[test]
    fn move_names_what_it_waits_for() {
        let mut all = cluster(&[1, 2, 3]);
        for response in &mut all {
            (response.cohorts[0].moving, response.cohorts[0].leaving_nodes) = (true, vec![3]);
            response.cohorts[0].planned_nodes = vec![1, 2];
        }
        let range = "range [\"a\", \"b\") of table t";
        assert_eq!(lines(&all), [format!("move of {range} to nodes 1, 2, waits for its membership to change")]);
        all.iter_mut().for_each(|response| response.cohorts[0].planned_nodes = vec![1, 2, 4]);
        let moves = format!("move of {range} to nodes 1, 2, 4, waits for");
        assert_eq!(lines(&all), [format!("{moves} node 4, which does not respond")]);
        let way_out = "if a majority of its replicas is lost for good: loggos columns drop t --force";
        let leaderless = format!("{moves} a leader: nodes 1, 4 do not respond; {way_out}");
        assert_eq!(lines(&all[1..]), [leaderless]);
        all.iter_mut().for_each(|response| response.cohorts[0].planned_nodes = vec![1, 2]);
        let electing = format!("move of {range} to nodes 1, 2, waits for a leader");
        assert_eq!(lines(&all[1..]), [electing], "the others elect one");
    }

    /// What blocks a departure is named with the way out: ranges without a leader, and logs without another copy.
    #[test]
    fn leave_names_blockers() {
        let mut all = cluster(&[1, 2]);
        let units = |nodes: &[u32]| ChainPlacement {
            units: nodes.iter().map(|node| UnitPlacement { cohort: 20 + node, node: *node }).collect(),
            takes_appends: true,
        };
        let log =
            |name: &str, nodes: &[u32]| LogPlacement { log: name.into(), sequencer: 1, chains: vec![units(nodes)] };
        for response in &mut all {
            response.nodes[2].leaving = true;
            response.cohorts[0].moving = true;
            response.logs = vec![log("both", &[2, 3]), log("only", &[3])];
        }
        let waits =
            "leave of node 3, waits for 1 range of table t to move, and the copies of logs both, only to be replaced";
        let only = "log only has positions without any other copy, and node 3 does not respond; if these copies are lost \
                    for good: loggos log drop only --force";
        assert_eq!(lines(&all)[1..], [format!("{waits}. {only}")]);
        all.iter_mut().for_each(|response| response.cohorts.push(elsewhere(7, "solo", vec![3], 1)));
        let solo = "table solo has no leader, and node 3 does not respond; if a majority of its replicas is lost for good: \
                    loggos columns drop solo --force";
        let said = lines(&all);
        assert!(said[1].contains(solo) && said[1].ends_with(only), "{said:?}");
        assert!(leave_of(&View::of(&all), 3).is_blocked && !leave_of(&View::of(&all), 1).is_blocked);
        for response in &mut all {
            response.cohorts.clear();
            response.logs.clear();
        }
        assert_eq!(lines(&all), ["leave of node 3, waits for the catalog to remove it"]);
    }
}
