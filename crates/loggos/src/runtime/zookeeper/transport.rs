//! How requests reach the coordination log.

use std::sync::Arc;

use base::Monotonic;
use node::request::Request;
use sharedlog::request::LogRequest;

use super::super::gateway::{Completions, MachineGateway};

/// Carries requests to a log. Every request is answered once through the [`Completions`] that the transport was made
/// with, at the latest soon after its deadline, unless the process ends.
pub(crate) trait LogTransport {
    /// Submits a request without waiting.
    fn submit(&self, number: u64, deadline: Monotonic, request: LogRequest);
}

/// Carries requests to the node of this process.
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
        self.gateway.hand_in_from_thread(Request::Log(request), deadline, &self.completions, number);
    }
}
