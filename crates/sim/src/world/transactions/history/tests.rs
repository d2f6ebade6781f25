//! One planted anomaly of every class that the checks of the observations must find, each with a correct history.

use super::*;
use bytes::Bytes;
use tablets::request::Cell;
use tablets::transaction::RowChange;

/// The rows of a workload: the same for each call.
fn rows(workload: Workload) -> Rows {
    Rows::draw(workload, &mut SplitMix64::new(1))
}

fn value(number: i64) -> Bytes {
    Bytes::from(number.to_string())
}

/// A write of a number; 0 deletes the row.
fn put((table, key): &Place, number: i64) -> Change {
    let columns = if number == 0 { Vec::new() } else { vec![(COLUMN, Some(value(number)))] };
    Change { table: *table, change: RowChange { key: key.clone(), deletes_row: number == 0, columns } }
}

/// A row as it was read as of a moment; 0: it is absent.
fn row(place: &Place, number: i64, version: i64, at: i64) -> Found {
    let cell = Cell { column: COLUMN, value: value(number), version: Timestamp(version) };
    Found { place: place.clone(), cells: if number == 0 { Vec::new() } else { vec![cell] }, at: Some(Timestamp(at)) }
}

/// A transaction that committed with this timestamp, and ran at the same time.
fn committed(timestamp: i64, found: Vec<Found>, writes: Vec<Change>) -> Done {
    let time = timestamp.cast_unsigned();
    let outcome = Ended::Committed(Some(Timestamp(timestamp)));
    Done { client: 0, begun: time - 1, ended: time, outcome, moment: None, found, writes, operations: Vec::new() }
}

/// A read of these rows as of a moment, by a client that knew it at the time.
fn snapshot(at: i64, found: Vec<Found>) -> Done {
    let done = committed(at + 1, found, Vec::new());
    Done { outcome: Ended::Committed(None), moment: Some(Timestamp(at)), ..done }
}

#[track_caller]
fn passes(workload: Workload, done: &[Done]) {
    let history = History { done: done.to_vec(), ..History::default() };
    assert_eq!(history.check(&rows(workload), true), Ok(()));
}

#[track_caller]
fn finds(workload: Workload, done: &[Done], what: &str) {
    let history = History { done: done.to_vec(), ..History::default() };
    let wrong = history.check(&rows(workload), true).expect_err(what);
    assert!(wrong.contains(what), "{wrong}");
}

#[test]
fn lost_update_is_found() {
    let place = &rows(Workload::Counters).places()[0].clone();
    let first = committed(10, vec![row(place, 0, 0, 5)], vec![put(place, 1)]);
    let last = |number, version| committed(40, vec![row(place, number, version, 35)], Vec::new());
    let good = committed(20, vec![row(place, 1, 10, 15)], vec![put(place, 2)]);
    passes(Workload::Counters, &[first.clone(), good, last(2, 20)]);
    // Both have read the absent row.
    let lost = committed(20, vec![row(place, 0, 0, 5)], vec![put(place, 1)]);
    finds(Workload::Counters, &[first, lost, last(1, 20)], "before its commit");
    // One increment has no trace.
    let (one, two) = (committed(10, Vec::new(), vec![put(place, 1)]), committed(20, Vec::new(), vec![put(place, 1)]));
    finds(Workload::Counters, &[one, two, last(1, 20)], "after 2 to 2 increments");
}

#[test]
fn torn_transfer_is_found() {
    let rows = rows(Workload::Bank);
    let places = rows.places();
    let fill = committed(10, Vec::new(), places.iter().map(|place| put(place, 100)).collect());
    let transfer = committed(20, Vec::new(), vec![put(&places[0], 90), put(&places[1], 110)]);
    let others = |at| places[2..].iter().map(move |place| row(place, 100, 10, at)).collect::<Vec<_>>();
    let whole = |at| [vec![row(&places[0], 90, 20, at), row(&places[1], 110, 20, at)], others(at)].concat();
    passes(Workload::Bank, &[fill.clone(), transfer.clone(), snapshot(30, whole(30))]);
    let torn = [vec![row(&places[0], 90, 20, 30), row(&places[1], 100, 10, 30)], others(30)].concat();
    finds(Workload::Bank, &[fill.clone(), transfer.clone(), snapshot(30, torn.clone())], "was read with version 10");
    // No version contradicts this sum, because the transfer's outcome is not known.
    let unknown = Done { outcome: Ended::Unknown, ..transfer };
    finds(Workload::Bank, &[fill, unknown, snapshot(30, torn)], "are no state of them");
}

#[test]
fn write_skew_is_found() {
    let rows = rows(Workload::Switches);
    let places = rows.places();
    let fill = committed(10, Vec::new(), places.iter().map(|place| put(place, 1)).collect());
    let both = |at| vec![row(&places[0], 1, 10, at), row(&places[1], 1, 10, at)];
    // A number is never 0 here, as that deletes a row: 2 is off.
    let first = committed(20, both(15), vec![put(&places[0], 2)]);
    let second = committed(30, both(16), vec![put(&places[1], 2)]);
    finds(Workload::Switches, &[fill.clone(), first.clone(), second], "before its commit");
    let off = [row(&places[0], 2, 20, 40), row(&places[1], 2, 30, 40)];
    let others = places[2..].iter().map(|place| row(place, 1, 10, 40));
    let end = snapshot(40, off.into_iter().chain(others).collect());
    let blind = committed(30, Vec::new(), vec![put(&places[1], 2)]);
    finds(Workload::Switches, &[fill, first, blind, end], "are no state of them");
}

