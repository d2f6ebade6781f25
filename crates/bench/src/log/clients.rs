//! Appenders and readers, the logs that they use, and their connections to the cluster.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use api::log::{LogEntry, log_entry, read_answer};
use base::SplitMix64;
use bytes::Bytes;
use sdk::admin::LogDescription;
use sdk::{Client, Log};
use terminal::Stop;
use tokio::task::JoinSet;

use super::figures::Shape;
use super::stream::ReadStream;
use crate::SEED;
use crate::cluster::Cluster;
use crate::loops::Operate;
use crate::target::{CLIENTS_PER_CONNECTION, OPERATION_TIME_MAX};
use crate::workload::value;

/// Size of the pool of random bytes that entries are slices of: larger than an append plus one of its entries.
const POOL_BYTES: usize = 8 << 20;
/// Distance between the starts of two consecutive entries, chosen so that no block of an SSTable contains the same bytes
/// twice.
const POOL_STEP: usize = 4_099;
/// Concurrent appends while a log is filled.
const FILLING_APPENDERS: usize = 256;

/// The cluster under test.
pub(crate) struct Harness {
    pub(crate) cluster: Cluster,
}

/// A log under test.
#[derive(Clone, Debug)]
pub(crate) struct TestLog {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    /// The positions to read.
    pub(crate) filled: Range<u64>,
    /// The nodes of the chains of new positions, and the sequencer's node.
    pub(crate) chains: Vec<Vec<u32>>,
    pub(crate) sequencer: u32,
}

impl TestLog {
    pub(crate) fn named(name: impl Into<String>, shape: Shape) -> Self {
        Self { name: name.into(), shape, filled: 0..0, chains: Vec::new(), sequencer: 0 }
    }

    /// Whether the sequencer's node has a unit of the chains of new positions.
    pub(crate) fn sequencer_has_unit(&self) -> bool {
        self.chains.iter().flatten().any(|node| *node == self.sequencer)
    }

    /// Sets the location from a log's description.
    pub(crate) fn described(self, known: &LogDescription) -> Self {
        let nodes = |chain: &sdk::admin::LogChain| chain.units.iter().map(|unit| unit.node).collect();
        let chains = known.extents.last().map(|extent| extent.chains.iter().map(nodes).collect());
        Self { chains: chains.unwrap_or_default(), sequencer: known.sequencer, ..self }
    }
}

impl Harness {
    /// The log of this shape, created if necessary.
    pub(crate) async fn place(&self, shape: Shape) -> Result<TestLog, Stop> {
        self.place_as(format!("bench-{}x{}", shape.stripes, shape.copies), shape).await
    }

    async fn place_as(&self, name: String, shape: Shape) -> Result<TestLog, Stop> {
        let client = Client::connect(self.cluster.endpoints())?;
        let log = client.log(&name);
        log.create().stripes(shape.stripes).copies(shape.copies).send().await?;
        Ok(TestLog::named(name, shape).described(&log.describe().await?))
    }

    /// The log of this shape, with `entries` additional entries.
    pub(crate) async fn place_filled(&self, shape: Shape, entries: u64) -> Result<TestLog, Stop> {
        let Shape { stripes, copies, value_bytes, batch, .. } = shape;
        let placed = self.place_as(format!("bench-{stripes}x{copies}-{batch}x{value_bytes}"), shape).await?;
        let log = self.open(&placed, 0)?;
        let begin = log.tail().await?;
        fill(&log, shape, entries).await?;
        Ok(TestLog { filled: begin..log.tail().await?, ..placed })
    }

    /// The log through a new connection. Connection 0 goes to the sequencer's node, and each further one to the next
    /// node.
    pub(crate) fn open(&self, placed: &TestLog, connection: usize) -> Result<Log, Stop> {
        let mut endpoints = self.cluster.endpoints_from(placed.sequencer);
        let nodes = endpoints.len();
        endpoints.rotate_left(connection % nodes);
        Ok(Client::connect(endpoints)?.with_deadline(OPERATION_TIME_MAX).log(&placed.name))
    }

    /// One appender per client.
    pub(crate) fn appenders(&self, placed: &TestLog) -> Result<Vec<Appender>, Stop> {
        let connections = placed.shape.clients.div_ceil(CLIENTS_PER_CONNECTION);
        let logs = (0..connections).map(|connection| self.open(placed, connection));
        let logs = logs.collect::<Result<Vec<Log>, Stop>>()?;
        let supply = Supply::new(placed.shape);
        let appender = |(_, log): (usize, &Log)| Appender { log: log.clone(), supply: supply.clone() };
        Ok((0..placed.shape.clients).zip(logs.iter().cycle()).map(appender).collect())
    }

