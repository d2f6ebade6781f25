//! The requests of a transactional client, and its handling of the replies.

use std::collections::{BTreeSet, VecDeque};

use base::{Duration, KeyRange, NodeId, Timestamp};
use bytes::{BufMut as _, Bytes, BytesMut};
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, Replication, TableOptions};
use node::contract::RequestId;
use node::request::{Ask, Outcome, Request, Response, TransactionRequest};
use state_machine::{AsOf, Consistency, Failure, SessionStamp, StateMachine as _};
use tablets::request::{Columns, Mutation, Row, Scan, TableRequest, Write};
use tablets::transaction::{ReadSpan, TransactionOutcome, TransactionPart};
use tablets::{TableResponse, Tablet};

use super::history::{Done, Ended};
use super::workloads::{COLUMN, Workload};
use super::{
    ATTEMPTS_MAX, Administration, CommitStamp, DROPPED, Found, Job, Kind, Phase, Place, Question, Session, Setup,
    TABLES, TransactionClients,
};
use crate::world::clients::RETENTION;
use crate::world::clocks::WALL_START;
use crate::world::events::Happening;
use crate::world::{MILLISECOND, TrueTime, World};

/// Deadline of a request at its node.
const DEADLINE: Duration = Duration::from_millis(1_500);
/// The same for changes of tables, which take longer.
const LONG_DEADLINE: Duration = Duration::from_millis(5_000);
/// How long a client waits beyond the deadline.
const PATIENCE: TrueTime = 300 * MILLISECOND;
/// Maximum pause before a request is sent again.
const AGAIN: TrueTime = 100 * MILLISECOND;
/// Failed requests after which a client abandons a read, or requests the outcome of a commit.
const TRIES_MAX: u32 = 6;

impl Administration {
    fn request(&self, split_at: Bytes, replicas: u32, replication: Replication) -> Request {
        let command = match self {
            Self::Create(table) => CatalogCommand::CreateTable {
                name: TABLES[*table].to_owned(),
                split_at: vec![split_at],
                options: TableOptions {
                    replicas,
                    retention: RETENTION,
                    replication: Some(replication),
                    ..TableOptions::of(Tablet::KIND)
                },
            },
            Self::Drop(table) => CatalogCommand::BeginDrop { name: TABLES[*table].to_owned(), force: false },
            Self::Split((table, key)) => {
                CatalogCommand::BeginSplit { name: TABLES[*table].to_owned(), key: key.clone() }
            }
        };
        Request::Catalog(CatalogRequest::Change(command))
    }
}

impl Job {
    /// The request of its phase.
    fn request(&self, split_at: Bytes, replicas: u32, replication: Replication) -> Request {
        let of_table =
            |table: usize, request| Request::Table { table: TABLES[table].to_owned(), request: Ask::Tablet(request) };
        let consistency = self.consistency;
        match &self.phase {
            Phase::Clock => Request::Clock,
            Phase::Dating((table, key)) => {
                let (key, columns) = (key.clone(), Columns::default());
                of_table(*table, TableRequest::Get { key, columns, consistency: Consistency::StrongAsOf })
            }
            Phase::Reading => match &self.questions[0] {
                Question::Row((table, key)) => {
                    of_table(*table, TableRequest::Get { key: key.clone(), columns: Columns::default(), consistency })
                }
                Question::Rows(table, from) => {
                    let scan = Scan { continuation: Some(from.clone()), ..Scan::default() };
                    of_table(*table, TableRequest::Scan { scan, consistency })
                }
                Question::Span(table, KeyRange { start, end }, limit) => {
                    let limit = *limit;
                    let scan = Scan { from: start.clone(), to: end.clone(), limit, ..Scan::default() };
                    of_table(*table, TableRequest::Scan { scan, consistency })
                }
            },
            Phase::Opening((table, key)) => of_table(*table, TableRequest::OpenSession { key: key.clone() }),
            Phase::Committing => self.commit_request(),
            // Some acknowledged commits are sent again.
            Phase::Repeating(_) if self.owner.id.is_multiple_of(2) => self.commit_request(),
            Phase::Resolving | Phase::Repeating(_) => {
                let CommitStamp { place: (table, key), stamp } = self.commit.clone().expect("it has a stamp");
                of_table(table, TableRequest::Abort { key, stamp })
            }
            Phase::Writing => {
                let change = &self.writes[0];
                let is_conditional = self.owner.id.is_multiple_of(2);
                let columns = change.change.columns.iter().cloned();
                let mutations = columns.map(|(column, value)| {
                    // The column of a list's value is new, so the condition holds.
                    let has_condition = is_conditional && column != COLUMN;
                    Mutation { column, value, condition: has_condition.then_some(Timestamp(0)) }
                });
                let write = Write { stamp: None, key: change.change.key.clone(), mutations: mutations.collect() };
                of_table(change.table, TableRequest::Write(write))
            }
            Phase::Administering => {
                let Kind::Administration(task) = &self.kind else { unreachable!("only such jobs administer") };
                task.request(split_at, replicas, replication)
            }
            Phase::Unlocking(places) => {
                let (table, key) = places[0].clone();
                of_table(table, TableRequest::Unlock { key, owner: self.owner })
            }
        }
    }

