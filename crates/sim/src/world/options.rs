//! The parameters of a run: its size and its kinds of fault.

use base::{Durability, Duration, NodeId, SplitMix64};
use catalog::Replication;

use super::themes::Theme;
use super::transactions::Workload;
use super::{SECOND, TrueTime};

/// The parameters of one run. Probabilities are per million opportunities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Nodes: 1, 3, 5 or 7.
    pub nodes: u32,
    /// Clients that read and write.
    pub clients: u32,
    /// Maximum pause of a client between operations.
    pub think: TrueTime,
    /// Number of rows that they contend for.
    pub keys: u64,
    /// Rows at which their table is split initially: each starts a range.
    pub split_at: Vec<u64>,
    /// Number of splits of their table during the run.
    pub splits: u32,
    /// Replicas of each range of their table; 0 for the default.
    pub replicas: u32,
    /// Durability of their table's logs.
    pub durability: Durability,
    /// Replication of their table, and of tables with transactions.
    pub replication: Replication,
    /// How long a replica that would declare a loss waits for others.
    pub loss_patience: Duration,
    /// Delay after which records without an immediate force are forced.
    pub force_soon: TrueTime,
    /// Nodes that join the cluster.
    pub joins: u32,
    /// Nodes that an operator removes.
    pub leaves: u32,
    /// Whether a client repeatedly creates and drops a table of its own.
    pub drops: bool,
    /// Users of a shared log.
    pub log_users: u32,
    /// Clients of a virtual disk.
    pub disk_clients: u32,
    /// ZooKeeper clients. If there are any, each node has a translation server, and no disk may rot.
    pub zookeeper_clients: u32,
    /// Clients that run transactions. Wall clocks must have bounds.
    pub transaction_clients: u32,
    pub workload: Workload,
    /// Splits of their tables.
    pub transaction_splits: u32,
    /// How long a transaction stays prepared before its participant asks about it.
    pub in_doubt: Duration,
    /// Number of tables: the first is used, the others make manifests long enough to tear.
    pub tables: u64,
    /// Duration of the fault phase.
    pub fault_time: TrueTime,
    /// How long the cluster has to recover once faults have ended: longer than the 80 s after which a leader that can't
    /// read its disk stands aside once more.
    pub patience: TrueTime,
    /// Bytes per log segment; small, so that segments are created and removed.
    pub segment_bytes: u64,
    /// Bytes of log retained for lagging followers.
    pub keep_bytes: u64,
    /// Bytes of log between checkpoints.
    pub checkpoint_log_bytes: u64,
    /// Bytes per memtable; small, so that SSTables are created and removed.
    pub memtable_bytes: u64,
    /// Bytes of the block cache, and of cached flushed memtables; a small cache makes every read wait for the disk.
    pub cache_bytes: u64,
    /// Bytes of committed entries kept in memory.
    pub memory_log_bytes: usize,
    /// Bytes of entries per proposal; a small limit sends every entry alone.
    pub propose_bytes: usize,
    /// Bytes of the follower's reorder buffer; 0: out-of-order proposals are always retransmitted.
    pub reorder_bytes: usize,
    /// Maximum delay of commit notifications to followers.
    pub commit_period: Duration,
    /// Whether every message carries the commit point.
    pub piggyback_commits: bool,
    /// Heartbeat interval of an idle leader; a short one keeps ages low.
    pub heartbeat: Duration,
    /// Random spread of election timeouts; a small one makes candidates collide.
    pub election_jitter: Duration,
    /// Sessions may expire after this.
    pub session_lifetime: Duration,
    /// Probability that a message is lost.
    pub loss: u64,
    /// Probability that a message sent across a partition arrives once the partition ends.
    pub held_back: u64,
    /// Probability that a message is duplicated.
    pub duplication: u64,
    /// Probability that a client's connection breaks soon after a request.
    pub resets: u64,
    /// Maximum delay of most messages.
    pub delay: TrueTime,
    /// Probability that a message is delayed a hundredfold.
    pub long_delay: u64,
    /// Mean time between faults of the kinds below.
    pub fault_every: TrueTime,
    /// Weights of the kinds of fault.
    pub faults: Faults,
    /// Probability that a process pauses between a step and its actions; twenty times as high if it was about to
    /// respond.
    pub stall: u64,
    /// Probability that a machine loses power while it writes a manifest with a new promise.
    pub crash_at_manifest: u64,
    /// Probability that a step of background work on SSTables takes hundreds of times as long.
    pub slow_work: u64,
    /// Probability that writing a copy of the manifest takes a hundred times as long.
    pub slow_manifests: u64,
    /// Maximum rate error of monotonic clocks, in parts per million.
    pub clock_rate: u64,
    /// Whether wall clocks jump.
    pub wall_jumps: bool,
    /// The greatest bound on the errors of wall clocks, in nanoseconds: such clocks do not jump arbitrarily. 0: they have
    /// no bounds.
    pub clock_uncertainty: u64,
    /// Determines the errors of wall clocks with bounds.
    pub clock_seed: u64,
    /// The node with a wall clock that exceeds its stated bound for a while.
    pub lying_node: Option<NodeId>,
    /// How long a member under primary/backup replication may stay away before another node takes its place.
    pub replace_after: Duration,
    /// Whether leaders read by leases; otherwise by view checks only.
    pub leases: bool,
    /// Maximum duration of a log force.
    pub force_time: TrueTime,
}

