//! `to_char`, `to_date` and `to_timestamp`: PostgreSQL's format templates, with English names.

mod numbers;
mod read;
mod times;

use sql::{SqlError, Value, sqlstate};

pub(crate) use read::{to_date, to_timestamp};
pub(crate) use times::{iso_week, week_day};

/// Part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    /// A pattern, with its modifiers.
    Pattern(Pattern),
    /// A character that is copied. In input, one of a quoted text.
    Char(char),
    /// A space or punctuation, which matches any other one in input.
    Separator(char),
}

/// A pattern such as `YYYY`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    name: &'static str,
    /// `FM`: without padding.
    is_bare: bool,
    /// `TH` or `th`: an ordinal number.
    ordinal: Option<bool>,
}

/// The patterns, modifiers before them, and modifiers after them of a kind of templates.
struct Grammar {
    patterns: &'static [&'static str],
    has_modifiers: bool,
}

/// Splits a template. Of several patterns that match, the longest one counts.
fn parse(template: &str, grammar: &Grammar) -> Vec<Node> {
    let mut nodes = Vec::new();
    let mut rest = template;
    while let Some(first) = rest.chars().next() {
        if first == '"' {
            rest = quoted(rest.get(1..).unwrap_or_default(), &mut nodes);
            continue;
        }
        let mut after = rest;
        let mut is_bare = false;
        while grammar.has_modifiers
            && let Some(modifier) = ["FM", "fm", "TM", "tm"].into_iter().find(|modifier| after.starts_with(modifier))
        {
            is_bare = true;
            after = after.get(modifier.len()..).unwrap_or_default();
        }
        let matching = grammar.patterns.iter().filter(|name| after.starts_with(**name));
        if let Some(name) = matching.max_by_key(|name| name.len()) {
            rest = after.get(name.len()..).unwrap_or_default();
            let mut ordinal = None;
            if grammar.has_modifiers {
                if rest.starts_with("TH") || rest.starts_with("th") {
                    ordinal = Some(rest.starts_with("TH"));
                    rest = rest.get(2..).unwrap_or_default();
                }
                rest = rest.strip_prefix("SP").unwrap_or(rest);
            }
            nodes.push(Node::Pattern(Pattern { name, is_bare, ordinal }));
            continue;
        }
        if is_bare {
            rest = after;
            continue;
        }
        let mut chars = rest.chars();
        chars.next();
        rest = chars.as_str();
        // A backslash is only special before a quote.
        let shown = match rest.strip_prefix('"') {
            Some(after) if first == '\\' => {
                rest = after;
                '"'
            }
            _ => first,
        };
        let is_separator = shown == ' ' || shown.is_ascii_punctuation();
        nodes.push(if is_separator { Node::Separator(shown) } else { Node::Char(shown) });
    }
    nodes
}

/// The characters up to the closing quote; returns the rest of the template.
fn quoted<'a>(text: &'a str, nodes: &mut Vec<Node>) -> &'a str {
    let mut chars = text.chars();
    while let Some(next) = chars.next() {
        match next {
            '"' => break,
            '\\' => nodes.push(Node::Char(chars.next().unwrap_or('\\'))),
            other => nodes.push(Node::Char(other)),
        }
    }
    chars.as_str()
}

/// `st`, `nd`, `rd` or `th` for the digits of a number.
fn ordinal(digits: &str, is_upper: bool) -> &'static str {
    let bytes = digits.as_bytes();
    let is_teen = bytes.len() > 1 && bytes.get(bytes.len() - 2) == Some(&b'1');
    match (bytes.last(), is_teen, is_upper) {
        (Some(b'1'), false, true) => "ST",
        (Some(b'2'), false, true) => "ND",
        (Some(b'3'), false, true) => "RD",
        (_, _, true) => "TH",
        (Some(b'1'), false, false) => "st",
        (Some(b'2'), false, false) => "nd",
        (Some(b'3'), false, false) => "rd",
        _ => "th",
    }
}

/// `to_char(value, template)`
pub(crate) fn to_char(of: &[Value]) -> Result<Value, SqlError> {
    let [value, template] = of else { return Ok(Value::Null) };
    if value.is_null() {
        return Ok(Value::Null);
    }
    let Value::Text(template) = template else { return Ok(Value::Null) };
    Ok(match value {
        Value::Text(_) | Value::Bool(_) | Value::Bytea(_) | Value::Uuid(_) | Value::Jsonb(_) | Value::Array(_) => {
            let of = value.sql_type().map_or_else(String::new, |of| of.to_string());
            return Err(SqlError::new(
                sqlstate::UNDEFINED_FUNCTION,
                format!("function to_char({of}, text) does not exist"),
            ));
        }
        Value::Timestamp(_) | Value::Timestamptz(_) | Value::Date(_) | Value::Interval(_) => {
            times::to_char(value, template)?.map_or(Value::Null, Value::Text)
        }
        number => Value::Text(numbers::to_char(number, template)?),
    })
}
