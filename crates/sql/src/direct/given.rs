//! Changes of rows that a planned query finds: `INSERT ... SELECT`, and `UPDATE` and `DELETE` with any condition.
//!
//! [`source`] returns the query that finds the rows, [`of_rows`] the plan that changes the rows of its result.

use std::collections::BTreeSet;

use bytes::Bytes;
use sqlparser::ast::{self, Expr, Ident, ObjectName, ObjectNamePart, Query, SelectItem, TableFactor};

use super::change::{self, Change};
use super::{Bound, Checks, Command, Kind, Page, Plan, Read, Step, expect_pages, finish, insert};
use crate::bind::{Binder, Unbound, is_default};
use crate::error::{SqlError, sqlstate};
use crate::expression::Environment;
use crate::keys::{self, KeyRange};
use crate::parse::{fold, parse_expression, parse_one};
use crate::rows::StoredRow;
use crate::schema::{GeneratedKind, Schema, Table};
use crate::statement::Statement;
use crate::types::SqlType;
use crate::value::Value;

/// A schema with the same tables as `public`, including their hidden columns.
pub const ALL_COLUMNS: &str = "\u{1}all";

/// Rows of descendants that are read at once.
const PAGE_ROWS: usize = 1_000;
/// Rows of the table that are read at once.
const ROWS_AT_ONCE: usize = 256;

/// The query of a change.
#[derive(Clone, Debug)]
pub struct Source {
    pub query: Query,
    /// The types that its columns must be cast to.
    pub types: Vec<SqlType>,
}

/// The query that finds the rows of a change: the values to insert; or the primary keys of the rows to change, and the
/// new values of the columns that `UPDATE` assigns.
///
/// # Errors
/// The statement is not valid or not supported.
pub fn source(schema: &Schema, statement: &Statement, text: &str) -> Result<Source, SqlError> {
    let outcome = match statement {
        Statement::Insert(insert) => insert_source(schema, insert, text),
        Statement::Update(update) => update_source(schema, update, text),
        Statement::Delete(delete) => delete_source(schema, delete, text),
        _ => Err(Unbound::NeedsPlanner),
    };
    outcome.map_err(|unbound| unsupported(unbound, statement))
}

/// The plan of a change, for the rows that the query of [`source`] has found.
///
/// # Errors
/// The statement is not valid or not supported.
pub fn of_rows(
    schema: &Schema,
    statement: &Statement,
    text: &str,
    declared: &[Option<SqlType>],
    rows: Vec<Vec<Value>>,
) -> Result<Plan, SqlError> {
    let mut binder = Binder::new(schema, text, declared);
    let bound: Bound = match statement {
        Statement::Insert(insert) => insert::given(&mut binder, insert, rows)
            .map(|(kind, columns)| (Command::Insert, Kind::Insert(kind), columns)),
        Statement::Update(update) => given_update(&mut binder, update)
            .map(|(change, columns)| (Command::Update, Kind::Given(Box::new(Given { change, rows })), columns)),
        Statement::Delete(delete) => given_delete(&mut binder, delete)
            .map(|(change, columns)| (Command::Delete, Kind::Given(Box::new(Given { change, rows })), columns)),
        _ => Err(Unbound::NeedsPlanner),
    };
    let plan = match bound {
        Err(unbound) => return Err(unsupported(unbound, statement)),
        bound => finish(schema, binder, bound)?,
    };
    plan.ok_or_else(|| unsupported(Unbound::NeedsPlanner, statement))
}

fn unsupported(unbound: Unbound, statement: &Statement) -> SqlError {
    match unbound {
        Unbound::Error(error) => error,
        Unbound::NeedsPlanner => SqlError::unsupported(match statement {
            Statement::Insert(_) => "this form of INSERT",
            Statement::Update(_) => "this form of UPDATE",
            _ => "this form of DELETE",
        }),
    }
}

