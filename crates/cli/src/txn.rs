//! `loggos txn`: a shell for transactions, and scripts of them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _, Write as _};
use std::path::PathBuf;

use base::shown;
use bytes::Bytes;
use clap::{Args, Parser, Subcommand};
use sdk::{Client, Row, Transaction, Version};
use serde_json::json;
use terminal::{Output, Stop};

use super::Cluster;
use super::output::{Encoding, EncodingArguments, Shown, print_rows};

/// Read and change rows of any tables atomically.
///
/// Commands are read from FILE, or from standard input: get, put, delete, scan, commit, rollback, help. The first command
/// begins a transaction. Reads see its own changes; others see them once it is committed, all at once. A commit fails with
/// status 1 if anything that the transaction has read was changed meanwhile; then nothing is written. In a script the
/// first error ends the command, and an open transaction is rolled back.
#[derive(Debug, Args)]
pub struct Options {
    /// The script; `-` is standard input.
    file: Option<PathBuf>,
    #[command(flatten)]
    encoding: EncodingArguments,
}

/// A line of the shell.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
#[command(override_usage = "get|put|delete|scan|commit|rollback|help|quit [ARGUMENTS]")]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
enum Command {
    /// Read a row, or a column of it.
    Get { table: String, key: OsString, column: Option<OsString> },
    /// Put a column.
    Put {
        table: String,
        key: OsString,
        column: OsString,
        #[arg(allow_hyphen_values = true)]
        value: OsString,
    },
    /// Delete a row, or a column of it.
    Delete { table: String, key: OsString, column: Option<OsString> },
    /// Read rows in key order, from the first key given, to the second one, exclusive.
    Scan {
        table: String,
        from: Option<OsString>,
        to: Option<OsString>,
        /// Maximum number of rows; 0: all.
        #[arg(long, default_value_t = 0)]
        limit: u64,
    },
    /// Commit the transaction, and print its timestamp.
    Commit,
    /// End the transaction without any change.
    Rollback,
    /// List the commands.
    Help,
    /// Roll back, and leave.
    #[command(alias = "exit")]
    Quit,
}

const HELP: &str = "\
get TABLE KEY [COLUMN]                    read a row, or a column of it
put TABLE KEY COLUMN VALUE                put a column
delete TABLE KEY [COLUMN]                 delete a row, or a column of it
scan TABLE [FROM [TO]] [--limit N]        read rows in key order; TO is excluded
commit                                    write all changes, or none
rollback                                  forget all changes
quit                                      roll back, and leave
Words are separated by spaces; quotes and backslashes work as in a shell. # begins a comment.";

/// The transaction of a shell or script.
struct Session<'a> {
    client: &'a Client,
    output: Output,
    encoding: Encoding,
    open: Option<Transaction>,
    /// Whether a heading was printed for the rows.
    is_interactive: bool,
}

/// Whether to read another line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Line,
    End,
}

/// Runs the shell, or a script.
pub(crate) async fn run(cluster: &Cluster, output: Output, options: Options) -> Result<(), Stop> {
    let client = cluster.client()?;
    let Options { file, encoding } = options;
    let encoding = encoding.encoding();
    let is_interactive = file.is_none() && io::stdin().is_terminal() && !output.is_json();
    let mut session = Session { client: &client, output, encoding, open: None, is_interactive };
    let mut input: Box<dyn BufRead> = match file.filter(|file| file.as_os_str() != "-") {
        Some(file) => {
            let opened = File::open(&file);
            let what = || format!("open {}", file.display());
            Box::new(BufReader::new(opened.map_err(|error| Stop::Io { what: what(), error })?))
        }
        None => Box::new(io::stdin().lock()),
    };
    let mut number = 0;
    loop {
        session.prompt()?;
        let mut line = String::new();
        number += 1;
        let bytes = input.read_line(&mut line).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => Stop::invalid(format!("line {number} is not UTF-8")),
            _ => Stop::Io { what: "read the commands".into(), error },
        })?;
        if bytes == 0 {
            break;
        }
        match session.execute(&line).await {
            Ok(Next::Line) => {}
            Ok(Next::End) => break,
            Err(error) if is_interactive => eprintln!("{error}"),
            Err(error) => {
                session.rollback().await;
                return Err(in_line(number, error));
            }
        }
    }
    session.end().await
}

/// An error of a script names its line, if the script is wrong.
fn in_line(number: usize, error: Stop) -> Stop {
    match error {
        Stop::Invalid { message, at: None } => Stop::invalid(format!("line {number}: {message}")),
        error => error,
    }
}

