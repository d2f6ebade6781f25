//! A simulated disk in memory, for tests and the simulator. It loses unforced data on power loss.
//!
//! Every file has a durable and a written content, which differ in the *dirty* sectors (512 bytes). Power loss keeps
//! any subset of the dirty sectors, and a prefix of the unforced directory operations. Handles become invalid when the
//! process ends. Injectable faults: failing forces, a crash at a given operation, flipped bits, a full disk.
//!
//! Clones refer to the same disk. Threads may share it; each operation is atomic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::SplitMix64;

use crate::BLOCK_BYTES;
use crate::files::{File, FileError, FileErrorKind, Files, OpenOptions, ReadAt};

mod content;
use content::Content;

/// The unit in which power loss keeps or loses writes.
pub const SECTOR_BYTES: usize = 512;
/// The content of space that was released.
const PUNCHED: u8 = 0xdb;

/// Totals of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations that change something, including forces: the possible crash points.
    pub operations: u64,
    pub syncs: u64,
    pub directory_syncs: u64,
    pub bytes_written: u64,
}

/// A simulated disk in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk {
    disk: Arc<Mutex<Disk>>,
}

/// A handle to a file of a [`MemoryDisk`].
#[derive(Clone, Debug)]
pub struct MemoryFile {
    disk: Arc<Mutex<Disk>>,
    content: Arc<Mutex<Content>>,
    path: Arc<str>,
    process: u64,
    /// Whether only whole blocks are accepted, as with direct IO on a real disk.
    direct: bool,
}

type Directory = BTreeMap<String, Arc<Mutex<Content>>>;

#[derive(Clone, Debug)]
enum Change {
    CreateDirectory { path: String },
    Create { path: String, content: Arc<Mutex<Content>> },
    Rename { from: String, to: String },
    Remove { path: String },
}

#[derive(Debug, Default)]
struct Disk {
    /// Files by path, as seen by the process.
    seen: Directory,
    directories_seen: BTreeSet<String>,
    /// Files by path, as after power loss.
    durable: Directory,
    directories_durable: BTreeSet<String>,
    unforced: Vec<Change>,
    counters: Counters,
    process: u64,
    capacity: Option<u64>,
    crash_at: Option<u64>,
    crash_writing: Option<String>,
    failing_syncs: u64,
    faults: Option<SplitMix64>,
}

impl MemoryDisk {
    /// An empty disk without faults or size limit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy of the disk as the process sees it, all of it durable, without injected faults.
    #[must_use]
    pub fn copy(&self) -> Self {
        let disk = lock(&self.disk);
        let copied = |content: &Arc<Mutex<Content>>| {
            let mut content = lock(content).clone();
            content.sync();
            Arc::new(Mutex::new(content))
        };
        let files: Directory = disk.seen.iter().map(|(path, content)| (path.clone(), copied(content))).collect();
        let directories = disk.directories_seen.clone();
        let copy = Disk {
            seen: files.clone(),
            directories_seen: directories.clone(),
            durable: files,
            directories_durable: directories,
            ..Disk::default()
        };
        Self { disk: Arc::new(Mutex::new(copy)) }
    }

    /// Power loss: keeps or loses each unforced sector, and keeps a prefix of the unforced directory operations.
    /// Invalidates handles and clears injected crashes and failing forces.
    pub fn crash(&self, random: &mut SplitMix64) {
        let mut disk = lock(&self.disk);
        let kept = random.below(disk.unforced.len() as u64 + 1);
        for change in disk.take_unforced(|place, _| (place as u64) < kept) {
            disk.make_durable(change);
        }
        disk.unforced.clear();
        disk.drop_unreachable();
        disk.seen = disk.durable.clone();
        disk.directories_seen = disk.directories_durable.clone();
        for content in disk.seen.values() {
            lock(content).crash(random);
        }
        disk.restart();
    }

    /// Kills the process but not the machine: all writes remain, forced or not. Invalidates handles and clears injected
    /// crashes and failing forces.
    pub fn kill(&self) {
        lock(&self.disk).restart();
    }

    /// Makes the next `count` file forces fail: their data is partly durable and partly lost, and a later force does
    /// not report it.
    pub fn fail_syncs(&self, count: u64, random: &mut SplitMix64) {
        let mut disk = lock(&self.disk);
        disk.failing_syncs = count;
        disk.faults = Some(SplitMix64::new(random.draw()));
    }

    /// Makes the `count`-th following modifying operation and all later ones fail with [`FileErrorKind::Crashed`],
    /// until [`MemoryDisk::crash`] or [`MemoryDisk::kill`].
    pub fn crash_after_operations(&self, count: u64) {
        let mut disk = lock(&self.disk);
        disk.crash_at = Some(disk.counters.operations + count);
    }

    /// Crashes the machine after the next write to this file, before it is forced.
    pub fn crash_writing(&self, path: &str) {
        lock(&self.disk).crash_writing = Some(path.to_owned());
    }

