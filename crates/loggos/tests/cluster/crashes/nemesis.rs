//! Kills and pauses nodes, one at a time and the leader more often; and once kills all of them at the same time.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use base::SplitMix64;
use rustix::process::Signal;

use super::clients::TABLE;
use crate::harness::Cluster;

#[derive(Debug, Default)]
pub(super) struct Seen {
    kills: u32,
    stops: u32,
    /// The leader of each epoch of the clients' table.
    leaders: BTreeMap<u64, u32>,
}

impl Seen {
    pub(super) fn leader_changes(&self) -> usize {
        self.leaders.len().saturating_sub(1)
    }
}

/// Runs until `until`. At the end every node runs.
pub(super) fn run(cluster: &Cluster, until: Instant) -> Seen {
    let mut random = SplitMix64::new(u64::from(std::process::id()));
    let mut seen = Seen::default();
    let halfway = Instant::now() + until.saturating_duration_since(Instant::now()) / 2;
    let mut are_all_killed = false;
    while Instant::now() < until {
        sleep(Duration::from_millis(600 + random.below(600)));
        let leader = look(cluster, &mut seen);
        if !are_all_killed && Instant::now() > halfway {
            kill_all(cluster);
            are_all_killed = true;
            continue;
        }
        let victim = match leader {
            Some(leader) if random.below(4) > 0 => leader,
            _ => 1 + random.below(3) as u32,
        };
        match strike(cluster, victim, &mut random) {
            Blow::Killed => seen.kills += 1,
            Blow::Stopped => seen.stops += 1,
        }
    }
    look(cluster, &mut seen);
    assert!(are_all_killed && seen.kills > 0 && seen.stops > 0, "the time was too short: {seen:?}");
    seen
}

/// A fault of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    Killed,
    Stopped,
}

/// Kills or pauses a node for a while; then it runs again.
pub(crate) fn strike(cluster: &Cluster, victim: u32, random: &mut SplitMix64) -> Blow {
    let pause = Duration::from_millis(300 + random.below(1_200));
    if random.below(2) == 0 {
        cluster.signal(victim, Signal::KILL);
        sleep(pause);
        cluster.restart(victim).ok();
        Blow::Killed
    } else {
        cluster.signal(victim, Signal::STOP);
        sleep(pause);
        cluster.signal(victim, Signal::CONT);
        Blow::Stopped
    }
}

/// Kills all nodes before restarting any.
pub(crate) fn kill_all(cluster: &Cluster) {
    cluster.nodes().for_each(|node| cluster.signal(node, Signal::KILL));
    cluster.nodes().for_each(|node| drop(cluster.restart(node).ok()));
}

/// The leader of the clients' table, according to the newest status.
fn look(cluster: &Cluster, seen: &mut Seen) -> Option<u32> {
    let (epoch, leader) = cluster.leader(TABLE)?;
    let known = *seen.leaders.entry(epoch).or_insert(leader);
    assert_eq!(known, leader, "two leaders of epoch {epoch}");
    Some(leader)
}
