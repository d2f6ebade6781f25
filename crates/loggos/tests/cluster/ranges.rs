//! Tables of several ranges, each its own cohort: create, load, scan, describe and export.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Cluster, loggos, wait_for};

const ROWS: usize = 2_500;

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// A table with five ranges over five nodes, as in Spinnaker's Figure 2, and its rows.
fn with_rows(cluster: &Cluster) -> Vec<String> {
    let split_at = ["k2000", "k0500", "k1500", "k1000"].map(|key| format!("--split-at={key}"));
    let create: Vec<&str> = ["create", "t"].into_iter().chain(split_at.iter().map(String::as_str)).collect();
    cluster.columns(&create).ok();
    let keys: Vec<String> = (0..ROWS).map(|row| format!("k{row:04}")).collect();
    let lines: String = keys.iter().map(|key| format!("{key},value of {key}\n")).collect();
    let file = cluster.scratch().file("rows.csv", format!("id,value\n{lines}"));
    assert!(cluster.columns(&["load", "t", &file, "--key", "id"]).ok().contains("2500 rows loaded"));
    keys
}

/// The keys that a scan returns, in its order.
fn scan(cluster: &Cluster, arguments: &[&str]) -> Vec<String> {
    let cells = objects(&cluster.columns(&[&["scan", "t", "--json"], arguments].concat()).ok());
    let mut keys: Vec<String> = cells.iter().map(|cell| cell["key"].as_str().expect("text").to_owned()).collect();
    keys.dedup();
    keys
}

fn check_scans(cluster: &Cluster, keys: &[String]) {
    let backwards: Vec<String> = keys.iter().rev().cloned().collect();
    assert_eq!(scan(cluster, &[]), keys);
    assert_eq!(scan(cluster, &["--reverse"]), backwards);
    assert_eq!(scan(cluster, &["--prefix", "k1"]), keys[1_000..2_000]);
    assert_eq!(scan(cluster, &["--prefix", "k1", "--reverse", "--limit", "600"]), backwards[500..1_100]);
    assert_eq!(scan(cluster, &["--from", "k0499", "--to", "k0502"]), keys[499..502]);
    assert_eq!(scan(cluster, &["--from", "k0499", "--limit", "3"]), keys[499..502]);
    assert_eq!(scan(cluster, &["--to", "k1500", "--reverse", "--limit", "2"]), backwards[1_000..1_002]);
}

#[test]
fn table_spans_five_ranges() {
    let cluster = Cluster::of(5);
    let keys = with_rows(&cluster);
    check_scans(&cluster, &keys);

    let described = objects(&cluster.columns(&["describe", "t", "--json"]).ok()).remove(0);
    let ranges = described["ranges"].as_array().expect("an array");
    let part = |field: &str| ranges.iter().map(|range| range[field].clone()).collect::<Vec<_>>();
    let ends = json!([["", "k0500"], ["k0500", "k1000"], ["k1000", "k1500"], ["k1500", "k2000"], ["k2000", null]]);
    assert_eq!(json!(part("range")), ends);
    // Each range lies one node further on than the last. Where the first lies depends on what was created before.
    let mut placed = vec![json!([1, 2, 3]), json!([2, 3, 4]), json!([3, 4, 5]), json!([1, 4, 5]), json!([1, 2, 5])];
    let first = placed.iter().position(|members| *members == part("members")[0]).expect("neighbours");
    placed.rotate_left(first);
    assert_eq!(part("members"), placed);
    assert_eq!((&described["replicas"], &described["retention_ms"]), (&json!(3), &json!(60_000)));
    assert_eq!(described["transactions"], true);
    let people = cluster.columns(&["describe", "t"]).ok();
    assert!(people.contains("k1500") && people.contains("1,4,5") && people.contains("kept for 60 s"), "{people}");
    assert!(people.ends_with("transactions yes\n"), "{people}");
    let shown = || {
        let status = objects(&cluster.status(&["--json"]).out);
        status.into_iter().filter(|line| line["table"] == "t").map(|line| line["range"].clone()).collect::<Vec<_>>()
    };
    wait_for("every cohort shows its range", Duration::from_secs(10), || (json!(shown()) == ends).then_some(()));

    // Each node is in three of the five cohorts: without one of them, each cohort still has a majority.
    cluster.signal(3, Signal::KILL);
    check_scans(&cluster, &keys);
    for key in ["k0000", "k0700", "k1200", "k1700", "k2400"] {
        cluster.columns(&["put", "t", key, "note", "written without node 3"]).ok();
        assert_eq!(cluster.columns(&["get", "t", key, "note"]).ok().matches("without node 3").count(), 1);
    }
    cluster.restart(3).ok();
    check_scans(&cluster, &keys);
}

