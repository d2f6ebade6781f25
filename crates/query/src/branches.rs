//! The types of `CASE`, `coalesce` and similar expressions. They have the Arrow type of their branches, but not the SQL type
//! that is in the metadata of the branches' fields.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::Case;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan};
use sql::SqlType;

use crate::operators::{converted, sql_type};

/// Gives results the types of their branches.
pub(crate) fn with_types_of_branches(plan: LogicalPlan) -> Result<LogicalPlan> {
    // Both parts of a recursive query have one type.
    if plan.exists(|plan| Ok(matches!(plan, LogicalPlan::RecursiveQuery(_))))? {
        return Ok(plan);
    }
    let plan = plan.transform_up_with_subqueries(|plan| {
        if !matches!(plan, LogicalPlan::Projection(_)) {
            return Ok(Transformed::yes(plan.recompute_schema()?));
        }
        let schema = merge_schema(&plan.inputs());
        let changed = plan.map_expressions(|expression| Ok(Transformed::yes(typed(expression, &schema))))?.data;
        Ok(Transformed::yes(changed.recompute_schema()?))
    })?;
    Ok(plan.data)
}

fn typed(expression: Expr, schema: &DFSchema) -> Expr {
    match expression {
        Expr::Alias(mut alias) => {
            alias.expr = Box::new(typed(*alias.expr, schema));
            Expr::Alias(alias)
        }
        Expr::Case(_) | Expr::ScalarFunction(_) if branches(&expression).is_some() => {
            match type_of_branches(&expression, schema) {
                // The other types are determined by that of Arrow.
                Some(of @ (SqlType::Jsonb | SqlType::Uuid)) => {
                    let name = expression.schema_name().to_string();
                    converted(expression, &of).alias(name)
                }
                _ => expression,
            }
        }
        other => other,
    }
}

/// The expressions of which one is the result.
fn branches(expression: &Expr) -> Option<Vec<&Expr>> {
    match expression {
        Expr::Case(Case { when_then_expr, else_expr, .. }) => {
            Some(when_then_expr.iter().map(|(_, then)| &**then).chain(else_expr.as_deref()).collect())
        }
        Expr::ScalarFunction(function) => match function.name() {
            "coalesce" | "greatest" | "least" => Some(function.args.iter().collect()),
            "nullif" => Some(function.args.iter().take(1).collect()),
            _ => None,
        },
        _ => None,
    }
}

/// The type that all branches have, but NULL and literals of text.
fn type_of_branches(expression: &Expr, schema: &DFSchema) -> Option<SqlType> {
    let mut common = None;
    for branch in branches(expression)? {
        let of = match branch {
            Expr::Case(_) => type_of_branches(branch, schema),
            Expr::ScalarFunction(_) if branches(branch).is_some() => type_of_branches(branch, schema),
            other => sql_type(other, schema),
        };
        match (&common, of) {
            (_, None) => {}
            (None, of) => common = of,
            (Some(common), Some(of)) if *common == of => {}
            _ => return None,
        }
    }
    common
}
