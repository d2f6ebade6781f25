//! Tables: a handle with all operations on one table and its rows.

use std::sync::Arc;
use std::time::Duration;

use api::admin::{SplitRangeRequest, StatusResponse};
use api::columns as message;
use base::KeyRange;
use bytes::Bytes;

use crate::client_api::unexpected;
use crate::driver::Ended;
use crate::request::{ApiRequest, ApiResponse};
use crate::scan::Scan;
use crate::types::{AsOf, Cell, Durability, Replication, Row, TableDescription};
use crate::{Client, Error, Reads, Version};

/// A table of a client's cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) client: Client,
    pub(crate) name: Arc<str>,
}

impl Client {
    /// A handle for the table with this name, which may not exist yet.
    #[must_use]
    pub fn table(&self, name: impl Into<Arc<str>>) -> Table {
        Table { client: self.clone(), name: name.into() }
    }
}

impl Table {
    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the deadline of each call of this handle.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.client.deadline = deadline;
        self
    }

    /// Creates the table unless it exists: sent by [`CreateTable::send`].
    pub fn create(&self) -> CreateTable<'_> {
        let request = message::CreateTableRequest { table: self.name.to_string(), ..Default::default() };
        CreateTable { table: self, request }
    }

    /// Drops the table with all its rows. After success no strong read sees the table, and its name can be reused.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the table does not exist.
    pub async fn drop_table(&self) -> Result<(), Error> {
        self.drop_with(false).await
    }

    /// Drops the table without waiting for ranges that cannot be reached. This declares that a majority of their replicas
    /// is lost for good: replicas that are only cut off can serve the table until they are in contact with the cluster.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the table does not exist.
    pub async fn force_drop_table(&self) -> Result<(), Error> {
        self.drop_with(true).await
    }

    async fn drop_with(&self, force: bool) -> Result<(), Error> {
        let request = message::DropTableRequest { table: self.name.to_string(), force };
        let Ended { outcome, in_doubt, .. } =
            self.client.driver.call(ApiRequest::DropTable(request), self.client.deadline).await;
        match outcome {
            // The table existed at the first attempt: that attempt, or another client, has dropped it.
            Err(Error::NotFound(_)) if in_doubt => Ok(()),
            outcome => outcome.map(|_| ()),
        }
    }

    /// Describes the table: its ranges, and their placement.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the table does not exist.
    pub async fn describe(&self) -> Result<TableDescription, Error> {
        let request = message::DescribeTableRequest { table: self.name.to_string() };
        match self.client.ask(ApiRequest::DescribeTable(request)).await? {
            ApiResponse::Table(table) => Ok(table.into()),
            other => Err(unexpected(&other)),
        }
    }

    /// Splits the range that contains a key in two, while it is read and written. Returns the id of the cohort of the
    /// new range, which begins at the key.
    ///
    /// # Errors
    /// [`Error::Exists`] if a range already begins at the key, [`Error::NotFound`] if the table does not exist.
    pub async fn split(&self, key: impl Into<Bytes>) -> Result<u32, Error> {
        let request = SplitRangeRequest { table: self.name.to_string(), key: key.into() };
        let call = self.client.driver.call(ApiRequest::SplitRange(request.clone()), self.client.deadline);
        let Ended { outcome, in_doubt, .. } = call.await;
        match outcome {
            Ok(ApiResponse::RangeSplit(answer)) => Ok(answer.cohort),
            // There was no such range at the first attempt: that attempt, or another client, has split it.
            Err(Error::Exists(_)) if in_doubt => {
                let known = self.describe().await?;
                let range = known.ranges.iter().find(|range| range.start == request.key);
                range
                    .map(|range| range.cohort)
                    .ok_or_else(|| Error::NotFound(format!("no table named {:?}", self.name)))
            }
            Ok(other) => Err(unexpected(&other)),
            Err(error) => Err(error),
        }
    }

    /// Asks the nodes for the leaders of the table's ranges, and sends later calls to these leaders if they are among
    /// the client's endpoints. This saves forwarding. A leader that fails is skipped as usual.
    pub async fn prefer_leader(&self) {
        if let Some(endpoint) = self.learn_leaders().await {
            self.client.driver.prefer(endpoint);
        }
    }

    /// As [`Table::prefer_leader`], but calls for other ranges and tables are sent as before. Returns the endpoint of one
    /// of the leaders.
    pub async fn learn_leaders(&self) -> Option<usize> {
        let all = self.client.status_of_each().await;
        let mut led = Vec::new();
        for (endpoint, status) in all.iter().enumerate() {
            let Ok(StatusResponse { node, cohorts, .. }) = status else { continue };
            let of_table = cohorts.iter().filter(|cohort| cohort.table == *self.name);
            led.extend(of_table.filter(|cohort| cohort.leader == Some(*node)).map(|cohort| (endpoint, cohort)));
        }
        // A former leader may not know that it was replaced, so the highest epoch wins.
        led.sort_by_key(|(_, cohort)| cohort.epoch);
        for (endpoint, cohort) in &led {
            let range = KeyRange { start: cohort.start.clone(), end: cohort.end.clone() };
            self.client.driver.leads(*endpoint, &self.name, range);
        }
        led.last().map(|(endpoint, _)| *endpoint)
    }

    /// Reads one column of a row with a strong read; none if it is absent.
    ///
    /// # Errors
    /// [`Error`]; [`Error::NotFound`] if the table does not exist. This holds for all reads and writes.
    pub async fn get(&self, key: impl Into<Bytes>, column: impl Into<Bytes>) -> Result<Option<Cell>, Error> {
        Ok(self.read(key).column(column).send().await?.cells.pop())
    }

    /// Reads a row with all its columns with a strong read; none if it is absent.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn row(&self, key: impl Into<Bytes>) -> Result<Option<Row>, Error> {
        let key = key.into();
        let ReadResponse { cells, .. } = self.read(key.clone()).send().await?;
        Ok((!cells.is_empty()).then_some(Row { key, cells }))
    }

    /// Reads a row, with options: sent by [`Read::send`].
    pub fn read(&self, key: impl Into<Bytes>) -> Read<'_> {
        Read { table: self, key: key.into(), columns: Vec::new(), names_only: false, consistency: Reads::default() }
    }

    /// Changes columns of one row atomically: sent by [`Write::send`].
    pub fn write(&self, key: impl Into<Bytes>) -> Write<'_> {
        Write { table: self, key: key.into(), mutations: Vec::new() }
    }

    /// Deletes a row with all its columns, whether it exists or not. Returns the timestamp of the deletion.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn delete_row(&self, key: impl Into<Bytes>) -> Result<Version, Error> {
        let request = message::DeleteRowRequest { table: self.name.to_string(), key: key.into(), stamp: None };
        self.client.once(ApiRequest::DeleteRow(request)).await
    }

    /// Reads rows in key order: a [`Scan`] of the whole table, to be restricted by its methods.
    pub fn scan(&self) -> Scan {
        Scan::new(self.clone())
    }
}

