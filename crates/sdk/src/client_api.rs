//! The calls that a program makes.

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

use crate::endpoints::Endpoints;
use crate::logs::Stamps;
use crate::request::{Asked, Told};
use crate::skin::{Ended, Skin};
use crate::{Durability, Error, Reads, TableDescription, fault};

/// How long one node may take to say how it is.
const STATUS_TIME_MAX: Duration = Duration::from_secs(2);

/// What a table is to be like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewTable {
    /// The keys at which its ranges begin, but for the first.
    pub split_at: Vec<Bytes>,
    /// Replicas of each range; 0: as many as is usual.
    pub replicas: u32,
    /// How long old versions are kept; zero: a minute.
    pub retention: Duration,
    /// What a write must be on before it is acknowledged; [`Durability::Unspecified`]: disks.
    pub durability: Durability,
}

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
    /// Where the next page begins; none: this is the last. A page may hold no row and not be the last: at a range's
    /// end.
    pub continuation: Option<Bytes>,
}

/// A client of one universe. Clones share its connections and sessions.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) skin: Arc<Skin>,
    pub(crate) deadline: Duration,
    pub(crate) stamps: Arc<Stamps>,
}

impl Client {
    /// A client that reaches its universe through these endpoints, each `HOST:PORT`. Connections are made when they are
    /// needed. Any node serves any request, so one endpoint is enough and more are better.
    ///
    /// # Errors
    /// [`Error::Invalid`] when an endpoint is no address, or none is named.
    pub fn connect<S: AsRef<str>>(endpoints: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        Self::new(endpoints, false)
    }

    /// The same for a program that has many calls under way at one time: they share streams, one a node, and travel in
    /// batches, which costs client and nodes a fraction of the work. What is large, or rare, has a call of its own as
    /// ever.
    ///
    /// # Errors
    /// As with [`Client::connect`].
    pub fn streaming<S: AsRef<str>>(endpoints: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        Self::new(endpoints, true)
    }

    fn new<S: AsRef<str>>(endpoints: impl IntoIterator<Item = S>, streams: bool) -> Result<Self, Error> {
        let skin = Skin::new(Endpoints::parse(endpoints)?, streams);
        Ok(Self { skin, deadline: Duration::from_nanos(DEADLINE_DEFAULT.0), stamps: Arc::default() })
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
        self.create_table_of(table, NewTable::default()).await
    }

    /// Creates a table as it is wanted, unless it is there; tells whether it was.
    ///
    /// # Errors
    /// [`Error::Exists`] when it is there, and other than it is wanted.
    pub async fn create_table_of(&self, table: &str, wanted: NewTable) -> Result<bool, Error> {
        let NewTable { split_at, replicas, retention, durability } = wanted;
        let retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
        let (table, durability) = (table.to_owned(), durability.into());
        let request = message::CreateTableRequest { table, split_at, replicas, retention_ms, durability };
        match self.ask(Asked::CreateTable(request)).await? {
            Told::TableCreated(answer) => Ok(answer.existed),
            other => Err(unexpected(&other)),
        }
    }

    /// Drops a table with all its rows. When that is done, nobody reads anything of it any more, and its name is free.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none of that name.
    pub async fn drop_table(&self, table: &str) -> Result<(), Error> {
        let request = message::DropTableRequest { table: table.to_owned() };
        let Ended { outcome, in_doubt } = self.skin.call(Asked::DropTable(request), self.deadline).await;
        match outcome {
            // It was there when it was first asked for: that attempt, or another's, has done it.
            Err(Error::NotFound(_)) if in_doubt => Ok(()),
            outcome => outcome.map(|_| ()),
        }
    }

    /// Splits a range of a table in two, while it is read and written; gives the cohort of the new one, which begins at
    /// the key.
    ///
    /// # Errors
    /// [`Error::Exists`] when a range begins there already, [`Error::NotFound`] when there is no such table.
    pub async fn split_range(&self, table: &str, key: impl Into<Bytes>) -> Result<u32, Error> {
        let request = SplitRangeRequest { table: table.to_owned(), key: key.into() };
        let Ended { outcome, in_doubt } = self.skin.call(Asked::SplitRange(request.clone()), self.deadline).await;
        match outcome {
            Ok(Told::RangeSplit(answer)) => Ok(answer.cohort),
            // It was not when it was first asked for: that attempt, or another's, has done it.
            Err(Error::Exists(_)) if in_doubt => {
                let known = self.describe_table(table).await?;
                let range = known.ranges.iter().find(|range| range.start == request.key);
                range.map(|range| range.cohort).ok_or_else(|| Error::NotFound(format!("no table named {table:?}")))
            }
            Ok(other) => Err(unexpected(&other)),
            Err(error) => Err(error),
        }
    }

