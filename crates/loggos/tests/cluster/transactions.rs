//! Transactions and snapshots through the client library: over ranges and tables, in conflict, and while nodes are killed and
//! paused.

mod bank;
mod lists;
mod nemesis;

use std::time::{Duration, Instant};

use api::columns as message;
use api::columns::columns_client::ColumnsClient;
use api::columns::resolve_transaction_response::Outcome;
use rustix::process::Signal;
use sdk::{Client, Error, Staleness, TableSnapshot, TransactionOutcome, Version};

use crate::harness::{Cluster, runtime};

/// A table in three ranges.
const TABLE: &str = "accounts";
const OTHER: &str = "audit";
/// Locks of a transaction that is not rolled back last for ten seconds.
const BEFORE_EXPIRY: Duration = Duration::from_secs(5);
/// Timeout for versions to be older than a retention of one second. A new leader waits 30 s for renewals of holds first.
const FORGOTTEN: Duration = Duration::from_secs(60);

#[test]
fn transactions_over_ranges_and_tables() {
    let cluster = Cluster::of(3);
    runtime().block_on(async {
        let client = cluster.client(1);
        client.table(TABLE).create().split_at(["h", "p"]).send().await.expect("a table");
        client.table(OTHER).create().send().await.expect("a table");
        client.table("plain").create().transactions(false).send().await.expect("a table");
        commits(&client).await;
        conflicts(&cluster).await;
        phantoms(&client).await;
        scans(&client).await;
        rows_are_replaced(&client).await;
        rollbacks(&client).await;
        snapshots(&cluster).await;
        refusals(&client).await;
        repeated_commits(&cluster).await;
        unknown_commits(&cluster).await;
    });
}

async fn value(client: &Client, table: &str, key: &'static str) -> (Vec<u8>, Version) {
    let cell = client.table(table).get(key, "c").await.expect("every node runs").expect("it was written");
    (cell.value.to_vec(), cell.version)
}

/// In one range, in two, and in two tables.
async fn commits(client: &Client) {
    for (index, places) in [[(TABLE, "a"), (TABLE, "b")], [(TABLE, "a"), (TABLE, "z")], [(TABLE, "i"), (OTHER, "i")]]
        .into_iter()
        .enumerate()
    {
        let done = client.transaction(|tx| async move {
            for (table, key) in places {
                let before = tx.get(table, key, "c").await?;
                tx.put(table, key, "c", index.to_string())?;
                let own = tx.get(table, key, "c").await?.expect("it was just put");
                assert_eq!((own.version, &*own.value), (Version::ABSENT, index.to_string().as_bytes()));
                assert_eq!(before.is_some(), index == 1 && key == "a");
            }
            Ok(index)
        });
        let done = done.await.expect("every node runs");
        assert_eq!((done.value, done.attempts), (index, 1));
        for (table, key) in places {
            assert_eq!(value(client, table, key).await, (index.to_string().into(), done.timestamp), "{table} {key}");
        }
    }
    // Without writes: the reads are of one moment.
    let both = client.transaction(|tx| async move { Ok((tx.row(TABLE, "a").await?, tx.row(TABLE, "z").await?)) });
    let (a, z) = both.await.expect("every node runs").value;
    assert_eq!(a.cells[0].version, z.cells[0].version);
}

