//! Values of options that several commands share.

use clap::ValueEnum;
use sdk::Reads;

/// The consistency level of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReadKind {
    /// Linearizable, served by the leader.
    #[default]
    Strong,
    /// Linearizable, served by any replica after a majority confirmed the current leader.
    Any,
    /// Possibly stale, served by any replica, with the age of its state.
    Timeline,
}

impl ReadKind {
    /// The level in the client library.
    #[must_use]
    pub fn reads(self) -> Reads {
        match self {
            Self::Strong => Reads::Strong,
            Self::Any => Reads::Anywhere,
            Self::Timeline => Reads::Timeline { stale_ok: false },
        }
    }

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Strong => "strong",
            Self::Any => "any",
            Self::Timeline => "timeline",
        }
    }
}

/// How the ranges of a table are replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Replication {
    /// A majority of the replicas commits.
    Paxos,
    /// All members of a configuration commit. The catalog removes silent members from it.
    PrimaryBackup,
}

impl From<Replication> for sdk::Replication {
    fn from(replication: Replication) -> Self {
        match replication {
            Replication::Paxos => Self::Paxos,
            Replication::PrimaryBackup => Self::PrimaryBackup,
        }
    }
}

/// The storage that a write must have reached before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// The disks of a majority. `disk` is an alias.
    #[value(alias = "disk")]
    Forced,
    /// The main memory of a majority; disk writes follow in the background.
    Memory,
}

impl Durability {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forced => "forced",
            Self::Memory => "memory",
        }
    }
}

impl From<Durability> for sdk::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Forced => Self::Forced,
            Durability::Memory => Self::Memory,
        }
    }
}
