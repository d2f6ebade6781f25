//! What a sorted table costs on one thread, in microseconds of CPU for each operation, on a disk in memory:
//! `cargo run --release -p store --example tables [ENTRIES]`.
//!
//! Keys have 24 bytes, values 100, of which half can be compressed. Linux only: the CPU's time is the kernel's count.

use std::collections::BTreeSet;
use std::fs;
use std::hint::black_box;

use base::{CohortId, Incarnation, Lsn, NodeId, SplitMix64, Timestamp, UniverseId};
use store::files::Files;
use store::identity::Owner;
use store::memory::MemoryDisk;
use store::sstable::{BlockCache, Config, DIRECTORY, Table, TableId, TableWriter, VersionRef, remove_unnamed};

const OWNER: Owner = Owner { universe: UniverseId(1), node: NodeId(1), incarnation: Incarnation(1) };
const ID: TableId = TableId { cohort: CohortId(1), number: 1 };
const VALUE_BYTES: usize = 100;
const SCAN_ENTRIES: usize = 100;
const OPERATIONS: u64 = 200_000;

/// Nanoseconds that this thread has run.
fn cpu_nanoseconds() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts the time of threads");
    text.split(' ').next().and_then(|first| first.parse().ok()).expect("a number of nanoseconds")
}

/// Runs `operation` so many times, and prints what one costs.
fn measure(name: &str, count: u64, mut operation: impl FnMut(u64)) {
    let start = cpu_nanoseconds();
    (0..count).for_each(&mut operation);
    let microseconds = (cpu_nanoseconds() - start) as f64 / 1000.0;
    println!("{name:<44} {:>9.3} us", microseconds / count as f64);
}

/// Sixteen bytes that name the row, as hashed rows do, then a column.
fn key(number: u64) -> [u8; 24] {
    let mut random = SplitMix64::new(number);
    let mut key = *b"................/column.";
    key[..8].copy_from_slice(&random.draw().to_be_bytes());
    key[8..16].copy_from_slice(&random.draw().to_be_bytes());
    key
}

fn row(key: &[u8]) -> usize {
    key.len().min(16)
}

fn value(random: &mut SplitMix64) -> [u8; VALUE_BYTES] {
    let mut value = [b'v'; VALUE_BYTES];
    value[..VALUE_BYTES / 2].fill_with(|| random.draw() as u8);
    value
}

fn main() {
    let entries: u64 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(500_000);
    let disk = MemoryDisk::new();
    disk.create_dir(DIRECTORY).expect("a disk in memory");
    remove_unnamed(&disk, &BTreeSet::new()).expect("a disk in memory");

    let mut keys: Vec<[u8; 24]> = (0..entries).map(key).collect();
    keys.sort_unstable();
    let mut random = SplitMix64::new(1);
    let mut writer = TableWriter::create(&disk, &OWNER, ID, Config::default(), row).expect("a disk in memory");
    let values: Vec<_> = (0..1024).map(|_| value(&mut random)).collect();
    measure("fill, a version", entries, |place| {
        let value = &values[place as usize % values.len()];
        let (timestamp, lsn) = (Timestamp(1_700_000_000_000_000_000 + place as i64 * 977), Lsn::new(3, place));
        let version = VersionRef { key: &keys[place as usize], timestamp, lsn, value: Some(value) };
        writer.push(version).expect("a disk in memory");
    });
    let meta = writer.finish(&disk).expect("a disk in memory");

    let open = || Table::open(&disk, &OWNER, ID, row).expect("it was just written");
    let table = open();
    println!("{} bytes in the file, {} in memory", meta.bytes, table.memory_bytes());
    measure("open", 2_000, |_| drop(black_box(open())));
    measure("verify, a version", entries, |place| {
        if place == 0 {
            table.verify().expect("it was just written");
        }
    });
    for (name, cache) in [("cache hot", BlockCache::new(1 << 30)), ("no cache", BlockCache::new(0))] {
        reads(name, &table, &cache, &keys);
    }
}

fn reads<H: store::files::File>(name: &str, table: &Table<H>, cache: &BlockCache, keys: &[[u8; 24]]) {
    let mut cursor = table.cursor(cache);
    cursor.seek_to_first().expect("a whole table");
    while cursor.current().is_some() {
        cursor.next().expect("a whole table");
    }
    let now = Timestamp(i64::MAX);
    let mut random = SplitMix64::new(2);
    let mut any = || &keys[random.below(keys.len() as u64) as usize];
    measure(&format!("newest version, {name}"), OPERATIONS, |_| {
        assert!(black_box(table.newest(any(), now, cache).expect("a whole table")).is_some());
    });
    measure(&format!("newest version of no key, {name}"), OPERATIONS, |place| {
        black_box(table.newest(&key(u64::MAX - place), now, cache).expect("a whole table"));
    });
    measure(&format!("scan of {SCAN_ENTRIES}, {name}"), OPERATIONS / 10, |_| {
        let mut cursor = table.cursor(cache);
        cursor.seek(any(), now).expect("a whole table");
        for _ in 0..SCAN_ENTRIES {
            black_box(cursor.current());
            cursor.next().expect("a whole table");
        }
    });
    measure(&format!("scan of {SCAN_ENTRIES} backwards, {name}"), OPERATIONS / 10, |_| {
        let mut cursor = table.cursor(cache);
        cursor.seek(any(), now).expect("a whole table");
        for _ in 0..SCAN_ENTRIES {
            black_box(cursor.current());
            cursor.previous().expect("a whole table");
        }
    });
}
