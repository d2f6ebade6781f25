//! Metrics of the bytes between nodes.

use prometheus::{IntCounter, Registry};

/// Counters that all connections share.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    pub(super) sent: IntCounter,
    pub(super) received: IntCounter,
}

impl Traffic {
    /// Counters of this registry.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        Ok(Self {
            sent: counter("loggos_peer_sent_bytes_total", "Bytes sent to other nodes.")?,
            received: counter("loggos_peer_received_bytes_total", "Bytes received from other nodes.")?,
        })
    }
}
