//! Nodes that join a cluster, and nodes that leave it, including lost ones.

use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::Value;

use crate::harness::{Cluster, wait_for};
use crate::hosts::Hosts;

const PATIENCE: Duration = Duration::from_secs(30);

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

/// A log whose only copy was lost is named at once by the status, can be dropped by a declaration of the loss, and then
/// no longer keeps its node from leaving.
#[test]
fn lost_log_is_named_and_dropped() {
    let mut hosts = Hosts::new();
    (1..=4).for_each(|node| hosts.start(node, ""));
    (1..=4).for_each(|node| _ = hosts.look(node));
    hosts.admin_form().ok();
    let (all, fourth) = (hosts.all(), hosts.grpc(4));
    hosts.run(&["admin", "join", &fourth, "--at", &all, "--timeout", "30s"]).ok();
    let log = |hosts: &Hosts, arguments: &[&str]| {
        hosts.run(&[&["log", "--at", &all, "--timeout", "20s"], arguments].concat())
    };
    // One of these logs has its copy on node 3.
    let names = ["l1", "l2", "l3", "l4"];
    for name in names {
        log(&hosts, &["create", name, "--copies", "1"]).ok();
        log(&hosts, &["append", name, "record"]).ok();
    }
    let is_on_third = |name: &&&str| {
        let known: Value = serde_json::from_str(&log(&hosts, &["info", name, "--json"]).ok()).expect("JSON");
        known["extents"][0]["chains"][0][0]["node"] == 3
    };
    let lost = *names.iter().find(is_on_third).expect("four logs on four nodes");
    let status = |hosts: &Hosts| hosts.run(&["status", "--at", &all]);
    wait_for("a healthy cluster", PATIENCE, || (status(&hosts).out.starts_with("healthy")).then_some(()));

    hosts.kill(3);
    let named = format!("log {lost} is unavailable: all copies of some positions are on node 3, which is down");
    let killed = Instant::now();
    let mut seen_down = 0;
    while killed.elapsed() < Duration::from_secs(8) {
        let said = status(&hosts);
        assert!(said.status == 3 && !said.out.contains("everything is served, "), "{said:?}");
        if said.out.contains("- node 3 is down") {
            assert!(said.out.contains(&named), "{said:?}");
            seen_down += 1;
        }
        thread::sleep(Duration::from_millis(100));
    }
    assert!(seen_down > 0, "node 3 was never shown to be down");

    let unit = "of log {lost} is down (node 3)".replace("{lost}", lost);
    let leave = |hosts: &Hosts, time: &str| hosts.run(&["admin", "leave", "3", "--at", &all, "--timeout", time]);
    let way_out = format!("loggos log drop {lost} --force");
    leave(&hosts, "1s").failed(3, &["node 3 is leaving, and waits for ", &way_out]);
    let leaving = status(&hosts).out;
    assert!(leaving.contains("- leave of node 3, waits for ") && leaving.contains(&way_out), "{leaving}");
    let drop = hosts.run(&["log", "drop", lost, "--at", &all, "--timeout", "8s"]);
    drop.failed(4, &["outcome unknown: ", &format!("log {lost} is being dropped, but "), &unit, "--force"]);
    let dropping = status(&hosts).out;
    assert!(
        dropping.contains(&format!("- drop of log {lost}, waits for its copies: node 3 does not respond")),
        "{dropping}"
    );
    log(&hosts, &["drop", lost, "--force"]).ok();
    log(&hosts, &["read", lost, "0"]).failed(1, &["no log"]);
    leave(&hosts, "60s").ok();
    let at = [1, 2, 4].map(|node| hosts.grpc(node)).join(",");
    wait_for("a healthy cluster of three", PATIENCE, || {
        (hosts.run(&["status", "--at", &at]).out.starts_with("healthy")).then_some(())
    });
    log(&hosts, &["create", lost, "--copies", "2"]).ok();
    log(&hosts, &["append", lost, "new"]).ok();
    assert!(log(&hosts, &["read", lost, "0"]).ok().contains("new"));
}
