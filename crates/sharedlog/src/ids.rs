//! Identifiers, each a separate type so that they cannot be confused.

use std::fmt;

use base::codec::{DecodeError, Reader, Wire, Writer};
use base::{Boot, NodeId};

use crate::limits::POSITION_MAX;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number! {
    /// A shared log in the cluster.
    LogId
}

number! {
    /// A position in a log, counted from 0.
    Position
}

number! {
    /// A log unit: one replica of log entries on one disk, created empty. A replacement is a new unit with a higher
    /// number. Numbers are never reused, even after the disk is lost.
    UnitId
}

number! {
    /// Counts the projections of a log, from 1. (`base::Epoch` counts the leaders' terms of a cohort.)
    ProjectionEpoch
}

number! {
    /// An appending client, as named in its stamps. No two clients share a number.
    ClientId
}

number! {
    /// Matches a reply to its request; unique within one machine. The transport must not deliver a reply to any process
    /// or machine other than the sender of the request.
    AskId
}

impl Position {
    /// The position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

base::wire! { newtype LogId, UnitId, ProjectionEpoch, ClientId, AskId }

/// At most [`POSITION_MAX`].
impl Wire for Position {
    const BYTES_MIN: usize = 8;

    fn encode(&self, out: &mut Writer) {
        self.0.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let position = input.u64()?;
        if position > POSITION_MAX { Err(DecodeError::Invalid { what: "position" }) } else { Ok(Self(position)) }
    }
}

impl ProjectionEpoch {
    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl ClientId {
    /// Numbers from here on belong to the client machines of nodes, which stamp appends that arrive without a stamp.
    /// Callers must not use them.
    pub const FIRST_OF_NODES: Self = Self(1 << 63);

    /// The client machine of one process on a node. Uses the low 31 bits of `boot`.
    #[must_use]
    pub fn of_process(node: NodeId, boot: Boot) -> Self {
        const BOOTS: u64 = (1 << 31) - 1;
        Self(Self::FIRST_OF_NODES.0 | u64::from(node.0) << 31 | (boot.0 & BOOTS))
    }
}

/// The process that hands out positions. A restarted process is a different sequencer, because it has lost its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequencerId {
    /// The node that runs the process.
    pub node: NodeId,
    /// Distinguishes processes of the same node.
    pub boot: Boot,
}

/// Identifies one append of one client. A retried append keeps its stamp, so that readers can recognise a second entry
/// of the same append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    pub client: ClientId,
    /// Counts the client's appends, from 1.
    pub sequence: u64,
}

base::wire! {
    struct Stamp { client, sequence } checked by |stamp| {
        if stamp.sequence == 0 { Err(DecodeError::Invalid { what: "sequence" }) } else { Ok(()) }
    }
}
