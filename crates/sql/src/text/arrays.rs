//! The text format of arrays: `{1,NULL,"a b"}`.

use crate::error::{SqlError, sqlstate};
use crate::types::SqlType;
use crate::value::{Array, Value};

/// Maximum dimensions, as in PostgreSQL.
pub(crate) const DIMENSIONS_MAX: usize = 6;

fn malformed(text: &str) -> SqlError {
    let message = format!("malformed array literal: \"{text}\"");
    SqlError::new(sqlstate::INVALID_TEXT_REPRESENTATION, message)
}

pub(super) fn parse(element: &SqlType, text: &str) -> Result<Array, SqlError> {
    let trimmed = super::trim(text);
    if trimmed.starts_with('[') {
        return Err(SqlError::unsupported("an array with explicit bounds"));
    }
    let mut parser = Parser { whole: text, rest: trimmed, element, items: Vec::new(), dimensions: Vec::new() };
    parser.list(0)?;
    if !parser.rest.is_empty() {
        return Err(malformed(text));
    }
    if parser.items.is_empty() {
        parser.dimensions.clear();
    }
    Ok(Array { element: element.clone(), dimensions: parser.dimensions, items: parser.items })
}

struct Parser<'a> {
    whole: &'a str,
    rest: &'a str,
    element: &'a SqlType,
    items: Vec<Value>,
    /// The lengths, known after the first list of each depth.
    dimensions: Vec<u32>,
}

impl Parser<'_> {
    fn malformed(&self) -> SqlError {
        malformed(self.whole)
    }

    fn take(&mut self, wanted: char) -> bool {
        self.rest = self.rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn list(&mut self, depth: usize) -> Result<(), SqlError> {
        if depth >= DIMENSIONS_MAX {
            let message = "number of array dimensions exceeds the maximum allowed (6)";
            return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message));
        }
        if !self.take('{') {
            return Err(self.malformed());
        }
        let is_first = depth == self.dimensions.len();
        if is_first {
            if !self.items.is_empty() {
                return Err(self.malformed());
            }
            self.dimensions.push(0);
        }
        let mut count = 0_u32;
        if !self.take('}') {
            loop {
                if self.rest.trim_start().starts_with('{') {
                    self.list(depth + 1)?;
                } else if depth + 1 == self.dimensions.len() {
                    self.item()?;
                } else {
                    return Err(self.malformed());
                }
                count = count.saturating_add(1);
                if self.take('}') {
                    break;
                }
                if !self.take(',') {
                    return Err(self.malformed());
                }
            }
        }
        if is_first {
            self.dimensions[depth] = count;
        } else if self.dimensions[depth] != count {
            return Err(self.malformed());
        }
        Ok(())
    }

    fn item(&mut self) -> Result<(), SqlError> {
        let mut text = String::new();
        let is_quoted = self.take('"');
        // The length after the last character that is kept although it may be a space.
        let mut kept = 0;
        loop {
            let c = self.rest.chars().next().ok_or_else(|| self.malformed())?;
            if !is_quoted && matches!(c, ',' | '}') {
                break;
            }
            self.rest = &self.rest[c.len_utf8()..];
            match c {
                '"' if is_quoted => break,
                '"' | '{' if !is_quoted => return Err(self.malformed()),
                '\\' => {
                    let c = self.rest.chars().next().ok_or_else(|| self.malformed())?;
                    self.rest = &self.rest[c.len_utf8()..];
                    text.push(c);
                    kept = text.len();
                }
                c => text.push(c),
            }
        }
        let value = if is_quoted {
            self.element.parse(&text)?
        } else {
            text.truncate(kept.max(text.trim_end_matches(|c: char| c.is_ascii_whitespace()).len()));
            if text.is_empty() {
                return Err(self.malformed());
            }
            if text.eq_ignore_ascii_case("null") && kept == 0 { Value::Null } else { self.element.parse(&text)? }
        };
        self.items.push(value);
        Ok(())
    }
}

pub(super) fn write(array: &Array, out: &mut String) {
    if array.items.is_empty() {
        out.push_str("{}");
        return;
    }
    write_list(&array.dimensions, &array.items, out);
}

fn write_list(dimensions: &[u32], items: &[Value], out: &mut String) {
    out.push('{');
    if let [length, inner @ ..] = dimensions
        && !inner.is_empty()
    {
        let size = items.len() / (*length).max(1) as usize;
        for (number, part) in items.chunks(size.max(1)).enumerate() {
            out.push_str(if number == 0 { "" } else { "," });
            write_list(inner, part, out);
        }
    } else {
        for (number, item) in items.iter().enumerate() {
            out.push_str(if number == 0 { "" } else { "," });
            write_item(item, out);
        }
    }
    out.push('}');
}

fn write_item(item: &Value, out: &mut String) {
    let Some(text) = item.to_text() else {
        out.push_str("NULL");
        return;
    };
    let is_special = |c: char| matches!(c, '"' | '\\' | '{' | '}' | ',') || c.is_ascii_whitespace() || c == '\u{b}';
    if text.is_empty() || text.eq_ignore_ascii_case("null") || text.contains(is_special) {
        out.push('"');
        for c in text.chars() {
            if matches!(c, '"' | '\\') {
                out.push('\\');
            }
            out.push(c);
        }
        out.push('"');
    } else {
        out.push_str(&text);
    }
}