#[test]
fn create_keeps_existing_split_points() {
    let cluster = Cluster::of(3);
    let run = |arguments: &[&str]| cluster.columns(arguments);
    run(&["create", "t", "--split-at", "m", "--split-at", "d"]).ok();
    let again = objects(&run(&["create", "t", "--split-at", "d", "--split-at", "m", "--json"]).ok());
    assert_eq!(again, [json!({"table": "t", "existed": true})]);
    assert!(run(&["create", "t"]).ok().contains("already exists"));
    let refusal = objects(&run(&["create", "t", "--split-at", "x", "--json"]).failed(1, &[])).remove(0);
    assert_eq!(refusal["kind"], "exists");
    run(&["create", "t", "--replicas", "1"]).failed(1, &["3 replicas"]);
    run(&["create", "t", "--retention", "2m"]).failed(1, &["60000 ms"]);
    run(&["create", "u", "--retention", "8d"]).failed(2, &["'8d'", "limit of 7d"]);
    run(&["create", "u", "--retention", "99999999d"]).failed(2, &["'99999999d'", "limit of 7d"]);
    run(&["create", "u", "--retention", "5"]).failed(2, &["ms, s, m, h or d"]);
    run(&["create", "u", "--retention", "0s"]).failed(2, &["must be positive"]);
    run(&["create", "u", "--split-at", "x", "--split-at", "x"]).failed(2, &["\"x\" is given twice"]);
    run(&["create", "u", "--replicas", "2"]).failed(2, &["1, 3 or 5"]);
    run(&["create", "u", "--replicas", "5"]).failed(1, &["5 replicas", "3 nodes"]);
    run(&["describe", "u"]).failed(1, &["no table named \"u\""]);
    let alone = run(&["create", "u", "--replicas", "1", "--retention", "500ms", "--split-at", "-"]);
    assert!(alone.err.starts_with("loggos: warning: table u has one replica"), "{alone:?}");
    alone.ok();
    assert!(run(&["describe", "u"]).ok().contains("kept for 0.5 s"));
    run(&["create", "u", "--no-transactions"]).failed(1, &["table u already exists, with transactions enabled"]);
    for existed in [false, true] {
        let created = objects(&run(&["create", "v", "--no-transactions", "--json"]).ok());
        assert_eq!(created, [json!({"table": "v", "existed": existed})]);
    }
    assert!(run(&["describe", "v"]).ok().ends_with("transactions no\n"));
    assert_eq!(objects(&run(&["describe", "v", "--json"]).ok()).remove(0)["transactions"], false);
    run(&["put", "u", "key", "c", "v"]).ok();
}

