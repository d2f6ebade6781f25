//! A transaction on one database: reads and writes of rows with one version of the schema.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sdk::{Row, Savepoint, TableSnapshot};
use sql::direct::{Page, Read};
use sql::rows::{StoredRow, Write};
use sql::schema::{Builder, Schema};
use sql::{SqlError, sqlstate};
use tokio::task::JoinSet;

use crate::database::{Catalog, Database, SCHEMA, SCHEMA_ROW, TOKEN, apply, decode, mark};
use crate::execute::Unseen;
use crate::failure::Failure;
use crate::limits::Interrupt;

/// Reads in progress at once.
const READS_MAX: usize = 64;
/// Seconds from 1970-01-01 to 2000-01-01.
const EPOCH_SECONDS: u64 = 946_684_800;

/// Where a transaction reads.
#[derive(Debug)]
pub(crate) enum Source {
    /// A single read, which is linearizable by itself.
    Strong,
    /// A moment, without locks.
    Snapshot(TableSnapshot),
    /// The present, validated at the commit.
    ReadWrite(sdk::Transaction),
}

/// A transaction in progress.
#[derive(Debug)]
pub(crate) struct Tx {
    pub(crate) database: Arc<Database>,
    source: Source,
    pub(crate) catalog: Arc<Catalog>,
    /// The store has shown that the version of the schema is the current one.
    is_verified: bool,
    has_read: bool,
    /// The transaction has changed the schema.
    is_changed: bool,
    /// Identifiers of this transaction's own tables and indexes, which no other transaction sees.
    fresh: BTreeSet<u32>,
    /// Those with rows that were written outside of the transaction.
    unseen: BTreeSet<u32>,
    /// Whether there was a savepoint.
    has_savepoint: bool,
    /// Those with writes that are part of the transaction.
    written: BTreeSet<u32>,
    /// Microseconds since 2000-01-01.
    pub(crate) now: i64,
    pub(crate) interrupt: Interrupt,
}

/// A point to which a transaction can return.
#[derive(Debug)]
pub(crate) struct Saved {
    /// None in a transaction that cannot write.
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

fn stored(row: Row) -> Option<StoredRow> {
    let cells: Vec<(Bytes, Bytes)> = row.cells.into_iter().map(|cell| (cell.column, cell.value)).collect();
    (!cells.is_empty()).then_some(StoredRow { key: row.key, cells })
}

fn page(rows: Vec<Row>, limit: usize) -> Page {
    let next = (rows.len() >= limit).then(|| rows.last().map(|row| Bytes::from([&row.key[..], &[0]].concat())));
    Page { next: next.flatten(), rows: rows.into_iter().filter_map(stored).collect() }
}

impl Tx {
    pub(crate) fn new(database: &Arc<Database>, source: Source, interrupt: Interrupt) -> Self {
        Self {
            database: Arc::clone(database),
            source,
            catalog: database.catalog(),
            is_verified: false,
            has_read: false,
            is_changed: false,
            fresh: BTreeSet::new(),
            unseen: BTreeSet::new(),
            has_savepoint: false,
            written: BTreeSet::new(),
            now: now(),
            interrupt,
        }
    }

    pub(crate) fn schema(&self) -> &Schema {
        &self.catalog.schema
    }

    pub(crate) fn is_read_only(&self) -> bool {
        !matches!(self.source, Source::ReadWrite(_))
    }

    /// The transaction of the store, for another attempt.
    pub(crate) fn again(self) -> Option<sdk::Transaction> {
        self.database.delete_unseen(self.unseen);
        match self.source {
            Source::ReadWrite(tx) => Some(tx.again()),
            Source::Strong | Source::Snapshot(_) => None,
        }
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
        if let Source::Snapshot(snapshot) = &self.source {
            let row = snapshot.row(self.database.table(), SCHEMA_ROW).await?;
            let cell = |name: Bytes| row.cell(name).map(|cell| cell.value.clone());
            let token = cell(TOKEN).unwrap_or_default();
            if token != self.catalog.token {
                self.catalog = Arc::new(decode(token, cell(SCHEMA))?);
            }
            self.is_verified = true;
        }
        Ok(())
    }

    async fn verify(&self) -> Result<(), Failure> {
        let table = self.database.table();
        let token = match &self.source {
            Source::Strong => self.database.table.get(SCHEMA_ROW, TOKEN).await?,
            Source::Snapshot(snapshot) => snapshot.get(table, SCHEMA_ROW, TOKEN).await?,
            Source::ReadWrite(tx) => tx.get(table, SCHEMA_ROW, TOKEN).await?,
        };
        let token = token.map(|cell| cell.value).unwrap_or_default();
        if token == self.catalog.token { Ok(()) } else { Err(Failure::Stale) }
    }

    /// Checks that the version of the schema is the current one.
    pub(crate) async fn verify_now(&mut self) -> Result<(), Failure> {
        if !self.is_verified {
            self.verify().await?;
            self.is_verified = true;
        }
        Ok(())
    }

