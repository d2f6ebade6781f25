//! Clients, which read and write the same few rows concurrently and record the responses. Most operations go through
//! the product's client library (`libraries`). Some reads, and writes without a stamp, are sent to one node once.

use std::collections::{BTreeMap, BTreeSet};

use base::{Durability, KeyRange, NodeId, SplitMix64, Timestamp};
use bytes::Bytes;
use catalog::catalog::REPLICAS;
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, Replication, TableOptions};
use client::Effect;
use node::contract::RequestId;
use node::request::{Ask, Outcome, Request, Response};
use state_machine::{Consistency, Failure, StateMachine as _};
use tablets::request::{Mutation, Row, Scan, TableRequest, Write};
use tablets::{TableResponse, Tablet};

use super::create_and_drop::{Spare, Step};
use super::events::Happening;
use super::host::SimHost;
use super::timeline_reads::{Known, TimelineRead};
use super::{MILLISECOND, Options, TrueTime, World};
use crate::history::{Operation, What, WriteOutcome};

pub(super) const TABLE: &str = "t";
const COLUMNS: u64 = 2;
/// How long old versions are kept: short, so that some are collected during a run.
pub(super) const RETENTION: base::Duration = base::Duration::from_millis(2_000);
/// Deadline of a request without a stamp, by the clock of the receiving node.
const DEADLINE: base::Duration = base::Duration::from_millis(1_500);
/// How long it waits for a response that is overdue.
const PATIENCE: TrueTime = 5_000 * MILLISECOND;
/// Maximum pause before it continues with an operation.
const SOON: TrueTime = 40 * MILLISECOND;

/// All clients and their observations.
pub(crate) struct Clients {
    clients: Vec<Client>,
    /// The client and node of each request sent directly to a node.
    bare: BTreeMap<RequestId, (u32, NodeId)>,
    /// Logical time of calls and returns, as observed by clients.
    moment: u64,
    pub(crate) history: Vec<Operation>,
    pub(super) random: SplitMix64,
    /// Observations that timeline and historical reads are checked against.
    pub(super) known: Known,
    keys: u64,
    nodes: u32,
    split_at: Vec<Bytes>,
    replicas: u32,
    durability: Durability,
    replication: Replication,
    think: TrueTime,
    tables: u64,
    tables_wanted: u64,
    /// Progress of the splits that the last client requests.
    pub(super) splits: Splits,
    /// The first client's own table, if it has one.
    pub(super) spare: Option<Spare>,
    pub(super) is_ending: bool,
}

/// Splits of the clients' table.
#[derive(Clone, Debug, Default)]
pub(super) struct Splits {
    /// Splits still to be requested.
    left: u32,
    /// Keys at which the table is split.
    pub(super) done: BTreeSet<Bytes>,
}

#[derive(Clone, Debug)]
struct Client {
    doing: Option<Doing>,
    /// Versions seen, used for conditions.
    versions: BTreeMap<(Bytes, Bytes), Timestamp>,
    writes: u64,
    final_reads: u64,
    is_done: bool,
}

#[derive(Clone, Debug)]
struct Doing {
    task: Task,
    called: u64,
    /// An earlier attempt may have taken effect.
    maybe_done: bool,
    is_asked: bool,
    /// The failure of the last attempt.
    refused: Option<Failure>,
}

#[derive(Clone, Debug)]
enum Task {
    CreateTable(u64),
    Write(Write),
    BareWrite(Write),
    Get(Bytes, Consistency),
    /// Sent to any node, once.
    BareGet(Bytes, Consistency),
    Scan(Scan, Consistency),
    TimelineRead(TimelineRead),
    Spare(Step),
    Split(Bytes),
}

