//! `UPDATE` and `DELETE` of one row by its primary key, which `UPDATE` may also change; the change of a row also for
//! [`super::scan`].

use std::sync::Arc;

use base::canary::{Bug, planted};
use sqlparser::ast;

use super::condition::{Condition, divide};
use super::insert::{orphan, parent_key, parent_of};
use super::select::single_table;
use super::{Checks, Outcome, OutputColumn, Page, Read, Step, expect_pages, output};
use crate::bind::{Binder, Unbound, is_default};
use crate::ddl::bind_default;
use crate::error::{SqlError, sqlstate};
use crate::expression::{Environment, Expression, Rows};
use crate::keys::{self, KeyRange, RowLayout};
use crate::parse::fold;
use crate::rows::{Absent, StoredRow, TableRows, Write};
use crate::schema::{GeneratedKind, Schema, Table, undefined_column};
use crate::value::Value;

/// Rows of descendants that are read at once.
const PAGE_ROWS: usize = 1_000;

#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) rows: TableRows,
    pub(super) condition: Condition,
    /// The columns that `UPDATE` assigns; none for `DELETE`.
    assignments: Option<Vec<(usize, Expression)>>,
    /// It assigns columns of the primary key: a row with another key is another row of the store.
    moves: bool,
    /// The keys and the name of the table that the rows are interleaved in, if it assigns columns of the primary key.
    parent: Option<(RowLayout, String)>,
    /// The interleaved tables with rows inside a row that is deleted or gets another key, and whether deletion cascades
    /// to them.
    pub(super) descendants: Vec<(TableRows, bool)>,
    output: Vec<Expression>,
}

#[derive(Debug)]
pub(super) struct State {
    key: StoredRow,
    row: Option<StoredRow>,
    descendants: Vec<StoredRow>,
    range: Option<KeyRange>,
}

/// The columns and values of `SET`.
pub(super) fn assignments(
    binder: &mut Binder,
    table: &Table,
    assignments: &[ast::Assignment],
) -> Result<Vec<(usize, Expression)>, Unbound> {
    let mut all: Vec<(usize, Expression)> = Vec::new();
    for assignment in assignments {
        let ast::AssignmentTarget::ColumnName(name) = &assignment.target else { return Err(Unbound::NeedsPlanner) };
        let [ast::ObjectNamePart::Identifier(name)] = &name.0[..] else { return Err(Unbound::NeedsPlanner) };
        let folded = fold(name);
        let number = table.columns.iter().position(|column| column.name == folded && !column.is_hidden);
        let number = number.ok_or_else(|| {
            let position = crate::parse::position(binder.text, name.span.start);
            let error = undefined_column(table, &folded).at(position);
            let message = format!("column \"{folded}\" of relation \"{}\" does not exist", table.name);
            SqlError { message, ..error }
        })?;
        let column = &table.columns[number];
        if all.iter().any(|(other, _)| *other == number) {
            let message = format!("multiple assignments to same column \"{folded}\"");
            return Err(SqlError::new(sqlstate::SYNTAX_ERROR, message).into());
        }
        if column.generated.is_some_and(|generated| generated.kind == GeneratedKind::Always)
            && !is_default(&assignment.value)
        {
            let message = format!("column \"{folded}\" can only be updated to DEFAULT");
            let detail = format!("Column \"{folded}\" is an identity column defined as GENERATED ALWAYS.");
            return Err(SqlError::new(sqlstate::GENERATED_ALWAYS, message).with_detail(detail).into());
        }
        let value = match binder.assigned(&folded, &column.sql_type, &assignment.value)? {
            Some(value) => value,
            None if column.generated.is_some() => return Err(Unbound::NeedsPlanner),
            None => bind_default(binder.schema, column)?.unwrap_or(Expression::Constant(Value::Null)),
        };
        all.push((number, value));
    }
    Ok(all)
}

/// Whether columns of the primary key are assigned.
pub(super) fn moves(table: &Table, assignments: &[(usize, Expression)]) -> bool {
    let assigned = assignments.iter().filter_map(|(number, _)| table.columns.get(*number));
    assigned.into_iter().any(|column| table.is_in_key(column.id))
}

pub(super) fn update(binder: &mut Binder, update: &ast::Update) -> Result<(Change, Vec<OutputColumn>), Unbound> {
    let is_plain = update.from.is_none()
        && update.or.is_none()
        && update.output.is_none()
        && update.order_by.is_empty()
        && update.limit.is_none();
    if !is_plain {
        return Err(Unbound::NeedsPlanner);
    }
    let (table, alias) = single_table(binder, &update.table)?;
    let rows = TableRows::bound(binder.schema, table)?;
    binder.table = Some((table, alias));
    let assignments = assignments(binder, table, &update.assignments)?;
    finish(binder, rows, update.selection.as_ref(), Some(assignments), update.returning.as_deref())
}

