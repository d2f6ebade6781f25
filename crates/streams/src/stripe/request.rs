//! Requests to a stripe of a disk, and its responses.

use base::canary::{Bug, planted};
use base::codec::Text;
use base::limits::SESSION_WINDOW;
use base::limits::nbd::{HOLDER_BYTES_MAX, STALL};
use base::{Duration, KeyRange};
use bytes::Bytes;
use state_machine::interface::{Checked, Request, Response};
use state_machine::limits::{check_count, check_size, refuse};
use state_machine::{
    ClientSessionId, Consistency, Failure, KeyPosition, LockKeys, LockMode, LockSpan, Locks, SessionStamp,
};
use store::stream::CHANGE_OVERHEAD_BYTES;

use super::blocks::key_of;
use crate::layout::{BLOCK_BYTES, STRIPE_BLOCKS_MAX, StripeId};

/// Maximum bytes of the data of one write: it is one log entry, and larger ones would delay others behind them.
pub const WRITE_DATA_BYTES_MAX: usize = 1 << 20;
/// Maximum changes in one write, whole or in part.
pub const WRITE_CHANGES_MAX: usize = 256;
/// Maximum blocks that one write deallocates: 4 GiB.
pub const HOLE_BLOCKS_MAX: u64 = 1 << 20;
/// Maximum blocks that one write fills with allocated zeros: 16 MiB.
pub const ZERO_BLOCKS_MAX: u64 = 4_096;
/// Maximum blocks in one read.
pub const READ_BLOCKS_MAX: u64 = WRITE_DATA_BYTES_MAX as u64 / BLOCK_BYTES;

/// The outcome of a request to a stripe.
pub type Outcome = state_machine::Outcome<StripeResponse>;

/// A request to a stripe. Blocks are numbered in the address space of the stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StripeRequest {
    /// Opens a session: a [`StripeResponse::SessionOpened`].
    OpenSession { stripe: StripeId, claim: Claim },
    /// Ends a session, so that no write of it is executed any more: a [`StripeResponse::SessionEnded`], also if it is not open.
    EndSession { stripe: StripeId, session: ClientSessionId },
    /// Changes blocks, all or none: a [`StripeResponse::Written`].
    Write(StripeWrite),
    /// Reads blocks: a [`StripeResponse::Runs`] that covers all of them, with their data.
    Read {
        consistency: Consistency,
        /// The blocks, at most [`READ_BLOCKS_MAX`].
        blocks: BlockSpan,
    },
    /// Returns which blocks are allocated: a [`StripeResponse::Extents`] that covers at least the first block.
    Status { consistency: Consistency, blocks: BlockSpan },
    /// Verifies the blocks of one replica, as of its own state: a [`StripeResponse::Checked`].
    Check {
        stripe: StripeId,
        /// The first block to verify.
        first: u64,
    },
    /// Ends the holder's right to change the stripe, and its sessions: a [`StripeResponse::Released`].
    Release { stripe: StripeId },
    /// Returns the holder: a [`StripeResponse::Holder`].
    Holder { stripe: StripeId },
    /// Writes a block again on the replicas on which it is damaged, if it still has this content: a
    /// [`StripeResponse::Healed`] in any case.
    Heal {
        stripe: StripeId,
        block: u64,
        /// A whole block.
        content: Bytes,
    },
    /// Drops the disk: a [`StripeResponse::Dropped`].
    Drop,
}

/// By which right a session is opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Claim {
    /// That of everyone, while the stripe has no holder.
    Shared,
    /// The client attaches the disk exclusively under this name. It becomes the stripe's holder, and all earlier sessions
    /// end.
    Attach(String),
    /// That of the holder, if it still is the same one.
    Hold(Holder),
}

/// A client, or a group of clients, that alone may change a stripe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The name that clients choose: 1 to [`HOLDER_BYTES_MAX`] bytes.
    pub name: String,
    /// The name of the entry with which it became the holder. Clients that attach later under the same name don't change it.
    pub generation: u64,
}

/// Adjacent blocks of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSpan {
    pub stripe: StripeId,
    /// The number of the first block.
    pub first: u64,
    /// The number of blocks; not 0.
    pub count: u64,
}

/// A write. Its changes are disjoint: a block is changed once, either as a whole or in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeWrite {
    pub stamp: SessionStamp,
    pub stripe: StripeId,
    /// Changes of whole blocks.
    pub changes: Vec<BlockChange>,
    /// Changes of parts of blocks. The leader completes them to whole blocks before the proposal, so the log contains
    /// whole blocks only.
    pub parts: Vec<PartialBlock>,
}

