use std::collections::BTreeSet;

use base::SplitMix64;
use bytes::Bytes;

use super::ddl::{change, schema};
use super::direct::{Database, Sequences};
use sql::ddl::{apply, begin_job, cancel_job, finish_job, truncate};
use sql::ids::TableId;
use sql::keys::prefix_range;
use sql::parse::parse_one;
use sql::rows::{TableRows, fill_index, fill_primary_key};
use sql::schema::{Builder, Garbage, IndexState, Schema, Work};
use sql::statement::Statement;
use sql::{Environment, SqlError, SqlType};

const JOB: u64 = 7;

/// A definition as a job.
fn begin(before: &Schema, text: &str) -> (Schema, TableId) {
    let Ok(Statement::Definition(definition)) = parse_one(text) else { panic!("{text}") };
    let change = apply(before, &definition).expect(text);
    let table = change.work[0].table();
    (begin_job(&change.schema, table, JOB, &change.work).expect(text), table)
}

fn is_public(schema: &Schema) -> Vec<bool> {
    let table = schema.table_named("t").expect("it exists");
    table.indexes.iter().map(|index| index.state == IndexState::Public).collect()
}

#[test]
fn job_makes_its_objects_public_together() {
    let first = schema("CREATE TABLE t (a int, b text)");
    let text = "ALTER TABLE t ALTER COLUMN b SET NOT NULL, ADD UNIQUE (b), ADD CHECK (a > 0)";
    let (begun, id) = begin(&first, text);
    let table = begun.table(id).expect("it exists");
    assert_eq!((is_public(&begun), table.public_indexes().count(), table.jobs.len()), (vec![false], 0, 1));
    let b = table.column_named("b").expect("it exists");
    assert!(!b.not_null && table.is_required(b));
    assert_eq!(Schema::decode(begun.encode()), Ok(begun.clone()));
    let done = finish_job(&begun, id, JOB).expect("valid");
    let table = done.table(id).expect("it exists");
    assert_eq!((is_public(&done), table.jobs.len(), table.checks.len()), (vec![true], 0, 1));
    assert!(table.column_named("b").is_some_and(|b| b.not_null));
    let canceled = cancel_job(&begun, id, JOB).expect("valid");
    let table = canceled.table(id).expect("it exists");
    assert_eq!((table.indexes.len(), table.jobs.len(), table.checks.len()), (0, 0, 0));
    assert!(table.column_named("b").is_some_and(|b| !table.is_required(b)));
    assert_eq!(canceled.garbage().len(), 1);
    assert_eq!(cancel_job(&canceled, id, JOB).expect_err("it is gone").sqlstate, "42704");
}

#[test]
fn primary_key_of_a_job() {
    let first = schema("CREATE TABLE t (a int, b text)");
    let (begun, id) = begin(&first, "ALTER TABLE t ADD PRIMARY KEY (a)");
    let table = begun.table(id).expect("it exists");
    assert_eq!(table.jobs[0].work, [Work::CheckNotNull(id, table.columns[0].id), Work::FillPrimaryKey(id)]);
    let state = |text| change(&begun, text).expect_err(text).sqlstate;
    assert_eq!(state("ALTER TABLE t ALTER COLUMN a DROP NOT NULL"), "42P16");
    assert_eq!(state("ALTER TABLE t DROP COLUMN a"), "0A000");
    assert_eq!(state("ALTER TABLE t ADD PRIMARY KEY (b)"), "42P16");
    assert_eq!(state("CREATE INDEX ON t (b)"), "0A000");
    let done = finish_job(&begun, id, JOB).expect("valid");
    let table = done.table(id).expect("it exists");
    assert_eq!((table.primary_key.name.as_str(), table.columns.len(), table.jobs.len()), ("t_pkey", 2, 0));
    assert!(table.columns[0].not_null);
    let storage = begun.table(id).and_then(|table| table.pending_key.as_ref()).map(|key| key.storage.0);
    let dropped = change(&begun, "ALTER TABLE t DROP CONSTRAINT t_pkey").expect("valid");
    for schema in [cancel_job(&begun, id, JOB).expect("valid"), dropped] {
        let table = schema.table(id).expect("it exists");
        assert_eq!((table.pending_key.as_ref(), table.columns[0].not_null), (None, false));
        assert_eq!(schema.garbage(), [Garbage::Prefix(storage.expect("it is pending"))]);
    }
}

