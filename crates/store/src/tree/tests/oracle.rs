//! Compares with another LSM tree, `lsm-tree`, under the same operations. It is configured to keep every version,
//! because it drops a version below its threshold even if the next newer one is above it.

use std::ops::RangeFull;

use lsm_tree::{AbstractTree as _, Guard as _, SequenceNumberCounter};

use super::*;

/// A directory that is removed after the test.
struct Scratch(std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// It has no row tombstones: each cell of the row is removed, unless the write puts it.
fn apply(oracle: &lsm_tree::AnyTree, write: &Write, columns: &[&[u8]], timestamp: Timestamp) {
    let number = timestamp.0 as u64;
    for (row, column, value) in &write.puts {
        let key = cell::encode(row, column);
        match value {
            Some(value) => oracle.insert(key, value.clone(), number),
            None => oracle.remove(key, number),
        };
    }
    if let Some(row) = &write.deleted_row {
        let is_put = |column: &[u8]| write.puts.iter().any(|(_, put, _)| put == column);
        for column in columns.iter().filter(|column| !is_put(column)) {
            oracle.remove(cell::encode(row, column), number);
        }
    }
}

fn compare(oracle: &lsm_tree::AnyTree, view: &View, columns: &[&[u8]], random: &mut SplitMix64, at: Timestamp) {
    // Its reads take the first number that is not visible.
    let number = at.0 as u64 + 1;
    let pairs = oracle.range::<&[u8], RangeFull>(.., number, None).map(|pair| pair.into_inner().unwrap());
    let mut expected: Vec<(Vec<u8>, Vec<u8>)> = pairs.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    for direction in [Direction::Forwards, Direction::Backwards] {
        let cells = view.cells(Range::all(), direction, at, Io::Allowed).map(|cell| cell.unwrap());
        let pairs = cells.map(|cell| (cell::encode(&cell.row, &cell.column), cell.value.to_vec()));
        let found: Vec<_> = pairs.collect();
        let first = found.iter().zip(&expected).find(|(found, expected)| found != expected);
        assert_eq!(first, None, "{direction:?} {at} {} {}", found.len(), expected.len());
        assert_eq!(found.len(), expected.len());
        expected.reverse();
    }
    for _ in 0..200 {
        let row = model::random_row(random, 100);
        let column = columns[random.below(columns.len() as u64) as usize];
        let expected = oracle.get(cell::encode(&row, column), number).unwrap().map(|value| value.to_vec());
        let found = view.newest(&row, column, at, Io::Allowed).unwrap().map(|(_, value)| value.to_vec());
        assert_eq!(found, expected);
    }
}

#[test]
fn tree_matches_oracle() {
    let columns: [&[u8]; 5] = [b"\0", b"\x01", b"column", b"column2", b"\xff"];
    for seed in 0..4 {
        let path = std::env::temp_dir().join(format!("loggos-oracle-{}-{seed}", std::process::id()));
        let scratch = Scratch(path);
        let (numbers, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
        let oracle = lsm_tree::Config::new(&scratch.0, numbers, visible).open().unwrap();
        let mut random = SplitMix64::new(seed);
        let mut world = World::new(1);
        for step in 1..=3_000 {
            let write = Write::random(&mut random, 100);
            apply(&oracle, &write, &columns, Timestamp(step * 10));
            world.write(write);
            world.work(&mut random);
            if step % 500 == 0 {
                oracle.flush_active_memtable(0).unwrap();
                let at = Timestamp(world.watermark.0 + random.below((step * 10 - world.watermark.0) as u64 + 1) as i64);
                compare(&oracle, &world.tree.tree.view(), &columns, &mut random, at);
                world.raise_watermark(&mut random);
                oracle.major_compact(1 << 20, 0).unwrap();
            }
        }
        world.settle();
        compare(&oracle, &world.tree.tree.view(), &columns, &mut random, world.model.last());
    }
}
