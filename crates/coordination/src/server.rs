//! A translation server between clients and the log.
//!
//! It is a machine without IO. The driver passes in events ([`Server::handle`]) and ends each turn with
//! [`Server::end_turn`], which returns the actions in order. The writes of a turn are appended as one batch (group
//! commit). While the maximum number of batches is in flight, writes accumulate for the next one.
//!
//! *Writes* are appended to the log and answered when they are applied: at that point their batch is durable, and all
//! earlier positions were applied (guarantee 28). The server applies its own batches from memory once their positions
//! are known and all earlier positions were applied.
//!
//! *Reads* are answered from the local tree, in the order of the session's requests, so that a session reads its own
//! writes. They never show an older state than the client has seen: a connection starts with an entry in the log,
//! and the server applies the log up to that entry before it replies.
//!
//! *Events* are sent when their change is applied, before any reply that shows it.
//!
//! *Sessions* are described in `liveness.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::{Duration, Monotonic, Now};
use bytes::Bytes;
use core::net::IpAddr;

use crate::acl::{self, perms};
use crate::entry::{Batch, Entry, Item, MoveEpoch, Position, ServerId, SessionId};
use crate::jute::{self, EventType, Password, Record, ReplyHeader, WatcherEvent, xid};
use crate::limits::{BATCHES_IN_FLIGHT_MAX, HELD_BYTES_MAX, OUTPUT_CHUNK_BYTES, RETRY};
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
mod statistics;
mod tails;
#[cfg(test)]
mod tests;

use batcher::{Batcher, Origin};
use connection::{Connection, Phase};
use housekeeping::{Collector, Snapshotter};
use liveness::Expirer;
use tails::Tails;

pub use statistics::{ClientStatistics, LastReply, Latency, Sizes, Statistics};

/// A client's connection. The driver assigns the numbers and never reuses one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Identifies an append that the server requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AppendId(pub u64);

/// Identifies a tail request of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TailId(pub u64);

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Random, unique to this process.
    pub nonce: u128,
    /// Minimum session timeout (ZooKeeper: two ticks).
    pub session_timeout_min: Duration,
    /// Maximum session timeout (ZooKeeper: twenty ticks).
    pub session_timeout_max: Duration,
    /// How often sessions are touched: a tenth of the shortest timeout, or less.
    pub tick: Duration,
    /// Maximum number of batches in flight, 1 to [`crate::limits::BATCHES_IN_FLIGHT_MAX`].
    pub batches_in_flight: usize,
    /// Whether reads are linearizable: each checks the log's tail first.
    pub linearizable_reads: bool,
    /// Enter read-only mode when an append takes this long; disabled if `None`.
    pub read_only_after: Option<Duration>,
    /// The digest of the administrator's name and password.
    pub super_digest: Option<String>,
    /// Interval of the search for unused containers and TTL nodes.
    pub collect_every: Duration,
    /// Delete containers that never had a child after this time; disabled if `None`.
    pub collect_unused_after: Option<Duration>,
    /// Write a snapshot after this many bytes of log; disabled if `None`.
    pub snapshot_after_bytes: Option<u64>,
}

/// Input of the machine.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client has connected.
    Connected {
        /// A new connection number.
        connection: ConnectionId,
        /// The client's address: its first identity.
        address: IpAddr,
        /// Random: the password of the session, if the client opens a new one.
        password: Password,
    },
    /// A client has sent a frame.
    Frame {
        connection: ConnectionId,
        /// The frame, without its length.
        frame: Bytes,
    },
    /// The connection is closed by the client, or broken.
    Disconnected { connection: ConnectionId },
    /// The connection's output buffer is full (slow consumer). Further replies are held back and reading pauses.
    OutputFull { connection: ConnectionId },
    /// The output buffer has room again.
    OutputDrained { connection: ConnectionId },
    /// An append has completed: the entry is durable at the tail of its chain. The server may apply the entry from
    /// memory once all earlier positions were applied.
    Appended {
        /// The append's number in [`Action::Append`].
        append: AppendId,
        position: Position,
    },
    /// An append has failed; the entry may or may not be in the log. The server retries it.
    AppendFailed {
        /// The append's number in [`Action::Append`].
        append: AppendId,
    },
    /// The content of a position. The driver plays every position from [`State::next`] on, in order and without gaps.
    /// This includes the server's own appends, because the server does not know the positions of failed appends that
    /// are in the log nevertheless, of their retries, and of appends before it rejoined. A position that was already
    /// applied is ignored, so the driver may skip to [`State::next`] at any time.
    Played {
        position: Position,
        /// The entry; none for a hole or a record of another kind.
        entry: Option<Bytes>,
    },
    /// The tail of the log at some time after the request.
    Tail {
        /// The request's number in [`Action::RequestTail`].
        request: TailId,
        /// All completed appends are below this position.
        tail: Position,
    },
    /// The tail request has failed. The server retries it.
    TailFailed {
        /// The request's number in [`Action::RequestTail`].
        request: TailId,
    },
    /// The driver has accepted a snapshot piece and has room for the next one.
    PieceKept {
        /// The snapshot, as in [`Action::KeepPiece`].
        next: Position,
        /// The piece, as in [`Action::KeepPiece`].
        index: u32,
    },
    /// The whole snapshot and its pointer are durable.
    SnapshotKept {
        /// The snapshot, as in [`Action::KeepPiece`].
        next: Position,
    },
    /// The snapshot could not be written. The server writes another one later.
    SnapshotFailed {
        /// The snapshot, as in [`Action::KeepPiece`].
        next: Position,
    },
    /// The timer of [`Action::SetTimer`] has fired.
    Timer,
}

