//! Shared logs.

mod snapshots;
mod stamps;
mod subscription;

use std::time::Duration;

use api::log as message;
use bytes::Bytes;
use client::Error;
use sharedlog::snapshot::is_of_snapshot;

use crate::Client;
use crate::client_api::unexpected;
use crate::request::{Asked, LogAsked, LogTold, Told};

pub use api::log::DescribeLogResponse as LogDescription;
pub use snapshots::Snapshot;
pub(crate) use stamps::Stamps;
pub use subscription::{Cursor, Subscription};

/// What lies before or within a snapshot is waited for so long before it is made a hole.
const HOLE: Duration = Duration::from_millis(100);

/// What a log is to be like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewLog {
    /// Chains that its positions are spread over; 0: one.
    pub stripes: u32,
    /// Copies of each position, on as many nodes; 0: as many as is usual.
    pub copies: u32,
}

/// What lies at a position of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The position.
    pub position: u64,
    /// What lies there.
    pub content: Content,
}

/// What may lie at a position of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// What was appended, in one batch.
    Records(Vec<Bytes>),
    /// A part of what a program keeps of the log ([`Log::keep_snapshot`]).
    Snapshot(Vec<Bytes>),
    /// A hole: whoever was to write there never did, and nobody will.
    Junk,
    /// Of a subscription: a retried append, which was delivered at a position before.
    Repeated,
    /// A hole: what lay there is lost with all nodes that had it, and was given up by an operator's word.
    Lost,
    /// It was given up.
    Trimmed {
        /// All below this was. If that is more than the entry's own position, the entry stands for all from there on.
        before: u64,
    },
}

impl Entry {
    /// The first position that the entry does not stand for.
    #[must_use]
    pub fn after(&self) -> u64 {
        let next = self.position.saturating_add(1);
        match self.content {
            Content::Trimmed { before } => next.max(before),
            Content::Records(_) | Content::Snapshot(_) | Content::Junk | Content::Repeated | Content::Lost => next,
        }
    }

    /// The records, if there are any: a hole has none, and neither has a part of a snapshot, or an append that was
    /// delivered before.
    #[must_use]
    pub fn records(&self) -> &[Bytes] {
        match &self.content {
            Content::Records(records) => records,
            Content::Snapshot(_) | Content::Junk | Content::Repeated | Content::Lost | Content::Trimmed { .. } => &[],
        }
    }

    /// As a node tells it; none of one that a newer node tells, of a kind that is not known here.
    fn told(entry: message::LogEntry) -> Option<Self> {
        use message::log_entry::Content as Told;
        let content = match entry.content? {
            Told::Data(data) if is_of_snapshot(&data.records) => Content::Snapshot(data.records),
            Told::Data(data) => Content::Records(data.records),
            Told::Junk(message::Junk {}) => Content::Junk,
            Told::Repeated(message::Repeated {}) => Content::Repeated,
            Told::Lost(message::Lost {}) => Content::Lost,
            Told::Trimmed(message::Trimmed { before }) => Content::Trimmed { before },
        };
        Some(Self { position: entry.position, content })
    }
}

/// A shared log of a client's universe.
#[derive(Clone, Debug)]
pub struct Log {
    client: Client,
    name: String,
}

impl Client {
    /// A log by its name, whether it is there or not.
    #[must_use]
    pub fn log(&self, name: impl Into<String>) -> Log {
        Log { client: self.clone(), name: name.into() }
    }

    /// The logs' names in order.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn list_logs(&self) -> Result<Vec<String>, Error> {
        match self.ask(Asked::Log(LogAsked::List)).await? {
            Told::Log(LogTold::Logs(answer)) => Ok(answer.logs),
            other => Err(unexpected(&other)),
        }
    }
}

impl Log {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Creates the log unless it is there; tells whether it was.
    ///
    /// # Errors
    /// Each call's errors are [`Error`]'s.
    pub async fn create(&self) -> Result<bool, Error> {
        self.create_of(NewLog::default()).await
    }

    /// Creates the log as it is wanted, unless it is there; tells whether it was.
    ///
    /// # Errors
    /// [`Error::Exists`] when it is there, and other than it is wanted.
    pub async fn create_of(&self, wanted: NewLog) -> Result<bool, Error> {
        let NewLog { stripes, copies } = wanted;
        let request = message::CreateLogRequest { log: self.name.clone(), stripes, copies };
        match self.ask(LogAsked::Create(request)).await? {
            LogTold::Created(answer) => Ok(answer.existed),
            other => Err(unexpected_of_log(other)),
        }
    }

