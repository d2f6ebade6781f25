//! The observations of the transactional clients, and their checks:
//!
//! * A number that was read is that of the write with its version, which was not aborted.
//! * Every read that names the moment of its state shows, in each row, the newest write up to that moment; the reads of
//!   a transaction also show the newest one before its commit. This implies serializability in the order of the
//!   timestamps, snapshots that are consistent and monotonic, and that no update is lost. It holds under any clock.
//! * A strong read shows every write of the row that was acknowledged before it began. It holds under any clock.
//! * While clocks are within their bounds, a transaction has a higher timestamp than everything that was acknowledged
//!   before it began.
//! * A consistent state is one that the workload allows.
//! * A history of lists is serializable, and strictly so while clocks are within their bounds (`list_append`).
//! * At the end, the writes of each transaction are there entirely or not at all.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use base::{SplitMix64, Timestamp};

use super::workloads::{COLUMN, Rows, Workload, appended, list, number, parsed};
use super::{Change, DROPPED, Found, Place};
use crate::list_append::{self, Operation, Outcome, Transaction};
use crate::world::{TrueTime, World};

/// Maximum distance of a past snapshot behind the last commit, in nanoseconds.
const PAST: u64 = 1_500_000_000;

/// The end of a transaction, a plain write or a read, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It took effect, with this timestamp if it has one.
    Committed(Option<Timestamp>),
    /// It had no effect and never will.
    Aborted,
    Unknown,
}

/// A transaction, a plain write or a read.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) client: usize,
    pub(super) begun: TrueTime,
    pub(super) ended: TrueTime,
    pub(super) outcome: Ended,
    /// The moment that was read, if it was chosen.
    pub(super) moment: Option<Timestamp>,
    pub(super) found: Vec<Found>,
    pub(super) writes: Vec<Change>,
    /// Reads and appends of lists in SQL columns.
    pub(super) operations: Vec<Operation>,
}

impl Done {
    fn is_committed(&self) -> bool {
        matches!(self.outcome, Ended::Committed(_))
    }

    fn timestamp(&self) -> Option<Timestamp> {
        if let Ended::Committed(timestamp) = self.outcome { timestamp } else { None }
    }

    /// Its changes of tables that last.
    fn changes(&self) -> impl Iterator<Item = &Change> {
        self.writes.iter().filter(|change| change.table != DROPPED)
    }
}

/// All observations of a run.
#[derive(Debug, Default)]
pub(super) struct History {
    done: Vec<Done>,
    last_commit: Timestamp,
}

impl History {
    /// A moment of the past to read.
    pub(super) fn moment(&self, random: &mut SplitMix64) -> Timestamp {
        Timestamp(self.last_commit.0.saturating_sub_unsigned(random.below(PAST)))
    }

    pub(super) fn operations(&self) -> usize {
        self.done.len()
    }

    fn note(&mut self, done: Done) {
        self.last_commit = self.last_commit.max(done.timestamp().unwrap_or_default());
        self.done.push(done);
    }

