//! The configuration of a replica.

use base::{CohortId, Durability, Duration, Lsn, Member};
use bytes::Bytes;

/// Identity, timing and limits of one replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The cohort that the replica belongs to.
    pub cohort: CohortId,
    /// The member that this replica is.
    pub me: Member,
    pub timing: Timing,
    /// Memory and message sizes.
    pub limits: Limits,
    /// Seed of the election jitter; must differ between replicas.
    pub seed: u64,
    /// The LSN at which the cohort begins, without an entry: zero, or the LSN of the initial state of a range that was
    /// split off. A replica below it has no data and needs a snapshot.
    pub origin: Lsn,
    /// Who decides which replica leads, when an entry is committed, and where it must be stored before it counts.
    pub regime: Regime,
    /// Whether no entry is committed before its timestamp has passed (Spanner, section 4.1.2, commit wait). Only while the
    /// error of the clock has a bound.
    pub waits: bool,
    /// Payload of the entry that declares a loss, for cohorts with main-memory logs. It informs the state machine.
    pub declaration: Bytes,
}

/// How a cohort replicates. The regime determines both the authority and the commit rule, so that no other combination
/// of them can be expressed: with a majority rule, the first petition could make a lagging replica the leader, and with
/// elections, a rule of all members would stop at the first failure. Main-memory logs exist only with votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Regime {
    /// Multi-Paxos: the voters elect the leader, and a majority commits.
    Vote(Durability),
    /// PacificA's primary/backup: the catalog appoints the primary, and all members of the configuration commit. An
    /// entry counts once it is forced.
    Managed,
}

/// Who decides which replica leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Authority {
    /// A majority of promises.
    Votes,
    /// The configuration that the catalog has recorded.
    Manager,
}

/// How many voters must hold an entry before it is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommitRule {
    Majority,
    /// Every member of the configuration.
    All,
}

impl Regime {
    /// Who decides which replica leads.
    #[must_use]
    pub fn authority(self) -> Authority {
        match self {
            Self::Vote(_) => Authority::Votes,
            Self::Managed => Authority::Manager,
        }
    }

    /// When an entry is committed.
    #[must_use]
    pub fn commit_rule(self) -> CommitRule {
        match self {
            Self::Vote(_) => CommitRule::Majority,
            Self::Managed => CommitRule::All,
        }
    }

    /// Where an entry must be stored before it counts.
    #[must_use]
    pub fn durability(self) -> Durability {
        match self {
            Self::Vote(durability) => durability,
            Self::Managed => Durability::Forced,
        }
    }
}

/// Timeouts and intervals of a cohort. The lease must be the same for all replicas: in this version it is a constant
/// and not configurable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// Duration of a lease vote, counted from when the leader sent the request for it.
    pub lease: Duration,
    /// Interval between messages of an idle leader.
    pub heartbeat: Duration,
    /// Longest time before a leader sends a new commit point to its followers (Spinnaker 5 and D.1).
    pub commit_period: Duration,
    /// Whether every message of a leader carries its newest commit point. If not, followers learn it once per period,
    /// and a new leader has to determine how far the log was committed.
    pub piggyback_commits: bool,
    /// Range of the random delay of an election after a leader's vote has expired.
    pub election_jitter: Duration,
    /// How long a candidate waits for silent replicas before it declares a loss: one of them may hold the missing
    /// entries, or be the leader.
    pub loss_patience: Duration,
    /// Whether a leader reads under its lease. If not, reads do not depend on clocks: each asks a majority.
    pub leases: bool,
}

impl Default for Timing {
    /// A lease of 400 ms survives three lost heartbeats. A leader's crash is detected after 412 ms, and a restarted
    /// replica waits that long before its first promise.
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

/// Limits on a cohort's memory and on the sizes of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Bytes of applied entries kept in memory for lagging followers. Older entries are read from the log.
    pub memory_log_bytes: usize,
    /// Bytes of entries in one proposal, unless a single entry is larger.
    pub propose_bytes: usize,
    /// Bytes of entries in flight to one follower (flow control). At the limit the leader waits for acknowledgements.
    pub window_bytes: usize,
    /// Bytes in a follower's reorder buffer. Entries beyond the limit are dropped and retransmitted.
    pub reorder_bytes: usize,
    /// Bytes of committed entries above which followers, which hold them in memory, receive the commit point at once.
    pub unannounced_bytes: usize,
    /// Bytes of proposed, uncommitted entries above which the leader rejects proposals as overloaded.
    pub uncommitted_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_log_bytes: 16 << 20,
            propose_bytes: 1 << 20,
            window_bytes: 16 << 20,
            reorder_bytes: 4 << 20,
            unannounced_bytes: 4 << 20,
            uncommitted_bytes: 64 << 20,
        }
    }
}
