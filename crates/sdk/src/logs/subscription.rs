//! A subscription to a log. A task of its own asks the nodes, as [`Follower`] has it, and hands on what they tell.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use api::log::log_entry::Content as Told;
use api::log::{LogEntry, SubscribeRequest, SubscribeResponse};
use client::follower::{Follower, Heard};
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
use crate::endpoints::Connection;
use crate::fault;
use crate::skin::Skin;

/// Messages of a node that wait for the subscriber; HTTP/2 has the node wait while there are as many.
const MESSAGES_WAITING: usize = 4;
/// A connection and the beginning of a subscription take no longer.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(2);
/// A node says every second that it lives. One that says nothing for so long is left.
const SILENCE: Duration = Duration::from_secs(3);

/// Where a reader of a log stands: the position that comes next, and which appends it has seen. It remembers 8,192 runs of
/// successive appends; of the client that appended longest ago it forgets the first ones first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    pub(super) next: u64,
    pub(super) seen: Duplicates,
}

impl From<u64> for Cursor {
    /// A reader that begins at a position, and has seen nothing.
    fn from(next: u64) -> Self {
        Self { next, seen: Duplicates::default() }
    }
}

impl Cursor {
    /// The first position that was not read.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next
    }

    /// An entry as it is delivered: without its records, if it is an append that was seen before.
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

/// A log as it grows: a stream of its entries. An append that was retried, and lies at two positions, is delivered at the
/// first; the other one is [`Content::Repeated`].
///
/// It ends after an error: when there is no such log, or no node has told anything for as long as the client's deadline
/// is.
#[derive(Debug)]
pub struct Subscription {
    told: mpsc::Receiver<Result<Vec<Stamped>, Error>>,
    entries: VecDeque<Stamped>,
    at: Cursor,
}

impl Subscription {
    pub(crate) fn begin(client: &Client, log: &str, at: Cursor) -> Self {
        let (tell, told) = mpsc::channel(MESSAGES_WAITING);
        let skin = Arc::clone(&client.skin);
        let patience = base::Duration(u64::try_from(client.deadline.as_nanos()).unwrap_or(u64::MAX));
        let (endpoint, endpoints, seed) = (skin.preferred(), skin.endpoints.count(), skin.now().0);
        let follower = Follower::new(at.next, endpoint, endpoints, patience, seed);
        let task = Task { skin, log: log.to_owned(), follower, tell };
        tokio::spawn(task.run());
        Self { told, entries: VecDeque::new(), at }
    }

