//! The node machine: passes events to its replicas and turns their output into actions.

use std::collections::BTreeSet;

use base::canary::{Bug, planted};
use base::{Boot, CohortId, Entry, Lsn, Member, Monotonic, NodeId, Now, Record};
use bytes::Bytes;
use catalog::{Catalog, CatalogResponse, Change};
use replication::{CatchUp, Cohort, Durable, ManifestId, Outbox, Output, Reply};
use sharedlog::request::LogResponse;
use state_machine::{Failure, Ownership};

use crate::checkpoint_schedule::Checkpoints;
use crate::clock_watch::ClockWatch;
use crate::config::NodeConfig;
use crate::configurations::Configurations;
use crate::contract::{Action, Event};
use crate::drops::Drops;
use crate::evaluations::Evaluations;
use crate::heartbeat_batch::HeartbeatBatches;
use crate::hosting::Hosting;
use crate::logs::{Logs, SequencerRequester, UnitReplyTo};
use crate::mending::Mending;
use crate::message::Message;
use crate::moves::Moves;
use crate::notices::Notices;
use crate::outgoing::Outgoing;
use crate::registry::{self, AnyMachine, Effect, KindEvent};
use crate::replica::{Proposal, Replica};
use crate::replicas::Replicas;
use crate::request::{Counters, Response};
use crate::request_table::RequestTable;
use crate::roster::Roster;
use crate::splits::Splits;
use crate::spreading::Spreading;
use crate::stop::Stop;
use crate::transactions::Transactions;
use crate::transfer::Transfers;

/// One node of a cluster, as a deterministic machine. See [`crate::contract`].
#[derive(Debug)]
pub struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) cluster: Roster,
    pub(crate) replicas: Replicas,
    pub(crate) hosting: Hosting,
    pub(crate) outgoing: Outgoing,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) transfers: Transfers,
    pub(crate) beats: HeartbeatBatches,
    pub(crate) clock_watch: ClockWatch,
    pub(crate) pending_requests: RequestTable,
    pub(crate) evaluations: Evaluations,
    pub(crate) mending: Mending,
    pub(crate) notices: Notices,
    pub(crate) drops: Drops,
    pub(crate) splits: Splits,
    pub(crate) spreading: Spreading,
    pub(crate) moves: Moves,
    pub(crate) configurations: Configurations,
    pub(crate) logs: Logs,
    pub(crate) transactions: Transactions,
    pub(crate) counters: Counters,
    pub(crate) stop: Stop,
    pub(crate) actions: Vec<Action>,
    pub(crate) timer_at: Monotonic,
}

impl Node {
    /// Handles an event and appends the resulting actions to `actions`. The driver must call [`Node::settle`] before it
    /// waits for the next event.
    pub fn step(&mut self, now: Now, event: Event, actions: &mut Vec<Action>) {
        if self.has_ended() {
            return;
        }
        let now = self.clock_watch.admit(now, self.config.clock_uncertainty_max);
        self.logs.controller.awake(now.monotonic);
        if self.is_leaving() {
            self.leave(now, &event);
            if let Event::Request { id, .. } = event {
                let outcome = Err(Failure::Unavailable("the node is stopping".to_owned()));
                self.actions.push(Action::Reply { to: id, outcome, valid_until: None });
            }
            return self.flush(now, actions);
        }
        match event {
            Event::Timer => self.on_timer(now),
            Event::Message { from, boot, message } => self.message(from, boot, message, now),
            Event::PeerStarted { from, start } => self.peer_started(from, start, now),
            Event::PeerRolledBack { peer } => self.peer_rolled_back(peer),
            Event::PeerConnection { peer, is_open } => self.peer_connection(peer, is_open),
            Event::Request { id, deadline, request } => self.request(id, deadline, request, now),
            Event::GivenUp { requests } => self.clients_gone(&requests, now),
            Event::ReplyExpired { destination } => self.reply_expired(destination),
            Event::LogForced { through } => self.log_forced(through, now),
            Event::ManifestForced { through } => self.manifest_forced(through, now),
            Event::CheckpointWritten { cohort, checkpoint, bytes, flushed } => {
                self.checkpoint_written(cohort, checkpoint, bytes, flushed, now);
            }
            Event::CheckpointFailed { cohort, checkpoint } => self.checkpoint_failed(cohort, checkpoint, now),
            Event::DiskFull => self.disk_full(now),
            Event::Compacted { cohort, lineage, outputs } => self.compacted(cohort, lineage, outputs, now),
            Event::FileDamaged { cohort } => self.file_damaged(cohort, now),
            Event::Evaluated { id, answer } => self.evaluated(id, answer, now),
            Event::FileRead { id, bytes } => self.file_read(id, bytes, now),
            Event::FileWritten { file, bytes } => self.file_written(file, bytes),
            Event::FilesAdopted { cohort, arrival, storage } => self.files_adopted(cohort, arrival, storage),
            Event::LogRead { id, entries } => self.catch_up_read_done(id, entries, now),
            Event::Stop => self.stop(now),
        }
        self.run_logs(now);
        self.flush(now, actions);
    }

