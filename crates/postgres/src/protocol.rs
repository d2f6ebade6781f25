//! PostgreSQL's protocol, version 3.0: the listener, and the connections.
//!
//! Connections are accepted without authentication. The configuration permits other addresses than loopback only with
//! `insecure_plaintext`.

mod connection;
mod cursor;
#[doc(hidden)]
pub mod message;
mod outgoing;
mod portal;
#[doc(hidden)]
pub mod startup;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::database::Databases;
use crate::limits::Cancel;

/// Maximum concurrent connections that receive the error that there are too many.
const REFUSALS_MAX: usize = 50;
/// Pause after a connection could not be accepted, for example because there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The state that all connections share.
#[derive(Debug)]
struct Shared {
    databases: Arc<Databases>,
    /// The handles by process number and secret, as sent to the client.
    cancels: Mutex<HashMap<(i32, i32), Cancel>>,
    places: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
}

impl Shared {
    /// Keeps the handle of a session until the result is dropped.
    fn register(self: &Arc<Self>, cancel: Cancel) -> Registered {
        let mut cancels = self.cancels.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let random = crate::random();
            // The process number is positive, as clients expect.
            let key = ((random >> 33) as i32, random as i32);
            if let std::collections::hash_map::Entry::Vacant(place) = cancels.entry(key) {
                place.insert(cancel);
                drop(cancels);
                return Registered { shared: Arc::clone(self), key };
            }
        }
    }

    fn cancel(&self, process: i32, secret: i32) {
        let cancels = self.cancels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cancel) = cancels.get(&(process, secret)) {
            cancel.cancel();
        }
    }
}

/// The key by which a client cancels the statements of its session.
#[derive(Debug)]
struct Registered {
    shared: Arc<Shared>,
    key: (i32, i32),
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.cancels.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// Serves at most this many clients at a time, until the runtime ends.
///
/// # Errors
/// The listener cannot be used.
pub async fn serve(listener: std::net::TcpListener, databases: Arc<Databases>, connections: usize) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let shared = Arc::new(Shared {
        databases,
        cancels: Mutex::default(),
        places: Arc::new(Semaphore::new(connections)),
        refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
    });
    loop {
        match listener.accept().await {
            Ok((stream, _)) => accept(stream, &shared),
            Err(error) => {
                tracing::warn!(%error, "can't accept a connection of a PostgreSQL client");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn accept(stream: TcpStream, shared: &Arc<Shared>) {
    let place = Arc::clone(&shared.places).try_acquire_owned();
    let refusal = match &place {
        Ok(_) => None,
        // Above this number, connections are closed without an error.
        Err(_) => match Arc::clone(&shared.refusals).try_acquire_owned() {
            Ok(refusal) => Some(refusal),
            Err(_) => return,
        },
    };
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let _ = stream.set_nodelay(true);
        if let Err(error) = connection::run(stream, shared, refusal.is_some()).await {
            tracing::debug!(%error, "connection of a PostgreSQL client");
        }
        drop(place);
    });
}
