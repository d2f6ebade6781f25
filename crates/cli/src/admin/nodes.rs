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
use crate::{Cluster, status};
use terminal::view::{Operation, leave_of};

/// Polling interval while a node leaves.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// A departure without progress for this long is explained.
const SLOW_AFTER: Duration = Duration::from_secs(2);
/// Timeout for the nodes to report why a departure is still waiting.
const STATUS_TIME_MAX: Duration = Duration::from_secs(2);

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
        let is_first = reported.is_none();
        if reported != Some(ranges) {
            say(output, &format!("node {node} is leaving: {} remaining", counted(ranges.into(), "range")));
            (reported, progressed) = (Some(ranges), Instant::now());
        }
        let is_slow = !is_explained && progressed.elapsed() > SLOW_AFTER;
        if is_first || is_slow {
            // Blocking tables and logs are named at once; other reasons only if the departure is slow.
            let operation = awaited(cluster, node).await.filter(|operation| is_slow || operation.is_blocked);
            if let Some(operation) = operation {
                say(output, &format!("node {node} is leaving, and waits for {}", operation.waits_for));
                is_explained = true;
            }
        }
        if Instant::now() >= until {
            let awaited = awaited(cluster, node).await;
            let awaited =
                awaited.map_or_else(String::new, |operation| format!("; it waits for {}", operation.waits_for));
            let remaining = counted(ranges.into(), "range");
            return Err(sdk::Error::Unavailable(format!("{waits}: {remaining} remaining{awaited}")).into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Reports progress on standard error. A closed standard error is ignored.
fn say(output: Output, line: &str) {
    if !output.is_json() {
        let _ = writeln!(io::stderr(), "{line}");
    }
}

/// The conditions that the departure of a node waits for, according to the nodes that respond.
async fn awaited(cluster: &Cluster, node: u32) -> Option<Operation> {
    let view = tokio::time::timeout(STATUS_TIME_MAX, status::combined_view(cluster)).await.ok()?.ok()?;
    Some(leave_of(&view, node))
}
