//! Names of objects as text, and back: the types `regclass`, `regtype` and so on.

use super::definitions::{fixed_rows, type_facts, type_named};
use super::deparse::quote_identifier;
use super::relations::Relation;
use super::server::NAMESPACES;
use super::{Context, oids};
use crate::error::{SqlError, sqlstate};
use crate::schema::Schema;
use crate::types::SqlType;
use crate::value::Value;

/// The parts of a name such as `public."My Table"` (`parse_ident`).
///
/// # Errors
/// 42602: it is not a name.
pub(super) fn parts(text: &str) -> Result<Vec<String>, SqlError> {
    let invalid = || SqlError::new(sqlstate::INVALID_NAME, "invalid name syntax");
    let mut parts = Vec::new();
    let mut rest = text.trim_matches(|c: char| c.is_ascii_whitespace());
    loop {
        let (part, after) = match rest.strip_prefix('"') {
            Some(quoted) => take_quoted(quoted).ok_or_else(invalid)?,
            None => {
                let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
                let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                let (part, after) = rest.split_at(end);
                (part.to_lowercase(), after)
            }
        };
        if part.is_empty() {
            return Err(invalid());
        }
        parts.push(part);
        let after = after.trim_start();
        match after.strip_prefix('.') {
            Some(next) => rest = next.trim_start(),
            None if after.is_empty() => return Ok(parts),
            None => return Err(invalid()),
        }
    }
}

/// The text before the closing quotation mark, and that after it.
fn take_quoted(text: &str) -> Option<(String, &str)> {
    let mut part = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"')?;
        part.push_str(rest.get(..end)?);
        rest = rest.get(end + 1..)?;
        match rest.strip_prefix('"') {
            Some(next) => {
                part.push('"');
                rest = next;
            }
            None => return Some((part, rest)),
        }
    }
}

/// A name of at most three parts: the schema, if it is given, and the object's own.
fn qualified(text: &str, context: &Context) -> Result<(Option<String>, String), SqlError> {
    let mut parts = parts(text)?;
    let name = parts.pop().unwrap_or_default();
    let schema = parts.pop();
    match (parts.pop(), parts.is_empty()) {
        (None, _) => Ok((schema, name)),
        (Some(database), true) if database == context.database => Ok((schema, name)),
        _ => Err(SqlError::unsupported(format!("cross-database references: {text}"))),
    }
}

fn missing_schema(name: &str) -> SqlError {
    SqlError::new(sqlstate::INVALID_SCHEMA_NAME, format!("schema \"{name}\" does not exist"))
}

/// A number, or `-` for none.
fn number(text: &str) -> Option<u32> {
    if text == "-" { Some(0) } else { text.parse().ok() }
}

/// The identifier of a schema.
///
/// # Errors
/// 3F000: there is no such schema.
pub(super) fn namespace(name: &str) -> Result<u32, SqlError> {
    let found = NAMESPACES.iter().find(|(_, known)| *known == name).map(|(oid, _)| *oid);
    found.ok_or_else(|| missing_schema(name))
}

/// A relation by its name, or its number.
///
/// # Errors
/// 42P01: there is no such relation; 3F000: no such schema.
pub(super) fn regclass(text: &str, schema: &Schema, context: &Context) -> Result<u32, SqlError> {
    if let Some(oid) = number(text) {
        return Ok(oid);
    }
    let (namespace_name, name) = qualified(text, context)?;
    let found = match &namespace_name {
        Some(namespace_name) => Relation::named(schema, namespace(namespace_name)?, &name),
        None => {
            Relation::named(schema, oids::PG_CATALOG, &name).or_else(|| Relation::named(schema, oids::PUBLIC, &name))
        }
    };
    let missing = || {
        let shown = namespace_name.as_ref().map_or_else(|| name.clone(), |schema| format!("{schema}.{name}"));
        SqlError { message: format!("relation \"{shown}\" does not exist"), ..schema.undefined_table(&name) }
    };
    found.map(Relation::oid).ok_or_else(missing)
}

/// The name of a relation: qualified if it is in no schema of the search path.
pub(super) fn regclass_name(oid: u32, schema: &Schema, context: &Context) -> String {
    match Relation::with_oid(schema, oid) {
        _ if oid == 0 => "-".to_owned(),
        Some(relation) if is_visible(relation, context) => quote_identifier(relation.name()),
        Some(relation) => {
            let schema = super::catalog::namespace_name(relation);
            format!("{schema}.{}", quote_identifier(relation.name()))
        }
        None => oid.to_string(),
    }
}

/// The schemas of the search path that exist, in order.
pub(super) fn search_path(context: &Context, with_implicit: bool) -> Vec<String> {
    let setting = context.setting("search_path").unwrap_or("\"$user\", public");
    let named = setting.split(',').map(|name| name.trim().trim_matches('"').to_owned());
    let mut path: Vec<String> = named.filter(|name| namespace(name).is_ok()).collect();
    if with_implicit && !path.iter().any(|name| name == "pg_catalog") {
        path.insert(0, "pg_catalog".to_owned());
    }
    path
}

pub(super) fn is_visible(relation: Relation<'_>, context: &Context) -> bool {
    let own = super::catalog::namespace_name(relation);
    search_path(context, true).iter().any(|name| name == own)
}

/// The words for types that are not names of types in `pg_type`.
const TYPE_WORDS: [(&str, &str); 16] = [
    ("boolean", "bool"),
    ("smallint", "int2"),
    ("integer", "int4"),
    ("int", "int4"),
    ("bigint", "int8"),
    ("real", "float4"),
    ("float", "float8"),
    ("double precision", "float8"),
    ("decimal", "numeric"),
    ("dec", "numeric"),
    ("character varying", "varchar"),
    ("char varying", "varchar"),
    ("character", "bpchar"),
    ("char", "bpchar"),
    ("timestamp without time zone", "timestamp"),
    ("timestamp with time zone", "timestamptz"),
];

