//! `INTERSECT ALL` and `EXCEPT ALL`. DataFusion does not count how often a row occurs, so the rows are numbered among equal
//! ones, and the numbered rows are intersected as a set.

use sql::statement::Statement;
use sql::{SqlError, parse};
use sqlparser::ast::{Ident, Query, SelectItem, SetExpr, SetOperator, SetQuantifier, TableFactor};

/// Replaces an operation on multisets by an equivalent query.
pub(super) fn replace(body: &mut SetExpr) -> Result<(), SqlError> {
    let SetExpr::SetOperation { op, set_quantifier: SetQuantifier::All, left, right } = body else { return Ok(()) };
    let what = match op {
        SetOperator::Intersect => "INTERSECT ALL",
        SetOperator::Except | SetOperator::Minus => "EXCEPT ALL",
        SetOperator::Union => return Ok(()),
    };
    let names = names_of(left).ok_or_else(|| {
        SqlError::unsupported(format!("{what} of a query with *")).with_hint("List the columns of the first query.")
    })?;
    let columns: Vec<String> = (1..=names.len()).map(|number| format!("c{number}")).collect();
    let columns = columns.join(", ");
    let numbered = |side: &SetExpr| {
        let text = format!(
            "SELECT {columns}, row_number() OVER (PARTITION BY {columns}) AS n FROM (SELECT 1) AS s ({columns})"
        );
        let mut query = query(&text)?;
        put(&mut query, side.clone())?;
        Ok::<_, SqlError>(query)
    };
    let (left, right) = (numbered(left)?, numbered(right)?);
    let operation =
        SetExpr::SetOperation { op: *op, set_quantifier: SetQuantifier::None, left: left.body, right: right.body };
    let mut outer = query(&format!("SELECT {columns} FROM (SELECT 1) AS s"))?;
    put(&mut outer, operation)?;
    if let SetExpr::Select(select) = &mut *outer.body {
        for (item, name) in select.projection.iter_mut().zip(names) {
            if let SelectItem::UnnamedExpr(expression) = item {
                *item = SelectItem::ExprWithAlias { expr: expression.clone(), alias: Ident::with_quote('"', name) };
            }
        }
    }
    *body = *outer.body;
    Ok(())
}

fn query(text: &str) -> Result<Query, SqlError> {
    match parse::parse_one(text)? {
        Statement::Query(query, _) => Ok(*query),
        _ => Err(SqlError::unsupported("this set operation")),
    }
}

/// Makes a query the subquery of another one.
fn put(outer: &mut Query, body: SetExpr) -> Result<(), SqlError> {
    let mut inner = query("SELECT 1")?;
    inner.body = Box::new(body);
    if let SetExpr::Select(select) = &mut *outer.body
        && let Some(from) = select.from.first_mut()
        && let TableFactor::Derived { subquery, .. } = &mut from.relation
    {
        **subquery = inner;
    }
    Ok(())
}

/// The names of the columns of a query, which must differ; `None` if they are not known.
fn names_of(body: &SetExpr) -> Option<Vec<String>> {
    let names: Vec<String> = match body {
        SetExpr::Select(select) => {
            let name = |item: &SelectItem| match item {
                SelectItem::UnnamedExpr(expression) => Some(sql::direct::name_of(expression)),
                SelectItem::ExprWithAlias { alias, .. } => Some(parse::fold(alias)),
                _ => None,
            };
            select.projection.iter().map(name).collect::<Option<_>>()?
        }
        SetExpr::Query(query) => return names_of(&query.body),
        SetExpr::SetOperation { left, .. } => return names_of(left),
        SetExpr::Values(values) => {
            let columns = values.rows.first()?.content.len();
            (1..=columns).map(|number| format!("column{number}")).collect()
        }
        _ => return None,
    };
    let distinct: std::collections::HashSet<&String> = names.iter().collect();
    (distinct.len() == names.len()).then_some(names)
}
