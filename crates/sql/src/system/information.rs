//! The tables of `information_schema`.

use super::catalog::{Constraint, collation, constraints, namespace_name};
use super::definitions::{SystemTable, type_facts};
use super::fill::fill;
use super::names::format_type;
use super::relations::{Attribute, Relation};
use super::server::NAMESPACES;
use super::{Context, Generator, deparse, oids};
use crate::schema::{Schema, Sequence, Table};
use crate::types::SqlType;
use crate::value::Value;

type Rows = Vec<Vec<Value>>;

pub(super) fn generator(name: &str) -> Option<Generator> {
    Some(match name {
        "information_schema_catalog_name" => catalog_name,
        "schemata" => schemata,
        "tables" => tables,
        "columns" => columns,
        "table_constraints" => table_constraints,
        "key_column_usage" => key_column_usage,
        "constraint_column_usage" => constraint_column_usage,
        "constraint_table_usage" => constraint_table_usage,
        "check_constraints" => check_constraints,
        "views" => views,
        "sequences" => sequences,
        "character_sets" => character_sets,
        "enabled_roles" => enabled_roles,
        "role_table_grants" | "table_privileges" => table_privileges,
        "role_column_grants" | "column_privileges" => column_privileges,
        _ => return None,
    })
}

fn yes_or_no(value: bool) -> &'static str {
    if value { "YES" } else { "NO" }
}

fn catalog_name(table: &SystemTable, _: &Schema, context: &Context) -> Rows {
    fill!(table, [&context.database], |name| { catalog_name: name })
}

fn schemata(table: &SystemTable, _: &Schema, context: &Context) -> Rows {
    fill!(table, NAMESPACES, |(_, name)| {
        catalog_name: &context.database,
        schema_name: name,
        schema_owner: &context.user,
    })
}

fn rectangles(schema: &Schema) -> impl Iterator<Item = Relation<'_>> {
    Relation::all(schema).into_iter().filter(|relation| matches!(relation.kind(), 'r' | 'v'))
}

fn tables(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    fill!(table, rectangles(schema), |relation| {
        table_catalog: &context.database,
        table_schema: namespace_name(relation),
        table_name: relation.name(),
        table_type: if relation.kind() == 'v' { "VIEW" } else { "BASE TABLE" },
        is_insertable_into: yes_or_no(matches!(relation, Relation::Table(_))),
        is_typed: "NO",
    })
}

/// A column of `columns`.
struct Described<'a> {
    relation: Relation<'a>,
    attribute: Attribute,
    default: Option<String>,
    /// The sequence of an identity column.
    identity: Option<&'a Sequence>,
}

fn described<'a>(schema: &'a Schema, context: &Context, relation: Relation<'a>) -> Vec<Described<'a>> {
    let describe = |attribute: Attribute| {
        let column = match relation {
            Relation::Table(table) => table.column_named(&attribute.name),
            _ => None,
        };
        let identity = column.and_then(|column| column.generated).filter(|_| !attribute.identity.is_empty());
        Described {
            relation,
            default: column.and_then(|column| deparse::default(schema, column)),
            identity: identity.and_then(|generated| schema.sequence(generated.sequence)).map(|sequence| &**sequence),
            attribute,
        }
    };
    relation.attributes(schema, context).into_iter().map(describe).collect()
}

fn columns(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    let all = rectangles(schema).flat_map(|relation| described(schema, context, relation));
    let with_type = all.map(|column| {
        let facts = Measures::of(&column.attribute);
        (column, facts)
    });
    fill!(table, with_type, |(column, measures)| {
        table_catalog: &context.database,
        table_schema: namespace_name(column.relation),
        table_name: column.relation.name(),
        column_name: &column.attribute.name,
        ordinal_position: i32::from(column.attribute.number),
        column_default: column.default,
        is_nullable: yes_or_no(!column.attribute.not_null),
        data_type: measures.data_type,
        character_maximum_length: measures.characters,
        character_octet_length: measures.octets,
        numeric_precision: measures.precision,
        numeric_precision_radix: measures.radix,
        numeric_scale: measures.scale,
        datetime_precision: measures.datetime,
        collation_catalog: measures.has_c_collation.then_some(&context.database),
        collation_schema: measures.has_c_collation.then_some("pg_catalog"),
        collation_name: measures.has_c_collation.then_some("C"),
        udt_catalog: &context.database,
        udt_schema: "pg_catalog",
        udt_name: measures.udt_name,
        dtd_identifier: column.attribute.number.to_string(),
        is_self_referencing: "NO",
        is_identity: yes_or_no(column.identity.is_some()),
        identity_generation: match column.attribute.identity {
            "a" => Some("ALWAYS"),
            "d" => Some("BY DEFAULT"),
            _ => None,
        },
        identity_start: column.identity.map(|sequence| sequence.start.to_string()),
        identity_increment: column.identity.map(|sequence| sequence.increment.to_string()),
        identity_maximum: column.identity.map(|sequence| sequence.max.to_string()),
        identity_minimum: column.identity.map(|sequence| sequence.min.to_string()),
        identity_cycle: yes_or_no(column.identity.is_some_and(|sequence| sequence.is_cyclic)),
        is_generated: "NEVER",
        is_updatable: yes_or_no(matches!(column.relation, Relation::Table(_))),
    })
}

