use base::{Boot, Duration, Epoch};
use catalog::{CatalogCommand, CatalogRequest, TableOptions};
use replication::grace;
use state_machine::StateMachine as _;

use super::*;
use crate::contract::Event;
use crate::request::Request;
use crate::testing::{Bench, Cluster, split_at};
use tablets::Tablet;

impl Cluster {
    /// A cluster with a table of six ranges, after an idle period in which their leads were spread.
    fn at_rest() -> Self {
        let mut cluster = Self::start();
        cluster.pass(Duration::from_millis(2_000));
        let (split_at, retention) = (split_at(&["b", "c", "d", "e", "f"]), Duration::ZERO);
        let create = Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
            name: "t".into(),
            split_at,
            options: TableOptions { replicas: 3, retention, ..TableOptions::of(Tablet::KIND) },
        }));
        cluster.nodes[0].ask(1, create);
        cluster.pass(Duration::from_millis(9_000));
        cluster.seen.clear();
        cluster
    }

    /// Number of cohorts with a leader that may read.
    fn readable(&self) -> usize {
        let can_read = |bench: &Bench| {
            let now = bench.now.monotonic;
            bench.node.replicas().filter(|(_, cohort, _)| cohort.lease_end(now).is_some()).count()
        };
        self.nodes.iter().map(can_read).sum()
    }

    fn messages_of_cohorts(&self) -> usize {
        self.seen.iter().filter(|(_, _, message)| matches!(message, Message::Cohort { .. })).count()
    }
}

#[test]
fn idle_cohorts_share_one_beat_per_node_pair() {
    let mut cluster = Cluster::at_rest();
    cluster.pass(Duration::from_millis(1_000));
    assert_eq!((cluster.readable(), cluster.messages_of_cohorts()), (7, 0));
    let beats = cluster.seen.iter().filter(|(_, _, message)| matches!(message, Message::Beat { .. }));
    let pairs: BTreeSet<(NodeId, NodeId)> = beats.clone().map(|(from, to, _)| (*from, *to)).collect();
    assert!(beats.clone().count() <= 10 * pairs.len(), "one beat per heartbeat interval");
    assert!(beats.clone().all(|(_, _, message)| matches!(message, Message::Beat { cohorts: None, .. })));
    assert_eq!(cluster.seen.len(), 2 * beats.count(), "one reply per beat, and no other messages");
}

#[test]
fn cohorts_quiesce_after_partition_heals() {
    let mut cluster = Cluster::at_rest();
    cluster.cut_off = Some(NodeId(3));
    cluster.pass(Duration::from_millis(2_000));
    assert_eq!(cluster.readable(), 7, "two nodes are a majority");
    assert!(
        cluster.nodes[2].node.replicas().all(|(_, cohort, _)| !cohort.leads()),
        "a leader without votes steps down"
    );
    cluster.cut_off = None;
    cluster.pass(Duration::from_millis(2_000));
    cluster.seen.clear();
    cluster.pass(Duration::from_millis(500));
    assert_eq!((cluster.readable(), cluster.messages_of_cohorts()), (7, 0));
}

#[test]
fn lost_list_is_retransmitted() {
    let mut cluster = Cluster::at_rest();
    for bench in &mut cluster.nodes {
        bench.node.beats.received.clear();
    }
    cluster.pass(Duration::from_millis(1_000));
    assert_eq!((cluster.readable(), cluster.messages_of_cohorts()), (7, 0));
}

/// A follower refuses a cohort if the listed state differs from its own.
#[test]
fn mismatched_list_entry_is_not_confirmed() {
    let mut cluster = Cluster::at_rest();
    let (leader, id, rest) = cluster
        .nodes
        .iter()
        .find_map(|bench| {
            let state = bench.node.beats.peers.get(&NodeId(3))?;
            state.resting.first_key_value().map(|(id, rest)| (bench.node.me().node, *id, *rest))
        })
        .expect("a cohort has a leader");
    let bench = &mut cluster.nodes[2];
    let earlier = Quiescence { epoch: Epoch(rest.epoch.0 - 1), ..rest };
    let shorter = Quiescence { last: base::Lsn { sequence: rest.last.sequence.previous(), ..rest.last }, ..rest };
    for (list, rest) in [(900, earlier), (901, shorter)] {
        let cohorts: List = [(id, rest)].into();
        let message =
            Message::Beat { list: ListId(list), cohorts: Some(cohorts), sent: Monotonic(1), peer_clock: None };
        bench.step(Event::Message { from: leader, boot: Boot(1), message });
        let refused = Beaten::Vouched { refused: vec![id] };
        let at = bench.now.monotonic;
        let answer = Message::BeatAnswer { list: ListId(list), sent: Monotonic(1), at, beaten: refused };
        assert_eq!(bench.sent.pop(), Some((leader, answer)));
    }
}

