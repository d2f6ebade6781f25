use base::{KeyRange, Timestamp};

use super::*;
use crate::testing::bytes;

/// A tablet itself rejects reversed ends, independent of the validation at the endpoint.
#[test]
fn rejects_reversed_scan_bounds() {
    let scan = Scan { from: bytes("b"), to: Some(bytes("a")), ..Scan::default() };
    let state = crate::testing::fresh(base::CohortId(2));
    let view = state.view_now();
    assert!(matches!(view.scan(&scan, store::sstable::Io::Allowed), Ok(Err(Failure::Invalid(_)))));
}

fn row(key: &str, deletes_row: bool, columns: &[(&str, Option<&str>)]) -> RowChange {
    let columns = columns.iter().map(|(column, value)| (bytes(column), value.map(bytes))).collect();
    RowChange { key: bytes(key), deletes_row, columns }
}

#[test]
fn checks_parts_of_transactions() {
    let check = |reads: &[(&str, Option<&str>)], writes: Vec<RowChange>| {
        let range = |(start, end): &(&str, Option<&str>)| KeyRange { start: bytes(start), end: end.map(bytes) };
        let reads = reads.iter().map(|read| ReadSpan { range: range(read), seen: Timestamp(1) }).collect();
        match check_part(&TransactionPart { reads, writes }) {
            Ok(()) => None,
            Err(Failure::Invalid(reason)) => Some(reason),
            Err(other) => panic!("{other:?}"),
        }
    };
    let ok = |reads: &[(&str, Option<&str>)], writes| assert_eq!(check(reads, writes), None);
    let refused = |reads: &[(&str, Option<&str>)], writes, reason: &str| {
        let said = check(reads, writes).expect("it is invalid");
        assert!(said.contains(reason), "{said}");
    };
    let put = ("c", Some("v"));
    ok(&[], vec![]);
    ok(&[("", None), ("a", Some("b")), ("a", Some("b"))], vec![row("k", false, &[put, ("d", None)])]);
    ok(&[], vec![row("k", true, &[]), row("l", true, &[put])]);
    refused(&[("b", Some("a"))], vec![], "ends before it begins");
    refused(&[("b", Some("b"))], vec![], "ends before it begins");
    refused(&[], vec![row("", true, &[])], "key is empty");
    refused(&[], vec![row("k", false, &[put]), row("k", true, &[])], "changes row \"k\" twice");
    refused(&[], vec![row("k", false, &[])], "names no column");
    refused(&[], vec![row("k", false, &[put, ("c", None)])], "column \"c\" twice");
    refused(&[], vec![row("k", false, &[("", None)])], "column's name is empty");
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    refused(&[], vec![row(&long, true, &[])], "key");
    refused(&[(&long, None)], vec![], "first key that was read");
    ok(&[("", Some(&long))], vec![]);
    refused(&[("", Some(&format!("{long}k")))], vec![], "end of the keys");
    let many: Vec<(String, Option<&str>)> = (0..=WRITE_COLUMNS_MAX).map(|n| (n.to_string(), None)).collect();
    let many: Vec<(&str, Option<&str>)> = many.iter().map(|(name, value)| (&**name, *value)).collect();
    ok(&[], vec![row("k", false, &many[1..])]);
    refused(&[], vec![row("k", false, &many)], "columns in the change of a row");
    let value = "v".repeat(VALUE_BYTES_MAX + 1);
    refused(&[], vec![row("k", false, &[("c", Some(&value))])], "the value of column");
}

#[test]
fn checks_size_of_transactions() {
    let whole = |reads: usize, writes: usize| {
        let read = ReadSpan { range: KeyRange::all(), seen: Timestamp(1) };
        let writes = (0..writes).map(|number| row(&number.to_string(), true, &[])).collect();
        check_totals(&TransactionPart { reads: vec![read; reads], writes })
    };
    assert_eq!(whole(TRANSACTION_READS_MAX, TRANSACTION_WRITES_MAX), Ok(()));
    assert!(matches!(whole(TRANSACTION_READS_MAX + 1, 0), Err(Failure::Invalid(_))));
    assert!(matches!(whole(0, TRANSACTION_WRITES_MAX + 1), Err(Failure::Invalid(_))));
    let value = "v".repeat(WRITE_BYTES_MAX / 2);
    let large = |key: &str| row(key, false, &[("c", Some(&value[..value.len() - 2]))]);
    let part = |writes| TransactionPart { reads: vec![], writes };
    assert_eq!(check_totals(&part(vec![large("k"), large("l")])), Ok(()));
    assert!(matches!(check_totals(&part(vec![large("k"), large("ll")])), Err(Failure::Invalid(_))));
}

#[test]
fn checks_stamps_of_transactions() {
    use crate::request::ClientSessionId;
    use crate::transaction::{Commit, Coordinator, Prepare};
    let stamp = |sequence, first_incomplete| SessionStamp { session: ClientSessionId(1), sequence, first_incomplete };
    let owner = state_machine::LockOwner { started: Timestamp(1), id: 1 };
    for (stamp, is_valid) in [
        (stamp(1, 1), true),
        (stamp(0, 1), false),
        (stamp(1, 0), false),
        (stamp(1, 2), false),
        (stamp(SESSION_WINDOW + 1, 1), false),
    ] {
        let (key, part) = (bytes("k"), TransactionPart::default());
        let coordinator = Coordinator { table: "t".into(), key: key.clone(), stamp };
        let commit = Commit { stamp, key: key.clone(), owner, part: part.clone(), participants: vec![] };
        for request in [
            TableRequest::Commit(Box::new(commit)),
            TableRequest::Prepare(Box::new(Prepare { coordinator, owner, part })),
            TableRequest::Abort { key, stamp },
        ] {
            assert_eq!(validate(&request).is_ok(), is_valid, "{request:?}");
        }
    }
}
