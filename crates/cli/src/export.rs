//! `loggos columns export`: all rows of a table in key order.
//!
//! Rows are read page by page, so memory use does not depend on the size of the table. All pages are of one moment, for
//! which a hold keeps the old versions. The header of CSV needs the names of all columns, so the table is scanned twice.
//!
//! If the nodes' clocks have no bound on their error, there is no such moment. Then each page is a consistent snapshot,
//! but the export as a whole is not: concurrent writes may or may not be included.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use base::{counted, shown};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use sdk::{Cell, Client, Row, Scan, SnapshotHold, Table};
use serde_json::json;
use terminal::{Output, Signals, Stop, to_json};

use super::load::{CELLS_HEADER, KEY_COLUMN};
use super::output::{CellObject, Encoding};

/// Maximum size of the names in the header of CSV, which are kept in memory.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// Export a table's rows to standard output or to a file.
///
/// JSON Lines has one object per column of each row, as printed by `scan --json` and read by `load --format cells`. CSV
/// has a header and one record per row, as read by `load`: an absent column is an empty cell, an empty value is `""`;
/// bytes are written unchanged, also if they are not UTF-8. A file is replaced atomically once it is complete.
#[derive(Debug, Args)]
pub struct Arguments {
    table: String,
    /// Output file; `-` is standard output [default: -].
    file: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Format::Jsonl)]
    format: Format,
}

/// The format of a file of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One JSON object per line for each column of each row.
    Jsonl,
    /// CSV with the header `key,COLUMN,...` and one record per row. The table is scanned twice.
    Csv,
    /// CSV with the header `key,column,version,value` and one record for each column of each row.
    Cells,
}

/// Runs the export.
pub(crate) async fn run(client: &Client, output: Output, arguments: Arguments) -> Result<(), Stop> {
    let Arguments { table, file, format } = arguments;
    // Signals are caught before a temporary file exists: one that ended the process would leave it behind.
    let signals = Signals::catch()?;
    let Some(path) = file.filter(|path| path != Path::new("-")) else {
        let out = io::stdout();
        let sheet = Sheet { is_terminal: out.is_terminal(), ..Sheet::new(format, BufWriter::new(out)) };
        rows(client, &table, sheet, signals, || Stop::Print, "written").await?;
        return Ok(());
    };
    let (rows, cells) = into_file(client, &table, format, &path, signals).await?;
    let object = json!({ "table": table, "rows": rows, "cells": cells, "file": path.to_string_lossy() });
    output.acknowledge(&object, || format!("{} exported to {}", counted(rows, "row"), path.display()));
    Ok(())
}

/// Writes a temporary file in the same directory, and renames it once it is complete and forced: a full disk, a signal
/// or a crash leaves an existing file unchanged. If the path is not a regular file (a pipe, a device), writes to it
/// directly.
async fn into_file(
    client: &Client,
    table: &str,
    format: Format,
    path: &Path,
    signals: Signals,
) -> Result<(u64, u64), Stop> {
    let writing = || Stop::io(format!("write {}", path.display()));
    // A symbolic link is kept, and its target is written.
    let target = fs::canonicalize(path);
    let path = target.as_deref().unwrap_or(path);
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let out = File::options().write(true).open(path).map_err(writing())?;
        return rows(client, table, Sheet::new(format, BufWriter::new(out)), signals, writing, "written").await;
    }
    let beside = beside(path).ok_or_else(|| Stop::invalid(format!("{} is not a file name", path.display())))?;
    let file = File::create(&beside).map_err(writing())?;
    let remains = Remains(&beside);
    let done = format!("written to a temporary file, which was removed; {} is unchanged", path.display());
    let counts = rows(client, table, Sheet::new(format, BufWriter::new(&file)), signals, writing, &done).await?;
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
    mut sheet: Sheet<W>,
    mut signals: Signals,
    failed: impl Fn() -> F,
    done: &str,
) -> Result<(u64, u64), Stop> {
    let stopped = |rows| Stop::Stopped { rows, done: done.to_owned() };
    let source = tokio::select! {
        biased;
        () = signals.next() => return Err(stopped(0)),
        source = Source::of(client, table) => source?,
    };
    if sheet.format == Format::Csv {
        sheet.columns = tokio::select! {
            biased;
            () = signals.next() => return Err(stopped(0)),
            columns = columns(&source) => columns?,
        };
        sheet.check_header()?;
    }
    let (mut rows, mut cells) = (0, 0);
    sheet.begin().map_err(failed())?;
    let scan = source.scan()?;
    // A record of CSV has the whole row.
    let mut scan = if sheet.format == Format::Csv { scan.rows() } else { scan.in_parts().rows() };
    let mut last = None;
    loop {
        let row = tokio::select! {
            biased;
            () = signals.next() => {
                sheet.end().map_err(failed())?;
                return Err(stopped(rows));
            }
            row = scan.next() => row,
        };
        let Some(row) = row.transpose().map_err(|error| source.failed(error))? else { break };
        sheet.check(&row)?;
        sheet.add(table, &row).map_err(failed())?;
        // A row that is too large for a response comes in parts.
        rows += u64::from(last.as_ref() != Some(&row.key));
        last = Some(row.key.clone());
        cells += row.cells.len() as u64;
    }
    sheet.end().map_err(failed())?;
    source.end().await;
    Ok((rows, cells))
}

