//! Subqueries in expressions as joins.
//!
//! PostgreSQL executes any subquery for each row of the outer query. DataFusion executes only some forms. This rewrites
//! the others by T. Neumann and A. Kemper, "Unnesting Arbitrary Queries" (BTW 2015): the subquery is computed once for
//! each distinct combination of the outer columns that it refers to, its domain (see [`domain`]), and the outer rows are
//! joined with the results.
//!
//! Nested subqueries are rewritten bottom-up. References to queries more than one level up remain until that query is
//! rewritten.
//!
//! Invariants: a rewritten plan has the same columns, with the same names, as before. New columns have internal names,
//! which are unique in the statement. Joins never compare NULL as equal (see [`Domain::keys`]).

mod domain;
mod forms;
mod outer;
mod values;

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinConstraint, JoinType, NullEquality, Result, TableReference};
use datafusion::logical_expr::expr::{Alias, Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, Expr, Filter, Join, LogicalPlan, Operator, Projection, Sort, Subquery, SubqueryAlias, lit,
};
use sql::{SqlError, sqlstate};

use self::domain::Domain;
use self::forms::{Reference, has_column, has_one_row, is_condition_of_datafusion, is_one_row, references};
use self::outer::Outer;
use crate::error::wrap;
use crate::functions::FUNCTIONS;
use crate::rewrite::INTERNAL;

/// A plan without the subqueries that DataFusion does not execute.
pub(crate) fn unnest(plan: LogicalPlan) -> Result<LogicalPlan> {
    let has_subquery = plan.exists(|plan| {
        let has_some = plan.expressions().iter().any(has_subquery);
        Ok(has_some || matches!(plan, LogicalPlan::Subquery(_)))
    })?;
    if !has_subquery {
        return Ok(plan);
    }
    Ok(Unnest { names: 0 }.plan(plan)?.data)
}

fn has_subquery(expression: &Expr) -> bool {
    let is_subquery = |part: &Expr| {
        matches!(part, Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_))
    };
    expression.exists(|part| Ok(is_subquery(part))).unwrap_or(false)
}

fn unsupported(what: &str) -> datafusion::common::DataFusionError {
    wrap(SqlError::unsupported(what))
}

fn single_column(plan: &LogicalPlan) -> Result<Expr> {
    match &plan.schema().columns()[..] {
        [column] => Ok(Expr::Column(column.clone())),
        _ => Err(wrap(SqlError::new(sqlstate::SYNTAX_ERROR, "subquery must return only one column"))),
    }
}

fn project(expressions: Vec<Expr>, input: LogicalPlan) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Projection(Projection::try_new(expressions, Arc::new(input))?))
}

fn columns(plan: &LogicalPlan) -> Vec<Expr> {
    plan.schema().columns().into_iter().map(Expr::Column).collect()
}

fn join(left: LogicalPlan, right: LogicalPlan, on: Pairs, filter: Option<Expr>, of: JoinType) -> Result<LogicalPlan> {
    // An outer join has a condition.
    let filter = match (on.is_empty(), filter) {
        (true, None) if of != JoinType::Inner => Some(lit(true)),
        (_, filter) => filter,
    };
    let (left, right) = (Arc::new(left), Arc::new(right));
    let equality = NullEquality::NullEqualsNothing;
    Ok(LogicalPlan::Join(Join::try_new(left, right, on, filter, of, JoinConstraint::On, equality, false)?))
}

/// An expression with the name of a column.
fn named(expression: Expr, (table, name): (Option<&TableReference>, &str)) -> Expr {
    if expression.qualified_name() == (table.cloned(), name.to_owned()) {
        return expression;
    }
    match expression {
        Expr::Alias(Alias { expr, metadata, .. }) => expr.alias_qualified_with_metadata(table.cloned(), name, metadata),
        other => other.alias_qualified(table.cloned(), name),
    }
}

/// The columns of a plan that had others before.
fn with_columns_of(plan: LogicalPlan, before: &LogicalPlan) -> Result<LogicalPlan> {
    if plan.schema().columns() == before.schema().columns() { Ok(plan) } else { project(columns(before), plan) }
}

/// An expression as a count of rows.
fn count(of: Expr) -> Result<Expr> {
    let function = FUNCTIONS.aggregate.get("count").ok_or_else(|| unsupported("count"))?;
    Ok(function.call(vec![of]))
}