/// Whether it changes one row that its condition determines.
pub(super) fn is_point(change: &Change) -> bool {
    change.condition.is_point(&change.rows)
}

pub(super) fn delete(binder: &mut Binder, delete: &ast::Delete) -> Result<(Change, Vec<OutputColumn>), Unbound> {
    let is_plain = delete.using.is_none()
        && delete.tables.is_empty()
        && delete.output.is_none()
        && delete.order_by.is_empty()
        && delete.limit.is_none();
    let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) = &delete.from;
    let [from] = &from[..] else { return Err(Unbound::NeedsPlanner) };
    if !is_plain {
        return Err(Unbound::NeedsPlanner);
    }
    let (table, alias) = single_table(binder, from)?;
    let rows = TableRows::bound(binder.schema, table)?;
    binder.table = Some((table, alias));
    finish(binder, rows, delete.selection.as_ref(), None, delete.returning.as_deref())
}

fn finish(
    binder: &mut Binder,
    rows: TableRows,
    condition: Option<&ast::Expr>,
    assignments: Option<Vec<(usize, Expression)>>,
    returning: Option<&[ast::SelectItem]>,
) -> Result<(Change, Vec<OutputColumn>), Unbound> {
    let condition = divide(binder, &rows, condition)?;
    let (output, columns) = output::bind(binder, returning.unwrap_or_default())?;
    let moves = assignments.as_ref().is_some_and(|assignments| moves(&rows.table, assignments));
    let parent = if moves { parent_of(binder.schema, &rows.table) } else { None };
    let mut descendants = Vec::new();
    if assignments.is_none() || moves {
        collect_descendants(binder.schema, &rows.table, true, &mut descendants)?;
    }
    Ok((Change { rows, condition, assignments, moves, parent, descendants, output }, columns))
}

fn collect_descendants(
    schema: &Schema,
    table: &Arc<Table>,
    cascades: bool,
    found: &mut Vec<(TableRows, bool)>,
) -> Result<(), Unbound> {
    for child in schema.children(table.id) {
        let cascades = cascades && child.interleave.is_some_and(|interleave| interleave.on_delete_cascade);
        found.push((TableRows::bound(schema, child)?, cascades));
        collect_descendants(schema, child, cascades, found)?;
    }
    Ok(())
}

impl Change {
    pub(super) fn start(&self, environment: &mut Environment) -> Result<(super::State, Step), SqlError> {
        let Some(values) = self.condition.prefix(&self.rows, environment)? else {
            return Ok((super::State::Done, Step::Done(Outcome::default())));
        };
        let key = self.rows.layout.key(&values)?;
        let range = (!self.descendants.is_empty()).then(|| keys::descendants(&key));
        let key = StoredRow { key: key.into(), cells: Vec::new() };
        let mut reads = vec![Read::Locked(key.key.clone())];
        reads.extend(range.clone().map(|range| Read::Range(range, PAGE_ROWS)));
        let state = State { key, row: None, descendants: Vec::new(), range };
        Ok((super::State::Change(state), Step::Read(reads)))
    }

    pub(super) fn advance(
        &self,
        mut state: State,
        pages: Vec<Page>,
        environment: &mut Environment,
    ) -> Result<(super::State, Step), SqlError> {
        let mut pages = pages.into_iter();
        if state.row.is_none() {
            let first = pages.next().ok_or_else(|| SqlError::new(sqlstate::INTERNAL_ERROR, "a result is missing"))?;
            let Some(row) = first.rows.into_iter().next() else {
                return Ok((super::State::Done, Step::Done(Outcome::default())));
            };
            debug_assert_eq!(row.key, state.key.key, "the row that was asked for");
            state.row = Some(row);
        }
        let pages: Vec<Page> = pages.collect();
        expect_pages(&pages, usize::from(state.range.is_some()))?;
        for page in pages {
            state.descendants.extend(page.rows);
            if let (Some(next), Some(range)) = (page.next, &state.range) {
                let range = KeyRange { start: next, end: range.end.clone() };
                let read = Read::Range(range.clone(), PAGE_ROWS);
                state.range = Some(range);
                return Ok((super::State::Change(state), Step::Read(vec![read])));
            }
        }
        let decoded = state.row.as_ref().map(|row| self.rows.decode(row)).transpose()?.flatten();
        let Some(row) = decoded else { return Ok((super::State::Done, Step::Done(Outcome::default()))) };
        if !self.condition.holds(&row, environment)? {
            return Ok((super::State::Done, Step::Done(Outcome::default())));
        }
        let mut checks = Checks::default();
        self.apply(&row, &state.descendants, &mut checks, environment)?;
        checks.start()
    }