/// An export can be loaded again, byte for byte; a file that cannot be written completely does not appear.
#[test]
fn export_load_round_trip() {
    let cluster = Cluster::of(1);
    let run = |arguments: &[&str]| cluster.columns(arguments);
    run(&["create", "t", "--split-at", "m"]).ok();
    for (key, column, value) in [("a", "c", "1"), ("a", "d", "a \"quoted\",\nvalue"), ("z", "c", "é")] {
        run(&["put", "t", key, column, value]).ok();
    }
    let out = run(&["export", "t"]).ok();
    assert_eq!(out, run(&["scan", "t", "--json"]).ok());
    let file = cluster.scratch().path().join("t.jsonl").display().to_string();
    assert!(run(&["export", "t", &file]).ok().contains("2 rows exported"));
    assert_eq!(fs::read_to_string(&file).expect("it was written"), out);
    assert!(run(&["load", "copy", &file, "--format", "cells"]).ok().contains("2 rows loaded"));
    let cells = |text: &str| {
        let cells = objects(text).into_iter();
        cells.map(|cell| [cell["key"].clone(), cell["column"].clone(), cell["value"].clone()]).collect::<Vec<_>>()
    };
    assert_eq!(cells(&run(&["export", "copy"]).ok()), cells(&out));
    run(&["load", "copy", &file]).failed(2, &["--key"]);

    run(&["export", "nothing", &file]).failed(1, &["no table named"]);
    assert_eq!(fs::read_to_string(&file).expect("it was written before"), out, "what was there stays");
    run(&["export", "t", "/nonexistent/file"]).failed(2, &["/nonexistent/file"]);
    // The target of a link is written, whether a file or a device: the link itself is not replaced.
    for (target, says) in [(file.as_str(), None), ("/dev/full", Some("No space left"))] {
        let link = cluster.scratch().path().join("link");
        let _ = fs::remove_file(&link);
        symlink(target, &link).expect("a link");
        let done = run(&["export", "t", &link.display().to_string()]);
        match says {
            None => drop(done.ok()),
            Some(says) => drop(done.failed(3, &[says])),
        }
        assert_eq!(fs::read_link(&link).expect("still a link"), Path::new(target));
        fs::remove_file(&link).expect("a link");
    }
    let names: BTreeSet<String> = fs::read_dir(cluster.scratch().path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().all(|name| !name.contains("partial")), "{names:?}");
}

/// Rows in CSV, and cells in CSV, can be loaded again: absent columns, empty values and binary ones included.
#[test]
fn csv_export_load_round_trip() {
    let cluster = Cluster::of(1);
    let run = |arguments: &[&str]| cluster.columns(arguments);
    let path = |name: &str| cluster.scratch().path().join(name).display().to_string();
    let binary = cluster.scratch().file("binary", b"\xff\0\r\n\"");
    run(&["create", "t", "--split-at", "m"]).ok();
    run(&["put", "t", "a", "c=1", "key=a \"quoted\",\nvalue", "e="]).ok();
    run(&["put", "t", "z,", "d", "--value-file", &binary]).ok();
    let cells = |table: &str| {
        let cells = objects(&run(&["export", table]).ok()).into_iter();
        let fields = ["key", "column", "value", "value_base64"];
        cells.map(|cell| fields.map(|field| cell[field].clone())).collect::<Vec<_>>()
    };
    let expected = cells("t");
    assert_eq!(expected.len(), 4);

    let (rows, copy) = (path("rows.csv"), path("cells.csv"));
    assert!(run(&["export", "t", &rows, "--format", "csv"]).ok().contains("2 rows exported"));
    let text = fs::read(&rows).expect("it was written");
    let expected_text = b"key,c,d,e,key\na,1,,\"\",\"a \"\"quoted\"\",\nvalue\"\n\"z,\",,\"\xff\0\r\n\"\"\",,\n";
    assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(expected_text));
    assert!(run(&["load", "by-row", &rows]).ok().contains("2 rows loaded"));
    assert_eq!(cells("by-row"), expected);

    run(&["export", "t", &copy, "--format", "cells"]).ok();
    run(&["load", "by-cell", &copy]).failed(2, &["line 1: ", "--format cells"]);
    run(&["load", "by-cell", &copy, "--key", "key"]).failed(2, &["line 1: ", "--format cells"]);
    assert!(run(&["load", "by-cell", &copy, "--format", "cells"]).ok().contains("2 rows loaded"));
    assert_eq!(cells("by-cell"), expected);

    run(&["create", "empty"]).ok();
    assert_eq!(run(&["export", "empty", "--format", "csv"]).ok(), "key\n");
}