    /// Checks all observations.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn check(&self, rows: &Rows, has_true_clocks: bool) -> Result<(), String> {
        let writes = Writes::of(&self.done);
        for done in &self.done {
            writes.check(done, has_true_clocks)?;
            if done.is_committed() && (done.moment.is_some() || done.timestamp().is_some()) {
                rows.check(&done.found)?;
            }
        }
        let whole = self.last_rows();
        self.check_last(rows, &whole)?;
        let transactions: Vec<Transaction> = self
            .done
            .iter()
            .filter(|done| done.changes().next().is_some() || done.is_committed())
            .enumerate()
            .map(|(number, done)| transaction(number as u64, rows.workload, done, has_true_clocks))
            .collect();
        list_append::check(&transactions).map_err(|anomaly| {
            let involved: Vec<String> =
                anomaly.transactions.iter().map(|index| format!("{index}: {:?}", transactions[*index])).collect();
            format!("{anomaly}\n{}", involved.join("\n"))
        })
    }

    /// Every row as it was read last.
    fn last_rows(&self) -> BTreeMap<Place, &Found> {
        let last_reads = self.done.iter().filter(|done| done.is_committed() && done.moment.is_none());
        last_reads.flat_map(|done| &done.found).map(|found| (found.place.clone(), found)).collect()
    }

    /// Checks that the last state of the rows has the writes of each transaction entirely or not at all.
    fn check_last(&self, rows: &Rows, last: &BTreeMap<Place, &Found>) -> Result<(), String> {
        match rows.workload {
            Workload::Lists | Workload::Forks => {
                let all: BTreeSet<u64> = last.values().flat_map(|found| list(&found.cells)).collect();
                for done in &self.done {
                    let values = || done.changes().flat_map(|change| appended(&change.change));
                    let (count, present) = (values().count(), values().filter(|value| all.contains(value)).count());
                    let is_right = match done.outcome {
                        Ended::Committed(_) => present == count,
                        Ended::Aborted => present == 0,
                        Ended::Unknown => present == 0 || present == count,
                    };
                    if !is_right {
                        return Err(format!("{present} of {count} values are there at the end of {done:?}"));
                    }
                }
            }
            Workload::Counters => {
                for place in rows.places() {
                    let increments = |outcome: fn(&Done) -> bool| {
                        let done = self.done.iter().filter(|done| outcome(done));
                        done.flat_map(Done::changes).filter(|change| change.place() == *place).count() as i64
                    };
                    let least = increments(Done::is_committed);
                    let most = least + increments(|done| done.outcome == Ended::Unknown);
                    let value = last.get(place).and_then(|found| number(&found.cells)).unwrap_or(0);
                    if !(least..=most).contains(&value) {
                        return Err(format!("counter {place:?} is {value} after {least} to {most} increments"));
                    }
                }
            }
            Workload::Registers | Workload::Bank | Workload::Switches | Workload::Places | Workload::Sql => {}
        }
        Ok(())
    }
}

/// The transaction as the checker of lists takes it. If the rows are no lists, only its order in time counts.
fn transaction(number: u64, workload: Workload, done: &Done, has_true_clocks: bool) -> Transaction {
    let key = |(table, key): &Place| {
        key.iter().fold(*table as u64, |sum, byte| sum.wrapping_mul(251).wrapping_add(u64::from(*byte)))
    };
    let mut operations = Vec::new();
    if workload.has_lists() {
        // The reads of an aborted transaction may be as of different moments.
        let valid = done.found.iter().filter(|_| done.is_committed());
        operations.extend(valid.map(|found| Operation::Read(key(&found.place), list(&found.cells))));
        for change in done.changes() {
            let values = appended(&change.change);
            operations.extend(values.map(|value| Operation::Append(key(&change.place()), value)));
        }
    } else if !done.operations.is_empty() {
        let valid = |one: &&Operation| done.is_committed() || matches!(one, Operation::Append(..));
        operations.extend(done.operations.iter().filter(valid).cloned());
    } else if done.changes().next().is_some() {
        operations.push(Operation::Append(u64::MAX - number, number));
    }
    let outcome = match done.outcome {
        Ended::Committed(timestamp) => Outcome::Committed(timestamp),
        Ended::Aborted => Outcome::Aborted,
        Ended::Unknown => Outcome::Unknown,
    };
    // Without true clocks, any order in time is possible.
    let (begun, ended) = if has_true_clocks { (done.begun, done.ended) } else { (0, u64::MAX) };
    Transaction { client: done.client as u32, begun, ended, outcome, operations }
}

/// The number that a change writes, if its row is none of a list.
fn written(change: &Change) -> Option<i64> {
    let (column, value) = change.change.columns.first()?;
    parsed(value.as_ref().filter(|_| *column == COLUMN)?)
}

/// The writes of each row.
#[derive(Default)]
struct Writes {
    known: BTreeMap<Place, BTreeMap<Timestamp, Written>>,
    /// The numbers written to each row with an unknown outcome; none for other writes.
    unknown: BTreeMap<Place, BTreeSet<Option<i64>>>,
}

/// An acknowledged write of a row.
struct Written {
    acknowledged: TrueTime,
    deletes_row: bool,
    /// The number, if the row is none of a list.
    number: Option<i64>,
}

impl Writes {
    fn of(done: &[Done]) -> Self {
        let mut writes = Self::default();
        for done in done {
            for change in done.changes() {
                match (done.outcome, done.timestamp()) {
                    (Ended::Committed(_), Some(timestamp)) => {
                        let of_row = writes.known.entry(change.place()).or_default();
                        let deletes_row = change.change.deletes_row && change.change.columns.is_empty();
                        of_row.insert(
                            timestamp,
                            Written { acknowledged: done.ended, deletes_row, number: written(change) },
                        );
                    }
                    (Ended::Unknown, _) => {
                        writes.unknown.entry(change.place()).or_default().insert(written(change));
                    }
                    _ => {}
                }
            }
        }
        writes
    }

