//! Verifies that hosting a state machine requires no change to `node` except a line in the registry: a counter is
//! replicated, checkpointed, shipped to nodes that had no replica, and read, while nodes crash and messages are lost.

use base::{CohortId, Duration, NodeId};
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, TableOptions};
use counter::{Count, Counter, CounterRequest};
use node::contract::{Event, RequestId};
use node::request::{Ask, Outcome, Request, Response};
use state_machine::{Consistency, Failure, StateMachine};

use super::options::{Faults, Options};
use super::{MILLISECOND, TrueTime, World};

/// Deadline of a request.
const DEADLINE: Duration = Duration::from_millis(3_000);
/// The increment of each addition.
const AMOUNT: u64 = 3;

fn options(seed: u64) -> Options {
    let faults = Faults { kill: 4, power: 2, partition: 2, pause: 1, stop: 1, move_range: 1, ..Faults::default() };
    let (fault_time, fault_every) = (20_000 * MILLISECOND, 700 * MILLISECOND);
    let drawn = Options::draw(seed);
    let drawn = Options { drops: false, log_users: 0, zookeeper_clients: 0, ..drawn };
    let quiet = Options { clients: 1, joins: 0, leaves: 0, splits: 0, tables: 1, ..drawn };
    Options { nodes: 5, faults, fault_time, fault_every, durability: base::Durability::Forced, ..quiet }
}

impl World {
    /// Sends a request to any running node and waits for the response.
    fn ask_some_node(&mut self, request: impl Into<Request>) -> Outcome {
        let request = request.into();
        let node = loop {
            let node = self.any_node();
            if self.hosts.get(&node).is_some_and(|machine| machine.process.is_some() && !machine.paused) {
                break node;
            }
            self.pass(10 * MILLISECOND);
        };
        let deadline = self.hosts[&node].clocks.monotonic(self.now) + DEADLINE;
        let id: RequestId = self.libraries.number();
        self.asked_by_test.insert(id, None);
        self.step(node, Event::Request { id, deadline, request });
        let end = self.now + 2 * DEADLINE.0;
        while self.now < end && self.violation.is_none() {
            if let Some(Some(outcome)) = self.asked_by_test.get(&id) {
                return outcome.clone();
            }
            self.play_one();
        }
        // The node that received the request crashed.
        Err(Failure::Unknown("no response".to_owned()))
    }

    fn pass(&mut self, span: TrueTime) {
        self.play_until(self.now + span);
    }

    /// Retries until a request succeeds; only for idempotent requests.
    fn insist(&mut self, request: impl Into<Request>) -> Response {
        let request = request.into();
        for _ in 0..500 {
            if let Ok(response) = self.ask_some_node(request.clone()) {
                return response;
            }
            self.pass(50 * MILLISECOND);
        }
        panic!("{request:?} got no response: {:?}", self.violation);
    }

    fn counter_cohort(&mut self) -> (CohortId, Vec<NodeId>) {
        match self.insist(CatalogRequest::DescribeTable("count".to_owned())) {
            Response::Catalog(CatalogResponse::Table(table)) => {
                let range = &table.ranges[0];
                (CohortId(range.cohort), range.members.iter().copied().map(NodeId).collect())
            }
            other => panic!("{other:?}"),
        }
    }
}

fn get(consistency: Consistency) -> Request {
    Request::table("count", Ask::Counter(CounterRequest::Get(consistency)))
}

fn count_in(response: Response) -> u64 {
    match response {
        Response::Counter(Count(count)) => count,
        Response::Dated { response, .. } => count_in(*response),
        other => panic!("{other:?}"),
    }
}

#[test]
fn cohort_hosts_counter_state_machine() {
    let (mut shipped, mut checkpoints, mut moves) = (0, 0, 0);
    for seed in 1..=40 {
        let mut world = World::new(seed, options(seed));
        world.begin();
        let create = CatalogCommand::CreateTable {
            name: "count".to_owned(),
            split_at: Vec::new(),
            options: TableOptions { replicas: 3, ..TableOptions::of(Counter::KIND) },
        };
        world.insist(CatalogRequest::from(create));
        let (mut certain, mut possible, mut seen) = (0, 0, 0);
        while world.now < world.options.fault_time {
            match world.ask_some_node(Request::table("count", Ask::Counter(CounterRequest::Add(AMOUNT)))) {
                Ok(response) => {
                    certain += AMOUNT;
                    assert!(count_in(response) >= certain, "seed {seed}: an addition is lost");
                }
                Err(Failure::Unavailable(_) | Failure::NoSpace(_) | Failure::Overloaded(_)) => {}
                Err(_) => possible += AMOUNT,
            }
            if let Ok(response) = world.ask_some_node(get(Consistency::Strong)) {
                let count = count_in(response);
                assert!((seen.max(certain)..=certain + possible).contains(&count), "seed {seed}: {count}");
                seen = count;
            }
            if world.random.below(16) == 0 {
                // To three of the five: at least one of them has no replica yet, and receives the state or the log.
                let (cohort, members) = world.counter_cohort();
                let nodes = (1..=5).map(NodeId).filter(|node| *node != members[0]).take(3).collect();
                world.insist(CatalogRequest::from(CatalogCommand::BeginMove { cohort, nodes, force: true }));
                moves += 1;
            }
        }
        world.finish();
        let split = CatalogCommand::BeginSplit { name: "count".to_owned(), key: "m".into() };
        let refused = world.ask_some_node(CatalogRequest::from(split));
        assert!(matches!(refused, Err(Failure::Precondition(_))), "seed {seed}: {refused:?}");
        assert_eq!(world.violation, None, "seed {seed}");
        for consistency in
            [Consistency::Strong, Consistency::Anywhere, Consistency::Timeline { at_least: None, stale_ok: false }]
        {
            let count = count_in(world.insist(get(consistency)));
            assert!((certain..=certain + possible).contains(&count), "seed {seed}: {consistency:?} shows {count}");
        }
        for process in world.hosts.values().filter_map(|machine| machine.process.as_ref()) {
            let counters = process.node.counters();
            (shipped, checkpoints) = (shipped + counters.state_catch_ups, checkpoints + counters.checkpoints);
        }
    }
    assert!(shipped > 0 && checkpoints > 0 && moves > 0, "{shipped} shipped, {checkpoints} checkpoints, {moves} moves");
}