fn insert_source(schema: &Schema, insert: &ast::Insert, text: &str) -> Result<Source, Unbound> {
    let ast::TableObject::TableName(name) = &insert.table else { return Err(Unbound::NeedsPlanner) };
    let table = super::table(schema, name, text)?;
    let mut columns = insert::target_columns(table, &insert.columns, text)?;
    let Some(query) = &insert.source else { return Err(Unbound::NeedsPlanner) };
    let mut query = (**query).clone();
    if let ast::SetExpr::Values(values) = &mut *query.body {
        // DEFAULT is the expression of the column.
        for row in &mut values.rows {
            for (value, number) in row.content.iter_mut().zip(&columns) {
                if is_default(value) {
                    let column = table.columns.get(*number).ok_or(Unbound::NeedsPlanner)?;
                    *value = default(column)?;
                }
            }
        }
    }
    if insert.columns.is_empty()
        && let Some(width) = width(&query)
    {
        columns.truncate(width.max(1));
    }
    let of = |number: &usize| table.columns.get(*number).map(|column| column.sql_type.clone());
    let types = columns.iter().filter_map(of).collect();
    let always = columns
        .iter()
        .filter_map(|number| table.columns.get(*number))
        .find(|column| column.generated.is_some_and(|generated| generated.kind == GeneratedKind::Always));
    if let Some(column) = always {
        let message = format!("cannot insert a non-DEFAULT value into column \"{}\"", column.name);
        return Err(SqlError::new(sqlstate::GENERATED_ALWAYS, message).into());
    }
    Ok(Source { query, types })
}

fn default(column: &crate::schema::Column) -> Result<Expr, Unbound> {
    match (&column.generated, &column.default) {
        (Some(_), _) => Err(Unbound::NeedsPlanner),
        (None, Some(text)) => Ok(parse_expression(text)?),
        (None, None) => Ok(Expr::Value(ast::Value::Null.into())),
    }
}

/// The number of columns of a query, if it is known without planning.
fn width(query: &Query) -> Option<usize> {
    match &*query.body {
        ast::SetExpr::Select(select) => {
            let is_one =
                |item: &SelectItem| matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. });
            select.projection.iter().all(is_one).then_some(select.projection.len())
        }
        ast::SetExpr::Values(values) => values.rows.first().map(|row| row.content.len()),
        _ => None,
    }
}

/// `SELECT` of the primary key and further expressions from a table.
fn key_query(
    table: &Table,
    relation: &ast::TableWithJoins,
    others: Vec<ast::TableWithJoins>,
    selection: Option<Expr>,
    further: Vec<Expr>,
) -> Result<Source, Unbound> {
    let mut relation = relation.clone();
    let TableFactor::Table { name, alias, .. } = &mut relation.relation else { return Err(Unbound::NeedsPlanner) };
    if !relation.joins.is_empty() {
        return Err(Unbound::NeedsPlanner);
    }
    let qualifier = alias.as_ref().map_or_else(|| Ident::with_quote('"', &table.name), |alias| alias.name.clone());
    *name = ObjectName(
        [ALL_COLUMNS, &table.name].map(|part| ObjectNamePart::Identifier(Ident::with_quote('"', part))).into(),
    );
    if alias.is_none() {
        let name = qualifier.clone();
        *alias = Some(ast::TableAlias { name, columns: Vec::new(), explicit: true, at: None });
    }
    let Statement::Query(mut query, _) = parse_one("SELECT 1 FROM a WHERE true")? else {
        return Err(Unbound::NeedsPlanner);
    };
    let ast::SetExpr::Select(select) = &mut *query.body else { return Err(Unbound::NeedsPlanner) };
    let mut types = Vec::new();
    select.projection.clear();
    for part in &table.primary_key.columns {
        let column = table.column(part.column).ok_or(Unbound::NeedsPlanner)?;
        types.push(column.sql_type.clone());
        let parts = vec![qualifier.clone(), Ident::with_quote('"', &column.name)];
        select.projection.push(SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)));
    }
    for expression in further {
        select.projection.push(SelectItem::UnnamedExpr(Expr::Nested(Box::new(expression))));
    }
    select.selection = selection;
    select.from = std::iter::once(relation).chain(others).collect();
    Ok(Source { query: *query, types })
}

