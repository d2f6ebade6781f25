//! `/metrics`: the node's metrics in Prometheus's text format 0.0.4.
//!
//! Metrics that are counted as events occur are atomics in a [`Registry`]: calls (`calls`), and those that the node's
//! driver registers. The state machine's metrics (its cohorts, its [`Counters`]) are derived from its status on each
//! scrape: its thread keeps plain integers, and writes take no lock for metrics.

use std::collections::BTreeSet;

use base::CohortId;
use node::request::{
    ClockStatus, CohortStatus, Counters, ReplicaStatus, Status, TransactionCounts, VerificationStatus,
};
use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use crate::map;
use crate::process::Process;
use crate::zookeeper::{Report, Value};

/// Labels of a cohort's series.
const COHORT: [&str; 2] = ["cohort", "table"];

/// The metrics of `registry`, the process, the node's state machine and the ZooKeeper endpoint. Without a status the state
/// machine counts as down.
pub(crate) fn text(
    registry: &Registry,
    status: Option<&Status>,
    zookeeper: Option<&Report>,
) -> Result<String, prometheus::Error> {
    let now = Snapshot(Registry::new());
    let process = Process::look();
    now.process(&process)?;
    if let Some(report) = zookeeper {
        now.zookeeper(report, &process)?;
    }
    now.gauge(
        "loggos_machine_up",
        "Whether the node's state machine responded within its deadline.",
        i64::from(status.is_some()),
    )?;
    if let Some(status) = status {
        now.node(status)?;
        now.counters(&status.counters)?;
        now.transactions(status)?;
        now.verification(status)?;
        now.cohorts(status)?;
        now.map(status)?;
    }
    let mut families = registry.gather();
    families.extend(now.0.gather());
    families.sort_by(|one, other| one.name().cmp(other.name()));
    TextEncoder::new().encode_to_string(&families)
}

/// Metrics at one instant.
struct Snapshot(Registry);

impl Snapshot {
    fn gauge(&self, name: &str, help: &str, value: i64) -> Result<(), prometheus::Error> {
        let gauge = IntGauge::new(name, help)?;
        gauge.set(value);
        self.0.register(Box::new(gauge))
    }

