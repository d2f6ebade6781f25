//! The order of the rows that `array_agg` and `string_agg` collect. Without an `ORDER BY` of their own it is that of the
//! query in `FROM`, as in `ARRAY(SELECT ... ORDER BY ...)`. DataFusion sorts only for an `ORDER BY` of the function.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::logical_expr::expr::{Alias, WindowFunction};
use datafusion::logical_expr::{
    Aggregate, Expr, Filter, Limit, LogicalPlan, Projection, Sort, Window, WindowFunctionDefinition,
};

use crate::rewrite::INTERNAL;

/// A limit that only keeps the order of the rows.
pub(crate) const ALL_ROWS: i64 = i64::MAX;

/// Orders the rows of these functions by the numbers of the rows in `FROM`.
pub(crate) fn with_order(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut names = 0;
    let plan = plan.transform_up_with_subqueries(|plan| {
        let LogicalPlan::Aggregate(aggregate) = plan else { return Ok(Transformed::no(plan)) };
        let has_order = |item: &Expr| !is_unordered(item);
        if aggregate.aggr_expr.iter().all(has_order) {
            return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
        }
        names += 1;
        let number = Column::new_unqualified(format!("{INTERNAL}row{names}"));
        let Some(input) = numbered(&aggregate.input, &number)? else {
            return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
        };
        let groups = aggregate.group_expr.len();
        let mut items = Vec::with_capacity(aggregate.aggr_expr.len());
        for (item, field) in aggregate.aggr_expr.into_iter().zip(aggregate.schema.fields().iter().skip(groups)) {
            let is_unordered = is_unordered(&item);
            items.push(match item.unalias() {
                Expr::AggregateFunction(mut function) if is_unordered => {
                    function.params.order_by.push(Expr::Column(number.clone()).sort(true, false));
                    Expr::AggregateFunction(function).alias(field.name())
                }
                other => other.alias(field.name()),
            });
        }
        let plan = Aggregate::try_new(Arc::new(input), aggregate.group_expr, items)?;
        Ok(Transformed::yes(LogicalPlan::Aggregate(plan)))
    })?;
    Ok(plan.data)
}

fn is_unordered(item: &Expr) -> bool {
    match item {
        Expr::Alias(Alias { expr, .. }) => is_unordered(expr),
        Expr::AggregateFunction(function) => {
            ["array_agg", "string_agg"].contains(&function.func.name())
                && function.params.order_by.is_empty()
                && !function.params.distinct
        }
        _ => false,
    }
}

/// A plan with the numbers of its rows, if they have an order.
fn numbered(plan: &LogicalPlan, number: &Column) -> Result<Option<LogicalPlan>> {
    let next =
        |input: &Arc<LogicalPlan>| -> Result<Option<Arc<LogicalPlan>>> { Ok(numbered(input, number)?.map(Arc::new)) };
    let plan = match plan {
        LogicalPlan::Sort(sort) => {
            let mut function = WindowFunction::new(WindowFunctionDefinition::WindowUDF(row_number_udwf()), Vec::new());
            function.params.order_by.clone_from(&sort.expr);
            let function = Expr::from(function).alias(number.name());
            let input = Arc::new(LogicalPlan::Window(Window::try_new(vec![function], Arc::clone(&sort.input))?));
            Some(LogicalPlan::Sort(Sort { expr: sort.expr.clone(), input, fetch: sort.fetch }))
        }
        LogicalPlan::Limit(limit) if is_all(limit) => match next(&limit.input)?.map(Arc::unwrap_or_clone) {
            Some(LogicalPlan::Sort(sort)) => Some(Arc::unwrap_or_clone(sort.input)),
            other => other,
        },
        LogicalPlan::Limit(limit) => next(&limit.input)?
            .map(|input| LogicalPlan::Limit(Limit { skip: limit.skip.clone(), fetch: limit.fetch.clone(), input })),
        LogicalPlan::Filter(filter) => match next(&filter.input)? {
            Some(input) => Some(LogicalPlan::Filter(Filter::try_new(filter.predicate.clone(), input)?)),
            None => None,
        },
        LogicalPlan::Projection(projection) => match next(&projection.input)? {
            Some(input) => {
                let items = projection.expr.iter().cloned().chain([Expr::Column(number.clone())]).collect();
                Some(LogicalPlan::Projection(Projection::try_new(items, input)?))
            }
            None => None,
        },
        LogicalPlan::SubqueryAlias(alias) => match next(&alias.input)? {
            Some(input) => {
                let columns = alias.input.schema().columns().into_iter().zip(alias.schema.iter());
                let items = columns
                    .map(|(column, (table, field))| Expr::Column(column).alias_qualified(table.cloned(), field.name()));
                let items = items.chain([Expr::Column(number.clone())]).collect();
                Some(LogicalPlan::Projection(Projection::try_new(items, input)?))
            }
            None => None,
        },
        _ => None,
    };
    Ok(plan)
}

fn is_all(limit: &Limit) -> bool {
    let fetch = limit.fetch.as_deref();
    limit.skip.is_none() && matches!(fetch, Some(Expr::Literal(ScalarValue::Int64(Some(ALL_ROWS)), _)))
}
