//! Replacing projections: what whoever leads the catalogue does for the logs (CORFU, section 3.4).
//!
//! A client that gets no answer says whom it suspects. The leader knows from heartbeats which nodes are silent, and
//! begins a recovery without their units; it has the log go on with another sequencer if that one's process is gone. A
//! unit that is suspected again and again for seconds, though its node is heard of, is slow or full: it is left out,
//! too; and so is one that its own node says is in doubt for good ([`doubts`](super::doubts)). Where a chain has fewer
//! units than it should, new ones are named on other nodes, and the next recovery has them stand in it. What older
//! chains hold is copied to them ([`healing`](super::healing)).

use std::collections::{BTreeMap, BTreeSet};

use base::{CohortId, Duration, Member, Monotonic, NodeId, Now};
use sharedlog::client::Suspect;
use sharedlog::limits::STRIPE_WIDTH;
use sharedlog::recovery::{Action, Ended, Homes, Plan, Recovery, Timing, Verdict};
use sharedlog::{AskId, LogId, Position, Projection, ProjectionEpoch, SequencerId, UnitId, unit};
use tablets::request::{Failure, LogResponse, Outcome, Response};
use tablets::{Catalogue, CatalogueCommand, LogRecord};

use crate::logs::Asker;
use crate::logs::doubts::Doubts;
use crate::logs::hearing::{Lately, SILENT};
use crate::message::{Message, Query};
use crate::node::{AT_ONCE, Node};
use crate::pending::{Origin, Target};

/// Where every node is heard of, a log's projection is replaced no more often than this: to seal a log costs appends in
/// flight, and a unit that is slow comes to be no faster by it.
const PAUSE: Duration = Duration::from_millis(1_000);
/// The same where nothing keeps it from going on, and it only lacks copies.
const LONG_PAUSE: Duration = Duration::from_millis(3_000);
/// How long a proposed projection, or what is named of units, may take.
const PROPOSAL_PATIENCE: Duration = Duration::from_millis(2_000);
/// A unit of a node that is heard of is waited for so long, and for longer where that was too short lately
/// ([`hearing`](super::hearing)); one of a silent node isn't.
const PATIENCE: Duration = Duration::from_millis(1_000);

/// Between two looks at whether logs lack something.
const LOOK: Duration = Duration::from_millis(500);
/// A node that wasn't heard of for so long is gone, as far as logs are concerned that nobody uses just now.
pub(super) const GONE: Duration = Duration::from_millis(5_000);
/// A unit that is suspected so often in a row though its node is heard of, keeps its log from going on: ...
const BLAMED: u32 = 3;
/// ... each time so long after the time before, ...
const BLAMED_AGAIN: Duration = Duration::from_millis(1_000);
/// ... and no longer. A call that gets no answer says so at ever longer intervals, up to 4.2 s.
const BLAMED_WITHIN: Duration = Duration::from_millis(10_000);
/// For so long the log does without units of that node.
const BLAMED_FOR: Duration = Duration::from_millis(30_000);
/// The pause after a log was replaced, though who was suspected is heard of, is doubled so often at most: to 8 s. Where
/// all are slow it becomes no faster by it.
const DOUBLINGS_MAX: u32 = 3;

/// The projections that are being replaced.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    by_id: BTreeMap<LogId, Repair>,
    /// When the last one of a log began.
    began: BTreeMap<LogId, Monotonic>,
    /// When the catalogue was asked last to change a log's units.
    asked: BTreeMap<(LogId, Units), Monotonic>,
    /// How often one was replaced though who was suspected is heard of, or can't be done without.
    again: BTreeMap<LogId, Lately>,
    /// Nodes whose units keep a log from going on though they are heard of.
    blamed: BTreeMap<(LogId, NodeId), Blame>,
    /// Repairs in a row that nobody asked for, and that left a log as it was.
    in_vain: BTreeMap<LogId, (u32, Vec<UnitId>)>,
    /// Units that never answer again though their nodes live.
    pub(super) doubts: Doubts,
    pub(super) look_at: Monotonic,
}