#[test]
fn interrupted_export_leaves_no_file() {
    let cluster = Cluster::of(1);
    cluster.columns(&["create", "t"]).ok();
    cluster.signal(1, Signal::STOP);
    let file = cluster.scratch().path().join("t.jsonl");
    let partial = || {
        let names = fs::read_dir(cluster.scratch().path()).expect("a directory").map(|entry| entry.expect("an entry"));
        names.into_iter().any(|entry| entry.file_name().to_string_lossy().contains("t.jsonl"))
    };
    for signal in [Signal::INT, Signal::TERM] {
        let mut export = loggos();
        export.args(["columns", "--at", &cluster.endpoints(1)[0], "export", "t"]).arg(&file).stderr(Stdio::piped());
        let export = export.spawn().expect("an export can be started");
        wait_for("the export begins", Duration::from_secs(10), || partial().then_some(()));
        kill_process(Pid::from_child(&export), signal).expect("it waits for the node");
        let done = export.wait_with_output().expect("a child can be waited for");
        assert_eq!(done.status.code(), Some(3), "{done:?}");
        assert!(!partial(), "{signal:?} left a file");
    }
    cluster.signal(1, Signal::CONT);
}

/// Dropped data is gone from every node and its disk, also after a restart; a new table of the same name does not show
/// it.
#[test]
fn dropped_table_leaves_no_data() {
    let mut cluster = Cluster::of(3);
    cluster.columns(&["create", "t", "--split-at", "m"]).ok();
    for key in ["a", "z"] {
        cluster.columns(&["put", "t", key, "c", "old"]).ok();
    }
    cluster.columns(&["create", "other"]).ok();
    let cohorts_of = |table: &str| {
        let status = objects(&cluster.status(&["--json"]).out);
        let of_table = status.iter().filter(|line| line["table"] == table && line["log"].is_null());
        of_table.filter_map(|line| line["cohort"].as_u64()).collect::<Vec<_>>()
    };
    let (old, other) = (cohorts_of("t"), cohorts_of("other"));
    assert_eq!((old.len(), other.len()), (2, 1));
    let dropped = objects(&cluster.columns(&["drop", "t", "--json"]).ok());
    assert_eq!(dropped, [json!({"table": "t", "dropped": true})]);
    cluster.columns(&["drop", "t"]).failed(1, &["no table named \"t\""]);
    cluster.columns(&["get", "t", "a"]).failed(1, &["no table named \"t\""]);
    cluster.columns(&["scan", "t"]).failed(1, &["no table named \"t\""]);
    assert_eq!(cluster.columns(&["list"]).ok(), "other\n");

    cluster.columns(&["create", "t"]).ok();
    assert_eq!(cluster.columns(&["export", "t"]).ok(), "");
    cluster.columns(&["put", "t", "a", "c", "new"]).ok();
    let cohorts = |cluster: &Cluster| {
        let status = objects(&cluster.status(&["--json"]).out);
        let of_tables = status.iter().filter(|line| line["log"].is_null());
        of_tables.filter_map(|line| line["cohort"].as_u64()).collect::<Vec<_>>()
    };
    let new = cohorts_of("t").into_iter().max().filter(|new| !old.contains(new)).expect("a cohort of its own");
    let left = [1, other[0], new];
    wait_for("the old cohorts are gone from every node", Duration::from_secs(10), || {
        (cohorts(&cluster) == left).then_some(())
    });
    // The dropped cohorts are not started again, although the log may still contain them.
    cluster.stop();
    cluster.start();
    assert_eq!(cohorts(&cluster), left);
    let cells = objects(&cluster.columns(&["export", "t"]).ok());
    assert_eq!(cells.iter().map(|cell| cell["value"].clone()).collect::<Vec<_>>(), ["new"]);
}

/// A node that is down while a table is dropped deletes its replicas when it comes back.
#[test]
fn drop_needs_only_majority() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t", "--split-at", "m"]).ok();
    cluster.columns(&["put", "t", "z", "c", "v"]).ok();
    cluster.signal(2, Signal::KILL);
    cluster.columns(&["drop", "t"]).ok();
    cluster.restart(2).ok();
    wait_for("the node that was away has let go", Duration::from_secs(20), || {
        let endpoint = format!("127.0.0.1:{}", cluster.grpc_port(2));
        let status = crate::harness::loggos().args(["status", "--json", "--at", &endpoint]).output().expect("it runs");
        let status = objects(&String::from_utf8_lossy(&status.stdout));
        let of_tables = status.iter().filter(|line| line["log"].is_null());
        of_tables.filter_map(|line| line["cohort"].as_u64()).eq([1]).then_some(())
    });
}
