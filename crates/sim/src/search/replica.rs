//! A replica in the search: a cohort and its disk.

use std::hash::{Hash, Hasher};

use base::canary::{Bug, planted};
use base::{
    CohortId, Configuration, Durability, Entry, Force, Incarnation, LogRecord, Lsn, Member, Membership,
    MembershipChange, NodeId, Now, Promise, SharedMembership, Timestamp,
};
use replication::{
    Cohort, Config, Durable, Limits, ManifestId, Message, Outbox, Output, Quiescence, Regime, Replay, Reply, Start,
    Timing, WriteId, renamed_promise,
};
use xxhash_rust::xxh3::Xxh3Default;

use super::{Forces, Scope};

/// A message that waits for the disk.
type Parked = (Durable, NodeId, Message);

/// The manifest's contents for the cohort.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct HardState {
    promised: Promise,
    checkpoint: (Lsn, Timestamp),
    membership: SharedMembership,
}

/// A replica and its disk.
#[derive(Clone, Debug, Hash)]
pub(super) struct Replica {
    pub(super) cohort: Cohort,
    out: Outbox,
    /// The real replay of the forced records, which determines everything they can mean.
    replay: Replay,
    pub(super) forces: Forces,
    unforced: Vec<(WriteId, LogRecord)>,
    manifest: HardState,
    /// The manifest's second copy. It differs only if a planted bug sends a promise before both copies are forced.
    second_place: HardState,
    manifests_unforced: Vec<(ManifestId, HardState)>,
    checkpoint: (Lsn, Timestamp),
    /// The membership as of the checkpoint.
    membership: SharedMembership,
    parked: Vec<Parked>,
    /// The LSNs that a restart would recover, by sequence from 1.
    pub(super) durable: Vec<Lsn>,
    /// The membership that would be in effect after a restart.
    pub(super) durable_membership: SharedMembership,
    /// The LSN of every applied entry, by sequence from 1.
    pub(super) applied: Vec<Lsn>,
}

/// The output of a replica's step.
#[derive(Default)]
pub(super) struct Step {
    pub(super) sent: Vec<(NodeId, Message)>,
    pub(super) applied: Vec<Entry>,
    pub(super) proposed: Vec<Entry>,
    /// Configurations requested from the catalog.
    pub(super) petitions: Vec<Configuration>,
}

impl Step {
    pub(super) fn add(&mut self, other: Self) {
        self.sent.extend(other.sent);
        self.applied.extend(other.applied);
        self.proposed.extend(other.proposed);
        self.petitions.extend(other.petitions);
    }
}

pub(super) fn member(node: u32) -> Member {
    Member { node: NodeId(node), incarnation: Incarnation(1) }
}

pub(super) fn genesis(scope: Scope) -> SharedMembership {
    let learner = |node: u64| MembershipChange::AddLearner(member(node as u32));
    let mut membership = Membership::of((1..=scope.voters as u32).map(member).collect());
    for node in scope.voters + 1..=scope.voters + scope.learners {
        membership = membership.after(learner(node)).expect("the node is not a member yet");
    }
    membership.into()
}

pub(super) fn config(node: u32) -> Config {
    Config {
        cohort: CohortId(1),
        me: member(node),
        // Without jitter no random number is drawn, so equal states compare equal.
        timing: Timing { election_jitter: base::Duration::ZERO, ..Timing::default() },
        // One entry per proposal: a longer proposal is equivalent to several in sequence. No reorder buffer: a buffered
        // proposal is equivalent to one delivered again in order.
        limits: Limits { propose_bytes: 1, reorder_bytes: 0, ..Limits::default() },
        seed: 0,
        origin: Lsn::ZERO,
        regime: Regime::Vote(Durability::Forced),
        waits: false,
        declaration: bytes::Bytes::new(),
    }
}

impl Replica {
    pub(super) fn new(node: u32, genesis: &SharedMembership, forces: Forces) -> Self {
        Self::with(config(node), genesis, forces)
    }

