//! Checks whether the cluster is ready, through the same endpoints as clients.
//!
//! Ready means that a strong write succeeded. `dev` does not write anything itself, which would leave data behind: a
//! cohort's leader serves no requests before its barrier, an entry of its own epoch, is committed by a quorum
//! (guarantee 1), and that barrier *is* a strong write. So it suffices that a leader of the catalog has a commit point
//! in its own epoch.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use api::admin::admin_client::AdminClient;
use api::admin::{Cohort, StatusRequest, StatusResponse};
use base::CohortId;
use tonic::transport::Endpoint;

use super::nodes::Endpoints;

/// Timeout of a response from a node.
const PATIENCE: Duration = Duration::from_millis(1_000);
/// The start of a console's response when its node is healthy.
const HEALTHY: &[u8; 12] = b"HTTP/1.1 200";

/// Whether a node responds to gRPC and HTTP requests. ZooKeeper clients are served later, once the log is readable,
/// which may require other nodes.
pub(crate) fn serves(endpoints: Endpoints) -> bool {
    status_of(&[endpoints.grpc]).pop().flatten().is_some() && console_answers(endpoints.http)
}

/// Whether the ZooKeeper endpoint accepts connections.
fn accepts(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, PATIENCE).is_ok()
}

/// Whether a console reports that its node is healthy.
fn console_answers(address: SocketAddr) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut beginning = [0; HEALTHY.len()];
        stream.read_exact(&mut beginning)?;
        io::Result::Ok(beginning == *HEALTHY)
    };
    ask().unwrap_or(false)
}

/// Whether the node at this address knows the leader of the catalog.
pub(crate) fn knows_a_leader(address: SocketAddr) -> bool {
    let led = |cohort: &Cohort| cohort.cohort == CohortId::CATALOG.0 && cohort.leader.is_some();
    status_of(&[address]).iter().flatten().any(|status| status.cohorts.iter().any(led))
}

/// Why the cluster is not ready: a node that does not serve, or the lack of a leader.
pub(crate) fn why_not_ready(nodes: &BTreeMap<u32, Endpoints>) -> Option<String> {
    let asked: Vec<SocketAddr> = nodes.values().map(|endpoints| endpoints.grpc).collect();
    let statuses = status_of(&asked);
    for ((node, endpoints), status) in nodes.iter().zip(&statuses) {
        if status.is_none() {
            return Some(format!("node {node} does not serve gRPC"));
        }
        if !console_answers(endpoints.http) {
            return Some(format!("the console of node {node} does not respond"));
        }
        if !accepts(endpoints.zookeeper) {
            return Some(format!("node {node} does not serve ZooKeeper clients"));
        }
        if cfg!(feature = "sql") && !accepts(endpoints.postgres) {
            return Some(format!("node {node} does not serve PostgreSQL clients"));
        }
        if !accepts(endpoints.nbd) {
            return Some(format!("node {node} does not serve NBD clients"));
        }
    }
    let has_written = statuses.iter().flatten().any(leads_and_has_written);
    (!has_written).then(|| "no leader has committed a write; check that a majority of the nodes is running".to_owned())
}

/// Whether this node leads the catalog and has committed an entry of its own epoch.
fn leads_and_has_written(status: &StatusResponse) -> bool {
    let leads = |cohort: &&Cohort| cohort.cohort == CohortId::CATALOG.0 && cohort.leader == Some(status.node);
    status.cohorts.iter().find(leads).is_some_and(|cohort| {
        let own = cohort.replicas.iter().find(|replica| replica.node == status.node);
        own.and_then(|replica| replica.committed_lsn.as_ref()).is_some_and(|lsn| lsn.epoch == cohort.epoch)
    })
}

/// Queries nodes sequentially; `None` for one that does not respond.
fn status_of(addresses: &[SocketAddr]) -> Vec<Option<StatusResponse>> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return vec![None; addresses.len()];
    };
    runtime.block_on(async {
        let mut statuses = Vec::new();
        for address in addresses {
            statuses.push(tokio::time::timeout(PATIENCE, ask(*address)).await.ok().flatten());
        }
        statuses
    })
}

async fn ask(address: SocketAddr) -> Option<StatusResponse> {
    let channel = Endpoint::from_shared(format!("http://{address}")).ok()?.connect().await.ok()?;
    let response = AdminClient::new(channel).status(StatusRequest::default()).await.ok()?;
    Some(response.into_inner())
}
