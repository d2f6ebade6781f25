//! The rules of the optimizers: those of DataFusion, except where they lose conditions of joins.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{JoinType, NullEquality, Result};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, Join, LogicalPlan, Operator, binary_expr};
use datafusion::optimizer::extract_equijoin_predicate::ExtractEquijoinPredicate;
use datafusion::optimizer::{ApplyOrder, Optimizer, OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

/// The rules for logical plans, in their order. The rule for a single `DISTINCT` is left out: it sums sums, which have
/// another type.
pub(crate) fn rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules: Vec<Arc<dyn OptimizerRule + Send + Sync>> = Vec::new();
    for rule in Optimizer::new().rules {
        if rule.name() == "single_distinct_aggregation_to_group_by" {
            continue;
        }
        if ["extract_equijoin_predicate", "eliminate_cross_join"].contains(&rule.name()) {
            rules.push(Arc::new(KeepConditions));
        }
        rules.push(rule);
    }
    rules.push(Arc::new(ExtractEquijoinPredicate::new()));
    rules
}

/// The rules for physical plans. `FilterPushdown` is left out: it finds columns by their names alone, so that it moves
/// conditions on columns of one side of an outer join to columns of the other side that have the same names. The rules
/// for logical plans have moved the conditions before.
pub(crate) fn physical_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    PhysicalOptimizer::new().rules.into_iter().filter(|rule| rule.name() != "FilterPushdown").collect()
}

/// Makes keys of inner joins conditions of a filter, where DataFusion's rules are wrong about them:
/// `eliminate_cross_join` drops keys that are computed from several of the joined tables, and it joins all tables with
/// one rule for NULL. `extract_equijoin_predicate` adds keys to joins in which NULL equals NULL. The latter makes keys of
/// the conditions again when the joins have their order.
#[derive(Debug)]
struct KeepConditions;

impl OptimizerRule for KeepConditions {
    fn name(&self) -> &str {
        "keep_conditions"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Join(join) = plan else { return Ok(Transformed::no(plan)) };
        if join.join_type != JoinType::Inner {
            return Ok(Transformed::no(LogicalPlan::Join(join)));
        }
        let is_distinct = join.null_equality == NullEquality::NullEqualsNull;
        let is_kept = |(left, right): &(Expr, Expr)| {
            !is_distinct && is_of_one_input(left, &join.left) && is_of_one_input(right, &join.right)
        };
        if join.on.iter().all(is_kept) {
            return Ok(Transformed::no(LogicalPlan::Join(join)));
        }
        let (on, others): (Vec<_>, Vec<_>) = join.on.iter().cloned().partition(is_kept);
        let op = if is_distinct { Operator::IsNotDistinctFrom } else { Operator::Eq };
        let conditions = others.into_iter().map(|(left, right)| binary_expr(left, op, right));
        let filter = conjunction(join.filter.clone().into_iter().chain(conditions));
        let null_equality = NullEquality::NullEqualsNothing;
        Ok(Transformed::yes(LogicalPlan::Join(Join { on, filter, null_equality, ..join })))
    }
}

/// Whether the columns of an expression are of one of the tables that inner joins join.
fn is_of_one_input(expression: &Expr, plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Join(Join { join_type: JoinType::Inner, left, right, .. }) => {
            is_of_one_input(expression, left) || is_of_one_input(expression, right)
        }
        other => expression.column_refs().into_iter().all(|column| other.schema().has_column(column)),
    }
}
