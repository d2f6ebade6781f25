//! The process on a machine: the simulated driver of a node, which corresponds to the runtime in `loggos`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use base::codec::Wire as _;
use base::{CohortId, Member, Monotonic, NodeId, ProcessStart, SplitMix64, StartHistory};
use catalog::Standing;
use node::Node;
use node::contract::{Action, Durable, Event, ManifestId, ReplyDestination};
use node::message::Message;
use store::Store;
use store::checkpoint::CheckpointMeta;
use store::log::{Batch, SegmentJob};
use store::manifest::ManifestWrite;
use store::memory::{MemoryDisk, MemoryFile};

use super::endpoint::Published;
use super::events::{Generation, Happening};
use super::host::{KnownLog, node_config, store_config};
use super::work::{Work, Works};
use super::{MILLISECOND, SECOND, TrueTime, World};

/// The time after which a connection without acknowledgements is closed.
pub(super) const UNACKNOWLEDGED: TrueTime = 3 * SECOND;

pub(crate) struct Process {
    pub(crate) node: Node,
    pub(super) store: Store<MemoryDisk>,
    pub(super) starts: Arc<StartHistory>,
    /// The newest start of each peer that earlier processes have seen, and those that were reported to the node.
    pub(super) known: BTreeMap<NodeId, ProcessStart>,
    pub(super) reported: BTreeMap<NodeId, ProcessStart>,
    /// Peers that were reported to the node as disconnected.
    pub(super) lost_peers: BTreeSet<NodeId>,
    /// Members that have left, as reported by the node.
    pub(super) left: BTreeSet<NodeId>,
    pub(super) parked: Vec<(Durable, NodeId, Message, Option<Monotonic>)>,
    pub(super) forced: Durable,
    pub(super) batch: Option<(Batch, MemoryFile)>,
    pub(super) batches: u64,
    pub(super) manifests: VecDeque<(ManifestId, ManifestWrite<MemoryFile>)>,
    pub(super) works: Works,
    /// A segment that found no space on the disk.
    pub(super) unmade: Option<SegmentJob>,
    pub(super) wants_room: bool,
    /// A force of the records that may be forced later is scheduled.
    pub(super) will_hurry: bool,
    timer: u64,
    /// Actions held up by a stall.
    stalled: Vec<Action>,
}

impl Process {
    /// The newest start of a peer that this node has seen.
    pub(crate) fn seen(&self, peer: NodeId) -> Option<ProcessStart> {
        self.reported.get(&peer).or_else(|| self.known.get(&peer)).copied()
    }

    /// The segment and offset of the end of the log; `None` while its last batch is not yet named, or another is being
    /// written: damage to the last batch cannot be distinguished from a torn write, which is outside the guarantee
    /// (guarantee 7).
    pub(crate) fn log_end(&self) -> Option<(u64, u64)> {
        let log = self.store.log();
        if self.batch.is_some() || !log.is_named() {
            return None;
        }
        let segment_bytes = self.store.manifest().segment_bytes;
        Some((log.tail().segment(segment_bytes), log.tail().offset(segment_bytes)))
    }

    pub(super) fn is_forced(&self, durable: Durable) -> bool {
        durable.log <= self.forced.log && durable.manifest <= self.forced.manifest
    }
}

