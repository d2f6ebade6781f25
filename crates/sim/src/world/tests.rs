//! Runs of the whole simulation: the product has no violations, and a seed gives the same run every time, in every
//! build.

use super::{run, run_with};
use crate::campaign;

/// Traces of a few seeds. They change with every change of behaviour, and never with the build: when the product has
/// changed, put the new ones here.
const TRACES: &[(u64, u64)] = &[(1, 0x92da_c060_c1e3_40cf), (2, 0xac14_109a_eaf2_0302), (3, 0xe87c_305a_a6ba_3e5a)];

/// Seeds that exposed bugs, with a description.
const ONCE_BROKEN: &[(u64, &str)] = &[
    (9, "a flush retried after a full disk omitted memtables frozen in the meantime"),
    (14, "a new replica without a leader named the requesting node as leader, which then waited for itself forever"),
    (19, "a session was opened in a range that had split off its key"),
    (36, "the manifest named a checkpoint with a timestamp that was no longer in memory"),
    (37, "memtables frozen by splits were never flushed, and writers stalled forever"),
    (
        40,
        "a cell was read from a flushed memtable, but its row tombstone was looked up in SSTables that had dropped it",
    ),
    (136, "a follower acknowledged during a log read on its behalf, and received no further entries"),
    (657, "an SSTable was removed while a manifest in progress named it"),
    (351, "a flushed memtable was read although a newer one had been evicted"),
    (382, "a read at a timestamp of an implausible clock made the log grow without bound"),
    (1403, "a snapshot transfer that began with some SSTables continued with others"),
    (1535, "a reply to an earlier process's request was accepted as a reply to this process"),
    (2_218, "a removed node waited forever for a leader that it could no longer learn of"),
    (6_800, "a client spent each call on one unresponsive node, because earlier responses had been slow"),
    (77_007_484, "a checkpoint of a removed replica counted for the re-added one"),
    (1_194_570_365, "a node was asked to leave before a lost one had left (simulator bug)"),
    (
        1_430_907_496,
        "a replica returned a state before a split that was older than the state its cohort had already returned",
    ),
    (2_657_576_133, "a range started empty, because its parent had not been split off itself yet"),
    (2_976_752_440, "a follower with a conflicting entry and buffered successors reported an empty gap"),
    (3_667_306_877, "a range that lost its checkpoint waited forever for its parent, which had been removed"),
    (24_375_421_288_646, "a message for a lost disk reached the blank one (simulator bug)"),
    (3_445_203_303, "a leader that cannot read its disk leads for up to 80 s, but the limit was 60 s (simulator bug)"),
];

/// The long campaigns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Long {
    AllEvents,
    DoubtfulUnits,
    DiskLoss,
    RollBack,
    Logs,
    Disks,
    PrimaryBackup,
    ZooKeeper,
}

impl Long {
    /// Whether it runs whole; otherwise it runs a quarter of its seeds, and need not meet every kind of event.
    fn is_whole(self) -> bool {
        crate::is_whole(self as usize)
    }

    fn seeds(self, all: usize) -> usize {
        if self.is_whole() { all } else { all / 4 }
    }
}

#[test]
fn traces_are_deterministic_across_builds() {
    let traces = TRACES.iter().map(|(seed, _)| (*seed, run(*seed).trace));
    let traces: Vec<(u64, u64)> = traces.collect();
    assert!(traces == TRACES, "{traces:#x?}");
}

#[test]
fn regression_seeds_pass() {
    for (seed, what) in ONCE_BROKEN {
        // The clocks had no bounds then.
        let drawn = super::Options::draw(*seed);
        let options = super::Options { clock_uncertainty: 0, transaction_clients: 0, ..drawn };
        assert_eq!(run_with(*seed, options).violation, None, "seed {seed}: {what}");
    }
}

