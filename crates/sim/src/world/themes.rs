//! What some runs are about. Where everything goes wrong at once, some coincidences hardly ever come about, and what
//! only they show is hardly ever found. One seed in [`ONE_IN`] has each theme.

use base::{Durability, Duration};

use super::options::Faults;
use super::{MILLISECOND, Options};

/// A theme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Manifests queue up behind a slow disk while tables come and go.
    SlowDisks,
    /// Nodes are cut off all the time, and what they said meanwhile arrives late. Clocks run as far apart as they may,
    /// and whoever is to lead next does so at once.
    CutOff,
    /// Processes with main-memory logs stop, end and promise all the time.
    Forgetting,
    /// Ranges move to and fro between three nodes, and word of it takes its time.
    Moving,
    /// Ranges of a table with main-memory logs move to and fro between five nodes.
    MovingAndForgetting,
}

/// Each theme has one seed of so many.
const ONE_IN: u64 = 20;

impl Theme {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::SlowDisks, Self::CutOff, Self::Forgetting, Self::Moving, Self::MovingAndForgetting];

    /// The theme of a seed, if it has one.
    #[must_use]
    pub fn of(seed: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|theme| seed % ONE_IN == theme.remainder())
    }

    /// The seeds that have it.
    pub fn seeds(self) -> impl Iterator<Item = u64> {
        (0..).map(move |time: u64| time * ONE_IN + self.remainder())
    }

    fn remainder(self) -> u64 {
        3 + 4 * self as u64
    }

    pub(super) fn put(self, options: Options) -> Options {
        match self {
            Self::SlowDisks => Options {
                slow_manifests: 300_000,
                force_time: 3 * MILLISECOND,
                memtable_bytes: 2 << 10,
                checkpoint_log_bytes: 4 << 10,
                ..talkative(options)
            },
            Self::CutOff => Options {
                held_back: 1_000_000,
                chain_bytes: 1,
                fault_every: 400 * MILLISECOND,
                leases: true,
                clock_rate: 10_000,
                election_jitter: Duration::from_millis(1),
                faults: Faults { partition: 12, one_way: 4, ..options.faults },
                ..options
            },
            Self::Forgetting => {
                let faults = Faults { stop: 12, move_range: 0, ..options.faults };
                let options = Options { nodes: 3, fault_every: 800 * MILLISECOND, faults, ..options };
                Options { crash_at_manifest: 300_000, ..in_memory(talkative(settled(options))) }
            }
            Self::Moving => {
                let faults = Faults { pause: 0, partition: 0, ..options.faults };
                let options = Options { nodes: 3, slow_manifests: 0, force_time: 12 * MILLISECOND, faults, ..options };
                let delay = 20 * MILLISECOND;
                Options { delay, propose_bytes: 64, memory_log_bytes: 256, ..moving(settled(options)) }
            }
            Self::MovingAndForgetting => in_memory(moving(settled(Options { nodes: 5, ..options }))),
        }
    }
}

/// Clients ask for more.
fn talkative(options: Options) -> Options {
    Options { clients: 8, think: 20 * MILLISECOND, ..options }
}

/// Nodes neither come nor go, and no disk is lost.
fn settled(options: Options) -> Options {
    let faults = Faults { blank: 0, rot: 0, ..options.faults };
    Options { joins: 0, leaves: 0, replicas: 0, faults, ..options }
}

fn moving(options: Options) -> Options {
    let faults = Faults { move_range: 30, ..options.faults };
    Options { fault_every: 200 * MILLISECOND, faults, ..options }
}

/// Much is lost with a process. The ranges of such a table stay as they are.
fn in_memory(options: Options) -> Options {
    let faults = Faults { power_all: 2, ..options.faults };
    Options { durability: Durability::Memory, splits: 0, force_soon: 1_000 * MILLISECOND, faults, ..options }
}
