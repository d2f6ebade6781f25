//! Queries on rows in memory.

mod functions;
mod parameters;
mod subqueries;

use base::budget::ByteBudget;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use sql::direct::{Page, Read, Step, prepare};
use sql::ids::SequenceId;
use sql::parse::{parse, parse_one};
use sql::rows::{StoredRow, Write};
use sql::schema::Schema;
use sql::statement::Statement;
use sql::{Environment, SqlError, Supply, Value};

use query::{Engine, Limits, Planner, QueryError, Source, SourceError};

/// 2024-05-06 07:08:09 UTC.
const NOW: i64 = 768_294_489_000_000;

#[derive(Debug, Default)]
struct Store {
    rows: Mutex<BTreeMap<Bytes, BTreeMap<Bytes, Bytes>>>,
    /// The number of rows that were read.
    read: Mutex<usize>,
}

impl Source for Store {
    fn read(&self, reads: Vec<Read>) -> BoxFuture<'static, Result<Vec<Page>, SourceError>> {
        let pages: Vec<Page> = reads.iter().map(|read| self.page(read)).collect();
        *self.read.lock().unwrap() += pages.iter().map(|page| page.rows.len()).sum::<usize>();
        async move { Ok(pages) }.boxed()
    }
}

impl Store {
    fn page(&self, read: &Read) -> Page {
        let rows = self.rows.lock().unwrap();
        let is_wanted = |name: &Bytes| !matches!(read, Read::Cells(.., wanted) if !wanted.contains(name));
        let stored = |(key, cells): (&Bytes, &BTreeMap<Bytes, Bytes>)| {
            let wanted = cells.iter().filter(|(name, _)| is_wanted(name));
            StoredRow { key: key.clone(), cells: wanted.map(|(name, value)| (name.clone(), value.clone())).collect() }
        };
        match read {
            Read::Row(key) | Read::Locked(key) | Read::Entry(key) => {
                Page { rows: rows.get_key_value(key).map(stored).into_iter().collect(), next: None }
            }
            Read::Range(range, limit) | Read::Cells(range, limit, _) => {
                let mut found = rows.range(range.start.clone()..range.end.clone());
                let page = found.by_ref().take((*limit).min(3)).map(stored).collect();
                Page { rows: page, next: found.next().map(|(key, _)| key.clone()) }
            }
        }
    }

    fn write(&self, write: Write) {
        let mut rows = self.rows.lock().unwrap();
        match write {
            Write::Delete { key } => {
                rows.remove(&key);
            }
            Write::Put { key, cells } => {
                let row = rows.entry(key).or_default();
                for (name, value) in cells {
                    match value {
                        Some(value) => row.insert(name, value),
                        None => row.remove(&name),
                    };
                }
            }
        }
    }
}

#[derive(Default)]
struct Sequences(BTreeMap<SequenceId, i64>);

impl Supply for Sequences {
    fn next_value(&mut self, sequence: SequenceId) -> Result<i64, SqlError> {
        let last = self.0.entry(sequence).or_default();
        *last += 1;
        Ok(*last)
    }

    fn random_uuid(&mut self) -> [u8; 16] {
        [7; 16]
    }
}

struct Database {
    schema: Schema,
    store: Arc<Store>,
}

impl Database {
    fn new(script: &str) -> Self {
        let mut database = Self { schema: Schema::default(), store: Arc::default() };
        let mut supply = Sequences::default();
        for parsed in parse(script).unwrap() {
            match parsed.statement {
                Statement::Definition(definition) => {
                    let change = sql::ddl::apply(&database.schema, &definition).unwrap();
                    database.schema = change.schema;
                    for work in change.work {
                        if let sql::ddl::Work::FillIndex(table, index) = work {
                            database.schema = sql::ddl::publish_index(&database.schema, table, index).unwrap();
                        }
                    }
                }
                statement => {
                    let plan = prepare(&database.schema, &statement, script, &[]).unwrap().unwrap();
                    let mut environment = Environment { parameters: &[], now: NOW, supply: &mut supply };
                    let (mut execution, mut step) = plan.start(&mut environment).unwrap();
                    loop {
                        match step {
                            Step::Done(outcome) | Step::DoneIfOneMoment(outcome) => {
                                break outcome.writes.into_iter().for_each(|write| database.store.write(write));
                            }
                            Step::Read(reads) => {
                                let pages = reads.iter().map(|read| database.store.page(read)).collect();
                                step = execution.advance(pages, &mut environment).unwrap();
                            }
                            Step::NeedsPlanner => panic!("{script}"),
                        }
                    }
                }
            }
        }
        database
    }