/// The assignments of `UPDATE`, each of one column.
fn sets(update: &ast::Update) -> Result<Vec<ast::Assignment>, Unbound> {
    let mut all = Vec::new();
    for assignment in &update.assignments {
        match (&assignment.target, &assignment.value) {
            (ast::AssignmentTarget::ColumnName(_), _) => all.push(assignment.clone()),
            (ast::AssignmentTarget::Tuple(names), Expr::Tuple(values)) if names.len() == values.len() => {
                let each = names.iter().zip(values).map(|(name, value)| ast::Assignment {
                    target: ast::AssignmentTarget::ColumnName(name.clone()),
                    value: value.clone(),
                });
                all.extend(each);
            }
            _ => return Err(Unbound::NeedsPlanner),
        }
    }
    Ok(all)
}

fn update_source(schema: &Schema, update: &ast::Update, text: &str) -> Result<Source, Unbound> {
    let (table, _) = target(schema, &update.table, text)?;
    let mut further = Vec::new();
    let mut types = Vec::new();
    for set in sets(update)? {
        let ast::AssignmentTarget::ColumnName(name) = &set.target else { return Err(Unbound::NeedsPlanner) };
        let name = name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
        let column = table.column_named(&name).ok_or_else(|| crate::schema::undefined_column(table, &name))?;
        further.push(if is_default(&set.value) { default(column)? } else { set.value });
        types.push(column.sql_type.clone());
    }
    let others = match &update.from {
        None => Vec::new(),
        Some(ast::UpdateTableFromKind::BeforeSet(tables) | ast::UpdateTableFromKind::AfterSet(tables)) => {
            tables.clone()
        }
    };
    let mut source = key_query(table, &update.table, others, update.selection.clone(), further)?;
    source.types.extend(types);
    Ok(source)
}

fn delete_source(schema: &Schema, delete: &ast::Delete, text: &str) -> Result<Source, Unbound> {
    let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) = &delete.from;
    let [from] = &from[..] else { return Err(Unbound::NeedsPlanner) };
    let (table, _) = target(schema, from, text)?;
    key_query(table, from, delete.using.clone().unwrap_or_default(), delete.selection.clone(), Vec::new())
}

fn target<'a>(
    schema: &'a Schema,
    from: &ast::TableWithJoins,
    text: &str,
) -> Result<(&'a std::sync::Arc<Table>, String), Unbound> {
    let TableFactor::Table { name, alias, .. } = &from.relation else { return Err(Unbound::NeedsPlanner) };
    let table = super::table(schema, name, text)?;
    let alias = alias.as_ref().map_or_else(|| table.name.clone(), |alias| fold(&alias.name));
    Ok((table, alias))
}

/// An `UPDATE` without its condition. Its new values are supplied with the rows.
fn given_update(binder: &mut Binder, update: &ast::Update) -> Result<(Change, Vec<super::OutputColumn>), Unbound> {
    let mut plain = update.clone();
    plain.assignments = sets(update)?;
    // Replaced by the supplied values.
    for set in &mut plain.assignments {
        set.value = Expr::Value(ast::Value::Null.into());
    }
    plain.from = None;
    plain.selection = None;
    change::update(binder, &plain)
}

fn given_delete(binder: &mut Binder, delete: &ast::Delete) -> Result<(Change, Vec<super::OutputColumn>), Unbound> {
    let mut plain = delete.clone();
    plain.using = None;
    plain.selection = None;
    change::delete(binder, &plain)
}

/// A change of rows. Each item is a primary key, followed by the new values of the assigned columns.
#[derive(Clone, Debug)]
pub(super) struct Given {
    change: Change,
    rows: Vec<Vec<Value>>,
}

