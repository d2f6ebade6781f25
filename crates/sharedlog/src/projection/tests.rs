//! Which projections are valid, and which may follow another.

use base::{Boot, NodeId};

use super::*;

fn units(numbers: &[u64]) -> Vec<UnitId> {
    numbers.iter().copied().map(UnitId).collect()
}

fn extent(from: u64, chains: &[&[u64]]) -> Extent {
    Extent::new(Position(from), 1, chains.iter().map(|chain| units(chain)).collect())
}

fn projection(epoch: u64, start: u64, extents: &[Extent]) -> Projection {
    Projection {
        log: LogId(7),
        epoch: ProjectionEpoch(epoch),
        sequencer: SequencerId { node: NodeId(1), boot: Boot(2) },
        start: Position(start),
        newest_unit: extents.iter().flat_map(Extent::units).fold(UnitId(6), UnitId::max),
        extents: extents.to_vec(),
    }
}

#[test]
fn maps_position_to_extent_and_chain() {
    let projection = projection(1, 0, &[extent(4, &[&[1, 2], &[3, 4]]), extent(9, &[&[5], &[6], &[7]])]);
    let heads: Vec<_> = (3..14).map(|at| projection.chain_of(Position(at)).map(|chain| chain[0].0)).collect();
    let wanted = [0, 1, 3, 1, 3, 1, 5, 6, 7, 5, 6].map(|unit| if unit == 0 { None } else { Some(unit) });
    assert_eq!(heads, wanted);
    assert_eq!(projection.units(), units(&[1, 2, 3, 4, 5, 6, 7]));
}

#[test]
fn projection_round_trip_and_fuzz() {
    let projection = projection(3, 12, &[extent(4, &[&[1, 2], &[3, 4]]), extent(9, &[&[5], &[6], &[7]])]);
    let bytes = projection.encode();
    assert_eq!(Projection::decode(bytes.clone()), Ok(projection));
    for at in 0..bytes.len() {
        assert!(Projection::decode(bytes.slice(..at)).is_err(), "cut at {at}");
        for flipped in [1, 0x80, 0xff] {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= flipped;
            if let Ok(read) = Projection::decode(damaged.into()) {
                assert_eq!(read.check(), Ok(()));
            }
        }
    }
}

#[test]
fn rejects_invalid_projections() {
    let unfit = |extents: &[Extent]| projection(1, 0, extents).check().expect_err("the projection is invalid");
    assert_eq!(unfit(&[]), Unfit::Count("extents"));
    assert_eq!(unfit(&[extent(0, &[])]), Unfit::Count("chains"));
    assert_eq!(unfit(&[extent(0, &[&[1], &[]])]), Unfit::Count("units"));
    assert_eq!(
        projection(1, 0, &[extent(0, &[&[1], &[]]), extent(4, &[&[2]])]).check(),
        Ok(()),
        "the chain was abandoned"
    );
    assert_eq!(unfit(&[extent(0, &[&[1]]), extent(0, &[&[1]])]), Unfit::Order);
    assert_eq!(unfit(&[extent(0, &[&[1, 2], &[2]])]), Unfit::Twice(UnitId(2)));
    assert_eq!(unfit(&[extent(u64::MAX, &[&[1]])]), Unfit::Order);
    assert_eq!(projection(0, 0, &[extent(0, &[&[1]])]).check(), Err(Unfit::Succession("epochs start at 1")));
}

