//! Clients of a virtual disk: each attaches it through some node, and reads, writes, trims and zeroes a few blocks, with
//! several requests in progress.
//!
//! Half a block is a register: a write of one half must not affect the other. Each write has a value of its own, which
//! fills the halves that it covers, so a torn half is seen. [`crate::register`] checks all reads at the end, also those
//! across crashes, moves and attachments through other nodes.
//!
//! A client leaves a node now and then, or when that is paused, with requests in progress. The gateway there learns it at
//! once, after the pause or, if clients attach the disk exclusively, up to seconds later. Once a client has attached it
//! exclusively, a request of an earlier attachment has taken effect, or never will.

use std::collections::BTreeMap;

use base::{Duration, NodeId, SplitMix64};
use bytes::Bytes;
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, TableOptions};
use node::contract::{Event, RequestId};
use node::request::{Outcome, Request, Response};
use state_machine::{Consistency, Failure, StateMachine as _};
use streams::gateway::{Action, CallId, Gateway, Reply, RequestResult, Settings};
use streams::layout::{BLOCK_BYTES, Layout, UNIT_BYTES};
use streams::nbd::{self, Command, Errno, Run};
use streams::stripe::Stripe;

use super::events::{Generation, Happening};
use super::{MILLISECOND, World};
use crate::register::{self, Operation, What};

const DISK: &str = "disk";
const STRIPES: u16 = 2;
/// The size of a half block, a register.
const HALF: u64 = BLOCK_BYTES / 2;
/// Halves that are used: of four blocks, two at the end of a stripe's unit and two in the next unit.
const HALVES: u64 = 8;
const BEGIN: u64 = UNIT_BYTES - HALVES / 2 * HALF;
/// Deadline of a request to one node.
const DEADLINE: Duration = Duration::from_millis(2_000);
/// Requests of a client in progress.
const IN_PROGRESS_MAX: usize = 4;

/// The clients of the disk.
pub(crate) struct DiskClients {
    random: SplitMix64,
    clients: Vec<DiskClient>,
    /// The client, the attachment and the call that each request belongs to. Without these it creates the disk.
    asked: BTreeMap<RequestId, (usize, Option<(u64, CallId)>)>,
    is_created: bool,
    /// Whether the clients attach the disk exclusively, pairs of them under one name.
    are_exclusive: bool,
    history: Vec<Operation>,
    last_value: u64,
}

#[derive(Default)]
struct DiskClient {
    attachment: Option<Attachment>,
    /// Attachments that it has left, with gateways that still run.
    left: Vec<Attachment>,
    attachments: u64,
    /// Another client holds the disk.
    is_refused: bool,
    last_cookie: u64,
    /// Counts scheduled wakeups; older ones are ignored.
    calls: u64,
    /// When it begins its next operation.
    next_at: u64,
    /// Since the faults have ended: whether it has read everything once.
    last_read: LastRead,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastRead {
    #[default]
    NotBegun,
    Begun(u64),
    Done,
}

struct Attachment {
    number: u64,
    node: NodeId,
    generation: Generation,
    gateway: Gateway,
    /// When it began, and when all stripes had recorded its holder.
    begun: u64,
    attached: Option<u64>,
    /// After the client has left it: when the gateway learns that.
    closes_at: Option<u64>,
    is_closed: bool,
    /// The operations in progress by cookie: the indexes into the history of their registers.
    operations: BTreeMap<u64, std::ops::Range<usize>>,
}

impl DiskClients {
    pub(crate) fn new(clients: u32, seed: u64) -> Self {
        Self {
            random: SplitMix64::new(seed ^ 0xd15c),
            clients: (0..clients).map(|_| DiskClient::default()).collect(),
            asked: BTreeMap::new(),
            is_created: false,
            are_exclusive: SplitMix64::new(seed ^ 0xe8c1).below(2) == 0,
            history: Vec::new(),
            last_value: 0,
        }
    }

    /// Whether every client has read everything after the faults.
    pub(crate) fn are_done(&self) -> bool {
        self.clients.iter().all(|client| client.last_read == LastRead::Done)
    }