    pub(super) fn with(config: Config, genesis: &SharedMembership, forces: Forces) -> Self {
        let out = Outbox::default();
        let start = Start { membership: SharedMembership::clone(genesis), ..Start::default() };
        let cohort = Cohort::start(config, start, Now::default(), &mut Outbox::default());
        let manifest = HardState { membership: SharedMembership::clone(genesis), ..HardState::default() };
        Self {
            cohort,
            out,
            replay: Replay::default(),
            forces,
            unforced: Vec::new(),
            second_place: manifest.clone(),
            manifest,
            manifests_unforced: Vec::new(),
            checkpoint: (Lsn::ZERO, Timestamp(0)),
            membership: SharedMembership::clone(genesis),
            parked: Vec::new(),
            durable: Vec::new(),
            durable_membership: SharedMembership::clone(genesis),
            applied: Vec::new(),
        }
    }

    /// The same replica with every node renumbered by `rename`.
    pub(super) fn rename(&mut self, rename: impl Fn(NodeId) -> NodeId + Copy) {
        self.cohort.rename(rename);
        let hard = self.manifests_unforced.iter_mut().map(|(_, hard)| hard);
        for hard in hard.chain([&mut self.manifest, &mut self.second_place]) {
            hard.promised = renamed_promise(hard.promised, rename);
            hard.membership = SharedMembership::new(hard.membership.renamed(rename));
        }
        for membership in [&mut self.membership, &mut self.durable_membership] {
            *membership = SharedMembership::new(membership.renamed(rename));
        }
        for (_, to, message) in &mut self.parked {
            *to = rename(*to);
            *message = message.clone().renamed(rename);
        }
        self.parked.sort_unstable();
    }

    /// Runs one step of the cohort and collects its output.
    pub(super) fn step(&mut self, run: impl FnOnce(&mut Cohort, &mut Outbox)) -> Step {
        run(&mut self.cohort, &mut self.out);
        self.collect()
    }

    /// Checks that batched is equivalent to accepting a heartbeat and answering with a vote and no news (guarantee 2).
    ///
    /// # Panics
    /// When it is not equivalent.
    pub(super) fn compare_with_batched_heartbeat(&self, from: Member, message: &Message, now: Now) {
        let Message::Propose { epoch, sent, .. } = *message else { return };
        let rest = Quiescence { epoch, last: self.cohort.last() };
        if !self.cohort.agrees(from, rest, now) && !planted(Bug::BeatVouchedBlindly) {
            return;
        }
        let mut batched = self.cohort.clone();
        let heard = Some(now.monotonic);
        let Some(manifest) = batched.batched_heartbeat_received(from, rest, heard, now) else { return };
        let (mut cohort, mut out) = (self.cohort.clone(), Outbox::default());
        let (previous, commit) = (rest.last, rest.last.sequence);
        let heartbeat = Message::Propose { epoch, previous, entries: Vec::new(), commit, sent, heard };
        cohort.message(from, heartbeat, now, &mut out);
        let (reply, committed) = (Reply::Matched(commit), commit);
        let at = now.monotonic;
        let message = Message::ProposeReply { epoch, sent, voted: true, reply, committed, doubtful: false, at };
        let after = Durable { manifest, ..Durable::default() };
        assert_eq!(out.take(), [Output::Send { to: from.node, message, after }], "a heartbeat has a different reply");
        assert!(batched == cohort, "a heartbeat has a different effect: {batched:?}, {cohort:?}");
    }

    fn collect(&mut self) -> Step {
        let mut step = Step::default();
        if let Some(manifest) = self.out.take_manifest() {
            let hard = self.hard_state();
            self.manifests_unforced.push((manifest, hard));
        }
        for output in self.out.take() {
            match output {
                // A record that needs no force may always be lost; with eager forces it always is.
                Output::Append { force: Force::WithNext, .. } if self.forces == Forces::Eager => {}
                Output::Append { write, record, .. } => {
                    if let LogRecord::Entry(entry) = &record {
                        step.proposed.push(entry.clone());
                    }
                    self.unforced.push((write, record));
                }
                Output::Send { to, message, after } => self.park((after, to, message)),
                Output::Apply(entry) => {
                    self.applied.truncate(entry.lsn.sequence.previous().0 as usize);
                    self.applied.push(entry.lsn);
                    step.applied.push(entry);
                }
                Output::ReadLog { .. }
                | Output::SendState { .. }
                | Output::Installed(_)
                | Output::Cut(_)
                | Output::ReadIndexConfirmed
                | Output::LeadRenewed
                | Output::LeadLost => {}
                Output::Petition(configuration) => step.petitions.push(configuration),
            }
        }
        self.release_parked(&mut step);
        step
    }

