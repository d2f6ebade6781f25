//! Received frames, and replies in the same order.

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};
use bytes::Bytes;

use super::connection::{Connecting, Connection, Established, Pending, Phase, Work};
use super::statistics::Answered;
use super::{Action, ConnectionId, Origin, Server};
use crate::ErrorCode;
use crate::acl;
use crate::entry::{Item, MoveEpoch, SessionId, Stamp, identities_len};
use crate::jute::{
    AuthPacket, ConnectRequest, ConnectResponse, DecodeError, Password, Reader, Record, ReplyHeader, Request,
    RequestHeader, op, xid,
};
use crate::limits::{
    FRAME_BYTES_MAX, GATHERED_BYTES_MAX, HELD_BYTES_MAX, IDENTITIES_MAX, IDENTITY_BYTES_MAX, TURN_BYTES,
};

/// Length of a request's header.
const HEADER_BYTES: usize = 8;

impl Server {
    pub(super) fn frame(&mut self, connection: ConnectionId, frame: Bytes) {
        let Some(client) = self.connections.get_mut(&connection) else { return };
        if client.is_closing {
            return;
        }
        client.last_received = self.now.monotonic;
        // The driver passes in no longer frames, which would exceed the size of a log entry.
        if frame.len() > FRAME_BYTES_MAX {
            return self.close(connection);
        }
        match &mut client.phase {
            Phase::Greeting => self.greet(connection, &frame),
            Phase::Connecting(connecting) => {
                connecting.early_bytes += frame.len();
                connecting.early.push(frame);
                self.update_reading(connection);
            }
            Phase::Established(_) => {
                self.request(connection, &frame);
                self.update_reading(connection);
            }
        }
    }

    /// The connect request: opens a session, or moves one to this connection.
    fn greet(&mut self, connection: ConnectionId, frame: &[u8]) {
        let request = ConnectRequest::decode(&mut Reader::new(frame));
        // The protocol has had one version, 0.
        let Some(request) = request.ok().filter(|request| request.protocol_version == 0) else {
            return self.close(connection);
        };
        self.statistics.connects += 1;
        let min = self.config.session_timeout_min;
        let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
        let timeout = timeout.clamp(min, self.config.session_timeout_max.max(min));
        let password = request.password.and_then(|password| Password::try_from(password).ok());
        let session = match (request.session, password) {
            (0, _) => None,
            (session, Some(password)) => Some((SessionId(session), password)),
            (_, None) => return self.reply_expired(connection, request.read_only),
        };
        let Some(client) = self.connections.get_mut(&connection) else {
            return debug_assert!(false, "the connection sent this frame");
        };
        let password = client.password;
        client.touching = self.now.monotonic;
        client.phase = Phase::Connecting(Connecting {
            session,
            timeout,
            last_zxid_seen: request.last_zxid_seen,
            read_only: request.read_only,
            arrived: self.now.monotonic,
            early: Vec::new(),
            early_bytes: 0,
        });
        if self.is_read_only {
            return self.admit_read_only(connection);
        }
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let item = match session {
            None => Item::Open { timeout_ms, password },
            Some((session, password)) => Item::Move { session, password, timeout_ms },
        };
        self.batcher.gather(item, None, Origin::Connect(connection));
    }

    /// The session was opened or moved to this connection.
    pub(super) fn connected(
        &mut self,
        connection: ConnectionId,
        session: SessionId,
        epoch: MoveEpoch,
        made: Monotonic,
    ) {
        // It may be closed meanwhile, or admitted in read-only mode.
        let Some(client) = self.connections.get_mut(&connection) else { return };
        let Phase::Connecting(connecting) = &mut client.phase else { return };
        if connecting.last_zxid_seen > self.state.zxid() {
            // The server is up to date, so that the zxid is from another service.
            return self.close(connection);
        }
        let early = std::mem::take(&mut connecting.early);
        let (timeout, read_only, arrived) = (connecting.timeout, connecting.read_only, connecting.arrived);
        client.phase = Phase::Established(Established { session, epoch, timeout, sequence: 0, is_read_only: false });
        (client.touching, client.touched) = (made, made);
        self.by_session.insert(session, connection);
        let password = self.state.session(session).map(|session| session.password).unwrap_or_default();
        self.reply_connected(connection, session, password, timeout, read_only.map(|_| false));
        self.count(connection, Answered { xid: 0, op: op::CREATE_SESSION, arrived, is_write: true });
        for frame in early {
            self.request(connection, &frame);
        }
        self.update_reading(connection);
    }

