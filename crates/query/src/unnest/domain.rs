//! The domain of a subquery, and its way down into the plan of the subquery.
//!
//! A plan into which the domain was pushed has, for each row of the domain, the rows that the original plan has for these
//! values of the outer columns. It has the columns of the original plan and those of the domain, in any order.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, ExprSchema, JoinType, Result};
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::logical_expr::expr::{Case, Sort as Order, WindowFunction};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{
    Aggregate, Distinct, DistinctOn, EmptyRelation, Expr, FetchType, Filter, Join, Limit, LogicalPlan,
    LogicalPlanBuilder, Projection, SkipType, Sort, Union, Values, Window, WindowFunctionDefinition, lit,
};

use super::forms::{Reference, references};
use super::values::{known, same};
use super::{Pairs, Unnest, columns, count, join, named, project, unsupported};

/// The distinct values of the columns of the outer query that a subquery refers to.
pub(super) struct Domain {
    rows: LogicalPlan,
    /// The columns, as expressions on the rows.
    items: Vec<Expr>,
    references: Vec<Reference>,
    /// Whether a column may be NULL.
    nullable: Vec<bool>,
}

fn column(of: &Column) -> Expr {
    Expr::Column(of.clone())
}

/// Pairs of expressions that are equal if and only if two columns are not distinct. They are never NULL: DataFusion has
/// joins in which NULL equals NULL, but its optimizer moves other conditions to them.
fn pairs(left: &Column, right: &Column, is_nullable: bool) -> Pairs {
    if !is_nullable {
        return vec![(column(left), column(right))];
    }
    vec![(column(left).is_null(), column(right).is_null()), (known(column(left)), known(column(right)))]
}

impl Domain {
    pub(super) fn new(rows: &LogicalPlan, plan: &LogicalPlan) -> Result<Self> {
        let mut found = references(plan)?;
        found.retain(|reference| reference.is_in(rows.schema()));
        let mut nullable = Vec::with_capacity(found.len());
        for reference in &found {
            nullable.push(rows.schema().field_from_column(&reference.column)?.is_nullable());
        }
        let items: Vec<Expr> = found.iter().map(|reference| column(&reference.column)).collect();
        let (rows, items) = if found.is_empty() { (rows.clone(), items) } else { superset(rows.clone(), items)? };
        Ok(Self { rows, items, references: found, nullable })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.references.is_empty()
    }

    /// The conditions of a join of the outer query with a plan that has these columns of the domain.
    pub(super) fn keys(&self, inner: &[Column]) -> Pairs {
        let outer: Vec<Column> = self.references.iter().map(|reference| reference.column.clone()).collect();
        self.pairs(&outer, inner)
    }

    fn pairs(&self, left: &[Column], right: &[Column]) -> Pairs {
        let columns = left.iter().zip(right).zip(&self.nullable);
        columns.flat_map(|((left, right), is_nullable)| pairs(left, right, *is_nullable)).collect()
    }

    fn is_in(&self, plan: &LogicalPlan) -> Result<bool> {
        Ok(references(plan)?.iter().any(|found| self.number(&found.column).is_some()))
    }

    fn is_in_expression(&self, expression: &Expr) -> Result<bool> {
        expression
            .exists(|part| Ok(matches!(part, Expr::OuterReferenceColumn(_, column) if self.number(column).is_some())))
    }

    fn number(&self, column: &Column) -> Option<usize> {
        self.references.iter().position(|reference| reference.column == *column)
    }

    /// An expression with columns of the domain instead of the references.
    fn bound(&self, expression: Expr, keys: &[Column]) -> Result<Expr> {
        let bound = expression.transform_up(|part| {
            if let Expr::OuterReferenceColumn(_, of) = &part
                && let Some(key) = self.number(of).and_then(|number| keys.get(number))
            {
                return Ok(Transformed::yes(column(key)));
            }
            Ok(Transformed::no(part))
        })?;
        Ok(bound.data)
    }

    fn all_bound(&self, expressions: Vec<Expr>, keys: &[Column]) -> Result<Vec<Expr>> {
        expressions.into_iter().map(|expression| self.bound(expression, keys)).collect()
    }

