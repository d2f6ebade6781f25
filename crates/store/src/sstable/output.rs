//! The file that a table is written to.

use crate::files::{File, FileError};

/// The file as far as a writer needs it, as an object: a job that holds a writer need not know whose file it is.
pub(super) trait Output: Send {
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
