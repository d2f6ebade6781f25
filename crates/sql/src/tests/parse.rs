use base::SplitMix64;

use crate::parse::{parse, parse_expression, parse_one};
use crate::schema::GeneratedKind;
use crate::statement::{AlterTable, AsOf, Constraint, CopySource, Definition, Modes, Statement};
use crate::{SqlError, SqlType};

fn error(text: &str) -> SqlError {
    parse(text).expect_err(text)
}

fn definition(text: &str) -> Definition {
    match parse_one(text) {
        Ok(Statement::Definition(definition)) => definition,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn create_table_with_interleaving() {
    let text = r#"CREATE TABLE IF NOT EXISTS public."Orders" (
        Customer bigint NOT NULL, day date, no SERIAL,
        total numeric(10, 2) DEFAULT 0 CHECK (total >= 0), note varchar(20) COLLATE "C", flags int[],
        id int GENERATED ALWAYS AS IDENTITY (INCREMENT BY -1 MINVALUE -9223372036854775808 START WITH 5),
        CONSTRAINT orders_key PRIMARY KEY (customer, day DESC), UNIQUE (note)
    ), INTERLEAVE IN PARENT Customers ON DELETE CASCADE"#;
    let text = text.replace("day DESC", "day");
    let Definition::CreateTable(table) = definition(&text) else { panic!("no table") };
    assert_eq!((table.name.as_str(), table.if_not_exists), ("Orders", true));
    assert_eq!(table.interleave, Some(("customers".to_owned(), true)));
    let columns: Vec<String> =
        table.columns.iter().map(|column| format!("{} {}", column.name, column.sql_type)).collect();
    let expected = [
        "customer bigint",
        "day date",
        "no integer",
        "total numeric(10,2)",
        "note character varying(20)",
        "flags integer[]",
        "id integer",
    ];
    assert_eq!(columns, expected);
    assert!(table.columns[2].generated.as_ref().is_some_and(|(kind, _)| *kind == GeneratedKind::Serial));
    let (kind, options) = table.columns[6].generated.as_ref().expect("identity");
    assert_eq!(
        (*kind, options.start, options.increment, options.min),
        (GeneratedKind::Always, Some(5), Some(-1), Some(i64::MIN))
    );
    assert_eq!(table.columns[3].default.as_deref(), Some("0"));
    assert!(matches!(&table.constraints[0], Constraint::Check(None, check, Some(_)) if check == "total >= 0"));
    assert!(
        matches!(&table.constraints[1], Constraint::PrimaryKey(Some(name), columns) if name == "orders_key" && columns.len() == 2)
    );
    let Definition::CreateTable(table) =
        definition("CREATE TABLE c (a int PRIMARY KEY) INTERLEAVE IN PARENT public.p ON DELETE NO ACTION")
    else {
        panic!("no table")
    };
    assert_eq!(table.interleave, Some(("p".to_owned(), false)));
}

#[test]
fn other_definitions() {
    let Definition::CreateIndex(index) = definition("CREATE UNIQUE INDEX i ON t (a DESC, b) STORING (c, D)") else {
        panic!("no index")
    };
    assert_eq!((index.is_unique, index.storing), (true, vec!["c".to_owned(), "d".to_owned()]));
    let Definition::CreateView { relations, columns, .. } =
        definition("CREATE VIEW v (x) AS SELECT a FROM t JOIN u ON a = b WHERE a IN (SELECT c FROM w)")
    else {
        panic!("no view")
    };
    assert_eq!((relations, columns), (vec!["t".to_owned(), "u".to_owned(), "w".to_owned()], vec!["x".to_owned()]));
    let Definition::AlterTable { changes, .. } =
        definition("ALTER TABLE t ADD COLUMN IF NOT EXISTS b int DEFAULT 1, DROP COLUMN c, ADD PRIMARY KEY (a)")
    else {
        panic!("no change")
    };
    assert!(matches!(&changes[0], AlterTable::AddColumn(column, true, _) if column.default.as_deref() == Some("1")));
    assert_eq!(changes.len(), 3);
    for text in [
        "CREATE SEQUENCE s AS int START 5 OWNED BY t.a",
        "DROP TABLE IF EXISTS a, b CASCADE",
        "ALTER TABLE t RENAME TO u",
        "ALTER TABLE t ALTER COLUMN a SET NOT NULL",
        "ALTER TABLE t ALTER COLUMN a TYPE bigint",
        "ALTER TABLE t OWNER TO me",
        "alter table pgbench_accounts add primary key (aid)",
        "create table pgbench_history(tid int,bid int,aid int,delta int,mtime timestamp,filler char(22))",
    ] {
        definition(text);
    }
}

#[test]
fn transactions_and_settings() {
    let cases = [
        ("BEGIN", Statement::Begin(Modes::default())),
        ("begin;", Statement::Begin(Modes::default())),
        (
            "START TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
            Statement::Begin(Modes { read_only: Some(true), as_of: None }),
        ),
        (
            "BEGIN READ ONLY AS OF '2000-01-01 00:00:01+00'",
            Statement::Begin(Modes { read_only: Some(true), as_of: Some(AsOf::Timestamp(1_000_000)) }),
        ),
        (
            "BEGIN AS OF STALENESS '10 s'",
            Statement::Begin(Modes { read_only: Some(true), as_of: Some(AsOf::Staleness(10_000_000)) }),
        ),
        ("COMMIT AND CHAIN", Statement::Commit { chain: true }),
        ("END", Statement::Commit { chain: false }),
        ("ROLLBACK", Statement::Rollback { chain: false }),
        ("SAVEPOINT S", Statement::Savepoint("s".to_owned())),
        ("ROLLBACK TO SAVEPOINT s", Statement::RollbackTo("s".to_owned())),
        ("RELEASE s", Statement::Release("s".to_owned())),
        ("SHOW transaction isolation level", Statement::Show("transaction isolation level".to_owned())),
        ("DEALLOCATE ALL", Statement::Deallocate(None)),
        ("DISCARD ALL", Statement::Discard),
        ("VACUUM ANALYZE t", Statement::NoEffect("VACUUM")),
        (
            "SET extra_float_digits = 3",
            Statement::Set { name: "extra_float_digits".into(), value: Some("3".into()), local: false },
        ),
        (
            "SET LOCAL search_path TO a, 'b'",
            Statement::Set { name: "search_path".into(), value: Some("a, b".into()), local: true },
        ),
        ("SET TIME ZONE 'UTC'", Statement::Set { name: "timezone".into(), value: Some("UTC".into()), local: false }),
        ("SET x TO DEFAULT", Statement::Set { name: "x".into(), value: None, local: false }),
        ("RESET ALL", Statement::Reset(None)),
        (
            "CREATE DATABASE D WITH (replication = 'primary-backup', ranges = 3)",
            Statement::CreateDatabase {
                name: "d".into(),
                if_not_exists: false,
                options: vec![("replication".into(), "primary-backup".into()), ("ranges".into(), "3".into())],
            },
        ),
        ("DROP DATABASE IF EXISTS d", Statement::DropDatabase { name: "d".into(), if_exists: true }),
    ];
    for (text, expected) in cases {
        assert_eq!(parse_one(text).unwrap_or_else(|error| panic!("{text}: {error}")), expected, "{text}");
    }
    assert!(matches!(
        parse_one("SELECT 1 AS OF SYSTEM TIME '-5s'"),
        Ok(Statement::Query(_, Some(AsOf::Staleness(5_000_000))))
    ));
    assert!(matches!(parse_one("SELECT 1 AS of"), Ok(Statement::Query(_, None))));
    assert!(matches!(parse_one("EXPLAIN ANALYZE SELECT 1"), Ok(Statement::Explain { analyze: true, .. })));
    assert!(matches!(parse_one("COPY t (a, b) FROM STDIN WITH (FORMAT csv)"), Ok(Statement::Copy(copy))
        if copy.is_input && matches!(&copy.source, CopySource::Table(name, columns) if name == "t" && columns.len() == 2)
        && copy.options == [("format".to_owned(), "csv".to_owned())]));
    assert!(
        matches!(parse_one("PREPARE p (int) AS SELECT $1"), Ok(Statement::Prepare { types, .. }) if types == [SqlType::Int4])
    );
}

#[test]
fn several_statements_have_their_places() {
    let text = "  SELECT 'é;';\n; BEGIN ; ";
    let parsed = parse(text).expect("valid");
    let places: Vec<&str> = parsed.iter().map(|parsed| &text[parsed.place.clone()]).collect();
    assert_eq!(places, ["SELECT 'é;'", "BEGIN"]);
    assert_eq!(parse(" ; -- nothing"), Ok(Vec::new()));
}

#[test]
fn errors_have_sqlstate_and_position() {
    let cases = [
        ("SELEC 1", "42601", Some(1)),
        ("SELECT 'é', FROM WHERE", "42601", Some(18)),
        ("SELECT (1", "42601", None),
        ("SELECT 'a", "42601", Some(8)),
        ("CREATE TABLE t (a frobnicate)", "42704", None),
        ("CREATE TABLE t (a json)", "0A000", None),
        ("CREATE TABLE t (a varchar(0))", "22023", None),
        ("CREATE TABLE t (a numeric(2000))", "22023", None),
        ("CREATE TABLE t (a int REFERENCES u)", "0A000", None),
        ("CREATE TABLE other.t (a int)", "3F000", None),
        ("CREATE TABLE t (a int) INTERLEAVE IN PARENT", "42601", None),
        ("CREATE TABLE t (a int) INTERLEAVE IN PARENT p ON DELETE SET NULL", "42601", None),
        ("BEGIN READ WRITE AS OF '2000-01-01'", "42601", None),
        ("SELECT 1 AS OF TIMESTAMP 'yesterday'", "22007", None),
        ("SELECT 1; SELECT 1 1", "42601", Some(20)),
        ("LISTEN x", "0A000", None),
    ];
    for (text, sqlstate, position) in cases {
        let error = error(text);
        assert_eq!(error.sqlstate, sqlstate, "{text}: {error:?}");
        assert!(position.is_none() || error.position == position, "{text}: {error:?}");
    }
}

#[test]
fn deep_and_long_statements_are_refused() {
    let deep = [
        format!("SELECT {}1{}", "(".repeat(100_000), ")".repeat(100_000)),
        format!("SELECT {}1", "-".to_owned() + &" - ".repeat(100_000)),
        format!("SELECT 1{}", " + 1".repeat(100_000)),
        format!("SELECT 1 WHERE a{}", " OR a".repeat(100_000)),
        format!("SELECT 1{}", "::int".repeat(50_000)),
        format!("SELECT 1{}", " UNION SELECT 1".repeat(50_000)),
        format!("SELECT {} 1", "NOT ".repeat(100_000)),
        format!("SELECT {}1{}", "CASE WHEN 1 THEN ".repeat(30_000), " END".repeat(30_000)),
        format!("SELECT a{}", "[1]".repeat(100_000)),
        format!("SELECT a{}", " IS NULL".repeat(100_000)),
        format!("SELECT * FROM {}t", "(SELECT * FROM ".repeat(30_000)),
        format!("SELECT * FROM t{}", " NATURAL JOIN t".repeat(50_000)),
        format!("{}SELECT 1", "EXPLAIN ".repeat(100_000)),
        format!("{}SELECT 1", "PREPARE a AS ".repeat(30_000)),
        format!("{}SELECT 1 AND MORE AND MORE AND MORE", "BEGIN ".repeat(30_000)),
        format!("{}SELECT 1 AND MORE AND MORE AND MORE", "DESC ".repeat(30_000)),
        format!("{}SELECT 1", "IF a THEN ".repeat(30_000)),
        format!("{}SELECT 1", "WHILE a BEGIN ".repeat(30_000)),
        format!("{}SELECT 1", "WITH a AS ( ".repeat(30_000)),
        format!("{}SELECT 1", "DECLARE a CURSOR FOR ".repeat(30_000)),
        format!("{}SELECT 1", "CREATE TABLE a AS ".repeat(30_000)),
        format!("SELECT CAST(1 AS {}", "ARRAY<".repeat(30_000)),
        format!("SELECT 1::int{}", "[]".repeat(30_000)),
        format!("SELECT {}1", "EXISTS (SELECT ".repeat(30_000)),
        format!("SELECT a{}", " NOTNULL".repeat(90_000)),
        format!("SELECT a{}", " COLLATE x".repeat(90_000)),
    ];
    for text in deep {
        let result = parse(&text);
        let states = ["54001", "54000", "42601", "0A000"];
        assert!(result.is_err_and(|error| states.contains(&error.sqlstate)), "{}", &text[..40]);
    }
    let many = format!("SELECT 1 WHERE a = 1{}", " OR a = 1".repeat(900));
    parse(&many).expect("a long list of alternatives is valid");
    let values = format!("INSERT INTO t VALUES (1 + 1, 2){}", ", (1 + 1, 2)".repeat(10_000));
    parse(&values).expect("many rows are valid");
    assert_eq!(error(&"x".repeat(20 << 20)).sqlstate, "54000");
    assert_eq!(error(&"1,".repeat(1 << 20)).sqlstate, "54000");
    let literal = format!("SELECT '\\x{}'", "00".repeat(8 << 20));
    parse(&literal).expect("a large literal is valid");
    assert_eq!(error(&format!("SELECT E'\\'', {}1", "1,".repeat(1 << 20))).sqlstate, "54000");
}

#[test]
fn random_texts_do_not_panic() {
    let pieces = [
        "SELECT",
        "INSERT INTO t VALUES",
        "CREATE TABLE t",
        "(",
        ")",
        ",",
        ";",
        "a",
        "\"b\"",
        "1",
        "'x'",
        "$1",
        "INTERLEAVE",
        "IN",
        "PARENT",
        "AS",
        "OF",
        "ON",
        "DELETE",
        "CASCADE",
        "int",
        "PRIMARY KEY",
        ".",
        "=",
        "+",
        "BEGIN",
        "CREATE",
        "DATABASE",
        "WITH",
        "IF",
        "EXISTS",
        "NOT",
        "INDEX",
        "STORING",
        "ALTER TABLE",
        "ADD",
        "COLUMN",
        "'",
        "--",
        "/*",
        "é",
        "EXPLAIN",
        "COPY",
        "FROM",
        "STDIN",
        "SET",
        "TIME",
        "\n",
    ];
    let mut random = SplitMix64::new(7);
    for _ in 0..30_000 {
        let words = (0..random.below(14)).map(|_| pieces[random.below(pieces.len() as u64) as usize]);
        let text = words.collect::<Vec<_>>().join(" ");
        if let Ok(parsed) = parse(&text) {
            parsed.iter().for_each(|parsed| assert!(text.get(parsed.place.clone()).is_some()));
        }
        let _ = parse_expression(&text);
    }
}
