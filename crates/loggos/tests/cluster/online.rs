//! Indexes and constraints for tables that are in use: through a PostgreSQL client, and compared with the rows in the
//! store.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::Signal;
use sql::keys::prefix_range;
use sql::rows::{StoredRow, TableRows, Write, fill_index};
use sql::schema::{IndexState, Schema};

use crate::harness::{Cluster, runtime, wait_for};
use crate::postgres::{PATIENCE, Postgres};

/// The rows of the database in the store.
struct Stored(BTreeMap<Bytes, StoredRow>);

impl Stored {
    fn of(cluster: &Cluster) -> Self {
        let client = cluster.client(1);
        let rows = runtime().block_on(async {
            let mut scan = client.table("sql.postgres").scan().rows();
            let mut rows = BTreeMap::new();
            while let Some(row) = scan.next().await {
                let row = row.expect("a row");
                let cells = row.cells.into_iter().map(|cell| (cell.column, cell.value)).collect();
                rows.insert(row.key.clone(), StoredRow { key: row.key, cells });
            }
            rows
        });
        Self(rows)
    }

    fn schema(&self) -> Schema {
        let row = &self.0[&b"\0schema"[..]];
        let cell = row.cells.iter().find(|(name, _)| &name[..] == b"schema");
        Schema::decode(cell.expect("a schema").1.clone()).expect("valid")
    }

    fn within(&self, prefix: &[u8]) -> impl Iterator<Item = &StoredRow> + use<'_> {
        let range = prefix_range(prefix);
        self.0.range(range.start..range.end).map(|(_, row)| row)
    }

    /// Each index of a table has an entry for each row, and no other entry.
    fn check_indexes(&self, table: &str) {
        let schema = self.schema();
        let table = schema.table_named(table).expect("it exists");
        let rows = TableRows::new(&schema, table).expect("valid");
        let stored = self.within(&rows.layout().key(&[]).expect("a key"));
        let decoded: Vec<_> = stored.map(|row| rows.decode(row).expect("valid").expect("a row")).collect();
        for index in &table.indexes {
            assert_eq!(index.state, IndexState::Public, "{}", index.name);
            let mut expected = BTreeMap::new();
            for row in &decoded {
                let (Write::Put { key, cells }, _) = fill_index(&rows, index.id, row).expect("valid") else {
                    panic!("an entry")
                };
                let cells: Vec<_> = cells.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
                assert!(expected.insert(key, cells).is_none(), "{}: two rows with one entry", index.name);
            }
            let found = self.within(&sql::keys::of_id(index.id.0));
            let found: BTreeMap<_, _> = found.map(|row| (row.key.clone(), row.cells.clone())).collect();
            assert_eq!(found.len(), expected.len(), "{}", index.name);
            assert!(found == expected, "{}: other entries than those of the rows", index.name);
        }
    }
}

/// Rows from 0 on: `u` is twice the key.
fn fill(client: &mut Postgres, rows: u32) {
    client.rows("CREATE TABLE t (id int PRIMARY KEY, u int, v text)");
    for start in (0..rows).step_by(1_000) {
        let values: Vec<String> =
            (start..start + 1_000).map(|id| format!("({id}, {}, 'v{}')", 2 * id, id % 7)).collect();
        client.rows(&format!("INSERT INTO t VALUES {}", values.join(", ")));
    }
}

/// Changes rows until `stop` is set. Values of `u` stay distinct.
fn disturb(cluster: &Cluster, node: u32, stop: &AtomicBool) -> u32 {
    let mut client = Postgres::await_connected(cluster, node);
    let (mut random, mut done) = (base::SplitMix64::new(u64::from(node)), 0);
    while !stop.load(Ordering::Relaxed) {
        // Each node changes its own rows.
        let id = random.below(2_000) * 2 + u64::from(node % 2);
        let text = match random.below(4) {
            0 => format!("DELETE FROM t WHERE id = {id}"),
            1 => format!("INSERT INTO t VALUES ({id}, {}, 'new')", 2 * id),
            2 => format!("UPDATE t SET u = {} WHERE id = {id}", 2 * id + random.below(2)),
            _ => format!("UPDATE t SET v = 'v{}' WHERE id = {id}", random.below(9)),
        };
        match client.query(&text).expect("a connection") {
            Ok(_) => done += 1,
            Err(state) => assert!(["23505", "40001"].contains(&state.as_str()), "{text}: {state}"),
        }
    }
    done
}

