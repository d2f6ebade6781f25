//! The work of a job on the rows of a table, in pages: it adds them to an index or a new key, or checks them.
//!
//! Each page is a separate transaction, which reads the rows of a range of keys and writes their entries. If another
//! transaction changes one of the rows, one of the two is repeated. Several pages of disjoint ranges are in progress at
//! once; a scan that reads no values divides the table into these ranges.
//!
//! A key of a unique index must not exist yet. The page does not read it: no transaction wrote such keys before the
//! job, so it suffices that the commit fails if the key was changed since then. After such a failure the key is read,
//! which finds a row with the same key.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sdk::{Error, Row, Transaction, Version};
use sql::ids::TableId;
use sql::keys::KeyRange;
use sql::rows::{Absent, StoredRow};
use sql::{SqlError, sqlstate};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::database::{Catalog, Database, SCHEMA_ROW, TOKEN, apply};
use crate::failure::of_client;
use crate::jobs::{OwnJob, started};
use crate::limits::Interrupt;
use crate::transaction::{now, stored};
use crate::work::RowWork;

const PAGES_MAX: usize = 6;
/// Rows of a page, unless each has many entries.
const PAGE_ROWS: usize = 1_000;
/// Bytes of the rows of a page.
const PAGE_BYTES: usize = 1 << 20;
/// Entries of a page: fewer than the writes of a transaction.
const PAGE_ENTRIES: usize = base::limits::TRANSACTION_WRITES_MAX / 2;
/// Keys that are read at once.
const READS_MAX: usize = 64;
/// The time after which a page is not tried again.
const PAGE_TIME: Duration = Duration::from_secs(60);
/// Timeout of pages in progress after an interruption. They are not dropped, because their reads have locks.
const STOP_TIME: Duration = Duration::from_secs(5);
/// The pauses between attempts.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Why a page ended.
enum Stop {
    /// Another attempt may succeed.
    Again(Error),
    /// The schema has changed.
    Stale,
    Failed(SqlError),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error {
            Error::Aborted(_)
            | Error::NoSpace(_)
            | Error::Unavailable(_)
            | Error::OutcomeUnknown(_)
            | Error::CommitUnknown { .. } => Self::Again(error),
            error => Self::Failed(of_client(error)),
        }
    }
}

impl From<SqlError> for Stop {
    fn from(error: SqlError) -> Self {
        Self::Failed(error)
    }
}

/// The work by one version of the schema.
#[derive(Debug)]
struct Plan {
    catalog: Arc<Catalog>,
    work: RowWork,
}

#[derive(Debug)]
struct Filling {
    database: Arc<Database>,
    rows: Arc<AtomicU64>,
    table: TableId,
    job: u64,
    plan: Mutex<Arc<Plan>>,
    /// No transaction wrote an entry until this moment.
    since: Version,
    /// The rows were replaced.
    is_truncated: AtomicBool,
    /// No further page is begun.
    is_stopped: AtomicBool,
}

