//! The system under test: Loggos through its client library, etcd through a subset of its API, or Cassandra through its
//! driver (a build with the feature `cassandra`).
//!
//! Requests go to the leader, or to a replica if the system has no leader, so that no measurement includes forwarding.

#[cfg(feature = "cassandra")]
mod cassandra;
mod etcd;

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use sdk::Version;
use terminal::{Durability, ReadKind, Replication, Stop};

#[cfg(feature = "cassandra")]
use self::cassandra::{Cassandra, Level};
use self::etcd::Etcd;

pub(crate) const TABLE: &str = "bench";
/// The column of each row.
const COLUMN: Bytes = Bytes::from_static(b"value");
/// Clients per connection ...
pub(crate) const CLIENTS_PER_CONNECTION: usize = 8;
/// ... or stream.
const CLIENTS_PER_STREAM: usize = 64;
/// Timeout of an operation, including retries, after which it counts as an error.
pub(crate) const OPERATION_TIME_MAX: Duration = Duration::from_secs(10);

/// A system under test, by its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Loggos(Vec<String>),
    /// Loggos, with requests sent over streams.
    LoggosStream(Vec<String>),
    Etcd(Vec<String>),
    #[cfg(feature = "cassandra")]
    Cassandra(Vec<String>, Level),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, endpoints) = text.split_once("://").unwrap_or(("loggos", text));
        let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
        match kind {
            "loggos" => Ok(Self::Loggos(endpoints)),
            "loggos-stream" => Ok(Self::LoggosStream(endpoints)),
            "etcd" => Ok(Self::Etcd(endpoints)),
            #[cfg(feature = "cassandra")]
            "cassandra" => Ok(Self::Cassandra(endpoints, Level::Quorum)),
            #[cfg(feature = "cassandra")]
            "cassandra-weak" => Ok(Self::Cassandra(endpoints, Level::One)),
            #[cfg(not(feature = "cassandra"))]
            "cassandra" | "cassandra-weak" => {
                Err("this build has no Cassandra driver: cargo build --release --features cassandra".into())
            }
            _ => Err(format!(
                "unknown target {kind:?}: expected loggos, loggos-stream, etcd, cassandra or cassandra-weak"
            )),
        }
    }
}

impl Target {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Loggos(_) => "loggos",
            Self::LoggosStream(_) => "loggos-stream",
            Self::Etcd(_) => "etcd",
            #[cfg(feature = "cassandra")]
            Self::Cassandra(_, Level::Quorum) => "cassandra",
            #[cfg(feature = "cassandra")]
            Self::Cassandra(_, Level::One) => "cassandra-weak",
        }
    }

    /// The same target with streams, if it supports them.
    pub(crate) fn streaming(self) -> Self {
        match self {
            Self::Loggos(endpoints) => Self::LoggosStream(endpoints),
            other => other,
        }
    }

    /// Clients per connection: few, so that HTTP/2 is not the bottleneck. Streams support many.
    pub(crate) fn clients_per_connection(&self) -> usize {
        match self {
            Self::Loggos(_) | Self::Etcd(_) => CLIENTS_PER_CONNECTION,
            // Its driver keeps connections to each node.
            #[cfg(feature = "cassandra")]
            Self::Cassandra(..) => CLIENTS_PER_STREAM,
            Self::LoggosStream(_) => CLIENTS_PER_STREAM,
        }
    }

    /// Creates the required tables, and fails early if the target is unavailable.
    pub(crate) async fn prepare(&self, durability: Durability, replication: Replication) -> Result<(), Stop> {
        match self {
            Self::Loggos(endpoints) | Self::LoggosStream(endpoints) => {
                let table = sdk::Client::connect(endpoints)?.table(TABLE);
                table.create().durability(durability.into()).replication(replication.into()).send().await?;
            }
            _ if durability == Durability::Memory || replication != Replication::Paxos => {
                return Err(Stop::invalid(
                    "--durability memory and --replication require Loggos: other systems configure these themselves",
                ));
            }
            Self::Etcd(endpoints) => {
                Etcd::connect(endpoints).await?;
            }
            #[cfg(feature = "cassandra")]
            Self::Cassandra(endpoints, _) => Cassandra::prepare(endpoints).await?,
        }
        Ok(())
    }

    /// Opens a new connection to the leader.
    pub(crate) async fn connect(&self) -> Result<Connection, Stop> {
        match self {
            Self::Loggos(endpoints) => loggos(sdk::Client::connect(endpoints)?).await,
            Self::LoggosStream(endpoints) => loggos(sdk::Client::streaming(endpoints)?).await,
            Self::Etcd(endpoints) => Ok(Connection::Etcd(Etcd::connect(endpoints).await?)),
            #[cfg(feature = "cassandra")]
            Self::Cassandra(endpoints, level) => {
                Ok(Connection::Cassandra(Box::new(Cassandra::connect(endpoints, *level).await?)))
            }
        }
    }
}

