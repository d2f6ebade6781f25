//! About the sizes of tables and indexes, for `pg_relation_size` and the console.
//!
//! The store knows the bytes of each range, not those of each table in it. So the rows of small tables are read and
//! counted, and the tables that are larger than that share the rest of the ranges.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use sdk::Error;
use sql::keys;
use tokio::time::{Duration, Instant};

use crate::database::{Database, Databases};

/// How long sizes are used.
const FRESH: Duration = Duration::from_secs(30);
/// Rows of a table, and about its bytes, that are counted.
const COUNTED_ROWS: u64 = 2_000;
const COUNTED_BYTES: u64 = 256 << 10;
/// About the bytes that are counted in all. Further tables count as large ones.
const COUNTED_IN_ALL: u64 = 8 << 20;

/// Databases of an overview.
const DATABASES_MAX: usize = 50;

/// A database with its tables, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    pub name: String,
    /// About its bytes, with old versions.
    pub bytes: u64,
    /// The tables and about their bytes, with indexes; 0 for a table that is interleaved in another one, which has its
    /// rows.
    pub tables: Vec<(String, u64)>,
}

impl Databases {
    /// The first databases with their tables. Those that cannot be read are left out.
    pub async fn overview(&self) -> Vec<Overview> {
        let mut found = Vec::new();
        for name in self.names().await.unwrap_or_default().into_iter().take(DATABASES_MAX) {
            let Ok(database) = self.open(&name).await else { continue };
            if let Err(error) = database.refresh_sizes().await {
                tracing::debug!(database = name, %error, "the sizes are unknown");
            }
            let schema = database.catalog().schema.clone();
            let tables = schema.tables().map(|table| {
                let own = table.interleave.is_none().then(|| table.storage().0);
                let indexes = table.indexes.iter().map(|index| index.id.0);
                let bytes = own.into_iter().chain(indexes).filter_map(|id| database.size_of(id)).sum();
                (table.name.clone(), bytes)
            });
            let tables = tables.collect();
            found.push(Overview { name, bytes: database.size().unwrap_or(0), tables });
        }
        found
    }

    /// The sessions of this process.
    #[must_use]
    pub fn sessions(&self) -> Vec<sql::system::SessionRow> {
        self.activity().sessions()
    }
}

/// The sizes of a database, as of a moment.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    at: Option<Instant>,
    /// By the identifier of the table or index that the keys begin with.
    by_id: BTreeMap<u32, u64>,
    all: u64,
}

impl Database {
    fn sizes(&self) -> std::sync::MutexGuard<'_, Sizes> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// About the bytes of the rows that begin with an identifier, if they are known.
    pub(crate) fn size_of(&self, id: u32) -> Option<u64> {
        self.sizes().by_id.get(&id).copied()
    }

    /// About the bytes of the database, if they are known.
    pub(crate) fn size(&self) -> Option<u64> {
        let sizes = self.sizes();
        sizes.at.map(|_| sizes.all)
    }

    /// Determines the sizes, unless they are recent.
    ///
    /// # Errors
    /// The rows cannot be read.
    pub(crate) async fn refresh_sizes(&self) -> Result<(), Error> {
        if self.sizes().at.is_some_and(|at| at.elapsed() < FRESH) {
            return Ok(());
        }
        let schema = self.catalog().schema.clone();
        let roots = schema.tables().filter(|table| table.interleave.is_none()).map(|table| table.storage().0);
        let indexes = schema.tables().flat_map(|table| table.indexes.iter().map(|index| index.id.0));
        let ids: Vec<u32> = roots.chain(indexes).collect();
        let (mut by_id, mut large, mut counted) = (BTreeMap::new(), Vec::new(), 0);
        for id in ids {
            let (bytes, is_whole) = if counted < COUNTED_IN_ALL { self.count_rows(id).await? } else { (0, false) };
            counted += bytes;
            by_id.insert(id, bytes);
            if !is_whole {
                large.push(id);
            }
        }
        let all = self.stored_bytes().await.max(counted);
        let share = (all - counted) / (large.len() as u64).max(1);
        for id in large {
            *by_id.entry(id).or_default() += share;
        }
        *self.sizes() = Sizes { at: Some(Instant::now()), by_id, all };
        Ok(())
    }

    /// The bytes of the first rows that begin with an identifier, and whether these are all.
    async fn count_rows(&self, id: u32) -> Result<(u64, bool), Error> {
        let range = keys::prefix_range(&keys::of_id(id));
        let scan = self.table.scan().range(range.start..range.end).limit(COUNTED_ROWS);
        let (mut rows, mut count, mut bytes) = (scan.rows(), 0, 0);
        while let Some(row) = rows.next().await {
            let row = row?;
            let cells = row.cells.iter().map(|cell| row.key.len() + cell.column.len() + cell.value.len());
            bytes += cells.sum::<usize>() as u64;
            count += 1;
            if bytes >= COUNTED_BYTES {
                return Ok((bytes, false));
            }
        }
        Ok((bytes, count < COUNTED_ROWS))
    }

    /// About the bytes of all ranges, with old versions, as the nodes report them.
    async fn stored_bytes(&self) -> u64 {
        let mut by_cohort: BTreeMap<u32, u64> = BTreeMap::new();
        for status in self.client.status_of_each().await.into_iter().flatten() {
            for cohort in status.cohorts.iter().filter(|cohort| cohort.table == self.table.name()) {
                let bytes = by_cohort.entry(cohort.cohort).or_default();
                *bytes = cohort.bytes.max(*bytes);
            }
        }
        by_cohort.values().sum()
    }
}