/// The table, as of one moment if the clocks of the nodes have error bounds.
struct Source {
    table: Table,
    hold: Option<SnapshotHold>,
}

impl Source {
    async fn of(client: &Client, table: &str) -> Result<Self, Stop> {
        let hold = match client.snapshot().await {
            Ok(moment) => Some(moment.hold(table).await?),
            Err(sdk::Error::Precondition(_)) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { table: client.table(table), hold })
    }

    fn scan(&self) -> Result<Scan, Stop> {
        Ok(self.hold.as_ref().map_or_else(|| Ok(self.table.scan()), SnapshotHold::scan)?)
    }

    /// The error of a failed read: that of the hold, if it was lost before.
    fn failed(&self, error: sdk::Error) -> Stop {
        self.hold.as_ref().and_then(|hold| hold.check().err()).unwrap_or(error).into()
    }

    async fn end(self) {
        if let Some(hold) = self.hold {
            hold.release().await;
        }
    }
}

/// The names of a table's columns, in order.
async fn columns(source: &Source) -> Result<Vec<Bytes>, Stop> {
    let (mut columns, mut bytes) = (BTreeSet::new(), 0);
    let mut scan = source.scan()?.names_only().in_parts().rows();
    while let Some(row) = scan.next().await.transpose().map_err(|error| source.failed(error))? {
        for Cell { column, .. } in row.cells {
            if columns.contains(&column) {
                continue;
            }
            bytes += column.len();
            if bytes > HEADER_BYTES_MAX {
                let most = HEADER_BYTES_MAX >> 20;
                return Err(Stop::Refused(format!(
                    "the column names exceed {most} MiB, the limit of a CSV header; use --format jsonl"
                )));
            }
            // A slice would keep its page in memory.
            columns.insert(Bytes::copy_from_slice(&column));
        }
    }
    Ok(columns.into_iter().collect())
}

/// The output.
struct Sheet<W: Write> {
    format: Format,
    /// For [`Format::Csv`]: the columns of the header after the key, in order.
    columns: Vec<Bytes>,
    /// Binary data is refused.
    is_terminal: bool,
    out: W,
}

impl<W: Write> Sheet<W> {
    fn new(format: Format, out: W) -> Self {
        Self { format, columns: Vec::new(), is_terminal: false, out }
    }

    fn begin(&mut self) -> io::Result<()> {
        match self.format {
            Format::Jsonl => Ok(()),
            Format::Csv => {
                let names = self.columns.iter().map(|column| Some(&column[..]));
                write_record(&mut self.out, std::iter::once(Some(KEY_COLUMN.as_bytes())).chain(names))
            }
            Format::Cells => write_record(&mut self.out, CELLS_HEADER.map(|name| Some(name.as_bytes()))),
        }
    }

    /// Fails if the header cannot be printed.
    fn check_header(&self) -> Result<(), Stop> {
        match self.columns.iter().find(|column| self.is_terminal && !is_text(column)) {
            Some(column) => Err(not_printed(&format!("the name of column {}", shown(column)))),
            None => Ok(()),
        }
    }

    /// Fails if the row cannot be written in this format.
    fn check(&self, row: &Row) -> Result<(), Stop> {
        if self.format == Format::Jsonl {
            return Ok(());
        }
        for cell in &row.cells {
            if self.format == Format::Csv && self.columns.binary_search(&cell.column).is_err() {
                let column = shown(&cell.column);
                let reason =
                    format!("column {column} was added during the export, and the header lacks it; export again");
                return Err(sdk::Error::Unavailable(reason).into());
            }
            if self.is_terminal && ![&row.key, &cell.column, &cell.value].into_iter().all(|bytes| is_text(bytes)) {
                let (key, column) = (shown(&row.key), shown(&cell.column));
                return Err(not_printed(&format!("row {key}, column {column}")));
            }
        }
        Ok(())
    }

