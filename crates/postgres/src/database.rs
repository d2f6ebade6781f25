//! Databases: each is a Loggos table named `sql.NAME`.
//!
//! The schema is in a reserved row that sorts before all data. Every transaction reads this row, so a change of the
//! schema conflicts with concurrent transactions. Another reserved row counts the identifiers of tables and indexes.
//! Each identifier is handed out once, even if its transaction is not committed. So rows of a new table can be written
//! before the commit of its transaction.
//!
//! A database that is dropped and created again hands out the same identifiers. So the first reservation stores a
//! random number, the *incarnation*. All writes and deletions outside of a transaction on the schema verify it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use base::budget::ByteBudget;
use base::limits::SQL_PREFIX;
use base::limits::sql::SESSION_BYTES;
use bytes::Bytes;
use sdk::{Client, Error, Replication, Table};
use sql::cells;
pub(crate) use sql::fence::{Catalog, SCHEMA, SCHEMA_ROW, TOKEN};
use sql::keys::{self, KeyRange};
use sql::rows::Write;
use sql::schema::{Garbage, Sequence};
use sql::{SqlError, Value, sqlstate};

use crate::activity::Activity;
use crate::failure::{Failure, of_client, of_preparation};
use crate::jobs::Jobs;
use crate::sizes::Sizes;

/// The database that always exists.
pub const DEFAULT_DATABASE: &str = "postgres";
/// The row of the greatest identifier that was handed out.
const IDS_ROW: Bytes = Bytes::from_static(b"\0ids");
const LAST: Bytes = Bytes::from_static(b"last");
/// The row of the incarnation; absent until the first identifier is handed out.
const INCARNATION_ROW: Bytes = Bytes::from_static(b"\0incarnation");
const INCARNATION: Bytes = Bytes::from_static(b"id");
/// Attempts of a write outside of a statement's transaction while the outcome is unknown.
const WRITE_ATTEMPTS: u32 = 3;
/// The rows that mark identifiers with unseen rows: each is deleted when the rows become visible, or are deleted.
const MARKS: &[u8] = b"\0unseen";
const MARKED_AT: Bytes = Bytes::from_static(b"at");
/// The age in microseconds after which a mark is considered abandoned by its process. If its transaction is still in
/// progress, because clocks differ, the commit fails.
const MARK_AGE_MAX: i64 = 2 * 3_600 * 1_000_000;
/// Rows and bytes of one write outside of a statement's transaction.
const BULK_ROWS: usize = 4_000;
const BULK_BYTES: usize = 4 << 20;
/// Rows that are deleted at once.
const DELETED_ROWS: u64 = 1_000;
/// Pause between questions for the leaders of ranges.
const LEADERS_PAUSE: Duration = Duration::from_secs(5);
/// Pause after data of dropped tables could not be deleted.
const COLLECT_PAUSE: Duration = Duration::from_secs(5);
const COLLECT_ATTEMPTS: u32 = 5;

/// The databases of a cluster.
#[derive(Debug)]
pub struct Databases {
    client: Client,
    memory: ByteBudget,
    activity: Arc<Activity>,
    open: Mutex<HashMap<String, Arc<Database>>>,
}

#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) name: String,
    pub(crate) client: Client,
    pub(crate) table: Table,
    /// The newest version of the schema that this process has read.
    catalog: Mutex<Arc<Catalog>>,
    /// Data of dropped objects that this process has deleted.
    collected: Mutex<BTreeSet<Vec<u8>>>,
    /// The ids of transactions of this process that have not begun to commit.
    pub(crate) open_ids: Mutex<BTreeSet<u64>>,
    pub(crate) jobs: Jobs,
    pub(crate) sizes: Mutex<Sizes>,
}

/// Identifiers that were handed out.
#[derive(Debug)]
pub(crate) struct Reserved {
    /// The greatest one before them.
    pub(crate) first: u32,
    /// Of the database that handed them out.
    pub(crate) incarnation: Bytes,
}

