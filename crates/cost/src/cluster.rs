//! Three nodes on one thread: the driver of [`node::contract`] with as little of its own as possible, because the
//! count should be that of the shipped code.
//!
//! The disks are in memory, and messages between nodes are encoded and decoded. Every event takes the same virtual
//! time. Work completes in a fixed order: timers, then messages, then completions, then forces. So a force covers the
//! records of all messages that are on their way, and the same requests always take the same steps.
//!
//! It has no faults and no lagging replicas, and stops with a panic where a real driver would have to handle one.
//! Framing is not part of it: it belongs to the binary's sockets.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use base::codec::Wire as _;
use base::{Boot, ClusterId, CohortId, Duration, Incarnation, Member, Monotonic, NodeId, Now, Timestamp};
use bytes::Bytes;
use catalog::{CatalogCommand, CatalogRequest, TableOptions};
use node::contract::{Action, Durable, Event, RequestId, WriteId};
use node::message::Message;
use node::request::{Outcome, Request, Response};
use node::{ClockSource, LocalRead, Node, NodeConfig, ReadView, Replays, Views};
use state_machine::storage::{Job, JobStep, Outputs};
use store::Store;
use store::checkpoint::{CheckpointMeta, write_checkpoint};
use store::identity::Identity;
use store::log::Batch;
use store::memory::{MemoryDisk, MemoryFile};
use store::sstable::Io;

/// The number of nodes.
const NODES: u32 = 3;
/// Virtual time of an event.
const STEP: Duration = Duration::from_micros(10);
/// The wall clocks' reading at the start, in nanoseconds since 1970.
const WALL_START: i64 = 1_700_000_000_000_000_000;
/// The bound on the error of the wall clocks. It is so small that no commit waits for it.
const UNCERTAINTY: Duration = Duration::from_micros(1);
/// Time after which the last batch of the log is named, and records are forced that may wait, as in the binary.
const ECHO_AFTER: Duration = Duration::from_millis(10);
const DEFERRED_FORCE_DELAY: Duration = Duration::from_millis(100);
/// The deadline of a request.
const DEADLINE: Duration = Duration::from_millis(10_000);
/// Small, because new segments are zeroed. The log of a measurement fits into one.
const SEGMENT_BYTES: u64 = 8 << 20;

/// A cluster, and its messages in transit.
#[derive(Debug)]
pub struct Cluster {
    hosts: Vec<Host>,
    now: Monotonic,
    outgoing: Outgoing,
    actions: Vec<Action>,
    requests: u64,
}

/// What leaves a node.
#[derive(Debug, Default)]
struct Outgoing {
    /// Encoded messages between nodes, in the order in which they were sent.
    messages: VecDeque<Envelope>,
    replies: Vec<(RequestId, Outcome)>,
}

#[derive(Debug)]
struct Envelope {
    from: usize,
    to: usize,
    bytes: Bytes,
}

/// The states that a node has published for its endpoints.
#[derive(Debug, Default)]
struct Published(BTreeMap<CohortId, Arc<ReadView>>);

impl Views for Published {
    fn view(&self, cohort: CohortId) -> Option<Arc<ReadView>> {
        self.0.get(&cohort).cloned()
    }
}

/// A message that waits for a force.
#[derive(Debug)]
struct Parcel {
    after: Durable,
    to: NodeId,
    message: Message,
    valid_until: Option<Monotonic>,
}

/// A node with its disk.
#[derive(Debug)]
struct Host {
    member: Member,
    boot: Boot,
    node: Node,
    store: Store<MemoryDisk>,
    published: Published,
    parked: Vec<Parcel>,
    forced: Durable,
    batch: Option<(Batch, MemoryFile)>,
    /// Completed work that the node is notified of.
    completed: VecDeque<Event>,
    timer: Monotonic,
    echo_at: Monotonic,
    deferred_force_at: Monotonic,
}

fn members() -> Vec<Member> {
    (1..=NODES).map(|node| Member { node: NodeId(node), incarnation: Incarnation(u64::from(node)) }).collect()
}

fn index(node: NodeId) -> usize {
    node.0 as usize - 1
}

fn clocks(now: Monotonic) -> Now {
    let wall = Timestamp(WALL_START + now.0.cast_signed());
    Now { monotonic: now, wall, uncertainty: Some(UNCERTAINTY) }
}

impl Default for Cluster {
    fn default() -> Self {
        Self::start()
    }
}

