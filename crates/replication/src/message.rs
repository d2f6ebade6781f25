//! Messages between replicas of a cohort.

use base::codec::{DecodeError, OrZero};
use base::{Entry, Epoch, Lsn, Monotonic, NodeId, Sequence};

use crate::data_loss::LogIntegrity;
use crate::quiescence::Quiescence;
use crate::read_index::Stamp;

/// A message between two replicas of one cohort.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// Asks whether the receiver would promise this epoch. Nothing is made durable.
    PreVote {
        /// The epoch that would be requested.
        epoch: Epoch,
        /// The sender's last LSN.
        last: Lsn,
    },
    /// The reply to a pre-vote.
    PreVoteReply {
        epoch: Epoch,
        /// Whether the sender would promise it.
        granted: bool,
        /// The state of the sender's log.
        integrity: LogIntegrity,
        /// The newest epoch promised by the sender.
        promised: Epoch,
    },
    /// Requests a promise (Paxos phase 1a). The sender has forced its own.
    Prepare {
        epoch: Epoch,
        /// The candidate's last LSN.
        last: Lsn,
    },
    /// A forced promise (phase 1b), or its refusal.
    PrepareReply {
        epoch: Epoch,
        /// Whether it is promised.
        granted: bool,
        /// The state of the sender's log.
        integrity: LogIntegrity,
        /// The newest epoch promised by the sender.
        promised: Epoch,
    },
    /// Entries to accept (phase 2a); a heartbeat if there are none.
    Propose {
        /// The leader's epoch. The commit point belongs to the same leader.
        epoch: Epoch,
        /// The LSN of the entry before the first of `entries`.
        previous: Lsn,
        /// The entries, each with the LSN of its first proposal.
        entries: Vec<Entry>,
        /// The leader's log is committed through this sequence.
        commit: Sequence,
        /// Send time by the leader's clock: the lease counts from here.
        sent: Monotonic,
        /// The receiver's clock reading from the newest reply that the leader had received; `None` if the leader had no
        /// valid lease when it sent this.
        heard: Option<Monotonic>,
    },
    /// The reply to a proposal (phase 2b), with a lease vote.
    ProposeReply {
        epoch: Epoch,
        /// `sent` of the answered proposal.
        sent: Monotonic,
        /// Whether this is a lease vote.
        voted: bool,
        /// The state of the follower's log.
        reply: Reply,
        /// The follower's commit point.
        committed: Sequence,
        /// Whether the follower's log may lack entries that it acknowledged.
        doubtful: bool,
        /// The follower's clock reading.
        at: Monotonic,
    },
    /// The sender has promised a newer epoch than the receiver's.
    Superseded {
        /// The newest epoch promised by the sender.
        promised: Epoch,
    },
    /// Asks for the leader that the receiver knows (Gaios, 3.3.2).
    ViewCheck {
        /// The sender's number for the check.
        check: u64,
    },
    /// The reply to a view check.
    ViewReply {
        /// The number of the check.
        check: u64,
        /// The newest epoch that the sender has promised.
        epoch: Epoch,
        /// Commit point and voters, if the sender is the leader and its first entry is committed.
        stamp: Option<Stamp>,
        /// The sender's commit point.
        commit: Sequence,
    },
    /// The leader of this epoch has resigned; its lease votes are void.
    Release {
        /// The epoch that ends.
        epoch: Epoch,
        /// The follower that should stand for election at once.
        successor: Option<NodeId>,
    },
}

/// The state of a follower's log relative to its leader's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reply {
    /// Its log equals the leader's through this sequence, and is durable.
    Matched(Sequence),
    /// It lacks the predecessor of the proposal.
    Missing(Gap),
    /// Its state includes this entry, which is not in the received entries.
    Apart(Lsn),
}

/// The first entries that a follower lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gap {
    /// Its log may match the leader's through this sequence and lacks the entries after it,
    pub after: Sequence,
    /// through this sequence. It may have buffered later ones.
    pub through: Sequence,
}

base::wire! {
    enum Message, "cohort message" {
        1 => PreVote { epoch, last },
        2 => PreVoteReply { epoch, granted, integrity, promised },
        3 => Prepare { epoch, last },
        4 => PrepareReply { epoch, granted, integrity, promised },
        // A running clock never shows 0.
        5 => Propose { epoch, previous, commit, sent, heard as OrZero, entries },
        6 => ProposeReply { epoch, sent, voted, reply, committed, doubtful, at },
        7 => Superseded { promised },
        8 => Release { epoch, successor as OrZero },
        10 => ViewCheck { check },
        11 => ViewReply { check, epoch, commit, stamp },
    } checked by Self::check_entries
}

base::wire! {
    enum Reply, "answer to a proposal" {
        0 => Missing(gap),
        1 => Matched(through),
        2 => Apart(lsn),
    }
}

base::wire! { struct Gap { after, through } }
base::wire! { struct Stamp { committed, membership } }
base::wire! { struct Quiescence { epoch, last } }

base::wire! {
    enum LogIntegrity, "integrity of a log" {
        0 => Whole,
        1 => Forgetful,
        2 => Damaged,
    }
}

impl Message {
    /// Whether only elections use it.
    pub(crate) fn is_of_election(&self) -> bool {
        matches!(
            self,
            Self::PreVote { .. } | Self::PreVoteReply { .. } | Self::Prepare { .. } | Self::PrepareReply { .. }
        )
    }

    /// Checks that the entries of a proposal form a chain of predecessors after `previous`.
    fn check_entries(&self) -> Result<(), DecodeError> {
        let Self::Propose { epoch, previous, entries, .. } = self else { return Ok(()) };
        let mut last = *previous;
        for entry in entries {
            let follows = entry.previous == last && Some(entry.lsn.sequence.0) == last.sequence.0.checked_add(1);
            if !follows || entry.lsn.epoch > *epoch || entry.lsn.epoch < last.epoch {
                return Err(DecodeError::Invalid { what: "chain of predecessors in a proposal" });
            }
            last = entry.lsn;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