/// Selects keys of a range.
type KeyFilter = Box<dyn Fn(&[u8]) -> bool + Send>;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn undefined_database(name: &str) -> SqlError {
    SqlError::new("3D000", format!("database \"{name}\" does not exist"))
}

fn table_name(name: &str) -> Result<String, SqlError> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.is_empty() || name.len() > sql::schema::NAME_BYTES_MAX || !name.bytes().all(is_valid) {
        let error = SqlError::new(sqlstate::INVALID_NAME, format!("invalid database name \"{name}\""));
        return Err(error.with_detail("A name has letters, digits, \"_\", \"-\" and \".\" only, at most 63 of them."));
    }
    Ok(format!("{SQL_PREFIX}{name}"))
}

impl Databases {
    /// The databases of the client's cluster. `memory` is for the messages, results and queries of all sessions.
    #[must_use]
    pub fn new(client: Client, memory: ByteBudget, activity: Arc<Activity>) -> Self {
        Self { client, memory, activity, open: Mutex::default() }
    }

    /// The sessions, and the metrics of their statements.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// The memory of a session for messages, results and queries.
    pub(crate) fn session_memory(&self) -> ByteBudget {
        self.memory.child(SESSION_BYTES)
    }

    /// The names of all databases.
    pub(crate) async fn names(&self) -> Result<Vec<String>, SqlError> {
        let tables = self.client.list_tables().await.map_err(crate::failure::of_client)?;
        let mut names: Vec<String> =
            tables.iter().filter_map(|table| table.strip_prefix(SQL_PREFIX)).map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }

    /// The databases that this process has opened.
    pub(crate) fn opened(&self) -> Vec<Arc<Database>> {
        lock(&self.open).values().cloned().collect()
    }

    /// A database by its name.
    ///
    /// # Errors
    /// 3D000: it does not exist.
    pub(crate) async fn open(&self, name: &str) -> Result<Arc<Database>, SqlError> {
        let found = lock(&self.open).get(name).cloned();
        let table = self.client.table(table_name(name).map_err(|_| undefined_database(name))?);
        let database = found.unwrap_or_else(|| {
            Arc::new(Database {
                name: name.to_owned(),
                client: self.client.clone(),
                table,
                catalog: Mutex::default(),
                collected: Mutex::default(),
                open_ids: Mutex::default(),
                jobs: Jobs::default(),
                sizes: Mutex::default(),
            })
        });
        match database.refresh().await {
            Err(Error::NotFound(_)) if name == DEFAULT_DATABASE => {
                database.table.create().send().await.map_err(of_client)?;
                database.refresh().await.map_err(of_client)?;
            }
            Err(Error::NotFound(_)) => {
                lock(&self.open).remove(name);
                return Err(undefined_database(name));
            }
            outcome => outcome.map_err(of_client)?,
        }
        let mut open = lock(&self.open);
        if let Some(open) = open.get(name) {
            return Ok(Arc::clone(open));
        }
        open.insert(name.to_owned(), Arc::clone(&database));
        drop(open);
        tokio::spawn(learn_leaders(Arc::downgrade(&database)));
        // Data of dropped objects may remain from a process that has ended.
        database.collect();
        Ok(database)
    }