impl Cluster {
    /// Formats the disks, and starts the nodes.
    ///
    /// # Panics
    /// When a node does not start.
    #[must_use]
    pub fn start() -> Self {
        let now = Monotonic(1);
        let mut cluster =
            Self { hosts: Vec::new(), now, outgoing: Outgoing::default(), actions: Vec::new(), requests: 0 };
        let mut first = Vec::new();
        for member in members() {
            let (host, actions) = Host::start(member, now);
            cluster.hosts.push(host);
            first.push(actions);
        }
        for (at, actions) in first.into_iter().enumerate() {
            cluster.actions = actions;
            cluster.carry_out(at);
        }
        for at in 0..cluster.hosts.len() {
            for peer in (0..cluster.hosts.len()).filter(|peer| *peer != at) {
                let host = &cluster.hosts[peer];
                let (from, start) = (host.member, host.store.starts().newest());
                cluster.step(at, Event::PeerStarted { from, start });
            }
        }
        cluster.pass(Duration::from_millis(2_000));
        cluster
    }

    /// The clock of all nodes.
    #[must_use]
    pub fn now(&self) -> Now {
        clocks(self.now)
    }

    /// Creates a table, and returns the node that leads its first range.
    ///
    /// # Panics
    /// When it is not created.
    pub fn create_table(&mut self, name: &str, split_at: Vec<Bytes>, options: TableOptions) -> usize {
        let create = CatalogCommand::CreateTable { name: name.to_owned(), split_at, options };
        self.must(0, Request::Catalog(CatalogRequest::Change(create)));
        self.pass(Duration::from_millis(2_000));
        let leads = |host: &Host| host.node.replicas().any(|(id, it, _)| host.node.table_of(id) == name && it.leads());
        self.hosts.iter().position(leads).expect("a leader is elected")
    }

    /// Reads at an endpoint if it can, and otherwise submits the request to the node, and waits for the reply.
    ///
    /// # Panics
    /// When there is no reply.
    pub fn ask(&mut self, node: usize, request: Request) -> Outcome {
        if let Some(outcome) = self.read(node, &request) {
            return outcome;
        }
        let id = self.submit(node, self.now + DEADLINE, request);
        loop {
            if let Some(outcome) = self.take_reply(id) {
                return outcome;
            }
            if !self.turn() {
                self.idle_until(Monotonic::NEVER);
            }
        }
    }

    /// As [`Self::ask`], for a client: the request is validated, and must succeed.
    ///
    /// # Panics
    /// When the request fails.
    pub fn must(&mut self, node: usize, request: Request) -> Response {
        node::request::validate_client(&request).expect("a valid request");
        let outcome = self.ask(node, request);
        self.settle();
        outcome.expect("the request succeeds")
    }

    /// Ends an operation: the clock advances, and the messages that it left are delivered.
    pub fn settle(&mut self) {
        self.now = self.now + STEP;
        while self.turn() {}
    }

    /// Answers a read from the published state, as the servers do.
    fn read(&self, node: usize, request: &Request) -> Option<Outcome> {
        let views = &self.hosts[node].published;
        let read = LocalRead::begin(views, request)?;
        let outcome = read.evaluate()?;
        read.finish(outcome, views, self.now)
    }

    /// Submits a request to a node.
    pub fn submit(&mut self, node: usize, deadline: Monotonic, request: Request) -> RequestId {
        self.requests += 1;
        let id = RequestId(self.requests);
        self.step(node, Event::Request { id, deadline, request });
        id
    }

    /// Takes the reply to a request, if there is one.
    pub fn take_reply(&mut self, id: RequestId) -> Option<Outcome> {
        let replies = &mut self.outgoing.replies;
        let place = replies.iter().position(|(other, _)| *other == id)?;
        Some(replies.swap_remove(place).1)
    }

