//! etcd: the calls that the benchmark needs, over connections to all members.

use std::time::Duration;

use api::etcd::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcd::kv_client::KvClient;
use api::etcd::maintenance_client::MaintenanceClient;
use api::etcd::request_op::Request;
use api::etcd::response_op::Response;
use api::etcd::{Compare, PutRequest, RangeRequest, RequestOp, ResponseHeader, StatusRequest, TxnRequest, TxnResponse};
use bytes::Bytes;
use sdk::Version;
use terminal::Stop;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::{COLUMN, OPERATION_TIME_MAX};

/// Timeout of establishing a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);

/// The members, the leader first, and the one in use.
#[derive(Clone)]
pub(crate) struct Etcd {
    channels: Vec<Channel>,
    current: usize,
}

impl Etcd {
    /// New connections to all members.
    pub(crate) async fn connect(endpoints: &[String]) -> Result<Self, Stop> {
        Ok(Self { channels: leader_first(endpoints).await?, current: 0 })
    }

    /// Puts a key; returns its new `mod_revision`, which is the revision of the response.
    pub(crate) async fn write(&mut self, key: Bytes, value: Bytes) -> Result<Version, sdk::Error> {
        let request = timed(PutRequest { key, value, ..PutRequest::default() });
        let answer = self.member().put(request).await.map_err(|status| self.pass_over(&status))?;
        Ok(revision(answer.into_inner().header))
    }

    /// Puts a key if it has this `mod_revision`; returns the new one. A refusal includes the current one, so it needs no
    /// second round trip, as with Loggos.
    pub(crate) async fn conditional_put(
        &mut self,
        key: Bytes,
        value: Bytes,
        expected: Version,
    ) -> Result<Version, sdk::Error> {
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::ModRevision(expected.as_nanos())),
        };
        let put = Request::RequestPut(PutRequest { key: key.clone(), value, ..PutRequest::default() });
        let look = Request::RequestRange(RangeRequest { key, keys_only: true, ..RangeRequest::default() });
        let request = TxnRequest {
            compare: vec![compare],
            success: vec![RequestOp { request: Some(put) }],
            failure: vec![RequestOp { request: Some(look) }],
        };
        let answer = self.member().txn(timed(request)).await.map_err(|status| self.pass_over(&status))?.into_inner();
        if answer.succeeded {
            return Ok(revision(answer.header));
        }
        Err(sdk::Error::Refused { column: COLUMN, expected, actual: revision_found(&answer) })
    }

    /// Whether a key exists.
    pub(crate) async fn read(&mut self, key: Bytes) -> Result<bool, sdk::Error> {
        let request = timed(RangeRequest { key, ..RangeRequest::default() });
        let answer = self.member().range(request).await.map_err(|status| self.pass_over(&status))?;
        Ok(!answer.into_inner().kvs.is_empty())
    }

    fn member(&self) -> KvClient<Channel> {
        KvClient::new(self.channels[self.current].clone()).max_decoding_message_size(usize::MAX)
    }

    /// Switches to the next member.
    fn pass_over(&mut self, status: &Status) -> sdk::Error {
        self.current = (self.current + 1) % self.channels.len();
        sdk::Error::Unavailable(status.to_string())
    }
}

fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(OPERATION_TIME_MAX);
    request
}

fn revision(header: Option<ResponseHeader>) -> Version {
    header.map_or(Version::ABSENT, |header| Version::from_nanos(header.revision))
}

/// The `mod_revision` found by a refused transaction; [`Version::ABSENT`] if the key is absent.
fn revision_found(answer: &TxnResponse) -> Version {
    let found = answer.responses.first().and_then(|response| response.response.as_ref());
    match found {
        Some(Response::ResponseRange(range)) => {
            range.kvs.first().map_or(Version::ABSENT, |found| Version::from_nanos(found.mod_revision))
        }
        _ => Version::ABSENT,
    }
}

/// New connections to all members, the leader first.
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
        return Err(sdk::Error::Unavailable("none of the given etcd members is the leader".into()).into());
    };
    channels.rotate_left(leader);
    Ok(channels)
}
