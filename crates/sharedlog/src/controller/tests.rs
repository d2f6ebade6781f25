//! Tests of a single controller: which recoveries it starts, and with which units.

use base::Incarnation;

use super::*;
use crate::client::Suspect;
use crate::recovery::Recovery;
use crate::{Extent, unit::Reply, unit::Report};

const LOG: LogId = LogId(1);
const STEP: u64 = 50;

fn member(node: u32) -> Member {
    Member { node: NodeId(node), incarnation: Incarnation(1) }
}

fn sealed(epoch: u64, tail: u64) -> Reply {
    let (sealed, tail) = (ProjectionEpoch(epoch), Position(tail));
    Reply::Sealed(Report { sealed, tail, trimmed: Position(0), damaged: 0, whole: Vec::new() })
}

/// A log with one chain of units 1, 2 and 3 on nodes 1, 2 and 3, and a fourth node. The controller runs on node 4, the
/// sequencer on node 1.
struct Harness {
    controller: Controller,
    cluster: ClusterState,
    now: Monotonic,
    /// Processes that send a heartbeat every 50 ms, by node.
    alive: BTreeMap<u32, u64>,
}

impl Harness {
    fn new() -> Self {
        let sequencer = SequencerId { node: NodeId(1), boot: Boot(1) };
        let chain = [1, 2, 3].map(UnitId);
        let projection = Projection {
            log: LOG,
            epoch: ProjectionEpoch(1),
            sequencer,
            start: Position(0),
            newest_unit: UnitId(3),
            extents: vec![Extent::new(Position(0), 1, vec![chain.to_vec()])],
        };
        let log = LogState {
            projection,
            stripes: 1,
            width: 1,
            copies: 3,
            units: chain.into_iter().map(|unit| (unit, member(unit.0 as u32))).collect(),
            lost: BTreeSet::new(),
            at_least: Position(0),
        };
        let cluster = ClusterState {
            staying: (1..=4).map(member).collect(),
            leaving: Vec::new(),
            logs: BTreeMap::from([(LOG, Arc::new(log))]),
        };
        let me = SequencerId { node: NodeId(4), boot: Boot(1) };
        let mut harness = Self {
            controller: Controller::new(me, Config::default()),
            cluster,
            now: Monotonic(1),
            alive: [1, 2, 3].map(|node| (node, 1)).into(),
        };
        harness.pass(STEP);
        harness.controller.observe(harness.cluster.clone(), harness.now);
        harness
    }

    fn log(&mut self) -> &mut LogState {
        Arc::make_mut(self.cluster.logs.get_mut(&LOG).expect("the log exists"))
    }

    /// Advances the time while the process runs and receives heartbeats.
    fn pass(&mut self, millis: u64) {
        for _ in 0..millis / STEP {
            self.now = self.now + Duration::from_millis(STEP);
            self.controller.awake(self.now);
            self.alive.iter().for_each(|(node, boot)| self.controller.message_received(NodeId(*node), Boot(*boot)));
            if self.controller.next_timer().is_some_and(|at| at <= self.now) {
                self.controller.timer(self.now);
            }
        }
    }

    fn suspect(&mut self, suspect: Suspect) {
        let epoch = self.log().projection.epoch;
        self.controller.suspected(LOG, epoch, suspect, self.now);
    }

    /// Whether a suspicion of unit 2, after its node was silent for `millis`, starts a recovery. Another controller
    /// then replaces the projection.
    fn is_left_out_after(&mut self, millis: u64) -> bool {
        let before = self.controller.counters().reconfigurations;
        let boot = self.alive.remove(&2).expect("the node was alive");
        self.pass(millis);
        self.suspect(Suspect::Unit(UnitId(2)));
        self.alive.insert(2, boot);
        for action in self.controller.take_actions() {
            if let Action::Ask { log, requester, ask, .. } = action {
                self.controller.answered(log, requester, ask, sealed(99, 0), self.now);
            }
        }
        assert!(self.recovery().is_none());
        if self.controller.counters().reconfigurations > before {
            self.log().projection.epoch.0 += 1;
            self.controller.observe(self.cluster.clone(), self.now);
        }
        self.pass(STEP);
        self.controller.counters().reconfigurations > before
    }

    fn recovery(&self) -> Option<&Recovery> {
        self.controller.recoveries().next()
    }

    /// Checks the logs and returns the requests to the registry.
    fn observe(&mut self) -> Vec<Action> {
        self.controller.take_actions();
        self.controller.observe(self.cluster.clone(), self.now);
        let is_naming = |action: &Action| matches!(action, Action::AddUnits { .. } | Action::ForgetSpares { .. });
        self.controller.take_actions().into_iter().filter(is_naming).collect()
    }

    /// The units reply to the seals as if they held every position below `tail`. Returns the projection that is then
    /// proposed.
    fn seal(&mut self, units: &[u64], tail: u64) -> Option<Projection> {
        for action in self.controller.take_actions() {
            if let Action::Ask { log, requester, ask, unit, .. } = action
                && units.contains(&unit.0)
            {
                let sealed = ProjectionEpoch(self.log().projection.epoch.0);
                let report =
                    Report { sealed, tail: Position(tail), trimmed: Position(0), damaged: 0, whole: Vec::new() };
                self.controller.answered(log, requester, ask, Reply::Sealed(report), self.now);
            }
        }
        self.pass(1_500);
        self.controller.take_actions().into_iter().find_map(|action| match action {
            Action::Propose(projection) => Some(projection),
            _ => None,
        })
    }

