//! A machine and the process on it: the driver of a node in this world, as `loggos`'s runtime is in the other.

use std::collections::{BTreeMap, VecDeque};

use base::canary::{Bug, planted};
use base::{Boot, CohortId, Incarnation, Lsn, Member, Monotonic, NodeId, Now, SplitMix64, UniverseId};
use node::contract::{Action, Answer, Durable, Event, ManifestId, WriteId};
use node::message::Message;
use node::{Node, NodeConfig};
use store::checkpoint::{CheckpointMeta, write_checkpoint};
use store::identity::Identity;
use store::log::Batch;
use store::manifest::{CohortManifest, ManifestWrite};
use store::memory::{MemoryDisk, MemoryFile};
use store::{Config, Store};

use super::clocks::Clocks;
use super::events::Happening;
use super::{MILLISECOND, Options, SECOND, TrueTime, World};

/// Counts the processes of a machine.
pub(crate) type Generation = u64;

/// The log writes its last batch's identity again after being idle for so long (guarantee 7).
const ECHO_AFTER: TrueTime = 10 * MILLISECOND;

/// The steps of writing a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManifestStep {
    First,
    Second,
}

/// A machine: it keeps its disk and clocks through the lives of its processes.
pub(crate) struct Machine {
    pub(crate) member: Member,
    pub(crate) disk: MemoryDisk,
    pub(crate) clocks: Clocks,
    pub(crate) generation: Generation,
    pub(crate) process: Option<Process>,
    /// The process stands still until it is resumed; what arrives meanwhile waits, with the clocks as of its arrival.
    pub(crate) paused: bool,
    held: Vec<(Now, Happening)>,
    /// The clocks as they were read before a standstill that struck between the reading and the step.
    stale: Option<Now>,
    /// What was held is handled as of its arrival: the driver had read the clocks then, and no earlier (guarantee 2).
    goes_by_arrival: bool,
    last_counters: node::Counters,
}

/// A process.
pub(crate) struct Process {
    pub(crate) node: Node,
    store: Store<MemoryDisk>,
    boots: BTreeMap<NodeId, Boot>,
    parked: Vec<(Durable, NodeId, Message, Option<Monotonic>)>,
    forced: Durable,
    batch: Option<(Batch, MemoryFile)>,
    batches: u64,
    manifests: VecDeque<(ManifestId, ManifestWrite<MemoryFile>)>,
    timer: u64,
    /// Actions that a stall has held up.
    stalled: Vec<Action>,
}

impl Process {
    pub(crate) fn boot(&self) -> Boot {
        self.store.boot()
    }

    pub(crate) fn known_boot(&self, node: NodeId) -> Boot {
        self.boots.get(&node).copied().unwrap_or_default()
    }

    /// The segment and the offset in it where the log ends; none while its last batch isn't named yet, or another is
    /// being written: damage to that one can't be told from a torn write, and is outside of what is promised (guarantee 7).
    pub(crate) fn log_end(&self) -> Option<(u64, u64)> {
        let log = self.store.log();
        if self.batch.is_some() || !log.is_named() {
            return None;
        }
        let segment_bytes = self.store.manifest().segment_bytes;
        Some((log.tail().segment(segment_bytes), log.tail().offset(segment_bytes)))
    }

    fn is_forced(&self, durable: Durable) -> bool {
        durable.log <= self.forced.log && durable.manifest <= self.forced.manifest
    }
}

fn store_config(options: &Options) -> Config {
    Config { segment_bytes: options.segment_bytes, keep_bytes: options.keep_bytes, segments_ahead: 1 }
}

fn members(nodes: u32) -> Vec<Member> {
    (1..=nodes).map(|node| Member { node: NodeId(node), incarnation: incarnation(node) }).collect()
}

/// What a node's disk is numbered with at first.
fn incarnation(node: u32) -> Incarnation {
    Incarnation(u64::from(node) * 17)
}

fn node_config(options: &Options, seed: u64) -> NodeConfig {
    let mut config = NodeConfig {
        addresses: members(options.nodes).into_iter().map(|member| (member, String::new(), String::new())).collect(),
        seed,
        checkpoint_log_bytes: options.checkpoint_log_bytes,
        session_lifetime: options.session_lifetime,
        housekeeping: base::Duration::from_millis(500),
        retention: base::Duration::from_millis(2_000),
        ..NodeConfig::default()
    };
    config.limits.memory_log_bytes = options.memory_log_bytes;
    config.limits.propose_bytes = options.propose_bytes;
    config.timing.election_jitter = options.election_jitter;
    config
}

