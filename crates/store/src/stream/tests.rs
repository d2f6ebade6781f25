//! A stream against a model, with crashes between any two file operations, transfers while it changes, and damage.

use std::sync::Arc;

use base::{CohortId, Incarnation, NodeId, Sequence, SplitMix64};

use super::*;
use crate::identity::Owner;
use crate::memory::MemoryDisk;
use crate::shipping::{PART_BYTES, write_part};
use crate::sstable::{DIRECTORY, Io};
use crate::tree::{Config, Tablespace};

/// Blocks of the streams in these tests, in a few groups.
const BLOCKS: u64 = 4 * GROUP_BLOCKS + 17;
const COHORT: CohortId = CohortId(7);

#[derive(Clone, Debug)]
enum Entry {
    Put(u64, Vec<u8>),
    Clear(Range<u64>, Empty),
    /// Writes a block again, if it has this content.
    Heal(u64, u8),
}

/// The expected content of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Model(Vec<(BlockState, u8)>);

impl Model {
    fn new() -> Self {
        Self(vec![(BlockState::Hole, 0); BLOCKS as usize])
    }

    fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Put(first, contents) => {
                for (block, content) in (*first..).zip(contents) {
                    self.0[block as usize] = (BlockState::Data, *content);
                }
            }
            Entry::Clear(range, to) => {
                self.0[range.start as usize..range.end as usize].fill(((*to).into(), 0));
            }
            Entry::Heal(..) => {}
        }
    }
}

fn site() -> Site {
    let owner = Owner { cluster: base::ClusterId(3), node: NodeId(1), incarnation: Incarnation(9) };
    let config = Config { memtable_bytes: 1 << 20, ..Config::DEFAULT };
    Tablespace::new(owner, config, 256 << 10, 0).site(COHORT)
}

fn disk() -> MemoryDisk {
    let disk = MemoryDisk::new();
    crate::files::Files::create_dir(&disk, DIRECTORY).unwrap();
    crate::files::Files::sync_dir(&disk, crate::SHARD_DIRECTORY).unwrap();
    disk
}

fn apply(store: &mut StreamStore, sequence: u64, entry: &Entry) {
    let mut edit = store.edit(Sequence(sequence));
    match entry {
        Entry::Put(first, contents) => {
            for (block, content) in (*first..).zip(contents) {
                edit.put(block, Bytes::from(vec![*content; BLOCK_BYTES]));
            }
        }
        Entry::Clear(range, to) => edit.clear(range.clone(), *to),
        Entry::Heal(block, content) => _ = edit.heal(*block, Bytes::from(vec![*content; BLOCK_BYTES])),
    }
}

fn random_entry(random: &mut SplitMix64) -> Entry {
    let first = random.below(BLOCKS);
    let longest = if random.chance(100_000) { BLOCKS } else { 40 };
    let end = (first + 1 + random.below(longest)).min(BLOCKS);
    match random.below(7) {
        0 => Entry::Clear(first..end, Empty::Hole),
        1 => Entry::Clear(first..end, Empty::Zero),
        2 => Entry::Heal(first, 1 + random.below(255) as u8),
        _ => {
            let content = |_| 1 + random.below(255) as u8;
            Entry::Put(first, (first..end.min(first + 30)).map(content).collect())
        }
    }
}

/// Everything that a view says, as a model.
fn content(view: &StreamView, io: Io) -> Result<Model, StreamError> {
    let mut model = Vec::new();
    let mut first = 0;
    while first < BLOCKS {
        let runs = view.states(first..BLOCKS, 100)?;
        for (count, state) in runs {
            model.extend((0..count).map(|_| (state, 0)));
            first += count;
        }
    }
    let mut block = 0;
    for piece in view.read(0..BLOCKS, io)? {
        match piece {
            Piece::Zeroes(count) => {
                for _ in 0..count {
                    assert_ne!(model[block].0, BlockState::Data, "a block with content reads as zeros");
                    block += 1;
                }
            }
            Piece::Data(data) => {
                for data in data.chunks_exact(BLOCK_BYTES) {
                    assert_eq!(model[block].0, BlockState::Data, "an empty block has content");
                    assert!(data.iter().all(|byte| *byte == data[0]), "a block is torn");
                    model[block].1 = data[0];
                    block += 1;
                }
            }
        }
    }
    Ok(Model(model))
}