/// The lengths of a column's type.
#[derive(Default)]
struct Measures {
    data_type: String,
    udt_name: &'static str,
    characters: Option<i32>,
    octets: Option<i32>,
    precision: Option<i32>,
    radix: Option<i32>,
    scale: Option<i32>,
    datetime: Option<i32>,
    has_c_collation: bool,
}

impl Measures {
    fn of(attribute: &Attribute) -> Self {
        /// The greatest length of a value in bytes.
        const BYTES_MAX: i32 = 1 << 30;
        /// The bytes of a character.
        const WIDTH: i32 = 4;
        /// `C`, which is not the default one.
        const C: u32 = 950;
        let facts = type_facts(attribute.type_oid);
        let is_array = facts.is_some_and(|facts| facts.element != 0 && facts.length == -1);
        let mut found = Self {
            data_type: if is_array { "ARRAY".to_owned() } else { format_type(attribute.type_oid, None) },
            udt_name: facts.map_or("", |facts| &facts.name),
            has_c_collation: collation(attribute.type_oid) == C,
            ..Self::default()
        };
        let Some(sql_type) = attribute.sql_type.as_ref().filter(|_| !is_array) else { return found };
        if sql_type.is_text() {
            found.characters = (attribute.modifier != -1).then(|| attribute.modifier.saturating_sub(4));
            found.octets = Some(found.characters.map_or(BYTES_MAX, |length| length.saturating_mul(WIDTH)));
        }
        let (precision, radix, scale) = match sql_type {
            SqlType::Int2 => (Some(16), Some(2), Some(0)),
            SqlType::Int4 => (Some(32), Some(2), Some(0)),
            SqlType::Int8 => (Some(64), Some(2), Some(0)),
            SqlType::Float4 => (Some(24), Some(2), None),
            SqlType::Float8 => (Some(53), Some(2), None),
            SqlType::Numeric(None) => (None, Some(10), None),
            SqlType::Numeric(Some((precision, scale))) => {
                (Some(i32::from(*precision)), Some(10), Some(i32::from(*scale)))
            }
            _ => (None, None, None),
        };
        (found.precision, found.radix, found.scale) = (precision, radix, scale);
        found.datetime = match sql_type {
            SqlType::Date => Some(0),
            SqlType::Timestamp | SqlType::Timestamptz | SqlType::Interval => Some(6),
            _ => None,
        };
        found
    }
}

/// The conditions `NOT NULL`, which are constraints here: table, name and column.
fn not_null(schema: &Schema) -> impl Iterator<Item = (&Table, String, &str)> {
    schema.tables().flat_map(|table| {
        let columns = table.visible_columns().filter(|column| column.not_null);
        columns.map(move |column| {
            let number = super::relations::attribute_number(column.id);
            let name = format!("{}_{}_{number}_not_null", oids::PUBLIC, oids::table(table.id));
            (&**table, name, column.name.as_str())
        })
    })
}

fn all_constraints(schema: &Schema) -> impl Iterator<Item = Constraint<'_>> {
    schema.tables().flat_map(|table| constraints(table))
}

fn table_constraints(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    let declared = all_constraints(schema).map(|constraint| {
        let kind = match constraint.kind() {
            'p' => "PRIMARY KEY",
            'u' => "UNIQUE",
            _ => "CHECK",
        };
        (constraint.table, constraint.name().to_owned(), kind)
    });
    let all = declared.chain(not_null(schema).map(|(table, name, _)| (table, name, "CHECK")));
    fill!(table, all, |(of, name, kind)| {
        constraint_catalog: &context.database,
        constraint_schema: "public",
        constraint_name: name,
        table_catalog: &context.database,
        table_schema: "public",
        table_name: &of.name,
        constraint_type: kind,
        is_deferrable: "NO",
        initially_deferred: "NO",
        enforced: "YES",
        nulls_distinct: (kind == "UNIQUE").then_some("YES"),
    })
}

/// The columns of constraints of some kinds, with their place from 1.
fn constraint_columns(schema: &Schema, with_checks: bool) -> Vec<(&Table, &str, &str, i32)> {
    let mut all = Vec::new();
    for constraint in all_constraints(schema).filter(|constraint| with_checks || constraint.kind() != 'c') {
        for (place, number) in (1..).zip(constraint.columns()) {
            let is_wanted = |column: &&crate::schema::Column| super::relations::attribute_number(column.id) == number;
            if let Some(column) = constraint.table.columns.iter().find(is_wanted) {
                all.push((constraint.table, constraint.name(), column.name.as_str(), place));
            }
        }
    }
    all
}

