//! Puts the answers of stripes together in the order of the disk.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::layout::{BLOCK_BYTES, Layout, StripeId};
use crate::nbd::{BlockState, Extent, Run};
use crate::stripe::request::{BlockExtent, BlockRun};

/// Maximum extents in one reply: clients ask for the rest.
const EXTENTS_MAX: usize = 4_096;

/// Something for a number of bytes.
trait Piece: Sized {
    fn bytes(&self) -> u64;
    /// Removes the first bytes, fewer than there are.
    fn split_to(&mut self, bytes: u64) -> Self;
}

enum Content {
    Data(Bytes),
    Zeroes(u64),
}

impl Piece for Content {
    fn bytes(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Zeroes(bytes) => *bytes,
        }
    }

    fn split_to(&mut self, bytes: u64) -> Self {
        match self {
            Self::Data(data) => Self::Data(data.split_to(bytes as usize)),
            Self::Zeroes(left) => {
                *left -= bytes;
                Self::Zeroes(bytes)
            }
        }
    }
}

impl Piece for (u64, BlockState) {
    fn bytes(&self) -> u64 {
        self.0
    }

    fn split_to(&mut self, bytes: u64) -> Self {
        self.0 -= bytes;
        (bytes, self.1)
    }
}

/// The pieces of each stripe, from the first byte of a request in it.
struct Sources<P>(BTreeMap<StripeId, VecDeque<P>>);

impl<P: Piece> Sources<P> {
    /// The pieces of whole blocks, without the bytes before the request.
    fn new(layout: &Layout, offset: u64, length: u64, of_stripes: BTreeMap<StripeId, VecDeque<P>>) -> Self {
        let mut sources = Self(of_stripes);
        let stripes: Vec<StripeId> = sources.0.keys().copied().collect();
        for stripe in stripes {
            let (start, _) = layout.local(stripe, offset, length);
            sources.take(stripe, start % BLOCK_BYTES, |_| {});
        }
        sources
    }

    /// Takes pieces with that many bytes. Returns how many there were.
    fn take(&mut self, stripe: StripeId, bytes: u64, mut each: impl FnMut(P)) -> u64 {
        let Some(pieces) = self.0.get_mut(&stripe) else { return 0 };
        let mut left = bytes;
        while left > 0
            && let Some(mut piece) = pieces.pop_front()
        {
            if piece.bytes() > left {
                each(piece.split_to(left));
                pieces.push_front(piece);
                left = 0;
            } else {
                left -= piece.bytes();
                each(piece);
            }
        }
        bytes - left
    }
}

/// The bytes of a read; none if the answers do not contain all of them.
pub(super) fn runs(
    layout: &Layout,
    offset: u64,
    length: u64,
    answers: impl Iterator<Item = (StripeId, Vec<BlockRun>)>,
) -> Option<Vec<Run>> {
    let mut of_stripes: BTreeMap<StripeId, VecDeque<Content>> = BTreeMap::new();
    for (stripe, runs) in answers {
        let content = runs.into_iter().map(|run| match run {
            BlockRun::Data(data) => Content::Data(data),
            BlockRun::Zeroes(blocks) => Content::Zeroes(blocks.saturating_mul(BLOCK_BYTES)),
        });
        of_stripes.entry(stripe).or_default().extend(content);
    }
    let mut sources = Sources::new(layout, offset, length, of_stripes);
    let mut runs: Vec<Run> = Vec::new();
    for fragment in layout.fragments(offset, length) {
        let taken = sources.take(fragment.stripe, fragment.length, |content| match (content, runs.last_mut()) {
            (Content::Zeroes(0), _) => {}
            (Content::Data(data), _) if data.is_empty() => {}
            (Content::Zeroes(bytes), Some(Run::Zeroes(before))) => *before += bytes as u32,
            (Content::Zeroes(bytes), _) => runs.push(Run::Zeroes(bytes as u32)),
            (Content::Data(data), _) => runs.push(Run::Data(data)),
        });
        if taken < fragment.length {
            return None;
        }
    }
    Some(runs)
}

/// The allocation from the first byte of a request on, as far as the answers are contiguous; none if they do not
/// contain the first byte.
pub(super) fn extents(
    layout: &Layout,
    offset: u64,
    length: u64,
    answers: impl Iterator<Item = (StripeId, Vec<BlockExtent>)>,
) -> Option<Vec<Extent>> {
    let pieces = |extents: Vec<BlockExtent>| -> VecDeque<_> {
        extents.into_iter().map(|extent| (extent.count.saturating_mul(BLOCK_BYTES), extent.state)).collect()
    };
    let of_stripes = answers.map(|(stripe, extents)| (stripe, pieces(extents))).collect();
    let mut sources = Sources::new(layout, offset, length, of_stripes);
    let mut extents: Vec<Extent> = Vec::new();
    for fragment in layout.fragments(offset, length) {
        let taken = sources.take(fragment.stripe, fragment.length, |(bytes, state)| match extents.last_mut() {
            _ if bytes == 0 => {}
            Some(last) if last.state == state => last.length += bytes as u32,
            _ => extents.push(Extent { length: bytes as u32, state }),
        });
        if taken < fragment.length || extents.len() > EXTENTS_MAX {
            break;
        }
    }
    extents.truncate(EXTENTS_MAX);
    (!extents.is_empty()).then_some(extents)
}
