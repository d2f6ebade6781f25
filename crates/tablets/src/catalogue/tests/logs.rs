//! Projections that are installed and refused, and the units that they may name.

use base::Boot;
use sharedlog::{Projection, SequencerId, UnitId};

use super::*;
use crate::request::{Failure, LogResponse};

fn with_log() -> (Catalogue, Log) {
    let (mut catalogue, mut log) = with_nodes(3);
    let sequencer = SequencerId { node: NodeId(1), boot: Boot(1) };
    let create = CatalogueCommand::CreateLog { name: "l".into(), stripes: 1, copies: 2, sequencer };
    apply(&mut catalogue, &mut log, &create);
    (catalogue, log)
}

fn spares(catalogue: &Catalogue) -> Vec<(UnitId, u32)> {
    let log = catalogue.log("l").expect("it was created");
    log.spares().map(|(unit, member)| (unit, member.node.0)).collect()
}

fn name_on(catalogue: &mut Catalogue, log: &mut Log, nodes: &[u32]) {
    let of = catalogue.log("l").expect("it was created").id;
    let nodes = nodes.iter().copied().map(NodeId).collect();
    apply(catalogue, log, &CatalogueCommand::AddUnits { log: of, nodes });
}

fn propose(catalogue: &mut Catalogue, log: &mut Log, projection: &Projection) -> Outcome {
    let project = CatalogueCommand::Project { projection: Box::new(projection.clone()) };
    apply(catalogue, log, &project).0.expect("it is answered")
}

fn newest(catalogue: &Catalogue) -> Projection {
    catalogue.log("l").expect("it was created").projection.clone()
}

/// Who proposes is to know what to leave out.
#[test]
fn a_projection_with_units_that_are_gone_is_refused_by_their_names() {
    let (mut catalogue, mut log) = with_log();
    name_on(&mut catalogue, &mut log, &[1, 2, 3]);
    let on_two = spares(&catalogue)[1];
    assert_eq!(on_two.1, 2);
    let mut next = newest(&catalogue);
    next.epoch = next.epoch.next();
    next.newest_unit = on_two.0;
    next.extents[0].chains = vec![vec![on_two.0]];
    assert!(matches!(propose(&mut catalogue, &mut log, &next), Ok(Response::Log(LogResponse::Projected(_)))));
    let mut after = newest(&catalogue);
    let was = after.clone();
    after.epoch = after.epoch.next();
    name_on(&mut catalogue, &mut log, &[3]);
    let on_three = spares(&catalogue)[0].0;
    after.newest_unit = on_three;
    after.extents[0].chains[0].push(on_three);
    name_on(&mut catalogue, &mut log, &[3]);
    let gone = Ok(Response::Log(LogResponse::UnitsGone(vec![on_three])));
    assert_eq!(propose(&mut catalogue, &mut log, &after), gone);
    assert_eq!(newest(&catalogue), was);
    // What is no successor is refused, too; and who comes late is told what is there.
    let mut moved = was.clone();
    (moved.epoch, moved.extents[0].from) = (moved.epoch.next(), sharedlog::Position(5));
    assert!(matches!(propose(&mut catalogue, &mut log, &moved), Err(Failure::Invalid(_))));
    let told = Ok(Response::Log(LogResponse::Projected(Box::new(was.clone()))));
    assert_eq!(propose(&mut catalogue, &mut log, &was), told);
}

/// The last one that was named there may be of no use.
#[test]
fn a_disk_has_one_spare_of_a_log() {
    let (mut catalogue, mut log) = with_log();
    name_on(&mut catalogue, &mut log, &[1, 3]);
    let first = spares(&catalogue);
    for _ in 0..40 {
        name_on(&mut catalogue, &mut log, &[3]);
    }
    let left = spares(&catalogue);
    assert_eq!(left.iter().map(|(_, node)| *node).collect::<Vec<_>>(), [1, 3]);
    assert!(left[0] == first[0] && left[1].0 > first[1].0);
}

/// Units that stand in the projection stay, whoever wants them forgotten.
#[test]
fn spares_are_forgotten_and_no_others() {
    let (mut catalogue, mut log) = with_log();
    name_on(&mut catalogue, &mut log, &[1, 3]);
    let (of, stand) = (catalogue.log("l").expect("it was created").id, newest(&catalogue).units());
    let [on_one, on_three] = spares(&catalogue)[..] else { panic!("two were named") };
    let all: Vec<UnitId> = stand.iter().copied().chain([on_three.0, UnitId(999)]).collect();
    let mut forget = |catalogue: &mut Catalogue, of| {
        apply(catalogue, &mut log, &CatalogueCommand::ForgetSpares { log: of, units: all.clone() }).1
    };
    assert_eq!(forget(&mut catalogue, sharedlog::LogId(999)), None);
    assert_eq!(forget(&mut catalogue, of), Some(Change::LogProjected { log: of }));
    assert_eq!((newest(&catalogue).units(), spares(&catalogue)), (stand, vec![on_one]));
    assert_eq!(forget(&mut catalogue, of), None, "they were forgotten before");
    // A recovery that began before it goes on without them.
    let mut next = newest(&catalogue);
    (next.epoch, next.newest_unit) = (next.epoch.next(), on_three.0);
    next.extents[0].chains[0].push(on_three.0);
    let gone = Ok(Response::Log(LogResponse::UnitsGone(vec![on_three.0])));
    assert_eq!(propose(&mut catalogue, &mut log, &next), gone);
    catalogue.check().expect("it is whole");
}
