//! Work on existing rows for a new key, index or constraint.

use std::collections::HashSet;
use std::sync::Arc;

use sql::ids::TableId;
use sql::keys::{KeyRange, prefix_range};
use sql::rows::{Absent, StoredRow, TableRows, Write, fill_index, fill_primary_key};
use sql::schema::{Schema, Table, Work};
use sql::{Environment, SqlError, Value, sqlstate};

use crate::execute::Values;

/// Work on the rows of a table, by one version of the schema.
#[derive(Debug)]
pub(crate) struct RowWork {
    pub(crate) table: Arc<Table>,
    rows: TableRows,
    pub(crate) work: Vec<Work>,
}

/// The writes and checks for some rows.
#[derive(Debug, Default)]
pub(crate) struct Needed {
    /// The number of rows.
    pub(crate) rows: u64,
    pub(crate) writes: Vec<Write>,
    /// Keys that must not exist before.
    pub(crate) absent: Vec<Absent>,
}

impl RowWork {
    /// # Errors
    /// The table was dropped.
    pub(crate) fn new(schema: &Schema, table: TableId, work: Vec<Work>) -> Result<Self, SqlError> {
        let missing = || SqlError::new(sqlstate::UNDEFINED_TABLE, "the table was dropped");
        let table = Arc::clone(schema.table(table).ok_or_else(missing)?);
        Ok(Self { rows: TableRows::new(schema, &table)?, table, work })
    }

    /// The keys of the table's rows.
    pub(crate) fn range(&self) -> Result<KeyRange, SqlError> {
        Ok(prefix_range(&self.rows.layout().key(&[])?))
    }

    /// Whether it only checks rows.
    pub(crate) fn is_read_only(&self) -> bool {
        !self.work.iter().any(|work| matches!(work, Work::FillIndex(..) | Work::FillPrimaryKey(_)))
    }

    /// The writes and checks for some rows.
    ///
    /// # Errors
    /// One of them violates a constraint, or two have the same key.
    pub(crate) fn of(&self, stored: &[StoredRow], now: i64) -> Result<Needed, SqlError> {
        let (mut needed, mut values) = (Needed::default(), Values::default());
        for stored in stored {
            let Some(row) = self.rows.decode(stored)? else { continue };
            needed.rows += 1;
            for work in &self.work {
                let mut environment = Environment { parameters: &[], now, supply: &mut values };
                self.of_row(work, &row, &mut needed, &mut environment)?;
            }
        }
        let mut keys = HashSet::new();
        for absent in &needed.absent {
            if let Some(error) = absent.error()
                && !keys.insert(&absent.key)
            {
                return Err(error.clone());
            }
        }
        Ok(needed)
    }

    fn of_row(
        &self,
        work: &Work,
        row: &[Value],
        needed: &mut Needed,
        environment: &mut Environment,
    ) -> Result<(), SqlError> {
        match work {
            Work::FillIndex(_, index) => {
                let (write, absent) = fill_index(&self.rows, *index, row)?;
                needed.writes.push(write);
                needed.absent.extend(absent);
            }
            Work::FillPrimaryKey(_) => {
                let (writes, absent) = fill_primary_key(&self.rows, row)?;
                needed.writes.extend(writes);
                needed.absent.extend(absent);
            }
            Work::CheckNotNull(_, column) => {
                let columns = self.table.columns.iter().zip(row);
                let mut nulls = columns.filter(|(candidate, value)| candidate.id == *column && value.is_null());
                if let Some((column, _)) = nulls.next() {
                    let (column, table) = (&column.name, &self.table.name);
                    let message = format!("column \"{column}\" of relation \"{table}\" contains null values");
                    return Err(SqlError::new(sqlstate::NOT_NULL_VIOLATION, message));
                }
            }
            Work::CheckConstraint(_, name) => {
                if !self.rows.holds(name, row, environment)? {
                    let table = &self.table.name;
                    let message =
                        format!("check constraint \"{name}\" of relation \"{table}\" is violated by some row");
                    return Err(SqlError::new(sqlstate::CHECK_VIOLATION, message));
                }
            }
        }
        Ok(())
    }
}
