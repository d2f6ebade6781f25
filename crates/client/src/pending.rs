//! The writes of a transaction before its commit, and rows as the transaction sees them.
//!
//! They are independent of the types of rows, so that the client library and the simulator run the same code.

use std::collections::BTreeMap;
use std::collections::btree_map::IntoIter;

use base::canary::{Bug, planted};
use bytes::Bytes;

/// A row of a table: the table's name, and the row's key.
pub type RowName = (String, Bytes);

/// A column of a row that was read, or that the transaction has put.
pub trait PendingCell {
    /// The name of the column.
    fn column(&self) -> &Bytes;

    /// A column that the transaction has put.
    fn put(column: Bytes, value: Bytes) -> Self;
}

/// A column's name and value.
impl PendingCell for (Bytes, Bytes) {
    fn column(&self) -> &Bytes {
        &self.0
    }

    fn put(column: Bytes, value: Bytes) -> Self {
        (column, value)
    }
}

/// The changes of one row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowWrite {
    /// Delete the row, with all its columns, before the columns are changed.
    pub deletes_row: bool,
    /// The columns, each with its new value; none deletes the column.
    pub columns: BTreeMap<Bytes, Option<Bytes>>,
}

/// The writes so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingWrites(BTreeMap<RowName, RowWrite>);

impl PendingWrites {
    /// The changes of a row, if there are any.
    #[must_use]
    pub fn of(&self, row: &RowName) -> Option<&RowWrite> {
        self.0.get(row)
    }

    /// The number of rows that change.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rows that change, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&RowName, &RowWrite)> {
        self.0.iter()
    }

    /// Changes a column of a row. Without a value, the column is deleted.
    pub fn change(&mut self, row: RowName, column: Bytes, value: Option<Bytes>) {
        self.0.entry(row).or_default().columns.insert(column, value);
    }

    /// Deletes a row, and forgets earlier changes of it, which it returns.
    pub fn delete_row(&mut self, row: RowName) -> Option<RowWrite> {
        self.0.insert(row, RowWrite { deletes_row: true, columns: BTreeMap::new() })
    }

    /// A row that was read, with its own changes. The columns are in order of name.
    #[must_use]
    pub fn over<C: PendingCell>(&self, row: &RowName, cells: Vec<C>) -> Vec<C> {
        match self.of(row) {
            Some(own) => own.over(cells),
            None => cells,
        }
    }

    /// The rows of a page that covers the keys from `start` to before `end`, in order of key, with their own changes.
    #[must_use]
    pub fn merged<C: PendingCell>(
        &self,
        table: &str,
        start: &Bytes,
        end: Option<&Bytes>,
        page: Vec<(Bytes, Vec<C>)>,
    ) -> Vec<(Bytes, Vec<C>)> {
        let own = self.0.range((table.to_owned(), start.clone())..);
        let mut own = own.take_while(|((of, key), _)| of == table && end.is_none_or(|end| key < end)).peekable();
        if own.peek().is_none() {
            return page;
        }
        let mut rows: BTreeMap<Bytes, Vec<C>> = page.into_iter().collect();
        for ((_, key), write) in own {
            let cells = write.over(rows.remove(key).unwrap_or_default());
            if !cells.is_empty() {
                rows.insert(key.clone(), cells);
            }
        }
        rows.into_iter().collect()
    }
}

impl IntoIterator for PendingWrites {
    type Item = (RowName, RowWrite);
    type IntoIter = IntoIter<RowName, RowWrite>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl RowWrite {
    pub fn over<C: PendingCell>(&self, mut cells: Vec<C>) -> Vec<C> {
        if planted(Bug::OwnWriteMissed) {
            return cells;
        }
        if self.deletes_row {
            cells.clear();
        }
        cells.retain(|cell| !self.columns.contains_key(cell.column()));
        let values = self.columns.iter().filter_map(|(column, value)| Some((column, value.clone()?)));
        cells.extend(values.map(|(column, value)| C::put(column.clone(), value)));
        cells.sort_by(|one, other| one.column().cmp(other.column()));
        cells
    }
}
