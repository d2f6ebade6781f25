//! What can happen to one replica, and what it then does.

use base::{Entry, MembershipChange, Monotonic, NodeId, Now, Sequence, Timestamp};
use bytes::Bytes;

use super::Forces;
use super::message::{Envelope, commit_point, parts};
use super::replica::{Replica, Step, member};
use super::world::tick;

/// Something that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// A message that was numbered so arrives.
    Deliver(u32),
    ForceLog,
    ForceManifest,
    Campaign,
    /// A client's entry is proposed.
    Propose,
    Release,
    /// The leader appends a change of the membership.
    Change(MembershipChange),
    Crash {
        kept: usize,
        manifests_kept: usize,
        rots: bool,
    },
    Checkpoint,
    /// Time passes, for all.
    Tick,
}

impl Event {
    /// Whether it is something that is only waited for, not a choice of somebody's and no accident.
    pub(super) fn is_progress(self) -> bool {
        matches!(self, Self::Deliver(_) | Self::ForceLog | Self::ForceManifest)
    }
}

/// Whether what a step has written is forced, if something that the step wanted to say has left before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Disk {
    /// At once.
    Forced,
    /// Never: a crash of this replica comes first.
    Lost,
}

/// What an event did to a replica.
pub(super) struct Outcome {
    pub(super) replica: Replica,
    pub(super) sent: Vec<Envelope>,
    pub(super) applied: Vec<Entry>,
    /// What was appended to the log.
    pub(super) appended: Vec<Entry>,
    /// Whether something is left to be lost that wasn't before.
    pub(super) sticks: bool,
    /// Whether the replica stands for an epoch that it didn't stand for before.
    pub(super) stands: bool,
}

/// Carries out an event on one replica. `delivered` is the message, if it is a delivery.
pub(super) fn carry_out(
    before: &Replica,
    event: Event,
    delivered: Option<&Envelope>,
    disk: Disk,
    now: Monotonic,
) -> Outcome {
    let mut replica = before.clone();
    let now = Now { monotonic: now, wall: Timestamp(0) };
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

fn envelopes(from: NodeId, to: NodeId, message: replication::Message) -> impl Iterator<Item = Envelope> {
    parts(message).into_iter().map(move |message| Envelope { from, to, message })
}

/// Runs an event on one replica.
fn run(replica: &mut Replica, event: Event, delivered: Option<&Envelope>, now: Now) -> Step {
    match event {
        Event::Deliver(_) => {
            let Some(Envelope { from, message, .. }) = delivered.cloned() else { return Step::default() };
            let votes = commit_point(&message).is_none() || replica.cohort.has_voted(now.monotonic);
            // A vote that was given a tick ago has lapsed.
            let now = if votes { now } else { Now { monotonic: now.monotonic - tick(), ..now } };
            let from = member(from.0);
            replica.compare_with_vouching(from, &message, now);
            replica.step(|cohort, out| cohort.message(from, message, now, out))
        }
        Event::ForceLog => replica.force_log(),
        Event::ForceManifest => replica.force_manifest(now),
        Event::Campaign => replica.step(|cohort, out| cohort.campaign(now, out)),
        Event::Propose => replica.step(|cohort, out| {
            cohort.propose(Bytes::from_static(b"entry"), now, out);
        }),
        Event::Change(change) => replica.step(|cohort, out| {
            // What is refused changes nothing.
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

/// Forces what a step has written, at once if nothing that it wanted to say has left before: a crash before the force
/// is then the same as the event never having come. If something has left, `disk` tells between the two things that
/// matter: whether a crash loses it or not. A force that comes later than at once, and before any crash, only puts off
/// what the replica tells of it, and every message can be put off already. What was written after something that is
/// lost is lost.
fn settle_disk(before: &Replica, replica: &mut Replica, step: &mut Step, disk: Disk, now: Now) {
    let log_forced = before.log_pending() == 0;
    let manifest_forced = before.manifests_pending() == 0;
    while step.sent.is_empty() || disk == Disk::Forced {
        if replica.manifests_pending() > 0 && manifest_forced {
            step.add(replica.force_manifest(now));
        } else if replica.log_pending() > 0 && log_forced {
            step.add(replica.force_log());
        } else {
            break;
        }
        step.add(replica.step(|cohort, out| cohort.settle(now, out)));
    }
    replica.forget_what_waits_in_vain();
}

/// A leader sends its followers everything that it could: from every entry on, whatever it believes of them. A message
/// that was sent may never arrive, so to send more leaves nothing out.
fn send_everything(replica: &mut Replica, now: Now) -> Step {
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
