//! A file read from its beginning to its end, once, by one reader: past the page cache, which others have better use for,
//! and in large pieces.

use std::sync::{Mutex, PoisonError};

use crate::files::{FileError, ReadAt};
use crate::{AlignedBuffer, BLOCK_BYTES};

/// Bytes read at once.
const WINDOW_BYTES: usize = 256 << 10;

/// A file opened with [`crate::files::OpenOptions::DIRECT`], and the part of it that was read last.
pub(super) struct Sweep<H> {
    file: H,
    window: Mutex<Window>,
}

/// Part of a file; empty at first, and until then it takes no room.
struct Window {
    bytes: AlignedBuffer,
    /// Where it begins in the file: a multiple of a block.
    start: u64,
    /// How many of the bytes are the file's.
    length: usize,
}

impl<H: ReadAt> Sweep<H> {
    pub(super) fn new(file: H) -> Self {
        Self { file, window: Mutex::new(Window { bytes: AlignedBuffer::zeroed(0), start: 0, length: 0 }) }
    }
}

impl Window {
    /// What it has from `offset` on.
    fn from(&self, offset: u64) -> &[u8] {
        let skipped = offset.checked_sub(self.start).and_then(|skipped| usize::try_from(skipped).ok());
        skipped.and_then(|skipped| self.bytes[..self.length].get(skipped..)).unwrap_or_default()
    }

    fn move_to(&mut self, offset: u64, file: &impl ReadAt) -> Result<(), FileError> {
        if self.bytes.is_empty() {
            self.bytes = AlignedBuffer::zeroed(WINDOW_BYTES);
        }
        self.length = 0;
        self.start = offset - offset % BLOCK_BYTES as u64;
        self.length = file.read_at(self.start, &mut self.bytes)?;
        Ok(())
    }
}

impl<H: ReadAt> ReadAt for Sweep<H> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            if window.from(at).is_empty() {
                window.move_to(at, &self.file)?;
            }
            let found = window.from(at);
            if found.is_empty() {
                break;
            }
            let taken = found.len().min(buffer.len() - done);
            buffer[done..done + taken].copy_from_slice(&found[..taken]);
            done += taken;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{File, Files, OpenOptions};
    use crate::memory::MemoryDisk;

    #[test]
    fn every_part_is_read_wherever_the_window_was() {
        let disk = MemoryDisk::new();
        let content: Vec<u8> = (0..3 * WINDOW_BYTES + 777).map(|place| (place % 251) as u8).collect();
        disk.create("file", OpenOptions::BUFFERED).unwrap().write_at(0, &content).unwrap();
        let sweep = Sweep::new(disk.open("file", OpenOptions::DIRECT).unwrap());
        let end = content.len();
        let parts =
            [(0, 10), (10, 5_000), (WINDOW_BYTES - 3, 7), (5, 2 * WINDOW_BYTES), (end - 4, 4), (end - 4, 9), (end, 1)];
        for (offset, length) in parts {
            let mut buffer = vec![0; length];
            let read = sweep.read_at(offset as u64, &mut buffer).unwrap();
            assert_eq!(read, length.min(end - offset));
            assert!(buffer[..read] == content[offset..offset + read], "{length} bytes at {offset}");
        }
    }
}
