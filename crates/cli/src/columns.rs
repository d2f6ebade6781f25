//! `loggos columns ...`: tables and their rows.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use base::limits::RETENTION_MAX;
use bytes::Bytes;
use clap::{Args, Subcommand};
use sdk::{Client, CreateTable, Row};
use terminal::{Durability, Output, Replication, Stop, positive_duration};

use super::output::{EncodingArguments, Shown, print_rows};
use super::reads::{self, ReadArguments, ScanHold};
use super::{Cluster, export, load, tables, writes};

/// Commands on tables. Keys, columns and values are bytes, used exactly as the shell passes them, unless --base64 is
/// given.
#[derive(Debug, Subcommand)]
pub enum Command {
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
        /// Exclude the table from transactions: its writes then never wait for a clock. A table in main memory takes no
        /// part in them.
        #[arg(long)]
        no_transactions: bool,
        /// How each range is replicated: paxos (a majority commits), or primary-backup (all members of a configuration
        /// commit, and silent ones are removed from it) [default: paxos].
        #[arg(long, value_enum)]
        replication: Option<Replication>,
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
        /// Also a disk, or a table of a SQL database. Do not wait for ranges that cannot be reached: a majority of their
        /// replicas is lost for good.
        #[arg(long)]
        force: bool,
    },
    /// Write columns of a row atomically, and print their new version.
    ///
    /// `put T KEY COLUMN VALUE` writes one column, `put T KEY COLUMN=VALUE ...` writes several. With --if, nothing is
    /// written unless every named column has the given version.
    Put(writes::Put),
    /// Print one or all columns of a row with their versions.
    Get {
        table: String,
        key: OsString,
        column: Option<OsString>,
        /// Print the value of the column unchanged, without a line end.
        #[arg(long, requires = "column", conflicts_with = "base64")]
        raw: bool,
        /// Read the names and versions of columns, without values.
        #[arg(long, conflicts_with = "raw")]
        names_only: bool,
        #[command(flatten)]
        encoding: EncodingArguments,
        #[command(flatten)]
        reads: ReadArguments,
    },
    /// Delete one column of a row, or the whole row. If it does not exist, the exit status is 1.
    Delete(writes::Delete),
    /// Write one column if its version matches, and print its new version.
    ConditionalPut(writes::ConditionalPut),
    /// Delete one column if its version matches.
    ConditionalDelete(writes::ConditionalDelete),
    /// Print rows in key order.
    Scan(ScanArguments),
    Load(load::Arguments),
    Export(export::Arguments),
}

#[derive(Debug, Args)]
pub struct ScanArguments {
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
    /// Read the names and versions of columns, without values.
    #[arg(long)]
    names_only: bool,
    #[command(flatten)]
    encoding: EncodingArguments,
    #[command(flatten)]
    reads: ReadArguments,
}

/// Runs a command.
pub(crate) async fn run(cluster: &Cluster, output: Output, command: Command) -> Result<(), Stop> {
    let client = cluster.client()?;
    match &command {
        Command::Put(writes::Put { table, guard, .. })
        | Command::Delete(writes::Delete { table, guard, .. })
        | Command::ConditionalPut(writes::ConditionalPut { table, guard, .. })
        | Command::ConditionalDelete(writes::ConditionalDelete { table, guard, .. })
        | Command::Load(load::Arguments { table, guard, .. }) => guard.check(table)?,
        _ => {}
    }
    match command {
        Command::Create { table, split_at, replicas, retention, durability, no_transactions, replication } => {
            let handle = client.table(&*table);
            let wanted = handle.create().split_at(split_at.into_iter().map(bytes)).replicas(replicas.unwrap_or(0));
            let wanted = wanted.retention(retention.unwrap_or(Duration::ZERO));
            let wanted = if no_transactions { wanted.transactions(false) } else { wanted };
            let replication = replication.map(sdk::Replication::from);
            let wanted = replication.into_iter().fold(wanted, CreateTable::replication);
            tables::create(output, &table, wanted, (durability.map(Into::into), replicas)).await
        }
        Command::List => tables::list(&client, output).await,
        Command::Describe { table } => tables::describe(&client, output, &table).await,
        Command::Drop { table, force } => tables::drop(&client, output, &table, force).await,
        Command::Put(put) => put.run(&client, output).await,
        Command::Get { table, key, column, raw, names_only, encoding, reads } => {
            if raw && output.is_json() {
                return Err(Stop::invalid("--raw prints the bytes of a value and excludes --json"));
            }
            let encoding = encoding.encoding();
            let (key, column) = (encoding.bytes(key)?, column.map(|column| encoding.bytes(column)).transpose()?);
            let handle = client.table(&*table);
            let read = handle.read(key.clone()).columns(column.clone());
            let read = if names_only { read.names_only() } else { read };
            let reads = reads.reads(&client, &table, &key).await?;
            let read = read.consistency(reads).send().await.map_err(|error| reads::failed(reads, error))?;
            reads::print_as_of(output, reads, read.as_of.as_ref());
            if read.cells.is_empty() {
                return Err(Stop::NotFound(writes::absent(encoding, &table, &key, column.as_deref())));
            }
            let row = Row::new(key, read.cells);
            if raw {
                let mut out = io::stdout().lock();
                row.cells.iter().try_for_each(|cell| out.write_all(&cell.value))?;
                return Ok(out.flush()?);
            }
            print_rows(output, encoding, &table, &[row], Shown { names_only, ..Shown::default() })
        }
        Command::Delete(delete) => delete.run(&client, output).await,
        Command::ConditionalPut(put) => put.run(&client, output).await,
        Command::ConditionalDelete(delete) => delete.run(&client, output).await,
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

/// Prints page by page, so that memory use does not depend on the size of the table.
async fn scan(client: &Client, output: Output, arguments: ScanArguments) -> Result<(), Stop> {
    let ScanArguments { table, from, to, prefix, limit, reverse, names_only, encoding, reads } = arguments;
    let encoding = encoding.encoding();
    let bytes = |key: Option<OsString>| key.map(|key| encoding.bytes(key)).transpose();
    let (from, prefix) = (bytes(from)?.unwrap_or_default(), bytes(prefix)?.unwrap_or_default());
    let reads = reads.reads(client, &table, (&from).max(&prefix)).await?;
    let mut scan = client.table(&*table).scan().consistency(reads).prefix(prefix);
    scan = match bytes(to)? {
        Some(to) => scan.range(from..to),
        None => scan.range(from..),
    };
    if reverse {
        scan = scan.reverse();
    }
    if names_only {
        scan = scan.names_only();
    }
    if limit > 0 {
        scan = scan.limit(limit);
    }
    let mut pages = scan.in_parts().pages();
    let mut has_heading = false;
    let mut hold = ScanHold::default();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| reads::failed(reads, error))?;
        reads::print_as_of(output, reads, page.as_of.as_ref());
        print_rows(output, encoding, &table, &page.rows, Shown { has_heading, names_only })?;
        has_heading |= !page.rows.is_empty();
        if page.continuation.is_some() {
            hold.begin(client, &table, reads);
        }
    }
    hold.end().await;
    Ok(())
}
