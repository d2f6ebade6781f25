//! Checks during a run and at its end.

use std::collections::{BTreeMap, BTreeSet};

use base::{CohortId, Entry, Epoch, Lsn, Monotonic, NodeId, Sequence};
use catalog::Replication;
use node::message::Message;
use node::registry::AnyMachine;
use replication::{Cohort, commit_invariant, primary_invariant, reconfiguration_invariant};

use super::World;
use super::host::SimHost;
use crate::history;

/// The state of the checks.
#[derive(Default)]
pub(crate) struct Checks {
    /// The entry applied at each sequence, on any node, by cohort and number of losses.
    chosen: BTreeMap<(CohortId, u32), BTreeMap<Sequence, Lsn>>,
    /// The last applied entry of each process that was checked, with its generation and number of losses.
    checked: BTreeMap<(NodeId, CohortId), ((u64, u32), Sequence)>,
    /// Logical hashes of states, by their last entry.
    hashes: BTreeMap<(CohortId, Lsn), (NodeId, u64)>,
    /// The newest entry that a leader has sent to a follower in its epoch.
    proposed: BTreeMap<(NodeId, NodeId, CohortId), (Epoch, Sequence)>,
    steps: u64,
}

/// Expensive checks run after one step in this many.
const DEAR_EVERY: u64 = 32;
/// Lease checks run after one step in this many.
const LEASES_EVERY: u64 = 4;

/// Checks the invariants of one cohort. Each replica comes with the time on its node's clock.
fn check_configuration(replicas: &[(&Cohort, Monotonic)]) -> Result<(), String> {
    primary_invariant(replicas.iter().copied())?;
    let cohorts = || replicas.iter().map(|(cohort, _)| *cohort);
    let primary = cohorts().filter(|cohort| cohort.is_open()).max_by_key(|cohort| cohort.promised().epoch);
    let Some(primary) = primary else { return Ok(()) };
    let known = cohorts().filter_map(Cohort::configuration).max_by_key(|known| known.version);
    for other in cohorts().filter(|other| !other.is_in_doubt()) {
        reconfiguration_invariant(primary, other)?;
        if known.is_some_and(|known| known.version == primary.promised().epoch && known.has(other.me())) {
            commit_invariant(primary, other)?;
        }
    }
    Ok(())
}

/// The number of losses in a state.
fn losses(state: &AnyMachine) -> u32 {
    state.progress().losses
}

impl World {
    /// Checks a node after a step.
    pub(crate) fn check_node(&mut self, id: NodeId) {
        self.checks.steps += 1;
        self.check_applied(id);
        self.check_losses(id);
        self.check_prepared(id);
        if self.checks.steps.is_multiple_of(LEASES_EVERY) {
            self.check_leases();
            self.check_owners();
            self.check_roster();
            self.check_configurations();
        }
        if self.checks.steps.is_multiple_of(DEAR_EVERY) {
            self.check_state(id);
            self.check_decisions(id);
            self.take_counters(id);
        }
    }

    /// Checks that a sequence has one value: all replicas apply the same entries.
    fn check_applied(&mut self, id: NodeId) {
        let Some(machine) = self.hosts.get(&id) else { return };
        let Some(process) = machine.process.as_ref() else { return };
        let mut others = Vec::new();
        for (cohort, replica, state) in process.node.replicas() {
            let losses = losses(state);
            let checked = self.checks.checked.entry((id, cohort)).or_default();
            if checked.0 != (machine.generation, losses) {
                *checked = ((machine.generation, losses), Sequence(0));
            }
            let chosen = self.checks.chosen.entry((cohort, losses)).or_default();
            let first = checked.1.next().max(replica.entries().next().map_or(Sequence(0), |entry| entry.lsn.sequence));
            for sequence in first.0..=replica.applied().0 {
                let sequence = Sequence(sequence);
                let Some(lsn) = replica.lsn_at(sequence) else { continue };
                let known = *chosen.entry(sequence).or_insert(lsn);
                if known != lsn {
                    others.push((cohort, known, lsn));
                }
            }
            checked.1 = replica.applied();
        }
        // Until it applies a loss, a replica of that cohort may apply entries that others do not have.
        let wrong = others.into_iter().find(|(cohort, _, _)| !self.losses.is_of(*cohort));
        if let Some((cohort, known, lsn)) = wrong {
            self.violate(&format!(
                "node {id} applied {lsn} in cohort {cohort}, but another node applied {known} at that sequence"
            ));
        }
    }

