//! A blocking ZooKeeper client: one session, one request at a time. It moves its session to another server when a
//! connection breaks.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use bytes::Bytes;
use coordination::ErrorCode;
use coordination::jute::{
    AuthPacket, ConnectRequest, ConnectResponse, EventType, Frames, PASSWORD_BYTES, Password, Reader, Record as _,
    ReplyHeader, Request, WatcherEvent, Writer, xid,
};
use coordination::limits::FRAME_BYTES_MAX;

/// The requested session timeout.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection is established, and the session opened on it, within this time; otherwise the next server is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Delay before retrying after all servers failed.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);
/// Timeout of the query for a server's mode, which explains why it does not respond.
const INSPECT_TIMEOUT: Duration = Duration::from_millis(300);
/// Limit of the response to it.
const INSPECT_BYTES_MAX: u64 = 16 << 10;
/// Interval at which a held session checks whether to stop.
const HOLD_INTERVAL: Duration = Duration::from_millis(100);
/// First bytes of a connection that identify other protocols.
const HEAD_BYTES: usize = 9;
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
    /// The connection broke before the reply to a write, or a session could not be continued.
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
    endpoint: String,
    stream: TcpStream,
    frames: Frames,
    /// The first bytes received.
    head: Vec<u8>,
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

    /// Connects unless connected, and resumes the session if there is one. Without one, it does not retry if every
    /// address refuses the connection or speaks another protocol.
    fn ensure_connected(&mut self, deadline: Instant) -> Result<(), Fault> {
        let count = self.endpoints.len();
        let mut failures: Vec<Option<io::Error>> = self.endpoints.iter().map(|_| None).collect();
        let mut tried = 0;
        while self.link.is_none() {
            let index = self.next % count;
            self.next += 1;
            let endpoint = self.endpoints[index].clone();
            // Each address has its share of the time.
            let untried = u32::try_from(count.saturating_sub(tried).max(1)).unwrap_or(u32::MAX);
            let share = deadline.saturating_duration_since(Instant::now()) / untried;
            tried += 1;
            match self.open(&endpoint, Instant::now() + share.min(CONNECT_TIMEOUT)) {
                Ok(true) => {}
                Ok(false) => return Err(Fault::Expired),
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    return Err(Fault::Address(format!("{endpoint}: {error}")));
                }
                Err(error) => {
                    // The last attempts may lack time, so a timeout replaces no other cause.
                    if error.kind() != io::ErrorKind::TimedOut || failures[index].is_none() {
                        failures[index] = Some(error);
                    }
                    let is_final = |failure: &Option<io::Error>| failure.as_ref().is_some_and(is_final);
                    if (self.session == 0 && failures.iter().all(is_final)) || Instant::now() >= deadline {
                        return Err(Fault::Unavailable(self.causes(&failures)));
                    }
                    if tried % count == 0 {
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        }
        Ok(())
    }

    /// The addresses and why no session was opened there, as in `a:1, b:1: connection refused; c:1: no response`.
    fn causes(&self, failures: &[Option<io::Error>]) -> String {
        let mut causes: Vec<(String, Vec<&str>)> = Vec::new();
        for (endpoint, failure) in self.endpoints.iter().zip(failures) {
            let cause = failure.as_ref().map_or_else(|| "not tried".to_owned(), |error| cause(endpoint, error));
            match causes.iter_mut().find(|(known, _)| *known == cause) {
                Some((_, endpoints)) => endpoints.push(endpoint),
                None => causes.push((cause, vec![endpoint])),
            }
        }
        let causes = causes.iter().map(|(cause, endpoints)| format!("{}: {cause}", endpoints.join(", ")));
        causes.collect::<Vec<_>>().join("; ")
    }

    /// Opens a connection; false if the session has expired.
    fn open(&mut self, endpoint: &str, until: Instant) -> io::Result<bool> {
        let mut link = Link {
            endpoint: endpoint.to_owned(),
            stream: connect(endpoint, until)?,
            frames: Frames::new(REPLY_BYTES_MAX),
            head: Vec::new(),
        };
        link.stream.set_nodelay(true)?;
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
                    let endpoint = self.link.take().map(|link| link.endpoint).unwrap_or_default();
                    if request.is_write() {
                        let size = frame.len() - 4;
                        let hint = match size > FRAME_BYTES_MAX && error.kind() != io::ErrorKind::TimedOut {
                            true => format!(
                                "; the request has {size} bytes, and servers close the connection above jute.maxbuffer, \
                                 {FRAME_BYTES_MAX} by default"
                            ),
                            false => String::new(),
                        };
                        return Err(Fault::Unknown(format!("{endpoint}: {}{hint}", cause(&endpoint, &error))));
                    }
                    if Instant::now() >= deadline {
                        return Err(Fault::Unavailable(format!("{endpoint}: {}", cause(&endpoint, &error))));
                    }
                }
            }
        }
    }

    /// Keeps the session alive until `is_stopped`, and continues it at another server if a connection breaks.
    ///
    /// # Errors
    /// [`Fault::Expired`], or [`Fault::Unknown`] if no server could be reached within the session timeout.
    pub(crate) fn hold(&mut self, is_stopped: impl Fn() -> bool) -> Result<(), Fault> {
        let (mut heard, mut ping_at) = (Instant::now(), Instant::now());
        while !is_stopped() {
            let now = Instant::now();
            if self.link.is_none() {
                let lost_at = heard + self.session_timeout;
                match self.ensure_connected(lost_at.min(now + CONNECT_TIMEOUT)) {
                    Ok(()) => (heard, ping_at) = (Instant::now(), now),
                    Err(Fault::Unavailable(_)) if Instant::now() < lost_at => {}
                    Err(Fault::Unavailable(why)) => return Err(Fault::Unknown(why)),
                    Err(fault) => return Err(fault),
                }
                continue;
            }
            let is_silent = now >= heard + self.session_timeout * 2 / 3;
            if is_silent || (now >= ping_at && self.ping().is_err()) {
                self.link = None;
                continue;
            }
            if now >= ping_at {
                ping_at = now + self.session_timeout / 3;
            }
            match self.receive(now + HOLD_INTERVAL) {
                Ok(Some(_)) => heard = Instant::now(),
                Ok(None) => {}
                Err(_) => self.link = None,
            }
        }
        Ok(())
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
            let received = self.receive(until).and_then(|received| match received {
                None if Instant::now() >= deadline => Ok(true),
                None => self.ping().map(|()| false),
                Some(_) => Ok(false),
            });
            match received {
                Ok(true) => return Ok(None),
                Ok(false) => {}
                Err(error) => {
                    let endpoint = self.link.take().map(|link| link.endpoint).unwrap_or_default();
                    return Err(Fault::Unavailable(format!("{endpoint}: {error}")));
                }
            }
        }
        Ok(self.changes.pop_front())
    }

    /// Ends the session: its ephemeral nodes are deleted.
    pub(crate) fn end(&mut self) -> Result<(), Fault> {
        self.call(&Request::CloseSession).map(drop)
    }

    /// The same for a session that may as well expire.
    pub(crate) fn close(mut self) {
        if self.link.is_some() {
            let _ = self.end();
        }
    }
}

