//! The tables of `pg_catalog` about relations.

use super::definitions::{SystemTable, type_facts};
use super::fill::fill;
use super::kinds::CatalogType;
use super::relations::{Relation, attribute_number, has_primary_key, indexes};
use super::{Context, Generator, deparse, oids};
use crate::ids::ColumnId;
use crate::keys::Direction;
use crate::schema::{Check, Column, GeneratedKind, Index, IndexState, KeyPart, Schema, Table};
use crate::types::SqlType;
use crate::value::Value;

type Rows = Vec<Vec<Value>>;

/// The access methods of tables and indexes.
const HEAP: u32 = 2;
const BTREE: u32 = 403;

pub(super) fn generator(name: &str) -> Option<Generator> {
    Some(match name {
        "pg_class" => pg_class,
        "pg_attribute" => pg_attribute,
        "pg_attrdef" => pg_attrdef,
        "pg_index" => pg_index,
        "pg_constraint" => pg_constraint,
        "pg_sequence" => pg_sequence,
        "pg_description" => pg_description,
        "pg_depend" => pg_depend,
        "pg_rewrite" => pg_rewrite,
        "pg_tables" => pg_tables,
        "pg_views" => pg_views,
        "pg_indexes" => pg_indexes,
        "pg_sequences" => pg_sequences,
        "pg_stat_all_tables" | "pg_stat_user_tables" | "pg_statio_all_tables" | "pg_statio_user_tables" => {
            table_statistics
        }
        "pg_stat_user_indexes" => index_statistics,
        _ => return None,
    })
}

fn pg_class(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    let relations = Relation::all(schema);
    fill!(table, relations, |relation| {
        oid: relation.oid(),
        relname: relation.name(),
        relnamespace: relation.namespace(),
        relowner: oids::ROLE,
        relam: match relation.kind() {
            'r' => HEAP,
            'i' => BTREE,
            _ => 0,
        },
        relfilenode: if relation.kind() == 'v' { 0 } else { relation.oid() },
        reltuples: -1.0_f32,
        relhasindex: matches!(relation, Relation::Table(table) if has_primary_key(table) || indexes(table).count() > 0),
        relpersistence: "p",
        relkind: relation.kind(),
        relnatts: relation.attributes(schema, context).last().map_or(0, |last| last.number),
        relchecks: match relation {
            Relation::Table(table) => i16::try_from(table.checks.len()).unwrap_or(i16::MAX),
            _ => 0,
        },
        relhasrules: relation.kind() == 'v',
        relispopulated: true,
        relreplident: match relation {
            Relation::Table(_) => "d",
            _ => "n",
        },
    })
}

fn pg_attribute(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    let attributes = Relation::all(schema).into_iter().flat_map(|relation| {
        let attributes = relation.attributes(schema, context);
        attributes.into_iter().map(move |attribute| (relation.oid(), attribute))
    });
    let with_type = attributes.map(|(oid, attribute)| (oid, type_facts(attribute.type_oid), attribute));
    fill!(table, with_type, |(oid, facts, attribute)| {
        attrelid: oid,
        attname: &attribute.name,
        atttypid: attribute.type_oid,
        attstattarget: -1,
        attlen: facts.map_or(-1, |facts| facts.length),
        attnum: attribute.number,
        attndims: i32::from(matches!(attribute.sql_type, Some(SqlType::Array(_)))),
        attcacheoff: -1,
        atttypmod: attribute.modifier,
        attbyval: facts.is_some_and(|facts| facts.by_value),
        attalign: facts.map_or("i", |facts| facts.alignment.as_str()),
        attstorage: facts.map_or("p", |facts| facts.storage.as_str()),
        attnotnull: attribute.not_null,
        atthasdef: attribute.has_default,
        attidentity: attribute.identity,
        attislocal: true,
        attcollation: collation(attribute.type_oid),
    })
}

/// The collation of a column of a type.
pub(super) fn collation(type_oid: u32) -> u32 {
    type_facts(type_oid).map_or(0, |facts| facts.collation)
}

/// The columns with default expressions, and those.
fn defaults(schema: &Schema) -> impl Iterator<Item = (&Table, &Column, String)> {
    schema.tables().flat_map(move |table| {
        table.visible_columns().filter_map(move |column| Some((&**table, column, deparse::default(schema, column)?)))
    })
}

fn pg_attrdef(table: &SystemTable, schema: &Schema, _: &Context) -> Rows {
    fill!(table, defaults(schema), |(of, column, expression)| {
        oid: oids::default(of, column.id),
        adrelid: oids::table(of.id),
        adnum: attribute_number(column.id),
        adbin: expression,
    })
}

/// An index, or the one of a primary key.
struct AnyIndex<'a> {
    table: &'a Table,
    index: Option<&'a Index>,
    oid: u32,
    parts: &'a [KeyPart],
    storing: &'a [ColumnId],
}

