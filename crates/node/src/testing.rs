//! Test harness of this crate: a node with an immediate disk and a virtual clock.

use std::collections::{BTreeMap, BTreeSet};

use base::{
    Boot, ClusterId, CohortId, Duration, Entry, Incarnation, Lsn, Member, Monotonic, NodeId, Now, Record, Timestamp,
};
use bytes::Bytes;
use catalog::{CatalogCommand, NodeRecord, Standing, TableOptions};
use state_machine::StateMachine as _;
use state_machine::storage::{Job, JobStep, Outputs};
use store::Recovered;
use store::identity::{Identity, Owner};
use store::manifest::CohortManifest;
use store::memory::MemoryDisk;
use store::tree::{Config, Tablespace};

use crate::contract::{Action, Event, RequestId};
use crate::message::Message;
use crate::request::{Outcome, Request};
use crate::{Node, NodeConfig, Replays};
use tablets::Tablet;

/// A wall clock reading that passes validation, in nanoseconds since the epoch.
const WALL: i64 = 1_700_000_000_000_000_000;

/// A node, and its recorded actions.
pub(crate) struct Bench {
    pub(crate) node: Node,
    pub(crate) now: Now,
    pub(crate) sent: Vec<(NodeId, Message)>,
    pub(crate) answers: BTreeMap<RequestId, Outcome>,
    pub(crate) appended: Vec<Record>,
    /// The cohorts in each manifest, and those that it removes.
    pub(crate) manifests: Vec<(BTreeMap<CohortId, CohortManifest>, BTreeSet<CohortId>)>,
    pub(crate) writes_checkpoints: bool,
    /// The disk of its SSTables.
    pub(crate) disk: MemoryDisk,
    timer: Monotonic,
}

pub(crate) fn members(nodes: u32) -> Vec<Member> {
    (1..=nodes).map(|node| Member { node: NodeId(node), incarnation: Incarnation(7) }).collect()
}

/// The contents of that node's empty disk.
pub(crate) fn empty(node: u32, nodes: u32) -> Recovered {
    let members = members(nodes);
    let owner = Owner { cluster: ClusterId(1), node: NodeId(node), incarnation: Incarnation(7) };
    Recovered {
        tablespace: Tablespace::new(owner, Config::DEFAULT, 1 << 20, 1 << 20),
        bulks: BTreeMap::new(),
        identity: Identity {
            cluster: ClusterId(1),
            node: NodeId(node),
            incarnation: Incarnation(7),
            members,
            hosts: Vec::new(),
        },
        boot: Boot(1),
        peers: BTreeMap::new(),
        cohorts: BTreeMap::new(),
        doubt_unknown: false,
        records: Vec::new(),
        checkpoints: BTreeMap::new(),
        torn_bytes: 0,
        damage: None,
        notes: Vec::new(),
    }
}

/// Converts the log's records to the form that a start reads.
fn replayed(recovered: Recovered) -> Recovered<Replays> {
    recovered.map_records(|records, cohorts| {
        let mut replays = Replays::default();
        for record in records {
            let checkpoint = cohorts.get(&record.cohort).and_then(|cohort| cohort.checkpoint);
            let checkpoint = checkpoint.map_or(Lsn::ZERO, |at| at.lsn);
            store::LogSink::take(&mut replays, record, checkpoint);
        }
        replays
    })
}

impl Bench {
    pub(crate) fn start(recovered: Recovered) -> Self {
        let mut recovered = replayed(recovered);
        let now = Now { monotonic: Monotonic(1), wall: Timestamp(WALL), uncertainty: None };
        let addresses = recovered.identity.members.iter().map(|member| (*member, String::new(), String::new()));
        let config = NodeConfig { addresses: addresses.collect(), ..NodeConfig::default() };
        let mut actions = Vec::new();
        let node = Node::new(config, &mut recovered, now, &mut actions).expect("the node starts");
        let (sent, appended, answers) = (Vec::new(), Vec::new(), BTreeMap::new());
        let (manifests, writes_checkpoints) = (Vec::new(), false);
        let (disk, timer) = (MemoryDisk::new(), Monotonic::NEVER);
        store::files::Files::create_dir(&disk, store::sstable::DIRECTORY).expect("an empty disk");
        let mut bench = Self { node, now, sent, answers, appended, manifests, writes_checkpoints, disk, timer };
        bench.carry_out(actions);
        bench
    }