/// Seeds that exposed bugs with the options that are drawn for them now.
const ONCE_BROKEN_AS_DRAWN: &[(u64, &str)] = &[
    (1, "a refusal to prepare waited for a lease, and woke itself without end"),
    (29, "a prepare that was sent again took effect after the transaction was resolved, without latches"),
    (1_585, "a replica without a part in a new range kept the decisions that were split off"),
    (4_805, "a commit that was executed was reported as refused, because its session had expired before the retry"),
    (904_363, "a leader sent a damaged file to a follower without end, because only the follower verified it"),
    (2_072_465_341, "the replica of a node that had left counted as unresolved (simulator bug)"),
    (18_817, "a primary was appointed in a version older than entries of its log, whose promise a crash had lost"),
    (70_492, "a full disk ended a write of which an earlier attempt had no answer yet"),
    (2_924_254_120, "a replica with a damaged checkpoint replayed its log upon the membership of that checkpoint"),
    (1_183_422_813, "two nodes with nothing to say to each other never connected again (simulator bug)"),
];

#[test]
fn regression_seeds_as_drawn_pass() {
    for (seed, what) in ONCE_BROKEN_AS_DRAWN {
        assert_eq!(run(*seed).violation, None, "seed {seed}: {what}");
    }
}

#[test]
fn campaign_passes_and_covers_all_events() {
    let long = Long::AllEvents;
    let campaign = campaign::campaign((1..).take(long.seeds(400)), std::time::Duration::MAX, |_| {});
    assert_eq!(campaign.failure, None, "loggos sim --seed N");
    if !long.is_whole() {
        return;
    }
    assert!(campaign.operations > 33_000, "only {} operations", campaign.operations);
    assert_eq!(campaign.missing(), Vec::<&str>::new(), "never happened");
}

/// The catalog's cohort includes all nodes: five of the seven vote, and three commit.
#[test]
fn seven_node_clusters_pass() {
    let seven = |seed| super::Options { nodes: 7, ..super::Options::draw(seed) };
    let campaign = campaign::campaign_with(1_000..=1_040, seven, std::time::Duration::MAX, |_| {});
    assert_eq!(campaign.failure, None);
    assert!(campaign.counters["takeovers"] > 100, "{:?}", campaign.counters);
}

/// Every acknowledged write was forced on at least two of three disks. A single sequential client needs two forces per
/// write.
#[test]
fn acknowledged_writes_are_durable_on_quorum() {
    let mut options = super::Options { clock_uncertainty: 0, ..super::Options::draw(1) };
    (options.nodes, options.replicas, options.leases) = (3, 0, true);
    options.clients = 1;
    options.faults = super::options::Faults::default();
    (options.loss, options.duplication, options.stall, options.wall_jumps) = (0, 0, 0, false);
    (options.resets, options.crash_at_manifest) = (0, 0);
    let outcome = run_with(77, options);
    assert_eq!(outcome.violation, None);
    let (writes, forces) = (outcome.counters["writes acknowledged"], outcome.counters["log forces"]);
    assert!(writes > 30 && forces >= 2 * writes, "{writes} writes, {forces} forces");
}

/// Five replicas on a network that reorders but loses nothing, with leaders that propose one entry at a time.
#[test]
fn reordering_causes_few_retransmits() {
    let mut options = super::Options { nodes: 5, propose_bytes: 64, ..super::Options::draw(1) }.busy();
    options.faults = super::options::Faults::default();
    (options.loss, options.duplication, options.long_delay, options.stall) = (0, 0, 0, 0);
    options.delay = 20 * super::MILLISECOND;
    (options.reorder_bytes, options.piggyback_commits) = (65_536, true);
    (options.replicas, options.leases, options.splits, options.drops) = (5, true, 0, false);
    // A crashed replica would need retransmission.
    (options.resets, options.crash_at_manifest) = (0, 0);
    options.commit_period = base::Duration::from_millis(100);
    for memory_log_bytes in [256, 2_048, 65_536] {
        let outcome = run_with(7, super::Options { memory_log_bytes, ..options.clone() });
        assert_eq!(outcome.violation, None);
        let (new, again) = (outcome.counters["bytes proposed"], outcome.counters["bytes retransmitted"]);
        println!("{memory_log_bytes}: {new} bytes proposed, {again} again");
        assert!(2 * again < new, "{new} bytes proposed, {again} again");
    }
}

