//! The hard state: what a node must never forget, however idle its cohorts and however long its log. It lies in two
//! places, forced one after the other before anything that rests on it leaves the node; one whole copy is enough
//! (guarantee 6).
//!
//! Invariants:
//! * A place is overwritten only while the other holds a whole copy: [`ManifestWrite::write_place`] goes place by place,
//!   and recovery mends a lost or older copy, forced, before anything else is written or answered.
//! * Versions only grow. The whole copy with the higher version is the manifest, even if its twin was never written: what
//!   it promises was never said to anyone, and keeping a promise that was never given is safe.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};
use base::{Boot, CohortId, Epoch, Incarnation, Lsn, Member, Membership, NodeId, Promise, SharedMembership, Timestamp};
use bytes::Bytes;

use crate::FORMAT;
use crate::error::StoreError;
use crate::files::{File, FileError, Files, OpenOptions, open_if_exists, read_whole};
use crate::identity::Owner;
use crate::log::LogPosition;
use crate::sealed::{Broken, SEALED_BYTES_MAX, seal, unseal};
use crate::sstable::TableRef;

const MAGIC: [u8; 8] = *b"loggosMF";
const WHAT: &str = "manifest";

/// The places of the two copies, in the order they are written.
pub const PLACES: [&str; 2] = ["manifest.a", "manifest.b"];

/// A checkpoint on this disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointRef {
    /// The last entry that it holds the effect of.
    pub lsn: Lsn,
    /// The timestamp of that entry.
    pub timestamp: Timestamp,
    /// Bytes of its file.
    pub bytes: u64,
}

/// The hard state of one cohort's replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CohortManifest {
    /// What it has promised.
    pub promised: Promise,
    /// Its newest checkpoint.
    pub checkpoint: Option<CheckpointRef>,
    /// The tables that hold its rows as they were at the checkpoint.
    pub tables: Arc<[TableRef]>,
    /// The cohort's members as of the checkpoint; as of its creation if there is none. Nobody, if this replica joined a
    /// cohort that was there already, and has no checkpoint yet: the log that it is sent will tell (guarantee 8).
    pub membership: SharedMembership,
    /// Whether something that this replica had forced, and may have acknowledged, was lost to damage (guarantee 7).
    pub doubtful: bool,
    /// Whether the replica has gone from here: nothing is left of it but its promise, and the log may forget what it
    /// holds.
    pub is_retired: bool,
    /// Whether a clean stop has left in the log all that this replica acknowledged, where its log was in main memory
    /// (guarantee 11). Every start takes it back before anything else.
    pub whole: bool,
}

/// The hard state of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Manifest {
    /// Counts the manifests of this disk.
    pub version: u64,
    /// Counts the starts on this disk.
    pub boot: Boot,
    /// Bytes of a log segment, fixed when the directory was formatted.
    pub segment_bytes: u64,
    /// The oldest segment of the log; what lies before is to be ignored.
    pub oldest_segment: u64,
    /// The log was forced through here when this was written: one that ends before was damaged (guarantee 7).
    pub log_end: LogPosition,
    /// Whether a cohort that this manifest does not name is to be doubted: damage may have taken all that the log held
    /// of it.
    pub doubt_unknown: bool,
    /// The cohorts.
    pub cohorts: BTreeMap<CohortId, CohortManifest>,
}

impl CohortManifest {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.promised.epoch.0);
        out.bool(self.promised.candidate.is_some());
        if let Some(candidate) = self.promised.candidate {
            out.u32(candidate.node.0);
            out.u64(candidate.incarnation.0);
        }
        out.bool(self.checkpoint.is_some());
        if let Some(checkpoint) = self.checkpoint {
            out.lsn(checkpoint.lsn);
            out.i64(checkpoint.timestamp.0);
            out.u64(checkpoint.bytes);
        }
        out.u32(u32::try_from(self.tables.len()).expect("tables are far fewer than 2^32"));
        self.tables.iter().for_each(|table| table.encode(out));
        self.membership.encode(out);
        out.bool(self.doubtful);
        out.bool(self.is_retired);
        out.bool(self.whole);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let epoch = Epoch(input.u64()?);
        let candidate = match input.bool()? {
            true => Some(Member { node: NodeId(input.u32()?), incarnation: Incarnation(input.u64()?) }),
            false => None,
        };
        let checkpoint = match input.bool()? {
            true => Some(CheckpointRef { lsn: input.lsn()?, timestamp: Timestamp(input.i64()?), bytes: input.u64()? }),
            false => None,
        };
        let tables = (0..input.count(TableRef::BYTES)?).map(|_| TableRef::decode(input)).collect::<Result<_, _>>()?;
        let membership = Membership::decode(input)?.into();
        let promised = Promise { epoch, candidate };
        let (doubtful, is_retired, whole) = (input.bool()?, input.bool()?, input.bool()?);
        Ok(Self { promised, checkpoint, tables, membership, doubtful, is_retired, whole })
    }
}

