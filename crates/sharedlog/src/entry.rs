//! The content of a position.
//!
//! An append of several records is *one* entry at *one* position. The records are written atomically, use one position,
//! and are adjacent.
//!
//! Every entry has a stamp, from the caller or from the client machine. The client machine recognises its own entry at
//! a position by the stamp, and readers recognise the second entry of a retried append.

use base::codec::{DecodeError, Reader, Wire, Writer};
use bytes::Bytes;

use crate::Stamp;
use crate::limits::{BATCH_BYTES_MAX, RECORDS_MAX};

/// The records of one append, encoded: their number, then each with its length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch(Bytes);

/// An append exceeds [`BATCH_BYTES_MAX`] or [`RECORDS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("append too large: {} with {bytes} bytes (limit: {RECORDS_MAX} records, {BATCH_BYTES_MAX} bytes)", base::counted(*records as u64, "record"))]
pub struct BatchTooLarge {
    pub records: usize,
    /// Encoded length of all records.
    pub bytes: usize,
}

impl Batch {
    /// Encodes records as a batch.
    ///
    /// # Errors
    /// [`BatchTooLarge`] when a limit is exceeded.
    pub fn of(records: &[Bytes]) -> Result<Self, BatchTooLarge> {
        let bytes = records.iter().fold(4usize, |sum, record| sum.saturating_add(record.len()).saturating_add(4));
        if records.len() > RECORDS_MAX || bytes > BATCH_BYTES_MAX {
            return Err(BatchTooLarge { records: records.len(), bytes });
        }
        let mut writer = Writer::with_capacity(bytes);
        writer.u32(u32::try_from(records.len()).expect("the number of records was checked"));
        records.iter().for_each(|record| writer.bytes(record));
        Ok(Self(writer.finish()))
    }

    /// Decodes the records.
    ///
    /// # Errors
    /// Never, for a batch that was built or decoded here.
    pub fn records(&self) -> Result<Vec<Bytes>, DecodeError> {
        let mut reader = Reader::new(self.0.clone());
        (0..reader.count(4)?).map(|_| reader.bytes()).collect()
    }

    /// Whether its bytes are records.
    fn check(&self) -> Result<(), DecodeError> {
        let mut reader = Reader::new(self.0.clone());
        let count = reader.count(4)?;
        if count > RECORDS_MAX {
            return Err(DecodeError::Invalid { what: "number of records" });
        }
        (0..count).try_for_each(|_| reader.bytes().map(|_| ()))?;
        reader.end()
    }

    /// Length of the encoding in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the batch has no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() <= 4
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Data {
    pub stamp: Stamp,
    pub batch: Batch,
}

/// The value written to a position, once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    Data(Data),
    /// No data: a filled hole, so that readers do not wait for it.
    Junk,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// [`Entry::Data`].
    Data,
    /// [`Entry::Junk`].
    Junk,
}

/// The value that a unit stores for a position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// The position was written.
    Entry(Entry),
    /// A tombstone: the position was written and then trimmed individually.
    Trimmed,
}

impl Entry {
    /// Bytes of its records.
    #[must_use]
    pub fn bytes(&self) -> usize {
        if let Self::Data(data) = self { data.batch.len() } else { 0 }
    }

    /// The kind of the entry.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Data(_) => Kind::Data,
            Self::Junk => Kind::Junk,
        }
    }

    /// The stamp of an appended entry; `None` for junk.
    #[must_use]
    pub fn stamp(&self) -> Option<Stamp> {
        match self {
            Self::Data(data) => Some(data.stamp),
            Self::Junk => None,
        }
    }
}

base::wire! {
    enum Entry, "entry" {
        0 => Junk,
        1 => Data(data),
    }
}

base::wire! { struct Data { stamp, batch } }

impl Wire for Batch {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Writer) {
        self.0.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let batch = Self(input.bytes()?);
        if batch.len() > BATCH_BYTES_MAX {
            return Err(DecodeError::Invalid { what: "length of a batch" });
        }
        batch.check()?;
        Ok(batch)
    }
}

impl Kept {
    const TRIMMED: u8 = 255;

    /// Length of the batch in bytes, 0 without one.
    pub(crate) fn value_bytes(&self) -> usize {
        if let Self::Entry(Entry::Data(data)) = self { data.batch.len() } else { 0 }
    }
}

/// An entry, or another tag.
impl Wire for Kept {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Writer) {
        match self {
            Self::Entry(entry) => entry.encode(out),
            Self::Trimmed => out.u8(Self::TRIMMED),
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let mut ahead = input.clone();
        if ahead.u8()? == Self::TRIMMED {
            *input = ahead;
            return Ok(Self::Trimmed);
        }
        Entry::decode(input).map(Self::Entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientId;

    fn data() -> Entry {
        let batch = Batch::of(&[Bytes::from_static(b"one"), Bytes::new()]).expect("within the limits");
        Entry::Data(Data { stamp: Stamp { client: ClientId(3), sequence: 4 }, batch })
    }

    #[test]
    fn kept_entry_round_trip_and_fuzz() {
        for kept in [Kept::Entry(Entry::Junk), Kept::Entry(data()), Kept::Trimmed] {
            let mut writer = Writer::new();
            kept.encode(&mut writer);
            let bytes = writer.finish();
            let mut reader = Reader::new(bytes.clone());
            assert_eq!(Kept::decode(&mut reader), Ok(kept));
            assert_eq!(reader.end(), Ok(()));
            for at in 0..bytes.len() {
                assert!(Kept::decode(&mut Reader::new(bytes.slice(..at))).is_err(), "cut at {at}");
                let mut damaged = bytes.to_vec();
                damaged[at] ^= 0x81;
                let _ = Kept::decode(&mut Reader::new(damaged.into()));
            }
        }
    }

    #[test]
    fn batch_size_limit() {
        let large = Bytes::from(vec![0; BATCH_BYTES_MAX - 8]);
        assert!(Batch::of(std::slice::from_ref(&large)).is_ok());
        assert!(Batch::of(&[large, Bytes::new()]).is_err());
        assert!(Batch::of(&vec![Bytes::new(); RECORDS_MAX + 1]).is_err());
        let Entry::Data(data) = data() else { return };
        assert_eq!(data.batch.records(), Ok(vec![Bytes::from_static(b"one"), Bytes::new()]));
    }
}