fn all_indexes(schema: &Schema) -> impl Iterator<Item = AnyIndex<'_>> {
    Relation::of_schema(schema).filter_map(|relation| {
        let oid = relation.oid();
        match relation {
            Relation::PrimaryIndex(table) => {
                Some(AnyIndex { table, index: None, oid, parts: &table.primary_key.columns, storing: &[] })
            }
            Relation::Index(table, index) => {
                Some(AnyIndex { table, index: Some(index), oid, parts: &index.columns, storing: &index.storing })
            }
            _ => None,
        }
    })
}

impl AnyIndex<'_> {
    fn columns(&self) -> Vec<i16> {
        let key = self.parts.iter().map(|part| part.column);
        key.chain(self.storing.iter().copied()).map(attribute_number).collect()
    }

    fn type_oids(&self) -> impl Iterator<Item = u32> {
        self.parts.iter().map(|part| self.table.column(part.column).map_or(0, |column| column.sql_type.oid()))
    }

    fn options(&self) -> Vec<i16> {
        // Descending, with NULLs first.
        let option = |part: &KeyPart| if part.direction == Direction::Descending { 3 } else { 0 };
        self.parts.iter().map(option).collect()
    }

    fn name(&self) -> &str {
        self.index.map_or(&self.table.primary_key.name, |index| &index.name)
    }

    fn definition(&self) -> String {
        self.index.map_or_else(|| deparse::primary_index(self.table), |index| deparse::index(self.table, index))
    }

    fn is_valid(&self) -> bool {
        self.index.is_none_or(|index| index.state == IndexState::Public)
    }
}

/// The default operator class for B-trees.
fn operator_class(type_oid: u32) -> u32 {
    // `varchar` uses that of `text`.
    let type_oid = if type_oid == SqlType::Varchar(None).oid() { SqlType::Text.oid() } else { type_oid };
    let Some(table) = super::table(None, "pg_opclass") else { return 0 };
    let place = |name: &str| table.columns.iter().position(|column| column.name == name).unwrap_or(usize::MAX);
    let [oid, key, default] = ["oid", "opcintype", "opcdefault"].map(place);
    let is_wanted = |row: &&Vec<Value>| {
        row.get(key) == Some(&Value::Int8(i64::from(type_oid))) && row.get(default) == Some(&Value::Bool(true))
    };
    let found = super::definitions::fixed_rows(table).iter().find(is_wanted);
    found.and_then(|row| u32::try_from(row.get(oid)?.as_integer()?).ok()).unwrap_or(0)
}

fn pg_index(table: &SystemTable, schema: &Schema, _: &Context) -> Rows {
    fill!(table, all_indexes(schema), |index| {
        indexrelid: index.oid,
        indrelid: oids::table(index.table.id),
        indnatts: i16::try_from(index.columns().len()).unwrap_or(i16::MAX),
        indnkeyatts: i16::try_from(index.parts.len()).unwrap_or(i16::MAX),
        indisunique: index.index.is_none_or(|index| index.is_unique),
        indisprimary: index.index.is_none(),
        indimmediate: true,
        indisvalid: index.is_valid(),
        indisready: true,
        indislive: true,
        indkey: index.columns(),
        indcollation: index.type_oids().map(collation).collect::<Vec<u32>>(),
        indclass: index.type_oids().map(operator_class).collect::<Vec<u32>>(),
        indoption: index.options(),
    })
}

/// A constraint of a table.
#[derive(Clone, Copy)]
pub(super) struct Constraint<'a> {
    pub(super) table: &'a Table,
    of: ConstraintKind<'a>,
}

#[derive(Clone, Copy)]
enum ConstraintKind<'a> {
    Primary,
    Unique(&'a Index),
    Check(&'a Check),
}

/// The constraints of a table.
pub(super) fn constraints(table: &Table) -> impl Iterator<Item = Constraint<'_>> {
    let key = has_primary_key(table).then_some(ConstraintKind::Primary);
    let unique = indexes(table).filter(|index| index.is_constraint).map(ConstraintKind::Unique);
    let checks = table.checks.iter().map(ConstraintKind::Check);
    key.into_iter().chain(unique).chain(checks).map(move |of| Constraint { table, of })
}

impl<'a> Constraint<'a> {
    pub(super) fn oid(self) -> u32 {
        match self.of {
            ConstraintKind::Primary => oids::primary_key(self.table),
            ConstraintKind::Unique(index) => oids::unique_constraint(index),
            ConstraintKind::Check(check) => oids::check(self.table, check),
        }
    }

