//! Clients: they read and write the same few rows at the same time, retry as a good client does, and remember what they
//! were told. Their table may be split, so that they have a session for each range that they write.

use std::collections::BTreeMap;

use base::{KeyRange, NodeId, SplitMix64, Timestamp};
use bytes::Bytes;
use node::contract::RequestId;
use tablets::request::{
    Failure, Mutation, Outcome, Request, Response, Row, Scan, SessionId, SessionStamp, TableRequest, Write,
};

use super::events::Happening;
use super::spare::{Spare, Step};
use super::{MILLISECOND, Options, TrueTime, World};
use crate::history::{Operation, What, WriteOutcome};

const TABLE: &str = "t";
/// Columns of a row.
const COLUMNS: u64 = 2;
/// How long a client gives a request, by the clock of the node that it asks.
const DEADLINE: base::Duration = base::Duration::from_millis(1_500);
/// How long it waits for an answer that should have come.
const PATIENCE: TrueTime = 5_000 * MILLISECOND;
/// How often it tries one operation while faults last.
const ATTEMPTS_MAX: u32 = 8;

/// All clients, and what they have seen.
pub(crate) struct Clients {
    clients: Vec<Client>,
    asked: BTreeMap<RequestId, (u32, NodeId)>,
    next_request: u64,
    /// Counts calls and returns: the order in which clients saw things happen.
    moment: u64,
    pub(crate) history: Vec<Operation>,
    random: SplitMix64,
    keys: u64,
    split_at: Vec<Bytes>,
    think: TrueTime,
    tables: u64,
    tables_wanted: u64,
    /// The first client's own table, if it has one.
    pub(super) spare: Option<Spare>,
    is_ending: bool,
}

#[derive(Clone, Debug)]
struct Client {
    doing: Option<Doing>,
    sessions: Vec<Session>,
    /// Versions seen, for conditions.
    versions: BTreeMap<(Bytes, Bytes), Timestamp>,
    writes: u64,
    final_reads: u64,
    is_done: bool,
}

/// A session in one range.
#[derive(Clone, Debug)]
struct Session {
    id: SessionId,
    range: KeyRange,
    next_sequence: u64,
}

#[derive(Clone, Debug)]
struct Doing {
    task: Task,
    called: u64,
    attempts: u32,
    /// An earlier try may have been carried out.
    maybe_done: bool,
    asked: Option<RequestId>,
}

#[derive(Clone, Debug)]
enum Task {
    CreateTable(u64),
    OpenSession(Bytes),
    Write(Write),
    Get(Bytes),
    Scan(Scan),
    Spare(Step),
}