    fn install(&mut self, projection: Projection) {
        let units = projection.units();
        self.controller.verdict(LOG, projection.epoch, ProposalOutcome::Newest(projection.clone()), self.now);
        let log = self.log();
        log.units.0.retain(|unit, _| units.contains(unit));
        log.projection = projection;
    }
}

#[test]
fn silent_node_is_removed_at_once() {
    let mut harness = Harness::new();
    harness.pass(1_000);
    harness.suspect(Suspect::Unit(UnitId(2)));
    assert!(harness.recovery().is_none(), "the node sends heartbeats");
    harness.alive.remove(&2);
    harness.pass(300);
    harness.suspect(Suspect::Unit(UnitId(2)));
    assert!(harness.recovery().is_some());
    let next = harness.seal(&[1, 3], 7).expect("the other units suffice");
    assert_eq!((next.epoch, next.start, next.units()), (ProjectionEpoch(2), Position(7), vec![UnitId(1), UnitId(3)]));
    assert_eq!(next.sequencer.node, NodeId(1), "the sequencer stays");
    harness.install(next);
    assert!(harness.recovery().is_none());
    assert_eq!(harness.observe(), [Action::AddUnits { log: LOG, nodes: vec![NodeId(4)] }]);
    assert_eq!(harness.observe(), [], "a recent request is pending");
    let lacking = UnderReplication { log: LOG, copies: 2, wanted: 3 };
    assert_eq!((harness.controller.under_replicated(), harness.controller.out_of_reach()), (vec![lacking], vec![]));
    // The new unit joins the next projection.
    harness.log().units.0.insert(UnitId(4), member(4));
    harness.pass(4_000);
    harness.observe();
    assert!(harness.recovery().is_some());
}

#[test]
fn false_suspicion_extends_timeout() {
    let mut harness = Harness::new();
    assert!(!harness.is_left_out_after(150), "a heartbeat was late");
    assert!(harness.is_left_out_after(400));
    assert!(!harness.is_left_out_after(400));
    assert!(harness.is_left_out_after(800));
    assert!(harness.is_left_out_after(1_500));
    assert!(!harness.is_left_out_after(1_900));
    assert!(harness.is_left_out_after(2_000), "regardless of false suspicions");
}

/// An overdue node may be dead although it is not suspected yet. It must not block anything: it neither triggers a
/// recovery nor becomes the sequencer.
#[test]
fn overdue_node_is_neither_slow_nor_sequencer() {
    let mut harness = Harness::new();
    assert!(harness.is_left_out_after(400));
    let before = harness.controller.counters().reconfigurations;
    harness.alive.remove(&2);
    harness.pass(300);
    for _ in 0..9 {
        harness.suspect(Suspect::Unit(UnitId(2)));
    }
    assert_eq!(harness.controller.counters().reconfigurations, before);
    harness.alive.insert(2, 1);
    harness.pass(STEP);
    harness.alive.retain(|node, _| *node == 3);
    harness.pass(300);
    harness.suspect(Suspect::Sequencer);
    let next = harness.seal(&[3], 7).expect("the other nodes become silent meanwhile");
    assert_eq!((next.sequencer.node, next.units()), (NodeId(3), vec![UnitId(3)]));
}

#[test]
fn slow_unit_is_removed() {
    let mut harness = Harness::new();
    for _ in 0..3 {
        assert!(harness.recovery().is_none());
        harness.pass(1_100);
        harness.suspect(Suspect::Unit(UnitId(2)));
    }
    assert!(harness.recovery().is_some());
    let next = harness.seal(&[1, 2, 3], 7).expect("all are sealed");
    assert_eq!(next.units(), [1, 3].map(UnitId));
    harness.install(next);
    assert_eq!(
        harness.observe(),
        [Action::AddUnits { log: LOG, nodes: vec![NodeId(4)] }],
        "the slow node gets no new unit"
    );
}

/// The unit was alive but too slow to seal: the next recovery waits longer for it.
#[test]
fn late_unit_gets_longer_seal_timeout() {
    let mut harness = Harness::new();
    harness.suspect(Suspect::Projection);
    let next = harness.seal(&[1, 3], 7).expect("the other units suffice after a second");
    assert_eq!(next.units(), [1, 3].map(UnitId));
    harness.controller.verdict(LOG, next.epoch, ProposalOutcome::Newest(next.clone()), harness.now);
    harness.suspect(Suspect::Projection);
    assert!(harness.recovery().is_none(), "the registry's view is outdated");
    harness.log().projection.epoch = next.epoch;
    harness.observe();
    harness.suspect(Suspect::Projection);
    assert_eq!(harness.seal(&[1, 3], 7), None, "waits for two seconds");
    harness.pass(1_000);
    assert!(harness.controller.take_actions().iter().any(|action| matches!(action, Action::Propose(_))));
}

