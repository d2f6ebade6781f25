//! Shared logs on a node (guarantee 20): hosts the machines of the crate `sharedlog` and carries their messages.
//!
//! For each log in use on this node there is a client machine, which serves appends and reads from this node's
//! endpoints. If the newest projection of the log names this process, there is also a sequencer. Log units are
//! replicas, as tablets are, of cohorts with a single member, and have messages of their own ([`units`]). Projections
//! come from this node's copy of the catalog. The controller on the node of the catalog's leader replaces them
//! ([`reconfiguration`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::canary::{Bug, planted};
use base::{Boot, Duration, Monotonic, NodeId, Now};
use catalog::{CatalogCommand, CatalogRequest, Change};
use sharedlog::client::{self, Client, Timing, Token};
use sharedlog::controller::{self, Controller};
use sharedlog::follower::{self, Follower};
use sharedlog::hole_fill::HoleFill;
use sharedlog::sequencer::{self, Sequencer};
use sharedlog::{AskId, ClientId, LogId, Projection, ProjectionEpoch, RequestSource, SequencerId, unit};

use crate::message::{Message, Query};
use crate::node::{AT_ONCE, Node};
use crate::request::Outcome;
use crate::timers::Timers;

mod calls;
mod feeds;
mod hole_fill;
mod parked_reads;
mod reading;
mod reconfiguration;
mod units;

use calls::Call;
pub(crate) use units::UnitReplyTo;
use units::Units;

/// How long a request to a sequencer is kept until the catalog names this process. The client retransmits it earlier.
const ASK_PATIENCE: Duration = Duration::from_millis(2_000);
/// Maximum number of such requests.
const EARLY_MAX: usize = 1_024;

/// The destination of a sequencer's reply. It includes the boot, because the next process on that node reuses request
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SequencerRequester {
    pub(crate) node: NodeId,
    pub(crate) boot: Boot,
    pub(crate) ask: AskId,
}

/// A request to a sequencer that this node's copy of the catalog does not name yet.
#[derive(Debug)]
struct Early {
    at: Monotonic,
    log: LogId,
    sequencer: SequencerId,
    requester: SequencerRequester,
    request: sequencer::Request,
}

/// The shared logs of this node.
#[derive(Debug)]
pub(crate) struct Logs {
    by_id: BTreeMap<LogId, Log>,
    /// Logs with machines that may have actions.
    touched: BTreeSet<LogId>,
    timers: Timers<LogId>,
    /// Replies of units to machines of this node.
    replies: VecDeque<(LogId, RequestSource, unit::Reply)>,
    /// The catalog's answers to proposals of the controller.
    verdicts: VecDeque<(LogId, ProjectionEpoch, Outcome)>,
    /// The catalog has changed projections.
    pub(crate) has_work: bool,
    /// Requests to a sequencer that the catalog does not name yet.
    early: VecDeque<Early>,
    pub(crate) units: Units,
    pub(crate) controller: Controller,
    /// When to check next whether logs lack copies.
    check_at: Monotonic,
}

/// A log in use on this node.
#[derive(Debug)]
struct Log {
    client: Client,
    client_at: Monotonic,
    follower: Follower,
    follower_at: Monotonic,
    calls: BTreeMap<Token, Call>,
    last_token: Token,
    sequencer: Option<Sequencer<SequencerRequester>>,
    sequencer_at: Monotonic,
    hole_fill: Option<HoleFill>,
    hole_fill_at: Monotonic,
    /// The newest epoch for which this process started a sequencer: it starts at most one for each epoch.
    begun: ProjectionEpoch,
}

impl Logs {
    pub(crate) fn new(me: SequencerId) -> Self {
        Self {
            by_id: BTreeMap::new(),
            touched: BTreeSet::new(),
            timers: Timers::default(),
            replies: VecDeque::new(),
            verdicts: VecDeque::new(),
            has_work: false,
            early: VecDeque::new(),
            units: Units::default(),
            controller: Controller::new(me, controller::Config::default()),
            check_at: Monotonic(0),
        }
    }

    pub(crate) fn on_apply(&mut self, change: &Change) {
        self.has_work |= matches!(change, Change::LogProjected { .. } | Change::LogDropped { .. });
    }

    /// The earliest timer of any machine.
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        let of_others = [self.controller.next_timer(), Some(self.check_at), self.units.next_timer()];
        self.timers.next_due().into_iter().chain(of_others.into_iter().flatten()).min()
    }

    /// The catalog has answered a command of the controller.
    pub(crate) fn command_answered(&mut self, log: LogId, epoch: Option<ProjectionEpoch>, outcome: Outcome) {
        self.verdicts.extend(epoch.map(|epoch| (log, epoch, outcome)));
    }
}

