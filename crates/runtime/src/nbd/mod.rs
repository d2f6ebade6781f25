//! The NBD endpoint: a thread that serves the virtual disks to clients of the Network Block Device protocol.
//!
//! Each connection has the protocol's codec ([`streams::nbd`]) and a gateway ([`streams::gateway`]), which are pure
//! machines. This thread moves bytes between sockets and codecs, and calls of stripes between gateways and the node.
//!
//! A handshake is answered from a list of disks that the catalog's leader returned after the client's bytes arrived, so
//! that a client can attach a disk as soon as its creation was acknowledged. While a disk is attached, the list is read
//! regularly for its size.
//!
//! A client that reconnects repeats the requests that were not answered. So after a connection is lost, its gateway
//! resolves the changes that may have been executed, and a new connection through this node waits for that: otherwise a
//! change of the old connection could take effect after later changes of the new one.
//!
//! With `nbd.reads = "any"`, the gateways ask any replica. A read then goes to the replica on this node if it should
//! answer, and otherwise to the leader, which needs no round of messages.

mod clients;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use base::{Duration, Monotonic};
use catalog::request::DiskDescription;
use catalog::{CatalogRequest, CatalogResponse};
use mio::{Events, Poll, Token, Waker};
use node::request::{Ask, Outcome, Request, Response};
use state_machine::{Consistency, Failure};
use streams::gateway::{self, CallId};
use streams::nbd::{Export, Exports};
use streams::stripe::request::{StripeRequest, StripeResponse};

use super::clock;
use super::config::{ConfigError, DiskReads, Nbd};
use super::gateway::{Completions, MachineGateway};
use clients::Clients;

const COMPLETIONS: Token = Token(0);
const LISTENER: Token = Token(1);
/// Maximum number of events per poll.
const READY_MAX: usize = 256;
/// Maximum number of pending connections of the listening socket.
const BACKLOG: i32 = 128;
/// Longest deadline of a call; below the gateway's timeout of calls.
const CALL_DEADLINE: Duration = Duration::from_millis(10_000);
/// Deadline of a request for the list of disks.
const LIST_DEADLINE: Duration = Duration::from_millis(5_000);
/// Pause after the list could not be read.
const LIST_PAUSE: Duration = Duration::from_millis(200);
/// Interval at which the list is read while a disk is attached.
const LIST_EVERY: Duration = Duration::from_millis(2_000);
/// Interval of the search for clients that missed a timeout.
const SWEEP: Duration = Duration::from_millis(1_000);
/// The number of requests for the list; calls have higher ones.
const LIST: u64 = 0;

/// The settings of the endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// How gateways execute requests.
    gateway: gateway::Settings,
    /// Whether all exports are read-only.
    are_read_only: bool,
}

impl Settings {
    /// The settings of a configuration.
    pub(crate) fn of(config: &Nbd) -> Result<Self, ConfigError> {
        let reads = match config.reads.unwrap_or_default() {
            DiskReads::Any => Consistency::Anywhere,
            DiskReads::Primary => Consistency::Strong,
        };
        let gateway = gateway::Settings { reads, patience: config.patience()?, ..gateway::Settings::default() };
        Ok(Self { gateway, are_read_only: config.read_only.unwrap_or_default() })
    }

    /// Deadline of a call: a request is not failed while a call of it is in progress.
    fn call_deadline(&self) -> Duration {
        self.gateway.patience.map_or(CALL_DEADLINE, |patience| patience.min(CALL_DEADLINE))
    }
}

pub(crate) fn start(
    socket: OwnedFd,
    address: SocketAddr,
    settings: Settings,
    gateway: MachineGateway,
) -> io::Result<()> {
    super::spawn("nbd", move || {
        if let Err(error) = serve(socket, address, settings, gateway) {
            super::die(&format!("NBD endpoint: {error}"));
        }
    })?;
    Ok(())
}

fn serve(socket: OwnedFd, address: SocketAddr, settings: Settings, gateway: MachineGateway) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let completions = Arc::new(Completions::new(Waker::new(poll.registry(), COMPLETIONS)?));
    rustix::net::listen(&socket, BACKLOG)?;
    let listener = mio::net::TcpListener::from_std(TcpListener::from(socket));
    let clients = Clients::new(poll.registry().try_clone()?, listener, LISTENER, settings.gateway)?;
    tracing::info!(%address, "serving disks to NBD clients");
    let mut service = Service {
        node: Node {
            gateway,
            call_deadline: settings.call_deadline(),
            completions,
            calls: BTreeMap::new(),
            last_number: LIST,
        },
        clients,
        disks: Disks { are_read_only: settings.are_read_only, ..Disks::default() },
        sweep_at: Monotonic(0),
    };
    let mut ready = Events::with_capacity(READY_MAX);
    loop {
        super::zookeeper::wait(&mut poll, &mut ready, service.next_timer())?;
        ready.iter().filter(|event| event.token() != COMPLETIONS).for_each(|event| service.clients.note(event));
        service.turn(clock::monotonic());
    }
}

struct Service {
    node: Node,
    clients: Clients,
    disks: Disks,
    sweep_at: Monotonic,
}

