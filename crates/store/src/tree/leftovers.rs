//! Tables that trees have given up, until nobody reads them any more: only then do their files go.
//!
//! Two trees may have shared a table, after a range was split. Whichever gives it up first, the other still has it: its
//! file goes once both have, and no view of either is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sstable::{Table, TableId};

/// The tables that the trees of one disk have given up.
#[derive(Debug, Default)]
pub struct Leftovers {
    tables: BTreeMap<TableId, Arc<Table>>,
}

impl Leftovers {
    /// A tree has given them up.
    pub fn take_in(&mut self, tables: Vec<Arc<Table>>) {
        self.tables.extend(tables.into_iter().map(|table| (table.id(), table)));
    }

    /// Those that nobody has or reads any more: their files are to be removed. Each is told once; a file whose removal
    /// fails goes at the next start.
    pub fn removable(&mut self) -> Vec<TableId> {
        let unused = self.tables.extract_if(.., |_, table| Arc::strong_count(table) == 1);
        unused.map(|(id, _)| id).collect()
    }
}
