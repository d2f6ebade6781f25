//! The NBD endpoint: a thread that serves the virtual disks to clients of the Network Block Device protocol.
//!
//! Each connection has the protocol's codec (`streams::nbd`) and a gateway (`streams::gateway`), which are pure
//! machines. This thread moves bytes between sockets and codecs, and calls of stripes between gateways and the node. A
//! request is taken only while the gateway has room and the connection's output is not too long, so a slow client uses a
//! bounded amount of memory.
//!
//! A handshake is answered from a list of disks that the catalog's leader returned after the client's bytes arrived, so
//! that a client can attach a disk as soon as its creation was acknowledged. While a disk is attached, the list is read
//! regularly for its size.
//!
//! A client that reconnects, through this node or another one, repeats the requests that were not answered, and goes on. A
//! change of the old connection must not take effect after later ones of the new one. So once a connection has ended,
//! nothing of it is executed any more: neither what is not read yet, nor, if this thread did not run for a while, what may
//! have ended meanwhile. Changes that were sent are stopped by the end of their sessions, for which a new connection through
//! this node waits.
//!
//! A client that attaches a disk as `NAME@HOLDER` holds it alone: its handshake ends once all stripes have recorded that, and
//! from then on they execute no command of other holders, nor any from before. So a client that has gone elsewhere meanwhile
//! has sent no request that a late attachment could execute.
//!
//! With `nbd.reads = "any"`, the gateways ask any replica. A read then goes to the replica on this node if it should
//! answer, and otherwise to the leader, which needs no round of messages.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use base::budget::{ByteBudget, Reservation};
use base::limits::nbd::{ATTACH_TIMEOUT, CONNECTION_BYTES, CONNECTIONS_MAX, OUTPUT_BYTES_MAX};
use base::{Duration, Monotonic, Now, Timestamp};
use bytes::{Bytes, BytesMut};
use catalog::request::DiskDescription;
use catalog::{CatalogRequest, CatalogResponse};
use coordination::server::ConnectionId;
use mio::{Poll, Waker};
use node::request::{Ask, Outcome, Request, Response};
use server::nbd::RequestKind;
use state_machine::{Consistency, Failure};
use streams::gateway::{self, Action, Attachment, CallId, Gateway, Reply};
use streams::layout::Layout;
use streams::nbd::{self, Export, Exports, INPUT_BYTES_MAX, Refusal};
use streams::stripe::request::{Claim, StripeRequest, StripeResponse, check_holder};

use crate::connections::{self, CLOSE_TIMEOUT, Connection, ConnectionLimits, Connections};
use crate::endpoint::{COMPLETIONS, Endpoint};
use crate::node::{Completions, LocalMachine};
use crate::protocol::{Protocol, Step};
use crate::{clock, process};

/// Longest deadline of a call; below the gateway's timeout of calls.
const CALL_DEADLINE: Duration = Duration::from_millis(10_000);
/// Deadline of an attempt to make a client the holder of a stripe: a late one would take the disk from the next holder.
const ATTACH_DEADLINE: Duration = Duration::from_millis(1_000);
/// How long a client waits until it holds a disk. Then its connection is closed.
const HOLD_TIMEOUT: Duration = Duration::from_millis(10_000);
/// Deadline of a request for the list of disks.
const LIST_DEADLINE: Duration = Duration::from_millis(5_000);
/// Pause after the list could not be read.
const LIST_PAUSE: Duration = Duration::from_millis(200);
/// Interval at which the list is read while a disk is attached.
const LIST_EVERY: Duration = Duration::from_millis(2_000);
/// Interval at which requests that wait for memory are tried again.
const MEMORY_PAUSE: Duration = Duration::from_millis(20);
/// A request from this size on is read into a buffer of its own, if it has not arrived as a whole.
const LONG_BYTES_MIN: usize = 64 << 10;
/// The number of requests for the list; calls have higher ones.
const LIST: u64 = 0;

/// The settings of the endpoint.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How gateways execute requests.
    pub gateway: gateway::Settings,
    /// Whether all exports are read-only.
    pub are_read_only: bool,
    /// Memory for incomplete requests and unread replies.
    pub memory: ByteBudget,
    /// Memory for the data of requests in progress. While there is none, a request waits.
    pub request_memory: ByteBudget,
    /// What other servers of the node see.
    pub endpoint: Arc<server::nbd::Endpoint>,
}

