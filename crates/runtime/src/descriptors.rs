//! File descriptors: raises the process's limit, and reserves some that client connections cannot use, so that the log,
//! checkpoints and peers always have enough.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors reserved for other uses than clients: segments, checkpoints, SSTables read by compactions, connections
/// of members and unverified peers, wakers of threads.
const RESERVED: u64 = 512;
/// Maximum number of open SSTables.
const SSTABLES_MAX: usize = 1_024;

/// Raises the limit to the maximum that this process may set, and returns it.
pub(crate) fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    current.unwrap_or(u64::MAX)
}

/// Maximum number of open SSTables, in addition to those being written: a quarter of all descriptors, limited
/// because eviction scans for the least recently used one.
pub(crate) fn for_sstables() -> usize {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(all / 4).unwrap_or(usize::MAX).min(SSTABLES_MAX)
}

/// Connection limits of the protocol servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    pub(crate) grpc: usize,
    pub(crate) http: usize,
    pub(crate) zookeeper: usize,
}

/// Divides the descriptors that are not reserved, but at least half of all, among the endpoints: a quarter for
/// ZooKeeper clients, at most an eighth for the console, and the rest for gRPC.
pub(crate) fn for_endpoints() -> ConnectionLimits {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let others = RESERVED + for_sstables() as u64;
    let all = usize::try_from(all.saturating_sub(others).max(all / 2)).unwrap_or(usize::MAX);
    let http = (all / 8).min(server::CONSOLE_CONNECTIONS_MAX);
    let zookeeper = all / 4;
    ConnectionLimits { grpc: all - http - zookeeper, http, zookeeper }
}
