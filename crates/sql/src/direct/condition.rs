//! `WHERE` as a part of the primary key and a condition on the rows.

use std::collections::BTreeSet;
use std::ops::Bound;

use sqlparser::ast::{BinaryOperator, Expr};

use crate::bind::{Binder, Unbound, comparison, without_length};
use crate::cast::{Context, cast};
use crate::cells;
use crate::error::SqlError;
use crate::expression::{Comparison, Environment, Expression, Rows};
use crate::keys::{self, KeyRange};
use crate::parse::fold;
use crate::rows::{StoredRow, TableRows};
use crate::schema::{Column, IndexState};
use crate::types::SqlType;
use crate::value::Value;

/// Maximum rows that are read by their keys at once.
const ALTERNATIVES_MAX: usize = 1_000;

/// A bound of a key column: whether it is included, and its value.
type KeyBound = Option<(bool, Expression)>;

/// The restrictions of a condition on the primary key.
#[derive(Clone, Debug, Default)]
pub(super) struct Condition {
    /// The values of the first columns of the primary key.
    pub(super) equal: Vec<Expression>,
    /// The values that the last column of the primary key may have, if the others are determined.
    pub(super) alternatives: Option<Vec<Expression>>,
    /// Bounds of the next column.
    low: KeyBound,
    high: KeyBound,
    pub(super) residual: Vec<Expression>,
}

/// Divides a condition. Each part of the conjunction that is not used for the key is checked for each row.
pub(super) fn divide(binder: &mut Binder, rows: &TableRows, condition: Option<&Expr>) -> Result<Condition, Unbound> {
    let mut parts = Vec::new();
    if let Some(condition) = condition {
        conjuncts(condition, &mut parts);
    }
    // A key has one lower and one upper bound: only the first of each kind is used for it.
    let mut used = vec![false; parts.len()];
    let mut divided = Condition::default();
    for part in &rows.table.primary_key.columns {
        let Some(column) = rows.table.column(part.column) else { break };
        if let Some((_, value)) = find_bound(binder, &parts, column, &[Comparison::Equal], &mut used)? {
            divided.equal.push(value);
            continue;
        }
        if divided.equal.len() + 1 == rows.table.primary_key.columns.len() {
            for (number, (part, _, _)) in parts.iter().enumerate() {
                if let Some((values, is_exact)) = alternatives(binder, column, part)? {
                    used[number] = is_exact;
                    divided.alternatives = Some(values);
                    break;
                }
            }
            if divided.alternatives.is_some() {
                break;
            }
        }
        divided.low =
            find_bound(binder, &parts, column, &[Comparison::Greater, Comparison::GreaterOrEqual], &mut used)?;
        divided.high = find_bound(binder, &parts, column, &[Comparison::Less, Comparison::LessOrEqual], &mut used)?;
        break;
    }
    divided.residual = residual(binder, &parts, &used)?;
    Ok(divided)
}

/// The parts of a conjunction that are not used.
fn residual(binder: &mut Binder, parts: &[Part], used: &[bool]) -> Result<Vec<Expression>, Unbound> {
    let unused = parts.iter().zip(used).filter(|(_, used)| !**used);
    unused
        .map(|((left, operator, right), _)| match (operator, right) {
            (Some(operator), Some(right)) => {
                let (left, right) = (binder.bind(left)?, binder.bind(right)?);
                let (left, right) = binder.comparable(left, right)?;
                Ok(Expression::Compare(*operator, Box::new(left), Box::new(right)))
            }
            _ => binder.condition(left),
        })
        .collect()
}

