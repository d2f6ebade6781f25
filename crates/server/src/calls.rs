//! Counts gRPC calls, with the metric names that gRPC servers customarily use (those of `go-grpc-prometheus`).
//!
//! An untrusted client may call any path. Only methods in the served descriptors have their own series; all other calls
//! share one, which bounds the cardinality of labels.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};

/// Upper bounds of the duration buckets, in seconds: from a read in memory to the longest default deadline.
pub(crate) const SECONDS: [f64; 16] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// The services that serve data.
const DATA: [&str; 2] = ["loggos.columns.v1.Columns", "loggos.log.v1.Log"];
/// The label of calls to unknown methods.
const UNKNOWN: &str = "unknown";
/// The names of the status codes by number, as printed by gRPC's libraries.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// All calls of the gRPC server.
#[derive(Debug)]
pub(crate) struct Calls {
    methods: HashMap<String, Arc<Method>>,
    unknown: Arc<Method>,
    data: Arc<AtomicU64>,
    streamed: IntCounter,
    subscribed: IntCounter,
}

/// The calls of one method. Its series are registered with the first call.
#[derive(Debug)]
struct Method {
    service: String,
    name: String,
    families: Families,
    series: OnceLock<Series>,
    /// Counts the calls of the data services.
    data: Option<Arc<AtomicU64>>,
}

#[derive(Debug)]
struct Series {
    started: IntCounter,
    seconds: Histogram,
    handled: [OnceLock<IntCounter>; CODES.len()],
}

#[derive(Clone, Debug)]
struct Families {
    started: IntCounterVec,
    handled: IntCounterVec,
    seconds: HistogramVec,
}

impl Families {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let labels = ["grpc_service", "grpc_method"];
        let families = Self {
            started: IntCounterVec::new(
                Opts::new("grpc_server_started_total", "RPCs started on the server."),
                &labels,
            )?,
            handled: IntCounterVec::new(
                Opts::new("grpc_server_handled_total", "RPCs completed on the server, by status code."),
                &["grpc_service", "grpc_method", "grpc_code"],
            )?,
            seconds: HistogramVec::new(
                HistogramOpts::new("grpc_server_handling_seconds", "Duration of RPCs, in seconds.")
                    .buckets(SECONDS.to_vec()),
                &labels,
            )?,
        };
        registry.register(Box::new(families.started.clone()))?;
        registry.register(Box::new(families.handled.clone()))?;
        registry.register(Box::new(families.seconds.clone()))?;
        Ok(families)
    }
}

impl Calls {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let families = Families::register(registry)?;
        let data = Arc::new(AtomicU64::new(0));
        let streamed = IntCounter::new("loggos_stream_answers_total", "Responses sent to requests in streams.")?;
        registry.register(Box::new(streamed.clone()))?;
        let delivered = "Shared log entries delivered to subscribers.";
        let subscribed = IntCounter::new("loggos_subscribed_entries_total", delivered)?;
        registry.register(Box::new(subscribed.clone()))?;
        let method = |service: &str, name: &str| {
            Arc::new(Method {
                service: service.to_owned(),
                name: name.to_owned(),
                families: families.clone(),
                series: OnceLock::new(),
                data: DATA.contains(&service).then(|| Arc::clone(&data)),
            })
        };
        let known = served_methods();
        let methods = known.iter().map(|(service, name)| (format!("/{service}/{name}"), method(service, name)));
        Ok(Self { methods: methods.collect(), unknown: method(UNKNOWN, UNKNOWN), data, streamed, subscribed })
    }

    /// Completed calls of the data services, plus answered requests in their streams.
    pub(crate) fn of_data(&self) -> u64 {
        self.data.load(Ordering::Relaxed) + self.streamed.get()
    }

    /// Counts answered requests of a stream.
    pub(crate) fn streamed(&self, answers: usize) {
        self.streamed.inc_by(answers as u64);
    }

    /// Counts entries delivered to subscribers.
    pub(crate) fn subscribed(&self, entries: usize) {
        self.subscribed.inc_by(entries as u64);
    }

    fn begin(&self, path: &str) -> Running {
        let method = self.methods.get(path).unwrap_or(&self.unknown);
        method.series().started.inc();
        Running { method: Arc::clone(method), began: Instant::now(), has_ended: false }
    }
}

impl Method {
    fn series(&self) -> &Series {
        self.series.get_or_init(|| {
            let labels = [&*self.service, &*self.name];
            Series {
                started: self.families.started.with_label_values(&labels),
                seconds: self.families.seconds.with_label_values(&labels),
                handled: Default::default(),
            }
        })
    }

    fn handled(&self, code: Code) -> &IntCounter {
        let code = code as usize;
        let counter = || self.families.handled.with_label_values(&[&*self.service, &*self.name, CODES[code]]);
        self.series().handled[code].get_or_init(counter)
    }
}

/// All services and methods that are served.
fn served_methods() -> Vec<(String, String)> {
    let sets = [
        api::SERVICE_DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
    ];
    let mut methods = Vec::new();
    for file in sets.iter().filter_map(|set| FileDescriptorSet::decode(*set).ok()).flat_map(|set| set.file) {
        for service in &file.service {
            let full = format!("{}.{}", file.package(), service.name());
            methods.extend(service.method.iter().map(|method| (full.clone(), method.name().to_owned())));
        }
    }
    methods
}

/// A call in progress. It is counted as canceled if it is dropped before it ends.
#[derive(Debug)]
struct Running {
    method: Arc<Method>,
    began: Instant,
    has_ended: bool,
}

impl Running {
    fn end(&mut self, code: Code) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        self.method.handled(code).inc();
        self.method.series().seconds.observe(self.began.elapsed().as_secs_f64());
        if let Some(data) = &self.method.data {
            data.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

fn code(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|code| Code::from_bytes(code.as_bytes()))
}

/// A layer that counts calls.
#[derive(Clone, Debug)]
pub(crate) struct Counting(pub(crate) Arc<Calls>);

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, calls: Arc::clone(&self.0) }
    }
}

/// A service with counted calls.
#[derive(Clone, Debug)]
pub(crate) struct Counted<S> {
    inner: S,
    calls: Arc<Calls>,
}

impl<S> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut running = self.calls.begin(request.uri().path());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            // A refusal has its status in the headers; any other response has it in the trailers.
            Ok(match code(answer.headers()) {
                Some(code) => {
                    running.end(code);
                    answer
                }
                None => answer.map(|inner| Body::new(Watched { inner, running })),
            })
        })
    }
}

/// The body of a response, observed until its trailers.
struct Watched {
    inner: Body,
    running: Running,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.running.end(code(trailers).unwrap_or(Code::Unknown));
                }
            }
            Some(Err(status)) => self.running.end(status.code()),
            None => self.running.end(Code::Unknown),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_methods_share_one_series() {
        let registry = Registry::new();
        let calls = Calls::register(&registry).expect("unique metric names");
        for path in ["/a/B", "/c/D", "", "/loggos.columns.v1.Columns/Nothing"] {
            calls.begin(path).end(Code::Unimplemented);
        }
        drop(calls.begin("/loggos.columns.v1.Columns/Put"));
        assert_eq!(calls.of_data(), 1);
        let count = |service: &str, name: &str, code: &str| {
            calls.unknown.families.handled.with_label_values(&[service, name, code]).get()
        };
        assert_eq!(count(UNKNOWN, UNKNOWN, "Unimplemented"), 4);
        assert_eq!(count(DATA[0], "Put", "Canceled"), 1);
    }
}
