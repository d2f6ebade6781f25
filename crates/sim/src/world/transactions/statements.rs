//! SQL transactions (guarantee 30). Each client runs scripts of statements on one database, as the session of a node
//! does: `sql` turns statements into reads and writes, and the client carries them out in a transaction. Its cache of the
//! schema may be old. The first client also changes the schema, and fills indexes in steps.
//!
//! The checks are those of all transactions (`history`); the histories of lists in columns of text are serializable
//! (`list_append`); and any consistent state satisfies the invariants of the database (`check`).

mod check;
mod scripts;
#[cfg(test)]
mod tests;
mod tx;

use std::collections::VecDeque;
use std::sync::Arc;

use base::{KeyRange, SplitMix64, Timestamp};
use bytes::Bytes;
use sql::direct::Read;
use sql::fence::Catalog;
use sql::keys::{of_id, write_value};
use sql::{Value, keys::Direction};
use state_machine::Consistency;

use super::history::Ended;
use super::{Job, Kind, Phase, Question, TransactionClients, TrueTime};
use crate::list_append::Operation;
use crate::world::World;
use scripts::{Progress, Script};
use tx::{Effect, Plans, Reply, Stop, Tx};

/// The table of the database.
pub(super) const DATABASE: usize = 0;
/// Maximum values that a transaction appends to lists.
const VALUES: u64 = 3;
/// The least such value: the checker uses lower ones for transactions without lists.
const VALUES_FROM: u64 = 1_000_000;
/// The greatest identifier of a table or index near which ranges are split.
const SPLIT_IDS: u64 = 12;

/// The state of the clients.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// The newest version of the schema that each client has seen.
    catalogs: Vec<Arc<Catalog>>,
    plans: Plans,
    progress: Option<Progress>,
    last_value: u64,
}

/// A transaction in execution.
#[derive(Clone, Debug)]
pub(super) struct Run {
    script: Script,
    seed: u64,
    /// It reads as of an earlier moment.
    pub(super) is_past: bool,
    catalog: Arc<Catalog>,
    replies: Vec<Reply>,
    pub(super) operations: Vec<Operation>,
    /// The version of the schema that it makes.
    next: Option<Arc<Catalog>>,
    progress: Option<Progress>,
    /// What is wrong if the reads are valid.
    wrong: Option<String>,
}

/// The key at which the table of the database is split at first.
pub(super) fn split_at() -> Bytes {
    of_id(2)
}

/// A key near the first rows of some table or index.
pub(super) fn any_key(random: &mut SplitMix64) -> Bytes {
    let mut key = of_id(1 + random.below(SPLIT_IDS) as u32).to_vec();
    let number = Value::Int8(1 + random.below(4).cast_signed());
    if random.below(2) == 0 && write_value(&number, Direction::Ascending, &mut key).is_err() {
        key.clear();
    }
    key.into()
}

impl Run {
    /// The reads that its script begins with, or its effect.
    fn step(&mut self, plans: &mut Plans, progress: Option<&Progress>) -> Result<Effect, Stop> {
        let mut tx = Tx::new(&self.catalog, &self.replies, plans, self.seed);
        let progress = scripts::run(self.script, &mut tx, progress)?;
        let effect = tx.finish()?;
        self.progress = progress;
        self.operations.clone_from(&effect.operations);
        self.next.clone_from(&effect.catalog);
        Ok(effect)
    }

    fn restart(&mut self, catalog: Arc<Catalog>) {
        self.catalog = catalog;
        (self.replies, self.operations) = (Vec::new(), Vec::new());
        (self.next, self.progress, self.wrong) = (None, None, None);
    }

    /// The reply to a read: a row, or the rows of some keys.
    pub(super) fn reply(&mut self, keys: KeyRange, rest: Option<Bytes>, rows: Vec<tablets::request::Row>) {
        let cells =
            |cells: Vec<tablets::request::Cell>| cells.into_iter().map(|cell| (cell.column, cell.value)).collect();
        let rows =
            rows.into_iter().filter(|row| !row.cells.is_empty()).map(|row| (row.key, cells(row.cells))).collect();
        self.replies.push(Reply { keys, rest, rows });
    }
}

fn question(read: Read) -> Question {
    match read {
        // Locks only prevent wasted work: the simulation of validation needs none.
        Read::Row(key) | Read::Locked(key) | Read::Entry(key) => Question::Row((DATABASE, key)),
        Read::Range(range, limit) | Read::Cells(range, limit, _) => {
            Question::Span(DATABASE, KeyRange { start: range.start, end: Some(range.end) }, limit)
        }
    }
}

impl TransactionClients {
    /// The first transaction: it creates the tables of the database.
    pub(super) fn create_database(&mut self, id: usize, now: TrueTime) -> Job {
        self.script(id, Script::Create, now)
    }

    /// The last transaction: it checks the whole database.
    pub(super) fn audit_database(&mut self, id: usize, now: TrueTime) -> Job {
        self.script(id, Script::Audit, now)
    }

