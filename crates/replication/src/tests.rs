//! Regression scenarios, played message by message. The search and the simulator check all orders; these tests document
//! specific ones that once failed.

use base::{
    CohortId, Durability, Duration, Entry, Epoch, Incarnation, LogRecord, Lsn, Member, Monotonic, NodeId, Now,
    Sequence, Timestamp,
};
use bytes::Bytes;
use std::sync::Arc;

use crate::message::{Gap, Reply};
use crate::{
    CatchUp, Cohort, Config, Limits, ManifestId, Message, Outbox, Output, Regime, Replay, Start, Timing, WriteId,
};

mod aside;
mod commit_wait;
mod golden;
mod reads;

/// Replicas with disks that force at once, and the messages in flight.
pub(crate) struct Scene {
    pub(crate) now: Now,
    pub(crate) replicas: Vec<(Cohort, Outbox)>,
    /// Sender, receiver and message, in send order.
    pub(crate) under_way: Vec<(NodeId, NodeId, Message)>,
    /// Configurations that replicas ask the catalog for.
    pub(crate) petitions: Vec<base::Configuration>,
    /// Log reads requested by leaders.
    log_reads: Vec<(NodeId, base::Sequence)>,
}

pub(crate) fn member(node: NodeId) -> Member {
    Member { node, incarnation: Incarnation(1) }
}

pub(crate) fn node(index: usize) -> NodeId {
    NodeId(u32::try_from(index).unwrap_or(0) + 1)
}

impl Scene {
    /// Three replicas, all of them members.
    fn new(limits: Limits) -> Self {
        Self::with(3, 0, limits, Timing::default())
    }

    /// Members with main-memory logs.
    pub(crate) fn in_memory(members: usize) -> Self {
        let mut scene = Self::with(members, 0, Limits::default(), Timing::default());
        for (cohort, _) in &mut scene.replicas {
            cohort.config.regime = Regime::Vote(Durability::Memory);
            cohort.config.declaration = Bytes::from_static(b"loss");
        }
        scene
    }

    /// Members, and outsiders that know no membership and are in doubt.
    pub(crate) fn with(members: usize, outsiders: usize, limits: Limits, timing: Timing) -> Self {
        let all: Vec<Member> = (0..members + outsiders).map(|index| member(node(index))).collect();
        let members = &all[..members];
        let timing = Timing { election_jitter: Duration::ZERO, ..timing };
        let start = |me: Member| {
            let config = Config {
                cohort: CohortId(1),
                me,
                timing,
                limits,
                seed: 1,
                origin: Lsn::ZERO,
                regime: Regime::Vote(Durability::Forced),
                waits: false,
                declaration: Bytes::new(),
            };
            let start = if members.contains(&me) {
                Start { membership: Arc::new(members.to_vec().into()), ..Start::default() }
            } else {
                Start { doubtful: true, ..Start::default() }
            };
            let mut out = Outbox::default();
            (Cohort::start(config, start, Now::default(), &mut out), out)
        };
        let replicas = all.iter().map(|me| start(*me)).collect();
        // The grace period after a start is over.
        let now = Now { monotonic: Monotonic(0) + Duration::from_millis(1_000), wall: Timestamp(1), uncertainty: None };
        Self { now, replicas, under_way: Vec::new(), petitions: Vec::new(), log_reads: Vec::new() }
    }

    /// Restarts a replica from its log and promise, which are all on disk.
    pub(crate) fn restart(&mut self, index: usize, change: impl FnOnce(&mut Config)) {
        let cohort = &self.replicas[index].0;
        let mut config = cohort.config().clone();
        change(&mut config);
        let mut replay = Replay::default();
        cohort.entries().for_each(|entry| replay.record(LogRecord::Entry(entry.clone())));
        let members = (1..=self.replicas.len()).map(|number| member(node(number - 1))).collect::<Vec<Member>>();
        let start = Start {
            promised: cohort.promised(),
            membership: Arc::new(members.into()),
            log: replay.finish(Lsn::ZERO),
            ..Start::default()
        };
        let mut out = Outbox::default();
        self.replicas[index] = (Cohort::start(config, start, self.now, &mut out), out);
    }

    pub(crate) fn wait(&mut self, span: Duration) {
        self.now.monotonic = self.now.monotonic + span;
    }

