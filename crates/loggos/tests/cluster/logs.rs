//! Shared logs on real nodes: through the commands, and through the client library while nodes are killed.

mod again;
mod bulk;
mod history;
mod idle;
mod input;
mod kept;
mod space;
mod trouble;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::time::Duration;

use base::limits::LOG_POSITION_MAX;
use rustix::process::Signal;
use sdk::{Content, Entry};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::harness::{Cluster, Running, runtime, wait_for};

/// Concurrent writers, and appends of each.
const WRITERS: u64 = 16;
const APPENDS: u64 = 150;
/// Timeout of any operation, across the failure of a node.
const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn objects(text: &str) -> Vec<Value> {
    let object = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    text.lines().map(object).collect()
}

#[test]
fn log_append_read_follow_trim() {
    let cluster = Cluster::of(3);
    let run = |arguments: &[&str]| cluster.log(arguments);
    assert_eq!(objects(&run(&["create", "l", "--stripes", "2", "--copies", "2", "--json"]).ok())[0]["existed"], false);
    run(&["create", "l"]).ok();
    run(&["create", "l", "--copies", "3"]).failed(1, &["log l already exists", "2 copies"]);
    assert_eq!(run(&["list"]).ok(), "l\n");
    let known = &objects(&run(&["info", "l", "--json"]).ok())[0];
    assert_eq!((&known["stripes"], &known["copies"]), (&json!(2), &json!(2)));
    assert_eq!(known["extents"][0]["chains"].as_array().map(Vec::len), Some(2), "{known}");

    assert_eq!(run(&["append", "l", "zero"]).ok(), "0\n");
    assert_eq!(run(&["append", "l", "-1", "", "--", "--x"]).ok(), "1\n");
    let lines: String = (0..100).map(|number| format!("line {number}\n")).collect();
    let file = cluster.scratch().file("lines", &lines);
    let appended = &objects(&run(&["append", "l", "--file", &file, "--batch", "10", "--json"]).ok())[0];
    assert_eq!((&appended["records"], &appended["first"]), (&json!(100), &json!(2)), "{appended}");
    let tail: u64 = run(&["tail", "l"]).ok().trim().parse().expect("a position");
    assert!(tail >= 12, "batches of 10 at most: {tail}");

    let entries = objects(&run(&["read", "l", "0", "--to", &tail.to_string(), "--json"]).ok());
    assert_eq!(entries[1], json!({"log": "l", "position": 1, "records": ["-1", "", "--x"]}));
    let records = entries[2..].iter().flat_map(|entry| entry["records"].as_array().expect("no hole"));
    let read: String = records.map(|record| format!("{}\n", record.as_str().expect("text"))).collect();
    assert_eq!(read, lines, "in their order");

    run(&["read", "l", &tail.to_string()]).failed(1, &[&format!("the tail is {tail}")]);
    run(&["read", "l", "-1"]).failed(2, &["a position is a number"]);
    let all = &["a position is a number from 0 to 4611686018427387903"];
    run(&["read", "l", "4611686018427387905"]).failed(2, all);
    let hint = "no log named \"m\"; create it with: loggos log create m\n";
    run(&["read", "m", "0"]).failed(1, &[hint]);
    run(&["append", "m", "x"]).failed(1, &[hint]);
    let refusal = "no log named \".\"; the name is invalid: invalid log name \".\": '.' and '..' are reserved";
    run(&["append", ".", "x"]).failed(1, &[refusal]);
    run(&["append", "l", "x", "--file", &file]).failed(2, &["--file"]);
    run(&["append", "l", "--unknown"]).failed(2, &["--unknown"]);
    run(&["create", "a/b"]).failed(2, &["a/b"]);
    run(&["tail", "l", "--follow", "--from", "9999"]).failed(1, &[&format!("the tail is {tail}")]);
    let unwritten = |position: &str| format!("position {position} of log l is not written yet: the tail is {tail}");
    run(&["trim", "l", "9999"]).failed(1, &[&unwritten("9999")]);
    run(&["trim", "l", "9999", "--only"]).failed(1, &[&unwritten("9999")]);
    let last = (LOG_POSITION_MAX - 1).to_string();
    run(&["read", "l", &last]).failed(1, &[&unwritten(&last)]);
    run(&["read", "l", "3", "--to", "3"]).failed(2, &["--to 3 must be greater than position 3"]);
    let to_the_end = objects(&run(&["read", "l", "1", "--to", "9999", "--json"]).ok());
    assert_eq!(to_the_end.len() as u64, tail - 1, "it ends where the log does");
    for name in [".", "..", "--", "-m"] {
        run(&["create", "--", name]).failed(2, &["log name"]);
        let unknown = run(&["info", "--", name]);
        assert!(!unknown.err.contains("create"), "{}", unknown.err);
        unknown.failed(1, &["no log named"]);
    }

    let told = cluster.scratch().path().join("told");
    let out = File::create(&told).expect("a file");
    let mut command = cluster.log_command(&["tail", "l", "--follow", "--from", "1", "--json"]);
    let follower = Running::of(command.stdout(out));
    let followed = |until: u64| {
        wait_for("the follower is told", PATIENCE, || {
            let told = objects(&fs::read_to_string(&told).expect("a file"));
            (told.last().is_some_and(|last| last["position"] == until)).then_some(told)
        })
    };
    followed(tail - 1);
    assert_eq!(run(&["append", "l", "late"]).ok(), format!("{tail}\n"));
    let heard = followed(tail);
    assert_eq!(heard.len() as u64, tail);
    assert_eq!(heard.last().expect("some")["records"], json!(["late"]));
    drop(follower);

    assert_eq!(run(&["trim", "l", "2"]).ok(), "log l trimmed below 2\n");
    assert_eq!(run(&["trim", "l", "1"]).ok(), "log l is already trimmed below 2\n");
    assert_eq!(objects(&run(&["trim", "l", "0", "--json"]).ok())[0], json!({"log": "l", "trimmed_before": 2}));
    run(&["trim", "l", "4", "--only"]).ok();
    let known = &objects(&run(&["info", "l", "--json"]).ok())[0];
    assert_eq!((&known["tail"], &known["trimmed_before"]), (&json!(tail + 1), &json!(2)), "{known}");
    let units = objects(&cluster.status(&["--json"]).out).into_iter().filter(|line| line["kind"] == "log unit");
    assert_eq!(units.filter(|unit| unit["log"] == "l").count(), 4, "two chains of two");
    run(&["read", "l", "1"]).failed(1, &["log l is trimmed below 2"]);
    run(&["read", "l", "4"]).failed(1, &["position 4 of log l was trimmed"]);
    let entries = objects(&run(&["read", "l", "0", "--to", "5", "--json"]).ok());
    assert_eq!(entries[0], json!({"log": "l", "position": 0, "hole": "trimmed", "before": 2}));
    assert_eq!(entries[3], json!({"log": "l", "position": 4, "hole": "trimmed", "before": 5}));
}

