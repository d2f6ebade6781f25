//! `loggos columns export`: all rows of a table in key order.
//!
//! Rows are read page by page, so memory use does not depend on the size of the table. Each page is a consistent
//! snapshot, but the export as a whole is not: concurrent writes may or may not be included.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use base::counted;
use clap::{Args, ValueEnum};
use sdk::{Client, Row};
use serde_json::json;
use terminal::{Output, Signals, Stop, to_json};

use super::output::{CellObject, Encoding};

/// Export a table's rows to standard output or to a file.
///
/// JSON Lines has one object per column of each row, as printed by `scan --json` and read by `load --format cells`. CSV
/// has one record of key, column, version and value. A file is replaced atomically once it is complete.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    table: String,
    /// Output file; `-` is standard output [default: -].
    file: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Format::Jsonl)]
    format: Format,
}

/// The format of a file of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One JSON object per line.
    Jsonl,
    /// Comma-separated values with a header.
    Csv,
}

/// Runs the export.
pub(crate) async fn run(client: &Client, output: Output, arguments: Arguments) -> Result<(), Stop> {
    let Arguments { table, file, format } = arguments;
    let Some(path) = file.filter(|path| path != Path::new("-")) else {
        let out = io::BufWriter::new(io::stdout());
        rows(client, &table, format, out, || Stop::Print, "written").await?;
        return Ok(());
    };
    let (rows, cells) = into_file(client, &table, format, &path).await?;
    let object = json!({ "table": table, "rows": rows, "cells": cells, "file": path.to_string_lossy() });
    output.acknowledge(&object, || format!("{} exported to {}", counted(rows, "row"), path.display()));
    Ok(())
}

/// Writes a temporary file in the same directory, and renames it once it is complete and forced: a full disk, a signal
/// or a crash leaves an existing file unchanged. If the path is not a regular file (a pipe, a device), writes to it
/// directly.
async fn into_file(client: &Client, table: &str, format: Format, path: &Path) -> Result<(u64, u64), Stop> {
    let writing = || Stop::io(format!("write {}", path.display()));
    // A symbolic link is kept, and its target is written.
    let target = fs::canonicalize(path);
    let path = target.as_deref().unwrap_or(path);
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let out = File::options().write(true).open(path).map_err(writing())?;
        return rows(client, table, format, BufWriter::new(out), writing, "written").await;
    }
    let beside = beside(path).ok_or_else(|| Stop::invalid(format!("{} is not a file name", path.display())))?;
    let file = File::create(&beside).map_err(writing())?;
    let remains = Remains(&beside);
    let done = format!("written to a temporary file, which was removed; {} is unchanged", path.display());
    let counts = rows(client, table, format, BufWriter::new(&file), writing, &done).await?;
    file.sync_all().map_err(writing())?;
    fs::rename(&beside, path).map_err(writing())?;
    std::mem::forget(remains);
    Ok(counts)
}

/// A unique name in the same directory.
fn beside(path: &Path) -> Option<PathBuf> {
    let mut name = OsString::from(".");
    name.push(path.file_name()?);
    name.push(format!(".{}.partial", std::process::id()));
    Some(path.with_file_name(name))
}

/// A temporary file that is removed unless the export completes.
struct Remains<'a>(&'a Path);

impl Drop for Remains<'_> {
    fn drop(&mut self) {
        // If this fails, the name identifies it as a partial file.
        let _ = fs::remove_file(self.0);
    }
}

/// Writes all rows; returns the number of rows and columns. After a signal, the error contains `done`: the state of the output.
async fn rows<W: Write, F: FnOnce(io::Error) -> Stop>(
    client: &Client,
    table: &str,
    format: Format,
    out: W,
    failed: impl Fn() -> F,
    done: &str,
) -> Result<(u64, u64), Stop> {
    let mut signals = Signals::catch()?;
    let mut sheet = Sheet::new(format, out);
    let (mut rows, mut cells) = (0, 0);
    sheet.begin().map_err(failed())?;
    let mut scan = client.table(table).scan().in_parts().rows();
    let mut last = None;
    loop {
        let row = tokio::select! {
            biased;
            () = signals.next() => {
                sheet.end().map_err(failed())?;
                return Err(Stop::Stopped { rows, done: done.to_owned() });
            }
            row = scan.next() => row,
        };
        let Some(row) = row.transpose()? else { break };
        sheet.add(table, &row).map_err(failed())?;
        // A row that is too large for a response comes in parts.
        rows += u64::from(last.as_ref() != Some(&row.key));
        last = Some(row.key.clone());
        cells += row.cells.len() as u64;
    }
    sheet.end().map_err(failed())?;
    Ok((rows, cells))
}

/// The output format.
enum Sheet<W: Write> {
    Jsonl(W),
    Csv(Box<csv::Writer<W>>),
}

impl<W: Write> Sheet<W> {
    fn new(format: Format, out: W) -> Self {
        match format {
            Format::Jsonl => Self::Jsonl(out),
            Format::Csv => Self::Csv(Box::new(csv::Writer::from_writer(out))),
        }
    }

    fn begin(&mut self) -> io::Result<()> {
        match self {
            Self::Jsonl(_) => Ok(()),
            Self::Csv(out) => Ok(out.write_record(["key", "column", "version", "value"])?),
        }
    }

    fn add(&mut self, table: &str, row: &Row) -> io::Result<()> {
        for cell in &row.cells {
            match self {
                Self::Jsonl(out) => {
                    writeln!(out, "{}", to_json(&CellObject::of(Encoding::Text, table, &row.key, cell)))?;
                }
                Self::Csv(out) => {
                    let version = cell.version.to_string();
                    out.write_record([&row.key[..], &cell.column, version.as_bytes(), &cell.value])?;
                }
            }
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        match self {
            Self::Jsonl(out) => out.flush(),
            Self::Csv(out) => out.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_one_line_per_cell() {
        let row = Row::new("k", vec![sdk::Cell::new("c", "a \"b\",\nc", sdk::Version::from_nanos(7))]);
        let mut out = Vec::new();
        let mut sheet = Sheet::new(Format::Csv, &mut out);
        sheet.begin().and_then(|()| sheet.add("t", &row)).and_then(|()| sheet.end()).expect("writes to memory succeed");
        drop(sheet);
        assert_eq!(String::from_utf8_lossy(&out), "key,column,version,value\nk,c,7,\"a \"\"b\"\",\nc\"\n");
        let mut out = Vec::new();
        Sheet::new(Format::Jsonl, &mut out).add("t", &row).expect("writes to memory succeed");
        assert!(out.starts_with(br#"{"table":"t","key":"k","column":"c","value":"a \"b\",\nc","version":"7"}"#));
    }

    #[test]
    fn temporary_file_in_same_directory() {
        let beside = beside(Path::new("/x/t.jsonl")).expect("a name");
        assert_eq!(beside.parent(), Some(Path::new("/x")));
        assert!(beside.file_name().expect("a name").to_string_lossy().starts_with(".t.jsonl."));
    }
}
