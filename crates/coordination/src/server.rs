//! A translation server: clients on one side, the log on the other.
//!
//! It is a machine without IO. The driver hands in what happens ([`Server::handle`]) and ends each turn, some events
//! long, with [`Server::end_turn`], which returns all that is to be done, in order. What gathered during a turn is
//! appended as one batch; while as many batches are under way as may be, it gathers further.
//!
//! *Writes* go into the log and are answered when they are applied: their batch is durable then, and all positions before
//! it were applied (guarantee 28). The server's own batches are applied from memory once it knows their positions.
//!
//! *Reads* are answered from the tree, in the session's order. So they see the session's own writes, and never a state
//! older than one that the client has seen: a connection begins with an entry in the log, and the server plays the log
//! up to there before it answers.
//!
//! *Events* leave as soon as their change is applied, before anything that shows it.
//!
//! *Sessions* are in `liveness.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::{Duration, Monotonic, Now};
use bytes::Bytes;
use core::net::IpAddr;

use crate::acl::{self, perms};
use crate::entry::{Batch, Entry, Item, MoveEpoch, Position, ServerId, SessionId};
use crate::jute::{self, EventType, Frame, Password, Record, ReplyHeader, WatcherEvent, xid};
use crate::limits::{BATCHES_IN_FLIGHT_MAX, HELD_BYTES_MAX, RETRY};
use crate::state::{Outcome, State};
use crate::tree::TreeEvent;
use crate::watches::Watches;

mod batcher;
mod connection;
mod housekeeping;
mod liveness;
mod reads;
mod replies;
mod requests;
mod tails;
#[cfg(test)]
mod tests;

use batcher::{Batcher, Origin};
use connection::{Connection, Phase};
use housekeeping::{Collector, Snapshotter};
use liveness::Expirer;
use tails::Tails;

/// A client's connection. The driver numbers them, and never gives a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// An append that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AppendId(pub u64);

/// A tail that was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TailId(pub u64);

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// A number that no other start of any server has: the driver draws it.
    pub nonce: u128,
    /// The shortest session timeout (ZooKeeper: two ticks).
    pub session_timeout_min: Duration,
    /// The longest one (ZooKeeper: twenty ticks).
    pub session_timeout_max: Duration,
    /// How often sessions are touched: a tenth of the shortest timeout, or less.
    pub tick: Duration,
    /// Batches under way at one time, 1 to [`crate::limits::BATCHES_IN_FLIGHT_MAX`].
    pub batches_in_flight: usize,
    /// Whether every read asks for the tail first, so that it sees all writes that have ended.
    pub linearizable_reads: bool,
    /// After so long without a completed append the server is read-only, for clients that accept that. None for never.
    pub read_only_after: Option<Duration>,
    /// The digest of the administrator's name and password.
    pub super_digest: Option<String>,
    /// How often containers and TTL nodes are looked through.
    pub collect_every: Duration,
    /// How long a container stays that never had a child; none for ever.
    pub collect_unused_after: Option<Duration>,
    /// A snapshot is kept after so many bytes of log; none for never.
    pub snapshot_after_bytes: Option<u64>,
}

