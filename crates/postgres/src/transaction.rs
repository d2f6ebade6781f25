//! A transaction on one database: reads and writes of rows with one version of the schema.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sdk::{Committed, Error, Reads, Row, Savepoint, Table, TableSnapshot};
use sql::direct::{Page, Read};
use sql::keys::{self, KeyRange};
use sql::rows::{StoredRow, Write};
use sql::schema::{Builder, Schema};
use sql::{SqlError, Value, sqlstate};
use tokio::task::JoinSet;

use crate::database::{Catalog, Database, SCHEMA, SCHEMA_ROW, TOKEN, apply, mark};
use crate::execute::Unseen;
use crate::failure::Failure;
use crate::limits::Interrupt;
use crate::transaction_ids::OpenId;

/// Microseconds from 1970-01-01 to 2000-01-01.
pub(crate) const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// Reads in progress at once.
const READS_MAX: usize = 64;
/// Seconds from 1970-01-01 to 2000-01-01.
const EPOCH_SECONDS: u64 = 946_684_800;

/// Where a transaction reads.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The current state, by a single linearizable read.
    Strong,
    /// The state of one moment, without locks.
    Snapshot(TableSnapshot),
    /// The current state, with locks, validated at the commit.
    ReadWrite(sdk::Transaction),
}

/// A transaction in progress.
#[derive(Debug)]
pub(crate) struct Tx {
    pub(crate) database: Arc<Database>,
    pub(crate) source: Source,
    /// Its id, until it begins to commit.
    pub(crate) open_id: Option<OpenId>,
    /// Before its first write.
    start: Option<Savepoint>,
    pub(crate) catalog: Arc<Catalog>,
    /// The version of the schema was compared with the store, and is the current one.
    is_verified: bool,
    has_read: bool,
    /// The transaction has changed the schema.
    is_changed: bool,
    /// The incarnation of the database that handed out this transaction's identifiers.
    incarnation: Option<Bytes>,
    /// Identifiers of this transaction's own tables and indexes, which no other transaction sees. Their rows are read
    /// outside of the transaction, because only this one changes them.
    fresh: BTreeSet<u32>,
    /// Own identifiers with rows that were written outside of the transaction.
    unseen: BTreeSet<u32>,
    /// Own identifiers with such rows that a return to a savepoint has removed.
    abandoned: BTreeSet<u32>,
    /// Own identifiers from before the last savepoint: a return to it cannot remove rows that are written outside of
    /// the transaction.
    settled: BTreeSet<u32>,
    /// Own identifiers with writes that are part of the transaction.
    written: BTreeSet<u32>,
    /// Microseconds since 2000-01-01.
    pub(crate) now: i64,
    pub(crate) interrupt: Interrupt,
}

/// A point to which a transaction can return.
#[derive(Debug)]
pub(crate) struct Saved {
    /// `None` in a read-only transaction.
    writes: Option<Savepoint>,
    catalog: Arc<Catalog>,
    is_changed: bool,
    fresh: BTreeSet<u32>,
}

pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let since = since.saturating_sub(Duration::from_secs(EPOCH_SECONDS));
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn stored(row: Row) -> Option<StoredRow> {
    let cells: Vec<(Bytes, Bytes)> = row.cells.into_iter().map(|cell| (cell.column, cell.value)).collect();
    (!cells.is_empty()).then_some(StoredRow { key: row.key, cells })
}

/// The rest of the range of a page, if the page is full.
fn after_page(rows: &[Row], limit: usize) -> Option<Bytes> {
    let last = rows.last().filter(|_| rows.len() >= limit);
    last.map(|last| Bytes::from([&last.key[..], &[0]].concat()))
}

fn page(rows: Vec<Row>, limit: usize) -> Page {
    Page { next: after_page(&rows, limit), rows: rows.into_iter().filter_map(stored).collect() }
}

/// Reads of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    source: Source,
    table: sdk::Table,
    fresh: BTreeSet<u32>,
    unseen: BTreeSet<u32>,
}

