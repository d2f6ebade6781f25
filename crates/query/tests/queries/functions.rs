//! Functions and clauses that DataFusion lacks or defines otherwise. The results are those of PostgreSQL 15.

use super::{Database, SCRIPT, check};

const NUMBERS: &[(&str, &[&str])] = &[
    (
        "SELECT to_char(1234.5, '9,999.99'), to_char(-0.1, 'FM0.99'), to_char(0.1, '9.9'), to_char(12, 'S099')",
        &[" 1,234.50|-0.1|  .1|+012"],
    ),
    (
        "SELECT to_char(-485, '999MI'), to_char(-485, '999PR'), to_char(12345, '999'), to_char(21, 'FM99th')",
        &["485-|<485>| ###|21st"],
    ),
    (
        "SELECT to_char(12.34, 'FM99.000'), to_char(0, 'FM9.9'), to_char(12.5::float8, '99V99'), to_char(1e20::float8, '9.9')",
        &["12.340|0.| 1250| #."],
    ),
    ("SELECT to_char(1, '9S9S')", &["42601"]),
    ("SELECT to_char(1, '9.9.9')", &["42601"]),
    ("SELECT to_char(1, '9EEEE')", &["0A000"]),
    ("SELECT sign(-2), sign(0.5), trunc(-1.9), trunc(2.7::float8), log10(1000::float8)", &["-1|1|-1|2|3"]),
    ("SELECT ln(0)", &["2201E"]),
    ("SELECT log(-1)", &["2201E"]),
    ("SELECT ~5, ~(-1), ~7::smallint", &["-6|0|-8"]),
    ("SELECT ~1.5", &["42883"]),
    (
        "SELECT pg_typeof(1), pg_typeof(3000000000), pg_typeof(sum(age)), pg_typeof(code) FROM people GROUP BY code LIMIT 1",
        &["integer|bigint|bigint|character"],
    ),
    (
        "SELECT total FROM (SELECT boss, sum(age) AS total FROM people GROUP BY boss) AS sums WHERE total > 20 ORDER BY total",
        &["42", "47"],
    ),
    (
        "SELECT sum(age) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM people ORDER BY id",
        &["42", "59", "47", "30"],
    ),
    ("SELECT sum(DISTINCT age % 10) FROM people", &["9"]),
];

const STRINGS: &[(&str, &[&str])] = &[
    (
        "SELECT md5(''), md5('hello'), md5(repeat('x', 100))",
        &["d41d8cd98f00b204e9800998ecf8427e|5d41402abc4b2a76b9719d911017c592|aed563ecafb4bcc5654c597a421547b2"],
    ),
    (
        "SELECT encode('\\x00ff', 'hex'), encode('a', 'base64'), length(encode(repeat('abc', 30)::bytea, 'base64')), encode('\\x0061ff5c', 'escape')",
        &["00ff|YQ==|121|\\000a\\377\\\\"],
    ),
    (
        "SELECT decode('YQ==', 'base64'), decode('61 62', 'hex'), decode('a\\\\b\\101', 'escape')",
        &["\\x61|\\x6162|\\x615c6241"],
    ),
    ("SELECT decode('616', 'hex')", &["22023"]),
    ("SELECT encode('a', 'nosuch')", &["22023"]),
    (
        "SELECT format('%s is %L, %I', 'x', 'it''s', 'a b'), format('%2$s %1$s %%', 'a', 'b'), format('%5s|%-5s|%*s', 'a', 'b', -3, 'c')",
        &["x is 'it''s', \"a b\"|b a %|    a|b    |c  "],
    ),
    ("SELECT format('%s')", &["22023"]),
    ("SELECT format('%x', 1)", &["22023"]),
    ("SELECT 'a_b' LIKE 'a!_b' ESCAPE '!', 'axb' LIKE 'a!_b' ESCAPE '!', 'a\\b' LIKE 'a\\b' ESCAPE ''", &["t|f|t"]),
    ("SELECT 'a' LIKE 'a' ESCAPE 'xx'", &["22025"]),
    (
        "SELECT 'hello' SIMILAR TO '(h|j)ello', 'abc' SIMILAR TO 'a.c', 'aab' SIMILAR TO 'a{2}b', 'abc' NOT SIMILAR TO 'a%'",
        &["t|f|t|f"],
    ),
    (
        "SELECT length(code), octet_length(code), upper(code) || '!', code || '!', reverse(code) FROM people WHERE id = 1",
        &["2|4|AB!|ab!|ba"],
    ),
    ("SELECT substring('abc' FROM 2 FOR -1)", &["22011"]),
];

