//! Sequential reading of an SSTable file with direct IO in large pieces, which leaves the page cache to other files.
//!
//! Index blocks come after the data blocks that they name. So a read that does not continue at the end of the last one
//! does not move the window, and reads only the requested bytes.

use std::sync::{Mutex, PoisonError};

use crate::files::{FileError, ReadAt};
use crate::{AlignedBuffer, BLOCK_BYTES};

const WINDOW_BYTES: usize = 256 << 10;

/// A read that starts within this distance after the last one continues it: an index block is in between.
const NEAR_BYTES: u64 = 16 << 10;

/// A file opened with [`crate::files::OpenOptions::DIRECT`], and its recently read parts.
pub(super) struct Sweep<H> {
    file: H,
    parts: Mutex<Parts>,
}

struct Parts {
    /// The current window of the scan.
    window: Part,
    /// The last read outside the window.
    aside: Part,
}

/// A part of a file; empty and without a buffer at first.
struct Part {
    bytes: AlignedBuffer,
    /// File offset, a multiple of the block size.
    start: u64,
    length: usize,
    /// File offset of the end of the last read.
    read_to: u64,
}

impl<H: ReadAt> Sweep<H> {
    pub(super) fn new(file: H) -> Self {
        let part = || Part { bytes: AlignedBuffer::zeroed(0), start: 0, length: 0, read_to: 0 };
        Self { file, parts: Mutex::new(Parts { window: part(), aside: part() }) }
    }
}

impl Parts {
    /// The part that serves a read at `offset`, and whether it is the window.
    fn of(&mut self, offset: u64) -> (&mut Part, bool) {
        let goes_on = |part: &Part| offset.checked_sub(part.read_to).is_some_and(|gap| gap <= NEAR_BYTES);
        let is_swept = !self.window.from(offset).is_empty() || goes_on(&self.window) || goes_on(&self.aside);
        if is_swept { (&mut self.window, true) } else { (&mut self.aside, false) }
    }
}

impl Part {
    /// Its bytes from `offset` on.
    fn from(&self, offset: u64) -> &[u8] {
        let skipped = offset.checked_sub(self.start).and_then(|skipped| usize::try_from(skipped).ok());
        skipped.and_then(|skipped| self.bytes[..self.length].get(skipped..)).unwrap_or_default()
    }

    /// Reads `length` bytes from the start of the block that contains `offset`.
    fn move_to(&mut self, offset: u64, length: usize, file: &impl ReadAt) -> Result<(), FileError> {
        if self.bytes.len() != length {
            self.bytes = AlignedBuffer::zeroed(length);
        }
        self.length = 0;
        self.start = offset - offset % BLOCK_BYTES as u64;
        self.length = file.read_at(self.start, &mut self.bytes)?;
        Ok(())
    }
}

/// Size of the blocks that contain these bytes.
fn blocks_of(offset: u64, bytes: usize) -> usize {
    let skipped = (offset % BLOCK_BYTES as u64) as usize;
    (skipped + bytes).next_multiple_of(BLOCK_BYTES)
}

impl<H: ReadAt> ReadAt for Sweep<H> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let (part, is_swept) = parts.of(offset);
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            if part.from(at).is_empty() {
                let length = if is_swept { WINDOW_BYTES } else { blocks_of(at, buffer.len() - done) };
                part.move_to(at, length, &self.file)?;
            }
            let found = part.from(at);
            if found.is_empty() {
                break;
            }
            let taken = found.len().min(buffer.len() - done);
            buffer[done..done + taken].copy_from_slice(&found[..taken]);
            done += taken;
        }
        part.read_to = offset + done as u64;
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::files::{File, Files, OpenOptions};
    use crate::memory::{MemoryDisk, MemoryFile};

    /// A file that counts the bytes read.
    struct Counted(MemoryFile, AtomicU64);

    impl ReadAt for Counted {
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
            let read = self.0.read_at(offset, buffer)?;
            self.1.fetch_add(read as u64, Ordering::Relaxed);
            Ok(read)
        }
    }

    fn sweep_of(bytes: usize) -> (Vec<u8>, Sweep<Counted>) {
        let disk = MemoryDisk::new();
        let content: Vec<u8> = (0..bytes).map(|place| (place % 251) as u8).collect();
        disk.create("file", OpenOptions::BUFFERED).unwrap().write_at(0, &content).unwrap();
        (content, Sweep::new(Counted(disk.open("file", OpenOptions::DIRECT).unwrap(), AtomicU64::new(0))))
    }

    #[test]
    fn sweep_reads_any_offset() {
        let (content, sweep) = sweep_of(3 * WINDOW_BYTES + 777);
        let end = content.len();
        let parts = [
            (0, 10),
            (10, 5_000),
            (WINDOW_BYTES - 3, 7),
            (2 * WINDOW_BYTES + 5, 9_000),
            (5_010, 2),
            (5, 2 * WINDOW_BYTES),
            (end - 4, 4),
            (end - 4, 9),
            (end, 1),
        ];
        for (offset, length) in parts {
            let mut buffer = vec![0; length];
            let read = sweep.read_at(offset as u64, &mut buffer).unwrap();
            assert_eq!(read, length.min(end - offset));
            assert!(buffer[..read] == content[offset..offset + read], "{length} bytes at {offset}");
        }
    }

    /// The access pattern of an SSTable scan: each index block before its data blocks, and again at each step of a job.
    #[test]
    fn sweep_rereads_little() {
        const GROUP: usize = 400_000;
        const INDEX: usize = 4_000;
        let (content, sweep) = sweep_of(10 * (GROUP + INDEX));
        let read = |offset: usize, length: usize| {
            let mut buffer = vec![0; length];
            assert_eq!(sweep.read_at(offset as u64, &mut buffer), Ok(length));
        };
        for group in 0..10 {
            let start = group * (GROUP + INDEX);
            for block in 0..GROUP / 4_000 {
                if block % 20 == 0 {
                    read(start + GROUP, INDEX);
                }
                read(start + block * 4_000, 4_000);
            }
        }
        let read = sweep.file.1.load(Ordering::Relaxed);
        assert!(read < content.len() as u64 * 5 / 4, "{read} of {}", content.len());
    }
}
