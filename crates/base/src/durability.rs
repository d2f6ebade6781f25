//! Durability levels of a cohort's log, and the urgency of a sync.

use crate::codec::{DecodeError, Reader, Wire, Writer};

/// The storage that an entry must have reached on a majority of replicas before it is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Synced to disk. Acknowledged writes are never lost.
    #[default]
    Forced,
    /// Main memory (Spinnaker, D.6.2), with disk writes in the background. If a majority of the processes end at once,
    /// the latest acknowledged writes may be lost. The log then declares the loss (guarantee 11).
    Memory,
}

/// How soon a record of the write-ahead log is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Force {
    /// Immediately: a request waits for it.
    Now,
    /// With the next batch, or after a short delay if there is none. No request waits for it, and the replica keeps it
    /// in memory until then.
    Soon,
    /// With the next batch, without a time limit.
    WithNext,
}

impl Durability {
    /// The name used in commands and output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forced => "forced",
            Self::Memory => "memory",
        }
    }
}

/// A flag: whether it is main memory.
impl Wire for Durability {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Writer) {
        out.bool(*self == Self::Memory);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(if input.bool()? { Self::Memory } else { Self::Forced })
    }
}
