//! Clients append to lists in several ranges and tables and read them, while nodes are killed and paused. The complete
//! history is strictly serializable, according to the checker of the simulator ([`sim::list_append`]).
//!
//! A list is a row: each value is the name of a column, and the versions give the order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use base::{SplitMix64, Timestamp};
use bytes::Bytes;
use sdk::{Client, Error, Row, Staleness, TransactionOutcome, Version};
use sim::list_append::{self, Kind, Operation, Outcome, Transaction};
use tokio::task::JoinSet;

use super::nemesis;
use crate::harness::{Cluster, runtime};

/// Each has two ranges at first.
const TABLES: [&str; 2] = ["lists", "other-lists"];
/// The first letters of the keys in a table.
const LETTERS: Range<u8> = b'a'..b'g';
/// New lists begin at this interval, with the same letters, so that no list becomes long.
const GENERATION: Duration = Duration::from_millis(1_500);
const GENERATIONS: u64 = 8;
const WORKERS: u32 = 6;
const TROUBLE: Duration = Duration::from_secs(12);
/// The deadline of half of the clients, which learn some outcomes only later ...
const HASTE: Duration = Duration::from_millis(600);
/// ... and of the other half, and of that question.
const PATIENCE: Duration = Duration::from_secs(30);
/// How far an age that a node measures by its wall clock may differ from one by the clock of this process.
const CLOCKS_DIFFER: Duration = Duration::from_millis(100);
/// Minimum counts that make the check meaningful. After the faults, the clients work on until these are reached ...
const COMMITTED_MIN: usize = 40;
const ABORTED_MIN: usize = 20;
const SNAPSHOTS_MIN: usize = 15;
/// ... for at most this time: a busy machine is slow.
const LONGEST: Duration = Duration::from_secs(60);
const PLANTED: usize = 3;

/// A list: the index of its table, the letter, and the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct List {
    table: usize,
    letter: u8,
    generation: u64,
}

impl List {
    fn table(self) -> &'static str {
        TABLES[self.table]
    }

    fn key(self) -> String {
        format!("{}{}", char::from(self.letter), self.generation)
    }

    /// Its name in the history.
    fn name(self) -> u64 {
        self.table as u64 * 100_000 + u64::from(self.letter) * 100 + self.generation
    }

    /// The lists of a table with these letters, of all generations.
    fn all(table: usize, letters: Range<u8>) -> impl Iterator<Item = Self> {
        letters.flat_map(move |letter| (0..GENERATIONS).map(move |generation| Self { table, letter, generation }))
    }
}

/// A step of a transaction.
#[derive(Clone, Debug)]
enum Step {
    Append(List),
    Read(List),
    /// Reads the lists of a table with these letters, also those that do not exist.
    Scan(usize, Range<u8>),
}

/// The operations of each attempt of a transaction.
type Attempts = Arc<Mutex<Vec<Vec<Operation>>>>;

/// What all clients share.
#[derive(Debug, Default)]
struct Shared {
    /// The last value that was appended.
    last_value: AtomicU64,
    /// Commits of which the outcome was asked for.
    in_doubt: AtomicU64,
    /// Committed transactions with reads and writes, attempts with writes that were aborted, and snapshots.
    counts: [AtomicUsize; 3],
}

