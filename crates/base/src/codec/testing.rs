//! Golden tests of codecs: the bytes of samples are compared with a committed file.
//!
//! An encoding that changes breaks clusters of mixed versions, or makes data on disk unreadable. So every codec has
//! samples of all its variants. With the environment variable `UPDATE_GOLDEN` set, the file is written instead of
//! compared.

use std::fmt::{Debug, Write as _};

use bytes::Bytes;

use super::DecodeError;

/// Checks the encodings of `samples` against the file at `path`: one sample per line, its name and its bytes in
/// hexadecimal. Also checks that each sample is decoded from its bytes, that no shorter input is accepted, and that
/// the decoder survives damaged bytes.
///
/// # Panics
/// If a check fails.
pub fn check_golden<T: Debug + PartialEq>(
    path: &str,
    samples: &[T],
    encode: impl Fn(&T) -> Bytes,
    decode: impl Fn(Bytes) -> Result<T, DecodeError>,
) {
    let mut found = String::new();
    for sample in samples {
        let bytes = encode(sample);
        let text = format!("{sample:?}");
        let name = text.split(|c: char| !c.is_alphanumeric()).find(|word| !word.is_empty()).unwrap_or("-");
        let hex: String = bytes.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        let _ = writeln!(found, "{name} {hex}");
        assert_eq!(decode(bytes.clone()).as_ref(), Ok(sample));
        for at in 0..bytes.len() {
            assert!(decode(bytes.slice(..at)).is_err(), "{name} was decoded from its first {at} bytes");
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= flip;
                let _ = decode(damaged.into());
            }
        }
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, found).unwrap_or_else(|error| panic!("cannot write {path}: {error}"));
        return;
    }
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    for (number, (found, golden)) in found.lines().zip(golden.lines()).enumerate() {
        assert_eq!(found, golden, "line {} of {path} differs; UPDATE_GOLDEN=1 rewrites it", number + 1);
    }
    assert_eq!(found.lines().count(), golden.lines().count(), "{path} has other samples; UPDATE_GOLDEN=1 rewrites it");
}
