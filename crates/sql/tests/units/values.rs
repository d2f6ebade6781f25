use base::SplitMix64;
use bytes::Bytes;

use sql::cast::{Context, cast};
use sql::{Array, Interval, Numeric, SqlError, SqlType, Value};

fn round(what: &SqlType, text: &str) -> String {
    what.parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).to_text().expect("not NULL")
}

fn state(result: Result<Value, SqlError>) -> &'static str {
    result.expect_err("an error").sqlstate
}

fn array(element: SqlType) -> SqlType {
    SqlType::Array(Box::new(element))
}

#[test]
fn text_format_matches_postgresql() {
    let cases: &[(SqlType, &str, &str)] = &[
        (SqlType::Bool, " TRUE ", "t"),
        (SqlType::Bool, "n", "f"),
        (SqlType::Int2, "-32768", "-32768"),
        (SqlType::Int4, " +7 ", "7"),
        (SqlType::Int8, "9223372036854775807", "9223372036854775807"),
        (SqlType::Float4, "0.1", "0.1"),
        (SqlType::Float4, "123456", "123456"),
        (SqlType::Float4, "1234567", "1.234567e+06"),
        // A tie between the shortest digits, and digits that lie exactly between two numbers.
        (SqlType::Float4, "-3472831.25", "-3.4728312e+06"),
        (SqlType::Float4, "77578816", "7.7578816e+07"),
        (SqlType::Float4, "9000000000", "8.999999e+09"),
        (SqlType::Float4, "139284576", "1.3928458e+08"),
        (SqlType::Float8, "1e15", "1e+15"),
        (SqlType::Float8, "123456789012345", "123456789012345"),
        (SqlType::Float8, "0.0001", "0.0001"),
        (SqlType::Float8, "0.00001", "1e-05"),
        (SqlType::Float8, "-1.5e-300", "-1.5e-300"),
        (SqlType::Float8, "-0", "-0"),
        (SqlType::Float8, "nan", "NaN"),
        (SqlType::Float8, "-inf", "-Infinity"),
        (SqlType::Float8, "100", "100"),
        (SqlType::Float8, "1234.5", "1234.5"),
        (SqlType::Numeric(None), "1.50", "1.50"),
        (SqlType::Numeric(None), "1e3", "1000"),
        (SqlType::Numeric(None), "-.5e-3", "-0.0005"),
        (SqlType::Numeric(None), "0.00", "0.00"),
        (SqlType::Numeric(Some((5, 2))), "123.455", "123.46"),
        (SqlType::Numeric(Some((5, 2))), "-0.005", "-0.01"),
        (SqlType::Numeric(Some((5, 2))), "7", "7.00"),
        (SqlType::Varchar(Some(3)), "abc   ", "abc"),
        (SqlType::Char(4), "é", "é   "),
        (SqlType::Bytea, "\\x00FF", "\\x00ff"),
        (SqlType::Bytea, "a\\\\b\\001", "\\x615c6201"),
        (SqlType::Date, "2024-02-29", "2024-02-29"),
        (SqlType::Date, "20240229", "2024-02-29"),
        (SqlType::Date, "2/29/2024", "2024-02-29"),
        (SqlType::Date, "0001-01-01", "0001-01-01"),
        (SqlType::Date, "0044-03-15 BC", "0044-03-15 BC"),
        (SqlType::Date, "4714-11-24 BC", "4714-11-24 BC"),
        (SqlType::Date, "5874897-12-31", "5874897-12-31"),
        (SqlType::Date, "infinity", "infinity"),
        (SqlType::Timestamp, "2024-02-29 12:34:56.789", "2024-02-29 12:34:56.789"),
        (SqlType::Timestamp, "2024-02-29", "2024-02-29 00:00:00"),
        (SqlType::Timestamp, "1999-12-31 23:59:59.9999995", "2000-01-01 00:00:00"),
        (SqlType::Timestamp, "294276-12-31 23:59:59.999999", "294276-12-31 23:59:59.999999"),
        (SqlType::Timestamp, "4714-11-24 00:00:00 BC", "4714-11-24 00:00:00 BC"),
        (SqlType::Timestamptz, "2024-02-29T12:34:56.789+02", "2024-02-29 10:34:56.789+00"),
        (SqlType::Timestamptz, "2024-02-29 12:34:56 -0330", "2024-02-29 16:04:56+00"),
        (SqlType::Timestamptz, "2024-02-29 12:34:56Z", "2024-02-29 12:34:56+00"),
        (SqlType::Timestamptz, "-infinity", "-infinity"),
        (SqlType::Timestamptz, "epoch", "1970-01-01 00:00:00+00"),
        (SqlType::Interval, "1 year 2 mons 3 days 04:05:06.789", "1 year 2 mons 3 days 04:05:06.789"),
        (SqlType::Interval, "-1 day 2 hours", "-1 days +02:00:00"),
        (SqlType::Interval, "1.5 months", "1 mon 15 days"),
        (SqlType::Interval, "P1Y2M3DT4H5M6.5S", "1 year 2 mons 3 days 04:05:06.5"),
        (SqlType::Interval, "2 hours ago", "-02:00:00"),
        (SqlType::Interval, "0", "00:00:00"),
        (SqlType::Uuid, "{A0EEBC999C0B4EF8BB6D6BB9BD380A11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        (SqlType::Jsonb, r#"{"bb":1,"a":[1.0,2e2,"\u00e9\n"],"a":null}"#, r#"{"a": null, "bb": 1}"#),
        (SqlType::Jsonb, r#" [ 1.0 , 2e2, {}, [], true ] "#, "[1.0, 200, {}, [], true]"),
        (array(SqlType::Int4), "{1, NULL ,3}", "{1,NULL,3}"),
        (array(SqlType::Int4), "{{1,2},{3,4}}", "{{1,2},{3,4}}"),
        (array(SqlType::Text), r#"{a b,"c,d","",NULL,"null","q\"\\"}"#, r#"{"a b","c,d","",NULL,"null","q\"\\"}"#),
        (array(SqlType::Int4), "{}", "{}"),
    ];
    for (what, text, expected) in cases {
        assert_eq!(round(what, text), *expected, "{what} {text}");
        assert_eq!(round(what, expected), *expected, "{what} {text}, printed and read again");
    }
}

#[test]
fn invalid_text_has_postgresqls_sqlstate() {
    let cases: &[(SqlType, &str, &str)] = &[
        (SqlType::Bool, "maybe", "22P02"),
        (SqlType::Bool, "", "22P02"),
        (SqlType::Int2, "32768", "22003"),
        (SqlType::Int4, "99999999999999999999999", "22003"),
        (SqlType::Int4, "1.5", "22P02"),
        (SqlType::Int8, "", "22P02"),
        (SqlType::Float8, "1e400", "22003"),
        (SqlType::Float4, "1e-60", "22003"),
        (SqlType::Float8, "1x", "22P02"),
        (SqlType::Numeric(None), "1.2.3", "22P02"),
        (SqlType::Numeric(None), "1e999999999", "22003"),
        (SqlType::Numeric(None), "NaN", "0A000"),
        (SqlType::Numeric(Some((3, 1))), "99.95", "22003"),
        (SqlType::Varchar(Some(3)), "abcd", "22001"),
        (SqlType::Text, "a\0b", "22021"),
        (SqlType::Bytea, "\\x0", "22023"),
        (SqlType::Bytea, "\\x0g", "22023"),
        (SqlType::Bytea, "\\9", "22P02"),
        (SqlType::Date, "2023-02-29", "22008"),
        (SqlType::Date, "0000-01-01", "22008"),
        (SqlType::Date, "hello", "22007"),
        (SqlType::Date, "5874898-01-01", "22008"),
        (SqlType::Timestamp, "2024-01-01 25:00", "22008"),
        (SqlType::Timestamp, "294277-01-01", "22008"),
        (SqlType::Timestamptz, "2024-01-01 10:00 Nowhere/Land", "22023"),
        (SqlType::Timestamptz, "2024-01-01 10:00+99", "22009"),
        (SqlType::Interval, "3 fortnights", "22007"),
        (SqlType::Interval, "", "22007"),
        (SqlType::Uuid, "a0eebc99", "22P02"),
        (SqlType::Jsonb, "{\"a\":}", "22P02"),
        (SqlType::Jsonb, "01", "22P02"),
        (SqlType::Jsonb, "", "22P02"),
        (array(SqlType::Int4), "{1,{2}}", "22P02"),
        (array(SqlType::Int4), "{{1},{2,3}}", "22P02"),
        (array(SqlType::Int4), "{1,,2}", "22P02"),
        (array(SqlType::Int4), "{1", "22P02"),
    ];
    for (what, text, expected) in cases {
        assert_eq!(state(what.parse(text)), *expected, "{what} {text}");
    }
    let nested = "[".repeat(100_000);
    assert_eq!(state(SqlType::Jsonb.parse(&nested)), "54001");
    let nested = "{".repeat(100_000);
    assert_eq!(state(array(SqlType::Int4).parse(&nested)), "54000");
}

#[test]
fn binary_format_matches_postgresql() {
    let numeric = |text: &str| Value::Numeric(text.parse().expect("a number"));
    let cases: &[(SqlType, Value, &[u8])] = &[
        (SqlType::Bool, Value::Bool(true), &[1]),
        (SqlType::Int2, Value::Int2(-2), &[0xff, 0xfe]),
        (SqlType::Int4, Value::Int4(258), &[0, 0, 1, 2]),
        (SqlType::Float8, Value::Float8(1.0), &[0x3f, 0xf0, 0, 0, 0, 0, 0, 0]),
        (SqlType::Numeric(None), numeric("12345.67"), &[0, 3, 0, 1, 0, 0, 0, 2, 0, 1, 0x09, 0x29, 0x1a, 0x2c]),
        (SqlType::Numeric(None), numeric("-0.0001"), &[0, 1, 0xff, 0xff, 0x40, 0, 0, 4, 0, 1]),
        (SqlType::Numeric(None), numeric("0.00"), &[0, 0, 0, 0, 0, 0, 0, 2]),
        (SqlType::Numeric(None), numeric("100000000"), &[0, 1, 0, 2, 0, 0, 0, 0, 0, 1]),
        (SqlType::Date, Value::Date(1), &[0, 0, 0, 1]),
        (SqlType::Timestamptz, Value::Timestamptz(1), &[0, 0, 0, 0, 0, 0, 0, 1]),
        (
            SqlType::Interval,
            Value::Interval(Interval { months: 1, days: 2, micros: 3 }),
            &[0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1],
        ),
        (SqlType::Jsonb, Value::Jsonb("[1, 2]".to_owned()), b"\x01[1, 2]"),
        (
            array(SqlType::Int4),
            Value::Array(Array::new(SqlType::Int4, vec![Value::Int4(5), Value::Null])),
            &[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 23, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 5, 255, 255, 255, 255],
        ),
    ];
    for (what, value, bytes) in cases {
        assert_eq!(value.to_binary().expect("not NULL")[..], **bytes, "{value:?}");
        assert_eq!(what.from_binary(Bytes::copy_from_slice(bytes)), Ok(value.clone()), "{value:?}");
    }
}

/// A random value of a type, often an extreme one.
pub(crate) fn random_value(what: &SqlType, random: &mut SplitMix64) -> Value {
    let bits = random.draw() >> random.below(64);
    let number = if random.chance(500_000) { bits as i64 } else { (bits as i64).wrapping_neg() };
    let text = |random: &mut SplitMix64, length: u64| -> String {
        (0..random.below(length))
            .map(|_| ['\u{1}', 'a', 'b', ' ', 'é', '\u{10ffff}'][random.below(6) as usize])
            .collect()
    };
    match what {
        SqlType::Bool => Value::Bool(bits.is_multiple_of(2)),
        SqlType::Int2 => Value::Int2(number as i16),
        SqlType::Int4 => Value::Int4(number as i32),
        SqlType::Int8 => Value::Int8(number),
        SqlType::Float4 => Value::Float4(f32::from_bits(random.draw() as u32)),
        SqlType::Float8 if random.chance(300_000) => {
            Value::Float8([0.0, -0.0, 1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE][random.below(6) as usize])
        }
        SqlType::Float8 => Value::Float8(f64::from_bits(random.draw())),
        SqlType::Numeric(_) => {
            let number = Numeric::new(number.into(), random.below(30) as i64 - 5);
            let number = number.expect("few digits");
            Value::Numeric(if random.chance(100_000) { number.multiply(&number).expect("few digits") } else { number })
        }
        SqlType::Text | SqlType::Varchar(None) => Value::Text(text(random, 6)),
        SqlType::Varchar(Some(length)) => Value::Text(text(random, u64::from(*length) + 1)),
        SqlType::Char(length) => {
            let text = text(random, u64::from(*length) + 1);
            cast(Value::Text(text), what, Context::Explicit).expect("it fits")
        }
        SqlType::Bytea => {
            let byte = |random: &mut SplitMix64| [0, 1, 0x7f, 0xfe, 0xff][random.below(5) as usize];
            Value::Bytea((0..random.below(6)).map(|_| byte(random)).collect::<Vec<u8>>().into())
        }
        SqlType::Date => Value::Date((number as i32).clamp(-2_451_545, 2_145_031_948)),
        SqlType::Timestamp => Value::Timestamp(number.clamp(-211_813_488_000_000_000, 9_223_371_331_199_999_999)),
        SqlType::Timestamptz => Value::Timestamptz(number.clamp(-211_813_488_000_000_000, 9_223_371_331_199_999_999)),
        SqlType::Interval => Value::Interval(Interval {
            months: number as i16 as i32,
            days: (number >> 16) as i16 as i32,
            micros: number >> 8,
        }),
        SqlType::Uuid => Value::Uuid((u128::from(random.draw()) << (64 + random.below(64))).to_be_bytes()),
        SqlType::Jsonb => Value::Jsonb(format!("{{\"a\": [{number}, null]}}")),
        SqlType::Array(element) => {
            let items = (0..random.below(4))
                .map(|_| if random.chance(200_000) { Value::Null } else { random_value(element, random) });
            Value::Array(Array::new((**element).clone(), items.collect()))
        }
    }
}

/// Equal, with NaN equal to itself.
pub(crate) fn is_same(a: &Value, b: &Value) -> bool {
    a == b || a.to_text() == b.to_text()
}

#[test]
fn random_values_survive_both_formats() {
    let mut random = SplitMix64::new(1);
    let scalars = SqlType::SCALARS.into_iter();
    let types: Vec<SqlType> = scalars.clone().chain(scalars.map(array)).collect();
    for round in 0..20_000 {
        let what = &types[round % types.len()];
        let value = random_value(what, &mut random);
        let text = value.to_text().expect("not NULL");
        let read = what.parse(&text).unwrap_or_else(|error| panic!("{what} {text}: {error}"));
        assert!(is_same(&read, &value), "{what} {text}: {value:?}, {read:?}");
        assert_eq!(read.to_text(), Some(text), "{what}");
        let bytes = value.to_binary().expect("not NULL");
        let read = what.from_binary(bytes).unwrap_or_else(|error| panic!("{what} {value:?}: {error}"));
        assert!(is_same(&read, &value), "{what} {value:?}, {read:?}");
    }
}

#[test]
fn random_bytes_do_not_panic() {
    let mut random = SplitMix64::new(2);
    for round in 0..50_000 {
        let scalar = SqlType::SCALARS[round % SqlType::SCALARS.len()].clone();
        let what = if random.chance(300_000) { array(scalar) } else { scalar };
        let length = random.below(40);
        let bytes: Vec<u8> = (0..length)
            .map(|_| if random.chance(700_000) { random.below(4) as u8 } else { random.draw() as u8 })
            .collect();
        let _ = what.from_binary(bytes.into());
        let pieces =
            ["1", "-", ":", ".", " ", "e", "{", "}", "\"", "\\", "T", "9999", "24", "é", "BC", "P", "days", "+", ","];
        let text: String = (0..random.below(10)).map(|_| pieces[random.below(pieces.len() as u64) as usize]).collect();
        let _ = what.parse(&text);
    }
}

#[test]
fn casts_round_and_check_ranges() {
    let numeric = |text: &str| Value::Numeric(text.parse().expect("a number"));
    let cast = |value: Value, to: SqlType| cast(value, &to, Context::Assignment);
    assert_eq!(state(cast(Value::Int8(1 << 40), SqlType::Int4)), "22003");
    assert_eq!(cast(Value::Float8(2.5), SqlType::Int4), Ok(Value::Int4(2)));
    assert_eq!(cast(numeric("2.5"), SqlType::Int4), Ok(Value::Int4(3)));
    assert_eq!(cast(numeric("-2.5"), SqlType::Int2), Ok(Value::Int2(-3)));
    assert_eq!(state(cast(Value::Float8(f64::NAN), SqlType::Int8)), "22003");
    assert_eq!(state(cast(Value::Float8(9.3e18), SqlType::Int8)), "22003");
    assert_eq!(cast(Value::Float8(0.1), SqlType::Numeric(None)), Ok(numeric("0.1")));
    assert_eq!(cast(Value::Float4(0.1), SqlType::Numeric(None)), Ok(numeric("0.1")));
    assert_eq!(state(cast(Value::Float8(1e300), SqlType::Float4)), "22003");
    assert_eq!(state(cast(Value::Text("abcd".into()), SqlType::Varchar(Some(3)))), "22001");
    assert_eq!(cast(Value::Bool(true), SqlType::Text), Ok(Value::Text("true".into())));
    assert_eq!(cast(Value::Timestamp(-1), SqlType::Date), Ok(Value::Date(-1)));
    assert_eq!(
        cast(Value::Int4(1), SqlType::Numeric(Some((3, 1)))).map(|value| value.to_text()),
        Ok(Some("1.0".into()))
    );
    assert_eq!(state(cast(Value::Int4(100), SqlType::Numeric(Some((3, 1))))), "22003");
    let explicit = sql::cast::cast(Value::Text("abcd".into()), &SqlType::Varchar(Some(3)), Context::Explicit);
    assert_eq!(explicit, Ok(Value::Text("abc".into())));
}

#[test]
fn oids_are_unique() {
    for scalar in SqlType::SCALARS {
        for what in [scalar.clone(), array(scalar)] {
            assert!(SqlType::from_oid(what.oid()).is_some_and(|found| found.is_same_base(&what)), "{what}");
        }
    }
    assert_eq!(SqlType::from_oid(1), None);
}

/// A number with an exponent is printed with all its digits.
#[test]
fn long_jsonb_is_refused() {
    let list = |count: usize| format!("[{}0]", "1e999,".repeat(count));
    let object = |count: usize| {
        let members: String = (0..count).map(|number| format!("\"{number}\": [1e999], ")).collect();
        format!("{{{members}\"a\": {{}}}}")
    };
    let nested = |count: usize| format!("[{}, {}]", list(count / 2), object(count / 2));
    for make in [&list as &dyn Fn(usize) -> String, &object, &nested] {
        assert!(SqlType::Jsonb.parse(&make(8_000)).is_ok());
        assert_eq!(state(SqlType::Jsonb.parse(&make(9_000))), "54000");
        assert_eq!(state(SqlType::Jsonb.parse(&make(200_000))), "54000");
    }
    let same = format!("{{{}\"a\": 1}}", "\"a\": 1e999, ".repeat(9_000));
    assert_eq!(round(&SqlType::Jsonb, &same), "{\"a\": 1}", "what is replaced does not count");
    let limit = base::limits::VALUE_BYTES_MAX;
    let longest = format!("[\"{}\"]", "x".repeat(limit - 4));
    assert_eq!(round(&SqlType::Jsonb, &longest), longest);
    let longer = format!("[\"{}\"]", "x".repeat(limit - 3));
    assert_eq!(state(SqlType::Jsonb.parse(&longer)), "54000");
}

#[test]
fn intervals_are_multiplied_and_divided() {
    use sql::operators::{Arithmetic, apply};
    let scaled = |text: &str, operator, factor| {
        let interval = SqlType::Interval.parse(text).expect("an interval");
        apply(operator, &interval, &Value::Float8(factor)).map(|value| value.to_text().expect("not NULL"))
    };
    // The results are those of PostgreSQL 15.
    let cases = [
        ("1 month", Arithmetic::Multiply, 1.7, "1 mon 21 days"),
        ("1 year 5 days", Arithmetic::Divide, 7.0, "1 mon 22 days 03:25:42.820114"),
        ("40 days 50:00:00", Arithmetic::Multiply, 0.5, "20 days 25:00:00"),
        ("-27:00:00", Arithmetic::Multiply, 1.5, "-40:30:00"),
    ];
    for (text, operator, factor, wanted) in cases {
        assert_eq!(scaled(text, operator, factor).as_deref(), Ok(wanted), "{text} {factor}");
    }
    assert_eq!(scaled("1 day", Arithmetic::Divide, 0.0).unwrap_err().sqlstate, "22012");
    for factor in [1e9, f64::NAN, f64::INFINITY, -1e300] {
        assert_eq!(scaled("1 year", Arithmetic::Multiply, factor).unwrap_err().sqlstate, "22008");
        assert_eq!(scaled("1 second", Arithmetic::Multiply, factor * 1e9).unwrap_err().sqlstate, "22008");
    }
}
