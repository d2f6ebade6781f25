//! The clients' libraries: the product's state machine (`client::Client`), driven as the async library drives it. A few
//! clients share one, like tasks of one program, so that writes of one session run concurrently.
//!
//! Connections are established, break with their process, and break spontaneously; requests have a latency.
//! Occasionally a client is cut off until its sessions may have expired before its retries arrive.

use std::collections::BTreeMap;

use base::{Monotonic, NodeId};
use bytes::Bytes;
use client::{
    Action, Ask, AttemptId, CallId, CohortLsn, Effect, Error, Fault, Link, NodeResponse, Pace, ScanStart, Sent, Shown,
    Stamp, TimelineToken, Version,
};
use node::contract::RequestId;
use node::request::{Outcome, Request, Response};
use state_machine::{ClientSessionId, Consistency, Failure, KeyPosition, LogPlace, SessionStamp};
use tablets::request::TableRequest;
use tablets::{Question, TableResponse};

use super::clients::TABLE;
use super::events::{Generation, Happening};
use super::{MILLISECOND, Options, SECOND, TrueTime, World};

const CLIENTS_EACH: u32 = 3;
/// Deadline of a call, including retries.
const DEADLINE: base::Duration = base::Duration::from_millis(6_000);
/// Maximum latency of a request.
const WAY: TrueTime = MILLISECOND;
/// Maximum time that a client is cut off.
const CUT_OFF: TrueTime = 5 * SECOND;
/// Sessions with this lifetime outlive every run.
const ENDLESS: base::Duration = base::Duration::from_millis(600_000);
/// Maximum time to establish a connection.
const CONNECTING: TrueTime = 5 * MILLISECOND;

type Library = client::Client<Request, Response>;

pub(crate) struct Libraries {
    all: Vec<Held>,
    /// The attempt of each request sent to a node.
    asked: BTreeMap<RequestId, Attempt>,
    next_request: u64,
}

/// A library and the state of its driver.
struct Held {
    machine: Library,
    /// The client of each call.
    callers: BTreeMap<CallId, u32>,
    /// The process of each connection.
    links: BTreeMap<Link, (NodeId, Generation)>,
    timer: u64,
    /// Its actions are being executed; actions that result from them follow afterwards.
    is_busy: bool,
    /// Nothing that it sends arrives before this time.
    cut_off_until: TrueTime,
}

/// An attempt sent to a node.
struct Attempt {
    of: usize,
    link: Link,
    attempt: AttemptId,
    /// The key for which a session is opened.
    opens: Option<Bytes>,
    /// Its table, with the table's sessions, is never dropped.
    is_lasting: bool,
}

impl Libraries {
    pub(crate) fn new(options: &Options, seed: u64) -> Self {
        let library = |number: u32| Held {
            machine: Library::new(options.nodes as usize, seed ^ u64::from(number)),
            callers: BTreeMap::new(),
            links: BTreeMap::new(),
            timer: 0,
            is_busy: false,
            cut_off_until: 0,
        };
        let all = (0..options.clients.div_ceil(CLIENTS_EACH)).map(library).collect();
        Self { all, asked: BTreeMap::new(), next_request: 0 }
    }

    /// The number for the next request.
    pub(crate) fn number(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request)
    }

    /// Passes the states that another library has seen to a client's library, as a token. Returns the clients of the
    /// other library.
    pub(super) fn pass_token(&mut self, to: u32, clients: u32) -> Vec<u32> {
        let to = self.of(to);
        let from = (to + 1) % self.all.len();
        let token = self.all[from].machine.token(Some(TABLE)).encode().expect("a few ranges with short keys");
        self.all[to].machine.observe(&TimelineToken::decode(token).expect("a token that was just encoded"));
        (0..clients).filter(|client| self.of(*client) == from).collect()
    }

    fn of(&self, client: u32) -> usize {
        client as usize % self.all.len()
    }
}

impl World {
    /// Begins a call of a client.
    pub(super) fn call(&mut self, client: u32, effect: Effect, request: Request) {
        let library = self.libraries.of(client);
        let now = Monotonic(self.now);
        let held = &mut self.libraries.all[library];
        let call = held.machine.begin(ask(effect, request), now + DEADLINE, now);
        held.callers.insert(call, client);
        self.carry_out_library(library);
    }

