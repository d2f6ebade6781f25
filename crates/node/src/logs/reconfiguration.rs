//! Drives the shared logs' reconfiguration controller ([`sharedlog::controller`]), which leads on the node of the
//! catalog's leader, and reports the units of this node that are in doubt.
//!
//! A replica that may have lost acknowledged entries with its disk is in doubt until it has caught up with other
//! members of its cohort. A unit's cohort has a single member, so its doubt never ends and it does not open. Only its
//! own node knows this. The node reports it to the catalog's leader as long as the catalog names the unit. Once the
//! unit is replaced and no longer named, its node drops the replica.

use std::sync::Arc;

use base::{CohortId, Duration, NodeId, Now, counted};
use catalog::{Catalog, CatalogCommand, CatalogRequest, LogRecord};
use sharedlog::client::{ReadMany, Suspect, Wait};
use sharedlog::controller::{Action, ClusterState, LogState, UNITS_IN_DOUBT_MAX};
use sharedlog::limits::{BATCH_BYTES_MAX, STRIPE_WIDTH};
use sharedlog::recovery::ProposalOutcome;
use sharedlog::request::LogResponse;
use sharedlog::validate::{COORDINATION_COPIES, COORDINATION_LOG};
use sharedlog::{LogId, Position, ProjectionEpoch, RequestSource, UnitId};
use state_machine::Failure;

use crate::logs::calls::Call;
use crate::message::{Message, Query};
use crate::node::{AT_ONCE, Node};
use crate::registry::Response;
use crate::replica::Replica;
use crate::request::Outcome;
use crate::request_table::{ReplyTo, Target};

/// Interval of the check whether logs lack copies.
const CHECK: Duration = Duration::from_millis(500);
/// How long the catalog may take for a command.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(2_000);
/// Timeout of one read of a copier.
const READ_TIMEOUT: Duration = Duration::from_millis(2_000);
/// Maximum number of logs listed by name in the status.
const NAMED_MAX: usize = 8;

impl Node {
    fn leader_of_catalog(&self) -> Option<NodeId> {
        self.replicas[&CohortId::CATALOG].cohort.leader()
    }

    /// Reports a suspect of a client machine on this node to the leader. Without a leader, the machine reports it again
    /// later.
    pub(super) fn suspect(&mut self, log: LogId, epoch: ProjectionEpoch, suspect: Suspect, now: Now) {
        match self.leader_of_catalog() {
            Some(leader) if leader == self.cluster.me.node => self.suspected(log, epoch, suspect, now),
            Some(leader) => self.send(leader, Message::Suspected { log, epoch, suspect }, AT_ONCE, None),
            None => {}
        }
    }

    /// Handles a suspect reported by a client machine of any node.
    pub(crate) fn suspected(&mut self, log: LogId, epoch: ProjectionEpoch, suspect: Suspect, now: Now) {
        if self.leads_logs(now) {
            self.logs.controller.suspected(log, epoch, suspect, now.monotonic);
        }
    }

    /// Handles a node's report of its units in doubt.
    pub(crate) fn units_in_doubt(&mut self, from: NodeId, units: &[UnitId], now: Now) {
        if let Some(member) = self.cluster.member(from)
            && self.leads_logs(now)
            && self.logs.controller.units_in_doubt(member, units)
        {
            self.logs.check_at = now.monotonic;
        }
    }

    /// Whether the controller of this node leads. Leadership of the catalog may have just moved here.
    fn leads_logs(&mut self, now: Now) -> bool {
        if self.led_catalog().is_some() != self.logs.controller.leads() {
            self.check_logs(now);
        }
        self.logs.controller.leads()
    }

    /// Checks the logs at intervals, and when the catalog has changed.
    pub(super) fn check_logs(&mut self, now: Now) {
        self.logs.check_at = now.monotonic + CHECK;
        match self.led_catalog() {
            Some(catalog) => {
                let cluster = ClusterState {
                    staying: catalog.staying().collect(),
                    leaving: catalog.leaving().collect(),
                    logs: repaired_logs(catalog).map(|(name, log)| (log.id, Arc::new(state_of(name, log)))).collect(),
                };
                self.logs.controller.observe(cluster, now.monotonic);
            }
            None => self.logs.controller.step_down(),
        }
    }

    pub(super) fn controller_timers(&mut self, now: Now) {
        if self.logs.controller.next_timer().is_some_and(|at| at <= now.monotonic) {
            self.logs.controller.timer(now.monotonic);
        }
        if self.logs.check_at <= now.monotonic {
            self.report_units_in_doubt(now);
            self.check_logs(now);
        }
    }