    /// Creates a database with the options of a Loggos table.
    ///
    /// # Errors
    /// 42P04: it exists.
    pub(crate) async fn create(
        &self,
        name: &str,
        if_not_exists: bool,
        options: &[(String, String)],
    ) -> Result<Option<String>, SqlError> {
        let table = self.client.table(table_name(name)?);
        let mut create = table.create();
        for (option, value) in options {
            let invalid = || {
                let message = format!("invalid value for option \"{option}\": \"{value}\"");
                SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message)
            };
            create = match option.as_str() {
                "replication" => match value.as_str() {
                    "paxos" => create.replication(Replication::Paxos),
                    "primary-backup" => create.replication(Replication::PrimaryBackup),
                    _ => return Err(invalid()),
                },
                "replicas" => create.replicas(value.parse().map_err(|_| invalid())?),
                "retention" => {
                    let interval = sql::SqlType::Interval.parse(value).map_err(|_| invalid())?;
                    let Value::Interval(interval) = interval else { return Err(invalid()) };
                    let days = i64::from(interval.days).checked_mul(86_400_000_000);
                    let micros = days.and_then(|days| days.checked_add(interval.micros)).ok_or_else(invalid)?;
                    create.retention(Duration::from_micros(u64::try_from(micros).map_err(|_| invalid())?))
                }
                // Options of PostgreSQL that have no effect.
                "owner" | "template" | "encoding" | "locale" | "lc_collate" | "lc_ctype" | "tablespace" => create,
                _ => {
                    let message = format!("option \"{option}\" is not recognized");
                    return Err(SqlError::new(sqlstate::SYNTAX_ERROR, message));
                }
            };
        }
        let exists = format!("database \"{name}\" already exists");
        match create.send().await {
            Ok(false) => Ok(None),
            Ok(true) | Err(Error::Exists(_)) if if_not_exists => Ok(Some(format!("{exists}, skipping"))),
            Ok(true) | Err(Error::Exists(_)) => Err(SqlError::new("42P04", exists)),
            Err(Error::Invalid(reason)) => Err(SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, reason)),
            Err(error) => Err(of_client(error)),
        }
    }

    /// Drops a database.
    ///
    /// # Errors
    /// 3D000: it does not exist.
    pub(crate) async fn drop_database(&self, name: &str, if_exists: bool) -> Result<Option<String>, SqlError> {
        let dropped = self.client.table(table_name(name)?).drop_table().await;
        lock(&self.open).remove(name);
        match dropped {
            Err(Error::NotFound(_)) if if_exists => Ok(Some(format!("database \"{name}\" does not exist, skipping"))),
            Err(Error::NotFound(_)) => Err(undefined_database(name)),
            outcome => outcome.map(|()| None).map_err(of_client),
        }
    }
}

impl Database {
    /// The name of the Loggos table.
    pub(crate) fn table(&self) -> &str {
        self.table.name()
    }