    fn commit_request(&self) -> Request {
        let CommitStamp { place: (table, key), stamp } = self.commit.clone().expect("it has a stamp");
        let mut parts: Vec<(String, TransactionPart)> =
            TABLES.iter().map(|name| ((*name).to_owned(), TransactionPart::default())).collect();
        for (table, span) in &self.spans {
            parts[*table].1.reads.push(span.clone());
        }
        for change in &self.writes {
            parts[change.table].1.writes.push(change.change.clone());
        }
        parts.retain(|(_, part)| *part != TransactionPart::default());
        let table = TABLES[table].to_owned();
        Request::Transaction(Box::new(TransactionRequest { stamp, table, key, owner: self.owner, parts }))
    }

    /// Whether the request of this phase may change something.
    fn may_be_in_doubt(&self) -> bool {
        matches!(self.phase, Phase::Committing | Phase::Writing)
    }

    pub(super) fn ended(&self, client: usize, now: TrueTime, outcome: Ended) -> Done {
        let (found, writes) = (self.found.clone(), self.writes.clone());
        // A read as of an earlier moment precedes everything that begins later, and nothing precedes it.
        let is_old = match &self.kind {
            Kind::Script(run) => run.is_past,
            kind => matches!(kind, Kind::Snapshot { is_now: false }),
        };
        let moment = if let Consistency::At(moment) = self.consistency { Some(moment) } else { None };
        let begun = if is_old { 0 } else { self.begun };
        let operations = if let Kind::Script(run) = &self.kind { run.operations.clone() } else { Vec::new() };
        Done { client, begun, ended: now, outcome, moment, found, writes, operations }
    }
}

impl TransactionClients {
    /// Chooses the coordinator of a transaction: a row of it, and sometimes another one.
    fn coordinator(&mut self, job: &Job) -> Place {
        let is_lasting = |place: &Place| place.0 != DROPPED;
        let written: Vec<Place> = job.writes.iter().map(super::Change::place).filter(is_lasting).collect();
        let read: Vec<Place> = job.found.iter().map(|found| found.place.clone()).collect();
        let among = if written.is_empty() { read } else { written };
        match self.random.below(8) {
            0 => self.rows.any(&mut self.random),
            _ if among.is_empty() => self.rows.any(&mut self.random),
            _ => among[self.random.below(among.len() as u64) as usize].clone(),
        }
    }

    /// The next stamp of a session of the range that holds the place.
    fn next_stamp(&mut self, id: usize, place: &Place) -> Option<SessionStamp> {
        let holds = |session: &&mut Session| session.table == place.0 && session.range.contains(&place.1);
        let session = self.clients[id].sessions.iter_mut().find(holds)?;
        session.last += 1;
        Some(SessionStamp { session: session.id, sequence: session.last, first_incomplete: session.last })
    }
}