    /// Checks that at most one leader of a cohort may read at any time, and that it has applied every entry applied on
    /// any node.
    fn check_leases(&mut self) {
        let mut readers: BTreeMap<CohortId, NodeId> = BTreeMap::new();
        let mut wrong = None;
        let last = |cohort, state| {
            self.checks.chosen.get(&(cohort, losses(state))).and_then(|chosen| chosen.keys().last().copied())
        };
        for (id, machine) in &self.hosts {
            let Some(process) = machine.process.as_ref() else { continue };
            let now = machine.clocks.monotonic(self.now);
            for (cohort, replica, state) in process.node.replicas() {
                if replica.lease_end(now).is_none() {
                    continue;
                }
                if last(cohort, state).is_some_and(|last| last > replica.applied()) {
                    wrong = Some(format!(
                        "node {id} may serve reads of cohort {cohort} at {}, behind entries applied elsewhere",
                        replica.applied()
                    ));
                }
                if let Some(other) = readers.insert(cohort, *id) {
                    wrong = Some(format!("nodes {other} and {id} both hold a lease of cohort {cohort}"));
                }
            }
        }
        if let Some(wrong) = wrong {
            self.violate(&wrong);
        }
    }

    /// Checks PacificA's invariants for every cohort under primary/backup replication (guarantees 26 and 27).
    fn check_configurations(&mut self) {
        if self.options.replication == Replication::Paxos {
            return;
        }
        let mut cohorts: BTreeMap<CohortId, Vec<(&Cohort, Monotonic)>> = BTreeMap::new();
        for machine in self.hosts.values().filter(|machine| !machine.is_foreign()) {
            let now = machine.clocks.monotonic(self.now);
            let replicas = machine.process.iter().flat_map(|process| process.node.replicas());
            for (id, cohort, _) in replicas.filter(|(_, cohort, _)| cohort.is_managed()) {
                cohorts.entry(id).or_default().push((cohort, now));
            }
        }
        let wrong = cohorts.into_iter().find_map(|(id, replicas)| Some((id, check_configuration(&replicas).err()?)));
        if let Some((id, wrong)) = wrong {
            self.violate(&format!("cohort {id}: {wrong}"));
        }
    }

    /// Checks that equal LSNs imply equal states.
    fn check_state(&mut self, id: NodeId) {
        let Some(process) = self.hosts.get(&id).and_then(|machine| machine.process.as_ref()) else { return };
        process.node.invariants();
        let mut wrong = None;
        for (cohort, _, state) in process.node.replicas() {
            state.invariants();
            let last = state.last_applied();
            // A corrupt SSTable returns an error.
            let Ok(hash) = state.logical_hash() else { continue };
            let (other, known) = *self.checks.hashes.entry((cohort, last)).or_insert((id, hash));
            if known != hash {
                wrong = Some(format!("nodes {other} and {id} have different states of cohort {cohort} at {last}"));
            }
        }
        if let Some(wrong) = wrong {
            self.violate(&wrong);
        }
    }

    /// Counts the bytes of entries that a leader sends to a follower for the first time in its epoch, and of those that
    /// it retransmits.
    pub(crate) fn count_proposed(&mut self, from: NodeId, to: NodeId, message: &Message) {
        let message = if let Message::OfGenerations { message, .. } = message { message } else { message };
        let Message::Cohort { cohort, message } = message else { return };
        if let replication::Message::Propose { epoch, entries, .. } = message {
            self.count_entries((from, to, *cohort), *epoch, entries);
        }
    }

    fn count_entries(&mut self, to: (NodeId, NodeId, CohortId), epoch: Epoch, entries: &[Entry]) {
        let Some(last) = entries.last().map(|entry| entry.lsn.sequence) else { return };
        let newest = self.checks.proposed.entry(to).or_default();
        if newest.0 != epoch {
            *newest = (epoch, Sequence(0));
        }
        let (known, new): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(|entry| entry.lsn.sequence <= newest.1);
        newest.1 = newest.1.max(last);
        for (what, entries) in [("bytes proposed", new), ("bytes retransmitted", known)] {
            *self.counters.entry(what).or_default() += entries.iter().map(|entry| entry.size() as u64).sum::<u64>();
        }
    }

    /// Adds the increase of a node's counters since the last call.
    pub(crate) fn take_counters(&mut self, id: NodeId) {
        let Some(machine) = self.hosts.get_mut(&id) else { return };
        let Some(process) = machine.process.as_ref() else { return };
        let new = process.node.counters();
        let old = std::mem::replace(&mut machine.last_counters, new);
        let grown = [
            ("takeovers", new.takeovers - old.takeovers),
            ("truncations", new.truncations - old.truncations),
            ("catch-ups from memory", new.memory_catch_ups - old.memory_catch_ups),
            ("catch-ups from the log", new.log_catch_ups - old.log_catch_ups),
            ("catch-ups by snapshot", new.state_catch_ups - old.state_catch_ups),
            ("checkpoints", new.checkpoints - old.checkpoints),
            ("flushes", new.flushes - old.flushes),
            ("compactions", new.compactions - old.compactions),
            ("writes throttled", new.writes_paced - old.writes_paced),
            ("writes stalled", new.writes_stalled - old.writes_stalled),
            ("disk reads", new.disk_reads - old.disk_reads),
            ("damaged SSTables", new.sstables_damaged - old.sstables_damaged),
            ("damaged blocks", new.blocks_damaged - old.blocks_damaged),
            ("blocks mended", new.blocks_mended - old.blocks_mended),
            ("heartbeat batches", new.beats - old.beats),
            ("clock contradictions", new.clock_contradictions - old.clock_contradictions),
            ("reads by read index", new.checked_reads - old.checked_reads),
            ("lease expiries", new.lease_expiries - old.lease_expiries),
            ("doubts ended", new.doubts_ended - old.doubts_ended),
            ("diverged states", new.states_left - old.states_left),
            ("sessions expired", new.sessions_expired - old.sessions_expired),
            ("replicas split off", new.splits - old.splits),
            ("projections replaced", new.log_repairs - old.log_repairs),
            ("log re-replications", new.log_healings - old.log_healings),
            ("log units in doubt", new.log_units_lost - old.log_units_lost),
            ("positions filled", new.log_fills - old.log_fills),
            ("petitions", new.petitions - old.petitions),
            ("membership changes", new.members_changed - old.members_changed),
            ("transactions in doubt resolved", new.doubts_resolved - old.doubts_resolved),
            ("replicas removed", new.replicas_left - old.replicas_left),
        ];
        let contradictions = new.clock_contradictions - old.clock_contradictions;
        if contradictions > 0 && self.options.lying_node.is_none() {
            self.violate(&format!("node {id} sees a contradiction between wall clocks within their bounds"));
        }
        for (what, by) in grown {
            if by > 0 {
                *self.counters.entry(what).or_default() += by;
            }
        }
    }

