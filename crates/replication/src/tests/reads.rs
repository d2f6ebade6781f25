//! View checks and ages, message by message.

use super::*;
use crate::Checked;

/// A lagging follower learns from the leader's stamp how far it must apply; reads that arrive during a check use the
/// next one.
#[test]
fn view_check_uses_leader_stamp() {
    let mut scene = Scene::new(Limits::default());
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    scene.propose(0);
    scene.deliver(|_, to, _| to == node(1));
    scene.deliver(|from, _, _| from == node(1));
    let committed = scene.replicas[0].0.committed();
    assert!(scene.replicas[2].0.committed() < committed);
    scene.under_way.clear();

    let mut wanted = Vec::new();
    for _ in 0..3 {
        scene.at(2, |cohort, now, out| wanted.push(cohort.want_view(now, out)));
    }
    assert!(wanted[0] < wanted[1] && wanted[1] == wanted[2], "{wanted:?}");
    assert_eq!(scene.under_way.len(), 2, "one check is under way");
    // The other follower's reply has no stamp and is not enough.
    scene.deliver(|from, to, _| from == node(2) && to == node(1));
    scene.deliver(|from, to, _| from == node(1) && to == node(2));
    assert_eq!(scene.replicas[2].0.checked(wanted[0]), None);
    scene.deliver(|from, to, _| from == node(2) && to == node(0));
    scene.deliver(|from, to, _| from == node(0) && to == node(2));
    let checked = scene.replicas[2].0.checked(wanted[0]).expect("the leader and a majority have answered");
    assert_eq!((checked.stamp, checked.epoch), (committed, Epoch(1)));
    assert_eq!(scene.replicas[2].0.checked(wanted[1]), None, "that one has begun only now");
    scene.deliver_all();
    assert!(matches!(scene.replicas[2].0.checked(wanted[1]), Some(Checked { stamp, .. }) if stamp == committed));
}

/// A majority has promised another epoch, so a check of the old one does not complete.
#[test]
fn view_check_of_stale_epoch_never_completes() {
    let mut scene = Scene::new(Limits::default());
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    scene.wait(Duration::from_millis(1_000));
    scene.at(1, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver(|from, to, _| from == node(1) && to == node(2));
    scene.deliver(|_, to, _| to == node(1));
    scene.under_way.clear();
    assert!(scene.replicas[0].0.leads() && scene.replicas[1].0.leads());

    let mut wanted = None;
    scene.at(0, |cohort, now, out| wanted = Some(cohort.want_view(now, out)));
    scene.deliver_all();
    assert_eq!(scene.replicas[0].0.checked(wanted.expect("it was asked")), None);
}

/// The age of a follower's state counts from its own clock, as returned by a leader within its lease.
#[test]
fn age_starts_at_leader_echo() {
    let mut scene = Scene::new(Limits::default());
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    scene.propose(0);
    scene.deliver_all();
    let answered = scene.now.monotonic;
    scene.wait(Timing::default().heartbeat);
    scene.propose(0);
    scene.wait(Duration::from_millis(50));
    scene.deliver_all();
    let now = scene.now.monotonic;
    let age = scene.replicas[1].0.freshness().age(now).expect("the leader has its lease");
    assert_eq!(age, now.since(answered).percent(102), "however long the message was on its way");
    assert!(scene.replicas[1].0.is_current());

    // Replies that arrive after the lease has expired do not renew it: the leader's next message carries no newer age.
    let answered = now;
    scene.heartbeat(0);
    scene.deliver(|_, to, _| to != node(0));
    scene.wait(Duration::from_millis(450));
    scene.deliver_all();
    scene.at(0, |cohort, now, out| {
        cohort.resume_heartbeats(node(1), now);
        cohort.heartbeat(now, out);
    });
    assert!(scene.replicas[0].0.leads() && scene.under_way.iter().any(|(_, to, _)| *to == node(1)));
    scene.deliver(|_, to, _| to == node(1));
    let now = scene.now.monotonic;
    let age = scene.replicas[1].0.freshness().age(now).expect("as before");
    assert_eq!(age, now.since(answered).percent(102));
}

/// A message may carry an older commit point than the leader's: the age counts from when that point was current.
#[test]
fn age_starts_at_commit_point_currency() {
    let (second, interval) = (Duration::from_millis(1_000), Timing::default().heartbeat);
    let timing = Timing { commit_period: second, piggyback_commits: false, ..Timing::default() };
    let mut scene = Scene::with(3, 0, Limits::default(), timing);
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    let say = |scene: &mut Scene, times: u64| {
        for _ in 0..times {
            scene.heartbeat(0);
            scene.deliver_all();
        }
    };
    say(&mut scene, 12);
    scene.propose(0);
    scene.deliver_all();
    let proposed = scene.now.monotonic;
    say(&mut scene, 3);
    let told = |scene: &Scene| {
        let follower = &scene.replicas[1].0;
        let age = follower.freshness().age(scene.now.monotonic).expect("the leader has its lease");
        (follower.committed() == scene.replicas[0].0.committed(), age)
    };
    let (knows, age) = told(&scene);
    assert!(!knows && age >= scene.now.monotonic.since(proposed), "{age:?}");
    say(&mut scene, 9);
    let (knows, age) = told(&scene);
    assert!(knows && age <= Duration(4 * interval.0), "{age:?}");
}
