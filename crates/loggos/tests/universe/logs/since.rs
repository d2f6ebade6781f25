//! Appends that name an early position where an earlier attempt of theirs may lie.

use std::time::{Duration, Instant};

use api::log::{AppendRequest, Stamp};
use bytes::Bytes;
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::input::door;
use crate::harness::{Universe, runtime};

/// Positions before them, and the bytes of each.
const POSITIONS: u64 = 4_000;
const BYTES: usize = 4_096;
const APPENDS: u64 = 60;
/// At each node.
const FOLLOWERS: usize = 40;
const PATIENCE: Duration = Duration::from_secs(60);
/// Followers have them all so soon after the last was appended. One by one, to look through what lies before each took
/// half a second.
const SOON: Duration = Duration::from_secs(3);

/// The log has another projection than when it began: so each entry says where an earlier attempt may lie, and who reads
/// it looks there. What all that look there were told, if each were told the entries, would be more than may wait for a
/// node.
#[test]
fn who_names_an_early_position_keeps_no_follower_waiting() {
    let universe = Universe::of(3);
    runtime().block_on(async {
        let log = universe.client(1).with_deadline(PATIENCE).log("l");
        log.create().await.expect("a log");
        let mut appending = JoinSet::new();
        for writer in 0..8 {
            let log = universe.client(1).with_deadline(PATIENCE).log("l");
            appending.spawn(async move {
                for number in 0..POSITIONS / 8 {
                    let name = format!("{writer}.{number}");
                    log.append([Bytes::from(format!("{name:>BYTES$}"))]).await.expect("an append");
                }
            });
        }
        appending.join_all().await;
        for node in [2, 3] {
            universe.signal(node, Signal::KILL);
            log.append([Bytes::from_static(b"without it")]).await.expect("an append");
            universe.restart(node).ok();
        }

        let from = log.tail().await.expect("a tail");
        let mut following = JoinSet::new();
        for node in universe.nodes().flat_map(|node| [node; FOLLOWERS]) {
            let mut told = universe.client(node).with_deadline(PATIENCE).log("l").subscribe(from);
            following.spawn(async move {
                while told.position() < from + APPENDS {
                    told.next().await.expect("no end").expect("an entry");
                }
                Instant::now()
            });
        }
        let mut door = door(&universe, 1).await;
        for sequence in 1..=APPENDS {
            let (records, stamp) = (vec![Bytes::from_static(b"x")], Some(Stamp { client: 7, sequence }));
            let append = AppendRequest { log: "l".into(), records, stamp, since: Some(0), oldest_open: sequence };
            door.append(append).await.expect("an append");
        }
        let appended = Instant::now();
        let told = timeout(PATIENCE, following.join_all()).await.expect("in time");
        let latest = told.into_iter().map(|at| at.saturating_duration_since(appended)).max().unwrap_or_default();
        println!("the last follower was told all {latest:?} after the last append");
        assert!(latest < SOON, "{latest:?}");
    });
    universe.check_no_peer_was_given_up();
}
