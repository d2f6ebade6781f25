//! The reference model of a tree: every write, searched linearly.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::sstable::Version;

/// A row, a column, and the value if there is one.
type Put = (Vec<u8>, Vec<u8>, Option<Vec<u8>>);

/// The writes of one log entry.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) puts: Vec<Put>,
    pub(super) deleted_row: Option<Vec<u8>>,
}

pub(super) fn row_name(number: u64) -> Vec<u8> {
    format!("row{number:05}").into_bytes()
}

impl Write {
    /// The row with that number and one small column; rows are ordered by number.
    pub(super) fn row(number: u64) -> Self {
        Self { puts: vec![(row_name(number), b"c".to_vec(), Some(vec![7; 60]))], deleted_row: None }
    }

    pub(super) fn random(random: &mut SplitMix64, rows: u64) -> Self {
        let row = random_row(random, rows);
        let deleted_row = (random.below(15) == 0).then(|| row.clone());
        // A transaction may delete a row and put columns of it.
        let puts = if deleted_row.is_some() { random.below(3) } else { 1 + random.below(2) };
        let puts = (0..puts).map(|_| (row.clone(), random_column(random), random_value(random)));
        Self { puts: puts.collect(), deleted_row }
    }
}

pub(super) fn random_row(random: &mut SplitMix64, rows: u64) -> Vec<u8> {
    let number = random.below(rows);
    match number % 5 {
        0 => vec![0; number as usize % 7],
        1 => [b"row\0", &number.to_be_bytes()[..]].concat(),
        _ => format!("row{number}").into_bytes(),
    }
}

pub(super) fn random_column(random: &mut SplitMix64) -> Vec<u8> {
    [&b"\0"[..], b"\x01", b"column", b"column2", b"\xff"][random.below(5) as usize].to_vec()
}

fn random_value(random: &mut SplitMix64) -> Option<Vec<u8>> {
    match random.below(30) {
        0..4 => None,
        4 => Some(vec![random.draw() as u8; random.below(2_000) as usize]),
        _ => Some((0..random.below(40)).map(|_| random.draw() as u8).collect()),
    }
}

type Versions = BTreeMap<Timestamp, Option<Vec<u8>>>;

#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    cells: BTreeMap<(Vec<u8>, Vec<u8>), Versions>,
    deleted: BTreeMap<Vec<u8>, BTreeSet<Timestamp>>,
    last: Timestamp,
}

type Visible = (Vec<u8>, Vec<u8>, Timestamp, Vec<u8>);

impl Model {
    pub(super) fn write(&mut self, timestamp: Timestamp, write: &Write) {
        self.last = timestamp;
        for (row, column, value) in &write.puts {
            self.cells.entry((row.clone(), column.clone())).or_default().insert(timestamp, value.clone());
        }
        if let Some(row) = &write.deleted_row {
            self.deleted.entry(row.clone()).or_default().insert(timestamp);
        }
    }

    pub(super) fn last(&self) -> Timestamp {
        self.last
    }

    /// Whether a row was deleted after one time and not after the other.
    fn is_deleted(&self, row: &[u8], after: Timestamp, to: Timestamp) -> bool {
        let last = self.deleted.get(row).and_then(|deleted| deleted.range(..=to).next_back());
        last.is_some_and(|last| *last > after)
    }

    fn newest(&self, row: &[u8], versions: &Versions, at: Timestamp) -> Option<(Timestamp, Vec<u8>)> {
        let (timestamp, value) = versions.range(..=at).next_back()?;
        let value = value.clone().filter(|_| !self.is_deleted(row, *timestamp, at))?;
        Some((*timestamp, value))
    }

    pub(super) fn visible(&self, at: Timestamp) -> Vec<Visible> {
        let visible = self.cells.iter().filter_map(|((row, column), versions)| {
            let (timestamp, value) = self.newest(row, versions, at)?;
            Some((row.clone(), column.clone(), timestamp, value))
        });
        visible.collect()
    }

