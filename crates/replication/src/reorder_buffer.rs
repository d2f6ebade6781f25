//! The reorder buffer of a follower: proposals that arrived before their predecessors.
//!
//! Proposals that overtook a lost or delayed one wait in memory until the log has caught up, so that a leader
//! retransmits only the missing entries (Spinnaker, appendix B). A buffered proposal is not logged, matched or
//! acknowledged. When its predecessor arrives, it is handled as if it had just been received. The buffer refers to the
//! log of one leader in one epoch, and is cleared when another leader is followed (guarantee 1).

use std::collections::BTreeMap;

use base::{Entry, Lsn, Sequence};

/// Buffered proposals of one leader.
///
/// Invariant: `bytes` is the size of all entries in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ReorderBuffer {
    /// Keyed by the sequence of the predecessor.
    proposals: BTreeMap<Sequence, (Lsn, Vec<Entry>)>,
    bytes: usize,
}

impl ReorderBuffer {
    /// Buffers entries that follow `previous`. Above `limit` bytes it drops the proposals with the highest sequences.
    pub(crate) fn hold(&mut self, previous: Lsn, entries: Vec<Entry>, limit: usize) {
        if entries.is_empty() {
            return;
        }
        self.bytes += size(&entries);
        if let Some((_, former)) = self.proposals.insert(previous.sequence, (previous, entries)) {
            self.bytes -= size(&former);
        }
        while self.bytes > limit {
            let Some((_, (_, entries))) = self.proposals.pop_last() else { break };
            self.bytes -= size(&entries);
        }
    }

    /// Removes and returns the first proposal, if its predecessor is not past `matched`.
    pub(crate) fn take_next(&mut self, matched: Sequence) -> Option<(Lsn, Vec<Entry>)> {
        let first = self.proposals.first_entry().filter(|first| *first.key() <= matched)?;
        let (previous, entries) = first.remove();
        self.bytes -= size(&entries);
        Some((previous, entries))
    }

    /// The first missing predecessor of a buffered proposal past `matched`.
    pub(crate) fn first_lacking(&self, matched: Sequence) -> Option<Sequence> {
        self.proposals.range(matched.next()..).next().map(|(sequence, _)| *sequence)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn invariants(&self, limit: usize) {
        let bytes: usize = self.proposals.values().map(|(_, entries)| size(entries)).sum();
        assert_eq!(self.bytes, bytes, "what is held early is counted");
        assert!(bytes <= limit, "what is held early is bounded");
    }
}

fn size(entries: &[Entry]) -> usize {
    entries.iter().map(Entry::size).sum()
}
