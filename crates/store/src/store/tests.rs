//! A store under random operations, power loss and kills, compared with a model that remembers everything.
//!
//! It shows that every forced record is found again in order, unless a checkpoint covers it; that no record is
//! invented; that the hard state is the last acknowledged one or one in progress; and that without a disk fault nothing
//! is in doubt.

use std::collections::BTreeMap;

use base::{CohortId, Entry, Epoch, Force, LogRecord, Lsn, Promise, Record, Sequence, SplitMix64, Timestamp};
use bytes::Bytes;

use super::*;
use crate::checkpoint::{CheckpointMeta, write_checkpoint};
use crate::files::{File, FileErrorKind, Files, OpenOptions, ReadAt};
use crate::manifest::CheckpointRef;
use crate::memory::MemoryDisk;
use crate::testing::{CONFIG, crash_everywhere, execute, formatted, identity, prepare};
use crate::{Recovered, open};

const COHORTS: u32 = 3;

type Cohorts = BTreeMap<CohortId, CohortManifest>;

/// The expected content of the disk.
struct Model {
    random: SplitMix64,
    /// Every record that may be in the log, in order, and the number of forced ones.
    history: Vec<Record>,
    forced: usize,
    /// The append number of the first record.
    first_write: usize,
    next: BTreeMap<CohortId, u64>,
    draws: u64,
    /// The last acknowledged manifest, and the one started after it.
    acknowledged: Cohorts,
    begun: Option<Cohorts>,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            random: SplitMix64::new(seed),
            history: Vec::new(),
            forced: 0,
            first_write: 0,
            next: BTreeMap::new(),
            draws: 0,
            acknowledged: Cohorts::new(),
            begun: None,
        }
    }

    fn record(&mut self) -> Record {
        self.draws += 1;
        let cohort = CohortId(1 + self.random.below(u64::from(COHORTS)) as u32);
        let next = self.next.entry(cohort).or_insert(1);
        let floor = self.acknowledged.get(&cohort).and_then(|cohort| cohort.checkpoint);
        let floor = floor.map_or(0, |checkpoint| checkpoint.lsn.sequence.0);
        let body = match self.random.below(10) {
            0 => LogRecord::CommitPoint(Lsn::new(self.draws, next.saturating_sub(1))),
            1 if *next > floor + 1 => {
                *next = floor + 1 + self.random.below(*next - floor - 1);
                LogRecord::Truncation { from: Sequence(*next) }
            }
            _ => {
                let lsn = Lsn::new(self.draws, *next);
                *next += 1;
                let payload = vec![self.draws as u8; self.random.below(3000) as usize].into();
                LogRecord::Entry(Entry { lsn, previous: Lsn::ZERO, timestamp: Timestamp(0), payload, members: None })
            }
        };
        Record { cohort, body }
    }

    /// The forced live entries of a cohort.
    fn live(&self, cohort: CohortId) -> BTreeMap<Sequence, Entry> {
        let mut live = BTreeMap::new();
        for record in self.history[..self.forced].iter().filter(|record| record.cohort == cohort) {
            match &record.body {
                LogRecord::Entry(entry) => {
                    live.split_off(&entry.lsn.sequence);
                    live.insert(entry.lsn.sequence, entry.clone());
                }
                LogRecord::Truncation { from } => drop(live.split_off(from)),
                LogRecord::CommitPoint(_) => {}
            }
        }
        live
    }

    fn act(&mut self, store: &mut Store<MemoryDisk>) -> Result<(), FileError> {
        store.invariants();
        match self.random.below(12) {
            0..=4 => self.append(store),
            5..=7 => {
                if let Some(batch) = store.next_batch() {
                    let through = execute(store, &batch)?;
                    self.forced = self.first_write + through as usize;
                }
            }
            8 => {
                if let Some(batch) = store.echo() {
                    execute(store, &batch)?;
                }
            }
            9 => prepare(store)?,
            10 => self.read(store)?,
            _ => self.write_manifest(store)?,
        }
        Ok(())
    }

    fn append(&mut self, store: &mut Store<MemoryDisk>) {
        let (record, force) = (self.record(), if self.random.chance(500_000) { Force::Now } else { Force::WithNext });
        self.history.push(record.clone());
        store.append((self.history.len() - self.first_write) as u64, record, force).unwrap();
    }

    fn read(&mut self, store: &Store<MemoryDisk>) -> Result<(), FileError> {
        let cohort = CohortId(1 + self.random.below(u64::from(COHORTS)) as u32);
        let live = self.live(cohort);
        let from = Sequence(self.random.below(live.len() as u64 + 2));
        let bytes = self.random.below(10_000) as usize;
        let Some(plan) = store.plan_read(cohort, from, bytes) else {
            let is_pending = self.forced < self.history.len();
            let may_be_gone = store.manifest().oldest_segment > 1;
            assert!(is_pending || may_be_gone || !live.contains_key(&from), "present entries are found");
            return Ok(());
        };
        let entries = plan.execute(store.files())?.expect("nothing is damaged or recycled");
        let expected: Vec<Entry> = live.range(from..).map(|(_, entry)| entry.clone()).take(entries.len()).collect();
        assert_eq!(entries, expected);
        Ok(())
    }

    /// Checkpoints some cohorts, makes a promise, and writes the manifest.
    fn write_manifest(&mut self, store: &mut Store<MemoryDisk>) -> Result<(), FileError> {
        let mut cohorts = self.acknowledged.clone();
        for id in (1..=COHORTS).map(CohortId) {
            let live = self.live(id);
            let cohort = cohorts.entry(id).or_default();
            cohort.promised = Promise { epoch: Epoch(cohort.promised.epoch.0 + 1), candidate: None };
            let Some((_, last)) = live.last_key_value().filter(|_| self.random.chance(700_000)) else { continue };
            if cohort.checkpoint.is_some_and(|checkpoint| checkpoint.lsn.sequence >= last.lsn.sequence) {
                continue;
            }
            let meta = CheckpointMeta { cohort: id, lsn: last.lsn, timestamp: last.timestamp };
            let chunk = Bytes::from(last.lsn.to_string());
            let bytes = write_checkpoint(store.files(), &store.owner(), &meta, std::iter::once(chunk))?;
            cohort.checkpoint = Some(CheckpointRef { lsn: last.lsn, timestamp: last.timestamp, bytes });
        }
        self.begun = Some(cohorts.clone());
        let write = store.begin_manifest(cohorts.clone(), false);
        if self.random.chance(300_000) {
            prepare(store)?;
        }
        write.write_place(0)?;
        write.write_place(1)?;
        (self.acknowledged, self.begun) = (cohorts, None);
        write.remove_superseded(store.files())?;
        store.finish_manifest(&write);
        Ok(())
    }

    /// Compares the recovered content with the model, and continues from it.
    fn check(&mut self, recovered: &Recovered) {
        assert_eq!((recovered.damage, recovered.doubt_unknown), (None, false));
        let is_begun = self.begun.take().is_some_and(|begun| begun == recovered.cohorts);
        assert!(is_begun || recovered.cohorts == self.acknowledged, "the hard state was written before");
        self.acknowledged = recovered.cohorts.clone();
        for (id, cohort) in &recovered.cohorts {
            let chunks = cohort.checkpoint.map(|checkpoint| vec![Bytes::from(checkpoint.lsn.to_string())]);
            assert_eq!(recovered.checkpoints.get(id), chunks.as_ref(), "a checkpoint has the written content");
        }
        let count = recovered.records.len();
        let end = (self.forced..=self.history.len())
            .find(|end| *end >= count && self.history[end - count..*end] == recovered.records)
            .expect("the log is a contiguous part of the appended records, with all forced ones");
        self.history.truncate(end);
        (self.forced, self.first_write) = (end, end);
        for gone in &self.history[..end - count] {
            let LogRecord::Entry(entry) = &gone.body else { continue };
            let checkpoint = recovered.cohorts.get(&gone.cohort).and_then(|cohort| cohort.checkpoint);
            let floor = checkpoint.map_or(Sequence(0), |checkpoint| checkpoint.lsn.sequence);
            let is_dead = self.live(gone.cohort).get(&entry.lsn.sequence) != Some(entry);
            assert!(is_dead || entry.lsn.sequence <= floor, "missing records are in a checkpoint, or invalidated");
        }
        for id in (1..=COHORTS).map(CohortId) {
            let last = self.live(id).last_key_value().map_or(0, |(sequence, _)| sequence.0);
            self.next.insert(id, last + 1);
        }
    }
}

