//! The console of real nodes: its metrics, and that any live node shows the whole cluster. Its appearance in a browser
//! is tested under `compat/console`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Cluster, wait_for};

const PATIENCE: Duration = Duration::from_secs(20);

/// Requests a path; returns status and body.
pub(crate) fn get(cluster: &Cluster, node: u32, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", cluster.http_port(node))).expect("the port is open");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("the port takes bytes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

fn status(cluster: &Cluster, node: u32) -> Value {
    let (status, body) = get(cluster, node, "/api/status");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).expect("JSON")
}

/// Waits until a node's console reports this health of the cluster.
fn wait_for_health(cluster: &Cluster, node: u32, health: &str) -> Value {
    let what = format!("node {node} says {health}");
    wait_for(&what, PATIENCE, || Some(status(cluster, node)).filter(|said| said["health"] == health))
}

/// The value of a metric: of the first series with this prefix of name and labels.
pub(crate) fn metric(text: &str, beginning: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(beginning));
    let line = line.unwrap_or_else(|| panic!("no {beginning} in\n{text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn node_metrics() {
    let cluster = Cluster::of(1);
    cluster.columns(&["create", "t"]).ok();
    for key in ["a", "b", "c"] {
        cluster.columns(&["put", "t", key, "x", "y"]).ok();
    }
    cluster.columns(&["get", "t", "a"]).ok();
    assert_eq!(get(&cluster, 1, "/healthz"), (200, "ok".to_owned()));

    let (_, text) = get(&cluster, 1, "/metrics");
    let of_table = |name: &str| {
        let is_of_table =
            |line: &&str| line.starts_with(&format!("loggos_cohort_{name}{{")) && line.contains("table=\"t\"");
        metric(text.lines().find(is_of_table).expect("the table's series"), "loggos_cohort")
    };
    // Each put opened its own session.
    assert_eq!((of_table("writes_total"), of_table("reads_total")), (6.0, 1.0));
    assert_eq!((of_table("leader"), of_table("epoch")), (1.0, 1.0));
    let (last, committed, applied) =
        (of_table("last_sequence"), of_table("committed_sequence"), of_table("applied_sequence"));
    assert!(last >= 7.0 && committed == last && applied == last, "{last}, {committed}, {applied}");
    let put =
        r#"grpc_server_handled_total{grpc_code="OK",grpc_method="Write",grpc_service="loggos.columns.v1.Columns"}"#;
    assert_eq!(metric(&text, put), 3.0);
    let batches = metric(&text, "loggos_log_batches_total");
    assert!(batches >= 7.0, "{batches}");
    // One may have been forced while the metrics were gathered.
    assert!((metric(&text, "loggos_log_force_duration_seconds_count") - batches).abs() <= 1.0);
    assert!(metric(&text, "loggos_log_force_duration_seconds_sum") > 0.0);
    assert!(metric(&text, "loggos_log_written_bytes_total") >= 4_096.0 * batches);
    assert!(metric(&text, "loggos_log_appended_bytes_total") > metric(&text, "loggos_log_appended_records_total"));
    assert!(metric(&text, "loggos_manifest_writes_total") >= 1.0);
    assert!(metric(&text, "loggos_peer_sent_bytes_total") == 0.0);
    assert!(metric(&text, "loggos_takeovers_total") >= 2.0);
    assert!(metric(&text, "process_resident_memory_bytes") > 1e6);
}

#[test]
fn every_live_node_shows_cluster_status() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    for node in cluster.nodes() {
        let said = wait_for_health(&cluster, node, "healthy");
        assert_eq!(said["node"], node);
        assert_eq!(said["nodes"].as_array().map(Vec::len), Some(3));
        let tables: Vec<&str> = said["cohorts"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|c| c["log"].is_null())
            .filter_map(|c| c["table"].as_str())
            .collect();
        assert_eq!(tables, ["", "t"]);
    }

    cluster.signal(3, Signal::KILL);
    let said = wait_for_health(&cluster, 1, "degraded");
    assert_eq!(said["nodes"][2]["answers"], false);
    wait_for("the kill is seen as such", PATIENCE, || {
        (status(&cluster, 1)["problems"][0] == "node 3 is down").then_some(())
    });
    cluster.restart(3).ok();
    wait_for_health(&cluster, 1, "healthy");

    // A stopped process is harder to detect than a dead one: it accepts connections but never responds.
    cluster.signal(2, Signal::STOP);
    let began = Instant::now();
    let said = wait_for_health(&cluster, 1, "degraded");
    assert_eq!(said["nodes"][1]["answers"], false);
    let began_again = Instant::now();
    status(&cluster, 3);
    assert!(began_again.elapsed() < Duration::from_secs(2), "a silent node holds the others' consoles up");
    assert!(began.elapsed() < PATIENCE);
    cluster.signal(2, Signal::CONT);
    wait_for_health(&cluster, 1, "healthy");
}