    pub(super) fn name(self) -> &'a str {
        match self.of {
            ConstraintKind::Primary => &self.table.primary_key.name,
            ConstraintKind::Unique(index) => &index.name,
            ConstraintKind::Check(check) => &check.name,
        }
    }

    /// `pg_constraint.contype`: `p`, `u` or `c`.
    pub(super) const fn kind(self) -> char {
        match self.of {
            ConstraintKind::Primary => 'p',
            ConstraintKind::Unique(_) => 'u',
            ConstraintKind::Check(_) => 'c',
        }
    }

    /// The numbers of the columns.
    pub(super) fn columns(self) -> Vec<i16> {
        let numbers = |parts: &[KeyPart]| parts.iter().map(|part| attribute_number(part.column)).collect();
        match self.of {
            ConstraintKind::Primary => numbers(&self.table.primary_key.columns),
            ConstraintKind::Unique(index) => numbers(&index.columns),
            ConstraintKind::Check(check) => deparse::check_columns(self.table, check),
        }
    }

    /// The index of a key.
    fn index(self) -> Option<u32> {
        match self.of {
            ConstraintKind::Primary => Some(oids::primary_index(self.table.id)),
            ConstraintKind::Unique(index) => Some(oids::index(index.id)),
            ConstraintKind::Check(_) => None,
        }
    }

    /// The condition of a check.
    pub(super) fn condition(self) -> Option<&'a str> {
        match self.of {
            ConstraintKind::Check(check) => Some(&check.expression),
            _ => None,
        }
    }

    /// `pg_get_constraintdef`
    pub(super) fn definition(self) -> String {
        match self.of {
            ConstraintKind::Primary => deparse::primary_key(self.table),
            ConstraintKind::Unique(index) => deparse::unique(self.table, index),
            ConstraintKind::Check(check) => format!("CHECK (({}))", check.expression),
        }
    }

    fn is_validated(&self) -> bool {
        match self.of {
            ConstraintKind::Check(check) => self.table.is_validated(check),
            ConstraintKind::Primary | ConstraintKind::Unique(_) => true,
        }
    }
}

fn pg_constraint(table: &SystemTable, schema: &Schema, _: &Context) -> Rows {
    fill!(table, schema.tables().flat_map(|table| constraints(table)), |constraint| {
        oid: constraint.oid(),
        conname: constraint.name(),
        connamespace: oids::PUBLIC,
        contype: constraint.kind(),
        convalidated: constraint.is_validated(),
        conrelid: oids::table(constraint.table.id),
        conindid: constraint.index().unwrap_or(0),
        confupdtype: " ",
        confdeltype: " ",
        confmatchtype: " ",
        conislocal: true,
        // A key is not inherited.
        connoinherit: constraint.kind() != 'c',
        conkey: constraint.columns(),
        conbin: constraint.condition().map(|condition| format!("({condition})")),
    })
}

fn pg_sequence(table: &SystemTable, schema: &Schema, _: &Context) -> Rows {
    fill!(table, schema.sequences(), |sequence| {
        seqrelid: oids::sequence(sequence.id),
        seqtypid: sequence.sql_type.oid(),
        seqstart: sequence.start,
        seqincrement: sequence.increment,
        seqmax: sequence.max,
        seqmin: sequence.min,
        seqcache: sequence.cache,
        seqcycle: sequence.is_cyclic,
    })
}

fn pg_description(table: &SystemTable, schema: &Schema, _: &Context) -> Rows {
    let comments = schema.tables().filter_map(|table| Some((table, deparse::comment(schema, table)?)));
    fill!(table, comments, |(of, comment)| {
        objoid: oids::table(of.id),
        classoid: oids::PG_CLASS,
        description: comment,
    })
}

/// The dependency of one object on another: class and identifier of both, the column of the latter, and the kind.
type Dependency = ((u32, u32), (u32, u32, i16), char);

fn pg_depend(table: &SystemTable, schema: &Schema, _: &Context) -> Rows {
    let dependencies: Vec<Dependency> = schema.tables().flat_map(|table| of_table(schema, table)).collect();
    let rules = schema
        .views()
        .map(|view| ((oids::PG_REWRITE, oids::rule(view.id)), (oids::PG_CLASS, oids::view(view.id), 0), 'i'));
    let owned = schema.sequences().filter_map(|sequence| {
        let (owner, column) = sequence.owner?;
        let kind = schema.table(owner)?.column(column)?.generated.map(|generated| generated.kind);
        let is_identity = matches!(kind, Some(GeneratedKind::Always | GeneratedKind::ByDefault));
        let column = (oids::PG_CLASS, oids::table(owner), attribute_number(column));
        Some(((oids::PG_CLASS, oids::sequence(sequence.id)), column, if is_identity { 'i' } else { 'a' }))
    });
    fill!(table, dependencies.into_iter().chain(rules).chain(owned), |(object, referenced, kind)| {
        classid: object.0,
        objid: object.1,
        refclassid: referenced.0,
        refobjid: referenced.1,
        refobjsubid: i32::from(referenced.2),
        deptype: kind,
    })
}

