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
            rolled_back: false,
        })
        .collect();
    let (table, leader) = ("t".into(), Some(leader));
    let (writes_per_second, reads_per_second) = (1.5, 0.0);
    let (start, end) = ("a".into(), Some("b".into()));
    let rates = Cohort { writes_per_second, reads_per_second, ..Cohort::default() };
    let (planned_nodes, replica_count) = (vec![1, 2, 3], 3);
    let cohort =
        Cohort { cohort: 2, table, leader, epoch, replicas, start, end, planned_nodes, replica_count, ..rates };
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
        clock: Some(Clock { source: "host".into(), uncertainty_ns: Some(1_000), ..Clock::default() }),
        zookeeper: None,
        logs: Vec::new(),
        drops: Vec::new(),
        disk_attachments: Vec::new(),
        transactions: None,
        verification: None,
        catalog_lsn: Some(Lsn { epoch: 1, sequence: 1 }),
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
    assert_eq!(lag(cohort, &cohort.replicas[0]), Some(2));
    assert_eq!(cohort.writes_per_second, 3.0, "the sum of each node's own rate");
    let alive: Vec<_> = view.nodes.values().map(|node| node.alive).collect();
    assert_eq!(alive, [true, true, false]);
}

/// A row of the map for a cohort without a replica on the responding node.
pub(super) fn elsewhere(cohort: u32, table: &str, planned_nodes: Vec<u32>, replica_count: u32) -> Cohort {
    Cohort { cohort, table: table.into(), planned_nodes, replica_count, ..Cohort::default() }
}

#[test]
fn newest_map_adds_and_removes_rows() {
    let mut old = answer(1, 5, 1, vec![replica(1, 120)]);
    old.cohorts.push(elsewhere(7, "dropped", vec![3], 1));
    let mut new = answer(2, 5, 1, vec![replica(2, 120)]);
    new.cohorts[0].planned_nodes = vec![1, 2, 4];
    new.cohorts.push(elsewhere(8, "solo", vec![3], 1));
    new.catalog_lsn = Some(Lsn { epoch: 1, sequence: 2 });
    let view = View::of(&[new, old]);
    assert_eq!(view.cohorts.keys().collect::<Vec<_>>(), [&2, &8]);
    let states = |cohort: u32| {
        let replicas = view.cohorts[&cohort].replicas.iter();
        replicas.map(|replica| (replica.node, view.state(replica))).collect::<Vec<_>>()
    };
    assert_eq!((states(2), states(8)), (vec![(1, "up"), (2, "up"), (4, "down")], vec![(3, "down")]));
    assert!(view.is_led(&view.cohorts[&2]) && !view.is_led(&view.cohorts[&8]));
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
    let (nodes, cohorts) = (view.node_objects(), view.cohort_objects());
    assert_eq!(
        nodes[0],
        json!({
            "node": 1, "alive": true, "incarnation": "0000000000000007", "leaving": false, "rolled_back": false, "boot": 1,
            "troubles": [],
            "clock": {
                "source": "host", "uncertainty_ns": 1_000, "outlier": false, "transactions": true, "refusal": null,
            },
        })
    );
    assert_eq!(
        nodes[1],
        json!({ "node": 2, "alive": false, "incarnation": "0000000000000007", "leaving": false, "rolled_back": false })
    );
    let down = |node: u32| {
        json!({
            "node": node, "last_lsn": null, "committed_lsn": null, "lag": null, "doubtful": false, "state": "down",
        })
    };
    let replicas = json!([
        { "node": 1, "last_lsn": "5.120", "committed_lsn": "5.120", "lag": 0, "doubtful": false, "state": "up" },
        down(2),
        down(3),
    ]);
    let cohort = json!({
        "cohort": 2, "kind": "table", "table": "t", "log": null, "range": ["a", "b"], "leader": 1, "epoch": 5, "durability": "forced",
        "losses": 0, "bytes": 0, "configuration": null, "led": true, "planned_nodes": [1, 2, 3], "replica_count": 3, "replicas": replicas,
    });
    assert_eq!(cohorts, [cohort]);
}

/// For a second after a node was killed, the others still count it as alive.
#[test]
fn node_that_refuses_connections_is_not_alive() {
    let mut told = answer(1, 5, 1, Vec::new());
    told.nodes.iter_mut().for_each(|node| (node.alive, node.grpc) = (true, format!("a:{}", node.node)));
    let mut view = View::of(&[told]);
    assert!(view.nodes[&2].alive && view.nodes[&3].alive);
    view.refused(&["a:1".to_owned(), "a:2".to_owned()].into());
    let alive: Vec<bool> = view.nodes.values().map(|node| node.alive).collect();
    assert_eq!(alive, [true, false, true], "node 1 has responded");
}

#[test]
fn node_object_includes_zookeeper() {
    let mut told = answer(1, 5, 1, Vec::new());
    told.zookeeper =
        Some(ZooKeeper { mode: "leader".into(), sessions: 3, playback_lag_seconds: 0.5, ..ZooKeeper::default() });
    let objects = View::of(&[told]).node_objects();
    let endpoint = &objects[0]["zookeeper"];
    assert_eq!((&endpoint["mode"], &endpoint["sessions"]), (&json!("leader"), &json!(3)));
    assert_eq!((&endpoint["playback_lag"], &endpoint["playback_lag_seconds"]), (&json!(0), &json!(0.5)));
    assert_eq!(objects[1].get("zookeeper"), None);
}

#[test]
fn log_unit_is_distinct_from_catalog() {
    let told = |table: &str, log: Option<&str>| {
        let cohort = Cohort { table: table.into(), log: log.map(str::to_owned), ..Cohort::default() };
        let object = cohort_object(&View::default(), &cohort);
        (object["kind"].clone(), object["log"].clone(), owner(&cohort))
    };
    assert_eq!(told("", None), (json!("catalog"), Value::Null, "(catalog)".to_owned()));
    assert_eq!(told("t", None), (json!("table"), Value::Null, "t".to_owned()));
    assert_eq!(told("", Some("l")), (json!("log unit"), json!("l"), "(log l)".to_owned()));
    assert_eq!(told("", Some("")), (json!("log unit"), json!(""), "(log unit)".to_owned()));
}