    pub(super) fn check_newest(&self, view: &View, row: &[u8], column: &[u8], at: Timestamp) {
        let versions = self.cells.get(&(row.to_vec(), column.to_vec()));
        let expected = versions.and_then(|versions| self.newest(row, versions, at));
        let found = view.newest(row, column, at, Io::Allowed).unwrap();
        let found = found.map(|(timestamp, value)| (timestamp, value.to_vec()));
        assert_eq!(found, expected, "{row:?} {column:?} at {at}");
    }

    /// Compares the cells of a range in both directions.
    pub(super) fn check_cells(&self, view: &View, range: &Range, at: Timestamp) {
        let holds = |(row, column, ..): &Visible| {
            let key = cell::encode(row, column);
            range.start <= key && range.ends_after(&key)
        };
        let mut expected: Vec<Visible> = self.visible(at).into_iter().filter(holds).collect();
        for direction in [Direction::Forwards, Direction::Backwards] {
            let found = view.cells(range.clone(), direction, at, Io::Allowed).map(|cell| visible(cell.unwrap()));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{direction:?} at {at}");
            expected.reverse();
        }
    }

    /// Compares whether a range of keys has changed since a moment. With a limit, that may stay unknown.
    pub(super) fn check_changed(&self, view: &View, range: &Range, since: Timestamp, steps_max: usize) {
        let holds = |key: &[u8]| *range.start <= *key && range.ends_after(key);
        let cells = self.cells.iter().map(|((row, column), versions)| (cell::encode(row, column), versions.keys()));
        let of_cells = cells.filter(|(key, _)| holds(key)).flat_map(|(_, versions)| versions.copied());
        let rows = self.deleted.iter().filter(|(row, _)| holds(&cell::encode(row, b"")));
        let of_rows = rows.flat_map(|(_, deleted)| deleted.iter().copied());
        let newer: BTreeSet<Timestamp> = of_cells.chain(of_rows).filter(|timestamp| *timestamp > since).collect();
        match view.changed_since(range, since, &mut { steps_max }, Io::Allowed).unwrap() {
            Changed::No => assert_eq!(newer, BTreeSet::new(), "{range:?} has changed since {since}"),
            Changed::At(timestamp) => assert!(newer.contains(&timestamp), "{timestamp} in {range:?} since {since}"),
            Changed::TooManyVersions => assert!(steps_max < usize::MAX, "there is no limit"),
        }
    }

    /// Compares the versions that a read at or above the watermark can observe.
    pub(super) fn check_versions(&self, view: &View, watermark: Timestamp) {
        let mut expected = BTreeMap::new();
        for ((row, column), versions) in &self.cells {
            let key = cell::encode(row, column);
            let newer = versions.iter().filter(|(timestamp, _)| **timestamp > watermark);
            expected.extend(newer.map(|(timestamp, value)| ((key.clone(), -timestamp.0), value.clone())));
            if let Some((timestamp, value)) = self.newest(row, versions, watermark) {
                expected.insert((key, -timestamp.0), Some(value));
            }
        }
        for (row, deleted) in &self.deleted {
            let newer = deleted.iter().filter(|timestamp| **timestamp > watermark);
            expected.extend(newer.map(|timestamp| ((cell::encode(row, b""), -timestamp.0), None)));
        }
        let found = view.versions(Range::all(), watermark, self.last, Io::Allowed).map(|version| {
            let Version { key, timestamp, value, .. } = version.unwrap();
            ((key.to_vec(), -timestamp.0), value.map(|value| value.to_vec()))
        });
        assert!(found.eq(expected), "versions at the watermark {watermark}");
    }
}

pub(super) fn visible(cell: Cell) -> Visible {
    let Cell { row, column, timestamp, value } = cell;
    (row.to_vec(), column.to_vec(), timestamp, value.to_vec())
}