/// Does the work of a job.
///
/// # Errors
/// A row violates a constraint, or two rows have the same key. 57014: it was interrupted.
pub(crate) async fn run(job: &OwnJob, interrupt: &Interrupt) -> Result<(), SqlError> {
    let database = &job.database;
    let since = started(database, job.id).await?;
    // A hold keeps old versions, so that a commit can check whether a key was changed since that moment. Without one,
    // the keys are read.
    let hold = database.client.snapshot_at(since).hold(database.table()).await;
    if let Err(error) = &hold {
        tracing::debug!(database = database.name, %error, "old versions are not kept");
    }
    loop {
        let plan = match plan(database, job.table, job.id) {
            Ok(plan) => plan,
            Err(_) => {
                database.refresh().await.map_err(of_client)?;
                plan(database, job.table, job.id)?
            }
        };
        let range = plan.work.range()?;
        job.rows.store(0, Ordering::Relaxed);
        let filling = Arc::new(Filling {
            database: Arc::clone(database),
            rows: Arc::clone(&job.rows),
            table: job.table,
            job: job.id,
            plan: Mutex::new(Arc::new(plan)),
            since,
            is_truncated: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        });
        fill(&filling, range, interrupt).await?;
        if !filling.is_truncated.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

fn plan(database: &Database, table: TableId, job: u64) -> Result<Plan, SqlError> {
    let catalog = database.catalog();
    let mut jobs = catalog.schema.jobs().filter(|(of, candidate)| of.id == table && candidate.id == job);
    let Some((_, found)) = jobs.next() else {
        let message = "the objects that the statement adds were dropped";
        return Err(SqlError::new(sqlstate::UNDEFINED_OBJECT, message));
    };
    let work = RowWork::new(&catalog.schema, table, found.work.clone())?;
    drop(jobs);
    Ok(Plan { work, catalog })
}

/// Divides the table into ranges, and executes the pages.
async fn fill(filling: &Arc<Filling>, range: KeyRange, interrupt: &Interrupt) -> Result<(), SqlError> {
    let (send, receive) = mpsc::channel(PAGES_MAX);
    let receive = Arc::new(tokio::sync::Mutex::new(receive));
    let mut workers: JoinSet<Result<(), SqlError>> = JoinSet::new();
    for _ in 0..PAGES_MAX {
        let (filling, receive) = (Arc::clone(filling), Arc::clone(&receive));
        workers.spawn(async move {
            loop {
                let next = receive.lock().await.recv().await;
                let Some(next) = next else { return Ok(()) };
                filling.range(next).await?;
            }
        });
    }
    drop(receive);
    let work = async {
        let mut outcome = Ok(());
        while let Some(done) = workers.join_next().await {
            let interrupted = |_| Err(SqlError::new(sqlstate::INTERNAL_ERROR, "a page was interrupted"));
            let done = done.unwrap_or_else(interrupted);
            if done.is_err() {
                filling.is_stopped.store(true, Ordering::Relaxed);
            }
            outcome = outcome.and(done);
        }
        outcome
    };
    let all = async {
        let (divided, done) = tokio::join!(filling.divide(range, send), work);
        done.and(divided)
    };
    tokio::pin!(all);
    tokio::select! {
        biased;
        done = &mut all => done,
        interrupted = interrupt.run(std::future::pending()) => {
            filling.is_stopped.store(true, Ordering::Relaxed);
            _ = tokio::time::timeout(STOP_TIME, all).await;
            interrupted
        }
    }
}

impl Filling {
    /// Sends ranges of about the same number of rows.
    async fn divide(&self, range: KeyRange, send: mpsc::Sender<KeyRange>) -> Result<(), SqlError> {
        let rows = rows_max(&self.plan().work);
        let KeyRange { mut start, end } = range;
        let mut until = Instant::now() + PAGE_TIME;
        loop {
            let scan = self.database.table.scan().range(start.clone()..end.clone()).names_only().page_rows(rows);
            let next = match scan.pages().next().await {
                Some(Ok(page)) => page.continuation,
                Some(Err(error)) => {
                    if Instant::now() > until {
                        return Err(of_client(error));
                    }
                    tokio::time::sleep(PAUSE_MAX).await;
                    continue;
                }
                None => None,
            };
            until = Instant::now() + PAGE_TIME;
            // A continuation of scans is the key where the next page starts.
            let to = next.filter(|next| *next > start && *next < end);
            let page = KeyRange { start: start.clone(), end: to.clone().unwrap_or_else(|| end.clone()) };
            if send.send(page).await.is_err() || self.is_over() {
                return Ok(());
            }
            match to {
                Some(to) => start = to,
                None => return Ok(()),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.is_truncated.load(Ordering::Relaxed) || self.is_stopped.load(Ordering::Relaxed)
    }

    fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.plan.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Executes the pages of a range.
    async fn range(&self, mut range: KeyRange) -> Result<(), SqlError> {
        loop {
            if self.is_over() {
                return Ok(());
            }
            let (rows, next) = self.page(&range).await?;
            self.rows.fetch_add(rows, Ordering::Relaxed);
            match next {
                Some(next) => range.start = next,
                None => return Ok(()),
            }
        }
    }

    /// Executes a page at the start of a range. Returns the number of rows, and the start of the next page.
    async fn page(&self, range: &KeyRange) -> Result<(u64, Option<Bytes>), SqlError> {
        let until = Instant::now() + PAGE_TIME;
        let (mut pause, mut reads_keys) = (PAUSE, false);
        let mut tx = self.database.client.begin_transaction_within(PAGE_TIME);
        let mut open = Open(None);
        loop {
            if self.is_over() {
                return Ok((0, None));
            }
            let plan = self.plan();
            let attempt = if plan.work.is_read_only() {
                self.check(&plan, range).await
            } else {
                let again = tx.clone();
                open.0 = Some(again.clone());
                let attempt = self.attempt(&plan, tx, range, reads_keys).await;
                tx = match attempt {
                    Err(Stop::Again(Error::Aborted(_)) | Stop::Stale) => again.again(),
                    _ => self.database.client.begin_transaction_within(PAGE_TIME),
                };
                attempt
            };
            match attempt {
                Ok(done) => {
                    open.0 = None;
                    return Ok(done);
                }
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Stale) => {
                    self.database.refresh().await.map_err(of_client)?;
                    self.follow(&plan)?;
                }
                Err(Stop::Again(error)) if Instant::now() + pause > until => return Err(of_client(error)),
                Err(Stop::Again(_)) => {
                    reads_keys = true;
                    tokio::time::sleep(crate::jittered(pause)).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Adopts the newest version of the schema.
    fn follow(&self, before: &Plan) -> Result<(), SqlError> {
        let next = plan(&self.database, self.table, self.job)?;
        let is_same = next.work.table.storage() == before.work.table.storage() && next.work.work == before.work.work;
        if !is_same {
            self.is_truncated.store(true, Ordering::Relaxed);
        }
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        Ok(())
    }

    /// Adds the rows of a page.
    async fn attempt(
        &self,
        plan: &Plan,
        tx: Transaction,
        range: &KeyRange,
        reads_keys: bool,
    ) -> Result<(u64, Option<Bytes>), Stop> {
        let table = self.database.table();
        let scan = tx.scan(table).range(range.start.clone()..range.end.clone()).page_rows(rows_max(&plan.work));
        let page = async {
            let (mut page, mut rows) = (Page::of(&plan.work), scan.rows());
            while let Some(row) = rows.next().await {
                if page.add(row?) {
                    break;
                }
            }
            Ok::<_, Error>(page)
        };
        let token = tx.get(table, SCHEMA_ROW, TOKEN);
        let (token, page) = tokio::try_join!(token, page)?;
        if token.map(|cell| cell.value).unwrap_or_default() != plan.catalog.token {
            tx.rollback().await;
            return Err(Stop::Stale);
        }
        let needed = match plan.work.of(&page.rows, now()) {
            Ok(needed) => needed,
            Err(error) => return Err(violation(tx, error).await),
        };
        if reads_keys {
            if let Some(error) = self.find_duplicate(&tx, needed.absent).await? {
                return Err(violation(tx, error).await);
            }
        } else {
            let mut keys = needed.absent.into_iter().map(|absent| absent.key);
            keys.try_for_each(|key| tx.expect_unchanged(table, key, self.since))?;
        }
        needed.writes.iter().try_for_each(|write| apply(&tx, table, write))?;
        tx.commit().await?;
        Ok((needed.rows, page.next))
    }

    /// Reads the keys of the entries. Returns the error if one belongs to another row.
    async fn find_duplicate(&self, tx: &Transaction, absent: Vec<Absent>) -> Result<Option<SqlError>, Stop> {
        let mut running = JoinSet::new();
        let mut absent = absent.into_iter();
        loop {
            while running.len() < READS_MAX {
                let Some(absent) = absent.next() else { break };
                let (tx, table) = (tx.clone(), self.database.table().to_owned());
                running.spawn(async move {
                    let found = tx.row(table, absent.key.clone()).await?;
                    Ok::<_, Error>(absent.verify(stored(found).as_ref()).err())
                });
            }
            match running.join_next().await {
                None => return Ok(None),
                Some(Err(_)) => {
                    return Err(SqlError::new(sqlstate::INTERNAL_ERROR, "a read was interrupted").into());
                }
                Some(Ok(outcome)) => {
                    if let Some(error) = outcome? {
                        return Ok(Some(error));
                    }
                }
            }
        }
    }

    /// Checks the rows of a page, as of one moment. Later changes satisfy the constraint.
    async fn check(&self, plan: &Plan, range: &KeyRange) -> Result<(u64, Option<Bytes>), Stop> {
        let table = self.database.table();
        let snapshot = self.database.client.snapshot().await?;
        let token = snapshot.get(table, SCHEMA_ROW, TOKEN).await?;
        if token.map(|cell| cell.value).unwrap_or_default() != plan.catalog.token {
            return Err(Stop::Stale);
        }
        let scan = snapshot.scan(table).range(range.start.clone()..range.end.clone()).page_rows(rows_max(&plan.work));
        let (mut page, mut rows) = (Page::of(&plan.work), scan.rows());
        while let Some(row) = rows.next().await {
            if page.add(row?) {
                break;
            }
        }
        Ok((plan.work.of(&page.rows, now())?.rows, page.next))
    }
}

/// A transaction in progress. It is rolled back when dropped, so that others need not wait until its locks expire.
struct Open(Option<Transaction>);

impl Drop for Open {
    fn drop(&mut self) {
        if let (Some(tx), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(tx.rollback());
        }
    }
}

/// The rows of a page.
#[derive(Debug, Default)]
struct Page {
    rows: Vec<StoredRow>,
    bytes: usize,
    rows_max: usize,
    bytes_max: usize,
    /// The start of the next page, if this one is full.
    next: Option<Bytes>,
}

impl Page {
    fn of(work: &RowWork) -> Self {
        let bytes_max = PAGE_BYTES.min(4 * PAGE_BYTES / work.work.len().max(1));
        Self { rows_max: rows_max(work) as usize, bytes_max, ..Self::default() }
    }

    /// Adds a row. Returns whether the page is full.
    fn add(&mut self, row: Row) -> bool {
        let after = Bytes::from([&row.key[..], &[0]].concat());
        if let Some(row) = stored(row) {
            self.bytes += row.cells.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
            self.rows.push(row);
        }
        let is_full = self.rows.len() >= self.rows_max || self.bytes >= self.bytes_max;
        self.next = is_full.then_some(after);
        is_full
    }
}

/// Rows of a page.
fn rows_max(work: &RowWork) -> u32 {
    let rows = PAGE_ROWS.min(PAGE_ENTRIES / work.work.len().max(1)).max(1);
    u32::try_from(rows).unwrap_or(1)
}

/// Errors found in the rows are valid only if the reads are of one moment: if the transaction can be committed.
async fn violation(tx: Transaction, error: SqlError) -> Stop {
    match tx.commit().await {
        Ok(_) => Stop::Failed(error),
        Err(failed) => failed.into(),
    }
}
