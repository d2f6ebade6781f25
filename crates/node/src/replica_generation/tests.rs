use base::{Boot, Epoch, Lsn};

use super::*;
use crate::contract::Event;
use crate::testing::{Bench, empty};

const COHORT: CohortId = CohortId::CATALOG;
const PEER: NodeId = NodeId(2);

/// A vote request of a candidate, which any replica answers.
fn question() -> Message {
    Message::Cohort {
        cohort: COHORT,
        message: replication::Message::PreVote { epoch: Epoch(9), last: Lsn::new(8, 99) },
    }
}

fn say(bench: &mut Bench, message: Message) -> Vec<(NodeId, Message)> {
    bench.sent.clear();
    bench.step(Event::Message { from: PEER, boot: Boot(1), message });
    bench.sent.clone()
}

fn between(from: u32, to: u32) -> Message {
    Message::OfGenerations { from: ReplicaGeneration(from), to: ReplicaGeneration(to), message: Box::new(question()) }
}

/// Whether exactly one reply was sent to the peer, with these generations. First generations are implicit.
fn is_answered(sent: &[(NodeId, Message)], lives: (u32, u32)) -> bool {
    match sent {
        [(PEER, Message::Cohort { .. })] => lives == (0, 0),
        [(PEER, Message::OfGenerations { from, to, .. })] => lives == (from.0, to.0),
        _ => false,
    }
}

#[test]
fn message_to_former_generation_is_rejected() {
    let mut bench = Bench::start(empty(1, 3));
    assert!(is_answered(&say(&mut bench, question()), (0, 0)));
    bench.node.hosting.generations.end(COHORT);
    let notice = [(PEER, Message::Generation { cohort: COHORT, generation: ReplicaGeneration(1) })];
    assert_eq!(say(&mut bench, question()), notice);
    assert!(is_answered(&say(&mut bench, between(0, 1)), (1, 0)));
}

#[test]
fn message_of_former_generation_is_ignored() {
    let mut bench = Bench::start(empty(1, 3));
    assert_eq!(say(&mut bench, Message::Generation { cohort: COHORT, generation: ReplicaGeneration(2) }), []);
    assert!(is_answered(&say(&mut bench, between(2, 0)), (0, 2)));
    assert_eq!(say(&mut bench, question()), []);
    assert_eq!(say(&mut bench, between(1, 0)), []);
    // A new process of the peer starts with the first generation.
    bench.sent.clear();
    bench.step(Event::Message { from: PEER, boot: Boot(2), message: question() });
    assert!(is_answered(&bench.sent, (0, 0)));
}

#[cfg(feature = "canary")]
#[test]
fn generation_mixup_is_found() {
    base::canary::plant(Some(Bug::FormerLifeHeard));
    let outcomes = [
        std::panic::catch_unwind(message_to_former_generation_is_rejected),
        std::panic::catch_unwind(message_of_former_generation_is_ignored),
    ];
    base::canary::plant(None);
    assert!(outcomes.iter().all(Result::is_err));
}
