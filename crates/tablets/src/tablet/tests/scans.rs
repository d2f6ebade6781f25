use base::limits::{SCAN_PAGE_BYTES, SCAN_ROWS_MAX};
use store::sstable::SstableError;

use super::*;
use crate::request::{Consistency, Mutation, Part, Row, TableRequest};

pub(super) fn scanned(state: &State, scan: &Scan) -> Outcome {
    tablet(state).view_now().scan(scan, Io::Allowed).expect("the disk can be read")
}

fn page(state: &State, scan: &Scan) -> (Vec<Row>, Option<Bytes>) {
    match scanned(state, scan) {
        Ok(TableResponse::Rows { rows, continuation, .. }) => (rows, continuation),
        other => panic!("a scan gives rows, not {other:?}"),
    }
}

fn pages(state: &State, scan: &Scan) -> Vec<Row> {
    let mut scan = scan.clone();
    let mut all = Vec::new();
    loop {
        let (rows, continuation) = page(state, &scan);
        all.extend(rows);
        let Some(last) = continuation else { return all };
        assert_ne!(scan.continuation, Some(last.clone()), "a scan makes progress");
        scan.continuation = Some(last);
    }
}

fn keys(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| std::str::from_utf8(&row.key).unwrap()).collect()
}

fn numbered(count: usize) -> State {
    let (mut state, mut log) = fresh();
    for number in 0..count {
        log.write(&mut state, &write(&format!("k{number:05}"), [put("a", "1"), put("b", "2")])).unwrap();
    }
    state
}

/// A scan returns the same rows with any page size, in both directions.
#[test]
fn pages_form_complete_scan() {
    let state = numbered(100);
    let all = pages(&state, &Scan::default());
    assert_eq!(all.len(), 100);
    let mut backwards = all.clone();
    backwards.reverse();
    for limit in [1, 2, 7, 99, 100, 101] {
        assert_eq!(pages(&state, &Scan { limit, ..Scan::default() }), all);
        assert_eq!(pages(&state, &Scan { limit, reverse: true, ..Scan::default() }), backwards);
    }
    assert_eq!(page(&state, &Scan { limit: 100, ..Scan::default() }).1, None, "no rows remain");
    assert_eq!(page(&state, &Scan { limit: 99, ..Scan::default() }).1, Some(bytes("k00099")), "the next row");
    let backwards = Scan { limit: 99, reverse: true, ..Scan::default() };
    assert_eq!(page(&state, &backwards).1, Some(bytes("k00000\0")), "just above the next row");
}

/// Ends, prefix and continuation limit a scan, also in combination; an empty range is not an error.
#[test]
fn scan_bounds_and_prefixes() {
    let (mut state, mut log) = fresh();
    for key in ["a", "ab", "ab\u{0}", "abc", "b", "\u{7f}"] {
        log.write(&mut state, &write(key, [put("c", "")])).unwrap();
    }
    let with = |from: &str, to: Option<&str>, prefix: &str| Scan {
        from: bytes(from),
        to: to.map(bytes),
        prefix: bytes(prefix),
        ..Scan::default()
    };
    let check = |scan: Scan, expected: &[&str]| {
        assert_eq!(keys(&pages(&state, &scan)), expected);
        let backwards: Vec<&str> = expected.iter().rev().copied().collect();
        assert_eq!(keys(&pages(&state, &Scan { reverse: true, ..scan })), backwards);
    };
    check(with("ab", Some("b"), ""), &["ab", "ab\u{0}", "abc"]);
    check(with("", None, "ab"), &["ab", "ab\u{0}", "abc"]);
    check(with("abb", None, "ab"), &["abc"]);
    check(with("", Some("abc"), "ab"), &["ab", "ab\u{0}"]);
    check(with("b", Some("b"), ""), &[]);
    check(with("b", None, "a"), &[]);
    check(with("", Some("a"), "b"), &[]);
    let scan = |prefix: &'static [u8]| Scan { prefix: Bytes::from_static(prefix), ..Scan::default() };
    check(scan(b"\xff\xff"), &[]);
    let beyond = Scan { continuation: Some(bytes("z")), to: Some(bytes("c")), ..Scan::default() };
    assert_eq!(page(&state, &beyond), (vec![], None));
}

/// The end of a prefix carries over bytes of 255.
#[test]
fn prefix_of_0xff_bytes() {
    let (mut state, mut log) = fresh();
    for key in [&b"\x01\xff"[..], b"\x01\xff\x00", b"\x01\xff\xff", b"\x02", b"\xff\xff", b"\xff\xff\xff"] {
        let row = Write { key: Bytes::from_static(key), ..write("", [put("c", "")]) };
        log.write(&mut state, &row).unwrap();
    }
    let count = |prefix: &'static [u8]| {
        let scan = Scan { prefix: Bytes::from_static(prefix), ..Scan::default() };
        pages(&state, &scan).len()
    };
    assert_eq!((count(b"\x01\xff"), count(b"\x01\xff\xff"), count(b"\xff\xff"), count(b"\xff")), (3, 1, 2, 2));
}