    /// Describes pending operations, for a run that is stuck.
    pub(crate) fn waiting_for(&self) -> String {
        let stuck = self.clients.iter().enumerate().filter(|(_, client)| client.last_read != LastRead::Done);
        let line = |(number, client): (usize, &DiskClient)| {
            let here =
                client.attachment.as_ref().map(|here| (here.node, here.operations.len(), here.gateway.attachment()));
            format!("disk client {number}: node, operations, waits: {here:?}")
        };
        stuck.map(line).collect::<Vec<_>>().join("\n")
    }

    /// The next operation of a client: a command, its first half and the number of halves.
    fn draw(&mut self) -> (Command, u64, u64) {
        let first = self.random.below(HALVES);
        let count = 1 + self.random.below((HALVES - first).min(5));
        let whole = |first: u64, count: u64| (first / 2 * 2, (first + count).div_ceil(2) * 2 - first / 2 * 2);
        match self.random.below(10) {
            0..4 => (Command::Read { is_whole: false }, first, count),
            4..8 => {
                self.last_value += 1;
                let halves = self.last_value.to_le_bytes().repeat((HALF * count / 8) as usize);
                (Command::Write(halves.into()), first, count)
            }
            8 => {
                let (first, count) = whole(first, count);
                (Command::Trim, first, count)
            }
            _ => (Command::WriteZeroes { keeps_allocated: count == 2, must_be_fast: false }, first, count),
        }
    }
}

impl World {
    pub(crate) fn begin_disks(&mut self) {
        for client in 0..self.disks.clients.len() {
            let at = self.now + self.disks.random.below(500 * MILLISECOND);
            self.queue.put(at, Happening::DiskClient { client, call: 0 });
        }
    }

    pub(crate) fn disk_client(&mut self, client: usize, call: u64) {
        if self.disks.clients[client].calls != call {
            return;
        }
        if !self.disks.is_created {
            return self.create_disk(client);
        }
        self.attach(client);
        self.close_attachments(client);
        let hosts = &self.hosts;
        let here = &mut self.disks.clients[client];
        for attachment in here.attachment.iter_mut().chain(&mut here.left) {
            if hosts.get(&attachment.node).is_some_and(|host| !host.paused) {
                attachment.gateway.timer(hosts[&attachment.node].clocks.monotonic(self.now));
            }
        }
        self.note_attached(client);
        self.next_operation(client);
        self.act_for_disk_client(client);
    }

    /// Gateways that the client has left learn it.
    fn close_attachments(&mut self, client: usize) {
        let (now, hosts) = (self.now, &self.hosts);
        let here = &mut self.disks.clients[client];
        here.left.retain_mut(|left| {
            let host = hosts.get(&left.node).filter(|host| host.is_live(left.generation) && !host.is_gone);
            let Some(host) = host else { return false };
            if !host.paused && !left.is_closed && left.closes_at.is_some_and(|at| at <= now) {
                left.is_closed = true;
                left.gateway.close(host.clocks.monotonic(now));
            }
            !left.is_closed || !left.gateway.is_idle()
        });
    }

    /// Once all stripes have recorded the holder, no operation of an earlier attachment can take effect any more. Only that
    /// of a client which shares the name, and has not left, is begun again.
    fn note_attached(&mut self, client: usize) {
        let now = self.now;
        let disks = &mut self.disks;
        let Some(attachment) = disks.clients[client].attachment.as_mut() else { return };
        if !disks.are_exclusive || attachment.attached.is_some() || !is_attached(attachment) {
            return;
        }
        attachment.attached = Some(now);
        let (begun, holder) = (attachment.begun, holder_of(client));
        let mut ended = Vec::new();
        for (other, here) in disks.clients.iter().enumerate() {
            let is_earlier = |other: &Attachment| other.attached.is_some_and(|attached| attached < begun);
            let alive = here.attachment.iter().filter(|_| holder_of(other) != holder);
            let left = here
                .left
                .iter()
                .filter(|left| holder_of(other) != holder || left.closes_at.is_some_and(|at| at <= begun));
            ended.extend(
                alive.chain(left).filter(|other| is_earlier(other)).flat_map(|other| other.operations.values()),
            );
        }
        for operation in ended.into_iter().flat_map(Clone::clone) {
            let operation = &mut disks.history[operation];
            operation.ended = operation.ended.min(now);
        }
        self.count("disks attached exclusively");
    }

