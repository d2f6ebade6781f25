//! The footer of an SSTable: its origin and statistics, and the locations of its filter and top index.
//!
//! An SSTable is identified by its *origin*: the disk that wrote it, and its name there. That stays the same, byte for
//! byte, when the SSTable is transferred; the name on the current disk is only the file name and is not stored in the
//! file.
//!
//! The footer consists of its content, the length of the content (four bytes), the format (four), a checksum of all
//! that (four), and a magic (eight) at the end of the file. The positions of length, format and checksum are the same
//! in every format, so that an unknown format is distinguished from damage.

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Timestamp, checksum, checksum_append};
use bytes::Bytes;

use super::frame::Handle;
use super::{KEY_BYTES_MAX, SstableId, VersionRef};
use crate::FORMAT;
use crate::identity::Owner;
use crate::sealed::Broken;

const MAGIC: [u8; 8] = *b"loggosST";

const TRAILER_BYTES: usize = 20;

/// Maximum bytes of a footer: two keys, and numbers.
pub(super) const FOOTER_BYTES_MAX: usize = 2 * KEY_BYTES_MAX + 512;

/// The origin of an SSTable, included in each of its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The disk that wrote it.
    pub owner: Owner,
    /// Its name on that disk.
    pub id: SstableId,
}

/// The statistics of an SSTable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SstableMeta {
    /// The origin of the SSTable.
    pub origin: Origin,
    /// Number of versions, including tombstones.
    pub entries: u64,
    pub tombstones: u64,
    /// Number of row tombstones. A lookup of row tombstones can skip an SSTable without any.
    pub row_tombstones: u64,
    /// Versions older than another version of the same key: rewriting the SSTable can drop them once no read needs
    /// them.
    pub superseded: u64,
    /// Minimum and maximum timestamp; zero without versions.
    pub timestamps: (Timestamp, Timestamp),
    /// The key of the first version; empty without versions.
    pub first_key: Bytes,
    /// The key of the last version; empty without versions.
    pub last_key: Bytes,
    /// Size of the file.
    pub bytes: u64,
    /// The footer's checksum. It covers the checksums of all blocks and these statistics, so it differs between any two
    /// different SSTables.
    pub checksum: u32,
}

impl Origin {
    pub(super) fn encode(&self, out: &mut Writer) {
        self.owner.encode(out);
        out.u32(self.id.cohort.0);
        out.u64(self.id.number);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let owner = Owner::decode(input)?;
        Ok(Self { owner, id: SstableId { cohort: CohortId(input.u32()?), number: input.u64()? } })
    }
}

impl SstableMeta {
    /// The statistics of an SSTable without versions.
    pub(super) fn new(origin: Origin) -> Self {
        Self {
            origin,
            entries: 0,
            tombstones: 0,
            row_tombstones: 0,
            superseded: 0,
            timestamps: (Timestamp(0), Timestamp(0)),
            first_key: Bytes::new(),
            last_key: Bytes::new(),
            bytes: 0,
            checksum: 0,
        }
    }

    /// Counts a version without storing its key. `prefix_bytes` is the length of its filter prefix; `is_superseded` if
    /// the previous version has the same key.
    pub(super) fn count(&mut self, version: VersionRef<'_>, prefix_bytes: usize, is_superseded: bool) {
        if self.entries == 0 {
            self.timestamps = (version.timestamp, version.timestamp);
        }
        self.entries += 1;
        self.tombstones += u64::from(version.value.is_none());
        self.superseded += u64::from(is_superseded);
        // A key without a column is a row tombstone.
        self.row_tombstones += u64::from(version.value.is_none() && prefix_bytes == version.key.len());
        self.timestamps = (self.timestamps.0.min(version.timestamp), self.timestamps.1.max(version.timestamp));
    }

    /// Whether a key is between the first and the last one.
    pub(super) fn spans(&self, key: &[u8]) -> bool {
        self.entries > 0 && *self.first_key <= *key && *key <= *self.last_key
    }