impl Reader {
    pub(crate) async fn read_rows(&self, reads: Vec<Read>) -> Result<Vec<Page>, Failure> {
        if let [read] = &reads[..] {
            return Ok(vec![read_one(&self.source, &self.table, read, self.beneath(read)).await?]);
        }
        let mut pages: Vec<Page> = vec![Page::default(); reads.len()];
        let mut reads = reads.into_iter().map(|read| (self.beneath(&read), read)).enumerate();
        let mut running = JoinSet::new();
        loop {
            while running.len() < READS_MAX {
                let Some((number, (beneath, read))) = reads.next() else { break };
                let source = self.source.clone();
                let table = self.table.clone();
                running.spawn(async move { (number, read_one(&source, &table, &read, beneath).await) });
            }
            match running.join_next().await {
                None => return Ok(pages),
                Some(Ok((number, page))) => pages[number] = page?,
                Some(Err(_)) => {
                    return Err(SqlError::new(sqlstate::INTERNAL_ERROR, "a read was interrupted").into());
                }
            }
        }
    }

    /// The rows beneath the transaction's own writes.
    fn beneath(&self, read: &Read) -> Beneath {
        if self.fresh.is_empty() {
            return Beneath::Shared;
        }
        let (Read::Row(key)
        | Read::Locked(key)
        | Read::Entry(key)
        | Read::Range(KeyRange { start: key, .. }, _)
        | Read::Cells(KeyRange { start: key, .. }, ..)) = read;
        match keys::KeyReader::new(key).id() {
            Ok(id) if self.unseen.contains(&id) => Beneath::Unseen,
            Ok(id) if self.fresh.contains(&id) => Beneath::Nothing,
            _ => Beneath::Shared,
        }
    }
}

impl Tx {
    pub(crate) fn new(database: &Arc<Database>, source: Source, interrupt: Interrupt) -> Self {
        let start = match &source {
            Source::ReadWrite(tx) => Some(tx.savepoint()),
            Source::Strong | Source::Snapshot(_) => None,
        };
        Self {
            database: Arc::clone(database),
            source,
            open_id: None,
            start,
            catalog: database.catalog(),
            is_verified: false,
            has_read: false,
            is_changed: false,
            incarnation: None,
            fresh: BTreeSet::new(),
            unseen: BTreeSet::new(),
            abandoned: BTreeSet::new(),
            settled: BTreeSet::new(),
            written: BTreeSet::new(),
            now: now(),
            interrupt,
        }
    }

    /// A transaction that reads a snapshot with everything that was acknowledged before. If the database has one range,
    /// this takes a single read, and the version of the schema is known.
    pub(crate) async fn at_present(database: &Arc<Database>, interrupt: Interrupt) -> Result<Self, Error> {
        let read = database.table.read(SCHEMA_ROW).column(TOKEN).consistency(Reads::StrongAsOf).send().await?;
        let whole = read.as_of.filter(|as_of| as_of.range.is_whole_table());
        let Some(as_of) = whole else {
            let snapshot = database.client.snapshot().await?;
            return Ok(Self::new(database, Source::Snapshot(snapshot), interrupt));
        };
        let snapshot = database.client.snapshot_at(as_of.timestamp);
        let mut tx = Self::new(database, Source::Snapshot(snapshot), interrupt);
        tx.is_verified = tx.catalog.is_current(read.cells.first().map(|cell| &cell.value));
        Ok(tx)
    }

    pub(crate) fn schema(&self) -> &Schema {
        &self.catalog.schema
    }

    pub(crate) fn is_read_only(&self) -> bool {
        !matches!(self.source, Source::ReadWrite(_))
    }

    /// The transaction of the store, for another attempt.
    pub(crate) fn again(mut self) -> Option<sdk::Transaction> {
        self.delete_unseen();
        match self.source {
            Source::ReadWrite(tx) => Some(tx.again()),
            Source::Strong | Source::Snapshot(_) => None,
        }
    }

    /// Deletes the rows that were written outside of the transaction, in the background.
    fn delete_unseen(&mut self) {
        let mut ids = std::mem::take(&mut self.unseen);
        ids.append(&mut self.abandoned);
        if let Some(incarnation) = &self.incarnation {
            self.database.delete_unseen(incarnation.clone(), ids);
        }
    }

    /// Whether the rows that it has read are of one moment, so that an error which they have caused is valid. Ends it
    /// without changes.
    pub(crate) async fn confirm(mut self) -> Result<(), Failure> {
        self.delete_unseen();
        if let (Source::ReadWrite(tx), Some(start)) = (&self.source, &self.start) {
            self.open_id = None;
            tx.restore(start)?;
            tx.clone().commit().await?;
        }
        Ok(())
    }

    /// The transaction of the store, to be tried again if the commit fails.
    pub(crate) fn for_retry(&self) -> Option<sdk::Transaction> {
        match &self.source {
            Source::ReadWrite(tx) => Some(tx.clone()),
            Source::Strong | Source::Snapshot(_) => None,
        }
    }

