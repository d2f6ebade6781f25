//! `loggos admin ...`: cluster administration.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::time::{Duration, Instant};

use base::shown;
use clap::Subcommand;
use sdk::admin::roster_node::Standing;
use sdk::formation;
use serde_json::{Value, json};
use streams::layout::StripeId;
use terminal::{Output, Stop};

use super::Cluster;
use super::columns::bytes;
use super::output::key_field;

mod nodes;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Form a new cluster of the nodes at `--at`, which must all have blank disks. Has no effect if they are a cluster
    /// already.
    Form,
    /// Add a node with a blank disk to the cluster at `--at`. Idempotent: repeat it if it was interrupted.
    Join {
        /// gRPC address of the new node.
        #[arg(value_name = "HOST:PORT")]
        newcomer: String,
    },
    /// Remove a node, running or lost, after its replicas have moved to other nodes. Continues in the background if the
    /// command is interrupted. The node's number is never reused.
    Leave { node: u32 },
    /// Split a range of a table at a key without downtime. The new range starts at the key and stays on the same nodes.
    Split {
        table: String,
        /// First key of the new range.
        key: OsString,
    },
    /// Move the replicas of a range to other nodes without downtime. Continues in the background if the command is
    /// interrupted. A later move of the same range replaces this one; to cancel it, move the range back.
    Move {
        /// The table, or the disk.
        table: String,
        /// Any key of the range; the empty key selects the first range.
        #[arg(required_unless_present = "stripe", conflicts_with = "stripe")]
        key: Option<OsString>,
        /// The stripe of a disk, from 0, instead of a key.
        #[arg(long, value_name = "N")]
        stripe: Option<u16>,
        /// Nodes that are to have a replica. Existing replicas on these nodes are kept, all others are removed.
        #[arg(long, value_name = "NODE,...", value_delimiter = ',', required = true)]
        to: Vec<u32>,
        /// Allow fewer replicas than the table should have, which reduces the range's fault tolerance.
        #[arg(long)]
        force: bool,
    },
    /// Hand the leadership of a range over to another node with a replica of it. Requests wait for milliseconds meanwhile.
    Lead {
        /// The table, or the disk.
        table: String,
        /// Any key of the range [default: the empty key, which selects the first range].
        #[arg(conflicts_with_all = ["stripe", "range"])]
        key: Option<OsString>,
        /// The stripe of a disk, from 0, instead of a key.
        #[arg(long, value_name = "N", conflicts_with = "range")]
        stripe: Option<u16>,
        /// The number of the range's cohort, as `loggos status` shows it, instead of a key.
        #[arg(long, value_name = "COHORT")]
        range: Option<u32>,
        /// The node that is to lead it.
        #[arg(long, value_name = "NODE")]
        to: u32,
    },
    /// Continue a range with primary/backup replication with one replica, after its other members are lost for good.
    ///
    /// Acknowledged writes that only the other members held are lost. Their processes must have stopped for good; their
    /// replicas are deleted if they return. `loggos status` shows which replica holds the most.
    DeclareLoss {
        table: String,
        /// Any key of the range; the empty key selects the first range.
        key: OsString,
        /// Node with the replica to continue with.
        #[arg(long, value_name = "NODE")]
        node: u32,
        /// The table's name once more, as a confirmation.
        #[arg(long, value_name = "TABLE")]
        confirm: String,
    },
}

/// Runs a command.
pub(crate) async fn run(cluster: &Cluster, output: Output, command: Command) -> Result<(), Stop> {
    match command {
        Command::Form => form(cluster, output).await,
        Command::Join { newcomer } => nodes::join(cluster, output, &newcomer).await,
        Command::Leave { node } => nodes::leave(cluster, output, node).await,
        Command::Split { table, key } => split(cluster, output, table, key).await,
        Command::DeclareLoss { table, key, node, confirm } => {
            declare_loss(cluster, output, &table, key, (node, &confirm)).await
        }
        Command::Lead { table, key, stripe, range, to } => {
            let key = key_of(cluster, &table, key, stripe).await?;
            lead(cluster, output, &table, (key, range), to).await
        }
        Command::Move { table, key, stripe, to, force } => {
            let key = key_of(cluster, &table, key, stripe).await?;
            move_range(cluster, output, &table, key, (&to, force)).await
        }
    }
}