    /// Encodes everything except the checksum, which is not known yet.
    fn encode(&self, out: &mut Writer) {
        self.origin.encode(out);
        out.u64(self.entries);
        out.u64(self.tombstones);
        out.u64(self.row_tombstones);
        out.u64(self.superseded);
        out.i64(self.timestamps.0.0);
        out.i64(self.timestamps.1.0);
        out.bytes(&self.first_key);
        out.bytes(&self.last_key);
        out.u64(self.bytes);
    }

    /// Decodes the statistics. Copies the keys, because they outlive the buffer.
    fn decode(input: &mut Reader, checksum: u32) -> Result<Self, DecodeError> {
        Ok(Self {
            origin: Origin::decode(input)?,
            entries: input.u64()?,
            tombstones: input.u64()?,
            row_tombstones: input.u64()?,
            superseded: input.u64()?,
            timestamps: (Timestamp(input.i64()?), Timestamp(input.i64()?)),
            first_key: Bytes::copy_from_slice(&input.bytes()?),
            last_key: Bytes::copy_from_slice(&input.bytes()?),
            bytes: input.u64()?,
            checksum,
        })
    }
}

/// The location of a block, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) handle: Handle,
    pub(super) checksum: u32,
}

impl Part {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.handle.offset);
        out.u32(self.handle.length);
        out.u32(self.checksum);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { handle: Handle { offset: input.u64()?, length: input.u32()? }, checksum: input.u32()? })
    }
}

/// A checksum over the checksums of all data and index blocks, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlocksChecksum(u32);

impl BlocksChecksum {
    pub(super) fn add(&mut self, sum: u32) {
        self.0 = checksum_append(self.0, &sum.to_le_bytes());
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) meta: SstableMeta,
    pub(super) blocks: BlocksChecksum,
    pub(super) filter: Part,
    pub(super) top: Part,
}

impl Footer {
    /// The encoding and its checksum.
    pub(super) fn encode(&self) -> (Bytes, u32) {
        let mut out = Writer::new();
        self.meta.encode(&mut out);
        out.u32(self.blocks.0);
        self.filter.encode(&mut out);
        self.top.encode(&mut out);
        out.u32(u32::try_from(out.len()).expect("two keys are far below 4 GiB"));
        out.u32(FORMAT);
        let sum = checksum(out.as_slice());
        out.u32(sum);
        out.raw(&MAGIC);
        (out.finish(), sum)
    }

    /// The length of the footer in a file with this end.
    pub(super) fn bytes(end: &[u8]) -> Option<usize> {
        let trailer = &end[end.len().checked_sub(TRAILER_BYTES)?..];
        let content = u32::from_le_bytes(*trailer.first_chunk()?) as usize;
        let bytes = content.checked_add(TRAILER_BYTES)?;
        (trailer.ends_with(&MAGIC) && bytes <= FOOTER_BYTES_MAX).then_some(bytes)
    }

    /// Decodes a footer from exactly these bytes.
    pub(super) fn decode(footer: &Bytes) -> Result<Self, Broken> {
        let sum_at = footer.len().checked_sub(12).ok_or(Broken::Damaged)?;
        let word = |at: usize| footer.get(at..)?.first_chunk().copied().map(u32::from_le_bytes);
        let format = sum_at.checked_sub(4).and_then(word).ok_or(Broken::Damaged)?;
        let sum = checksum(&footer[..sum_at]);
        if !footer.ends_with(&MAGIC) || word(sum_at) != Some(sum) {
            return Err(Broken::Damaged);
        }
        if format != FORMAT {
            return Err(Broken::OtherFormat(format));
        }
        let content_end = footer.len().checked_sub(TRAILER_BYTES).ok_or(Broken::Damaged)?;
        Self::decode_content(footer.slice(..content_end), sum).map_err(|_| Broken::Damaged)
    }

    fn decode_content(content: Bytes, checksum: u32) -> Result<Self, DecodeError> {
        let mut input = Reader::new(content);
        let footer = Self {
            meta: SstableMeta::decode(&mut input, checksum)?,
            blocks: BlocksChecksum(input.u32()?),
            filter: Part::decode(&mut input)?,
            top: Part::decode(&mut input)?,
        };
        input.end()?;
        Ok(footer)
    }
}
