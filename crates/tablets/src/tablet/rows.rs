//! Rows, as one ordered, persistent map from (key, column) to the column's versions.
//!
//! A row is the run of cells with its key; it is there while one of its columns is. One flat map (and not a map of maps)
//! costs a row of one column no more than its cell, and a row of a million columns no more per write than any other.
//! The map shares its nodes with its copies, so that a frozen copy costs nothing when taken, and a write after it copies
//! one path.
//!
//! Dead versions go when their column is written, and by a sweep that each entry takes a few steps of: every version that
//! a later watermark may kill is queued, and since versions are queued in the order of their timestamps, the sweep only
//! ever looks at the queue's head. Sweeping is not replicated: it changes nothing that a read could tell.

use std::collections::VecDeque;

use base::{Entry, Timestamp};
use bytes::Bytes;
use imbl::OrdMap;

use super::versions::{Version, Versions};
use crate::hash::LogicalHash;
use crate::pinning::owned;
use crate::request::{Mismatch, Mutation};

/// Where a column of a row is. A column's name is never empty, so `(key, "")` lies before all cells of its row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CellKey {
    pub(crate) key: Bytes,
    pub(crate) column: Bytes,
}

pub(crate) type Cells = OrdMap<CellKey, Versions>;

/// All cells of a tablet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    cells: Cells,
    watermark: Timestamp,
    bytes: usize,
    /// Cells in which a watermark at or above the timestamp lets something go, in the order of these timestamps. It holds
    /// no more than there are versions.
    garbage: VecDeque<(Timestamp, CellKey)>,
    /// How many of the garbage the sweep still may look at for what was written.
    sweep_budget: usize,
}

/// Bytes of a cell beside its names and versions: its place in a node of the map, and the node's share of slack.
const CELL_BYTES: usize = size_of::<CellKey>() + 64;

/// Steps of the sweep that every entry pays for, and that every mutation pays for: more than one, or it would never catch
/// up with a queue that grew while the watermark stood still.
const SWEEP_STEPS_PER_ENTRY: usize = 4;
const SWEEP_STEPS_PER_MUTATION: usize = 2;

impl Rows {
    pub(crate) fn cells(&self) -> &Cells {
        &self.cells
    }

