//! The reads and writes of transactions, and the invariants of every consistent state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{SplitMix64, Timestamp};
use bytes::Bytes;
use tablets::request::Cell;
use tablets::transaction::RowChange;

use super::statements::{self, DATABASE};
use super::{Change, DROPPED, Found, Place, Question};

/// The rows and their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Each row is a list: a column per value, in order of the versions. The history shows any anomaly (`list_append`).
    Lists,
    /// The same lists. A transaction either reads one and appends to it, or reads all of them: so readers would show
    /// independent appends in different orders (a long fork).
    Forks,
    /// Registers with unique values. A transaction overwrites some without a read of them.
    Registers,
    /// Accounts, with a constant sum.
    Bank,
    /// Counters: no increment may be lost.
    Counters,
    /// Pairs of switches, of which one is always on. A transaction that switches one off has read both.
    Switches,
    /// A limited number of rows per table. A transaction that inserts one has scanned the table.
    Places,
    /// A database with its invariants, through SQL statements (`statements`). Not drawn: it has a theme of its own.
    Sql,
}

impl Workload {
    /// All workloads; those that find more are more frequent.
    pub(in crate::world) const DRAWN: [Self; 9] = [
        Self::Forks,
        Self::Lists,
        Self::Registers,
        Self::Lists,
        Self::Bank,
        Self::Bank,
        Self::Counters,
        Self::Switches,
        Self::Places,
    ];

    pub(super) fn has_lists(self) -> bool {
        matches!(self, Self::Lists | Self::Forks)
    }
}

/// The initial balance of an account.
const BALANCE: i64 = 100;
/// Maximum rows per table, if they are limited.
const ROWS_MAX: usize = 3;
/// The column of all rows but lists.
pub(super) const COLUMN: Bytes = Bytes::from_static(b"v");

/// The plan of a transaction, drawn before its first read.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) questions: Vec<Question>,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Writes the initial rows, if they are absent.
    Fill,
    /// Only reads all rows.
    Audit,
    /// A transaction of the workload. The seed determines its decisions.
    Work(u64),
}

/// All rows of a run.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) workload: Workload,
    places: Vec<Place>,
    /// The last value appended to a list, or written to a register.
    values: u64,
    /// Whether transactions also change the table that is dropped.
    uses_dropped: bool,
}

impl Rows {
    pub(super) fn draw(workload: Workload, random: &mut SplitMix64) -> Self {
        let count = match workload {
            Workload::Lists | Workload::Forks => [2, 4, 8][random.below(3) as usize],
            Workload::Places => 12,
            Workload::Sql => 0,
            _ => [4, 8][random.below(2) as usize],
        };
        let place = |number: usize| (number % DROPPED, Bytes::from(format!("k{:02}", number / DROPPED)));
        let uses_dropped = random.below(3) == 0;
        Self { workload, places: (0..count).map(place).collect(), values: 0, uses_dropped }
    }

    /// Every row that may exist.
    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    /// A key in the middle of each table.
    pub(super) fn split_at(&self) -> Bytes {
        if self.workload == Workload::Sql {
            return statements::split_at();
        }
        Bytes::from(format!("k{:02}", (self.places.len() / DROPPED).div_ceil(2)))
    }

    pub(super) fn any(&self, random: &mut SplitMix64) -> Place {
        if self.workload == Workload::Sql {
            return (DATABASE, statements::any_key(random));
        }
        self.places[random.below(self.places.len() as u64) as usize].clone()
    }

    pub(super) fn has_plain_writes(&self) -> bool {
        self.workload.has_lists() || self.workload == Workload::Registers
    }

    /// A write of a list or register without a transaction.
    pub(super) fn plain_write(&mut self, random: &mut SplitMix64) -> Change {
        let place = self.any(random);
        if self.workload == Workload::Registers { self.overwrite(&place) } else { self.append(place, 1) }
    }

    fn overwrite(&mut self, place: &Place) -> Change {
        self.values += 1;
        put(place, self.values.cast_signed())
    }

    fn append(&mut self, (table, key): Place, count: u64) -> Change {
        let mut columns = Vec::new();
        for _ in 0..count {
            self.values += 1;
            columns.push((Bytes::copy_from_slice(&self.values.to_be_bytes()), Some(Bytes::from_static(b"+"))));
        }
        Change { table, change: RowChange { key, deletes_row: false, columns } }
    }