impl World {
    /// Sends the request of a client's job to any node.
    pub(super) fn ask_for_transaction(&mut self, id: usize) {
        let job = &mut self.transactions.clients[id].job;
        let is_at_script = |job: &mut Job| job.phase == Phase::Reading && job.questions.is_empty();
        if let Some(job) = job.take_if(is_at_script) {
            return self.script_goes_on(id, job);
        }
        let running = self.hosts.iter().filter(|(_, machine)| machine.process.is_some());
        let running: Vec<NodeId> = running.map(|(node, _)| *node).collect();
        let drawn = self.transactions.random.below(running.len().max(1) as u64) as usize;
        let node = running.get(drawn).copied().unwrap_or(NodeId(1));
        let split_at = self.transactions.rows.split_at();
        let (replicas, replication) = (self.options.replicas, self.options.replication);
        let client = &mut self.transactions.clients[id];
        let Some(job) = client.job.as_ref() else { return };
        let deadline = if matches!(job.phase, Phase::Administering) { LONG_DEADLINE } else { DEADLINE };
        let request = job.request(split_at, replicas, replication);
        client.is_asked = true;
        let Some(machine) = self.hosts.get(&node).filter(|machine| machine.process.is_some()) else {
            return self.transaction_answered_with(id, Err(Failure::Unavailable("nobody listens".to_owned())));
        };
        let generation = machine.generation;
        let number = self.libraries.number();
        self.transactions.asked.insert(number, (id, node));
        self.queue.put(self.now + deadline.0 + PATIENCE, Happening::TransactionPatience { request: number });
        let delay = if self.healed { 0 } else { self.transaction_delay() };
        self.put_request(node, generation, number, self.now + delay, deadline, request);
    }

    /// Some requests arrive late, when the client has given them up.
    fn transaction_delay(&mut self) -> TrueTime {
        let random = &mut self.transactions.random;
        if random.below(50) == 0 { random.below(4_000) * MILLISECOND } else { 0 }
    }

    /// Passes a reply to its client. Returns false if the request is none of a transactional client.
    pub(in crate::world) fn transaction_answered(&mut self, request: RequestId, outcome: &Outcome) -> bool {
        let Some((id, _)) = self.transactions.asked.remove(&request) else { return false };
        self.transaction_answered_with(id, outcome.clone());
        true
    }

    pub(in crate::world) fn transaction_given_up(&mut self, request: RequestId) {
        self.transaction_answered(request, &Err(Failure::Unknown("no answer".to_owned())));
    }

    /// A node's process has ended, which closes all connections to it.
    pub(in crate::world) fn transactions_lose(&mut self, node: NodeId) {
        let lost = self.transactions.asked.iter().filter(|(_, (_, at))| *at == node);
        let lost: Vec<RequestId> = lost.map(|(request, _)| *request).collect();
        for request in lost {
            self.transaction_answered(request, &Err(Failure::Unknown("connection lost".to_owned())));
        }
    }

    fn transaction_answered_with(&mut self, id: usize, outcome: Outcome) {
        let client = &mut self.transactions.clients[id];
        client.is_asked = false;
        let Some(mut job) = client.job.take() else { return };
        job.tries += 1;
        if job.may_be_in_doubt() {
            job.in_doubt |= matches!(outcome, Err(Failure::Unknown(_)));
        }
        match job.phase.clone() {
            Phase::Clock => self.clock_answered(id, job, outcome),
            Phase::Dating(place) => self.date_answered(id, job, &place, outcome),
            Phase::Reading => self.read_answered(id, job, outcome),
            Phase::Opening(place) => self.session_answered(id, job, place, outcome),
            Phase::Committing => self.commit_answered(id, job, outcome),
            Phase::Resolving => self.resolution_answered(id, job, outcome),
            Phase::Repeating(timestamp) => self.repetition_answered(id, job, timestamp, &outcome),
            Phase::Writing => self.plain_write_answered(id, &job, outcome),
            Phase::Administering => self.administration_answered(id, job, &outcome),
            Phase::Unlocking(places) => self.unlocked(id, job, places),
        }
    }

    /// Sends the request again, after a pause.
    fn transaction_again(&mut self, id: usize, job: Job) {
        self.transactions.clients[id].job = Some(job);
        self.transaction_client_later(id, AGAIN);
    }

    /// Continues with the next request at once.
    pub(super) fn transaction_goes_on(&mut self, id: usize, job: Job) {
        self.transactions.clients[id].job = Some(job);
        self.ask_for_transaction(id);
    }

    /// The job ends without a result. A transaction releases its read locks, or leaves them to expire.
    pub(super) fn transaction_given_up_by_client(&mut self, id: usize, mut job: Job) {
        self.count("transactions given up");
        let is_locking = matches!(job.consistency, Consistency::Locking(_));
        let places: BTreeSet<Place> = job.found.iter().map(|found| found.place.clone()).collect();
        if is_locking && !places.is_empty() && job.owner.id.is_multiple_of(3) {
            job.enter(Phase::Unlocking(places.into_iter().collect()));
            return self.transaction_goes_on(id, job);
        }
        self.transaction_job_ended(id);
    }

