//! Tests that a damaged SSTable causes errors or right answers, for readers and compactions.

use super::world::named;
use super::*;
use crate::files::{FileErrorKind, Files, read_whole};

fn is_seen(error: &SstableError) -> bool {
    matches!(error, SstableError::Damaged { .. } | SstableError::OtherFormat(_))
}

/// SSTables in a few levels, with pending compactions.
fn several_sstables(seed: u64) -> World {
    let mut world = World::new(1);
    let mut random = SplitMix64::new(seed);
    for _ in 0..120 {
        world.write(Write::random(&mut random, 15));
        (0..4).for_each(|_| world.work(&mut random));
    }
    world.settle();
    for _ in 0..3 {
        for _ in 0..10 {
            world.write(Write::random(&mut random, 15));
        }
        world.flush_all();
    }
    let disk = world.disk.clone();
    world.tree.name_sstables(&disk).unwrap();
    world
}

/// Reads everything of a tree with a damaged SSTable, then compacts it.
fn check_damaged(world: &World) {
    let (refs, _) = named(&world.disk);
    let ids = refs.iter().map(|named| named.id);
    sstable::remove_unnamed(&world.disk, &ids.collect()).unwrap();
    let mut tree = match Tree::open(&world.disk, world.fresh_site(), &refs, &mut OpenSstables::new()) {
        Ok(tree) => tree,
        Err(error) => return assert!(is_seen(&error), "{error}"),
    };
    let (view, at) = (tree.view(), world.model.last());
    let expected = world.model.visible(at);
    for (row, column, timestamp, value) in &expected {
        match view.newest(row, column, at, Io::Allowed) {
            Ok(found) => assert_eq!(found, Some((*timestamp, Bytes::copy_from_slice(value)))),
            Err(error) => assert!(is_seen(&error)),
        }
    }
    for direction in [Direction::Forwards, Direction::Backwards] {
        let mut expected: Vec<_> = expected.clone();
        if direction == Direction::Backwards {
            expected.reverse();
        }
        let mut expected = expected.into_iter();
        let is_whole = view.cells(Range::all(), direction, at, Io::Allowed).all(|cell| match cell {
            Ok(cell) => Some(model::visible(cell)) == expected.next(),
            Err(error) => {
                expected.by_ref().for_each(drop);
                is_seen(&error)
            }
        });
        assert!(is_whole && expected.next().is_none());
    }
    while let Some(mut job) = tree.pick_compaction(world.watermark, &Range::all()) {
        loop {
            match job.step(&world.disk) {
                Ok(JobStep::Working { .. }) => {}
                Ok(JobStep::Done(outputs)) => break tree.compacted(&outputs),
                Err(JobError::Sstable(error)) => return assert!(is_seen(&error)),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn bit_flips_never_give_wrong_answers() {
    let mut random = SplitMix64::new(9);
    for seed in 0..2 {
        let world = several_sstables(seed);
        assert!(world.tree.tree.level_sizes().iter().filter(|(sstables, _)| *sstables > 0).count() > 2);
        let paths = world.disk.paths();
        for path in paths.iter().filter(|path| path.starts_with(sstable::DIRECTORY)) {
            let bytes = read_whole(&world.disk, path, u64::MAX).unwrap().unwrap().len() as u64;
            for _ in 0..40 {
                let (offset, bit) = (random.below(bytes), random.below(8) as u8);
                assert!(world.disk.flip_bit(path, offset, bit));
                check_damaged(&world);
                assert!(world.disk.flip_bit(path, offset, bit));
            }
        }
        check_damaged(&world);
    }
}

#[test]
fn failed_compaction_leaves_no_files() {
    let mut world = several_sstables(3);
    let before = world.disk.list(sstable::DIRECTORY).unwrap();
    let newest = world.tree.tree.refs()[0].id.path();
    assert!(world.disk.flip_bit(&newest, 30, 3));
    world.reopen();
    let disk = world.disk.clone();
    let error = loop {
        match world.tree.compaction_step(&disk, world.watermark) {
            Ok(is_working) => assert!(is_working, "the damaged SSTable must be compacted"),
            Err(error) => break error,
        }
    };
    let JobError::Sstable(SstableError::Damaged { path, .. }) = error else { panic!("{error}") };
    assert_eq!(path, newest);
    let left: Vec<_> = disk.list(sstable::DIRECTORY).unwrap();
    assert!(
        before.contains(&newest[sstable::DIRECTORY.len() + 1..].to_owned())
            && left.iter().all(|name| before.contains(name))
    );
}

#[test]
fn failed_fsync_is_fatal() {
    let mut world = World::new(1);
    world.write(Write { puts: vec![(b"row".to_vec(), b"c".to_vec(), Some(vec![1]))], deleted_row: None });
    world.tree.freeze_and_note();
    world.disk.fail_syncs(1, &mut SplitMix64::new(1));
    let (disk, before) = (world.disk.clone(), world.disk.counters());
    let error = world.tree.flush_step(&disk, world.watermark).unwrap_err();
    assert!(matches!(&error, JobError::File(error) if error.kind == FileErrorKind::Other));
    let after = disk.counters();
    assert_eq!((after.syncs, after.operations), (before.syncs + 1, before.operations + 3), "create, write, force");
}