    /// Runs a step on a replica, and forces its outputs.
    pub(crate) fn at(&mut self, index: usize, act: impl FnOnce(&mut Cohort, Now, &mut Outbox)) {
        let (cohort, out) = &mut self.replicas[index];
        act(cohort, self.now, out);
        loop {
            let (mut appended, manifest) = (None, out.take_manifest());
            for output in out.take() {
                match output {
                    Output::Append { write, .. } => appended = Some(write),
                    Output::Send { to, message, .. } => self.under_way.push((node(index), to, message)),
                    Output::Petition(wanted) => self.petitions.push(wanted),
                    Output::ReadLog { peer, from } => self.log_reads.push((peer, from)),
                    _ => {}
                }
            }
            if appended.is_none() && manifest.is_none() {
                break;
            }
            cohort.log_forced(appended.unwrap_or(WriteId(0)), self.now, out);
            cohort.manifest_forced(manifest.unwrap_or(ManifestId(0)), self.now, out);
        }
        cohort.invariants();
    }

    /// Delivers the messages in flight that match a filter, in order.
    pub(crate) fn deliver(&mut self, picks: impl Fn(NodeId, NodeId, &Message) -> bool) {
        let (picked, left) = std::mem::take(&mut self.under_way)
            .into_iter()
            .partition::<Vec<_>, _>(|(from, to, message)| picks(*from, *to, message));
        self.under_way = left;
        for (from, to, message) in picked {
            self.at(to.0 as usize - 1, |cohort, now, out| cohort.message(member(from), message, now, out));
        }
    }

    /// Delivers everything until there are no more messages.
    pub(crate) fn deliver_all(&mut self) {
        while !self.under_way.is_empty() {
            self.deliver(|_, _, _| true);
        }
    }

    pub(crate) fn propose(&mut self, index: usize) {
        self.at(index, |cohort, now, out| {
            cohort.propose(Bytes::from_static(b"x"), now, out).expect("it leads");
            cohort.settle(now, out);
        });
    }

    pub(crate) fn heartbeat(&mut self, index: usize) {
        self.wait(Timing::default().heartbeat);
        self.at(index, |cohort, now, out| {
            cohort.timer(now, out);
            cohort.settle(now, out);
        });
    }
}

#[test]
fn losing_candidate_follows_epoch_winner() {
    let mut scene = Scene::new(Limits::default());
    for candidate in [0, 1] {
        scene.at(candidate, |cohort, now, out| cohort.campaign(now, out));
    }
    let third = node(2);
    scene.deliver(|from, to, _| from == node(0) && to == third);
    scene.deliver(|from, to, _| from == third && to == node(0));
    assert!(scene.replicas[0].0.leads());
    assert_eq!(scene.replicas[1].0.promised().epoch, scene.replicas[0].0.promised().epoch);

    scene.propose(0);
    scene.deliver_all();
    scene.heartbeat(0);
    scene.deliver_all();
    for (replica, _) in &scene.replicas {
        assert_eq!((replica.leader(), replica.committed().0), (Some(node(0)), 2), "{replica:?}");
    }
}

#[test]
fn split_vote_restarts_election_at_once() {
    let mut scene = Scene::new(Limits::default());
    for candidate in 0..3 {
        scene.at(candidate, |cohort, now, out| cohort.campaign(now, out));
    }
    scene.deliver_all();
    for (replica, _) in &scene.replicas {
        assert!(replica.next_timer(scene.now.monotonic) <= scene.now.monotonic, "not when its patience ends");
    }
}

#[test]
fn ack_during_log_read_continues_catch_up() {
    let mut scene = Scene::new(Limits { memory_log_bytes: 0, ..Limits::default() });
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    for _ in 0..3 {
        scene.propose(0);
        scene.deliver(|_, to, _| to != node(2));
        scene.deliver(|from, _, _| from == node(1));
    }
    let late = std::mem::take(&mut scene.under_way);
    scene.at(0, |cohort, _, _| cohort.peer_restarted(node(2)));
    scene.heartbeat(0);
    scene.deliver(|_, _, _| true);
    scene.deliver(|from, _, _| from == node(2));
    assert!(!scene.log_reads.is_empty(), "what it lacks is in memory no more");
    let (peer, from) = scene.log_reads.remove(0);

    // An earlier message arrives late and is acknowledged before the log is read.
    scene.under_way.extend(late);
    scene.deliver(|_, to, _| to == node(2));
    scene.deliver(|from, _, _| from == node(2));
    scene.at(0, |cohort, now, out| cohort.log_read(peer, from, None, now, out));
    scene.propose(0);
    for _ in 0..3 {
        scene.heartbeat(0);
        scene.deliver_all();
    }
    let last = scene.replicas[0].0.last();
    assert_eq!((scene.replicas[2].0.last(), scene.replicas[2].0.committed()), (last, last.sequence));
}

