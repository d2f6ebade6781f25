use postgres::copy::{CopyColumn, Format, Parser, unescape};
use sql::{SqlType, Value};

fn columns(types: &[SqlType]) -> Vec<CopyColumn> {
    types.iter().map(|of| CopyColumn { name: "c".to_owned(), sql_type: of.clone() }).collect()
}

fn option(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

#[test]
fn rows_survive_both_formats_in_any_pieces() {
    let types = [SqlType::Int4, SqlType::Text, SqlType::Text];
    let rows = [
        vec![Value::Int4(1), text("a\tb\\c\nd\re,\"f\" \u{e4}"), Value::Null],
        vec![Value::Int4(-2), text(""), text("\\N")],
        vec![Value::Null, text("\\."), text("x")],
    ];
    for options in [vec![], vec![option("format", "csv")], vec![option("format", "csv"), option("escape", "\\")]] {
        let format = Format::of(&options).expect("options");
        let data: Vec<u8> = rows.iter().flat_map(|row| format.row(row).to_vec()).collect();
        for size in 1..data.len() {
            let mut parser = Parser::new(format.clone(), "t", columns(&types));
            let mut found = Vec::new();
            for piece in data.chunks(size) {
                found.extend(parser.push(piece).expect("valid"));
            }
            found.extend(parser.finish().expect("valid"));
            assert_eq!(found, rows, "{options:?} in pieces of {size}");
        }
    }
}

#[test]
fn header_and_end_are_no_rows() {
    let format = Format::of(&[option("format", "csv"), option("header", "")]).expect("options");
    let mut parser = Parser::new(format, "t", columns(&[SqlType::Int4]));
    let rows = parser.push(b"id\r\n7\r\n\\.\nignored\n").expect("valid");
    assert_eq!(rows, [vec![Value::Int4(7)]]);
    assert_eq!(unescape(br"\101\x41\q\\"), b"AAq\\");
}

#[test]
fn last_row_may_end_with_a_backslash() {
    let mut parser = Parser::new(Format::of(&[]).expect("options"), "t", columns(&[SqlType::Text]));
    let mut rows = parser.push(b"x\ny\\").expect("valid");
    rows.extend(parser.finish().expect("valid"));
    assert_eq!(rows.len(), 2);
}

#[test]
fn bad_rows_are_located() {
    let parse = |types: &[SqlType], data: &[u8]| {
        let mut parser = Parser::new(Format::of(&[]).expect("options"), "t", columns(types));
        parser.push(data).expect_err("not valid")
    };
    let two = [SqlType::Int4, SqlType::Int4];
    let error = parse(&two, b"1\t2\n3\n");
    assert_eq!((error.sqlstate, error.context.as_deref()), ("22P04", Some("COPY t, line 2")));
    let error = parse(&two, b"1\tx\n");
    assert_eq!(error.context.as_deref(), Some("COPY t, line 1, column c: \"x\""));
    assert_eq!(parse(&two, b"1\t2\t3\n").message, "extra data after last expected column");
    assert_eq!(parse(&two, b"1\tx\n").sqlstate, "22P02");
    assert_eq!(parse(&[SqlType::Text], b"\xff\n").sqlstate, "22021");
    assert_eq!(parse(&[SqlType::Varchar(Some(2))], b"abc\n").sqlstate, "22001");
}
