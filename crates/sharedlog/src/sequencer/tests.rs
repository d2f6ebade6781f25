//! A sequencer with units played by the test.

use base::{Boot, NodeId};

use super::*;
use crate::{Extent, LogId};

const ME: SequencerId = SequencerId { node: NodeId(1), boot: Boot(4) };
const EPOCH: ProjectionEpoch = ProjectionEpoch(3);

fn projection() -> Projection {
    let chains = vec![vec![UnitId(1), UnitId(2)], vec![UnitId(3)]];
    let extents = vec![Extent::new(Position(0), 1, chains)];
    Projection { log: LogId(1), epoch: EPOCH, sequencer: ME, start: Position(20), newest_unit: UnitId(3), extents }
}

fn sequencer() -> Sequencer<u32> {
    Sequencer::begin(&projection(), ME).expect("the projection names this process")
}

type UnitRequests = Vec<(AskId, UnitId)>;
type Answered = Vec<(u32, Reply)>;

fn outputs(sequencer: &mut Sequencer<u32>) -> (UnitRequests, Answered) {
    let (mut asks, mut answers) = (Vec::new(), Vec::new());
    for action in sequencer.take_actions() {
        match action {
            Action::Ask { ask, unit, request } => {
                assert_eq!(request, unit::Request::Confirm { epoch: EPOCH });
                asks.push((ask, unit));
            }
            Action::Reply { requester, reply } => answers.push((requester, reply)),
            Action::SetTimer(_) => {}
        }
    }
    (asks, answers)
}

#[test]
fn assigns_positions_once_per_epoch() {
    let mut sequencer = sequencer();
    let now = Monotonic(0);
    let positions = |epoch, count| Request::Positions { epoch, client: ClientId(1), count };
    sequencer.asked(1, positions(EPOCH, 3), now);
    sequencer.asked(2, positions(EPOCH, 1), now);
    sequencer.asked(3, positions(EPOCH, u64::MAX), now);
    sequencer.asked(4, positions(ProjectionEpoch(2), 1), now);
    sequencer.asked(5, positions(ProjectionEpoch(9), 1), now);
    let given = |first, count| Reply::Positions { first: Position(first), count };
    let refused = || Reply::Refused { newest: EPOCH };
    let wanted = vec![
        (1, given(20, 3)),
        (2, given(23, 1)),
        (3, given(24, POSITIONS_OUTSTANDING_MAX - 4)),
        (4, refused()),
        (5, refused()),
    ];
    assert_eq!(outputs(&mut sequencer).1, wanted);
    sequencer.superseded(ProjectionEpoch(4));
    sequencer.asked(6, positions(EPOCH, 1), now);
    assert_eq!(outputs(&mut sequencer).1, [(6, Reply::Refused { newest: ProjectionEpoch(4) })]);
}

/// One client can leave only a limited number of holes; other clients still get positions.
#[test]
fn outstanding_positions_limit() {
    let mut sequencer = sequencer();
    let mut ask = |client: u64, count: u64, now: Monotonic| {
        sequencer.asked(1, Request::Positions { epoch: EPOCH, client: ClientId(client), count }, now);
        match outputs(&mut sequencer).1[..] {
            [(1, Reply::Positions { count, .. })] => count,
            ref other => panic!("{other:?}"),
        }
    };
    let now = Monotonic(1_000_000_000);
    assert_eq!((ask(1, 3, now), ask(1, u64::MAX, now), ask(1, 1, now)), (3, POSITIONS_OUTSTANDING_MAX - 3, 0));
    assert_eq!(ask(2, 2, now), 2);
    assert_eq!(ask(1, 1, now + POSITIONS_WINDOW), 1);
}

#[test]
fn restarted_process_is_not_sequencer() {
    let again = SequencerId { boot: Boot(5), ..ME };
    assert!(Sequencer::<u32>::begin(&projection(), again).is_none());
}

