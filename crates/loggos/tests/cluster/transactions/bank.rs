//! Money moves between accounts in several ranges while nodes are killed and paused: every snapshot shows the same total.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base::SplitMix64;
use sdk::{Client, Error, Staleness, TableSnapshot};
use tokio::task::JoinSet;

use super::nemesis;
use crate::harness::{Cluster, runtime};

const TABLE: &str = "bank";
const ACCOUNTS: u64 = 40;
const BEGINNING: i64 = 100;
const WORKERS: u32 = 6;
const TROUBLE: Duration = Duration::from_secs(12);
/// How long a transfer is tried, and a total.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long clients work on after the faults until the counts are reached: a busy machine is slow.
const LONGEST: Duration = Duration::from_secs(60);
/// Minimum counts that make the test meaningful.
const TRANSFERS_MIN: u32 = 100;
const TOTALS_MIN: u32 = 20;

#[derive(Debug, Default)]
struct Counts {
    transfers: AtomicU32,
    retries: AtomicU32,
    unknown: AtomicU32,
    totals: AtomicU32,
}

impl Counts {
    /// Whether a client goes on.
    fn go_on(&self, until: Instant) -> bool {
        let is_below = |count: &AtomicU32, least| count.load(Ordering::Relaxed) < least;
        let is_short = is_below(&self.transfers, TRANSFERS_MIN) || is_below(&self.totals, TOTALS_MIN);
        Instant::now() < until || is_short && Instant::now() < until + LONGEST
    }
}

fn account(number: u64) -> String {
    format!("{number:03}")
}

#[test]
fn totals_are_constant_under_faults() {
    let cluster = Cluster::of(3);
    runtime().block_on(open(&cluster.client(1)));
    let (counts, until) = (Arc::new(Counts::default()), Instant::now() + TROUBLE);
    let faults = thread::scope(|scope| {
        let nemesis = scope.spawn(|| nemesis::run(&cluster, until));
        runtime().block_on(async {
            let mut tasks = JoinSet::new();
            for worker in 0..WORKERS {
                let client = cluster.client(1 + worker % 3).with_deadline(PATIENCE);
                tasks.spawn(transfer(client, SplitMix64::new(worker.into()), until, Arc::clone(&counts)));
            }
            for node in cluster.nodes() {
                let client = cluster.client(node).with_deadline(PATIENCE);
                tasks.spawn(audit(client, SplitMix64::new(node.into()), until, Arc::clone(&counts)));
            }
            while let Some(task) = tasks.join_next().await {
                task.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
            }
        });
        nemesis.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    runtime().block_on(async {
        let snapshot = cluster.client(1).with_deadline(PATIENCE).snapshot().await.expect("every node runs");
        check_total(&snapshot).await;
    });
    println!("{counts:?}, {faults:?}");
    let of = |count: &AtomicU32| count.load(Ordering::Relaxed);
    assert!(of(&counts.transfers) >= TRANSFERS_MIN, "{counts:?}");
    assert!(of(&counts.totals) >= TOTALS_MIN, "{counts:?}");
    faults.check();
}

/// Creates the accounts, in four ranges.
async fn open(client: &Client) {
    client.table(TABLE).create().split_at(["010", "020", "030"]).send().await.expect("a table");
    let opened = client.transaction(|tx| async move {
        (0..ACCOUNTS).try_for_each(|number| tx.put(TABLE, account(number), "balance", BEGINNING.to_string()))
    });
    opened.await.expect("every node runs");
}

async fn transfer(client: Client, mut random: SplitMix64, until: Instant, counts: Arc<Counts>) {
    while counts.go_on(until) {
        let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
        let amount = 1 + random.below(20) as i64;
        let done = client.transaction(|tx| async move {
            for (number, change) in [(from, -amount), (to, amount)] {
                let cell = tx.get(TABLE, account(number), "balance").await?.expect("every account is open");
                let balance: i64 = String::from_utf8_lossy(&cell.value).parse().expect("a number");
                tx.put(TABLE, account(number), "balance", (balance + change).to_string())?;
            }
            Ok(())
        });
        match done.await {
            Ok(done) => {
                counts.transfers.fetch_add(1, Ordering::Relaxed);
                counts.retries.fetch_add(done.attempts - 1, Ordering::Relaxed);
            }
            // Whether it has happened or not, the total is the same. Now it is decided.
            Err(Error::CommitUnknown { transaction, .. }) => {
                counts.unknown.fetch_add(1, Ordering::Relaxed);
                client.resolve_transaction(&transaction).await.expect("an outcome");
            }
            Err(error) => panic!("from {from} to {to}: {error}"),
        }
    }
}

/// Adds up all accounts, as of now and as of moments since the beginning.
async fn audit(client: Client, mut random: SplitMix64, until: Instant, counts: Arc<Counts>) {
    let began = Instant::now();
    while counts.go_on(until) {
        let past = began.elapsed().as_millis() as u64;
        let age = Duration::from_millis(random.below(past + 1));
        let staleness = if random.below(2) == 0 { Staleness::Fresh } else { Staleness::Exact(age) };
        let snapshot = client.snapshot_of(staleness).await.expect("a majority lives most of the time");
        check_total(&snapshot).await;
        counts.totals.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn check_total(snapshot: &TableSnapshot) {
    let mut rows = snapshot.scan(TABLE).page_rows(7).rows();
    let (mut total, mut count) = (0, 0);
    while let Some(row) = rows.next().await {
        let row = row.unwrap_or_else(|error| panic!("as of {}: {error}", snapshot.timestamp()));
        let balance = row.cell("balance").expect("every account is open");
        total += String::from_utf8_lossy(&balance.value).parse::<i64>().expect("a number");
        count += 1;
    }
    assert_eq!((total, count), (BEGINNING * ACCOUNTS as i64, ACCOUNTS), "as of {}", snapshot.timestamp());
}
