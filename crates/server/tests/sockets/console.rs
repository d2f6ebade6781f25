//! The console over real sockets, together with a gRPC server, in front of a node with scripted responses.

use base::budget::ClientBudgets;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use api::columns::GetRequest;
use api::columns::columns_client::ColumnsClient;
use base::{KeyRange, Lsn};
use node::request::{
    AppliedCatalog, ClockStatus, CohortStatus, Counters, NodeStatus, Outcome, ReplicaStatus, Request, Response, Status,
    TransactionCounts,
};
use prometheus::Registry;
use server::{Held, Replies, Ticketed};
use state_machine::Failure;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::Endpoint;

/// A connection that must be closed is closed within this.
const CLOSED_PATIENCE: Duration = Duration::from_secs(9);

/// A node that leads one table and knows another node.
#[derive(Default)]
struct StubGateway {
    is_silent: AtomicBool,
}

impl server::Gateway for StubGateway {
    async fn submit(&self, request: Request, deadline: Duration, _: Held) -> Outcome {
        if self.is_silent.load(Ordering::Relaxed) {
            tokio::time::sleep(deadline * 10).await;
        }
        match request {
            Request::Status => Ok(Response::Status(Box::new(status()))),
            Request::Table { table, .. } => Err(Failure::UnknownTable(table)),
            _ => Err(Failure::Unavailable("not in this test".into())),
        }
    }

    fn submit_all(&self, batch: Vec<Ticketed>, _replies: &Arc<Replies>) {
        panic!("the console has no streams: {batch:?}");
    }
}

fn founded() -> server::Founded {
    let member = base::Member { node: base::NodeId(1), incarnation: base::Incarnation(1) };
    let own =
        server::Own { member, format: 1, protocol: 1, peer: String::new(), grpc: String::new(), peers: Vec::new() };
    let genesis = server::Genesis { cluster: base::ClusterId(1), members: vec![member] };
    server::Founded::new(own, genesis)
}

fn status() -> Status {
    let replica = |node: u32, sequence: u64| ReplicaStatus {
        node,
        last_lsn: Lsn::new(5, sequence),
        committed_lsn: Lsn::new(5, 118),
        doubtful: false,
    };
    let cohort = CohortStatus {
        cohort: 2,
        log: None,
        table: "odd\"\\\n".into(),
        range: KeyRange::all(),
        leader: Some(1),
        epoch: 5,
        replicas: vec![replica(1, 120), replica(2, 110)],
        applied: Lsn::new(5, 117),
        durability: base::Durability::Memory,
        losses: 1,
        configuration: None,
        sessions: 0,
        prepared: 1,
        bytes: 700,
        writes: 40,
        reads: 50,
    };
    let node = |node: u32| NodeStatus {
        node,
        incarnation: 7,
        alive: true,
        leaving: false,
        rolled_back: node == 2,
        grpc: String::new(),
    };
    let counters = Counters { takeovers: 3, state_catch_ups: 2, ..Counters::default() };
    let nodes = vec![node(1), node(2)];
    let (log, durability) = (Some("l".into()), base::Durability::Forced);
    let unit = CohortStatus { cohort: 3, table: String::new(), log, durability, losses: 0, ..cohort.clone() };
    let (troubles, cluster_troubles, cluster_failures) = (vec![], vec![], vec![]);
    let cohorts = vec![cohort, unit];
    Status {
        node: 1,
        incarnation: 7,
        boot: 9,
        clock: ClockStatus { uncertainty: Some(base::Duration::from_micros(250)), ..ClockStatus::default() },
        nodes,
        cohorts,
        catalog: AppliedCatalog::default(),
        counters,
        transactions: TransactionCounts { committed: 5, aborted_by_conflict: 2, lock_waits: 4, ..Default::default() },
        members_removed: 1,
        verification: None,
        troubles,
        cluster_troubles,
        cluster_failures,
    }
}

struct Document(AtomicU32);

impl server::console::Cluster for Document {
    async fn status(&self) -> Arc<str> {
        format!("{{\"asked\":{}}}", self.0.fetch_add(1, Ordering::Relaxed)).into()
    }

    async fn sql(&self) -> Arc<str> {
        "{\"sessions\":[]}".into()
    }
}

/// Both servers of one node; they shut down when this is dropped.
struct Served {
    http: SocketAddr,
    grpc: SocketAddr,
    node: Arc<StubGateway>,
    _close: watch::Sender<()>,
}

