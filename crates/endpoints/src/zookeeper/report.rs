//! Metrics and status of the endpoint, for the four-letter commands, `/metrics`, `loggos status` and the console.
//! Metrics that ZooKeeper has too use the names of its Prometheus exporter and of `mntr`, so that existing dashboards
//! and alerts work.

use std::time::Instant;

use coordination::server::Latency;
use server::zookeeper::{Metric, Report, Role, Value};

use super::Service;
use crate::clock;

/// The server's mode, as ZooKeeper names it.
pub(super) fn mode(service: &Service) -> &'static str {
    if service.server.is_read_only() {
        return "read-only";
    }
    role(service).mode()
}

pub(super) fn role(service: &Service) -> Role {
    match service.settings.endpoint.role() {
        Some((role, _)) => role,
        None if service.settings.nodes == 1 => Role::Standalone,
        None => Role::Follower,
    }
}

pub(super) fn outstanding(service: &Service) -> usize {
    service.server.clients().map(|client| client.outstanding).sum()
}

pub(super) fn latency(service: &Service) -> Latency {
    let statistics = service.server.statistics();
    statistics.reads.merged(statistics.writes)
}

/// The status for `loggos status` and the console, with all metrics.
pub(super) fn report(service: &Service) -> Report {
    let server = &service.server;
    let state = server.state();
    let mut metrics = zookeeper_metrics(service);
    metrics.extend(further_metrics(service));
    Report {
        mode: mode(service),
        sessions: state.sessions().len() as u64,
        znodes: state.tree().node_count() as u64,
        watches: server.watches().count() as u64,
        connections: server.clients().len() as u64,
        outstanding_requests: outstanding(service) as u64,
        mean_latency_ms: latency(service).mean_ms(),
        lag: service.settings.endpoint.lag(sharedlog::Position(state.next().0), Instant::now()),
        metrics,
    }
}

const fn gauge(name: &'static str, help: &'static str, value: u64) -> Metric {
    Metric { name, help, value: Value::Gauge(value) }
}

const fn real(name: &'static str, help: &'static str, value: f64) -> Metric {
    Metric { name, help, value: Value::Real(value) }
}

const fn counter(name: &'static str, help: &'static str, value: u64) -> Metric {
    Metric { name, help, value: Value::Counter(value) }
}

