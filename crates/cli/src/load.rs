//! `loggos columns load`: loads a file of rows into a table.
//!
//! Rows are written while the file is read, `ROWS_IN_FLIGHT` at a time, but never two with the same key. So of
//! several rows with one key the last in the file wins, and repeating an interrupted load gives the same values.
//!
//! A bad row stops the load and is reported with its line; earlier rows are kept. With `--skip-bad`, bad rows are
//! copied to a separate file unchanged.

mod cell_rows;
mod csv_records;
mod csv_rows;
mod flight;
mod json_rows;
mod progress;
mod row;
mod source;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use base::counted;
use clap::{Args, ValueEnum};
use sdk::Client;
use serde_json::json;
use terminal::{LoadedUntil, Output, Signals, Stop};

pub(super) use cell_rows::HEADER as CELLS_HEADER;
pub(super) use csv_rows::KEY_COLUMN;
use flight::{Flight, Landed};
use progress::Progress;
use row::{Bad, Item};
use source::{Rows, Source};

use super::writes::Guard;

/// Rows in flight: enough for group commit, and half of a session's window.
const ROWS_IN_FLIGHT: usize = 512;

/// Load a file of rows into a table, which is created if it does not exist.
///
/// The header of a CSV file names the columns; an empty cell is an absent column, and `""` an empty value. A JSON Lines
/// file has one object per line: strings are stored unchanged, numbers and booleans as JSON text, arrays and objects as
/// compact JSON; null is an absent column. `--format cells` reads the output of `export` and `export --format cells`.
///
/// Each row is one atomic write of its columns. Columns that are absent from the row are not deleted from the table. If
/// a key occurs twice, the later line wins. An interrupted load can be repeated with the same result.
#[derive(Debug, Args)]
pub struct Arguments {
    pub(super) table: String,
    #[command(flatten)]
    pub(super) guard: Guard,
    /// File to load; `-` is standard input.
    file: PathBuf,
    /// Column with the row's key; it is also stored as a column. Required for JSON Lines. Without it, the first column
    /// of a CSV file must be named `key`, as `export --format csv` writes it, and is only the key.
    #[arg(long, value_name = "COLUMN")]
    key: Option<String>,
    /// Skip bad rows and write them to this file, each after a comment with its line number and the reason.
    #[arg(long, value_name = "FILE")]
    skip_bad: Option<PathBuf>,
    /// Format of the file [default: detected from its name and content].
    #[arg(long, value_enum)]
    format: Option<Format>,
}

/// The format of a file of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Comma-separated values with a header.
    Csv,
    /// One JSON object per line for each row.
    Jsonl,
    /// One JSON object per line for each column of each row, the output of `export` and `scan --json`; or CSV with the
    /// header `key,column,version,value`, the output of `export --format cells`.
    Cells,
}

/// Runs the load.
pub(crate) async fn run(client: &Client, output: Output, arguments: Arguments) -> Result<(), Stop> {
    let source = Source::open(&arguments.file, arguments.format)?;
    let progress = Progress::of(&source);
    // It reads the header of CSV, until which a signal ends the process.
    let mut rows = source.rows(arguments.key.as_deref())?;
    let mut signals = Signals::catch()?;
    if arguments.skip_bad.as_ref().is_some_and(|bad| is_same_file(bad, &arguments.file)) {
        return Err(Stop::invalid("--skip-bad must not name the input file, which would be overwritten"));
    }
    let bad_rows = arguments.skip_bad.map(BadRows::create).transpose()?;
    let first = tokio::select! {
        first = rows.recv() => first,
        () = signals.next() => return Err(stopped(0)),
    };
    let is_good = |first: &Result<Item, Stop>| first.as_ref().is_ok_and(|item| item.row.is_ok() || bad_rows.is_some());
    // A load that fails at its first row does not create the table.
    if first.as_ref().is_none_or(is_good) {
        let table = client.table(&*arguments.table);
        table.create().send().await?;
        table.prefer_leader().await;
    }

    let mut load = Load {
        flight: Flight::new(client.table(&*arguments.table), ROWS_IN_FLIGHT),
        table: arguments.table,
        bad_rows,
        progress,
        loaded: 0,
        skipped: 0,
        stop: None,
    };
    load.all(first, rows, &mut signals).await;
    load.finish(output)
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(one).is_some_and(|one| real(other) == Some(one))
}

/// A load in progress.
struct Load {
    table: String,
    flight: Flight,
    bad_rows: Option<BadRows>,
    progress: Progress,
    loaded: u64,
    skipped: u64,
    /// The first reason to stop.
    stop: Option<Reason>,
}

/// Why a load stops early.
enum Reason {
    Bad {
        line: u64,
        reason: String,
    },
    Cluster(sdk::Error),
    Local(Stop),
    /// A signal arrived.
    Signal,
}

fn stopped(rows: u64) -> Stop {
    Stop::Stopped { rows, done: "acknowledged; run it again to load the rest".into() }
}