/// What is to become of units that stand in no projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Units {
    Named,
    Forgotten,
}

/// How often a log's unit on a node was suspected in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Blame {
    times: u32,
    /// The last time.
    at: Monotonic,
}

impl Blame {
    fn note(&mut self, now: Monotonic) {
        let gone = now.since(self.at);
        let is_in_row = gone <= if self.times < BLAMED { BLAMED_WITHIN } else { BLAMED_FOR };
        if self.times == 0 || gone >= BLAMED_AGAIN {
            *self = Self { times: if is_in_row { self.times.saturating_add(1) } else { 1 }, at: now };
        }
    }

    fn counts(&self, now: Monotonic) -> bool {
        self.times >= BLAMED && now.since(self.at) <= BLAMED_FOR
    }
}

#[derive(Debug)]
struct Repair {
    machine: Recovery,
    /// Where the log's units are that it knows.
    homes: Homes,
    at: Monotonic,
}

impl Repairs {
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        self.by_id.values().map(|repair| repair.at).chain([self.look_at]).min()
    }
}

impl Node {
    /// A client machine here says who keeps its log from going on.
    pub(super) fn suspect(&mut self, log: LogId, epoch: ProjectionEpoch, suspect: Suspect, now: Now) {
        let leader = self.replicas.get(&CohortId::CATALOGUE).and_then(|replica| replica.cohort.leader());
        match leader {
            Some(leader) if leader == self.me.node => self.suspected(log, epoch, suspect, now),
            Some(leader) => self.send(leader, Message::Suspected { log, epoch, suspect }, AT_ONCE, None),
            // It will be suspected again.
            None => {}
        }
    }

    pub(super) fn leads_catalogue(&self) -> bool {
        self.replicas.get(&CohortId::CATALOGUE).is_some_and(|replica| replica.cohort.is_open())
    }

    /// Somebody says who keeps a log from going on.
    pub(crate) fn suspected(&mut self, id: LogId, epoch: ProjectionEpoch, suspect: Suspect, now: Now) {
        if !self.leads_catalogue() || self.logs.repairs.by_id.contains_key(&id) {
            return;
        }
        let Some((_, log)) = self.catalogue().and_then(|catalogue| catalogue.log_of(id)) else { return };
        if log.projection.epoch != epoch {
            return;
        }
        let log = log.clone();
        let (sequencer, again) = (log.projection.sequencer, self.logs.repairs.again.get(&id).copied());
        let pause = Duration(PAUSE.0 << again.unwrap_or_default().times(now.monotonic));
        let (is_gone, node) = match suspect {
            Suspect::Sequencer => (!self.is_process(sequencer, now), Some(sequencer.node)),
            Suspect::Unit(unit) => {
                (self.is_out(&log, unit, SILENT, now), log.member_of(unit).map(|member| member.node))
            }
            Suspect::Projection => (true, None),
        };
        let can_go = match suspect {
            // Where new entries go it is left out whatever it has.
            Suspect::Unit(unit) => {
                log.projection.last().units().any(|other| other == unit) || self.has_stand_ins(&log, unit, now)
            }
            Suspect::Sequencer | Suspect::Projection => true,
        };
        if is_gone && can_go {
            self.begin_repair(&log, now);
            return;
        }
        // One of whom nothing is heard just now, and who is waited for, would keep a recovery waiting, too, and all
        // that it has sealed.
        let Some(node) = node.filter(|node| !self.is_waited_for(*node, now)) else { return };
        let is_unit = matches!(suspect, Suspect::Unit(_));
        if is_unit {
            self.logs.repairs.blamed.entry((id, node)).or_default().note(now.monotonic);
        }
        let is_due = (!is_unit || self.is_blamed(id, node, now)) && self.had_pause(id, pause, now);
        if is_due && self.begin_repair(&log, now) {
            self.logs.repairs.again.entry(id).or_default().note(DOUBLINGS_MAX, now.monotonic);
        }
    }

