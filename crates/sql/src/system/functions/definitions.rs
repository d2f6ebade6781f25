//! Functions that show definitions.

use super::{Call, Outcome};
use crate::error::{SqlError, sqlstate};
use crate::system::catalog::constraints;
use crate::system::relations::Relation;
use crate::system::{deparse, names, oids};
use crate::value::Value;

fn text(text: impl Into<String>) -> Outcome {
    Some(Ok(Value::Text(text.into())))
}

fn text_or_null(text: Option<String>) -> Outcome {
    Some(Ok(text.map_or(Value::Null, Value::Text)))
}

pub(super) fn call(call: &Call<'_>) -> Outcome {
    let schema = call.schema;
    match call.function.name {
        "format_type" if call.argument(0).is_null() => Some(Ok(Value::Null)),
        "format_type" => {
            let modifier = call.number(1).and_then(|number| i32::try_from(number).ok());
            text(names::format_type(call.oid(0), modifier))
        }
        // Trees of expressions are their text.
        "pg_get_expr" => text(call.text(0)),
        "pg_get_indexdef" => text_or_null(index(call)),
        "pg_get_constraintdef" => {
            let mut all = schema.tables().flat_map(|table| constraints(table));
            let found = all.find(|constraint| constraint.oid() == call.oid(0));
            text_or_null(found.map(|constraint| match constraint.condition() {
                Some(condition) if call.is_true(1) => format!("CHECK ({condition})"),
                _ => constraint.definition(),
            }))
        }
        "pg_get_viewdef" => {
            let oid = match call.argument(0) {
                Value::Text(name) => match names::regclass(name, schema, call.context) {
                    Ok(oid) => oid,
                    Err(error) => return Some(Err(error)),
                },
                _ => call.oid(0),
            };
            text_or_null(match Relation::with_oid(schema, oid) {
                Some(Relation::View(view)) => Some(deparse::view(view)),
                _ => None,
            })
        }
        "pg_get_ruledef" => {
            let view = schema.views().find(|view| oids::rule(view.id) == call.oid(0));
            text_or_null(view.map(|view| {
                let name = deparse::qualified(&view.name);
                format!("CREATE RULE \"_RETURN\" AS\n    ON SELECT TO {name} DO INSTEAD {}", deparse::view(view))
            }))
        }
        "pg_get_serial_sequence" => Some(serial_sequence(call)),
        "obj_description" => {
            let is_relation = call.arguments.len() < 2 || call.text(1) == "pg_class";
            text_or_null(match Relation::with_oid(schema, call.oid(0)) {
                Some(Relation::Table(table)) if is_relation => deparse::comment(schema, table),
                _ => None,
            })
        }
        _ => None,
    }
}

fn index(call: &Call<'_>) -> Option<String> {
    let relation = Relation::with_oid(call.schema, call.oid(0))?;
    let (definition, table) = match relation {
        Relation::PrimaryIndex(table) => (deparse::primary_index(table), table),
        Relation::Index(table, index) => (deparse::index(table, index), table),
        _ => return None,
    };
    let column = call.number(1).unwrap_or(0);
    if column != 0 {
        let attributes = relation.attributes(call.schema, call.context);
        let found = attributes.iter().find(|attribute| i64::from(attribute.number) == column);
        return Some(found.map_or_else(String::new, |attribute| deparse::quote_identifier(&attribute.name)));
    }
    if call.is_true(2) {
        let full = format!(" ON {} USING ", deparse::qualified(&table.name));
        let short = format!(" ON {} USING ", deparse::quote_identifier(&table.name));
        return Some(definition.replacen(&full, &short, 1));
    }
    Some(definition)
}

/// The sequence that a column owns.
fn serial_sequence(call: &Call<'_>) -> Result<Value, SqlError> {
    let oid = names::regclass(&call.text(0), call.schema, call.context)?;
    let wanted = call.text(1);
    let relation = Relation::with_oid(call.schema, oid);
    let missing = |relation: &str| {
        let message = format!("column \"{wanted}\" of relation \"{relation}\" does not exist");
        SqlError::new(sqlstate::UNDEFINED_COLUMN, message)
    };
    let Some(relation) = relation else { return Err(missing(&call.text(0))) };
    if !relation.attributes(call.schema, call.context).iter().any(|attribute| attribute.name == wanted) {
        return Err(missing(relation.name()));
    }
    let Relation::Table(table) = relation else { return Ok(Value::Null) };
    let column = table.column_named(&wanted).ok_or_else(|| missing(&table.name))?;
    let owned = call.schema.sequences().find(|sequence| sequence.owner == Some((table.id, column.id)));
    Ok(owned.map_or(Value::Null, |sequence| Value::Text(deparse::qualified(&sequence.name))))
}
