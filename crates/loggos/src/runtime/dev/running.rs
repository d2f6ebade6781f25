//! Where a universe is that runs on this machine, as the command line of its `dev` says. Clients find it by its ports;
//! its directory no port tells.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use super::control::SOCKET;

/// The directory of the first `dev` that runs here. `started` says which directory arguments name, if they are those of
/// the `dev` that is looked for.
pub(crate) fn running(started: impl Fn(&[OsString]) -> Option<PathBuf>) -> Option<PathBuf> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let data = processes.filter_map(|process| {
        let line = fs::read(process.join("cmdline")).ok()?;
        let line = line.strip_suffix(&[0]).unwrap_or(&line);
        let arguments: Vec<OsString> =
            line.split(|byte| *byte == 0).map(|part| OsStr::from_bytes(part).into()).collect();
        let data = started(&arguments)?;
        // The directory's name counts from there. Of other users' processes it can't be read.
        Some(fs::read_link(process.join("cwd")).ok()?.join(data))
    });
    data.into_iter().find(|data| data.join(SOCKET).exists())
}