#[test]
fn follower_reports_down_node_and_resumes() {
    let cluster = Cluster::of(3);
    let created = cluster.log(&["create", "l", "--copies", "1", "--json"]);
    assert!(created.err.starts_with("{\"warning\":\"log l has one copy"), "{created:?}");
    created.ok();
    cluster.log(&["append", "l", "before"]).ok();
    let known = &objects(&cluster.log(&["info", "l", "--json"]).ok())[0];
    let unit = &known["extents"][0]["chains"][0][0];
    let node = unit["node"].as_u64().and_then(|node| u32::try_from(node).ok()).expect("a node");

    let (told, said) = (cluster.scratch().path().join("told"), cluster.scratch().path().join("said"));
    let (out, err) = (File::create(&told).expect("a file"), File::create(&said).expect("a file"));
    let mut command = cluster.log_command(&["tail", "l", "--follow", "--from", "0", "--timeout", "1s", "--json"]);
    let _follower = Running::of(command.stdout(out).stderr(err));
    let lines = |path, what: &str, count| {
        wait_for(what, PATIENCE, || {
            let lines = objects(&fs::read_to_string(path).expect("a file"));
            (lines.len() >= count).then_some(lines)
        })
    };
    lines(&told, "the follower is told", 1);
    cluster.signal(node, Signal::KILL);
    let silent = format!("has unit {} of the log, does not respond", unit["unit"]);
    let answer = &lines(&said, "it is told that there is no answer", 1)[0];
    let message = answer["message"].as_str().expect("a reason");
    assert!(message.starts_with(&format!("node {node}, ")) && message.ends_with(&silent), "{message}");
    assert_eq!(answer["answers"], false);
    for asked in [&["append", "l", "x"][..], &["read", "l", "0"], &["tail", "l"]] {
        let refused = cluster.log(&[asked, &["--timeout", "1s"]].concat());
        let status = if refused.err.contains("outcome unknown") { 4 } else { 3 };
        assert!(asked[0] == "append" || status == 3, "only a write can have an unknown outcome: {refused:?}");
        refused.failed(status, &[&format!("node {node}, "), &silent]);
    }
    let info = cluster.log(&["info", "l", "--json", "--timeout", "1s"]);
    let known = &objects(&info.out)[0];
    assert_eq!((&known["tail"], &known["trimmed_before"]), (&Value::Null, &Value::Null), "{known}");
    info.failed(3, &[&silent]);

    cluster.restart(node).ok();
    let answers = lines(&said, "it is told that there are answers", 2);
    assert_eq!(answers[1..], [json!({"log": "l", "answers": true})]);
    cluster.log(&["append", "l", "after"]).ok();
    let heard = wait_for("the follower is told more", PATIENCE, || {
        let told = objects(&fs::read_to_string(&told).expect("a file"));
        told.iter().any(|entry| entry["records"] == json!(["after"])).then_some(told)
    });
    assert_eq!(heard[0]["records"], json!(["before"]));
}

