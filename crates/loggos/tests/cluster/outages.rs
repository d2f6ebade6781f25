//! What is known about a write while most nodes are down: that nothing was written, or that its outcome is unknown.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{COMMAND_PATIENCE, Cluster, Done, loggos, runtime, wait_for};
use crate::zookeeper;

const DOWN: &str = "2 of 3 replicas of range [\"\", end) of table t are down (nodes 2, 3)";

/// Two of three nodes are killed. Once the leases have ended, the remaining node knows that nothing is written.
#[test]
fn write_without_majority_names_dead_nodes() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    cluster.columns(&["put", "t", "k", "c", "v"]).ok();
    cluster.signal(2, Signal::KILL);
    cluster.signal(3, Signal::KILL);
    thread::sleep(Duration::from_secs(1));
    let said = ["nothing was written: timed out after ", &format!(": {DOWN}\n")];
    cluster.columns_of(1, &["--timeout", "4s", "put", "t", "k", "c", "w"]).failed(3, &said);
    cluster.columns_of(1, &["--timeout", "4s", "delete", "t", "k"]).failed(3, &["nothing was written: ", DOWN]);
    // With all endpoints, the first one dead.
    let mut command = loggos();
    command.args(["columns", "--at", &cluster.endpoints(2).join(","), "--timeout", "4s", "put", "t", "k", "c", "w"]);
    Done::of(&mut command, COMMAND_PATIENCE).failed(3, &said);
    let said = ["nothing was done: timed out after ", ": 2 of 3 replicas of the catalog are down (nodes 2, 3)\n"];
    cluster.columns_of(1, &["--timeout", "4s", "create", "u"]).failed(3, &said);
    let read = cluster.columns_of(1, &["--timeout", "4s", "get", "t", "k"]);
    read.failed(3, &["timed out after ", &format!(" ms: {DOWN}\n")]);
    cluster.restart(2).ok();
    assert!(cluster.columns(&["get", "t", "k", "c"]).ok().contains('v'));
}

/// A write in progress while the other replicas stop may be in their logs.
#[test]
fn write_in_progress_is_in_doubt() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    let (_, leader) = wait_for("a leader", Duration::from_secs(10), || cluster.leader("t"));
    let others: Vec<u32> = cluster.nodes().filter(|node| *node != leader).collect();
    runtime().block_on(async {
        let client = sdk::Client::connect([&cluster.endpoints(leader)[0]]).expect("an address");
        client.table("t").write("k").put("c", "v").send().await.expect("all nodes run");
        others.iter().for_each(|node| cluster.signal(*node, Signal::STOP));
        let client = client.with_deadline(Duration::from_secs(4));
        let error = client.table("t").write("k").put("c", "w").send().await.expect_err("no majority");
        others.iter().for_each(|node| cluster.signal(*node, Signal::CONT));
        let nodes: Vec<String> = others.iter().map(u32::to_string).collect();
        let down = format!("2 of 3 replicas of range [\"\", end) of table t are down (nodes {})", nodes.join(", "));
        let (error_text, end) = (error.to_string(), format!(": {down}; read the row before a retry"));
        let is_expected = error_text.starts_with("outcome unknown: timed out after ") && error_text.ends_with(&end);
        assert!(is_expected, "{error_text}");
        assert!(matches!(error, sdk::Error::OutcomeUnknown(_)));
        client.with_deadline(COMMAND_PATIENCE).table("t").write("k").put("c", "x").send().await.expect("all nodes run");
    });
}

/// Longest time between two acknowledged writes of one client, and their number.
#[derive(Default)]
struct Progress {
    writes: u32,
    longest_gap: Duration,
    last: Option<Instant>,
}

impl Progress {
    fn acknowledged(&mut self) {
        let now = Instant::now();
        self.longest_gap = self.longest_gap.max(now - self.last.unwrap_or(now));
        self.last = Some(now);
        self.writes += 1;
    }
}

