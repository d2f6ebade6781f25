//! What a run is like: its size, and which kinds of fault it has.

use base::{Durability, Duration, SplitMix64};

use super::themes::Theme;
use super::{SECOND, TrueTime};

/// The options of one run. Chances are per million of the occasions they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Nodes: 1, 3, 5 or 7.
    pub nodes: u32,
    /// Clients that read and write.
    pub clients: u32,
    /// How long a client thinks between operations, at most.
    pub think: TrueTime,
    /// Rows that they contend for.
    pub keys: u64,
    /// The rows at which their table is split: each begins a range.
    pub split_at: Vec<u64>,
    /// How often a range of their table is split while it is used.
    pub splits: u32,
    /// Replicas of each range of their table; 0: as many as is usual.
    pub replicas: u32,
    /// What the logs of their table must be on before a write counts.
    pub durability: Durability,
    /// How long who would declare a loss waits for others.
    pub loss_patience: Duration,
    /// What needn't be forced at once is forced after this.
    pub force_soon: TrueTime,
    /// How many nodes join the universe.
    pub joins: u32,
    /// How often a node is to leave it.
    pub leaves: u32,
    /// Whether a client creates, drops and creates again a table of its own.
    pub drops: bool,
    /// Users of a shared log.
    pub log_users: u32,
    /// Tables: the first is used, the others make manifests long enough to tear.
    pub tables: u64,
    /// How long faults go on.
    pub fault_time: TrueTime,
    /// How long the universe has to serve again once they have ended.
    pub patience: TrueTime,
    /// Bytes of a log segment, small so that segments come and go.
    pub segment_bytes: u64,
    /// Bytes of log kept for laggards.
    pub keep_bytes: u64,
    /// Bytes of log between checkpoints.
    pub checkpoint_log_bytes: u64,
    /// Bytes of a memtable, small so that tables come and go.
    pub memtable_bytes: u64,
    /// Bytes of the cache of blocks, and as many of memtables that are flushed: few have every read wait for the disk.
    pub cache_bytes: u64,
    /// Bytes of committed entries kept in memory.
    pub memory_log_bytes: usize,
    /// Bytes of entries in one proposal; few make every entry travel alone.
    pub propose_bytes: usize,
    /// Bytes of proposals that a follower holds before their turn; with 0 all are sent anew.
    pub early_bytes: usize,
    /// Bytes past which proposals travel from follower to follower; 0: none does.
    pub chain_bytes: usize,
    /// How long followers wait at most to be told what is committed.
    pub commit_period: Duration,
    /// Whether they are told by every message.
    pub piggyback_commits: bool,
    /// How often an idle leader sends; often makes ages low.
    pub heartbeat: Duration,
    /// The spread of election timeouts; little makes candidates meet.
    pub election_jitter: Duration,
    /// Sessions may be forgotten after this.
    pub session_lifetime: Duration,
    /// A message is lost.
    pub loss: u64,
    /// What is sent while nodes are cut off from each other arrives when they no longer are.
    pub held_back: u64,
    /// A message arrives twice.
    pub duplication: u64,
    /// A client's connection breaks soon after a request.
    pub resets: u64,
    /// The greatest delay of most messages.
    pub delay: TrueTime,
    /// A message is delayed a hundredfold.
    pub long_delay: u64,
    /// The mean time between faults of the kinds below.
    pub fault_every: TrueTime,
    /// Weights of the kinds of fault.
    pub faults: Faults,
    /// A process stands still between a step and its actions; twenty times as often if it was about to answer.
    pub stall: u64,
    /// A machine loses its power while it writes a manifest with a new promise.
    pub crash_at_manifest: u64,
    /// A step of the work on tables takes hundreds of times as long.
    pub slow_work: u64,
    /// A copy of the manifest takes a hundred times as long to be written.
    pub slow_manifests: u64,
    /// How far monotonic clocks may run from true, in parts per million.
    pub clock_rate: u64,
    /// Whether wall clocks jump about.
    pub wall_jumps: bool,
    /// Whether leaders read by leases, or by view checks alone.
    pub leases: bool,
    /// The longest force of the log.
    pub force_time: TrueTime,
}