impl Served {
    async fn start(connections_max: usize) -> Self {
        let http_listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let grpc_listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = |listener: &TcpListener| listener.local_addr().expect("a bound socket");
        let (http, grpc) = (address(&http_listener), address(&grpc_listener));
        let node = Arc::new(StubGateway::default());
        let observer =
            Arc::new(server::Observer::new(Registry::new(), Some(&http.into())).expect("unique metric names"));
        let (close, closing) = watch::channel(());
        let shutdown = |mut closing: watch::Receiver<()>| async move {
            let _ = closing.changed().await;
        };
        let cluster = Document(AtomicU32::new(0));
        let (gateway, watching) = (Arc::clone(&node), Arc::clone(&observer));
        let closed = shutdown(closing.clone());
        tokio::spawn(server::console::serve(http_listener, connections_max, gateway, watching, cluster, closed));
        tokio::spawn(server::serve(
            grpc_listener,
            usize::MAX,
            ClientBudgets::new(base::limits::CLIENT_MEMORY_BYTES_DEFAULT),
            Arc::clone(&node),
            Arc::new(founded()),
            observer,
            shutdown(closing),
        ));
        Self { http, grpc, node, _close: close }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.http).await.expect("the port is open")
    }

    /// Sends bytes and returns everything received until the connection closes.
    async fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        // The request may be refused before all of it is sent.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let read =
            timeout(CLOSED_PATIENCE, stream.read_to_end(&mut answer)).await.expect("the connection was not closed");
        assert!(read.is_ok() || !answer.is_empty(), "{read:?}");
        String::from_utf8(answer).expect("text")
    }

    async fn ask(&self, method: &str, path: &str) -> HttpResponse {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: console\r\nConnection: close\r\n\r\n");
        HttpResponse::of(&self.exchange(request.as_bytes()).await)
    }

    async fn get(&self, path: &str) -> HttpResponse {
        self.ask("GET", path).await
    }

    /// The gRPC server still works.
    async fn check_grpc(&self) {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc)).expect("an address");
        let mut columns = ColumnsClient::new(endpoint.connect().await.expect("the endpoint is open"));
        let get = GetRequest { table: "t".into(), key: "k".into(), ..GetRequest::default() };
        let status = columns.get(get).await.expect_err("there is no such table");
        assert_eq!(status.code(), Code::NotFound, "{status}");
    }
}

#[derive(Debug)]
struct HttpResponse {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

impl HttpResponse {
    fn of(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
        let headers = lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.into(), value.into()));
        Self { status, headers: headers.collect(), body: body.to_owned() }
    }

    #[track_caller]
    fn check(&self, status: u16, kind: &str) {
        assert_eq!((self.status, &*self.headers["content-type"]), (status, kind), "{self:?}");
        assert!(self.headers["content-security-policy"].starts_with("default-src 'self';"), "{self:?}");
        assert_eq!(self.headers["x-content-type-options"], "nosniff");
        assert_eq!(self.headers["cache-control"], "no-store");
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

#[tokio::test]
async fn page_loads_no_external_assets() {
    let served = Served::start(usize::MAX).await;
    let page = served.get("/").await;
    page.check(200, "text/html; charset=utf-8");
    assert!(!page.body.contains("http://") && !page.body.contains("https://"), "the page loads an external asset");
    assert!(
        !page.body.contains("style=") && !page.body.contains("onclick"),
        "the content security policy forbids inline styles and scripts"
    );
    for (path, kind) in [
        ("/style.css", "text/css; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        assert!(page.body.contains(path), "{path}");
        let asset = served.get(path).await;
        asset.check(200, kind);
        assert!(!asset.body.contains("innerHTML") && !asset.body.contains("https://"), "{path}");
    }
}

#[tokio::test]
async fn unknown_path_and_bad_method_statuses() {
    let served = Served::start(usize::MAX).await;
    served.get("/nothing").await.check(404, TEXT);
    served.get("/../../etc/passwd").await.check(404, TEXT);
    for path in ["/", "/metrics", "/healthz", "/api/status"] {
        let answer = served.ask("DELETE", path).await;
        assert_eq!((answer.status, &*answer.headers["allow"]), (405, "GET,HEAD"), "{answer:?}");
    }
    let head = served.ask("HEAD", "/").await;
    assert_eq!((head.status, &*head.body), (200, ""));
    let status = served.get("/api/status").await;
    status.check(200, "application/json");
    assert_eq!(status.body, "{\"asked\":0}");
}

#[tokio::test]
async fn health_reflects_machine_response() {
    let served = Served::start(usize::MAX).await;
    let healthy = served.get("/healthz").await;
    healthy.check(200, TEXT);
    assert_eq!(healthy.body, "ok");
    served.node.is_silent.store(true, Ordering::Relaxed);
    let began = Instant::now();
    let unhealthy = served.get("/healthz").await;
    unhealthy.check(503, TEXT);
    assert!(unhealthy.body.contains("did not respond"), "{unhealthy:?}");
    assert!(began.elapsed() < Duration::from_secs(3));
    let metrics = served.get("/metrics").await;
    assert!(
        metrics.body.contains("\nloggos_machine_up 0\n"),
        "metrics of the process are exported without the state machine"
    );
}

/// Parses the text format: series names with labels, and values.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line| str::rsplit_once(line, ' ').and_then(|(name, value)| Some((name, value.parse().ok()?)));
    lines.map(|line| sample(line).unwrap_or_else(|| panic!("not a sample: {line:?}"))).collect()
}

/// The metric families that have a comment of this kind.
fn commented<'a>(text: &'a str, kind: &str) -> Vec<&'a str> {
    let comments = text.lines().filter_map(|line| line.strip_prefix("# ")?.strip_prefix(kind)?.strip_prefix(' '));
    comments.map(|comment| comment.split(' ').next().unwrap_or_default()).collect()
}

