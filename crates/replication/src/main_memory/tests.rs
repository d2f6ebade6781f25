use std::sync::Arc;

use base::{Duration, Epoch, Membership, MembershipChange, Sequence, SharedMembership};
use bytes::Bytes;

use super::*;
use crate::tests::{Scene, member, node};
use crate::{Message, Output, Replayed, Start, Timing};

fn lead(scene: &mut Scene, index: usize) {
    scene.at(index, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    assert!(scene.replicas[index].0.is_open());
}

fn settle(scene: &mut Scene, leader: usize) {
    for _ in 0..2 {
        scene.heartbeat(leader);
        scene.deliver_all();
    }
}

/// Three replicas with the same three entries; the first is the leader.
fn three_of_three() -> Scene {
    let mut scene = Scene::in_memory(3);
    lead(&mut scene, 0);
    scene.propose(0);
    scene.propose(0);
    settle(&mut scene, 0);
    assert!(scene.replicas.iter().all(|(cohort, _)| cohort.committed() == Sequence(3)));
    scene
}

/// Crashes a replica; its disk keeps entries through `kept`. The others learn of its new process.
fn crash(scene: &mut Scene, index: usize, kept: u64) {
    let old = &scene.replicas[index].0;
    let entries = old.entries().filter(|entry| entry.lsn.sequence.0 <= kept).cloned().collect();
    let members: Vec<_> = (0..scene.replicas.len()).map(|index| member(node(index))).collect();
    let start = Start {
        promised: old.promised(),
        membership: SharedMembership::from(Membership::of(members)),
        log: Replayed { entries, committed: Sequence(kept), cut: None },
        forgetful: true,
        ..Start::default()
    };
    let mut out = Outbox::default();
    scene.replicas[index] = (Cohort::start(old.config().clone(), start, scene.now, &mut out), out);
    scene.under_way.retain(|(from, to, _)| ![*from, *to].contains(&node(index)));
    scene.replicas.iter_mut().for_each(|(cohort, _)| cohort.peer_restarted(node(index)));
}

/// A replica stands for election with messages only to and from `others`. Returns whether it leads.
fn stand(scene: &mut Scene, index: usize, others: &[usize]) -> bool {
    scene.wait(Duration::from_millis(1_000));
    scene.under_way.clear();
    scene.at(index, |cohort, now, out| cohort.stand(now, out));
    let hears = |from, to| {
        let is_among = |id| id == node(index) || others.iter().any(|other| id == node(*other));
        is_among(from) && is_among(to)
    };
    for _ in 0..4 {
        scene.deliver(|from, to, _| hears(from, to));
    }
    scene.replicas[index].0.leads()
}

#[test]
fn forgetful_replica_counts_after_catch_up() {
    let mut scene = three_of_three();
    crash(&mut scene, 2, 1);
    let (forgetful, _) = &scene.replicas[2];
    assert!(forgetful.forgetful() && forgetful.committed() == Sequence(0), "what its log calls committed may be lost");
    settle(&mut scene, 0);
    let (caught_up, _) = &scene.replicas[2];
    assert_eq!((caught_up.forgetful(), caught_up.committed()), (false, Sequence(3)));
}

/// While a majority may be intact, the candidate waits for it, and finds entries that only some replicas hold in
/// memory.
#[test]
fn forgetful_and_intact_are_no_majority() {
    let mut scene = three_of_three();
    crash(&mut scene, 0, 1);
    for _ in 0..20 {
        assert!(!stand(&mut scene, 1, &[0]) && !stand(&mut scene, 0, &[1]));
    }
    assert!(stand(&mut scene, 1, &[0, 2]));
    assert!(!scene.replicas[1].0.declares_loss() && scene.replicas[1].0.last().sequence >= Sequence(3));
}

/// Two of three replicas have lost the last entries, and the third is unreachable: they wait for it and then declare
/// the loss. The third has applied the lost entries. It acknowledges nothing, installs the leader's older state in
/// place of its own, and counts again once it has caught up.
#[test]
fn forgetful_majority_declares_loss() {
    let mut scene = three_of_three();
    crash(&mut scene, 0, 1);
    crash(&mut scene, 1, 2);
    assert!(!stand(&mut scene, 1, &[0]), "the third has its time");
    scene.wait(Timing::default().loss_patience);
    assert!(!stand(&mut scene, 0, &[1]), "the other's log is longer");
    assert!(stand(&mut scene, 1, &[0]));
    for _ in 0..6 {
        scene.deliver(|_, to, _| to != node(2));
    }
    let (leader, _) = &scene.replicas[1];
    assert!(leader.declares_loss() && leader.is_open() && !leader.forgetful());
    let payloads: Vec<Bytes> = leader.entries().skip(2).map(|entry| entry.payload.clone()).collect();
    assert_eq!(payloads, [&b"loss"[..], b""], "what is left, the declaration, the barrier");

    settle(&mut scene, 1);
    let (apart, _) = &scene.replicas[2];
    assert!(apart.has_diverged() && apart.applied() == Sequence(3) && apart.last().epoch == Epoch(1));
    let (state, timestamp) = {
        let entry = scene.replicas[1].0.entries().nth(1).expect("it is in memory");
        (entry.lsn, entry.timestamp)
    };
    let membership = Arc::clone(scene.replicas[1].0.membership());
    scene.at(2, |cohort, now, out| assert!(cohort.install(state, timestamp, membership, now, out)));
    let (behind, _) = &scene.replicas[2];
    assert!(behind.applied() == state.sequence && behind.forgetful() && !behind.has_diverged());
    scene.at(1, |cohort, now, out| cohort.state_sent(node(2), Some(state), now, out));
    settle(&mut scene, 1);
    let last = scene.replicas[1].0.last();
    assert!(scene.replicas.iter().all(|(cohort, _)| cohort.last() == last && !cohort.is_in_doubt()));
}

/// Followers acknowledge an entry before it is on disk, unless it changes the membership.
#[test]
fn membership_entry_acked_after_sync() {
    let mut scene = three_of_three();
    scene.propose(0);
    scene.at(0, |cohort, now, out| {
        cohort.change_membership(MembershipChange::Remove(member(node(2))), 1, now, out).expect("it leads");
        cohort.settle(now, out);
    });
    let to_second = |(_, to, message): &(_, _, Message)| (*to == node(1)).then(|| message.clone());
    let proposals: Vec<Message> = scene.under_way.iter().filter_map(to_second).collect();
    let (cohort, out) = &mut scene.replicas[1];
    for message in proposals {
        cohort.message(member(node(0)), message, scene.now, out);
    }
    let outputs = out.take();
    let appends = outputs.iter().filter_map(|output| match output {
        Output::Append { write, record: base::LogRecord::Entry(entry), force } => Some((*write, entry, *force)),
        _ => None,
    });
    let appends: Vec<_> = appends.collect();
    let [(_, first, Force::Soon), (write, change, Force::Now)] = &appends[..] else { panic!("{appends:?}") };
    assert!(first.members.is_none() && change.members.is_some());
    let waits: Vec<WriteId> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Send { message: Message::ProposeReply { .. }, after, .. } => Some(after.log),
            _ => None,
        })
        .collect();
    assert_eq!(waits, [WriteId(0), *write]);
    assert_eq!(cohort.acknowledged(), first.lsn.sequence);
    cohort.log_forced(*write, scene.now, out);
    assert_eq!(cohort.acknowledged(), change.lsn.sequence);
}

#[cfg(feature = "canary")]
#[test]
fn unsynced_membership_ack_is_found() {
    base::canary::plant(Some(Bug::MembersForgotten));
    let outcome = std::panic::catch_unwind(membership_entry_acked_after_sync);
    base::canary::plant(None);
    assert!(outcome.is_err());
}

/// A stalled disk: the number of entries that count without it is limited.
#[test]
fn unsynced_commit_byte_limit() {
    let mut scene = Scene::in_memory(1);
    lead(&mut scene, 0);
    let (cohort, out) = &mut scene.replicas[0];
    let mebibyte = Bytes::from(vec![0; 1 << 20]);
    for _ in 0..70 {
        cohort.propose(mebibyte.clone(), scene.now, out);
    }
    let counts = cohort.committed().0;
    assert!((60..=65).contains(&counts), "{counts}");
    cohort.log_forced(out.appended(), scene.now, out);
    assert_eq!(cohort.committed(), cohort.last().sequence);
    cohort.propose(mebibyte, scene.now, out);
    assert_eq!(cohort.committed(), cohort.last().sequence, "there is room again");
}