    /// Whether each chain of a unit has another that isn't out.
    fn has_stand_ins(&self, log: &LogRecord, unit: UnitId, now: Now) -> bool {
        let is_in = |other: &&UnitId| **other != unit && !self.is_out(log, **other, SILENT, now);
        let mut chains = log.projection.extents.iter().flat_map(|extent| &extent.chains);
        chains.all(|chain| !chain.contains(&unit) || chain.iter().any(|other| is_in(&other)))
    }

    /// Whether a recovery of a log would wait for nobody who is silent.
    fn awaits_nobody(&self, log: &LogRecord, now: Now) -> bool {
        homes(log).of(log.projection.units()).all(|node| !self.is_waited_for(node, now))
    }

    fn had_pause(&self, log: LogId, pause: Duration, now: Now) -> bool {
        self.logs.repairs.began.get(&log).is_none_or(|began| now.monotonic.since(*began) > pause)
    }

    fn is_blamed(&self, log: LogId, node: NodeId, now: Now) -> bool {
        self.logs.repairs.blamed.get(&(log, node)).is_some_and(|blame| blame.counts(now.monotonic))
    }

    /// Whether a process runs, as far as is known here.
    fn is_process(&self, process: SequencerId, now: Now) -> bool {
        self.process_on(process.node, now) == Some(process)
    }

    /// The process of a node that was heard of just now.
    fn process_on(&self, node: NodeId, now: Now) -> Option<SequencerId> {
        if node == self.me.node {
            return Some(SequencerId { node, boot: self.boot });
        }
        let boot = self.peers.get(&node)?.boot;
        (self.is_heard(node, now) && boot.0 > 0).then_some(SequencerId { node, boot })
    }

    /// Replaces a projection, if that may come to an end, whoever wants it; whether it does.
    fn begin_repair(&mut self, log: &LogRecord, now: Now) -> bool {
        if !self.can_be_sealed(log, now) {
            return false;
        }
        let old = log.projection.clone();
        let homes = homes(log);
        let nodes: BTreeSet<NodeId> = homes.of(old.units()).chain([old.sequencer.node]).collect();
        let (heard, silent) = nodes.into_iter().partition(|node| self.is_heard(*node, now));
        self.take_for_gone(&silent);
        let is_out = |unit: &UnitId| self.is_out(log, *unit, SILENT, now) || self.is_slow(log, *unit, now);
        let leave_out: BTreeSet<UnitId> = old.units().into_iter().filter(is_out).collect();
        let leaving = self.leaving(log);
        let mut spares: Vec<UnitId> = log.spares().map(|(unit, _)| unit).collect();
        let awaited = self.awaited(log, now);
        spares.retain(|spare| !is_out(spare) && !leaving.contains(spare) && !awaited.contains(spare));
        let plan = Plan {
            sequencer: self.next_sequencer(log, now),
            leave_out,
            leaving,
            spares,
            homes: homes.clone(),
            lost: BTreeSet::new(),
            at_least: Position(0),
            stripes: log.stripes as usize,
            width: STRIPE_WIDTH,
            copies: self.copies(log),
        };
        let patience = Duration(PATIENCE.0 << self.doublings(&heard, now));
        let limit = Duration(Timing::default().limit.0 + 2 * (patience.0 - PATIENCE.0));
        let timing = Timing { patience, beginning: PATIENCE, limit, ..Timing::default() };
        let machine = Recovery::begin(old, plan, timing, now.monotonic);
        self.logs.repairs.began.insert(log.id, now.monotonic);
        self.logs.repairs.by_id.insert(log.id, Repair { machine, homes, at: Monotonic::NEVER });
        self.counters.log_repairs += 1;
        true
    }

