use base::codec::testing::check_golden;
use base::limits::{COLUMN_BYTES_MAX, ENTRY_BYTES_MAX, KEY_BYTES_MAX, WRITE_BYTES_MAX, WRITE_COLUMNS_MAX};
use base::{Incarnation, KeyRange, Member, Membership, NodeId, SplitMix64};

use super::*;
use crate::request::{Mutation, SessionStamp, Write};
use crate::testing::{bytes, noise, stamped};
use crate::validate::validate;

fn commands() -> Vec<Command> {
    let columns = vec![(bytes("a"), Some(bytes("1"))), (bytes("b"), Some(bytes(""))), (bytes("c"), None)];
    let stamp = Some(SessionStamp { session: ClientSessionId(3), sequence: 9, first_incomplete: 8 });
    let mismatch = Mismatch { column: bytes("c"), expected: Timestamp(7), actual: Timestamp(0) };
    let member = Member { node: NodeId(3), incarnation: Incarnation(4) };
    vec![
        Command::AssignRange { range: KeyRange::all() },
        Command::AssignRange { range: KeyRange { start: bytes("a"), end: Some(bytes("b")) } },
        Command::Drop,
        Command::DeclareLoss,
        Command::OpenSession { key: "k".into() },
        Command::Write { stamp: None, key: bytes("k"), columns: columns.clone() },
        Command::Write { stamp, key: bytes("k"), columns },
        Command::DeleteRow { stamp: None, key: bytes("k") },
        Command::DeleteRow { stamp, key: bytes("k") },
        Command::Refuse { stamp: None, key: "k".into(), mismatch: mismatch.clone() },
        Command::Refuse { stamp, key: Bytes::new(), mismatch },
        Command::Split { key: "k".into(), child: CohortId(9), members: Membership::of(vec![member]) },
        Command::ExpireSessions { sessions: vec![] },
        Command::ExpireSessions {
            sessions: vec![(ClientSessionId(1), Timestamp(2)), (ClientSessionId(u64::MAX), Timestamp(-1))],
        },
        Command::Watermark(Timestamp(i64::MIN)),
    ]
}

/// The commands of transactions.
fn transaction_commands() -> Vec<Command> {
    let stamp = SessionStamp { session: ClientSessionId(3), sequence: 9, first_incomplete: 8 };
    let transaction = TransactionId::from(&stamp);
    let coordinator = Coordinator { table: "t".into(), key: bytes("k"), stamp };
    let owner = LockOwner { started: Timestamp(5), id: u64::MAX };
    let columns = vec![(bytes("a"), Some(bytes("1"))), (bytes("c"), None)];
    let writes = vec![
        RowChange { key: bytes("k"), deletes_row: false, columns: columns.clone() },
        RowChange { key: bytes("l"), deletes_row: true, columns: vec![] },
        RowChange { key: bytes("m"), deletes_row: true, columns },
    ];
    let participants = vec![
        Participant { cohort: CohortId(4), prepared: Timestamp(70) },
        Participant { cohort: CohortId(u32::MAX), prepared: Timestamp(i64::MAX) },
    ];
    let reads = vec![KeyRange::all(), KeyRange { start: bytes("a"), end: Some(bytes("b")) }];
    vec![
        Command::Commit { stamp, key: bytes("k"), writes: writes.clone(), participants },
        Command::Commit { stamp, key: Bytes::new(), writes: vec![], participants: vec![] },
        Command::Conflict { stamp, key: bytes("k"), reason: "it took too long".into() },
        Command::Prepare { coordinator: coordinator.clone(), owner, reads: vec![], writes },
        Command::Prepare { coordinator, owner, reads, writes: vec![] },
        Command::Resolve { transaction, prepared: Timestamp(7), committed: Some(Timestamp(9)) },
        Command::Resolve { transaction, prepared: Timestamp(7), committed: None },
        Command::Abort { stamp, key: bytes("k") },
        Command::Forget { transactions: vec![transaction, TransactionId { sequence: u64::MAX, ..transaction }] },
        Command::Forget { transactions: vec![] },
    ]
}

fn all_commands() -> Vec<Command> {
    commands().into_iter().chain(transaction_commands()).collect()
}

#[test]
fn golden_commands() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/command/golden.txt");
    check_golden(path, &all_commands(), Command::encode, Command::decode);
}