    fn unlocked(&mut self, id: usize, mut job: Job, mut places: VecDeque<Place>) {
        places.pop_front();
        if places.is_empty() {
            return self.transaction_job_ended(id);
        }
        job.enter(Phase::Unlocking(places));
        self.transaction_goes_on(id, job);
    }

    #[expect(clippy::needless_pass_by_value, reason = "the reply is consumed, like those of other requests")]
    fn clock_answered(&mut self, id: usize, mut job: Job, outcome: Outcome) {
        let Ok(Response::Clock(interval)) = outcome else { return self.transaction_job_ended(id) };
        let time = Timestamp(WALL_START + self.now.cast_signed());
        // The reply was on its way.
        let is_possible = interval.earliest <= time;
        if !is_possible && self.options.lying_node.is_none() {
            return self.violate(&format!("a node reports the time {interval:?} at {time}"));
        }
        job.consistency = Consistency::At(interval.latest);
        job.enter(Phase::Reading);
        self.transaction_goes_on(id, job);
    }

    /// The rows of the range are then read as of the timestamp in the reply, all others not at all.
    fn date_answered(&mut self, id: usize, mut job: Job, (table, _): &Place, outcome: Outcome) {
        match outcome {
            Ok(Response::Dated { as_of, .. }) => {
                let is_there = |place: &Place| place.0 == *table && as_of.range.contains(&place.1);
                let places = self.transactions.rows.places().iter().filter(|place| is_there(place));
                job.questions = places.cloned().map(Question::Row).collect();
                job.consistency = Consistency::At(as_of.timestamp);
                self.count("snapshots of one range");
                job.enter(Phase::Reading);
            }
            Ok(_) => {
                self.count("strong reads without a moment");
                job.enter(Phase::Clock);
            }
            Err(_) => return self.transaction_job_ended(id),
        }
        self.transaction_goes_on(id, job);
    }

