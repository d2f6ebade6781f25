//! Calls of the gRPC server: from an HTTP request, without HTTP/2, to the response. And the gateway of that server, and
//! of clients in the process, to the cluster.

use base::budget::ClientBudgets;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use api::columns::{GetRequest, PutRequest};
use base::{ClusterId, Incarnation, Member, NodeId};
use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Body as _, Frame};
use node::request::{Outcome, Request};
use prost::Message;
use server::{Founded, Gateway, Genesis, Held, Observer, Own, Replies, Ticketed};
use tokio::runtime::{Builder, Runtime};
use tonic::body::Body;
use tonic::codegen::http;
use tower::{Service, ServiceExt};

use super::columns::{COLUMN, TABLE, Table};
use super::{Run, value};

const VALUE_BYTES: usize = 4 << 10;

/// A node of a cluster on this thread: a request is answered before the future is polled again.
pub(super) struct InProcess(pub(super) Arc<Mutex<Table>>);

impl Gateway for InProcess {
    async fn submit(&self, request: Request, _: Duration, mut held: Held) -> Outcome {
        held.reserve(request.held_bytes())?;
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let leader = table.leader;
        let outcome = table.cluster.ask(leader, request);
        table.cluster.settle();
        outcome
    }

    fn submit_all(&self, _: Vec<Ticketed>, _: &Arc<Replies>) {
        panic!("no operation uses a stream");
    }
}

/// A body of one frame.
struct Whole(Option<Bytes>);

impl http_body::Body for Whole {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

struct Client<S> {
    runtime: Runtime,
    service: S,
    table: Arc<Mutex<Table>>,
}

fn client() -> Client<impl Service<http::Request<Body>, Response = http::Response<Body>, Error: std::fmt::Debug>> {
    let table = Arc::new(Mutex::new(Table::new(VALUE_BYTES)));
    let gateway = Arc::new(InProcess(Arc::clone(&table)));
    let member = Member { node: NodeId(1), incarnation: Incarnation(1) };
    let own = Own { member, format: 0, protocol: 0, peer: String::new(), grpc: String::new(), peers: Vec::new() };
    let founded = Founded::new(own, Genesis { cluster: ClusterId(1), members: vec![member] });
    let observer = Arc::new(Observer::new(prometheus::Registry::new(), None).expect("unique names of metrics"));
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime without IO");
    let budgets = ClientBudgets::new(base::limits::CLIENT_MEMORY_BYTES_DEFAULT);
    let service = server::service(gateway, Arc::new(founded), &observer, budgets);
    let service = runtime.block_on(service).expect("valid descriptors");
    Client { runtime, service, table }
}

impl<S> Client<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error: std::fmt::Debug>,
{
    /// Calls a method, which must succeed.
    fn must(&mut self, method: &str, message: &impl Message) {
        let mut framed = BytesMut::with_capacity(5 + message.encoded_len());
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.encoded_len()).expect("a short message"));
        message.encode(&mut framed).expect("there is room");
        let request = http::Request::post(method)
            .version(http::Version::HTTP_2)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Body::new(Whole(Some(framed.freeze()))))
            .expect("a valid request");
        let service = &mut self.service;
        let status = self.runtime.block_on(async {
            let response = service.ready().await.expect("it is always ready").call(request).await;
            let mut body = response.expect("errors are in the response").into_body();
            let mut status = None;
            while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                let trailers = frame.expect("a valid body").into_trailers();
                status = trailers.ok().and_then(|trailers| trailers.get("grpc-status").cloned());
            }
            status
        });
        assert_eq!(status.expect("there are trailers").as_bytes(), b"0");
    }
}

pub(super) fn put() -> Run {
    let (mut client, value) = (client(), value(VALUE_BYTES));
    Box::new(move || {
        let (key, stamp) = {
            let mut table = client.table.lock().unwrap_or_else(PoisonError::into_inner);
            (table.key(), stamp(table.stamp()))
        };
        let (table, column, value) = (TABLE.to_owned(), COLUMN, value.clone());
        client.must("/loggos.columns.v1.Columns/Put", &PutRequest { table, key, column, value, stamp: Some(stamp) });
    })
}

pub(super) fn strong_read() -> Run {
    let mut client = client();
    Box::new(move || {
        let key = client.table.lock().unwrap_or_else(PoisonError::into_inner).key();
        let get = GetRequest { table: TABLE.to_owned(), key, columns: vec![COLUMN], ..GetRequest::default() };
        client.must("/loggos.columns.v1.Columns/Get", &get);
    })
}

pub(super) fn stamp(stamp: state_machine::SessionStamp) -> api::columns::SessionStamp {
    let state_machine::SessionStamp { session, sequence, first_incomplete } = stamp;
    api::columns::SessionStamp { session: session.0, sequence, first_incomplete }
}
