use tablets::{Loader, State};

use super::*;
use crate::replica::Arrived;
use crate::testing::{Bench, empty};

const TABLE: CohortId = CohortId(2);

fn transfer() -> Transfer {
    Transfer::new(State::new(TABLE).snapshot())
}

#[test]
fn each_part_follows_the_acknowledgement_of_the_one_before() {
    let mut transfer = transfer();
    let mut loader = Loader::new(TABLE);
    for received in 1.. {
        loader.push(&transfer.part).expect("the next part");
        let more = !transfer.chunks.is_at_end();
        assert_eq!(transfer.acknowledged(received), more, "and the last one stays");
        assert!(!transfer.acknowledged(received), "an acknowledgement that comes twice says nothing new");
        if !more {
            break;
        }
    }
    assert!(loader.finish().is_ok());
}

#[test]
fn a_follower_that_has_nothing_gets_it_all_again() {
    let mut transfer = transfer();
    let first = transfer.part.clone();
    assert!(transfer.acknowledged(1));
    assert_ne!(transfer.part, first);
    assert!(transfer.acknowledged(0));
    assert_eq!((transfer.index, &transfer.part), (0, &first));
    assert!(!transfer.acknowledged(0), "it is on its way");
}

/// Writing a large state takes its time. As long as the follower says so, the transfer is not given up.
#[test]
fn a_follower_that_installs_has_the_leader_wait() {
    let mut bench = Bench::start(&empty(2, 3));
    let cohort = CohortId::CATALOGUE;
    let state = State::new(cohort);
    let lsn = Lsn::new(1, 9);
    let (from, timestamp, parts) = (NodeId(1), Timestamp(9), 4);
    let arrived = Arrived { from, lsn, timestamp, parts, state, is_being_written: true };
    bench.node.replicas.get_mut(&cohort).expect("every node has one").arrived = Some(Box::new(arrived));
    let mut say = |lsn| {
        let (epoch, bytes) = (Epoch(1), Bytes::from_static(b"part"));
        let message = Message::StateChunk { cohort, epoch, lsn, timestamp, index: 3, last: true, bytes };
        bench.sent.clear();
        bench.step(crate::contract::Event::Message { from, boot: base::Boot(1), message });
        bench.sent.clone()
    };
    let reply = |lsn, received| (from, Message::StateReply { cohort, lsn, received, installed: false });
    assert_eq!(say(lsn), [reply(lsn, 4)]);
    let later = Lsn::new(1, 12);
    assert_eq!(say(later), [reply(later, 0)], "another state's turn comes after");

    let mut transfer = transfer();
    while transfer.acknowledged(transfer.index + 1) {}
    for _ in 0..10 * SENDINGS_MAX {
        transfer.sendings += 1;
        assert!(!transfer.acknowledged(transfer.index + 1));
        assert!(transfer.sendings < SENDINGS_MAX);
    }
}
