//! Rewrites subqueries that DataFusion does not plan. Those that it only does not execute are rewritten in their plans.

use std::ops::ControlFlow;

use sql::SqlError;
use sql::parse::fold;
use sqlparser::ast::{
    self, DataType, Expr, FunctionArg, FunctionArgExpr, Ident, Query, Select, SelectItem, SetExpr, TableFactor,
};

use super::{null, plain_name};
use crate::ordered::ALL_ROWS;

/// Results are not computed if a table in `FROM` never has rows: a catalog of a feature that Loggos lacks. Results with
/// subqueries are then replaced, because clients use some that DataFusion does not support.
pub(super) fn skip_items_without_rows(select: &mut Select) {
    // An outer join has rows without it.
    if !select.from.iter().any(|from| is_empty(&from.relation))
        || matches!(&select.group_by, ast::GroupByExpr::Expressions(by, _) if !by.is_empty())
    {
        return;
    }
    for item in &mut select.projection {
        if let SelectItem::UnnamedExpr(expression) | SelectItem::ExprWithAlias { expr: expression, .. } = item
            && has_subquery(expression)
        {
            let name = sql::direct::name_of(expression);
            let alias = match item {
                SelectItem::ExprWithAlias { alias, .. } => alias.clone(),
                _ => Ident::with_quote('"', name),
            };
            let text = Expr::Cast {
                kind: ast::CastKind::DoubleColon,
                expr: Box::new(null()),
                data_type: DataType::Text,
                array: false,
                format: None,
            };
            *item = SelectItem::ExprWithAlias { expr: text, alias };
        }
    }
}

/// Whether a table never has rows.
fn is_empty(table: &TableFactor) -> bool {
    let TableFactor::Table { name, args: None, .. } = table else { return false };
    sql::system::table(None, &plain_name(name)).is_some_and(sql::system::SystemTable::is_always_empty)
}

pub(super) fn has_subquery(expression: &Expr) -> bool {
    struct Search;
    impl ast::Visitor for Search {
        type Break = ();

        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    ast::Visit::visit(expression, &mut Search).is_break()
}

/// `VALUES` with subqueries, which DataFusion does not execute there: a query for each row.
pub(super) fn selects_of(values: &ast::Values) -> Result<SetExpr, SqlError> {
    let sql::statement::Statement::Query(one, _) = sql::parse::parse_one("SELECT 1")? else {
        return Err(SqlError::unsupported("VALUES with subqueries"));
    };
    let row = |row: &ast::Parens<Vec<Expr>>| {
        let mut body = one.body.clone();
        if let SetExpr::Select(select) = &mut *body {
            let items = row.content.iter().enumerate().map(|(number, value)| SelectItem::ExprWithAlias {
                expr: value.clone(),
                alias: Ident::new(format!("column{}", number + 1)),
            });
            select.projection = items.collect();
        }
        body
    };
    let all = values.rows.iter().map(row).reduce(|left, right| {
        Box::new(SetExpr::SetOperation {
            op: ast::SetOperator::Union,
            set_quantifier: ast::SetQuantifier::All,
            left,
            right,
        })
    });
    all.map(|all| *all).ok_or_else(|| SqlError::unsupported("VALUES without rows"))
}

/// Whether a query has a row of these values: `EXISTS (SELECT FROM (query) AS rows(names) WHERE (values) = (names))`.
pub(super) fn is_row_of(values: Vec<Expr>, query: &Query, names: Vec<Ident>) -> Result<Expr, SqlError> {
    let sql::statement::Statement::Query(mut outer, _) = sql::parse::parse_one("SELECT 1 FROM (SELECT 1) AS rows")?
    else {
        return Err(SqlError::unsupported("IN with rows"));
    };
    if let SetExpr::Select(select) = &mut *outer.body
        && let Some(from) = select.from.first_mut()
        && let TableFactor::Derived { subquery, alias: Some(alias), .. } = &mut from.relation
    {
        **subquery = query.clone();
        alias.name = names.first().cloned().unwrap_or_else(|| Ident::new("rows"));
        alias.columns =
            names.iter().map(|name| ast::TableAliasColumnDef { name: name.clone(), data_type: None }).collect();
        let columns = names.into_iter().map(Expr::Identifier).collect();
        select.selection = Some(super::tuples(values, columns, true)?);
    }
    Ok(Expr::Exists { subquery: outer, negated: false })
}

/// Whether an expression is a column of this name.
pub(super) fn is_named(expression: &Expr, name: &str) -> bool {
    matches!(expression, Expr::CompoundIdentifier(parts) if parts.last().is_some_and(|part| fold(part) == name))
}

pub(super) fn tables_of(select: &Select) -> Vec<&TableFactor> {
    let mut tables = Vec::new();
    for from in &select.from {
        tables.push(&from.relation);
        tables.extend(from.joins.iter().map(|join| &join.relation));
    }
    tables
}

/// The name by which a query refers to a table.
pub(super) fn name_of_table(table: &TableFactor) -> Option<String> {
    match table {
        TableFactor::Table { alias: Some(alias), .. } | TableFactor::Derived { alias: Some(alias), .. } => {
            Some(fold(&alias.name))
        }
        TableFactor::Table { name, .. } => Some(plain_name(name)),
        _ => None,
    }
}

/// `ARRAY(query)`: the rows of a query as an array.
pub(super) fn array_of(query: &Query) -> Expr {
    // psql reads the options of tables in this way. There are none.
    if let SetExpr::Select(select) = &*query.body
        && let [from] = &select.from[..]
        && let TableFactor::Table { args: Some(args), .. } = &from.relation
        && let [FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))] = &args.args[..]
        && is_named(argument, "reloptions")
    {
        return null();
    }
    // The catalogs of features that Loggos lacks never have rows.
    if let SetExpr::Select(select) = &*query.body
        && select.from.iter().any(|from| is_empty(&from.relation))
    {
        return null();
    }
    let text = "SELECT array_agg(item) FROM (SELECT 1) AS items(item)";
    let Ok(sql::statement::Statement::Query(mut outer, _)) = sql::parse::parse_one(text) else { return null() };
    if let SetExpr::Select(select) = &mut *outer.body
        && let Some(from) = select.from.first_mut()
        && let ast::TableFactor::Derived { subquery, .. } = &mut from.relation
    {
        **subquery = query.clone();
        // DataFusion ignores the order of a table in `FROM` if it has no limit.
        if subquery.order_by.is_some() && subquery.limit_clause.is_none() {
            let limit = Some(Expr::Value(ast::Value::Number(ALL_ROWS.to_string(), false).into()));
            subquery.limit_clause = Some(ast::LimitClause::LimitOffset { limit, offset: None, limit_by: Vec::new() });
        }
    }
    Expr::Subquery(outer)
}