/// A page is limited in rows, in bytes, and in the run of deleted rows; each time it has a continuation.
#[test]
fn page_limits() {
    let mut state = numbered(SCAN_ROWS_MAX + 1);
    let mut log = Log::after(&state);
    let (rows, continuation) = page(&state, &Scan { limit: usize::MAX, ..Scan::default() });
    assert_eq!((rows.len(), continuation.is_some()), (SCAN_ROWS_MAX, true));
    let value = "x".repeat(1 << 20);
    for number in 0..10 {
        log.write(&mut state, &write(&format!("a{number}"), [put("c", &value)])).unwrap();
    }
    assert_eq!(page(&state, &Scan::default()).0.len(), SCAN_PAGE_BYTES >> 20);
    let deleted = |number: usize| write(&format!("d{number:05}"), [put("c", "")]);
    for number in 0..70_000 {
        log.write(&mut state, &deleted(number)).unwrap();
        log.write(&mut state, &write(&format!("d{number:05}"), [delete("c")])).unwrap();
    }
    let scan = Scan { prefix: bytes("d"), ..Scan::default() };
    let (rows, continuation) = page(&state, &scan);
    assert_eq!((rows.len(), continuation.is_some()), (0, true));
    assert_eq!(pages(&state, &scan), vec![]);
    assert_eq!(pages(&state, &Scan { reverse: true, ..scan }), vec![]);
}

fn in_parts(after: &str) -> Part {
    Part { after: Some(bytes(after)), names_only: false }
}

/// A row in parts, by reads of one row: the columns of each part.
fn parts(state: &State, key: &str, named: Option<&[Bytes]>) -> Vec<Vec<String>> {
    let mut part = in_parts("");
    let mut parts = Vec::new();
    loop {
        let columns = Columns { named: named.map(<[Bytes]>::to_vec), part: part.clone() };
        let read = tablet(state).view_now().get(&bytes(key), &columns, Io::CacheOnly).expect("the data is in memory");
        let Ok(TableResponse::Row { cells, rest }) = read else { panic!("a part of a row is returned") };
        parts.push(names(&cells));
        let Some(rest) = rest else { return parts };
        part.after = Some(rest.after);
    }
}

fn names(cells: &[Cell]) -> Vec<String> {
    cells.iter().map(|cell| String::from_utf8(cell.column.to_vec()).expect("text")).collect()
}

/// All pages of a scan in parts: the row and the columns of each.
fn scanned_parts(state: &State, reverse: bool) -> Vec<(String, Vec<String>)> {
    let mut scan = Scan { reverse, part: in_parts(""), ..Scan::default() };
    let mut rows = Vec::new();
    loop {
        let page = tablet(state).view_now().scan(&scan, Io::CacheOnly).expect("the data is in memory");
        let Ok(TableResponse::Rows { rows: page, continuation, rest }) = page else { panic!("a page of rows") };
        rows.extend(page.iter().map(|row| (String::from_utf8(row.key.to_vec()).expect("text"), names(&row.cells))));
        scan.part.after = Some(rest.map(|rest| rest.after).unwrap_or_default());
        crate::validate(&TableRequest::Scan { scan: scan.clone(), consistency: Consistency::Strong }).expect("valid");
        if continuation.is_none() {
            return rows;
        }
        scan.continuation = continuation;
    }
}

/// A row that is too large for one response is refused as a whole, and is read in parts. The rows before it are still
/// returned.
#[test]
fn oversized_row_is_read_in_parts() {
    let (mut state, mut log) = fresh();
    let value = "x".repeat(6 << 20);
    for column in ["a", "b", "c", "d", "e"] {
        log.write(&mut state, &write("large", [put(column, &value)])).unwrap();
    }
    log.write(&mut state, &write("a", [put("a", "")])).unwrap();
    log.write(&mut state, &write("z", [put("a", "")])).unwrap();
    assert!(matches!(get(&state, "large", None), Err(Failure::Invalid(_))));
    let Ok(TableResponse::Row { cells, .. }) = get(&state, "large", Some(&[bytes("a"), bytes("c"), bytes("x")])) else {
        panic!("two columns fit into a response")
    };
    assert_eq!(cells.len(), 2);
    let (rows, continuation) = page(&state, &Scan::default());
    assert_eq!((keys(&rows), continuation.clone()), (vec!["a"], Some(bytes("large"))));
    let refused = scanned(&state, &Scan { continuation, ..Scan::default() });
    assert!(matches!(refused, Err(Failure::Invalid(_))));

    assert_eq!(parts(&state, "large", None), [vec!["a", "b"], vec!["c", "d"], vec!["e"]]);
    let named = ["e", "a", "x", "b", "a"].map(bytes);
    assert_eq!(parts(&state, "large", Some(&named)), [vec!["e", "a"], vec!["b"]]);
    let of = |key: &str, columns: &[&str]| (key.to_owned(), columns.iter().map(|&column| column.to_owned()).collect());
    let large = |columns: &[&str]| of("large", columns);
    let rows = [of("a", &["a"]), large(&["a", "b"]), large(&["c", "d"]), large(&["e"]), of("z", &["a"])];
    assert_eq!(scanned_parts(&state, false), rows);
    let rows = [of("z", &["a"]), large(&["d", "e"]), large(&["b", "c"]), large(&["a"]), of("a", &["a"])];
    assert_eq!(scanned_parts(&state, true), rows);
    // Later rows may be read as of a later moment.
    let continued = Scan { continuation: Some(bytes("large")), part: in_parts("e"), ..Scan::default() };
    assert_eq!(page(&state, &continued), (vec![], Some(bytes("z"))));
    let names_only = Scan { part: Part { after: None, names_only: true }, ..Scan::default() };
    assert_eq!(page(&state, &names_only).0.iter().map(|row| row.cells.len()).collect::<Vec<_>>(), [1, 5, 1]);
}

