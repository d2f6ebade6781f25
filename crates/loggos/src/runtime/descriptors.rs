//! File descriptors: raises the process's limit, and reserves some that client connections cannot use, so that the log,
//! checkpoints and peers always have enough.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors not used by the protocol servers: segments, checkpoints, tables read by compactions, connections of
/// peers and unverified peers, wakers of threads.
const RESERVED: u64 = 512;
/// Maximum number of open table files.
const TABLES_MAX: usize = 1_024;

/// Raises the limit to the maximum that this process may set, and returns it.
pub(crate) fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    current.unwrap_or(u64::MAX)
}

/// Maximum number of open table files, in addition to those being written: a quarter of all descriptors, limited
/// because eviction scans for the least recently used one.
pub(crate) fn for_tables() -> usize {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(all / 4).unwrap_or(usize::MAX).min(TABLES_MAX)
}

/// Connection limits of the protocol servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) grpc: usize,
    pub(crate) http: usize,
    pub(crate) zookeeper: usize,
}

/// Connections that the endpoints share: half of what there is if there is little, and of that a quarter for ZooKeeper clients and a small
/// part for the console.
pub(crate) fn for_endpoints() -> Places {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let others = RESERVED + for_tables() as u64;
    let all = usize::try_from(all.saturating_sub(others).max(all / 2)).unwrap_or(usize::MAX);
    let http = (all / 8).min(server::CONSOLE_CONNECTIONS_MAX);
    let zookeeper = all / 4;
    Places { grpc: all - http - zookeeper, http, zookeeper }
}
