//! `loggos status`: the health of the cluster, nodes, cohorts, leaders, epochs, LSNs and lag.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use sdk::admin::{Clock, Cohort, Verification, ZooKeeper};
use serde_json::{Value, json};
use terminal::{Output, Stop, Table};

use super::Cluster;
use super::tables::MAY_BE_LOST;
use terminal::view::{Health, Operation, View, health, is_refused, lag, lsn, not_queried, operations, owner};

#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Show only the health of the cluster and its problems.
    #[arg(long, conflicts_with = "table")]
    summary: bool,
    /// Show only the ranges of this table, and the health of the cluster.
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,
}

/// Queries the nodes and prints the result. Fails if anything is unavailable or could not be judged.
pub(crate) async fn run(cluster: &Cluster, output: Output, options: &Options) -> Result<(), Stop> {
    let mut view = match combined_view(cluster).await {
        Err(stop @ Stop::Cluster(sdk::Error::Unavailable(_))) => {
            let mut problems = vec!["no node responds".to_owned()];
            problems.extend(blank_nodes(&cluster.endpoints()?, None).await);
            let health = Health::Unavailable;
            let object = summary(health, &problems, &[]);
            output.print(&object, || health_lines(health, &problems, &[]).trim_end().to_owned())?;
            return Err(stop);
        }
        view => view?,
    };
    let (health, problems) = health(&view);
    let operations = operations(&view);
    if let Some(table) = &options.table {
        view.cohorts.retain(|_, cohort| cohort.table == *table);
        if view.cohorts.is_empty() || table.is_empty() {
            return Err(sdk::Error::NotFound(format!("no table named {table:?}")).into());
        }
    }
    if output.is_json() {
        output.print(&summary(health, &problems, &operations), String::new)?;
        let nodes = if options.table.is_none() { view.node_objects() } else { Vec::new() };
        let objects = nodes.into_iter().chain(view.cohort_objects());
        for object in objects.filter(|_| !options.summary) {
            output.print(&object, String::new)?;
        }
    } else {
        output.print(&(), || {
            let nodes = if options.table.is_none() { format!("\n{}", node_table(&view)) } else { String::new() };
            let mut text = health_lines(health, &problems, &operations);
            if !options.summary {
                let clock_notes = clock_notes(&view).filter(|_| options.table.is_none());
                let verification = verification_notes(&view).filter(|_| options.table.is_none());
                let notes = memory_notes(&view).chain(clock_notes).chain(verification);
                let notes: String = notes.map(|note| format!("\n{note}")).collect();
                text.push_str(&format!("{nodes}\n{}{notes}", cohort_table(&view)));
            }
            text.trim_end().to_owned()
        })?;
    }
    match problems.first() {
        Some(worst) if health >= Health::Unknown => Err(Stop::Named(sdk::Error::Unavailable(worst.clone()))),
        _ => Ok(()),
    }
}

/// The first object of the JSON output.
fn summary(health: Health, problems: &[String], operations: &[Operation]) -> Value {
    let operations: Vec<Value> = operations.iter().map(Operation::object).collect();
    json!({ "health": health.word(), "problems": problems, "in_progress": operations })
}

fn health_lines(health: Health, problems: &[String], operations: &[Operation]) -> String {
    let means = match health {
        Health::Healthy => "",
        Health::Degraded => ": everything is served, but tolerates fewer failures",
        Health::Unknown => ": not everything could be checked",
        Health::Unavailable => ": not everything is served",
    };
    let problems: String = problems.iter().map(|problem| format!("- {problem}\n")).collect();
    let operations: String = operations.iter().map(|operation| format!("- {}\n", operation.line())).collect();
    let heading = if operations.is_empty() { "" } else { "in progress:\n" };
    format!("{}{means}\n{problems}{heading}{operations}", health.word())
}

/// The combined view of all nodes that respond.
pub(super) async fn combined_view(cluster: &Cluster) -> Result<View, Stop> {
    let mut answers = Vec::new();
    let mut last_error = None;
    let (mut refused, mut silent) = (BTreeSet::new(), BTreeSet::new());
    let asked = cluster.endpoints()?;
    for (address, answer) in asked.iter().zip(cluster.client_at(asked.clone())?.status_of_each_with_map().await) {
        match answer {
            Ok(answer) => answers.push(answer),
            Err(error) => {
                if is_refused(&error) { &mut refused } else { &mut silent }.insert(address.clone());
                last_error = Some(error);
            }
        }
    }
    if let (Some(error), true) = (last_error, answers.is_empty()) {
        return Err(error.into());
    }
    let mut others = not_queried(&answers);
    others.retain(|address| !asked.contains(address));
    if !others.is_empty() {
        let looks = cluster.client_at(others.clone())?.status_of_each_with_map().await;
        for (address, answer) in others.into_iter().zip(looks) {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(error) => _ = if is_refused(&error) { &mut refused } else { &mut silent }.insert(address),
            }
        }
    }
    let mut view = View::of(&answers);
    view.refused(&refused);
    view.strangers = blank_nodes(&silent.into_iter().collect::<Vec<_>>(), Some(&view)).await;
    Ok(view)
}

