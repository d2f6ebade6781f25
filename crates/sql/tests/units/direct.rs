use std::collections::BTreeMap;

use base::SplitMix64;
use bytes::Bytes;

use super::ddl::{change, schema};
use sql::ddl::{Work, apply, publish_primary_key};
use sql::direct::{Command, Outcome, Page, Plan, Read, Step, insert_rows, prepare, prepare_scan};
use sql::ids::SequenceId;
use sql::keys::{KeyReader, prefix_range};
use sql::parse::parse_one;
use sql::rows::{StoredRow, TableRows, Write, fill_index, fill_primary_key};
use sql::schema::{IndexState, Schema};
use sql::statement::Statement;
use sql::{Environment, SqlError, SqlType, Supply, Value};

/// A store in memory, with a schema.
#[derive(Clone)]
pub(super) struct Database {
    pub(super) schema: Schema,
    pub(super) rows: BTreeMap<Bytes, BTreeMap<Bytes, Bytes>>,
    sequences: Sequences,
    /// Rows in a page of a scan.
    page: usize,
}

#[derive(Clone, Default)]
pub(super) struct Sequences {
    last: BTreeMap<SequenceId, i64>,
    uuids: u8,
}

impl Supply for Sequences {
    fn next_value(&mut self, sequence: SequenceId) -> Result<i64, SqlError> {
        let last = self.last.entry(sequence).or_default();
        *last += 1;
        Ok(*last)
    }

    fn current_value(&mut self, sequence: SequenceId) -> Option<i64> {
        self.last.get(&sequence).copied()
    }

    fn random_uuid(&mut self) -> [u8; 16] {
        self.uuids += 1;
        [self.uuids; 16]
    }
}

impl Database {
    pub(super) fn new(text: &str) -> Self {
        Self { schema: schema(text), rows: BTreeMap::new(), sequences: Sequences::default(), page: 2 }
    }

    pub(super) fn stored(&self, key: &Bytes) -> Option<StoredRow> {
        let cells = self.rows.get(key)?;
        Some(StoredRow {
            key: key.clone(),
            cells: cells.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        })
    }

    fn read(&self, read: &Read) -> Page {
        match read {
            Read::Row(key) | Read::Locked(key) | Read::Entry(key) => {
                Page { rows: self.stored(key).into_iter().collect(), next: None }
            }
            Read::Range(range, _) | Read::Cells(range, ..) => {
                let mut keys = self.rows.range(range.start.clone()..range.end.clone()).map(|(key, _)| key.clone());
                let mut rows: Vec<StoredRow> =
                    keys.by_ref().take(self.page).filter_map(|key| self.stored(&key)).collect();
                if let Read::Cells(.., wanted) = read {
                    rows.iter_mut().for_each(|row| row.cells.retain(|(name, _)| wanted.contains(name)));
                }
                Page { rows, next: keys.next() }
            }
        }
    }

    pub(super) fn write(&mut self, write: Write) {
        match write {
            Write::Delete { key } => {
                self.rows.remove(&key);
            }
            Write::Put { key, cells } => {
                let row = self.rows.entry(key).or_default();
                for (name, value) in cells {
                    match value {
                        Some(value) => row.insert(name, value),
                        None => row.remove(&name),
                    };
                }
            }
        }
    }

    fn plan(&self, text: &str) -> Result<Option<Plan>, SqlError> {
        prepare(&self.schema, &parse_one(text)?, text, &[])
    }

    pub(super) fn run(&mut self, text: &str, parameters: &[Value]) -> Result<Outcome, SqlError> {
        let plan = self.plan(text)?.unwrap_or_else(|| panic!("{text} needs a planner"));
        self.execute(text, &plan, parameters)
    }

    /// Executes a statement that scans.
    pub(super) fn scan(&mut self, text: &str) -> Result<Outcome, SqlError> {
        let constants = [("version", Value::Text("7".to_owned()))];
        let plan = prepare_scan(&self.schema, &parse_one(text)?, text, &[], &constants)?;
        self.execute(text, &plan.unwrap_or_else(|| panic!("{text} needs a planner")), &[])
    }