    /// Units whose nodes are silent, and waited for.
    fn awaited(&self, log: &LogRecord, now: Now) -> BTreeSet<UnitId> {
        let units = log.units.iter().filter(|(_, member)| self.is_waited_for(member.node, now));
        units.map(|(unit, _)| *unit).collect()
    }

    /// Whether a log is to go on without a unit: its disk was replaced or its node has left, or that is silent, or says
    /// that the unit is in doubt.
    pub(super) fn is_out(&self, log: &LogRecord, unit: UnitId, silent: Duration, now: Now) -> bool {
        let is_silent = |member: Member| !self.is_heard_within(member.node, silent, now);
        !self.is_copy(log, unit) || log.member_of(unit).is_none_or(is_silent)
    }

    /// Whether a unit is a copy: its disk is one of the universe's, and it is not in doubt for good.
    pub(super) fn is_copy(&self, log: &LogRecord, unit: UnitId) -> bool {
        let is_there = |member: Member| self.catalogue().is_some_and(|catalogue| is_there(catalogue, member));
        !self.logs.repairs.doubts.has(unit) && log.member_of(unit).is_some_and(is_there)
    }

    /// Whether a unit keeps its log from going on, again and again, though its node is heard of.
    fn is_slow(&self, log: &LogRecord, unit: UnitId, now: Now) -> bool {
        log.member_of(unit).is_some_and(|member| self.is_blamed(log.id, member.node, now))
    }

    /// Copies of each position that a log should have, and can.
    pub(super) fn copies(&self, log: &LogRecord) -> usize {
        let nodes = self.catalogue().map_or(0, |catalogue| catalogue.staying().count());
        (log.copies as usize).min(nodes).max(1)
    }

    fn stays_and_is_heard(&self, member: Member, now: Now) -> bool {
        let stays = self.catalogue().is_some_and(|catalogue| catalogue.staying().any(|staying| staying == member));
        stays && self.is_heard(member.node, now) && !self.is_waited_for(member.node, now)
    }

    /// The sequencer goes on, if its process does; else it is one on a node that has a unit of the log, and doesn't
    /// lead the catalogue, if there is one: so that not everything is lost with one node.
    fn next_sequencer(&self, log: &LogRecord, now: Now) -> SequencerId {
        let old = log.projection.sequencer;
        if self.is_process(old, now) {
            return old;
        }
        let me = SequencerId { node: self.me.node, boot: self.boot };
        let nodes = log.units.iter().map(|(_, member)| *member).filter(|member| self.stays_and_is_heard(*member, now));
        let processes = nodes.filter_map(|member| self.process_on(member.node, now));
        processes.filter(|process| *process != me).min_by_key(|process| process.node).unwrap_or(me)
    }

    /// Carries out what recoveries want; whether there was anything.
    pub(super) fn run_repairs(&mut self, now: Now) -> bool {
        let mut wanted = Vec::new();
        for (id, repair) in &mut self.logs.repairs.by_id {
            let epoch = repair.machine.epoch();
            wanted.extend(repair.machine.take_actions().into_iter().map(|action| (*id, epoch, action)));
        }
        let is_any = !wanted.is_empty();
        for (id, epoch, action) in wanted {
            match action {
                Action::Ask { ask, unit, request } => {
                    self.ask_unit(id, Asker::Repair(epoch, ask), unit, request, now);
                }
                Action::Propose(projection) => self.propose_projection(id, epoch, projection, now),
                Action::SetTimer(at) => {
                    if let Some(repair) = self.logs.repairs.by_id.get_mut(&id) {
                        repair.at = at;
                    }
                }
                Action::Done(ended) => self.repair_ended(id, &ended, now),
            }
        }
        is_any
    }

