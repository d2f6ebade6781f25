//! Tests that torn writes are distinguished from damage, and that cut-off, recycled and foreign data never reappears.

use base::{CohortId, Force, Lsn, Record, Sequence, SplitMix64, Timestamp};

use crate::files::Files;
use crate::manifest::{CheckpointRef, CohortManifest};
use crate::memory::MemoryDisk;
use crate::testing::{CONFIG, entry, execute, formatted, prepare, truncation, write};
use crate::{Recovered, Store, open};

/// A store with `count` records, each forced in its own batch.
fn filled(count: u64) -> (MemoryDisk, Store<MemoryDisk>, Vec<Record>) {
    let disk = formatted();
    let mut store = open(disk.clone(), CONFIG).unwrap().0;
    let records: Vec<Record> = (1..=count).map(|number| entry(1, number, b"payload")).collect();
    for (number, record) in (1..).zip(&records) {
        write(&mut store, number, record.clone()).unwrap();
    }
    (disk, store, records)
}

fn reopen(disk: &MemoryDisk) -> (Store<MemoryDisk>, Recovered) {
    disk.kill();
    open(disk.clone(), CONFIG).unwrap()
}

fn echo(store: &mut Store<MemoryDisk>) {
    let batch = store.echo().expect("no later batch names the last one yet");
    execute(store, &batch).unwrap();
    assert!(store.echo().is_none(), "one echo is enough");
}

#[test]
fn torn_tail_is_truncated() {
    let mut random = SplitMix64::new(1);
    for torn_at in 1..=6 {
        for _ in 0..20 {
            let (disk, mut store, mut records) = filled(torn_at);
            let large = entry(1, torn_at + 1, &[9; 7000]);
            store.append(torn_at + 1, large.clone(), Force::Now).unwrap();
            let batch = store.next_batch().unwrap();
            disk.crash_after_operations(2);
            let file = store.batch_file(batch.segment).unwrap();
            batch.execute(&file).unwrap_err();
            disk.crash(&mut random);
            let (mut store, recovered) = open(disk.clone(), CONFIG).unwrap();
            assert_eq!(recovered.damage, None, "lost unforced data is not damage");
            if recovered.records.len() > records.len() {
                records.push(large);
            }
            assert_eq!(recovered.records, records);
            let next = entry(1, records.len() as u64 + 1, b"next");
            write(&mut store, 1, next.clone()).unwrap();
            records.push(next);
            assert_eq!(reopen(&disk).1.records, records);
        }
    }
}

#[test]
fn confirmed_tail_damage_is_cut_after_doubt() {
    // In the middle of a segment, and at its end, with the echo in the next one.
    for count in [2, 4] {
        let (disk, mut store, records) = filled(count);
        echo(&mut store);
        let segment = super::segment_path(1);
        assert!(disk.flip_bit(&segment, (count - 1) * 4096 + 90, 3));
        let (_, recovered) = reopen(&disk);
        assert!(recovered.damage.is_some() && recovered.doubt_unknown);
        assert!(recovered.cohorts[&CohortId(1)].doubtful);
        assert_eq!(recovered.records, records[..records.len() - 1]);
        let (_, again) = reopen(&disk);
        assert_eq!(again.damage, None, "the damage was cut");
        assert!(again.cohorts[&CohortId(1)].doubtful, "the doubt remains");
        assert_eq!(again.records, recovered.records);
    }
}

#[test]
fn unconfirmed_tail_damage_looks_torn() {
    let (disk, _, records) = filled(3);
    assert!(disk.flip_bit(&super::segment_path(1), 2 * 4096 + 90, 3));
    let (_, recovered) = reopen(&disk);
    assert_eq!((recovered.damage, recovered.records.len()), (None, records.len() - 1));
    let (disk, _, records) = filled(3);
    let (mut store, _) = reopen(&disk);
    echo(&mut store);
    assert_eq!(reopen(&disk).1.records, records);
}

#[test]
fn bit_flip_before_tail_is_damage() {
    let mut random = SplitMix64::new(2);
    for _ in 0..300 {
        let (disk, _, records) = filled(9);
        let damaged = random.below(8);
        let (segment, offset) = (1 + damaged / 4, damaged % 4 * 4096 + random.below(132));
        assert!(disk.flip_bit(&super::segment_path(segment), offset, random.below(8) as u8));
        let (mut store, recovered) = reopen(&disk);
        assert!(recovered.damage.is_some());
        assert_eq!(recovered.records, records[..damaged as usize]);
        // The log continues there, and data after the damage never reappears.
        let next = entry(1, damaged + 1, b"anew");
        write(&mut store, 1, next.clone()).unwrap();
        let (_, again) = reopen(&disk);
        assert_eq!(again.damage, None);
        assert_eq!(again.records, [&records[..damaged as usize], &[next]].concat());
    }
}

#[test]
fn missing_segment_is_damage() {
    for missing in 1..=3 {
        let (disk, _, records) = filled(14);
        disk.kill();
        disk.remove(&super::segment_path(missing)).unwrap();
        let (_, recovered) = reopen(&disk);
        assert!(recovered.damage.is_some(), "segment {missing}");
        assert_eq!(recovered.records, records[..(missing as usize - 1) * 4]);
        assert_eq!(reopen(&disk).1.damage, None);
    }
}

