//! Drives the replicas of a golden script: carries out their outputs on simulated disks, and prints them.

use std::collections::BTreeMap;
use std::fmt::Write;

use base::{MembershipChange, Promise, SharedMembership};

use super::super::*;
use super::describe::{self, name, ranges};
use super::index;
use crate::{CheckId, Durable, Replayed};

/// The state machine of a replica: a map, as of an entry.
#[derive(Clone, Default)]
struct State {
    lsn: Lsn,
    timestamp: Timestamp,
    members: SharedMembership,
    data: BTreeMap<String, String>,
}

/// The environment of a replica: disk, state machine, and the messages and reads that wait.
#[derive(Default)]
pub(super) struct Host {
    is_down: bool,
    /// Its disk completes no force.
    pub(super) is_slow: bool,
    /// Messages to and from it are lost.
    pub(super) is_cut_off: bool,
    /// Forced records, and records without a completed force.
    log: Vec<LogRecord>,
    unforced_log: Vec<LogRecord>,
    /// Promise and doubt, as the manifest records them.
    manifest: (Promise, bool),
    unforced_manifest: Option<(ManifestId, (Promise, bool))>,
    forced: Durable,
    /// Messages that wait for a force.
    held: Vec<(NodeId, Message, Durable)>,
    checkpoint: State,
    state: State,
    /// A snapshot in transfer.
    received: State,
    reads: Vec<(CheckId, String)>,
    role: String,
}

impl Host {
    /// The log as a restart would replay it.
    fn replayed(&self) -> Replayed {
        let mut replay = Replay::after(self.checkpoint.lsn);
        self.log.iter().chain(&self.unforced_log).for_each(|record| replay.record(record.clone()));
        replay.finish(self.checkpoint.lsn)
    }
}

/// The replicas, the messages in flight, and the output since the last command.
pub(super) struct Driver {
    pub(super) scene: Scene,
    pub(super) hosts: Vec<Host>,
    pub(super) output: String,
}

impl Driver {
    pub(super) fn new() -> Self {
        Self {
            scene: Scene::with(0, 0, Limits::default(), Timing::default()),
            hosts: Vec::new(),
            output: String::new(),
        }
    }

    /// Prints a line about a replica.
    pub(super) fn say(&mut self, index: usize, text: &str) {
        let epoch = self.scene.replicas[index].0.promised().epoch;
        let _ = writeln!(self.output, "{}@{epoch} {text}", name(node(index)));
    }

    pub(super) fn start(&mut self, scene: Scene) {
        self.scene = scene;
        for (cohort, _) in &self.scene.replicas {
            let state = State { members: cohort.membership().clone(), ..State::default() };
            let manifest = (cohort.promised(), cohort.doubtful());
            let role = describe::role(cohort);
            self.hosts.push(Host { checkpoint: state.clone(), state, manifest, role, ..Host::default() });
        }
    }

    /// Runs a step of a replica, carries out its outputs, and forces its disk unless that is slow.
    pub(super) fn step(&mut self, index: usize, act: impl FnOnce(&mut Cohort, Now, &mut Outbox)) {
        let (cohort, out) = &mut self.scene.replicas[index];
        act(cohort, self.scene.now, out);
        self.carry_out(index);
        while !self.hosts[index].is_slow && self.force_disk(index, false) {}
        self.serve_reads(index);
        self.scene.replicas[index].0.invariants();
    }

    fn carry_out(&mut self, index: usize) {
        let (cohort, out) = &mut self.scene.replicas[index];
        cohort.settle(self.scene.now, out);
        let (outputs, manifest, role) = (out.take(), out.take_manifest(), describe::role(cohort));
        if let Some(manifest) = manifest {
            self.hosts[index].unforced_manifest = Some((manifest, (cohort.promised(), cohort.doubtful())));
        }
        if role != self.hosts[index].role {
            self.say(index, &format!("becomes {role}"));
            self.hosts[index].role = role;
        }
        for group in outputs.chunk_by(|a, b| describe::accepted(a).0 == describe::accepted(b).0) {
            self.say_entries(index, group);
            group.iter().for_each(|output| self.carry_out_one(index, output.clone()));
        }
    }

