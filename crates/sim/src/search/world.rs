//! Interners for messages, replicas, and replicas with the messages in flight to them ([`Cell`]). The effect of an
//! event on a cell is computed once; a state of the model is little more than a cell number per replica.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::rc::Rc;

use base::canary::{Bug, planted};
use base::{Monotonic, NodeId, Now, Sequence, Timestamp};
use replication::{Outbox, Timing};

use super::event::{Disk, Event};
use super::message::{Envelope, alive, covered, is_vote};
use super::moves::{Move, Step};
use super::replica::{Replica, genesis, member};
use super::{Forces, Scope};

/// The index of an interned value.
pub(super) type Number = u32;
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// A replica at a point in time.
pub(super) struct Local {
    pub(super) index: usize,
    pub(super) replica: Replica,
    pub(super) now: Monotonic,
    /// Whether it has unforced writes, which a crash will lose.
    pub(super) is_stuck: bool,
}

/// A replica and the messages in flight to it.
pub(super) struct Cell {
    pub(super) local: Rc<Local>,
    pub(super) number: Number,
    pub(super) inbox: Box<[Number]>,
    pub(super) moves: Option<Rc<[Move]>>,
    /// The applied sequence of a leader that may read, or could if every vote in flight to it arrived.
    pub(super) reads_at: Option<Sequence>,
}

pub(super) struct World {
    pub(super) scope: Scope,
    /// Whether quiet events are delayed.
    pub(super) puts_off: bool,
    pub(super) messages: Interner<Envelope>,
    pub(super) bundles: Interner<Box<[Number]>>,
    renamings: Map<Number, [Number; 6]>,
    locals: Vec<Rc<Local>>,
    local_numbers: Map<(u64, Monotonic), Number>,
    pub(super) cells: Vec<Cell>,
    cell_numbers: Map<(Number, Box<[Number]>), Number>,
    additions: Map<(Number, Number), Number>,
    pub(super) ticks: Map<Number, Rc<Move>>,
    pub(super) steps: Map<(Number, Event, Disk), Rc<Step>>,
    /// The effective part of a message in flight to a replica.
    left: Map<(Number, Number), Option<Number>>,
}

/// Replicas in the model. Those that are not members do nothing.
pub(super) const REPLICAS: usize = 4;

/// A step of time: longer than a lease plus its grace period.
pub(super) fn tick() -> base::Duration {
    let grace = replication::grace(Timing::default().lease);
    base::Duration(grace.0 + Timing::default().lease.0)
}

impl World {
    pub(super) fn new(scope: Scope) -> Self {
        Self {
            scope,
            puts_off: scope.forces == Forces::Eager,
            messages: Interner::default(),
            bundles: Interner::default(),
            locals: Vec::new(),
            local_numbers: Map::default(),
            cells: Vec::new(),
            cell_numbers: Map::default(),
            additions: Map::default(),
            ticks: Map::default(),
            steps: Map::default(),
            left: Map::default(),
            renamings: Map::default(),
        }
    }

    /// Replicas in their initial state.
    pub(super) fn start(&mut self) -> [Number; REPLICAS] {
        let forces = self.scope.forces;
        let genesis = genesis(self.scope);
        let now = Monotonic(0) + tick();
        [1, 2, 3, 4].map(|node| {
            let known = if genesis.on(NodeId(node as u32)).is_some() { genesis.clone() } else { Default::default() };
            let local = self.local(node - 1, Replica::new(node as u32, &known, forces), now);
            self.cell(local, &[])
        })
    }

    /// The cell with this number.
    pub(super) fn get(&self, cell: Number) -> &Cell {
        &self.cells[cell as usize]
    }

    pub(super) fn envelope(&self, number: Number) -> &Envelope {
        self.messages.get(number)
    }

    pub(super) fn size(&self) -> usize {
        self.cells.len()
    }

    pub(super) fn local(&mut self, index: usize, mut replica: Replica, now: Monotonic) -> Number {
        let print = replica.fingerprint(Now { monotonic: now, wall: Timestamp(0), uncertainty: None });
        if let Some(number) = self.local_numbers.get(&(print, now)) {
            return *number;
        }
        let number = self.locals.len() as Number;
        let is_stuck = replica.forces == Forces::Eager && replica.is_stuck();
        self.locals.push(Rc::new(Local { index, replica, now, is_stuck }));
        self.local_numbers.insert((print, now), number);
        number
    }

    /// The number of a replica with its messages in flight, without those that can have no effect.
    pub(super) fn cell(&mut self, local: Number, inbox: &[Number]) -> Number {
        let inbox = self.living(inbox, local);
        let key = (local, inbox);
        if let Some(number) = self.cell_numbers.get(&key) {
            return *number;
        }
        let number = self.cells.len() as Number;
        let inbox = key.1.clone();
        self.cell_numbers.insert(key, number);
        let replica = Rc::clone(&self.locals[local as usize]);
        let reads_at = self.reads_at(&replica, &inbox);
        self.cells.push(Cell { local: replica, number: local, inbox, moves: None, reads_at });
        number
    }

