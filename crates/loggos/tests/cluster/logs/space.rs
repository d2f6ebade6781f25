//! Disk space reclaimed by a trim.

use std::fs;
use std::time::Duration;

use base::SplitMix64;
use bytes::Bytes;

use crate::harness::{Cluster, runtime, wait_for};

/// Incompressible entries, far more than a memtable.
const ENTRIES: u64 = 128;
const ENTRY_BYTES: usize = 1 << 20;
/// Size of all nodes' tables together after everything is trimmed.
const LEFT_BYTES_MAX: u64 = 8 << 20;
const SOON: Duration = Duration::from_secs(20);

/// No append triggers the cleanup.
#[test]
fn trimmed_tables_are_deleted_soon() {
    let cluster = Cluster::of(3);
    let tables = || cluster.nodes().map(|node| bytes_in_tables(&cluster, node)).sum::<u64>();
    runtime().block_on(async {
        let log = cluster.client(1).with_deadline(SOON).log("l");
        log.create().send().await.expect("a log");
        let mut random = SplitMix64::new(7);
        for _ in 0..ENTRIES {
            let words = (0..ENTRY_BYTES / 8).flat_map(|_| random.draw().to_le_bytes());
            log.append([words.collect::<Bytes>()]).await.expect("an append");
        }
        let before = tables();
        assert!(before > ENTRIES / 2 * ENTRY_BYTES as u64, "{before} bytes");
        log.trim(ENTRIES).await.expect("a trim");
    });
    wait_for("the tables to go", SOON, || (tables() < LEFT_BYTES_MAX).then_some(()));
}

fn bytes_in_tables(cluster: &Cluster, node: u32) -> u64 {
    let tables = cluster.node_directory(node).join("store").join(store::sstable::DIRECTORY);
    let sizes = fs::read_dir(tables).expect("it is there").filter_map(|table| Some(table.ok()?.metadata().ok()?.len()));
    sizes.sum()
}
