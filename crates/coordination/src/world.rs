//! A deterministic simulation: servers and clients on a model of a shared log, all driven by one seed.
//!
//! A run has two phases. *Safety*: servers crash, pause and are disconnected from the log; appends stall, fail, and
//! appear in the log twice or out of order; connections break and clients move. *Liveness*: faults end, and every
//! client must make progress. Clients and invariants are those of [`crate::model`].

use std::collections::BTreeMap;

use base::{Duration, Monotonic, Now, SplitMix64, Timestamp};
use bytes::Bytes;

use crate::entry::Position;
use crate::limits::{CONNECTION_TURN_BYTES, TURN_BYTES};
use crate::model::{Clients, MS, Network, Time};
use crate::server::{Action, AppendId, Config, ConnectionId, Event, Server};
use crate::state::{Restorer, State};

mod flood;
mod log;
mod tests;

use flood::{FLOOD, Flood};
use log::Log;

/// Session timeout: short, like all faults.
const TIMEOUT: Duration = Duration::from_millis(400);
const TICK: Duration = Duration::from_millis(40);
const SAFETY: Time = 5_000 * MS;
const LIVENESS: Time = 4_000 * MS;

/// The result of a run.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    violation: Option<String>,
    counters: BTreeMap<&'static str, u64>,
    trace: u64,
}

#[derive(Debug)]
enum Happening {
    /// An event for one process of a server, dropped if it has restarted.
    Server {
        server: usize,
        boot: u64,
        event: Event,
    },
    /// An append arrives at the log.
    Append {
        server: usize,
        boot: u64,
        append: AppendId,
        entry: Bytes,
        made: Time,
    },
    /// A position is resolved as an entry or a hole.
    Resolve(u64),
    /// A snapshot is durable.
    Snapshot {
        server: usize,
        boot: u64,
        written: Writing,
    },
    /// A server receives further positions.
    Feed {
        server: usize,
        boot: u64,
    },
    /// A frame, or the end of the connection.
    Client {
        client: usize,
        connection: ConnectionId,
        frame: Option<Bytes>,
    },
    /// A client checks its timers.
    Step(usize),
    Flood,
    Start(usize),
    Fault,
}

#[derive(Debug, Default)]
struct Process {
    server: Option<Server>,
    boot: u64,
    /// Clock rate in millionths.
    rate: u64,
    /// Delay between the log and the server.
    lag: Time,
    paused_until: Time,
    cut_until: Time,
    fed: u64,
    is_feed_due: bool,
    /// Whether it reads from the server's next position on, or every position that was not read yet.
    skips_applied: bool,
    snapshot: Option<Writing>,
    looked_at: Position,
}

/// A snapshot that is being written.
#[derive(Debug)]
struct Writing {
    next: Position,
    pieces: Vec<Bytes>,
}

/// A connection; each direction is FIFO.
#[derive(Debug)]
struct Link {
    client: usize,
    server: usize,
    boot: u64,
    to_server: Time,
    to_client: Time,
}

struct World {
    time: Time,
    clients: Clients,
    random: SplitMix64,
    queue: BTreeMap<(Time, u64), Happening>,
    sequence: u64,
    servers: Vec<Process>,
    flood: Flood,
    links: BTreeMap<ConnectionId, Link>,
    connections: u64,
    log: Log,
    snapshots: Vec<(Position, Vec<Bytes>)>,
    /// Whether the servers offer linearizable reads.
    has_linearizable_reads: bool,
    trace: u64,
}

