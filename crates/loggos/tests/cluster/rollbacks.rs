//! Data directories that are put back to an older copy.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Cluster, wait_for};

/// A node notices within this time that its disk was rolled back.
const NOTICED: Duration = Duration::from_secs(10);

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let copied = to.join(entry.file_name());
        match entry.file_type().expect("a type").is_dir() {
            true => copy(&entry.path(), &copied),
            false => _ = fs::copy(entry.path(), &copied).expect("a file can be copied"),
        }
    }
}

/// Puts a node's directory back to an older copy.
fn roll_back(cluster: &Cluster, node: u32, older: &Path) {
    let directory = cluster.node_directory(node);
    fs::remove_dir_all(directory.join("store")).expect("its store");
    let _ = fs::remove_file(directory.join("rolled-back"));
    copy(older, &directory.join("store"));
}

fn await_rejection(cluster: &Cluster) {
    wait_for("node 3 stops", NOTICED, || cluster.pid(3).is_none().then_some(()));
    let said = fs::read_to_string(cluster.node_directory(3).join("log")).expect("its log");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("rolled back") && last.contains("loggos admin leave 3"), "{last}");
    let problem = "node 3 serves nothing: its disk was rolled back to an older copy";
    wait_for("the status names node 3", NOTICED, || cluster.status(&["--summary"]).out.contains(problem).then_some(()));
    assert!(cluster.status(&["--json"]).out.contains("\"rolled_back\":true"));
}

#[test]
fn node_with_rolled_back_disk_stops() {
    let mut cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    cluster.columns(&["put", "t", "k", "c", "first"]).ok();
    cluster.log(&["create", "l"]).ok();
    cluster.stop();
    let older = cluster.scratch().path().join("older");
    copy(&cluster.node_directory(3).join("store"), &older);
    cluster.start();

    // Acknowledged by node 3 and one other node.
    cluster.signal(1, Signal::STOP);
    cluster.columns(&["--timeout", "20s", "put", "t", "k", "c", "second"]).ok();
    cluster.signal(1, Signal::CONT);
    cluster.signal(3, Signal::KILL);
    roll_back(&cluster, 3, &older);
    // It may run for long enough to count as started.
    let _ = cluster.restart(3);
    await_rejection(&cluster);
    assert!(cluster.columns(&["get", "t", "k"]).ok().contains("second"));
    assert!(cluster.log(&["append", "l", "entry"]).status == 0);
    // A further start does not even open the store.
    cluster.restart(3).failed(1, &["node 3 exited"]);
    let said = fs::read_to_string(cluster.node_directory(3).join("log")).expect("its log");
    assert!(said.lines().last().is_some_and(|last| last.contains("is not used any more")), "{said}");

    // Also if no process remembers the former one.
    cluster.stop();
    roll_back(&cluster, 3, &older);
    cluster.start();
    await_rejection(&cluster);
    assert!(cluster.columns(&["get", "t", "k"]).ok().contains("second"));
}