/// A leader paused for some seconds: messages beyond the flow-control window to this follower were lost. It replies and
/// catches up.
#[test]
fn silent_follower_catches_up_on_reply() {
    let limits = Limits { memory_log_bytes: 0, window_bytes: 1_000, propose_bytes: 600, ..Limits::default() };
    let mut scene = Scene::new(limits);
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    let mut log: Vec<Entry> = Vec::new();
    for _ in 0..20 {
        let previous = scene.replicas[0].0.last();
        let payload = Bytes::from(vec![0; 500]);
        scene.at(0, |cohort, now, out| {
            cohort.propose(payload.clone(), now, out);
            cohort.settle(now, out);
        });
        let (lsn, timestamp) = (scene.replicas[0].0.last(), Timestamp(scene.now.wall.0));
        log.push(Entry { lsn, previous, timestamp, payload, members: None });
        scene.deliver(|_, to, _| to != node(2));
        scene.under_way.retain(|(_, to, _)| *to != node(2));
        scene.deliver_all();
    }
    let serve = |scene: &mut Scene| {
        for (peer, from) in std::mem::take(&mut scene.log_reads) {
            let entries = log.iter().filter(|entry| entry.lsn.sequence >= from).take(1).cloned().collect();
            scene.at(0, |cohort, now, out| cohort.log_read(peer, from, Some(entries), now, out));
        }
    };
    for _ in 0..10 {
        scene.heartbeat(0);
        serve(&mut scene);
        scene.under_way.retain(|(_, to, _)| *to != node(2));
        scene.deliver_all();
        scene.replicas[0].0.invariants();
    }
    for _ in 0..30 {
        scene.heartbeat(0);
        scene.deliver_all();
        serve(&mut scene);
        scene.deliver_all();
        scene.replicas[0].0.invariants();
    }
    assert_eq!(scene.replicas[2].0.last(), scene.replicas[0].0.last());
}

fn entry(epoch: u64, sequence: u64, previous: Lsn) -> Entry {
    let lsn = Lsn::new(epoch, sequence);
    Entry {
        lsn,
        previous,
        timestamp: Timestamp(sequence.cast_signed()),
        payload: Bytes::from_static(b"x"),
        members: None,
    }
}

/// A snapshot replaces a log with an uncommitted tail. The tail must also be truncated on disk, or this replica would
/// send it to a lagging follower as a leader.
#[test]
fn snapshot_install_truncates_stale_tail() {
    let mut scene = Scene::new(Limits::default());
    let dead = vec![entry(1, 1, Lsn::ZERO), entry(1, 2, Lsn::new(1, 1))];
    let propose = |epoch, entries, previous| Message::Propose {
        epoch: Epoch(epoch),
        previous,
        entries,
        commit: Sequence(0),
        sent: Monotonic(0),
        heard: None,
    };
    let now = scene.now;
    let (cohort, out) = &mut scene.replicas[1];
    cohort.message(member(node(0)), propose(1, dead.clone(), Lsn::ZERO), now, out);
    cohort.log_forced(out.appended(), now, out);
    let state = Lsn::new(2, 1_000);
    assert!(cohort.install(state, Timestamp(1_000), Arc::default(), now, out));
    out.take();
    cohort.manifest_forced(out.manifest(), now, out);
    let cuts = out
        .take()
        .into_iter()
        .any(|output| matches!(output, Output::Append { record: LogRecord::Truncation { from: Sequence(1) }, .. }));
    assert!(cuts, "its records are dead from here on");

    // The same after a crash between the manifest that names the snapshot and the truncation record.
    let mut replay = Replay::default();
    dead.into_iter().for_each(|entry| replay.record(LogRecord::Entry(entry)));
    assert_eq!(replay.clone().finish(state).cut, Some(Sequence(1)));
    assert_eq!(replay.finish(Lsn::new(1, 1)).cut, None, "they are this checkpoint's own");
}

#[test]
fn broken_log_read_sends_valid_prefix() {
    let mut scene = Scene::new(Limits { memory_log_bytes: 0, ..Limits::default() });
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    for _ in 0..3 {
        scene.propose(0);
        scene.deliver(|_, to, _| to == node(1));
        scene.deliver(|from, _, _| from == node(1));
    }
    scene.under_way.clear();
    scene.at(0, |cohort, _, _| cohort.peer_restarted(node(2)));
    scene.heartbeat(0);
    scene.deliver(|_, _, _| true);
    scene.deliver(|from, _, _| from == node(2));
    let (peer, from) = scene.log_reads.pop().expect("memory holds nothing");
    let before = Lsn { epoch: Epoch(1), sequence: from.previous() };
    let entries = vec![entry(1, from.0, before), entry(1, from.0 + 1, Lsn::new(7, from.0))];
    scene.at(0, |cohort, now, out| cohort.log_read(peer, from, Some(entries), now, out));
    let sent = scene.under_way.iter().find_map(|(_, to, message)| match message {
        Message::Propose { entries, .. } if *to == node(2) && !entries.is_empty() => Some(entries.len()),
        _ => None,
    });
    assert_eq!(sent, Some(1));
}