/// A lease from a beat starts at the send time of the beat, and only in the listed epoch.
#[test]
fn lease_starts_at_beat_send_time() {
    let mut cluster = Cluster::at_rest();
    let leader =
        cluster.nodes.iter().position(|bench| bench.node.beats.peers.values().any(|state| !state.resting.is_empty()));
    let leader = leader.expect("a cohort has a leader");
    let bench = &mut cluster.nodes[leader];
    let lease = bench.node.config.timing.lease;
    let sent = bench.now.monotonic;
    let (peer, list) = {
        let (peer, state) = bench.node.beats.peers.iter().find(|(_, state)| !state.resting.is_empty()).expect("one");
        (*peer, state.lists.back().expect("a beat was sent").0)
    };
    bench.now.monotonic = sent + Duration(grace(lease).0 / 2);
    let beaten = Beaten::Vouched { refused: Vec::new() };
    let message = Message::BeatAnswer { list, sent, at: sent, beaten };
    bench.step(Event::Message { from: peer, boot: Boot(1), message });
    let listed = bench.node.beats.peers[&peer].list(list).expect("the list is kept");
    for (id, _) in listed.iter() {
        assert_eq!(bench.node.replicas[id].cohort.lease_end(bench.now.monotonic), Some(sent + lease));
    }
}

/// Followers of idle cohorts learn their staleness only from beats.
#[test]
fn beats_carry_staleness_of_idle_cohorts() {
    let ages = |bench: &Bench| -> Vec<Option<Duration>> {
        bench.node.replicas().map(|(_, cohort, _)| cohort.freshness().age(bench.now.monotonic)).collect()
    };
    let mut cluster = Cluster::at_rest();
    cluster.pass(Duration::from_millis(3_000));
    assert_eq!(cluster.messages_of_cohorts(), 0);
    let rested: Vec<_> = cluster.nodes.iter().flat_map(ages).collect();
    let is_young = |age: &Option<Duration>| age.is_some_and(|age| age < Duration::from_millis(250));
    assert!(rested.len() == 21 && rested.iter().all(is_young), "{rested:?}");

    cluster.cut_off = Some(NodeId(3));
    cluster.pass(Duration::from_millis(1_000));
    let grown = ages(&cluster.nodes[2]);
    assert!(grown.iter().all(|age| *age > Some(Duration::from_millis(500))), "{grown:?}");
}

/// A leader reports staleness only for cohorts of the same list, and only if it holds their lease.
#[test]
fn no_staleness_report_without_lease() {
    let mut cluster = Cluster::at_rest();
    let leader =
        cluster.nodes.iter().position(|bench| bench.node.beats.peers.values().any(|state| state.peer_clock.is_some()));
    let bench = &mut cluster.nodes[leader.expect("a cohort has a leader")];
    let state = bench.node.beats.peers.iter().find(|(_, state)| state.peer_clock.is_some());
    let (peer, list) = state
        .map(|(peer, state)| (*peer, state.lists.back().expect("a beat was sent").0))
        .expect("a peer state exists");
    bench.now.monotonic = bench.now.monotonic + bench.node.config.timing.lease + Duration(1);
    let (sent, at) = (Monotonic(1), Monotonic(2));
    let beaten = Beaten::Vouched { refused: Vec::new() };
    let message = Message::BeatAnswer { list, sent, at, beaten };
    bench.step(Event::Message { from: peer, boot: Boot(1), message });
    assert_eq!(bench.node.beats.peers[&peer].peer_clock, None, "an old vote grants no lease");
}