    pub(super) fn any_script(&mut self, id: usize, now: TrueTime) -> Job {
        let is_filling = self.sessions.progress.is_some();
        if id == 0 && self.random.below(if is_filling { 2 } else { 4 }) == 0 {
            return self.script(id, Script::Alter, now);
        }
        match self.random.below(20) {
            0 => self.script(id, Script::Audit, now),
            1 => {
                let is_now = self.random.below(2) == 0;
                let mut job = self.script(id, Script::Audit, now);
                if is_now {
                    return Job { phase: Phase::Clock, ..job };
                }
                if let Kind::Script(run) = &mut job.kind {
                    run.is_past = true;
                }
                Job { consistency: Consistency::At(self.history.moment(&mut self.random)), ..job }
            }
            2..10 => self.script(id, Script::Bank, now),
            10..15 => self.script(id, Script::Lists(0), now),
            _ => self.script(id, Script::Families, now),
        }
    }

    fn script(&mut self, id: usize, script: Script, now: TrueTime) -> Job {
        let run = Run {
            script,
            seed: self.random.draw(),
            is_past: false,
            catalog: Arc::default(),
            replies: Vec::new(),
            operations: Vec::new(),
            next: None,
            progress: None,
            wrong: None,
        };
        let mut job = self.job(Kind::Script(Box::new(run)), now);
        self.begin_script(id, &mut job);
        job.begin_attempt();
        job
    }

    /// Begins a script, for the first time or again.
    pub(super) fn begin_script(&mut self, id: usize, job: &mut Job) {
        let Kind::Script(run) = &mut job.kind else { return };
        let sessions = &mut self.sessions;
        if sessions.catalogs.len() <= id {
            sessions.catalogs.resize_with(id + 1, Arc::default);
        }
        run.restart(Arc::clone(&sessions.catalogs[id]));
        if let Script::Lists(first) = &mut run.script {
            // Those of an aborted attempt are never used again.
            *first = VALUES_FROM + sessions.last_value;
            sessions.last_value += VALUES;
        }
    }
}

impl Job {
    /// Forgets the replies, and what the reads locked is still locked.
    fn read_again(&mut self, catalog: Arc<Catalog>) {
        let consistency = self.consistency;
        if let Kind::Script(run) = &mut self.kind {
            run.restart(catalog);
        }
        self.begin_attempt();
        self.consistency = consistency;
    }
}

impl World {
    /// Continues the script of a client with the replies so far.
    pub(super) fn script_goes_on(&mut self, id: usize, mut job: Job) {
        let is_snapshot = matches!(job.consistency, Consistency::At(_));
        let Kind::Script(run) = &mut job.kind else { return };
        let sessions = &mut self.transactions.sessions;
        match run.step(&mut sessions.plans, sessions.progress.as_ref()) {
            Err(Stop::Reads(reads)) => {
                job.questions = reads.into_iter().map(question).collect::<VecDeque<_>>();
                return self.transaction_goes_on(id, job);
            }
            Err(Stop::Stale(catalog)) => {
                let catalog = Arc::new(catalog);
                if !is_snapshot {
                    sessions.catalogs[id] = Arc::clone(&catalog);
                }
                job.read_again(catalog);
                self.count("schemas refreshed");
                return self.script_goes_on(id, job);
            }
            Err(Stop::RolledBack) => {
                self.count("SQL transactions rolled back");
                return self.transaction_given_up_by_client(id, job);
            }
            Err(Stop::Wrong(wrong)) => run.wrong = Some(wrong),
            Ok(Effect { writes, .. }) => job.writes = writes,
        }
        if is_snapshot {
            if let Some(wrong) = run.wrong.take() {
                return self.violate(&format!("a snapshot at {:?}: {wrong}", job.consistency));
            }
            self.count("SQL snapshots");
            self.transaction_ended(job.ended(id, self.now, Ended::Committed(None)));
            return self.transaction_job_ended(id);
        }
        // A transaction that only reads shows one state once it is committed.
        self.begin_commit(id, job);
    }

    /// A script is committed.
    pub(super) fn script_committed(&mut self, id: usize, job: &Job, timestamp: Timestamp) {
        let Kind::Script(run) = &job.kind else { return };
        if let Some(wrong) = &run.wrong {
            return self.violate(&format!("at {timestamp}: {wrong}; {:?}", run.script));
        }
        let sessions = &mut self.transactions.sessions;
        let catalog = run.next.as_ref().unwrap_or(&run.catalog);
        if run.script == Script::Create {
            // Each client knows this version when it begins.
            sessions.catalogs.resize(self.options.transaction_clients as usize, Arc::default());
            sessions.catalogs.fill(Arc::clone(catalog));
        } else {
            sessions.catalogs[id] = Arc::clone(catalog);
        }
        let counter = match (run.script, &run.next) {
            (Script::Alter, next) => {
                sessions.progress.clone_from(&run.progress);
                if next.is_some() { "SQL schema changes" } else { "SQL index pages" }
            }
            (Script::Audit, _) => "SQL audits",
            (Script::Bank, _) => "SQL transfers",
            (Script::Lists(_), _) => "SQL appends",
            (Script::Families, _) => "SQL families",
            (Script::Create, _) => "SQL databases",
        };
        self.count(counter);
    }
}
