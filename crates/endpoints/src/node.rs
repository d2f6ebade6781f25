//! Access to the node of this process, from the threads of endpoints.

use std::sync::{Arc, Mutex, PoisonError};

use base::Monotonic;
use mio::Waker;
use node::request::{Outcome, Request};

use crate::process;

/// The node of this process.
pub trait LocalMachine: Send + 'static {
    /// Serves a read immediately, if that requires neither the machine's thread nor the disk.
    fn read(&self, request: &Request) -> Option<Outcome>;

    /// Whether the replica on this node should answer a read by read index, instead of the leader.
    fn should_read_here(&self, request: &Request) -> bool;

    /// Submits a request of a thread that limits its own requests in flight. The response goes to `completions` with
    /// that number, or never if the process halts first. `times` are that of the request, and its deadline.
    fn submit(&self, request: Request, times: (Monotonic, Monotonic), completions: &Arc<Completions>, number: u64);
}

/// Responses to the requests of a thread of this node. They bypass the servers' runtime.
#[derive(Debug)]
pub struct Completions {
    queue: Mutex<Vec<(u64, Outcome)>>,
    waker: Waker,
}

impl Completions {
    /// A queue; `waker` wakes the thread when it becomes non-empty.
    pub fn new(waker: Waker) -> Self {
        Self { queue: Mutex::default(), waker }
    }

    /// Adds the response to a request, from any thread.
    pub fn post(&self, number: u64, outcome: Outcome) {
        let was_empty = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push((number, outcome));
            queue.len() == 1
        };
        if was_empty && let Err(error) = self.waker.wake() {
            process::die(&format!("can't wake a thread for its responses: {error}"));
        }
    }

    /// Takes all responses, each with the number of its request.
    pub fn take(&self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