/// A change of adjacent whole blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BlockChange {
    Data {
        first: u64,
        /// The content of one or more whole blocks.
        data: Bytes,
    },
    Zero {
        first: u64,
        /// The number of blocks.
        count: u64,
        /// Whether they stay allocated; otherwise they become a hole.
        keeps_allocated: bool,
    },
}

/// A change of a part of a block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartialBlock {
    pub block: u64,
    /// The first byte in the block.
    pub start: u32,
    /// The new bytes, fewer than a block.
    pub data: Bytes,
}

/// A successful response of a stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StripeResponse {
    /// The session is open.
    SessionOpened {
        session: ClientSessionId,
        /// [`Holder::generation`]; 0 without a holder.
        generation: u64,
    },
    /// The session has ended.
    SessionEnded,
    /// The block has other content now, or was written again.
    Healed,
    /// The stripe has no holder.
    Released,
    Holder(Option<Holder>),
    /// The write is durable and visible.
    Written,
    /// The content of blocks, in order.
    Runs(Vec<BlockRun>),
    /// The allocation of blocks, in order. It may end before the blocks that were asked for.
    Extents(Vec<BlockExtent>),
    Checked {
        /// The number of blocks that were read.
        verified: u64,
        /// Those that are damaged.
        damaged: Vec<u64>,
        /// The block to continue from; none at the end.
        next: Option<u64>,
    },
    /// The disk is dropped.
    Dropped,
}

/// The content of adjacent blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockRun {
    /// The data of one or more whole blocks.
    Data(Bytes),
    /// This many blocks of zeros.
    Zeroes(u64),
}

/// Adjacent blocks of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockExtent {
    /// The number of blocks; not 0.
    pub count: u64,
    pub state: BlockState,
}

pub use crate::nbd::BlockState;

base::wire! {
    enum StripeRequest, "request to a stripe" {
        1 => OpenSession { stripe, claim },
        2 => Write(write),
        3 => Read { consistency, blocks },
        4 => Status { consistency, blocks },
        5 => Drop,
        6 => Check { stripe, first },
        7 => EndSession { stripe, session },
        8 => Release { stripe },
        9 => Holder { stripe },
        10 => Heal { stripe, block, content },
    }
}

base::wire! {
    enum Claim, "claim of a session" {
        1 => Shared,
        2 => Attach(name as HOLDER),
        3 => Hold(holder),
    }
}

base::wire! { struct Holder { name as HOLDER, generation } }

const HOLDER: Text = Text("holder");

base::wire! { struct BlockSpan { stripe, first, count } }
base::wire! { struct StripeWrite { stamp, stripe, changes, parts } }
base::wire! { struct PartialBlock { block, start, data } }
base::wire! { struct BlockExtent { count, state } }

base::wire! {
    enum BlockChange, "change of blocks" {
        1 => Data { first, data },
        2 => Zero { first, count, keeps_allocated = false },
        3 => Zero { first, count, keeps_allocated = true },
    }
}

base::wire! {
    enum StripeResponse, "response of a stripe" {
        1 => SessionOpened { session, generation },
        2 => Written,
        3 => Runs(runs),
        4 => Extents(extents),
        5 => Dropped,
        6 => Checked { verified, damaged, next },
        7 => SessionEnded,
        8 => Released,
        9 => Holder(holder),
        10 => Healed,
    }
}

base::wire! {
    enum BlockRun, "content of blocks" {
        1 => Data(data),
        2 => Zeroes(count),
    }
}

base::wire! {
    enum BlockState, "state of blocks" {
        1 => Data,
        2 => Zero,
        3 => Hole,
    }
}

/// Two bytes would need a codec of their own; the key of a stripe has two.
impl base::codec::Wire for StripeId {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut base::codec::Writer) {
        out.u32(u32::from(self.0));
    }

    fn decode(input: &mut base::codec::Reader) -> Result<Self, base::codec::DecodeError> {
        let number = input.u32()?;
        let tag = u64::from(number);
        u16::try_from(number).map(Self).map_err(|_| base::codec::DecodeError::UnknownTag { what: "stripe", tag })
    }
}

impl BlockChange {
    /// The first block, and the number of blocks.
    #[must_use]
    pub fn span(&self) -> (u64, u64) {
        match self {
            Self::Data { first, data } => (*first, data.len() as u64 / BLOCK_BYTES),
            Self::Zero { first, count, .. } => (*first, *count),
        }
    }
}