    /// Parks a message until its writes are durable, unless an equal one is parked.
    fn park(&mut self, message: Parked) {
        if let Err(place) = self.parked.binary_search(&message) {
            self.parked.insert(place, message);
        }
    }

    fn hard_state(&self) -> HardState {
        let membership = SharedMembership::clone(&self.membership);
        HardState { promised: self.cohort.promised(), checkpoint: self.checkpoint, membership }
    }

    /// Sends the parked messages that waited for writes which are now durable.
    fn release_parked(&mut self, step: &mut Step) {
        let first_log = self.unforced.first().map(|(write, _)| *write);
        let first_manifest = self.manifests_unforced.first().map(|(manifest, _)| *manifest);
        let waits = |after: &Durable| {
            first_log.is_some_and(|first| after.log >= first)
                || first_manifest.is_some_and(|first| after.manifest >= first)
        };
        let (parked, free) = self.parked.drain(..).partition::<Vec<_>, _>(|(after, ..)| waits(after));
        self.parked = parked;
        step.sent.extend(free.into_iter().map(|(_, to, message)| (to, message)));
    }

    pub(super) fn log_pending(&self) -> usize {
        self.unforced.len()
    }

    /// Whether both copies of the manifest are equal.
    pub(super) fn places_agree(&self) -> bool {
        self.manifest == self.second_place
    }

    pub(super) fn manifests_pending(&self) -> usize {
        self.manifests_unforced.len()
    }

    /// The lowest promise that a restart could find.
    pub(super) fn promise_on_disk(&self) -> Promise {
        let (first, second) = (self.manifest.promised, self.second_place.promised);
        if first.epoch < second.epoch { first } else { second }
    }

    /// Whether it has unforced writes.
    pub(super) fn is_stuck(&self) -> bool {
        self.log_pending() + self.manifests_pending() > 0
    }

    /// Drops the messages that wait for writes which will never be forced.
    pub(super) fn drop_unsendable(&mut self) {
        self.parked.clear();
    }

    pub(super) fn force_log(&mut self, now: Now) -> Step {
        let Some(&(through, _)) = self.unforced.last() else { return Step::default() };
        self.unforced.drain(..).for_each(|(_, record)| self.replay.record(record));
        self.find_durable();
        self.step(|cohort, out| cohort.log_forced(through, now, out))
    }

    pub(super) fn force_manifest(&mut self, now: Now) -> Step {
        let Some((manifest, hard)) = self.manifests_unforced.pop() else { return Step::default() };
        self.manifests_unforced.clear();
        let first = std::mem::replace(&mut self.manifest, hard);
        self.second_place = if planted(Bug::PromiseInOnePlace) { first } else { self.manifest.clone() };
        self.find_durable();
        self.step(|cohort, out| cohort.manifest_forced(manifest, now, out))
    }

    /// Writes the applied state as a checkpoint, forces the manifest, and truncates the log before it.
    pub(super) fn checkpoint(&mut self) -> bool {
        let through = self.cohort.applied();
        let Some(lsn) = self.cohort.lsn_at(through) else { return false };
        let forced_locally = self.cohort.forced() >= through;
        if lsn.sequence <= self.checkpoint.0.sequence || !forced_locally || self.manifests_pending() > 0 {
            return false;
        }
        let timestamp = Timestamp(through.0.cast_signed());
        self.checkpoint = (lsn, timestamp);
        self.membership = SharedMembership::clone(self.cohort.membership_applied());
        self.manifest.checkpoint = self.checkpoint;
        self.manifest.membership = SharedMembership::clone(&self.membership);
        self.second_place = self.manifest.clone();
        self.find_durable();
        true
    }

