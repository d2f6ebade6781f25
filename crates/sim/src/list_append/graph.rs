//! The direct serialization graph, and its cycles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Anomaly, Kind, Lists, Outcome, Transaction};

/// Why one transaction precedes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Edge {
    WriteWrite,
    WriteRead,
    ReadWrite,
    RealTime,
}

/// The successors of each transaction, with the strongest reason for each.
type Graph = Vec<BTreeMap<usize, Edge>>;

/// Finds a cycle, in the order of severity of the anomalies.
pub(super) fn check(history: &[Transaction], lists: &Lists) -> Result<(), Anomaly> {
    let mut graph = data_edges(history.len(), lists);
    let searches: [(Kind, &[Edge]); 3] = [
        (Kind::WriteCycle, &[Edge::WriteWrite]),
        (Kind::CircularInformationFlow, &[Edge::WriteWrite, Edge::WriteRead]),
        (Kind::AntiDependencyCycle, &[Edge::WriteWrite, Edge::WriteRead, Edge::ReadWrite]),
    ];
    for (kind, edges) in searches {
        if let Some(cycle) = shortest_cycle(&graph, edges) {
            let anti = edges_of(&graph, &cycle).filter(|edge| *edge == Edge::ReadWrite).count();
            let kind = if anti == 1 { Kind::SingleAntiDependency } else { kind };
            return Err(anomaly(&graph, kind, cycle));
        }
    }
    add_real_time(&mut graph, history, lists);
    let all = [Edge::WriteWrite, Edge::WriteRead, Edge::ReadWrite, Edge::RealTime];
    match shortest_cycle(&graph, &all) {
        Some(cycle) => Err(anomaly(&graph, Kind::RealTimeCycle, cycle)),
        None => Ok(()),
    }
}

fn add(graph: &mut Graph, from: usize, to: usize, edge: Edge) {
    if from != to {
        let known = graph[from].entry(to).or_insert(edge);
        *known = (*known).min(edge);
    }
}

fn data_edges(transactions: usize, lists: &Lists) -> Graph {
    let mut graph = vec![BTreeMap::new(); transactions];
    for list in lists.lists.values() {
        for pair in list.writers.windows(2) {
            add(&mut graph, pair[0], pair[1], Edge::WriteWrite);
        }
        for writer in &list.unread {
            if let Some(last) = list.writers.last() {
                add(&mut graph, *last, *writer, Edge::WriteWrite);
            }
        }
        for (reader, length) in &list.reads {
            if let Some(last) = length.checked_sub(1) {
                add(&mut graph, list.writers[last], *reader, Edge::WriteRead);
            }
            // The writer of the next value that is not the reader's own.
            let next = list.writers[*length..].iter().find(|writer| *writer != reader);
            match next {
                Some(next) => add(&mut graph, *reader, *next, Edge::ReadWrite),
                None => list.unread.iter().for_each(|writer| add(&mut graph, *reader, *writer, Edge::ReadWrite)),
            }
        }
    }
    graph
}

/// Adds the transitive reduction of the order in real time.
fn add_real_time(graph: &mut Graph, history: &[Transaction], lists: &Lists) {
    // At equal times beginnings come first: a transaction precedes another only if it ended strictly before.
    let mut moments: Vec<(u64, bool, usize)> = Vec::new();
    for (index, transaction) in history.iter().enumerate().filter(|(index, _)| lists.is_committed[*index]) {
        moments.push((transaction.begun, false, index));
        // A transaction of unknown outcome may take effect at any time after it began.
        if matches!(transaction.outcome, Outcome::Committed(_)) {
            moments.push((transaction.ended, true, index));
        }
    }
    moments.sort_unstable();
    // Ended transactions that do not precede another ended one.
    let mut frontier: BTreeSet<usize> = BTreeSet::new();
    for (_, has_ended, index) in moments {
        if has_ended {
            let begun = history[index].begun;
            frontier.retain(|earlier| history[*earlier].ended >= begun);
            frontier.insert(index);
        } else {
            frontier.iter().for_each(|earlier| add(graph, *earlier, index, Edge::RealTime));
        }
    }
}

