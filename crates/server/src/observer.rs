//! Observations across requests, shared by all servers of a node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::HostPort;
use node::request::{Request, Response, Status};
use prometheus::Registry;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::activity::{Activity, ActivitySample, SAMPLE_INTERVAL};
use crate::calls::Calls;
use crate::limits::{STATUS_GUARD, STATUS_TIME_MAX};
use crate::zookeeper::Endpoint;
use crate::{Gateway, Held, metrics, nbd, process};

/// Counters, samples and metrics.
#[derive(Debug)]
pub struct Observer {
    registry: Registry,
    pub(crate) calls: Arc<Calls>,
    pub(crate) activity: Activity,
    /// The console's address; empty without a console.
    pub(crate) console: String,
    /// The ZooKeeper endpoint, if the node has one.
    pub(crate) zookeeper: Option<Arc<Endpoint>>,
    pub(crate) nbd: Arc<nbd::Endpoint>,
}

impl Observer {
    /// An observer for a node with this console address. `registry` holds the node's other metrics.
    ///
    /// # Errors
    /// When the registry already has metrics with these names.
    pub fn new(registry: Registry, console: Option<&HostPort>) -> Result<Self, prometheus::Error> {
        let calls = Arc::new(Calls::register(&registry)?);
        let console = console.map(|address| address.to_string()).unwrap_or_default();
        let (activity, nbd) = (Activity::default(), Arc::new(nbd::Endpoint::register(&registry)?));
        Ok(Self { registry, calls, activity, console, zookeeper: None, nbd })
    }

    /// Adds the ZooKeeper endpoint to metrics, status and console.
    #[must_use]
    pub fn with_zookeeper(self, endpoint: Arc<Endpoint>) -> Self {
        Self { zookeeper: Some(endpoint), ..self }
    }

    /// State that the NBD endpoint publishes.
    #[must_use]
    pub fn nbd(&self) -> &Arc<nbd::Endpoint> {
        &self.nbd
    }

    /// Samples the node's activity forever.
    pub(crate) async fn watch<G: Gateway>(&self, gateway: &G) {
        let zookeeper = async {
            if let Some(endpoint) = &self.zookeeper {
                endpoint.watch(gateway).await;
            }
        };
        tokio::join!(zookeeper, self.sample(gateway));
    }

    async fn sample<G: Gateway>(&self, gateway: &G) {
        let mut ticks = interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Ok(status) = status(gateway).await else { continue };
            let (at, requests, resident_bytes) = (Instant::now(), self.calls.of_data(), process::resident_bytes());
            self.activity.sample(ActivitySample { at, requests, resident_bytes, status: &status });
        }
    }

    /// All metrics in Prometheus's text format.
    pub(crate) async fn metrics<G: Gateway>(&self, gateway: &G) -> Result<String, prometheus::Error> {
        let report = self.zookeeper.as_ref().and_then(|endpoint| endpoint.report());
        metrics::text(&self.registry, status(gateway).await.ok().as_ref(), report.as_deref())
    }
}

/// The machine's status, or the reason why it is unavailable.
pub(crate) async fn status<G: Gateway>(gateway: &G) -> Result<Status, String> {
    let guard: Duration = STATUS_TIME_MAX + STATUS_GUARD;
    match timeout(guard, gateway.submit(Request::Status, STATUS_TIME_MAX, Held::default())).await {
        Ok(Ok(Response::Status(status))) => Ok(*status),
        Ok(Ok(_)) => Err("unexpected response type".to_owned()),
        Ok(Err(failure)) => Err(failure.to_string()),
        Err(_) => Err(format!("the node's state machine did not respond within {} ms", guard.as_millis())),
    }
}
