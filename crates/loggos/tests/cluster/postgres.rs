//! SQL through a small PostgreSQL client: statements, transactions in conflict, killed nodes, broken messages.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::Signal;

use crate::console::{get, metric};
use crate::harness::{COMMAND_PATIENCE, Cluster, Done, loggos, wait_for};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) type Rows = Vec<Vec<Option<String>>>;

pub(crate) struct Postgres(TcpStream);

impl Postgres {
    /// Connects; `None` if the node is not there.
    pub(crate) fn connect(cluster: &Cluster, node: u32, database: &str) -> Option<Result<Self, String>> {
        let mut stream = TcpStream::connect(("127.0.0.1", cluster.postgres_port(node))).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_nodelay(true).ok()?;
        let mut startup = 196_608_u32.to_be_bytes().to_vec();
        startup.extend_from_slice(format!("user\0postgres\0database\0{database}\0\0").as_bytes());
        stream.write_all(&(startup.len() as u32 + 4).to_be_bytes()).ok()?;
        stream.write_all(&startup).ok()?;
        let mut connected = Self(stream);
        Some(connected.result()?.map(|_| connected))
    }

    pub(crate) fn await_connected(cluster: &Cluster, node: u32) -> Self {
        wait_for("a connection", PATIENCE, || Self::connect(cluster, node, "postgres")?.ok())
    }

    fn send(&mut self, kind: u8, body: &[u8]) -> Option<()> {
        let mut message = vec![kind];
        message.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        message.extend_from_slice(body);
        self.0.write_all(&message).ok()
    }

    fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut header = [0; 5];
        self.0.read_exact(&mut header).ok()?;
        let length = u32::from_be_bytes(header[1..].try_into().expect("four bytes"));
        let mut body = vec![0; length as usize - 4];
        self.0.read_exact(&mut body).ok()?;
        Some((header[0], body))
    }

    /// The rows until the server is ready, or the SQLSTATE of the error. `None` if the connection was lost.
    fn result(&mut self) -> Option<Result<Rows, String>> {
        let (mut rows, mut error) = (Rows::new(), None);
        loop {
            match self.next() {
                Some((b'D', body)) => rows.push(fields(&body)),
                Some((b'E', body)) => error = Some(sqlstate(&body)),
                Some((b'Z', _)) => return Some(error.map_or(Ok(rows), Err)),
                Some(_) => {}
                // After a fatal error the connection ends.
                None => return error.map(Err),
            }
        }
    }

    pub(crate) fn query(&mut self, text: &str) -> Option<Result<Rows, String>> {
        self.send(b'Q', format!("{text}\0").as_bytes())?;
        self.result()
    }

    /// The rows of a query, each as its fields with commas.
    #[track_caller]
    pub(crate) fn rows(&mut self, text: &str) -> Vec<String> {
        let rows = self.query(text).expect("a connection").unwrap_or_else(|error| panic!("{text}: {error}"));
        let shown =
            |row: Vec<Option<String>>| row.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>().join(",");
        rows.into_iter().map(shown).collect()
    }

    fn copy(&mut self, text: &str, data: &str) -> Result<Rows, String> {
        self.send(b'Q', format!("{text}\0").as_bytes()).expect("sent");
        for piece in data.as_bytes().chunks(10_000) {
            self.send(b'd', piece).expect("sent");
        }
        self.send(b'c', b"").expect("sent");
        self.result().expect("a connection")
    }

    /// Sends a statement of the extended protocol, without the end of its transaction.
    fn execute(&mut self, text: &str) {
        self.send(b'P', format!("\0{text}\0\0\0").as_bytes()).expect("sent");
        self.send(b'B', b"\0\0\0\0\0\0\0\0").expect("sent");
        self.send(b'E', b"\0\0\0\0\0").expect("sent");
    }

    /// The end of a transaction of the extended protocol, and the result of its statements.
    fn sync(&mut self) -> Result<Rows, String> {
        self.send(b'S', b"").expect("sent");
        self.result().expect("a connection")
    }

    #[track_caller]
    pub(crate) fn fails(&mut self, text: &str) -> String {
        self.query(text).expect("a connection").expect_err(text)
    }
}

