//! A table in main memory: the effect of crashes and of clean stops.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Cluster, runtime, wait_for};

/// Timeout for a loss to be declared: replicas wait for each other first.
const PATIENCE: Duration = Duration::from_secs(20);

/// The table's cohort in the status.
fn cohort(cluster: &Cluster) -> Option<Value> {
    let status = cluster.status(&["--json"]).out;
    let objects = status.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    objects.into_iter().find(|object| object["table"] == "t")
}

/// The number of losses that it has declared, if it has a leader.
fn losses(cluster: &Cluster) -> Option<u64> {
    let cohort = cohort(cluster)?;
    cohort["leader"].as_u64().and_then(|_| cohort["losses"].as_u64())
}

fn put(cluster: &Cluster, key: &str) {
    cluster.columns(&["put", "t", key, "c", "v"]).ok();
}

fn has(cluster: &Cluster, key: &str) {
    assert_eq!(cluster.columns(&["get", "t", key, "c"]).ok().matches('v').count(), 1, "{key}");
}

#[test]
fn memory_table_durability() {
    let mut cluster = Cluster::of(3);
    cluster.columns(&["create", "t", "--durability", "memory"]).ok();
    cluster.columns(&["create", "t", "--durability", "memory"]).ok();
    cluster.columns(&["create", "t", "--durability", "forced"]).failed(1, &["memory"]);
    cluster.columns(&["create", "t", "--durability", "disk"]).failed(1, &["memory"]);
    let described = cluster.columns(&["describe", "t"]).ok();
    assert!(described.contains("transactions no\nIN MAIN MEMORY: acknowledged writes can be lost"), "{described}");
    cluster.columns(&["create", "t", "--durability", "memory", "--no-transactions"]).ok();
    let refused = runtime().block_on(async {
        let table = cluster.client(1).table("u");
        table.create().durability(sdk::Durability::Memory).transactions(true).send().await
    });
    assert!(matches!(refused, Err(sdk::Error::Invalid(_))), "{refused:?}");
    cluster.admin(&["split", "t", "k"]).failed(1, &["main memory"]);
    put(&cluster, "before");
    assert_eq!(cohort(&cluster).expect("the table")["durability"], "memory");

    // One process crashes: nothing is lost.
    let (_, leader) = cluster.leader("t").expect("a leader");
    cluster.signal(leader, Signal::KILL);
    put(&cluster, "without a leader");
    cluster.restart(leader).ok();
    has(&cluster, "before");

    // All stop cleanly: nothing is lost, although the last write was only in memory.
    put(&cluster, "last");
    cluster.stop();
    cluster.start();
    for key in ["before", "without a leader", "last"] {
        has(&cluster, key);
    }
    assert_eq!(losses(&cluster), Some(0));

    // The same after a period without writes.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    cluster.stop();
    cluster.start();
    has(&cluster, "last");
    assert_eq!(losses(&cluster), Some(0));
    let people = cluster.status(&[]).ok();
    assert!(people.contains("is IN MAIN MEMORY: acknowledged writes can be lost if"), "{people}");

    // All crash together: the remaining data is served again, and the loss is declared.
    cluster.nodes().for_each(|node| cluster.signal(node, Signal::KILL));
    cluster.nodes().for_each(|node| drop(cluster.restart(node).ok()));
    wait_for("the loss is declared", PATIENCE, || (losses(&cluster) == Some(1)).then_some(()));
    has(&cluster, "before");
    put(&cluster, "after");
    has(&cluster, "after");
    let people = cluster.status(&[]).ok();
    assert!(people.contains("LOSS DECLARED"), "{people}");
}