    fn reply_connected(
        &mut self,
        connection: ConnectionId,
        session: SessionId,
        password: Password,
        timeout: Duration,
        read_only: Option<bool>,
    ) {
        let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let response = ConnectResponse { timeout_ms, session: session.0, password, read_only };
        let frame = self.writer.frame(|writer| response.encode(writer));
        self.send(connection, frame);
    }

    /// Unknown session or wrong password.
    pub(super) fn refuse(&mut self, connection: ConnectionId) {
        let read_only = match self.connections.get(&connection).map(|client| &client.phase) {
            Some(Phase::Connecting(connecting)) => connecting.read_only,
            _ => None,
        };
        self.reply_expired(connection, read_only);
    }

    fn reply_expired(&mut self, connection: ConnectionId, read_only: Option<bool>) {
        let response = ConnectResponse::expired(read_only.map(|_| false));
        let frame = self.writer.frame(|writer| response.encode(writer));
        self.send(connection, frame);
        self.close(connection);
    }

    /// Accepts a client in read-only mode. Sessions can be neither opened nor moved then: a new session exists only on
    /// this connection, and an existing one keeps its state in the log.
    pub(super) fn admit_read_only(&mut self, connection: ConnectionId) {
        /// Ids of local sessions, disjoint from those of [`SessionId::nth`].
        const LOCAL: i64 = 2 << 56;
        let Some(client) = self.connections.get_mut(&connection) else {
            return debug_assert!(false, "the caller looks up the connection");
        };
        let Phase::Connecting(connecting) = &mut client.phase else {
            return debug_assert!(false, "the caller checks that the connection waits");
        };
        let known = |(id, password)| self.state.session(id).is_some_and(|session| session.password == password);
        let is_acceptable = connecting.read_only == Some(true)
            && connecting.last_zxid_seen <= self.state.zxid()
            && connecting.session.is_none_or(known);
        if !is_acceptable {
            return self.close(connection);
        }
        let local = SessionId(LOCAL + i64::try_from(connection.0).unwrap_or(0));
        let (session, password) = connecting.session.unwrap_or((local, client.password));
        let (timeout, early) = (connecting.timeout, std::mem::take(&mut connecting.early));
        client.phase =
            Phase::Established(Established { session, epoch: MoveEpoch(0), timeout, sequence: 0, is_read_only: true });
        self.reply_connected(connection, session, password, timeout, Some(true));
        for frame in early {
            self.request(connection, &frame);
        }
    }

    /// A client that was accepted in read-only mode closes its session. One that exists in the log can't be closed now,
    /// and expires later: there is no reply, as in ZooKeeper, because one would promise that its ephemeral nodes are
    /// gone.
    fn close_read_only(&mut self, connection: ConnectionId, xid: i32) {
        let session = self.connections.get(&connection).and_then(Connection::established);
        if session.is_some_and(|established| self.state.session(established.session).is_none()) {
            let reply = self.header(xid, None);
            self.send(connection, reply);
        }
        self.close(connection);
    }

