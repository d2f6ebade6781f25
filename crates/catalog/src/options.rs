//! The options of a table.

use base::limits::RETENTION_DEFAULT;
use base::{Durability, Duration, counted};
use state_machine::{Failure, Kind, LogicalHash};

use crate::catalog::REPLICAS;

/// The options of a table, as a client requests them or as the catalog records them. All are set in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableOptions {
    /// The kind of state machine that serves its ranges.
    pub kind: Kind,
    /// Replicas of each range; 0: the default.
    pub replicas: u32,
    /// How long old versions are readable; zero: the default.
    pub retention: Duration,
    /// The storage that a write must have reached on a majority before it is acknowledged; none: the default.
    pub durability: Option<Durability>,
    /// Whether the table takes part in transactions. None: the default, which is yes unless it is in main memory.
    pub transactions: Option<bool>,
    /// How each range is replicated; none: the default.
    pub replication: Option<Replication>,
    /// The size in bytes, if the table is a virtual disk and its ranges are stripes; 0: it is not one.
    pub disk_bytes: u64,
    /// Whether the disk can be attached only under the name of a holder.
    pub is_exclusive: bool,
}

/// How the ranges of a table are replicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Replication {
    /// Multi-Paxos: a majority of the replicas commits and elects the leader.
    #[default]
    Paxos,
    /// PacificA: all members of a configuration commit, and the catalog records the configuration.
    PrimaryBackup,
}

impl Replication {
    /// The name used in commands and output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Paxos => "paxos",
            Self::PrimaryBackup => "primary-backup",
        }
    }
}

impl TableOptions {
    /// The default options of a table of this kind.
    #[must_use]
    pub const fn of(kind: Kind) -> Self {
        let (durability, transactions, replication) = (None, None, None);
        Self {
            kind,
            replicas: 0,
            retention: Duration::ZERO,
            durability,
            transactions,
            replication,
            disk_bytes: 0,
            is_exclusive: false,
        }
    }

    /// The durability, if requested, or the default.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability.unwrap_or_default()
    }

    /// The replication, if requested, or the default.
    #[must_use]
    pub fn replication(&self) -> Replication {
        self.replication.unwrap_or_default()
    }

    /// Whether the table is a virtual disk.
    #[must_use]
    pub fn is_disk(&self) -> bool {
        self.disk_bytes > 0
    }

    /// Whether the table takes part in transactions. Its writes are then committed only once their timestamps have
    /// passed (guarantee 18). A table in main memory never does: a loss could undo one part of a transaction. Nor does a
    /// disk.
    #[must_use]
    pub fn takes_part(&self) -> bool {
        self.durability() == Durability::Forced && !self.is_disk() && self.transactions.unwrap_or(true)
    }

    /// Sets the options that were not requested to their defaults.
    pub(crate) fn completed(self) -> Self {
        Self {
            kind: self.kind,
            replicas: if self.replicas == 0 { REPLICAS } else { self.replicas },
            retention: if self.retention == Duration::ZERO { RETENTION_DEFAULT } else { self.retention },
            durability: Some(self.durability()),
            transactions: Some(self.takes_part()),
            replication: Some(self.replication()),
            disk_bytes: self.disk_bytes,
            is_exclusive: self.is_exclusive,
        }
    }

    /// Checks that the options of an existing table match those of a request to create it.
    ///
    /// # Errors
    /// [`Failure::Exists`] with the first requested option that differs.
    pub(crate) fn check_same(&self, name: &str, wanted: &Self) -> Result<(), Failure> {
        let what = if self.is_disk() { "disk" } else { "table" };
        let differs = if wanted.kind != self.kind {
            "another kind".to_owned()
        } else if wanted.disk_bytes != self.disk_bytes {
            format!("{} bytes", self.disk_bytes)
        } else if wanted.is_exclusive != self.is_exclusive {
            format!("{} attachments", if self.is_exclusive { "exclusive" } else { "shared" })
        } else if wanted.replicas != 0 && wanted.replicas != self.replicas {
            format!("{} of each range", counted(self.replicas.into(), "replica"))
        } else if wanted.retention != Duration::ZERO && wanted.retention != self.retention {
            format!("a retention of {} ms", self.retention.0 / 1_000_000)
        } else if wanted.durability.is_some() && wanted.durability != self.durability {
            format!("durability \"{}\"", self.durability().name())
        } else if wanted.transactions.is_some_and(|wanted| wanted != self.takes_part()) {
            format!("transactions {}", if self.takes_part() { "enabled" } else { "disabled" })
        } else if wanted.replication.is_some_and(|wanted| wanted != self.replication()) {
            format!("replication \"{}\"", self.replication().name())
        } else {
            return Ok(());
        };
        Err(Failure::Exists(format!("{what} {name} already exists, with {differs}")))
    }

    pub(crate) fn hash(&self, hash: &mut LogicalHash) {
        hash.word(u64::from(self.kind.0));
        hash.word(u64::from(self.replicas));
        hash.word(self.retention.0);
        hash.word(u64::from(self.durability() == Durability::Memory));
        hash.word(u64::from(self.takes_part()));
        if self.replication() != Replication::Paxos {
            hash.word(1);
        }
        if self.is_disk() {
            hash.word(self.disk_bytes);
            hash.word(u64::from(self.is_exclusive));
        }
    }
}
