//! The health of a cluster: one word, and the problems that explain it.

use std::collections::{BTreeMap, BTreeSet};

use base::limits::SQL_PREFIX;
use base::{CohortId, KeyRange};
use sdk::admin::{Cohort, LogPlacement, UnitPlacement};

use super::{View, lag, owner};

/// Lag in entries above which a replica is reported: a busy follower always lacks the entries in flight.
const LAG_MAX: u64 = 10_000;

/// Maximum number of cohorts of a table or log that are named for one problem.
const NAMED_MAX: usize = 3;

/// The health of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    Healthy,
    /// Everything is served, but with reduced fault tolerance.
    Degraded,
    /// Something could not be judged, because a node is alive but does not respond.
    Unknown,
    /// Something is not served.
    Unavailable,
}

impl Health {
    /// The word that the console and `loggos status` show.
    pub fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Unknown => "unknown",
            Self::Unavailable => "unavailable",
        }
    }
}

/// The health, and all problems, the worst first.
pub fn health(view: &View) -> (Health, Vec<String>) {
    let problems = problems(view);
    let health = problems.first().map_or(Health::Healthy, |(health, _)| *health);
    (health, problems.into_iter().map(|(_, sentence)| sentence).collect())
}

fn problems(view: &View) -> Vec<(Health, String)> {
    let mut problems = of_cohorts(view);
    let logs = of_logs(view);
    if view.cohorts.is_empty() {
        problems.push((Health::Unavailable, "no node reports any cohort".to_owned()));
    }
    for (number, node) in &view.nodes {
        if node.rolled_back {
            let sentence = format!(
                "node {number} serves nothing: its disk was rolled back to an older copy, so the other nodes reject it. \
                 Join a new node and remove node {number}"
            );
            problems.push((Health::Degraded, sentence));
        }
        if !node.alive {
            problems.push((Health::Degraded, format!("node {number} is down")));
        } else if node.boot.is_none() {
            problems.push((Health::Degraded, format!("node {number} is alive but does not respond to clients")));
        }
        let troubles = node.troubles.iter().map(|trouble| format!("node {number}: {trouble}"));
        problems.extend(troubles.map(|sentence| (Health::Degraded, sentence)));
    }
    problems.extend(view.strangers.iter().map(|sentence| (Health::Degraded, sentence.clone())));
    problems.extend(without_clocks(view).map(|sentence| (Health::Degraded, sentence)));
    // The catalog's leader may know of a failure before its node counts as down.
    let is_named = |failure: &str| {
        logs.iter().any(|(log, health, _)| {
            *health == Health::Unavailable && failure.strip_prefix(&format!("log {log} ")).is_some()
        })
    };
    let failures: BTreeSet<&String> = view.failures.iter().filter(|failure| !is_named(failure)).collect();
    problems.extend(failures.into_iter().map(|failure| (Health::Unavailable, failure.clone())));
    problems.extend(logs.into_iter().map(|(_, health, sentence)| (health, sentence)));
    problems.extend(view.troubles.iter().map(|trouble| (Health::Degraded, trouble.clone())));
    problems.sort_by_key(|(health, _)| std::cmp::Reverse(*health));
    problems
}

/// If all nodes that respond refuse transactions because of their clocks, and there are SQL databases, which need them.
fn without_clocks(view: &View) -> Option<String> {
    let needs_transactions = view.cohorts.values().any(|cohort| cohort.table.starts_with(SQL_PREFIX));
    let mut clocks = view.nodes.values().filter_map(|node| node.clock.as_ref()).peekable();
    let refuse = clocks.peek().is_some() && clocks.all(|clock| clock.refusal.is_some() && !clock.outlier);
    let sentence = "no node executes transactions, so every change by SQL fails: the error of the wall clocks has no \
                    known bound (key `clock` of the configuration)";
    (needs_transactions && refuse).then(|| sentence.to_owned())
}

/// A problem of one or more cohorts with the same owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CohortProblem {
    New,
    NoLeader,
    NoMajority,
    TooFewReplicas { has: usize, of: u32 },
    Missing { node: u32 },
    Doubtful { node: u32 },
    Behind { node: u32 },
}