    /// Ends a batch of events: runs all components until none has work, and sets the next timer.
    pub fn settle(&mut self, now: Now, actions: &mut Vec<Action>) {
        let now = self.clock_watch.admit(now, self.config.clock_uncertainty_max);
        if !self.has_ended() && !self.is_leaving() {
            let mut rounds = 0..ROUNDS_MAX;
            while self.run(now) && !self.has_ended() {
                debug_assert!(rounds.next().is_some(), "components keep creating work for each other");
            }
            self.remove_sstables();
            self.finish_stop(now);
            self.set_timer();
        }
        self.flush(now, actions);
    }

    /// Runs every component once. Returns whether any had work. The order does not matter, because each component may
    /// create work for any other.
    fn run(&mut self, now: Now) -> bool {
        self.run_roster()
            | self.run_hosting(now)
            | self.run_configurations(now)
            | self.run_drops(now)
            | self.run_splits(now)
            | self.run_moves(now)
            | self.run_requests(now)
            | self.continue_mending(now)
            | self.run_transactions(now)
            | self.run_logs(now)
            | self.run_replicas(now)
    }

    /// Ends the step for every replica with activity.
    fn run_replicas(&mut self, now: Now) -> bool {
        self.routes_changed(now);
        let settled = self.settle_touched(now);
        if settled.is_empty() {
            return false;
        }
        self.name_checkpoints(&settled);
        self.settle_splits(now);
        self.begin_checkpoints(&settled, now);
        self.begin_compactions(&settled, now);
        for id in settled {
            self.note_rest(id, now);
            let next = self.replicas.get(&id).map_or(Monotonic::NEVER, |replica| replica.next_moment(now.monotonic));
            self.replicas.wake_at(id, next);
        }
        true
    }

    fn settle_touched(&mut self, now: Now) -> BTreeSet<CohortId> {
        let mut settled = BTreeSet::new();
        while let Some(id) = self.replicas.next_touched() {
            self.with_cohort(id, now, |cohort, out| cohort.settle(now, out));
            self.replicas.settled(id);
            settled.insert(id);
        }
        settled
    }

    /// Emits the collected actions: first the published views, then the manifest, then the actions that depend on them.
    fn flush(&mut self, now: Now, actions: &mut Vec<Action>) {
        if planted(Bug::ReadViewAfterReply) {
            actions.append(&mut self.actions);
        }
        self.publish(now.monotonic, actions);
        self.write_manifest(now, actions);
        actions.append(&mut self.actions);
    }

    /// Runs a function on every cohort and handles its output.
    pub(crate) fn each_cohort(&mut self, now: Now, mut run: impl FnMut(&mut Cohort, &mut Outbox)) {
        let ids: Vec<CohortId> = self.replicas.keys().copied().collect();
        for id in ids {
            self.with_cohort(id, now, &mut run);
        }
    }

