use super::*;

pub(super) fn replica(node: u32, sequence: u64) -> Replica {
    let lsn = Some(Lsn { epoch: 5, sequence });
    Replica { node, last_lsn: lsn, committed_lsn: lsn, doubtful: false }
}

pub(super) fn answer(node: u32, epoch: u64, leader: u32, replicas: Vec<Replica>) -> StatusResponse {
    let nodes = (1..=3)
        .map(|other| sdk::admin::Node {
            node: other,
            incarnation: 7,
            alive: other == node,
            grpc: format!("h:{other}"),
            leaving: false,
        })
        .collect();
    let (table, leader) = ("t".into(), Some(leader));
    let (writes_per_second, reads_per_second) = (1.5, 0.0);
    let (start, end) = ("a".into(), Some("b".into()));
    let rates = Cohort { writes_per_second, reads_per_second, ..Cohort::default() };
    let cohort = Cohort { cohort: 2, table, leader, epoch, replicas, start, end, ..rates };
    let (http, activity) = (format!("h:80{node}"), None);
    let (troubles, cluster_troubles, cluster_failures) = (Vec::new(), Vec::new(), Vec::new());
    let cohorts = vec![cohort];
    StatusResponse {
        node,
        incarnation: 7,
        boot: 1,
        nodes,
        cohorts,
        http,
        activity,
        troubles,
        cluster_troubles,
        cluster_failures,
        zookeeper: None,
    }
}

#[test]
fn newest_epoch_leader_wins() {
    let stale = answer(1, 4, 1, vec![replica(1, 100), replica(2, 90), replica(3, 90)]);
    let newest = answer(2, 5, 2, vec![replica(1, 118), replica(2, 120)]);
    let view = View::of(&[stale, newest]);
    let cohort = &view.cohorts[&2];
    assert_eq!((cohort.epoch, cohort.leader), (5, Some(2)));
    assert_eq!(cohort.replicas, [replica(1, 118), replica(2, 120), replica(3, 90)]);
    assert_eq!(lag(cohort, &cohort.replicas[0]), 2);
    assert_eq!(cohort.writes_per_second, 3.0, "the sum of each node's own rate");
    let alive: Vec<_> = view.nodes.values().map(|node| node.alive).collect();
    assert_eq!(alive, [true, true, false]);
}

#[test]
fn discovered_nodes_are_queried() {
    let mut answers = vec![answer(1, 5, 1, Vec::new())];
    assert_eq!(not_queried(&answers), ["h:2", "h:3"]);
    answers.push(answer(2, 5, 1, Vec::new()));
    assert_eq!(not_queried(&answers), ["h:3"]);
}

#[test]
fn status_object_schema() {
    let view = View::of(&[answer(1, 5, 1, vec![replica(1, 120)])]);
    let objects = view.objects();
    assert_eq!(
        objects[0],
        json!({ "node": 1, "alive": true, "incarnation": 7, "leaving": false, "boot": 1, "troubles": [] })
    );
    assert_eq!(objects[1], json!({ "node": 2, "alive": false, "incarnation": 7, "leaving": false }));
    let replicas = json!([{ "node": 1, "last_lsn": "5.120", "committed_lsn": "5.120", "lag": 0, "doubtful": false }]);
    let cohort = json!({
        "cohort": 2, "kind": "table", "table": "t", "log": null, "range": ["a", "b"], "leader": 1, "epoch": 5, "durability": "forced",
        "losses": 0, "replicas": replicas,
    });
    assert_eq!(objects[3], cohort);
}

#[test]
fn node_object_includes_zookeeper() {
    let mut told = answer(1, 5, 1, Vec::new());
    told.zookeeper =
        Some(ZooKeeper { mode: "leader".into(), sessions: 3, playback_lag_seconds: 0.5, ..ZooKeeper::default() });
    let objects = View::of(&[told]).objects();
    let endpoint = &objects[0]["zookeeper"];
    assert_eq!((&endpoint["mode"], &endpoint["sessions"]), (&json!("leader"), &json!(3)));
    assert_eq!((&endpoint["playback_lag"], &endpoint["playback_lag_seconds"]), (&json!(0), &json!(0.5)));
    assert_eq!(objects[1].get("zookeeper"), None);
}

#[test]
fn log_unit_is_distinct_from_catalog() {
    let told = |table: &str, log: Option<&str>| {
        let cohort = Cohort { table: table.into(), log: log.map(str::to_owned), ..Cohort::default() };
        (cohort_object(&cohort)["kind"].clone(), cohort_object(&cohort)["log"].clone(), owner(&cohort))
    };
    assert_eq!(told("", None), (json!("catalog"), Value::Null, "(catalog)".to_owned()));
    assert_eq!(told("t", None), (json!("table"), Value::Null, "t".to_owned()));
    assert_eq!(told("", Some("l")), (json!("log unit"), json!("l"), "(log l)".to_owned()));
    assert_eq!(told("", Some("")), (json!("log unit"), json!(""), "(log unit)".to_owned()));
}
