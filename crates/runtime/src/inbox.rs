//! The input queue of the machine's thread for all other threads. The machine is woken only when the queue was empty,
//! so that a burst costs one wake-up.

use std::sync::{Mutex, PoisonError};

use mio::Waker;
use node::contract::{Event, ManifestId};
use store::log::{Batch, SegmentJob};
use store::manifest::ManifestWrite;

use super::files::OsFile;
use super::gateway::Incoming;
use super::resolver::Resolved;

/// An input from another thread.
#[derive(Debug)]
pub(crate) enum Input {
    /// A request from a server.
    Request(Incoming),
    /// The requests of one stream message.
    Requests(Vec<Incoming>),
    /// A forced batch, returned by the log thread, which should not spend time on freeing memory.
    BatchForced(Batch),
    /// A manifest was forced in both places.
    ManifestForced(ManifestId, Box<ManifestWrite<OsFile>>),
    /// Disk work that the machine requested has completed.
    Done(Event),
    /// A segment was prepared or removed.
    SegmentDone(SegmentJob),
    /// The result of a lookup of a peer's host name.
    Resolved(Resolved),
    /// The process must stop cleanly.
    Stop,
}

const STOPPING: &str = "the node is stopping";

impl Input {
    /// Refuses the requests of an input that the machine has not taken, so that nothing was done. Clients then go to
    /// another node at once.
    fn refuse(self) {
        match self {
            Self::Request(incoming) => incoming.refuse(STOPPING),
            Self::Requests(all) => all.into_iter().for_each(|incoming| incoming.refuse(STOPPING)),
            _ => {}
        }
    }
}

#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Mutex<Queue>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Queue {
    inputs: Vec<Input>,
    /// The machine takes no more.
    is_closed: bool,
}

impl Inbox {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { queue: Mutex::default(), waker }
    }

    /// Queues an input for the machine. Once it has ended, requests are refused.
    pub(crate) fn post(&self, input: Input) {
        let was_empty = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if queue.is_closed {
                drop(queue);
                return input.refuse();
            }
            queue.inputs.push(input);
            queue.inputs.len() == 1
        };
        if was_empty && let Err(error) = self.waker.wake() {
            // The machine would never see the input, and its requests would never be answered.
            super::die(&format!("can't wake the machine's thread: {error}"));
        }
    }

    /// Takes all inputs; `emptied` must be empty, and its allocation becomes the queue's.
    pub(crate) fn take(&self, emptied: &mut Vec<Input>) {
        debug_assert!(emptied.is_empty());
        std::mem::swap(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner).inputs, emptied);
    }

    /// The machine has ended: requests that it has not taken are refused, and all later ones.
    pub(crate) fn close(&self) {
        let left = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.is_closed = true;
            std::mem::take(&mut queue.inputs)
        };
        left.into_iter().for_each(Input::refuse);
    }
}

#[cfg(test)]
mod tests {
    use base::Monotonic;
    use mio::{Poll, Token};
    use node::request::Request;
    use server::Held;
    use state_machine::Failure;

    use super::super::gateway::MachineGateway;
    use super::*;
    use crate::views::Published;

    /// A request that no machine takes must not wait until its deadline.
    #[test]
    fn closed_inbox_refuses_requests() {
        let poll = Poll::new().unwrap();
        let inbox = std::sync::Arc::new(Inbox::new(Waker::new(poll.registry(), Token(0)).unwrap()));
        let gateway = MachineGateway::new(std::sync::Arc::clone(&inbox), std::sync::Arc::new(Published::default()));
        let ask = || gateway.enqueue(Request::Status, Monotonic::NEVER, Held::default()).unwrap();
        let mut before = ask();
        assert!(before.try_recv().is_err(), "it waits for the machine");
        inbox.close();
        for mut answer in [before, ask()] {
            assert!(matches!(answer.try_recv(), Ok(Err(Failure::Unavailable(_)))));
        }
    }
}