fn run(seed: u64) -> Outcome {
    let mut random = SplitMix64::new(seed);
    let servers = 2 + random.below(2) as usize;
    let clients = 2 + random.below(3) as usize;
    let mut world = World {
        time: 0,
        queue: BTreeMap::new(),
        sequence: 0,
        servers: (0..servers).map(|_| Process::default()).collect(),
        clients: no_clients(),
        flood: Flood::default(),
        links: BTreeMap::new(),
        connections: 0,
        log: Log::default(),
        snapshots: Vec::new(),
        has_linearizable_reads: random.chance(200_000),
        trace: seed,
        random,
    };
    let seed = world.random.draw();
    world.clients = Clients::new(clients, TIMEOUT, TICK, world.has_linearizable_reads, seed);
    for server in 0..servers {
        world.after(0, Happening::Start(server));
    }
    for client in 0..clients {
        world.after(MS, Happening::Step(client));
    }
    if world.random.chance(500_000) {
        world.after(MS, Happening::Flood);
    }
    world.after(50 * MS, Happening::Fault);
    world.play_until(SAFETY);
    world.heal();
    let before = world.clients.done();
    world.play_until(SAFETY + LIVENESS);
    let done = world.clients.done();
    for (client, (done, before)) in done.into_iter().zip(before).enumerate() {
        if done < before + 20 && world.clients.checks.violation.is_none() {
            let described = world.clients.describe(client);
            world.clients.checks.violated(format!("client {client} makes no progress: {described}"));
        }
    }
    world.clients.checks.finish();
    let checks = world.clients.checks;
    Outcome { violation: checks.violation, counters: checks.counters, trace: world.trace }
}

fn no_clients() -> Clients {
    Clients::new(0, TIMEOUT, TICK, false, 0)
}

/// A clock rate with an error of up to 1%.
fn rate(random: &mut SplitMix64) -> u64 {
    990_000 + random.below(20_001)
}

impl Network for World {
    fn time(&self) -> Time {
        self.time
    }

    fn dial(&mut self, client: usize) -> ConnectionId {
        self.connect(client)
    }

    fn send_frame(&mut self, connection: ConnectionId, frame: &Bytes) {
        self.send_to_server(connection, Event::Frame { connection, frame: frame.slice(4..) });
    }

    fn hang_up(&mut self, connection: ConnectionId) {
        self.send_to_server(connection, Event::Disconnected { connection });
        self.links.remove(&connection);
    }
}

impl World {
    fn with_clients(&mut self, act: impl FnOnce(&mut Clients, &mut Self)) {
        let mut clients = std::mem::replace(&mut self.clients, no_clients());
        act(&mut clients, self);
        self.clients = clients;
    }

    fn after(&mut self, delay: Time, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((self.time + delay, self.sequence), happening);
    }

    /// Random latency: mostly short, sometimes long.
    fn latency(&mut self) -> Time {
        let longest = if self.random.chance(30_000) { 20 * MS } else { MS / 2 };
        MS / 20 + self.random.below(longest)
    }