#[test]
fn sql_indexes_are_built_while_rows_change() {
    let cluster = Cluster::of(3);
    let mut client = Postgres::await_connected(&cluster, 1);
    fill(&mut client, 4_000);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = [2, 3].map(|node| (node, &cluster, &stop)).into_iter().collect();
        let writers: Vec<_> = writers
            .into_iter()
            .map(|(node, cluster, stop)| scope.spawn(move || disturb(cluster, node, stop)))
            .collect();
        let definitions = [
            "CREATE UNIQUE INDEX by_u ON t (u) STORING (v)",
            "CREATE INDEX by_v ON t (v, id DESC)",
            "ALTER TABLE t ADD CHECK (u >= 0), ALTER COLUMN v SET NOT NULL, ADD UNIQUE (u, v)",
        ];
        let outcomes = definitions.map(|text| client.query(text).expect("a connection").err());
        stop.store(true, Ordering::Relaxed);
        let done: Vec<u32> = writers.into_iter().map(|writer| writer.join().expect("no panic")).collect();
        assert_eq!(outcomes, [None, None, None], "{done:?}");
        assert!(done.iter().all(|done| *done > 0), "{done:?}");
    });
    let stored = Stored::of(&cluster);
    stored.check_indexes("t");
    assert_eq!(stored.schema().jobs().count(), 0);
    let before = stored.schema().last_id();
    // They hold at all nodes, and what rows violate is taken back.
    let mut other = Postgres::await_connected(&cluster, 2);
    other.query("DELETE FROM t WHERE id = 9").expect("a connection").ok();
    assert_eq!(other.fails("INSERT INTO t VALUES (9, -1, 'v')"), "23514");
    assert_eq!(other.fails("INSERT INTO t VALUES (9, 1000000, NULL)"), "23502");
    other.rows("INSERT INTO t VALUES (9, NULL, 'v'), (10001, 1000000, 'v'), (10002, 1000002, 'v')");
    assert_eq!(other.fails("INSERT INTO t VALUES (10003, 1000000, 'v')"), "23505");
    assert_eq!(client.fails("CREATE UNIQUE INDEX by_w ON t (v)"), "23505");
    assert_eq!(client.fails("ALTER TABLE t ALTER COLUMN u SET NOT NULL"), "23502");
    assert_eq!(client.fails("ALTER TABLE t ADD CHECK (u < 1000000)"), "23514");
    client.rows("CREATE INDEX by_w ON t (v)");
    let schema = Stored::of(&cluster).schema();
    let table = schema.table_named("t").expect("it exists");
    assert_eq!((table.indexes.len(), table.checks.len(), table.jobs.len()), (4, 1, 0));
    // The entries of the refused index are deleted.
    wait_for("the collector", PATIENCE, || {
        let refused = Stored::of(&cluster).within(&sql::keys::of_id(before + 1)).count();
        (refused == 0).then_some(())
    });
    Stored::of(&cluster).check_indexes("t");
}

#[test]
fn sql_primary_key_is_added_to_many_rows() {
    let cluster = Cluster::of(3);
    let mut client = Postgres::await_connected(&cluster, 2);
    client.rows("CREATE TABLE t (id int, n int)");
    for start in (0..5_000).step_by(1_000) {
        let values: Vec<String> = (start..start + 1_000).map(|id| format!("({id}, 0)")).collect();
        client.rows(&format!("INSERT INTO t VALUES {}", values.join(", ")));
    }
    client.rows("INSERT INTO t VALUES (17, 1)");
    assert_eq!(client.fails("ALTER TABLE t ADD PRIMARY KEY (id)"), "23505");
    client.rows("DELETE FROM t WHERE n = 1");
    client.rows("ALTER TABLE t ADD PRIMARY KEY (id)");
    assert_eq!(client.rows("SELECT count(*), min(id), max(id) FROM t"), ["5000,0,4999"]);
    assert_eq!(client.rows("UPDATE t SET n = n + 1 WHERE id = 4711 RETURNING n"), ["1"]);
    assert_eq!(Postgres::await_connected(&cluster, 1).fails("INSERT INTO t VALUES (4711, 0)"), "23505");
}

#[test]
fn sql_index_of_a_killed_node_is_removed() {
    let cluster = Cluster::of(3);
    let mut client = Postgres::await_connected(&cluster, 1);
    fill(&mut client, 20_000);
    let mut other = Postgres::await_connected(&cluster, 2);
    client.rows("SET statement_timeout = '100ms'");
    assert_eq!(client.fails("CREATE INDEX i ON t (v)"), "57014");
    client.rows("RESET statement_timeout");
    assert_eq!(Stored::of(&cluster).schema().jobs().count(), 0, "the canceled index was removed at once");
    let building = std::thread::spawn(move || client.query("CREATE UNIQUE INDEX i ON t (u)"));
    let jobs = wait_for("the index", PATIENCE, || {
        let client = cluster.client(2);
        let read = runtime().block_on(async { client.table("sql.postgres").get("\0schema", "schema").await });
        let schema = Schema::decode(read.ok()??.value).ok()?;
        let ids: Vec<u32> = schema.table_named("t").ok()?.indexes.iter().map(|index| index.id.0).collect();
        (!ids.is_empty()).then_some(ids)
    });
    cluster.signal(1, Signal::KILL);
    assert_eq!(building.join().expect("no panic"), None, "the index was complete before the node was killed");
    // As long as the node may still be at work, the name is taken. Writes maintain the index.
    assert_eq!(other.fails("CREATE INDEX i ON t (u)"), "42P07");
    other.rows("UPDATE t SET v = 'x' WHERE id = 5");
    wait_for("the name", PATIENCE, || {
        std::thread::sleep(Duration::from_millis(500));
        other.query("CREATE INDEX i ON t (u)").expect("a connection").ok()
    });
    wait_for("the collector", PATIENCE, || {
        let stored = Stored::of(&cluster);
        (stored.within(&sql::keys::of_id(jobs[0])).count() == 0).then_some(())
    });
    let stored = Stored::of(&cluster);
    stored.check_indexes("t");
    assert_eq!(stored.schema().jobs().count(), 0);
    cluster.restart(1).ok();
}
