//! Log sequence numbers (Spinnaker, Appendix B): `epoch.sequence`.

use std::fmt;

/// The term of one leader. Epochs only increase, and each is promised to at most one candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

crate::wire! { newtype Epoch, Sequence }
crate::wire! { struct Lsn { epoch, sequence } }

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An entry's index in its cohort's log, from 1 without gaps; 0 is the index before the first entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Sequence {
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The previous index; 0 for 0.
    #[must_use]
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Identifies a log entry: the epoch of its *first* proposal, and its sequence. It never changes when a later leader
/// proposes the entry again (guarantee 1). Ordered by epoch first: the log with the highest last LSN wins an election.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn {
    /// The epoch of the first proposal.
    pub epoch: Epoch,
    /// The index in the log.
    pub sequence: Sequence,
}

impl Lsn {
    /// The LSN before the first entry.
    pub const ZERO: Self = Self { epoch: Epoch(0), sequence: Sequence(0) };

    /// The LSN `epoch.sequence`.
    #[must_use]
    pub fn new(epoch: u64, sequence: u64) -> Self {
        Self { epoch: Epoch(epoch), sequence: Sequence(sequence) }
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.sequence)
    }
}
