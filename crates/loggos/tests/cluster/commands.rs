//! The client commands: their output, the JSON that scripts depend on, and the exit status: 0 success, 1 refused or not
//! found, 2 wrong usage, 3 unavailable, 4 outcome unknown.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{COMMAND_PATIENCE, Cluster, Done, Scratch, loggos, wait_for};

/// A line of JSON.
#[track_caller]
fn object(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

#[track_caller]
fn objects(text: &str) -> Vec<Value> {
    text.lines().map(object).collect()
}

/// The version of a column, a string in JSON.
fn version_of(cell: &Value) -> i64 {
    cell["version"].as_str().and_then(|version| version.parse().ok()).expect("a version")
}

#[test]
fn row_crud() {
    let cluster = Cluster::of(1);
    let run = |arguments: &[&str]| cluster.columns(arguments);

    assert_eq!(object(&run(&["create", "t", "--json"]).ok()), json!({"table": "t", "existed": false}));
    assert_eq!(object(&run(&["create", "t", "--json"]).ok()), json!({"table": "t", "existed": true}));
    run(&["create", "another"]).ok();
    assert_eq!(run(&["list"]).ok(), "another\nt\n");
    assert_eq!(objects(&run(&["list", "--json"]).ok()), [json!({"table": "another"}), json!({"table": "t"})]);

    let version: i64 = run(&["put", "t", "k", "c", "v"]).ok().trim().parse().expect("people get the version");
    let line =
        format!("{{\"table\":\"t\",\"key\":\"k\",\"column\":\"c\",\"value\":\"v\",\"version\":\"{version}\"}}\n");
    assert_eq!(run(&["get", "t", "k", "c", "--json"]).ok(), line);
    let people = run(&["get", "t", "k"]).ok();
    assert!(people.contains(&version.to_string()) && people.contains("VALUE"), "{people}");
    let put = object(&run(&["put", "t", "k", "d", "-5", "--json"]).ok());
    assert_eq!((&put["column"], &put["value"]), (&json!("d"), &json!("-5")));
    assert!(version_of(&put) > version, "{put}");

    let deleted = json!({"table": "t", "key": "k", "column": "d", "deleted": true});
    assert_eq!(object(&run(&["delete", "t", "k", "d", "--json"]).ok()), deleted);
    run(&["get", "t", "k", "d"]).failed(1, &["there is no column d in row k"]);
    run(&["delete", "t", "k", "d"]).failed(1, &["nothing to delete: there is no column d in row k"]);
    run(&["delete", "t", "k"]).ok();
    run(&["delete", "t", "k"]).failed(1, &["nothing to delete: there is no row k in table t"]);
    run(&["get", "t", "k"]).failed(1, &["there is no row k in table t"]);
    let refusal = object(&run(&["get", "t", "k", "--json"]).failed(1, &[]));
    assert_eq!(refusal["kind"], "not found");
}

/// A script repeats a command that fails with status 3, which would append and write twice.
#[test]
fn unprintable_result_is_no_failure() {
    let cluster = Cluster::of(1);
    let full = |area: &str, arguments: &[&str]| {
        let port = if area == "zk" { cluster.zookeeper_port(1) } else { cluster.grpc_port(1) };
        let mut command = loggos();
        command.arg(area).args(arguments).args(["--at", &format!("127.0.0.1:{port}")]);
        command.stdout(fs::OpenOptions::new().write(true).open("/dev/full").expect("a full device"));
        let done = command.stdin(std::process::Stdio::null()).output().expect("it runs");
        (done.status.code(), String::from_utf8(done.stderr).expect("text"))
    };
    let rows = cluster.scratch().file("rows.csv", "k,v\na,1\n");
    for (area, arguments, said) in [
        ("columns", &["create", "t"][..], "table t created"),
        ("columns", &["put", "t", "k", "c", "v"], "result"),
        ("columns", &["put", "t", "k", "c=1", "d=2", "--json"], "\"version\""),
        ("columns", &["delete", "t", "k", "c"], "deleted c"),
        ("columns", &["load", "t", &rows, "--key", "k"], "1 row loaded"),
        ("columns", &["drop", "t"], "table t dropped"),
        ("log", &["create", "l"], "log l created"),
        // Not the positions: that of an append that was slow may have been filled, and the lines may be two appends.
        ("log", &["append", "l", "x"], ": "),
        ("log", &["append", "l", "--file", &rows], "at position"),
        ("log", &["trim", "l", "1"], "trimmed below 1"),
        ("zk", &["create", "/p", "x"], "/p"),
        ("zk", &["set", "/p", "y"], "version 1"),
        ("zk", &["delete", "/p"], "/p deleted"),
    ] {
        let (status, err) = full(area, arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {err}");
        assert!(err.contains(said), "{arguments:?}: {err}");
    }
    let (status, _) = full("log", &["list"]);
    assert_eq!(status, Some(3), "a read has failed");
}

#[test]
fn rows_are_written_whole_and_as_bytes() {
    let cluster = Cluster::of(1);
    let run = |arguments: &[&str]| cluster.columns(arguments);
    run(&["create", "t"]).ok();

    let version = run(&["put", "t", "k", "a=1", "b=x=y", "--if", "a@0", "--if", "b@0"]).ok().trim().to_owned();
    let cells = objects(&run(&["get", "t", "k", "--json"]).ok());
    let of = |column, value| json!({"table": "t", "key": "k", "column": column, "value": value, "version": version});
    assert_eq!(cells, [of("a", "1"), of("b", "x=y")], "both columns have the version of the one write");
    let condition = format!("a@{version}");
    run(&["put", "t", "k", "a=2", "b=2", "--if", "b@1", "--if", &condition]).failed(1, &["column b: expected 1"]);
    assert_eq!(objects(&run(&["get", "t", "k", "--json"]).ok()), cells, "nothing is written");
    assert_eq!(objects(&run(&["put", "t", "k", "a=2", "b=2", "--if", &condition, "--json"]).ok()).len(), 2);
    run(&["put", "t", "k", "a=1", "--if", "b@0"]).failed(2, &["column b, which is not written"]);

    let bytes = cluster.scratch().path().join("bytes");
    fs::write(&bytes, b"\xff\x00=\n").expect("a file");
    run(&["put", "t", "k", "c", "--value-file", &bytes.display().to_string()]).ok();
    let mut raw = loggos();
    raw.args(["columns", "get", "t", "k", "c", "--raw", "--at", &cluster.endpoints(1)[0]]);
    assert_eq!(raw.output().expect("it runs").stdout, b"\xff\x00=\n");
    let shown = run(&["get", "t", "aw==", "Yw==", "--base64", "--json"]).ok();
    assert_eq!(object(&shown)["value_base64"], "/wA9Cg==");
    run(&["put", "t", "/w==", "Yw==", "dg==", "--base64"]).ok();
    assert!(run(&["scan", "t", "--from", "/w==", "--base64"]).ok().contains("/w==  Yw=="));
    run(&["delete", "t", "/w==", "Yw==", "--base64"]).ok();
}

#[test]
fn conditional_put_reports_both_versions() {
    let cluster = Cluster::of(1);
    let run = |arguments: &[&str]| cluster.columns(arguments);
    let conditional_put = |value: &str, version: i64| {
        run(&["conditional-put", "t", "k", "c", value, "--version", &version.to_string(), "--json"])
    };
    run(&["create", "t"]).ok();

    let first = version_of(&object(&conditional_put("1", 0).ok()));
    let absent = json!({"error": "version mismatch", "kind": "refused", "expected": "0", "actual": first.to_string()});
    assert_eq!(object(&conditional_put("2", 0).failed(1, &[])), absent);
    let second = version_of(&object(&conditional_put("2", first).ok()));
    assert!(second > first);

    let delete = |version: i64| run(&["conditional-delete", "t", "k", "c", "--version", &version.to_string()]);
    delete(first).failed(1, &["version mismatch on column c", &first.to_string(), &second.to_string()]);
    assert_eq!(object(&run(&["get", "t", "k", "c", "--json"]).ok())["value"], "2");
    delete(second).ok();
    delete(second).failed(1, &["actual 0"]);
    run(&["get", "t", "k", "c"]).failed(1, &[]);
    conditional_put("3", 0).ok();
}

#[test]
fn scan_bounds_in_both_directions() {
    let cluster = Cluster::of(1);
    cluster.columns(&["create", "t"]).ok();
    for key in ["a", "b1", "b2", "b3", "c"] {
        cluster.columns(&["put", "t", key, "x", key]).ok();
    }
    cluster.columns(&["put", "t", "b2", "y", "more"]).ok();
    let check = |arguments: &[&str], expected: &[&str]| {
        let out = cluster.columns(&[&["scan", "t", "--json"], arguments].concat()).ok();
        let mut keys: Vec<String> = objects(&out).iter().map(|cell| cell["key"].as_str().unwrap().to_owned()).collect();
        keys.dedup();
        assert_eq!(keys, expected, "{arguments:?}");
    };

    check(&[], &["a", "b1", "b2", "b3", "c"]);
    check(&["--from", "b1", "--to", "b3"], &["b1", "b2"]);
    check(&["--prefix", "b"], &["b1", "b2", "b3"]);
    check(&["--prefix", "b", "--from", "b2"], &["b2", "b3"]);
    check(&["--limit", "2"], &["a", "b1"]);
    check(&["--reverse"], &["c", "b3", "b2", "b1", "a"]);
    check(&["--reverse", "--limit", "2"], &["c", "b3"]);
    check(&["--reverse", "--from", "b1", "--to", "b3"], &["b2", "b1"]);
    check(&["--from", "d"], &[]);
    check(&["--from", "b1", "--to", "b1"], &[]);

    let row = objects(&cluster.columns(&["get", "t", "b2", "--json"]).ok());
    let columns: Vec<_> = row.iter().map(|cell| (&cell["column"], &cell["value"])).collect();
    assert_eq!(columns, [(&json!("x"), &json!("b2")), (&json!("y"), &json!("more"))]);
}

#[test]
fn exit_status_by_error_kind() {
    let run = |arguments: &[&str]| Done::of(loggos().args(arguments), COMMAND_PATIENCE);
    run(&["columns", "get"]).failed(2, &[]);
    run(&["columns", "put", "t", "k", "c", "v", "--wrong"]).failed(2, &["--wrong"]);
    run(&["columns", "--at", "nonsense", "list"]).failed(2, &["nonsense"]);
    let scratch = Scratch::new();
    let fresh = scratch.path().join("data").display().to_string();
    run(&["dev", "--nodes", "2", "--data", &fresh]).failed(2, &["--nodes 2", "1, 3 or 5"]);
    let no_directory = scratch.file("file", "");
    run(&["dev", "--data", &no_directory]).failed(3, &[&no_directory]);
    run(&["dev", "--port-offset", "60000"]).failed(2, &["60000"]);
    run(&["dev", "--nodes", "3", "restart", "1"]).failed(2, &["--nodes"]);
    run(&["dev", "--port-offset", "60000", "restart", "1"]).failed(3, &["--port-offset 60000"]);
    run(&["start", "--config", "/nonexistent.toml"]).failed(2, &["/nonexistent.toml"]);
    run(&["dev", "restart", "1", "--data", "/nonexistent"]).failed(3, &["/nonexistent"]);

    // Nothing listens on port 1.
    let refusal =
        run(&["columns", "--at", "127.0.0.1:1", "--timeout", "300ms", "--json", "get", "t", "k"]).failed(3, &[]);
    assert_eq!(object(&refusal)["kind"], "unavailable");
    run(&["status", "--at", "127.0.0.1:1", "--timeout", "300ms"]).failed(3, &["127.0.0.1:1"]);
}

#[test]
fn options_follow_one_convention() {
    let run = |arguments: &[&str]| Done::of(loggos().args(arguments), COMMAND_PATIENCE);
    for wrong in ["500", "0s", "1.5s"] {
        run(&["status", "--timeout", wrong]).failed(2, &["duration"]);
    }
    run(&["bench", "columns", "--duration", "10x"]).failed(2, &["ms, s, m, h or d"]);
    run(&["columns", "get", "t", "k", "--as-of", "yesterday"]).failed(2, &["RFC 3339"]);

    let with = |variable: &str, arguments: &[&str]| {
        let mut command = loggos();
        command.env(variable, "127.0.0.1:1").args(arguments).args(["--timeout", "300ms"]);
        Done::of(&mut command, COMMAND_PATIENCE)
    };
    with("LOGGOS_AT", &["columns", "list"]).failed(3, &["127.0.0.1:1"]);
    with("LOGGOS_ZK_AT", &["zk", "ls", "/"]).failed(3, &["127.0.0.1:1:"]);
    with("LOGGOS_AT", &["columns", "list", "--at", "127.0.0.1:2"]).failed(3, &["127.0.0.1:2"]);
    with("LOGGOS_AT", &["columns", "list", "--port-offset", "50000"]).failed(3, &["127.0.0.1:572"]);
    run(&["columns", "list", "--port-offset", "1", "--at", "127.0.0.1:2"]).failed(2, &["--port-offset"]);

    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).ok();
        assert!(script.contains("conditional-put"), "{shell}");
    }
    let version = run(&["--version"]).ok();
    assert!(version.starts_with(concat!("loggos ", env!("CARGO_PKG_VERSION"), " (")), "{version}");
}