#[derive(Debug)]
pub(super) struct State {
    /// The rows to read, in the order of their keys: each key with the number of its item.
    keys: Vec<(Bytes, usize)>,
    /// The next key to read.
    next: usize,
    /// The number of keys of the current read.
    reading: usize,
    found: Vec<(StoredRow, usize)>,
    /// The row that is deleted with its descendants: its number, the range still to be read, and the descendants read.
    family: Option<(usize, KeyRange, Vec<StoredRow>)>,
    checks: Checks,
}

impl Given {
    pub(super) fn start(&self) -> Result<(super::State, Step), SqlError> {
        let width = self.change.rows.table().primary_key.columns.len();
        let mut keys = Vec::with_capacity(self.rows.len());
        let mut seen = BTreeSet::new();
        for (number, row) in self.rows.iter().enumerate() {
            let values = row.get(..width).unwrap_or_default();
            let key = Bytes::from(self.change.rows.layout().key(values)?);
            // If a join finds a row several times, only its first match counts.
            if seen.insert(key.clone()) {
                keys.push((key, number));
            }
        }
        keys.sort();
        let checks = Checks::default();
        self.read(State { keys, next: 0, reading: 0, found: Vec::new(), family: None, checks })
    }

    fn read(&self, mut state: State) -> Result<(super::State, Step), SqlError> {
        let rest = state.keys.get(state.next..).unwrap_or_default();
        let reads: Vec<Read> = rest.iter().take(ROWS_AT_ONCE).map(|(key, _)| Read::Locked(key.clone())).collect();
        if reads.is_empty() {
            return state.checks.start();
        }
        state.reading = reads.len();
        Ok((super::State::Given(Box::new(state)), Step::Read(reads)))
    }

    pub(super) fn advance(
        &self,
        mut state: Box<State>,
        pages: Vec<Page>,
        environment: &mut Environment,
    ) -> Result<(super::State, Step), SqlError> {
        match state.family.take() {
            Some((at, range, mut found)) => {
                expect_pages(&pages, 1)?;
                let page = pages.into_iter().next().unwrap_or_default();
                found.extend(page.rows);
                if let Some(next) = page.next {
                    let range = KeyRange { start: next, end: range.end };
                    let read = Read::Range(range.clone(), PAGE_ROWS);
                    state.family = Some((at, range, found));
                    return Ok((super::State::Given(state), Step::Read(vec![read])));
                }
                self.apply(&mut state, at, &found, environment)?;
                self.families(state, at + 1, environment)
            }
            None => {
                expect_pages(&pages, state.reading)?;
                let keys = state.keys.get(state.next..).unwrap_or_default();
                let found = pages.into_iter().zip(keys);
                let found = found.filter_map(|(page, (_, number))| Some((page.rows.into_iter().next()?, *number)));
                state.found = found.collect();
                state.next += state.reading;
                self.families(state, 0, environment)
            }
        }
    }

    /// Changes the rows that were read, from number `from` on.
    fn families(
        &self,
        mut state: Box<State>,
        from: usize,
        environment: &mut Environment,
    ) -> Result<(super::State, Step), SqlError> {
        for at in from..state.found.len() {
            if !self.change.descendants.is_empty()
                && let Some((stored, _)) = state.found.get(at)
            {
                let range = keys::descendants(&stored.key);
                let read = Read::Range(range.clone(), PAGE_ROWS);
                state.family = Some((at, range, Vec::new()));
                return Ok((super::State::Given(state), Step::Read(vec![read])));
            }
            self.apply(&mut state, at, &[], environment)?;
        }
        self.read(*state)
    }

    fn apply(
        &self,
        state: &mut State,
        at: usize,
        descendants: &[StoredRow],
        environment: &mut Environment,
    ) -> Result<(), SqlError> {
        let Some((stored, number)) = state.found.get(at) else { return Ok(()) };
        let Some(row) = self.change.rows.decode(stored)? else { return Ok(()) };
        let width = self.change.rows.table().primary_key.columns.len();
        let values = self.rows.get(*number).and_then(|row| row.get(width..)).unwrap_or_default();
        self.change.apply_values(&row, Some(values), descendants, &mut state.checks, environment)
    }
}