    /// The applied sequence of a leader that could read now. Its clock may have been read some time before it evaluates
    /// the read; the lease is checked again afterwards (guarantee 12).
    fn reads_at(&self, local: &Local, inbox: &[Number]) -> Option<Sequence> {
        if !local.replica.cohort.leads() {
            return None;
        }
        let mut cohort = local.replica.cohort.clone();
        for envelope in inbox.iter().map(|number| self.messages.get(*number)).filter(|envelope| is_vote(envelope)) {
            let now = Now { monotonic: local.now, wall: Timestamp(0), uncertainty: None };
            cohort.message(member(envelope.from.0), envelope.message.clone(), now, &mut Outbox::default());
        }
        let mut read_at = local.now;
        while read_at > Monotonic(0) {
            let end = cohort.lease_end(read_at);
            if end.is_some_and(|end| end > local.now || planted(Bug::LeaseCheckedBefore)) {
                return Some(cohort.applied());
            }
            read_at = read_at - tick();
        }
        None
    }

    fn living(&mut self, inbox: &[Number], local: Number) -> Box<[Number]> {
        let mut left: Vec<Number> = inbox.iter().filter_map(|number| self.left(local, *number)).collect();
        left.sort_unstable();
        left.dedup();
        let is_covered = |one: &Number| {
            let one = self.messages.get(*one);
            let others = left.iter().map(|other| self.messages.get(*other));
            others.into_iter().any(|other| other.from == one.from && covered(&one.message, &other.message))
        };
        left.iter().copied().filter(|one| !is_covered(one)).collect()
    }

    fn left(&mut self, local: Number, number: Number) -> Option<Number> {
        if let Some(left) = self.left.get(&(local, number)) {
            return *left;
        }
        let Local { replica, now, .. } = &*self.locals[local as usize];
        let envelope = self.messages.get(number);
        let left = alive(envelope, replica, *now).map(|message| Envelope { message, ..*envelope });
        let left = left.map(|envelope| self.messages.number(envelope));
        self.left.insert((local, number), left);
        left
    }

    pub(super) fn local_at(&self, local: Number) -> &Rc<Local> {
        &self.locals[local as usize]
    }

    /// A cell with further messages in flight.
    pub(super) fn add(&mut self, cell: Number, bundle: Number) -> Number {
        if let Some(next) = self.additions.get(&(cell, bundle)) {
            return *next;
        }
        let Cell { number, inbox, .. } = &self.cells[cell as usize];
        let local = *number;
        let mut inbox = inbox.to_vec();
        inbox.extend_from_slice(self.bundles.get(bundle));
        let next = self.cell(local, &inbox);
        self.additions.insert((cell, bundle), next);
        next
    }

    /// The cell with the replicas renumbered, in the order of [`ORDERS`].
    pub(super) fn renamings(&mut self, cell: Number) -> [Number; 6] {
        if let Some(renamings) = self.renamings.get(&cell) {
            return *renamings;
        }
        let renamings = ORDERS.map(|order| self.renamed(cell, order));
        self.renamings.insert(cell, renamings);
        renamings
    }

    fn renamed(&mut self, cell: Number, order: [u8; 3]) -> Number {
        let rename = |node: NodeId| order.get(node.0 as usize - 1).map_or(node, |place| NodeId(u32::from(*place) + 1));
        let Cell { local, inbox, .. } = &self.cells[cell as usize];
        let (now, index) = (local.now, usize::from(order[local.index]));
        let mut replica = local.replica.clone();
        replica.rename(rename);
        let mut renamed = Vec::new();
        for number in &inbox.clone() {
            let Envelope { from, to, message } = self.messages.get(*number).clone();
            let envelope = Envelope { from: rename(from), to: rename(to), message: message.renamed(rename) };
            renamed.push(self.messages.number(envelope));
        }
        let local = self.local(index, replica, now);
        self.cell(local, &renamed)
    }
}

/// All permutations of three replicas.
pub(super) const ORDERS: [[u8; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

impl Local {}

/// Interned values with their numbers.
pub(super) struct Interner<T> {
    things: Vec<T>,
    numbers: Map<T, Number>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { things: Vec::new(), numbers: Map::default() }
    }
}

impl<T: Clone + Eq + Hash> Interner<T> {
    pub(super) fn get(&self, number: Number) -> &T {
        &self.things[number as usize]
    }

    pub(super) fn number(&mut self, thing: T) -> Number {
        if let Some(number) = self.numbers.get(&thing) {
            return *number;
        }
        let number = self.things.len() as Number;
        self.things.push(thing.clone());
        self.numbers.insert(thing, number);
        number
    }
}

/// A fast hash for numbers and tuples of numbers.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.write_u64(xxhash_rust::xxh3::xxh3_64(bytes));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(26) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 29);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}
