//! Access to the coordination log.

use std::sync::Arc;

use base::Monotonic;
use node::request::Request;
use sharedlog::request::LogRequest;

use crate::node::{Completions, LocalMachine};

/// Sends requests to a log. Each request gets exactly one response through the [`Completions`] of the transport, at the
/// latest shortly after its deadline, unless the process ends.
pub trait LogTransport {
    /// Submits a request without waiting.
    fn submit(&self, number: u64, deadline: Monotonic, request: LogRequest);
}

/// Sends requests to the node of this process.
#[derive(Debug)]
pub struct NodeTransport<M> {
    machine: M,
    completions: Arc<Completions>,
}

impl<M: LocalMachine> NodeTransport<M> {
    pub fn new(machine: M, completions: Arc<Completions>) -> Self {
        Self { machine, completions }
    }
}

impl<M: LocalMachine> LogTransport for NodeTransport<M> {
    fn submit(&self, number: u64, deadline: Monotonic, request: LogRequest) {
        // A log's request does not have to start soon.
        self.machine.submit(Request::Log(request), (deadline, deadline), &self.completions, number);
    }
}
