//! `loggos admin move` during writes, and its refusals; and moving ranges away from a lost disk.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Cluster, Done};

fn move_to(cluster: &Cluster, arguments: &[&str]) -> Done {
    cluster.admin(&[&["move"], arguments, &["--timeout", "30s"]].concat())
}

fn members(cluster: &Cluster) -> Value {
    let described: Value =
        serde_json::from_str(&cluster.columns(&["describe", "t", "--json"]).ok()).expect("an object");
    described["ranges"].as_array().expect("an array").iter().map(|range| range["members"].clone()).collect()
}

#[test]
fn ranges_move_off_lost_disk() {
    let cluster = Cluster::of(5);
    cluster.columns(&["create", "t", "--split-at", "k250"]).ok();
    let lines: String = (0..500).map(|row| format!("k{row:03},value {row}\n")).collect();
    let file = cluster.scratch().file("rows.csv", format!("id,value\n{lines}"));
    cluster.columns(&["load", "t", &file, "--key", "id"]).ok();
    let before = cluster.columns(&["scan", "t", "--json"]).ok();
    // The second range lies one node further on than the first. Where that begins depends on what was created before.
    let next = |node: u64| node % 5 + 1;
    let is_placed = |first: u64| {
        let on = |first: u64| {
            let mut nodes = [first, next(first), next(next(first))];
            nodes.sort_unstable();
            json!(nodes)
        };
        members(&cluster) == json!([on(first), on(next(first))])
    };
    assert!((1..=5).any(is_placed), "{}", members(&cluster));
    move_to(&cluster, &["t", "k1", "--to", "1,2,3"]).ok();
    move_to(&cluster, &["t", "k3", "--to", "2,3,4"]).ok();
    assert_eq!(members(&cluster), json!([[1, 2, 3], [2, 3, 4]]));

    let object: Value =
        serde_json::from_str(&move_to(&cluster, &["t", "k1", "--to", "3,4,5", "--json"]).ok()).expect("an object");
    assert_eq!((&object["table"], &object["members"]), (&json!("t"), &json!([3, 4, 5])));
    assert_eq!(members(&cluster), json!([[3, 4, 5], [2, 3, 4]]));
    assert_eq!(cluster.columns(&["scan", "t", "--json"]).ok(), before);
    move_to(&cluster, &["t", "", "--to", "9"]).failed(1, &["no node 9"]);
    move_to(&cluster, &["t", "", "--to", "1,1"]).failed(2, &["twice"]);
    move_to(&cluster, &["nothing", "", "--to", "1"]).failed(1, &["nothing"]);
    let refused = move_to(&cluster, &["t", "", "--to", "2"]).failed(1, &["3 replicas", "--force"]);
    assert!(refused.contains("table t"), "{refused}");
    move_to(&cluster, &["t", "", "--to", "3", "--force"]).ok();
    let thin = cluster.status(&["--summary"]).ok();
    assert!(thin.contains("range [\"\", \"k250\") of table t has 1 of 3 replicas"), "{thin}");
    move_to(&cluster, &["t", "", "--to", "3,4,5"]).ok();
    assert_eq!(members(&cluster), json!([[3, 4, 5], [2, 3, 4]]), "nothing is half done");

    cluster.signal(4, Signal::KILL);
    std::fs::remove_dir_all(cluster.node_directory(4)).expect("its disk is lost");
    move_to(&cluster, &["t", "k1", "--to", "1,3,5"]).ok();
    assert!(move_to(&cluster, &["t", "k3", "--to", "1,2,3"]).ok().contains("1,2,3"));
    assert_eq!(members(&cluster), json!([[1, 3, 5], [1, 2, 3]]));
    // One more node may fail now.
    cluster.signal(3, Signal::KILL);
    assert_eq!(cluster.columns(&["scan", "t", "--json"]).ok(), before);
    for key in ["k001", "k499"] {
        cluster.columns(&["put", "t", key, "note", "after"]).ok();
    }
}
