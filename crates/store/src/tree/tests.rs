//! Tests that a tree equals a sorted map of versions, after any flushes, compactions, crashes and restarts.

use base::SplitMix64;

use super::*;
use crate::cell::Range;
use crate::handles::HandleCache;
use crate::shipping;
use crate::sstable::Io;
use crate::testing::crash_everywhere;

#[cfg(feature = "canary")]
mod canary;
mod changed;
mod crashes;
mod damage;
mod model;
mod oracle;
mod split;
mod threads;
mod world;

use model::{Model, Write, row_name};
use world::World;

/// Random operations, compared with the model from time to time.
fn campaign(seed: u64, steps: u64) {
    let mut random = SplitMix64::new(seed);
    let mut world = World::new(random.below(3) + 1);
    let rows = [3, 20, 300][seed as usize % 3];
    for step in 0..steps {
        match random.below(100) {
            0 => world.reopen(),
            1..4 => world.raise_watermark(&mut random),
            4 => world.tree.freeze_and_note(),
            5..20 => world.work(&mut random),
            20 if step % 3 == 0 => world.check(&mut random),
            _ => world.write(Write::random(&mut random, rows)),
        }
        world.tree.tree.invariants();
    }
    world.settle();
    world.check(&mut random);
    world.check_whole();
}

#[test]
fn tree_matches_sorted_map_model() {
    for seed in 0..60 {
        campaign(seed, 1_500);
    }
}

#[test]
fn levels_fill_and_dead_entries_are_dropped() {
    let mut world = World::new(1);
    let mut random = SplitMix64::new(1);
    for _ in 0..6_000 {
        world.write(Write::random(&mut random, 300));
        world.work(&mut random);
    }
    world.settle();
    world.check_whole();
    let entries = |world: &World| world.tree.tree.levels.sstables().map(|sstable| sstable.meta().entries).sum::<u64>();
    let (sizes, before) = (world.tree.tree.level_sizes(), entries(&world));
    assert!(sizes.iter().filter(|(sstables, _)| *sstables > 0).count() > 3, "{sizes:?}");
    world.watermark = world.model.last();
    world.settle();
    world.check_whole();
    let after = entries(&world);
    assert!(after < before / 2, "{after} of {before} versions remain");
    assert!(world.tree.tree.pick_compaction(world.watermark, &Range::all()).is_none(), "compactions end");
}

#[test]
fn byte_estimate_by_sstable_ends() {
    let world = World::with_rows(400);
    let tree = &world.tree.tree;
    let all: u64 = tree.level_sizes().iter().map(|(_, bytes)| bytes).sum();
    let key = |number: u64| crate::cell::encode(&row_name(number), b"");
    assert!(all > 0 && tree.bytes_ending(&key(0), &key(400)) == all);
    assert_eq!((tree.bytes_ending(&key(0), &key(399)) < all, tree.bytes_ending(&key(7), &key(7))), (true, 0));
    let parts = [0, 100, 250, 400].windows(2).map(|ends| tree.bytes_ending(&key(ends[0]), &key(ends[1])));
    assert_eq!(parts.collect::<Vec<_>>().iter().sum::<u64>(), all);
    assert_eq!(tree.bytes_ending(&key(300), &key(200)), 0);
}

#[test]
fn trivial_move_without_overlap() {
    let world = World::with_rows(400);
    world.check_whole();
    let written: u64 = world.tree.tree.level_sizes().iter().map(|(_, bytes)| bytes).sum();
    let counted = world.disk.counters().bytes_written;
    assert!(counted < written * 2, "{counted} bytes written for {written}, including manifests");
}

#[test]
fn newest_sstables_merge_up_to_size_below() {
    let mut world = World::new(1);
    let put = |world: &mut World, rows: std::ops::Range<u64>| {
        for number in rows {
            world.write(Write::row(number));
        }
    };
    let of_level = |world: &World, level: usize| -> Vec<SstableId> {
        world.tree.tree.levels.level(level).iter().map(|sstable| sstable.id()).collect()
    };
    put(&mut world, 0..30);
    world.settle();
    put(&mut world, 0..30);
    world.settle();
    let below = of_level(&world, 1);
    assert!(!below.is_empty() && of_level(&world, 0).is_empty());
    let mut rounds = 0;
    while of_level(&world, 1) == below {
        for _ in 0..2 {
            // The first and the last row, so that every SSTable overlaps all others.
            put(&mut world, 0..3);
            put(&mut world, 29..30);
            world.flush_all();
        }
        world.settle();
        assert!(of_level(&world, 0).len() <= 1, "the newest were merged, or moved down");
        rounds += 1;
    }
    assert!((3..20).contains(&rounds), "{rounds}");
    world.check_whole();
}

