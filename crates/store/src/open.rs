//! Formatting and opening a data directory: everything before a node starts to operate.
//!
//! The order of steps matters, because a crash may interrupt any of them: the identity is read before anything is
//! changed; the manifest is repaired before it is used; doubt is forced in the manifest before damage is cut off; the
//! boot number is forced before any message carries it.

use std::collections::{BTreeMap, BTreeSet};

use base::{Boot, CohortId, NodeId, ProcessStart, Record, StartHistory};
use bytes::Bytes;

use crate::checkpoint::{self, CheckpointError, CheckpointMeta, read_checkpoint};
use crate::error::StoreError;
use crate::files::{FileErrorKind, Files};
use crate::identity::{self, Identity, Owner};
use crate::log::{self, Damage, LogPosition, LogSink, SegmentJob};
use crate::manifest::{self, CohortManifest, Manifest, Places};
use crate::sstable::{self, SstableError};
use crate::store::{Config, Store};
use crate::stream::{self, StreamError, StreamStore};
use crate::tree::{OpenSstables, Tablespace, Tree};
use crate::{FORMAT, SHARD_DIRECTORY};

/// The content of an opened data directory. `L` is the sink that received the log's records.
#[derive(Debug)]
pub struct Recovered<L = Vec<Record>> {
    /// The identity of the disk.
    pub identity: Identity,
    /// The number of this start, forced.
    pub boot: Boot,
    /// The newest start of each peer that this node has seen.
    pub peers: BTreeMap<NodeId, ProcessStart>,
    /// The hard state of every cohort. A cohort with a damaged checkpoint or SSTable has neither and is in doubt; after
    /// damage in the log every cohort is in doubt. The flags of a clean stop are already cleared on disk.
    pub cohorts: BTreeMap<CohortId, CohortManifest>,
    /// Whether cohorts missing from `cohorts` are in doubt too.
    pub doubt_unknown: bool,
    /// The sink, with every record of the log in order, up to any damage.
    pub records: L,
    /// The chunks of the checkpoints named in `cohorts`.
    pub checkpoints: BTreeMap<CohortId, Vec<Bytes>>,
    /// The bulk data in the files named in `cohorts`.
    pub bulks: BTreeMap<CohortId, Bulk>,
    /// The tablespace of these and later ones.
    pub tablespace: Tablespace,
    /// Bytes cut at the end of the log, after a torn write or because of stale frames.
    pub torn_bytes: u64,
    /// Damage found in the log and cut off.
    pub damage: Option<Damage>,
    /// Messages for an operator: repairs, cuts and doubts.
    pub notes: Vec<String>,
}

impl<L> Recovered<L> {
    /// Converts the sink, with access to the cohorts' hard state.
    pub fn map_records<M>(self, make: impl FnOnce(L, &BTreeMap<CohortId, CohortManifest>) -> M) -> Recovered<M> {
        Recovered {
            records: make(self.records, &self.cohorts),
            identity: self.identity,
            boot: self.boot,
            peers: self.peers,
            cohorts: self.cohorts,
            doubt_unknown: self.doubt_unknown,
            checkpoints: self.checkpoints,
            bulks: self.bulks,
            tablespace: self.tablespace,
            torn_bytes: self.torn_bytes,
            damage: self.damage,
            notes: self.notes,
        }
    }
}

/// Formats an empty data directory. May be repeated with the same identity after an interruption; does nothing if it is
/// complete.
///
/// # Errors
/// When the directory belongs to another identity ([`StoreError::OtherIdentity`]), holds data without an identity
/// ([`StoreError::InUse`]), or a file operation fails.
pub fn format<F: Files>(files: &F, identity: &Identity, config: &Config) -> Result<(), StoreError> {
    config.check()?;
    match identity::read(files)? {
        // Only the second copy, or forcing the name of the first one, can be missing.
        Some(found) if found == *identity => {
            identity::open(files)?;
            return Ok(files.sync_dir("")?);
        }
        Some(found) => return Err(StoreError::OtherIdentity { node: found.node }),
        None => {}
    }
    let first = Manifest {
        version: 1,
        starts: StartHistory::default(),
        peers: BTreeMap::new(),
        segment_bytes: config.segment_bytes,
        oldest_segment: 1,
        log_end: LogPosition::new(1, 0, config.segment_bytes),
        doubt_unknown: false,
        cohorts: BTreeMap::new(),
    };
    // Without an identity no node ever started here: any files are remains of this same formatting.
    let is_in_use = |(owner, manifest): &(Owner, Manifest)| *owner != identity.owner() || *manifest != first;
    if manifest::read_copies(files)?.iter().flatten().any(is_in_use) {
        return Err(StoreError::InUse);
    }
    files.create_dir(SHARD_DIRECTORY)?;
    files.create_dir(log::DIRECTORY)?;
    files.create_dir(checkpoint::DIRECTORY)?;
    files.create_dir(sstable::DIRECTORY)?;
    files.sync_dir("")?;
    files.sync_dir(SHARD_DIRECTORY)?;
    SegmentJob::fill(1, config.segment_bytes).execute(files)?;
    let write = Places::open(files, identity.owner())?.write(first);
    write.write_place(0)?;
    write.write_place(1)?;
    identity::write(files, identity)?;
    Ok(())
}

