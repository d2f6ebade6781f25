use base::Timestamp;

use super::*;
use crate::testing::Cluster;

const MILLISECOND: i64 = 1_000_000;

fn interval(earliest: i64, latest: i64) -> Interval {
    Interval { earliest: Timestamp(earliest), latest: Timestamp(latest) }
}

impl Cluster {
    /// A cluster with wall clocks that are correct, and a bound of 5 ms on their errors.
    fn with_bounds() -> Self {
        let mut cluster = Self::start();
        cluster.nodes.iter_mut().for_each(|bench| bench.now.uncertainty = Some(Duration::from_millis(5)));
        cluster.pass(Duration::from_millis(3_000));
        cluster
    }

    fn refusals(&self) -> Vec<Option<String>> {
        self.nodes.iter().map(|bench| bench.node.clock_refusal(bench.now)).collect()
    }

    fn refuse(&self) -> Vec<bool> {
        self.refusals().iter().map(Option::is_some).collect()
    }
}

#[test]
fn gap_between_intervals() {
    let (asked, now) = (interval(0, 10), interval(1_000, 1_010));
    let gaps = [(500, 510), (1_010, 1_030), (-20, 0), (1_011, 1_020), (-20, -1), (-20, 2_000)]
        .map(|(earliest, latest)| gap(asked, now, interval(earliest, latest)));
    assert_eq!(gaps, [0, 0, 0, 1, -1, 0]);
    assert_eq!(gap(asked, now, interval(i64::MIN, i64::MIN)), i64::MIN);
}

#[test]
fn clocks_are_compared_once_a_second() {
    let mut cluster = Cluster::with_bounds();
    assert_eq!(cluster.refuse(), [false; 3]);
    cluster.seen.clear();
    cluster.pass(Duration::from_millis(10_000));
    let questions = cluster.seen.iter().filter(|(_, _, message)| matches!(message, Message::CompareClocks { .. }));
    let replies = cluster.seen.iter().filter(|(_, _, message)| matches!(message, Message::ClockReply { .. }));
    assert_eq!((questions.count(), replies.count()), (60, 60));
    assert!(cluster.nodes.iter().all(|bench| bench.node.counters.clock_contradictions == 0));
}

#[test]
fn clock_without_bound_is_refused() {
    let mut cluster = Cluster::start();
    cluster.nodes[0].node.config.clock = ClockSource::Kernel;
    cluster.pass(Duration::from_millis(3_000));
    let refusals = cluster.refusals();
    assert!(refusals[0].as_ref().unwrap().contains("Run a time daemon"), "{refusals:?}");
    assert!(refusals[1].as_ref().unwrap().contains("clock = \"none\""), "{refusals:?}");
    assert!(cluster.seen.iter().all(|(_, _, message)| !matches!(message, Message::CompareClocks { .. })));
    // One node with a bound learns nothing from the others.
    cluster.nodes[1].now.uncertainty = Some(Duration(1));
    cluster.pass(Duration::from_millis(3_000));
    assert_eq!(cluster.refuse(), [true, false, true]);
}

#[test]
fn bound_above_limit_counts_as_none() {
    let mut cluster = Cluster::with_bounds();
    let bench = &mut cluster.nodes[0];
    bench.now.uncertainty = Some(Duration(250_000_001));
    bench.pass(Duration::from_millis(1));
    let status = bench.node.status(Now { uncertainty: None, ..bench.now });
    assert_eq!(status.clock.uncertainty, None);
    let refusal = status.clock.refusal.unwrap();
    assert!(refusal.contains("by 250001us") && refusal.ends_with("clock_uncertainty_max = 250ms"), "{refusal}");
    bench.now.uncertainty = Some(Duration::from_millis(250));
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.node.clock_refusal(bench.now), None);
}

#[test]
fn outlier_is_found_by_all() {
    let mut cluster = Cluster::with_bounds();
    // Within the sum of the bounds it may be right. Delivery takes no time here.
    cluster.nodes[2].now.wall.0 += 10 * MILLISECOND;
    cluster.pass(Duration::from_millis(2_000));
    assert_eq!(cluster.refuse(), [false; 3]);
    cluster.nodes[2].now.wall.0 += 10 * MILLISECOND;
    cluster.pass(Duration::from_millis(2_000));
    assert_eq!(cluster.refuse(), [false, false, true]);
    let refusal = cluster.refusals()[2].clone().unwrap();
    assert!(refusal.ends_with("node 1 is behind by at least 10ms, node 2 is behind by at least 10ms"), "{refusal}");
    let outlier = &cluster.nodes[2];
    assert!(outlier.node.clock_watch.is_outlier && outlier.node.counters.clock_contradictions > 0);
    let status = outlier.node.status(outlier.now);
    assert!(status.clock.is_outlier && status.troubles[0].starts_with("no transactions: "), "{:?}", status.troubles);
    let troubles: Vec<String> =
        cluster.nodes[..2].iter().flat_map(|bench| bench.node.status(bench.now).cluster_troubles).collect();
    let leads = cluster.nodes[2].node.led_catalog().is_some();
    assert!(leads || troubles[0].contains("node 3 is outside of its bound: it is ahead"), "{troubles:?}");

    cluster.nodes[2].now.wall.0 -= 20 * MILLISECOND;
    cluster.pass(Duration::from_millis(2_000));
    assert_eq!(cluster.refuse(), [false; 3]);
    assert!(!cluster.nodes[2].node.clock_watch.is_outlier);
}

/// Two nodes that contradict each other cannot know which one is right.
#[test]
fn contradiction_without_majority_stops_both() {
    let mut cluster = Cluster::with_bounds();
    cluster.nodes[2].now.wall.0 -= 1_000 * MILLISECOND;
    cluster.cut_off = Some(NodeId(2));
    cluster.pass(Duration::from_millis(4_000));
    assert_eq!(cluster.refuse(), [false; 3], "the last comparisons with node 2 still count");
    cluster.pass(Duration::from_millis(3_000));
    assert_eq!(cluster.refuse(), [true, false, true]);
    cluster.cut_off = Some(NodeId(3));
    cluster.pass(Duration::from_millis(7_000));
    assert_eq!(cluster.refuse(), [false, false, false], "a node alone has no majority of any cohort");
}

#[test]
fn delayed_reply_does_not_replace_newer() {
    let mut cluster = Cluster::with_bounds();
    let bench = &mut cluster.nodes[0];
    let (now, last) = (bench.now, bench.node.clock_watch.peers[&NodeId(2)]);
    let own = now.interval().unwrap();
    let far = Some(interval(0, 1));
    for sent in [Monotonic(last.at.0 - 1), now.monotonic + Duration(1)] {
        bench.node.clock_replied(NodeId(2), (sent, own), far, now);
        assert_eq!(bench.node.clock_watch.peers[&NodeId(2)], last);
    }
    bench.node.clock_replied(NodeId(9), (now.monotonic, own), far, now);
    assert_eq!(bench.node.clock_watch.peers.len(), 2, "node 9 is no member");
    bench.node.clock_replied(NodeId(2), (now.monotonic, own), None, now);
    assert_eq!(bench.node.clock_watch.peers.len(), 1, "node 2 has no bound any more");
}
