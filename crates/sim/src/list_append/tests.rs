//! One planted anomaly of every class, and a comparison with a brute-force search.

use base::{SplitMix64, Timestamp};

use super::Operation::{Append, Read};
use super::{Kind, Operation, Outcome, Transaction, check};

/// A committed transaction that ran from `begun` to `ended`.
fn ran(begun: u64, ended: u64, operations: &[Operation]) -> Transaction {
    Transaction { client: 0, begun, ended, outcome: Outcome::Committed(None), operations: operations.to_vec() }
}

/// A committed transaction that ran concurrently with all others.
fn any(operations: &[Operation]) -> Transaction {
    ran(0, 1_000, operations)
}

fn ended(outcome: Outcome, operations: &[Operation]) -> Transaction {
    Transaction { outcome, ..any(operations) }
}

fn read(key: u64, values: &[u64]) -> Operation {
    Read(key, values.to_vec())
}

#[track_caller]
fn finds(kind: Kind, history: &[Transaction]) {
    assert_eq!(check(history).map_err(|anomaly| anomaly.kind), Err(kind));
}

#[test]
fn good_history_passes() {
    let history = [
        ran(0, 10, &[Append(1, 1), Append(2, 2)]),
        ran(11, 20, &[read(1, &[1]), Append(1, 3), read(1, &[1, 3]), Append(1, 4)]),
        ran(5, 30, &[read(2, &[2]), read(1, &[1, 3, 4])]),
        ended(Outcome::Aborted, &[Append(1, 5)]),
        ended(Outcome::Unknown, &[Append(1, 6)]),
        ended(Outcome::Unknown, &[Append(2, 7)]),
        ran(40, 50, &[read(1, &[1, 3, 4, 6])]),
    ];
    assert_eq!(check(&history), Ok(()));
}

#[test]
fn single_reads_show_anomalies() {
    finds(Kind::Malformed, &[any(&[Append(1, 1)]), any(&[Append(1, 1)])]);
    finds(Kind::Internal, &[any(&[Append(1, 1), read(1, &[])])]);
    finds(Kind::Internal, &[any(&[read(1, &[]), read(1, &[1])]), any(&[Append(1, 1)])]);
    finds(Kind::Garbage, &[any(&[read(1, &[9])])]);
    finds(Kind::Garbage, &[any(&[Append(2, 9)]), any(&[read(1, &[9])])]);
    finds(Kind::Duplicate, &[any(&[Append(1, 1)]), any(&[read(1, &[1, 1])])]);
    finds(Kind::AbortedRead, &[ended(Outcome::Aborted, &[Append(1, 1)]), any(&[read(1, &[1])])]);
    finds(Kind::IntermediateRead, &[any(&[Append(1, 1), Append(1, 2)]), any(&[read(1, &[1])])]);
    let writes = [any(&[Append(1, 1)]), any(&[Append(1, 2)])];
    let reads = [any(&[read(1, &[1, 2])]), any(&[read(1, &[2])])];
    finds(Kind::IncompatibleOrder, &[writes, reads].concat());
    let torn = [any(&[Append(1, 1), Append(1, 2)]), any(&[Append(1, 3)]), any(&[read(1, &[1, 3, 2])])];
    finds(Kind::Torn, &torn);
}

#[test]
fn cycles_have_names() {
    // Two transactions write two lists in opposite order.
    let writes = [any(&[Append(1, 1), Append(2, 2)]), any(&[Append(1, 3), Append(2, 4)])];
    finds(Kind::WriteCycle, &[&writes[..], &[any(&[read(1, &[1, 3])]), any(&[read(2, &[4, 2])])]].concat());
    // Each reads the other's write.
    let circular = [any(&[Append(1, 1), read(2, &[2])]), any(&[Append(2, 2), read(1, &[1])])];
    finds(Kind::CircularInformationFlow, &circular);
    // Lost update: both read the empty list, and append to it.
    let lost = [any(&[read(1, &[]), Append(1, 1)]), any(&[read(1, &[]), Append(1, 2)]), any(&[read(1, &[1, 2])])];
    finds(Kind::SingleAntiDependency, &lost);
    // Read skew: one of two lists as of before the other transaction, one as of after it.
    finds(Kind::SingleAntiDependency, &[any(&[Append(1, 1), Append(2, 2)]), any(&[read(1, &[]), read(2, &[2])])]);
    // Write skew: each reads the list that the other writes.
    let skew = [any(&[read(1, &[]), Append(2, 2)]), any(&[read(2, &[]), Append(1, 1)])];
    finds(Kind::AntiDependencyCycle, &skew);
    // Phantom: each scans all lists, and appends to another one that the other's scan found empty.
    let scan = || [read(1, &[]), read(2, &[]), read(3, &[])];
    let inserts = [any(&[&scan()[..], &[Append(1, 1)]].concat()), any(&[&scan()[..], &[Append(2, 2)]].concat())];
    finds(Kind::AntiDependencyCycle, &inserts);
    // The same by a scan that misses one of two lists which were appended to together.
    let insert = any(&[Append(1, 1), Append(3, 3)]);
    finds(Kind::SingleAntiDependency, &[insert, any(&[read(1, &[1]), read(2, &[]), read(3, &[])])]);
    // Long fork: two readers see two independent writes in opposite order.
    let writes = [any(&[Append(1, 1)]), any(&[Append(2, 2)])];
    let fork = [any(&[read(1, &[1]), read(2, &[])]), any(&[read(1, &[]), read(2, &[2])])];
    finds(Kind::AntiDependencyCycle, &[writes, fork].concat());
    // Stale read: serializable, but the read began after the write had ended.
    finds(Kind::RealTimeCycle, &[ran(0, 10, &[Append(1, 1)]), ran(11, 20, &[read(1, &[])])]);
    // The later of two sequential appends precedes the earlier one in the list.
    let swapped = [ran(0, 10, &[Append(1, 1)]), ran(11, 20, &[Append(1, 2)]), any(&[read(1, &[2, 1])])];
    finds(Kind::RealTimeCycle, &swapped);
    // A read after one that has returned the value does not return it.
    let back = [ran(0, 10, &[Append(1, 1)]), ran(11, 20, &[read(1, &[1])]), ran(21, 30, &[read(1, &[])])];
    finds(Kind::RealTimeCycle, &back);
    // The same at touching times is concurrent.
    assert_eq!(check(&[ran(0, 10, &[Append(1, 1)]), ran(10, 20, &[read(1, &[])])]), Ok(()));
    // Causal reverse: a reader sees the later of two sequential writes without the earlier one.
    let reverse = [ran(0, 10, &[Append(1, 1)]), ran(11, 20, &[Append(2, 2)]), any(&[read(1, &[]), read(2, &[2])])];
    finds(Kind::RealTimeCycle, &reverse);
}