/// Output of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Send {
        connection: ConnectionId,
        /// The frame, including its length.
        frame: Bytes,
    },
    /// Close a connection after all pending output was sent. No further event is expected for it.
    Close { connection: ConnectionId },
    /// Stop reading from a connection (backpressure).
    Pause { connection: ConnectionId },
    /// Continue reading from a connection.
    Resume { connection: ConnectionId },
    /// Append an entry. [`Event::Appended`] follows, or [`Event::AppendFailed`]. A retry has the number of the first
    /// attempt.
    Append {
        /// The append's number, unique to this server.
        append: AppendId,
        /// The entry, of at most [`crate::limits::ENTRY_BYTES_MAX`] bytes.
        entry: Bytes,
    },
    /// Query the tail. [`Event::Tail`] follows, or [`Event::TailFailed`].
    RequestTail {
        /// The request's number, unique to this server.
        request: TailId,
    },
    /// Set the timer, replacing the previous one.
    SetTimer(Monotonic),
    /// Write a snapshot piece to the log. [`Event::PieceKept`] follows, or [`Event::SnapshotKept`] after the last one,
    /// or [`Event::SnapshotFailed`]. A piece with index 0 begins a snapshot; an unfinished earlier one is cancelled,
    /// and events about it are ignored.
    KeepPiece {
        /// The snapshot contains all positions below this one.
        next: Position,
        /// The piece's number, from 0.
        index: u32,
        piece: Bytes,
        /// Whether it is the last.
        is_last: bool,
    },
    Trim {
        /// The first position that is still needed.
        below: Position,
    },
}

/// A client of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientStatus {
    /// The number that the driver gave to the connection.
    pub connection: ConnectionId,
    pub address: IpAddr,
    /// The session; none before the connect request is answered.
    pub session: Option<SessionId>,
    /// The negotiated session timeout.
    pub timeout: Option<Duration>,
    /// Requests without a reply.
    pub outstanding: usize,
    /// When the last frame was received.
    pub last_received: Monotonic,
    /// Latencies, and the last reply.
    pub statistics: ClientStatistics,
}

/// Whether the server has joined.
#[derive(Debug)]
enum Membership {
    /// Its join entry is being appended.
    Joining { nonce: u128 },
    /// Joined under this id.
    Member(ServerId),
}

/// A batch of this server, and the size of its entry in bytes.
type OwnBatch = (Arc<Batch>, usize);

/// A translation server.
///
/// If the log is trimmed beyond the server's position, the driver replaces the server by one that starts from the
/// newest snapshot; clients reconnect.
#[derive(Debug)]
pub struct Server {
    config: Config,
    state: State,
    membership: Membership,
    connections: BTreeMap<ConnectionId, Connection>,
    by_session: BTreeMap<SessionId, ConnectionId>,
    watches: Watches<ConnectionId>,
    batcher: Batcher,
    /// Completed appends of this server at positions that were not applied yet. They are applied from memory, without
    /// waiting for the log to return them.
    own: BTreeMap<Position, OwnBatch>,
    tails: Tails,
    expirer: Expirer,
    collector: Collector,
    snapshotter: Snapshotter,
    is_read_only: bool,
    next_append: u64,
    next_tick: Monotonic,
    timer: Monotonic,
    /// When failed appends and tail requests are retried.
    retry_at: Monotonic,
    now: Now,
    writer: jute::Writer,
    actions: Vec<Action>,
    /// Number of turns that have ended.
    turn: u64,
    /// Bytes of frames in `actions`.
    output_bytes: usize,
    /// Connections with replies that wait for the next turn.
    deferred: VecDeque<ConnectionId>,
    /// When the next turn is due for them.
    resume_at: Monotonic,
    statistics: Statistics,
    /// When the newest snapshot was seen in the log, or else when this server started.
    snapshot_seen: Monotonic,
}