    pub(super) fn scanned(&mut self, text: &str) -> Vec<String> {
        let outcome = self.scan(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
        let shown = |value: &Value| value.to_text().unwrap_or_else(|| "NULL".to_owned());
        outcome.rows.iter().map(|row| row.iter().map(shown).collect::<Vec<_>>().join("|")).collect()
    }

    fn execute(&mut self, text: &str, plan: &Plan, parameters: &[Value]) -> Result<Outcome, SqlError> {
        let mut sequences = self.sequences.clone();
        let mut environment = Environment { parameters, now: 86_400_000_000, supply: &mut sequences };
        let (mut execution, mut step) = plan.start(&mut environment)?;
        let outcome = loop {
            match step {
                Step::Read(reads) => {
                    let pages = reads.iter().map(|read| self.read(read)).collect();
                    step = execution.advance(pages, &mut environment)?;
                }
                Step::Done(outcome) | Step::DoneIfOneMoment(outcome) => break outcome,
                Step::NeedsPlanner => panic!("{text} needs a planner"),
            }
        };
        self.sequences = sequences;
        outcome.writes.iter().cloned().for_each(|write| self.write(write));
        Ok(outcome)
    }

    /// The rows of a result as text.
    pub(super) fn rows(&mut self, text: &str) -> Vec<String> {
        let outcome = self.run(text, &[]).unwrap_or_else(|error| panic!("{text}: {error:?}"));
        let shown = |value: &Value| value.to_text().unwrap_or_else(|| "NULL".to_owned());
        outcome.rows.iter().map(|row| row.iter().map(shown).collect::<Vec<_>>().join("|")).collect()
    }

    pub(super) fn affected(&mut self, text: &str) -> u64 {
        self.run(text, &[]).unwrap_or_else(|error| panic!("{text}: {error:?}")).affected
    }

    fn error(&mut self, text: &str) -> SqlError {
        let before = self.rows.clone();
        let error = self.run(text, &[]).expect_err(text);
        assert_eq!(self.rows, before, "a statement that fails has no effect");
        error
    }

    /// All entries of indexes are those of the rows.
    pub(super) fn check_indexes(&self) {
        let mut expected = BTreeMap::new();
        let mut found = BTreeMap::new();
        for table in self.schema.tables() {
            let rows = sql::rows::TableRows::new(&self.schema, table).expect("bound");
            for key in self.rows.keys() {
                let stored = self.stored(key).expect("it exists");
                let id = KeyReader::new(key).id().expect("a key");
                if table.indexes.iter().any(|index| index.id.0 == id) {
                    found.insert(key.clone(), self.rows[key].clone());
                } else if let Ok(Some(row)) = rows.decode(&stored) {
                    for index in table.indexes.iter().filter(|index| index.state != IndexState::Dropping) {
                        let (entry, _) = fill_index(&rows, index.id, &row).expect("an entry");
                        let Write::Put { key, cells } = entry else { panic!("{entry:?}") };
                        let cells = cells.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
                        assert!(expected.insert(key, cells).is_none(), "unique");
                    }
                }
            }
        }
        assert_eq!(found, expected);
    }
}

const TABLES: &str = "
    CREATE TABLE customers (id bigint PRIMARY KEY, name varchar(10) NOT NULL UNIQUE, balance numeric(10,2) DEFAULT 0
        CHECK (balance >= 0), note text, code char(4), n int);
    CREATE INDEX by_note ON customers (note DESC, n) STORING (balance);
    CREATE TABLE orders (id bigint, no int GENERATED BY DEFAULT AS IDENTITY, item text, PRIMARY KEY (id, no))
        INTERLEAVE IN PARENT customers ON DELETE CASCADE;
    CREATE INDEX by_item ON orders (item);
    CREATE TABLE lines (id bigint, no int, line int, PRIMARY KEY (id, no, line)) INTERLEAVE IN PARENT orders ON DELETE CASCADE;
    CREATE TABLE log (message text, at timestamptz DEFAULT now());
    CREATE TABLE events (day date, kind text, x float8, PRIMARY KEY (day DESC, kind))";

#[test]
fn point_reads_and_writes() {
    let mut db = Database::new(TABLES);
    let insert = "INSERT INTO customers (id, name, balance, note, code) VALUES (1, 'ann', 5, 'x', 'ab'), (2, 'bob', DEFAULT, NULL, NULL) RETURNING id, balance";
    assert_eq!(db.rows(insert), ["1|5.00", "2|0.00"]);
    assert_eq!(db.rows("SELECT * FROM customers WHERE id = 1"), ["1|ann|5.00|x|ab  |NULL"]);
    assert_eq!(db.rows("SELECT name FROM customers c WHERE 2 = c.id AND note IS NULL"), ["bob"]);
    assert_eq!(db.rows("SELECT name FROM customers WHERE id = 2 AND note = 'x'"), [""; 0]);
    assert_eq!(db.rows("SELECT name FROM customers WHERE id = NULL"), [""; 0]);
    assert_eq!(db.rows("SELECT code = 'ab', code || '!', upper(name) FROM customers WHERE id = 1"), ["t|ab!|ANN"]);
    assert_eq!(
        db.rows(
            "UPDATE customers SET balance = balance + 1.5, note = note || name WHERE id = 1 RETURNING balance, note"
        ),
        ["6.50|xann"]
    );
    assert_eq!(db.affected("UPDATE customers SET n = 1 WHERE id = 9"), 0);
    db.check_indexes();
    assert_eq!(db.affected("DELETE FROM customers WHERE id = 2"), 1);
    assert_eq!(db.affected("DELETE FROM customers WHERE id = 2"), 0);
    assert_eq!(db.affected("INSERT INTO log (message) VALUES ('a'), ('b')"), 2);
    assert_eq!(db.rows("SELECT * FROM log LIMIT 5"), ["a|2000-01-02 00:00:00+00", "b|2000-01-02 00:00:00+00"]);
    db.check_indexes();
}

#[test]
fn parameters_take_their_types_from_the_context() {
    let mut db = Database::new(TABLES);
    let text = "INSERT INTO customers (id, name, balance, n) VALUES ($1, $2, $3, $4 + 1)";
    let plan = db.plan(text).expect("valid").expect("direct");
    assert_eq!(plan.command, Command::Insert);
    assert_eq!(plan.parameters, [SqlType::Int8, SqlType::Text, SqlType::Numeric(None), SqlType::Int4]);
    let parameters =
        [Value::Int8(7), Value::Text("eve".into()), Value::Numeric("1.239".parse().expect("a number")), Value::Int4(4)];
    assert_eq!(db.run(text, &parameters).expect("valid").affected, 1);
    let select = "SELECT balance, n, $2 FROM customers WHERE id = $1";
    let outcome = db.run(select, &[Value::Int8(7), Value::Text("p".into())]).expect("valid");
    assert_eq!(outcome.rows[0][1..], [Value::Int4(5), Value::Text("p".into())]);
    assert_eq!(outcome.rows[0][0].to_text().as_deref(), Some("1.24"));
    let plan = db.plan(select).expect("valid").expect("direct");
    let names: Vec<&str> = plan.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["balance", "n", "?column?"]);
    assert_eq!(db.run(select, &[Value::Int8(7)]).expect_err("one is missing").sqlstate, "08P01");
    // A wider type that the client declared.
    let text = "SELECT name FROM customers WHERE id = $1";
    let declared = [Some(SqlType::Int4)];
    let plan = prepare(&db.schema, &parse_one(text).expect("valid"), text, &declared).expect("valid").expect("direct");
    assert_eq!(plan.parameters, [SqlType::Int4]);
    let gap = "SELECT id FROM customers WHERE id = $2";
    assert_eq!(db.plan(gap).expect_err("$1 has no type").sqlstate, "42P18");
}

#[test]
fn constraints_are_checked() {
    let mut db = Database::new(TABLES);
    db.affected("INSERT INTO customers (id, name) VALUES (1, 'ann'), (2, 'bob')");
    let cases = [
        ("INSERT INTO customers (id, name) VALUES (1, 'cat')", "23505"),
        ("INSERT INTO customers (id, name) VALUES (3, 'ann')", "23505"),
        ("INSERT INTO customers (id, name) VALUES (3, 'cat'), (3, 'dan')", "23505"),
        ("INSERT INTO customers (id, name) VALUES (3, 'cat'), (4, 'cat')", "23505"),
        ("INSERT INTO customers (id) VALUES (3)", "23502"),
        ("INSERT INTO customers (name) VALUES ('cat')", "23502"),
        ("INSERT INTO customers (id, name, balance) VALUES (3, 'cat', -1)", "23514"),
        ("INSERT INTO customers (id, name, balance) VALUES (3, 'cat', 1e9)", "22003"),
        ("INSERT INTO customers (id, name) VALUES (3, 'a long name')", "22001"),
        ("INSERT INTO customers (id, name) VALUES ('x', 'cat')", "22P02"),
        ("INSERT INTO customers (id, name) VALUES (true, 'cat')", "42804"),
        ("INSERT INTO customers (id, nam) VALUES (3, 'cat')", "42703"),
        ("INSERT INTO customers (id, id) VALUES (3, 3)", "42701"),
        ("INSERT INTO customers (id, name) VALUES (3)", "42601"),
        ("INSERT INTO customers (id, n) VALUES (3, 2147483647 + 1)", "22003"),
        ("INSERT INTO customers (id, n) VALUES (3, 1 / 0)", "22012"),
        ("INSERT INTO nothing VALUES (1)", "42P01"),
        ("INSERT INTO orders (id, item) VALUES (5, 'x')", "23503"),
        ("UPDATE customers SET name = 'bob' WHERE id = 1", "23505"),
        ("UPDATE customers SET name = NULL WHERE id = 1", "23502"),
        ("UPDATE customers SET balance = balance - 1 WHERE id = 1", "23514"),
        ("UPDATE customers SET n = 1, n = 2 WHERE id = 1", "42601"),
        ("UPDATE customers SET zz = 1 WHERE id = 1", "42703"),
        ("SELECT nme FROM customers WHERE id = 1", "42703"),
        ("SELECT name FROM customers WHERE id = 1 AND name", "42804"),
        ("SELECT * FROM customers LIMIT -1", "2201W"),
    ];
    for (text, expected) in cases {
        assert_eq!(db.error(text).sqlstate, expected, "{text}");
    }
    let error = db.error("INSERT INTO customers (id, name) VALUES (3, 'ann')");
    assert_eq!(error.detail.as_deref(), Some("Key (name)=(ann) already exists."));
    let error = db.error("SELECT nme FROM customers WHERE id = 1");
    assert_eq!(error.hint.as_deref(), Some("Perhaps you meant to reference the column \"customers.name\"."));
    assert_eq!(error.position, Some(8));
    assert_eq!(db.affected("UPDATE customers SET name = 'ann' WHERE id = 1"), 1, "its own entry is no duplicate");
    db.check_indexes();
}

