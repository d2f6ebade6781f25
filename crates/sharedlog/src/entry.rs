//! What lies at a position.
//!
//! An append of several records is *one* entry at *one* position that holds them all: it is there whole or not at all,
//! costs one position, and its records follow one another.
//!
//! Every entry has a stamp: the caller's, or else one of the client machine's own. By its stamp the machine recognises its
//! entry at the position that it was given, and readers recognise the second entry of a retried append.

use base::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;

use crate::Stamp;
use crate::limits::{BATCH_BYTES_MAX, RECORDS_MAX};

/// The records of one append, encoded: their number, then each with its length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch(Bytes);

/// An append holds too much: [`BATCH_BYTES_MAX`] or [`RECORDS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("one append can't hold {} of {bytes} bytes", base::counted(*records as u64, "record"))]
pub struct BatchTooLarge {
    /// How many records there are.
    pub records: usize,
    /// How long they are together.
    pub bytes: usize,
}

impl Batch {
    /// A batch of these records.
    ///
    /// # Errors
    /// When they are too many or too long.
    pub fn of(records: &[Bytes]) -> Result<Self, BatchTooLarge> {
        let bytes = records.iter().fold(4usize, |sum, record| sum.saturating_add(record.len()).saturating_add(4));
        if records.len() > RECORDS_MAX || bytes > BATCH_BYTES_MAX {
            return Err(BatchTooLarge { records: records.len(), bytes });
        }
        let mut writer = Writer::with_capacity(bytes);
        writer.u32(u32::try_from(records.len()).expect("their number was looked at"));
        records.iter().for_each(|record| writer.bytes(record));
        Ok(Self(writer.finish()))
    }

    /// The records.
    ///
    /// # Errors
    /// Never, of a batch that was made or decoded here.
    pub fn records(&self) -> Result<Vec<Bytes>, DecodeError> {
        let mut reader = Reader::new(self.0.clone());
        let count = reader.count(4)?;
        if count > RECORDS_MAX {
            return Err(DecodeError::Invalid { what: "number of records" });
        }
        let records = (0..count).map(|_| reader.bytes()).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(records)
    }

    /// Bytes that the batch takes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no record in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() <= 4
    }
}

/// What was appended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Data {
    /// Which append of which client it is.
    pub stamp: Stamp,
    /// The records.
    pub batch: Batch,
}

/// What a position is written with, once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// What was appended.
    Data(Data),
    /// Nothing: a hole that was filled so that nobody waits for it.
    Junk,
}

/// What kind of entry lies at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// [`Entry::Data`].
    Data,
    /// [`Entry::Junk`].
    Junk,
}

/// What a unit's store keeps under a position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// The entry.
    Entry(Entry),
    /// A note that there was one, which was trimmed by itself.
    Trimmed,
}

impl Entry {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Data(_) => Kind::Data,
            Self::Junk => Kind::Junk,
        }
    }

    /// Its stamp, if it was appended.
    #[must_use]
    pub fn stamp(&self) -> Option<Stamp> {
        match self {
            Self::Data(data) => Some(data.stamp),
            Self::Junk => None,
        }
    }

    /// Writes it.
    pub fn encode(&self, writer: &mut Writer) {
        match self {
            Self::Junk => writer.u8(0),
            Self::Data(data) => {
                writer.u8(1);
                data.stamp.encode(writer);
                writer.bytes(&data.batch.0);
            }
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// When it is none, or its batch is too large or none.
    pub fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let tag = reader.u8()?;
        match tag {
            0 => Ok(Self::Junk),
            1 => {
                let stamp = Stamp::decode(reader)?;
                let batch = Batch(reader.bytes()?);
                if batch.len() > BATCH_BYTES_MAX {
                    return Err(DecodeError::Invalid { what: "length of a batch" });
                }
                batch.records()?;
                Ok(Self::Data(Data { stamp, batch }))
            }
            tag => Err(DecodeError::UnknownTag { what: "entry", tag: tag.into() }),
        }
    }
}

impl Kept {
    const TRIMMED: u8 = 255;

    /// Bytes of the batch in it.
    pub(crate) fn value_bytes(&self) -> usize {
        if let Self::Entry(Entry::Data(data)) = self { data.batch.len() } else { 0 }
    }

    /// Writes it.
    pub fn encode(&self, writer: &mut Writer) {
        match self {
            Self::Entry(entry) => entry.encode(writer),
            Self::Trimmed => writer.u8(Self::TRIMMED),
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// As [`Entry::decode`].
    pub fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let mut ahead = reader.clone();
        if ahead.u8()? == Self::TRIMMED {
            *reader = ahead;
            return Ok(Self::Trimmed);
        }
        Entry::decode(reader).map(Self::Entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientId;

    fn data() -> Entry {
        let batch = Batch::of(&[Bytes::from_static(b"one"), Bytes::new()]).expect("it is small");
        Entry::Data(Data { stamp: Stamp { client: ClientId(3), sequence: 4 }, batch })
    }

    #[test]
    fn what_was_written_is_read_and_any_other_bytes_do_not_panic() {
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
    fn a_batch_is_bounded() {
        let large = Bytes::from(vec![0; BATCH_BYTES_MAX - 8]);
        assert!(Batch::of(std::slice::from_ref(&large)).is_ok());
        assert!(Batch::of(&[large, Bytes::new()]).is_err());
        assert!(Batch::of(&vec![Bytes::new(); RECORDS_MAX + 1]).is_err());
        let Entry::Data(data) = data() else { return };
        assert_eq!(data.batch.records(), Ok(vec![Bytes::from_static(b"one"), Bytes::new()]));
    }
}
