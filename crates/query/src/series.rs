//! `generate_series` in `FROM`.

use std::cmp::Ordering;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::catalog::{MemTable, Session, TableFunctionArgs, TableFunctionImpl};
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column, DFSchema, Result, ScalarValue};
use datafusion::datasource::{ViewTable, provider_as_source};
use datafusion::functions_table::generate_series::GenerateSeriesFunc;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, TableSource};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use sql::cast::{Context, cast};
use sql::operators::{Arithmetic, apply};
use sql::{Interval, SqlError, SqlType, Value, sqlstate};

use crate::error::wrap;
use crate::operators::sql_type;
use crate::planner::STATE;
use crate::rewrite::NOW;
use crate::values::{column, field, value_of};

/// Rows of a series of times, which are computed when the statement is planned.
const TIMES_MAX: usize = 100_000;

/// The numbers or times from the first argument to the second one, as a table.
pub(crate) fn source(arguments: Vec<Expr>) -> Result<Arc<dyn TableSource>> {
    let empty = DFSchema::empty();
    let is_integer = arguments
        .iter()
        .all(|argument| matches!(sql_type(argument, &empty), None | Some(SqlType::Int2 | SqlType::Int4)));
    let arguments = arguments.into_iter().map(constant).collect::<Result<Vec<_>>>()?;
    if let [Expr::Literal(first, _), Expr::Literal(last, _), Expr::Literal(step, _)] = &arguments[..] {
        if step.cast_to(&DataType::Int64).is_ok_and(|step| step == ScalarValue::Int64(Some(0))) {
            return Err(wrap(zero_step()));
        }
        if matches!(first.data_type(), DataType::Date32 | DataType::Timestamp(..)) {
            return times(first, last, step);
        }
    }
    let session: &dyn Session = &*STATE;
    let provider = GenerateSeriesFunc {}.call_with_args(TableFunctionArgs::new(&arguments, session))?;
    let source = provider_as_source(provider);
    let is_integer = is_integer && source.schema().fields().iter().all(|field| *field.data_type() == DataType::Int64);
    if !is_integer {
        return Ok(source);
    }
    // The function has `bigint` only.
    let plan = LogicalPlanBuilder::scan("generate_series", source, None)?;
    let columns: Vec<Expr> = plan
        .schema()
        .iter()
        .map(|(qualifier, field)| {
            let value = Expr::Column(Column::from((qualifier, field)));
            datafusion::logical_expr::cast(value, DataType::Int32).alias(field.name())
        })
        .collect();
    Ok(provider_as_source(Arc::new(ViewTable::new(plan.project(columns)?.build()?, None))))
}

fn zero_step() -> SqlError {
    SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, "step size cannot equal zero")
}

/// The times from one to another one.
fn times(first: &ScalarValue, last: &ScalarValue, step: &ScalarValue) -> Result<Arc<dyn TableSource>> {
    // Dates are converted to `timestamptz`.
    let of = if matches!(first.data_type(), DataType::Timestamp(_, None)) {
        SqlType::Timestamp
    } else {
        SqlType::Timestamptz
    };
    let value = |scalar: &ScalarValue, to: &SqlType| {
        let from = crate::values::type_of_arrow(&scalar.data_type());
        value_of(scalar, &from).and_then(|value| cast(value, to, Context::Explicit)).map_err(wrap)
    };
    let mut found = Vec::new();
    if ![first, last, step].iter().any(|argument| argument.is_null()) {
        let (mut next, last, step) = (value(first, &of)?, value(last, &of)?, value(step, &SqlType::Interval)?);
        let order = step.compare(&Value::Interval(Interval::default()));
        let is_done = |next: &Value| match order {
            Some(Ordering::Greater) => next.compare(&last) == Some(Ordering::Greater),
            _ => next.compare(&last) == Some(Ordering::Less),
        };
        if order == Some(Ordering::Equal) {
            return Err(wrap(zero_step()));
        }
        while !is_done(&next) {
            if found.len() >= TIMES_MAX {
                let message = format!("generate_series of times has more than {TIMES_MAX} rows");
                return Err(wrap(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message)));
            }
            let after = apply(Arithmetic::Add, &next, &step).map_err(wrap)?;
            found.push(next);
            next = after;
        }
    }
    let schema = Arc::new(Schema::new(vec![field("generate_series", &of, true)]));
    let rows = column(&of, found.iter()).map_err(wrap)?;
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![rows])?;
    Ok(provider_as_source(Arc::new(MemTable::try_new(schema, vec![vec![batch]])?)))
}

/// The value of an argument, which must be known when the statement is planned.
fn constant(argument: Expr) -> Result<Expr> {
    let is_variable = argument.exists(|part| {
        Ok(match part {
            Expr::Placeholder(_) | Expr::Column(_) | Expr::OuterReferenceColumn(..) => true,
            Expr::ScalarFunction(function) => function.name() == NOW,
            _ => false,
        })
    })?;
    let unsupported = || wrap(SqlError::unsupported("generate_series in FROM with a value that is not constant"));
    if is_variable {
        return Err(unsupported());
    }
    let empty = Arc::new(DFSchema::empty());
    let context = SimplifyContext::builder()
        .with_schema(Arc::clone(&empty))
        .with_config_options(Arc::clone(STATE.config_options()))
        .build();
    let simplifier = ExprSimplifier::new(context);
    let argument = simplifier.simplify(simplifier.coerce(argument, &empty)?)?;
    match argument {
        Expr::Literal(value, metadata) => Ok(match value.data_type() {
            _ if value.is_null() => Expr::Literal(ScalarValue::Null, None),
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::UInt64 | DataType::UInt32 => {
                Expr::Literal(value.cast_to(&DataType::Int64)?, None)
            }
            _ => Expr::Literal(value, metadata),
        }),
        _ => Err(unsupported()),
    }
}
