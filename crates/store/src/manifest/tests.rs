//! Tests that the hard state survives a crash at every operation, and a damaged byte in either place.

use super::*;
use crate::memory::MemoryDisk;
use crate::sstable::SstableId;
use crate::testing::{crash_everywhere, identity};
use base::codec::testing::check_golden;
use base::{Epoch, Incarnation, Member, Membership, SplitMix64};

fn starts(count: u64) -> StartHistory {
    let mut starts = StartHistory::default();
    (0..count).for_each(|nonce| starts.add(nonce));
    starts
}

fn manifest(version: u64, cohorts: u32) -> Manifest {
    let cohort = |id: u32| CohortManifest {
        promised: Promise {
            epoch: Epoch(version),
            candidate: Some(Member { node: NodeId(id), incarnation: Incarnation(version) }),
        },
        checkpoint: id.is_multiple_of(2).then_some(CheckpointRef {
            lsn: Lsn::new(version, 5),
            timestamp: Timestamp(-1),
            bytes: 9,
        }),
        sstables: (0..u64::from(id % 4))
            .map(|number| SstableRef {
                id: SstableId { cohort: CohortId(id), number },
                level: 1,
                bytes: 7,
                checksum: id,
            })
            .collect(),
        membership: Membership::of(vec![Member { node: NodeId(id), incarnation: Incarnation(1) }]).into(),
        doubtful: id.is_multiple_of(3),
        is_retired: id.is_multiple_of(5),
        whole: id.is_multiple_of(7),
    };
    Manifest {
        version,
        starts: starts(version),
        peers: (1..=cohorts).map(|id| (NodeId(id), starts(version + u64::from(id)).newest())).collect(),
        segment_bytes: 1 << 16,
        oldest_segment: version,
        log_end: LogPosition(version << 20),
        doubt_unknown: version.is_multiple_of(2),
        cohorts: (1..=cohorts).map(|id| (CohortId(id), cohort(id))).collect(),
    }
}

fn write_both(disk: &MemoryDisk, manifest: Manifest) -> Result<(), FileError> {
    let write = Places::open(disk, identity().owner())?.write(manifest);
    write.write_place(0)?;
    write.write_place(1)
}

fn disk_with(manifest: Manifest) -> MemoryDisk {
    let disk = MemoryDisk::new();
    disk.create_dir(SHARD_DIRECTORY).unwrap();
    disk.sync_dir("").unwrap();
    write_both(&disk, manifest).unwrap();
    disk
}

fn read(disk: &MemoryDisk) -> Manifest {
    open(disk, identity().owner()).unwrap().0
}

#[test]
fn manifest_write_is_atomic() {
    for (before, after) in [(2, 3), (1, 400), (400, 1)] {
        crash_everywhere(
            || disk_with(manifest(1, before)),
            |disk| write_both(disk, manifest(2, after)),
            |disk| {
                let found = read(disk);
                assert!(found == manifest(1, before) || found == manifest(2, after));
            },
        );
    }
}

#[test]
fn repair_is_crash_safe() {
    let half_written = || {
        let disk = disk_with(manifest(1, 3));
        let write = Places::open(&disk, identity().owner()).unwrap().write(manifest(2, 3));
        write.write_place(0).unwrap();
        disk
    };
    crash_everywhere(
        half_written,
        |disk| open(disk, identity().owner()).map(|_| ()),
        |disk| {
            assert_eq!(read(disk), manifest(2, 3), "a recovered manifest is recovered again");
            assert!(!open(disk, identity().owner()).unwrap().2, "both places are intact");
        },
    );
}

#[test]
fn repairs_one_damaged_copy_but_not_both() {
    let mut random = SplitMix64::new(3);
    let length = manifest(2, 3).encode(&identity().owner(), 0).len() as u64;
    for _ in 0..500 {
        let disk = disk_with(manifest(2, 3));
        let (place, offset) = (random.below(2) as usize, random.below(length));
        disk.flip_bit(PLACES[place], offset, random.below(8) as u8);
        assert_eq!(read(&disk), manifest(2, 3));
        disk.flip_bit(PLACES[1 - place], 40, 1);
        assert_eq!(read(&disk), manifest(2, 3), "the first place was repaired before");
    }
    let disk = disk_with(manifest(2, 3));
    disk.flip_bit(PLACES[0], 40, 1);
    disk.flip_bit(PLACES[1], 41, 1);
    assert!(matches!(open(&disk, identity().owner()), Err(StoreError::Lost { .. })));
}

#[test]
fn rejects_copy_of_other_place_or_owner() {
    let disk = disk_with(manifest(2, 3));
    let owner = identity().owner();
    let other = Owner { incarnation: Incarnation(1), ..owner };
    assert!(matches!(open(&disk, other), Err(StoreError::Lost { .. })));
    let misdirected = manifest(9, 1).encode(&owner, 0);
    disk.open(PLACES[1], OpenOptions::BUFFERED).unwrap().write_at(0, &misdirected).unwrap();
    assert_eq!(read(&disk), manifest(2, 3));
}

#[test]
fn fuzz_manifest_under_valid_seal() {
    let mut random = SplitMix64::new(4);
    let good = unseal(MAGIC, &manifest(2, 3).encode(&identity().owner(), 0)).unwrap();
    for _ in 0..20_000 {
        let mut content = good.to_vec();
        for _ in 0..=random.below(4) {
            let at = random.below(content.len() as u64) as usize;
            content[at] = random.draw() as u8;
        }
        content.truncate(random.below(content.len() as u64 + 1) as usize);
        let _ = Manifest::decode(content.into(), 0);
    }
}

#[test]
fn golden_manifests() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/manifest/golden.txt");
    let owner = identity().owner();
    let content = |manifest: &Manifest| unseal(MAGIC, &manifest.encode(&owner, 1)).unwrap();
    let decode = |content| Manifest::decode(content, 1).map(|(_, manifest)| manifest);
    check_golden(path, &[manifest(0, 0), manifest(2, 7)], content, decode);
}
