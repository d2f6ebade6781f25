//! A client that writes every key once and never deletes: every acknowledged write must be present at the end, with its
//! version. This check is independent of the linearizability checker.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sdk::{Error, Replication, Version};
use tokio::time::sleep;

use crate::harness::Cluster;

const TABLE: &str = "ledger";
const DEADLINE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);

/// The writes, with their versions if acknowledged.
pub(super) struct Ledger {
    written: BTreeMap<Bytes, Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Acknowledged(Version),
    Unknown,
    NotDone,
}

impl Ledger {
    pub(super) async fn fill(cluster: &Cluster, replication: Replication, until: Instant) -> Self {
        let table = cluster.client(2).with_deadline(DEADLINE).table(TABLE);
        // Nodes may already be failing.
        while let Err(error) = table.create().replication(replication).send().await {
            assert!(Instant::now() < until, "no table could be created: {error}");
        }
        let mut written = BTreeMap::new();
        while Instant::now() < until {
            let key = Bytes::from(format!("{:08}", written.len()));
            let outcome = match table.write(key.clone()).put("value", key.clone()).send().await {
                Ok(version) => Outcome::Acknowledged(version),
                Err(Error::OutcomeUnknown(_)) => Outcome::Unknown,
                Err(Error::Unavailable(_)) => Outcome::NotDone,
                Err(error) => panic!("a put was answered with {error:?}"),
            };
            written.insert(key, outcome);
            sleep(PAUSE).await;
        }
        Self { written }
    }

    pub(super) fn acknowledged(&self) -> usize {
        self.written.values().filter(|outcome| matches!(outcome, Outcome::Acknowledged(_))).count()
    }

    /// Reads the whole table through every node.
    pub(super) async fn verify(&self, cluster: &Cluster) {
        for node in cluster.nodes() {
            let found = found(cluster, node).await;
            for (key, outcome) in &self.written {
                let cell = found.get(key);
                assert!(cell.is_none_or(|(value, _)| value == key), "row {key:?} has another's value: {cell:?}");
                match outcome {
                    Outcome::Acknowledged(version) => {
                        assert_eq!(cell.map(|(_, version)| version), Some(version), "row {key:?} was acknowledged");
                    }
                    Outcome::NotDone => assert_eq!(cell, None, "row {key:?} was said not to be written"),
                    Outcome::Unknown => {}
                }
            }
            assert!(found.keys().all(|key| self.written.contains_key(key)), "a row that nobody wrote");
        }
    }
}

/// Every row's value and version.
async fn found(cluster: &Cluster, node: u32) -> BTreeMap<Bytes, (Bytes, Version)> {
    let client = cluster.client(node).with_deadline(Duration::from_secs(20));
    let mut rows = BTreeMap::new();
    let mut scan = client.table(TABLE).scan().rows();
    while let Some(row) = scan.next().await {
        let row = row.expect("every node runs");
        let [cell] = &row.cells[..] else { panic!("a row of one column has {:?}", row.cells) };
        rows.insert(row.key.clone(), (cell.value.clone(), cell.version));
    }
    rows
}