#[test]
fn on_conflict() {
    let mut db = Database::new(TABLES);
    db.affected("INSERT INTO customers (id, name, n) VALUES (1, 'ann', 1)");
    assert_eq!(
        db.affected("INSERT INTO customers (id, name) VALUES (1, 'x'), (2, 'bob'), (2, 'y') ON CONFLICT DO NOTHING"),
        1
    );
    assert_eq!(db.affected("INSERT INTO customers (id, name) VALUES (5, 'ann') ON CONFLICT (name) DO NOTHING"), 0);
    let upsert = "INSERT INTO customers AS c (id, name, n) VALUES (1, 'zoe', 5), (3, 'cat', 3)
        ON CONFLICT (id) DO UPDATE SET n = c.n + excluded.n, name = excluded.name RETURNING id, name, n";
    assert_eq!(db.rows(upsert), ["1|zoe|6", "3|cat|3"]);
    let upsert = "INSERT INTO customers (id, name, n) VALUES (9, 'zoe', 5) ON CONFLICT (name) DO UPDATE SET n = excluded.id RETURNING id, n";
    assert_eq!(db.rows(upsert), ["1|9"], "the row of the index entry is updated");
    let twice = "INSERT INTO customers (id, name) VALUES (7, 'x'), (7, 'y') ON CONFLICT (id) DO UPDATE SET n = 1";
    assert_eq!(db.error(twice).sqlstate, "21000");
    let taken =
        "INSERT INTO customers (id, name) VALUES (1, 'cat') ON CONFLICT (id) DO UPDATE SET name = excluded.name";
    assert_eq!(db.error(taken).sqlstate, "23505");
    let missing = "INSERT INTO customers (id, name) VALUES (1, 'cat') ON CONFLICT (n) DO NOTHING";
    assert_eq!(db.error(missing).sqlstate, "42P10");
    let condition =
        "INSERT INTO customers (id, name) VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET n = 0 WHERE customers.n > 100";
    assert_eq!(db.affected(condition), 0);
    db.check_indexes();
}

#[test]
fn interleaved_rows_are_deleted_with_their_parents() {
    let mut db = Database::new(TABLES);
    db.affected("INSERT INTO customers (id, name) VALUES (1, 'ann'), (2, 'bob')");
    assert_eq!(
        db.rows("INSERT INTO orders (id, item) VALUES (1, 'a'), (1, 'b'), (2, 'c') RETURNING no"),
        ["1", "2", "3"]
    );
    db.affected("INSERT INTO lines VALUES (1, 1, 1), (1, 1, 2), (1, 2, 1)");
    db.check_indexes();
    assert_eq!(db.rows("SELECT id FROM customers LIMIT 10"), ["1", "2"], "rows of children are skipped");
    assert_eq!(db.rows("SELECT no, item FROM orders WHERE id = 1 LIMIT 10"), ["1|a", "2|b"]);
    assert_eq!(db.affected("DELETE FROM customers WHERE id = 1"), 1);
    assert_eq!(db.rows("SELECT no FROM orders LIMIT 10"), ["3"]);
    assert_eq!(db.rows("SELECT line FROM lines LIMIT 10"), [""; 0]);
    db.check_indexes();
    let mut db = Database::new(
        "CREATE TABLE p (a int PRIMARY KEY); CREATE TABLE c (a int, b int, PRIMARY KEY (a, b)) INTERLEAVE IN PARENT p",
    );
    db.affected("INSERT INTO p VALUES (1)");
    db.affected("INSERT INTO c VALUES (1, 1)");
    assert_eq!(db.error("DELETE FROM p WHERE a = 1").sqlstate, "23503");
    db.affected("DELETE FROM c WHERE a = 1 AND b = 1");
    assert_eq!(db.affected("DELETE FROM p WHERE a = 1"), 1);
}

#[test]
fn short_ranges() {
    let mut db = Database::new(TABLES);
    for day in 1..=5 {
        db.affected(&format!("INSERT INTO events VALUES ('2024-01-0{day}', 'a', {day}), ('2024-01-0{day}', 'b', 0.5)"));
    }
    let days = |db: &mut Database, rest: &str| db.rows(&format!("SELECT day, kind FROM events WHERE {rest}"));
    assert_eq!(days(&mut db, "day >= '2024-01-04' LIMIT 3"), ["2024-01-05|a", "2024-01-05|b", "2024-01-04|a"]);
    assert_eq!(days(&mut db, "day < '2024-01-02' ORDER BY day DESC, kind LIMIT 9"), ["2024-01-01|a", "2024-01-01|b"]);
    assert_eq!(days(&mut db, "day = '2024-01-02' AND kind > 'a' LIMIT 9"), ["2024-01-02|b"]);
    assert_eq!(
        days(&mut db, "day BETWEEN '2024-01-02' AND '2024-01-03' AND x > 1 LIMIT 9"),
        ["2024-01-03|a", "2024-01-02|a"]
    );
    assert_eq!(days(&mut db, "day > '2024-01-02' AND day > '2024-01-04' LIMIT 9"), ["2024-01-05|a", "2024-01-05|b"]);
    assert_eq!(days(&mut db, "day > '2024-01-04' AND day < '2024-01-02' LIMIT 9"), [""; 0]);
    for text in [
        "SELECT * FROM events",
        "SELECT * FROM events ORDER BY day LIMIT 1",
        "SELECT * FROM events e, log LIMIT 1",
        "SELECT DISTINCT day FROM events LIMIT 1",
        "SELECT * FROM events LIMIT 100000",
        "SELECT * FROM pg_class LIMIT 1",
        "SELECT * FROM information_schema.tables LIMIT 1",
        "UPDATE events SET x = 1 WHERE day = '2024-01-01'",
        "DELETE FROM events",
        "INSERT INTO events SELECT * FROM events",
        "SELECT 1",
    ] {
        assert!(db.plan(text).unwrap_or_else(|error| panic!("{text}: {error:?}")).is_none(), "{text}");
    }
}

