use base::Duration;
use sharedlog::limits::BATCH_BYTES_MAX;
use sharedlog::request::{LogRequest, LogResponse};
use sharedlog::unit::Command;
use state_machine::Failure;

use super::*;
use crate::contract::{Event, RequestId};
use crate::logs::tests::{alone, append, ask, records, said};
use crate::request::Request;

/// A read that waits for 250 ms.
fn follow(from: u64) -> LogRequest {
    let wait = Duration::from_millis(250);
    LogRequest::Read { log: "l".into(), from: Position(from), count: 1, wait, bytes: BATCH_BYTES_MAX }
}

/// A reader at the log's end sends one request to the unit. The reply arrives with an entry or at the end of the wait.
#[test]
fn tail_read_waits_for_entry() {
    let mut bench = alone();
    bench.ask(2, Request::Log(follow(0)));
    bench.pass(Duration::from_millis(50));
    assert_eq!((bench.node.logs.units.parked_reads.len(), bench.answers.contains_key(&RequestId(2))), (1, false));
    bench.ask(3, Request::Log(append("a")));
    bench.pass(Duration::from_millis(20));
    assert_eq!(records(said(&bench.answers[&RequestId(2)])), ["a"]);
    assert_eq!(bench.node.logs.units.parked_reads.len(), 0);
    assert_eq!(records(ask(&mut bench, 4, follow(1))), [""; 0], "no entry arrived");
    assert_eq!(bench.node.logs.units.parked_reads.len(), 0);
}

/// A read of a disconnected client stops waiting: here at once, at the unit soon.
#[test]
fn disconnect_cancels_waiting_read() {
    let mut bench = alone();
    let wait = Duration::from_millis(5_000);
    let read =
        |from| LogRequest::Read { log: "l".into(), from: Position(from), count: 1, wait, bytes: BATCH_BYTES_MAX };
    for (number, from) in [(2, 0), (3, 0), (4, 1)] {
        bench.ask(number, Request::Log(read(from)));
    }
    bench.pass(Duration::from_millis(50));
    assert_eq!(bench.node.logs.units.parked_reads.len(), 3);
    bench.step(Event::GivenUp { requests: [2, 4, 9].map(RequestId).into() });
    bench.pass(Duration::from_millis(10));
    assert!(matches!(said(&bench.answers[&RequestId(2)]), Err(Failure::Unavailable(_))));
    assert!(bench.answers.contains_key(&RequestId(4)) && !bench.answers.contains_key(&RequestId(3)));
    assert_eq!(bench.node.pending_requests.of_clients(), 1);
    bench.pass(Duration::from_millis(600));
    assert_eq!(bench.node.logs.units.parked_reads.len(), 1);
    assert_eq!(records(ask(&mut bench, 5, append("a")).and_then(|_| said(&bench.answers[&RequestId(3)]))), ["a"]);
    assert_eq!(bench.node.pending_requests.of_clients(), 0);
}

/// An append of a disconnected client may be in the log already, and continues.
#[test]
fn append_survives_client_disconnect() {
    let mut bench = alone();
    bench.ask(2, Request::Log(append("a")));
    bench.step(Event::GivenUp { requests: [RequestId(2)].into() });
    bench.pass(Duration::from_millis(1_000));
    assert_eq!(said(&bench.answers[&RequestId(2)]), Ok(LogResponse::Appended(Position(0))));
}

/// A read with a deadline before the end of its wait is answered in time and fills no hole.
#[test]
fn wait_ends_before_deadline() {
    let mut bench = alone();
    let wait = Duration::from_millis(200_000);
    let read = LogRequest::Read { log: "l".into(), from: Position(0), count: 1, wait, bytes: BATCH_BYTES_MAX };
    let deadline = bench.now.monotonic + Duration::from_millis(1_000);
    bench.step(Event::Request { id: RequestId(2), deadline, request: Request::Log(read) });
    bench.pass(Duration::from_millis(800));
    assert!(!bench.answers.contains_key(&RequestId(2)));
    bench.pass(Duration::from_millis(190));
    assert_eq!(records(said(&bench.answers[&RequestId(2)])), [""; 0]);
    assert_eq!(ask(&mut bench, 3, append("a")), Ok(LogResponse::Appended(Position(0))));
}

/// The log may continue on other units: no read waits at a sealed unit.
#[test]
fn read_does_not_wait_at_sealed_unit() {
    let mut bench = alone();
    for number in [2, 3] {
        bench.ask(number, Request::Log(follow(number)));
    }
    bench.pass(Duration::from_millis(50));
    assert_eq!(bench.node.logs.units.parked_reads.len(), 2);
    let log = bench.node.catalog().log("l").expect("the log exists");
    let (epoch, unit) = (log.projection.epoch, log.projection.units()[0]);
    let cohort = catalog::cohort_of(unit).expect("within the range of the type");
    let seal = Command::Seal { epoch };
    let now = bench.now;
    let replica = bench.node.replicas.get_mut(&cohort).expect("a local replica");
    replica.cohort.propose(seal.encode(), now, &mut bench.node.outgoing.outbox);
    bench.node.drain(cohort, now);
    bench.pass(Duration::from_millis(5));
    assert_eq!(bench.node.logs.units.parked_reads.len(), 0);
}