#[test]
fn job_follows_other_changes() {
    let first = schema("CREATE TABLE t (a int PRIMARY KEY, b text, c int)");
    let (begun, id) = begin(&first, "CREATE INDEX i ON t (b)");
    let has_job = |text: &str| {
        let after = change(&begun, text).expect(text);
        after.jobs().count() == 1
    };
    assert!(has_job("ALTER TABLE t DROP COLUMN c"));
    assert!(!has_job("DROP INDEX i") && !has_job("ALTER TABLE t DROP COLUMN b") && !has_job("DROP TABLE t"));
    assert_eq!(change(&begun, "CREATE INDEX i ON t (c)").expect_err("the name is taken").sqlstate, "42P07");
    let truncated = truncate(&begun, &["t".to_owned()], false, false).expect("valid");
    let table = truncated.table(id).expect("it exists");
    assert_eq!(table.jobs[0].work, [Work::FillIndex(id, table.indexes[0].id)]);
    assert_ne!(table.jobs[0].work, begun.table(id).expect("it exists").jobs[0].work);
    let (begun, id) = begin(&first, "ALTER TABLE t ALTER COLUMN b SET NOT NULL");
    let dropped = change(&begun, "ALTER TABLE t ALTER COLUMN b DROP NOT NULL").expect("valid");
    assert_eq!(dropped.table(id).map(|table| table.jobs.len()), Some(0));
}

#[test]
fn constraints_of_a_job_are_enforced_for_new_rows() {
    let mut db = Database::new("CREATE TABLE t (a int PRIMARY KEY, b text, c int)");
    db.affected("INSERT INTO t VALUES (1, NULL, -1)");
    let (begun, _) = begin(&db.schema, "ALTER TABLE t ALTER COLUMN b SET NOT NULL, ADD CHECK (c > 0)");
    db.schema = begun;
    assert_eq!(db.run("INSERT INTO t VALUES (2, NULL, 1)", &[]).expect_err("NULL").sqlstate, "23502");
    assert_eq!(db.run("INSERT INTO t VALUES (2, 'b', 0)", &[]).expect_err("the check").sqlstate, "23514");
    db.affected("INSERT INTO t VALUES (2, 'b', 1)");
    assert_eq!(db.rows("SELECT * FROM t WHERE a = 1"), ["1|NULL|-1"]);
    let rows = TableRows::new(&db.schema, db.schema.table_named("t").expect("it exists")).expect("valid");
    let mut supply = Sequences::default();
    let mut environment = Environment { parameters: &[], now: 0, supply: &mut supply };
    let holds: Vec<bool> = db
        .rows
        .keys()
        .filter_map(|key| db.stored(key))
        .map(|stored| {
            let row = rows.decode(&stored).expect("valid").expect("a row");
            rows.holds("t_c_check", &row, &mut environment).expect("valid")
        })
        .collect();
    assert_eq!(holds, [false, true]);
}

/// A parent that gets another key after its children was not compared with them.
#[test]
fn children_are_checked_when_the_key_of_a_parent_changes() {
    let first = schema(
        "CREATE TABLE p (id int PRIMARY KEY);
         CREATE TABLE c (id int, no int, PRIMARY KEY (id, no)) INTERLEAVE IN PARENT p",
    );
    let mut parent = (**first.table_named("p").expect("it exists")).clone();
    parent.columns[0].sql_type = SqlType::Int8;
    let mut builder = Builder::new(&first);
    builder.put_table(parent).expect("valid by itself");
    assert_eq!(builder.finish().expect_err("not the child's").sqlstate, "42P16");
}

/// The state of a table that is filled: the keys of the rows that were done.
struct Filling {
    table: TableId,
    at: Bytes,
}

impl Filling {
    /// Adds the next row. Returns whether there was none.
    fn step(&mut self, db: &mut Database) -> Result<bool, SqlError> {
        let table = db.schema.table(self.table).expect("it exists").clone();
        let rows = TableRows::new(&db.schema, &table).expect("valid");
        let range = prefix_range(&rows.layout().key(&[]).expect("a key"));
        let start = self.at.clone().max(range.start);
        let Some(key) = db.rows.range(start..range.end).map(|(key, _)| key.clone()).next() else { return Ok(true) };
        let row = rows.decode(&db.stored(&key).expect("it exists")).expect("valid").expect("a row");
        for work in &table.jobs[0].work {
            let (writes, absent) = match work {
                Work::FillIndex(_, index) => {
                    let (write, absent) = fill_index(&rows, *index, &row).expect("valid");
                    (vec![write], absent.into_iter().collect())
                }
                Work::FillPrimaryKey(_) => fill_primary_key(&rows, &row).expect("valid"),
                _ => continue,
            };
            for absent in absent {
                let found = db.stored(&absent.key);
                absent.verify(found.as_ref())?;
            }
            writes.into_iter().for_each(|write| db.write(write));
        }
        self.at = [&key[..], &[0]].concat().into();
        Ok(false)
    }
}

