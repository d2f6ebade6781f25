//! The exhaustive search for cohorts under primary/backup replication (guarantees 26 and 27).
//!
//! The model is that of the search for elections: the real cohorts and the real replay of their records, a network
//! that may delay, repeat and lose every message, forces that complete at once or are lost in a crash, and steps of
//! time that expire every vote. In addition there is the catalog: the list of recorded configurations, and the set of
//! all petitions ever sent. Any of them may be recorded at any time if it is a valid successor, and a replica learns of
//! a recorded configuration at any time, or never. Replicas petition at any time that their own rules permit.
//!
//! Each replica has a published read view. It remains valid until the end of the lease with which it was published,
//! unless the replica withdraws it.

use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::canary::{Bug, planted};
use base::{Configuration, Epoch, Lsn, MembershipChange, Monotonic, Now, SplitMix64, Timestamp};
use bytes::Bytes;
use replication::{Message, Regime, Reply, commit_invariant, primary_invariant, reconfiguration_invariant};
use xxhash_rust::xxh3::Xxh3Default;

use super::event::{Disk, envelopes, send_everything, settle_disk};
use super::message::{Envelope, alive, commit_point, covered};
use super::replica::{Replica, Step, config, genesis, member};
use super::world::tick;
use super::{Forces, NOTHING, Report, Scope, Violation};

/// The bounds of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagedScope {
    /// Members of the first configuration.
    pub members: u64,
    /// Further replicas, which are candidates. There are at most three replicas.
    pub candidates: u64,
    /// Configurations after the first one.
    pub versions: u64,
    /// Entries that clients propose, in total.
    pub entries: u64,
    /// Crashes of one replica each, followed by an immediate restart.
    pub crashes: u64,
    /// Whether a crash may damage the log, so that the replica is in doubt.
    pub damage: bool,
    /// Steps of time, each longer than a lease and a grace period.
    pub ticks: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Deliver(usize),
    /// The replica learns of the configuration with this index.
    Told(usize),
    Timer,
    Propose,
    Change(MembershipChange),
    Crash,
    Damage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Tick,
    /// The catalog records the petition with this index.
    Record(usize),
    Of(usize, Action, Disk),
}

/// A published read view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct View {
    until: Monotonic,
}

#[derive(Clone)]
struct State {
    replicas: Vec<Rc<Replica>>,
    views: Vec<View>,
    damaged: Vec<bool>,
    now: Monotonic,
    messages: BTreeSet<Envelope>,
    catalog: Vec<Configuration>,
    petitions: BTreeSet<Configuration>,
    /// The entries applied anywhere, by sequence from 1.
    chosen: Vec<Lsn>,
    /// LSNs that primaries have assigned.
    assigned: BTreeSet<Lsn>,
    scope: ManagedScope,
}

impl State {
    fn start(scope: ManagedScope) -> Self {
        let of = Scope { voters: scope.members, learners: scope.candidates, ..NOTHING };
        let (count, genesis) = ((scope.members + scope.candidates) as u32, genesis(of));
        let replica = |node| {
            let config = replication::Config { regime: Regime::Managed, ..config(node) };
            Rc::new(Replica::with(config, &genesis, Forces::Eager))
        };
        let first = Configuration::new(Epoch(1), genesis.voters().to_vec(), member(1));
        Self {
            replicas: (1..=count).map(replica).collect(),
            views: vec![View::default(); count as usize],
            damaged: vec![false; count as usize],
            now: Monotonic(0) + tick(),
            messages: BTreeSet::new(),
            catalog: vec![first],
            petitions: BTreeSet::new(),
            chosen: Vec::new(),
            assigned: BTreeSet::new(),
            scope,
        }
    }

    fn current(&self) -> &Configuration {
        &self.catalog[self.catalog.len() - 1]
    }

