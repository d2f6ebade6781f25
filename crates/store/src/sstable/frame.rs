//! The on-disk frame of a block: kind and compression flag (one byte), length of the content (four), checksum (four),
//! then the content, raw or compressed with LZ4.
//!
//! The checksum includes the SSTable's origin and the file offset. The length of the frame is stored in the [`Handle`]
//! that refers to it.

use std::sync::Arc;

use base::checksum_append;
use base::codec::Writer;
use bytes::Bytes;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use super::{KEY_BYTES_MAX, Origin, SstableError, VALUE_BYTES_MAX};
use crate::files::ReadAt;

/// Bytes before a block's content.
const HEADER_BYTES: usize = 9;
/// Header bytes before the checksum.
const CHECKED_HEADER_BYTES: usize = 5;

const COMPRESSED: u8 = 0x80;

/// Maximum content of a data or index block: the largest version, or a few of the largest keys.
const CONTENT_BYTES_MAX: usize = KEY_BYTES_MAX + VALUE_BYTES_MAX + (64 << 10);

/// Maximum expansion factor of LZ4.
const LZ4_RATIO_MAX: usize = 255;

/// After this many consecutive incompressible data blocks, only one in as many is tried: compressed or encrypted values
/// would only waste CPU time.
const POOR_MAX: u32 = 8;

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data = 1,
    /// Handles of data blocks.
    Index = 2,
    /// Handles of index blocks.
    Top = 3,
    Filter = 4,
}

/// The location of a block in its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl Handle {
    pub(super) fn end(self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.length))
    }
}

/// A checksum of the SSTable's origin, from which the checksums of its blocks start.
#[derive(Clone, Copy)]
pub(super) struct Seed(u32);

impl Seed {
    pub(super) fn new(origin: &Origin) -> Self {
        let mut place = Writer::new();
        origin.encode(&mut place);
        Self(base::checksum(place.as_slice()))
    }

    fn checksum(self, offset: u64, header: &[u8], stored: &[u8]) -> u32 {
        let place = checksum_append(self.0, &offset.to_le_bytes());
        checksum_append(checksum_append(place, header), stored)
    }
}

pub(super) struct Framer {
    seed: Seed,
    sstable: CompressTable,
    compressed: Vec<u8>,
    /// Consecutive uncompressed data blocks.
    poor: u32,
}

impl Framer {
    pub(super) fn new(seed: Seed) -> Self {
        Self { seed, sstable: CompressTable::default(), compressed: Vec::new(), poor: 0 }
    }

    /// Appends a block to `out`, the end of which is at `offset` of the file. Returns its handle and checksum.
    pub(super) fn append(&mut self, out: &mut Vec<u8>, offset: u64, kind: Kind, content: &[u8]) -> (Handle, u32) {
        let seed = self.seed;
        let length_max = if self.may_help(kind) { content.len() - content.len().div_ceil(8) } else { 0 };
        let compressed = if length_max > 0 { self.compress(content) } else { None };
        let (stored, flag) = match compressed.filter(|compressed| compressed.len() <= length_max) {
            Some(compressed) => (compressed, COMPRESSED),
            None => (content, 0),
        };
        let content_length = u32::try_from(content.len()).expect("the limits keep a block far below 4 GiB");
        let length = u32::try_from(HEADER_BYTES + stored.len()).expect("the limits keep a block far below 4 GiB");
        let header_at = out.len();
        out.push(kind as u8 | flag);
        out.extend_from_slice(&content_length.to_le_bytes());
        let sum = seed.checksum(offset, &out[header_at..], stored);
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(stored);
        if kind == Kind::Data {
            self.poor = if flag == COMPRESSED { 0 } else { self.poor.saturating_add(1) };
        }
        (Handle { offset, length }, sum)
    }

    /// Whether to try compression. A filter is incompressible.
    fn may_help(&self, kind: Kind) -> bool {
        match kind {
            Kind::Data => self.poor < POOR_MAX || self.poor.is_multiple_of(POOR_MAX),
            Kind::Index | Kind::Top => true,
            Kind::Filter => false,
        }
    }

    fn compress(&mut self, content: &[u8]) -> Option<&[u8]> {
        let room = get_maximum_output_size(content.len());
        if self.compressed.len() < room {
            self.compressed.resize(room, 0);
        }
        let length = compress_into_with_table(content, &mut self.compressed, &mut self.sstable).ok()?;
        self.compressed.get(..length)
    }
}

/// A file to read blocks from.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) file: Arc<dyn ReadAt>,
    pub(super) path: String,
    pub(super) seed: Seed,
    /// Blocks end before this offset, which is within the file. Limits the memory for a block.
    pub(super) end: u64,
}

impl Source {
    /// The same source with another file handle.
    pub(super) fn with_file(self, file: Arc<dyn ReadAt>) -> Self {
        Self { file, ..self }
    }

    pub(super) fn damaged(&self, offset: u64) -> SstableError {
        SstableError::Damaged { path: self.path.clone(), offset }
    }

    /// Reads the content of a block and its checksum.
    pub(super) fn read(&self, handle: Handle, kind: Kind) -> Result<(Bytes, u32), SstableError> {
        let damaged = || self.damaged(handle.offset);
        let length = handle.length as usize;
        if handle.end().is_none_or(|end| end > self.end) || is_too_long(kind, length.saturating_sub(HEADER_BYTES)) {
            return Err(damaged());
        }
        let mut frame = vec![0; length];
        if self.file.read_at(handle.offset, &mut frame)? < length {
            return Err(damaged());
        }
        self.open(handle.offset, kind, &frame.into()).ok_or_else(damaged)
    }

