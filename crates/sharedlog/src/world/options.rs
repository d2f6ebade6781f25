//! What kinds of trouble a run has, drawn from its seed.

use base::{Duration, SplitMix64};

use super::{CLIENT, HOLE_FILL, MILLISECOND, Time};
use crate::client::Timing;
use crate::hole_fill;

/// What a run is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nodes.
    pub nodes: u32,
    /// Client processes.
    pub clients: u32,
    /// Chains of the log at its beginning.
    pub founded: usize,
    /// Chains that it should have.
    pub stripes: usize,
    /// Positions in a row that are of one chain.
    pub width: u64,
    /// Units of a chain.
    pub copies: usize,
    /// Calls that clients begin.
    pub calls: u32,
    /// How long there are faults.
    pub fault_time: Time,
    /// Messages that are lost, in a million.
    pub loss: u64,
    /// Messages that come twice, in a million.
    pub duplication: u64,
    /// Messages that are late by much, in a million.
    pub lateness: u64,
    /// How late, at most.
    pub late: Time,
    /// Nodes die.
    pub kills: bool,
    /// Nodes and clients stand still.
    pub pauses: bool,
    /// Places are cut off from each other.
    pub partitions: bool,
    /// Disks are lost.
    pub disks: bool,
    /// Disks are lost with all copies of what they hold, and an operator declares it lost.
    pub losses: bool,
    /// Single values are lost; not where all copies may be.
    pub damage: bool,
    /// Clients die.
    pub client_kills: bool,
    /// Controllers are told what isn't so: projections are replaced without need.
    pub restless: bool,
    /// Clients play the log: so they hear soon where a projection is replaced.
    pub players: bool,
    /// The log is trimmed.
    pub trims: bool,
    /// Positions are trimmed one by one. Players don't agree about what was given up so.
    pub single_trims: bool,
    /// Between two faults, about.
    pub fault_every: Time,
    /// How fast the disks and the network are, if they are always as fast. Then each unit has a node, and so a disk, of
    /// its own, and everybody is patient.
    pub speed: Option<Speed>,
}

/// Disks and a network that are always as fast.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// What a message takes, in nanoseconds.
    pub message: Time,
    /// What a force takes, in nanoseconds. A disk forces one batch at a time.
    pub force: Time,
    /// What it takes besides for each byte, in nanoseconds.
    pub byte: Time,
    /// Commands of one batch, at most.
    pub batch: usize,
}

impl Speed {
    /// What the force of a batch takes, in nanoseconds.
    pub(super) fn force_of(&self, bytes: usize) -> Time {
        self.force + self.byte * bytes as Time
    }
}

impl Options {
    /// Draws them.
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

    /// How patient clients are.
    pub(super) fn client(&self) -> Timing {
        if self.speed.is_some() { Timing::default() } else { CLIENT }
    }

    /// How soon holes are filled.
    pub(super) fn hole_fill(&self) -> hole_fill::Config {
        if self.speed.is_some() {
            hole_fill::Config { age: Duration::from_millis(1_000), ..HOLE_FILL }
        } else {
            HOLE_FILL
        }
    }

    /// The node of a founded chain's unit.
    pub(super) fn home(&self, chain: u32, copy: u32) -> u32 {
        let first = if self.speed.is_some() { chain * self.copies as u32 } else { chain };
        (first + copy) % self.nodes + 1
    }
}