    fn repair_ended(&mut self, id: LogId, ended: &Ended, now: Now) {
        if let Some(Repair { machine, homes, .. }) = self.logs.repairs.by_id.remove(&id)
            && let Ended::Installed(_) = ended
        {
            self.note_slow(&homes.of(machine.unanswered()).collect(), PATIENCE, now);
        }
    }

    fn propose_projection(&mut self, id: LogId, epoch: ProjectionEpoch, projection: Projection, now: Now) {
        let query = Query::Catalogue(CatalogueCommand::Project { projection: Box::new(projection) });
        let deadline = now.monotonic + PROPOSAL_PATIENCE;
        let origin = Origin::OfLog(id, Asker::Proposal(epoch));
        self.begin(origin, deadline, Target::Cohort(CohortId::CATALOGUE), query, now);
    }

    pub(super) fn proposal_answered(&mut self, id: LogId, epoch: ProjectionEpoch, outcome: Outcome, now: Now) {
        let Some(repair) = self.logs.repairs.by_id.get_mut(&id) else { return };
        let verdict = match outcome {
            Ok(Response::Log(LogResponse::Projected(newest))) => Verdict::Newest(*newest),
            Ok(Response::Log(LogResponse::UnitsGone(units))) => Verdict::UnitsGone(units),
            Err(Failure::Invalid(_)) => Verdict::Unfit,
            // It is proposed again.
            _ => return,
        };
        if repair.machine.epoch() == epoch {
            repair.machine.verdict(verdict, now.monotonic);
        }
    }

    pub(super) fn repair_answered(
        &mut self,
        id: LogId,
        epoch: ProjectionEpoch,
        ask: AskId,
        reply: unit::Reply,
        now: Now,
    ) {
        let Some(repair) = self.logs.repairs.by_id.get_mut(&id) else { return };
        if repair.machine.epoch() == epoch {
            repair.machine.answered(ask, reply, now.monotonic);
        }
    }

    pub(super) fn repair_timers(&mut self, now: Now) {
        let is_due = |(_, repair): &(&LogId, &Repair)| repair.at <= now.monotonic;
        let due: Vec<LogId> = self.logs.repairs.by_id.iter().filter(is_due).map(|(id, _)| *id).collect();
        for id in due {
            self.await_silent_no_more(id, now);
            if let Some(repair) = self.logs.repairs.by_id.get_mut(&id) {
                repair.at = Monotonic::NEVER;
                repair.machine.timer(now.monotonic);
            }
        }
        if self.logs.repairs.look_at <= now.monotonic {
            self.tell_doubts(now);
            self.check_logs(now);
        }
    }

    /// A recovery waits no longer for units whose nodes have come to be silent since it began.
    fn await_silent_no_more(&mut self, id: LogId, now: Now) {
        let Some(repair) = self.logs.repairs.by_id.get(&id) else { return };
        let mut silent = BTreeSet::from_iter(repair.machine.unanswered());
        silent.retain(|unit| repair.homes.of([*unit]).any(|node| !self.is_heard(node, now)));
        if !silent.is_empty() && self.leads_catalogue() {
            let nodes = repair.homes.of(silent.iter().copied()).collect();
            self.take_for_gone(&nodes);
            if let Some(repair) = self.logs.repairs.by_id.get_mut(&id) {
                repair.machine.await_no_more(&silent, now.monotonic);
            }
        }
    }

    /// A unit was made whole: it is to stand where it is needed.
    pub(super) fn repair_healed(&mut self, id: LogId, now: Now) {
        let Some((_, log)) = self.catalogue().and_then(|catalogue| catalogue.log_of(id)) else { return };
        let log = log.clone();
        // Else it is asked whether it is whole again, later.
        if self.leads_catalogue() && !self.logs.repairs.by_id.contains_key(&id) && self.awaits_nobody(&log, now) {
            self.begin_repair(&log, now);
        }
    }

