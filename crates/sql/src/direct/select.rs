//! `SELECT` of one row by its primary key, or of the first rows of a range of keys.

use sqlparser::ast::{
    Expr, LimitClause, LockType, OrderByKind, Query, SelectItem, SetExpr, TableFactor, TableWithJoins,
};

use super::condition::{Condition, divide, names};
use super::{Outcome, OutputColumn, Page, Read, Step, expect_pages, output};
use crate::bind::{Binder, Unbound};
use crate::cast::Context;
use crate::error::{SqlError, sqlstate};
use crate::expression::{Environment, Expression, Rows};
use crate::keys::{Direction, KeyRange};
use crate::parse::fold;
use crate::rows::{TableRows, Wanted};
use crate::types::SqlType;
use crate::value::Value;

/// Maximum rows of a scan without a planner: its result is one page in memory.
const ROWS_MAX: usize = 1_000;

#[derive(Clone, Debug)]
pub(super) struct Select {
    rows: TableRows,
    condition: Condition,
    output: Vec<Expression>,
    /// The columns that it uses.
    wanted: Wanted,
    limit: Option<Expression>,
    locks: bool,
}

#[derive(Debug)]
pub(super) struct State {
    found: Vec<Vec<Value>>,
    limit: usize,
    /// The results that are expected.
    reads: usize,
    range: Option<KeyRange>,
}

/// The table and its name in the statement, for a `FROM` of one table.
pub(super) fn single_table<'a>(
    binder: &Binder<'a>,
    from: &TableWithJoins,
) -> Result<(&'a std::sync::Arc<crate::schema::Table>, String), Unbound> {
    let TableFactor::Table { name, alias, args: None, with_ordinality: false, sample: None, version: None, .. } =
        &from.relation
    else {
        return Err(Unbound::NeedsPlanner);
    };
    if !from.joins.is_empty() || alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) {
        return Err(Unbound::NeedsPlanner);
    }
    let table = super::table(binder.schema, name, binder.text)?;
    let alias = alias.as_ref().map_or_else(|| table.name.clone(), |alias| fold(&alias.name));
    Ok((table, alias))
}

pub(super) fn prepare(binder: &mut Binder, query: &Query) -> Result<(Select, Vec<OutputColumn>), Unbound> {
    let SetExpr::Select(select) = &*query.body else { return Err(Unbound::NeedsPlanner) };
    let is_plain = super::is_plain(query, select) && query.for_clause.is_none();
    let [from] = &select.from[..] else { return Err(Unbound::NeedsPlanner) };
    if !is_plain {
        return Err(Unbound::NeedsPlanner);
    }
    let (table, alias) = single_table(binder, from)?;
    let rows = TableRows::bound(binder.schema, table)?;
    binder.table = Some((table, alias));
    let condition = divide(binder, &rows, select.selection.as_ref())?;
    let limit = match &query.limit_clause {
        None => None,
        Some(LimitClause::LimitOffset { limit: Some(limit), offset: None, limit_by }) if limit_by.is_empty() => {
            let typed = binder.bind(limit)?;
            Some(binder.coerce(typed, &SqlType::Int8, Context::Assignment)?)
        }
        Some(_) => return Err(Unbound::NeedsPlanner),
    };
    let is_points = condition.is_point(&rows) || condition.alternatives.is_some();
    if condition.alternatives.is_some() && !is_key_order(binder, &rows, &condition, query, &select.projection)? {
        return Err(Unbound::NeedsPlanner);
    }
    if !is_points {
        let is_short = match &limit {
            None => false,
            Some(Expression::Constant(value)) => value.as_integer().is_some_and(|limit| limit <= ROWS_MAX as i64),
            Some(_) => true,
        };
        if !is_short || !is_key_order(binder, &rows, &condition, query, &select.projection)? {
            return Err(Unbound::NeedsPlanner);
        }
    }
    let (output, columns) = output::bind(binder, &select.projection)?;
    let locks = query.locks.iter().any(|lock| matches!(lock.lock_type, LockType::Update));
    let mut numbers = Vec::new();
    output.iter().chain(&condition.residual).for_each(|expression| expression.add_columns(&mut numbers));
    let wanted = rows.wanted(numbers);
    Ok((Select { rows, condition, output, wanted, limit, locks }, columns))
}