    /// Lets virtual time pass.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            if !self.turn() {
                self.idle_until(end);
            }
        }
    }

    /// Advances the clock to the next timer, at most to `end`.
    ///
    /// # Panics
    /// When nothing will ever happen.
    pub fn idle_until(&mut self, end: Monotonic) {
        let next = self.hosts.iter().map(Host::deadline).min().unwrap_or(end).min(end);
        assert!(next != Monotonic::NEVER, "all nodes wait for each other");
        self.now = self.now.max(next);
    }

    /// Handles one event; false if none is due.
    pub fn turn(&mut self) -> bool {
        let now = self.now;
        if let Some(at) = self.hosts.iter().position(|host| host.timer <= now) {
            self.hosts[at].timer = Monotonic::NEVER;
            self.step(at, Event::Timer);
        } else if let Some(Envelope { from, to, bytes }) = self.outgoing.messages.pop_front() {
            let message = Message::from_bytes(bytes).expect("a message of a node");
            let Host { member, boot, .. } = &self.hosts[from];
            let event = Event::Message { from: member.node, boot: *boot, message };
            self.step(to, event);
        } else if let Some(at) = self.hosts.iter().position(|host| !host.completed.is_empty()) {
            let event = self.hosts[at].completed.pop_front().expect("it is not empty");
            self.complete(at, event);
        } else if let Some(at) = self.hosts.iter().position(|host| host.batch.is_some()) {
            let through = self.hosts[at].force(now);
            self.complete(at, Event::LogForced { through });
        } else if let Some(at) = self.hosts.iter().position(|host| host.deadline() <= now) {
            self.hosts[at].begin_io(now);
        } else {
            return false;
        }
        true
    }

    fn complete(&mut self, at: usize, event: Event) {
        let host = &mut self.hosts[at];
        match event {
            Event::LogForced { through } => host.forced.log = through,
            Event::ManifestForced { through } => host.forced.manifest = through,
            _ => {}
        }
        host.release(self.now, &mut self.outgoing);
        self.step(at, event);
    }

    fn step(&mut self, at: usize, event: Event) {
        self.now = self.now + STEP;
        let now = clocks(self.now);
        let node = &mut self.hosts[at].node;
        node.step(now, event, &mut self.actions);
        node.settle(now, &mut self.actions);
        self.carry_out(at);
    }

    fn carry_out(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        for action in self.actions.drain(..) {
            host.carry_out(action, self.now, &mut self.outgoing);
        }
        host.begin_io(self.now);
    }
}

impl Host {
    fn start(member: Member, now: Monotonic) -> (Self, Vec<Action>) {
        let disk = MemoryDisk::new();
        let config = store::Config { segment_bytes: SEGMENT_BYTES, segments_ahead: 1, ..store::Config::default() };
        let (cluster, members) = (ClusterId(1), members());
        let Member { node, incarnation } = member;
        let addresses = members.iter().map(|member| (*member, String::new(), String::new())).collect();
        let identity = Identity { cluster, node, incarnation, members, hosts: Vec::new() };
        store::format(&disk, &identity, &config).expect("an empty disk can be formatted");
        let opened = store::open_into(disk.clone(), &disk, config, u64::from(node.0), Replays::default());
        let (store, mut recovered) = opened.expect("a formatted disk can be opened");
        let config = NodeConfig { addresses, seed: incarnation.0, clock: ClockSource::Host, ..NodeConfig::default() };
        let mut actions = Vec::new();
        let node = Node::new(config, &mut recovered, clocks(now), &mut actions).expect("a new node starts");
        let host = Self {
            member,
            boot: store.boot(),
            node,
            store,
            published: Published::default(),
            parked: Vec::new(),
            forced: Durable::default(),
            batch: None,
            completed: VecDeque::new(),
            timer: Monotonic::NEVER,
            echo_at: Monotonic::NEVER,
            deferred_force_at: Monotonic::NEVER,
        };
        (host, actions)
    }

