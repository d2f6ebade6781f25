//! Transactional clients (guarantee 18): each runs one transaction at a time as a client library would. It reads at the
//! leaders, buffers its writes, and sends the commit to some node; after silence it sends the commit with the same stamp
//! to other nodes, and finally asks for the outcome. Plain writes, strong reads and reads at timestamps of the same rows
//! run between them. Meanwhile the tables are split and moved, and one of them is dropped and created again.
//!
//! A workload (`workloads`), one per run, defines the rows and their invariants; that of `statements` runs SQL. `history`
//! checks the observations of the clients, `leftovers` the transactions that remain in the nodes at the end.

mod history;
mod leftovers;
mod requests;
mod statements;
mod workloads;

use std::collections::{BTreeMap, VecDeque};

use base::{KeyRange, NodeId, SplitMix64, Timestamp};
use bytes::Bytes;
use catalog::Replication;
use node::contract::RequestId;
use state_machine::{ClientSessionId, Consistency, LockOwner, SessionStamp};
use tablets::request::Cell;
use tablets::transaction::{ReadSpan, RowChange};

use super::events::Happening;
use super::{MILLISECOND, Options, TrueTime, World};

pub(super) use leftovers::Decisions;
pub use workloads::Workload;

use history::History;
use statements::{Run, Sessions};
use workloads::{Plan, Rows};

/// The tables. The last one is dropped and created again while transactions change it.
const TABLES: [&str; 3] = ["x", "y", "z"];
const DROPPED: usize = 2;
/// Maximum pause between two jobs of a client.
const THINK: TrueTime = 30 * MILLISECOND;
/// Maximum attempts of a transaction that is aborted.
const ATTEMPTS_MAX: u32 = 8;

/// A row: the index of its table, and its key.
type Place = (usize, Bytes);

/// The clients and their observations.
pub(crate) struct TransactionClients {
    replication: Replication,
    clients: Vec<Client>,
    /// The client and node of each outstanding request.
    asked: BTreeMap<RequestId, (usize, NodeId)>,
    random: SplitMix64,
    rows: Rows,
    sessions: Sessions,
    history: History,
    /// How far the tables are set up.
    setup: Setup,
    splits_left: u32,
    /// Whether the last table exists.
    is_created: bool,
    is_ending: bool,
}

/// The tasks of the first client before the others begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Setup {
    Create(usize),
    Fill,
    Done,
}

#[derive(Debug, Default)]
struct Client {
    job: Option<Job>,
    is_asked: bool,
    sessions: Vec<Session>,
    /// The number of final reads done.
    final_reads: usize,
    is_done: bool,
}

/// A session of a range.
#[derive(Clone, Debug)]
struct Session {
    table: usize,
    range: KeyRange,
    id: ClientSessionId,
    last: u64,
}

/// The current task of a client.
#[derive(Clone, Debug)]
struct Job {
    kind: Kind,
    begun: TrueTime,
    phase: Phase,
    /// Reads that are still to be done.
    questions: VecDeque<Question>,
    consistency: Consistency,
    found: Vec<Found>,
    spans: Vec<(usize, ReadSpan)>,
    writes: Vec<Change>,
    owner: LockOwner,
    commit: Option<CommitStamp>,
    /// Aborted attempts so far.
    attempts: u32,
    /// Requests of the current phase without a result.
    tries: u32,
    /// An earlier request of the current phase may have taken effect.
    in_doubt: bool,
}

#[derive(Clone, Debug)]
enum Kind {
    Transaction(Plan),
    /// A transaction of SQL statements.
    Script(Box<Run>),
    /// Reads every row as of one moment. It is the end of the uncertainty of a node's clock if `is_now`.
    Snapshot {
        is_now: bool,
    },
    /// A strong read of a row, or of a page.
    PlainRead,
    PlainWrite,
    /// A request about a table itself.
    Administration(Administration),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Administration {
    Create(usize),
    Drop(usize),
    Split(Place),
}

/// The reply that the client waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// The time, for a read as of now.
    Clock,
    /// A strong read of a row. Its response has a timestamp at which other rows are read.
    Dating(Place),
    Reading,
    /// A session at the coordinator.
    Opening(Place),
    Committing,
    /// The outcome of a transaction, after its commit got no reply.
    Resolving,
    /// The commit was acknowledged with this timestamp. It is sent again, or the outcome is requested.
    Repeating(Timestamp),
    Writing,
    Administering,
    /// Releases the read locks of the rows.
    Unlocking(VecDeque<Place>),
}

