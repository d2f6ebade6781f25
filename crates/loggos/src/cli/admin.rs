//! `loggos admin`: what changes a universe itself.

use std::time::{Duration, Instant};

use clap::Subcommand;
use sdk::formation;
use serde_json::json;

use super::Universe;
use super::output::Output;
use super::stop::Stop;

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Form a new universe of the nodes at `--at`, all of which run on blank disks; done already, it does nothing.
    Form,
}

/// Carries a command out.
pub(crate) async fn run(universe: &Universe, output: Output, command: Command) -> Result<(), Stop> {
    match command {
        Command::Form => form(universe, output).await,
    }
}

async fn form(universe: &Universe, output: Output) -> Result<(), Stop> {
    let until = Instant::now() + Duration::from_millis(universe.timeout);
    let endpoints = if universe.at.is_empty() { universe.default_endpoints()? } else { universe.at.clone() };
    let genesis = formation::form(&endpoints, Duration::from_millis(universe.timeout)).await?;
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
    let served = universe.client_at(endpoints)?.with_deadline(left).list_tables().await;
    if let Err(error) = served {
        let name = &genesis.universe;
        return Err(
            sdk::Error::Unavailable(format!("universe {name} is formed, and does not serve yet: {error}")).into()
        );
    }
    let nodes: Vec<u32> = genesis.disks.iter().map(|disk| disk.node).collect();
    output.print(&json!({ "universe": genesis.universe, "nodes": nodes }), || {
        let names: Vec<String> = nodes.iter().map(u32::to_string).collect();
        format!("universe {} of nodes {}: it serves", genesis.universe, names.join(", "))
    })
}
