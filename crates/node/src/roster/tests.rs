use base::{Entry, Incarnation, Lsn, NodeId};
use catalog::NodeRecord;

use super::*;
use crate::testing::{Bench, empty, entry};

fn member(node: u32) -> Member {
    Member { node: NodeId(node), incarnation: Incarnation(u64::from(node)) }
}

/// A catalog after these commands.
fn catalog(commands: &[CatalogCommand]) -> Catalog {
    let mut catalog = Catalog::empty();
    let mut previous = Lsn::ZERO;
    for command in commands {
        let next: Entry = entry(previous, command.encode());
        previous = next.lsn;
        catalog.apply_entry(&next).expect("the next entry");
    }
    catalog
}

fn record(node: u32) -> NodeRecord {
    let peer = format!("127.0.0.1:{node}");
    NodeRecord { member: member(node), grpc: peer.clone(), peer, standing: Standing::Stays }
}

fn registered(nodes: u32) -> CatalogCommand {
    CatalogCommand::RegisterNodes { nodes: (1..=nodes).map(record).collect() }
}

/// The steps from a membership to that of the roster, if all nodes are alive.
fn steps(mut held: Membership, catalog: &Catalog) -> Vec<MembershipChange> {
    let mut steps = Vec::new();
    while let Some(step) = next_step(&held, catalog, |_| true) {
        held = held.after(step).expect("a valid step");
        steps.push(step);
    }
    steps
}

fn founders(nodes: u32, voters: usize) -> Membership {
    Membership::with_voters((1..=nodes).map(member).collect(), voters)
}

#[test]
fn joined_node_becomes_learner_or_voter() {
    use MembershipChange::{AddLearner, Promote, Remove};
    let add = |node| CatalogCommand::AddNode { node: record(node) };
    let leave = |node| CatalogCommand::BeginLeave { node: NodeId(node) };
    // The fourth node does not vote: four voters tolerate no more failures than three. The fifth makes them five.
    assert_eq!(steps(founders(3, 3), &catalog(&[registered(3), add(4)])), [AddLearner(member(4))]);
    let joined = [registered(3), add(4), add(5)];
    let grown = [AddLearner(member(4)), AddLearner(member(5)), Promote(member(4)), Promote(member(5))];
    assert_eq!(steps(founders(3, 3), &catalog(&joined)), grown);
    let shrunk = [registered(5), leave(2)];
    assert_eq!(steps(founders(5, 5), &catalog(&shrunk)), [Remove(member(2))]);
    let one_grows = [registered(1), add(2), add(3)];
    let grown = [AddLearner(member(2)), AddLearner(member(3)), Promote(member(2)), Promote(member(3))];
    assert_eq!(steps(founders(1, 1), &catalog(&one_grows)), grown);
    let left = [registered(4), leave(2)];
    assert_eq!(steps(founders(4, 3), &catalog(&left)), [Promote(member(4)), Remove(member(2))]);
    // A cluster of seven nodes has five voters. After one leaves, the remaining six still have five.
    let of_many = [registered(7), leave(2)];
    assert_eq!(steps(founders(7, 5), &catalog(&of_many)), [Promote(member(6)), Remove(member(2))]);
}

#[test]
fn removal_waits_for_replacement_voter() {
    let left = catalog(&[registered(4), CatalogCommand::BeginLeave { node: NodeId(2) }]);
    assert_eq!(next_step(&founders(4, 3), &left, |_| false), None);
}

/// The roster decides whether a node is known. A node absent from the roster is known by its own claim, and a removed
/// node is never known.
#[test]
fn roster_and_claims_identify_nodes() {
    let mut bench = Bench::start(empty(1, 3));
    let known = |bench: &Bench| bench.node.members().iter().map(|member| member.node.0).collect::<Vec<_>>();
    let from = |node, incarnation| Member { node: NodeId(node), incarnation: Incarnation(incarnation) };
    let start = |boot| ProcessStart { boot: Boot(boot), nonce: 1 };
    bench.node.peer_started(from(5, 50), start(3), bench.now);
    bench.node.peer_started(from(2, 99), start(3), bench.now);
    assert_eq!((known(&bench), bench.node.cluster.peers[&NodeId(5)].boot), (vec![1, 2, 3, 5], Boot(3)));
    assert_eq!(bench.node.cluster.peers[&NodeId(2)].boot, Boot(0), "the boot belongs to another disk");
    let node = NodeRecord { member: from(5, 50), ..record(5) };
    let replica = bench.node.replicas.get_mut(&CohortId::CATALOG).expect("every node has a catalog replica");
    let mut previous = Lsn::ZERO;
    let leave = [CatalogCommand::BeginLeave { node: NodeId(5) }, CatalogCommand::EndLeave { node: NodeId(5) }];
    let all = [
        CatalogCommand::RegisterNodes {
            nodes: bench
                .node
                .cluster
                .members
                .iter()
                .filter(|m| m.node.0 < 4)
                .map(|member| NodeRecord { member: *member, ..record(member.node.0) })
                .collect(),
        },
        CatalogCommand::AddNode { node },
    ];
    for command in all.iter().chain(&leave) {
        let next = entry(previous, command.encode());
        previous = next.lsn;
        replica.state.apply(&next).expect("the next entry");
    }
    assert_eq!(bench.node.cluster.starts.keys().collect::<Vec<_>>(), [&NodeId(5)]);
    bench.node.cluster.has_work = true;
    bench.node.run_roster();
    assert_eq!(known(&bench), [1, 2, 3]);
    assert!(bench.node.cluster.starts.is_empty());
    bench.node.peer_started(from(5, 50), start(4), bench.now);
    assert_eq!(known(&bench), [1, 2, 3]);
}
