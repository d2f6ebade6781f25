//! Tests of the functions that transactions need: detection of changes after a timestamp, versions that are added below
//! the newest timestamp, and rows that are deleted and written at one timestamp.

use super::*;

const NO_LIMIT: usize = usize::MAX;

fn puts(row: &[u8], columns: &[(&[u8], Option<&[u8]>)]) -> Write {
    let put = |(column, value): &(&[u8], Option<&[u8]>)| (row.to_vec(), column.to_vec(), value.map(<[u8]>::to_vec));
    Write { puts: columns.iter().map(put).collect(), deleted_row: None }
}

fn deletes(row: &[u8]) -> Write {
    Write { puts: Vec::new(), deleted_row: Some(row.to_vec()) }
}

fn changed(world: &World, range: &Range, since: i64) -> Changed {
    let changed = |steps_max| {
        world
            .tree
            .tree
            .view()
            .changed_since(range, Timestamp(since), &mut { steps_max }, Io::Allowed)
            .expect("a working disk")
    };
    assert_eq!(changed(NO_LIMIT), changed(1_000), "the limit is higher");
    changed(NO_LIMIT)
}

/// Values, tombstones of cells and tombstones of rows count as changes, in memory and in SSTables.
#[test]
fn changes_of_each_kind_are_found() {
    for is_flushed in [false, true] {
        let mut world = World::new(1);
        for write in [
            puts(b"a", &[(b"c", Some(b"1"))]),
            puts(b"b", &[(b"c", Some(b"1"))]),
            puts(b"a", &[(b"c", None)]),
            deletes(b"b"),
            deletes(b"c"),
        ] {
            world.write(write);
        }
        if is_flushed {
            world.flush_all();
        }
        assert_eq!(changed(&world, &Range::row(b"a"), 20), Changed::At(Timestamp(30)));
        assert_eq!(changed(&world, &Range::row(b"a"), 30), Changed::No);
        assert_eq!(changed(&world, &Range::row(b"b"), 39), Changed::At(Timestamp(40)));
        assert_eq!(changed(&world, &Range::row(b"c"), 49), Changed::At(Timestamp(50)), "a row that never existed");
        assert_eq!(changed(&world, &Range::row(b"c"), 50), Changed::No);
        assert_eq!(changed(&world, &Range::rows(b"d", None), 0), Changed::No);
        assert_eq!(changed(&world, &Range::rows(b"", Some(b"a")), 0), Changed::No);
        assert_eq!(changed(&world, &Range::rows(b"aa", Some(b"c")), 30), Changed::At(Timestamp(40)));
    }
}

/// A compaction keeps a tombstone that is newer than the watermark, even if it deletes no version.
#[test]
fn compactions_keep_newer_tombstones() {
    let mut world = World::new(1);
    world.write(puts(b"a", &[(b"c", Some(b"1"))]));
    world.write(puts(b"a", &[(b"c", None)]));
    world.write(deletes(b"b"));
    world.watermark = Timestamp(10);
    for _ in 0..3 {
        world.settle();
        assert_eq!(changed(&world, &Range::row(b"a"), 10), Changed::At(Timestamp(20)));
        assert_eq!(changed(&world, &Range::row(b"b"), 20), Changed::At(Timestamp(30)));
        world.write(puts(b"z", &[(b"c", Some(b"1"))]));
    }
}

#[test]
fn limit_on_versions() {
    let mut world = World::new(1);
    for number in 0..10 {
        world.write(Write::row(number));
    }
    world.write(Write::row(9));
    let view = world.tree.tree.view();
    let changed = |range: &Range, steps_max| {
        view.changed_since(range, Timestamp(100), &mut { steps_max }, Io::Allowed).expect("a working disk")
    };
    assert_eq!(changed(&Range::all(), 9), Changed::At(Timestamp(110)), "nine versions precede it");
    assert_eq!(changed(&Range::all(), 8), Changed::TooManyVersions);
    let others = Range::rows(&row_name(0), Some(&row_name(9)));
    assert_eq!((changed(&others, 9), changed(&others, 8)), (Changed::No, Changed::TooManyVersions));
}

/// Old versions of a frequently written cell do not exhaust the limit, in memory and in an SSTable. Changes of later cells
/// are found.
#[test]
fn limit_counts_few_versions_of_a_key() {
    let mut world = World::new(1);
    let last = 10_000;
    for timestamp in (10..=last).step_by(10) {
        world.tree.tree.put(cell::encode(b"hot", b"c").into(), Timestamp(timestamp), None);
    }
    let changed = |world: &World, range: &Range, since, steps_max| {
        let view = world.tree.tree.view();
        view.changed_since(range, Timestamp(since), &mut { steps_max }, Io::Allowed).expect("a working disk")
    };
    let (row, rows) = (Range::row(b"hot"), Range::rows(b"hot", None));
    world.tree.tree.put(cell::encode(b"warm", b"c").into(), Timestamp(last + 10), None);
    for _ in 0..2 {
        assert_eq!(changed(&world, &row, last - 10, 0), Changed::At(Timestamp(last)));
        assert_eq!(changed(&world, &row, last, 10), Changed::No);
        assert_eq!(changed(&world, &rows, last, 10), Changed::At(Timestamp(last + 10)));
        assert_eq!(changed(&world, &rows, last, 5), Changed::TooManyVersions);
        world.flush_all();
        assert_eq!(world.tree.tree.entries_in_memory(), 0);
    }
}