    /// Runs a function on a cohort and handles its output.
    pub(crate) fn with_cohort(&mut self, id: CohortId, now: Now, run: impl FnOnce(&mut Cohort, &mut Outbox)) {
        // Messages and completions may arrive for replicas that were removed.
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let (led, doubted) = (replica.cohort.leads(), replica.cohort.is_in_doubt());
        let had_diverged = replica.cohort.has_diverged();
        run(&mut replica.cohort, &mut self.outgoing.outbox);
        let has_taken_over = !led && replica.cohort.leads();
        self.counters.takeovers += u64::from(has_taken_over);
        let doubt_ended = doubted && !replica.cohort.is_in_doubt();
        self.counters.doubts_ended += u64::from(doubt_ended);
        self.counters.states_left += u64::from(!had_diverged && replica.cohort.has_diverged());
        if has_taken_over {
            self.notice_election(id, now);
        }
        self.drain(id, now);
        // The catalog is complete again: the manifest now names every cohort that this node may have joined before the
        // damage, and cohorts created from here on are new.
        if doubt_ended && id == CohortId::CATALOG {
            self.hosting.doubt_unknown = false;
            self.hosting.has_work = true;
        }
    }

    /// Turns a cohort's output into actions until there is no more.
    pub(crate) fn drain(&mut self, id: CohortId, now: Now) {
        while !self.outgoing.outbox.is_empty() {
            for output in self.outgoing.outbox.take() {
                self.output(id, output, now);
            }
        }
        self.begin_split_off(now);
        self.note_awaited(id);
    }

    fn output(&mut self, id: CohortId, output: Output, now: Now) {
        match output {
            Output::Append { write, record, force } => {
                let record = Record { cohort: id, body: record };
                self.outgoing.appended(record.size(), force, now);
                self.actions.push(Action::Append { write, record, force });
            }
            Output::Send { to, message, after } => {
                self.send(to, Message::Cohort { cohort: id, message }, after, None);
            }
            Output::Apply(entry) => self.apply(id, &entry, now),
            Output::ReadLog { peer, from } => self.begin_catch_up_read(id, peer, from),
            Output::SendState { peer } => self.begin_transfer(id, peer, now),
            Output::Installed(lsn) => self.installed(id, lsn),
            Output::ReadIndexConfirmed => self.pending_requests.wake(),
            Output::Cut(_) => self.counters.truncations += 1,
            Output::Petition(_) if self.is_mute(id, now) => {}
            Output::Petition(configuration) => self.petition(id, configuration, now),
            Output::LeadRenewed => {
                self.pending_requests.wake();
                self.forget_evaluations(id);
                self.transfers.forget_cohort(id);
            }
            Output::LeadLost => {
                let outage = self.outage_of_leader(id, now);
                self.lead_lost(id, outage.as_deref());
            }
        }
    }

    pub(crate) fn send(&mut self, to: NodeId, message: Message, after: Durable, valid_until: Option<Monotonic>) {
        let message = self.hosting.generations.named(to, message);
        self.actions.push(Action::Send { to, message, after, valid_until });
    }

    /// Halts the process, because a replica must never diverge from the others.
    pub(crate) fn halt(&mut self, reason: String) {
        self.stop = Stop::Ended;
        self.actions.push(Action::Halt { reason });
    }

