//! One HTTP/2 connection for each endpoint, opened on first use and again after it breaks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::{Error, Fault};
use tokio::sync::Mutex;
use tonic::transport::{Channel, Endpoint};

/// Connect timeout: an unreachable machine does not respond at all.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);
/// HTTP/2 flow control window of a stream: the largest value in one round trip.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
/// HTTP/2 flow control window of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// A connection, with its endpoint and generation.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) channel: Channel,
    endpoint: usize,
    generation: u64,
}

#[derive(Debug)]
struct EndpointState {
    endpoint: Endpoint,
    name: String,
    /// The current connection, if any, and the generation of the last one.
    slot: Mutex<(Option<Channel>, u64)>,
    /// Whether a node has ever responded at this endpoint.
    has_answered: AtomicBool,
}

/// The endpoints of a cluster.
#[derive(Debug)]
pub(crate) struct Endpoints {
    endpoints: Vec<EndpointState>,
}

impl Endpoints {
    pub(crate) fn parse<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        let endpoints = names.into_iter().map(|name| parse_endpoint(name.as_ref())).collect::<Result<Vec<_>, _>>()?;
        if endpoints.is_empty() {
            return Err(Error::Invalid("no endpoints given".into()));
        }
        Ok(Self { endpoints })
    }

    pub(crate) fn count(&self) -> usize {
        self.endpoints.len()
    }

    pub(crate) fn name(&self, endpoint: usize) -> &str {
        &self.endpoints[endpoint].name
    }

    /// The connection to an endpoint. Concurrent callers wait for the same connection attempt.
    pub(crate) async fn connection(&self, endpoint: usize) -> Result<Connection, String> {
        let state = &self.endpoints[endpoint];
        let mut slot = state.slot.lock().await;
        let channel = match &slot.0 {
            Some(channel) => channel.clone(),
            None => {
                let made = state.endpoint.connect().await;
                let channel = made.map_err(|error| format!("{}: {}", state.name, innermost(&error)))?;
                *slot = (Some(channel.clone()), slot.1 + 1);
                channel
            }
        };
        Ok(Connection { channel, endpoint, generation: slot.1 })
    }

    /// Adds a hint to a lost call's error if no node has ever responded at the endpoint: the listener there may be
    /// another service.
    pub(crate) fn judged<T>(&self, endpoint: usize, result: Result<T, Fault>) -> Result<T, Fault> {
        let EndpointState { name, has_answered, .. } = &self.endpoints[endpoint];
        match result {
            Err(Fault::Lost(reason)) if !has_answered.load(Ordering::Relaxed) => {
                Err(Fault::Lost(format!("{reason}; is {name} the gRPC address of a node?")))
            }
            Err(Fault::Lost(_) | Fault::Silent) => result,
            _ => {
                has_answered.store(true, Ordering::Relaxed);
                result
            }
        }
    }

    /// Closes this connection, unless a newer one exists, so that the next call opens a new one.
    pub(crate) async fn drop_connection(&self, connection: &Connection) {
        let mut slot = self.endpoints[connection.endpoint].slot.lock().await;
        if slot.1 == connection.generation {
            slot.0 = None;
        }
    }
}

fn parse_endpoint(name: &str) -> Result<EndpointState, Error> {
    let wrong = |error: &dyn std::fmt::Display| Error::Invalid(format!("endpoint {name:?}: {error}"));
    let address = name.strip_prefix("loggos://").or_else(|| name.strip_prefix("http://")).unwrap_or(name);
    if !address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
        return Err(wrong(&"not of the form HOST:PORT"));
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| wrong(&error))?
        .connect_timeout(CONNECT_TIME_MAX)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    Ok(EndpointState {
        endpoint,
        name: address.to_owned(),
        slot: Mutex::new((None, 0)),
        has_answered: AtomicBool::new(false),
    })
}

/// The innermost cause of an error, which is the most specific: "Connection refused" rather than "transport error".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_host_port_endpoints() {
        assert_eq!(Endpoints::parse(["127.0.0.1:7201", "loggos://[::1]:7202"]).expect("two endpoints").count(), 2);
        for wrong in ["", "localhost", ":7201", "localhost:x", "localhost:70000", "a b:1"] {
            assert!(matches!(Endpoints::parse([wrong]), Err(Error::Invalid(_))), "{wrong:?}");
        }
        assert!(Endpoints::parse::<&str>([]).is_err());
    }

    #[test]
    fn hints_wrong_port_until_first_reply() {
        let endpoints = Endpoints::parse(["127.0.0.1:7101"]).expect("an endpoint");
        let lost = || endpoints.judged::<()>(0, Err(Fault::Lost("broken pipe".into())));
        let doubted = Fault::Lost("broken pipe; is 127.0.0.1:7101 the gRPC address of a node?".into());
        assert_eq!(lost(), Err(doubted));
        assert_eq!(endpoints.judged(0, Ok(7)), Ok(7));
        assert_eq!(lost(), Err(Fault::Lost("broken pipe".into())));
    }
}
