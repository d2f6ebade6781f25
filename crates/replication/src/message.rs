//! Messages between replicas of a cohort.

use base::codec::{DecodeError, Reader, Writer};
use base::{Entry, Epoch, Lsn, Membership, Monotonic, NodeId, Sequence};

use crate::read_index::Stamp;

use crate::data_loss::LogIntegrity;

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
        /// The requested epoch.
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
        /// The requested epoch.
        epoch: Epoch,
        /// The candidate's last LSN.
        last: Lsn,
    },
    /// A forced promise (phase 1b), or its refusal.
    PrepareReply {
        /// The requested epoch.
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
        /// The leader's epoch.
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

impl Message {
    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Writer) {
        match self {
            Self::PreVote { epoch, last } => encode_request(out, 1, *epoch, *last),
            Self::PreVoteReply { epoch, granted, integrity, promised } => {
                encode_answer(out, 2, *epoch, (*granted, *integrity), *promised);
            }
            Self::Prepare { epoch, last } => encode_request(out, 3, *epoch, *last),
            Self::PrepareReply { epoch, granted, integrity, promised } => {
                encode_answer(out, 4, *epoch, (*granted, *integrity), *promised);
            }
            Self::Propose { epoch, previous, entries, commit, sent, heard } => {
                out.u8(5);
                out.u64(epoch.0);
                out.lsn(*previous);
                out.u64(commit.0);
                out.u64(sent.0);
                // A running clock never shows 0.
                out.u64(heard.map_or(0, |heard| heard.0));
                encode_entries(out, entries);
            }
            Self::ProposeReply { epoch, sent, voted, reply, committed, doubtful, at } => {
                out.u8(6);
                out.u64(epoch.0);
                out.u64(sent.0);
                out.bool(*voted);
                match reply {
                    Reply::Matched(through) => {
                        out.u8(1);
                        out.u64(through.0);
                    }
                    Reply::Missing(gap) => {
                        out.u8(0);
                        out.u64(gap.after.0);
                        out.u64(gap.through.0);
                    }
                    Reply::Apart(lsn) => {
                        out.u8(2);
                        out.lsn(*lsn);
                    }
                }
                out.u64(committed.0);
                out.bool(*doubtful);
                out.u64(at.0);
            }
            Self::ViewCheck { check } => {
                out.u8(10);
                out.u64(*check);
            }
            Self::ViewReply { check, epoch, stamp, commit } => {
                out.u8(11);
                out.u64(*check);
                out.u64(epoch.0);
                out.u64(commit.0);
                out.bool(stamp.is_some());
                if let Some(Stamp { committed, membership }) = stamp {
                    out.u64(committed.0);
                    membership.encode(out);
                }
            }
            Self::Superseded { promised } => {
                out.u8(7);
                out.u64(promised.0);
            }
            Self::Release { epoch, successor } => {
                out.u8(8);
                out.u64(epoch.0);
                out.u32(successor.map_or(0, |node| node.0));
            }
        }
    }

    /// Decodes a message encoded by [`Message::encode`].
    ///
    /// # Errors
    /// When the bytes are not a valid message.
    pub fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            1 => Self::PreVote { epoch: Epoch(input.u64()?), last: input.lsn()? },
            2 => {
                let (epoch, (granted, integrity), promised) = decode_answer(input)?;
                Self::PreVoteReply { epoch, granted, integrity, promised }
            }
            3 => Self::Prepare { epoch: Epoch(input.u64()?), last: input.lsn()? },
            4 => {
                let (epoch, (granted, integrity), promised) = decode_answer(input)?;
                Self::PrepareReply { epoch, granted, integrity, promised }
            }
            5 => decode_propose(input)?,
            6 => decode_propose_reply(input)?,
            7 => Self::Superseded { promised: Epoch(input.u64()?) },
            8 => {
                let epoch = Epoch(input.u64()?);
                let successor = input.u32()?;
                Self::Release { epoch, successor: (successor != 0).then_some(NodeId(successor)) }
            }
            10 => Self::ViewCheck { check: input.u64()? },
            11 => {
                let (check, epoch, commit) = (input.u64()?, Epoch(input.u64()?), Sequence(input.u64()?));
                let stamp = if input.bool()? { Some(decode_stamp(input)?) } else { None };
                Self::ViewReply { check, epoch, stamp, commit }
            }
            tag => return Err(DecodeError::UnknownTag { what: "cohort message", tag: u64::from(tag) }),
        })
    }
}

