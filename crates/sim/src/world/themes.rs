//! Themes concentrate some runs on particular faults. When all faults occur together, some coincidences are rare, and
//! bugs that need them are rarely found. One seed in [`ONE_IN`] has each theme.

use base::{Durability, Duration, NodeId};
use catalog::Replication;

use super::options::Faults;
use super::{MILLISECOND, Options};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Manifest writes queue up behind a slow disk while tables are created and dropped.
    SlowDisks,
    /// Frequent partitions, with delayed delivery of messages sent across them. Clocks drift as far apart as allowed,
    /// and the next leader takes over immediately.
    CutOff,
    /// Processes with main-memory logs frequently stop, crash and promise.
    Forgetting,
    /// Ranges move back and forth between three nodes, and updates are slow.
    Moving,
    /// Ranges of a table with main-memory logs move back and forth between five nodes.
    MovingAndForgetting,
    /// Every node serves ZooKeeper clients.
    ZooKeeper,
    /// Transactions, with leaders that change often, and few other clients.
    Transactions,
    /// Tables under primary/backup replication.
    PrimaryBackup,
    Disks,
    /// SQL transactions, with fewer faults.
    Sql,
}

/// Each theme has one seed in this many.
const ONE_IN: u64 = 20;

impl Theme {
    pub const ALL: [Self; 10] = [
        Self::SlowDisks,
        Self::CutOff,
        Self::Forgetting,
        Self::Moving,
        Self::MovingAndForgetting,
        Self::ZooKeeper,
        Self::Transactions,
        Self::PrimaryBackup,
        Self::Disks,
        Self::Sql,
    ];

    /// The theme of a seed, if it has one.
    #[must_use]
    pub fn of(seed: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|theme| seed % ONE_IN == theme.remainder())
    }

    /// The seeds with this theme.
    pub fn seeds(self) -> impl Iterator<Item = u64> {
        (0..).map(move |time: u64| time * ONE_IN + self.remainder())
    }

    fn remainder(self) -> u64 {
        match self {
            Self::SlowDisks => 3,
            Self::CutOff => 7,
            Self::Forgetting => 11,
            Self::Moving => 15,
            Self::MovingAndForgetting => 19,
            Self::ZooKeeper => 10,
            Self::Transactions => 5,
            Self::PrimaryBackup => 17,
            Self::Disks => 13,
            Self::Sql => 8,
        }
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
            Self::ZooKeeper => {
                let faults = Faults { move_range: 0, ..options.faults };
                let options = Options { clients: 2, think: 150 * MILLISECOND, tables: 1, faults, ..options };
                // A batch of several writes or a part of a snapshot must fit into a segment.
                let options = Options { segment_bytes: 512 << 10, splits: 0, drops: false, log_users: 0, ..options };
                Options { zookeeper_clients: 4, ..settled(options) }
            }
            Self::Transactions => {
                let (kill, pause, move_range) = (3, 3, 2);
                let faults = Faults { kill, pause, move_range, partition: 2, power: 1, stop: 1, ..Faults::default() };
                let options = Options { nodes: 3, fault_every: 1_000 * MILLISECOND, faults, ..options };
                let options = Options { clients: 2, think: 150 * MILLISECOND, tables: 1, stall: 50, ..options };
                let options = Options { splits: 0, drops: false, log_users: 0, crash_at_manifest: 0, ..options };
                let options = Options { delay: options.delay.min(5 * MILLISECOND), slow_manifests: 0, ..options };
                let clock_uncertainty = [10, 100, 1_000, 3_000, 10_000][options.clock_seed as usize % 5] * 1_000;
                let drawn = u32::try_from(options.clock_seed >> 32).unwrap_or(0);
                let lying_node = drawn.is_multiple_of(4).then_some(NodeId(1 + drawn / 4 % 3));
                let (held_back, loss) = (options.held_back.max(300_000), options.loss.max(5_000));
                let options = Options { held_back, loss, ..options };
                Options { clock_uncertainty, lying_node, durability: Durability::Forced, ..settled(options) }
            }
            Self::Sql => {
                // A transaction has many reads, one after the other: with frequent faults few are committed.
                let fault_time = options.fault_time.min(12_000 * MILLISECOND);
                Options { fault_every: 2_500 * MILLISECOND, fault_time, ..Self::Transactions.put(options) }
            }
            Self::PrimaryBackup => {
                // A primary that is left alone on a disk that rots has no other copy.
                let faults = Faults { blank: 0, rot: 0, roll_back: 0, ..options.faults };
                let nodes = if options.nodes == 1 { 3 } else { options.nodes };
                let (durability, replication) = (Durability::Forced, Replication::PrimaryBackup);
                let replace_after = Duration::from_millis([0, 700, 3_000][options.clock_seed as usize % 3]);
                Options { nodes, leases: true, durability, replication, replace_after, faults, ..options }
            }
            Self::Disks => {
                let options = Options { clients: 2, think: 100 * MILLISECOND, tables: 1, ..options };
                // A write of several blocks must fit into a segment.
                let options = Options { segment_bytes: 512 << 10, splits: 0, drops: false, log_users: 0, ..options };
                Options { disk_clients: 4, ..options }
            }
            Self::MovingAndForgetting => in_memory(moving(settled(Options { nodes: 5, ..options }))),
        }
    }
}

/// More and busier clients.
fn talkative(options: Options) -> Options {
    Options { clients: 8, think: 20 * MILLISECOND, ..options }
}

/// No node joins or leaves, and no disk is lost.
fn settled(options: Options) -> Options {
    let faults = Faults { blank: 0, rot: 0, roll_back: 0, ..options.faults };
    Options { joins: 0, leaves: 0, replicas: 0, faults, ..options }
}

fn moving(options: Options) -> Options {
    let faults = Faults { move_range: 30, ..options.faults };
    Options { fault_every: 200 * MILLISECOND, faults, ..options }
}

/// A crash loses much. Ranges of such a table are not split.
fn in_memory(options: Options) -> Options {
    let faults = Faults { power_all: 2, ..options.faults };
    Options { durability: Durability::Memory, splits: 0, force_soon: 1_000 * MILLISECOND, faults, ..options }
}