impl CohortProblem {
    /// The sentence about one cohort, or about `many` of them.
    fn sentence(self, what: &str, many: bool, lag: u64) -> String {
        let has = if many { "have" } else { "has" };
        match self {
            Self::New => format!("{what} {} being created", if many { "are" } else { "is" }),
            Self::NoLeader => format!("{what} {has} no responding leader"),
            Self::NoMajority => format!("{what} {has} most replicas on nodes that are down"),
            Self::TooFewReplicas { has: number, of } => format!("{what} {has} {number} of {of} replicas"),
            Self::Missing { node } => format!("node {node} lacks its replica of {what}"),
            Self::Doubtful { node } => format!("node {node} doubts its log of {what} and does not vote there"),
            Self::Behind { node } => format!("node {node} is {lag} entries behind in {what}"),
        }
    }
}

/// A cohort with a problem, and the lag if that is the problem.
type Affected<'a> = (&'a Cohort, u64);

/// The problems of cohorts. If a problem is that of more than [`NAMED_MAX`] cohorts of a table or log, they are counted
/// instead of named.
fn of_cohorts(view: &View) -> Vec<(Health, String)> {
    let mut totals: BTreeMap<String, usize> = BTreeMap::new();
    let mut groups: BTreeMap<(Health, String, CohortProblem), Vec<Affected<'_>>> = BTreeMap::new();
    for cohort in view.cohorts.values().filter(|cohort| !cohort.planned_nodes.is_empty()) {
        let owner = owner(cohort);
        *totals.entry(owner.clone()).or_default() += 1;
        for (health, problem, lag) in of_cohort(view, cohort) {
            groups.entry((health, owner.clone(), problem)).or_default().push((cohort, lag));
        }
    }
    let mut problems = Vec::new();
    for ((health, owner, problem), cohorts) in groups {
        if let [(first, _), _, ..] = &*cohorts
            && cohorts.len() > NAMED_MAX
        {
            let (parts, of) = parts(first);
            let what = format!("{} of {} {parts} of {of}", cohorts.len(), totals[&owner]);
            let lag = cohorts.iter().map(|(_, lag)| *lag).max().unwrap_or(0);
            problems.push((health, problem.sentence(&what, true, lag)));
        } else {
            let named = cohorts.iter().map(|(cohort, lag)| problem.sentence(&name(cohort), false, *lag));
            problems.extend(named.map(|sentence| (health, sentence)));
        }
    }
    problems
}

fn of_cohort(view: &View, cohort: &Cohort) -> Vec<(Health, CohortProblem, u64)> {
    let mut problems = Vec::new();
    let is_unit = cohort.log.is_some();
    // The log may have other copies: `of_logs` judges it.
    let is_unit_down = is_unit && !cohort.planned_nodes.iter().any(|node| view.responds(*node));
    if is_new(view, cohort) {
        return vec![(Health::Degraded, CohortProblem::New, 0)];
    }
    if !view.is_led(cohort) && !is_unit_down {
        let health = if is_unit { Health::Degraded } else { Health::Unavailable };
        problems.push((health, CohortProblem::NoLeader, 0));
    } else if !is_unit && cohort.cohort != CohortId::CATALOG.0 && lacks_majority(view, cohort) {
        problems.push((Health::Unavailable, CohortProblem::NoMajority, 0));
    }
    let (has, of) = (cohort.planned_nodes.len(), cohort.replica_count);
    if has < of as usize {
        problems.push((Health::Degraded, CohortProblem::TooFewReplicas { has, of }, 0));
    }
    for replica in cohort.replicas.iter().filter(|replica| view.responds(replica.node)) {
        let node = replica.node;
        let lag = lag(cohort, replica);
        if replica.doubtful {
            problems.push((Health::Degraded, CohortProblem::Doubtful { node }, 0));
        } else if lag.is_none() {
            problems.push((Health::Degraded, CohortProblem::Missing { node }, 0));
        } else if lag > Some(LAG_MAX) {
            problems.push((Health::Degraded, CohortProblem::Behind { node }, lag.unwrap_or(0)));
        }
    }
    problems
}

