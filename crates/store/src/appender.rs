//! A file that is written once, from its beginning to its end: tables and checkpoints.
//!
//! Whole blocks go past the page cache. Nobody may ever read them again, and room in the cache has to be found, filled
//! by a copy and given back: of the CPU time of a flush most went there. What is left at the end, less than a block,
//! goes through the cache.

use crate::files::{File, FileError, Files, OpenOptions};
use crate::{AlignedBuffer, BLOCK_BYTES};

/// Bytes gathered before they are written: large enough that a write costs little, small enough to be held.
const WRITE_BYTES: usize = 256 << 10;

/// Room beyond that for what is appended at once, usually.
const SPARE_BYTES: usize = 64 << 10;

/// The file as far as an appender needs it, as an object: a job that holds one need not know whose file it is.
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

/// Gathers bytes and writes them one after the other.
pub(crate) struct Appender {
    file: Box<dyn Output>,
    path: String,
    /// What is gathered lies here from `start` on, whose address is a multiple of a block as long as the room suffices.
    room: Vec<u8>,
    start: usize,
    /// Where in the file what is gathered belongs: a multiple of a block, before the end.
    at: u64,
}

impl Appender {
    /// Creates the file.
    ///
    /// # Errors
    /// When the file operation fails; [`crate::files::FileErrorKind::Exists`] if there is one of that name.
    pub(crate) fn create<F: Files>(files: &F, path: String) -> Result<Self, FileError> {
        let file = Box::new(files.create(&path, OpenOptions::DIRECT)?);
        let mut room: Vec<u8> = Vec::with_capacity(BLOCK_BYTES + WRITE_BYTES + SPARE_BYTES);
        let start = room.as_ptr().align_offset(BLOCK_BYTES);
        room.resize(start, 0);
        Ok(Self { file, path, room, start, at: 0 })
    }

    /// Bytes appended so far, which is where the next will lie.
    pub(crate) fn offset(&self) -> u64 {
        self.at + self.gathered().len() as u64
    }

    /// Takes more bytes: whatever is pushed.
    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        &mut self.room
    }

    /// Writes what was gathered if that is enough: one write at most.
    ///
    /// # Errors
    /// When that write fails. The file is lost then; so with every write.
    pub(crate) fn write_if_full(&mut self) -> Result<(), FileError> {
        if self.gathered().len() >= WRITE_BYTES { self.write_blocks() } else { Ok(()) }
    }

    /// Writes all the rest, and says how many bytes the file has. Nothing may be appended any more.
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

    /// Forces all that was written, by the handle that the file was created with: it tells of whatever went wrong
    /// since.
    ///
    /// # Errors
    /// When that can't be promised: the process must end.
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
            // Something large made the room move.
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
    fn what_is_appended_is_in_the_file_however_it_comes() {
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