fn fields(mut body: &[u8]) -> Vec<Option<String>> {
    let mut take = |count: usize| {
        let (taken, rest) = body.split_at(count);
        body = rest;
        taken.to_vec()
    };
    let count = u16::from_be_bytes(take(2).try_into().expect("two bytes"));
    let field = |_| {
        let length = i32::from_be_bytes(take(4).try_into().expect("four bytes"));
        (length >= 0).then(|| String::from_utf8_lossy(&take(length as usize)).into_owned())
    };
    (0..count).map(field).collect()
}

fn sqlstate(body: &[u8]) -> String {
    let field = body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"C"));
    String::from_utf8_lossy(field.expect("an error has a code")).into_owned()
}

#[test]
fn sql_statements_at_any_node() {
    let cluster = Cluster::of(3);
    let (mut one, mut two) = (Postgres::await_connected(&cluster, 1), Postgres::await_connected(&cluster, 2));
    one.rows("CREATE TABLE t (id int PRIMARY KEY, name text, n numeric(8, 2) DEFAULT 1)");
    assert_eq!(two.rows("INSERT INTO t VALUES (1, 'a'), (2, 'b', 2.5), (3, NULL, NULL) RETURNING id"), ["1", "2", "3"]);
    assert_eq!(one.rows("SELECT * FROM t WHERE id = 2"), ["2,b,2.50"]);
    assert_eq!(one.rows("UPDATE t SET n = n * 2 WHERE name >= 'a' RETURNING id, n"), ["1,2.00", "2,5.00"]);
    assert_eq!(two.rows("SELECT id FROM t ORDER BY name DESC NULLS LAST, id LIMIT 2"), ["2", "1"]);
    assert_eq!(two.rows("SELECT count(*), sum(n), avg(n), max(name) FROM t"), ["3,7.00,3.5000000000000000,b"]);
    assert_eq!(one.rows("SELECT a.id FROM t a JOIN t b ON a.id = b.id + 1 ORDER BY 1"), ["2", "3"]);
    for (statement, state) in [
        ("INSERT INTO t VALUES (1)", "23505"),
        ("INSERT INTO t VALUES (NULL)", "23502"),
        ("SELECT nosuch FROM t", "42703"),
        ("SELECT * FROM nosuch", "42P01"),
        ("SELECT id / 0 FROM t", "22012"),
        ("SELEC", "42601"),
        ("INSERT INTO t VALUES (9); INSERT INTO t VALUES (1)", "23505"),
    ] {
        assert_eq!(one.fails(statement), state, "{statement}");
    }
    // The schema of the other node is older than these changes.
    one.rows("CREATE UNIQUE INDEX ON t (name)");
    one.rows("ALTER TABLE t ADD COLUMN more int DEFAULT 7");
    assert_eq!(two.fails("INSERT INTO t (id, name) VALUES (4, 'a')"), "23505");
    assert_eq!(two.rows("DELETE FROM t WHERE id > 1 RETURNING more"), ["7", "7"]);
    one.rows("TRUNCATE t");
    assert_eq!(two.rows("SELECT count(*) FROM t"), ["0"]);
    one.rows("ALTER TABLE t ALTER COLUMN more SET NOT NULL");
    assert_eq!(two.fails("INSERT INTO t (id, more) VALUES (5, NULL)"), "23502");
    one.rows("ALTER TABLE t ALTER COLUMN more DROP NOT NULL");
    two.rows("INSERT INTO t (id, more) VALUES (5, NULL)");
    // The client knows the columns of what it has prepared.
    two.rows("PREPARE p AS SELECT * FROM t; EXECUTE p");
    one.rows("ALTER TABLE t DROP COLUMN more");
    assert_eq!(two.fails("EXECUTE p"), "0A000");
    two.rows("DROP TABLE t");
    assert_eq!(one.fails("SELECT * FROM t"), "42P01");
    one.rows("CREATE DATABASE other");
    let mut other = Postgres::connect(&cluster, 3, "other").expect("a node").expect("the database");
    assert_eq!(other.rows("SELECT current_database()"), ["other"]);
    let missing = Postgres::connect(&cluster, 3, "nosuch").expect("a node");
    assert_eq!(missing.err().as_deref(), Some("3D000"));

    let mut command = loggos();
    let at = cluster.endpoints(2).join(",");
    command.args(["sql", "--at", &at, "--json", "-d", "other"]);
    command.args(["-e", "CREATE TABLE s (id serial PRIMARY KEY, v text)", "-e"]);
    command.arg("INSERT INTO s (v) VALUES ('x'); SELECT * FROM s");
    let out = Done::of(&mut command, COMMAND_PATIENCE).ok();
    assert!(out.ends_with("{\"id\":1,\"v\":\"x\"}\n"), "{out}");
}

