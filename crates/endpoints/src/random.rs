//! Random numbers, unpredictable and unique.

use std::fs::File;
use std::io::{self, Read as _};

/// Returns `count` random bytes.
pub fn bytes(count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
