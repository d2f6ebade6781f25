//! Identifiers, each a type of its own so that none can stand in another's place.

use std::fmt;

use base::codec::{DecodeError, Reader, Writer};
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
    /// A shared log of the universe.
    LogId
}

number! {
    /// A place in a log, counted from 0.
    Position
}

number! {
    /// A log unit, from when it begins empty on one disk. A unit that was left out and begins anew is another one, with
    /// a higher number: no number is used twice, whatever becomes of its disk.
    UnitId
}

number! {
    /// Counts the projections of a log, from 1. (`base::Epoch` counts the reigns of a cohort.)
    ProjectionEpoch
}

number! {
    /// An appending client, as its stamps name it. No two clients have the same number.
    ClientId
}

number! {
    /// Numbers what one machine asks. The answer names it. Whoever carries messages lets no answer through to another
    /// process, or another machine, than the one that asked.
    AskId
}

impl Position {
    /// The position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let position = reader.u64()?;
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
    /// Numbers from here on belong to nodes' own client machines, which stamp the appends of callers that give no stamp.
    /// No caller's stamp may name one.
    pub const FIRST_OF_NODES: Self = Self(1 << 63);

    /// The client machine of a process, on its node.
    #[must_use]
    pub fn of_process(node: NodeId, boot: Boot) -> Self {
        const BOOTS: u64 = (1 << 31) - 1;
        Self(Self::FIRST_OF_NODES.0 | u64::from(node.0) << 31 | (boot.0 & BOOTS))
    }
}

/// The process that hands out positions. A restarted one is another: it has forgotten what it gave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequencerId {
    /// Its node.
    pub node: NodeId,
    /// Its process.
    pub boot: Boot,
}

/// Which append of which client an entry is. A retried append keeps its stamp, so that readers can tell the second entry
/// of an append from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The client.
    pub client: ClientId,
    /// Counts the client's appends, from 1.
    pub sequence: u64,
}

impl Stamp {
    pub(crate) fn encode(self, writer: &mut Writer) {
        writer.u64(self.client.0);
        writer.u64(self.sequence);
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let stamp = Self { client: ClientId(reader.u64()?), sequence: reader.u64()? };
        if stamp.sequence == 0 { Err(DecodeError::Invalid { what: "sequence" }) } else { Ok(stamp) }
    }
}
