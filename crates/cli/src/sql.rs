//! `loggos sql`: statements in SQL, for those without a PostgreSQL client. It is a session of its own, so it needs no
//! PostgreSQL endpoint.

use base::budget::ClientBudgets;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::sync::Arc;

use ::sql::direct::OutputColumn;
use ::sql::{SqlError, Value};
use clap::Args;
use postgres::{Activity, DEFAULT_DATABASE, Databases, Response, Session, Status};
use serde_json::{Map, json};
use terminal::{Output, Stop, to_json};

use super::Cluster;

/// Run SQL statements, in PostgreSQL's dialect.
///
/// Statements are given with -e, or read from standard input: each ends with a semicolon at the end of a line. Without
/// BEGIN each is a transaction. The first error ends the command with status 1, and an open transaction is rolled back.
#[derive(Debug, Args)]
pub struct Options {
    /// Statements to run, separated by semicolons. Can be given several times.
    #[arg(short = 'e', long = "execute", value_name = "STATEMENT")]
    statements: Vec<String>,
    /// The database.
    #[arg(short = 'd', long, default_value = DEFAULT_DATABASE)]
    database: String,
}

/// Runs the statements.
pub(crate) async fn run(cluster: &Cluster, output: Output, options: Options) -> Result<(), Stop> {
    let memory = ClientBudgets::new(base::limits::CLIENT_MEMORY_BYTES_DEFAULT).sql;
    let activity = Activity::new().map_err(|error| sdk::Error::Invalid(error.to_string()))?;
    let databases = Arc::new(Databases::new(cluster.client()?, memory, Arc::new(activity)));
    let parameters = [("user", DEFAULT_DATABASE.to_owned()), ("database", options.database)];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value));
    let mut session = Session::begin(databases, parameters).await.map_err(stop)?;
    let done = if options.statements.is_empty() {
        read(&mut session, output).await
    } else {
        let mut done = Ok(());
        for text in &options.statements {
            done = execute(&mut session, output, text).await;
            if done.is_err() {
                break;
            }
        }
        done
    };
    session.close().await;
    done
}

/// Reads statements from standard input. Interactively, errors do not end it.
async fn read(session: &mut Session, output: Output) -> Result<(), Stop> {
    let is_interactive = io::stdin().is_terminal() && !output.is_json();
    let mut text = String::new();
    loop {
        if is_interactive {
            let mark = match session.status() {
                _ if !text.is_empty() => "-",
                Status::Idle => "=",
                Status::Block => "=*",
                Status::Failed => "=!",
            };
            print!("sql{mark}> ");
            io::stdout().flush()?;
        }
        let bytes = io::stdin().lock().read_line(&mut text);
        let is_over = bytes.map_err(|error| Stop::Io { what: "read the statements".into(), error })? == 0;
        if is_over || text.trim_end().ends_with(';') {
            match execute(session, output, &text).await {
                Err(error) if is_interactive => eprintln!("{error}"),
                outcome => outcome?,
            }
            text.clear();
        }
        if is_over {
            return Ok(());
        }
    }
}

async fn execute(session: &mut Session, output: Output, text: &str) -> Result<(), Stop> {
    for prepared in session.parse(text).map_err(stop)? {
        let response = session.execute(&prepared, &[]).await;
        for notice in session.take_notices() {
            output.warn(&notice.message);
        }
        match response.map_err(stop)? {
            Response::Empty => {}
            Response::Done { tag } => output.acknowledge(&json!({ "done": tag }), || tag.clone()),
            Response::Rows { columns, rows, .. } => print_rows(output, &columns, &rows)?,
            Response::Stream { columns, mut stream } => {
                let mut rows = Vec::new();
                while let Some(page) = session.next_rows(&mut stream).await.map_err(stop)? {
                    rows.extend(page);
                }
                print_rows(output, &columns, &rows)?;
            }
            Response::CopyIn { .. } => {
                return Err(stop(session.copy_fail("COPY FROM STDIN needs a PostgreSQL client such as psql").await));
            }
            Response::CopyOut { .. } => {
                let mut out = io::stdout().lock();
                while let Some(lines) = session.copy_next().await.map_err(stop)? {
                    out.write_all(&lines)?;
                }
                session.copy_end();
                out.flush()?;
            }
        }
    }
    Ok(())
}

/// The error with the exit status of its kind: what happened decides what the caller can do.
fn stop(error: SqlError) -> Stop {
    let mut message = format!("{} (SQLSTATE {})", error.message, error.sqlstate);
    for more in [error.detail, error.hint].into_iter().flatten() {
        message.push_str("; ");
        message.push_str(&more);
    }
    match error.sqlstate {
        "08006" => Stop::Cluster(sdk::Error::Unavailable(message)),
        "40003" => Stop::Cluster(sdk::Error::OutcomeUnknown(message)),
        "42601" => Stop::invalid(message),
        _ => Stop::Refused(message),
    }
}

fn print_rows(output: Output, columns: &[OutputColumn], rows: &[Vec<Value>]) -> Result<(), Stop> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    if output.is_json() {
        for row in rows {
            let fields = columns.iter().zip(row).map(|(column, value)| (column.name.clone(), as_json(value)));
            writeln!(out, "{}", to_json(&fields.collect::<Map<_, _>>()))?;
        }
        return Ok(out.flush()?);
    }
    let shown = |value: &Value| value.to_text().unwrap_or_else(|| "NULL".to_owned());
    let heading: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    let lines: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(shown).collect()).collect();
    let width = |column: usize| {
        let of = |line: &Vec<String>| line.get(column).map_or(0, |cell| cell.chars().count());
        std::iter::once(&heading).chain(&lines).map(of).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for line in std::iter::once(&heading).chain(&lines) {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(out.flush()?)
}

/// A value in JSON: numbers that JSON represents exactly, otherwise text.
fn as_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => json!(value),
        Value::Int2(number) => json!(number),
        Value::Int4(number) => json!(number),
        Value::Float8(number) if number.is_finite() => json!(number),
        Value::Jsonb(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        value => json!(value.to_text()),
    }
}
