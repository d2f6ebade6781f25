//! File descriptors: as many as the system lets this process have, and enough of them kept from strangers, so that a
//! crowd at a door never takes what the log, the checkpoints and the peers need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are not the doors': segments, checkpoints, the tables that a compaction reads, peers and those who
/// claim to be peers, threads' wakers.
const RESERVED: u64 = 512;
/// Files of tables that are open at one time, at most.
const TABLES_MAX: usize = 1_024;

/// Raises the limit to the highest that this process may set itself. Says what it is then.
pub(crate) fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    current.unwrap_or(u64::MAX)
}

/// Files of tables that may be open at one time, beside those that are being written: a quarter of all, and no more
/// than are worth looking through for the one that was used least lately.
pub(crate) fn for_tables() -> usize {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(all / 4).unwrap_or(usize::MAX).min(TABLES_MAX)
}

/// How many connections each door may have open at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) grpc: usize,
    pub(crate) http: usize,
}

/// What the doors share: half of what there is if there is little, and of that a small part for the console.
pub(crate) fn for_doors() -> Places {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let others = RESERVED + for_tables() as u64;
    let all = usize::try_from(all.saturating_sub(others).max(all / 2)).unwrap_or(usize::MAX);
    let http = (all / 8).min(doors::CONSOLE_CONNECTIONS_MAX);
    Places { grpc: all - http, http }
}