/// Whether the range was just created: its nodes respond, and no leader was ever elected.
fn is_new(view: &View, cohort: &Cohort) -> bool {
    let has_nodes = cohort.planned_nodes.iter().all(|node| view.responds(*node));
    cohort.epoch == 0 && cohort.log.is_none() && has_nodes
}

/// Whether most replicas of a range are on nodes that are down. Its leader may not have found that out yet. While its
/// replicas move, the voters are not known here. Under primary/backup replication, one replica is enough.
fn lacks_majority(view: &View, cohort: &Cohort) -> bool {
    if cohort.configuration.is_some() {
        return false;
    }
    let down = cohort.planned_nodes.iter().filter(|node| view.is_down(**node)).count();
    !cohort.moving && 2 * down >= cohort.planned_nodes.len()
}

/// The state of one copy of a log's positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnitState {
    Serves,
    /// Its node is alive but does not respond.
    Unknown,
    Down,
}

fn state_of(view: &View, unit: UnitPlacement) -> UnitState {
    if !view.responds(unit.node) {
        return if view.is_down(unit.node) { UnitState::Down } else { UnitState::Unknown };
    }
    let is_open = view.cohorts.get(&unit.cohort).is_some_and(|cohort| {
        let is_sound = |replica: &sdk::admin::Replica| replica.last_lsn.is_some() && !replica.doubtful;
        view.is_led(cohort) && cohort.replicas.iter().any(|replica| replica.node == unit.node && is_sound(replica))
    });
    if is_open { UnitState::Serves } else { UnitState::Down }
}

/// The logs that are not served or could not be judged, each with a sentence.
fn of_logs(view: &View) -> Vec<(String, Health, String)> {
    let of_log = |log: &LogPlacement| of_log(view, log).map(|(health, says)| (log.log.clone(), health, says));
    let mut problems: Vec<(String, Health, String)> = view.logs.values().filter_map(of_log).collect();
    // An older version of Loggos does not report where the copies of a log are.
    let units = view.cohorts.values().filter(|cohort| !cohort.planned_nodes.is_empty());
    let named: BTreeSet<&String> = units.filter_map(|cohort| cohort.log.as_ref()).collect();
    problems.extend(named.into_iter().filter(|log| !view.logs.contains_key(*log)).map(|log| {
        (log.clone(), Health::Unknown, format!("log {log} could not be checked: no node reports where its copies are"))
    }));
    problems
}