/// A log that repeatedly loses units on running nodes, because their disk rots.
#[test]
fn logs_survive_doubtful_units() {
    let with_rot = |seed| {
        let options = super::Options::draw(seed);
        let nodes = options.nodes.max(3);
        // A disk may lose data only while the log has all its copies.
        let faults = super::options::Faults { rot: 8, kill: 2, power: 1, partition: 1, ..Default::default() };
        let options = super::Options { nodes, log_users: 4, zookeeper_clients: 0, faults, ..options };
        super::Options { fault_every: 500 * super::MILLISECOND, replication: catalog::Replication::Paxos, ..options }
    };
    let campaign =
        campaign::campaign_with((1..).take(Long::DoubtfulUnits.seeds(300)), with_rot, std::time::Duration::MAX, |_| {});
    assert_eq!(campaign.failure, None);
    // Usually a user encounters them first.
    let is_met = campaign.counters.contains_key("log units in doubt");
    assert!(is_met || !Long::DoubtfulUnits.is_whole(), "{:?}", campaign.counters);
}

/// A disk is lost for good, with its log units.
#[test]
fn logs_survive_disk_loss() {
    let with_loss = |seed| {
        let options = super::Options::draw(seed);
        let nodes = options.nodes.max(3);
        let faults = super::options::Faults { blank: 4, rot: 0, move_range: 0, ..options.faults };
        // A primary that is left alone would be lost with its disk.
        let (durability, replication) = (base::Durability::Forced, catalog::Replication::Paxos);
        super::Options { nodes, log_users: 4, faults, leaves: 0, durability, replication, ..options }
    };
    let campaign =
        campaign::campaign_with((1..).take(Long::DiskLoss.seeds(200)), with_loss, std::time::Duration::MAX, |_| {});
    assert_eq!(campaign.failure, None);
    let lost = campaign.counters.get("blank disks").copied().unwrap_or_default();
    assert!(lost > 30 || !Long::DiskLoss.is_whole(), "{lost} disks were lost");
}

/// A disk is rolled back to an older copy. There are no logs: see `Options::draw`.
#[test]
fn rolled_back_disks_are_rejected() {
    let with_roll_back = |seed| {
        let options = super::Options::draw(seed);
        let nodes = options.nodes.max(3);
        let faults = super::options::Faults { roll_back: 4, blank: 0, rot: 0, move_range: 0, ..options.faults };
        let options = super::Options { nodes, log_users: 0, zookeeper_clients: 0, faults, ..options };
        let (durability, replication) = (base::Durability::Forced, catalog::Replication::Paxos);
        super::Options { joins: 0, leaves: 0, durability, replication, ..options }
    };
    let campaign = campaign::campaign_with(
        (1..).take(Long::RollBack.seeds(200)),
        with_roll_back,
        std::time::Duration::MAX,
        |_| {},
    );
    assert_eq!(campaign.failure, None);
    let rejected = campaign.counters.get("rolled-back disks rejected").copied().unwrap_or_default();
    assert!(rejected > 30 || !Long::RollBack.is_whole(), "{rejected} disks were rejected");
}

/// A log used under all kinds of fault.
#[test]
fn log_campaign_passes() {
    let with_logs = |seed| {
        let options = super::Options::draw(seed);
        let faults = super::options::Faults { rot: 0, blank: 0, ..options.faults };
        super::Options { log_users: 4, faults, ..options }
    };
    let campaign =
        campaign::campaign_with((1..).take(Long::Logs.seeds(900)), with_logs, std::time::Duration::MAX, |_| {});
    assert_eq!(campaign.failure, None);
    if !Long::Logs.is_whole() {
        return;
    }
    for what in [
        "log appends",
        "log reads",
        "log tail requests",
        "log trims",
        "projections replaced",
        "log re-replications",
        "positions filled",
    ] {
        assert!(campaign.counters.contains_key(what), "{what} never happened: {:?}", campaign.counters);
    }
}

