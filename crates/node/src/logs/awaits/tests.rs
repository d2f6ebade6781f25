use base::Duration;
use sharedlog::limits::BATCH_BYTES_MAX;
use sharedlog::unit::Command;
use tablets::request::{LogRequest, Request};

use super::*;
use crate::contract::RequestId;
use crate::logs::tests::{alone, append, ask, records, said};

/// What a follower asks that waits for 250 ms.
fn follow(from: u64) -> LogRequest {
    let wait = Duration::from_millis(250);
    LogRequest::Read { log: "l".into(), from: Position(from), count: 1, wait, bytes: BATCH_BYTES_MAX }
}

/// A follower at the log's end asks its unit once, and hears as soon as something has come, or nothing for so long.
#[test]
fn who_waits_at_the_end_is_told_what_comes() {
    let mut bench = alone();
    bench.ask(2, Request::Log(follow(0)));
    bench.pass(Duration::from_millis(50));
    assert_eq!((bench.node.logs.awaits.len(), bench.answers.contains_key(&RequestId(2))), (1, false));
    bench.ask(3, Request::Log(append("a")));
    bench.pass(Duration::from_millis(20));
    assert_eq!(records(said(&bench.answers[&RequestId(2)])), ["a"]);
    assert_eq!(bench.node.logs.awaits.len(), 0);
    assert_eq!(records(ask(&mut bench, 4, follow(1))), [""; 0], "nothing came");
    assert_eq!(bench.node.logs.awaits.len(), 0);
}

/// The log may go on elsewhere: nobody waits at a unit that takes nothing any more.
#[test]
fn who_waits_at_a_unit_that_is_sealed_is_not_left_there() {
    let mut bench = alone();
    for number in [2, 3] {
        bench.ask(number, Request::Log(follow(number)));
    }
    bench.pass(Duration::from_millis(50));
    assert_eq!(bench.node.logs.awaits.len(), 2);
    let log = bench.node.catalogue().and_then(|catalogue| catalogue.log("l")).expect("it is there");
    let (epoch, unit) = (log.projection.epoch, log.projection.units()[0]);
    let cohort = tablets::catalogue::cohort_of(unit).expect("a small number");
    let seal = Command::Seal { epoch };
    let now = bench.now;
    let replica = bench.node.replicas.get_mut(&cohort).expect("it is here");
    replica.cohort.propose(seal.encode(), now, &mut bench.node.outgoing.outbox);
    bench.node.drain(cohort, now);
    bench.pass(Duration::from_millis(5));
    assert_eq!(bench.node.logs.awaits.len(), 0);
}