    /// Has the replicas of a range move to these nodes, while it is read and written. It is begun, and goes on by
    /// itself: the table's description says when they are there.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such cohort, or no such node.
    pub async fn move_range(&self, cohort: u32, nodes: &[u32]) -> Result<(), Error> {
        let request = MoveRangeRequest { cohort, nodes: nodes.to_vec() };
        match self.ask(Asked::MoveRange(request)).await? {
            Told::MoveBegun => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Puts a node with a blank disk on the universe's list; gives all nodes that there ever were. A node that is on it
    /// already stays there. The disk is made the universe's next: [`crate::formation::join`] does both.
    ///
    /// # Errors
    /// [`Error::Exists`] when the number or an address is taken, or the node has left.
    pub(crate) async fn add_node(&self, node: AddNodeRequest) -> Result<Vec<RosterNode>, Error> {
        match self.ask(Asked::AddNode(node)).await? {
            Told::Nodes(answer) => Ok(answer.nodes),
            other => Err(unexpected(&other)),
        }
    }

    /// Has a node leave, whether it lives or not. It is begun, and goes on by itself: [`Client::nodes`] says when it
    /// has left.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such node, or too few would be left.
    pub async fn remove_node(&self, node: u32) -> Result<(), Error> {
        match self.ask(Asked::RemoveNode(RemoveNodeRequest { node })).await? {
            Told::LeaveBegun => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// All nodes that there ever were, in the order of their numbers.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn nodes(&self) -> Result<Vec<RosterNode>, Error> {
        match self.ask(Asked::ListNodes(ListNodesRequest {})).await? {
            Told::Nodes(answer) => Ok(answer.nodes),
            other => Err(unexpected(&other)),
        }
    }

    /// The tables' names in order.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn list_tables(&self) -> Result<Vec<String>, Error> {
        match self.ask(Asked::ListTables).await? {
            Told::Tables(answer) => Ok(answer.tables),
            other => Err(unexpected(&other)),
        }
    }

    /// What is known of a table: its ranges, and where they lie.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn describe_table(&self, table: &str) -> Result<TableDescription, Error> {
        let request = message::DescribeTableRequest { table: table.to_owned() };
        match self.ask(Asked::DescribeTable(request)).await? {
            Told::Table(table) => Ok(table),
            other => Err(unexpected(&other)),
        }
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
        Ok(self.read_row(table, key, columns, Reads::Strong).await?.0)
    }

    /// The columns of a row as [`Client::row`] gives them, as another kind of read shows them; and the state that they
    /// are of, unless it is strong.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn read_row(
        &self,
        table: &str,
        key: impl Into<Bytes>,
        columns: Vec<Bytes>,
        reads: Reads,
    ) -> Result<(Vec<Cell>, Option<AsOf>), Error> {
        let options = reads.options();
        let request = message::GetRequest { table: table.to_owned(), key: key.into(), columns, options };
        match self.ask(Asked::Get(request)).await? {
            Told::Row(answer) => Ok((answer.cells, answer.as_of)),
            other => Err(unexpected(&other)),
        }
    }

