//! Connections of the console: limits their number and lifetime, and closes those that do not send a request in time.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::admission::Warning;
use crate::limits::{
    ACCEPT_PAUSE, CONSOLE_CONNECTION_TIME_MAX, CONSOLE_CONNECTIONS_MAX, CONSOLE_HEADER_BYTES_MAX, CONSOLE_HEADERS_MAX,
    CONSOLE_REQUEST_TIME_MAX, SHUTDOWN_GRACE,
};

/// Serves `routes` until `shutdown`.
pub(super) async fn serve(
    listener: TcpListener,
    connections_max: usize,
    routes: &Router,
    shutdown: impl Future<Output = ()> + Send,
) {
    let slots = Arc::new(Semaphore::new(connections_max.min(CONSOLE_CONNECTIONS_MAX)));
    let (close, closing) = watch::channel(());
    let mut connections = JoinSet::new();
    let (mut at_limit, mut not_accepted) = (Warning::default(), Warning::default());
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((stream, _)) => {
                // Without a free slot the connection is closed.
                if let Ok(slot) = Arc::clone(&slots).try_acquire_owned() {
                    let serving = converse(stream, routes.clone(), closing.clone());
                    connections.spawn(async move {
                        serving.await;
                        drop(slot);
                    });
                } else if let Some(suppressed) = at_limit.admit(Instant::now()) {
                    tracing::warn!(connections_max, suppressed, "console connection closed: limit reached");
                }
            }
            Err(error) => {
                if let Some(suppressed) = not_accepted.admit(Instant::now()) {
                    tracing::warn!(%error, suppressed, "cannot accept a console connection");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    drop(close);
    // Connections still open after the grace period are aborted with the set.
    let _ = timeout(SHUTDOWN_GRACE, async { while connections.join_next().await.is_some() {} }).await;
}

/// Serves one connection. Shutdown waits for a response in progress, within the grace period.
async fn converse(stream: TcpStream, routes: Router, mut closing: watch::Receiver<()>) {
    let _ = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(CONSOLE_REQUEST_TIME_MAX)
        .max_headers(CONSOLE_HEADERS_MAX)
        .max_header_size(CONSOLE_HEADER_BYTES_MAX)
        .max_buf_size(CONSOLE_HEADER_BYTES_MAX);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)));
    tokio::select! {
        // Errors only affect the client.
        _ = &mut serving => return,
        _ = closing.changed() => {}
        () = sleep(CONSOLE_CONNECTION_TIME_MAX) => {}
    }
    serving.as_mut().graceful_shutdown();
    let _ = timeout(SHUTDOWN_GRACE, serving).await;
}