/// The creation of a table, with its options.
#[derive(Clone, Debug)]
#[must_use = "a table is created by `send`"]
pub struct CreateTable<'a> {
    table: &'a Table,
    request: message::CreateTableRequest,
}

impl CreateTable<'_> {
    /// Divides the table into ranges: each key is the first of a range. In any order; empty by default.
    pub fn split_at<K: Into<Bytes>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.request.split_at = keys.into_iter().map(Into::into).collect();
        self
    }

    /// Replicas of each range: 1, 3 or 5. The default is three, or the number of nodes if that is lower.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.request.replicas = replicas;
        self
    }

    /// How long old versions are readable, in whole milliseconds, at most a week. The default is one minute.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.request.retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// The storage that a write must have reached before it is acknowledged. The default is [`Durability::Forced`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.request.set_durability(durability.into());
        self
    }

    /// Whether the table takes part in transactions. The default is yes, unless the durability is
    /// [`Durability::Memory`], for which `true` is refused. Writes to a table that takes no part never wait for a clock.
    pub fn transactions(mut self, transactions: bool) -> Self {
        self.request.transactions = Some(transactions);
        self
    }

    /// How each range is replicated. The default is [`Replication::Paxos`]. [`Replication::PrimaryBackup`] excludes
    /// [`Durability::Memory`].
    pub fn replication(mut self, replication: Replication) -> Self {
        self.request.set_replication(replication.into());
        self
    }

    /// Creates the table unless it exists with these options; options that were not set are not compared. Returns
    /// whether it existed.
    ///
    /// # Errors
    /// [`Error::Exists`] if it exists with other options, [`Error::Invalid`] if the name or an option is not valid.
    pub async fn send(self) -> Result<bool, Error> {
        match self.table.client.ask(ApiRequest::CreateTable(self.request)).await? {
            ApiResponse::TableCreated(answer) => Ok(answer.existed),
            other => Err(unexpected(&other)),
        }
    }
}

/// A read of one row, with its options.
#[derive(Clone, Debug)]
#[must_use = "a read is sent by `send`"]
pub struct Read<'a> {
    table: &'a Table,
    key: Bytes,
    columns: Vec<Bytes>,
    names_only: bool,
    consistency: Reads,
}

/// The result of a [`Read`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadResponse {
    /// The requested columns that exist, in order of name.
    pub cells: Vec<Cell>,
    /// The state that was read; none for [`Reads::Strong`] and [`Reads::Anywhere`]; sometimes none for
    /// [`Reads::StrongAsOf`].
    pub as_of: Option<AsOf>,
}