    fn request(&mut self, connection: ConnectionId, frame: &Bytes) {
        // An earlier frame may have closed the connection.
        let Some(client) = self.connections.get(&connection) else { return };
        let is_read_only = client.established().is_some_and(|established| established.is_read_only);
        let Ok(header) = RequestHeader::decode(&mut Reader::new(frame)) else { return self.close(connection) };
        let body = frame.slice(HEADER_BYTES..);
        let xid = header.xid;
        match Request::decode(header.op, &body) {
            Ok(Request::Ping) => {
                let frame = self.header(xid::PING, None);
                self.send(connection, frame);
                let arrived = self.now.monotonic;
                self.count(connection, Answered { xid: xid::PING, op: op::PING, arrived, is_write: false });
                self.touch_if_stale(connection);
            }
            Ok(Request::Auth(packet)) => self.authenticate(connection, xid, &packet),
            Ok(Request::Reconfig(_)) => {
                self.enqueue(connection, header, Work::Failed(ErrorCode::ReconfigDisabled));
            }
            Ok(request) => {
                let is_sync = matches!(request, Request::Sync(_));
                let is_write = request.is_write();
                if is_read_only && header.op == op::CLOSE_SESSION {
                    self.close_read_only(connection, xid);
                } else if is_read_only && (is_write || is_sync) {
                    self.enqueue(connection, header, Work::Failed(ErrorCode::NotReadOnly));
                } else if is_write {
                    self.submit_in_order(connection, header, body);
                } else {
                    let asks_tail = is_sync || (self.config.linearizable_reads && !is_read_only);
                    let tail = asks_tail.then(|| self.tails.want());
                    if planted(Bug::ReadOvertakesWrite) && tail.is_none() {
                        let reply = self.answer(connection, xid, header.op, &body);
                        return self.send(connection, reply);
                    }
                    self.enqueue(connection, header, Work::Read { op: header.op, body, tail });
                }
            }
            // Client libraries do not check the errors of setWatches and auth. A client whose setWatches failed would
            // lose its watches unnoticed; it repeats the request on its next connection.
            Err(_) if xid < 0 || header.op == op::AUTH => self.close(connection),
            Err(DecodeError::UnknownOperation(op::SASL)) => self.reject_authentication(connection, xid),
            Err(DecodeError::UnknownOperation(_)) => {
                self.enqueue(connection, header, Work::Failed(ErrorCode::Unimplemented));
            }
            Err(_) => self.enqueue(connection, header, Work::Failed(ErrorCode::Marshalling)),
        }
    }

    fn enqueue(&mut self, connection: ConnectionId, header: RequestHeader, work: Work) {
        let Some(client) = self.connections.get_mut(&connection) else {
            return debug_assert!(false, "the connection sent this request");
        };
        let bytes =
            HEADER_BYTES + if let Work::Held { body, .. } | Work::Read { body, .. } = &work { body.len() } else { 0 };
        client.push(Pending { xid: header.xid, op: header.op, arrived: self.now.monotonic, bytes, work });
        self.pump(connection);
        self.touch_if_stale(connection);
    }

    /// Adds identities to a connection. The reply is sent immediately, as in ZooKeeper.
    fn authenticate(&mut self, connection: ConnectionId, xid: i32, packet: &AuthPacket<'_>) {
        let Some(client) = self.connections.get_mut(&connection) else {
            return debug_assert!(false, "the connection sent this request");
        };
        let (scheme, auth) = (packet.scheme.unwrap_or_default(), packet.auth.unwrap_or_default());
        let proven = acl::authenticate(scheme, auth, client.address, self.config.super_digest.as_deref());
        let mut ids = client.ids.to_vec();
        for id in proven.iter().flatten() {
            if !ids.contains(id) {
                ids.push(id.clone());
            }
        }
        let is_small = identities_len(&ids) <= IDENTITY_BYTES_MAX || planted(Bug::IdentitiesUnbounded);
        let is_accepted = proven.is_some() && ids.len() <= IDENTITIES_MAX && is_small;
        if is_accepted {
            client.ids = ids.into();
        }
        if !is_accepted {
            return self.reject_authentication(connection, xid);
        }
        let frame = self.writer.frame(|writer| ReplyHeader { xid, zxid: 0, err: 0 }.encode(writer));
        self.send(connection, frame);
    }

    /// Authentication failed, or its mechanism (SASL) is not supported. A client that asks for authentication is not
    /// served without it.
    fn reject_authentication(&mut self, connection: ConnectionId, xid: i32) {
        let err = ErrorCode::AuthFailed.code();
        let frame = self.writer.frame(|writer| ReplyHeader { xid, zxid: 0, err }.encode(writer));
        self.send(connection, frame);
        self.statistics.rejected_identities += 1;
        self.close(connection);
    }

    /// Submits a write, unless a read ahead of it waits for the tail or the next turn: that read must not see the
    /// write.
    fn submit_in_order(&mut self, connection: ConnectionId, header: RequestHeader, body: Bytes) {
        let RequestHeader { xid, op } = header;
        let Some(client) = self.connections.get_mut(&connection) else {
            return debug_assert!(false, "the connection sent this request");
        };
        if client.waits_for_tail() || client.is_deferred {
            return self.enqueue(connection, header, Work::Held { op, body });
        }
        let (arrived, bytes) = (self.now.monotonic, HEADER_BYTES + body.len());
        client.push(Pending { xid, op, arrived, bytes, work: Work::Submitted { reply: None } });
        self.submit(connection, op, body);
    }