    /// One page of rows.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn scan(&self, table: &str, scan: Scan) -> Result<Page, Error> {
        Ok(self.read_page(table, scan, Reads::Strong).await?.0)
    }

    /// One page of rows, as another kind of read shows them; and the state that they are of, unless it is strong.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn read_page(&self, table: &str, scan: Scan, reads: Reads) -> Result<(Page, Option<AsOf>), Error> {
        let Scan { from, to, prefix, reverse, limit, continuation } = scan;
        let (table, options) = (table.to_owned(), reads.options());
        let request = message::ScanRequest { table, from, to, prefix, reverse, limit, continuation, options };
        match self.ask(Asked::Scan(request)).await? {
            Told::Rows(answer) => Ok((Page { rows: answer.rows, continuation: answer.continuation }, answer.as_of)),
            other => Err(unexpected(&other)),
        }
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
        let request = message::WriteRequest { table: table.to_owned(), key: key.into(), mutations, stamp: None };
        self.once(Asked::Write(request)).await
    }

    /// Deletes a row with all its columns, whether it is there or not.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn delete_row(&self, table: &str, key: impl Into<Bytes>) -> Result<i64, Error> {
        let request = message::DeleteRowRequest { table: table.to_owned(), key: key.into(), stamp: None };
        self.once(Asked::DeleteRow(request)).await
    }

    /// How the universe is, as the first node that answers sees it.
    ///
    /// # Errors
    /// As [`Error`] has them.
    pub async fn status(&self) -> Result<StatusResponse, Error> {
        match self.ask(Asked::Status(StatusRequest {})).await? {
            Told::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// What each endpoint's node says of itself, in the endpoints' order.
    pub async fn status_of_each(&self) -> Vec<Result<StatusResponse, Error>> {
        let mut asking = JoinSet::new();
        for endpoint in 0..self.skin.endpoints.count() {
            let client = self.clone();
            asking.spawn(async move { (endpoint, client.status_of(endpoint).await.map_err(Error::Unavailable)) });
        }
        let mut all = asking.join_all().await;
        all.sort_by_key(|(endpoint, _)| *endpoint);
        all.into_iter().map(|(_, status)| status).collect()
    }

    /// Asks the nodes who leads the ranges of `table`, and goes to the leaders from now on, as far as they are among
    /// our endpoints: calls then need no forwarding. What fails is passed over as ever.
    pub async fn prefer_leader(&self, table: &str) {
        let all = self.status_of_each().await;
        let mut led = Vec::new();
        for (endpoint, status) in all.iter().enumerate() {
            let Ok(status) = status else { continue };
            let of_table = status.cohorts.iter().filter(|cohort| cohort.table == table);
            led.extend(of_table.filter(|cohort| cohort.leader == Some(status.node)).map(|cohort| (endpoint, cohort)));
        }
        // Who led before may not know yet: the newest epoch is believed.
        led.sort_by_key(|(_, cohort)| cohort.epoch);
        for (endpoint, cohort) in led {
            let range = KeyRange { start: cohort.start.clone(), end: cohort.end.clone() };
            self.skin.leads(endpoint, table, range);
            self.skin.prefer(endpoint);
        }
    }

    async fn status_of(&self, endpoint: usize) -> Result<StatusResponse, String> {
        let connection = self.skin.endpoints.connection(endpoint).await?;
        let mut request = tonic::Request::new(StatusRequest {});
        let time = self.deadline.min(STATUS_TIME_MAX);
        request.set_timeout(time);
        let mut door = AdminClient::new(connection.channel.clone());
        let told = match timeout(time, door.status(request)).await {
            Ok(answer) => {
                let told = answer.map_err(|status| fault::of(&status));
                self.skin.endpoints.judged(endpoint, told).map_err(Fault::reason)
            }
            Err(_) => Err(format!("no answer within {time:?}")),
        };
        if told.is_err() {
            self.skin.endpoints.drop_connection(&connection).await;
        }
        told.map(tonic::Response::into_inner)
    }

    /// A write that applies once, however often it is tried.
    async fn once(&self, asked: Asked) -> Result<i64, Error> {
        match self.ask(asked).await? {
            Told::Written(answer) => Ok(answer.version),
            other => Err(Error::OutcomeUnknown(format!("the node's answer does not fit the question: {other:?}"))),
        }
    }

    pub(crate) async fn ask(&self, asked: Asked) -> Result<Told, Error> {
        self.skin.call(asked, self.deadline).await.outcome
    }
}

/// The node answered another question than it was asked.
pub(crate) fn unexpected(told: &Told) -> Error {
    Error::Unavailable(format!("the node's answer does not fit the question: {told:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn calls_can_be_spawned() {
        fn spawnable<T: Send>(_: &T) {}
        let client = Client::connect(["127.0.0.1:1"]).expect("an address");
        spawnable(&client.put("t", "k", "c", "v"));
        spawnable(&client.get("t", "k", "c"));
        spawnable(&client.prefer_leader("t"));
        spawnable(&client.log("l").append(["r"]));
    }

    #[tokio::test]
    async fn nobody_there_is_unavailable_by_the_deadline() {
        let client = Client::connect(["127.0.0.1:1"]).expect("an address").with_deadline(Duration::from_millis(50));
        let began = Instant::now();
        assert!(matches!(client.put("t", "k", "c", "v").await, Err(Error::Unavailable(_))));
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
