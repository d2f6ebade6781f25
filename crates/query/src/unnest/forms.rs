//! The references of subqueries, and the forms of subqueries that DataFusion executes by itself.

use std::sync::Arc;

use datafusion::arrow::datatypes::FieldRef;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    BinaryExpr, Distinct, Expr, FetchType, Filter, LogicalPlan, Operator, Projection, SkipType, Subquery, SubqueryAlias,
};

use super::{has_subquery, unsupported};
use crate::values::type_of;

/// A column of an outer query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) field: FieldRef,
    pub(super) column: Column,
}

impl Reference {
    pub(super) fn into_expression(self) -> Expr {
        Expr::OuterReferenceColumn(self.field, self.column)
    }

    pub(super) fn is_in(&self, schema: &DFSchema) -> bool {
        schema.has_column(&self.column)
    }
}

/// The columns of outer queries that a plan refers to. Subqueries in its expressions refer only to the plan itself.
pub(super) fn references(plan: &LogicalPlan) -> Result<Vec<Reference>> {
    let mut found: Vec<Reference> = Vec::new();
    plan.apply(|plan| {
        plan.apply_expressions(|expression| {
            references_of(expression, &mut found)?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

fn references_of(expression: &Expr, found: &mut Vec<Reference>) -> Result<()> {
    expression.apply(|part| {
        if let Expr::OuterReferenceColumn(field, column) = part {
            let reference = Reference { field: Arc::clone(field), column: column.clone() };
            if !found.iter().any(|other| other.column == reference.column) {
                found.push(reference);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn has_reference(expression: &Expr) -> bool {
    expression.exists(|part| Ok(matches!(part, Expr::OuterReferenceColumn(..)))).unwrap_or(true)
}

pub(super) fn has_column(expression: &Expr) -> bool {
    expression.exists(|part| Ok(matches!(part, Expr::Column(_)))).unwrap_or(true)
}

/// The subqueries of an expression.
pub(super) fn subqueries(expression: &Expr) -> Result<Vec<Subquery>> {
    let mut found = Vec::new();
    expression.apply(|part| {
        match part {
            Expr::ScalarSubquery(of)
            | Expr::Exists(Exists { subquery: of, .. })
            | Expr::InSubquery(InSubquery { subquery: of, .. })
            | Expr::SetComparison(SetComparison { subquery: of, .. }) => found.push(of.clone()),
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// The columns of expressions that are compared with the rows of subqueries.
pub(super) fn operands(expression: &Expr) -> Result<Vec<Column>> {
    let mut found = Vec::new();
    expression.apply(|part| {
        if let Expr::InSubquery(InSubquery { expr, .. }) | Expr::SetComparison(SetComparison { expr, .. }) = part {
            found.extend(expr.column_refs().into_iter().cloned());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// Renames the columns of the outer query in the subqueries of an expression.
pub(super) fn with_names(expression: Expr, names: &[(Reference, String)]) -> Result<Expr> {
    let renamed = |expression: Expr| {
        expression.transform_up(|part| match part {
            Expr::OuterReferenceColumn(field, column) => {
                match names.iter().find(|(reference, _)| reference.column == column) {
                    Some((_, name)) => {
                        Ok(Transformed::yes(Expr::OuterReferenceColumn(field, Column::new_unqualified(name))))
                    }
                    None => Ok(Transformed::no(Expr::OuterReferenceColumn(field, column))),
                }
            }
            other => Ok(Transformed::no(other)),
        })
    };
    let changed = |of: Subquery| {
        let plan = Arc::unwrap_or_clone(of.subquery).transform_up(|plan| plan.map_expressions(renamed))?.data;
        let outer_ref_columns = references(&plan)?.into_iter().map(Reference::into_expression).collect();
        Ok::<_, datafusion::common::DataFusionError>(Subquery { subquery: Arc::new(plan), outer_ref_columns, ..of })
    };
    let expression = expression.transform_up(|part| {
        Ok(Transformed::yes(match part {
            Expr::ScalarSubquery(of) => Expr::ScalarSubquery(changed(of)?),
            Expr::Exists(Exists { subquery, negated }) => {
                Expr::Exists(Exists { subquery: changed(subquery)?, negated })
            }
            Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
                Expr::InSubquery(InSubquery { expr, subquery: changed(subquery)?, negated })
            }
            Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => {
                Expr::SetComparison(SetComparison { expr, subquery: changed(subquery)?, op, quantifier })
            }
            other => return Ok(Transformed::no(other)),
        }))
    })?;
    Ok(expression.data)
}

/// Refuses aggregate functions of outer columns only. They belong to the outer query, which is not supported.
pub(super) fn check_aggregates(plan: &LogicalPlan) -> Result<()> {
    plan.apply(|plan| {
        if let LogicalPlan::Aggregate(aggregate) = plan {
            for expression in &aggregate.aggr_expr {
                if has_reference(expression) && !has_column(expression) {
                    return Err(unsupported("an aggregate function of an outer query in a subquery"));
                }
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// Whether a plan never has more than one row.
pub(super) fn is_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(_) => true,
        LogicalPlan::Values(values) => values.values.len() <= 1,
        LogicalPlan::Limit(limit) => {
            matches!(limit.get_fetch_type(), Ok(FetchType::Literal(Some(0 | 1)))) || is_one_row(&limit.input)
        }
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Distinct(Distinct::All(_)) => plan.inputs().into_iter().all(is_one_row),
        _ => false,
    }
}

/// Whether a plan always has one row.
pub(super) fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(of) => of.produce_one_row,
        LogicalPlan::Projection(_) | LogicalPlan::Sort(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.inputs().into_iter().all(has_one_row)
        }
        _ => false,
    }
}

/// A plan that has rows if and only if another one has some.
pub(super) fn of_exists(plan: LogicalPlan) -> LogicalPlan {
    match plan {
        LogicalPlan::Projection(Projection { input, .. })
        | LogicalPlan::SubqueryAlias(SubqueryAlias { input, .. })
        | LogicalPlan::Distinct(Distinct::All(input)) => of_exists(Arc::unwrap_or_clone(input)),
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => of_exists(Arc::unwrap_or_clone(sort.input)),
        LogicalPlan::Limit(limit)
            if matches!(limit.get_skip_type(), Ok(SkipType::Literal(0)))
                && matches!(limit.get_fetch_type(), Ok(FetchType::Literal(None | Some(1..)))) =>
        {
            of_exists(Arc::unwrap_or_clone(limit.input))
        }
        other => other,
    }
}

/// `NOT EXISTS` and `NOT IN` in their own forms.
pub(super) fn without_not(condition: Expr) -> Expr {
    match condition {
        Expr::Not(inner) => match *inner {
            Expr::Exists(Exists { subquery, negated }) => Expr::Exists(Exists { subquery, negated: !negated }),
            Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
                Expr::InSubquery(InSubquery { expr, subquery, negated: !negated })
            }
            other => Expr::Not(Box::new(other)),
        },
        other => other,
    }
}

/// Whether DataFusion executes a condition of a filter: it has semijoins and antijoins for `EXISTS` and `IN`.
pub(super) fn is_condition_of_datafusion(condition: &Expr, schema: &DFSchema) -> bool {
    match condition {
        Expr::Exists(Exists { subquery, .. }) => is_semijoin(subquery, schema),
        Expr::InSubquery(InSubquery { expr, subquery, negated: false }) => {
            // DataFusion compares other types by rules of its own.
            let of = crate::operators::sql_type(expr, schema);
            let is_same = of
                .is_some_and(|of| subquery.subquery.schema().fields().first().map(|field| type_of(field)) == Some(of));
            !has_subquery(expr) && has_column(expr) && !has_reference(expr) && is_same && is_semijoin(subquery, schema)
        }
        other => {
            let is_own = |part: &Expr| match part {
                Expr::ScalarSubquery(of) => has_column(other) && is_scalar_of_datafusion(of, schema),
                Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_) => false,
                _ => true,
            };
            !other.exists(|part| Ok(!is_own(part))).unwrap_or(true)
        }
    }
}

fn is_semijoin(of: &Subquery, schema: &DFSchema) -> bool {
    let Ok(found) = references(&of.subquery) else { return false };
    if found.is_empty() {
        return true;
    }
    let input = match of.subquery.as_ref() {
        LogicalPlan::Projection(Projection { expr, input, .. }) if matches!(expr[..], [Expr::Column(_)]) => input,
        _ => &of.subquery,
    };
    found.iter().all(|reference| reference.is_in(schema)) && is_filtered(input, false)
}

/// Whether DataFusion executes a scalar subquery in a filter or a projection: one without references, or an aggregate of
/// rows that equal outer ones in some columns.
pub(super) fn is_scalar_of_datafusion(of: &Subquery, schema: &DFSchema) -> bool {
    let Ok(found) = references(&of.subquery) else { return false };
    if found.is_empty() {
        return true;
    }
    let LogicalPlan::Aggregate(aggregate) = without_projections(&of.subquery) else { return false };
    let names =
        |plan: &LogicalPlan| plan.schema().fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
    let columns = names(&aggregate.input);
    let results = [names(&of.subquery), aggregate.schema.fields().iter().map(|field| field.name().clone()).collect()];
    if results.concat().iter().any(|name| columns.contains(name)) {
        return false;
    }
    found.iter().all(|reference| reference.is_in(schema))
        && aggregate.group_expr.is_empty()
        && !aggregate.aggr_expr.iter().any(|of| has_reference(of) || has_subquery(of))
        && is_filtered(&aggregate.input, true)
}

/// The input of projections that have neither references nor subqueries.
fn without_projections(plan: &LogicalPlan) -> &LogicalPlan {
    match plan {
        LogicalPlan::Projection(projection)
            if !projection.expr.iter().any(|item| has_reference(item) || has_subquery(item)) =>
        {
            without_projections(&projection.input)
        }
        other => other,
    }
}

/// Whether references are only in the conditions of a filter, each compared with a column. DataFusion confuses columns of
/// several tables that have the same name.
fn is_filtered(plan: &LogicalPlan, is_equal: bool) -> bool {
    let LogicalPlan::Filter(Filter { predicate, input, .. }) = plan else {
        return references(plan).is_ok_and(|found| found.is_empty());
    };
    let is_comparison = |condition: &Expr| match condition {
        _ if !has_reference(condition) => true,
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let is_operator = match op {
                Operator::Eq => true,
                Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => !is_equal,
                _ => false,
            };
            let is_side = |side: &Expr| match side {
                Expr::Column(_) => true,
                other => !has_column(other) && has_reference(other) && !has_subquery(other),
            };
            is_operator && is_side(left) && is_side(right) && has_reference(left) != has_reference(right)
        }
        _ => false,
    };
    let mut names = std::collections::HashSet::new();
    input.schema().fields().iter().all(|field| names.insert(field.name()))
        && split_conjunction(predicate).into_iter().all(is_comparison)
        && is_filtered(input, is_equal)
}
