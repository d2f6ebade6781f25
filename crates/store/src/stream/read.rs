//! Reads of a stream, on any thread.

use std::ops::Range;
use std::sync::Arc;

use base::Sequence;
use base::canary::{Bug, planted};
use bytes::{Bytes, BytesMut};

use super::{Empty, GROUP_BLOCKS, Live, Shared, StreamError, at, map, offset_of, sum_of};
use crate::erased::ErasedFile;
use crate::files::ReadAt;
use crate::sstable::Io;
use crate::{AlignedBuffer, BLOCK_BYTES};

/// Adjacent blocks that are read or written are cached up to this number. Larger accesses are scans.
pub(super) const CACHED_BLOCKS_MAX: usize = 16;
/// Adjacent content of at least this size is returned in a piece of its own rather than copied.
const PIECE_BYTES_MIN: usize = 64 << 10;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// The block has no space on the disk. It reads as zeros.
    Hole,
    /// The block has space, and is zero.
    Zero,
    /// The block has content.
    Data,
}

/// Adjacent blocks that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// This number of blocks that are holes or zero.
    Zeroes(u64),
    /// The content of one block or several.
    Data(Bytes),
}

/// A stream, readable by any thread. Reads return content of at least the moment of the view.
#[derive(Clone, Debug)]
pub struct StreamView {
    shared: Arc<Shared>,
    applied: Sequence,
}

/// Where the content of a block is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Empty,
    Memory(Bytes),
    Disk(Place),
}

/// The place of a block in the data file, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    offset: u64,
    sum: u32,
    generation: u64,
}

/// Blocks read from the disk at once.
struct Fetched {
    first: u64,
    content: Bytes,
    /// The blocks with another checksum.
    wrong: Vec<(u64, Place)>,
}

impl Live {
    /// The source of a block, apart from the cache.
    fn source(&self, block: u64) -> Source {
        for layer in [Some(&self.active), self.frozen.as_deref()].into_iter().flatten() {
            match layer.state(block) {
                Some(BlockState::Data) => {
                    return layer.content(block).map_or(Source::Empty, |content| Source::Memory(content.clone()));
                }
                Some(BlockState::Hole | BlockState::Zero) => return Source::Empty,
                None => {}
            }
        }
        match self.groups.get(&(block / GROUP_BLOCKS)).map(|group| (group, group.sums[at(block)])) {
            None | Some((_, map::HOLE | map::ZERO)) => Source::Empty,
            Some((group, sum)) => {
                let offset = offset_of(group.slot, block);
                Source::Disk(Place { offset, sum, generation: group.generation })
            }
        }
    }

    fn state(&self, block: u64) -> BlockState {
        let layers = self.active.state(block).or_else(|| self.frozen.as_ref()?.state(block));
        layers.unwrap_or_else(|| match self.groups.get(&(block / GROUP_BLOCKS)).map(|group| group.sums[at(block)]) {
            None | Some(map::HOLE) => BlockState::Hole,
            Some(map::ZERO) => BlockState::Zero,
            Some(_) => BlockState::Data,
        })
    }
}