impl World {
    /// Starts the process of a machine, unless it is running.
    pub(crate) fn start(&mut self, id: NodeId) {
        let Some(machine) = self.hosts.get_mut(&id) else { return };
        if machine.process.is_some() || machine.is_gone || machine.is_rejected {
            return;
        }
        let before = machine.generation;
        self.endpoint_closed(id, before);
        let Some(machine) = self.hosts.get_mut(&id) else { return };
        machine.generation += 1;
        let seed = u64::from(id.0) ^ machine.generation << 8 ^ self.random.draw();
        machine.keep_copy(&self.options, &mut self.random);
        let opened = store::open_into(
            machine.disk.clone(),
            &machine.disk,
            store_config(&self.options),
            SplitMix64::new(seed).draw(),
            node::Replays::default(),
        );
        let (store, mut recovered) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.start_failed(id, &error.to_string()),
        };
        let is_foreign = machine.is_foreign() || machine.has_joined;
        let moves = self.options.faults.move_range + u64::from(self.options.leaves) + self.options.replace_after.0 > 0;
        let may_join = |cohort| is_foreign || moves && cohort != CohortId::CATALOG;
        if let Some(wrong) = machine.log.wrong_with(&recovered, store.log().tail(), machine.rot, may_join) {
            return self.violate(&format!("node {id}: {wrong} ({})", recovered.notes.join("; ")));
        }
        machine.log = KnownLog::at_start(store.log().tail());
        machine.rot.log_since_start = false;
        let damaged = recovered.damage.is_some();
        let torn = recovered.torn_bytes > 0;
        let doubtful = recovered.cohorts.values().any(|cohort| cohort.doubtful);
        let whole = recovered.cohorts.values().any(|cohort| cohort.whole);
        let now = machine.clocks.now(self.now);
        let mut actions = Vec::new();
        let node = Node::new(node_config(&self.options, seed), &mut recovered, now, &mut actions);
        let node = match node {
            Ok(node) => node,
            Err(error) => return self.violate(&format!("node {id} cannot start: {error}")),
        };
        let (starts, known) = (store.starts().clone(), recovered.peers);
        let forgetful = node.replicas().any(|(_, replica, _)| replica.forgetful());
        machine.last_counters = node::Counters::default();
        machine.process = Some(Process {
            node,
            store,
            starts: Arc::new(starts),
            known,
            reported: BTreeMap::new(),
            lost_peers: BTreeSet::new(),
            left: BTreeSet::new(),
            parked: Vec::new(),
            forced: Durable::default(),
            batch: None,
            batches: 0,
            manifests: VecDeque::new(),
            works: Works::default(),
            unmade: None,
            wants_room: false,
            will_hurry: false,
            timer: 0,
            stalled: Vec::new(),
        });
        self.count("starts");
        if torn {
            self.count("torn log ends truncated");
        }
        if damaged {
            self.count("damaged logs");
        }
        if doubtful {
            self.count("doubtful starts");
        }
        if whole {
            self.count("starts with intact logs");
        }
        if forgetful {
            self.count("forgetful starts");
        }
        let peers: Vec<NodeId> = self.hosts.keys().copied().filter(|peer| *peer != id).collect();
        peers.into_iter().for_each(|peer| self.hello(id, peer));
        self.introduce_others_to(id);
        self.start_endpoint(id);
        self.carry_out(id, actions);
        self.reread_at_started(id);
    }

    fn start_failed(&mut self, id: NodeId, error: &str) {
        let Some(machine) = self.hosts.get_mut(&id) else { return };
        if machine.disk.has_crashed() || machine.disk.is_bounded() || self.options.faults.force_error > 0 {
            machine.disk.crash(&mut self.random);
            self.losses.ended.insert(id);
            self.count("crashes during recovery");
            let again = self.now + 50 * MILLISECOND + self.random.below(SECOND);
            self.queue.put(again, Happening::Start { node: id });
            return;
        }
        self.violate(&format!("node {id} cannot open its disk: {error}"));
    }

    /// Ends the process and all its connections. A power loss also loses unforced writes.
    pub(crate) fn end(&mut self, id: NodeId, power: bool) {
        self.losses.ended.insert(id);
        self.end_machine(id, power);
        self.clients_lose(id);
    }

    fn end_machine(&mut self, id: NodeId, power: bool) {
        self.end_endpoint(id);
        let Some(machine) = self.hosts.get_mut(&id) else { return };
        machine.process = None;
        machine.paused = false;
        machine.stale = None;
        machine.held.clear();
        machine.published = Published::default();
        if power {
            machine.disk.crash(&mut self.random);
        } else {
            machine.disk.kill();
        }
        let after = if power { UNACKNOWLEDGED } else { MILLISECOND };
        let peers: Vec<NodeId> = self.hosts.keys().copied().filter(|peer| *peer != id).collect();
        peers.into_iter().for_each(|peer| self.lose_peer_later(peer, id, after));
    }

    /// A process closes its connection to a peer that acknowledges nothing, after this time.
    pub(super) fn lose_peer_later(&mut self, node: NodeId, peer: NodeId, after: TrueTime) {
        let generation = self.generation(node);
        self.queue.put(self.now + after, Happening::PeerLost { node, generation, peer });
    }

    fn peer_lost(&mut self, node: NodeId, peer: NodeId) {
        let is_running = self.hosts.get(&peer).is_some_and(|machine| machine.process.is_some());
        if is_running && !self.network.separates(node, peer) {
            return;
        }
        let Some(process) = self.process(node) else { return };
        if process.lost_peers.insert(peer) {
            self.count("peer connections lost");
            self.step(node, Event::PeerConnection { peer, is_open: false });
        }
    }

    pub(crate) fn happen(&mut self, happening: Happening) {
        if let Some((node, generation)) = happening.owner() {
            let Some(machine) = self.hosts.get_mut(&node) else { return };
            let is_local =
                matches!(happening, Happening::LocalRead { .. } | Happening::Request { is_at_endpoint: true, .. });
            let goes_on_after = is_local && machine.published.closing.is_some() && machine.generation == generation;
            if !(machine.is_live(generation) || goes_on_after) {
                return;
            }
            let goes_on = matches!(happening, Happening::Resume { .. }) || is_local && machine.endpoint_runs;
            if machine.paused && !goes_on {
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
            Happening::Hurry { node, .. } => self.hurry(node),
            Happening::ReplyExpired { node, destination, .. } => self.step(node, Event::ReplyExpired { destination }),
            Happening::PeerLost { node, peer, .. } => self.peer_lost(node, peer),
            Happening::Stop { node, .. } => self.step(node, Event::Stop),
            Happening::Manifest { node, step, .. } => self.manifest_step(node, step),
            Happening::Work { node, number, .. } => self.work(node, number),
            Happening::LogRead { node, id, entries, .. } => self.step(node, Event::LogRead { id, entries }),
            Happening::Segment { node, job, .. } => {
                if let Some(process) = self.process(node) {
                    process.store.segment_done(job);
                }
                self.begin_io(node);
            }
            Happening::Request { node, id, deadline, request, is_at_endpoint: true, .. } => {
                self.at_endpoint(node, id, deadline, request);
            }
            Happening::Request { node, id, deadline, request, .. } => {
                self.step(node, Event::Request { id, deadline, request: *request });
            }
            Happening::LocalRead { node, reading, .. } => self.local_read_ends(node, *reading),
            Happening::EndpointClosed { node, generation } => self.endpoint_closed(node, generation),
            Happening::Resume { node, .. } => self.resume(node),
            Happening::Client { client } => self.client_acts(client),
            Happening::ClientPatience { request } => self.bare_given_up(request),
            Happening::LinkMade { library, link } => self.link_made(library, link),
            Happening::LinkBroken { library, link } => self.link_broken(library, link),
            Happening::LibraryTimer { library, number } => self.library_timer(library, number),
            Happening::Errand { errand } => self.errand(errand),
            Happening::LogUser { user, call } => self.log_user(user, call),
            Happening::DiskClient { client, call } => self.disk_client(client, call),
            Happening::Translation { node, input, .. } => self.translate(node, *input),
            Happening::TransactionClient { client } => self.transaction_client(client),
            Happening::TransactionPatience { request } => self.transaction_given_up(request),
            Happening::ZooKeeperClient { client } => self.zookeeper_client(client),
            Happening::ZooKeeperFrame { client, connection, frame } => {
                self.zookeeper_frame(client, connection, frame.as_ref());
            }
            Happening::PowerLoss { node } => self.power_loss(node),
            Happening::Rot => self.rot(),
            Happening::MoveAgain { cohort } => self.move_again(cohort),
            Happening::Room { node } => self.make_room(node),
            Happening::RoomWanted { node, .. } => {
                if let Some(process) = self.process(node) {
                    process.wants_room = false;
                }
                self.begin_io(node);
            }
            Happening::Fault => self.fault(),
            Happening::Rejoin { number } => self.rejoin(number),
        }
    }

    pub(crate) fn process(&mut self, node: NodeId) -> Option<&mut Process> {
        self.hosts.get_mut(&node).and_then(|machine| machine.process.as_mut())
    }

    fn deliver(&mut self, envelope: super::network::Envelope) {
        let id = envelope.to;
        let Some(machine) = self.hosts.get_mut(&id) else { return };
        if machine.paused {
            machine.hold(self.now, Happening::Deliver(Box::new(envelope)));
            return;
        }
        let Some(process) = machine.process.as_mut() else { return };
        let from = envelope.from.node;
        let start = envelope.from_starts.newest();
        let meant_for_another = envelope.to_start.is_some_and(|to| to != process.starts.newest());
        if process.left.contains(&from) {
            self.count("messages of removed nodes");
            return;
        }
        let holder: Vec<Member> = process.node.members().iter().filter(|known| known.node == from).copied().collect();
        if !holder.is_empty() && !envelope.from.is_among(&holder) {
            self.count("blank disks refused");
            return;
        }
        if !machine.member.is_among(&[envelope.to_member]) {
            self.count("messages for lost disks");
            return;
        }
        if process.seen(from).is_some_and(|seen| envelope.from_starts.contradicts(seen)) {
            return self.reject(id, from, start);
        }
        if process.reported.get(&from).is_some_and(|reported| start.boot < reported.boot) {
            return;
        }
        if process.reported.insert(from, start) != Some(start) {
            let from = envelope.from;
            self.step(id, Event::PeerStarted { from, start });
            // The process may be paused by now.
            return self.deliver(envelope);
        }
        if process.lost_peers.remove(&from) {
            self.step(id, Event::PeerConnection { peer: from, is_open: true });
            return self.deliver(envelope);
        }
        if meant_for_another {
            return self.hello(id, from);
        }
        if envelope.bytes.is_empty() {
            return;
        }
        match Message::from_bytes(envelope.bytes) {
            Ok(message) => self.step(id, Event::Message { from, boot: start.boot, message }),
            Err(error) => self.violate(&format!("cannot decode a message of node {from}: {error}")),
        }
    }

    /// A node rejects a process if its disk contradicts the start that it has seen: the disk was rolled back, or the
    /// message is from an earlier process. A running process that receives the rejection ends permanently.
    fn reject(&mut self, id: NodeId, from: NodeId, start: ProcessStart) {
        let is_running = self.process(from).is_some_and(|process| process.starts.newest() == start);
        if !is_running {
            return;
        }
        self.step(id, Event::PeerRolledBack { peer: from });
        if self.network.separates(from, id) {
            return;
        }
        self.count("rolled-back disks rejected");
        if let Some(machine) = self.hosts.get_mut(&from) {
            machine.is_rejected = true;
        }
        self.end(from, false);
    }

    fn timer(&mut self, id: NodeId, number: u64) {
        if self.process(id).is_some_and(|process| process.timer == number) {
            self.step(id, Event::Timer);
        }
    }

    /// Passes an event to a node and executes the resulting actions, perhaps after a stall.
    pub(crate) fn step(&mut self, id: NodeId, event: Event) {
        let Some(machine) = self.hosts.get_mut(&id) else { return };
        let now = machine.stale.unwrap_or_else(|| machine.clocks.now(self.now));
        let Some(process) = machine.process.as_mut() else { return };
        let mut actions = Vec::new();
        process.node.step(now, event, &mut actions);
        process.node.settle(now, &mut actions);
        let answers = actions.iter().any(|action| matches!(action, Action::Reply { outcome: Ok(_), .. }));
        let chance = if answers { 20 * self.options.stall } else { self.options.stall };
        if !self.healed && self.random.chance(chance) {
            process.stalled = actions;
            return self.stall(id);
        }
        self.carry_out(id, actions);
    }

    fn may_stall(&mut self, id: NodeId) -> bool {
        let is_paused = self.hosts.get(&id).is_none_or(|machine| machine.paused);
        !self.healed && !is_paused && self.random.chance(20 * self.options.stall)
    }

    fn stall(&mut self, id: NodeId) {
        self.count("stalls");
        let span = 10 * MILLISECOND + self.random.below(2 * SECOND);
        self.pause(id, span);
    }

    pub(crate) fn pause(&mut self, id: NodeId, span: TrueTime) {
        let Some(machine) = self.hosts.get_mut(&id) else { return };
        if machine.process.is_none() || machine.paused {
            return;
        }
        machine.paused = true;
        machine.clocks.suspended(span);
        machine.goes_by_arrival = self.random.below(2) == 0;
        machine.endpoint_runs = self.random.below(2) == 0;
        let generation = machine.generation;
        self.queue.put(self.now + span, Happening::Resume { node: id, generation });
    }

    fn resume(&mut self, id: NodeId) {
        let Some(machine) = self.hosts.get_mut(&id) else { return };
        machine.paused = false;
        let held = std::mem::take(&mut machine.held);
        let goes_by_arrival = machine.goes_by_arrival;
        let stalled = machine.process.as_mut().map(|process| std::mem::take(&mut process.stalled)).unwrap_or_default();
        self.carry_out(id, stalled);
        for (arrived, happening) in held {
            if let Some(machine) = self.hosts.get_mut(&id) {
                machine.stale = goes_by_arrival.then_some(arrived);
            }
            self.happen(happening);
        }
        if let Some(machine) = self.hosts.get_mut(&id) {
            machine.stale = None;
        }
    }

    /// Executes actions in order. After a response is sent, the thread may pause before it continues.
    pub(super) fn carry_out(&mut self, id: NodeId, actions: Vec<Action>) {
        let mut actions = actions.into_iter();
        while let Some(action) = actions.next() {
            let answers = matches!(action, Action::Reply { outcome: Ok(_), .. });
            self.act(id, action);
            if self.process(id).is_none() {
                return;
            }
            if answers && self.may_stall(id) {
                if let Some(process) = self.process(id) {
                    process.stalled = actions.collect();
                }
                return self.stall(id);
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
                    self.violate(&format!("node {id} cannot append: {error}"));
                }
            }
            Action::Publish { cohort, view } => {
                if let Some(machine) = self.hosts.get_mut(&id) {
                    machine.published.publish(cohort, view);
                }
            }
            Action::WriteManifest { manifest, cohorts, peers, doubt_unknown, gone, kept } => {
                if let Some(process) = self.process(id) {
                    process.store.let_go(gone);
                    process.store.keep_logs(kept);
                    process.store.know_peers(peers);
                }
                self.begin_manifest(id, manifest, cohorts, doubt_unknown);
            }
            Action::Send { to, message, after, valid_until } => {
                self.count_proposed(id, to, &message);
                let Some(process) = self.process(id) else { return };
                if process.is_forced(after) {
                    self.send_valid(id, to, &message, valid_until);
                } else {
                    process.parked.push((after, to, message, valid_until));
                }
            }
            Action::Reply { to, outcome, valid_until } => {
                if self.is_valid(id, valid_until) {
                    self.request_answered(to, outcome);
                } else {
                    self.reply_expired(id, ReplyDestination::Client(to));
                }
            }
            Action::SetTimer { at } => self.set_timer(id, at),
            Action::WriteCheckpoint { cohort, checkpoint: number, lsn, timestamp, state, flush } => {
                let meta = CheckpointMeta { cohort, lsn, timestamp };
                self.begin_work(id, Work::Checkpoint { number, meta, state: *state, flush, flushed: None });
            }
            Action::Compact { cohort, lineage, job } => {
                self.begin_work(id, Work::Compaction { cohort, lineage, job });
            }
            Action::Evaluate { id: evaluation_id, read } => {
                self.begin_work(id, Work::Evaluation { id: evaluation_id, read: *read });
            }
            Action::ReadFile { id: read, file, offset, bytes, verify } => {
                self.begin_work(id, Work::ReadFile { id: read, file, offset, bytes, verify });
            }
            Action::WriteFile { file, offset, bytes } => {
                self.begin_work(id, Work::WriteFile { file, offset, bytes });
            }
            Action::AdoptFiles { cohort, arrival, adoption } => {
                self.begin_work(id, Work::AdoptFiles { cohort, arrival, adoption });
            }
            Action::RemoveFiles { files } => self.begin_work(id, Work::RemoveFiles { files }),
            Action::ReadLog { id: read, cohort, from, bytes } => {
                let Some(process) = self.process(id) else { return };
                let plan = process.store.plan_read(cohort, from, bytes);
                let entries = plan.and_then(|plan| plan.execute(process.store.files()).ok().flatten());
                let generation = self.generation(id);
                let at = self.now + self.random.below(5 * MILLISECOND);
                self.queue.put(at, Happening::LogRead { node: id, generation, id: read, entries });
            }
            Action::Warn { .. } => self.count("warnings"),
            Action::Inform { .. } => {}
            Action::Know { roster } => {
                let left = roster.iter().filter(|node| node.standing == Standing::Left).map(|node| node.member.node);
                if let Some(process) = self.process(id) {
                    process.left = left.collect();
                }
            }
            Action::Stopped => {
                self.count("clean stops");
                self.note_stop(id);
                let published = self.hosts.get(&id).map(|machine| machine.published.clone()).unwrap_or_default();
                self.end_machine(id, false);
                self.endpoint_closes(id, published);
                self.restart_later(id);
            }
            Action::Halt { reason } => self.violate(&format!("node {id} halts: {reason}")),
        }
    }

    pub(crate) fn restart_later(&mut self, id: NodeId) {
        let again = self.now + 10 * MILLISECOND + self.random.below(3 * SECOND);
        self.queue.put(again, Happening::Start { node: id });
    }

    pub(super) fn generation(&self, id: NodeId) -> Generation {
        self.hosts.get(&id).map_or(0, |machine| machine.generation)
    }

    fn is_valid(&self, id: NodeId, until: Option<Monotonic>) -> bool {
        let shown = self.hosts.get(&id).map(|machine| machine.clocks.monotonic(self.now));
        until.is_none_or(|until| shown.is_some_and(|shown| shown <= until))
    }

    pub(super) fn send_valid(&mut self, id: NodeId, to: NodeId, message: &Message, valid_until: Option<Monotonic>) {
        if self.is_valid(id, valid_until) {
            self.send(id, to, message);
        } else if let Message::Answer { request, .. } = message {
            self.reply_expired(id, ReplyDestination::Forwarded { node: to, request: *request });
        }
    }

    /// The machine is notified once its current actions are executed.
    fn reply_expired(&mut self, id: NodeId, destination: ReplyDestination) {
        let generation = self.generation(id);
        self.queue.put(self.now, Happening::ReplyExpired { node: id, generation, destination });
    }

    fn set_timer(&mut self, id: NodeId, at: Monotonic) {
        let now = self.now;
        let Some(machine) = self.hosts.get_mut(&id) else { return };
        let generation = machine.generation;
        let Some(process) = machine.process.as_mut() else { return };
        process.timer += 1;
        let number = process.timer;
        if at != Monotonic::NEVER {
            let time = machine.clocks.true_time(at, now);
            self.queue.put(time, Happening::Timer { node: id, generation, number });
        }
    }
}