    /// Now and then, and where the catalogue has changed: has the logs go on that lack something, without waiting for a
    /// client to meet with it.
    pub(crate) fn check_logs(&mut self, now: Now) {
        self.logs.repairs.look_at = now.monotonic + LOOK;
        if !self.leads_catalogue() {
            self.logs.repairs.doubts.clear();
            return self.stop_healing();
        }
        let mut logs: Vec<LogRecord> =
            self.catalogue().into_iter().flat_map(|catalogue| catalogue.logs()).map(|(_, log)| log.clone()).collect();
        self.logs.repairs.doubts.keep(&logs);
        self.logs.healings.keep(&logs);
        logs.sort_unstable_by_key(|log| log.id);
        let turn = self.logs.healings.turn(&logs);
        logs.rotate_left(turn);
        for log in logs {
            if !self.logs.repairs.by_id.contains_key(&log.id) {
                self.check_log(&log, now);
            }
        }
    }

    fn check_log(&mut self, log: &LogRecord, now: Now) {
        let leaving = self.leaving(log);
        // They count as copies no more, whether there is a projection without them yet or not.
        let going: BTreeSet<UnitId> = leaving.iter().copied().chain(self.logs.repairs.doubts.of(log)).collect();
        self.heal(log, &going, now);
        let sequencer = log.projection.sequencer;
        let is_replaced = self.process_on(sequencer.node, now).is_some_and(|process| process != sequencer);
        let wanted = self.wanted_homes(log, &going, now);
        let spares: BTreeSet<NodeId> = log
            .spares()
            .filter(|(unit, _)| !self.is_out(log, *unit, SILENT, now))
            .map(|(_, member)| member.node)
            .collect();
        let lacking: Vec<NodeId> = wanted.iter().copied().filter(|node| !spares.contains(node)).collect();
        if !lacking.is_empty() {
            let command = CatalogueCommand::AddUnits { log: log.id, nodes: lacking.clone() };
            self.change_units((log.id, Units::Named), command, now);
        }
        self.forget_spares(log, now);
        let has_news = !wanted.is_empty() && lacking.is_empty() || self.can_do_without(log, &leaving, now);
        if is_replaced && self.had_pause(log.id, PAUSE, now) {
            self.begin_repair(log, now);
        } else if has_news {
            if self.can_be_sealed(log, now) && self.awaits_nobody(log, now) {
                self.repair_lazily(log, now);
            }
        } else {
            self.logs.repairs.in_vain.remove(&log.id);
        }
    }

    /// Spares in doubt never come to stand in the log: the catalogue forgets them, and their nodes give them up.
    fn forget_spares(&mut self, log: &LogRecord, now: Now) {
        let spares = log.spares().map(|(unit, _)| unit);
        let units: Vec<UnitId> = spares.filter(|unit| self.logs.repairs.doubts.has(*unit)).collect();
        if !units.is_empty() {
            let command = CatalogueCommand::ForgetSpares { log: log.id, units };
            self.change_units((log.id, Units::Forgotten), command, now);
        }
    }

    /// The catalogue is to name units, or to forget some, unless it was asked to just now.
    fn change_units(&mut self, what: (LogId, Units), command: CatalogueCommand, now: Now) {
        let asked = self.logs.repairs.asked.get(&what);
        if asked.is_none_or(|asked| now.monotonic.since(*asked) > PROPOSAL_PATIENCE) {
            self.logs.repairs.asked.insert(what, now.monotonic);
            let deadline = now.monotonic + PROPOSAL_PATIENCE;
            let origin = Origin::OfLog(what.0, Asker::Nobody);
            self.begin(origin, deadline, Target::Cohort(CohortId::CATALOGUE), Query::Catalogue(command), now);
        }
    }

    /// Whether each chain that is written to has a unit that isn't out, on a node that was heard of just now. Where one
    /// has none a recovery comes to no end, and what it has sealed by then can't be read.
    fn can_be_sealed(&self, log: &LogRecord, now: Now) -> bool {
        let has_one = |chain: &Vec<UnitId>| chain.iter().any(|unit| !self.is_out(log, *unit, SILENT, now));
        log.projection.last().chains.iter().all(has_one)
    }