impl Session<'_> {
    fn prompt(&self) -> Result<(), Stop> {
        if !self.is_interactive {
            return Ok(());
        }
        let prompt = match &self.open {
            None => "txn> ",
            Some(open) if open.is_read_only() => "txn (reading)> ",
            Some(_) => "txn (changed)> ",
        };
        let mut out = io::stdout().lock();
        out.write_all(prompt.as_bytes())?;
        Ok(out.flush()?)
    }

    async fn execute(&mut self, line: &str) -> Result<Next, Stop> {
        // Lines may end as on Windows.
        let line = line.trim_end_matches('\n').trim_end_matches('\r');
        let words = shlex::split(line).ok_or_else(|| Stop::invalid("a quote or a backslash at the end of the line"))?;
        if words.is_empty() {
            return Ok(Next::Line);
        }
        let command = Line::try_parse_from(words).map_err(|error| {
            // The message up to the usage, on one line.
            let text = error.to_string();
            let message: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            let message = message.join(" ");
            Stop::invalid(format!("{}; `help` lists the commands", message.trim_start_matches("error: ")))
        })?;
        match command.command {
            Command::Get { table, key, column } => self.get(table, key, column).await?,
            Command::Put { table, key, column, value } => {
                let (key, column, value) = (self.bytes(key)?, self.bytes(column)?, self.bytes(value)?);
                self.open().put(table, key, column, value)?;
            }
            Command::Delete { table, key, column } => {
                let key = self.bytes(key)?;
                match column {
                    Some(column) => {
                        let column = self.bytes(column)?;
                        self.open().delete(table, key, column)?;
                    }
                    None => self.open().delete_row(table, key)?,
                }
            }
            Command::Scan { table, from, to, limit } => {
                let from = from.map_or(Ok(Bytes::new()), |from| self.bytes(from))?;
                let scan = self.open().scan(table.clone());
                let scan = if limit == 0 { scan } else { scan.limit(limit) };
                let scan = match to {
                    Some(to) => scan.range(from..self.bytes(to)?),
                    None => scan.range(from..),
                };
                let rows = scan.all().await?;
                print_rows(self.output, self.encoding, &table, &rows, self.shown())?;
            }
            Command::Commit => self.commit().await?,
            Command::Rollback => self.rollback().await,
            Command::Help => println!("{HELP}"),
            Command::Quit => {
                self.rollback().await;
                return Ok(Next::End);
            }
        }
        Ok(Next::Line)
    }

    fn shown(&self) -> Shown {
        Shown { has_heading: !self.is_interactive, names_only: false }
    }

    fn bytes(&self, argument: OsString) -> Result<Bytes, Stop> {
        self.encoding.bytes(argument)
    }

    fn open(&mut self) -> Transaction {
        self.open.get_or_insert_with(|| self.client.begin_transaction()).clone()
    }

    async fn get(&mut self, table: String, key: OsString, column: Option<OsString>) -> Result<(), Stop> {
        let key = self.bytes(key)?;
        let transaction = self.open();
        let row = match column {
            Some(column) => {
                let column = self.bytes(column)?;
                Row::new(key.clone(), transaction.get(table.clone(), key, column).await?.into_iter().collect())
            }
            None => transaction.row(table.clone(), key).await?,
        };
        if row.cells.is_empty() && !self.output.is_json() {
            // Not an error: the transaction goes on, and depends on it.
            println!("row \"{}\" of table {table} has no such column", shown(&row.key));
        }
        print_rows(self.output, self.encoding, &table, &[row], self.shown())
    }

    async fn commit(&mut self) -> Result<(), Stop> {
        let Some(open) = self.open.take() else {
            return Err(Stop::Refused("there is no transaction to commit".to_owned()));
        };
        let done = open.commit().await?;
        let (timestamp, uncertainty, wait) = (done.timestamp, done.uncertainty, done.commit_wait);
        if timestamp == Version::ABSENT {
            let object = json!({ "committed": true, "timestamp": null });
            self.output.acknowledge(&object, || "committed; it has changed nothing".to_owned());
            return Ok(());
        }
        let object = json!({
            "committed": true,
            "timestamp": timestamp.to_string(),
            "uncertainty_ns": u64::try_from(uncertainty.as_nanos()).unwrap_or(u64::MAX),
            "commit_wait_ns": u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX),
        });
        self.output.acknowledge(&object, || {
            format!("committed at {timestamp}, uncertainty {uncertainty:?}, commit wait {wait:?}")
        });
        Ok(())
    }

    async fn rollback(&mut self) {
        if let Some(open) = self.open.take() {
            open.rollback().await;
        }
    }

    /// Ends the session. A script must not lose changes silently.
    async fn end(mut self) -> Result<(), Stop> {
        let is_changed = self.open.as_ref().is_some_and(|open| !open.is_read_only());
        self.rollback().await;
        if is_changed && !self.is_interactive {
            return Err(Stop::Refused("the commands end without commit or rollback: nothing was written".to_owned()));
        }
        Ok(())
    }
}