/// A type by its name, or its number. Declared lengths are ignored.
///
/// # Errors
/// 42704: there is no such type.
pub(super) fn regtype(text: &str, context: &Context) -> Result<u32, SqlError> {
    if let Some(oid) = number(text) {
        return Ok(oid);
    }
    let missing = |text: &str| SqlError::new(sqlstate::UNDEFINED_OBJECT, format!("type \"{text}\" does not exist"));
    let mut base = text.trim();
    let mut is_array = false;
    while let Some((element, _)) = base.strip_suffix(']').and_then(|base| base.rsplit_once('[')) {
        base = element.trim_end();
        is_array = true;
    }
    let is_quoted = base.contains('"');
    let words = match (base.split_once('('), is_quoted) {
        // `varchar(10)`, `timestamp(3) with time zone`
        (Some((start, end)), false) => {
            let end = end.split_once(')').map(|(_, end)| end).ok_or_else(|| missing(text))?;
            format!("{} {end}", start.trim_end())
        }
        _ => base.to_owned(),
    };
    let folded: Vec<String> = words.split_ascii_whitespace().map(str::to_lowercase).collect();
    let folded = folded.join(" ");
    let word = TYPE_WORDS.iter().find(|(word, _)| *word == folded).filter(|_| !is_quoted);
    let found = match word {
        Some((_, name)) => type_named(name),
        None => {
            let (namespace_name, name) = qualified(words.trim(), context).map_err(|_| missing(text))?;
            let schema = namespace_name.as_deref().map(namespace).transpose()?;
            type_named(&name).filter(|_| schema.is_none_or(|schema| schema == oids::PG_CATALOG))
        }
    };
    let facts = found.ok_or_else(|| missing(text))?;
    if !is_array {
        return Ok(facts.oid);
    }
    type_named(&format!("_{}", facts.name)).map(|facts| facts.oid).ok_or_else(|| missing(text))
}

/// The name of a type (`format_type`), with its declared length if the modifier is given.
pub(super) fn format_type(oid: u32, modifier: Option<i32>) -> String {
    let Some(facts) = type_facts(oid) else {
        return if oid == 0 { "-" } else { "???" }.to_owned();
    };
    let is_array = facts.element != 0 && facts.length == -1 && facts.name.starts_with('_');
    if is_array {
        return format!("{}[]", format_type(facts.element, modifier));
    }
    let known = SqlType::SCALARS.into_iter().find(|known| known.oid() == oid);
    match (known, modifier) {
        (Some(SqlType::Char(_)), None) => "character".to_owned(),
        (Some(SqlType::Char(_)), Some(-1)) => "bpchar".to_owned(),
        (Some(known), Some(modifier)) => known.with_modifier(modifier).unwrap_or(known).to_string(),
        (Some(known), None) => known.to_string(),
        (None, _) => quote_identifier(&facts.name),
    }
}

fn functions() -> impl Iterator<Item = (u32, &'static str)> {
    let rows = super::table(None, "pg_proc").map_or(&[][..], fixed_rows);
    rows.iter().filter_map(|row| match row.get(..2)? {
        [oid, Value::Text(name)] => Some((u32::try_from(oid.as_integer()?).ok()?, name.as_str())),
        _ => None,
    })
}

/// A function by its name, or its number.
///
/// # Errors
/// 42883: there is no such function.
pub(super) fn regproc(text: &str, context: &Context) -> Result<u32, SqlError> {
    if let Some(oid) = number(text) {
        return Ok(oid);
    }
    let (_, name) = qualified(text, context)?;
    let missing = || SqlError::new(sqlstate::UNDEFINED_FUNCTION, format!("function \"{text}\" does not exist"));
    functions().find(|(_, known)| *known == name).map(|(oid, _)| oid).ok_or_else(missing)
}

pub(super) fn regproc_name(oid: u32) -> String {
    match functions().find(|(known, _)| *known == oid) {
        _ if oid == 0 => "-".to_owned(),
        Some((_, name)) => name.to_owned(),
        None => oid.to_string(),
    }
}

/// A schema by its name, or its number.
///
/// # Errors
/// 3F000: there is no such schema.
pub(super) fn regnamespace(text: &str) -> Result<u32, SqlError> {
    match number(text) {
        Some(oid) => Ok(oid),
        None => namespace(&parts(text)?.join(".")),
    }
}

pub(super) fn regnamespace_name(oid: u32) -> String {
    match NAMESPACES.iter().find(|(known, _)| *known == oid) {
        _ if oid == 0 => "-".to_owned(),
        Some((_, name)) => (*name).to_owned(),
        None => oid.to_string(),
    }
}

/// A role by its name, or its number.
///
/// # Errors
/// 42704: there is no such role.
pub(super) fn regrole(text: &str, context: &Context) -> Result<u32, SqlError> {
    if let Some(oid) = number(text) {
        return Ok(oid);
    }
    let name = parts(text)?.join(".");
    role(&name, context)
}

/// The role of a user.
///
/// # Errors
/// 42704: there is no such role.
pub(super) fn role(name: &str, context: &Context) -> Result<u32, SqlError> {
    if name == context.user {
        return Ok(oids::ROLE);
    }
    Err(SqlError::new(sqlstate::UNDEFINED_OBJECT, format!("role \"{name}\" does not exist")))
}

pub(super) fn regrole_name(oid: u32, context: &Context) -> String {
    match oid {
        0 => "-".to_owned(),
        oids::ROLE => quote_identifier(&context.user),
        _ => oid.to_string(),
    }
}
