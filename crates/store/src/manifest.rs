//! The hard state of a node: it must survive however long its cohorts are idle and its log is. It is stored in two
//! places, which are forced one after the other before any message that depends on it is sent. One intact copy is
//! enough (guarantee 6).
//!
//! Invariants:
//! * A place is overwritten only while the other holds an intact copy: [`ManifestWrite::write_place`] writes them in
//!   order, and recovery repairs and forces a lost or older copy before anything else is written or answered.
//! * Versions only grow. The intact copy with the higher version is the manifest, even if the other copy was never
//!   written: its promises were not announced yet, and keeping a promise that was not announced is safe.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Wire, Writer};
use base::{CohortId, Lsn, NodeId, ProcessStart, Promise, SharedMembership, StartHistory, Timestamp};
use bytes::Bytes;

use crate::error::StoreError;
use crate::files::{File, FileError, Files, OpenOptions, open_if_exists, read_whole};
use crate::identity::Owner;
use crate::log::LogPosition;
use crate::sealed::{Broken, SEALED_BYTES_MAX, seal, unseal};
use crate::sstable::SstableRef;
use crate::{FORMAT, SHARD_DIRECTORY};

const MAGIC: [u8; 8] = *b"loggosMF";
const WHAT: &str = "manifest";

/// The files of the two copies, in write order.
pub const PLACES: [&str; 2] = ["0/manifest.a", "0/manifest.b"];

/// A checkpoint on this disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointRef {
    /// The last entry included.
    pub lsn: Lsn,
    /// The timestamp of that entry.
    pub timestamp: Timestamp,
    /// Size of its file.
    pub bytes: u64,
}

/// The hard state of one cohort's replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CohortManifest {
    pub promised: Promise,
    pub checkpoint: Option<CheckpointRef>,
    /// The SSTables with the rows as of the checkpoint.
    pub sstables: Arc<[SstableRef]>,
    /// The cohort's members as of the checkpoint, or as of its creation without one. Empty if this replica joined an
    /// existing cohort and has no checkpoint yet: it learns them from the log (guarantee 8).
    pub membership: SharedMembership,
    /// Whether forced and possibly acknowledged data of this replica was lost to damage (guarantee 7).
    pub doubtful: bool,
    /// Whether the replica was removed from this node: only its promise remains, and its records in the log are not
    /// needed.
    pub is_retired: bool,
    /// Whether a clean stop left everything that this replica acknowledged in the log, for cohorts with main-memory
    /// logs (guarantee 11). Cleared first at every start.
    pub whole: bool,
}

/// The hard state of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Manifest {
    /// Counts the manifests of this disk.
    pub version: u64,
    /// The starts on this disk.
    pub starts: StartHistory,
    /// The newest start of each peer that this node has seen (guarantee 6).
    pub peers: BTreeMap<NodeId, ProcessStart>,
    /// Bytes of a log segment, fixed at formatting.
    pub segment_bytes: u64,
    /// The oldest segment of the log; earlier ones are ignored.
    pub oldest_segment: u64,
    /// The log was forced through here when this was written: a log that ends earlier is damaged (guarantee 7).
    pub log_end: LogPosition,
    /// Whether cohorts that this manifest does not name are in doubt too, because damage may have destroyed all of
    /// their records.
    pub doubt_unknown: bool,
    /// Hard state by cohort.
    pub cohorts: BTreeMap<CohortId, CohortManifest>,
}

base::wire! { struct CheckpointRef { lsn, timestamp, bytes } }
base::wire! { struct CohortManifest { promised, checkpoint, sstables, membership, doubtful, is_retired, whole } }

impl Manifest {
    /// The content of one place. Includes its file name and owner, to detect a misplaced copy.
    fn encode(&self, owner: &Owner, place: usize) -> Bytes {
        let mut out = Writer::new();
        owner.encode(&mut out);
        out.bytes(PLACES[place].as_bytes());
        out.u64(self.version);
        self.starts.encode(&mut out);
        self.peers.encode(&mut out);
        out.u64(self.segment_bytes);
        out.u64(self.oldest_segment);
        out.u64(self.log_end.0);
        out.bool(self.doubt_unknown);
        self.cohorts.encode(&mut out);
        seal(MAGIC, out.as_slice()).into()
    }

    fn decode(content: Bytes, place: usize) -> Result<(Owner, Self), DecodeError> {
        let mut input = Reader::new(content);
        let owner = Owner::decode(&mut input)?;
        if input.bytes()? != PLACES[place].as_bytes() {
            return Err(DecodeError::Invalid { what: "manifest copy index" });
        }
        let (version, starts) = (input.u64()?, StartHistory::decode(&mut input)?);
        let manifest = Self {
            version,
            starts,
            peers: Wire::decode(&mut input)?,
            segment_bytes: input.u64()?,
            oldest_segment: input.u64()?,
            log_end: LogPosition(input.u64()?),
            doubt_unknown: input.bool()?,
            cohorts: Wire::decode(&mut input)?,
        };
        input.end()?;
        Ok((owner, manifest))
    }
}

