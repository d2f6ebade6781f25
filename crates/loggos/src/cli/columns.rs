//! `loggos columns ...`: tables, and the rows in them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use base::limits::{SCAN_ROWS_MAX, WRITE_COLUMNS_MAX};
use base::shown;
use bytes::Bytes;
use clap::{Args, Subcommand};
use sdk::{Cell, Client, Mutation, Row, Scan};
use serde_json::json;

use super::output::{CellObject, Output};
use super::stop::Stop;
use super::{Universe, load};

/// What may be done with columns. Keys, columns and values are bytes: whatever the shell passes is taken as it is.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a table, unless it is there.
    Create {
        table: String,
    },
    /// List the tables.
    List,
    /// Put one column of a row; prints its version.
    Put {
        table: String,
        key: OsString,
        column: OsString,
        #[arg(allow_hyphen_values = true)]
        value: OsString,
    },
    /// Print one column of a row, or all of them, with their versions.
    Get {
        table: String,
        key: OsString,
        column: Option<OsString>,
    },
    /// Delete one column of a row, or all that it has.
    Delete {
        table: String,
        key: OsString,
        column: Option<OsString>,
    },
    /// Put one column if it has the version named; prints its new version.
    ConditionalPut {
        table: String,
        key: OsString,
        column: OsString,
        #[arg(allow_hyphen_values = true)]
        value: OsString,
        /// The version it must have; 0: it must be absent.
        #[arg(long)]
        version: i64,
    },
    /// Delete one column if it has the version named.
    ConditionalDelete {
        table: String,
        key: OsString,
        column: OsString,
        /// The version it must have; 0: it must be absent.
        #[arg(long)]
        version: i64,
    },
    /// Print rows in the order of their keys.
    Scan(ScanArguments),
    Load(load::Arguments),
}

#[derive(Debug, Args)]
pub(crate) struct ScanArguments {
    table: String,
    /// The first key, included.
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// The last key, excluded.
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// Only keys that begin so.
    #[arg(long)]
    prefix: Option<OsString>,
    /// Rows at most; 0: all of them.
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u64,
    /// From the last key to the first.
    #[arg(long)]
    reverse: bool,
}

/// Does it.
pub(crate) async fn run(universe: &Universe, output: Output, command: Command) -> Result<(), Stop> {
    let client = universe.client()?;
    match command {
        Command::Create { table } => create(&client, output, &table).await,
        Command::List => list(&client, output).await,
        Command::Put { table, key, column, value } => {
            let (key, cell) = (bytes(key), put_of(column, value));
            let version = client.put(&table, key.clone(), cell.column.clone(), cell.value.clone()).await?;
            print_put(output, &table, &key, &Cell { version, ..cell })
        }
        Command::ConditionalPut { table, key, column, value, version } => {
            let (key, cell) = (bytes(key), put_of(column, value));
            let put = client.conditional_put(&table, key.clone(), cell.column.clone(), cell.value.clone(), version);
            let version = put.await?;
            print_put(output, &table, &key, &Cell { version, ..cell })
        }
        Command::Get { table, key, column } => get(&client, output, &table, bytes(key), column.map(bytes)).await,
        Command::Delete { table, key, column: Some(column) } => {
            let (key, column) = (bytes(key), bytes(column));
            client.delete(&table, key.clone(), column.clone()).await?;
            print_deleted(output, &table, &key, &[column])
        }
        Command::Delete { table, key, column: None } => delete_row(&client, output, &table, bytes(key)).await,
        Command::ConditionalDelete { table, key, column, version } => {
            let (key, column) = (bytes(key), bytes(column));
            client.conditional_delete(&table, key.clone(), column.clone(), version).await?;
            print_deleted(output, &table, &key, &[column])
        }
        Command::Scan(arguments) => scan(&client, output, arguments).await,
        Command::Load(arguments) => load::run(&client, output, arguments).await,
    }
}

fn bytes(text: OsString) -> Bytes {
    text.into_vec().into()
}

fn put_of(column: OsString, value: OsString) -> Cell {
    Cell { column: bytes(column), value: bytes(value), version: 0 }
}

async fn create(client: &Client, output: Output, table: &str) -> Result<(), Stop> {
    let existed = client.create_table(table).await?;
    let people = || if existed { format!("table {table} was there") } else { format!("table {table} created") };
    output.print(&json!({ "table": table, "existed": existed }), people)
}

async fn list(client: &Client, output: Output) -> Result<(), Stop> {
    for table in client.list_tables().await? {
        output.print(&json!({ "table": table }), || table.clone())?;
    }
    Ok(())
}

fn print_put(output: Output, table: &str, key: &[u8], cell: &Cell) -> Result<(), Stop> {
    output.print(&CellObject::of(table, key, cell), || cell.version.to_string())
}

fn print_deleted(output: Output, table: &str, key: &[u8], columns: &[Bytes]) -> Result<(), Stop> {
    if !output.is_json() {
        let names: Vec<_> = columns.iter().map(|column| shown(column)).collect();
        return output.print(&(), || format!("deleted {}", names.join(", ")));
    }
    columns.iter().try_for_each(|column| output.print(&CellObject::deleted(table, key, column), String::new))
}

async fn get(client: &Client, output: Output, table: &str, key: Bytes, column: Option<Bytes>) -> Result<(), Stop> {
    let cells = client.row(table, key.clone(), column.iter().cloned().collect()).await?;
    if cells.is_empty() {
        let what = column.map_or_else(String::new, |column| format!("column {} in ", shown(&column)));
        return Err(Stop::NotFound(format!("there is no {what}row {} in table {table}", shown(&key))));
    }
    output.print_rows(table, &[Row { key, cells }], false)
}

/// Deletes the columns that the row has, as one write as long as they are no more than one may touch.
async fn delete_row(client: &Client, output: Output, table: &str, key: Bytes) -> Result<(), Stop> {
    let columns: Vec<Bytes> =
        client.row(table, key.clone(), Vec::new()).await?.into_iter().map(|cell| cell.column).collect();
    if columns.is_empty() {
        return Err(Stop::NotFound(format!("there is no row {} in table {table}", shown(&key))));
    }
    for some in columns.chunks(WRITE_COLUMNS_MAX) {
        let delete = |column: &Bytes| Mutation { column: column.clone(), value: None, condition: None };
        client.write(table, key.clone(), some.iter().map(delete).collect()).await?;
    }
    print_deleted(output, table, &key, &columns)
}

/// Prints page by page, so that a table of any size needs the memory of one.
async fn scan(client: &Client, output: Output, arguments: ScanArguments) -> Result<(), Stop> {
    let ScanArguments { table, from, to, prefix, limit, reverse } = arguments;
    let mut left = if limit == 0 { u64::MAX } else { limit };
    let mut scan = Scan {
        from: from.map(bytes).unwrap_or_default(),
        to: to.map(bytes),
        prefix: prefix.map(bytes).unwrap_or_default(),
        reverse,
        limit: 0,
        continuation: None,
    };
    let mut has_heading = false;
    while left > 0 {
        scan.limit = left.min(SCAN_ROWS_MAX as u64) as u32;
        let page = client.scan(&table, scan.clone()).await?;
        output.print_rows(&table, &page.rows, has_heading)?;
        has_heading |= !page.rows.is_empty();
        left = left.saturating_sub(page.rows.len() as u64);
        scan.continuation = page.continuation;
        if scan.continuation.is_none() {
            break;
        }
    }
    Ok(())
}