/// The shortest cycle with edges of these kinds.
fn shortest_cycle(graph: &Graph, kinds: &[Edge]) -> Option<Vec<usize>> {
    components(graph, kinds).iter().filter_map(|component| cycle_in(graph, kinds, component)).min_by_key(Vec::len)
}

fn successors<'a>(graph: &'a Graph, kinds: &'a [Edge], of: usize) -> impl Iterator<Item = usize> + 'a {
    graph[of].iter().filter(|(_, edge)| kinds.contains(edge)).map(|(to, _)| *to)
}

/// A shortest cycle through any transaction of a strongly connected component, by breadth-first searches.
fn cycle_in(graph: &Graph, kinds: &[Edge], component: &BTreeSet<usize>) -> Option<Vec<usize>> {
    // Large components have short cycles: some starts are enough for a readable one.
    const STARTS_MAX: usize = 64;
    let cycle_from = |start: usize| {
        let mut came_from: BTreeMap<usize, usize> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for next in successors(graph, kinds, at).filter(|next| component.contains(next)) {
                if next == start {
                    let mut cycle = vec![at];
                    while let Some(before) = came_from.get(cycle.last()?) {
                        cycle.push(*before);
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                if let std::collections::btree_map::Entry::Vacant(entry) = came_from.entry(next) {
                    entry.insert(at);
                    queue.push_back(next);
                }
            }
        }
        None
    };
    component.iter().take(STARTS_MAX).filter_map(|start| cycle_from(*start)).min_by_key(Vec::len)
}

/// The strongly connected components with more than one transaction (Tarjan's algorithm, without recursion).
fn components(graph: &Graph, kinds: &[Edge]) -> Vec<BTreeSet<usize>> {
    const UNSEEN: usize = usize::MAX;
    let mut found = Vec::new();
    let (mut number, mut low) = (vec![UNSEEN; graph.len()], vec![0; graph.len()]);
    let (mut stack, mut is_on_stack) = (Vec::new(), vec![false; graph.len()]);
    let mut count = 0;
    for root in 0..graph.len() {
        if number[root] != UNSEEN {
            continue;
        }
        let mut calls = vec![(root, successors(graph, kinds, root))];
        (number[root], low[root], is_on_stack[root]) = (count, count, true);
        stack.push(root);
        count += 1;
        while let Some((at, rest)) = calls.last_mut() {
            let at = *at;
            match rest.next() {
                Some(next) if number[next] == UNSEEN => {
                    (number[next], low[next], is_on_stack[next]) = (count, count, true);
                    stack.push(next);
                    count += 1;
                    calls.push((next, successors(graph, kinds, next)));
                }
                Some(next) => {
                    if is_on_stack[next] {
                        low[at] = low[at].min(number[next]);
                    }
                }
                None => {
                    calls.pop();
                    if let Some((parent, _)) = calls.last() {
                        low[*parent] = low[*parent].min(low[at]);
                    }
                    if low[at] == number[at] {
                        let mut component = BTreeSet::new();
                        while let Some(member) = stack.pop() {
                            is_on_stack[member] = false;
                            component.insert(member);
                            if member == at {
                                break;
                            }
                        }
                        if component.len() > 1 {
                            found.push(component);
                        }
                    }
                }
            }
        }
    }
    found
}

fn edges_of(graph: &Graph, cycle: &[usize]) -> impl Iterator<Item = Edge> {
    let pairs = cycle.iter().zip(cycle.iter().cycle().skip(1));
    pairs.filter_map(|(from, to)| graph[*from].get(to).copied())
}

fn anomaly(graph: &Graph, kind: Kind, cycle: Vec<usize>) -> Anomaly {
    let edge = |edge| match edge {
        Edge::WriteWrite => "write-write",
        Edge::WriteRead => "write-read",
        Edge::ReadWrite => "read-write",
        Edge::RealTime => "real time",
    };
    let steps: Vec<String> =
        cycle.iter().zip(edges_of(graph, &cycle)).map(|(from, kind)| format!("{from} -({})-> ", edge(kind))).collect();
    let reason = format!("transactions {}{}", steps.concat(), cycle.first().copied().unwrap_or_default());
    Anomaly { kind, transactions: cycle, reason }
}
