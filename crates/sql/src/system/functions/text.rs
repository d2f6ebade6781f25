//! Functions about text, encodings, settings and the session.

use super::{Call, Outcome};
use crate::error::{SqlError, sqlstate};
use crate::system::{deparse, names, server};
use crate::types::SqlType;
use crate::value::{Array, Value};

fn text(text: impl Into<String>) -> Outcome {
    Some(Ok(Value::Text(text.into())))
}

fn texts(items: Vec<String>) -> Value {
    Value::Array(Array::new(SqlType::Text, items.into_iter().map(Value::Text).collect()))
}

pub(super) fn call(call: &Call<'_>) -> Outcome {
    let context = call.context;
    match call.function.name {
        "quote_ident" => text(deparse::quote_identifier(&call.text(0))),
        "quote_nullable" if call.argument(0).is_null() => text("NULL"),
        "quote_literal" | "quote_nullable" => text(deparse::quote_literal(&call.text(0))),
        "parse_ident" => Some(parse_ident(&call.text(0))),
        "pg_encoding_to_char" => text(if call.number(0) == Some(i64::from(server::ENCODING)) { "UTF8" } else { "" }),
        "pg_char_to_encoding" => {
            let folded = call.text(0).to_lowercase().replace(['-', '_'], "");
            let is_known = matches!(folded.as_str(), "utf8" | "unicode");
            Some(Ok(Value::Int4(if is_known { server::ENCODING } else { -1 })))
        }
        "getdatabaseencoding" | "pg_client_encoding" => text("UTF8"),
        "pg_tablespace_location" => text(""),
        "pg_size_pretty" => text(size_pretty(call)),
        "current_setting" => Some(current_setting(call)),
        "current_schemas" => Some(Ok(texts(names::search_path(context, call.is_true(0))))),
        "current_schema" => {
            let first = names::search_path(context, false).into_iter().next();
            Some(Ok(first.map_or(Value::Null, Value::Text)))
        }
        "current_database" | "current_catalog" => text(&context.database),
        "current_user" | "current_role" | "session_user" | "user" => text(&context.user),
        "version" => text(format!("PostgreSQL {} (Loggos)", context.server_version)),
        _ => None,
    }
}

fn parse_ident(given: &str) -> Result<Value, SqlError> {
    let invalid = |_| {
        let message = format!("string is not a valid identifier: \"{given}\"");
        SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message)
    };
    names::parts(given).map(texts).map_err(invalid)
}

fn current_setting(call: &Call<'_>) -> Result<Value, SqlError> {
    let name = call.text(0);
    match call.context.setting(&name) {
        Some(value) => Ok(Value::Text(value.to_owned())),
        None if call.is_true(1) => Ok(Value::Null),
        None => {
            let message = format!("unrecognized configuration parameter \"{name}\"");
            Err(SqlError::new(sqlstate::UNDEFINED_OBJECT, message))
        }
    }
}

/// A number of bytes in the unit in which it has at most five digits, rounded.
fn size_pretty(call: &Call<'_>) -> String {
    const UNITS: [&str; 6] = ["bytes", "kB", "MB", "GB", "TB", "PB"];
    let mut size = match call.argument(0) {
        Value::Numeric(number) => number.to_i64().map_or(i128::from(i64::MAX), i128::from),
        _ => i128::from(call.number(0).unwrap_or(0)),
    };
    // From kilobytes on, `size` is in halves of the unit.
    let is_small = |at: usize, size: i128| size.abs() < if at == 0 { 10 * 1024 } else { 20 * 1024 - 1 };
    let mut at = 0;
    while at + 1 < UNITS.len() && !is_small(at, size) {
        size /= if at == 0 { 512 } else { 1024 };
        at += 1;
    }
    let rounded = if at == 0 { size } else { (size + size.signum()) / 2 };
    format!("{rounded} {}", UNITS.get(at).unwrap_or(&""))
}
