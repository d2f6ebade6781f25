//! The client: calls that are tried until they have an answer or their deadline has come.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::admin::admin_client::AdminClient;
use api::admin::{StatusRequest, StatusResponse};
use api::columns::columns_client::ColumnsClient;
use api::columns::{self as message, Cell, Mutation, Row, SessionStamp, WriteResponse};
use base::KeyRange;
use base::limits::DEADLINE_DEFAULT;
use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::decide::{Attempts, Fault, Next};
use crate::endpoints::{Connection, Endpoints};
use crate::sessions::{Session, Sessions, Table};
use crate::{Error, TableDescription, fault};

/// Bytes of an answer that the client takes, at most: twice what a door gives.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Which rows, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The first key, included; empty: from the table's beginning.
    pub from: Bytes,
    /// The last key, excluded; none: to the table's end.
    pub to: Option<Bytes>,
    /// Only keys that begin so.
    pub prefix: Bytes,
    /// From the last key to the first.
    pub reverse: bool,
    /// Rows of a page at most; 0: as many as a page holds.
    pub limit: u32,
    /// What the page before gave, as it is.
    pub continuation: Option<Bytes>,
}

/// A page of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The rows in the scan's order.
    pub rows: Vec<Row>,
    /// Where the next page begins; none: this is the last. A page may hold no row and not be the last: at a range's end.
    pub continuation: Option<Bytes>,
}

/// A client of one universe. Clones share its connections and sessions.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    deadline: Duration,
}

#[derive(Debug)]
struct Shared {
    endpoints: Endpoints,
    sessions: Sessions,
    /// Counts the calls, so that no two have the same jitter.
    calls: AtomicU64,
}

/// Why a call that may be begun anew ended.
enum Stop {
    NewSession,
    GiveUp(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::GiveUp(error)
    }
}

/// A request on its way.
trait Sending<A>: Future<Output = Result<Response<A>, Status>> {}
impl<A, F: Future<Output = Result<Response<A>, Status>>> Sending<A> for F {}

impl Client {
    /// A client that reaches its universe through these endpoints, each `HOST:PORT`. Connections are made when they are
    /// needed. Any node serves any request, so one endpoint is enough and more are better.
    ///
    /// # Errors
    /// [`Error::Invalid`] when an endpoint is no address, or none is named.
    pub fn connect<S: AsRef<str>>(endpoints: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        let endpoints = Endpoints::parse(endpoints)?;
        let calls = AtomicU64::new(u64::from(std::process::id()) << 32);
        let shared = Arc::new(Shared { endpoints, sessions: Sessions::default(), calls });
        Ok(Self { shared, deadline: Duration::from_nanos(DEADLINE_DEFAULT.0) })
    }

    /// The same client with another deadline for each of its calls.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Creates a table unless it is there; tells whether it was.
    ///
    /// # Errors
    /// Each call's errors are [`Error`]'s.
    pub async fn create_table(&self, table: &str) -> Result<bool, Error> {
        self.create_table_of(table, Vec::new(), 0).await
    }

    /// Creates a table of several ranges, which begin at these keys (and one before them), with so many replicas of each
    /// (0: as many as is usual), unless it is there; tells whether it was.
    ///
    /// # Errors
    /// [`Error::Exists`] when it is there with other ranges or replicas.
    pub async fn create_table_of(&self, table: &str, split_at: Vec<Bytes>, replicas: u32) -> Result<bool, Error> {
        let request = message::CreateTableRequest { table: table.to_owned(), split_at, replicas };
        let attempts = Attempts::changing(self.endpoint_count(), self.seed());
        let create = |mut door: ColumnsClient<Channel>, request| async move { door.create_table(request).await };
        let answer = self.call(attempts, request, create).await?;
        Ok(answer.existed)
    }

    /// Drops a table with all its rows. When that is done, nobody reads anything of it any more, and its name is free.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none of that name.
    pub async fn drop_table(&self, table: &str) -> Result<(), Error> {
        let until = Instant::now() + self.deadline;
        let request = message::DropTableRequest { table: table.to_owned() };
        let mut attempts = Attempts::changing(self.endpoint_count(), self.seed());
        let send = |channel, request| async move { columns(channel).drop_table(request).await };
        match self.attempt(&mut attempts, until, &request, send).await.map_err(only_error) {
            // It was there when it was first asked for: that attempt, or another's, has done it.
            Err(Error::NotFound(_)) if attempts.is_in_doubt() => Ok(()),
            answer => answer.map(|_| ()),
        }
    }

