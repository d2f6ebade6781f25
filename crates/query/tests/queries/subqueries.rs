//! Subqueries that DataFusion does not execute by itself. The results are those of PostgreSQL 15.

use super::{Database, SCRIPT, check};

const SCALARS: &[(&str, &[&str])] = &[
    (
        "SELECT id, (SELECT count(*) FROM people AS other WHERE other.age < people.age) FROM people ORDER BY id",
        &["1|2", "2|0", "3|1", "4|0"],
    ),
    (
        "SELECT id, (SELECT name FROM people AS other WHERE other.age < p.age ORDER BY other.age DESC LIMIT 1) FROM people AS p ORDER BY id",
        &["1|Cid", "2|NULL", "3|Bob", "4|NULL"],
    ),
    (
        "SELECT id, (SELECT p.name || o.item FROM orders AS o WHERE o.person = p.id AND o.number = 1) FROM people AS p ORDER BY id",
        &["1|Annpen", "2|Bobpen", "3|NULL", "4|NULL"],
    ),
    (
        "SELECT id, (SELECT sum(price) FROM orders WHERE person <= id OR item = 'cup') FROM people ORDER BY id",
        &["1|9.70", "2|11.00", "3|11.00", "4|11.00"],
    ),
    ("SELECT id, (SELECT item FROM orders WHERE person = id) FROM people", &["21000"]),
    (
        "SELECT id, CASE WHEN id > 1 THEN (SELECT item FROM orders WHERE person = id) END FROM people WHERE id > 1 ORDER BY id",
        &["2|pen", "3|NULL", "4|NULL"],
    ),
    (
        "SELECT id, (SELECT max(n) FROM (SELECT count(*) AS n FROM orders WHERE person <> id GROUP BY item) AS items) FROM people ORDER BY id",
        &["1|1", "2|1", "3|2", "4|2"],
    ),
    (
        "SELECT id, (SELECT count(*) FROM (SELECT item FROM orders WHERE person = id UNION SELECT code FROM people AS other WHERE other.id < people.id) AS all_items) FROM people ORDER BY id",
        &["1|2", "2|2", "3|2", "4|3"],
    ),
    (
        "SELECT name FROM people ORDER BY (SELECT count(*) FROM orders WHERE person < id), id DESC",
        &["Ann", "Bob", "Dan", "Cid"],
    ),
    (
        "SELECT boss, (SELECT count(*) FROM orders WHERE person = boss) FROM people GROUP BY boss ORDER BY boss",
        &["1|2", "2|1", "NULL|0"],
    ),
    ("SELECT sum((SELECT count(*) FROM orders WHERE person < id)) FROM people", &["8"]),
    (
        "SELECT id, (SELECT (SELECT count(*) FROM orders AS o WHERE o.person = b.id AND o.number < p.id) FROM people AS b WHERE b.id = p.boss) FROM people AS p ORDER BY id",
        &["1|NULL", "2|1", "3|2", "4|1"],
    ),
    (
        "SELECT id, (SELECT avg(price) FROM orders WHERE person < id) FROM people ORDER BY id",
        &["1|NULL", "2|2.3500000000000000", "3|2.0000000000000000", "4|2.0000000000000000"],
    ),
    ("SELECT DISTINCT (SELECT count(*) FROM orders WHERE person < id) AS n FROM people ORDER BY n", &["0", "2", "3"]),
    // PostgreSQL executes it.
    ("SELECT (SELECT sum(people.id) FROM orders) FROM people", &["0A000"]),
    ("SELECT (SELECT 1, 2)", &["42601"]),
];

