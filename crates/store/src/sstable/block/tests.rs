//! Tests that a block returns its entries in both directions, and that no input causes a panic or an endless loop.

use base::SplitMix64;

use super::*;
use crate::sstable::VersionRef;

fn build(entries: &[(Vec<u8>, i64)]) -> Vec<u8> {
    let mut builder = BlockBuilder::default();
    for (place, (key, timestamp)) in entries.iter().enumerate() {
        let value = (place % 5 != 0).then_some(&key[..]);
        builder.add(key, Timestamp(*timestamp), value);
    }
    let expected = builder.bytes();
    let content = builder.finish().to_vec();
    assert_eq!(content.len(), expected);
    content
}

fn entries(count: usize) -> Vec<(Vec<u8>, i64)> {
    (0..count).map(|place| (format!("row{:04}", place / 2).into_bytes(), -(place as i64 % 2) * 1_000_000)).collect()
}

#[test]
fn block_seek_and_bidirectional_scan() {
    for count in [0, 1, 2, 15, 16, 17, 32, 33, 200] {
        let entries = entries(count);
        let mut cursor = BlockCursor::new(Block::parse(build(&entries).into()).unwrap());
        for (place, (key, timestamp)) in entries.iter().enumerate() {
            assert!(cursor.seek(key, Timestamp(*timestamp)).unwrap());
            let expected = VersionRef { key, timestamp: Timestamp(*timestamp), value: (place % 5 != 0).then_some(key) };
            assert_eq!(cursor.current(), Some(expected));
            assert_eq!(cursor.value().as_deref(), expected.value);
            assert_eq!(cursor.previous().unwrap(), place > 0);
            assert_eq!(cursor.current().map(|version| version.key), place.checked_sub(1).map(|at| &entries[at].0[..]));
        }
        assert_eq!(cursor.seek(b"", Timestamp(0)).unwrap(), count > 0);
        assert!(!cursor.seek(b"s", Timestamp(0)).unwrap());
        let mut walked = 0;
        let mut found = cursor.seek_to_first().unwrap();
        while found {
            assert_eq!(cursor.current().unwrap().key, entries[walked].0);
            walked += 1;
            found = cursor.next().unwrap();
        }
        assert_eq!(walked, count);
        found = cursor.seek_to_last().unwrap();
        while found {
            walked -= 1;
            assert_eq!(cursor.current().unwrap().timestamp, Timestamp(entries[walked].1));
            found = cursor.previous().unwrap();
        }
        assert_eq!(walked, 0);
    }
}

/// Runs all operations of a block, with a step limit.
fn exercise(content: Vec<u8>) {
    let steps_max = content.len() + 2;
    let Ok(block) = Block::parse(content.into()) else { return };
    let mut cursor = BlockCursor::new(block);
    let _ = cursor.seek(b"row0003", Timestamp(0));
    let _ = cursor.seek(b"", Timestamp(0));
    let mut steps = 0;
    let mut found = cursor.seek_to_first();
    while found == Ok(true) {
        steps += 1;
        assert!(steps < steps_max);
        found = cursor.next();
    }
    found = cursor.seek_to_last();
    while found == Ok(true) {
        steps += 1;
        assert!(steps < 2 * steps_max);
        found = cursor.previous();
    }
}

#[test]
fn fuzz_block_parser() {
    let mut random = SplitMix64::new(1);
    let whole = build(&entries(40));
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        exercise(damaged);
    }
    for _ in 0..20_000 {
        let mut damaged = whole.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] = random.draw() as u8;
        }
        damaged.truncate(whole.len() - (random.below(8) as usize).saturating_sub(6));
        exercise(damaged);
        exercise((0..random.below(40)).map(|_| random.draw() as u8 & 0x83).collect());
    }
}
