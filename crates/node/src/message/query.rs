//! A request in the form that its cohort receives.

use base::codec::{DecodeError, Reader, Wire, Writer};
use base::{Duration, Membership, NodeId, Timestamp};
use sharedlog::request::LogRequest;
use state_machine::interface::Kind;
use state_machine::{Consistency, KeyPosition};

use crate::registry::Ask;
use crate::request::TransactionRequest;

/// A request to a cohort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// A request to its state machine.
    Machine(Ask),
    /// Takes the next step of the cohort's membership toward a plan, and reports whether the plan is complete.
    Plan(Membership),
    /// Hands the leadership over to a node.
    Lead(NodeId),
    /// A request to a shared log, which spans many cohorts. It is never sent to a cohort or another node.
    Log(LogRequest),
    /// A transaction, which may span several cohorts. It is never sent to a cohort or another node.
    Transaction(Box<TransactionRequest>),
}

/// The tags of requests to the cohort itself. State machine kinds have those between.
const PLAN: u8 = 0;
const LEAD: u8 = 0xfe;

impl Query {
    /// Whether the request is read-only. Reads may be repeated freely; any other request is decided by a log.
    #[must_use]
    pub fn reads(&self) -> bool {
        match self {
            Self::Machine(ask) => ask.reads(),
            Self::Plan(_) | Self::Lead(_) => false,
            Self::Transaction(_) => false,
            Self::Log(request) => !request.changes(),
        }
    }

    /// Whether it may be sent again although an earlier attempt may have been executed.
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        match self {
            Self::Machine(ask) => ask.is_idempotent(),
            Self::Plan(_) | Self::Lead(_) | Self::Transaction(_) => true,
            Self::Log(request) => !request.changes(),
        }
    }

    /// Whether it is a log read that waits for an entry.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self, Self::Log(LogRequest::Read { wait, .. }) if *wait > Duration::ZERO)
    }

    /// The request to the state machine, if it is one.
    #[must_use]
    pub fn ask(&self) -> Option<&Ask> {
        if let Self::Machine(ask) = self { Some(ask) } else { None }
    }

    /// The consistency of a read. Requests that read no rows are strong.
    #[must_use]
    pub fn consistency(&self) -> Consistency {
        self.ask().map_or(Consistency::Strong, Ask::consistency)
    }

    /// The first key position, if the request goes to the range that holds this position.
    #[must_use]
    pub fn position(&self) -> Option<KeyPosition> {
        self.ask().and_then(Ask::position)
    }

    /// The least timestamp of its entry, if it is a change.
    #[must_use]
    pub fn floor(&self) -> Timestamp {
        self.ask().map_or(Timestamp(0), Ask::floor)
    }

    /// Bytes that it adds to the memory of a storage.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ask().map_or(0, Ask::bytes)
    }
}

impl Wire for Query {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Writer) {
        match self {
            Self::Machine(ask) => {
                out.u8(ask.kind().0);
                ask.encode_body(out);
            }
            Self::Plan(plan) => {
                out.u8(PLAN);
                plan.encode(out);
            }
            Self::Lead(node) => {
                out.u8(LEAD);
                node.encode(out);
            }
            Self::Log(_) | Self::Transaction(_) => {
                debug_assert!(false, "a request to a log, or a transaction, is never forwarded");
                out.u8(u8::MAX);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        match input.u8()? {
            PLAN => Membership::decode(input).map(Self::Plan),
            LEAD => NodeId::decode(input).map(Self::Lead),
            kind => Ask::decode_body(Kind(kind), input).map(Self::Machine),
        }
    }
}
