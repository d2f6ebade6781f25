//! Verifies the checker: a stale read is planted in a history that passed, and must be found.

use bytes::Bytes;
use sim::history::{Kind, Operation, What, WriteOutcome, check};
use tablets::request::Cell;

/// Number of stale reads planted, each in its own copy of the history, near the end.
const PLANTED: usize = 3;

/// Plants stale reads in a good history, one at a time, and asserts that each is found.
pub(super) fn is_found_in(history: &[Operation]) {
    let stale = (0..history.len()).rev().filter_map(|index| Some((index, stale_cells(history, index)?)));
    let stale: Vec<_> = stale.take(PLANTED).collect();
    assert_eq!(stale.len(), PLANTED, "the history has no place for a stale read");
    for (index, cells) in stale {
        let mut planted = history.to_vec();
        let What::Read { cells: read, .. } = &mut planted[index].what else { unreachable!("it is a read") };
        *read = cells;
        match check(&planted) {
            Ok(_) => panic!("the stale read planted at #{index} is not found: {:?}", planted[index]),
            Err(violation) => assert_ne!(violation.kind, Kind::Undecided, "{violation}"),
        }
    }
}

/// The result of the read at `index` had it missed the last of several puts of a column that completed before the read
/// was called.
fn stale_cells(history: &[Operation], index: usize) -> Option<Vec<Cell>> {
    let What::Read { columns, cells } = &history[index].what else { return None };
    let columns: Vec<Bytes> = columns.clone().unwrap_or_else(|| cells.iter().map(|cell| cell.column.clone()).collect());
    columns.iter().find_map(|column| {
        let mut puts = puts_before(history, &history[index], column);
        puts.sort_by_key(|cell| cell.version);
        let newest = puts.pop()?;
        let older = puts.pop()?;
        (older.version < newest.version).then(|| {
            let mut stale: Vec<Cell> = cells.iter().filter(|cell| cell.column != *column).cloned().collect();
            stale.push(older);
            stale.sort_by(|a, b| a.column.cmp(&b.column));
            stale
        })
    })
}

/// The acknowledged puts of a column that completed before `read` was called.
fn puts_before(history: &[Operation], read: &Operation, column: &Bytes) -> Vec<Cell> {
    let of_row = history.iter().filter(|other| other.key == read.key);
    let over = of_row.filter(|other| other.returned.is_some_and(|returned| returned < read.called));
    over.filter_map(|other| {
        let What::Write { mutations, outcome: WriteOutcome::Written(version) } = &other.what else { return None };
        let value = mutations.iter().find(|mutation| mutation.column == *column)?.value.clone()?;
        Some(Cell { column: column.clone(), value, version: *version })
    })
    .collect()
}
