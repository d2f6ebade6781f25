//! The whole of a small world, what can happen in it, and what must never.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::{Entry, Lsn, Monotonic, NodeId, Now, Sequence, Timestamp};
use bytes::Bytes;
use replication::{Message, Reply, Timing};
use xxhash_rust::xxh3::Xxh3Default;

use super::replica::{Replica, Step};
use super::{Forces, Scope};

/// Every message ever sent in any state, numbered; and what every event did to every state of a replica, so that each
/// step of the cohort is computed once.
#[derive(Default)]
pub(super) struct Network {
    messages: Vec<(NodeId, NodeId, Message)>,
    numbers: HashMap<(NodeId, NodeId, Message), u32>,
    steps: HashMap<(u64, usize, Monotonic, Event), Arc<Local>>,
}

/// What an event does to one replica.
struct Local {
    replica: Arc<Replica>,
    print: u64,
    sent: Vec<u32>,
    proposed: Vec<Entry>,
    applied: Vec<Entry>,
}

impl Network {
    /// Whether it has grown so large that a walk had better begin with an empty one.
    pub(super) fn is_large(&self) -> bool {
        self.steps.len() > 1 << 20
    }

    fn number(&mut self, from: NodeId, to: NodeId, message: Message) -> u32 {
        let next = u32::try_from(self.messages.len()).expect("fewer than four billion different messages");
        let key = (from, to, message);
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        self.messages.push(key.clone());
        self.numbers.insert(key, next);
        next
    }
}

/// Something that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    Deliver(u32),
    ForceLog(usize),
    ForceManifest(usize),
    Campaign(usize),
    Propose(usize, u8),
    Release(usize),
    Crash { replica: usize, kept: usize, manifests_kept: usize, rots: bool },
    Checkpoint(usize),
    Tick,
}

impl Event {
    /// Whether it is something that is only waited for, not a choice of somebody's and no accident.
    pub(super) fn is_progress(self) -> bool {
        matches!(self, Self::Deliver(_) | Self::ForceLog(_) | Self::ForceManifest(_))
    }

    /// The replica that an event happens at; none for a step of time.
    pub(super) fn place(self, network: &Network) -> Option<usize> {
        Some(match self {
            Self::Deliver(number) => network.messages[number as usize].1.0 as usize - 1,
            Self::ForceLog(index)
            | Self::ForceManifest(index)
            | Self::Campaign(index)
            | Self::Propose(index, _)
            | Self::Release(index)
            | Self::Checkpoint(index) => index,
            Self::Crash { replica, .. } => replica,
            Self::Tick => return None,
        })
    }

    /// Where a message comes from, if the event is its delivery.
    pub(super) fn sender(self, network: &Network) -> Option<usize> {
        let Self::Deliver(number) = self else { return None };
        Some(network.messages[number as usize].0.0 as usize - 1)
    }

    pub(super) fn describe(&self, network: &Network) -> String {
        match self {
            Self::Deliver(number) => {
                let (from, to, message) = &network.messages[*number as usize];
                format!("{from} -> {to}: {message:?}")
            }
            other => format!("{other:?}"),
        }
    }
}

/// A state of the world.
#[derive(Clone)]
pub(super) struct State {
    replicas: [Arc<Replica>; 3],
    prints: [u64; 3],
    /// The numbers of the messages that were sent, in order.
    sent: Vec<u32>,
    /// What was ever applied anywhere, by sequence from 1.
    chosen: Vec<Lsn>,
    /// Every entry ever appended anywhere: an LSN has one value.
    values: Vec<(Lsn, Lsn, Timestamp, Bytes)>,
    now: Monotonic,
    left: Scope,
}

/// Longer than a lease and its grace.
fn tick() -> base::Duration {
    let grace = replication::grace(Timing::default().lease);
    base::Duration(grace.0 + Timing::default().lease.0)
}