/// What happens to a server.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client has connected.
    Connected {
        /// Its connection.
        connection: ConnectionId,
        /// Where from.
        address: IpAddr,
        /// The password of the session if one is opened: the driver draws it, so that nobody can guess it.
        password: Password,
    },
    /// A frame has come.
    Frame {
        /// From whom.
        connection: ConnectionId,
        /// It.
        frame: Frame,
    },
    /// The connection is closed by the client, or broken.
    Disconnected {
        /// Which.
        connection: ConnectionId,
    },
    /// The client takes its replies more slowly than they are made (a slow consumer): they are held back, and nothing
    /// more is read from it.
    OutputFull {
        /// Which.
        connection: ConnectionId,
    },
    /// It has taken them.
    OutputDrained {
        /// Which.
        connection: ConnectionId,
    },
    /// An append is complete: it is durable at the tail of its chain.
    Appended {
        /// Which.
        append: AppendId,
        /// Where it lies.
        position: Position,
    },
    /// It may or may not lie in the log, and won't be completed.
    AppendFailed {
        /// Which.
        append: AppendId,
    },
    /// The log holds this. Positions come in order; those of the server's own appends may be left out.
    Played {
        /// The position.
        position: Position,
        /// The entry; none for a hole, and for what is not an entry of this service.
        entry: Option<Bytes>,
    },
    /// The tail, as of some moment after it was asked for.
    Tail {
        /// Which request is answered.
        request: TailId,
        /// All appends that were complete lie below.
        tail: Position,
    },
    /// It can't be had.
    TailFailed {
        /// Which.
        request: TailId,
    },
    /// A piece of a snapshot is known to lie in the log.
    PieceKept,
    /// So is the snapshot as a whole, with its pointer.
    SnapshotKept,
    /// The snapshot can't be kept.
    SnapshotFailed,
    /// The time of [`Action::SetTimer`] has come.
    Timer,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a frame.
    Send {
        /// To whom.
        connection: ConnectionId,
        /// It, with its length.
        frame: Bytes,
    },
    /// Close a connection once all was sent. Nothing more is expected of it.
    Close {
        /// Which.
        connection: ConnectionId,
    },
    /// Read nothing more from a connection.
    Pause {
        /// Which.
        connection: ConnectionId,
    },
    /// Read on.
    Resume {
        /// Which.
        connection: ConnectionId,
    },
    /// Append an entry. [`Event::Appended`] follows, or [`Event::AppendFailed`].
    Append {
        /// Which.
        append: AppendId,
        /// It.
        entry: Bytes,
    },
    /// Ask for the tail. [`Event::Tail`] follows, or [`Event::TailFailed`].
    RequestTail {
        /// Which.
        request: TailId,
    },
    /// Call with [`Event::Timer`] at this time; it replaces the one before.
    SetTimer(Monotonic),
    /// Keep a piece of a snapshot. [`Event::PieceKept`] follows, or after the last one [`Event::SnapshotKept`].
    KeepPiece {
        /// The snapshot: all below was applied.
        next: Position,
        /// From 0.
        index: u32,
        /// The piece.
        piece: Bytes,
        /// Whether it is the last.
        is_last: bool,
    },
    /// Everything below may go.
    Trim {
        /// The first position that is needed.
        below: Position,
    },
}

/// A client of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientStatus {
    /// Its connection.
    pub connection: ConnectionId,
    /// Its address.
    pub address: IpAddr,
    /// Its session, once it has one.
    pub session: Option<SessionId>,
    /// The session's timeout.
    pub timeout: Option<Duration>,
    /// Requests without a reply.
    pub outstanding: usize,
}

/// Whether the server takes part.
#[derive(Debug)]
enum Membership {
    /// Its entry is under way.
    Joining { nonce: u128 },
    /// It has a name.
    Member(ServerId),
}

/// What the next position will be applied from.
#[derive(Debug)]
enum Source {
    /// What the log holds.
    Log(Option<Bytes>),
    /// A batch of the server's own, and its length.
    Own(Arc<Batch>, usize),
}

/// A translation server.
///
/// It goes on as long as the log holds what it has not played. When that is trimmed, the driver drops it, and begins with
/// another one and the newest snapshot; the clients connect again.
#[derive(Debug)]
pub struct Server {
    config: Config,
    state: State,
    membership: Membership,
    connections: BTreeMap<ConnectionId, Connection>,
    by_session: BTreeMap<SessionId, ConnectionId>,
    watches: Watches<ConnectionId>,
    batcher: Batcher,
    /// Positions that are known and not applied: the next one is missing.
    ahead: BTreeMap<Position, Source>,
    tails: Tails,
    expirer: Expirer,
    collector: Collector,
    snapshotter: Snapshotter,
    is_read_only: bool,
    next_append: u64,
    next_tick: Monotonic,
    timer: Monotonic,
    /// When failed appends and tails are tried again.
    retry_at: Monotonic,
    now: Now,
    writer: jute::Writer,
    actions: Vec<Action>,
}

