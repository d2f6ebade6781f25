//! The on-disk layout of a batch.
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | magic, including the format version |
//! | 4..8 | CRC-32C of everything from byte 8 through the last record |
//! | 8..12 | length of the records |
//! | 12..16 | number of records; 0 for an echo |
//! | 16..44 | owner: cluster, node, incarnation |
//! | 44..52 | position of this batch |
//! | 52..60 | number of its segment, because positions are ambiguous if the segment length changed |
//! | 60..76 | previous batch: position, length, checksum; zeros if there is none |
//! | 76.. | records, then zeros up to a whole block |

use base::codec::{DecodeError, Reader, Wire, Writer};
use base::{Record, checksum};
use bytes::Bytes;

use super::LogPosition;
use crate::BLOCK_BYTES;
use crate::identity::Owner;

/// `LGB` and the format version.
const MAGIC: u32 = u32::from_le_bytes([b'L', b'G', b'B', crate::FORMAT as u8]);
const CHECKSUM_AT: usize = 4;
const CHECKED_FROM: usize = 8;

/// Bytes before the records.
pub(super) const HEADER_BYTES: usize = 16 + Owner::BYTES + 8 + 8 + 16;

/// Distinguishes a batch from all others ever written at its position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct BatchIdentity {
    pub(super) position: LogPosition,
    /// Bytes of header and records.
    pub(super) length: u32,
    pub(super) checksum: u32,
}

impl BatchIdentity {
    /// The position after this batch, if its segment has space.
    pub(super) fn end(&self) -> LogPosition {
        LogPosition(self.position.0 + padded(self.length as usize) as u64)
    }
}

/// `length` rounded up to whole blocks.
pub(super) fn padded(length: usize) -> usize {
    length.next_multiple_of(BLOCK_BYTES)
}

/// The location of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchLocation {
    pub(super) owner: Owner,
    pub(super) position: LogPosition,
    pub(super) segment: u64,
}

/// An intact batch at its proper location.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) identity: BatchIdentity,
    pub(super) previous: BatchIdentity,
    count: u32,
    payload: Bytes,
}

/// Appends a batch, without padding, to `out`.
pub(super) fn encode<'a>(
    place: &BatchLocation,
    previous: &BatchIdentity,
    records: impl ExactSizeIterator<Item = &'a Record>,
    out: &mut Writer,
) -> BatchIdentity {
    let start = out.len();
    out.u32(MAGIC);
    out.u32(0);
    out.u32(0);
    out.u32(u32::try_from(records.len()).expect("a record has at least one byte"));
    place.owner.encode(out);
    out.u64(place.position.0);
    out.u64(place.segment);
    out.u64(previous.position.0);
    out.u32(previous.length);
    out.u32(previous.checksum);
    debug_assert_eq!(out.len() - start, HEADER_BYTES);
    records.for_each(|record| record.encode(out));
    let length = u32::try_from(out.len() - start).expect("a batch is shorter than its segment, far below 4 GiB");
    out.patch_u32(start + 8, length - HEADER_BYTES as u32);
    let sum = checksum(&out.as_slice()[start + CHECKED_FROM..]);
    out.patch_u32(start + CHECKSUM_AT, sum);
    BatchIdentity { position: place.position, length, checksum: sum }
}

/// The padded length claimed by the batch at the start of `bytes`; `None` without a batch header.
pub(super) fn claimed_bytes(bytes: &[u8]) -> Option<usize> {
    let field = |at: usize| bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes);
    (field(0)? == MAGIC).then_some(())?;
    Some(padded(HEADER_BYTES.checked_add(field(8)? as usize)?))
}

/// The batch at the start of `bytes`, if it is intact and belongs at `place`.
pub(super) fn parse(bytes: &[u8], place: &BatchLocation) -> Option<Frame> {
    let claimed = claimed_bytes(bytes)?;
    // Detects the common stale frame of another location before computing a checksum.
    let header = Bytes::copy_from_slice(bytes.get(..HEADER_BYTES)?);
    let parsed = parse_header(header).ok()?;
    if claimed > bytes.len() || parsed.place != *place {
        return None;
    }
    let length = HEADER_BYTES + parsed.payload_bytes as usize;
    if checksum(&bytes[CHECKED_FROM..length]) != parsed.checksum {
        return None;
    }
    Some(Frame {
        identity: BatchIdentity {
            position: place.position,
            length: u32::try_from(length).ok()?,
            checksum: parsed.checksum,
        },
        previous: parsed.previous,
        count: parsed.count,
        // Copied, so that an entry in memory retains only its batch, not a whole segment.
        payload: Bytes::copy_from_slice(&bytes[HEADER_BYTES..length]),
    })
}

struct Header {
    checksum: u32,
    payload_bytes: u32,
    count: u32,
    place: BatchLocation,
    previous: BatchIdentity,
}

fn parse_header(header: Bytes) -> Result<Header, DecodeError> {
    let mut input = Reader::new(header);
    let _magic = input.u32()?;
    let (checksum, payload_bytes, count) = (input.u32()?, input.u32()?, input.u32()?);
    let owner = Owner::decode(&mut input)?;
    let place = BatchLocation { owner, position: LogPosition(input.u64()?), segment: input.u64()? };
    let previous = BatchIdentity { position: LogPosition(input.u64()?), length: input.u32()?, checksum: input.u32()? };
    Ok(Header { checksum, payload_bytes, count, place, previous })
}

impl Frame {
    /// Whether this batch only confirms the previous one.
    pub(super) fn is_echo(&self) -> bool {
        self.count == 0
    }

    /// Its records, in order.
    ///
    /// # Errors
    /// When the bytes match the checksum but are not the counted records.
    pub(super) fn records(&self) -> Result<Vec<Record>, DecodeError> {
        let mut input = Reader::new(self.payload.clone());
        let mut records = Vec::new();
        for _ in 0..self.count {
            records.push(Record::decode(&mut input)?);
        }
        input.end()?;
        Ok(records)
    }
}

#[cfg(test)]
mod tests;
