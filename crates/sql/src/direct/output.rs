//! The columns that a statement returns.

use sqlparser::ast::{Expr, SelectItem, SelectItemQualifiedWildcardKind};

use super::OutputColumn;
use crate::bind::{Binder, Unbound};
use crate::error::SqlError;
use crate::expression::{Environment, Expression, Rows};
use crate::parse::fold;
use crate::types::SqlType;
use crate::value::Value;

/// The expressions of a list of results, and their columns.
pub(super) fn bind(binder: &mut Binder, items: &[SelectItem]) -> Result<(Vec<Expression>, Vec<OutputColumn>), Unbound> {
    let mut expressions = Vec::new();
    let mut columns = Vec::new();
    for item in items {
        match item {
            SelectItem::UnnamedExpr(expression) => {
                one(binder, expression, name_of(expression), &mut expressions, &mut columns)?;
            }
            SelectItem::ExprWithAlias { expr, alias } => {
                one(binder, expr, fold(alias), &mut expressions, &mut columns)?;
            }
            SelectItem::Wildcard(options) if *options == Default::default() => {
                all(binder, &mut expressions, &mut columns);
            }
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options)
                if options.opt_except.is_none() && options.opt_exclude.is_none() && options.opt_rename.is_none() =>
            {
                let alias = binder.table.as_ref().map(|(_, alias)| alias.clone());
                let name = crate::parse::simple_name(name)?;
                if alias != Some(name) {
                    return Err(Unbound::NeedsPlanner);
                }
                all(binder, &mut expressions, &mut columns);
            }
            _ => return Err(Unbound::NeedsPlanner),
        }
    }
    Ok((expressions, columns))
}

fn all(binder: &Binder, expressions: &mut Vec<Expression>, columns: &mut Vec<OutputColumn>) {
    let Some((table, _)) = &binder.table else { return };
    for (number, column) in table.columns.iter().enumerate().filter(|(_, column)| !column.is_hidden) {
        expressions.push(Expression::Column(number));
        columns.push(OutputColumn {
            name: column.name.clone(),
            sql_type: column.sql_type.clone(),
            origin: Some((table.id, column.id)),
        });
    }
}

pub(super) fn one(
    binder: &mut Binder,
    expression: &Expr,
    name: String,
    expressions: &mut Vec<Expression>,
    columns: &mut Vec<OutputColumn>,
) -> Result<(), Unbound> {
    let typed = binder.bind(expression)?;
    let sql_type = typed.sql_type.clone().unwrap_or(SqlType::Text);
    let origin = match (&typed.expression, &binder.table) {
        (Expression::Column(number), Some((table, _))) => {
            table.columns.get(*number).map(|column| (table.id, column.id))
        }
        _ => None,
    };
    // A literal or parameter without a type is text.
    let bound = binder.coerce(typed, &sql_type, crate::cast::Context::Implicit)?;
    expressions.push(bound);
    columns.push(OutputColumn { name, sql_type, origin });
    Ok(())
}

/// The name that PostgreSQL gives to a result.
pub fn name_of(expression: &Expr) -> String {
    match expression {
        Expr::Identifier(name) => fold(name),
        Expr::CompoundIdentifier(parts) => parts.last().map(fold).unwrap_or_default(),
        Expr::Nested(inner) => name_of(inner),
        Expr::Function(function) => {
            let name = function.name.0.last().and_then(|part| part.as_ident());
            name.map(fold).unwrap_or_default()
        }
        Expr::Cast { expr, data_type, .. } => match name_of(expr).as_str() {
            "?column?" => {
                crate::parse::sql_type(data_type).map_or_else(|_| "?column?".to_owned(), |to| to.internal_name())
            }
            name => name.to_owned(),
        },
        Expr::Case { .. } => "case".to_owned(),
        Expr::Value(value) if matches!(value.value, sqlparser::ast::Value::Boolean(_)) => "bool".to_owned(),
        _ => "?column?".to_owned(),
    }
}

/// The results for a row.
pub(super) fn evaluate(
    expressions: &[Expression],
    row: &[Value],
    environment: &mut Environment,
) -> Result<Vec<Value>, SqlError> {
    expressions.iter().map(|expression| expression.evaluate(Rows { row, excluded: &[] }, environment)).collect()
}