/// Whether the requested order is that of the keys.
fn is_key_order(
    binder: &Binder,
    rows: &TableRows,
    condition: &Condition,
    query: &Query,
    projection: &[SelectItem],
) -> Result<bool, Unbound> {
    let Some(order) = &query.order_by else { return Ok(true) };
    let OrderByKind::Expressions(order) = &order.kind else { return Ok(false) };
    let key = &rows.table.primary_key.columns;
    let mut rest = &key[condition.equal.len().min(key.len())..];
    for item in order {
        let Expr::Identifier(name) = &item.expr else { return Ok(false) };
        let name = fold(name);
        let column = rows.table.column_named(&name).ok_or(Unbound::NeedsPlanner)?;
        // The names of results come before those of columns.
        let is_other = |item: &SelectItem| match item {
            SelectItem::UnnamedExpr(expression) => {
                output::name_of(expression) == name && !names(binder, expression, column)
            }
            SelectItem::ExprWithAlias { expr, alias } => fold(alias) == name && !names(binder, expr, column),
            // Each column of a wildcard has its own name.
            _ => false,
        };
        if projection.iter().any(is_other) {
            return Ok(false);
        }
        let is_fixed = key.iter().take(condition.equal.len()).any(|part| part.column == column.id);
        if is_fixed {
            continue;
        }
        let direction = if item.options.asc == Some(false) { Direction::Descending } else { Direction::Ascending };
        match rest.split_first() {
            Some((part, after)) if part.column == column.id && part.direction == direction => rest = after,
            // After a complete key, further columns have no effect.
            None => return Ok(true),
            _ => return Ok(false),
        }
    }
    Ok(true)
}

impl Select {
    /// Whether it has several reads, which must be of one moment.
    pub(super) fn needs_snapshot(&self) -> bool {
        self.condition.alternatives.is_some()
    }

    pub(super) fn start(&self, environment: &mut Environment) -> Result<(super::State, Step), SqlError> {
        let limit = match &self.limit {
            None => usize::MAX,
            Some(limit) => match limit.evaluate(Rows::default(), environment)?.as_integer() {
                // LIMIT NULL is no limit.
                None => usize::MAX,
                Some(limit) => usize::try_from(limit)
                    .map_err(|_| SqlError::new(sqlstate::INVALID_ROW_COUNT_IN_LIMIT, "LIMIT must not be negative"))?,
            },
        };
        let done = (super::State::Done, Step::Done(Outcome::default()));
        if limit == 0 {
            return Ok(done);
        }
        if let Some(keys) = self.condition.points(&self.rows, environment)? {
            if keys.is_empty() {
                return Ok(done);
            }
            let read = if self.locks { Read::Locked } else { Read::Row };
            let reads: Vec<Read> = keys.into_iter().map(|key| read(key.into())).collect();
            let state = State { found: Vec::new(), limit, reads: reads.len(), range: None };
            return Ok((super::State::Select(state), Step::Read(reads)));
        }
        if limit > ROWS_MAX {
            return Ok((super::State::Done, Step::NeedsPlanner));
        }
        let Some(range) = self.condition.range(&self.rows, environment)? else { return Ok(done) };
        let read = Read::range(range.clone(), limit, self.wanted.cells());
        let state = State { found: Vec::new(), limit, reads: 1, range: Some(range) };
        Ok((super::State::Select(state), Step::Read(vec![read])))
    }

    pub(super) fn advance(
        &self,
        mut state: State,
        pages: Vec<Page>,
        environment: &mut Environment,
    ) -> Result<(super::State, Step), SqlError> {
        expect_pages(&pages, state.reads)?;
        for page in pages {
            for stored in &page.rows {
                if state.found.len() == state.limit {
                    break;
                }
                let Some(row) = self.rows.decode_wanted(stored, &self.wanted)? else { continue };
                if self.condition.holds(&row, environment)? {
                    state.found.push(output::evaluate(&self.output, &row, environment)?);
                }
            }
            if let (Some(range), Some(next)) = (&state.range, page.next)
                && state.found.len() < state.limit
            {
                let range = KeyRange { start: next, end: range.end.clone() };
                let read = Read::range(range.clone(), state.limit - state.found.len(), self.wanted.cells());
                state.range = Some(range);
                return Ok((super::State::Select(state), Step::Read(vec![read])));
            }
        }
        let affected = state.found.len() as u64;
        Ok((super::State::Done, Step::Done(Outcome { rows: state.found, affected, writes: Vec::new() })))
    }
}
