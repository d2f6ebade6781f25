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
    let mut reported = None;
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
            reported = Some(ranges);
        }
        if Instant::now() >= until {
            let remaining = counted(ranges.into(), "range");
            return Err(sdk::Error::Unavailable(format!("{waits}: {remaining} remaining")).into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