impl StripeWrite {
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        let whole =
            self.changes.iter().map(|change| if let BlockChange::Data { data, .. } = change { data.len() } else { 0 });
        whole.sum::<usize>() + self.parts.iter().map(|part| part.data.len()).sum::<usize>()
    }

    /// The changed blocks, as first block and number.
    fn spans(&self) -> Vec<(u64, u64)> {
        let whole = self.changes.iter().map(BlockChange::span);
        whole.chain(self.parts.iter().map(|part| (part.block, 1))).collect()
    }

    fn validate(&self) -> Result<(), Failure> {
        let SessionStamp { sequence, first_incomplete, .. } = self.stamp;
        if first_incomplete == 0 || first_incomplete > sequence || sequence - first_incomplete >= SESSION_WINDOW {
            return refuse(format!("write {sequence} is not within its session's window from {first_incomplete}"));
        }
        check_size("the data of the write", self.data_bytes(), WRITE_DATA_BYTES_MAX)?;
        check_count("changes in the write", self.changes.len() + self.parts.len(), WRITE_CHANGES_MAX)?;
        let mut spans = self.spans();
        spans.sort_unstable();
        if spans.is_empty() {
            return refuse("the write has no change");
        }
        spans.iter().try_for_each(|(first, count)| check_blocks(*first, *count))?;
        if spans.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            return refuse("the write changes a block twice");
        }
        for change in &self.changes {
            match change {
                BlockChange::Data { data, .. } if !(data.len() as u64).is_multiple_of(BLOCK_BYTES) => {
                    return refuse("the data is not a number of whole blocks");
                }
                BlockChange::Zero { count, keeps_allocated, .. } => {
                    let limit = if *keeps_allocated { ZERO_BLOCKS_MAX } else { HOLE_BLOCKS_MAX };
                    check_size("blocks to make zero (in blocks)", *count as usize, limit as usize)?;
                }
                BlockChange::Data { .. } => {}
            }
        }
        let zeroed = self.changes.iter().filter_map(|change| match change {
            BlockChange::Zero { count, keeps_allocated: true, .. } => Some(*count),
            _ => None,
        });
        check_size("blocks to make zero (in blocks)", zeroed.sum::<u64>() as usize, ZERO_BLOCKS_MAX as usize)?;
        let is_part = |part: &PartialBlock| {
            let length = part.data.len() as u64;
            (1..BLOCK_BYTES).contains(&length) && u64::from(part.start) + length <= BLOCK_BYTES
        };
        if self.parts.iter().all(is_part) { Ok(()) } else { refuse("the data does not lie within its block") }
    }
}

/// Checks the name of a holder.
///
/// # Errors
/// [`Failure::Invalid`] with the reason.
pub fn check_holder(name: &str) -> Result<(), Failure> {
    let is_plain = name.chars().all(|char| char.is_ascii_graphic() && char != '@');
    if (1..=HOLDER_BYTES_MAX).contains(&name.len()) && is_plain {
        return Ok(());
    }
    refuse(format!(
        "the name of a holder has 1 to {HOLDER_BYTES_MAX} printable ASCII characters other than space and '@'"
    ))
}

fn check_blocks(first: u64, count: u64) -> Result<(), Failure> {
    let is_within = first.checked_add(count).is_some_and(|end| end <= STRIPE_BLOCKS_MAX);
    if count > 0 && is_within { Ok(()) } else { refuse(format!("no {count} blocks from block {first}")) }
}

/// Locks for a change that covers these blocks.
fn lock(stripe: StripeId, (first, count): (u64, u64), mode: LockMode) -> LockSpan {
    let key = |block| Bytes::from(key_of(stripe, block).to_vec());
    let keys = match count {
        1 => LockKeys::Key(key(first)),
        _ => LockKeys::Range(KeyRange { start: key(first), end: Some(key(first.saturating_add(count))) }),
    };
    LockSpan { keys, mode }
}

impl Request for StripeRequest {
    fn validate(&self) -> Result<(), Failure> {
        match self {
            Self::OpenSession { claim: Claim::Attach(name) | Claim::Hold(Holder { name, .. }), .. } => {
                check_holder(name)
            }
            Self::Heal { block, content, .. } => {
                check_blocks(*block, 1)?;
                if content.len() as u64 == BLOCK_BYTES { Ok(()) } else { refuse("the content is not a whole block") }
            }
            Self::OpenSession { .. }
            | Self::EndSession { .. }
            | Self::Release { .. }
            | Self::Holder { .. }
            | Self::Drop => Ok(()),
            Self::Write(write) => write.validate(),
            Self::Read { consistency, .. } | Self::Status { consistency, .. }
                if !matches!(consistency, Consistency::Strong | Consistency::Anywhere) =>
            {
                refuse("a disk keeps no earlier versions of its blocks")
            }
            Self::Read { blocks, .. } => {
                check_blocks(blocks.first, blocks.count)?;
                check_count("blocks in the read", blocks.count as usize, READ_BLOCKS_MAX as usize)
            }
            Self::Status { blocks, .. } => check_blocks(blocks.first, blocks.count),
            Self::Check { first, .. } => check_blocks(*first, 1),
        }
    }