    /// Crashes and restarts the process. The crash keeps the first `kept` unforced records and the first
    /// `manifests_kept` unforced manifests. If the disk `rots`, the first copy of the manifest is lost too.
    pub(super) fn crash(&mut self, kept: usize, manifests_kept: usize, rots: bool, now: Now) -> Step {
        self.unforced.drain(..).take(kept).for_each(|(_, record)| self.replay.record(record));
        let kept = manifests_kept.checked_sub(1).and_then(|last| self.manifests_unforced.get(last));
        if let Some((_, hard)) = kept {
            self.manifest = hard.clone();
        }
        self.manifests_unforced.clear();
        if rots {
            self.manifest = self.second_place.clone();
        }
        self.second_place = self.manifest.clone();
        self.parked.clear();
        self.checkpoint = self.manifest.checkpoint;
        self.membership = SharedMembership::clone(&self.manifest.membership);
        self.find_durable();
        let start = self.recovered();
        self.out = Outbox::default();
        self.applied.truncate(start.checkpoint.0.sequence.0 as usize);
        self.cohort = Cohort::start(self.cohort.config().clone(), start, now, &mut self.out);
        self.collect()
    }

    /// Crashes and restarts the process with a damaged log that has lost all its entries.
    pub(super) fn damage(&mut self, now: Now) -> Step {
        self.replay = Replay::default();
        self.unforced.clear();
        self.manifests_unforced.clear();
        self.parked.clear();
        self.find_durable();
        let start = Start { doubtful: true, ..self.recovered() };
        self.out = Outbox::default();
        self.applied.clear();
        self.cohort = Cohort::start(self.cohort.config().clone(), start, now, &mut self.out);
        self.collect()
    }

    /// The state that a restart would recover from the disk, through the real replay.
    fn recovered(&self) -> Start {
        let mut checkpoint = self.manifest.checkpoint;
        let log = self.replay.clone().finish(checkpoint.0);
        if planted(Bug::LastLsnFromLogOnly) && log.entries.is_empty() {
            checkpoint.0.epoch = base::Epoch(0);
        }
        let membership = SharedMembership::clone(&self.manifest.membership);
        let (promised, doubtful, forgetful, split_off) = (self.manifest.promised, false, false, None);
        Start { promised, checkpoint, membership, log, doubtful, forgetful, split_off }
    }

    fn find_durable(&mut self) {
        let start = self.recovered();
        let kept = self.manifest.checkpoint.0.sequence.0 as usize;
        let mut durable: Vec<Lsn> = self.applied.iter().copied().take(kept).collect();
        durable.extend(start.log.entries.iter().map(|entry| entry.lsn));
        let changes = start.log.entries.iter().filter_map(|entry| entry.members.as_ref());
        self.durable_membership = SharedMembership::clone(changes.last().unwrap_or(&start.membership));
        self.durable = durable;
    }

    /// Normalizes write identifiers, so that states which differ only in the number of past forces are equal, and
    /// returns the fingerprint.
    pub(super) fn fingerprint(&mut self, now: Now) -> u64 {
        let before = |first: Option<u64>, last: u64| first.map_or(last, |first| first - 1);
        let first_log = self.unforced.first().map(|(write, _)| write.0);
        let first_manifest = self.manifests_unforced.first().map(|(manifest, _)| manifest.0);
        let log = before(first_log, self.out.appended().0);
        let manifest = before(first_manifest, self.out.manifest().0);
        self.cohort.canonical(&mut self.out, WriteId(log), ManifestId(manifest), now.monotonic);
        for (write, _) in &mut self.unforced {
            write.0 -= log;
        }
        for (number, _) in &mut self.manifests_unforced {
            number.0 -= manifest;
        }
        for (after, ..) in &mut self.parked {
            after.log.0 = after.log.0.saturating_sub(log);
            after.manifest.0 = after.manifest.0.saturating_sub(manifest);
        }
        let mut hasher = Xxh3Default::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}
