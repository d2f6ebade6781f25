//! Definitions as SQL text, in the form in which PostgreSQL shows them.

use sqlparser::ast::{Expr, UnaryOperator, Value as Literal, visit_expressions};
use std::ops::ControlFlow;

use super::relations::attribute_number;
use crate::ids::ColumnId;
use crate::keys::Direction;
use crate::parse::parse_expression;
use crate::schema::{Check, Column, GeneratedKind, Index, KeyPart, Schema, Table, View};
use crate::types::SqlType;

/// PostgreSQL's reserved words, and the others that `quote_ident` quotes.
const QUOTED_WORDS: &str = " all analyse analyze and any array as asc asymmetric authorization between bigint binary \
    bit boolean both case cast char character check coalesce collate collation column concurrently constraint create \
    cross current_catalog current_date current_role current_schema current_time current_timestamp current_user dec \
    decimal default deferrable desc distinct do else end except exists extract false fetch float for foreign freeze \
    from full grant greatest group grouping having ilike in initially inner inout int integer intersect interval into \
    is isnull join lateral leading least left like limit localtime localtimestamp national natural nchar none \
    normalize not notnull null nullif numeric offset on only or order out outer overlaps overlay placing position \
    precision primary real references returning right row select session_user setof similar smallint some substring \
    symmetric table tablesample then time timestamp to trailing treat trim true union unique user using values \
    varchar variadic verbose when where window with xmlattributes xmlconcat xmlelement xmlexists xmlforest \
    xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable ";

