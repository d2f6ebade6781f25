//! Parameters in groups, windows and lists.

use sql::parse::parse_one;
use sql::statement::Statement;
use sql::{SqlError, SqlType, Value};

use super::{Database, SCRIPT};

async fn rows(text: &str, parameters: &[Value]) -> Vec<String> {
    match Database::new(SCRIPT).run(text, parameters).await {
        Ok((_, rows)) => rows,
        Err(error) => panic!("{text}: {error:?}"),
    }
}

async fn error(text: &str, parameters: &[Value]) -> SqlError {
    Database::new(SCRIPT).run(text, parameters).await.expect_err(text)
}

const LIST: &str = "(VALUES (1, 'x', 10), (2, 'y', 20), (3, 'x', 30)) AS t (id, b, a)";

// The names of aggregates, groups and windows contain their parameters.
#[tokio::test]
async fn parameters_of_groups_and_windows() {
    let two = [Value::Int4(2)];
    let case = async |text: &str, wanted: &[&str]| {
        assert_eq!(rows(&text.replace("LIST", LIST), &two).await, wanted, "{text}");
    };
    case("SELECT sum(a + $1::int) FROM LIST", &["66"]).await;
    case("SELECT b, sum(a + $1::int) FROM LIST GROUP BY b HAVING sum(a + $1::int) > 30 ORDER BY 1", &["x|44"]).await;
    case("SELECT id % $1::int, count(*) FROM LIST GROUP BY 1 ORDER BY 1", &["0|1", "1|2"]).await;
    case(
        "SELECT b, id % $1::int, count(*) FROM LIST GROUP BY ROLLUP (b, id % $1::int) ORDER BY 1, 2",
        &["x|1|2", "x|NULL|2", "y|0|1", "y|NULL|1", "NULL|NULL|3"],
    )
    .await;
    case("SELECT id, sum(a + $1::int) OVER (ORDER BY id) FROM LIST ORDER BY 1", &["1|12", "2|34", "3|66"]).await;
    case("SELECT id, lag(a, $1::int) OVER (ORDER BY id) FROM LIST ORDER BY 1", &["1|NULL", "2|NULL", "3|10"]).await;
    case("SELECT count(*) FILTER (WHERE id < $1::int) FROM LIST", &["1"]).await;
}

#[tokio::test]
async fn parameters_of_frames() {
    let one = [Value::Int8(1)];
    let case = async |text: &str, wanted: &[&str]| {
        let text = format!("SELECT {text} FROM {LIST} WINDOW w AS (ORDER BY id ROWS $1 PRECEDING) ORDER BY id");
        assert_eq!(rows(&text, &one).await, wanted, "{text}");
    };
    case("sum(a) OVER w", &["10", "30", "50"]).await;
    case("sum(a) OVER (ORDER BY id ROWS BETWEEN $1 FOLLOWING AND 2 FOLLOWING)", &["50", "30", "NULL"]).await;
    case("sum(a) OVER (ORDER BY id RANGE BETWEEN CURRENT ROW AND ($1) FOLLOWING)", &["30", "50", "30"]).await;
    let frame = |frame: &str| format!("SELECT sum(a) OVER (ORDER BY id {frame} PRECEDING) FROM {LIST}");
    for (text, value, sqlstate) in [
        ("ROWS $1", Value::Int8(-1), "22013"),
        ("ROWS $1", Value::Null, "22004"),
        ("RANGE $1::int", Value::Int4(-1), "22013"),
        ("RANGE $1::int", Value::Null, "22004"),
    ] {
        assert_eq!(error(&frame(text), &[value]).await.sqlstate, sqlstate, "{text}");
    }
    assert_eq!(error(&frame("ROWS -1"), &[]).await.sqlstate, "22013");
    assert_eq!(error(&frame("ROWS 1 + 1"), &[]).await.sqlstate, "0A000");
    assert_eq!(rows(&frame("ROWS 9223372036854775807"), &[]).await.len(), 3);
    let times = "(VALUES (timestamp '2024-01-01'), ('2024-01-02'), ('2024-01-05')) AS t (at)";
    for offset in ["INTERVAL '1 day'", "'1 day'", "INTERVAL '24' HOUR", "$1::interval"] {
        let text = format!("SELECT count(*) OVER (ORDER BY at RANGE {offset} PRECEDING) FROM {times} ORDER BY at");
        let day = SqlType::Interval.parse("1 day").unwrap();
        assert_eq!(rows(&text, &[day]).await, ["1", "2", "1"], "{offset}");
    }
}

