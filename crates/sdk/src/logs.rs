//! Shared logs.

mod snapshots;
mod stamps;
mod subscription;

use std::time::Duration;

use api::log as message;
use bytes::Bytes;
use client::Error;
use sharedlog::snapshot::is_of_snapshot;
use sharedlog::validate::COORDINATION_LOG;

use crate::Client;
use crate::admin::LogDescription;
use crate::client_api::unexpected;
use crate::driver::Ended;
use crate::request::{ApiLogRequest, ApiLogResponse, ApiRequest, ApiResponse};

pub use snapshots::Snapshot;
pub(crate) use stamps::Stamps;
pub use subscription::{Cursor, Subscription};

/// How long an unwritten position below or within a snapshot is awaited before it is filled as a hole.
const HOLE: Duration = Duration::from_millis(100);

/// An entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The position.
    pub position: u64,
    /// The content.
    pub content: Content,
}

/// The content of a log position. This enum is exhaustive on purpose: readers that skip a kind of entry could derive
/// different states from one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The records of an append.
    Records(Vec<Bytes>),
    /// A part of an application's snapshot ([`Log::keep_snapshot`]).
    Snapshot(Vec<Bytes>),
    /// A hole: the writer failed before it wrote, and the position will never be written.
    Junk,
    /// In a subscription: a retried append that was delivered at an earlier position.
    Repeated,
    /// A hole: all nodes with a copy were lost, and an operator declared the entry as lost.
    Lost,
    /// The position was trimmed.
    Trimmed {
        /// All positions below this were trimmed. If it exceeds the entry's own position, the entry represents all
        /// positions from its own up to this one, exclusive.
        before: u64,
    },
}

impl Entry {
    /// The first position after the positions that the entry represents.
    #[must_use]
    pub fn after(&self) -> u64 {
        let next = self.position.saturating_add(1);
        match self.content {
            Content::Trimmed { before } => next.max(before),
            Content::Records(_) | Content::Snapshot(_) | Content::Junk | Content::Repeated | Content::Lost => next,
        }
    }

    /// The records; empty for holes, parts of snapshots, and repeated appends.
    #[must_use]
    pub fn records(&self) -> &[Bytes] {
        match &self.content {
            Content::Records(records) => records,
            Content::Snapshot(_) | Content::Junk | Content::Repeated | Content::Lost | Content::Trimmed { .. } => &[],
        }
    }

    /// Converts a node's message; none if a newer node sent an unknown kind of entry.
    fn from_message(entry: message::LogEntry) -> Option<Self> {
        use message::log_entry::Content as WireContent;
        let content = match entry.content? {
            WireContent::Data(data) if is_of_snapshot(&data.records) => Content::Snapshot(data.records),
            WireContent::Data(data) => Content::Records(data.records),
            WireContent::Junk(message::Junk {}) => Content::Junk,
            WireContent::Repeated(message::Repeated {}) => Content::Repeated,
            WireContent::Lost(message::Lost {}) => Content::Lost,
            WireContent::Trimmed(message::Trimmed { before }) => Content::Trimmed { before },
        };
        Some(Self { position: entry.position, content })
    }
}

/// A shared log of a client's cluster.
#[derive(Clone, Debug)]
pub struct Log {
    client: Client,
    name: String,
    /// Whether requests are marked as those of a translation server.
    is_coordination: bool,
}

impl Client {
    /// A handle for the log with this name, which may not exist yet.
    #[must_use]
    pub fn log(&self, name: impl Into<String>) -> Log {
        Log { client: self.clone(), name: name.into(), is_coordination: false }
    }

    /// A handle for the log of the coordination service, for its translation servers: they may append to it and trim it.
    #[must_use]
    pub fn coordination_log(&self) -> Log {
        Log { client: self.clone(), name: COORDINATION_LOG.into(), is_coordination: true }
    }

    /// Lists the names of the logs, sorted.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn list_logs(&self) -> Result<Vec<String>, Error> {
        match self.ask(ApiRequest::Log(ApiLogRequest::List)).await? {
            ApiResponse::Log(ApiLogResponse::Logs(answer)) => Ok(answer.logs),
            other => Err(unexpected(&other)),
        }
    }
}

