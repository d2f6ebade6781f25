//! Measures the CPU time per operation of a tablet's tree on one thread, in microseconds, with files in a real
//! directory: `cargo run --release -p store --example sstables [ENTRIES [DIRECTORY]]`.
//!
//! Rows have 16 bytes, one column, and values of 100 bytes that are half compressible. Linux only: uses the kernel's
//! count of this thread's CPU time, including system calls.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;

use base::{ClusterId, CohortId, Incarnation, NodeId, SplitMix64, Timestamp};
use bytes::Bytes;
use store::cell::{self, Range};
use store::files::Files as _;
use store::identity::Owner;
use store::sstable::{BlockCache, DIRECTORY, Io};
use store::tree::{Config, Direction, JobStep, OpenSstables, Recent, Site, SstableNumbers, Tree, View};

mod files;
use files::Directory;

const OWNER: Owner = Owner { cluster: ClusterId(1), node: NodeId(1), incarnation: Incarnation(1) };
const COLUMN: &[u8] = b"column";
const VALUE_BYTES: usize = 100;
const SCAN_CELLS: usize = 100;
const OPERATIONS: u64 = 200_000;

const TICK: i64 = 977;

/// CPU time of this thread, in nanoseconds.
fn cpu_nanoseconds() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts the time of threads");
    text.split(' ').next().and_then(|first| first.parse().ok()).expect("a number of nanoseconds")
}

/// Runs `operation` `count` times, and prints the mean cost.
fn measure(name: &str, count: u64, mut operation: impl FnMut(u64)) {
    let start = cpu_nanoseconds();
    (0..count).for_each(&mut operation);
    let microseconds = (cpu_nanoseconds() - start) as f64 / 1000.0;
    println!("{name:<44} {:>9.3} us", microseconds / count as f64);
}

/// Sixteen bytes in an unpredictable order.
fn row(number: u64) -> [u8; 16] {
    let mut random = SplitMix64::new(number);
    let mut row = [0; 16];
    row[..8].copy_from_slice(&random.draw().to_be_bytes());
    row[8..].copy_from_slice(&random.draw().to_be_bytes());
    row
}

fn values() -> Vec<[u8; VALUE_BYTES]> {
    let mut random = SplitMix64::new(1);
    let value = |_| {
        let mut value = [b'v'; VALUE_BYTES];
        value[..VALUE_BYTES / 2].fill_with(|| random.draw() as u8);
        value
    };
    (0..1024).map(value).collect()
}

/// Flushes and compacts until there is no more work; drops old versions as the watermark allows.
fn work(tree: &mut Tree, files: &Directory, watermark: Timestamp) {
    while let Some(mut job) = tree.flush_job(watermark, &Range::all()) {
        loop {
            if let JobStep::Done(outputs) = job.step(files).expect("a working disk") {
                break tree.flushed(&outputs);
            }
        }
    }
    while let Some(mut job) = tree.pick_compaction(watermark, &Range::all()) {
        loop {
            if let JobStep::Done(outputs) = job.step(files).expect("a working disk") {
                break tree.compacted(&outputs);
            }
        }
    }
    tree.forced(&tree.refs());
    for (id, _) in tree.give_up() {
        files.remove(&id.path()).expect("a working disk");
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let entries: u64 = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(1_500_000);
    let scratch = std::env::temp_dir().join(format!("loggos-sstables-{}", std::process::id()));
    let directory = arguments.next().map_or(scratch, PathBuf::from);
    let files = Directory(directory.clone());
    files.create_dir("").and_then(|()| files.create_dir(DIRECTORY)).expect("a directory to write in");
    let site = Site {
        owner: OWNER,
        cohort: CohortId(1),
        config: Config::default(),
        cache: Arc::new(BlockCache::new(1 << 30)),
        numbers: SstableNumbers::default(),
        pressure: Arc::default(),
        // Disabled, to measure the SSTables.
        recent: Arc::new(Recent::new(0)),
    };
    let mut tree = Tree::new(site.clone());
    fill(&mut tree, &files, entries);
    let open = |site: Site| Tree::open(&files, site, &tree.refs(), &mut OpenSstables::new()).expect("intact SSTables");
    measure("open", 20, |_| drop(black_box(open(site.clone()))));
    let now = Timestamp(entries as i64 * TICK);
    let small = Site { cache: Arc::new(BlockCache::new(0)), ..site.clone() };
    let cold = open(small);
    for (name, view) in [("cache hot", tree.view()), ("no cache", cold.view())] {
        reads(name, &view, entries, now);
    }
    fs::remove_dir_all(directory).expect("the directory can be removed");
}

fn fill(tree: &mut Tree, files: &Directory, entries: u64) {
    let values = values();
    let mut worked = 0;
    let start = cpu_nanoseconds();
    for number in 0..entries {
        let key = Bytes::from(cell::encode(&row(number), COLUMN));
        let value = Bytes::copy_from_slice(&values[number as usize % values.len()]);
        let timestamp = Timestamp(number as i64 * TICK);
        tree.put(key, timestamp, Some(value));
        if tree.needs_flush() || number + 1 == entries {
            tree.freeze();
            let before = cpu_nanoseconds();
            work(tree, files, timestamp);
            worked += cpu_nanoseconds() - before;
        }
    }
    let each = |nanoseconds: u64| nanoseconds as f64 / 1000.0 / entries as f64;
    let all = cpu_nanoseconds() - start;
    println!("{:<44} {:>9.3} us", "put into the memtable", each(all - worked));
    println!("{:<44} {:>9.3} us", "flush and compaction, for each put", each(worked));
    println!("{:<44} {:>9.3} us", "fill in total, until settled", each(all));
    println!("SSTables and bytes by level: {:?}", tree.level_sizes());
    println!("{} bytes in memory", tree.memory_bytes());
}

fn reads(name: &str, view: &View, entries: u64, now: Timestamp) {
    for cell in view.cells(Range::all(), Direction::Forwards, now, Io::Allowed) {
        cell.expect("intact SSTables");
    }
    let mut random = SplitMix64::new(2);
    let mut any = || row(random.below(entries));
    measure(&format!("newest version, {name}"), OPERATIONS, |_| {
        let found = view.newest(&any(), COLUMN, now, Io::Allowed).expect("intact SSTables");
        assert!(black_box(found).is_some());
    });
    measure(&format!("newest version of an absent row, {name}"), OPERATIONS, |place| {
        black_box(view.newest(&row(u64::MAX - place), COLUMN, now, Io::Allowed).expect("intact SSTables"));
    });
    for direction in [Direction::Forwards, Direction::Backwards] {
        measure(&format!("scan of {SCAN_CELLS} {direction:?}, {name}").to_lowercase(), OPERATIONS / 10, |_| {
            let row = any();
            let range = match direction {
                Direction::Forwards => Range::rows(&row, None),
                Direction::Backwards => Range::rows(b"", Some(&row)),
            };
            for cell in view.cells(range, direction, now, Io::Allowed).take(SCAN_CELLS) {
                black_box(cell.expect("intact SSTables"));
            }
        });
    }
}