    /// The tables' names in order.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn list_tables(&self) -> Result<Vec<String>, Error> {
        let request = message::ListTablesRequest {};
        let answer = self.ask(request, |mut door, request| async move { door.list_tables(request).await }).await?;
        Ok(answer.tables)
    }

    /// What is known of a table: its ranges, and where they lie.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn describe_table(&self, table: &str) -> Result<TableDescription, Error> {
        let request = message::DescribeTableRequest { table: table.to_owned() };
        self.ask(request, |mut door, request| async move { door.describe_table(request).await }).await
    }

    /// A column as it is now, or none.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn get(
        &self,
        table: &str,
        key: impl Into<Bytes>,
        column: impl Into<Bytes>,
    ) -> Result<Option<Cell>, Error> {
        Ok(self.row(table, key, vec![column.into()]).await?.pop())
    }

    /// The columns of a row that are there: of those named, or of all if none is.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn row(&self, table: &str, key: impl Into<Bytes>, columns: Vec<Bytes>) -> Result<Vec<Cell>, Error> {
        let request = message::GetRequest { table: table.to_owned(), key: key.into(), columns };
        let answer = self.ask(request, |mut door, request| async move { door.get(request).await }).await?;
        Ok(answer.cells)
    }

    /// One page of rows.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn scan(&self, table: &str, scan: Scan) -> Result<Page, Error> {
        let Scan { from, to, prefix, reverse, limit, continuation } = scan;
        let table = table.to_owned();
        let request = message::ScanRequest { table, from, to, prefix, reverse, limit, continuation };
        let answer = self.ask(request, |mut door, request| async move { door.scan(request).await }).await?;
        Ok(Page { rows: answer.rows, continuation: answer.continuation })
    }

    /// Puts one column; gives its new version.
    ///
    /// # Errors
    /// As [`Error`] has them; so with every write.
    pub async fn put(
        &self,
        table: &str,
        key: impl Into<Bytes>,
        column: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<i64, Error> {
        let mutation = Mutation { column: column.into(), value: Some(value.into()), condition: None };
        self.write(table, key, vec![mutation]).await
    }

    /// Deletes one column, whether it is there or not.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn delete(&self, table: &str, key: impl Into<Bytes>, column: impl Into<Bytes>) -> Result<i64, Error> {
        let mutation = Mutation { column: column.into(), value: None, condition: None };
        self.write(table, key, vec![mutation]).await
    }

    /// Puts one column if it has this version (0: if it is absent).
    ///
    /// # Errors
    /// [`Error::Refused`] when it has another.
    pub async fn conditional_put(
        &self,
        table: &str,
        key: impl Into<Bytes>,
        column: impl Into<Bytes>,
        value: impl Into<Bytes>,
        version: i64,
    ) -> Result<i64, Error> {
        let mutation = Mutation { column: column.into(), value: Some(value.into()), condition: Some(version) };
        self.write(table, key, vec![mutation]).await
    }

    /// Deletes one column if it has this version.
    ///
    /// # Errors
    /// [`Error::Refused`] when it has another.
    pub async fn conditional_delete(
        &self,
        table: &str,
        key: impl Into<Bytes>,
        column: impl Into<Bytes>,
        version: i64,
    ) -> Result<i64, Error> {
        let mutation = Mutation { column: column.into(), value: None, condition: Some(version) };
        self.write(table, key, vec![mutation]).await
    }

    /// Changes columns of one row, all or none; gives the version of those that were put.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn write(&self, table: &str, key: impl Into<Bytes>, mutations: Vec<Mutation>) -> Result<i64, Error> {
        let key = key.into();
        let mut request = message::WriteRequest { table: table.to_owned(), key: key.clone(), mutations, stamp: None };
        let number = |stamp| {
            request.stamp = Some(stamp);
            request.clone()
        };
        self.once(table, &key, number, |mut door, request| async move { door.write(request).await }).await
    }

    /// Deletes a row with all its columns, whether it is there or not.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn delete_row(&self, table: &str, key: impl Into<Bytes>) -> Result<i64, Error> {
        let key = key.into();
        let mut request = message::DeleteRowRequest { table: table.to_owned(), key: key.clone(), stamp: None };
        let number = |stamp| {
            request.stamp = Some(stamp);
            request.clone()
        };
        self.once(table, &key, number, |mut door, request| async move { door.delete_row(request).await }).await
    }

    /// A write that applies once, however often it is tried: `number` puts the stamp of its session on it.
    async fn once<Q: Clone, F: Sending<WriteResponse>>(
        &self,
        table: &str,
        key: &Bytes,
        mut number: impl FnMut(SessionStamp) -> Q,
        send: impl Fn(ColumnsClient<Channel>, Request<Q>) -> F,
    ) -> Result<i64, Error> {
        let until = Instant::now() + self.deadline;
        let mut attempts = Attempts::changing(self.endpoint_count(), self.seed());
        let sessions = self.shared.sessions.table(table);
        loop {
            let session = self.session(&sessions, table, key, until).await?;
            let Ok(ticket) = timeout(left(until), session.begin()).await else {
                return Err(attempts.out_of_time("the session's window stayed full".into()));
            };
            let request = number(ticket.stamp());
            let send = |channel, request| send(columns(channel), request);
            match self.attempt(&mut attempts, until, &request, send).await {
                Ok(answer) => return Ok(answer.version),
                Err(Stop::GiveUp(error)) => return Err(error),
                Err(Stop::NewSession) => sessions.forget(&session),
            }
        }
    }

    /// How the universe is, as the first node that answers sees it.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn status(&self) -> Result<StatusResponse, Error> {
        let until = Instant::now() + self.deadline;
        let mut attempts = Attempts::reading(self.endpoint_count(), self.seed());
        let send = |channel, request| async move { AdminClient::new(channel).status(request).await };
        self.attempt(&mut attempts, until, &StatusRequest {}, send).await.map_err(only_error)
    }

    /// What each endpoint's node says of itself, in the endpoints' order.
    pub async fn status_of_each(&self) -> Vec<Result<StatusResponse, Error>> {
        let mut all = Vec::with_capacity(self.shared.endpoints.count());
        for endpoint in 0..self.shared.endpoints.count() {
            all.push(self.status_of(endpoint).await.map_err(unavailable));
        }
        all
    }

    /// Prefers the endpoint of the node that leads `table`, if it is among ours: calls then need no forwarding.
    pub async fn prefer_leader(&self, table: &str) {
        let all = self.status_of_each().await;
        let leader = all.iter().flatten().flat_map(|status| &status.cohorts).filter(|cohort| cohort.table == table);
        let Some(leader) = leader.max_by_key(|cohort| cohort.epoch).and_then(|cohort| cohort.leader) else { return };
        if let Some(endpoint) = all.iter().position(|status| status.as_ref().is_ok_and(|status| status.node == leader))
        {
            self.shared.endpoints.prefer(endpoint);
        }
    }

    async fn status_of(&self, endpoint: usize) -> Result<StatusResponse, Fault> {
        let connection = self.shared.endpoints.connection(endpoint).await?;
        let time = self.deadline.min(Duration::from_secs(2));
        let send = |channel, request| async move { AdminClient::new(channel).status(request).await };
        self.send(&connection, time, StatusRequest {}, send).await
    }

    /// The session of the range that holds a key, opened if there is none.
    async fn session(&self, sessions: &Table, table: &str, key: &Bytes, until: Instant) -> Result<Arc<Session>, Error> {
        if let Some(session) = sessions.session(key) {
            return Ok(session);
        }
        let opening = async {
            let _opening = sessions.opening().await;
            if let Some(session) = sessions.session(key) {
                return Ok(session);
            }
            let mut attempts = Attempts::reading(self.endpoint_count(), self.seed());
            let request = message::OpenSessionRequest { table: table.to_owned(), key: key.clone() };
            let send = |channel, request| async move { columns(channel).open_session(request).await };
            let answer = self.attempt(&mut attempts, until, &request, send).await.map_err(only_error)?;
            let message::OpenSessionResponse { session, start, end } = answer;
            Ok(sessions.opened(KeyRange { start, end }, session))
        };
        let in_time = timeout(left(until), opening).await;
        in_time.unwrap_or_else(|_| Err(Error::Unavailable("no session could be opened in time".into())))
    }

    /// A call that changes nothing.
    async fn ask<Q: Clone, A, F: Sending<A>>(
        &self,
        request: Q,
        send: impl Fn(ColumnsClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, Error> {
        self.call(Attempts::reading(self.endpoint_count(), self.seed()), request, send).await
    }

    /// A call without a session.
    async fn call<Q: Clone, A, F: Sending<A>>(
        &self,
        mut attempts: Attempts,
        request: Q,
        send: impl Fn(ColumnsClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, Error> {
        let until = Instant::now() + self.deadline;
        let send = |channel, request| send(columns(channel), request);
        self.attempt(&mut attempts, until, &request, send).await.map_err(only_error)
    }

    /// Tries until there is an answer, or nothing more to try.
    async fn attempt<Q: Clone, A, F: Sending<A>>(
        &self,
        attempts: &mut Attempts,
        until: Instant,
        request: &Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<A, Stop> {
        loop {
            let endpoint = self.shared.endpoints.preferred();
            let time = attempts.attempt_time(left(until));
            let fault = match timeout(time, self.shared.endpoints.connection(endpoint)).await {
                Err(_) => Fault::NotSent("no connection in time".into()),
                Ok(Err(fault)) => fault,
                Ok(Ok(connection)) => match self.send(&connection, time.min(left(until)), request.clone(), &send).await
                {
                    Ok(answer) => return Ok(answer),
                    Err(fault) => fault,
                },
            };
            match attempts.after(fault, left(until)) {
                Next::GiveUp(error) => return Err(Stop::GiveUp(error)),
                Next::NewSession => return Err(Stop::NewSession),
                Next::Retry { pause, elsewhere } => {
                    if elsewhere {
                        self.shared.endpoints.pass_over(endpoint);
                    }
                    sleep(pause).await;
                }
            }
        }
    }

    /// One attempt over one connection.
    async fn send<Q, A, F: Sending<A>>(
        &self,
        connection: &Connection,
        time: Duration,
        request: Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<A, Fault> {
        let mut request = Request::new(request);
        request.set_timeout(time);
        let fault = match timeout(time, send(connection.channel.clone(), request)).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => fault::of(&status),
            Err(_) => Fault::Lost(format!("no answer within {time:?}")),
        };
        if matches!(fault, Fault::Lost(_)) {
            self.shared.endpoints.drop_connection(connection).await;
        }
        Err(fault)
    }

    fn endpoint_count(&self) -> u32 {
        self.shared.endpoints.count() as u32
    }

    fn seed(&self) -> u64 {
        self.shared.calls.fetch_add(1, Ordering::Relaxed)
    }
}

fn columns(channel: Channel) -> ColumnsClient<Channel> {
    ColumnsClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// The error of a call that has no session.
fn only_error(stop: Stop) -> Error {
    match stop {
        Stop::GiveUp(error) => error,
        Stop::NewSession => Error::Unavailable("the node spoke of a session where there is none".into()),
    }
}

fn unavailable(fault: Fault) -> Error {
    match fault {
        Fault::Definite(error) => error,
        Fault::NotSent(reason)
        | Fault::Lost(reason)
        | Fault::Overloaded(reason)
        | Fault::Unavailable(reason)
        | Fault::Unknown(reason) => Error::Unavailable(reason),
        Fault::UnknownSession => Error::Unavailable("the node spoke of a session where there is none".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_can_be_spawned() {
        fn spawnable<T: Send>(_: &T) {}
        let client = Client::connect(["127.0.0.1:1"]).expect("an address");
        spawnable(&client.put("t", "k", "c", "v"));
        spawnable(&client.get("t", "k", "c"));
        spawnable(&client.prefer_leader("t"));
    }

    #[tokio::test]
    async fn nobody_there_is_unavailable_by_the_deadline() {
        let client = Client::connect(["127.0.0.1:1"]).expect("an address").with_deadline(Duration::from_millis(50));
        let began = Instant::now();
        assert!(matches!(client.put("t", "k", "c", "v").await, Err(Error::Unavailable(_))));
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
