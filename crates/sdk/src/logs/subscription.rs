//! A subscription to a log. A background task requests entries from the nodes, as directed by [`Follower`], and passes
//! them on.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use api::log::log_entry::Content as WireContent;
use api::log::{LogEntry, SubscribeRequest, SubscribeResponse};
use client::follower::{EntryOrder, Follower};
use client::{Error, Fault};
use sharedlog::duplicates::Duplicates;
use sharedlog::{ClientId, Position, Stamp};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::Stream;
use tonic::Streaming;

use super::{Content, Entry, of_no_kind};
use crate::Client;
use crate::call::logs;
use crate::driver::Driver;
use crate::endpoints::Connection;
use crate::fault;

/// Maximum messages buffered for the subscriber. When the buffer is full, HTTP/2 flow control blocks the node.
const MESSAGES_WAITING: usize = 4;
/// Timeout for a connection and the start of a subscription.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(2);
/// A node sends a keepalive every second. After this time without a message the subscription moves to the next node.
const SILENCE: Duration = Duration::from_secs(3);

/// The state of a log reader: the next position, and the stamps of appends it has seen. It remembers 8,192 runs of
/// successive appends. Beyond that it forgets the lowest run of the client with the least recent append.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    pub(super) next: u64,
    pub(super) seen: Duplicates,
}

impl From<u64> for Cursor {
    /// A reader that starts at a position and has seen no stamps.
    fn from(next: u64) -> Self {
        Self { next, seen: Duplicates::default() }
    }
}

impl Cursor {
    /// The first position that was not read yet.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next
    }

    /// The entry to deliver. Its records are removed if its append was seen before.
    fn pass(&mut self, Stamped { mut entry, stamp }: Stamped) -> Entry {
        self.next = entry.after();
        if let Some(stamp) = stamp
            && !self.seen.is_first(stamp, Position(entry.position))
        {
            entry.content = Content::Repeated;
        }
        entry
    }
}

/// An entry with its stamp.
#[derive(Debug)]
struct Stamped {
    entry: Entry,
    stamp: Option<Stamp>,
}

/// A stream of a log's entries, as they are appended. If a retried append is at two positions, it is delivered at the
/// first; the second entry is [`Content::Repeated`].
///
/// It ends after an error: the log does not exist, or no node responded for the client's deadline.
#[derive(Debug)]
pub struct Subscription {
    batches: mpsc::Receiver<Result<Vec<Stamped>, Error>>,
    entries: VecDeque<Stamped>,
    at: Cursor,
}

impl Subscription {
    pub(crate) fn begin(client: &Client, log: &str, at: Cursor) -> Self {
        let (sender, batches) = mpsc::channel(MESSAGES_WAITING);
        let driver = Arc::clone(&client.driver);
        let patience = base::Duration(u64::try_from(client.deadline.as_nanos()).unwrap_or(u64::MAX));
        let (endpoint, endpoints, seed) = (driver.preferred(), driver.endpoints.count(), driver.now().0);
        let follower = Follower::new(at.next, endpoint, endpoints, patience, seed);
        let task = Task { driver, log: log.to_owned(), follower, sender };
        tokio::spawn(task.run());
        Self { batches, entries: VecDeque::new(), at }
    }