/// Queries during a check wait for its end. Then the tail is leased and answered at once, and the check is repeated
/// before the lease expires.
#[test]
fn tail_lease_needs_full_chain() {
    let mut sequencer = sequencer();
    let (began, tail) = (Monotonic(0), || Request::Tail { epoch: EPOCH });
    let positions = |count| Request::Positions { epoch: EPOCH, client: ClientId(1), count };
    let units = |asks: &UnitRequests| asks.iter().map(|(_, unit)| unit.0).collect::<Vec<_>>();
    sequencer.asked(1, tail(), began);
    let (first, _) = outputs(&mut sequencer);
    assert_eq!(units(&first), [1, 2]);
    sequencer.asked(9, positions(5), began);
    sequencer.asked(2, tail(), began);
    let _ = outputs(&mut sequencer);
    let now = began + Duration::from_millis(3);
    sequencer.answered(first[0].0, &unit::Reply::Confirmed, now);
    sequencer.answered(first[0].0, &unit::Reply::Confirmed, now);
    assert_eq!(outputs(&mut sequencer), (vec![], vec![]), "one confirmation is missing");
    sequencer.answered(first[1].0, &unit::Reply::Confirmed, now);
    assert_eq!(outputs(&mut sequencer), (vec![], vec![(1, Reply::Tail(Position(25))), (2, Reply::Tail(Position(25)))]));

    sequencer.asked(9, positions(3), now);
    let _ = outputs(&mut sequencer);
    sequencer.asked(3, tail(), now);
    assert_eq!(outputs(&mut sequencer), (vec![], vec![(3, Reply::Tail(Position(28)))]));
    let late = began + Duration(LEASE.0 / 2 + 1);
    sequencer.asked(4, tail(), late);
    let (second, answers) = outputs(&mut sequencer);
    assert_eq!(
        (units(&second), answers),
        (vec![3], vec![(4, Reply::Tail(Position(28)))]),
        "the other chain's only unit"
    );
    sequencer.answered(first[1].0, &unit::Reply::Confirmed, late);
    sequencer.asked(5, tail(), began + LEASE);
    assert_eq!(outputs(&mut sequencer).1, [], "replies to an earlier check are ignored");
    sequencer.answered(second[0].0, &unit::Reply::Confirmed, began + LEASE);
    assert_eq!(outputs(&mut sequencer).1, [(5, Reply::Tail(Position(28)))]);
}

/// A check that ends after its own lease covers only the tail recorded at its start, and only the queries before it.
#[test]
fn late_reply_grants_no_lease() {
    let mut sequencer = sequencer();
    let tail = || Request::Tail { epoch: EPOCH };
    sequencer.asked(1, tail(), Monotonic(0));
    let (asks, _) = outputs(&mut sequencer);
    let positions = Request::Positions { epoch: EPOCH, client: ClientId(1), count: 5 };
    sequencer.asked(9, positions, Monotonic(0));
    sequencer.asked(2, tail(), Monotonic(0));
    let _ = outputs(&mut sequencer);
    for (ask, _) in asks {
        sequencer.answered(ask, &unit::Reply::Confirmed, Monotonic(0) + LEASE);
    }
    let (again, answers) = outputs(&mut sequencer);
    assert_eq!(answers, [(1, Reply::Tail(Position(20)))]);
    assert_eq!(again.len(), 1, "the next check, for the other query");
}

#[test]
fn stalled_check_moves_to_next_chain() {
    let mut sequencer = sequencer();
    sequencer.asked(1, Request::Tail { epoch: EPOCH }, Monotonic(0));
    let (first, _) = outputs(&mut sequencer);
    sequencer.answered(first[0].0, &unit::Reply::Confirmed, Monotonic(0));
    sequencer.timer(Monotonic(0) + CHECK_AGAIN);
    let (second, _) = outputs(&mut sequencer);
    assert_eq!(second.iter().map(|(_, unit)| unit.0).collect::<Vec<_>>(), [3]);
    sequencer.answered(second[0].0, &unit::Reply::Confirmed, Monotonic(0));
    assert_eq!(outputs(&mut sequencer).1, [(1, Reply::Tail(Position(20)))]);
}

#[test]
fn sealed_unit_stops_sequencer() {
    let mut sequencer = sequencer();
    sequencer.asked(1, Request::Tail { epoch: EPOCH }, Monotonic(0));
    let (asks, _) = outputs(&mut sequencer);
    sequencer.asked(2, Request::Tail { epoch: EPOCH }, Monotonic(0));
    sequencer.answered(asks[1].0, &unit::Reply::Refused { sealed: EPOCH }, Monotonic(0));
    let refused = || Reply::Refused { newest: ProjectionEpoch(4) };
    assert_eq!(outputs(&mut sequencer).1, [(1, refused()), (2, refused())]);
    sequencer.asked(3, Request::Positions { epoch: EPOCH, client: ClientId(1), count: 1 }, Monotonic(0));
    assert_eq!(outputs(&mut sequencer).1, [(3, refused())]);
}