    fn read_answered(&mut self, id: usize, mut job: Job, outcome: Outcome) {
        let (response, as_of) = match outcome {
            Ok(Response::Dated { response, as_of }) => (Ok(*response), Some(*as_of)),
            other => (other, None),
        };
        let is_locking = matches!(job.consistency, Consistency::Locking(_));
        let is_dated = is_locking || matches!(job.consistency, Consistency::At(_));
        match (response, job.questions.front().cloned()) {
            (Ok(Response::Tablet(TableResponse::Row { cells, rest: None })), Some(Question::Row(place)))
                if as_of.is_some() == is_dated =>
            {
                let range = KeyRange { start: place.1.clone(), end: Some(successor(&place.1)) };
                job.note(place.0, range.clone(), as_of.as_ref());
                if let Kind::Script(run) = &mut job.kind {
                    run.reply(range, None, vec![Row { key: place.1.clone(), cells: cells.clone() }]);
                }
                job.found.push(Found { place, cells, at: as_of.map(|as_of| as_of.timestamp) });
                job.questions.pop_front();
            }
            (
                Ok(Response::Tablet(TableResponse::Rows { rows, continuation, rest: None })),
                Some(Question::Rows(table, from)),
            ) if as_of.is_some() == is_dated => {
                let range = KeyRange { start: from, end: continuation.clone() };
                self.rows_found(&mut job, table, &range, rows, as_of.as_ref());
                job.note(table, range, as_of.as_ref());
                job.questions.pop_front();
                if let Some(next) = continuation {
                    job.questions.push_front(Question::Rows(table, next));
                }
                if matches!(job.kind, Kind::PlainRead) {
                    // Each page is as of another moment.
                    self.transaction_ended(job.ended(id, self.now, Ended::Committed(None)));
                    (job.found, job.begun) = (Vec::new(), self.now);
                    if job.questions.is_empty() {
                        return self.transaction_job_ended(id);
                    }
                }
            }
            (
                Ok(Response::Tablet(TableResponse::Rows { rows, continuation, rest: None })),
                Some(Question::Span(table, KeyRange { start, end }, _)),
            ) if as_of.is_some() == is_dated => {
                let of_range = as_of.as_ref().and_then(|as_of| as_of.range.end.clone());
                let shown = [&continuation, &end, &of_range].into_iter().flatten().min().cloned();
                let rest = shown.clone().filter(|shown| Some(shown) != end.as_ref());
                let range = KeyRange { start, end: shown };
                if let Some(row) = rows.iter().find(|row| !range.contains(&row.key)) {
                    return self.violate(&format!("a page of {range} contains {row:?}"));
                }
                job.note(table, range.clone(), as_of.as_ref());
                let at = as_of.map(|as_of| as_of.timestamp);
                let found = |row: &Row| Found { place: (table, row.key.clone()), cells: row.cells.clone(), at };
                job.found.extend(rows.iter().map(found));
                if let Kind::Script(run) = &mut job.kind {
                    run.reply(range, rest, rows);
                }
                job.questions.pop_front();
            }
            (Err(Failure::Unavailable(_) | Failure::NoSpace(_) | Failure::Overloaded(_) | Failure::Unknown(_)), _) => {
                let goes_on = self.transactions.is_ending && matches!(job.kind, Kind::PlainRead);
                if job.tries < TRIES_MAX || goes_on {
                    return self.transaction_again(id, job);
                }
                return self.transaction_given_up_by_client(id, job);
            }
            // Before the watermark, or in the future.
            (Err(Failure::Precondition(_)), _) if matches!(job.consistency, Consistency::At(_)) => {
                self.count("snapshots rejected");
                return self.transaction_job_ended(id);
            }
            (other, question) => {
                return self.violate(&format!("{question:?}: unexpected outcome {other:?}"));
            }
        }
        job.tries = 0;
        if !job.questions.is_empty() {
            return self.transaction_goes_on(id, job);
        }
        match job.kind.clone() {
            Kind::Transaction(plan) => {
                job.writes = self.transactions.rows.decide(&plan, &job.found);
                self.begin_commit(id, job);
            }
            Kind::Script(_) => self.script_goes_on(id, job),
            Kind::Snapshot { is_now } => {
                self.count(if is_now { "snapshots of now" } else { "snapshots of the past" });
                self.transaction_ended(job.ended(id, self.now, Ended::Committed(None)));
                self.transaction_job_ended(id);
            }
            _ => {
                self.transaction_ended(job.ended(id, self.now, Ended::Committed(None)));
                self.transaction_job_ended(id);
            }
        }
    }

    /// A page of rows: those that it lacks do not exist.
    #[expect(clippy::needless_pass_by_value, reason = "the reply is consumed, like those of other requests")]
    fn rows_found(&mut self, job: &mut Job, table: usize, range: &KeyRange, rows: Vec<Row>, as_of: Option<&AsOf>) {
        let at = as_of.map(|as_of| as_of.timestamp);
        for (of, key) in self.transactions.rows.places() {
            if *of == table && range.contains(key) {
                let row = rows.iter().find(|row| row.key == *key);
                let cells = row.map_or_else(Vec::new, |row| row.cells.clone());
                job.found.push(Found { place: (table, key.clone()), cells, at });
            }
        }
        let is_known = |row: &Row| self.transactions.rows.places().contains(&(table, row.key.clone()));
        if let Some(row) = rows.iter().find(|row| !is_known(row) || !range.contains(&row.key)) {
            self.violate(&format!("a page of {range} of table {} contains {row:?}", TABLES[table]));
        }
    }

    /// Takes a stamp, or opens a session first.
    pub(super) fn begin_commit(&mut self, id: usize, mut job: Job) {
        let place = match &job.phase {
            Phase::Opening(place) => place.clone(),
            _ => self.transactions.coordinator(&job),
        };
        match self.transactions.next_stamp(id, &place) {
            Some(stamp) => {
                job.commit = Some(CommitStamp { place, stamp });
                job.enter(Phase::Committing);
            }
            None => job.enter(Phase::Opening(place)),
        }
        self.transaction_goes_on(id, job);
    }

