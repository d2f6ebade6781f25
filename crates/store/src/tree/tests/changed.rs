//! Tests of what a transaction relies on: whether keys have changed since a moment, versions that are added below the
//! newest timestamp, and rows that are deleted and written at one timestamp.

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
        world.tree.tree.view().changed_since(range, Timestamp(since), steps_max, Io::Allowed).expect("a working disk")
    };
    assert_eq!(changed(NO_LIMIT), changed(1_000), "the limit is higher");
    changed(NO_LIMIT)
}

/// Values, tombstones of cells, and tombstones of rows count, in memory and in SSTables.
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

/// A tombstone that is newer than the watermark stays, although nothing remains that it deletes.
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
        view.changed_since(range, Timestamp(100), steps_max, Io::Allowed).expect("a working disk")
    };
    assert_eq!(changed(&Range::all(), 9), Changed::At(Timestamp(110)), "nine versions precede it");
    assert_eq!(changed(&Range::all(), 8), Changed::TooManyVersions);
    let others = Range::rows(&row_name(0), Some(&row_name(9)));
    assert_eq!((changed(&others, 9), changed(&others, 8)), (Changed::No, Changed::TooManyVersions));
}

/// Old versions of a frequently written cell do not use up the limit, in memory and in an SSTable. Those of the cells
/// after it are found.
#[test]
fn limit_counts_few_versions_of_a_key() {
    let mut world = World::new(1);
    let last = 10_000;
    for timestamp in (10..=last).step_by(10) {
        world.tree.tree.put(cell::encode(b"hot", b"c").into(), Timestamp(timestamp), None);
    }
    let changed = |world: &World, range: &Range, since, steps_max| {
        let view = world.tree.tree.view();
        view.changed_since(range, Timestamp(since), steps_max, Io::Allowed).expect("a working disk")
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

/// A row that an SSTable does not hold is known from its filter, without a read.
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
        view.changed_since(&range, Timestamp(0), NO_LIMIT, Io::CacheOnly).is_err()
    };
    assert!((0..200).all(|number| is_read(2 * number)), "rows that exist are read");
    let read = (0..199).filter(|number| is_read(2 * number + 1)).count();
    assert!(read < 40, "{read} of 199 rows that do not exist are read");
}

/// The resolution of a transaction adds versions below the timestamps of other rows. They are the newest of their cells,
/// and are found wherever they are: in the same or a newer memtable, or in an SSTable whose newest timestamp is lower than
/// that of an older one.
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

/// A write that deletes a row and puts columns of it leaves only these columns, whether or not its versions are older
/// than the watermark, and in whichever sources they are.
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