/// The index to use, if the condition gives a value for each of its columns: a unique index first, then the one with the
/// most columns.
/// All parts of the condition are checked for each row.
pub(super) fn by_index(
    binder: &mut Binder,
    rows: &TableRows,
    condition: &Expr,
) -> Result<Option<(Lookup, Condition)>, Unbound> {
    let mut parts = Vec::new();
    conjuncts(condition, &mut parts);
    let mut best: Option<Lookup> = None;
    for (number, (index, _)) in rows.indexes.iter().enumerate() {
        let rank = |lookup: &Lookup| (lookup.is_unique, lookup.equal.len());
        let mut lookup = Lookup { index: number, is_unique: index.is_unique, equal: Vec::new() };
        for part in &index.columns {
            let Some(column) = rows.table.column(part.column) else { break };
            let mut used = vec![false; parts.len()];
            match find_bound(binder, &parts, column, &[Comparison::Equal], &mut used)? {
                Some((_, value)) => lookup.equal.push(value),
                None => break,
            }
        }
        let is_whole = lookup.equal.len() == index.columns.len() && index.state == IndexState::Public;
        if is_whole && best.as_ref().is_none_or(|best| rank(best) < rank(&lookup)) {
            best = Some(lookup);
        }
    }
    let Some(lookup) = best else { return Ok(None) };
    let residual = residual(binder, &parts, &vec![false; parts.len()])?;
    Ok(Some((lookup, Condition { residual, ..Condition::default() })))
}

/// The values of all columns of an index.
#[derive(Clone, Debug)]
pub(super) struct Lookup {
    /// The number of the index in [`TableRows::indexes`].
    index: usize,
    pub(super) is_unique: bool,
    equal: Vec<Expression>,
}

impl Lookup {
    pub(super) fn name<'a>(&self, rows: &'a TableRows) -> Option<&'a str> {
        rows.indexes.get(self.index).map(|(index, _)| index.name.as_str())
    }

    /// The beginning of the keys of its entries; `None` if no row can match.
    pub(super) fn prefix(&self, rows: &TableRows, environment: &mut Environment) -> Result<Option<Vec<u8>>, SqlError> {
        let Some((index, layout)) = rows.indexes.get(self.index) else { return Ok(None) };
        let mut values = Vec::with_capacity(self.equal.len());
        for (expression, part) in self.equal.iter().zip(&index.columns) {
            let value = expression.evaluate(Rows::default(), environment)?;
            let Some(value) = adapted(rows.table.column(part.column), value) else { return Ok(None) };
            values.push(value);
        }
        layout.prefix(&values).map(Some)
    }

    /// The key of the row that an entry refers to; `None` if it is no entry.
    pub(super) fn row(&self, rows: &TableRows, entry: &StoredRow) -> Result<Option<Vec<u8>>, SqlError> {
        let name = cells::name(cells::MARKER);
        let reference = entry.cells.iter().find(|(cell, _)| *cell == name);
        let (Some((_, layout)), Some((_, reference))) = (rows.indexes.get(self.index), reference) else {
            return Ok(None);
        };
        let (_, primary_key) = layout.decode(&entry.key, reference)?;
        rows.layout.key(&primary_key).map(Some)
    }

    /// Whether the entries of a row begin with this prefix.
    pub(super) fn is_of(&self, rows: &TableRows, row: &[Value], prefix: &[u8]) -> Result<bool, SqlError> {
        let Some((index, layout)) = rows.indexes.get(self.index) else { return Ok(false) };
        Ok(layout.prefix(&rows.indexed(index, row))? == prefix)
    }
}

/// The first unused comparison of a column with a constant. It stays unused if it must be checked for each row too.
fn find_bound(
    binder: &mut Binder,
    parts: &[Part],
    column: &Column,
    wanted: &[Comparison],
    used: &mut [bool],
) -> Result<KeyBound, Unbound> {
    for ((left, operator, right), used) in parts.iter().zip(used) {
        let found = match (operator, right) {
            (Some(operator), Some(right)) if names(binder, left, column) => Some((*operator, *right)),
            (Some(operator), Some(right)) if names(binder, right, column) => Some((operator.mirrored(), *left)),
            _ => None,
        };
        let Some((operator, value)) = found else { continue };
        if *used || !wanted.contains(&operator) {
            continue;
        }
        if let Some((value, is_exact)) = key_value(binder, column, value, operator)? {
            *used = is_exact;
            let is_included = !matches!(operator, Comparison::Less | Comparison::Greater);
            return Ok(Some((is_included, value)));
        }
    }
    Ok(None)
}

