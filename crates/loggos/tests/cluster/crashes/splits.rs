//! Splits the clients' table at their rows, one after the other, while they work and nodes are killed.

use std::time::{Duration, Instant};

use sdk::{Client, Error};
use tokio::time::{sleep, timeout};

use super::clients::{TABLE, key};
use crate::harness::Cluster;

/// Rows at which a range begins in the end.
const AT: [u64; 3] = [2, 1, 3];
/// Timeout of a split after all faults have ended.
const PATIENCE: Duration = Duration::from_secs(40);

/// Splits at regular intervals during the faults; each is retried until it succeeds.
pub(super) async fn run(client: Client, began: Instant, until: Instant) {
    let table = client.table(TABLE);
    let pause = until.duration_since(began) / (AT.len() as u32 + 1);
    for row in AT {
        sleep(pause).await;
        let is_split = async {
            loop {
                match table.split(key(row)).await {
                    Ok(_) | Err(Error::Exists(_)) => break,
                    Err(Error::Unavailable(_) | Error::OutcomeUnknown(_)) => sleep(Duration::from_millis(50)).await,
                    Err(error) => panic!("the split at row {row} was answered with {error:?}"),
                }
            }
        };
        timeout(until.saturating_duration_since(Instant::now()) + PATIENCE, is_split)
            .await
            .expect("it is split in time");
    }
}

/// Checks that the table has the ranges, each on three nodes.
pub(super) async fn check(cluster: &Cluster) {
    let known = cluster.client(1).table(TABLE).describe().await.expect("every node runs");
    let starts: Vec<_> = known.ranges.iter().map(|range| range.start.clone()).collect();
    assert_eq!(starts, [bytes::Bytes::new(), key(1), key(2), key(3)]);
    assert!(known.ranges.iter().all(|range| range.members == [1, 2, 3]));
}