/// The node of this process, and the calls in progress.
struct Node {
    gateway: MachineGateway,
    call_deadline: Duration,
    completions: Arc<Completions>,
    /// The connection and the call that each number belongs to.
    calls: BTreeMap<u64, (Token, CallId)>,
    last_number: u64,
}

impl Node {
    /// Submits a call. Returns the outcome if it is there at once.
    fn call(
        &mut self,
        connection: Token,
        call: CallId,
        disk: &str,
        request: StripeRequest,
        now: Monotonic,
    ) -> Option<state_machine::Outcome<StripeResponse>> {
        let request = self.routed(disk, request);
        if let Some(outcome) = self.gateway.read(&request) {
            return Some(of_stripe(outcome));
        }
        self.last_number += 1;
        self.calls.insert(self.last_number, (connection, call));
        self.gateway.enqueue_from_thread(request, now + self.call_deadline, &self.completions, self.last_number);
        None
    }

    /// A read of any replica that the replica here should not answer becomes one of the leader.
    fn routed(&self, disk: &str, request: StripeRequest) -> Request {
        let is_for_any = state_machine::Request::consistency(&request) == Consistency::Anywhere;
        let request = Request::table(disk, request);
        if !is_for_any || self.gateway.should_read_here(&request) {
            return request;
        }
        match request {
            Request::Table { table, request: Ask::Stripe(StripeRequest::Read { blocks, .. }) } => {
                Request::table(table, StripeRequest::Read { consistency: Consistency::Strong, blocks })
            }
            Request::Table { table, request: Ask::Stripe(StripeRequest::Status { blocks, .. }) } => {
                Request::table(table, StripeRequest::Status { consistency: Consistency::Strong, blocks })
            }
            other => other,
        }
    }

    fn list(&self, now: Monotonic) {
        let request = Request::Catalog(CatalogRequest::ListDisks);
        self.gateway.enqueue_from_thread(request, now + LIST_DEADLINE, &self.completions, LIST);
    }
}

/// The list of disks, as of [`Self::as_of`].
#[derive(Default)]
struct Disks {
    all: Vec<DiskDescription>,
    /// When the request for the list was sent.
    as_of: Option<Monotonic>,
    /// When the request in progress was sent.
    asked: Option<Monotonic>,
    /// When the next request may be sent.
    ask_at: Monotonic,
    are_read_only: bool,
}

impl Disks {
    fn get(&self, name: &str) -> Option<&DiskDescription> {
        self.all.iter().find(|disk| disk.name == name)
    }

    fn answered(&mut self, outcome: Outcome, now: Monotonic) {
        let asked = self.asked.take();
        match outcome {
            Ok(Response::Catalog(CatalogResponse::Disks(disks))) => {
                (self.all, self.as_of, self.ask_at) = (disks, asked, now);
            }
            Ok(_) | Err(_) => self.ask_at = now + LIST_PAUSE,
        }
    }
}

impl Exports for Disks {
    fn names(&self) -> Vec<String> {
        self.all.iter().map(|disk| disk.name.clone()).collect()
    }

    fn find(&self, name: &str) -> Option<Export> {
        let disk = match (name, &self.all[..]) {
            ("", [only]) => only,
            _ => self.get(name)?,
        };
        Some(Export { size: disk.bytes, is_read_only: self.are_read_only, description: "a replicated disk".to_owned() })
    }
}

impl Service {
    fn next_timer(&self) -> Monotonic {
        let sweep = if self.clients.is_empty() { Monotonic::NEVER } else { self.sweep_at };
        let is_listed = self.disks.asked.is_some() || !self.clients.has_attached() && !self.clients.await_list();
        let list = match () {
            () if is_listed => Monotonic::NEVER,
            () if self.clients.await_list() => self.disks.ask_at,
            () => self.disks.ask_at.max(self.disks.as_of.map_or(Monotonic(0), |as_of| as_of + LIST_EVERY)),
        };
        self.clients.next_timer().min(sweep).min(list)
    }

    fn turn(&mut self, now: Monotonic) {
        let Self { node, clients, disks, .. } = self;
        for (number, outcome) in node.completions.take() {
            if number == LIST {
                disks.answered(outcome, now);
                clients.listed(disks);
            } else if let Some((connection, call)) = node.calls.remove(&number) {
                clients.answered(connection, call, of_stripe(outcome), now);
            }
        }
        clients.accept(now);
        clients.read(now);
        clients.advance(disks, now);
        while clients.act(now, |connection, call, disk, request| node.call(connection, call, disk, request, now)) {
            clients.advance(disks, now);
        }
        clients.flush();
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP;
            clients.sweep(now);
        }
        let is_due =
            clients.await_list() || clients.has_attached() && disks.as_of.is_none_or(|as_of| now >= as_of + LIST_EVERY);
        if is_due && disks.asked.is_none() && now >= disks.ask_at {
            disks.asked = Some(now);
            node.list(now);
        }
    }
}

/// The outcome of a call of a stripe.
fn of_stripe(outcome: Outcome) -> state_machine::Outcome<StripeResponse> {
    match outcome? {
        Response::Stripe(response) => Ok(response),
        Response::Dated { response, .. } => of_stripe(Ok(*response)),
        other => Err(Failure::Unavailable(format!("unexpected response of a stripe: {other:?}"))),
    }
}