    /// Where its positions lie, and who hands them out.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is no such log; so with every call.
    pub async fn describe(&self) -> Result<LogDescription, Error> {
        match self.ask(LogAsked::Describe(message::DescribeLogRequest { log: self.name.clone() })).await? {
            LogTold::Log(known) => Ok(known),
            other => Err(unexpected_of_log(other)),
        }
    }

    /// Appends records, in one batch at one position; gives the position. Where an attempt is not answered it is retried, and
    /// the records may lie at a second position: subscriptions deliver them once, reads return the entry of each position.
    ///
    /// Appends that are under way at one time come to lie in any order. One that begins after another has ended lies
    /// after it.
    ///
    /// # Errors
    /// As [`Error`] has them. After [`Error::OutcomeUnknown`] the records may lie in the log, or may yet.
    pub async fn append<R: Into<Bytes>>(&self, records: impl IntoIterator<Item = R>) -> Result<u64, Error> {
        let records = records.into_iter().map(Into::into).collect();
        self.append_batch(records).await
    }

    async fn append_batch(&self, records: Vec<Bytes>) -> Result<u64, Error> {
        let append = message::AppendRequest { log: self.name.clone(), records, stamp: Some(self.client.stamps.next()) };
        match self.ask(LogAsked::Append(append)).await? {
            LogTold::Appended(answer) => Ok(answer.position),
            other => Err(Error::OutcomeUnknown(format!("the node's answer does not fit: {other:?}"))),
        }
    }

    /// What lies at positions in a row, so many at most, up to one where nothing lies yet; none, if that is the first. A
    /// retried append may lie at two positions.
    /// There may be fewer, where entries are large: an answer holds 2 MiB or so. Only an empty one says that nothing is
    /// there.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn read(&self, from: u64, count: u32) -> Result<Vec<Entry>, Error> {
        self.read_waiting(from, count, Duration::ZERO).await
    }

    /// The same, but that it waits for so long for the first, if nothing lies there yet. If that is below the tail and
    /// nothing has come by then, it is made a hole. The client's deadline should be a quarter of a second longer: if it
    /// isn't, the answer is empty, and no hole is made.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn read_waiting(&self, from: u64, count: u32, wait: Duration) -> Result<Vec<Entry>, Error> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let request = message::ReadRequest { log: self.name.clone(), from, count, wait_ms };
        let LogTold::Entries(answer) = self.ask(LogAsked::Read(request)).await? else {
            return Err(Error::Unavailable("the node's answer does not fit the question".to_owned()));
        };
        let entries: Option<Vec<Entry>> = answer.entries.into_iter().map(Entry::told).collect();
        entries.ok_or_else(of_no_kind)
    }

    /// Where the log ends: every append that had ended before lies below.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn tail(&self) -> Result<u64, Error> {
        match self.ask(LogAsked::Tail(message::TailRequest { log: self.name.clone() })).await? {
            LogTold::Tail(answer) => Ok(answer.position),
            other => Err(unexpected_of_log(other)),
        }
    }

    /// Gives up what lies below a position.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the log does not reach there.
    pub async fn trim(&self, before: u64) -> Result<(), Error> {
        self.ask(LogAsked::Trim(message::TrimRequest { log: self.name.clone(), before })).await.map(|_| ())
    }

    /// Gives up what lies at one position.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the log does not reach there.
    pub async fn trim_one(&self, position: u64) -> Result<(), Error> {
        let request = message::TrimPositionRequest { log: self.name.clone(), position };
        self.ask(LogAsked::TrimPosition(request)).await.map(|_| ())
    }

    /// What lies at a position and at all that follow, in order, as it comes, for as long as the subscription is kept. When
    /// the node that tells it fails, another does. A retried append is delivered once: from a position on, or, from another
    /// subscription's [cursor](Subscription::cursor) on, as if they were one.
    ///
    /// Who subscribes and who polls the subscription is to be within a tokio runtime.
    #[must_use]
    pub fn subscribe(&self, from: impl Into<Cursor>) -> Subscription {
        Subscription::begin(&self.client, &self.name, from.into())
    }

    async fn ask(&self, asked: LogAsked) -> Result<LogTold, Error> {
        match self.client.ask(Asked::Log(asked)).await? {
            Told::Log(told) => Ok(told),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected_of_log(told: LogTold) -> Error {
    unexpected(&Told::Log(told))
}

fn of_no_kind() -> Error {
    Error::Unavailable("the log has entries of a kind that this library does not know".to_owned())
}