fn run_flush(store: &mut StreamStore, disk: &MemoryDisk) -> Result<bool, crate::tree::JobError> {
    let Some(mut job) = store.flush() else { return Ok(false) };
    loop {
        if let StreamStep::Done(done) = job.step(disk)? {
            store.flushed(&done);
            return Ok(true);
        }
    }
}

/// A replica: the log in a vector, of which everything is durable.
struct Replica {
    disk: MemoryDisk,
    store: StreamStore,
    log: Vec<Entry>,
    model: Model,
    /// The number of entries in the checkpoint that the manifest names, and its files.
    named: (usize, Vec<SstableRef>),
}

impl Replica {
    fn new() -> Self {
        let (disk, store) = (disk(), StreamStore::new(site()));
        Self { disk, store, log: Vec::new(), model: Model::new(), named: (0, Vec::new()) }
    }

    fn apply(&mut self, entry: Entry) {
        self.model.apply(&entry);
        self.log.push(entry);
        apply(&mut self.store, self.log.len() as u64, self.log.last().unwrap());
    }

    fn view(&self) -> StreamView {
        self.store.view().as_of(Sequence(self.log.len() as u64))
    }

    fn flush(&mut self) -> bool {
        self.flush_while(|_| {})
    }

    /// Flushes, with other work before each step. Returns whether the flush has succeeded.
    fn flush_while(&mut self, mut work: impl FnMut(&mut Self)) -> bool {
        let at = self.log.len();
        if let Some(mut job) = self.store.flush() {
            loop {
                work(self);
                match job.step(&self.disk) {
                    Ok(StreamStep::Working { .. }) => {}
                    Ok(StreamStep::Done(done)) => {
                        work(self);
                        break self.store.flushed(&done);
                    }
                    Err(_) => return false,
                }
            }
        }
        self.named = (at, self.store.refs());
        self.store.forced(&self.named.1);
        for file in self.store.give_up() {
            crate::files::remove_if_exists(&self.disk, &file.path()).unwrap();
        }
        true
    }

    /// Starts again from the disk, and applies the log from the checkpoint on.
    fn restart(&mut self) {
        let (at, named) = &self.named;
        let named_ids = named.iter().map(|named| named.id).collect();
        crate::sstable::remove_unnamed(&self.disk, &named_ids).unwrap();
        self.store = match named.is_empty() {
            true => StreamStore::new(site()),
            false => StreamStore::open(&self.disk, site(), named).unwrap(),
        };
        let map = Arc::clone(&self.store.map);
        for (index, entry) in self.log.iter().enumerate().skip(*at) {
            apply(&mut self.store, index as u64 + 1, entry);
        }
        assert_eq!(map.groups.len(), self.store.map.groups.len());
        self.store.invariants();
    }

    fn check(&self, what: &str) {
        assert!(content(&self.view(), Io::Allowed).unwrap() == self.model, "{what}");
        self.store.invariants();
    }

    fn slots(&self) -> Vec<(u64, u32)> {
        self.store.shared.read().groups.iter().map(|(number, group)| (*number, group.slot)).collect()
    }
}