async fn form(cluster: &Cluster, output: Output) -> Result<(), Stop> {
    let until = Instant::now() + cluster.deadline();
    let endpoints = cluster.endpoints()?;
    let left_out = formation::left_out(&endpoints, cluster.deadline()).await?;
    if !left_out.is_empty() {
        let names: Vec<String> = left_out.iter().map(u32::to_string).collect();
        output.warn(&format!("the configurations also name nodes that are left out: {}", names.join(", ")));
    }
    let genesis = formation::form(&endpoints, cluster.deadline()).await?;
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
    let roster = cluster.client_at(endpoints)?.with_deadline(left).nodes().await.map_err(|error| {
        let name = &genesis.cluster;
        sdk::Error::Unavailable(format!("cluster {name} is formed but does not serve requests yet: {error}"))
    })?;
    // The cluster may have been formed earlier, so that its members differ. At first its roster is empty.
    let members = roster.iter().filter(|node| node.standing() != Standing::Left);
    let nodes: Vec<u32> = match roster.is_empty() {
        true => genesis.disks.iter().map(|disk| disk.node).collect(),
        false => members.map(|node| node.node).collect(),
    };
    output.acknowledge(&json!({ "cluster": genesis.cluster, "nodes": nodes }), || {
        let names: Vec<String> = nodes.iter().map(u32::to_string).collect();
        format!("cluster {} of nodes {} is ready", genesis.cluster, names.join(", "))
    });
    Ok(())
}

async fn split(cluster: &Cluster, output: Output, table: String, key: OsString) -> Result<(), Stop> {
    let key = bytes(key);
    let cohort = cluster.client()?.table(&*table).split(key.clone()).await?;
    let mut object = serde_json::Map::new();
    let (name, at) = key_field(&key);
    object.insert("table".into(), table.clone().into());
    object.insert(name.into(), at);
    object.insert("cohort".into(), cohort.into());
    let people = || format!("table {table} split at {}: cohort {cohort} has the rows from that key on", shown(&key));
    output.acknowledge(&Value::from(object), people);
    Ok(())
}

async fn declare_loss(
    cluster: &Cluster,
    output: Output,
    table: &str,
    key: OsString,
    (node, confirm): (u32, &str),
) -> Result<(), Stop> {
    if confirm != table {
        return Err(Stop::invalid("--confirm must repeat the table's name: acknowledged writes may be lost"));
    }
    let client = cluster.client()?;
    let cohort = range_of(&client, table, &bytes(key)).await?.cohort;
    check_survivor(cluster, &client, cohort, node).await?;
    client.declare_loss(table, cohort, node).await?;
    let object = json!({ "table": table, "cohort": cohort, "node": node });
    output.acknowledge(&object, || format!("cohort {cohort} of table {table} continues with node {node} alone"));
    Ok(())
}

/// Refuses a declared loss that would lose more than necessary: if some node serves the range, or if the node does not
/// respond or has an empty replica.
async fn check_survivor(cluster: &Cluster, client: &sdk::Client, cohort: u32, node: u32) -> Result<(), Stop> {
    let refused = |what: String| Stop::Cluster(sdk::Error::Precondition(what));
    let mut is_there = false;
    for known in client.nodes().await?.into_iter().filter(|known| known.standing() != Standing::Left) {
        let asked = cluster.client_at(vec![known.grpc])?.with_deadline(SURVIVOR_PATIENCE).status().await;
        let Ok(status) = asked else { continue };
        let Some(here) = status.cohorts.iter().find(|here| here.cohort == cohort) else { continue };
        if here.leader == Some(status.node) {
            return Err(refused(format!("node {} serves cohort {cohort}: nothing is lost", status.node)));
        }
        let own = here.replicas.iter().find(|replica| replica.node == node && status.node == node);
        is_there |= own.and_then(|replica| replica.last_lsn).is_some_and(|last| last.sequence > 0);
    }
    if is_there {
        return Ok(());
    }
    Err(refused(format!(
        "node {node} does not respond, or its replica of cohort {cohort} is empty; see: loggos status"
    )))
}

