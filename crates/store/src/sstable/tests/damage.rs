//! Tests that relevant damage to an SSTable is detected, and that none causes harm.

use super::*;
use crate::sstable::block::BlockCursor;
use crate::sstable::frame::{Handle, Kind};

/// A few data blocks, two index blocks, some of them compressed.
fn small_model() -> Model {
    let entry = |number: u64| {
        let value = match number % 4 {
            0 => None,
            1 => Some(Bytes::from(vec![number as u8; 40])),
            _ => Some(Bytes::copy_from_slice(&SplitMix64::new(number).draw().to_le_bytes())),
        };
        let key = format!("row{:02}/c{}", number / 2, number % 2).into_bytes();
        ((key, Reverse(Timestamp(100 - number as i64))), value)
    };
    (0..30).map(entry).collect()
}

const TINY: Config = Config { block_bytes: 64, filter_bits_per_key: 10 };

fn content(disk: &MemoryDisk, path: &str) -> Vec<u8> {
    read_whole(disk, path, u64::MAX).unwrap().unwrap().to_vec()
}

/// A disk with these bytes as the SSTable.
fn with_content(id: SstableId, bytes: &[u8]) -> MemoryDisk {
    let disk = disk();
    disk.create(&id.path(), OpenOptions::BUFFERED).unwrap().write_at(0, bytes).unwrap();
    disk
}

fn is_seen<T>(result: &Result<T, SstableError>) -> bool {
    matches!(result, Err(SstableError::Damaged { .. } | SstableError::OtherFormat(_)))
}

/// Checks that a result is right or reports damage.
fn right_or_seen<T: PartialEq>(found: &Result<T, SstableError>, expected: &T) {
    assert!(is_seen(found) || found.as_ref() == Ok(expected));
}

/// The statistics of the undamaged SSTable.
fn small_meta() -> SstableMeta {
    write(&disk(), ID, TINY, &small_model()).unwrap()
}

/// Reads a damaged SSTable: each answer must be right or report damage, and verification must report damage.
fn check_damaged(disk: &MemoryDisk, model: &[Version]) {
    let sstable = match open(disk, &small_meta()) {
        Ok(sstable) => sstable,
        Err(error) => return assert!(is_seen::<()>(&Err(error))),
    };
    assert!(is_seen(&sstable.verify()));
    let cache = BlockCache::new(1 << 20);
    for version in model {
        right_or_seen(&sstable.newest(&version.key, version.timestamp, through(&cache)), &Some(version.clone()));
    }
    right_or_seen(&sstable.newest(b"row05/c2", Timestamp(0), through(&cache)), &None);
    for is_forward in [true, false] {
        let mut cursor = sstable.cursor(through(&cache));
        let mut moved = if is_forward { cursor.seek_to_first() } else { cursor.seek_to_last() };
        let mut expected: Box<dyn Iterator<Item = &Version>> =
            if is_forward { Box::new(model.iter()) } else { Box::new(model.iter().rev()) };
        while moved.is_ok() {
            let Some(version) = expected.next() else { break };
            assert_eq!(cursor.version().as_ref(), Some(version));
            moved = if is_forward { cursor.next() } else { cursor.previous() };
        }
        assert!(moved.is_ok() || is_seen(&moved));
        assert_eq!(cursor.current(), None);
    }
}

#[test]
fn detects_every_bit_flip() {
    let model = small_model();
    let pristine = disk();
    let meta = write(&pristine, ID, TINY, &model).unwrap();
    let (model, whole) = (versions(&model), content(&pristine, &ID.path()));
    assert_eq!(whole.len() as u64, meta.bytes);
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        check_damaged(&with_content(ID, &damaged), &model);
    }
}

