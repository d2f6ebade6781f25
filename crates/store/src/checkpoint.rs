//! Checkpoints: the state of one cohort through one entry, as chunks from its state machine, in one file that is
//! installed atomically.
//!
//! A file consists of a sealed header (owner, cohort, entry), blocks, and a footer. Each block has its length and a
//! checksum that includes its index. The footer has the number of blocks and a checksum over all of them, so that a
//! truncated file is not taken for a smaller state.

use std::collections::{BTreeMap, BTreeSet};

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Epoch, Lsn, Sequence, Timestamp, checksum, checksum_append};
use bytes::Bytes;
use thiserror::Error;

use crate::BLOCK_BYTES;
use crate::appender::Appender;
use crate::files::{FileError, Files, TEMPORARY, read_whole, remove_if_exists};
use crate::identity::Owner;
use crate::sealed::{Broken, seal, unseal};

const MAGIC: [u8; 8] = *b"loggosCP";
const BLOCK: u8 = 1;
const FOOTER: u8 = 2;

/// The directory of the checkpoints.
pub const DIRECTORY: &str = "0/checkpoints";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CheckpointMeta {
    /// The cohort that the state belongs to.
    pub cohort: CohortId,
    /// The last entry included.
    pub lsn: Lsn,
    /// The timestamp of that entry.
    pub timestamp: Timestamp,
}

/// Why a checkpoint cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CheckpointError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file does not exist.
    #[error("the checkpoint is missing")]
    Missing,
    /// The file has an unknown format.
    #[error("the checkpoint has format {0}")]
    OtherFormat(u32),
    /// The header is damaged, or belongs to another checkpoint.
    #[error("the checkpoint's header is damaged, or belongs to another checkpoint")]
    Header,
    /// The block with this index is damaged.
    #[error("block {0} of the checkpoint is damaged")]
    Block(u64),
    /// The file is truncated, or its blocks do not match the footer.
    #[error("the checkpoint is incomplete")]
    Footer,
}

impl CheckpointMeta {
    /// The path of its file.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{DIRECTORY}/{}-{}.{}", self.cohort, self.lsn.epoch, self.lsn.sequence)
    }

    fn encode(&self, owner: &Owner) -> Vec<u8> {
        let mut out = Writer::new();
        owner.encode(&mut out);
        out.u32(self.cohort.0);
        out.lsn(self.lsn);
        out.i64(self.timestamp.0);
        seal(MAGIC, out.as_slice())
    }

    fn decode(content: Bytes) -> Result<(Owner, Self), DecodeError> {
        let mut input = Reader::new(content);
        let owner = Owner::decode(&mut input)?;
        let cohort = CohortId(input.u32()?);
        let meta = Self { cohort, lsn: input.lsn()?, timestamp: Timestamp(input.i64()?) };
        input.end()?;
        Ok((owner, meta))
    }
}

/// Writes a checkpoint, forces it and its directory, and returns the size of the file. Replaces a checkpoint of the
/// same name. May run on any thread, one checkpoint of a cohort at a time.
///
/// # Errors
/// When a file operation fails.
///
/// # Panics
/// When a chunk has 4 GiB or more.
pub fn write_checkpoint<F: Files>(
    files: &F,
    owner: &Owner,
    meta: &CheckpointMeta,
    chunks: impl Iterator<Item = Bytes>,
) -> Result<u64, FileError> {
    let (path, beside) = (meta.path(), format!("{}{TEMPORARY}", meta.path()));
    remove_if_exists(files, &beside)?;
    let mut out = Appender::create(files, beside.clone())?;
    out.room().extend_from_slice(&meta.encode(owner));
    let (mut blocks, mut sum) = (0_u64, 0);
    for chunk in chunks {
        let length = u32::try_from(chunk.len()).expect("a chunk is far below 4 GiB");
        out.room().push(BLOCK);
        out.room().extend_from_slice(&length.to_le_bytes());
        out.room().extend_from_slice(&block_checksum(blocks, &chunk).to_le_bytes());
        out.room().extend_from_slice(&chunk);
        out.write_if_full()?;
        sum = checksum_append(sum, &chunk);
        blocks += 1;
    }
    out.room().extend_from_slice(&footer(blocks, sum));
    let bytes = out.write_rest(files)?;
    out.force()?;
    files.rename(&beside, &path)?;
    files.sync_dir(DIRECTORY)?;
    Ok(bytes)
}