/// The values of `column IN (...)`, if all can be used for the key, and whether exactly the rows with them match.
fn alternatives(binder: &mut Binder, column: &Column, part: &Expr) -> Result<Option<(Vec<Expression>, bool)>, Unbound> {
    let Expr::InList { expr, list, negated: false } = part else { return Ok(None) };
    if !names(binder, expr, column) || list.len() > ALTERNATIVES_MAX {
        return Ok(None);
    }
    let values = list.iter().map(|value| key_value(binder, column, value, Comparison::Equal));
    let values = values.collect::<Result<Option<Vec<_>>, _>>()?;
    Ok(values.map(|values| {
        let is_exact = values.iter().all(|(_, is_exact)| *is_exact);
        (values.into_iter().map(|(value, _)| value).collect(), is_exact)
    }))
}

/// A part of a conjunction: a comparison, or another condition as the left side.
type Part<'a> = (&'a Expr, Option<Comparison>, Option<&'a Expr>);

fn conjuncts<'a>(condition: &'a Expr, parts: &mut Vec<Part<'a>>) {
    match condition {
        Expr::Nested(inner) => conjuncts(inner, parts),
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            conjuncts(left, parts);
            conjuncts(right, parts);
        }
        Expr::BinaryOp { left, op, right } => match comparison(op) {
            Some(comparison) => parts.push((left, Some(comparison), Some(right))),
            None => parts.push((condition, None, None)),
        },
        Expr::Between { expr, negated: false, low, high } => {
            parts.push((expr, Some(Comparison::GreaterOrEqual), Some(low)));
            parts.push((expr, Some(Comparison::LessOrEqual), Some(high)));
        }
        _ => parts.push((condition, None, None)),
    }
}

/// Whether an expression is just this column.
pub(super) fn names(binder: &Binder, expression: &Expr, column: &Column) -> bool {
    let alias = binder.table.as_ref().map(|(_, alias)| alias.as_str());
    match expression {
        Expr::Nested(inner) => names(binder, inner, column),
        Expr::Identifier(name) => fold(name) == column.name && !column.is_hidden,
        Expr::CompoundIdentifier(parts) => {
            matches!(&parts[..], [table, name] if Some(fold(table).as_str()) == alias && fold(name) == column.name)
        }
        _ => false,
    }
}

/// A value for a column of the key, if each row that matches has it, and whether each row that has it matches.
fn key_value(
    binder: &mut Binder,
    column: &Column,
    value: &Expr,
    operator: Comparison,
) -> Result<Option<(Expression, bool)>, Unbound> {
    use SqlType as T;
    let before = binder.parameters.clone();
    let typed = binder.bind(value)?;
    if !typed.expression.is_constant() {
        binder.parameters = before;
        return Ok(None);
    }
    let to = &column.sql_type;
    let of = typed.sql_type.clone().unwrap_or_else(|| without_length(to));
    let is_usable = match (to, &of) {
        (T::Char(_), of) => of.is_text() && operator == Comparison::Equal,
        (T::Numeric(_), of) => of.is_integer() || matches!(of, T::Numeric(_)),
        (T::Float8, of) => of.is_number(),
        (T::Timestamp | T::Timestamptz, T::Date | T::Timestamp | T::Timestamptz) => true,
        (to, of) if to.is_integer() => of.is_integer(),
        (to, of) => to.is_same_base(of) || (to.is_text() && of.is_text() && !matches!(of, T::Char(_))),
    };
    if !is_usable {
        binder.parameters = before;
        return Ok(None);
    }
    // Spaces at the end of a `text` are significant when it is compared, but not in the key.
    let is_exact = !matches!((to, &typed.sql_type), (T::Char(_), Some(T::Text)));
    let bound = binder.coerce(typed, &of, Context::Implicit)?;
    // Integers of all widths have the same encoding. Other types get that of the column.
    let needs_cast = !to.is_integer() && !to.is_text() && !to.is_same_base(&of);
    let base = without_length(to);
    let bound = if needs_cast { Expression::Cast(Box::new(bound), base, Context::Assignment) } else { bound };
    Ok(Some((bound, is_exact)))
}

/// The value as it is in keys; `None` if no row can have it.
fn adapted(column: Option<&Column>, value: Value) -> Option<Value> {
    match (column.map(|column| &column.sql_type), value) {
        (_, Value::Null) => None,
        // An error means that it is longer than any value of the column.
        (Some(to @ SqlType::Char(_)), Value::Text(text)) => {
            cast(Value::Text(text.trim_end_matches(' ').to_owned()), to, Context::Assignment).ok()
        }
        (_, value) => Some(value),
    }
}

