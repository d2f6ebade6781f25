//! Entries that wait for their timestamps.

use super::*;

const START: i64 = 1_700_000_000_000_000_000;

/// A leader with a clock that is at `wall`, wrong by at most 1 ms.
fn leading(wall: i64) -> Scene {
    let mut scene = Scene::new(Limits::default());
    for (cohort, _) in &mut scene.replicas {
        cohort.config.waits = true;
    }
    set_clock(&mut scene, wall);
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    scene
}

fn set_clock(scene: &mut Scene, wall: i64) {
    (scene.now.wall, scene.now.uncertainty) = (Timestamp(wall), Some(Duration::from_millis(1)));
}

/// Lets time pass by both clocks, and runs the leader's timer.
fn pass(scene: &mut Scene, time: Duration) {
    scene.wait(time);
    scene.now.wall.0 += time.0.cast_signed();
    scene.at(0, |cohort, now, out| cohort.timer(now, out));
}

fn committed(scene: &Scene) -> u64 {
    scene.replicas[0].0.committed().0
}

#[test]
fn nothing_commits_before_its_timestamp_has_passed() {
    let mut scene = leading(START);
    assert_eq!(committed(&scene), 0, "the barrier waits");
    pass(&mut scene, Duration::from_millis(2));
    assert_eq!(committed(&scene), 0, "the timestamp may not be past");
    pass(&mut scene, Duration(1));
    assert_eq!(committed(&scene), 1);
    assert!(scene.replicas[0].0.is_open());

    scene.propose(0);
    pass(&mut scene, Duration::from_millis(1));
    scene.propose(0);
    scene.deliver_all();
    let wait_ends = scene.replicas[0].0.next_timer(scene.now.monotonic);
    assert_eq!(wait_ends, scene.now.monotonic + Duration(Duration::from_millis(1).0 + 1));
    assert!(scene.replicas[1].0.committed().0 <= 1, "followers hear nothing early");
    pass(&mut scene, Duration(Duration::from_millis(1).0 + 1));
    assert_eq!(committed(&scene), 2, "the later entry still waits");
    pass(&mut scene, Duration::from_millis(1));
    assert_eq!(committed(&scene), 3);
}

#[test]
fn floor_raises_the_timestamp_and_the_wait() {
    let mut scene = leading(START);
    pass(&mut scene, Duration::from_millis(3));
    let floor = Timestamp(START + 20_000_000);
    scene.at(0, |cohort, now, out| {
        cohort.propose_from(Bytes::from_static(b"x"), floor, now, out).expect("it leads");
        cohort.settle(now, out);
    });
    scene.deliver_all();
    assert_eq!(scene.replicas[0].0.last_timestamp(), floor);
    pass(&mut scene, Duration::from_millis(17));
    assert_eq!(committed(&scene), 1);
    pass(&mut scene, Duration::from_millis(2));
    assert_eq!(committed(&scene), 2);
}

/// The log was brought far ahead by a clock that was wrong: entries do not wait for that time.
#[test]
fn log_far_ahead_of_the_clock_is_not_waited_for() {
    let mut scene = leading(START);
    pass(&mut scene, Duration::from_millis(3));
    assert_eq!(scene.replicas[0].0.ahead_of_clock(scene.now), None);
    set_clock(&mut scene, START - 5_000_000_000);
    scene.propose(0);
    scene.deliver_all();
    assert_eq!(committed(&scene), 2);
    assert!(scene.replicas[0].0.ahead_of_clock(scene.now).is_some());

    scene.now.uncertainty = None;
    scene.propose(0);
    scene.deliver_all();
    assert_eq!(committed(&scene), 3, "without a bound there is no wait");
    assert_eq!(scene.replicas[0].0.ahead_of_clock(scene.now), None);
}