fn block_checksum(place: u64, block: &[u8]) -> u32 {
    checksum_append(checksum(&place.to_le_bytes()), block)
}

fn footer(blocks: u64, sum: u32) -> Bytes {
    let mut out = Writer::new();
    out.u8(FOOTER);
    out.u64(blocks);
    out.u32(sum);
    out.u32(checksum(out.as_slice()));
    out.finish()
}

/// Reads the chunks of a checkpoint.
///
/// # Errors
/// When it is missing or incomplete.
pub fn read_checkpoint<F: Files>(
    files: &F,
    owner: &Owner,
    meta: &CheckpointMeta,
) -> Result<Vec<Bytes>, CheckpointError> {
    let content = read_whole(files, &meta.path(), u64::MAX)?.ok_or(CheckpointError::Missing)?;
    let header = content.slice(..content.len().min(BLOCK_BYTES));
    let header = unseal(MAGIC, &header).map_err(|broken| match broken {
        Broken::Damaged => CheckpointError::Header,
        Broken::OtherFormat(format) => CheckpointError::OtherFormat(format),
    })?;
    if CheckpointMeta::decode(header) != Ok((*owner, *meta)) {
        return Err(CheckpointError::Header);
    }
    let mut input = Reader::new(content.slice(content.len().min(BLOCK_BYTES)..));
    let (mut chunks, mut sum) = (Vec::new(), 0);
    while input.u8() == Ok(BLOCK) {
        let chunk = read_block(&mut input, chunks.len() as u64)?;
        sum = checksum_append(sum, &chunk);
        chunks.push(chunk);
    }
    let expected = footer(chunks.len() as u64, sum);
    if content.ends_with(&expected) && input.left() == expected.len() - 1 {
        Ok(chunks)
    } else {
        Err(CheckpointError::Footer)
    }
}

fn read_block(input: &mut Reader, place: u64) -> Result<Bytes, CheckpointError> {
    let damaged = |_: DecodeError| CheckpointError::Block(place);
    let length = input.u32().map_err(damaged)? as usize;
    let sum = input.u32().map_err(damaged)?;
    let block = input.raw(length).map_err(damaged)?;
    if block_checksum(place, &block) == sum { Ok(block) } else { Err(CheckpointError::Block(place)) }
}

/// Parses the name of a checkpoint file.
fn parse_name(name: &str) -> Option<(CohortId, Lsn)> {
    let (cohort, lsn) = name.split_once('-')?;
    let (epoch, sequence) = lsn.split_once('.')?;
    let lsn = Lsn { epoch: Epoch(epoch.parse().ok()?), sequence: Sequence(sequence.parse().ok()?) };
    Some((CohortId(cohort.parse().ok()?), lsn))
}

/// Removes these checkpoints, and those of removed cohorts. Others stay, even older ones: a manifest that names one of
/// them may be in progress.
pub(crate) fn remove<F: Files>(
    files: &F,
    superseded: &BTreeMap<CohortId, Lsn>,
    gone: &BTreeSet<CohortId>,
) -> Result<(), FileError> {
    let is_due = |(cohort, lsn)| gone.contains(&cohort) || superseded.get(&cohort) == Some(&lsn);
    remove_where(files, |name| parse_name(name).is_some_and(is_due))
}

/// Removes every file except the checkpoints in `keep`: unfinished ones, and finished ones that no manifest names.
pub(crate) fn remove_unnamed<F: Files>(files: &F, keep: &BTreeMap<CohortId, Lsn>) -> Result<(), FileError> {
    remove_where(files, |name| parse_name(name).is_none_or(|(cohort, lsn)| keep.get(&cohort) != Some(&lsn)))
}

fn remove_where<F: Files>(files: &F, remove: impl Fn(&str) -> bool) -> Result<(), FileError> {
    for name in files.list(DIRECTORY)? {
        if remove(&name) {
            remove_if_exists(files, &format!("{DIRECTORY}/{name}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