/// Timeout for a node to report its replica.
const SURVIVOR_PATIENCE: Duration = Duration::from_secs(2);

/// Polling interval while a range's replicas move.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The key that was given, or that of a stripe.
async fn key_of(cluster: &Cluster, table: &str, key: Option<OsString>, stripe: Option<u16>) -> Result<OsString, Stop> {
    let Some(stripe) = stripe else { return Ok(key.unwrap_or_default()) };
    let stripes = cluster.client()?.disk(table).describe().await?.stripes;
    if u32::from(stripe) >= stripes {
        let has = base::counted(stripes.into(), "stripe");
        return Err(Stop::NotFound(format!("disk {table} has {has}, numbered from 0")));
    }
    Ok(OsString::from_vec(StripeId(stripe).key().to_vec()))
}

async fn lead(
    cluster: &Cluster,
    output: Output,
    table: &str,
    (key, range): (OsString, Option<u32>),
    to: u32,
) -> Result<(), Stop> {
    let client = cluster.client()?;
    let cohort = match range {
        None => range_of(&client, table, &bytes(key)).await?.cohort,
        Some(range) => {
            let ranges = client.table(table).describe().await?.ranges;
            let is_there = ranges.iter().any(|known| known.cohort == range);
            let absent = || Stop::NotFound(format!("table {table} has no range with cohort {range}"));
            is_there.then_some(range).ok_or_else(absent)?
        }
    };
    client.lead_range(cohort, to).await?;
    let object = json!({ "table": table, "cohort": cohort, "leader": to });
    output.acknowledge(&object, || format!("node {to} leads cohort {cohort} of table {table}"));
    Ok(())
}

async fn move_range(
    cluster: &Cluster,
    output: Output,
    table: &str,
    key: OsString,
    (to, force): (&[u32], bool),
) -> Result<(), Stop> {
    let until = Instant::now() + cluster.deadline();
    let (client, key) = (cluster.client()?, bytes(key));
    let mut wanted = to.to_vec();
    wanted.sort_unstable();
    let cohort = range_of(&client, table, &key).await?.cohort;
    client.move_range(cohort, to, force).await?;
    let waits = format!("cohort {cohort} is still moving in the background; see: loggos columns describe {table}");
    loop {
        let range = range_of(&client, table, &key).await.map_err(|error| in_background(&waits, error))?;
        let nodes: Vec<String> = range.members.iter().map(u32::to_string).collect();
        if range.members != wanted {
            let replaced = format!("another move replaced this one: to {}", nodes.join(","));
            return Err(sdk::Error::Exists(replaced).into());
        }
        if !range.is_moving {
            let object = json!({ "table": table, "cohort": cohort, "members": range.members });
            output.acknowledge(&object, || format!("cohort {cohort} of table {table} is on {}", nodes.join(",")));
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(sdk::Error::Unavailable(waits).into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The range of a table that contains a key.
async fn range_of(client: &sdk::Client, table: &str, key: &[u8]) -> Result<sdk::Range, sdk::Error> {
    let known = client.table(table).describe().await?;
    let range = known.ranges.iter().find(|range| range.contains(key)).cloned();
    range.ok_or_else(|| sdk::Error::NotFound(format!("no range of table {table} contains that key")))
}

/// The error of a query about an operation that has begun. Without `waits` it would say that nothing was done.
fn in_background(waits: &str, error: sdk::Error) -> sdk::Error {
    match error {
        sdk::Error::Unavailable(why) => sdk::Error::Unavailable(format!("{waits}; its progress is unknown: {why}")),
        error => error,
    }
}
