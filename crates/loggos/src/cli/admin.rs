//! `loggos admin ...`: cluster administration.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use base::shown;
use clap::Subcommand;
use sdk::formation;
use serde_json::{Value, json};
use terminal::{Output, Stop};

use super::Cluster;
use super::columns::bytes;
use super::output::key_field;

mod nodes;

/// What may be done with a cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Form a new cluster of the nodes at `--at`, all of which run on blank disks; done already, it does nothing.
    Form,
    /// Have a node that runs on a blank disk join the cluster at `--at`. Cut short, it is done again; done already, it
    /// does nothing.
    Join {
        /// Where the node serves gRPC.
        #[arg(value_name = "HOST:PORT")]
        newcomer: String,
    },
    /// Have a node leave, whether it lives or is lost: what it has goes to others first. It goes on by itself, even if
    /// nobody waits any more. Its number is never used again.
    Leave { node: u32 },
    /// Split a range of a table in two, while it is read and written. The new range begins at the key, on the same
    /// nodes.
    Split {
        table: String,
        /// The first key of the new range.
        key: OsString,
    },
    /// Move the replicas of a range to other nodes, while it is read and written. It goes on by itself, even if nobody
    /// waits any more. A later move of the same range takes its place: move it back to give it up.
    Move {
        table: String,
        /// A key of the range; the empty one is in the first.
        key: OsString,
        /// The nodes that are to have a replica: those that have one already keep it, all others lose theirs.
        #[arg(long, value_name = "NODE,...", value_delimiter = ',', required = true)]
        to: Vec<u32>,
    },
}

/// Runs a command.
pub(crate) async fn run(cluster: &Cluster, output: Output, command: Command) -> Result<(), Stop> {
    match command {
        Command::Form => form(cluster, output).await,
        Command::Join { newcomer } => nodes::join(cluster, output, &newcomer).await,
        Command::Leave { node } => nodes::leave(cluster, output, node).await,
        Command::Split { table, key } => split(cluster, output, table, key).await,
        Command::Move { table, key, to } => move_range(cluster, output, &table, key, &to).await,
    }
}

async fn form(cluster: &Cluster, output: Output) -> Result<(), Stop> {
    let until = Instant::now() + cluster.deadline();
    let endpoints = if cluster.at.is_empty() { cluster.default_endpoints()? } else { cluster.at.clone() };
    let genesis = formation::form(&endpoints, cluster.deadline()).await?;
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
    let served = cluster.client_at(endpoints)?.with_deadline(left).list_tables().await;
    if let Err(error) = served {
        let name = &genesis.cluster;
        return Err(
            sdk::Error::Unavailable(format!("cluster {name} is formed, and does not serve yet: {error}")).into()
        );
    }
    let nodes: Vec<u32> = genesis.disks.iter().map(|disk| disk.node).collect();
    output.print(&json!({ "cluster": genesis.cluster, "nodes": nodes }), || {
        let names: Vec<String> = nodes.iter().map(u32::to_string).collect();
        format!("cluster {} of nodes {}: it serves", genesis.cluster, names.join(", "))
    })
}

async fn split(cluster: &Cluster, output: Output, table: String, key: OsString) -> Result<(), Stop> {
    let key = bytes(key);
    let cohort = cluster.client()?.split_range(&table, key.clone()).await?;
    let mut object = serde_json::Map::new();
    let (name, at) = key_field(&key);
    object.insert("table".into(), table.clone().into());
    object.insert(name.into(), at);
    object.insert("cohort".into(), cohort.into());
    let people = || format!("table {table} split at {}: cohort {cohort} has the rows from there on", shown(&key));
    output.print(&Value::from(object), people)
}

/// Polling interval while a range's replicas move.
const ASKED_AGAIN: Duration = Duration::from_millis(100);

async fn move_range(cluster: &Cluster, output: Output, table: &str, key: OsString, to: &[u32]) -> Result<(), Stop> {
    let until = Instant::now() + cluster.deadline();
    let (client, key) = (cluster.client()?, bytes(key));
    let mut wanted = to.to_vec();
    wanted.sort_unstable();
    let cohort = range_of(&client, table, &key).await?.cohort;
    client.move_range(cohort, to).await?;
    loop {
        let range = range_of(&client, table, &key).await?;
        let nodes: Vec<String> = range.members.iter().map(u32::to_string).collect();
        if range.members != wanted {
            let replaced = format!("another move has taken the place of this one: to {}", nodes.join(","));
            return Err(sdk::Error::Exists(replaced).into());
        }
        if !range.is_moving {
            let object = json!({ "table": table, "cohort": cohort, "members": range.members });
            return output.print(&object, || format!("cohort {cohort} of table {table} is on {}", nodes.join(",")));
        }
        if Instant::now() >= until {
            let waits =
                format!("cohort {cohort} is still on its way, and goes on; loggos columns describe {table} shows it");
            return Err(sdk::Error::Unavailable(waits).into());
        }
        tokio::time::sleep(ASKED_AGAIN).await;
    }
}

/// The range of a table that contains a key.
async fn range_of(client: &sdk::Client, table: &str, key: &[u8]) -> Result<sdk::Range, Stop> {
    let known = client.describe_table(table).await?;
    let holds = |range: &&sdk::Range| *range.start <= *key && range.end.as_ref().is_none_or(|end| *key < **end);
    let range = known.ranges.iter().find(holds).cloned();
    Ok(range.ok_or_else(|| sdk::Error::NotFound(format!("no range of table {table} holds that key")))?)
}
