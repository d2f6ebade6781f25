//! Explains why a log is unavailable, as far as clients can tell: which of its nodes do not respond, and which have
//! lost some of its data.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::counted;
use sdk::Error;
use sdk::admin::{LogDescription, LogUnit};

use crate::{Cluster, status};
use terminal::view::View;

/// Maximum time for the diagnosis, since the user has already waited for the failed request.
const DIAGNOSIS_TIME_MAX: Duration = Duration::from_secs(1);

/// Adds the log's unresponsive nodes to an error about unavailability.
pub(super) async fn with_diagnosis(cluster: &Cluster, log: &str, error: Error) -> Error {
    match error {
        Error::Unavailable(why) => Error::Unavailable(with_nodes(cluster, log, why).await),
        Error::OutcomeUnknown(why) => Error::OutcomeUnknown(with_nodes(cluster, log, why).await),
        error => error,
    }
}

async fn with_nodes(cluster: &Cluster, log: &str, why: String) -> String {
    match unresponsive_nodes(cluster, log).await {
        Some(nodes) => format!("{why}; {nodes}"),
        None => why,
    }
}

/// Describes the log's unresponsive nodes, if there are any.
pub(super) async fn unresponsive_nodes(cluster: &Cluster, log: &str) -> Option<String> {
    let log = cluster.client().ok()?.with_deadline(DIAGNOSIS_TIME_MAX / 2).log(log);
    let queries = async { tokio::join!(log.describe(), status::combined_view(cluster)) };
    let (known, view) = tokio::time::timeout(DIAGNOSIS_TIME_MAX, queries).await.ok()?;
    match view {
        Ok(view) => describe(known.ok().as_ref(), &view),
        Err(_) => Some(format!("no node responds at {}", cluster.endpoints().ok()?.join(", "))),
    }
}

/// Describes the nodes that do not respond, limited to those of the log if they are known, and those with doubtful
/// units; `None` if there are none.
fn describe(known: Option<&LogDescription>, view: &View) -> Option<String> {
    let (mut units, mut doubted) = (BTreeMap::<u32, Vec<String>>::new(), BTreeMap::<u32, BTreeSet<u64>>::new());
    let is_doubted = |unit: &LogUnit| {
        let cohort = u32::try_from(unit.unit).ok().and_then(|cohort| view.cohorts.get(&cohort));
        cohort.is_some_and(|cohort| cohort.replicas.iter().any(|replica| replica.node == unit.node && replica.doubtful))
    };
    let extents = known.into_iter().flat_map(|known| &known.extents);
    for unit in extents.flat_map(|extent| &extent.chains).flat_map(|chain| &chain.units) {
        units.entry(unit.node).or_default().push(unit.unit.to_string());
        if is_doubted(unit) {
            doubted.entry(unit.node).or_default().insert(unit.unit);
        }
    }
    let description = |node: u32| {
        let is_sequencer = known.is_some_and(|known| known.sequencer == node);
        let has = units.get(&node).map(|units| match &units[..] {
            [one] => format!("has unit {one} of the log"),
            many => format!("has units {} of the log", many.join(", ")),
        });
        let is = match (is_sequencer, has) {
            (false, None) if known.is_some() => return None,
            (false, None) => String::new(),
            (false, Some(has)) => format!(", which {has},"),
            (true, None) => ", which runs the log's sequencer,".to_owned(),
            (true, Some(has)) => format!(", which runs the log's sequencer and {has},"),
        };
        Some(format!("node {node}{is} does not respond"))
    };
    let silent = view.nodes.iter().filter(|(_, node)| node.boot.is_none());
    let doubts = doubted.iter().map(|(node, units)| {
        let units = counted(units.len() as u64, "unit");
        format!("node {node} doubts {units} of the log, since its disk lost data")
    });
    let descriptions: Vec<String> = silent.filter_map(|(number, _)| description(*number)).chain(doubts).collect();
    (!descriptions.is_empty()).then(|| descriptions.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sdk::admin::{Cohort, LogChain, LogExtent, Replica};
    use terminal::view::Node;

    fn view(silent: &[u32]) -> View {
        let node = |number: u32| Node { boot: (!silent.contains(&number)).then_some(1), ..Node::default() };
        View { nodes: (1..=4).map(|number| (number, node(number))).collect(), ..View::default() }
    }

    #[test]
    fn reports_silent_nodes_and_their_log_roles() {
        let unit = |unit, node| LogUnit { unit, node };
        let extent = |start, units| LogExtent { start, width: 1, chains: vec![LogChain { units }] };
        let extents = vec![extent(0, vec![unit(5, 1), unit(6, 2)]), extent(9, vec![unit(7, 2), unit(8, 3)])];
        let known = LogDescription { sequencer: 3, extents, ..LogDescription::default() };
        let says = |nodes: &[u32]| describe(Some(&known), &view(nodes)).unwrap_or_default();
        assert_eq!(says(&[]), "");
        assert_eq!(says(&[4]), "", "no role in the log");
        let first = "node 1, which has unit 5 of the log, does not respond";
        assert_eq!(says(&[1, 4]), first);
        let second = "node 2, which has units 6, 7 of the log, does not respond";
        assert_eq!(says(&[1, 2]), format!("{first}; {second}"));
        assert_eq!(says(&[3]), "node 3, which runs the log's sequencer and has unit 8 of the log, does not respond");
        let mut doubtful = view(&[1]);
        let replica = Replica { node: 2, doubtful: true, ..Replica::default() };
        doubtful.cohorts.insert(7, Cohort { cohort: 7, replicas: vec![replica], ..Cohort::default() });
        let doubts = "node 2 doubts 1 unit of the log, since its disk lost data";
        assert_eq!(describe(Some(&known), &doubtful), Some(format!("{first}; {doubts}")));
        let unknown = describe(None, &view(&[3, 4]));
        assert_eq!(unknown.as_deref(), Some("node 3 does not respond; node 4 does not respond"));
    }
}