    /// Whether every cohort has one leader, and each of its replicas on current members holds the leader's whole log,
    /// without doubt, and knows that it is committed.
    pub(crate) fn are_replicas_equal(&self) -> bool {
        if !self.operator.is_idle() {
            return false;
        }
        let left = self.departed_members();
        let is_there = |machine: &&SimHost| !machine.is_gone && !left.contains(&machine.member);
        let members = self.hosts.values().filter(|machine| !machine.is_foreign()).filter(is_there);
        let processes: Option<Vec<_>> = members.map(|machine| machine.process.as_ref()).collect();
        let Some(processes) = processes else { return false };
        let mut ends: BTreeMap<CohortId, BTreeSet<Lsn>> = BTreeMap::new();
        let mut leaders: BTreeMap<CohortId, usize> = BTreeMap::new();
        let mut missing: BTreeSet<(CohortId, NodeId)> = BTreeSet::new();
        let replicas = || processes.iter().flat_map(|process| process.node.replicas());
        if replicas().filter_map(|(_, _, state)| state.as_catalog()).any(|catalog| catalog.moves().next().is_some()) {
            return false;
        }
        for (cohort, replica, _) in replicas() {
            let least = replica.forced().min(replica.committed());
            if replica.is_in_doubt() || least < replica.last().sequence {
                return false;
            }
            ends.entry(cohort).or_default().insert(replica.last());
            *leaders.entry(cohort).or_default() += usize::from(replica.leads());
            missing.extend(replica.peers().map(|peer| (cohort, peer)));
            if replica.is_managed() && !replica.candidates().is_empty() {
                return false;
            }
        }
        for (cohort, replica, _) in replicas() {
            missing.remove(&(cohort, replica.me().node));
        }
        missing.iter().all(|(_, node)| self.hosts.get(node).is_some_and(SimHost::is_foreign))
            && ends.values().all(|ends| ends.len() == 1)
            && leaders.values().all(|count| *count == 1)
    }

    pub(crate) fn why_stuck(&self) -> String {
        let under_replicated =
            self.under_replicated_log().map_or_else(String::new, |log| format!("an under-replicated log: {log:?}"));
        let mut lines = vec![
            self.clients.waiting_for(),
            self.log_users.waiting_for(),
            self.disks.waiting_for(),
            under_replicated,
            self.operator.waiting_for(),
        ];
        lines.push(self.zookeeper.waiting_for());
        lines.push(self.transactions.waiting_for());
        lines.extend(self.transactions_left());
        for (id, machine) in &self.hosts {
            let Some(process) = machine.process.as_ref() else {
                lines.push(format!("node {id} is down"));
                continue;
            };
            for (cohort, replica, _) in process.node.replicas() {
                lines.push(format!(
                    "node {id}, cohort {cohort}: leader {:?}, promised {}, last {}, committed {}, doubtful {}, {:?}, {:?}, \
                     {:?}",
                    replica.leader(),
                    replica.promised().epoch,
                    replica.last(),
                    replica.committed(),
                    replica.is_in_doubt(),
                    replica.catch_ups().collect::<Vec<_>>(),
                    replica.membership(),
                    replica.configuration(),
                ));
            }
        }
        lines.join("\n")
    }

    pub(crate) fn final_checks(&mut self) {
        if self.violation.is_some() {
            return;
        }
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        for id in nodes {
            self.check_applied(id);
            self.check_state(id);
            self.take_counters(id);
        }
        self.check_leases();
        self.check_owners();
        self.check_disks();
        self.check_roster();
        self.check_transactions();
        if let Err(violation) = history::check(&self.history_until_loss()) {
            self.violate(&violation.to_string());
        }
    }
}