    fn planner(&self) -> Arc<Planner> {
        let context =
            sql::system::Context { database: "loggos".to_owned(), user: "me".to_owned(), ..Default::default() };
        Planner::new(&self.schema, context, &[("current_user", Value::Text("me".to_owned()))])
    }

    async fn run(&self, text: &str, parameters: &[Value]) -> Result<(Vec<String>, Vec<String>), SqlError> {
        let Statement::Query(query, None) = parse_one(text)? else { panic!("{text}") };
        let query = self.planner().prepare(&query, "", &[], None)?;
        let engine = Engine::start(1).unwrap();
        let source: Arc<dyn Source> = self.store.clone();
        let sql_error = |error| match error {
            QueryError::Sql(error) => error,
            QueryError::Source(error) => panic!("{error}"),
        };
        let limits = Limits { memory: 1 << 20, budget: ByteBudget::new(1 << 30) };
        let mut execution = engine.execute(&query, parameters, NOW, &source, limits).map_err(sql_error)?;
        let mut rows = Vec::new();
        while let Some(page) = execution.next().await.map_err(sql_error)? {
            for row in page {
                let shown: Vec<String> =
                    row.iter().map(|value| value.to_text().unwrap_or_else(|| "NULL".to_owned())).collect();
                rows.push(shown.join("|"));
            }
        }
        let columns = query.columns.iter().map(|column| format!("{}:{}", column.name, column.sql_type)).collect();
        Ok((columns, rows))
    }
}

const SCRIPT: &str = "
CREATE TABLE people (id int PRIMARY KEY, name text NOT NULL, age int, salary numeric(10,2), born date, boss int,
                     big bigint, ratio float8, token uuid, data jsonb, code char(4), amount numeric);
CREATE INDEX people_age ON people (age);
CREATE UNIQUE INDEX people_token ON people (token);
CREATE TABLE orders (person int, number int, item varchar(20), price numeric(8,2), at timestamptz,
                     PRIMARY KEY (person, number));
CREATE VIEW adults AS SELECT id, name FROM people WHERE age >= 18;
INSERT INTO people VALUES
 (1, 'Ann', 42, 1000.50, '1980-02-03', NULL, 9000000000000000000, 0.5,
  'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": {\"b\": [1, 2]}, \"c\": \"x\"}', 'ab', 1.5),
 (2, 'Bob', 17, 200, '2007-01-01', 1, 9000000000000000000, 1.5, NULL, '[1, \"two\"]', 'abcd', 22.75),
 (3, 'Cid', 30, NULL, NULL, 1, -5, 2.5, NULL, NULL, NULL, NULL),
 (4, 'Dan', NULL, 300.25, '1990-12-31', 2, 7, NULL, NULL, NULL, 'zz', 0.001);
INSERT INTO orders VALUES (1, 1, 'pen', 1.20, '2024-01-01 10:00:00Z'), (1, 2, 'ink', 3.50, '2024-01-02 10:00:00Z'),
 (2, 1, 'pen', 1.30, '2024-02-01 10:00:00Z'), (9, 1, 'cup', 5.00, '2024-03-01 10:00:00Z');
";

