//! Snapshots: reads of any rows as of one moment, without locks, from any replica.

use std::time::Duration;

use api::columns as message;
use bytes::Bytes;

use crate::client_api::unexpected;
use crate::request::{ApiRequest, ApiResponse};
use crate::scan::Scan;
use crate::types::{Cell, Row};
use crate::{Client, Error, Reads, Table, Version};

/// How old a snapshot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Staleness {
    /// It contains everything that was acknowledged before the call, in tables that take part in transactions.
    #[default]
    Fresh,
    /// It is exactly this old, by the clock of a node.
    Exact(Duration),
    /// It is at most this old, by the clock of a node. [`Table::snapshot_of`] finds the newest moment that a replica can
    /// read without waiting; [`Client::snapshot_of`], which knows no row, uses the oldest moment allowed.
    Max(Duration),
}

/// Everything as of one moment. Reads are answered by any replica, see each transaction entirely or not at all, and agree
/// with each other however long they take, within the retention of the tables. [`TableSnapshot::hold`] keeps a table
/// readable beyond that.
#[derive(Clone, Debug)]
pub struct TableSnapshot {
    pub(crate) client: Client,
    timestamp: Version,
}

impl Client {
    /// A snapshot of everything that was acknowledged before the call, in tables that take part in transactions. Writes of
    /// other tables are acknowledged before their timestamps have passed on all clocks, so it may miss the latest of them.
    ///
    /// ```no_run
    /// # async fn example(client: loggos_client::Client) -> Result<(), loggos_client::Error> {
    /// let moment = client.snapshot().await?;
    /// let mut accounts = moment.scan("accounts").rows();
    /// while let Some(account) = accounts.next().await {
    ///     let account = account?;
    ///     println!("{account:?}, of {:?}", moment.row("owners", account.key.clone()).await?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Precondition`] if the node's clock has no bound on its error. Otherwise [`Error`].
    pub async fn snapshot(&self) -> Result<TableSnapshot, Error> {
        self.snapshot_of(Staleness::Fresh).await
    }

    /// A snapshot of this age.
    ///
    /// # Errors
    /// As [`Client::snapshot`].
    pub async fn snapshot_of(&self, staleness: Staleness) -> Result<TableSnapshot, Error> {
        let (_, latest) = self.clock().await?;
        let age = match staleness {
            Staleness::Fresh => Duration::ZERO,
            Staleness::Exact(age) | Staleness::Max(age) => age,
        };
        let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
        Ok(self.snapshot_at(Version::from_nanos(latest.as_nanos().saturating_sub(age).max(0))))
    }

    /// The snapshot as of a timestamp: the version of a column, a transaction's, or any other.
    #[must_use]
    pub fn snapshot_at(&self, timestamp: Version) -> TableSnapshot {
        TableSnapshot { client: self.clone(), timestamp }
    }

    /// The interval that contains true time, by the clock of one of the nodes.
    ///
    /// # Errors
    /// As [`Client::snapshot`].
    pub async fn clock(&self) -> Result<(Version, Version), Error> {
        match self.ask(ApiRequest::Clock).await? {
            ApiResponse::Clock(message::ClockResponse { earliest_ns, latest_ns }) => {
                Ok((Version::from_nanos(earliest_ns), Version::from_nanos(latest_ns)))
            }
            other => Err(unexpected(&other)),
        }
    }
}

impl Table {
    /// A snapshot of this age, for reads that begin at this key, which may be empty and need not exist. With
    /// [`Staleness::Max`] its moment is that of the last write that a replica of the key's range has applied, or the
    /// oldest moment allowed if that is later. That replica can then read its range without waiting for others, even
    /// without a leader, unless a transaction that is being committed changes the same row. A replica that has not reached
    /// the moment, such as one of another range, forwards the read to its leader.
    ///
    /// ```no_run
    /// # async fn example(accounts: loggos_client::Table) -> Result<(), loggos_client::Error> {
    /// use loggos_client::Staleness;
    /// use std::time::Duration;
    ///
    /// let recent = accounts.snapshot_of("alice", Staleness::Max(Duration::from_secs(10))).await?;
    /// println!("{:?} as of {}", recent.row("accounts", "alice").await?, recent.timestamp());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::snapshot`]. [`Error::NotFound`] if the table does not exist and the staleness is a maximum.
    pub async fn snapshot_of(&self, key: impl Into<Bytes>, staleness: Staleness) -> Result<TableSnapshot, Error> {
        /// Only the state of the response matters: probably there is no such column.
        const NOTHING: Bytes = Bytes::from_static(&[0]);
        let oldest = self.client.snapshot_of(staleness);
        if !matches!(staleness, Staleness::Max(_)) {
            return oldest.await;
        }
        let key = Some(key.into()).filter(|key| !key.is_empty()).unwrap_or(NOTHING);
        let newest = self.read(key).column(NOTHING).consistency(Reads::Timeline { stale_ok: true }).send();
        let (oldest, newest) = tokio::try_join!(oldest, newest)?;
        let newest = newest.as_of.map_or(oldest.timestamp, |as_of| as_of.timestamp);
        Ok(self.client.snapshot_at(newest.max(oldest.timestamp)))
    }
}

impl TableSnapshot {
    /// The moment.
    #[must_use]
    pub fn timestamp(&self) -> Version {
        self.timestamp
    }

    /// Reads a row.
    ///
    /// # Errors
    /// [`Error::Precondition`] if the moment is before the table's retention. Otherwise [`Error`].
    pub async fn row(&self, table: impl AsRef<str>, key: impl Into<Bytes>) -> Result<Row, Error> {
        let (table, key) = (self.client.table(table.as_ref()), key.into());
        let read = table.read(key.clone()).consistency(Reads::At(self.timestamp)).send().await?;
        Ok(Row::new(key, read.cells))
    }

    /// Reads a column of a row; none if it does not exist.
    ///
    /// # Errors
    /// As [`TableSnapshot::row`].
    pub async fn get(
        &self,
        table: impl AsRef<str>,
        key: impl Into<Bytes>,
        column: impl Into<Bytes>,
    ) -> Result<Option<Cell>, Error> {
        let table = self.client.table(table.as_ref());
        let read = table.read(key).column(column).consistency(Reads::At(self.timestamp)).send().await?;
        Ok(read.cells.into_iter().next())
    }

    /// A scan of a table as of the moment.
    pub fn scan(&self, table: impl AsRef<str>) -> Scan {
        self.client.table(table.as_ref()).scan().consistency(Reads::At(self.timestamp))
    }
}
