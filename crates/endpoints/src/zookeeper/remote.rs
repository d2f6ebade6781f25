//! The coordination log over the network, for a translation server without a node.
//!
//! One thread runs the client library, which selects a node and retries requests at other nodes. It does not retry an
//! append of unknown outcome: that fails, and the translation server retries its batch, which is deduplicated.

use std::io;
use std::sync::Arc;

use base::Monotonic;
use node::request::Response;
use sdk::{Content as Read, Entry, Error, Log};
use sharedlog::request::{Content, LogEntry, LogRequest, LogResponse};
use sharedlog::{Batch, ClientId, Data, Position, Stamp};
use state_machine::Failure;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::LogTransport;
use crate::node::Completions;
use crate::{clock, process};

/// Entries of the coordination log are read without their stamps, which are unused there.
const NO_STAMP: Stamp = Stamp { client: ClientId(0), sequence: 0 };

#[derive(Debug)]
struct Submitted {
    number: u64,
    deadline: Monotonic,
    request: LogRequest,
}

/// Sends requests to any node of a cluster.
#[derive(Debug)]
pub struct RemoteTransport {
    requests: UnboundedSender<Submitted>,
}

impl RemoteTransport {
    /// Starts the thread.
    pub fn start(client: sdk::Client, completions: Arc<Completions>) -> io::Result<Self> {
        // The log's driver limits the requests in flight.
        let (requests, submitted) = mpsc::unbounded_channel();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        process::spawn("log", move || carry(&runtime, &client, &completions, submitted))?;
        Ok(Self { requests })
    }
}

impl LogTransport for RemoteTransport {
    fn submit(&self, number: u64, deadline: Monotonic, request: LogRequest) {
        // The thread runs as long as this transport exists.
        let _ = self.requests.send(Submitted { number, deadline, request });
    }
}

fn carry(
    runtime: &Runtime,
    client: &sdk::Client,
    completions: &Arc<Completions>,
    mut submitted: UnboundedReceiver<Submitted>,
) {
    runtime.block_on(async {
        while let Some(Submitted { number, deadline, request }) = submitted.recv().await {
            let time = clock::span(deadline.since(clock::monotonic()));
            let log = client.clone().with_deadline(time).coordination_log();
            let completions = Arc::clone(completions);
            tokio::spawn(async move {
                let answer = ask(&log, request).await;
                completions.post(number, answer.map(Response::Log));
            });
        }
    });
}

async fn ask(log: &Log, request: LogRequest) -> Result<LogResponse, Failure> {
    let answer = match request {
        LogRequest::Append { batch, .. } => {
            let records = batch.records().map_err(|error| Failure::Invalid(error.to_string()))?;
            log.append_once(records).await.map(|position| LogResponse::Appended(Position(position)))
        }
        // The node limits the bytes of its response itself.
        LogRequest::Read { from, count, wait, bytes: _, .. } => {
            let entries = log.read_waiting(from.0, count, clock::span(wait)).await;
            return entries
                .map_err(failure)?
                .into_iter()
                .map(entry)
                .collect::<Result<_, _>>()
                .map(LogResponse::Entries);
        }
        LogRequest::Tail { .. } => log.tail().await.map(|tail| LogResponse::Tail(Position(tail))),
        LogRequest::Trim { before, .. } => log.trim(before.0).await.map(|()| LogResponse::Trimmed),
        LogRequest::Create { name, .. } => {
            let reason = format!("log {name} does not exist yet; the first node with a ZooKeeper endpoint creates it");
            return Err(Failure::Unavailable(reason));
        }
        LogRequest::Drop { .. } | LogRequest::List | LogRequest::Describe { .. } | LogRequest::TrimOne { .. } => {
            return Err(Failure::Invalid("request not supported by the remote transport".to_owned()));
        }
    };
    answer.map_err(failure)
}

fn entry(Entry { position, content }: Entry) -> Result<LogEntry, Failure> {
    let content = match content {
        Read::Records(records) | Read::Snapshot(records) => {
            let batch = Batch::of(&records).map_err(|error| Failure::Unavailable(error.to_string()))?;
            Content::Data(Data { stamp: NO_STAMP, batch })
        }
        Read::Junk | Read::Repeated => Content::Junk,
        Read::Lost => Content::Lost,
        Read::Trimmed { before } => Content::Trimmed { mark: Position(before) },
    };
    Ok(LogEntry { position: Position(position), content })
}

fn failure(error: Error) -> Failure {
    match error {
        Error::NotFound(reason) => Failure::UnknownLog(reason),
        Error::Exists(reason) => Failure::Exists(reason),
        Error::Precondition(reason) => Failure::Precondition(reason),
        Error::Invalid(reason) => Failure::Invalid(reason),
        Error::Unavailable(reason) => Failure::Unavailable(reason),
        Error::OutcomeUnknown(reason) => Failure::Unknown(reason),
        other => Failure::Unknown(other.to_string()),
    }
}
