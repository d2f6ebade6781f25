//! `loggos columns ...`: tables and their rows.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use base::limits::RETENTION_MAX;
use base::shown;
use bytes::Bytes;
use clap::{Args, Subcommand};
use sdk::{Cell, Client, Reads, Row, Version};
use terminal::{Durability, Output, Stop, positive_duration};

use super::output::{CellObject, print_rows};
use super::reads::{self, ReadArguments};
use super::{Cluster, export, load, tables};

/// Commands on tables. Keys, columns and values are bytes, used exactly as the shell passes them.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a table, unless it exists.
    Create {
        table: String,
        /// Key at which a new range starts. May be repeated, in any order.
        #[arg(long, value_name = "KEY")]
        split_at: Vec<OsString>,
        /// Replicas of each range: 1, 3 or 5 [default: 3, fewer if the cluster has fewer nodes].
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        replicas: Option<u32>,
        /// Retention of old versions, such as 500ms, 90s, 10m, 2h or 7d [default: 60s].
        #[arg(long, value_name = "TIME", value_parser = retention)]
        retention: Option<Duration>,
        /// Storage that a majority must have written before a write is acknowledged: disk, or main memory. With memory,
        /// the last writes are lost if a majority fails at once [default: forced].
        #[arg(long, value_enum)]
        durability: Option<Durability>,
    },
    /// List the tables.
    List,
    /// Show a table's ranges and their nodes.
    Describe {
        table: String,
    },
    /// Drop a table and all its rows permanently, without confirmation.
    Drop {
        table: String,
    },
    /// Write one column of a row, and print its version.
    Put {
        table: String,
        key: OsString,
        column: OsString,
        #[arg(allow_hyphen_values = true)]
        value: OsString,
    },
    /// Print one or all columns of a row with their versions.
    Get {
        table: String,
        key: OsString,
        column: Option<OsString>,
        #[command(flatten)]
        reads: ReadArguments,
    },
    /// Delete one column of a row, or the whole row.
    Delete {
        table: String,
        key: OsString,
        column: Option<OsString>,
    },
    /// Write one column if its version matches, and print its new version.
    ConditionalPut {
        table: String,
        key: OsString,
        column: OsString,
        #[arg(allow_hyphen_values = true)]
        value: OsString,
        /// Expected version; 0 if the column must not exist.
        #[arg(long)]
        version: Version,
    },
    /// Delete one column if its version matches.
    ConditionalDelete {
        table: String,
        key: OsString,
        column: OsString,
        /// Expected version; 0 if the column must not exist.
        #[arg(long)]
        version: Version,
    },
    /// Print rows in key order.
    Scan(ScanArguments),
    Load(load::Arguments),
    Export(export::Arguments),
}

#[derive(Debug, Args)]
pub(crate) struct ScanArguments {
    table: String,
    /// First key, included.
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// End key, excluded.
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// Only rows with keys that start with this prefix.
    #[arg(long)]
    prefix: Option<OsString>,
    /// Maximum number of rows; 0 for no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u64,
    /// Scan in descending key order.
    #[arg(long)]
    reverse: bool,
    #[command(flatten)]
    reads: ReadArguments,
}

