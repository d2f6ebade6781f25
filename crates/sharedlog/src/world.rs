//! Simulation of a shared log in one thread: the machines of this crate under a simulated network, disks and processes,
//! all derived from one seed.
//!
//! A run has two phases. *Safety*: clients append, read, follow and trim while messages are lost, duplicated, delayed
//! and partitioned, processes crash, pause and restart, disks are lost permanently, and several nodes replace the
//! projection concurrently. *Liveness*: the faults end, and every call must complete; then the whole log is read.
//! `checks.rs` checks the invariants throughout.

use std::collections::{BTreeMap, BTreeSet};

use base::{DetectorConfig, Duration, Monotonic, SplitMix64};

use crate::client::{Timing, Token};
use crate::controller;
use crate::copier;
use crate::hole_fill;
use crate::player;
use crate::recovery;
use crate::unit::Command;
use crate::{LogId, Position, Projection, ProjectionEpoch, UnitId};

mod checks;
mod clients;
mod faults;
mod jobs;
mod network;
mod node;
mod operator;
mod options;
mod process;
mod registry;
mod snapshots;
#[cfg(test)]
mod tests;
pub mod throughput;

pub use options::{Options, Speed};

use checks::Checks;
use clients::Clients;
use network::{Event, Network};
use node::Node;
use registry::Registry;

/// Nanoseconds of simulated time.
type Time = u64;

const MICROSECOND: Time = 1_000;
const MILLISECOND: Time = 1_000 * MICROSECOND;

/// Timeouts are short, to match the fast simulated network and a short run.
const CLIENT: Timing = Timing {
    answer: Duration::from_millis(15),
    pause: Duration::from_millis(2),
    fetch: Duration::from_millis(5),
    poll: Duration::from_millis(2),
    errand: Duration::from_millis(300),
};
const RECOVERY: recovery::Timing = recovery::Timing {
    again: Duration::from_millis(8),
    patience: Duration::from_millis(20),
    beginning: Duration::from_millis(20),
    limit: Duration::from_millis(1_200),
};
const PLAYER: player::Config =
    player::Config { window: 8, poll: Duration::from_millis(5), wait: Duration::from_millis(12) };
const HOLE_FILL: hole_fill::Config =
    hole_fill::Config { age: Duration::from_millis(25), again: Duration::from_millis(10), window: 2 };
const CONTROLLER: controller::Config = controller::Config {
    detector: DetectorConfig {
        timeout: Duration::from_millis(25),
        doublings_max: 3,
        quiet: Duration::from_millis(200),
    },
    awake_step: Duration::from_millis(12),
    gone: Duration::from_millis(60),
    pause: Duration::from_millis(15),
    lazy_pause: Duration::from_millis(30),
    naming: Duration::from_millis(20),
    sealing: RECOVERY.patience,
    slow_again: Duration::from_millis(10),
    slow_within: Duration::from_millis(100),
    slow_for: Duration::from_millis(150),
    recovery: RECOVERY,
    copier: copier::Config { window: 4, again: Duration::from_millis(10), failures: 8 },
};
const LOG: LogId = LogId(1);
/// Maximum duration of the liveness phase.
const PATIENCE: Time = 20_000 * MILLISECOND;
/// A run with more events counts as endless.
const EVENTS_MAX: u64 = 2_000_000;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed of the run.
    pub seed: u64,
    /// Hash of all events. Equal for two runs of the same seed and build.
    pub trace: u64,
    /// Simulated time in nanoseconds.
    pub simulated: u64,
    pub events: u64,
    /// How often each kind of event happened.
    pub counters: BTreeMap<&'static str, u64>,
    /// The first violated invariant.
    pub violation: Option<String>,
}

/// A log and its environment.
struct World {
    options: Options,
    now: Time,
    random: SplitMix64,
    network: Network,
    registry: Registry,
    nodes: BTreeMap<u32, Node>,
    clients: Clients,
    checks: Checks,
    /// Units that were in a projection and were removed.
    left_out: BTreeSet<UnitId>,
    /// Units that have lost their disks.
    gone: BTreeSet<UnitId>,
    /// The command that started each unit. It may arrive again much later.
    begins: BTreeMap<UnitId, Command>,
    /// The end of the positions handed out in each epoch.
    handed_out: BTreeMap<ProjectionEpoch, Position>,
    /// The processes with controllers that lead, or believe that they do.
    leaders: Vec<(u32, u64)>,
    /// Nodes that should leave.
    leaving: BTreeSet<u32>,
    lives: u64,
    tokens: u64,
    is_healed: bool,
    events: u64,
    trace: u64,
    counters: BTreeMap<&'static str, u64>,
    violation: Option<String>,
}