    fn session_answered(&mut self, id: usize, mut job: Job, (table, key): Place, outcome: Outcome) {
        match outcome {
            Ok(Response::Tablet(TableResponse::SessionOpened { session, range })) => {
                if !range.contains(&key) {
                    return self.violate(&format!("a session for {key:?} was opened in another range, {range}"));
                }
                let sessions = &mut self.transactions.clients[id].sessions;
                sessions.push(Session { table, range, id: session, last: 0 });
                self.begin_commit(id, job);
            }
            Err(Failure::Unavailable(_) | Failure::NoSpace(_) | Failure::Overloaded(_) | Failure::Unknown(_)) => {
                if job.tries < TRIES_MAX {
                    return self.transaction_again(id, job);
                }
                job.phase = Phase::Reading;
                self.transaction_given_up_by_client(id, job);
            }
            other => self.violate(&format!("opening a session: unexpected outcome {other:?}")),
        }
    }

    fn commit_answered(&mut self, id: usize, mut job: Job, outcome: Outcome) {
        match outcome {
            Ok(Response::Tablet(
                TableResponse::Committed { timestamp, .. } | TableResponse::Written { version: timestamp },
            )) => self.transaction_committed(id, job, timestamp),
            // The coordinator has recorded the abort.
            Err(Failure::Aborted(_)) => self.transaction_aborted(id, job),
            Err(Failure::Unknown(_) | Failure::Unavailable(_) | Failure::NoSpace(_) | Failure::Overloaded(_)) => {
                if job.tries < TRIES_MAX {
                    return self.transaction_again(id, job);
                }
                if !job.in_doubt && !self.transactions.is_ending {
                    self.count("commits without effect");
                    return self.transaction_without_effect(id, job);
                }
                job.enter(Phase::Resolving);
                self.transaction_goes_on(id, job);
            }
            Err(failure @ (Failure::Precondition(_) | Failure::UnknownTable(_) | Failure::UnknownSession(_))) => {
                if let Failure::UnknownSession(session) = failure {
                    self.transactions.clients[id].sessions.retain(|known| known.id != session);
                }
                if job.in_doubt {
                    job.enter(Phase::Resolving);
                    return self.transaction_goes_on(id, job);
                }
                self.count("commits refused");
                self.transaction_without_effect(id, job);
            }
            other => self.violate(&format!("{job:?}: unexpected outcome {other:?}")),
        }
    }

    /// No request of the commit had an effect, and none will.
    fn transaction_without_effect(&mut self, id: usize, job: Job) {
        self.transaction_ended(job.ended(id, self.now, Ended::Aborted));
        self.transaction_given_up_by_client(id, job);
    }

    fn transaction_committed(&mut self, id: usize, mut job: Job, timestamp: Timestamp) {
        self.count("transactions committed");
        if job.tries > 1 {
            self.count("transactions committed by a retry");
        }
        self.transaction_ended(job.ended(id, self.now, Ended::Committed(Some(timestamp))));
        self.script_committed(id, &job, timestamp);
        if self.transactions.setup == Setup::Fill {
            self.transactions.setup = Setup::Done;
        }
        if self.transactions.random.below(8) == 0 {
            job.enter(Phase::Repeating(timestamp));
            return self.transaction_again(id, job);
        }
        self.transaction_job_ended(id);
    }

    /// The transaction is aborted for good: it begins again with the same priority.
    fn transaction_aborted(&mut self, id: usize, mut job: Job) {
        self.count("transactions aborted");
        self.transaction_ended(job.ended(id, self.now, Ended::Aborted));
        job.attempts += 1;
        if job.attempts >= ATTEMPTS_MAX || self.transactions.is_ending && id != 0 {
            return self.transaction_given_up_by_client(id, job);
        }
        job.begun = self.now;
        self.transactions.begin_script(id, &mut job);
        job.begin_attempt();
        self.transaction_again(id, job);
    }

    fn resolution_answered(&mut self, id: usize, job: Job, outcome: Outcome) {
        self.count("outcomes asked for");
        match outcome {
            Ok(Response::Tablet(TableResponse::Outcome(outcome))) => match outcome {
                TransactionOutcome::Committed { timestamp, .. } => self.transaction_committed(id, job, timestamp),
                TransactionOutcome::Aborted => self.transaction_aborted(id, job),
                TransactionOutcome::Forgotten => {
                    self.count("outcomes forgotten");
                    if let Some(CommitStamp { stamp, .. }) = &job.commit {
                        self.transactions.clients[id].sessions.retain(|known| known.id != stamp.session);
                    }
                    self.transaction_ended(job.ended(id, self.now, Ended::Unknown));
                    self.transaction_job_ended(id);
                }
            },
            Err(Failure::Unknown(_) | Failure::Unavailable(_) | Failure::NoSpace(_) | Failure::Overloaded(_)) => {
                self.transaction_again(id, job);
            }
            other => self.violate(&format!("{job:?}: unexpected outcome {other:?}")),
        }
    }

