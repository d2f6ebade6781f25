//! One session of the ZooKeeper protocol, with many outstanding requests.

use std::collections::VecDeque;
use std::io;

use bytes::{Buf, BytesMut};
use coordination::ErrorCode;
use coordination::jute::{
    ConnectRequest, ConnectResponse, Frames, Reader, Record, ReplyHeader, Request, RequestHeader, Writer, xid,
};
use tokio::net::TcpStream;

/// Maximum size of a reply.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// Size of the receive buffer.
const READ_BYTES: usize = 64 << 10;
/// Requested session timeout: long enough that no session expires during a run.
const SESSION_TIMEOUT_MS: i32 = 30_000;
const LAST_XID: i32 = i32::MAX - 1;

/// A session and its connection.
pub(super) struct Session {
    stream: TcpStream,
    frames: Frames,
    writer: Writer,
    output: BytesMut,
    input: Vec<u8>,
    next_xid: i32,
    /// The xids of the outstanding requests, in order.
    under_way: VecDeque<i32>,
}

impl Session {
    /// Opens a session at a server.
    pub(super) async fn open(endpoint: &str) -> Result<Self, sdk::Error> {
        let lost = |error: io::Error| sdk::Error::Unavailable(format!("{endpoint}: {error}"));
        let stream = TcpStream::connect(endpoint).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let mut session = Self {
            stream,
            frames: Frames::new(FRAME_BYTES_MAX),
            writer: Writer::with_chunks(READ_BYTES),
            output: BytesMut::new(),
            input: vec![0; READ_BYTES],
            next_xid: 1,
            under_way: VecDeque::new(),
        };
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms: SESSION_TIMEOUT_MS,
            session: 0,
            password: Some(&[0; 16]),
            read_only: Some(false),
        };
        let frame = session.writer.frame(|writer| request.encode(writer));
        session.output.extend_from_slice(&frame);
        let frame = session.frame().await?;
        let response = ConnectResponse::decode(&mut Reader::new(&frame)).map_err(|error| malformed(&error))?;
        if response.session == 0 {
            return Err(sdk::Error::Unavailable(format!("{endpoint} did not open a session")));
        }
        Ok(session)
    }

    pub(super) fn push(&mut self, request: &Request<'_>) {
        let xid = self.next_xid;
        self.next_xid = if xid == LAST_XID { 1 } else { xid + 1 };
        self.under_way.push_back(xid);
        let frame = self.writer.frame(|writer| {
            RequestHeader { xid, op: request.op() }.encode(writer);
            request.encode(writer);
        });
        self.output.extend_from_slice(&frame);
    }

    /// Requests without a reply.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// The next received reply: the result of the oldest outstanding request.
    pub(super) fn next_reply(&mut self) -> Result<Option<Result<(), sdk::Error>>, sdk::Error> {
        while let Some(frame) = self.next_frame()? {
            let header = ReplyHeader::decode(&mut Reader::new(&frame)).map_err(|error| malformed(&error))?;
            if header.xid == xid::NOTIFICATION || header.xid == xid::PING {
                continue;
            }
            if self.under_way.pop_front() != Some(header.xid) {
                return Err(sdk::Error::Unavailable(format!("a reply to request {} is out of order", header.xid)));
            }
            return Ok(Some(outcome(header.err)));
        }
        Ok(None)
    }

    /// Sends one request and waits for its reply; no other may be outstanding.
    pub(super) async fn call(&mut self, request: &Request<'_>) -> Result<(), sdk::Error> {
        self.push(request);
        loop {
            if let Some(outcome) = self.next_reply()? {
                return outcome;
            }
            self.transfer().await?;
        }
    }

    /// Waits until the socket is ready, then sends and receives without blocking.
    pub(super) async fn transfer(&mut self) -> Result<(), sdk::Error> {
        let lost = |error: io::Error| sdk::Error::Unavailable(format!("connection lost: {error}"));
        let has_sent = !self.output.is_empty() && self.send().map_err(lost)?;
        let mut interest = tokio::io::Interest::READABLE;
        if !self.output.is_empty() && !has_sent {
            interest |= tokio::io::Interest::WRITABLE;
        }
        let ready = self.stream.ready(interest).await.map_err(lost)?;
        if ready.is_readable() {
            match self.stream.try_read(&mut self.input) {
                Ok(0) => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.frames.push(&self.input[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(())
    }

    /// Sends until the socket is full; true if everything was sent.
    fn send(&mut self) -> io::Result<bool> {
        match self.stream.try_write(&self.output) {
            Ok(count) => self.output.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(self.output.is_empty())
    }

    async fn frame(&mut self) -> Result<bytes::Bytes, sdk::Error> {
        loop {
            if let Some(frame) = self.next_frame()? {
                return Ok(frame);
            }
            self.transfer().await?;
        }
    }

    fn next_frame(&mut self) -> Result<Option<bytes::Bytes>, sdk::Error> {
        self.frames.next().map_err(|error| sdk::Error::Unavailable(error.to_string()))
    }
}

fn malformed(error: &coordination::jute::DecodeError) -> sdk::Error {
    sdk::Error::Unavailable(format!("a reply cannot be decoded: {error}"))
}

/// Describes an error code of a reply.
fn outcome(code: i32) -> Result<(), sdk::Error> {
    if code == 0 {
        return Ok(());
    }
    let Some(known) = ErrorCode::from_code(code) else {
        return Err(sdk::Error::Unavailable(format!("error {code}")));
    };
    Err(match known {
        ErrorCode::NodeExists => sdk::Error::Exists(known.to_string()),
        ErrorCode::NoNode => sdk::Error::NotFound(known.to_string()),
        other => sdk::Error::Unavailable(format!("error {code}: {other}")),
    })
}
