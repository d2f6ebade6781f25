//! The sessions of a client, one a range, opened when a range is first written: the async skin of [`Ledger`] and
//! [`Ranges`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use api::columns::SessionStamp;
use base::KeyRange;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard, Notify};

use crate::ranges::Ranges;
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

/// The sessions of one table, as far as they are open.
#[derive(Debug, Default)]
pub(crate) struct Table {
    open: Mutex<Ranges<Arc<Session>>>,
    /// Who opens a session holds it, and all others without one wait: they may want the very same.
    opening: AsyncMutex<()>,
}

impl Table {
    /// The session of the range that holds a key.
    pub(crate) fn session(&self, key: &[u8]) -> Option<Arc<Session>> {
        self.with(|open| open.find(key).cloned())
    }

    /// The right to open a session.
    pub(crate) async fn opening(&self) -> AsyncMutexGuard<'_, ()> {
        self.opening.lock().await
    }

    /// A session was opened in a range.
    pub(crate) fn opened(&self, range: KeyRange, session: u64) -> Arc<Session> {
        let session = Arc::new(Session::new(session));
        self.with(|open| open.keep(range, Arc::clone(&session)));
        session
    }

    /// Forgets a session that has expired, and no other: a newer one may be in its place.
    pub(crate) fn forget(&self, expired: &Arc<Session>) {
        self.with(|open| open.forget(|session| Arc::ptr_eq(session, expired)));
    }

    fn with<T>(&self, look: impl FnOnce(&mut Ranges<Arc<Session>>) -> T) -> T {
        look(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// All sessions of a client: at most one a range that it wrote.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    tables: Mutex<HashMap<String, Arc<Table>>>,
}

impl Sessions {
    pub(crate) fn table(&self, table: &str) -> Arc<Table> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        match tables.get(table) {
            Some(found) => Arc::clone(found),
            None => Arc::clone(tables.entry(table.to_owned()).or_default()),
        }
    }
}
