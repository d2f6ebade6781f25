//! Log sequence numbers (Spinnaker, Appendix B): `epoch.sequence`.

use std::fmt;

/// The reign of one leader. Epochs only grow; each is promised to one candidate at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

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

/// An entry's place in its cohort's log, counted from 1 without gaps; 0 is the place before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The place after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The place before this one; that of 0 is 0.
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

/// The name of a log entry: the epoch in which it was *first* proposed, and its sequence. It never changes, whoever
/// proposes the entry again (guarantee 1). Ordered by epoch first: the log with the highest last LSN wins an election.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn {
    /// The epoch of the first proposal.
    pub epoch: Epoch,
    /// The place in the log.
    pub sequence: Sequence,
}

impl Lsn {
    /// The LSN before every entry.
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
