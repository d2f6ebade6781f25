//! The replica views that the machine publishes to the servers, which serve most reads from them on their own thread.
//! The lock is held only to copy a pointer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::CohortId;
use node::request::{Outcome, Request};
use node::{LocalRead, ReadView, Views, should_read_here};

use super::clock;

/// The newest view of each replica.
#[derive(Debug, Default)]
pub(crate) struct Published(Mutex<HashMap<CohortId, Arc<ReadView>>>);

impl Published {
    /// Replaces or removes a view.
    pub(crate) fn publish(&self, cohort: CohortId, view: Option<Arc<ReadView>>) {
        let old = match view {
            Some(view) => self.views().insert(cohort, view),
            None => self.views().remove(&cohort),
        };
        // The old view may be freed here, after the lock is released.
        drop(old);
    }

    /// Serves a read, if that requires neither the machine nor the disk. The clock is read after the rows.
    pub(crate) fn read(&self, request: &Request) -> Option<Outcome> {
        let read = LocalRead::begin(self, request)?;
        let outcome = read.evaluate()?;
        read.finish(outcome, self, clock::monotonic())
    }

    /// Whether the replica on this node should answer a read by read index, instead of the leader.
    pub(crate) fn should_read_here(&self, request: &Request) -> bool {
        should_read_here(self, request)
    }

    fn views(&self) -> MutexGuard<'_, HashMap<CohortId, Arc<ReadView>>> {
        // The map is consistent between any two of its calls, even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Views for Published {
    fn view(&self, cohort: CohortId) -> Option<Arc<ReadView>> {
        self.views().get(&cohort).cloned()
    }
}