    /// The first position that was not delivered yet.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at.next
    }

    /// The position after the last delivered entry, with the stamps seen: another subscription can continue from there.
    #[must_use]
    pub fn cursor(&self) -> &Cursor {
        &self.at
    }

    /// The next entries, as received in one message from a node; none after the end.
    ///
    /// # Errors
    /// The error that ends the subscription.
    pub async fn next_many(&mut self) -> Option<Result<Vec<Entry>, Error>> {
        let entries: Vec<Stamped> = match std::mem::take(&mut self.entries) {
            rest if !rest.is_empty() => rest.into(),
            _ => match self.batches.recv().await? {
                Ok(entries) => entries,
                Err(error) => return Some(Err(error)),
            },
        };
        Some(Ok(entries.into_iter().map(|entry| self.at.pass(entry)).collect()))
    }

    /// The next entry; none after the end.
    ///
    /// # Errors
    /// The error that ends the subscription.
    pub async fn next(&mut self) -> Option<Result<Entry, Error>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for Subscription {
    type Item = Result<Entry, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(entry) = self.entries.pop_front() {
                return Poll::Ready(Some(Ok(self.at.pass(entry))));
            }
            match self.batches.poll_recv(context) {
                Poll::Ready(Some(Ok(entries))) => self.entries = entries.into(),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// The background task of a subscription.
struct Task {
    driver: Arc<Driver>,
    log: String,
    follower: Follower,
    sender: mpsc::Sender<Result<Vec<Stamped>, Error>>,
}

impl Task {
    /// Runs until the subscriber is dropped, or the subscription fails.
    async fn run(mut self) {
        loop {
            let endpoint = self.follower.endpoint();
            let Some(fault) = self.follow().await else { return };
            let Err(fault) = self.driver.endpoints.judged::<()>(endpoint, Err(fault)) else { return };
            match self.follower.failed(fault, self.driver.now()) {
                Ok(pause) => sleep(Duration::from_nanos(pause.0)).await,
                Err(error) => {
                    // The subscriber may have been dropped.
                    let _ = self.sender.send(Err(error)).await;
                    return;
                }
            }
        }
    }

    /// Follows one node. Returns the fault that ended it, or none if the subscriber was dropped.
    async fn follow(&mut self) -> Option<Fault> {
        let (connection, mut messages) = match timeout(BEGIN_TIME_MAX, self.begin()).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(fault)) => return Some(fault),
            Err(_) => return Some(Fault::Silent),
        };
        loop {
            let received = tokio::select! {
                received = timeout(SILENCE, messages.message()) => received,
                () = self.sender.closed() => return None,
            };
            let fault = match received {
                Ok(Ok(Some(message))) => match self.take(message) {
                    Ok(entries) if entries.is_empty() => continue,
                    Ok(entries) => {
                        if self.sender.send(Ok(entries)).await.is_err() {
                            return None;
                        }
                        continue;
                    }
                    Err(fault) => fault,
                },
                Ok(Ok(None)) => Fault::Lost("the node ended the subscription".to_owned()),
                Ok(Err(status)) => fault::of(&status),
                Err(_) => Fault::Silent,
            };
            if matches!(fault, Fault::Lost(_) | Fault::Silent) {
                self.driver.endpoints.drop_connection(&connection).await;
            }
            return Some(fault);
        }
    }

    async fn begin(&self) -> Result<(Connection, Streaming<SubscribeResponse>), Fault> {
        let connection = self.driver.endpoints.connection(self.follower.endpoint()).await.map_err(Fault::NotSent)?;
        let request = SubscribeRequest { log: self.log.clone(), start: self.follower.next() };
        match logs(connection.channel.clone()).subscribe(request).await {
            Ok(messages) => Ok((connection, messages.into_inner())),
            Err(status) => {
                let fault = fault::of(&status);
                if matches!(fault, Fault::Lost(_)) {
                    self.driver.endpoints.drop_connection(&connection).await;
                }
                Err(fault)
            }
        }
    }

    /// Selects the entries of a message that were not delivered yet.
    fn take(&mut self, message: SubscribeResponse) -> Result<Vec<Stamped>, Fault> {
        self.follower.responded();
        let mut entries = Vec::with_capacity(message.entries.len());
        for entry in message.entries {
            let stamp = stamp_of(&entry);
            let mut entry = Entry::from_message(entry).ok_or_else(|| Fault::Definite(of_no_kind()))?;
            let next = self.follower.next();
            match self.follower.accept(entry.position, entry.after()) {
                EntryOrder::Next => {
                    // A part of the trimmed positions may have been delivered before.
                    entry.position = entry.position.max(next);
                    entries.push(Stamped { entry, stamp });
                }
                EntryOrder::Duplicate => {}
                EntryOrder::Gap => return Err(Fault::Unavailable(format!("the node skipped position {next}"))),
            }
        }
        Ok(entries)
    }
}

fn stamp_of(entry: &LogEntry) -> Option<Stamp> {
    let Some(WireContent::Data(data)) = &entry.content else { return None };
    let stamp = data.stamp.as_ref()?;
    Some(Stamp { client: ClientId(stamp.client), sequence: stamp.sequence })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(position: u64, sequence: u64) -> Stamped {
        let entry = Entry { position, content: Content::Records(vec!["r".into()]) };
        Stamped { entry, stamp: Some(Stamp { client: ClientId(7), sequence }) }
    }

    #[test]
    fn cursor_filters_duplicate_stamps() {
        let mut at = Cursor::from(3);
        let delivered = |at: &mut Cursor, position, sequence| at.pass(stamped(position, sequence)).content;
        assert!(matches!(delivered(&mut at, 3, 1), Content::Records(_)));
        assert_eq!(delivered(&mut at, 4, 1), Content::Repeated);
        let mut again = at.clone();
        assert_eq!((again.position(), delivered(&mut again, 5, 1)), (5, Content::Repeated));
        assert!(matches!(delivered(&mut again, 6, 2), Content::Records(_)));
        assert!(
            matches!(delivered(&mut Cursor::from(5), 5, 1), Content::Records(_)),
            "a new cursor has seen no stamps"
        );
    }
}