impl Load {
    /// Reads and writes until the end of the file or a reason to stop. In either case no write is left in flight, except
    /// after a second signal.
    async fn all(&mut self, mut next: Option<Result<Item, Stop>>, mut rows: Rows, signals: &mut Signals) {
        while let Some(item) = next {
            match item {
                Err(stop) => self.stop_for(Reason::Local(stop)),
                Ok(item) => self.one(item).await,
            }
            if self.stop.is_some() {
                break;
            }
            next = tokio::select! {
                // An early signal must not wait for rows that are always ready.
                biased;
                () = signals.next() => {
                    self.stop_for(Reason::Signal);
                    None
                }
                item = rows.recv() => item,
            };
        }
        loop {
            let landed = tokio::select! {
                landed = self.flight.next() => landed,
                () = signals.next() => {
                    self.stop_for(Reason::Signal);
                    None
                }
            };
            let Some(landed) = landed else { break };
            self.land(landed);
        }
    }

    async fn one(&mut self, item: Item) {
        self.progress.read(item.bytes_read);
        let row = match item.row {
            Ok(row) => row,
            Err(reason) => return self.bad(&Bad { line: item.line, reason, text: item.text }),
        };
        while !self.flight.has_room_for(&row.key) {
            let Some(landed) = self.flight.next().await else { break };
            self.land(landed);
        }
        if self.stop.is_none() {
            self.flight.launch(row, item.line, item.text);
        }
    }

    fn land(&mut self, landed: Landed) {
        match landed.outcome {
            Ok(()) => {
                self.loaded += 1;
                self.progress.loaded(self.loaded);
            }
            Err(sdk::Error::Invalid(reason)) => self.bad(&Bad { line: landed.line, reason, text: landed.text }),
            Err(error) => self.stop_for(Reason::Cluster(error)),
        }
    }

    fn bad(&mut self, bad: &Bad) {
        match &mut self.bad_rows {
            None => self.stop_for(Reason::Bad { line: bad.line, reason: bad.reason.clone() }),
            Some(bad_rows) => match bad_rows.add(bad) {
                Ok(()) => self.skipped += 1,
                Err(stop) => self.stop_for(Reason::Local(stop)),
            },
        }
    }

    /// Keeps the first reason, except that an unknown outcome of one row is more important than rows that were not
    /// written, and a missing table explains both.
    fn stop_for(&mut self, reason: Reason) {
        let weight = |reason: &Reason| match reason {
            Reason::Cluster(sdk::Error::NotFound(_)) => 2,
            Reason::Cluster(sdk::Error::OutcomeUnknown(_)) => 1,
            _ => 0,
        };
        let is_heavier = |stop: &Reason| matches!(stop, Reason::Cluster(_)) && weight(&reason) > weight(stop);
        if self.stop.as_ref().is_none_or(is_heavier) {
            self.stop = Some(reason);
        }
    }

    fn finish(mut self, output: Output) -> Result<(), Stop> {
        self.progress.finish();
        let rows = self.loaded;
        let flushed = self.bad_rows.as_mut().map_or(Ok(()), BadRows::flush);
        match self.stop.or_else(|| flushed.err().map(Reason::Local)) {
            Some(Reason::Local(Stop::Invalid { message, at: Some(at) })) => {
                let message = format!("{message}; {} loaded", counted(rows, "row"));
                return Err(Stop::Invalid { message, at: Some(LoadedUntil { rows, ..at }) });
            }
            Some(Reason::Local(Stop::Io { what, error })) => {
                return Err(Stop::Io { what: format!("{what} ({} loaded)", counted(rows, "row")), error });
            }
            Some(Reason::Local(stop)) => return Err(stop),
            Some(Reason::Signal) => return Err(stopped(rows)),
            Some(Reason::Cluster(error)) => return Err(Stop::LoadCutShort { error, rows }),
            Some(Reason::Bad { line, reason }) => {
                let message = format!("line {line}: {reason}; {} loaded", counted(rows, "row"));
                return Err(Stop::Invalid { message, at: Some(LoadedUntil { line, rows }) });
            }
            None => {}
        }
        let (table, skipped) = (&self.table, self.skipped);
        let people = || {
            let bad = if skipped > 0 { format!(", {} skipped", counted(skipped, "bad row")) } else { String::new() };
            format!("{} loaded into {table}{bad}", counted(rows, "row"))
        };
        output.acknowledge(&json!({ "table": table, "rows": rows, "skipped": skipped }), people);
        Ok(())
    }
}

/// The file that collects bad rows.
struct BadRows {
    path: PathBuf,
    file: BufWriter<File>,
}

impl BadRows {
    fn create(path: PathBuf) -> Result<Self, Stop> {
        let file = File::create(&path).map_err(Stop::io(format!("write {}", path.display())))?;
        Ok(Self { path, file: BufWriter::new(file) })
    }

    /// Adds a row unchanged, after a comment line with the reason.
    fn add(&mut self, bad: &Bad) -> Result<(), Stop> {
        let Self { path, file } = self;
        let mut write = || {
            writeln!(file, "# line {}: {}", bad.line, bad.reason)?;
            file.write_all(&bad.text)?;
            if bad.text.ends_with(b"\n") { Ok(()) } else { file.write_all(b"\n") }
        };
        write().map_err(Stop::io(format!("write {}", path.display())))
    }

    fn flush(&mut self) -> Result<(), Stop> {
        self.file.flush().map_err(Stop::io(format!("write {}", self.path.display())))
    }
}
