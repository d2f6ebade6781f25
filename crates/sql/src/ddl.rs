//! Changes of the schema by statements: [`apply`] is a pure function from one version to the next.

mod alter;
mod create;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bind::{Binder, Unbound};
use crate::error::{SqlError, sqlstate};
use crate::expression::{Environment, Expression, Rows, Supply};
use crate::ids::{IndexId, SequenceId, TableId};
use crate::parse::parse_expression;
pub use crate::schema::Work;
use crate::schema::{Builder, Column, IndexState, Job, Relation, Schema, Sequence, Table};
use crate::statement::{Definition, DropKind};
use crate::types::SqlType;
use crate::value::Value;

/// The result of a definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The next version; the same one if nothing had to be done.
    pub schema: Schema,
    /// Messages such as that a table exists already.
    pub notices: Vec<String>,
    /// The work on existing rows that completes the change: all of one table, in one transaction with [`publish_index`]
    /// and [`publish_primary_key`], or in several ones with [`begin_job`].
    pub work: Vec<Work>,
}

/// The next version of a schema.
///
/// # Errors
/// With PostgreSQL's SQLSTATE; the schema stays as it was.
pub fn apply(schema: &Schema, definition: &Definition) -> Result<Change, SqlError> {
    let mut changer = Changer { before: schema, builder: Builder::new(schema), notices: Vec::new(), work: Vec::new() };
    let changed = match definition {
        Definition::CreateTable(create) => changer.create_table(create)?,
        Definition::CreateIndex(create) => changer.create_index(create)?,
        Definition::CreateView { name, or_replace, columns, query, relations } => {
            changer.create_view(name, *or_replace, columns, query, relations)?
        }
        Definition::CreateSequence { name, if_not_exists, options, owner } => {
            changer.create_sequence(name, *if_not_exists, options, owner.as_ref())?
        }
        Definition::AlterTable { name, if_exists, changes } => changer.alter_table(name, *if_exists, changes)?,
        Definition::Drop { kind, names, if_exists, cascade } => changer.drop(*kind, names, *if_exists, *cascade)?,
    };
    let Changer { builder, notices, work, .. } = changer;
    let schema = if changed { builder.finish()? } else { schema.clone() };
    Ok(Change { schema, notices, work })
}

