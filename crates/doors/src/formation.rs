//! The formation service: whose disk a node has, and the way from a blank one to a universe.

use std::sync::Arc;

use api::admin::{self as message, FormRequest, FormResponse, LookRequest, LookResponse};
use api::servers::formation_server::Formation;
use base::limits::UNIVERSE_NODES;
use base::{Incarnation, Member, NodeId, UniverseId};
use tablets::request::Failure;
use tonic::Status;

use crate::refusal;

/// A universe as it was formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Genesis {
    /// Its name.
    pub universe: UniverseId,
    /// Every node with the disk that it had then.
    pub members: Vec<Member>,
}

/// What a node is, before it is formed and after.
pub trait Founding: Send + Sync + 'static {
    /// The node and its disk.
    fn own(&self) -> Member;
    /// The format of what it writes.
    fn format(&self) -> u32;
    /// The universe that it is a member of; none while its disk is blank.
    fn genesis(&self) -> Option<Genesis>;
    /// Makes it a member of the universe of these disks: in the order of nodes, each named once, this one among them. May take as
    /// long as the disk does.
    ///
    /// # Errors
    /// When it is not to be a member, for a reason of its own.
    fn form(&self, members: Vec<Member>) -> Result<Genesis, Failure>;
}

/// A node that was formed.
#[derive(Clone, Debug)]
pub struct Founded {
    own: Member,
    format: u32,
    genesis: Genesis,
}

impl Founded {
    /// A node with this disk, which writes this format, a member of this universe.
    #[must_use]
    pub fn new(own: Member, format: u32, mut genesis: Genesis) -> Self {
        genesis.members.sort_unstable();
        Self { own, format, genesis }
    }
}

impl Founding for Founded {
    fn own(&self) -> Member {
        self.own
    }

    fn format(&self) -> u32 {
        self.format
    }

    fn genesis(&self) -> Option<Genesis> {
        Some(self.genesis.clone())
    }

    fn form(&self, members: Vec<Member>) -> Result<Genesis, Failure> {
        if members == self.genesis.members {
            return Ok(self.genesis.clone());
        }
        let (node, universe) = (self.own.node, self.genesis.universe);
        Err(Failure::Exists(format!("node {node} is a member of universe {universe} already")))
    }
}

pub(crate) struct Door(pub(crate) Arc<dyn Founding>);

#[tonic::async_trait]
impl Formation for Door {
    async fn look(&self, _: tonic::Request<LookRequest>) -> Result<tonic::Response<LookResponse>, Status> {
        Ok(tonic::Response::new(LookResponse {
            disk: Some(disk(self.0.own())),
            genesis: self.0.genesis().map(genesis),
            format: self.0.format(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }

    async fn form(&self, call: tonic::Request<FormRequest>) -> Result<tonic::Response<FormResponse>, Status> {
        let disks = call.into_inner().disks;
        let mut members: Vec<Member> = disks.iter().map(member).collect();
        members.sort_unstable();
        check(self.0.own(), &members).map_err(|failure| refusal::status(&failure))?;
        let founding = Arc::clone(&self.0);
        let formed = tokio::task::spawn_blocking(move || founding.form(members)).await;
        let formed = formed.map_err(|_| Status::internal("the formation ended without a word"))?;
        let genesis = formed.map(genesis).map_err(|failure| refusal::status(&failure))?;
        Ok(tonic::Response::new(FormResponse { genesis: Some(genesis) }))
    }
}

/// Whether these may be the members of a universe that this node is one of.
fn check(own: Member, members: &[Member]) -> Result<(), Failure> {
    if !UNIVERSE_NODES.contains(&members.len()) {
        return Err(Failure::Invalid(format!(
            "a universe is formed of 1, 3, 5 or 7 nodes, and {} are named",
            members.len()
        )));
    }
    if members.windows(2).any(|pair| pair[0].node == pair[1].node) {
        return Err(Failure::Invalid("a node is named twice".to_owned()));
    }
    match members.iter().find(|member| member.node == own.node) {
        Some(member) if *member == own => Ok(()),
        Some(member) => Err(Failure::Exists(format!(
            "node {} has disk {:x} and not {:x}, with which the universe is formed: a disk that was lost, or whose data \
             was removed, is not formed once more",
            own.node, own.incarnation.0, member.incarnation.0
        ))),
        None => Err(Failure::Invalid(format!("this is node {}, which is not among those that are named", own.node))),
    }
}

fn disk(member: Member) -> message::Disk {
    message::Disk { node: member.node.0, incarnation: member.incarnation.0 }
}

fn member(disk: &message::Disk) -> Member {
    Member { node: NodeId(disk.node), incarnation: Incarnation(disk.incarnation) }
}

fn genesis(genesis: Genesis) -> message::Genesis {
    message::Genesis { universe: genesis.universe.to_string(), disks: genesis.members.into_iter().map(disk).collect() }
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
    fn only_what_can_be_a_universe_with_this_disk_is_formed() {
        let own = members(&[(1, 10)])[0];
        assert_eq!(check(own, &members(&[(1, 10), (2, 20), (3, 30)])), Ok(()));
        assert_eq!(check(own, &[own]), Ok(()));
        for wrong in [&[][..], &[(1, 10), (2, 20)], &[(1, 10), (2, 20), (2, 21)], &[(2, 20)]] {
            assert!(matches!(check(own, &members(wrong)), Err(Failure::Invalid(_))), "{wrong:?}");
        }
        assert!(matches!(check(own, &members(&[(1, 11)])), Err(Failure::Exists(_))));
    }
}
