//! A bank: workers move money between accounts in different ranges of a table, in transactions, while readers add up all
//! accounts as of one moment. The total never changes, whichever nodes are killed meanwhile.
//!
//! It ends with status 1 if a total is wrong.

use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use loggos_client::{Client, Error as LoggosError, Staleness, Version};

const USAGE: &str = "usage: bank HOST:PORT,... [SECONDS [WORKERS [ACCOUNTS]]]
Moves money for 10 seconds by default, with 8 workers, between 100 accounts. Kill nodes meanwhile.";

const TABLE: &str = "bank";
const COLUMN: &str = "balance";
const BEGINNING: i64 = 1_000;
/// A transaction is tried for this long.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Counts {
    transfers: AtomicU64,
    attempts: AtomicU64,
    failures: AtomicU64,
    totals: AtomicU64,
    wrong: AtomicU64,
    longest_us: AtomicU64,
}

/// Numbers that are random enough to choose accounts.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }
}

fn account(number: u64) -> String {
    format!("account-{number:05}")
}

fn balance(value: &[u8]) -> i64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Creates the table with a range for every ten accounts, and fills it unless it exists.
async fn open(client: &Client, accounts: u64) -> Result<(), LoggosError> {
    let table = client.table(TABLE);
    let splits =
        (1..accounts.div_ceil(10).min(20)).map(|part| account(part * accounts / accounts.div_ceil(10).min(20)));
    table.create().split_at(splits).send().await?;
    client
        .transaction(|tx| async move {
            for number in 0..accounts {
                tx.put(TABLE, account(number), COLUMN, BEGINNING.to_string())?;
            }
            Ok(())
        })
        .await?;
    Ok(())
}

/// Moves money until the end.
async fn work(client: Client, mut dice: Dice, accounts: u64, until: Instant, counts: Arc<Counts>) {
    while Instant::now() < until {
        let (from, to) = (dice.below(accounts), dice.below(accounts));
        let amount = i64::try_from(dice.below(10)).unwrap_or(0) + 1;
        if from == to {
            continue;
        }
        let began = Instant::now();
        let done = client
            .transaction(|tx| async move {
                let read = async |number: u64| {
                    let cell = tx.get(TABLE, account(number), COLUMN).await?;
                    Ok::<i64, LoggosError>(cell.map_or(0, |cell| balance(&cell.value)))
                };
                let (left, right) = (read(from).await?, read(to).await?);
                tx.put(TABLE, account(from), COLUMN, (left - amount).to_string())?;
                tx.put(TABLE, account(to), COLUMN, (right + amount).to_string())
            })
            .await;
        counts.longest_us.fetch_max(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        match done {
            Ok(done) => {
                counts.transfers.fetch_add(1, Ordering::Relaxed);
                counts.attempts.fetch_add(done.attempts.into(), Ordering::Relaxed);
            }
            // Whether it happened or not, the total is the same.
            Err(error) => {
                counts.failures.fetch_add(1, Ordering::Relaxed);
                eprintln!("transfer: {error}");
            }
        }
    }
}

/// The sum of all accounts, and the moment.
async fn total(client: &Client, age: Duration) -> Result<(i64, Version), LoggosError> {
    let snapshot = client.snapshot_of(Staleness::Exact(age)).await?;
    let mut rows = snapshot.scan(TABLE).rows();
    let mut sum = 0;
    while let Some(row) = rows.next().await {
        sum += row?.cell(COLUMN).map_or(0, |cell| balance(&cell.value));
    }
    Ok((sum, snapshot.timestamp()))
}

/// Adds up the accounts until the end, as of now and as of moments since the beginning.
async fn audit(client: Client, mut dice: Dice, accounts: u64, until: Instant, counts: Arc<Counts>) {
    let (began, right) = (Instant::now(), BEGINNING * i64::try_from(accounts).unwrap_or(0));
    while Instant::now() < until {
        let past = u64::try_from(began.elapsed().as_millis()).unwrap_or(0) / 2;
        let age = Duration::from_millis(if dice.below(2) == 0 { 0 } else { dice.below(past + 1) });
        match total(&client, age).await {
            Ok((sum, _)) if sum == right => _ = counts.totals.fetch_add(1, Ordering::Relaxed),
            Ok((sum, at)) => {
                counts.wrong.fetch_add(1, Ordering::Relaxed);
                eprintln!("WRONG: {sum} instead of {right}, as of {at}");
            }
            Err(error) => eprintln!("total: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn run() -> Result<bool, Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let endpoints = arguments.next().filter(|argument| !argument.starts_with('-')).ok_or(USAGE)?;
    let mut number = |default| arguments.next().map_or(Ok(default), |argument| argument.parse::<u64>());
    let (seconds, workers, accounts) = (number(10)?, number(8)?, number(100)?.max(2));
    let client = Client::connect(endpoints.split(','))?.with_deadline(PATIENCE);
    open(&client, accounts).await?;
    // Totals of the past are right from here on.
    tokio::time::sleep(Duration::from_millis(50)).await;

    let counts = Arc::new(Counts::default());
    let (began, until) = (Instant::now(), Instant::now() + Duration::from_secs(seconds));
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..workers {
        tasks.spawn(work(client.clone(), Dice(worker + 1), accounts, until, Arc::clone(&counts)));
    }
    for auditor in 0..2 {
        tasks.spawn(audit(client.clone(), Dice(1_000 + auditor), accounts, until, Arc::clone(&counts)));
    }
    tasks.join_all().await;
    let (last, at) = total(&client, Duration::ZERO).await?;
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (transfers, wrong) = (of(&counts.transfers), of(&counts.wrong));
    println!("{transfers} transfers, {:.0} per second", transfers as f64 / began.elapsed().as_secs_f64());
    println!(
        "{} attempts, {} failed, longest {} ms",
        of(&counts.attempts),
        of(&counts.failures),
        of(&counts.longest_us) / 1_000
    );
    println!("{} totals right, {wrong} wrong; at the end {last} as of {at}", of(&counts.totals));
    Ok(wrong == 0 && last == BEGINNING * i64::try_from(accounts)?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
