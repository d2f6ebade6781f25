//! The columns of tables that a result shows, which drivers look up.

use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{Expr, LogicalPlan};
use sql::ids::{ColumnId, TableId};
use sql::schema::{Relation, Schema};

use crate::table::Rows;

/// The column that column `number` of a plan's result has its values from, unchanged.
pub(crate) fn origin(plan: &LogicalPlan, number: usize, schema: &Schema) -> Option<(TableId, ColumnId)> {
    match plan {
        LogicalPlan::Projection(projection) => {
            let column = match projection.expr.get(number)? {
                Expr::Column(column) => column,
                Expr::Alias(alias) => match &*alias.expr {
                    Expr::Column(column) => column,
                    _ => return None,
                },
                _ => return None,
            };
            origin(&projection.input, projection.input.schema().maybe_index_of_column(column)?, schema)
        }
        LogicalPlan::Filter(filter) => origin(&filter.input, number, schema),
        LogicalPlan::Sort(sort) => origin(&sort.input, number, schema),
        LogicalPlan::Limit(limit) => origin(&limit.input, number, schema),
        LogicalPlan::SubqueryAlias(alias) => match schema.relation(alias.alias.table()) {
            // The column is one of the view.
            Some(Relation::View(_)) => None,
            _ => origin(&alias.input, number, schema),
        },
        LogicalPlan::Join(join) => match number.checked_sub(join.left.schema().fields().len()) {
            None => origin(&join.left, number, schema),
            Some(number) => origin(&join.right, number, schema),
        },
        LogicalPlan::TableScan(scan) => {
            let name = scan.projected_schema.fields().get(number)?.name();
            let provider = source_as_provider(&scan.source).ok()?;
            let table = provider.downcast_ref::<Rows>()?.rows.table();
            let column = table.columns.iter().find(|column| column.name == *name)?;
            Some((table.id, column.id))
        }
        _ => None,
    }
}