    fn with_library(&mut self, library: usize, run: impl FnOnce(&mut Library, Monotonic)) {
        run(&mut self.libraries.all[library].machine, Monotonic(self.now));
        self.carry_out_library(library);
    }

    fn carry_out_library(&mut self, library: usize) {
        if std::mem::replace(&mut self.libraries.all[library].is_busy, true) {
            return;
        }
        loop {
            let held = &mut self.libraries.all[library];
            held.machine.invariants();
            let actions = held.machine.take_actions();
            if actions.is_empty() {
                held.is_busy = false;
                return;
            }
            for action in actions {
                self.act_for_library(library, action);
            }
        }
    }

    fn act_for_library(&mut self, library: usize, action: Action<Request, Response>) {
        match action {
            Action::Connect(link) => {
                let at = self.now + self.random.below(CONNECTING);
                self.queue.put(at, Happening::LinkMade { library, link });
            }
            // Later responses on it are still delivered.
            Action::Disconnect(_) => self.count("connections closed"),
            Action::Send { link, attempt, time, sent } => self.send_for_library(library, link, attempt, time, sent),
            Action::Done { call, outcome, in_doubt, .. } => {
                if let Some(client) = self.libraries.all[library].callers.remove(&call) {
                    self.client_answered(client, outcome.map_err(failure), in_doubt);
                }
            }
            // Clients of the simulator ask for no session of their own.
            Action::Opened { .. } => {}
            Action::SetTimer(at) => {
                let held = &mut self.libraries.all[library];
                held.timer += 1;
                let number = held.timer;
                self.queue.put(at.0.max(self.now), Happening::LibraryTimer { library, number });
            }
        }
    }

    fn send_for_library(
        &mut self,
        library: usize,
        link: Link,
        attempt: AttemptId,
        time: base::Duration,
        sent: Sent<Request>,
    ) {
        let Some((node, generation)) = self.libraries.all[library].links.get(&link).copied() else { return };
        let (request, opens) = match sent {
            Sent::OpenSession { table, key } => {
                let request = TableRequest::OpenSession { key: key.clone() };
                (Request::Table { table, request: node::registry::Ask::Tablet(request) }, Some(key))
            }
            Sent::Request { request, stamp, seen, .. } => (after(stamped(request, stamp), seen), None),
        };
        let id = self.libraries.number();
        let is_lasting = matches!(&request, Request::Table { table, .. } if table == TABLE);
        self.libraries.asked.insert(id, Attempt { of: library, link, attempt, opens, is_lasting });
        let cut_off_until = self.libraries.all[library].cut_off_until;
        self.put_request(node, generation, id, cut_off_until, time, request);
        if !self.healed && self.random.chance(self.options.resets) {
            let at = self.now + self.random.below(20 * MILLISECOND);
            self.queue.put(at, Happening::LinkBroken { library, link });
            if self.random.below(4) == 0 {
                self.count("clients cut off");
                self.libraries.all[library].cut_off_until = at + self.random.below(CUT_OFF);
            }
        }
    }

    /// Delivers a request to a process, no earlier than `not_before`, if the process is still running then.
    pub(super) fn put_request(
        &mut self,
        node: NodeId,
        generation: Generation,
        id: RequestId,
        not_before: TrueTime,
        time: base::Duration,
        request: Request,
    ) {
        let Some(machine) = self.hosts.get(&node) else { return };
        let deadline = machine.clocks.monotonic(self.now) + time;
        let at = self.now.max(not_before) + self.random.below(WAY);
        let request = Box::new(request);
        self.queue.put(at, Happening::Request { node, generation, id, deadline, request, is_at_endpoint: true });
    }