impl Machine {
    pub(crate) fn format(node: NodeId, options: &Options, random: &mut SplitMix64) -> Self {
        let members = members(options.nodes);
        let member = members[node.0 as usize - 1];
        let disk = MemoryDisk::new();
        let identity = Identity { universe: UniverseId(7), node, incarnation: member.incarnation, members };
        store::format(&disk, &identity, &store_config(options)).expect("an empty disk can be formatted");
        Self {
            member,
            disk,
            clocks: Clocks::draw(options, random),
            generation: 0,
            process: None,
            paused: false,
            held: Vec::new(),
            stale: None,
            goes_by_arrival: false,
            last_counters: node::Counters::default(),
        }
    }

    /// Puts an empty disk under the old name: another incarnation.
    pub(crate) fn blank(&mut self, options: &Options) {
        let node = self.member.node;
        self.member.incarnation = Incarnation(self.member.incarnation.0 + 1_000);
        self.disk = MemoryDisk::new();
        let members = members(options.nodes);
        let identity = Identity { universe: UniverseId(7), node, incarnation: self.member.incarnation, members };
        store::format(&self.disk, &identity, &store_config(options)).expect("an empty disk can be formatted");
    }

    /// Whether its disk is not the one that the universe was made with.
    pub(crate) fn is_foreign(&self) -> bool {
        self.member.incarnation != incarnation(self.member.node.0)
    }

    fn hold(&mut self, now: TrueTime, happening: Happening) {
        self.held.push((self.clocks.now(now), happening));
    }

    fn is_live(&self, generation: Generation) -> bool {
        self.process.is_some() && self.generation == generation
    }
}