    /// Reads with the schema of this moment, which may be an old one.
    pub(crate) async fn load_schema(&mut self) -> Result<(), Failure> {
        if let Source::Snapshot(snapshot) = &self.source
            && !self.is_verified
        {
            let row = snapshot.row(self.database.table(), SCHEMA_ROW).await?;
            let cell = |name: Bytes| row.cell(name).map(|cell| cell.value.clone());
            let token = cell(TOKEN);
            if !self.catalog.is_current(token.as_ref()) {
                self.catalog = Arc::new(Catalog::decode(token, cell(SCHEMA))?);
            }
            self.is_verified = true;
        }
        Ok(())
    }

    async fn verify(&self) -> Result<(), Failure> {
        let token = self.cell(SCHEMA_ROW, TOKEN).await?.map(|cell| cell.value);
        if self.catalog.is_current(token.as_ref()) { Ok(()) } else { Err(Failure::Stale) }
    }

    /// Checks that the version of the schema is the current one.
    pub(crate) async fn verify_now(&mut self) -> Result<(), Failure> {
        if !self.is_verified {
            self.verify().await?;
            self.is_verified = true;
        }
        Ok(())
    }

    /// The cause of a failed statement. If an old version of the schema can have caused the error, this is checked.
    pub(crate) async fn checked(&mut self, failure: Failure) -> Failure {
        // Connections, conflicts, resources and interruptions do not depend on the schema.
        let is_other =
            |error: &SqlError| ["08", "40", "53", "57"].iter().any(|class| error.sqlstate.starts_with(class));
        match failure {
            Failure::Sql(error) if !self.is_verified && !is_other(&error) => match self.verify().await {
                Ok(()) => {
                    self.is_verified = true;
                    Failure::Sql(error)
                }
                Err(failure @ (Failure::Stale | Failure::Conflict(_))) => failure,
                Err(_) => Failure::Sql(error),
            },
            failure => failure,
        }
    }

    /// Reads a cell of a reserved row. If the transaction is committed, all of its reads are of one moment.
    pub(crate) async fn cell(&self, key: Bytes, name: Bytes) -> Result<Option<sdk::Cell>, Failure> {
        let table = self.database.table();
        Ok(match &self.source {
            Source::Strong => self.database.table.get(key, name).await?,
            Source::Snapshot(snapshot) => snapshot.get(table, key, name).await?,
            Source::ReadWrite(tx) => tx.get(table, key, name).await?,
        })
    }

    /// Reads rows. If the transaction is committed, all of its reads are of one moment.
    pub(crate) async fn read(&mut self, reads: Vec<Read>) -> Result<Vec<Page>, Failure> {
        let interrupt = self.interrupt.clone();
        interrupt.run(self.read_all(reads)).await?
    }

    async fn read_all(&mut self, reads: Vec<Read>) -> Result<Vec<Page>, Failure> {
        if reads.is_empty() {
            return Ok(Vec::new());
        }
        if let Source::Strong = self.source {
            let [read] = &reads[..] else { return Err(Failure::NeedsSnapshot) };
            if std::mem::replace(&mut self.has_read, true) {
                return Err(Failure::NeedsSnapshot);
            }
            let page = self.read_strong(read).await?;
            // The row that the entry refers to is read next. If it still has the values of the entry, it is the only one
            // with them at that moment.
            if matches!(read, Read::Entry(_)) && !page.rows.is_empty() {
                self.has_read = false;
                return Ok(vec![page]);
            }
            // This version of the schema was current before the read. It must still be current after it.
            self.verify().await?;
            self.is_verified = true;
            return Ok(vec![page]);
        }
        self.has_read = true;
        if self.is_verified {
            return self.read_rows(reads).await;
        }
        let (_, pages) = tokio::try_join!(self.verify(), self.read_rows(reads))?;
        self.is_verified = true;
        Ok(pages)
    }

    async fn read_strong(&self, read: &Read) -> Result<Page, Failure> {
        let table = &self.database.table;
        match read {
            Read::Row(key) | Read::Locked(key) | Read::Entry(key) => {
                let row = table.row(key.clone()).await?;
                Ok(Page { rows: row.and_then(stored).into_iter().collect(), next: None })
            }
            Read::Range(range, limit) | Read::Cells(range, limit, _) => {
                let scan = with_cells(table.scan(), read);
                let scan = scan.range(range.start.clone()..range.end.clone()).limit(*limit as u64);
                let Some(first) = scan.pages().next().await else { return Ok(Page::default()) };
                let first = first?;
                // Further pages may be of another moment.
                if first.continuation.is_some() && first.rows.len() < *limit {
                    return Err(Failure::NeedsSnapshot);
                }
                Ok(page(first.rows, *limit))
            }
        }
    }

