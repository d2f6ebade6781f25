//! Tests that an SSTable equals a sorted map of versions, is atomic across crashes, and is rejected when damaged.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use base::SplitMix64;

use super::*;
use crate::files::{File, OpenOptions, read_whole, replace};
use crate::identity::Owner;
use crate::memory::MemoryDisk;
use crate::testing::{crash_everywhere, identity};

mod damage;
mod sending;

type Model = BTreeMap<(Vec<u8>, Reverse<Timestamp>), Option<Bytes>>;

const ID: SstableId = SstableId { cohort: CohortId(3), number: 7 };

/// Small blocks: many of them, and index blocks with few entries.
const SMALL: Config = Config { block_bytes: 256, filter_bits_per_key: 10 };

fn owner() -> Owner {
    identity().owner()
}

/// The row ends at the first `/`.
fn row(key: &[u8]) -> usize {
    key.iter().position(|byte| *byte == b'/').unwrap_or(key.len())
}

fn disk() -> MemoryDisk {
    let disk = MemoryDisk::new();
    disk.create_dir(DIRECTORY).unwrap();
    disk.sync_dir(crate::SHARD_DIRECTORY).unwrap();
    disk
}

fn versions(model: &Model) -> Vec<Version> {
    let version = |((key, Reverse(timestamp)), value): (&(Vec<u8>, _), &Option<Bytes>)| Version {
        key: Bytes::copy_from_slice(key),
        timestamp: *timestamp,
        value: value.clone(),
    };
    model.iter().map(version).collect()
}

fn write(disk: &MemoryDisk, id: SstableId, config: Config, model: &Model) -> Result<SstableMeta, FileError> {
    let mut writer = SstableWriter::create(disk, &owner(), id, config, row)?;
    for version in &versions(model) {
        writer.push(version)?;
    }
    writer.finish(disk)
}

fn open(disk: &MemoryDisk, meta: &SstableMeta) -> Result<Sstable, SstableError> {
    Sstable::open(disk, &SstableRef::new(meta.origin.id, 0, meta), row)
}

fn through(cache: &BlockCache) -> Blocks<'_> {
    Blocks { cache, io: Io::Allowed }
}

/// An SSTable on its own disk.
fn sstable(config: Config, model: &Model) -> (MemoryDisk, Sstable) {
    let disk = disk();
    let meta = write(&disk, ID, config, model).unwrap();
    let sstable = open(&disk, &meta).unwrap();
    assert_eq!(*sstable.meta(), meta);
    sstable.verify().unwrap();
    (disk, sstable)
}

fn random_key(random: &mut SplitMix64) -> Vec<u8> {
    let mut key: Vec<u8> = (0..random.below(4)).map(|_| b"ab\xff\0"[random.below(4) as usize]).collect();
    if random.below(2) == 0 {
        key.extend_from_slice(format!("/column{}", random.below(20)).as_bytes());
    }
    if random.below(50) == 0 {
        key.resize(random.below(2_000) as usize, b'l');
    }
    key
}

fn random_value(random: &mut SplitMix64) -> Option<Bytes> {
    let length = match random.below(40) {
        0 => return None,
        1 => random.below(20_000),
        2 => 0,
        _ => random.below(100),
    };
    let is_regular = random.below(2) == 0;
    Some((0..length).map(|place| if is_regular { place as u8 / 16 } else { random.draw() as u8 }).collect())
}

fn random_timestamp(random: &mut SplitMix64) -> Timestamp {
    Timestamp(match random.below(20) {
        0 => i64::MAX,
        1 => i64::MIN,
        _ => random.below(30) as i64 - 10,
    })
}

fn random_model(random: &mut SplitMix64, entries: u64) -> Model {
    let entry = |_| ((random_key(random), Reverse(random_timestamp(random))), random_value(random));
    (0..entries).map(entry).collect()
}

