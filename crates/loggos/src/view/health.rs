//! The health of a cluster: one word, and the problems that explain it.

use base::KeyRange;
use sdk::admin::Cohort;

use super::{View, lag};

/// Lag in entries above which a replica is reported: a busy follower always lacks the entries in flight.
const LAG_MAX: u64 = 10_000;

/// The health of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Health {
    /// No problems.
    Healthy,
    /// Everything is served, but with reduced fault tolerance.
    Degraded,
    /// Something is not served.
    Unavailable,
}

impl Health {
    /// The word that the console shows.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Unavailable => "unavailable",
        }
    }
}

/// All problems, the worst first.
pub(crate) fn problems(view: &View) -> Vec<(Health, String)> {
    let mut problems: Vec<(Health, String)> =
        view.cohorts.values().flat_map(|cohort| of_cohort(view, cohort)).collect();
    if view.cohorts.is_empty() {
        problems.push((Health::Unavailable, "no node reports any cohort".to_owned()));
    }
    for (number, node) in &view.nodes {
        if !node.alive {
            problems.push((Health::Degraded, format!("node {number} is down")));
        } else if node.boot.is_none() {
            problems.push((Health::Degraded, format!("node {number} is alive but does not respond to clients")));
        }
        let troubles = node.troubles.iter().map(|trouble| format!("node {number}: {trouble}"));
        problems.extend(troubles.map(|sentence| (Health::Degraded, sentence)));
    }
    problems.extend(view.failures.iter().map(|failure| (Health::Unavailable, failure.clone())));
    problems.extend(view.troubles.iter().map(|trouble| (Health::Degraded, trouble.clone())));
    problems.sort_by_key(|(health, _)| std::cmp::Reverse(*health));
    problems
}

fn of_cohort(view: &View, cohort: &Cohort) -> Vec<(Health, String)> {
    let what = name(cohort);
    let mut problems = Vec::new();
    let answers = |node: u32| view.nodes.get(&node).is_some_and(|node| node.boot.is_some());
    if !cohort.leader.is_some_and(answers) {
        problems.push((Health::Unavailable, format!("{what} has no responding leader")));
    }
    for replica in cohort.replicas.iter().filter(|replica| answers(replica.node)) {
        let node = replica.node;
        let lag = lag(cohort, replica);
        if replica.doubtful {
            let doubt = format!("node {node} doubts its log of {what} and does not vote there");
            problems.push((Health::Degraded, doubt));
        } else if lag > LAG_MAX {
            problems.push((Health::Degraded, format!("node {node} is {lag} entries behind in {what}")));
        }
    }
    problems
}

fn name(cohort: &Cohort) -> String {
    let range = KeyRange { start: cohort.start.clone(), end: cohort.end.clone() };
    match (cohort.log.as_deref(), &*cohort.table) {
        (Some(""), _) => format!("log unit {}", cohort.cohort),
        (Some(log), _) => format!("unit {} of log {log}", cohort.cohort),
        (None, "") => "the catalog".to_owned(),
        (None, table) if range == KeyRange::all() => format!("table {table}"),
        (None, table) => format!("range {range} of table {table}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answer, replica};
    use super::*;

    #[track_caller]
    fn check(view: &View, health: Health, says: &[&str]) {
        let problems = problems(view);
        let worst = problems.first().map_or(Health::Healthy, |(health, _)| *health);
        assert_eq!(worst, health, "{problems:?}");
        let sentences: Vec<&str> = problems.iter().map(|(_, sentence)| &**sentence).collect();
        assert_eq!(sentences, says);
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
}
