//! The operations of each client: on single columns, with the same keys and values in every run.

use std::cell::RefCell;
use std::rc::Rc;

use base::SplitMix64;
use bytes::Bytes;
use clap::{Args, ValueEnum};
use sdk::Version;
use terminal::{Durability, ReadKind, Replication, Stop};
use tokio::task::{JoinSet, yield_now};

use super::loops::Operate;
use super::target::{Connection, Target};
use super::{SEED, parse};

/// Concurrent writes while the initial keys are put.
const PREPARING_CLIENTS: usize = 32;

/// The operations to measure, and their keys.
#[derive(Clone, Debug, Args)]
pub(crate) struct Workload {
    /// The operation to measure.
    #[arg(long, value_enum, default_value = "write")]
    pub(crate) operation: Operation,
    /// Percentage of writes among mixed operations; the others are reads.
    #[arg(long, value_name = "P", required_if_eq("operation", "mixed"))]
    #[arg(value_parser = clap::value_parser!(u8).range(..=100))]
    pub(crate) write_percent: Option<u8>,
    /// Number of distinct keys, chosen at random.
    #[arg(long, default_value_t = 5_000, value_parser = parse::positive)]
    pub(crate) keys: usize,
    /// Give each client a separate part of the keys, used cyclically in order.
    #[arg(long)]
    pub(crate) consecutive: bool,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 4_096)]
    pub(crate) value_bytes: usize,
    /// The consistency of reads.
    #[arg(long, value_enum, value_name = "KIND", default_value = "strong")]
    pub(crate) reads: ReadKind,
    /// The storage that a write must have reached on a majority of replicas before it is acknowledged. An existing table
    /// must have the same durability.
    #[arg(long, value_enum, value_name = "KIND", default_value = "forced")]
    pub(crate) durability: Durability,
    /// How the table is replicated. An existing table must have the same replication.
    #[arg(long, value_enum, value_name = "KIND", default_value = "paxos")]
    pub(crate) replication: Replication,
}

/// The operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// Puts, each acknowledged when it is durable on a majority according to --durability.
    Write,
    /// Reads with the consistency of --reads.
    Read,
    /// Puts conditional on the version known to the client; each client has separate keys.
    ConditionalPut,
    /// Reads and writes in the proportion of --write-percent.
    Mixed,
    /// No operation: measures the overhead of the clients and their schedule.
    Nothing,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::ConditionalPut => "conditional-put",
            Self::Mixed => "mixed",
            Self::Nothing => "nothing",
        }
    }

    fn wants_rows(self) -> bool {
        matches!(self, Self::Read | Self::ConditionalPut | Self::Mixed)
    }
}

impl Workload {
    /// Puts, for `bench failover`.
    pub(crate) fn writes(keys: usize, value_bytes: usize) -> Self {
        let (reads, durability) = (ReadKind::Strong, Durability::Forced);
        Self {
            operation: Operation::Write,
            write_percent: None,
            keys,
            consecutive: false,
            value_bytes,
            reads,
            durability,
            replication: Replication::Paxos,
        }
    }

    /// The same workload with another operation.
    pub(crate) fn of(&self, operation: Operation) -> Self {
        let write_percent = self.write_percent.filter(|_| operation == Operation::Mixed);
        Self { operation, write_percent, ..self.clone() }
    }

    pub(crate) fn is_mixed(&self) -> bool {
        self.operation == Operation::Mixed
    }

    pub(crate) fn says_write_percent(&self) -> bool {
        self.write_percent.is_some()
    }

    /// Validates the arguments before anything is measured.
    pub(crate) fn check(&self, clients: usize) -> Result<(), Stop> {
        if self.is_mixed() && self.write_percent.is_none() {
            return Err(Stop::invalid("mixed operations require --write-percent"));
        }
        if self.has_own_keys() && self.keys < clients {
            return Err(Stop::invalid(format!("{clients} clients need separate keys, but --keys is {}", self.keys)));
        }
        Ok(())
    }