impl State {
    pub(super) fn start(scope: Scope, _network: &mut Network) -> Self {
        let replicas = [1, 2, 3].map(|node| Arc::new(Replica::new(node, scope.forces)));
        let now = Monotonic(0) + tick();
        let mut state = Self {
            replicas,
            prints: [0; 3],
            sent: Vec::new(),
            chosen: Vec::new(),
            values: Vec::new(),
            now,
            left: scope,
        };
        for (replica, print) in state.replicas.iter_mut().zip(&mut state.prints) {
            *print = Arc::make_mut(replica).fingerprint(Now { monotonic: now, wall: Timestamp(0) });
        }
        state
    }

    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = Xxh3Default::new();
        for print in self.prints {
            hasher.write_u64(print);
        }
        for number in &self.sent {
            hasher.write_u32(*number);
        }
        hasher.write_u64(self.now.0);
        for left in [
            self.left.epochs,
            self.left.entries,
            self.left.crashes,
            self.left.ticks,
            self.left.checkpoints,
            self.left.releases,
            self.chosen.len() as u64,
        ] {
            hasher.write_u64(left);
        }
        hasher.finish()
    }

    /// Everything that can happen next.
    pub(super) fn events(&self, network: &Network) -> Vec<Event> {
        let mut events = Vec::new();
        if self.left.ticks > 0 {
            events.push(Event::Tick);
        }
        for (index, replica) in self.replicas.iter().enumerate() {
            self.replica_events(index, replica, &mut events);
        }
        events.extend(self.sent.iter().filter(|number| self.may_matter(network, **number)).map(|n| Event::Deliver(*n)));
        events
    }

    /// Whether a message can still do anything: one that speaks of an epoch older than its receiver's is refused, and
    /// the refusal changes nothing that the search doesn't reach otherwise.
    fn may_matter(&self, network: &Network, number: u32) -> bool {
        let (_, to, message) = &network.messages[number as usize];
        let promised = self.replicas[to.0 as usize - 1].cohort.promised().epoch;
        match message {
            Message::Prepare { epoch, .. } | Message::PrepareReply { epoch, .. } => *epoch >= promised,
            Message::ProposeReply { epoch, .. } => {
                *epoch == promised && self.replicas[to.0 as usize - 1].cohort.leads()
            }
            Message::Propose { .. }
            | Message::Superseded { .. }
            | Message::Release { .. }
            | Message::PreVote { .. }
            | Message::PreVoteReply { .. } => true,
        }
    }

    fn replica_events(&self, index: usize, replica: &Replica, events: &mut Vec<Event>) {
        let pending = replica.log_pending();
        if self.left.crashes > 0 {
            for kept in 0..=pending {
                for manifests_kept in 0..=replica.manifests_pending() {
                    events.push(Event::Crash { replica: index, kept, manifests_kept, rots: false });
                }
                if !replica.places_agree() {
                    events.push(Event::Crash { replica: index, kept, manifests_kept: 0, rots: true });
                }
            }
        }
        if pending > 0 {
            events.push(Event::ForceLog(index));
        }
        if replica.manifests_pending() > 0 {
            events.push(Event::ForceManifest(index));
        }
        if self.left.checkpoints > 0 {
            events.push(Event::Checkpoint(index));
        }
        if replica.cohort.leads() {
            self.leader_events(index, events);
        } else if self.left.epochs > 0 && (index == 0 || !self.sent.is_empty()) {
            events.push(Event::Campaign(index));
        }
    }

    fn leader_events(&self, index: usize, events: &mut Vec<Event>) {
        if self.left.entries > 0 {
            events.push(Event::Propose(index, u8::try_from(self.left.entries).unwrap_or(u8::MAX)));
        }
        if self.left.releases > 0 {
            events.push(Event::Release(index));
        }
    }

    /// Carries an event out; none if it changes nothing.
    ///
    /// # Errors
    /// What promise it broke.
    pub(super) fn carry_out(&self, event: &Event, network: &mut Network) -> Result<Option<Self>, String> {
        let Some(index) = event.place(network) else {
            let mut next = self.clone();
            next.left.ticks -= 1;
            next.now = self.now + tick();
            next.check_reads()?;
            return Ok(Some(next));
        };
        let local = self.local(index, event, network);
        let known = |number: &u32| self.sent.binary_search(number).is_ok();
        if local.print == self.prints[index] && local.sent.iter().all(known) {
            return Ok(None);
        }
        let mut next = self.clone();
        next.spend(event);
        next.replicas[index] = Arc::clone(&local.replica);
        next.prints[index] = local.print;
        for number in &local.sent {
            if let Err(place) = next.sent.binary_search(number) {
                next.sent.insert(place, *number);
            }
        }
        local.proposed.iter().try_for_each(|entry| next.one_value_per_lsn(entry))?;
        local.applied.iter().try_for_each(|entry| next.one_value_per_sequence(entry))?;
        next.chosen_is_durable()?;
        next.check_reads()?;
        Ok(Some(next))
    }

    fn spend(&mut self, event: &Event) {
        match event {
            Event::Campaign(_) => self.left.epochs -= 1,
            Event::Propose(..) => self.left.entries -= 1,
            Event::Release(_) => self.left.releases -= 1,
            Event::Crash { .. } => self.left.crashes -= 1,
            Event::Checkpoint(_) => self.left.checkpoints -= 1,
            _ => {}
        }
    }

    fn local(&self, index: usize, event: &Event, network: &mut Network) -> Arc<Local> {
        let key = (self.prints[index], index, self.now, *event);
        if let Some(local) = network.steps.get(&key) {
            return Arc::clone(local);
        }
        let mut replica = Replica::clone(&self.replicas[index]);
        let now = Now { monotonic: self.now, wall: Timestamp(0) };
        let mut step = run(&mut replica, index, event, now, network);
        step.add(replica.step(|cohort, out| cohort.settle(now, out)));
        if self.left.forces == Forces::Eager {
            settle_disk(&mut replica, &mut step, now);
        }
        step.add(send_everything(&mut replica, now));
        replica.cohort.invariants();
        let me = NodeId(index as u32 + 1);
        let sent = step.sent.into_iter().map(|(to, message)| network.number(me, to, normal(message))).collect();
        let print = replica.fingerprint(now);
        let local = Local { replica: Arc::new(replica), print, sent, proposed: step.proposed, applied: step.applied };
        let local = Arc::new(local);
        network.steps.insert(key, Arc::clone(&local));
        local
    }

    fn one_value_per_lsn(&mut self, entry: &Entry) -> Result<(), String> {
        let value = (entry.lsn, entry.previous, entry.timestamp, entry.payload.clone());
        match self.values.iter().find(|known| known.0 == entry.lsn) {
            Some(known) if *known == value => Ok(()),
            Some(known) => Err(format!("LSN {} has two values: {known:?} and {value:?}", entry.lsn)),
            None => {
                self.values.push(value);
                Ok(())
            }
        }
    }

    fn one_value_per_sequence(&mut self, entry: &Entry) -> Result<(), String> {
        let index = entry.lsn.sequence.previous().0 as usize;
        match self.chosen.get(index) {
            Some(lsn) if *lsn == entry.lsn => Ok(()),
            Some(lsn) => Err(format!("{lsn} was applied at sequence {}, now {}", entry.lsn.sequence, entry.lsn)),
            None if index == self.chosen.len() => {
                self.chosen.push(entry.lsn);
                Ok(())
            }
            None => Err(format!("{} was applied after a gap", entry.lsn)),
        }
    }

    /// What was applied anywhere is what a restart would find on a majority.
    fn chosen_is_durable(&self) -> Result<(), String> {
        for (index, lsn) in self.chosen.iter().enumerate() {
            let holders = self.replicas.iter().filter(|replica| replica.durable.get(index) == Some(lsn)).count();
            if holders < 2 {
                return Err(format!("{lsn} was applied, but a restart would find it on {holders} of 3 disks"));
            }
        }
        Ok(())
    }

    /// A leader that may read has applied everything that was applied anywhere. Its clock may have been read some time
    /// before it evaluates; the lease is looked at again after (guarantee 12).
    fn check_reads(&self) -> Result<(), String> {
        for replica in &self.replicas {
            let mut read_at = self.now;
            while read_at > Monotonic(0) {
                let end = replica.cohort.lease_end(read_at);
                let leaves = end.is_some_and(|end| end > self.now || planted(Bug::LeaseCheckedBefore));
                if leaves && replica.cohort.applied() < Sequence(self.chosen.len() as u64) {
                    let me = replica.cohort.me().node;
                    return Err(format!(
                        "{me} reads at {}, missing {:?}",
                        replica.cohort.applied(),
                        self.chosen.last()
                    ));
                }
                read_at = read_at - tick();
            }
        }
        Ok(())
    }
}