    /// The first position that was not given yet.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at.next
    }

    /// The position after the last entry delivered, with the stamps seen: another subscription continues from there.
    #[must_use]
    pub fn cursor(&self) -> &Cursor {
        &self.at
    }

    /// The entries that come next, as many as a node has told together; none after the end.
    ///
    /// # Errors
    /// What the subscription ends with.
    pub async fn next_many(&mut self) -> Option<Result<Vec<Entry>, Error>> {
        let entries: Vec<Stamped> = match std::mem::take(&mut self.entries) {
            rest if !rest.is_empty() => rest.into(),
            _ => match self.told.recv().await? {
                Ok(entries) => entries,
                Err(error) => return Some(Err(error)),
            },
        };
        Some(Ok(entries.into_iter().map(|entry| self.at.pass(entry)).collect()))
    }

    /// The next entry; none after the end.
    ///
    /// # Errors
    /// What the subscription ends with.
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
            match self.told.poll_recv(context) {
                Poll::Ready(Some(Ok(entries))) => self.entries = entries.into(),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// What asks the nodes.
struct Task {
    skin: Arc<Skin>,
    log: String,
    follower: Follower,
    tell: mpsc::Sender<Result<Vec<Stamped>, Error>>,
}

impl Task {
    /// Goes on until nobody listens, or there is nothing more to be told.
    async fn run(mut self) {
        loop {
            let endpoint = self.follower.endpoint();
            let Some(fault) = self.follow().await else { return };
            let Err(fault) = self.skin.endpoints.judged::<()>(endpoint, Err(fault)) else { return };
            match self.follower.failed(fault, self.skin.now()) {
                Ok(pause) => sleep(Duration::from_nanos(pause.0)).await,
                Err(error) => {
                    // Whoever listened may be gone.
                    let _ = self.tell.send(Err(error)).await;
                    return;
                }
            }
        }
    }

    /// Follows one node for as long as it tells something: then why it did not; nothing if nobody listens any more.
    async fn follow(&mut self) -> Option<Fault> {
        let (connection, mut messages) = match timeout(BEGIN_TIME_MAX, self.begin()).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(fault)) => return Some(fault),
            Err(_) => return Some(Fault::Silent),
        };
        loop {
            let told = tokio::select! {
                told = timeout(SILENCE, messages.message()) => told,
                () = self.tell.closed() => return None,
            };
            let fault = match told {
                Ok(Ok(Some(message))) => match self.take(message) {
                    Ok(entries) if entries.is_empty() => continue,
                    Ok(entries) => {
                        if self.tell.send(Ok(entries)).await.is_err() {
                            return None;
                        }
                        continue;
                    }
                    Err(fault) => fault,
                },
                Ok(Ok(None)) => Fault::Lost("the node has ended the subscription".to_owned()),
                Ok(Err(status)) => fault::of(&status),
                Err(_) => Fault::Silent,
            };
            if matches!(fault, Fault::Lost(_) | Fault::Silent) {
                self.skin.endpoints.drop_connection(&connection).await;
            }
            return Some(fault);
        }
    }

    async fn begin(&self) -> Result<(Connection, Streaming<SubscribeResponse>), Fault> {
        let connection = self.skin.endpoints.connection(self.follower.endpoint()).await.map_err(Fault::NotSent)?;
        let request = SubscribeRequest { log: self.log.clone(), from: self.follower.next() };
        match logs(connection.channel.clone()).subscribe(request).await {
            Ok(messages) => Ok((connection, messages.into_inner())),
            Err(status) => {
                let fault = fault::of(&status);
                if matches!(fault, Fault::Lost(_)) {
                    self.skin.endpoints.drop_connection(&connection).await;
                }
                Err(fault)
            }
        }
    }

    /// The entries of a message that come next.
    fn take(&mut self, message: SubscribeResponse) -> Result<Vec<Stamped>, Fault> {
        self.follower.heard();
        let mut entries = Vec::with_capacity(message.entries.len());
        for told in message.entries {
            let stamp = stamp_of(&told);
            let mut entry = Entry::told(told).ok_or_else(|| Fault::Definite(of_no_kind()))?;
            let next = self.follower.next();
            match self.follower.told(entry.position, entry.after()) {
                Heard::Next => {
                    // Of what was given up together some may have been told.
                    entry.position = entry.position.max(next);
                    entries.push(Stamped { entry, stamp });
                }
                Heard::Before => {}
                Heard::Gap => return Err(Fault::Unavailable(format!("the node leaves position {next} out"))),
            }
        }
        Ok(entries)
    }
}

fn stamp_of(told: &LogEntry) -> Option<Stamp> {
    let Some(Told::Data(data)) = &told.content else { return None };
    let stamp = data.stamp.as_ref()?;
    Some(Stamp { client: ClientId(stamp.client), sequence: stamp.sequence })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(position: u64, sequence: u64) -> Stamped {
        let entry = Entry { position, content: Content::Records(vec!["r".into()]) };
        Stamped { entry, stamp: Some(Stamp { client: ClientId(7), sequence }) }
    }

    #[test]
    fn a_stamp_is_delivered_once_from_a_cursor_on() {
        let mut at = Cursor::from(3);
        let delivered = |at: &mut Cursor, position, sequence| at.pass(told(position, sequence)).content;
        assert!(matches!(delivered(&mut at, 3, 1), Content::Records(_)));
        assert_eq!(delivered(&mut at, 4, 1), Content::Repeated);
        let mut again = at.clone();
        assert_eq!((again.position(), delivered(&mut again, 5, 1)), (5, Content::Repeated));
        assert!(matches!(delivered(&mut again, 6, 2), Content::Records(_)));
        assert!(matches!(delivered(&mut Cursor::from(5), 5, 1), Content::Records(_)), "it has seen nothing");
    }
}
