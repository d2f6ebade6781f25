use base::{Boot, Duration, Monotonic};
use sharedlog::UnitId;
use sharedlog::client::Suspect;
use tablets::LogRecord;
use tablets::request::{LogRequest, Request};

use super::{Awake, Hearing, Lately, MEMORY};
use crate::testing::Universe;

const BOOT: Boot = Boot(7);

/// A peer, and the clock of the node that hears it.
struct Bed {
    peer: Hearing,
    awake: Awake,
    now: Monotonic,
}

impl Bed {
    fn new() -> Self {
        let mut bed = Self { peer: Hearing::default(), awake: Awake::default(), now: Monotonic(1) };
        bed.awake.event(bed.now);
        bed
    }

    /// Time goes by, with an event each 50 ms.
    fn pass(&mut self, millis: u64) {
        for _ in 0..millis / 50 {
            self.sleep(50);
        }
    }

    fn sleep(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        self.awake.event(self.now);
    }

    fn hear(&mut self, boot: Boot, is_new: bool) {
        self.peer.heard(boot, is_new, self.awake, self.now);
    }

    fn is_heard(&self) -> bool {
        self.peer.is_within(Duration::ZERO, self.awake, self.now)
    }

    /// For how long it is waited for, to 50 ms.
    fn patience(&mut self) -> u64 {
        self.hear(BOOT, false);
        (1..)
            .find(|_| {
                self.pass(50);
                !self.is_heard()
            })
            .expect("not for ever")
            * 50
    }
}

#[test]
fn who_was_never_heard_of_is_silent() {
    let mut bed = Bed::new();
    assert!(!bed.is_heard());
    bed.hear(BOOT, true);
    assert!(bed.is_heard());
    assert_eq!(bed.patience(), 250);
}

#[test]
fn each_mistake_doubles_patience_until_it_is_forgotten() {
    let mut bed = Bed::new();
    bed.hear(BOOT, true);
    for patience in [250, 500, 1_000, 2_000, 2_000] {
        assert_eq!(bed.patience(), patience);
        bed.peer.given_up = Some(BOOT);
    }
    bed.hear(BOOT, false);
    for patience in [1_000, 500, 250] {
        bed.sleep(MEMORY.0 / 1_000_000);
        assert_eq!(bed.patience(), patience);
    }
}

/// It was gone, and its successor has done nothing yet.
#[test]
fn a_process_that_ended_was_given_up_rightly() {
    let mut bed = Bed::new();
    bed.hear(BOOT, true);
    bed.peer.given_up = Some(BOOT);
    bed.hear(Boot(8), true);
    assert_eq!(bed.patience(), 250);
}

#[test]
fn silence_counts_while_the_node_is_awake() {
    let mut bed = Bed::new();
    bed.hear(BOOT, true);
    bed.pass(100);
    bed.sleep(10_000);
    assert!(bed.is_heard(), "its messages were not taken");
    bed.pass(50);
    assert!(!bed.is_heard());
}

#[test]
fn what_happened_often_is_forgotten_one_by_one() {
    let mut lately = Lately::default();
    let at = |seconds: u64| Monotonic(0) + Duration::from_millis(seconds * 1_000);
    assert_eq!(lately.times(at(1_000)), 0);
    for _ in 0..5 {
        lately.note(3, at(1_000));
    }
    let times = |lately: Lately| [1_000, 1_029, 1_030, 1_060, 1_090, 9_999].map(|second| lately.times(at(second)));
    assert_eq!(times(lately), [3, 3, 2, 1, 0, 0]);
    lately.note(3, at(1_061));
    assert_eq!(lately.times(at(1_061)), 2);
}

/// Three nodes with a log that has a unit on each, and the place of who leads the catalogue.
fn universe() -> (Universe, usize) {
    let mut universe = Universe::start();
    universe.pass(Duration::from_millis(5_000));
    let create = LogRequest::Create { name: "l".into(), stripes: 1, copies: 3 };
    universe.nodes[0].ask(1, Request::Log(create));
    universe.pass(Duration::from_millis(3_000));
    let leader = universe.nodes.iter().position(|bench| bench.node.leads_catalogue());
    (universe, leader.expect("somebody does"))
}

