//! A blocking ZooKeeper client: one session, one request at a time. It moves its session to another server when a
//! connection breaks.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use bytes::Bytes;
use coordination::ErrorCode;
use coordination::jute::{
    AuthPacket, ConnectRequest, ConnectResponse, EventType, Frame, Frames, PASSWORD_BYTES, Password, Reader,
    Record as _, ReplyHeader, Request, WatcherEvent, Writer, xid,
};

/// The requested session timeout.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection is established, and the session opened on it, within this time; otherwise the next server is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Delay before retrying after all servers failed.
const PAUSE: Duration = Duration::from_millis(50);
/// Limit of a reply.
const REPLY_BYTES_MAX: usize = 1 << 30;
/// Size of a reply's header.
const HEADER_BYTES: usize = 16;
/// The protocol's fixed xid of authentication packets.
const AUTH_XID: i32 = -4;

/// Why a request has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The server returned an error.
    #[error("{0}")]
    Refused(ErrorCode),
    /// An address cannot be resolved.
    #[error("{0}")]
    Address(String),
    /// No server responded; nothing was changed.
    #[error("{0}")]
    Unavailable(String),
    /// The connection broke before the reply to a write.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// The session has expired.
    #[error("the session has expired")]
    Expired,
}

/// A change of a watched node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) kind: EventType,
    pub(crate) path: String,
}

/// A connection to a server.
#[derive(Debug)]
struct Link {
    stream: TcpStream,
    frames: Frames,
}

/// A client with a session.
#[derive(Debug)]
pub(crate) struct Client {
    endpoints: Vec<String>,
    /// The endpoint to try next.
    next: usize,
    /// Maximum time of a request, with retries.
    timeout: Duration,
    auth: Option<String>,
    link: Option<Link>,
    pub(crate) session: i64,
    password: Password,
    session_timeout: Duration,
    last_zxid: i64,
    xid: i32,
    changes: VecDeque<Change>,
}

impl Client {
    /// Opens a session at the first server that responds. `auth` is `user:password` of scheme `digest`.
    pub(crate) fn connect(endpoints: Vec<String>, timeout: Duration, auth: Option<String>) -> Result<Self, Fault> {
        let mut client = Self {
            endpoints,
            next: 0,
            timeout,
            auth,
            link: None,
            session: 0,
            password: [0; PASSWORD_BYTES],
            session_timeout: SESSION_TIMEOUT,
            last_zxid: 0,
            xid: 0,
            changes: VecDeque::new(),
        };
        client.ensure_connected(Instant::now() + timeout)?;
        Ok(client)
    }

