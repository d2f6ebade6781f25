//! Anomalies that single reads show, and the order of each list.

use std::collections::{BTreeMap, BTreeSet};

use super::{Anomaly, Key, Kind, List, Lists, Operation, Outcome, Transaction, Value};

/// The append of a value.
#[derive(Clone, Copy, Debug)]
struct Append {
    key: Key,
    transaction: usize,
}

/// Checks each transaction by itself, and derives the order of each list.
pub(super) fn check(history: &[Transaction]) -> Result<Lists, Anomaly> {
    let appends = appends(history)?;
    for (index, transaction) in history.iter().enumerate() {
        internal(index, transaction)?;
    }
    let is_committed = committed(history, &appends);
    let mut lists: BTreeMap<Key, List> = BTreeMap::new();
    for (index, transaction) in history.iter().enumerate().filter(|(index, _)| is_committed[*index]) {
        // The response of a transaction of unknown outcome may never have been evaluated at its commit.
        let has_response = matches!(transaction.outcome, Outcome::Committed(_));
        for (key, values) in first_reads(transaction).into_iter().filter(|_| has_response) {
            read(history, &appends, (index, key, values))?;
            let list = lists.entry(key).or_default();
            let (short, long) = if values.len() < list.values.len() {
                (values, list.values.as_slice())
            } else {
                (list.values.as_slice(), values)
            };
            if !long.starts_with(short) {
                let reason = format!("list {key} was read as {short:?} and as {long:?}");
                return Err(Anomaly { kind: Kind::IncompatibleOrder, transactions: vec![index], reason });
            }
            list.values = long.to_vec();
            list.reads.push((index, values.len()));
        }
    }
    for (key, list) in &mut lists {
        list.writers = list.values.iter().map(|value| appends[value].transaction).collect();
        contiguous(history, *key, list)?;
    }
    for (index, transaction) in history.iter().enumerate().filter(|(index, _)| is_committed[*index]) {
        let keys: BTreeSet<Key> = appended(transaction).map(|(key, _)| key).collect();
        for key in keys {
            let list = lists.entry(key).or_default();
            if !list.writers.contains(&index) {
                list.unread.push(index);
            }
        }
    }
    Ok(Lists { lists, is_committed })
}

fn appended(transaction: &Transaction) -> impl DoubleEndedIterator<Item = (Key, Value)> {
    transaction.operations.iter().filter_map(|operation| match operation {
        Operation::Append(key, value) => Some((*key, *value)),
        Operation::Read(..) => None,
    })
}

/// The append of each value.
fn appends(history: &[Transaction]) -> Result<BTreeMap<Value, Append>, Anomaly> {
    let mut appends = BTreeMap::new();
    for (index, transaction) in history.iter().enumerate() {
        for (key, value) in appended(transaction) {
            if let Some(Append { transaction, .. }) = appends.insert(value, Append { key, transaction: index }) {
                let reason = format!("value {value} was appended twice");
                return Err(Anomaly { kind: Kind::Malformed, transactions: vec![transaction, index], reason });
            }
        }
    }
    Ok(appends)
}

/// Each read must return the list as of the transaction's first read, followed by its own appends so far.
fn internal(index: usize, transaction: &Transaction) -> Result<(), Anomaly> {
    let mut known: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
    let mut own: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
    for operation in &transaction.operations {
        match operation {
            Operation::Append(key, value) => {
                own.entry(*key).or_default().push(*value);
                if let Some(values) = known.get_mut(key) {
                    values.push(*value);
                }
            }
            Operation::Read(key, values) => {
                let is_right = match known.get(key) {
                    Some(known) => known == values,
                    None => own.get(key).is_none_or(|own| values.ends_with(own)),
                };
                if !is_right {
                    let reason =
                        format!("transaction {index} read list {key} as {values:?}, against its own operations");
                    return Err(Anomaly { kind: Kind::Internal, transactions: vec![index], reason });
                }
                known.insert(*key, values.clone());
            }
        }
    }
    Ok(())
}

/// The state of each list on which a transaction's first read of it rests, without its own appends.
fn first_reads(transaction: &Transaction) -> BTreeMap<Key, &[Value]> {
    let mut reads = BTreeMap::new();
    let mut own: BTreeMap<Key, usize> = BTreeMap::new();
    for operation in &transaction.operations {
        match operation {
            Operation::Append(key, _) => *own.entry(*key).or_default() += 1,
            Operation::Read(key, values) => {
                let others = values.len() - own.get(key).copied().unwrap_or(0);
                reads.entry(*key).or_insert(&values[..others]);
            }
        }
    }
    reads
}

/// Whether each transaction is known to have taken effect.
fn committed(history: &[Transaction], appends: &BTreeMap<Value, Append>) -> Vec<bool> {
    let has_ended = |transaction: &Transaction| matches!(transaction.outcome, Outcome::Committed(_));
    let mut committed: Vec<bool> = history.iter().map(has_ended).collect();
    for transaction in history.iter().filter(|transaction| has_ended(transaction)) {
        for value in first_reads(transaction).into_values().flatten() {
            if let Some(append) = appends.get(value)
                && history[append.transaction].outcome == Outcome::Unknown
            {
                committed[append.transaction] = true;
            }
        }
    }
    committed
}

/// Checks the values of one read, without the reader's own appends.
fn read(
    history: &[Transaction],
    appends: &BTreeMap<Value, Append>,
    (index, key, values): (usize, Key, &[Value]),
) -> Result<(), Anomaly> {
    let anomaly = |kind, writer: Option<usize>, what: &str| {
        let reason = format!("transaction {index} read list {key} as {values:?}: {what}");
        Err(Anomaly { kind, transactions: writer.into_iter().chain([index]).collect(), reason })
    };
    let mut seen = BTreeSet::new();
    for value in values {
        if !seen.insert(*value) {
            return anomaly(Kind::Duplicate, None, &format!("value {value} occurs twice"));
        }
        let Some(append) = appends.get(value).filter(|append| append.key == key) else {
            return anomaly(Kind::Garbage, None, &format!("value {value} was not appended to it"));
        };
        if history[append.transaction].outcome == Outcome::Aborted {
            return anomaly(Kind::AbortedRead, Some(append.transaction), &format!("value {value} was aborted"));
        }
        if append.transaction == index {
            return anomaly(Kind::Internal, None, &format!("its own value {value} precedes its append"));
        }
    }
    if let Some(last) = values.last() {
        let writer = appends[last].transaction;
        let is_last = appended(&history[writer]).rfind(|(of, _)| *of == key).is_some_and(|(_, value)| value == *last);
        if !is_last {
            let what = format!("transaction {writer} appended more after value {last}");
            return anomaly(Kind::IntermediateRead, Some(writer), &what);
        }
    }
    Ok(())
}

/// The values of each transaction must be adjacent in a list, complete and in the order of its appends.
fn contiguous(history: &[Transaction], key: Key, list: &List) -> Result<(), Anomaly> {
    let mut from = 0;
    while from < list.values.len() {
        let writer = list.writers[from];
        let own: Vec<Value> = appended(&history[writer]).filter(|(of, _)| *of == key).map(|(_, value)| value).collect();
        if !list.values[from..].starts_with(&own) {
            let reason = format!("transaction {writer} appended {own:?} to list {key}, which is {:?}", list.values);
            return Err(Anomaly { kind: Kind::Torn, transactions: vec![writer], reason });
        }
        from += own.len();
    }
    Ok(())
}
