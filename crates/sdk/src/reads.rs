//! What a read may show, as messages say it.

use api::columns::read_options::Consistency;
use api::columns::{self as message, AnywhereRead, AsOf, ReadOptions, TimelineRead};
use base::{CohortId, KeyRange, Lsn};
use client::{Answer, Place, Shown};

/// What a read may show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// All that was acknowledged before the call.
    #[default]
    Strong,
    /// The same, answered by any replica after it has asked a majority who leads.
    Anywhere,
    /// The rows as they were at some moment, and no earlier one than this client has seen: any replica answers.
    Timeline {
        /// An answer will do though no leader can be had.
        stale_ok: bool,
    },
    /// The rows as they were at a timestamp: a version, or nanoseconds since 1970.
    At(i64),
}

impl Reads {
    /// As a request says it.
    pub(crate) fn options(self) -> Option<ReadOptions> {
        let consistency = match self {
            Self::Strong => return None,
            Self::Timeline { stale_ok } => Consistency::Timeline(TimelineRead { at_least: None, stale_ok }),
            Self::Anywhere => Consistency::Anywhere(AnywhereRead {}),
            Self::At(timestamp) => Consistency::At(timestamp),
        };
        Some(ReadOptions { consistency: Some(consistency) })
    }
}

/// The options of a client that has seen so much.
pub(crate) fn after(options: Option<ReadOptions>, seen: Option<Place>) -> Option<ReadOptions> {
    let consistency = match options?.consistency? {
        Consistency::Timeline(read) => {
            let at_least = seen.map(|Place { cohort: CohortId(cohort), lsn }| message::Place {
                cohort,
                epoch: lsn.epoch.0,
                sequence: lsn.sequence.0,
            });
            Consistency::Timeline(TimelineRead { at_least, ..read })
        }
        other => other,
    };
    Some(ReadOptions { consistency: Some(consistency) })
}

/// An answer, and what it shows if it says so.
pub(crate) fn answered<A>(answer: A, as_of: Option<&AsOf>) -> Answer<A> {
    match as_of.and_then(|as_of| Some((as_of, as_of.place?))) {
        None => Answer::Of(answer),
        Some((as_of, message::Place { cohort, epoch, sequence })) => {
            let place = Place { cohort: CohortId(cohort), lsn: Lsn::new(epoch, sequence) };
            let range = KeyRange { start: as_of.start.clone(), end: as_of.end.clone() };
            Answer::Shown { answer, shown: Shown { place, range } }
        }
    }
}