/// Runs a command.
pub(crate) async fn run(cluster: &Cluster, output: Output, command: Command) -> Result<(), Stop> {
    let client = cluster.client()?;
    match command {
        Command::Create { table, split_at, replicas, retention, durability } => {
            let handle = client.table(&*table);
            let wanted = handle.create().split_at(split_at.into_iter().map(bytes)).replicas(replicas.unwrap_or(0));
            let wanted = wanted.retention(retention.unwrap_or(Duration::ZERO));
            tables::create(output, &table, wanted, durability.map(Into::into)).await
        }
        Command::List => tables::list(&client, output).await,
        Command::Describe { table } => tables::describe(&client, output, &table).await,
        Command::Drop { table } => tables::drop(&client, output, &table).await,
        Command::Put { table, key, column, value } => {
            let (key, column, value) = (bytes(key), bytes(column), bytes(value));
            let handle = client.table(&*table);
            let version = handle.write(key.clone()).put(column.clone(), value.clone()).send().await?;
            print_put(output, &table, &key, &Cell::new(column, value, version))
        }
        Command::ConditionalPut { table, key, column, value, version } => {
            let (key, column, value) = (bytes(key), bytes(column), bytes(value));
            let handle = client.table(&*table);
            let version = handle.write(key.clone()).put_if(column.clone(), value.clone(), version).send().await?;
            print_put(output, &table, &key, &Cell::new(column, value, version))
        }
        Command::Get { table, key, column, reads } => {
            get(&client, output, &table, bytes(key), column.map(bytes), reads.reads()?).await
        }
        Command::Delete { table, key, column: Some(column) } => {
            let (key, column) = (bytes(key), bytes(column));
            client.table(&*table).write(key.clone()).delete(column.clone()).send().await?;
            print_deleted(output, &table, &key, &column)
        }
        Command::Delete { table, key, column: None } => {
            let key = bytes(key);
            client.table(&*table).delete_row(key.clone()).await?;
            output.print(&CellObject::deleted_row(&table, &key), || format!("deleted row {}", shown(&key)))
        }
        Command::ConditionalDelete { table, key, column, version } => {
            let (key, column) = (bytes(key), bytes(column));
            client.table(&*table).write(key.clone()).delete_if(column.clone(), version).send().await?;
            print_deleted(output, &table, &key, &column)
        }
        Command::Scan(arguments) => scan(&client, output, arguments).await,
        Command::Load(arguments) => load::run(&cluster.streaming_client()?, output, arguments).await,
        Command::Export(arguments) => export::run(&client, output, arguments).await,
    }
}

/// Parses a retention time. The limit is checked here on the exact value, since nodes receive it in milliseconds.
fn retention(text: &str) -> Result<Duration, String> {
    let time = positive_duration(text)?;
    if time.as_nanos() > RETENTION_MAX.0.into() {
        return Err(format!("above the limit of {RETENTION_MAX}"));
    }
    Ok(time)
}

pub(super) fn bytes(text: OsString) -> Bytes {
    text.into_vec().into()
}

fn print_put(output: Output, table: &str, key: &[u8], cell: &Cell) -> Result<(), Stop> {
    output.print(&CellObject::of(table, key, cell), || cell.version.to_string())
}

fn print_deleted(output: Output, table: &str, key: &[u8], column: &[u8]) -> Result<(), Stop> {
    output.print(&CellObject::deleted(table, key, column), || format!("deleted {}", shown(column)))
}

async fn get(
    client: &Client,
    output: Output,
    table: &str,
    key: Bytes,
    column: Option<Bytes>,
    reads: Reads,
) -> Result<(), Stop> {
    let handle = client.table(table);
    let read = handle.read(key.clone()).columns(column.clone()).consistency(reads).send().await;
    let read = read.map_err(|error| reads::failed(reads, error))?;
    reads::print_as_of(output, read.as_of.as_ref());
    if read.cells.is_empty() {
        let what = column.map_or_else(String::new, |column| format!("column {} in ", shown(&column)));
        return Err(Stop::NotFound(format!("there is no {what}row {} in table {table}", shown(&key))));
    }
    print_rows(output, table, &[Row::new(key, read.cells)], false)
}

/// Prints page by page, so that memory use does not depend on the size of the table.
async fn scan(client: &Client, output: Output, arguments: ScanArguments) -> Result<(), Stop> {
    let ScanArguments { table, from, to, prefix, limit, reverse, reads } = arguments;
    let reads = reads.reads()?;
    let mut scan = client.table(&*table).scan().consistency(reads).prefix(prefix.map(bytes).unwrap_or_default());
    let from = from.map(bytes).unwrap_or_default();
    scan = match to.map(bytes) {
        Some(to) => scan.range(from..to),
        None => scan.range(from..),
    };
    if reverse {
        scan = scan.reverse();
    }
    if limit > 0 {
        scan = scan.limit(limit);
    }
    let mut pages = scan.pages();
    let mut has_heading = false;
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| reads::failed(reads, error))?;
        reads::print_as_of(output, page.as_of.as_ref());
        print_rows(output, &table, &page.rows, has_heading)?;
        has_heading |= !page.rows.is_empty();
    }
    Ok(())
}