/// Statements, and their rows or the code of their error.
const CASES: &[(&str, &[&str])] = &[
    ("SELECT name FROM people ORDER BY id DESC LIMIT 2", &["Dan", "Cid"]),
    ("SELECT count(*), count(age), sum(age), min(age), max(name) FROM people", &["4|3|89|17|Dan"]),
    ("SELECT sum(big) FROM people", &["18000000000000000002"]),
    ("SELECT avg(age), avg(ratio) FROM people", &["29.6666666666666667|1.5"]),
    ("SELECT avg(age) FROM people WHERE id = 99", &["NULL"]),
    ("SELECT sum(salary), avg(price) FROM people, orders WHERE id = person AND id = 2", &["200.00|1.3000000000000000"]),
    (
        "SELECT p.name, count(o.number) FROM people p LEFT JOIN orders o ON o.person = p.id GROUP BY p.name ORDER BY 1",
        &["Ann|2", "Bob|1", "Cid|0", "Dan|0"],
    ),
    ("SELECT name FROM people WHERE id IN (SELECT person FROM orders) ORDER BY name", &["Ann", "Bob"]),
    (
        "SELECT name FROM people p WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.person = p.id) ORDER BY 1",
        &["Cid", "Dan"],
    ),
    (
        "SELECT name, (SELECT max(price) FROM orders o WHERE o.person = p.id) FROM people p ORDER BY id",
        &["Ann|3.50", "Bob|1.30", "Cid|NULL", "Dan|NULL"],
    ),
    ("SELECT age FROM people ORDER BY age", &["17", "30", "42", "NULL"]),
    ("SELECT age FROM people ORDER BY age DESC", &["NULL", "42", "30", "17"]),
    ("SELECT id FROM people WHERE name LIKE '%n' ORDER BY id", &["1", "4"]),
    ("SELECT id FROM people WHERE name ILIKE 'a%' OR name ~ '^C' ORDER BY id", &["1", "3"]),
    ("SELECT 7 / 2, -7 / 2, 7 % 3, 7.0 / 2, 2 ^ 3", &["3|-3|1|3.5|8"]),
    ("SELECT 1 / (id - 1) FROM people", &["22012"]),
    ("SELECT 2147483647 + id FROM people", &["22003"]),
    ("SELECT big * 2 FROM people WHERE id = 1", &["22003"]),
    ("SELECT ratio / 0 FROM people WHERE id = 1", &["22012"]),
    ("SELECT 1.5::int, 2.5::int, '12'::int + 1, 'x' || 5, 3::text", &["2|3|13|x5|3"]),
    ("SELECT 'x'::int", &["22P02"]),
    (
        "SELECT born + 1, born - '1980-01-01', born + interval '1 month' FROM people WHERE id = 1",
        &["1980-02-04|33|1980-03-03 00:00:00"],
    ),
    ("SELECT now(), current_date", &["2024-05-06 07:08:09+00|2024-05-06"]),
    ("SELECT id FROM people WHERE born > '1985-01-01' ORDER BY id", &["2", "4"]),
    ("SELECT id FROM people WHERE token = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", &["1"]),
    ("SELECT token FROM people WHERE id = 1", &["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("SELECT data -> 'a' -> 'b' -> 1, data ->> 'c', data -> 'none' FROM people WHERE id = 1", &["2|x|NULL"]),
    ("SELECT data -> 1, data ->> -1 FROM people WHERE id = 2", &["\"two\"|two"]),
    ("SELECT id FROM people WHERE code = 'ab'", &["1"]),
    ("SELECT salary, amount FROM people ORDER BY id", &["1000.50|1.5", "200.00|22.75", "NULL|NULL", "300.25|0.001"]),
    ("SELECT salary * 2, amount + 1, salary > amount FROM people WHERE id = 1", &["2001.00|2.5|t"]),
    ("SELECT id FROM people WHERE amount = 22.75", &["2"]),
    (
        "SELECT CASE WHEN age >= 18 THEN 'adult' WHEN age IS NULL THEN '?' ELSE 'minor' END FROM people ORDER BY id",
        &["adult", "minor", "adult", "?"],
    ),
    ("SELECT coalesce(age, 0), nullif(id, 1) FROM people ORDER BY id", &["42|NULL", "17|2", "30|3", "0|4"]),
    ("SELECT id FROM people UNION SELECT person FROM orders ORDER BY 1", &["1", "2", "3", "4", "9"]),
    ("SELECT id FROM people EXCEPT SELECT person FROM orders ORDER BY 1", &["3", "4"]),
    ("SELECT id FROM people INTERSECT SELECT person FROM orders ORDER BY 1", &["1", "2"]),
    ("VALUES (1, 'a'), (2, NULL)", &["1|a", "2|NULL"]),
    ("VALUES (1, (SELECT max(id) FROM people)), (2, NULL) ORDER BY 1", &["1|4", "2|NULL"]),
    ("SELECT 1 UNION ALL SELECT 3000000000 ORDER BY 1", &["1", "3000000000"]),
    ("SELECT id FROM people UNION SELECT 2.5::float8 ORDER BY 1", &["1", "2", "2.5", "3", "4"]),
    ("SELECT 1 UNION ALL SELECT 2.5 ORDER BY 1", &["1", "2.5"]),
    ("SELECT NULL UNION ALL SELECT '7' UNION ALL SELECT 8 ORDER BY 1", &["7", "8", "NULL"]),
    (
        "SELECT DATE '2024-01-02' UNION SELECT TIMESTAMP '2024-01-02 03:04:05' ORDER BY 1",
        &["2024-01-02 00:00:00", "2024-01-02 03:04:05"],
    ),
    ("SELECT -(-2147483648 + id - 1) FROM people WHERE id = 1", &["22003"]),
    ("SELECT -id, -(1.5), -ratio FROM people WHERE id = 1", &["-1|-1.5|-0.5"]),
    ("SELECT sum(n) FROM (VALUES (9e37::numeric), (9e37::numeric)) AS v(n)", &["22003"]),
    ("SELECT id FROM people WHERE id = ANY (SELECT person FROM orders) ORDER BY id", &["1", "2"]),
    ("SELECT id FROM people WHERE id <> ALL (SELECT person FROM orders) ORDER BY id", &["3", "4"]),
    ("SELECT 'abc' SIMILAR TO 'a%', 'a.c' SIMILAR TO 'a!%' ESCAPE '!'", &["t|f"]),
    (
        "SELECT a.id, b.id, c.id FROM people AS a CROSS JOIN people AS b JOIN people AS c ON a.boss = c.boss AND a.id * b.id = c.id ORDER BY 1, 2, 3",
        &["2|1|2", "3|1|3", "4|1|4"],
    ),
    (
        "SELECT a.id, b.id, c.id FROM people AS a JOIN people AS b ON a.boss IS NOT DISTINCT FROM b.boss JOIN people AS c ON b.age = c.age WHERE a.salary = b.salary ORDER BY 1",
        &["1|1|1", "2|2|2"],
    ),
    (
        "SELECT a.id, b.id FROM people AS a RIGHT JOIN people AS b ON a.id = b.boss WHERE b.id > 1 AND a.boss IS NOT DISTINCT FROM b.boss ORDER BY 1",
        &[],
    ),
    ("SELECT id FROM people TABLESAMPLE BERNOULLI (50)", &["0A000"]),
    ("SELECT '{}'::jsonb || '{}'::jsonb", &["0A000"]),
    ("SELECT round(2.5::float8), round(2.5), round(2.345, 2)", &["2|3|2.35"]),
    ("SELECT extract(second FROM TIMESTAMP '2024-01-02 03:04:10.5')", &["10.500000"]),
    ("SELECT 1 WHERE 1.1::real = 1.1", &[]),
    ("SELECT 1 WHERE TIMESTAMP 'infinity' > DATE '2024-01-01' + 0", &["1"]),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 4) SELECT sum(n) FROM t", &["10"]),
    (
        "WITH RECURSIVE up AS (SELECT id, boss FROM people WHERE id = 4 UNION ALL SELECT p.id, p.boss FROM people p JOIN up ON p.id = up.boss) SELECT id FROM up ORDER BY id",
        &["1", "2", "4"],
    ),
    (
        "SELECT name, row_number() OVER (ORDER BY age), sum(age) OVER (ORDER BY id) FROM people ORDER BY id",
        &["Ann|3|42", "Bob|1|59", "Cid|2|89", "Dan|4|89"],
    ),
    ("SELECT * FROM adults ORDER BY id", &["1|Ann", "3|Cid"]),
    ("SELECT a.name FROM adults a JOIN adults b ON a.id > b.id", &["Cid"]),
    ("SELECT DISTINCT item FROM orders ORDER BY item", &["cup", "ink", "pen"]),
    ("SELECT item, count(*) AS c FROM orders GROUP BY item HAVING count(*) > 1", &["pen|2"]),
    ("SELECT upper(name), length(name), substr(name, 2, 1), name || '!' FROM people WHERE id = 1", &["ANN|3|n|Ann!"]),
    ("SELECT id, id FROM people WHERE id < 3 ORDER BY id", &["1|1", "2|2"]),
    ("SELECT a, a::text, a + 0, 1, 1 FROM (VALUES (5)) AS t(a)", &["5|5|5|1|1"]),
    ("SELECT string_agg(name, ',' ORDER BY id), array_agg(id ORDER BY id) FROM people", &["Ann,Bob,Cid,Dan|{1,2,3,4}"]),
    ("SELECT id FROM people WHERE id = ANY (ARRAY[1, 3]) ORDER BY 1", &["1", "3"]),
    ("SELECT id FROM people WHERE id = ANY ('{2,3}'::int[]) ORDER BY 1", &["2", "3"]),
    ("SELECT ARRAY(SELECT id FROM people ORDER BY id)", &["{1,2,3,4}"]),
    ("SELECT sum(n) FROM generate_series(1, 10) AS t(n)", &["55"]),
    ("SELECT generate_series(1, 3)", &["1", "2", "3"]),
    ("SELECT person FROM orders WHERE (person, number) = (1, 2)", &["1"]),
    ("SELECT item FROM orders WHERE (person, number) IN ((1, 2), (2, 1)) ORDER BY item", &["ink", "pen"]),
    (
        "SELECT extract(year FROM born), date_trunc('month', born) FROM people WHERE id = 1",
        &["1980|1980-02-01 00:00:00"],
    ),
    (
        "SELECT at FROM orders WHERE at >= '2024-02-01' ORDER BY at",
        &["2024-02-01 10:00:00+00", "2024-03-01 10:00:00+00"],
    ),
    ("SELECT name FROM people ORDER BY name COLLATE \"C\" FETCH FIRST 1 ROW ONLY", &["Ann"]),
    ("SELECT name FROM people OFFSET 3", &["Dan"]),
    ("SELECT nme FROM people", &["42703"]),
    ("SELECT 1 FROM nobody", &["42P01"]),
    ("SELECT nosuch(1)", &["42883"]),
    ("SELECT id, count(*) FROM people", &["42803"]),
    ("SELECT name FROM people WHERE name = 5", &["42883"]),
    ("SELECT id FROM people p, orders o WHERE number = 1 AND id = o.person AND p.id = 2", &["2"]),
    ("SELECT number FROM people p JOIN orders p ON true", &["42712"]),
    ("SELECT (SELECT id FROM people)", &["21000"]),
    ("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname NOT LIKE 'pg%' ORDER BY 1", &["orders", "people"]),
    (
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1",
        &["adults", "orders", "people"],
    ),
    ("SELECT 'people'::regclass::oid = c.oid FROM pg_catalog.pg_class c WHERE relname = 'people'", &["t"]),
    ("SELECT current_user, pg_catalog.format_type(23, NULL)", &["me|integer"]),
    (
        "SELECT mod(7, 4), div(7, 4), abs(-3), power(2, 10), round(2.567, 2), ceil(1.2), floor(-1.2)",
        &["3|1|3|1024|2.57|2|-2"],
    ),
    ("SELECT 12345678901234567890123 + 1, 0.1 + 0.2", &["12345678901234567890124|0.3"]),
];

/// Statements of clients that are not supported yet: functions such as `json_build_object`, and subqueries that refer
/// to outer queries in ways that DataFusion does not support.
const CLIENT_QUERIES_MISSING: usize = 40;

async fn check(database: &Database, text: &str, wanted: &[&str]) -> Option<String> {
    let found = match database.run(text, &[]).await {
        Ok((_, rows)) => rows,
        Err(error) if wanted == [error.sqlstate] => return None,
        Err(error) => return Some(format!("{text}\n  {error}")),
    };
    (found != wanted).then(|| format!("{text}\n  found  {found:?}\n  wanted {wanted:?}"))
}

#[tokio::test]
async fn answers_as_postgresql_does() {
    let database = Database::new(SCRIPT);
    let mut wrong = Vec::new();
    for (text, wanted) in CASES {
        wrong.extend(check(&database, text, wanted).await);
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), CASES.len(), wrong.join("\n"));
}

