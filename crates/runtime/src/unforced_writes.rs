//! Unforced writes held back in the process's memory: they are lost when the process is killed, as a power failure
//! loses the page cache. For tests that kill real processes, which otherwise lose nothing.
//!
//! Names are not held back: creating, renaming or removing a file takes effect immediately. Loss of names is tested by
//! the simulator (`store::memory`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Environment variable that makes a node hold back unforced writes.
pub(crate) const VARIABLE: &str = "LOGGOS_HOLD_UNFORCED";

/// Writes held back of each open file, by path.
pub(crate) type HeldFiles = Mutex<BTreeMap<String, Arc<Held>>>;

/// Writes held back of one file, in order, with their offsets.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<Vec<(u64, Vec<u8>)>>);

impl Held {
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        self.writes().push((offset, bytes.to_vec()));
    }

    /// The end of the last byte held back.
    pub(crate) fn end(&self) -> u64 {
        self.writes().iter().map(|(offset, bytes)| offset + bytes.len() as u64).max().unwrap_or(0)
    }

    /// Overlays the writes held back on `buffer`, which holds `below` bytes of the file from `offset` on. Returns the
    /// number of valid bytes.
    pub(crate) fn lay_over(&self, offset: u64, buffer: &mut [u8], below: usize) -> usize {
        let held = self.end().saturating_sub(offset);
        let there = usize::try_from(held).unwrap_or(usize::MAX).min(buffer.len()).max(below);
        buffer[below..there].fill(0);
        for (at, bytes) in self.writes().iter() {
            let (from, to) = (offset.max(*at), (offset + there as u64).min(at + bytes.len() as u64));
            if from < to {
                let written = &bytes[(from - at) as usize..(to - at) as usize];
                buffer[(from - offset) as usize..(to - offset) as usize].copy_from_slice(written);
            }
        }
        there
    }

    /// Performs all writes held back, in order, and syncs. No other write happens meanwhile.
    pub(crate) fn force<E>(
        &self,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
        sync: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut writes = self.writes();
        writes.iter().try_for_each(|(offset, bytes)| write(*offset, bytes))?;
        sync()?;
        writes.clear();
        Ok(())
    }

    fn writes(&self) -> MutexGuard<'_, Vec<(u64, Vec<u8>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_writes_overlay_file() {
        let held = Held::default();
        held.write(2, b"cd");
        held.write(6, b"gh");
        held.write(3, b"D");
        assert_eq!(held.end(), 8);
        let read = |offset: u64, length: usize, below: &[u8]| {
            let mut buffer = vec![0xff; length];
            buffer[..below.len()].copy_from_slice(below);
            let there = held.lay_over(offset, &mut buffer, below.len());
            buffer.truncate(there);
            buffer
        };
        assert_eq!(read(0, 16, b"abzzz"), b"abcDz\0gh");
        assert_eq!(read(3, 4, b"zz"), b"Dz\0g");
        assert_eq!(read(8, 4, b""), b"");
        assert_eq!(read(7, 4, b"zzz"), b"hzz");

        let mut given = Vec::new();
        let write = |offset, bytes: &[u8]| -> Result<(), ()> {
            given.push((offset, bytes.to_vec()));
            Ok(())
        };
        assert_eq!(held.force(write, || Err(())), Err(()), "it is still held back");
        assert_eq!(held.end(), 8);
        assert_eq!(given.len(), 3);
        held.force(|_, _| Ok::<(), ()>(()), || Ok(())).expect("it is forced");
        assert_eq!(held.end(), 0);
    }
}
