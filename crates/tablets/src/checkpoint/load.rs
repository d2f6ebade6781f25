//! Chunks into a snapshot. Nothing in them is believed: every field and every order is checked, and the seal before
//! there is a state, so that one that was loaded keeps all invariants of one that was applied.

use std::collections::VecDeque;

use base::codec::{DecodeError, Reader};
use base::limits::{SESSION_WINDOW, SESSIONS_MAX};
use base::{CohortId, Durability, Duration, Lsn, Member, Timestamp};
use bytes::Bytes;
use sharedlog::unit::Unit;
use sharedlog::{LogId, Projection, UnitId};

use super::{Content, Snapshot, format};
use crate::catalogue::{Catalogue, LogRecord, RangeRecord, SplitRecord, TableRecord};
use crate::command::{decode_member, decode_node, decode_string};
use crate::progress::Progress;
use crate::request::{Mismatch, SessionId};
use crate::tablet::Ownership;
use crate::tablet::sessions::{Remembered, Session, Sessions};

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

/// Makes a state of a snapshot's chunks, one after the other: none is held longer than it takes to read it.
#[derive(Clone, Debug)]
pub struct Loader {
    cohort: CohortId,
    /// Chunks taken so far, and the checksum of them all.
    count: u64,
    checksum: u32,
    last_tag: u8,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    Header,
    Catalogue(Catalogue),
    Tablet(Box<TabletLoader>),
    Unit(Snapshot),
    /// The end has sealed it.
    Whole(Snapshot),
    /// A chunk was refused.
    Refused,
}