    fn submit(&mut self, connection: ConnectionId, op: i32, body: Bytes) {
        let Some(client) = self.connections.get_mut(&connection) else {
            return debug_assert!(false, "the caller looks up the connection");
        };
        let ids = client.ids.clone();
        client.touching = self.now.monotonic;
        let Some(established) = client.established_mut() else {
            return debug_assert!(false, "requests are accepted only with a session");
        };
        established.sequence += 1;
        let stamp = Stamp { session: established.session, epoch: established.epoch, sequence: established.sequence };
        let item = Item::Request { stamp, identities: 0, op, body };
        self.batcher.gather(item, Some(ids), Origin::Request(connection));
    }

    /// A write of this connection was applied: queues the reply.
    pub(super) fn written(&mut self, connection: ConnectionId, result: &Result<crate::tree::WriteResult, ErrorCode>) {
        // It may be closed meanwhile.
        let Some(client) = self.connections.get(&connection) else { return };
        let first = client.queue.iter().position(|pending| matches!(pending.work, Work::Submitted { reply: None }));
        let Some(first) = first else {
            debug_assert!(false, "no pending write for this reply");
            return;
        };
        let frame = self.write_reply(client.queue[first].xid, result);
        let Some(client) = self.connections.get_mut(&connection) else { return };
        client.queue_bytes += frame.len();
        let pending = &mut client.queue[first];
        pending.bytes += frame.len();
        pending.work = Work::Submitted { reply: Some(frame) };
        self.pump(connection);
    }

    /// The client has closed its session: sends the last reply.
    pub(super) fn closed(&mut self, connection: ConnectionId) {
        let Some(client) = self.connections.get_mut(&connection) else { return };
        let first = client.queue.iter().position(|pending| matches!(pending.work, Work::Submitted { reply: None }));
        client.queue.truncate(first.map_or(0, |first| first + 1));
        client.is_closing = true;
        let Some(xid) = client.queue.back().map(|close| close.xid) else { return self.close(connection) };
        let reply = Some(self.header(xid, None));
        if let Some(close) = self.connections.get_mut(&connection).and_then(|client| client.queue.back_mut()) {
            close.work = Work::Submitted { reply };
        }
        self.send_held(connection);
        self.pump(connection);
    }

    /// Called before a write of this connection is applied: evaluates the reads ahead of it, which must not see it.
    /// There are such reads only while replies are held back.
    pub(super) fn answer_reads_before_write(&mut self, connection: ConnectionId) {
        while let Some(client) = self.connections.get(&connection)
            && let Some(pending) = client.queue.get(client.replies_made())
            && let Work::Read { op, body, .. } = &pending.work
        {
            let (xid, op, body) = (pending.xid, *op, body.clone());
            let reply = self.answer(connection, xid, op, &body);
            // The answer may have closed it.
            let Some(client) = self.connections.get_mut(&connection) else { return };
            // Events caused by the read were inserted ahead of it.
            let index = client.replies_made();
            client.queue_bytes += reply.len();
            client.queue[index].bytes += reply.len();
            client.queue[index].work = Work::Answered(reply);
            if client.queue_bytes > HELD_BYTES_MAX {
                return self.close(connection);
            }
        }
    }