    fn add(&mut self, table: &str, row: &Row) -> io::Result<()> {
        if self.format == Format::Csv {
            let mut record = vec![None; 1 + self.columns.len()];
            record[0] = Some(&row.key[..]);
            for cell in &row.cells {
                if let Ok(index) = self.columns.binary_search(&cell.column) {
                    record[1 + index] = Some(&cell.value);
                }
            }
            return write_record(&mut self.out, record);
        }
        for cell in &row.cells {
            if self.format == Format::Jsonl {
                writeln!(self.out, "{}", to_json(&CellObject::of(Encoding::Text, table, &row.key, cell)))?;
            } else {
                let version = cell.version.to_string();
                write_record(&mut self.out, [&row.key[..], &cell.column, version.as_bytes(), &cell.value].map(Some))?;
            }
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn not_printed(what: &str) -> Stop {
    Stop::invalid(format!("{what} is binary, which is not printed to a terminal; export to a file, or as jsonl"))
}

/// Writes a record of CSV. The writer of the crate `csv` cannot distinguish an absent cell from an empty value (`""`).
fn write_record<'a>(out: &mut impl Write, cells: impl IntoIterator<Item = Option<&'a [u8]>>) -> io::Result<()> {
    let mut separator: &[u8] = b"";
    for cell in cells {
        out.write_all(separator)?;
        separator = b",";
        let Some(cell) = cell else { continue };
        if !cell.is_empty() && !cell.iter().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r')) {
            out.write_all(cell)?;
            continue;
        }
        out.write_all(b"\"")?;
        for piece in cell.split_inclusive(|byte| *byte == b'"') {
            out.write_all(piece)?;
            // A quote is doubled.
            out.write_all(if piece.ends_with(b"\"") { b"\"" } else { b"" })?;
        }
        out.write_all(b"\"")?;
    }
    out.write_all(b"\n")
}

/// Whether a terminal shows these bytes as they are.
fn is_text(bytes: &[u8]) -> bool {
    let is_shown = |character: char| !character.is_control() || matches!(character, '\n' | '\r' | '\t');
    std::str::from_utf8(bytes).is_ok_and(|text| text.chars().all(is_shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet(format: Format, columns: &[&'static str]) -> Sheet<Vec<u8>> {
        let columns = columns.iter().map(|name| (*name).into()).collect();
        Sheet { columns, ..Sheet::new(format, Vec::new()) }
    }

    fn row(key: &'static str, cells: &[(&'static str, &'static [u8])]) -> Row {
        let cell = |(column, value): &(&'static str, &'static [u8])| {
            sdk::Cell::new(*column, *value, sdk::Version::from_nanos(7))
        };
        Row::new(key, cells.iter().map(cell).collect())
    }

    fn written(mut sheet: Sheet<Vec<u8>>, rows: &[Row]) -> Vec<u8> {
        sheet.begin().expect("writes to memory succeed");
        for row in rows {
            sheet.check(row).expect("a row of this format");
            sheet.add("t", row).expect("writes to memory succeed");
        }
        sheet.out
    }

    #[test]
    fn exports_one_line_per_cell() {
        let rows = [row("k", &[("c", b"a \"b\",\nc"), ("d", b"")])];
        let csv = written(sheet(Format::Cells, &[]), &rows);
        let expected = "key,column,version,value\nk,c,7,\"a \"\"b\"\",\nc\"\nk,d,7,\"\"\n";
        assert_eq!(String::from_utf8_lossy(&csv), expected);
        let json = written(sheet(Format::Jsonl, &[]), &rows);
        assert!(json.starts_with(br#"{"table":"t","key":"k","column":"c","value":"a \"b\",\nc","version":"7"}"#));
    }

    #[test]
    fn exports_one_record_per_row() {
        let rows = [row("a", &[("c", b""), ("e", b"1\r"), ("key", b"\"")]), row("b,", &[("d", b"\xff\0")])];
        let csv = written(sheet(Format::Csv, &["c", "d", "e", "key"]), &rows);
        assert_eq!(csv, b"key,c,d,e,key\na,\"\",,\"1\r\",\"\"\"\"\n\"b,\",,\xff\0,,\n");
        assert_eq!(written(sheet(Format::Csv, &[]), &[]), b"key\n", "an empty table");
        let new = sheet(Format::Csv, &["c"]).check(&rows[1]).expect_err("a column that the header lacks");
        assert!(new.to_string().starts_with("column d was added") && new.exit_status() == 3, "{new}");
    }

    #[test]
    fn terminal_receives_no_binary_csv() {
        let to_terminal = |format| Sheet { is_terminal: true, ..sheet(format, &["c"]) };
        let (text, binary) = (row("k", &[("c", "é\n\t".as_bytes())]), row("k", &[("c", b"\x1b[2J")]));
        for format in [Format::Csv, Format::Cells] {
            assert!(to_terminal(format).check(&text).is_ok());
            assert_eq!(to_terminal(format).check(&binary).expect_err("escape sequences").exit_status(), 2);
        }
        assert!(to_terminal(Format::Csv).check_header().is_ok());
        let named = Sheet { columns: vec!["\x1b[2J".into()], ..to_terminal(Format::Csv) };
        assert_eq!(named.check_header().expect_err("escape sequences").exit_status(), 2);
        assert!(to_terminal(Format::Jsonl).check(&binary).is_ok(), "JSON escapes it");
    }

    #[test]
    fn temporary_file_in_same_directory() {
        let beside = beside(Path::new("/x/t.jsonl")).expect("a name");
        assert_eq!(beside.parent(), Some(Path::new("/x")));
        assert!(beside.file_name().expect("a name").to_string_lossy().starts_with(".t.jsonl."));
    }
}