/// The metrics printed by `mntr`, in ZooKeeper's order where it has one.
pub(super) fn zookeeper_metrics(service: &Service) -> Vec<Metric> {
    let server = &service.server;
    let (state, statistics, traffic) = (server.state(), server.statistics(), &service.clients.traffic);
    let (tree, watches, latency) = (state.tree(), server.watches(), latency(service));
    let (nodes, others_alive) = service.settings.endpoint.nodes();
    let nodes = if nodes == 0 { service.settings.nodes as usize } else { nodes };
    let uptime = clock::monotonic().since(service.started).as_millis();
    let mut metrics = vec![
        gauge("ephemerals_count", "Ephemeral znodes.", tree.ephemeral_count() as u64),
        gauge("num_alive_connections", "Clients connected to this server.", server.clients().len() as u64),
        real("avg_latency", "Mean latency of requests, in milliseconds.", latency.mean_ms()),
        gauge("outstanding_requests", "Requests without a reply.", outstanding(service) as u64),
        gauge("znode_count", "Znodes.", tree.node_count() as u64),
        gauge("global_sessions", "Sessions of the whole service.", state.sessions().len() as u64),
        gauge("local_sessions", "Sessions local to this server (always 0).", 0),
        gauge("packets_sent", "Frames sent to clients.", traffic.sent),
        gauge("packets_received", "Frames received from clients.", traffic.received),
        gauge("watch_count", "Watches of the clients of this server.", watches.count() as u64),
        gauge("min_latency", "Shortest latency of a request, in milliseconds.", latency.min.as_millis()),
        gauge("max_latency", "Longest latency of a request, in milliseconds.", latency.max.as_millis()),
        gauge("approximate_data_size", "Bytes of the znodes' data.", tree.data_bytes()),
        gauge("uptime", "Milliseconds since this server started.", uptime),
        gauge("quorum_size", "Nodes of the cluster.", nodes as u64),
        gauge("watch_bytes", "Bytes of the watched paths.", watches.path_bytes() as u64),
    ];
    if role(service) == Role::Leader {
        let since = service.settings.endpoint.role().map(|(_, since)| since.elapsed().as_millis());
        let led_for = since.and_then(|since| u64::try_from(since).ok()).unwrap_or(0);
        let sizes = statistics.batch_bytes;
        metrics.extend([
            gauge("leader_uptime", "Milliseconds since this node became the log's sequencer.", led_for),
            gauge("learners", "Other nodes of the cluster.", nodes.saturating_sub(1) as u64),
            gauge("synced_followers", "Other nodes that are alive.", others_alive as u64),
            gauge("last_proposal_size", "Bytes of the last batch of this server.", sizes.last),
            gauge("min_proposal_size", "Bytes of its smallest batch.", sizes.min),
            gauge("max_proposal_size", "Bytes of its largest batch.", sizes.max),
        ]);
    }
    metrics.extend([
        counter("auth_failed_count", "Rejected authentication attempts.", statistics.rejected_identities),
        counter("connection_rejected", "Connections rejected because of a connection limit.", traffic.rejected),
        counter(
            "connection_drop_count",
            "Connections closed because a buffer was full (slow consumers).",
            traffic.dropped,
        ),
        counter("connection_request_count", "Connect requests.", statistics.connects),
        counter("bytes_received_count", "Bytes of frames received from clients.", traffic.received_bytes),
        counter("response_bytes", "Bytes of frames sent to clients.", traffic.sent_bytes),
        counter("stale_sessions_expired", "Sessions expired by proposals of this server.", statistics.expired),
        counter("snap_count", "Snapshots written to the log by this server.", statistics.snapshots),
    ]);
    metrics
}

/// Metrics that only `/metrics` has.
fn further_metrics(service: &Service) -> Vec<Metric> {
    let server = &service.server;
    let (state, statistics) = (server.state(), server.statistics());
    let lag = service.settings.endpoint.lag(sharedlog::Position(state.next().0), Instant::now());
    let snapshot_age = clock::monotonic().since(server.snapshot_seen()).0 as f64 / 1e9;
    let [reads, writes] = [statistics.reads, statistics.writes];
    vec![
        counter("readlatency_count", "Completed reads.", reads.count),
        counter("readlatency_sum", "Sum of their latencies, in milliseconds.", reads.sum.as_millis()),
        counter("updatelatency_count", "Completed writes.", writes.count),
        counter("updatelatency_sum", "Sum of their latencies, in milliseconds.", writes.sum.as_millis()),
        gauge(
            "loggos_zookeeper_read_only",
            "1 if the log accepts no appends, so that only read-only sessions are served; otherwise 0.",
            u64::from(server.is_read_only()),
        ),
        gauge(
            "loggos_zookeeper_leader",
            "1 if the log's sequencer is on this node; otherwise 0.",
            u64::from(matches!(role(service), Role::Leader | Role::Standalone)),
        ),
        gauge("loggos_zookeeper_applied_position", "The next position of the log to apply.", state.next().0),
        gauge("loggos_zookeeper_playback_lag_positions", "Positions of the log not applied yet.", lag.positions),
        real("loggos_zookeeper_playback_lag_seconds", "Age of the oldest of them, in seconds.", lag.seconds),
        counter("loggos_zookeeper_batches_total", "Batches of writes appended to the log.", statistics.batches),
        counter("loggos_zookeeper_batch_items_total", "Writes, and other items of these batches.", statistics.items),
        gauge("loggos_zookeeper_log_bytes", "Bytes of log since the newest snapshot.", state.log_bytes()),
        real(
            "loggos_zookeeper_snapshot_age_seconds",
            "Seconds since the newest snapshot appeared in the log, or since this server started.",
            snapshot_age,
        ),
    ]
}