/// Compares the SSTable with the model from a key and a timestamp on: the newest version, and some steps in both
/// directions.
fn compare_at(sstable: &Sstable, cache: &BlockCache, model: &[Version], key: &[u8], at: Timestamp) {
    let place = model.partition_point(|version| compare((&version.key, version.timestamp), (key, at)).is_lt());
    let newest = model.get(place).filter(|version| version.key == key);
    assert_eq!(sstable.newest(key, at, through(cache)).unwrap().as_ref(), newest);
    assert!(newest.is_none() || sstable.may_hold(&key[..row(key)]));
    for forward in [true, false] {
        let mut cursor = sstable.cursor(through(cache));
        cursor.seek(key, at).unwrap();
        let mut place = Some(place).filter(|place| *place < model.len());
        for _ in 0..40 {
            assert_eq!(cursor.version().as_ref(), place.map(|place| &model[place]));
            if forward {
                cursor.next().unwrap();
                place = place.map(|place| place + 1).filter(|place| *place < model.len());
            } else {
                cursor.previous().unwrap();
                place = place.and_then(|place| place.checked_sub(1));
            }
        }
    }
}

fn compare_all(sstable: &Sstable, cache: &BlockCache, model: &[Version]) {
    let mut cursor = sstable.cursor(through(cache));
    cursor.seek_to_first().unwrap();
    for version in model {
        assert_eq!(cursor.current(), Some(version.into()));
        cursor.next().unwrap();
    }
    assert_eq!(cursor.current(), None);
    cursor.seek_to_last().unwrap();
    for version in model.iter().rev() {
        assert_eq!(cursor.version().as_ref(), Some(version));
        cursor.previous().unwrap();
    }
    assert_eq!(cursor.current(), None);
}

fn check_meta(meta: &SstableMeta, model: &[Version]) {
    let timestamps = || model.iter().map(|version| version.timestamp);
    assert_eq!(meta.timestamps.0, timestamps().min().unwrap_or_default());
    assert_eq!(meta.timestamps.1, timestamps().max().unwrap_or_default());
    assert_eq!(meta.entries, model.len() as u64);
    assert_eq!(meta.tombstones, model.iter().filter(|version| version.value.is_none()).count() as u64);
    let is_of_row = |version: &&Version| version.value.is_none() && row(&version.key) == version.key.len();
    assert_eq!(meta.row_tombstones, model.iter().filter(is_of_row).count() as u64);
    let pairs = || model.iter().zip(model.iter().skip(1));
    assert_eq!(meta.superseded, pairs().filter(|(before, version)| before.key == version.key).count() as u64);
    assert_eq!(meta.first_key, model.first().map(|version| version.key.clone()).unwrap_or_default());
    assert_eq!(meta.last_key, model.last().map(|version| version.key.clone()).unwrap_or_default());
}

#[test]
fn sstable_matches_sorted_map_model() {
    for seed in 0..40 {
        let mut random = SplitMix64::new(seed);
        let entries = [0, 1, 3, 30, 300, 800][seed as usize % 6];
        let model = random_model(&mut random, entries);
        let config = Config { block_bytes: 64 << random.below(8), ..SMALL };
        let (_disk, sstable) = sstable(config, &model);
        let model = versions(&model);
        check_meta(sstable.meta(), &model);
        let capacity = [0, 1_000, 20_000, 1 << 30][random.below(4) as usize];
        let cache = BlockCache::new(capacity);
        for _ in 0..2 {
            compare_all(&sstable, &cache, &model);
            for _ in 0..100 {
                compare_at(&sstable, &cache, &model, &random_key(&mut random), random_timestamp(&mut random));
            }
            for version in model.iter().filter(|_| random.below(4) == 0) {
                compare_at(&sstable, &cache, &model, &version.key, version.timestamp);
            }
        }
        assert!(cache.bytes_held() <= capacity);
    }
}

