//! Replicas that cannot serve all requests and leave leadership to others.

use super::*;

const LOST: NodeId = NodeId(3);

/// Advances the time and runs the replicas' timers; the third replica may be partitioned.
fn pass(scene: &mut Scene, span: Duration, is_cut_off: bool) {
    for _ in 0..span.as_millis() / 100 {
        for index in 0..3 {
            if !(is_cut_off && node(index) == LOST) {
                scene.at(index, |cohort, now, out| {
                    if cohort.next_timer(now.monotonic) <= now.monotonic {
                        cohort.timer(now, out);
                    }
                    cohort.settle(now, out);
                });
            }
        }
        while !scene.under_way.is_empty() {
            if is_cut_off {
                scene.under_way.retain(|(from, to, _)| *from != LOST && *to != LOST);
            }
            scene.deliver(|_, _, _| true);
        }
        scene.wait(Duration::from_millis(100));
    }
}

fn leader(scene: &Scene) -> Option<usize> {
    scene.replicas.iter().position(|(replica, _)| replica.leads())
}

fn stand_aside(scene: &mut Scene, index: usize) {
    scene.at(index, |cohort, now, out| cohort.stand_aside(now, out));
}

/// The first two replicas stand aside one after the other, while the third lacks an entry: only the first two can lead.
#[test]
fn stood_aside_replica_leads_as_last_resort() {
    let mut scene = Scene::new(Limits::default());
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    scene.propose(0);
    pass(&mut scene, Duration::from_millis(1_000), true);
    for _ in 0..2 {
        let damaged = leader(&scene).expect("one of the two");
        stand_aside(&mut scene, damaged);
        pass(&mut scene, Duration::from_millis(1_000), true);
    }
    assert_eq!(leader(&scene), None, "both stand aside");

    pass(&mut scene, Duration::from_millis(10_000), false);
    let again = leader(&scene).expect("one of the two again: the third lacks an entry");
    assert_eq!(scene.replicas[2].0.last(), scene.replicas[again].0.last(), "it lacks none any more");
    stand_aside(&mut scene, again);
    assert!(scene.replicas[again].0.leads(), "not so soon again: there may be nobody else");

    let other = 1 - again;
    for _ in 0..80 {
        pass(&mut scene, Duration::from_millis(1_000), false);
        // It fails repeatedly while it follows, which keeps it aside.
        stand_aside(&mut scene, other);
    }
    stand_aside(&mut scene, again);
    pass(&mut scene, Duration::from_millis(3_000), false);
    assert_eq!(leader(&scene), Some(2), "the only one that stands aside for nobody");
}