/// Descriptions of those of these nodes that have blank disks, and wait to be formed or to join.
async fn blank_nodes(addresses: &[String], view: Option<&View>) -> Vec<String> {
    let mut blank: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for address in addresses {
        if let Ok(found) = sdk::formation::identity(address).await
            && found.cluster.is_none()
        {
            blank.entry(found.node).or_default().push(address);
        }
    }
    let sentence = |(node, at): (u32, Vec<&str>)| {
        let (count, at) = (at.len(), at.join(" and "));
        match view {
            _ if count > 1 => {
                format!("the processes at {at} both call themselves node {node}: configure another number")
            }
            None => format!("node {node} at {at} has a blank disk, and waits for `loggos admin form`"),
            Some(view) if view.nodes.contains_key(&node) => format!(
                "the process at {at} calls itself node {node}, but its disk is blank, and node {node} of the cluster has \
                 another disk: configure a number that no node ever had, and `loggos admin join` it"
            ),
            Some(_) => format!("node {node} at {at} has a blank disk, and waits for `loggos admin join`"),
        }
    };
    blank.into_iter().map(sentence).collect()
}

/// How far the verification of disks' blocks is.
fn verification_notes(view: &View) -> impl Iterator<Item = String> {
    view.nodes.iter().filter_map(|(number, node)| {
        let Verification { cohort, block, completed_ns, damaged, mended } = node.verification?;
        let ago = completed_ns.map(|at| (now_ns().saturating_sub(at)).max(0) / 1_000_000_000);
        let last = ago.map_or_else(|| "no pass is complete yet".to_owned(), |ago| format!("last complete {ago} s ago"));
        let found = match damaged {
            0 => "no damage met".to_owned(),
            _ => format!("{} met, {mended} mended", base::counted(damaged, "damaged block")),
        };
        Some(format!("node {number} verifies disks: at block {block} of cohort {cohort}, {last}, {found}"))
    })
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn node_table(view: &View) -> Table<6> {
    let mut table = Table::new(["NODE", "ALIVE", "BOOT", "INCARNATION", "CLOCK", "ZOOKEEPER"]);
    for (number, node) in &view.nodes {
        let alive = if node.alive { "yes" } else { "no" };
        let leaving = if node.leaving { ", leaving" } else { "" };
        let rolled_back = if node.rolled_back { ", rolled back" } else { "" };
        table.add([
            number.to_string(),
            format!("{alive}{leaving}{rolled_back}"),
            or_dash(node.boot),
            format!("{:016x}", node.incarnation),
            node.clock.as_ref().map_or_else(|| "-".into(), clock),
            node.zookeeper.as_ref().map_or_else(|| "-".into(), endpoint),
        ]);
    }
    table
}

/// Formats the source and the bound of a wall clock, and whether it permits transactions.
fn clock(Clock { source, uncertainty_ns, outlier, refusal }: &Clock) -> String {
    let bound = uncertainty_ns.map_or_else(|| "no bound".into(), |nanoseconds| format!("±{}", error(nanoseconds)));
    let outlier = if *outlier { ", OUTLIER" } else { "" };
    let refusal = if refusal.is_some() { ", no transactions" } else { "" };
    format!("{source}, {bound}{outlier}{refusal}")
}

/// Formats a clock error with three digits at most.
fn error(nanoseconds: u64) -> String {
    let microseconds = nanoseconds.div_ceil(1_000);
    match microseconds {
        0..1_000 => format!("{microseconds} us"),
        1_000..10_000 => format!("{:.1} ms", microseconds.div_ceil(100) as f64 / 10.0),
        _ => format!("{} ms", microseconds.div_ceil(1_000)),
    }
}

/// Why nodes refuse transactions.
fn clock_notes(view: &View) -> impl Iterator<Item = String> {
    let refusals = view.nodes.values().filter_map(|node| node.clock.as_ref()?.refusal.as_ref());
    refusals.map(|refusal| format!("no transactions: {refusal}"))
}

/// Formats the mode, clients and lag of a ZooKeeper endpoint.
fn endpoint(ZooKeeper { mode, connections, playback_lag, .. }: &ZooKeeper) -> String {
    let clients = if *connections == 1 { "client" } else { "clients" };
    let lag = if *playback_lag > 0 { format!(", {playback_lag} positions behind") } else { String::new() };
    format!("{mode}, {connections} {clients}{lag}")
}

fn cohort_table(view: &View) -> Table<9> {
    let mut table = Table::new(["COHORT", "TABLE", "LEADER", "EPOCH", "NODE", "STATE", "LAST LSN", "COMMITTED", "LAG"]);
    for cohort in view.cohorts.values() {
        let owner = owner(cohort);
        let leader = if view.is_led(cohort) { or_dash(cohort.leader) } else { "no leader".to_owned() };
        for replica in &cohort.replicas {
            let doubt = if replica.doubtful { " (doubts its log)" } else { "" };
            table.add([
                cohort.cohort.to_string(),
                owner.clone(),
                leader.clone(),
                or_dash((cohort.epoch > 0).then_some(cohort.epoch)),
                replica.node.to_string(),
                view.state(replica).to_owned(),
                or_dash(lsn(replica.last_lsn.as_ref())),
                or_dash(lsn(replica.committed_lsn.as_ref())),
                format!("{}{doubt}", or_dash(lag(cohort, replica))),
            ]);
        }
    }
    table
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