#[tokio::test]
async fn has_the_types_and_names_of_postgresql() {
    let database = Database::new(SCRIPT);
    let (columns, _) = database
        .run("SELECT 1, id, count(*), sum(age), sum(big), avg(age), name || 'x' AS n, max(salary), min(code), 'a', NULL FROM people GROUP BY id, name", &[])
        .await
        .unwrap();
    let wanted = [
        "?column?:integer",
        "id:integer",
        "count:bigint",
        "sum:bigint",
        "sum:numeric",
        "avg:numeric",
        "n:text",
        "max:numeric",
        "min:text",
        "?column?:text",
        "?column?:text",
    ];
    assert_eq!(columns, wanted);
}

#[tokio::test]
async fn reads_only_what_the_filters_select() {
    let database = Database::new(SCRIPT);
    let cases = [
        ("SELECT name FROM people WHERE id = 2 AND name || '' = 'Bob'", 1),
        ("SELECT upper(name) FROM people WHERE id IN (1, 3)", 2),
        ("SELECT count(*) FROM people WHERE id > 2", 2),
        ("SELECT count(*) FROM people WHERE id BETWEEN 2 AND 3", 2),
        ("SELECT upper(item) FROM orders WHERE person = 1", 2),
        ("SELECT upper(item) FROM orders WHERE person = 1 AND number > 1", 1),
        // An entry of the index, and its row.
        ("SELECT upper(name) FROM people WHERE age = 42", 2),
        ("SELECT upper(name) FROM people WHERE age > 17 AND age < 40", 2),
        ("SELECT upper(name) FROM people WHERE id = 2 AND id = 3", 0),
    ];
    for (text, wanted) in cases {
        *database.store.read.lock().unwrap() = 0;
        database.run(text, &[]).await.unwrap();
        assert_eq!(*database.store.read.lock().unwrap(), wanted, "{text}");
    }
}