/// A virtual disk under all kinds of fault. `DISK_SEEDS` asks for another number of seeds.
#[test]
fn disk_campaign_passes() {
    let asked = std::env::var("DISK_SEEDS").ok().and_then(|number| number.parse().ok());
    let seeds = super::Theme::Disks.seeds().take(asked.unwrap_or_else(|| Long::Disks.seeds(100)));
    let campaign = campaign::campaign(seeds, std::time::Duration::MAX, |_| {});
    assert_eq!(campaign.failure, None, "loggos sim --seed N");
    println!("{:#?}", campaign.counters);
    for what in ["disks attached", "disk changes", "disk reads"] {
        assert!(campaign.counters.contains_key(what), "{what} never happened: {:?}", campaign.counters);
    }
}

/// Tables under primary/backup replication. `PRIMARY_BACKUP_SEEDS` asks for another number of seeds.
#[test]
fn primary_backup_campaign_passes() {
    let asked = std::env::var("PRIMARY_BACKUP_SEEDS").ok().and_then(|number| number.parse().ok());
    let seeds = super::Theme::PrimaryBackup.seeds().take(asked.unwrap_or_else(|| Long::PrimaryBackup.seeds(100)));
    let campaign = campaign::campaign(seeds, std::time::Duration::MAX, |_| {});
    assert_eq!(campaign.failure, None, "loggos sim --seed N");
    println!("{:#?}", campaign.counters);
    if !Long::PrimaryBackup.is_whole() {
        return;
    }
    for what in ["petitions", "replicas split off", "membership changes", "replicas removed", "transactions committed"]
    {
        assert!(campaign.counters.contains_key(what), "{what} never happened: {:?}", campaign.counters);
    }
}

/// ZooKeeper clients at translation servers on every node. `ZOOKEEPER_SEEDS` asks for another number of seeds,
/// `ZOOKEEPER_FIRST` for another beginning.
#[test]
fn zookeeper_campaign_passes() {
    let asked = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let seeds = super::Theme::ZooKeeper.seeds().skip(asked("ZOOKEEPER_FIRST").unwrap_or(0));
    let seeds = seeds.take(asked("ZOOKEEPER_SEEDS").unwrap_or_else(|| Long::ZooKeeper.seeds(40)));
    let campaign = campaign::campaign(seeds, std::time::Duration::MAX, |_| {});
    assert_eq!(campaign.failure, None, "loggos sim --seed N");
    println!("{:#?}", campaign.counters);
    if !Long::ZooKeeper.is_whole() {
        return;
    }
    for what in [
        "ZooKeeper events",
        "ZooKeeper locks",
        "ZooKeeper synced reads",
        "ZooKeeper sessions expired",
        "ZooKeeper sessions moved",
        "ZooKeeper writes",
        "batch appends retried",
        "projections replaced",
        "servers behind a trim",
        "trims after znode snapshots",
        "znodes restored",
    ] {
        assert!(campaign.counters.contains_key(what), "{what} never happened: {:?}", campaign.counters);
    }
}

#[cfg(feature = "canary")]
#[test]
fn log_port_bugs_are_found() {
    use base::canary::Bug;

    for bug in [Bug::FailedReadIsHole, Bug::DoubtfulAppendDone, Bug::ZnodesKeptEarly] {
        let catch = campaign::catch_bug(bug, crate::SEARCH_LIMIT);
        println!("{:<28} {:?} after {} seeds", bug.name(), catch.found, catch.seeds);
        assert!(catch.found.is_some(), "{} escapes", bug.name());
    }
}
