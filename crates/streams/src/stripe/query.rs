//! Reads of a stripe's blocks, and the completion of partly written blocks. They are evaluated from memory where
//! blocking is not allowed, and otherwise on a thread that may wait for the disk.

use base::{KeyRange, Timestamp};
use bytes::{Bytes, BytesMut};
use state_machine::interface::{Decision, Evaluated, Read, View as MachineView};
use state_machine::{Failure, KeyPosition, Ownership, ReadError};
use store::sstable::Io;
use store::stream::{StreamError, StreamView, Verified};

use super::blocks;
use super::command::Command;
use super::request::{BlockChange, BlockRun, BlockSpan, PartialBlock, StripeRequest, StripeResponse, StripeWrite};
use crate::layout::{BLOCK_BYTES, StripeId};

/// Groups of the store that one query verifies: 16 MiB, so that other reads of the disk do not wait for long.
const CHECKED_GROUPS: usize = 16;

/// The blocks of a stripe, readable by any thread: as of an entry, or later.
#[derive(Clone, Debug)]
pub struct StripeView {
    /// The ownership as of that entry (guarantee 19).
    pub(super) ownership: Ownership,
    pub(super) blocks: StreamView,
    /// The timestamp of that entry.
    pub(super) applied: Timestamp,
}

/// A query on the blocks of a stripe as of one moment.
#[derive(Clone, Debug)]
pub struct Query {
    view: StripeView,
    question: Question,
}

#[derive(Clone, Debug)]
enum Question {
    Read(BlockSpan),
    Status(BlockSpan),
    /// Verifies blocks of a stripe from this one on.
    Check(StripeId, u64),
    /// Completes the blocks that a write changes in part.
    Complete(Box<StripeWrite>),
}

impl Query {
    /// The query of a read; none for a change.
    pub(super) fn of(request: &StripeRequest, view: StripeView) -> Option<Self> {
        let question = match request {
            StripeRequest::Read { blocks, .. } => Question::Read(*blocks),
            StripeRequest::Status { blocks, .. } => Question::Status(*blocks),
            StripeRequest::Check { stripe, first } => Question::Check(*stripe, *first),
            StripeRequest::OpenSession { .. }
            | StripeRequest::EndSession { .. }
            | StripeRequest::Release { .. }
            | StripeRequest::Holder { .. }
            | StripeRequest::Heal { .. }
            | StripeRequest::Write(_)
            | StripeRequest::Drop => return None,
        };
        Some(Self { view, question })
    }

    /// The query that completes a write.
    pub(super) fn completing(write: StripeWrite, view: StripeView) -> Self {
        Self { view, question: Question::Complete(Box::new(write)) }
    }

    fn stripe(&self) -> StripeId {
        match &self.question {
            Question::Read(blocks) | Question::Status(blocks) => blocks.stripe,
            Question::Check(stripe, _) => *stripe,
            Question::Complete(write) => write.stripe,
        }
    }
}

impl StripeView {
    /// The whole block with a part of it replaced.
    fn complete(&self, part: &PartialBlock, io: Io) -> Result<BlockChange, StreamError> {
        let mut content = BytesMut::with_capacity(BLOCK_BYTES as usize);
        for run in blocks::read(&self.blocks, part.block..part.block + 1, io)? {
            if let BlockRun::Data(data) = run {
                content.extend_from_slice(&data);
            }
        }
        content.resize(BLOCK_BYTES as usize, 0);
        let start = part.start as usize;
        content[start..start + part.data.len()].copy_from_slice(&part.data);
        Ok(BlockChange::Data { first: part.block, data: content.freeze() })
    }
}

impl Read for Query {
    type Response = StripeResponse;

    fn answer(&self, io: Io) -> Result<Evaluated<StripeResponse>, ReadError> {
        let Self { view, question } = self;
        let stripe = self.stripe();
        if !view.ownership.holds(&KeyPosition::At(stripe.key())) {
            return Ok(Evaluated::Elsewhere);
        }
        let numbers = |blocks: &BlockSpan| blocks.first..blocks.first.saturating_add(blocks.count);
        Ok(match question {
            Question::Read(span) => {
                let runs = blocks::read(&view.blocks, numbers(span), io)?;
                Evaluated::Outcome(Ok(StripeResponse::Runs(runs)))
            }
            Question::Status(span) => {
                let extents = blocks::status(&view.blocks, numbers(span))?;
                Evaluated::Outcome(Ok(StripeResponse::Extents(extents)))
            }
            Question::Check(_, first) => {
                if io == Io::CacheOnly {
                    return Err(ReadError::NotCached);
                }
                let Verified { verified, damaged, next } = view.blocks.verify(*first, CHECKED_GROUPS)?;
                Evaluated::Outcome(Ok(StripeResponse::Checked { verified, damaged, next }))
            }
            Question::Complete(write) => {
                let completed = write.parts.iter().map(|part| view.complete(part, io));
                let completed = completed.collect::<Result<Vec<_>, _>>()?;
                let command: Bytes = Command::write(write, completed).encode();
                Evaluated::Decided(Decision { command, refusal: None, keeps_locks: false })
            }
        })
    }
}

impl MachineView for StripeView {
    type Request = StripeRequest;
    type Read = Query;

    fn read(&self, request: &StripeRequest) -> Option<Query> {
        Query::of(request, self.clone())
    }

    fn at(self, moment: Timestamp) -> Result<Self, Failure> {
        if moment == self.applied {
            return Ok(self);
        }
        Err(Failure::Invalid("a disk keeps no earlier versions".to_owned()))
    }

    fn timestamp(&self) -> Timestamp {
        self.applied
    }

    fn range(&self) -> Option<&KeyRange> {
        self.ownership.range()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.applied == other.applied && self.ownership == other.ownership && self.blocks.is_same(&other.blocks)
    }
}
