//! `loggos admin split` and its refusals.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Done, Universe};

fn split(universe: &Universe, arguments: &[&str]) -> Done {
    universe.admin(&[&["split"], arguments].concat())
}

fn ranges(universe: &Universe) -> Value {
    let described: Value =
        serde_json::from_str(&universe.columns(&["describe", "t", "--json"]).ok()).expect("an object");
    described["ranges"].as_array().expect("an array").iter().map(|range| range["range"].clone()).collect()
}

#[test]
fn a_range_is_split_and_what_can_not_be_split_is_refused() {
    let universe = Universe::of(3);
    universe.columns(&["create", "t"]).ok();
    let lines: String = (0..500).map(|row| format!("k{row:03},value {row}\n")).collect();
    let file = universe.scratch().file("rows.csv", format!("id,value\n{lines}"));
    universe.columns(&["load", "t", &file, "--key", "id"]).ok();
    let before = universe.columns(&["scan", "t", "--json"]).ok();

    let object: Value = serde_json::from_str(&split(&universe, &["t", "k250", "--json"]).ok()).expect("an object");
    assert_eq!((&object["table"], &object["key"]), (&json!("t"), &json!("k250")));
    assert!(split(&universe, &["t", "k100"]).ok().contains("k100"));
    assert_eq!(ranges(&universe), json!([["", "k100"], ["k100", "k250"], ["k250", null]]));
    split(&universe, &["t", "k250"]).failed(1, &["begins at", "k250"]);
    split(&universe, &["t", ""]).failed(2, &["empty"]);
    split(&universe, &["nothing", "k"]).failed(1, &["nothing"]);
    assert_eq!(ranges(&universe), json!([["", "k100"], ["k100", "k250"], ["k250", null]]), "nothing is half done");

    // All data is there, in order, and can be written; each node recovers its part.
    assert_eq!(universe.columns(&["scan", "t", "--json"]).ok(), before);
    for key in ["k099", "k100", "k249", "k250"] {
        universe.columns(&["put", "t", key, "note", "after"]).ok();
    }
    let after = universe.columns(&["scan", "t", "--json"]).ok();
    for node in 1..=3 {
        universe.signal(node, Signal::KILL);
        universe.restart(node).ok();
    }
    assert_eq!(universe.columns(&["scan", "t", "--json"]).ok(), after);
    universe.columns(&["drop", "t"]).ok();
    split(&universe, &["t", "k300"]).failed(1, &["no table"]);
}
