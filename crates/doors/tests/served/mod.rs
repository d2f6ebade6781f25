//! A served door before a node that lives in memory.

// Each test binary uses its part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::columns as message;
use api::columns::columns_client::ColumnsClient;
use base::Timestamp;
use bytes::Bytes;
use doors::{Replies, Ticketed};
use tablets::request::{Cell, Failure, Outcome, Request, Response, TableRequest, Write};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};

/// A node whose one table holds the last value of each column. It takes its time over the key "slow" and never answers
/// for the key "silent".
#[derive(Default)]
struct Memory {
    columns: Mutex<BTreeMap<(Bytes, Bytes), Cell>>,
}

impl Memory {
    fn write(&self, write: Write) -> Outcome {
        let mut columns = self.columns.lock().expect("no test panics in here");
        let version = Timestamp(columns.len() as i64 + 1);
        for mutation in write.mutations {
            let name = (write.key.clone(), mutation.column.clone());
            let actual = columns.get(&name).map_or(Timestamp(0), |cell| cell.version);
            if let Some(expected) = mutation.condition.filter(|expected| *expected != actual) {
                return Err(Failure::VersionMismatch { column: mutation.column, expected, actual });
            }
            match mutation.value {
                Some(value) => columns.insert(name, Cell { column: mutation.column, value, version }),
                None => columns.remove(&name),
            };
        }
        Ok(Response::Written { version })
    }

    fn row(&self, key: &Bytes) -> Vec<Cell> {
        let columns = self.columns.lock().expect("no test panics in here");
        columns.iter().filter(|((row, _), _)| row == key).map(|(_, cell)| cell.clone()).collect()
    }
}

impl Memory {
    async fn answer(self: Arc<Self>, request: Request) -> Outcome {
        let Request::Table { table, request } = request else { return Ok(Response::Tables(vec!["t".into()])) };
        if table != "t" {
            return Err(Failure::UnknownTable(table));
        }
        match request {
            TableRequest::Write(write) => self.write(write),
            TableRequest::Get { key, .. } => {
                match &key[..] {
                    b"slow" => tokio::time::sleep(Duration::from_millis(500)).await,
                    b"silent" => std::future::pending().await,
                    _ => {}
                }
                Ok(Response::Row(self.row(&key)))
            }
            _ => Err(Failure::Unavailable("not in this test".into())),
        }
    }
}

/// The node as doors see it.
#[derive(Default)]
struct Node(Arc<Memory>);

impl doors::Gateway for Node {
    fn submit(&self, request: Request, _deadline: Duration) -> impl Future<Output = Outcome> + Send {
        Arc::clone(&self.0).answer(request)
    }

    fn submit_all(&self, batch: Vec<Ticketed>, replies: &Arc<Replies>) {
        for Ticketed { ticket, request, .. } in batch {
            let (memory, replies) = (Arc::clone(&self.0), Arc::clone(replies));
            tokio::spawn(async move { replies.give(ticket, memory.answer(request).await) });
        }
    }
}

/// A served door; it closes when this goes.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    close: oneshot::Sender<()>,
}

fn founded() -> doors::Founded {
    let member = base::Member { node: base::NodeId(1), incarnation: base::Incarnation(1) };
    let own = doors::Own { member, format: 1, protocol: 1, peer: String::new(), grpc: String::new() };
    let genesis = doors::Genesis { universe: base::UniverseId(1), members: vec![member] };
    doors::Founded::new(own, genesis)
}

impl Served {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let (close, closed) = oneshot::channel();
        let shutdown = async {
            let _ = closed.await;
        };
        let observer = doors::Observer::new(prometheus::Registry::new(), None).expect("names of their own");
        tokio::spawn(doors::serve(
            listener,
            usize::MAX,
            Arc::new(Node::default()),
            Arc::new(founded()),
            Arc::new(observer),
            shutdown,
        ));
        Self { address, close }
    }

    /// Begins to close the door.
    pub(crate) fn close(self) {
        let _ = self.close.send(());
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).expect("an address");
        endpoint.connect().await.expect("the door is open")
    }

    pub(crate) async fn columns(&self) -> ColumnsClient<Channel> {
        ColumnsClient::new(self.channel().await).max_encoding_message_size(64 << 20).max_decoding_message_size(64 << 20)
    }
}

pub(crate) fn put(key: &str, value: impl Into<Bytes>) -> message::PutRequest {
    message::PutRequest {
        table: "t".into(),
        key: Bytes::copy_from_slice(key.as_bytes()),
        column: "c".into(),
        value: value.into(),
        stamp: None,
    }
}

pub(crate) fn get(key: &str) -> message::GetRequest {
    message::GetRequest {
        table: "t".into(),
        key: Bytes::copy_from_slice(key.as_bytes()),
        columns: vec![],
        options: None,
    }
}