/// Truncates tables: they get new identifiers for their keys, as in PostgreSQL, and the old rows become garbage. With
/// `restart_identity`, the sequences of their columns also get new identifiers, and start again. Returns the next
/// version.
///
/// # Errors
/// 42P01: there is no such table; 0A000: interleaved tables are not listed, and `cascade` is false.
pub fn truncate(schema: &Schema, names: &[String], cascade: bool, restart_identity: bool) -> Result<Schema, SqlError> {
    let mut ids = Vec::new();
    for name in names {
        let id = schema.table_named(name)?.id;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let mut at = 0;
    while let Some(id) = ids.get(at).copied() {
        at += 1;
        for child in schema.children(id) {
            if ids.contains(&child.id) {
                continue;
            }
            if !cascade {
                let error =
                    SqlError::new(sqlstate::FEATURE_NOT_SUPPORTED, "cannot truncate a table with interleaved tables");
                let error = error.with_detail(format!("Table \"{}\" is interleaved in it.", child.name));
                return Err(error.with_hint("Truncate it at the same time, or use TRUNCATE ... CASCADE."));
            }
            ids.push(child.id);
        }
    }
    let mut builder = Builder::new(schema);
    // Parents first: the identifiers of their keys are in those of their children.
    ids.sort_unstable();
    for id in &ids {
        builder.truncate_table(schema, *id)?;
    }
    let is_owned = |sequence: &&Arc<Sequence>| sequence.owner.is_some_and(|(table, _)| ids.contains(&table));
    for sequence in schema.sequences().filter(is_owned).filter(|_| restart_identity) {
        builder.restart_sequence(sequence.id)?;
    }
    builder.finish()
}

/// Makes a filled index public.
///
/// # Errors
/// 42704: there is no such index.
pub fn publish_index(schema: &Schema, table: TableId, index: IndexId) -> Result<Schema, SqlError> {
    let missing = || SqlError::new(sqlstate::UNDEFINED_OBJECT, format!("index {index} does not exist"));
    let mut changed = (**schema.table(table).ok_or_else(missing)?).clone();
    changed.indexes.iter_mut().find(|candidate| candidate.id == index).ok_or_else(missing)?.state = IndexState::Public;
    let mut builder = Builder::new(schema);
    builder.put_table(changed)?;
    builder.finish()
}

/// Makes a filled key the primary key of its table, and removes the hidden column.
///
/// # Errors
/// 42704: there is none.
pub fn publish_primary_key(schema: &Schema, table: TableId) -> Result<Schema, SqlError> {
    let missing = || SqlError::new(sqlstate::UNDEFINED_OBJECT, "no primary key is being added");
    let mut changed = (**schema.table(table).ok_or_else(missing)?).clone();
    let mut builder = Builder::new(schema);
    make_primary(&mut changed, &mut builder)?;
    builder.put_table(changed)?;
    builder.finish()
}

fn make_primary(table: &mut Table, builder: &mut Builder) -> Result<(), SqlError> {
    let missing = || SqlError::new(sqlstate::UNDEFINED_OBJECT, "no primary key is being added");
    let key = table.pending_key.take().ok_or_else(missing)?;
    builder.discard(table.storage().0);
    table.primary_key = key;
    table.columns.retain(|column| !column.is_hidden);
    Ok(())
}

/// The version in which the work of a change is a job. Its objects are maintained and enforced, but not public.
///
/// # Errors
/// 42P01: the table does not exist.
pub fn begin_job(schema: &Schema, table: TableId, id: u64, work: &[Work]) -> Result<Schema, SqlError> {
    let mut changed = job_table(schema, table)?;
    for column in &mut changed.columns {
        column.not_null &= !work.contains(&Work::CheckNotNull(table, column.id));
    }
    changed.jobs.push(Job { id, work: work.to_vec() });
    let mut builder = Builder::new(schema);
    builder.put_table(changed)?;
    builder.finish()
}

/// The version in which the objects of a job are public.
///
/// # Errors
/// 42704: there is no such job.
pub fn finish_job(schema: &Schema, table: TableId, id: u64) -> Result<Schema, SqlError> {
    let mut changed = job_table(schema, table)?;
    let job = take_job(&mut changed, id)?;
    let mut builder = Builder::new(schema);
    for work in job.work {
        match work {
            Work::FillIndex(_, id) => {
                let index = changed.indexes.iter_mut().find(|index| index.id == id);
                index.ok_or_else(no_job)?.state = IndexState::Public;
            }
            Work::FillPrimaryKey(_) => make_primary(&mut changed, &mut builder)?,
            Work::CheckNotNull(_, id) => {
                let column = changed.columns.iter_mut().find(|column| column.id == id);
                column.ok_or_else(no_job)?.not_null = true;
            }
            Work::CheckConstraint(..) => {}
        }
    }
    builder.put_table(changed)?;
    builder.finish()
}

/// The version without a job and its unfinished objects.
///
/// # Errors
/// 42704: there is no such job.
pub fn cancel_job(schema: &Schema, table: TableId, id: u64) -> Result<Schema, SqlError> {
    let mut changed = job_table(schema, table)?;
    let job = take_job(&mut changed, id)?;
    let mut builder = Builder::new(schema);
    for work in job.work {
        match work {
            Work::FillIndex(_, id) => {
                changed.indexes.retain(|index| index.id != id);
                builder.discard(id.0);
            }
            Work::FillPrimaryKey(_) => {
                changed.pending_key.take().into_iter().for_each(|key| builder.discard(key.storage.0));
            }
            Work::CheckNotNull(..) => {}
            Work::CheckConstraint(_, name) => changed.checks.retain(|check| check.name != name),
        }
    }
    builder.put_table(changed)?;
    builder.finish()
}

fn no_job() -> SqlError {
    SqlError::new(sqlstate::UNDEFINED_OBJECT, "the objects that the statement adds were dropped")
}

fn job_table(schema: &Schema, table: TableId) -> Result<Table, SqlError> {
    let missing = || SqlError::new(sqlstate::UNDEFINED_TABLE, "the table was dropped");
    schema.table(table).map(|table| (**table).clone()).ok_or_else(missing)
}

fn take_job(table: &mut Table, id: u64) -> Result<Job, SqlError> {
    let found = table.jobs.iter().position(|job| job.id == id);
    found.map(|number| table.jobs.remove(number)).ok_or_else(no_job)
}

/// A supply without values: for expressions of definitions.
struct NoSupply;

impl Supply for NoSupply {
    fn next_value(&mut self, _: SequenceId) -> Result<i64, SqlError> {
        Err(SqlError::unsupported("a value of a sequence here"))
    }

    fn random_uuid(&mut self) -> [u8; 16] {
        [0; 16]
    }
}

/// Binds a column's default expression.
pub(crate) fn bind_default(schema: &Schema, column: &Column) -> Result<Option<Expression>, Unbound> {
    let Some(text) = &column.default else { return Ok(None) };
    let parsed = parse_expression(text)?;
    let mut binder = Binder::new(schema, text, &[]);
    let bound = binder.assigned(&column.name, &column.sql_type, &parsed)?;
    if binder.parameters.is_empty() {
        Ok(bound)
    } else {
        Err(SqlError::new(sqlstate::UNDEFINED_PARAMETER, "there is no parameter $1").into())
    }
}

/// Checks a default expression, and returns its value if it is constant.
fn check_default(schema: &Schema, column: &Column) -> Result<Option<Value>, SqlError> {
    match bind_default(schema, column) {
        Ok(None) => Ok(Some(Value::Null)),
        Ok(Some(expression @ Expression::Constant(_)) | Some(expression @ Expression::Cast(..)))
            if expression.is_constant() && !uses_time(&expression) =>
        {
            let mut environment = Environment { parameters: &[], now: 0, supply: &mut NoSupply };
            expression.evaluate(Rows::default(), &mut environment).map(Some)
        }
        Ok(Some(_)) => Ok(None),
        Err(Unbound::NeedsPlanner) => {
            Err(SqlError::unsupported(format!("the default expression of column \"{}\"", column.name)))
        }
        Err(Unbound::Error(error)) => Err(error),
    }
}

fn uses_time(expression: &Expression) -> bool {
    let mut uses_time = false;
    expression.visit(&mut |part| uses_time |= matches!(part, Expression::Now));
    uses_time
}

/// Checks that a condition is boolean and only uses columns of the table. Refuses one that needs a planner.
fn check_condition(schema: &Schema, table: &Table, text: &str) -> Result<(), SqlError> {
    let parsed = parse_expression(text)?;
    let mut binder = Binder::new(schema, text, &[]);
    binder.table = Some((table, table.name.clone()));
    match binder.condition(&parsed) {
        Ok(_) => Ok(()),
        Err(Unbound::NeedsPlanner) => Err(SqlError::unsupported(format!("the check constraint ({text})"))),
        Err(Unbound::Error(error)) => Err(SqlError { position: None, ..error }),
    }
}

/// A schema while a definition changes it.
struct Changer<'a> {
    before: &'a Schema,
    builder: Builder,
    notices: Vec<String>,
    work: Vec<Work>,
}