fn log(universe: &Universe, leader: usize) -> LogRecord {
    let catalogue = universe.nodes[leader].node.catalogue().expect("it leads it");
    catalogue.log("l").expect("it was created").clone()
}

/// The unit of the node after the leader, and that node.
fn unit_after(universe: &Universe, leader: usize) -> (UnitId, base::NodeId) {
    let node = universe.nodes[(leader + 1) % 3].node.me().node;
    let units = log(universe, leader).units;
    units.iter().find(|(_, member)| member.node == node).map(|(unit, _)| (*unit, node)).expect("each has one")
}

/// Has the node after the leader be silent for so long, and somebody suspect its unit then; whether the log goes on
/// with it.
fn is_kept(universe: &mut Universe, leader: usize, silence: u64) -> bool {
    let (unit, node) = unit_after(universe, leader);
    universe.cut_off = Some(node);
    universe.pass(Duration::from_millis(silence));
    let before = log(universe, leader).projection;
    let bench = &mut universe.nodes[leader];
    bench.node.suspected(before.log, before.epoch, Suspect::Unit(unit), bench.now);
    universe.cut_off = None;
    universe.pass(Duration::from_millis(10_000));
    let after = log(universe, leader);
    assert_eq!(after.projection.units().len(), 3, "it has all its copies again");
    after.member_of(unit).is_some()
}

#[test]
fn a_node_that_was_left_out_by_mistake_is_waited_for_longer() {
    let (mut universe, leader) = universe();
    assert!(is_kept(&mut universe, leader, 150), "a heartbeat was late");
    assert!(!is_kept(&mut universe, leader, 400), "it seems to be gone");
    assert!(is_kept(&mut universe, leader, 400), "it was not");
    assert!(!is_kept(&mut universe, leader, 800));
}

/// However often it was taken for gone by mistake.
#[test]
fn a_node_that_is_gone_is_left_out_in_time() {
    let (mut universe, leader) = universe();
    for silence in [400, 800, 1_500] {
        assert!(!is_kept(&mut universe, leader, silence));
    }
    let (unit, node) = unit_after(&universe, leader);
    let epoch = log(&universe, leader).projection.epoch;
    universe.cut_off = Some(node);
    let mut left_out_after = None;
    for at in (0..4_000).step_by(100) {
        universe.pass(Duration::from_millis(100));
        let bench = &mut universe.nodes[leader];
        let id = bench.node.catalogue().and_then(|catalogue| catalogue.log("l")).expect("it is there").id;
        bench.node.suspected(id, epoch, Suspect::Unit(unit), bench.now);
        if log(&universe, leader).member_of(unit).is_none() {
            left_out_after.get_or_insert(at);
        }
    }
    assert!(left_out_after.is_some_and(|after| (1_500..2_500).contains(&after)), "{left_out_after:?}");
}

/// One moment that many logs meet with is one mistake.
#[test]
fn what_several_logs_meet_with_counts_once() {
    let (mut universe, leader) = universe();
    let (_, node) = unit_after(&universe, leader);
    let bench = &mut universe.nodes[leader];
    let (nodes, pause) = (std::collections::BTreeSet::from([node]), Duration::from_millis(1_000));
    (0..9).for_each(|_| bench.node.note_slow(&nodes, pause, bench.now));
    assert_eq!(bench.node.doublings(&nodes, bench.now), 1);
}

/// Its own pause says nothing of the others.
#[test]
fn a_leader_that_stood_still_leaves_nobody_out() {
    let (mut universe, leader) = universe();
    let (unit, _) = unit_after(&universe, leader);
    let before = log(&universe, leader).projection;
    let bench = &mut universe.nodes[leader];
    // What had come meanwhile is taken only afterwards.
    bench.now.monotonic = bench.now.monotonic + Duration::from_millis(400);
    bench.step(crate::contract::Event::Timer);
    let (now, node) = (bench.now, &mut bench.node);
    node.suspected(before.log, before.epoch, Suspect::Unit(unit), now);
    universe.pass(Duration::from_millis(5_000));
    let leader = universe.nodes.iter().position(|bench| bench.node.leads_catalogue()).expect("somebody does");
    assert!(log(&universe, leader).member_of(unit).is_some());
}
