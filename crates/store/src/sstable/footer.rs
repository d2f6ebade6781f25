//! What a table says of itself, at its end: whose it is, what it holds, and where its filter and its top index lie.
//!
//! The footer is its content, then bytes of the content (four), the format (four), a checksum (four) over all of that,
//! and a magic (eight), which end the file. Where the length, the format and the checksum stand is the same in every
//! format, so that a format we don't know is told from damage.

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Lsn, Timestamp, checksum, checksum_append};
use bytes::Bytes;

use super::frame::Handle;
use super::{KEY_BYTES_MAX, TableId, VersionRef};
use crate::FORMAT;
use crate::identity::Owner;
use crate::sealed::Broken;

const MAGIC: [u8; 8] = *b"loggosST";

/// Bytes after the content.
const TRAILER_BYTES: usize = 20;

/// Bytes of a footer, at most: two keys, and numbers.
pub(super) const FOOTER_BYTES_MAX: usize = 2 * KEY_BYTES_MAX + 512;

/// What a table holds, as a manifest keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableMeta {
    /// Its name.
    pub id: TableId,
    /// Versions, tombstones among them.
    pub entries: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// The least and the greatest LSN (Spinnaker, section 6.1); zero if there are no versions.
    pub lsns: (Lsn, Lsn),
    /// The least and the greatest timestamp; zero if there are no versions.
    pub timestamps: (Timestamp, Timestamp),
    /// The key of the first version; empty if there is none.
    pub first_key: Bytes,
    /// The key of the last version; empty if there is none.
    pub last_key: Bytes,
    /// Bytes of the file.
    pub bytes: u64,
    /// A checksum over the checksums of all data and index blocks, in their order: two tables of the same name that
    /// differ in it are not the same.
    pub checksum: u32,
}

impl TableMeta {
    /// What is known of a table before its first version.
    pub(super) fn new(id: TableId) -> Self {
        Self {
            id,
            entries: 0,
            tombstones: 0,
            lsns: (Lsn::ZERO, Lsn::ZERO),
            timestamps: (Timestamp(0), Timestamp(0)),
            first_key: Bytes::new(),
            last_key: Bytes::new(),
            bytes: 0,
            checksum: 0,
        }
    }

    /// Counts a version, but does not keep its key.
    pub(super) fn count(&mut self, version: VersionRef<'_>) {
        if self.entries == 0 {
            self.lsns = (version.lsn, version.lsn);
            self.timestamps = (version.timestamp, version.timestamp);
        }
        self.entries += 1;
        self.tombstones += u64::from(version.value.is_none());
        self.lsns = (self.lsns.0.min(version.lsn), self.lsns.1.max(version.lsn));
        self.timestamps = (self.timestamps.0.min(version.timestamp), self.timestamps.1.max(version.timestamp));
    }

    /// Counts a block by its checksum.
    pub(super) fn count_block(&mut self, sum: u32) {
        self.checksum = checksum_append(self.checksum, &sum.to_le_bytes());
    }

    /// Whether a key lies between the first and the last.
    pub(super) fn spans(&self, key: &[u8]) -> bool {
        self.entries > 0 && *self.first_key <= *key && *key <= *self.last_key
    }

    /// Writes it, for a footer or a manifest.
    pub fn encode(&self, out: &mut Writer) {
        out.u32(self.id.cohort.0);
        out.u64(self.id.number);
        out.u64(self.entries);
        out.u64(self.tombstones);
        out.lsn(self.lsns.0);
        out.lsn(self.lsns.1);
        out.i64(self.timestamps.0.0);
        out.i64(self.timestamps.1.0);
        out.bytes(&self.first_key);
        out.bytes(&self.last_key);
        out.u64(self.bytes);
        out.u32(self.checksum);
    }

    /// Reads it. The keys are copied: they outlive what they are read from.
    ///
    /// # Errors
    /// When the input is not what [`Self::encode`] wrote.
    pub fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            id: TableId { cohort: CohortId(input.u32()?), number: input.u64()? },
            entries: input.u64()?,
            tombstones: input.u64()?,
            lsns: (input.lsn()?, input.lsn()?),
            timestamps: (Timestamp(input.i64()?), Timestamp(input.i64()?)),
            first_key: Bytes::copy_from_slice(&input.bytes()?),
            last_key: Bytes::copy_from_slice(&input.bytes()?),
            bytes: input.u64()?,
            checksum: input.u32()?,
        })
    }
}

/// Where a block lies, and its checksum.
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

/// The end of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) owner: Owner,
    pub(super) meta: TableMeta,
    pub(super) filter: Part,
    pub(super) top: Part,
}

impl Footer {
    /// The bytes that end the file.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Writer::new();
        self.owner.encode(&mut out);
        self.meta.encode(&mut out);
        self.filter.encode(&mut out);
        self.top.encode(&mut out);
        out.u32(u32::try_from(out.len()).expect("two keys are far below 4 GiB"));
        out.u32(FORMAT);
        out.u32(checksum(out.as_slice()));
        out.raw(&MAGIC);
        out.finish()
    }

    /// Bytes of the footer that a file with this end has.
    pub(super) fn bytes(end: &[u8]) -> Option<usize> {
        let trailer = &end[end.len().checked_sub(TRAILER_BYTES)?..];
        let content = u32::from_le_bytes(*trailer.first_chunk()?) as usize;
        let bytes = content.checked_add(TRAILER_BYTES)?;
        (trailer.ends_with(&MAGIC) && bytes <= FOOTER_BYTES_MAX).then_some(bytes)
    }

    /// The footer that these bytes are, neither more nor less.
    pub(super) fn decode(footer: &Bytes) -> Result<Self, Broken> {
        let sum_at = footer.len().checked_sub(12).ok_or(Broken::Damaged)?;
        let word = |at: usize| footer.get(at..)?.first_chunk().copied().map(u32::from_le_bytes);
        let format = sum_at.checked_sub(4).and_then(word).ok_or(Broken::Damaged)?;
        if !footer.ends_with(&MAGIC) || word(sum_at) != Some(checksum(&footer[..sum_at])) {
            return Err(Broken::Damaged);
        }
        if format != FORMAT {
            return Err(Broken::OtherFormat(format));
        }
        let content_end = footer.len().checked_sub(TRAILER_BYTES).ok_or(Broken::Damaged)?;
        Self::decode_content(footer.slice(..content_end)).map_err(|_| Broken::Damaged)
    }

    fn decode_content(content: Bytes) -> Result<Self, DecodeError> {
        let mut input = Reader::new(content);
        let footer = Self {
            owner: Owner::decode(&mut input)?,
            meta: TableMeta::decode(&mut input)?,
            filter: Part::decode(&mut input)?,
            top: Part::decode(&mut input)?,
        };
        input.end()?;
        Ok(footer)
    }
}