fn key_column_usage(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    fill!(table, constraint_columns(schema, false), |(of, constraint, column, place)| {
        constraint_catalog: &context.database,
        constraint_schema: "public",
        constraint_name: constraint,
        table_catalog: &context.database,
        table_schema: "public",
        table_name: &of.name,
        column_name: column,
        ordinal_position: place,
    })
}

fn constraint_column_usage(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    fill!(table, constraint_columns(schema, true), |(of, constraint, column, _)| {
        table_catalog: &context.database,
        table_schema: "public",
        table_name: &of.name,
        column_name: column,
        constraint_catalog: &context.database,
        constraint_schema: "public",
        constraint_name: constraint,
    })
}

fn constraint_table_usage(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    fill!(table, all_constraints(schema).filter(|constraint| constraint.kind() != 'c'), |constraint| {
        table_catalog: &context.database,
        table_schema: "public",
        table_name: &constraint.table.name,
        constraint_catalog: &context.database,
        constraint_schema: "public",
        constraint_name: constraint.name(),
    })
}

fn check_constraints(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    let checks = all_constraints(schema).filter_map(|constraint| {
        let condition = constraint.condition()?;
        Some((constraint.name().to_owned(), format!("(({condition}))")))
    });
    let not_null =
        not_null(schema).map(|(_, name, column)| (name, format!("{} IS NOT NULL", deparse::quote_identifier(column))));
    fill!(table, checks.chain(not_null), |(name, condition)| {
        constraint_catalog: &context.database,
        constraint_schema: "public",
        constraint_name: name,
        check_clause: condition,
    })
}

fn views(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    let views = Relation::all(schema).into_iter().filter(|relation| relation.kind() == 'v');
    fill!(table, views, |relation| {
        table_catalog: &context.database,
        table_schema: namespace_name(relation),
        table_name: relation.name(),
        view_definition: match relation {
            Relation::View(view) => Some(deparse::view(view)),
            _ => None,
        },
        check_option: "NONE",
        is_updatable: "NO",
        is_insertable_into: "NO",
        is_trigger_updatable: "NO",
        is_trigger_deletable: "NO",
        is_trigger_insertable_into: "NO",
    })
}

fn sequences(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    // Those of identity columns are part of the columns.
    let is_identity = |sequence: &&std::sync::Arc<Sequence>| {
        let column = sequence.owner.and_then(|(table, column)| schema.table(table)?.column(column));
        let kind = column.and_then(|column| column.generated).map(|generated| generated.kind);
        kind.is_some_and(|kind| kind != crate::schema::GeneratedKind::Serial)
    };
    fill!(table, schema.sequences().filter(|sequence| !is_identity(sequence)), |sequence| {
        sequence_catalog: &context.database,
        sequence_schema: "public",
        sequence_name: &sequence.name,
        data_type: sequence.sql_type.to_string(),
        numeric_precision: i32::from(sequence.sql_type.length()) * 8,
        numeric_precision_radix: 2,
        numeric_scale: 0,
        start_value: sequence.start.to_string(),
        minimum_value: sequence.min.to_string(),
        maximum_value: sequence.max.to_string(),
        increment: sequence.increment.to_string(),
        cycle_option: yes_or_no(sequence.is_cyclic),
    })
}

fn character_sets(table: &SystemTable, _: &Schema, context: &Context) -> Rows {
    fill!(table, [&context.database], |database| {
        character_set_name: "UTF8",
        character_repertoire: "UCS",
        form_of_use: "UTF8",
        default_collate_catalog: database,
    })
}

fn enabled_roles(table: &SystemTable, _: &Schema, context: &Context) -> Rows {
    fill!(table, [&context.user], |name| { role_name: name })
}

fn table_privileges(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    const ALL: [&str; 7] = ["INSERT", "SELECT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"];
    let own = rectangles(schema).filter(|relation| !matches!(relation, Relation::System(_)));
    let all = own.flat_map(|relation| ALL.map(|privilege| (relation, privilege)));
    fill!(table, all, |(relation, privilege)| {
        grantor: &context.user,
        grantee: &context.user,
        table_catalog: &context.database,
        table_schema: "public",
        table_name: relation.name(),
        privilege_type: privilege,
        is_grantable: "YES",
        with_hierarchy: yes_or_no(privilege == "SELECT"),
    })
}

fn column_privileges(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    const ALL: [&str; 4] = ["INSERT", "SELECT", "UPDATE", "REFERENCES"];
    let own = rectangles(schema).filter(|relation| !matches!(relation, Relation::System(_)));
    let columns = own.flat_map(|relation| {
        relation.attributes(schema, context).into_iter().map(move |attribute| (relation, attribute.name))
    });
    let all = columns.flat_map(|(relation, name)| ALL.map(|privilege| (relation, name.clone(), privilege)));
    fill!(table, all, |(relation, name, privilege)| {
        grantor: &context.user,
        grantee: &context.user,
        table_catalog: &context.database,
        table_schema: "public",
        table_name: relation.name(),
        column_name: name,
        privilege_type: privilege,
        is_grantable: "YES",
    })
}
