//! Metrics of the disk threads. They are atomics, so that counting takes no lock.

use prometheus::{Histogram, HistogramOpts, IntCounter, Registry};

/// Upper bounds of the histogram's buckets, in seconds: from a disk with a protected cache to one that hangs.
const FORCE_SECONDS: [f64; 15] =
    [0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// The counters of a node's disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskMetrics {
    /// Records that the machine appended, ...
    pub(crate) appended_records: IntCounter,
    /// ... and their bytes.
    pub(crate) appended_bytes: IntCounter,
    pub(crate) batches: IntCounter,
    /// Bytes of batches: records, framing and padding.
    pub(crate) written_bytes: IntCounter,
    /// Time to write and force each batch.
    pub(crate) force_seconds: Histogram,
    /// Manifests forced in both places.
    pub(crate) manifests: IntCounter,
}

impl DiskMetrics {
    /// Counters of this registry.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let how_long = "Time to write and force each batch of the log, in seconds.";
        let force_seconds = HistogramOpts::new("loggos_log_force_duration_seconds", how_long);
        let force_seconds = Histogram::with_opts(force_seconds.buckets(FORCE_SECONDS.to_vec()))?;
        registry.register(Box::new(force_seconds.clone()))?;
        let written = "Bytes of batches written to the log: records, framing and padding.";
        Ok(Self {
            appended_records: counter("loggos_log_appended_records_total", "Records appended to the log.")?,
            appended_bytes: counter("loggos_log_appended_bytes_total", "Bytes of records appended to the log.")?,
            batches: counter("loggos_log_batches_total", "Batches written to the log, each by one force.")?,
            written_bytes: counter("loggos_log_written_bytes_total", written)?,
            force_seconds,
            manifests: counter("loggos_manifest_writes_total", "Manifests forced in both places.")?,
        })
    }
}