    fn create_disk(&mut self, client: usize) {
        if client == 0 {
            let node = NodeId(1 + self.disks.random.below(self.hosts.len() as u64) as u32);
            if self.is_up(node) {
                let options = TableOptions { disk_bytes: 4 * UNIT_BYTES, ..TableOptions::of(Stripe::KIND) };
                let split_at = Layout::new(STRIPES).expect("a valid number").split_keys();
                let create = CatalogCommand::CreateTable { name: DISK.to_owned(), split_at, options };
                let request = Request::Catalog(CatalogRequest::Change(create));
                self.ask_for_disk_client(client, node, None, request);
            }
        }
        self.wake_disk_client(client, 2_500 * MILLISECOND);
    }

    fn is_up(&self, node: NodeId) -> bool {
        self.hosts.get(&node).is_some_and(|machine| machine.process.is_some() && !machine.paused)
    }

    /// Attaches the disk through some node, unless the client's attachment is alive. The requests of a lost attachment
    /// have unknown outcomes.
    fn attach(&mut self, client: usize) {
        if let Some(attachment) = &self.disks.clients[client].attachment {
            let host = self.hosts.get(&attachment.node);
            let is_alive = host.is_some_and(|host| host.is_live(attachment.generation) && !host.is_gone);
            let is_paused = host.is_some_and(|host| host.paused);
            let is_refused = self.disks.clients[client].is_refused
                || attachment.gateway.attachment() == streams::gateway::Attachment::Failed;
            // Sometimes it moves to another node, also with requests in progress.
            let odds = if is_paused || is_refused { 8 } else { 60 };
            if is_alive && (self.healed && !is_refused || self.disks.random.below(odds) != 0) {
                return;
            }
        }
        let node = NodeId(1 + self.disks.random.below(self.hosts.len() as u64) as u32);
        let is_late = self.disks.are_exclusive && self.disks.random.below(2) == 0;
        let delay = if is_late { self.disks.random.below(4_000 * MILLISECOND) } else { 0 };
        let (now, hosts) = (self.now, &self.hosts);
        let here = &mut self.disks.clients[client];
        if let Some(left) = here.attachment.take()
            && hosts.get(&left.node).is_some_and(|host| host.is_live(left.generation) && !host.is_gone)
        {
            here.left.push(Attachment { closes_at: Some(now + delay), ..left });
        }
        here.is_refused = false;
        if let LastRead::Begun(_) = here.last_read {
            here.last_read = LastRead::NotBegun;
        }
        // A node that has lost its disk serves no client, and one would wait there for ever.
        if !self.is_up(node) || self.hosts[&node].is_foreign() || self.hosts[&node].is_gone {
            return;
        }
        self.end_of_holder(client);
        let generation = self.generation(node);
        let monotonic = self.hosts[&node].clocks.monotonic(self.now);
        let are_exclusive = self.disks.are_exclusive;
        let here = &mut self.disks.clients[client];
        here.attachments += 1;
        let reads = if here.attachments.is_multiple_of(2) { Consistency::Anywhere } else { Consistency::Strong };
        let settings = Settings { reads, call_timeout: Duration::from_millis(3_000), patience: None };
        let mut gateway = Gateway::new(Layout::new(STRIPES).expect("a valid number"), settings);
        if are_exclusive {
            gateway.attach(monotonic, holder_of(client));
        }
        here.attachment = Some(Attachment {
            number: here.attachments,
            node,
            generation,
            gateway,
            begun: now,
            attached: None,
            closes_at: None,
            is_closed: false,
            operations: BTreeMap::new(),
        });
        self.count("disks attached");
    }

    /// A client of this name is about to attach the disk. The ends of connections under the same name have reached their
    /// nodes before, unless another holder came between.
    fn end_of_holder(&mut self, client: usize) {
        let (now, holder) = (self.now, holder_of(client));
        let of_others = self.disks.clients.iter().enumerate().filter(|(other, _)| holder_of(*other) != holder);
        let attached =
            of_others.flat_map(|(_, here)| here.attachment.iter().chain(&here.left)).filter_map(|it| it.attached);
        let last_other = attached.max().unwrap_or(0);
        for (other, here) in self.disks.clients.iter_mut().enumerate() {
            for left in here.left.iter_mut().filter(|_| holder_of(other) == holder) {
                if left.attached.is_none_or(|attached| attached >= last_other) {
                    left.closes_at = left.closes_at.map(|at| at.min(now));
                }
            }
        }
        (0..self.disks.clients.len()).for_each(|client| self.close_attachments(client));
    }

