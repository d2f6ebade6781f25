//! Accepted and rejected projections, and the units that they may name.

use base::Boot;
use sharedlog::request::LogResponse;
use sharedlog::{Projection, SequencerId, UnitId};

use super::*;

fn with_log() -> (Catalog, Log) {
    let (mut catalog, mut log) = with_nodes(3);
    let sequencer = SequencerId { node: NodeId(1), boot: Boot(1) };
    let create = CatalogCommand::CreateLog { name: "l".into(), stripes: 1, copies: 2, sequencer };
    apply(&mut catalog, &mut log, &create);
    (catalog, log)
}

fn spares(catalog: &Catalog) -> Vec<(UnitId, u32)> {
    let log = catalog.log("l").expect("the log exists");
    log.spares().map(|(unit, member)| (unit, member.node.0)).collect()
}

fn name_on(catalog: &mut Catalog, log: &mut Log, nodes: &[u32]) {
    let of = catalog.log("l").expect("the log exists").id;
    let nodes = nodes.iter().copied().map(NodeId).collect();
    apply(catalog, log, &CatalogCommand::AddUnits { log: of, nodes });
}

fn propose(catalog: &mut Catalog, log: &mut Log, projection: &Projection) -> Outcome {
    let project = CatalogCommand::Project { projection: Box::new(projection.clone()) };
    apply(catalog, log, &project).0.expect("a projection has an outcome")
}

fn newest(catalog: &Catalog) -> Projection {
    catalog.log("l").expect("the log exists").projection.clone()
}

/// The rejection names the missing units, so that the proposer can leave them out.
#[test]
fn rejected_projection_names_missing_units() {
    let (mut catalog, mut log) = with_log();
    name_on(&mut catalog, &mut log, &[1, 2, 3]);
    let on_two = spares(&catalog)[1];
    assert_eq!(on_two.1, 2);
    let mut next = newest(&catalog);
    next.epoch = next.epoch.next();
    next.newest_unit = on_two.0;
    next.extents[0].chains = vec![vec![on_two.0]];
    assert!(matches!(propose(&mut catalog, &mut log, &next), Ok(CatalogResponse::Log(LogResponse::Projected(_)))));
    let mut after = newest(&catalog);
    let was = after.clone();
    after.epoch = after.epoch.next();
    name_on(&mut catalog, &mut log, &[3]);
    let on_three = spares(&catalog)[0].0;
    after.newest_unit = on_three;
    after.extents[0].chains[0].push(on_three);
    name_on(&mut catalog, &mut log, &[3]);
    let gone = Ok(CatalogResponse::Log(LogResponse::UnitsGone(vec![on_three])));
    assert_eq!(propose(&mut catalog, &mut log, &after), gone);
    assert_eq!(newest(&catalog), was);
    // An invalid successor is rejected as well. A proposal with an outdated epoch returns the current projection.
    let mut moved = was.clone();
    (moved.epoch, moved.extents[0].from) = (moved.epoch.next(), sharedlog::Position(5));
    assert!(matches!(propose(&mut catalog, &mut log, &moved), Err(Failure::Invalid(_))));
    let told = Ok(CatalogResponse::Log(LogResponse::Projected(Box::new(was.clone()))));
    assert_eq!(propose(&mut catalog, &mut log, &was), told);
}

/// A new spare replaces the last one on the same disk, which may be unusable.
#[test]
fn one_spare_per_disk_and_log() {
    let (mut catalog, mut log) = with_log();
    name_on(&mut catalog, &mut log, &[1, 3]);
    let first = spares(&catalog);
    for _ in 0..40 {
        name_on(&mut catalog, &mut log, &[3]);
    }
    let left = spares(&catalog);
    assert_eq!(left.iter().map(|(_, node)| *node).collect::<Vec<_>>(), [1, 3]);
    assert!(left[0] == first[0] && left[1].0 > first[1].0);
}

/// Units in the projection are kept even if a request names them.
#[test]
fn forget_removes_only_spares() {
    let (mut catalog, mut log) = with_log();
    name_on(&mut catalog, &mut log, &[1, 3]);
    let (of, stand) = (catalog.log("l").expect("the log exists").id, newest(&catalog).units());
    let [on_one, on_three] = spares(&catalog)[..] else { panic!("two spares exist") };
    let all: Vec<UnitId> = stand.iter().copied().chain([on_three.0, UnitId(999)]).collect();
    let mut forget = |catalog: &mut Catalog, of| {
        apply(catalog, &mut log, &CatalogCommand::ForgetSpares { log: of, units: all.clone() }).1
    };
    assert_eq!(forget(&mut catalog, sharedlog::LogId(999)), None);
    assert_eq!(forget(&mut catalog, of), Some(Change::LogProjected { log: of }));
    assert_eq!((newest(&catalog).units(), spares(&catalog)), (stand, vec![on_one]));
    assert_eq!(forget(&mut catalog, of), None, "forgetting is idempotent");
    // A recovery that began earlier must continue without the forgotten units.
    let mut next = newest(&catalog);
    (next.epoch, next.newest_unit) = (next.epoch.next(), on_three.0);
    next.extents[0].chains[0].push(on_three.0);
    let gone = Ok(CatalogResponse::Log(LogResponse::UnitsGone(vec![on_three.0])));
    assert_eq!(propose(&mut catalog, &mut log, &next), gone);
    catalog.check().expect("the invariants hold");
}