/// The lines of nodes and of cohorts in `status --json`, after that of the health.
fn status(cluster: &Cluster) -> (Vec<Value>, Vec<Value>) {
    let lines = objects(&cluster.status(&["--json"]).out).into_iter().skip(1);
    lines.partition(|line| line.get("node").is_some())
}

/// The line of a table's cohort, once all three replicas have all of its log.
fn caught_up(cluster: &Cluster, table: &str) -> Value {
    wait_for("every replica has caught up", Duration::from_secs(20), || {
        let cohort = status(cluster).1.into_iter().find(|line| line["table"] == table)?;
        let replicas = cohort["replicas"].as_array()?;
        (replicas.len() == 3 && replicas.iter().all(|replica| replica["lag"] == 0)).then_some(cohort)
    })
}

#[test]
fn status_shows_nodes_and_cohorts() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    cluster.columns(&["put", "t", "k", "c", "v"]).ok();
    let table = caught_up(&cluster, "t");
    let (nodes, cohorts) = status(&cluster);
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    for (number, node) in (1..).zip(&nodes) {
        assert_eq!((&node["node"], &node["alive"], &node["boot"]), (&json!(number), &json!(true), &json!(1)), "{node}");
        assert_eq!(node["incarnation"].as_str().map(str::len), Some(16), "{node}");
    }
    // The units of the coordination log have numbers before the table's.
    let of_tables = cohorts.iter().filter(|cohort| cohort["log"].is_null());
    let tables: Vec<_> = of_tables.map(|cohort| &cohort["table"]).collect();
    assert_eq!(tables, [&json!(""), &json!("t")]);

    assert_eq!(table["range"], json!(["", null]));
    assert!(table["leader"].is_u64() && table["epoch"].is_u64(), "{table}");
    for (number, replica) in (1..).zip(table["replicas"].as_array().expect("an array")) {
        assert_eq!((&replica["node"], &replica["doubtful"]), (&json!(number), &json!(false)), "{table}");
        let lsn = replica["last_lsn"].as_str().and_then(|lsn| lsn.split_once('.')).expect("epoch.sequence");
        assert_eq!(lsn.0.parse::<u64>().ok(), table["epoch"].as_u64(), "{table}");
        assert!(replica["committed_lsn"].as_str().is_some_and(|lsn| lsn.contains('.')), "{table}");
    }
    let people = cluster.status(&[]).ok();
    assert!(
        ["NODE", "ALIVE", "COHORT", "LEADER", "EPOCH", "LAG", "(catalog)"].iter().all(|word| people.contains(word))
    );
}

