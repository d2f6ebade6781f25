//! `loggos columns load`: files of rows, good and bad, complete and interrupted.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{Cluster, loggos, wait_for};

const AIRPORTS: &str = "iata,name,city\nJFK,\"John F.\nKennedy \"\"International\"\"\",New York\nLAX,Los Angeles,\n";

/// Every cell of a table except its version, which changes with each load.
fn values(cluster: &Cluster, table: &str) -> Vec<(String, String, String)> {
    let text = |cell: &Value, field: &str| cell[field].as_str().unwrap_or_else(|| panic!("{cell}")).to_owned();
    let out = cluster.columns(&["scan", table, "--json"]).ok();
    let cells = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    cells.map(|cell| (text(&cell, "key"), text(&cell, "column"), text(&cell, "value"))).collect()
}

fn cell(key: &str, column: &str, value: &str) -> (String, String, String) {
    (key.to_owned(), column.to_owned(), value.to_owned())
}

#[test]
fn csv_load_is_exact_and_idempotent() {
    let cluster = Cluster::of(1);
    let file = cluster.scratch().file("airports.csv", AIRPORTS);
    let load = || cluster.columns(&["load", "airports", &file, "--key", "iata"]).ok();
    assert!(load().contains("2 rows loaded into airports"));
    // LAX has no city: an empty cell is an absent column.
    let expected = [
        cell("JFK", "city", "New York"),
        cell("JFK", "iata", "JFK"),
        cell("JFK", "name", "John F.\nKennedy \"International\""),
        cell("LAX", "iata", "LAX"),
        cell("LAX", "name", "Los Angeles"),
    ];
    assert_eq!(values(&cluster, "airports"), expected);
    load();
    assert_eq!(values(&cluster, "airports"), expected);
    cluster.columns(&["get", "airports", "LAX", "city"]).failed(1, &["there is no column city"]);

    let missing = cluster.columns(&["load", "airports", &file, "--key", "icao"]);
    missing.failed(2, &["line 1", "\"icao\""]);
    cluster.columns(&["load", "airports", "/nonexistent.csv", "--key", "iata"]).failed(2, &["/nonexistent.csv"]);
}

#[test]
fn bad_row_stops_load_or_is_set_aside() {
    let cluster = Cluster::of(1);
    let content = format!("{AIRPORTS}BAD,too,many,cells\n,no key,nowhere\nSFO,San Francisco,San Francisco\n");
    let file = cluster.scratch().file("airports.csv", content);
    // The quoted name contains a line end: the third row begins on line 5.
    cluster.columns(&["load", "a", &file, "--key", "iata"]).failed(2, &["line 5", "4 cells", "2 rows loaded"]);
    let keys = |table| values(&cluster, table).into_iter().map(|(key, _, _)| key).collect::<Vec<_>>();
    assert_eq!(keys("a"), ["JFK", "JFK", "JFK", "LAX", "LAX"]);

    let json = cluster.columns(&["load", "a", &file, "--key", "iata", "--json"]).failed(2, &[]);
    let refusal: Value = serde_json::from_str(json.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&refusal["line"], &refusal["rows"], &refusal["kind"]), (&5.into(), &2.into(), &"invalid".into()));

    let bad = cluster.scratch().path().join("bad.csv");
    let said = cluster.columns(&["load", "a", &file, "--key", "iata", "--skip-bad", &bad.to_string_lossy()]).ok();
    assert!(said.contains("3 rows loaded into a, 2 bad rows skipped"), "{said}");
    let bad = fs::read_to_string(bad).expect("the bad rows were collected");
    let lines: Vec<_> = bad.lines().collect();
    let [first, row, second, other] = lines[..] else { panic!("two rows, each after what is wrong: {bad}") };
    assert!(first.starts_with("# line 5: ") && second.starts_with("# line 6: ") && second.contains("iata"), "{bad}");
    assert_eq!((row, other), ("BAD,too,many,cells", ",no key,nowhere"));
    assert_eq!(keys("a").last().map(String::as_str), Some("SFO"));
}

#[test]
fn jsonl_load_reports_bad_line() {
    let cluster = Cluster::of(1);
    let good = "{\"id\":\"a\",\"n\":1.50,\"b\":true,\"o\":{\"x\":[1, 2]},\"z\":null}\n{\"id\":\"b\",\"s\":\"é\\n\"}\n";
    let file = cluster.scratch().file("rows.jsonl", good);
    cluster.columns(&["load", "j", &file, "--key", "id"]).ok();
    let expected = [
        cell("a", "b", "true"),
        cell("a", "id", "a"),
        cell("a", "n", "1.50"),
        cell("a", "o", "{\"x\":[1,2]}"),
        cell("b", "id", "b"),
        cell("b", "s", "é\n"),
    ];
    assert_eq!(values(&cluster, "j"), expected);

    let file = cluster.scratch().file("broken.jsonl", format!("{good}{{\"id\":\"c\",\n{{\"id\":\"d\"}}\n"));
    cluster.columns(&["load", "j", &file, "--key", "id"]).failed(2, &["line 3", "2 rows loaded"]);
    assert_eq!(values(&cluster, "j"), expected);
}

