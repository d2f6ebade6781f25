//! Subqueries in the expressions of one plan, as joins with its input.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, JoinType, Result, ScalarValue, TableReference};
use datafusion::logical_expr::expr::{Case, Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::{Aggregate, Expr, Limit, LogicalPlan, Operator, Subquery, SubqueryAlias, lit, not};

use super::domain::Domain;
use super::forms::{has_column, is_scalar_of_datafusion};
use super::{Pairs, Unnest, columns, count, has_subquery, join, project, single_column, unsupported};
use crate::operators::compared;

/// The outer query of subqueries, which are joined with it one after another.
pub(super) struct Outer<'a> {
    unnest: &'a mut Unnest,
    /// The rows for which the subqueries are computed.
    rows: LogicalPlan,
    /// The rows with the columns of the results.
    pub(super) plan: LogicalPlan,
    done: Vec<(Expr, Expr)>,
    /// Whether the expressions are of a filter or projection, in which DataFusion executes some correlated subqueries.
    is_row_by_row: bool,
    /// Whether the expression has no columns. DataFusion filters the rows below an aggregation by such conditions.
    pub(super) is_constant: bool,
}

impl<'a> Outer<'a> {
    pub(super) fn new(unnest: &'a mut Unnest, rows: LogicalPlan, is_row_by_row: bool) -> Self {
        Self { unnest, plan: rows.clone(), rows, done: Vec::new(), is_row_by_row, is_constant: false }
    }

