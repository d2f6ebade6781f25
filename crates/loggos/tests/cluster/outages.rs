//! What is known about a write while most nodes are down: that nothing was written, or that its outcome is unknown.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{COMMAND_PATIENCE, Cluster, Done, loggos, runtime, wait_for};

const DOWN: &str = "2 of 3 replicas of range [\"\", end) of table t are down (nodes 2, 3)";

/// Two of three nodes are killed. Once the leases have ended, the remaining node knows that nothing is written.
#[test]
fn write_without_majority_names_dead_nodes() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    cluster.columns(&["put", "t", "k", "c", "v"]).ok();
    cluster.signal(2, Signal::KILL);
    cluster.signal(3, Signal::KILL);
    std::thread::sleep(Duration::from_secs(1));
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
    read.failed(3, &[&format!("timed out after 4000 ms: {DOWN}\n")]);
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