    fn apply(&mut self, id: CohortId, entry: &Entry, now: Now) {
        let replica = expected!(self.replicas.get_mut(&id), "entries are applied to local replicas");
        let applied = match replica.state.apply(entry) {
            Ok(applied) => applied,
            Err(error) => return self.halt(format!("cannot apply entry {} of cohort {id}: {error}", entry.lsn)),
        };
        let proposal = replica.proposed.remove(&entry.lsn.sequence).filter(|proposal| proposal.lsn == entry.lsn);
        let is_barrier = entry.payload.is_empty();
        if is_barrier {
            self.pending_requests.wake();
            self.moves.has_work |= id == CohortId::CATALOG;
        }
        if applied.outcome.is_some() {
            replica.last_change = entry.timestamp;
            let longest = replica.options.retention.max(self.config.session_lifetime);
            replica.timestamp_history.note(entry.timestamp, now.monotonic, longest);
        }
        if matches!(applied.effect, Some(Effect::LossDeclared)) {
            replica.timestamp_history.clear();
        }
        self.locks_changed(id, proposal.as_ref(), applied.effect.as_ref(), is_barrier, now);
        if let Some(Proposal { pending, commits, .. }) = proposal {
            let replica = expected!(self.replicas.get_mut(&id), "as above");
            replica.writes += u64::from(applied.outcome.is_some());
            let waited = replica.cohort.commit_wait();
            let outcome = match applied.outcome {
                Some(Ok(response)) if commits => {
                    Some(Ok(response.committed(now.uncertainty.unwrap_or_default(), waited)))
                }
                other => other,
            };
            match (outcome, &applied.effect) {
                (Some(outcome), _) => self.complete(pending, outcome, None),
                // The request was not executed: route it to the other range.
                (None, Some(Effect::Elsewhere)) => self.pending_requests.retry(pending),
                (
                    None,
                    Some(Effect::Own(KindEvent::Catalog(
                        Change::DropBegun { id: of } | Change::SplitBegun { child: of },
                    ))),
                ) => self.pending_requests.await_change(*of, pending),
                (None, _) => {}
            }
        }
        if is_barrier {
            self.assign_range(id, now);
            self.found_unit(id, now);
        }
        match applied.effect {
            Some(Effect::Own(KindEvent::Unit(answer))) => self.unit_applied(id, entry.lsn, answer, now),
            Some(effect) => self.effect(id, effect),
            None => {}
        }
    }

    /// Updates the latches after an applied entry: those of its proposal, and those of prepared transactions.
    fn locks_changed(
        &mut self,
        id: CohortId,
        proposal: Option<&Proposal>,
        effect: Option<&Effect>,
        is_empty: bool,
        now: Now,
    ) {
        let replica = expected!(self.replicas.get_mut(&id), "entries are applied to local replicas");
        let (latches, requests) = (&mut replica.latches, &mut self.pending_requests);
        let locks = match effect {
            Some(Effect::Locked(locks)) => Some(locks),
            _ => None,
        };
        match proposal {
            Some(Proposal { keeps_locks: false, locks, .. }) => requests.unlatch(latches.leave(locks)),
            // They are those of the transaction from here on.
            Some(proposal) if locks.is_some() => requests.unlatch(latches.kept(&proposal.locks)),
            Some(proposal) => requests.unlatch(latches.abandon(&proposal.locks)),
            None => {
                if let Some(locks) = locks.filter(|_| replica.holds_prepared) {
                    latches.hold(locks);
                }
            }
        }
        if let Some(Effect::Released(locks)) = effect
            && replica.holds_prepared
        {
            requests.unlatch(latches.abandon(locks));
        }
        if is_empty && replica.cohort.is_open() && !replica.holds_prepared {
            replica.state.held_locks().iter().for_each(|locks| latches.hold(locks));
            replica.holds_prepared = true;
            self.transactions.machine.applied(id, None, now.monotonic);
            return;
        }
        let decided = if let Some(Effect::Own(event)) = effect { event.decided() } else { None };
        if replica.holds_prepared && (decided.is_some() || locks.is_some()) {
            self.transactions.machine.applied(id, decided, now.monotonic);
        }
    }

    fn effect(&mut self, id: CohortId, effect: Effect) {
        self.pending_requests.wake();
        match effect {
            Effect::Own(KindEvent::Catalog(change)) => self.catalog_changed(&change),
            Effect::RangeSplit { child, members, range } => self.split_off(id, child, &members, range),
            Effect::RangeDropped => self.rows_dropped(id),
            Effect::LossDeclared => self.loss_declared(id),
            // A log unit's effects were handled above.
            Effect::RangeFounded | Effect::Elsewhere | Effect::Locked(_) | Effect::Released(_) | Effect::Own(_) => {}
        }
    }

    fn catalog_changed(&mut self, change: &Change) {
        self.cluster.on_apply(change);
        self.hosting.on_apply();
        self.configurations.has_work = true;
        self.drops.on_apply(change);
        self.splits.on_apply(change);
        self.moves.on_apply(change);
        self.logs.on_apply(change);
        let (ended, response) = match change {
            Change::TableDropped { table } => (table, CatalogResponse::TableDropped),
            Change::LogDropped { id } => (id, CatalogResponse::Log(LogResponse::Dropped)),
            Change::SplitEnded { child } => (child, CatalogResponse::RangeSplit { cohort: child.0 }),
            _ => return,
        };
        for id in self.pending_requests.change_ended(*ended) {
            self.complete(id, Ok(Response::of_catalog(response.clone())), None);
        }
    }

