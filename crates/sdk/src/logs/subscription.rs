//! A subscription to a log. A task of its own asks the nodes, as [`Follower`] has it, and hands on what they tell.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use api::log::{SubscribeRequest, SubscribeResponse};
use client::follower::{Follower, Heard};
use client::{Error, Fault};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::Stream;
use tonic::Streaming;

use super::{Entry, of_no_kind};
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

/// A log as it grows: a stream of its entries.
///
/// It ends after an error: when there is no such log, or no node has told anything for as long as the client's deadline
/// is.
#[derive(Debug)]
pub struct Subscription {
    told: mpsc::Receiver<Result<Vec<Entry>, Error>>,
    entries: VecDeque<Entry>,
    next: u64,
}

impl Subscription {
    pub(crate) fn begin(client: &Client, log: &str, from: u64) -> Self {
        let (tell, told) = mpsc::channel(MESSAGES_WAITING);
        let skin = Arc::clone(&client.skin);
        let patience = base::Duration(u64::try_from(client.deadline.as_nanos()).unwrap_or(u64::MAX));
        let (endpoint, endpoints, seed) = (skin.preferred(), skin.endpoints.count(), skin.now().0);
        let follower = Follower::new(from, endpoint, endpoints, patience, seed);
        let task = Task { skin, log: log.to_owned(), follower, tell };
        tokio::spawn(task.run());
        Self { told, entries: VecDeque::new(), next: from }
    }

    /// The first position that was not given yet: from there on another subscription tells what this one doesn't.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next
    }

    /// The entries that come next, as many as a node has told together; none after the end.
    ///
    /// # Errors
    /// What the subscription ends with.
    pub async fn next_many(&mut self) -> Option<Result<Vec<Entry>, Error>> {
        let entries: Vec<Entry> = match std::mem::take(&mut self.entries) {
            rest if !rest.is_empty() => rest.into(),
            _ => match self.told.recv().await? {
                Ok(entries) => entries,
                Err(error) => return Some(Err(error)),
            },
        };
        self.next = entries.last().map_or(self.next, Entry::after);
        Some(Ok(entries))
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
                self.next = entry.after();
                return Poll::Ready(Some(Ok(entry)));
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
    tell: mpsc::Sender<Result<Vec<Entry>, Error>>,
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
    fn take(&mut self, message: SubscribeResponse) -> Result<Vec<Entry>, Fault> {
        self.follower.heard();
        let mut entries = Vec::with_capacity(message.entries.len());
        for told in message.entries {
            let mut entry = Entry::told(told).ok_or_else(|| Fault::Definite(of_no_kind()))?;
            let next = self.follower.next();
            match self.follower.told(entry.position, entry.after()) {
                Heard::Next => {
                    // Of what was given up together some may have been told.
                    entry.position = entry.position.max(next);
                    entries.push(entry);
                }
                Heard::Before => {}
                Heard::Gap => return Err(Fault::Unavailable(format!("the node leaves position {next} out"))),
            }
        }
        Ok(entries)
    }
}
