//! `INSERT ... VALUES`, with `ON CONFLICT` and `RETURNING`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sqlparser::ast::{self, ConflictTarget, OnConflictAction, OnInsert, SetExpr};

use super::change::{assignments, moves};
use super::{Checks, OutputColumn, Page, Read, Step, expect_pages, output};
use crate::bind::{Binder, Unbound, is_default};
use crate::cast::Context;
use crate::ddl::bind_default;
use crate::error::{SqlError, sqlstate};
use crate::expression::{Environment, Expression, Rows, truth};
use crate::ids::SequenceId;
use crate::keys::RowLayout;
use crate::parse::fold;
use crate::rows::{Absent, TableRows};
use crate::schema::{GeneratedKind, Index, IndexState, Schema, Table, undefined_column};
use crate::value::Value;

#[derive(Clone, Debug)]
pub(super) struct Insert {
    rows: TableRows,
    /// The expressions of each row, one for each column of the table.
    values: Vec<Vec<Expression>>,
    /// The parent of an interleaved table, and its name.
    parent: Option<(RowLayout, String)>,
    conflict: Option<Conflict>,
    output: Vec<Expression>,
}

#[derive(Clone, Debug)]
struct Conflict {
    /// The primary key decides about conflicts.
    primary_key: bool,
    /// Unique indexes that decide, by their number in the table.
    indexes: Vec<usize>,
    /// `DO UPDATE`; otherwise nothing is done.
    update: Option<DoUpdate>,
}

#[derive(Clone, Debug)]
struct DoUpdate {
    assignments: Vec<(usize, Expression)>,
    condition: Option<Expression>,
}

/// A key that decides about a conflict: of the row, or of an index's entry.
#[derive(Clone, Debug)]
struct Arbiter {
    row: usize,
    key: Bytes,
    index: Option<usize>,
}

#[derive(Debug)]
pub(super) struct State {
    rows: Vec<Vec<Value>>,
    arbiters: Vec<Arbiter>,
    /// The conflicting rows, by the number of the inserted one, once they are read.
    fetch: Option<Vec<(usize, Bytes)>>,
    conflicts: BTreeMap<usize, Vec<Value>>,
    /// Rows that conflict, and are skipped.
    skipped: BTreeSet<usize>,
}

pub(super) fn prepare(binder: &mut Binder, insert: &ast::Insert) -> Result<(Insert, Vec<OutputColumn>), Unbound> {
    prepare_with(binder, insert, None)
}

/// The insertion of rows that a query has found, which have the types of the columns.
pub(super) fn given(
    binder: &mut Binder,
    insert: &ast::Insert,
    rows: Vec<Vec<Value>>,
) -> Result<(Insert, Vec<OutputColumn>), Unbound> {
    prepare_with(binder, insert, Some(rows))
}

fn prepare_with(
    binder: &mut Binder,
    insert: &ast::Insert,
    given: Option<Vec<Vec<Value>>>,
) -> Result<(Insert, Vec<OutputColumn>), Unbound> {
    let is_plain = insert.or.is_none()
        && !insert.ignore
        && !insert.overwrite
        && insert.assignments.is_empty()
        && insert.partitioned.is_none()
        && insert.after_columns.is_empty()
        && !insert.replace_into
        && insert.insert_alias.is_none();
    let ast::TableObject::TableName(name) = &insert.table else { return Err(Unbound::NeedsPlanner) };
    if !is_plain {
        return Err(Unbound::NeedsPlanner);
    }
    let table = super::table(binder.schema, name, binder.text)?;
    let rows = TableRows::bound(binder.schema, table)?;
    let columns = target_columns(table, &insert.columns, binder.text)?;
    let values = match (&insert.source, given) {
        (_, Some(rows)) => {
            let defaults = default_row(binder, table)?;
            rows.into_iter().map(|row| with_values(&defaults, &columns, row)).collect()
        }
        (None, None) => vec![default_row(binder, table)?],
        (Some(source), None) => source_rows(binder, table, &columns, !insert.columns.is_empty(), source)?,
    };
    let alias = insert.table_alias.as_ref().map_or_else(|| table.name.clone(), |alias| fold(&alias.alias));
    binder.table = Some((table, alias));
    let conflict = match &insert.on {
        None => None,
        Some(OnInsert::OnConflict(on)) => Some(conflict(binder, &rows, on)?),
        Some(_) => return Err(Unbound::NeedsPlanner),
    };
    let (output, outputs) = output::bind(binder, insert.returning.as_deref().unwrap_or_default())?;
    let parent = parent_of(binder.schema, table);
    Ok((Insert { rows, values, parent, conflict, output }, outputs))
}