#[test]
fn unreferenced_files_are_removed() {
    let mut world = World::new(1);
    let mut random = SplitMix64::new(3);
    for _ in 0..300 {
        world.write(Write::random(&mut random, 20));
    }
    world.settle();
    let (view, model, at) = (world.tree.tree.view(), world.model.clone(), world.model.last());
    let held: Vec<SstableId> = view.levels.sstables().map(|sstable| sstable.id()).collect();
    for _ in 0..600 {
        world.write(Write::random(&mut random, 20));
        world.work(&mut random);
    }
    world.settle();
    let disk = world.disk.clone();
    let names = || disk.list(sstable::DIRECTORY).unwrap();
    let is_there = |id: &SstableId| names().iter().any(|name| id.path().ends_with(&format!("/{name}")));
    assert!(held.iter().all(is_there), "files in use by a view remain");
    model.check_cells(&view, &Range::all(), at);
    let named = world.tree.tree.refs().len();
    assert!(names().len() > named);
    drop(view);
    world.remove();
    assert_eq!(names().len(), named);
}

#[test]
fn full_disk_only_delays_flush() {
    let mut world = World::new(1);
    let mut random = SplitMix64::new(4);
    for _ in 0..200 {
        world.write(Write::random(&mut random, 20));
    }
    world.tree.freeze_and_note();
    let used = world.disk.bytes_used();
    world.disk.set_capacity(Some(used + 300));
    let mut job = world.tree.tree.flush_job(world.watermark, &Range::all()).unwrap();
    let error = loop {
        match job.step(&world.disk) {
            Ok(JobStep::Working { .. }) => {}
            Ok(JobStep::Done(_)) => panic!("the disk was full"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, JobError::NoSpace(_)));
    assert_eq!(world.disk.bytes_used(), used, "the space was freed");
    world.tree.tree.flush_failed();
    world.disk.set_capacity(None);
    world.settle();
    world.check_whole();
}

#[test]
fn cache_only_read_reports_miss() {
    let mut world = World::new(1);
    let mut random = SplitMix64::new(5);
    for _ in 0..300 {
        world.write(Write::random(&mut random, 20));
    }
    world.settle();
    let at = world.model.last();
    let (row, column, ..) = world.model.visible(at).into_iter().next().unwrap();
    world.reopen();
    let view = world.tree.tree.view();
    let alone = || view.newest(&row, &column, at, Io::CacheOnly);
    let scan = |io| view.cells(Range::all(), Direction::Forwards, at, io).collect::<Result<Vec<_>, _>>();
    assert_eq!(alone(), Err(SstableError::NotCached));
    assert_eq!(scan(Io::CacheOnly), Err(SstableError::NotCached));
    let cells = scan(Io::Allowed).unwrap();
    world.disk.kill();
    assert!(alone().unwrap().is_some());
    assert_eq!(scan(Io::CacheOnly).unwrap(), cells);
}

#[test]
fn many_sstables_need_few_open_files() {
    let mut world = World::new(1);
    let mut random = SplitMix64::new(8);
    for _ in 0..800 {
        world.write(Write::random(&mut random, 100));
        world.work(&mut random);
    }
    world.settle();
    let files = HandleCache::new(world.disk.clone(), 2);
    let tree = Tree::open(&files, world.fresh_site(), &world.tree.tree.refs(), &mut OpenSstables::new()).unwrap();
    assert!(tree.refs().len() > 10);
    world.model.check_cells(&tree.view(), &Range::all(), world.model.last());
    assert_eq!(files.open_files(), 2);
}

#[test]
fn replayed_puts_are_idempotent() {
    let mut world = World::new(1);
    let mut random = SplitMix64::new(10);
    for _ in 0..200 {
        world.write(Write::random(&mut random, 20));
    }
    world.flush_all();
    world.apply_again(50);
    world.check_whole();
    world.settle();
    world.check_whole();
}

/// A version that is larger than a step of a job, and is in several of its sources, does not stop the job.
#[test]
fn large_version_in_several_sources() {
    let mut world = World::new(1);
    for _ in 0..2 {
        world.write(Write { puts: vec![(b"row".to_vec(), b"c".to_vec(), Some(vec![1; 2_000]))], deleted_row: None });
    }
    for _ in 0..2 {
        world.tree.freeze_and_note();
        world.apply_again(2);
    }
    let steps = |step: &mut dyn FnMut() -> bool| assert!((0..100).any(|_| !step()), "the job ends");
    steps(&mut || world.tree.flush_step(&world.disk, world.watermark).expect("a working disk"));
    world.tree.freeze_and_note();
    steps(&mut || world.tree.flush_step(&world.disk, world.watermark).expect("a working disk"));
    world.write(Write::row(1));
    world.tree.freeze_and_note();
    steps(&mut || world.tree.flush_step(&world.disk, world.watermark).expect("a working disk"));
    steps(&mut || world.tree.compaction_step(&world.disk, world.watermark).expect("a working disk"));
    world.check_whole();
}

#[test]
fn rejects_invalid_sstable_refs() {
    let mut world = World::new(1);
    for _ in 0..2 {
        world.write(Write { puts: vec![(b"row".to_vec(), b"c".to_vec(), Some(vec![1]))], deleted_row: None });
        world.flush_all();
    }
    let mut refs = world.tree.tree.refs();
    assert_eq!(refs.len(), 2);
    refs.iter_mut().for_each(|named| named.level = 1);
    assert_eq!(Tree::open(&world.disk, world.site(), &refs, &mut OpenSstables::new()).err(), Some(SstableError::Tree));
    refs.truncate(1);
    refs[0].level = LEVELS as u8;
    assert_eq!(Tree::open(&world.disk, world.site(), &refs, &mut OpenSstables::new()).err(), Some(SstableError::Tree));
    let missing = SstableRef { id: SstableId { number: 99, ..refs[0].id }, level: 0, ..refs[0] };
    assert_eq!(
        Tree::open(&world.disk, world.site(), &[missing], &mut OpenSstables::new()).err(),
        Some(SstableError::Missing)
    );
}

#[test]
fn tree_installs_sstables_of_other_replica() {
    let (mut ours, mut theirs, mut random) = (World::new(1), World::new(1), SplitMix64::new(6));
    for world in [&mut ours, &mut theirs] {
        for _ in 0..400 {
            world.write(Write::random(&mut random, 50));
            world.work(&mut random);
        }
    }
    theirs.settle();
    let (kept, kept_model) = (ours.tree.tree.view(), ours.model.clone());
    let mut taken = Vec::new();
    for (level, sstable) in theirs.tree.tree.view().sstables() {
        let number = ours.site().numbers.draw();
        let named = SstableRef::new(SstableId { cohort: world::COHORT, number }, level, sstable.meta());
        shipping::write_part(&ours.disk, named.id, 0, &sstable.read_raw(0, usize::MAX).unwrap()).unwrap();
        taken.push((level, Arc::new(Sstable::open(&ours.disk, &named, cell::row_prefix_bytes).unwrap())));
    }
    ours.take(taken, &theirs);
    ours.check_whole();
    kept_model.check_cells(&kept, &Range::all(), kept_model.last());
    drop(kept);
    ours.remove();
    assert_eq!(ours.disk.list(sstable::DIRECTORY).unwrap().len(), ours.tree.tree.refs().len());
    ours.reopen();
    ours.check_whole();
    for _ in 0..400 {
        ours.write(Write::random(&mut random, 50));
        ours.work(&mut random);
    }
    ours.settle();
    ours.check_whole();
}

#[test]
fn view_is_sync_and_jobs_are_send() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<View>();
    sent::<Tree>();
    sent::<FlushJob>();
    sent::<CompactionJob>();
    sent::<Outputs>();
}
