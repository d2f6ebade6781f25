//! Changes of the schema, and their work on rows that exist.
//!
//! The whole change is one transaction: it has read all rows that it worked on, so it fails if another transaction
//! changes one meanwhile. What it writes belongs to identifiers that nobody else sees before the commit, so the amount
//! is not limited by that of a transaction.

use std::collections::HashSet;
use std::sync::Arc;

use sql::ddl::{self, Work};
use sql::direct::Read;
use sql::ids::TableId;
use sql::keys::{KeyRange, prefix_range};
use sql::rows::{Absent, TableRows, Write, fill_index, fill_primary_key};
use sql::schema::{Schema, Table};
use sql::statement::Definition;
use sql::{Environment, SqlError, Value, sqlstate};

use crate::execute::Values;
use crate::failure::Failure;
use crate::transaction::Tx;

/// Maximum rows that a change of the schema works on: the keys that it compares are in memory.
const ROWS_MAX: usize = 500_000;
/// Rows that are read at once.
const PAGE_ROWS: usize = base::limits::SCAN_ROWS_MAX;

/// Executes a definition. Returns its notices.
pub(crate) async fn define(tx: &mut Tx, definition: &Definition, values: &mut Values) -> Result<Vec<String>, Failure> {
    // It must not be decided by an old version that, for example, a table exists.
    tx.verify_now().await?;
    let before = Arc::clone(&tx.catalog);
    let mut change = ddl::apply(&before.schema, definition)?;
    let wanted = change.schema.last_id() - before.schema.last_id();
    let mut first_id = change.schema.last_id();
    if wanted > 0 {
        first_id = tx.reserve_ids(wanted).await?;
        change = ddl::apply(&before.schema.reserve_ids(first_id), definition)?;
    }
    if change.schema.version() == before.schema.version() {
        return Ok(change.notices);
    }
    // The work reads rows as they are stored before the change.
    tx.set_schema(change.schema.clone(), first_id);
    let mut schema = change.schema;
    for work in change.work {
        schema = fill(tx, schema, &work, values).await?;
    }
    let last_id = schema.last_id();
    tx.set_schema(schema, last_id);
    Ok(change.notices)
}

/// Makes tables empty.
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

fn missing() -> SqlError {
    SqlError::new(sqlstate::UNDEFINED_TABLE, "the table was dropped")
}

/// Does work on the rows of a table. Returns the schema that makes it public.
async fn fill(tx: &mut Tx, schema: Schema, work: &Work, values: &mut Values) -> Result<Schema, Failure> {
    let (Work::FillIndex(table, _)
    | Work::FillPrimaryKey(table)
    | Work::CheckNotNull(table, _)
    | Work::CheckConstraint(table, _)) = work;
    let table = Arc::clone(schema.table(*table).ok_or_else(missing)?);
    let rows = TableRows::new(&schema, &table)?;
    let mut range = prefix_range(&rows.layout().key(&[])?);
    let (mut seen, mut count) = (HashSet::new(), 0_usize);
    loop {
        let page = tx.read(vec![Read::Range(range.clone(), PAGE_ROWS)]).await?.pop().unwrap_or_default();
        let mut writes = Vec::new();
        for stored in &page.rows {
            let Some(row) = rows.decode(stored)? else { continue };
            count += 1;
            if count > ROWS_MAX {
                let message = format!("table \"{}\" has more than {ROWS_MAX} rows", table.name);
                let error = SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message);
                return Err(error.with_hint("Define keys, indexes and constraints before loading the data.").into());
            }
            let absent = work_on(&rows, &table, work, &row, tx.now, values, &mut writes)?;
            for absent in absent {
                if !seen.insert(absent.key) {
                    return Err(duplicate(absent.error, &table, work).into());
                }
            }
        }
        if !writes.is_empty() {
            tx.write_unseen(writes).await?;
        }
        match page.next {
            Some(next) => range = KeyRange { start: next, end: range.end },
            None => break,
        }
    }
    Ok(match work {
        Work::FillIndex(table, index) => ddl::publish_index(&schema, *table, *index)?,
        Work::FillPrimaryKey(table) => ddl::publish_primary_key(&schema, *table)?,
        Work::CheckNotNull(..) | Work::CheckConstraint(..) => schema,
    })
}

fn work_on(
    rows: &TableRows,
    table: &Table,
    work: &Work,
    row: &[Value],
    now: i64,
    values: &mut Values,
    writes: &mut Vec<Write>,
) -> Result<Vec<Absent>, SqlError> {
    let mut environment = Environment { parameters: &[], now, supply: values };
    match work {
        Work::FillIndex(_, index) => {
            let (write, absent) = fill_index(rows, *index, row)?;
            writes.push(write);
            Ok(absent.into_iter().collect())
        }
        Work::FillPrimaryKey(_) => {
            let (new, absent) = fill_primary_key(rows, row, &mut environment)?;
            writes.extend(new);
            Ok(absent)
        }
        Work::CheckNotNull(_, column) => {
            let number = table.columns.iter().position(|candidate| candidate.id == *column);
            if let Some(number) = number
                && row.get(number).is_none_or(Value::is_null)
            {
                let message = format!(
                    "column \"{}\" of relation \"{}\" contains null values",
                    table.columns[number].name, table.name
                );
                return Err(SqlError::new(sqlstate::NOT_NULL_VIOLATION, message));
            }
            Ok(Vec::new())
        }
        Work::CheckConstraint(_, name) => match rows.check(row, &mut environment) {
            Err(error) if error.sqlstate == sqlstate::CHECK_VIOLATION => {
                let message =
                    format!("check constraint \"{name}\" of relation \"{}\" is violated by some row", table.name);
                Err(SqlError::new(sqlstate::CHECK_VIOLATION, message))
            }
            outcome => outcome.map(|()| Vec::new()),
        },
    }
}

/// The error for two rows with the same key, as PostgreSQL words it.
fn duplicate(error: SqlError, table: &Table, work: &Work) -> SqlError {
    let name = match work {
        Work::FillIndex(_, index) => {
            table.indexes.iter().find(|candidate| candidate.id == *index).map(|index| &index.name)
        }
        _ => table.pending_key.as_ref().map(|key| &key.name),
    };
    let name = name.map_or("", |name| name.as_str());
    let detail = error.detail.map(|detail| detail.replace("already exists", "is duplicated"));
    SqlError {
        detail,
        ..SqlError::new(sqlstate::UNIQUE_VIOLATION, format!("could not create unique index \"{name}\""))
    }
}

/// The identifiers of the keys of a table and its indexes.
pub(crate) fn ids_of(schema: &Schema, id: TableId) -> Vec<u32> {
    let Some(table) = schema.table(id) else { return Vec::new() };
    let root = schema.ancestry(table).first().map_or_else(|| table.storage(), |root| root.storage());
    std::iter::once(root.0).chain(table.indexes.iter().map(|index| index.id.0)).collect()
}