    async fn read_rows(&self, reads: Vec<Read>) -> Result<Vec<Page>, Failure> {
        self.reader().read_rows(reads).await
    }

    /// A reader for a query, which is executed concurrently.
    pub(crate) fn reader(&self) -> Reader {
        Reader {
            source: self.source.clone(),
            table: self.database.table.clone(),
            fresh: self.fresh.clone(),
            unseen: self.unseen.clone(),
        }
    }

    /// Whether it permits only one read.
    pub(crate) fn is_single_read(&self) -> bool {
        matches!(self.source, Source::Strong)
    }

    /// Its lines in the result of `EXPLAIN ANALYZE`.
    pub(crate) fn report(&self) -> Vec<String> {
        match &self.source {
            Source::Snapshot(snapshot) => vec![
                "Reads: from a snapshot, without locks".to_owned(),
                format!("Snapshot Timestamp: {}", shown(snapshot.timestamp())),
            ],
            Source::ReadWrite(_) => vec!["Reads: validated at the commit".to_owned()],
            Source::Strong => vec!["Reads: one, linearizable by itself".to_owned()],
        }
    }

    /// Hands out identifiers. Returns the greatest one before them.
    pub(crate) async fn reserve_ids(&mut self, count: u32) -> Result<u32, Failure> {
        let reserved = self.database.reserve_ids(count).await?;
        match &self.incarnation {
            Some(incarnation) if *incarnation != reserved.incarnation => return Err(dropped()),
            _ => self.incarnation = Some(reserved.incarnation),
        }
        Ok(reserved.first)
    }

    pub(crate) fn write(&mut self, writes: &[Write]) -> Result<(), Failure> {
        if writes.is_empty() {
            return Ok(());
        }
        let Source::ReadWrite(tx) = &self.source else { return Err(read_only("a change").into()) };
        for write in writes {
            if !self.fresh.is_empty()
                && let Some(id) = first_id(write)
            {
                self.written.insert(id);
            }
            apply(tx, self.database.table(), write)?;
        }
        Ok(())
    }

    /// Writes rows of this transaction's own tables and indexes, without its limits.
    pub(crate) async fn write_unseen(&mut self, writes: Vec<Write>) -> Result<(), Failure> {
        let ids: BTreeSet<u32> = writes.iter().filter_map(first_id).collect();
        for id in ids {
            self.has_unseen(id).await?;
        }
        let incarnation = self.incarnation.clone().ok_or_else(dropped)?;
        self.database.write_unseen(&incarnation, writes).await
    }

    /// A row of this transaction's own table, index or sequence is about to be written outside of the transaction.
    pub(crate) async fn has_unseen(&mut self, id: u32) -> Result<(), Failure> {
        if self.unseen.contains(&id) {
            return Ok(());
        }
        let incarnation = self.incarnation.as_ref().ok_or_else(dropped)?;
        self.database.mark_unseen(incarnation, id).await?;
        self.unseen.insert(id);
        // If another process treats the rows as abandoned, the commit fails because of this read.
        if let Source::ReadWrite(tx) = &self.source {
            tx.row(self.database.table(), mark(id)).await?;
        }
        Ok(())
    }

    /// Whether an identifier is of an object that only this transaction sees.
    pub(crate) fn is_fresh(&self, id: u32) -> bool {
        self.fresh.contains(&id)
    }

    /// The assumptions of a bulk load: none about tables that an earlier one has filled.
    pub(crate) fn unseen_rows(&self) -> Unseen {
        Unseen::after(self.unseen.iter().copied())
    }

    /// Whether rows with these identifiers are invisible to other transactions, and all of them were written with
    /// [`Tx::write_unseen`].
    pub(crate) fn is_unseen(&self, mut ids: impl Iterator<Item = u32>) -> bool {
        let is_unseen = |id| self.fresh.contains(&id) && !self.settled.contains(&id) && !self.written.contains(&id);
        !self.is_read_only() && ids.all(is_unseen)
    }

