//! What a cohort wants done, and how it names what must be durable first.

use base::{Entry, Force, LogRecord, NodeId, Sequence};

use crate::Message;

/// Numbers the records of one process in the order they are appended, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// Numbers the manifests of one process in the order they are written, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManifestId(pub u64);

/// What must be forced before an action may happen: the log through a record, and the manifest through a version, in
/// both its places. The default waits for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Durable {
    /// Records through this one.
    pub log: WriteId,
    /// Manifests through this one.
    pub manifest: ManifestId,
}

/// One thing a cohort wants done. The list is ordered; only sends wait, each for what it names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Append this record to the log.
    Append {
        /// Its number.
        write: WriteId,
        /// The record.
        record: LogRecord,
        /// How soon it is to be forced.
        force: Force,
    },
    /// Send this message.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: Message,
        /// Not before this is forced.
        after: Durable,
    },
    /// This entry is committed: apply it. Entries come in the order of their sequences, each once.
    Apply(Entry),
    /// The peer lacks entries that are in memory no more: read them from the log, from this sequence on, and hand them
    /// to [`crate::Cohort::log_read`].
    ReadLog {
        /// Who lacks them.
        peer: NodeId,
        /// The first one it lacks.
        from: Sequence,
    },
    /// The peer lacks entries that the log may not hold any more: send it the whole state, then call
    /// [`crate::Cohort::state_sent`].
    SendState {
        /// Who lacks them.
        peer: NodeId,
    },
    /// A view check has come to its end: who waited for one may look.
    ViewChecked,
    /// Entries of ours from this sequence on gave way to a leader's.
    Cut(Sequence),
    /// The whole state that was received is this replica's now: entries to apply go on after this LSN.
    Installed(base::Lsn),
    /// This replica leads no more: what was proposed here and isn't committed has an unknown outcome.
    LeadLost,
}

/// Collects the outputs of a step, and numbers what is to be made durable. One outbox serves all cohorts of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Outbox {
    outputs: Vec<Output>,
    appended: WriteId,
    manifest: ManifestId,
    manifest_changed: bool,
}

impl Outbox {
    /// What was put in since the last call.
    pub fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Whether nothing was put in since the last [`Outbox::take`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// The number of the manifest to be written, if a cohort's hard state changed since the last call.
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

    /// Asks for the manifest to be written with the cohort's present hard state. Changes within one step share one.
    pub fn change_manifest(&mut self) -> ManifestId {
        if !self.manifest_changed {
            self.manifest.0 += 1;
            self.manifest_changed = true;
        }
        self.manifest
    }

    /// Appends a record.
    pub fn append(&mut self, record: LogRecord, force: Force) -> WriteId {
        self.appended.0 += 1;
        self.outputs.push(Output::Append { write: self.appended, record, force });
        self.appended
    }

    /// Sends a message once so much is durable.
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