impl Settings {
    /// Deadline of a call: a request is not failed while a call of it is in progress.
    fn call_deadline(&self) -> Duration {
        self.gateway.patience.map_or(CALL_DEADLINE, |patience| patience.min(CALL_DEADLINE))
    }
}

/// Starts the thread.
pub fn start<M: LocalMachine>(socket: OwnedFd, address: SocketAddr, settings: Settings, machine: M) -> io::Result<()> {
    process::spawn("nbd", move || {
        if let Err(error) = serve(socket, address, &settings, machine) {
            process::die(&format!("NBD endpoint: {error}"));
        }
    })?;
    Ok(())
}

fn serve<M: LocalMachine>(socket: OwnedFd, address: SocketAddr, settings: &Settings, machine: M) -> io::Result<()> {
    let poll = Poll::new()?;
    let completions = Arc::new(Completions::new(Waker::new(poll.registry(), COMPLETIONS)?));
    let node = Node {
        machine,
        call_deadline: settings.call_deadline(),
        completions,
        calls: BTreeMap::new(),
        last_number: LIST,
    };
    let disks = Disks { are_read_only: settings.are_read_only, ..Disks::default() };
    let nbd = Nbd {
        node,
        disks,
        settings: settings.gateway,
        request_memory: settings.request_memory.clone(),
        lost: BTreeMap::new(),
        shown: Arc::clone(&settings.endpoint),
        have_changed: false,
        retry_at: Monotonic(0),
        out: Vec::new(),
    };
    let limits = ConnectionLimits { all: CONNECTIONS_MAX, per_address: usize::MAX };
    let endpoint = Endpoint::listen(poll, socket, limits, &settings.memory, nbd)?;
    tracing::info!(%address, "serving disks to NBD clients");
    endpoint.run()
}

/// A client's part of its connection: the codec, the input and, once it has attached a disk, the gateway.
#[derive(Debug)]
struct Client {
    codec: nbd::Connection,
    input: BytesMut,
    /// A long request that has arrived in part, in a buffer of its size. There is no other input meanwhile.
    long: Option<Vec<u8>>,
    /// Bytes of input that the next step needs.
    needed: usize,
    /// When the last bytes arrived.
    arrived: Monotonic,
    attached: Option<Attached>,
    /// It waits for a newer list of disks.
    awaits_list: bool,
    /// It has input that cannot be taken now.
    is_blocked: bool,
}

#[derive(Debug)]
struct Attached {
    disk: String,
    /// When the disk was created: a later one with its name is another disk.
    created: Timestamp,
    /// The name under which the client holds it.
    holder: Option<String>,
    /// When it was attached.
    since: Timestamp,
    /// The end of the handshake, until all stripes have recorded the holder: the client must not send a request before.
    withheld: Vec<Bytes>,
    /// When the connection is closed if that has not happened.
    withheld_until: Monotonic,
    gateway: Gateway,
    /// Memory of the requests in progress.
    held: Reservation,
    /// A request that waits for memory. No other one is taken meanwhile.
    waiting: Option<nbd::Request>,
}

impl Attached {
    /// Submits a request if there is memory for it. It waits otherwise.
    fn try_submit(&mut self, request: nbd::Request, now: Monotonic) -> bool {
        let has_room = self.held.try_grow(request.bytes());
        if has_room {
            self.gateway.submit(now, request);
        } else {
            self.waiting = Some(request);
        }
        has_room
    }
}

impl Client {
    /// A new connection's part, with the greeting.
    fn new(now: Monotonic) -> (Self, Bytes) {
        let (codec, greeting) = nbd::Connection::new();
        let client = Self {
            codec,
            input: BytesMut::new(),
            long: None,
            needed: 1,
            arrived: now,
            attached: None,
            awaits_list: false,
            is_blocked: false,
        };
        (client, greeting)
    }
}

impl Client {
    /// Reads the rest of a long request into a buffer of its own.
    fn begin_long(&mut self) {
        if self.attached.is_none() || self.needed < LONG_BYTES_MIN {
            return;
        }
        let mut long = Vec::new();
        long.reserve_exact(self.needed);
        // It must end where the request ends; an allocator may give more.
        if long.capacity() == self.needed {
            long.extend_from_slice(&std::mem::take(&mut self.input));
            self.long = Some(long);
        }
    }

    /// Makes a long request that is complete the input.
    fn end_long(&mut self) {
        if let Some(long) = self.long.take_if(|long| long.len() == long.capacity()) {
            self.input = Bytes::from(long).into();
        }
    }
}