impl World {
    /// Starts the process of a machine, if it has none.
    pub(crate) fn start(&mut self, id: NodeId) {
        let Some(machine) = self.machines.get_mut(&id) else { return };
        if machine.process.is_some() {
            return;
        }
        machine.generation += 1;
        let seed = u64::from(id.0) ^ machine.generation << 8 ^ self.random.draw();
        let opened = store::open(machine.disk.clone(), store_config(&self.options));
        let (store, recovered) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.start_failed(id, &error.to_string()),
        };
        let damaged = recovered.damage.is_some();
        let torn = recovered.torn_bytes > 0;
        let doubtful = recovered.cohorts.values().any(|cohort| cohort.doubtful);
        let now = machine.clocks.now(self.now);
        let mut actions = Vec::new();
        let node = Node::new(node_config(&self.options, seed), &recovered, now, &mut actions);
        let node = match node {
            Ok(node) => node,
            Err(error) => return self.violate(&format!("node {id} can't start: {error}")),
        };
        machine.last_counters = node::Counters::default();
        machine.process = Some(Process {
            node,
            store,
            boots: BTreeMap::new(),
            parked: Vec::new(),
            forced: Durable::default(),
            batch: None,
            batches: 0,
            manifests: VecDeque::new(),
            timer: 0,
            stalled: Vec::new(),
        });
        self.count("starts");
        if torn {
            self.count("torn ends cut");
        }
        if damaged {
            self.count("damaged logs");
        }
        if doubtful {
            self.count("doubtful starts");
        }
        let peers: Vec<NodeId> = self.machines.keys().copied().filter(|peer| *peer != id).collect();
        peers.into_iter().for_each(|peer| self.hello(id, peer));
        self.carry_out(id, actions);
    }

    fn start_failed(&mut self, id: NodeId, error: &str) {
        let Some(machine) = self.machines.get_mut(&id) else { return };
        if machine.disk.has_crashed() || self.options.faults.force_error > 0 {
            machine.disk.crash(&mut self.random);
            self.count("crashes during recovery");
            let again = self.now + 50 * MILLISECOND + self.random.below(SECOND);
            self.queue.put(again, Happening::Start { node: id });
            return;
        }
        self.violate(&format!("node {id} can't open its disk: {error}"));
    }

    /// The process ends. With power loss, so does what was not forced.
    pub(crate) fn end(&mut self, id: NodeId, power: bool) {
        let Some(machine) = self.machines.get_mut(&id) else { return };
        machine.process = None;
        machine.paused = false;
        machine.stale = None;
        machine.held.clear();
        if power {
            machine.disk.crash(&mut self.random);
        } else {
            machine.disk.kill();
        }
        self.clients_lose(id);
    }

    pub(crate) fn happen(&mut self, happening: Happening) {
        if let Some((node, generation)) = owner(&happening) {
            let Some(machine) = self.machines.get_mut(&node) else { return };
            if !machine.is_live(generation) {
                return;
            }
            if machine.paused && !matches!(happening, Happening::Resume { .. }) {
                machine.hold(self.now, happening);
                return;
            }
        }
        match happening {
            Happening::Start { node } => self.start(node),
            Happening::Deliver(envelope) => self.deliver(*envelope),
            Happening::Timer { node, number, .. } => self.timer(node, number),
            Happening::LogForced { node, .. } => self.log_forced(node),
            Happening::Echo { node, batches, .. } => self.echo(node, batches),
            Happening::Manifest { node, step, .. } => self.manifest_step(node, step),
            Happening::Checkpoint { node, cohort, lsn, bytes, .. } => {
                self.step(node, Event::CheckpointWritten { cohort, lsn, bytes });
            }
            Happening::LogRead { node, id, entries, .. } => self.step(node, Event::LogRead { id, entries }),
            Happening::Segment { node, job, .. } => {
                if let Some(process) = self.process(node) {
                    process.store.segment_done(job);
                }
                self.begin_io(node);
            }
            Happening::Request { node, id, deadline, request, .. } => {
                self.step(node, Event::Request { id, deadline, request: *request });
            }
            Happening::Resume { node, .. } => self.resume(node),
            Happening::Client { client } => self.client_acts(client),
            Happening::ClientPatience { client, request } => self.client_gives_up(client, request),
            Happening::PowerLoss { node } => self.power_loss(node),
            Happening::Rot => self.rot(),
            Happening::Fault => self.fault(),
            Happening::Rejoin { number } => self.rejoin(number),
        }
    }

    pub(crate) fn process(&mut self, node: NodeId) -> Option<&mut Process> {
        self.machines.get_mut(&node).and_then(|machine| machine.process.as_mut())
    }

    fn deliver(&mut self, envelope: super::network::Envelope) {
        let id = envelope.to;
        let Some(machine) = self.machines.get_mut(&id) else { return };
        if machine.paused {
            machine.hold(self.now, Happening::Deliver(Box::new(envelope)));
            return;
        }
        let Some(process) = machine.process.as_mut() else { return };
        let from = envelope.from.node;
        let known = process.known_boot(from);
        let meant_for_another = envelope.to_boot != Boot(0) && envelope.to_boot != process.boot();
        if !envelope.from.is_among(process.node.members()) {
            self.count("blank disks refused");
            return;
        }
        if envelope.from_boot < known {
            return;
        }
        if envelope.from_boot > known {
            process.boots.insert(from, envelope.from_boot);
            self.step(id, Event::PeerStarted { from, boot: envelope.from_boot });
        }
        if meant_for_another {
            return self.hello(id, from);
        }
        if envelope.bytes.is_empty() {
            return;
        }
        match Message::decode(envelope.bytes) {
            Ok(message) => self.step(id, Event::Message { from, boot: envelope.from_boot, message }),
            Err(error) => self.violate(&format!("a message of node {from} can't be decoded: {error}")),
        }
    }

    fn timer(&mut self, id: NodeId, number: u64) {
        if self.process(id).is_some_and(|process| process.timer == number) {
            self.step(id, Event::Timer);
        }
    }

    /// Hands an event to a node and carries out what comes of it, perhaps after a stall.
    pub(crate) fn step(&mut self, id: NodeId, event: Event) {
        let Some(machine) = self.machines.get_mut(&id) else { return };
        let now = machine.stale.unwrap_or_else(|| machine.clocks.now(self.now));
        let Some(process) = machine.process.as_mut() else { return };
        let mut actions = Vec::new();
        process.node.step(now, event, &mut actions);
        process.node.settle(now, &mut actions);
        let answers = actions.iter().any(|action| matches!(action, Action::Reply { outcome: Ok(_), .. }));
        let chance = if answers { 20 * self.options.stall } else { self.options.stall };
        if !self.healed && self.random.chance(chance) {
            process.stalled = actions;
            self.count("stalls");
            let span = 10 * MILLISECOND + self.random.below(2 * SECOND);
            self.pause(id, span);
            return;
        }
        self.carry_out(id, actions);
    }

    pub(crate) fn pause(&mut self, id: NodeId, span: TrueTime) {
        let Some(machine) = self.machines.get_mut(&id) else { return };
        if machine.process.is_none() || machine.paused {
            return;
        }
        machine.paused = true;
        machine.clocks.suspended(span);
        machine.goes_by_arrival = self.random.below(2) == 0;
        let generation = machine.generation;
        self.queue.put(self.now + span, Happening::Resume { node: id, generation });
    }

    fn resume(&mut self, id: NodeId) {
        let Some(machine) = self.machines.get_mut(&id) else { return };
        machine.paused = false;
        let held = std::mem::take(&mut machine.held);
        let goes_by_arrival = machine.goes_by_arrival;
        let stalled = machine.process.as_mut().map(|process| std::mem::take(&mut process.stalled)).unwrap_or_default();
        self.carry_out(id, stalled);
        for (arrived, happening) in held {
            if let Some(machine) = self.machines.get_mut(&id) {
                machine.stale = goes_by_arrival.then_some(arrived);
            }
            self.happen(happening);
        }
        if let Some(machine) = self.machines.get_mut(&id) {
            machine.stale = None;
        }
    }

    /// Carries actions out in their order.
    fn carry_out(&mut self, id: NodeId, actions: Vec<Action>) {
        for action in actions {
            self.act(id, action);
            if self.process(id).is_none() {
                return;
            }
        }
        self.check_node(id);
        self.begin_io(id);
    }

    fn act(&mut self, id: NodeId, action: Action) {
        match action {
            Action::Append { write, record, force } => {
                let Some(process) = self.process(id) else { return };
                if let Err(error) = process.store.append(write.0, record, force) {
                    self.violate(&format!("node {id} can't append: {error}"));
                }
            }
            Action::WriteManifest { manifest, cohorts, doubt_unknown } => {
                self.begin_manifest(id, manifest, cohorts, doubt_unknown);
            }
            Action::Send { to, message, after, valid_until } => {
                let Some(process) = self.process(id) else { return };
                if process.is_forced(after) {
                    self.send_valid(id, to, &message, valid_until);
                } else {
                    process.parked.push((after, to, message, valid_until));
                }
            }
            Action::Reply { to, outcome, valid_until } => {
                if self.is_valid(id, valid_until) {
                    self.client_answered(to, outcome);
                } else {
                    self.step(id, Event::AnswerExpired { answer: Answer::Door(to) });
                }
            }
            Action::SetTimer { at } => self.set_timer(id, at),
            Action::WriteCheckpoint { cohort, lsn, timestamp, state } => {
                self.write_checkpoint(id, CheckpointMeta { cohort, lsn, timestamp }, &state);
            }
            Action::ReadLog { id: read, cohort, from, bytes } => {
                let Some(process) = self.process(id) else { return };
                let plan = process.store.plan_read(cohort, from, bytes);
                let entries = plan.and_then(|plan| plan.execute(process.store.files()).ok().flatten());
                let generation = self.generation(id);
                let at = self.now + self.random.below(5 * MILLISECOND);
                self.queue.put(at, Happening::LogRead { node: id, generation, id: read, entries });
            }
            Action::Stopped => {
                self.count("clean stops");
                self.end(id, false);
                self.restart_later(id);
            }
            Action::Halt { reason } => self.violate(&format!("node {id} halts: {reason}")),
        }
    }

    pub(crate) fn restart_later(&mut self, id: NodeId) {
        let again = self.now + 10 * MILLISECOND + self.random.below(3 * SECOND);
        self.queue.put(again, Happening::Start { node: id });
    }

    fn generation(&self, id: NodeId) -> Generation {
        self.machines.get(&id).map_or(0, |machine| machine.generation)
    }

    fn is_valid(&self, id: NodeId, until: Option<Monotonic>) -> bool {
        let shown = self.machines.get(&id).map(|machine| machine.clocks.monotonic(self.now));
        until.is_none_or(|until| shown.is_some_and(|shown| shown <= until))
    }

    fn send_valid(&mut self, id: NodeId, to: NodeId, message: &Message, valid_until: Option<Monotonic>) {
        if self.is_valid(id, valid_until) {
            self.send(id, to, message);
        } else if let Message::Answer { request, .. } = message {
            let answer = Answer::Forwarded { node: to, request: *request };
            self.step(id, Event::AnswerExpired { answer });
        }
    }

    fn set_timer(&mut self, id: NodeId, at: Monotonic) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else { return };
        let generation = machine.generation;
        let Some(process) = machine.process.as_mut() else { return };
        process.timer += 1;
        let number = process.timer;
        if at != Monotonic::NEVER {
            let time = machine.clocks.true_time(at, now);
            self.queue.put(time, Happening::Timer { node: id, generation, number });
        }
    }

    /// Hands the log's next batch to the disk if it is idle, and has the next segment prepared.
    fn begin_io(&mut self, id: NodeId) {
        let generation = self.generation(id);
        let now = self.now;
        let force = now + 50_000 + self.random.below(self.options.force_time);
        let Some(process) = self.process(id) else { return };
        let job = process.store.segment_job();
        let mut failed = false;
        if let Some(job) = job {
            failed |= job.execute(process.store.files()).is_err();
        }
        let batch = if process.batch.is_none() { process.store.next_batch() } else { None };
        let writes = batch.is_some();
        if let Some(batch) = batch {
            failed |= !process.write(batch);
        }
        if failed {
            return self.disk_failed(id);
        }
        if let Some(job) = job {
            if job.recycles() {
                self.count("segments reused");
            }
            self.queue.put(now + MILLISECOND, Happening::Segment { node: id, generation, job });
        }
        if writes {
            self.queue.put(force, Happening::LogForced { node: id, generation });
        }
    }

    fn log_forced(&mut self, id: NodeId) {
        let generation = self.generation(id);
        let now = self.now;
        let Some(process) = self.process(id) else { return };
        let Some((_, file)) = process.batch.take() else { return };
        let mut forced = store::files::File::sync(&file).is_ok();
        if !forced && planted(Bug::ForceRetried) {
            forced = store::files::File::sync(&file).is_ok();
        }
        if !forced && !planted(Bug::CompletionAfterError) {
            return self.disk_failed(id);
        }
        let through = process.store.forced();
        process.forced.log = WriteId(through);
        let batches = process.batches;
        self.count("forces of the log");
        self.queue.put(now + ECHO_AFTER, Happening::Echo { node: id, generation, batches });
        self.release_parked(id);
        self.step(id, Event::LogForced { through: WriteId(through) });
    }

    fn echo(&mut self, id: NodeId, batches: u64) {
        let generation = self.generation(id);
        let force = self.now + 50_000 + self.random.below(self.options.force_time);
        let Some(process) = self.process(id) else { return };
        if process.batches != batches || process.batch.is_some() {
            return;
        }
        let Some(batch) = process.store.echo() else { return };
        if process.write(batch) {
            self.count("echoes");
            self.queue.put(force, Happening::LogForced { node: id, generation });
        } else {
            self.disk_failed(id);
        }
    }

    /// An error from the disk ends the process (guarantee 25).
    fn disk_failed(&mut self, id: NodeId) {
        self.count("disk failures");
        self.end(id, true);
        self.restart_later(id);
    }

    fn begin_manifest(
        &mut self,
        id: NodeId,
        manifest: ManifestId,
        cohorts: BTreeMap<CohortId, CohortManifest>,
        doubt_unknown: bool,
    ) {
        let Some(process) = self.process(id) else { return };
        let before = &process.store.manifest().cohorts;
        let promises = cohorts.iter().any(|(id, cohort)| before.get(id).is_none_or(|b| b.promised != cohort.promised));
        let write = process.store.begin_manifest(cohorts, doubt_unknown);
        process.manifests.push_back((manifest, write));
        if process.manifests.len() == 1 {
            self.manifest_later(id, ManifestStep::First);
        }
        if promises && !self.healed && self.random.chance(self.options.crash_at_manifest) {
            let span = self.random.below(3 * self.options.force_time);
            self.queue.put(self.now + span, Happening::PowerLoss { node: id });
        }
    }

    fn manifest_later(&mut self, id: NodeId, step: ManifestStep) {
        let generation = self.generation(id);
        let at = self.now + 50_000 + self.random.below(self.options.force_time);
        self.queue.put(at, Happening::Manifest { node: id, generation, step });
    }

    fn manifest_step(&mut self, id: NodeId, step: ManifestStep) {
        let early = planted(Bug::PromiseInOnePlace);
        let Some(process) = self.process(id) else { return };
        let Some((manifest, write)) = process.manifests.front().cloned() else { return };
        let place = usize::from(step == ManifestStep::Second);
        let mut failed = write.write_place(place).is_err();
        if step == ManifestStep::Second {
            failed |= write.remove_superseded(process.store.files()).is_err();
        }
        if failed {
            return self.disk_failed(id);
        }
        if step == ManifestStep::First {
            self.manifest_later(id, ManifestStep::Second);
        } else {
            process.store.finish_manifest(&write);
            process.manifests.pop_front();
            if !process.manifests.is_empty() {
                self.manifest_later(id, ManifestStep::First);
            }
        }
        if early == (step == ManifestStep::First) {
            self.manifest_forced(id, manifest);
        }
    }

    fn manifest_forced(&mut self, id: NodeId, manifest: ManifestId) {
        let Some(process) = self.process(id) else { return };
        process.forced.manifest = manifest;
        self.release_parked(id);
        self.step(id, Event::ManifestForced { through: manifest });
    }

    fn release_parked(&mut self, id: NodeId) {
        let Some(process) = self.process(id) else { return };
        let parked = std::mem::take(&mut process.parked);
        let forced = process.forced;
        let (free, parked) =
            parked.into_iter().partition(|(after, ..)| after.log <= forced.log && after.manifest <= forced.manifest);
        process.parked = parked;
        let free: Vec<(Durable, NodeId, Message, Option<Monotonic>)> = free;
        for (_, to, message, valid_until) in free {
            self.send_valid(id, to, &message, valid_until);
        }
    }

    fn write_checkpoint(&mut self, id: NodeId, meta: CheckpointMeta, state: &tablets::Snapshot) {
        let generation = self.generation(id);
        let at = self.now + MILLISECOND + self.random.below(50 * MILLISECOND);
        let Some(process) = self.process(id) else { return };
        let owner = process.store.owner();
        let (cohort, lsn): (CohortId, Lsn) = (meta.cohort, meta.lsn);
        match write_checkpoint(process.store.files(), &owner, &meta, state.chunks()) {
            Ok(bytes) => {
                self.queue.put(at, Happening::Checkpoint { node: id, generation, cohort, lsn, bytes });
            }
            Err(_) => self.disk_failed(id),
        }
    }

    /// Adds what a node counted since it was last asked.
    pub(crate) fn take_counters(&mut self, id: NodeId) {
        let Some(machine) = self.machines.get_mut(&id) else { return };
        let Some(process) = machine.process.as_ref() else { return };
        let new = process.node.counters();
        let old = std::mem::replace(&mut machine.last_counters, new);
        let grown = [
            ("takeovers", new.takeovers - old.takeovers),
            ("truncations", new.truncations - old.truncations),
            ("catch-ups from memory", new.memory_catch_ups - old.memory_catch_ups),
            ("catch-ups from the log", new.log_catch_ups - old.log_catch_ups),
            ("catch-ups by whole state", new.state_catch_ups - old.state_catch_ups),
            ("checkpoints", new.checkpoints - old.checkpoints),
            ("lease expiries", new.lease_expiries - old.lease_expiries),
            ("doubts ended", new.doubts_ended - old.doubts_ended),
            ("sessions expired", new.sessions_expired - old.sessions_expired),
        ];
        for (what, by) in grown {
            if by > 0 {
                *self.counters.entry(what).or_default() += by;
            }
        }
    }
}

impl Process {
    fn write(&mut self, batch: Batch) -> bool {
        let Ok(file) = self.store.batch_file(batch.segment) else { return false };
        if store::files::File::write_at(&file, batch.offset, &batch.bytes).is_err() {
            return false;
        }
        self.batches += 1;
        self.batch = Some((batch, file));
        true
    }
}

/// The process that a happening belongs to.
fn owner(happening: &Happening) -> Option<(NodeId, Generation)> {
    match happening {
        Happening::Timer { node, generation, .. }
        | Happening::LogForced { node, generation }
        | Happening::Echo { node, generation, .. }
        | Happening::Manifest { node, generation, .. }
        | Happening::Checkpoint { node, generation, .. }
        | Happening::LogRead { node, generation, .. }
        | Happening::Segment { node, generation, .. }
        | Happening::Request { node, generation, .. }
        | Happening::Resume { node, generation } => Some((*node, *generation)),
        _ => None,
    }
}