#[test]
fn lists_of_keys() {
    let mut db = Database::new(TABLES);
    db.affected("INSERT INTO customers (id, name) VALUES (1, 'a'), (2, 'b'), (3, 'c')");
    let names = |db: &mut Database, rest: &str| db.rows(&format!("SELECT name FROM customers WHERE {rest}"));
    assert_eq!(names(&mut db, "id IN (3, 1, 9, NULL, 3)"), ["a", "c"]);
    assert_eq!(names(&mut db, "id IN (3, 1) AND name <> 'a' ORDER BY id"), ["c"]);
    assert_eq!(names(&mut db, "id IN (3, 1, 2) LIMIT 2"), ["a", "b"]);
    assert_eq!(names(&mut db, "id IN (NULL)"), [""; 0]);
    assert_eq!(names(&mut db, "id IN (1, 2) AND id IN (2, 3)"), ["b"]);
    assert_eq!(names(&mut db, "id IN (1, 2) AND id > 1 LIMIT 5"), ["b"]);
    db.affected("INSERT INTO events VALUES ('2024-01-01', 'a', 1), ('2024-01-01', 'b', 2), ('2024-01-02', 'a', 3)");
    assert_eq!(db.rows("SELECT x FROM events WHERE day = '2024-01-01' AND kind IN ('b', 'a', 'c')"), ["1", "2"]);
    assert_eq!(db.rows("SELECT name FROM customers WHERE id IN (1, 2) ORDER BY name DESC"), ["b", "a"]);
    assert!(db.plan("SELECT 1 FROM events WHERE kind IN ('a')").expect("valid").is_none());
}

#[test]
fn added_columns_have_their_initial_value() {
    let mut db = Database::new("CREATE TABLE t (a int PRIMARY KEY, b text)");
    db.affected("INSERT INTO t VALUES (1, 'x'), (2, 'y')");
    db.schema = change(&db.schema, "ALTER TABLE t ADD COLUMN c int DEFAULT 7, ADD COLUMN d text").expect("valid");
    assert_eq!(db.rows("SELECT * FROM t WHERE a = 1"), ["1|x|7|NULL"]);
    db.affected("UPDATE t SET c = NULL WHERE a = 1");
    db.affected("UPDATE t SET b = 'z' WHERE a = 2");
    db.affected("INSERT INTO t (a, c) VALUES (3, NULL)");
    db.schema =
        change(&db.schema, "ALTER TABLE t ALTER COLUMN c SET DEFAULT 9; ALTER TABLE t DROP COLUMN b").expect("valid");
    assert_eq!(db.rows("SELECT * FROM t LIMIT 9"), ["1|NULL|NULL", "2|7|NULL", "3|NULL|NULL"]);
}

#[test]
fn rows_that_exist_are_added_to_an_index_and_a_primary_key() {
    let mut db = Database::new("CREATE TABLE t (a int, b text)");
    db.affected("INSERT INTO t VALUES (1, 'x'), (2, 'y')");
    let pending = match parse_one("ALTER TABLE t ADD PRIMARY KEY (a)") {
        Ok(Statement::Definition(definition)) => apply(&db.schema, &definition).expect("valid"),
        other => panic!("{other:?}"),
    };
    let before = db.schema.table_named("t").expect("it exists").clone();
    db.schema = pending.schema;
    // Writes in the meantime maintain both keys.
    db.affected("INSERT INTO t VALUES (3, 'z')");
    let rows = TableRows::new(&db.schema, db.schema.table_named("t").expect("it exists")).expect("valid");
    let range = prefix_range(&rows.layout().key(&[]).expect("a key"));
    let stored: Vec<StoredRow> =
        db.rows.keys().filter(|key| range.contains(key)).filter_map(|key| db.stored(key)).collect();
    assert_eq!(stored.len(), 3);
    for stored in stored {
        let row = rows.decode(&stored).expect("valid").expect("a row");
        let (writes, absent) = fill_primary_key(&rows, &row).expect("valid");
        assert_eq!(absent.len(), 1);
        writes.into_iter().for_each(|write| db.write(write));
    }
    db.schema = publish_primary_key(&db.schema, before.id).expect("valid");
    assert_eq!(db.rows("SELECT * FROM t LIMIT 9"), ["1|x", "2|y", "3|z"]);
    assert_eq!(db.rows("SELECT b FROM t WHERE a = 3"), ["z"]);
    db.rows.retain(|key, _| !range.contains(key));
    let Ok(Statement::Definition(definition)) = parse_one("CREATE UNIQUE INDEX i ON t (b) STORING (a)") else {
        panic!("a definition")
    };
    let change = apply(&db.schema, &definition).expect("valid");
    let [Work::FillIndex(table, index)] = change.work[..] else { panic!("{:?}", change.work) };
    db.schema = change.schema;
    let rows = TableRows::new(&db.schema, db.schema.table(table).expect("it exists")).expect("valid");
    let stored: Vec<StoredRow> = db.rows.keys().filter_map(|key| db.stored(key)).collect();
    for stored in stored {
        let row = rows.decode(&stored).expect("valid").expect("a row");
        let (write, absent) = fill_index(&rows, index, &row).expect("valid");
        assert!(absent.is_some_and(|absent| !db.rows.contains_key(&absent.key)));
        db.write(write);
    }
    db.check_indexes();
}

#[test]
fn statements_of_pgbench_need_no_planner() {
    let mut db = Database::new(
        "create table pgbench_history(tid int,bid int,aid int,delta int,mtime timestamp,filler char(22));
         create table pgbench_accounts(aid int not null,bid int,abalance int,filler char(84)) ;
         alter table pgbench_accounts add primary key (aid)",
    );
    db.affected("insert into pgbench_accounts values (5, 1, 0, '')");
    let update = "UPDATE pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2;";
    let plan = db.plan(update).expect("valid").expect("direct");
    assert_eq!(plan.parameters, [SqlType::Int4, SqlType::Int4]);
    assert_eq!(db.run(update, &[Value::Int4(-7), Value::Int4(5)]).expect("valid").affected, 1);
    assert_eq!(db.rows("SELECT abalance FROM pgbench_accounts WHERE aid = 5;"), ["-7"]);
    let history = "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 2, 3, -4, CURRENT_TIMESTAMP);";
    assert_eq!(db.affected(history), 1);
    assert_eq!(db.rows("SELECT delta, mtime, filler FROM pgbench_history LIMIT 1"), ["-4|2000-01-02 00:00:00|NULL"]);
}