    /// Carries out the controller's actions. Returns whether there were any.
    pub(super) fn run_controller(&mut self, now: Now) -> bool {
        let actions = self.logs.controller.take_actions();
        let is_any = !actions.is_empty();
        for action in actions {
            match action {
                Action::Ask { log, requester, ask, unit, request } => {
                    self.ask_unit(log, RequestSource::Controller(requester, ask), unit, request, now);
                }
                Action::Read { log, copier, run } => {
                    self.use_log(log);
                    self.show_projection(log, now);
                    let deadline = now.monotonic + READ_TIMEOUT;
                    let wanted = ReadMany { run, wait: Wait::Each(Duration::ZERO), bytes: BATCH_BYTES_MAX };
                    self.call(log, Call::Copied(copier, run), |client, token| {
                        client.read_many(token, wanted, deadline, now.monotonic);
                    });
                }
                Action::Propose(projection) => {
                    let (log, epoch) = (projection.log, projection.epoch);
                    self.command(log, Some(epoch), CatalogCommand::Project { projection: Box::new(projection) }, now);
                }
                Action::AddUnits { log, nodes } => {
                    self.command(log, None, CatalogCommand::AddUnits { log, nodes }, now);
                }
                Action::ForgetSpares { log, units } => {
                    self.command(log, None, CatalogCommand::ForgetSpares { log, units }, now);
                }
            }
        }
        let done = self.logs.controller.counters();
        self.counters.log_repairs = done.reconfigurations;
        self.counters.log_healings = done.copiers;
        self.counters.log_units_lost = done.units_in_doubt;
        is_any
    }

    fn command(&mut self, log: LogId, epoch: Option<ProjectionEpoch>, command: CatalogCommand, now: Now) {
        let (deadline, query) =
            (now.monotonic + COMMAND_TIMEOUT, Query::Machine(CatalogRequest::Change(command).into()));
        self.begin(ReplyTo::Controller(log, epoch), deadline, Target::Cohort(CohortId::CATALOG), query, now);
    }

    pub(super) fn proposal_answered(&mut self, id: LogId, epoch: ProjectionEpoch, outcome: Outcome, now: Now) {
        let verdict = match outcome {
            Ok(Response::Log(LogResponse::Projected(newest))) => ProposalOutcome::Newest(*newest),
            Ok(Response::Log(LogResponse::UnitsGone(units))) => ProposalOutcome::UnitsGone(units),
            Err(Failure::Invalid(_)) => ProposalOutcome::Unfit,
            // The controller proposes it again.
            _ => return,
        };
        self.logs.controller.verdict(id, epoch, verdict, now.monotonic);
    }

    fn report_units_in_doubt(&mut self, now: Now) {
        let units: Vec<UnitId> = self.own_units_in_doubt().take(UNITS_IN_DOUBT_MAX).collect();
        match self.leader_of_catalog().filter(|_| !units.is_empty()) {
            Some(leader) if leader == self.cluster.me.node => self.units_in_doubt(leader, &units, now),
            Some(leader) => self.send(leader, Message::UnitsInDoubt { units }, AT_ONCE, None),
            None => {}
        }
    }

    /// The units of this node that are in doubt, and that the catalog names.
    fn own_units_in_doubt(&self) -> impl Iterator<Item = UnitId> {
        let catalog = self.catalog();
        let is_dead = |replica: &Replica| replica.state.as_unit().is_some() && replica.cohort.is_in_doubt();
        let dead = self.replicas.iter().filter(move |(_, replica)| is_dead(replica));
        dead.filter_map(move |(cohort, _)| Some(catalog.unit_of(*cohort)?.0))
    }

    /// Reports logs that lack copies although there are nodes for them.
    pub(crate) fn under_replicated_logs(&self) -> Vec<String> {
        let lacking = self.logs.controller.under_replicated().into_iter().map(|lacking| {
            let (copies, wanted) = (lacking.copies, lacking.wanted);
            (lacking.log, format!("is under-replicated: some positions have {copies} of {wanted} copies"))
        });
        self.name_logs(lacking.collect(), "under-replicated")
    }

    /// Reports logs that are partly unavailable.
    pub(crate) fn logs_out_of_reach(&self) -> Vec<String> {
        let missing = self.logs.controller.out_of_reach().into_iter();
        let missing = missing.map(|log| (log, "is unavailable: some positions have no live copy".to_owned()));
        self.name_logs(missing.collect(), "unavailable")
    }

    fn name_logs(&self, logs: Vec<(LogId, String)>, what: &str) -> Vec<String> {
        let more = logs.len().saturating_sub(NAMED_MAX);
        let name = |log| self.catalog().log_of(log).map(|(name, _)| name);
        let named = logs.into_iter().take(NAMED_MAX);
        let named = named.filter_map(|(log, what)| Some(format!("log {} {what}", name(log)?)));
        named.chain((more > 0).then(|| format!("{}: {what}", counted(more as u64, "further log")))).collect()
    }
}

/// The logs that are repaired: all but those being dropped.
fn repaired_logs(catalog: &Catalog) -> impl Iterator<Item = (&str, &LogRecord)> {
    catalog.logs().filter(|(_, log)| !log.is_dropping)
}

/// No user chooses the number of copies of the coordination log, so it increases as nodes join. The controller limits
/// it to the number of nodes.
fn state_of(name: &str, log: &LogRecord) -> LogState {
    let copies = if name == COORDINATION_LOG { COORDINATION_COPIES } else { log.copies };
    LogState {
        projection: log.projection.clone(),
        stripes: log.stripes as usize,
        width: STRIPE_WIDTH,
        copies: copies as usize,
        units: log.units.iter().copied().collect(),
        lost: std::collections::BTreeSet::new(),
        at_least: Position(0),
    }
}

#[cfg(test)]
mod tests;
