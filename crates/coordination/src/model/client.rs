//! A client that pings, times out, moves its session to another server, and checks the replies.

use std::collections::{BTreeMap, VecDeque};

use base::Duration;
use bytes::Bytes;

use super::{Clients, MS, Network, Time};
use crate::jute::{
    AclRecord, CheckVersion, ConnectRequest, ConnectResponse, Create, CreateKind, DataReply, Delete, IdRecord,
    Operation, Operations, Password, PathAndWatch, Reader, Record, ReplyHeader, Request, Sequence, SetData, Stat, Sync,
    WatcherEvent, Writer, xid,
};
use crate::server::ConnectionId;

/// An ACL that permits everything.
pub const OPEN: &[AclRecord<'static>] =
    &[AclRecord { perms: 31, id: IdRecord { scheme: Some("world"), id: Some("anyone") } }];
/// Nodes shared by all clients.
const REGISTERS: [&str; 3] = ["/a", "/b", "/c"];
const LOCK: &str = "/lock";

#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: usize,
    /// Clock rate in millionths.
    rate: u64,
    phase: Phase,
    session: Option<(i64, Password)>,
    last_received: Time,
    sent: Time,
    last_zxid: i64,
    xid: i32,
    asked: VecDeque<(i32, Ask)>,
    /// One-shot watches of this connection, with the mzxid at which each was set.
    watches: BTreeMap<&'static str, i64>,
    /// Whether its session has an ephemeral node; none if unknown.
    owns: Option<bool>,
    has_lock: bool,
    pub(super) done: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gone,
    Waiting { until: Time },
    Connecting(ConnectionId),
    Connected(ConnectionId),
}

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Make,
    Set { path: &'static str, value: u64 },
    FailingMulti { value: u64 },
    Get { path: &'static str, watch: bool, synced: Option<Time> },
    Sync,
    Own,
    Owned,
    Lock,
    Unlock,
    Close,
}

impl Client {
    pub(super) fn new(id: usize, rate: u64) -> Self {
        Self {
            id,
            rate,
            phase: Phase::Waiting { until: 0 },
            session: None,
            last_received: 0,
            sent: 0,
            last_zxid: 0,
            xid: 0,
            asked: VecDeque::new(),
            watches: BTreeMap::new(),
            owns: Some(false),
            has_lock: false,
            done: 0,
        }
    }

    /// Elapsed time on its clock.
    fn since(&self, then: Time, now: Time) -> Time {
        (now - then) / 1_000 * self.rate / 1_000
    }

    /// Whether it considers itself connected with this session.
    pub(super) fn believes_in(&self, session: i64, now: Time, timeout: Duration) -> bool {
        matches!(self.phase, Phase::Connected(_))
            && self.session_id() == Some(session)
            && self.since(self.last_received, now) < timeout.0 * 2 / 3
    }

    pub(super) fn session_id(&self) -> Option<i64> {
        self.session.map(|(session, _)| session)
    }

    pub(super) fn leave(&mut self, network: &mut impl Network) {
        if let Phase::Connecting(connection) | Phase::Connected(connection) = self.phase {
            network.hang_up(connection);
        }
        self.phase = Phase::Gone;
        self.lose_session();
    }

    fn own_path(&self) -> String {
        format!("/own-{}", self.id)
    }

    /// Handles the end of its session.
    fn lose_session(&mut self) {
        self.session = None;
        self.owns = Some(false);
        self.has_lock = false;
    }
}

impl Clients {
    /// Checks a client's timers and may send requests.
    pub fn step(&mut self, id: usize, network: &mut impl Network) {
        let now = network.time();
        self.checks.time = now;
        let client = &self.clients[id];
        let silent = client.since(client.last_received, now);
        match client.phase {
            Phase::Waiting { until } if until <= now => self.connect(id, network),
            Phase::Waiting { .. } | Phase::Gone => {}
            Phase::Connecting(connection) | Phase::Connected(connection) if silent >= self.timeout.0 * 2 / 3 => {
                network.hang_up(connection);
                self.disconnected(id, now);
            }
            Phase::Connecting(_) => {}
            Phase::Connected(connection) => {
                if client.since(client.sent, now) >= self.timeout.0 / 3 {
                    self.clients[id].sent = now;
                    network.send_frame(connection, &Request::Ping.to_frame(xid::PING));
                }
                // Idle from time to time, so that only pings keep the session alive.
                if client_is_busy(id, now) && !self.is_quiet {
                    for _ in 0..self.random.below(4) {
                        self.ask_something(id, connection, network);
                    }
                }
            }
        }
    }

    fn connect(&mut self, id: usize, network: &mut impl Network) {
        let connection = network.dial(id);
        let client = &mut self.clients[id];
        client.phase = Phase::Connecting(connection);
        (client.last_received, client.sent) = (network.time(), network.time());
        let (session, password) = client.session.unwrap_or_default();
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: client.last_zxid,
            timeout_ms: i32::try_from(self.timeout.as_millis()).unwrap_or(0),
            session,
            password: Some(&password),
            read_only: Some(false),
        };
        let frame = Writer::new().frame(|writer| request.encode(writer));
        network.send_frame(connection, &frame);
    }

    fn disconnected(&mut self, id: usize, now: Time) {
        let until = now + self.random.below(30 * MS);
        let client = &mut self.clients[id];
        client.phase = Phase::Waiting { until };
        client.watches.clear();
        // Requests in flight may or may not take effect.
        for (_, ask) in std::mem::take(&mut client.asked) {
            match ask {
                Ask::Own => client.owns = None,
                Ask::Close => client.lose_session(),
                Ask::Unlock => client.has_lock = false,
                _ => {}
            }
        }
    }

    fn ask_something(&mut self, id: usize, connection: ConnectionId, network: &mut impl Network) {
        let path = REGISTERS[self.random.below(3) as usize];
        let value = self.random.draw();
        let client = &self.clients[id];
        let is_asked = |ask| client.asked.iter().any(|(_, asked)| *asked == ask);
        if client.asked.len() > 6 || is_asked(Ask::Close) {
            return;
        }
        let ask = match self.random.below(100) {
            0..4 => Ask::Make,
            4..34 => Ask::Set { path, value },
            34..38 => Ask::FailingMulti { value },
            38..70 => {
                let synced = self.has_linearizable_reads.then_some(network.time());
                Ask::Get { path, watch: self.random.chance(400_000), synced }
            }
            70..78 => {
                self.ask(id, connection, Ask::Sync, network);
                Ask::Get { path, watch: false, synced: Some(network.time()) }
            }
            78..84 if client.owns == Some(false) && !is_asked(Ask::Own) => Ask::Own,
            84..90 if client.owns == Some(true) => Ask::Owned,
            90..99 if !is_asked(Ask::Lock) && !is_asked(Ask::Unlock) => {
                if client.has_lock {
                    Ask::Unlock
                } else {
                    Ask::Lock
                }
            }
            99 if client.asked.is_empty() && self.random.chance(100_000) => Ask::Close,
            _ => return,
        };
        self.ask(id, connection, ask, network);
    }

    fn ask(&mut self, id: usize, connection: ConnectionId, ask: Ask, network: &mut impl Network) {
        let own = self.clients[id].own_path();
        let create = |path, flags| Create {
            kind: CreateKind::Create,
            path,
            data: None,
            acl: Sequence::of(OPEN),
            flags,
            ttl_ms: None,
        };
        let client = &mut self.clients[id];
        client.xid += 1;
        client.sent = network.time();
        let xid = client.xid;
        client.asked.push_back((xid, ask));
        let frame = match ask {
            Ask::Make => Request::Create(create(REGISTERS[usize::try_from(xid % 3).unwrap_or(0)], 0)).to_frame(xid),
            Ask::Set { path, value } => {
                self.checks.sent(value);
                let data = value.to_be_bytes();
                Request::SetData(SetData { path, data: Some(&data), version: -1 }).to_frame(xid)
            }
            Ask::FailingMulti { value } => {
                let data = value.to_be_bytes();
                let operations = [
                    Operation::SetData(SetData { path: "/a", data: Some(&data), version: -1 }),
                    Operation::Check(CheckVersion { path: "/b", version: i32::MAX }),
                ];
                Request::Multi(Operations::of(&operations)).to_frame(xid)
            }
            Ask::Get { path, watch, .. } => Request::GetData(PathAndWatch { path, watch }).to_frame(xid),
            Ask::Sync => Request::Sync(Sync { path: "/" }).to_frame(xid),
            Ask::Own => Request::Create(create(&own, 1)).to_frame(xid),
            Ask::Owned => Request::Exists(PathAndWatch { path: &own, watch: false }).to_frame(xid),
            Ask::Lock => Request::Create(create(LOCK, 1)).to_frame(xid),
            Ask::Unlock => {
                // The client does not rely on the lock from here on.
                self.clients[id].has_lock = false;
                Request::Delete(Delete { path: LOCK, version: -1 }).to_frame(xid)
            }
            Ask::Close => {
                self.clients[id].has_lock = false;
                Request::CloseSession.to_frame(xid)
            }
        };
        network.send_frame(connection, &frame);
    }

    /// A client receives a frame, or the end of the connection.
    ///
    /// # Panics
    /// When a frame can't be decoded.
    pub fn hears(&mut self, id: usize, connection: ConnectionId, frame: Option<&Bytes>, network: &mut impl Network) {
        let now = network.time();
        self.checks.time = now;
        let phase = self.clients[id].phase;
        if phase != Phase::Connecting(connection) && phase != Phase::Connected(connection) {
            return;
        }
        // The client has timed out, although its timer has not fired yet.
        let client = &self.clients[id];
        if client.since(client.last_received, now) >= self.timeout.0 * 2 / 3 {
            network.hang_up(connection);
            return self.disconnected(id, now);
        }
        let Some(frame) = frame else { return self.disconnected(id, now) };
        self.clients[id].last_received = now;
        let mut reader = Reader::new(&frame[4..]);
        if matches!(phase, Phase::Connecting(_)) {
            return self.connected(id, connection, ConnectResponse::decode(&mut reader).expect("a reply"));
        }
        let header = ReplyHeader::decode(&mut reader).expect("a header");
        let client = &mut self.clients[id];
        match header.xid {
            xid::PING => {}
            xid::NOTIFICATION => {
                let event = WatcherEvent::decode(&mut reader).expect("an event");
                client.watches.retain(|path, _| *path != event.path);
                self.checks.count("events");
            }
            xid => match client.asked.pop_front() {
                Some((asked, ask)) if asked == xid => {
                    client.done += 1;
                    let before = std::mem::replace(&mut client.last_zxid, header.zxid);
                    if header.zxid < before {
                        let now = header.zxid;
                        return self.checks.violated(format!("client {id} sees zxid {now} after {before}"));
                    }
                    self.reply(id, ask, header, reader.rest());
                }
                asked => self.checks.violated(format!("client {id} sent {asked:?} and got a reply to {xid}")),
            },
        }
    }

    fn connected(&mut self, id: usize, connection: ConnectionId, response: ConnectResponse) {
        let client = &mut self.clients[id];
        if response.session == 0 {
            client.lose_session();
            client.phase = Phase::Waiting { until: self.checks.time };
            return self.checks.count("sessions that ended");
        }
        if let Some((session, _)) = client.session
            && session != response.session
        {
            return self.checks.violated(format!("client {id} got another session"));
        }
        client.session = Some((response.session, response.password));
        client.phase = Phase::Connected(connection);
        self.check_lock();
    }

    /// At most one client may hold the lock.
    fn check_lock(&mut self) {
        let holds = |client: &&Client| {
            client.has_lock
                && client
                    .session
                    .is_some_and(|(session, _)| client.believes_in(session, self.checks.time, self.timeout))
        };
        let holders: Vec<usize> = self.clients.iter().filter(holds).map(|client| client.id).collect();
        if holders.len() > 1 {
            self.checks.violated(format!("clients {holders:?} hold the lock"));
        }
    }

    fn reply(&mut self, id: usize, ask: Ask, header: ReplyHeader, body: &[u8]) {
        let client = &mut self.clients[id];
        let is_done = header.err == 0;
        let mut reader = Reader::new(body);
        match ask {
            Ask::Set { path, value } if is_done => {
                let stat = Stat::decode(&mut reader).expect("a stat");
                self.checks.written(path, value, stat.mzxid);
                self.check_watch(id, path, stat.mzxid);
            }
            Ask::Get { path, watch, synced } if is_done => {
                let reply = DataReply::decode(&mut reader).expect("data");
                let value = reply.data.and_then(|data| data.try_into().ok()).map(u64::from_be_bytes);
                self.check_watch(id, path, reply.stat.mzxid);
                if watch {
                    self.clients[id].watches.insert(path, reply.stat.mzxid);
                }
                self.checks.read(path, value, header.zxid, reply.stat.mzxid, synced);
            }
            Ask::FailingMulti { value } => self.checks.undone(value),
            // An existing node may belong to a previous session that was closed without a reply.
            Ask::Own => client.owns = is_done.then_some(true),
            Ask::Owned if !is_done => {
                self.checks.violated(format!("the node of client {id} is missing although its session is alive"));
            }
            Ask::Lock if is_done => {
                client.has_lock = true;
                self.checks.count("locks");
                self.check_lock();
            }
            Ask::Close => {
                client.lose_session();
                self.checks.count("sessions closed");
            }
            _ => {}
        }
    }

    /// A watching client must get the event before a reply that shows the change.
    fn check_watch(&mut self, id: usize, path: &str, mzxid: i64) {
        if self.clients[id].watches.get(path).is_some_and(|watched| *watched < mzxid) {
            self.checks.violated(format!("client {id} sees {path} at {mzxid} before the event"));
        }
    }
}

/// A client is idle a quarter of the time.
const fn client_is_busy(id: usize, now: Time) -> bool {
    !(now / (700 * MS) + id as u64).is_multiple_of(4)
}
