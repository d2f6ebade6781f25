//! The rows of a tablet, in its tree: what an entry writes goes into the memtable, with the entry's timestamp and LSN.
//!
//! Nothing is looked up to be written, so that an entry is applied without a look at the disk.

use base::{Entry, Timestamp};
use bytes::Bytes;
use machine::{LogicalHash, owned};
use store::cell::{self, Range};
use store::sstable::{Io, TableError};
use store::tree::Tree;

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

    /// Gives columns of a row new values, or none.
    pub(crate) fn put(&mut self, key: &[u8], columns: Vec<(Bytes, Option<Bytes>)>, entry: &Entry) {
        for (column, value) in columns {
            let value = value.map(|value| owned(&value, entry.payload.len()));
            self.tree.put(cell::encode(key, &column).into(), entry.timestamp, entry.lsn, value);
        }
    }

    /// Deletes every column of a row.
    pub(crate) fn delete_row(&mut self, key: &[u8], entry: &Entry) {
        self.tree.delete_row(key, entry.timestamp, entry.lsn);
    }

    /// Lets all of them go; the watermark stays.
    pub(crate) fn clear(&mut self) {
        self.tree.replace([]).expect("nothing is a tree");
    }

    /// Of the cells in that range: a split may have left others behind, which nobody asks for.
    pub(crate) fn hash(&self, range: Range, hash: &mut LogicalHash) -> Result<(), TableError> {
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
