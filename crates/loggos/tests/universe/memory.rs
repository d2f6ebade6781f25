//! A table in main memory: the effect of crashes and of clean stops.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Universe, wait_for};

/// Timeout for a loss to be declared: replicas wait for each other first.
const PATIENCE: Duration = Duration::from_secs(20);

/// The table's cohort in the status.
fn cohort(universe: &Universe) -> Option<Value> {
    let status = universe.status(&["--json"]).ok();
    let objects = status.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    objects.into_iter().find(|object| object["table"] == "t")
}

/// The number of losses that it has declared, if it has a leader.
fn losses(universe: &Universe) -> Option<u64> {
    let cohort = cohort(universe)?;
    cohort["leader"].as_u64().and_then(|_| cohort["losses"].as_u64())
}

fn put(universe: &Universe, key: &str) {
    universe.columns(&["put", "t", key, "c", "v"]).ok();
}

fn has(universe: &Universe, key: &str) {
    assert_eq!(universe.columns(&["get", "t", key, "c"]).ok().matches('v').count(), 1, "{key}");
}

#[test]
fn main_memory_survives_a_minority_and_clean_stops_and_says_what_it_does_not_survive() {
    let mut universe = Universe::of(3);
    universe.columns(&["create", "t", "--durability", "memory"]).ok();
    universe.columns(&["create", "t", "--durability", "memory"]).ok();
    universe.columns(&["create", "t", "--durability", "forced"]).failed(1, &["memory"]);
    universe.columns(&["create", "t", "--durability", "disk"]).failed(1, &["memory"]);
    assert!(universe.columns(&["describe", "t"]).ok().contains("IN MAIN MEMORY: acknowledged writes can be lost"));
    universe.admin(&["split", "t", "k"]).failed(2, &["main memory"]);
    put(&universe, "before");
    assert_eq!(cohort(&universe).expect("the table")["durability"], "memory");

    // One process crashes: nothing is lost.
    let (_, leader) = universe.leader("t").expect("a leader");
    universe.signal(leader, Signal::KILL);
    put(&universe, "without a leader");
    universe.restart(leader).ok();
    has(&universe, "before");

    // All stop cleanly: nothing is lost, although the last write was only in memory.
    put(&universe, "last");
    universe.stop();
    universe.start();
    for key in ["before", "without a leader", "last"] {
        has(&universe, key);
    }
    assert_eq!(losses(&universe), Some(0));

    // The same after a period without writes.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    universe.stop();
    universe.start();
    has(&universe, "last");
    assert_eq!(losses(&universe), Some(0));
    let people = universe.status(&[]).ok();
    assert!(people.contains("is IN MAIN MEMORY: acknowledged writes can be lost if"), "{people}");

    // All crash together: the remaining data is served again, and the loss is declared.
    universe.nodes().for_each(|node| universe.signal(node, Signal::KILL));
    universe.nodes().for_each(|node| drop(universe.restart(node).ok()));
    wait_for("the loss is declared", PATIENCE, || (losses(&universe) == Some(1)).then_some(()));
    has(&universe, "before");
    put(&universe, "after");
    has(&universe, "after");
    let people = universe.status(&[]).ok();
    assert!(people.contains("LOSS DECLARED"), "{people}");
}
