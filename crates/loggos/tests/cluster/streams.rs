//! Request streams against real nodes: the client library's guarantees across the failure of a leader, and clients that
//! open streams and do not read.

use std::time::Duration;

use api::columns::columns_client::ColumnsClient;
use api::columns::streamed_request::Request;
use api::columns::{GetRequest, StreamRequest, StreamedRequest};
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::codegen::tokio_stream::{self, StreamExt as _};
use tonic::transport::Endpoint;

use crate::harness::{Cluster, runtime};

/// Counters, each incremented by one task.
const COUNTERS: usize = 48;
/// Final value of each.
const COUNTED: u32 = 40;
/// Streams that are not read, over four connections.
const STRANGERS: usize = 200;
/// Twice the budget for clients: the allocator returns memory with a delay, and takes it in huge pages.
const RESIDENT_KIB_MAX: u64 = 1 << 20;

/// Each put is conditional on the version returned by the last one. A put that was applied twice, or applied although
/// it was reported as failed, would make the next one fail.
async fn count(table: sdk::Table, number: usize) {
    let (key, mut version) = (format!("counter-{number:03}"), sdk::Version::ABSENT);
    for value in 0..COUNTED {
        let put = table.write(key.clone()).put_if("c", value.to_string(), version).send();
        version = put.await.unwrap_or_else(|error| panic!("put {value} of {key}: {error}"));
    }
}

#[test]
fn streamed_writes_exactly_once_on_failover() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    cluster.columns(&["put", "t", "k", "c", "v"]).ok();
    let (_, leader) = cluster.leader("t").expect("a table that was written to has a leader");
    runtime().block_on(async {
        let client = sdk::Client::streaming(cluster.endpoints(leader)).expect("addresses");
        let table = client.with_deadline(Duration::from_secs(30)).table("t");
        table.prefer_leader().await;
        let mut counters = JoinSet::new();
        for number in 0..COUNTERS {
            counters.spawn(count(table.clone(), number));
        }
        let kill = async {
            sleep(Duration::from_millis(150)).await;
            cluster.signal(leader, Signal::KILL);
        };
        let all = async { while counters.join_next().await.transpose().expect("no counter panics").is_some() {} };
        tokio::join!(kill, all);
        let last = table.get("counter-000", "c").await.expect("a read").expect("it was counted");
        assert_eq!(last.value, (COUNTED - 1).to_string());
    });
}

#[test]
fn stopped_node_ends_streams_and_clients_fail_over() {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    runtime().block_on(async {
        let client = sdk::Client::streaming(cluster.endpoints(2)).expect("addresses");
        let table = client.with_deadline(Duration::from_secs(30)).table("t");
        table.write("k").put("c", "before").send().await.expect("a write");
        cluster.signal(2, Signal::TERM);
        for number in 0..200 {
            let put = table.write("k").put("c", number.to_string()).send().await;
            put.unwrap_or_else(|error| panic!("write {number} while the node stops: {error}"));
        }
    });
}

/// Messages with many reads, without ending the stream.
fn many_reads() -> impl tokio_stream::Stream<Item = StreamRequest> {
    let get = GetRequest { table: "t".into(), key: "large".into(), ..GetRequest::default() };
    let request = |number| StreamedRequest { number, deadline_ms: 5_000, request: Some(Request::Get(get.clone())) };
    let message = StreamRequest { requests: (0..1_024).map(request).collect() };
    tokio_stream::iter(vec![message; 8]).chain(tokio_stream::pending())
}

/// Streams that are not read, at the leader of the table or at a node that forwards to it.
fn strangers_at(leads: bool) {
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    cluster.columns(&["put", "t", "k", "c", "v"]).ok();
    let (_, leader) = cluster.leader("t").expect("a table that was written to has a leader");
    let node = if leads { leader } else { leader % 3 + 1 };
    runtime().block_on(async {
        let table = cluster.client(node).table("t");
        table.write("large").put("c", vec![7; 64 << 10]).send().await.expect("a write");
        let mut strangers = Vec::new();
        for _ in 0..4 {
            let endpoint =
                Endpoint::from_shared(format!("http://127.0.0.1:{}", cluster.grpc_port(node))).expect("an address");
            let channel = endpoint.connect().await.expect("the port is open");
            for _ in 0..STRANGERS / 4 {
                // The server neither reads from nor closes them.
                let mut client = ColumnsClient::new(channel.clone());
                strangers.push(timeout(Duration::from_secs(10), client.stream(many_reads())).await.expect("a stream"));
            }
        }
        for number in 0..100 {
            let put = table.write(format!("{number:03}")).put("c", "v").send().await;
            put.unwrap_or_else(|error| panic!("write {number} beside the strangers: {error}"));
        }
        sleep(Duration::from_secs(2)).await;
        let resident = cluster.memory_kib(node, "VmHWM:");
        println!("{STRANGERS} streams, {resident} KiB resident at most");
        assert!(resident < RESIDENT_KIB_MAX, "{resident} KiB with {STRANGERS} streams");
        table.get("large", "c").await.expect("a read").expect("it was put");
    });
    assert!(cluster.pid(node).is_some(), "the node ended");
}

#[test]
fn slow_stream_clients_at_leader_bound_memory() {
    strangers_at(true);
}

#[test]
fn slow_stream_clients_at_follower_bound_memory() {
    strangers_at(false);
}
