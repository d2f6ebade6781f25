//! Types of the columns of `VALUES`.
//!
//! The rows of a list determine a common type for each column, as in PostgreSQL. Parameters and literals of text have the
//! type of the other rows. DataFusion has other rules, and no type for parameters.

use std::ops::ControlFlow;
use std::sync::PoisonError;

use datafusion::common::DataFusionError;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr as PlanExpr, LogicalPlan};
use sql::cast::{Context, is_allowed};
use sql::{SqlError, SqlType, sqlstate};
use sqlparser::ast::{self, Expr, FunctionArguments, Query, SetExpr, Statement, UnaryOperator, VisitMut, VisitorMut};

use crate::operators::{Inferred, cast_name, cast_type, narrow_literal};
use crate::rewrite::{call, null, parameter};
use crate::values::needs_metadata;

/// Adds casts to the common types in all lists of a rewritten statement. `wanted` are the types of an `INSERT`, to which
/// each value is converted by itself. `of` is the type of an expression; `None` for NULL and literals of text.
pub(crate) fn with_types(
    statement: &mut Statement,
    wanted: Option<&[SqlType]>,
    inferred: &Inferred,
    of: impl Fn(&Expr) -> Option<SqlType>,
) -> Result<(), SqlError> {
    let mut lists = Lists { inferred, of, recursive: 0 };
    if let (Some(wanted), Statement::Query(query)) = (wanted, &mut *statement)
        && let SetExpr::Values(values) = &mut *query.body
    {
        for (number, wanted) in wanted.iter().enumerate() {
            lists.assigned(values, number, wanted);
        }
    }
    match VisitMut::visit(statement, &mut lists) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// Evaluates the casts of integers in lists.
pub(crate) fn with_literals(plan: LogicalPlan) -> Result<LogicalPlan, DataFusionError> {
    let plan = plan.transform_down_with_subqueries(|plan| match plan {
        LogicalPlan::Values(mut list) => {
            for value in list.values.iter_mut().flatten() {
                let literal = match &*value {
                    PlanExpr::ScalarFunction(cast) => narrow_literal(cast),
                    _ => None,
                };
                if let Some(literal) = literal {
                    *value = literal;
                }
            }
            Ok(Transformed::yes(LogicalPlan::Values(list)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(plan.data)
}

struct Lists<'a, F> {
    inferred: &'a Inferred,
    of: F,
    /// The number of enclosing `WITH RECURSIVE`.
    recursive: usize,
}

/// What determines the type of a value in a list.
#[derive(Debug)]
enum Cell {
    Null,
    /// A literal of text.
    Text,
    /// A number without a cast, with its type.
    Number(SqlType),
    /// A parameter without a type, by its number from 0.
    Parameter(usize),
    /// A parameter with a type.
    Declared(SqlType),
    Other(SqlType),
}

impl Cell {
    fn sql_type(&self) -> Option<&SqlType> {
        match self {
            Self::Number(of) | Self::Declared(of) | Self::Other(of) => Some(of),
            Self::Null | Self::Text | Self::Parameter(_) => None,
        }
    }

    fn is_literal(&self) -> bool {
        matches!(self, Self::Null | Self::Text | Self::Number(_))
    }
}

impl<F: Fn(&Expr) -> Option<SqlType>> Lists<'_, F> {
    fn cell(&self, expression: &Expr) -> Cell {
        if let Some(number) = parameter(expression) {
            let inferred = self.inferred.lock().unwrap_or_else(PoisonError::into_inner);
            return match inferred.get(number).cloned().flatten() {
                Some(of) => Cell::Declared(of),
                None => Cell::Parameter(number),
            };
        }
        if let Some(of) = type_of_number(expression) {
            return Cell::Number(of);
        }
        match expression {
            Expr::Value(value) if value.value == ast::Value::Null => return Cell::Null,
            Expr::Value(value) if matches!(value.value, ast::Value::Boolean(_)) => return Cell::Other(SqlType::Bool),
            Expr::Function(function) if is_cast(function) => {
                let name = function.name.0.first().and_then(|name| name.as_ident());
                if let Some(to) = name.and_then(|name| cast_type(&name.value)) {
                    return Cell::Other(to);
                }
            }
            _ => {}
        }
        (self.of)(expression).map_or(Cell::Text, Cell::Other)
    }

    fn cells(&self, values: &ast::Values, number: usize) -> Vec<Cell> {
        values.rows.iter().filter_map(|row| row.content.get(number)).map(|value| self.cell(value)).collect()
    }

    /// Converts the values of a column to the type of an `INSERT`.
    fn assigned(&self, values: &mut ast::Values, number: usize, wanted: &SqlType) {
        let cells = self.cells(values, number);
        // The length is checked later.
        let to = match wanted {
            wanted if wanted.is_text() => SqlType::Text,
            SqlType::Numeric(_) => SqlType::Numeric(None),
            other => other.clone(),
        };
        // Literals keep their digits.
        if matches!(to, SqlType::Numeric(_)) && cells.iter().all(Cell::is_literal) {
            return;
        }
        let is_convertible =
            |cell: &Cell| cell.sql_type().is_none_or(|from| is_allowed(from, &to, Context::Assignment));
        if cells.iter().all(is_convertible) {
            self.convert(values, number, &cells, &to, true);
        }
    }

    fn column(&self, values: &mut ast::Values, number: usize) -> Result<(), SqlError> {
        let cells = self.cells(values, number);
        let to = common_type(&cells)?;
        let Some(to) = to else {
            if cells.iter().any(|cell| matches!(cell, Cell::Parameter(_))) {
                self.convert(values, number, &cells, &SqlType::Text, false);
            }
            return Ok(());
        };
        // DataFusion shows such numbers with equal numbers of digits. Both parts of a recursive query have one type.
        let is_numeric = matches!(to, SqlType::Numeric(_));
        if cells.iter().all(Cell::is_literal) && (is_numeric || self.recursive > 0) {
            return Ok(());
        }
        self.convert(values, number, &cells, &to, is_numeric);
        Ok(())
    }

    /// Adds casts where they are necessary, or to all values that have none.
    fn convert(&self, values: &mut ast::Values, number: usize, cells: &[Cell], to: &SqlType, all: bool) {
        let column = values.rows.iter_mut().filter_map(|row| row.content.get_mut(number));
        for (value, cell) in column.zip(cells) {
            let is_needed = match cell {
                Cell::Null => needs_metadata(to),
                Cell::Text => *to != SqlType::Text,
                Cell::Parameter(_) | Cell::Declared(_) => true,
                // DataFusion's integers are `bigint`.
                Cell::Number(_) => *to != SqlType::Int8,
                Cell::Other(from) => from != to || all && !is_cast_to(value, to),
            };
            if let Cell::Parameter(number) = cell {
                let mut inferred = self.inferred.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(slot) = inferred.get_mut(*number) {
                    slot.get_or_insert_with(|| to.clone());
                }
            }
            if is_needed {
                let operand = std::mem::replace(value, null());
                *value = call(&cast_name(to), vec![operand]);
            }
        }
    }

    fn body(&self, body: &mut SetExpr) -> Result<(), SqlError> {
        match body {
            SetExpr::Values(values) => {
                let columns = values.rows.first().map_or(0, |row| row.content.len());
                (0..columns).try_for_each(|number| self.column(values, number))
            }
            SetExpr::SetOperation { left, right, .. } => {
                self.body(left)?;
                self.body(right)
            }
            // Visited as a query by itself.
            _ => Ok(()),
        }
    }
}

impl<F: Fn(&Expr) -> Option<SqlType>> VisitorMut for Lists<'_, F> {
    type Break = SqlError;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<SqlError> {
        self.recursive += usize::from(is_recursive(query));
        match self.body(&mut query.body) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<SqlError> {
        self.recursive -= usize::from(is_recursive(query));
        ControlFlow::Continue(())
    }
}

fn is_recursive(query: &Query) -> bool {
    query.with.as_ref().is_some_and(|with| with.recursive)
}

/// The type of a number that is written without a cast.
fn type_of_number(expression: &Expr) -> Option<SqlType> {
    match expression {
        Expr::Value(value) => match &value.value {
            ast::Value::Number(digits, _) if digits.parse::<i32>().is_ok() => Some(SqlType::Int4),
            ast::Value::Number(digits, _) if digits.parse::<i64>().is_ok() => Some(SqlType::Int8),
            ast::Value::Number(..) => Some(SqlType::Numeric(None)),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus | UnaryOperator::Plus, expr } => match &**expr {
            number @ Expr::Value(_) => type_of_number(number),
            _ => None,
        },
        _ => None,
    }
}

fn is_cast(function: &ast::Function) -> bool {
    function.over.is_none() && matches!(&function.args, FunctionArguments::List(list) if list.args.len() == 1)
}

/// Whether an expression is a cast to this type.
fn is_cast_to(expression: &Expr, to: &SqlType) -> bool {
    let Expr::Function(function) = expression else { return false };
    let name = function.name.0.first().and_then(|name| name.as_ident());
    name.is_some_and(|name| name.value == cast_name(to))
}

/// The type of a column by those of its values; `None` if no value has one.
fn common_type(cells: &[Cell]) -> Result<Option<SqlType>, SqlError> {
    let mut known = cells.iter().filter_map(Cell::sql_type);
    let Some(first) = known.next() else { return Ok(None) };
    let mut common = first.clone();
    for of in known {
        if *of != common {
            common = common_of_two(&common, of)?;
        }
    }
    // A literal has no declared length.
    if cells.iter().any(|cell| matches!(cell, Cell::Text)) {
        common = without_length(&common)?;
    }
    Ok(Some(common))
}

fn without_length(of: &SqlType) -> Result<SqlType, SqlError> {
    Ok(match of {
        SqlType::Varchar(_) => SqlType::Varchar(None),
        SqlType::Numeric(_) => SqlType::Numeric(None),
        SqlType::Char(_) => return Err(SqlError::unsupported("VALUES of type character with different lengths")),
        other => other.clone(),
    })
}

fn common_of_two(a: &SqlType, b: &SqlType) -> Result<SqlType, SqlError> {
    let time = |of: &SqlType| match of {
        SqlType::Date => Some(0),
        SqlType::Timestamp => Some(1),
        SqlType::Timestamptz => Some(2),
        _ => None,
    };
    // Types of text can be converted in both directions, so that the first one determines the result.
    if a.is_same_base(b) || a.is_text() && b.is_text() {
        if [a, b].iter().any(|of| matches!(of, SqlType::Char(_))) {
            return without_length(&SqlType::Char(1));
        }
        return without_length(a);
    }
    let is_category = a.is_number() && b.is_number() || time(a).is_some() && time(b).is_some();
    if !is_category {
        let message = format!("VALUES types {} and {} cannot be matched", a.base_name(), b.base_name());
        return Err(SqlError::new(sqlstate::DATATYPE_MISMATCH, message));
    }
    let is_wider = match (time(a), time(b)) {
        (Some(a), Some(b)) => b > a,
        _ => is_allowed(a, b, Context::Implicit),
    };
    without_length(if is_wider { b } else { a })
}