#[derive(Clone, Debug)]
enum Question {
    Row(Place),
    /// The rows of a table from a key on.
    Rows(usize, Bytes),
    /// At most so many rows of some keys of a table.
    Span(usize, KeyRange, usize),
}

/// The identity of a transaction, and where it is decided.
#[derive(Clone, Debug)]
struct CommitStamp {
    place: Place,
    stamp: SessionStamp,
}

/// A row as it was read.
#[derive(Clone, Debug)]
struct Found {
    place: Place,
    cells: Vec<Cell>,
    /// The moment of the state that was read, if the reply names it.
    at: Option<Timestamp>,
}

/// A change of a row.
#[derive(Clone, Debug)]
struct Change {
    table: usize,
    change: RowChange,
}

impl Found {
    /// The version of the row: the newest of its cells, or 0.
    fn version(&self) -> Timestamp {
        self.cells.iter().map(|cell| cell.version).max().unwrap_or_default()
    }
}

impl Change {
    fn place(&self) -> Place {
        (self.table, self.change.key.clone())
    }
}

impl TransactionClients {
    pub(crate) fn new(options: &Options, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed ^ 0x7a4e_5ac7_1035_0000);
        let rows = Rows::draw(options.workload, &mut random);
        let clients = (0..options.transaction_clients).map(|_| Client::default()).collect();
        Self {
            clients,
            asked: BTreeMap::new(),
            rows,
            sessions: Sessions::default(),
            history: History::default(),
            setup: Setup::Create(0),
            splits_left: options.transaction_splits,
            replication: options.replication,
            is_created: false,
            is_ending: false,
            random,
        }
    }

    pub(crate) fn are_done(&self) -> bool {
        self.clients.iter().all(|client| client.is_done)
    }

    /// The jobs in progress, for a run that is stuck.
    pub(crate) fn waiting_for(&self) -> String {
        let jobs = self.clients.iter().filter(|client| !client.is_done).map(|client| format!("{:?}", client.job));
        jobs.collect::<Vec<_>>().join("; ")
    }

    /// The next job of a client, if it has one.
    fn choose(&mut self, id: usize, now: TrueTime) -> Option<Job> {
        match self.setup {
            Setup::Done => {}
            _ if self.is_ending => {
                self.clients[id].is_done = true;
                return None;
            }
            _ if id != 0 => return None,
            Setup::Create(table) => return Some(self.administer(Administration::Create(table), now)),
            Setup::Fill if self.rows.workload == Workload::Sql => return Some(self.create_database(id, now)),
            Setup::Fill => return Some(self.transaction(self.rows.fill(), now)),
        }
        if self.is_ending {
            return self.last_read(id, now);
        }
        let is_sql = self.rows.workload == Workload::Sql;
        if id == 0 && !is_sql && self.random.below(6) == 0 {
            let task = if self.is_created { Administration::Drop(DROPPED) } else { Administration::Create(DROPPED) };
            return Some(self.administer(task, now));
        }
        if id == 1 && self.splits_left > 0 && self.random.below(10) == 0 {
            self.splits_left -= 1;
            let (table, mut key) = self.rows.any(&mut self.random);
            if self.random.below(3) == 0 {
                key = [&key[..], b"+"].concat().into();
            }
            return Some(self.administer(Administration::Split((table, key)), now));
        }
        if is_sql {
            return Some(self.any_script(id, now));
        }
        Some(match self.random.below(20) {
            0 | 1 => self.plain_read(now),
            2..5 if self.rows.has_plain_writes() => {
                let writes = vec![self.rows.plain_write(&mut self.random)];
                Job { writes, phase: Phase::Writing, ..self.job(Kind::PlainWrite, now) }
            }
            5 | 6 => self.snapshot(now),
            _ => {
                let plan = self.rows.plan(&mut self.random);
                self.transaction(plan, now)
            }
        })
    }

    fn job(&mut self, kind: Kind, now: TrueTime) -> Job {
        let owner = LockOwner { started: Timestamp(now.cast_signed()), id: self.random.draw() };
        Job {
            kind,
            begun: now,
            phase: Phase::Reading,
            questions: VecDeque::new(),
            consistency: Consistency::Strong,
            found: Vec::new(),
            spans: Vec::new(),
            writes: Vec::new(),
            owner,
            commit: None,
            attempts: 0,
            tries: 0,
            in_doubt: false,
        }
    }

    fn transaction(&mut self, plan: Plan, now: TrueTime) -> Job {
        let mut job = self.job(Kind::Transaction(plan), now);
        job.begin_attempt();
        job
    }

    fn administer(&mut self, task: Administration, now: TrueTime) -> Job {
        Job { phase: Phase::Administering, ..self.job(Kind::Administration(task), now) }
    }

    fn plain_read(&mut self, now: TrueTime) -> Job {
        let place = self.rows.any(&mut self.random);
        let question = match self.random.below(4) {
            0 => Question::Rows(place.0, Bytes::new()),
            _ => Question::Row(place),
        };
        let is_anywhere = self.random.below(3) == 0 && self.replication == Replication::Paxos;
        let consistency = if is_anywhere { Consistency::Anywhere } else { Consistency::Strong };
        Job { questions: VecDeque::from([question]), consistency, ..self.job(Kind::PlainRead, now) }
    }

    /// Reads all rows, as of now or of an earlier moment.
    fn snapshot(&mut self, now: TrueTime) -> Job {
        let questions = self.rows.all_questions(&mut self.random);
        let is_now = self.random.below(2) == 0;
        let job = Job { questions, ..self.job(Kind::Snapshot { is_now }, now) };
        if is_now && self.random.below(2) == 0 {
            return Job { phase: Phase::Dating(self.rows.any(&mut self.random)), ..job };
        }
        if is_now {
            return Job { phase: Phase::Clock, ..job };
        }
        Job { consistency: Consistency::At(self.history.moment(&mut self.random)), ..job }
    }

    /// Once all others are done, the first client reads all rows.
    fn last_read(&mut self, id: usize, now: TrueTime) -> Option<Job> {
        let client = &mut self.clients[id];
        let read = client.final_reads;
        if id != 0 || read > self.rows.places().len() {
            client.is_done = true;
            return None;
        }
        if self.clients[1..].iter().any(|client| !client.is_done) {
            return None;
        }
        self.clients[id].final_reads += 1;
        match self.rows.places().get(read).cloned() {
            Some(place) => {
                Some(Job { questions: VecDeque::from([Question::Row(place)]), ..self.job(Kind::PlainRead, now) })
            }
            None if self.rows.workload == Workload::Sql => Some(self.audit_database(id, now)),
            None => {
                let plan = self.rows.audit();
                Some(self.transaction(plan, now))
            }
        }
    }
}