/// How often which fault strikes, relative to each other; 0: never in this run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The process dies; the machine keeps what it had written.
    pub kill: u64,
    /// The machine loses power, and what was not forced.
    pub power: u64,
    /// All machines lose power at once.
    pub power_all: u64,
    /// A crash at some operation on a file, also while starting.
    pub crash_at_operation: u64,
    /// The process stands still for a while.
    pub pause: u64,
    /// Some nodes are cut off from the others for a while.
    pub partition: u64,
    /// Messages get through in one direction only.
    pub one_way: u64,
    /// A force fails.
    pub force_error: u64,
    /// A bit flips in a file of the one machine whose disk rots, while its process is down.
    pub rot: u64,
    /// The one machine whose disk rots gets an empty disk under its old name.
    pub blank: u64,
    /// The node is stopped cleanly, and started again.
    pub stop: u64,
    /// Nothing more fits on a disk for a while.
    pub full: u64,
    /// An operator has a range's replicas move to other nodes.
    pub move_range: u64,
}

impl Faults {
    /// The sum of all weights.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.list().iter().sum()
    }

    /// The weights in a fixed order.
    #[must_use]
    pub fn list(&self) -> [u64; 13] {
        [
            self.kill,
            self.power,
            self.power_all,
            self.crash_at_operation,
            self.pause,
            self.partition,
            self.one_way,
            self.force_error,
            self.rot,
            self.blank,
            self.stop,
            self.full,
            self.move_range,
        ]
    }
}

impl Options {
    /// The same run with so many clients, and so little thought, that a hundred operations and more are asked for in a
    /// simulated second.
    #[must_use]
    pub fn busy(self) -> Self {
        Self { clients: 24, think: super::MILLISECOND * 20, keys: 8, ..self }
    }

