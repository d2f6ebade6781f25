//! What an entry must be on before it counts, and how soon a record is forced.

use crate::codec::{DecodeError, Reader, Writer};

/// What an entry of a cohort's log must be on, on a majority of replicas, before it is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Disks: it is forced. Nothing that was acknowledged is ever lost.
    #[default]
    Forced,
    /// Main memories (Spinnaker, D.6.2): disks have it a little later. What was acknowledged of late is lost if a
    /// majority of the processes end at once, and then that is declared (guarantee 11).
    Memory,
}

/// How soon a record of the write-ahead log is forced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Force {
    /// At once: somebody waits for it.
    Now,
    /// With the next batch, or in a while if none comes: nobody waits for it, and a replica keeps it in memory until
    /// then.
    Soon,
    /// With the next batch, whenever that comes.
    WithNext,
}

impl Durability {
    /// Its name, as people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forced => "forced",
            Self::Memory => "memory",
        }
    }

    /// Appends one that may be left open to `out`.
    pub fn encode_wanted(wanted: Option<Self>, out: &mut Writer) {
        out.u8(match wanted {
            None => 0,
            Some(Self::Forced) => 1,
            Some(Self::Memory) => 2,
        });
    }

    /// Reads what [`Durability::encode_wanted`] wrote.
    ///
    /// # Errors
    /// When the bytes are something else.
    pub fn decode_wanted(input: &mut Reader) -> Result<Option<Self>, DecodeError> {
        match input.u8()? {
            0 => Ok(None),
            1 => Ok(Some(Self::Forced)),
            2 => Ok(Some(Self::Memory)),
            tag => Err(DecodeError::UnknownTag { what: "durability", tag: u64::from(tag) }),
        }
    }

    /// Appends it to `out`.
    pub fn encode(self, out: &mut Writer) {
        out.bool(self == Self::Memory);
    }

    /// Reads what [`Durability::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are something else.
    pub fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(if input.bool()? { Self::Memory } else { Self::Forced })
    }
}
