//! The definitions of the tables and the rows that are always the same, from PostgreSQL 15.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::kinds::CatalogType;
use crate::value::Value;

/// Tables with their identifiers and kinds, and their columns: name, type, `!` if it is never NULL.
const TABLES: &str = include_str!("tables.txt");
/// Rows in the text format of COPY, after a line `=TABLE`.
const ROWS: &str = include_str!("rows.txt");

/// A table of `pg_catalog` or `information_schema`.
#[derive(Clone, Debug)]
pub struct SystemTable {
    pub schema: &'static str,
    pub name: &'static str,
    pub oid: u32,
    /// It is a view in PostgreSQL.
    pub is_view: bool,
    /// Its columns in PostgreSQL's order.
    pub columns: Vec<SystemColumn>,
}

/// A column of such a table.
#[derive(Clone, Copy, Debug)]
pub struct SystemColumn {
    pub name: &'static str,
    pub kind: CatalogType,
    /// It is never NULL.
    pub not_null: bool,
}

static PARSED_TABLES: LazyLock<Vec<SystemTable>> = LazyLock::new(|| {
    let mut tables: Vec<SystemTable> = Vec::new();
    for line in TABLES.lines() {
        if line.starts_with(' ') {
            let Some(table) = tables.last_mut() else { continue };
            table.columns.extend(line.split(',').filter_map(column));
        } else {
            tables.extend(table(line));
        }
    }
    tables
});

fn table(line: &'static str) -> Option<SystemTable> {
    let mut words = line.split(' ');
    let (schema, name) = words.next()?.split_once('.')?;
    let oid = words.next()?.parse().ok()?;
    let is_view = words.next()? == "v";
    Some(SystemTable { schema, name, oid, is_view, columns: Vec::new() })
}

fn column(text: &'static str) -> Option<SystemColumn> {
    let (name, kind) = text.trim().split_once(' ')?;
    let stripped = kind.strip_suffix('!');
    let kind = CatalogType::named(stripped.unwrap_or(kind))?;
    Some(SystemColumn { name, kind, not_null: stripped.is_some() })
}

type Rows = Vec<Vec<Value>>;

static PARSED_ROWS: LazyLock<BTreeMap<&'static str, Rows>> = LazyLock::new(|| {
    let mut all: BTreeMap<&str, Rows> = BTreeMap::new();
    let mut current: Option<(&SystemTable, &str)> = None;
    for line in ROWS.lines() {
        if let Some(name) = line.strip_prefix('=') {
            current = tables().iter().find(|table| table.name == name).map(|table| (table, name));
        } else if let Some((table, name)) = current {
            all.entry(name).or_default().push(row(table, line));
        }
    }
    all
});

fn row(table: &SystemTable, line: &str) -> Vec<Value> {
    let value = |(column, text): (&SystemColumn, &str)| match text {
        "\\N" => Value::Null,
        text => column.kind.parse(text).unwrap_or(Value::Null),
    };
    table.columns.iter().zip(line.split('\t')).map(value).collect()
}

pub(super) fn tables() -> &'static [SystemTable] {
    &PARSED_TABLES
}

/// The rows of a table that do not depend on anything.
pub(super) fn fixed_rows(table: &SystemTable) -> &'static [Vec<Value>] {
    let is_catalog = table.schema == "pg_catalog";
    PARSED_ROWS.get(table.name).filter(|_| is_catalog).map_or(&[], Vec::as_slice)
}

/// Facts about a type from `pg_type`.
#[derive(Clone, Debug)]
pub(super) struct TypeFacts {
    pub(super) oid: u32,
    pub(super) name: String,
    pub(super) length: i16,
    pub(super) by_value: bool,
    pub(super) alignment: String,
    pub(super) storage: String,
    pub(super) collation: u32,
    pub(super) element: u32,
}

static TYPES: LazyLock<BTreeMap<u32, TypeFacts>> = LazyLock::new(|| {
    let Some(table) = super::table(None, "pg_type") else { return BTreeMap::new() };
    let place = |name: &str| table.columns.iter().position(|column| column.name == name).unwrap_or(usize::MAX);
    let [oid, name, length, by_value, alignment, storage, collation, element] =
        ["oid", "typname", "typlen", "typbyval", "typalign", "typstorage", "typcollation", "typelem"].map(place);
    let facts = |row: &Vec<Value>| {
        let number = |at: usize| row.get(at).and_then(Value::as_integer).unwrap_or(0);
        let text = |at: usize| row.get(at).and_then(Value::to_text).unwrap_or_default();
        TypeFacts {
            oid: u32::try_from(number(oid)).unwrap_or(0),
            name: text(name),
            length: i16::try_from(number(length)).unwrap_or(-1),
            by_value: row.get(by_value) == Some(&Value::Bool(true)),
            alignment: text(alignment),
            storage: text(storage),
            collation: u32::try_from(number(collation)).unwrap_or(0),
            element: u32::try_from(number(element)).unwrap_or(0),
        }
    };
    fixed_rows(table).iter().map(facts).map(|facts| (facts.oid, facts)).collect()
});

/// A type by its identifier.
pub(super) fn type_facts(oid: u32) -> Option<&'static TypeFacts> {
    TYPES.get(&oid)
}

/// A type by its internal name.
pub(super) fn type_named(name: &str) -> Option<&'static TypeFacts> {
    TYPES.values().find(|facts| facts.name == name)
}
