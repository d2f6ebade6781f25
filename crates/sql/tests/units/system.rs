use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use sqlparser::ast::{Expr, Ident, ObjectName, Query, TableAlias, TableFactor, Visit, Visitor};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;

use super::ddl::schema;
use sql::schema::Schema;
use sql::system::{self, Context, Live, SessionRow, SystemTable};
use sql::{SqlError, SqlType, Value};

const TEST_DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../query/tests");

/// The tables that the clients' queries were recorded with.
fn example() -> Schema {
    schema(&std::fs::read_to_string(format!("{TEST_DATA}/schema.sql")).expect("schema.sql"))
}

fn context() -> Context {
    Context {
        database: "d".to_owned(),
        databases: vec!["d".to_owned(), "e".to_owned()],
        user: "postgres".to_owned(),
        server_version: "15.0".to_owned(),
        settings: vec![("search_path".to_owned(), "\"$user\", public".to_owned())],
        ..Context::default()
    }
}

fn table(name: &str) -> &'static SystemTable {
    let (schema, name) = name.split_once('.').map_or((None, name), |(schema, name)| (Some(schema), name));
    system::table(schema, name).expect(name)
}

/// Columns of the rows of a table, as text.
fn select(schema: &Schema, name: &str, columns: &[&str]) -> Vec<Vec<String>> {
    let table = table(name);
    let place = |name: &&str| table.columns.iter().position(|column| column.name == *name).expect(name);
    let places: Vec<usize> = columns.iter().map(place).collect();
    let show = |row: Vec<Value>| {
        let text = |at: &usize| table.columns[*at].kind.to_text(&row[*at]).unwrap_or_else(|| "NULL".to_owned());
        places.iter().map(text).collect()
    };
    system::rows(table, schema, &context()).into_iter().map(show).collect()
}

