//! The parameters of a run, derived from its seed.

use base::{Duration, SplitMix64};

use super::{CLIENT, HOLE_FILL, MILLISECOND, Time};
use crate::client::Timing;
use crate::hole_fill;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: u32,
    /// Number of client processes.
    pub clients: u32,
    /// Number of chains at the start.
    pub founded: usize,
    /// Target number of chains.
    pub stripes: usize,
    /// Stripe width in positions.
    pub width: u64,
    pub copies: usize,
    /// Number of calls that clients start.
    pub calls: u32,
    /// Duration of the safety phase in nanoseconds.
    pub fault_time: Time,
    /// Lost messages, in parts per million.
    pub loss: u64,
    /// Duplicated messages, in parts per million.
    pub duplication: u64,
    /// Strongly delayed messages, in parts per million.
    pub lateness: u64,
    /// Maximum delay in nanoseconds.
    pub late: Time,
    pub kills: bool,
    /// Nodes and clients pause.
    pub pauses: bool,
    /// Places are partitioned from each other.
    pub partitions: bool,
    pub disks: bool,
    /// All copies of some entries are lost, and an operator declares them lost.
    pub losses: bool,
    /// Single values are lost, except together with `losses`.
    pub damage: bool,
    pub client_kills: bool,
    /// Controllers get wrong reports, which cause unnecessary replacements.
    pub restless: bool,
    /// Clients play the log, so that they notice a new projection early.
    pub players: bool,
    /// The log is trimmed.
    pub trims: bool,
    /// Positions are trimmed individually. Players may disagree on these.
    pub single_trims: bool,
    /// Mean time between two faults in nanoseconds.
    pub fault_every: Time,
    /// Fixed speeds of disks and network, for throughput runs. Each unit then has its own node and disk, and timeouts
    /// are long.
    pub speed: Option<Speed>,
}

/// Fixed speeds of disks and network.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Delay of a message, in nanoseconds.
    pub message: Time,
    /// Duration of a force, in nanoseconds. A disk forces one batch at a time.
    pub force: Time,
    /// Additional duration per byte, in nanoseconds.
    pub byte: Time,
    /// Maximum commands in one batch.
    pub batch: usize,
}

impl Speed {
    /// Duration of the force of a batch, in nanoseconds.
    pub(super) fn force_of(&self, bytes: usize) -> Time {
        self.force + self.byte * bytes as Time
    }
}

impl Options {
    /// Derives the options from a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed ^ 0x0b71_0c5e);
        let nodes = 2 + random.below(3) as u32;
        let copies = 1 + random.below(nodes.min(3).into()) as usize;
        let mut half = || random.chance(500_000);
        let (lossy, doubling, late) = (half(), half(), half());
        let (kills, pauses, partitions, disks) = (half(), half(), half(), half());
        let (client_kills, restless, trims) = (half(), half(), half());
        let (stripes_max, grows) = (if half() { 2 } else { 4 }, half());
        let (losses, damage) = (disks && random.chance(150_000), random.chance(400_000));
        let stripes = 1 + random.below(stripes_max) as usize;
        Self {
            nodes,
            clients: 2 + random.below(3) as u32,
            founded: if grows { 1 + random.below(stripes as u64) as usize } else { stripes },
            stripes,
            copies,
            calls: 15 + random.below(30) as u32,
            fault_time: (150 + random.below(250)) * MILLISECOND,
            loss: if lossy { random.below(80_000) } else { 0 },
            duplication: if doubling { random.below(100_000) } else { 0 },
            lateness: if late { random.below(150_000) } else { 0 },
            late: (2 + random.below(60)) * MILLISECOND,
            kills,
            pauses,
            partitions,
            disks,
            client_kills,
            restless,
            players: true,
            trims,
            single_trims: random.chance(100_000),
            fault_every: (5 + random.below(40)) * MILLISECOND,
            damage: !losses && damage,
            losses,
            speed: None,
            width: 1 + random.below(3),
        }
    }

    pub(super) fn client(&self) -> Timing {
        if self.speed.is_some() { Timing::default() } else { CLIENT }
    }

    /// Configuration of the hole fill.
    pub(super) fn hole_fill(&self) -> hole_fill::Config {
        if self.speed.is_some() {
            hole_fill::Config { age: Duration::from_millis(1_000), ..HOLE_FILL }
        } else {
            HOLE_FILL
        }
    }

    /// The node of a unit in an initial chain.
    pub(super) fn home(&self, chain: u32, copy: u32) -> u32 {
        let first = if self.speed.is_some() { chain * self.copies as u32 } else { chain };
        (first + copy) % self.nodes + 1
    }
}
