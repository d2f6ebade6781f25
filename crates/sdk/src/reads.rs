//! Consistency levels of reads, and their representation in messages.

use api::columns::read_options::Consistency;
use api::columns::{self as message, AnywhereRead, AsOf, ReadOptions, StrongAsOfRead, TimelineRead};
use base::{CohortId, KeyRange, Lsn};
use client::{CohortLsn, NodeResponse, Shown, Version};

/// The consistency level of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reads {
    /// Linearizable, answered by the leader: sees all writes acknowledged before the call.
    #[default]
    Strong,
    /// As [`Reads::Strong`]. The response names a state of the range ([`AsOf`](crate::AsOf)) that contains everything
    /// acknowledged before the call, so that other rows of the range can be read as of its timestamp
    /// ([`Client::snapshot_at`](crate::Client::snapshot_at)). It names none while transactions of several ranges are being
    /// committed in the range.
    StrongAsOf,
    /// Linearizable, answered by any replica with a read index from a majority.
    Anywhere,
    /// A past state from any replica, but never older than a state that this client has already seen in a timeline read,
    /// or that a [`TimelineToken`](crate::TimelineToken) contains.
    Timeline {
        /// Whether a stale answer is acceptable while there is no leader.
        stale_ok: bool,
    },
    /// The state as of a timestamp: the version of a column, or any other. Fails if it is before the table's retention;
    /// waits, up to the deadline, if it is in the future.
    At(Version),
}

impl Reads {
    /// The options of a request; none for a strong read.
    pub(crate) fn options(self) -> Option<ReadOptions> {
        let consistency = match self {
            Self::Strong => return None,
            Self::Timeline { stale_ok } => Consistency::Timeline(TimelineRead { at_least: None, stale_ok }),
            Self::StrongAsOf => Consistency::StrongAsOf(StrongAsOfRead {}),
            Self::Anywhere => Consistency::Anywhere(AnywhereRead {}),
            Self::At(timestamp) => Consistency::AtNs(timestamp.as_nanos()),
        };
        Some(ReadOptions { consistency: Some(consistency) })
    }
}

/// Whether any replica may answer a read with these options.
pub(crate) fn is_for_any_replica(options: Option<&ReadOptions>) -> bool {
    let consistency = options.and_then(|options| options.consistency.as_ref());
    consistency.is_some_and(|consistency| {
        !matches!(
            consistency,
            Consistency::Transaction(_) | Consistency::TransactionForUpdate(_) | Consistency::StrongAsOf(_)
        )
    })
}

/// Adds the latest state that the client has seen to the options.
pub(crate) fn after(options: Option<ReadOptions>, seen: Option<CohortLsn>) -> Option<ReadOptions> {
    let consistency = match options?.consistency? {
        Consistency::Timeline(read) => {
            let at_least = seen.map(|CohortLsn { cohort: CohortId(cohort), lsn }| message::CohortLsn {
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

/// The response, with the state it was read from if the node reported one.
pub(crate) fn answered<A>(answer: A, as_of: Option<&AsOf>) -> NodeResponse<A> {
    match as_of.and_then(|as_of| Some((as_of, as_of.lsn?))) {
        None => NodeResponse::Of(answer),
        Some((as_of, message::CohortLsn { cohort, epoch, sequence })) => {
            let place = CohortLsn { cohort: CohortId(cohort), lsn: Lsn::new(epoch, sequence) };
            let range = KeyRange { start: as_of.start.clone(), end: as_of.end.clone() };
            NodeResponse::Shown { answer, shown: Shown { place, range } }
        }
    }
}
