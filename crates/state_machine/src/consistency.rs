//! Consistency levels of reads, and the state that a read was answered from (Spinnaker, sections 3 and 5; Gaios, 3.3.2;
//! guarantees 12 to 16).

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Duration, KeyRange, Lsn, Timestamp};

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
}

/// A position in the log of a range's cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogPlace {
    /// The cohort.
    pub cohort: CohortId,
    /// The last entry up to and including this position.
    pub lsn: Lsn,
}

/// The state that a read was answered from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AsOf {
    /// Its last entry.
    pub place: LogPlace,
    /// The timestamp of that entry, or the timestamp asked for.
    pub timestamp: Timestamp,
    /// Upper bound of the staleness: the state includes every write that was acknowledged at least this long before the
    /// read was requested. None if no leader has confirmed a commit point since the replica started.
    pub age: Option<Duration>,
    /// The keys that the cohort owned in this state.
    pub range: KeyRange,
}

const STRONG: u8 = 0;
const TIMELINE: u8 = 1;
const AT: u8 = 2;
const ANYWHERE: u8 = 3;

impl Consistency {
    /// Whether any replica may answer.
    #[must_use]
    pub fn is_for_any_replica(&self) -> bool {
        !matches!(self, Self::Strong)
    }

    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Writer) {
        match self {
            Self::Strong => out.u8(STRONG),
            Self::Anywhere => out.u8(ANYWHERE),
            Self::Timeline { at_least, stale_ok } => {
                out.u8(TIMELINE);
                out.bool(*stale_ok);
                out.bool(at_least.is_some());
                if let Some(place) = at_least {
                    place.encode(out);
                }
            }
            Self::At(moment) => {
                out.u8(AT);
                out.i64(moment.0);
            }
        }
    }

    /// Decodes the output of [`Consistency::encode`].
    ///
    /// # Errors
    /// The input is not a valid encoding.
    pub fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            STRONG => Self::Strong,
            TIMELINE => {
                let stale_ok = input.bool()?;
                let at_least = if input.bool()? { Some(LogPlace::decode(input)?) } else { None };
                Self::Timeline { at_least, stale_ok }
            }
            ANYWHERE => Self::Anywhere,
            AT => Self::At(Timestamp(input.i64()?)),
            tag => return Err(DecodeError::UnknownTag { what: "consistency", tag: u64::from(tag) }),
        })
    }
}

impl LogPlace {
    fn encode(self, out: &mut Writer) {
        out.u32(self.cohort.0);
        out.lsn(self.lsn);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { cohort: CohortId(input.u32()?), lsn: input.lsn()? })
    }
}

impl AsOf {
    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Writer) {
        self.place.encode(out);
        out.i64(self.timestamp.0);
        out.bool(self.age.is_some());
        out.u64(self.age.unwrap_or_default().0);
        self.range.encode(out);
    }

    /// Decodes the output of [`AsOf::encode`].
    ///
    /// # Errors
    /// The input is not a valid encoding.
    pub fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let (place, timestamp) = (LogPlace::decode(input)?, Timestamp(input.i64()?));
        let age = if input.bool()? { Some(Duration(input.u64()?)) } else { input.u64().map(|_| None)? };
        Ok(Self { place, timestamp, age, range: KeyRange::decode(input)? })
    }
}