/// The positions and records of a writer's acknowledged appends.
async fn write(log: sdk::Log, writer: u64) -> BTreeMap<u64, String> {
    let mut told = BTreeMap::new();
    for number in 0..APPENDS {
        let record = format!("{writer}:{number}");
        let position = log.append([record.clone()]).await.unwrap_or_else(|error| panic!("append {record}: {error}"));
        told.insert(position, record);
        sleep(Duration::from_millis(5)).await;
    }
    told
}

/// All entries up to this number of records.
async fn follow(log: sdk::Log, records: u64) -> Vec<Entry> {
    let mut subscription = log.subscribe(0);
    let (mut entries, mut heard) = (Vec::new(), 0);
    while heard < records {
        let entry = timeout(PATIENCE, subscription.next()).await.expect("in time").expect("no end");
        let entry = entry.unwrap_or_else(|error| panic!("after {heard} records: {error}"));
        heard += entry.records().len() as u64;
        entries.push(entry);
    }
    entries
}

#[test]
fn exactly_once_delivery_across_node_kill() {
    let cluster = Cluster::of(3);
    runtime().block_on(async {
        let client = cluster.client(1).with_deadline(PATIENCE);
        let log = client.log("l");
        log.create().send().await.expect("a log");
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn(write(log.clone(), writer));
        }
        let follower = tokio::spawn(follow(log.clone(), WRITERS * APPENDS));
        // It serves the follower and the writers, and is the sequencer.
        sleep(Duration::from_millis(300)).await;
        cluster.signal(1, Signal::KILL);
        let mut told = BTreeMap::new();
        while let Some(writer) = writers.join_next().await {
            told.append(&mut writer.expect("no writer panics"));
        }
        assert_eq!(told.len() as u64, WRITERS * APPENDS, "no two lie at one position");
        let heard = follower.await.expect("it is told all");
        let (mut next, mut delivered) = (0, BTreeSet::new());
        for entry in &heard {
            assert_eq!(entry.position, next, "each position once, in order");
            next = entry.after();
            let told = told.get(&entry.position).map(String::as_bytes);
            match &entry.content {
                Content::Records(records) => {
                    assert!(told.is_none_or(|told| told == records[0]), "{entry:?} is told to be {told:?}");
                    assert!(delivered.insert(records[0].clone()), "{entry:?} was told before");
                }
                // Its first attempt is at a lower position.
                Content::Repeated => {}
                Content::Junk => assert_eq!(told, None),
                other => panic!("{other:?}"),
            }
        }
        assert!(told.values().all(|record| delivered.contains(record.as_bytes())), "all are told");
    });
}