#[test]
fn sql_transactions_in_conflict() {
    let cluster = Cluster::of(1);
    let (mut one, mut two) = (Postgres::await_connected(&cluster, 1), Postgres::await_connected(&cluster, 1));
    one.rows("CREATE TABLE t (id int PRIMARY KEY, n int)");
    one.rows("INSERT INTO t VALUES (1, 10), (2, 20)");
    one.rows("BEGIN");
    two.rows("BEGIN");
    assert_eq!(one.rows("SELECT n FROM t WHERE id = 1"), ["10"]);
    assert_eq!(two.rows("SELECT n FROM t WHERE id = 2"), ["20"]);
    // Write skew: each changes what the other has read.
    one.rows("UPDATE t SET n = 0 WHERE id = 2");
    two.rows("UPDATE t SET n = 0 WHERE id = 1");
    let outcomes = [one.query("COMMIT"), two.query("COMMIT")].map(|outcome| outcome.expect("a connection").err());
    assert_eq!(outcomes.iter().filter(|outcome| outcome.as_deref() == Some("40001")).count(), 1, "{outcomes:?}");
    assert_eq!(one.rows("SELECT count(*) FROM t WHERE n = 0"), ["1"]);
    // A change of the schema is a conflict too.
    one.rows("BEGIN");
    one.rows("INSERT INTO t VALUES (3, 30)");
    two.rows("ALTER TABLE t ADD COLUMN more int NOT NULL DEFAULT 1");
    assert_eq!(one.fails("COMMIT"), "40001");
    // An error ends a transaction, except after a savepoint.
    one.rows("BEGIN");
    one.rows("INSERT INTO t VALUES (4, 40)");
    one.rows("SAVEPOINT s");
    assert_eq!(one.fails("INSERT INTO t VALUES (4, 41)"), "23505");
    assert_eq!(one.fails("SELECT 1"), "25P02");
    one.rows("ROLLBACK TO s");
    one.rows("INSERT INTO t VALUES (5, 50)");
    one.rows("COMMIT");
    assert_eq!(two.rows("SELECT id FROM t WHERE id > 2 ORDER BY id"), ["4", "5"]);
    assert_eq!(two.fails("BEGIN READ ONLY; DELETE FROM t"), "25006");
}

/// The outcome of a transaction by its id, at every node, also if it is undecided.
#[test]
fn sql_outcomes_of_transactions() {
    let cluster = Cluster::of(3);
    let (mut one, mut two) = (Postgres::await_connected(&cluster, 1), Postgres::await_connected(&cluster, 2));
    let status = |at: &mut Postgres, id: &str| at.rows(&format!("SELECT coalesce(pg_xact_status({id}), 'unknown')"));
    one.rows("CREATE TABLE t (id int PRIMARY KEY, n int)");
    one.rows("INSERT INTO t VALUES (1, 0), (2, 0)");
    one.rows("BEGIN; UPDATE t SET n = 1 WHERE id = 1");
    assert_eq!(one.rows("SELECT pg_current_xact_id_if_assigned() IS NULL"), ["t"]);
    let id = one.rows("SELECT pg_current_xact_id()").remove(0);
    assert_eq!(one.rows("SELECT txid_current(), pg_current_xact_id_if_assigned()"), [format!("{id},{id}")]);
    assert_eq!(status(&mut one, &id), ["in progress"]);
    one.rows("COMMIT");
    for at in [&mut one, &mut two] {
        assert_eq!(status(at, &id), ["committed"]);
        assert_eq!(status(at, &format!("'{id}'::xid8")), ["committed"]);
    }
    one.rows("BEGIN; UPDATE t SET n = 2 WHERE id = 1");
    let id = one.rows("SELECT pg_current_xact_id()").remove(0);
    one.rows("ROLLBACK");
    assert_eq!(status(&mut two, &id), ["aborted"]);
    // The question at another node aborts a transaction that has not ended.
    one.rows("BEGIN; UPDATE t SET n = 3 WHERE id = 1");
    let id = one.rows("SELECT pg_current_xact_id()").remove(0);
    assert_eq!(status(&mut two, &id), ["aborted"]);
    assert_eq!(one.fails("COMMIT"), "40001");
    assert_eq!(status(&mut one, &id), ["aborted"]);
    assert_eq!(two.rows("SELECT n FROM t WHERE id = 1"), ["1"]);
    // Blocks that change nothing, and statements outside of blocks, are committed too.
    one.rows("BEGIN");
    let id = one.rows("SELECT pg_current_xact_id()").remove(0);
    one.rows("COMMIT");
    assert_eq!(status(&mut two, &id), ["committed"]);
    let id = one.rows("SELECT txid_current()").remove(0);
    assert_eq!(status(&mut two, &id), ["committed"]);
    let id = one.rows("INSERT INTO t VALUES (3, 0) RETURNING pg_current_xact_id()").remove(0);
    assert_eq!(status(&mut two, &id), ["committed"]);
    assert_eq!(status(&mut two, "12345"), ["unknown"]);
    assert_eq!(two.fails("SELECT pg_xact_status('x')"), "22P02");
    assert_eq!(two.fails("BEGIN READ ONLY; SELECT pg_current_xact_id()"), "25006");
}

