use state_machine::StateMachine as _;
use store::identity::Owner;
use store::tree::{Config, Tablespace, Tree};

use super::*;
use crate::registry::{AnyMachine, Loader};
use crate::testing::{Bench, empty, members};
use tablets::Tablet;

const TABLE: CohortId = CohortId(2);

fn tree(cohort: CohortId) -> Tree {
    let (cluster, node) = (base::ClusterId(1), NodeId(1));
    let owner = Owner { cluster, node, incarnation: base::Incarnation(7) };
    Tree::new(Tablespace::new(owner, Config::DEFAULT, 1 << 20, 1 << 20).site(cohort))
}

/// The state of a range before its first entry.
fn blank(cohort: CohortId) -> Snapshot {
    let disk = base::Incarnation(7);
    AnyMachine::new(Tablet::KIND, cohort, disk, Box::new(tree(cohort))).expect("a known kind").snapshot()
}

fn membership() -> SharedMembership {
    SharedMembership::new(members(3).into())
}

fn transfer() -> Transfer {
    let state = blank(TABLE);
    let mut transfer = Transfer::new(WholeState { state, files: Vec::new(), membership: membership() });
    let Step::Here(first) = transfer.step() else { panic!("a snapshot starts with a chunk") };
    transfer.part = Some(first);
    transfer
}

#[test]
fn transfer_sends_next_part_after_ack() {
    let mut transfer = transfer();
    let mut loader = Loader::new(TABLE, Tablet::KIND);
    for received in 1.. {
        match transfer.part.clone() {
            Some(StatePart::Chunk(chunk)) => loader.push(&chunk).expect("the next part"),
            other => assert_eq!(
                other,
                Some(StatePart::Files { files: Vec::new(), membership: membership() }),
                "it has no files"
            ),
        }
        let more = !transfer.is_last();
        match transfer.acknowledged(received) {
            Some(Step::Here(part)) if more => transfer.part = Some(part),
            step => assert!(step.is_none() && !more, "and the last one stays"),
        }
        assert!(transfer.acknowledged(received).is_none(), "a duplicate acknowledgement has no effect");
        if !more {
            break;
        }
    }
    assert!(loader.finish().is_ok());
}

#[test]
fn transfer_restarts_for_empty_follower() {
    let mut transfer = transfer();
    let first = transfer.part.clone();
    assert!(matches!(transfer.acknowledged(1), Some(Step::Here(part)) if Some(&part) != first.as_ref()));
    assert!(matches!(transfer.acknowledged(0), Some(Step::Here(part)) if Some(&part) == first.as_ref()));
    assert_eq!(transfer.index, 0);
    assert!(transfer.acknowledged(0).is_none(), "the part is in transit");
    assert!(!transfer.is_suspect);
}

/// A follower that has received everything and starts over may have found a file invalid, so the leader verifies its
/// own.
#[test]
fn leader_suspects_files_refused_by_follower() {
    let mut transfer = transfer();
    while transfer.acknowledged(transfer.index + 1).is_some() {}
    assert!(transfer.is_last());
    assert!(transfer.acknowledged(0).is_some() && transfer.is_suspect);
}

/// A leader that restarts with the same checkpoint resumes at the follower's position.
#[test]
fn transfer_resumes_at_follower_position() {
    let mut transfer = transfer();
    assert!(matches!(transfer.acknowledged(2), Some(Step::Here(StatePart::Files { .. }))));
    assert!(transfer.is_last());
}

/// Writing a large snapshot takes time. While the follower reports progress, the transfer is not aborted.
#[test]
fn leader_waits_for_snapshot_install() {
    let mut bench = Bench::start(empty(2, 3));
    let cohort = CohortId::CATALOG;
    let state = blank(cohort);
    let at = |sequence| StateId { lsn: Lsn::new(1, sequence), sstables: 5 };
    let (from, timestamp, parts) = (NodeId(1), Timestamp(9), 4);
    let arrived = Arrived {
        from,
        epoch: Epoch(1),
        id: at(9),
        timestamp,
        parts,
        state,
        storage: Box::new(tree(cohort)),
        membership: membership(),
        being_written: Some(crate::contract::CheckpointId(1)),
        written: None,
    };
    bench.node.replicas.get_mut(&cohort).expect("every node has a catalog replica").arrived = Some(Box::new(arrived));
    let mut say = |state| {
        let (epoch, part) = (Epoch(1), StatePart::Chunk(Bytes::from_static(b"part")));
        let message = Message::StateChunk { cohort, epoch, state, timestamp, index: 3, last: true, part };
        bench.sent.clear();
        bench.step(crate::contract::Event::Message { from, boot: base::Boot(1), message });
        bench.sent.clone()
    };
    let reply = |state, received| (from, Message::StateReply { cohort, state, received, installed: false });
    assert_eq!(say(at(9)), [reply(at(9), 4)]);
    let compacted = StateId { sstables: 6, ..at(9) };
    assert_eq!(say(compacted), [reply(compacted, 0)], "the same entry in other SSTables is another snapshot");
    let later = at(12);
    assert_eq!(say(later), [reply(later, 0)], "another snapshot must wait");

    let mut transfer = transfer();
    while transfer.acknowledged(transfer.index + 1).is_some() {}
    for _ in 0..10 * SENDINGS_MAX {
        transfer.sendings += 1;
        assert!(transfer.acknowledged(transfer.index + 1).is_none());
        assert!(transfer.sendings < SENDINGS_MAX);
    }
}