    fn real(&self, name: &str, help: &str, value: f64) -> Result<(), prometheus::Error> {
        let gauge = Gauge::new(name, help)?;
        gauge.set(value);
        self.0.register(Box::new(gauge))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(gauges.clone()))?;
        Ok(gauges)
    }

    fn counter(&self, name: &str, help: &str, count: u64) -> Result<(), prometheus::Error> {
        let counter = IntCounter::new(name, help)?;
        counter.inc_by(count);
        self.0.register(Box::new(counter))
    }

    fn counters_by(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(counters.clone()))?;
        Ok(counters)
    }

    fn process(&self, process: &Process) -> Result<(), prometheus::Error> {
        let cpu =
            prometheus::Counter::new("process_cpu_seconds_total", "Total user and system CPU time spent, in seconds.")?;
        cpu.inc_by(process.cpu_seconds);
        self.0.register(Box::new(cpu))?;
        let gauge = |name: &str, help: &str, value: u64| self.gauge(name, help, signed(value));
        gauge("process_resident_memory_bytes", "Resident memory size in bytes.", process.resident_bytes)?;
        gauge("process_open_fds", "Number of open file descriptors.", process.open_fds)?;
        gauge("process_max_fds", "Maximum number of open file descriptors.", process.max_fds)?;
        gauge("process_threads", "Number of threads in the process.", process.threads)?;
        let started = "Start time of the process, in seconds since 1970.";
        self.real("process_start_time_seconds", started, process.start_time_seconds)
    }

    fn zookeeper(&self, report: &Report, process: &Process) -> Result<(), prometheus::Error> {
        for metric in &report.metrics {
            match metric.value {
                Value::Gauge(value) => self.gauge(metric.name, metric.help, signed(value))?,
                Value::Real(value) => self.real(metric.name, metric.help, value)?,
                Value::Counter(count) => self.counter(metric.name, metric.help, count)?,
            }
        }
        // ZooKeeper's names for `process_open_fds` and `process_max_fds`.
        self.gauge("open_file_descriptor_count", "Number of open file descriptors.", signed(process.open_fds))?;
        self.gauge("max_file_descriptor_count", "Maximum number of open file descriptors.", signed(process.max_fds))
    }

    fn node(&self, status: &Status) -> Result<(), prometheus::Error> {
        let build = self.gauges("loggos_build_info", "Constant 1, labeled with the version.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let boot = "Number of times the node has been started with its disk.";
        self.gauge("loggos_boot", boot, signed(status.boot))?;
        let alive = "Whether a message from the peer arrived within the last second.";
        let alive = self.gauges("loggos_peer_alive", alive, &["peer"])?;
        for node in status.nodes.iter().filter(|node| node.node != status.node) {
            alive.with_label_values(&[&node.node.to_string()]).set(i64::from(node.alive));
        }
        let rolled_back = "Whether this node rejected the peer's last process, because its disk was rolled back.";
        let rolled_back = self.gauges("loggos_peer_rolled_back", rolled_back, &["peer"])?;
        for node in status.nodes.iter().filter(|node| node.node != status.node) {
            rolled_back.with_label_values(&[&node.node.to_string()]).set(i64::from(node.rolled_back));
        }
        let ClockStatus { uncertainty, is_outlier, refusal, .. } = &status.clock;
        // Absent without a bound, as other metrics without a value: NaN would spread through sums and maxima.
        if let Some(uncertainty) = uncertainty {
            let bound = "Bound on the error of the wall clock in seconds. Absent if none is known.";
            self.real("loggos_clock_uncertainty_seconds", bound, uncertainty.0 as f64 / 1e9)?;
        }
        let outlier = "Whether the wall clocks of most other nodes contradict this node's.";
        self.gauge("loggos_clock_outlier", outlier, i64::from(*is_outlier))?;
        let refused = "Whether the wall clock permits transactions on this node.";
        self.gauge("loggos_clock_transactions", refused, i64::from(refusal.is_none()))?;
        let problems =
            "Problems that this node reports about itself: its disk is full or partly damaged, its clock is wrong.";
        self.gauge("loggos_node_problems", problems, signed(status.troubles.len() as u64))
    }

    fn counters(&self, counters: &Counters) -> Result<(), prometheus::Error> {
        let Counters {
            members_changed,
            replicas_left,
            petitions,
            takeovers,
            truncations,
            memory_catch_ups,
            log_catch_ups,
            state_catch_ups,
            checkpoints,
            flushes,
            compactions,
            writes_paced,
            writes_stalled,
            sstables_damaged,
            blocks_damaged,
            blocks_mended,
            log_repairs,
            log_healings,
            log_units_lost,
            log_fills,
            disk_reads,
            beats,
            clock_contradictions,
            checked_reads,
            lease_expiries,
            losses,
            states_left,
            doubts_ended,
            sessions_expired,
            splits,
            doubts_resolved,
        } = *counters;
        self.counter("loggos_takeovers_total", "Elections won by this node.", takeovers)?;
        let changed = "Cohort members added, removed or promoted to voters by leaders on this node.";
        self.counter("loggos_members_changed_total", changed, members_changed)?;
        let petitions_sent = "Configurations requested from the catalog by replicas under primary/backup replication.";
        self.counter("loggos_petitions_total", petitions_sent, petitions)?;
        self.counter("loggos_replicas_left_total", "Replicas removed from this node.", replicas_left)?;
        let truncated = "Times that a log of this node was truncated in favor of a new leader's entries.";
        self.counter("loggos_truncations_total", truncated, truncations)?;
        let helped = "Catch-ups of lagging followers served by this node, by source: memory, log or state snapshot.";
        let catch_ups = self.counters_by("loggos_catch_ups_total", helped, &["kind"])?;
        for (kind, count) in [("memory", memory_catch_ups), ("log", log_catch_ups), ("state", state_catch_ups)] {
            catch_ups.with_label_values(&[kind]).inc_by(count);
        }
        self.counter("loggos_checkpoints_total", "Checkpoints of this node's own state.", checkpoints)?;
        self.counter("loggos_flushes_total", "Memtables flushed to SSTables.", flushes)?;
        self.counter("loggos_compactions_total", "Compactions started.", compactions)?;
        let paced = "Writes throttled because compactions lag behind.";
        self.counter("loggos_writes_paced_total", paced, writes_paced)?;
        let stalled = "Write stalls: writes that waited for a flush or a compaction.";
        self.counter("loggos_writes_stalled_total", stalled, writes_stalled)?;
        self.counter(
            "loggos_sstables_damaged_total",
            "Times that an SSTable was found to be corrupted.",
            sstables_damaged,
        )?;
        let met = "Damaged blocks of virtual disks that replicas of this node have met.";
        self.counter("loggos_blocks_damaged_total", met, blocks_damaged)?;
        let mended = "Damaged blocks that this node has mended with the content of other replicas.";
        self.counter("loggos_blocks_mended_total", mended, blocks_mended)?;
        let replaced = "Reconfigurations of shared logs started by this node.";
        self.counter("loggos_log_repairs_total", replaced, log_repairs)?;
        let filled = "Re-replications started by this node: copying the entries of older chains to new log units.";
        self.counter("loggos_log_healings_total", filled, log_healings)?;
        let lost = "Log units found to be permanently in doubt while this node led the catalog.";
        self.counter("loggos_log_units_lost_total", lost, log_units_lost)?;
        let junk = "Holes in shared logs (assigned positions that were never written) filled by this node.";
        self.counter("loggos_log_fills_total", junk, log_fills)?;
        self.counter("loggos_disk_reads_total", "Reads and conditional writes that waited for the disk.", disk_reads)?;
        self.counter(
            "loggos_beats_total",
            "Heartbeat batches sent, each for all quiescent cohorts shared with a peer.",
            beats,
        )?;
        let contradicted =
            "Comparisons with a peer's wall clock that showed that one of the two is outside of its bound.";
        self.counter("loggos_clock_contradictions_total", contradicted, clock_contradictions)?;
        self.counter(
            "loggos_checked_reads_total",
            "Strong reads confirmed by a round of messages instead of the lease.",
            checked_reads,
        )?;
        self.counter("loggos_lease_expiries_total", "Reads that found the leader's lease expired.", lease_expiries)?;
        let declared = "Possible losses of acknowledged writes to in-memory tables, declared by leaders on this node.";
        self.counter("loggos_losses_total", declared, losses)?;
        let left = "Replicas that discarded their state in favor of a log that had lost entries of it.";
        self.counter("loggos_states_left_total", left, states_left)?;
        self.counter("loggos_doubts_ended_total", "Replicas with a doubtful log that have caught up.", doubts_ended)?;
        let forgotten = "Proposed session expirations.";
        self.counter("loggos_sessions_expired_total", forgotten, sessions_expired)?;
        let split_off = "Replicas created by range splits.";
        self.counter("loggos_splits_total", split_off, splits)?;
        let asked = "Prepared transactions that learned their outcome by asking their coordinator.";
        self.counter("loggos_transaction_doubts_resolved_total", asked, doubts_resolved)
    }

    fn transactions(&self, status: &Status) -> Result<(), prometheus::Error> {
        let TransactionCounts {
            committed,
            aborted_by_conflict,
            aborted_by_priority,
            aborted,
            refused,
            unknown,
            lock_waits,
        } = status.transactions;
        let driven = "Transactions that clients of this node have committed.";
        self.counter("loggos_transaction_commits_total", driven, committed)?;
        let failed = "Transactions of clients of this node that were not committed, by reason: conflict (others have \
                      changed what they read), priority (of an older one), refused (no clock bound, a limit), unknown \
                      (the outcome), other.";
        let failed = self.counters_by("loggos_transaction_aborts_total", failed, &["reason"])?;
        let reasons = [
            ("conflict", aborted_by_conflict),
            ("priority", aborted_by_priority),
            ("refused", refused),
            ("unknown", unknown),
            ("other", aborted),
        ];
        for (reason, count) in reasons {
            failed.with_label_values(&[reason]).inc_by(count);
        }
        let waits = "Requests at leaders on this node that waited for a row that another transaction or an earlier change \
                     had locked.";
        self.counter("loggos_lock_waits_total", waits, lock_waits)?;
        let led = status.cohorts.iter().filter(|cohort| cohort.leader == Some(status.node));
        let prepared = led.map(|cohort| cohort.prepared).sum();
        let now =
            "Transactions over several ranges that are prepared in ranges led by this node, without an outcome yet.";
        self.gauge("loggos_transactions_prepared", now, count(prepared))
    }

    fn verification(&self, status: &Status) -> Result<(), prometheus::Error> {
        let Some(VerificationStatus { completed: Some(completed), .. }) = status.verification else { return Ok(()) };
        let when =
            "When the last verification of all blocks of virtual disks on this node ended, in seconds since 1970.";
        self.real("loggos_blocks_verified_timestamp_seconds", when, completed.0 as f64 / 1e9)
    }

    /// What this node sees of the whole cluster: the catalog's map, and which nodes are alive.
    fn map(&self, status: &Status) -> Result<(), prometheus::Error> {
        let live: BTreeSet<u32> = status.nodes.iter().filter(|node| node.alive).map(|node| node.node).collect();
        let down = status.nodes.len() - live.len();
        self.gauge("loggos_nodes_down", "Nodes from which no message arrived within the last second.", count(down))?;
        let leaderless = |cohort: &&CohortStatus| !cohort.leader.is_some_and(|leader| live.contains(&leader));
        let leaderless: BTreeSet<u32> = status.cohorts.iter().filter(leaderless).map(|cohort| cohort.cohort).collect();
        let unavailable = "Ranges without a live leader: most of their nodes are down, or this node has a replica and \
                           knows no leader.";
        let unavailable = self.gauges("loggos_ranges_unavailable", unavailable, &["table"])?;
        let thin = "Ranges with fewer live replicas than their table should have.";
        let thin = self.gauges("loggos_ranges_under_replicated", thin, &["table"])?;
        let catalog = i64::from(leaderless.contains(&CohortId::CATALOG.0));
        unavailable.with_label_values(&["(catalog)"]).set(catalog);
        let mut units_down = 0;
        for row in map::rows(&status.catalog.0) {
            let alive = row.nodes.iter().filter(|node| live.contains(node)).count();
            if row.log.is_some() {
                units_down += i64::from(alive == 0);
                continue;
            }
            let lacks_replicas = match row.primary {
                Some(primary) => !live.contains(&primary),
                None => 2 * alive <= row.nodes.len(),
            };
            let is_unavailable = lacks_replicas || leaderless.contains(&row.cohort);
            unavailable.with_label_values(&[row.table]).add(i64::from(is_unavailable));
            thin.with_label_values(&[row.table]).add(i64::from(alive < row.nodes.len().max(row.replicas as usize)));
        }
        self.gauge("loggos_log_units_down", "Units of shared logs on nodes that are down.", units_down)
    }

    /// The cohorts under primary/backup replication.
    fn configurations(&self, status: &Status) -> Result<(), prometheus::Error> {
        let version = "Version of the configuration of a range under primary/backup replication.";
        let version = self.gauges("loggos_configuration_version", version, &COHORT)?;
        let members = "Members of that configuration.";
        let members = self.gauges("loggos_configuration_members", members, &COHORT)?;
        let candidates = "Replicas that are not members of it yet; exported by the primary only.";
        let candidates = self.gauges("loggos_configuration_candidates", candidates, &COHORT)?;
        let stranded = "Whether the only member is in doubt, so that the range has stopped.";
        let stranded = self.gauges("loggos_configuration_stranded", stranded, &COHORT)?;
        let removals = "Members that left configurations of which this node is the primary.";
        self.counter("loggos_configuration_removals_total", removals, status.members_removed)?;
        for cohort in &status.cohorts {
            let Some(known) = &cohort.configuration else { continue };
            let labels = labels(cohort);
            version.with_label_values(&labels).set(signed(known.version));
            members.with_label_values(&labels).set(count(known.members.len()));
            stranded.with_label_values(&labels).set(i64::from(known.is_stranded));
            if known.primary == status.node {
                candidates.with_label_values(&labels).set(count(known.candidates.len()));
            }
        }
        Ok(())
    }

    fn cohorts(&self, status: &Status) -> Result<(), prometheus::Error> {
        let gauge = |name: &str, help: &str, of: &dyn Fn(&CohortStatus) -> i64| {
            let gauges = self.gauges(name, help, &COHORT)?;
            for cohort in &status.cohorts {
                gauges.with_label_values(&labels(cohort)).set(of(cohort));
            }
            Ok::<(), prometheus::Error>(())
        };
        let last = |cohort: &CohortStatus| own(status, cohort).map_or(0, |replica| signed(replica.last_lsn.sequence.0));
        let committed =
            |cohort: &CohortStatus| own(status, cohort).map_or(0, |replica| signed(replica.committed_lsn.sequence.0));
        let leads = |cohort: &CohortStatus| i64::from(cohort.leader == Some(status.node));
        gauge("loggos_cohort_leader", "Whether this node leads the cohort.", &leads)?;
        gauge("loggos_cohort_epoch", "Highest epoch known to this node.", &|cohort| signed(cohort.epoch))?;
        gauge("loggos_cohort_last_sequence", "Sequence of the last valid entry in this node's log.", &last)?;
        gauge("loggos_cohort_committed_sequence", "Sequence of the last entry known to be committed.", &committed)?;
        let applied = |cohort: &CohortStatus| signed(cohort.applied.sequence.0);
        gauge("loggos_cohort_applied_sequence", "Sequence of the last entry applied by this node.", &applied)?;
        let doubtful = |cohort: &CohortStatus| i64::from(own(status, cohort).is_some_and(|replica| replica.doubtful));
        let losses = |cohort: &CohortStatus| i64::from(cohort.losses);
        gauge("loggos_cohort_losses", "Possible losses of acknowledged writes declared in the cohort's log.", &losses)?;
        let sessions = |cohort: &CohortStatus| i64::try_from(cohort.sessions).unwrap_or(i64::MAX);
        gauge("loggos_cohort_sessions", "Client sessions that are open in the range.", &sessions)?;
        gauge("loggos_cohort_doubtful", "Whether this node's log is in doubt, so that it does not vote.", &doubtful)?;
        self.configurations(status)?;

        let writes = "Changes decided while this node was the leader.";
        let writes = self.counters_by("loggos_cohort_writes_total", writes, &COHORT)?;
        let reads =
            self.counters_by("loggos_cohort_reads_total", "Reads served by this node as the leader.", &COHORT)?;
        let lag = "Entries by which a replica's log is behind the longest log; exported by the cohort's leader only.";
        let lag = self.gauges("loggos_cohort_lag_entries", lag, &["cohort", "table", "replica"])?;
        for cohort in &status.cohorts {
            writes.with_label_values(&labels(cohort)).inc_by(cohort.writes);
            reads.with_label_values(&labels(cohort)).inc_by(cohort.reads);
            if cohort.leader != Some(status.node) {
                continue;
            }
            let [number, table] = labels(cohort);
            let longest = cohort.replicas.iter().map(|replica| replica.last_lsn.sequence.0).max().unwrap_or(0);
            for replica in &cohort.replicas {
                let series = lag.with_label_values(&[&number, &table, &replica.node.to_string()]);
                series.set(signed(longest - replica.last_lsn.sequence.0));
            }
        }
        Ok(())
    }
}

/// This node's replica of the cohort.
fn own<'a>(status: &Status, cohort: &'a CohortStatus) -> Option<&'a ReplicaStatus> {
    cohort.replicas.iter().find(|replica| replica.node == status.node)
}

fn labels(cohort: &CohortStatus) -> [String; 2] {
    // These are not valid table names; an empty label would be the same as none.
    let table = match cohort.log.as_deref() {
        Some("") => "(log unit)".to_owned(),
        Some(log) => format!("(log {log})"),
        None if cohort.table.is_empty() => "(catalog)".to_owned(),
        None => cohort.table.clone(),
    };
    [cohort.cohort.to_string(), table]
}

fn count(number: usize) -> i64 {
    signed(number as u64)
}

/// Gauges are signed; values never approach the limit.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
