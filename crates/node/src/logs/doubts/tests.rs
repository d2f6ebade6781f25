use base::{Boot, Duration};
use bytes::Bytes;
use sharedlog::limits::BATCH_BYTES_MAX;
use sharedlog::recovery::healings;
use sharedlog::{Batch, Position};
use tablets::request::{Content, LogRequest, LogResponse, Request, Response};

use super::*;
use crate::contract::RequestId;
use crate::logs::repairs::homes;
use crate::testing::{Bench, Universe, empty};

const SECOND: Duration = Duration::from_millis(1_000);

impl Universe {
    /// With a log of so many stripes, each of two copies, and an append in each.
    fn with_log(stripes: u32) -> Self {
        let mut universe = Self::start();
        universe.pass(SECOND);
        universe.asked(1, LogRequest::Create { name: "l".into(), stripes, copies: 2 });
        universe.pass(SECOND);
        (0..u64::from(stripes)).for_each(|at| assert_eq!(universe.append(10 + at), at));
        universe
    }

    /// Asks the first node.
    fn asked(&mut self, number: u64, request: LogRequest) -> LogResponse {
        self.nodes[0].ask(number, Request::Log(request));
        self.pass(SECOND);
        match self.nodes[0].answers.remove(&RequestId(number)) {
            Some(Ok(Response::Log(response))) => response,
            other => panic!("{other:?}"),
        }
    }