/// The keys and the name of the table that a table is interleaved in.
pub(super) fn parent_of(schema: &Schema, table: &Table) -> Option<(RowLayout, String)> {
    let parent = schema.table(table.interleave?.parent)?;
    Some((schema.row_layout(parent), parent.name.clone()))
}

/// The key of the parent of a row with this primary key.
pub(super) fn parent_key(parent: &RowLayout, values: &[Value]) -> Result<Bytes, SqlError> {
    let values = values.get(..parent.columns().count()).unwrap_or(values);
    Ok(parent.key(values)?.into())
}

/// The insertion of rows with these values, which have the types of the columns.
pub(super) fn of_rows(
    binder: &mut Binder,
    table: &std::sync::Arc<Table>,
    columns: &[usize],
    rows: Vec<Vec<Value>>,
) -> Result<Insert, Unbound> {
    let defaults = default_row(binder, table)?;
    let values = rows.into_iter().map(|row| with_values(&defaults, columns, row)).collect();
    let rows = TableRows::bound(binder.schema, table)?;
    let parent = parent_of(binder.schema, table);
    Ok(Insert { rows, values, parent, conflict: None, output: Vec::new() })
}

/// The expressions of a row with these values of some columns.
fn with_values(defaults: &[Expression], columns: &[usize], values: Vec<Value>) -> Vec<Expression> {
    let mut row = defaults.to_vec();
    for (value, number) in values.into_iter().zip(columns) {
        if let Some(place) = row.get_mut(*number) {
            *place = Expression::Constant(value);
        }
    }
    row
}

/// The numbers of the columns that get values.
pub(super) fn target_columns(table: &Table, names: &[ast::ObjectName], text: &str) -> Result<Vec<usize>, Unbound> {
    let visible = table.columns.iter().enumerate().filter(|(_, column)| !column.is_hidden);
    if names.is_empty() {
        return Ok(visible.map(|(number, _)| number).collect());
    }
    let mut numbers = Vec::with_capacity(names.len());
    for name in names {
        let [ast::ObjectNamePart::Identifier(name)] = &name.0[..] else { return Err(Unbound::NeedsPlanner) };
        let folded = fold(name);
        let number = visible.clone().find(|(_, column)| column.name == folded).map(|(number, _)| number);
        let number = number.ok_or_else(|| {
            let message = format!("column \"{folded}\" of relation \"{}\" does not exist", table.name);
            let error = undefined_column(table, &folded).at(crate::parse::position(text, name.span.start));
            SqlError { message, ..error }
        })?;
        if numbers.contains(&number) {
            let message = format!("column \"{folded}\" specified more than once");
            return Err(SqlError::new(sqlstate::DUPLICATE_COLUMN, message).into());
        }
        numbers.push(number);
    }
    Ok(numbers)
}

/// The default of each column.
fn default_row(binder: &Binder, table: &Table) -> Result<Vec<Expression>, Unbound> {
    let default = |column: &crate::schema::Column| match column.generated {
        Some(generated) => Ok(Expression::Cast(
            Box::new(Expression::NextValue(generated.sequence)),
            column.sql_type.clone(),
            Context::Assignment,
        )),
        None => Ok(bind_default(binder.schema, column)?.unwrap_or(Expression::Constant(Value::Null))),
    };
    table.columns.iter().map(default).collect()
}

