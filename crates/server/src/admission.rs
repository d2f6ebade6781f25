//! Connection admission: limits the number of connections, and closes those that do not start HTTP/2 in time.
//!
//! HTTP/2 begins with a fixed preface. A connection that sends anything else is closed at the first wrong byte, and a
//! silent one after [`PREFACE_TIME_MAX`]. Afterwards, HTTP/2 pings detect dead connections.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use crate::flow_control::{self, ClientMemory};
use crate::limits::{ACCEPT_PAUSE, CONNECTIONS_MAX, PREFACE_TIME_MAX};

/// Minimum time between two equal warnings, so that clients cannot flood the log.
const WARNING_PERIOD: Duration = Duration::from_secs(10);

/// Rate-limits a warning.
#[derive(Debug, Default)]
pub(crate) struct Warning {
    given_at: Option<Instant>,
    suppressed: u64,
}

impl Warning {
    /// Whether to log the warning now, and how often it was suppressed since the last time.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.given_at.is_some_and(|last| now.duration_since(last) < WARNING_PERIOD) {
            self.suppressed += 1;
            return None;
        }
        self.given_at = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// The HTTP/2 connection preface (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The connections that a listener accepts.
pub(crate) struct Connections {
    listener: TcpListener,
    places: Arc<Semaphore>,
    connections_max: usize,
    memory: Arc<ClientMemory>,
    pause: Option<Pin<Box<Sleep>>>,
    at_limit: Warning,
    not_accepted: Warning,
}

impl Connections {
    pub(crate) fn new(listener: TcpListener, connections_max: usize, memory: Arc<ClientMemory>) -> Self {
        let connections_max = connections_max.min(CONNECTIONS_MAX);
        Self {
            listener,
            places: Arc::new(Semaphore::new(connections_max)),
            connections_max,
            memory,
            pause: None,
            at_limit: Warning::default(),
            not_accepted: Warning::default(),
        }
    }

    /// Admits the connection if there is a free slot; otherwise closes it.
    fn admit(&mut self, stream: TcpStream) -> Option<Connection> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            if let Some(suppressed) = self.at_limit.admit(Instant::now()) {
                let limit = self.connections_max;
                tracing::warn!(limit, suppressed, "connection closed: limit reached (file descriptors limit it, too)");
            }
            return None;
        };
        stream.set_nodelay(true).ok()?;
        let memory = self.memory.connection();
        Some(Connection { stream, preface: Some(Preface::awaited()), memory, _place: place })
    }
}

impl Stream for Connections {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => {
                    if let Some(connection) = self.admit(stream) {
                        return Poll::Ready(Some(Ok(connection)));
                    }
                }
                Err(error) => {
                    if let Some(suppressed) = self.not_accepted.admit(Instant::now()) {
                        tracing::warn!(%error, suppressed, "cannot accept a connection");
                    }
                    self.pause = Some(Box::pin(sleep(ACCEPT_PAUSE)));
                }
            }
        }
    }
}

pub(crate) struct Connection {
    stream: TcpStream,
    /// The outstanding part of the preface; `None` once it is complete.
    preface: Option<Preface>,
    memory: Arc<flow_control::Connection>,
    _place: OwnedSemaphorePermit,
}

/// The preface of a connection, as far as it was received.
struct Preface {
    seen: usize,
    patience: Pin<Box<Sleep>>,
}

impl Preface {
    fn awaited() -> Self {
        Self { seen: 0, patience: Box::pin(sleep(PREFACE_TIME_MAX)) }
    }

    /// Checks received bytes against the preface; true once it is complete.
    fn see(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let awaited = &PREFACE[self.seen..];
        let count = awaited.len().min(bytes.len());
        if awaited[..count] != bytes[..count] {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the connection does not speak HTTP/2"));
        }
        self.seen += count;
        Ok(self.seen == PREFACE.len())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let Some(preface) = &mut self.preface else { return read };
        if read.is_pending() {
            ready!(preface.patience.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if preface.see(&buffer.filled()[before..])? {
            self.preface = None;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Calls find the memory of their connection in their extensions.
impl Connected for Connection {
    type ConnectInfo = Arc<flow_control::Connection>;

    fn connect_info(&self) -> Self::ConnectInfo {
        Arc::clone(&self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_is_rate_limited() {
        let (mut warning, first) = (Warning::default(), Instant::now());
        assert_eq!(warning.admit(first), Some(0));
        assert_eq!(warning.admit(first + WARNING_PERIOD / 2), None);
        assert_eq!(warning.admit(first + WARNING_PERIOD), Some(1));
    }

    #[tokio::test]
    async fn fragmented_http2_preface() {
        for piece in 1..PREFACE.len() {
            let mut preface = Preface::awaited();
            let mut whole = false;
            for bytes in PREFACE.chunks(piece) {
                whole = preface.see(bytes).expect("the right bytes");
            }
            assert!(whole, "in pieces of {piece}");
        }
        assert!(Preface::awaited().see(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n and more").expect("the right bytes"));
        assert!(Preface::awaited().see(b"GET / HTTP/1.1\r\n").is_err());
    }
}