#[test]
fn detects_wrong_sstable_length() {
    let pristine = disk();
    let meta = write(&pristine, ID, TINY, &small_model()).unwrap();
    let whole = content(&pristine, &ID.path());
    for length in 0..whole.len() {
        assert!(is_seen(&open(&with_content(ID, &whole[..length]), &meta)), "{length} bytes");
    }
    for extra in [&b"\0"[..], &whole[whole.len() - 200..], &whole] {
        assert!(is_seen(&open(&with_content(ID, &[&whole, extra].concat()), &meta)));
        assert!(is_seen(&open(&with_content(ID, &[extra, &whole].concat()), &meta)));
    }
}

#[test]
fn detects_truncation_while_open() {
    let model = versions(&small_model());
    let disk = disk();
    let meta = write(&disk, ID, TINY, &small_model()).unwrap();
    let mut sstable = open(&disk, &meta).unwrap();
    let cut = disk.create("0/tables/cut", OpenOptions::BUFFERED).unwrap();
    cut.write_at(0, &content(&disk, &ID.path())[..100]).unwrap();
    sstable.source.file = std::sync::Arc::new(cut);
    assert!(is_seen(&sstable.newest(&model[29].key, model[29].timestamp, through(&BlockCache::new(0)))));
}

#[test]
fn verify_detects_wrong_filter() {
    let disk = disk();
    let meta = write(&disk, ID, TINY, &small_model()).unwrap();
    let sstable = Sstable::open(&disk, &SstableRef::new(ID, 0, &meta), |key| key.len()).unwrap();
    assert!(is_seen(&sstable.verify()));
}

#[test]
fn other_format_is_not_damage() {
    let disk = disk();
    let meta = write(&disk, ID, TINY, &small_model()).unwrap();
    let mut other = content(&disk, &ID.path());
    let (format_at, footer_at) = (other.len() - 16, other.len() - footer_bytes(&other));
    other[format_at] += 1;
    let sum = base::checksum(&other[footer_at..format_at + 4]);
    other[format_at + 4..format_at + 8].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(open(&with_content(ID, &other), &meta).err(), Some(SstableError::OtherFormat(crate::FORMAT + 1)));
}

fn footer_bytes(whole: &[u8]) -> usize {
    super::footer::Footer::bytes(whole).unwrap()
}

/// The handles of all data blocks.
fn data_blocks(sstable: &Sstable) -> Vec<Handle> {
    let mut found = Vec::new();
    let cache = BlockCache::new(0);
    let mut top = BlockCursor::new(sstable.top.clone());
    top.seek_to_first().unwrap();
    while let Some(entry) = top.current() {
        let block = sstable.block(index::handle(entry.value).unwrap(), Kind::Index, through(&cache)).unwrap();
        let mut entries = BlockCursor::new(block);
        entries.seek_to_first().unwrap();
        while let Some(entry) = entries.current() {
            found.push(index::handle(entry.value).unwrap());
            entries.next().unwrap();
        }
        top.next().unwrap();
    }
    found
}

#[test]
fn rejects_misplaced_blocks() {
    let disk = disk();
    let model = small_model();
    let meta = write(&disk, ID, TINY, &model).unwrap();
    let other = SstableId { number: 8, ..ID };
    write(&disk, other, TINY, &model).unwrap();
    let (ours, theirs) = (content(&disk, &ID.path()), content(&disk, &other.path()));
    let blocks = data_blocks(&open(&disk, &meta).unwrap());
    let range = |block: Handle| block.offset as usize..block.end().unwrap() as usize;
    let model = versions(&model);
    let mut pairs = 0;
    for to in &blocks {
        let mut damaged = ours.clone();
        damaged[range(*to)].copy_from_slice(&theirs[range(*to)]);
        check_damaged(&with_content(ID, &damaged), &model);
        for from in blocks.iter().filter(|from| *from != to && from.length == to.length) {
            damaged[range(*to)].copy_from_slice(&ours[range(*from)]);
            check_damaged(&with_content(ID, &damaged), &model);
            pairs += 1;
        }
    }
    assert!(pairs > 0, "some blocks have equal lengths");
}
