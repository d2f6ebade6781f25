//! Values of options that several commands have.

use clap::ValueEnum;
use sdk::Reads;

/// A kind of read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReadKind {
    /// All that was acknowledged before.
    #[default]
    Strong,
    /// The same, as any replica has it after it has asked a majority who leads.
    Any,
    /// What any replica has, and how old that may be.
    Timeline,
}

impl ReadKind {
    /// What a client is asked for.
    #[must_use]
    pub fn reads(self) -> Reads {
        match self {
            Self::Strong => Reads::Strong,
            Self::Any => Reads::Anywhere,
            Self::Timeline => Reads::Timeline { stale_ok: false },
        }
    }

    /// Its name, as people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Strong => "strong",
            Self::Any => "any",
            Self::Timeline => "timeline",
        }
    }
}

/// What a write must be on before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// The disks of a majority; `disk` says the same.
    #[value(alias = "disk")]
    Forced,
    /// The main memories of a majority; their disks have it a little later.
    Memory,
}

impl Durability {
    /// Its name, as people write it.
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
