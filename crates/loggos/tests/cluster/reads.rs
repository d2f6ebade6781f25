//! The kinds of read: each replica can answer, and one live node suffices for a client that permits stale data.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use sdk::{Client, Error, Reads, Version};
use serde_json::Value;

use crate::harness::{Cluster, Done, runtime, wait_for};

fn as_of(done: &Done) -> Value {
    let line = done.err.lines().last().unwrap_or_default();
    let state: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    state["as_of"].clone()
}

#[test]
fn all_read_levels_on_every_replica() {
    let cluster = Cluster::of(3);
    let run = |arguments: &[&str]| cluster.columns(arguments);
    run(&["create", "t", "--retention", "5s"]).ok();
    let first = run(&["put", "t", "k", "c", "old"]).ok().trim().to_owned();
    run(&["put", "t", "k", "c", "new"]).ok();
    for node in cluster.nodes() {
        let table = cluster.client(node).table("t");
        let strong = runtime().block_on(table.read("k").consistency(Reads::Anywhere).send());
        let read = strong.expect("a majority lives");
        assert_eq!((&*read.cells[0].value, read.as_of), (&b"new"[..], None), "node {node}");
    }
    let past = run(&["get", "t", "k", "c", "--as-of", &first, "--json"]);
    assert_eq!(as_of(&past)["timestamp"], first);
    assert!(past.ok().contains("\"value\":\"old\""));
    let future = "9000000000000000000";
    for node in cluster.nodes() {
        cluster.columns_of(node, &["get", "t", "k", "--as-of", future]).failed(1, &[future, "is in the future"]);
    }
    // A new leader waits for renewals of holds first.
    wait_for("what is old is forgotten", Duration::from_secs(60), || {
        let refused = run(&["get", "t", "k", "--as-of", "1"]);
        refused.err.contains("is before").then(|| refused.failed(1, &["timestamp 1 is before"]))
    });

    let shown = wait_for("an age is known", Duration::from_secs(5), || {
        let shown = run(&["get", "t", "k", "c", "--timeline", "--json"]);
        as_of(&shown)["age_ms"].as_u64().is_some().then_some(shown)
    });
    assert!(as_of(&shown)["age_ms"].as_u64() < Some(2_000), "{shown:?}");
    assert!(run(&["scan", "t", "--reads", "timeline"]).ok().contains("new"));
    run(&["get", "t", "k", "--stale-ok"]).failed(2, &["--timeline"]);
}

/// A hold keeps a moment readable beyond the retention, also in a range that is split off meanwhile. Without it, or once
/// it is released, reads of the moment are refused.
#[test]
fn held_snapshot_outlives_retention() {
    /// A new leader waits 30 s for renewals of holds before it drops anything.
    const FORGOTTEN: Duration = Duration::from_secs(90);
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t", "--retention", "1s", "--split-at", "m"]).ok();
    runtime().block_on(async {
        let client = cluster.client(1);
        let table = client.table("t");
        let put = async |value: &'static str| {
            let mut last = Version::ABSENT;
            for key in ["a", "n", "z"] {
                last = last.max(table.write(key).put("c", value).send().await.expect("every node runs"));
            }
            last
        };
        // The ranges refuse a moment once their watermarks are above it.
        let refused = async |moment| {
            let until = Instant::now() + FORGOTTEN;
            for key in ["a", "n", "z"] {
                loop {
                    put("new").await;
                    match client.snapshot_at(moment).get("t", key, "c").await {
                        Err(Error::Precondition(reason)) if reason.contains("the oldest readable one") => break,
                        other => assert!(other.is_ok() && Instant::now() < until, "{other:?}"),
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        };
        let moment = put("old").await;
        let hold = client.snapshot_at(moment).hold("t").await.expect("it is recent");
        put("new").await;
        table.split("s").await.expect("every node runs");
        refused(Version::from_nanos(moment.as_nanos() - 1)).await;
        for key in ["a", "n", "z"] {
            let cell = hold.get(key, "c").await.expect("it is held").expect("it was written");
            assert_eq!(&*cell.value, b"old", "row {key}");
        }
        assert_eq!(hold.scan().expect("it is held").rows().next().await.expect("rows").expect("a row").key, "a");
        let late = client.snapshot_at(Version::from_nanos(moment.as_nanos() - 1)).hold("t").await;
        assert!(matches!(&late, Err(Error::Precondition(reason)) if reason.contains("is before")), "{late:?}");
        hold.release().await;
        refused(moment).await;
    });
}

/// A client at a follower that observes a token is not behind the client that read at the leader. Without the token it
/// often is: followers learn of a commit later.
#[test]
fn timeline_token_orders_reads_of_two_clients() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    cluster.columns(&["put", "t", "k", "c", "0"]).ok();
    let (_, leader) = cluster.leader("t").expect("a table that was written to has a leader");
    let at = |node| Client::connect([format!("127.0.0.1:{}", cluster.grpc_port(node))]).expect("an address");
    let (first, second) = (at(leader), at(leader % 3 + 1));
    runtime().block_on(async {
        let read = async |client: &Client| {
            let table = client.table("t");
            let read = table.read("k").consistency(Reads::Timeline { stale_ok: false }).send().await;
            read.expect("every node runs").cells.pop().expect("it was written").version
        };
        for number in 1..=50 {
            let put = first.table("t").write("k").put("c", number.to_string()).send().await;
            put.expect("every node runs");
            let seen = read(&first).await;
            let token = first.timeline_token().expect("a small token").to_string();
            second.observe(&token.parse().expect("a token"));
            let follows = read(&second).await;
            assert!(follows >= seen, "version {follows} was read after {seen} had been seen");
        }
    });
}

#[test]
fn stale_read_with_one_live_node() {
    let cluster = Cluster::of(3);
    let run = |arguments: &[&str]| cluster.columns(arguments);
    run(&["create", "t"]).ok();
    run(&["put", "t", "k", "c", "v"]).ok();
    wait_for("the node that will be left shows it", Duration::from_secs(10), || {
        let shown = cluster.columns_of(1, &["get", "t", "k", "c", "--timeline"]);
        (shown.status == 0 && shown.out.contains('v')).then_some(())
    });
    cluster.signal(2, Signal::KILL);
    cluster.signal(3, Signal::KILL);
    // A leader without a majority steps down after two leases.
    wait_for("nobody leads", Duration::from_secs(10), || {
        let refused = run(&["get", "t", "k", "--timeline", "--timeout", "300ms"]);
        (refused.status == 3).then_some(())
    });
    let shown = run(&["get", "t", "k", "c", "--timeline", "--stale-ok"]);
    assert!(shown.err.contains("as of "), "{shown:?}");
    assert!(shown.ok().contains('v'));
    assert!(run(&["get", "t", "k", "c", "--max-staleness", "10m"]).ok().contains('v'));
    assert!(run(&["scan", "t", "--max-staleness", "10m"]).ok().contains('v'));
    run(&["get", "t", "k", "--max-staleness", "1ms", "--timeout", "500ms"]).failed(3, &[]);
    run(&["get", "t", "k", "--reads", "any", "--timeout", "500ms"]).failed(3, &[]);
    for (kind, cause, hint) in [("strong", "replicas", "(nodes 2, 3)"), ("timeline", "leader", "--stale-ok")] {
        let refused = run(&["get", "t", "k", "--reads", kind, "--timeout", "2s"]);
        refused.failed(3, &["timed out after ", cause, hint]);
    }
}
