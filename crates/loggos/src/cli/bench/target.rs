//! Who is measured: Loggos through its own client library, or etcd through the little of its API that is needed.
//!
//! Either is asked at its leader, so that no forwarding is measured in one and not in the other.

use std::str::FromStr;
use std::time::Duration;

use api::etcd::kv_client::KvClient;
use api::etcd::maintenance_client::MaintenanceClient;
use api::etcd::{PutRequest, RangeRequest, StatusRequest};
use bytes::Bytes;
use tonic::transport::{Channel, Endpoint};

use crate::cli::stop::Stop;

/// The table that is written and read.
const TABLE: &str = "bench";
/// The column of each row.
const COLUMN: Bytes = Bytes::from_static(b"value");
/// How long an operation may take, its retries included, before it counts as an error.
const OPERATION_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a connection to etcd may take to be made.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);

/// A universe or a cluster, by its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Loggos(Vec<String>),
    Etcd(Vec<String>),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, endpoints) =
            text.split_once("://").ok_or("loggos://HOST:PORT,... or etcd://HOST:PORT,... is wanted")?;
        let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
        match kind {
            "loggos" => Ok(Self::Loggos(endpoints)),
            "etcd" => Ok(Self::Etcd(endpoints)),
            _ => Err(format!("{kind:?} is neither loggos nor etcd")),
        }
    }
}

impl Target {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Loggos(_) => "loggos",
            Self::Etcd(_) => "etcd",
        }
    }

    /// Creates what is needed, and fails early if nobody is there.
    pub(crate) async fn prepare(&self) -> Result<(), Stop> {
        match self {
            Self::Loggos(endpoints) => {
                sdk::Client::connect(endpoints)?.create_table(TABLE).await?;
            }
            Self::Etcd(endpoints) => {
                leader_first(endpoints).await?;
            }
        }
        Ok(())
    }

    /// One more connection, to the leader.
    pub(crate) async fn connect(&self) -> Result<Connection, Stop> {
        match self {
            Self::Loggos(endpoints) => {
                let client = sdk::Client::connect(endpoints)?.with_deadline(OPERATION_TIME_MAX);
                client.prefer_leader(TABLE).await;
                Ok(Connection::Loggos(client))
            }
            Self::Etcd(endpoints) => {
                let channels = leader_first(endpoints).await?;
                Ok(Connection::Etcd(Etcd { channels, current: 0 }))
            }
        }
    }
}

/// A connection, shared by a few clients.
#[derive(Clone)]
pub(crate) enum Connection {
    Loggos(sdk::Client),
    Etcd(Etcd),
}

impl Connection {
    pub(crate) async fn write(&mut self, key: Bytes, value: Bytes) -> Result<(), sdk::Error> {
        match self {
            Self::Loggos(client) => client.put(TABLE, key, COLUMN, value).await.map(|_| ()),
            Self::Etcd(etcd) => etcd.write(key, value).await,
        }
    }

    /// Reads a key that is there.
    pub(crate) async fn read(&mut self, key: Bytes) -> Result<(), sdk::Error> {
        let found = match self {
            Self::Loggos(client) => client.get(TABLE, key, COLUMN).await?.is_some(),
            Self::Etcd(etcd) => etcd.read(key).await?,
        };
        if found { Ok(()) } else { Err(sdk::Error::NotFound("the key that was put is not there".into())) }
    }
}

/// etcd's members, the leader first, and the one that is asked.
#[derive(Clone)]
pub(crate) struct Etcd {
    channels: Vec<Channel>,
    current: usize,
}

impl Etcd {
    async fn write(&mut self, key: Bytes, value: Bytes) -> Result<(), sdk::Error> {
        let mut request = tonic::Request::new(PutRequest { key, value, ..PutRequest::default() });
        request.set_timeout(OPERATION_TIME_MAX);
        let answer = self.member().put(request).await;
        answer.map(|_| ()).map_err(|status| self.pass_over(&status))
    }

    async fn read(&mut self, key: Bytes) -> Result<bool, sdk::Error> {
        let mut request = tonic::Request::new(RangeRequest { key, ..RangeRequest::default() });
        request.set_timeout(OPERATION_TIME_MAX);
        match self.member().range(request).await {
            Ok(answer) => Ok(!answer.into_inner().kvs.is_empty()),
            Err(status) => Err(self.pass_over(&status)),
        }
    }

    fn member(&self) -> KvClient<Channel> {
        KvClient::new(self.channels[self.current].clone()).max_decoding_message_size(usize::MAX)
    }

    /// Goes on with the next member.
    fn pass_over(&mut self, status: &tonic::Status) -> sdk::Error {
        self.current = (self.current + 1) % self.channels.len();
        sdk::Error::Unavailable(status.to_string())
    }
}

/// New connections to all members, that to the leader first.
async fn leader_first(endpoints: &[String]) -> Result<Vec<Channel>, Stop> {
    let mut channels = Vec::with_capacity(endpoints.len());
    let mut leader = None;
    for (position, address) in endpoints.iter().enumerate() {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| Stop::invalid(format!("{address}: {error}")))?;
        let channel = endpoint.connect_timeout(CONNECT_TIME_MAX).tcp_nodelay(true).connect_lazy();
        if let Ok(status) = MaintenanceClient::new(channel.clone()).status(StatusRequest {}).await {
            let status = status.into_inner();
            if status.header.is_some_and(|header| header.member_id == status.leader) {
                leader = Some(position);
            }
        }
        channels.push(channel);
    }
    let Some(leader) = leader else {
        return Err(sdk::Error::Unavailable("none of the members named leads the etcd cluster".into()).into());
    };
    channels.rotate_left(leader);
    Ok(channels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_by_kind_and_endpoints() {
        assert_eq!("etcd://a:1,b:2".parse(), Ok(Target::Etcd(vec!["a:1".into(), "b:2".into()])));
        assert_eq!("loggos://a:1".parse(), Ok(Target::Loggos(vec!["a:1".into()])));
        assert!("a:1".parse::<Target>().is_err());
        assert!("redis://a:1".parse::<Target>().is_err());
    }
}