/// After a crash between any two file operations, the checkpoint and the log after it give the same content, and the same
/// places.
fn crashes(seed: u64) {
    let mut random = SplitMix64::new(seed);
    let mut replica = Replica::new();
    for step in 0..60 {
        for _ in 0..random.below(6) {
            replica.apply(random_entry(&mut random));
        }
        match random.below(5) {
            0 => {
                replica.disk.crash_after_operations(1 + random.below(12));
                let done = replica.flush();
                let slots = replica.slots();
                replica.disk.crash(&mut random);
                replica.restart();
                assert_eq!(replica.slots(), slots, "seed {seed}, step {step}, flushed {done}");
            }
            1 => {
                let flushed = replica.flush_while(|replica| {
                    for _ in 0..random.below(3) {
                        replica.apply(random_entry(&mut random));
                    }
                });
                assert!(flushed, "seed {seed}, step {step}");
            }
            // The disk is full for a while: the same changes are flushed again, with later ones.
            2 => {
                replica.disk.set_capacity(Some(replica.disk.bytes_used() + random.below(1 << 20)));
                let done = replica.flush();
                replica.check(&format!("seed {seed}, step {step}: full, {done}"));
                replica.disk.set_capacity(None);
            }
            _ => assert!(replica.flush()),
        }
        replica.check(&format!("seed {seed}, step {step}"));
    }
    let verified = replica.view().verify(0, usize::MAX - 1).unwrap();
    assert!(verified.damaged.is_empty() && verified.next.is_none(), "seed {seed}");
}

#[test]
fn crashes_lose_nothing() {
    (0..100).for_each(crashes);
}

/// A flush that was cut off by a crash is restored by the log, not before.
#[test]
fn cut_off_flush_needs_the_log() {
    let mut replica = Replica::new();
    replica.apply(Entry::Put(0, vec![1; 20]));
    assert!(replica.flush());
    replica.apply(Entry::Put(0, vec![2; 20]));
    replica.disk.crash_after_operations(3);
    assert!(!replica.flush());
    replica.disk.kill();
    let store = StreamStore::open(&replica.disk, site(), &replica.named.1).unwrap();
    let early = store.view().as_of(Sequence(1)).read(0..20, Io::Allowed);
    assert!(matches!(early, Err(StreamError::DamagedBlock { block: 0, .. })));
    replica.restart();
    replica.check("restored");
}

/// A transfer while the source applies entries and flushes: with the log from the checkpoint on, the copy is equal.
fn transfers(seed: u64) {
    let mut random = SplitMix64::new(seed);
    let mut source = Replica::new();
    for _ in 0..20 + random.below(40) {
        source.apply(random_entry(&mut random));
        if random.chance(100_000) {
            assert!(source.flush());
        }
    }
    assert!(source.flush());
    let (at, shipped) = (source.named.0, source.store.ship());
    let target = disk();
    let target_site = site();
    let number = |named: &SstableRef| SstableRef {
        id: SstableId { cohort: COHORT, number: target_site.numbers.draw() },
        ..*named
    };
    let renamed: Vec<SstableRef> = shipped.iter().map(|(named, _)| number(named)).collect();
    for ((named, file), renamed) in shipped.iter().zip(&renamed) {
        let mut offset = 0;
        while offset < named.bytes {
            let bytes = file.read_raw(offset, PART_BYTES.min((named.bytes - offset) as usize)).unwrap();
            write_part(&target, renamed.id, offset, &bytes).unwrap();
            offset += bytes.len() as u64;
            if random.chance(500_000) {
                source.apply(random_entry(&mut random));
            }
            if random.chance(200_000) {
                assert!(source.flush());
            }
        }
    }
    let mut copy = adopt(&target, target_site, &renamed).unwrap();
    assert!(copy.complete_from() <= Sequence(source.log.len() as u64), "seed {seed}");
    let early = content(&copy.view().as_of(Sequence(at as u64)), Io::Allowed);
    if copy.complete_from() > Sequence(at as u64) {
        assert_eq!(early.unwrap_err(), StreamError::Incomplete(copy.complete_from()), "seed {seed}");
    } else {
        let mut model = Model::new();
        source.log[..at].iter().for_each(|entry| model.apply(entry));
        assert!(early.unwrap() == model, "seed {seed}: the copy mixes moments");
    }
    for (index, entry) in source.log.iter().enumerate().skip(at) {
        apply(&mut copy, index as u64 + 1, entry);
    }
    let view = copy.view().as_of(Sequence(source.log.len() as u64));
    assert!(content(&view, Io::Allowed).unwrap() == source.model, "seed {seed}");
    copy.invariants();
    let slots: Vec<_> = copy.shared.read().groups.iter().map(|(number, group)| (*number, group.slot)).collect();
    assert_eq!(slots, source.slots(), "seed {seed}");

    // The copy is a stream like any other.
    let files = copy.refs();
    let again = StreamStore::open(&target, site(), &files).unwrap();
    assert_eq!((again.complete_from(), again.map), (copy.complete_from(), Arc::clone(&copy.map)), "seed {seed}");
    run_flush(&mut copy, &target).unwrap();
    let again = StreamStore::open(&target, site(), &copy.refs()).unwrap();
    let view = again.view().as_of(Sequence(source.log.len() as u64));
    assert!(content(&view, Io::PassBy).unwrap() == source.model, "seed {seed}");
}

