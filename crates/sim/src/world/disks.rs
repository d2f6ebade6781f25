//! Clients of a virtual disk: each attaches it through some node, and reads, writes, trims and zeroes a few blocks, with
//! several requests in progress.
//!
//! Half a block is a register: a write of one half must not affect the other. Each write has a value of its own, which
//! fills the halves that it covers, so a torn half is seen. [`crate::register`] checks all reads at the end, also those
//! across crashes, moves and attachments through other nodes.

use std::collections::BTreeMap;

use base::{Duration, NodeId, SplitMix64};
use bytes::Bytes;
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, TableOptions};
use node::contract::{Event, RequestId};
use node::request::{Outcome, Request, Response};
use state_machine::{Consistency, Failure, StateMachine as _};
use streams::gateway::{Action, CallId, Gateway, Reply, RequestResult, Settings};
use streams::layout::{BLOCK_BYTES, Layout, UNIT_BYTES};
use streams::nbd::{self, Command, Run};
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
    /// The client, the attachment and the call that each request belongs to. Without a call it creates the disk.
    asked: BTreeMap<RequestId, (usize, u64, Option<CallId>)>,
    is_created: bool,
    history: Vec<Operation>,
    last_value: u64,
}

#[derive(Default)]
struct DiskClient {
    attachment: Option<Attachment>,
    attachments: u64,
    /// The operations in progress by cookie: the indexes into the history of their registers.
    operations: BTreeMap<u64, std::ops::Range<usize>>,
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
    node: NodeId,
    generation: Generation,
    gateway: Gateway,
}

impl DiskClients {
    pub(crate) fn new(clients: u32, seed: u64) -> Self {
        Self {
            random: SplitMix64::new(seed ^ 0xd15c),
            clients: (0..clients).map(|_| DiskClient::default()).collect(),
            asked: BTreeMap::new(),
            is_created: false,
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
            let node = client.attachment.as_ref().map(|attachment| attachment.node);
            format!("disk client {number} at {node:?}: {} operations", client.operations.len())
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
        let Some(attachment) = &mut self.disks.clients[client].attachment else {
            return self.wake_disk_client(client, 50 * MILLISECOND);
        };
        let now = self.hosts[&attachment.node].clocks.monotonic(self.now);
        attachment.gateway.timer(now);
        self.next_operation(client);
        self.act_for_disk_client(client);
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
        let is_alive = |attachment: &Attachment| {
            self.hosts.get(&attachment.node).is_some_and(|host| host.is_live(attachment.generation) && !host.is_gone)
        };
        if self.disks.clients[client].attachment.as_ref().is_some_and(is_alive) {
            // Sometimes it moves to another node, once its requests are answered.
            let is_idle = self.disks.clients[client].operations.is_empty();
            if !is_idle || self.healed || self.disks.random.below(40) != 0 {
                return;
            }
        }
        let node = NodeId(1 + self.disks.random.below(self.hosts.len() as u64) as u32);
        let here = &mut self.disks.clients[client];
        here.attachment = None;
        here.operations.clear();
        if let LastRead::Begun(_) = here.last_read {
            here.last_read = LastRead::NotBegun;
        }
        // A node that has lost its disk serves no client, and one would wait there for ever.
        if !self.is_up(node) || self.hosts[&node].is_foreign() || self.hosts[&node].is_gone {
            return;
        }
        let generation = self.generation(node);
        let here = &mut self.disks.clients[client];
        here.attachments += 1;
        let reads = if here.attachments.is_multiple_of(2) { Consistency::Anywhere } else { Consistency::Strong };
        let settings = Settings { reads, call_timeout: Duration::from_millis(3_000), patience: None };
        let gateway = Gateway::new(Layout::new(STRIPES).expect("a valid number"), settings);
        here.attachment = Some(Attachment { node, generation, gateway });
        self.count("disks attached");
    }

    /// Begins the client's next operation, if it is time.
    fn next_operation(&mut self, client: usize) {
        let (now, healed) = (self.now, self.healed);
        let here = &self.disks.clients[client];
        let (command, first, count) = if healed {
            if here.last_read != LastRead::NotBegun || !here.operations.is_empty() {
                return;
            }
            (Command::Read { is_whole: false }, 0, HALVES)
        } else {
            if now < here.next_at || here.operations.len() >= IN_PROGRESS_MAX {
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
            self.disks.history.push(Operation { register, called: now, returned: None, what });
        }
        let think = self.disks.random.below(2 * self.options.think + 1);
        let end = self.disks.history.len();
        let here = &mut self.disks.clients[client];
        here.last_cookie += 1;
        let cookie = here.last_cookie;
        here.operations.insert(cookie, begin..end);
        here.next_at = now + think;
        if healed {
            here.last_read = LastRead::Begun(cookie);
        }
        let Some(attachment) = &mut here.attachment else { return };
        let (offset, length) = (BEGIN + first * HALF, (count * HALF) as u32);
        let now = self.hosts[&attachment.node].clocks.monotonic(now);
        attachment.gateway.submit(now, nbd::Request { cookie, offset, length, command });
    }

    /// Carries out the actions of a client's gateway, and schedules the client.
    fn act_for_disk_client(&mut self, client: usize) {
        while let Some(attachment) = &mut self.disks.clients[client].attachment {
            let (node, actions) = (attachment.node, attachment.gateway.take_actions());
            attachment.gateway.invariants();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    Action::Reply(reply) => self.disk_replied(client, reply),
                    Action::Call { call, request } => {
                        let request = Request::table(DISK, request);
                        self.ask_for_disk_client(client, node, Some(call), request);
                    }
                }
            }
        }
        let here = &self.disks.clients[client];
        let mut after = 50 * MILLISECOND;
        if let Some(attachment) = &here.attachment {
            let now = self.hosts[&attachment.node].clocks.monotonic(self.now);
            let timer = attachment.gateway.timer_at();
            after = after.min(timer.since(now).0.max(MILLISECOND / 100));
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

    fn ask_for_disk_client(&mut self, client: usize, node: NodeId, call: Option<CallId>, request: Request) {
        if !self.is_up(node) {
            return;
        }
        let deadline = self.hosts[&node].clocks.monotonic(self.now) + DEADLINE;
        let id = self.libraries.number();
        let attachment = self.disks.clients[client].attachments;
        self.disks.asked.insert(id, (client, attachment, call));
        self.step(node, Event::Request { id, deadline, request });
    }

    /// Handles a node's response to a client of the disk; returns false if the request was not such a client's.
    pub(crate) fn disk_client_answered(&mut self, id: RequestId, outcome: &Outcome) -> bool {
        let Some((client, attachment, call)) = self.disks.asked.remove(&id) else { return false };
        let Some(call) = call else {
            if let Ok(Response::Catalog(CatalogResponse::TableCreated { .. })) = outcome {
                self.disks.is_created = true;
            }
            return true;
        };
        let here = &mut self.disks.clients[client];
        let is_current = here.attachments == attachment;
        let Some(attachment) = here.attachment.as_mut().filter(|_| is_current) else { return true };
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

    fn disk_replied(&mut self, client: usize, reply: Reply) {
        let here = &mut self.disks.clients[client];
        let Some(registers) = here.operations.remove(&reply.cookie) else {
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
