use base::Timestamp;
use base::limits::{
    COLUMN_BYTES_MAX, KEY_BYTES_MAX, RETENTION_MAX, SESSION_WINDOW, TABLE_NAME_BYTES_MAX, VALUE_BYTES_MAX,
    WRITE_COLUMNS_MAX,
};
use bytes::Bytes;
use catalog::{CatalogCommand, TableOptions};
use sharedlog::validate::new_log_name;
use state_machine::{ClientSessionId, Consistency, SessionStamp, StateMachine as _};
use tablets::request::{Columns, Mutation, Scan, TableRequest, Write};

use super::*;
use tablets::Tablet;

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(column: &str, value: &str) -> Mutation {
    Mutation { column: bytes(column), value: Some(bytes(value)), condition: None }
}

fn delete(column: &str) -> Mutation {
    Mutation { column: bytes(column), value: None, condition: None }
}

fn if_version(mutation: Mutation, version: i64) -> Mutation {
    Mutation { condition: Some(Timestamp(version)), ..mutation }
}

fn write(key: &str, mutations: impl Into<Vec<Mutation>>) -> Write {
    Write { stamp: None, key: bytes(key), mutations: mutations.into() }
}

fn stamped(write: Write, session: ClientSessionId, sequence: u64, first_incomplete: u64) -> Write {
    Write { stamp: Some(SessionStamp { session, sequence, first_incomplete }), ..write }
}

fn table(request: TableRequest) -> Request {
    Request::table("t", request)
}

fn create(name: &str, split_at: &[&str]) -> Request {
    let split_at = split_at.iter().map(|key| bytes(key)).collect();
    CatalogCommand::CreateTable { name: name.into(), split_at, options: TableOptions::of(Tablet::KIND) }.into()
}

fn writing(write: Write) -> Request {
    table(TableRequest::Write(write))
}

fn getting(key: &str, columns: Option<Vec<Bytes>>) -> Request {
    table(TableRequest::Get {
        key: bytes(key),
        columns: Columns { named: columns, ..Columns::default() },
        consistency: Consistency::Strong,
    })
}

fn scan_of(scan: Scan) -> Request {
    table(TableRequest::Scan { scan, consistency: Consistency::Strong })
}

fn long(bytes: usize) -> String {
    "x".repeat(bytes)
}

fn check_refused(request: &Request, says: &[&str]) {
    let Err(Failure::Invalid(message)) = validate(request) else {
        panic!("expected a refusal with {says:?}");
    };
    assert!(says.iter().all(|part| message.contains(part)), "{message:?} should say {says:?}");
}

#[test]
fn accepts_requests_within_limits() {
    let largest = put(&long(COLUMN_BYTES_MAX), &long(VALUE_BYTES_MAX));
    let many: Vec<Mutation> = (0..WRITE_COLUMNS_MAX).map(|number| put(&number.to_string(), "")).collect();
    for request in [
        CatalogRequest::ListTables.into(),
        Request::Status,
        create(&long(TABLE_NAME_BYTES_MAX), &[]),
        create("aZ09_-.", &["b", "a"]),
        CatalogCommand::CreateTable {
            name: "t".into(),
            split_at: vec![],
            options: TableOptions { replicas: 5, retention: RETENTION_MAX, ..TableOptions::of(Tablet::KIND) },
        }
        .into(),
        table(TableRequest::OpenSession { key: bytes("") }),
        table(TableRequest::OpenSession { key: bytes(&long(KEY_BYTES_MAX)) }),
        writing(write(&long(KEY_BYTES_MAX), [largest])),
        writing(write("k", many)),
        writing(stamped(write("k", [delete("c")]), ClientSessionId(1), SESSION_WINDOW, 1)),
        getting("k", None),
        getting("k", Some(vec![])),
        getting("k", Some(vec![bytes("c")])),
        scan_of(Scan::default()),
        scan_of(Scan { from: bytes("a"), to: Some(bytes("a")), ..Scan::default() }),
    ] {
        assert_eq!(validate(&request), Ok(()));
    }
}

#[test]
fn names_of_new_logs() {
    for name in ["l", "...", "a-", "_-.", ".a", &long(TABLE_NAME_BYTES_MAX)] {
        assert_eq!(new_log_name(name), Ok(()), "{name}");
    }
    for (name, says) in [("", "is empty"), (".", "'.' and '..'"), ("..", "'.' and '..'"), ("-", "begins with '-'")] {
        let Err(Failure::Invalid(message)) = new_log_name(name) else { panic!("{name:?} should be refused") };
        assert!(message.contains(says), "{message}");
    }
    let existing = Request::Log(LogRequest::Tail { log: "-l".into() });
    assert_eq!(validate(&existing), Ok(()), "existing logs keep their names");
}

