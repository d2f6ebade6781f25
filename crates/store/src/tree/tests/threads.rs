//! One thread writes while others read: each view is stable.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::*;

/// Every entry writes its number to all columns of a row: a reader must find the same number in all of them, and never
/// an older one than before.
#[test]
fn concurrent_reads_are_atomic_and_monotonic() {
    const COLUMNS: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    const ENTRIES: u64 = 4_000;
    let mut world = World::new(1);
    let newest = Mutex::new((world.tree.tree.view(), Timestamp(0)));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (mut last, mut reads) = (0, 0);
                while !is_over.load(Ordering::Acquire) || reads < 10 {
                    let (view, at) = newest.lock().unwrap().clone();
                    let cells = || view.cells(Range::all(), Direction::Forwards, at, Io::Allowed);
                    let number = |cell: Result<Cell, SstableError>| {
                        u64::from_be_bytes(cell.unwrap().value.first_chunk().copied().unwrap())
                    };
                    let numbers: Vec<u64> = cells().map(number).collect();
                    assert!(numbers.len().is_multiple_of(COLUMNS.len()));
                    assert!(numbers.chunks(COLUMNS.len()).all(|row| row.iter().all(|number| *number == row[0])));
                    let newest = numbers.iter().max().copied().unwrap_or(0);
                    assert_eq!(
                        Timestamp(newest as i64 * 10),
                        at,
                        "a reader sees everything added before the announcement"
                    );
                    assert!(newest >= last);
                    assert!(numbers.into_iter().eq(cells().map(number)), "a view does not change");
                    (last, reads) = (newest, reads + 1);
                }
            });
        }
        let mut random = SplitMix64::new(1);
        for number in 1..=ENTRIES {
            let row = random.below(50).to_be_bytes().to_vec();
            let value = [&number.to_be_bytes()[..], &[7; 20]].concat();
            let puts = COLUMNS.iter().map(|column| (row.clone(), column.to_vec(), Some(value.clone())));
            world.write(Write { puts: puts.collect(), deleted_row: None });
            world.work(&mut random);
            *newest.lock().unwrap() = (world.tree.tree.view(), world.model.last());
        }
        is_over.store(true, Ordering::Release);
    });
    world.settle();
    world.check_whole();
}
