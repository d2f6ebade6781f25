//! The replicated state machine: tree, sessions, and the last applied batch of each server.
//!
//! All servers have equal states at equal positions. [`State::admit`] takes the entry of the next position and returns
//! the batches to apply; [`State::apply`] applies their items one by one, so that a server can send the events and the
//! reply of an item before it applies the next one.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::canary::{Bug, planted};

use crate::ErrorCode;
use crate::entry::{Batch, Entry, Item, MoveEpoch, Position, ServerId, SessionId, Stamp};
use crate::jute::{Password, Request, op};
use crate::session::Session;
use crate::tree::{Author, Tree, TreeEvent, Txn, WriteResult};

mod servers;
mod snapshot;
#[cfg(test)]
mod tests;

pub use snapshot::Restorer;

use servers::Servers;

/// The state at a log position.
#[derive(Debug, Default)]
pub struct State {
    tree: Tree,
    sessions: BTreeMap<SessionId, Session>,
    servers: Servers,
    zxid: i64,
    /// Sessions opened so far.
    opened: u64,
    /// The next position to apply.
    next: Position,
    /// Bytes of entries since the last snapshot in the log.
    log_bytes: u64,
    snapshot: snapshot::Writing,
}

/// Effects of admitting an entry.
#[derive(Debug, Default)]
pub struct Admitted {
    /// A server has joined: its nonce and its id.
    pub joined: Option<(u128, ServerId)>,
    /// The batches to apply, in order: the admitted one and those that waited for it.
    pub batches: Vec<Arc<Batch>>,
    /// Servers that were removed: their further batches are ignored.
    pub removed: Vec<ServerId>,
}

/// Effects of an item.
#[derive(Debug, Default)]
pub struct Applied {
    /// Changes of the tree, in order.
    pub events: Vec<TreeEvent>,
    /// The result, for the reply.
    pub outcome: Outcome,
}

/// The result of an item.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    #[default]
    Nothing,
    /// A session was opened or moved.
    Connected { session: SessionId, epoch: MoveEpoch },
    /// Unknown session or wrong password.
    Refused,
    /// The result of a write.
    Written(Result<WriteResult, ErrorCode>),
    /// The session was closed or has expired.
    Ended {
        session: SessionId,
        /// Whether it has expired.
        is_expired: bool,
    },
    /// The request was rejected because its session has moved or ended.
    Stale,
}

impl State {
    #[must_use]
    pub const fn tree(&self) -> &Tree {
        &self.tree
    }

    #[must_use]
    pub const fn zxid(&self) -> i64 {
        self.zxid
    }

    /// The next position to apply.
    #[must_use]
    pub const fn next(&self) -> Position {
        self.next
    }

    /// Bytes of entries since the last snapshot in the log.
    #[must_use]
    pub const fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// The sessions in order.
    pub fn sessions(&self) -> impl ExactSizeIterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    /// Whether this server has joined. Batches of other servers are ignored.
    #[must_use]
    pub fn has_server(&self, server: ServerId) -> bool {
        self.servers.contains(server)
    }

    /// Admits the entry at the next position; none if the position holds no entry of this service. `bytes` is its size
    /// in the log.
    pub fn admit(&mut self, entry: Option<&Entry>, bytes: usize) -> Admitted {
        let position = self.next;
        self.next = position.next();
        self.log_bytes += bytes as u64;
        let mut admitted = Admitted::default();
        match entry {
            None => {}
            Some(Entry::Join { nonce }) => {
                admitted.joined = Some((*nonce, ServerId(position.0)));
                admitted.removed.extend(self.servers.join(ServerId(position.0), position));
            }
            Some(Entry::Batch(batch)) => admitted.batches = self.servers.admit(batch, position),
        }
        admitted.removed.extend(self.servers.remove_inactive(position));
        admitted
    }

