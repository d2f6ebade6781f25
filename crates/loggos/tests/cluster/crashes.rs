//! Kills and pauses nodes while clients work and their table is split. No acknowledged write is lost, and the complete
//! history is linearizable.

mod clients;
mod ledger;
pub(crate) mod nemesis;
mod splits;
mod stale;

use std::thread;
use std::time::{Duration, Instant};

use sdk::Replication;
use sim::history::{self, Operation};

use crate::harness::{Cluster, runtime};

/// How long nodes are killed and paused.
const TROUBLE: Duration = Duration::from_secs(25);
const CLIENTS: u32 = 6;
/// Minimum counts that make the check meaningful.
const OPERATIONS_MIN: usize = 1_500;
const OVERLAPPING_MIN: usize = 1_000;
const ACKNOWLEDGED_LEDGER_MIN: usize = 100;
const UNKNOWN_MIN: usize = 1;
const LEADER_CHANGES_MIN: usize = 3;

#[test]
fn linearizable_under_crashes() {
    check(Replication::Paxos);
}

#[test]
fn linearizable_under_crashes_with_primary_backup() {
    check(Replication::PrimaryBackup);
}

fn check(replication: Replication) {
    let cluster = Cluster::of(3);
    let began = Instant::now();
    let until = began + TROUBLE;
    let (history, ledger, seen) = thread::scope(|scope| {
        let nemesis = scope.spawn(|| nemesis::run(&cluster, until));
        let (mut history, ledger) = runtime().block_on(work(&cluster, replication, began, until));
        let seen = nemesis.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // All nodes run again: these reads see the final state.
        history.extend(runtime().block_on(clients::read_all(&cluster, began)));
        (history, ledger, seen)
    });
    runtime().block_on(ledger.verify(&cluster));
    runtime().block_on(splits::check(&cluster));

    let summary = history::check(&history).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{summary:?}; {} in the ledger; {seen:?}", ledger.acknowledged());
    assert!(summary.operations >= OPERATIONS_MIN, "too few operations: {summary:?}");
    assert!(summary.overlapping >= OVERLAPPING_MIN, "too little overlap: {summary:?}");
    assert!(summary.unknown >= UNKNOWN_MIN, "no write of unknown outcome: {summary:?}");
    assert!(ledger.acknowledged() >= ACKNOWLEDGED_LEDGER_MIN, "too few writes: {}", ledger.acknowledged());
    assert!(seen.leader_changes() >= LEADER_CHANGES_MIN, "too few leader changes: {seen:?}");

    stale::is_found_in(&history);
}

/// Runs all clients concurrently until `until`.
async fn work(
    cluster: &Cluster,
    replication: Replication,
    began: Instant,
    until: Instant,
) -> (Vec<Operation>, ledger::Ledger) {
    clients::create_table(cluster, replication).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 1..=CLIENTS {
        tasks.spawn(clients::Customer::new(cluster, number, began).run(until));
    }
    let splits = tokio::spawn(splits::run(cluster.client(2), began, until));
    let ledger = ledger::Ledger::fill(cluster, replication, until).await;
    let mut history = Vec::new();
    while let Some(done) = tasks.join_next().await {
        history.extend(done.expect("a client's own checks hold"));
    }
    splits.await.expect("every split is done in the end");
    (history, ledger)
}