impl Clients {
    pub(crate) fn new(options: &Options, random: &mut SplitMix64) -> Self {
        let client = Client { doing: None, versions: BTreeMap::new(), writes: 0, final_reads: 0, is_done: false };
        Self {
            clients: vec![client; options.clients as usize],
            bare: BTreeMap::new(),
            moment: 0,
            history: Vec::new(),
            random: SplitMix64::new(random.draw()),
            known: Known::default(),
            keys: options.keys,
            nodes: options.nodes,
            split_at: options.split_at.iter().map(|number| key(*number)).collect(),
            replicas: options.replicas,
            durability: options.durability,
            replication: options.replication,
            think: options.think,
            tables: 0,
            tables_wanted: options.tables,
            splits: Splits { left: options.splits, done: options.split_at.iter().map(|number| key(*number)).collect() },
            spare: options.drops.then(Spare::new),
            is_ending: false,
        }
    }

    pub(crate) fn ended(&self) -> u64 {
        self.history.iter().filter(|operation| operation.returned.is_some()).count() as u64
    }

    pub(crate) fn are_done(&self) -> bool {
        self.clients.iter().all(|client| client.is_done)
    }

    pub(crate) fn waiting_for(&self) -> String {
        let doing = self.clients.iter().filter(|client| !client.is_done).map(|client| format!("{:?}", client.doing));
        doing.collect::<Vec<_>>().join("; ")
    }

    pub(super) fn moment(&self) -> u64 {
        self.moment
    }

    fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// The next operation of a client.
    fn choose(&mut self, id: u32) -> Task {
        if self.tables < self.tables_wanted {
            return Task::CreateTable(self.tables);
        }
        if self.is_ending {
            let number = self.clients[id as usize].final_reads;
            return Task::Get(key(number), self.strong());
        }
        if let Some(spare) = self.spare.as_ref().filter(|_| id == 0)
            && (spare.is_urgent() || self.random.below(4) == 0)
        {
            return Task::Spare(spare.step);
        }
        let number = self.random.below(self.keys);
        let key = key(number);
        if self.splits.left > 0 && id as usize + 1 == self.clients.len() && self.random.below(8) == 0 {
            self.splits.left -= 1;
            return Task::Split(self.split_key(key));
        }
        match self.random.below(100) {
            0..10 => Task::Get(key, self.strong()),
            10..25 => Task::BareGet(key, self.strong()),
            25..30 => Task::Scan(Scan { reverse: self.random.below(2) == 0, ..Scan::default() }, self.strong()),
            30..50 => Task::TimelineRead(self.next_timeline_read(id, key, self.nodes)),
            50..60 => Task::BareWrite(self.write(id, key)),
            _ => Task::Write(self.write(id, key)),
        }
    }

    /// The key of a row, or a key between it and the next.
    fn split_key(&mut self, mut key: Bytes) -> Bytes {
        if self.random.below(3) == 0 {
            key = Bytes::from([&key[..], b"+"].concat());
        }
        key
    }

    /// A strong read, served by the leader or after a view check.
    fn strong(&mut self) -> Consistency {
        let is_anywhere = self.random.below(3) == 0 && self.replication == Replication::Paxos;
        if is_anywhere { Consistency::Anywhere } else { Consistency::Strong }
    }

    fn write(&mut self, id: u32, key: Bytes) -> Write {
        let columns = if self.random.below(3) == 0 { COLUMNS } else { 1 };
        let deletes_row = columns == COLUMNS && self.random.below(6) == 0;
        let first = self.random.below(COLUMNS);
        let mut mutations = Vec::new();
        for index in 0..columns {
            let column = Bytes::from(format!("c{}", (first + index) % COLUMNS));
            let client = &mut self.clients[id as usize];
            client.writes += 1;
            let value = Bytes::from(format!("{id}-{}", client.writes));
            let seen = client.versions.get(&(key.clone(), column.clone())).copied().unwrap_or_default();
            let value = (!deletes_row && self.random.below(6) > 0).then_some(value);
            let condition = (!deletes_row && self.random.below(3) == 0).then_some(seen);
            mutations.push(Mutation { column, value, condition });
        }
        Write { stamp: None, key, mutations }
    }
}

impl World {
    pub(crate) fn begin_clients(&mut self) {
        self.queue.put(self.now + MILLISECOND, Happening::Client { client: 0 });
    }