#[test]
fn reports_under_replicated_log() {
    let cluster = Cluster::of(3);
    cluster.log(&["create", "l", "--copies", "3"]).ok();
    cluster.log(&["append", "l", "before"]).ok();
    wait_for_health(&cluster, 1, "healthy");
    cluster.signal(3, Signal::KILL);
    cluster.log(&["append", "l", "meanwhile"]).ok();
    let lacks = "log l is under-replicated: some positions have 2 of 3 copies";
    wait_for("the log is known to lack a copy", PATIENCE, || {
        let problems = status(&cluster, 1)["problems"].take();
        let is_told = problems.as_array().is_some_and(|problems| problems.iter().any(|problem| problem == lacks));
        (problems[0] == "node 3 is down" && is_told).then_some(())
    });
    assert!(cluster.status(&[]).ok().contains(lacks));
    cluster.restart(3).ok();
    wait_for_health(&cluster, 2, "healthy");
    let known: serde_json::Value = serde_json::from_str(&cluster.log(&["info", "l", "--json"]).ok()).expect("JSON");
    let extents = known["extents"].as_array().into_iter().flatten();
    let mut chains = extents.flat_map(|extent| extent["chains"].as_array()).flatten();
    assert!(chains.all(|chain| chain.as_array().is_some_and(|units| units.len() == 3)), "{known}");
}

#[test]
fn unreachable_log_makes_cluster_unavailable() {
    let cluster = Cluster::of(3);
    cluster.log(&["create", "l", "--copies", "1"]).ok();
    let known: serde_json::Value = serde_json::from_str(&cluster.log(&["info", "l", "--json"]).ok()).expect("JSON");
    let node = known["extents"][0]["chains"][0][0]["node"].as_u64().expect("a node") as u32;
    let other = node % 3 + 1;
    cluster.signal(node, Signal::KILL);
    let missing = format!("log l is unavailable: all copies of some positions are on node {node}, which is down");
    wait_for("the log is known to be out of reach", PATIENCE, || {
        let said = status(&cluster, other);
        (said["health"] == "unavailable" && said["problems"][0] == missing).then_some(())
    });
    cluster.restart(node).ok();
    wait_for_health(&cluster, other, "healthy");
}

/// No live node has a replica of the table, so that only the map contains it.
#[test]
fn table_of_dead_node_is_unavailable() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    cluster.columns(&["create", "solo", "--replicas", "1"]).ok();
    let known: Value = serde_json::from_str(&cluster.columns(&["describe", "solo", "--json"]).ok()).expect("an object");
    let node = known["ranges"][0]["members"][0].as_u64().expect("a node") as u32;
    let other = node % 3 + 1;
    wait_for_health(&cluster, other, "healthy");
    cluster.signal(node, Signal::KILL);

    let problem = "table solo has no responding leader";
    let said = wait_for("the table is known to be unavailable", PATIENCE, || {
        let said = status(&cluster, other);
        let down = Value::from(format!("node {node} is down"));
        let problems = said["problems"].as_array()?;
        (said["health"] == "unavailable" && problems[0] == problem && problems.contains(&down)).then_some(said)
    });
    let solo = said["cohorts"].as_array().into_iter().flatten().find(|cohort| cohort["table"] == "solo");
    let solo = solo.expect("a row of the table");
    assert_eq!((&solo["led"], &solo["replicas"][0]["state"]), (&false.into(), &"down".into()), "{solo}");
    let series = [
        "loggos_nodes_down ",
        "loggos_ranges_unavailable{table=\"solo\"}",
        "loggos_ranges_unavailable{table=\"t\"}",
        "loggos_ranges_under_replicated{table=\"t\"}",
    ];
    wait_for("the metrics show it", PATIENCE, || {
        let (_, text) = get(&cluster, other, "/metrics");
        (series.map(|series| metric(&text, series)) == [1.0, 1.0, 0.0, 1.0]).then_some(())
    });

    let shown = cluster.status(&[]);
    let row = shown.out.lines().find(|line| line.contains("solo") && line.contains("no leader"));
    assert!(row.is_some_and(|row| row.contains("down")) && shown.out.starts_with("unavailable: "), "{shown:?}");
    assert_eq!(shown.out.matches(problem).count(), 1, "{shown:?}");
    assert_eq!(shown.failed(3, &[]), "", "the problem is named once");
    let summary: Value = serde_json::from_str(&cluster.status(&["--summary", "--json"]).out).expect("one object");
    assert_eq!((&summary["health"], &summary["problems"][0]), (&"unavailable".into(), &problem.into()));
    let of_table = cluster.status(&["--table", "t"]);
    assert!(of_table.out.contains("COHORT") && !of_table.out.contains("(catalog)"), "{of_table:?}");
    cluster.status(&["--table", "nothing"]).failed(1, &["nothing"]);

    cluster.restart(node).ok();
    wait_for_health(&cluster, other, "healthy");
    assert!(cluster.status(&["--summary"]).ok().starts_with("healthy"));
}
