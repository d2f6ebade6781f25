//! Jobs: statements that work on rows in many transactions ([`crate::online`]), and their removal after failures.
//!
//! The schema lists each job. The process of a job renews a row of the job, as a heartbeat. When the row has not been
//! renewed for some time, other processes remove the job with its unfinished objects, by a change of the schema. This
//! change also fences a process that was only slow, because its transactions read the version of the schema.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sdk::{Error, Version};
use sql::SqlError;
use sql::ddl;
use sql::ids::TableId;
use sql::rows::Write;
use sql::schema::Schema;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::database::{Database, Databases};
use crate::failure::{Failure, of_client};
use crate::limits::Interrupt;
use crate::transaction::{Source, Tx};

/// The rows of jobs, each with the job's number.
const JOBS: &[u8] = b"\0job";
/// The column that is written with the schema of the job, so that both have the same version.
pub(crate) const STARTED: Bytes = Bytes::from_static(b"started");
/// The column that is renewed.
pub(crate) const RENEWED: Bytes = Bytes::from_static(b"renewed");
/// Interval of the renewals.
const RENEWAL: Duration = Duration::from_secs(3);
/// The time without a renewal after which the process has ended.
const LIFETIME: Duration = Duration::from_secs(20);
/// Timeout of the removal of a job.
const REMOVAL_TIME: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);

/// The row of a job.
pub(crate) fn job_row(id: u64) -> Bytes {
    [JOBS, &id.to_be_bytes()].concat().into()
}

/// A statement in progress that works on the rows of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub database: String,
    pub table: String,
    /// The command, such as `CREATE INDEX`.
    pub command: &'static str,
    /// Number of rows done.
    pub rows: u64,
    /// The time since the beginning.
    pub elapsed: Duration,
}

impl Progress {
    /// Rows done in a second.
    #[must_use]
    pub fn rows_per_second(&self) -> f64 {
        // Exact up to 2^53 rows.
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let rows = self.rows as f64;
        rows / self.elapsed.as_secs_f64().max(0.001)
    }
}

impl Databases {
    /// The statements of this process that work on the rows of tables, such as `CREATE INDEX`.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        let all = self.opened().into_iter();
        all.flat_map(|database| database.jobs.progress(&database.name)).collect()
    }
}

/// The jobs of this process on one database.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    own: Mutex<BTreeMap<u64, Running>>,
    watch: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone, Debug)]
struct Running {
    table: String,
    command: &'static str,
    rows: Arc<AtomicU64>,
    since: Instant,
}

impl Jobs {
    fn own(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Running>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self, database: &str) -> Vec<Progress> {
        let of = |running: &Running| Progress {
            database: database.to_owned(),
            table: running.table.clone(),
            command: running.command,
            rows: running.rows.load(Ordering::Relaxed),
            elapsed: running.since.elapsed(),
        };
        self.own().values().map(of).collect()
    }

    fn has_foreign(&self, schema: &Schema) -> bool {
        let own = self.own();
        schema.jobs().any(|(_, job)| !own.contains_key(&job.id))
    }
}

/// A job of this process. When it is dropped before it is done, the job is removed.
#[derive(Debug)]
pub(crate) struct OwnJob {
    pub(crate) database: Arc<Database>,
    pub(crate) table: TableId,
    pub(crate) id: u64,
    /// The rows that are done.
    pub(crate) rows: Arc<AtomicU64>,
    renewal: Option<JoinHandle<()>>,
}

impl OwnJob {
    /// Registers a job before its schema is committed.
    pub(crate) fn new(database: &Arc<Database>, table: (TableId, &str), command: &'static str, id: u64) -> Self {
        let rows = Arc::new(AtomicU64::new(0));
        let running = Running { table: table.1.to_owned(), command, rows: Arc::clone(&rows), since: Instant::now() };
        database.jobs.own().insert(id, running);
        Self { database: Arc::clone(database), table: table.0, id, rows, renewal: None }
    }

    /// Starts the renewal of its row.
    pub(crate) fn renew(&mut self) {
        self.renewal = Some(tokio::spawn(renew(Arc::clone(&self.database), self.id)));
    }

    /// Removes it with its unfinished objects.
    pub(crate) async fn remove(mut self) {
        let (database, table, id) = (Arc::clone(&self.database), self.table, self.id);
        self.end();
        // A task, so that it completes if the session ends meanwhile.
        let removal = tokio::spawn(async move { remove(&database, table, id).await });
        if let Ok(Err(error)) = removal.await {
            tracing::warn!(database = self.database.name, %error, "an unfinished change of the schema remains for now");
        }
    }

    /// Stops its renewal: it is done, or is being removed. Returns whether it was renewed.
    pub(crate) fn end(&mut self) -> bool {
        let was_renewed = self.renewal.take().inspect(JoinHandle::abort).is_some();
        self.database.jobs.own().remove(&self.id);
        was_renewed
    }
}

impl Drop for OwnJob {
    fn drop(&mut self) {
        if self.end() {
            let (database, table, id) = (Arc::clone(&self.database), self.table, self.id);
            tokio::spawn(async move { remove(&database, table, id).await });
        }
    }
}

