//! Tests that checkpoints are atomic, and that all damage is detected.

use super::*;
use crate::files::{File, OpenOptions};
use crate::memory::MemoryDisk;
use crate::testing::{crash_everywhere, identity};

const META: CheckpointMeta = CheckpointMeta {
    cohort: CohortId(3),
    lsn: Lsn { epoch: Epoch(2), sequence: Sequence(9) },
    timestamp: Timestamp(5),
};

fn chunks() -> Vec<Bytes> {
    vec![Bytes::from_static(b"one"), Bytes::new(), vec![7; 1000].into(), Bytes::from_static(b"four")]
}

fn disk() -> MemoryDisk {
    let disk = MemoryDisk::new();
    disk.create_dir(DIRECTORY).unwrap();
    disk.sync_dir(crate::SHARD_DIRECTORY).unwrap();
    disk
}

fn write(disk: &MemoryDisk) -> Result<u64, FileError> {
    write_checkpoint(disk, &identity().owner(), &META, chunks().into_iter())
}

fn read(disk: &MemoryDisk) -> Result<Vec<Bytes>, CheckpointError> {
    read_checkpoint(disk, &identity().owner(), &META)
}

#[test]
fn checkpoint_write_is_atomic() {
    let bytes = write(&disk()).unwrap();
    assert_eq!(bytes, 4096 + 1007 + 4 * 9 + 17);
    crash_everywhere(
        disk,
        |disk| write(disk).map(|_| ()),
        |disk| assert!(read(disk) == Err(CheckpointError::Missing) || read(disk) == Ok(chunks())),
    );
}

#[test]
fn detects_bit_flips_and_truncation() {
    let pristine = disk();
    let bytes = write(&pristine).unwrap();
    for offset in (0..76).chain(4096..bytes) {
        let disk = disk();
        write(&disk).unwrap();
        disk.flip_bit(&META.path(), offset, (offset % 8) as u8);
        assert!(read(&disk).is_err(), "byte {offset}");
    }
    let whole = read_whole(&pristine, &META.path(), u64::MAX).unwrap().unwrap();
    for length in 0..whole.len() {
        let disk = disk();
        disk.create(&META.path(), OpenOptions::BUFFERED).unwrap().write_at(0, &whole[..length]).unwrap();
        assert!(read(&disk).is_err(), "{length} bytes");
    }
}

#[test]
fn removes_only_superseded_or_unnamed() {
    let disk = disk();
    for (cohort, sequence) in [(1, 5), (1, 7), (1, 9), (2, 5)] {
        let meta = CheckpointMeta { cohort: CohortId(cohort), lsn: Lsn::new(1, sequence), ..META };
        write_checkpoint(&disk, &identity().owner(), &meta, std::iter::empty()).unwrap();
    }
    disk.create("0/checkpoints/1-1.11.new", OpenOptions::BUFFERED).unwrap();
    let superseded = BTreeMap::from([(CohortId(1), Lsn::new(1, 9))]);
    remove(&disk, &superseded, &BTreeSet::from([CohortId(2)])).unwrap();
    assert_eq!(disk.list(DIRECTORY).unwrap(), ["1-1.11.new", "1-1.5", "1-1.7"]);
    let keep = BTreeMap::from([(CohortId(1), Lsn::new(1, 7))]);
    remove_unnamed(&disk, &keep).unwrap();
    assert_eq!(disk.list(DIRECTORY).unwrap(), ["1-1.7"]);
}