    /// An expression without the subqueries that DataFusion does not execute.
    pub(super) fn expression(&mut self, expression: Expr) -> Result<Expr> {
        let changed = expression.transform_up(|part| {
            if !has_subquery(&part) {
                return Ok(Transformed::no(part));
            }
            if let Some((_, found)) = self.done.iter().find(|(done, _)| *done == part) {
                return Ok(Transformed::yes(found.clone()));
            }
            let found = match &part {
                Expr::ScalarSubquery(of) if self.is_of_datafusion(of) => return Ok(Transformed::no(part)),
                Expr::ScalarSubquery(of) => self.scalar(of)?,
                Expr::Exists(Exists { subquery, negated }) => {
                    let exists = self.exists(subquery)?;
                    if *negated { not(exists) } else { exists }
                }
                Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
                    let is_in = self.is_any_or_unknown(expr, Operator::Eq, subquery)?;
                    if *negated { not(is_in) } else { is_in }
                }
                Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => match quantifier {
                    SetQuantifier::Any => self.is_any_or_unknown(expr, *op, subquery)?,
                    SetQuantifier::All => {
                        let opposite = op.negate().ok_or_else(|| unsupported("this operator with ALL"))?;
                        not(self.is_any_or_unknown(expr, opposite, subquery)?)
                    }
                },
                _ => return Ok(Transformed::no(part)),
            };
            self.done.push((part, found.clone()));
            Ok(Transformed::yes(found))
        })?;
        Ok(changed.data)
    }

    fn is_of_datafusion(&self, of: &Subquery) -> bool {
        if of.outer_ref_columns.is_empty() {
            !self.is_constant
        } else {
            self.is_row_by_row && is_scalar_of_datafusion(of, self.rows.schema())
        }
    }

    fn scalar(&mut self, of: &Subquery) -> Result<Expr> {
        let value = single_column(&of.subquery)?;
        let domain = Domain::new(&self.rows, &of.subquery)?;
        let (plan, keys) = self.unnest.push(of.subquery.as_ref().clone(), &domain)?;
        let name = self.unnest.name();
        let items = std::iter::once(value.alias(&name)).chain(keys.iter().cloned().map(Expr::Column));
        let plan = project(items.collect(), plan)?;
        self.attach(plan, domain.keys(&keys))?;
        Ok(Expr::Column(Column::new_unqualified(name)))
    }

    fn exists(&mut self, of: &Subquery) -> Result<Expr> {
        let plan = of.subquery.as_ref().clone();
        let domain = Domain::new(&self.rows, &plan)?;
        if domain.is_empty() {
            let items = vec![lit(1_i64).alias(self.unnest.name())];
            let mut plan = project(items, plan)?;
            if of.outer_ref_columns.is_empty() {
                let fetch = Some(Box::new(lit(1_i64)));
                plan = LogicalPlan::Limit(Limit { skip: None, fetch, input: Arc::new(plan) });
            }
            let name = self.unnest.name();
            let counts = vec![count(lit(1_i64))?.alias(&name)];
            let plan = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(plan), Vec::new(), counts)?);
            self.attach(plan, Vec::new())?;
            return Ok(Expr::Column(Column::new_unqualified(name)).gt(lit(0_i64)));
        }
        let (plan, keys) = self.unnest.push(plan, &domain)?;
        let plan = project(keys.iter().cloned().map(Expr::Column).collect(), plan)?;
        self.mark(plan, domain.keys(&keys), None)
    }

    /// Whether a comparison with any row is true.
    pub(super) fn is_any(&mut self, operand: &Expr, op: Operator, of: &Subquery) -> Result<Expr> {
        let domain = Domain::new(&self.rows, &of.subquery)?;
        let column = single_column(&of.subquery)?;
        let (plan, keys) = self.unnest.push(of.subquery.as_ref().clone(), &domain)?;
        let name = self.unnest.name();
        let items = std::iter::once(column.alias(&name)).chain(keys.iter().cloned().map(Expr::Column));
        let plan = project(items.collect(), plan)?;
        let schema = self.plan.schema().join(plan.schema())?;
        let column = Expr::Column(Column::new_unqualified(name));
        let condition = compared(operand.clone(), op, column, &schema)?;
        self.mark(plan, domain.keys(&keys), Some(condition))
    }

    /// Whether a comparison with any row is true, or NULL if it is NULL for some and true for none.
    fn is_any_or_unknown(&mut self, operand: &Expr, op: Operator, of: &Subquery) -> Result<Expr> {
        let mut is_any = if has_column(operand) { Some(self.is_any(operand, op, of)?) } else { None };
        let domain = Domain::new(&self.rows, &of.subquery)?;
        let column = single_column(&of.subquery)?;
        let (plan, keys) = self.unnest.push(of.subquery.as_ref().clone(), &domain)?;
        let (rows, values) = (self.unnest.name(), self.unnest.name());
        let mut counts = vec![count(lit(1_i64))?.alias(&rows), count(column.clone())?.alias(&values)];
        if is_any.is_none() {
            let name = self.unnest.name();
            let is_equal = Box::new(compared(operand.clone(), op, column, plan.schema())?);
            let when_then_expr = vec![(is_equal, Box::new(lit(1_i64)))];
            counts.push(count(Expr::Case(Case { expr: None, when_then_expr, else_expr: None }))?.alias(&name));
            is_any = Some(Expr::Column(Column::new_unqualified(name)).gt(lit(0_i64)));
        }
        let is_any = is_any.unwrap_or_else(|| lit(false));
        let groups = keys.iter().cloned().map(Expr::Column).collect();
        let plan = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(plan), groups, counts)?);
        self.attach(plan, domain.keys(&keys))?;
        let [rows, values] = [rows, values].map(|name| Expr::Column(Column::new_unqualified(name)));
        // Without rows the counts are zero or NULL.
        let is_unknown = operand.clone().is_null().and(rows.clone().gt(lit(0_i64))).or(rows.gt(values));
        Ok(Expr::Case(Case {
            expr: None,
            when_then_expr: vec![
                (Box::new(is_any), Box::new(lit(true))),
                (Box::new(is_unknown), Box::new(Expr::Literal(ScalarValue::Boolean(None), None))),
            ],
            else_expr: Some(Box::new(lit(false))),
        }))
    }

    /// Adds a column whether there are rows.
    fn mark(&mut self, plan: LogicalPlan, on: Pairs, filter: Option<Expr>) -> Result<Expr> {
        let before = columns(&self.plan);
        let (left, plan, on) = self.unnest.keyed(self.plan.clone(), plan, on)?;
        let (table, name) = (self.unnest.name(), self.unnest.name());
        let alias = TableReference::bare(table);
        let inner: Vec<Column> = plan.schema().columns();
        let qualified = |expression: Expr| {
            let changed = expression.transform_up(|part| match part {
                Expr::Column(column) if inner.contains(&column) => {
                    Ok(Transformed::yes(Expr::Column(Column::new(Some(alias.clone()), column.name))))
                }
                other => Ok(Transformed::no(other)),
            });
            changed.map(|changed| changed.data)
        };
        let on = on.into_iter().map(|(left, right)| Ok((left, qualified(right)?))).collect::<Result<Pairs>>()?;
        let filter = filter.map(qualified).transpose()?;
        let plan = LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(plan), alias.clone())?);
        let marked = join(left, plan, on, filter, JoinType::LeftMark)?;
        let mark = Expr::Column(Column::new(Some(alias), "mark")).alias(&name);
        self.plan = project(before.into_iter().chain([mark]).collect(), marked)?;
        Ok(Expr::Column(Column::new_unqualified(name)))
    }

    /// Adds the columns of a plan, or NULL for rows that it lacks.
    fn attach(&mut self, plan: LogicalPlan, on: Pairs) -> Result<()> {
        let (left, right, on) = self.unnest.keyed(self.plan.clone(), plan, on)?;
        self.plan = join(left, right, on, None, JoinType::Left)?;
        Ok(())
    }
}