    fn reads(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Status { .. } | Self::Check { .. } | Self::Holder { .. })
    }

    fn is_idempotent(&self) -> bool {
        // A session that a lost reply leaves open expires unused.
        !matches!(self, Self::Drop)
    }

    fn start_within(&self) -> Option<Duration> {
        let opens_exclusively = matches!(self, Self::OpenSession { claim: Claim::Attach(_), .. });
        (opens_exclusively || matches!(self, Self::Write(_))).then_some(STALL)
    }

    fn consistency(&self) -> Consistency {
        match self {
            Self::Read { consistency: Consistency::Anywhere, .. } if planted(Bug::DiskReadStale) => {
                Consistency::Timeline { at_least: None, stale_ok: false }
            }
            Self::Read { consistency, .. } | Self::Status { consistency, .. } => *consistency,
            // Each replica verifies its own blocks, once it has caught up: until then, a flush that a crash has cut off is
            // not completed.
            Self::Check { .. } => Consistency::Timeline { at_least: None, stale_ok: false },
            Self::OpenSession { .. }
            | Self::EndSession { .. }
            | Self::Write(_)
            | Self::Release { .. }
            | Self::Holder { .. }
            | Self::Heal { .. }
            | Self::Drop => Consistency::Strong,
        }
    }

    fn position(&self) -> Option<KeyPosition> {
        let stripe = match self {
            Self::OpenSession { stripe, .. }
            | Self::EndSession { stripe, .. }
            | Self::Check { stripe, .. }
            | Self::Release { stripe }
            | Self::Heal { stripe, .. }
            | Self::Holder { stripe } => stripe,
            Self::Write(write) => &write.stripe,
            Self::Read { blocks, .. } | Self::Status { blocks, .. } => &blocks.stripe,
            Self::Drop => return None,
        };
        Some(KeyPosition::At(stripe.key()))
    }

    /// Changes of whole blocks do not depend on the content. A change of a part waits until all earlier changes of its
    /// block are applied, and later ones wait until it is decided.
    fn locks(&self) -> Locks {
        match self {
            Self::Write(write) => {
                let whole = write.changes.iter().map(|change| lock(write.stripe, change.span(), LockMode::Blind));
                let mode = if planted(Bug::DiskPartUnlocked) { LockMode::Blind } else { LockMode::Exclusive };
                let parts = write.parts.iter().map(|part| lock(write.stripe, (part.block, 1), mode));
                Locks::several(whole.chain(parts).collect())
            }
            Self::Drop => Locks::all(LockMode::Exclusive),
            Self::OpenSession { .. }
            | Self::EndSession { .. }
            | Self::Release { .. }
            | Self::Holder { .. }
            | Self::Heal { .. }
            | Self::Read { .. }
            | Self::Status { .. }
            | Self::Check { .. } => Locks::NONE,
        }
    }

    fn bytes(&self) -> u64 {
        let Self::Write(write) = self else { return 0 };
        let of_change = |change: &BlockChange| match change {
            BlockChange::Data { data, .. } => {
                data.len() as u64 / BLOCK_BYTES * CHANGE_OVERHEAD_BYTES + data.len() as u64
            }
            BlockChange::Zero { keeps_allocated: true, .. } => CHANGE_OVERHEAD_BYTES,
            // It frees space, also on a full disk.
            BlockChange::Zero { .. } => 0,
        };
        let parts = write.parts.len() as u64 * (CHANGE_OVERHEAD_BYTES + BLOCK_BYTES);
        write.changes.iter().map(of_change).sum::<u64>() + parts
    }

    fn held_bytes(&self) -> usize {
        let Self::Write(write) = self else { return 64 };
        write.data_bytes() + 64 * (1 + write.changes.len() + write.parts.len())
    }
}

impl Response for StripeResponse {
    fn is_of_read(&self) -> bool {
        matches!(self, Self::Runs(_) | Self::Extents(_) | Self::Checked { .. } | Self::Holder(_))
    }

    fn checked(&self) -> Option<Checked<'_>> {
        if let Self::Checked { damaged, next, .. } = self { Some(Checked { damaged, next: *next }) } else { None }
    }
}
