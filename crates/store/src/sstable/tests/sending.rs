//! Tests that a table is the same on every disk, and is not confused with another one.

use super::*;
use crate::shipping;

#[test]
fn table_opens_under_new_name() {
    let (disk, model) = (disk(), random_model(&mut SplitMix64::new(1), 100));
    let meta = write(&disk, ID, SMALL, &model).unwrap();
    let whole = read_whole(&disk, &ID.path(), u64::MAX).unwrap().unwrap();
    let there = TableId { number: 99, ..ID };
    disk.create(&there.path(), OpenOptions::BUFFERED).unwrap().write_at(0, &whole).unwrap();
    let named = TableRef::new(there, 1, &meta);
    let table = Table::open(&disk, &named, row).unwrap();
    assert_eq!((table.id(), table.meta().origin.id), (there, ID));
    table.verify().unwrap();
    compare_all(&table, &BlockCache::new(0), &versions(&model));
    for other in [TableRef { checksum: named.checksum ^ 1, ..named }, TableRef { bytes: named.bytes + 1, ..named }] {
        assert!(matches!(Table::open(&disk, &other, row), Err(TableError::Damaged { .. })));
    }
    let mut out = Writer::new();
    named.encode(&mut out);
    assert_eq!(out.len(), TableRef::BYTES);
    assert_eq!(TableRef::decode(&mut Reader::new(out.finish())), Ok(named));
}

#[test]
fn table_transfer_is_atomic() {
    let (ours, model) = (disk(), random_model(&mut SplitMix64::new(1), 200));
    let meta = write(&ours, ID, SMALL, &model).unwrap();
    let table = open(&ours, &meta).unwrap();
    let send = |theirs: &MemoryDisk, change: &dyn Fn(u64, Bytes) -> Bytes| {
        let named = TableRef::new(TableId { number: 99, ..ID }, 2, &meta);
        for offset in (0..meta.bytes).step_by(1_000) {
            let bytes = change(offset, table.read_raw(offset, 1_000)?);
            shipping::write_part(theirs, named.id, offset, &bytes)?;
        }
        let table = Table::open(theirs, &named, row)?;
        table.verify().map(|()| table)
    };
    let theirs = disk();
    let taken = send(&theirs, &|_, bytes| bytes).unwrap();
    compare_all(&taken, &BlockCache::new(0), &versions(&model));
    let whole = |disk: &MemoryDisk, path: &str| read_whole(disk, path, u64::MAX).unwrap();
    assert_eq!(whole(&theirs, "tables/3-99"), whole(&ours, &ID.path()));
    for damaged in 0..meta.bytes.div_ceil(1_000) {
        let theirs = disk();
        let change = |offset, bytes: Bytes| match offset == damaged * 1_000 {
            true => bytes.iter().map(|byte| byte ^ 4).collect(),
            false => bytes,
        };
        assert!(matches!(send(&theirs, &change), Err(TableError::Damaged { .. })));
    }
}
