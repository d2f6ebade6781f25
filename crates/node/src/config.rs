//! What a node is told when it starts.

use base::{Duration, Member};
use replication::{Limits, Timing};

/// A node's place in the universe, and how it is tuned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// The nodes' addresses for the catalogue, in the order of the universe's members: peers', then clients'.
    pub addresses: Vec<(Member, String, String)>,
    /// Times of every cohort.
    pub timing: Timing,
    /// Sizes of every cohort.
    pub limits: Limits,
    /// What spreads the timers of different nodes.
    pub seed: u64,
    /// Bytes of log, at least, after which a cohort's state is written as a checkpoint so that the log may go.
    pub checkpoint_log_bytes: u64,
    /// Bytes that one tablet's memtables may have before its writes wait for the disk.
    pub memtable_bytes_max: u64,
    /// Bytes of all memtables of the node from which on the largest is flushed. With twice as many all writes wait.
    pub memtables_bytes: u64,
    /// Bytes in a second, at most, of a whole state that is sent to a replica far behind.
    pub transfer_bytes_per_second: u64,
    /// How long after its last use a session may be forgotten, by the cohort's timestamps.
    pub session_lifetime: Duration,
    /// How often a leader looks for sessions and versions that may go.
    pub housekeeping: Duration,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            timing: Timing::default(),
            limits: Limits::default(),
            seed: 0,
            checkpoint_log_bytes: 256 << 20,
            memtable_bytes_max: 64 << 20,
            memtables_bytes: 128 << 20,
            transfer_bytes_per_second: 128 << 20,
            session_lifetime: Duration::from_millis(600_000),
            housekeeping: Duration::from_millis(2_000),
        }
    }
}
