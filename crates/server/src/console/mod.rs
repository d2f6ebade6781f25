//! The console: an HTTP server for browsers, Prometheus and health checks.
//!
//! | path | content |
//! |---|---|
//! | `/` | overview of the cluster; polls `/api/status` every second |
//! | `/activity` | sessions, databases, transactions, configurations and disks |
//! | `/api/status` | status of the cluster as one JSON document |
//! | `/api/sql` | sessions of this node and databases as one JSON document |
//! | `/metrics` | this node's metrics in Prometheus's text format |
//! | `/healthz` | 200 while this node's state machine responds, otherwise 503 with the reason |
//!
//! The console is read-only. The page is built in and loads nothing from other origins; its `Content-Security-Policy`
//! makes the browser refuse all other content.
//!
//! Like every endpoint, the console responds within a bounded time and tolerates untrusted clients: connections, their
//! lifetime, their headers and the time to send them are bounded (`limits`), and requests with a body are refused.

mod connections;

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, TRANSFER_ENCODING,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::TEXT_FORMAT;
use tokio::net::TcpListener;

use crate::Gateway;
use crate::observer::{self, Observer};

const PAGE: &str = include_str!("assets/index.html");
const ACTIVITY_PAGE: &str = include_str!("assets/activity.html");
const ACTIVITY_SCRIPT: &str = include_str!("assets/activity.js");
const STYLE: &str = include_str!("assets/style.css");
const SCRIPT: &str = include_str!("assets/page.js");
const ICON: &str = include_str!("assets/icon.svg");

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// Nothing from other origins, nothing inline, no framing.
const POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");

/// The whole cluster, as seen by the process that runs the node.
pub trait Cluster: Send + Sync + 'static {
    /// The status of the cluster as a JSON document. Completes within a bounded time, and costs no more with concurrent
    /// callers.
    fn status(&self) -> impl Future<Output = Arc<str>> + Send;

    /// The sessions of PostgreSQL clients on this node and the databases, as a JSON document; likewise.
    fn sql(&self) -> impl Future<Output = Arc<str>> + Send;
}

/// The state of the console.
struct Behind<G, U> {
    gateway: Arc<G>,
    observer: Arc<Observer>,
    cluster: U,
}

/// Serves the console on `listener` until `shutdown`, with at most `connections_max` connections (and at most a
/// built-in limit). Then responses in progress get a short grace period.
pub async fn serve<G: Gateway, U: Cluster>(
    listener: TcpListener,
    connections_max: usize,
    gateway: Arc<G>,
    observer: Arc<Observer>,
    cluster: U,
    shutdown: impl Future<Output = ()> + Send,
) {
    let routes = routes(Behind { gateway, observer, cluster });
    connections::serve(listener, connections_max, &routes, shutdown).await;
}

fn routes<G: Gateway, U: Cluster>(behind: Behind<G, U>) -> Router {
    let asset = |kind: &'static str, content: &'static str| get(move || async move { answer(kind, content) });
    Router::new()
        .route("/", asset(HTML, PAGE))
        .route("/style.css", asset(CSS, STYLE))
        .route("/page.js", asset(JAVASCRIPT, SCRIPT))
        .route("/icon.svg", asset(SVG, ICON))
        .route("/activity", asset(HTML, ACTIVITY_PAGE))
        .route("/activity.js", asset(JAVASCRIPT, ACTIVITY_SCRIPT))
        .route("/api/status", get(status::<G, U>))
        .route("/api/sql", get(sql::<G, U>))
        .route("/metrics", get(metrics::<G, U>))
        .route("/healthz", get(health::<G, U>))
        .fallback(async || (StatusCode::NOT_FOUND, answer(TEXT, "not found\n")))
        .layer(from_fn(without_body))
        .layer(map_response(sealed))
        .with_state(Arc::new(behind))
}

async fn status<G: Gateway, U: Cluster>(State(behind): State<Arc<Behind<G, U>>>) -> Response {
    answer(JSON, behind.cluster.status().await.to_string())
}

async fn sql<G: Gateway, U: Cluster>(State(behind): State<Arc<Behind<G, U>>>) -> Response {
    answer(JSON, behind.cluster.sql().await.to_string())
}

async fn metrics<G: Gateway, U: Cluster>(State(behind): State<Arc<Behind<G, U>>>) -> Response {
    match behind.observer.metrics(&*behind.gateway).await {
        Ok(text) => answer(TEXT_FORMAT, text),
        Err(error) => {
            tracing::error!(%error, "cannot encode the metrics");
            (StatusCode::INTERNAL_SERVER_ERROR, answer(TEXT, format!("{error}\n"))).into_response()
        }
    }
}

async fn health<G: Gateway, U: Cluster>(State(behind): State<Arc<Behind<G, U>>>) -> Response {
    match observer::status(&*behind.gateway).await {
        Ok(_) => answer(TEXT, "ok"),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, answer(TEXT, format!("{reason}\n"))).into_response(),
    }
}

fn answer(kind: &'static str, content: impl IntoResponse) -> Response {
    ([(CONTENT_TYPE, kind)], content).into_response()
}

/// Refuses requests with a body before it is read, and closes the connection afterwards.
async fn without_body(request: Request, next: Next) -> Response {
    let length = request.headers().get(CONTENT_LENGTH);
    if length.is_some_and(|length| length != "0") || request.headers().contains_key(TRANSFER_ENCODING) {
        return (StatusCode::PAYLOAD_TOO_LARGE, answer(TEXT, "requests to the console must not have a body\n"))
            .into_response();
    }
    next.run(request).await
}

/// Adds the headers that every response has, including refusals.
async fn sealed(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // Content is always current, and the page belongs to this binary.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