impl StreamView {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, applied: Sequence(0) }
    }

    /// The view of a machine that has applied entries through this one.
    #[must_use]
    pub fn as_of(self, applied: Sequence) -> Self {
        Self { applied, ..self }
    }

    /// Whether another view is of the same stream.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.applied == other.applied
    }

    /// A received stream mixes moments until the log has completed it.
    fn check_complete(&self) -> Result<(), StreamError> {
        let from = self.shared.complete_from;
        if self.applied < from && !planted(Bug::StreamIncompleteRead) {
            return Err(StreamError::Incomplete(from));
        }
        Ok(())
    }

    /// The content of blocks.
    ///
    /// # Errors
    /// The content is not in memory and `io` does not allow to wait for the disk, or it is damaged, or incomplete.
    pub fn read(&self, blocks: Range<u64>, io: Io) -> Result<Vec<Piece>, StreamError> {
        self.check_complete()?;
        let mut pieces = Pieces::default();
        let (sources, file) = self.sources(blocks.clone(), true);
        let mut at = 0;
        while let Some(source) = sources.get(at) {
            match source {
                Source::Empty => {
                    pieces.zeroes += 1;
                    at += 1;
                    if !matches!(sources.get(at), Some(Source::Empty)) {
                        pieces.end_zeroes();
                    }
                }
                Source::Memory(content) => {
                    pieces.add(content.clone());
                    at += 1;
                }
                Source::Disk(_) => {
                    if io == Io::CacheOnly {
                        return Err(StreamError::NotCached);
                    }
                    let places = adjacent(&sources[at..]);
                    let fetched = self.fetch(blocks.start + at as u64, &places, file.as_ref(), io)?;
                    at += places.len();
                    pieces.add(fetched);
                }
            }
        }
        Ok(pieces.finish())
    }

    /// The states of blocks: of all, or of the first ones if there are many; at least of one. Runs of equal state.
    ///
    /// # Errors
    /// [`StreamError::Incomplete`].
    pub fn states(&self, blocks: Range<u64>, steps_max: usize) -> Result<Vec<(u64, BlockState)>, StreamError> {
        self.check_complete()?;
        let live = self.shared.read();
        let mut runs: Vec<(u64, BlockState)> = Vec::new();
        let (mut block, mut steps) = (blocks.start, 0);
        while block < blocks.end && steps < steps_max.max(1) {
            steps += 1;
            let number = block / GROUP_BLOCKS;
            let (state, next) = if live.groups.contains_key(&number) {
                (live.state(block), block + 1)
            } else {
                // A group that does not exist consists of holes.
                let next = live.groups.range(number..).next().map_or(u64::MAX, |(next, _)| next * GROUP_BLOCKS);
                (BlockState::Hole, next.min(blocks.end))
            };
            match runs.last_mut() {
                Some((count, last)) if *last == state => *count += next - block,
                _ => runs.push((next - block, state)),
            }
            block = next;
        }
        Ok(runs)
    }

    /// Reads the data file from block `first` on, at most `groups_max` groups, and verifies it. Returns the number of
    /// blocks verified, those that are damaged, and where to continue; none at the end of the stream.
    ///
    /// # Errors
    /// A file operation fails, or the stream is incomplete.
    pub fn verify(&self, first: u64, groups_max: usize) -> Result<Verified, StreamError> {
        self.check_complete()?;
        let mut done = Verified::default();
        let numbers: Vec<u64> = {
            let live = self.shared.read();
            live.groups.range(first / GROUP_BLOCKS..).map(|(number, _)| *number).take(groups_max + 1).collect()
        };
        for number in numbers.iter().take(groups_max) {
            let blocks = number * GROUP_BLOCKS..(number + 1) * GROUP_BLOCKS;
            let (sources, file) = self.sources(blocks.clone(), false);
            let mut at = 0;
            while at < sources.len() {
                let places = adjacent(&sources[at..]);
                // Changes that are not in the file yet have no copy that could be damaged.
                done.verified += u64::from(matches!(sources[at], Source::Memory(_)));
                if let Some(file) = file.as_ref().filter(|_| !places.is_empty()) {
                    let fetched = self.fetch_once(blocks.start + at as u64, &places, file)?;
                    done.verified += places.len() as u64;
                    done.damaged.extend(self.damaged(&fetched));
                }
                at += places.len().max(1);
            }
        }
        done.next = numbers.get(groups_max).map(|number| number * GROUP_BLOCKS);
        Ok(done)
    }

    /// The sources of blocks, and the data file.
    fn sources(&self, blocks: Range<u64>, with_cache: bool) -> (Vec<Source>, Option<ErasedFile>) {
        let live = self.shared.read();
        let source = |block| match live.source(block) {
            Source::Disk(place) if with_cache => match self.shared.cache.page(self.shared.data, block) {
                Some(content) => Source::Memory(content),
                None => Source::Disk(place),
            },
            source => source,
        };
        (blocks.map(source).collect(), live.file.clone())
    }

    /// The content of adjacent places.
    fn fetch(&self, first: u64, places: &[Place], file: Option<&ErasedFile>, io: Io) -> Result<Bytes, StreamError> {
        let Some(file) = file else { return Err(self.damage(first)) };
        let fetched = self.fetch_once(first, places, file)?;
        if fetched.wrong.is_empty() {
            self.cache(&fetched, places, io);
            return Ok(fetched.content);
        }
        if let Some(block) = self.damaged(&fetched).first() {
            return Err(self.damage(*block));
        }
        // A flush has overwritten some of them meanwhile: its layer has the blocks now, or the map their checksums.
        let mut content = BytesMut::from(&fetched.content[..]);
        for (block, _) in &fetched.wrong {
            let piece = &self.read(*block..block + 1, Io::PassBy)?[..];
            let target = (block - first) as usize * BLOCK_BYTES;
            match piece {
                [Piece::Data(data)] => content[target..target + BLOCK_BYTES].copy_from_slice(data),
                _ => content[target..target + BLOCK_BYTES].fill(0),
            }
        }
        Ok(content.freeze())
    }

    fn fetch_once(&self, first: u64, places: &[Place], file: &ErasedFile) -> Result<Fetched, StreamError> {
        let mut buffer = AlignedBuffer::zeroed(places.len() * BLOCK_BYTES);
        let offset = places.first().map_or(0, |place| place.offset);
        let read = file.read_at(offset, &mut buffer)?;
        buffer[read..].fill(0);
        let content = buffer.into_bytes();
        let blocks = (first..).zip(places).zip(content.chunks_exact(BLOCK_BYTES));
        let is_wrong = |((block, place), content): ((u64, &Place), &[u8])| {
            let is_valid =
                planted(Bug::StreamChecksumIgnored) || sum_of(self.shared.cohort, block, content) == place.sum;
            (!is_valid).then_some((block, *place))
        };
        let wrong = blocks.filter_map(is_wrong).collect();
        Ok(Fetched { first, content, wrong })
    }

    /// The blocks with a wrong checksum that no flush explains: it would have them in its layer until it is installed,
    /// and then have changed their generation.
    fn damaged(&self, fetched: &Fetched) -> Vec<u64> {
        if fetched.wrong.is_empty() {
            return Vec::new();
        }
        let live = self.shared.read();
        let is_damaged = |(block, place): &&(u64, Place)| live.source(*block) == Source::Disk(*place);
        fetched.wrong.iter().filter(is_damaged).map(|(block, _)| *block).collect()
    }

    /// Caches blocks that were read, unless they have changed since.
    fn cache(&self, fetched: &Fetched, places: &[Place], io: Io) {
        if io != Io::Allowed || places.len() > CACHED_BLOCKS_MAX {
            return;
        }
        let live = self.shared.read();
        for ((block, place), content) in (fetched.first..).zip(places).zip(fetched.content.chunks_exact(BLOCK_BYTES)) {
            if live.source(block) == Source::Disk(*place) {
                // Copied, so that it takes no more memory than a block.
                self.shared.cache.insert_page(self.shared.data, block, Bytes::copy_from_slice(content));
            }
        }
    }

    fn damage(&self, block: u64) -> StreamError {
        StreamError::DamagedBlock { path: self.shared.data.path(), block }
    }
}

