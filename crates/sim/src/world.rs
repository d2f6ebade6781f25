//! A cluster in one thread: the product's node machines and stores under a simulated network, disks, clocks and
//! processes, all determined by one seed.
//!
//! A run has two phases. During the *safety* phase, clients read and write while messages are lost, duplicated, delayed
//! and partitioned, processes die, stop and start, machines lose power, disks tear, forget, fail and rot, wall clocks
//! jump arbitrarily or have bounds on their errors, and monotonic clocks drift. During the *liveness* phase the faults
//! have ended, and the cluster must serve again within a bounded time and return all acknowledged writes. Each run first
//! draws which kinds of fault it has.

mod checks;
mod client_libraries;
mod clients;
mod clocks;
#[cfg(test)]
mod counter;
mod create_and_drop;
mod data_losses;
mod disks;
mod endpoint;
mod events;
mod faults;
mod host;
mod logs;
mod network;
mod options;
mod process;
mod roster;
mod splits;
mod storage;
#[cfg(test)]
mod tests;
mod themes;
mod timeline_reads;
mod transactions;
mod work;
mod zookeeper;

use std::collections::BTreeMap;

use base::{NodeId, SplitMix64};
use xxhash_rust::xxh3::Xxh3Default;

pub use options::Options;
pub use themes::Theme;
pub use transactions::Workload;

use checks::Checks;
use client_libraries::Libraries;
use clients::Clients;
use data_losses::Losses;
use disks::DiskClients;
use events::{Happening, Queue};
use host::SimHost;
use logs::LogUsers;
use network::Network;
use roster::Operator;
use transactions::{Decisions, TransactionClients};
use zookeeper::ZooKeeper;

/// True time in nanoseconds, which no node in the cluster can read.
pub(crate) type TrueTime = u64;

pub(crate) const MILLISECOND: TrueTime = 1_000_000;
pub(crate) const SECOND: TrueTime = 1_000 * MILLISECOND;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    /// A hash of all events.
    pub trace: u64,
    /// Simulated time in nanoseconds.
    pub simulated: u64,
    /// Operations that completed with a definite outcome.
    pub operations: u64,
    /// Event counters by name.
    pub counters: BTreeMap<&'static str, u64>,
    /// The first violated invariant.
    pub violation: Option<String>,
}

/// A cluster and its environment.
pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) now: TrueTime,
    pub(crate) random: SplitMix64,
    pub(crate) queue: Queue,
    pub(crate) hosts: BTreeMap<NodeId, SimHost>,
    pub(crate) network: Network,
    pub(crate) clients: Clients,
    pub(crate) libraries: Libraries,
    pub(crate) operator: Operator,
    pub(crate) checks: Checks,
    pub(crate) losses: Losses,
    pub(crate) log_users: LogUsers,
    pub(crate) disks: DiskClients,
    pub(crate) zookeeper: ZooKeeper,
    pub(crate) transactions: TransactionClients,
    decisions: Decisions,
    pub(crate) counters: BTreeMap<&'static str, u64>,
    trace: Xxh3Default,
    pub(crate) violation: Option<String>,
    pub(crate) healed: bool,
    /// Events at the current instant.
    happened_now: u64,
    /// Requests from tests, and the responses.
    #[cfg(test)]
    asked_by_test: BTreeMap<node::contract::RequestId, Option<node::request::Outcome>>,
}

/// How often a run that waits for a condition checks it.
const CHECK_EVERY: TrueTime = 10 * MILLISECOND;

/// More events than this at one instant indicate an endless loop.
const HAPPENINGS_AT_ONCE_MAX: u64 = 1_000_000;

/// Runs one seed, drawing the options from it.
#[must_use]
pub fn run(seed: u64) -> Outcome {
    run_with(seed, Options::draw(seed))
}

/// Runs one seed with the given options.
#[must_use]
pub fn run_with(seed: u64, options: Options) -> Outcome {
    let mut world = World::new(seed, options);
    world.play();
    let trace = world.trace.digest();
    Outcome {
        seed,
        trace,
        simulated: world.now,
        operations: world.clients.ended(),
        counters: world.counters,
        violation: world.violation,
    }
}