async fn renew(database: Arc<Database>, id: u64) {
    let mut version = None;
    loop {
        let before = match version {
            Some(version) => Ok(Some(version)),
            None => database.table.get(job_row(id), RENEWED).await.map(|cell| cell.map(|cell| cell.version)),
        };
        match before {
            // It was removed.
            Ok(None) => return,
            Ok(Some(before)) => {
                let write = database.table.write(job_row(id)).put_if(RENEWED, Bytes::new(), before);
                version = write.send().await.ok();
            }
            Err(error) => tracing::debug!(database = database.name, %error, "a job was not renewed"),
        }
        tokio::time::sleep(RENEWAL).await;
    }
}

/// Removes a job of this process, if it is still there.
async fn remove(database: &Arc<Database>, table: TableId, id: u64) -> Result<(), SqlError> {
    change(database, Removal::One(table, id)).await
}

/// Which jobs are removed.
#[derive(Clone, Copy)]
enum Removal {
    One(TableId, u64),
    Abandoned,
}

impl Removal {
    /// Adds the removal to a transaction. Returns whether there is any.
    async fn run(self, tx: &mut Tx) -> Result<bool, Failure> {
        tx.verify_now().await?;
        let (schema, removed) = match self {
            Self::One(table, id) if tx.schema().jobs().any(|(_, job)| job.id == id) => {
                (ddl::cancel_job(tx.schema(), table, id)?, vec![id])
            }
            Self::One(..) => return Ok(false),
            Self::Abandoned => without_abandoned(tx).await?,
        };
        if removed.is_empty() {
            return Ok(false);
        }
        let last_id = schema.last_id();
        tx.set_schema(schema, last_id);
        tx.write(&removed.into_iter().map(|id| Write::Delete { key: job_row(id) }).collect::<Vec<_>>())?;
        Ok(true)
    }
}

/// Changes the schema, with retries until [`REMOVAL_TIME`].
async fn change(database: &Arc<Database>, removal: Removal) -> Result<(), SqlError> {
    let until = Instant::now() + REMOVAL_TIME;
    loop {
        let source = Source::ReadWrite(database.client.begin_transaction());
        let mut tx = Tx::new(database, source, Interrupt::never());
        let failure = match removal.run(&mut tx).await {
            Ok(true) => tx.commit().await.err(),
            Ok(false) => {
                tx.rollback().await;
                None
            }
            Err(failure) => {
                tx.rollback().await;
                Some(failure)
            }
        };
        match failure {
            None => return Ok(()),
            // The database was dropped.
            Some(Failure::Sql(error)) if error.sqlstate == "3D000" => return Err(error),
            Some(failure) if Instant::now() > until => return Err(failure.into()),
            Some(failure) => tracing::debug!(database = database.name, ?failure, "a job is not removed yet"),
        }
        tokio::time::sleep(crate::jittered(PAUSE)).await;
        if let Err(error) = database.refresh().await {
            tracing::debug!(database = database.name, %error, "the schema cannot be read");
        }
    }
}

/// The schema of a transaction without the jobs of processes that have ended. They are removed with the transaction's
/// changes.
pub(crate) async fn without_abandoned(tx: &Tx) -> Result<(Schema, Vec<u64>), Failure> {
    let mut schema = tx.schema().clone();
    let mut removed = Vec::new();
    let jobs: Vec<_> = schema.jobs().map(|(table, job)| (table.id, job.id)).collect();
    for (table, id) in jobs {
        if tx.database.jobs.own().contains_key(&id) {
            continue;
        }
        let renewed = tx.cell(job_row(id), RENEWED).await?.map_or(Version::ABSENT, |cell| cell.version);
        let (earliest, _) = tx.database.client.clock().await?;
        let age = earliest.as_nanos().saturating_sub(renewed.as_nanos());
        if u128::try_from(age).is_ok_and(|age| age > LIFETIME.as_nanos()) {
            schema = ddl::cancel_job(&schema, table, id)?;
            removed.push(id);
        }
    }
    Ok((schema, removed))
}

/// Removes the jobs of processes that have ended. Returns whether others remain.
async fn remove_abandoned(database: &Arc<Database>) -> Result<bool, Error> {
    database.refresh_only().await?;
    if !database.jobs.has_foreign(&database.catalog().schema) {
        return Ok(false);
    }
    change(database, Removal::Abandoned).await.map_err(|error| Error::Unavailable(error.to_string()))?;
    Ok(database.jobs.has_foreign(&database.catalog().schema))
}

impl Database {
    /// Watches the jobs of other processes, if there are any, until they are done or removed.
    pub(crate) fn watch_jobs(self: &Arc<Self>) {
        if !self.jobs.has_foreign(&self.catalog().schema) {
            return;
        }
        let mut watch = self.jobs.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.as_ref().is_some_and(|watch| !watch.is_finished()) {
            return;
        }
        let database = Arc::clone(self);
        *watch = Some(tokio::spawn(async move {
            loop {
                // Several processes watch the same jobs.
                tokio::time::sleep(crate::jittered(LIFETIME)).await;
                match remove_abandoned(&database).await {
                    Ok(true) => {}
                    Ok(false) | Err(Error::NotFound(_)) => return,
                    Err(error) => tracing::debug!(database = database.name, %error, "jobs cannot be read"),
                }
            }
        }));
    }
}

/// The version of the schema with a job. No transaction wrote keys of the job's new objects before it.
pub(crate) async fn started(database: &Database, id: u64) -> Result<Version, SqlError> {
    let cell = database.table.get(job_row(id), STARTED).await.map_err(of_client)?;
    Ok(cell.map_or(Version::ABSENT, |cell| cell.version))
}