/// The result of [`StreamView::verify`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The number of blocks that were read, or are in memory only.
    pub verified: u64,
    /// Those without their checksum.
    pub damaged: Vec<u64>,
    /// The block to continue from.
    pub next: Option<u64>,
}

/// The places at the beginning of `sources` that follow one another in the data file.
fn adjacent(sources: &[Source]) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    for source in sources {
        match source {
            Source::Disk(place)
                if places.last().is_none_or(|last| last.offset + BLOCK_BYTES as u64 == place.offset) =>
            {
                places.push(*place);
            }
            _ => break,
        }
    }
    places
}

/// Collects pieces, and combines small adjacent ones.
#[derive(Debug, Default)]
struct Pieces {
    done: Vec<Piece>,
    /// Content that is not in a piece yet.
    small: Vec<Bytes>,
    zeroes: u64,
}

impl Pieces {
    fn add(&mut self, content: Bytes) {
        if content.len() >= PIECE_BYTES_MIN {
            self.end_small();
            self.done.push(Piece::Data(content));
        } else {
            self.small.push(content);
        }
    }

    fn end_small(&mut self) {
        match &self.small[..] {
            [] => return,
            [one] => self.done.push(Piece::Data(one.clone())),
            several => self.done.push(Piece::Data(several.concat().into())),
        }
        self.small.clear();
    }

    fn end_zeroes(&mut self) {
        self.end_small();
        self.done.push(Piece::Zeroes(std::mem::take(&mut self.zeroes)));
    }

    fn finish(mut self) -> Vec<Piece> {
        self.end_small();
        self.done
    }
}

impl From<Empty> for BlockState {
    fn from(empty: Empty) -> Self {
        match empty {
            Empty::Hole => Self::Hole,
            Empty::Zero => Self::Zero,
        }
    }
}
