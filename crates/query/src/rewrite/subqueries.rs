//! Rewrites subqueries and conditions on outer queries in forms that DataFusion supports.

use std::ops::ControlFlow;

use sql::SqlError;
use sql::parse::fold;
use sqlparser::ast::{
    self, BinaryOperator, DataType, Expr, FunctionArg, FunctionArgExpr, Ident, Query, Select, SelectItem, SetExpr,
    TableFactor, VisitorMut,
};

use super::{binary, call, null, plain_name};
use crate::functions::FUNCTIONS;

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

/// Replaces `EXISTS` in results by a count: DataFusion supports it only in conditions. The field counts the depth of
/// queries.
pub(super) struct CountRows(pub(super) usize);

impl VisitorMut for CountRows {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.0 += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.0 = self.0.saturating_sub(1);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if self.0 > 0 {
            return ControlFlow::Continue(());
        }
        let Expr::Exists { subquery, negated } = expression else { return ControlFlow::Continue(()) };
        let SetExpr::Select(select) = &mut *subquery.body else { return ControlFlow::Continue(()) };
        let is_plain = select.having.is_none()
            && select.distinct.is_none()
            && matches!(&select.group_by, ast::GroupByExpr::Expressions(by, _) if by.is_empty());
        if !is_plain || subquery.limit_clause.is_some() || subquery.with.is_some() {
            return ControlFlow::Continue(());
        }
        let one = || Expr::Value(ast::Value::Number("1".to_owned(), false).into());
        select.projection = vec![SelectItem::UnnamedExpr(call("count", vec![one()]))];
        subquery.order_by = None;
        let zero = Expr::Value(ast::Value::Number("0".to_owned(), false).into());
        let op = if *negated { BinaryOperator::Eq } else { BinaryOperator::Gt };
        *expression = binary(Expr::Subquery(subquery.clone()), op, zero);
        ControlFlow::Continue(())
    }
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

/// Whether an expression is a column of this name.
pub(super) fn is_named(expression: &Expr, name: &str) -> bool {
    matches!(expression, Expr::CompoundIdentifier(parts) if parts.last().is_some_and(|part| fold(part) == name))
}

/// Removes the conditions from a subquery that only refer to outer queries: DataFusion does not support them there.
pub(super) fn outer_conditions(query: &mut Query) -> Vec<Expr> {
    let SetExpr::Select(select) = &mut *query.body else { return Vec::new() };
    let has_groups = select.having.is_some()
        || !matches!(&select.group_by, ast::GroupByExpr::Expressions(by, _) if by.is_empty())
        || select.projection.iter().any(|item| {
            matches!(item, SelectItem::UnnamedExpr(item) | SelectItem::ExprWithAlias { expr: item, .. } if has_aggregate(item))
        });
    // Without rows an aggregate may have a value.
    if has_groups {
        return Vec::new();
    }
    let names: Vec<String> = tables_of(select).into_iter().filter_map(name_of_table).collect();
    let Some(condition) = select.selection.take() else { return Vec::new() };
    let mut parts = Vec::new();
    conjuncts(condition, &mut parts);
    let (outer, inner): (Vec<Expr>, Vec<Expr>) = parts.into_iter().partition(|part| is_outer(part, &names));
    select.selection = inner.into_iter().reduce(|all, one| binary(all, BinaryOperator::And, one));
    outer
}

fn conjuncts(condition: Expr, parts: &mut Vec<Expr>) {
    match condition {
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            conjuncts(*left, parts);
            conjuncts(*right, parts);
        }
        other => parts.push(other),
    }
}

/// Whether a condition has columns, and all are qualified with names of other tables than these.
fn is_outer(condition: &Expr, names: &[String]) -> bool {
    struct Search<'a> {
        names: &'a [String],
        has_column: bool,
    }
    impl ast::Visitor for Search<'_> {
        type Break = ();

        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            ControlFlow::Break(())
        }

        fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
            match expression {
                Expr::Identifier(_) => ControlFlow::Break(()),
                Expr::CompoundIdentifier(parts) => match &parts[..] {
                    [.., table, _] if !self.names.contains(&fold(table)) => {
                        self.has_column = true;
                        ControlFlow::Continue(())
                    }
                    _ => ControlFlow::Break(()),
                },
                _ => ControlFlow::Continue(()),
            }
        }
    }
    let mut search = Search { names, has_column: false };
    ast::Visit::visit(condition, &mut search).is_continue() && search.has_column
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

