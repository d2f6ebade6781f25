use base::codec::testing::check_golden;
use base::{Boot, Durability, Duration, Incarnation, Member, SplitMix64, Timestamp};
use sharedlog::{Extent, LogId, Position, Projection, ProjectionEpoch, SequencerId, UnitId};
use state_machine::StateMachine;
use state_machine::checkpoint::{Chunks, end, load};

use super::*;
use crate::catalog::Standing;
use crate::command::CatalogCommand;
use crate::testing::{Log, TABLET};

fn catalog() -> Catalog {
    let (mut state, mut log) = (Catalog::empty(), Log::new());
    let node = |number| NodeRecord {
        member: Member { node: NodeId(number), incarnation: Incarnation(7) },
        peer: format!("127.0.0.1:{number}"),
        grpc: String::new(),
        standing: if number == 5 { Standing::Left } else { Standing::Stays },
    };
    let nodes = (1..=5).map(node).collect();
    let mut apply = |command: &CatalogCommand| state.apply_entry(&log.entry(command.encode())).expect("the next entry");
    apply(&CatalogCommand::RegisterNodes { nodes });
    for number in 0..20 {
        let split_at = (0..number).map(|key| format!("{key:02}").into()).collect();
        apply(&CatalogCommand::CreateTable {
            name: format!("table-{number}"),
            split_at,
            options: TableOptions {
                replicas: 2 * (number % 3) + 1,
                retention: base::Duration::from_millis(u64::from(number)),
                durability: number.is_multiple_of(2).then_some(base::Durability::Memory),
                transactions: number.is_multiple_of(3).then_some(false),
                replication: (number % 4 == 1).then_some(Replication::PrimaryBackup),
                disk_bytes: if number % 5 == 4 { 4_096 * u64::from(number) } else { 0 },
                is_exclusive: number % 10 == 9,
                kind: TABLET,
            },
        });
    }
    apply(&CatalogCommand::BeginDrop { name: "table-7".into(), force: false });
    state
}

fn chunks(catalog: &Catalog) -> Vec<Bytes> {
    Chunks::of(catalog.snapshot()).collect()
}

fn loaded(chunks: &[Bytes]) -> Result<Catalog, LoadError> {
    load::<CatalogSnapshot>(CohortId::CATALOG, chunks).map(|snapshot| snapshot.into_machine(NoStorage))
}

#[test]
fn checkpoint_round_trip() {
    for catalog in [Catalog::empty(), catalog()] {
        let pieces = chunks(&catalog);
        let loaded = loaded(&pieces).expect("the chunks are complete");
        loaded.invariants();
        assert_eq!(chunks(&loaded), pieces);
        assert_eq!(loaded.snapshot_bytes(), catalog.snapshot_bytes());
    }
}