    /// Reads rows. The results show one moment once the transaction is committed.
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
            // The schema was the known version before this read, and is it after the read.
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
            Read::Row(key) => {
                let row = table.row(key.clone()).await?;
                Ok(Page { rows: row.and_then(stored).into_iter().collect(), next: None })
            }
            Read::Range(range, limit) => {
                let scan = table.scan().range(range.start.clone()..range.end.clone()).limit(*limit as u64);
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
        if let [read] = &reads[..] {
            return Ok(vec![read_one(&self.source, self.database.table(), read).await?]);
        }
        let mut pages: Vec<Page> = vec![Page::default(); reads.len()];
        let mut reads = reads.into_iter().enumerate();
        let mut running = JoinSet::new();
        loop {
            while running.len() < READS_MAX {
                let Some((number, read)) = reads.next() else { break };
                let source = match &self.source {
                    Source::Strong => Source::Strong,
                    Source::Snapshot(snapshot) => Source::Snapshot(snapshot.clone()),
                    Source::ReadWrite(tx) => Source::ReadWrite(tx.clone()),
                };
                let table = self.database.table().to_owned();
                running.spawn(async move { (number, read_one(&source, &table, &read).await) });
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

    /// Adds writes.
    pub(crate) fn write(&mut self, writes: &[Write]) -> Result<(), Failure> {
        if writes.is_empty() {
            return Ok(());
        }
        let Source::ReadWrite(tx) = &self.source else { return Err(read_only().into()) };
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
            if !self.unseen.contains(&id) {
                self.database.mark_unseen(id).await?;
                self.unseen.insert(id);
                // If someone takes the rows for abandoned, this read fails at the commit.
                if let Source::ReadWrite(tx) = &self.source {
                    tx.row(self.database.table(), mark(id)).await?;
                }
            }
        }
        self.database.write_unseen(writes).await
    }

    /// The assumptions of a bulk load: none about tables that an earlier one has filled.
    pub(crate) fn unseen_rows(&self) -> Unseen {
        Unseen::after(self.unseen.iter().copied())
    }

    /// Whether no other transaction sees rows with these identifiers, and this transaction has none of them yet but those that it
    /// wrote with [`Tx::write_unseen`].
    pub(crate) fn is_unseen(&self, mut ids: impl Iterator<Item = u32>) -> bool {
        // A return to a savepoint could not remove them.
        !self.is_read_only()
            && !self.has_savepoint
            && ids.all(|id| self.fresh.contains(&id) && !self.written.contains(&id))
    }

    /// Changes the schema. `first_id` is the greatest identifier before those that are new.
    pub(crate) fn set_schema(&mut self, schema: Schema, first_id: u32) {
        self.fresh.extend(first_id.saturating_add(1)..=schema.last_id());
        // The token is made at the commit. No other version has an empty one, except that of an empty database.
        self.catalog = Arc::new(Catalog { token: self.catalog.token.clone(), schema });
        self.is_changed = true;
    }

    pub(crate) fn savepoint(&mut self) -> Saved {
        self.has_savepoint = true;
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
        Ok(())
    }

    /// Commits it.
    pub(crate) async fn commit(mut self) -> Result<(), Failure> {
        if !self.is_verified
            && let Source::ReadWrite(tx) = &self.source
            && !tx.is_read_only()
        {
            self.verify().await?;
        }
        let Source::ReadWrite(tx) = self.source else { return Ok(()) };
        for id in &self.unseen {
            tx.delete_row(self.database.table(), mark(*id))?;
        }
        let mut committed = None;
        if self.is_changed {
            let schema = without_collected(&self.database, &self.catalog.schema)?;
            let token: Bytes = [schema.version().to_le_bytes(), crate::random().to_le_bytes()].concat().into();
            let encoded = schema.encode();
            if encoded.len() > base::limits::VALUE_BYTES_MAX {
                return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, "the schema is too large").into());
            }
            let table = self.database.table();
            tx.put(table, SCHEMA_ROW, TOKEN, token.clone())?;
            tx.put(table, SCHEMA_ROW, SCHEMA, encoded)?;
            committed = Some(Arc::new(Catalog { token, schema }));
        }
        if let Err(error) = tx.commit().await {
            if !error.is_outcome_unknown() {
                self.database.delete_unseen(std::mem::take(&mut self.unseen));
            }
            return Err(error.into());
        }
        if let Some(catalog) = committed {
            let has_garbage = !catalog.schema.garbage().is_empty();
            self.database.set_catalog(catalog);
            if has_garbage {
                self.database.collect();
            }
        }
        Ok(())
    }

    /// Ends it without any change.
    pub(crate) async fn rollback(self) {
        if !self.unseen.is_empty() {
            self.database.delete_unseen(self.unseen);
        }
        if let Source::ReadWrite(tx) = self.source {
            tx.rollback().await;
        }
    }
}

fn without_collected(database: &Database, schema: &Schema) -> Result<Schema, SqlError> {
    let collected: Vec<_> = schema.garbage().iter().filter(|garbage| database.is_collected(garbage)).copied().collect();
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

pub(crate) fn read_only() -> SqlError {
    SqlError::new("25006", "cannot execute a change in a read-only transaction")
}

async fn read_one(source: &Source, table: &str, read: &Read) -> Result<Page, Failure> {
    match (source, read) {
        (Source::Strong, _) => Err(Failure::NeedsSnapshot),
        (Source::Snapshot(snapshot), Read::Row(key)) => {
            let row = snapshot.row(table, key.clone()).await?;
            Ok(Page { rows: stored(row).into_iter().collect(), next: None })
        }
        (Source::ReadWrite(tx), Read::Row(key)) => {
            let row = tx.row(table, key.clone()).await?;
            Ok(Page { rows: stored(row).into_iter().collect(), next: None })
        }
        (Source::Snapshot(snapshot), Read::Range(range, limit)) => {
            let scan = snapshot.scan(table).range(range.start.clone()..range.end.clone()).limit(*limit as u64);
            let (mut rows, mut found) = (scan.rows(), Vec::new());
            while let Some(row) = rows.next().await {
                found.push(row?);
            }
            Ok(page(found, *limit))
        }
        (Source::ReadWrite(tx), Read::Range(range, limit)) => {
            let scan = tx.scan(table).range(range.start.clone()..range.end.clone()).limit(*limit as u64);
            Ok(page(scan.all().await?, *limit))
        }
    }
}