#[test]
fn successor_preserves_written_extents() {
    let old = projection(4, 10, &[extent(0, &[&[1, 2, 3], &[4, 5, 6]])]);
    let follow = |start: u64, extents: &[Extent]| projection(5, start, extents).may_follow(&old);
    assert_eq!(follow(20, &[extent(0, &[&[1, 2, 3], &[4, 5, 6]])]), Ok(()));
    assert_eq!(follow(20, &[extent(0, &[&[1, 3], &[5]])]), Ok(()), "units may be removed");
    assert_eq!(follow(9, &[extent(0, &[&[1, 3], &[5]])]), Err(Unfit::Succession("its start moves back")));
    assert_eq!(follow(20, &[extent(0, &[&[3, 1], &[5]])]), Err(Unfit::Chain(Position(0))), "changed order");
    assert_eq!(follow(20, &[extent(0, &[&[1], &[9]])]), Err(Unfit::Chain(Position(1))), "no unit remains");
    assert_eq!(follow(20, &[extent(0, &[&[1, 9], &[5]])]), Err(Unfit::Stranger(UnitId(9))));
    assert_eq!(follow(20, &[extent(0, &[&[1, 2]])]), Err(Unfit::Moved(Position(0))), "other number of chains");
    assert_eq!(
        follow(20, &[extent(2, &[&[1, 2, 3], &[4, 5, 6]])]),
        Err(Unfit::Moved(Position(2))),
        "part of an extent was dropped"
    );
    // New units and another number of chains, from the start on.
    assert_eq!(follow(20, &[extent(0, &[&[1, 3], &[5]]), extent(20, &[&[1, 9], &[5, 8], &[7]])]), Ok(()));
    assert_eq!(
        follow(21, &[extent(0, &[&[1, 3], &[5]]), extent(20, &[&[1, 9], &[5, 8]])]),
        Err(Unfit::Stranger(UnitId(9))),
        "position 20 was written"
    );
    // A unit removed from one chain must leave the last extent.
    let left = [extent(0, &[&[1, 3], &[5]]), extent(20, &[&[1, 2], &[5]])];
    assert_eq!(follow(20, &left), Err(Unfit::HalfLeftOut(UnitId(2))));
    let mut next = projection(6, 20, &[extent(0, &[&[1], &[5]])]);
    assert_eq!(next.may_follow(&old), Err(Unfit::Succession("its epoch is not the next one")));
    next.epoch = ProjectionEpoch(5);
    next.log = LogId(8);
    assert_eq!(next.may_follow(&old), Err(Unfit::Succession("it describes another log")));
}

/// A removed unit cannot return under its number.
#[test]
fn unit_numbers_are_not_reused() {
    let old = Projection { newest_unit: UnitId(9), ..projection(4, 10, &[extent(0, &[&[1, 2]])]) };
    let with = |unit: u64, newest: u64| {
        let extents = [extent(0, &[&[1, 2]]), extent(20, &[&[1, 2, unit]])];
        Projection { newest_unit: UnitId(newest), ..projection(5, 20, &extents) }.may_follow(&old)
    };
    assert_eq!(with(9, 9), Err(Unfit::Number(UnitId(9))));
    assert_eq!(with(10, 9), Err(Unfit::Number(UnitId(10))));
    assert_eq!(with(10, 10), Ok(()));
    let forgets = Projection { newest_unit: UnitId(2), ..projection(5, 20, &old.extents) };
    assert_eq!(forgets.may_follow(&old), Err(Unfit::Number(UnitId(9))));
}

/// An abandoned chain never holds entries again.
#[test]
fn abandoned_chain_stays_abandoned() {
    let given_up = [extent(0, &[&[1, 2], &[]]), extent(20, &[&[1, 2], &[7]])];
    let old = projection(4, 10, &[extent(0, &[&[1, 2], &[4, 5]])]);
    assert_eq!(projection(5, 20, &given_up).may_follow(&old), Ok(()));
    let old = projection(5, 20, &given_up);
    assert_eq!(projection(6, 20, &given_up).may_follow(&old), Ok(()));
    let back = [extent(0, &[&[1, 2], &[7]]), extent(20, &[&[1, 2], &[7]])];
    assert_eq!(projection(6, 20, &back).may_follow(&old), Err(Unfit::Chain(Position(1))));
}

/// A unit may remain in an older chain alone; it cannot join other chains from there.
#[test]
fn removed_unit_may_stay_in_old_extent() {
    let old = projection(4, 20, &[extent(0, &[&[1], &[2]]), extent(10, &[&[1, 3], &[2, 4]])]);
    let new = [extent(0, &[&[1], &[2]]), extent(10, &[&[3], &[2, 4]])];
    assert_eq!(projection(5, 30, &new).may_follow(&old), Ok(()));
    let old = projection(5, 30, &new);
    let joins = [extent(0, &[&[1], &[2]]), extent(10, &[&[3, 1], &[2, 4]])];
    assert_eq!(projection(6, 30, &joins).may_follow(&old), Err(Unfit::Stranger(UnitId(1))));
}

