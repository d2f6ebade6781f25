//! State shared between the NBD endpoint and the other servers of a node: the attachments, and the metrics of their
//! requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use base::{Duration, Timestamp};
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// Upper bounds of the histogram's buckets, in seconds.
const SECONDS: [f64; 14] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// A connection through which a client has attached a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub disk: String,
    /// The client's address.
    pub client: SocketAddr,
    /// The name under which it holds the disk; none: it shares the disk with others.
    pub holder: Option<String>,
    /// When it attached the disk.
    pub since: Timestamp,
}

/// The kind of a request, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Read,
    /// A write, a trim or a zeroing.
    Change,
    /// A flush, a query of the allocation or a request to cache data.
    Other,
}

/// The endpoint of a node. Its thread publishes the attachments after each change.
#[derive(Debug)]
pub struct Endpoint {
    attachments: Mutex<Arc<[Attachment]>>,
    attached: IntGauge,
    reads: OfKind,
    changes: OfKind,
    others: OfKind,
    failures: IntCounter,
}

/// The metrics of the requests of one kind.
#[derive(Debug)]
struct OfKind {
    bytes: IntCounter,
    seconds: Histogram,
}

impl Endpoint {
    /// The metrics in this registry, and no attachments.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let attached =
            IntGauge::new("loggos_nbd_attachments", "Connections through which NBD clients have attached disks.")?;
        let failures = IntCounter::new("loggos_nbd_failures_total", "Requests of NBD clients that failed.")?;
        let bytes = Opts::new("loggos_nbd_bytes_total", "Bytes that NBD clients asked to read or change.");
        let bytes = IntCounterVec::new(bytes, &["kind"])?;
        let seconds = HistogramOpts::new(
            "loggos_nbd_request_duration_seconds",
            "Time from a request of an NBD client to its reply, in seconds.",
        );
        let seconds = HistogramVec::new(seconds.buckets(SECONDS.to_vec()), &["kind"])?;
        registry.register(Box::new(attached.clone()))?;
        registry.register(Box::new(failures.clone()))?;
        registry.register(Box::new(bytes.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        let of_kind = |kind: &str| OfKind {
            bytes: bytes.with_label_values(&[kind]),
            seconds: seconds.with_label_values(&[kind]),
        };
        let [reads, changes, others] = ["read", "change", "other"].map(of_kind);
        Ok(Self { attachments: Mutex::new(Arc::from([])), attached, reads, changes, others, failures })
    }

    /// Replaces the published attachments by those of this moment.
    pub fn publish(&self, all: Vec<Attachment>) {
        self.attached.set(i64::try_from(all.len()).unwrap_or(i64::MAX));
        *self.attachments.lock().unwrap_or_else(PoisonError::into_inner) = all.into();
    }

    /// All attachments, in no order.
    #[must_use]
    pub fn attachments(&self) -> Arc<[Attachment]> {
        Arc::clone(&self.attachments.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A request for this many bytes was answered after this time.
    pub fn answered(&self, kind: RequestKind, bytes: u64, after: Duration, is_failure: bool) {
        let of_kind = match kind {
            RequestKind::Read => &self.reads,
            RequestKind::Change => &self.changes,
            RequestKind::Other => &self.others,
        };
        of_kind.bytes.inc_by(bytes);
        of_kind.seconds.observe(after.0 as f64 / 1e9);
        if is_failure {
            self.failures.inc();
        }
    }
}
