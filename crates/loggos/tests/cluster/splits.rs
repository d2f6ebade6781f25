//! `loggos admin split` and its refusals.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Cluster, Done};

fn split(cluster: &Cluster, arguments: &[&str]) -> Done {
    cluster.admin(&[&["split"], arguments].concat())
}

fn ranges(cluster: &Cluster) -> Value {
    let described: Value =
        serde_json::from_str(&cluster.columns(&["describe", "t", "--json"]).ok()).expect("an object");
    described["ranges"].as_array().expect("an array").iter().map(|range| range["range"].clone()).collect()
}

#[test]
fn splits_range_and_rejects_invalid_splits() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    let lines: String = (0..500).map(|row| format!("k{row:03},value {row}\n")).collect();
    let file = cluster.scratch().file("rows.csv", format!("id,value\n{lines}"));
    cluster.columns(&["load", "t", &file, "--key", "id"]).ok();
    let before = cluster.columns(&["scan", "t", "--json"]).ok();

    let object: Value = serde_json::from_str(&split(&cluster, &["t", "k250", "--json"]).ok()).expect("an object");
    assert_eq!((&object["table"], &object["key"]), (&json!("t"), &json!("k250")));
    assert!(split(&cluster, &["t", "k100"]).ok().contains("k100"));
    assert_eq!(ranges(&cluster), json!([["", "k100"], ["k100", "k250"], ["k250", null]]));
    split(&cluster, &["t", "k250"]).failed(1, &["begins at", "k250"]);
    split(&cluster, &["t", ""]).failed(2, &["empty"]);
    split(&cluster, &["nothing", "k"]).failed(1, &["nothing"]);
    assert_eq!(ranges(&cluster), json!([["", "k100"], ["k100", "k250"], ["k250", null]]), "nothing is half done");

    // All data is there, in order, and can be written; each node recovers its part.
    assert_eq!(cluster.columns(&["scan", "t", "--json"]).ok(), before);
    for key in ["k099", "k100", "k249", "k250"] {
        cluster.columns(&["put", "t", key, "note", "after"]).ok();
    }
    let after = cluster.columns(&["scan", "t", "--json"]).ok();
    for node in 1..=3 {
        cluster.signal(node, Signal::KILL);
        cluster.restart(node).ok();
    }
    assert_eq!(cluster.columns(&["scan", "t", "--json"]).ok(), after);
    cluster.columns(&["drop", "t"]).ok();
    split(&cluster, &["t", "k300"]).failed(1, &["no table"]);
}