impl connections::Client for Client {
    fn push(&mut self, bytes: &[u8], now: Monotonic) {
        self.input.extend_from_slice(bytes);
        self.arrived = now;
    }

    fn long_input(&mut self) -> Option<&mut Vec<u8>> {
        self.long.as_mut()
    }

    fn held(&self) -> usize {
        self.input.len() + self.long.as_ref().map_or(0, Vec::len)
    }

    fn has_greeted(&self) -> bool {
        self.attached.is_some()
    }

    fn is_idle(&self) -> bool {
        self.attached.as_ref().is_none_or(|attached| attached.gateway.is_idle() && attached.waiting.is_none())
    }
}

/// The endpoint's protocol.
struct Nbd<M> {
    node: Node<M>,
    disks: Disks,
    /// How gateways execute requests.
    settings: gateway::Settings,
    /// The gateways of lost connections that stop changes.
    lost: BTreeMap<ConnectionId, Attached>,
    /// What other servers of the node see.
    shown: Arc<server::nbd::Endpoint>,
    /// Whether there are other attachments than those that were published.
    have_changed: bool,
    request_memory: ByteBudget,
    /// When requests that wait for memory are tried again.
    retry_at: Monotonic,
    /// A buffer for replies.
    out: Vec<Bytes>,
}

/// The node of this process, and the calls in progress.
struct Node<M> {
    machine: M,
    call_deadline: Duration,
    completions: Arc<Completions>,
    /// The connection and the call that each number belongs to.
    calls: BTreeMap<u64, (ConnectionId, CallId)>,
    last_number: u64,
}

impl<M: LocalMachine> Node<M> {
    /// Submits a call. Returns the outcome if it is there at once.
    fn call(
        &mut self,
        connection: ConnectionId,
        call: CallId,
        disk: &str,
        request: StripeRequest,
        now: Monotonic,
    ) -> Option<state_machine::Outcome<StripeResponse>> {
        let is_attach = matches!(request, StripeRequest::OpenSession { claim: Claim::Attach(_), .. });
        let request = self.routed(disk, request);
        if let Some(outcome) = self.machine.read(&request) {
            return Some(of_stripe(outcome));
        }
        self.last_number += 1;
        self.calls.insert(self.last_number, (connection, call));
        let deadline = if is_attach { ATTACH_DEADLINE } else { self.call_deadline };
        self.machine.submit(request, (now, now + deadline), &self.completions, self.last_number);
        None
    }

    /// Submits a call of a gateway, which learns the outcome if it is there at once.
    fn call_for(
        &mut self,
        attached: &mut Attached,
        id: ConnectionId,
        call: CallId,
        request: StripeRequest,
        now: Monotonic,
    ) {
        if let Some(outcome) = self.call(id, call, &attached.disk, request, now) {
            attached.gateway.answered(now, call, outcome);
        }
    }