const CONDITIONS: &[(&str, &[&str])] = &[
    (
        "SELECT id FROM people WHERE EXISTS (SELECT 1 FROM orders WHERE person < id) OR name = 'Ann' ORDER BY id",
        &["1", "2", "3", "4"],
    ),
    (
        "SELECT id, EXISTS (SELECT 1 FROM orders WHERE person = id AND price > 2) FROM people ORDER BY id",
        &["1|t", "2|f", "3|f", "4|f"],
    ),
    (
        "SELECT id, NOT EXISTS (SELECT 1 FROM orders WHERE person = id LIMIT 1 OFFSET 1) FROM people ORDER BY id",
        &["1|f", "2|t", "3|t", "4|t"],
    ),
    (
        "SELECT 5 IN (SELECT age FROM people), 42 IN (SELECT age FROM people), NULL IN (SELECT age FROM people WHERE id > 9), 5 NOT IN (SELECT id FROM people)",
        &["NULL|t|f|t"],
    ),
    ("SELECT id FROM people WHERE 5 NOT IN (SELECT age FROM people)", &[]),
    (
        "SELECT id FROM people WHERE 5 <> ALL (SELECT person FROM orders WHERE person = id) ORDER BY id",
        &["1", "2", "3", "4"],
    ),
    (
        "SELECT id, boss IN (SELECT o.number FROM orders AS o WHERE o.person < id) FROM people ORDER BY id",
        &["1|f", "2|t", "3|t", "4|t"],
    ),
    (
        "SELECT id, boss NOT IN (SELECT age FROM people) FROM people ORDER BY id",
        &["1|NULL", "2|NULL", "3|NULL", "4|NULL"],
    ),
    ("SELECT id FROM people WHERE boss NOT IN (SELECT person FROM orders) ORDER BY id", &[]),
    ("SELECT id FROM people WHERE id > ALL (SELECT person FROM orders WHERE item = 'pen') ORDER BY id", &["3", "4"]),
    (
        "SELECT id, age >= ANY (SELECT other.age FROM people AS other WHERE other.id <> people.id) FROM people ORDER BY id",
        &["1|t", "2|NULL", "3|t", "4|NULL"],
    ),
    ("SELECT id FROM people WHERE code IN (SELECT item FROM orders UNION SELECT 'zz') ORDER BY id", &["4"]),
    ("SELECT '2' IN (SELECT id FROM people), 1.0 IN (SELECT id FROM people)", &["t|t"]),
    ("SELECT name IN (SELECT id FROM people) FROM people", &["42883"]),
];

const ORDERS: &[(&str, &[&str])] = &[
    ("SELECT ARRAY(SELECT id FROM people ORDER BY age DESC NULLS LAST)", &["{1,3,2,4}"]),
    ("SELECT ARRAY(SELECT id FROM people ORDER BY id DESC LIMIT 2)", &["{4,3}"]),
    (
        "SELECT id, ARRAY(SELECT o.item FROM orders AS o WHERE o.person <> people.id ORDER BY o.price DESC) FROM people WHERE id < 3 ORDER BY id",
        &["1|{cup,pen}", "2|{cup,ink,pen}"],
    ),
    ("SELECT string_agg(name, ',') FROM (SELECT name FROM people ORDER BY name DESC LIMIT 3) AS s", &["Dan,Cid,Bob"]),
];

const SOURCES: &[(&str, &[&str])] = &[
    (
        "SELECT p.id, o.item FROM people AS p, LATERAL (SELECT item FROM orders WHERE person <= p.id ORDER BY price DESC LIMIT 1) AS o ORDER BY p.id",
        &["1|ink", "2|ink", "3|ink", "4|ink"],
    ),
    (
        "SELECT p.id, o.n FROM people AS p LEFT JOIN LATERAL (SELECT count(*) AS n FROM orders WHERE person < p.id) AS o ON o.n > 0 ORDER BY p.id",
        &["1|NULL", "2|2", "3|3", "4|3"],
    ),
    (
        "SELECT p.id, o.number FROM people AS p LEFT JOIN orders AS o ON o.person = p.id AND EXISTS (SELECT 1 FROM people AS b WHERE b.age < p.age) ORDER BY 1, 2",
        &["1|1", "1|2", "2|NULL", "3|NULL", "4|NULL"],
    ),
    (
        "SELECT id FROM (SELECT * FROM people ORDER BY id LIMIT 2) AS p WHERE (SELECT count(*) FROM orders WHERE person < p.id) < 3 ORDER BY id",
        &["1", "2"],
    ),
    // PostgreSQL executes it.
    (
        "SELECT id FROM (SELECT id, row_number() OVER (ORDER BY age) AS n FROM people) AS p WHERE (SELECT count(*) FROM orders WHERE person < p.n) < 3 ORDER BY id",
        &["0A000"],
    ),
];

#[tokio::test]
async fn subqueries_answer_as_postgresql_does() {
    let database = Database::new(SCRIPT);
    let mut wrong = Vec::new();
    for (text, wanted) in [SCALARS, CONDITIONS, ORDERS, SOURCES].concat() {
        wrong.extend(check(&database, text, wanted).await);
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
