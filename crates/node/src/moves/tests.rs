use base::{Incarnation, LogRecord, NodeId, Sequence};
use catalog::{CatalogCommand, CatalogRequest, TableOptions};
use state_machine::StateMachine as _;

use super::*;
use crate::contract::Event;
use crate::request::Request;
use crate::testing::{Bench, empty};
use tablets::Tablet;

fn member(node: u32, incarnation: u64) -> Member {
    Member { node: NodeId(node), incarnation: Incarnation(incarnation) }
}

fn of(nodes: &[u32]) -> Membership {
    Membership::of(nodes.iter().map(|node| member(*node, 1)).collect())
}

/// The steps from one membership to another, taken by the voter with the lowest number.
fn steps(mut held: Membership, plan: &Membership) -> Vec<MembershipChange> {
    let mut steps = Vec::new();
    while let Some(step) = next_step(&held, plan, held.voters()[0], false) {
        held = held.after(step).expect("a valid step");
        steps.push(step);
    }
    assert_eq!(&held, plan);
    steps
}

#[test]
fn move_adds_first_and_removes_leader_last() {
    use MembershipChange::{AddLearner, Promote, Remove};
    let (two, four, five) = (member(2, 1), member(4, 1), member(5, 1));
    let taken = steps(of(&[1, 2, 3]), &of(&[3, 4, 5]));
    let expected =
        [AddLearner(four), Promote(four), AddLearner(five), Promote(five), Remove(two), Remove(member(1, 1))];
    assert_eq!(taken, expected);
    assert_eq!(steps(of(&[1, 2, 3]), &of(&[1, 2, 3])), []);
}

#[test]
fn lost_disk_is_removed_before_replacement() {
    use MembershipChange::{AddLearner, Promote, Remove};
    let (lost, new) = (member(3, 1), member(3, 2));
    let plan = Membership::of(vec![member(1, 1), member(2, 1), new]);
    assert_eq!(steps(of(&[1, 2, 3]), &plan), [Remove(lost), AddLearner(new), Promote(new)]);
}

/// The data of a removed replica is deleted, and its promise stays with a mark. If the map assigns it to this node
/// again, it knows no members, is in doubt, and has truncated the log records of its earlier generation.
#[test]
fn removed_replica_rejoins_without_state() {
    const COHORT: CohortId = CohortId(2);
    let mut bench = Bench::start(empty(1, 1));
    bench.pass(Duration::from_millis(5_000));
    bench.ask(
        1,
        Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
            name: "t".into(),
            split_at: Vec::new(),
            options: TableOptions { durability: Some(base::Durability::Forced), ..TableOptions::of(Tablet::KIND) },
        })),
    );
    bench.pass(Duration::from_millis(2_000));
    let promised = bench.node.replicas[&COHORT].cohort.promised();
    assert!(promised.candidate.is_some());
    bench.manifests.clear();
    bench.appended.clear();

    bench.node.retire(COHORT);
    bench.step(Event::Timer);
    let left = &bench.manifests.first().expect("a manifest was written").0[&COHORT];
    let (is_marked, checkpoint) = (left.is_retired && left.doubtful, left.checkpoint);
    assert_eq!((is_marked, checkpoint, left.promised), (true, None, promised));
    let replica = &bench.node.replicas[&COHORT];
    assert!(replica.cohort.doubtful() && replica.cohort.membership().is_empty());
    assert!(replica.lineage > Lineage(0), "work on earlier trees is discarded");
    let cut = LogRecord::Truncation { from: Sequence(1) };
    assert!(bench.appended.iter().any(|record| record.cohort == COHORT && record.body == cut));
    let back = &bench.manifests.last().expect("a manifest was written").0[&COHORT];
    assert!(!back.is_retired && back.doubtful);
}