    fn open(&self, offset: u64, kind: Kind, frame: &Bytes) -> Option<(Bytes, u32)> {
        let header = frame.get(..CHECKED_HEADER_BYTES)?;
        let sum = u32::from_le_bytes(*frame.get(CHECKED_HEADER_BYTES..)?.first_chunk()?);
        let stored = frame.get(HEADER_BYTES..)?;
        if header[0] & !COMPRESSED != kind as u8 || self.seed.checksum(offset, header, stored) != sum {
            return None;
        }
        let content_length = u32::from_le_bytes(*header[1..].first_chunk()?) as usize;
        if header[0] & COMPRESSED == 0 {
            return (content_length == stored.len()).then(|| (frame.slice(HEADER_BYTES..), sum));
        }
        if content_length > stored.len().saturating_mul(LZ4_RATIO_MAX) || is_too_long(kind, content_length) {
            return None;
        }
        let mut content = vec![0; content_length];
        let length = decompress_into(stored, &mut content).ok()?;
        (length == content_length).then(|| (content.into(), sum))
    }
}

/// Whether the content exceeds the limit for its kind. The filter and the top index are limited only by the file's
/// length.
fn is_too_long(kind: Kind, content_bytes: usize) -> bool {
    matches!(kind, Kind::Data | Kind::Index) && content_bytes > CONTENT_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use base::{CohortId, SplitMix64};

    use super::*;
    use crate::files::{File, Files, OpenOptions};
    use crate::memory::MemoryDisk;
    use crate::sstable::SstableId;
    use crate::testing::identity;

    fn seed() -> Seed {
        let id = SstableId { cohort: CohortId(1), number: 1 };
        Seed::new(&Origin { owner: identity().owner(), id })
    }

    fn read(disk: &MemoryDisk, frame: &[u8], kind: Kind) -> Option<Bytes> {
        let file = disk.open("file", OpenOptions::BUFFERED).unwrap();
        file.write_at(0, frame).unwrap();
        let source = Source { file: Arc::new(file), path: "file".into(), seed: seed(), end: frame.len() as u64 };
        let handle = Handle { offset: 0, length: frame.len() as u32 };
        source.read(handle, kind).ok().map(|(content, _)| content)
    }

    #[test]
    fn compresses_when_saving_one_eighth() {
        let (disk, mut framer) = (MemoryDisk::new(), Framer::new(seed()));
        disk.create("file", OpenOptions::BUFFERED).unwrap();
        let mut random = SplitMix64::new(1);
        for (regular, irregular) in [(0, 0), (1, 0), (4_000, 0), (0, 4_000), (300, 3_900), (900, 3_100), (200_000, 9)] {
            let mut content = vec![5; regular];
            content.extend((0..irregular).map(|_| random.draw() as u8));
            for kind in [Kind::Data, Kind::Filter] {
                let mut frame = Vec::new();
                let (handle, _) = framer.append(&mut frame, 0, kind, &content);
                assert_eq!(handle.length as usize, frame.len());
                assert_eq!(frame[0] & COMPRESSED != 0, kind == Kind::Data && regular > 16 + content.len() / 7);
                assert_eq!(read(&disk, &frame, kind).as_deref(), Some(&content[..]));
                assert_eq!(read(&disk, &frame, Kind::Index), None, "a block of another kind");
            }
        }
    }

    #[test]
    fn incompressible_data_is_retried_rarely() {
        let mut framer = Framer::new(seed());
        let (words, mut random) = (b"words and words ".repeat(50), SplitMix64::new(1));
        let noise: Vec<u8> = (0..800).map(|_| random.draw() as u8).collect();
        let mut is_compressed = |content: &[u8]| {
            let mut frame = Vec::new();
            framer.append(&mut frame, 0, Kind::Data, content);
            frame[0] & COMPRESSED != 0
        };
        assert!(!(0..POOR_MAX).any(|_| is_compressed(&noise)) && is_compressed(&words));
        assert!(!(0..=POOR_MAX).any(|_| is_compressed(&noise)), "one attempt is made");
        let untried = (0..POOR_MAX).take_while(|_| !is_compressed(&words)).count();
        assert_eq!(untried, POOR_MAX as usize - 1);
        assert!(is_compressed(&words), "after a success each block is tried again");
    }

    /// A checksum protects the decompressor from damage; this test recomputes it after the damage.
    #[test]
    fn fuzz_decompressor_under_valid_checksum() {
        let (disk, mut framer) = (MemoryDisk::new(), Framer::new(seed()));
        disk.create("file", OpenOptions::BUFFERED).unwrap();
        let mut whole = Vec::new();
        framer.append(&mut whole, 0, Kind::Data, &b"some words, more words, words again, ".repeat(20));
        let mut random = SplitMix64::new(1);
        for _ in 0..20_000 {
            let mut frame = whole.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(frame.len() as u64) as usize;
                frame[at] = random.draw() as u8;
            }
            frame[0] = Kind::Data as u8 | (random.below(4).min(1) as u8 * COMPRESSED);
            let sum = seed().checksum(0, &frame[..CHECKED_HEADER_BYTES], &frame[HEADER_BYTES..]);
            frame[CHECKED_HEADER_BYTES..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
            let content = read(&disk, &frame, Kind::Data);
            assert!(content.is_none_or(|content| content.len() <= frame.len() * LZ4_RATIO_MAX));
        }
    }
}
