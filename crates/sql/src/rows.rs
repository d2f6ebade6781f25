//! Encodes rows of a table as cells, and changes of rows as writes of their cells and index entries.

use std::sync::Arc;

use base::canary::{Bug, planted};
use bytes::Bytes;

use crate::bind::Unbound;
use crate::cells;
use crate::error::{SqlError, sqlstate};
use crate::expression::{Environment, Expression, Rows, truth};
use crate::ids::{ColumnId, IndexId};
use crate::keys::{self, IndexLayout, RowLayout};
use crate::schema::{Column, Index, IndexState, KeyPart, Schema, Table};
use crate::value::Value;

/// A row of the store: its key, and its cells by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredRow {
    pub key: Bytes,
    /// The cells, in any order.
    pub cells: Vec<(Bytes, Bytes)>,
}

/// A change of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Sets cells of a row; those without a value are deleted.
    Put { key: Bytes, cells: Vec<(Bytes, Option<Bytes>)> },
    /// Deletes all cells of a row.
    Delete { key: Bytes },
}

impl Write {
    /// The key of the row that it changes.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        let (Self::Put { key, .. } | Self::Delete { key }) = self;
        key
    }
}

/// A key that is read before the writes: it must not exist, or must be the entry of a given row, its owner.
///
/// While a unique index is being filled, the entry with the values of a changed row may belong to another row with the
/// same values. Such an entry must be neither replaced nor deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    pub key: Bytes,
    /// The owner, as a cell of its entry: name and value.
    owner: Option<(Bytes, Bytes)>,
    /// The error if the key belongs to another row. Without one, the entry is deleted if it belongs to the owner.
    error: Option<SqlError>,
}

impl Absent {
    /// A key that must not exist, and the error if it does.
    pub(crate) fn new(key: Bytes, error: SqlError) -> Self {
        Self { key, owner: None, error: Some(error) }
    }

    fn or_of(self, owner: (Bytes, Bytes)) -> Self {
        Self { owner: Some(owner), ..self }
    }

    fn delete(key: Bytes, owner: (Bytes, Bytes)) -> Self {
        Self { key, owner: Some(owner), error: None }
    }

    /// The error if the key belongs to another row, if that is an error.
    #[must_use]
    pub fn error(&self) -> Option<&SqlError> {
        self.error.as_ref()
    }

    /// Whether the existing entry belongs to the owner.
    #[must_use]
    pub fn is_own(&self, found: &StoredRow) -> bool {
        self.owner.as_ref().is_some_and(|owner| found.cells.contains(owner))
    }

    /// Whether the existing entry must be deleted.
    #[must_use]
    pub fn deletes(&self, found: Option<&StoredRow>) -> bool {
        self.error.is_none() && found.is_some_and(|found| self.is_own(found))
    }