    pub(crate) fn watermark(&self) -> Timestamp {
        self.watermark
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn raise_watermark(&mut self, watermark: Timestamp) {
        self.watermark = self.watermark.max(watermark);
    }

    /// Gives columns of a row new values, or none.
    pub(crate) fn put(&mut self, key: &Bytes, columns: Vec<(Bytes, Option<Bytes>)>, entry: &Entry) {
        let mut row = None;
        self.sweep_budget += SWEEP_STEPS_PER_MUTATION * columns.len();
        for (column, value) in columns {
            let value = value.as_ref().map(|value| owned(value, entry.payload.len()));
            let version = Version { timestamp: entry.timestamp, value };
            let cell = CellKey { key: key.clone(), column };
            if let Some(version) = self.renew(&cell, version)
                && version.value.is_some()
            {
                let key = row.get_or_insert_with(|| owned(key, entry.payload.len())).clone();
                let column = owned(&cell.column, entry.payload.len());
                self.insert(CellKey { key, column }, Versions::new(version));
            }
        }
    }

    /// Deletes every column of a row.
    pub(crate) fn delete_row(&mut self, key: &Bytes, entry: &Entry) {
        let columns = self.row(key).map(|(cell, _)| (cell.column.clone(), None)).collect();
        self.put(key, columns, entry);
    }

    /// Adds a version to a cell that is there, and gives it back if there is none. A deleted column's deletion adds
    /// nothing: nobody could tell.
    fn renew(&mut self, cell: &CellKey, version: Version) -> Option<Version> {
        let Some((cell, versions)) = self.cells.get_key_value_mut(cell) else { return Some(version) };
        if version.value.is_none() && versions.newest().value.is_none() {
            return None;
        }
        let timestamp = version.timestamp;
        let replaced = versions.push(version);
        self.bytes += versions.newest().bytes();
        self.bytes -= replaced.as_ref().map_or(0, Version::bytes);
        self.bytes -= versions.drop_oldest(versions.dead(self.watermark));
        if versions.has_garbage_to_come() {
            self.garbage.push_back((timestamp, cell.clone()));
        }
        None
    }

    /// Puts a cell in that is not there.
    fn insert(&mut self, cell: CellKey, versions: Versions) {
        self.bytes += cell_bytes(&cell) + versions.bytes();
        let before = self.cells.insert(cell, versions);
        assert!(before.is_none(), "looked up before");
    }

    /// Puts the next cell of a checkpoint in; false if it is not after all that are in already.
    pub(crate) fn load(&mut self, cell: CellKey, versions: Versions) -> bool {
        if self.cells.get_max().is_some_and(|(last, _)| *last >= cell) {
            return false;
        }
        if versions.has_garbage_to_come() {
            self.garbage.push_back((versions.newest().timestamp, cell.clone()));
        }
        self.insert(cell, versions);
        true
    }

    /// Ends the loading of a checkpoint: the sweep wants its queue in the order of timestamps.
    pub(crate) fn loaded(&mut self) {
        self.garbage.make_contiguous().sort();
    }

    /// Lets go of some of what is dead below the watermark; how much is bounded by what was written since.
    pub(crate) fn sweep(&mut self) {
        self.sweep_budget += SWEEP_STEPS_PER_ENTRY;
        while self.sweep_budget > 0 {
            self.sweep_budget -= 1;
            match self.garbage.pop_front_if(|(timestamp, _)| *timestamp <= self.watermark) {
                Some((_, cell)) => self.prune(&cell),
                None => self.sweep_budget = 0,
            }
        }
    }

    fn prune(&mut self, cell: &CellKey) {
        let Some(dead) = self.cells.get(cell).map(|versions| versions.dead(self.watermark)) else { return };
        if dead == 0 {
            return;
        }
        let Some(versions) = self.cells.get_mut(cell) else { return };
        if dead < versions.len() {
            self.bytes -= versions.drop_oldest(dead);
        } else if let Some(gone) = self.cells.remove(cell) {
            self.bytes -= cell_bytes(cell) + gone.bytes();
        }
    }

    pub(crate) fn check_conditions(&self, key: &Bytes, mutations: &[Mutation]) -> Result<(), Mismatch> {
        for Mutation { column, condition, .. } in mutations {
            let Some(expected) = *condition else { continue };
            let cell = CellKey { key: key.clone(), column: column.clone() };
            let actual = self.cells.get(&cell).map_or(Timestamp(0), Versions::current);
            if actual != expected {
                return Err(Mismatch { column: Bytes::copy_from_slice(column), expected, actual });
            }
        }
        Ok(())
    }

    /// Checks what must always hold.
    pub(crate) fn invariants(&self, last_timestamp: Timestamp) {
        let mut bytes = 0;
        for (cell, versions) in &self.cells {
            versions.invariants(last_timestamp);
            bytes += cell_bytes(cell) + versions.bytes();
        }
        assert_eq!(bytes, self.bytes, "the account of bytes is what the cells take");
        assert!(self.garbage.iter().is_sorted_by_key(|(timestamp, _)| timestamp), "the sweep looks at the head only");
    }

    pub(crate) fn hash(&self, hash: &mut LogicalHash) {
        hash.signed(self.watermark.0);
        for (cell, version) in living(self.cells.iter(), self.watermark) {
            hash.bytes(&cell.key);
            hash.bytes(&cell.column);
            hash.signed(version.timestamp.0);
            hash.word(u64::from(version.value.is_some()));
            hash.bytes(version.value.as_deref().unwrap_or_default());
        }
    }
}

fn cell_bytes(cell: &CellKey) -> usize {
    CELL_BYTES + cell.key.len() + cell.column.len()
}

/// Every version of `cells` that a read at or above `watermark` can tell, in their order, the newest of a cell first.
pub(crate) fn living<'a>(
    cells: impl Iterator<Item = (&'a CellKey, &'a Versions)>,
    watermark: Timestamp,
) -> impl Iterator<Item = (&'a CellKey, &'a Version)> {
    cells.flat_map(move |(cell, versions)| versions.living(watermark).map(move |version| (cell, version)))
}
