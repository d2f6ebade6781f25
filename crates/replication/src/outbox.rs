//! The outputs of a cohort, and the durability that each must wait for.

use base::{Configuration, Entry, Force, LogRecord, NodeId, Sequence};

use crate::Message;

/// Numbers the records of one process in the order in which they are appended, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// Numbers the manifests of one process in the order in which they are written, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManifestId(pub u64);

/// The durability that an action must wait for: the log through a record, and the manifest through a version in both of
/// its places. The default waits for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Durable {
    /// Records through this one.
    pub log: WriteId,
    /// Manifests through this one.
    pub manifest: ManifestId,
}

/// An effect to carry out. The list is ordered; only sends wait, each for its own `after`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Append this record to the log.
    Append {
        /// Number of the record.
        write: WriteId,
        /// Content of the record.
        record: LogRecord,
        /// How soon it must be forced.
        force: Force,
    },
    Send {
        to: NodeId,
        message: Message,
        /// Send only after this is forced.
        after: Durable,
    },
    /// Apply this committed entry. Entries arrive in the order of their sequences, each once.
    Apply(Entry),
    /// The peer lacks entries that are no longer in memory: read them from the log, from this sequence on, and pass
    /// them to [`crate::Cohort::log_read`].
    ReadLog {
        peer: NodeId,
        /// The first missing entry.
        from: Sequence,
    },
    /// The peer lacks entries that the log may no longer contain: send it a snapshot, then call
    /// [`crate::Cohort::state_sent`].
    SendState { peer: NodeId },
    /// A view check has completed; check the waiting reads.
    ReadIndexConfirmed,
    /// This replica's entries from this sequence on were truncated in favour of a leader's.
    Cut(Sequence),
    /// A received snapshot is installed: entries to apply continue after this LSN.
    Installed(base::Lsn),
    /// Withdraw this replica's published read view, then ask the catalog to install this configuration in place of the
    /// one with the version before. Only cohorts under [`crate::Regime::Managed`] petition. The petition is repeated
    /// until a later version is known.
    Petition(Configuration),
    /// This leader leads again at once, in a new epoch, with the same log: uncommitted proposals remain proposed. Reads and
    /// transfers of the old epoch end.
    LeadRenewed,
    /// This replica is no longer the leader: uncommitted proposals have an unknown outcome.
    LeadLost,
}

/// Collects the outputs of a step and numbers records and manifests. All cohorts of a node share one outbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Outbox {
    outputs: Vec<Output>,
    appended: WriteId,
    manifest: ManifestId,
    manifest_changed: bool,
}

impl Outbox {
    pub fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Whether there is no output since the last [`Outbox::take`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// The number of the manifest to write, if a cohort's hard state changed since the last call.
    pub fn take_manifest(&mut self) -> Option<ManifestId> {
        std::mem::take(&mut self.manifest_changed).then_some(self.manifest)
    }

    /// The number of the last record.
    #[must_use]
    pub fn appended(&self) -> WriteId {
        self.appended
    }

    /// The number of the last manifest.
    #[must_use]
    pub fn manifest(&self) -> ManifestId {
        self.manifest
    }

    /// Requests a manifest with the cohort's current hard state. Changes within one step share one manifest.
    pub fn change_manifest(&mut self) -> ManifestId {
        if !self.manifest_changed {
            self.manifest.0 += 1;
            self.manifest_changed = true;
        }
        self.manifest
    }

    /// Appends a record and returns its number.
    pub fn append(&mut self, record: LogRecord, force: Force) -> WriteId {
        self.appended.0 += 1;
        self.outputs.push(Output::Append { write: self.appended, record, force });
        self.appended
    }

    /// Sends a message once `after` is durable.
    pub fn send(&mut self, to: NodeId, message: Message, after: Durable) {
        self.outputs.push(Output::Send { to, message, after });
    }

    pub(crate) fn renumber(&mut self, log: WriteId, manifest: ManifestId) {
        self.appended.0 -= log.0;
        self.manifest.0 -= manifest.0;
    }

    pub(crate) fn push(&mut self, output: Output) {
        self.outputs.push(output);
    }
}