    /// Percentage of operations that write.
    pub(crate) fn write_percent(&self) -> u8 {
        match self.operation {
            Operation::Write | Operation::ConditionalPut => 100,
            Operation::Read | Operation::Nothing => 0,
            Operation::Mixed => self.write_percent.unwrap_or(0),
        }
    }

    /// Whether no two clients use the same key, so that the version known to a client is current.
    fn has_own_keys(&self) -> bool {
        self.consecutive || self.operation == Operation::ConditionalPut
    }

    /// Puts every key once if the operation requires existing rows; returns the versions.
    pub(crate) async fn prepare(&self, target: &Target) -> Result<Versions, Stop> {
        target.prepare(self.durability, self.replication).await?;
        let mut versions = vec![Version::ABSENT; self.keys];
        if self.operation.wants_rows() {
            self.put_all_keys(target, &mut versions).await?;
        }
        Ok(Rc::new(RefCell::new(versions)))
    }

    async fn put_all_keys(&self, target: &Target, versions: &mut [Version]) -> Result<(), Stop> {
        let connection = target.connect().await?;
        let value = value(self.value_bytes);
        let mut writes = JoinSet::new();
        for number in 0..self.keys {
            if writes.len() == PREPARING_CLIENTS {
                settle(&mut writes, versions).await?;
            }
            let (mut connection, key, value) = (connection.clone(), self.key(number), value.clone());
            writes.spawn(async move { (number, connection.write(key, value).await) });
        }
        while !writes.is_empty() {
            settle(&mut writes, versions).await?;
        }
        Ok(())
    }

    /// Conditional puts use separate keys: in a comparison with plain writes on one target, the versions of shared keys
    /// would be unexpected.
    fn key(&self, number: usize) -> Bytes {
        let kind = if self.operation == Operation::ConditionalPut { "conditional-key" } else { "key" };
        format!("{kind}-{number:08}").into()
    }

    /// The keys of one of `clients` clients.
    fn keys_of(&self, client: usize, clients: usize) -> Keys {
        if !self.has_own_keys() {
            return Keys { first: 0, count: self.keys, next: None };
        }
        let first = client * self.keys / clients;
        let count = (client + 1) * self.keys / clients - first;
        Keys { first, count, next: self.consecutive.then_some(0) }
    }
}

/// Waits for a write and records its version.
async fn settle(
    writes: &mut JoinSet<(usize, Result<Version, sdk::Error>)>,
    versions: &mut [Version],
) -> Result<(), Stop> {
    let (number, written) = writes.join_next().await.expect("writes are in flight").expect("no write panics");
    versions[number] = written?;
    Ok(())
}

/// The version of each key, as known to its client.
pub(crate) type Versions = Rc<RefCell<Vec<Version>>>;

/// The keys of one client, and their order.
struct Keys {
    first: usize,
    count: usize,
    /// The next one, if they are used in order.
    next: Option<usize>,
}

impl Keys {
    fn next(&mut self, draw: &mut SplitMix64) -> usize {
        let offset = match &mut self.next {
            None => draw.below(self.count as u64) as usize,
            Some(next) => std::mem::replace(next, (*next + 1) % self.count),
        };
        self.first + offset
    }
}

/// A client that executes one operation at a time.
pub(crate) struct Client {
    workload: Rc<Workload>,
    connection: Connection,
    versions: Versions,
    value: Bytes,
    keys: Keys,
    draw: SplitMix64,
}

impl Client {
    /// Client number `client` of `clients`.
    pub(crate) fn new(
        workload: &Rc<Workload>,
        connection: Connection,
        versions: &Versions,
        value: &Bytes,
        (client, clients): (usize, usize),
    ) -> Self {
        Self {
            connection,
            versions: Rc::clone(versions),
            value: value.clone(),
            keys: workload.keys_of(client, clients),
            draw: SplitMix64::new(SEED + client as u64),
            workload: Rc::clone(workload),
        }
    }