    /// Faults have ended: every client reads every row once more.
    pub(crate) fn end_clients(&mut self) {
        self.clients.is_ending = true;
        for client in 0..self.clients.clients.len() as u32 {
            self.queue.put(self.now, Happening::Client { client });
        }
    }

    pub(crate) fn client_acts(&mut self, id: u32) {
        let client = &self.clients.clients[id as usize];
        if client.is_done || client.doing.as_ref().is_some_and(|doing| doing.is_asked) {
            return;
        }
        if client.doing.is_none() {
            if self.clients.tables < self.clients.tables_wanted && id != 0 {
                return;
            }
            if self.clients.is_ending && client.final_reads == self.clients.keys {
                self.clients.clients[id as usize].is_done = true;
                return;
            }
            let task = self.clients.choose(id);
            let called = self.clients.tick();
            let doing = Doing { task, called, maybe_done: false, is_asked: false, refused: None };
            self.clients.clients[id as usize].doing = Some(doing);
        }
        self.ask(id);
    }

    /// Sends the request of a client's current operation.
    fn ask(&mut self, id: u32) {
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        let any = nodes[self.clients.random.below(nodes.len() as u64) as usize];
        let (still, apart) = (self.paused_node(), self.draw_apart());
        let Some(doing) = self.clients.clients[id as usize].doing.as_mut() else { return };
        doing.is_asked = true;
        let mut node = any;
        match &mut doing.task {
            Task::TimelineRead(timeline_read) => {
                timeline_read.asked = self.now;
                timeline_read.node = timeline_read.node.map(|kept_to| apart.unwrap_or(kept_to));
                node = timeline_read.node.unwrap_or(any);
            }
            Task::BareGet(..) => node = still.unwrap_or(any),
            _ => {}
        }
        let task = doing.task.clone();
        let request = request(&task, &self.clients);
        match effect(&task) {
            Some(effect) => {
                // Derived from the time, not drawn at random, so that other random choices of a seed stay the same.
                if matches!(task, Task::TimelineRead(_)) && self.now.is_multiple_of(4) {
                    self.observe_token(id);
                }
                self.call(id, effect, request);
            }
            None => self.ask_bare(id, node, request),
        }
    }

    /// A node whose machine is paused or has stopped while its endpoints stay open: they must not assume that the lease
    /// is still valid.
    fn paused_node(&self) -> Option<NodeId> {
        let is_still = |machine: &SimHost| machine.paused && machine.endpoint_runs;
        let mut all = self.hosts.iter();
        all.find(|(id, machine)| is_still(machine) || self.has_open_endpoint(**id)).map(|(id, _)| *id)
    }

    /// A node in the minority of a partition: it may lag, and must report that. In small clusters, clients keep to one
    /// node, to detect reads that go backwards.
    fn draw_apart(&mut self) -> Option<NodeId> {
        if self.options.nodes <= REPLICAS {
            return None;
        }
        let apart = self.lesser_part();
        let drawn = self.clients.random.below(apart.len().max(1) as u64) as usize;
        apart.get(drawn).copied()
    }

    /// Sends a request to a node, once.
    fn ask_bare(&mut self, id: u32, node: NodeId, request: Request) {
        let machine = &self.hosts[&node];
        if machine.process.is_none() && !self.has_open_endpoint(node) {
            let is_ending = self.clients.is_ending;
            let doing = self.clients.clients[id as usize].doing.as_mut();
            if let Some(doing) = doing.filter(|doing| !is_ending && matches!(doing.task, Task::TimelineRead(_))) {
                doing.is_asked = false;
                return self.not_now(id);
            }
            return self.client_answered(id, Err(Failure::Unavailable("nobody listens".to_owned())), false);
        }
        let generation = machine.generation;
        let number = self.libraries.number();
        self.clients.bare.insert(number, (id, node));
        self.queue.put(self.now + PATIENCE, Happening::ClientPatience { request: number });
        self.put_request(node, generation, number, self.now, DEADLINE, request);
    }

