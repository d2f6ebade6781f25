use base::codec::testing::check_golden;
use base::{Boot, Duration, Incarnation, Member, SplitMix64};
use sharedlog::{Extent, Position, ProjectionEpoch, SequencerId};

use super::*;
use crate::testing::TABLET;

fn commands() -> Vec<CatalogCommand> {
    let member = Member { node: NodeId(1), incarnation: Incarnation(u64::MAX) };
    let node = NodeRecord { member, peer: "127.0.0.1:7101".into(), grpc: String::new(), standing: Standing::Leaving };
    let sequencer = SequencerId { node: NodeId(2), boot: Boot(5) };
    let projection = Projection {
        log: LogId(4),
        epoch: ProjectionEpoch(2),
        sequencer,
        start: Position(12),
        newest_unit: UnitId(9),
        extents: vec![Extent::new(Position(0), 1, vec![vec![UnitId(3), UnitId(9)]])],
    };
    vec![
        CatalogCommand::BeginSplit { name: "t".into(), key: "k".into() },
        CatalogCommand::EndSplit { name: "t".into(), child: CohortId(9) },
        CatalogCommand::CreateLog { name: "l".into(), stripes: 2, copies: 3, sequencer },
        CatalogCommand::Project { projection: Box::new(projection) },
        CatalogCommand::CreateTable { name: "t".into(), split_at: vec![], options: TableOptions::of(TABLET) },
        CatalogCommand::CreateTable {
            name: "t".into(),
            split_at: vec!["a".into(), "b".into()],
            options: TableOptions {
                replicas: 5,
                retention: Duration(7),
                durability: Some(base::Durability::Memory),
                transactions: Some(false),
                replication: None,
                disk_bytes: 0,
                is_exclusive: false,
                kind: TABLET,
            },
        },
        CatalogCommand::CreateTable {
            name: "d".into(),
            split_at: vec![],
            options: TableOptions { disk_bytes: 8_192, ..TableOptions::of(TABLET) },
        },
        CatalogCommand::ResizeDisk { name: "d".into(), bytes: 12_288 },
        CatalogCommand::CreateTable {
            name: "t".into(),
            split_at: vec![],
            options: TableOptions { replication: Some(Replication::PrimaryBackup), ..TableOptions::of(TABLET) },
        },
        CatalogCommand::Configure {
            cohort: CohortId(2),
            configuration: Configuration::new(base::Epoch(3), vec![member], member),
        },
        CatalogCommand::BeginDrop { name: "t".into(), force: false },
        CatalogCommand::BeginDrop { name: "t".into(), force: true },
        CatalogCommand::EndDrop { name: "t".into(), table: CohortId(2) },
        CatalogCommand::BeginMove { cohort: CohortId(2), nodes: vec![NodeId(1), NodeId(3)], force: true },
        CatalogCommand::BeginMove { cohort: CohortId(2), nodes: vec![NodeId(1), NodeId(3)], force: false },
        CatalogCommand::EndMove { cohort: CohortId(2), plan: 7 },
        CatalogCommand::RegisterNodes { nodes: vec![] },
        CatalogCommand::RegisterNodes { nodes: vec![node.clone(), node.clone()] },
        CatalogCommand::AddNode { node },
        CatalogCommand::BeginLeave { node: NodeId(7) },
        CatalogCommand::MoveOff { absent: vec![NodeId(1), NodeId(2)] },
        CatalogCommand::EndLeave { node: NodeId(7) },
        CatalogCommand::BeginLogDrop { name: "l".into(), force: false },
        CatalogCommand::BeginLogDrop { name: "l".into(), force: true },
        CatalogCommand::EndLogDrop { name: "l".into(), log: LogId(1 << 40) },
        CatalogCommand::AddUnits { log: LogId(5), nodes: vec![NodeId(1), NodeId(2)] },
        CatalogCommand::ForgetSpares { log: LogId(5), units: vec![UnitId(6), UnitId(1 << 40)] },
    ]
}

#[test]
fn golden_commands() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/command/golden.txt");
    check_golden(path, &commands(), CatalogCommand::encode, CatalogCommand::decode);
}

/// Random bytes, and valid ones with one byte changed, decode or are rejected. Bytes that decode are encoded
/// identically.
#[test]
fn fuzz_command_decoders() {
    let mut random = SplitMix64::new(1);
    let valid: Vec<Bytes> = commands().iter().map(CatalogCommand::encode).collect();
    for round in 0..100_000_usize {
        let payload = if round % 2 == 0 {
            let length = random.below(40);
            (0..length).map(|_| random.draw().to_le_bytes()[0]).collect()
        } else {
            let mut changed = valid[random.below(valid.len() as u64) as usize].to_vec();
            let at = random.below(changed.len() as u64) as usize;
            changed[at] = random.draw().to_le_bytes()[0];
            Bytes::from(changed)
        };
        if let Ok(command) = CatalogCommand::decode(payload.clone()) {
            assert_eq!(command.encode(), payload);
        }
    }
}
