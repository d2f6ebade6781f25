//! What the machine shows the doors of its replicas: they answer most reads from it on their own thread, with no
//! hand-over. The lock is held for as long as it takes to copy a pointer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::CohortId;
use node::request::{Outcome, Request};
use node::{DoorRead, ReadView, Views};

use super::clock;

/// The newest view of each replica here.
#[derive(Debug, Default)]
pub(crate) struct Published(Mutex<HashMap<CohortId, Arc<ReadView>>>);

impl Published {
    /// Shows a view in the place of the one before, or none.
    pub(crate) fn publish(&self, cohort: CohortId, view: Option<Arc<ReadView>>) {
        let old = match view {
            Some(view) => self.views().insert(cohort, view),
            None => self.views().remove(&cohort),
        };
        // What was in it and nowhere else is freed after the lock is given back.
        drop(old);
    }

    /// Answers a read, if that takes neither the machine nor the disk. The clock is read after the rows are.
    pub(crate) fn read(&self, request: &Request) -> Option<Outcome> {
        let read = DoorRead::begin(self, request)?;
        let outcome = read.evaluate()?;
        read.finish(outcome, self, clock::monotonic())
    }

    fn views(&self) -> MutexGuard<'_, HashMap<CohortId, Arc<ReadView>>> {
        // A map is whole between any two of its calls, whoever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Views for Published {
    fn view(&self, cohort: CohortId) -> Option<Arc<ReadView>> {
        self.views().get(&cohort).cloned()
    }
}
