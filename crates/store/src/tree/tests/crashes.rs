//! Tests power loss between any two file operations of flushes and compactions: named SSTables remain complete.

use super::world::formatted;
use super::*;

/// Writes, flushes, compacts and names SSTables, until the disk crashes.
fn attempt(world: &mut World, random: &mut SplitMix64, writes: u64) -> Result<(), JobError> {
    for _ in 0..writes {
        world.write(Write::random(random, 20));
        let (disk, watermark) = (world.disk.clone(), world.watermark);
        match random.below(4) {
            0 => drop(world.tree.flush_step(&disk, watermark)?),
            1 | 2 => drop(world.tree.compaction_step(&disk, watermark)?),
            _ => world.tree.name_sstables(&disk)?,
        }
        if random.below(20) == 0 {
            world.raise_watermark(random);
        }
    }
    Ok(())
}

#[test]
fn power_loss_at_every_operation() {
    let mut random = SplitMix64::new(1);
    for operation in 1.. {
        let mut world = World::new(1);
        world.disk.crash_after_operations(operation);
        // The same operations every time, with a crash one operation later.
        let outcome = attempt(&mut world, &mut SplitMix64::new(7), 300);
        for _ in 0..2 {
            world.crash(&mut random);
            world.check_whole();
        }
        if outcome.is_ok() {
            assert!(operation > 200, "too few operations: {operation}");
            return;
        }
        world.settle();
        world.check_whole();
    }
}

#[test]
fn repeated_power_loss() {
    for seed in 0..60 {
        crash_campaign(seed);
    }
}

pub(super) fn crash_campaign(seed: u64) {
    let mut random = SplitMix64::new(seed);
    let mut world = World::new(1);
    for _ in 0..15 {
        world.disk.crash_after_operations(1 + random.below(40));
        let _ = attempt(&mut world, &mut random, 150);
        world.crash(&mut random);
        world.check_whole();
    }
}

#[test]
fn crash_leftover_sstables_are_removed() {
    crash_everywhere(
        formatted,
        |disk| {
            let mut world = World::on(disk.clone());
            attempt(&mut world, &mut SplitMix64::new(2), 60)
        },
        |disk| {
            let (refs, _) = super::world::named(disk);
            let ids = refs.iter().map(|named| named.id);
            sstable::remove_unnamed(disk, &ids.collect()).unwrap();
            assert_eq!(disk.paths().iter().filter(|path| path.contains('/')).count(), refs.len());
        },
    );
}