    pub(super) fn fill(&self) -> Plan {
        Plan { questions: self.places.iter().cloned().map(Question::Row).collect(), purpose: Purpose::Fill }
    }

    pub(super) fn audit(&self) -> Plan {
        let questions = (0..DROPPED).map(|table| Question::Rows(table, Bytes::new())).collect();
        Plan { questions, purpose: Purpose::Audit }
    }

    /// Reads of all rows, one by one or by scans.
    pub(super) fn all_questions(&self, random: &mut SplitMix64) -> VecDeque<Question> {
        if random.below(2) == 0 {
            return self.audit().questions.into();
        }
        self.places.iter().cloned().map(Question::Row).collect()
    }

    /// A transaction of the workload.
    pub(super) fn plan(&self, random: &mut SplitMix64) -> Plan {
        if random.below(10) == 0 {
            return self.audit();
        }
        if self.workload == Workload::Forks && random.below(2) == 0 {
            return Plan { questions: self.all_questions(random).into(), purpose: Purpose::Audit };
        }
        let mut some = |most: u64| {
            let mut places = Vec::new();
            for _ in 0..1 + random.below(most) {
                let place = self.any(random);
                if !places.contains(&place) {
                    places.push(place);
                }
            }
            places
        };
        let places = match self.workload {
            Workload::Lists | Workload::Registers | Workload::Counters | Workload::Bank => some(3),
            Workload::Forks => some(1),
            Workload::Switches => {
                let first = random.below(self.places.len() as u64 / 2) as usize * 2;
                self.places[first..first + 2].to_vec()
            }
            Workload::Places | Workload::Sql => Vec::new(),
        };
        let mut questions: Vec<Question> = places.into_iter().map(Question::Row).collect();
        if self.workload == Workload::Places || self.workload == Workload::Lists && random.below(6) == 0 {
            questions.push(Question::Rows(random.below(DROPPED as u64) as usize, Bytes::new()));
        }
        Plan { questions, purpose: Purpose::Work(random.draw()) }
    }

    /// The writes of a transaction that has found these rows.
    pub(super) fn decide(&mut self, plan: &Plan, found: &[Found]) -> Vec<Change> {
        let mut changes = match plan.purpose {
            Purpose::Audit => return Vec::new(),
            Purpose::Fill => return self.fill_absent(found),
            Purpose::Work(seed) => self.work(&mut SplitMix64::new(seed), found),
        };
        let Purpose::Work(seed) = plan.purpose else { return changes };
        if self.uses_dropped && seed.is_multiple_of(4) {
            let columns = vec![(COLUMN, Some(Bytes::from_static(b"-")))];
            let key = self.places[seed as usize % self.places.len()].1.clone();
            changes.push(Change { table: DROPPED, change: RowChange { key, deletes_row: false, columns } });
        }
        changes
    }

    fn fill_absent(&self, found: &[Found]) -> Vec<Change> {
        let initial = match self.workload {
            Workload::Bank => BALANCE,
            Workload::Switches => 1,
            _ => return Vec::new(),
        };
        if found.iter().any(|found| !found.cells.is_empty()) {
            return Vec::new();
        }
        self.places.iter().map(|place| put(place, initial)).collect()
    }

    fn work(&mut self, random: &mut SplitMix64, found: &[Found]) -> Vec<Change> {
        match self.workload {
            Workload::Lists => self.append_some(random, found),
            Workload::Forks => found.iter().map(|one| self.append(one.place.clone(), 1)).collect(),
            Workload::Registers => self.overwrite_some(random),
            Workload::Bank => transfer(random, found),
            Workload::Counters => {
                found.iter().map(|one| put(&one.place, number(&one.cells).unwrap_or(0) + 1)).collect()
            }
            Workload::Switches => switch(random, found),
            Workload::Places => self.insert_or_delete(random, found),
            Workload::Sql => Vec::new(),
        }
    }

    fn append_some(&mut self, random: &mut SplitMix64, found: &[Found]) -> Vec<Change> {
        let mut changes: BTreeMap<Place, Change> = BTreeMap::new();
        for _ in 0..random.below(4) {
            let place = match found.get(random.below(found.len() as u64 + 1) as usize) {
                Some(found) => found.place.clone(),
                None => self.any(random),
            };
            let change = self.append(place.clone(), 1 + random.below(2));
            changes.entry(place).or_insert(change);
        }
        changes.into_values().collect()
    }