/// The filter excludes an SSTable that does not contain the row, without a read.
#[test]
fn single_row_is_checked_by_filter() {
    // Without a cache.
    let mut world = World::new(0);
    for number in 0..200 {
        world.write(Write::row(2 * number));
    }
    world.flush_all();
    let view = world.tree.tree.view();
    let is_read = |number| {
        let next = [&row_name(number)[..], &[0]].concat();
        let range = Range::rows(&row_name(number), Some(&next));
        view.changed_since(&range, Timestamp(0), &mut { NO_LIMIT }, Io::CacheOnly).is_err()
    };
    assert!((0..200).all(|number| is_read(2 * number)), "rows that exist are read");
    let read = (0..199).filter(|number| is_read(2 * number + 1)).count();
    assert!(read < 40, "{read} of 199 rows that do not exist are read");
}

/// The resolution of a transaction adds versions with timestamps below those of other rows. They are the newest of their
/// cells. They are found in the same memtable, in a newer one, and in an SSTable with a lower maximum timestamp than an older
/// SSTable.
#[test]
fn versions_below_newest_timestamp_are_found() {
    let key = |row: &[u8]| Bytes::from(cell::encode(row, b"c"));
    let value = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
    let mut world = World::new(1);
    let found = |world: &World, at| {
        let newest = world.tree.tree.view().newest(b"a", b"c", Timestamp(at), Io::Allowed).expect("a working disk");
        newest.map(|(timestamp, value)| (timestamp.0, value))
    };
    let at = |timestamp, text: &'static str| Some((timestamp, Bytes::from_static(text.as_bytes())));
    let tree = &mut world.tree.tree;
    tree.put(key(b"a"), Timestamp(10), value("old"));
    tree.put(key(b"b"), Timestamp(100), value("other"));
    world.tree.freeze_and_note();
    world.tree.tree.put(key(b"a"), Timestamp(50), value("new"));
    for _ in 0..2 {
        assert_eq!(
            (found(&world, 49), found(&world, 50), found(&world, 200)),
            (at(10, "old"), at(50, "new"), at(50, "new"))
        );
        assert_eq!(changed(&world, &Range::row(b"a"), 49), Changed::At(Timestamp(50)));
        assert_eq!(changed(&world, &Range::row(b"a"), 50), Changed::No);
        // The second SSTable has the lower newest timestamp.
        while world.tree.flush_step(&world.disk, Timestamp(0)).expect("a working disk") {}
        world.flush_all();
    }
    assert_eq!(world.tree.tree.levels.level(0).len(), 2);
    world.tree.tree.put(key(b"a"), Timestamp(60), None);
    assert_eq!((found(&world, 59), found(&world, 60)), (at(50, "new"), None));
    world.settle();
    assert_eq!((found(&world, 10), found(&world, 59), found(&world, 60)), (at(10, "old"), at(50, "new"), None));
    assert_eq!(changed(&world, &Range::row(b"a"), 59), Changed::At(Timestamp(60)));
}

/// After a write that deletes a row and puts columns, the row has only these columns. This holds for versions above and below
/// the watermark, in memtables and in SSTables.
#[test]
fn row_deleted_and_written_at_once() {
    let mut world = World::new(1);
    world.write(puts(b"a", &[(b"c", Some(b"1")), (b"d", Some(b"1"))]));
    world.write(Write { deleted_row: Some(b"a".to_vec()), ..puts(b"a", &[(b"c", Some(b"2")), (b"e", Some(b"2"))]) });
    world.write(puts(b"a", &[(b"f", Some(b"3"))]));
    let columns = |world: &World, at| -> Vec<Vec<u8>> {
        let cells = world.tree.tree.view();
        let cells = cells.cells(Range::row(b"a"), Direction::Forwards, Timestamp(at), Io::Allowed);
        cells.map(|cell| cell.expect("a working disk").column.to_vec()).collect()
    };
    for watermark in [0, 10, 20, 30] {
        world.watermark = Timestamp(watermark);
        world.check_whole();
        assert_eq!(columns(&world, 20.max(watermark))[..2], [b"c", b"e"]);
        if watermark == 10 {
            assert_eq!(columns(&world, 10), [b"c", b"d"]);
        }
        world.settle();
        world.check_whole();
        // An SSTable with other rows, so that there is something to merge.
        world.write(Write::row(1));
    }
    assert_eq!(columns(&world, 40), [b"c", b"e", b"f"]);
    world.settle();
    world.check_whole();
}

