//! The events of a replica, and their effects.

use base::{Entry, MembershipChange, Monotonic, NodeId, Now, Sequence, Timestamp};
use bytes::Bytes;

use super::Forces;
use super::message::{Envelope, commit_point, parts};
use super::replica::{Replica, Step, member};
use super::world::tick;

/// An event of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// The message with this number arrives.
    Deliver(u32),
    ForceLog,
    ForceManifest,
    Campaign,
    /// A client's entry is proposed.
    Propose,
    Release,
    /// The leader appends a membership change.
    Change(MembershipChange),
    Crash {
        kept: usize,
        manifests_kept: usize,
        rots: bool,
    },
    Checkpoint,
    /// Time advances for all replicas.
    Tick,
}

impl Event {
    /// Whether it only completes earlier work, and is neither a decision nor a fault.
    pub(super) fn is_progress(self) -> bool {
        matches!(self, Self::Deliver(_) | Self::ForceLog | Self::ForceManifest)
    }
}

/// Whether the writes of a step are forced, if a message of the step was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Disk {
    Forced,
    /// Never forced: this replica crashes first.
    Lost,
}

/// The effect of an event on a replica.
pub(super) struct Outcome {
    pub(super) replica: Replica,
    pub(super) sent: Vec<Envelope>,
    pub(super) applied: Vec<Entry>,
    /// Entries appended to the log.
    pub(super) appended: Vec<Entry>,
    /// Whether the replica now has unforced writes, and did not before.
    pub(super) sticks: bool,
    /// Whether the replica is a candidate for an epoch, and was not before.
    pub(super) stands: bool,
}

/// Executes an event on one replica. `delivered` is the message if the event is a delivery.
pub(super) fn carry_out(
    before: &Replica,
    event: Event,
    delivered: Option<&Envelope>,
    disk: Disk,
    now: Monotonic,
) -> Outcome {
    let mut replica = before.clone();
    let now = Now { monotonic: now, wall: Timestamp(0), uncertainty: None };
    let mut step = run(&mut replica, event, delivered, now);
    step.add(replica.step(|cohort, out| cohort.settle(now, out)));
    if replica.forces == Forces::Eager {
        settle_disk(before, &mut replica, &mut step, disk, now);
    }
    step.add(send_everything(&mut replica, now));
    replica.cohort.invariants();
    let me = replica.cohort.me();
    let mut sent: Vec<Envelope> =
        step.sent.into_iter().flat_map(|(to, message)| envelopes(me.node, to, message)).collect();
    sent.sort_unstable();
    sent.dedup();
    let promised = replica.cohort.promised();
    let stands = promised.candidate == Some(me) && promised.epoch > before.cohort.promised().epoch;
    let sticks = replica.forces == Forces::Eager && replica.is_stuck() && !before.is_stuck();
    Outcome { replica, sent, applied: step.applied, appended: step.proposed, sticks, stands }
}

pub(super) fn envelopes(from: NodeId, to: NodeId, message: replication::Message) -> impl Iterator<Item = Envelope> {
    parts(message).into_iter().map(move |message| Envelope { from, to, message })
}

/// Runs an event on one replica.
fn run(replica: &mut Replica, event: Event, delivered: Option<&Envelope>, now: Now) -> Step {
    match event {
        Event::Deliver(_) => {
            let Some(Envelope { from, message, .. }) = delivered.cloned() else { return Step::default() };
            let votes = commit_point(&message).is_none() || replica.cohort.has_voted(now.monotonic);
            // The vote is a tick old and so has expired.
            let now = if votes { now } else { Now { monotonic: now.monotonic - tick(), ..now } };
            let from = member(from.0);
            replica.compare_with_batched_heartbeat(from, &message, now);
            replica.step(|cohort, out| cohort.message(from, message, now, out))
        }
        Event::ForceLog => replica.force_log(now),
        Event::ForceManifest => replica.force_manifest(now),
        Event::Campaign => replica.step(|cohort, out| cohort.campaign(now, out)),
        Event::Propose => replica.step(|cohort, out| {
            cohort.propose(Bytes::from_static(b"entry"), now, out);
        }),
        Event::Change(change) => replica.step(|cohort, out| {
            // A refused change has no effect.
            let _ = cohort.change_membership(change, 1, now, out);
        }),
        Event::Release => replica.step(|cohort, out| cohort.release(now, out)),
        Event::Crash { kept, manifests_kept, rots } => replica.crash(kept, manifests_kept, rots, now),
        Event::Checkpoint => {
            replica.checkpoint();
            Step::default()
        }
        Event::Tick => Step::default(),
    }
}

/// Forces the writes of a step at once if none of its messages was sent before: a crash before the force is then
/// equivalent to the event not happening. If one was sent, `disk` chooses between the only two distinct outcomes: a
/// crash loses the writes or does not. A force that completes later, but before any crash, only delays the replica's
/// messages, and the network can delay them already. Writes after a lost write are lost as well.
pub(super) fn settle_disk(before: &Replica, replica: &mut Replica, step: &mut Step, disk: Disk, now: Now) {
    let log_forced = before.log_pending() == 0;
    let manifest_forced = before.manifests_pending() == 0;
    while step.sent.is_empty() || disk == Disk::Forced {
        if replica.manifests_pending() > 0 && manifest_forced {
            step.add(replica.force_manifest(now));
        } else if replica.log_pending() > 0 && log_forced {
            step.add(replica.force_log(now));
        } else {
            break;
        }
        step.add(replica.step(|cohort, out| cohort.settle(now, out)));
    }
    replica.drop_unsendable();
}

/// Makes a leader send its followers everything it can: proposals from every entry on, regardless of the followers'
/// known state. This loses no generality, since any message may fail to arrive.
pub(super) fn send_everything(replica: &mut Replica, now: Now) -> Step {
    let mut step = Step::default();
    if !replica.cohort.leads() {
        return step;
    }
    let first = replica.cohort.entries().next().map_or_else(|| replica.cohort.last(), |first| first.previous);
    let peers: Vec<NodeId> = replica.cohort.peers().collect();
    for peer in peers {
        for next in first.sequence.0 + 1..=replica.cohort.last().sequence.0 + 1 {
            step.add(replica.step(|cohort, out| cohort.send_from(peer, Sequence(next), now, out)));
        }
    }
    step
}
