use base::{Epoch, Incarnation, Member, MembershipChange, NoStep, Now, Sequence};

use crate::tests::{Scene, member, node};
use crate::{ChangeRefused, Cohort, Limits, ManifestId, Message, Outbox, Output, Timing, WriteId};

fn change(scene: &mut Scene, index: usize, change: MembershipChange) -> Result<(), ChangeRefused> {
    let mut outcome = Ok(());
    scene.at(index, |cohort, now, out| {
        outcome = cohort.change_membership(change, 1, now, out);
        cohort.settle(now, out);
    });
    outcome
}

fn lead(scene: &mut Scene, index: usize) {
    scene.at(index, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    assert!(scene.replicas[index].0.is_open());
}

fn settle(scene: &mut Scene, leader: usize) {
    scene.deliver_all();
    scene.heartbeat(leader);
    scene.deliver_all();
}

fn voters(scene: &Scene, index: usize) -> usize {
    scene.replicas[index].0.membership().voters().len()
}

/// A leader may promote a new member that reports the end of its doubt: no crash may bring the doubt back.
#[test]
fn doubt_end_reported_after_sync() {
    let mut scene = Scene::with(3, 1, Limits::default(), Timing::default());
    lead(&mut scene, 0);
    assert_eq!(change(&mut scene, 0, MembershipChange::AddLearner(member(node(3)))), Ok(()));
    for _ in 0..20 {
        scene.heartbeat(0);
        scene.deliver(|_, to, _| to != node(3));
        for (from, to, message) in std::mem::take(&mut scene.under_way) {
            if to != node(3) {
                scene.under_way.push((from, to, message));
                continue;
            }
            let (cohort, out) = &mut scene.replicas[3];
            cohort.message(member(from), message, scene.now, out);
            let mut written = None;
            for output in out.take() {
                match output {
                    Output::Append { write, .. } => written = Some(write),
                    Output::Send { to, message, after, .. } => {
                        if let Message::ProposeReply { doubtful: false, .. } = message {
                            assert_eq!(Some(after.manifest), out.take_manifest(), "it says so before that is forced");
                            return;
                        }
                        scene.under_way.push((node(3), to, message));
                    }
                    _ => {}
                }
            }
            cohort.log_forced(written.unwrap_or(WriteId(0)), scene.now, out);
            if cohort.doubtful() {
                cohort.manifest_forced(out.take_manifest().unwrap_or(ManifestId(0)), scene.now, out);
            }
        }
    }
    panic!("it never says that it has caught up");
}

/// A new member catches up as a learner, counts in no majority until it is a voter, and counts afterwards.
#[test]
fn learner_becomes_voter() {
    let mut scene = Scene::with(3, 1, Limits::default(), Timing::default());
    lead(&mut scene, 0);
    scene.propose(0);
    settle(&mut scene, 0);
    let newcomer = member(node(3));
    assert_eq!(
        change(&mut scene, 0, MembershipChange::Promote(newcomer)),
        Err(ChangeRefused::NoStep(NoStep::NoLearner))
    );
    assert_eq!(change(&mut scene, 0, MembershipChange::AddLearner(newcomer)), Ok(()));
    let readiness = |scene: &Scene| scene.replicas[0].0.is_ready_for(MembershipChange::Promote(newcomer), scene.now);
    assert_eq!(readiness(&scene), Err(ChangeRefused::Behind));
    settle(&mut scene, 0);
    settle(&mut scene, 0);
    assert_eq!(scene.replicas[3].0.last(), scene.replicas[0].0.last());
    assert!(!scene.replicas[3].0.doubtful(), "it has caught up");
    assert_eq!(readiness(&scene), Ok(()));

    // An entry held only by the leader and the learner is not committed.
    scene.propose(0);
    scene.deliver(|_, to, _| to == node(3));
    scene.deliver(|from, _, _| from == node(3));
    assert!(scene.replicas[0].0.committed() < scene.replicas[0].0.last().sequence);
    settle(&mut scene, 0);

    assert_eq!(change(&mut scene, 0, MembershipChange::Promote(newcomer)), Ok(()));
    settle(&mut scene, 0);
    assert!((0..4).all(|index| voters(&scene, index) == 4 && scene.replicas[index].0.is_settled()));
}

#[test]
fn single_change_after_leader_barrier() {
    let mut scene = Scene::with(3, 0, Limits::default(), Timing::default());
    let remove = |index| MembershipChange::Remove(member(node(index)));
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver(|_, to, _| to == node(1));
    scene.deliver(|from, _, _| from == node(1));
    assert!(scene.replicas[0].0.leads() && !scene.replicas[0].0.is_open());
    assert_eq!(change(&mut scene, 0, remove(2)), Err(ChangeRefused::BeforeBarrier));
    settle(&mut scene, 0);
    assert_eq!(change(&mut scene, 0, remove(0)), Err(ChangeRefused::Leads));
    assert_eq!(change(&mut scene, 1, remove(2)), Err(ChangeRefused::NotLeader));
    let other_disk = Member { incarnation: Incarnation(9), ..member(node(2)) };
    let refused = change(&mut scene, 0, MembershipChange::AddLearner(other_disk));
    assert_eq!(refused, Err(ChangeRefused::NoStep(NoStep::OtherDisk(member(node(2))))));
    assert_eq!(change(&mut scene, 0, remove(2)), Ok(()));
    assert_eq!(change(&mut scene, 0, remove(1)), Err(ChangeRefused::UnderWay));
    settle(&mut scene, 0);
    // Two remain, and both are needed.
    scene.propose(0);
    assert!(scene.replicas[0].0.committed() < scene.replicas[0].0.last().sequence);
    settle(&mut scene, 0);
    assert_eq!(scene.replicas[0].0.committed(), scene.replicas[0].0.last().sequence);
    assert_eq!(change(&mut scene, 0, remove(1)), Ok(()));
    assert!(scene.replicas[0].0.is_settled(), "a leader that is alone commits alone");
}

/// A change held only by its leader is truncated by the next leader's log, and the membership reverts.
#[test]
fn truncated_membership_change_reverts() {
    let mut scene = Scene::with(3, 0, Limits::default(), Timing::default());
    lead(&mut scene, 0);
    settle(&mut scene, 0);
    assert_eq!(change(&mut scene, 0, MembershipChange::Remove(member(node(2)))), Ok(()));
    assert_eq!(voters(&scene, 0), 2);
    scene.under_way.clear();
    scene.wait(base::Duration::from_millis(2_000));
    scene.at(1, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver(|from, to, _| from == node(1) && to == node(2) || from == node(2) && to == node(1));
    scene.deliver(|from, to, _| from == node(2) && to == node(1));
    assert!(scene.replicas[1].0.leads());
    settle(&mut scene, 1);
    settle(&mut scene, 1);
    assert_eq!((voters(&scene, 0), scene.replicas[0].0.last()), (3, scene.replicas[1].0.last()));
}

/// A removed member that does not know it asks the others in vain while a leader is alive; nothing changes for them.
#[test]
fn removed_member_is_not_disruptive() {
    let mut scene = Scene::with(3, 0, Limits::default(), Timing::default());
    lead(&mut scene, 0);
    settle(&mut scene, 0);
    assert_eq!(change(&mut scene, 0, MembershipChange::Remove(member(node(2)))), Ok(()));
    settle(&mut scene, 0);
    let before: Vec<Epoch> = (0..2).map(|index| scene.replicas[index].0.promised().epoch).collect();
    for _ in 0..30 {
        // Otherwise the cohort is at rest, and its votes are renewed by batched heartbeats.
        scene.propose(0);
        scene.heartbeat(0);
        scene.deliver_all();
        scene.at(2, Cohort::timer);
        scene.deliver_all();
    }
    let after: Vec<Epoch> = (0..2).map(|index| scene.replicas[index].0.promised().epoch).collect();
    assert!(scene.replicas[0].0.leads());
    assert_eq!(before, after);
}

/// A replica that knows no membership follows, and neither stands nor promises before it has caught up.
#[test]
fn outsider_grants_no_promise_before_catch_up() {
    let mut scene = Scene::with(3, 1, Limits::default(), Timing::default());
    let ask = |scene: &mut Scene| {
        scene.at(3, Cohort::timer);
        scene.at(3, |cohort, now, out| cohort.campaign(now, out));
        let epoch = scene.replicas[3].0.promised().epoch.next();
        let prepare = Message::Prepare { epoch, last: base::Lsn::new(99, 99) };
        scene.under_way.clear();
        scene.at(3, |cohort: &mut Cohort, now: Now, out: &mut Outbox| {
            cohort.message(member(node(1)), prepare, now, out);
        });
        let granted = |message: &Message| matches!(message, Message::PrepareReply { granted: true, .. });
        let asked = scene.under_way.iter().any(|(_, _, message)| matches!(message, Message::Prepare { .. }));
        assert!(!asked, "it does not stand");
        let promised = scene.under_way.iter().any(|(_, _, message)| granted(message));
        scene.under_way.clear();
        promised
    };
    assert!(!ask(&mut scene));
    lead(&mut scene, 0);
    assert_eq!(change(&mut scene, 0, MembershipChange::AddLearner(member(node(3)))), Ok(()));
    settle(&mut scene, 0);
    settle(&mut scene, 0);
    assert_eq!(scene.replicas[3].0.committed(), Sequence(2));
    scene.wait(base::Duration::from_millis(2_000));
    assert!(ask(&mut scene), "it holds what was committed: it may be asked, should its vote be needed just now");
}

/// A former member that does not know of its removal deletes its data when it learns of it. So it does not vote before
/// its own log says that it is a learner again.
#[test]
fn no_vote_before_own_log_has_learner() {
    let limits = Limits { propose_bytes: 1, window_bytes: 1, ..Limits::default() };
    let mut scene = Scene::with(3, 1, limits, Timing::default());
    lead(&mut scene, 0);
    let newcomer = member(node(3));
    change(&mut scene, 0, MembershipChange::AddLearner(newcomer)).expect("it is open");
    for _ in 0..3 {
        settle(&mut scene, 0);
    }
    assert!(!scene.replicas[3].0.doubtful());
    let had = scene.replicas[3].0.last();

    for step in [MembershipChange::Remove(newcomer), MembershipChange::AddLearner(newcomer)] {
        change(&mut scene, 0, step).expect("the one before is committed");
        while scene.under_way.iter().any(|(_, to, _)| *to != node(3)) {
            scene.deliver(|_, to, _| to != node(3));
        }
    }
    scene.under_way.clear();
    assert_eq!(scene.replicas[3].0.last(), had, "it has heard of neither");
    let mut was_unaware = false;
    for _ in 0..20 {
        scene.heartbeat(0);
        scene.deliver(|_, _, _| true);
        scene.deliver(|_, _, _| true);
        let (leader, candidate) = (&scene.replicas[0].0, &scene.replicas[3].0);
        if leader.is_ready_for(MembershipChange::Promote(newcomer), scene.now).is_ok() {
            assert_eq!(candidate.membership(), leader.membership());
            assert!(was_unaware, "it came one entry at a time");
            return;
        }
        was_unaware |= candidate.last() > had && candidate.membership() != leader.membership();
    }
    panic!("it never catches up");
}

#[cfg(feature = "canary")]
#[test]
fn premature_promotion_is_found() {
    base::canary::plant(Some(base::canary::Bug::PromotedUnawares));
    let outcome = std::panic::catch_unwind(no_vote_before_own_log_has_learner);
    base::canary::plant(None);
    assert!(outcome.is_err());
}