    fn check(&self, done: &Done, has_true_clocks: bool) -> Result<(), String> {
        for found in &done.found {
            self.check_value(found).map_err(|wrong| format!("{wrong}: {done:?}"))?;
            if let Some(at) = found.at {
                self.check_moment(found, at).map_err(|wrong| format!("{wrong} as of {at}: {done:?}"))?;
            }
            if let Some(timestamp) = done.timestamp() {
                let before = Timestamp(timestamp.0 - 1);
                self.check_moment(found, before).map_err(|wrong| format!("{wrong} before its commit: {done:?}"))?;
            }
            // A read of the present, at its leader or by its index.
            let is_plain = done.moment.is_none() && found.at.is_none();
            let is_of_present = is_plain || has_true_clocks && done.begun > 0 && done.is_committed();
            if is_of_present {
                self.check_present(found, done.begun).map_err(|wrong| format!("{wrong} in the present: {done:?}"))?;
            }
        }
        Ok(())
    }

    /// Checks that a row has the number of the write that gave it its version, which was not aborted.
    fn check_value(&self, found: &Found) -> Result<(), String> {
        let Some(number) = number(&found.cells) else { return Ok(()) };
        let version = found.version();
        let is_right = match self.known.get(&found.place).and_then(|writes| writes.get(&version)) {
            Some(written) => written.number == Some(number),
            None => self.unknown.get(&found.place).is_some_and(|numbers| numbers.contains(&Some(number))),
        };
        if is_right {
            return Ok(());
        }
        Err(format!("row {:?} was read as {number} with version {version}, which no write explains", found.place))
    }

    /// Checks that a row is the result of its newest write up to a moment.
    fn check_moment(&self, found: &Found, at: Timestamp) -> Result<(), String> {
        let version = found.version();
        let newest = self.known.get(&found.place).and_then(|writes| writes.range(..=at).next_back());
        let (newest, expected) = match newest {
            Some((timestamp, written)) => (*timestamp, if written.deletes_row { Timestamp(0) } else { *timestamp }),
            None => (Timestamp(0), Timestamp(0)),
        };
        let is_explained = self.unknown.contains_key(&found.place) && (version > newest || version == Timestamp(0));
        let is_right = version <= at && (version == expected || is_explained);
        if is_right {
            return Ok(());
        }
        Err(format!("row {:?} was read with version {version} instead of {expected}", found.place))
    }

    /// Checks that a row shows each write that was acknowledged before.
    fn check_present(&self, found: &Found, begun: TrueTime) -> Result<(), String> {
        let mut writes = self.known.get(&found.place).into_iter().flatten();
        let acknowledged = writes.by_ref().filter(|(_, written)| written.acknowledged < begun).last();
        let Some((newest, Written { deletes_row, .. })) = acknowledged else { return Ok(()) };
        let is_right = found.version() >= *newest || *deletes_row || found.version() == Timestamp(0);
        if is_right && (found.version() != Timestamp(0) || *deletes_row || self.may_be_deleted(found, *newest)) {
            return Ok(());
        }
        Err(format!("row {:?} was read with version {}, without {newest}", found.place, found.version()))
    }

    /// Whether a row may have been deleted after a moment.
    fn may_be_deleted(&self, found: &Found, after: Timestamp) -> bool {
        let mut writes = self.known.get(&found.place).into_iter().flatten();
        self.unknown.contains_key(&found.place) || writes.any(|(at, written)| written.deletes_row && *at > after)
    }
}

impl World {
    /// A transaction, a plain write or a read has ended.
    pub(super) fn transaction_ended(&mut self, done: Done) {
        self.transactions.history.note(done);
    }

    /// Checks the observations of the transactional clients.
    pub(in crate::world) fn check_transactions(&mut self) {
        let has_true_clocks = self.options.lying_node.is_none();
        let transactions = &self.transactions;
        *self.counters.entry("transactions and reads recorded").or_default() +=
            transactions.history.operations() as u64;
        if let Err(wrong) = transactions.history.check(&transactions.rows, has_true_clocks) {
            self.violate(&wrong);
        }
    }
}