/// Messages out of order make a leader go back once, not once per reply.
#[test]
fn stale_replies_do_not_retransmit() {
    let mut scene = Scene::new(Limits { propose_bytes: 1, ..Limits::default() });
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    for _ in 0..20 {
        scene.wait(Duration::from_millis(1));
        scene.propose(0);
    }
    // The first is lost on its way to the third replica. Of the replies to the following ones, all but one are late.
    let lost = scene.under_way.iter().position(|(_, to, _)| *to == node(2)).expect("it was sent");
    scene.under_way.remove(lost);
    scene.wait(Duration::from_millis(1));
    scene.deliver(|_, _, _| true);
    let first = scene.under_way.iter().position(|(from, _, _)| *from == node(2)).expect("it answered");
    let first = scene.under_way.remove(first);
    let late = std::mem::replace(&mut scene.under_way, vec![first]);
    scene.deliver_all();
    assert_eq!(scene.replicas[2].0.last(), scene.replicas[0].0.last());

    scene.wait(Duration::from_millis(1));
    scene.under_way = late;
    scene.deliver(|_, _, _| true);
    assert_eq!(scene.under_way, []);
    assert!(scene.replicas[0].0.catch_ups().all(|(_, how)| how == CatchUp::Stream));
}

/// Sequences of the entries in flight to a replica.
fn under_way_to(scene: &Scene, to: NodeId) -> Vec<u64> {
    let proposals = scene.under_way.iter().filter(|(_, receiver, _)| *receiver == to);
    let entries = proposals.flat_map(|(_, _, message)| match message {
        Message::Propose { entries, .. } => entries.iter().map(|entry| entry.lsn.sequence.0).collect(),
        _ => Vec::new(),
    });
    entries.collect()
}

/// Two of ten proposals to a follower are lost; it buffers the others.
fn with_two_lost(limits: Limits) -> (Scene, Vec<u64>) {
    let mut scene = Scene::new(Limits { propose_bytes: 1, ..limits });
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    for _ in 0..10 {
        scene.wait(Duration::from_millis(1));
        scene.propose(0);
    }
    let third = node(2);
    let is_lost = |message: &Message| matches!(message, Message::Propose { entries, .. } if [3, 4, 7].contains(&entries[0].lsn.sequence.0));
    scene.under_way.retain(|(_, to, message)| *to != third || !is_lost(message));
    scene.wait(Duration::from_millis(1));
    scene.deliver(|_, to, _| to == third);
    scene.deliver(|from, _, _| from == third);
    let again = under_way_to(&scene, third);
    (scene, again)
}

#[test]
fn retransmits_only_missing_entries() {
    let (mut scene, again) = with_two_lost(Limits::default());
    assert_eq!(again, [3, 4], "the first gap that it told of");
    scene.wait(Duration::from_millis(1));
    scene.deliver(|_, to, _| to == node(2));
    scene.deliver(|from, _, _| from == node(2));
    assert_eq!(scene.replicas[2].0.last().sequence, Sequence(6), "what waited for them is taken in with them");
    scene.heartbeat(0);
    scene.deliver(|_, to, _| to == node(2));
    scene.deliver(|from, _, _| from == node(2));
    assert_eq!(under_way_to(&scene, node(2)), [7]);
    scene.deliver_all();
    assert_eq!(scene.replicas[2].0.last(), scene.replicas[0].0.last());
}

#[test]
fn entries_dropped_by_full_buffer_are_resent() {
    let (mut scene, _) = with_two_lost(Limits { reorder_bytes: 0, ..Limits::default() });
    for _ in 0..3 {
        scene.deliver_all();
        scene.heartbeat(0);
    }
    scene.deliver_all();
    assert_eq!(scene.replicas[2].0.last(), scene.replicas[0].0.last());
}

/// A proposal of the leader of that epoch, with nothing committed.
fn propose(epoch: u64, previous: Lsn, entries: Vec<Entry>) -> Message {
    let epoch = Epoch(epoch);
    Message::Propose { epoch, previous, entries, commit: Sequence(0), sent: Monotonic(0), heard: None }
}

