//! Transactions over several ranges of tables: the one kind of request that spans several cohorts.

pub use tablets::transaction::TransactionRequest;
pub(crate) use tablets::two_phase::{Action as TwoPhaseAction, Call, Destination, ReplyTag, TwoPhase};

use tablets::tablet::transactions::TransactionDecided;

use super::{KindEvent, Response, unanswerable};
use crate::request::Outcome;

/// The outcome of a request of the machine.
pub(crate) fn tablet_outcome(outcome: Outcome) -> tablets::request::Outcome {
    match outcome? {
        Response::Tablet(response) => Ok(response),
        _ => Err(unanswerable()),
    }
}

impl KindEvent {
    /// The transaction that a cohort has decided.
    pub(crate) fn decided(&self) -> Option<TransactionDecided> {
        if let Self::Tablet(decided) = self { Some(*decided) } else { None }
    }
}
