//! An abusive client: it does not wait for replies, sends oversized credentials, and requests much output with few
//! bytes. Checks that the load of other clients does not delay its syncs forever, and that its requests do not harm
//! others.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{MS, SAFETY, TIMEOUT, Time, World};
use crate::jute::{
    AclRecord, AuthPacket, ConnectRequest, Create, CreateKind, IdRecord, Operations, PathAndWatch, ReadOperation,
    Reader, Record, ReplyHeader, Request, Sequence, Sync, Writer, xid,
};
use crate::model::{Network as _, OPEN};
use crate::server::ConnectionId;

/// Its number among the clients.
pub(super) const FLOOD: usize = usize::MAX;
/// Each byte of invalid UTF-8 becomes three bytes of an identity.
static GARBAGE: [u8; 600_000] = [0xff; 600_000];
/// Faults that started in the first phase have ended by this time.
const CALM: Time = SAFETY + 1_800 * MS;
const SYNC_MAX: Time = 500 * MS;

#[derive(Debug, Default)]
pub(super) struct Flood {
    connection: Option<ConnectionId>,
    is_open: bool,
    last_received: Time,
    pinged: Time,
    xid: i32,
    syncs: VecDeque<(i32, Time)>,
}

impl World {
    pub(super) fn flood_step(&mut self) {
        // The log grows continuously, so a lagging server never reaches its tail.
        if self.time > SAFETY && self.random.chance(300_000) {
            self.place(Some(&Bytes::from_static(b"not an entry of a server")), self.time, None, MS / 10);
        }
        let Some(connection) = self.flood.connection else { return self.flood_connects() };
        if self.time - self.flood.last_received > TIMEOUT.0 {
            return self.flood_hangs_up();
        }
        if !self.flood.is_open {
            return;
        }
        if self.time - self.flood.pinged > TIMEOUT.0 / 4 {
            self.flood.pinged = self.time;
            self.send_frame(connection, &Request::Ping.to_frame(xid::PING));
        }
        // A stopped server does not reply, which the client detects by its timeout.
        if self.links.contains_key(&connection)
            && let Some((_, sent)) = self.flood.syncs.front()
            && self.time.saturating_sub(*sent.max(&CALM)) > SYNC_MAX
        {
            self.clients.checks.violated(format!("a sync sent at {sent} got no reply"));
        }
        match self.random.below(1_000) {
            // The server closes the connection.
            0..2 if self.time < SAFETY => {
                let auth = AuthPacket { kind: 0, scheme: Some("digest"), auth: Some(&GARBAGE) };
                self.send_frame(connection, &Request::Auth(auth).to_frame(-4));
                self.clients.checks.count("oversized credentials");
            }
            // A write after a sync is submitted only once the sync is answered, so few of them are sent.
            2..30 if self.time < SAFETY => {
                let own = [AclRecord { perms: 31, id: IdRecord { scheme: Some("auth"), id: None } }];
                let acl = Sequence::of(if self.random.chance(500_000) { OPEN } else { &own });
                let kind = CreateKind::Create;
                let create = Create { kind, path: "/flood", data: None, acl, flags: 0, ttl_ms: None };
                self.flood_asks(connection, Request::Create(create));
            }
            30..60 => {
                let read = ReadOperation::GetChildren(PathAndWatch { path: "/", watch: false });
                for _ in 0..20 {
                    self.flood_asks(connection, Request::MultiRead(Operations::of(&[read; 40])));
                }
            }
            _ => {
                self.flood_asks(connection, Request::Sync(Sync { path: "/" }));
                self.flood.syncs.push_back((self.flood.xid, self.time));
            }
        }
    }

    /// Closes its connection and abandons its requests.
    pub(super) fn flood_hangs_up(&mut self) {
        if let Some(connection) = std::mem::take(&mut self.flood).connection {
            self.hang_up(connection);
        }
    }

    fn flood_connects(&mut self) {
        let connection = self.dial(FLOOD);
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms: i32::try_from(TIMEOUT.as_millis()).unwrap_or(0),
            session: 0,
            password: None,
            read_only: Some(false),
        };
        self.send_frame(connection, &Writer::new().frame(|writer| request.encode(writer)));
        let (last_received, pinged) = (self.time, self.time);
        self.flood = Flood { connection: Some(connection), last_received, pinged, ..Flood::default() };
    }

    fn flood_asks(&mut self, connection: ConnectionId, request: Request<'_>) {
        self.flood.xid += 1;
        self.send_frame(connection, &request.to_frame(self.flood.xid));
    }

    pub(super) fn flood_hears(&mut self, connection: ConnectionId, frame: Option<Bytes>) {
        if self.flood.connection != Some(connection) {
            return;
        }
        let Some(frame) = frame else {
            self.flood = Flood::default();
            return;
        };
        self.flood.last_received = self.time;
        if !std::mem::replace(&mut self.flood.is_open, true) {
            return;
        }
        let header = ReplyHeader::decode(&mut Reader::new(&frame[4..])).expect("a header");
        if self.flood.syncs.pop_front_if(|(asked, _)| *asked == header.xid).is_some() {
            self.clients.checks.count("syncs of the flooding client");
        }
    }
}
