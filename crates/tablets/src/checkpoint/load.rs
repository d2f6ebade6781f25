//! Chunks into a state. Nothing in them is believed: the seal is checked first, then every field and every order, so that
//! a state that was loaded keeps all invariants of one that was applied.

use std::collections::VecDeque;

use base::codec::{DecodeError, Reader};
use base::limits::{SESSION_WINDOW, SESSIONS_MAX};
use base::{CohortId, Lsn, Timestamp};
use bytes::Bytes;

use super::format;
use crate::catalogue::{Catalogue, TableRecord};
use crate::command::{decode_member, decode_node, decode_string};
use crate::pinning::owned;
use crate::progress::Progress;
use crate::request::SessionId;
use crate::state::State;
use crate::tablet::Tablet;
use crate::tablet::rows::CellKey;
use crate::tablet::sessions::{Mismatch, Remembered, Session};
use crate::tablet::versions::{Version, Versions};

/// Why chunks are not a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The end is missing, or is not the end of these chunks: some are missing, damaged, or in another order.
    #[error("the checkpoint is not whole: {0}")]
    NotWhole(&'static str),
    /// The checkpoint is of a format that this version doesn't know.
    #[error("the checkpoint has format {0}, which this version doesn't know")]
    UnknownFormat(u32),
    /// The checkpoint is another cohort's.
    #[error("the checkpoint is of cohort {found}, not of {expected}")]
    OtherCohort {
        /// The cohort asked for.
        expected: CohortId,
        /// The cohort it is of.
        found: CohortId,
    },
    /// A field can't be read.
    #[error("the checkpoint can't be read: {0}")]
    Undecodable(#[from] DecodeError),
    /// The fields can be read, but no state is like that.
    #[error("the checkpoint holds what no state can: {0}")]
    Impossible(&'static str),
}

/// The state in `chunks`.
pub(crate) fn load(cohort: CohortId, chunks: &[Bytes]) -> Result<State, LoadError> {
    let sealed = unseal(chunks)?;
    let (header, parts) = sealed.split_first().ok_or(LoadError::NotWhole("there is no header"))?;
    let mut header = Reader::new(header.clone());
    let (kind, progress) = decode_header(&mut header, cohort)?;
    if !in_order(parts) {
        return Err(LoadError::Impossible("chunks out of their order"));
    }
    match (kind, cohort == CohortId::CATALOGUE) {
        (format::CATALOGUE, true) => load_catalogue(progress, header, parts).map(State::Catalogue),
        (format::TABLET, false) => load_tablet(progress, header, parts).map(State::Tablet),
        _ => Err(LoadError::Impossible("a kind of state that the cohort doesn't have")),
    }
}

/// The chunks before the end, if that is their end.
fn unseal(chunks: &[Bytes]) -> Result<&[Bytes], LoadError> {
    let (end, sealed) = chunks.split_last().ok_or(LoadError::NotWhole("there are no chunks"))?;
    let checksum = sealed.iter().fold(0, |checksum, chunk| base::checksum_append(checksum, chunk));
    if *end != format::end(sealed.len() as u64, checksum) {
        return Err(LoadError::NotWhole("the last chunk is not the end of those before"));
    }
    Ok(sealed)
}

fn in_order(parts: &[Bytes]) -> bool {
    parts.is_sorted_by_key(|chunk| chunk.first().copied())
}

fn decode_header(input: &mut Reader, expected: CohortId) -> Result<(u8, Progress), LoadError> {
    if input.u8()? != format::HEADER || input.u64()? != format::MAGIC {
        return Err(LoadError::Impossible("the first chunk is not a header"));
    }
    let version = input.u32()?;
    if version != format::VERSION {
        return Err(LoadError::UnknownFormat(version));
    }
    let kind = input.u8()?;
    let found = CohortId(input.u32()?);
    if found != expected {
        return Err(LoadError::OtherCohort { expected, found });
    }
    let progress = Progress { cohort: found, last_applied: input.lsn()?, last_timestamp: Timestamp(input.i64()?) };
    let untouched = progress.last_applied == Lsn::ZERO;
    if progress.last_timestamp.0 < 0 || untouched != (progress.last_timestamp == Timestamp(0)) {
        return Err(LoadError::Impossible("a last timestamp that doesn't go with the last entry"));
    }
    Ok((kind, progress))
}

fn unexpected(tag: u8) -> LoadError {
    LoadError::Undecodable(DecodeError::UnknownTag { what: "checkpoint chunk", tag: u64::from(tag) })
}

fn load_catalogue(progress: Progress, mut header: Reader, parts: &[Bytes]) -> Result<Catalogue, LoadError> {
    let mut catalogue = Catalogue::new();
    catalogue.progress = progress;
    catalogue.next_cohort = CohortId(header.u32()?);
    header.end()?;
    for chunk in parts {
        let mut input = Reader::new(chunk.clone());
        let tag = input.u8()?;
        while input.left() > 0 {
            let fresh = match tag {
                format::NODES => catalogue.insert_node(decode_node(&mut input)?),
                format::TABLES => {
                    let (name, table) = decode_table(&mut input)?;
                    catalogue.insert_table(name, table)
                }
                tag => return Err(unexpected(tag)),
            };
            if !fresh {
                return Err(LoadError::Impossible("a table or node twice"));
            }
        }
    }
    catalogue.check().map_err(LoadError::Impossible)?;
    Ok(catalogue)
}

fn decode_table(input: &mut Reader) -> Result<(String, TableRecord), LoadError> {
    let name = decode_string(input, "table name")?;
    let cohort = CohortId(input.u32()?);
    let created = Timestamp(input.i64()?);
    let members = (0..input.count(12)?).map(|_| decode_member(input)).collect::<Result<_, DecodeError>>()?;
    Ok((name, TableRecord { cohort, members, created }))
}

fn load_tablet(progress: Progress, mut header: Reader, parts: &[Bytes]) -> Result<Tablet, LoadError> {
    let mut tablet = Tablet::new(progress.cohort);
    tablet.progress = progress;
    let watermark = Timestamp(header.i64()?);
    if watermark < Timestamp(0) || watermark > progress.last_timestamp {
        return Err(LoadError::Impossible("a watermark that is no moment of the log"));
    }
    tablet.rows.raise_watermark(watermark);
    let sessions = header.u64()?;
    header.end()?;
    let mut cells = CellLoader { tablet: &mut tablet, cell: None, versions: Vec::new() };
    for chunk in parts {
        let mut input = Reader::new(chunk.clone());
        match input.u8()? {
            format::SESSIONS => load_sessions(&mut input, cells.tablet)?,
            format::CELLS => cells.load_chunk(&mut input, chunk.len())?,
            tag => return Err(unexpected(tag)),
        }
    }
    cells.finish_cell()?;
    tablet.rows.loaded();
    if tablet.sessions.len() as u64 != sessions {
        return Err(LoadError::Impossible("another number of sessions than the header says"));
    }
    Ok(tablet)
}

fn load_sessions(input: &mut Reader, tablet: &mut Tablet) -> Result<(), LoadError> {
    while input.left() > 0 {
        let id = SessionId(input.u64()?);
        let last_used = Timestamp(input.i64()?);
        let floor = input.u64()?;
        let count = input.count(17)?;
        if count as u64 > SESSION_WINDOW {
            return Err(LoadError::Impossible("more outcomes than a session's window holds"));
        }
        let outcomes = (0..count).map(|_| decode_outcome(input)).collect::<Result<VecDeque<_>, DecodeError>>()?;
        let session = Session { last_used, floor, outcomes };
        if id.0 > tablet.last_applied().sequence.0 || last_used > tablet.last_timestamp() || !session.is_bounded() {
            return Err(LoadError::Impossible("a session of the future, or one with outcomes out of its window"));
        }
        if tablet.sessions.len() >= SESSIONS_MAX || !tablet.sessions.load(id, session) {
            return Err(LoadError::Impossible("a session twice, or too many"));
        }
    }
    Ok(())
}

fn decode_outcome(input: &mut Reader) -> Result<(u64, Remembered), DecodeError> {
    let number = input.u64()?;
    let outcome = match input.u8()? {
        format::WRITTEN => Remembered::Written(Timestamp(input.i64()?)),
        format::MISMATCH => Remembered::Mismatch(Box::new(Mismatch {
            column: Bytes::copy_from_slice(&input.bytes()?),
            expected: Timestamp(input.i64()?),
            actual: Timestamp(input.i64()?),
        })),
        tag => return Err(DecodeError::UnknownTag { what: "outcome", tag: u64::from(tag) }),
    };
    Ok((number, outcome))
}

/// Puts cells together from versions that may be spread over chunks.
struct CellLoader<'a> {
    tablet: &'a mut Tablet,
    cell: Option<CellKey>,
    /// The versions of `cell` read so far, the newest first.
    versions: Vec<Version>,
}

impl CellLoader<'_> {
    fn load_chunk(&mut self, input: &mut Reader, chunk_bytes: usize) -> Result<(), LoadError> {
        while input.left() > 0 {
            let cell = self.decode_cell(input, chunk_bytes)?;
            let timestamp = Timestamp(input.i64()?);
            let value = if input.bool()? { Some(owned(&input.bytes()?, chunk_bytes)) } else { None };
            if self.cell.as_ref() != Some(&cell) {
                self.finish_cell()?;
                self.cell = Some(cell);
            }
            self.versions.push(Version { timestamp, value });
        }
        Ok(())
    }

    fn decode_cell(&self, input: &mut Reader, chunk_bytes: usize) -> Result<CellKey, LoadError> {
        let before = || self.cell.clone().ok_or(LoadError::Impossible("a version without its row"));
        Ok(match input.u8()? {
            format::ANOTHER_ROW => {
                CellKey { key: owned(&input.bytes()?, chunk_bytes), column: owned(&input.bytes()?, chunk_bytes) }
            }
            format::ANOTHER_COLUMN => CellKey { key: before()?.key, column: owned(&input.bytes()?, chunk_bytes) },
            format::ANOTHER_VERSION => before()?,
            tag => return Err(DecodeError::UnknownTag { what: "version", tag: u64::from(tag) }.into()),
        })
    }

    fn finish_cell(&mut self) -> Result<(), LoadError> {
        let Some(cell) = self.cell.take() else { return Ok(()) };
        let versions = Versions::from_newest_first(std::mem::take(&mut self.versions))
            .filter(|versions| versions.fit(self.tablet.last_timestamp()))
            .ok_or(LoadError::Impossible("versions out of their order, or of the future"))?;
        if self.tablet.rows.load(cell, versions) {
            Ok(())
        } else {
            Err(LoadError::Impossible("cells out of their order"))
        }
    }
}