    /// Begins the client's next operation, if it is time.
    fn next_operation(&mut self, client: usize) {
        let (now, healed) = (self.now, self.healed);
        let here = &self.disks.clients[client];
        let Some(attachment) = here.attachment.as_ref().filter(|attachment| is_attached(attachment)) else { return };
        if self.hosts.get(&attachment.node).is_none_or(|host| host.paused) {
            return;
        }
        let (command, first, count) = if healed {
            if here.last_read != LastRead::NotBegun {
                return;
            }
            (Command::Read { is_whole: false }, 0, HALVES)
        } else {
            if now < here.next_at || attachment.operations.len() >= IN_PROGRESS_MAX {
                return;
            }
            self.disks.draw()
        };
        let value = self.disks.last_value;
        let what = match &command {
            Command::Read { .. } => What::Read(0),
            Command::Write(_) => What::Write(value),
            _ => What::Write(0),
        };
        let begin = self.disks.history.len();
        for register in first..first + count {
            self.disks.history.push(Operation { register, called: now, returned: None, ended: u64::MAX, what });
        }
        let think = self.disks.random.below(2 * self.options.think + 1);
        let end = self.disks.history.len();
        let here = &mut self.disks.clients[client];
        here.last_cookie += 1;
        let cookie = here.last_cookie;
        here.next_at = now + think;
        if healed {
            here.last_read = LastRead::Begun(cookie);
        }
        let Some(attachment) = &mut here.attachment else { return };
        attachment.operations.insert(cookie, begin..end);
        let (offset, length) = (BEGIN + first * HALF, (count * HALF) as u32);
        let now = self.hosts[&attachment.node].clocks.monotonic(now);
        attachment.gateway.submit(now, nbd::Request { cookie, offset, length, command });
    }

    /// Carries out the actions of a client's gateways, and schedules the client.
    fn act_for_disk_client(&mut self, client: usize) {
        loop {
            let mut actions = Vec::new();
            let hosts = &self.hosts;
            let here = &mut self.disks.clients[client];
            for attachment in here.attachment.iter_mut().chain(&mut here.left) {
                attachment.gateway.invariants();
                if hosts.get(&attachment.node).is_some_and(|host| !host.paused) {
                    let place = (attachment.number, attachment.node);
                    actions.extend(attachment.gateway.take_actions().into_iter().map(|action| (place, action)));
                }
            }
            if actions.is_empty() {
                break;
            }
            for ((number, node), action) in actions {
                match action {
                    Action::Reply(reply) => self.disk_replied(client, number, reply),
                    Action::Call { call, request } => {
                        let request = Request::table(DISK, request);
                        self.ask_for_disk_client(client, node, Some((number, call)), request);
                    }
                }
            }
        }
        let here = &self.disks.clients[client];
        let mut after = 50 * MILLISECOND;
        for attachment in here.attachment.iter().chain(&here.left) {
            let Some(host) = self.hosts.get(&attachment.node).filter(|host| !host.paused) else { continue };
            let timer = attachment.gateway.timer_at().since(host.clocks.monotonic(self.now));
            after = after.min(timer.0.max(MILLISECOND / 100));
        }
        if here.next_at > self.now {
            after = after.min(here.next_at - self.now);
        }
        self.wake_disk_client(client, after);
    }

    fn wake_disk_client(&mut self, client: usize, after: u64) {
        let woken = &mut self.disks.clients[client];
        woken.calls += 1;
        let call = woken.calls;
        self.queue.put(self.now + after, Happening::DiskClient { client, call });
    }

    fn ask_for_disk_client(&mut self, client: usize, node: NodeId, call: Option<(u64, CallId)>, request: Request) {
        if !self.is_up(node) {
            return;
        }
        let deadline = self.hosts[&node].clocks.monotonic(self.now) + DEADLINE;
        let id = self.libraries.number();
        self.disks.asked.insert(id, (client, call));
        self.step(node, Event::Request { id, deadline, request });
    }