#[tokio::test]
async fn parameters_have_inferred_types() {
    let database = Database::new(SCRIPT);
    let Statement::Query(query, None) = parse_one(
        "SELECT name, $5::int FROM people WHERE id = $1 AND born < $2 AND token = $3 AND name LIKE $4 LIMIT $6",
    )
    .unwrap() else {
        panic!("a query")
    };
    let query = database.planner().prepare(&query, "", &[], None).unwrap();
    let types: Vec<String> = query.parameters.iter().map(ToString::to_string).collect();
    assert_eq!(types, ["integer", "date", "uuid", "text", "integer", "bigint"]);
    let (_, rows) = database.run("SELECT name FROM people WHERE id = $1", &[Value::Int4(3)]).await.unwrap();
    assert_eq!(rows, ["Cid"]);
}

#[tokio::test]
async fn memory_of_a_query_is_limited() {
    let database = Database::new(SCRIPT);
    let text =
        "SELECT count(DISTINCT a.n * 100000 + b.n) FROM generate_series(1, 1000) a(n), generate_series(1, 1000) b(n)";
    assert_eq!(database.run(text, &[]).await.unwrap_err().sqlstate, "53200");
    assert_eq!(database.run("SELECT count(*) FROM people", &[]).await.unwrap().1, ["4"]);
}