/// Opens a data directory: reads and repairs it, and counts this start. The result is durable in both places. For tests:
/// the nonce of the start is 0.
///
/// # Errors
/// When the directory is not formatted, has another format or is lost, or a file operation fails. A repeated call
/// continues after a failed one.
pub fn open<F: Files + Clone>(files: F, config: Config) -> Result<(Store<F>, Recovered), StoreError> {
    let sstables = files.clone();
    open_into(files, &sstables, config, 0, Vec::new())
}

/// As [`open`], with the random nonce of this start, a sink for the log's records, and SSTables opened through `sstables`: the same directory as
/// `files`, possibly with a limit on open files.
///
/// # Errors
/// As for [`open`].
pub fn open_into<F: Files, T: Files, L: LogSink>(
    files: F,
    sstables: &T,
    config: Config,
    nonce: u64,
    mut records: L,
) -> Result<(Store<F>, Recovered<L>), StoreError> {
    let mut notes = Vec::new();
    let (identity, is_mended) = identity::open(&files)?;
    note_if(&mut notes, is_mended, "repaired a missing or damaged copy of the identity");
    let owner = identity.owner();
    let (mut manifest, places, is_mended) = manifest::open(&files, owner)?;
    note_if(&mut notes, is_mended, "repaired a missing, outdated or damaged copy of the manifest");
    let config = Config { segment_bytes: manifest.segment_bytes, ..config };
    config.check()?;

    // Before the log is read, because entries of an unusable checkpoint are needed from the log.
    let is_alone = identity.members.len() == 1;
    let tablespace = Tablespace::new(owner, config.tree, config.cache_bytes, config.recent_bytes);
    let (checkpoints, bulks) = read_states(&files, sstables, &owner, &tablespace, is_alone, &mut manifest, &mut notes)?;
    let log = log::recover(&files, owner, &manifest, &mut records)?;
    if let Some(damage) = log.damage.as_ref().filter(|_| is_alone) {
        return Err(StoreError::NoCopyToRepairFrom { what: format!("the log at {}", damage.position) });
    }
    if let Some(damage) = &log.damage {
        notes.push(format!("the log is damaged at {}: all cohorts are in doubt from there on", damage.position));
        mark_all_doubtful(&mut manifest, &log.cohorts);
    }

    let found = manifest.cohorts.clone();
    // From here on replicas may acknowledge entries that only the next clean stop will make durable.
    manifest.cohorts.values_mut().for_each(|cohort| cohort.whole = false);
    manifest.version += 1;
    manifest.starts.add(nonce);
    manifest.log_end = log.writer.tail();
    let write = places.write(manifest.clone());
    write.write_place(0)?;
    write.write_place(1)?;
    if let Some(damage) = &log.damage {
        log::cut_damaged(&files, config.segment_bytes, damage)?;
    }
    remove_remains(&files, &manifest)?;

    let recovered = Recovered {
        identity: identity.clone(),
        boot: manifest.starts.newest().boot,
        peers: manifest.peers.clone(),
        cohorts: found,
        doubt_unknown: manifest.doubt_unknown,
        records,
        checkpoints,
        bulks,
        tablespace,
        torn_bytes: log.cut_bytes,
        damage: log.damage,
        notes,
    };
    let mut store = Store::new(files, config, identity, manifest, places, log.writer);
    prepare_segments(&mut store)?;
    Ok((store, recovered))
}

fn note_if(notes: &mut Vec<String>, condition: bool, note: &str) {
    if condition {
        notes.push(note.to_owned());
    }
}

fn mark_all_doubtful(manifest: &mut Manifest, in_log: &BTreeSet<CohortId>) {
    for cohort in in_log {
        manifest.cohorts.entry(*cohort).or_default();
    }
    manifest.cohorts.values_mut().for_each(|cohort| cohort.doubtful = true);
    manifest.doubt_unknown = true;
}

type States = (BTreeMap<CohortId, Vec<Bytes>>, BTreeMap<CohortId, Bulk>);