#[test]
fn table_names() {
    let create = |name: &str| create(name, &[]);
    check_refused(&create(""), &["table's name is empty"]);
    check_refused(&create(&long(129)), &["table's name", "129", "128"]);
    check_refused(&create("a/b"), &["'/'"]);
    check_refused(&create("ä"), &["'ä'"]);
    check_refused(&Request::table("a b", TableRequest::OpenSession { key: bytes("k") }), &["' '"]);
}

#[test]
fn ranges() {
    check_refused(&create("t", &["a", "b", "a"]), &["split", "\"a\"", "twice"]);
    check_refused(&create("t", &["a", ""]), &["empty"]);
    check_refused(&create("t", &[&long(8193)]), &["split key", "8193", "8192"]);
    let many: Vec<String> = (0..1_000).map(|number| number.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    check_refused(&create("t", &many), &["ranges", "1001", "1000"]);
    assert_eq!(validate(&create("t", &many[1..])), Ok(()));
    let large: Vec<String> = (0..129).map(|number| format!("{number:08192}")).collect();
    let large: Vec<&str> = large.iter().map(String::as_str).collect();
    check_refused(&create("t", &large), &["together", "1048576"]);
    for replicas in [2, 4, 6, 7] {
        let request: Request = CatalogCommand::CreateTable {
            name: "t".into(),
            split_at: vec![],
            options: TableOptions { replicas, ..TableOptions::of(Tablet::KIND) },
        }
        .into();
        check_refused(&request, &[&replicas.to_string(), "1, 3 or 5"]);
    }
    check_refused(&table(TableRequest::OpenSession { key: bytes(&long(8193)) }), &["row's key \"xxx", "8193", "8192"]);
}

#[test]
fn writes() {
    check_refused(&writing(write("", [put("c", "v")])), &["key is empty"]);
    check_refused(&writing(write(&long(8193), [put("c", "v")])), &["row's key", "8193", "8192"]);
    check_refused(&writing(write("k", [])), &["no mutation"]);
    check_refused(&writing(write("k", [put("", "v")])), &["column's name is empty"]);
    check_refused(&writing(write("k", [delete("")])), &["column's name is empty"]);
    check_refused(&writing(write("k", [delete(&long(8193))])), &["column's name", "8193", "8192"]);
    check_refused(&writing(write("k", [put("big", &long((8 << 20) + 1))])), &["value", "big", "8388609", "8388608"]);
    check_refused(&writing(write("k", [put("c", "v"), delete("c")])), &["twice", "c"]);
    check_refused(&writing(write("k", [if_version(put("c", "v"), -1)])), &["negative", "-1"]);
    let many: Vec<Mutation> = (0..=WRITE_COLUMNS_MAX).map(|number| delete(&number.to_string())).collect();
    check_refused(&writing(write("k", many)), &["columns", "1025", "1024"]);
    let half = long(6 << 20);
    check_refused(&writing(write("k", [put("a", &half), put("b", &half)])), &["write", "12582915", "12582912"]);
}

#[test]
fn stamps() {
    let numbered = |sequence, first| writing(stamped(write("k", [put("c", "v")]), ClientSessionId(1), sequence, first));
    check_refused(&numbered(0, 0), &["from 1"]);
    check_refused(&numbered(3, 4), &["3", "4"]);
    check_refused(&numbered(1025, 1), &["1025", "1024"]);
}

#[test]
fn reads() {
    check_refused(&getting("", None), &["key is empty"]);
    check_refused(&getting("k", Some(vec![bytes("c"), bytes("")])), &["column's name is empty"]);
    check_refused(&getting("k", Some(vec![bytes("c"); 1025])), &["columns", "1025", "1024"]);
    let reversed = Scan { from: bytes("b"), to: Some(bytes("a")), ..Scan::default() };
    check_refused(&scan_of(reversed.clone()), &["reversed", "\"b\"", "\"a\""]);
    check_refused(&scan_of(Scan { reverse: true, ..reversed }), &["reversed"]);
    check_refused(&scan_of(Scan { from: bytes(&long(8193)), ..Scan::default() }), &["first key", "8193"]);
    check_refused(&scan_of(Scan { to: Some(bytes(&long(8193))), ..Scan::default() }), &["last key", "8193"]);
    check_refused(&scan_of(Scan { prefix: bytes(&long(8193)), ..Scan::default() }), &["prefix", "8193"]);
    check_refused(
        &scan_of(Scan { continuation: Some(bytes(&long(8194))), ..Scan::default() }),
        &["continuation", "8194"],
    );
    let longest = Scan { continuation: Some(bytes(&long(8193))), ..Scan::default() };
    assert_eq!(validate(&scan_of(longest)), Ok(()), "the successor of the longest key");
}