    async fn write(&mut self) -> Result<(), sdk::Error> {
        let key = self.workload.key(self.keys.next(&mut self.draw));
        self.connection.write(key, self.value.clone()).await.map(|_| ())
    }

    async fn read(&mut self) -> Result<(), sdk::Error> {
        let key = self.workload.key(self.keys.next(&mut self.draw));
        self.connection.read(key, self.workload.reads).await
    }

    async fn conditional_put(&mut self) -> Result<(), sdk::Error> {
        let number = self.keys.next(&mut self.draw);
        let version = self.versions.borrow()[number];
        let put = self.connection.conditional_put(self.workload.key(number), self.value.clone(), version).await;
        let known = match &put {
            Ok(version) => *version,
            Err(sdk::Error::Refused { actual, .. }) => *actual,
            Err(_) => version,
        };
        self.versions.borrow_mut()[number] = known;
        put.map(|_| ())
    }
}

impl Operate for Client {
    /// Executes the next operation.
    ///
    /// # Errors
    /// [`sdk::Error::Refused`] when a conditional put expected a version that the key does not have: the outcome of the
    /// previous put was unknown, or another program writes the same keys. The next put uses the version found.
    async fn operate(&mut self) -> Result<(), sdk::Error> {
        match self.workload.operation {
            Operation::Write => self.write().await,
            Operation::Read => self.read().await,
            Operation::ConditionalPut => self.conditional_put().await,
            Operation::Mixed if self.draw.below(100) < u64::from(self.workload.write_percent()) => self.write().await,
            Operation::Mixed => self.read().await,
            Operation::Nothing => {
                yield_now().await;
                Ok(())
            }
        }
    }
}

/// Incompressible bytes.
pub(crate) fn value(bytes: usize) -> Bytes {
    let mut draw = SplitMix64::new(SEED);
    let mut value = Vec::with_capacity(bytes + 8);
    while value.len() < bytes {
        value.extend_from_slice(&draw.draw().to_le_bytes());
    }
    value.truncate(bytes);
    value.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(operation: Operation, consecutive: bool) -> Workload {
        Workload { consecutive, ..Workload::writes(10, 8).of(operation) }
    }

    fn taken(workload: &Workload, client: usize, clients: usize, count: usize) -> Vec<usize> {
        let (mut keys, mut draw) = (workload.keys_of(client, clients), SplitMix64::new(SEED));
        (0..count).map(|_| keys.next(&mut draw)).collect()
    }

    #[test]
    fn values_have_requested_size() {
        for bytes in [0, 1, 8, 4_096, 4_099] {
            assert_eq!(value(bytes).len(), bytes);
        }
    }

    #[test]
    fn consecutive_keys_are_per_client() {
        let workload = workload(Operation::Write, true);
        assert_eq!(taken(&workload, 0, 3, 4), [0, 1, 2, 0]);
        assert_eq!(taken(&workload, 1, 3, 4), [3, 4, 5, 3]);
        assert_eq!(taken(&workload, 2, 3, 5), [6, 7, 8, 9, 6]);
    }

    #[test]
    fn conditional_puts_use_per_client_keys() {
        let all = taken(&workload(Operation::Write, false), 1, 2, 1_000);
        assert_eq!((all.iter().min(), all.iter().max()), (Some(&0), Some(&9)));
        let own = taken(&workload(Operation::ConditionalPut, false), 1, 2, 1_000);
        assert_eq!((own.iter().min(), own.iter().max()), (Some(&5), Some(&9)));
    }

    #[test]
    fn rejects_invalid_workloads() {
        let mixed = workload(Operation::Mixed, false);
        assert!(mixed.check(1).is_err());
        let mixed = Workload { write_percent: Some(10), ..mixed };
        assert!(mixed.check(1).is_ok());
        assert!(!mixed.of(Operation::Read).says_write_percent());
        assert!(workload(Operation::Write, false).check(11).is_ok());
        assert!(workload(Operation::ConditionalPut, false).check(11).is_err());
        assert!(workload(Operation::Write, true).check(11).is_err());
    }
}
