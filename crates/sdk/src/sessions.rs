//! The sessions of a client, one a table, opened when a table is first written: the async skin of [`Ledger`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use api::columns::SessionStamp;
use tokio::sync::{Mutex as AsyncMutex, Notify};

use crate::session::Ledger;

/// A session that is open, as far as known.
#[derive(Debug)]
pub(crate) struct Session {
    ledger: Mutex<Ledger>,
    /// Told when a write ends, so that a full window may have room.
    ended: Notify,
}

impl Session {
    pub(crate) fn new(session: u64) -> Self {
        Self { ledger: Mutex::new(Ledger::new(session)), ended: Notify::new() }
    }

    /// A place in the session's window, once there is one.
    pub(crate) async fn begin(self: &Arc<Self>) -> Ticket {
        loop {
            let ended = self.ended.notified();
            if let Some(stamp) = self.with(Ledger::begin) {
                // The window may have moved by more than one.
                self.ended.notify_one();
                return Ticket { session: Arc::clone(self), stamp };
            }
            ended.await;
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut Ledger) -> T) -> T {
        // A ledger is whole between any two of its calls, whoever panicked.
        look(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A write under way. When it goes, even because the caller lost interest, nobody will ask about the write again.
#[derive(Debug)]
pub(crate) struct Ticket {
    session: Arc<Session>,
    stamp: SessionStamp,
}

impl Ticket {
    pub(crate) fn stamp(&self) -> SessionStamp {
        self.stamp
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.session.with(|ledger| ledger.end(self.stamp.sequence));
        self.session.ended.notify_one();
    }
}

/// The place of one table's session. Who opens it holds the lock, and all others wait for that one session.
pub(crate) type Slot = Arc<AsyncMutex<Option<Arc<Session>>>>;

/// All sessions of a client: at most one a table that it wrote.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    tables: Mutex<HashMap<String, Slot>>,
}

impl Sessions {
    pub(crate) fn slot(&self, table: &str) -> Slot {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        match tables.get(table) {
            Some(slot) => Arc::clone(slot),
            None => Arc::clone(tables.entry(table.to_owned()).or_default()),
        }
    }

    /// Forgets a session that has expired, unless a newer one is in its place.
    pub(crate) async fn forget(&self, table: &str, expired: &Arc<Session>) {
        let slot = self.slot(table);
        let mut session = slot.lock().await;
        if session.as_ref().is_some_and(|current| Arc::ptr_eq(current, expired)) {
            *session = None;
        }
    }
}