/// Runs one seed with options derived from it.
#[must_use]
pub fn run(seed: u64) -> Outcome {
    run_with(seed, Options::draw(seed))
}

/// Runs one seed with the given options.
#[must_use]
pub fn run_with(seed: u64, options: Options) -> Outcome {
    let mut world = World::new(seed, options);
    world.play();
    Outcome {
        seed,
        trace: world.trace,
        simulated: world.now,
        events: world.events,
        counters: world.counters,
        violation: world.violation,
    }
}

impl World {
    fn new(seed: u64, options: Options) -> Self {
        let random = SplitMix64::new(seed ^ 0x106_5eed);
        Self {
            now: 0,
            random,
            network: Network::default(),
            registry: Registry::default(),
            nodes: BTreeMap::new(),
            clients: Clients::default(),
            checks: Checks::default(),
            left_out: BTreeSet::new(),
            gone: BTreeSet::new(),
            handed_out: BTreeMap::new(),
            begins: BTreeMap::new(),
            leaders: Vec::new(),
            leaving: BTreeSet::new(),
            lives: 0,
            tokens: 0,
            is_healed: false,
            events: 0,
            trace: seed,
            counters: BTreeMap::new(),
            violation: None,
            options,
        }
    }

    fn play(&mut self) {
        self.found();
        self.begin_clients();
        self.network.put(self.now, Event::Operate);
        self.network.put(self.now, Event::Fault);
        self.play_until(self.options.fault_time);
        self.heal();
        self.play_until_all("the log is fully replicated", Self::is_well);
        self.play_until_all("every call has ended", Self::are_clients_done);
        self.read_all();
        self.play_until_all("the whole log was read and played", Self::are_clients_done);
        self.check_end();
    }

    fn play_until(&mut self, end: Time) {
        while self.violation.is_none() && self.network.next_time().is_some_and(|time| time <= end) {
            self.play_one();
        }
        self.now = self.now.max(end);
    }

    /// Runs until a condition holds that must eventually hold without faults.
    fn play_until_all(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = self.now + PATIENCE;
        while self.violation.is_none() && !holds(self) {
            if self.now > end || self.network.next_time().is_none() {
                let why = self.why_stuck();
                return self.violate(&format!("the run did not reach the state {what:?}: {why}"));
            }
            self.play_one();
        }
    }

    fn play_one(&mut self) {
        let Some((time, event)) = self.network.take() else { return };
        self.now = self.now.max(time);
        self.events += 1;
        if self.events > EVENTS_MAX {
            return self.violate("event limit exceeded");
        }
        self.note(time ^ event.tag());
        self.happen(event);
    }

    fn happen(&mut self, event: Event) {
        if let Some(place) = event.place()
            && let Some(until) = self.paused_until(place)
        {
            return self.network.put(until, event);
        }
        match event {
            Event::Deliver { from, to, life, message } => self.deliver(from, to, life, message),
            Event::Timer { place, life, machine } => self.timer(place, life, machine),
            Event::Forced { node, life, count } => self.forced(node, life, count),
            Event::Tick { node, life } => self.tick(node, life),
            Event::Work => self.work(),
            Event::Operate => self.operate(),
            Event::Fault => self.fault(),
            Event::Restart(place) => self.restart(place),
            Event::Rejoin(from, to) => self.network.rejoin(from, to),
        }
    }

    fn clock(&self) -> Monotonic {
        Monotonic(self.now)
    }

    fn token(&mut self) -> Token {
        self.tokens += 1;
        Token(self.tokens)
    }

    /// A unique number for a process.
    fn life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    fn newest(&self) -> &Projection {
        self.registry.newest()
    }

    /// Adds to the trace, which must be equal for two runs of one seed.
    fn note(&mut self, what: u64) {
        self.trace = SplitMix64::new(self.trace ^ what).draw();
    }

    fn count(&mut self, what: &'static str) {
        *self.counters.entry(what).or_default() += 1;
    }

    fn violate(&mut self, what: &str) {
        if self.violation.is_none() {
            self.violation = Some(format!("at {} ms: {what}", self.now / MILLISECOND));
        }
    }
}