    /// A read of any replica that the replica here should not answer becomes one of the leader.
    fn routed(&self, disk: &str, request: StripeRequest) -> Request {
        let is_for_any = state_machine::Request::consistency(&request) == Consistency::Anywhere;
        let request = Request::table(disk, request);
        if !is_for_any || self.machine.should_read_here(&request) {
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
        self.machine.submit(request, (now, now + LIST_DEADLINE), &self.completions, LIST);
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

    /// The disk of an export, and the holder: `DISK` or `DISK@HOLDER`, where an empty name means the only disk.
    fn exported<'a>(&self, export: &'a str) -> Result<(&DiskDescription, Option<&'a str>), Refusal> {
        let (name, holder) = match export.split_once('@') {
            None => (export, None),
            Some((name, holder)) => (name, Some(holder)),
        };
        let disk = match (name, &self.all[..]) {
            ("", [only]) => Some(only),
            _ => self.get(name),
        };
        let disk = disk.ok_or(Refusal::Unknown)?;
        match holder.map(check_holder) {
            Some(Err(failure)) => Err(Refusal::Policy(failure.to_string())),
            None if disk.is_exclusive => {
                let name = &disk.name;
                Err(Refusal::Policy(format!(
                    "disk {name} is exclusive: attach it as {name}@HOLDER, with a name of your own"
                )))
            }
            _ => Ok((disk, holder)),
        }
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

    fn find(&self, name: &str) -> Result<Export, Refusal> {
        let (disk, _) = self.exported(name)?;
        Ok(Export { size: disk.bytes, is_read_only: self.are_read_only, description: "a replicated disk".to_owned() })
    }
}

impl<M: LocalMachine> Protocol for Nbd<M> {
    type Client = Client;

    const NAME: &'static str = "NBD";
    const CLIENT: &'static str = "an NBD client";
    const READ_BYTES: usize = 256 << 10;
    const GREETING_TIMEOUT: Duration = ATTACH_TIMEOUT;
    const OUTPUT_HIGH_BYTES: usize = OUTPUT_BYTES_MAX;
    const OUTPUT_LOW_BYTES: usize = Self::OUTPUT_HIGH_BYTES;
    const STOPS_READING_WHEN_FULL: bool = true;
    const GIVES_UP: bool = true;

    fn connected(&mut self, _: ConnectionId, _: SocketAddr, now: Now) -> io::Result<(Client, Bytes)> {
        Ok(Client::new(now.monotonic))
    }

    fn lost(&self) -> usize {
        self.lost.len()
    }

    /// Changes that were sent are stopped.
    fn disconnected(&mut self, id: ConnectionId, client: Client) {
        if let Some(mut attached) = client.attached {
            self.have_changed = true;
            attached.waiting = None;
            attached.gateway.close(clock::monotonic());
            if !attached.gateway.is_idle() {
                self.lost.insert(id, attached);
            }
        }
    }

    fn take(&mut self, _: ConnectionId, connection: &mut Connection<Client>, now: Now) -> Step {
        let client = &mut connection.client;
        if let Some(attached) = &mut client.attached
            && let Some(request) = attached.waiting.take()
        {
            client.is_blocked = !attached.try_submit(request, now.monotonic);
            return if client.is_blocked { Step::Blocked } else { Step::Taken };
        }
        client.end_long();
        if client.input.len() < client.needed {
            return Step::NeedsInput;
        }
        client.awaits_list = client.attached.is_none() && self.disks.as_of.is_none_or(|as_of| as_of < client.arrived);
        client.is_blocked = client.awaits_list || client.attached.as_ref().is_some_and(|one| self.must_wait(one));
        if client.is_blocked {
            return Step::Blocked;
        }
        let step = client.codec.advance(&mut client.input, &self.disks, &mut self.out);
        client.needed = 1;
        let done = match step {
            Ok(nbd::Step::NeedsBytes(bytes)) => {
                client.needed = bytes.min(INPUT_BYTES_MAX);
                client.begin_long();
                Step::NeedsInput
            }
            Ok(nbd::Step::Continue) => Step::Taken,
            Ok(nbd::Step::Attached { name, .. }) => {
                client.attached = self.attach(&name, now);
                match &mut client.attached {
                    Some(Attached { disk, holder, withheld, .. }) => {
                        self.have_changed = true;
                        if holder.is_some() {
                            withheld.append(&mut self.out);
                        }
                        tracing::info!(client = %connection.address, disk, holder, "an NBD client has attached a disk");
                    }
                    // The codec has found it in the same list.
                    None => connection.close(now.monotonic),
                }
                Step::Taken
            }
            Ok(nbd::Step::Request(request)) => {
                let attached = client.attached.as_mut();
                client.is_blocked = attached.is_some_and(|attached| !attached.try_submit(request, now.monotonic));
                if client.is_blocked { Step::Blocked } else { Step::Taken }
            }
            // All its requests are answered before the connection is closed.
            Ok(nbd::Step::Disconnect) => {
                connection.close(Monotonic::NEVER);
                Step::Taken
            }
            Err(error) => {
                tracing::info!(client = %connection.address, %error, "closing an NBD connection");
                connection.close(now.monotonic + CLOSE_TIMEOUT);
                Step::Taken
            }
        };
        self.out.drain(..).for_each(|frame| connection.push(frame));
        done
    }

    fn next_timer(&self, clients: &Connections<Client>) -> Monotonic {
        let gateways = self.gateways(clients).map(|attached| attached.gateway.timer_at());
        let retry = if self.waits_for_memory(clients) { self.retry_at } else { Monotonic::NEVER };
        let attached = clients.iter().filter_map(|(_, connection)| connection.client.attached.as_ref());
        let withheld =
            attached.filter(|attached| !attached.withheld.is_empty()).map(|attached| attached.withheld_until);
        let gateways = gateways.chain(withheld).min().unwrap_or(Monotonic::NEVER);
        gateways.min(self.list_at(clients)).min(retry)
    }

    fn begin_turn(&mut self, clients: &mut Connections<Client>, now: Now) {
        let completed = self.node.completions.take();
        let has_completed = !completed.is_empty();
        for (number, outcome) in completed {
            if number == LIST {
                self.disks.answered(outcome, now.monotonic);
                self.listed(clients);
            } else if let Some((id, call)) = self.node.calls.remove(&number) {
                let attached = match clients.get_mut(id) {
                    Some(connection) => connection.client.attached.as_mut(),
                    None => self.lost.get_mut(&id),
                };
                if let Some(attached) = attached {
                    attached.gateway.answered(now.monotonic, call, of_stripe(outcome));
                    clients.touch(id);
                }
            }
        }
        if has_completed || now.monotonic >= self.retry_at && self.waits_for_memory(clients) {
            self.resume(clients);
            self.retry_at = now.monotonic + MEMORY_PAUSE;
        }
    }

    fn end_turn(&mut self, clients: &mut Connections<Client>) {
        let now = clock::monotonic();
        let mut has_acted = false;
        while self.act(clients, now) {
            has_acted = true;
        }
        self.end_handshakes(clients, now);
        let before = self.lost.len();
        self.lost.retain(|_, attached| !attached.gateway.is_idle());
        if has_acted || self.lost.len() < before {
            self.resume(clients);
        }
        if std::mem::take(&mut self.have_changed) {
            self.publish(clients);
        }
        if self.disks.asked.is_none() && now >= self.list_at(clients) {
            self.disks.asked = Some(now);
            self.node.list(now);
        }
    }
}

impl<M: LocalMachine> Nbd<M> {
    /// The gateways of all connections, and of lost ones.
    fn gateways<'a>(&'a self, clients: &'a Connections<Client>) -> impl Iterator<Item = &'a Attached> {
        clients.iter().filter_map(|(_, connection)| connection.client.attached.as_ref()).chain(self.lost.values())
    }

    /// Whether no request of a client can be taken now.
    fn must_wait(&self, attached: &Attached) -> bool {
        let has_reason = !attached.withheld.is_empty() || attached.gateway.is_full();
        has_reason || self.lost.values().any(|lost| lost.disk == attached.disk)
    }

    /// Whether a request waits for memory: another protocol may release it without notice.
    fn waits_for_memory(&self, clients: &Connections<Client>) -> bool {
        let attached = clients.iter().filter_map(|(_, connection)| connection.client.attached.as_ref());
        attached.into_iter().any(|attached| attached.waiting.is_some())
    }

    fn attach(&self, export: &str, now: Now) -> Option<Attached> {
        let (disk, holder) = self.disks.exported(export).ok()?;
        let layout = Layout::new(u16::try_from(disk.stripes).ok()?)?;
        let (disk, created, holder) = (disk.name.clone(), disk.created, holder.map(str::to_owned));
        let mut gateway = Gateway::new(layout, self.settings);
        if let Some(holder) = &holder
            && !self.disks.are_read_only
        {
            gateway.attach(now.monotonic, holder.clone());
        }
        let held = self.request_memory.child(CONNECTION_BYTES).charge(0);
        let (since, withheld_until) = (now.wall, now.monotonic + HOLD_TIMEOUT);
        let withheld = Vec::new();
        Some(Attached { disk, created, holder, since, withheld, withheld_until, gateway, held, waiting: None })
    }

    /// Publishes the attachments for the other servers of the node.
    fn publish(&self, clients: &Connections<Client>) {
        let attached = clients.iter().filter_map(|(_, connection)| {
            let Attached { disk, holder, since, .. } = connection.client.attached.as_ref()?;
            let (disk, holder, since) = (disk.clone(), holder.clone(), *since);
            Some(server::nbd::Attachment { disk, client: connection.address, holder, since })
        });
        self.shown.publish(attached.collect());
    }

    /// Reads the connections with input that could not be taken.
    fn resume(&mut self, clients: &mut Connections<Client>) {
        for (_, connection) in clients.iter_mut() {
            if let Some(attached) = &mut connection.client.attached {
                attached.held.shrink_to(usize::try_from(attached.gateway.held_bytes()).unwrap_or(usize::MAX));
            }
        }
        let blocked = clients.iter().filter(|(_, connection)| connection.client.is_blocked);
        for id in blocked.map(|(id, _)| id).collect::<Vec<_>>() {
            clients.queue(id);
        }
    }

    /// When the list of disks must be read.
    fn list_at(&self, clients: &Connections<Client>) -> Monotonic {
        let awaits_list = clients.iter().any(|(_, connection)| connection.client.awaits_list);
        match self.disks.asked {
            None if awaits_list => self.disks.ask_at,
            None if self.gateways(clients).next().is_some() => {
                self.disks.ask_at.max(self.disks.as_of.map_or(Monotonic(0), |as_of| as_of + LIST_EVERY))
            }
            _ => Monotonic::NEVER,
        }
    }

    /// A newer list of disks is there.
    fn listed(&self, clients: &mut Connections<Client>) {
        let mut deleted = Vec::new();
        for (id, connection) in clients.iter_mut() {
            let Some(attached) = &connection.client.attached else { continue };
            match self.disks.get(&attached.disk) {
                Some(disk) if disk.created == attached.created => connection.client.codec.resize(disk.bytes),
                Some(_) => {
                    tracing::info!(client = %connection.address, disk = attached.disk, "closing an NBD connection: its disk was deleted");
                    deleted.push(id);
                }
                // Its requests fail, and the connection stays.
                None => {}
            }
        }
        deleted.into_iter().for_each(|id| clients.abort(id));
    }

    /// Ends the handshakes of clients that hold their disks now, and the connections of those that cannot.
    fn end_handshakes(&self, clients: &mut Connections<Client>, now: Monotonic) {
        let (mut ready, mut refused) = (Vec::new(), Vec::new());
        for (id, connection) in clients.iter_mut() {
            let Some(attached) = &mut connection.client.attached else { continue };
            if attached.withheld.is_empty() {
                continue;
            }
            let is_late = now >= attached.withheld_until;
            match attached.gateway.attachment() {
                Attachment::Attached => {
                    let withheld = std::mem::take(&mut attached.withheld);
                    withheld.into_iter().for_each(|frame| connection.push(frame));
                    ready.push(id);
                }
                Attachment::InProgress if !is_late => {}
                Attachment::InProgress | Attachment::Failed => {
                    tracing::info!(client = %connection.address, disk = attached.disk, "closing an NBD connection: it could not hold the disk");
                    refused.push(id);
                }
            }
        }
        ready.into_iter().for_each(|id| clients.touch(id));
        refused.into_iter().for_each(|id| clients.abort(id));
    }

    /// Carries out the actions of the gateways. Returns whether there were any.
    fn act(&mut self, clients: &mut Connections<Client>, now: Monotonic) -> bool {
        let Self { node, lost, out, shown, .. } = self;
        let mut has_acted = false;
        let mut acted = Vec::new();
        for (id, connection) in clients.iter_mut() {
            let Client { attached: Some(attached), codec, .. } = &mut connection.client else { continue };
            for action in actions(attached, now) {
                has_acted = true;
                match action {
                    Action::Reply(reply) => {
                        let after = now.since(reply.since);
                        shown.answered(kind_of(&reply), reply.bytes, after, reply.is_failure());
                        reply.encode(codec.replies(), out);
                    }
                    Action::Call { call, request } => node.call_for(attached, id, call, request, now),
                }
            }
            if !out.is_empty() {
                acted.push(id);
                out.drain(..).for_each(|frame| connection.push(frame));
            }
        }
        acted.into_iter().for_each(|id| clients.touch(id));
        for (id, attached) in lost {
            for action in actions(attached, now) {
                has_acted = true;
                if let Action::Call { call, request } = action {
                    node.call_for(attached, *id, call, request, now);
                }
            }
        }
        has_acted
    }
}

fn kind_of(reply: &Reply) -> RequestKind {
    match reply.kind {
        gateway::RequestKind::Read => RequestKind::Read,
        gateway::RequestKind::Change => RequestKind::Change,
        gateway::RequestKind::Other => RequestKind::Other,
    }
}

/// The actions of a gateway, after its timer if that is due.
fn actions(attached: &mut Attached, now: Monotonic) -> Vec<Action> {
    if attached.gateway.timer_at() <= now {
        attached.gateway.timer(now);
    }
    attached.gateway.take_actions()
}

/// The outcome of a call of a stripe.
fn of_stripe(outcome: Outcome) -> state_machine::Outcome<StripeResponse> {
    match outcome? {
        Response::Stripe(response) => Ok(response),
        Response::Dated { response, .. } => of_stripe(Ok(*response)),
        other => Err(Failure::Unavailable(format!("unexpected response of a stripe: {other:?}"))),
    }
}
