//! The commands in a stripe's log: the payloads of its entries. An empty payload is a leader's barrier and not a
//! command.

use base::codec::{DecodeError, Wire, Writer};
use base::{KeyRange, Timestamp};
use bytes::Bytes;
use state_machine::{ClientSessionId, SessionStamp};

use super::request::{BlockChange, Claim, StripeWrite};
use crate::layout::StripeId;

/// A command of a stripe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Assigns the range that the machine owns from here on (guarantee 19). A second such entry has no effect.
    AssignRange {
        /// The range: one stripe.
        range: KeyRange,
    },
    /// The disk is dropped: from here on the machine owns nothing, and its blocks may be deleted.
    Drop,
    /// Acknowledged entries may be lost, from an unknown entry on (guarantee 11).
    DeclareLoss,
    /// Opens a session. Its id contains the sequence of this entry.
    OpenSession { stripe: StripeId, claim: Claim },
    /// Ends a session, so that later writes with its stamps are refused.
    EndSession { stripe: StripeId, session: ClientSessionId },
    /// Ends the holder's right, and all sessions.
    Release { stripe: StripeId },
    /// Writes a block again on replicas with a damaged copy, if the block still has this content.
    Heal { stripe: StripeId, block: u64, content: Bytes },
    /// Changes whole blocks. The changes are disjoint.
    Write {
        /// The stamp of the write in its session.
        stamp: SessionStamp,
        stripe: StripeId,
        changes: Vec<BlockChange>,
    },
    /// Ends sessions, each unless it was used after the given timestamp (guarantee 10).
    ExpireSessions {
        /// The sessions, each with the last use that the proposer saw.
        sessions: Vec<(ClientSessionId, Timestamp)>,
    },
}

base::wire! {
    enum Command, "stripe command" {
        1 => OpenSession { stripe, claim },
        2 => Write { stamp, stripe, changes },
        3 => ExpireSessions { sessions },
        4 => AssignRange { range },
        5 => Drop,
        6 => DeclareLoss,
        7 => EndSession { stripe, session },
        8 => Release { stripe },
        9 => Heal { stripe, block, content },
    }
}

impl Command {
    /// A write of whole blocks, with these changes in addition to its own.
    pub(super) fn write(write: &StripeWrite, completed: impl IntoIterator<Item = BlockChange>) -> Self {
        let changes = write.changes.iter().cloned().chain(completed).collect();
        Self::Write { stamp: write.stamp, stripe: write.stripe, changes }
    }

    /// The stripe that it refers to: it has an effect only if the machine owns it.
    pub(super) fn stripe(&self) -> Option<StripeId> {
        match self {
            Self::OpenSession { stripe, .. }
            | Self::EndSession { stripe, .. }
            | Self::Release { stripe }
            | Self::Heal { stripe, .. }
            | Self::Write { stripe, .. } => Some(*stripe),
            Self::AssignRange { .. } | Self::Drop | Self::DeclareLoss | Self::ExpireSessions { .. } => None,
        }
    }

    /// Encodes the command as an entry's payload.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::with_capacity(self.bytes_hint());
        Wire::encode(self, &mut out);
        out.finish()
    }

    /// Encoded bytes of a write, or more, so that its payload is allocated once.
    fn bytes_hint(&self) -> usize {
        let Self::Write { changes, .. } = self else { return 64 };
        let of = |change: &BlockChange| 17 + if let BlockChange::Data { data, .. } = change { data.len() } else { 0 };
        64 + changes.iter().map(of).sum::<usize>()
    }

    /// Decodes an entry's payload that is not empty. The data of blocks are slices of it.
    ///
    /// # Errors
    /// The payload is not a command of a stripe. For a committed entry this is fatal: the node must halt.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        Self::from_bytes(payload)
    }
}