    /// Prints the entries that are appended or applied; many of them in one line.
    fn say_entries(&mut self, index: usize, outputs: &[Output]) {
        let entries: Vec<&Entry> = outputs.iter().filter_map(|output| describe::accepted(output).1).collect();
        let verb = describe::accepted(&outputs[0]).0;
        if entries.len() > 3 {
            self.say(index, &format!("{verb} {}", ranges(entries.iter().map(|entry| entry.lsn))));
        } else {
            entries.iter().for_each(|entry| self.say(index, &format!("{verb} {}", describe::entry(entry))));
        }
    }

    fn carry_out_one(&mut self, index: usize, output: Output) {
        match output {
            Output::Append { record, .. } => {
                match &record {
                    LogRecord::Entry(_) => {}
                    LogRecord::Truncation { from } => self.say(index, &format!("append truncation from {from}")),
                    LogRecord::CommitPoint(lsn) => self.say(index, &format!("append commit point {lsn}")),
                }
                self.hosts[index].unforced_log.push(record);
            }
            Output::Send { to, message, after } => {
                self.hosts[index].held.push((to, message, after));
                self.send_durable(index);
            }
            Output::Apply(entry) => {
                let state = &mut self.hosts[index].state;
                (state.lsn, state.timestamp) = (entry.lsn, entry.timestamp);
                let payload = String::from_utf8_lossy(&entry.payload).into_owned();
                state.data.extend(payload.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())));
            }
            Output::ReadLog { peer, from } => {
                self.say(index, &format!("requests log read for {} from {from}", name(peer)));
                self.scene.log_reads.push((peer, from));
            }
            Output::SendState { peer } => self.say(index, &format!("requests state transfer to {}", name(peer))),
            Output::ReadIndexConfirmed => self.say(index, "read index confirmed"),
            Output::Cut(from) => self.say(index, &format!("truncate from {from}")),
            Output::Installed(lsn) => {
                self.say(index, &format!("install state {lsn}"));
                let host = &mut self.hosts[index];
                (host.checkpoint, host.state) = (host.received.clone(), host.received.clone());
            }
            Output::Petition(_) => self.say(index, "petitions"),
            Output::LeadRenewed => self.say(index, "leads again"),
            Output::LeadLost => self.say(index, "leadership lost"),
        }
    }

    /// Sends the messages whose condition is forced.
    fn send_durable(&mut self, index: usize) {
        for (to, message, after) in std::mem::take(&mut self.hosts[index].held) {
            let forced = self.hosts[index].forced;
            if after.log <= forced.log && after.manifest <= forced.manifest {
                self.say(index, &format!("-> {} {}", name(to), describe::message(&message)));
                self.scene.under_way.push((node(index), to, message));
            } else {
                self.hosts[index].held.push((to, message, after));
            }
        }
    }

    /// Forces the log and the manifest. Commit points alone are forced only if `all` is set. Returns false if nothing
    /// was forced.
    fn force_disk(&mut self, index: usize, all: bool) -> bool {
        let host = &mut self.hosts[index];
        let is_urgent = |record: &LogRecord| !matches!(record, LogRecord::CommitPoint(_));
        let forces_log = all && !host.unforced_log.is_empty() || host.unforced_log.iter().any(is_urgent);
        let manifest = host.unforced_manifest.take();
        if forces_log {
            let mut records = std::mem::take(&mut host.unforced_log);
            host.log.append(&mut records);
            host.forced.log = self.scene.replicas[index].1.appended();
            self.say(index, "force log");
        }
        if let Some((id, (promise, doubtful))) = manifest {
            let host = &mut self.hosts[index];
            (host.manifest, host.forced.manifest) = ((promise, doubtful), id);
            let doubt = if doubtful { ", may lack entries" } else { "" };
            let candidate = promise.candidate.map_or_else(|| "no candidate".to_owned(), |member| name(member.node));
            self.say(index, &format!("force manifest: promised epoch {} to {candidate}{doubt}", promise.epoch));
        }
        self.send_durable(index);
        let (now, Durable { log, manifest: id }) = (self.scene.now, self.hosts[index].forced);
        let (cohort, out) = &mut self.scene.replicas[index];
        if forces_log {
            cohort.log_forced(log, now, out);
        }
        if manifest.is_some() {
            cohort.manifest_forced(id, now, out);
        }
        self.carry_out(index);
        forces_log || manifest.is_some()
    }

    /// The disk completes all forces, and is fast again.
    pub(super) fn force(&mut self, index: usize) {
        self.hosts[index].is_slow = false;
        self.force_disk(index, true);
        self.step(index, |_, _, _| {});
    }

    pub(super) fn tick(&mut self, index: usize) {
        let due = self.scene.replicas[index].0.next_timer(self.scene.now.monotonic);
        if due == Monotonic::NEVER {
            return self.say(index, "no timer: every follower is at rest");
        }
        if due > self.scene.now.monotonic {
            let _ = writeln!(self.output, "clock +{} ms", due.since(self.scene.now.monotonic).as_millis());
            self.scene.now.monotonic = due;
        }
        self.step(index, |cohort, now, out| cohort.timer(now, out));
    }

    /// Removes and returns the messages in flight from one node to another.
    fn pick(&mut self, from: &str, to: &str) -> Vec<(NodeId, NodeId, Message)> {
        let is = |pattern: &str, id: NodeId| pattern == "*" || node(index(pattern)) == id;
        let (picked, left) = std::mem::take(&mut self.scene.under_way)
            .into_iter()
            .partition(|(sender, receiver, _)| is(from, *sender) && is(to, *receiver));
        self.scene.under_way = left;
        picked
    }

    pub(super) fn deliver(&mut self, from: &str, to: &str) {
        for (from, to, message) in self.pick(from, to) {
            let index = to.0 as usize - 1;
            if self.hosts[index].is_down || [from, to].iter().any(|node| self.hosts[node.0 as usize - 1].is_cut_off) {
                self.say_lost(from, to, &message);
                continue;
            }
            self.say(index, &format!("<- {} {}", name(from), describe::kind(&message)));
            self.step(index, |cohort, now, out| cohort.message(member(from), message, now, out));
        }
    }

    pub(super) fn lose(&mut self, from: &str, to: &str) {
        for (from, to, message) in self.pick(from, to) {
            self.say_lost(from, to, &message);
        }
    }

    fn say_lost(&mut self, from: NodeId, to: NodeId, message: &Message) {
        let _ = writeln!(self.output, "lost: {} -> {} {}", name(from), name(to), describe::message(message));
    }

    pub(super) fn crash(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let lost: Vec<Lsn> = host.unforced_log.iter().filter_map(describe::entry_lsn).collect();
        *host = Host {
            is_down: true,
            log: std::mem::take(&mut host.log),
            manifest: host.manifest,
            checkpoint: host.checkpoint.clone(),
            ..Host::default()
        };
        if !lost.is_empty() {
            let _ = writeln!(self.output, "{} loses unforced entries [{}]", name(node(index)), ranges(lost));
        }
    }

    pub(super) fn restart(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        (host.is_down, host.state) = (false, host.checkpoint.clone());
        let (promised, doubtful) = host.manifest;
        let start = Start {
            promised,
            checkpoint: (host.checkpoint.lsn, host.checkpoint.timestamp),
            membership: host.checkpoint.members.clone(),
            log: host.replayed(),
            doubtful,
            ..Start::default()
        };
        let (config, mut out) = (self.scene.replicas[at].0.config().clone(), Outbox::default());
        self.scene.replicas[at] = (Cohort::start(config, start, self.scene.now, &mut out), out);
        self.step(at, |_, _, _| {});
        for other in (0..self.hosts.len()).filter(|other| *other != at) {
            if !self.hosts[other].is_down {
                self.step(other, |cohort, _, _| cohort.peer_restarted(node(at)));
            }
        }
    }

    /// Proposes a membership change at the leader.
    pub(super) fn change(&mut self, change: MembershipChange) {
        let leads = |index: &usize| !self.hosts[*index].is_down && self.scene.replicas[*index].0.leads();
        let leader = (0..self.hosts.len()).find(leads).expect("a replica leads");
        let mut outcome = Ok(());
        self.step(leader, |cohort, now, out| {
            outcome = cohort.is_ready_for(change, now).and_then(|()| cohort.change_membership(change, 1, now, out));
        });
        if let Err(refused) = outcome {
            self.say(leader, &format!("refused: {refused}"));
        }
    }

    /// Makes the applied state the checkpoint, and discards the log that it covers.
    pub(super) fn checkpoint(&mut self, index: usize) {
        let members = self.scene.replicas[index].0.membership_applied().clone();
        let host = &mut self.hosts[index];
        host.checkpoint = State { members, ..host.state.clone() };
        let through = host.checkpoint.lsn.sequence;
        host.log.retain(|record| describe::entry_lsn(record).is_some_and(|lsn| lsn.sequence > through));
    }

    pub(super) fn read_log(&mut self, at: usize) {
        let entries = self.hosts[at].replayed().entries;
        for (peer, from) in std::mem::take(&mut self.scene.log_reads) {
            let is_there = entries.first().is_some_and(|first| first.lsn.sequence <= from);
            let read = entries.iter().filter(|entry| entry.lsn.sequence >= from).cloned().collect();
            let read = is_there.then_some(read);
            if read.is_none() {
                self.say(at, &format!("log does not contain {from}"));
            }
            self.step(at, |cohort, now, out| cohort.log_read(peer, from, read, now, out));
        }
    }

    pub(super) fn send_state(&mut self, from: usize, to: usize) {
        let members = self.scene.replicas[from].0.membership_applied().clone();
        let sent = State { members: members.clone(), ..self.hosts[from].state.clone() };
        let (lsn, timestamp) = (sent.lsn, sent.timestamp);
        self.hosts[to].received = sent;
        self.step(to, |cohort, now, out| {
            cohort.install(lsn, timestamp, members, now, out);
        });
        self.step(from, |cohort, now, out| cohort.state_sent(node(to), Some(lsn), now, out));
    }

    pub(super) fn read(&mut self, index: usize, key: &str) {
        let mut check = CheckId(0);
        self.step(index, |cohort, now, out| check = cohort.want_view(now, out));
        self.hosts[index].reads.push((check, key.to_owned()));
        self.serve_reads(index);
    }

    /// Serves the reads whose check is complete, once the state includes the index.
    fn serve_reads(&mut self, index: usize) {
        for (check, key) in std::mem::take(&mut self.hosts[index].reads) {
            let cohort = &self.scene.replicas[index].0;
            let checked = cohort.checked(check).filter(|checked| cohort.still_holds(*checked));
            if let Some(checked) = checked.filter(|checked| cohort.applied() >= checked.stamp) {
                let value = self.hosts[index].state.data.get(&key).cloned().unwrap_or_default();
                self.say(index, &format!("read {key}={value} at index {}", checked.stamp));
            } else {
                self.hosts[index].reads.push((check, key));
            }
        }
    }

    pub(super) fn print_state(&mut self, index: usize) {
        let (host, cohort) = (&self.hosts[index], &self.scene.replicas[index].0);
        let replayed = host.replayed();
        let mut text = if host.is_down { "down:".to_owned() } else { format!("{}:", host.role) };
        if host.checkpoint.lsn > Lsn::ZERO {
            let _ = write!(text, " checkpoint={}", host.checkpoint.lsn);
        }
        let _ = write!(text, " log=[{}]", ranges(replayed.entries.iter().map(|entry| entry.lsn)));
        if host.is_down {
            let _ = write!(text, " commit={}", replayed.committed);
            let _ = writeln!(self.output, "{} {text}", name(node(index)));
            return;
        }
        if cohort.forced() < cohort.last().sequence {
            let _ = write!(text, " forced={}", cohort.forced());
        }
        let _ = write!(text, " commit={}", cohort.committed());
        if cohort.lease_end(self.scene.now.monotonic).is_some() {
            text.push_str(" lease");
        }
        for (key, value) in &host.state.data {
            let _ = write!(text, " {key}={value}");
        }
        self.say(index, &text);
    }
}
