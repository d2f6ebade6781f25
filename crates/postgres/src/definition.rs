//! Changes of the schema in one transaction, with their work on existing rows.
//!
//! The transaction reads all rows that it works on, so its commit fails if another transaction changes one meanwhile.
//! Its writes have new identifiers, which are invisible before the commit, so they are not subject to the limits of a
//! transaction. For tables with many rows, a statement outside of a block uses several transactions: [`crate::online`].

use std::collections::HashSet;
use std::sync::Arc;

use sql::ddl::{self, Work};
use sql::direct::Read;
use sql::ids::TableId;
use sql::keys::KeyRange;
use sql::rows::Write;
use sql::schema::Schema;
use sql::statement::Definition;
use sql::{SqlError, sqlstate};

use crate::failure::Failure;
use crate::jobs::{job_row, without_abandoned};
use crate::transaction::Tx;
use crate::work::RowWork;

/// Maximum rows that one transaction works on: the keys that it compares are in memory.
const ROWS_MAX: u64 = 500_000;
/// Rows that are read at once.
const PAGE_ROWS: usize = base::limits::SCAN_ROWS_MAX;

/// Executes a definition. Returns its notices.
pub(crate) async fn define(tx: &mut Tx, definition: &Definition) -> Result<Vec<String>, Failure> {
    // An old version of the schema must not decide, for example, that a table exists.
    tx.verify_now().await?;
    let (before, removed) = without_abandoned(tx).await?;
    let mut change = ddl::apply(&before, definition)?;
    let wanted = change.schema.last_id() - before.last_id();
    let mut first_id = change.schema.last_id();
    if wanted > 0 {
        first_id = tx.reserve_ids(wanted).await?;
        change = ddl::apply(&before.reserve_ids(first_id), definition)?;
    }
    if change.schema.version() == tx.schema().version() {
        return Ok(change.notices);
    }
    let deletes = removed.into_iter().map(|id| Write::Delete { key: job_row(id) });
    tx.write(&deletes.collect::<Vec<_>>())?;
    tx.set_schema(change.schema.clone(), first_id);
    let schema = fill(tx, change.schema, change.work).await?;
    let last_id = schema.last_id();
    tx.set_schema(schema, last_id);
    Ok(change.notices)
}

pub(crate) async fn truncate(
    tx: &mut Tx,
    tables: &[String],
    restart_identity: bool,
    cascade: bool,
) -> Result<(), Failure> {
    tx.verify_now().await?;
    let before = Arc::clone(&tx.catalog);
    let draft = ddl::truncate(&before.schema, tables, cascade, restart_identity)?;
    let wanted = draft.last_id() - before.schema.last_id();
    let first_id = tx.reserve_ids(wanted).await?;
    let schema = ddl::truncate(&before.schema.reserve_ids(first_id), tables, cascade, restart_identity)?;
    tx.set_schema(schema, first_id);
    Ok(())
}

/// Does the work of a change on the rows of a table. Returns the schema in which its objects are public.
async fn fill(tx: &mut Tx, mut schema: Schema, work: Vec<Work>) -> Result<Schema, Failure> {
    let Some(table) = work.first().map(Work::table) else { return Ok(schema) };
    // The rows still have the keys of the schema before the change.
    let work = RowWork::new(&schema, table, work)?;
    let mut range = work.range()?;
    let (mut seen, mut count) = (HashSet::new(), 0);
    loop {
        let page = tx.read(vec![Read::Range(range.clone(), PAGE_ROWS)]).await?.pop().unwrap_or_default();
        let needed = work.of(&page.rows, tx.now)?;
        count += needed.rows;
        if count > ROWS_MAX {
            let message = format!("table \"{}\" has more than {ROWS_MAX} rows", work.table.name);
            let error = SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message);
            return Err(error.with_hint("Run the statement outside of a transaction block.").into());
        }
        for absent in needed.absent {
            if let Some(error) = absent.error().cloned()
                && !seen.insert(absent.key)
            {
                return Err(error.into());
            }
        }
        if !needed.writes.is_empty() {
            tx.write_unseen(needed.writes).await?;
        }
        match page.next {
            Some(next) => range = KeyRange { start: next, end: range.end },
            None => break,
        }
    }
    for work in &work.work {
        match work {
            Work::FillIndex(table, index) => schema = ddl::publish_index(&schema, *table, *index)?,
            Work::FillPrimaryKey(table) => schema = ddl::publish_primary_key(&schema, *table)?,
            Work::CheckNotNull(..) | Work::CheckConstraint(..) => {}
        }
    }
    Ok(schema)
}

/// The identifiers of the keys of a table and its indexes.
pub(crate) fn ids_of(schema: &Schema, id: TableId) -> Vec<u32> {
    let Some(table) = schema.table(id) else { return Vec::new() };
    let root = schema.ancestry(table).first().map_or_else(|| table.storage(), |root| root.storage());
    std::iter::once(root.0).chain(table.indexes.iter().map(|index| index.id.0)).collect()
}