/// Relative weights of the kinds of fault; 0: never in this run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The process dies; the machine keeps unforced writes.
    pub kill: u64,
    /// The machine loses power and its unforced writes.
    pub power: u64,
    /// All machines lose power at the same time.
    pub power_all: u64,
    /// A crash at some file operation, including during a start.
    pub crash_at_operation: u64,
    /// The process is paused for a while.
    pub pause: u64,
    pub partition: u64,
    /// A one-way partition.
    pub one_way: u64,
    pub force_error: u64,
    /// A bit flips in a file of the machine with the rotting disk, while its process is down.
    pub rot: u64,
    /// The disk of that machine is replaced by an empty one under the same node number.
    pub blank: u64,
    /// The process of that machine dies, and its disk is rolled back to a copy from before an earlier start.
    pub roll_back: u64,
    /// The node is stopped cleanly and restarted.
    pub stop: u64,
    /// A disk is full for a while.
    pub full: u64,
    /// An operator moves the replicas of a range to other nodes.
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
    pub fn list(&self) -> [u64; 14] {
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
            self.roll_back,
        ]
    }
}

impl Options {
    /// The only machine with a disk that may rot, be replaced or be rolled back.
    #[must_use]
    pub fn rotten_node(&self) -> NodeId {
        NodeId(self.nodes)
    }