/// Opens the disk, with occasional crashes.
fn open_with_crashes(disk: &MemoryDisk, random: &mut SplitMix64) -> (Store<MemoryDisk>, Recovered) {
    loop {
        if random.chance(300_000) {
            disk.crash_after_operations(1 + random.below(30));
        }
        match open(disk.clone(), CONFIG) {
            Ok(opened) => {
                disk.crash_after_operations(u64::MAX / 2);
                return opened;
            }
            Err(StoreError::File(error)) if error.kind == FileErrorKind::Crashed => disk.crash(random),
            Err(error) => panic!("{error}"),
        }
    }
}

fn campaign(seed: u64, lives: usize) -> u64 {
    let disk = formatted();
    let mut model = Model::new(seed);
    for _ in 0..lives {
        let mut random = model.random.clone();
        let (mut store, recovered) = open_with_crashes(&disk, &mut random);
        model.random = random;
        model.check(&recovered);
        disk.crash_after_operations(1 + model.random.below(300));
        let failing_at = model.random.below(200);
        let died = loop {
            if disk.counters().operations % 200 == failing_at && model.random.chance(300_000) {
                disk.fail_syncs(1, &mut model.random);
            }
            if let Err(error) = model.act(&mut store) {
                break error;
            }
            if model.random.chance(2_000) {
                break store.files().open("none", OpenOptions::BUFFERED).unwrap_err();
            }
        };
        assert_ne!(died.kind, FileErrorKind::NoSpace);
        if model.random.chance(700_000) {
            disk.crash(&mut model.random);
        } else {
            disk.kill();
        }
    }
    disk.counters().syncs
}

