//! Clients that write and read a few rows at random, and record requests, responses and times.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base::{SplitMix64, Timestamp};
use bytes::Bytes;
use sdk::{Error, Replication, Table, Version};
use sim::history::{Operation, What, WriteOutcome};
use tablets::request::{Cell, Mutation};
use tokio::time::sleep;

use crate::harness::Cluster;

pub(super) const TABLE: &str = "rows";
const ROWS: u64 = 4;
const COLUMNS: [&str; 2] = ["left", "right"];
/// Longer than an election: most calls of patient clients have a definite outcome.
const DEADLINE: Duration = Duration::from_secs(2);
/// Shorter than an election: some writes of hasty clients have an unknown outcome.
const HASTY_DEADLINE: Duration = Duration::from_millis(300);
/// Calls must return by their deadline; this allows for a busy machine.
const SLACK: Duration = Duration::from_secs(2);
const PAUSE_MAX_MS: u64 = 10;

pub(super) async fn create_table(cluster: &Cluster, replication: Replication) {
    let table = cluster.client(1).table(TABLE);
    table.create().replication(replication).send().await.expect("a cluster that is ready creates a table");
}

/// Reads every row once more.
pub(super) async fn read_all(cluster: &Cluster, began: Instant) -> Vec<Operation> {
    let mut reader = Customer::with_deadline(cluster, 0, began, Duration::from_secs(20));
    for row in 0..ROWS {
        assert!(reader.read(key(row), None).await, "row {row} can't be read though every node runs");
    }
    reader.history
}

pub(super) struct Customer {
    number: u32,
    table: Table,
    deadline: Duration,
    random: SplitMix64,
    /// The start of the common clock of the history.
    began: Instant,
    /// The last version seen of each column; 0: absent.
    versions: BTreeMap<(Bytes, Bytes), i64>,
    history: Vec<Operation>,
}

impl Customer {
    pub(super) fn new(cluster: &Cluster, number: u32, began: Instant) -> Self {
        let deadline = if number % 3 == 1 { HASTY_DEADLINE } else { DEADLINE };
        Self::with_deadline(cluster, number, began, deadline)
    }

    fn with_deadline(cluster: &Cluster, number: u32, began: Instant, deadline: Duration) -> Self {
        Self {
            number,
            table: cluster.client(1 + number % 3).with_deadline(deadline).table(TABLE),
            deadline,
            random: SplitMix64::new(u64::from(std::process::id()) << 8 | u64::from(number)),
            began,
            versions: BTreeMap::new(),
            history: Vec::new(),
        }
    }

    pub(super) async fn run(mut self, until: Instant) -> Vec<Operation> {
        while Instant::now() < until {
            let key = key(self.random.below(ROWS));
            match self.random.below(10) {
                0..3 => drop(self.read(key, None).await),
                3 => {
                    let column = self.column();
                    self.read(key, Some(vec![column])).await;
                }
                4..10 => {
                    let mutations = self.mutations(&key);
                    self.write(key, mutations).await;
                }
                _ => unreachable!("below ten"),
            }
            sleep(Duration::from_millis(self.random.below(PAUSE_MAX_MS))).await;
        }
        self.history
    }

    fn column(&mut self) -> Bytes {
        Bytes::from_static(COLUMNS[self.random.below(COLUMNS.len() as u64) as usize].as_bytes())
    }

    /// A put or delete, possibly conditional, or a put of all columns.
    fn mutations(&mut self, key: &Bytes) -> Vec<Mutation> {
        let put_of_all = self.random.below(8) == 0;
        let columns = if put_of_all {
            COLUMNS.map(|name| Bytes::from_static(name.as_bytes())).to_vec()
        } else {
            vec![self.column()]
        };
        let is_put = put_of_all || self.random.below(4) > 0;
        let is_conditional = self.random.below(3) == 0;
        let mutation = |(place, column): (usize, Bytes)| {
            // Values are unique.
            let value = format!("{}/{}/{place}", self.number, self.history.len());
            let seen = self.versions.get(&(key.clone(), column.clone())).copied().unwrap_or(0);
            let condition = (is_conditional && place == 0).then_some(Timestamp(seen));
            Mutation { column, value: is_put.then(|| value.into()), condition }
        };
        columns.into_iter().enumerate().map(mutation).collect()
    }

    /// Whether there was a response; a read without one is not recorded.
    async fn read(&mut self, key: Bytes, columns: Option<Vec<Bytes>>) -> bool {
        let called = self.now();
        let answer = self.table.read(key.clone()).columns(columns.clone().unwrap_or_default()).send().await;
        let returned = self.now();
        self.in_time(called, returned);
        let cells: Vec<Cell> = match answer {
            Ok(read) => read.cells.into_iter().map(cell).collect(),
            Err(Error::Unavailable(_)) => return false,
            Err(error) => panic!("a read was answered with {error:?}"),
        };
        for column in
            columns.clone().unwrap_or_else(|| COLUMNS.map(|name| Bytes::from_static(name.as_bytes())).to_vec())
        {
            let version = cells.iter().find(|cell| cell.column == column).map_or(0, |cell| cell.version.0);
            self.versions.insert((key.clone(), column), version);
        }
        self.note(key, called, returned, What::Read { columns, cells });
        true
    }

    async fn write(&mut self, key: Bytes, mutations: Vec<Mutation>) {
        let called = self.now();
        let mut write = self.table.write(key.clone());
        for Mutation { column, value, condition } in mutations.clone() {
            write = match (value, condition.map(|version| Version::from_nanos(version.0))) {
                (Some(value), None) => write.put(column, value),
                (Some(value), Some(version)) => write.put_if(column, value, version),
                (None, None) => write.delete(column),
                (None, Some(version)) => write.delete_if(column, version),
            };
        }
        let answer = write.send().await;
        let returned = self.now();
        self.in_time(called, returned);
        let outcome = match answer {
            Ok(version) => {
                let version = version.as_nanos();
                for mutation in &mutations {
                    let version = if mutation.value.is_some() { version } else { 0 };
                    self.versions.insert((key.clone(), mutation.column.clone()), version);
                }
                WriteOutcome::Written(Timestamp(version))
            }
            Err(Error::Refused { column, expected, actual }) => {
                let (expected, actual) = (expected.as_nanos(), actual.as_nanos());
                self.versions.insert((key.clone(), column.clone()), actual);
                WriteOutcome::Mismatch { column, expected: Timestamp(expected), actual: Timestamp(actual) }
            }
            Err(Error::Unavailable(_)) => WriteOutcome::NotDone,
            Err(Error::OutcomeUnknown(_)) => WriteOutcome::Unknown,
            Err(error) => panic!("a write was answered with {error:?}"),
        };
        self.note(key, called, returned, What::Write { mutations, outcome });
    }

    fn note(&mut self, key: Bytes, called: u64, returned: u64, what: What) {
        self.history.push(Operation { client: self.number, called, returned: Some(returned), key, what });
    }

    fn in_time(&self, called: u64, returned: u64) {
        let took = Duration::from_nanos(returned - called);
        assert!(took < self.deadline + SLACK, "a call with {:?} was answered after {took:?}", self.deadline);
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

pub(super) fn key(row: u64) -> Bytes {
    format!("row {row}").into()
}

fn cell(cell: sdk::Cell) -> Cell {
    Cell { column: cell.column, value: cell.value, version: Timestamp(cell.version.as_nanos()) }
}
