//! `loggos columns create`, `list`, `describe` and `drop`: tables and their ranges.

use base::limits::SQL_PREFIX;
use base::shown;
use sdk::{Client, CreateTable, Durability};
use serde_json::{Map, Value, json};
use terminal::{Output, Stop, Table, range_field};

/// The warning shown for tables in main memory.
pub(super) const MAY_BE_LOST: &str = "acknowledged writes can be lost if most replicas of a range fail together";

/// Creates a table, unless it exists with the same options.
pub(super) async fn create(
    output: Output,
    table: &str,
    wanted: CreateTable<'_>,
    (durability, replicas): (Option<Durability>, Option<u32>),
) -> Result<(), Stop> {
    let is_in_memory = durability == Some(Durability::Memory);
    let existed = durability.into_iter().fold(wanted, CreateTable::durability).send().await?;
    let what = if existed { "already exists" } else { "created" };
    let memory = if is_in_memory { format!(", IN MAIN MEMORY: {MAY_BE_LOST}") } else { String::new() };
    output.acknowledge(&json!({ "table": table, "existed": existed }), || format!("table {table} {what}{memory}"));
    if replicas == Some(1) {
        output.warn(&format!("table {table} has one replica of each range: if a node is lost, so are its rows"));
    }
    Ok(())
}

pub(super) async fn list(client: &Client, output: Output) -> Result<(), Stop> {
    for table in client.list_tables().await? {
        output.print(&json!({ "table": table }), || table.clone())?;
    }
    Ok(())
}

/// Drops a table without confirmation, since scripts cannot answer.
pub(super) async fn drop(client: &Client, output: Output, table: &str, force: bool) -> Result<(), Stop> {
    let of = client.table(table);
    if !force && table.starts_with(SQL_PREFIX) {
        return Err(Stop::Refused(format!("table {table} belongs to a SQL database: use SQL, or --force")));
    }
    if !force && client.list_disks().await?.iter().any(|disk| disk.name == table) {
        return Err(Stop::Refused(format!("{table} is a disk: use \"loggos disk delete\", or --force")));
    }
    if force {
        of.force_drop_table().await?;
    } else {
        of.drop_table().await?;
    }
    output.acknowledge(&json!({ "table": table, "dropped": true }), || format!("table {table} dropped"));
    Ok(())
}

/// Shows a table's ranges and their locations.
pub(super) async fn describe(client: &Client, output: Output, table: &str) -> Result<(), Stop> {
    let known = client.table(table).describe().await?;
    let retention_ms = known.retention.as_millis() as u64;
    let is_in_memory = known.durability == Durability::Memory;
    let ranges: Vec<Value> = known.ranges.iter().map(range_object).collect();
    let object = json!({
        "table": table,
        "created": known.created_ns.to_string(),
        "replicas": known.replicas,
        "retention_ms": retention_ms,
        "durability": if is_in_memory { "memory" } else { "forced" },
        "transactions": known.transactions,
        "replication": known.replication.name(),
        "ranges": ranges,
    });
    output.print(&object, || {
        let mut lines = Table::new(["COHORT", "FROM", "TO", "NODES"]);
        for range in &known.ranges {
            let numbers = |nodes: &[u32]| nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            let end = range.end.as_ref().map_or_else(|| "-".into(), |end| shown(end));
            let start = if range.start.is_empty() { "-".into() } else { shown(&range.start) };
            let moving = if range.is_moving { " (moving)" } else { "" };
            let configuration = range.configuration.as_ref().map_or_else(String::new, |known| {
                let (version, primary, members) = (known.version, known.primary, numbers(&known.members));
                format!(" (version {version}: primary {primary}, members {members})")
            });
            let nodes = numbers(&range.members) + moving + &configuration;
            lines.add([range.cohort.to_string(), start, end, nodes]);
        }
        let seconds = retention_ms as f64 / 1_000.0;
        let memory = if is_in_memory { format!("\nIN MAIN MEMORY: {MAY_BE_LOST}") } else { String::new() };
        let transactions = if known.transactions { "yes" } else { "no" };
        let replication = known.replication.name();
        format!(
            "{lines}old versions are kept for {seconds} s\nreplication {replication}\ntransactions {transactions}{memory}"
        )
    })
}

fn range_object(range: &sdk::Range) -> Value {
    let mut object = Map::new();
    let (name, keys) = range_field(&range.start, range.end.as_deref());
    object.insert(name.into(), keys);
    object.insert("cohort".into(), range.cohort.into());
    object.insert("members".into(), range.members.clone().into());
    object.insert("moving".into(), range.is_moving.into());
    if let Some(known) = &range.configuration {
        let (version, primary, members) = (known.version, known.primary, &known.members);
        let configuration = json!({ "version": version, "primary": primary, "members": members });
        object.insert("configuration".into(), configuration);
    }
    object.into()
}