fn source_rows(
    binder: &mut Binder,
    table: &Table,
    columns: &[usize],
    has_names: bool,
    source: &ast::Query,
) -> Result<Vec<Vec<Expression>>, Unbound> {
    let SetExpr::Values(values) = &*source.body else { return Err(Unbound::NeedsPlanner) };
    if source.with.is_some() || source.order_by.is_some() || source.limit_clause.is_some() || source.fetch.is_some() {
        return Err(Unbound::NeedsPlanner);
    }
    let defaults = default_row(binder, table)?;
    let mut rows = Vec::with_capacity(values.rows.len());
    for row in &values.rows {
        let given = row.content.len();
        let is_short = given < columns.len() && has_names;
        if given > columns.len() || is_short {
            let more = if is_short { "target columns than expressions" } else { "expressions than target columns" };
            return Err(SqlError::new(sqlstate::SYNTAX_ERROR, format!("INSERT has more {more}")).into());
        }
        let mut bound = defaults.clone();
        for (value, number) in row.content.iter().zip(columns) {
            let column = &table.columns[*number];
            let is_always = column.generated.is_some_and(|generated| generated.kind == GeneratedKind::Always);
            if is_always && !is_default(value) {
                let message = format!("cannot insert a non-DEFAULT value into column \"{}\"", column.name);
                let detail = format!("Column \"{}\" is an identity column defined as GENERATED ALWAYS.", column.name);
                return Err(SqlError::new(sqlstate::GENERATED_ALWAYS, message).with_detail(detail).into());
            }
            if let Some(value) = binder.assigned(&column.name, &column.sql_type, value)? {
                bound[*number] = value;
            }
        }
        rows.push(bound);
    }
    Ok(rows)
}

fn conflict(binder: &mut Binder, rows: &TableRows, on: &ast::OnConflict) -> Result<Conflict, Unbound> {
    let unique = rows.indexes.iter().enumerate();
    // An index that is not filled yet does not contain all conflicting rows.
    let unique = unique.filter(|(_, (index, _))| index.is_unique && index.state == IndexState::Public);
    let has_key = !rows.table.primary_key.name.is_empty();
    let (primary_key, indexes): (bool, Vec<usize>) = match &on.conflict_target {
        None => (has_key, unique.map(|(number, _)| number).collect()),
        Some(ConflictTarget::OnConstraint(name)) => {
            let name = crate::parse::simple_name(name)?;
            let found = unique.filter(|(_, (index, _))| index.name == name).map(|(number, _)| number);
            (has_key && rows.table.primary_key.name == name, found.collect())
        }
        Some(ConflictTarget::Columns(names)) => {
            let ids = names.iter().map(|name| {
                let name = fold(name);
                rows.table
                    .column_named(&name)
                    .map(|column| column.id)
                    .ok_or_else(|| undefined_column(&rows.table, &name))
            });
            let ids = ids.collect::<Result<BTreeSet<_>, _>>()?;
            let is_same =
                |parts: &[crate::schema::KeyPart]| parts.iter().map(|part| part.column).collect::<BTreeSet<_>>() == ids;
            let found = unique.filter(|(_, (index, _))| is_same(&index.columns)).map(|(number, _)| number);
            (has_key && is_same(&rows.table.primary_key.columns), found.collect())
        }
    };
    if !primary_key && indexes.is_empty() && on.conflict_target.is_some() {
        let message = "there is no unique or exclusion constraint matching the ON CONFLICT specification";
        return Err(SqlError::new(sqlstate::INVALID_COLUMN_REFERENCE, message).into());
    }
    let update = match &on.action {
        OnConflictAction::DoNothing => None,
        OnConflictAction::DoUpdate(_) if on.conflict_target.is_none() => {
            let message = "ON CONFLICT DO UPDATE requires inference specification or constraint name";
            return Err(SqlError::new(sqlstate::SYNTAX_ERROR, message).into());
        }
        OnConflictAction::DoUpdate(update) => {
            binder.has_excluded = true;
            let set = assignments(binder, &rows.table, &update.assignments)?;
            // Another key is another row.
            if moves(&rows.table, &set) {
                return Err(Unbound::NeedsPlanner);
            }
            let condition = update.selection.as_ref().map(|condition| binder.condition(condition)).transpose()?;
            binder.has_excluded = false;
            Some(DoUpdate { assignments: set, condition })
        }
    };
    Ok(Conflict { primary_key, indexes, update })
}

