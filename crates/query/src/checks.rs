//! Checks of types that DataFusion leaves to the execution, or does not make.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::expr::Case;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};
use sql::{SqlError, sqlstate};

use crate::error::wrap;
use crate::values::type_of;

/// Checks that conditions of `CASE` are boolean.
pub(crate) fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|plan| {
        plan.apply_expressions(|expression| {
            expression.apply(|part| {
                let Expr::Case(Case { expr: None, when_then_expr, .. }) = part else {
                    return Ok(TreeNodeRecursion::Continue);
                };
                let schema = merge_schema(&plan.inputs());
                for (condition, _) in when_then_expr {
                    let Ok((_, field)) = condition.to_field(&schema) else { continue };
                    let is_literal = matches!(&**condition, Expr::Literal(..)) && *field.data_type() == DataType::Utf8;
                    if !is_literal && !matches!(field.data_type(), DataType::Boolean | DataType::Null) {
                        let message = format!(
                            "argument of CASE/WHEN must be type boolean, not type {}",
                            type_of(&field).base_name()
                        );
                        return Err(wrap(SqlError::new(sqlstate::DATATYPE_MISMATCH, message)));
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(())
}
