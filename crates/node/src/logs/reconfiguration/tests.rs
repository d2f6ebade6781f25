use std::collections::BTreeSet;

use base::{Boot, Duration};
use bytes::Bytes;
use sharedlog::client::Suspect;
use sharedlog::limits::BATCH_BYTES_MAX;
use sharedlog::recovery::healings;
use sharedlog::request::{Content, LogRequest, LogResponse};
use sharedlog::{Batch, Position};

use super::*;
use crate::contract::RequestId;
use crate::request::{Request, Response};
use crate::testing::{Bench, Cluster, empty};

const SECOND: Duration = Duration::from_millis(1_000);

impl Cluster {
    /// A cluster with a log of `stripes` stripes of two copies each, and one append in each stripe.
    fn with_log(stripes: u32) -> Self {
        let mut cluster = Self::start();
        cluster.pass(SECOND);
        cluster.asked(1, LogRequest::Create { name: "l".into(), stripes, copies: 2 });
        cluster.pass(SECOND);
        (0..u64::from(stripes)).for_each(|at| assert_eq!(cluster.append(10 + at), at));
        cluster
    }

    /// Sends a request to the first node and returns the reply.
    fn asked(&mut self, number: u64, request: LogRequest) -> LogResponse {
        self.nodes[0].ask(number, Request::Log(request));
        self.pass(SECOND);
        match self.nodes[0].answers.remove(&RequestId(number)) {
            Some(Ok(Response::Log(response))) => response,
            other => panic!("{other:?}"),
        }
    }

