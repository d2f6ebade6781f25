//! The invariants of a database, checked on all rows of its Loggos table, as of one moment:
//!
//! * Every row belongs to one table of the schema, or to an object that was dropped.
//! * A public index has exactly one entry for each row; one that is being filled has no others. No two rows have equal
//!   values in a unique index.
//! * An interleaved row has its parent.
//! * The sum of the balances of all accounts is constant.

use std::collections::BTreeMap;

use bytes::Bytes;
use sql::fence::{Catalog, SCHEMA, SCHEMA_ROW, TOKEN};
use sql::keys::{self, KeyReader};
use sql::rows::{StoredRow, TableRows, Write, fill_index};
use sql::schema::{Garbage, IndexState, Schema, Table};
use sql::{SqlError, Value};

/// The sum of all balances.
pub(super) const TOTAL: i64 = 500;

type Cells = BTreeMap<Bytes, Bytes>;

/// Checks all rows of a database.
///
/// # Errors
/// The first violation.
pub(super) fn check(stored: &[StoredRow]) -> Result<(), String> {
    let of_schema = stored.iter().find(|row| row.key == SCHEMA_ROW);
    let cell = |name| {
        let mut cells = of_schema.into_iter().flat_map(|row| &row.cells);
        cells.find(|(cell, _)| *cell == name).map(|(_, value)| value.clone())
    };
    let catalog = Catalog::decode(cell(TOKEN), cell(SCHEMA)).map_err(|error| format!("the schema: {error:?}"))?;
    let outcome = Database::of(&catalog.schema, stored).and_then(|database| database.check());
    outcome.map_err(|Wrong(wrong)| wrong)
}

/// The rows by table, and the entries by index.
struct Database<'a> {
    schema: &'a Schema,
    tables: Vec<(TableRows, Vec<Vec<Value>>)>,
    entries: BTreeMap<u32, BTreeMap<Bytes, Cells>>,
}

struct Wrong(String);

/// A row that cannot be decoded.
impl From<SqlError> for Wrong {
    fn from(error: SqlError) -> Self {
        Self(format!("damaged rows: {error:?}"))
    }
}

impl<'a> Database<'a> {
    fn of(schema: &'a Schema, stored: &[StoredRow]) -> Result<Self, Wrong> {
        let rows_of = |table| TableRows::new(schema, table).map(|rows| (rows, Vec::new()));
        let tables = schema.tables().map(rows_of).collect::<Result<Vec<_>, _>>()?;
        let mut database = Self { schema, tables, entries: BTreeMap::new() };
        for stored in stored.iter().filter(|stored| stored.key != SCHEMA_ROW) {
            database.add(stored)?;
        }
        Ok(database)
    }

    fn add(&mut self, stored: &StoredRow) -> Result<(), Wrong> {
        let id = KeyReader::new(&stored.key).id()?;
        let mut indexes = self.schema.tables().flat_map(|table| &table.indexes);
        if indexes.any(|index| index.id.0 == id) {
            let cells = stored.cells.iter().cloned().collect();
            self.entries.entry(id).or_default().insert(stored.key.clone(), cells);
            return Ok(());
        }
        if self.schema.garbage().contains(&Garbage::Prefix(id)) {
            return Ok(());
        }
        for (rows, found) in &mut self.tables {
            if let Some(row) = rows.decode(stored)? {
                found.push(row);
                return Ok(());
            }
        }
        Err(Wrong(format!("a row of no table: {stored:?}")))
    }

    fn check(&self) -> Result<(), Wrong> {
        for (rows, found) in &self.tables {
            for index in rows.table().indexes.iter().filter(|index| index.state != IndexState::Dropping) {
                let mut expected = BTreeMap::new();
                for row in found {
                    let (write, _) = fill_index(rows, index.id, row)?;
                    let Write::Put { key, cells } = write else { continue };
                    let cells: Cells = cells.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
                    if let Some(other) = expected.insert(key.clone(), cells) {
                        let name = &index.name;
                        return Err(Wrong(format!(
                            "two rows have the entry {key:?} of index {name}: {row:?} and {other:?}"
                        )));
                    }
                }
                let none = BTreeMap::new();
                let entries = self.entries.get(&index.id.0).unwrap_or(&none);
                let wrong = entries.iter().find(|(key, cells)| expected.get(*key) != Some(cells));
                let missing = expected.keys().find(|key| !entries.contains_key(*key));
                let missing = missing.filter(|_| index.state == IndexState::Public);
                if wrong.is_some() || missing.is_some() {
                    let (name, state) = (&index.name, index.state);
                    return Err(Wrong(format!(
                        "index {name} ({state:?}): wrong {wrong:?}, missing {missing:?} of {found:?}"
                    )));
                }
            }
            self.check_parents(rows.table(), found)?;
        }
        self.check_total()
    }

    fn check_parents(&self, table: &Table, found: &[Vec<Value>]) -> Result<(), Wrong> {
        let Some(interleave) = table.interleave else { return Ok(()) };
        let of_parent = self.tables.iter().find(|(rows, _)| rows.table().id == interleave.parent);
        let Some((parent, parents)) = of_parent else { return Ok(()) };
        let keys = parents.iter().map(|row| parent.primary_key(row)).collect::<Vec<_>>();
        let columns = parent.table().primary_key.columns.len();
        // The columns of the key are the first ones of these tables.
        match found.iter().find(|row| !keys.iter().any(|key| key[..] == row[..columns])) {
            Some(orphan) => Err(Wrong(format!("a row of {} has no parent: {orphan:?}", table.name))),
            None => Ok(()),
        }
    }

    fn check_total(&self) -> Result<(), Wrong> {
        let accounts = self.tables.iter().find(|(rows, _)| rows.table().name == "accounts");
        let Some((rows, accounts)) = accounts else { return Ok(()) };
        let balance = rows.table().columns.iter().position(|column| column.name == "balance");
        let sum: i64 = accounts.iter().filter_map(|row| row.get(balance?)?.as_integer()).sum();
        if sum == TOTAL { Ok(()) } else { Err(Wrong(format!("the sum of the balances is {sum}: {accounts:?}"))) }
    }
}

pub(super) fn everything() -> keys::KeyRange {
    keys::KeyRange { start: Bytes::new(), end: Bytes::from_static(&[0xff]) }
}