impl Clients {
    pub(crate) fn new(options: &Options, random: &mut SplitMix64) -> Self {
        let client = Client {
            doing: None,
            sessions: Vec::new(),
            versions: BTreeMap::new(),
            writes: 0,
            final_reads: 0,
            is_done: false,
        };
        Self {
            clients: vec![client; options.clients as usize],
            asked: BTreeMap::new(),
            next_request: 0,
            moment: 0,
            history: Vec::new(),
            random: SplitMix64::new(random.draw()),
            keys: options.keys,
            split_at: options.split_at.iter().map(|number| key(*number)).collect(),
            think: options.think,
            tables: 0,
            tables_wanted: options.tables,
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

    fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// What a client does next.
    fn choose(&mut self, id: u32) -> Task {
        if self.tables < self.tables_wanted {
            return Task::CreateTable(self.tables);
        }
        if self.is_ending {
            let number = self.clients[id as usize].final_reads;
            return Task::Get(key(number));
        }
        if let Some(spare) = self.spare.as_ref().filter(|_| id == 0)
            && (spare.is_urgent() || self.random.below(4) == 0)
        {
            return Task::Spare(spare.step);
        }
        let number = self.random.below(self.keys);
        let key = key(number);
        let has_session = self.clients[id as usize].sessions.iter().any(|session| session.range.contains(&key));
        match self.random.below(100) {
            0..30 => Task::Get(key),
            30..35 => Task::Scan(Scan { reverse: self.random.below(2) == 0, ..Scan::default() }),
            _ if !has_session && self.random.below(4) > 0 => Task::OpenSession(key),
            _ => Task::Write(self.write(id, key)),
        }
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
        let client = &mut self.clients[id as usize];
        let session = client.sessions.iter_mut().find(|session| session.range.contains(&key));
        let stamp = session.filter(|_| self.random.below(4) > 0).map(|session| {
            let sequence = session.next_sequence;
            session.next_sequence += 1;
            SessionStamp { session: session.id, sequence, first_incomplete: sequence }
        });
        Write { stamp, key, mutations }
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
        if client.is_done || client.doing.as_ref().is_some_and(|doing| doing.asked.is_some()) {
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
            let doing = Doing { task, called, attempts: 0, maybe_done: false, asked: None };
            self.clients.clients[id as usize].doing = Some(doing);
        }
        self.ask(id);
    }

    /// Puts what a client is doing to some node.
    fn ask(&mut self, id: u32) {
        let nodes: Vec<NodeId> = self.machines.keys().copied().collect();
        let node = nodes[self.clients.random.below(nodes.len() as u64) as usize];
        let Some(doing) = self.clients.clients[id as usize].doing.as_mut() else { return };
        doing.attempts += 1;
        let request = request(&doing.task, &self.clients.split_at, self.clients.spare.as_ref());
        let machine = &self.machines[&node];
        if machine.process.is_none() {
            return self.not_now(id);
        }
        self.clients.next_request += 1;
        let number = RequestId(self.clients.next_request);
        doing.asked = Some(number);
        self.clients.asked.insert(number, (id, node));
        let deadline = machine.clocks.monotonic(self.now) + DEADLINE;
        self.queue.put(self.now + PATIENCE, Happening::ClientPatience { client: id, request: number });
        let generation = machine.generation;
        let request = Box::new(request);
        self.happen(Happening::Request { node, generation, id: number, deadline, request });
    }

    pub(crate) fn client_answered(&mut self, request: RequestId, outcome: Outcome) {
        let Some((id, _)) = self.clients.asked.remove(&request) else { return };
        self.note(request.0, u64::from(outcome.is_ok()));
        let Some(mut doing) = self.clients.clients[id as usize].doing.take() else { return };
        doing.asked = None;
        match outcome {
            Err(Failure::Unavailable(_) | Failure::Overloaded(_)) => self.again(id, doing),
            Err(Failure::Unknown(_)) => {
                doing.maybe_done = true;
                self.again(id, doing);
            }
            outcome => self.ended(id, &doing, outcome),
        }
    }

    /// Tries once more, or ends with what is known.
    fn again(&mut self, id: u32, doing: Doing) {
        let is_stamped = matches!(&doing.task, Task::Write(write) if write.stamp.is_some());
        let is_write = matches!(&doing.task, Task::Write(_));
        // What was not done may be tried again, or left; without a stamp, what may have been done is left.
        let leaves = is_write && !is_stamped && self.clients.random.below(2) == 0;
        let may_repeat = !is_write || is_stamped || !(doing.maybe_done || leaves);
        if may_repeat && (doing.attempts < ATTEMPTS_MAX || self.clients.is_ending || !is_write) {
            self.clients.clients[id as usize].doing = Some(doing);
            self.not_now(id);
            return;
        }
        let outcome = if doing.maybe_done { WriteOutcome::Unknown } else { WriteOutcome::NotDone };
        if let Task::Write(write) = &doing.task {
            self.remember_write(id, doing.called, write, outcome);
        }
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
            (Task::CreateTable(number), Ok(Response::TableCreated { .. })) => {
                self.clients.tables = number + 1;
                if self.clients.tables == self.clients.tables_wanted {
                    for client in 1..self.clients.clients.len() as u32 {
                        self.queue.put(self.now, Happening::Client { client });
                    }
                }
            }
            (Task::OpenSession(key), Ok(Response::SessionOpened { session, range })) => {
                if !range.contains(key) {
                    return self.violate(&format!("a session for {key:?} was opened in {range}"));
                }
                let client = &mut self.clients.clients[id as usize];
                client.sessions.retain(|session| !session.range.overlaps(&range));
                client.sessions.push(Session { id: session, range, next_sequence: 1 });
            }
            (Task::Spare(step), outcome) => {
                self.spare_answered(*step, &outcome, doing.maybe_done);
                if self.clients.spare.as_ref().is_some_and(Spare::is_urgent) {
                    return self.queue.put(self.now, Happening::Client { client: id });
                }
            }
            (Task::Write(write), outcome) => self.write_ended(id, doing, write, outcome),
            (Task::Get(key), Ok(Response::Row(cells))) => {
                self.remember_row(id, doing.called, Row { key: key.clone(), cells });
                if self.clients.is_ending {
                    self.clients.clients[id as usize].final_reads += 1;
                }
            }
            (Task::Scan(scan), Ok(Response::Rows { rows, continuation })) => {
                self.scanned(id, doing.called, scan, rows, continuation.as_ref());
                if let Some(continuation) = continuation {
                    self.count("scans gone on with");
                    return self.scan_on(id, Scan { continuation: Some(continuation), ..scan.clone() });
                }
            }
            (Task::Get(_) | Task::Scan(_) | Task::OpenSession(_), Err(Failure::UnknownTable(_))) => {
                self.violate("a table that was created is unknown");
            }
            (task, outcome) => self.violate(&format!("{task:?} was answered with {outcome:?}")),
        }
        self.think(id);
    }

    fn write_ended(&mut self, id: u32, doing: &Doing, write: &Write, outcome: Outcome) {
        let outcome = match outcome {
            Ok(Response::Written { version }) => WriteOutcome::Written(version),
            Err(Failure::VersionMismatch { column, expected, actual }) => {
                self.clients.clients[id as usize].versions.insert((write.key.clone(), column.clone()), actual);
                WriteOutcome::Mismatch { column, expected, actual }
            }
            Err(Failure::UnknownSession(session)) => {
                self.count("unknown sessions met");
                self.clients.clients[id as usize].sessions.retain(|open| open.id != session);
                if doing.maybe_done { WriteOutcome::Unknown } else { WriteOutcome::NotDone }
            }
            other => return self.violate(&format!("{write:?} was answered with {other:?}")),
        };
        if let WriteOutcome::Written(version) = outcome {
            self.count("writes acknowledged");
            if doing.maybe_done {
                self.count("retries answered");
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

    /// A page reads every row there is from where it began to where it says that the scan goes on, all at one moment; those
    /// that it doesn't show are empty. The whole scan is not of one moment: each page is remembered by itself.
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
            self.violate(&format!("a page of {page} shows {key:?}"));
        }
    }

    /// The next page is asked for at once.
    fn scan_on(&mut self, id: u32, scan: Scan) {
        let called = self.clients.tick();
        let doing = Doing { task: Task::Scan(scan), called, attempts: 0, maybe_done: false, asked: None };
        self.clients.clients[id as usize].doing = Some(doing);
        self.ask(id);
    }

    pub(crate) fn client_gives_up(&mut self, _client: u32, request: RequestId) {
        if self.clients.asked.contains_key(&request) {
            self.client_answered(request, Err(Failure::Unknown("no answer".to_owned())));
        }
    }

    /// A node's process has ended, and with it the connections to it.
    pub(crate) fn clients_lose(&mut self, node: NodeId) {
        let lost: Vec<RequestId> =
            self.clients.asked.iter().filter(|(_, (_, at))| *at == node).map(|(request, _)| *request).collect();
        for request in lost {
            self.client_answered(request, Err(Failure::Unknown("connection lost".to_owned())));
        }
    }
}

/// Whether a write leaves nothing of a row: then the row is deleted as a whole.
fn deletes_row(write: &Write) -> bool {
    let deletes = |mutation: &Mutation| mutation.value.is_none() && mutation.condition.is_none();
    write.mutations.len() == COLUMNS as usize && write.mutations.iter().all(deletes)
}

fn key(number: u64) -> Bytes {
    Bytes::from(format!("row-{number}"))
}

fn request(task: &Task, split_at: &[Bytes], spare: Option<&Spare>) -> Request {
    let of_table = |request| Request::Table { table: TABLE.to_owned(), request };
    let create = |name, split_at: &[Bytes]| Request::CreateTable { name, split_at: split_at.to_vec(), replicas: 0 };
    match task {
        Task::CreateTable(0) => create(TABLE.to_owned(), split_at),
        Task::CreateTable(number) => create(format!("{TABLE}{number}"), &[]),
        Task::OpenSession(key) => of_table(TableRequest::OpenSession { key: key.clone() }),
        Task::Write(write) if deletes_row(write) => {
            of_table(TableRequest::DeleteRow { stamp: write.stamp, key: write.key.clone() })
        }
        Task::Write(write) => of_table(TableRequest::Write(write.clone())),
        Task::Get(key) => of_table(TableRequest::Get { key: key.clone(), columns: None }),
        Task::Scan(scan) => of_table(TableRequest::Scan(scan.clone())),
        Task::Spare(step) => spare.map_or(Request::ListTables, |spare| spare.request(*step)),
    }
}
