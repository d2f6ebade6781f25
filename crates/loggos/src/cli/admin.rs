//! `loggos admin ...`: what an operator has a universe do.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use base::shown;
use clap::Subcommand;
use sdk::formation;
use serde_json::{Value, json};

use super::Universe;
use super::columns::bytes;
use super::output::{Output, key_field};
use super::stop::Stop;

/// What may be done with a universe.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Form a new universe of the nodes at `--at`, all of which run on blank disks; done already, it does nothing.
    Form,
    /// Split a range of a table in two, while it is read and written. The new range begins at the key, on the same nodes.
    Split {
        table: String,
        /// The first key of the new range.
        key: OsString,
    },
}

/// Does it.
pub(crate) async fn run(universe: &Universe, output: Output, command: Command) -> Result<(), Stop> {
    match command {
        Command::Form => form(universe, output).await,
        Command::Split { table, key } => split(universe, output, table, key).await,
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

async fn split(universe: &Universe, output: Output, table: String, key: OsString) -> Result<(), Stop> {
    let key = bytes(key);
    let cohort = universe.client()?.split_range(&table, key.clone()).await?;
    let mut object = serde_json::Map::new();
    let (name, at) = key_field(&key);
    object.insert("table".into(), table.clone().into());
    object.insert(name.into(), at);
    object.insert("cohort".into(), cohort.into());
    let people = || format!("table {table} split at {}: cohort {cohort} has the rows from there on", shown(&key));
    output.print(&Value::from(object), people)
}
