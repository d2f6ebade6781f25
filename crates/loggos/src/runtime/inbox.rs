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

#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Mutex<Vec<Input>>,
    waker: Waker,
}

impl Inbox {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { queue: Mutex::new(Vec::new()), waker }
    }

    /// Queues an input for the machine.
    pub(crate) fn post(&self, input: Input) {
        let was_empty = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push(input);
            queue.len() == 1
        };
        if was_empty && let Err(error) = self.waker.wake() {
            // The machine would never see the input, and its requests would never be answered.
            super::die(&format!("can't wake the machine's thread: {error}"));
        }
    }

    /// Takes all inputs; `emptied` must be empty, and its allocation becomes the queue's.
    pub(crate) fn take(&self, emptied: &mut Vec<Input>) {
        debug_assert!(emptied.is_empty());
        std::mem::swap(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner), emptied);
    }
}