    /// One reader per client, all on one stream.
    pub(crate) async fn readers(&self, placed: &TestLog) -> Result<Vec<Reader>, Stop> {
        let (clients, endpoints) = (placed.shape.clients, self.cluster.endpoints_from(placed.sequencer));
        let stream = Rc::new(ReadStream::open(&endpoints[0], &placed.name, clients).await?);
        let reader = |number| {
            let (stream, filled) = (Rc::clone(&stream), placed.filled.clone());
            Reader { stream, number, filled, draw: SplitMix64::new(SEED + number as u64) }
        };
        Ok((0..clients).map(reader).collect())
    }
}

/// The source of entries: incompressible, each with different bytes.
#[derive(Clone, Debug)]
pub(crate) struct Supply {
    pool: Bytes,
    /// The start of the next entry in the pool.
    at: Rc<Cell<usize>>,
    value_bytes: usize,
    batch: usize,
}

impl Supply {
    pub(crate) fn new(shape: Shape) -> Self {
        let Shape { value_bytes, batch, .. } = shape;
        Self { pool: value(POOL_BYTES), at: Rc::default(), value_bytes, batch }
    }

    /// The entries of one append.
    fn batch(&self) -> Vec<Bytes> {
        (0..self.batch).map(|_| self.entry()).collect()
    }

    fn entry(&self) -> Bytes {
        let last = self.pool.len() - self.value_bytes;
        let at = self.at.replace((self.at.get() + POOL_STEP) % (last + 1));
        self.pool.slice(at..at + self.value_bytes)
    }
}

/// Appends one batch at a time.
pub(crate) struct Appender {
    pub(crate) log: Log,
    pub(crate) supply: Supply,
}

impl Operate for Appender {
    async fn operate(&mut self) -> Result<(), sdk::Error> {
        self.log.append(self.supply.batch()).await.map(|_| ())
    }
}

/// Reads random single positions of the filled range.
pub(crate) struct Reader {
    stream: Rc<ReadStream>,
    number: usize,
    filled: Range<u64>,
    draw: SplitMix64,
}

impl Operate for Reader {
    async fn operate(&mut self) -> Result<(), sdk::Error> {
        let position = self.filled.start + self.draw.below(self.filled.end - self.filled.start);
        let answer = self.stream.read(self.number, position).await?;
        let has_data = |entry: &LogEntry| matches!(entry.content, Some(log_entry::Content::Data(_)));
        match answer {
            read_answer::Answer::Read(read) if read.entries.first().is_some_and(has_data) => Ok(()),
            other => Err(sdk::Error::Unavailable(format!(
                "the read of position {position} did not return its entries: {other:?}"
            ))),
        }
    }
}

/// Appends this number of entries; the remainder is a smaller batch.
async fn fill(log: &Log, shape: Shape, entries: u64) -> Result<(), Stop> {
    let (left, failed) = (Rc::new(Cell::new(entries)), Rc::new(RefCell::new(None)));
    let supply = Supply::new(shape);
    let mut appenders = JoinSet::new();
    for _ in 0..FILLING_APPENDERS {
        let (log, supply, left, failed) = (log.clone(), supply.clone(), Rc::clone(&left), Rc::clone(&failed));
        appenders.spawn_local(async move {
            while left.get() > 0 && failed.borrow().is_none() {
                let count = left.get().min(supply.batch as u64);
                left.set(left.get() - count);
                let entries: Vec<Bytes> = (0..count).map(|_| supply.entry()).collect();
                if let Err(error) = log.append(entries).await {
                    failed.borrow_mut().get_or_insert(error);
                }
            }
        });
    }
    while let Some(appender) = appenders.join_next().await {
        appender.expect("no appender panics");
    }
    failed.take().map_or(Ok(()), |error| Err(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_entries_are_distinct() {
        let shape = Shape { stripes: 1, copies: 2, clients: 1, value_bytes: 512, batch: 64 };
        let supply = Supply::new(shape);
        let batches = [supply.batch(), supply.batch()].concat();
        assert_eq!(batches.iter().collect::<std::collections::BTreeSet<_>>().len(), 128);
        assert!(batches.iter().all(|entry| entry.len() == 512));
        let largest = Supply::new(Shape { value_bytes: 4 << 20, batch: 3, ..shape });
        assert!(largest.batch().iter().all(|entry| entry.len() == 4 << 20), "the pool wraps around");
    }
}