fn encode_request(out: &mut Writer, tag: u8, epoch: Epoch, last: Lsn) {
    out.u8(tag);
    out.u64(epoch.0);
    out.lsn(last);
}

fn encode_answer(out: &mut Writer, tag: u8, epoch: Epoch, (granted, integrity): (bool, LogIntegrity), promised: Epoch) {
    out.u8(tag);
    out.u64(epoch.0);
    out.bool(granted);
    integrity.encode(out);
    out.u64(promised.0);
}

fn decode_answer(input: &mut Reader) -> Result<(Epoch, (bool, LogIntegrity), Epoch), DecodeError> {
    Ok((Epoch(input.u64()?), (input.bool()?, LogIntegrity::decode(input)?), Epoch(input.u64()?)))
}

fn encode_entries(out: &mut Writer, entries: &[Entry]) {
    out.u32(u32::try_from(entries.len()).unwrap_or(u32::MAX));
    entries.iter().for_each(|entry| entry.encode(out));
}

/// Minimum size of an encoded entry: two LSNs, a timestamp, a length, and the absence of a membership.
const ENTRY_BYTES_MIN: usize = 45;

fn decode_stamp(input: &mut Reader) -> Result<Stamp, DecodeError> {
    let committed = Sequence(input.u64()?);
    Ok(Stamp { committed, membership: Membership::decode(input)?.into() })
}

fn decode_propose(input: &mut Reader) -> Result<Message, DecodeError> {
    let epoch = Epoch(input.u64()?);
    let previous = input.lsn()?;
    let commit = Sequence(input.u64()?);
    let sent = Monotonic(input.u64()?);
    let heard = Some(Monotonic(input.u64()?)).filter(|heard| *heard != Monotonic(0));
    let entries = decode_entries(input, epoch, previous)?;
    Ok(Message::Propose { epoch, previous, entries, commit, sent, heard })
}

/// Decodes entries that form a chain of predecessors after `previous`.
fn decode_entries(input: &mut Reader, epoch: Epoch, previous: Lsn) -> Result<Vec<Entry>, DecodeError> {
    let count = input.count(ENTRY_BYTES_MIN)?;
    let mut entries = Vec::with_capacity(count);
    let mut last = previous;
    for _ in 0..count {
        let entry = Entry::decode(input)?;
        let follows = entry.previous == last && Some(entry.lsn.sequence.0) == last.sequence.0.checked_add(1);
        if !follows || entry.lsn.epoch > epoch || entry.lsn.epoch < last.epoch {
            return Err(DecodeError::Invalid { what: "chain of predecessors in a proposal" });
        }
        last = entry.lsn;
        entries.push(entry);
    }
    Ok(entries)
}

fn decode_propose_reply(input: &mut Reader) -> Result<Message, DecodeError> {
    let epoch = Epoch(input.u64()?);
    let sent = Monotonic(input.u64()?);
    let voted = input.bool()?;
    let reply = match input.u8()? {
        0 => Reply::Missing(Gap { after: Sequence(input.u64()?), through: Sequence(input.u64()?) }),
        1 => Reply::Matched(Sequence(input.u64()?)),
        2 => Reply::Apart(input.lsn()?),
        tag => return Err(DecodeError::UnknownTag { what: "answer to a proposal", tag: u64::from(tag) }),
    };
    let (committed, doubtful, at) = (Sequence(input.u64()?), input.bool()?, Monotonic(input.u64()?));
    Ok(Message::ProposeReply { epoch, sent, voted, reply, committed, doubtful, at })
}

#[cfg(test)]
mod tests;
