//! What the doors know of the node's work beyond single requests: shared by all doors of a node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use node::request::{Request, Response, Status};
use prometheus::Registry;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::activity::{Activity, SAMPLE_INTERVAL, Seen};
use crate::calls::Calls;
use crate::limits::{STATUS_GUARD, STATUS_TIME_MAX};
use crate::{Gateway, Held, metrics, process};

/// Counts, samples and tells.
#[derive(Debug)]
pub struct Observer {
    registry: Registry,
    pub(crate) calls: Arc<Calls>,
    pub(crate) activity: Activity,
    /// Where the console is served; empty if it isn't.
    pub(crate) console: String,
}

impl Observer {
    /// For a node whose console is there. `registry` holds what else it counts.
    ///
    /// # Errors
    /// When the registry has metrics of our names already.
    pub fn new(registry: Registry, console: Option<SocketAddr>) -> Result<Self, prometheus::Error> {
        let calls = Arc::new(Calls::register(&registry)?);
        let console = console.map(|address| address.to_string()).unwrap_or_default();
        Ok(Self { registry, calls, activity: Activity::default(), console })
    }

    /// Samples what the node does, for ever.
    pub(crate) async fn watch<G: Gateway>(&self, gateway: &G) {
        let mut ticks = interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Ok(status) = status(gateway).await else { continue };
            let (at, requests, resident_bytes) = (Instant::now(), self.calls.of_data(), process::resident_bytes());
            self.activity.sample(Seen { at, requests, resident_bytes, status: &status });
        }
    }

    /// All metrics, as text.
    pub(crate) async fn metrics<G: Gateway>(&self, gateway: &G) -> Result<String, prometheus::Error> {
        metrics::text(&self.registry, status(gateway).await.ok().as_ref())
    }
}

/// The machine's status, or why it isn't to be had.
pub(crate) async fn status<G: Gateway>(gateway: &G) -> Result<Status, String> {
    let guard: Duration = STATUS_TIME_MAX + STATUS_GUARD;
    match timeout(guard, gateway.submit(Request::Status, STATUS_TIME_MAX, Held::default())).await {
        Ok(Ok(Response::Status(status))) => Ok(*status),
        Ok(Ok(_)) => Err("the node's answer does not fit the question".to_owned()),
        Ok(Err(failure)) => Err(failure.to_string()),
        Err(_) => Err(format!("the node's machine did not answer within {} ms", guard.as_millis())),
    }
}