impl Manifest {
    /// The file of one place: its own name and owner are in it, so that a copy that landed elsewhere is not believed.
    fn encode(&self, owner: &Owner, place: usize) -> Bytes {
        let mut out = Writer::new();
        owner.encode(&mut out);
        out.bytes(PLACES[place].as_bytes());
        out.u64(self.version);
        out.u64(self.boot.0);
        out.u64(self.segment_bytes);
        out.u64(self.oldest_segment);
        out.u64(self.log_end.0);
        out.bool(self.doubt_unknown);
        out.u32(u32::try_from(self.cohorts.len()).expect("the number of cohorts is limited"));
        for (cohort, manifest) in &self.cohorts {
            out.u32(cohort.0);
            manifest.encode(&mut out);
        }
        seal(MAGIC, out.as_slice()).into()
    }

    fn decode(content: Bytes, place: usize) -> Result<(Owner, Self), DecodeError> {
        let mut input = Reader::new(content);
        let owner = Owner::decode(&mut input)?;
        if input.bytes()? != PLACES[place].as_bytes() {
            return Err(DecodeError::Invalid { what: "place of a manifest" });
        }
        let mut manifest = Self {
            version: input.u64()?,
            boot: Boot(input.u64()?),
            segment_bytes: input.u64()?,
            oldest_segment: input.u64()?,
            log_end: LogPosition(input.u64()?),
            doubt_unknown: input.bool()?,
            cohorts: BTreeMap::new(),
        };
        for _ in 0..input.count(37)? {
            let cohort = CohortId(input.u32()?);
            manifest.cohorts.insert(cohort, CohortManifest::decode(&mut input)?);
        }
        input.end()?;
        Ok((owner, manifest))
    }
}

/// The copies in both places, as they were found: nothing for one that is missing, damaged, or another place's.
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

/// The two places, opened for writing.
#[derive(Clone, Debug)]
pub(crate) struct Places<H> {
    owner: Owner,
    handles: [H; 2],
}

impl<H: File> Places<H> {
    /// Opens both places, creating the files that don't exist, with the directory forced.
    pub(crate) fn open<F: Files<File = H>>(files: &F, owner: Owner) -> Result<Self, FileError> {
        let handle = |place: &str| match open_if_exists(files, place, OpenOptions::BUFFERED)? {
            Some(file) => Ok(file),
            None => files.create(place, OpenOptions::BUFFERED),
        };
        let handles = [handle(PLACES[0])?, handle(PLACES[1])?];
        files.sync_dir("")?;
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

/// Reads the manifest and mends the copy that is lost or older. Says whether it had to.
///
/// What is read may lie in the system's memory alone: the last process may have ended between writing a copy and
/// forcing it, or because a force failed. So the copy that was being written is written again and forced while the
/// other is left alone, and only then the other takes its turn. Of two equal copies the first is forced: the second is
/// written after.
///
/// # Errors
/// [`StoreError::Lost`] when no copy is whole.
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

/// One manifest on its way to the disk, in steps that may run on another thread: place 0, place 1, then
/// [`ManifestWrite::remove_superseded`]. Manifests are written in the order of their versions, one after the other.
#[derive(Clone, Debug)]
pub struct ManifestWrite<H> {
    handles: [H; 2],
    owner: Owner,
    manifest: Manifest,
    pub(crate) release: Vec<u64>,
    /// The checkpoints that the manifest before named, and this one doesn't.
    pub(crate) superseded: BTreeMap<CohortId, Lsn>,
    /// Cohorts whose checkpoints go.
    pub(crate) gone: BTreeSet<CohortId>,
}

impl<H: File> ManifestWrite<H> {
    /// What is to be written.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Writes and forces the copy in place 0 or 1. Place 1 is written only after place 0 is forced.
    ///
    /// # Errors
    /// When the disk fails: the process must end.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn write_place(&self, place: usize) -> Result<(), FileError> {
        self.handles[place].write_at(0, &self.manifest.encode(&self.owner, place))?;
        self.handles[place].sync()
    }

    /// Removes the checkpoints that this manifest's take the place of, and those of cohorts that are gone. Both places
    /// are forced before.
    ///
    /// # Errors
    /// When a file operation fails.
    pub fn remove_superseded<F: Files<File = H>>(&self, files: &F) -> Result<(), FileError> {
        crate::checkpoint::remove(files, &self.superseded, &self.gone)
    }

    /// All steps, one after the other.
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