    /// A node has restarted. Clients that wait to read from it do so at once, when its state is most likely to have
    /// gone backwards.
    pub(super) fn reread_at_started(&mut self, node: NodeId) {
        let waits = |client: &Client| {
            let doing = client.doing.as_ref().filter(|doing| !doing.is_asked);
            doing.is_some_and(
                |doing| matches!(&doing.task, Task::TimelineRead(timeline_read) if timeline_read.node == Some(node)),
            )
        };
        let all = self.clients.clients.iter().zip(0..);
        let waiting: Vec<u32> = all.filter(|(client, _)| waits(client)).map(|(_, id)| id).collect();
        for client in waiting {
            self.queue.put(self.now, Happening::Client { client });
        }
    }

    pub(super) fn bare_answered(&mut self, request: RequestId, outcome: Outcome) {
        if let Some((id, _)) = self.clients.bare.remove(&request) {
            self.client_answered(id, outcome, false);
        }
    }

    pub(crate) fn bare_given_up(&mut self, request: RequestId) {
        self.bare_answered(request, Err(Failure::Unknown("no answer".to_owned())));
    }

    pub(super) fn bare_lost(&mut self, node: NodeId) {
        let bare = self.clients.bare.iter().filter(|(_, (_, at))| *at == node);
        let lost: Vec<RequestId> = bare.map(|(request, _)| *request).collect();
        for request in lost {
            self.bare_answered(request, Err(Failure::Unknown("connection lost".to_owned())));
        }
    }

    /// Handles the outcome of a client's operation.
    pub(super) fn client_answered(&mut self, id: u32, outcome: Outcome, in_doubt: bool) {
        let Some(mut doing) = self.clients.clients[id as usize].doing.take() else { return };
        doing.is_asked = false;
        doing.maybe_done |= in_doubt || matches!(outcome, Err(Failure::Unknown(_)));
        match outcome {
            outcome if matches!(doing.task, Task::TimelineRead(_)) => self.ended(id, &doing, outcome),
            Err(
                refused
                @ (Failure::Unavailable(_) | Failure::NoSpace(_) | Failure::Overloaded(_) | Failure::Unknown(_)),
            ) => {
                doing.refused = Some(refused);
                self.again(id, doing);
            }
            outcome => self.ended(id, &doing, outcome),
        }
    }

    /// Retries a request that may be retried without the library; a write ends with the outcome known so far.
    fn again(&mut self, id: u32, doing: Doing) {
        let (Task::Write(write) | Task::BareWrite(write)) = &doing.task else {
            self.clients.clients[id as usize].doing = Some(doing);
            return self.not_now(id);
        };
        let is_unknown = matches!(doing.refused, Some(Failure::Unknown(_)));
        let outcome = if is_unknown { WriteOutcome::Unknown } else { WriteOutcome::NotDone };
        self.remember_write(id, doing.called, write, outcome);
        self.think(id);
    }

    fn not_now(&mut self, id: u32) {
        let pause = 10 * MILLISECOND + self.clients.random.below(200 * MILLISECOND);
        self.queue.put(self.now + pause, Happening::Client { client: id });
    }

    fn think(&mut self, id: u32) {
        let pause = if self.clients.is_ending { 1 } else { self.clients.random.below(self.clients.think) };
        self.queue.put(self.now + pause, Happening::Client { client: id });
    }