    pub(crate) fn request_answered(&mut self, id: RequestId, outcome: Outcome) {
        self.note(id.0, u64::from(outcome.is_ok()));
        #[cfg(test)]
        if let Some(answer) = self.asked_by_test.get_mut(&id) {
            *answer = Some(outcome);
            return;
        }
        if self.errand_answered(id, &outcome)
            || self.transaction_answered(id, &outcome)
            || self.log_user_answered(id, &outcome)
            || self.disk_client_answered(id, &outcome)
            || self.endpoint_answered(id, &outcome)
        {
            return;
        }
        let Some(Attempt { of: library, link, attempt, opens, is_lasting }) = self.libraries.asked.remove(&id) else {
            return self.bare_answered(id, outcome);
        };
        if !self.libraries.all[library].links.contains_key(&link) {
            return;
        }
        if let (Some(key), Ok(Response::Tablet(TableResponse::SessionOpened { range, .. }))) = (&opens, &outcome)
            && !range.contains(key)
        {
            return self.violate(&format!("a session for {key:?} was opened in another range, {range}"));
        }
        if let Err(Failure::UnknownSession(session)) = &outcome {
            if is_lasting && self.options.session_lifetime >= ENDLESS && !self.is_lossy() {
                return self.violate(&format!("{session:?} is unknown although it cannot have expired"));
            }
            self.count("unknown sessions");
        }
        self.with_library(library, |library, now| library.answered(attempt, to_node_response(outcome), now));
    }

    pub(super) fn link_made(&mut self, library: usize, link: Link) {
        let node = NodeId(link.endpoint as u32 + 1);
        let process = self.hosts.get(&node).filter(|machine| machine.process.is_some());
        match process.map(|machine| machine.generation) {
            Some(generation) => {
                self.libraries.all[library].links.insert(link, (node, generation));
                self.with_library(library, |library, now| library.connected(link, now));
            }
            None => self.with_library(library, |library, now| library.broken(link, "nobody listens", now)),
        }
    }

    pub(super) fn link_broken(&mut self, library: usize, link: Link) {
        if self.libraries.all[library].links.remove(&link).is_some() {
            self.count("connections broken");
            self.libraries.asked.retain(|_, attempt| attempt.of != library || attempt.link != link);
            self.with_library(library, |library, now| library.broken(link, "reset", now));
        }
    }

    pub(super) fn library_timer(&mut self, library: usize, number: u64) {
        if self.libraries.all[library].timer == number {
            self.with_library(library, Library::timer);
        }
    }

    /// A node's process has ended, which closes all connections to it.
    pub(crate) fn clients_lose(&mut self, node: NodeId) {
        for library in 0..self.libraries.all.len() {
            let links = self.libraries.all[library].links.iter();
            let lost: Vec<Link> = links.filter(|(_, (at, _))| *at == node).map(|(link, _)| *link).collect();
            lost.into_iter().for_each(|link| self.link_broken(library, link));
        }
        self.bare_lost(node);
        self.transactions_lose(node);
    }
}

fn ask(effect: Effect, request: Request) -> Ask<Request> {
    let (table, key) = match &request {
        Request::Table { table, request: node::registry::Ask::Tablet(request) } => (table.clone(), key(request)),
        _ => (String::new(), Bytes::new()),
    };
    let pace = match &request {
        Request::Table { request: node::registry::Ask::Tablet(TableRequest::Scan { .. }), .. } => Pace::Slow,
        Request::Table { .. } => Pace::Prompt,
        _ => Pace::Slow,
    };
    let anywhere = anywhere(&request);
    Ask { table, key, effect, pace, bytes: 0, anywhere, stamp: None, request }
}

fn key(request: &TableRequest) -> Bytes {
    match request {
        TableRequest::Write(write) => write.key.clone(),
        TableRequest::OpenSession { key } | TableRequest::DeleteRow { key, .. } | TableRequest::Get { key, .. } => {
            key.clone()
        }
        TableRequest::Scan { scan, .. } => scan.continuation.clone().unwrap_or_else(|| scan.from.clone()),
        TableRequest::Commit(commit) => commit.key.clone(),
        TableRequest::Abort { key, .. } | TableRequest::Unlock { key, .. } | TableRequest::Hold { key, .. } => {
            key.clone()
        }
        TableRequest::Prepare(_) | TableRequest::Resolve { .. } | TableRequest::Split { .. } | TableRequest::Drop => {
            Bytes::new()
        }
    }
}

/// The position of a read that any replica may serve.
fn anywhere(request: &Request) -> Option<ScanStart> {
    let Request::Table { request: node::registry::Ask::Tablet(request), .. } = request else { return None };
    let (question, consistency) = match request.clone() {
        TableRequest::Get { key, columns, consistency } => (Question::Get { key, columns }, consistency),
        TableRequest::Scan { scan, consistency } => (Question::Scan(scan), consistency),
        _ => return None,
    };
    consistency.is_for_any_replica().then(|| match question.position() {
        KeyPosition::At(key) => ScanStart::At(key),
        KeyPosition::Below(end) => ScanStart::Below(end),
    })
}