fn call(schema: &Schema, name: &str, arguments: &[Value]) -> Result<String, SqlError> {
    let result = system::call(name, arguments, schema, &context()).expect(name)?;
    Ok(result.to_text().unwrap_or_else(|| "NULL".to_owned()))
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn oid(schema: &Schema, name: &str) -> Value {
    system::call("regclassin", &[text(name)], schema, &context()).expect("known").expect(name)
}

#[test]
fn rows_have_the_columns_of_their_table() {
    let schema = example();
    assert!(system::tables().len() > 120);
    for table in system::tables() {
        assert!(!table.columns.is_empty(), "{}", table.name);
        let rows = system::rows(table, &schema, &context());
        for row in &rows {
            assert_eq!(row.len(), table.columns.len(), "{}", table.name);
            for (value, column) in row.iter().zip(&table.columns) {
                let name = format!("{}.{}", table.name, column.name);
                match value.sql_type() {
                    Some(found) => {
                        assert!(found.is_same_base(&column.kind.sql_type()) || found.is_text(), "{name}: {found}");
                    }
                    None => assert!(!column.not_null, "{name} is NULL"),
                }
            }
        }
        assert!(!table.is_always_empty() || rows.is_empty());
    }
    assert!(table("pg_enum").is_always_empty() && !table("pg_class").is_always_empty());
}

#[test]
fn identifiers_are_unique_and_stable() {
    let schema = example();
    // The recorded queries contain these.
    for (name, expected) in [
        ("customers", 16_385),
        ("orders", 16_388),
        ("orders_placed", 16_393),
        ("rich", 16_395),
        ("counter", 16_396),
        ("customers_pkey", (1 << 27) + 16_385),
    ] {
        assert_eq!(oid(&schema, name), Value::Int8(expected), "{name}");
    }
    let mut seen = BTreeSet::new();
    for row in select(&schema, "pg_class", &["oid", "relname"]) {
        assert!(seen.insert(row[0].clone()), "{row:?}");
    }
    for name in ["pg_type", "pg_constraint", "pg_attrdef", "pg_database", "pg_namespace"] {
        let oids: Vec<String> = select(&schema, name, &["oid"]).into_iter().flatten().collect();
        assert_eq!(oids.iter().collect::<BTreeSet<_>>().len(), oids.len(), "{name}");
    }
}

#[test]
fn types_of_columns_are_in_pg_type() {
    let schema = example();
    let known: BTreeSet<String> = select(&schema, "pg_type", &["oid"]).into_iter().flatten().collect();
    for row in select(&schema, "pg_attribute", &["atttypid", "attname"]) {
        assert!(known.contains(&row[0]), "{row:?}");
    }
    for scalar in SqlType::SCALARS {
        assert!(known.contains(&scalar.oid().to_string()), "{scalar}");
        assert!(known.contains(&SqlType::Array(Box::new(scalar)).oid().to_string()));
    }
}

/// The tables of a statement, and its columns that are qualified.
#[derive(Default)]
struct Names {
    /// Names of common table expressions.
    local: BTreeSet<String>,
    /// Aliases of subqueries and functions.
    derived: BTreeSet<String>,
    tables: Vec<(ObjectName, Option<String>)>,
    columns: Vec<(String, String)>,
}

fn fold(name: &Ident) -> String {
    if name.quote_style.is_some() { name.value.clone() } else { name.value.to_lowercase() }
}

impl Visitor for Names {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let tables = query.with.iter().flat_map(|with| &with.cte_tables);
        self.local.extend(tables.map(|table| fold(&table.alias.name)));
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        let named = |alias: &Option<TableAlias>| alias.as_ref().map(|alias| fold(&alias.name));
        match factor {
            TableFactor::Table { name, alias, args: None, .. } => self.tables.push((name.clone(), named(alias))),
            TableFactor::Table { alias, .. }
            | TableFactor::Derived { alias, .. }
            | TableFactor::Function { alias, .. }
            | TableFactor::UNNEST { alias, .. } => self.derived.extend(named(alias)),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
        if let Expr::CompoundIdentifier(names) = expression
            && let [.., table, column] = &names[..]
        {
            self.columns.push((fold(table), fold(column)));
        }
        ControlFlow::Continue(())
    }
}

/// The columns that all tables have in PostgreSQL.
const SYSTEM_COLUMNS: [&str; 2] = ["xmin", "tableoid"];

#[test]
fn clients_find_their_tables_and_columns() {
    let mut statements = 0;
    for entry in std::fs::read_dir(format!("{TEST_DATA}/clients")).expect("clients") {
        let path = entry.expect("entry").path();
        let file = std::fs::read_to_string(&path).expect("text");
        for statement in file.split(";\n--\n").map(str::trim).filter(|text| !text.is_empty()) {
            let parsed = Parser::parse_sql(&PostgreSqlDialect {}, statement);
            let parsed = parsed.unwrap_or_else(|error| panic!("{path:?}: {error}: {statement}"));
            let mut names = Names::default();
            let _ = parsed.visit(&mut names);
            check(&names, statement);
            statements += 1;
        }
    }
    assert!(statements > 200, "{statements}");
}

fn check(names: &Names, statement: &str) {
    // The tables of each alias: it can have several in different parts of a statement. `None` is not a catalog.
    let mut aliases: BTreeMap<String, Vec<Option<&SystemTable>>> = BTreeMap::new();
    for (name, alias) in &names.tables {
        let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident().map(fold)).collect();
        let (schema, own) = match &parts[..] {
            [own] => (None, own),
            [schema, own] => (Some(schema.as_str()), own),
            _ => panic!("{name}: {statement}"),
        };
        let found = system::table(schema, own);
        assert!(found.is_some() || (schema.is_none() && names.local.contains(own)), "{name}: {statement}");
        aliases.entry(alias.clone().unwrap_or_else(|| own.clone())).or_default().push(found);
    }
    for (table, column) in &names.columns {
        let Some(tables) = aliases.get(table).filter(|_| !names.derived.contains(table)) else { continue };
        let has = |table: &Option<&SystemTable>| {
            table.is_none_or(|table| table.columns.iter().any(|known| known.name == column))
        };
        let is_known = tables.iter().any(has) || SYSTEM_COLUMNS.contains(&column.as_str());
        assert!(is_known, "{table}.{column}: {statement}");
    }
}