    fn orders(&self, orders: Vec<Order>, keys: &[Column]) -> Result<Vec<Order>> {
        let bound = |order: Order| Ok(Order { expr: self.bound(order.expr, keys)?, ..order });
        orders.into_iter().map(bound).collect()
    }
}

/// Functions that depend on the order of rows that are equal for `ORDER BY`.
const ORDERED: [&str; 7] = ["row_number", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"];

/// Whether a plan has the same rows in all executions.
fn is_stable(plan: &LogicalPlan) -> Result<bool> {
    let mut is_stable = true;
    plan.apply_with_subqueries(|plan| {
        is_stable &= match plan {
            LogicalPlan::Limit(_) | LogicalPlan::Distinct(Distinct::On(_)) => false,
            LogicalPlan::Sort(sort) => sort.fetch.is_none(),
            _ => true,
        };
        plan.apply_expressions(|expression| {
            let has_order = expression.exists(|part| match part {
                Expr::WindowFunction(function) => Ok(ORDERED.contains(&function.fun.name())),
                _ => Ok(false),
            })?;
            is_stable &= !has_order && !expression.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(is_stable)
}

/// A plan that has the values of expressions for the rows of another one, and maybe for more rows. The outer query is
/// executed again for the domain, so parts that may return other rows then are omitted.
fn superset(plan: LogicalPlan, items: Vec<Expr>) -> Result<(LogicalPlan, Vec<Expr>)> {
    let refused = || unsupported("a correlated subquery of rows that depend on LIMIT, their order or random values");
    if items.iter().any(Expr::is_volatile) {
        return Err(refused());
    }
    if is_stable(&plan)? {
        return Ok((plan, items));
    }
    let is_within = |input: &LogicalPlan| {
        items.iter().all(|item| item.column_refs().into_iter().all(|column| input.schema().has_column(column)))
    };
    let next = |input: Arc<LogicalPlan>, items| superset(Arc::unwrap_or_clone(input), items);
    match plan {
        LogicalPlan::Limit(Limit { input, .. })
        | LogicalPlan::Sort(Sort { input, .. })
        | LogicalPlan::Filter(Filter { input, .. })
        | LogicalPlan::Distinct(Distinct::All(input)) => next(input, items),
        LogicalPlan::Window(window) if is_within(&window.input) => next(window.input, items),
        LogicalPlan::Join(of) => {
            use JoinType as J;
            let is_left = matches!(of.join_type, J::Inner | J::Left | J::LeftSemi | J::LeftAnti | J::LeftMark);
            let is_right = matches!(of.join_type, J::Inner | J::Right | J::RightSemi | J::RightAnti | J::RightMark);
            if is_left && is_within(&of.left) {
                next(of.left, items)
            } else if is_right && is_within(&of.right) {
                next(of.right, items)
            } else {
                Err(refused())
            }
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let items = replaced(items, &alias.schema.columns(), &columns(&alias.input))?;
            next(alias.input, items)
        }
        LogicalPlan::Projection(projection) if !projection.expr.iter().any(super::has_subquery) => {
            let items = replaced(items, &projection.schema.columns(), &projection.expr)?;
            next(projection.input, items)
        }
        LogicalPlan::Aggregate(aggregate)
            if !aggregate.group_expr.iter().any(|group| matches!(group, Expr::GroupingSet(_))) =>
        {
            let mut names = aggregate.schema.columns();
            names.truncate(aggregate.group_expr.len());
            if !items.iter().all(|item| item.column_refs().into_iter().all(|column| names.contains(column))) {
                return Err(refused());
            }
            let items = replaced(items, &names, &aggregate.group_expr)?;
            next(aggregate.input, items)
        }
        _ => Err(refused()),
    }
}

/// Expressions with others instead of columns.
fn replaced(items: Vec<Expr>, columns: &[Column], by: &[Expr]) -> Result<Vec<Expr>> {
    let replaced = |item: Expr| {
        let item = item.transform_up(|part| {
            let place = match &part {
                Expr::Column(column) => columns.iter().position(|other| other == column),
                _ => None,
            };
            match place.and_then(|place| by.get(place)) {
                Some(by) => Ok(Transformed::yes(by.clone().unalias())),
                None => Ok(Transformed::no(part)),
            }
        });
        item.map(|item| item.data)
    };
    items.into_iter().map(replaced).collect()
}

impl Unnest {
    /// The rows of a domain.
    fn rows(&mut self, domain: &Domain) -> Result<(LogicalPlan, Vec<Column>)> {
        let keys: Vec<Column> = domain.items.iter().map(|_| Column::new_unqualified(self.name())).collect();
        let items = domain.items.iter().zip(&keys);
        let items = items.map(|(item, key)| same(item.clone().unalias()).alias(key.name()));
        let all = project(items.collect(), domain.rows.clone())?;
        let distinct = Aggregate::try_new(Arc::new(all), keys.iter().map(column).collect(), Vec::new())?;
        self.hidden(LogicalPlan::Aggregate(distinct), &keys)
    }

    /// Columns of a domain that the optimizer does not recognize as keys.
    fn hidden(&mut self, plan: LogicalPlan, keys: &[Column]) -> Result<(LogicalPlan, Vec<Column>)> {
        let (mut items, mut hidden) = (Vec::new(), Vec::new());
        for of in plan.schema().columns() {
            if !keys.contains(&of) {
                items.push(Expr::Column(of));
            }
        }
        for key in keys {
            let name = self.name();
            items.push(same(column(key)).alias(&name));
            hidden.push(Column::new_unqualified(name));
        }
        Ok((project(items, plan)?, hidden))
    }

    /// Pushes a domain into a plan. Returns the columns of the domain.
    pub(super) fn push(&mut self, plan: LogicalPlan, domain: &Domain) -> Result<(LogicalPlan, Vec<Column>)> {
        if domain.is_empty() {
            return Ok((plan, Vec::new()));
        }
        if !domain.is_in(&plan)? {
            let (rows, keys) = self.rows(domain)?;
            let is_row = matches!(&plan, LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: true, schema })
                if schema.fields().is_empty());
            let plan = if is_row { rows } else { join(rows, plan, Vec::new(), None, JoinType::Inner)? };
            return Ok((plan, keys));
        }
        match plan {
            LogicalPlan::Filter(filter) => {
                let (input, keys) = self.push(Arc::unwrap_or_clone(filter.input), domain)?;
                let predicate = domain.bound(filter.predicate, &keys)?;
                Ok((LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input))?), keys))
            }
            LogicalPlan::Projection(projection) => {
                let (input, keys) = self.push(Arc::unwrap_or_clone(projection.input), domain)?;
                let mut items = Vec::new();
                for (item, (table, field)) in projection.expr.into_iter().zip(projection.schema.iter()) {
                    items.push(named(domain.bound(item, &keys)?, (table, field.name())));
                }
                items.extend(keys.iter().map(column));
                Ok((project(items, input)?, keys))
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let before = alias.input.schema().columns();
                let (input, keys) = self.push(Arc::unwrap_or_clone(alias.input), domain)?;
                let mut items = Vec::new();
                for (of, (table, field)) in before.iter().zip(alias.schema.iter()) {
                    items.push(named(column(of), (table, field.name())));
                }
                items.extend(keys.iter().map(column));
                Ok((project(items, input)?, keys))
            }
            LogicalPlan::Aggregate(aggregate) => self.push_aggregate(aggregate, domain),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let (input, keys) = self.push(Arc::unwrap_or_clone(input), domain)?;
                self.hidden(LogicalPlan::Distinct(Distinct::All(Arc::new(input))), &keys)
            }
            LogicalPlan::Distinct(Distinct::On(on)) => {
                let (input, keys) = self.push(Arc::unwrap_or_clone(on.input), domain)?;
                let key = || keys.iter().map(column);
                let mut items = Vec::new();
                for (item, (table, field)) in on.select_expr.into_iter().zip(on.schema.iter()) {
                    items.push(named(domain.bound(item, &keys)?, (table, field.name())));
                }
                items.extend(key());
                let first = key().map(|of| of.sort(true, false));
                let orders = on.sort_expr.map(|orders| domain.orders(orders, &keys)).transpose()?;
                let orders = orders.map(|orders| first.chain(orders).collect());
                let groups = key().chain(domain.all_bound(on.on_expr, &keys)?).collect();
                let on = DistinctOn::try_new(groups, items, orders, Arc::new(input))?;
                Ok((LogicalPlan::Distinct(Distinct::On(on)), keys))
            }
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
                let (input, keys) = self.push(Arc::unwrap_or_clone(sort.input), domain)?;
                let expr = domain.orders(sort.expr, &keys)?;
                Ok((LogicalPlan::Sort(Sort { expr, input: Arc::new(input), fetch: None }), keys))
            }
            LogicalPlan::Limit(limit) => self.push_limit(limit, domain),
            LogicalPlan::Window(window) => {
                let before = window.input.schema().fields().len();
                let (input, keys) = self.push(Arc::unwrap_or_clone(window.input), domain)?;
                let mut functions = Vec::new();
                for (number, function) in window.window_expr.into_iter().enumerate() {
                    let of_rows = domain.bound(function, &keys)?.transform_up(|part| match part {
                        Expr::WindowFunction(mut function) => {
                            function.params.partition_by.extend(keys.iter().map(column));
                            Ok(Transformed::yes(Expr::WindowFunction(function)))
                        }
                        other => Ok(Transformed::no(other)),
                    })?;
                    let (table, field) = window.schema.qualified_field(before + number);
                    functions.push(named(of_rows.data, (table, field.name())));
                }
                Ok((LogicalPlan::Window(Window::try_new(functions, Arc::new(input))?), keys))
            }
            LogicalPlan::Union(union) => self.push_union(union, domain),
            LogicalPlan::Join(of) => self.push_join(of, domain),
            LogicalPlan::Values(values) => self.push_values(values, domain),
            LogicalPlan::Unnest(unnest) => {
                let before = unnest.schema.columns();
                let (input, keys) = self.push(Arc::unwrap_or_clone(unnest.input), domain)?;
                let builder = LogicalPlanBuilder::from(input);
                let plan = builder.unnest_columns_with_options(unnest.exec_columns, unnest.options)?.build()?;
                Ok((project(before.iter().chain(&keys).map(column).collect(), plan)?, keys))
            }
            other => Err(unsupported(&format!("a correlated subquery with {}", other.display()))),
        }
    }

    fn push_aggregate(&mut self, aggregate: Aggregate, domain: &Domain) -> Result<(LogicalPlan, Vec<Column>)> {
        let (input, keys) = self.push(Arc::unwrap_or_clone(aggregate.input), domain)?;
        if aggregate.group_expr.iter().any(|group| matches!(group, Expr::GroupingSet(_))) {
            return Err(unsupported("grouping sets in a correlated subquery"));
        }
        let groups = aggregate.group_expr.len();
        let mut named_groups: Vec<Expr> = keys.iter().map(column).collect();
        for (number, group) in aggregate.group_expr.into_iter().enumerate() {
            let (table, field) = aggregate.schema.qualified_field(number);
            named_groups.push(named(domain.bound(group, &keys)?, (table, field.name())));
        }
        let functions = domain.all_bound(aggregate.aggr_expr, &keys)?;
        let names = aggregate.schema.iter().skip(groups);
        if groups > 0 {
            let functions = functions.into_iter().zip(names);
            let functions =
                functions.map(|(function, (table, field))| named(function, (table, field.name()))).collect();
            let plan = Aggregate::try_new(Arc::new(input), named_groups, functions)?;
            return self.hidden(LogicalPlan::Aggregate(plan), &keys);
        }
        // There is one row for each of the domain, also if there are no rows to aggregate.
        let marker = self.name();
        let (mut computed, mut items) = (vec![count(lit(1_i64))?.alias(&marker)], Vec::new());
        for (function, (table, field)) in functions.into_iter().zip(names) {
            let name = self.name();
            let found = Expr::Column(Column::new_unqualified(&name));
            let without_rows = match function.clone().unalias() {
                Expr::AggregateFunction(of) => of.func.default_value(field.data_type())?,
                _ => return Err(unsupported("this aggregate function in a correlated subquery")),
            };
            computed.push(function.unalias().alias(name));
            let item = if without_rows.is_null() {
                found
            } else {
                Expr::Case(Case {
                    expr: None,
                    when_then_expr: vec![(
                        Box::new(Expr::Column(Column::new_unqualified(&marker)).is_null()),
                        Box::new(Expr::Literal(without_rows, None)),
                    )],
                    else_expr: Some(Box::new(found)),
                })
            };
            items.push(named(item, (table, field.name())));
        }
        let plan = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(input), named_groups, computed)?);
        let (rows, all) = self.rows(domain)?;
        let (rows, plan, on) = self.keyed(rows, plan, domain.pairs(&all, &keys))?;
        let plan = join(rows, plan, on, None, JoinType::Left)?;
        items.extend(all.iter().map(column));
        Ok((project(items, plan)?, all))
    }

    /// `LIMIT` as a condition on the number of a row among those of the same values of the domain.
    fn push_limit(&mut self, limit: Limit, domain: &Domain) -> Result<(LogicalPlan, Vec<Column>)> {
        let (SkipType::Literal(skip), FetchType::Literal(fetch)) = (limit.get_skip_type()?, limit.get_fetch_type()?)
        else {
            return Err(unsupported("a computed LIMIT in a correlated subquery"));
        };
        // The order of the rows is that of the next sort.
        let mut plan = Arc::unwrap_or_clone(limit.input);
        let mut projections = Vec::new();
        let mut orders = Vec::new();
        loop {
            plan = match plan {
                LogicalPlan::Projection(projection) => {
                    let input = Arc::unwrap_or_clone(Arc::clone(&projection.input));
                    projections.push(projection);
                    input
                }
                LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
                    orders = sort.expr;
                    plan = Arc::unwrap_or_clone(sort.input);
                    break;
                }
                LogicalPlan::Sort(_) => return Err(unsupported("LIMIT twice in a correlated subquery")),
                _ => break,
            };
        }
        let before = columns(&plan);
        let (plan, keys) = self.push(plan, domain)?;
        let mut function = WindowFunction::new(WindowFunctionDefinition::WindowUDF(row_number_udwf()), Vec::new());
        function.params.partition_by = keys.iter().map(column).collect();
        function.params.order_by = domain.orders(orders, &keys)?;
        let name = self.name();
        let window = Window::try_new(vec![Expr::from(function).alias(&name)], Arc::new(plan))?;
        let number = || Expr::Column(Column::new_unqualified(&name));
        let bound = |rows: usize| lit(u64::try_from(rows).unwrap_or(u64::MAX));
        let last = fetch.map(|fetch| number().lt_eq(bound(skip.saturating_add(fetch))));
        let condition = conjunction(std::iter::once(number().gt(bound(skip))).chain(last));
        let condition = condition.unwrap_or_else(|| lit(true));
        let plan = LogicalPlan::Filter(Filter::try_new(condition, Arc::new(LogicalPlan::Window(window)))?);
        let mut plan = project(before.into_iter().chain(keys.iter().map(column)).collect(), plan)?;
        for Projection { expr, schema, .. } in projections.into_iter().rev() {
            let mut items = Vec::new();
            for (item, (table, field)) in expr.into_iter().zip(schema.iter()) {
                items.push(named(domain.bound(item, &keys)?, (table, field.name())));
            }
            items.extend(keys.iter().map(column));
            plan = project(items, plan)?;
        }
        Ok((plan, keys))
    }

    fn push_union(&mut self, union: Union, domain: &Domain) -> Result<(LogicalPlan, Vec<Column>)> {
        let all: Vec<Column> = domain.references.iter().map(|_| Column::new_unqualified(self.name())).collect();
        let mut inputs = Vec::new();
        for input in union.inputs {
            let mut items = Vec::new();
            let before = input.schema().columns();
            let (input, keys) = self.push(Arc::unwrap_or_clone(input), domain)?;
            for (of, field) in before.iter().zip(union.schema.fields()) {
                items.push(column(of).alias(field.name()));
            }
            items.extend(keys.iter().zip(&all).map(|(key, of)| column(key).alias(of.name())));
            inputs.push(Arc::new(project(items, input)?));
        }
        let plan = LogicalPlan::Union(Union::try_new_with_loose_types(inputs)?);
        let before = plan.schema().columns();
        let mut items = Vec::new();
        for (of, (table, field)) in before.iter().zip(union.schema.iter()) {
            items.push(named(column(of), (table, field.name())));
        }
        items.extend(all.iter().map(column));
        Ok((project(items, plan)?, all))
    }

    fn push_values(&mut self, values: Values, domain: &Domain) -> Result<(LogicalPlan, Vec<Column>)> {
        let mut rows = Vec::new();
        for row in values.values {
            let names = row.into_iter().zip(values.schema.iter());
            let items = names.map(|(item, (table, field))| named(item, (table, field.name()))).collect();
            let one = LogicalPlanBuilder::empty(true).build()?;
            rows.push(Arc::new(project(items, one)?));
        }
        let plan = match &rows[..] {
            [row] => row.as_ref().clone(),
            _ => LogicalPlan::Union(Union::try_new_with_loose_types(rows)?),
        };
        self.push(plan, domain)
    }

    fn push_join(&mut self, of: Join, domain: &Domain) -> Result<(LogicalPlan, Vec<Column>)> {
        for (left, right) in &of.on {
            if domain.is_in_expression(left)? || domain.is_in_expression(right)? {
                return Err(unsupported("this condition of a join in a correlated subquery"));
            }
        }
        let (in_left, in_right) = (domain.is_in(&of.left)?, domain.is_in(&of.right)?);
        // An outer side has unmatched rows, so it needs the domain.
        let (to_left, to_right) = match of.join_type {
            JoinType::Inner => (in_left || !in_right, in_right),
            JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => (true, in_right),
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => (in_left, true),
            JoinType::Full => (true, true),
        };
        if of.null_aware {
            return Err(unsupported("this join in a correlated subquery"));
        }
        let (left, right) = (Arc::unwrap_or_clone(of.left), Arc::unwrap_or_clone(of.right));
        let (left, left_keys) = if to_left { self.push(left, domain)? } else { (left, Vec::new()) };
        let (right, right_keys) = if to_right { self.push(right, domain)? } else { (right, Vec::new()) };
        let keys = if to_left { &left_keys } else { &right_keys };
        let mut on = of.on;
        let pairs = if to_left && to_right { domain.pairs(&left_keys, &right_keys) } else { Vec::new() };
        let (left, right, pairs) = self.keyed(left, right, pairs)?;
        on.extend(pairs);
        let filter = of.filter.map(|filter| domain.bound(filter, keys)).transpose()?;
        let plan = Join::try_new(
            Arc::new(left),
            Arc::new(right),
            on,
            filter,
            of.join_type,
            of.join_constraint,
            of.null_equality,
            false,
        )?;
        let mut items: Vec<Expr> = of.schema.columns().iter().map(column).collect();
        if of.join_type != JoinType::Full {
            let keys = match of.join_type {
                JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => &right_keys,
                _ => keys,
            };
            items.extend(keys.iter().map(column));
            return Ok((project(items, LogicalPlan::Join(plan))?, keys.clone()));
        }
        // A row of only one side has the values of this side.
        let mut all = Vec::new();
        for (left, right) in left_keys.iter().zip(&right_keys) {
            let name = self.name();
            let either = Expr::Case(Case {
                expr: None,
                when_then_expr: vec![(Box::new(column(left).is_null()), Box::new(column(right)))],
                else_expr: Some(Box::new(column(left))),
            });
            items.push(either.alias(&name));
            all.push(Column::new_unqualified(name));
        }
        Ok((project(items, LogicalPlan::Join(plan))?, all))
    }
}