/// The request, with the position that its client has already seen.
fn after(mut request: Request, seen: Option<CohortLsn>) -> Request {
    if let Request::Table {
        request:
            node::registry::Ask::Tablet(TableRequest::Get { consistency, .. } | TableRequest::Scan { consistency, .. }),
        ..
    } = &mut request
        && let Consistency::Timeline { at_least, .. } = consistency
    {
        *at_least = seen.map(|CohortLsn { cohort, lsn }| LogPlace { cohort, lsn });
    }
    request
}

/// The request with the stamp that its attempt carries.
fn stamped(mut request: Request, carried: Option<Stamp>) -> Request {
    let carried = carried.map(|Stamp { session, sequence, first_incomplete }| SessionStamp {
        session: ClientSessionId(session),
        sequence,
        first_incomplete,
    });
    match &mut request {
        Request::Table { request: node::registry::Ask::Tablet(TableRequest::Write(write)), .. } => {
            write.stamp = carried;
        }
        Request::Table { request: node::registry::Ask::Tablet(TableRequest::DeleteRow { stamp, .. }), .. } => {
            *stamp = carried;
        }
        _ => {}
    }
    request
}

/// Converts a node's response into the library's type.
fn to_node_response(outcome: Outcome) -> Result<NodeResponse<Response>, Fault> {
    match outcome {
        Ok(Response::Tablet(TableResponse::SessionOpened { session, range })) => {
            Ok(NodeResponse::Session { session: session.0, range })
        }
        Ok(Response::Dated { response, as_of }) => {
            let LogPlace { cohort, lsn } = as_of.place;
            let shown = Shown { place: CohortLsn { cohort, lsn }, range: as_of.range.clone() };
            Ok(NodeResponse::Shown { answer: Response::Dated { response, as_of }, shown })
        }
        Ok(response) => Ok(NodeResponse::Of(response)),
        Err(Failure::VersionMismatch { column, expected, actual }) => {
            let (expected, actual) = (Version::from_nanos(expected.0), Version::from_nanos(actual.0));
            Err(Fault::Definite(Error::Refused { column, expected, actual }))
        }
        Err(Failure::UnknownTable(table)) => Err(Fault::Definite(Error::NotFound(table))),
        Err(Failure::Exists(what)) => Err(Fault::Definite(Error::Exists(what))),
        Err(Failure::Precondition(what) | Failure::Damaged(what)) => Err(Fault::Definite(Error::Precondition(what))),
        Err(Failure::Aborted(why)) => Err(Fault::Definite(Error::Aborted(why))),
        Err(Failure::Invalid(what)) => Err(Fault::Definite(Error::Invalid(what))),
        Err(Failure::UnknownSession(_)) => Err(Fault::UnknownSession),
        Err(Failure::Overloaded(why)) => Err(Fault::Overloaded(why)),
        Err(Failure::NoSpace(why)) => Err(Fault::NoSpace(why)),
        Err(Failure::Unavailable(why)) => Err(Fault::Unavailable(why)),
        Err(Failure::UnknownLog(log)) => Err(Fault::Definite(Error::NotFound(log))),
        Err(failure @ Failure::MayLie { .. }) => Err(Fault::Unknown(failure.to_string())),
        Err(Failure::Unknown(why)) => Err(Fault::Unknown(why)),
    }
}

/// Converts a library error into the node's type.
fn failure(error: Error) -> Failure {
    match error {
        Error::Refused { column, expected, actual } => {
            let (expected, actual) = (base::Timestamp(expected.as_nanos()), base::Timestamp(actual.as_nanos()));
            Failure::VersionMismatch { column, expected, actual }
        }
        Error::NotFound(table) => Failure::UnknownTable(table),
        Error::Exists(what) => Failure::Exists(what),
        Error::Precondition(what) => Failure::Precondition(what),
        Error::Aborted(why) => Failure::Aborted(why),
        Error::Invalid(what) => Failure::Invalid(what),
        Error::Unavailable(why) => Failure::Unavailable(why),
        Error::NoSpace(why) => Failure::NoSpace(why),
        Error::OutcomeUnknown(why) => Failure::Unknown(why),
        other => Failure::Unknown(other.to_string()),
    }
}