#[test]
fn columns_and_keys_are_described() {
    let schema = example();
    let of = |name: &str, columns: &[&str]| select(&schema, name, columns);
    let customers = oid(&schema, "customers").to_text().expect("a number");
    let statistics = &of("pg_stat_user_tables", &["relname", "seq_scan", "last_vacuum"])[0];
    assert_eq!(statistics, &["customers", "0", "NULL"]);
    let columns = ["attrelid", "attnum", "attname", "atttypid", "atttypmod", "attnotnull", "atthasdef"];
    let columns = of("pg_attribute", &columns).into_iter().filter(|row| row[0] == customers);
    let columns: Vec<String> = columns.map(|row| row[1..].join(" ")).collect();
    assert_eq!(
        columns,
        [
            "1 id 20 -1 t t",
            "2 name 1043 44 t f",
            "3 credit 1700 786438 f t",
            "4 born 1082 -1 f f",
            "5 note 25 -1 f t",
            "6 Mixed Case 1042 7 f f",
        ]
    );
    let defaults: Vec<String> = of("pg_attrdef", &["adbin"]).into_iter().flatten().collect();
    assert_eq!(defaults, ["nextval('customers_id_seq'::regclass)", "0", "'none'::text", "now()", "false"]);
    let keys: Vec<String> =
        of("pg_index", &["indkey", "indoption", "indnkeyatts"]).iter().map(|row| row.join("|")).collect();
    assert_eq!(keys, ["1|0|1", "2|0|1", "1 2|0 0|2", "3 4|3 0|2", "4 6|0|1", "1|0|1", "3 5|0 0|2"]);
    let constraints: Vec<String> =
        of("pg_constraint", &["conname", "contype", "conkey"]).iter().map(|row| row.join(" ")).collect();
    assert_eq!(
        constraints,
        [
            "customers_pkey p {1}",
            "customers_name_key u {2}",
            "customers_credit_check c {3}",
            "orders_pkey p {1,2}",
            "items_pkey p {1}",
            "items_key_at_key u {3,5}",
        ]
    );
    let view = of("information_schema.columns", &["table_name", "column_name", "data_type"]);
    let view: Vec<String> = view.iter().filter(|row| row[0] == "rich").map(|row| row[1..].join(" ")).collect();
    assert_eq!(view, ["name character varying", "credit numeric"]);
    let hidden = of("information_schema.columns", &["table_name", "column_name"]);
    assert_eq!(hidden.iter().filter(|row| row[0] == "plain").count(), 2, "the hidden key is not listed");
}

#[test]
fn definitions_are_text() {
    let schema = example();
    let definition = |name: &str| call(&schema, "pg_get_indexdef", &[oid(&schema, name)]).expect("an index");
    assert_eq!(definition("customers_pkey"), "CREATE UNIQUE INDEX customers_pkey ON public.customers USING btree (id)");
    assert_eq!(
        definition("orders_placed"),
        "CREATE INDEX orders_placed ON public.orders USING btree (placed DESC, total)"
    );
    let total = "CREATE UNIQUE INDEX orders_total ON public.orders USING btree (total) INCLUDE (done)";
    assert_eq!(definition("orders_total"), total);
    let column = [oid(&schema, "orders_total"), Value::Int4(2), Value::Bool(false)];
    assert_eq!(call(&schema, "pg_get_indexdef", &column).as_deref(), Ok("done"));
    let constraints = select(&schema, "pg_constraint", &["oid"]).into_iter().flatten();
    let constraints: Vec<String> = constraints
        .map(|oid| call(&schema, "pg_get_constraintdef", &[Value::Text(oid), Value::Bool(true)]).expect("a constraint"))
        .collect();
    assert_eq!(
        constraints,
        [
            "PRIMARY KEY (id)",
            "UNIQUE (name)",
            "CHECK (credit >= 0)",
            "PRIMARY KEY (id, number)",
            "PRIMARY KEY (code)",
            "UNIQUE (key, at)",
        ]
    );
    let view = call(&schema, "pg_get_viewdef", &[oid(&schema, "rich")]);
    assert_eq!(view.as_deref(), Ok(" SELECT name, credit FROM customers WHERE credit > 100;"));
    let serial = |table: &str, column: &str| call(&schema, "pg_get_serial_sequence", &[text(table), text(column)]);
    assert_eq!(serial("customers", "id").as_deref(), Ok("public.customers_id_seq"));
    assert_eq!(serial("public.customers", "name").as_deref(), Ok("NULL"));
    assert_eq!(serial("customers", "none").map_err(|error| error.sqlstate), Err("42703"));
}

