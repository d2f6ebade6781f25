//! The client's API for tables and the cluster.

use std::sync::Arc;
use std::time::Duration;

use api::admin::admin_client::AdminClient;
use api::admin::{
    AddNodeRequest, ListNodesRequest, MoveRangeRequest, RemoveNodeRequest, RosterNode, SplitRangeRequest,
    StatusRequest, StatusResponse,
};
use api::columns::{self as message, AsOf, Cell, Mutation, Row};
use base::KeyRange;
use base::limits::DEADLINE_DEFAULT;
use bytes::Bytes;
use client::Fault;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::driver::{Driver, Ended};
use crate::endpoints::Endpoints;
use crate::logs::Stamps;
use crate::request::{ApiRequest, ApiResponse};
use crate::{Durability, Error, Reads, TableDescription, fault};

/// Timeout of a node's status.
const STATUS_TIME_MAX: Duration = Duration::from_secs(2);

/// Options of a new table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewTable {
    /// The first keys of its ranges, except that of the first range.
    pub split_at: Vec<Bytes>,
    /// Replicas of each range: 1, 3 or 5; 0: the default.
    pub replicas: u32,
    /// How long old versions are readable, at most a week; zero: one minute.
    pub retention: Duration,
    /// The storage that a write must have reached before it is acknowledged; [`Durability::Unspecified`]: disk.
    pub durability: Durability,
}

/// The rows to scan, and their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The first key, inclusive; empty: the beginning of the table.
    pub from: Bytes,
    /// The end, exclusive; none: the end of the table.
    pub to: Option<Bytes>,
    /// Only keys with this prefix.
    pub prefix: Bytes,
    /// Scan from the last key to the first.
    pub reverse: bool,
    /// Maximum rows of a page; 0: as many as fit into a page.
    pub limit: u32,
    /// The unchanged continuation of the previous page.
    pub continuation: Option<Bytes>,
}

/// A page of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The rows, in the order of the scan.
    pub rows: Vec<Row>,
    /// The continuation for the next page; none: the scan is complete. At the end of a range a page may be empty and
    /// still have one.
    pub continuation: Option<Bytes>,
}

/// A client of one cluster. Clones share its connections and sessions.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) driver: Arc<Driver>,
    pub(crate) deadline: Duration,
    pub(crate) stamps: Arc<Stamps>,
}

impl Client {
    /// A client with these endpoints, each `HOST:PORT`. Connections are opened on first use. Any node serves any
    /// request, so one endpoint is sufficient; more endpoints allow failover.
    ///
    /// # Errors
    /// [`Error::Invalid`] if an endpoint is not a valid address, or if there is none.
    pub fn connect<S: AsRef<str>>(endpoints: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        Self::new(endpoints, false)
    }