/// A subquery of one value, as an aggregate of its rows: DataFusion requires one if the subquery refers to the outer
/// query.
pub(super) fn single_row(query: &mut Query) {
    let has_parts = query.with.is_some() || query.limit_clause.is_some() || query.order_by.is_some();
    let SetExpr::Select(select) = &mut *query.body else { return };
    let is_plain = !has_parts
        && select.distinct.is_none()
        && select.having.is_none()
        && !select.from.is_empty()
        && matches!(&select.group_by, ast::GroupByExpr::Expressions(by, _) if by.is_empty());
    let [SelectItem::UnnamedExpr(item) | SelectItem::ExprWithAlias { expr: item, .. }] = &mut select.projection[..]
    else {
        return;
    };
    if is_plain && !has_aggregate(item) {
        let value = std::mem::replace(item, null());
        *item = call("/single", vec![value]);
    }
}

/// The result of a subquery that is computed from its own columns and those of outer queries, which DataFusion does not
/// support: the same computation outside of the subquery, with a subquery for each column.
pub(super) fn split_result(query: &Query) -> Option<Expr> {
    struct Split<'a> {
        names: &'a [String],
        query: &'a Query,
        has_outer: bool,
    }
    impl VisitorMut for Split<'_> {
        type Break = ();

        fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
            ControlFlow::Break(())
        }

        fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
            match expression {
                Expr::Identifier(_) => return ControlFlow::Break(()),
                Expr::CompoundIdentifier(parts) => match &parts[..] {
                    [.., table, _] if self.names.contains(&fold(table)) => {
                        *expression = with_result(self.query, call("/single", vec![expression.clone()]));
                    }
                    _ => self.has_outer = true,
                },
                _ => {}
            }
            ControlFlow::Continue(())
        }
    }
    let SetExpr::Select(select) = &*query.body else { return None };
    let is_plain = query.with.is_none()
        && query.limit_clause.is_none()
        && query.order_by.is_none()
        && select.distinct.is_none()
        && select.having.is_none()
        && matches!(&select.group_by, ast::GroupByExpr::Expressions(by, _) if by.is_empty());
    let [SelectItem::UnnamedExpr(item) | SelectItem::ExprWithAlias { expr: item, .. }] = &select.projection[..] else {
        return None;
    };
    if !is_plain || select.from.is_empty() || has_aggregate(item) {
        return None;
    }
    let names: Vec<String> = tables_of(select).into_iter().filter_map(name_of_table).collect();
    let mut result = item.clone();
    let mut split = Split { names: &names, query, has_outer: false };
    if ast::VisitMut::visit(&mut result, &mut split).is_break() || !split.has_outer {
        return None;
    }
    let number = |text: &str| Expr::Value(ast::Value::Number(text.to_owned(), false).into());
    let count = with_result(query, call("count", vec![number("1")]));
    Some(Expr::Case {
        case_token: ast::helpers::attached_token::AttachedToken::empty(),
        end_token: ast::helpers::attached_token::AttachedToken::empty(),
        operand: None,
        conditions: vec![ast::CaseWhen { condition: binary(count, BinaryOperator::Gt, number("0")), result }],
        else_result: None,
    })
}

fn with_result(query: &Query, result: Expr) -> Expr {
    let mut query = query.clone();
    if let SetExpr::Select(select) = &mut *query.body {
        select.projection = vec![SelectItem::UnnamedExpr(result)];
    }
    Expr::Subquery(Box::new(query))
}

/// Whether an expression has an aggregate function of its own query.
fn has_aggregate(expression: &Expr) -> bool {
    struct Search(bool, usize);
    impl ast::Visitor for Search {
        type Break = ();

        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.1 += 1;
            ControlFlow::Continue(())
        }

        fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.1 = self.1.saturating_sub(1);
            ControlFlow::Continue(())
        }

        fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
            if let Expr::Function(function) = expression
                && self.1 == 0
                && function.over.is_none()
                && FUNCTIONS.aggregate.contains_key(&plain_name(&function.name))
            {
                self.0 = true;
            }
            ControlFlow::Continue(())
        }
    }
    let mut search = Search(false, 0);
    let _ = ast::Visit::visit(expression, &mut search);
    search.0
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
    }
    Expr::Subquery(outer)
}