#[test]
fn defaults_are_shown_with_types() {
    let schema = schema(
        "CREATE TABLE t (a int DEFAULT -1, b numeric(12,2) DEFAULT -1.5, c bigint DEFAULT 5000000000,
         d text DEFAULT NULL, e varchar(10) DEFAULT 'x', f char(3) DEFAULT 'a', g timestamptz DEFAULT current_timestamp,
         h bool DEFAULT TRUE, i date DEFAULT '2020-01-01', j float8 DEFAULT 1.5, k int DEFAULT 1 + 2, l timestamptz DEFAULT NOW())",
    );
    let defaults: Vec<String> = select(&schema, "pg_attrdef", &["adbin"]).into_iter().flatten().collect();
    let expected = [
        "'-1'::integer",
        "'-1.5'::numeric",
        "'5000000000'::bigint",
        "'x'::character varying",
        "'a'::bpchar",
        "CURRENT_TIMESTAMP",
        "true",
        "'2020-01-01'::date",
        "1.5",
        "(1 + 2)",
        "now()",
    ];
    assert_eq!(defaults, expected);
    let has_default = select(&schema, "pg_attribute", &["attname", "atthasdef"]);
    assert!(has_default.contains(&vec!["d".to_owned(), "f".to_owned()]));
}

#[test]
fn interleaving_is_a_comment() {
    let schema = schema(
        "CREATE TABLE a (id bigint PRIMARY KEY);
         CREATE TABLE b (id bigint, n int, PRIMARY KEY (id, n DESC)) INTERLEAVE IN PARENT a ON DELETE CASCADE;",
    );
    let comment = call(&schema, "obj_description", &[oid(&schema, "b"), text("pg_class")]);
    assert_eq!(comment.as_deref(), Ok("INTERLEAVE IN PARENT a ON DELETE CASCADE"));
    assert_eq!(call(&schema, "obj_description", &[oid(&schema, "a")]).as_deref(), Ok("NULL"));
    assert_eq!(select(&schema, "pg_description", &["description"]).len(), 1);
    let options: Vec<String> = select(&schema, "pg_index", &["indoption"]).into_iter().flatten().collect();
    assert_eq!(options, ["0", "0 3"]);
}

#[test]
fn names_refer_to_objects() {
    let schema = schema("CREATE TABLE \"My Table\" (id bigint PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY);");
    let own = oid(&schema, "\"My Table\"");
    for name in ["public.\"My Table\"", "d.public.\"My Table\"", " \"My Table\" "] {
        assert_eq!(oid(&schema, name), own, "{name}");
    }
    assert_eq!(call(&schema, "regclassout", std::slice::from_ref(&own)).as_deref(), Ok("\"My Table\""));
    assert_eq!(oid(&schema, "PG_CLASS"), Value::Int8(1259));
    let columns = oid(&schema, "information_schema.columns");
    assert_eq!(call(&schema, "regclassout", &[columns]).as_deref(), Ok("information_schema.columns"));
    let state = |name: &str, argument: &str| call(&schema, name, &[text(argument)]).map_err(|error| error.sqlstate);
    assert_eq!(state("regclassin", "missing"), Err("42P01"));
    assert_eq!(state("regclassin", "my table"), Err("42602"));
    assert_eq!(state("regclassin", "other.t"), Err("3F000"));
    assert_eq!(state("regclassin", "\"unterminated"), Err("42602"));
    assert_eq!(state("to_regclass", "missing"), Ok("NULL".to_owned()));
    assert_eq!(state("regtypein", "missing"), Err("42704"));
    for (name, oid) in [
        ("int4", "23"),
        ("INTEGER", "23"),
        ("pg_catalog.int4", "23"),
        ("character  varying(10)", "1043"),
        ("timestamp(3) with time zone", "1184"),
        ("double precision[]", "1022"),
        ("numeric(10,2)", "1700"),
        ("char", "1042"),
        ("\"char\"", "18"),
        ("_int8", "1016"),
        ("1700", "1700"),
    ] {
        assert_eq!(state("regtypein", name).as_deref(), Ok(oid), "{name}");
    }
    assert_eq!(state("regprocin", "pg_catalog.array_in").as_deref(), Ok("750"));
    assert_eq!(state("regnamespacein", "public").as_deref(), Ok("2200"));
    assert_eq!(state("regrolein", "postgres").as_deref(), Ok("10"));
}

