//! `loggos status`: nodes, cohorts, leaders, epochs, LSNs and lag.

use sdk::admin::{Cohort, ZooKeeper};
use terminal::{Output, Stop, Table};

use super::Cluster;
use super::tables::MAY_BE_LOST;
use crate::view::{Node, View, lag, lsn, not_queried, owner};

/// Queries the nodes and prints the result.
pub(crate) async fn run(cluster: &Cluster, output: Output) -> Result<(), Stop> {
    print(&combined_view(cluster).await?, output)
}

/// The combined view of all nodes that respond.
pub(super) async fn combined_view(cluster: &Cluster) -> Result<View, Stop> {
    let mut answers = Vec::new();
    let mut last_error = None;
    let asked = cluster.endpoints()?;
    for answer in cluster.client_at(asked.clone())?.status_of_each().await {
        match answer {
            Ok(answer) => answers.push(answer),
            Err(error) => last_error = Some(error),
        }
    }
    if let (Some(error), true) = (last_error, answers.is_empty()) {
        return Err(error.into());
    }
    let mut others = not_queried(&answers);
    others.retain(|address| !asked.contains(address));
    if !others.is_empty() {
        answers.extend(cluster.client_at(others)?.status_of_each().await.into_iter().flatten());
    }
    Ok(View::of(&answers))
}

fn print(view: &View, output: Output) -> Result<(), Stop> {
    if output.is_json() {
        for object in view.objects() {
            output.print(&object, String::new)?;
        }
        return Ok(());
    }
    output.print(&(), || {
        let notes: String = trouble_notes(view).chain(memory_notes(view)).map(|note| format!("\n{note}")).collect();
        format!("{}\n{}{notes}", node_table(view), cohort_table(view)).trim_end().to_owned()
    })
}

fn node_table(view: &View) -> Table<5> {
    let mut table = Table::new(["NODE", "ALIVE", "BOOT", "INCARNATION", "ZOOKEEPER"]);
    for (number, node) in &view.nodes {
        let alive = if node.alive { "yes" } else { "no" };
        let leaving = if node.leaving { ", leaving" } else { "" };
        table.add([
            number.to_string(),
            format!("{alive}{leaving}"),
            or_dash(node.boot),
            format!("{:016x}", node.incarnation),
            node.zookeeper.as_ref().map_or_else(|| "-".into(), endpoint),
        ]);
    }
    table
}

/// Formats the mode, clients and lag of a ZooKeeper endpoint.
fn endpoint(ZooKeeper { mode, connections, playback_lag, .. }: &ZooKeeper) -> String {
    let clients = if *connections == 1 { "client" } else { "clients" };
    let lag = if *playback_lag > 0 { format!(", {playback_lag} positions behind") } else { String::new() };
    format!("{mode}, {connections} {clients}{lag}")
}

fn cohort_table(view: &View) -> Table<8> {
    let mut table = Table::new(["COHORT", "TABLE", "LEADER", "EPOCH", "NODE", "LAST LSN", "COMMITTED", "LAG"]);
    for cohort in view.cohorts.values() {
        let owner = owner(cohort);
        for replica in &cohort.replicas {
            let doubt = if replica.doubtful { " (doubts its log)" } else { "" };
            table.add([
                cohort.cohort.to_string(),
                owner.clone(),
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

/// Problems of nodes and of the cluster.
fn trouble_notes(view: &View) -> impl Iterator<Item = String> {
    let of_node = |(number, node): (&u32, &Node)| {
        let number = *number;
        node.troubles.iter().map(move |trouble| format!("node {number}: {trouble}")).collect::<Vec<_>>()
    };
    view.nodes.iter().flat_map(of_node).chain(view.failures.iter().chain(&view.troubles).cloned())
}

fn memory_notes(view: &View) -> impl Iterator<Item = String> {
    view.cohorts.values().filter_map(memory_note)
}

/// The note for a cohort with a main-memory log.
fn memory_note(cohort: &Cohort) -> Option<String> {
    let Cohort { cohort: number, table, losses, .. } = cohort;
    let lost = match losses {
        0 => MAY_BE_LOST.to_owned(),
        times => {
            format!("LOSS DECLARED ({times}): most replicas failed together, and acknowledged writes may be lost")
        }
    };
    cohort.in_memory.then(|| format!("table {table} (cohort {number}) is IN MAIN MEMORY: {lost}"))
}

fn or_dash(number: Option<impl ToString>) -> String {
    number.map_or_else(|| "-".into(), |number| number.to_string())
}
