//! A follower whose unit and client are the test.

use base::{Boot, NodeId};
use bytes::Bytes;

use super::*;
use crate::limits::BATCH_BYTES_MAX;
use crate::{Batch, ClientId, Data, Extent, LogId, PositionRun, SequencerId, Stamp};

fn projection(epoch: u64, from: u64, chain: &[u64]) -> Projection {
    let chain = chain.iter().map(|unit| UnitId(*unit)).collect();
    Projection {
        log: LogId(1),
        epoch: ProjectionEpoch(epoch),
        sequencer: SequencerId { node: NodeId(1), boot: Boot(1) },
        start: Position(from),
        newest_unit: UnitId(9),
        extents: vec![Extent { from: Position(from), width: 1, chains: vec![chain] }],
    }
}

fn entry(sequence: u64) -> Entry {
    let batch = Batch::of(&[Bytes::from(vec![0; 8])]).expect("within the limits");
    Entry::Data(Data { stamp: Stamp { client: ClientId(1), sequence }, batch })
}

/// A read of four positions that waits for 500.
fn wanted(from: u64) -> ReadMany {
    ReadMany {
        run: PositionRun::of(Position(from), 4),
        wait: Wait::First(Duration(500_000_000)),
        bytes: BATCH_BYTES_MAX,
    }
}

const NEVER: Monotonic = Monotonic::NEVER;

fn ms(ms: u64) -> Monotonic {
    Monotonic(Duration::from_millis(ms).0)
}

/// A follower that has subscribed at position 10 of the chain of units 1, 2 and 3; the tail holds positions up to 10.
fn following() -> Follower {
    let mut follower = Follower::default();
    follower.projected(&projection(1, 0, &[1, 2, 3]), ms(0));
    assert!(!follower.read(Token(1), wanted(10), NEVER, ms(0)), "the client must find the end of the log");
    follower.caught_up(Position(10), ms(0));
    assert_eq!(subscriptions(&mut follower), [(AskId(1), UnitId(3), 10)]);
    feed(&mut follower, 1, 10, 0, 10, 0);
    follower
}

fn feed(follower: &mut Follower, ask: u64, from: u64, count: u64, tail: u64, at: u64) {
    let entries = (from..from + count).map(entry).collect();
    follower.answered(AskId(ask), Reply::Feed { from: Position(from), entries, tail: Position(tail) }, ms(at));
}

fn subscriptions(follower: &mut Follower) -> Vec<(AskId, UnitId, u64)> {
    let actions = follower.take_actions().into_iter();
    let asked = actions.filter_map(|action| match action {
        Action::Ask { ask, unit, request: Request::Follow { from, .. } } => Some((ask, unit, from.0)),
        _ => None,
    });
    asked.collect()
}

/// The reads that were answered, with the sequences of the entries.
fn done(follower: &mut Follower) -> Vec<(u64, Vec<u64>)> {
    let sequence = |answer: LogReply| if let LogReply::Entry(data) = answer { data.stamp.sequence } else { 0 };
    let actions = follower.take_actions().into_iter();
    let done = actions.filter_map(|action| match action {
        Action::Done { token, answer: LogReply::Range(row) } => {
            Some((token.0, row.into_iter().map(sequence).collect()))
        }
        _ => None,
    });
    done.collect()
}

fn fills(follower: &mut Follower) -> Vec<u64> {
    let actions = follower.take_actions().into_iter();
    actions.filter_map(|action| if let Action::Fill(position) = action { Some(position.0) } else { None }).collect()
}

/// The reads passed to the client, each with its wait.
fn reads(follower: &mut Follower) -> Vec<(u64, Wait)> {
    let actions = follower.take_actions().into_iter();
    let reads = actions.filter_map(|action| match action {
        Action::Read { token, wanted, .. } => Some((token.0, wanted.wait)),
        _ => None,
    });
    reads.collect()
}

#[test]
fn pushed_entries_answer_reads() {
    let mut follower = following();
    assert!(follower.read(Token(2), wanted(10), NEVER, ms(1)));
    assert!(done(&mut follower).is_empty());
    feed(&mut follower, 1, 10, 3, 13, 2);
    assert_eq!(done(&mut follower), [(2, vec![10, 11, 12])]);
    assert!(follower.read(Token(3), wanted(11), NEVER, ms(3)), "the entry stays for other readers");
    assert_eq!(done(&mut follower), [(3, vec![11, 12])]);
    assert!(!follower.read(Token(4), wanted(9), NEVER, ms(3)), "the position precedes the subscription");
    assert!(!follower.read(Token(4), wanted(14), NEVER, ms(3)), "the position is beyond the next one");
    let now = ReadMany { wait: Wait::No, ..wanted(13) };
    assert!(!follower.read(Token(4), now, NEVER, ms(3)), "only the client can confirm that a position is unwritten");
}

#[test]
fn follower_buffer_is_bounded() {
    let mut follower = following();
    feed(&mut follower, 1, 10, 5, 15, 1);
    let first = (10..15).find(|from| follower.read(Token(2), wanted(*from), NEVER, ms(1)));
    assert_eq!(first, Some(12), "{:?}", follower.bytes);
    let small = ReadMany { bytes: 3, ..wanted(14) };
    assert!(follower.read(Token(3), small, NEVER, ms(1)));
    let larger = Action::Done { token: Token(3), answer: LogReply::Larger };
    assert!(follower.take_actions().contains(&larger));
}