impl Server {
    /// A server that goes on from a state: that of a snapshot, or an empty one.
    #[must_use]
    pub fn new(config: Config, state: State, now: Now) -> Self {
        let mut server = Self {
            membership: Membership::Joining { nonce: config.nonce },
            connections: BTreeMap::new(),
            by_session: BTreeMap::new(),
            watches: Watches::default(),
            batcher: Batcher::default(),
            ahead: BTreeMap::new(),
            tails: Tails::default(),
            expirer: Expirer::new(now.monotonic),
            collector: Collector::new(now.monotonic),
            snapshotter: Snapshotter::default(),
            is_read_only: false,
            next_append: 0,
            next_tick: now.monotonic + config.tick,
            timer: Monotonic::NEVER,
            retry_at: Monotonic::NEVER,
            now,
            writer: jute::Writer::new(),
            actions: Vec::new(),
            config,
            state,
        };
        let known: Vec<_> = server.state.sessions().map(|(id, session)| (id, session.timeout_ms)).collect();
        for (session, timeout_ms) in known {
            server.expirer.touched(session, timeout_ms, now.monotonic);
        }
        server.join();
        server
    }

    /// What the log has led to.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The watches of its clients.
    #[must_use]
    pub const fn watches(&self) -> &Watches<ConnectionId> {
        &self.watches
    }

    /// Its name, once it has joined.
    #[must_use]
    pub const fn id(&self) -> Option<ServerId> {
        match self.membership {
            Membership::Member(id) => Some(id),
            Membership::Joining { .. } => None,
        }
    }

    /// Whether it only reads, since the log takes no appends.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// The clients in the order in which they connected.
    pub fn clients(&self) -> impl ExactSizeIterator<Item = ClientStatus> {
        self.connections.iter().map(|(connection, client)| ClientStatus {
            connection: *connection,
            address: client.address,
            session: client.established().map(|established| established.session),
            timeout: client.established().map(|established| established.timeout),
            outstanding: client.queue.len(),
        })
    }

    /// Takes an event.
    pub fn handle(&mut self, event: Event, now: Now) {
        self.now = now;
        match event {
            Event::Connected { connection, address, password } => {
                self.connections.insert(connection, Connection::new(address, password, now.monotonic));
            }
            Event::Frame { connection, frame } => self.frame(connection, frame),
            Event::Disconnected { connection } => self.forget(connection),
            Event::OutputFull { connection } => {
                if let Some(client) = self.connections.get_mut(&connection) {
                    client.is_output_full = true;
                    self.update_reading(connection);
                }
            }
            Event::OutputDrained { connection } => {
                if let Some(client) = self.connections.get_mut(&connection) {
                    client.is_output_full = false;
                    self.send_on(connection);
                    self.update_reading(connection);
                }
            }
            Event::Appended { append, position } => {
                if let Some(source) = self.batcher.appended(append)
                    && position >= self.state.next()
                {
                    self.ahead.insert(position, source);
                    self.play();
                }
            }
            Event::AppendFailed { append } => {
                self.batcher.failed(append);
                self.retry_at = self.retry_at.min(now.monotonic + RETRY);
            }
            Event::Played { position, entry } => {
                if position >= self.state.next() {
                    self.ahead.entry(position).or_insert(Source::Log(entry));
                    self.play();
                }
            }
            Event::Tail { request, tail } => {
                self.tails.answered(request, tail);
                self.tail_reached();
            }
            Event::TailFailed { request } => {
                self.tails.failed(request);
                self.retry_at = self.retry_at.min(now.monotonic + RETRY);
            }
            Event::PieceKept => self.next_piece(),
            Event::SnapshotKept => self.snapshot_kept(),
            Event::SnapshotFailed => self.give_up_snapshot(),
            Event::Timer => self.timer(),
        }
    }

    /// Ends a turn: batches what has gathered. Returns what is to be done, in order.
    pub fn end_turn(&mut self, now: Now) -> Vec<Action> {
        self.now = now;
        self.append_gathered();
        if let Some(request) = self.tails.request() {
            self.actions.push(Action::RequestTail { request });
        }
        let timer = self.next_tick.min(self.retry_at);
        if timer != self.timer {
            self.timer = timer;
            self.actions.push(Action::SetTimer(timer));
        }
        std::mem::take(&mut self.actions)
    }