    /// Adds the change of a row.
    pub(super) fn apply(
        &self,
        row: &[Value],
        descendants: &[StoredRow],
        checks: &mut Checks,
        environment: &mut Environment,
    ) -> Result<(), SqlError> {
        self.apply_values(row, None, descendants, checks, environment)
    }

    /// As [`Change::apply`], with the values of the assigned columns if they are given.
    pub(super) fn apply_values(
        &self,
        row: &[Value],
        given: Option<&[Value]>,
        descendants: &[StoredRow],
        checks: &mut Checks,
        environment: &mut Environment,
    ) -> Result<(), SqlError> {
        let after = match &self.assignments {
            Some(assignments) => {
                let mut after = row.to_vec();
                for (place, (number, value)) in assignments.iter().enumerate() {
                    after[*number] = match given.and_then(|given| given.get(place)) {
                        Some(value) => value.clone(),
                        None => value.evaluate(Rows { row, excluded: &[] }, environment)?,
                    };
                }
                self.rows.check(&after, environment)?;
                Some(after)
            }
            None => {
                self.delete_descendants(descendants, checks)?;
                None
            }
        };
        let old_key = after.as_ref().filter(|_| self.moves).map(|_| self.rows.key(row)).transpose()?;
        let new_key = after.as_ref().filter(|_| self.moves).map(|after| self.rows.key(after)).transpose()?;
        match (&after, new_key) {
            (Some(after), Some(new_key)) if old_key.as_ref() != Some(&new_key) => {
                self.refuse_descendants(descendants)?;
                let Checks { outcome, absent, present } = checks;
                absent.push(Absent::new(new_key, self.rows.duplicate(None, after)));
                self.rows.change(Some(row), None, &mut outcome.writes, absent)?;
                self.rows.change(None, Some(after), &mut outcome.writes, absent)?;
                if let Some((layout, name)) = &self.parent {
                    let key = parent_key(layout, &self.rows.primary_key(after))?;
                    present.push((key, orphan(&self.rows.table.name, name)));
                }
            }
            _ => self.rows.change(Some(row), after.as_deref(), &mut checks.outcome.writes, &mut checks.absent)?,
        }
        checks.outcome.affected += 1;
        if !self.output.is_empty() {
            let returned = after.as_deref().unwrap_or(row);
            checks.outcome.rows.push(output::evaluate(&self.output, returned, environment)?);
        }
        Ok(())
    }

    /// The rows inside a row do not follow it to another key.
    fn refuse_descendants(&self, stored: &[StoredRow]) -> Result<(), SqlError> {
        for stored in stored {
            for (rows, _) in &self.descendants {
                if rows.decode(stored)?.is_some() {
                    let what = "UPDATE of the primary key of a row with rows of interleaved tables";
                    let detail = format!("The row still has children in table \"{}\".", rows.table.name);
                    return Err(SqlError::unsupported(what).with_detail(detail));
                }
            }
        }
        Ok(())
    }

    fn delete_descendants(&self, stored: &[StoredRow], checks: &mut Checks) -> Result<(), SqlError> {
        let stored = if planted(Bug::CascadeMissesChild) { &stored[..stored.len().saturating_sub(1)] } else { stored };
        for stored in stored {
            let mut is_known = false;
            for (rows, cascades) in &self.descendants {
                let Some(row) = rows.decode(stored)? else { continue };
                if !cascades {
                    let (parent, child) = (&self.rows.table.name, &rows.table.name);
                    let message = format!("delete on table \"{parent}\" violates interleaving of table \"{child}\"");
                    let error = SqlError::new(sqlstate::FOREIGN_KEY_VIOLATION, message);
                    return Err(error.with_detail(format!("The row still has children in table \"{child}\".")));
                }
                rows.change(Some(&row), None, &mut checks.outcome.writes, &mut checks.absent)?;
                is_known = true;
            }
            if !is_known {
                // Rows of a dropped table, which are not deleted yet.
                checks.outcome.writes.push(Write::Delete { key: stored.key.clone() });
            }
        }
        Ok(())
    }
}
