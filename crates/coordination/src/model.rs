//! A model of ZooKeeper clients with invariants. It is used by this crate's simulation, on a model of the log, and by
//! the simulation of the whole cluster.
//!
//! *Clients* ([`Clients`]) open, move and close sessions, ping, time out, and send requests that contend for the same
//! nodes. They check the replies: order, events before changes, ephemeral nodes, a lock.
//!
//! *Checks* ([`Checks`]) applies each position of the log to a reference state before any server does. It checks that
//! states at equal positions are equal, that writes and synced reads are linearizable, and that no session expires
//! early.

use std::collections::BTreeMap;

use base::{Duration, SplitMix64};
use bytes::Bytes;

use crate::server::ConnectionId;

mod checks;
mod client;

pub use checks::Checks;
pub use client::OPEN;

use client::Client;

/// Nanoseconds of true time.
pub type Time = u64;

pub(crate) const MS: Time = 1_000_000;

/// The network between clients and servers.
pub trait Network {
    fn time(&self) -> Time;
    /// Connects a client to a server, which may be down.
    fn dial(&mut self, client: usize) -> ConnectionId;
    /// Sends a frame, including its length.
    fn send_frame(&mut self, connection: ConnectionId, frame: &Bytes);
    fn hang_up(&mut self, connection: ConnectionId);
}

/// The clients of a simulation.
#[derive(Debug)]
pub struct Clients {
    clients: Vec<Client>,
    random: SplitMix64,
    /// The session timeout of all clients.
    timeout: Duration,
    /// Whether the servers offer linearizable reads.
    has_linearizable_reads: bool,
    /// Requests stop; only pings are sent.
    is_quiet: bool,
    pub checks: Checks,
}

impl Clients {
    /// Creates clients with clock rate errors of up to 1%.
    #[must_use]
    pub fn new(count: usize, timeout: Duration, tick: Duration, has_linearizable_reads: bool, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let clients = (0..count).map(|id| Client::new(id, 990_000 + random.below(20_001))).collect();
        Self { clients, random, timeout, has_linearizable_reads, is_quiet: false, checks: Checks::new(timeout, tick) }
    }

    /// Replies that each client has received.
    #[must_use]
    pub fn done(&self) -> Vec<u64> {
        self.clients.iter().map(|client| client.done).collect()
    }

    /// Describes a client, for the report of a stuck run.
    #[must_use]
    pub fn describe(&self, client: usize) -> String {
        format!("{:?}", self.clients.get(client))
    }

    /// Stops all requests, and disconnects clients with odd numbers permanently.
    pub fn quiet(&mut self, network: &mut impl Network) {
        self.is_quiet = true;
        for client in self.clients.iter_mut().filter(|client| client.id % 2 == 1) {
            client.leave(network);
        }
    }

    /// The sessions of the clients that are connected.
    #[must_use]
    pub fn sessions(&self) -> BTreeMap<i64, usize> {
        let now = self.checks.time;
        let connected = self.clients.iter().filter_map(|client| Some((client.session_id()?, client)));
        let believes = |(session, client): &(i64, &Client)| client.believes_in(*session, now, self.timeout);
        connected.filter(believes).map(|(session, client)| (session, client.id)).collect()
    }

    /// The number of the client that considers itself connected with this session.
    fn believer(&self, session: i64, now: Time) -> Option<usize> {
        self.clients.iter().find(|client| client.believes_in(session, now, self.timeout)).map(|client| client.id)
    }

    /// Applies the entry of the next position. `made`: when its server created it, if known.
    pub fn settle(&mut self, entry: Option<&Bytes>, made: Option<Time>) {
        let mut checks = std::mem::take(&mut self.checks);
        let now = checks.time;
        checks.settle(entry, made, |session| self.believer(session, now));
        self.checks = checks;
    }
}