impl Shared {
    fn count(&self, done: &Transaction) {
        if let Some(kind) = kind(done) {
            self.counts[kind].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the history is long enough.
    fn has_enough(&self) -> bool {
        let least = [COMMITTED_MIN, ABORTED_MIN, SNAPSHOTS_MIN];
        self.counts.iter().zip(least).all(|(count, least)| count.load(Ordering::Relaxed) >= least)
    }
}

/// Which of the counts a transaction belongs to.
fn kind(done: &Transaction) -> Option<usize> {
    let writes = done.operations.iter().any(|operation| matches!(operation, Operation::Append(..)));
    let reads = done.operations.iter().any(|operation| matches!(operation, Operation::Read(..)));
    match done.outcome {
        Outcome::Committed(_) if !writes => Some(2),
        Outcome::Committed(_) => reads.then_some(0),
        Outcome::Aborted => writes.then_some(1),
        Outcome::Unknown => None,
    }
}

/// A client with its share of the history.
struct Worker {
    client: Client,
    number: u32,
    random: SplitMix64,
    began: Instant,
    shared: Arc<Shared>,
    history: Vec<Transaction>,
}

#[test]
fn lists_are_strictly_serializable_under_faults() {
    let cluster = Cluster::of(3);
    runtime().block_on(async {
        for table in TABLES {
            cluster.client(1).table(table).create().split_at(["d"]).send().await.expect("a table");
        }
    });
    let (began, shared) = (Instant::now(), Arc::new(Shared::default()));
    let until = began + TROUBLE;
    let worker = |number: u32| {
        let deadline = if number.is_multiple_of(2) { HASTE } else { PATIENCE };
        let client = cluster.client(1 + number % 3).with_deadline(deadline);
        let random = SplitMix64::new(u64::from(std::process::id()) << 8 | u64::from(number));
        Worker { client, number, random, began, shared: Arc::clone(&shared), history: Vec::new() }
    };
    let (mut history, faults) = thread::scope(|scope| {
        let nemesis = scope.spawn(|| nemesis::run(&cluster, until));
        let history = runtime().block_on(async {
            let mut tasks: JoinSet<_> = (0..WORKERS).map(|number| worker(number).run(until)).collect();
            tasks.spawn(split(cluster.client(2).with_deadline(PATIENCE), until));
            let mut history = Vec::new();
            while let Some(task) = tasks.join_next().await {
                history.extend(task.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())));
            }
            history
        });
        (history, nemesis.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    // Every node runs again: this transaction sees the final state.
    let mut last = worker(WORKERS + 1);
    runtime().block_on(last.transact((0..TABLES.len()).map(|table| Step::Scan(table, LETTERS)).collect()));
    assert!(matches!(last.history.last(), Some(Transaction { outcome: Outcome::Committed(_), .. })), "{last:?}");
    history.append(&mut last.history);

    if let Err(anomaly) = list_append::check(&history) {
        let involved = anomaly.transactions.iter().map(|index| format!("{index}: {:?}", history[*index]));
        panic!("{anomaly}\n{}", involved.collect::<Vec<_>>().join("\n"));
    }
    report(&history);
    println!("{faults:?}, {shared:?}");
    faults.check();
    stale_reads_are_found(&history);
}

/// Splits a range of the first table halfway.
async fn split(client: Client, until: Instant) -> Vec<Transaction> {
    tokio::time::sleep(until.saturating_duration_since(Instant::now()) / 2).await;
    client.table(TABLES[0]).split("b").await.expect("a majority lives most of the time");
    Vec::new()
}

/// Checks that the history is worth its check.
fn report(history: &[Transaction]) {
    let count = |wanted: usize| history.iter().filter(|done| kind(done) == Some(wanted)).count();
    let (committed, aborted, snapshots) = (count(0), count(1), count(2));
    let unknown = history.iter().filter(|done| done.outcome == Outcome::Unknown).count();
    println!(
        "{} transactions and attempts: {committed} with reads and writes are committed, {aborted} with writes aborted, \
         {unknown} unknown, {snapshots} only read",
        history.len()
    );
    assert!(committed >= COMMITTED_MIN && aborted >= ABORTED_MIN && snapshots >= SNAPSHOTS_MIN, "too few");
}

/// Verifies the checker: without the last value of one list, late transactions with reads are stale.
fn stale_reads_are_found(history: &[Transaction]) {
    let has_values = |operation: &Operation| matches!(operation, Operation::Read(_, values) if !values.is_empty());
    let candidates = history.iter().enumerate().rev().filter(|(_, done)| {
        let only_reads = done.operations.iter().all(|operation| matches!(operation, Operation::Read(..)));
        only_reads && matches!(done.outcome, Outcome::Committed(_))
    });
    let mut planted = 0;
    for (index, done) in candidates {
        let Some(at) = done.operations.iter().position(has_values) else { continue };
        let mut history = history.to_vec();
        let Operation::Read(name, values) = &mut history[index].operations[at] else { unreachable!("it is a read") };
        let (name, value) = (*name, values.pop().expect("it has values"));
        let appended = |done: &Transaction| done.operations.contains(&Operation::Append(name, value));
        let writer = history.iter().find(|done| appended(done)).expect("the value was appended");
        // Otherwise the read is allowed to miss it.
        if writer.ended < history[index].begun {
            let anomaly = list_append::check(&history).expect_err("the planted stale read is not found");
            assert_ne!(anomaly.kind, Kind::Malformed, "{anomaly}");
            planted += 1;
        }
        if planted == PLANTED {
            return;
        }
    }
    panic!("the history has no place for a stale read");
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("number", &self.number).field("last", &self.history.last()).finish()
    }
}

impl Worker {
    /// Works until `until`, or until the history is long enough; returns its history.
    async fn run(mut self, until: Instant) -> Vec<Transaction> {
        while Instant::now() < until || !self.shared.has_enough() && Instant::now() < until + LONGEST {
            match self.random.below(8) {
                0 | 1 => {
                    let age = Duration::from_millis(self.random.below(2_000)).min(self.began.elapsed());
                    let all = [Staleness::Fresh, Staleness::Exact(age), Staleness::Max(age)];
                    let staleness = all[self.random.below(3) as usize];
                    self.look(staleness).await;
                }
                _ => {
                    let steps = (0..1 + self.random.below(5)).map(|_| self.step()).collect();
                    self.transact(steps).await;
                }
            }
        }
        self.history
    }

    /// A time for the checker, in nanoseconds since the beginning.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn list(&mut self) -> List {
        let generation = (self.began.elapsed().as_millis() / GENERATION.as_millis()) as u64;
        List {
            table: self.random.below(TABLES.len() as u64) as usize,
            letter: LETTERS.start + self.random.below(LETTERS.len() as u64) as u8,
            generation: generation.min(GENERATIONS - 1),
        }
    }

    fn step(&mut self) -> Step {
        let list = self.list();
        match self.random.below(12) {
            // Two letters, which may be in two ranges.
            0 => Step::Scan(list.table, list.letter..(list.letter + 2).min(LETTERS.end)),
            1..=5 => Step::Read(list),
            _ => Step::Append(list),
        }
    }

    /// Runs a transaction, and notes its attempts.
    async fn transact(&mut self, steps: Vec<Step>) {
        let (begun, attempts) = (self.now(), Attempts::default());
        let done =
            self.client.transaction(|tx| attempt(tx, steps.clone(), self.shared.clone(), attempts.clone())).await;
        let outcome = match done {
            Ok(done) => Outcome::Committed(timestamp(done.timestamp)),
            Err(Error::CommitUnknown { transaction, .. }) => {
                self.shared.in_doubt.fetch_add(1, Ordering::Relaxed);
                let client = self.client.clone().with_deadline(PATIENCE);
                match client.resolve_transaction(&transaction).await.expect("a majority lives most of the time") {
                    TransactionOutcome::Committed(at) => Outcome::Committed(timestamp(at)),
                    TransactionOutcome::Aborted => Outcome::Aborted,
                    _ => Outcome::Unknown,
                }
            }
            Err(error) if error.is_outcome_unknown() => Outcome::Unknown,
            Err(Error::Aborted(_) | Error::Unavailable(_)) => Outcome::Aborted,
            Err(error) => panic!("{steps:?}: {error}"),
        };
        let ended = self.now();
        let mut attempts = std::mem::take(&mut *attempts.lock().unwrap_or_else(PoisonError::into_inner));
        let Some(last) = attempts.pop() else { return };
        let client = self.number;
        let aborted = attempts.into_iter().map(|operations| (operations, Outcome::Aborted));
        let all = aborted.chain([(last, outcome)]);
        let done = all.map(|(mut operations, outcome)| {
            if !matches!(outcome, Outcome::Committed(_)) {
                // The reads were not validated, and may be of different moments.
                operations.retain(|operation| matches!(operation, Operation::Append(..)));
            }
            Transaction { client, begun, ended, outcome, operations }
        });
        for done in done {
            self.shared.count(&done);
            self.history.push(done);
        }
    }

    /// Reads some lists in a snapshot, and notes it as a transaction that only reads.
    async fn look(&mut self, staleness: Staleness) {
        // A snapshot contains everything that had ended before this moment.
        let age = match staleness {
            Staleness::Exact(age) | Staleness::Max(age) => age + CLOCKS_DIFFER,
            _ => Duration::ZERO,
        };
        let begun = self.now().saturating_sub(u64::try_from(age.as_nanos()).expect("a few seconds"));
        let first = self.list();
        let Ok(snapshot) = self.client.table(first.table()).snapshot_of(first.key(), staleness).await else { return };
        let mut operations = Vec::new();
        let others: Vec<List> = (0..self.random.below(4)).map(|_| self.list()).collect();
        for list in [first].into_iter().chain(others) {
            // Within a short deadline, a read may fail.
            let Ok(row) = snapshot.row(list.table(), list.key()).await else { return };
            operations.push(Operation::Read(list.name(), values(&row)));
        }
        let (client, ended, outcome) = (self.number, self.now(), Outcome::Committed(None));
        let done = Transaction { client, begun, ended, outcome, operations };
        self.shared.count(&done);
        self.history.push(done);
    }
}

/// One attempt of a transaction, with values of its own. Notes its operations as far as it came.
async fn attempt(tx: sdk::Transaction, steps: Vec<Step>, shared: Arc<Shared>, attempts: Attempts) -> Result<(), Error> {
    let note = |operations: Vec<Operation>| {
        let mut attempts = attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.last_mut().expect("it was pushed").extend(operations);
    };
    attempts.lock().unwrap_or_else(PoisonError::into_inner).push(Vec::new());
    for step in steps {
        match step {
            Step::Append(list) => {
                let value = 1 + shared.last_value.fetch_add(1, Ordering::Relaxed);
                tx.put(list.table(), list.key(), Bytes::copy_from_slice(&value.to_be_bytes()), "")?;
                note(vec![Operation::Append(list.name(), value)]);
            }
            Step::Read(list) => {
                let row = tx.row(list.table(), list.key()).await?;
                note(vec![Operation::Read(list.name(), values(&row))]);
            }
            Step::Scan(table, letters) => {
                let keys = vec![letters.start]..vec![letters.end];
                let rows = tx.scan(TABLES[table]).range(keys).page_rows(5).all().await?;
                let rows: BTreeMap<&[u8], &Row> = rows.iter().map(|row| (&row.key[..], row)).collect();
                let found = |list: List| rows.get(list.key().as_bytes()).map_or(Vec::new(), |row| values(row));
                note(List::all(table, letters).map(|list| Operation::Read(list.name(), found(list))).collect());
            }
        }
    }
    Ok(())
}

/// The values of a list, in order. A transaction's own come last.
fn values(row: &Row) -> Vec<u64> {
    let value = |column: &Bytes| column[..].try_into().map(u64::from_be_bytes).expect("a value has eight bytes");
    let cells = row.cells.iter().map(|cell| (cell.version == Version::ABSENT, cell.version, value(&cell.column)));
    let mut values: Vec<_> = cells.collect();
    values.sort_unstable();
    values.into_iter().map(|(_, _, value)| value).collect()
}

fn timestamp(version: Version) -> Option<Timestamp> {
    (version != Version::ABSENT).then(|| Timestamp(version.as_nanos()))
}
