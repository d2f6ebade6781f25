use sql::ddl::{Work, apply, publish_index, publish_primary_key};
use sql::ids::TableId;
use sql::parse::parse;
use sql::schema::{Garbage, IndexState, Schema, Table};
use sql::statement::Statement;
use sql::{SqlError, SqlType};

/// Applies definitions one after another, and completes their work.
pub(crate) fn schema(text: &str) -> Schema {
    change(&Schema::default(), text).unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

pub(crate) fn change(before: &Schema, text: &str) -> Result<Schema, SqlError> {
    let mut schema = before.clone();
    for parsed in parse(text)? {
        let Statement::Definition(definition) = parsed.statement else { panic!("{text}") };
        let change = apply(&schema, &definition)?;
        schema = change.schema;
        for work in change.work {
            schema = match work {
                Work::FillIndex(table, index) => publish_index(&schema, table, index)?,
                Work::FillPrimaryKey(table) => publish_primary_key(&schema, table)?,
                Work::CheckNotNull(..) | Work::CheckConstraint(..) => schema,
            };
        }
    }
    Ok(schema)
}

fn state(before: &Schema, text: &str) -> &'static str {
    change(before, text).expect_err(text).sqlstate
}

fn table<'a>(schema: &'a Schema, name: &str) -> &'a Table {
    schema.table_named(name).expect(name)
}

#[test]
fn definitions_make_versions() {
    let first = schema(
        "CREATE TABLE a (id bigserial PRIMARY KEY, name varchar(10) UNIQUE, n int DEFAULT 5 CHECK (n > 0));
         CREATE TABLE b (id bigint, no int, x text, PRIMARY KEY (id, no DESC)) INTERLEAVE IN PARENT a ON DELETE CASCADE;
         CREATE INDEX ON b (x) STORING (no); CREATE VIEW v AS SELECT name FROM a; CREATE SEQUENCE s;",
    );
    assert_eq!(first.version(), 6, "an index on an existing table takes two versions");
    let a = table(&first, "a");
    assert_eq!((a.primary_key.name.as_str(), a.indexes[0].name.as_str()), ("a_pkey", "a_name_key"));
    assert_eq!(a.checks[0].name, "a_n_check");
    assert!(first.sequence_named("a_id_seq").is_ok());
    let b = table(&first, "b");
    assert_eq!((b.indexes[0].name.as_str(), b.indexes[0].state), ("b_x_idx", IndexState::Public));
    assert_eq!(first.row_layout(b).levels.len(), 2);
    assert_eq!(Schema::decode(first.encode()), Ok(first.clone()));
    let second = change(&first, "DROP VIEW v; ALTER TABLE a ADD COLUMN m text NOT NULL DEFAULT 'x', DROP COLUMN n")
        .expect("valid");
    let a = table(&second, "a");
    assert_eq!(a.column_named("m").and_then(|column| column.initial.as_deref()), Some("x"));
    assert!(a.checks.is_empty(), "the check of a dropped column is dropped");
    let third = change(&second, "DROP TABLE a CASCADE").expect("valid");
    assert_eq!(third.tables().count(), 0);
    assert!(third.garbage().contains(&Garbage::Interleaved { root: a.id, table: b.id }));
    assert!(third.garbage().contains(&Garbage::Prefix(a.id.0)));
    assert_eq!(first.tables().count(), 2, "earlier versions stay as they are");
}

#[test]
fn primary_key_added_later() {
    let first = schema("create table pgbench_branches(bid int not null,bbalance int,filler char(88))");
    let before = table(&first, "pgbench_branches");
    assert_eq!((before.columns.len(), before.visible_columns().count()), (4, 3));
    let Ok(Statement::Definition(definition)) =
        sql::parse::parse_one("alter table pgbench_branches add primary key (bid)")
    else {
        panic!("a definition")
    };
    let change = apply(&first, &definition).expect("valid");
    let pending = table(&change.schema, "pgbench_branches");
    assert_eq!(change.work, [Work::FillPrimaryKey(pending.id)]);
    assert!(pending.pending_key.is_some() && pending.primary_key.name.is_empty());
    assert_eq!(Schema::decode(change.schema.encode()), Ok(change.schema.clone()));
    let after = publish_primary_key(&change.schema, pending.id).expect("valid");
    let table = table(&after, "pgbench_branches");
    assert_eq!((table.primary_key.name.as_str(), table.columns.len()), ("pgbench_branches_pkey", 3));
    assert_ne!(table.storage(), table.id);
    assert_eq!(after.garbage(), [Garbage::Prefix(table.id.0)]);
}

