//! Programs store snapshots of their state in the log itself, and trim the log before them.

use std::time::Duration;

use base::SplitMix64;
use bytes::Bytes;
use rustix::process::Signal;
use sdk::{Content, Error, Log, Snapshot};
use tokio::task::JoinSet;

use super::PATIENCE;
use crate::harness::{Cluster, runtime};

const STATE_BYTES: usize = (5 << 20) + 17;

fn state(seed: u64) -> Bytes {
    let mut random = SplitMix64::new(seed);
    (0..STATE_BYTES.div_ceil(8)).flat_map(|_| random.draw().to_le_bytes()).take(STATE_BYTES).collect()
}

async fn begun_with(log: &Log) -> Option<Snapshot> {
    log.snapshot().await.expect("it is known whether there is one")
}

/// While others append and nodes are killed.
#[test]
fn reader_starts_from_snapshot_after_trim() {
    let cluster = Cluster::of(3);
    let log_at = |node: u32| cluster.client(node).with_deadline(PATIENCE).log("l");
    runtime().block_on(async {
        let log = log_at(1);
        log.create().send().await.expect("a log");
        for number in 0..20u64 {
            log.append([number.to_string()]).await.expect("an append");
        }
        assert_eq!(begun_with(&log).await, None, "all of it can be played");
        let beyond = log.keep_snapshot(1_000, "x").await.expect_err("nothing lies there");
        assert!(matches!(&beyond, Error::Precondition(why) if why.contains("position 1000")), "{beyond:?}");

        let mut others = JoinSet::new();
        for writer in 1..=3 {
            let log = log_at(writer);
            others.spawn(async move {
                for number in 0..300u64 {
                    log.append([format!("{writer} {number}")]).await.expect("an append");
                }
            });
        }
        let mut next = 0;
        for turn in 0..3u64 {
            let at = log.tail().await.expect("a tail");
            log.keep_snapshot(at, state(turn)).await.expect("it is kept");
            log.trim(at).await.expect("a trim");
            let found = begun_with(&log_at(1 + (turn as u32 + 1) % 3)).await.expect("it was kept");
            assert_eq!((found.at.position(), found.state == state(turn)), (at, true));
            next = at;
            if turn == 1 {
                cluster.signal(2, Signal::KILL);
                cluster.restart(2).ok();
            }
        }
        while let Some(ended) = others.join_next().await {
            ended.expect("all was appended");
        }
        // Later entries are present, and parts of snapshots are distinguished from records.
        let log = log_at(3);
        let tail = log.tail().await.expect("a tail");
        let mut parts = 0;
        while next < tail {
            for entry in log.read_waiting(next, 100, Duration::from_millis(200)).await.expect("what lies there") {
                assert!(!matches!(entry.content, Content::Trimmed { .. }), "{entry:?}");
                parts += usize::from(matches!(entry.content, Content::Snapshot(_)));
                assert!(entry.records().iter().all(|record| record.len() < 100));
                next = entry.after();
            }
        }
        assert!(parts >= STATE_BYTES >> 20, "{parts} parts");

        // Trimming beyond every snapshot leads to a specific error.
        log.trim(tail).await.expect("a trim");
        let lost = log.snapshot().await.expect_err("there is none any more");
        assert!(matches!(&lost, Error::NotFound(why) if why.contains("no snapshot of a later position")), "{lost:?}");
    });
}
