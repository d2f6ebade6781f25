//! The rows of a tablet, in its tree. A write goes into the memtable with the timestamp of its entry.
//!
//! A write reads nothing, so entries are applied without disk access.

use base::{Entry, Timestamp};
use bytes::Bytes;
use state_machine::{LogicalHash, owned};
use store::cell::{self, Range};
use store::sstable::{Io, SstableError};
use store::tree::{Changed, Tree};

use crate::transaction::RowChange;

/// All versions of a tablet's cells, down to the watermark.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) tree: Tree,
    watermark: Timestamp,
}

impl Rows {
    pub(crate) fn new(tree: Tree, watermark: Timestamp) -> Self {
        Self { tree, watermark }
    }

    pub(crate) fn watermark(&self) -> Timestamp {
        self.watermark
    }

    pub(crate) fn raise_watermark(&mut self, watermark: Timestamp) {
        self.watermark = self.watermark.max(watermark);
    }

    /// Writes columns of a row; a column without a value is deleted.
    pub(crate) fn put(&mut self, key: &[u8], columns: Vec<(Bytes, Option<Bytes>)>, entry: &Entry) {
        self.put_at(key, columns, entry.timestamp, entry.payload.len());
    }

    /// Carries out a transaction's change of a row. The values are slices of a buffer of that many bytes.
    pub(crate) fn change(&mut self, change: RowChange, timestamp: Timestamp, buffer_bytes: usize) {
        if change.deletes_row {
            self.tree.delete_row(&change.key, timestamp);
        }
        self.put_at(&change.key, change.columns, timestamp, buffer_bytes);
    }

    fn put_at(&mut self, key: &[u8], columns: Vec<(Bytes, Option<Bytes>)>, timestamp: Timestamp, buffer_bytes: usize) {
        for (column, value) in columns {
            let value = value.map(|value| owned(&value, buffer_bytes));
            self.tree.put(cell::encode(key, &column).into(), timestamp, value);
        }
    }

    /// Whether a row has no newer version than `timestamp`, as far as the versions in memory show.
    pub(crate) fn is_newest(&self, key: &[u8], timestamp: Timestamp) -> bool {
        let newer = self.tree.view().changed_since(&Range::row(key), timestamp, &mut { usize::MAX }, Io::CacheOnly);
        !matches!(newer, Ok(Changed::At(_)))
    }

    /// Deletes every column of a row.
    pub(crate) fn delete_row(&mut self, key: &[u8], entry: &Entry) {
        self.tree.delete_row(key, entry.timestamp);
    }

    /// Deletes all rows; the watermark stays.
    pub(crate) fn clear(&mut self) {
        self.tree.replace([]).expect("an empty tree is valid");
    }

    /// Hashes the cells in a range. A split may have left cells outside it that are not readable.
    pub(crate) fn hash(&self, range: Range, hash: &mut LogicalHash) -> Result<(), SstableError> {
        hash.signed(self.watermark.0);
        let all = Timestamp(i64::MAX);
        for version in self.tree.view().versions(range, self.watermark, all, Io::Allowed) {
            let version = version?;
            hash.bytes(&version.key);
            hash.signed(version.timestamp.0);
            hash.word(u64::from(version.value.is_some()));
            hash.bytes(version.value.as_deref().unwrap_or_default());
        }
        Ok(())
    }
}