#[test]
fn invalid_definitions_have_postgresqls_sqlstate() {
    let before = schema(
        "CREATE TABLE p (id int PRIMARY KEY, name text NOT NULL, j jsonb);
         CREATE TABLE c (id int, no int, PRIMARY KEY (id, no)) INTERLEAVE IN PARENT p;
         CREATE VIEW v AS SELECT id FROM p; CREATE UNIQUE INDEX i ON p (name); CREATE SEQUENCE s",
    );
    for (text, expected) in [
        ("CREATE TABLE p (a int)", "42P07"),
        ("CREATE TABLE i (a int)", "42P07"),
        ("CREATE TABLE p_pkey (a int)", "42P07"),
        ("CREATE VIEW s AS SELECT 1", "42P07"),
        ("CREATE TABLE t (a int, a text)", "42701"),
        ("CREATE TABLE t (a int, PRIMARY KEY (b))", "42703"),
        ("CREATE TABLE t (a int PRIMARY KEY, b int PRIMARY KEY)", "42P16"),
        ("CREATE TABLE t (a int, PRIMARY KEY (a, a))", "42701"),
        ("CREATE TABLE t (a jsonb PRIMARY KEY)", "0A000"),
        ("CREATE TABLE t (a int[])", "0A000"),
        ("CREATE TABLE t (a int DEFAULT 'x')", "22P02"),
        ("CREATE TABLE t (a int DEFAULT true)", "42804"),
        ("CREATE TABLE t (a int CHECK (b > 0))", "42703"),
        ("CREATE TABLE t (a int CHECK (a + 1))", "42804"),
        ("CREATE TABLE t (a text GENERATED ALWAYS AS IDENTITY)", "22023"),
        ("CREATE TABLE t (x int PRIMARY KEY) INTERLEAVE IN PARENT p", "42P16"),
        ("CREATE TABLE t (id bigint PRIMARY KEY) INTERLEAVE IN PARENT p", "42P16"),
        ("CREATE TABLE t (id int) INTERLEAVE IN PARENT p", "42P16"),
        ("CREATE TABLE t (id int PRIMARY KEY) INTERLEAVE IN PARENT q", "42P01"),
        ("CREATE INDEX ON q (a)", "42P01"),
        ("CREATE INDEX ON v (a)", "42809"),
        ("CREATE INDEX ON p (nam)", "42703"),
        ("CREATE INDEX ON p (j)", "0A000"),
        ("CREATE SEQUENCE z INCREMENT 0", "22023"),
        ("CREATE SEQUENCE z MINVALUE 5 MAXVALUE 4", "22023"),
        ("DROP TABLE q", "42P01"),
        ("DROP TABLE v", "42809"),
        ("DROP TABLE p", "2BP01"),
        ("DROP INDEX p_pkey", "2BP01"),
        ("DROP INDEX nothing", "42704"),
        ("ALTER TABLE p ADD COLUMN name int", "42701"),
        ("ALTER TABLE p ADD COLUMN z int DEFAULT 1 + 'x'", "22P02"),
        ("ALTER TABLE p DROP COLUMN id", "0A000"),
        ("ALTER TABLE p DROP COLUMN name", "2BP01"),
        ("ALTER TABLE c DROP COLUMN zz", "42703"),
        ("ALTER TABLE p ADD PRIMARY KEY (name)", "42P16"),
        ("ALTER TABLE p ALTER COLUMN name TYPE int", "0A000"),
        ("ALTER TABLE p ALTER COLUMN id DROP NOT NULL", "42P16"),
        ("ALTER TABLE p DROP CONSTRAINT zz", "42704"),
        ("ALTER TABLE c RENAME TO p", "42P07"),
    ] {
        assert_eq!(state(&before, text), expected, "{text}");
    }
    let error = change(&before, "CREATE INDEX ON p (nam)").expect_err("undefined");
    assert_eq!(error.hint.as_deref(), Some("Perhaps you meant to reference the column \"p.name\"."));
    let error = before.table_named("pp").expect_err("undefined");
    assert_eq!((error.sqlstate, error.hint.is_some()), ("42P01", true));
    let same = change(&before, "CREATE TABLE IF NOT EXISTS p (a int); DROP TABLE IF EXISTS q").expect("notices only");
    assert_eq!(same, before);
    let columns: Vec<String> = (0..1_100).map(|number| format!("c{number} int")).collect();
    assert_eq!(state(&before, &format!("CREATE TABLE t ({})", columns.join(", "))), "54011");
    let wider = change(&before, "ALTER TABLE c ALTER COLUMN no TYPE bigint").expect("wider");
    assert_eq!(table(&wider, "c").column_named("no").map(|column| &column.sql_type), Some(&SqlType::Int8));
}

