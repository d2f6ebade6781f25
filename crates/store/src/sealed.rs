//! The frame of small files that are written whole: magic, format version, length, and a checksum over all of it. The
//! frame's layout is the same in every version, so that an unknown version is distinguished from damage.

use base::{checksum, checksum_append};
use bytes::Bytes;

use crate::{BLOCK_BYTES, FORMAT};

/// Bytes before the content: magic (8), format (4), length (4), checksum (4).
const SEAL_BYTES: usize = 20;
const CHECKSUM_AT: usize = 16;

/// Maximum bytes read of a sealed file: many times the size in the largest cluster.
pub(crate) const SEALED_BYTES_MAX: u64 = 64 << 20;

/// Why a sealed file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The content does not match its checksum.
    Damaged,
    /// The content is intact but has another format.
    OtherFormat(u32),
}

/// Seals `content`, padded with zeros to whole blocks.
pub(crate) fn seal(magic: [u8; 8], content: &[u8]) -> Vec<u8> {
    seal_as(magic, FORMAT, content)
}

fn seal_as(magic: [u8; 8], format: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("the limits keep sealed files far below 4 GiB");
    let mut sealed = Vec::with_capacity((SEAL_BYTES + content.len()).next_multiple_of(BLOCK_BYTES));
    sealed.extend_from_slice(&magic);
    sealed.extend_from_slice(&format.to_le_bytes());
    sealed.extend_from_slice(&length.to_le_bytes());
    let sum = checksum_append(checksum(&sealed), content);
    sealed.extend_from_slice(&sum.to_le_bytes());
    sealed.extend_from_slice(content);
    sealed.resize(sealed.len().next_multiple_of(BLOCK_BYTES), 0);
    sealed
}

/// Verifies a seal and returns the content.
pub(crate) fn unseal(magic: [u8; 8], sealed: &Bytes) -> Result<Bytes, Broken> {
    let field = |at: usize| sealed.get(at..)?.first_chunk().copied().map(u32::from_le_bytes);
    let (Some(format), Some(length), Some(sum)) = (field(8), field(12), field(CHECKSUM_AT)) else {
        return Err(Broken::Damaged);
    };
    let end = SEAL_BYTES.saturating_add(length as usize);
    if sealed.get(..8) != Some(&magic[..]) || end > sealed.len() {
        return Err(Broken::Damaged);
    }
    let content = sealed.slice(SEAL_BYTES..end);
    if checksum_append(checksum(&sealed[..CHECKSUM_AT]), &content) != sum {
        return Err(Broken::Damaged);
    }
    if format == FORMAT { Ok(content) } else { Err(Broken::OtherFormat(format)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::SplitMix64;

    const MAGIC: [u8; 8] = *b"test\0\0\0\0";

    #[test]
    fn other_format_is_not_damage() {
        let sealed = Bytes::from(seal_as(MAGIC, FORMAT + 1, b"content"));
        assert_eq!(unseal(MAGIC, &sealed), Err(Broken::OtherFormat(FORMAT + 1)));
        for bit in 0..(SEAL_BYTES + 7) * 8 {
            let mut damaged = sealed.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unseal(MAGIC, &damaged.into()), Err(Broken::Damaged), "bit {bit}");
        }
    }

    #[test]
    fn seal_round_trip_and_fuzz() {
        assert_eq!(unseal(MAGIC, &seal(MAGIC, b"content").into()), Ok(Bytes::from_static(b"content")));
        let mut random = SplitMix64::new(1);
        for _ in 0..10_000 {
            let mut bytes: Vec<u8> = (0..random.below(64)).map(|_| random.draw() as u8).collect();
            let known = bytes.len().min(8);
            bytes[..known].copy_from_slice(&MAGIC[..known]);
            assert_eq!(unseal(MAGIC, &bytes.into()), Err(Broken::Damaged));
        }
    }
}