#[test]
fn load_names_wrong_kind_of_file() {
    let cluster = Cluster::of(1);
    let files: [(&str, &[u8], &str); 5] = [
        ("array.json", b"[\n{\"id\":1}\n]\n", "line 1: the file is a JSON array"),
        ("array.jsonl", b"[{\"id\":1}]", "line 1: the file is a JSON array"),
        ("wide.csv", b"\xff\xfei\0d\0\n\0", "line 1: the file is UTF-16"),
        ("wide.jsonl", b"\xfe\xff\0{\0}", "line 1: the file is UTF-16"),
        ("twice.jsonl", b"{\"id\":1,\"id\":2}", "line 1: duplicate field \"id\""),
    ];
    for (name, content, says) in files {
        let file = cluster.scratch().file(name, content);
        cluster.columns(&["load", "t", &file, "--key", "id"]).failed(2, &[says]);
    }
    assert_eq!(cluster.columns(&["list"]).ok(), "");
}

#[test]
fn load_failing_at_first_row_creates_no_table() {
    let cluster = Cluster::of(1);
    let wide: String = (0..2_000).map(|column| format!(",\"c{column}\":1")).collect();
    let files = ["{\"id\":null}\n".to_owned(), format!("{{\"id\":1{wide}}}\n"), "no JSON\n".to_owned()];
    let empty = cluster.scratch().path().join("empty").display().to_string();
    for content in files {
        let file = cluster.scratch().file("bad.jsonl", content);
        cluster.columns(&["load", "none", &file, "--key", "id"]).failed(2, &["line 1: ", "0 rows loaded"]);
        assert_eq!(cluster.columns(&["list"]).ok(), "");
    }
    let file = cluster.scratch().file("bad.jsonl", "{}\n{\"id\":1}\n");
    let said = cluster.columns(&["load", "some", &file, "--key", "id", "--skip-bad", &empty]).ok();
    assert!(said.contains("1 row loaded into some, 1 bad row skipped"), "{said}");
}

#[test]
fn load_fails_when_table_is_dropped() {
    let cluster = Cluster::of(1);
    let rows: String = (0..200_000).map(|row| format!("{row:06},v\n")).collect();
    let file = cluster.scratch().file("many.csv", format!("id,value\n{rows}"));
    let mut load = loggos();
    load.args(["columns", "--at", &cluster.endpoints(1)[0], "load", "many", &file, "--key", "id"]);
    let load = load.stderr(Stdio::piped()).spawn().expect("a load can be started");
    let is_under_way = || cluster.columns(&["scan", "many", "--limit", "1"]).out.contains("value");
    crate::harness::wait_for("rows arrive", Duration::from_secs(20), || is_under_way().then_some(()));
    cluster.columns(&["drop", "many"]).ok();
    let done = load.wait_with_output().expect("a child can be waited for");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("no table named \"many\"; ") && !said.contains("again"), "{said}");
}

#[test]
fn rerun_completes_interrupted_load() {
    const ROWS: usize = 20_000;
    let cluster = Cluster::of(1);
    let rows: String = (0..ROWS).map(|row| format!("{row:06},value {row}\n")).collect();
    let file = cluster.scratch().file("many.csv", format!("id,value\n{rows}"));
    let arguments = ["--at", &cluster.endpoints(1)[0], "load", "many", &file, "--key", "id"];
    let mut load = loggos().arg("columns").args(arguments).spawn().expect("a load can be started");
    let is_under_way = || cluster.columns(&["scan", "many", "--limit", "1"]).out.contains("value");
    crate::harness::wait_for("rows arrive", Duration::from_secs(20), || is_under_way().then_some(()));
    sleep(Duration::from_millis(50));
    load.kill().expect("it can be killed");
    load.wait().expect("it was ours");

    assert!(cluster.columns(&["load", "many", &file, "--key", "id"]).ok().contains("20000 rows loaded"));
    let values = values(&cluster, "many");
    assert_eq!(values.len(), 2 * ROWS);
    let column = values.iter().filter(|(_, column, _)| column == "value");
    for (row, (key, _, value)) in column.enumerate() {
        assert_eq!((key, value), (&format!("{row:06}"), &format!("value {row}")));
    }
}

/// The end of the input would complete the load, so it stays open.
#[test]
fn interrupted_load_reports_rows() {
    let cluster = Cluster::of(1);
    let mut command = loggos();
    command.args(["columns", "--at", &cluster.endpoints(1)[0], "load", "t", "-", "--format", "csv", "--key", "k"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut load = command.spawn().expect("it runs");
    let mut input = load.stdin.take().expect("a pipe");
    input.write_all(b"k,v\na,1\nb,2\n").expect("the load reads");
    wait_for("both rows are loaded", Duration::from_secs(10), || {
        let scanned = cluster.columns(&["scan", "t", "--json"]);
        (scanned.out.lines().count() == 4).then_some(())
    });
    kill_process(Pid::from_child(&load), Signal::INT).expect("it runs");
    let ended = load.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("stopped; 2 rows acknowledged"), "{said}");
    assert_eq!(ended.status.code(), Some(3));
    drop(input);
}