#[test]
fn random_writes_keep_indexes_consistent() {
    let mut random = SplitMix64::new(9);
    let mut db = Database::new(TABLES);
    let mut model: BTreeMap<u64, (u64, Option<u64>)> = BTreeMap::new();
    for _ in 0..3_000 {
        let (id, name, n) = (random.below(6), random.below(8), random.below(5));
        let n = (n > 0).then_some(n);
        let shown = n.map_or_else(|| "NULL".to_owned(), |n| n.to_string());
        let is_taken = model.iter().any(|(other, (taken, _))| *other != id && *taken == name);
        let (text, expected) = match random.below(5) {
            0 => {
                let text =
                    format!("INSERT INTO customers (id, name, note, n) VALUES ({id}, '{name}', '{shown}', {shown})");
                let fails = is_taken || model.contains_key(&id);
                if !fails {
                    model.insert(id, (name, n));
                }
                (text, !fails)
            }
            1 => {
                let text = format!(
                    "INSERT INTO customers (id, name, note, n) VALUES ({id}, '{name}', '{shown}', {shown}) ON CONFLICT (id)
                     DO UPDATE SET name = excluded.name, note = excluded.note, n = excluded.n"
                );
                if !is_taken {
                    model.insert(id, (name, n));
                }
                (text, !is_taken)
            }
            2 => {
                let text =
                    format!("UPDATE customers SET name = '{name}', note = '{shown}', n = {shown} WHERE id = {id}");
                let fails = is_taken && model.contains_key(&id);
                if let Some(row) = model.get_mut(&id).filter(|_| !fails) {
                    *row = (name, n);
                }
                (text, !fails)
            }
            3 => {
                let text = format!("INSERT INTO orders (id, item) VALUES ({id}, '{name}')");
                (text, model.contains_key(&id))
            }
            _ => {
                model.remove(&id);
                (format!("DELETE FROM customers WHERE id = {id}"), true)
            }
        };
        let result = db.run(&text, &[]);
        assert_eq!(result.is_ok(), expected, "{text}: {result:?}");
        db.check_indexes();
    }
    let rows = db.rows("SELECT id, name, n FROM customers LIMIT 100");
    let expected: Vec<String> = model
        .iter()
        .map(|(id, (name, n))| format!("{id}|{name}|{}", n.map_or_else(|| "NULL".to_owned(), |n| n.to_string())))
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn random_statements_do_not_panic() {
    let pieces = [
        "SELECT",
        "*",
        "id",
        "name",
        "customers",
        "FROM customers",
        "WHERE",
        "id = 1",
        "id = $1",
        "AND",
        "OR",
        "(",
        ")",
        ",",
        "=",
        "INSERT INTO customers",
        "VALUES",
        "(1, 'a')",
        "($1, $2)",
        "UPDATE customers SET",
        "n = n + 1",
        "DELETE FROM customers",
        "ON CONFLICT",
        "DO NOTHING",
        "DO UPDATE SET",
        "excluded.n",
        "RETURNING",
        "LIMIT 1",
        "LIMIT $1",
        "IN (1, 2)",
        "NULL",
        "DEFAULT",
        "-",
        "||",
        "/ 0",
        "9223372036854775807",
        "'x'",
        "::int",
        "ORDER BY id",
        "coalesce(",
        "BETWEEN",
        "CASE WHEN",
        "THEN",
        "END",
        "no",
        "orders",
        "1e300",
        "::numeric",
        "'2024-01-01'::date",
        "interval '1 month'",
        "note",
        "balance",
        "FOR UPDATE",
    ];
    let mut random = SplitMix64::new(10);
    let mut db = Database::new(TABLES);
    db.affected("INSERT INTO customers (id, name) VALUES (1, 'ann')");
    let mut direct = 0;
    for round in 0..60_000 {
        let start = [
            "SELECT id FROM customers WHERE id = 1 AND",
            "UPDATE customers SET n =",
            "INSERT INTO customers (id, name, n) VALUES",
            "",
        ];
        let words = (0..random.below(9)).map(|_| pieces[random.below(pieces.len() as u64) as usize]);
        let text = format!("{} {}", start[round % 4], words.collect::<Vec<_>>().join(" "));
        let Ok(statement) = parse_one(&text) else { continue };
        let Ok(Some(plan)) = prepare(&db.schema, &statement, &text, &[]) else { continue };
        let parameters: Vec<Value> = plan
            .parameters
            .iter()
            .map(
                |what| {
                    if random.chance(200_000) { Value::Null } else { super::values::random_value(what, &mut random) }
                },
            )
            .collect();
        let _ = db.run(&text, &parameters);
        direct += 1;
    }
    assert!(direct > 100, "only {direct} statements were executed");
    db.check_indexes();
}

/// The deepest statements that the parser accepts are bound, executed and printed on the stack of a worker thread.
#[test]
fn deepest_statements_fit_into_a_small_stack() {
    let run = || {
        let mut db = Database::new(TABLES);
        db.affected("INSERT INTO customers (id, name, n) VALUES (1, 'ann', 1)");
        let chains = [
            format!("({}n = 2)", "n = 2 OR ".repeat(990)),
            format!("{}n = 2", "n = 2 AND ".repeat(990)),
            format!("({}n = 2)", "n = 2 OR ".repeat(100)),
            format!("1{} > 0", " + 1".repeat(990)),
            format!("('a'{}) <> ''", " || 'a'".repeat(990)),
            format!("{}n = 1{}", "(".repeat(40), ")".repeat(40)),
            format!("{}n = 1", "NOT ".repeat(40)),
        ];
        for chain in chains {
            let text = format!("SELECT id FROM customers WHERE id = 1 AND {chain}");
            parse_one(&text).unwrap_or_else(|error| panic!("{error:?}"));
            if db.plan(&text).expect("valid").is_some() {
                db.affected(&text);
            }
            let table = format!("CREATE TABLE deep (n int CHECK ({chain}))");
            let _ = change(&db.schema, &table);
        }
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run).expect("a thread");
    thread.join().expect("it does not panic");
}

#[test]
fn scans_filter_sort_and_aggregate() {
    let mut database =
        Database::new("CREATE TABLE t (id int PRIMARY KEY, a int, b numeric(8, 2), c text); CREATE INDEX t_c ON t (c)");
    database
        .affected("INSERT INTO t VALUES (1, 5, 1.5, 'x'), (2, NULL, 2, 'y'), (3, 5, NULL, NULL), (4, 1, 0.25, 'x')");
    assert_eq!(database.scanned("SELECT id FROM t WHERE a = 5 OR c = 'y'"), ["1", "2", "3"]);
    assert_eq!(database.scanned("SELECT id, a FROM t ORDER BY a DESC, id DESC"), ["2|NULL", "3|5", "1|5", "4|1"]);
    assert_eq!(database.scanned("SELECT id AS x FROM t ORDER BY c NULLS FIRST, x DESC LIMIT 2 OFFSET 1"), ["4", "1"]);
    assert_eq!(database.scanned("SELECT c, id FROM t ORDER BY 2 DESC LIMIT 1"), ["x|4"]);
    assert_eq!(database.scanned("SELECT id FROM t WHERE id > 1 OFFSET 2"), ["4"]);
    assert_eq!(
        database.scanned("SELECT count(*), count(a), sum(a), avg(a), sum(b), avg(b), min(c), max(b) FROM t"),
        ["4|3|11|3.6666666666666667|3.75|1.25000000000000000000|x|2.00"]
    );
    assert_eq!(database.scanned("SELECT count(*), sum(a), max(c) FROM t WHERE id > 9"), ["0|NULL|NULL"]);
    assert_eq!(database.scanned("SELECT 1 + 1, version(), pg_catalog.version()"), ["2|7|7"]);
    for text in ["SELECT a, count(*) FROM t GROUP BY a", "SELECT DISTINCT a FROM t", "SELECT sum(a) + 1 FROM t"] {
        let plan = prepare_scan(&database.schema, &parse_one(text).expect("valid"), text, &[], &[]);
        assert_eq!(plan.expect("valid").map(|_| ()), None, "{text}");
    }
    let error = database.scan("SELECT id FROM t ORDER BY 3").expect_err("there is one column");
    assert_eq!(error.sqlstate, sql::sqlstate::INVALID_COLUMN_REFERENCE);
}

#[test]
fn changes_of_all_matching_rows() {
    let mut database = Database::new(
        "CREATE TABLE p (id int PRIMARY KEY, v int UNIQUE CHECK (v < 100)); \
         CREATE TABLE k (id int, n int, PRIMARY KEY (id, n)) INTERLEAVE IN PARENT p ON DELETE CASCADE",
    );
    database.affected("INSERT INTO p VALUES (1, 10), (2, 20), (3, 30)");
    database.affected("INSERT INTO k VALUES (1, 1), (2, 1), (2, 2), (3, 1)");
    assert_eq!(database.scan("UPDATE p SET v = v + 1 WHERE v >= 20").expect("valid").affected, 2);
    database.check_indexes();
    assert_eq!(database.rows("SELECT v FROM p WHERE id = 3"), ["31"]);
    let error = database.scan("UPDATE p SET v = v * 4").expect_err("a row violates the condition");
    assert_eq!(error.sqlstate, sql::sqlstate::CHECK_VIOLATION);
    let error = database.scan("UPDATE p SET v = 7").expect_err("the values are not unique");
    assert_eq!(error.sqlstate, sql::sqlstate::UNIQUE_VIOLATION);
    assert_eq!(database.scanned("DELETE FROM p WHERE v > 15 RETURNING id, v"), ["2|21", "3|31"]);
    assert_eq!(database.scanned("SELECT id, n FROM k"), ["1|1"]);
    database.check_indexes();
}

#[test]
fn rows_of_copy_are_inserted_with_defaults() {
    let mut database = Database::new("CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 7, b text UNIQUE)");
    let text = |text: &str| Value::Text(text.to_owned());
    let rows = vec![vec![text("x"), Value::Int4(1)], vec![text("y"), Value::Int4(2)]];
    let plan = insert_rows(&database.schema, "t", &[2, 0], rows.clone()).expect("valid");
    assert_eq!(database.execute("COPY", &plan, &[]).expect("inserted").affected, 2);
    assert_eq!(database.rows("SELECT * FROM t WHERE id = 2"), ["2|7|y"]);
    let error = database.execute("COPY", &plan, &[]).expect_err("they exist");
    assert_eq!(error.sqlstate, sql::sqlstate::UNIQUE_VIOLATION);
    database.check_indexes();
}

#[test]
fn truncated_tables_have_new_keys() {
    let schema = schema("CREATE TABLE p (id int PRIMARY KEY, v int); CREATE INDEX i ON p (v)");
    let after = sql::ddl::truncate(&schema, &["p".to_owned()], false, false).expect("valid");
    let (old, new) = (schema.table_named("p").expect("it exists"), after.table_named("p").expect("it exists"));
    assert_eq!(old.id, new.id);
    assert!(old.storage() != new.storage() && old.indexes[0].id != new.indexes[0].id);
    assert_eq!(after.garbage().len(), 2);
    assert_eq!(Schema::decode(after.encode()).expect("valid"), after);
    assert_eq!(schema.reserve_ids(500).last_id(), 500);
}

/// A column's sequence gets a new identifier too, so that it starts again, and does so only if that is committed.
#[test]
fn restarted_sequences_are_new() {
    let before = schema("CREATE TABLE t (id serial PRIMARY KEY, v int)");
    let id = |schema: &Schema| schema.sequence_named("t_id_seq").expect("it exists").id;
    let after = sql::ddl::truncate(&before, &["t".to_owned()], false, true).expect("valid");
    assert!(id(&after) > id(&before));
    let table = after.table_named("t").expect("it exists");
    assert_eq!(table.columns[0].generated.map(|generated| generated.sequence), Some(id(&after)));
    assert!(after.garbage().contains(&sql::schema::Garbage::Prefix(id(&before).0)));
}

#[test]
fn primary_keys_are_updated() {
    let mut db = Database::new(
        "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v text); CREATE INDEX ON t (v);
         CREATE TABLE k (id int, n int, PRIMARY KEY (id, n)) INTERLEAVE IN PARENT t",
    );
    db.affected("INSERT INTO t VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, NULL)");
    assert_eq!(db.rows("UPDATE t SET id = 7, v = 'c' WHERE id = 1 RETURNING *"), ["7|10|c"]);
    assert_eq!(db.affected("UPDATE t SET id = 7 WHERE id = 7"), 1);
    let error = db.run("UPDATE t SET id = 2 WHERE id = 7", &[]).expect_err("it exists");
    assert_eq!(
        (error.sqlstate, error.message.as_str()),
        (sql::sqlstate::UNIQUE_VIOLATION, "duplicate key value violates unique constraint \"t_pkey\"")
    );
    // Rows take the places of others of the statement, also in unique indexes.
    assert_eq!(db.scan("UPDATE t SET id = id + 1, u = u + 10").expect("valid").affected, 3);
    assert_eq!(db.rows("SELECT * FROM t LIMIT 9"), ["3|30|b", "4|40|NULL", "8|20|c"]);
    assert_eq!(db.scan("UPDATE t SET id = 9").expect_err("one key").sqlstate, sql::sqlstate::UNIQUE_VIOLATION);
    db.check_indexes();
    // Interleaved rows do not move, and need a parent.
    db.affected("INSERT INTO k VALUES (3, 1), (4, 1)");
    assert_eq!(db.run("UPDATE t SET id = 5 WHERE id = 3", &[]).expect_err("a child").sqlstate, "0A000");
    assert_eq!(db.affected("UPDATE t SET id = 5 WHERE id = 8"), 1);
    assert_eq!(db.affected("UPDATE k SET id = 5, n = n + 1 WHERE id = 3 AND n = 1"), 1);
    assert_eq!(db.run("UPDATE k SET id = 6 WHERE id = 4 AND n = 1", &[]).expect_err("no parent").sqlstate, "23503");
    assert_eq!(db.rows("SELECT * FROM k WHERE id = 5 LIMIT 9"), ["5|2"]);
    assert_eq!(db.run("UPDATE t SET id = NULL WHERE id = 5", &[]).expect_err("NULL").sqlstate, "23502");
}

/// Rows that a statement is about to change are read with locks, parents without.
#[test]
fn changed_rows_are_read_with_locks() {
    let db = Database::new(
        "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE);
         CREATE TABLE k (id int, n int, PRIMARY KEY (id, n)) INTERLEAVE IN PARENT t",
    );
    let locked = |text: &str| {
        let plan = db.plan(text).expect("valid").expect("direct");
        let mut supply = Sequences::default();
        let (_, step) = plan.start(&mut Environment { parameters: &[], now: 0, supply: &mut supply }).expect("valid");
        let Step::Read(reads) = step else { panic!("{step:?}") };
        reads.iter().map(|read| matches!(read, Read::Locked(_))).collect::<Vec<_>>()
    };
    assert_eq!(locked("UPDATE t SET u = u + 1 WHERE id = 1"), [true]);
    assert_eq!(locked("INSERT INTO t VALUES (1, 2)"), [true, true]);
    assert_eq!(locked("INSERT INTO t VALUES (1, 2) ON CONFLICT (u) DO UPDATE SET u = 0"), [true]);
    assert_eq!(locked("INSERT INTO k VALUES (1, 2)"), [true, false]);
    assert_eq!(locked("SELECT * FROM t WHERE id = 1"), [false]);
    assert_eq!(locked("SELECT * FROM t WHERE id = 1 FOR UPDATE"), [true]);
}

/// Each operand is bound once, also if it is such a condition itself.
#[test]
fn nested_conditions_are_bound_in_linear_time() {
    let mut database = Database::new("CREATE TABLE t (id int PRIMARY KEY, a int, c char(4), v varchar(4))");
    database.affected("INSERT INTO t VALUES (1, 5, 'ab', 'ab'), (2, NULL, NULL, NULL), (3, 7, 'b', 'b')");
    let between = |depth: usize| format!("a BETWEEN 1 AND 6{}", " BETWEEN false AND true".repeat(depth));
    let left = |depth: usize| format!("a IN (5){}", " IN (true)".repeat(depth));
    let right = |depth: usize| format!("{}a = 5{}", "true IN (".repeat(depth), ")".repeat(depth));
    let bound = |depth: usize| format!("{}a = 5{}", "true BETWEEN false AND (".repeat(depth), ")".repeat(depth));
    for condition in [between(1), left(1), right(1), bound(1)] {
        let scan = format!("SELECT id FROM t WHERE {condition} AND a = 5");
        assert_eq!(database.scanned(&scan), ["1"], "{condition}");
    }
    for condition in [between(38), left(38), right(38), bound(30)] {
        for text in [
            format!("SELECT id FROM t WHERE {condition}"),
            format!("SELECT id FROM t WHERE id = 1 AND {condition}"),
            format!("SELECT {condition} FROM t WHERE id = 1"),
        ] {
            let statement = parse_one(&text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
            prepare(&database.schema, &statement, &text, &[]).expect("valid");
            prepare_scan(&database.schema, &statement, &text, &[], &[]).expect("valid");
        }
    }
    let cases = [
        ("a BETWEEN 5 AND 6", "t||f"),
        ("a + 1 BETWEEN 6 AND 7.5", "t||f"),
        ("a BETWEEN NULL AND 6", "||f"),
        ("a BETWEEN 6 AND NULL", "f||"),
        ("5 BETWEEN id AND a", "t||t"),
        ("'ab' BETWEEN c AND v", "t||f"),
        ("c BETWEEN 'ab ' AND 'ab   '", "t||f"),
        ("c BETWEEN 'a' AND v", "t||t"),
        ("v BETWEEN 'ab' AND 'b'", "t||t"),
        ("v BETWEEN c AND c", "t||t"),
        ("c IN ('ab   ', v)", "t||t"),
        ("v IN ('ab')", "t||f"),
        ("a IN (1, NULL, 5)", "t||"),
    ];
    for (condition, expected) in cases {
        let found = database.scanned(&format!("SELECT {condition} FROM t"));
        assert_eq!(found.join("|").replace("NULL", ""), expected, "{condition}");
    }
    let mixed = "SELECT v BETWEEN c AND 'x' FROM t";
    let plan = prepare_scan(&database.schema, &parse_one(mixed).expect("valid"), mixed, &[], &[]);
    assert_eq!(plan.expect("valid").map(|_| ()), None, "the padding matters for one bound only");
    // Key ranges are found.
    assert_eq!(database.rows("SELECT id FROM t WHERE id BETWEEN 2 AND 3 LIMIT 9"), ["2", "3"]);
    assert_eq!(database.rows("SELECT id FROM t WHERE id IN (3, 1)"), ["1", "3"]);
}

/// A name in ORDER BY is that of a result first.
#[test]
fn order_by_the_name_of_a_result() {
    let mut db = Database::new("CREATE TABLE t (id int PRIMARY KEY, b int)");
    db.affected("INSERT INTO t VALUES (1, 9), (2, 8), (3, 7)");
    for (text, expected) in [
        ("SELECT -id AS id FROM t ORDER BY id LIMIT 2", ["-3", "-2"]),
        ("SELECT b AS id FROM t ORDER BY id LIMIT 2", ["7", "8"]),
        ("SELECT t.b AS ID FROM t WHERE id > 1 ORDER BY Id LIMIT 2", ["7", "8"]),
        ("SELECT b AS id FROM t WHERE id IN (1, 2) ORDER BY id", ["8", "9"]),
        ("SELECT (-id)::text AS id FROM t ORDER BY id LIMIT 2", ["-1", "-2"]),
        ("SELECT id::text FROM t ORDER BY id DESC LIMIT 2", ["3", "2"]),
    ] {
        assert_eq!(db.scanned(text), expected, "{text}");
    }
    for (text, expected) in [
        ("SELECT id FROM t ORDER BY id LIMIT 2", ["1", "2"]),
        ("SELECT (x.id) AS id FROM t x ORDER BY id LIMIT 2", ["1", "2"]),
        ("SELECT id AS b FROM t ORDER BY id LIMIT 2", ["1", "2"]),
        ("SELECT b AS c FROM t WHERE id IN (1, 2) ORDER BY id", ["9", "8"]),
    ] {
        assert_eq!(db.rows(text), expected, "{text}");
    }
}

/// A `char` has no spaces at its end when it is compared with a `text`.
#[test]
fn padded_keys_are_compared_by_type() {
    let mut db = Database::new("CREATE TABLE t (k char(5) PRIMARY KEY, n int)");
    db.affected("INSERT INTO t VALUES ('ab', 1), ('c', 2)");
    for (value, is_equal) in [
        ("'ab  '", true),
        ("'ab'", true),
        ("'ab  '::char(4)", true),
        ("'ab  '::varchar", true),
        ("'ab'::text", true),
        ("'ab  '::text", false),
        ("'a' || 'b '", false),
        ("lower('AB')", true),
    ] {
        let expected: &[&str] = if is_equal { &["1"] } else { &[] };
        assert_eq!(db.rows(&format!("SELECT n FROM t WHERE k = {value}")), expected, "{value}");
        assert_eq!(db.rows(&format!("SELECT n FROM t WHERE {value} = k FOR UPDATE")), expected, "{value}");
        assert_eq!(db.affected(&format!("UPDATE t SET n = 1 WHERE k = {value}")), u64::from(is_equal), "{value}");
    }
    assert_eq!(db.rows("SELECT n FROM t WHERE k IN ('ab  '::text, 'c'::text)"), ["2"]);
    assert_eq!(db.rows("SELECT n FROM t WHERE k IN ('ab  ', 'c'::text)"), ["1", "2"]);
    assert_eq!(db.affected("DELETE FROM t WHERE k = 'ab  '::text"), 0);
    let text = "SELECT n FROM t WHERE k = $1";
    let rows = |db: &mut Database, declared: &[Option<SqlType>]| {
        let plan = prepare(&db.schema, &parse_one(text).expect("valid"), text, declared).expect("valid");
        let plan = plan.expect("a plan by key");
        db.execute(text, &plan, &[Value::Text("ab ".to_owned())]).expect("valid").rows.len()
    };
    assert_eq!(rows(&mut db, &[]), 1);
    assert_eq!(rows(&mut db, &[Some(SqlType::Varchar(None))]), 1);
    assert_eq!(rows(&mut db, &[Some(SqlType::Text)]), 0);
}

/// A row can be deleted after the entry of an index that refers to it was read: another attempt succeeds.
#[test]
fn conflicting_row_that_is_deleted_meanwhile_is_a_conflict() {
    let mut db = Database::new("CREATE TABLE t (id int PRIMARY KEY, name text UNIQUE, n int)");
    db.affected("INSERT INTO t VALUES (1, 'ann', 1)");
    let text = "INSERT INTO t VALUES (2, 'ann', 2) ON CONFLICT (name) DO UPDATE SET n = 3";
    let plan = db.plan(text).expect("valid").expect("direct");
    let mut sequences = Sequences::default();
    let mut environment = Environment { parameters: &[], now: 0, supply: &mut sequences };
    let (mut execution, step) = plan.start(&mut environment).expect("valid");
    let Step::Read(reads) = step else { panic!("{step:?}") };
    let pages = reads.iter().map(|read| db.read(read)).collect();
    let step = execution.advance(pages, &mut environment).expect("valid");
    let Step::Read(reads) = step else { panic!("{step:?}") };
    db.affected("DELETE FROM t WHERE id = 1");
    let pages = reads.iter().map(|read| db.read(read)).collect();
    let error = execution.advance(pages, &mut environment).expect_err("the row is missing");
    assert_eq!(error.sqlstate, sql::sqlstate::SERIALIZATION_FAILURE);
    assert_eq!(db.affected(text), 1);
    assert_eq!(db.rows("SELECT * FROM t LIMIT 9"), ["2|ann|2"]);
}

#[test]
fn finds_rows_by_indexes() {
    let mut database = Database::new(TABLES);
    for (id, name, note) in [(1, "ann", "'x'"), (2, "bob", "'x'"), (3, "cid", "'y'"), (4, "dan", "NULL")] {
        database.affected(&format!("INSERT INTO customers (id, name, note, n) VALUES ({id}, '{name}', {note}, {id})"));
    }
    assert_eq!(database.rows("SELECT id FROM customers WHERE name = 'bob'"), ["2"]);
    assert_eq!(database.rows("SELECT id FROM customers WHERE name = 'bob' AND balance > 0"), [""; 0]);
    assert_eq!(database.rows("SELECT id FROM customers WHERE name = 'eve'"), [""; 0]);
    assert_eq!(database.rows("SELECT id FROM customers WHERE name = NULL"), [""; 0]);
    assert_eq!(database.rows("SELECT count(*), max(id) FROM customers WHERE note = 'x' AND n = 2"), ["1|2"]);
    let by_part = database.plan("SELECT id FROM customers WHERE note = 'x'").expect("valid");
    assert!(by_part.is_none(), "not all columns of the index have a value");
    let plan = database.plan("SELECT id FROM customers WHERE name = $1").expect("valid").expect("by the index");
    assert_eq!((plan.index(), plan.needs_snapshot()), (Some("customers_name_key"), false));
    let found = database.execute("by name", &plan, &[Value::Text("cid".to_owned())]).expect("one row");
    assert_eq!(found.rows, [[Value::Int8(3)]]);
}

/// The row of an entry of a unique index may have changed when it is read.
#[test]
fn entry_and_row_of_different_moments() {
    let mut database = Database::new(TABLES);
    database.affected("INSERT INTO customers (id, name) VALUES (1, 'ann')");
    let plan = database.plan("SELECT id FROM customers WHERE name = 'ann'").expect("valid").expect("by the index");
    for change in ["UPDATE customers SET name = 'bob' WHERE id = 1", "DELETE FROM customers WHERE id = 1"] {
        database.affected("UPDATE customers SET name = 'ann' WHERE id = 1");
        let (mut sequences, parameters) = (Sequences::default(), []);
        let mut environment = Environment { parameters: &parameters, now: 0, supply: &mut sequences };
        let (mut execution, step) = plan.start(&mut environment).expect("valid");
        let Step::Read(reads) = step else { panic!("{step:?}") };
        let entries = reads.iter().map(|read| database.read(read)).collect();
        let step = execution.advance(entries, &mut environment).expect("valid");
        let Step::Read(reads) = step else { panic!("{step:?}") };
        database.affected(change);
        let rows = reads.iter().map(|read| database.read(read)).collect();
        let step = execution.advance(rows, &mut environment).expect("valid");
        assert_eq!(step, Step::DoneIfOneMoment(Outcome::default()), "{change}");
    }
}

#[test]
fn reads_short_ranges() {
    let mut database = Database::new(TABLES);
    for id in 1..=9 {
        database.affected(&format!("INSERT INTO customers (id, name, n) VALUES ({id}, 'n{id}', {})", 10 - id));
    }
    assert_eq!(database.rows("SELECT id FROM customers WHERE id BETWEEN 3 AND 6 ORDER BY n"), ["6", "5", "4", "3"]);
    assert_eq!(database.rows("SELECT sum(n) FROM customers WHERE id > 7 AND id < 100"), ["3"]);
    assert!(database.plan("SELECT id FROM customers WHERE id > 7").expect("valid").is_none(), "it may be long");
}

#[test]
fn currval_needs_a_value_of_the_session() {
    let mut db = Database::new(
        "CREATE SEQUENCE s; CREATE TABLE a (id bigint PRIMARY KEY); CREATE TABLE b (id bigint PRIMARY KEY, a bigint)",
    );
    let state = |outcome: Result<Outcome, SqlError>| outcome.expect_err("an error").sqlstate;
    assert_eq!(state(db.run("INSERT INTO b VALUES (1, currval('s'))", &[])), "55000");
    assert_eq!(state(db.run("INSERT INTO b VALUES (1, lastval())", &[])), "55000");
    assert_eq!(state(db.run("INSERT INTO b VALUES (1, currval('nosuch'))", &[])), "42P01");
    db.run("INSERT INTO a VALUES (nextval('s'))", &[]).expect("a value");
    db.run("INSERT INTO b VALUES (1, currval('s'::regclass))", &[]).expect("the same value");
    let found = db.run("SELECT a FROM b WHERE id = 1", &[]).expect("a row");
    assert_eq!(found.rows, [[Value::Int8(1)]]);
}

#[test]
fn large_results_of_short_ranges_need_a_planner() {
    let mut database = Database::new("CREATE TABLE t (a bigint, b bigint, x text, PRIMARY KEY (a, b))");
    let text = "x".repeat(200_000);
    for number in 1..=6 {
        database.affected(&format!("INSERT INTO t VALUES (1, {number}, '{text}')"));
    }
    let steps = |database: &Database, text: &str| {
        let plan = database.plan(text).expect("valid").expect("without a planner");
        let (mut sequences, parameters) = (Sequences::default(), []);
        let mut environment = Environment { parameters: &parameters, now: 0, supply: &mut sequences };
        let (mut execution, mut step) = plan.start(&mut environment).expect("valid");
        while let Step::Read(reads) = step {
            let pages = reads.iter().map(|read| database.read(read)).collect();
            step = execution.advance(pages, &mut environment).expect("valid");
        }
        step
    };
    assert_eq!(steps(&database, "SELECT x FROM t WHERE a = 1"), Step::NeedsPlanner);
    let few = steps(&database, "SELECT count(x) FROM t WHERE a = 1");
    assert!(matches!(few, Step::Done(outcome) if outcome.rows == [[Value::Int8(6)]]));
}