#[test]
fn forced_records_survive_random_crashes() {
    let seeds = std::env::var("STORE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        assert!(campaign(seed, 40) > 100, "operations were executed");
    }
}

#[test]
fn interrupted_format_can_be_retried() {
    let format = |disk: &MemoryDisk| crate::format(disk, &identity(), &CONFIG);
    crash_everywhere(MemoryDisk::new, format, |disk| {
        format(disk).unwrap();
        let (store, recovered) = open(disk.clone(), CONFIG).unwrap();
        assert_eq!((recovered.boot, recovered.records.len(), recovered.damage), (Boot(1), 0, None));
        assert_eq!((store.identity(), recovered.notes.len()), (&identity(), 0));
    });
}

#[test]
fn format_preserves_existing_data() {
    let disk = formatted();
    drop(open(disk.clone(), CONFIG).unwrap());
    crate::format(&disk, &identity(), &CONFIG).unwrap();
    assert_eq!(
        open(disk.clone(), CONFIG).unwrap().1.boot,
        Boot(2),
        "formatting again with the same identity has no effect"
    );
    let other = Identity { incarnation: base::Incarnation(1), ..identity() };
    assert!(matches!(crate::format(&disk, &other, &CONFIG), Err(StoreError::OtherIdentity { .. })));
    for place in crate::identity::PLACES {
        disk.remove(place).unwrap();
    }
    assert_eq!(crate::format(&disk, &identity(), &CONFIG), Err(StoreError::InUse));
    assert_eq!(open(disk, CONFIG).unwrap_err(), StoreError::NotFormatted);
}