    fn timer(&mut self) {
        self.timer = Monotonic::NEVER;
        if self.now.monotonic >= self.retry_at {
            self.retry_at = Monotonic::NEVER;
            for (append, entry) in self.batcher.retry() {
                self.actions.push(Action::Append { append, entry });
            }
            self.tails.retry();
        }
        if self.now.monotonic >= self.next_tick {
            self.next_tick = self.now.monotonic + self.config.tick;
            self.tick();
        }
    }

    /// Enters the log, with a nonce of its own.
    fn join(&mut self) {
        let Membership::Joining { nonce } = self.membership else { return };
        let append = self.new_append();
        let entry = Entry::Join { nonce }.encode();
        self.batcher.join(append, entry.clone(), self.now.monotonic);
        self.actions.push(Action::Append { append, entry });
    }

    const fn new_append(&mut self) -> AppendId {
        self.next_append += 1;
        AppendId(self.next_append)
    }

    fn append_gathered(&mut self) {
        let Membership::Member(server) = self.membership else { return };
        let in_flight = self.config.batches_in_flight.clamp(1, BATCHES_IN_FLIGHT_MAX);
        while self.batcher.can_append(in_flight) {
            let append = self.new_append();
            let entry = self.batcher.append(append, server, self.now);
            self.actions.push(Action::Append { append, entry });
        }
    }

    /// Applies what is next for as long as it is known.
    fn play(&mut self) {
        loop {
            let mut next = self.state.next();
            if planted(Bug::OwnBatchEarly)
                && let Some((own, _)) = self.ahead.iter().find(|(_, source)| matches!(source, Source::Own(..)))
            {
                next = *own;
            }
            let Some(source) = self.ahead.remove(&next) else { break };
            let (entry, bytes) = match source {
                Source::Own(batch, bytes) => (Some(Entry::Batch(batch)), bytes),
                Source::Log(None) => (None, 0),
                // What is not ours is passed over, by all servers alike.
                Source::Log(Some(bytes)) => (Entry::decode(bytes.clone()).ok(), bytes.len()),
            };
            self.apply(entry.as_ref(), bytes);
        }
        self.tail_reached();
        self.begin_snapshot_if_due();
    }

    fn apply(&mut self, entry: Option<&Entry>, bytes: usize) {
        let admitted = self.state.admit(entry, bytes);
        if let (Some((joined, id)), Membership::Joining { nonce }) = (admitted.joined, &self.membership)
            && joined == *nonce
        {
            self.membership = Membership::Member(id);
            self.batcher.joined();
        }
        for batch in admitted.batches {
            self.apply_batch(&batch);
        }
        if let Membership::Member(id) = self.membership
            && admitted.forgotten.contains(&id)
        {
            self.rejoin();
        }
    }

    fn apply_batch(&mut self, batch: &Batch) {
        let own = (self.id() == Some(batch.server)).then(|| self.batcher.applied(batch.number)).flatten();
        for (index, item) in batch.items.iter().enumerate() {
            let (origin, made) = match &own {
                Some(own) => (own.origins.get(index).copied().unwrap_or(Origin::None), own.made),
                None => (Origin::None, Monotonic::NEVER),
            };
            if let Origin::Request(connection) = origin {
                self.answer_reads_before_write(connection);
            }
            let applied = self.state.apply(batch, item);
            self.note_touch(item, &applied.outcome);
            let late = planted(Bug::WatchAfterReply);
            if !late {
                self.notify(&applied.events);
            }
            self.conclude(origin, applied.outcome, made);
            if late {
                self.notify(&applied.events);
            }
            if let Item::SnapshotKept { next } = item {
                self.other_snapshot_kept(*next);
            }
        }
        if own.is_some() {
            self.log_is_alive();
        }
    }

    /// What an item has come to, for the connection that it is of and for the session's other connections.
    fn conclude(&mut self, origin: Origin, outcome: Outcome, made: Monotonic) {
        if let Origin::Request(connection) | Origin::Touch(connection) = origin
            && outcome != Outcome::Stale
        {
            self.touched(connection, made);
        }
        match (outcome, origin) {
            (Outcome::Connected { session, epoch }, origin) => {
                self.leave_connection_before(session, epoch);
                if let Origin::Connect(connection) = origin {
                    self.connected(connection, session, epoch, made);
                }
            }
            (Outcome::Refused, Origin::Connect(connection)) => self.refuse(connection),
            (Outcome::Written(result), Origin::Request(connection)) => self.written(connection, &result),
            (Outcome::Ended { session, is_expired }, origin) => {
                self.expirer.ended(session);
                match origin {
                    Origin::Request(connection) if !is_expired => self.closed(connection),
                    _ => {
                        if let Some(connection) = self.by_session.get(&session) {
                            self.close(*connection);
                        }
                    }
                }
            }
            (Outcome::Stale, Origin::Request(connection)) => {
                debug_assert!(!self.has_session(connection), "requests of a session that has not moved are in order");
                self.close(connection);
            }
            _ => {}
        }
    }