    fn fingerprint(&mut self) -> u64 {
        use std::hash::{Hash as _, Hasher as _};
        let mut hasher = Xxh3Default::new();
        let now = Now { monotonic: self.now, wall: Timestamp(0), uncertainty: None };
        for replica in &mut self.replicas {
            hasher.write_u64(Rc::make_mut(replica).fingerprint(now));
        }
        let views = self.views.iter().map(|view| view.until > self.now);
        (views.collect::<Vec<_>>(), &self.damaged, &self.messages).hash(&mut hasher);
        (&self.catalog, &self.petitions, &self.chosen).hash(&mut hasher);
        let ManagedScope { entries, crashes, ticks, .. } = self.scope;
        (entries, crashes, ticks).hash(&mut hasher);
        hasher.finish()
    }

    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        choices.extend((self.scope.ticks > 0).then_some(Choice::Tick));
        for (index, petition) in self.petitions.iter().enumerate() {
            choices.extend(petition.may_follow(self.current()).is_ok().then_some(Choice::Record(index)));
        }
        let may_petition = (self.catalog.len() as u64) <= self.scope.versions;
        for (index, replica) in self.replicas.iter().enumerate() {
            let cohort = &replica.cohort;
            let is_stuck = |other: usize| self.replicas[other].is_stuck();
            let stuck_elsewhere = (0..self.replicas.len()).filter(|other| *other != index && is_stuck(*other)).count();
            let may_crash = self.scope.crashes > stuck_elsewhere as u64;
            let mut actions = Vec::new();
            let inbox = self.messages.iter().enumerate().filter(|(_, envelope)| envelope.to == cohort.me().node);
            actions.extend(inbox.map(|(number, _)| Action::Deliver(number)));
            let known = cohort.configuration().map_or(0, |known| known.version.0 as usize);
            actions.extend((known..self.catalog.len()).map(Action::Told));
            if cohort.leads() {
                actions.extend((self.scope.entries > 0).then_some(Action::Propose));
                if may_petition {
                    let membership = cohort.membership();
                    let others = membership.voters().iter().filter(|voter| **voter != cohort.me());
                    actions.extend(others.map(|voter| Action::Change(MembershipChange::Remove(*voter))));
                    let learners = membership.learners().iter();
                    actions.extend(learners.map(|learner| Action::Change(MembershipChange::Promote(*learner))));
                }
            }
            actions.extend(may_petition.then_some(Action::Timer));
            if may_crash {
                actions.push(Action::Crash);
                actions.extend(self.scope.damage.then_some(Action::Damage));
            }
            for action in actions {
                choices.push(Choice::Of(index, action, Disk::Forced));
                if may_crash && !is_stuck(index) && !matches!(action, Action::Crash | Action::Damage) {
                    choices.push(Choice::Of(index, action, Disk::Lost));
                }
            }
        }
        choices
    }

    fn carry_out(&self, choice: Choice) -> Result<Self, String> {
        let mut next = self.clone();
        match choice {
            Choice::Tick => {
                next.scope.ticks -= 1;
                next.now = next.now + tick();
            }
            Choice::Record(index) => {
                next.catalog.extend(self.petitions.iter().nth(index).cloned());
            }
            Choice::Of(index, action, disk) => next.step(index, action, disk)?,
        }
        next.prune();
        next.check()?;
        Ok(next)
    }

    fn step(&mut self, index: usize, action: Action, disk: Disk) -> Result<(), String> {
        let before = Rc::clone(&self.replicas[index]);
        let mut replica = (*before).clone();
        let now = Now { monotonic: self.now, wall: Timestamp(0), uncertainty: None };
        let mut step = match action {
            Action::Deliver(number) => {
                let Some(Envelope { from, message, .. }) = self.messages.iter().nth(number).cloned() else {
                    return Ok(());
                };
                let votes = commit_point(&message).is_none() || replica.cohort.has_voted(now.monotonic);
                // A vote that is a tick old has expired.
                let now = if votes { now } else { Now { monotonic: now.monotonic - tick(), ..now } };
                replica.step(|cohort, out| cohort.message(member(from.0), message, now, out))
            }
            Action::Told(number) => {
                let configuration = self.catalog[number].clone();
                replica.step(|cohort, out| cohort.appointed(configuration, now, out))
            }
            Action::Timer => replica.step(|cohort, out| cohort.timer(now, out)),
            Action::Propose => {
                self.scope.entries -= 1;
                replica.step(|cohort, out| _ = cohort.propose(Bytes::from_static(b"entry"), now, out))
            }
            // A refused change has no effect.
            Action::Change(change) => replica.step(|cohort, out| _ = cohort.change_membership(change, 0, now, out)),
            Action::Crash | Action::Damage => {
                self.scope.crashes -= 1;
                self.views[index] = View::default();
                self.damaged[index] |= action == Action::Damage;
                if action == Action::Damage { replica.damage(now) } else { replica.crash(0, 0, false, now) }
            }
        };
        step.add(replica.step(|cohort, out| cohort.settle(now, out)));
        settle_disk(&before, &mut replica, &mut step, disk, now);
        step.add(send_everything(&mut replica, now));
        replica.cohort.invariants();
        self.effects(index, &before, &replica, step)?;
        self.replicas[index] = Rc::new(replica);
        Ok(())
    }

    fn effects(&mut self, index: usize, before: &Replica, after: &Replica, step: Step) -> Result<(), String> {
        let me = after.cohort.me().node;
        let withdraws = !step.petitions.is_empty() && !planted(Bug::ViewWithdrawnAfterPetition);
        let led_on = before.cohort.leads() && after.cohort.leads();
        if withdraws || !(led_on && before.cohort.promised() == after.cohort.promised()) {
            self.views[index] = View::default();
        }
        if let Some(until) = after.cohort.lease_end(self.now) {
            self.views[index].until = self.views[index].until.max(until);
        }
        let epoch = after.cohort.promised().epoch;
        for entry in step.proposed.iter().filter(|entry| after.cohort.leads() && entry.lsn.epoch == epoch) {
            if !self.assigned.insert(entry.lsn) {
                return Err(format!("LSN {} was assigned to two entries", entry.lsn));
            }
        }
        for entry in &step.applied {
            let place = entry.lsn.sequence.previous().0 as usize;
            match self.chosen.get(place) {
                Some(lsn) if *lsn == entry.lsn => {}
                Some(lsn) => return Err(format!("{lsn} was applied at its sequence, then {}", entry.lsn)),
                None => self.chosen.push(entry.lsn),
            }
        }
        self.petitions.extend(step.petitions);
        self.messages.extend(step.sent.into_iter().flat_map(|(to, message)| envelopes(me, to, message)));
        Ok(())
    }

    /// Drops petitions and messages that have no effect any more.
    fn prune(&mut self) {
        let next = self.current().version.next();
        let may_grow = (self.catalog.len() as u64) <= self.scope.versions;
        self.petitions.retain(|petition| may_grow && petition.version >= next);
        let keeps_old = planted(Bug::StaleVersionAccepted);
        let reduced = |envelope: &Envelope| {
            let receiver = self.replicas.iter().find(|replica| replica.cohort.me().node == envelope.to)?;
            if may_admit(envelope, receiver) {
                return Some(envelope.clone());
            }
            let message = if keeps_old { envelope.message.clone() } else { alive(envelope, receiver, self.now)? };
            Some(Envelope { message, ..envelope.clone() })
        };
        let messages: BTreeSet<Envelope> = self.messages.iter().filter_map(reduced).collect();
        let is_covered = |one: &Envelope| {
            let alike = |other: &&Envelope| other.from == one.from && other.to == one.to;
            messages.iter().filter(alike).any(|other| covered(&one.message, &other.message))
        };
        self.messages = messages.iter().filter(|one| !is_covered(one)).cloned().collect();
    }

    fn check(&self) -> Result<(), String> {
        let cohorts = || self.replicas.iter().map(|replica| &replica.cohort);
        let is_whole = |index: usize| !self.damaged[index] || !self.replicas[index].cohort.is_in_doubt();
        for (index, replica) in self.replicas.iter().enumerate() {
            let (cohort, durable) = (&replica.cohort, &replica.durable);
            let reads = cohort.lease_end(self.now).is_some() || self.views[index].until > self.now;
            if reads && cohort.applied().0 < self.chosen.len() as u64 {
                return Err(format!("node {} could serve a stale read", cohort.me().node));
            }
            let holds_all = durable.starts_with(&self.chosen);
            if self.current().has(cohort.me()) && is_whole(index) && !holds_all {
                return Err(format!("node {} is a member and lacks a committed entry", cohort.me().node));
            }
        }
        primary_invariant(cohorts().map(|cohort| (cohort, self.now)))?;
        let primary = cohorts().filter(|cohort| cohort.is_open()).max_by_key(|cohort| cohort.promised().epoch);
        let Some(primary) = primary else { return Ok(()) };
        for (index, other) in cohorts().enumerate() {
            if !is_whole(index) {
                continue;
            }
            reconfiguration_invariant(primary, other)?;
            let is_current = primary.promised().epoch == self.current().version;
            if is_current && self.current().has(other.me()) {
                commit_invariant(primary, other)?;
            }
        }
        Ok(())
    }
}