    /// Draws what a run is like from its seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut pick = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        let nodes = pick(&[3, 3, 3, 3, 5, 5, 1]);
        let millisecond = super::MILLISECOND;
        let faults = Faults {
            kill: pick(&[0, 2, 2]),
            power: pick(&[0, 2, 2]),
            power_all: pick(&[0, 0, 1, 2]),
            crash_at_operation: pick(&[0, 1, 2]),
            pause: pick(&[0, 1, 3]),
            partition: pick(&[0, 2, 4]),
            one_way: pick(&[0, 1, 2]),
            force_error: pick(&[0, 0, 1]),
            rot: if nodes > 1 { pick(&[0, 0, 2, 4]) } else { 0 },
            blank: if nodes > 1 { pick(&[0, 0, 0, 1]) } else { 0 },
            stop: pick(&[0, 1, 1]),
            full: 0,
            move_range: 0,
        };
        let mut options = Self {
            nodes: u32::try_from(nodes).unwrap_or(3),
            clients: u32::try_from(pick(&[2, 4, 8])).unwrap_or(4),
            think: pick(&[20, 60, 150]) * millisecond,
            keys: pick(&[1, 3, 8]),
            split_at: Vec::new(),
            splits: 0,
            replicas: 0,
            durability: Durability::Forced,
            loss_patience: Duration::ZERO,
            force_soon: 0,
            joins: 0,
            leaves: 0,
            drops: false,
            log_users: 0,
            tables: pick(&[1, 2, 10]),
            fault_time: pick(&[8, 12, 20]) * SECOND,
            patience: 60 * SECOND,
            segment_bytes: pick(&[16, 32, 64]) << 10,
            keep_bytes: pick(&[0, 32, 128]) << 10,
            checkpoint_log_bytes: pick(&[4, 16, 64]) << 10,
            memtable_bytes: pick(&[2, 8, 64]) << 10,
            cache_bytes: pick(&[0, 4, 1_024]) << 10,
            memory_log_bytes: pick(&[256, 2_048, 65_536]) as usize,
            propose_bytes: pick(&[64, 64, 512, 4_096]) as usize,
            early_bytes: 0,
            chain_bytes: 0,
            commit_period: Duration::ZERO,
            piggyback_commits: false,
            heartbeat: Duration::from_millis(pick(&[30, 100])),
            election_jitter: Duration::from_millis(pick(&[1, 20, 100, 100])),
            session_lifetime: Duration::from_millis(pick(&[700, 3_000, 600_000])),
            loss: pick(&[0, 5_000, 50_000]),
            held_back: 0,
            duplication: pick(&[0, 5_000, 50_000]),
            resets: pick(&[0, 5_000, 50_000]),
            delay: pick(&[200, 1_000, 5_000, 20_000]) * (millisecond / 1_000),
            long_delay: pick(&[0, 1_000, 10_000]),
            fault_every: pick(&[400, 800, 2_000]) * millisecond,
            faults,
            stall: pick(&[0, 50, 500]),
            crash_at_manifest: pick(&[0, 0, 50_000, 300_000]),
            slow_work: pick(&[0, 0, 20_000, 300_000]),
            slow_manifests: 0,
            clock_rate: pick(&[0, 5_000, 10_000]),
            wall_jumps: pick(&[0, 1]) == 1,
            leases: pick(&[0, 1, 1, 1]) == 1,
            force_time: pick(&[200, 1_000, 3_000, 12_000]) * (millisecond / 1_000),
        };
        // Two ranges or three in half of the runs. One of them may have no rows, and a row begins each of the others.
        let keys = options.keys;
        let split_at = match pick(&[0, 0, 1, 2]) {
            0 => Vec::new(),
            1 => vec![pick(&[1, keys / 2, keys])],
            _ => vec![keys / 3, keys - keys / 3 + 1],
        };
        let drops = pick(&[0, 1]) == 1;
        let replicas = if nodes == 5 { pick(&[0, 5, 5]) } else { 0 };
        options.replicas = u32::try_from(replicas).unwrap_or(0);
        options.faults.full = pick(&[0, 0, 1, 3]);
        let mut splits = u32::try_from(pick(&[0, 2, 6])).unwrap_or(0);
        options.early_bytes = pick(&[0, 512, 65_536, 65_536]) as usize;
        options.commit_period = Duration::from_millis(pick(&[1, 20, 100, 1_000]));
        options.piggyback_commits = pick(&[0, 1, 1]) == 1;
        options.chain_bytes = pick(&[0, 0, 1, 300]) as usize;
        if pick(&[0, 0, 1]) == 1 {
            // The ranges of such a table stay as they are.
            (options.durability, splits) = (Durability::Memory, 0);
            // Once a disk is lost, the end of one more process leaves nobody who may lead.
            options.faults.blank = 0;
            // What a stop leaves behind and what is promised is what such logs rest on.
            options.faults.stop = pick(&[1, 4, 12]);
            options.crash_at_manifest = pick(&[0, 50_000, 300_000]);
        }
        options.loss_patience = Duration::from_millis(pick(&[0, 300, 5_000]));
        options.force_soon = pick(&[5, 100, 1_000]) * millisecond;
        // A range of two replicas, one of them on a disk that rots or is lost, may come to have none that is whole.
        let is_safe = options.faults.blank == 0 && (options.faults.rot == 0 || nodes > 3) && nodes > 1;
        options.faults.move_range = if is_safe { pick(&[0, 2, 12]) } else { 0 };
        options.joins = u32::try_from(pick(&[0, 0, 1, 2])).unwrap_or(0);
        // What goes to a disk that is lost next does not arrive.
        let has_room = options.joins > 0 && nodes > 1 || nodes == 5;
        let may_leave = has_room && options.replicas != 5 && options.faults.blank == 0;
        options.leaves = if may_leave { u32::try_from(pick(&[0, 1, 2])).unwrap_or(0) } else { 0 };
        options.slow_manifests = pick(&[0, 0, 20_000, 100_000]);
        options.held_back = pick(&[0, 300_000, 1_000_000]);
        // A unit that was missed for a while is left out, and often there is no other copy but one: then no disk may
        // rot.
        if options.faults.rot == 0 {
            options.log_users = u32::try_from(pick(&[0, 0, 0, 3])).unwrap_or(0);
        }
        let options = Self { split_at, drops, splits, ..options };
        match Theme::of(seed) {
            Some(theme) => theme.put(options),
            None => options,
        }
    }
}
