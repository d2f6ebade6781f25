//! The states that a client has seen, for another client: its timeline reads are then not older either.
//!
//! A client that observes a token is in the same state as if it had received the responses that the token's client has
//! received. So guarantee 15 holds across both.

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, KeyRange};
use bytes::Bytes;

use crate::seen::{CohortLsn, SeenStates, Shown};

pub use base::limits::grpc::TOKEN_BYTES_MAX;

/// The format, as the first byte.
const FORMAT: u8 = 1;
const CHECKSUM_BYTES: usize = 4;

/// The latest seen states of tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimelineToken(pub(crate) SeenStates);

/// Why a token cannot be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is larger than [`TOKEN_BYTES_MAX`].
    #[error("{bytes} bytes exceed the limit of {TOKEN_BYTES_MAX}")]
    TooLarge { bytes: usize },
    /// It was damaged, for example cut short.
    #[error("the checksum does not match")]
    Checksum,
    /// It is of another version.
    #[error("unsupported format {0}")]
    Format(u8),
    /// Its content is malformed.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
}

impl TimelineToken {
    /// The token as bytes.
    ///
    /// # Errors
    /// [`TokenError::TooLarge`].
    pub fn encode(&self) -> Result<Bytes, TokenError> {
        let mut out = Writer::new();
        out.u8(FORMAT);
        for (table, Shown { place, range }) in self.0.all() {
            out.bytes(table.as_bytes());
            out.u32(place.cohort.0);
            out.lsn(place.lsn);
            out.bytes(&range.start);
            out.optional(range.end.as_ref());
        }
        out.u32(base::checksum(out.as_slice()));
        let bytes = out.len();
        if bytes > TOKEN_BYTES_MAX { Err(TokenError::TooLarge { bytes }) } else { Ok(out.finish()) }
    }

    /// The token in bytes from [`TimelineToken::encode`].
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn decode(mut bytes: Bytes) -> Result<Self, TokenError> {
        if bytes.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::TooLarge { bytes: bytes.len() });
        }
        let content = bytes.split_to(bytes.len().saturating_sub(CHECKSUM_BYTES));
        if base::checksum(&content).to_le_bytes() != bytes[..] {
            return Err(TokenError::Checksum);
        }
        let mut input = Reader::new(content);
        match input.u8()? {
            FORMAT => {}
            other => return Err(TokenError::Format(other)),
        }
        let mut states = SeenStates::default();
        while input.left() > 0 {
            let table = input.text("table name")?;
            let place = CohortLsn { cohort: CohortId(input.u32()?), lsn: input.lsn()? };
            // Copied, because the slices would keep the whole token in memory.
            let start = Bytes::copy_from_slice(&input.bytes()?);
            let end = input.optional()?.map(|end| Bytes::copy_from_slice(&end));
            states.note(&table, Shown { place, range: KeyRange { start, end } });
        }
        Ok(Self(states))
    }
}

#[cfg(test)]
mod tests {
    use base::Lsn;

    use super::*;

    fn shown(cohort: u32, sequence: u64, start: &'static str, end: Option<&'static str>) -> Shown {
        let place = CohortLsn { cohort: CohortId(cohort), lsn: Lsn::new(2, sequence) };
        Shown { place, range: KeyRange { start: start.into(), end: end.map(Into::into) } }
    }

    fn token() -> TimelineToken {
        let mut states = SeenStates::default();
        states.note("t", shown(2, 9, "", Some("m")));
        states.note("t", shown(5, 3, "m", None));
        states.note("u", shown(3, 7, "", None));
        TimelineToken(states)
    }

    #[test]
    fn token_survives_encoding() {
        for token in [token(), TimelineToken::default()] {
            assert_eq!(TimelineToken::decode(token.encode().unwrap()), Ok(token));
        }
    }

    #[test]
    fn damaged_token_is_rejected() {
        let good = token().encode().unwrap();
        for length in 0..good.len() {
            assert!(TimelineToken::decode(good.slice(..length)).is_err(), "{length} bytes");
        }
        for place in 0..good.len() {
            let mut bad = good.to_vec();
            bad[place] ^= 1;
            assert_eq!(TimelineToken::decode(bad.into()), Err(TokenError::Checksum), "byte {place}");
        }
        let mut other = vec![9];
        other.extend(base::checksum(&other).to_le_bytes());
        assert_eq!(TimelineToken::decode(other.into()), Err(TokenError::Format(9)));
    }

    #[test]
    fn token_size_is_bounded() {
        let mut states = SeenStates::default();
        for cohort in 0..200 {
            let range = KeyRange { start: vec![b'k'; 8 << 10].into(), end: None };
            states.note("t", Shown { range, ..shown(cohort, 1, "", None) });
        }
        assert!(matches!(TimelineToken(states).encode(), Err(TokenError::TooLarge { .. })));
        let bytes = TOKEN_BYTES_MAX + 1;
        assert_eq!(TimelineToken::decode(vec![0; bytes].into()), Err(TokenError::TooLarge { bytes }));
    }
}
