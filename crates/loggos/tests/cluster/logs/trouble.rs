//! Kills and pauses nodes while many clients append to a log, read it and follow it. The complete history must satisfy
//! guarantee 20 ([`history`](super::history)).
//!
//! `LOGGOS_LOGS_SECONDS` sets the duration of the faults, `LOGGOS_LOGS_SEED` their sequence. The seed reproduces the
//! faults, but not the timing of a run.

use std::thread;
use std::time::{Duration, Instant};

use base::SplitMix64;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::history::{Outcome, Summary};
use super::users::{Book, User};
use crate::crashes::nemesis::{Blow, kill_all, strike};
use crate::harness::{Cluster, runtime};

const LOG: &str = "l";
const APPENDERS: u32 = 9;
const READERS: u32 = 3;
const FOLLOWERS: u32 = 4;
/// Longer than any unavailability caused by the failure of a node.
const DEADLINE: Duration = Duration::from_secs(20);
/// Shorter than that: some appends have an unknown outcome.
const HASTY_DEADLINE: Duration = Duration::from_millis(300);
/// Maximum time without a completed append after one node was killed or paused, on a busy machine.
const GAP_MAX: Duration = Duration::from_secs(6);
/// The same after all of them were killed and restarted.
const AFTER_ALL: Duration = Duration::from_secs(3);
/// Timeout for the final read.
const READ_PATIENCE: Duration = Duration::from_secs(60);
/// Minimum completed appends per second that make the check meaningful.
const ENDED_MIN: usize = 20;

pub(super) fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

#[derive(Debug, Default)]
struct Blows {
    kills: u32,
    stops: u32,
    /// The time in which not all nodes ran, after all were killed.
    down: (u64, u64),
}

/// Runs until `until`, preferring the sequencer's node as the victim. At the end every node runs.
fn nemesis(cluster: &Cluster, book: &Book, seed: u64) -> Blows {
    let mut random = SplitMix64::new(seed);
    let mut blows = Blows::default();
    let log = cluster.client(1).with_deadline(Duration::from_secs(1)).log(LOG);
    let runtime = runtime();
    let halfway = Instant::now() + book.until.saturating_duration_since(Instant::now()) / 2;
    let mut are_all_killed = false;
    while Instant::now() < book.until {
        thread::sleep(Duration::from_millis(400 + random.below(800)));
        if !are_all_killed && Instant::now() > halfway {
            let began = book.now();
            kill_all(cluster);
            (blows.down, are_all_killed) = ((began, book.now() + AFTER_ALL.as_nanos() as u64), true);
            continue;
        }
        let any = 1 + random.below(cluster.nodes().count() as u64) as u32;
        let sequencer = runtime.block_on(log.describe()).ok().map(|known| known.sequencer);
        let victim = if random.below(2) == 0 { sequencer.unwrap_or(any) } else { any };
        match strike(cluster, victim, &mut random) {
            Blow::Killed => blows.kills += 1,
            Blow::Stopped => blows.stops += 1,
        }
    }
    assert!(are_all_killed && blows.kills + blows.stops > 0, "the time was too short: {blows:?}");
    blows
}

/// Runs all users until the faults are over and the followers have received everything. Returns the tail.
async fn work(cluster: &Cluster, book: &Book, seed: u64) -> u64 {
    let nodes = cluster.nodes().count() as u32;
    let clients = |deadline| -> Vec<_> {
        cluster.nodes().map(|node| cluster.client(node).with_deadline(deadline).log(LOG)).collect()
    };
    let (patient, hasty) = (clients(DEADLINE), clients(HASTY_DEADLINE));
    let user = |number: u32, is_hasty: bool| {
        let (logs, deadline) = if is_hasty { (&hasty, HASTY_DEADLINE) } else { (&patient, DEADLINE) };
        let log = logs[(number % nodes) as usize].clone();
        let random = SplitMix64::new(seed << 8 | u64::from(number));
        User { number, log, deadline, book: book.clone(), random }
    };
    let (tell, end) = watch::channel(None);
    let (mut users, mut followers) = (JoinSet::new(), JoinSet::new());
    for number in 0..APPENDERS {
        users.spawn(user(number, number % 3 == 2).append_on());
    }
    for number in 0..READERS {
        users.spawn(user(100 + number, number == 0).look_on());
    }
    for number in 0..FOLLOWERS {
        followers.spawn(user(200 + number, false).follow(end.clone()));
    }
    // A follower that starts when there is much to deliver.
    tokio::time::sleep(book.until.saturating_duration_since(Instant::now()) / 2).await;
    followers.spawn(user(300, false).follow(end));
    while let Some(done) = users.join_next().await {
        done.expect("a user's own checks hold");
    }
    let Outcome::At(last) = user(400, false).append((400, 0)).await else { panic!("the trouble is over") };
    tell.send_replace(Some(last + 1));
    while let Some(done) = followers.join_next().await {
        done.expect("a follower is told all");
    }
    last + 1
}

/// Checks that every node returns the same log.
async fn read_all(cluster: &Cluster, book: &Book, end: u64) {
    for node in cluster.nodes() {
        let log = cluster.client(node).with_deadline(DEADLINE).log(LOG);
        let (book, random) = (book.clone(), SplitMix64::new(0));
        let user = User { number: 500 + node, log, deadline: DEADLINE, book, random };
        timeout(READ_PATIENCE, user.read_all(end)).await.expect("all is read in time");
        assert!(user.tail().await.is_some_and(|tail| tail >= end), "the tail by node {node}");
    }
}

fn run(cluster: &Cluster, (stripes, copies): (u32, u32), usual: Duration) -> Summary {
    let trouble = asked("LOGGOS_LOGS_SECONDS").map_or(usual, Duration::from_secs);
    let seed = asked("LOGGOS_LOGS_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}");
    let log = cluster.client(1).log(LOG);
    runtime().block_on(log.create().stripes(stripes).copies(copies).send()).expect("a log");
    let book = Book::new(trouble);
    let (end, blows) = thread::scope(|scope| {
        let nemesis = scope.spawn(|| nemesis(cluster, &book, seed));
        let end = runtime().block_on(work(cluster, &book, seed));
        (end, nemesis.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    runtime().block_on(read_all(cluster, &book, end));
    // Data that survives the crash of all nodes was not only in memory.
    kill_all(cluster);
    runtime().block_on(read_all(cluster, &book, end));
    let summary = book.with(|history| history.check()).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    let gap = book.with(|history| history.gap(blows.down));
    let nodes = cluster.nodes().count();
    println!("{nodes} nodes: {summary:?}; {blows:?}; {gap:?} without an append at most");
    assert!(gap < GAP_MAX, "no append ended for {gap:?}");
    assert!(summary.ended > ENDED_MIN * trouble.as_secs() as usize, "too few appends: {summary:?}");
    summary
}

#[test]
fn log_on_three_nodes_under_faults() {
    let cluster = Cluster::of(3);
    let summary = run(&cluster, (2, 3), Duration::from_secs(9));
    assert!(summary.unknown > 0, "no append of unknown outcome: {summary:?}");
}

#[test]
fn log_on_five_nodes_under_faults() {
    run(&Cluster::of(5), (2, 3), Duration::from_secs(8));
}

#[test]
fn log_survives_loss_of_unsynced_writes() {
    run(&Cluster::losing_what_is_not_forced(3), (2, 2), Duration::from_secs(8));
}