    fn overwrite_some(&mut self, random: &mut SplitMix64) -> Vec<Change> {
        let places: BTreeSet<Place> = (0..random.below(4)).map(|_| self.any(random)).collect();
        places.iter().map(|place| self.overwrite(place)).collect()
    }

    fn insert_or_delete(&self, random: &mut SplitMix64, found: &[Found]) -> Vec<Change> {
        let (there, absent): (Vec<&Found>, Vec<&Found>) = found.iter().partition(|found| !found.cells.is_empty());
        let insert = there.len() < ROWS_MAX && random.below(4) > 0;
        let among = if insert { &absent } else { &there };
        let Some(one) = among.get(random.below(among.len() as u64) as usize) else { return Vec::new() };
        let (table, key) = one.place.clone();
        match insert {
            true => vec![put(&one.place, 1)],
            false => vec![Change { table, change: RowChange { key, deletes_row: true, columns: Vec::new() } }],
        }
    }

    /// Checks a consistent state.
    ///
    /// # Errors
    /// A description of the violation.
    pub(super) fn check(&self, found: &[Found]) -> Result<(), String> {
        let all: BTreeMap<&Place, &Found> = found.iter().map(|found| (&found.place, found)).collect();
        if !self.places.iter().all(|place| all.contains_key(place)) {
            return Ok(());
        }
        let values = || all.values().filter_map(|found| number(&found.cells));
        let is_right = match self.workload {
            Workload::Lists | Workload::Forks | Workload::Registers | Workload::Counters | Workload::Sql => true,
            Workload::Bank => {
                let (sum, count) = (values().sum::<i64>(), values().count());
                count == 0 || count == self.places.len() && sum == BALANCE * count.cast_signed() as i64
            }
            Workload::Switches => {
                let is_on = |place: &Place| all.get(place).and_then(|found| number(&found.cells)) == Some(1);
                values().count() == 0 || self.places.chunks(2).all(|pair| pair.iter().any(is_on))
            }
            Workload::Places => (0..DROPPED).all(|table| {
                let of_table = all.iter().filter(|((of, _), found)| *of == table && !found.cells.is_empty());
                of_table.count() <= ROWS_MAX
            }),
        };
        let shown = || all.iter().map(|(place, found)| format!("{place:?}: {:?}", number(&found.cells)));
        if is_right {
            Ok(())
        } else {
            Err(format!(
                "{:?}: the rows {} are no state of them",
                self.workload,
                shown().collect::<Vec<_>>().join(", ")
            ))
        }
    }
}

fn transfer(random: &mut SplitMix64, found: &[Found]) -> Vec<Change> {
    let balances: Vec<(&Place, i64)> =
        found.iter().filter_map(|found| Some((&found.place, number(&found.cells)?))).collect();
    let [(from, first), .., (to, last)] = &balances[..] else { return Vec::new() };
    let amount = i64::try_from(random.below(20)).unwrap_or(0);
    vec![put(from, first - amount), put(to, last + amount)]
}

fn switch(random: &mut SplitMix64, found: &[Found]) -> Vec<Change> {
    let off = found.iter().find(|found| number(&found.cells) == Some(0));
    match off {
        Some(found) => vec![put(&found.place, 1)],
        None => vec![put(&found[random.below(found.len() as u64) as usize].place, 0)],
    }
}

fn put((table, key): &Place, number: i64) -> Change {
    let columns = vec![(COLUMN, Some(Bytes::from(number.to_string())))];
    Change { table: *table, change: RowChange { key: key.clone(), deletes_row: false, columns } }
}

/// The number in a row.
pub(super) fn number(cells: &[Cell]) -> Option<i64> {
    parsed(&cells.first().filter(|cell| cell.column == COLUMN)?.value)
}

pub(super) fn parsed(value: &Bytes) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// The values of a list, in order.
pub(super) fn list(cells: &[Cell]) -> Vec<u64> {
    let value = |column: &Bytes| column[..].try_into().map(u64::from_be_bytes).unwrap_or_default();
    let mut values: Vec<(Timestamp, u64)> = cells.iter().map(|cell| (cell.version, value(&cell.column))).collect();
    values.sort_unstable();
    values.into_iter().map(|(_, value)| value).collect()
}

/// The values that a change appends to a list.
pub(super) fn appended(change: &RowChange) -> impl Iterator<Item = u64> {
    let value = |column: &Bytes| column[..].try_into().map(u64::from_be_bytes).unwrap_or_default();
    change.columns.iter().map(move |(column, _)| value(column))
}