async fn conflicts(cluster: &Cluster) {
    let (client, other) = (cluster.client(1), cluster.client(2));
    // Two transactions have read the same row: one of them is aborted, the younger.
    let (older, younger) = (client.begin_transaction(), other.begin_transaction());
    for tx in [&younger, &older] {
        tx.get(TABLE, "a", "c").await.expect("a read");
        tx.get(TABLE, "z", "c").await.expect("a read");
    }
    older.put(TABLE, "a", "c", "older").expect("a put");
    older.put(TABLE, "z", "c", "older").expect("a put");
    let done = older.commit().await.expect("it has priority");
    younger.put(TABLE, "a", "c", "younger").expect("a put");
    let aborted = younger.commit().await;
    assert!(matches!(aborted, Err(Error::Aborted(_))), "{aborted:?}");
    for key in ["a", "z"] {
        assert_eq!(value(&client, TABLE, key).await, (b"older".to_vec(), done.timestamp));
    }

    // A plain write in between has it run again.
    let mut runs = 0;
    let done = client.transaction(|tx| {
        runs += 1;
        let (other, is_first) = (other.clone(), runs == 1);
        async move {
            let read = tx.get(TABLE, "a", "c").await?.expect("it was written");
            if is_first {
                other.table(TABLE).write("a").put("c", "between").send().await?;
            }
            tx.put(TABLE, "z", "c", [&read.value[..], b" read"].concat())
        }
    });
    assert_eq!(done.await.expect("every node runs").attempts, 2);
    assert_eq!(value(&client, TABLE, "z").await.0, b"between read");

    // No increment is lost.
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..6 {
        let client = cluster.client(1 + number % 3).with_deadline(Duration::from_secs(60));
        tasks.spawn(async move {
            for _ in 0..10 {
                let done = client.transaction(|tx| async move {
                    for key in ["count-1", "n-count-2"] {
                        let count = tx.get(TABLE, key, "c").await?;
                        let count = count.map_or(0, |cell| String::from_utf8_lossy(&cell.value).parse().unwrap_or(0));
                        tx.put(TABLE, key, "c", (count + 1_u32).to_string())?;
                    }
                    Ok(())
                });
                done.await.expect("it is committed in time");
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(value(&client, TABLE, "count-1").await.0, b"60");
    assert_eq!(value(&client, TABLE, "n-count-2").await.0, b"60");
}

/// A row that appears in a scanned range, also an empty one, is a conflict; one outside it is not.
async fn phantoms(client: &Client) {
    for (reverse, key, is_conflict) in
        [(false, "q5", true), (true, "q4", true), (false, "q9", false), (true, "q0", false)]
    {
        let tx = client.begin_transaction();
        let scan = tx.scan(TABLE).range("q1".."q7");
        let scan = if reverse { scan.reverse() } else { scan };
        let rows = scan.all().await.expect("a scan");
        client.table(TABLE).write(key).put("c", "v").send().await.expect("a write");
        tx.put(TABLE, "b", "c", rows.len().to_string()).expect("a put");
        let done = tx.commit().await;
        assert_eq!(matches!(done, Err(Error::Aborted(_))), is_conflict, "{key}: {done:?}");
        client.table(TABLE).delete_row(key).await.expect("a deletion");
    }
    // A scan that stops early does not depend on the rows after its last page.
    for key in ["r1", "r2", "r3"] {
        client.table(TABLE).write(key).put("c", "v").send().await.expect("a write");
    }
    for (key, is_conflict) in [("r3", false), ("r1", true)] {
        let tx = client.begin_transaction();
        let mut rows = tx.scan(TABLE).prefix("r").page_rows(1).rows();
        assert_eq!(rows.next().await.expect("a row").expect("a scan").key, "r1");
        client.table(TABLE).write(key).put("c", "w").send().await.expect("a write");
        tx.put(TABLE, "b", "c", "v").expect("a put");
        let done = tx.commit().await;
        assert_eq!(matches!(done, Err(Error::Aborted(_))), is_conflict, "{key}: {done:?}");
    }
}

/// Pages over several ranges, in both directions, with the transaction's own changes.
async fn scans(client: &Client) {
    client.table("scanned").create().split_at(["k3", "k6"]).send().await.expect("a table");
    for key in 0..9 {
        client.table("scanned").write(format!("k{key}")).put("c", "v").send().await.expect("a write");
    }
    let tx = client.begin_transaction();
    tx.delete_row("scanned", "k4").expect("a change");
    tx.put("scanned", "k55", "c", "own").expect("a change");
    tx.put("scanned", "l", "c", "own").expect("a change");
    let keys = |rows: Vec<sdk::Row>| -> Vec<String> {
        rows.iter().map(|row| String::from_utf8_lossy(&row.key).into_owned()).collect()
    };
    let mut expected = vec!["k0", "k1", "k2", "k3", "k5", "k55", "k6", "k7", "k8", "l"];
    for page_rows in [1, 2, 0] {
        let scan = tx.scan("scanned").page_rows(page_rows);
        assert_eq!(keys(scan.clone().all().await.expect("a scan")), expected);
        assert_eq!(keys(scan.clone().limit(6).all().await.expect("a scan")), expected[..6]);
        assert_eq!(keys(scan.clone().range("k2".."k55").all().await.expect("a scan")), expected[2..5]);
        expected.reverse();
        assert_eq!(keys(scan.clone().reverse().all().await.expect("a scan")), expected);
        assert_eq!(keys(scan.clone().reverse().limit(4).all().await.expect("a scan")), expected[..4]);
        assert_eq!(keys(scan.reverse().prefix("k").all().await.expect("a scan")), expected[1..]);
        expected.reverse();
    }
    tx.commit().await.expect("nobody interferes");
    let rows = client.table("scanned").scan().rows();
    let found = keys_of(rows).await;
    assert_eq!(found, expected);
}

async fn keys_of(mut rows: sdk::Rows) -> Vec<String> {
    let mut keys = Vec::new();
    while let Some(row) = rows.next().await {
        keys.push(String::from_utf8_lossy(&row.expect("a scan").key).into_owned());
    }
    keys
}

/// A row that is deleted and written again has only the new columns.
async fn rows_are_replaced(client: &Client) {
    client.table(TABLE).write("row").put("a", "1").put("b", "1").put("c", "1").send().await.expect("a write");
    let done = client.transaction(|tx| async move {
        tx.delete_row(TABLE, "row")?;
        tx.put(TABLE, "row", "b", "2")?;
        tx.put(TABLE, "row", "d", "2")?;
        Ok(tx.row(TABLE, "row").await?.cells.len())
    });
    assert_eq!(done.await.expect("every node runs").value, 2);
    let row = client.table(TABLE).row("row").await.expect("a read").expect("it is there");
    let columns: Vec<_> = row.cells.iter().map(|cell| (&cell.column[..], &cell.value[..])).collect();
    assert_eq!(columns, [(&b"b"[..], &b"2"[..]), (b"d", b"2")]);
}

/// A younger transaction waits for the locks of an older one, unless that is rolled back.
async fn rollbacks(client: &Client) {
    let older = client.begin_transaction();
    for key in ["a", "i", "z"] {
        older.get(TABLE, key, "c").await.expect("a read");
    }
    older.put(TABLE, "a", "c", "never").expect("a put");
    let began = Instant::now();
    older.rollback().await;
    let done = client.transaction(|tx| async move {
        for key in ["a", "i", "z"] {
            tx.put(TABLE, key, "c", "after the rollback")?;
        }
        Ok(())
    });
    done.await.expect("every node runs");
    assert!(began.elapsed() < BEFORE_EXPIRY, "{:?}", began.elapsed());
    assert_eq!(value(client, TABLE, "a").await.0, b"after the rollback");

    // A transaction is also rolled back if its function fails. One without writes releases its locks too.
    let began = Instant::now();
    let failed = client.transaction(|tx| async move {
        tx.get(TABLE, "a", "c").await?;
        tx.put(TABLE, "z", "c", "never")?;
        Err::<(), _>(Error::NotFound("what it needs".to_owned()))
    });
    assert_eq!(failed.await, Err(Error::NotFound("what it needs".to_owned())));
    let read = client.transaction(|tx| async move { tx.get(TABLE, "a", "c").await });
    assert_eq!(read.await.expect("every node runs").timestamp, Version::ABSENT);
    client.transaction(|tx| async move { tx.put(TABLE, "a", "c", "v") }).await.expect("every node runs");
    assert!(began.elapsed() < BEFORE_EXPIRY, "{:?}", began.elapsed());
    assert_eq!(value(client, TABLE, "z").await.0, b"after the rollback");
}

async fn shows(snapshot: &TableSnapshot, expected: &str) {
    for (table, key) in [(TABLE, "a"), (TABLE, "z"), (OTHER, "z")] {
        let cell = snapshot.get(table, key, "c").await.expect("every node runs").expect("it is there");
        assert_eq!(cell.value, expected, "{table} {key} as of {}", snapshot.timestamp());
    }
    let mut rows = snapshot.scan(TABLE).range("z"..).rows();
    let row = rows.next().await.expect("a row").expect("every node runs");
    assert_eq!(row.cell("c").expect("it is there").value, expected);
}

async fn snapshots(cluster: &Cluster) {
    let client = cluster.client(1);
    let put = async |text: &'static str| {
        let done = client.transaction(|tx| async move {
            tx.put(TABLE, "a", "c", text)?;
            tx.put(TABLE, "z", "c", text)?;
            tx.put(OTHER, "z", "c", text)
        });
        done.await.expect("every node runs").timestamp
    };
    let (first, second) = (put("first").await, put("second").await);
    for node in cluster.nodes() {
        let own = Client::connect([format!("127.0.0.1:{}", cluster.grpc_port(node))]).expect("an address");
        let just_before = Version::from_nanos(second.as_nanos() - 1);
        let fresh = own.snapshot().await.expect("clocks are good");
        assert!(fresh.timestamp() >= second);
        for (snapshot, expected) in [
            (own.snapshot_at(first), "first"),
            (own.snapshot_at(just_before), "first"),
            (own.snapshot_at(second), "second"),
            (fresh, "second"),
        ] {
            shows(&snapshot, expected).await;
        }
        let recent = async |key: &'static str, age| {
            own.table(TABLE).snapshot_of(key, Staleness::Max(age)).await.expect("clocks are good")
        };
        // The key may be that of no row, but of a range that the transaction changed.
        for key in ["", "a", "aa"] {
            // A follower learns late that the second transaction is committed.
            let until = Instant::now() + BEFORE_EXPIRY;
            let snapshot = loop {
                let snapshot = recent(key, Duration::from_secs(60)).await;
                if snapshot.timestamp() >= second {
                    break snapshot;
                }
                assert!(Instant::now() < until, "node {node}: {} instead of {second}", snapshot.timestamp());
            };
            shows(&snapshot, "second").await;
        }
        let (earliest, _) = own.clock().await.expect("clocks are good");
        let snapshot = recent("a", Duration::from_nanos(1)).await;
        assert!(snapshot.timestamp().as_nanos() >= earliest.as_nanos() - 1);
        shows(&snapshot, "second").await;
    }
    let unknown = client.table("unknown").snapshot_of("a", Staleness::Max(Duration::from_secs(1))).await;
    assert!(matches!(unknown, Err(Error::NotFound(_))), "{unknown:?}");
    let short = client.table("short");
    short.create().retention(Duration::from_secs(1)).send().await.expect("a table");
    let until = Instant::now() + FORGOTTEN;
    let reason = loop {
        short.write("k").put("c", "v").send().await.expect("a write");
        let past = client.snapshot_of(Staleness::Exact(Duration::from_secs(3_600))).await.expect("clocks are good");
        match past.get("short", "k", "c").await {
            Err(Error::Precondition(reason)) if reason.contains(&past.timestamp().to_string()) => break reason,
            other => assert!(matches!(other, Ok(None)) && Instant::now() < until, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(reason.contains("is before") && reason.contains("the oldest readable one"), "{reason}");
}

async fn refusals(client: &Client) {
    let refused = client.transaction(|tx| async move { tx.put("plain", "k", "c", "v") }).await;
    let Err(Error::Precondition(reason)) = &refused else { panic!("{refused:?}") };
    assert_eq!(reason, "table plain takes no part in transactions");
    let refused = client.transaction(|tx| async move {
        tx.put(TABLE, "k", "c", "v")?;
        tx.put("plain", "k", "c", "v")
    });
    assert!(matches!(refused.await, Err(Error::Precondition(_))));
    let refused = client.transaction(|tx| async move { tx.put("missing", "k", "c", "v") }).await;
    assert!(matches!(refused, Err(Error::NotFound(_))), "{refused:?}");
    assert!(client.table(TABLE).get("k", "c").await.expect("a read").is_none());
}

/// A commit that is sent twice, to different nodes, is executed once. An outcome that was asked for does not change.
async fn repeated_commits(cluster: &Cluster) {
    let mut nodes = Vec::new();
    for node in cluster.nodes() {
        let address = format!("http://127.0.0.1:{}", cluster.grpc_port(node));
        nodes.push(ColumnsClient::connect(address).await.expect("every node runs"));
    }
    let (table, key) = (TABLE.to_owned(), bytes::Bytes::from("a"));
    let open = message::OpenSessionRequest { table: table.clone(), key: key.clone() };
    let session = nodes[0].open_session(open).await.expect("a session").into_inner().session;
    let stamp = |sequence| Some(message::SessionStamp { session, sequence, first_incomplete: 1 });
    let write = |key: &'static str, value: &'static str| message::TransactionWrite {
        table: TABLE.to_owned(),
        key: key.into(),
        mutations: vec![message::Mutation { column: "c".into(), value: Some(value.into()), condition: None }],
        delete_row: false,
    };
    let commit = |sequence, value| message::CommitTransactionRequest {
        table: table.clone(),
        key: key.clone(),
        stamp: stamp(sequence),
        owner: Some(message::TransactionOwner { started_ns: 1, id: sequence }),
        reads: Vec::new(),
        writes: vec![write("a", value), write("z", value)],
    };
    let resolve = |sequence| message::ResolveTransactionRequest {
        table: table.clone(),
        key: key.clone(),
        stamp: stamp(sequence),
    };
    let first = nodes[0].commit_transaction(commit(1, "once")).await.expect("a commit").into_inner();
    let client = cluster.client(1);
    client.table(TABLE).write("z").put("c", "later").send().await.expect("a write");
    for node in &mut nodes {
        let again = node.commit_transaction(commit(1, "once")).await.expect("a commit").into_inner();
        assert_eq!(again.timestamp_ns, first.timestamp_ns);
        let resolved = node.resolve_transaction(resolve(1)).await.expect("an outcome").into_inner();
        assert_eq!((resolved.outcome(), resolved.timestamp_ns), (Outcome::Committed, first.timestamp_ns));
        let resolved = node.resolve_transaction(resolve(2)).await.expect("an outcome").into_inner();
        assert_eq!(resolved.outcome(), Outcome::Aborted);
        let aborted = node.commit_transaction(commit(2, "never")).await.expect_err("it is aborted");
        assert_eq!(aborted.code(), tonic::Code::Aborted, "{aborted}");
    }
    assert_eq!(value(&client, TABLE, "a").await.0, b"once");
    assert_eq!(value(&client, TABLE, "z").await.0, b"later");
    let id = sdk::TransactionId { table, key, stamp: sdk::Stamp { session, sequence: 1, first_incomplete: 1 } };
    let known = client.resolve_transaction(&id).await.expect("an outcome");
    assert_eq!(known, TransactionOutcome::Committed(Version::from_nanos(first.timestamp_ns)));
}

/// Without a majority a commit has no outcome in time. It can be asked for later, although the client has written in the
/// same range meanwhile.
async fn unknown_commits(cluster: &Cluster) {
    let client = cluster.client(1);
    client.transaction(|tx| async move { tx.put(TABLE, "a", "c", "before") }).await.expect("every node runs");
    let hasty = client.clone().with_deadline(Duration::from_millis(1_500));
    let mut last = Vec::new();
    for number in 0..4 {
        let tx = hasty.begin_transaction();
        tx.put(TABLE, "a", "c", number.to_string()).expect("a put");
        tx.put(TABLE, "z", "c", number.to_string()).expect("a put");
        [2, 3].iter().for_each(|node| cluster.signal(*node, Signal::STOP));
        let outcome = tx.commit().await;
        [2, 3].iter().for_each(|node| cluster.signal(*node, Signal::CONT));
        match outcome {
            Err(Error::CommitUnknown { transaction, .. }) => last.push((number, transaction)),
            Err(error) => assert!(!error.is_outcome_unknown(), "{error:?}"),
            Ok(done) => panic!("{done:?} without a majority"),
        }
        client.table(TABLE).write("b").put("c", "meanwhile").send().await.expect("every node runs");
    }
    assert!(!last.is_empty(), "no commit was in doubt");
    let mut expected = b"before".to_vec();
    let mut newest = Version::ABSENT;
    for (number, transaction) in last {
        let outcome = client.resolve_transaction(&transaction).await.expect("an outcome");
        assert_eq!(client.resolve_transaction(&transaction).await.expect("an outcome"), outcome);
        match outcome {
            TransactionOutcome::Committed(timestamp) if timestamp > newest => {
                (expected, newest) = (number.to_string().into_bytes(), timestamp);
            }
            TransactionOutcome::Committed(_) | TransactionOutcome::Aborted => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(value(&client, TABLE, "a").await.0, expected);
}
