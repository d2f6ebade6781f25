//! Injects faults, and ends them.

use base::{CohortId, Duration, NodeId};
use catalog::{CatalogCommand, CatalogRequest};
use node::contract::{Event, RequestId};
use node::request::Request;

use super::events::Happening;
use super::host::SimHost;
use super::{MILLISECOND, SECOND, World};

/// Bytes at the start of a manifest in which bits flip. Even a short manifest has data there; beyond may be unused
/// zeros.
const MANIFEST_BYTES: u64 = 160;
/// Maximum free space on a disk that counts as full.
const ROOM_BYTES: u64 = 8 << 10;

impl World {
    pub(crate) fn begin_faults(&mut self) {
        if self.options.faults.total() > 0 || self.options.wall_jumps {
            self.next_fault();
        }
    }

    fn next_fault(&mut self) {
        let pause = self.random.below(2 * self.options.fault_every);
        self.queue.put(self.now + pause, Happening::Fault);
    }

    pub(crate) fn fault(&mut self) {
        if self.healed {
            return;
        }
        self.next_fault();
        if self.options.wall_jumps && self.random.below(3) == 0 {
            self.jump_a_clock();
        }
        let total = self.options.faults.total();
        if total == 0 {
            return;
        }
        let mut drawn = self.random.below(total);
        for (kind, weight) in self.options.faults.list().into_iter().enumerate() {
            if drawn < weight {
                return self.strike(kind);
            }
            drawn -= weight;
        }
    }

    fn strike(&mut self, kind: usize) {
        let id = self.any_node();
        match kind {
            0 => self.down(id, false),
            1 => self.down(id, true),
            2 => self.lose_all_power(),
            3 => self.crash_at_operation(id),
            4 => {
                let span = self.random.below(4 * SECOND);
                self.pause(id, span);
            }
            5 => self.partition(true),
            6 => self.partition(false),
            7 => self.fail_forces(id),
            8 => self.rot(),
            9 => self.blank(),
            11 => self.fill(id),
            // A paused process handles no requests.
            12 if self.hosts[&id].paused => {}
            12 => self.move_a_range(id),
            13 => self.roll_back(),
            _ => {
                let generation = self.generation(id);
                self.happen(Happening::Stop { node: id, generation });
            }
        }
    }

    /// An operator asks a node to move the replicas of some range.
    fn move_a_range(&mut self, id: NodeId) {
        let Some(process) = self.process(id) else { return };
        let catalog = process.node.replicas().find_map(|(_, _, state)| state.as_catalog());
        let tables = catalog.into_iter().flat_map(|catalog| catalog.tables());
        let cohorts: Vec<CohortId> = tables.flat_map(|(_, table)| &table.ranges).map(|range| range.cohort).collect();
        if cohorts.is_empty() {
            return;
        }
        let cohort = cohorts[self.random.below(cohorts.len() as u64) as usize];
        self.move_cohort(id, cohort);
    }

    /// The operator requests another move of the range, through any node.
    pub(crate) fn move_again(&mut self, cohort: CohortId) {
        let id = self.any_node();
        if !self.healed && !self.hosts[&id].paused {
            self.move_cohort(id, cohort);
        }
    }