/// Whether a message shows a primary that a candidate holds everything committed.
fn may_admit(envelope: &Envelope, receiver: &Replica) -> bool {
    let cohort = &receiver.cohort;
    match &envelope.message {
        Message::ProposeReply { epoch, reply: Reply::Matched(through), .. } => {
            cohort.leads() && cohort.promised().epoch == *epoch && *through == cohort.committed()
        }
        _ => false,
    }
}

/// Searches every state within `scope` depth first, for at most `limit`.
#[must_use]
pub fn search(scope: ManagedScope, limit: Duration) -> Report {
    let started = Instant::now();
    let mut report = Report::default();
    let mut seen = HashSet::new();
    let mut first = State::start(scope);
    seen.insert(first.fingerprint());
    let choices = shuffled(first.choices(), 0);
    let mut path = vec![(first, choices, None)];
    while let Some((state, choices, _)) = path.last_mut() {
        if report.transitions % 4_096 == 0 && started.elapsed() > limit {
            break;
        }
        let Some(choice) = choices.pop() else {
            path.pop();
            continue;
        };
        report.transitions += 1;
        match state.carry_out(choice) {
            Ok(mut next) => {
                note(state, &next, &mut report);
                let fingerprint = next.fingerprint();
                if seen.insert(fingerprint) {
                    let choices = shuffled(next.choices(), fingerprint);
                    path.push((next, choices, Some(choice)));
                }
            }
            Err(what) => {
                let made = path.iter().filter_map(|(_, _, choice)| *choice).chain([choice]);
                let trace = made.map(|choice| format!("{choice:?}")).collect();
                report.violation = Some(Violation { what, trace });
                break;
            }
        }
    }
    report.exhausted = path.is_empty();
    report.states = seen.len() as u64;
    report.elapsed = started.elapsed();
    report
}

/// Counts the kinds of states that were reached.
fn note(before: &State, after: &State, report: &mut Report) {
    let mut count = |name| *report.reached.entry(name).or_default() += 1;
    if after.catalog.len() > before.catalog.len() {
        let (old, new) = (before.current(), after.current());
        match () {
            () if new.primary != old.primary => count("changes of primary"),
            () if new.members.len() > old.members.len() => count("additions"),
            () if new.members.len() < old.members.len() => count("removals"),
            () => count("appointments of restarted primaries"),
        }
    }
    if after.chosen.len() > before.chosen.len() {
        count("commits");
    }
    for (old, new) in before.replicas.iter().zip(&after.replicas) {
        if new.cohort.is_open() && !old.cohort.is_open() && new.cohort.promised().epoch > Epoch(1) {
            count("reconciliations");
        }
    }
}

fn shuffled(mut choices: Vec<Choice>, seed: u64) -> Vec<Choice> {
    let mut random = SplitMix64::new(seed);
    for place in (1..choices.len()).rev() {
        choices.swap(place, random.below(place as u64 + 1) as usize);
    }
    choices
}

#[cfg(test)]
mod tests;
