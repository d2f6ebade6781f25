//! Kills and pauses nodes, one at a time; once also pauses a majority, and once kills all nodes.

use std::thread::sleep;
use std::time::{Duration, Instant};

use base::SplitMix64;
use rustix::process::Signal;

use crate::crashes::nemesis::{Blow, kill_all, strike};
use crate::harness::Cluster;

/// How long a majority is paused. Longer than the shortest deadlines of the clients.
const WITHOUT_MAJORITY: Duration = Duration::from_millis(1_500);

/// The number of faults.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    kills: u32,
    stops: u32,
}

impl Faults {
    /// Asserts that there were enough faults for a meaningful test.
    pub(super) fn check(self) {
        assert!(self.kills > 0 && self.stops > 0, "the time was too short: {self:?}");
    }
}

/// Runs until `until`, or slightly longer. At the end every node runs.
pub(super) fn run(cluster: &Cluster, until: Instant) -> Faults {
    let mut random = SplitMix64::new(u64::from(std::process::id()));
    let begun = Instant::now();
    let part = until.saturating_duration_since(begun) / 3;
    let mut faults = Faults::default();
    let (mut was_majority_paused, mut were_all_killed) = (false, false);
    while Instant::now() < until {
        sleep(Duration::from_millis(400 + random.below(500)));
        if !was_majority_paused && begun.elapsed() > part {
            was_majority_paused = true;
            pause_majority(cluster);
        } else if !were_all_killed && begun.elapsed() > part * 2 {
            were_all_killed = true;
            kill_all(cluster);
        } else {
            let victim = 1 + random.below(3) as u32;
            match strike(cluster, victim, &mut random) {
                Blow::Killed => faults.kills += 1,
                Blow::Stopped => faults.stops += 1,
            }
        }
    }
    // The two larger faults count too.
    faults.stops += u32::from(was_majority_paused);
    faults.kills += u32::from(were_all_killed);
    faults
}

fn pause_majority(cluster: &Cluster) {
    [2, 3].iter().for_each(|node| cluster.signal(*node, Signal::STOP));
    sleep(WITHOUT_MAJORITY);
    [2, 3].iter().for_each(|node| cluster.signal(*node, Signal::CONT));
}
