//! Generates good histories: clients on an atomic row, with operations that take effect between call and return, or,
//! when the outcome is unknown, possibly much later.

use std::collections::BTreeMap;

use base::{SplitMix64, Timestamp};
use bytes::Bytes;
use tablets::request::{Cell, Mutation};

use crate::history::{Operation, What, WriteOutcome};

/// Parameters of a history; probabilities in percent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) operations: usize,
    pub(super) clients: u64,
    pub(super) columns: u64,
    /// Number of distinct values; 0: every write has a new value.
    pub(super) values: u64,
    pub(super) reads: u64,
    pub(super) deletes: u64,
    pub(super) conditions: u64,
    /// Writes of unknown outcome.
    pub(super) unknown: u64,
    /// Maximum time from call to effect, and from effect to return.
    pub(super) delay: u64,
    /// Maximum difference between two consecutive versions.
    pub(super) version_step: u64,
}

type Cells = BTreeMap<Bytes, (Timestamp, Bytes)>;

/// A history, and the row after each write that took effect.
pub(super) struct Generated {
    pub(super) history: Vec<Operation>,
    /// The writes, by index, in the order of their effects, and the row after each.
    pub(super) effects: Vec<(usize, Cells)>,
}

struct Planned {
    effect: u64,
    operation: Operation,
    takes_effect: bool,
}

pub(super) fn generate(shape: Shape, random: &mut SplitMix64) -> Generated {
    let mut planned: Vec<Planned> = plan(shape, random);
    planned.sort_by_key(|it| it.effect);
    let mut row = Cells::new();
    let mut version = 0;
    let mut effects = Vec::new();
    let mut seen = vec![0];
    for (index, it) in planned.iter_mut().enumerate() {
        match &mut it.operation.what {
            What::Read { columns, cells } => {
                *cells = read(&row, columns.as_deref());
                seen.extend(cells.iter().map(|cell| cell.version.0));
            }
            What::Write { mutations, outcome } => {
                for mutation in mutations.iter_mut() {
                    if mutation.condition.is_some() {
                        mutation.condition = Some(condition(&row, &mutation.column, &seen, random));
                    }
                }
                if !it.takes_effect {
                    continue;
                }
                let is_known = *outcome != WriteOutcome::Unknown;
                match refusal(&row, mutations) {
                    Some(refusal) if is_known => *outcome = refusal,
                    Some(_) => {}
                    None => {
                        version += 1 + i64::try_from(random.below(shape.version_step)).expect("small");
                        apply(&mut row, mutations, Timestamp(version));
                        effects.push((index, row.clone()));
                        if is_known {
                            *outcome = WriteOutcome::Written(Timestamp(version));
                        }
                    }
                }
            }
        }
    }
    Generated { history: planned.into_iter().map(|it| it.operation).collect(), effects }
}

/// Plans calls, returns and requests; responses are filled in when the operations take effect.
fn plan(shape: Shape, random: &mut SplitMix64) -> Vec<Planned> {
    let mut free_at = vec![0; usize::try_from(shape.clients).expect("few")];
    let mut value = 0;
    let mut planned = Vec::new();
    for _ in 0..shape.operations {
        let client = (0..free_at.len()).min_by_key(|&client| free_at[client]).expect("a client");
        let called = free_at[client] + random.below(3);
        let mut effect = called + random.below(shape.delay);
        let returned = effect + random.below(shape.delay);
        free_at[client] = returned + 1;
        let mut takes_effect = true;
        let mut answered = Some(returned);
        let what = if random.below(100) < shape.reads {
            What::Read { columns: requested_columns(shape, random), cells: Vec::new() }
        } else {
            let unknown = random.below(100) < shape.unknown;
            if unknown {
                takes_effect = random.below(3) > 0;
                effect += random.below(3) * random.below(shape.delay * 10);
                answered = answered.filter(|_| random.below(2) > 0);
            }
            let outcome = if unknown { WriteOutcome::Unknown } else { WriteOutcome::NotDone };
            takes_effect &= unknown || random.below(50) > 0;
            What::Write { mutations: mutations(shape, &mut value, random), outcome }
        };
        let client = u32::try_from(client).expect("few");
        let operation = Operation { client, called, returned: answered, key: Bytes::from_static(b"row"), what };
        planned.push(Planned { effect, operation, takes_effect });
    }
    planned
}

fn column(number: u64) -> Bytes {
    Bytes::from(format!("c{number}"))
}

fn requested_columns(shape: Shape, random: &mut SplitMix64) -> Option<Vec<Bytes>> {
    (random.below(2) > 0).then(|| (0..shape.columns).filter(|_| random.below(2) > 0).map(column).collect())
}

fn mutations(shape: Shape, value: &mut u64, random: &mut SplitMix64) -> Vec<Mutation> {
    let first = random.below(shape.columns);
    let count = 1 + random.below(shape.columns.min(3));
    (first..first + count)
        .map(|number| {
            *value += 1;
            let text = if shape.values == 0 { *value } else { random.below(shape.values) };
            Mutation {
                column: column(number % shape.columns),
                value: (random.below(100) >= shape.deletes).then(|| Bytes::from(text.to_string())),
                condition: (random.below(100) < shape.conditions).then_some(Timestamp(0)),
            }
        })
        .collect()
}

/// The column's current version in three of four cases, otherwise one that was seen.
fn condition(row: &Cells, column: &Bytes, seen: &[i64], random: &mut SplitMix64) -> Timestamp {
    match random.below(4) {
        0 => Timestamp(seen[usize::try_from(random.below(seen.len() as u64)).expect("an index")]),
        _ => row.get(column).map_or(Timestamp(0), |(version, _)| *version),
    }
}

fn read(row: &Cells, asked: Option<&[Bytes]>) -> Vec<Cell> {
    let cells = row.iter().filter(|(column, _)| asked.is_none_or(|asked| asked.contains(column)));
    cells
        .map(|(column, (version, value))| Cell { column: column.clone(), value: value.clone(), version: *version })
        .collect()
}

pub(super) fn refusal(row: &Cells, mutations: &[Mutation]) -> Option<WriteOutcome> {
    mutations.iter().find_map(|mutation| {
        let expected = mutation.condition?;
        let actual = row.get(&mutation.column).map_or(Timestamp(0), |(version, _)| *version);
        let column = mutation.column.clone();
        (actual != expected).then_some(WriteOutcome::Mismatch { column, expected, actual })
    })
}

pub(super) fn apply(row: &mut Cells, mutations: &[Mutation], version: Timestamp) {
    for mutation in mutations {
        match &mutation.value {
            Some(value) => row.insert(mutation.column.clone(), (version, value.clone())),
            None => row.remove(&mutation.column),
        };
    }
}

/// Whether a read of `row` would have returned these cells.
pub(super) fn answers(row: &Cells, asked: Option<&[Bytes]>, cells: &[Cell]) -> bool {
    read(row, asked) == cells
}
