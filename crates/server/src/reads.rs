//! Converts read consistency, and the state that a read reflects, from and to messages.

use api::columns::read_options::Consistency as RequestedConsistency;
use api::columns::{self as message, AnywhereRead, ReadOptions, StrongAsOfRead, TimelineRead};
use base::{CohortId, Lsn, Timestamp};
use node::request::Response;
use state_machine::{AsOf, Consistency, LogPlace};

use crate::columns::transactions;

/// The consistency that a read requests.
pub(crate) fn consistency(options: Option<ReadOptions>) -> Consistency {
    match options.and_then(|options| options.consistency) {
        None => Consistency::Strong,
        Some(RequestedConsistency::Timeline(TimelineRead { at_least, stale_ok })) => {
            Consistency::Timeline { at_least: at_least.map(log_place), stale_ok }
        }
        Some(RequestedConsistency::Anywhere(AnywhereRead {})) => Consistency::Anywhere,
        Some(RequestedConsistency::StrongAsOf(StrongAsOfRead {})) => Consistency::StrongAsOf,
        Some(RequestedConsistency::AtNs(moment)) => Consistency::At(Timestamp(moment)),
        Some(RequestedConsistency::Transaction(owner)) => Consistency::Locking(transactions::owner(Some(owner))),
        Some(RequestedConsistency::TransactionForUpdate(owner)) => {
            Consistency::ForUpdate(transactions::owner(Some(owner)))
        }
    }
}

/// A response, and the state that it reflects if it names one.
pub(crate) fn undated(response: Response) -> (Response, Option<message::AsOf>) {
    match response {
        Response::Dated { response, as_of } => (*response, Some(state(*as_of))),
        other => (other, None),
    }
}

/// A response without the state that it reflects.
pub(crate) fn content(response: &Response) -> &Response {
    match response {
        Response::Dated { response, .. } => response,
        other => other,
    }
}

fn log_place(message: message::CohortLsn) -> LogPlace {
    let message::CohortLsn { cohort, epoch, sequence } = message;
    LogPlace { cohort: CohortId(cohort), lsn: Lsn::new(epoch, sequence) }
}

fn state(as_of: AsOf) -> message::AsOf {
    let AsOf { place: LogPlace { cohort, lsn }, timestamp, age, range } = as_of;
    message::AsOf {
        lsn: Some(message::CohortLsn { cohort: cohort.0, epoch: lsn.epoch.0, sequence: lsn.sequence.0 }),
        timestamp_ns: timestamp.0,
        // Rounded up: the data is at most this old.
        age_ms: age.map(|age| age.0.div_ceil(1_000_000)),
        start: range.start,
        end: range.end,
    }
}