    /// Checks the existing entry, if there is one.
    ///
    /// # Errors
    /// The key belongs to another row.
    pub fn verify(&self, found: Option<&StoredRow>) -> Result<(), SqlError> {
        match &self.error {
            Some(error) if found.is_some_and(|found| !self.is_own(found)) => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// A table with the layouts of its keys, which are computed once for each prepared statement. Planned queries, and work
/// on existing rows after a change of the schema, also use it to read and write rows.
#[derive(Clone, Debug)]
pub struct TableRows {
    pub(crate) table: Arc<Table>,
    /// The keys of the rows.
    pub(crate) layout: RowLayout,
    pending: Option<RowLayout>,
    /// The indexes that writes maintain.
    pub(crate) indexes: Vec<(Index, IndexLayout)>,
    checks: Vec<(String, Expression)>,
    /// How each column is found in a row of the store.
    places: Vec<Place>,
}

/// Where a column is in a row of the store.
#[derive(Clone, Debug)]
struct Place {
    /// The name of its cell.
    cell: Bytes,
    /// Its number in the primary key, if it is a part of it.
    in_key: Option<usize>,
}

/// The columns of a table that a statement uses.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Indexed by the numbers of columns.
    columns: Vec<bool>,
    cells: Option<Arc<[Bytes]>>,
}

impl Wanted {
    /// The marker and the cells that contain them; none if these are all cells of a row.
    #[must_use]
    pub fn cells(&self) -> Option<&Arc<[Bytes]>> {
        self.cells.as_ref()
    }
}

impl TableRows {
    /// # Errors
    /// A condition of the table can only be evaluated by a planner.
    pub(crate) fn bound(schema: &Schema, table: &Arc<Table>) -> Result<Self, Unbound> {
        let live = table.indexes.iter().filter(|index| index.state != IndexState::Dropping);
        let mut checks = Vec::new();
        for check in &table.checks {
            let parsed = crate::parse::parse_expression(&check.expression)?;
            let mut binder = crate::bind::Binder::new(schema, &check.expression, &[]);
            binder.table = Some((table, table.name.clone()));
            checks.push((check.name.clone(), binder.condition(&parsed)?));
        }
        let key = &table.primary_key.columns;
        let place = |column: &Column| Place {
            cell: cells::name(column.id),
            in_key: key.iter().position(|part| part.column == column.id),
        };
        Ok(Self {
            places: table.columns.iter().map(place).collect(),
            table: Arc::clone(table),
            layout: schema.row_layout(table),
            pending: table.pending_layout(),
            indexes: live.map(|index| (index.clone(), table.index_layout(index))).collect(),
            checks,
        })
    }

    /// The table of a schema, with the layouts of its keys.
    ///
    /// # Errors
    /// A condition of the table is not valid in this version.
    pub fn new(schema: &Schema, table: &Arc<Table>) -> Result<Self, SqlError> {
        Self::bound(schema, table).map_err(|unbound| match unbound {
            Unbound::Error(error) => error,
            // Definitions with such conditions are refused.
            Unbound::NeedsPlanner => SqlError::unsupported("a check constraint of this table"),
        })
    }

    /// The columns with these numbers.
    #[must_use]
    pub fn wanted(&self, numbers: impl IntoIterator<Item = usize>) -> Wanted {
        let mut columns = vec![false; self.places.len()];
        for number in numbers {
            if let Some(column) = columns.get_mut(number) {
                *column = true;
            }
        }
        // Other columns are only part of the key.
        let has_cell = |column: &Column| !(self.table.is_in_key(column.id) && keys::is_exact(&column.sql_type));
        let is_whole =
            columns.iter().zip(&self.table.columns).all(|(is_wanted, column)| *is_wanted || !has_cell(column));
        let marker = Bytes::from_static(cells::MARKER_NAME);
        let places = columns.iter().zip(&self.table.columns).zip(&self.places);
        let named = places.filter(|((is_wanted, column), _)| **is_wanted && has_cell(column));
        let cells = std::iter::once(marker).chain(named.map(|(_, place)| place.cell.clone())).collect();
        Wanted { cells: (!is_whole).then_some(cells), columns }
    }

    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The keys of its rows.
    #[must_use]
    pub fn layout(&self) -> &RowLayout {
        &self.layout
    }

    pub(crate) fn column_number(&self, id: ColumnId) -> Option<usize> {
        self.table.columns.iter().position(|column| column.id == id)
    }

    fn picked(&self, ids: impl Iterator<Item = ColumnId>, row: &[Value]) -> Vec<Value> {
        ids.map(|id| self.column_number(id).and_then(|number| row.get(number)).cloned().unwrap_or(Value::Null))
            .collect()
    }

    /// The values of the primary key of a row with a value for each column.
    #[must_use]
    pub fn primary_key(&self, row: &[Value]) -> Vec<Value> {
        self.picked(self.table.primary_key.columns.iter().map(|part| part.column), row)
    }

    pub(crate) fn indexed(&self, index: &Index, row: &[Value]) -> Vec<Value> {
        self.picked(index.columns.iter().map(|part| part.column), row)
    }

    /// The key of a row with a value for each column.
    ///
    /// # Errors
    /// 54000: it is too long.
    pub fn key(&self, row: &[Value]) -> Result<Bytes, SqlError> {
        let key = self.layout.key(&self.primary_key(row))?;
        keys::check_length(&key)?;
        Ok(key.into())
    }

    /// The values of all columns; `None` if the key belongs to another table, or there is no row.
    ///
    /// # Errors
    /// XX001: the cells are damaged.
    pub fn decode(&self, stored: &StoredRow) -> Result<Option<Vec<Value>>, SqlError> {
        self.decode_columns(stored, |_| true)
    }

    /// As [`Self::decode`], with NULL for columns that are not wanted.
    ///
    /// # Errors
    /// As there.
    pub fn decode_wanted(&self, stored: &StoredRow, wanted: &Wanted) -> Result<Option<Vec<Value>>, SqlError> {
        self.decode_columns(stored, |number| wanted.columns.get(number) == Some(&true))
    }

    fn decode_columns(
        &self,
        stored: &StoredRow,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Result<Option<Vec<Value>>, SqlError> {
        let cell = |name: &[u8]| stored.cells.iter().find(|(candidate, _)| *candidate == name).map(|(_, value)| value);
        let Some(marker) = cell(cells::MARKER_NAME) else { return Ok(None) };
        let Some(key) = self.layout.decode(&stored.key)? else { return Ok(None) };
        let known = read_marker(marker)?;
        let mut row = Vec::with_capacity(self.table.columns.len());
        for (number, (column, place)) in self.table.columns.iter().zip(&self.places).enumerate() {
            if !is_wanted(number) {
                row.push(Value::Null);
                continue;
            }
            row.push(match (cell(&place.cell), place.in_key.and_then(|number| key.get(number))) {
                (Some(cell), _) => cells::decode(cell, &column.sql_type)?,
                (None, Some(value)) => value.clone(),
                (None, None) => match &column.initial {
                    Some(initial) if column.id > known => column.sql_type.parse(initial)?,
                    _ => Value::Null,
                },
            });
        }
        Ok(Some(row))
    }

    /// The cells of a row; `None` for columns that are NULL, or that the key contains.
    fn cells(&self, row: &[Value]) -> Result<Vec<(ColumnId, Option<Bytes>)>, SqlError> {
        let cell = |(column, value): (&crate::schema::Column, &Value)| {
            let is_in_key = self.table.is_in_key(column.id) && keys::is_exact(&column.sql_type);
            let cell = if is_in_key { None } else { cells::encode(value)? };
            if cell.as_ref().is_some_and(|cell| cell.len() > base::limits::VALUE_BYTES_MAX) {
                let message =
                    format!("value of column \"{}\" exceeds {} bytes", column.name, base::limits::VALUE_BYTES_MAX);
                return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message));
            }
            Ok((column.id, cell))
        };
        self.table.columns.iter().zip(row).map(cell).collect()
    }

    /// Checks `NOT NULL` and `CHECK`.
    ///
    /// # Errors
    /// 23502 and 23514, and errors of the conditions.
    pub fn check(&self, row: &[Value], environment: &mut Environment) -> Result<(), SqlError> {
        for (column, value) in self.table.columns.iter().zip(row) {
            if value.is_null() && self.table.is_required(column) {
                let message = format!(
                    "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                    column.name, self.table.name
                );
                let error = SqlError::new(sqlstate::NOT_NULL_VIOLATION, message).with_detail(self.failing(row));
                return Err(error.about(&self.table.name, Some(&column.name), None));
            }
        }
        for (name, condition) in &self.checks {
            let value = condition.evaluate(Rows { row, excluded: &[] }, environment)?;
            if truth(&value)? == Some(false) {
                let message =
                    format!("new row for relation \"{}\" violates check constraint \"{name}\"", self.table.name);
                let error = SqlError::new(sqlstate::CHECK_VIOLATION, message).with_detail(self.failing(row));
                return Err(error.about(&self.table.name, None, Some(name)));
            }
        }
        Ok(())
    }

    /// Whether a row satisfies a `CHECK` constraint; true if there is none of this name.
    ///
    /// # Errors
    /// Errors of the condition.
    pub fn holds(&self, check: &str, row: &[Value], environment: &mut Environment) -> Result<bool, SqlError> {
        let Some((_, condition)) = self.checks.iter().find(|(name, _)| name == check) else { return Ok(true) };
        let value = condition.evaluate(Rows { row, excluded: &[] }, environment)?;
        Ok(truth(&value)? != Some(false))
    }

    fn failing(&self, row: &[Value]) -> String {
        let shown = self.table.columns.iter().zip(row).filter(|(column, _)| !column.is_hidden);
        let shown: Vec<String> = shown.map(|(_, value)| shorten(value)).collect();
        format!("Failing row contains ({}).", shown.join(", "))
    }

    /// The error of a violated unique index, or of the primary key.
    #[must_use]
    pub fn duplicate(&self, index: Option<&Index>, row: &[Value]) -> SqlError {
        let key = &self.table.primary_key;
        let (name, parts) = index.map_or((&key.name, &key.columns), |index| (&index.name, &index.columns));
        self.duplicate_of(name, parts, row)
    }

    fn duplicate_of(&self, name: &str, parts: &[KeyPart], row: &[Value]) -> SqlError {
        let message = format!("duplicate key value violates unique constraint \"{name}\"");
        let detail = format!("{} already exists.", self.describe(parts, row));
        SqlError::new(sqlstate::UNIQUE_VIOLATION, message).with_detail(detail).about(&self.table.name, None, Some(name))
    }

    /// The error of existing rows with equal keys.
    fn not_unique(&self, name: &str, parts: &[KeyPart], row: &[Value]) -> SqlError {
        let error = SqlError::new(sqlstate::UNIQUE_VIOLATION, format!("could not create unique index \"{name}\""));
        error.with_detail(format!("{} is duplicated.", self.describe(parts, row)))
    }

    /// The values of a key with its columns, for errors.
    fn describe(&self, parts: &[KeyPart], row: &[Value]) -> String {
        let columns = parts.iter().filter_map(|part| self.column_number(part.column));
        let (names, values): (Vec<&str>, Vec<String>) = columns
            .map(|number| {
                let name = self.table.columns.get(number).map_or("", |column| column.name.as_str());
                (name, row.get(number).map_or_else(String::new, shorten))
            })
            .unzip();
        format!("Key ({})=({})", names.join(", "), values.join(", "))
    }

    /// The writes that replace one state of a row by another, and the keys to read before them ([`Absent`]). If both
    /// states exist, they have the same primary key. The caller checks that the key of a new row is free.
    ///
    /// # Errors
    /// 54000: a key or a value is too long.
    pub fn change(
        &self,
        before: Option<&[Value]>,
        after: Option<&[Value]>,
        writes: &mut Vec<Write>,
        absent: &mut Vec<Absent>,
    ) -> Result<(), SqlError> {
        self.change_row(&self.layout, before, after, writes)?;
        if let Some(pending) = &self.pending {
            self.change_pending(pending, before, after, writes, absent)?;
        }
        for (index, layout) in &self.indexes {
            if planted(Bug::IndexNotUpdated) && before.is_some() && after.is_some()
                || planted(Bug::BackfillMissesWrite) && index.state == IndexState::WriteOnly
            {
                continue;
            }
            let entry = |row: &[Value]| self.entry(index, layout, row);
            let old = before.map(entry).transpose()?;
            let new = after.map(entry).transpose()?;
            if old == new {
                continue;
            }
            let is_same_key = matches!((&old, &new), (Some(old), Some(new)) if old.key == new.key);
            let is_shared = index.is_unique && index.state == IndexState::WriteOnly;
            if let Some(old) = old.filter(|_| !is_same_key) {
                if is_shared {
                    absent.push(Absent::delete(old.key.clone(), reference(&old)));
                } else {
                    writes.push(Write::Delete { key: old.key });
                }
            }
            if let (Some(new), Some(row)) = (new, after) {
                let check = || Absent::new(new.key.clone(), self.duplicate(Some(index), row));
                if index.is_unique && !is_same_key && !planted(Bug::UniqueNotRead) {
                    absent.push(check());
                } else if is_shared {
                    absent.push(check().or_of(reference(&new)));
                }
                let stored = index.storing.iter().map(|id| cells::name(*id));
                let missing =
                    stored.filter(|name| new.cells.iter().all(|(cell, _)| cell != name)).map(|name| (name, None));
                let missing: Vec<_> = if is_same_key { missing.collect() } else { Vec::new() };
                let cells = new.cells.into_iter().map(|(name, value)| (name, Some(value))).chain(missing);
                writes.push(Write::Put { key: new.key, cells: cells.collect() });
            }
        }
        Ok(())
    }

    fn change_row(
        &self,
        layout: &RowLayout,
        before: Option<&[Value]>,
        after: Option<&[Value]>,
        writes: &mut Vec<Write>,
    ) -> Result<(), SqlError> {
        let key = |row: &[Value]| Ok::<_, SqlError>(Bytes::from(layout.key(&self.primary_key(row))?));
        let Some(after) = after else {
            if let Some(before) = before {
                writes.push(Write::Delete { key: key(before)? });
            }
            return Ok(());
        };
        let old = before.map(|row| self.cells(row)).transpose()?;
        let mut new = Vec::new();
        for (number, (id, cell)) in self.cells(after)?.into_iter().enumerate() {
            let is_same = old.as_ref().and_then(|old| old.get(number)).is_some_and(|(_, old)| *old == cell);
            // A row that is older than the column has no cell for it, even if the value stays the same.
            let may_be_initial = self.table.columns.get(number).is_some_and(|column| column.initial.is_some());
            let is_absent = cell.is_none() && old.is_none();
            if (!is_same || may_be_initial) && !is_absent {
                new.push((cells::name(id), cell));
            }
        }
        new.push((cells::name(cells::MARKER), Some(write_marker(self.table.last_column))));
        writes.push(Write::Put { key: key(after)?, cells: new });
        Ok(())
    }

    /// Maintains the rows under a primary key that is being added.
    fn change_pending(
        &self,
        layout: &RowLayout,
        before: Option<&[Value]>,
        after: Option<&[Value]>,
        writes: &mut Vec<Write>,
        absent: &mut Vec<Absent>,
    ) -> Result<(), SqlError> {
        let Some(pending) = &self.table.pending_key else { return Ok(()) };
        let key = |row: &[Value]| {
            let values = self.picked(pending.columns.iter().map(|part| part.column), row);
            Ok::<_, SqlError>(Bytes::from(layout.key(&values)?))
        };
        let old = before.map(key).transpose()?;
        let new = after.map(key).transpose()?;
        if let (Some(old), Some(row)) = (old.clone().filter(|_| old != new), before) {
            absent.push(Absent::delete(old, self.hidden_key(row)?));
        }
        if let (Some(new), Some(row)) = (new.clone(), after) {
            keys::check_length(&new)?;
            // The old key becomes a cell, which identifies the row.
            let is_cell = |column: &Column| !(pending.has(column.id) && keys::is_exact(&column.sql_type));
            let columns = self.table.columns.iter().zip(row).filter(|(column, _)| is_cell(column));
            let cells = columns.map(|(column, value)| {
                let cell = if value.is_null() { None } else { cells::encode(value)? };
                Ok((cells::name(column.id), cell))
            });
            let mut cells = cells.collect::<Result<Vec<_>, SqlError>>()?;
            cells.retain(|(_, cell)| cell.is_some() || before.is_some());
            cells.push((cells::name(cells::MARKER), Some(write_marker(self.table.last_column))));
            let check = Absent::new(new.clone(), self.duplicate_of(&pending.name, &pending.columns, row));
            absent.push(if old.as_ref() == Some(&new) { check.or_of(self.hidden_key(row)?) } else { check });
            writes.push(Write::Put { key: new, cells });
        }
        Ok(())
    }

    /// The hidden column of a row as a cell. It is the key until the new primary key is public.
    fn hidden_key(&self, row: &[Value]) -> Result<(Bytes, Bytes), SqlError> {
        let hidden = self.table.primary_key.columns.first().map_or(cells::MARKER, |part| part.column);
        let value = self.primary_key(row).first().map(cells::encode).transpose()?.flatten();
        Ok((cells::name(hidden), value.unwrap_or_default()))
    }

    /// The entry of an index for a row.
    pub(crate) fn entry(&self, index: &Index, layout: &IndexLayout, row: &[Value]) -> Result<StoredRow, SqlError> {
        let (key, reference) = layout.entry(&self.indexed(index, row), &self.primary_key(row))?;
        keys::check_length(&key)?;
        let mut cells = vec![(cells::name(cells::MARKER), Bytes::from(reference))];
        for id in &index.storing {
            let value = self.column_number(*id).and_then(|number| row.get(number)).unwrap_or(&Value::Null);
            if let Some(cell) = cells::encode(value)? {
                cells.push((cells::name(*id), cell));
            }
        }
        Ok(StoredRow { key: key.into(), cells })
    }
}

/// The cell of a unique index's entry that contains the key of its row.
fn reference(entry: &StoredRow) -> (Bytes, Bytes) {
    let marker = cells::name(cells::MARKER);
    entry.cells.iter().find(|(name, _)| *name == marker).cloned().unwrap_or_default()
}

/// The write that adds an existing row to an index and, for a unique index, the key that must not exist yet, or must
/// belong to this row.
///
/// # Errors
/// 54000: the key of the entry is too long.
pub fn fill_index(rows: &TableRows, index: IndexId, row: &[Value]) -> Result<(Write, Option<Absent>), SqlError> {
    let found = rows.indexes.iter().find(|(candidate, _)| candidate.id == index);
    let (index, layout) =
        found.ok_or_else(|| SqlError::new(sqlstate::UNDEFINED_OBJECT, format!("index {index} does not exist")))?;
    let entry = rows.entry(index, layout, row)?;
    let error = || rows.not_unique(&index.name, &index.columns, row);
    let absent = index.is_unique.then(|| Absent::new(entry.key.clone(), error()).or_of(reference(&entry)));
    let cells = entry.cells.into_iter().map(|(name, value)| (name, Some(value))).collect();
    Ok((Write::Put { key: entry.key, cells }, absent))
}

/// The writes that store an existing row under the primary key that is being added, and the key that must not exist
/// yet, or must belong to this row. A separate check finds NULLs in columns of the key
/// ([`crate::schema::Work::CheckNotNull`]).
///
/// # Errors
/// 54000: the key is too long.
pub fn fill_primary_key(rows: &TableRows, row: &[Value]) -> Result<(Vec<Write>, Vec<Absent>), SqlError> {
    let (mut writes, mut absent) = (Vec::new(), Vec::new());
    if let (Some(layout), Some(key)) = (&rows.pending, &rows.table.pending_key) {
        rows.change_pending(layout, None, Some(row), &mut writes, &mut absent)?;
        for absent in &mut absent {
            absent.owner = Some(rows.hidden_key(row)?);
            absent.error = Some(rows.not_unique(&key.name, &key.columns, row));
        }
    }
    Ok((writes, absent))
}

/// A value in an error, at most 64 characters of it.
fn shorten(value: &Value) -> String {
    let Some(text) = value.to_text() else { return "null".to_owned() };
    match text.char_indices().nth(64) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// The value of a row's marker cell: the greatest column in the schema of the writer.
fn write_marker(last: ColumnId) -> Bytes {
    let bytes = last.0.to_le_bytes();
    let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Bytes::copy_from_slice(&bytes[..length])
}

fn read_marker(bytes: &[u8]) -> Result<ColumnId, SqlError> {
    let mut all = [0; 4];
    all.get_mut(..bytes.len()).ok_or_else(|| SqlError::corrupt("a marker cell"))?.copy_from_slice(bytes);
    Ok(ColumnId(u32::from_le_bytes(all)))
}
