//! A file written once, sequentially: SSTables and checkpoints.
//!
//! Whole blocks are written with direct IO. The data may never be read again, and allocating, filling and freeing page
//! cache for it took most of the CPU time of a flush. The remainder at the end, less than a block, goes through the
//! page cache.

use crate::files::{File, FileError, Files, OpenOptions};
use crate::{AlignedBuffer, BLOCK_BYTES};

const WRITE_BYTES: usize = 256 << 10;

/// Spare capacity, which suffices for most single additions.
const SPARE_BYTES: usize = 64 << 10;

/// The part of a file that an appender needs, object-safe so that jobs do not depend on the file type.
trait Output: Send {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError>;
    fn force(&self) -> Result<(), FileError>;
}

impl<H: File> Output for H {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.write_at(offset, bytes)
    }

    fn force(&self) -> Result<(), FileError> {
        self.sync()
    }
}

/// Buffers bytes and writes them sequentially.
pub(crate) struct Appender {
    file: Box<dyn Output>,
    path: String,
    /// Buffered data starts at `start`, which is block-aligned unless the vector was reallocated.
    room: Vec<u8>,
    start: usize,
    /// File offset of the buffered data: a multiple of the block size, except at the end.
    at: u64,
}

impl Appender {
    /// Creates the file.
    ///
    /// # Errors
    /// When a file operation fails; [`crate::files::FileErrorKind::Exists`] if the file exists.
    pub(crate) fn create<F: Files>(files: &F, path: String) -> Result<Self, FileError> {
        let file = Box::new(files.create(&path, OpenOptions::DIRECT)?);
        let mut room: Vec<u8> = Vec::with_capacity(BLOCK_BYTES + WRITE_BYTES + SPARE_BYTES);
        let start = room.as_ptr().align_offset(BLOCK_BYTES);
        room.resize(start, 0);
        Ok(Self { file, path, room, start, at: 0 })
    }

    /// Bytes appended so far, which is the offset of the next one.
    pub(crate) fn offset(&self) -> u64 {
        self.at + self.gathered().len() as u64
    }

    /// The buffer, for appending bytes.
    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        &mut self.room
    }

    /// Writes the buffered data if there is enough, with at most one write.
    ///
    /// # Errors
    /// When the write fails. The file is then unusable, as after any failed write.
    pub(crate) fn write_if_full(&mut self) -> Result<(), FileError> {
        if self.gathered().len() >= WRITE_BYTES { self.write_blocks() } else { Ok(()) }
    }

    /// Writes all remaining data and returns the length of the file. Nothing may be appended afterwards.
    ///
    /// # Errors
    /// When a file operation fails.
    pub(crate) fn write_rest<F: Files>(&mut self, files: &F) -> Result<u64, FileError> {
        self.write_blocks()?;
        if !self.gathered().is_empty() {
            files.open(&self.path, OpenOptions::BUFFERED)?.write_at(self.at, self.gathered())?;
        }
        Ok(self.offset())
    }

    /// Forces all writes, through the handle that created the file, which reports any earlier write error.
    ///
    /// # Errors
    /// When durability is uncertain: the process must end.
    pub(crate) fn force(&self) -> Result<(), FileError> {
        self.file.force()
    }

    fn gathered(&self) -> &[u8] {
        &self.room[self.start..]
    }

    fn write_blocks(&mut self) -> Result<(), FileError> {
        let length = self.gathered().len() / BLOCK_BYTES * BLOCK_BYTES;
        if length == 0 {
            return Ok(());
        }
        let blocks = &self.gathered()[..length];
        if blocks.as_ptr().addr().is_multiple_of(BLOCK_BYTES) {
            self.file.write(self.at, blocks)?;
        } else {
            // A large addition reallocated the buffer.
            self.file.write(self.at, &AlignedBuffer::zeroed(0).refilled(blocks, length))?;
        }
        self.at += length as u64;
        self.room.drain(self.start..self.start + length);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::read_whole;
    use crate::memory::MemoryDisk;

    #[test]
    fn appends_of_any_size_reach_file() {
        let pieces_of = [&[1][..], &[4_095, 1], &[4_096], &[100; 9_000], &[300_000, 5, 300_000], &[1 << 20, 4_097]];
        for lengths in pieces_of {
            let (disk, mut expected) = (MemoryDisk::new(), Vec::new());
            let mut out = Appender::create(&disk, "file".into()).unwrap();
            for (place, length) in lengths.iter().enumerate() {
                let piece = vec![place as u8; *length];
                expected.extend_from_slice(&piece);
                out.room().extend_from_slice(&piece);
                out.write_if_full().unwrap();
                assert_eq!(out.offset(), expected.len() as u64);
            }
            assert_eq!(out.write_rest(&disk), Ok(expected.len() as u64));
            out.force().unwrap();
            assert!(read_whole(&disk, "file", u64::MAX).unwrap().unwrap() == expected, "{} pieces", lengths.len());
        }
    }
}