    /// Connects unless connected, and resumes the session if there is one.
    fn ensure_connected(&mut self, deadline: Instant) -> Result<(), Fault> {
        let mut tried = 0;
        while self.link.is_none() {
            let endpoint = self.endpoints[self.next % self.endpoints.len()].clone();
            self.next += 1;
            tried += 1;
            let until = deadline.min(Instant::now() + CONNECT_TIMEOUT);
            match self.open(&endpoint, until) {
                Ok(true) => {}
                Ok(false) => return Err(Fault::Expired),
                Err(error) if Instant::now() >= deadline => {
                    return Err(Fault::Unavailable(format!("{endpoint}: {error}")));
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    return Err(Fault::Address(format!("{endpoint}: {error}")));
                }
                Err(_) if tried % self.endpoints.len() == 0 => std::thread::sleep(PAUSE),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Opens a connection; false if the session has expired.
    fn open(&mut self, endpoint: &str, until: Instant) -> io::Result<bool> {
        let address = endpoint.to_socket_addrs()?.next().ok_or(io::ErrorKind::InvalidInput)?;
        let stream = TcpStream::connect_timeout(&address, left(until)?)?;
        stream.set_nodelay(true)?;
        let mut link = Link { stream, frames: Frames::new(REPLY_BYTES_MAX) };
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: self.last_zxid,
            timeout_ms: i32::try_from(SESSION_TIMEOUT.as_millis()).unwrap_or(i32::MAX),
            session: self.session,
            password: Some(&self.password),
            read_only: Some(false),
        };
        link.stream.write_all(&Writer::new().frame(|writer| request.encode(writer)))?;
        let frame = link.frame(until)?.ok_or(io::ErrorKind::TimedOut)?;
        let response = ConnectResponse::decode(&mut Reader::new(&frame)).map_err(io::Error::other)?;
        if response.session == 0 {
            return Ok(false);
        }
        (self.session, self.password) = (response.session, response.password);
        self.session_timeout = Duration::from_millis(response.timeout_ms.unsigned_abs().into());
        if let Some(auth) = &self.auth {
            let packet = AuthPacket { kind: 0, scheme: Some("digest"), auth: Some(auth.as_bytes()) };
            link.stream.write_all(&Request::Auth(packet).to_frame(AUTH_XID))?;
        }
        self.link = Some(link);
        Ok(true)
    }

    /// Sends a request and returns the record of its reply. A read is repeated at another server if the connection
    /// breaks.
    pub(crate) fn call(&mut self, request: &Request<'_>) -> Result<Bytes, Fault> {
        let deadline = Instant::now() + self.timeout;
        loop {
            self.ensure_connected(deadline)?;
            self.xid += 1;
            let (frame, xid) = (request.to_frame(self.xid), self.xid);
            match self.exchange(&frame, xid, deadline) {
                Ok(reply) => return reply.map_err(Fault::Refused),
                Err(error) => {
                    self.link = None;
                    if request.is_write() {
                        return Err(Fault::Unknown(error.to_string()));
                    }
                    if Instant::now() >= deadline {
                        return Err(Fault::Unavailable(error.to_string()));
                    }
                }
            }
        }
    }

    fn exchange(&mut self, frame: &[u8], xid: i32, deadline: Instant) -> io::Result<Result<Bytes, ErrorCode>> {
        if let Some(link) = &mut self.link {
            link.stream.write_all(frame)?;
        }
        let mut until = deadline.min(Instant::now() + self.session_timeout / 3);
        loop {
            match self.receive(until)? {
                Some((header, body)) if header.xid == xid => {
                    return Ok(match header.err {
                        0 => Ok(body),
                        err => Err(ErrorCode::from_code(err).unwrap_or(ErrorCode::RuntimeInconsistency)),
                    });
                }
                Some(_) => {}
                None if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
                None => {
                    self.ping()?;
                    until = deadline.min(Instant::now() + self.session_timeout / 3);
                }
            }
        }
    }

    fn ping(&mut self) -> io::Result<()> {
        match &mut self.link {
            Some(link) => link.stream.write_all(&Request::Ping.to_frame(xid::PING)),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The next reply with its record, or `None` on timeout. Events are queued.
    fn receive(&mut self, until: Instant) -> io::Result<Option<(ReplyHeader, Bytes)>> {
        let Some(link) = &mut self.link else { return Err(io::ErrorKind::NotConnected.into()) };
        let Some(frame) = link.frame(until)? else { return Ok(None) };
        let header = ReplyHeader::decode(&mut Reader::new(&frame)).map_err(io::Error::other)?;
        self.last_zxid = self.last_zxid.max(header.zxid);
        let body = frame.slice(HEADER_BYTES..);
        if header.xid == AUTH_XID && header.err != 0 {
            return Err(io::Error::other("authentication failed"));
        }
        if header.xid == xid::NOTIFICATION {
            let event = WatcherEvent::decode(&mut Reader::new(&body)).map_err(io::Error::other)?;
            let kind = EventType::from_code(event.kind).map_err(io::Error::other)?;
            self.changes.push_back(Change { kind, path: event.path.to_owned() });
        }
        Ok(Some((header, body)))
    }

    /// Waits for a change of a watched node, keeping the session alive; `None` on timeout.
    ///
    /// # Errors
    /// [`Fault::Unavailable`] if the connection broke: the watches must be set again.
    pub(crate) fn change(&mut self, patience: Duration) -> Result<Option<Change>, Fault> {
        let deadline = Instant::now() + patience;
        while self.changes.is_empty() {
            let until = deadline.min(Instant::now() + self.session_timeout / 3);
            let broken = |error: io::Error| Fault::Unavailable(error.to_string());
            let received = self.receive(until).and_then(|received| match received {
                None if Instant::now() >= deadline => Ok(true),
                None => self.ping().map(|()| false),
                Some(_) => Ok(false),
            });
            match received {
                Ok(true) => return Ok(None),
                Ok(false) => {}
                Err(error) => {
                    self.link = None;
                    return Err(broken(error));
                }
            }
        }
        Ok(self.changes.pop_front())
    }

    /// Ends the session: its ephemeral nodes are deleted.
    pub(crate) fn close(mut self) {
        // If this fails, the session expires on its own.
        let _ = self.call(&Request::CloseSession);
    }
}

impl Link {
    /// The next frame, or `None` on timeout.
    fn frame(&mut self, until: Instant) -> io::Result<Option<Bytes>> {
        let mut buffer = [0; 16 << 10];
        loop {
            match self.frames.next().map_err(io::Error::other)? {
                Some(Frame::Whole(frame)) => return Ok(Some(frame)),
                Some(Frame::Oversized(_)) => return Err(io::Error::other("reply too large")),
                None => {}
            }
            let Ok(left) = left(until) else { return Ok(None) };
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.frames.push(&buffer[..count]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Time until the deadline.
fn left(until: Instant) -> io::Result<Duration> {
    until
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
        .ok_or_else(|| io::ErrorKind::TimedOut.into())
}