#[test]
fn empty_sstable() {
    let (_disk, sstable) = sstable(Config::default(), &Model::new());
    let cache = BlockCache::new(1000);
    assert_eq!(sstable.newest(b"", Timestamp(0), through(&cache)), Ok(None));
    assert!(!sstable.may_hold(b"row"));
    compare_all(&sstable, &cache, &[]);
    check_meta(sstable.meta(), &[]);
}

#[test]
fn prefix_keys_are_distinct() {
    let keys = (0..200).map(|length| vec![b'a'; length]);
    let model: Model = keys.map(|key| ((key, Reverse(Timestamp(5))), Some(Bytes::new()))).collect();
    let (_disk, sstable) = sstable(SMALL, &model);
    let cache = BlockCache::new(10_000);
    for length in 0..220 {
        for at in [4, 5, 6, i64::MAX] {
            compare_at(&sstable, &cache, &versions(&model), &vec![b'a'; length], Timestamp(at));
        }
    }
}

#[test]
fn maximum_keys_and_values_fit() {
    let key = |last| [&vec![b'k'; KEY_BYTES_MAX - 1][..], &[last]].concat();
    let value = Bytes::from(vec![9; VALUE_BYTES_MAX]);
    let random: Bytes = { (0..100_000).scan(SplitMix64::new(1), |random, _| Some(random.draw() as u8)).collect() };
    let values = [Some(value), None, Some(random), Some(Bytes::new())];
    let entries = (0..40).map(|last| ((key(last), Reverse(Timestamp(1))), None));
    let mut model: Model = entries.collect();
    for (entry, value) in model.values_mut().step_by(9).zip(values) {
        *entry = value;
    }
    let (_disk, sstable) = sstable(Config::default(), &model);
    let cache = BlockCache::new(1 << 30);
    compare_all(&sstable, &cache, &versions(&model));
    let [first, second] =
        [(); 2].map(|()| sstable.newest(&key(0), Timestamp(1), through(&cache)).unwrap().unwrap().value.unwrap());
    assert_eq!(first.as_ptr(), second.as_ptr(), "both share one block");
    assert!(sstable.memory_bytes() < 6 * KEY_BYTES_MAX, "{}", sstable.memory_bytes());
}

#[test]
fn open_sstable_memory_is_small() {
    let keys = (0..50_000).map(|number| format!("row{number:08}/c").into_bytes());
    let model: Model = keys.map(|key| ((key, Reverse(Timestamp(5))), Some(vec![1; 8].into()))).collect();
    let (_disk, sstable) = sstable(Config::default(), &model);
    let filter = 50_000 * 10 / 8;
    assert!((filter..filter + 4_000).contains(&sstable.memory_bytes()), "{}", sstable.memory_bytes());
    let wrong = (50_000..150_000).filter(|number| sstable.may_hold(format!("row{number:08}").as_bytes())).count();
    assert!(wrong < 2_000, "{wrong} of 100000");
}

#[test]
fn reads_without_filter() {
    let mut random = SplitMix64::new(1);
    let model = random_model(&mut random, 300);
    let (_disk, sstable) = sstable(Config { filter_bits_per_key: 0, ..SMALL }, &model);
    let model = versions(&model);
    for version in &model {
        compare_at(&sstable, &BlockCache::new(0), &model, &version.key, version.timestamp);
    }
}

/// A stand-in for a manifest: it names the SSTable once that is finished.
const NAMED: &str = "named";

