//! Cassandra through its usual driver: each operation at a fixed consistency level, with a replica as coordinator.

use std::sync::Arc;

use bytes::Bytes;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::ExecutionError;
use scylla::serialize::row::SerializeRow;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::Row;
use sdk::Version;
use terminal::Stop;

use super::{COLUMN, OPERATION_TIME_MAX};

/// The schema, with three replicas of each row.
const SCHEMA: [&str; 2] = [
    "CREATE KEYSPACE IF NOT EXISTS loggos_bench \
     WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}",
    "CREATE TABLE IF NOT EXISTS loggos_bench.cells (key blob PRIMARY KEY, value blob, version bigint)",
];

/// The number of replicas that must respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// A majority. The closest level to Loggos's reads and writes, though not linearizable.
    Quorum,
    /// One: weak consistency in Spinnaker's paper (appendix D.6.1).
    One,
}

impl From<Level> for Consistency {
    fn from(level: Level) -> Self {
        match level {
            Level::Quorum => Self::Quorum,
            Level::One => Self::One,
        }
    }
}

/// A session with its prepared statements.
#[derive(Clone)]
pub(crate) struct Cassandra {
    session: Arc<Session>,
    write: PreparedStatement,
    conditional_put: PreparedStatement,
    read: PreparedStatement,
}

impl Cassandra {
    pub(crate) async fn prepare(endpoints: &[String]) -> Result<(), Stop> {
        let session = session(endpoints).await?;
        for statement in SCHEMA {
            session.query_unpaged(statement, ()).await.map_err(|error| unavailable(&error))?;
        }
        Ok(())
    }

    pub(crate) async fn connect(endpoints: &[String], level: Level) -> Result<Self, Stop> {
        let session = Arc::new(session(endpoints).await?);
        let prepare = async |statement: &str| {
            let mut prepared =
                session.prepare(statement).await.map_err(|error| sdk::Error::Unavailable(error.to_string()))?;
            prepared.set_consistency(level.into());
            prepared.set_request_timeout(Some(OPERATION_TIME_MAX));
            Ok::<_, sdk::Error>(prepared)
        };
        let write = prepare("INSERT INTO loggos_bench.cells (key, value, version) VALUES (?, ?, 1)").await?;
        let conditional_put =
            prepare("UPDATE loggos_bench.cells SET value = ?, version = ? WHERE key = ? IF version = ?").await?;
        let read = prepare("SELECT value FROM loggos_bench.cells WHERE key = ?").await?;
        Ok(Self { session, write, conditional_put, read })
    }

    /// Puts a key. The returned version has no meaning.
    pub(crate) async fn write(&self, key: Bytes, value: Bytes) -> Result<Version, sdk::Error> {
        self.execute(&self.write, (&key[..], &value[..])).await?;
        Ok(Version::from_nanos(1))
    }

    /// Puts a key if its column `version` has this number (0: if it is absent), and increments it: a round of Paxos.
    pub(crate) async fn conditional_put(
        &self,
        key: Bytes,
        value: Bytes,
        expected: Version,
    ) -> Result<Version, sdk::Error> {
        let number = expected.as_nanos();
        let condition = (expected != Version::ABSENT).then_some(number);
        let values = (&value[..], number + 1, &key[..], condition);
        let row = self.execute(&self.conditional_put, values).await?;
        let columns = row.map(|row| row.columns).unwrap_or_default();
        let is_applied = columns.first().and_then(Option::as_ref).and_then(|applied| applied.as_boolean());
        if is_applied == Some(true) {
            return Ok(Version::from_nanos(number + 1));
        }
        let actual = columns.get(1).and_then(Option::as_ref).and_then(|version| version.as_bigint());
        Err(sdk::Error::Refused {
            column: COLUMN,
            expected,
            actual: actual.map_or(Version::ABSENT, Version::from_nanos),
        })
    }

    /// Whether a key exists.
    pub(crate) async fn read(&self, key: Bytes) -> Result<bool, sdk::Error> {
        Ok(self.execute(&self.read, (&key[..],)).await?.is_some())
    }

    /// The first row of the response, if any.
    async fn execute(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<Option<Row>, sdk::Error> {
        let answer = self.session.execute_unpaged(statement, values).await.map_err(|error| unavailable(&error))?;
        if !answer.is_rows() {
            return Ok(None);
        }
        let invalid = |error: &dyn std::error::Error| sdk::Error::Invalid(error.to_string());
        let rows = answer.into_rows_result().map_err(|error| invalid(&error))?;
        rows.maybe_first_row::<Row>().map_err(|error| invalid(&error))
    }
}

async fn session(endpoints: &[String]) -> Result<Session, Stop> {
    let session = SessionBuilder::new().known_nodes(endpoints).build().await;
    session.map_err(|error| sdk::Error::Unavailable(error.to_string()).into())
}

fn unavailable(error: &ExecutionError) -> sdk::Error {
    sdk::Error::Unavailable(error.to_string())
}