    fn ended(&mut self, id: u32, doing: &Doing, outcome: Outcome) {
        match (&doing.task, outcome) {
            (Task::CreateTable(number), Ok(Response::Catalog(CatalogResponse::TableCreated { .. }))) => {
                self.clients.tables = number + 1;
                if self.clients.tables == self.clients.tables_wanted {
                    for client in 1..self.clients.clients.len() as u32 {
                        self.queue.put(self.now, Happening::Client { client });
                    }
                }
            }
            (Task::Spare(step), outcome) => {
                self.spare_answered(*step, &outcome, doing.maybe_done);
                if self.clients.spare.as_ref().is_some_and(Spare::is_urgent) {
                    return self.queue.put(self.now, Happening::Client { client: id });
                }
            }
            (Task::Split(key), outcome) => self.split_answered(key, &outcome, doing.maybe_done),
            (Task::TimelineRead(timeline_read), outcome) => {
                self.timeline_read_answered(id, timeline_read, &outcome);
                if let Some(timeline_read) = self.clients.repeat_timeline_read(timeline_read) {
                    return self.go_on(id, Task::TimelineRead(timeline_read));
                }
            }
            (Task::Write(write) | Task::BareWrite(write), outcome) => self.write_ended(id, doing, write, outcome),
            (Task::Get(key, _) | Task::BareGet(key, _), Ok(Response::Tablet(TableResponse::Row { cells, .. }))) => {
                self.remember_row(id, doing.called, Row { key: key.clone(), cells });
                if self.clients.is_ending {
                    self.clients.clients[id as usize].final_reads += 1;
                }
            }
            (Task::Scan(scan, consistency), Ok(Response::Tablet(TableResponse::Rows { rows, continuation, .. }))) => {
                self.scanned(id, doing.called, scan, rows, continuation.as_ref());
                if let Some(continuation) = continuation {
                    self.count("scans continued");
                    let scan = Scan { continuation: Some(continuation), ..scan.clone() };
                    return self.scan_on(id, scan, *consistency);
                }
            }
            (Task::Get(..) | Task::BareGet(..) | Task::Scan(..), Err(Failure::UnknownTable(_))) => {
                self.violate("a created table is unknown");
            }
            (task, outcome) => self.violate(&format!("{task:?}: unexpected outcome {outcome:?}")),
        }
        self.think(id);
    }

    fn write_ended(&mut self, id: u32, doing: &Doing, write: &Write, outcome: Outcome) {
        let outcome = match outcome {
            Ok(Response::Tablet(TableResponse::Written { version })) => WriteOutcome::Written(version),
            Err(Failure::VersionMismatch { column, expected, actual }) => {
                self.clients.clients[id as usize].versions.insert((write.key.clone(), column.clone()), actual);
                WriteOutcome::Mismatch { column, expected, actual }
            }
            other => return self.violate(&format!("{write:?}: unexpected outcome {other:?}")),
        };
        if let WriteOutcome::Written(version) = outcome {
            self.count("writes acknowledged");
            self.clients.known.acknowledged(self.now, write.key.clone(), version);
            if doing.maybe_done {
                self.count("retries deduplicated");
            }
            for mutation in &write.mutations {
                let version = if mutation.value.is_some() { version } else { Timestamp(0) };
                let place = (write.key.clone(), mutation.column.clone());
                self.clients.clients[id as usize].versions.insert(place, version);
            }
        }
        self.remember_write(id, doing.called, write, outcome);
    }

    fn remember_write(&mut self, client: u32, called: u64, write: &Write, outcome: WriteOutcome) {
        let returned = (outcome != WriteOutcome::Unknown).then(|| self.clients.tick());
        let what = What::Write { mutations: write.mutations.clone(), outcome };
        self.clients.history.push(Operation { client, called, returned, key: write.key.clone(), what });
    }

    fn remember_row(&mut self, client: u32, called: u64, row: Row) {
        for cell in &row.cells {
            let place = (row.key.clone(), cell.column.clone());
            self.clients.clients[client as usize].versions.insert(place, cell.version);
        }
        let returned = Some(self.clients.tick());
        let what = What::Read { columns: None, cells: row.cells };
        self.clients.history.push(Operation { client, called, returned, key: row.key, what });
    }

    /// Records a page of a scan. A page reads every row from its start to its continuation, at one instant; rows that
    /// it omits are empty. Pages of one scan are at different instants, so each is recorded separately.
    fn scanned(&mut self, client: u32, called: u64, scan: &Scan, rows: Vec<Row>, continuation: Option<&Bytes>) {
        let mut by_key: BTreeMap<Bytes, Row> = rows.into_iter().map(|row| (row.key.clone(), row)).collect();
        let begins = scan.continuation.as_ref();
        let page = match (scan.reverse, begins, continuation) {
            (false, begins, next) => KeyRange { start: begins.cloned().unwrap_or_default(), end: next.cloned() },
            (true, begins, next) => KeyRange { start: next.cloned().unwrap_or_default(), end: begins.cloned() },
        };
        for key in (0..self.clients.keys).map(key).filter(|key| page.contains(key)) {
            let row = by_key.remove(&key).unwrap_or(Row { key, cells: Vec::new() });
            self.remember_row(client, called, row);
        }
        if let Some(key) = by_key.keys().next() {
            self.violate(&format!("a page of {page} contains {key:?}"));
        }
    }