impl Condition {
    /// Whether it determines the rows' keys, or a range of keys with two ends.
    pub(super) fn is_narrow(&self, rows: &TableRows) -> bool {
        self.is_point(rows)
            || self.alternatives.is_some()
            || !self.equal.is_empty()
            || self.low.is_some() && self.high.is_some()
    }

    /// Whether it determines one row.
    pub(super) fn is_point(&self, rows: &TableRows) -> bool {
        self.equal.len() == rows.table.primary_key.columns.len()
    }

    /// The values of the first key columns; `None` if no row can match.
    pub(super) fn prefix(
        &self,
        rows: &TableRows,
        environment: &mut Environment,
    ) -> Result<Option<Vec<Value>>, SqlError> {
        let mut values = Vec::with_capacity(self.equal.len());
        for (expression, part) in self.equal.iter().zip(&rows.table.primary_key.columns) {
            let value = expression.evaluate(Rows::default(), environment)?;
            let column = rows.table.column(part.column);
            let Some(value) = adapted(column, value) else { return Ok(None) };
            values.push(value);
        }
        Ok(Some(values))
    }

    /// The keys of the rows that may match, if the condition determines them all.
    pub(super) fn points(
        &self,
        rows: &TableRows,
        environment: &mut Environment,
    ) -> Result<Option<BTreeSet<Vec<u8>>>, SqlError> {
        if !self.is_point(rows) && self.alternatives.is_none() {
            return Ok(None);
        }
        let Some(mut values) = self.prefix(rows, environment)? else { return Ok(Some(BTreeSet::new())) };
        let Some(alternatives) = &self.alternatives else {
            return Ok(Some(BTreeSet::from([rows.layout.key(&values)?])));
        };
        let last = rows.table.primary_key.columns.last().and_then(|part| rows.table.column(part.column));
        let mut keys = BTreeSet::new();
        for expression in alternatives {
            let value = expression.evaluate(Rows::default(), environment)?;
            if let Some(value) = adapted(last, value) {
                values.push(value);
                keys.insert(rows.layout.key(&values)?);
                values.pop();
            }
        }
        Ok(Some(keys))
    }

    /// The range of keys; `None` if no row can match.
    pub(super) fn range(&self, rows: &TableRows, environment: &mut Environment) -> Result<Option<KeyRange>, SqlError> {
        let Some(prefix) = self.prefix(rows, environment)? else { return Ok(None) };
        let key = rows.layout.key(&prefix)?;
        let mut bound = |bound: &KeyBound| -> Result<Option<(bool, Value)>, SqlError> {
            let Some((is_included, expression)) = bound else { return Ok(None) };
            Ok(Some((*is_included, expression.evaluate(Rows::default(), environment)?)))
        };
        let (low, high) = (bound(&self.low)?, bound(&self.high)?);
        if [&low, &high].into_iter().flatten().any(|(_, value)| value.is_null()) {
            return Ok(None);
        }
        let direction = rows.table.primary_key.columns.get(prefix.len()).map(|part| part.direction);
        let Some(direction) = direction else { return Ok(Some(keys::prefix_range(&key))) };
        let as_bound = |bound: &Option<(bool, Value)>| match bound {
            Some((true, value)) => Bound::Included(value.clone()),
            Some((false, value)) => Bound::Excluded(value.clone()),
            None => Bound::Unbounded,
        };
        let (low, high) = (as_bound(&low), as_bound(&high));
        let range = keys::bounded_range(&key, direction, (low.as_ref(), high.as_ref()))?;
        Ok(Some(range).filter(|range| !range.is_empty()))
    }

    /// Whether a row satisfies the other conditions.
    pub(super) fn holds(&self, row: &[Value], environment: &mut Environment) -> Result<bool, SqlError> {
        for condition in &self.residual {
            let value = condition.evaluate(Rows { row, excluded: &[] }, environment)?;
            if crate::expression::truth(&value)? != Some(true) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