#[test]
fn golden_records() {
    let (member, name) = (|node| Member { node: NodeId(node), incarnation: Incarnation(7) }, || "t".to_owned());
    let split = SplitRecord { key: "x".into(), child: CohortId(9) };
    let range = RangeRecord {
        start: "k".into(),
        cohort: CohortId(5),
        members: vec![member(1), member(2)],
        genesis: vec![member(3)],
        plan: 4,
        leaving: Some(vec![member(2)]),
        parent: Some(CohortId(3)),
        split: Some(split),
        configuration: None,
    };
    let first = RangeRecord { leaving: None, parent: None, split: None, start: Bytes::new(), ..range.clone() };
    let table = |durability, transactions, is_dropping, is_drop_forced| {
        let (durability, transactions) = (Some(durability), Some(transactions));
        let (replication, retention) = (Some(Replication::Paxos), Duration(8));
        let options = TableOptions {
            retention,
            durability,
            transactions,
            replication,
            ..TableOptions { replicas: 3, ..TableOptions::of(TABLET) }
        };
        let ranges = vec![first.clone(), range.clone()];
        (name(), TableRecord { options, ranges, created: Timestamp(-2), is_dropping, is_drop_forced })
    };
    let managed = |(name, mut record): (String, TableRecord)| {
        record.options.replication = Some(Replication::PrimaryBackup);
        for range in &mut record.ranges {
            let first = Configuration::new(base::Epoch(6), vec![member(1), member(2)], member(2));
            range.configuration = Some(Box::new(first));
        }
        (name, record)
    };
    let tables = [
        table(Durability::Memory, false, false, false),
        table(Durability::Memory, false, true, false),
        table(Durability::Memory, false, true, true),
        table(Durability::Forced, true, false, false),
        table(Durability::Forced, false, false, false),
        managed(table(Durability::Forced, false, false, false)),
        managed(table(Durability::Forced, false, true, true)),
    ];
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/checkpoint/golden_tables.txt");
    check_golden(path, &tables, |(name, table)| encoded(&Named(name, table)), |bytes| decoded("table name", bytes));
    let projection = Projection {
        log: LogId(4),
        epoch: ProjectionEpoch(2),
        sequencer: SequencerId { node: NodeId(2), boot: Boot(5) },
        start: Position(12),
        newest_unit: UnitId(9),
        extents: vec![Extent::new(Position(0), 1, vec![vec![UnitId(3), UnitId(9)]])],
    };
    let units = vec![(UnitId(3), member(1)), (UnitId(9), member(2))];
    let log = LogRecord {
        id: LogId(4),
        created: Timestamp(6),
        stripes: 2,
        copies: 3,
        projection,
        units,
        is_dropping: true,
        is_drop_forced: false,
    };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/checkpoint/golden_logs.txt");
    check_golden(path, &[(name(), log)], |(name, log)| encoded(&Named(name, log)), |bytes| decoded("log name", bytes));
    let standing = Standing::Leaving;
    let nodes = [NodeRecord { member: member(4), peer: "p:1".into(), grpc: "g:1".into(), standing }];
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/checkpoint/golden_nodes.txt");
    check_golden(path, &nodes, |node| encoded(&node), NodeRecord::from_bytes);
}

fn encoded(record: &impl Record) -> Bytes {
    let mut out = Writer::new();
    record.encode(&mut out);
    out.finish()
}

fn decoded<T: Wire>(name: &'static str, bytes: Bytes) -> Result<(String, T), DecodeError> {
    let mut input = Reader::new(bytes);
    let record = (input.text(name)?, T::decode(&mut input)?);
    input.end()?;
    Ok(record)
}

/// A chunk that is missing, duplicated, truncated or altered is detected.
#[test]
fn rejects_damaged_chunks() {
    let whole = chunks(&catalog());
    let refused = |pieces: &[Bytes]| assert!(loaded(pieces).is_err());
    refused(&[]);
    for index in 0..whole.len() {
        let mut pieces = whole.clone();
        pieces.remove(index);
        refused(&pieces);
        let mut pieces = whole.clone();
        pieces.insert(index, whole[index].clone());
        refused(&pieces);
        for byte in 0..whole[index].len() {
            let mut pieces = whole.clone();
            pieces[index] = whole[index].slice(..byte);
            refused(&pieces);
            let mut changed = whole[index].to_vec();
            changed[byte] ^= 0x10;
            pieces[index] = changed.into();
            refused(&pieces);
        }
    }
}

/// Arbitrary bytes under a valid checksum are rejected, or yield a catalog that keeps its invariants.
#[test]
fn fuzz_chunks_under_valid_checksum() {
    let mut random = SplitMix64::new(5);
    let whole = chunks(&catalog());
    for _ in 0..50_000 {
        let mut pieces = whole[..whole.len() - 1].to_vec();
        let index = random.below(pieces.len() as u64) as usize;
        let mut chunk = pieces[index].to_vec();
        let at = random.below(chunk.len() as u64) as usize;
        match random.below(4) {
            0 => chunk.truncate(at),
            1 => chunk[at..].fill(0xff),
            _ => chunk[at] = random.draw().to_le_bytes()[0],
        }
        pieces[index] = chunk.into();
        let checksum = pieces.iter().fold(0, |checksum, chunk| base::checksum_append(checksum, chunk));
        pieces.push(end(pieces.len() as u64, checksum));
        if let Ok(catalog) = loaded(&pieces) {
            catalog.invariants();
        }
    }
}
