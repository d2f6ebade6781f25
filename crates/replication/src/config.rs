//! What a replica is told when it starts.

use base::{CohortId, Durability, Duration, Lsn, Member};
use bytes::Bytes;

/// Which replica of which cohort this is, and how it keeps time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The cohort.
    pub cohort: CohortId,
    /// This replica.
    pub me: Member,
    /// Times.
    pub timing: Timing,
    /// Sizes.
    pub limits: Limits,
    /// What spreads the election timeouts of different replicas.
    pub seed: u64,
    /// The place in the log at which the cohort begins, which no entry has: zero; or, of a range that was split off,
    /// that of the state it began with. A replica that hasn't come there has nothing, and must be sent the whole state.
    pub origin: Lsn,
    /// What its log must be on before an entry counts.
    pub durability: Durability,
    /// The payload of the entry that declares a loss, which main-memory logs may have: it tells the state machine.
    pub declaration: Bytes,
}

/// The times a cohort lives by. Every replica must have the same lease: in this version it is a constant, and no
/// setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// How long a lease vote lets a leader read alone, counted from when the request for it was sent.
    pub lease: Duration,
    /// How often an idle leader sends.
    pub heartbeat: Duration,
    /// How long a leader waits, at most, before it tells its followers what is committed (Spinnaker 5 and D.1).
    pub commit_period: Duration,
    /// Whether whatever a leader sends tells it too. If not, it is told once a period, and how far it has come when a
    /// leader falls is for the next to find out.
    pub piggyback_commits: bool,
    /// The spread of election timeouts after a leader's vote has lapsed.
    pub election_jitter: Duration,
    /// How long a candidate that would have to declare a loss waits for those that it hasn't heard from: one of them
    /// may hold what is lost here, or lead.
    pub loss_patience: Duration,
    /// Whether a leader reads by its lease. If not, no clock has a part in what is read: it asks a majority each time.
    pub leases: bool,
}

impl Default for Timing {
    /// A lease of 400 ms survives three lost heartbeats; a leader that dies is noticed after 412 ms, a restarted
    /// replica waits as long before its first promise.
    fn default() -> Self {
        Self {
            lease: Duration::from_millis(400),
            heartbeat: Duration::from_millis(100),
            commit_period: Duration::from_millis(100),
            piggyback_commits: true,
            election_jitter: Duration::from_millis(100),
            loss_patience: Duration::from_millis(5_000),
            leases: true,
        }
    }
}

/// How much a cohort holds in memory and sends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Bytes of committed entries kept in memory for followers that lag: past it they are read from the log.
    pub memory_log_bytes: usize,
    /// Bytes of entries in one proposal, unless one entry is larger.
    pub propose_bytes: usize,
    /// Bytes of entries past which a proposal travels from follower to follower; 0: none does.
    pub chain_bytes: usize,
    /// Bytes of entries sent to a follower and not yet acknowledged: past it the leader waits for acknowledgements.
    pub window_bytes: usize,
    /// Bytes of entries that a follower holds in memory though it lacks what they follow: past it they are sent anew.
    pub early_bytes: usize,
    /// Bytes of entries that are committed and not told: past it followers, which hold them in memory, are told at
    /// once.
    pub untold_bytes: usize,
    /// Bytes of entries proposed and not yet committed: past it the leader refuses new ones as overloaded.
    pub uncommitted_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_log_bytes: 16 << 20,
            propose_bytes: 1 << 20,
            chain_bytes: 0,
            window_bytes: 16 << 20,
            early_bytes: 4 << 20,
            untold_bytes: 4 << 20,
            uncommitted_bytes: 64 << 20,
        }
    }
}