    /// Applies an item of a batch that was admitted.
    pub fn apply(&mut self, batch: &Batch, item: &Item) -> Applied {
        // The position admitted last, even if the batch itself was logged earlier and had to wait.
        let position = Position(self.next.0.saturating_sub(1));
        match item {
            Item::Open { timeout_ms, password } => self.open(batch, *timeout_ms, *password, position),
            Item::Move { session, password, timeout_ms } => {
                Applied::of(self.move_session(*session, *password, *timeout_ms, batch.server, position))
            }
            Item::Request { stamp, identities, op, body } => {
                if !self.is_next(*stamp) {
                    return Applied::of(Outcome::Stale);
                }
                if let Some(session) = self.sessions.get_mut(&stamp.session) {
                    session.sequence = stamp.sequence;
                    session.last_touch = position;
                }
                let ids = batch.identities.get(*identities as usize).map_or(&[][..], Vec::as_slice);
                let author = Author { session: stamp.session.0, ids };
                self.write(*op, body, author, batch.time_ms)
            }
            Item::Touch { session, epoch } => {
                if let Some(session) = self.sessions.get_mut(session).filter(|session| session.epoch == *epoch) {
                    session.last_touch = position;
                }
                Applied::default()
            }
            Item::Expire { session, last_touch } => {
                let is_due = self
                    .sessions
                    .get(session)
                    .is_some_and(|session| session.last_touch == *last_touch || planted(Bug::ExpiryIgnoresTouch));
                if is_due { self.end(*session, true, batch.time_ms) } else { Applied::default() }
            }
            Item::Collect { path, mzxid, pzxid } => {
                let txn = Txn { zxid: self.zxid + 1, time_ms: batch.time_ms };
                let Some(events) = self.tree.collect(path, *mzxid, *pzxid, txn) else { return Applied::default() };
                self.zxid = txn.zxid;
                Applied { events, outcome: Outcome::Nothing }
            }
            Item::SnapshotKept { .. } => {
                self.log_bytes = 0;
                Applied::default()
            }
        }
    }

    fn transaction(&mut self, time_ms: i64) -> Txn {
        self.zxid += 1;
        Txn { zxid: self.zxid, time_ms }
    }

    fn open(&mut self, batch: &Batch, timeout_ms: u32, password: Password, position: Position) -> Applied {
        self.transaction(batch.time_ms);
        self.opened += 1;
        let id = SessionId::nth(self.opened);
        let epoch = MoveEpoch(1);
        let server = batch.server;
        let session = Session { password, timeout_ms, server, epoch, sequence: 0, last_touch: position };
        self.sessions.insert(id, session);
        Applied::of(Outcome::Connected { session: id, epoch })
    }

    fn move_session(
        &mut self,
        id: SessionId,
        password: Password,
        timeout_ms: u32,
        server: ServerId,
        position: Position,
    ) -> Outcome {
        let Some(session) = self.sessions.get_mut(&id).filter(|session| session.password == password) else {
            return Outcome::Refused;
        };
        let epoch = MoveEpoch(session.epoch.0.wrapping_add(1));
        *session = Session { timeout_ms, server, epoch, sequence: 0, last_touch: position, ..*session };
        Outcome::Connected { session: id, epoch }
    }

    /// Whether the request belongs to the session's current connection and is the next one in sequence.
    fn is_next(&self, stamp: Stamp) -> bool {
        self.sessions.get(&stamp.session).is_some_and(|session| {
            let is_of_connection = session.epoch == stamp.epoch && session.sequence + 1 == stamp.sequence;
            is_of_connection || planted(Bug::LateRequestOfMovedSession)
        })
    }

    /// Servers validate requests before they append them; an undecodable one in the log is an error like any other.
    fn write(&mut self, op: i32, body: &[u8], author: Author<'_>, time_ms: i64) -> Applied {
        if op == op::CLOSE_SESSION {
            return self.end(SessionId(author.session), false, time_ms);
        }
        let txn = self.transaction(time_ms);
        let (result, events) = match Request::decode(op, body) {
            Ok(Request::Create(create)) => self.tree.create(&create, author, txn),
            Ok(Request::Delete(delete)) => self.tree.delete(&delete, author, txn),
            Ok(Request::SetData(set)) => self.tree.set_data(&set, author, txn),
            Ok(Request::SetAcl(set)) => {
                let result = self.tree.set_acl(&set, author);
                return Applied::of(Outcome::Written(result.map(WriteResult::SetAcl)));
            }
            Ok(Request::Multi(operations)) => {
                let (results, events) = self.tree.multi(&operations, author, txn);
                return Applied { events, outcome: Outcome::Written(Ok(WriteResult::Multi(results))) };
            }
            _ => (Err(ErrorCode::Marshalling), Vec::new()),
        };
        Applied { events, outcome: Outcome::Written(result.map(WriteResult::Operation)) }
    }

    fn end(&mut self, id: SessionId, is_expired: bool, time_ms: i64) -> Applied {
        self.sessions.remove(&id);
        let txn = self.transaction(time_ms);
        let events = if planted(Bug::EphemeralsOutliveExpiry) && is_expired {
            Vec::new()
        } else {
            self.tree.close_session(id.0, txn)
        };
        Applied { events, outcome: Outcome::Ended { session: id, is_expired } }
    }
}

impl Applied {
    fn of(outcome: Outcome) -> Self {
        Self { events: Vec::new(), outcome }
    }
}