#[test]
fn feed_gap_triggers_resubscribe() {
    let mut follower = following();
    follower.read(Token(2), wanted(10), NEVER, ms(1));
    // The entry at position 10 was lost.
    feed(&mut follower, 1, 11, 1, 12, 2);
    assert_eq!(subscriptions(&mut follower), [(AskId(2), UnitId(3), 10)]);
    feed(&mut follower, 1, 12, 1, 13, 3);
    feed(&mut follower, 2, 10, 3, 13, 4);
    assert_eq!(done(&mut follower), [(2, vec![10, 11, 12])]);
}

#[test]
fn fills_holes_below_written_positions() {
    let mut follower = following();
    feed(&mut follower, 1, 10, 0, 14, 1);
    follower.timer(ms(50));
    assert!(fills(&mut follower).is_empty());
    follower.timer(ms(101));
    assert_eq!(fills(&mut follower), [10]);
    follower.timer(ms(102));
    assert!(fills(&mut follower).is_empty());
    // The next one is as old.
    feed(&mut follower, 1, 10, 1, 14, 103);
    follower.timer(ms(103));
    assert_eq!(fills(&mut follower), [11]);
    // A hole above is a new one.
    feed(&mut follower, 1, 11, 3, 16, 110);
    follower.timer(ms(130));
    assert!(fills(&mut follower).is_empty());
    feed(&mut follower, 1, 14, 2, 16, 150);
    follower.timer(ms(260));
    assert!(fills(&mut follower).is_empty());
}

#[test]
fn expired_reads_fall_back_to_client() {
    let mut follower = following();
    follower.read(Token(2), wanted(10), NEVER, ms(1));
    follower.read(Token(3), ReadMany { wait: Wait::Watch(Duration::from_millis(20)), ..wanted(10) }, NEVER, ms(1));
    follower.timer(ms(21));
    assert_eq!(reads(&mut follower), [(3, Wait::No)]);
    follower.timer(ms(260));
    assert_eq!(subscriptions(&mut follower), [(AskId(1), UnitId(3), 10)], "a renewal");
    feed(&mut follower, 1, 10, 0, 10, 261);
    follower.timer(ms(520));
    assert_eq!(reads(&mut follower), [(2, Wait::First(FILL))]);
    // There are no readers any more.
    (1..30).for_each(|round| {
        feed(&mut follower, 1, 10, 0, 10, 500 + 100 * round);
        follower.timer(ms(500 + 100 * round));
    });
    assert!(!follower.read(Token(4), wanted(10), NEVER, ms(4_000)), "the subscription has ended");
}

#[test]
fn silent_tail_reads_fall_back_to_client() {
    let mut follower = following();
    follower.read(Token(2), wanted(10), NEVER, ms(240));
    follower.timer(ms(250));
    assert_eq!(subscriptions(&mut follower), [(AskId(1), UnitId(3), 10)]);
    follower.timer(ms(449));
    assert!(reads(&mut follower).is_empty());
    follower.timer(ms(450));
    assert_eq!(reads(&mut follower), [(2, Wait::First(Duration::from_millis(290)))], "the remaining wait");
}

#[test]
fn reads_continue_in_next_projection() {
    let mut follower = following();
    follower.read(Token(2), wanted(10), NEVER, ms(1));
    follower.projected(&projection(2, 5, &[1, 2]), ms(2));
    assert_eq!(subscriptions(&mut follower), [(AskId(2), UnitId(2), 10)]);
    feed(&mut follower, 2, 10, 1, 11, 3);
    assert_eq!(done(&mut follower), [(2, vec![10])]);
    follower.read(Token(3), wanted(11), NEVER, ms(4));
    // The client reads positions before the last extent.
    follower.projected(&projection(3, 20, &[1, 2]), ms(5));
    assert_eq!(reads(&mut follower), [(3, Wait::First(Duration::from_millis(499)))]);
    follower.read(Token(4), wanted(11), NEVER, ms(6));
    let refused = Reply::Refused { sealed: ProjectionEpoch(3) };
    follower.caught_up(Position(20), ms(6));
    assert!(follower.read(Token(5), wanted(20), NEVER, ms(6)));
    follower.take_actions();
    follower.answered(AskId(3), refused, ms(7));
    assert_eq!(reads(&mut follower), [(5, Wait::First(Duration::from_millis(499)))]);
}

#[test]
fn reader_past_end_does_not_stall_feed() {
    let mut follower = Follower::default();
    follower.projected(&projection(1, 0, &[1, 2, 3]), ms(0));
    follower.caught_up(Position(1_000), ms(0));
    assert_eq!(subscriptions(&mut follower), [(AskId(1), UnitId(3), 1_000)]);
    follower.caught_up(Position(10), ms(1));
    assert_eq!(subscriptions(&mut follower), [(AskId(2), UnitId(3), 10)]);
    feed(&mut follower, 2, 10, 1, 11, 2);
    follower.caught_up(Position(10), ms(3));
    assert!(subscriptions(&mut follower).is_empty(), "entries have arrived");
}

#[test]
fn fill_leaves_time_before_deadline() {
    let mut follower = following();
    follower.read(Token(2), wanted(10), ms(580), ms(0));
    follower.timer(ms(500));
    assert_eq!(reads(&mut follower), [(2, Wait::First(Duration::from_millis(20)))]);
}

#[cfg(feature = "canary")]
#[test]
fn follower_bugs_are_found() {
    use base::canary::{Bug, plant};

    let found_by: [(Bug, fn()); 2] =
        [(Bug::FeedLossIgnored, feed_gap_triggers_resubscribe), (Bug::FeedFromHead, pushed_entries_answer_reads)];
    for (bug, test) in found_by {
        plant(Some(bug));
        let outcome = std::panic::catch_unwind(test);
        plant(None);
        assert!(outcome.is_err(), "{bug:?}");
    }
}
