//! A request as it is put to the cohort that answers it.

use base::codec::{DecodeError, Reader, Writer};
use base::{Duration, Membership};
use machine::state_machine::{Kind, Lock};
use machine::{Consistency, KeyPosition};
use sharedlog::request::LogRequest;

use crate::registry::Ask;

/// What a cohort is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Asks its state machine.
    Machine(Ask),
    /// Brings the cohort's membership one step on toward a plan, and says whether it is there.
    Plan(Membership),
    /// Asks a shared log, which is many cohorts: it is never put to one, nor to another node.
    Log(LogRequest),
}

/// The tag of what is for the cohort and not for its machine; machines' kinds are above.
const PLAN: u8 = 0;

impl Query {
    /// Whether it only reads: it may be asked again at will. Otherwise a log decides.
    #[must_use]
    pub fn reads(&self) -> bool {
        match self {
            Self::Machine(ask) => ask.reads(),
            Self::Plan(_) => false,
            Self::Log(request) => !request.changes(),
        }
    }

    /// Whether it may be sent again although an earlier attempt may have been executed.
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        match self {
            Self::Machine(ask) => ask.is_idempotent(),
            Self::Plan(_) => true,
            Self::Log(request) => !request.changes(),
        }
    }

    /// Whether it is a read of a log that waits for something to come.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self, Self::Log(LogRequest::Read { wait, .. }) if *wait > Duration::ZERO)
    }

    /// The request to a machine, if it is one.
    #[must_use]
    pub fn ask(&self) -> Option<&Ask> {
        if let Self::Machine(ask) = self { Some(ask) } else { None }
    }

    /// What it may show, if it reads; what reads no rows reads strongly.
    #[must_use]
    pub fn consistency(&self) -> Consistency {
        self.ask().map_or(Consistency::Strong, Ask::consistency)
    }

    /// Where in a table's keys it begins, if it is put to the range that holds that position.
    #[must_use]
    pub fn position(&self) -> Option<KeyPosition> {
        self.ask().and_then(Ask::position)
    }

    /// The key that it changes, if it changes one.
    #[must_use]
    pub fn lock(&self) -> Option<Lock<'_>> {
        self.ask().and_then(Ask::lock)
    }

    /// Bytes that it adds to the memory of a storage.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ask().map_or(0, Ask::bytes)
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        match self {
            Self::Machine(ask) => {
                out.u8(ask.kind().0);
                ask.encode_body(out);
            }
            Self::Plan(plan) => {
                out.u8(PLAN);
                plan.encode(out);
            }
            Self::Log(_) => {
                debug_assert!(false, "a request to a log is never forwarded");
                out.u8(u8::MAX);
            }
        }
    }

    pub(super) fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        match input.u8()? {
            PLAN => Membership::decode(input).map(Self::Plan),
            kind => Ask::decode_body(Kind(kind), input).map(Self::Machine),
        }
    }
}