impl Link {
    /// The next frame, or `None` on timeout.
    fn frame(&mut self, until: Instant) -> io::Result<Option<Bytes>> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(protocol) = other_protocol(&self.head) {
                let why = format!("not a ZooKeeper port: the server responds in {protocol}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            if let Some(frame) = self.frames.next().map_err(io::Error::other)? {
                return Ok(Some(frame));
            }
            let Ok(left) = left(until) else { return Ok(None) };
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    let missing = count.min(HEAD_BYTES - self.head.len());
                    self.head.extend_from_slice(&buffer[..missing]);
                    self.frames.push(&buffer[..count]);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Connects to the first address of a host that accepts.
fn connect(endpoint: &str, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::InvalidInput.into();
    for address in endpoint.to_socket_addrs()? {
        match left(until).and_then(|left| TcpStream::connect_timeout(&address, left)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether it is useless to try an address again soon.
fn is_final(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::InvalidData)
}

/// The protocol, if it is not ZooKeeper's, of a connection that begins with these bytes.
fn other_protocol(head: &[u8]) -> Option<&'static str> {
    match head {
        // A SETTINGS frame of stream 0.
        [0, 0, _, 4, _, 0, 0, 0, 0] => Some("HTTP/2, as on a gRPC port"),
        [b'H', b'T', b'T', b'P', b'/', ..] => Some("HTTP"),
        [b'N', b'B', b'D', b'M', b'A', b'G', b'I', b'C', ..] => Some("NBD"),
        // The severity in an error about the version of the protocol.
        [b'E', 0, 0, _, _, b'S', ..] => Some("PostgreSQL's protocol"),
        _ => None,
    }
}

/// Why a server did not respond, after asking it for its mode.
fn cause(endpoint: &str, error: &io::Error) -> String {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof};
    let what = match error.kind() {
        ConnectionRefused => return "connection refused".to_owned(),
        TimedOut => "no response",
        BrokenPipe | ConnectionReset | UnexpectedEof => "the server closed the connection",
        _ => return error.to_string(),
    };
    let mode = inspect(endpoint).ok().and_then(|answer| status(&answer));
    mode.map_or_else(|| what.to_owned(), |mode| format!("{what} ({mode})"))
}

/// The response to the four-letter command `srvr`.
fn inspect(endpoint: &str) -> io::Result<String> {
    let until = Instant::now() + INSPECT_TIMEOUT;
    let mut stream = connect(endpoint, until)?;
    stream.set_read_timeout(Some(left(until)?))?;
    stream.write_all(b"srvr")?;
    let mut answer = Vec::new();
    stream.take(INSPECT_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The mode and the problems in a response to `srvr`, or the error message of a server that does not serve.
fn status(answer: &str) -> Option<String> {
    let field = |name: &'static str| answer.lines().filter_map(move |line| line.strip_prefix(name));
    let Some(mode) = field("Mode: ").next() else { return answer.lines().next().map(str::to_owned) };
    let meaning = if mode == "read-only" { ": its log cannot be written" } else { "" };
    let problems: String = field("Problem: ").map(|problem| format!(", {problem}")).collect();
    Some(format!("mode {mode}{meaning}{problems}"))
}

/// Time until the deadline.
fn left(until: Instant) -> io::Result<Duration> {
    until
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
        .ok_or_else(|| io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(900);

    /// A server that responds to each connection with these bytes.
    fn server(response: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = [0; 4];
                // A connect request, or a four-letter command.
                let is_command = stream.read_exact(&mut request).is_ok() && &request == b"srvr";
                if response.starts_with(b"Zookeeper") == is_command {
                    let _ = stream.write_all(response);
                }
                // Closing with unread input would reset the connection.
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        address
    }

    /// An address that refuses connections.
    fn refusing() -> String {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
    }

    fn refused(endpoints: &[&str]) -> String {
        let endpoints = endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect();
        match Client::connect(endpoints, TIMEOUT, None) {
            Err(Fault::Unavailable(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn hopeless_addresses_fail_at_once() {
        let grpc = server(b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0");
        let (first, second) = (refusing(), refusing());
        let began = Instant::now();
        let why = refused(&[&first, &grpc, &second]);
        assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
        let grpc = format!("{grpc}: not a ZooKeeper port: the server responds in HTTP/2, as on a gRPC port");
        assert_eq!(why, format!("{first}, {second}: connection refused; {grpc}"));
        assert!(refused(&[&server(b"HTTP/1.1 400 Bad Request\r\n\r\n")]).ends_with("responds in HTTP"));
    }

    #[test]
    fn names_cause_of_each_address() {
        let read_only = server(b"Zookeeper version: 3.9\nMode: read-only\nNode count: 5\nProblem: disk full\n");
        let (silent, refusing) = (TcpListener::bind("127.0.0.1:0").unwrap(), refusing());
        let silent = silent.local_addr().map(|address| (silent, address.to_string())).unwrap();
        let why = refused(&[&read_only, &silent.1, &refusing]);
        let expected = format!(
            "{read_only}: the server closed the connection (mode read-only: its log cannot be written, disk full); \
             {}: no response; {refusing}: connection refused",
            silent.1
        );
        assert_eq!(why, expected);
    }

    #[test]
    fn status_of_other_servers() {
        let text = "This ZooKeeper instance is not currently serving requests\n";
        assert_eq!(status(text).as_deref(), Some(text.trim_end()));
        assert_eq!(status(""), None);
        assert_eq!(status("Zookeeper version: 3.9\nMode: follower\n").as_deref(), Some("mode follower"));
    }
}
