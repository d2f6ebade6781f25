//! The formation service: reports the identity of a node's disk, and forms a cluster from blank disks.

use std::sync::Arc;

use api::admin::{self as message, FormRequest, FormResponse, JoinRequest, LookRequest, LookResponse};
use api::servers::formation_server::Formation;
use base::limits::CLUSTER_NODES;
use base::{ClusterId, Incarnation, Member, NodeId};
use state_machine::Failure;
use tonic::Status;

use crate::refusal;

/// The identity of a formed cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Genesis {
    pub cluster: ClusterId,
    /// The founding members: each node with its disk.
    pub members: Vec<Member>,
}

/// A node's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// The node and its disk.
    pub member: Member,
    /// Version of the on-disk format that it writes.
    pub format: u32,
    /// Version of the protocol between nodes.
    pub protocol: u32,
    /// Address for other nodes, as `address:port`.
    pub peer: String,
    /// Address for clients, as `address:port`.
    pub grpc: String,
    /// The other nodes that its configuration names.
    pub peers: Vec<NodeId>,
}

/// An existing cluster, as described to a joining node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    pub cluster: ClusterId,
    /// Its nodes, including the new one, each with its address for other nodes.
    pub hosts: Vec<(Member, String)>,
}

/// The identity of a node, before and after it is formed.
pub trait Founding: Send + Sync + 'static {
    /// The node's description of itself.
    fn own(&self) -> &Own;
    /// The cluster that it is a member of; `None` while its disk is blank.
    fn genesis(&self) -> Option<Genesis>;
    /// Makes it a member of a new cluster with these members: ordered by node, without duplicates, including this one.
    /// Waits for the disk.
    ///
    /// # Errors
    /// When it cannot become a member.
    fn form(&self, members: Vec<Member>) -> Result<Genesis, Failure>;
    /// Makes it a member of an existing cluster that has added it. Waits for the disk.
    ///
    /// # Errors
    /// When it belongs to another cluster, or cannot become a member for another reason.
    fn join(&self, invitation: Invitation) -> Result<Genesis, Failure>;
}

/// A [`Founding`] for a node that is formed already.
#[derive(Clone, Debug)]
pub struct Founded {
    own: Own,
    genesis: Genesis,
}

impl Founded {
    /// A formed node with this description, a member of this cluster.
    #[must_use]
    pub fn new(own: Own, mut genesis: Genesis) -> Self {
        genesis.members.sort_unstable();
        Self { own, genesis }
    }

    fn is_one_already(&self) -> Failure {
        let (node, cluster) = (self.own.member.node, self.genesis.cluster);
        Failure::Exists(format!("node {node} is already a member of cluster {cluster}"))
    }
}

impl Founding for Founded {
    fn own(&self) -> &Own {
        &self.own
    }

    fn genesis(&self) -> Option<Genesis> {
        Some(self.genesis.clone())
    }

    fn form(&self, members: Vec<Member>) -> Result<Genesis, Failure> {
        if members == self.genesis.members {
            return Ok(self.genesis.clone());
        }
        Err(self.is_one_already())
    }

    fn join(&self, invitation: Invitation) -> Result<Genesis, Failure> {
        if invitation.cluster == self.genesis.cluster { Ok(self.genesis.clone()) } else { Err(self.is_one_already()) }
    }
}

pub(crate) struct Handler(pub(crate) Arc<dyn Founding>);

#[tonic::async_trait]
impl Formation for Handler {
    async fn look(&self, _: tonic::Request<LookRequest>) -> Result<tonic::Response<LookResponse>, Status> {
        let Own { member, format, protocol, peer, grpc, peers } = self.0.own().clone();
        Ok(tonic::Response::new(LookResponse {
            disk: Some(disk(member)),
            genesis: self.0.genesis().map(genesis),
            format,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol,
            peer,
            grpc,
            peers: peers.into_iter().map(|node| node.0).collect(),
        }))
    }

    async fn form(&self, call: tonic::Request<FormRequest>) -> Result<tonic::Response<FormResponse>, Status> {
        let disks = call.into_inner().disks;
        let mut members: Vec<Member> = disks.iter().map(member).collect();
        members.sort_unstable();
        check(self.0.own().member, &members).map_err(|failure| refusal::status(&failure))?;
        self.format(move |founding| founding.form(members)).await
    }

