//! What a read may show, and what it showed (Spinnaker, sections 3 and 5; Gaios, 3.3.2; guarantees 12 to 16).

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Duration, KeyRange, Lsn, Timestamp};

/// What a read may show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// All that was acknowledged before it was asked, as the leader has it.
    #[default]
    Strong,
    /// The same, as any replica has it that has asked a majority who leads.
    Anywhere,
    /// The rows as they were at some moment, which any replica tells without asking anybody, and no earlier moment than
    /// that one client has seen.
    Timeline {
        /// How far the client has seen the range.
        at_least: Option<LogPlace>,
        /// Whether an answer will do though no leader can be had: a single live replica gives it.
        stale_ok: bool,
    },
    /// The rows as they were at a moment: a timestamp of the range's log.
    At(Timestamp),
}

/// A place in the log of a range's cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogPlace {
    /// The cohort.
    pub cohort: CohortId,
    /// The entry.
    pub lsn: Lsn,
}

/// The state that a read was answered from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AsOf {
    /// The last entry of it.
    pub place: LogPlace,
    /// That entry's timestamp, or the moment asked for.
    pub timestamp: Timestamp,
    /// Whatever was acknowledged so long before the read was asked is in it; none: no leader has told since the replica
    /// started.
    pub age: Option<Duration>,
    /// The keys that the cohort owns in it.
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

    /// Appends it to `out`.
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

    /// Reads what [`Consistency::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are something else.
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
    /// Appends it to `out`.
    pub fn encode(&self, out: &mut Writer) {
        self.place.encode(out);
        out.i64(self.timestamp.0);
        out.bool(self.age.is_some());
        out.u64(self.age.unwrap_or_default().0);
        self.range.encode(out);
    }

    /// Reads what [`AsOf::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are something else.
    pub fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let (place, timestamp) = (LogPlace::decode(input)?, Timestamp(input.i64()?));
        let age = if input.bool()? { Some(Duration(input.u64()?)) } else { input.u64().map(|_| None)? };
        Ok(Self { place, timestamp, age, range: KeyRange::decode(input)? })
    }
}