impl World {
    fn new(seed: u64, options: Options) -> Self {
        let mut random = SplitMix64::new(seed ^ 0x5eed_0f1a_99e5_0000);
        let nodes: Vec<NodeId> = (1..=options.nodes).map(NodeId).collect();
        let hosts = nodes.iter().map(|node| (*node, SimHost::format(*node, &options, &mut random))).collect();
        let clients = Clients::new(&options, &mut random);
        let libraries = Libraries::new(&options, random.draw());
        Self {
            now: 0,
            queue: Queue::default(),
            hosts,
            network: Network::default(),
            clients,
            libraries,
            operator: Operator::default(),
            checks: Checks::default(),
            losses: Losses::default(),
            log_users: LogUsers::new(options.log_users, seed),
            disks: DiskClients::new(options.disk_clients, seed),
            zookeeper: ZooKeeper::new(options.zookeeper_clients, seed),
            transactions: TransactionClients::new(&options, seed),
            decisions: Decisions::default(),
            counters: BTreeMap::new(),
            trace: Xxh3Default::new(),
            violation: None,
            healed: false,
            happened_now: 0,
            #[cfg(test)]
            asked_by_test: BTreeMap::new(),
            random,
            options,
        }
    }

    fn play(&mut self) {
        self.begin();
        self.play_until(self.options.fault_time);
        self.finish();
    }

    fn begin(&mut self) {
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        for node in nodes {
            self.queue.put(self.now, Happening::Start { node });
        }
        self.begin_clients();
        self.begin_faults();
        self.begin_errands();
        self.begin_log_users();
        self.begin_disks();
        self.begin_zookeeper();
        self.begin_transactions();
    }

    fn finish(&mut self) {
        self.heal();
        self.play_until_all("clients received responses", |world| world.clients.are_done());
        self.play_until_all("transactions had outcomes", |world| world.transactions.are_done());
        self.play_until_all("transactions were resolved", Self::are_transactions_over);
        self.play_until_all("log users received responses", |world| world.log_users.are_done());
        self.play_until_all("disks were read", |world| world.disks.are_done());
        self.finish_zookeeper();
        self.play_until_all("log chains were fully replicated", Self::are_logs_whole);
        self.play_until_all("replicas caught up", Self::are_replicas_equal);
        self.final_checks();
    }

    /// Runs until a condition holds that must hold within a bounded time after the faults ended; otherwise reports a
    /// violation.
    fn play_until_all(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = self.now + self.options.patience;
        let mut check_at = self.now;
        while self.violation.is_none() && self.now < end {
            if self.now >= check_at {
                if holds(self) {
                    return;
                }
                check_at = self.now + CHECK_EVERY;
            }
            self.play_one();
        }
        if self.violation.is_none() {
            let why = self.why_stuck();
            self.violate(&format!("timeout: not all {what}: {why}"));
        }
    }

    fn play_until(&mut self, end: TrueTime) {
        while self.violation.is_none() && self.queue.next_time().is_some_and(|time| time <= end) {
            self.play_one();
        }
        self.now = self.now.max(end);
    }

    fn play_one(&mut self) {
        let Some((time, happening)) = self.queue.take() else {
            self.now += MILLISECOND;
            return;
        };
        if time > self.now {
            self.now = time;
            self.happened_now = 0;
        }
        self.happened_now += 1;
        if self.happened_now > HAPPENINGS_AT_ONCE_MAX {
            return self.violate("too many events at one instant");
        }
        self.note(time, happening.tag());
        self.happen(happening);
    }

    /// Adds to the trace: two runs of one seed give the same trace.
    pub(crate) fn note(&mut self, a: u64, b: u64) {
        self.trace.update(&a.to_le_bytes());
        self.trace.update(&b.to_le_bytes());
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counters.entry(what).or_default() += 1;
    }

    pub(crate) fn violate(&mut self, what: &str) {
        if self.violation.is_none() {
            self.violation = Some(format!("at {} ms: {what}", self.now / MILLISECOND));
        }
    }
}