#[test]
fn phantom_is_found() {
    let rows = rows(Workload::Places);
    let of_table: Vec<&Place> = rows.places().iter().filter(|place| place.0 == 0).collect();
    let scan = |rows: i64, at: i64| -> Vec<Found> {
        let numbered = of_table.iter().zip(1..);
        numbered.map(|(place, number)| row(place, i64::from(number <= rows), 10 * number, at)).collect()
    };
    let insert = |number: usize, seen: i64, at: i64| {
        committed(10 * (number as i64 + 1), scan(seen, at), vec![put(of_table[number], 1)])
    };
    passes(Workload::Places, &[insert(0, 0, 5), insert(1, 1, 15), insert(2, 2, 25)]);
    // The second scan misses the row that was inserted before its commit.
    finds(Workload::Places, &[insert(0, 0, 5), insert(1, 0, 5)], "before its commit");
}

#[test]
fn stale_and_aborted_reads_are_found() {
    let place = &rows(Workload::Registers).places()[0].clone();
    let write = |timestamp, number| committed(timestamp, Vec::new(), vec![put(place, number)]);
    let (first, second) = (write(10, 1), write(20, 2));
    passes(Workload::Registers, &[first.clone(), second.clone(), snapshot(30, vec![row(place, 2, 20, 30)])]);
    // A moment before the second write shows the first one, also afterwards.
    let earlier = Done { begun: 0, ..snapshot(15, vec![row(place, 1, 10, 15)]) };
    passes(Workload::Registers, &[first.clone(), second.clone(), earlier]);
    let stale = snapshot(30, vec![row(place, 1, 10, 30)]);
    finds(Workload::Registers, &[first.clone(), second.clone(), stale], "instead of 20");
    // Snapshots that go back: a later moment shows an earlier state.
    let (new, old) = (snapshot(30, vec![row(place, 2, 20, 30)]), snapshot(40, vec![row(place, 1, 10, 40)]));
    finds(Workload::Registers, &[first.clone(), second.clone(), new, old], "instead of 20");
    // A strong read without a moment.
    let strong = Found { at: None, ..row(place, 1, 10, 0) };
    let strong = Done { outcome: Ended::Committed(None), ..committed(40, vec![strong], Vec::new()) };
    finds(Workload::Registers, &[first.clone(), second.clone(), strong], "in the present");
    // The number of another write, or of an aborted one.
    let mixed = snapshot(30, vec![row(place, 1, 20, 30)]);
    finds(Workload::Registers, &[first.clone(), second, mixed], "which no write explains");
    let unknown = Done { outcome: Ended::Unknown, ..write(20, 2) };
    let read = snapshot(30, vec![row(place, 2, 21, 30)]);
    passes(Workload::Registers, &[first.clone(), unknown.clone(), read.clone()]);
    let aborted = Done { outcome: Ended::Aborted, ..unknown };
    finds(Workload::Registers, &[first, aborted, read], "which no write explains");
}

#[test]
fn external_consistency_is_checked() {
    let places = rows(Workload::Registers).places().to_vec();
    let write = |timestamp, place, number| committed(timestamp, Vec::new(), vec![put(place, number)]);
    let first = write(20, &places[0], 1);
    let later = |timestamp| Done { begun: 30, ended: 40, ..write(timestamp, &places[1], 2) };
    passes(Workload::Registers, &[first.clone(), later(35)]);
    finds(Workload::Registers, &[first.clone(), later(15)], "Timestamps");
    // A clock outside its bound may cause this.
    let history = History { done: vec![first, later(15)], ..History::default() };
    assert_eq!(history.check(&rows(Workload::Registers), false), Ok(()));
}

#[test]
fn long_fork_is_found() {
    let places = rows(Workload::Forks).places().to_vec();
    let append = |(table, key): &Place, number: u64| {
        let columns = vec![(Bytes::copy_from_slice(&number.to_be_bytes()), Some(value(1)))];
        Change { table: *table, change: RowChange { key: key.clone(), deletes_row: false, columns } }
    };
    let list = |place: &Place, number: u64, version: i64| {
        let column = Bytes::copy_from_slice(&number.to_be_bytes());
        let cells = vec![Cell { column, value: value(1), version: Timestamp(version) }];
        Found { place: place.clone(), cells: if number == 0 { Vec::new() } else { cells }, at: None }
    };
    // All of them are concurrent, and the readers do not report a moment.
    let any = |done: Done| Done { begun: 0, ended: 100, ..done };
    let read = |found| any(Done { outcome: Ended::Committed(None), ..committed(90, found, Vec::new()) });
    let writes = [
        any(committed(10, Vec::new(), vec![append(&places[0], 1)])),
        any(committed(20, Vec::new(), vec![append(&places[1], 2)])),
    ];
    let one = read(vec![list(&places[0], 1, 10), list(&places[1], 0, 0)]);
    let other = read(vec![list(&places[0], 0, 0), list(&places[1], 2, 20)]);
    let both = read(vec![list(&places[0], 1, 10), list(&places[1], 2, 20)]);
    passes(Workload::Forks, &[&writes[..], &[one.clone(), both.clone()]].concat());
    finds(Workload::Forks, &[&writes[..], &[one, other, both]].concat(), "AntiDependencyCycle");
}