#[test]
fn sstable_write_is_atomic() {
    let mut random = SplitMix64::new(1);
    let mut model = random_model(&mut random, 300);
    let noise: Bytes = (0..300_000).map(|_| random.draw() as u8).collect();
    for key in [b"large", b"older"] {
        model.insert((key.to_vec(), Reverse(Timestamp(1))), Some(noise.clone()));
    }
    let meta = write(&disk(), ID, SMALL, &model).unwrap();
    crash_everywhere(
        disk,
        |disk| {
            write(disk, ID, SMALL, &model)?;
            replace(disk, "", NAMED, b"yes")
        },
        |disk| {
            let is_named = read_whole(disk, NAMED, 10).unwrap().is_some();
            let named = if is_named { BTreeSet::from([ID]) } else { BTreeSet::new() };
            remove_unnamed(disk, &named).unwrap();
            if is_named {
                let sstable = open(disk, &meta).unwrap();
                sstable.verify().unwrap();
                compare_all(&sstable, &BlockCache::new(10_000), &versions(&model));
            } else {
                assert_eq!(disk.list(DIRECTORY).unwrap(), [""; 0]);
                assert_eq!(open(disk, &meta).err(), Some(SstableError::Missing));
                write(disk, ID, SMALL, &model).unwrap();
            }
        },
    );
}

#[test]
fn push_writes_once_and_fsync_is_not_retried() {
    let disk = disk();
    let mut writer = SstableWriter::create(&disk, &owner(), ID, SMALL, row).unwrap();
    let value: Bytes = (0..100_000).scan(SplitMix64::new(1), |random, _| Some(random.draw() as u8)).collect();
    for number in 0..40 {
        let before = disk.counters().operations;
        let key = vec![number];
        writer.push(VersionRef { key: &key, timestamp: Timestamp(1), value: Some(&value) }).unwrap();
        assert!(disk.counters().operations <= before + 1);
        assert_eq!(writer.entries(), u64::from(number) + 1);
    }
    let bytes = writer.bytes();
    disk.fail_syncs(1, &mut SplitMix64::new(1));
    assert!(writer.finish(&disk).is_err());
    assert_eq!(disk.counters().syncs, 1);
    assert!(bytes > 4_000_000);
}

#[test]
#[should_panic(expected = "versions are pushed in order")]
fn out_of_order_versions_panic() {
    let mut writer = SstableWriter::create(&disk(), &owner(), ID, SMALL, row).unwrap();
    for timestamp in [5, 6] {
        writer.push(VersionRef { key: b"", timestamp: Timestamp(timestamp), value: None }).unwrap();
    }
}

#[test]
fn cache_only_read_does_no_io() {
    let model = random_model(&mut SplitMix64::new(1), 300);
    let (disk, sstable) = sstable(SMALL, &model);
    let cache = BlockCache::new(1 << 30);
    let alone = Blocks { cache: &cache, io: Io::CacheOnly };
    let model = versions(&model);
    let read = |version: &Version, blocks| sstable.newest(&version.key, version.timestamp, blocks);
    assert_eq!(read(&model[9], alone), Err(SstableError::NotCached));
    assert_eq!(read(&model[9], Blocks { io: Io::PassBy, ..alone }).as_ref(), Ok(&Some(model[9].clone())));
    assert_eq!(read(&model[9], alone), Err(SstableError::NotCached), "Io::PassBy does not fill the cache");
    read(&model[9], through(&cache)).unwrap();
    disk.kill();
    assert_eq!(read(&model[9], alone), Ok(Some(model[9].clone())));
}

#[test]
fn sstable_is_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Sstable>();
    sent::<SstableWriter>();
}

#[test]
fn removes_unnamed_sstables_keeps_numbers_unique() {
    let disk = disk();
    let named = BTreeSet::from([ID, SstableId { number: 8, ..ID }]);
    for number in 7..10 {
        write(&disk, SstableId { number, ..ID }, SMALL, &Model::new()).unwrap();
    }
    for stray in ["3-07", "+3-7", "3-7.new", "else"] {
        disk.create(&format!("{DIRECTORY}/{stray}"), OpenOptions::BUFFERED).unwrap();
    }
    assert!(write(&disk, ID, SMALL, &Model::new()).is_err());
    remove_unnamed(&disk, &named).unwrap();
    assert_eq!(disk.list(DIRECTORY).unwrap(), ["3-7", "3-8"]);
}
