//! Nodes that join a cluster, and nodes that leave it, including lost ones.

use std::fs;
use std::time::Duration;

use crate::harness::{Cluster, wait_for};
use crate::hosts::Hosts;

/// Runs a command against these nodes.
fn columns(hosts: &Hosts, at: &str, arguments: &[&str]) -> crate::harness::Done {
    hosts.run(&[&["columns", "--at", at, "--timeout", "30s"], arguments].concat())
}

#[test]
fn node_joins_and_lost_node_leaves() {
    let mut hosts = Hosts::new();
    (1..=3).for_each(|node| hosts.start(node, ""));
    (1..=3).for_each(|node| _ = hosts.look(node));
    hosts.admin_form().ok();
    let all = hosts.all();
    let cluster = hosts.look(1).genesis.expect("it is formed").cluster;
    columns(&hosts, &all, &["create", "t", "--split-at", "m"]).ok();
    for key in ["a", "z"] {
        columns(&hosts, &all, &["put", "t", key, "c", "1"]).ok();
    }

    hosts.start(4, "");
    hosts.look(4);
    let fourth = hosts.grpc(4);
    let join = ["admin", "join", &fourth, "--at", &all, "--timeout", "30s"];
    let joined = hosts.run(&join).ok();
    assert!(joined.contains("node 4") && joined.contains(&cluster), "{joined}");
    assert_eq!(hosts.run(&join).ok(), joined, "done already");
    hosts.run(&["admin", "move", "t", "a", "--to", "1,2,4", "--at", &all, "--timeout", "30s"]).ok();
    let read = columns(&hosts, &fourth, &["--json", "get", "t", "a", "c"]).ok();
    assert!(read.contains("\"value\":\"1\""), "{read}");

    // A node is lost for good. Its replicas move to the new one.
    hosts.kill(3);
    let leave = ["admin", "leave", "3", "--at", &all, "--timeout", "60s"];
    hosts.run(&leave).ok();
    hosts.run(&leave).ok();
    let at = [1, 2, 4].map(|node| hosts.grpc(node)).join(",");
    let described = columns(&hosts, &at, &["--json", "describe", "t"]).ok();
    assert!(described.matches("\"members\":[1,2,4]").count() == 2, "{described}");
    let status = hosts.run(&["status", "--at", &at, "--json"]).ok();
    assert!(status.contains("{\"node\":4") && !status.contains("{\"node\":3"), "{status}");
    let formed = hosts.run(&["admin", "form", "--at", &at]).ok();
    assert!(formed.contains(&cluster) && formed.contains("nodes 1, 2, 4"), "{formed}");
    let two = [1, 2].map(|node| hosts.grpc(node)).join(",");
    hosts.run(&["admin", "form", "--at", &two]).failed(2, &["node 4", "not listed"]);
    hosts.run(&["admin", "leave", "1", "--at", &at]).failed(1, &["3 are needed"]);
    hosts.run(&["admin", "leave", "9", "--at", &at]).failed(1, &["no node 9"]);

    // It comes back and is refused; a blank disk cannot take its number.
    hosts.start(3, "");
    let (status, said) = hosts.ended(3);
    assert!(status == Some(71) && said.contains("node 3 has left cluster"), "{status:?}: {said}");
    fs::remove_dir_all(hosts.scratch.path().join("host-3")).expect("its data");
    hosts.start(3, "");
    hosts.look(3);
    let third = hosts.grpc(3);
    hosts.run(&["admin", "join", &third, "--at", &at]).failed(1, &["number 3 is taken"]);
    hosts.kill(3);

    // The first two nodes do not have the fourth in their configurations: it introduces itself.
    [1, 2, 4].into_iter().for_each(|node| hosts.kill(node));
    [1, 4].into_iter().for_each(|node| hosts.start(node, ""));
    for key in ["a", "z"] {
        columns(&hosts, &at, &["put", "t", key, "c", "2"]).ok();
    }
}

#[test]
fn node_of_other_cluster_cannot_join() {
    let mut hosts = Hosts::new();
    [1, 4].into_iter().for_each(|node| hosts.start(node, ""));
    [1, 4].into_iter().for_each(|node| _ = hosts.look(node));
    let [first, fourth] = [1, 4].map(|node| hosts.grpc(node));
    let join = ["admin", "join", &fourth, "--at", &first, "--timeout", "20s"];
    hosts.run(&join).failed(1, &["blank disk"]);
    for alone in [&first, &fourth] {
        hosts.run(&["admin", "form", "--at", alone, "--timeout", "30s"]).ok();
    }
    let theirs = hosts.look(4).genesis.expect("it is formed").cluster;
    hosts.run(&join).failed(1, &["node 4", &theirs]);
}

#[test]
fn dev_does_not_start_departed_node() {
    let mut cluster = Cluster::of(5);
    cluster.admin(&["leave", "5", "--timeout", "60s"]).ok();
    wait_for("the node ends", Duration::from_secs(20), || cluster.pid(5).is_none().then_some(()));
    cluster.restart(5).failed(1, &["node 5 is not started: it has left the cluster"]);
    cluster.stop();
    let log = cluster.node_directory(5).join("log");
    let before = fs::read(&log).expect("its log");
    cluster.start();
    assert_eq!(fs::read(&log).expect("its log"), before, "it was not started");
    cluster.columns(&["create", "t"]).ok();
}