#[test]
fn damage_truncation_is_crash_safe() {
    crate::testing::crash_everywhere(
        || {
            let (disk, ..) = filled(9);
            disk.flip_bit(&super::segment_path(1), 4096 + 90, 3);
            disk.kill();
            disk
        },
        |disk| open(disk.clone(), CONFIG).map(|_| ()),
        |disk| {
            let (_, recovered) = open(disk.clone(), CONFIG).unwrap();
            assert_eq!(recovered.records.len(), 1);
            assert!(recovered.doubt_unknown && recovered.cohorts[&CohortId(1)].doubtful);
            assert_eq!(open(disk.clone(), CONFIG).unwrap().1.damage, None);
        },
    );
}

#[test]
fn recycled_segments_hide_stale_frames() {
    let (disk, mut store, mut records) = filled(40);
    let checkpoint = CheckpointRef { lsn: Lsn::new(1, 40), timestamp: Timestamp(40), bytes: 0 };
    let cohort = CohortManifest { checkpoint: Some(checkpoint), ..CohortManifest::default() };
    let meta =
        crate::checkpoint::CheckpointMeta { cohort: CohortId(1), lsn: checkpoint.lsn, timestamp: checkpoint.timestamp };
    crate::checkpoint::write_checkpoint(&disk, &store.owner(), &meta, std::iter::empty()).unwrap();
    let manifest = store.begin_manifest([(CohortId(1), cohort)].into(), false);
    assert_eq!(manifest.manifest().oldest_segment, 9, "two segments are kept, including the last");
    manifest.execute(&disk).unwrap();
    store.finish_manifest(&manifest);
    prepare(&mut store).unwrap();
    for number in 41..=60 {
        let record = entry(1, number, b"recycled");
        write(&mut store, number, record.clone()).unwrap();
        records.push(record);
        assert_eq!(reopen_copy(&disk, &store), records[32..]);
    }
    assert!(disk.list(super::DIRECTORY).unwrap().len() <= 12, "segments are recycled");
}

/// The records that a restart would read now, without affecting the running store.
fn reopen_copy(disk: &MemoryDisk, store: &Store<MemoryDisk>) -> Vec<Record> {
    let mut records = Vec::new();
    let log = super::recover(disk, store.owner(), store.manifest(), &mut records).unwrap();
    assert_eq!(log.damage, None);
    records
}

#[test]
fn reads_match_replay_and_stop_at_damage() {
    let disk = formatted();
    let mut store = open(disk.clone(), CONFIG).unwrap().0;
    let records = [
        entry(1, 1, b"a"),
        entry(1, 2, b"dead"),
        entry(2, 1, b"other"),
        entry(1, 2, b"b"),
        entry(1, 3, b"dead"),
        entry(1, 4, b"dead"),
        truncation(1, 3),
        entry(1, 3, b"c"),
        entry(1, 4, b"d"),
    ];
    for (number, record) in (1..).zip(records) {
        store.append(number, record, if number % 3 == 0 { Force::Now } else { Force::WithNext }).unwrap();
        if let Some(batch) = store.next_batch() {
            execute(&mut store, &batch).unwrap();
            prepare(&mut store).unwrap();
        }
    }
    let read = |store: &Store<MemoryDisk>, from, bytes| {
        let plan = store.plan_read(CohortId(1), Sequence(from), bytes)?;
        let entries = plan.execute(&disk).unwrap()?;
        Some(entries.into_iter().map(|entry| entry.payload[0] as char).collect::<String>())
    };
    assert_eq!(read(&store, 1, 1000).as_deref(), Some("abcd"));
    assert_eq!(read(&store, 2, 1).as_deref(), Some("b"), "at least one entry");
    assert_eq!(read(&store, 5, 1000), None);
    store.append(10, entry(1, 3, b"pending"), Force::WithNext).unwrap();
    assert_eq!(read(&store, 1, 1000).as_deref(), Some("ab"), "the pending record invalidates the rest");
    disk.flip_bit(&super::segment_path(1), 4096 + 90, 1);
    assert_eq!(read(&store, 1, 1000).as_deref(), Some("a"));
    assert_eq!(read(&store, 2, 1000), None);
}

#[test]
fn rejects_record_above_segment_size() {
    let mut store = open(formatted(), CONFIG).unwrap().0;
    let error = store.append(1, entry(1, 1, &[0; 16 << 10]), Force::Now).unwrap_err();
    assert!(error.bytes > error.limit);
    let fits = vec![1; error.limit - entry(1, 1, b"").size()];
    write(&mut store, 1, entry(1, 1, &fits)).unwrap();
}

/// A removed cohort needs none of its records, although no checkpoint covers them.
#[test]
fn removed_cohort_releases_segments() {
    let (_, mut store, _) = filled(40);
    assert_eq!(store.begin_manifest(std::collections::BTreeMap::new(), false).manifest().oldest_segment, 1);
    store.let_go([CohortId(1)].into());
    assert_eq!(store.begin_manifest(std::collections::BTreeMap::new(), false).manifest().oldest_segment, 9);
}
