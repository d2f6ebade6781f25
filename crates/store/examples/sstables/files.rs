//! Operating system files, with the operations that SSTables need.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use store::files::{File, FileError, FileErrorKind, Files, OpenOptions, ReadAt};

/// The files in one directory.
pub(crate) struct Directory(pub(crate) PathBuf);

#[derive(Clone)]
pub(crate) struct OpenFile(Arc<fs::File>);

fn failed(op: &'static str, error: &io::Error) -> FileError {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => FileErrorKind::NotFound,
        _ => FileErrorKind::Other,
    };
    FileError { op, path: String::new(), kind, message: error.to_string() }
}

impl Directory {
    fn open_with(&self, path: &str, create: bool) -> Result<OpenFile, FileError> {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(create).open(self.0.join(path));
        file.map(|file| OpenFile(Arc::new(file))).map_err(|error| failed("open", &error))
    }
}

impl Files for Directory {
    type File = OpenFile;

    fn open(&self, path: &str, _: OpenOptions) -> Result<OpenFile, FileError> {
        self.open_with(path, false)
    }

    fn create(&self, path: &str, _: OpenOptions) -> Result<OpenFile, FileError> {
        self.open_with(path, true)
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, FileError> {
        let entries = fs::read_dir(self.0.join(directory)).map_err(|error| failed("list", &error))?;
        let mut names: Vec<_> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        fs::rename(self.0.join(from), self.0.join(to)).map_err(|error| failed("rename", &error))
    }

    fn remove(&self, path: &str) -> Result<(), FileError> {
        fs::remove_file(self.0.join(path)).map_err(|error| failed("remove", &error))
    }

    fn create_dir(&self, path: &str) -> Result<(), FileError> {
        fs::create_dir_all(self.0.join(path)).map_err(|error| failed("create directory", &error))
    }

    fn sync_dir(&self, path: &str) -> Result<(), FileError> {
        let sync = || fs::File::open(self.0.join(path))?.sync_all();
        sync().map_err(|error| failed("force directory", &error))
    }
}

impl ReadAt for OpenFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], offset + done as u64).map_err(|error| failed("read", &error))? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }
}

impl File for OpenFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.0.write_all_at(bytes, offset).map_err(|error| failed("write", &error))
    }

    fn sync(&self) -> Result<(), FileError> {
        self.0.sync_data().map_err(|error| failed("force", &error))
    }

    fn len(&self) -> Result<u64, FileError> {
        self.0.metadata().map(|metadata| metadata.len()).map_err(|error| failed("measure", &error))
    }
}