/// All versions by row and column. The empty column denotes tombstones of the row.
type Versions = std::collections::BTreeSet<(Vec<u8>, Vec<u8>, i64)>;

/// Rows that sort close to each other: prefixes, successors, escaped bytes.
const ROWS: [&[u8]; 10] = [b"", b"\0", b"a", b"a\0", b"a\0\0", b"a\0b", b"a\x01", b"a\xff", b"ab", b"b"];
const COLUMNS: [&[u8]; 3] = [b"\0", b"c", b"\x01"];

fn draw<'a>(random: &mut SplitMix64, of: &[&'a [u8]]) -> &'a [u8] {
    of[random.below(of.len() as u64) as usize]
}

/// A range as in a commit: a single row, or rows from a key up to another one or to the end of the table.
fn random_range(random: &mut SplitMix64) -> (Range, impl Fn(&[u8]) -> bool + use<>) {
    let from = draw(random, &ROWS);
    let successor = [from, &[0]].concat();
    let to = match random.below(5) {
        0 => None,
        1 => Some(draw(random, &ROWS).to_vec()),
        2 => Some([&successor, &b"\0"[..]].concat()),
        _ => Some(successor.clone()),
    };
    let range = if to.as_ref() == Some(&successor) && random.below(2) == 0 {
        Range::row(from)
    } else {
        Range::rows(from, to.as_deref())
    };
    (range, move |row: &[u8]| from <= row && to.as_ref().is_none_or(|to| row < &to[..]))
}

/// Random changes of few rows, with flushes and compactions in progress: several cells at one timestamp, tombstones of cells
/// and rows, and resolutions of transactions. A resolution adds versions that are older than those of other rows, but not of
/// the same row. A range is reported as changed if and only if it has a newer version.
#[test]
fn random_changes_match_model() {
    let mut found = [0; 3];
    for seed in 0..80 {
        let mut random = SplitMix64::new(seed);
        let mut world = World::new(1 + seed % 3);
        let (mut all, mut last) = (Versions::new(), 0);
        // The other rows are never written.
        let mut rows: Vec<&[u8]> = ROWS.into_iter().filter(|_| random.below(3) == 0).collect();
        rows.push(draw(&mut random, &ROWS));
        for _ in 0..600 {
            let row = draw(&mut random, &rows);
            let newest_of_row = all.iter().filter(|(of, ..)| of == row).map(|(.., at)| *at).max().unwrap_or(0);
            let at = match random.below(4) {
                0 if newest_of_row < last => newest_of_row + 1 + random.below((last - newest_of_row) as u64) as i64,
                _ => {
                    last += 1 + random.below(5) as i64;
                    last
                }
            };
            let mut put = |column: &[u8], value: Option<Bytes>| {
                world.tree.tree.put(cell::encode(row, column).into(), Timestamp(at), value);
                all.insert((row.to_vec(), column.to_vec(), at));
            };
            if random.below(8) == 0 {
                put(b"", None);
            }
            for _ in 0..random.below(3) {
                let value = (random.below(3) > 0).then(|| vec![7; random.below(60) as usize].into());
                put(draw(&mut random, &COLUMNS), value);
            }
            match random.below(40) {
                0 => world.tree.freeze_and_note(),
                1 => {
                    let room = (last - world.watermark.0) as u64;
                    world.watermark = Timestamp(world.watermark.0 + random.below(room + 1) as i64);
                }
                2..10 => world.work(&mut random),
                _ => {}
            }
            let view = world.tree.tree.view();
            let (range, holds) = random_range(&mut random);
            let age_max = 1 << random.below(12);
            let since = world.watermark.0.max(last - random.below(age_max) as i64);
            let of_range = || all.iter().filter(|(row, ..)| holds(row));
            let newer: Vec<i64> = of_range().map(|(.., at)| *at).filter(|at| *at > since).collect();
            // The search steps over at most eight versions of each key in each source.
            let sources = view.memtables().count() + view.sstables().count();
            let keys =
                of_range().map(|(row, column, _)| (row, column)).collect::<std::collections::BTreeSet<_>>().len();
            let enough = 8 * keys * sources;
            let steps_max = if random.below(3) == 0 { random.below(1 + enough as u64) as usize } else { enough };
            match view.changed_since(&range, Timestamp(since), &mut { steps_max }, Io::Allowed).expect("a working disk")
            {
                Changed::No => {
                    found[0] += 1;
                    assert_eq!(newer, [], "seed {seed}: {range:?} has changed since {since}");
                }
                Changed::At(at) => {
                    found[1] += 1;
                    assert!(newer.contains(&at.0), "seed {seed}: {at} in {range:?} since {since}");
                }
                Changed::TooManyVersions => {
                    found[2] += 1;
                    assert!(steps_max < enough, "seed {seed}: {keys} keys in {sources} sources");
                }
            }
        }
    }
    assert!(found.iter().all(|count| *count > 100), "each answer occurs: {found:?}");
}