#[test]
fn copies_of_changing_streams_are_completed_by_the_log() {
    (0..60).for_each(transfers);
}

/// Readers on other threads see each block as of some moment, also while flushes overwrite it.
#[test]
fn readers_meet_flushes() {
    let mut replica = Replica::new();
    replica.apply(Entry::Put(0, vec![1; 400]));
    replica.flush();
    let end = std::sync::atomic::AtomicBool::new(false);
    let newest = std::sync::atomic::AtomicU8::new(1);
    let is_over = || end.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (view, newest) = (replica.view(), &newest);
            scope.spawn(move || {
                let mut random = SplitMix64::new(reader);
                while !is_over() {
                    let least = newest.load(std::sync::atomic::Ordering::SeqCst);
                    let first = random.below(380);
                    for piece in view.read(first..first + 1 + random.below(20), Io::Allowed).unwrap() {
                        let Piece::Data(data) = piece else { panic!("a block is empty") };
                        for data in data.chunks_exact(BLOCK_BYTES) {
                            assert!(data.iter().all(|byte| *byte == data[0]) && data[0] >= least);
                        }
                    }
                }
            });
        }
        for content in 2..60 {
            replica.apply(Entry::Put(0, vec![content; 400]));
            newest.store(content, std::sync::atomic::Ordering::SeqCst);
            assert!(replica.flush());
        }
        end.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// A flipped bit in any file is found: in the data when the block is read, and in a map when the stream is opened.
#[test]
fn damage_is_found() {
    for seed in 0..200 {
        let mut random = SplitMix64::new(seed);
        let mut replica = Replica::new();
        for _ in 0..3 {
            for _ in 0..4 {
                replica.apply(random_entry(&mut random));
            }
            replica.flush();
        }
        let named = replica.named.1.clone();
        let file = named[random.below(named.len() as u64) as usize];
        if file.level != DATA {
            assert!(replica.disk.flip_bit(&file.id.path(), random.below(file.bytes), random.below(8) as u8));
            let opened = StreamStore::open(&replica.disk, site(), &named);
            assert!(matches!(opened, Err(StreamError::Invalid { .. })), "seed {seed}: {opened:?}");
            continue;
        }
        let blocks: Vec<u64> =
            (0..BLOCKS).filter(|block| replica.model.0[*block as usize].0 == BlockState::Data).collect();
        let Some(block) = blocks.get(random.below(blocks.len().max(1) as u64) as usize) else { continue };
        let slot = replica.store.map.groups[&(block / GROUP_BLOCKS)].slot;
        let offset = offset_of(slot, *block) + random.below(BLOCK_BYTES as u64);
        assert!(replica.disk.flip_bit(&file.id.path(), offset, random.below(8) as u8));
        replica.restart();
        let read = replica.view().read(*block..block + 1, Io::Allowed);
        assert!(
            matches!(read, Err(StreamError::DamagedBlock { block: at, .. }) if at == *block),
            "seed {seed}: {read:?}"
        );
        assert_eq!(replica.view().verify(0, 1_000).unwrap().damaged, [*block], "seed {seed}");
        let sent: Result<Vec<_>, _> = replica.store.ship().iter().map(|(_, file)| file.verify()).collect();
        assert!(sent.is_err(), "a damaged block is not sent, seed {seed}");
        // Other content is not that of an older or a later write.
        let content = replica.model.0[*block as usize].1;
        replica.apply(Entry::Heal(*block, content ^ 1));
        assert_eq!(replica.view().verify(0, 1_000).unwrap().damaged, [*block], "seed {seed}");
        replica.apply(Entry::Heal(*block, content));
        replica.check("healed in memory");
        replica.flush();
        assert_eq!(replica.view().verify(0, 1_000).unwrap().damaged, [], "seed {seed}");
        replica.restart();
        replica.check("healed on disk");
    }
}

