//! Tests that benchmarks complete, print their documented JSON, and clean up. Measured values are not checked.

use std::fs;

use serde_json::Value;

use crate::harness::{COMMAND_PATIENCE, Cluster, ClusterSlot, Done, Scratch, loggos};

/// Runs `loggos bench ...`.
fn bench(arguments: &[&str]) -> Done {
    Done::of(loggos().arg("bench").args(arguments), COMMAND_PATIENCE)
}

#[track_caller]
fn objects(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("the figures were written");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn columns_bench_open_loop_and_pairs() {
    let cluster = Cluster::of(3);
    let target = cluster.endpoints(1).join(",");
    let [json, plot] = ["figures.jsonl", "figure.svg"].map(|name| cluster.scratch().path().join(name));
    let [json, plot] = [&json, &plot].map(|path| path.to_str().expect("UTF-8"));
    let data = cluster.data().display().to_string();
    let columns = |arguments: &[&str]| {
        let common = ["columns", "--at", &target, "--keys", "50", "--value-bytes", "100", "--output", json];
        bench(&[&common, arguments].concat())
    };

    let open = ["--rate", "200", "--duration", "1s", "--warmup", "200ms", "--server-data", &data, "--plot", plot];
    assert!(columns(&open).ok().contains("write"));
    let figures = &objects(json)[0];
    assert_eq!((&figures["bench"], &figures["mode"]), (&"columns".into(), &"open".into()), "{figures}");
    assert!(figures["operations"].as_u64() > Some(0) && figures["offered_per_second"].is_f64(), "{figures}");
    assert!(figures["server_cpu_us_per_operation"].is_f64(), "{figures}");
    assert!(fs::read_to_string(plot).expect("a figure was drawn").contains("loggos write, 100 B, open loop"));

    let short = ["--clients", "2", "--duration", "200ms", "--warmup", "0s"];
    let pairs = ["--operation", "conditional-put", "--pairs", "1", "--against-operation", "write"];
    assert!(columns(&[&short[..], &pairs].concat()).ok().contains("A / B"));
    let lines = objects(json);
    let kinds: Vec<_> = lines[1..].iter().map(|line| (&line["bench"], &line["side"])).collect();
    let (columns_line, pairs_line) = (Value::from("columns"), Value::from("pairs"));
    let (a, b) = (Value::from("A"), Value::from("B"));
    assert_eq!(kinds, [(&columns_line, &a), (&columns_line, &b), (&pairs_line, &Value::Null)]);
    assert_eq!(lines[1]["conflicts"], 0, "each client knows the versions of its keys");

    // A run in which every operation fails is an error.
    let too_large = (base::limits::VALUE_BYTES_MAX + 1).to_string();
    let failed = bench(&[&["columns", "--at", &target, "--value-bytes", &too_large][..], &short].concat());
    failed.failed(3, &["no operation succeeded"]);
}

#[test]
fn load_bench_reports_memory() {
    let cluster = Cluster::of(1);
    let (at, data) = (&cluster.endpoints(1)[0], cluster.data().display().to_string());
    let done = bench(&["load", "--rows", "500", "--at", at, "--server-data", &data, "--json"]);
    let figures: Value = serde_json::from_str(&done.ok()).expect("JSON");
    assert_eq!((&figures["bench"], &figures["rows"]), (&"load".into(), &500.into()), "{figures}");
    assert!(figures["resident_kib"]["node-1"].as_u64() > Some(0), "{figures}");
    let rows = cluster.columns(&["scan", "bench-load", "--json"]).ok();
    assert_eq!(rows.lines().count(), 500);
}

#[test]
fn log_bench_append_read_follow() {
    let cluster = Cluster::of(3);
    let [json, plot] = ["figures.jsonl", "figure.svg"].map(|name| cluster.scratch().path().join(name));
    let [json, plot] = [&json, &plot].map(|path| path.to_str().expect("UTF-8"));
    let data = cluster.data().display().to_string();
    let log = |arguments: &[&str]| {
        let common =
            ["log", "--data", &data, "--output", json, "--plot", plot, "--duration", "200ms", "--warmup", "0s"];
        bench(&[&common, arguments].concat())
    };

    let shown = log(&["--stripes", "1,2", "--floor", "--rounds", "1", "--batch", "3"]).ok();
    assert!(shown.contains("append x2") && shown.contains("floor, 1 CPU"), "{shown}");
    let lines = objects(json);
    let kinds: Vec<_> = lines.iter().map(|line| (line["bench"].as_str(), line["operation"].as_str())).collect();
    let (turn, pairs) = (|operation| (Some("log"), Some(operation)), (Some("pairs"), None));
    let floors = [turn("floor, 1 CPU"), turn("floor, 2 CPUs")];
    assert_eq!(kinds, [&floors[..], &[turn("append"); 2], &[pairs; 3]].concat());
    let append = &lines[2];
    assert!(append["operations"].as_u64() > Some(0) && append["errors"] == 0, "{append}");
    assert_eq!(append["entries"].as_u64(), append["operations"].as_u64().map(|appends| 3 * appends), "{append}");
    assert!(append["server_cpu_us_per_entry"].is_f64() && append["client_cpu_us_per_operation"].is_f64(), "{append}");
    assert!(fs::read_to_string(plot).expect("a figure was drawn").contains("append, 3 x 512 B, 2 stripes of 2 copies"));

    log(&["--read", "random", "--entries", "400", "--clients", "16"]).ok();
    log(&["--read", "follow", "--entries", "405", "--batch", "10", "--value-bytes", "100"]).ok();
    let [random, follow] = &objects(json)[lines.len()..] else { panic!("two more") };
    assert!(random["operations"].as_u64() > Some(0) && random["errors"] == 0, "{random}");
    assert_eq!((&follow["operations"], &follow["entries"]), (&41.into(), &405.into()), "{follow}");
    assert!(fs::read_to_string(plot).expect("a figure was drawn").contains("10 x 100 B, x1"));
}

#[test]
fn log_bench_kills_sequencer_node() {
    let _slot = ClusterSlot::take();
    let scratch = Scratch::new();
    let mut command = loggos();
    command.env("TMPDIR", scratch.path()).args(["bench", "log", "--kill", "--runs", "1", "--clients", "3"]);
    command.args(["--warmup", "200ms", "--duration", "2s", "--json"]);
    let lines = Done::of(&mut command, COMMAND_PATIENCE).ok();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let kinds: Vec<_> = lines.iter().map(|line| (line["bench"].as_str(), line["leader"].as_str())).collect();
    let of = |leader| [(Some("log kill"), Some(leader)), (Some("log kill summary"), Some(leader))];
    assert_eq!(kinds, [of("elsewhere"), of("same")].concat());
    for run in [&lines[0], &lines[2]] {
        assert_eq!(run["gaps_us"].as_array().map(Vec::len), Some(3), "{run}");
        assert!(run["operations"].as_u64() > Some(0) && run["longest_gap_us"].as_u64() > Some(0), "{run}");
    }
    assert_eq!(fs::read_dir(scratch.path()).expect("the directory is there").count(), 0, "its directory is left");
}

#[test]
fn disk_bench_compares_plots_and_kills() {
    let cluster = Cluster::of(3);
    for disk in ["one", "three"] {
        let replicas = if disk == "one" { "1" } else { "3" };
        cluster.disk(&["create", disk, "--size", "2M", "--replicas", replicas]).ok();
    }
    let [json, plot] = ["figures.jsonl", "figure.svg"].map(|name| cluster.scratch().path().join(name));
    let [json, plot] = [&json, &plot].map(|path| path.to_str().expect("UTF-8"));
    let uri = |disk: &str| format!("nbd://127.0.0.1:{}/{disk}", cluster.nbd_port(1));
    let short = ["--span", "1000000", "--duration", "200ms", "--warmup", "50ms", "--output", json];
    let sizes = ["--bytes", "512,8192", "--depth", "2", "--operation", "mixed", "--plot", plot];
    let against = ["--pairs", "1", "--against", &uri("one")];
    let done = bench(&[&["disk", &uri("three")][..], &short, &sizes, &against].concat());
    assert!(done.ok().contains("A / B"));
    let kinds: Vec<_> = objects(json).iter().map(|line| (line["bench"].clone(), line["side"].clone())).collect();
    let (of_disk, of_pairs) = (Value::from("disk"), Value::from("pairs"));
    let sides = ["A", "B", "A", "B"].map(|side| (of_disk.clone(), side.into()));
    assert_eq!(kinds[..4], sides);
    assert_eq!(kinds[4..], [(of_pairs.clone(), Value::Null), (of_pairs, Value::Null)]);
    let figure = fs::read_to_string(plot).expect("a figure was drawn");
    assert!(figure.contains("Bandwidth by request size") && figure.contains("/three random mixed, depth 2"));
    bench(&[&["disk", &uri("absent")][..], &short].concat()).failed(2, &["no such disk"]);

    let data = cluster.data().display().to_string();
    let kill = ["disk", "--throughput", plot, "--data", &data, "--json", "--bytes", "65536", "--depth", "4"];
    let lines = bench(&[&kill[..], &short[..6]].concat()).ok();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let victims: Vec<_> = lines.iter().map(|line| (line["bench"].as_str(), line["victim"].as_str())).collect();
    assert_eq!(victims, ["follower", "leader"].map(|victim| (Some("disk throughput"), Some(victim))));
    for run in &lines {
        assert!(run["before_megabytes_per_second"].as_f64() > Some(0.0), "{run}");
        assert!(run["longest_request_ms"].as_f64() > Some(0.0), "{run}");
    }
    assert!(fs::read_to_string(plot).expect("a figure was drawn").contains("leader killed"));
    assert!(!cluster.disk(&["list"]).ok().contains("loggos-bench"), "its disk is left");
}

#[test]
fn failover_bench_kills_leader_and_cleans_up() {
    let _slot = ClusterSlot::take();
    let scratch = Scratch::new();
    let mut command = loggos();
    command.env("TMPDIR", scratch.path()).args(["bench", "failover", "--runs", "1", "--signal", "kill"]);
    command.args(["--warmup", "200ms", "--duration", "2s", "--value-bytes", "100", "--json"]);
    let lines = Done::of(&mut command, COMMAND_PATIENCE).ok();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [run, summary] = &lines[..] else { panic!("a run and a summary: {lines:?}") };
    assert_eq!((&run["bench"], &run["signal"], &run["run"]), (&"failover".into(), &"kill".into(), &1.into()));
    assert!(run["longest_gap_us"].as_u64() > Some(0) && run["leader_before"].is_u64(), "{run}");
    assert_eq!((&summary["bench"], &summary["runs"]), (&"failover summary".into(), &1.into()));
    assert_eq!(fs::read_dir(scratch.path()).expect("the directory is there").count(), 0, "its directory is left");
}