impl Node {
    /// Carries out the actions of the logs' machines until there are none; returns whether there were any.
    pub(crate) fn run_logs(&mut self, now: Now) -> bool {
        self.retry_unit_calls(now);
        let mut had_work = false;
        loop {
            if std::mem::take(&mut self.logs.has_work) {
                self.learn_projections(now);
            } else if let Some((log, source, reply)) = self.logs.replies.pop_front() {
                self.unit_answered(log, source, reply, now);
            } else if let Some((log, epoch, outcome)) = self.logs.verdicts.pop_front() {
                self.proposal_answered(log, epoch, outcome, now);
            } else if let Some(id) = self.logs.touched.pop_first() {
                self.run_log(id, now);
            } else if !self.run_controller(now) && !self.run_feeds(now) {
                return had_work;
            }
            had_work = true;
        }
    }

    fn run_log(&mut self, id: LogId, now: Now) {
        let Some(log) = self.logs.by_id.get_mut(&id) else { return };
        let followed = log.follower.take_actions();
        let asked = log.client.take_actions();
        let given = log.sequencer.as_mut().map(Sequencer::take_actions).unwrap_or_default();
        let epoch = log.begun;
        for action in followed {
            self.follower_wants(id, action, now);
        }
        for action in asked {
            self.client_wants(id, action, now);
        }
        for action in given {
            self.sequencer_wants(id, epoch, action, now);
        }
        self.run_hole_fill(id, now);
        if let Some(log) = self.logs.by_id.get(&id) {
            self.logs.timers.set(id, log.client_at.min(log.follower_at).min(log.sequencer_at).min(log.hole_fill_at));
        }
    }

    fn client_wants(&mut self, id: LogId, action: client::Action, now: Now) {
        match action {
            client::Action::AskUnit { ask, unit, request } => {
                self.ask_unit(id, RequestSource::Client(ask), unit, request, now);
            }
            client::Action::AskSequencer { ask, sequencer, request } => {
                let requester = SequencerRequester { node: self.cluster.me.node, boot: self.cluster.boot, ask };
                if sequencer.node == self.cluster.me.node {
                    self.sequencer_asked(id, sequencer, requester, request, now);
                } else {
                    self.send(sequencer.node, Message::ToSequencer { log: id, sequencer, ask, request }, AT_ONCE, None);
                }
            }
            client::Action::Fetch => self.show_projection(id, now),
            client::Action::Suspect { epoch, suspect } => self.suspect(id, epoch, suspect, now),
            client::Action::SetTimer(at) => {
                if let Some(log) = self.logs.by_id.get_mut(&id) {
                    log.client_at = at;
                }
            }
            client::Action::Done { token, outcome } => self.log_call_done(id, token, outcome, now),
        }
    }

    fn follower_wants(&mut self, id: LogId, action: follower::Action, now: Now) {
        match action {
            follower::Action::Ask { ask, unit, request } => {
                self.ask_unit(id, RequestSource::Follower(ask), unit, request, now);
            }
            follower::Action::Done { token, answer } => self.log_call_done(id, token, Ok(answer), now),
            follower::Action::Read { token, wanted, deadline } => {
                if let Some(log) = self.touch_log(id) {
                    log.client.read_many(token, wanted, deadline, now.monotonic);
                }
            }
            follower::Action::Fill(position) => {
                let deadline = now.monotonic + hole_fill::TIMEOUT;
                self.call(id, Call::FillGap, |client, token| client.fill(token, position, deadline, now.monotonic));
            }
            follower::Action::SetTimer(at) => {
                if let Some(log) = self.logs.by_id.get_mut(&id) {
                    log.follower_at = at;
                }
            }
        }
    }

    fn sequencer_wants(
        &mut self,
        id: LogId,
        epoch: ProjectionEpoch,
        action: sequencer::Action<SequencerRequester>,
        now: Now,
    ) {
        match action {
            sequencer::Action::Ask { ask, unit, request } => {
                self.ask_unit(id, RequestSource::Sequencer(epoch, ask), unit, request, now);
            }
            sequencer::Action::Reply { requester, reply } => self.reply_to_requester(id, requester, reply, now),
            sequencer::Action::SetTimer(at) => {
                if let Some(log) = self.logs.by_id.get_mut(&id) {
                    log.sequencer_at = at;
                }
            }
        }
    }

    fn reply_to_requester(&mut self, id: LogId, requester: SequencerRequester, reply: sequencer::Reply, now: Now) {
        let SequencerRequester { node, boot, ask } = requester;
        if node == self.cluster.me.node {
            self.sequencer_answered(id, boot, ask, reply, now);
        } else {
            self.send(node, Message::FromSequencer { log: id, to: boot, ask, reply }, AT_ONCE, None);
        }
    }