    /// A commit that is repeated has the same outcome for ever, while its session lasts.
    fn repetition_answered(&mut self, id: usize, job: Job, timestamp: Timestamp, outcome: &Outcome) {
        let said = match outcome {
            Ok(Response::Tablet(
                TableResponse::Committed { timestamp, .. } | TableResponse::Written { version: timestamp },
            )) => Some(*timestamp),
            Ok(Response::Tablet(TableResponse::Outcome(TransactionOutcome::Committed { timestamp, .. }))) => {
                Some(*timestamp)
            }
            Err(Failure::UnknownSession(session)) => {
                self.transactions.clients[id].sessions.retain(|known| known.id != *session);
                Some(timestamp)
            }
            Ok(Response::Tablet(TableResponse::Outcome(TransactionOutcome::Forgotten))) => Some(timestamp),
            // Its locks, or the clock, do not permit it now.
            Err(
                Failure::Unknown(_)
                | Failure::Unavailable(_)
                | Failure::NoSpace(_)
                | Failure::Overloaded(_)
                | Failure::Precondition(_)
                | Failure::UnknownTable(_),
            ) => {
                if job.tries < TRIES_MAX {
                    return self.transaction_again(id, job);
                }
                Some(timestamp)
            }
            _ => None,
        };
        if said != Some(timestamp) {
            return self.violate(&format!("{job:?} was committed at {timestamp}, but its repetition: {outcome:?}"));
        }
        self.count("commits repeated");
        self.transaction_job_ended(id);
    }

    fn plain_write_answered(&mut self, id: usize, job: &Job, outcome: Outcome) {
        let outcome = match outcome {
            Ok(Response::Tablet(TableResponse::Written { version })) => Ended::Committed(Some(version)),
            Err(Failure::Unavailable(_) | Failure::NoSpace(_) | Failure::Overloaded(_)) => Ended::Aborted,
            Err(Failure::Unknown(_)) => Ended::Unknown,
            other => return self.violate(&format!("{job:?}: unexpected outcome {other:?}")),
        };
        self.transaction_ended(job.ended(id, self.now, outcome));
        self.transaction_job_ended(id);
    }

    fn administration_answered(&mut self, id: usize, job: Job, outcome: &Outcome) {
        let Kind::Administration(task) = job.kind.clone() else { return };
        let transactions = &mut self.transactions;
        match (&task, outcome) {
            (Administration::Create(table), Ok(Response::Catalog(CatalogResponse::TableCreated { .. }))) => {
                if *table == DROPPED {
                    transactions.is_created = true;
                } else if transactions.setup == Setup::Create(*table) {
                    let is_sql = transactions.rows.workload == Workload::Sql;
                    let needs_rows = matches!(transactions.rows.workload, Workload::Bank | Workload::Switches);
                    transactions.setup = match table + 1 {
                        _ if is_sql => Setup::Fill,
                        DROPPED if needs_rows => Setup::Fill,
                        DROPPED => Setup::Done,
                        next => Setup::Create(next),
                    };
                }
            }
            (Administration::Drop(_), Ok(_) | Err(Failure::UnknownTable(_))) => {
                transactions.is_created = false;
                self.count("tables with transactions dropped");
            }
            (Administration::Split(_), Ok(_)) => self.count("ranges with transactions split"),
            _ if job.tries < TRIES_MAX && !self.transactions.is_ending => return self.transaction_again(id, job),
            _ => {}
        }
        self.transaction_job_ended(id);
    }
}

impl Job {
    /// Notes keys that a transaction has read.
    fn note(&mut self, table: usize, range: KeyRange, as_of: Option<&AsOf>) {
        if let (Consistency::Locking(_), Some(as_of)) = (self.consistency, as_of) {
            self.spans.push((table, ReadSpan { range, seen: as_of.timestamp }));
        }
    }
}

/// The least key above `key`.
fn successor(key: &Bytes) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}