/// A block that was written to the place of another one does not pass as that one.
#[test]
fn misdirected_writes_are_found() {
    let mut replica = Replica::new();
    replica.apply(Entry::Put(3, vec![5, 5]));
    replica.apply(Entry::Put(9, vec![6]));
    replica.flush();
    let file = open_data(&replica.disk, replica.store.shared.data).unwrap();
    let mut buffer = crate::AlignedBuffer::zeroed(BLOCK_BYTES);
    // A write of block 3 went to the place of 9, as did its checksum in memory.
    crate::files::ReadAt::read_at(&file, offset_of(0, 3), &mut buffer).unwrap();
    crate::files::File::write_at(&file, offset_of(0, 9), &buffer).unwrap();
    replica.restart();
    let sum = sum_of(COHORT, 3, &buffer);
    Arc::make_mut(&mut replica.store.shared.write().groups.get_mut(&0).unwrap().sums)[9] = sum;
    assert!(matches!(replica.view().read(9..10, Io::Allowed), Err(StreamError::DamagedBlock { block: 9, .. })));
}

#[test]
fn file_cut_short_is_noticed() {
    let mut replica = Replica::new();
    replica.apply(Entry::Put(3, vec![5, 5]));
    replica.flush();
    assert_eq!(replica.store.cut_short().unwrap(), None);
    let path = replica.store.shared.data.path();
    crate::files::Files::remove(&replica.disk, &path).unwrap();
    crate::files::Files::create(&replica.disk, &path, OpenOptions::DIRECT).unwrap();
    replica.restart();
    let said = replica.store.cut_short().unwrap().expect("the file is empty");
    let missing = offset_of(0, 4) + BLOCK_BYTES as u64;
    assert!(said.contains(&path) && said.contains(&missing.to_string()), "{said}");
}

/// Freed space is given back, and used again.
#[test]
fn slots_are_reused() {
    let mut replica = Replica::new();
    for round in 0..20 {
        replica.apply(Entry::Put(round % 4 * GROUP_BLOCKS, vec![7; 10]));
        replica.apply(Entry::Put((round + 1) % 4 * GROUP_BLOCKS, vec![8; 10]));
        replica.apply(Entry::Clear(round % 4 * GROUP_BLOCKS..(round % 4 + 1) * GROUP_BLOCKS, Empty::Hole));
        replica.flush();
        replica.check("reused");
    }
    assert!(replica.store.map.data_bytes() <= 2 * GROUP_BYTES);
    replica.apply(Entry::Clear(0..BLOCKS, Empty::Hole));
    replica.flush();
    assert_eq!((replica.slots().len(), replica.store.map.groups.len()), (0, 0));
    replica.store.reset();
    replica.store.forced(&[]);
    assert_eq!(replica.store.give_up().len(), replica.named.1.len());
}

#[cfg(feature = "canary")]
fn is_found(bug: Bug, check: fn()) {
    base::canary::plant(Some(bug));
    let found = std::panic::catch_unwind(check);
    base::canary::plant(None);
    assert!(found.is_err(), "{bug:?} is not found");
}

#[cfg(feature = "canary")]
#[test]
fn stream_bugs_are_found() {
    is_found(Bug::StreamChecksumUnseeded, misdirected_writes_are_found);
    is_found(Bug::StreamChecksumIgnored, damage_is_found);
    is_found(Bug::HealUnchecked, crashes_lose_nothing);
    is_found(Bug::StreamCacheStale, crashes_lose_nothing);
    is_found(Bug::StreamMapBeforeData, crashes_lose_nothing);
    is_found(Bug::StreamIncompleteRead, copies_of_changing_streams_are_completed_by_the_log);
}