impl Insert {
    pub(super) fn sequences(&self) -> Vec<(SequenceId, usize)> {
        let mut counts = BTreeMap::new();
        for expression in self.values.iter().flatten() {
            count_sequences(expression, &mut counts);
        }
        counts.into_iter().collect()
    }

    fn index(&self, number: usize) -> Result<&(Index, crate::keys::IndexLayout), SqlError> {
        self.rows.indexes.get(number).ok_or_else(|| SqlError::new(sqlstate::INTERNAL_ERROR, "there is no such index"))
    }

    pub(super) fn start(&self, environment: &mut Environment) -> Result<(super::State, Step), SqlError> {
        let mut rows = Vec::with_capacity(self.values.len());
        for expressions in &self.values {
            let values = expressions.iter().map(|value| value.evaluate(Rows::default(), environment));
            let row = values.collect::<Result<Vec<_>, _>>()?;
            self.rows.check(&row, environment)?;
            rows.push(row);
        }
        let mut arbiters = Vec::new();
        if let Some(conflict) = &self.conflict {
            for (number, row) in rows.iter().enumerate() {
                if conflict.primary_key {
                    arbiters.push(Arbiter { row: number, key: self.rows.key(row)?, index: None });
                }
                for index in &conflict.indexes {
                    let (of, layout) = self.index(*index)?;
                    // NULLs are distinct.
                    if !self.rows.indexed(of, row).iter().any(Value::is_null) {
                        let key = self.rows.entry(of, layout, row)?.key;
                        arbiters.push(Arbiter { row: number, key, index: Some(*index) });
                    }
                }
            }
        }
        let reads: Vec<Read> = arbiters.iter().map(|arbiter| Read::Locked(arbiter.key.clone())).collect();
        let state = State { rows, arbiters, fetch: None, conflicts: BTreeMap::new(), skipped: BTreeSet::new() };
        if reads.is_empty() {
            return self.finish(&state, environment);
        }
        Ok((super::State::Insert(state), Step::Read(reads)))
    }

    pub(super) fn advance(
        &self,
        mut state: State,
        pages: &[Page],
        environment: &mut Environment,
    ) -> Result<(super::State, Step), SqlError> {
        if let Some(fetch) = state.fetch.take() {
            expect_pages(pages, fetch.len())?;
            for ((number, _), page) in fetch.into_iter().zip(pages) {
                let row = page.rows.first().map(|row| self.rows.decode(row)).transpose()?.flatten();
                let row = row.ok_or_else(|| deleted(&self.rows.table.name))?;
                state.conflicts.insert(number, row);
            }
            return self.finish(&state, environment);
        }
        expect_pages(pages, state.arbiters.len())?;
        let updates = self.conflict.as_ref().is_some_and(|conflict| conflict.update.is_some());
        let mut claimed: BTreeMap<&Bytes, usize> = BTreeMap::new();
        let mut fetch = Vec::new();
        for (arbiter, page) in state.arbiters.iter().zip(pages) {
            let earlier = claimed.get(&arbiter.key).filter(|row| **row != arbiter.row && !state.skipped.contains(row));
            let found = page.rows.first();
            if earlier.is_some() && updates {
                let message = "ON CONFLICT DO UPDATE command cannot affect row a second time";
                return Err(SqlError::new(sqlstate::CARDINALITY_VIOLATION, message).with_hint(
                    "Ensure that no rows proposed for insertion within the same command have duplicate constrained values.",
                ));
            }
            if !updates && (earlier.is_some() || found.is_some()) {
                state.skipped.insert(arbiter.row);
            } else if let Some(found) = found {
                match arbiter.index {
                    None => {
                        let row = self.rows.decode(found)?.ok_or_else(|| SqlError::corrupt("a row"))?;
                        state.conflicts.insert(arbiter.row, row);
                    }
                    Some(index) => {
                        let (_, layout) = self.index(index)?;
                        let marker = crate::cells::name(crate::cells::MARKER);
                        let reference = found.cells.iter().find(|(name, _)| *name == marker);
                        let reference = reference.map_or(&[][..], |(_, value)| value);
                        let (_, key) = layout.decode(&found.key, reference)?;
                        fetch.push((arbiter.row, Bytes::from(self.rows.layout.key(&key)?)));
                    }
                }
            }
            if !state.skipped.contains(&arbiter.row) {
                claimed.insert(&arbiter.key, arbiter.row);
            }
        }
        if fetch.is_empty() {
            return self.finish(&state, environment);
        }
        let reads = fetch.iter().map(|(_, key)| Read::Locked(key.clone())).collect();
        state.fetch = Some(fetch);
        Ok((super::State::Insert(state), Step::Read(reads)))
    }