    /// Requests a move of the replicas to three of five nodes, or to two or three of three. A replica that has just
    /// moved may have to move back before the old one is removed.
    fn move_cohort(&mut self, id: NodeId, cohort: CohortId) {
        let there = self.hosts.iter().filter(|(_, machine)| !machine.is_gone);
        let mut nodes: Vec<NodeId> = there.map(|(node, _)| *node).collect();
        let kept = if nodes.len() > 3 { 3 } else { 2 + self.random.below(2) as usize };
        while nodes.len() > kept {
            nodes.remove(self.random.below(nodes.len() as u64) as usize);
        }
        self.count("moves requested");
        let machine = &self.hosts[&id];
        let deadline = machine.clocks.monotonic(self.now) + Duration::from_millis(5_000);
        // The response is ignored: the final placement of the replicas is checked instead.
        let number = RequestId(u64::MAX - self.counters["moves requested"]);
        self.step(
            id,
            Event::Request {
                id: number,
                deadline,
                request: Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginMove {
                    cohort,
                    nodes,
                    force: true,
                })),
            },
        );
        if self.random.below(2) == 0 {
            let span = if self.random.below(2) == 0 { SECOND / 10 } else { SECOND };
            let later = self.now + self.random.below(span);
            self.queue.put(later, Happening::MoveAgain { cohort });
        }
    }

    pub(crate) fn any_node(&mut self) -> NodeId {
        let index = self.random.below(self.hosts.len() as u64) as usize;
        self.hosts.keys().copied().nth(index).unwrap_or(NodeId(1))
    }

    fn jump_a_clock(&mut self) {
        let id = self.any_node();
        let Self { hosts, random, .. } = self;
        if let Some(machine) = hosts.get_mut(&id) {
            machine.clocks.jump(random);
        }
    }

    fn down(&mut self, id: NodeId, power: bool) {
        if self.process(id).is_some() {
            self.count(if power { "power losses" } else { "kills" });
            self.end(id, power);
            self.restart_later(id);
        }
    }

    fn lose_all_power(&mut self) {
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        self.count("power losses of all machines");
        for id in nodes {
            if self.process(id).is_some() {
                self.end(id, true);
                self.restart_later(id);
            }
        }
    }

    fn crash_at_operation(&mut self, id: NodeId) {
        let operations = 1 + self.random.below(40);
        if let Some(machine) = self.hosts.get(&id) {
            machine.disk.crash_after_operations(operations);
        }
    }

    fn fail_forces(&mut self, id: NodeId) {
        let Self { hosts, random, .. } = self;
        if let Some(machine) = hosts.get(&id)
            && machine.process.is_some()
        {
            machine.disk.fail_syncs(1, random);
        }
    }

    /// Limits a disk to a little more than its current use for a while; existing files can be overwritten. No process
    /// ends because of it.
    fn fill(&mut self, id: NodeId) {
        let room = self.random.below(2) * self.random.below(ROOM_BYTES);
        let until = self.now + 100 * MILLISECOND + self.random.below(6 * SECOND);
        let Some(machine) = self.hosts.get(&id) else { return };
        machine.disk.set_capacity(Some(machine.disk.bytes_used() + room));
        self.queue.put(until, Happening::Room { node: id });
        self.count("disks full");
    }

    /// Removes the limit on disk space.
    pub(crate) fn make_room(&mut self, id: NodeId) {
        if let Some(machine) = self.hosts.get(&id) {
            machine.disk.set_capacity(None);
        }
    }

    /// Power is lost at a random time. On the machine with the rotting disk a copy of the manifest may rot too,
    /// immediately or after the restart that repairs the copies.
    pub(crate) fn power_loss(&mut self, id: NodeId) {
        if self.healed || self.process(id).is_none() {
            return;
        }
        self.down(id, true);
        if id != self.options.rotten_node() || self.options.faults.rot == 0 {
            return;
        }
        if self.random.below(2) == 0 {
            let place = store::manifest::PLACES[self.random.below(2) as usize];
            let offset = self.random.below(MANIFEST_BYTES);
            self.flip_in(id, place, Some(offset));
        } else {
            let later = self.now + self.random.below(3 * SECOND);
            self.queue.put(later, Happening::Rot);
        }
    }

    /// The process dies, and a bit flips in one of its files while it is down: often near the end of the log, or in a
    /// manifest. It may then crash during recovery.
    pub(crate) fn rot(&mut self) {
        let id = self.options.rotten_node();
        if self.healed || !self.may_units_be_lost() {
            return;
        }
        let Some((segment, offset)) = self.process(id).and_then(|process| process.log_end()) else { return };
        self.end(id, false);
        let disk = self.hosts[&id].disk.clone();
        // Rot in the values of a log's units may go undetected, and those may become the only copies once their chains
        // have lost another unit.
        let kinds = if self.options.log_users + self.options.zookeeper_clients > 0 { 2 } else { 4 };
        match self.random.below(kinds) {
            0 | 1 => {
                let back = 1 + self.random.below(3 * 4_096);
                self.flip_in(id, &store::log::segment_path(segment), Some(offset.saturating_sub(back)));
            }
            2 => return self.rot_manifest(id),
            _ => {
                let mut paths = disk.paths();
                paths.retain(|path| !path.ends_with(".new"));
                let path = paths[self.random.below(paths.len() as u64) as usize].clone();
                self.flip_in(id, &path, None);
            }
        }
        if self.random.below(3) == 0 {
            disk.crash_after_operations(1 + self.random.below(12));
        }
        self.restart_later(id);
    }

    /// A bit flips in one copy of the manifest; the machine may then crash while it writes the other.
    fn rot_manifest(&mut self, id: NodeId) {
        let damaged = self.random.below(2) as usize;
        let offset = self.random.below(MANIFEST_BYTES);
        self.flip_in(id, store::manifest::PLACES[damaged], Some(offset));
        if self.random.below(2) == 0 {
            self.hosts[&id].disk.crash_writing(store::manifest::PLACES[1 - damaged]);
        }
        self.restart_later(id);
    }

    /// Flips a bit of a file, at the given offset or a random one.
    fn flip_in(&mut self, id: NodeId, path: &str, offset: Option<u64>) {
        let disk = self.hosts[&id].disk.clone();
        let length = store::files::Files::open(&disk, path, store::files::OpenOptions::BUFFERED)
            .and_then(|file| store::files::File::len(&file))
            .unwrap_or(0);
        let anywhere = self.random.below(length.max(1));
        let bit = self.random.below(8) as u8;
        if disk.flip_bit(path, offset.unwrap_or(anywhere), bit) {
            self.count("bits flipped");
            if let Some(machine) = self.hosts.get_mut(&id) {
                machine.rot.ever = true;
                machine.rot.log_since_start |= path.starts_with(store::log::DIRECTORY);
            }
        }
    }

    /// Replaces the disk by an empty one for the same node number; the node is no longer a member of the cluster.
    fn blank(&mut self) {
        let id = self.options.rotten_node();
        if self.options.faults.rot > 0 || !self.may_units_be_lost() {
            return;
        }
        self.end(id, true);
        self.count("blank disks");
        let options = self.options.clone();
        if let Some(machine) = self.hosts.get_mut(&id) {
            machine.blank(&options);
        }
        self.options.faults.blank = 0;
        self.queue.put(self.now + 100 * MILLISECOND, Happening::Start { node: id });
    }

    /// Rolls a disk back to an older copy. All other nodes must have recorded the last start on it: the rollback is
    /// noticed only by nodes that have.
    fn roll_back(&mut self) {
        let id = self.options.rotten_node();
        let Some(start) = self.process(id).map(|process| process.starts.newest()) else { return };
        let knows = |machine: &SimHost| {
            let process = machine.process.as_ref();
            process.is_some_and(|process| {
                process.manifests.is_empty() && process.store.manifest().peers.get(&id) == Some(&start)
            })
        };
        let are_noticing = self.hosts.iter().all(|(node, machine)| *node == id || knows(machine));
        if !are_noticing || !self.may_units_be_lost() {
            return;
        }
        self.end(id, false);
        self.count("disks rolled back");
        if let Some(machine) = self.hosts.get_mut(&id) {
            machine.roll_back();
        }
        self.options.faults.roll_back = 0;
        self.restart_later(id);
    }

    /// Faults end: partitions heal, every machine runs, and the cluster must serve again.
    pub(crate) fn heal(&mut self) {
        self.healed = true;
        self.end_partitions();
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        for id in nodes {
            self.make_room(id);
            if self.hosts[&id].disk.has_crashed() {
                self.end(id, true);
            }
            // Cancels planned force errors and crashes.
            if self.process(id).is_none() {
                self.hosts[&id].disk.crash(&mut self.random);
            }
            self.queue.put(self.now, Happening::Start { node: id });
        }
        self.options.faults.force_error = 1;
        self.introduce_all();
        self.end_clients();
        self.end_transactions();
    }
}
