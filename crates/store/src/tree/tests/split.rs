//! Tests that two trees share their SSTables after a split, and that each drops the other's data.

use super::*;
use crate::sstable::Version;

fn versions(tree: &Tree, range: &Range, watermark: Timestamp) -> Vec<Version> {
    let view = tree.view();
    let all = view.versions(range.clone(), watermark, Timestamp(i64::MAX), Io::Allowed);
    all.collect::<Result<_, _>>().unwrap()
}

/// Flushes and compacts until there is no more work.
fn drive(tree: &mut Tree, disk: &crate::memory::MemoryDisk, watermark: Timestamp, range: &Range) {
    while let Some(mut job) = tree.flush_job(watermark, range) {
        loop {
            if let JobStep::Done(outputs) = job.step(disk).unwrap() {
                break tree.flushed(&outputs);
            }
        }
    }
    while let Some(mut job) = tree.pick_compaction(watermark, range) {
        loop {
            if let JobStep::Done(outputs) = job.step(disk).unwrap() {
                break tree.compacted(&outputs);
            }
        }
    }
}

#[test]
fn split_trees_share_files_until_unused() {
    let (mut world, mut random) = (World::new(1), SplitMix64::new(12));
    for _ in 0..600 {
        world.write(Write::random(&mut random, 300));
        world.work(&mut random);
    }
    world.settle();
    for _ in 0..30 {
        world.write(Write::random(&mut random, 300));
    }
    let (disk, watermark, middle) = (world.disk.clone(), world.watermark, b"row2");
    let site = Site { cohort: CohortId(9), numbers: SstableNumbers::default(), ..world.site() };
    let mut child = world.tree.tree.split_off(site);
    let shared: Vec<SstableId> = child.refs().iter().map(|named| named.id).collect();
    assert!(shared.len() > 4 && shared.iter().all(|id| id.cohort == world::COHORT));
    let given = Range::rows(middle, None);
    let kept = Range { start: Range::all().start, end: Some(given.start.clone()) };
    let mut leftovers = Leftovers::default();
    let mut is_first = true;
    for (tree, range) in [(&mut world.tree.tree, &kept), (&mut child, &given)] {
        let before = versions(tree, range, watermark);
        assert!(before.len() > 50, "{}", before.len());
        drive(tree, &disk, watermark, range);
        assert_eq!(versions(tree, range, watermark), before);
        for since in [watermark.0, world.model.last().0 - 200, world.model.last().0 - 10] {
            world.model.check_changed(&tree.view(), range, Timestamp(since), usize::MAX);
        }
        assert_eq!(versions(tree, &Range::all(), watermark), before, "the other side's data is gone");
        tree.forced(&tree.refs());
        leftovers.take_in(tree.give_up());
        let removable = leftovers.removable();
        // An SSTable within one side remains that side's.
        assert_eq!(removable.iter().any(|id| shared.contains(id)), !is_first, "the other tree still uses them");
        removable.iter().for_each(|id| disk.remove(&id.path()).unwrap());
        is_first = false;
    }
    let mut opened = OpenSstables::new();
    for (tree, range) in [(&world.tree.tree, &kept), (&child, &given)] {
        let again = Tree::open(&disk, Site { ..tree.site().clone() }, &tree.refs(), &mut opened).unwrap();
        assert_eq!(versions(&again, range, watermark), versions(tree, range, watermark));
    }
}