#[test]
fn damaged_checkpoint_makes_cohort_doubtful() {
    let disk = formatted();
    let mut store = open(disk.clone(), CONFIG).unwrap().0;
    let meta = CheckpointMeta { cohort: CohortId(1), lsn: Lsn::new(1, 1), timestamp: Timestamp(1) };
    let bytes = write_checkpoint(&disk, &store.owner(), &meta, std::iter::once(Bytes::from_static(b"state"))).unwrap();
    let checkpoint = Some(CheckpointRef { lsn: meta.lsn, timestamp: meta.timestamp, bytes });
    let cohort = CohortManifest { checkpoint, ..CohortManifest::default() };
    let write = store.begin_manifest([(CohortId(1), cohort), (CohortId(2), CohortManifest::default())].into(), false);
    write.execute(&disk).unwrap();
    store.finish_manifest(&write);
    assert!(disk.flip_bit(&meta.path(), 4096 + 10, 1));
    for _ in 0..2 {
        let (_, recovered) = open(disk.clone(), CONFIG).unwrap();
        assert_eq!(recovered.cohorts[&CohortId(1)], CohortManifest { doubtful: true, ..CohortManifest::default() });
        assert!(!recovered.cohorts[&CohortId(2)].doubtful && recovered.checkpoints.is_empty());
    }
}

/// The mark of a clean stop of main-memory logs is valid for one start: once that has completed, before anything is
/// acknowledged, no power loss restores it.
#[test]
fn clean_stop_mark_is_valid_once() {
    let whole = CohortManifest { whole: true, ..CohortManifest::default() };
    let marked = || {
        let disk = formatted();
        let mut store = open(disk.clone(), CONFIG).unwrap().0;
        store.begin_manifest([(CohortId(2), whole.clone())].into(), false).execute(&disk).unwrap();
        disk
    };
    let disk = marked();
    let (store, recovered) = open(disk.clone(), CONFIG).unwrap();
    assert_eq!(recovered.cohorts[&CohortId(2)], whole, "this start sees the mark");
    assert!(!store.manifest().cohorts[&CohortId(2)].whole);
    disk.crash(&mut SplitMix64::new(1));
    assert!(!open(disk, CONFIG).unwrap().1.cohorts[&CohortId(2)].whole, "later starts do not");

    // An interrupted start has acknowledged nothing: the mark may remain, and the disk still opens.
    let again = |disk: &MemoryDisk| {
        open(disk.clone(), CONFIG).unwrap();
        assert!(!open(disk.clone(), CONFIG).unwrap().1.cohorts[&CohortId(2)].whole);
    };
    crash_everywhere(marked, |disk| open(disk.clone(), CONFIG).map(drop), again);
}

#[test]
fn sole_node_aborts_on_damaged_checkpoint() {
    let alone = Identity { members: identity().members[1..2].to_vec(), ..identity() };
    let disk = MemoryDisk::new();
    crate::format(&disk, &alone, &CONFIG).unwrap();
    let mut store = open(disk.clone(), CONFIG).unwrap().0;
    let meta = CheckpointMeta { cohort: CohortId(1), lsn: Lsn::new(1, 1), timestamp: Timestamp(1) };
    let bytes = write_checkpoint(&disk, &store.owner(), &meta, std::iter::once(Bytes::from_static(b"state"))).unwrap();
    let checkpoint = Some(CheckpointRef { lsn: meta.lsn, timestamp: meta.timestamp, bytes });
    let write =
        store.begin_manifest([(CohortId(1), CohortManifest { checkpoint, ..Default::default() })].into(), false);
    write.execute(&disk).unwrap();
    store.finish_manifest(&write);
    assert!(disk.flip_bit(&meta.path(), 4096 + 10, 1));
    let refused = open(disk.clone(), CONFIG).unwrap_err();
    assert!(matches!(refused, StoreError::NoCopyToRepairFrom { what } if what.starts_with(&meta.path())));
    assert!(disk.flip_bit(&meta.path(), 4096 + 10, 1), "the file still exists");
    assert_eq!(open(disk, CONFIG).unwrap().1.checkpoints.len(), 1);
}