/// No projection can follow while one chain has no unit that answers, so no unit is sealed.
#[test]
fn unrecoverable_log_is_not_sealed() {
    let mut harness = Harness::new();
    harness.log().projection.extents[0].chains = vec![vec![UnitId(1), UnitId(2)], vec![UnitId(3)]];
    harness.log().stripes = 2;
    harness.observe();
    harness.alive.remove(&3);
    harness.pass(400);
    harness.suspect(Suspect::Unit(UnitId(3)));
    harness.suspect(Suspect::Projection);
    harness.pass(6_000);
    harness.observe();
    assert!(harness.recovery().is_none());
    assert_eq!(harness.controller.out_of_reach(), [LOG]);
    harness.log().lost.insert(UnitId(3));
    harness.observe();
    assert!(harness.recovery().is_some(), "an operator declared the unit lost");
}

#[test]
fn doubt_reports_cover_own_units_only() {
    let mut harness = Harness::new();
    harness.controller.units_in_doubt(member(1), &[UnitId(2), UnitId(999)]);
    harness.controller.units_in_doubt(Member { incarnation: Incarnation(9), ..member(2) }, &[UnitId(2)]);
    let many: Vec<UnitId> = (0..UNITS_IN_DOUBT_MAX as u64).map(|number| UnitId(1_000 + number)).collect();
    harness.controller.units_in_doubt(member(2), &[many, vec![UnitId(2)]].concat());
    assert!(harness.controller.in_doubt.is_empty(), "too many units in one report");
    assert!(harness.controller.units_in_doubt(member(2), &[UnitId(2), UnitId(999), UnitId(2)]));
    assert!(!harness.controller.units_in_doubt(member(2), &[UnitId(2)]), "already reported");
    assert_eq!((harness.controller.counters().units_in_doubt, harness.controller.in_doubt.len()), (1, 1));
    assert_eq!(harness.controller.under_replicated(), [UnderReplication { log: LOG, copies: 2, wanted: 3 }]);
    let named = Action::AddUnits { log: LOG, nodes: vec![NodeId(2)] };
    assert_eq!(harness.observe(), [named], "a live unit is not reported");
    harness.log().units.0.remove(&UnitId(2));
    harness.observe();
    assert!(harness.controller.in_doubt.is_empty(), "the catalog no longer names the unit");
}

#[test]
fn doubtful_spare_is_forgotten() {
    let mut harness = Harness::new();
    harness.log().units.0.insert(UnitId(4), member(4));
    assert_eq!(harness.observe(), []);
    harness.controller.units_in_doubt(member(4), &[UnitId(4)]);
    assert_eq!(harness.observe(), [Action::ForgetSpares { log: LOG, units: vec![UnitId(4)] }]);
}

#[test]
fn replaces_units_of_leaving_node_first() {
    let mut harness = Harness::new();
    harness.cluster.staying.retain(|member| member.node != NodeId(3));
    harness.cluster.leaving.push(member(3));
    assert_eq!(harness.observe(), [Action::AddUnits { log: LOG, nodes: vec![NodeId(4)] }]);
    harness.log().units.0.insert(UnitId(4), member(4));
    harness.pass(2_000);
    harness.observe();
    let recovery = harness.recovery().expect("a spare exists");
    assert_eq!(recovery.epoch(), ProjectionEpoch(1));
}

/// Replacements that change nothing become less frequent.
#[test]
fn ineffective_replacement_backs_off() {
    let mut harness = Harness::new();
    harness.log().copies = 4;
    harness.log().units.0.insert(UnitId(4), member(4));
    let mut begun = Vec::new();
    for second in 0..120 {
        harness.observe();
        harness.pass(1_000);
        if harness.controller.counters().reconfigurations > begun.len() as u64 {
            begun.push(second);
        }
    }
    assert!((4..=8).contains(&begun.len()), "{begun:?}");
    assert!(begun.windows(3).all(|of| of[2] - of[1] >= of[1] - of[0]), "{begun:?}");
}

/// The driver decides whether another controller leads.
#[test]
fn non_leader_controller_is_idle() {
    let mut harness = Harness::new();
    harness.controller.step_down();
    harness.suspect(Suspect::Projection);
    harness.controller.units_in_doubt(member(2), &[UnitId(2)]);
    assert!(
        !harness.controller.leads() && harness.recovery().is_none() && harness.controller.take_actions().is_empty()
    );
    assert_eq!((harness.controller.under_replicated(), harness.controller.out_of_reach()), (vec![], vec![]));
}

#[test]
fn restarted_sequencer_is_replaced() {
    let mut harness = Harness::new();
    harness.pass(2_000);
    harness.alive.insert(1, 2);
    harness.observe();
    assert!(harness.recovery().is_none());
    harness.pass(STEP);
    harness.controller.observe(harness.cluster.clone(), harness.now);
    let next = harness.seal(&[1, 2, 3], 7).expect("the projection is replaced");
    assert_eq!(next.sequencer, SequencerId { node: NodeId(1), boot: Boot(2) });
}
