//! Functions about objects: their names, visibility, privileges and sizes.

use super::{Call, Outcome};
use crate::error::SqlError;
use crate::system::relations::{Relation, indexes};
use crate::system::{names, oids, server};
use crate::value::Value;

fn oid_or_null(result: Result<u32, SqlError>) -> Outcome {
    Some(Ok(result.map_or(Value::Null, |oid| Value::Int8(i64::from(oid)))))
}

fn oid(result: Result<u32, SqlError>) -> Outcome {
    Some(result.map(|oid| Value::Int8(i64::from(oid))))
}

fn text(text: String) -> Outcome {
    Some(Ok(Value::Text(text)))
}

fn boolean(value: bool) -> Outcome {
    Some(Ok(Value::Bool(value)))
}

pub(super) fn call(call: &Call<'_>) -> Outcome {
    let (schema, context) = (call.schema, call.context);
    match call.function.name {
        "regclassin" => oid(names::regclass(&call.text(0), schema, context)),
        "regtypein" => oid(names::regtype(&call.text(0), context)),
        "regprocin" => oid(names::regproc(&call.text(0), context)),
        "regnamespacein" => oid(names::regnamespace(&call.text(0))),
        "regrolein" => oid(names::regrole(&call.text(0), context)),
        "to_regclass" => oid_or_null(names::regclass(&call.text(0), schema, context)),
        "to_regtype" => oid_or_null(names::regtype(&call.text(0), context)),
        "to_regproc" => oid_or_null(names::regproc(&call.text(0), context)),
        "to_regnamespace" => oid_or_null(names::regnamespace(&call.text(0))),
        "to_regrole" => oid_or_null(names::regrole(&call.text(0), context)),
        "regclassout" => text(names::regclass_name(call.oid(0), schema, context)),
        "regtypeout" => text(match names::format_type(call.oid(0), None) {
            unknown if unknown == "???" => call.oid(0).to_string(),
            name => name,
        }),
        "regprocout" => text(names::regproc_name(call.oid(0))),
        "regnamespaceout" => text(names::regnamespace_name(call.oid(0))),
        "regroleout" => text(names::regrole_name(call.oid(0), context)),
        "pg_get_userbyid" => text(match call.oid(0) {
            oids::ROLE => context.user.clone(),
            oid => format!("unknown (OID={oid})"),
        }),
        "pg_table_is_visible" => Some(Ok(match Relation::with_oid(schema, call.oid(0)) {
            Some(relation) => Value::Bool(names::is_visible(relation, context)),
            None => Value::Null,
        })),
        // All others are in `pg_catalog`.
        name if name.ends_with("_is_visible") => boolean(true),
        "pg_relation_is_publishable" => match object(call, 0, |name| names::regclass(name, schema, context)) {
            Ok(oid) => boolean(matches!(Relation::with_oid(schema, oid), Some(Relation::Table(_)))),
            Err(error) => Some(Err(error)),
        },
        "pg_is_other_temp_schema" | "row_security_active" | "pg_is_in_recovery" => boolean(false),
        "pg_my_temp_schema" => Some(Ok(Value::Int8(0))),
        "pg_has_role" => Some(has_role(call)),
        name if name.starts_with("has_") => Some(has_privilege(call)),
        "pg_relation_size" | "pg_total_relation_size" | "pg_table_size" | "pg_indexes_size" => {
            Some(object(call, 0, |name| names::regclass(name, schema, context)).map(|oid| {
                let relation = Relation::with_oid(schema, oid);
                relation.map_or(Value::Null, |relation| Value::Int8(size(call, relation)))
            }))
        }
        "pg_database_size" => Some(object(call, 0, |name| database(call, name)).map(|oid| {
            let names = server::databases(context);
            let name = names.iter().find(|name| oids::database(name) == oid);
            let size = name.and_then(|name| context.live.as_ref()?.database_size(name));
            Value::Int8(size.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX)))
        })),
        "pg_tablespace_size" => Some(Ok(Value::Int8(0))),
        _ => None,
    }
}

/// The identifier of an object that is given by it or by name.
fn object(call: &Call<'_>, at: usize, named: impl Fn(&str) -> Result<u32, SqlError>) -> Result<u32, SqlError> {
    match call.argument(at) {
        Value::Text(name) => named(name),
        _ => Ok(call.oid(at)),
    }
}

/// About the size of a relation, as the function counts it; 0 if it is unknown, and for tables that are interleaved in
/// another one, which has their rows.
fn size(call: &Call<'_>, relation: Relation<'_>) -> i64 {
    let of = |id: u32| call.context.live.as_ref().and_then(|live| live.size(id)).unwrap_or(0);
    let (own, of_indexes): (u64, u64) = match relation {
        Relation::Table(table) => {
            let is_root = table.interleave.is_none();
            let indexes = indexes(table).map(|index| of(index.id.0)).sum();
            (if is_root { of(table.storage().0) } else { 0 }, indexes)
        }
        Relation::Index(_, index) => (of(index.id.0), 0),
        _ => (0, 0),
    };
    let bytes = match call.function.name {
        "pg_indexes_size" => of_indexes,
        "pg_total_relation_size" => own.saturating_add(of_indexes),
        _ => own,
    };
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn database(call: &Call<'_>, name: &str) -> Result<u32, SqlError> {
    if server::databases(call.context).contains(&name) {
        return Ok(oids::database(name));
    }
    Err(SqlError::new("3D000", format!("database \"{name}\" does not exist")))
}

fn has_role(call: &Call<'_>) -> Result<Value, SqlError> {
    for at in 0..call.arguments.len().saturating_sub(1) {
        object(call, at, |name| names::role(name, call.context))?;
    }
    Ok(Value::Bool(true))
}

/// The user is a superuser: it has every privilege on the objects that exist.
fn has_privilege(call: &Call<'_>) -> Result<Value, SqlError> {
    let (schema, context) = (call.schema, call.context);
    let is_column = call.function.name == "has_column_privilege";
    // The user may come first.
    let place = usize::from(call.arguments.len() > 2 + usize::from(is_column));
    if place == 1 {
        object(call, 0, |name| names::role(name, context))?;
    }
    let exists = match call.function.name {
        "has_table_privilege" | "has_column_privilege" | "has_any_column_privilege" | "has_sequence_privilege" => {
            let oid = object(call, place, |name| names::regclass(name, schema, context))?;
            let relation = Relation::with_oid(schema, oid);
            let relation = relation.map(|relation| relation.attributes(schema, context));
            relation.is_some_and(|attributes| {
                let column = call.argument(place + 1);
                !is_column
                    || attributes.iter().any(|attribute| match column {
                        Value::Text(name) => attribute.name == *name,
                        number => number.as_integer() == Some(i64::from(attribute.number)),
                    })
            })
        }
        "has_schema_privilege" => {
            let oid = object(call, place, names::namespace)?;
            server::NAMESPACES.iter().any(|(known, _)| *known == oid)
        }
        "has_database_privilege" => {
            let oid = object(call, place, |name| database(call, name))?;
            server::databases(context).into_iter().any(|name| oids::database(name) == oid)
        }
        "has_type_privilege" => {
            let oid = object(call, place, |name| names::regtype(name, context))?;
            crate::system::definitions::type_facts(oid).is_some()
        }
        _ => true,
    };
    Ok(if exists { Value::Bool(true) } else { Value::Null })
}
