//! The sessions of a client: at most one a range that it writes, opened when the range is first written.

use std::collections::{BTreeMap, VecDeque};

use base::KeyRange;

use crate::ledger::Ledger;
use crate::ranges::Ranges;
use crate::{CallId, Stamp};

/// The sessions in one table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// By range, as far as they are open.
    open: Ranges<u64>,
    /// The call that opens another: one at a time, since all who wait may want the very same.
    pub(crate) opening: Option<CallId>,
    /// Writes that wait for it.
    pub(crate) waiting: Vec<CallId>,
}

#[derive(Clone, Debug)]
struct Session {
    ledger: Ledger,
    /// Writes that wait for room in the window.
    waiting: VecDeque<CallId>,
    /// Whether a range has it: new writes may begin in it.
    is_open: bool,
}

/// All sessions of a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    tables: BTreeMap<String, Table>,
    by_name: BTreeMap<u64, Session>,
}

/// What a write that asks for its stamp is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    Stamped(Stamp),
    /// The window is full: it is woken when there is room.
    WindowFull,
    NoSession,
}

impl Sessions {
    pub(crate) fn table(&mut self, table: &str) -> &mut Table {
        if !self.tables.contains_key(table) {
            self.tables.insert(table.to_owned(), Table::default());
        }
        self.tables.get_mut(table).expect("it was put there if it was missing")
    }

    /// The stamp of one more write of a key.
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

    /// Nobody will ask about a write again. Gives who has waited for the room, as many as there is room for.
    pub(crate) fn end(&mut self, stamp: Stamp) -> Vec<CallId> {
        let Some(session) = self.by_name.get_mut(&stamp.session) else { return Vec::new() };
        session.ledger.end(stamp.sequence);
        let room = usize::try_from(session.ledger.room()).unwrap_or(usize::MAX);
        let woken = session.waiting.drain(..room.min(session.waiting.len())).collect();
        self.forget_idle(stamp.session);
        woken
    }

    /// A session was opened. Gives who waits for those that it took the place of.
    pub(crate) fn opened(&mut self, table: &str, name: u64, range: KeyRange) -> Vec<CallId> {
        let table = self.table(table);
        let before: Vec<u64> = table.open.iter().copied().collect();
        table.open.keep(range, name);
        let after: Vec<u64> = table.open.iter().copied().collect();
        let session = Session { ledger: Ledger::new(name), waiting: VecDeque::new(), is_open: true };
        self.by_name.insert(name, session);
        let replaced = before.into_iter().filter(|session| !after.contains(session));
        replaced.flat_map(|session| self.close(session)).collect()
    }

    /// A session has expired. Gives who waits for room in it.
    pub(crate) fn expired(&mut self, table: &str, name: u64) -> Vec<CallId> {
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