    /// Whether the connection is still its session's.
    fn has_session(&self, connection: ConnectionId) -> bool {
        let established = self.connections.get(&connection).and_then(Connection::established);
        established.is_some_and(|established| {
            self.state.session(established.session).is_some_and(|session| session.epoch == established.epoch)
        })
    }

    /// The session has another connection: the one that this server has, if any, is closed.
    fn leave_connection_before(&mut self, session: SessionId, epoch: MoveEpoch) {
        let Some(connection) = self.by_session.get(&session).copied() else { return };
        let established = self.connections.get(&connection).and_then(Connection::established);
        if established.is_some_and(|established| established.epoch != epoch) {
            self.close(connection);
        }
    }

    /// Tells those who watch of changes, unless they may not read the node.
    fn notify(&mut self, events: &[TreeEvent]) {
        for event in events {
            let watchers = self.watches.trigger(event.kind, &event.path);
            if watchers.is_empty() {
                continue;
            }
            let frame = self.notification(event.kind, &event.path, self.state.zxid());
            for connection in watchers {
                let ids = self.connections.get(&connection).map(|client| client.ids.clone());
                if ids.is_some_and(|ids| acl::permits(&event.acl, perms::READ, &ids)) {
                    self.send_event(connection, frame.clone());
                }
            }
        }
    }

    fn notification(&mut self, kind: EventType, path: &str, zxid: i64) -> Bytes {
        self.writer.frame(|writer| {
            ReplyHeader { xid: xid::NOTIFICATION, zxid, err: 0 }.encode(writer);
            WatcherEvent::of(kind, path).encode(writer);
        })
    }

    /// Sends an event. Replies that were made before it and are held back stay in front of it: one may be of the read
    /// that has set the watch.
    fn send_event(&mut self, connection: ConnectionId, frame: Bytes) {
        let Some(client) = self.connections.get_mut(&connection) else { return };
        let made = client.replies_made();
        if made == 0 {
            return self.send(connection, frame);
        }
        client.insert_event(made, frame);
        if client.queue_bytes > HELD_BYTES_MAX {
            self.close(connection);
        }
    }

    /// Sends a frame, or holds it back.
    fn send(&mut self, connection: ConnectionId, frame: Bytes) {
        let Some(client) = self.connections.get_mut(&connection) else { return };
        if !client.is_held_back(self.now.monotonic) {
            self.actions.push(Action::Send { connection, frame });
            return;
        }
        client.held_bytes += frame.len();
        client.held.push(frame);
        if client.held_bytes > HELD_BYTES_MAX {
            self.close(connection);
        }
    }

    /// Closes a connection, after what was sent.
    fn close(&mut self, connection: ConnectionId) {
        if self.connections.contains_key(&connection) {
            self.actions.push(Action::Close { connection });
            self.forget(connection);
        }
    }

    fn forget(&mut self, connection: ConnectionId) {
        let Some(client) = self.connections.remove(&connection) else { return };
        self.watches.remove_connection(connection);
        if let Phase::Established(established) = client.phase
            && self.by_session.get(&established.session) == Some(&connection)
        {
            self.by_session.remove(&established.session);
        }
    }

    /// The log has forgotten this server: nothing that it appended and that is not applied will be. It begins anew under
    /// another name, and its clients connect again.
    fn rejoin(&mut self) {
        let all: BTreeSet<ConnectionId> = self.connections.keys().copied().collect();
        for connection in all {
            self.close(connection);
        }
        self.batcher = Batcher::default();
        self.config.nonce = self.config.nonce.wrapping_add(1);
        self.membership = Membership::Joining { nonce: self.config.nonce };
        self.join();
    }
}