    fn append(&mut self, number: u64) -> u64 {
        let batch = Batch::of(&[Bytes::from(number.to_string())]).expect("it is small");
        match self.asked(number, LogRequest::Append { log: "l".into(), batch, stamp: None, since: None }) {
            LogResponse::Appended(position) => position.0,
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, number: u64, at: u64) -> Bytes {
        let read = LogRequest::Read {
            log: "l".into(),
            from: Position(at),
            count: 1,
            wait: Duration::ZERO,
            bytes: BATCH_BYTES_MAX,
        };
        let LogResponse::Entries(entries) = self.asked(number, read) else { panic!("it is a read") };
        let Content::Data(data) = &entries[0].content else { panic!("{entries:?}") };
        data.batch.records().expect("its own bytes")[0].clone()
    }

    fn log(&self) -> LogRecord {
        let log = self.nodes[0].node.catalogue().and_then(|catalogue| catalogue.log("l"));
        log.expect("it was created").clone()
    }

    /// The process of a node ends, its log is damaged behind what it holds, and it starts again.
    fn damage(&mut self, node: u32) {
        self.restart(node, |_| true);
        self.nodes[node as usize - 1].node.doubt_unknown = true;
    }

    /// The process of a node ends, and it starts again with some cohorts in doubt.
    fn restart(&mut self, node: u32, doubts: impl Fn(CohortId) -> bool) {
        let bench = &self.nodes[node as usize - 1];
        let mut recovered = empty(node, 3);
        recovered.boot = Boot(bench.node.boot.0 + 1);
        recovered.records = bench.appended.clone();
        recovered.cohorts = bench.manifests.last().expect("promises were made").0.clone();
        recovered.cohorts.iter_mut().for_each(|(id, cohort)| cohort.doubtful |= doubts(*id));
        self.nodes[node as usize - 1] = Bench::start(recovered);
    }

    /// The catalogue names a unit for the log there.
    fn name_on(&mut self, node: u32) {
        let command = tablets::CatalogueCommand::AddUnits { log: self.log().id, nodes: vec![NodeId(node)] };
        let leader = self.leader_of_catalogue();
        let bench = &mut self.nodes[leader.0 as usize - 1];
        let catalogue = bench.node.replicas.get_mut(&CohortId::CATALOGUE).expect("every node has one");
        catalogue.cohort.propose(command.encode(), bench.now, &mut bench.node.outgoing.outbox);
        bench.node.drain(CohortId::CATALOGUE, bench.now);
        self.pass(SECOND);
    }

    fn leader_of_catalogue(&self) -> NodeId {
        let leader = self.nodes.iter().find(|bench| bench.node.leads_catalogue());
        leader.expect("somebody leads it").node.me().node
    }
}

fn on(log: &LogRecord, node: u32) -> Vec<UnitId> {
    let own = log.units.iter().filter(|(_, member)| member.node == NodeId(node));
    own.map(|(unit, _)| *unit).collect()
}

/// Nobody uses the log meanwhile.
#[test]
fn units_in_doubt_are_replaced_and_given_up() {
    let mut universe = Universe::with_log(3);
    let before = universe.log();
    // Whoever leads the catalogue says it to itself.
    let leader = universe.leader_of_catalogue();
    for node in [leader.0, 1 + leader.0 % 3] {
        let lost = on(&universe.log(), node);
        assert_eq!(lost.len(), 2, "one of each chain but one");
        universe.damage(node);
        universe.pass(Duration(20 * SECOND.0));
        let log = universe.log();
        let units = log.projection.units();
        assert!(lost.iter().all(|unit| !units.contains(unit) && log.member_of(*unit).is_none()), "{log:?}");
        assert!(log.projection.last().chains.iter().all(|chain| chain.len() == 2), "{log:?}");
        assert_eq!(healings(&log.projection, 2, &homes(&log), &BTreeSet::new()), [], "older chains are whole, too");
        let damaged = &universe.nodes[node as usize - 1].node;
        let gone = |unit: &UnitId| damaged.replicas().all(|(id, ..)| Some(id) != tablets::catalogue::cohort_of(*unit));
        assert!(lost.iter().all(gone), "their replicas take no room any more");
        assert_eq!(damaged.own_doubts().count(), 0);
    }
    assert!(universe.log().projection.newest_unit > before.projection.newest_unit);
    for at in 0..3 {
        assert_eq!(universe.read(30 + at, at), Bytes::from((10 + at).to_string()));
    }
    assert!(universe.append(40) >= 3);
}

/// It was named for a log that came to need it no more, and then its node's log was damaged.
#[test]
fn a_spare_in_doubt_is_forgotten() {
    let mut universe = Universe::with_log(1);
    let before = universe.log();
    let free = (1..=3).find(|node| on(&before, *node).is_empty()).expect("two of three have a unit");
    universe.name_on(free);
    let named = universe.log();
    let [spare] = on(&named, free)[..] else { panic!("{named:?}") };
    universe.pass(Duration(5 * SECOND.0));
    assert_eq!(universe.log(), named, "a sound one may be of use later");
    universe.damage(free);
    universe.pass(Duration(20 * SECOND.0));
    assert_eq!(universe.log(), before, "the log needs no other");
    let damaged = &universe.nodes[free as usize - 1].node;
    assert!(damaged.replicas().all(|(id, ..)| Some(id) != tablets::catalogue::cohort_of(spare)));
    assert_eq!(damaged.own_doubts().count(), 0);
}

/// There may be somebody who can mend its disk.
#[test]
fn the_last_copy_is_not_given_up() {
    let mut universe = Universe::with_log(1);
    let chain = universe.log().projection.last().chains[0].clone();
    for unit in &chain {
        let node = universe.log().member_of(*unit).expect("it stands").node;
        universe.restart(node.0, |id| Some(id) == tablets::catalogue::cohort_of(*unit));
    }
    universe.pass(Duration(20 * SECOND.0));
    assert_eq!(universe.log().projection.units(), chain);
}

/// Nothing can follow a projection while one of its chains has no unit that answers. So its other chains are not
/// sealed, and can be read, though one of them has a unit that should be replaced.
#[test]
fn a_sound_chain_is_read_while_another_has_no_unit() {
    let mut universe = Universe::with_log(2);
    let before = universe.log();
    let [first, second] = &before.projection.last().chains[..] else { panic!("{before:?}") };
    let doubted: BTreeSet<UnitId> = first.iter().copied().chain(second.first().copied()).collect();
    let leader = universe.leader_of_catalogue();
    let bench = &mut universe.nodes[leader.0 as usize - 1];
    for unit in doubted {
        let home = before.member_of(unit).expect("it stands").node;
        bench.node.doubts_told(home, &[unit], bench.now);
    }
    universe.pass(Duration(20 * SECOND.0));
    assert_eq!(universe.log().projection, before.projection);
    assert_eq!(universe.read(30, 1), Bytes::from("11"));
}

#[test]
fn a_node_is_believed_of_its_own_units_alone() {
    let mut universe = Universe::with_log(1);
    let leader = universe.leader_of_catalogue();
    let log = universe.log();
    let (unit, member) = log.units[0];
    let now = universe.nodes[leader.0 as usize - 1].now;
    let node = &mut universe.nodes[leader.0 as usize - 1].node;
    node.doubts_told(NodeId(1 + member.node.0 % 3), &[unit, UnitId(999)], now);
    assert!(!node.logs.repairs.doubts.has(unit));
    let many: Vec<UnitId> = (0..DOUBTS_MAX as u64).map(|number| UnitId(1_000 + number)).chain([unit]).collect();
    node.doubts_told(member.node, &many, now);
    assert!(!node.logs.repairs.doubts.has(unit), "too many are told at one time");
    let before = node.counters.log_units_lost;
    node.doubts_told(member.node, &[unit, UnitId(999), unit], now);
    assert_eq!(node.counters.log_units_lost, before + 1);
    assert_eq!(node.logs.repairs.doubts.of(&log).collect::<Vec<_>>(), [unit]);
    assert!(!node.logs.repairs.doubts.has(UnitId(999)));
    node.logs.repairs.doubts.keep(&[]);
    assert!(!node.logs.repairs.doubts.has(unit), "it is named no more");
}