#[test]
fn failover_and_restart_of_leader() {
    let mut cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    cluster.columns(&["put", "t", "k", "c", "v"]).ok();
    let leader = caught_up(&cluster, "t")["leader"].as_u64().expect("a number") as u32;

    cluster.restart(leader).failed(1, &["is already running"]);
    cluster.restart(9).failed(1, &["no node 9"]);
    cluster.restart_by_offset(9).failed(1, &["no node 9"]);
    cluster.signal(leader, Signal::KILL);
    // The other nodes have received messages from it within the last second.
    wait_for("the process has ended", Duration::from_secs(1), || cluster.pid(leader).is_none().then_some(()));
    let is_down = || status(&cluster).0.iter().any(|node| node["node"] == leader && node["alive"] == false);
    wait_for("its peers have noticed", Duration::from_secs(2), || is_down().then_some(()));
    cluster.columns(&["put", "t", "k", "c", "w"]).ok();
    cluster.restart(leader).ok();
    assert!(caught_up(&cluster, "t")["epoch"].as_u64() > Some(1), "another leader is of another epoch");
    let restarted = status(&cluster).0.into_iter().find(|node| node["node"] == leader).expect("its line");
    assert_eq!((&restarted["alive"], &restarted["boot"]), (&json!(true), &json!(2)));

    cluster.stop();
    cluster.columns(&["--timeout", "500ms", "get", "t", "k"]).failed(3, &[]);
    cluster.start();
    assert_eq!(object(&cluster.columns(&["get", "t", "k", "c", "--json"]).ok())["value"], "w");
}

#[test]
fn write_without_quorum_times_out() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    cluster.signal(2, Signal::STOP);
    cluster.signal(3, Signal::STOP);
    let refused = cluster.columns(&["--timeout", "1500ms", "--json", "put", "t", "k", "c", "v"]);
    let kind = object(&refused.err)["kind"].clone();
    let status = if kind == "unknown" { 4 } else { 3 };
    refused.failed(status, &[]);
    assert!(kind == "unknown" || kind == "unavailable", "{kind}");
    cluster.signal(2, Signal::CONT);
    cluster.signal(3, Signal::CONT);
    cluster.columns(&["put", "t", "k", "c", "w"]).ok();
    assert_eq!(object(&cluster.columns(&["get", "t", "k", "c", "--json"]).ok())["value"], "w");
}
