//! Assembles chunks into a snapshot of any kind.

use base::CohortId;
use base::codec::Reader;
use bytes::Bytes;
use catalog::Catalog;
use sharedlog::log_unit::LogUnit;
use state_machine::Progress;
use state_machine::checkpoint::{Frame, Frames, LoadError, Loader as _};
use state_machine::interface::{Kind, StateMachine};
use streams::stripe::Stripe;
use tablets::Tablet;

use super::{Hosted, Parts, Snapshot};

/// Assembles chunks from disk or from a peer into a snapshot.
#[derive(Clone, Debug)]
pub struct Loader {
    kind: Kind,
    frames: Frames,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    Begins,
    Parts(Box<Parts>),
    Whole(Box<Snapshot>),
    Refused,
}

impl Loader {
    /// Creates a loader for a snapshot of this cohort and kind.
    #[must_use]
    pub fn new(cohort: CohortId, kind: Kind) -> Self {
        Self { kind, frames: Frames::new(cohort), stage: Stage::Begins }
    }

    /// Adds the next chunk.
    ///
    /// # Errors
    /// If the chunk can't follow those before it. The loader is then unusable. Arbitrary input bytes never cause a
    /// panic.
    pub fn push(&mut self, chunk: &Bytes) -> Result<(), LoadError> {
        let stage = std::mem::replace(&mut self.stage, Stage::Refused);
        self.stage = match (stage, self.frames.next(chunk)?) {
            (Stage::Begins, Frame::Header(kind, progress, header)) if kind == self.kind => {
                Stage::Parts(Box::new(Parts::begin(kind, progress, header)?))
            }
            (Stage::Begins, Frame::Header(Kind(other), ..)) => return Err(LoadError::OtherKind(other)),
            (Stage::Parts(mut parts), Frame::Part(tag, input)) => {
                dispatch!(Parts, &mut *parts, parts => parts.part(tag, input)?);
                Stage::Parts(parts)
            }
            (Stage::Parts(parts), Frame::End) => Stage::Whole(Box::new(parts.finish()?)),
            (Stage::Whole(_), _) => return Err(LoadError::NotWhole("unexpected chunk after the end")),
            (Stage::Refused, _) => return Err(LoadError::NotWhole("an earlier chunk was invalid")),
            (Stage::Begins | Stage::Parts(_), _) => {
                return Err(LoadError::NotWhole("the header is missing or repeated"));
            }
        };
        Ok(())
    }

    /// Returns the snapshot once all chunks were added.
    ///
    /// # Errors
    /// If chunks are missing.
    pub fn finish(self) -> Result<Snapshot, LoadError> {
        match self.stage {
            Stage::Whole(snapshot) => Ok(*snapshot),
            _ => Err(LoadError::NotWhole("the last chunk is missing")),
        }
    }

    /// Assembles the snapshot from all its chunks.
    ///
    /// # Errors
    /// If they are not all the chunks of one snapshot of this cohort and kind, complete and in order.
    pub fn load(cohort: CohortId, kind: Kind, chunks: &[Bytes]) -> Result<Snapshot, LoadError> {
        let mut loader = Self::new(cohort, kind);
        chunks.iter().try_for_each(|chunk| loader.push(chunk))?;
        loader.finish()
    }
}

impl Parts {
    fn begin(kind: Kind, progress: Progress, header: Reader) -> Result<Self, LoadError> {
        by_kind!(
            kind,
            M => <<M as StateMachine>::Snapshot as state_machine::Snapshot>::Loader::begin(progress, header).map(<M as Hosted>::parts),
            Kind(other) => Err(LoadError::OtherKind(other))
        )
    }

    fn finish(self) -> Result<Snapshot, LoadError> {
        dispatch!(Self, self, M, parts => parts.finish().map(<M as Hosted>::snapshot_of))
    }
}
