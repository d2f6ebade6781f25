//! The sessions of a client: at most one for each range that it writes, opened by the first write to the range.

use std::collections::{BTreeMap, VecDeque};

use base::KeyRange;

use crate::ledger::Ledger;
use crate::ranges::Ranges;
use crate::{CallId, Stamp};

/// The sessions of one table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// The open sessions by range.
    open: Ranges<u64>,
    /// The call that opens a session. Only one at a time, because all waiting writes may need the same session.
    pub(crate) opening: Option<CallId>,
    /// The writes that wait for it.
    pub(crate) waiting: Vec<CallId>,
}

#[derive(Clone, Debug)]
struct ClientSession {
    ledger: Ledger,
    /// Writes that wait for the window.
    waiting: VecDeque<CallId>,
    /// Whether it is the current session of a range, so that new writes may use it.
    is_open: bool,
}

/// All sessions of a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientSessions {
    tables: BTreeMap<String, Table>,
    by_name: BTreeMap<u64, ClientSession>,
}

/// The result of requesting a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    Stamped(Stamp),
    /// The window is full: the call is woken when a write ends.
    WindowFull,
    NoSession,
}

impl ClientSessions {
    pub(crate) fn table(&mut self, table: &str) -> &mut Table {
        if !self.tables.contains_key(table) {
            self.tables.insert(table.to_owned(), Table::default());
        }
        self.tables.get_mut(table).expect("it was put there if it was missing")
    }

    /// Requests a stamp for a write of a key.
    pub(crate) fn begin(&mut self, call: CallId, table: &str, key: &[u8]) -> Begun {
        let Some(name) = self.tables.get(table).and_then(|table| table.open.find(key)).copied() else {
            return Begun::NoSession;
        };
        let Some(session) = self.by_name.get_mut(&name) else { return Begun::NoSession };
        match session.ledger.begin() {
            Some(stamp) => Begun::Stamped(stamp),
            None => {
                session.waiting.push_back(call);
                Begun::WindowFull
            }
        }
    }

    /// Ends a write. Returns the waiting calls for which the window has room now.
    pub(crate) fn end(&mut self, stamp: Stamp) -> Vec<CallId> {
        let Some(session) = self.by_name.get_mut(&stamp.session) else { return Vec::new() };
        session.ledger.end(stamp.sequence);
        let room = usize::try_from(session.ledger.room()).unwrap_or(usize::MAX);
        let woken = session.waiting.drain(..room.min(session.waiting.len())).collect();
        self.forget_idle(stamp.session);
        woken
    }

    /// Adds a new session. Returns the calls that waited for the windows of the sessions it replaces.
    pub(crate) fn opened(&mut self, table: &str, name: u64, range: KeyRange) -> Vec<CallId> {
        let table = self.table(table);
        let before: Vec<u64> = table.open.iter().copied().collect();
        table.open.keep(range, name);
        let after: Vec<u64> = table.open.iter().copied().collect();
        let session = ClientSession { ledger: Ledger::new(name), waiting: VecDeque::new(), is_open: true };
        self.by_name.insert(name, session);
        let replaced = before.into_iter().filter(|session| !after.contains(session));
        replaced.flat_map(|session| self.close(session)).collect()
    }

    /// No new write uses this session: it has expired, or must keep an outcome. Returns the calls that waited for its
    /// window.
    pub(crate) fn retire(&mut self, table: &str, name: u64) -> Vec<CallId> {
        self.table(table).open.forget(|session| *session == name);
        self.close(name)
    }

    fn close(&mut self, name: u64) -> Vec<CallId> {
        let Some(session) = self.by_name.get_mut(&name) else { return Vec::new() };
        session.is_open = false;
        let woken = std::mem::take(&mut session.waiting).into();
        self.forget_idle(name);
        woken
    }

    fn forget_idle(&mut self, name: u64) {
        if self.by_name.get(&name).is_some_and(|session| !session.is_open && session.ledger.is_idle()) {
            self.by_name.remove(&name);
        }
    }
}