impl Job {
    /// Begins to run the plan of a transaction, for the first time or after it was aborted.
    fn begin_attempt(&mut self) {
        self.questions = match &self.kind {
            Kind::Transaction(plan) => plan.questions.iter().cloned().collect(),
            Kind::Script(_) => VecDeque::new(),
            _ => return,
        };
        self.phase = Phase::Reading;
        self.consistency = Consistency::Locking(self.owner);
        (self.found, self.spans, self.writes) = (Vec::new(), Vec::new(), Vec::new());
        (self.tries, self.in_doubt, self.commit) = (0, false, None);
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        (self.tries, self.in_doubt) = (0, false);
    }
}

impl World {
    pub(crate) fn begin_transactions(&mut self) {
        for client in 0..self.transactions.clients.len() {
            self.queue.put(self.now + MILLISECOND, Happening::TransactionClient { client });
        }
    }

    /// Faults have ended: the clients end their jobs.
    pub(crate) fn end_transactions(&mut self) {
        self.transactions.is_ending = true;
        self.begin_transactions();
    }

    pub(crate) fn transaction_client(&mut self, id: usize) {
        let now = self.now;
        let transactions = &mut self.transactions;
        let client = &transactions.clients[id];
        if client.is_done || client.is_asked {
            return;
        }
        if client.job.is_none() {
            match transactions.choose(id, now) {
                Some(job) => transactions.clients[id].job = Some(job),
                None if transactions.clients[id].is_done => return,
                None => return self.transaction_client_later(id, 20 * MILLISECOND),
            }
        }
        self.ask_for_transaction(id);
    }

    fn transaction_client_later(&mut self, id: usize, most: TrueTime) {
        let at = self.now + 1 + self.transactions.random.below(most);
        self.queue.put(at, Happening::TransactionClient { client: id });
    }

    /// The job of a client has ended.
    fn transaction_job_ended(&mut self, id: usize) {
        self.transactions.clients[id].job = None;
        let most = if self.transactions.is_ending { MILLISECOND } else { THINK };
        self.transaction_client_later(id, most);
    }
}