/// Expressions on the two sides of a join that are compared.
type Pairs = Vec<(Expr, Expr)>;

struct Unnest {
    /// The number of names that are in use.
    names: usize,
}

impl Unnest {
    fn name(&mut self) -> String {
        self.names += 1;
        format!("{INTERNAL}subquery{}", self.names)
    }

    /// The sides of a join with columns for the expressions that are compared.
    fn keyed(&mut self, left: LogicalPlan, right: LogicalPlan, on: Pairs) -> Result<(LogicalPlan, LogicalPlan, Pairs)> {
        if on.iter().all(|(left, right)| matches!((left, right), (Expr::Column(_), Expr::Column(_)))) {
            return Ok((left, right, on));
        }
        let (mut of_left, mut of_right, mut names) = (columns(&left), columns(&right), Vec::new());
        for (a, b) in on {
            let [a_name, b_name] = [self.name(), self.name()];
            of_left.push(a.alias(&a_name));
            of_right.push(b.alias(&b_name));
            let [a, b] = [a_name, b_name].map(|name| Expr::Column(Column::new_unqualified(name)));
            names.push((a, b));
        }
        Ok((project(of_left, left)?, project(of_right, right)?, names))
    }

    fn plan(&mut self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let plan = plan.map_children(|input| self.plan(input))?;
        let is_changed = plan.transformed;
        let plan = if is_changed { plan.data.recompute_schema()? } else { plan.data };
        if let LogicalPlan::Join(join) = &plan
            && let Some(lateral) = self.lateral(join)?
        {
            return Ok(Transformed::yes(lateral));
        }
        if !plan.expressions().iter().any(has_subquery) {
            return Ok(Transformed::new(plan, is_changed, TreeNodeRecursion::Continue));
        }
        // The schema keeps the names of the results.
        let plan = plan.map_expressions(|expression| expression.transform_up(|part| self.subquery(part)))?;
        let plan = match plan.data {
            LogicalPlan::Filter(filter) => self.filter(filter)?,
            LogicalPlan::Join(join) => self.conditions_of_join(join)?,
            LogicalPlan::Sort(sort) => self.sort(sort)?,
            other => self.node(other)?,
        };
        Ok(Transformed::yes(plan))
    }