    /// Replaces a projection though the log can go on: ever more rarely, as long as nothing comes of it.
    fn repair_lazily(&mut self, log: &LogRecord, now: Now) {
        let units = log.projection.units();
        let (times, before) = self.logs.repairs.in_vain.get(&log.id).cloned().unwrap_or_default();
        let times = if before == units { times } else { 0 };
        let pause = if times == 0 { PAUSE } else { Duration(LONG_PAUSE.0 << times.min(5)) };
        if self.had_pause(log.id, pause, now) {
            self.logs.repairs.in_vain.insert(log.id, (times + 1, units));
            self.begin_repair(log, now);
        }
    }

    /// Units on nodes that are to leave.
    fn leaving(&self, log: &LogRecord) -> BTreeSet<UnitId> {
        let Some(catalogue) = self.catalogue() else { return BTreeSet::new() };
        let leaves = |member: Member| catalogue.leaving().any(|other| other == member);
        log.units.iter().filter(|(_, member)| leaves(*member)).map(|(unit, _)| *unit).collect()
    }

    /// Whether there is a unit that the log is to go on without, and can: if it is gone, each of its chains has
    /// another; if it leaves, as many as the chain should have.
    fn can_do_without(&self, log: &LogRecord, leaving: &BTreeSet<UnitId>, now: Now) -> bool {
        let units = log.projection.units();
        let out: BTreeSet<UnitId> = units.iter().copied().filter(|unit| self.is_out(log, *unit, GONE, now)).collect();
        let chains = || log.projection.extents.iter().flat_map(|extent| &extent.chains);
        let has_others = |unit: &UnitId, least: usize| {
            let stay = |chain: &Vec<UnitId>| {
                chain.iter().filter(|other| !out.contains(other) && !leaving.contains(other)).count()
            };
            chains().filter(|chain| chain.contains(unit)).all(|chain| stay(chain) >= least)
        };
        out.iter().any(|unit| has_others(unit, 1))
            || units.iter().any(|unit| leaving.contains(unit) && has_others(unit, self.copies(log)))
    }

    /// Nodes on which the newest extent's chains lack a unit: one for each unit that is missing, as far as there are
    /// any. Units that are to go count as missing.
    fn wanted_homes(&self, log: &LogRecord, going: &BTreeSet<UnitId>, now: Now) -> Vec<NodeId> {
        let Some(catalogue) = self.catalogue() else { return Vec::new() };
        let is_fit = |node: &NodeId| self.is_heard(*node, now) && !self.is_blamed(log.id, *node, now);
        let nodes: Vec<NodeId> = catalogue.staying().map(|member| member.node).filter(is_fit).collect();
        let on = |unit: &UnitId| log.member_of(*unit).map(|member| member.node);
        let mut wanted = Vec::new();
        for (turn, chain) in log.projection.last().chains.iter().enumerate() {
            let stay = chain.iter().filter(|unit| !going.contains(unit)).count();
            let taken: BTreeSet<NodeId> = chain.iter().filter(|unit| !going.contains(unit)).filter_map(on).collect();
            let free = nodes.iter().cycle().skip(turn).take(nodes.len()).filter(|node| !taken.contains(node));
            wanted.extend(free.take(self.copies(log).saturating_sub(stay)));
        }
        wanted
    }
}

/// Whether a node's disk is one of the universe's: it stays, or leaves and has not left.
fn is_there(catalogue: &Catalogue, member: Member) -> bool {
    catalogue.staying().chain(catalogue.leaving()).any(|other| other == member)
}

/// Where the units of a log are.
pub(super) fn homes(log: &LogRecord) -> Homes {
    log.units.iter().copied().collect()
}

#[cfg(test)]
mod tests;
