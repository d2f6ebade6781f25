//! Snapshots of any kind.

use base::codec::Writer;
use base::{Lsn, Timestamp};
use bytes::Bytes;
use state_machine::Progress;
use state_machine::checkpoint::{Chunked, Chunks, Cursor, Keep, Snapshot as _};
use state_machine::interface::Kind;
use state_machine::storage::{self, Storage};

use super::{AnyMachine, Hosted, Snapshot};

impl Chunked for Snapshot {
    fn kind(&self) -> Kind {
        dispatch!(Self, self, snapshot => snapshot.kind())
    }

    fn progress(&self) -> &Progress {
        dispatch!(Self, self, snapshot => snapshot.progress())
    }

    fn header(&self, out: &mut Writer) {
        dispatch!(Self, self, snapshot => snapshot.header(out));
    }

    fn part(&self, after: &Cursor) -> Option<(Bytes, Cursor)> {
        dispatch!(Self, self, snapshot => snapshot.part(after))
    }
}

impl Snapshot {
    /// The last entry applied in it.
    #[must_use]
    pub fn last_applied(&self) -> Lsn {
        self.progress().last_applied
    }

    /// The timestamp of the last entry applied in it.
    #[must_use]
    pub fn last_timestamp(&self) -> Timestamp {
        self.progress().last_timestamp
    }

    /// All its chunks, in order.
    #[must_use]
    pub fn chunks(&self) -> Chunks<Self> {
        Chunks::of(self.clone())
    }

    /// The versions and keys that the storage must retain for a replica that starts from this snapshot.
    #[must_use]
    pub fn keep(&self) -> Keep {
        dispatch!(Self, self, snapshot => snapshot.keep())
    }

    /// Whether the table is dropped in this snapshot.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        dispatch!(Self, self, snapshot => snapshot.is_dropped())
    }

    /// The machine of this snapshot, with its bulk data in `storage`.
    ///
    /// # Panics
    /// If the storage is of another kind.
    #[must_use]
    pub fn into_machine(self, storage: Box<dyn Storage>) -> AnyMachine {
        dispatch!(Self, self, snapshot => Hosted::machine(snapshot.into_machine(storage::downcast(storage))))
    }
}