/// The copies in both places; `None` for one that is missing, damaged or misplaced.
pub(crate) fn read_copies<F: Files>(files: &F) -> Result<[Option<(Owner, Manifest)>; 2], StoreError> {
    Ok([read_copy(files, 0)?, read_copy(files, 1)?])
}

fn read_copy<F: Files>(files: &F, place: usize) -> Result<Option<(Owner, Manifest)>, StoreError> {
    let Some(sealed) = read_whole(files, PLACES[place], SEALED_BYTES_MAX)? else { return Ok(None) };
    match unseal(MAGIC, &sealed) {
        Ok(content) => Ok(Manifest::decode(content, place).ok()),
        Err(Broken::Damaged) => Ok(None),
        Err(Broken::OtherFormat(found)) => Err(StoreError::OtherFormat { what: WHAT, found, known: FORMAT }),
    }
}

/// The two files, opened for writing.
#[derive(Clone, Debug)]
pub(crate) struct Places<H> {
    owner: Owner,
    handles: [H; 2],
}

impl<H: File> Places<H> {
    /// Opens both files, creating missing ones, and forces the directory.
    pub(crate) fn open<F: Files<File = H>>(files: &F, owner: Owner) -> Result<Self, FileError> {
        let handle = |place: &str| match open_if_exists(files, place, OpenOptions::BUFFERED)? {
            Some(file) => Ok(file),
            None => files.create(place, OpenOptions::BUFFERED),
        };
        let handles = [handle(PLACES[0])?, handle(PLACES[1])?];
        files.sync_dir(SHARD_DIRECTORY)?;
        Ok(Self { owner, handles })
    }

    /// The steps that write `manifest` in both places.
    pub(crate) fn write(&self, manifest: Manifest) -> ManifestWrite<H> {
        ManifestWrite {
            handles: self.handles.clone(),
            owner: self.owner,
            manifest,
            release: Vec::new(),
            superseded: BTreeMap::new(),
            gone: BTreeSet::new(),
        }
    }
}

/// Reads the manifest and repairs a lost or older copy. Returns whether it did.
///
/// A copy that was read may exist only in the page cache: the last process may have ended between write and force, or
/// after a failed force. So the copy that was being written is written and forced again before the other one is
/// touched. If both are equal, the first is durable, because the second is written after it.
///
/// # Errors
/// [`StoreError::Lost`] when no copy is intact.
pub(crate) fn open<F: Files>(files: &F, owner: Owner) -> Result<(Manifest, Places<F::File>, bool), StoreError> {
    let copies =
        read_copies(files)?.map(|copy| copy.filter(|(whose, _)| *whose == owner).map(|(_, manifest)| manifest));
    let newest = copies.iter().flatten().max_by_key(|manifest| manifest.version);
    let newest = newest.ok_or(StoreError::Lost { what: WHAT })?;
    let places = Places::open(files, owner)?;
    let write = places.write(newest.clone());
    let is_mended = copies[0] != copies[1];
    if !planted(Bug::ManifestNotMended) {
        let [first, second] = copies.each_ref().map(|copy| copy.as_ref().map(|copy| copy == newest));
        let first_is_forced = first == Some(true) && second != Some(false);
        if !first_is_forced {
            write.write_place(0)?;
        }
        write.write_place(1)?;
    }
    Ok((newest.clone(), places, is_mended))
}

/// The write of one manifest, in steps that may run on another thread: place 0, place 1, then
/// [`ManifestWrite::remove_superseded`]. Manifests are written one at a time, in the order of their versions.
#[derive(Clone, Debug)]
pub struct ManifestWrite<H> {
    handles: [H; 2],
    owner: Owner,
    manifest: Manifest,
    pub(crate) release: Vec<u64>,
    /// Checkpoints named by the previous manifest and not by this one.
    pub(crate) superseded: BTreeMap<CohortId, Lsn>,
    /// Cohorts with checkpoints to remove.
    pub(crate) gone: BTreeSet<CohortId>,
}

impl<H: File> ManifestWrite<H> {
    /// The manifest to write.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Writes and forces the copy in place 0 or 1. Place 0 must be forced before place 1 is written.
    ///
    /// # Errors
    /// When the disk fails: the process must end.
    ///
    /// # Panics
    /// When `place` is not 0 or 1.
    pub fn write_place(&self, place: usize) -> Result<(), FileError> {
        self.handles[place].write_at(0, &self.manifest.encode(&self.owner, place))?;
        self.handles[place].sync()
    }

    /// Removes superseded checkpoints and those of removed cohorts. Both places must be forced before.
    ///
    /// # Errors
    /// When a file operation fails.
    pub fn remove_superseded<F: Files<File = H>>(&self, files: &F) -> Result<(), FileError> {
        crate::checkpoint::remove(files, &self.superseded, &self.gone)
    }

    /// Runs all steps in order.
    ///
    /// # Errors
    /// When the disk fails: the process must end.
    pub fn execute<F: Files<File = H>>(&self, files: &F) -> Result<(), FileError> {
        self.write_place(0)?;
        self.write_place(1)?;
        self.remove_superseded(files)
    }
}

#[cfg(test)]
mod tests;