/// The data of a cohort in files that a manifest names with a checkpoint.
#[derive(Debug)]
pub enum Bulk {
    Tree(Box<Tree>),
    Stream(Box<StreamStore>),
}

/// Why the files of a cohort cannot be opened.
#[derive(Debug, thiserror::Error)]
enum BulkError {
    #[error(transparent)]
    Tree(#[from] SstableError),
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// Reads the checkpoints and files named by the manifest. If one is unreadable, all of its cohort are removed from
/// the manifest and the cohort is in doubt. A single-node cluster refuses to start instead, and changes nothing.
fn read_states<F: Files, T: Files>(
    files: &F,
    sstables: &T,
    owner: &Owner,
    tablespace: &Tablespace,
    is_alone: bool,
    manifest: &mut Manifest,
    notes: &mut Vec<String>,
) -> Result<States, StoreError> {
    let (mut checkpoints, mut bulks) = States::default();
    let mut opened = OpenSstables::new();
    for (id, cohort) in &mut manifest.cohorts {
        let Some(named) = cohort.checkpoint else { continue };
        let meta = CheckpointMeta { cohort: *id, lsn: named.lsn, timestamp: named.timestamp };
        let opened_bulk = open_bulk(sstables, tablespace, *id, cohort, &mut opened);
        let wrong = match (read_checkpoint(files, owner, &meta), opened_bulk) {
            (Ok(chunks), Ok(bulk)) => {
                if let Some(Bulk::Stream(stream)) = &bulk
                    && let Some(cut) = stream.cut_short()?
                {
                    notes.push(format!("cohort {id}: {cut}; its blocks are written again from other replicas"));
                }
                checkpoints.insert(*id, chunks);
                bulks.extend(bulk.map(|bulk| (*id, bulk)));
                continue;
            }
            (Err(CheckpointError::File(error)), _)
            | (_, Err(BulkError::Tree(SstableError::File(error)) | BulkError::Stream(StreamError::File(error)))) => {
                return Err(error.into());
            }
            (Err(CheckpointError::OtherFormat(found)), _) => {
                return Err(StoreError::OtherFormat { what: "a checkpoint", found, known: FORMAT });
            }
            (_, Err(BulkError::Tree(SstableError::OtherFormat(found)))) => {
                return Err(StoreError::OtherFormat { what: "an SSTable", found, known: FORMAT });
            }
            (Err(error), _) => format!("{}: {error}", meta.path()),
            (_, Err(error)) => error.to_string(),
        };
        if is_alone {
            return Err(StoreError::NoCopyToRepairFrom { what: wrong });
        }
        notes.push(format!("cohort {id} is in doubt: {wrong}"));
        cohort.checkpoint = None;
        cohort.sstables = Default::default();
        cohort.doubtful = true;
    }
    Ok((checkpoints, bulks))
}

fn open_bulk<F: Files>(
    files: &F,
    tablespace: &Tablespace,
    id: CohortId,
    cohort: &CohortManifest,
    opened: &mut OpenSstables,
) -> Result<Option<Bulk>, BulkError> {
    if cohort.sstables.is_empty() {
        return Ok(None);
    }
    if cohort.sstables.iter().all(stream::is_stream_file) {
        let stream = StreamStore::open(files, tablespace.site(id), &cohort.sstables)?;
        return Ok(Some(Bulk::Stream(Box::new(stream))));
    }
    // New SSTables must not reuse the numbers of SSTables that another cohort's tree refers to.
    cohort.sstables.iter().for_each(|sstable| tablespace.site(sstable.id.cohort).numbers.pass(sstable.id.number));
    Ok(Some(Bulk::Tree(Box::new(Tree::open(files, tablespace.site(id), &cohort.sstables, opened)?))))
}

/// Removes files that an earlier process did not finish or name.
fn remove_remains<F: Files>(files: &F, manifest: &Manifest) -> Result<(), StoreError> {
    let named = manifest.cohorts.iter().filter_map(|(id, cohort)| Some((*id, cohort.checkpoint?.lsn)));
    checkpoint::remove_unnamed(files, &named.collect())?;
    let named = manifest.cohorts.values().flat_map(|cohort| cohort.sstables.iter().map(|sstable| sstable.id));
    Ok(sstable::remove_unnamed(files, &named.collect())?)
}

/// A full disk must not prevent reads: the driver retries jobs that failed for lack of space.
fn prepare_segments<F: Files>(store: &mut Store<F>) -> Result<(), StoreError> {
    while let Some(job) = store.segment_job() {
        match job.execute(store.files()) {
            Ok(()) => store.segment_done(job),
            Err(error) if error.kind == FileErrorKind::NoSpace => {
                store.segment_postponed(job);
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
