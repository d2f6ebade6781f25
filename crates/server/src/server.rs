//! The gRPC server: its services and limits.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use api::servers::admin_server::AdminServer;
use api::servers::columns_server::ColumnsServer;
use api::servers::disks_server::DisksServer;
use api::servers::formation_server::FormationServer;
use api::servers::log_server::LogServer;
use base::budget::ClientBudgets;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::service::Routes;
use tonic::transport::Server;
use tower::layer::layer_fn;
use tower::util::MapRequest;
use tower::{Layer, Service, service_fn};

use crate::admission::Connections;
use crate::calls::Counting;
use crate::flow_control::{self, ClientMemory};
use crate::formation::{self, Founding};
use crate::stream::{Streams, until_shutdown};
use crate::{Gateway, Observer, admin, columns, disks, limits, log};

/// Why the server failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The descriptors built into the binary cannot be decoded: a build error.
    #[error("gRPC reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error("gRPC server: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves gRPC on `listener` until `shutdown`, and samples the node's activity for `observer`. At most
/// `connections_max` connections are open (and at most a built-in limit), and their requests and responses are within
/// `budgets`. On shutdown, calls in progress get a short grace period.
///
/// # Errors
/// When the server cannot start, or fails.
pub async fn serve<G: Gateway>(
    listener: TcpListener,
    connections_max: usize,
    budgets: ClientBudgets,
    gateway: Arc<G>,
    founding: Arc<dyn Founding>,
    observer: Arc<Observer>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let (close, closing) = watch::channel(false);
    let memory = Arc::new(ClientMemory::new(budgets));
    let streams = Arc::new(Streams::new(Arc::clone(&observer), closing.clone()));
    let routes = routes(&gateway, founding, &observer, streams).await?;
    let connections = Connections::new(listener, connections_max, Arc::clone(&memory));
    let controlling = Arc::clone(&memory);
    let flow_control = layer_fn(move |routes: Routes| controlled(Arc::clone(&controlling), routes));
    let mut layers = builder().layer(Counting(Arc::clone(&observer.calls))).layer(flow_control);
    let mut serving =
        pin!(layers.add_routes(routes).serve_with_incoming_shutdown(connections, until_shutdown(closing)));
    tokio::select! {
        ended = &mut serving => return Ok(ended?),
        () = observer.watch(&*gateway) => {}
        () = memory.sweep() => {}
        () = shutdown => {}
    }
    let _ = close.send(true);
    match tokio::time::timeout(limits::SHUTDOWN_GRACE, serving).await {
        Ok(ended) => Ok(ended?),
        Err(_) => {
            tracing::info!("connections still open after the grace period were dropped");
            Ok(())
        }
    }
}

/// The services as one connection of [`serve`] uses them, without HTTP/2. `cost` counts their instructions.
///
/// # Errors
/// As for [`serve`], without those of the transport.
pub async fn service<G: Gateway>(
    gateway: Arc<G>,
    founding: Arc<dyn Founding>,
    observer: &Arc<Observer>,
    budgets: ClientBudgets,
) -> Result<impl Service<Request<Body>, Response = Response<Body>, Error = Infallible> + use<G>, ServeError> {
    let (_, closing) = watch::channel(false);
    let streams = Arc::new(Streams::new(Arc::clone(observer), closing));
    let routes = routes(&gateway, founding, observer, streams).await?;
    let memory = Arc::new(ClientMemory::new(budgets));
    let connection = memory.connection();
    let counted = Counting(Arc::clone(&observer.calls)).layer(controlled(memory, routes));
    Ok(MapRequest::new(counted, move |mut request: Request<Body>| {
        request.extensions_mut().insert(Arc::clone(&connection));
        request
    }))
}

/// The services within the memory for clients.
fn controlled(
    memory: Arc<ClientMemory>,
    routes: Routes,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + 'static> + Clone {
    service_fn(move |request| flow_control::serve(Arc::clone(&memory), routes.clone(), request))
}

fn builder() -> Server {
    Server::builder()
        .max_concurrent_streams(limits::STREAMS_PER_CONNECTION_MAX)
        // A client that cancels all its calls keeps its connection.
        .http2_max_pending_accept_reset_streams(Some(limits::STREAMS_PER_CONNECTION_MAX as usize))
        .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(limits::KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(limits::KEEPALIVE_TIMEOUT))
}

async fn routes<G: Gateway>(
    gateway: &Arc<G>,
    founding: Arc<dyn Founding>,
    observer: &Arc<Observer>,
    streams: Arc<Streams>,
) -> Result<Routes, ServeError> {
    let is_formed = founding.genesis().is_some();
    let columns = ColumnsServer::new(columns::Handler::new(Arc::clone(gateway), Arc::clone(&streams)))
        .max_decoding_message_size(limits::REQUEST_BYTES_MAX)
        .max_encoding_message_size(limits::REPLY_BYTES_MAX);
    let log = LogServer::new(log::Handler::new(Arc::clone(gateway), streams))
        .max_decoding_message_size(limits::REQUEST_BYTES_MAX)
        .max_encoding_message_size(limits::REPLY_BYTES_MAX);
    let disks = DisksServer::new(disks::Handler::new(Arc::clone(gateway), Arc::clone(observer.nbd())))
        .max_decoding_message_size(limits::REQUEST_BYTES_MAX)
        .max_encoding_message_size(limits::REPLY_BYTES_MAX);
    let admin = AdminServer::new(admin::Handler::new(Arc::clone(gateway), Arc::clone(observer)));

    let (health, health_server) = tonic_health::server::health_reporter();
    let formation = FormationServer::new(formation::Handler(founding));
    if is_formed {
        health.set_serving::<ColumnsServer<columns::Handler<G>>>().await;
        health.set_serving::<LogServer<log::Handler<G>>>().await;
        health.set_serving::<DisksServer<disks::Handler<G>>>().await;
        health.set_serving::<AdminServer<admin::Handler<G>>>().await;
    } else {
        health.set_not_serving::<ColumnsServer<columns::Handler<G>>>().await;
        health.set_not_serving::<LogServer<log::Handler<G>>>().await;
        health.set_not_serving::<DisksServer<disks::Handler<G>>>().await;
        health.set_not_serving::<AdminServer<admin::Handler<G>>>().await;
    }

    Ok(Routes::new(columns)
        .add_service(log)
        .add_service(disks)
        .add_service(admin)
        .add_service(formation)
        .add_service(health_server)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?))
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(api::SERVICE_DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
