//! The fields of beats and of their replies.

use std::sync::Arc;

use base::{CohortId, Monotonic};
use replication::Quiescence;

/// The number of a list. Numbers grow from 1 within a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListId(pub u64);

/// Idle cohorts, in the order of their numbers.
pub type List = Arc<[(CohortId, Quiescence)]>;

/// The sender's knowledge at the time of the last reply for the same list (guarantee 15).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerClock {
    /// The receiver's clock as shown by that reply. Everything committed anywhere before that time is within the LSNs
    /// of the list.
    pub at: Monotonic,
    /// The cohorts for which this does not hold, in order: the sender held no lease, or had committed more.
    pub except: Vec<CohortId>,
}

/// The result of a beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beaten {
    /// The receiver does not have the named list.
    UnknownList,
    /// A lease vote for every cohort of the list except these.
    Vouched {
        /// The cohorts with a state that differs from the list.
        refused: Vec<CohortId>,
    },
}

base::wire! { newtype ListId }
base::wire! { struct PeerClock { at, except } }
base::wire! {
    enum Beaten, "answer to a beat" {
        1 => UnknownList,
        2 => Vouched { refused },
    }
}