    pub(crate) fn step(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.node.step(self.now, event, &mut actions);
        self.node.settle(self.now, &mut actions);
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Append { write, record, .. } => {
                    self.appended.push(record);
                    self.step(Event::LogForced { through: write });
                }
                Action::WriteManifest { manifest, cohorts, gone, .. } => {
                    self.manifests.push((cohorts, gone));
                    self.step(Event::ManifestForced { through: manifest });
                }
                Action::WriteCheckpoint { cohort, checkpoint, flush, .. } if self.writes_checkpoints => {
                    let flushed = flush.map(|job| flushed(job, &self.disk));
                    self.step(Event::CheckpointWritten { cohort, checkpoint, bytes: 1, flushed });
                }
                Action::RemoveFiles { files } => {
                    store::shipping::remove(&self.disk, &files).expect("a working disk");
                }
                Action::Send { to, message, .. } => self.sent.push((to, message)),
                Action::Reply { to, outcome, .. } => drop(self.answers.insert(to, outcome)),
                Action::SetTimer { at } => self.timer = at,
                Action::Halt { reason } => panic!("the node halted: {reason}"),
                // Tests of this crate need no other actions.
                _ => {}
            }
        }
    }

    /// Advances the clock by `span` and fires the timer whenever it is due.
    pub(crate) fn pass(&mut self, span: Duration) {
        let end = self.now.monotonic + span;
        while self.timer <= end {
            let ahead = self.timer.since(self.now.monotonic);
            self.turn(ahead);
            self.timer = Monotonic::NEVER;
            self.step(Event::Timer);
        }
        self.turn(end.since(self.now.monotonic));
        // Changes made by the test take effect with the next event, of any kind.
        self.step(Event::Timer);
    }

    fn turn(&mut self, span: Duration) {
        self.now.monotonic = self.now.monotonic + span;
        self.now.wall.0 += i64::try_from(span.0).expect("tests are short");
    }

    pub(crate) fn ask(&mut self, number: u64, request: Request) {
        let deadline = self.now.monotonic + Duration::from_millis(10_000);
        self.step(Event::Request { id: RequestId(number), deadline, request });
    }

    /// Fills the node's copy of the catalog with these nodes and a table split at these keys. The first range is on the
    /// first three nodes.
    pub(crate) fn with_table(mut self, nodes: u32, name: &str, keys: &[&str]) -> Self {
        let record =
            |member| NodeRecord { member, peer: String::new(), grpc: String::new(), standing: Standing::Stays };
        let nodes = members(nodes).into_iter().map(record).collect();
        let payloads = [
            CatalogCommand::RegisterNodes { nodes }.encode(),
            CatalogCommand::CreateTable {
                name: name.to_owned(),
                split_at: split_at(keys),
                options: TableOptions::of(Tablet::KIND),
            }
            .encode(),
        ];
        let catalog = self.node.replicas.get_mut(&CohortId::CATALOG).expect("every node has a catalog replica");
        let mut previous = Lsn::ZERO;
        for payload in payloads {
            let entry = entry(previous, payload);
            previous = entry.lsn;
            catalog.state.apply(&entry).expect("the next entry");
        }
        self
    }
}

/// Three nodes, and the messages in transit between them.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Bench>,
    /// Messages to and from this node are lost.
    pub(crate) cut_off: Option<NodeId>,
    pub(crate) seen: Vec<(NodeId, NodeId, Message)>,
}

/// Interval at which messages are delivered.
const STEP: Duration = Duration::from_millis(5);

impl Cluster {
    pub(crate) fn start() -> Self {
        let nodes = (1..=3).map(|node| Bench::start(empty(node, 3))).collect();
        Self { nodes, cut_off: None, seen: Vec::new() }
    }

    pub(crate) fn pass(&mut self, span: Duration) {
        for _ in 0..span.0 / STEP.0 {
            self.nodes.iter_mut().for_each(|bench| bench.pass(STEP));
            while self.deliver() {}
        }
    }

    fn deliver(&mut self) -> bool {
        let mut sent = Vec::new();
        for bench in &mut self.nodes {
            let (from, boot) = (bench.node.me().node, bench.node.cluster.boot);
            sent.extend(bench.sent.drain(..).map(|(to, message)| (from, boot, to, message)));
        }
        let any = !sent.is_empty();
        for (from, boot, to, message) in sent {
            if self.cut_off.is_none_or(|node| node != from && node != to) {
                let bench = &mut self.nodes[to.0 as usize - 1];
                bench.step(Event::Message { from, boot, message: message.clone() });
            }
            self.seen.push((from, to, message));
        }
        any
    }
}

fn flushed(mut job: Box<dyn Job>, disk: &MemoryDisk) -> Outputs {
    loop {
        if let JobStep::Done(outputs) = job.step(disk).expect("a disk with free space") {
            return outputs;
        }
    }
}

pub(crate) fn split_at(keys: &[&str]) -> Vec<Bytes> {
    keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect()
}

pub(crate) fn entry(previous: Lsn, payload: Bytes) -> Entry {
    let lsn = Lsn::new(1, previous.sequence.0 + 1);
    let timestamp = Timestamp(i64::try_from(lsn.sequence.0).expect("within the range of the type"));
    Entry { lsn, previous, timestamp, payload, members: None }
}
