use std::cmp::Ordering;
use std::ops::Bound;

use base::SplitMix64;

use super::values::{is_same, random_value};
use sql::ids::{ColumnId, IndexId, TableId};
use sql::keys::{
    Direction, IndexLayout, KeyColumn, KeyReader, RowLayout, bounded_range, descendants, directory, is_key_type,
    prefix_range, write_value,
};
use sql::{SqlType, Value, cells};

const DIRECTIONS: [Direction; 2] = [Direction::Ascending, Direction::Descending];

fn column(sql_type: SqlType) -> KeyColumn {
    KeyColumn { sql_type, direction: Direction::Ascending }
}

fn descending(sql_type: SqlType) -> KeyColumn {
    KeyColumn { sql_type, direction: Direction::Descending }
}

fn element(value: &Value, direction: Direction) -> Vec<u8> {
    let mut key = Vec::new();
    write_value(value, direction, &mut key).expect("a key type");
    key
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

#[test]
fn golden_elements() {
    let numeric = |text: &str| Value::Numeric(text.parse().expect("a number"));
    let cases = [
        (Value::Int4(0), "20"),
        (Value::Int4(1), "2101"),
        (Value::Int8(255), "21ff"),
        (Value::Int8(256), "220100"),
        (Value::Int8(-1), "1f"),
        (Value::Int8(-2), "1efe"),
        (Value::Int8(-256), "1e00"),
        (Value::Int8(-257), "1dfeff"),
        (Value::Int8(i64::MAX), "287fffffffffffffff"),
        (Value::Int8(i64::MIN), "178000000000000000"),
        (Value::Bool(true), "2101"),
        (text("ab"), "3061620001"),
        (Value::Bytea(vec![0, 1].into()), "3000ff010001"),
        (Value::Float8(1.5), "31bff8000000000000"),
        (Value::Float8(-1.5), "314007ffffffffffff"),
        (Value::Float4(1.5), "32bfc00000"),
        (Value::Uuid([0xa0; 16]), "33a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0"),
        (numeric("0.00"), "39"),
        (numeric("1"), "3a80000200"),
        (numeric("100"), "3a80010200"),
        (numeric("12.5"), "3a80000d3300"),
        (numeric("-12.5"), "387ffff2ccff"),
        (numeric("0.001"), "3a7ffe0b00"),
        (Value::Null, "7e"),
    ];
    for (value, expected) in cases {
        let key = element(&value, Direction::Ascending);
        assert_eq!(hex(&key), expected, "{value:?}");
        let complement: Vec<u8> = key.iter().map(|byte| !byte).collect();
        assert_eq!(element(&value, Direction::Descending), complement, "{value:?}");
    }
}

fn orders() -> RowLayout {
    RowLayout {
        levels: vec![
            (TableId(5), vec![column(SqlType::Int8)]),
            (TableId(300), vec![descending(SqlType::Date), column(SqlType::Text)]),
        ],
    }
}

#[test]
fn golden_keys() {
    let row = [Value::Int8(7), Value::Date(1), text("x")];
    let key = orders().key(&row).expect("a key");
    assert_eq!(hex(&key), "2105 2107 22012c defe 30780001".replace(' ', ""));
    assert_eq!(orders().decode(&key), Ok(Some(row.to_vec())));
    // The prefix of a complete parent continues with the child's table.
    assert_eq!(hex(&orders().key(&row[..1]).expect("a key")), "2105210722012c");
    let parent = RowLayout { levels: orders().levels[..1].to_vec() };
    let parent_key = parent.key(&row[..1]).expect("a key");
    assert!(key.starts_with(&parent_key));
    assert_eq!(parent.decode(&key), Ok(None));
    assert_eq!(orders().decode(&parent_key), Ok(None));
    assert!(descendants(&parent_key).contains(&key) && !descendants(&parent_key).contains(&parent_key));
    assert_eq!(directory(&key, 1), Some(&parent_key[..]));
    assert_eq!(directory(&parent_key[..2], 1), None);

    let mut index = IndexLayout {
        index: IndexId(9),
        columns: vec![column(SqlType::Text)],
        primary_key: vec![column(SqlType::Int4)],
        is_unique: false,
    };
    let golden = |index: &IndexLayout, value: Value| {
        let (key, reference) = index.entry(std::slice::from_ref(&value), &[Value::Int4(3)]).expect("an entry");
        assert_eq!(index.decode(&key, &reference), Ok((vec![value], vec![Value::Int4(3)])));
        (hex(&key), hex(&reference))
    };
    assert_eq!(golden(&index, text("a")), ("21093061000121 03".replace(' ', ""), String::new()));
    index.is_unique = true;
    assert_eq!(golden(&index, text("a")), ("210930610001".to_owned(), "2103".to_owned()));
    assert_eq!(golden(&index, Value::Null), ("21097e2103".to_owned(), String::new()));
}

fn random_types(random: &mut SplitMix64) -> Vec<KeyColumn> {
    let types: Vec<SqlType> = SqlType::SCALARS.into_iter().filter(is_key_type).collect();
    let column = |random: &mut SplitMix64| KeyColumn {
        sql_type: types[random.below(types.len() as u64) as usize].clone(),
        direction: DIRECTIONS[random.below(2) as usize],
    };
    (0..=random.below(3)).map(|_| column(random)).collect()
}

fn random_row(columns: &[KeyColumn], random: &mut SplitMix64) -> Vec<Value> {
    let value = |column: &KeyColumn, random: &mut SplitMix64| {
        if random.chance(100_000) { Value::Null } else { random_value(&column.sql_type, random) }
    };
    columns.iter().map(|column| value(column, random)).collect()
}

fn row_order(columns: &[KeyColumn], a: &[Value], b: &[Value]) -> Ordering {
    let orders = columns.iter().zip(a.iter().zip(b)).map(|(column, (a, b))| match column.direction {
        Direction::Ascending => a.sort_order(b),
        Direction::Descending => b.sort_order(a),
    });
    orders.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

#[test]
fn order_of_bytes_is_order_of_values() {
    let mut random = SplitMix64::new(3);
    for _ in 0..3_000 {
        let columns = random_types(&mut random);
        let layout = RowLayout { levels: vec![(TableId(1), columns.clone())] };
        let mut rows: Vec<Vec<Value>> = (0..6).map(|_| random_row(&columns, &mut random)).collect();
        // Rows that differ only in the last column.
        let mut twin = rows[0].clone();
        twin[columns.len() - 1] = random_value(&columns[columns.len() - 1].sql_type, &mut random);
        rows.push(twin);
        let keys: Vec<Vec<u8>> = rows.iter().map(|row| layout.key(row).expect("a key")).collect();
        for (a, key_a) in rows.iter().zip(&keys) {
            let decoded = layout.decode(key_a).expect("a key").expect("of this table");
            assert_eq!(row_order(&columns, a, &decoded), Ordering::Equal, "{columns:?} {a:?} {decoded:?}");
            for (b, key_b) in rows.iter().zip(&keys) {
                assert_eq!(key_a.cmp(key_b), row_order(&columns, a, b), "{columns:?} {a:?} {b:?}");
            }
        }
    }
}

#[test]
fn ranges_contain_what_the_bounds_do() {
    let mut random = SplitMix64::new(4);
    for _ in 0..5_000 {
        let columns = random_types(&mut random);
        let layout = RowLayout { levels: vec![(TableId(1), columns.clone())] };
        let at = random.below(columns.len() as u64) as usize;
        let row = random_row(&columns, &mut random);
        let fixed: Vec<Value> = row[..at].to_vec();
        let prefix = layout.key(&fixed).expect("a key");
        let bound = |random: &mut SplitMix64| (random.below(3), random_value(&columns[at].sql_type, random));
        let ends = [bound(&mut random), bound(&mut random)];
        let as_bound = |end: &'_ (u64, Value)| match end.0 {
            0 => Bound::Unbounded,
            1 => Bound::Included(end.1.clone()),
            _ => Bound::Excluded(end.1.clone()),
        };
        let (low, high) = (as_bound(&ends[0]), as_bound(&ends[1]));
        let range = bounded_range(&prefix, columns[at].direction, (low.as_ref(), high.as_ref())).expect("a range");
        for _ in 0..6 {
            let mut other = random_row(&columns, &mut random);
            if random.chance(800_000) {
                other[..at].clone_from_slice(&fixed);
            }
            if random.chance(200_000) {
                other[at] = ends[random.below(2) as usize].1.clone();
            }
            let has_prefix = other[..at].iter().zip(&fixed).all(|(a, b)| a.sort_order(b).is_eq());
            let is_unbounded = matches!((&low, &high), (Bound::Unbounded, Bound::Unbounded));
            let is_above = match &low {
                Bound::Unbounded => true,
                Bound::Included(low) => other[at].sort_order(low).is_ge(),
                Bound::Excluded(low) => other[at].sort_order(low).is_gt(),
            };
            let is_below = match &high {
                Bound::Unbounded => true,
                Bound::Included(high) => other[at].sort_order(high).is_le(),
                Bound::Excluded(high) => other[at].sort_order(high).is_lt(),
            };
            let expected = has_prefix && is_above && is_below && (is_unbounded || !other[at].is_null());
            let key = layout.key(&other).expect("a key");
            assert_eq!(range.contains(&key), expected, "{columns:?} {low:?} {high:?} {fixed:?} {other:?}");
            let child = [&key[..], &[0x21, 9, 0x20]].concat();
            assert_eq!(range.contains(&child), expected, "the descendants are with their row");
            assert_eq!(prefix_range(&prefix).contains(&key), has_prefix);
        }
    }
}

#[test]
fn random_keys_do_not_panic() {
    let mut random = SplitMix64::new(5);
    for _ in 0..50_000 {
        let columns = random_types(&mut random);
        let layout = RowLayout { levels: vec![(TableId(1), columns.clone())] };
        let mut key = layout.key(&random_row(&columns, &mut random)).expect("a key");
        for _ in 0..random.below(4) {
            let at = random.below(key.len() as u64) as usize;
            match random.below(3) {
                0 => key[at] = random.draw() as u8,
                1 => key.truncate(at + 1),
                _ => key.insert(at, random.draw() as u8),
            }
        }
        if let Ok(Some(values)) = layout.decode(&key) {
            let again = layout.key(&values).expect("a key");
            assert_eq!(layout.decode(&again).map(|row| row.is_some()), Ok(true));
        }
        let mut reader = KeyReader::new(&key);
        while reader.skip().is_ok() {}
    }
}

#[test]
fn cells_keep_values() {
    let mut random = SplitMix64::new(6);
    let golden = [
        (Value::Int4(0), SqlType::Int4, ""),
        (Value::Int4(127), SqlType::Int4, "7f"),
        (Value::Int4(128), SqlType::Int8, "8000"),
        (Value::Int4(-1), SqlType::Int4, "ff"),
        (Value::Int8(-129), SqlType::Int8, "7fff"),
        (Value::Bool(true), SqlType::Bool, "01"),
        (Value::Numeric("-1.50".parse().expect("a number")), SqlType::Numeric(None), "02006aff"),
        (text("é"), SqlType::Text, "c3a9"),
    ];
    for (value, what, expected) in golden {
        let cell = cells::encode(&value).expect("a column type").expect("not NULL");
        assert_eq!(hex(&cell), expected, "{value:?}");
        assert_eq!(cells::decode(&cell, &what).expect("a value").to_text(), value.to_text());
    }
    for round in 0..20_000 {
        let what = &SqlType::SCALARS[round % SqlType::SCALARS.len()];
        let value = random_value(what, &mut random);
        let Ok(cell) = cells::encode(&value) else {
            assert_eq!(*what, SqlType::Interval);
            continue;
        };
        let decoded = cells::decode(&cell.expect("not NULL"), what).expect("a value");
        assert!(is_same(&value, &decoded), "{value:?} {decoded:?}");
        let garbage: Vec<u8> = (0..random.below(12)).map(|_| random.draw() as u8).collect();
        let _ = cells::decode(&garbage.into(), what);
    }
    assert_eq!(cells::encode(&Value::Null), Ok(None));
    assert_eq!(cells::column(&cells::name(ColumnId(120))), Some(ColumnId(120)));
    assert_eq!(cells::column(b"0"), Some(cells::MARKER));
    for name in [&b""[..], b"01", b"-1", b"+1", b"4294967296", b"x"] {
        assert_eq!(cells::column(name), None);
    }
}
