//! Tests that an SSTable is the same on every disk, and is not confused with another one.

use base::codec::Wire as _;

use super::*;
use crate::shipping;

#[test]
fn sstable_opens_under_new_name() {
    let (disk, model) = (disk(), random_model(&mut SplitMix64::new(1), 100));
    let meta = write(&disk, ID, SMALL, &model).unwrap();
    let whole = read_whole(&disk, &ID.path(), u64::MAX).unwrap().unwrap();
    let there = SstableId { number: 99, ..ID };
    disk.create(&there.path(), OpenOptions::BUFFERED).unwrap().write_at(0, &whole).unwrap();
    let named = SstableRef::new(there, 1, &meta);
    let sstable = Sstable::open(&disk, &named, row).unwrap();
    assert_eq!((sstable.id(), sstable.meta().origin.id), (there, ID));
    sstable.verify().unwrap();
    compare_all(&sstable, &BlockCache::new(0), &versions(&model));
    for other in [SstableRef { checksum: named.checksum ^ 1, ..named }, SstableRef { bytes: named.bytes + 1, ..named }]
    {
        assert!(matches!(Sstable::open(&disk, &other, row), Err(SstableError::Damaged { .. })));
    }
    assert_eq!(named.to_bytes().len(), SstableRef::BYTES);
    assert_eq!(SstableRef::from_bytes(named.to_bytes()), Ok(named));
}

#[test]
fn sstable_transfer_is_atomic() {
    let (ours, model) = (disk(), random_model(&mut SplitMix64::new(1), 200));
    let meta = write(&ours, ID, SMALL, &model).unwrap();
    let sstable = open(&ours, &meta).unwrap();
    let send = |theirs: &MemoryDisk, change: &dyn Fn(u64, Bytes) -> Bytes| {
        let named = SstableRef::new(SstableId { number: 99, ..ID }, 2, &meta);
        for offset in (0..meta.bytes).step_by(1_000) {
            let bytes = change(offset, sstable.read_raw(offset, 1_000)?);
            shipping::write_part(theirs, named.id, offset, &bytes)?;
        }
        let sstable = Sstable::open(theirs, &named, row)?;
        sstable.verify().map(|()| sstable)
    };
    let theirs = disk();
    let taken = send(&theirs, &|_, bytes| bytes).unwrap();
    compare_all(&taken, &BlockCache::new(0), &versions(&model));
    let whole = |disk: &MemoryDisk, path: &str| read_whole(disk, path, u64::MAX).unwrap();
    assert_eq!(whole(&theirs, "0/tables/3-99"), whole(&ours, &ID.path()));
    for damaged in 0..meta.bytes.div_ceil(1_000) {
        let theirs = disk();
        let change = |offset, bytes: Bytes| match offset == damaged * 1_000 {
            true => bytes.iter().map(|byte| byte ^ 4).collect(),
            false => bytes,
        };
        assert!(matches!(send(&theirs, &change), Err(SstableError::Damaged { .. })));
    }
}
