//! Nodes that join and leave a cluster.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use base::counted;
use sdk::admin::RosterNode;
use sdk::admin::roster_node::Standing;
use sdk::formation::{self, Joined};
use serde_json::json;
use terminal::{Output, Stop};

use super::in_background;
use crate::cli::Cluster;

/// Polling interval while a node leaves.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// A departure without progress for this long is explained.
const SLOW_AFTER: Duration = Duration::from_secs(2);

pub(super) async fn join(cluster: &Cluster, output: Output, newcomer: &str) -> Result<(), Stop> {
    let until = Instant::now() + cluster.deadline();
    let joined = formation::join(newcomer, cluster.endpoints()?, cluster.deadline()).await?;
    let Joined { cluster: name, node, .. } = joined;
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
    let served = cluster.client_at(vec![newcomer.to_owned()])?.with_deadline(left).list_tables().await;
    if let Err(error) = served {
        let joined = format!("node {node} has joined cluster {name} but does not serve requests yet: {error}");
        return Err(sdk::Error::Unavailable(joined).into());
    }
    output.acknowledge(&json!({ "cluster": name, "node": node }), || {
        format!("node {node} has joined cluster {name} and is ready")
    });
    Ok(())
}

pub(super) async fn leave(cluster: &Cluster, output: Output, node: u32) -> Result<(), Stop> {
    let until = Instant::now() + cluster.deadline();
    let client = cluster.client()?;
    client.remove_node(node).await?;
    let (mut reported, mut progressed, mut is_explained) = (None, Instant::now(), false);
    loop {
        let waits = format!("node {node} is still leaving in the background");
        let nodes = client.nodes().await.map_err(|error| in_background(&waits, error))?;
        let known = nodes.into_iter().find(|known| known.node == node);
        let Some(RosterNode { ranges, .. }) = known.filter(|known| known.standing() != Standing::Left) else {
            output.acknowledge(&json!({ "node": node, "left": true }), || format!("node {node} has left"));
            return Ok(());
        };
        if reported != Some(ranges) && !output.is_json() {
            // A closed standard error is ignored.
            let _ = writeln!(io::stderr(), "node {node} is leaving: {} remaining", counted(ranges.into(), "range"));
            (reported, progressed) = (Some(ranges), Instant::now());
        }
        if !is_explained && progressed.elapsed() > SLOW_AFTER && !output.is_json() {
            let _ = writeln!(io::stderr(), "node {node} is leaving{}", blocked_by(&client).await);
            is_explained = true;
        }
        if Instant::now() >= until {
            let remaining = counted(ranges.into(), "range");
            let blocked = blocked_by(&client).await;
            return Err(sdk::Error::Unavailable(format!("{waits}: {remaining} remaining{blocked}")).into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Names the tables with ranges that move, and the way out if their replicas are lost.
async fn blocked_by(client: &sdk::Client) -> String {
    let mut moving = Vec::new();
    for table in client.list_tables().await.unwrap_or_default() {
        let known = client.table(table.as_str()).describe().await;
        if known.is_ok_and(|known| known.ranges.iter().any(|range| range.is_moving)) {
            moving.push(table);
        }
    }
    if moving.is_empty() {
        return String::new();
    }
    let (tables, names) = (if moving.len() == 1 { "table" } else { "tables" }, moving.join(", "));
    format!(
        "; ranges of {tables} {names} are still moving. If a majority of a range's replicas is lost for good, drop its table \
         with --force"
    )
}
