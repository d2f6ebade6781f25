//! Two-phase commit of transactions over several ranges, and their recovery after a failure, as a pure state machine
//! (Spanner, section 4.2.1; guarantee 18). [`crate::transaction`] describes the protocol.
//!
//! Each node has one [`TwoPhase`] for three roles, which may be on different nodes:
//! * The *driver* (`driver.rs`) is the node that received the client's commit. It divides the transaction by range, sends
//!   a prepare to each participant, and then a commit to the coordinator. If a step fails, it sends an abort to the
//!   coordinator. The reply contains a definite outcome, even if the commit or another driver was faster. No other node
//!   depends on state of the driver.
//! * The *coordinator's leader* (`resolution.rs`) sends the decision to the participants until all have resolved the
//!   transaction, and then removes its record. A new leader starts from the first participant.
//! * A *participant's leader* (`resolution.rs`) queries the coordinator about a transaction that stays prepared for too
//!   long, because its driver and the coordinator's leader may have failed. The query aborts a transaction without an
//!   outcome.
//!
//! The machine has no clock and knows no node. The node passes in events with the current time, and carries out the
//! resulting [`Action`]s in order, after each event: it routes requests to the leaders of their ranges, sends them again
//! while their deadlines permit it, and returns each reply once with the [`ReplyTag`] of the request. A tablet that the
//! node passes in must be led by it, with the locks of its prepared transactions held; else the node passes none.

use std::collections::BTreeMap;

use base::{CohortId, Duration, Monotonic, Timestamp};
use bytes::Bytes;
use state_machine::range_map::RangeMap;

use crate::request::{Outcome, TableRequest};
use crate::transaction::{Coordinator, Participant, TransactionId};

mod division;
mod driver;
mod resolution;
#[cfg(test)]
mod tests;

use driver::Driven;
use resolution::Resolution;

/// The node's number for a transaction that it was asked to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call(pub u64);

/// Identifies the request that a reply belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTag(Asked);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The driver: the cohort is to prepare the transaction.
    Prepare(Call, CohortId),
    /// The driver: the coordinator is to commit or abort the transaction.
    Decide(Call),
    /// The leader of the first cohort, which has decided a transaction: the other cohort is to resolve it.
    Resolve(CohortId, TransactionId, CohortId),
    /// The leader of a participant asks about a transaction.
    InDoubt(TransactionId, Participant),
}

/// An action that the node must carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "most actions are requests, and they are carried out at once")]
pub enum Action {
    /// Send a request. The reply goes to [`TwoPhase::answered`]; without a tag, it is discarded.
    Send { to: Destination, request: TableRequest, deadline: Monotonic, tag: Option<ReplyTag> },
    /// The transaction has ended with this outcome.
    Reply { call: Call, outcome: Outcome },
    /// Propose a command to the log of a range that this node leads.
    Propose { cohort: CohortId, command: Bytes },
}

/// The range that a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    Cohort(CohortId),
    /// The range of this table that holds the request's position.
    Table(String),
}

/// The transactions that a node drives, and those that it resolves as a leader.
#[derive(Debug)]
pub struct TwoPhase {
    driven: BTreeMap<Call, Driven>,
    resolution: Resolution,
    actions: Vec<Action>,
}

/// Deadline of a request to another range after the decision; it is repeated.
const PATIENCE: Duration = Duration::from_millis(3_000);

impl TwoPhase {
    /// Creates a machine without transactions. `in_doubt` is the time after which a participant asks the coordinator.
    #[must_use]
    pub fn new(in_doubt: Duration) -> Self {
        Self { driven: BTreeMap::new(), resolution: Resolution::new(in_doubt), actions: Vec::new() }
    }

    /// Drains the queued actions, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The range has replied to a request, or gave no reply by its deadline.
    pub fn answered(&mut self, ReplyTag(asked): ReplyTag, outcome: Outcome, map: &impl RangeMap, now: Monotonic) {
        match asked {
            Asked::Prepare(call, cohort) => self.prepare_answered(call, cohort, outcome, now),
            Asked::Decide(call) => self.decision_answered(call, outcome, now),
            Asked::Resolve(cohort, transaction, participant) => {
                let is_resolved = outcome.is_ok() || map.is_gone(participant);
                self.resolution.resolve_answered(cohort, transaction, participant, is_resolved);
            }
            Asked::InDoubt(transaction, participant) => {
                self.doubt_answered(transaction, participant, &outcome, now);
            }
        }
    }

    /// The coordinators of the transactions that it drives.
    pub fn driven(&self) -> impl Iterator<Item = &Coordinator> {
        self.driven.values().map(|driven| &driven.coordinator)
    }

    /// Whether it has no state of any transaction.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.driven.is_empty() && self.resolution.is_idle()
    }

    fn send(&mut self, to: Destination, request: TableRequest, deadline: Monotonic, tag: Option<Asked>) {
        self.actions.push(Action::Send { to, request, deadline, tag: tag.map(ReplyTag) });
    }

    /// Sends the outcome to a participant.
    fn resolve_at(
        &mut self,
        tag: Option<Asked>,
        transaction: TransactionId,
        Participant { cohort, prepared }: Participant,
        committed: Option<Timestamp>,
        now: Monotonic,
    ) {
        let request = TableRequest::Resolve { transaction, prepared, committed };
        self.send(Destination::Cohort(cohort), request, now + PATIENCE, tag);
    }
}