    /// Sends available replies in order.
    pub(super) fn pump(&mut self, connection: ConnectionId) {
        while let Some(client) = self.connections.get_mut(&connection) {
            if client.is_closing && client.queue.is_empty() {
                return self.close(connection);
            }
            if client.is_held_back(self.now.monotonic) {
                break;
            }
            if let Some((op, body)) = client.take_held(0) {
                self.submit(connection, op, body);
                self.submit_held(connection);
                break;
            }
            let Some(front) = client.queue.front() else { break };
            let is_ready = match &front.work {
                Work::Submitted { reply: None } | Work::Held { .. } => false,
                Work::Read { tail: Some(tail), .. } => self.tails.is_reached(*tail),
                _ => true,
            };
            if !is_ready {
                break;
            }
            if (client.has_had_its_turn(self.turn) || self.output_bytes >= TURN_BYTES)
                && !planted(Bug::TurnOutputUnbounded)
            {
                self.defer(connection);
                break;
            }
            let xid = front.xid;
            let reply = match &front.work {
                Work::Submitted { reply: None } | Work::Held { .. } => {
                    debug_assert!(false, "only answered requests are removed");
                    break;
                }
                Work::Submitted { reply: Some(reply) } | Work::Answered(reply) => reply.clone(),
                Work::Read { op, body, .. } => {
                    let (op, body) = (*op, body.clone());
                    self.answer(connection, xid, op, &body)
                }
                Work::Failed(error) => {
                    let error = *error;
                    self.header(xid, Some(error))
                }
            };
            self.send(connection, reply);
            let (zxid, now) = (self.state.zxid(), self.now.monotonic);
            if let Some(client) = self.connections.get_mut(&connection)
                && let Some(answered) = client.pop()
            {
                let latency = client.statistics.answered(answered, zxid, now);
                self.count_latency(answered.is_write, latency);
            }
        }
        self.update_reading(connection);
    }

    /// Counts a request that was answered outside the queue.
    fn count(&mut self, connection: ConnectionId, answered: Answered) {
        let (zxid, now) = (self.state.zxid(), self.now.monotonic);
        if let Some(client) = self.connections.get_mut(&connection) {
            let latency = client.statistics.answered(answered, zxid, now);
            self.count_latency(answered.is_write, latency);
        }
    }

    /// Defers the connection's replies to the next turn, which starts immediately.
    fn defer(&mut self, connection: ConnectionId) {
        if let Some(client) = self.connections.get_mut(&connection)
            && !std::mem::replace(&mut client.is_deferred, true)
        {
            self.deferred.push_back(connection);
            self.resume_at = self.now.monotonic;
        }
    }

    /// Sends the replies that were deferred to this turn, in order of deferral.
    pub(super) fn send_deferred(&mut self) {
        for _ in 0..self.deferred.len() {
            if self.output_bytes < TURN_BYTES
                && let Some(connection) = self.deferred.pop_front()
                && let Some(client) = self.connections.get_mut(&connection)
            {
                client.is_deferred = false;
                self.pump(connection);
            }
        }
        self.resume_at = if self.deferred.is_empty() { Monotonic::NEVER } else { self.now.monotonic };
    }

    /// Submits further held writes, up to the next read that waits for the tail.
    fn submit_held(&mut self, connection: ConnectionId) {
        for index in 1.. {
            let Some(client) = self.connections.get_mut(&connection) else { return };
            match client.queue.get(index).map(|pending| &pending.work) {
                None | Some(Work::Read { tail: Some(_), .. }) => return,
                Some(_) => {}
            }
            if let Some((op, body)) = client.take_held(index) {
                self.submit(connection, op, body);
            }
        }
    }

    /// Continues connections that wait for the tail, if it was reached.
    pub(super) fn tail_reached(&mut self) {
        if self.tails.note_applied(self.state.next()) {
            let waiting = self.connections.iter().filter(|(_, client)| client.waits_for_tail());
            let waiting: Vec<ConnectionId> = waiting.map(|(connection, _)| *connection).collect();
            for connection in waiting {
                self.pump(connection);
            }
        }
    }

    /// Pauses or resumes reading from a connection.
    pub(super) fn update_reading(&mut self, connection: ConnectionId) {
        let is_crowded = self.batcher.gathered_bytes() > GATHERED_BYTES_MAX;
        let Some(client) = self.connections.get_mut(&connection) else { return };
        let is_full = client.is_full() || (is_crowded && !client.queue.is_empty());
        if is_full && !client.is_paused {
            client.is_paused = true;
            self.actions.push(Action::Pause { connection });
        } else if !is_full && client.is_paused {
            client.is_paused = false;
            self.actions.push(Action::Resume { connection });
        }
    }

    /// A reply without a body.
    pub(super) fn header(&mut self, xid: i32, error: Option<ErrorCode>) -> Bytes {
        let zxid = self.state.zxid();
        let err = error.map_or(0, ErrorCode::code);
        self.writer.frame(|writer| ReplyHeader { xid, zxid, err }.encode(writer))
    }
}