    /// Whether a requested crash has happened.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        lock(&self.disk).crashed()
    }

    /// Flips a bit of a file; false if the file has no such byte.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u8) -> bool {
        let disk = lock(&self.disk);
        disk.seen.get(path).is_some_and(|content| lock(content).flip_bit(offset, bit))
    }

    /// Limits the total size of all files; `None` removes the limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        lock(&self.disk).capacity = bytes;
    }

    /// Whether there is a size limit.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        lock(&self.disk).capacity.is_some()
    }

    /// Total size of all files.
    #[must_use]
    pub fn bytes_used(&self) -> u64 {
        lock(&self.disk).used()
    }

    /// Totals of the disk so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        lock(&self.disk).counters
    }

    /// The paths of all files, sorted.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        lock(&self.disk).seen.keys().cloned().collect()
    }
}

/// A poisoned lock is usable: no code that holds it panics in the middle of an update.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(op: &'static str, path: &str, kind: FileErrorKind) -> FileError {
    let message = match kind {
        FileErrorKind::NotFound => "no such file or directory",
        FileErrorKind::Exists => "it exists",
        FileErrorKind::NoSpace => "no space left on the simulated disk",
        FileErrorKind::Crashed => "the simulated machine has crashed",
        FileErrorKind::Other => "the simulated disk failed",
    };
    FileError { op, path: path.into(), kind, message: message.into() }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

impl Disk {
    fn crashed(&self) -> bool {
        self.crash_at.is_some_and(|at| self.counters.operations >= at)
    }

    fn restart(&mut self) {
        self.process += 1;
        self.crash_at = None;
        self.crash_writing = None;
        self.failing_syncs = 0;
    }

    /// Check before a reading operation.
    fn check_readable(&self, op: &'static str, path: &str) -> Result<(), FileError> {
        if self.crashed() { Err(failed(op, path, FileErrorKind::Crashed)) } else { Ok(()) }
    }

    /// Check before a modifying operation.
    fn change(&mut self, op: &'static str, path: &str) -> Result<(), FileError> {
        self.check_readable(op, path)?;
        self.counters.operations += 1;
        self.check_readable(op, path)
    }

    fn used(&self) -> u64 {
        self.seen.values().map(|content| lock(content).len()).sum()
    }

    /// Removes and returns the changes selected by index and directory, oldest first.
    fn take_unforced(&mut self, pick: impl Fn(usize, &str) -> bool) -> Vec<Change> {
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        for (place, change) in std::mem::take(&mut self.unforced).into_iter().enumerate() {
            if pick(place, parent(change.path())) { taken.push(change) } else { left.push(change) }
        }
        self.unforced = left;
        taken
    }

    fn make_durable(&mut self, change: Change) {
        match change {
            Change::CreateDirectory { path } => {
                self.directories_durable.insert(path);
            }
            Change::Create { path, content } => {
                self.durable.insert(path, content);
            }
            Change::Rename { from, to } => {
                if let Some(content) = self.durable.remove(&from) {
                    self.durable.insert(to, content);
                }
            }
            Change::Remove { path } => {
                self.durable.remove(&path);
            }
        }
    }

    /// A file is lost if its directory was never forced into its parent.
    fn drop_unreachable(&mut self) {
        let Self { durable, directories_durable, .. } = self;
        durable.retain(|path, _| parent(path).is_empty() || directories_durable.contains(parent(path)));
    }
}

impl Change {
    fn path(&self) -> &str {
        match self {
            Self::CreateDirectory { path } | Self::Create { path, .. } | Self::Remove { path } => path,
            Self::Rename { from, .. } => from,
        }
    }
}

impl MemoryDisk {
    fn handle(&self, path: &str, options: OpenOptions, content: &Arc<Mutex<Content>>, process: u64) -> MemoryFile {
        let OpenOptions { direct } = options;
        MemoryFile { disk: Arc::clone(&self.disk), content: Arc::clone(content), path: path.into(), process, direct }
    }
}

impl Files for MemoryDisk {
    type File = MemoryFile;

    fn open(&self, path: &str, options: OpenOptions) -> Result<MemoryFile, FileError> {
        let disk = lock(&self.disk);
        disk.check_readable("open", path)?;
        let content = disk.seen.get(path).ok_or_else(|| failed("open", path, FileErrorKind::NotFound))?;
        Ok(self.handle(path, options, content, disk.process))
    }

