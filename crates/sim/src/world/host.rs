//! A machine: the state that outlives its processes.

use base::{ClusterId, CohortId, Duration, Incarnation, Member, NodeId, Now, SplitMix64};
use node::NodeConfig;
use store::identity::{Host, Identity};
use store::log::LogPosition;
use store::memory::MemoryDisk;
use store::{Config, Recovered, sstable, tree};

use super::clocks::Clocks;
use super::endpoint::Published;
use super::events::{Generation, Happening};
use super::process::Process;
use super::{Options, TrueTime};

/// Known extent of a disk's log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnownLog {
    /// End of the forced log, which no crash may lose.
    forced: LogPosition,
    /// End of the log before the last forced batch, which names it: rot there must not go undetected (guarantee 7).
    named: LogPosition,
}

/// Bits that have flipped on a disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rot {
    /// In any file, ever: the effect may show late.
    pub(super) ever: bool,
    /// In the log, since a start last read all of it.
    pub(super) log_since_start: bool,
}

impl KnownLog {
    /// The log as recovered by a start, which names its end in the manifest.
    pub(super) fn at_start(tail: LogPosition) -> Self {
        Self { forced: tail, named: tail }
    }

    /// Another batch is forced; it names the one before it.
    pub(super) fn forced_through(&mut self, tail: LogPosition) {
        *self = Self { forced: tail, named: self.forced };
    }

    /// Checks a recovery: all forced records must be present, or lost to rot and reported as lost; and only rot may
    /// cause reported damage or doubt. Returns the violation.
    pub(super) fn wrong_with<L>(
        &self,
        found: &Recovered<L>,
        tail: LogPosition,
        rot: Rot,
        may_join: impl Fn(CohortId) -> bool,
    ) -> Option<String> {
        // A replica that joins an existing cohort starts in doubt.
        let doubted = found.cohorts.iter().any(|(id, cohort)| cohort.doubtful && !may_join(*id));
        let is_doubted = found.doubt_unknown || doubted;
        if found.damage.is_some() && !rot.log_since_start || is_doubted && !rot.ever {
            return Some("a replica is in doubt although its disk is intact".to_owned());
        }
        let is_missed = rot.log_since_start && (found.damage.is_some() || found.doubt_unknown);
        let sure = if rot.log_since_start { self.named } else { self.forced };
        (tail < sure && !is_missed)
            .then(|| format!("the log was forced through {sure} but ends at {tail}, without a report of damage"))
    }
}

/// A machine. Its disk and clocks outlive its processes.
pub(crate) struct SimHost {
    pub(crate) member: Member,
    pub(crate) disk: MemoryDisk,
    pub(crate) clocks: Clocks,
    pub(crate) generation: Generation,
    pub(crate) process: Option<Process>,
    /// The process is paused until it is resumed; events wait meanwhile, with the clocks as of their arrival.
    pub(crate) paused: bool,
    pub(super) held: Vec<(Now, Happening)>,
    /// Only the machine's thread is paused: the endpoints continue.
    pub(super) endpoint_runs: bool,
    /// The state that its process has published, kept for a while after a clean stop.
    pub(super) published: Published,
    /// The clocks as read before a pause that struck between the reading and the step.
    pub(super) stale: Option<Now>,
    /// Held events are handled with the clocks as of their arrival, which the driver had read then at the earliest
    /// (guarantee 2).
    pub(super) goes_by_arrival: bool,
    pub(super) last_counters: node::Counters,
    /// The log that the next start must recover.
    pub(super) log: KnownLog,
    pub(super) rot: Rot,
    /// It joined the cluster later.
    pub(super) has_joined: bool,
    /// It was removed for good.
    pub(super) is_gone: bool,
    /// A copy of its disk, made before some start.
    copy: Option<MemoryDisk>,
    /// Its disk was rolled back to that copy.
    pub(super) is_rolled_back: bool,
    /// The others have rejected it for that reason: it does not start again.
    pub(super) is_rejected: bool,
}

pub(super) fn store_config(options: &Options) -> Config {
    let tree = tree::Config {
        memtable_bytes: options.memtable_bytes,
        frozen_max: 2,
        sstable_bytes: options.memtable_bytes / 2,
        level0_sstables: 2,
        level0_sstables_max: 5,
        brake: Duration::from_millis(200),
        level1_bytes: 2 * options.memtable_bytes,
        level_ratio: 2,
        step_bytes: 256,
        sstable: sstable::Config { block_bytes: 128, filter_bits_per_key: 10 },
    };
    let (segment_bytes, keep_bytes) = (options.segment_bytes, options.keep_bytes);
    let cache_bytes = options.cache_bytes;
    Config { segment_bytes, keep_bytes, segments_ahead: 1, tree, cache_bytes, recent_bytes: cache_bytes }
}

fn members(nodes: u32) -> Vec<Member> {
    (1..=nodes).map(|node| Member { node: NodeId(node), incarnation: incarnation(node) }).collect()
}

