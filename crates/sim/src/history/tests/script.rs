//! A text format for histories: a line is `key called..returned`, then `write` or `read`, the request, `->` and the
//! response.
//!
//! A mutation is `column=value` or `column-`, with `?version` for a condition; a cell is `column=value@version`.
//! Responses to a write are a version, `refused column expected actual`, `unknown` or `not done`; to a read, cells or
//! `nothing`.

use base::Timestamp;
use bytes::Bytes;
use tablets::request::{Cell, Mutation};

use crate::history::{Operation, What, WriteOutcome};

pub(super) fn script(text: &str) -> Vec<Operation> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.zip(0..).map(|(line, client)| operation(line, client)).collect()
}

fn operation(line: &str, client: u32) -> Operation {
    let (asked, answer) = line.split_once("->").expect("an answer");
    let mut asked = asked.split_whitespace();
    let key = bytes(asked.next().expect("a key"));
    let (called, returned) = asked.next().and_then(|times| times.split_once("..")).expect("times");
    let returned = (!returned.is_empty()).then(|| returned.parse().expect("a time"));
    let what = match asked.next() {
        Some("write") => What::Write { mutations: asked.map(mutation).collect(), outcome: outcome(answer.trim()) },
        _ => What::Read { columns: columns(&asked.collect::<Vec<_>>()), cells: cells(answer.trim()) },
    };
    Operation { client, called: called.parse().expect("a time"), returned, key, what }
}

fn mutation(text: &str) -> Mutation {
    let (change, condition) = match text.split_once('?') {
        Some((change, condition)) => (change, Some(timestamp(condition))),
        None => (text, None),
    };
    match change.split_once('=') {
        Some((column, value)) => Mutation { column: bytes(column), value: Some(bytes(value)), condition },
        None => Mutation { column: bytes(change.trim_end_matches('-')), value: None, condition },
    }
}

fn outcome(text: &str) -> WriteOutcome {
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        ["unknown"] => WriteOutcome::Unknown,
        ["not", "done"] => WriteOutcome::NotDone,
        ["refused", column, expected, actual] => {
            let column = bytes(column);
            WriteOutcome::Mismatch { column, expected: timestamp(expected), actual: timestamp(actual) }
        }
        _ => WriteOutcome::Written(timestamp(text)),
    }
}

fn columns(names: &[&str]) -> Option<Vec<Bytes>> {
    (names != ["all"]).then(|| names.iter().map(|name| bytes(name)).collect())
}

fn cells(text: &str) -> Vec<Cell> {
    let cells = text.split_whitespace().filter_map(|cell| cell.split_once('='));
    cells
        .map(|(column, rest)| {
            let (value, version) = rest.split_once('@').expect("a version");
            Cell { column: bytes(column), value: bytes(value), version: timestamp(version) }
        })
        .collect()
}

fn timestamp(text: &str) -> Timestamp {
    Timestamp(text.parse().expect("a version"))
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