impl Server {
    /// Creates a server that continues from a state, restored from a snapshot or empty.
    #[must_use]
    pub fn new(config: Config, state: State, now: Now) -> Self {
        let mut server = Self {
            membership: Membership::Joining { nonce: config.nonce },
            connections: BTreeMap::new(),
            by_session: BTreeMap::new(),
            watches: Watches::default(),
            batcher: Batcher::default(),
            own: BTreeMap::new(),
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
            writer: jute::Writer::with_chunks(OUTPUT_CHUNK_BYTES),
            actions: Vec::new(),
            turn: 1,
            output_bytes: 0,
            deferred: VecDeque::new(),
            resume_at: Monotonic::NEVER,
            statistics: Statistics::default(),
            snapshot_seen: now.monotonic,
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

    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The watches of its clients.
    #[must_use]
    pub const fn watches(&self) -> &Watches<ConnectionId> {
        &self.watches
    }

    /// The server's id; none until its join entry is applied.
    #[must_use]
    pub const fn id(&self) -> Option<ServerId> {
        match self.membership {
            Membership::Member(id) => Some(id),
            Membership::Joining { .. } => None,
        }
    }

    /// Whether it is in read-only mode because appends do not complete.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Whether clients wait for positions that were not applied: for a tail, for a write of this server behind a gap,
    /// or for it to join.
    #[must_use]
    pub fn waits_for_log(&self) -> bool {
        !self.own.is_empty() || self.tails.is_behind() || self.id().is_none()
    }

    /// The clients in the order in which they connected.
    pub fn clients(&self) -> impl ExactSizeIterator<Item = ClientStatus> {
        self.connections.iter().map(|(connection, client)| ClientStatus {
            connection: *connection,
            address: client.address,
            session: client.established().map(|established| established.session),
            timeout: client.established().map(|established| established.timeout),
            outstanding: client.queue.len(),
            last_received: client.last_received,
            statistics: client.statistics,
        })
    }

    /// Bytes of frames that this turn has produced so far. The driver may end the turn early if there are many.
    #[must_use]
    pub const fn output_bytes(&self) -> usize {
        self.output_bytes
    }

    /// Whether a frame may be sent at this time (see [`crate::limits::STALE_PERCENT`]). A driver that was paused
    /// between [`Self::end_turn`] and the write checks again.
    #[must_use]
    pub fn may_send(&self, connection: ConnectionId, now: Monotonic) -> bool {
        self.connections.get(&connection).is_none_or(|client| !client.is_stale(now))
    }

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
                if let Some(batch) = self.batcher.appended(append)
                    && position >= self.state.next()
                {
                    self.own.insert(position, batch);
                    self.play_own();
                }
            }
            Event::AppendFailed { append } => {
                self.batcher.failed(append);
                self.retry_at = self.retry_at.min(now.monotonic + RETRY);
            }
            Event::Played { position, entry } => self.played(position, entry),
            Event::Tail { request, tail } => {
                self.tails.answered(request, tail);
                self.tail_reached();
            }
            Event::TailFailed { request } => {
                self.tails.failed(request);
                self.retry_at = self.retry_at.min(now.monotonic + RETRY);
            }
            Event::PieceKept { next, index } => self.piece_kept(next, index),
            Event::SnapshotKept { next } => self.snapshot_kept(next),
            Event::SnapshotFailed { next } => self.snapshot_failed(next),
            Event::Timer => self.timer(),
        }
    }

    /// Ends a turn: appends accumulated writes. Returns the actions in order.
    pub fn end_turn(&mut self, now: Now) -> Vec<Action> {
        self.now = now;
        self.append_gathered();
        if let Some(request) = self.tails.request() {
            self.actions.push(Action::RequestTail { request });
        }
        let timer = self.next_tick.min(self.retry_at).min(self.resume_at);
        if timer != self.timer {
            self.timer = timer;
            self.actions.push(Action::SetTimer(timer));
        }
        self.turn += 1;
        self.output_bytes = 0;
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
        if self.now.monotonic >= self.resume_at {
            self.send_deferred();
        }
        if self.now.monotonic >= self.next_tick {
            self.next_tick = self.now.monotonic + self.config.tick;
            self.tick();
        }
    }

    fn join(&mut self) {
        let Membership::Joining { nonce } = self.membership else {
            return debug_assert!(false, "the caller sets the membership");
        };
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
            let (entry, items) = self.batcher.append(append, server, self.now);
            self.statistics.appended(entry.len(), items);
            self.actions.push(Action::Append { append, entry });
        }
    }

    /// Applies a position that was read from the log, then the server's own batches that follow.
    fn played(&mut self, position: Position, entry: Option<Bytes>) {
        let next = self.state.next();
        debug_assert!(position <= next, "the driver plays all positions, in order");
        if position != next {
            return;
        }
        if let Some((batch, bytes)) = self.own.remove(&position) {
            self.apply(Some(&Entry::Batch(batch)), bytes);
        } else {
            let bytes = entry.as_ref().map_or(0, Bytes::len);
            // All servers skip an undecodable entry in the same way.
            let entry = entry.and_then(|entry| Entry::decode(entry).ok());
            if planted(Bug::OwnDuplicateSkipped)
                && let Some(Entry::Batch(batch)) = &entry
                && self.id() == Some(batch.server)
                && !self.batcher.is_in_flight(batch.number)
            {
                return;
            }
            self.apply(entry.as_ref(), bytes);
        }
        self.play_own();
    }

    /// Applies the server's own batches at the next positions.
    fn play_own(&mut self) {
        loop {
            let mut next = self.state.next();
            if planted(Bug::OwnBatchEarly)
                && let Some(own) = self.own.keys().next()
            {
                next = *own;
            }
            let Some((batch, bytes)) = self.own.remove(&next) else { break };
            self.apply(Some(&Entry::Batch(batch)), bytes);
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
            self.leave_read_only();
        }
        for batch in admitted.batches {
            self.apply_batch(&batch);
        }
        if let Membership::Member(id) = self.membership
            && admitted.removed.contains(&id)
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
            if own.is_some() && matches!(applied.outcome, Outcome::Ended { is_expired: true, .. }) {
                self.statistics.expired += 1;
            }
            let late = planted(Bug::WatchAfterReply);
            if !late {
                self.notify(&applied.events);
            }
            self.conclude(origin, applied.outcome, made);
            if late {
                self.notify(&applied.events);
            }
            if let Item::SnapshotKept { next } = item {
                self.snapshot_seen = self.now.monotonic;
                self.other_snapshot_kept(*next);
            }
        }
        if own.is_some() {
            self.log_is_alive();
        }
    }

    /// Routes the result of an item to its connection, and closes other connections of the session.
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
                debug_assert!(!self.has_session(connection), "requests of a session on one connection are in order");
                self.close(connection);
            }
            _ => {}
        }
    }

    /// Whether the connection is still the current one of its session.
    fn has_session(&self, connection: ConnectionId) -> bool {
        let established = self.connections.get(&connection).and_then(Connection::established);
        established.is_some_and(|established| {
            self.state.session(established.session).is_some_and(|session| session.epoch == established.epoch)
        })
    }

    /// Closes this server's connection of a session that has moved to another one.
    fn leave_connection_before(&mut self, session: SessionId, epoch: MoveEpoch) {
        let Some(connection) = self.by_session.get(&session).copied() else { return };
        let established = self.connections.get(&connection).and_then(Connection::established);
        if established.is_some_and(|established| established.epoch != epoch) {
            self.close(connection);
        }
    }

    /// Sends events to watching clients that have read permission.
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

    /// Sends an event. Replies that were produced earlier and are held back stay ahead of it: one of them may belong to
    /// the read that set the watch.
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
            client.note_sent(self.turn, frame.len());
            self.output_bytes += frame.len();
            self.actions.push(Action::Send { connection, frame });
            return;
        }
        client.held_bytes += frame.len();
        client.held.push(frame);
        if client.held_bytes > HELD_BYTES_MAX {
            self.close(connection);
        }
    }

    /// Closes a connection after its pending output.
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

    /// This server was removed from the state, so that its unapplied batches are lost. It joins under a new id, and its
    /// clients reconnect.
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