/// Deletes the data of dropped objects.
fn collect(db: &mut Database) {
    for garbage in db.schema.garbage().to_vec() {
        let Garbage::Prefix(id) = garbage else { continue };
        let range = prefix_range(&sql::keys::of_id(id));
        db.rows.retain(|key, _| !range.contains(key));
    }
    let mut builder = Builder::new(&db.schema);
    builder.collected(db.schema.garbage());
    db.schema = builder.finish().expect("valid");
}

/// Random writes while a unique index is filled, row by row: at the end it has exactly the entries of the rows, or two
/// rows have equal values.
#[test]
fn index_is_filled_while_rows_change() {
    let mut random = SplitMix64::new(3);
    let (mut finished, mut refused) = (0, 0);
    for _ in 0..400 {
        let mut db = Database::new("CREATE TABLE t (a int PRIMARY KEY, u int, v int)");
        let values = 4 + random.below(20);
        let mut change_one = |db: &mut Database| {
            let (a, u, v) = (random.below(12), random.below(values), random.below(3));
            let u = if u == 0 { "NULL".to_owned() } else { u.to_string() };
            let text = match random.below(5) {
                0 => format!("INSERT INTO t VALUES ({a}, {u}, {v})"),
                1 => format!("UPDATE t SET u = {u} WHERE a = {a}"),
                2 => format!("UPDATE t SET v = {v} WHERE a = {a}"),
                3 => format!("UPDATE t SET a = {} WHERE a = {a}", random.below(12)),
                _ => format!("DELETE FROM t WHERE a = {a}"),
            };
            match db.run(&text, &[]) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.sqlstate, "23505", "{text}: {error:?}"),
            }
            random.below(4) == 0
        };
        for _ in 0..15 {
            change_one(&mut db);
        }
        let (begun, table) = begin(&db.schema, "CREATE UNIQUE INDEX i ON t (u) STORING (v)");
        db.schema = begun;
        let mut filling = Filling { table, at: Bytes::new() };
        let outcome = loop {
            if !change_one(&mut db) {
                continue;
            }
            match filling.step(&mut db) {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match outcome {
            Ok(()) => {
                db.schema = finish_job(&db.schema, table, JOB).expect("valid");
                finished += 1;
            }
            Err(error) => {
                assert!(error.detail.is_some_and(|detail| detail.ends_with("is duplicated.")));
                let values = db.scanned("SELECT u FROM t WHERE u IS NOT NULL");
                assert!(values.iter().collect::<BTreeSet<_>>().len() < values.len(), "{values:?}");
                db.schema = cancel_job(&db.schema, table, JOB).expect("valid");
                collect(&mut db);
                refused += 1;
            }
        }
        db.check_indexes();
    }
    assert!(finished > 50 && refused > 50, "{finished} {refused}");
}

/// The same with a primary key: the rows stay the same.
#[test]
fn primary_key_is_filled_while_rows_change() {
    let mut random = SplitMix64::new(4);
    let (mut finished, mut refused) = (0, 0);
    for _ in 0..400 {
        let mut db = Database::new("CREATE TABLE t (a int NOT NULL, b text, c int)");
        let values = 4 + random.below(30);
        let mut change_one = |db: &mut Database| {
            let (a, b, to) = (random.below(values), random.below(3), random.below(values));
            let outcome = match random.below(5) {
                0 | 1 => db.run(&format!("INSERT INTO t VALUES ({a}, 'b{b}', NULL)"), &[]),
                2 => db.scan(&format!("UPDATE t SET c = {to}, b = NULL WHERE a = {a}")),
                3 => db.scan(&format!("UPDATE t SET a = {to} WHERE a = {a}")),
                _ => db.scan(&format!("DELETE FROM t WHERE a = {a}")),
            };
            if let Err(error) = outcome {
                assert_eq!(error.sqlstate, "23505", "{error:?}");
            }
            random.below(4) == 0
        };
        for _ in 0..15 {
            change_one(&mut db);
        }
        let (begun, table) = begin(&db.schema, "ALTER TABLE t ADD PRIMARY KEY (a)");
        db.schema = begun;
        let mut filling = Filling { table, at: Bytes::new() };
        let outcome = loop {
            if !change_one(&mut db) {
                continue;
            }
            match filling.step(&mut db) {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let sorted = |mut rows: Vec<String>| {
            rows.sort();
            rows
        };
        let before = sorted(db.scanned("SELECT * FROM t"));
        match outcome {
            Ok(()) => {
                db.schema = finish_job(&db.schema, table, JOB).expect("valid");
                collect(&mut db);
                assert_eq!(db.rows.len(), before.len());
                finished += 1;
            }
            Err(_) => {
                db.schema = cancel_job(&db.schema, table, JOB).expect("valid");
                collect(&mut db);
                refused += 1;
            }
        }
        assert_eq!(sorted(db.scanned("SELECT * FROM t WHERE c IS NULL OR c >= 0")), before);
    }
    assert!(finished > 50 && refused > 50, "{finished} {refused}");
}