#[test]
fn timestamps_follow_order() {
    let at = |begun, ended, timestamp, operations: &[Operation]| Transaction {
        outcome: Outcome::Committed(Some(Timestamp(timestamp))),
        ..ran(begun, ended, operations)
    };
    finds(Kind::Timestamps, &[at(0, 10, 5, &[Append(1, 1)]), at(11, 20, 5, &[Append(2, 2)])]);
    let list = [at(0, 100, 5, &[Append(1, 1)]), at(0, 100, 4, &[Append(1, 2)]), any(&[read(1, &[1, 2])])];
    finds(Kind::Timestamps, &list);
    let good = [at(0, 10, 5, &[Append(1, 1)]), at(5, 20, 4, &[Append(2, 2)]), at(21, 30, 6, &[Append(1, 3)])];
    assert_eq!(check(&good), Ok(()));
}

/// Whether some order of the transactions explains the history, by trying all.
fn explains(history: &[Transaction]) -> bool {
    fn place(history: &[Transaction], done: &mut Vec<usize>, lists: &[Vec<u64>]) -> bool {
        if done.len() == history.len() {
            return true;
        }
        let rest: Vec<usize> = (0..history.len()).filter(|index| !done.contains(index)).collect();
        rest.iter().any(|index| {
            let transaction = &history[*index];
            if rest.iter().any(|other| history[*other].ended < transaction.begun) {
                return false;
            }
            let mut lists = lists.to_vec();
            let is_right = transaction.operations.iter().all(|operation| match operation {
                Append(key, value) => {
                    lists[usize::try_from(*key).expect("small")].push(*value);
                    true
                }
                Read(key, values) => lists[usize::try_from(*key).expect("small")] == *values,
            });
            done.push(*index);
            let found = is_right && place(history, done, &lists);
            done.pop();
            found
        })
    }
    place(history, &mut Vec::new(), &[Vec::new(), Vec::new()])
}

/// A small history: transactions take effect in sequence, and some reads are then replaced by reads of other states.
fn generate(random: &mut SplitMix64) -> Vec<Transaction> {
    let mut lists = [Vec::new(), Vec::new()];
    let mut states = [vec![Vec::new()], vec![Vec::new()]];
    let mut value = 0;
    let mut history = Vec::new();
    for step in 0..3 + random.below(3) {
        let mut operations = Vec::new();
        for _ in 0..1 + random.below(3) {
            let key = random.below(2);
            let index = usize::try_from(key).expect("small");
            if random.below(2) == 0 {
                value += 1;
                lists[index].push(value);
                operations.push(Append(key, value));
            } else {
                operations.push(Read(key, lists[index].clone()));
            }
        }
        for index in 0..2 {
            states[index].push(lists[index].clone());
        }
        let at = step * 10 + 5;
        history.push(ran(at.saturating_sub(random.below(20)), at + random.below(20), &operations));
    }
    for _ in 0..random.below(3) {
        let transaction = usize::try_from(random.below(history.len() as u64)).expect("small");
        for operation in &mut history[transaction].operations {
            if let Read(key, values) = operation {
                let states = &states[usize::try_from(*key).expect("small")];
                *values = states[usize::try_from(random.below(states.len() as u64)).expect("small")].clone();
                break;
            }
        }
    }
    // A last read shows the order of each list, without which appends may be in any order.
    history.push(ran(1_000, 1_001, &[Read(0, lists[0].clone()), Read(1, lists[1].clone())]));
    history
}

#[test]
fn checker_agrees_with_search() {
    let mut random = SplitMix64::new(11);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..20_000 {
        let history = generate(&mut random);
        let (expected, found) = (explains(&history), check(&history));
        assert_eq!(expected, found.is_ok(), "{found:?} in {history:#?}");
        if expected { good += 1 } else { bad += 1 }
    }
    assert!(good > 2_000 && bad > 2_000, "{good} good and {bad} bad histories");
}
