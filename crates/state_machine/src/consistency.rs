//! Consistency levels of reads, and the state that a read was answered from (Spinnaker, sections 3 and 5; Gaios, 3.3.2;
//! guarantees 12 to 16).

use base::codec::{DecodeError, Reader, Wire, Writer};
use base::{CohortId, Duration, KeyRange, Lsn, Timestamp};

use crate::locks::LockOwner;

/// The consistency level of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// Linearizable, answered by the leader.
    #[default]
    Strong,
    /// Linearizable, answered by any replica that has obtained a read index from a majority.
    Anywhere,
    /// A past state that any replica returns without asking others, but never one older than the client has already
    /// seen.
    Timeline {
        /// The latest state of the range that the client has seen.
        at_least: Option<LogPlace>,
        /// Whether a stale answer is acceptable while there is no leader: a single live replica can give it.
        stale_ok: bool,
    },
    /// The state as of a timestamp of the range's log.
    At(Timestamp),
    /// A strong read of a transaction. The leader holds back younger transactions that would change what was read. The
    /// response states the timestamp of the state, which the commit names.
    Locking(LockOwner),
    /// As [`Consistency::Locking`], of a row that the transaction is about to change: the leader also holds back such
    /// reads of other transactions.
    ForUpdate(LockOwner),
    /// As [`Consistency::Strong`]. The response also states the timestamp of a state of the whole range that contains
    /// everything that was acknowledged before the read, so that further rows can be read as of it. It states none while
    /// transactions are prepared in the range: one may be committed and acknowledged, but not be part of the state yet.
    StrongAsOf,
}

/// A position in the log of a range's cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogPlace {
    pub cohort: CohortId,
    /// The last entry up to and including this position.
    pub lsn: Lsn,
}

/// The state that a read was answered from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AsOf {
    pub place: LogPlace,
    /// The timestamp of that entry, or the timestamp asked for.
    pub timestamp: Timestamp,
    /// Upper bound of the staleness: the state includes every write that was acknowledged at least this long before the
    /// read was requested. None if no leader has confirmed a commit point since the replica started.
    pub age: Option<Duration>,
    /// The keys that the cohort owned in this state.
    pub range: KeyRange,
}

base::wire! {
    enum Consistency, "consistency" {
        0 => Strong,
        1 => Timeline { stale_ok, at_least },
        2 => At(moment),
        3 => Anywhere,
        4 => Locking(owner),
        5 => ForUpdate(owner),
        6 => StrongAsOf,
    }
}

base::wire! { struct LogPlace { cohort, lsn } }

impl Consistency {
    /// Whether any replica may answer.
    #[must_use]
    pub fn is_for_any_replica(&self) -> bool {
        !matches!(self, Self::Strong | Self::StrongAsOf) && self.locks_for().is_none()
    }

    /// The transaction that the read locks rows for.
    #[must_use]
    pub fn locks_for(&self) -> Option<LockOwner> {
        match self {
            Self::Locking(owner) | Self::ForUpdate(owner) => Some(*owner),
            Self::Strong | Self::StrongAsOf | Self::Anywhere | Self::Timeline { .. } | Self::At(_) => None,
        }
    }
}

/// The age is encoded after a flag, as 0 if there is none.
impl Wire for AsOf {
    const BYTES_MIN: usize = 42;

    fn encode(&self, out: &mut Writer) {
        self.place.encode(out);
        self.timestamp.encode(out);
        self.age.is_some().encode(out);
        self.age.unwrap_or_default().encode(out);
        self.range.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let (place, timestamp, has_age) = (Wire::decode(input)?, Wire::decode(input)?, bool::decode(input)?);
        let age = Some(Wire::decode(input)?).filter(|_| has_age);
        Ok(Self { place, timestamp, age, range: Wire::decode(input)? })
    }
}