    fn play_until(&mut self, end: Time) {
        while self.clients.checks.violation.is_none()
            && let Some(entry) = self.queue.first_entry()
            && entry.key().0 <= end
        {
            let ((time, _), happening) = entry.remove_entry();
            self.time = time;
            self.clients.checks.time = time;
            self.happen(happening);
        }
        self.time = end;
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Server { server, boot, event } => {
                let process = &self.servers[server];
                if process.boot != boot || process.server.is_none() {
                    return;
                }
                if process.paused_until > self.time {
                    let rest = process.paused_until - self.time;
                    return self.after(rest, Happening::Server { server, boot, event });
                }
                self.trace = self.trace.wrapping_mul(31).wrapping_add(self.time ^ server as u64);
                let now = self.now(server);
                if let Some(machine) = &mut self.servers[server].server {
                    machine.handle(event, now);
                }
                self.end_turn(server);
            }
            Happening::Append { server, boot, append, entry, made } => {
                self.append(server, boot, append, &entry, made);
            }
            Happening::Resolve(position) => self.resolve(position),
            Happening::Snapshot { server, boot, written } => self.snapshot_written(server, boot, written),
            Happening::Feed { server, boot } => self.feed(server, boot),
            Happening::Client { client: FLOOD, connection, frame } => self.flood_hears(connection, frame),
            Happening::Client { client, connection, frame } => {
                self.with_clients(|clients, world| clients.hears(client, connection, frame.as_ref(), world));
            }
            Happening::Step(client) => {
                self.with_clients(|clients, world| clients.step(client, world));
                let pause = MS + self.random.below(10 * MS);
                self.after(pause, Happening::Step(client));
            }
            Happening::Flood => {
                self.flood_step();
                let pause = MS + self.random.below(2 * MS);
                self.after(pause, Happening::Flood);
            }
            Happening::Start(server) => self.start(server),
            Happening::Fault => self.fault(),
        }
    }

    fn now(&self, server: usize) -> Now {
        let local = self.time / 1_000 * self.servers[server].rate / 1_000;
        Now { monotonic: Monotonic(local), wall: Timestamp(i64::try_from(local).unwrap_or(0)), uncertainty: None }
    }

    /// Starts a server from the newest snapshot.
    fn start(&mut self, server: usize) {
        if self.servers[server].server.is_some() {
            return;
        }
        let state = match self.snapshots.last() {
            None => State::default(),
            Some((_, pieces)) => {
                let mut restorer = Restorer::default();
                pieces.iter().for_each(|piece| restorer.push(piece).expect("own encoding"));
                restorer.finish().expect("complete")
            }
        };
        let nonce = u128::from(self.random.draw());
        let rate = rate(&mut self.random);
        let (boot, fed) = (self.servers[server].boot + 1, state.next().0);
        let skips_applied = self.random.chance(500_000);
        let lag = if self.random.chance(300_000) { 10 * MS + self.random.below(40 * MS) } else { 0 };
        self.servers[server] = Process { boot, rate, lag, fed, skips_applied, ..Process::default() };
        let config = Config {
            nonce,
            session_timeout_min: TIMEOUT,
            session_timeout_max: TIMEOUT,
            tick: TICK,
            batches_in_flight: 1 + self.random.below(4) as usize,
            linearizable_reads: self.has_linearizable_reads,
            read_only_after: self.random.chance(500_000).then_some(Duration::from_millis(300)),
            super_digest: None,
            collect_every: Duration::from_millis(100),
            collect_unused_after: None,
            snapshot_after_bytes: Some(6_000),
        };
        let now = self.now(server);
        self.servers[server].server = Some(Server::new(config, state, now));
        self.clients.checks.count("servers started");
        self.end_turn(server);
        self.feed_soon(server);
    }

    fn stop(&mut self, server: usize) {
        self.servers[server].server = None;
        self.servers[server].boot += 1;
        let broken: Vec<_> =
            self.links.iter().filter(|(_, link)| link.server == server).map(|(id, link)| (*id, link.client)).collect();
        for (connection, client) in broken {
            // Some clients get a connection reset, others must time out.
            if self.random.chance(700_000) {
                let delay = self.latency();
                self.after(delay, Happening::Client { client, connection, frame: None });
            }
            self.links.remove(&connection);
        }
    }

    fn end_turn(&mut self, server: usize) {
        let now = self.now(server);
        let Some(machine) = &mut self.servers[server].server else { return };
        let actions = machine.end_turn(now);
        // Skip turns that applied nothing.
        let next = machine.state().next();
        if std::mem::replace(&mut self.servers[server].looked_at, next) != next
            && let Some(machine) = &self.servers[server].server
        {
            self.clients.checks.state(machine.state());
        }
        self.check_output(&actions);
        for action in actions {
            self.act(server, action);
        }
    }

    /// Checks that a turn sends a bounded number of bytes: up to the limit plus one reply.
    fn check_output(&mut self, actions: &[Action]) {
        let mut sent: BTreeMap<ConnectionId, usize> = BTreeMap::new();
        let mut all = 0;
        for action in actions {
            let Action::Send { connection, frame } = action else { continue };
            // Events and pings are not deferred.
            if i32::from_be_bytes(frame[4..8].try_into().unwrap_or_default()) <= 0 {
                continue;
            }
            let sent = sent.entry(*connection).or_default();
            if *sent >= CONNECTION_TURN_BYTES || all >= TURN_BYTES {
                self.clients.checks.violated(format!(
                    "a turn sends another reply after {sent} bytes on the connection and {all} in total"
                ));
            }
            *sent += frame.len();
            all += frame.len();
        }
        if all >= CONNECTION_TURN_BYTES {
            self.clients.checks.count("turns with much output");
        }
    }

    fn act(&mut self, server: usize, action: Action) {
        let boot = self.servers[server].boot;
        match action {
            Action::Send { connection, frame } => self.send_to_client(connection, Some(frame)),
            Action::Close { connection } => self.send_to_client(connection, None),
            Action::Append { append, entry } => {
                let delay = self.log_latency(server);
                let made = self.time;
                self.after(delay, Happening::Append { server, boot, append, entry, made });
            }
            Action::RequestTail { request } => {
                let delay = self.log_latency(server);
                // The tail of now; the reply arrives after the latency.
                let tail = Position(self.log.len());
                let event = Event::Tail { request, tail };
                let event = if self.random.chance(50_000) { Event::TailFailed { request } } else { event };
                self.after(delay, Happening::Server { server, boot, event });
            }
            Action::SetTimer(at) => {
                let local = at.0.saturating_sub(self.now(server).monotonic.0);
                let delay = local * 1_000 / (self.servers[server].rate / 1_000) + 1_000;
                self.after(delay, Happening::Server { server, boot, event: Event::Timer });
            }
            Action::KeepPiece { next, index, piece, is_last } => {
                self.keep_piece(server, next, index, piece, is_last);
            }
            Action::Trim { below } => {
                if self.snapshots.last().is_none_or(|(next, _)| *next < below) {
                    self.clients.checks.violated(format!("trimmed below {below:?} without a snapshot"));
                }
                self.log.trimmed = self.log.trimmed.max(below.0);
                self.clients.checks.count("trims");
            }
            Action::Pause { .. } | Action::Resume { .. } => {}
        }
    }

    /// Writes a snapshot. Its parts are stored separately from the log's entries, so a server may have applied much of
    /// the log before it is notified.
    fn keep_piece(&mut self, server: usize, next: Position, index: u32, piece: Bytes, is_last: bool) {
        let boot = self.servers[server].boot;
        let slow = if self.random.chance(100_000) { self.random.below(1_500 * MS) } else { 0 };
        let delay = self.log_latency(server) + slow;
        let snapshot = &mut self.servers[server].snapshot;
        if index == 0 {
            *snapshot = Some(Writing { next, pieces: Vec::new() });
        }
        let Some(writing) = snapshot.as_mut().filter(|writing| writing.next == next) else {
            return self.clients.checks.violated(format!("piece {index} of a snapshot at {next:?} that was not begun"));
        };
        if writing.pieces.len() != index as usize {
            return self.clients.checks.violated(format!("piece {index} of a snapshot at {next:?} is out of order"));
        }
        writing.pieces.push(piece);
        if self.random.chance(20_000) {
            self.servers[server].snapshot = None;
            self.after(delay, Happening::Server { server, boot, event: Event::SnapshotFailed { next } });
        } else if is_last && let Some(written) = self.servers[server].snapshot.take() {
            self.after(delay, Happening::Snapshot { server, boot, written });
        } else {
            self.after(delay, Happening::Server { server, boot, event: Event::PieceKept { next, index } });
        }
    }

    fn snapshot_written(&mut self, server: usize, boot: u64, written: Writing) {
        self.clients.checks.count("snapshots");
        let next = written.next;
        if self.snapshots.last().is_none_or(|(newest, _)| *newest < next) {
            self.snapshots.push((next, written.pieces));
        }
        let delay = self.log_latency(server);
        self.after(delay, Happening::Server { server, boot, event: Event::SnapshotKept { next } });
    }

    /// Latency between a server and the log.
    fn log_latency(&mut self, server: usize) -> Time {
        self.servers[server].cut_until.saturating_sub(self.time) + self.latency()
    }

    fn send_to_client(&mut self, connection: ConnectionId, frame: Option<Bytes>) {
        let delay = self.latency();
        let Some(link) = self.links.get_mut(&connection) else { return };
        link.to_client = link.to_client.max(self.time + delay) + 1;
        let (client, delay) = (link.client, link.to_client - self.time);
        if frame.is_none() {
            self.links.remove(&connection);
        }
        self.after(delay, Happening::Client { client, connection, frame });
    }

    fn send_to_server(&mut self, connection: ConnectionId, event: Event) {
        let delay = self.latency();
        let Some(link) = self.links.get_mut(&connection) else { return };
        link.to_server = link.to_server.max(self.time + delay) + 1;
        let (server, boot, delay) = (link.server, link.boot, link.to_server - self.time);
        self.after(delay, Happening::Server { server, boot, event });
    }

    /// Connects a client to a random server, which may be down.
    fn connect(&mut self, client: usize) -> ConnectionId {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let server = self.random.below(self.servers.len() as u64) as usize;
        let mut password = [0; 16];
        password[..8].copy_from_slice(&connection.0.to_be_bytes());
        if self.servers[server].server.is_some() {
            let (boot, time) = (self.servers[server].boot, self.time);
            self.links.insert(connection, Link { client, server, boot, to_server: time, to_client: time });
            let address = "127.0.0.1".parse().expect("an address");
            self.send_to_server(connection, Event::Connected { connection, address, password });
        }
        connection
    }

    fn fault(&mut self) {
        if self.time > SAFETY {
            return;
        }
        let server = self.random.below(self.servers.len() as u64) as usize;
        let longest = if self.random.chance(300_000) { 1_500 } else { 200 };
        let long = (20 + self.random.below(longest)) * MS;
        match self.random.below(7) {
            0 if self.servers[server].server.is_some() => {
                self.clients.checks.count("crashes");
                self.stop(server);
                self.after(long / 4, Happening::Start(server));
            }
            1 => {
                self.clients.checks.count("pauses");
                // The end of a pause never moves back, so postponed events stay in order.
                let until = &mut self.servers[server].paused_until;
                *until = (self.time + long).max(*until);
            }
            2 => {
                self.clients.checks.count("servers partitioned");
                let until = &mut self.servers[server].cut_until;
                *until = (self.time + long).max(*until);
            }
            3 => {
                self.clients.checks.count("stalls");
                let from = self.time.max(self.log.stalled_until);
                self.log.stalled_until = from + long;
                self.clients.checks.stalls.push((from, from + long));
            }
            kind => {
                let links: Vec<_> = self.links.iter().map(|(id, link)| (*id, link.client)).collect();
                let Some((connection, client)) = links.get(self.random.below(links.len() as u64) as usize).copied()
                else {
                    return self.after(MS, Happening::Fault);
                };
                if kind == 4 {
                    self.clients.checks.count("slow consumers");
                    self.send_to_server(connection, Event::OutputFull { connection });
                    let link = &self.links[&connection];
                    let (server, boot) = (link.server, link.boot);
                    let event = Event::OutputDrained { connection };
                    self.after(100 * MS, Happening::Server { server, boot, event });
                } else {
                    self.clients.checks.count("connections broken");
                    self.hang_up(connection);
                    self.after(0, Happening::Client { client, connection, frame: None });
                }
            }
        }
        let pause = (50 + self.random.below(500)) * MS;
        self.after(pause, Happening::Fault);
    }

    fn heal(&mut self) {
        self.flood_hangs_up();
        self.log.stalled_until = self.time;
        self.clients.checks.stalls.iter_mut().for_each(|(_, to)| *to = self.time.min(*to));
        for server in 0..self.servers.len() {
            self.servers[server].cut_until = self.time;
            self.after(MS, Happening::Start(server));
        }
    }
}
