//! A sequencer whose units a test plays.

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
    Sequencer::begin(&projection(), ME).expect("it is the one")
}

type Asked = Vec<(AskId, UnitId)>;
type Answered = Vec<(u32, Reply)>;

/// Whom it asks, and whom it answers what.
fn told(sequencer: &mut Sequencer<u32>) -> (Asked, Answered) {
    let (mut asks, mut answers) = (Vec::new(), Vec::new());
    for action in sequencer.take_actions() {
        match action {
            Action::Ask { ask, unit, request } => {
                assert_eq!(request, unit::Request::Confirm { epoch: EPOCH });
                asks.push((ask, unit));
            }
            Action::Answer { asker, reply } => answers.push((asker, reply)),
            Action::Suspect(_) | Action::SetTimer(_) => {}
        }
    }
    (asks, answers)
}

#[test]
fn positions_are_given_once_and_in_their_epoch() {
    let mut sequencer = sequencer();
    let now = Monotonic(0);
    let positions = |epoch, count| Request::Positions { epoch, client: ClientId(1), count, named: Vec::new() };
    sequencer.asked(1, positions(EPOCH, 3), now);
    sequencer.asked(2, positions(EPOCH, 1), now);
    sequencer.asked(3, positions(EPOCH, u64::MAX), now);
    sequencer.asked(4, positions(ProjectionEpoch(2), 1), now);
    sequencer.asked(5, positions(ProjectionEpoch(9), 1), now);
    let given = |first, count| Reply::Positions { first: Position(first), count, named: Vec::new() };
    let refused = || Reply::Refused { newest: EPOCH };
    let wanted = vec![
        (1, given(20, 3)),
        (2, given(23, 1)),
        (3, given(24, POSITIONS_OUTSTANDING_MAX - 4)),
        (4, refused()),
        (5, refused()),
    ];
    assert_eq!(told(&mut sequencer).1, wanted);
    sequencer.superseded(ProjectionEpoch(4));
    sequencer.asked(6, positions(EPOCH, 1), now);
    assert_eq!(told(&mut sequencer).1, [(6, Reply::Refused { newest: ProjectionEpoch(4) })]);
}