#[tokio::test]
async fn queries_of_clients_are_planned() {
    let database = Database::new(SCRIPT);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");
    let Ok(files) = std::fs::read_dir(folder) else { return };
    let (mut failed, mut count) = (Vec::new(), 0);
    for file in files {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for statement in text.split(";\n") {
            let parsed = match parse(statement) {
                Ok(mut parsed) => parsed.pop(),
                Err(error) => {
                    if statement.to_ascii_lowercase().contains("select") {
                        failed.push(format!("{}: {error}\n{statement}\n", path.display()));
                    }
                    continue;
                }
            };
            let Some(parsed) = parsed else { continue };
            let shown = statement;
            let Statement::Query(query, _) = parsed.statement else { continue };
            count += 1;
            let planner = database.planner();
            let query = match planner.prepare(&query, "", &[], None) {
                Ok(query) => query,
                Err(error) => {
                    failed.push(format!("{}: {error}\n{shown}\n", path.display()));
                    continue;
                }
            };
            let parameters = vec![Value::Null; query.parameters.len()];
            let engine = Engine::start(1).unwrap();
            let source: Arc<dyn Source> = database.store.clone();
            let executed = async {
                let mut execution = engine.execute(
                    &query,
                    &parameters,
                    NOW,
                    &source,
                    Limits { memory: 64 << 20, budget: ByteBudget::new(1 << 30) },
                )?;
                while execution.next().await?.is_some() {}
                Ok::<_, QueryError>(())
            };
            if let Err(error) = executed.await {
                failed.push(format!("{}: {error:?}\n{shown}\n", path.display()));
            }
        }
    }
    let message = format!("{} of {count}:\n{}", failed.len(), failed.join("\n"));
    assert!(failed.len() <= CLIENT_QUERIES_MISSING, "{message}");
}