    /// Schedules the client's next operation.
    fn go_on(&mut self, id: u32, task: Task) {
        let called = self.clients.tick();
        let doing = Doing { task, called, maybe_done: false, is_asked: false, refused: None };
        self.clients.clients[id as usize].doing = Some(doing);
        let pause = self.clients.random.below(SOON);
        self.queue.put(self.now + pause, Happening::Client { client: id });
    }

    /// Requests the next page immediately.
    fn scan_on(&mut self, id: u32, scan: Scan, consistency: Consistency) {
        let called = self.clients.tick();
        let task = Task::Scan(scan, consistency);
        let doing = Doing { task, called, maybe_done: false, is_asked: false, refused: None };
        self.clients.clients[id as usize].doing = Some(doing);
        self.ask(id);
    }
}

/// Whether a write deletes all columns of a row, and so the row as a whole.
fn deletes_row(write: &Write) -> bool {
    let deletes = |mutation: &Mutation| mutation.value.is_none() && mutation.condition.is_none();
    write.mutations.len() == COLUMNS as usize && write.mutations.iter().all(deletes)
}

fn key(number: u64) -> Bytes {
    Bytes::from(format!("row-{number}"))
}

/// How the library may treat a task; `None` if it bypasses the library.
fn effect(task: &Task) -> Option<Effect> {
    match task {
        Task::Get(..) | Task::Scan(..) => Some(Effect::Reads),
        Task::TimelineRead(timeline_read) => timeline_read.carries_position().then_some(Effect::Reads),
        Task::CreateTable(_) | Task::Split(_) => Some(Effect::Repeatable),
        Task::Write(_) => Some(Effect::Writes),
        Task::BareWrite(_) | Task::BareGet(..) => None,
        Task::Spare(step) => Some(step.effect()),
    }
}

fn request(task: &Task, clients: &Clients) -> Request {
    let of_table = |request| Request::Table { table: TABLE.to_owned(), request: Ask::Tablet(request) };
    let create = |name, split_at: &[Bytes], replicas, durability, replication| {
        Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
            name,
            split_at: split_at.to_vec(),
            options: TableOptions {
                replicas,
                retention: RETENTION,
                durability: Some(durability),
                replication: Some(replication),
                ..TableOptions::of(Tablet::KIND)
            },
        }))
    };
    match task {
        Task::CreateTable(0) => {
            let Clients { split_at, replicas, durability, replication, .. } = clients;
            create(TABLE.to_owned(), split_at, *replicas, *durability, *replication)
        }
        Task::CreateTable(number) => create(format!("{TABLE}{number}"), &[], 0, Durability::Forced, Replication::Paxos),
        Task::Write(write) | Task::BareWrite(write) if deletes_row(write) => {
            of_table(TableRequest::DeleteRow { stamp: write.stamp, key: write.key.clone() })
        }
        Task::Write(write) | Task::BareWrite(write) => of_table(TableRequest::Write(write.clone())),
        Task::Get(key, consistency) | Task::BareGet(key, consistency) => of_table(TableRequest::Get {
            key: key.clone(),
            columns: tablets::request::Columns::default(),
            consistency: *consistency,
        }),
        Task::Scan(scan, consistency) => of_table(TableRequest::Scan { scan: scan.clone(), consistency: *consistency }),
        Task::TimelineRead(timeline_read) => of_table(timeline_read.request()),
        Task::Split(key) => Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginSplit {
            name: TABLE.to_owned(),
            key: key.clone(),
        })),
        Task::Spare(step) => {
            clients.spare.as_ref().map_or(Request::Catalog(CatalogRequest::ListTables), |spare| spare.request(*step))
        }
    }
}