fn of_log(view: &View, log: &LogPlacement) -> Option<(Health, String)> {
    let name = &log.log;
    let nodes_in = |units: &[UnitPlacement], state: UnitState| -> BTreeSet<u32> {
        units.iter().filter(|unit| state_of(view, **unit) == state).map(|unit| unit.node).collect()
    };
    // Reads need one copy of each position.
    let (mut lost, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    for chain in log.chains.iter().filter(|chain| nodes_in(&chain.units, UnitState::Serves).is_empty()) {
        let silent = nodes_in(&chain.units, UnitState::Unknown);
        if silent.is_empty() {
            lost.extend(nodes_in(&chain.units, UnitState::Down));
        }
        unknown.extend(silent);
    }
    if !lost.is_empty() {
        let sentence =
            format!("log {name} is unavailable: all copies of some positions are on {}", serving_nothing(view, lost));
        return Some((Health::Unavailable, sentence));
    }
    // Appends need the sequencer, and all copies of the last positions.
    let mut stopped = BTreeSet::new();
    for chain in log.chains.iter().filter(|chain| chain.takes_appends) {
        stopped.extend(nodes_in(&chain.units, UnitState::Down));
        unknown.extend(nodes_in(&chain.units, UnitState::Unknown));
    }
    if !view.responds(log.sequencer) {
        if view.is_down(log.sequencer) { &mut stopped } else { &mut unknown }.insert(log.sequencer);
    }
    if !stopped.is_empty() {
        let sentence = format!(
            "log {name} accepts no appends until it is reconfigured without {}",
            serving_nothing(view, stopped)
        );
        return Some((Health::Unavailable, sentence));
    }
    let does = if unknown.len() == 1 { "does" } else { "do" };
    let sentence = || format!("log {name} could not be checked: {} {does} not respond", nodes(unknown.iter().copied()));
    (!unknown.is_empty()).then(|| (Health::Unknown, sentence()))
}

/// The nodes, with the reason why their units do not serve.
fn serving_nothing(view: &View, silent: BTreeSet<u32>) -> String {
    let is_down = silent.iter().any(|node| view.is_down(*node));
    let (is, all) = (if silent.len() == 1 { "is" } else { "are" }, nodes(silent));
    if is_down { format!("{all}, which {is} down") } else { format!("{all}, where they are not ready") }
}

/// "node 1" or "nodes 1, 2".
pub(super) fn nodes(numbers: impl IntoIterator<Item = u32>) -> String {
    let numbers: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    format!("{} {}", if numbers.len() == 1 { "node" } else { "nodes" }, numbers.join(", "))
}

pub(super) fn name(cohort: &Cohort) -> String {
    let range = KeyRange { start: cohort.start.clone(), end: cohort.end.clone() };
    match (cohort.log.as_deref(), &*cohort.table) {
        (Some(""), _) => format!("log unit {}", cohort.cohort),
        (Some(log), _) => format!("unit {} of log {log}", cohort.cohort),
        (None, "") => "the catalog".to_owned(),
        (None, table) if range == KeyRange::all() => format!("table {table}"),
        (None, table) => format!("range {range} of table {table}"),
    }
}

/// What the cohorts of this one's owner are, and the owner.
fn parts(cohort: &Cohort) -> (&'static str, String) {
    match cohort.log.as_deref() {
        Some(log) => ("units", format!("log {log}")),
        None => ("ranges", format!("table {}", cohort.table)),
    }
}

#[cfg(test)]
mod tests {
    use sdk::admin::ChainPlacement;

    use super::super::tests::{answer, elsewhere, replica};
    use super::*;

    #[track_caller]
    fn check(view: &View, health: Health, says: &[&str]) {
        let (worst, problems) = super::health(view);
        assert_eq!(worst, health, "{problems:?}");
        assert_eq!(problems, says);
    }

    #[test]
    fn health_from_node_reports() {
        let replicas = || vec![replica(1, 10), replica(2, 10), replica(3, 10)];
        let all = [answer(1, 5, 1, replicas()), answer(2, 5, 1, replicas()), answer(3, 5, 1, replicas())];
        check(&View::of(&all), Health::Healthy, &[]);
        check(&View::of(&all[..2]), Health::Degraded, &["node 3 is down"]);
        let none = "range [\"a\", \"b\") of table t has no responding leader";
        check(&View::of(&all[1..]), Health::Unavailable, &[none, "node 1 is down"]);
        check(&View::default(), Health::Unavailable, &["no node reports any cohort"]);

        let mut doubtful = all.clone();
        doubtful.iter_mut().for_each(|answer| (answer.cohorts[0].start, answer.cohorts[0].end) = Default::default());
        doubtful[0].cohorts[0].replicas[1].doubtful = true;
        let doubts = "node 2 doubts its log of table t and does not vote there";
        check(&View::of(&doubtful), Health::Degraded, &[doubts]);
        let mut behind = doubtful;
        behind[0].cohorts[0].replicas[1].doubtful = false;
        behind[0].cohorts[0].replicas[2] = replica(3, 10_011);
        let sentences = ["node 1 is 10001 entries behind in table t", "node 2 is 10001 entries behind in table t"];
        check(&View::of(&behind), Health::Degraded, &sentences);
        let mut full = all.clone();
        full[2].troubles = vec!["its disk is full".to_owned()];
        check(&View::of(&full), Health::Degraded, &["node 3: its disk is full"]);
        let mut thin = all;
        thin[1].cluster_troubles = vec!["log l has 1 copy".to_owned()];
        check(&View::of(&thin), Health::Degraded, &["log l has 1 copy"]);
        thin[1].cluster_failures = vec!["log m is unavailable".to_owned()];
        check(&View::of(&thin), Health::Unavailable, &["log m is unavailable", "log l has 1 copy"]);
    }

    #[test]
    fn health_from_map() {
        let replicas = || vec![replica(1, 10), replica(2, 10), replica(3, 10)];
        let mut all = [answer(1, 5, 1, replicas()), answer(2, 5, 1, replicas())];
        all[1].cohorts.push(elsewhere(7, "solo", vec![3], 1));
        let unit = |log: &str| Cohort { log: Some(log.to_owned()), ..elsewhere(6, "", vec![3], 1) };
        all[1].cohorts.push(unit("l"));
        let solo = "table solo has no responding leader";
        let unchecked = "log l could not be checked: no node reports where its copies are";
        check(&View::of(&all), Health::Unavailable, &[solo, unchecked, "node 3 is down"]);
        all[1].cohorts.truncate(1);
        all[1].cohorts[0].planned_nodes = vec![1];
        let thin = "range [\"a\", \"b\") of table t has 1 of 3 replicas";
        check(&View::of(&all), Health::Degraded, &[thin, "node 3 is down"]);
        // No map has the cohort: its table is being dropped.
        all[1].cohorts[0].planned_nodes.clear();
        all.iter_mut().for_each(|answer| answer.cohorts[0].leader = None);
        check(&View::of(&all), Health::Degraded, &["node 3 is down"]);
        all[1].cohorts.extend((10..15).map(|cohort| elsewhere(cohort, "many", vec![2, 3], 3)));
        let counted = "5 of 5 ranges of table many have";
        let missing = "node 2 lacks its replica of 5 of 5 ranges of table many".to_owned();
        let (leaderless, thin) = (format!("{counted} no responding leader"), format!("{counted} 2 of 3 replicas"));
        check(&View::of(&all), Health::Unavailable, &[&leaderless, &thin, &missing, "node 3 is down"]);
    }

    /// A range that never had a leader, although all of its nodes respond, is new.
    #[test]
    fn new_table_is_not_unavailable() {
        let replicas = || vec![replica(1, 10), replica(2, 10), replica(3, 10)];
        let mut all = [1, 2, 3].map(|node| answer(node, 5, 1, replicas()));
        all.iter_mut().for_each(|answer| answer.cohorts.push(elsewhere(7, "young", vec![1, 2], 2)));
        check(&View::of(&all), Health::Degraded, &["table young is being created"]);
        let unavailable = "table young has no responding leader";
        let view = View::of(&all[..1]);
        assert!(super::health(&view).1.contains(&unavailable.to_owned()), "a node that does not respond");
    }

    #[test]
    fn sql_needs_clocks() {
        let replicas = || vec![replica(1, 10), replica(2, 10), replica(3, 10)];
        let mut all = [1, 2, 3].map(|node| answer(node, 5, 1, replicas()));
        for answer in &mut all {
            (answer.cohorts[0].start, answer.cohorts[0].end) = Default::default();
            answer.clock = Some(sdk::admin::Clock { refusal: Some("no bound".into()), ..Default::default() });
        }
        check(&View::of(&all), Health::Healthy, &[]);
        all.iter_mut().for_each(|answer| answer.cohorts[0].table = "sql.postgres".into());
        let (health, problems) = super::health(&View::of(&all));
        assert_eq!(health, Health::Degraded);
        assert!(problems[0].starts_with("no node executes transactions"), "{problems:?}");
        all[0].clock = Some(sdk::admin::Clock::default());
        check(&View::of(&all), Health::Healthy, &[]);
    }

    fn unit(cohort: u32, node: u32) -> UnitPlacement {
        UnitPlacement { cohort, node }
    }

    /// The responses of these nodes in a cluster of three, with a log of these chains; the last takes appends.
    fn with_log(answering: &[u32], chains: &[&[UnitPlacement]]) -> Vec<sdk::admin::StatusResponse> {
        let replicas = || vec![replica(1, 10), replica(2, 10), replica(3, 10)];
        let mut all: Vec<_> = answering.iter().map(|node| answer(*node, 5, answering[0], replicas())).collect();
        let chain = |(place, units): (usize, &&[UnitPlacement])| ChainPlacement {
            units: units.to_vec(),
            takes_appends: place + 1 == chains.len(),
        };
        let placed = chains.iter().enumerate().map(chain).collect();
        let log = LogPlacement { log: "l".into(), sequencer: answering[0], chains: placed };
        let units: BTreeSet<(u32, u32)> =
            chains.iter().flat_map(|units| units.iter().map(|unit| (unit.cohort, unit.node))).collect();
        for response in &mut all {
            response.logs = vec![log.clone()];
            for (cohort, node) in &units {
                let mut row = Cohort { log: Some("l".into()), ..elsewhere(*cohort, "", vec![*node], 1) };
                if *node == response.node {
                    (row.leader, row.replicas) = (Some(*node), vec![replica(*node, 7)]);
                }
                response.cohorts.push(row);
            }
        }
        all
    }

    /// Any node derives from the map and its own view which logs are unavailable.
    #[test]
    fn log_health_from_its_copies() {
        let down = "node 3 is down";
        check(&View::of(&with_log(&[1, 2], &[&[unit(10, 1), unit(11, 2)]])), Health::Degraded, &[down]);
        let lost = "log l is unavailable: all copies of some positions are on node 3, which is down";
        let only = with_log(&[1, 2], &[&[unit(10, 3)]]);
        check(&View::of(&only), Health::Unavailable, &[lost, down]);
        let old_positions = with_log(&[1, 2], &[&[unit(10, 3)], &[unit(11, 1)]]);
        check(&View::of(&old_positions), Health::Unavailable, &[lost, down]);
        let stopped = "log l accepts no appends until it is reconfigured without node 3, which is down";
        check(&View::of(&with_log(&[1, 2], &[&[unit(10, 1), unit(11, 3)]])), Health::Unavailable, &[stopped, down]);
        let readable = with_log(&[1, 2], &[&[unit(10, 1), unit(11, 3)], &[unit(12, 1), unit(13, 2)]]);
        check(&View::of(&readable), Health::Degraded, &[down]);
        let mut sequencer = with_log(&[1, 2], &[&[unit(10, 1), unit(11, 2)]]);
        sequencer.iter_mut().for_each(|response| response.logs[0].sequencer = 3);
        check(&View::of(&sequencer), Health::Unavailable, &[stopped, down]);

        // The leader of the catalog reports the same failure, or one that is not visible here yet.
        let mut reported = only.clone();
        reported[0].cluster_failures = vec!["log l is unavailable: some positions have no live copy".into()];
        check(&View::of(&reported), Health::Unavailable, &[lost, down]);
        let mut doubtful = with_log(&[1, 2, 3], &[&[unit(10, 3)]]);
        let doubts = "node 3 doubts its log of unit 10 of log l and does not vote there";
        doubtful[2].cohorts.iter_mut().for_each(|cohort| cohort.replicas[0].doubtful |= cohort.cohort == 10);
        let unready = "log l is unavailable: all copies of some positions are on node 3, where they are not ready";
        check(&View::of(&doubtful), Health::Unavailable, &[unready, doubts]);
    }

    /// A node that other nodes hear of but that does not respond leaves the state of its units unknown.
    #[test]
    fn unchecked_log_is_named() {
        let silent = "node 3 is alive but does not respond to clients";
        let unchecked = "log l could not be checked: node 3 does not respond";
        for chains in [&[&[unit(10, 3)][..]][..], &[&[unit(10, 1), unit(11, 3)]]] {
            let mut all = with_log(&[1, 2], chains);
            all.iter_mut().for_each(|response| response.nodes[2].alive = true);
            check(&View::of(&all), Health::Unknown, &[unchecked, silent]);
        }
        let mut all = with_log(&[1, 2], &[&[unit(10, 3)], &[unit(11, 1)]]);
        all.iter_mut().for_each(|response| response.nodes[2].alive = true);
        check(&View::of(&all), Health::Unknown, &[unchecked, silent]);
    }

    /// Until its lease ends, the leader of a range may not know that the other replicas are down.
    #[test]
    fn leader_without_majority() {
        let all = [answer(1, 5, 1, vec![replica(1, 10), replica(2, 10), replica(3, 10)])];
        let most = "range [\"a\", \"b\") of table t has most replicas on nodes that are down";
        check(&View::of(&all), Health::Unavailable, &[most, "node 2 is down", "node 3 is down"]);
    }
}
