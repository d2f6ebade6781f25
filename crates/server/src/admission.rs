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

/// Minimum time between two warnings about closed connections, so that clients cannot flood the log.
const WARNING_PERIOD: Duration = Duration::from_secs(10);

/// The HTTP/2 connection preface (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The connections that a listener accepts.
pub(crate) struct Connections {
    listener: TcpListener,
    places: Arc<Semaphore>,
    connections_max: usize,
    memory: Arc<ClientMemory>,
    pause: Option<Pin<Box<Sleep>>>,
    /// Connections closed since the last warning, and the time of that warning.
    closed: u64,
    warned_at: Option<Instant>,
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
            closed: 0,
            warned_at: None,
        }
    }

    /// Admits the connection if there is a free slot; otherwise closes it.
    fn admit(&mut self, stream: TcpStream) -> Option<Connection> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            self.warn_of_limit(Instant::now());
            return None;
        };
        stream.set_nodelay(true).ok()?;
        let memory = self.memory.connection();
        Some(Connection { stream, preface: Some(Preface::awaited()), memory, _place: place })
    }
}

impl Connections {
    /// Logs that connections are closed at the limit, at most once in [`WARNING_PERIOD`].
    fn warn_of_limit(&mut self, now: Instant) {
        self.closed += 1;
        if is_due(self.warned_at, now) {
            let (limit, closed) = (self.connections_max, self.closed);
            tracing::warn!(limit, closed, "connections closed: limit reached (file descriptors limit it, too)");
            (self.closed, self.warned_at) = (0, Some(now));
        }
    }
}

fn is_due(warned_at: Option<Instant>, now: Instant) -> bool {
    warned_at.is_none_or(|last| now.duration_since(last) >= WARNING_PERIOD)
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
                    tracing::warn!(%error, "cannot accept a connection");
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
    fn warning_of_limit_is_rate_limited() {
        let first = Instant::now();
        assert!(is_due(None, first));
        assert!(!is_due(Some(first), first + WARNING_PERIOD / 2));
        assert!(is_due(Some(first), first + WARNING_PERIOD));
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