    /// Handles a node's response to a client of the disk; returns false if the request was not such a client's.
    pub(crate) fn disk_client_answered(&mut self, id: RequestId, outcome: &Outcome) -> bool {
        let Some((client, call)) = self.disks.asked.remove(&id) else { return false };
        let Some((number, call)) = call else {
            if let Ok(Response::Catalog(CatalogResponse::TableCreated { .. })) = outcome {
                self.disks.is_created = true;
            }
            return true;
        };
        let here = &mut self.disks.clients[client];
        let mut all = here.attachment.iter_mut().chain(&mut here.left);
        let Some(attachment) = all.find(|attachment| attachment.number == number) else { return true };
        let now = self.hosts[&attachment.node].clocks.monotonic(self.now);
        let outcome = match outcome.clone() {
            Ok(Response::Stripe(response)) => Ok(response),
            Ok(Response::Dated { response, .. }) => match *response {
                Response::Stripe(response) => Ok(response),
                other => Err(Failure::Unavailable(format!("{other:?}"))),
            },
            Ok(other) => {
                self.violate(&format!("unexpected response of a stripe: {other:?}"));
                return true;
            }
            Err(failure) => Err(failure),
        };
        attachment.gateway.answered(now, call, outcome);
        // At once, but not within the step of the node.
        self.wake_disk_client(client, 0);
        true
    }

    fn disk_replied(&mut self, client: usize, number: u64, reply: Reply) {
        let here = &mut self.disks.clients[client];
        // Replies to a connection that the client has left are lost.
        let Some(attachment) = here.attachment.as_mut().filter(|attachment| attachment.number == number) else {
            return;
        };
        let Some(registers) = attachment.operations.remove(&reply.cookie) else {
            return self.violate(&format!("disk client {client}: a request was answered twice"));
        };
        if here.last_read == LastRead::Begun(reply.cookie) {
            here.last_read = LastRead::Done;
        }
        let now = self.now;
        let count = registers.len();
        match reply.result {
            RequestResult::Done => {
                self.disks.history[registers].iter_mut().for_each(|operation| operation.returned = Some(now));
                self.count("disk changes");
            }
            RequestResult::Read { runs, .. } => {
                let bytes = joined(&runs);
                if bytes.len() as u64 != count as u64 * HALF {
                    return self.violate(&format!("disk client {client}: {} bytes of {count} halves", bytes.len()));
                }
                let mut torn = None;
                for (operation, half) in self.disks.history[registers].iter_mut().zip(bytes.chunks(HALF as usize)) {
                    let (words, _) = half.as_chunks::<8>();
                    let first = words.first().copied().unwrap_or_default();
                    if words.iter().any(|word| *word != first) {
                        torn = Some(operation.register);
                    }
                    (operation.returned, operation.what) = (Some(now), What::Read(u64::from_le_bytes(first)));
                }
                if let Some(half) = torn {
                    return self.violate(&format!("half {half} of a block is torn"));
                }
                self.count("disk reads");
            }
            RequestResult::Failed { errno: Errno::NotPermitted, .. } => {
                here.is_refused = true;
                self.count("disk requests refused");
            }
            // The session has ended: the change was executed before, or never will be.
            RequestResult::Failed { .. } => self.count("disk requests failed"),
            RequestResult::Status(_) => self.violate("an answer to a request that was not made"),
        }
    }

    /// Checks everything that the clients of the disk have read.
    pub(crate) fn check_disks(&mut self) {
        if let Err(what) = register::check(&self.disks.history) {
            self.violate(&format!("disk: {what}"));
        }
    }
}

fn joined(runs: &[Run]) -> Bytes {
    let mut bytes = Vec::new();
    for run in runs {
        match run {
            Run::Data(data) => bytes.extend_from_slice(data),
            Run::Zeroes(count) => bytes.resize(bytes.len() + *count as usize, 0),
        }
    }
    bytes.into()
}

/// The name under which a client holds the disk.
fn holder_of(client: usize) -> String {
    format!("holder-{}", client / 2)
}

/// Whether the client's handshake has ended.
fn is_attached(attachment: &Attachment) -> bool {
    attachment.gateway.attachment() == streams::gateway::Attachment::Attached
}