    /// Changes the schema. `first_id` is the greatest identifier before those that are new.
    pub(crate) fn set_schema(&mut self, schema: Schema, first_id: u32) {
        self.fresh.extend(first_id.saturating_add(1)..=schema.last_id());
        // The token is made at the commit. No other version has an empty one, except that of an empty database.
        self.catalog = Arc::new(Catalog { token: self.catalog.token.clone(), schema });
        self.is_changed = true;
    }

    pub(crate) fn savepoint(&mut self) -> Saved {
        self.settled.clone_from(&self.fresh);
        let writes = match &self.source {
            Source::ReadWrite(tx) => Some(tx.savepoint()),
            Source::Strong | Source::Snapshot(_) => None,
        };
        let (catalog, fresh) = (Arc::clone(&self.catalog), self.fresh.clone());
        Saved { writes, catalog, is_changed: self.is_changed, fresh }
    }

    pub(crate) fn restore(&mut self, saved: &Saved) -> Result<(), Failure> {
        if let (Source::ReadWrite(tx), Some(writes)) = (&self.source, &saved.writes) {
            tx.restore(writes)?;
        }
        self.catalog = Arc::clone(&saved.catalog);
        self.is_changed = saved.is_changed;
        self.fresh.clone_from(&saved.fresh);
        let (kept, abandoned) = std::mem::take(&mut self.unseen).into_iter().partition(|id| saved.fresh.contains(id));
        self.unseen = kept;
        self.abandoned.extend::<BTreeSet<u32>>(abandoned);
        Ok(())
    }

    /// Commits it. Returns the commit timestamp, except for a single read and a snapshot.
    pub(crate) async fn commit(mut self) -> Result<Option<Committed<()>>, Failure> {
        let changed = match self.complete().await {
            Ok(changed) => changed,
            Err(failure) => {
                self.rollback().await;
                return Err(failure);
            }
        };
        self.open_id = None;
        let Source::ReadWrite(tx) = &self.source else { return Ok(None) };
        let committed = match tx.clone().commit().await {
            Ok(committed) => committed,
            Err(error) => {
                if !error.is_outcome_unknown() {
                    self.delete_unseen();
                }
                return Err(error.into());
            }
        };
        self.unseen.clear();
        self.delete_unseen();
        if let Some(catalog) = changed {
            let has_garbage = !catalog.schema.garbage().is_empty();
            self.database.set_catalog(catalog);
            if has_garbage {
                self.database.collect();
            }
        }
        Ok(Some(committed))
    }

    /// Adds the last reads and writes of the transaction. Returns its version of the schema, if it has changed it.
    async fn complete(&self) -> Result<Option<Arc<Catalog>>, Failure> {
        let Source::ReadWrite(tx) = &self.source else { return Ok(None) };
        if !self.is_verified && !tx.is_read_only() {
            self.verify().await?;
        }
        for id in &self.unseen {
            tx.delete_row(self.database.table(), mark(*id))?;
        }
        if self.is_changed {
            let incarnation = self.database.incarnation(tx).await?;
            if self.incarnation.as_ref().is_some_and(|own| *own != incarnation) {
                return Err(dropped());
            }
            let schema = without_collected(&self.database, &incarnation, &self.catalog.schema)?;
            let catalog = Catalog::next(schema, crate::random());
            apply(tx, self.database.table(), &catalog.write()?)?;
            return Ok(Some(Arc::new(catalog)));
        }
        Ok(None)
    }

    /// Ends it without changes.
    pub(crate) async fn rollback(mut self) {
        self.delete_unseen();
        if let Source::ReadWrite(tx) = self.source {
            tx.rollback().await;
        }
    }
}

fn dropped() -> Failure {
    Failure::Conflict("the database was dropped, and created again".to_owned())
}

fn without_collected(database: &Database, incarnation: &Bytes, schema: &Schema) -> Result<Schema, SqlError> {
    let is_collected = |garbage: &&_| database.is_collected(incarnation, garbage);
    let collected: Vec<_> = schema.garbage().iter().filter(is_collected).copied().collect();
    if collected.is_empty() {
        return Ok(schema.clone());
    }
    let mut builder = Builder::new(schema);
    builder.collected(&collected);
    builder.finish()
}

/// The identifier of the table or index of a row.
fn first_id(write: &Write) -> Option<u32> {
    let (Write::Put { key, .. } | Write::Delete { key }) = write;
    sql::keys::KeyReader::new(key).id().ok()
}