    async fn join(&self, call: tonic::Request<JoinRequest>) -> Result<tonic::Response<FormResponse>, Status> {
        let invitation =
            invitation(self.0.own().member, call.into_inner()).map_err(|failure| refusal::status(&failure))?;
        self.format(move |founding| founding.join(invitation)).await
    }
}

impl Handler {
    /// Runs a disk operation on a blocking thread.
    async fn format(
        &self,
        format: impl FnOnce(&dyn Founding) -> Result<Genesis, Failure> + Send + 'static,
    ) -> Result<tonic::Response<FormResponse>, Status> {
        let founding = Arc::clone(&self.0);
        let formed = tokio::task::spawn_blocking(move || format(&*founding)).await;
        let formed = formed.map_err(|_| Status::internal("the formation task failed"))?;
        let genesis = formed.map(genesis).map_err(|failure| refusal::status(&failure))?;
        Ok(tonic::Response::new(FormResponse { genesis: Some(genesis) }))
    }
}

/// Validates the description of the cluster that this node is to join.
fn invitation(own: Member, request: JoinRequest) -> Result<Invitation, Failure> {
    let cluster = u128::from_str_radix(&request.cluster, 16).ok().filter(|_| request.cluster.len() == 32);
    let cluster = cluster.map(ClusterId).ok_or_else(|| {
        Failure::Invalid(format!("{:?} is not a cluster id (32 hexadecimal digits)", request.cluster))
    })?;
    let host = |host: message::Host| Some((member(&host.disk?), host.peer));
    let hosts: Option<Vec<(Member, String)>> = request.hosts.into_iter().map(host).collect();
    let mut hosts = hosts.ok_or_else(|| Failure::Invalid("a listed node has no disk".to_owned()))?;
    hosts.sort_unstable();
    if hosts.windows(2).any(|pair| pair[0].0.node == pair[1].0.node) {
        return Err(Failure::Invalid("a node is listed twice".to_owned()));
    }
    if !hosts.iter().any(|(member, _)| *member == own) {
        return Err(Failure::Invalid(format!(
            "this is node {} with disk {:x}, which is not listed",
            own.node, own.incarnation.0
        )));
    }
    Ok(Invitation { cluster, hosts })
}

/// Validates the members of a cluster that includes this node.
fn check(own: Member, members: &[Member]) -> Result<(), Failure> {
    if !CLUSTER_NODES.contains(&members.len()) {
        return Err(Failure::Invalid(format!("a cluster is formed of 1, 3, 5 or 7 nodes, not {}", members.len())));
    }
    if members.windows(2).any(|pair| pair[0].node == pair[1].node) {
        return Err(Failure::Invalid("a node is listed twice".to_owned()));
    }
    match members.iter().find(|member| member.node == own.node) {
        Some(member) if *member == own => Ok(()),
        Some(member) => Err(Failure::Exists(format!(
            "node {} has disk {:x}, but the cluster is formed with its disk {:x}: a node that lost its disk or data \
             cannot be formed again",
            own.node, own.incarnation.0, member.incarnation.0
        ))),
        None => Err(Failure::Invalid(format!("this is node {}, which is not listed", own.node))),
    }
}

fn disk(member: Member) -> message::Disk {
    message::Disk { node: member.node.0, incarnation: member.incarnation.0 }
}

fn member(disk: &message::Disk) -> Member {
    Member { node: NodeId(disk.node), incarnation: Incarnation(disk.incarnation) }
}

fn genesis(genesis: Genesis) -> message::Genesis {
    message::Genesis { cluster: genesis.cluster.to_string(), disks: genesis.members.into_iter().map(disk).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(numbers: &[(u32, u64)]) -> Vec<Member> {
        let member =
            |(node, incarnation): &(u32, u64)| Member { node: NodeId(*node), incarnation: Incarnation(*incarnation) };
        numbers.iter().map(member).collect()
    }

    #[test]
    fn formation_validates_members() {
        let own = members(&[(1, 10)])[0];
        assert_eq!(check(own, &members(&[(1, 10), (2, 20), (3, 30)])), Ok(()));
        assert_eq!(check(own, &[own]), Ok(()));
        for wrong in [&[][..], &[(1, 10), (2, 20)], &[(1, 10), (2, 20), (2, 21)], &[(2, 20)]] {
            assert!(matches!(check(own, &members(wrong)), Err(Failure::Invalid(_))), "{wrong:?}");
        }
        assert!(matches!(check(own, &members(&[(1, 11)])), Err(Failure::Exists(_))));
    }
}
