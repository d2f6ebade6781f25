//! Checks commit timestamps: they follow the order of each list, and real time (Spanner, section 1: if one transaction
//! ends before another begins, its timestamp is smaller).

use base::Timestamp;

use super::{Anomaly, Kind, Lists, Outcome, Transaction};

pub(super) fn check(history: &[Transaction], lists: &Lists) -> Result<(), Anomaly> {
    for (key, list) in &lists.lists {
        // A transaction may append several values with one timestamp.
        let mut writers: Vec<usize> = list.writers.clone();
        writers.dedup();
        let stamped: Vec<(usize, Timestamp)> =
            writers.into_iter().filter_map(|writer| Some((writer, timestamp(&history[writer])?))).collect();
        if let Some(pair) = stamped.windows(2).find(|pair| pair[0].1 >= pair[1].1) {
            let [(first, at), (second, then)] = [pair[0], pair[1]];
            let reason = format!(
                "list {key} has the values of transaction {first} (at {at}) before those of {second} (at {then})"
            );
            return Err(Anomaly { kind: Kind::Timestamps, transactions: vec![first, second], reason });
        }
    }
    let mut begun: Vec<usize> = (0..history.len()).filter(|index| timestamp(&history[*index]).is_some()).collect();
    let mut ended = begun.clone();
    begun.sort_by_key(|index| history[*index].begun);
    ended.sort_by_key(|index| history[*index].ended);
    // The greatest timestamp of a transaction that has ended.
    let mut greatest: Option<(Timestamp, usize)> = None;
    let mut ended = ended.into_iter().peekable();
    for later in begun {
        while let Some(earlier) = ended.next_if(|earlier| history[*earlier].ended < history[later].begun) {
            greatest = greatest.max(timestamp(&history[earlier]).map(|at| (at, earlier)));
        }
        if let (Some((before, earlier)), Some(at)) = (greatest, timestamp(&history[later]))
            && before >= at
            && has_writes(&history[later])
        {
            let reason = format!("transaction {earlier} (at {before}) ended before {later} (at {at}) began");
            return Err(Anomaly { kind: Kind::Timestamps, transactions: vec![earlier, later], reason });
        }
    }
    Ok(())
}

/// Only the timestamps of transactions that write must be unique: a read may use that of the last write.
fn has_writes(transaction: &Transaction) -> bool {
    transaction.operations.iter().any(|operation| matches!(operation, super::Operation::Append(..)))
}

fn timestamp(transaction: &Transaction) -> Option<Timestamp> {
    match transaction.outcome {
        Outcome::Committed(timestamp) => timestamp,
        Outcome::Aborted | Outcome::Unknown => None,
    }
}
