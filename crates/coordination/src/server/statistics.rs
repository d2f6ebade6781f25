//! Statistics for operators, with ZooKeeper's definitions. They use the times of events and read no clock.

use base::{Duration, Monotonic};

use super::Server;
use crate::jute::xid;

/// Latencies of requests, from the arrival of the frame to the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    pub count: u64,
    /// Sum of their latencies.
    pub sum: Duration,
    /// The shortest; zero without requests.
    pub min: Duration,
    pub max: Duration,
}

impl Latency {
    fn add(&mut self, latency: Duration) {
        self.min = if self.count == 0 { latency } else { self.min.min(latency) };
        self.max = self.max.max(latency);
        self.sum.0 += latency.0;
        self.count += 1;
    }

    /// The combined latencies of two sets of requests.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        let min = match (self.count, other.count) {
            (0, _) => other.min,
            (_, 0) => self.min,
            _ => self.min.min(other.min),
        };
        let (count, sum) = (self.count + other.count, Duration(self.sum.0 + other.sum.0));
        Self { count, sum, min, max: self.max.max(other.max) }
    }

    /// The mean in milliseconds; zero without requests.
    #[must_use]
    pub fn mean_ms(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum.0 as f64 / self.count as f64 / 1e6 }
    }
}

/// Sizes of entries in bytes; zero without entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    pub last: u64,
    pub min: u64,
    pub max: u64,
}

/// Counters of a server since it was started, or since they were reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Reads, pings and requests that failed at this server.
    pub reads: Latency,
    /// Writes, including opened sessions.
    pub writes: Latency,
    pub connects: u64,
    pub rejected_identities: u64,
    /// Batches that the server appended, not counting retries.
    pub batches: u64,
    /// Items of these batches.
    pub items: u64,
    /// Sizes of these batches.
    pub batch_bytes: Sizes,
    /// Sessions that expired because this server proposed it.
    pub expired: u64,
    /// Snapshots that this server has written to the log.
    pub snapshots: u64,
}

/// Statistics of a client's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStatistics {
    /// Latencies of its requests.
    pub latency: Latency,
    pub last: Option<LastReply>,
    /// The xid of the newest reply to a request that is not a ping.
    pub last_xid: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastReply {
    /// The operation code of the request (see [`crate::jute::op`]).
    pub op: i32,
    /// The last transaction that the reply shows.
    pub zxid: i64,
    /// When it was sent.
    pub at: Monotonic,
    /// The latency of the request.
    pub latency: Duration,
}

/// A request that is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) xid: i32,
    pub(super) op: i32,
    pub(super) arrived: Monotonic,
    pub(super) is_write: bool,
}

impl Statistics {
    pub(super) fn appended(&mut self, bytes: usize, items: usize) {
        let bytes = bytes as u64;
        let Sizes { min, max, .. } = self.batch_bytes;
        let min = if self.batches == 0 { bytes } else { min.min(bytes) };
        self.batch_bytes = Sizes { last: bytes, min, max: max.max(bytes) };
        self.batches += 1;
        self.items += items as u64;
    }
}

impl ClientStatistics {
    /// Counts a reply; returns the latency of its request.
    pub(super) fn answered(&mut self, request: Answered, zxid: i64, now: Monotonic) -> Duration {
        let latency = now.since(request.arrived);
        self.latency.add(latency);
        self.last = Some(LastReply { op: request.op, zxid, at: now, latency });
        if request.xid != xid::PING {
            self.last_xid = Some(request.xid);
        }
        latency
    }
}

impl Server {
    /// Counters since the start or the last [`Self::reset_statistics`].
    #[must_use]
    pub const fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// When the newest snapshot was seen in the log; when this server started, if it has seen none.
    #[must_use]
    pub const fn snapshot_seen(&self) -> Monotonic {
        self.snapshot_seen
    }

    /// Resets the counters of the server.
    pub fn reset_statistics(&mut self) {
        self.statistics = Statistics::default();
    }

    /// Resets the statistics of all connections.
    pub fn reset_client_statistics(&mut self) {
        self.connections.values_mut().for_each(|client| client.statistics = ClientStatistics::default());
    }

    pub(super) fn count_latency(&mut self, is_write: bool, latency: Duration) {
        if is_write { self.statistics.writes.add(latency) } else { self.statistics.reads.add(latency) }
    }
}
