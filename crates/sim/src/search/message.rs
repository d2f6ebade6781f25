//! Messages in normal form: each is split into the parts that it tells, and a part that can tell its receiver nothing
//! any more is dropped. So the messages under way are a function of little more than the states of those who sent them.
//!
//! What a split allows is never less than what the whole message does, since the parts may arrive one right after the
//! other; and each part is a message that a replica could have sent.

use base::canary::{Bug, planted};
use base::{Epoch, Lsn, Monotonic, NodeId, Sequence};
use replication::{Gap, Message, Reply};

use super::replica::Replica;

/// A message under way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Envelope {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) message: Message,
}

/// The beginning of time: a vote for what was sent then is no vote.
const LONG_AGO: Monotonic = Monotonic(0);

/// That something is missing only tells a leader where to send from, and it sends from everywhere.
const MISSING: Reply = Reply::Missing(Gap { after: Sequence(0), through: Sequence(0) });

/// The parts of a message.
pub(super) fn parts(message: Message) -> Vec<Message> {
    match message {
        Message::Propose { epoch, previous, entries, commit, sent, .. } => {
            // How old what it tells is, nobody asks here. A follower learns the commit point and gives its vote
            // whatever it says of the entries, and all three in any order come to the same.
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
            // Who holds everything through `last` may say so of every place before.
            if let Reply::Matched(last) = reply {
                parts.extend((1..=last.0).map(|through| part(LONG_AGO, false, Reply::Matched(Sequence(through)))));
            }
            parts
        }
        other => vec![other],
    }
}

/// A proposal without entries that names no predecessor, as a leader sends it that doesn't know what a follower holds.
fn heartbeat(epoch: Epoch, commit: Sequence, sent: Monotonic) -> Message {
    Message::Propose { epoch, previous: Lsn::ZERO, entries: Vec::new(), commit, sent, heard: None }
}

/// What is left of a message that waits for `receiver`, in the light of what the receiver is now; none if it can never
/// do anything again.
///
/// A promise that is durable is never taken back, by no crash either: a message of an older epoch is refused for ever.
pub(super) fn alive(envelope: &Envelope, receiver: &Replica, now: Monotonic) -> Option<Message> {
    let durable = receiver.promise_on_disk();
    match &envelope.message {
        // What is left of a request of an older epoch is that its sender can be told of the newer one.
        Message::Prepare { epoch, .. } if *epoch < durable.epoch => {
            Some(Message::Prepare { epoch: *epoch, last: Lsn::ZERO })
        }
        Message::Propose { epoch, commit, entries, .. } if *epoch < durable.epoch => {
            let commit = if planted(Bug::CommitFromOldLeader) { *commit } else { Sequence(0) };
            (entries.is_empty()).then(|| heartbeat(*epoch, commit, LONG_AGO))
        }
        // Nobody waits for a vote longer than it lasts, so all that were asked for long ago are alike.
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
                // No replica of the search has forgotten anything.
                Reply::Missing(_) | Reply::Apart(_) => *voted && *sent == now,
            };
            (leads && tells).then(|| envelope.message.clone())
        }
        Message::Superseded { promised } if *promised <= durable.epoch => None,
        // Who asks for votes asks for the epoch after the one it has promised; and a bare "no" changes nothing.
        Message::PreVoteReply { epoch, granted, promised, .. } => {
            let tells = *epoch > durable.epoch && (*granted || promised >= epoch);
            tells.then(|| envelope.message.clone())
        }
        other => Some(other.clone()),
    }
}

/// The commit point that a message tells, if it tells nothing else.
///
/// It is learnt without a vote: whoever has one to give gives it to a part that asks for nothing else. So it makes no
/// difference whether it was learnt before time passed or after, and what was learnt may be put off.
pub(super) fn commit_point(message: &Message) -> Option<Sequence> {
    match message {
        Message::Propose { previous: Lsn::ZERO, entries, commit, .. } => {
            (entries.is_empty() && *commit > Sequence(0)).then_some(*commit)
        }
        _ => None,
    }
}

/// The same message with a lower commit point.
pub(super) fn with_commit_point(message: &Message, lower: Sequence) -> Message {
    match message.clone() {
        Message::Propose { epoch, previous, entries, sent, heard, .. } => {
            Message::Propose { epoch, previous, entries, commit: lower, sent, heard }
        }
        other => other,
    }
}

/// Whether `other`, from the same sender, makes `message` superfluous: of commit points the highest is enough, since a
/// follower that has matched less learns less from it, and could have matched more afterwards; of requests for votes
/// the newest is enough.
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

/// Whether it is a lease vote, and nothing else.
pub(super) fn is_vote(envelope: &Envelope) -> bool {
    matches!(envelope.message, Message::ProposeReply { voted: true, reply: Reply::Missing(_), .. })
}
