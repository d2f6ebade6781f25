//! The relations of a database, and their columns, as `pg_class` and `pg_attribute` list them.

use super::definitions::{SystemTable, tables};
use super::kinds::CatalogType;
use super::{Context, deparse, oids};
use crate::direct;
use crate::ids::{ColumnId, SequenceId, TableId, ViewId};
use crate::parse::parse_one;
use crate::schema::{self, Column, GeneratedKind, Index, IndexState, KeyPart, Schema, Sequence, Table, View};
use crate::types::SqlType;

#[derive(Clone, Copy)]
pub(super) enum Relation<'a> {
    System(&'static SystemTable),
    Table(&'a Table),
    View(&'a View),
    Sequence(&'a Sequence),
    /// The index of a declared primary key.
    PrimaryIndex(&'a Table),
    Index(&'a Table, &'a Index),
}

/// A column of a relation.
#[derive(Clone, Debug)]
pub(super) struct Attribute {
    /// From 1.
    pub(super) number: i16,
    pub(super) name: String,
    pub(super) type_oid: u32,
    pub(super) modifier: i32,
    pub(super) not_null: bool,
    pub(super) has_default: bool,
    /// `a`, `d` or empty.
    pub(super) identity: &'static str,
    /// `None` if only PostgreSQL has such a type.
    pub(super) sql_type: Option<SqlType>,
}

pub(super) fn attribute_number(id: ColumnId) -> i16 {
    // After more than 32,767 columns were added to a table, several of them have this number.
    i16::try_from(id.0).unwrap_or(i16::MAX)
}

/// Whether the primary key is listed: it was declared.
pub(super) fn has_primary_key(table: &Table) -> bool {
    !table.primary_key.name.is_empty()
}

/// The secondary indexes that are listed.
pub(super) fn indexes(table: &Table) -> impl Iterator<Item = &Index> {
    table.indexes.iter().filter(|index| index.state != IndexState::Dropping)
}

impl<'a> Relation<'a> {
    /// All relations. A relation of the schema hides none of PostgreSQL's.
    pub(super) fn all(schema: &'a Schema) -> Vec<Self> {
        tables().iter().map(Self::System).chain(Self::of_schema(schema)).collect()
    }

    /// The relations of the schema `public`.
    pub(super) fn of_schema(schema: &'a Schema) -> impl Iterator<Item = Self> {
        let of_tables = schema.tables().flat_map(|table| {
            let key = has_primary_key(table).then_some(Self::PrimaryIndex(table));
            let indexes = indexes(table).map(|index| Self::Index(table, index));
            std::iter::once(Self::Table(table)).chain(key).chain(indexes)
        });
        let of_views = schema.views().map(|view| Self::View(view));
        of_tables.chain(of_views).chain(schema.sequences().map(|sequence| Self::Sequence(sequence)))
    }

    pub(super) fn with_oid(schema: &'a Schema, oid: u32) -> Option<Self> {
        let id = match oids::number(oid) {
            oids::Number::Relation(id) => id,
            oids::Number::PrimaryIndex(id) => {
                return schema.table(id).filter(|table| has_primary_key(table)).map(|table| Self::PrimaryIndex(table));
            }
            oids::Number::Other => return tables().iter().find(|table| table.oid == oid).map(Self::System),
        };
        let table = schema.table(TableId(id)).map(|table| Self::Table(table));
        let view = || schema.view(ViewId(id)).map(|view| Self::View(view));
        let sequence = || schema.sequence(SequenceId(id)).map(|sequence| Self::Sequence(sequence));
        let index = || {
            let mut all = schema.tables().flat_map(|table| indexes(table).map(move |index| (table, index)));
            all.find(|(_, index)| index.id.0 == id).map(|(table, index)| Self::Index(table, index))
        };
        table.or_else(view).or_else(sequence).or_else(index)
    }

    pub(super) fn named(schema: &'a Schema, namespace: u32, name: &str) -> Option<Self> {
        if namespace != oids::PUBLIC {
            let mut all = tables().iter().map(Self::System);
            return all.find(|relation| relation.namespace() == namespace && relation.name() == name);
        }
        let found = match schema.relation(name)? {
            schema::Relation::Table(id) => Self::Table(schema.table(id)?),
            schema::Relation::View(id) => Self::View(schema.view(id)?),
            schema::Relation::Sequence(id) => Self::Sequence(schema.sequence(id)?),
            schema::Relation::Index(table, None) => Self::PrimaryIndex(schema.table(table)?),
            schema::Relation::Index(table, Some(id)) => {
                let table = schema.table(table)?;
                Self::Index(table, indexes(table).find(|index| index.id == id)?)
            }
        };
        // A primary key that is being added has a name, too.
        (found.name() == name).then_some(found)
    }

    pub(super) fn oid(self) -> u32 {
        match self {
            Self::System(table) => table.oid,
            Self::Table(table) => oids::table(table.id),
            Self::View(view) => oids::view(view.id),
            Self::Sequence(sequence) => oids::sequence(sequence.id),
            Self::PrimaryIndex(table) => oids::primary_index(table.id),
            Self::Index(_, index) => oids::index(index.id),
        }
    }

    pub(super) fn name(self) -> &'a str {
        match self {
            Self::System(table) => table.name,
            Self::Table(table) => &table.name,
            Self::View(view) => &view.name,
            Self::Sequence(sequence) => &sequence.name,
            Self::PrimaryIndex(table) => &table.primary_key.name,
            Self::Index(_, index) => &index.name,
        }
    }

    pub(super) fn namespace(self) -> u32 {
        match self {
            Self::System(table) if table.schema == "pg_catalog" => oids::PG_CATALOG,
            Self::System(_) => oids::INFORMATION_SCHEMA,
            _ => oids::PUBLIC,
        }
    }

    /// `pg_class.relkind`
    pub(super) fn kind(self) -> char {
        match self {
            Self::System(table) if table.is_view => 'v',
            Self::System(_) | Self::Table(_) => 'r',
            Self::View(_) => 'v',
            Self::Sequence(_) => 'S',
            Self::PrimaryIndex(_) | Self::Index(..) => 'i',
        }
    }

    /// The columns that clients see.
    pub(super) fn attributes(self, schema: &Schema, context: &Context) -> Vec<Attribute> {
        match self {
            Self::System(table) => numbered(
                table
                    .columns
                    .iter()
                    .map(|column| Attribute { not_null: column.not_null, ..of_kind(column.name, column.kind) }),
            ),
            Self::Table(table) => table.visible_columns().map(of_column).collect(),
            Self::View(view) => numbered(
                view_columns(view, schema, context).into_iter().map(|(name, sql_type)| of_type(name, sql_type)),
            ),
            Self::Sequence(_) => {
                let columns = [("last_value", SqlType::Int8), ("log_cnt", SqlType::Int8), ("is_called", SqlType::Bool)];
                numbered(
                    columns
                        .into_iter()
                        .map(|(name, sql_type)| Attribute { not_null: true, ..of_type(name.to_owned(), sql_type) }),
                )
            }
            Self::PrimaryIndex(table) => index_attributes(table, &table.primary_key.columns, &[]),
            Self::Index(table, index) => index_attributes(table, &index.columns, &index.storing),
        }
    }
}

fn numbered(attributes: impl Iterator<Item = Attribute>) -> Vec<Attribute> {
    (1..).zip(attributes).map(|(number, attribute)| Attribute { number, ..attribute }).collect()
}

fn of_type(name: String, sql_type: SqlType) -> Attribute {
    Attribute {
        number: 0,
        name,
        type_oid: sql_type.oid(),
        modifier: sql_type.modifier(),
        not_null: false,
        has_default: false,
        identity: "",
        sql_type: Some(sql_type),
    }
}

fn of_kind(name: &str, kind: CatalogType) -> Attribute {
    let sql_type = kind.sql_type();
    let own = sql_type.oid() == kind.oid();
    Attribute { type_oid: kind.oid(), sql_type: own.then(|| sql_type.clone()), ..of_type(name.to_owned(), sql_type) }
}

fn of_column(column: &Column) -> Attribute {
    Attribute {
        number: attribute_number(column.id),
        not_null: column.not_null,
        has_default: deparse::has_default(column),
        identity: match column.generated.map(|generated| generated.kind) {
            Some(GeneratedKind::Always) => "a",
            Some(GeneratedKind::ByDefault) => "d",
            Some(GeneratedKind::Serial) | None => "",
        },
        ..of_type(column.name.clone(), column.sql_type.clone())
    }
}

fn index_attributes(table: &Table, parts: &[KeyPart], storing: &[ColumnId]) -> Vec<Attribute> {
    let ids = parts.iter().map(|part| part.column).chain(storing.iter().copied());
    let columns = ids.filter_map(|id| table.column(id));
    numbered(columns.map(|column| of_type(column.name.clone(), column.sql_type.clone())))
}

/// The columns of a view, as far as they are known.
fn view_columns(view: &View, schema: &Schema, context: &Context) -> Vec<(String, SqlType)> {
    if let Some(columns) = context.view_columns.get(&view.id) {
        return columns.clone();
    }
    let Ok(statement) = parse_one(&view.query) else { return Vec::new() };
    let plan = match direct::prepare(schema, &statement, &view.query, &[]) {
        Ok(Some(plan)) => Some(plan),
        _ => direct::prepare_scan(schema, &statement, &view.query, &[], &[]).ok().flatten(),
    };
    let columns = plan.map(|plan| plan.columns).unwrap_or_default();
    let with_names = columns.into_iter().enumerate().map(|(at, column)| {
        let name = view.columns.get(at).cloned().unwrap_or(column.name);
        (name, column.sql_type)
    });
    with_names.collect()
}