impl Read<'_> {
    /// Reads this column, and others that were named. Without any, all columns are read.
    pub fn column(mut self, column: impl Into<Bytes>) -> Self {
        if self.columns.is_empty() {
            self.columns.reserve_exact(1);
        }
        self.columns.push(column.into());
        self
    }

    /// Reads these columns, and others that were named. Without any, all columns are read.
    pub fn columns<C: Into<Bytes>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.columns.extend(columns.into_iter().map(Into::into));
        self
    }

    /// The consistency level. The default is [`Reads::Strong`].
    pub fn consistency(mut self, consistency: Reads) -> Self {
        self.consistency = consistency;
        self
    }

    /// Reads the names and versions of columns with empty values.
    pub fn names_only(mut self) -> Self {
        self.names_only = true;
        self
    }

    /// Reads the row. All columns are of one state. A row that does not fit into one response is read in several calls,
    /// each with the client's deadline; all but the first read the state of the first ([`Reads::At`]).
    ///
    /// # Errors
    /// [`Error`]; [`Error::Precondition`] also for [`Reads::At`] with a timestamp before the table's retention, and if
    /// reading all parts takes longer than the retention.
    pub async fn send(self) -> Result<ReadResponse, Error> {
        let Self { table, key, columns, names_only, consistency } = self;
        let mut request = message::GetRequest {
            table: table.name.to_string(),
            key,
            columns,
            options: consistency.options(),
            columns_after: Some(Bytes::new()),
            names_only,
        };
        let mut response = part(&table.client, request.clone()).await?;
        while let Some(message::Rest { columns_after, at_ns }) = response.rest.take() {
            request.options = Reads::At(Version::from_nanos(at_ns)).options();
            request.columns_after = Some(columns_after);
            let next = part(&table.client, request.clone()).await?;
            response.cells.extend(next.cells);
            response.rest = next.rest;
        }
        Ok(ReadResponse {
            cells: response.cells.into_iter().map(Into::into).collect(),
            as_of: response.as_of.map(Into::into),
        })
    }
}

async fn part(client: &Client, request: message::GetRequest) -> Result<message::GetResponse, Error> {
    match client.ask(ApiRequest::Get(request)).await? {
        ApiResponse::Row(response) => Ok(response),
        other => Err(unexpected(&other)),
    }
}

/// A write of one row: puts and deletions of columns, executed all or none. Each column may occur once.
#[derive(Clone, Debug)]
#[must_use = "a write is sent by `send`"]
pub struct Write<'a> {
    table: &'a Table,
    key: Bytes,
    mutations: Vec<message::Mutation>,
}

impl Write<'_> {
    /// Puts a column.
    pub fn put(self, column: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.mutate(column.into(), Some(value.into()), None)
    }

    /// Puts a column if it has this version. [`Version::ABSENT`]: if it is absent. Otherwise the whole write is refused.
    pub fn put_if(self, column: impl Into<Bytes>, value: impl Into<Bytes>, version: Version) -> Self {
        self.mutate(column.into(), Some(value.into()), Some(version))
    }

    /// Deletes a column, whether it exists or not.
    pub fn delete(self, column: impl Into<Bytes>) -> Self {
        self.mutate(column.into(), None, None)
    }

    /// Deletes a column if it has this version. Otherwise the whole write is refused.
    pub fn delete_if(self, column: impl Into<Bytes>, version: Version) -> Self {
        self.mutate(column.into(), None, Some(version))
    }

    fn mutate(mut self, column: Bytes, value: Option<Bytes>, condition: Option<Version>) -> Self {
        if self.mutations.is_empty() {
            self.mutations.reserve_exact(1);
        }
        self.mutations.push(message::Mutation { column, value, condition: condition.map(Version::as_nanos) });
        self
    }

    /// Executes the write, at most once, and returns the new version of all columns put. For a deletion it is the
    /// timestamp of the deletion.
    ///
    /// # Errors
    /// [`Error::Refused`] if a column does not have the expected version; then nothing was written.
    /// [`Error::OutcomeUnknown`] if it may have been executed, or may yet be. Otherwise [`Error`].
    pub async fn send(self) -> Result<Version, Error> {
        let Self { table, key, mutations } = self;
        let request = message::WriteRequest { table: table.name.to_string(), key, mutations, stamp: None };
        table.client.once(ApiRequest::Write(request)).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn table_futures_are_send() {
        fn spawnable<T: Send>(_: &T) {}
        let client = Client::connect(["127.0.0.1:1"]).expect("an address");
        let table = client.table("t");
        spawnable(&table.write("k").put("c", "v").send());
        spawnable(&table.get("k", "c"));
        spawnable(&table.prefer_leader());
        spawnable(&table.scan().pages());
        spawnable(&table.scan().rows());
        spawnable(&client.log("l").append(["r"]));
    }

    #[tokio::test]
    async fn unreachable_server_fails_by_deadline() {
        let client = Client::connect(["127.0.0.1:1"]).expect("an address").with_deadline(Duration::from_millis(50));
        let (table, began) = (client.table("t"), Instant::now());
        let error = table.write("k").put("c", "v").send().await.expect_err("no server listens");
        assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error:?}");
        let mut rows = table.scan().rows();
        assert!(matches!(rows.next().await, Some(Err(Error::Unavailable(_)))));
        assert_eq!(rows.next().await, None, "a stream ends after an error");
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