/// The next leader does not hold the entries buffered from the previous one.
#[test]
fn new_epoch_discards_buffered_entries() {
    let mut scene = Scene::new(Limits::default());
    let (first, second) = (entry(1, 1, Lsn::ZERO), entry(1, 2, Lsn::new(1, 1)));
    for (from, message) in
        [(0, propose(1, Lsn::new(1, 1), vec![second])), (1, propose(2, Lsn::ZERO, vec![first.clone()]))]
    {
        scene.at(2, |cohort, now, out| cohort.message(member(node(from)), message, now, out));
    }
    assert_eq!(scene.replicas[2].0.last(), first.lsn);
}

/// The last entry of a follower is from a deposed leader. It lacks the entry that replaced it and holds the following
/// one.
#[test]
fn gap_report_includes_conflict() {
    let mut scene = Scene::new(Limits::default());
    let first = entry(1, 1, Lsn::ZERO);
    let (lost, won) = (entry(1, 2, first.lsn), entry(2, 2, first.lsn));
    let (third, fourth) = (entry(2, 3, won.lsn), entry(2, 4, Lsn::new(2, 3)));
    for (from, message) in [
        (0, propose(1, Lsn::ZERO, vec![first.clone(), lost])),
        (1, propose(2, Lsn::ZERO, vec![first.clone()])),
        (1, propose(2, won.lsn, vec![third.clone()])),
        (1, propose(2, third.lsn, vec![fourth.clone()])),
    ] {
        scene.at(2, |cohort, now, out| cohort.message(member(node(from)), message, now, out));
    }
    let mut replies = scene.under_way.iter().filter_map(|(from, _, message)| match message {
        Message::ProposeReply { reply, .. } if *from == node(2) => Some(*reply),
        _ => None,
    });
    let lacks = Reply::Missing(Gap { after: first.lsn.sequence, through: won.lsn.sequence });
    assert_eq!(replies.next_back(), Some(lacks), "what follows the conflict is here");
    scene.at(2, |cohort, now, out| {
        cohort.message(member(node(1)), propose(2, first.lsn, vec![won]), now, out);
    });
    assert_eq!(scene.replicas[2].0.last(), fourth.lsn);
}

/// A leader that sends commit points only in separate messages once a second, with one committed entry.
fn with_an_untold_commit(limits: Limits) -> Scene {
    let timing = Timing { commit_period: SECOND, piggyback_commits: false, ..Timing::default() };
    let mut scene = Scene::with(3, 0, limits, timing);
    scene.at(0, |cohort, now, out| cohort.campaign(now, out));
    scene.deliver_all();
    scene.propose(0);
    scene.deliver_all();
    assert_eq!(scene.replicas[0].0.committed(), Sequence(2));
    scene
}

const SECOND: Duration = Duration::from_millis(1_000);

fn committed(scene: &Scene) -> [u64; 3] {
    [0, 1, 2].map(|index| scene.replicas[index].0.committed().0)
}

#[test]
fn periodic_commit_notification() {
    let mut scene = with_an_untold_commit(Limits::default());
    for _ in 0..9 {
        scene.heartbeat(0);
        scene.deliver_all();
        assert_eq!(committed(&scene), [2, 0, 0]);
    }
    scene.propose(0);
    scene.deliver_all();
    assert_eq!(committed(&scene), [3, 0, 0]);
    scene.heartbeat(0);
    scene.heartbeat(0);
    scene.deliver_all();
    assert_eq!(committed(&scene), [3, 3, 3]);
    let leader = &scene.replicas[0].0;
    assert!([1, 2].iter().all(|peer| leader.quiescence_with(node(*peer)).is_some()), "there is nothing more to tell");
}

#[test]
fn large_commit_notifies_early() {
    let mut scene = with_an_untold_commit(Limits { unannounced_bytes: 1, ..Limits::default() });
    scene.at(0, |cohort, now, out| cohort.settle(now, out));
    scene.deliver_all();
    assert_eq!(committed(&scene), [2, 2, 2]);
}

/// A replica's new process must learn everything committed with the help of the old one before its doubt may end
/// (guarantee 7).
#[test]
fn restarted_peer_learns_prior_commits() {
    let mut scene = with_an_untold_commit(Limits::default());
    scene.at(0, |cohort, _, _| cohort.peer_restarted(node(2)));
    scene.heartbeat(0);
    scene.deliver_all();
    assert_eq!(committed(&scene), [2, 0, 2]);
}
