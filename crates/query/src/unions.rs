//! The types of `UNION`: a column has one type for all queries, by PostgreSQL's rules.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, Union};
use sql::SqlType;

use crate::error::wrap;
use crate::operators::converted;
use crate::values::{NUMERIC_PRECISION, arrow_type, scalar, type_of};

/// Converts the columns of queries in `UNION` to common types. DataFusion does so later, after the types of the result are
/// known to the client, and by other rules.
pub(crate) fn with_common_types(plan: LogicalPlan) -> Result<LogicalPlan> {
    // Both parts of a recursive query have one type.
    if plan.exists(|plan| Ok(matches!(plan, LogicalPlan::RecursiveQuery(_))))? {
        return Ok(plan);
    }
    let plan = plan.transform_up_with_subqueries(|plan| match plan {
        LogicalPlan::Union(union) => Ok(Transformed::yes(of_union(union)?)),
        other => Ok(Transformed::yes(other.recompute_schema()?)),
    })?;
    Ok(plan.data)
}

fn of_union(union: Union) -> Result<LogicalPlan> {
    let columns = union.schema.fields().len();
    let types: Vec<Vec<Option<SqlType>>> =
        union.inputs.iter().map(|input| (0..columns).map(|number| column_type(input, number)).collect()).collect();
    let common: Vec<Option<SqlType>> = (0..columns)
        .map(|number| {
            let all: Vec<Option<&SqlType>> = types.iter().map(|of| of.get(number).and_then(Option::as_ref)).collect();
            common_type(&all)
        })
        .collect();
    if common.iter().all(Option::is_none) {
        return Ok(LogicalPlan::Union(union));
    }
    let inputs = union.inputs.into_iter().zip(types).map(|(input, of)| {
        let columns = input.schema().iter().zip(of).zip(&common).enumerate();
        let expressions = columns.map(|(number, (((table, field), from), to))| {
            let column = Expr::Column(Column::from((table, field)));
            let Some(to) = to else { return Ok(column) };
            let value = match (&from, literal(&input, number)) {
                (None, Some(ScalarValue::Utf8(Some(text)))) => {
                    let value = to.parse(&text).map_err(wrap)?;
                    let (scalar, metadata) = scalar(&value, to).map_err(wrap)?;
                    Expr::Literal(scalar, metadata)
                }
                _ if *field.data_type() == arrow_type(to) && from.as_ref() == Some(to) => return Ok(column),
                _ => converted(column, to),
            };
            Ok(value.alias(field.name()))
        });
        let expressions = expressions.collect::<Result<Vec<Expr>>>()?;
        Ok(Arc::new(LogicalPlan::Projection(Projection::try_new(expressions, input)?)))
    });
    Ok(LogicalPlan::Union(Union::try_new(inputs.collect::<Result<Vec<_>>>()?)?))
}

/// The type of a column; `None` for literals without a type.
fn column_type(input: &LogicalPlan, number: usize) -> Option<SqlType> {
    if let Some(ScalarValue::Utf8(_) | ScalarValue::Null) = literal(input, number) {
        return None;
    }
    let field = input.schema().fields().get(number)?;
    (*field.data_type() != datafusion::arrow::datatypes::DataType::Null).then(|| type_of(field))
}

fn literal(input: &LogicalPlan, number: usize) -> Option<ScalarValue> {
    let LogicalPlan::Projection(projection) = input else { return None };
    match projection.expr.get(number)?.clone().unalias() {
        Expr::Literal(scalar, None) => Some(scalar),
        _ => None,
    }
}

/// The type to which columns are converted; `None` if they remain as they are.
fn common_type(all: &[Option<&SqlType>]) -> Option<SqlType> {
    let known: Vec<&SqlType> = all.iter().copied().flatten().collect();
    let first = *known.first()?;
    if known.iter().all(|of| *of == first) {
        // Literals of text are text to DataFusion, and those of numbers have their own digits.
        let is_other = known.len() < all.len() && !first.is_text() || *first == SqlType::Numeric(None);
        return is_other.then(|| first.clone());
    }
    let rank = |of: &SqlType| match of {
        SqlType::Int2 => Some((0, 0)),
        SqlType::Int4 => Some((0, 1)),
        SqlType::Int8 => Some((0, 2)),
        SqlType::Numeric(_) => Some((0, 3)),
        SqlType::Float4 => Some((0, 4)),
        SqlType::Float8 => Some((0, 5)),
        SqlType::Date => Some((1, 0)),
        SqlType::Timestamp => Some((1, 1)),
        SqlType::Timestamptz => Some((1, 2)),
        _ => None,
    };
    let ranks = known.iter().map(|of| rank(of)).collect::<Option<Vec<(u8, u8)>>>()?;
    let (category, _) = *ranks.first()?;
    if ranks.iter().any(|(other, _)| *other != category) {
        return None;
    }
    let (greatest, _) = known.iter().zip(ranks).max_by_key(|(_, rank)| *rank)?;
    if let SqlType::Numeric(_) = greatest {
        // Numbers with different numbers of digits keep them.
        let scale_of = |of: &SqlType| match of {
            SqlType::Numeric(declared) => declared.map(|(_, scale)| scale),
            _ => None,
        };
        let scale = scale_of(first).filter(|scale| known.iter().all(|of| scale_of(of) == Some(*scale)));
        return Some(SqlType::Numeric(scale.map(|scale| (u16::from(NUMERIC_PRECISION), scale))));
    }
    Some((*greatest).clone())
}