#[tokio::test]
async fn types_of_lists() {
    let case = async |list: &str, of: &str, wanted: &[&str]| {
        let text = format!("SELECT column1, pg_typeof(column1) FROM (VALUES {list}) AS t");
        let wanted: Vec<String> = wanted.iter().map(|value| format!("{value}|{of}")).collect();
        assert_eq!(rows(&text, &[Value::Null, Value::Null]).await, wanted, "{list}");
    };
    case("(1), (2)", "integer", &["1", "2"]).await;
    case("(1), (NULL)", "integer", &["1", "NULL"]).await;
    case("(1), ('2')", "integer", &["1", "2"]).await;
    case("(1), (5000000000)", "bigint", &["1", "5000000000"]).await;
    case("(1), (2.5::real)", "real", &["1", "2.5"]).await;
    case("(1), (2::numeric), (3.5)", "numeric", &["1", "2", "3.5"]).await;
    case("(1::numeric(5, 2)), (2::numeric(5, 2))", "numeric", &["1.00", "2.00"]).await;
    case("('a'::varchar(1)), ('bc'::varchar(2)), ('def')", "character varying", &["a", "bc", "def"]).await;
    case("('a'::text), ('b'::varchar(1))", "text", &["a", "b"]).await;
    case(
        "(date '2024-01-01'), (timestamp '2024-01-01 01:00')",
        "timestamp without time zone",
        &["2024-01-01 00:00:00", "2024-01-01 01:00:00"],
    )
    .await;
    case("(true), ('f')", "boolean", &["t", "f"]).await;
    case("($1), ($2)", "text", &["NULL", "NULL"]).await;
    case("($1), (2)", "integer", &["NULL", "2"]).await;
    case("($1::bigint), (2), ($2)", "bigint", &["NULL", "2", "NULL"]).await;
    case(
        "(NULL), ('00000000-0000-0000-0000-000000000001'::uuid)",
        "uuid",
        &["NULL", "00000000-0000-0000-0000-000000000001"],
    )
    .await;
    for (list, sqlstate) in [
        ("(1), (true)", "42804"),
        ("(1), ('a'::text)", "42804"),
        ("(1), ('a')", "22P02"),
        ("('a'::char(1)), ('b'::char(2))", "0A000"),
    ] {
        let text = format!("SELECT * FROM (VALUES {list}) AS t");
        assert_eq!(error(&text, &[]).await.sqlstate, sqlstate, "{list}");
    }
}

// As SQLAlchemy inserts many rows.
#[tokio::test]
async fn lists_of_declared_parameters() {
    let text = "SELECT p::float8, q::varchar FROM (VALUES ($1, $2, 0), ($3, $4, 1)) AS t (p, q, n) ORDER BY n";
    let Ok(Statement::Query(query, None)) = parse_one(text) else { panic!("a query") };
    let declared = [Some(SqlType::Float8), None, None, Some(SqlType::Varchar(None))];
    let query = Database::new(SCRIPT).planner().prepare(&query, text, &declared, None).unwrap();
    let types: Vec<String> = query.parameters.iter().map(ToString::to_string).collect();
    assert_eq!(types, ["double precision", "character varying", "double precision", "character varying"]);
    let text = text.replace("$1", "$1::float8");
    let values = [Value::Float8(1.5), Value::Text("a".into()), Value::Null, Value::Null];
    assert_eq!(rows(&text, &values).await, ["1.5|a", "NULL|NULL"]);
}

#[tokio::test]
async fn padding_ends_with_the_type() {
    let list = "(VALUES ('ab'::char(5))) AS t (c)";
    for shown in ["c::text", "c::varchar", "c || ''"] {
        let text = format!("SELECT '[' || ({shown}) || ']' FROM {list}");
        assert_eq!(rows(&text, &[]).await, ["[ab]"], "{shown}");
    }
    let text = format!("SELECT c, length(c::text) FROM {list}");
    assert_eq!(rows(&text, &[]).await, ["ab   |2"]);
}