#[test]
fn functions_follow_postgresql() {
    let schema = example();
    let cases: &[(&str, &[Value], &str)] = &[
        ("format_type", &[Value::Int8(1043), Value::Int4(14)], "character varying(10)"),
        ("format_type", &[Value::Int8(1043), Value::Null], "character varying"),
        ("format_type", &[Value::Int8(1700), Value::Int4(786_438)], "numeric(12,2)"),
        ("format_type", &[Value::Int8(1042), Value::Int4(-1)], "bpchar"),
        ("format_type", &[Value::Int8(1042), Value::Null], "character"),
        ("format_type", &[Value::Int8(1009), Value::Int4(-1)], "text[]"),
        ("format_type", &[Value::Int8(18), Value::Int4(-1)], "\"char\""),
        ("format_type", &[Value::Int8(22), Value::Int4(-1)], "int2vector"),
        ("format_type", &[Value::Int8(0), Value::Null], "-"),
        ("format_type", &[Value::Int8(99_999), Value::Null], "???"),
        ("pg_encoding_to_char", &[Value::Int4(6)], "UTF8"),
        ("pg_char_to_encoding", &[Value::Text("utf-8".to_owned())], "6"),
        ("pg_get_userbyid", &[Value::Int8(10)], "postgres"),
        ("pg_get_userbyid", &[Value::Int8(11)], "unknown (OID=11)"),
        ("pg_size_pretty", &[Value::Int8(10_239)], "10239 bytes"),
        ("pg_size_pretty", &[Value::Int8(10_240)], "10 kB"),
        ("pg_size_pretty", &[Value::Int8(-1_536_000)], "-1500 kB"),
        ("pg_size_pretty", &[Value::Int8(10_485_248)], "10 MB"),
        ("pg_size_pretty", &[Value::Int8(1 << 40)], "1024 GB"),
        ("current_schemas", &[Value::Bool(true)], "{pg_catalog,public}"),
        ("current_schemas", &[Value::Bool(false)], "{public}"),
        ("current_schema", &[], "public"),
        ("current_setting", &[Value::Text("Search_Path".to_owned())], "\"$user\", public"),
        ("current_setting", &[Value::Text("missing".to_owned()), Value::Bool(true)], "NULL"),
        ("quote_ident", &[Value::Text("select".to_owned())], "\"select\""),
        ("quote_ident", &[Value::Text("plain_1".to_owned())], "plain_1"),
        ("quote_literal", &[Value::Text("it's".to_owned())], "'it''s'"),
        ("quote_nullable", &[Value::Null], "NULL"),
        ("parse_ident", &[Value::Text("public.\"My Table\"".to_owned())], "{public,\"My Table\"}"),
        ("has_table_privilege", &[Value::Text("customers".to_owned()), Value::Text("select".to_owned())], "t"),
        ("has_schema_privilege", &[Value::Int8(1), Value::Text("usage".to_owned())], "NULL"),
        (
            "has_column_privilege",
            &[Value::Text("customers".to_owned()), Value::Text("id".to_owned()), Value::Text("select".to_owned())],
            "t",
        ),
        ("pg_table_is_visible", &[Value::Int8(1259)], "t"),
        ("pg_table_is_visible", &[Value::Int8(1)], "NULL"),
        ("pg_get_function_result", &[Value::Int8(1)], "NULL"),
        ("obj_description", &[Value::Null, Value::Null], "NULL"),
        ("pg_total_relation_size", &[Value::Text("customers".to_owned())], "0"),
    ];
    for (name, arguments, expected) in cases {
        assert_eq!(call(&schema, name, arguments).as_deref(), Ok(*expected), "{name} {arguments:?}");
    }
    let missing = [Value::Text("missing".to_owned())];
    assert_eq!(call(&schema, "current_setting", &missing).map_err(|error| error.sqlstate), Err("42704"));
    assert_eq!(call(&schema, "pg_database_size", &missing).map_err(|error| error.sqlstate), Err("3D000"));
    assert!(system::call("missing", &[], &schema, &context()).is_none());
    assert!(system::call("format_type", &[], &schema, &context()).is_none());
    assert!(system::functions().is_sorted_by_key(|function| function.name));
}

