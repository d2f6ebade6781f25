//! Adds keys, indexes and constraints to tables with many rows, in many transactions, while others use them.
//!
//! 1. A version of the schema lists them as a job ([`sql::schema::Job`]): writes maintain the index or the key, and
//!    enforce the constraint. Every transaction validates the version of the schema at its commit, so all later commits
//!    do this.
//! 2. Existing rows are added or checked, in pages ([`crate::fill`]).
//! 3. A version of the schema makes the objects public.
//!
//! After an error, or if the client cancels the statement, a version of the schema removes them. If the process ends,
//! another one does so ([`crate::jobs`]).

use std::sync::Arc;

use bytes::Bytes;
use sql::SqlError;
use sql::ddl::{self, Work};
use sql::ids::TableId;
use sql::rows::Write;
use sql::statement::{AlterTable, Definition};
use tokio::time::Instant;

use crate::database::Database;
use crate::failure::{Failure, of_client};
use crate::fill;
use crate::jobs::{OwnJob, RENEWED, STARTED, job_row, without_abandoned};
use crate::limits::Interrupt;
use crate::session::{ATTEMPTS_TIME, PAUSE, PAUSE_MAX};
use crate::transaction::{Source, Tx};
use crate::work::RowWork;

/// Tables with fewer rows are changed in one transaction.
const ROWS_MIN: usize = base::limits::SCAN_ROWS_MAX;

/// Whether a definition can be undone completely while others use the table.
fn is_reversible(definition: &Definition) -> bool {
    match definition {
        Definition::CreateIndex(_) => true,
        Definition::AlterTable { changes, .. } => changes
            .iter()
            .all(|change| matches!(change, AlterTable::AddConstraint(_) | AlterTable::SetNotNull(_, true))),
        _ => false,
    }
}

/// Executes a definition that works on the rows of a table with many of them. Returns its notices; `None` if the
/// definition is to be executed in one transaction.
pub(crate) async fn define(
    database: &Arc<Database>,
    definition: &Definition,
    interrupt: &Interrupt,
) -> Result<Option<Vec<String>>, SqlError> {
    if !is_reversible(definition) {
        return Ok(None);
    }
    let begun = attempts(database, interrupt, &Step::Begin(definition)).await?;
    let Some((mut job, notices)) = begun else { return Ok(None) };
    job.renew();
    let outcome = async {
        fill::run(&job, interrupt).await?;
        attempts(database, interrupt, &Step::Finish(job.table, job.id)).await
    };
    let outcome = outcome.await;
    match outcome {
        Ok(_) => {
            job.end();
            Ok(Some(notices))
        }
        Err(error) => {
            job.remove().await;
            Err(error)
        }
    }
}

/// A change of the schema.
enum Step<'a> {
    Begin(&'a Definition),
    Finish(TableId, u64),
}

/// A job that has begun, and the notices of its statement.
type Begun = (OwnJob, Vec<String>);

impl Step<'_> {
    /// Adds the change to a transaction.
    async fn run(&self, tx: &mut Tx) -> Result<Changed, Failure> {
        tx.verify_now().await?;
        match self {
            Step::Begin(definition) => begin(tx, definition).await,
            Step::Finish(table, job) => finish(tx, *table, *job).map(|()| Changed::Yes(None)),
        }
    }
}

enum Changed {
    No,
    Yes(Option<Begun>),
}

/// Changes the schema, in as many attempts as it takes.
async fn attempts(database: &Arc<Database>, interrupt: &Interrupt, step: &Step<'_>) -> Result<Option<Begun>, SqlError> {
    let until = Instant::now() + ATTEMPTS_TIME;
    let (mut pause, mut earlier) = (PAUSE, None);
    database.refresh().await.map_err(of_client)?;
    loop {
        let begin = || database.client.begin_transaction_within(ATTEMPTS_TIME);
        let source = Source::ReadWrite(earlier.take().unwrap_or_else(begin));
        let mut tx = Tx::new(database, source, interrupt.clone());
        // It is short, and a read that is interrupted would leave a lock of the schema.
        let failure = match step.run(&mut tx).await {
            Ok(Changed::Yes(begun)) => {
                let retry = tx.for_retry();
                match tx.commit().await {
                    Ok(_) => return Ok(begun),
                    Err(failure) => {
                        earlier = retry.map(|tx| tx.again());
                        failure
                    }
                }
            }
            Ok(Changed::No) => {
                tx.rollback().await;
                return Ok(None);
            }
            Err(failure @ (Failure::Conflict(_) | Failure::Stale)) => {
                earlier = tx.again();
                failure
            }
            Err(failure) => {
                tx.rollback().await;
                failure
            }
        };
        match failure {
            Failure::Stale if Instant::now() < until => {}
            Failure::Conflict(_) if Instant::now() + pause < until => {
                interrupt.run(tokio::time::sleep(crate::jittered(pause))).await?;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            failure => return Err(failure.into()),
        }
        database.refresh().await.map_err(of_client)?;
    }
}

/// The version of the schema with the job, unless the definition needs none.
async fn begin(tx: &mut Tx, definition: &Definition) -> Result<Changed, Failure> {
    let database = Arc::clone(&tx.database);
    let (before, removed) = without_abandoned(tx).await?;
    let change = ddl::apply(&before, definition)?;
    let Some(table) = change.work.first().map(Work::table) else { return Ok(Changed::No) };
    if !has_many_rows(&database, &RowWork::new(&before, table, Vec::new())?).await? {
        return Ok(Changed::No);
    }
    let wanted = change.schema.last_id() - before.last_id();
    let first_id = if wanted > 0 { tx.reserve_ids(wanted).await? } else { before.last_id() };
    let change = ddl::apply(&before.reserve_ids(first_id), definition)?;
    let id = crate::random();
    let schema = ddl::begin_job(&change.schema, table, id, &change.work)?;
    let name = schema.table(table).map_or("", |table| table.name.as_str());
    let command = match definition {
        Definition::CreateIndex(_) => "CREATE INDEX",
        _ => "ALTER TABLE",
    };
    let job = OwnJob::new(&database, (table, name), command, id);
    tx.set_schema(schema, first_id);
    let mut writes: Vec<Write> = removed.into_iter().map(|id| Write::Delete { key: job_row(id) }).collect();
    let cells = [STARTED, RENEWED].map(|cell| (cell, Some(Bytes::new())));
    writes.push(Write::Put { key: job_row(id), cells: cells.into() });
    tx.write(&writes)?;
    Ok(Changed::Yes(Some((job, change.notices))))
}

async fn has_many_rows(database: &Database, work: &RowWork) -> Result<bool, Failure> {
    let range = work.range()?;
    let scan = database.table.scan().range(range.start..range.end).names_only().limit(ROWS_MIN as u64);
    let (mut rows, mut count) = (scan.rows(), 0);
    while let Some(row) = rows.next().await {
        row?;
        count += 1;
    }
    Ok(count >= ROWS_MIN)
}

/// The version of the schema in which the job's objects are public.
fn finish(tx: &mut Tx, table: TableId, job: u64) -> Result<(), Failure> {
    let schema = ddl::finish_job(tx.schema(), table, job)?;
    let last_id = schema.last_id();
    tx.set_schema(schema, last_id);
    tx.write(&[Write::Delete { key: job_row(job) }])
}