    /// A unit has replied to a machine of this node.
    fn unit_answered(&mut self, id: LogId, source: RequestSource, reply: unit::Reply, now: Now) {
        match source {
            RequestSource::Client(ask) => {
                let Some(log) = self.touch_log(id) else { return };
                log.client.unit_answered(ask, reply, now.monotonic);
            }
            RequestSource::Follower(ask) => {
                let Some(log) = self.touch_log(id) else { return };
                log.follower.answered(ask, reply, now.monotonic);
            }
            RequestSource::Sequencer(epoch, ask) => {
                let Some(log) = self.touch_log(id) else { return };
                if let Some(sequencer) = log.sequencer.as_mut().filter(|sequencer| sequencer.epoch() == epoch) {
                    sequencer.answered(ask, &reply, now.monotonic);
                }
            }
            RequestSource::Controller(requester, ask) => {
                self.logs.controller.answered(id, requester, ask, reply, now.monotonic);
            }
            RequestSource::HoleFill(epoch, ask) => {
                if let Some(fill) = self.hole_fill(id, epoch) {
                    fill.answered(ask, reply, now.monotonic);
                }
            }
        }
    }

    fn touch_log(&mut self, id: LogId) -> Option<&mut Log> {
        self.logs.touched.insert(id);
        self.logs.by_id.get_mut(&id)
    }

    /// A request to the sequencer, which should be this process.
    pub(crate) fn sequencer_asked(
        &mut self,
        id: LogId,
        sequencer: SequencerId,
        requester: SequencerRequester,
        request: sequencer::Request,
        now: Now,
    ) {
        let me = self.cluster.sequencer();
        let (sequencer::Request::Positions { epoch, .. } | sequencer::Request::Tail { epoch }) = request;
        let begun = self.logs.by_id.get(&id).map(|log| log.begun).unwrap_or_default();
        if sequencer == me && epoch > begun {
            // This node's copy of the catalog is behind.
            let at = now.monotonic;
            self.logs.early.retain(|early| at.since(early.at) < ASK_PATIENCE);
            if self.logs.early.len() < EARLY_MAX {
                self.logs.early.push_back(Early { at, log: id, sequencer, requester, request });
            }
            return;
        }
        let is_ours = |log: &Log| sequencer == me && log.sequencer.is_some();
        if self.logs.by_id.get(&id).is_some_and(is_ours)
            && let Some(log) = self.touch_log(id)
        {
            let Some(sequencer) = &mut log.sequencer else { return };
            return sequencer.asked(requester, request, now.monotonic);
        }
        let newest = self.catalog().log_of(id).map(|(_, log)| log.projection.epoch);
        let reply = sequencer::Reply::Refused { newest: newest.unwrap_or_default() };
        self.reply_to_requester(id, requester, reply, now);
    }

    /// A sequencer has answered a process of this node.
    pub(crate) fn sequencer_answered(&mut self, id: LogId, to: Boot, ask: AskId, reply: sequencer::Reply, now: Now) {
        if to != self.cluster.boot && !planted(Bug::AnswerToFormerProcess) {
            return;
        }
        if let Some(log) = self.touch_log(id) {
            log.client.sequencer_answered(ask, reply, now.monotonic);
        }
    }

    /// Runs the machines with expired timers.
    pub(crate) fn on_log_timer(&mut self, now: Now) {
        while let Some(id) = self.logs.timers.take_due(now.monotonic) {
            let Some(log) = self.touch_log(id) else { continue };
            if log.client_at <= now.monotonic {
                log.client_at = Monotonic::NEVER;
                log.client.timer(now.monotonic);
            }
            if log.follower_at <= now.monotonic {
                log.follower_at = Monotonic::NEVER;
                log.follower.timer(now.monotonic);
            }
            if log.sequencer_at <= now.monotonic {
                log.sequencer_at = Monotonic::NEVER;
                if let Some(sequencer) = &mut log.sequencer {
                    sequencer.timer(now.monotonic);
                }
            }
            if log.hole_fill_at <= now.monotonic {
                log.hole_fill_at = Monotonic::NEVER;
                if let Some(fill) = &mut log.hole_fill {
                    fill.timer(now.monotonic);
                }
            }
        }
        self.await_timers(now);
        self.controller_timers(now);
    }

