//! Writes in flight: many at a time, but never two with the same key.

use std::collections::HashSet;

use bytes::Bytes;
use sdk::Table;
use tokio::task::JoinSet;

use super::row::Row;

/// A row with a completed write.
#[derive(Debug)]
pub(crate) struct Landed {
    pub(crate) line: u64,
    pub(crate) text: Vec<u8>,
    pub(crate) outcome: Result<(), sdk::Error>,
}

/// The rows in flight.
pub(crate) struct Flight {
    table: Table,
    most: usize,
    keys: HashSet<Bytes>,
    writes: JoinSet<(Bytes, Landed)>,
}

impl Flight {
    pub(crate) fn new(table: Table, most: usize) -> Self {
        Self { table, most, keys: HashSet::new(), writes: JoinSet::new() }
    }

    /// Whether a row with this key may start now.
    pub(crate) fn has_room_for(&self, key: &Bytes) -> bool {
        self.keys.len() < self.most && !self.keys.contains(key)
    }

    /// Starts the write of a row. Requires [`Flight::has_room_for`].
    pub(crate) fn launch(&mut self, row: Row, line: u64, text: Vec<u8>) {
        assert!(self.has_room_for(&row.key), "concurrent writes of one key may be reordered");
        self.keys.insert(row.key.clone());
        let table = self.table.clone();
        self.writes.spawn(async move {
            let Row { key, columns } = row;
            let write = table.write(key.clone());
            let outcome =
                columns.into_iter().fold(write, |write, (column, value)| write.put(column, value)).send().await;
            (key, Landed { line, text, outcome: outcome.map(|_| ()) })
        });
    }

    /// Waits for the next write to complete; `None` if none is in flight.
    pub(crate) async fn next(&mut self) -> Option<Landed> {
        let (key, landed) = self.writes.join_next().await?.expect("a write neither panics nor is aborted");
        self.keys.remove(&key);
        Some(landed)
    }
}