/// An identifier, with quotation marks if it needs them (`quote_ident`).
#[must_use]
pub fn quote_identifier(name: &str) -> String {
    let is_start = |c: char| c.is_ascii_lowercase() || c == '_';
    let is_plain = name.starts_with(is_start) && name.chars().all(|c| is_start(c) || c.is_ascii_digit());
    if is_plain && !QUOTED_WORDS.contains(&format!(" {name} ")) {
        return name.to_owned();
    }
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A string constant (`quote_literal`).
#[must_use]
pub fn quote_literal(text: &str) -> String {
    let quoted = format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"));
    if text.contains('\\') { format!("E{quoted}") } else { quoted }
}

/// A relation of the schema `public`, with its schema.
pub(super) fn qualified(name: &str) -> String {
    format!("public.{}", quote_identifier(name))
}

pub(super) fn has_default(column: &Column) -> bool {
    default_text(column).is_some() || is_serial(column)
}

/// The default expression as it was declared; NULL is none.
fn default_text(column: &Column) -> Option<&str> {
    column.default.as_deref().filter(|text| !text.eq_ignore_ascii_case("null"))
}

fn is_serial(column: &Column) -> bool {
    column.generated.is_some_and(|generated| generated.kind == GeneratedKind::Serial)
}

/// The default value of a column as an expression (`pg_attrdef.adbin`).
pub(super) fn default(schema: &Schema, column: &Column) -> Option<String> {
    if let Some(text) = default_text(column) {
        return Some(typed(text, &column.sql_type).unwrap_or_else(|| text.to_owned()));
    }
    let sequence = column.generated.filter(|_| is_serial(column)).and_then(|it| schema.sequence(it.sequence))?;
    Some(format!("nextval({}::regclass)", quote_literal(&quote_identifier(&sequence.name))))
}

/// An expression as PostgreSQL shows it, with the types of its constants. `None` if it stays as it is.
fn typed(text: &str, sql_type: &SqlType) -> Option<String> {
    let expression = parse_expression(text).ok()?;
    match &expression {
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match &**expr {
            Expr::Value(value) => number(&value.value).map(|(digits, kind)| format!("'-{digits}'::{kind}")),
            _ => None,
        },
        Expr::Value(value) => match &value.value {
            Literal::SingleQuotedString(value) => {
                let kind =
                    if matches!(sql_type, SqlType::Char(_)) { "bpchar".to_owned() } else { sql_type.base_name() };
                Some(format!("{}::{kind}", quote_literal(value)))
            }
            Literal::Boolean(value) => Some(value.to_string()),
            literal => match number(literal)? {
                (digits, "bigint") => Some(format!("'{digits}'::bigint")),
                _ => None,
            },
        },
        Expr::BinaryOp { .. } => Some(format!("({text})")),
        Expr::Function(function) => {
            let name = function.name.to_string();
            let arguments = text.strip_prefix(name.as_str())?;
            let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            // `CURRENT_TIMESTAMP` has no arguments.
            let folded = if arguments.is_empty() { name.to_uppercase() } else { name.to_lowercase() };
            is_plain.then(|| format!("{folded}{arguments}"))
        }
        _ => None,
    }
}

/// A number and its type.
fn number(literal: &Literal) -> Option<(&str, &'static str)> {
    let Literal::Number(digits, _) = literal else { return None };
    let kind = match digits.parse::<i64>() {
        Ok(number) if i32::try_from(number).is_ok() => "integer",
        Ok(_) => "bigint",
        Err(_) => "numeric",
    };
    Some((digits, kind))
}

fn column_name(table: &Table, id: ColumnId) -> String {
    table.column(id).map_or_else(String::new, |column| quote_identifier(&column.name))
}

fn key(table: &Table, parts: &[KeyPart]) -> String {
    let part = |part: &KeyPart| {
        let suffix = if part.direction == Direction::Descending { " DESC" } else { "" };
        format!("{}{suffix}", column_name(table, part.column))
    };
    parts.iter().map(part).collect::<Vec<_>>().join(", ")
}

fn including(table: &Table, storing: &[ColumnId]) -> String {
    if storing.is_empty() {
        return String::new();
    }
    let names: Vec<String> = storing.iter().map(|id| column_name(table, *id)).collect();
    format!(" INCLUDE ({})", names.join(", "))
}

/// `pg_get_indexdef` of the index of a primary key.
pub(super) fn primary_index(table: &Table) -> String {
    let key = &table.primary_key;
    index_text(true, &key.name, table, &self::key(table, &key.columns), "")
}

/// `pg_get_indexdef` of a secondary index.
pub(super) fn index(table: &Table, index: &Index) -> String {
    let storing = including(table, &index.storing);
    index_text(index.is_unique, &index.name, table, &key(table, &index.columns), &storing)
}

fn index_text(is_unique: bool, name: &str, table: &Table, key: &str, storing: &str) -> String {
    let unique = if is_unique { "UNIQUE " } else { "" };
    let (name, table) = (quote_identifier(name), qualified(&table.name));
    format!("CREATE {unique}INDEX {name} ON {table} USING btree ({key}){storing}")
}

/// `pg_get_constraintdef` of a primary key.
pub(super) fn primary_key(table: &Table) -> String {
    format!("PRIMARY KEY ({})", key(table, &table.primary_key.columns))
}

/// `pg_get_constraintdef` of a unique constraint.
pub(super) fn unique(table: &Table, index: &Index) -> String {
    format!("UNIQUE ({}){}", key(table, &index.columns), including(table, &index.storing))
}

/// The columns in the condition of a check.
pub(super) fn check_columns(table: &Table, check: &Check) -> Vec<i16> {
    columns_of(table, &check.expression).into_iter().map(attribute_number).collect()
}

/// The columns in an expression.
pub(crate) fn columns_of(table: &Table, expression: &str) -> Vec<ColumnId> {
    let Ok(expression) = parse_expression(expression) else { return Vec::new() };
    let mut columns = Vec::new();
    let _ = visit_expressions(&expression, |expression| {
        let name = match expression {
            Expr::Identifier(name) => Some(name),
            Expr::CompoundIdentifier(names) => names.last(),
            _ => None,
        };
        let column = name.and_then(|name| table.column_named(&crate::parse::fold(name)));
        if let Some(column) = column
            && !columns.contains(&column.id)
        {
            columns.push(column.id);
        }
        ControlFlow::<()>::Continue(())
    });
    columns
}

/// `pg_get_viewdef`
pub(super) fn view(view: &View) -> String {
    if view.columns.is_empty() {
        return format!(" {};", view.query);
    }
    let names: Vec<String> = view.columns.iter().map(|name| quote_identifier(name)).collect();
    let (name, names) = (quote_identifier(&view.name), names.join(", "));
    format!(" SELECT * FROM ({}) AS {name}({names});", view.query)
}

/// The comment of a table: how it is interleaved.
pub(super) fn comment(schema: &Schema, table: &Table) -> Option<String> {
    let interleave = table.interleave?;
    let parent = quote_identifier(&schema.table(interleave.parent)?.name);
    let cascade = if interleave.on_delete_cascade { " ON DELETE CASCADE" } else { "" };
    Some(format!("INTERLEAVE IN PARENT {parent}{cascade}"))
}