    /// Applies changed projections of this node's copy of the catalog.
    fn learn_projections(&mut self, now: Now) {
        self.forget_dropped_logs();
        let me = self.cluster.sequencer();
        let catalog = self.catalog();
        let mut newest: Vec<Projection> = Vec::new();
        for (_, log) in catalog.logs() {
            let known = self.logs.by_id.get(&log.id);
            let (epoch, is_ours) = (log.projection.epoch, log.projection.sequencer == me);
            let is_used = known.is_some() || is_ours;
            let is_known = known.is_some_and(|known| {
                let knows = known.client.known().is_some_and(|projection| projection.epoch >= epoch);
                knows && (known.begun >= epoch || !is_ours && known.sequencer.is_none())
            });
            if is_used && !is_known {
                newest.push(log.projection.clone());
            }
        }
        for projection in newest {
            let id = projection.log;
            self.use_log(id);
            let Some(log) = self.touch_log(id) else { continue };
            log.follower.projected(&projection, now.monotonic);
            log.client.projected(projection.clone(), now.monotonic);
            self.begin_sequencer(&projection, now);
        }
        self.pending_requests.wake();
        self.assign_own_stripes(now);
        self.check_logs(now);
    }

    /// Ends the machines of logs that were dropped, and their calls.
    fn forget_dropped_logs(&mut self) {
        let there: BTreeSet<LogId> = self.catalog().logs().map(|(_, log)| log.id).collect();
        for (id, log) in self.logs.by_id.extract_if(.., |id, _| !there.contains(id)).collect::<Vec<_>>() {
            self.logs.touched.remove(&id);
            for pending in log.calls.values().filter_map(Call::request) {
                self.log_dropped_under(pending);
            }
        }
    }

    /// Starts the machines of a log on this node.
    fn use_log(&mut self, id: LogId) {
        let client = ClientId::of_process(self.cluster.me.node, self.cluster.boot);
        let seed = self.config.seed ^ id.0.rotate_left(32) ^ self.cluster.boot.0;
        self.logs.by_id.entry(id).or_insert_with(|| Log {
            client: Client::new(client, Timing::default(), seed),
            client_at: Monotonic::NEVER,
            follower: Follower::default(),
            follower_at: Monotonic::NEVER,
            calls: BTreeMap::new(),
            last_token: Token(0),
            sequencer: None,
            sequencer_at: Monotonic::NEVER,
            hole_fill: None,
            hole_fill_at: Monotonic::NEVER,
            begun: ProjectionEpoch(0),
        });
    }

    /// Starts the sequencer that a projection names, if it is this process, and ends the previous one.
    fn begin_sequencer(&mut self, projection: &Projection, now: Now) {
        let me = self.cluster.sequencer();
        let id = projection.log;
        let Some(log) = self.logs.by_id.get_mut(&id) else { return };
        if let Some(old) = &mut log.sequencer {
            old.superseded(projection.epoch);
        }
        // Send its last replies.
        self.run_log(id, now);
        let Some(log) = self.logs.by_id.get_mut(&id) else { return };
        (log.sequencer, log.sequencer_at) = (None, Monotonic::NEVER);
        (log.hole_fill, log.hole_fill_at) = (None, Monotonic::NEVER);
        if projection.epoch > log.begun {
            log.sequencer = Sequencer::begin(projection, me);
            let begin = |_: &Sequencer<SequencerRequester>| {
                HoleFill::begin(projection.clone(), hole_fill::CONFIG, now.monotonic)
            };
            log.hole_fill = log.sequencer.as_ref().map(begin);
            log.begun = projection.epoch;
        }
        for early in std::mem::take(&mut self.logs.early) {
            if early.log == id {
                self.sequencer_asked(id, early.sequencer, early.requester, early.request, now);
            } else {
                self.logs.early.push_back(early);
            }
        }
    }

    /// Gives a client machine the newest known projection.
    fn show_projection(&mut self, id: LogId, now: Now) {
        let newest = self.catalog().log_of(id).map(|(_, log)| log.projection.clone());
        if let (Some(newest), Some(log)) = (newest, self.touch_log(id)) {
            log.follower.projected(&newest, now.monotonic);
            log.client.projected(newest, now.monotonic);
        }
    }

    /// The command that drops a log.
    pub(crate) fn drop_log(name: String, force: bool) -> Query {
        Query::Machine(CatalogRequest::Change(CatalogCommand::BeginLogDrop { name, force }).into())
    }

    /// The command that creates a log with this process as its first sequencer.
    pub(crate) fn create_log(&self, name: String, stripes: u32, copies: u32) -> Query {
        let sequencer = self.cluster.sequencer();
        let create = CatalogCommand::CreateLog { name, stripes, copies, sequencer };
        Query::Machine(CatalogRequest::Change(create).into())
    }
}

#[cfg(test)]
mod tests;