/// No argument causes a panic.
#[test]
fn functions_accept_any_arguments() {
    let schema = example();
    let values = [
        Value::Null,
        Value::Int8(-1),
        Value::Int8(i64::MAX),
        text(""),
        text("\"é\".[("),
        text("16385"),
        Value::Bool(true),
    ];
    for function in system::functions() {
        for count in function.required..=function.arguments.len() {
            for value in &values {
                let arguments = vec![value.clone(); count];
                let result = system::call(function.name, &arguments, &schema, &context());
                let Some(Ok(value)) = result else { continue };
                let is_expected = value.sql_type().is_none_or(|found| found.is_same_base(&function.result.sql_type()));
                assert!(is_expected, "{} {arguments:?}: {value:?}", function.name);
            }
        }
    }
}

#[test]
fn values_have_postgresqls_formats() {
    let schema = example();
    let table = table("pg_index");
    let rows = system::rows(table, &schema, &context());
    let place = table.columns.iter().position(|column| column.name == "indkey").expect("indkey");
    let kind = table.columns[place].kind;
    let row = &rows[3];
    assert_eq!((kind.oid(), kind.to_text(&row[place]).as_deref()), (22, Some("3 4")));
    let bytes = kind.to_binary(&row[place]).expect("a vector");
    let expected = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 21, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 0, 0, 2, 0, 4];
    assert_eq!(bytes.as_ref(), &expected[..]);
    assert_eq!(table.columns[0].kind.to_binary(&Value::Int8(16_385)).as_deref(), Some(&[0, 0, 64, 1][..]));
}

/// A node with one session, and tables of 100 bytes.
#[derive(Debug)]
struct Node;

impl Live for Node {
    fn sessions(&self) -> Vec<SessionRow> {
        vec![SessionRow {
            process: 7,
            database: "d".to_owned(),
            user: "postgres".to_owned(),
            application: "psql".to_owned(),
            client: Some(("127.0.0.1".to_owned(), 5)),
            started: 0,
            transaction_started: Some(1_000_000),
            statement_started: Some(1_000_000),
            changed: 2_000_000,
            state: "idle in transaction",
            text: "SELECT 1".into(),
        }]
    }

    fn size(&self, _: u32) -> Option<u64> {
        Some(100)
    }

    fn database_size(&self, name: &str) -> Option<u64> {
        (name == "d").then_some(900)
    }
}

#[test]
fn activity_and_sizes_are_of_the_node() {
    let (schema, context) = (example(), Context { live: Some(Arc::new(Node)), ..context() });
    let rows = |name: &str| system::rows(table(name), &schema, &context).len();
    assert_eq!((rows("pg_stat_activity"), rows("pg_locks"), rows("pg_stat_database")), (1, 1, 2));
    assert!(table("pg_stat_activity").is_live() && !table("pg_class").is_live());
    let size = |function: &str, of: &str| {
        let result = system::call(function, &[Value::Text(of.to_owned())], &schema, &context);
        result.expect(function).expect(of).as_integer()
    };
    let indexes = schema.table_named("customers").expect("a table").indexes.len() as i64;
    assert_eq!(size("pg_table_size", "customers"), Some(100));
    assert_eq!(size("pg_indexes_size", "customers"), Some(indexes * 100));
    assert_eq!(size("pg_total_relation_size", "customers"), Some(100 + indexes * 100));
    assert_eq!((size("pg_database_size", "d"), size("pg_database_size", "e")), (Some(900), Some(0)));
}