const TIMES: &[(&str, &[&str])] = &[
    (
        "SELECT to_char(timestamp '2026-11-27 13:02:03.456', 'YYYY-MM-DD HH24:MI:SS.MS'), to_char(date '2026-11-07', 'FMDD. FMMonth YYYY, Day')",
        &["2026-11-27 13:02:03.456|7. November 2026, Saturday "],
    ),
    (
        "SELECT to_char(timestamp '2026-01-02 00:30:00', 'HH12:MI am, DDDth, IYYY-\"W\"IW-ID, Q CC'), to_char(timestamp '0044-03-15 BC', 'YYYY BC RM J')",
        &["12:30 am, 002nd, 2026-W01-5, 1 21|0044 BC III  1705428"],
    ),
    (
        "SELECT to_char(interval '1 year 2 months 100:05:06', 'YY MM HH24:MI:SS'), to_char(now(), '') IS NULL",
        &["01 02 100:05:06|t"],
    ),
    ("SELECT to_char(interval '1 day', 'Day')", &["22007"]),
    ("SELECT to_char('x'::text, 'Day')", &["42883"]),
    (
        "SELECT to_date('27.11.2026', 'DD.MM.YYYY'), to_date('20261127', 'YYYYMMDD'), to_date('5 nov 69', 'DD Mon YY'), to_date('2026-331', 'YYYY-DDD')",
        &["2026-11-27|2026-11-27|2069-11-05|2026-11-27"],
    ),
    ("SELECT to_date('2026-02-30', 'YYYY-MM-DD')", &["22008"]),
    ("SELECT to_date('2026-xx-30', 'YYYY-MM-DD')", &["22007"]),
    (
        "SELECT to_timestamp('2026-11-27 01:02:03.5 PM', 'YYYY-MM-DD HH12:MI:SS.MS PM'), to_timestamp('2026-11-27T13+02', 'YYYY-MM-DD\"T\"HH24TZH')",
        &["2026-11-27 13:02:03.5+00|2026-11-27 11:00:00+00"],
    ),
    ("SELECT to_timestamp('13', 'HH12'), 1", &["22007"]),
    ("SELECT to_timestamp(86400.5), to_timestamp('-infinity'::float8)", &["1970-01-02 00:00:00.5+00|-infinity"]),
    (
        "SELECT extract(epoch FROM timestamptz '1970-01-02Z'), extract(year FROM timestamp '0044-03-15 BC'), extract(epoch FROM date '2000-01-01')",
        &["86400.000000|-44|946684800"],
    ),
    (
        "SELECT extract(epoch FROM interval '1 year 1 day 1.5 seconds'), date_part('century', timestamp '2000-12-31'), date_part('hour', date '2026-01-01')",
        &["31644001.500000|20|0"],
    ),
    ("SELECT extract(hour FROM date '2026-01-01')", &["0A000"]),
    ("SELECT extract(nosuch FROM now())", &["22023"]),
    (
        "SELECT age(timestamp '2026-11-27', timestamp '2025-10-26 12:00'), age(timestamp '2024-02-29', timestamp '2026-03-31'), age(date '2026-03-01', date '2026-01-31')",
        &["1 year 1 mon 12:00:00|-2 years -1 mons -2 days|1 mon 1 day"],
    ),
    (
        "SELECT justify_hours(interval '27 hours'), justify_days(interval '35 days'), justify_interval(interval '1 month -1 hour')",
        &["1 day 03:00:00|1 mon 5 days|29 days 23:00:00"],
    ),
    (
        "SELECT interval '1 month' * 2, 1.5 * interval '1 day', interval '1 year 5 days' / 7, -interval '1 day'",
        &["2 mons|1 day 12:00:00|1 mon 22 days 03:25:42.820114|-1 days"],
    ),
    ("SELECT interval '1 day' / 0", &["22012"]),
    ("SELECT interval '1 year' * 1e9", &["22008"]),
];