impl Changer<'_> {
    /// Whether a name is taken; with `if_not_exists`, that is only a notice.
    fn is_taken(&mut self, name: &str, if_not_exists: bool) -> Result<bool, SqlError> {
        if self.before.relation(name).is_none() {
            return Ok(false);
        }
        let message = format!("relation \"{name}\" already exists");
        if if_not_exists {
            self.notices.push(format!("{message}, skipping"));
            return Ok(true);
        }
        Err(SqlError::new(sqlstate::DUPLICATE_TABLE, message))
    }

    /// A name that no relation has, from PostgreSQL's pattern: `table_column_suffix`, with a number if it is taken.
    fn free_name(&self, parts: &[&str], taken: &BTreeMap<String, ()>) -> String {
        let mut base = parts.join("_");
        let limit = crate::schema::NAME_BYTES_MAX - 6;
        if base.len() > limit {
            let suffix = parts.last().map_or(String::new(), |suffix| format!("_{suffix}"));
            let end = (0..=limit.saturating_sub(suffix.len())).rev().find(|at| base.is_char_boundary(*at));
            base.truncate(end.unwrap_or(0));
            base.push_str(&suffix);
        }
        let is_free = |name: &String| self.before.relation(name).is_none() && !taken.contains_key(name);
        let numbered = (1_u32..).map(|number| format!("{base}{number}"));
        std::iter::once(base.clone()).chain(numbered).find(is_free).unwrap_or(base)
    }

    fn drop(&mut self, kind: DropKind, names: &[String], if_exists: bool, cascade: bool) -> Result<bool, SqlError> {
        let mut changed = false;
        for name in names {
            let Some(relation) = self.before.relation(name) else {
                let what = match kind {
                    DropKind::Table => "table",
                    DropKind::Index => "index",
                    DropKind::View => "view",
                    DropKind::Sequence => "sequence",
                };
                let message = format!("{what} \"{name}\" does not exist");
                if if_exists {
                    self.notices.push(format!("{message}, skipping"));
                    continue;
                }
                let state =
                    if kind == DropKind::Index { sqlstate::UNDEFINED_OBJECT } else { sqlstate::UNDEFINED_TABLE };
                return Err(SqlError::new(state, message));
            };
            match (kind, relation) {
                (DropKind::Table, Relation::Table(id)) => self.drop_table(id, names, cascade)?,
                (DropKind::View, Relation::View(id)) => {
                    self.drop_dependent_views(name, cascade)?;
                    self.builder.remove_view(id);
                }
                (DropKind::Sequence, Relation::Sequence(id)) => self.drop_sequence(id)?,
                (DropKind::Index, Relation::Index(table, Some(index))) => self.drop_index(table, index, name)?,
                (DropKind::Index, Relation::Index(..)) => {
                    let message = format!("cannot drop index {name} because a constraint requires it");
                    return Err(SqlError::new(sqlstate::DEPENDENT_OBJECTS_STILL_EXIST, message));
                }
                _ => {
                    let wanted = format!("{kind:?}").to_lowercase();
                    let article = if kind == DropKind::Index { "an" } else { "a" };
                    let message = format!("\"{name}\" is not {article} {wanted}");
                    return Err(SqlError::new(sqlstate::WRONG_OBJECT_TYPE, message));
                }
            }
            changed = true;
        }
        Ok(changed)
    }

    fn dependency(&self, what: &str, dependents: &str) -> SqlError {
        let message = format!("cannot drop {what} because other objects depend on it");
        SqlError::new(sqlstate::DEPENDENT_OBJECTS_STILL_EXIST, message)
            .with_detail(format!("{dependents} depends on {what}"))
            .with_hint("Use DROP ... CASCADE to drop the dependent objects too.")
    }

    fn drop_dependent_views(&mut self, name: &str, cascade: bool) -> Result<(), SqlError> {
        let dependents = self.before.dependent_views(name);
        if let Some(first) = dependents.first().filter(|_| !cascade) {
            return Err(self.dependency(name, &format!("view {first}")));
        }
        for view in dependents {
            if let Some(Relation::View(id)) = self.before.relation(view) {
                self.notices.push(format!("drop cascades to view {view}"));
                self.builder.remove_view(id);
            }
        }
        Ok(())
    }

    fn drop_table(&mut self, id: TableId, listed: &[String], cascade: bool) -> Result<(), SqlError> {
        let Some(table) = self.before.table(id) else { return Ok(()) };
        self.drop_dependent_views(&table.name, cascade)?;
        let children: Vec<(TableId, String)> =
            self.before.children(id).map(|child| (child.id, child.name.clone())).collect();
        for (child, name) in children {
            if listed.contains(&name) {
                continue;
            }
            if !cascade {
                return Err(self.dependency(&format!("table {}", table.name), &format!("interleaved table {name}")));
            }
            self.notices.push(format!("drop cascades to table {name}"));
            self.drop_table(child, listed, cascade)?;
        }
        self.builder.remove_table(self.before, id);
        Ok(())
    }

    fn drop_sequence(&mut self, id: SequenceId) -> Result<(), SqlError> {
        let Some(sequence) = self.before.sequence(id) else { return Ok(()) };
        let needs = |column: &Column| {
            let is_default = column.default.as_ref().is_some_and(|text| text.contains(&sequence.name));
            is_default || column.generated.is_some_and(|generated| generated.sequence == id)
        };
        if let Some(table) = self.before.tables().find(|table| table.columns.iter().any(needs)) {
            let what = format!("sequence {}", sequence.name);
            return Err(self.dependency(&what, &format!("a default value of table {}", table.name)));
        }
        self.builder.remove_sequence(id);
        Ok(())
    }

    fn drop_index(&mut self, table: TableId, index: IndexId, name: &str) -> Result<(), SqlError> {
        let Some(mut table) = self.current(table)? else { return Ok(()) };
        if table.indexes.iter().any(|candidate| candidate.id == index && candidate.is_constraint) {
            let message =
                format!("cannot drop index {name} because constraint {name} on table {} requires it", table.name);
            let error = SqlError::new(sqlstate::DEPENDENT_OBJECTS_STILL_EXIST, message);
            return Err(error.with_hint(format!("You can drop constraint {name} on table {} instead.", table.name)));
        }
        table.indexes.retain(|candidate| candidate.id != index);
        self.builder.discard(index.0);
        self.builder.put_table(table)
    }

    /// A table as it is after the changes so far.
    fn current(&self, id: TableId) -> Result<Option<Table>, SqlError> {
        Ok(self.builder.so_far()?.table(id).map(|table| (**table).clone()))
    }
}

/// Checks that values of a type can be in a column.
fn check_column_type(name: &str, sql_type: &SqlType) -> Result<(), SqlError> {
    if matches!(sql_type, SqlType::Interval | SqlType::Array(_)) {
        return Err(SqlError::unsupported(format!("column \"{name}\" of type {sql_type}")));
    }
    Ok(())
}