#[tokio::test]
async fn prometheus_metric_names_and_format() {
    let served = Served::start(usize::MAX).await;
    served.check_grpc().await;
    let answer = served.get("/metrics").await;
    answer.check(200, "text/plain; version=0.0.4");
    let (types, helps) = (commented(&answer.body, "TYPE"), commented(&answer.body, "HELP"));
    assert_eq!(types, helps, "each family has both");
    assert_eq!(types.len(), BTreeSet::from_iter(&types).len(), "each family once");
    let samples = samples(&answer.body);
    for name in samples.keys() {
        let family = name.split('{').next().unwrap_or_default();
        let of = |suffix: &str| family.strip_suffix(suffix).is_some_and(|family| types.contains(&family));
        assert!(types.contains(&family) || ["_bucket", "_sum", "_count"].into_iter().any(of), "{name} has no type");
    }
    for name in
        ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"]
    {
        assert!(samples[name] > 0.0, "{name}");
    }

    let expected = [
        (r#"grpc_server_started_total{grpc_method="Get",grpc_service="loggos.columns.v1.Columns"}"#, 1.0),
        (
            r#"grpc_server_handled_total{grpc_code="NotFound",grpc_method="Get",grpc_service="loggos.columns.v1.Columns"}"#,
            1.0,
        ),
        (r#"grpc_server_handling_seconds_count{grpc_method="Get",grpc_service="loggos.columns.v1.Columns"}"#, 1.0),
        ("loggos_machine_up", 1.0),
        ("loggos_boot", 9.0),
        (r#"loggos_peer_alive{peer="2"}"#, 1.0),
        (r#"loggos_peer_rolled_back{peer="2"}"#, 1.0),
        ("loggos_clock_uncertainty_seconds", 0.000_25),
        ("loggos_clock_outlier", 0.0),
        ("loggos_clock_transactions", 1.0),
        ("loggos_clock_contradictions_total", 0.0),
        ("loggos_takeovers_total", 3.0),
        ("loggos_truncations_total", 0.0),
        ("loggos_transaction_commits_total", 5.0),
        (r#"loggos_transaction_aborts_total{reason="conflict"}"#, 2.0),
        (r#"loggos_transaction_aborts_total{reason="unknown"}"#, 0.0),
        ("loggos_transactions_prepared", 2.0),
        ("loggos_lock_waits_total", 4.0),
        ("loggos_configuration_removals_total", 1.0),
        (r#"loggos_catch_ups_total{kind="state"}"#, 2.0),
        ("loggos_checkpoints_total", 0.0),
        ("loggos_sessions_expired_total", 0.0),
        ("loggos_splits_total", 0.0),
        (r#"loggos_cohort_leader{cohort="2",table="odd\"\\\n"}"#, 1.0),
        (r#"loggos_cohort_leader{cohort="3",table="(log l)"}"#, 1.0),
        (r#"loggos_cohort_epoch{cohort="2",table="odd\"\\\n"}"#, 5.0),
        (r#"loggos_cohort_last_sequence{cohort="2",table="odd\"\\\n"}"#, 120.0),
        (r#"loggos_cohort_committed_sequence{cohort="2",table="odd\"\\\n"}"#, 118.0),
        (r#"loggos_cohort_applied_sequence{cohort="2",table="odd\"\\\n"}"#, 117.0),
        (r#"loggos_cohort_doubtful{cohort="2",table="odd\"\\\n"}"#, 0.0),
        (r#"loggos_cohort_writes_total{cohort="2",table="odd\"\\\n"}"#, 40.0),
        (r#"loggos_cohort_reads_total{cohort="2",table="odd\"\\\n"}"#, 50.0),
        (r#"loggos_cohort_lag_entries{cohort="2",replica="2",table="odd\"\\\n"}"#, 10.0),
    ];
    for (name, value) in expected {
        assert_eq!(samples.get(name), Some(&value), "{name} in\n{}", answer.body);
    }
}

#[tokio::test]
async fn rejects_oversized_requests() {
    let served = Served::start(usize::MAX).await;
    let head = "GET /healthz HTTP/1.1\r\nHost: console\r\n";
    let large = format!("{head}X: {}\r\n\r\n", "x".repeat(40 << 10));
    assert_eq!(HttpResponse::of(&served.exchange(large.as_bytes()).await).status, 431);
    let many = format!("{head}{}\r\n", "X: y\r\n".repeat(100));
    assert_eq!(HttpResponse::of(&served.exchange(many.as_bytes()).await).status, 431);
    let path = format!("GET /{} HTTP/1.1\r\nHost: console\r\n\r\n", "x".repeat(70 << 10));
    assert!([414, 431].contains(&HttpResponse::of(&served.exchange(path.as_bytes()).await).status));
    let body = format!("{head}Connection: close\r\nContent-Length: 1000000000\r\n\r\nbegun");
    HttpResponse::of(&served.exchange(body.as_bytes()).await).check(413, TEXT);
    let chunks = format!("{head}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n");
    HttpResponse::of(&served.exchange(chunks.as_bytes()).await).check(413, TEXT);
    assert_eq!(served.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn http_garbage_closes_only_its_connection() {
    let served = Served::start(usize::MAX).await;
    for garbage in [&[0xff; 4_096][..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"] {
        let mut stream = served.connect().await;
        stream.write_all(garbage).await.expect("the port takes bytes");
        let mut answer = Vec::new();
        let closed = timeout(CLOSED_PATIENCE, stream.read_to_end(&mut answer)).await;
        assert!(closed.is_ok(), "still open after {garbage:?}");
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{garbage:?} was answered");
    }
    assert_eq!(served.get("/healthz").await.status, 200);
    served.check_grpc().await;
}

#[tokio::test]
async fn incomplete_requests_time_out() {
    let served = Served::start(64).await;
    let mut connections = Vec::new();
    for number in 0..60 {
        let mut connection = served.connect().await;
        if number % 2 == 0 {
            connection.write_all(b"GET /metrics HTTP/1.1\r\nHo").await.expect("the port takes bytes");
        }
        connections.push(connection);
    }
    let began = Instant::now();
    assert_eq!(served.get("/healthz").await.status, 200);
    served.check_grpc().await;
    assert!(began.elapsed() < Duration::from_secs(2), "other clients were delayed");
    // A client that sends a byte now and then gets no more time than one that sends nothing.
    let mut slow = connections.pop().expect("one of them");
    let dripping = async {
        while slow.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    timeout(CLOSED_PATIENCE, dripping).await.expect("the slow connection was not closed");
    for mut connection in connections {
        let mut answer = Vec::new();
        let closed = timeout(CLOSED_PATIENCE, connection.read_to_end(&mut answer)).await;
        assert!(closed.is_ok(), "an idle connection is still open");
    }
}

#[tokio::test]
async fn connection_limit_and_release() {
    let served = Served::start(4).await;
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut stream = served.connect().await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: console\r\n\r\n").await.expect("the port takes bytes");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 200");
        kept.push(stream);
    }
    let mut refused = served.connect().await;
    let mut answer = Vec::new();
    let closed = timeout(Duration::from_secs(2), refused.read_to_end(&mut answer)).await.expect("closed at once");
    assert!(closed.is_err() || answer.is_empty(), "{answer:?}");
    served.check_grpc().await;
    drop(kept);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(served.get("/healthz").await.status, 200);
}