/// One client can leave only so many holes; others are given positions all the same.
#[test]
fn a_client_is_given_a_bounded_number_at_a_time() {
    let mut sequencer = sequencer();
    let mut ask = |client: u64, count: u64, now: Monotonic| {
        sequencer.asked(
            1,
            Request::Positions { epoch: EPOCH, client: ClientId(client), count, named: Vec::new() },
            now,
        );
        match told(&mut sequencer).1[..] {
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
fn a_restarted_process_is_another() {
    let again = SequencerId { boot: Boot(5), ..ME };
    assert!(Sequencer::<u32>::begin(&projection(), again).is_none());
}

/// Who comes while a check is under way waits for its end. After that the tail is leased: it is told at once, and
/// before the lease ends it is made anew.
#[test]
fn the_tail_waits_for_a_whole_chain_and_then_it_is_leased() {
    let mut sequencer = sequencer();
    let (began, tail) = (Monotonic(0), || Request::Tail { epoch: EPOCH });
    let positions = |count| Request::Positions { epoch: EPOCH, client: ClientId(1), count, named: Vec::new() };
    let units = |asks: &Asked| asks.iter().map(|(_, unit)| unit.0).collect::<Vec<_>>();
    sequencer.asked(1, tail(), began);
    let (first, _) = told(&mut sequencer);
    assert_eq!(units(&first), [1, 2]);
    sequencer.asked(9, positions(5), began);
    sequencer.asked(2, tail(), began);
    let _ = told(&mut sequencer);
    let now = began + Duration::from_millis(3);
    sequencer.answered(first[0].0, &unit::Reply::Confirmed, now);
    sequencer.answered(first[0].0, &unit::Reply::Confirmed, now);
    assert_eq!(told(&mut sequencer), (vec![], vec![]), "one of them is missing");
    sequencer.answered(first[1].0, &unit::Reply::Confirmed, now);
    assert_eq!(told(&mut sequencer), (vec![], vec![(1, Reply::Tail(Position(25))), (2, Reply::Tail(Position(25)))]));

    sequencer.asked(9, positions(3), now);
    let _ = told(&mut sequencer);
    sequencer.asked(3, tail(), now);
    assert_eq!(told(&mut sequencer), (vec![], vec![(3, Reply::Tail(Position(28)))]));
    let late = began + Duration(LEASE.0 / 2 + 1);
    sequencer.asked(4, tail(), late);
    let (second, answers) = told(&mut sequencer);
    assert_eq!(
        (units(&second), answers),
        (vec![3], vec![(4, Reply::Tail(Position(28)))]),
        "the other chain's only unit"
    );
    sequencer.answered(first[1].0, &unit::Reply::Confirmed, late);
    sequencer.asked(5, tail(), began + LEASE);
    assert_eq!(told(&mut sequencer).1, [], "it has ended: an answer to the check before counts for nothing");
    sequencer.answered(second[0].0, &unit::Reply::Confirmed, began + LEASE);
    assert_eq!(told(&mut sequencer).1, [(5, Reply::Tail(Position(28)))]);
}

/// A check whose answers come after the lease that they give is good for what was noted when it began, and for those
/// who had asked.
#[test]
fn an_answer_that_comes_late_gives_no_lease() {
    let mut sequencer = sequencer();
    let tail = || Request::Tail { epoch: EPOCH };
    sequencer.asked(1, tail(), Monotonic(0));
    let (asks, _) = told(&mut sequencer);
    let positions = Request::Positions { epoch: EPOCH, client: ClientId(1), count: 5, named: Vec::new() };
    sequencer.asked(9, positions, Monotonic(0));
    sequencer.asked(2, tail(), Monotonic(0));
    let _ = told(&mut sequencer);
    for (ask, _) in asks {
        sequencer.answered(ask, &unit::Reply::Confirmed, Monotonic(0) + LEASE);
    }
    let (again, answers) = told(&mut sequencer);
    assert_eq!(answers, [(1, Reply::Tail(Position(20)))]);
    assert_eq!(again.len(), 1, "the next check, for the other");
}

#[test]
fn a_check_without_an_end_goes_to_another_chain() {
    let mut sequencer = sequencer();
    sequencer.asked(1, Request::Tail { epoch: EPOCH }, Monotonic(0));
    let (first, _) = told(&mut sequencer);
    sequencer.answered(first[0].0, &unit::Reply::Confirmed, Monotonic(0));
    sequencer.timer(Monotonic(0) + CHECK_AGAIN);
    let (second, _) = told(&mut sequencer);
    assert_eq!(second.iter().map(|(_, unit)| unit.0).collect::<Vec<_>>(), [3]);
    sequencer.answered(second[0].0, &unit::Reply::Confirmed, Monotonic(0));
    assert_eq!(told(&mut sequencer).1, [(1, Reply::Tail(Position(20)))]);
}

#[test]
fn a_sealed_unit_ends_it() {
    let mut sequencer = sequencer();
    sequencer.asked(1, Request::Tail { epoch: EPOCH }, Monotonic(0));
    let (asks, _) = told(&mut sequencer);
    sequencer.asked(2, Request::Tail { epoch: EPOCH }, Monotonic(0));
    sequencer.answered(asks[1].0, &unit::Reply::Refused { sealed: EPOCH }, Monotonic(0));
    let refused = || Reply::Refused { newest: ProjectionEpoch(4) };
    assert_eq!(told(&mut sequencer).1, [(1, refused()), (2, refused())]);
    sequencer.asked(
        3,
        Request::Positions { epoch: EPOCH, client: ClientId(1), count: 1, named: Vec::new() },
        Monotonic(0),
    );
    assert_eq!(told(&mut sequencer).1, [(3, refused())]);
}

fn stamp(sequence: u64) -> Stamp {
    Stamp { client: ClientId(7), sequence }
}

/// Places for these appends of one client, which were tried first from there on.
fn places(sequences: &[u64], since: Option<u64>) -> Request {
    let named =
        |sequence: &u64| Named { stamp: stamp(*sequence), oldest_open: 1, decided: None, since: since.map(Position) };
    let named = sequences.iter().map(named).collect();
    Request::Positions { epoch: EPOCH, client: ClientId(1), count: 0, named }
}

/// The same of another client machine.
fn places_elsewhere(sequences: &[u64], since: Option<u64>) -> Request {
    match places(sequences, since) {
        Request::Positions { epoch, count, named, .. } => {
            Request::Positions { epoch, client: ClientId(2), count, named }
        }
        other => other,
    }
}

/// Which units are asked what they remember, and who is told which places.
fn gathered(sequencer: &mut Sequencer<u32>) -> (Asked, Vec<(u32, Vec<Told>)>) {
    let (mut asks, mut answers) = (Vec::new(), Vec::new());
    for action in sequencer.take_actions() {
        match action {
            Action::Ask { ask, unit, request } => {
                assert_eq!(request, unit::Request::Recent { epoch: EPOCH, from: Position(0) });
                asks.push((ask, unit));
            }
            Action::Answer { asker, reply: Reply::Positions { named, .. } } => answers.push((asker, named)),
            Action::Answer { .. } | Action::Suspect(_) | Action::SetTimer(_) => {}
        }
    }
    (asks, answers)
}

fn remembers(from: u64, appends: &[(u64, u64)]) -> unit::Reply {
    let appends = appends.iter().map(|(position, sequence)| (Position(*position), stamp(*sequence)));
    unit::Reply::Recent { from: Position(from), told_of: Vec::new(), appends: appends.collect() }
}

fn at(position: u64, oldest_open: u64) -> Told {
    Told::At(Placed { position: Position(position), oldest_open })
}

#[test]
fn what_was_appended_in_an_epoch_before_has_its_place() {
    let (mut sequencer, now) = (sequencer(), Monotonic(0));
    sequencer.asked(1, places(&[4], None), now);
    sequencer.asked(2, places_elsewhere(&[5, 6, 9], None), now);
    let (asks, answers) = gathered(&mut sequencer);
    assert_eq!(asks.iter().map(|(_, unit)| unit.0).collect::<Vec<_>>(), [1, 3], "the heads");
    assert_eq!(answers, []);
    sequencer.answered(asks[0].0, &remembers(0, &[(4, 4), (8, 5), (12, 4), (21, 9)]), now);
    assert_eq!(gathered(&mut sequencer).1, []);
    // Unit 3 has what lies at odd positions.
    sequencer.answered(asks[1].0, &remembers(0, &[(6, 6)]), now);
    // Of two places the head of the first didn't have it when the second was given.
    let expected = vec![(1, vec![at(12, 4)]), (2, vec![at(8, 5), at(20, 1), at(21, 1)])];
    assert_eq!(gathered(&mut sequencer).1, expected, "what a head has above the start was never given out");
    sequencer.asked(3, places(&[6, 5], Some(0)), now);
    assert_eq!(gathered(&mut sequencer), (Vec::new(), vec![(3, vec![at(20, 1), at(8, 5)])]));
}

#[test]
fn what_nobody_remembers_is_not_placed_for_who_says_how_far_back_it_may_lie() {
    let (mut sequencer, now) = (sequencer(), Monotonic(0));
    sequencer.asked(1, places(&[4], Some(5)), now);
    let (asks, _) = gathered(&mut sequencer);
    sequencer.answered(asks[0].0, &remembers(0, &[]), now);
    sequencer.answered(asks[1].0, &remembers(7, &[(7, 3)]), now);
    sequencer.asked(2, places(&[4], None), now);
    sequencer.asked(3, places(&[3, 5], Some(7)), now);
    let forgotten = Told::Forgotten { known_from: Position(7) };
    let expected = vec![(1, vec![forgotten]), (2, vec![at(20, 1)]), (3, vec![at(7, 3), at(21, 1)])];
    assert_eq!(gathered(&mut sequencer).1, expected);
}

/// What it asks to have its epoch confirmed, and who is told which places.
fn checked(sequencer: &mut Sequencer<u32>) -> (Vec<AskId>, Vec<(u32, Vec<Told>)>) {
    let (mut asks, mut answers) = (Vec::new(), Vec::new());
    for action in sequencer.take_actions() {
        match action {
            Action::Ask { ask, request: unit::Request::Confirm { .. }, .. } => asks.push(ask),
            Action::Answer { asker, reply: Reply::Positions { named, .. } } => answers.push((asker, named)),
            _ => {}
        }
    }
    (asks, answers)
}

/// No attempt can lie where nothing was given out.
#[test]
fn who_names_a_position_beyond_the_end_is_refused() {
    let (mut sequencer, now) = (sequencer(), Monotonic(0));
    sequencer.asked(1, places(&[4], Some(21)), now);
    let (asks, _) = gathered(&mut sequencer);
    asks.iter().for_each(|(ask, _)| sequencer.answered(*ask, &remembers(0, &[(4, 5)]), now));
    // It may be replaced without knowing it: the other's log may reach there.
    let (checks, answers) = checked(&mut sequencer);
    assert_eq!(answers, [(1, Vec::new())]);
    checks.iter().for_each(|ask| sequencer.answered(*ask, &unit::Reply::Confirmed, now));
    sequencer.asked(1, places(&[4], Some(21)), now);
    assert_eq!(gathered(&mut sequencer).1, [(1, vec![Told::Beyond { next: Position(20) }])]);
    sequencer.asked(2, places(&[4], Some(20)), now);
    // What it was given is its place, whatever is said of it.
    sequencer.asked(3, places(&[4], Some(30)), now);
    assert_eq!(gathered(&mut sequencer).1, [(2, vec![at(20, 1)]), (3, vec![at(20, 1)])]);
}

/// What any append may have is given at once.
#[test]
fn who_names_no_append_waits_for_no_memory() {
    let (mut sequencer, now) = (sequencer(), Monotonic(0));
    let Request::Positions { epoch, client, named, .. } = places(&[4], None) else { panic!("positions are asked for") };
    sequencer.asked(1, Request::Positions { epoch, client, count: 2, named }, now);
    let answers: Vec<_> = sequencer
        .take_actions()
        .into_iter()
        .filter_map(|action| if let Action::Answer { reply, .. } = action { Some(reply) } else { None })
        .collect();
    assert_eq!(answers, [Reply::Positions { first: Position(20), count: 2, named: Vec::new() }]);
}

/// A head that remembers much tells it in several answers.
#[test]
fn what_a_head_remembers_is_asked_for_in_parts() {
    let (mut sequencer, now) = (sequencer(), Monotonic(0));
    sequencer.asked(1, places(&[3, 9, 10], Some(0)), now);
    let (asks, _) = gathered(&mut sequencer);
    sequencer.answered(asks[1].0, &remembers(0, &[]), now);
    let first: Vec<(u64, u64)> =
        (1..=crate::limits::RECENT_TOLD_MAX as u64).map(|number| (2 * number, number)).collect();
    sequencer.answered(asks[0].0, &remembers(0, &first), now);
    let rest = Position(2 * crate::limits::RECENT_TOLD_MAX as u64 + 1);
    let request = unit::Request::Recent { epoch: EPOCH, from: rest };
    let actions = sequencer.take_actions();
    let ask = actions.iter().find_map(|action| match action {
        Action::Ask { ask, unit: UnitId(1), request: asked } if *asked == request => Some(*ask),
        Action::Answer { .. } => panic!("there may be more: {actions:?}"),
        _ => None,
    });
    // Meanwhile it has forgotten what lies first.
    sequencer.answered(ask.expect("it is asked for the rest"), &remembers(6, &[(18, 9)]), now);
    let expected = vec![at(6, 3), at(18, 9), Told::Forgotten { known_from: Position(6) }];
    assert_eq!(gathered(&mut sequencer).1, [(1, expected)]);
}

/// The units that it says don't answer.
fn suspects(sequencer: &Sequencer<u32>) -> Vec<UnitId> {
    let suspect = |action: &Action<u32>| if let Action::Suspect(unit) = action { Some(*unit) } else { None };
    sequencer.actions.iter().filter_map(suspect).collect()
}

/// What only such a head knows isn't known, until it answers; one that every append needs is waited for longer.
#[test]
fn a_head_that_does_not_answer_is_not_waited_for_without_end() {
    let old = |head: u64| Extent::new(Position(0), 1, vec![vec![UnitId(head), UnitId(2)]]);
    let last = Extent::new(Position(20), 1, vec![vec![UnitId(1), UnitId(2)]]);
    for (head, patience) in [(4, 200), (1, 2_000)] {
        let projection = Projection { extents: vec![old(head), last.clone()], ..projection() };
        let mut sequencer = Sequencer::begin(&projection, ME).expect("it is the one");
        let mut now = Monotonic(0);
        sequencer.asked(1, places(&[4], Some(19)), now);
        sequencer.asked(2, places(&[4], None), now);
        let (mut asks, _) = gathered(&mut sequencer);
        let (mut suspected, mut askings) = (Vec::new(), 1);
        // Nobody who waits is kept without an answer.
        for turn in 1..patience / 50 {
            now = now + Duration::from_millis(50);
            sequencer.timer(now);
            suspected.extend(suspects(&sequencer));
            let (asked, told) = gathered(&mut sequencer);
            askings += asked.len();
            assert!(asked.iter().all(|(_, unit)| unit.0 == head));
            asks.extend(asked);
            assert_eq!(told, [(10 * turn - 8, Vec::new())]);
            sequencer.asked(10 * turn + 2, places(&[4], None), now);
            assert_eq!(gathered(&mut sequencer), (Vec::new(), Vec::new()));
        }
        assert!(askings <= 7, "each time it is waited for twice as long: {askings}");
        assert_eq!(suspected.is_empty(), head == 4, "what every append needs is suspected");
        now = now + Duration::from_millis(50);
        sequencer.timer(now);
        assert_eq!(gathered(&mut sequencer).1, [(10 * (patience / 50) - 8, vec![at(20, 1)])]);
        sequencer.asked(3, places(&[5], Some(19)), now);
        assert_eq!(gathered(&mut sequencer).1, [(3, vec![Told::Forgotten { known_from: Position(20) }])]);
        // What comes late counts.
        let slow = asks[0].0;
        sequencer.answered(slow, &remembers(0, &[(7, 5)]), now);
        sequencer.asked(4, places(&[5, 6], Some(3)), now);
        assert_eq!(gathered(&mut sequencer).1, [(4, vec![at(7, 5), at(21, 1)])]);
    }

    // Whoever waits is told when there is a newer epoch.
    let mut sequencer = self::sequencer();
    sequencer.asked(1, places(&[4], None), Monotonic(0));
    let (asks, _) = gathered(&mut sequencer);
    sequencer.answered(asks[0].0, &unit::Reply::Refused { sealed: EPOCH }, Monotonic(0));
    assert_eq!(told(&mut sequencer).1, [(1, Reply::Refused { newest: ProjectionEpoch(4) })]);
}
