//! Proposals that came before the entry that they follow.
//!
//! What was sent after something that got lost, or overtook it, is held in memory until the log has caught up with it:
//! so a leader sends anew only what is lacking (Spinnaker, appendix B). What is held is neither logged, nor matched,
//! nor acknowledged; when its turn comes it is taken as if it had arrived at that moment, which any message could. It
//! speaks of the log of one leader in one epoch, and is forgotten when another is followed (guarantee 1).

use std::collections::BTreeMap;

use base::{Entry, Lsn, Sequence};

/// The proposals of one leader that wait for their predecessors.
///
/// Invariant: `bytes` is the size of all entries in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Early {
    /// By the sequence of the predecessor.
    proposals: BTreeMap<Sequence, (Lsn, Vec<Entry>)>,
    bytes: usize,
}

impl Early {
    /// Holds entries that follow `previous`. Past `limit` bytes those furthest ahead are let go: their turn is last.
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

    /// Takes out the first proposal, if its predecessor is not past `matched`.
    pub(crate) fn take_next(&mut self, matched: Sequence) -> Option<(Lsn, Vec<Entry>)> {
        let first = self.proposals.first_entry().filter(|first| *first.key() <= matched)?;
        let (previous, entries) = first.remove();
        self.bytes -= size(&entries);
        Some((previous, entries))
    }

    /// The entry that the first of them waits for, past what is matched.
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