#[test]
fn damaged_schemas_do_not_panic() {
    let whole = schema(
        "CREATE TABLE p (id int PRIMARY KEY, name text NOT NULL UNIQUE DEFAULT 'a');
         CREATE TABLE c (id int, no serial, PRIMARY KEY (id, no)) INTERLEAVE IN PARENT p;
         CREATE VIEW v AS SELECT id FROM p",
    );
    let bytes = whole.encode();
    let mut random = base::SplitMix64::new(8);
    for _ in 0..20_000 {
        let mut damaged = bytes.to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] = random.draw() as u8;
        }
        damaged.truncate(random.below(2 * damaged.len() as u64) as usize);
        if let Ok(schema) = Schema::decode(damaged.into()) {
            for table in schema.tables() {
                let _ = schema.row_layout(table);
            }
        }
    }
    assert_eq!(whole.table(TableId(1)).map(|table| table.name.as_str()), Some("p"));
}

/// Keys of dropped tables are found at every level.
#[test]
fn rows_of_dropped_interleaved_tables_are_found() {
    let before = schema(
        "CREATE TABLE a (i int PRIMARY KEY);
         CREATE TABLE b (i int, t text, PRIMARY KEY (i, t)) INTERLEAVE IN PARENT a;
         CREATE TABLE c (i int, t text, n int, PRIMARY KEY (i, t, n)) INTERLEAVE IN PARENT b;
         CREATE TABLE d (i int, n int, PRIMARY KEY (i, n)) INTERLEAVE IN PARENT a",
    );
    let key = |name: &str, values: &[sql::Value]| before.row_layout(table(&before, name)).key(values).expect("a key");
    let (one, text) = (sql::Value::Int4(1), sql::Value::Text("x".to_owned()));
    let keys = [
        key("a", std::slice::from_ref(&one)),
        key("b", &[one.clone(), text.clone()]),
        key("c", &[one.clone(), text, one.clone()]),
        key("d", &[one.clone(), one]),
    ];
    for (dropped, expected) in
        [("c", [false, false, true, false]), ("b", [false, true, true, false]), ("d", [false, false, false, true])]
    {
        let after = change(&before, &format!("DROP TABLE {dropped} CASCADE")).expect("valid");
        let garbage = after.garbage().iter().filter_map(|garbage| match garbage {
            Garbage::Interleaved { root, table } => Some((*root, *table)),
            Garbage::Prefix(_) => None,
        });
        let garbage: Vec<_> = garbage.collect();
        let found = keys.each_ref().map(|key| garbage.iter().any(|(root, table)| after.is_inside(*root, *table, key)));
        assert_eq!(found, expected, "{dropped}");
    }
}

/// The rows that exist would get another time than that of the definition.
#[test]
fn times_are_no_constant_defaults() {
    let before = schema("CREATE TABLE t (a int PRIMARY KEY)");
    for default in [
        "now()",
        "(now() + interval '30 days')",
        "(now() + interval '30 days')::date",
        "coalesce(NULL, now())::date",
        "(CASE WHEN now() IS NULL THEN now() ELSE now() END)::date",
    ] {
        for to in ["date", "timestamp", "timestamptz"] {
            let text = format!("ALTER TABLE t ADD COLUMN b {to} DEFAULT {default}");
            assert_eq!(state(&before, &text), "0A000", "{text}");
            let text = format!("CREATE TABLE u (b {to} DEFAULT {default})");
            assert!(change(&before, &text).is_ok(), "{text}");
        }
    }
    let after = change(&before, "ALTER TABLE t ADD COLUMN b date DEFAULT '2024-01-01'::timestamp").expect("valid");
    let column = table(&after, "t").column_named("b").expect("it exists");
    assert_eq!(column.initial.as_deref(), Some("2024-01-01"));
}
