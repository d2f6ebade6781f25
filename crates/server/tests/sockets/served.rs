//! A server in front of an in-memory node.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::columns as message;
use api::columns::columns_client::ColumnsClient;
use api::log::log_client::LogClient;
use base::Timestamp;
use bytes::Bytes;
use catalog::CatalogResponse;
use node::request::{Ask, Outcome, Request, Response};
use server::{Held, Replies, Ticketed};
use sharedlog::request::{Content, LogEntry, LogRequest, LogResponse};
use sharedlog::{ClientId, Data, Position, Stamp};
use state_machine::Failure;
use tablets::TableResponse;
use tablets::request::{Cell, TableRequest, Write};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};

/// A node with one table that holds the last value of each column. It is slow for the key "slow" and never answers for
/// the key "silent".
#[derive(Default)]
struct Memory {
    columns: Mutex<BTreeMap<(Bytes, Bytes), Cell>>,
    /// The shared log "l".
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    entries: Vec<Content>,
    mark: Position,
    reads: usize,
}

impl Log {
    /// `None` if the first entry is larger than `bytes`.
    fn read(&mut self, from: Position, count: u32, mut bytes: usize) -> Option<Vec<LogEntry>> {
        self.reads += 1;
        let entry = |position: u64| {
            let at = Position(position);
            let content = self.entries.get(position as usize)?.clone();
            let content = if at < self.mark { Content::Trimmed { mark: self.mark } } else { content };
            Some(LogEntry { position: at, content })
        };
        let fits = |entry: &LogEntry| {
            let of_entry = if let Content::Data(data) = &entry.content { data.batch.len() } else { 0 };
            let left = bytes.checked_sub(of_entry);
            bytes = left.unwrap_or_default();
            left.is_some()
        };
        // A read may return less than was requested.
        let entries: Vec<LogEntry> =
            (from.0..from.0 + u64::from(count)).map_while(entry).take(100).take_while(fits).collect();
        let is_larger = entries.is_empty() && entry(from.0).is_some();
        (!is_larger).then_some(entries)
    }
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
        Ok(Response::Tablet(TableResponse::Written { version }))
    }

    fn row(&self, key: &Bytes) -> Vec<Cell> {
        let columns = self.columns.lock().expect("no test panics in here");
        columns.iter().filter(|((row, _), _)| row == key).map(|(_, cell)| cell.clone()).collect()
    }
}

impl Memory {
    async fn answer_of_log(self: Arc<Self>, request: LogRequest) -> Outcome {
        if let Some(name) = request.log().filter(|name| *name != "l") {
            return Err(Failure::UnknownLog(name.to_owned()));
        }
        let log = || self.log.lock().expect("no test panics in here");
        Ok(Response::Log(match request {
            LogRequest::Create { .. } => LogResponse::Created { existed: true },
            LogRequest::Drop { .. } => LogResponse::Dropped,
            LogRequest::List => LogResponse::Logs(vec!["l".into()]),
            LogRequest::Append { batch, stamp, .. } => {
                let stamp = stamp.unwrap_or(Stamp { client: ClientId::FIRST_OF_NODES, sequence: 1 });
                log().entries.push(Content::Data(Data { stamp, batch }));
                LogResponse::Appended(Position(log().entries.len() as u64 - 1))
            }
            LogRequest::Read { from, count, wait, bytes, .. } => {
                let until = tokio::time::Instant::now() + Duration::from_nanos(wait.0);
                loop {
                    let Some(entries) = log().read(from, count, bytes) else {
                        return Ok(Response::Log(LogResponse::Larger));
                    };
                    if !entries.is_empty() || tokio::time::Instant::now() >= until {
                        return Ok(Response::Log(LogResponse::Entries(entries)));
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            LogRequest::Tail { .. } => LogResponse::Tail(Position(log().entries.len() as u64)),
            LogRequest::Trim { before, .. } => {
                log().mark = before;
                LogResponse::Trimmed
            }
            LogRequest::TrimOne { position, .. } => {
                log().entries[position.0 as usize] = Content::Trimmed { mark: Position(0) };
                LogResponse::Trimmed
            }
            LogRequest::Describe { .. } => return Err(Failure::Unavailable("not in this test".into())),
        }))
    }

    async fn answer(self: Arc<Self>, request: Request) -> Outcome {
        if let Request::Log(request) = request {
            return self.answer_of_log(request).await;
        }
        let Request::Table { table, request: Ask::Tablet(request) } = request else {
            return Ok(Response::Catalog(CatalogResponse::Tables(vec!["t".into()])));
        };
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
                Ok(Response::Tablet(TableResponse::row(self.row(&key))))
            }
            _ => Err(Failure::Unavailable("not in this test".into())),
        }
    }
}

/// The node's side of the servers.
struct Node(Arc<Memory>);

impl server::Gateway for Node {
    fn submit(&self, request: Request, _deadline: Duration, _: Held) -> impl Future<Output = Outcome> + Send {
        Arc::clone(&self.0).answer(request)
    }

    fn submit_all(&self, batch: Vec<Ticketed>, replies: &Arc<Replies>) {
        for Ticketed { ticket, request, .. } in batch {
            let (memory, replies) = (Arc::clone(&self.0), Arc::clone(replies));
            tokio::spawn(async move { replies.give(ticket, memory.answer(request).await) });
        }
    }
}

/// A running server; it shuts down when this is dropped.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    node: Arc<Memory>,
    close: oneshot::Sender<()>,
}

fn founded() -> server::Founded {
    let member = base::Member { node: base::NodeId(1), incarnation: base::Incarnation(1) };
    let own =
        server::Own { member, format: 1, protocol: 1, peer: String::new(), grpc: String::new(), peers: Vec::new() };
    let genesis = server::Genesis { cluster: base::ClusterId(1), members: vec![member] };
    server::Founded::new(own, genesis)
}

impl Served {
    pub(crate) async fn start() -> Self {
        Self::with_client_memory(base::limits::CLIENT_MEMORY_BYTES_DEFAULT).await
    }

    pub(crate) async fn with_client_memory(client_memory_bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let (close, closed) = oneshot::channel();
        let shutdown = async {
            let _ = closed.await;
        };
        let node = Arc::new(Memory::default());
        let observer = server::Observer::new(prometheus::Registry::new(), None).expect("unique metric names");
        let budgets = base::budget::ClientBudgets::new(client_memory_bytes);
        tokio::spawn(server::serve(
            listener,
            usize::MAX,
            budgets,
            Arc::new(Node(Arc::clone(&node))),
            Arc::new(founded()),
            Arc::new(observer),
            shutdown,
        ));
        Self { address, node, close }
    }

    /// Number of reads of the shared log.
    pub(crate) fn log_reads(&self) -> usize {
        self.node.log.lock().expect("no test panics in here").reads
    }

    pub(crate) async fn log(&self) -> LogClient<Channel> {
        LogClient::new(self.channel().await).max_encoding_message_size(64 << 20).max_decoding_message_size(64 << 20)
    }

    pub(crate) fn close(self) {
        let _ = self.close.send(());
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://{}", self.address)).expect("an address")
    }

    pub(crate) async fn channel(&self) -> Channel {
        self.endpoint().connect().await.expect("the endpoint is open")
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
        ..message::GetRequest::default()
    }
}