#[test]
fn sql_deadlocks_and_early_conflicts() {
    let cluster = Cluster::of(1);
    let (mut one, mut two) = (Postgres::await_connected(&cluster, 1), Postgres::await_connected(&cluster, 1));
    one.rows("CREATE TABLE t (id int PRIMARY KEY, n int)");
    one.rows("INSERT INTO t VALUES (1, 0), (2, 0)");
    one.rows("BEGIN; UPDATE t SET n = 1 WHERE id = 1");
    two.rows("BEGIN; UPDATE t SET n = 2 WHERE id = 2");
    let waiting = std::thread::spawn(move || {
        one.rows("UPDATE t SET n = 1 WHERE id = 2");
        one.rows("COMMIT");
        one
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(two.fails("UPDATE t SET n = 2 WHERE id = 1"), "40P01");
    let mut one = waiting.join().expect("the older transaction goes on");
    two.rows("ROLLBACK");
    assert_eq!(two.rows("SELECT n FROM t ORDER BY id"), ["1", "1"]);
    // A row that was absent before is a conflict. The session of the deadlock would keep its age.
    let mut three = Postgres::await_connected(&cluster, 1);
    one.rows("BEGIN; SELECT n FROM t WHERE id = 1");
    three.rows("BEGIN");
    assert!(three.rows("SELECT n FROM t WHERE id = 7").is_empty());
    one.rows("INSERT INTO t VALUES (7, 7); COMMIT");
    assert_eq!(three.fails("INSERT INTO t VALUES (7, 8)"), "40001");
    three.rows("ROLLBACK");
    assert_eq!(three.fails("INSERT INTO t VALUES (7, 8)"), "23505");
}

#[test]
fn sql_survives_killed_nodes() {
    let cluster = Cluster::of(3);
    let mut client = (1, Postgres::await_connected(&cluster, 1));
    client.1.rows("CREATE TABLE t (id int PRIMARY KEY, n int)");
    let mut last = 0;
    for killed in 1..=3_u32 {
        for at in 0..60 {
            if at == 20 {
                cluster.signal(killed, Signal::KILL);
            }
            last += 1;
            loop {
                match client.1.query(&format!("INSERT INTO t VALUES ({last}, {killed})")) {
                    Some(Ok(_)) => break,
                    // An earlier attempt was executed.
                    Some(Err(state)) if state == "23505" => break,
                    Some(Err(state)) if ["08006", "40001", "40003"].contains(&state.as_str()) => {}
                    Some(Err(state)) => panic!("row {last}: {state}"),
                    None => {
                        let next = client.0 % 3 + 1;
                        client = (
                            next,
                            Postgres::await_connected(&cluster, if next == killed { next % 3 + 1 } else { next }),
                        );
                    }
                }
            }
        }
        cluster.restart(killed).ok();
        for node in cluster.nodes() {
            let count = Postgres::await_connected(&cluster, node).rows("SELECT count(*), max(id) FROM t");
            assert_eq!(count, [format!("{last},{last}")], "node {node}");
        }
    }
}

#[test]
fn sql_extended_protocol_and_broken_messages() {
    let cluster = Cluster::of(1);
    let mut client = Postgres::await_connected(&cluster, 1);
    client.rows("CREATE TABLE t (id int PRIMARY KEY, v text)");
    client.rows("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')");
    // A parameter in binary format, and a result of which two rows are fetched, and then the rest.
    client.send(b'P', b"s\0SELECT v FROM t WHERE id >= $1 ORDER BY id\0\0\0").expect("sent");
    client.send(b'D', b"Ss\0").expect("sent");
    client.send(b'B', b"\0s\0\0\x01\0\x01\0\x01\0\0\0\x04\0\0\0\x01\0\0").expect("sent");
    client.send(b'E', b"\0\0\0\0\x02").expect("sent");
    client.send(b'E', b"\0\0\0\0\0").expect("sent");
    client.send(b'S', b"").expect("sent");
    let mut kinds = Vec::new();
    loop {
        let (kind, body) = client.next().expect("a connection");
        kinds.push(kind);
        match kind {
            b't' => assert_eq!(body, [0, 1, 0, 0, 0, 23], "an integer"),
            b'Z' => break,
            _ => {}
        }
    }
    assert_eq!(kinds, b"1tT2DDsDCZ", "{}", String::from_utf8_lossy(&kinds));
    // Lengths beyond the message, then a message that is fine.
    client.send(b'B', b"\0s\0\0\0\0\x01\x7f\xff\xff\xffx\0\0").expect("sent");
    client.send(b'S', b"").expect("sent");
    assert_eq!(client.result(), Some(Err("08P01".to_owned())));
    client.send(b'Q', b"SELECT '\xff'\0").expect("sent");
    assert_eq!(client.result(), Some(Err("22021".to_owned())));
    assert_eq!(client.rows("SELECT v FROM t WHERE id = 2"), ["b"]);
    // COPY in both directions.
    client.send(b'Q', b"COPY t FROM STDIN WITH (FORMAT csv)\0").expect("sent");
    client.send(b'd', b"4,\"d,d\"\n5").expect("sent");
    client.send(b'd', b",\n").expect("sent");
    client.send(b'c', b"").expect("sent");
    assert_eq!(client.result(), Some(Ok(Rows::new())));
    assert_eq!(client.rows("SELECT v FROM t WHERE id >= 4 ORDER BY id"), ["d,d", ""]);
    client.send(b'Q', b"COPY t TO STDOUT\0").expect("sent");
    let mut lines = Vec::new();
    loop {
        match client.next().expect("a connection") {
            (b'd', line) => lines.extend(line),
            (b'Z', _) => break,
            _ => {}
        }
    }
    assert_eq!(String::from_utf8_lossy(&lines), "1\ta\n2\tb\n3\tc\n4\td,d\n5\t\\N\n");
    client.send(b'?', b"").expect("sent");
    assert_eq!(client.result(), Some(Err("08P01".to_owned())));
    assert!(Postgres::await_connected(&cluster, 1).query("SELECT 1").is_some());
}

/// Rows of a table that the transaction itself has created are written outside of it.
#[test]
fn sql_bulk_loads_and_dropped_databases() {
    let cluster = Cluster::of(1);
    let (mut one, mut two) = (Postgres::await_connected(&cluster, 1), Postgres::await_connected(&cluster, 1));
    let lines = |ids: &mut dyn Iterator<Item = u32>| ids.map(|id| format!("{id}\t{}\n", id % 7)).collect::<String>();
    one.rows("BEGIN; CREATE TABLE t (id int PRIMARY KEY, n int)");
    assert_eq!(one.copy("COPY t FROM STDIN", &lines(&mut (1_000..3_500).rev())), Ok(Rows::new()));
    one.rows("CREATE INDEX ON t (n); INSERT INTO t VALUES (5000, 1)");
    assert_eq!(one.rows("UPDATE t SET n = 100 WHERE id >= 3499 RETURNING id"), ["3499", "5000"]);
    assert_eq!(one.copy("COPY t FROM STDIN", &lines(&mut (0..1_000))), Ok(Rows::new()));
    assert_eq!(one.rows("DELETE FROM t WHERE id = 0 RETURNING n"), ["0"]);
    assert_eq!(one.rows("SELECT count(*), min(id), max(n) FROM t"), ["3500,1,100"]);
    one.rows("SAVEPOINT s");
    assert_eq!(one.copy("COPY t FROM STDIN", "7\t1\n"), Err("23505".to_owned()));
    one.rows("ROLLBACK TO s; CREATE TABLE u (id int PRIMARY KEY, n int)");
    assert_eq!(one.copy("COPY u FROM STDIN", &lines(&mut (0..2_000))), Ok(Rows::new()));
    one.rows("ROLLBACK TO s");
    one.rows("COMMIT");
    assert_eq!(two.rows("SELECT count(*), min(id), max(n) FROM t"), ["3500,1,100"]);
    assert_eq!(two.rows("SELECT id FROM t WHERE n = 100 ORDER BY id"), ["3499", "5000"]);
    // Nothing is left of the table that was rolled back.
    wait_for("the end of the marks", PATIENCE, || {
        let out = cluster.columns(&["scan", "sql.postgres"]).ok();
        (!out.contains("unseen") && out.contains("schema")).then_some(())
    });

    one.rows("CREATE TABLE s (id serial PRIMARY KEY, v int)");
    assert_eq!(one.rows("INSERT INTO s (v) VALUES (0), (0) RETURNING id"), ["1", "2"]);
    one.rows("BEGIN; TRUNCATE s RESTART IDENTITY");
    assert_eq!(one.rows("INSERT INTO s (v) VALUES (0) RETURNING id"), ["1"]);
    one.rows("ROLLBACK");
    assert_eq!(one.rows("INSERT INTO s (v) VALUES (0) RETURNING id"), ["3"]);
    one.rows("TRUNCATE s RESTART IDENTITY");
    assert_eq!(one.rows("INSERT INTO s (v) VALUES (0) RETURNING id"), ["1"]);

    // A transaction of a dropped database has no effect on the next one of that name, which has the same identifiers.
    one.rows("CREATE DATABASE d");
    let connect = || Postgres::connect(&cluster, 1, "d").expect("a node").expect("the database");
    let mut old = connect();
    old.rows("BEGIN; CREATE TABLE t (id int PRIMARY KEY, n int)");
    assert_eq!(old.copy("COPY t FROM STDIN", &lines(&mut (0..10))), Ok(Rows::new()));
    one.rows("DROP DATABASE d");
    one.rows("CREATE DATABASE d");
    let mut new = connect();
    new.rows("CREATE TABLE t (id int PRIMARY KEY, n int)");
    new.rows("INSERT INTO t VALUES (1, 1), (2, 2)");
    let refused = old.copy("COPY t FROM STDIN", &lines(&mut (10..20)));
    assert!(refused.is_err(), "{refused:?}");
    old.rows("ROLLBACK");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(new.rows("SELECT count(*), max(n) FROM t"), ["2,2"]);
}

/// Statements of the extended protocol are one transaction up to Sync, and transactions wait for rows that others change.
#[test]
fn sql_pipelines_and_hot_rows() {
    let cluster = Cluster::of(1);
    let (mut one, mut two) = (Postgres::await_connected(&cluster, 1), Postgres::await_connected(&cluster, 1));
    one.rows("CREATE TABLE t (id int PRIMARY KEY, n int)");
    one.execute("INSERT INTO t VALUES (1, 1)");
    one.execute("INSERT INTO t VALUES (1, 2)");
    one.execute("INSERT INTO t VALUES (3, 3)");
    assert_eq!(one.sync(), Err("23505".to_owned()));
    assert_eq!(two.rows("SELECT count(*) FROM t"), ["0"]);
    one.execute("INSERT INTO t VALUES (1, 1)");
    one.send(b'H', b"").expect("sent");
    while !matches!(one.next(), Some((b'C', _))) {}
    assert_eq!(two.rows("SELECT count(*) FROM t"), ["0"], "it is not committed before Sync");
    one.execute("SELECT n FROM t WHERE id = 1");
    assert_eq!(one.sync(), Ok(vec![vec![Some("1".to_owned())]]));
    assert_eq!(two.rows("SELECT count(*) FROM t"), ["1"]);
    one.execute("INSERT INTO t VALUES (2, 2)");
    assert_eq!(one.sync(), Ok(Rows::new()));
    one.execute("BEGIN");
    one.execute("INSERT INTO t VALUES (3, 3)");
    assert_eq!(one.sync(), Ok(Rows::new()));
    assert_eq!(two.rows("SELECT count(*) FROM t"), ["2"]);
    one.rows("ROLLBACK");

    // Both read the row before they change it.
    one.rows("BEGIN; UPDATE t SET n = n + 10 WHERE id = 1");
    let other = std::thread::spawn(move || {
        two.rows("BEGIN; UPDATE t SET n = n + 100 WHERE id = 1; COMMIT");
        two
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(!other.is_finished(), "it waits");
    one.rows("COMMIT");
    let mut two = other.join().expect("it has changed the row");
    assert_eq!(two.rows("SELECT n FROM t WHERE id = 1"), ["111"]);
    // A key may be changed too.
    assert_eq!(two.rows("UPDATE t SET id = id + 1 RETURNING id"), ["2", "3"]);

    // Messages that do not arrive use no memory.
    let stalled: Vec<_> = (0..8).map(|_| Postgres::await_connected(&cluster, 1)).collect();
    for client in &stalled {
        (&client.0).write_all(b"Q\x03\xff\xff\xffSELECT '").expect("sent");
    }
    let text = "x".repeat(1 << 20);
    assert_eq!(two.rows(&format!("SELECT '{text}'")), [text]);
}

/// Sessions, sizes and metrics of the node are visible in SQL, in the console and in the log.
#[test]
fn sql_activity_is_visible() {
    let cluster = Cluster::of(1);
    let (mut one, mut two) = (Postgres::await_connected(&cluster, 1), Postgres::await_connected(&cluster, 1));
    one.rows("CREATE TABLE seen (id int PRIMARY KEY, note text)");
    one.rows("INSERT INTO seen SELECT n, repeat('x', 1000) FROM generate_series(1, 100) AS n");
    one.rows("SET application_name = 'watched'");
    one.rows("BEGIN");
    one.rows("SELECT count(*) FROM seen");
    let activity = "SELECT pid, state, query FROM pg_stat_activity WHERE application_name = 'watched'";
    let rows = two.rows(activity);
    let pid = one.rows("SELECT pg_backend_pid()");
    assert_eq!(rows, [format!("{},idle in transaction,SELECT count(*) FROM seen", pid[0])]);
    assert_eq!(two.rows("SELECT count(*) FROM pg_locks WHERE granted"), ["2"], "also that of this statement");
    one.rows("COMMIT");
    assert!(two.rows(activity)[0].contains(",idle,COMMIT"), "the rows are those of each execution");
    let size: u64 = two.rows("SELECT pg_total_relation_size('seen')")[0].parse().expect("a size");
    assert!((100_000..10_000_000).contains(&size), "{size}");
    assert_eq!(two.fails("SELECT 1 / 0"), "22012");
    two.rows("SET log_min_duration_statement = 0");
    two.rows("SELECT 'slow one'");

    let (_, text) = get(&cluster, 1, "/metrics");
    assert!(metric(&text, "loggos_sql_statement_duration_seconds_count{kind=\"ddl\"}") >= 1.0);
    assert!(metric(&text, "loggos_sql_statement_duration_seconds_count{kind=\"insert\"}") >= 1.0);
    assert!(metric(&text, "loggos_sql_errors_total{sqlstate=\"22\"}") >= 1.0);
    assert_eq!(metric(&text, "loggos_sql_sessions"), 2.0);
    assert!(metric(&text, "loggos_transaction_commits_total") >= 1.0);
    let (status, body) = get(&cluster, 1, "/api/sql");
    let shown: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, shown["sessions"].as_array().map(Vec::len)), (200, Some(2)), "{body}");
    assert_eq!(shown["databases"][0]["tables"][0]["table"], "seen", "{body}");
    assert_eq!(get(&cluster, 1, "/activity").0, 200);
    let log = std::fs::read_to_string(cluster.node_directory(1).join("log")).expect("the log");
    for line in ["schema changed", "slow statement", "leads range"] {
        assert!(log.contains(line), "{line} in\n{log}");
    }
}
