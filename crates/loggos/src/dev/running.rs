//! Finds the directory of a cluster that runs on this machine from the command line of its `dev`. Clients find it by
//! its ports, which do not reveal the directory.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use super::control::SOCKET;

/// The directory of the first matching `dev` that runs here. `started` returns the directory in the arguments, if they
/// are those of the wanted `dev`.
pub(crate) fn running(started: impl Fn(&[OsString]) -> Option<PathBuf>) -> Option<PathBuf> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let data = processes.filter_map(|process| {
        let line = fs::read(process.join("cmdline")).ok()?;
        let line = line.strip_suffix(&[0]).unwrap_or(&line);
        let arguments: Vec<OsString> =
            line.split(|byte| *byte == 0).map(|part| OsStr::from_bytes(part).into()).collect();
        let data = started(&arguments)?;
        // The directory is relative to this. Unreadable for other users' processes.
        Some(fs::read_link(process.join("cwd")).ok()?.join(data))
    });
    data.into_iter().find(|data| data.join(SOCKET).exists())
}