/// Random bytes, and valid ones with one byte changed, decode or are rejected. Bytes that decode are encoded
/// identically.
#[test]
fn fuzz_command_decoders() {
    let mut random = SplitMix64::new(1);
    let valid: Vec<Bytes> = all_commands().iter().map(Command::encode).collect();
    for round in 0..200_000_usize {
        let payload = if round % 2 == 0 {
            let length = random.below(40) as usize;
            noise(&mut random, length)
        } else {
            let mut changed = valid[random.below(valid.len() as u64) as usize].to_vec();
            let at = random.below(changed.len() as u64) as usize;
            changed[at] = random.draw().to_le_bytes()[0];
            Bytes::from(changed)
        };
        if let Ok(command) = Command::decode(payload.clone()) {
            assert_eq!(command.encode(), payload);
        }
    }
}

/// The largest valid write fits into an entry.
#[test]
fn largest_write_fits_into_entry() {
    let key = Bytes::from(vec![b'k'; KEY_BYTES_MAX]);
    let mut left = WRITE_BYTES_MAX - key.len();
    let mut mutations = Vec::new();
    for number in 0..WRITE_COLUMNS_MAX {
        let mut name = format!("{number:08}").into_bytes();
        name.resize(COLUMN_BYTES_MAX, b'c');
        let value = (left - name.len()).min(WRITE_BYTES_MAX / WRITE_COLUMNS_MAX - COLUMN_BYTES_MAX - 8);
        left -= name.len() + value;
        let value = Some(Bytes::from(vec![b'v'; value]));
        mutations.push(Mutation { column: name.into(), value, condition: Some(Timestamp(1)) });
    }
    let mut large = Write { stamp: None, key, mutations };
    large.mutations[0].value = Some(Bytes::from(vec![b'v'; large.mutations[0].value.as_ref().unwrap().len() + left]));
    let large = stamped(large, ClientSessionId(1), 1, 1);
    validate(&crate::request::TableRequest::Write(large.clone())).expect("the write is within the limits");
    let Write { stamp, key, mutations } = large;
    let columns = mutations.into_iter().map(|mutation| (mutation.column, mutation.value)).collect();
    let entry = crate::testing::Log::new().entry(Command::Write { stamp, key, columns }.encode());
    assert!(entry.size() <= ENTRY_BYTES_MAX);
    assert!(entry.size() > WRITE_BYTES_MAX);
}

/// Decoded values share the payload's buffer.
#[test]
fn decoded_values_share_payload() {
    let columns = vec![(bytes("c"), Some(bytes("value")))];
    let payload = Command::Write { stamp: None, key: bytes("k"), columns }.encode();
    let Ok(Command::Write { columns, .. }) = Command::decode(payload.clone()) else {
        panic!("it was encoded as a write")
    };
    let value = columns[0].1.as_ref().unwrap();
    assert_eq!(*value, bytes("value"));
    assert!(payload.as_ptr_range().contains(&value.as_ptr()));
}

#[test]
fn keys_of_each_command() {
    let keys: Vec<Option<Bytes>> = commands()
        .iter()
        .map(|command| {
            let keys: Vec<&Bytes> = command.keys().collect();
            assert!(keys.len() <= 1, "{command:?}");
            keys.first().map(|key| (*key).clone())
        })
        .collect();
    let (k, empty) = (Some(bytes("k")), Some(Bytes::new()));
    let session_and_writes = [k.clone(), k.clone(), k.clone(), k.clone(), k.clone()];
    assert_eq!(keys[..4], [None, None, None, None]);
    assert_eq!(keys[4..9], session_and_writes);
    assert_eq!(keys[9..11], [k, empty]);
    assert_eq!(keys[11..], [None, None, None, None]);
}

/// A transaction has an effect only if the tablet owns the coordinator's key, where it decides, and all rows that it
/// changes.
#[test]
fn keys_of_transaction_commands() {
    let keys = transaction_commands();
    let keys: Vec<String> = keys
        .iter()
        .map(|command| command.keys().map(|key| String::from_utf8_lossy(key)).collect::<Vec<_>>().join(","))
        .collect();
    assert_eq!(keys, ["k,k,l,m", "", "k", "k,l,m", "", "", "", "k", "", ""]);
}