/// The lines about a commit in the result of `EXPLAIN ANALYZE`.
pub(crate) fn report_of(committed: &Committed<()>) -> Vec<String> {
    if committed.timestamp == sdk::Version::ABSENT {
        return Vec::new();
    }
    let millis = |time: std::time::Duration| time.as_secs_f64() * 1_000.0;
    vec![
        format!("Commit Timestamp: {}", shown(committed.timestamp)),
        format!("Clock Uncertainty: {:.3} ms", millis(committed.uncertainty)),
        format!("Commit Wait: {:.3} ms", millis(committed.commit_wait)),
        format!("Attempts: {}", committed.attempts),
    ]
}

fn shown(timestamp: sdk::Version) -> String {
    let micros = timestamp.as_nanos().div_euclid(1_000) - EPOCH_MICROS;
    Value::Timestamptz(micros).to_text().unwrap_or_default()
}

pub(crate) fn read_only(command: &str) -> SqlError {
    SqlError::new("25006", format!("cannot execute {command} in a read-only transaction"))
}

/// The rows beneath the writes of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beneath {
    /// Rows that others see and change.
    Shared,
    /// No rows: the identifier is new.
    Nothing,
    /// Rows that this transaction has written outside of itself.
    Unseen,
}

async fn read_one(source: &Source, table: &Table, read: &Read, beneath: Beneath) -> Result<Page, Failure> {
    let name = table.name();
    match (source, read) {
        (Source::Strong, _) => Err(Failure::NeedsSnapshot),
        (Source::Snapshot(snapshot), Read::Row(key) | Read::Locked(key) | Read::Entry(key)) => {
            let row = snapshot.row(name, key.clone()).await?;
            Ok(Page { rows: stored(row).into_iter().collect(), next: None })
        }
        (Source::ReadWrite(tx), read) if beneath != Beneath::Shared => {
            read_own(tx, table, read, beneath == Beneath::Unseen).await
        }
        (Source::ReadWrite(tx), Read::Row(key) | Read::Entry(key)) => {
            let row = tx.row(name, key.clone()).await?;
            Ok(Page { rows: stored(row).into_iter().collect(), next: None })
        }
        (Source::ReadWrite(tx), Read::Locked(key)) => {
            let row = tx.row_for_update(name, key.clone()).await?;
            Ok(Page { rows: stored(row).into_iter().collect(), next: None })
        }
        (Source::Snapshot(snapshot), Read::Range(range, limit) | Read::Cells(range, limit, _)) => {
            let scan = with_cells(snapshot.scan(name), read);
            let scan = scan.range(range.start.clone()..range.end.clone()).limit(*limit as u64);
            let (mut rows, mut found) = (scan.rows(), Vec::new());
            while let Some(row) = rows.next().await {
                found.push(row?);
            }
            Ok(page(found, *limit))
        }
        (Source::ReadWrite(tx), Read::Range(range, limit) | Read::Cells(range, limit, _)) => {
            let scan = tx.scan(name).range(range.start.clone()..range.end.clone()).limit(*limit as u64);
            Ok(page(scan.all().await?, *limit))
        }
    }
}

/// A scan of the cells of a read.
fn with_cells(scan: sdk::Scan, read: &Read) -> sdk::Scan {
    match read {
        Read::Cells(.., cells) => scan.columns(cells.iter().cloned()),
        _ => scan,
    }
}

/// Reads rows of identifiers that only this transaction uses: those that it has written outside of itself, if there are
/// any, beneath its own changes.
async fn read_own(tx: &sdk::Transaction, table: &Table, read: &Read, has_rows: bool) -> Result<Page, Failure> {
    match read {
        Read::Row(key) | Read::Locked(key) | Read::Entry(key) => {
            let row = if has_rows { table.row(key.clone()).await? } else { None };
            let row = tx.over_row(table.name(), key.clone(), row);
            Ok(Page { rows: stored(row).into_iter().collect(), next: None })
        }
        Read::Range(range, limit) | Read::Cells(range, limit, _) => {
            let mut found = Vec::new();
            if has_rows {
                let scan = table.scan().range(range.start.clone()..range.end.clone()).limit(*limit as u64);
                let mut rows = scan.rows();
                while let Some(row) = rows.next().await {
                    found.push(row?);
                }
            }
            // The page ends here.
            let next = after_page(&found, *limit);
            let end = next.as_ref().unwrap_or(&range.end);
            let mut rows = tx.over_rows(table.name(), &range.start, end, found);
            if rows.len() > *limit {
                rows.truncate(*limit);
                return Ok(page(rows, *limit));
            }
            Ok(Page { rows: rows.into_iter().filter_map(stored).collect(), next })
        }
    }
}