#[test]
fn extents_are_completed_merged_and_trimmed() {
    let old = projection(4, 20, &[extent(0, &[&[1], &[4]]), extent(8, &[&[2], &[3]]), extent(20, &[&[1, 9], &[4, 8]])]);
    let follow = |extents: &[Extent]| projection(5, 30, extents).may_follow(&old);
    let (first, second, third) = (extent(0, &[&[1, 9], &[4, 8]]), old.extents[1].clone(), old.extents[2].clone());
    assert_eq!(follow(&[first, second.clone(), third.clone()]), Ok(()), "complete units join older chains");
    assert_eq!(follow(&[second, third.clone()]), Ok(()), "the first extent was trimmed");
    assert_eq!(follow(&[third]), Ok(()), "the second extent was trimmed");

    let old = projection(4, 20, &[extent(1, &[&[1, 9], &[4, 8]]), extent(21, &[&[1, 9], &[4, 8]])]);
    let joined = projection(5, 30, &[extent(1, &[&[1, 9], &[4, 8]])]);
    assert_eq!(joined.may_follow(&old), Ok(()));
    let turned = projection(4, 20, &[extent(1, &[&[1, 9], &[4, 8]]), extent(20, &[&[1, 9], &[4, 8]])]);
    assert_eq!(joined.may_follow(&turned), Err(Unfit::Chain(Position(20))), "the round-robin order differs");
}

/// If the chains of the next extent continue the round-robin order, every position keeps its chain, for any start of
/// that extent.
#[test]
fn extent_continues_with_rotated_chains() {
    let chains: Vec<Vec<UnitId>> = (1..4).map(|unit| vec![UnitId(unit)]).collect();
    for (width, begins) in [(1, 0), (1, 5), (4, 0), (4, 6)] {
        let extent = Extent::new(Position(begins), width, chains.clone());
        for from in (begins..begins + 30).map(Position) {
            let mut turned = chains.clone();
            turned.rotate_left(extent.turn(from) as usize);
            let next = Extent::new(from, width, turned);
            assert!(extent.goes_on_in(&next), "{extent:?}, {next:?}");
            for position in (from.0..from.0 + 30).map(Position) {
                assert_eq!(next.chain_of(position), extent.chain_of(position), "{position} in {next:?}");
            }
            let other = Extent::new(from, width, chains.clone());
            assert_eq!(extent.goes_on_in(&other), extent.turn(from) == 0);
            assert!(!extent.goes_on_in(&Extent { width: width + 1, ..next }));
        }
    }
}

/// A unit holds the positions of its chain, for any width.
#[test]
fn chain_width_in_positions() {
    let extents = [Extent::new(Position(0), 4, vec![vec![UnitId(1)], vec![UnitId(2)]])];
    let projection = projection(1, 0, &extents);
    assert_eq!(projection.check(), Ok(()));
    let of: Vec<u64> = (0..10).map(|at| projection.chain_of(Position(at)).expect("a chain")[0].0).collect();
    assert_eq!(of, [1, 1, 1, 1, 2, 2, 2, 2, 1, 1]);
    assert_eq!(Projection::decode(projection.encode()).as_ref(), Ok(&projection));
    let unit = projection.stripes_of(UnitId(2))[0];
    assert_eq!((0..5).map(|number| unit.position(number).0).collect::<Vec<_>>(), [4, 5, 6, 7, 12]);
    let wide = Extent { width: STRIPE_WIDTH_MAX + 1, ..extents[0].clone() };
    assert_eq!(super::tests::projection(1, 0, &[wide]).check(), Err(Unfit::Count("consecutive positions per chain")));
    // No position may move to another chain.
    let mut moved = Projection { epoch: ProjectionEpoch(2), start: Position(9), ..projection.clone() };
    moved.extents[0].width = 2;
    assert_eq!(moved.may_follow(&projection), Err(Unfit::Moved(Position(0))));
}