const QUERIES: &[(&str, &[&str])] = &[
    (
        "SELECT p.person, o.person, person FROM (SELECT id AS person FROM people) p FULL JOIN orders o USING (person) WHERE number = 1 ORDER BY 3",
        &["1|1|1", "2|2|2", "NULL|9|9"],
    ),
    ("SELECT g, pg_typeof(g) FROM generate_series(1, array_upper(current_schemas(false), 1)) AS g", &["1|integer"]),
    ("SELECT date '2026-01-01' + i FROM generate_series(1, 2) AS s (i)", &["2026-01-02", "2026-01-03"]),
    (
        "SELECT generate_series FROM generate_series(timestamp '2026-01-31', timestamp '2026-03-31', interval '1 month')",
        &["2026-01-31 00:00:00", "2026-02-28 00:00:00", "2026-03-28 00:00:00"],
    ),
    ("SELECT count(*) FROM generate_series(1, NULL)", &["0"]),
    ("SELECT count(*) FROM generate_series(1, 5, 0)", &["22023"]),
    ("SELECT id FROM people WHERE row_number() OVER () = 1", &["42P20"]),
    ("SELECT max(id) FROM people GROUP BY rank() OVER ()", &["42P20"]),
    ("SELECT sum(count(*)) FROM people", &["42803"]),
    ("SELECT CASE WHEN id THEN 1 END FROM people", &["42804"]),
    ("SELECT nobody.id FROM people", &["42P01"]),
    ("SELECT nobody.* FROM people", &["42P01"]),
    ("SELECT (SELECT count(*) FROM people), (SELECT count(*) FROM orders), (SELECT 1) AS a, 2 AS a", &["4|4|1|2"]),
    (
        "SELECT * FROM (SELECT id AS person, name FROM people) AS p JOIN (SELECT person, number, item FROM orders) AS o USING (person) ORDER BY person, number",
        &["1|Ann|1|pen", "1|Ann|2|ink", "2|Bob|1|pen"],
    ),
    (
        "SELECT * FROM (SELECT person, number, item FROM orders) AS o JOIN (SELECT name, id AS person FROM people) AS p USING (person) WHERE person > 1 ORDER BY person",
        &["2|1|pen|Bob"],
    ),
    (
        "SELECT person, name, number FROM (SELECT id AS person, name FROM people) AS p FULL JOIN orders USING (person) ORDER BY person, number",
        &["1|Ann|1", "1|Ann|2", "2|Bob|1", "3|Cid|NULL", "4|Dan|NULL", "9|NULL|1"],
    ),
    (
        "SELECT person, count(number) FROM (SELECT id AS person FROM people) AS p RIGHT JOIN orders USING (person) GROUP BY person ORDER BY person",
        &["1|2", "2|1", "9|1"],
    ),
    (
        "SELECT * FROM (SELECT 1 AS a) AS x FULL JOIN (SELECT 2 AS a) AS y USING (a) FULL JOIN (SELECT 2 AS a, 3 AS b) AS z USING (a) ORDER BY a",
        &["1|NULL", "2|3"],
    ),
    ("SELECT b.item FROM orders a NATURAL JOIN orders b WHERE number = 2", &["ink"]),
    (
        "SELECT item FROM orders INTERSECT ALL VALUES ('pen'), ('pen'), ('pen'), ('cup') ORDER BY 1",
        &["cup", "pen", "pen"],
    ),
    ("SELECT item FROM orders EXCEPT ALL SELECT 'pen' ORDER BY item", &["cup", "ink", "pen"]),
    ("SELECT * FROM orders EXCEPT ALL SELECT * FROM orders", &["0A000"]),
];

async fn answers(cases: &[(&str, &[&str])]) {
    let database = Database::new(SCRIPT);
    let mut wrong = Vec::new();
    for (text, wanted) in cases {
        wrong.extend(check(&database, text, wanted).await);
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[tokio::test]
async fn functions_of_numbers() {
    answers(NUMBERS).await;
}

#[tokio::test]
async fn functions_of_strings() {
    answers(STRINGS).await;
}

#[tokio::test]
async fn functions_of_times() {
    answers(TIMES).await;
}

#[tokio::test]
async fn joins_series_and_names() {
    answers(QUERIES).await;
}

#[tokio::test]
async fn vectors_are_shown_as_text() {
    let database = Database::new(SCRIPT);
    let text = "SELECT i.indkey, i.indkey::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relname = 'orders_pkey'";
    let (columns, rows) = database.run(text, &[]).await.unwrap();
    assert_eq!(columns.first().map(String::as_str), Some("indkey:text"));
    assert_eq!(rows, ["1 2|1 2"]);
}

#[tokio::test]
async fn branches_have_types() {
    let database = Database::new(SCRIPT);
    let text = "SELECT CASE WHEN id = 1 THEN data END AS a, coalesce(token, NULL) AS b, nullif(token, NULL) AS c,
                       CASE WHEN id = 2 THEN coalesce(data, '{}') ELSE json_build_object('id', id) END AS d,
                       (SELECT json_build_object('p', p.id) FROM orders WHERE person = p.id AND number = 1) AS e
                FROM people p WHERE id = 1";
    let (columns, rows) = database.run(text, &[]).await.unwrap();
    assert_eq!(columns, ["a:jsonb", "b:uuid", "c:uuid", "d:jsonb", "e:jsonb"]);
    let token = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
    let wanted = format!(r#"{{"a": {{"b": [1, 2]}}, "c": "x"}}|{token}|{token}|{{"id": 1}}|{{"p": 1}}"#);
    assert_eq!(rows, [wanted]);
}

#[tokio::test]
async fn columns_of_tables_have_origins() {
    let database = Database::new(SCRIPT);
    let sql::statement::Statement::Query(query, None) = sql::parse::parse_one(
        "SELECT p.name, p.id + 1, o.item, a.name FROM people p JOIN orders o ON o.person = p.id, adults a ORDER BY 1",
    )
    .unwrap() else {
        panic!("a query")
    };
    let query = database.planner().prepare(&query, "", &[], None).unwrap();
    let origins: Vec<bool> = query.columns.iter().map(|column| column.origin.is_some()).collect();
    assert_eq!(origins, [true, false, true, false]);
}