    /// The newest version of the schema that this process has read.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&lock(&self.catalog))
    }

    pub(crate) fn set_catalog(&self, catalog: Arc<Catalog>) {
        *lock(&self.catalog) = catalog;
    }

    /// Reads the newest version of the schema.
    pub(crate) async fn refresh(self: &Arc<Self>) -> Result<(), Error> {
        self.refresh_only().await?;
        self.watch_jobs();
        Ok(())
    }

    pub(crate) async fn refresh_only(&self) -> Result<(), Error> {
        let row = self.table.row(SCHEMA_ROW).await?;
        let cell = |name: Bytes| row.as_ref().and_then(|row| row.cell(name)).map(|cell| cell.value.clone());
        let token = cell(TOKEN);
        if self.catalog().is_current(token.as_ref()) {
            return Ok(());
        }
        let catalog = Catalog::decode(token, cell(SCHEMA)).map_err(|error| Error::Invalid(error.to_string()))?;
        self.set_catalog(Arc::new(catalog));
        Ok(())
    }

    pub(crate) async fn reserve_ids(&self, count: u32) -> Result<Reserved, Failure> {
        let table = self.table();
        let reserved = self.client.transaction(|tx| async move {
            let found = tx.get(table, INCARNATION_ROW, INCARNATION);
            let (last, found) = tokio::try_join!(tx.row_for_update(table, IDS_ROW), found)?;
            let last = last.cell(LAST).and_then(|cell| Some(u32::from_le_bytes(cell.value[..].try_into().ok()?)));
            let last = last.unwrap_or(0);
            let Some(next) = last.checked_add(count) else {
                return Err(Error::Invalid("no more identifiers for tables and indexes".to_owned()));
            };
            tx.put(table, IDS_ROW, LAST, next.to_le_bytes().to_vec())?;
            let incarnation = match found {
                Some(found) => found.value,
                None => {
                    let new: Bytes = [crate::random().to_le_bytes(), crate::random().to_le_bytes()].concat().into();
                    tx.put(table, INCARNATION_ROW, INCARNATION, new.clone())?;
                    new
                }
            };
            Ok(Reserved { first: last, incarnation })
        });
        reserved.await.map(|done| done.value).map_err(of_preparation)
    }

    /// The incarnation, as a part of a transaction; empty if there is none yet.
    pub(crate) async fn incarnation(&self, tx: &sdk::Transaction) -> Result<Bytes, Error> {
        let found = tx.get(self.table(), INCARNATION_ROW, INCARNATION).await?;
        Ok(found.map(|cell| cell.value).unwrap_or_default())
    }

    /// Changes rows of one incarnation, atomically. The changes may be repeated.
    async fn change(
        &self,
        incarnation: &Bytes,
        change: impl Fn(&sdk::Transaction) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        let change = &change;
        let mut attempts = 1;
        loop {
            let done = self.client.transaction(|tx| async move {
                if self.incarnation(&tx).await? != *incarnation {
                    return Err(Error::NotFound("the database was dropped, and created again".to_owned()));
                }
                change(&tx)
            });
            match done.await {
                Err(error) if error.is_outcome_unknown() && attempts < WRITE_ATTEMPTS => attempts += 1,
                outcome => return outcome.map(|_| ()),
            }
        }
    }

    /// Takes values of a sequence. As in PostgreSQL they are used up, even if the statement fails.
    pub(crate) async fn take_values(&self, sequence: &Sequence, count: usize) -> Result<Vec<i64>, Failure> {
        let (table, key, cell) = (self.table(), keys::of_id(sequence.id.0), cells::name(cells::MARKER));
        let (key, cell) = (&key, &cell);
        let taken = self.client.transaction(|tx| async move {
            let invalid = |error: SqlError| Error::Invalid(error.to_string());
            let last = tx.row_for_update(table, key.clone()).await?;
            let last = last
                .cell(cell)
                .map(|last| cells::decode(&last.value, &sql::SqlType::Int8))
                .transpose()
                .map_err(invalid)?;
            let mut last = last.and_then(|last| last.as_integer());
            let mut values = Vec::with_capacity(count);
            while values.len() < count {
                let Some(next) = after(sequence, last) else { break };
                values.push(next);
                last = Some(next);
            }
            if let Some(last) = last {
                let value = cells::encode(&Value::Int8(last)).map_err(invalid)?.unwrap_or_default();
                tx.put(table, key.clone(), cell.clone(), value)?;
            }
            Ok(values)
        });
        let values = taken.await.map_err(of_preparation)?.value;
        if values.is_empty() {
            let (bound, limit) =
                if sequence.increment > 0 { ("maximum", sequence.max) } else { ("minimum", sequence.min) };
            let message = format!("nextval: reached {bound} value of sequence \"{}\" ({limit})", sequence.name);
            return Err(SqlError::new(sqlstate::SEQUENCE_GENERATOR_LIMIT_EXCEEDED, message).into());
        }
        Ok(values)
    }

    /// Writes rows that no other transaction can see: their table or index is not committed yet.
    pub(crate) async fn write_unseen(&self, incarnation: &Bytes, writes: Vec<Write>) -> Result<(), Failure> {
        let mut writes = writes.into_iter().peekable();
        while writes.peek().is_some() {
            let (mut chunk, mut bytes) = (Vec::new(), 0);
            while let Some(write) = writes.next_if(|_| chunk.len() < BULK_ROWS && bytes < BULK_BYTES) {
                bytes += write_bytes(&write);
                chunk.push(write);
            }
            let all = |tx: &sdk::Transaction| chunk.iter().try_for_each(|write| apply(tx, self.table(), write));
            self.change(incarnation, all).await.map_err(of_preparation)?;
        }
        Ok(())
    }

    /// Deletes the data of dropped objects, in the background.
    pub(crate) fn collect(self: &Arc<Self>) {
        let database = Arc::clone(self);
        tokio::spawn(async move {
            for _ in 0..COLLECT_ATTEMPTS {
                match database.collect_now().await {
                    Ok(()) => return,
                    Err(error) => tracing::warn!(database = database.name, %error, "data of dropped tables remains"),
                }
                tokio::time::sleep(COLLECT_PAUSE).await;
            }
        });
    }

    async fn collect_now(&self) -> Result<(), Error> {
        // The schema and the incarnation are of one moment: data that this schema discards is never used again.
        let snapshot = self.client.snapshot().await?;
        let (schema, incarnation) =
            tokio::try_join!(snapshot.row(self.table(), SCHEMA_ROW), snapshot.row(self.table(), INCARNATION_ROW))?;
        let schema = Catalog::decode(None, schema.cell(SCHEMA).map(|cell| cell.value.clone()));
        let schema = schema.map_err(|error| Error::Invalid(error.to_string()))?.schema;
        let incarnation = incarnation.cell(INCARNATION).map(|cell| cell.value.clone()).unwrap_or_default();
        self.collect_marked(&incarnation).await?;
        for garbage in schema.garbage() {
            if self.is_collected(&incarnation, garbage) {
                continue;
            }
            let (id, deletes): (u32, KeyFilter) = match *garbage {
                Garbage::Prefix(id) => (id, Box::new(|_| true)),
                Garbage::Interleaved { root, table } => {
                    let schema = schema.clone();
                    (root.0, Box::new(move |key| schema.is_inside(root, table, key)))
                }
            };
            self.delete_range(&incarnation, keys::prefix_range(&keys::of_id(id)), deletes).await?;
            lock(&self.collected).insert(name_of(&incarnation, garbage));
        }
        Ok(())
    }

    /// Marks an identifier before its rows are written outside of their transaction.
    pub(crate) async fn mark_unseen(&self, incarnation: &Bytes, id: u32) -> Result<(), Failure> {
        let at = crate::transaction::now().to_le_bytes().to_vec();
        let put = |tx: &sdk::Transaction| tx.put(self.table(), mark(id), MARKED_AT, at.clone());
        self.change(incarnation, put).await.map_err(of_preparation)
    }

    /// Deletes unseen rows of processes that have ended.
    async fn collect_marked(&self, incarnation: &Bytes) -> Result<(), Error> {
        let mut marks = self.table.scan().prefix(Bytes::from_static(MARKS)).rows();
        while let Some(row) = marks.next().await {
            let row = row?;
            let Some(marked) = row.cell(MARKED_AT) else { continue };
            let at = <[u8; 8]>::try_from(&marked.value[..]).ok().map(i64::from_le_bytes);
            let id = row.key.get(MARKS.len()..).and_then(|id| Some(u32::from_be_bytes(id.try_into().ok()?)));
            let (Some(at), Some(id)) = (at, id) else { continue };
            if crate::transaction::now().saturating_sub(at) > MARK_AGE_MAX {
                // The transaction has read the mark, so it cannot be committed once the mark has changed. If it was
                // committed just now, the mark is gone.
                let changed = self.table.write(mark(id)).put_if(MARKED_AT, marked.value.clone(), marked.version);
                match changed.send().await {
                    Ok(_) => self.delete_marked(incarnation, id).await?,
                    Err(Error::Refused { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    async fn delete_marked(&self, incarnation: &Bytes, id: u32) -> Result<(), Error> {
        self.delete_range(incarnation, keys::prefix_range(&keys::of_id(id)), Box::new(|_| true)).await?;
        self.change(incarnation, |tx| tx.delete_row(self.table(), mark(id))).await
    }

    /// Deletes rows that no transaction uses any more.
    async fn delete_range(&self, incarnation: &Bytes, range: KeyRange, deletes: KeyFilter) -> Result<(), Error> {
        let KeyRange { mut start, end } = range;
        loop {
            let mut rows = self.table.scan().range(start..end.clone()).names_only().limit(DELETED_ROWS).rows();
            let mut keys = Vec::new();
            while let Some(row) = rows.next().await {
                keys.push(row?.key);
            }
            let Some(last) = keys.last().cloned() else { return Ok(()) };
            let is_last = (keys.len() as u64) < DELETED_ROWS;
            keys.retain(|key| deletes(key));
            if !keys.is_empty() {
                let all =
                    |tx: &sdk::Transaction| keys.iter().try_for_each(|key| tx.delete_row(self.table(), key.clone()));
                self.change(incarnation, all).await?;
            }
            if is_last {
                return Ok(());
            }
            start = [&last[..], &[0]].concat().into();
        }
    }

    /// Deletes the rows of identifiers of a transaction that was not committed. If this process ends before, another
    /// one finds the marks and deletes the rows.
    pub(crate) fn delete_unseen(self: &Arc<Self>, incarnation: Bytes, ids: BTreeSet<u32>) {
        if ids.is_empty() {
            return;
        }
        let database = Arc::clone(self);
        tokio::spawn(async move {
            for id in ids {
                if let Err(error) = database.delete_marked(&incarnation, id).await {
                    tracing::warn!(database = database.name, id, %error, "rows of a rolled-back table remain");
                }
            }
        });
    }

    /// Whether this process has deleted data of an incarnation.
    pub(crate) fn is_collected(&self, incarnation: &Bytes, garbage: &Garbage) -> bool {
        lock(&self.collected).contains(&name_of(incarnation, garbage))
    }
}

/// The row that marks an identifier.
pub(crate) fn mark(id: u32) -> Bytes {
    [MARKS, &id.to_be_bytes()].concat().into()
}

fn name_of(incarnation: &Bytes, garbage: &Garbage) -> Vec<u8> {
    let name = match garbage {
        Garbage::Prefix(id) => id.to_be_bytes().to_vec(),
        Garbage::Interleaved { root, table } => [root.0.to_be_bytes(), table.0.to_be_bytes()].concat(),
    };
    [&incarnation[..], &name].concat()
}

/// The value of a sequence after the last one; `None` if there is no further one.
fn after(sequence: &Sequence, last: Option<i64>) -> Option<i64> {
    let Some(last) = last else { return Some(sequence.start) };
    let next = last.checked_add(sequence.increment).filter(|next| (sequence.min..=sequence.max).contains(next));
    let first = if sequence.increment > 0 { sequence.min } else { sequence.max };
    next.or_else(|| sequence.is_cyclic.then_some(first))
}

fn write_bytes(write: &Write) -> usize {
    match write {
        Write::Put { key, cells } => {
            let cell = |(name, value): &(Bytes, Option<Bytes>)| name.len() + value.as_ref().map_or(0, Bytes::len);
            key.len() + cells.iter().map(cell).sum::<usize>()
        }
        Write::Delete { key } => key.len(),
    }
}

/// Learns, again and again, which nodes lead the ranges of a database with sessions, so that requests are sent to them.
async fn learn_leaders(database: Weak<Database>) {
    loop {
        let Some(database) = database.upgrade() else { return };
        // This reference, and that of the list of databases.
        if Arc::strong_count(&database) > 2 {
            database.table.learn_leaders().await;
        }
        drop(database);
        tokio::time::sleep(crate::jittered(LEADERS_PAUSE)).await;
    }
}

/// Adds a write to a transaction.
pub(crate) fn apply(tx: &sdk::Transaction, table: &str, write: &Write) -> Result<(), Error> {
    match write {
        Write::Put { key, cells } => cells.iter().try_for_each(|(name, value)| match value {
            Some(value) => tx.put(table, key.clone(), name.clone(), value.clone()),
            None => tx.delete(table, key.clone(), name.clone()),
        }),
        Write::Delete { key } => tx.delete_row(table, key.clone()),
    }
}