    /// Rewrites the plan of a subquery.
    fn subquery(&mut self, expression: Expr) -> Result<Transformed<Expr>> {
        let mut inner = |of: Subquery| {
            forms::check_aggregates(&of.subquery)?;
            let plan = self.plan(Arc::unwrap_or_clone(of.subquery))?.data;
            let outer_ref_columns = references(&plan)?.into_iter().map(Reference::into_expression).collect();
            Ok::<_, datafusion::common::DataFusionError>(Subquery {
                subquery: Arc::new(plan),
                outer_ref_columns,
                spans: of.spans,
            })
        };
        Ok(match expression {
            Expr::ScalarSubquery(of) => {
                let mut of = inner(of)?;
                let column = single_column(&of.subquery)?;
                // DataFusion's error for more than one row is another, and it takes the result for NOT NULL.
                let is_left = of.outer_ref_columns.is_empty();
                if !(if is_left { has_one_row(&of.subquery) } else { is_one_row(&of.subquery) }) {
                    let single = FUNCTIONS.aggregate.get("/single").ok_or_else(|| unsupported("/single"))?;
                    let (name, result) = (self.name(), self.name());
                    let plan = project(vec![values::same(column).alias(&name)], Arc::unwrap_or_clone(of.subquery))?;
                    let aggregate = single.call(vec![Expr::Column(Column::new_unqualified(name))]).alias(result);
                    let plan = Aggregate::try_new(Arc::new(plan), Vec::new(), vec![aggregate])?;
                    of.subquery = Arc::new(LogicalPlan::Aggregate(plan));
                }
                Transformed::yes(Expr::ScalarSubquery(of))
            }
            Expr::Exists(Exists { subquery, negated }) => {
                let mut subquery = inner(subquery)?;
                subquery.subquery = Arc::new(forms::of_exists(Arc::unwrap_or_clone(subquery.subquery)));
                subquery.outer_ref_columns =
                    references(&subquery.subquery)?.into_iter().map(Reference::into_expression).collect();
                Transformed::yes(Expr::Exists(Exists { subquery, negated }))
            }
            Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
                Transformed::yes(Expr::InSubquery(InSubquery { expr, subquery: inner(subquery)?, negated }))
            }
            Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => {
                let subquery = inner(subquery)?;
                Transformed::yes(match (op, &quantifier) {
                    (Operator::Eq, SetQuantifier::Any) => {
                        Expr::InSubquery(InSubquery { expr, subquery, negated: false })
                    }
                    (Operator::NotEq, SetQuantifier::All) => {
                        Expr::InSubquery(InSubquery { expr, subquery, negated: true })
                    }
                    _ => Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }),
                })
            }
            other => Transformed::no(other),
        })
    }

    fn filter(&mut self, filter: Filter) -> Result<LogicalPlan> {
        let before = filter.input.as_ref().clone();
        let schema = Arc::clone(before.schema());
        let conditions = split_conjunction_owned(filter.predicate);
        // Rows that other conditions exclude need no subqueries.
        let (kept, others): (Vec<Expr>, Vec<Expr>) = conditions
            .into_iter()
            .map(forms::without_not)
            .partition(|condition| is_condition_of_datafusion(condition, &schema));
        let input = match conjunction(kept) {
            Some(kept) => LogicalPlan::Filter(Filter::try_new(kept, filter.input)?),
            None => before.clone(),
        };
        let mut outer = Outer::new(self, input, true);
        let mut conditions = Vec::with_capacity(others.len());
        for condition in others {
            outer.is_constant = !has_column(&condition);
            conditions.push(match condition {
                // NULL is not true.
                Expr::InSubquery(InSubquery { expr, subquery, negated: false }) if has_column(&expr) => {
                    let expr = outer.expression(*expr)?;
                    outer.is_any(&expr, Operator::Eq, &subquery)?
                }
                other => outer.expression(other)?,
            });
        }
        let input = outer.plan;
        let plan = match conjunction(conditions) {
            Some(condition) => LogicalPlan::Filter(Filter::try_new(condition, Arc::new(input))?),
            None => input,
        };
        with_columns_of(plan, &before)
    }

    /// A projection, aggregation or window with subqueries.
    fn node(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let first = match &plan {
            LogicalPlan::Projection(_) => 0,
            LogicalPlan::Aggregate(aggregate) => {
                if aggregate.group_expr.iter().any(|group| matches!(group, Expr::GroupingSet(_))) {
                    return Err(unsupported("a subquery in grouping sets"));
                }
                0
            }
            LogicalPlan::Window(window) => window.input.schema().fields().len(),
            // DataFusion executes subqueries there that do not refer to outer queries.
            _ if plan.expressions().iter().all(is_uncorrelated) => return Ok(plan),
            other => return Err(unsupported(&format!("a subquery in {}", other.display()))),
        };
        let input = plan.inputs().into_iter().next().cloned().ok_or_else(|| unsupported("a subquery"))?;
        let mut outer = Outer::new(self, input, matches!(plan, LogicalPlan::Projection(_)));
        let mut expressions = Vec::new();
        for (number, expression) in plan.expressions().into_iter().enumerate() {
            let (table, field) = plan.schema().qualified_field(first + number);
            expressions.push(named(outer.expression(expression)?, (table, field.name())));
        }
        let input = outer.plan;
        let changed = plan.with_new_exprs(expressions, vec![input])?;
        with_columns_of(changed, &plan)
    }

    fn sort(&mut self, mut sort: Sort) -> Result<LogicalPlan> {
        let before = LogicalPlan::Sort(sort.clone());
        let mut input = sort.input.as_ref().clone();
        // The order may depend on columns that are not in the result.
        if let LogicalPlan::Projection(projection) = &input {
            let mut names: Vec<(Reference, String)> = Vec::new();
            for order in &sort.expr {
                for of in forms::subqueries(&order.expr)? {
                    for reference in references(&of.subquery)? {
                        if !reference.is_in(input.schema())
                            && reference.is_in(projection.input.schema())
                            && !names.iter().any(|(found, _)| *found == reference)
                        {
                            names.push((reference, self.name()));
                        }
                    }
                }
            }
            if !names.is_empty() {
                let mut all = projection.expr.clone();
                all.extend(names.iter().map(|(of, name)| Expr::Column(of.column.clone()).alias(name)));
                input = project(all, projection.input.as_ref().clone())?;
                for order in &mut sort.expr {
                    order.expr = forms::with_names(order.expr.clone(), &names)?;
                }
            }
        }
        let mut outer = Outer::new(self, input, false);
        for order in &mut sort.expr {
            order.expr = outer.expression(order.expr.clone())?;
        }
        sort.input = Arc::new(outer.plan);
        with_columns_of(LogicalPlan::Sort(sort), &before)
    }

    fn conditions_of_join(&mut self, join: Join) -> Result<LogicalPlan> {
        let before = LogicalPlan::Join(join.clone());
        if join.on.iter().any(|(left, right)| has_subquery(left) || has_subquery(right)) {
            return Err(unsupported("a subquery in a condition of a join"));
        }
        let Some(condition) = join.filter.clone() else { return Ok(before) };
        let conditions = split_conjunction_owned(condition);
        let (with, without): (Vec<Expr>, Vec<Expr>) = conditions.into_iter().partition(has_subquery);
        if join.join_type == JoinType::Inner {
            let of = Join { filter: conjunction(without), ..join };
            let predicate = conjunction(with).unwrap_or_else(|| lit(true));
            return self.filter(Filter::try_new(predicate, Arc::new(LogicalPlan::Join(of)))?);
        }
        let (mut left, mut right) = (join.left.as_ref().clone(), join.right.as_ref().clone());
        let mut conditions = without;
        for condition in with {
            let mut is_in = [true, true];
            // What is compared with a subquery is of the same side.
            let mut used = forms::operands(&condition)?;
            for of in forms::subqueries(&condition)? {
                used.extend(references(&of.subquery)?.into_iter().map(|reference| reference.column));
            }
            for column in used {
                if left.schema().has_column(&column) {
                    is_in[1] = false;
                } else if right.schema().has_column(&column) {
                    is_in[0] = false;
                }
            }
            let input = match is_in {
                [true, _] => &mut left,
                [_, true] => &mut right,
                _ => return Err(unsupported("a subquery in a condition of an outer join, of columns of both sides")),
            };
            let mut outer = Outer::new(self, input.clone(), false);
            conditions.push(outer.expression(condition)?);
            *input = outer.plan;
        }
        let joined = Join::try_new(
            Arc::new(left),
            Arc::new(right),
            join.on,
            conjunction(conditions),
            join.join_type,
            join.join_constraint,
            join.null_equality,
            join.null_aware,
        )?;
        with_columns_of(LogicalPlan::Join(joined), &before)
    }

    /// `LATERAL`: the right side refers to the left one.
    fn lateral(&mut self, of: &Join) -> Result<Option<LogicalPlan>> {
        let plan = match of.right.as_ref() {
            LogicalPlan::Subquery(subquery) => subquery.subquery.as_ref().clone(),
            LogicalPlan::SubqueryAlias(SubqueryAlias { input, alias, .. }) => match input.as_ref() {
                LogicalPlan::Subquery(subquery) => {
                    let plan = Arc::clone(&subquery.subquery);
                    LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(plan, alias.clone())?)
                }
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        if !matches!(of.join_type, JoinType::Inner | JoinType::Left) {
            return Err(unsupported("LATERAL in this join"));
        }
        let left = of.left.as_ref().clone();
        let domain = Domain::new(&left, &plan)?;
        let (right, keys) = self.push(plan, &domain)?;
        let (left, right, pairs) = self.keyed(left, right, domain.keys(&keys))?;
        let on = of.on.iter().cloned().chain(pairs).collect();
        let joined = join(left, right, on, of.filter.clone(), of.join_type)?;
        Ok(Some(project(of.schema.columns().into_iter().map(Expr::Column).collect(), joined)?))
    }
}

fn is_uncorrelated(expression: &Expr) -> bool {
    let is_correlated = |part: &Expr| match part {
        Expr::ScalarSubquery(of) => !of.outer_ref_columns.is_empty(),
        Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_) => true,
        _ => false,
    };
    !expression.exists(|part| Ok(is_correlated(part))).unwrap_or(true)
}