/// The whole content of a segment, or its end, is missing: truncated by an operator, or lost by the file system.
#[test]
fn truncated_log_is_damaged() {
    for kept in [0, 4_096, 10_000] {
        let disk = formatted();
        let mut store = open(disk.clone(), CONFIG).unwrap().0;
        for number in 1..=3 {
            crate::testing::write(&mut store, number, crate::testing::entry(1, number, b"payload")).unwrap();
        }
        let path = crate::log::segment_path(1);
        let content = crate::files::read_whole(&disk, &path, u64::MAX).unwrap().unwrap();
        disk.remove(&path).unwrap();
        let file = disk.create(&path, OpenOptions::BUFFERED).unwrap();
        file.write_at(0, &content[..kept]).unwrap();
        file.sync().unwrap();
        disk.sync_dir(crate::log::DIRECTORY).unwrap();
        let recovered = open(disk.clone(), CONFIG).unwrap().1;
        assert!(recovered.damage.is_some() && recovered.doubt_unknown, "{kept} bytes remain");
        assert_eq!(open(disk, CONFIG).unwrap().1.damage, None, "the segment has its full length again");
    }
}

#[test]
fn zeroed_log_is_damaged() {
    let disk = formatted();
    let mut store = open(disk.clone(), CONFIG).unwrap().0;
    for number in 1..=3 {
        crate::testing::write(&mut store, number, crate::testing::entry(1, number, b"payload")).unwrap();
    }
    let write = store.begin_manifest(Cohorts::new(), false);
    write.execute(&disk).unwrap();
    store.finish_manifest(&write);
    let file = disk.open(&crate::log::segment_path(1), OpenOptions::BUFFERED).unwrap();
    file.write_at(0, &vec![0; CONFIG.segment_bytes as usize]).unwrap();
    file.sync().unwrap();
    assert!(open(disk.clone(), CONFIG).unwrap().1.damage.is_some());
    assert_eq!(open(disk, CONFIG).unwrap().1.damage, None);
}

#[test]
fn dead_entries_release_segments() {
    let disk = formatted();
    let mut store = open(disk, CONFIG).unwrap().0;
    let kills = |from| Record { cohort: CohortId(1), body: LogRecord::Truncation { from: Sequence(from) } };
    let mut number = 0;
    let mut write = |store: &mut Store<MemoryDisk>, record| {
        number += 1;
        crate::testing::write(store, number, record).unwrap();
        prepare(store).unwrap();
    };
    for sequence in 1..=8 {
        write(&mut store, crate::testing::entry(1, sequence, &[0; 5_000]));
    }
    write(&mut store, kills(6));
    for sequence in 1..=8 {
        write(&mut store, crate::testing::entry(2, sequence, &[0; 5_000]));
    }
    let floors = |first, second| [(CohortId(1), Sequence(first)), (CohortId(2), Sequence(second))].into();
    let of_the_dead = store.log().dispensable(&floors(5, 0), 0);
    assert!(!of_the_dead.is_empty(), "the live entries of the first cohort are in its checkpoint");
    assert!(store.log().dispensable(&floors(4, 8), 0).len() < of_the_dead.len());
}

#[test]
fn full_disk_stops_preallocation_only() {
    let disk = formatted();
    let mut store = open(disk.clone(), CONFIG).unwrap().0;
    disk.set_capacity(Some(disk.bytes_used()));
    let (mut number, mut job) = (0, None);
    while store.is_idle() {
        number += 1;
        store.append(number, crate::testing::entry(1, number, b"x"), Force::Now).unwrap();
        let Some(batch) = store.next_batch() else { break };
        execute(&mut store, &batch).unwrap();
        job = job.or_else(|| store.segment_job());
    }
    let job = job.expect("a segment is due");
    assert_eq!(job.execute(&disk).unwrap_err().kind, FileErrorKind::NoSpace);
    disk.set_capacity(None);
    job.execute(&disk).unwrap();
    store.segment_done(job);
    let batch = store.next_batch().expect("space is available again");
    assert_eq!(execute(&mut store, &batch), Ok(number));
}