    fn create(&self, path: &str, options: OpenOptions) -> Result<MemoryFile, FileError> {
        let mut disk = lock(&self.disk);
        disk.change("create", path)?;
        if disk.seen.contains_key(path) {
            return Err(failed("create", path, FileErrorKind::Exists));
        }
        if !parent(path).is_empty() && !disk.directories_seen.contains(parent(path)) {
            return Err(failed("create", path, FileErrorKind::NotFound));
        }
        let content = Arc::<Mutex<Content>>::default();
        disk.seen.insert(path.into(), Arc::clone(&content));
        disk.unforced.push(Change::Create { path: path.into(), content: Arc::clone(&content) });
        Ok(self.handle(path, options, &content, disk.process))
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, FileError> {
        let disk = lock(&self.disk);
        disk.check_readable("list", directory)?;
        if !directory.is_empty() && !disk.directories_seen.contains(directory) {
            return Err(failed("list", directory, FileErrorKind::NotFound));
        }
        let within = disk.seen.keys().filter(|path| parent(path) == directory);
        Ok(within.map(|path| path.rsplit('/').next().unwrap_or(path).to_owned()).collect())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        let mut disk = lock(&self.disk);
        disk.change("rename", from)?;
        let content = disk.seen.remove(from).ok_or_else(|| failed("rename", from, FileErrorKind::NotFound))?;
        disk.seen.insert(to.into(), content);
        disk.unforced.push(Change::Rename { from: from.into(), to: to.into() });
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<(), FileError> {
        let mut disk = lock(&self.disk);
        disk.change("remove", path)?;
        disk.seen.remove(path).ok_or_else(|| failed("remove", path, FileErrorKind::NotFound))?;
        disk.unforced.push(Change::Remove { path: path.into() });
        Ok(())
    }

    fn create_dir(&self, path: &str) -> Result<(), FileError> {
        let mut disk = lock(&self.disk);
        disk.change("create the directory", path)?;
        if disk.directories_seen.insert(path.into()) {
            disk.unforced.push(Change::CreateDirectory { path: path.into() });
        }
        Ok(())
    }

    fn sync_dir(&self, path: &str) -> Result<(), FileError> {
        let mut disk = lock(&self.disk);
        disk.change("force the directory", path)?;
        disk.counters.directory_syncs += 1;
        for change in disk.take_unforced(|_, directory| directory == path) {
            disk.make_durable(change);
        }
        Ok(())
    }
}

impl MemoryFile {
    fn check(&self, op: &'static str, disk: &Disk) -> Result<(), FileError> {
        if disk.process == self.process { Ok(()) } else { Err(failed(op, &self.path, FileErrorKind::Crashed)) }
    }

    fn check_blocks(&self, op: &'static str, offset: u64, buffer: &[u8]) -> Result<(), FileError> {
        let is_whole = |number: usize| number.is_multiple_of(BLOCK_BYTES);
        let are_blocks =
            offset.is_multiple_of(BLOCK_BYTES as u64) && is_whole(buffer.len()) && is_whole(buffer.as_ptr().addr());
        if are_blocks || !self.direct { Ok(()) } else { Err(failed(op, &self.path, FileErrorKind::Other)) }
    }
}

impl ReadAt for MemoryFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        let disk = lock(&self.disk);
        self.check("read", &disk)?;
        self.check_blocks("read whole blocks of", offset, buffer)?;
        disk.check_readable("read", &self.path)?;
        Ok(lock(&self.content).read_at(offset, buffer))
    }
}

impl File for MemoryFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        let mut disk = lock(&self.disk);
        self.check("write", &disk)?;
        self.check_blocks("write whole blocks of", offset, bytes)?;
        disk.change("write", &self.path)?;
        let grows_by = (offset + bytes.len() as u64).saturating_sub(lock(&self.content).len());
        if grows_by > 0 && disk.capacity.is_some_and(|capacity| disk.used() + grows_by > capacity) {
            return Err(failed("write", &self.path, FileErrorKind::NoSpace));
        }
        disk.counters.bytes_written += bytes.len() as u64;
        lock(&self.content).write_at(offset, bytes);
        if disk.crash_writing.as_deref() == Some(&*self.path) {
            disk.crash_at = Some(disk.counters.operations);
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), FileError> {
        let mut disk = lock(&self.disk);
        self.check("force", &disk)?;
        disk.change("force", &self.path)?;
        disk.counters.syncs += 1;
        let Disk { failing_syncs, faults: Some(random), .. } = &mut *disk else {
            lock(&self.content).sync();
            return Ok(());
        };
        if *failing_syncs == 0 {
            lock(&self.content).sync();
            return Ok(());
        }
        *failing_syncs -= 1;
        lock(&self.content).crash(random);
        Err(failed("force", &self.path, FileErrorKind::Other))
    }

    /// Overwrites the part with a pattern, because the content is undefined.
    fn punch(&self, offset: u64, length: u64) -> Result<(), FileError> {
        let mut disk = lock(&self.disk);
        self.check("punch", &disk)?;
        disk.change("punch", &self.path)?;
        let mut content = lock(&self.content);
        let end = content.len().min(offset + length);
        if offset < end {
            content.write_at(offset, &vec![PUNCHED; (end - offset) as usize]);
        }
        Ok(())
    }

    fn len(&self) -> Result<u64, FileError> {
        let disk = lock(&self.disk);
        self.check("measure", &disk)?;
        disk.check_readable("measure", &self.path)?;
        Ok(lock(&self.content).len())
    }
}

#[cfg(test)]
mod tests;