    /// A client for programs with many concurrent calls. Calls share a stream for each node and are sent in batches,
    /// which takes a fraction of the CPU time of single calls. Large or infrequent requests are still sent as single
    /// calls.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn streaming<S: AsRef<str>>(endpoints: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        Self::new(endpoints, true)
    }

    fn new<S: AsRef<str>>(endpoints: impl IntoIterator<Item = S>, streams: bool) -> Result<Self, Error> {
        let driver = Driver::new(Endpoints::parse(endpoints)?, streams);
        Ok(Self { driver, deadline: Duration::from_nanos(DEADLINE_DEFAULT.0), stamps: Arc::default() })
    }

    /// Sets the deadline of each call.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Creates a table unless it exists. Returns whether it existed.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn create_table(&self, table: &str) -> Result<bool, Error> {
        self.create_table_of(table, NewTable::default()).await
    }

    /// Creates a table with these options, unless it exists. Returns whether it existed.
    ///
    /// # Errors
    /// [`Error::Exists`] if it exists with other options.
    pub async fn create_table_of(&self, table: &str, wanted: NewTable) -> Result<bool, Error> {
        let NewTable { split_at, replicas, retention, durability } = wanted;
        let retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
        let (table, durability) = (table.to_owned(), durability.into());
        let request = message::CreateTableRequest { table, split_at, replicas, retention_ms, durability };
        match self.ask(ApiRequest::CreateTable(request)).await? {
            ApiResponse::TableCreated(answer) => Ok(answer.existed),
            other => Err(unexpected(&other)),
        }
    }

    /// Drops a table with all its rows. After success no strong read sees the table, and its name can be reused.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the table does not exist.
    pub async fn drop_table(&self, table: &str) -> Result<(), Error> {
        let request = message::DropTableRequest { table: table.to_owned() };
        let Ended { outcome, in_doubt } = self.driver.call(ApiRequest::DropTable(request), self.deadline).await;
        match outcome {
            // The table existed at the first attempt: that attempt, or another client, has dropped it.
            Err(Error::NotFound(_)) if in_doubt => Ok(()),
            outcome => outcome.map(|_| ()),
        }
    }

    /// Splits a range of a table in two, while it is read and written. Returns the cohort of the new range, which
    /// begins at the key.
    ///
    /// # Errors
    /// [`Error::Exists`] if a range already begins at the key, [`Error::NotFound`] if the table does not exist.
    pub async fn split_range(&self, table: &str, key: impl Into<Bytes>) -> Result<u32, Error> {
        let request = SplitRangeRequest { table: table.to_owned(), key: key.into() };
        let Ended { outcome, in_doubt } =
            self.driver.call(ApiRequest::SplitRange(request.clone()), self.deadline).await;
        match outcome {
            Ok(ApiResponse::RangeSplit(answer)) => Ok(answer.cohort),
            // There was no such range at the first attempt: that attempt, or another client, has split it.
            Err(Error::Exists(_)) if in_doubt => {
                let known = self.describe_table(table).await?;
                let range = known.ranges.iter().find(|range| range.start == request.key);
                range.map(|range| range.cohort).ok_or_else(|| Error::NotFound(format!("no table named {table:?}")))
            }
            Ok(other) => Err(unexpected(&other)),
            Err(error) => Err(error),
        }
    }

    /// Begins to move the replicas of a range to these nodes, while it is read and written. The move continues in the
    /// background; [`Client::describe_table`] shows whether it is in progress.
    ///
    /// # Errors
    /// [`Error::Precondition`] if the cohort or a node does not exist.
    pub async fn move_range(&self, cohort: u32, nodes: &[u32]) -> Result<(), Error> {
        let request = MoveRangeRequest { cohort, nodes: nodes.to_vec() };
        match self.ask(ApiRequest::MoveRange(request)).await? {
            ApiResponse::MoveBegun => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Adds a node with a blank disk to the cluster's roster, and returns all nodes that ever existed. Idempotent. The
    /// disk must be formatted next: [`crate::formation::join`] does both.
    ///
    /// # Errors
    /// [`Error::Exists`] if the number or an address is taken, or the node has left.
    pub(crate) async fn add_node(&self, node: AddNodeRequest) -> Result<Vec<RosterNode>, Error> {
        match self.ask(ApiRequest::AddNode(node)).await? {
            ApiResponse::Nodes(answer) => Ok(answer.nodes),
            other => Err(unexpected(&other)),
        }
    }

    /// Begins to remove a node, whether it is alive or not. The removal continues in the background; [`Client::nodes`]
    /// shows when the node has left.
    ///
    /// # Errors
    /// [`Error::Precondition`] if the node does not exist, or too few nodes would remain.
    pub async fn remove_node(&self, node: u32) -> Result<(), Error> {
        match self.ask(ApiRequest::RemoveNode(RemoveNodeRequest { node })).await? {
            ApiResponse::LeaveBegun => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Lists all nodes that ever existed, in order of node number.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn nodes(&self) -> Result<Vec<RosterNode>, Error> {
        match self.ask(ApiRequest::ListNodes(ListNodesRequest {})).await? {
            ApiResponse::Nodes(answer) => Ok(answer.nodes),
            other => Err(unexpected(&other)),
        }
    }

    /// Lists the names of the tables, sorted.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn list_tables(&self) -> Result<Vec<String>, Error> {
        match self.ask(ApiRequest::ListTables).await? {
            ApiResponse::Tables(answer) => Ok(answer.tables),
            other => Err(unexpected(&other)),
        }
    }

    /// Describes a table: its ranges, and their placement.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the table does not exist.
    pub async fn describe_table(&self, table: &str) -> Result<TableDescription, Error> {
        let request = message::DescribeTableRequest { table: table.to_owned() };
        match self.ask(ApiRequest::DescribeTable(request)).await? {
            ApiResponse::Table(table) => Ok(table),
            other => Err(unexpected(&other)),
        }
    }

    /// Reads a column with a strong read; none if it is absent.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn get(
        &self,
        table: &str,
        key: impl Into<Bytes>,
        column: impl Into<Bytes>,
    ) -> Result<Option<Cell>, Error> {
        Ok(self.row(table, key, vec![column.into()]).await?.pop())
    }

    /// Reads columns of a row with a strong read: the named ones that exist, or all if none is named.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn row(&self, table: &str, key: impl Into<Bytes>, columns: Vec<Bytes>) -> Result<Vec<Cell>, Error> {
        Ok(self.read_row(table, key, columns, Reads::Strong).await?.0)
    }

    /// [`Client::row`] with another consistency level. Also returns the state that was read, unless the read was
    /// strong.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn read_row(
        &self,
        table: &str,
        key: impl Into<Bytes>,
        columns: Vec<Bytes>,
        reads: Reads,
    ) -> Result<(Vec<Cell>, Option<AsOf>), Error> {
        let options = reads.options();
        let request = message::GetRequest { table: table.to_owned(), key: key.into(), columns, options };
        match self.ask(ApiRequest::Get(request)).await? {
            ApiResponse::Row(answer) => Ok((answer.cells, answer.as_of)),
            other => Err(unexpected(&other)),
        }
    }

    /// Reads one page of rows with a strong read.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn scan(&self, table: &str, scan: Scan) -> Result<Page, Error> {
        Ok(self.read_page(table, scan, Reads::Strong).await?.0)
    }

    /// [`Client::scan`] with another consistency level. Also returns the state that was read, unless the read was
    /// strong.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn read_page(&self, table: &str, scan: Scan, reads: Reads) -> Result<(Page, Option<AsOf>), Error> {
        let Scan { from, to, prefix, reverse, limit, continuation } = scan;
        let (table, options) = (table.to_owned(), reads.options());
        let request =
            message::ScanRequest { table, start: from, end: to, prefix, reverse, limit, continuation, options };
        match self.ask(ApiRequest::Scan(request)).await? {
            ApiResponse::Rows(answer) => {
                Ok((Page { rows: answer.rows, continuation: answer.continuation }, answer.as_of))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Puts one column, and returns its new version: a timestamp in nanoseconds.
    ///
    /// # Errors
    /// [`Error`]; this holds for all writes.
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

    /// Deletes one column, whether it exists or not.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn delete(&self, table: &str, key: impl Into<Bytes>, column: impl Into<Bytes>) -> Result<i64, Error> {
        let mutation = Mutation { column: column.into(), value: None, condition: None };
        self.write(table, key, vec![mutation]).await
    }

    /// Puts one column if it has this version (0: if it is absent).
    ///
    /// # Errors
    /// [`Error::Refused`] if it has another version.
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
    /// [`Error::Refused`] if it has another version.
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

    /// Changes columns of one row atomically, and returns the new version of the columns that were put.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn write(&self, table: &str, key: impl Into<Bytes>, mutations: Vec<Mutation>) -> Result<i64, Error> {
        let request = message::WriteRequest { table: table.to_owned(), key: key.into(), mutations, stamp: None };
        self.once(ApiRequest::Write(request)).await
    }

    /// Deletes a row with all its columns, whether it exists or not.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn delete_row(&self, table: &str, key: impl Into<Bytes>) -> Result<i64, Error> {
        let request = message::DeleteRowRequest { table: table.to_owned(), key: key.into(), stamp: None };
        self.once(ApiRequest::DeleteRow(request)).await
    }

    /// The status of the cluster, according to the first node that responds.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn status(&self) -> Result<StatusResponse, Error> {
        match self.ask(ApiRequest::Status(StatusRequest {})).await? {
            ApiResponse::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// The status of each endpoint's node, in order of endpoint.
    pub async fn status_of_each(&self) -> Vec<Result<StatusResponse, Error>> {
        let mut asking = JoinSet::new();
        for endpoint in 0..self.driver.endpoints.count() {
            let client = self.clone();
            asking.spawn(async move { (endpoint, client.status_of(endpoint).await.map_err(Error::Unavailable)) });
        }
        let mut all = asking.join_all().await;
        all.sort_by_key(|(endpoint, _)| *endpoint);
        all.into_iter().map(|(_, status)| status).collect()
    }

    /// Asks the nodes for the leaders of the ranges of `table`, and sends later calls to these leaders if they are
    /// among the client's endpoints. This saves forwarding. A leader that fails is skipped as usual.
    pub async fn prefer_leader(&self, table: &str) {
        let all = self.status_of_each().await;
        let mut led = Vec::new();
        for (endpoint, status) in all.iter().enumerate() {
            let Ok(status) = status else { continue };
            let of_table = status.cohorts.iter().filter(|cohort| cohort.table == table);
            led.extend(of_table.filter(|cohort| cohort.leader == Some(status.node)).map(|cohort| (endpoint, cohort)));
        }
        // A former leader may not know that it was replaced, so the highest epoch wins.
        led.sort_by_key(|(_, cohort)| cohort.epoch);
        for (endpoint, cohort) in led {
            let range = KeyRange { start: cohort.start.clone(), end: cohort.end.clone() };
            self.driver.leads(endpoint, table, range);
            self.driver.prefer(endpoint);
        }
    }

    async fn status_of(&self, endpoint: usize) -> Result<StatusResponse, String> {
        let connection = self.driver.endpoints.connection(endpoint).await?;
        let mut request = tonic::Request::new(StatusRequest {});
        let time = self.deadline.min(STATUS_TIME_MAX);
        request.set_timeout(time);
        let mut client = AdminClient::new(connection.channel.clone());
        let result = match timeout(time, client.status(request)).await {
            Ok(answer) => {
                let result = answer.map_err(|status| fault::of(&status));
                self.driver.endpoints.judged(endpoint, result).map_err(Fault::reason)
            }
            Err(_) => Err(format!("timed out after {time:?}")),
        };
        if result.is_err() {
            self.driver.endpoints.drop_connection(&connection).await;
        }
        result.map(tonic::Response::into_inner)
    }

    /// A write with a stamp, which is executed at most once.
    async fn once(&self, request: ApiRequest) -> Result<i64, Error> {
        match self.ask(request).await? {
            ApiResponse::Written(answer) => Ok(answer.version),
            other => Err(Error::OutcomeUnknown(format!("unexpected response: {other:?}"))),
        }
    }

    pub(crate) async fn ask(&self, request: ApiRequest) -> Result<ApiResponse, Error> {
        self.driver.call(request, self.deadline).await.outcome
    }
}

/// The error for a response that does not match the request.
pub(crate) fn unexpected(response: &ApiResponse) -> Error {
    Error::Unavailable(format!("unexpected response: {response:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn client_futures_are_send() {
        fn spawnable<T: Send>(_: &T) {}
        let client = Client::connect(["127.0.0.1:1"]).expect("an address");
        spawnable(&client.put("t", "k", "c", "v"));
        spawnable(&client.get("t", "k", "c"));
        spawnable(&client.prefer_leader("t"));
        spawnable(&client.log("l").append(["r"]));
    }

    #[tokio::test]
    async fn unreachable_server_fails_by_deadline() {
        let client = Client::connect(["127.0.0.1:1"]).expect("an address").with_deadline(Duration::from_millis(50));
        let began = Instant::now();
        assert!(matches!(client.put("t", "k", "c", "v").await, Err(Error::Unavailable(_))));
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