    /// The writes, and their checks.
    fn finish(&self, state: &State, environment: &mut Environment) -> Result<(super::State, Step), SqlError> {
        let mut checks = Checks::default();
        let mut parents = BTreeSet::new();
        for (number, row) in state.rows.iter().enumerate() {
            if state.skipped.contains(&number) {
                continue;
            }
            let result = match state.conflicts.get(&number) {
                Some(existing) => match self.update(existing, row, environment)? {
                    Some(updated) => {
                        let outcome = &mut checks.outcome;
                        self.rows.change(Some(existing), Some(&updated), &mut outcome.writes, &mut checks.absent)?;
                        updated
                    }
                    None => continue,
                },
                None => {
                    let key = self.rows.key(row)?;
                    // A hidden key is a random UUID.
                    if !self.rows.table.primary_key.name.is_empty() {
                        checks.absent.push(Absent::new(key, self.rows.duplicate(None, row)));
                    }
                    self.rows.change(None, Some(row), &mut checks.outcome.writes, &mut checks.absent)?;
                    if let Some((layout, name)) = &self.parent {
                        let key = parent_key(layout, &self.rows.primary_key(row))?;
                        if parents.insert(key.clone()) {
                            checks.present.push((key, orphan(&self.rows.table.name, name)));
                        }
                    }
                    row.clone()
                }
            };
            checks.outcome.affected += 1;
            if !self.output.is_empty() {
                checks.outcome.rows.push(output::evaluate(&self.output, &result, environment)?);
            }
        }
        checks.start()
    }

    /// The row after `DO UPDATE`; `None` if its condition does not hold.
    fn update(
        &self,
        existing: &[Value],
        proposed: &[Value],
        environment: &mut Environment,
    ) -> Result<Option<Vec<Value>>, SqlError> {
        let Some(DoUpdate { assignments, condition }) =
            self.conflict.as_ref().and_then(|conflict| conflict.update.as_ref())
        else {
            return Ok(None);
        };
        let rows = Rows { row: existing, excluded: proposed };
        if let Some(condition) = condition
            && truth(&condition.evaluate(rows, environment)?)? != Some(true)
        {
            return Ok(None);
        }
        let mut updated = existing.to_vec();
        for (number, value) in assignments {
            updated[*number] = value.evaluate(rows, environment)?;
        }
        self.rows.check(&updated, environment)?;
        Ok(Some(updated))
    }
}

/// The error if a row was deleted after its index entry was read. Another attempt reads neither.
fn deleted(table: &str) -> SqlError {
    let error = SqlError::new(sqlstate::SERIALIZATION_FAILURE, "could not serialize access due to concurrent delete");
    error.with_detail(format!("A conflicting row of table \"{table}\" was deleted after its index entry was read."))
}

/// The error of a row without a parent.
pub(super) fn orphan(child: &str, parent: &str) -> SqlError {
    let message = format!("insert or update on table \"{child}\" violates interleaving in table \"{parent}\"");
    let error = SqlError::new(sqlstate::FOREIGN_KEY_VIOLATION, message);
    error.with_detail(format!("The key is not present in table \"{parent}\"."))
}

pub(super) fn count_sequences(expression: &Expression, counts: &mut BTreeMap<SequenceId, usize>) {
    expression.visit(&mut |part| {
        if let Expression::NextValue(sequence) = part {
            *counts.entry(*sequence).or_default() += 1;
        }
    });
}