async fn loggos(client: sdk::Client) -> Result<Connection, Stop> {
    let table = client.with_deadline(OPERATION_TIME_MAX).table(TABLE);
    table.prefer_leader().await;
    Ok(Connection::Loggos(table))
}

/// A connection, shared by a few clients.
#[derive(Clone)]
pub(crate) enum Connection {
    Loggos(sdk::Table),
    Etcd(Etcd),
    #[cfg(feature = "cassandra")]
    Cassandra(Box<Cassandra>),
}

impl Connection {
    /// Puts a key; returns its new version.
    pub(crate) async fn write(&mut self, key: Bytes, value: Bytes) -> Result<Version, sdk::Error> {
        match self {
            Self::Loggos(table) => table.write(key).put(COLUMN, value).send().await,
            Self::Etcd(etcd) => etcd.write(key, value).await,
            #[cfg(feature = "cassandra")]
            Self::Cassandra(cassandra) => cassandra.write(key, value).await,
        }
    }

    /// Puts a key if it has this version (0: if it is absent); returns the new one. For etcd the version is the
    /// `mod_revision`.
    ///
    /// # Errors
    /// [`sdk::Error::Refused`] when it has another version.
    pub(crate) async fn conditional_put(
        &mut self,
        key: Bytes,
        value: Bytes,
        version: Version,
    ) -> Result<Version, sdk::Error> {
        match self {
            Self::Loggos(table) => table.write(key).put_if(COLUMN, value, version).send().await,
            Self::Etcd(etcd) => etcd.conditional_put(key, value, version).await,
            #[cfg(feature = "cassandra")]
            Self::Cassandra(cassandra) => cassandra.conditional_put(key, value, version).await,
        }
    }

    /// Reads an existing key.
    pub(crate) async fn read(&mut self, key: Bytes, reads: ReadKind) -> Result<(), sdk::Error> {
        let found = match self {
            Self::Loggos(table) => {
                let read = table.read(key).column(COLUMN).consistency(reads.reads()).send().await?;
                !read.cells.is_empty()
            }
            Self::Etcd(etcd) => etcd.read(key).await?,
            #[cfg(feature = "cassandra")]
            Self::Cassandra(cassandra) => cassandra.read(key).await?,
        };
        if found { Ok(()) } else { Err(sdk::Error::NotFound("a key that was written before is absent".into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_target_kind_and_endpoints() {
        assert_eq!("etcd://a:1,b:2".parse(), Ok(Target::Etcd(vec!["a:1".into(), "b:2".into()])));
        assert_eq!("loggos://a:1".parse(), Ok(Target::Loggos(vec!["a:1".into()])));
        assert_eq!("loggos-stream://a:1".parse(), Ok(Target::LoggosStream(vec!["a:1".into()])));
        assert_eq!(Target::Loggos(vec![]).streaming(), Target::LoggosStream(vec![]));
        assert_eq!("a:1,b:2".parse(), Ok(Target::Loggos(vec!["a:1".into(), "b:2".into()])));
        assert!("ftp://a:1".parse::<Target>().is_err());
        assert!("redis://a:1".parse::<Target>().is_err());
    }
}
