//! Configuration of a node at start.

use base::limits::HOLD_LIFETIME;
use base::{Duration, Member};
use replication::{Limits, Timing};

/// How a node knows the bound on its wall clock's error, to explain why it has none. The driver reads the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClockSource {
    #[default]
    None,
    /// All nodes of the cluster read the same clock.
    Host,
    /// The kernel knows it from a time daemon.
    Kernel,
    /// The operator states it.
    Configured,
}

impl ClockSource {
    /// The name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Host => "host",
            Self::Kernel => "kernel",
            Self::Configured => "configured",
        }
    }
}

/// A node's identity in the cluster, and its tuning parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Addresses of the nodes for the catalog, in the order of the cluster's members: peer address, then client
    /// address.
    pub addresses: Vec<(Member, String, String)>,
    /// Timing parameters of every cohort.
    pub timing: Timing,
    /// Size limits of every cohort.
    pub limits: Limits,
    /// Seed that spreads the timers of different nodes.
    pub seed: u64,
    /// Minimum bytes of log after which a cohort's state is checkpointed, so that the log can be truncated.
    pub checkpoint_log_bytes: u64,
    /// Maximum bytes in the memtables of one tablet before its writes wait for the disk.
    pub memtable_bytes_max: u64,
    /// Total memtable bytes of the node above which the largest memtable is flushed. At twice this size all writes
    /// wait.
    pub memtables_bytes: u64,
    /// Maximum rate at which a state snapshot is sent to a replica that is far behind, in bytes per second.
    pub transfer_bytes_per_second: u64,
    /// Time since its last use after which a session may expire, measured by the cohort's timestamps.
    pub session_lifetime: Duration,
    /// The source of the bound on the wall clock's error.
    pub clock: ClockSource,
    /// A greater error of the wall clock counts as unknown.
    pub clock_uncertainty_max: Duration,
    /// Interval at which a leader checks for sessions and versions that may expire.
    pub housekeeping: Duration,
    /// How long a member removed from its configuration may stay away before another node takes its place; zero: for ever.
    pub replace_after: Duration,
    /// How long a hold on old versions lasts without a renewal, and how long a new leader waits for renewals before it
    /// drops old versions.
    pub hold_lifetime: Duration,
    /// How long a transaction stays prepared before its participant asks the coordinator about it.
    pub in_doubt: Duration,
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
            clock: ClockSource::None,
            clock_uncertainty_max: Duration::from_millis(250),
            housekeeping: Duration::from_millis(2_000),
            replace_after: Duration::from_millis(60_000),
            hold_lifetime: HOLD_LIFETIME,
            in_doubt: Duration::from_millis(2_000),
        }
    }
}