#[test]
fn one_copy_manifest_start_is_crash_safe() {
    // More than one sector, and doubt about every cohort to write, so that the write can be torn.
    let cohorts: Cohorts = (1..=100).map(|id| (CohortId(id), CohortManifest::default())).collect();
    let one_copy = || {
        let disk = formatted();
        let mut store = open(disk.clone(), CONFIG).unwrap().0;
        store.begin_manifest(cohorts.clone(), false).execute(&disk).unwrap();
        for number in 1..=3 {
            crate::testing::write(&mut store, number, crate::testing::entry(1, number, b"payload")).unwrap();
        }
        disk.flip_bit(&crate::log::segment_path(1), 4096 + 90, 1);
        disk.flip_bit(crate::manifest::PLACES[1], 40, 1);
        disk.kill();
        disk
    };
    let attempt = |disk: &MemoryDisk| open(disk.clone(), CONFIG).map(|_| ());
    crash_everywhere(one_copy, attempt, |disk| {
        let found = open(disk.clone(), CONFIG).unwrap().1.cohorts;
        assert!(found.keys().eq(cohorts.keys()) && found.values().all(|cohort| cohort.doubtful));
    });
}

/// A file type of a driver with threads.
#[derive(Clone)]
struct Shared;

impl ReadAt for Shared {
    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize, FileError> {
        Ok(0)
    }
}

impl File for Shared {
    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), FileError> {
        Ok(())
    }
    fn sync(&self) -> Result<(), FileError> {
        Ok(())
    }
    fn len(&self) -> Result<u64, FileError> {
        Ok(0)
    }
}

#[test]
fn io_jobs_are_send() {
    fn assert_send<T: Send>() {}
    assert_send::<Batch>();
    assert_send::<ReadPlan>();
    assert_send::<SegmentJob>();
    assert_send::<ManifestWrite<Shared>>();
}

#[cfg(feature = "canary")]
mod canary;

/// A node that starts on a full disk serves its existing data; missing segments are prepared once there is space.
#[test]
fn node_starts_on_full_disk() {
    let disk = formatted();
    drop(open(disk.clone(), CONFIG).unwrap());
    let wants_more = Config { segments_ahead: CONFIG.segments_ahead + 2, ..CONFIG };
    disk.set_capacity(Some(disk.bytes_used()));
    let mut store = open(disk.clone(), wants_more).unwrap().0;
    let job = store.segment_job().expect("a segment is to be prepared");
    assert_eq!(job.execute(&disk).unwrap_err().kind, FileErrorKind::NoSpace);
    disk.set_capacity(None);
    job.execute(&disk).unwrap();
    store.segment_done(job);
    store.invariants();
}

/// Records and checkpoints of a removed cohort are not kept.
#[test]
fn removed_cohort_releases_space() {
    let disk = formatted();
    let mut store = open(disk.clone(), CONFIG).unwrap().0;
    let meta = CheckpointMeta { cohort: CohortId(2), lsn: Lsn::new(1, 1), timestamp: Timestamp(1) };
    write_checkpoint(&disk, &store.owner(), &meta, std::iter::empty()).unwrap();
    let other = CheckpointMeta { cohort: CohortId(3), ..meta };
    write_checkpoint(&disk, &store.owner(), &other, std::iter::empty()).unwrap();
    store.let_go([CohortId(2)].into());
    let write = store.begin_manifest(Cohorts::new(), false);
    write.execute(&disk).unwrap();
    store.finish_manifest(&write);
    let checkpoints = disk.list(crate::checkpoint::DIRECTORY).unwrap();
    assert_eq!(checkpoints, ["3-1.1"], "a checkpoint may be named by a manifest in progress");
}
