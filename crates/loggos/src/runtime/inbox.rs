//! The one way into the machine's thread: whatever other threads have for it goes into one queue, and it is woken only
//! when the queue was empty, so that a burst costs one wake-up.

use std::sync::{Mutex, PoisonError};

use mio::Waker;
use node::contract::{Event, ManifestId};
use store::log::{Batch, SegmentJob};
use store::manifest::ManifestWrite;

use super::files::OsFile;
use super::gateway::Incoming;

/// What other threads have for the machine.
#[derive(Debug)]
pub(crate) enum Input {
    /// A door hands in a request.
    Request(Incoming),
    /// A door hands in what a message of a stream brought.
    Requests(Vec<Incoming>),
    /// The log thread has forced a batch, and gives it back: freeing memory is not its work.
    BatchForced(Batch),
    /// A manifest is forced in both places.
    ManifestForced(ManifestId, Box<ManifestWrite<OsFile>>),
    /// Work on the disk that the machine had asked for has ended.
    Done(Event),
    /// What was to be done about a segment is done.
    SegmentDone(SegmentJob),
    /// The process is to stop cleanly.
    Stop,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Mutex<Vec<Input>>,
    waker: Waker,
}

impl Inbox {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { queue: Mutex::new(Vec::new()), waker }
    }

    /// Hands `input` to the machine.
    pub(crate) fn post(&self, input: Input) {
        let was_empty = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push(input);
            queue.len() == 1
        };
        if was_empty && let Err(error) = self.waker.wake() {
            // The machine would never hear of it: an answer owed would be silence.
            super::die(&format!("can't wake the machine's thread: {error}"));
        }
    }

    /// Takes all there is; `emptied` is where it goes, and is given in exchange for the queue's own memory.
    pub(crate) fn take(&self, emptied: &mut Vec<Input>) {
        debug_assert!(emptied.is_empty());
        std::mem::swap(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner), emptied);
    }
}
