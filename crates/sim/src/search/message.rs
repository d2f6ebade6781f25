//! Normalizes messages: each is split into independent parts, and a part is dropped once its receiver can learn nothing
//! from it. So the messages in flight depend on little more than the senders' states.
//!
//! The parts permit at least every outcome of the whole message, since they may arrive consecutively; and each part is
//! a message that a replica could have sent.

use base::canary::{Bug, planted};
use base::{Epoch, Lsn, Monotonic, NodeId, Sequence};
use replication::{Gap, Message, Reply};

use super::replica::Replica;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Envelope {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) message: Message,
}

/// The origin of time: a vote sent then has expired.
const LONG_AGO: Monotonic = Monotonic(0);

/// `Missing` only informs a leader where to resume, and here it sends from every position anyway.
const MISSING: Reply = Reply::Missing(Gap { after: Sequence(0), through: Sequence(0) });

/// Splits a message into its parts.
pub(super) fn parts(message: Message) -> Vec<Message> {
    match message {
        Message::Propose { epoch, previous, entries, commit, sent, .. } => {
            // The search does not model ages of data. A follower learns the commit point and votes regardless of the
            // entries, and the order of the three makes no difference.
            let mut parts = vec![heartbeat(epoch, Sequence(0), sent)];
            if !entries.is_empty() {
                let (commit, sent) = (Sequence(0), LONG_AGO);
                parts.push(Message::Propose { epoch, previous, entries, commit, sent, heard: None });
            }
            if commit > Sequence(0) {
                parts.push(heartbeat(epoch, commit, LONG_AGO));
            }
            parts
        }
        Message::ProposeReply { epoch, sent, voted, reply, doubtful, .. } => {
            let part = |sent, voted, reply| Message::ProposeReply {
                epoch,
                sent,
                voted,
                reply,
                committed: Sequence(0),
                doubtful,
                at: LONG_AGO,
            };
            let mut parts = Vec::new();
            if voted {
                parts.push(part(sent, true, MISSING));
            }
            // A replica that matches through `last` may also report every earlier position.
            if let Reply::Matched(last) = reply {
                parts.extend((1..=last.0).map(|through| part(LONG_AGO, false, Reply::Matched(Sequence(through)))));
            }
            parts
        }
        other => vec![other],
    }
}

/// A proposal without entries or predecessor, as a leader sends it when it does not know the follower's log.
fn heartbeat(epoch: Epoch, commit: Sequence, sent: Monotonic) -> Message {
    Message::Propose { epoch, previous: Lsn::ZERO, entries: Vec::new(), commit, sent, heard: None }
}

/// Reduces a message in flight to the part that can still affect `receiver`; `None` if it has no effect from now on.
///
/// A durable promise is never withdrawn, even by a crash, so a message of an older epoch is refused forever.
pub(super) fn alive(envelope: &Envelope, receiver: &Replica, now: Monotonic) -> Option<Message> {
    let durable = receiver.promise_on_disk();
    match &envelope.message {
        // A request of an older epoch only lets its sender learn the newer epoch.
        Message::Prepare { epoch, .. } if *epoch < durable.epoch => {
            Some(Message::Prepare { epoch: *epoch, last: Lsn::ZERO })
        }
        Message::Propose { epoch, commit, entries, .. } if *epoch < durable.epoch => {
            let commit = if planted(Bug::CommitFromOldLeader) { *commit } else { Sequence(0) };
            (entries.is_empty()).then(|| heartbeat(*epoch, commit, LONG_AGO))
        }
        // An expired vote is useless, so all requests for expired votes are equivalent.
        Message::Propose { epoch, entries, commit: Sequence(0), sent, .. } if entries.is_empty() && *sent < now => {
            Some(heartbeat(*epoch, Sequence(0), LONG_AGO))
        }
        Message::PrepareReply { epoch, .. } => {
            let me = receiver.cohort.me();
            let promised = receiver.cohort.promised();
            let stands = promised.candidate == Some(me) && promised.epoch == *epoch && !receiver.cohort.leads();
            stands.then(|| envelope.message.clone())
        }
        Message::ProposeReply { epoch, sent, voted, reply, .. } => {
            let leads = receiver.cohort.leads() && receiver.cohort.promised().epoch == *epoch;
            let tells = match reply {
                Reply::Matched(through) => *through > receiver.cohort.committed(),
                // No replica in the search is forgetful.
                Reply::Missing(_) | Reply::Apart(_) => *voted && *sent == now,
            };
            (leads && tells).then(|| envelope.message.clone())
        }
        Message::Superseded { promised } if *promised <= durable.epoch => None,
        // A candidate requests votes for the epoch after the one it has promised, and a refusal without a newer promise
        // changes nothing.
        Message::PreVoteReply { epoch, granted, promised, .. } => {
            let tells = *epoch > durable.epoch && (*granted || promised >= epoch);
            tells.then(|| envelope.message.clone())
        }
        other => Some(other.clone()),
    }
}

/// The commit point of a message that carries nothing else.
///
/// It is learned without a vote: a follower that can vote votes in response to the part that only requests a vote. So
/// it makes no difference whether it was learned before or after a step of time, and learning it may be delayed.
pub(super) fn commit_point(message: &Message) -> Option<Sequence> {
    match message {
        Message::Propose { previous: Lsn::ZERO, entries, commit, .. } => {
            (entries.is_empty() && *commit > Sequence(0)).then_some(*commit)
        }
        _ => None,
    }
}

/// The message with a lower commit point.
pub(super) fn with_commit_point(message: &Message, lower: Sequence) -> Message {
    match message.clone() {
        Message::Propose { epoch, previous, entries, sent, heard, .. } => {
            Message::Propose { epoch, previous, entries, commit: lower, sent, heard }
        }
        other => other,
    }
}

/// Whether `other`, from the same sender, makes `message` redundant. The highest commit point suffices, since a
/// follower that has matched less learns less from it, and could have matched more afterwards. The newest request for a
/// vote suffices.
pub(super) fn covered(message: &Message, other: &Message) -> bool {
    let (
        Message::Propose { epoch, previous: Lsn::ZERO, entries, commit, sent, .. },
        Message::Propose {
            epoch: other_epoch,
            previous: Lsn::ZERO,
            entries: other_entries,
            commit: more,
            sent: later,
            ..
        },
    ) = (message, other)
    else {
        return false;
    };
    message != other
        && epoch == other_epoch
        && entries.is_empty()
        && other_entries.is_empty()
        && (*commit == Sequence(0)) == (*more == Sequence(0))
        && commit <= more
        && sent <= later
}

/// Whether it is a lease vote and nothing else.
pub(super) fn is_vote(envelope: &Envelope) -> bool {
    matches!(envelope.message, Message::ProposeReply { voted: true, reply: Reply::Missing(_), .. })
}