fn of_table(schema: &Schema, table: &Table) -> Vec<Dependency> {
    let oid = oids::table(table.id);
    let mut all = Vec::new();
    for constraint in constraints(table) {
        let own = (oids::PG_CONSTRAINT, constraint.oid());
        all.extend(constraint.columns().into_iter().map(|column| (own, (oids::PG_CLASS, oid, column), 'a')));
        all.extend(constraint.index().map(|index| ((oids::PG_CLASS, index), (own.0, own.1, 0), 'i')));
    }
    for index in indexes(table).filter(|index| !index.is_constraint) {
        let columns = index.columns.iter().map(|part| part.column).chain(index.storing.iter().copied());
        let own = (oids::PG_CLASS, oids::index(index.id));
        all.extend(columns.map(|column| (own, (oids::PG_CLASS, oid, attribute_number(column)), 'a')));
    }
    for column in table.visible_columns().filter(|column| deparse::has_default(column)) {
        let own = (oids::PG_ATTRDEF, oids::default(table, column.id));
        all.push((own, (oids::PG_CLASS, oid, attribute_number(column.id)), 'a'));
        if let Some(sequence) = column.generated.and_then(|generated| schema.sequence(generated.sequence)) {
            all.push((own, (oids::PG_CLASS, oids::sequence(sequence.id), 0), 'n'));
        }
    }
    all
}

fn pg_rewrite(table: &SystemTable, schema: &Schema, _: &Context) -> Rows {
    fill!(table, schema.views(), |view| {
        oid: oids::rule(view.id),
        rulename: "_RETURN",
        ev_class: oids::view(view.id),
        ev_type: "1",
        ev_enabled: "O",
        is_instead: true,
        ev_qual: "<>",
        ev_action: &view.query,
    })
}

/// The name of the schema of a relation.
pub(super) fn namespace_name(relation: Relation<'_>) -> &'static str {
    match relation {
        Relation::System(table) => table.schema,
        _ => "public",
    }
}

fn pg_tables(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    let tables = Relation::all(schema).into_iter().filter(|relation| relation.kind() == 'r');
    fill!(table, tables, |relation| {
        schemaname: namespace_name(relation),
        tablename: relation.name(),
        tableowner: &context.user,
        hasindexes: matches!(relation, Relation::Table(table) if has_primary_key(table) || indexes(table).count() > 0),
        hasrules: false,
        hastriggers: false,
        rowsecurity: false,
    })
}

fn pg_views(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    let views = Relation::all(schema).into_iter().filter(|relation| relation.kind() == 'v');
    fill!(table, views, |relation| {
        schemaname: namespace_name(relation),
        viewname: relation.name(),
        viewowner: &context.user,
        definition: match relation {
            Relation::View(view) => Some(deparse::view(view)),
            _ => None,
        },
    })
}

fn pg_indexes(table: &SystemTable, schema: &Schema, _: &Context) -> Rows {
    fill!(table, all_indexes(schema), |index| {
        schemaname: "public",
        tablename: &index.table.name,
        indexname: index.name(),
        indexdef: index.definition(),
    })
}

fn pg_sequences(table: &SystemTable, schema: &Schema, context: &Context) -> Rows {
    fill!(table, schema.sequences(), |sequence| {
        schemaname: "public",
        sequencename: &sequence.name,
        sequenceowner: &context.user,
        data_type: sequence.sql_type.oid(),
        start_value: sequence.start,
        min_value: sequence.min,
        max_value: sequence.max,
        increment_by: sequence.increment,
        cycle: sequence.is_cyclic,
        cache_size: sequence.cache,
    })
}

/// The statistics views list the tables and indexes, with counts of 0.
fn table_statistics(table: &SystemTable, schema: &Schema, _: &Context) -> Rows {
    let rows = fill!(table, schema.tables(), |of| {
        relid: oids::table(of.id),
        schemaname: "public",
        relname: &of.name,
    });
    with_zeros(table, rows)
}

fn index_statistics(table: &SystemTable, schema: &Schema, _: &Context) -> Rows {
    let rows = fill!(table, all_indexes(schema), |index| {
        relid: oids::table(index.table.id),
        indexrelid: index.oid,
        schemaname: "public",
        relname: &index.table.name,
        indexrelname: index.name(),
    });
    with_zeros(table, rows)
}

/// Counts are 0 instead of NULL.
pub(super) fn with_zeros(table: &SystemTable, mut rows: Rows) -> Rows {
    for row in &mut rows {
        for (value, column) in row.iter_mut().zip(&table.columns) {
            if value.is_null() && column.kind == CatalogType::Int8 {
                *value = Value::Int8(0);
            }
        }
    }
    rows
}