impl Log {
    /// The log's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Creates the log unless it exists: sent by [`CreateLog::send`].
    pub fn create(&self) -> CreateLog<'_> {
        CreateLog { log: self, stripes: 0, copies: 0 }
    }

    /// Drops the log with all its entries. After success no call sees the log, and its name can be reused.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the log does not exist.
    pub async fn drop_log(&self) -> Result<(), Error> {
        self.drop_with(false).await
    }

    /// Drops the log without waiting for units that cannot be reached. This declares that they are lost for good: units
    /// that are only cut off can serve the log until they are in contact with the cluster.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the log does not exist.
    pub async fn force_drop_log(&self) -> Result<(), Error> {
        self.drop_with(true).await
    }

    async fn drop_with(&self, force: bool) -> Result<(), Error> {
        let request = ApiLogRequest::Drop(message::DropLogRequest { log: self.name.clone(), force });
        let Ended { outcome, in_doubt, .. } =
            self.client.driver.call(ApiRequest::Log(request), self.client.deadline).await;
        match outcome {
            // The log existed at the first attempt: that attempt, or another client, has dropped it.
            Err(Error::NotFound(_)) if in_doubt => Ok(()),
            outcome => outcome.map(|_| ()),
        }
    }

    /// Describes the log: its sequencer, and the placement of its positions.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the log does not exist; this holds for all calls.
    pub async fn describe(&self) -> Result<LogDescription, Error> {
        match self.ask(ApiLogRequest::Describe(message::DescribeLogRequest { log: self.name.clone() })).await? {
            ApiLogResponse::Log(known) => Ok(known),
            other => Err(unexpected_of_log(other)),
        }
    }

    /// Appends records as one batch at one position, and returns the position. Attempts without a response are retried,
    /// so the batch may be written to a second position: subscriptions deliver it once, reads return both entries.
    ///
    /// Concurrent appends may be ordered in any way. An append that begins after another has completed gets a higher
    /// position.
    ///
    /// # Errors
    /// [`Error`]. After [`Error::OutcomeUnknown`] the batch may be in the log, or may yet be appended.
    pub async fn append<R: Into<Bytes>>(&self, records: impl IntoIterator<Item = R>) -> Result<u64, Error> {
        let records = records.into_iter().map(Into::into).collect();
        self.append_batch(records).await
    }

    async fn append_batch(&self, records: Vec<Bytes>) -> Result<u64, Error> {
        let stamp = Some(self.client.stamps.next(&self.name));
        self.append_stamped(records, stamp).await
    }

    /// Appends records as one batch at one position, and returns the position. Unlike [`Log::append`] it is not retried
    /// once the batch may be in the log, and the batch has no stamp: for applications that detect duplicates themselves.
    ///
    /// # Errors
    /// [`Error`]. After [`Error::OutcomeUnknown`] the batch may be in the log, or may yet be appended.
    pub async fn append_once(&self, records: Vec<Bytes>) -> Result<u64, Error> {
        self.append_stamped(records, None).await
    }

    async fn append_stamped(&self, records: Vec<Bytes>, stamp: Option<message::Stamp>) -> Result<u64, Error> {
        let append = message::AppendRequest { log: self.name.clone(), records, stamp };
        match self.ask(ApiLogRequest::Append(append)).await? {
            ApiLogResponse::Appended(answer) => Ok(answer.position),
            other => Err(Error::OutcomeUnknown(format!("unexpected response: {other:?}"))),
        }
    }

    /// Reads up to `count` consecutive positions, until one that is not written yet. A retried append may appear at two
    /// positions. The result may be shorter if entries are large: a response has about 2 MiB. Only an empty result
    /// means that the first position is not written.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn read(&self, from: u64, count: u32) -> Result<Vec<Entry>, Error> {
        self.read_waiting(from, count, Duration::ZERO).await
    }

    /// [`Log::read`], but waits up to `wait` for the first position to be written. If it is below the tail and still
    /// not written after that time, it is filled as a hole. The client's deadline should be 250 ms longer; otherwise
    /// the result is empty, and no hole is filled.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn read_waiting(&self, from: u64, count: u32, wait: Duration) -> Result<Vec<Entry>, Error> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let request = message::ReadRequest { log: self.name.clone(), start: from, count, wait_ms };
        let ApiLogResponse::Entries(answer) = self.ask(ApiLogRequest::Read(request)).await? else {
            return Err(Error::Unavailable("unexpected response".to_owned()));
        };
        let entries: Option<Vec<Entry>> = answer.entries.into_iter().map(Entry::from_message).collect();
        entries.ok_or_else(of_no_kind)
    }

    /// The end of the log: all appends that completed before the call are below this position.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn tail(&self) -> Result<u64, Error> {
        match self.ask(ApiLogRequest::Tail(message::TailRequest { log: self.name.clone() })).await? {
            ApiLogResponse::Tail(answer) => Ok(answer.position),
            other => Err(unexpected_of_log(other)),
        }
    }

    /// Discards all entries below a position.
    ///
    /// # Errors
    /// [`Error::Precondition`] if the log does not reach that position.
    pub async fn trim(&self, before: u64) -> Result<(), Error> {
        self.ask(ApiLogRequest::Trim(message::TrimRequest { log: self.name.clone(), before })).await.map(|_| ())
    }

    /// Discards the entry at one position.
    ///
    /// # Errors
    /// [`Error::Precondition`] if the log does not reach that position.
    pub async fn trim_one(&self, position: u64) -> Result<(), Error> {
        let request = message::TrimPositionRequest { log: self.name.clone(), position };
        self.ask(ApiLogRequest::TrimPosition(request)).await.map(|_| ())
    }

    /// Subscribes to the entries from a position on, in order, until the subscription is dropped. If the node fails,
    /// another one takes over. A retried append is delivered once. If `from` is another subscription's
    /// [cursor](Subscription::cursor), this also applies to the entries that it delivered.
    ///
    /// Must be called and polled within a tokio runtime.
    #[must_use]
    pub fn subscribe(&self, from: impl Into<Cursor>) -> Subscription {
        Subscription::begin(&self.client, &self.name, from.into())
    }

    async fn ask(&self, request: ApiLogRequest) -> Result<ApiLogResponse, Error> {
        let request =
            if self.is_coordination { ApiRequest::CoordinationLog(request) } else { ApiRequest::Log(request) };
        match self.client.ask(request).await? {
            ApiResponse::Log(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }
}

/// The creation of a log, with its options.
#[derive(Clone, Copy, Debug)]
#[must_use = "a log is created by `send`"]
pub struct CreateLog<'a> {
    log: &'a Log,
    stripes: u32,
    copies: u32,
}

impl CreateLog<'_> {
    /// Chains over which the positions are striped, at most 16. The default is one.
    pub fn stripes(mut self, stripes: u32) -> Self {
        self.stripes = stripes;
        self
    }

    /// Copies of each position, each on another node, at most 5. The default depends on the number of nodes.
    pub fn copies(mut self, copies: u32) -> Self {
        self.copies = copies;
        self
    }

    /// Creates the log unless it exists with these options; options that were not set are not compared. Returns whether
    /// it existed.
    ///
    /// # Errors
    /// [`Error::Exists`] if it exists with other options, [`Error::Invalid`] if the name or an option is not valid.
    pub async fn send(self) -> Result<bool, Error> {
        let Self { log, stripes, copies } = self;
        let request = message::CreateLogRequest { log: log.name.clone(), stripes, copies };
        match log.ask(ApiLogRequest::Create(request)).await? {
            ApiLogResponse::Created(answer) => Ok(answer.existed),
            other => Err(unexpected_of_log(other)),
        }
    }
}

fn unexpected_of_log(response: ApiLogResponse) -> Error {
    unexpected(&ApiResponse::Log(response))
}

fn of_no_kind() -> Error {
    Error::Unavailable("the log has entries of a kind that this version does not support".to_owned())
}