impl Loader {
    /// Begins with the first chunk of a cohort's snapshot.
    #[must_use]
    pub fn new(cohort: CohortId) -> Self {
        Self { cohort, count: 0, checksum: 0, last_tag: 0, stage: Stage::Header }
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// When it can't be the next of that cohort's snapshot. No other is taken after it.
    pub fn push(&mut self, chunk: &Bytes) -> Result<(), LoadError> {
        let stage = std::mem::replace(&mut self.stage, Stage::Refused);
        let tag = chunk.first().copied().unwrap_or_default();
        if tag < self.last_tag {
            return Err(LoadError::Impossible("chunks out of their order"));
        }
        self.stage = self.next_stage(stage, tag, chunk)?;
        self.last_tag = tag;
        self.count += 1;
        self.checksum = base::checksum_append(self.checksum, chunk);
        Ok(())
    }

    fn next_stage(&self, stage: Stage, tag: u8, chunk: &Bytes) -> Result<Stage, LoadError> {
        if tag == format::END && *chunk != format::end(self.count, self.checksum) {
            return Err(LoadError::NotWhole("the last chunk is not the end of those before"));
        }
        match stage {
            Stage::Header => self.begin(chunk),
            Stage::Catalogue(catalogue) if tag == format::END => {
                catalogue.check().map_err(LoadError::Impossible)?;
                Ok(Stage::Whole(Snapshot::of_catalogue(&catalogue)))
            }
            Stage::Catalogue(mut catalogue) => {
                load_catalogue(&mut catalogue, chunk)?;
                Ok(Stage::Catalogue(catalogue))
            }
            Stage::Tablet(tablet) if tag == format::END => Ok(Stage::Whole(tablet.finish()?)),
            Stage::Tablet(mut tablet) => {
                tablet.load_chunk(chunk)?;
                Ok(Stage::Tablet(tablet))
            }
            Stage::Unit(snapshot) if tag == format::END => Ok(Stage::Whole(snapshot)),
            Stage::Unit(_) => Err(unexpected(tag)),
            Stage::Whole(_) => Err(LoadError::NotWhole("there is more after the end")),
            Stage::Refused => Err(LoadError::NotWhole("a chunk was refused")),
        }
    }

    fn begin(&self, chunk: &Bytes) -> Result<Stage, LoadError> {
        let mut header = Reader::new(chunk.clone());
        let (kind, progress) = decode_header(&mut header, self.cohort)?;
        match (kind, self.cohort == CohortId::CATALOGUE) {
            (format::CATALOGUE, true) => begin_catalogue(progress, header).map(Stage::Catalogue),
            (format::TABLET, false) => TabletLoader::begin(progress, header).map(Box::new).map(Stage::Tablet),
            (format::UNIT, false) => {
                let unit = Unit::decode(header.bytes()?)?;
                header.end()?;
                Ok(Stage::Unit(Snapshot { progress, content: Content::Unit(unit) }))
            }
            _ => Err(LoadError::Impossible("a kind of state that the cohort doesn't have")),
        }
    }

    /// The snapshot that all of these chunks hold, which came from disk or from a peer.
    ///
    /// # Errors
    /// When they are not all the chunks of one snapshot of this cohort, whole and in order. Whatever the bytes are,
    /// this doesn't panic.
    pub fn load(cohort: CohortId, chunks: &[Bytes]) -> Result<Snapshot, LoadError> {
        let mut loader = Self::new(cohort);
        chunks.iter().try_for_each(|chunk| loader.push(chunk))?;
        loader.finish()
    }

    /// The frozen state, if the chunks have come to their end.
    ///
    /// # Errors
    /// When they haven't.
    pub fn finish(self) -> Result<Snapshot, LoadError> {
        match self.stage {
            Stage::Whole(snapshot) => Ok(snapshot),
            _ => Err(LoadError::NotWhole("the end is missing")),
        }
    }
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
    let (last_applied, last_timestamp, losses) = (input.lsn()?, Timestamp(input.i64()?), input.u32()?);
    let progress = Progress { cohort: found, last_applied, last_timestamp, losses };
    let untouched = progress.last_applied == Lsn::ZERO;
    if progress.last_timestamp.0 < 0 || untouched != (progress.last_timestamp == Timestamp(0)) {
        return Err(LoadError::Impossible("a last timestamp that doesn't go with the last entry"));
    }
    Ok((kind, progress))
}

fn unexpected(tag: u8) -> LoadError {
    LoadError::Undecodable(DecodeError::UnknownTag { what: "checkpoint chunk", tag: u64::from(tag) })
}

fn begin_catalogue(progress: Progress, mut header: Reader) -> Result<Catalogue, LoadError> {
    let mut catalogue = Catalogue::new();
    catalogue.progress = progress;
    catalogue.next_cohort = CohortId(header.u32()?);
    header.end()?;
    Ok(catalogue)
}

fn load_catalogue(catalogue: &mut Catalogue, chunk: &Bytes) -> Result<(), LoadError> {
    let mut input = Reader::new(chunk.clone());
    let tag = input.u8()?;
    if !matches!(tag, format::NODES | format::TABLES | format::LOGS) {
        return Err(unexpected(tag));
    }
    while input.left() > 0 {
        let fresh = match tag {
            format::NODES => catalogue.insert_node(decode_node(&mut input)?),
            format::TABLES => {
                let (name, table) = decode_table(&mut input)?;
                catalogue.insert_table(name, table)
            }
            _ => {
                let (name, log) = decode_log(&mut input)?;
                catalogue.insert_log(name, log)
            }
        };
        if !fresh {
            return Err(LoadError::Impossible("a table, log or node twice"));
        }
    }
    Ok(())
}

fn decode_table(input: &mut Reader) -> Result<(String, TableRecord), LoadError> {
    let name = decode_string(input, "table name")?;
    let created = Timestamp(input.i64()?);
    let (replicas, retention, is_dropping) = (input.u32()?, Duration(input.u64()?), input.bool()?);
    let durability = Durability::decode(input)?;
    let ranges = (0..input.count(17)?).map(|_| decode_range(input)).collect::<Result<_, DecodeError>>()?;
    Ok((name, TableRecord { ranges, created, replicas, retention, durability, is_dropping }))
}

fn decode_log(input: &mut Reader) -> Result<(String, LogRecord), LoadError> {
    let name = decode_string(input, "log name")?;
    let (id, created) = (LogId(input.u64()?), Timestamp(input.i64()?));
    let (stripes, copies) = (input.u32()?, input.u32()?);
    let projection = Projection::decode(input.bytes()?)?;
    let unit = |input: &mut Reader| Ok((UnitId(input.u64()?), decode_member(input)?));
    let units = (0..input.count(20)?).map(|_| unit(input)).collect::<Result<_, DecodeError>>()?;
    Ok((name, LogRecord { id, created, stripes, copies, projection, units }))
}

fn decode_range(input: &mut Reader) -> Result<RangeRecord, DecodeError> {
    let start = Bytes::copy_from_slice(&input.bytes()?);
    let cohort = CohortId(input.u32()?);
    let (members, genesis) = (decode_members(input)?, decode_members(input)?);
    let plan = input.u64()?;
    let leaving = if input.bool()? { Some(decode_members(input)?) } else { None };
    let parent = Some(CohortId(input.u32()?)).filter(|parent| parent.0 != 0);
    let split = match input.bool()? {
        true => Some(SplitRecord { key: Bytes::copy_from_slice(&input.bytes()?), child: CohortId(input.u32()?) }),
        false => None,
    };
    Ok(RangeRecord { start, cohort, members, genesis, plan, leaving, parent, split })
}

fn decode_members(input: &mut Reader) -> Result<Vec<Member>, DecodeError> {
    (0..input.count(12)?).map(|_| decode_member(input)).collect()
}

fn load_sessions(input: &mut Reader, progress: Progress, sessions: &mut Sessions) -> Result<(), LoadError> {
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
        let is_own = id.may_be_known_to(progress.cohort, progress.name_of(progress.last_applied.sequence));
        if !is_own || last_used > progress.last_timestamp || !session.is_bounded() {
            return Err(LoadError::Impossible(
                "a session of another cohort or of the future, or one with outcomes out of its window",
            ));
        }
        if sessions.len() >= SESSIONS_MAX || !sessions.load(id, session) {
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

/// A tablet's snapshot in the making.
#[derive(Clone, Debug)]
struct TabletLoader {
    progress: Progress,
    ownership: Ownership,
    children: Vec<CohortId>,
    watermark: Timestamp,
    sessions: Sessions,
    /// How many sessions the header speaks of.
    count: u64,
}

impl TabletLoader {
    fn begin(progress: Progress, mut header: Reader) -> Result<Self, LoadError> {
        let ownership = Ownership::decode(&mut header)?;
        let children =
            (0..header.count(4)?).map(|_| Ok(CohortId(header.u32()?))).collect::<Result<_, DecodeError>>()?;
        let watermark = Timestamp(header.i64()?);
        if watermark < Timestamp(0) || watermark > progress.last_timestamp {
            return Err(LoadError::Impossible("a watermark that is no moment of the log"));
        }
        let count = header.u64()?;
        header.end()?;
        Ok(Self { progress, ownership, children, watermark, sessions: Sessions::default(), count })
    }

    fn load_chunk(&mut self, chunk: &Bytes) -> Result<(), LoadError> {
        let mut input = Reader::new(chunk.clone());
        match input.u8()? {
            format::SESSIONS => load_sessions(&mut input, self.progress, &mut self.sessions),
            tag => Err(unexpected(tag)),
        }
    }

    fn finish(self) -> Result<Snapshot, LoadError> {
        if self.sessions.len() as u64 != self.count {
            return Err(LoadError::Impossible("another number of sessions than the header says"));
        }
        let content = Content::Tablet {
            ownership: self.ownership,
            children: self.children,
            watermark: self.watermark,
            sessions: self.sessions.open_sessions().clone(),
        };
        Ok(Snapshot { progress: self.progress, content })
    }
}