/// A scan of some columns leaves out the others, and the rows without any of them. Pages and their ends are the same.
#[test]
fn scan_returns_named_columns() {
    let (mut state, mut log) = fresh();
    for number in 0..100 {
        let columns: &[&str] = if number % 3 == 0 { &["a", "c"] } else { &["a", "b", "c"] };
        let all = columns.iter().map(|name| put(name, "1"));
        log.write(&mut state, &write(&format!("k{number:05}"), all.collect::<Vec<_>>())).unwrap();
    }
    let named = |names: &[&str]| Some(names.iter().map(|name| bytes(name)).collect());
    for (reverse, limit) in [(false, 0), (false, 7), (true, 1)] {
        let scan = |columns| pages(&state, &Scan { columns, reverse, limit, ..Scan::default() });
        let mut all = scan(None);
        assert_eq!(scan(named(&["c", "b", "a"])), all, "columns are in order of name");
        all.iter_mut().for_each(|row| row.cells.retain(|cell| cell.column == "b"));
        all.retain(|row| !row.cells.is_empty());
        assert_eq!(scan(named(&["b", "d"])), all);
        assert_eq!(scan(named(&["d"])), vec![]);
    }
    let invalid = |columns| {
        crate::validate(&TableRequest::Scan {
            scan: Scan { columns, ..Scan::default() },
            consistency: Consistency::Strong,
        })
    };
    assert!(invalid(named(&[""])).is_err());
    assert!(invalid(Some(vec![bytes("a"); 1_025])).is_err());
}

/// Deleted columns are passed over: by a thread that may block if there are many, and otherwise from part to part.
#[test]
fn deleted_columns_are_passed_over() {
    let (mut state, mut log) = fresh();
    log.write(&mut state, &write("a", [put("c", "")])).unwrap();
    for group in 0..100 {
        let columns: Vec<String> = (0..1_024).map(|number| format!("c{group}-{number}")).collect();
        let all = |mutation: &dyn Fn(&str) -> Mutation| columns.iter().map(|name| mutation(name)).collect::<Vec<_>>();
        log.write(&mut state, &write("b", all(&|name| put(name, "")))).unwrap();
        log.write(&mut state, &write("b", all(&delete))).unwrap();
    }
    log.write(&mut state, &write("b", [put("d", "")])).unwrap();
    log.write(&mut state, &write("c", [put("c", "")])).unwrap();
    let view = tablet(&state).view_now();
    for reverse in [false, true] {
        let scan = Scan { reverse, ..Scan::default() };
        let Ok(Ok(TableResponse::Rows { rows, continuation, rest: None })) = view.scan(&scan, Io::CacheOnly) else {
            panic!("a page that ends before the row")
        };
        assert_eq!(rows.len(), 1, "the work for a page is limited");
        let scan = Scan { continuation, ..scan };
        assert_eq!(view.scan(&scan, Io::CacheOnly), Err(SstableError::NotCached));
        assert_eq!(page(&state, &scan).0[0].cells.len(), 1);
        let mut rows = scanned_parts(&state, reverse);
        if reverse {
            rows.reverse();
        }
        assert_eq!(rows.iter().map(|(key, _)| &key[..]).collect::<Vec<_>>(), ["a", "b", "c"]);
    }
    assert_eq!(view.get(&bytes("b"), &Columns::default(), Io::CacheOnly), Err(SstableError::NotCached));
    assert_eq!(read(&state, "b").len(), 1);
    let parts = parts(&state, "b", None);
    assert!(parts.len() > 2 && parts.iter().flatten().eq(["d"]), "{parts:?}");

    log.apply(&mut state, &Command::DeleteRow { stamp: None, key: bytes("b") });
    assert_eq!(keys(&pages(&state, &Scan::default())), ["a", "c"]);
    assert_eq!(scanned_parts(&state, false).len(), 2);
}
