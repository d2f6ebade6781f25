//! Session liveness (guarantee 21).
//!
//! A server touches the sessions of active clients with the batches that it appends. Every server tracks all sessions
//! and proposes to expire one that was not touched for its timeout plus a margin. The expiry entry names the last touch
//! that the proposer has applied, and has no effect if there is a later one, so that a server that lags behind expires
//! no active session.
//!
//! The expiry clock advances only while the log accepts appends and the server is up to date. Both are known whenever
//! one of the server's own batches is applied; between two such moments the clock advances by at most
//! [`Expirer::credit_max`]. So neither a stalled log nor a paused server expires sessions.
//!
//! Conversely, a server that is disconnected from the log stops sending to a client early enough that the client times
//! out before its session can expire ([`STALE_PERCENT`]).

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{Duration, Monotonic, SplitMix64};

use super::connection::{Connection, Phase};
use super::{Action, ConnectionId, Membership, Origin, Server};
use crate::entry::{Item, SessionId};
use crate::limits::{CONNECT_PERCENT, EXPIRE_PERCENT, STALE_PERCENT, TOUCH_PERCENT};
use crate::state::Outcome;

/// Tracks when sessions were last touched, on a clock that stops when the log stalls.
#[derive(Debug)]
pub(super) struct Expirer {
    /// The clock at `credited_at`.
    credited: Duration,
    credited_at: Monotonic,
    /// Maximum advance after that.
    credit_max: Duration,
    activity: BTreeMap<SessionId, SessionActivity>,
    /// When to check each session next: never before it can expire.
    due: BTreeSet<(Duration, SessionId)>,
}

#[derive(Clone, Copy, Debug)]
struct SessionActivity {
    touched: Duration,
    patience: Duration,
    due: Duration,
}

impl Expirer {
    pub(super) const fn new(now: Monotonic) -> Self {
        Self {
            credited: Duration::ZERO,
            credited_at: now,
            credit_max: Duration::ZERO,
            activity: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }

    fn clock(&self, now: Monotonic) -> Duration {
        let since = now.since(self.credited_at);
        let counted = if planted(Bug::ExpirerCountsStalls) { since } else { since.min(self.credit_max) };
        Duration(self.credited.0 + counted.0)
    }

    /// A touch of a session was applied.
    pub(super) fn touched(&mut self, session: SessionId, timeout_ms: u32, now: Monotonic) {
        let touched = self.clock(now);
        let patience = Duration::from_millis(timeout_ms.into()).percent(EXPIRE_PERCENT);
        let due = match self.activity.get(&session) {
            // The check is scheduled already, and reschedules itself.
            Some(activity) if activity.due.0 <= touched.0 + patience.0 => activity.due,
            activity => {
                if let Some(activity) = activity {
                    self.due.remove(&(activity.due, session));
                }
                let due = Duration(touched.0 + patience.0);
                self.due.insert((due, session));
                due
            }
        };
        self.activity.insert(session, SessionActivity { touched, patience, due });
    }

    pub(super) fn ended(&mut self, session: SessionId) {
        if let Some(activity) = self.activity.remove(&session) {
            self.due.remove(&(activity.due, session));
        }
    }

    /// One of the server's own batches was applied. Returns the sessions to expire.
    fn credit(&mut self, now: Monotonic, tick: Duration, jitter_seed: u64) -> Vec<SessionId> {
        self.credited = self.clock(now);
        self.credited_at = now;
        self.credit_max = Duration(2 * tick.0);
        let mut over = Vec::new();
        while let Some((due, session)) = self.due.first().copied()
            && due <= self.credited
        {
            self.due.pop_first();
            let Some(activity) = self.activity.get_mut(&session) else { continue };
            // Jitter: one server's proposal is enough.
            let jitter = SplitMix64::new(jitter_seed ^ session.0.cast_unsigned()).below(tick.0);
            let end = Duration(activity.touched.0 + activity.patience.0 + jitter);
            if end <= self.credited {
                over.push(session);
                activity.due = Duration(self.credited.0 + activity.patience.0 / 4);
            } else {
                activity.due = end;
            }
            self.due.insert((activity.due, session));
        }
        over
    }
}

impl Server {
    /// Runs the periodic checks of all sessions and connections.
    pub(super) fn tick(&mut self) {
        let all: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for connection in all {
            self.tick_connection(connection);
        }
        if self.state.sessions().len() > 0 {
            self.batcher.prove_liveness();
        }
        self.check_read_only();
        self.collect_if_due();
        self.begin_snapshot_if_due();
    }

    fn tick_connection(&mut self, connection: ConnectionId) {
        let now = self.now.monotonic;
        let Some(client) = self.connections.get(&connection) else { return };
        if let Phase::Connecting(connecting) = &client.phase {
            // A client that accepts read-only mode waits for it.
            let is_late = now.since(client.touching) >= connecting.timeout.percent(CONNECT_PERCENT);
            if is_late && connecting.read_only != Some(true) {
                self.close(connection);
            }
            return;
        }
        let Some(established) = client.established().filter(|established| !established.is_read_only) else { return };
        if now.since(client.touched) >= established.timeout && client.is_stale(now) {
            // The client has timed out by now.
            self.close(connection);
        } else if client.last_received > client.touching
            && now.since(client.touching) >= established.timeout.percent(TOUCH_PERCENT)
        {
            self.touch(connection);
        }
    }