    /// An in-memory log declares that it may have lost acknowledged entries.
    fn loss_declared(&mut self, id: CohortId) {
        let Some(replica) = self.replicas.get(&id).filter(|replica| replica.cohort.leads()) else { return };
        self.counters.losses += 1;
        let Replica { table, range, .. } = replica;
        let (epoch, left) = (replica.cohort.promised().epoch, replica.cohort.last());
        self.actions.push(Action::Warn {
            what: format!(
                "possible data loss in table {table}, range {range} (cohort {id}): a majority of its replicas failed at \
                 the same time, so recently acknowledged writes may be lost; epoch {epoch} continues from entry {left}"
            ),
        });
    }

    /// The leader of a tablet without a range assigns its range once the epoch's barrier is applied. By then the state
    /// includes the commands of all earlier leaders (guarantee 19).
    fn assign_range(&mut self, id: CohortId, now: Now) {
        let replica = expected!(self.replicas.get_mut(&id), "only a local replica applies its barrier");
        let is_unfounded = replica.state.ownership() == Some(&Ownership::Unassigned);
        if is_unfounded
            && replica.cohort.is_open()
            && let Some(found) = registry::assign_range(replica.state.kind(), &replica.range)
        {
            replica.cohort.propose(found, now, &mut self.outgoing.outbox);
        }
    }

    /// The local copy of the catalog. Every node has a replica of it.
    pub(crate) fn catalog(&self) -> &Catalog {
        catalog_of(&self.replicas)
    }

    /// The catalog, if this node leads it and has applied all entries that earlier leaders committed.
    pub(crate) fn led_catalog(&self) -> Option<&Catalog> {
        self.replicas[&CohortId::CATALOG].cohort.is_open().then(|| self.catalog())
    }

    /// Proposes a command to a cohort if this node leads it, and otherwise drops it.
    pub(crate) fn propose(&mut self, id: CohortId, command: Bytes, now: Now) {
        self.with_cohort(id, now, |cohort, out| _ = cohort.propose(command, now, out));
    }