    /// The same run with wall clocks as drawn from the seed, by a generator of their own: in a third of the runs they have
    /// bounds, and in a quarter of these one machine's clock lies.
    fn with_clocks(self, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed ^ 0xc10c_0000_0000_0000);
        let has_bounds = random.below(3) == 0;
        let clock_uncertainty = [1, 10, 100, 1_000, 3_000, 10_000][random.below(6) as usize] * 1_000;
        let lies = has_bounds && self.nodes > 1 && random.below(4) == 0;
        let liar = NodeId(1 + u32::try_from(random.below(u64::from(self.nodes))).unwrap_or(0));
        Self {
            clock_uncertainty: if has_bounds { clock_uncertainty } else { 0 },
            clock_seed: random.draw(),
            lying_node: lies.then_some(liar),
            ..self
        }
    }

    /// The same run with transactions, as drawn from the seed by a generator of their own, if wall clocks have bounds.
    fn with_transactions(self, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed ^ 0x7a4e_5ac7_0000_0000);
        let is_sql = Theme::of(seed) == Some(Theme::Sql);
        let is_theme = is_sql || Theme::of(seed) == Some(Theme::Transactions);
        let clients = if is_theme { 5 } else { [2, 3, 5][random.below(3) as usize] };
        let workload = Workload::DRAWN[random.below(Workload::DRAWN.len() as u64) as usize];
        let workload = if is_sql { Workload::Sql } else { workload };
        if self.clock_uncertainty == 0 || self.zookeeper_clients > 0 {
            return self;
        }
        // A transaction needs several ranges at a time: with frequent faults few are committed.
        let fault_every = self.fault_every * [1, 2, 4][random.below(3) as usize];
        let fault_every = if is_theme { self.fault_every } else { fault_every };
        let in_doubt = Duration::from_millis([300, 300, 1_000, 5_000][random.below(4) as usize]);
        let transaction_splits = random.below(if is_theme { 10 } else { 4 }) as u32;
        // Elections of many cohorts on a disk with slow manifests may never end; the transactions add tables.
        let tables = self.tables.min(2);
        Self { transaction_clients: clients, workload, transaction_splits, fault_every, in_doubt, tables, ..self }
    }

    /// The same run with enough clients, and short enough pauses, for more than a hundred operations per simulated
    /// second.
    #[must_use]
    pub fn busy(self) -> Self {
        Self { clients: 24, think: super::MILLISECOND * 20, keys: 8, ..self }
    }

    /// Draws the parameters of a run from its seed.
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
            roll_back: 0,
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
            replication: Replication::Paxos,
            loss_patience: Duration::ZERO,
            force_soon: 0,
            joins: 0,
            leaves: 0,
            drops: false,
            log_users: 0,
            disk_clients: 0,
            zookeeper_clients: 0,
            transaction_clients: 0,
            workload: Workload::Lists,
            transaction_splits: 0,
            in_doubt: Duration::from_millis(5_000),
            tables: pick(&[1, 2, 10]),
            fault_time: pick(&[8, 12, 20]) * SECOND,
            patience: 120 * SECOND,
            segment_bytes: pick(&[16, 32, 64]) << 10,
            keep_bytes: pick(&[0, 32, 128]) << 10,
            checkpoint_log_bytes: pick(&[4, 16, 64]) << 10,
            memtable_bytes: pick(&[2, 8, 64]) << 10,
            cache_bytes: pick(&[0, 4, 1_024]) << 10,
            memory_log_bytes: pick(&[256, 2_048, 65_536]) as usize,
            propose_bytes: pick(&[64, 64, 512, 4_096]) as usize,
            reorder_bytes: 0,
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
            clock_uncertainty: 0,
            clock_seed: 0,
            lying_node: None,
            replace_after: Duration::ZERO,
            leases: pick(&[0, 1, 1, 1]) == 1,
            force_time: pick(&[200, 1_000, 3_000, 12_000]) * (millisecond / 1_000),
        };
        // In half of the runs, two or three ranges. One of them may have no rows; each of the others starts at a row.
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
        options.reorder_bytes = pick(&[0, 512, 65_536, 65_536]) as usize;
        options.commit_period = Duration::from_millis(pick(&[1, 20, 100, 1_000]));
        options.piggyback_commits = pick(&[0, 1, 1]) == 1;
        if pick(&[0, 0, 1]) == 1 {
            // Ranges of such a table are not split.
            (options.durability, splits) = (Durability::Memory, 0);
            // After the loss of a disk, the end of one more process would leave no replica eligible to lead.
            options.faults.blank = 0;
            // The safety of such logs depends on clean-stop marks and promises.
            options.faults.stop = pick(&[1, 4, 12]);
            options.crash_at_manifest = pick(&[0, 50_000, 300_000]);
        }
        options.loss_patience = Duration::from_millis(pick(&[0, 300, 5_000]));
        options.force_soon = pick(&[5, 100, 1_000]) * millisecond;
        // A range with two replicas, one of them on a disk that rots or is lost, could be left without an intact
        // replica.
        let is_safe = options.faults.blank == 0 && (options.faults.rot == 0 || nodes > 3) && nodes > 1;
        options.faults.move_range = if is_safe { pick(&[0, 2, 12]) } else { 0 };
        options.joins = u32::try_from(pick(&[0, 0, 1, 2])).unwrap_or(0);
        // A move to a disk that is then lost cannot complete.
        let has_room = options.joins > 0 && nodes > 1 || nodes == 5;
        let may_leave = has_room && options.replicas != 5 && options.faults.blank == 0;
        options.leaves = if may_leave { u32::try_from(pick(&[0, 1, 2])).unwrap_or(0) } else { 0 };
        options.slow_manifests = pick(&[0, 0, 20_000, 100_000]);
        options.held_back = pick(&[0, 300_000, 1_000_000]);
        // A unit that was unreachable for a while is removed from its chain, which often leaves only one copy: then no
        // disk may rot.
        if options.faults.rot == 0 {
            options.log_users = u32::try_from(pick(&[0, 0, 0, 3])).unwrap_or(0);
        }
        // The node is lost, as with a blank disk. A joining node has not seen its earlier starts. Nothing ends the lead of
        // a log unit's only replica before a peer rejects the node, so there are no logs (`docs/fault-model.md`).
        let may_roll_back = nodes > 1
            && (options.log_users, options.zookeeper_clients) == (0, 0)
            && options.durability == Durability::Forced
            && (options.faults.rot, options.faults.blank, options.faults.move_range) == (0, 0, 0)
            && (options.joins, options.leaves) == (0, 0);
        options.faults.roll_back = if may_roll_back { pick(&[0, 2]) } else { 0 };
        let options = Self { split_at, drops, splits, ..options }.with_clocks(seed);
        let options = match Theme::of(seed) {
            Some(theme) => theme.put(options),
            None => options,
        };
        options.with_transactions(seed)
    }
}