    fn carry_out(&mut self, action: Action, now: Monotonic, out: &mut Outgoing) {
        match action {
            Action::Publish { cohort, view: Some(view) } => drop(self.published.0.insert(cohort, view)),
            Action::Publish { cohort, view: None } => drop(self.published.0.remove(&cohort)),
            Action::Append { write, record, force } => {
                self.store.append(write.0, record, force).expect("a record fits into a segment");
            }
            Action::Send { to, message, after, valid_until } => {
                let parcel = Parcel { after, to, message, valid_until };
                if self.is_forced(after) { self.send(parcel, now, out) } else { self.parked.push(parcel) }
            }
            Action::Reply { to, outcome, valid_until } => {
                assert!(valid_until.is_none_or(|until| now <= until), "a reply is sent at once");
                out.replies.push((to, outcome));
            }
            Action::SetTimer { at } => self.timer = at,
            Action::WriteManifest { manifest, cohorts, peers, doubt_unknown, gone, kept } => {
                self.store.let_go(gone);
                self.store.keep_logs(kept);
                self.store.know_peers(peers);
                let write = self.store.begin_manifest(cohorts, doubt_unknown);
                for place in 0..store::manifest::PLACES.len() {
                    write.write_place(place).expect("a working disk");
                }
                write.remove_superseded(self.store.files()).expect("a working disk");
                self.store.finish_manifest(&write);
                self.completed.push_back(Event::ManifestForced { through: manifest });
            }
            Action::WriteCheckpoint { cohort, checkpoint, lsn, timestamp, state, flush } => {
                let files = self.store.files();
                let flushed = flush.map(|job| outputs(job, files));
                let meta = CheckpointMeta { cohort, lsn, timestamp };
                let bytes =
                    write_checkpoint(files, &self.store.owner(), &meta, state.chunks()).expect("a working disk");
                self.completed.push_back(Event::CheckpointWritten { cohort, checkpoint, bytes, flushed });
            }
            Action::Compact { cohort, lineage, job } => {
                let outputs = Some(outputs(job, self.store.files()));
                self.completed.push_back(Event::Compacted { cohort, lineage, outputs });
            }
            Action::Evaluate { id, read } => {
                self.completed.push_back(Event::Evaluated { id, answer: read.answer(Io::Allowed) });
            }
            Action::RemoveFiles { files } => {
                store::shipping::remove(self.store.files(), &files).expect("a working disk");
            }
            Action::ReadLog { id, cohort, from, bytes } => {
                let plan = self.store.plan_read(cohort, from, bytes);
                let entries = plan.and_then(|plan| plan.execute(self.store.files()).expect("a working disk"));
                self.completed.push_back(Event::LogRead { id, entries });
            }
            Action::Know { .. } | Action::Warn { .. } | Action::Inform { .. } => {}
            Action::ReadFile { .. } | Action::WriteFile { .. } | Action::AdoptFiles { .. } => {
                panic!("a state is sent to a replica, but none lags in this cluster");
            }
            Action::Stopped => panic!("a node stopped"),
            Action::Halt { reason } => panic!("a node halted: {reason}"),
        }
    }

    fn is_forced(&self, durable: Durable) -> bool {
        durable.log <= self.forced.log && durable.manifest <= self.forced.manifest
    }

    /// Sends the messages that waited for a force.
    fn release(&mut self, now: Monotonic, out: &mut Outgoing) {
        let forced = self.forced;
        let is_free = |parcel: &mut Parcel| parcel.after.log <= forced.log && parcel.after.manifest <= forced.manifest;
        for parcel in self.parked.extract_if(.., is_free).collect::<Vec<_>>() {
            self.send(parcel, now, out);
        }
    }

    fn send(&mut self, parcel: Parcel, now: Monotonic, out: &mut Outgoing) {
        let Parcel { to, message, valid_until, .. } = parcel;
        assert!(valid_until.is_none_or(|until| now <= until), "a force is faster than a lease");
        let (from, to) = (index(self.member.node), index(to));
        out.messages.push_back(Envelope { from, to, bytes: message.to_bytes() });
    }

    /// When this host has work without another event.
    fn deadline(&self) -> Monotonic {
        let log = if self.store.is_idle() { self.echo_at.min(self.deferred_force_at) } else { Monotonic::NEVER };
        self.timer.min(log)
    }

    /// Builds the next batch of the log, unless one is in flight.
    fn begin_io(&mut self, now: Monotonic) {
        if let Some(job) = self.store.segment_job() {
            job.execute(self.store.files()).expect("a working disk");
            self.store.segment_done(job);
        }
        if !self.store.is_idle() {
            return;
        }
        if !self.store.has_time() {
            self.deferred_force_at = Monotonic::NEVER;
        } else if self.deferred_force_at == Monotonic::NEVER {
            self.deferred_force_at = now + DEFERRED_FORCE_DELAY;
        } else if self.deferred_force_at <= now {
            self.deferred_force_at = Monotonic::NEVER;
            self.store.hurry();
        }
        let mut batch = self.store.next_batch();
        if batch.is_none() && self.echo_at <= now {
            self.echo_at = Monotonic::NEVER;
            batch = self.store.echo();
        }
        self.batch = batch.map(|batch| {
            let file = self.store.batch_file(batch.segment).expect("a working disk");
            (batch, file)
        });
    }

    /// Writes and forces the batch. Returns the last record that is forced.
    fn force(&mut self, now: Monotonic) -> WriteId {
        let (batch, file) = self.batch.take().expect("a batch is in flight");
        batch.execute(&file).expect("a working disk");
        let through = self.store.forced();
        self.store.recycle(batch);
        self.echo_at = now + ECHO_AFTER;
        WriteId(through)
    }
}

/// Runs a job to its end.
fn outputs(mut job: Box<dyn Job>, files: &MemoryDisk) -> Outputs {
    loop {
        if let JobStep::Done(outputs) = job.step(files).expect("a working disk") {
            return outputs;
        }
    }
}