/// Forces what a step has written if nothing that it wanted to say has left before: a crash before the force is then the
/// same as the event never having come.
fn settle_disk(replica: &mut Replica, step: &mut Step, now: Now) {
    while step.sent.is_empty() && (replica.manifests_pending() + replica.log_pending() > 0) {
        if replica.manifests_pending() > 0 {
            step.add(replica.force_manifest(now));
        } else {
            step.add(replica.force_log(now));
        }
        step.add(replica.step(|cohort, out| cohort.settle(now, out)));
    }
}

/// A leader sends its followers everything that it could: from every entry on, whatever it believes of them. A message
/// that was sent may never arrive, so to send more leaves nothing out.
fn send_everything(replica: &mut Replica, now: Now) -> Step {
    let mut step = Step::default();
    if !replica.cohort.leads() {
        return step;
    }
    let first = replica.cohort.entries().next().map_or_else(|| replica.cohort.last(), |first| first.previous);
    let peers: Vec<NodeId> = replica.cohort.config().peers().collect();
    for peer in peers {
        for next in first.sequence.0 + 1..=replica.cohort.last().sequence.0 + 1 {
            step.add(replica.step(|cohort, out| cohort.send_from(peer, Sequence(next), now, out)));
        }
    }
    step
}

/// Runs an event on one replica.
fn run(replica: &mut Replica, index: usize, event: &Event, now: Now, network: &Network) -> Step {
    match *event {
        Event::Deliver(number) => {
            let (from, _, message) = network.messages[number as usize].clone();
            replica.step(|cohort, out| cohort.message(from, message, now, out))
        }
        Event::ForceLog(_) => replica.force_log(now),
        Event::ForceManifest(_) => replica.force_manifest(now),
        Event::Campaign(_) => replica.step(|cohort, out| cohort.campaign(now, out)),
        Event::Propose(_, number) => replica.step(|cohort, out| {
            cohort.propose(Bytes::copy_from_slice(&[number]), now, out);
        }),
        Event::Release(_) => replica.step(|cohort, out| cohort.release(now, out)),
        Event::Crash { kept, manifests_kept, rots, .. } => {
            replica.crash(index as u32 + 1, kept, manifests_kept, rots, now)
        }
        Event::Checkpoint(_) => {
            replica.checkpoint();
            Step::default()
        }
        Event::Tick => Step::default(),
    }
}

/// Leaves out what a message only shows for status.
fn normal(message: Message) -> Message {
    match message {
        Message::ProposeReply { epoch, sent, voted, reply, doubtful, .. } => {
            // That something is missing only tells a leader where to send from, and it sends from everywhere.
            let reply = if let Reply::Missing(_) = reply { Reply::Missing(Sequence(0)) } else { reply };
            Message::ProposeReply { epoch, sent, voted, reply, committed: Sequence(0), doubtful }
        }
        other => other,
    }
}