    /// Touches the session immediately, instead of at the next tick, if the client was silent for long.
    pub(super) fn touch_if_stale(&mut self, connection: ConnectionId) {
        let now = self.now.monotonic;
        let is_due = |client: &Connection| {
            client.is_stale(now)
                && client
                    .established()
                    .is_some_and(|established| now.since(client.touching) >= established.timeout.percent(STALE_PERCENT))
        };
        if self.connections.get(&connection).is_some_and(is_due) {
            self.touch(connection);
        }
    }

    fn touch(&mut self, connection: ConnectionId) {
        let Some(client) = self.connections.get_mut(&connection) else {
            return debug_assert!(false, "the caller looks up the connection");
        };
        client.touching = self.now.monotonic;
        let Some(established) = client.established() else {
            return debug_assert!(false, "the caller looks up the session");
        };
        let item = Item::Touch { session: established.session, epoch: established.epoch };
        self.batcher.gather(item, None, Origin::Touch(connection));
    }

    /// A touch of the connection's session that was submitted at `made` was applied.
    pub(super) fn touched(&mut self, connection: ConnectionId, made: Monotonic) {
        let Some(client) = self.connections.get_mut(&connection) else { return };
        let was_stale = client.is_stale(self.now.monotonic);
        client.touched = client.touched.max(made);
        if was_stale {
            self.send_on(connection);
        }
    }

    /// Sends held frames and queued replies, unless they are still held back.
    pub(super) fn send_on(&mut self, connection: ConnectionId) {
        if self.connections.get(&connection).is_some_and(|client| !client.is_held_back(self.now.monotonic)) {
            self.send_held(connection);
            self.pump(connection);
        }
    }

    pub(super) fn send_held(&mut self, connection: ConnectionId) {
        let Some(client) = self.connections.get_mut(&connection) else { return };
        client.note_sent(self.turn, client.held_bytes);
        self.output_bytes += std::mem::take(&mut client.held_bytes);
        let held = std::mem::take(&mut client.held);
        self.actions.extend(held.into_iter().map(|frame| Action::Send { connection, frame }));
    }

    /// Restarts the expiry timeout if the item touches a session.
    pub(super) fn note_touch(&mut self, item: &Item, outcome: &Outcome) {
        let session = match (item, outcome) {
            (Item::Open { .. } | Item::Move { .. }, Outcome::Connected { session, .. }) => *session,
            (Item::Request { stamp, .. }, _) => stamp.session,
            (Item::Touch { session, .. }, _) => *session,
            _ => return,
        };
        if let Some(known) = self.state.session(session)
            && known.last_touch.next() == self.state.next()
        {
            self.expirer.touched(session, known.timeout_ms, self.now.monotonic);
        }
    }

    /// One of the server's own batches was applied: the log accepts appends and the server is up to date.
    pub(super) fn log_is_alive(&mut self) {
        let Membership::Member(id) = self.membership else {
            return debug_assert!(false, "batches are made by members");
        };
        for session in self.expirer.credit(self.now.monotonic, self.config.tick, id.0) {
            if let Some(known) = self.state.session(session) {
                let item = Item::Expire { session, last_touch: known.last_touch };
                self.batcher.gather(item, None, Origin::None);
            }
        }
        self.leave_read_only();
    }

    /// Has the next turn append a batch even if there are no writes, so that a stalled log is noticed. While there are
    /// sessions, every tick does that.
    pub fn probe_log(&mut self) {
        self.batcher.prove_liveness();
    }

    /// Enters read-only mode when an append takes too long.
    ///
    /// A server that has not joined yet has applied the log up to no known position, and may have an empty tree. It
    /// disconnects clients that wait for a session, so that they try another server.
    fn check_read_only(&mut self) {
        let Some(limit) = self.config.read_only_after else { return };
        let now = self.now.monotonic;
        let is_stalled = self.batcher.oldest().is_some_and(|made| now.since(made) >= limit);
        if !is_stalled || self.is_read_only {
            return;
        }
        self.is_read_only = self.id().is_some();
        let connecting = self.connections.iter().filter(|(_, client)| matches!(client.phase, Phase::Connecting(_)));
        let connecting: Vec<ConnectionId> = connecting.map(|(connection, _)| *connection).collect();
        for connection in connecting {
            if self.is_read_only {
                self.admit_read_only(connection);
            } else {
                self.close(connection);
            }
        }
    }

    /// Leaves read-only mode. Clients accepted in it must reconnect to get a session in the log.
    pub(super) fn leave_read_only(&mut self) {
        if !std::mem::take(&mut self.is_read_only) {
            return;
        }
        let is_read_only =
            |client: &Connection| client.established().is_some_and(|established| established.is_read_only);
        let admitted = self.connections.iter().filter(|(_, client)| is_read_only(client));
        let admitted: Vec<ConnectionId> = admitted.map(|(connection, _)| *connection).collect();
        for connection in admitted {
            self.close(connection);
        }
    }
}