/// The initial incarnation of a node's disk.
pub(super) fn incarnation(node: u32) -> Incarnation {
    Incarnation(u64::from(node) * 17)
}

pub(super) fn node_config(options: &Options, seed: u64) -> NodeConfig {
    let mut config = NodeConfig {
        addresses: members(options.nodes).into_iter().map(|member| (member, String::new(), String::new())).collect(),
        seed,
        checkpoint_log_bytes: options.checkpoint_log_bytes,
        session_lifetime: options.session_lifetime,
        replace_after: options.replace_after,
        memtable_bytes_max: 8 * options.memtable_bytes,
        memtables_bytes: 8 * options.memtable_bytes,
        housekeeping: base::Duration::from_millis(500),
        in_doubt: options.in_doubt,
        hold_lifetime: base::Duration::from_millis(1_000),
        ..NodeConfig::default()
    };
    config.limits.memory_log_bytes = options.memory_log_bytes;
    config.limits.propose_bytes = options.propose_bytes;
    config.limits.reorder_bytes = options.reorder_bytes;
    config.timing.commit_period = options.commit_period;
    config.timing.piggyback_commits = options.piggyback_commits;
    config.timing.leases = options.leases;
    config.timing.heartbeat = options.heartbeat;
    config.timing.election_jitter = options.election_jitter;
    config.timing.loss_patience = options.loss_patience;
    config
}

impl SimHost {
    pub(crate) fn format(node: NodeId, options: &Options, random: &mut SplitMix64) -> Self {
        let members = members(options.nodes);
        let member = members[node.0 as usize - 1];
        let disk = MemoryDisk::new();
        let identity =
            Identity { cluster: ClusterId(7), node, incarnation: member.incarnation, members, hosts: Vec::new() };
        store::format(&disk, &identity, &store_config(options)).expect("an empty disk can be formatted");
        Self::with(member, disk, false, options, random)
    }

    fn with(member: Member, disk: MemoryDisk, has_joined: bool, options: &Options, random: &mut SplitMix64) -> Self {
        Self {
            member,
            disk,
            clocks: Clocks::draw(options, member.node, random),
            generation: 0,
            process: None,
            paused: false,
            held: Vec::new(),
            endpoint_runs: false,
            published: Published::default(),
            stale: None,
            goes_by_arrival: false,
            last_counters: node::Counters::default(),
            log: KnownLog::default(),
            rot: Rot::default(),
            has_joined,
            is_gone: false,
            copy: None,
            is_rolled_back: false,
            is_rejected: false,
        }
    }

    /// A machine that joins the cluster of these hosts.
    pub(crate) fn join(node: NodeId, hosts: Vec<Host>, options: &Options, random: &mut SplitMix64) -> Self {
        let (disk, incarnation) = (MemoryDisk::new(), incarnation(node.0));
        let identity = Identity { cluster: ClusterId(7), node, incarnation, members: Vec::new(), hosts };
        store::format(&disk, &identity, &store_config(options)).expect("an empty disk can be formatted");
        Self::with(Member { node, incarnation }, disk, true, options, random)
    }

    /// Installs an empty disk, with a new incarnation, under the same node number.
    pub(crate) fn blank(&mut self, options: &Options) {
        let node = self.member.node;
        self.member.incarnation = Incarnation(self.member.incarnation.0 + 1_000);
        self.disk = MemoryDisk::new();
        (self.log, self.rot) = (KnownLog::default(), Rot::default());
        let members = members(options.nodes);
        let identity =
            Identity { cluster: ClusterId(7), node, incarnation: self.member.incarnation, members, hosts: Vec::new() };
        store::format(&self.disk, &identity, &store_config(options)).expect("an empty disk can be formatted");
    }

    /// Before a start, copies the disk if it may be rolled back later: always at the first start, sometimes at others.
    pub(super) fn keep_copy(&mut self, options: &Options, random: &mut SplitMix64) {
        if options.faults.roll_back > 0
            && options.rotten_node() == self.member.node
            && (self.copy.is_none() || random.below(2) == 0)
        {
            self.copy = Some(self.disk.copy());
        }
    }

    /// Replaces the disk by its copy.
    pub(super) fn roll_back(&mut self) {
        if let Some(copy) = self.copy.take() {
            self.disk = copy;
            (self.log, self.is_rolled_back) = (KnownLog::default(), true);
        }
    }

    /// Whether its disk is not one that the cluster was formed with, or an older copy.
    pub(crate) fn is_foreign(&self) -> bool {
        self.member.incarnation != incarnation(self.member.node.0) || self.is_rolled_back
    }

    pub(super) fn hold(&mut self, now: TrueTime, happening: Happening) {
        self.held.push((self.clocks.now(now), happening));
    }

    pub(super) fn is_live(&self, generation: Generation) -> bool {
        self.process.is_some() && self.generation == generation
    }
}
