//! Access to the coordination log.

use std::sync::Arc;

use base::Monotonic;
use node::request::Request;
use sharedlog::request::LogRequest;

use super::super::gateway::{Completions, MachineGateway};

/// Sends requests to a log. Each request gets exactly one response through the [`Completions`] of the transport, at the
/// latest shortly after its deadline, unless the process ends.
pub(crate) trait LogTransport {
    /// Submits a request without waiting.
    fn submit(&self, number: u64, deadline: Monotonic, request: LogRequest);
}

/// Sends requests to the node of this process.
#[derive(Debug)]
pub(crate) struct NodeTransport {
    gateway: MachineGateway,
    completions: Arc<Completions>,
}

impl NodeTransport {
    pub(crate) fn new(gateway: MachineGateway, completions: Arc<Completions>) -> Self {
        Self { gateway, completions }
    }
}

impl LogTransport for NodeTransport {
    fn submit(&self, number: u64, deadline: Monotonic, request: LogRequest) {
        self.gateway.enqueue_from_thread(Request::Log(request), deadline, &self.completions, number);
    }
}