    fn append(&mut self, number: u64) -> u64 {
        let batch = Batch::of(&[Bytes::from(number.to_string())]).expect("within the limits");
        match self.asked(number, LogRequest::Append { log: "l".into(), batch, stamp: None }) {
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
        let LogResponse::Entries(entries) = self.asked(number, read) else { panic!("expected entries") };
        let Content::Data(data) = &entries[0].content else { panic!("{entries:?}") };
        data.batch.records().expect("own encoding")[0].clone()
    }

    fn log(&self) -> LogRecord {
        let log = self.nodes[0].node.catalog().log("l");
        log.expect("the log exists").clone()
    }

    /// Restarts a node with a damaged log tail.
    fn damage(&mut self, node: u32) {
        self.restart(node, |_| true);
        self.nodes[node as usize - 1].node.hosting.doubt_unknown = true;
    }

    /// Restarts a node with some cohorts in doubt.
    fn restart(&mut self, node: u32, doubts: impl Fn(CohortId) -> bool) {
        let bench = &self.nodes[node as usize - 1];
        let mut recovered = empty(node, 3);
        recovered.boot = Boot(bench.node.cluster.boot.0 + 1);
        recovered.records = bench.appended.clone();
        recovered.cohorts = bench.manifests.last().expect("a manifest was written").0.clone();
        recovered.cohorts.iter_mut().for_each(|(id, cohort)| cohort.doubtful |= doubts(*id));
        self.nodes[node as usize - 1] = Bench::start(recovered);
    }

    /// Adds a unit on that node to the log in the catalog.
    fn name_on(&mut self, node: u32) {
        let command = catalog::CatalogCommand::AddUnits { log: self.log().id, nodes: vec![NodeId(node)] };
        let leader = self.leader_of_catalog();
        let bench = &mut self.nodes[leader.0 as usize - 1];
        let catalog = bench.node.replicas.get_mut(&CohortId::CATALOG).expect("every node has a catalog replica");
        catalog.cohort.propose(command.encode(), bench.now, &mut bench.node.outgoing.outbox);
        bench.node.drain(CohortId::CATALOG, bench.now);
        self.pass(SECOND);
    }

    fn leader_of_catalog(&self) -> NodeId {
        let leader = self.nodes.iter().find(|bench| bench.node.led_catalog().is_some());
        leader.expect("the catalog has a leader").node.me().node
    }
}

fn on(log: &LogRecord, node: u32) -> Vec<UnitId> {
    let own = log.units.iter().filter(|(_, member)| member.node == NodeId(node));
    own.map(|(unit, _)| *unit).collect()
}

/// The log is idle in the meantime.
#[test]
fn doubtful_units_are_replaced() {
    let mut cluster = Cluster::with_log(3);
    let before = cluster.log();
    // The catalog leader reports its own units to itself.
    let leader = cluster.leader_of_catalog();
    for node in [leader.0, 1 + leader.0 % 3] {
        let lost = on(&cluster.log(), node);
        assert_eq!(lost.len(), 2, "one unit of each chain but one");
        cluster.damage(node);
        cluster.pass(Duration(20 * SECOND.0));
        let log = cluster.log();
        let units = log.projection.units();
        assert!(lost.iter().all(|unit| !units.contains(unit) && log.member_of(*unit).is_none()), "{log:?}");
        assert!(log.projection.last().chains.iter().all(|chain| chain.len() == 2), "{log:?}");
        assert_eq!(
            healings(&log.projection, 2, &state_of("log", &log).units, &BTreeSet::new()),
            [],
            "older chains are whole, too"
        );
        let damaged = &cluster.nodes[node as usize - 1].node;
        let gone = |unit: &UnitId| damaged.replicas().all(|(id, ..)| Some(id) != catalog::cohort_of(*unit));
        assert!(lost.iter().all(gone), "their replicas use no space");
        assert_eq!(damaged.own_units_in_doubt().count(), 0);
    }
    assert!(cluster.log().projection.newest_unit > before.projection.newest_unit);
    for at in 0..3 {
        assert_eq!(cluster.read(30 + at, at), Bytes::from((10 + at).to_string()));
    }
    assert!(cluster.append(40) >= 3);
}

/// A spare unit that the log no longer needs is removed after its node's log was damaged.
#[test]
fn doubtful_spare_is_removed() {
    let mut cluster = Cluster::with_log(1);
    let before = cluster.log();
    let free = (1..=3).find(|node| on(&before, *node).is_empty()).expect("one of three nodes has no unit");
    cluster.name_on(free);
    let named = cluster.log();
    let [spare] = on(&named, free)[..] else { panic!("{named:?}") };
    cluster.pass(Duration(5 * SECOND.0));
    assert_eq!(cluster.log(), named, "an undamaged spare stays");
    cluster.damage(free);
    cluster.pass(Duration(20 * SECOND.0));
    assert_eq!(cluster.log(), before, "the log needs no other unit");
    let damaged = &cluster.nodes[free as usize - 1].node;
    assert!(damaged.replicas().all(|(id, ..)| Some(id) != catalog::cohort_of(spare)));
    assert_eq!(damaged.own_units_in_doubt().count(), 0);
}

/// The last copy stays, because an operator may repair its disk.
#[test]
fn last_copy_is_retained() {
    let mut cluster = Cluster::with_log(1);
    let chain = cluster.log().projection.last().chains[0].clone();
    for unit in &chain {
        let node = cluster.log().member_of(*unit).expect("the unit is in the log").node;
        cluster.restart(node.0, |id| Some(id) == catalog::cohort_of(*unit));
    }
    cluster.pass(Duration(20 * SECOND.0));
    assert_eq!(cluster.log().projection.units(), chain);
}

/// No projection can replace one that has a chain without a responsive unit. The other chains are then not sealed and
/// stay readable, even if one of their units should be replaced.
#[test]
fn intact_chain_stays_readable() {
    let mut cluster = Cluster::with_log(2);
    let before = cluster.log();
    let [first, second] = &before.projection.last().chains[..] else { panic!("{before:?}") };
    let doubted: BTreeSet<UnitId> = first.iter().copied().chain(second.first().copied()).collect();
    let leader = cluster.leader_of_catalog();
    let bench = &mut cluster.nodes[leader.0 as usize - 1];
    for unit in doubted {
        let home = before.member_of(unit).expect("the unit is in the log").node;
        bench.node.units_in_doubt(home, &[unit], bench.now);
    }
    cluster.pass(Duration(20 * SECOND.0));
    assert_eq!(cluster.log().projection, before.projection);
    assert_eq!(cluster.read(30, 1), Bytes::from("11"));
}

/// A leader that was paused can't conclude anything about other nodes.
#[test]
fn paused_leader_suspects_no_nodes() {
    let mut cluster = Cluster::with_log(1);
    cluster.pass(Duration(3 * SECOND.0));
    let (before, leader) = (cluster.log(), cluster.leader_of_catalog());
    let other = before.units.iter().find(|(_, member)| member.node != leader).expect("two nodes have a unit");
    let (unit, epoch) = (other.0, before.projection.epoch);
    let bench = &mut cluster.nodes[leader.0 as usize - 1];
    // Messages that arrived in the meantime are handled only afterwards.
    bench.now.monotonic = bench.now.monotonic + Duration::from_millis(400);
    bench.step(crate::contract::Event::Timer);
    let (now, node) = (bench.now, &mut bench.node);
    node.suspected(before.id, epoch, Suspect::Unit(unit), now);
    cluster.pass(Duration(5 * SECOND.0));
    assert!(cluster.log().member_of(unit).is_some());
}

#[test]
fn status_lists_under_replicated_logs() {
    let mut cluster = Cluster::with_log(1);
    cluster.pass(SECOND);
    let leader = cluster.leader_of_catalog();
    let reported = |cluster: &Cluster| {
        let node = &cluster.nodes[leader.0 as usize - 1].node;
        (node.under_replicated_logs(), node.logs_out_of_reach())
    };
    assert_eq!(reported(&cluster), (vec![], vec![]));
    let [unit, other] = cluster.log().projection.units()[..] else { panic!("a chain of two") };
    for (unit, lacking, missing) in [
        (unit, "log l is under-replicated: some positions have 1 of 2 copies", None),
        (
            other,
            "log l is under-replicated: some positions have 0 of 2 copies",
            Some("log l is unavailable: some positions have no live copy"),
        ),
    ] {
        let home = cluster.log().member_of(unit).expect("the unit is in the log").node;
        let bench = &mut cluster.nodes[leader.0 as usize - 1];
        bench.node.units_in_doubt(home, &[unit], bench.now);
        let missing: Vec<String> = missing.map(str::to_owned).into_iter().collect();
        assert_eq!(reported(&cluster), (vec![lacking.to_owned()], missing));
    }
    let node = &cluster.nodes[leader.0 as usize - 1].node;
    let many = vec![(cluster.log().id, "is it".to_owned()); NAMED_MAX + 2];
    assert_eq!(node.name_logs(many, "like it")[NAMED_MAX - 1..], ["log l is it", "2 further logs: like it"]);
}