/// In a cluster of five nodes any two may fail together: rows of a table with five replicas and znodes are still written,
/// by clients that are connected to the nodes that failed.
#[test]
fn any_two_of_five_nodes_may_fail() {
    const PATIENCE: Duration = Duration::from_secs(30);
    const PAUSE: Duration = Duration::from_millis(20);
    let cluster = Cluster::of(5);
    cluster.columns(&["create", "t", "--replicas", "5"]).ok();
    let mut znodes = zookeeper::client(&cluster, 1);
    zookeeper::create(&mut znodes, "/a", b"", 0).expect("created");
    let progress = [Mutex::new(Progress::default()), Mutex::new(Progress::default())];
    let (rows, sets) = (&progress[0], &progress[1]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Ends the writers although an assertion failed.
        let _end = SetOnDrop(&is_over);
        scope.spawn(|| {
            let table = cluster.client(1).with_deadline(PATIENCE).table("t");
            while !is_over.load(Ordering::Relaxed) {
                let sent = runtime().block_on(table.write("k").put("c", "v").send());
                if sent.is_ok() {
                    rows.lock().unwrap().acknowledged();
                }
                thread::sleep(PAUSE);
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if zookeeper::set(&mut znodes, "/a", b"1").is_ok() {
                    sets.lock().unwrap().acknowledged();
                }
                thread::sleep(PAUSE);
            }
        });
        let pairs = cluster.nodes().flat_map(|first| (first + 1..=5).map(move |second| (first, second)));
        for (first, second) in pairs {
            wait_for("every node is well", PATIENCE, || (cluster.status(&["--summary"]).status == 0).then_some(()));
            progress
                .iter()
                .for_each(|of| *of.lock().unwrap() = Progress { last: Some(Instant::now()), ..Progress::default() });
            cluster.signal(first, Signal::KILL);
            cluster.signal(second, Signal::KILL);
            // Enough for the leases, elections and projections that follow.
            for of in &progress {
                let killed = of.lock().unwrap().writes;
                wait_for("writes without two nodes", PATIENCE, || {
                    (of.lock().unwrap().writes > killed + 50).then_some(())
                });
            }
            let gap = |of: &Mutex<Progress>| of.lock().unwrap().longest_gap.as_millis();
            println!("nodes {first} and {second}: longest gap of rows {} ms, of znodes {} ms", gap(rows), gap(sets));
            cluster.restart(first).ok();
            cluster.restart(second).ok();
        }
    });
}

/// Sets a flag when dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A table without any live replica can be dropped, by a declaration of the loss. If the node returns, its replica is removed
/// and its rows do not reappear.
#[test]
fn table_without_live_replica_can_be_dropped() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t", "--replicas", "1"]).ok();
    cluster.columns(&["put", "t", "k", "c", "v"]).ok();
    let (_, node) = wait_for("a leader", Duration::from_secs(10), || cluster.leader("t"));
    cluster.signal(node, Signal::KILL);
    let replica = format!("1 of 1 replica of range [\"\", end) of table t is down (node {node})");
    let drop = cluster.columns(&["--timeout", "8s", "drop", "t"]);
    drop.failed(4, &["outcome unknown: ", "table t is being dropped, but ", &replica, "--force"]);
    cluster.columns(&["--timeout", "8s", "drop", "t", "--force"]).ok();
    cluster.columns(&["get", "t", "k"]).failed(1, &["no table"]);
    cluster.columns(&["create", "t", "--replicas", "3"]).ok();
    cluster.restart(node).ok();
    // Until it has learned of the drop, the node serves its replica.
    wait_for("the old replica is removed", Duration::from_secs(20), || {
        let scan = cluster.columns_of(node, &["scan", "t"]);
        (scan.status == 0 && !scan.out.contains('v')).then_some(())
    });
    let put = || cluster.columns(&["put", "t", "l", "c", "w"]).status == 0;
    wait_for("a write", Duration::from_secs(20), || put().then_some(()));
    for node in cluster.nodes() {
        let scan = cluster.columns_of(node, &["scan", "t"]).ok();
        assert!(scan.contains('w') && !scan.contains('v'), "{scan}");
    }
}