    /// Answers the requests of a cohort that this node does not lead any more. `outage` describes the replicas that
    /// are down, if that is the reason.
    pub(crate) fn lead_lost(&mut self, id: CohortId, outage: Option<&str>) {
        let unknown = outage.unwrap_or("the leader changed before the write was known to be committed");
        let replica = expected!(self.replicas.get_mut(&id), "only a local replica loses its lead");
        self.pending_requests.wake();
        for Proposal { pending, .. } in std::mem::take(&mut replica.proposed).into_values() {
            let failure = if planted(Bug::LostLeadMeansFailed) {
                Failure::Unavailable("this node no longer leads the cohort".to_owned())
            } else {
                Failure::Unknown(unknown.to_owned())
            };
            self.complete(pending, Err(failure), None);
        }
        self.forget_evaluations(id);
        // The authority to decide is lost with the lead.
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.holds_prepared = false;
            replica.read_locks.clear();
            replica.holds = Default::default();
            replica.drains_until = Monotonic(0);
            replica.latches.clear().for_each(|write| self.pending_requests.retry(write));
        }
        self.logs.units.forget(id);
        if id == CohortId::CATALOG {
            self.drops.lead_lost();
            // The new leader completes the changes but does not know the clients that wait here.
            for id in self.pending_requests.take_changes() {
                let unknown = "the leader changed before the change completed";
                self.complete(id, Err(Failure::Unknown(unknown.to_owned())), None);
            }
        }
        self.transfers.forget_cohort(id);
    }

    fn message(&mut self, from: NodeId, boot: Boot, message: Message, now: Now) {
        self.peer_contacted(from, boot, now);
        let Some(message) = self.current_only(from, message, now) else { return };
        match message {
            Message::Cohort { cohort, message } => {
                let lacks = matches!(&message, replication::Message::ProposeReply { reply: Reply::Missing(_), .. });
                // The sender may have been removed.
                let Some(sender) = self.cluster.member(from) else { return };
                if self.is_mute(cohort, now) {
                    return;
                }
                self.with_cohort(cohort, now, |cohort, out| cohort.message(sender, message, now, out));
                if lacks && self.is_probed(cohort, from) {
                    self.counters.memory_catch_ups += 1;
                }
            }
            Message::Beat { list, cohorts, sent, peer_clock } => {
                self.beat_received(from, list, cohorts, (sent, peer_clock), now);
            }
            Message::BeatAnswer { list, sent, at, beaten } => {
                self.beat_answered(from, list, (sent, at), beaten, now);
            }
            Message::CompareClocks { sent, interval } => self.clock_asked(from, sent, interval, now),
            Message::ClockReply { sent, asked, interval } => self.clock_replied(from, (sent, asked), interval, now),
            Message::Forward { cohort, request, patience, query } => {
                self.forwarded(from, cohort, request, patience, query, now);
            }
            Message::Answer { request, outcome } => self.answered(from, request, outcome),
            Message::NotLeader { request, cohort, leader } => self.not_leader(from, request, cohort, leader),
            Message::ElsewhereNow { request } => self.redirected(from, request, now),
            Message::StateChunk { cohort, epoch, state, timestamp, index, last, part: content } => {
                let part = crate::transfer::Part { epoch, state, timestamp, index, last, content };
                self.part_received(from, cohort, part);
            }
            Message::StateReply { cohort, state, received, installed } => {
                self.chunk_acknowledged(from, cohort, state, received, installed, now);
            }
            Message::ToSequencer { log, sequencer, ask, request } => {
                self.sequencer_asked(log, sequencer, SequencerRequester { node: from, boot, ask }, request, now);
            }
            Message::FromSequencer { log, to, ask, reply } => self.sequencer_answered(log, to, ask, reply, now),
            Message::ToUnit { log, unit, source, request } => {
                self.unit_asked(unit, UnitReplyTo { node: from, boot, log, source }, request, now);
            }
            Message::FromUnit { log, to, source, reply } => self.unit_replied(log, to, source, reply),
            Message::DiskFull => self.peer_disk_full(from, now),
            Message::Suspected { log, epoch, suspect } => self.suspected(log, epoch, suspect, now),
            Message::UnitsInDoubt { units } => self.units_in_doubt(from, &units, now),
            Message::OfGenerations { .. } | Message::Generation { .. } => {}
        }
    }

    fn is_probed(&self, id: CohortId, peer: NodeId) -> bool {
        let Some(replica) = self.replicas.get(&id) else { return false };
        replica.cohort.catch_ups().any(|(node, how)| node == peer && matches!(how, CatchUp::Probe { .. }))
    }

    /// Records contact with a peer. A new process of the peer has forgotten the requests sent to the old one.
    pub(crate) fn peer_contacted(&mut self, from: NodeId, boot: Boot, now: Now) {
        // The peer may have been removed.
        let Some(peer) = self.cluster.peers.get_mut(&from) else { return };
        peer.last_contact = Some(now.monotonic);
        peer.silent = false;
        peer.is_rolled_back = false;
        self.logs.controller.message_received(from, boot);
        if boot <= peer.boot {
            return;
        }
        let restarted = peer.boot != Boot(0);
        peer.boot = boot;
        self.spreading.begin(now);
        self.beats.peer_restarted(from);
        self.clock_watch.forget_peer(from);
        self.hosting.generations.forget_peer(from);
        self.each_cohort(now, |cohort, _| cohort.peer_restarted(from));
        if restarted {
            self.peer_lost_requests(from);
        }
    }

    fn peer_connection(&mut self, node: NodeId, is_open: bool) {
        // The peer may have been removed.
        let Some(peer) = self.cluster.peers.get_mut(&node) else { return };
        peer.is_disconnected = !is_open;
        if is_open {
            self.clock_watch.hurry();
            self.pending_requests.wake();
        }
    }

    fn on_timer(&mut self, now: Now) {
        self.timer_at = Monotonic::NEVER;
        self.on_request_timer(now);
        self.on_replica_timer(now);
        self.on_beat_timer(now);
        self.on_clock_timer(now);
        self.on_log_timer(now);
        self.on_transfer_timer(now);
        self.on_transaction_timer(now);
        self.verify_in_background(now);
        self.on_spreading_timer(now);
    }

    fn on_replica_timer(&mut self, now: Now) {
        while let Some(id) = self.replicas.take_due(now.monotonic) {
            // The timer may belong to a replica that was removed.
            let Some(replica) = self.replicas.quietly(id) else { continue };
            self.mending.begin_verification(&replica.state, now);
            let (next, pause_ended) = (replica.next_moment(now.monotonic), replica.on_disk.end_pause(now.monotonic));
            if next > now.monotonic && !pause_ended {
                // The timer was postponed after it was queued.
                self.replicas.wake_at(id, next);
                continue;
            }
            self.with_cohort(id, now, |cohort, out| cohort.timer(now, out));
            self.add_candidates(id, now);
            self.housekeeping(id, now);
        }
    }

    fn set_timer(&mut self) {
        let timers = [
            self.pending_requests.next_timer(),
            self.replicas.next_timer(),
            self.beats.next_timer(),
            self.clock_watch.next_timer(),
            self.transfers.next_timer(),
            self.mending.next_timer(),
            self.spreading.next_timer(),
            self.transactions.next_timer(),
            self.logs.next_timer(),
            self.stop.next_timer(),
        ];
        let next = timers.into_iter().flatten().min().unwrap_or(Monotonic::NEVER);
        if next != self.timer_at {
            self.timer_at = next;
            self.actions.push(Action::SetTimer { at: next });
        }
    }

    #[must_use]
    pub fn me(&self) -> Member {
        self.cluster.me
    }

    /// Every known node of the cluster.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.cluster.members
    }

    /// Event counts since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The protocol and the state of every cohort on this node, for checkers.
    pub fn replicas(&self) -> impl Iterator<Item = (CohortId, &Cohort, &AnyMachine)> {
        self.replicas.iter().map(|(id, replica)| (*id, &replica.cohort, &replica.state))
    }

    /// The table that a local cohort stores a range of; empty if it stores none.
    #[must_use]
    pub fn table_of(&self, cohort: CohortId) -> &str {
        self.replicas.get(&cohort).map_or("", |replica| &replica.table)
    }

    /// Checks the invariants that hold between any two steps.
    ///
    /// # Panics
    /// If an invariant is violated.
    pub fn invariants(&self) {
        self.pending_requests.invariants();
        for (id, replica) in self.replicas.iter() {
            replica.cohort.invariants();
            assert!(
                self.has_ended() || replica.state.last_applied().sequence == replica.cohort.applied(),
                "cohort {id}"
            );
            let keeps = replica.cohort.keeps_proposals();
            assert!(replica.proposed.is_empty() || keeps, "only a leader has proposals");
            assert!(replica.latches.is_empty() || keeps, "only a leader holds latches");
        }
        self.replicas.invariants();
        assert!(self.outgoing.outbox.is_empty(), "every step drains the outbox");
    }
}

/// The local copy of the catalog, for callers that change other parts of the node meanwhile.
pub(crate) fn catalog_of(replicas: &Replicas) -> &Catalog {
    replicas[&CohortId::CATALOG].state.as_catalog().expect("cohort 1 is the catalog")
}

/// Whether `lsn` is newer than the last entry of a checkpoint or snapshot.
pub(crate) fn newer(lsn: Lsn, than: Option<Lsn>) -> bool {
    than.is_none_or(|than| lsn.sequence > than.sequence)
}

/// Maximum number of rounds in which components create work for each other.
const ROUNDS_MAX: u32 = 1_000;

/// Durability requirement of messages that wait for nothing.
pub(crate) const AT_ONCE: Durable = Durable { log: replication::WriteId(0), manifest: ManifestId(0) };
