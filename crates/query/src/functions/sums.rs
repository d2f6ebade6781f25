//! Sums of `smallint` and `integer`, which are `bigint`, and of `numeric`, which do not wrap.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::array::{Array as _, ArrayRef, AsArray as _, BooleanArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Decimal256Type, Int64Type, i256};
use datafusion::common::utils::take_function_args;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};
use sql::{SqlError, sqlstate};

use crate::error::wrap;
use crate::values::NUMERIC_PRECISION;

/// An accumulator of `bigint` that takes narrower integers.
#[derive(Debug)]
pub(super) struct Widened<T: ?Sized>(pub(super) Box<T>);

fn widened(values: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
    let wide = |array: &ArrayRef| match array.data_type() {
        DataType::Int64 => Ok(Arc::clone(array)),
        _ => Ok(cast(array, &DataType::Int64)?),
    };
    values.iter().map(wide).collect()
}

impl Accumulator for Widened<dyn Accumulator> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.0.update_batch(&widened(values)?)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.0.retract_batch(&widened(values)?)
    }

    fn supports_retract_batch(&self) -> bool {
        self.0.supports_retract_batch()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.0.evaluate()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.0.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.0.merge_batch(states)
    }
}

impl GroupsAccumulator for Widened<dyn GroupsAccumulator> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.0.update_batch(&widened(values)?, group_indices, opt_filter, total_num_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        self.0.evaluate(emit_to)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        self.0.state(emit_to)
    }

    fn merge_batch(&mut self, values: &[ArrayRef], group_indices: &[usize], total_num_groups: usize) -> Result<()> {
        self.0.merge_batch(values, group_indices, total_num_groups)
    }

    fn convert_to_state(&self, values: &[ArrayRef], opt_filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        self.0.convert_to_state(&widened(values)?, opt_filter)
    }

    fn size(&self) -> usize {
        self.0.size()
    }
}

/// A sum of numbers with up to 76 digits, which DataFusion's wraps.
#[derive(Debug)]
pub(super) struct CheckedSum {
    sum: Option<i256>,
    /// The number of values, which a window function may remove again.
    count: i64,
    precision: u8,
    scale: i8,
}

impl CheckedSum {
    pub(super) fn new(precision: u8, scale: i8) -> Self {
        Self { sum: None, count: 0, precision, scale }
    }

    fn add(&mut self, value: i256, operation: fn(i256, i256) -> Option<i256>) -> Result<()> {
        let limit = i256::from_i128(10).checked_pow(u32::from(NUMERIC_PRECISION)).unwrap_or(i256::MAX);
        let sum = operation(self.sum.unwrap_or(i256::ZERO), value).filter(|sum| *sum < limit && *sum > -limit);
        self.sum = Some(sum.ok_or_else(|| {
            wrap(SqlError::new(
                sqlstate::NUMERIC_VALUE_OUT_OF_RANGE,
                "the sum has more than 38 digits before the point",
            ))
        })?);
        Ok(())
    }

    fn add_all(&mut self, array: &ArrayRef, operation: fn(i256, i256) -> Option<i256>) -> Result<()> {
        array.as_primitive::<Decimal256Type>().iter().flatten().try_for_each(|value| self.add(value, operation))
    }
}

impl Accumulator for CheckedSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [array] = take_function_args("sum", values)?;
        self.count += (array.len() - array.null_count()) as i64;
        self.add_all(array, i256::checked_add)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [array] = take_function_args("sum", values)?;
        self.count -= (array.len() - array.null_count()) as i64;
        self.add_all(array, i256::checked_sub)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Decimal256(self.sum.filter(|_| self.count > 0), self.precision, self.scale))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?, ScalarValue::Int64(Some(self.count))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [sums, counts] = take_function_args("sum", states)?;
        self.count += counts.as_primitive::<Int64Type>().iter().flatten().sum::<i64>();
        self.add_all(sums, i256::checked_add)
    }
}

/// A sum of different numbers with up to 76 digits.
#[derive(Debug)]
pub(super) struct DistinctSum {
    sum: CheckedSum,
    added: HashSet<i256>,
}

impl DistinctSum {
    pub(super) fn new(sum: CheckedSum) -> Self {
        Self { sum, added: HashSet::new() }
    }
}

impl Accumulator for DistinctSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [array] = take_function_args("sum", values)?;
        for value in array.as_primitive::<Decimal256Type>().iter().flatten() {
            if self.added.insert(value) {
                self.sum.count += 1;
                self.sum.add(value, i256::checked_add)?;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.sum.evaluate()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.added.capacity() * size_of::<i256>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let (precision, scale) = (self.sum.precision, self.sum.scale);
        let values = self.added.iter().map(|value| ScalarValue::Decimal256(Some(*value), precision, scale));
        let values: Vec<_> = values.collect();
        let list = ScalarValue::new_list_nullable(&values, &DataType::Decimal256(precision, scale));
        Ok(vec![ScalarValue::List(list)])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [lists] = take_function_args("sum", states)?;
        lists.as_list::<i32>().iter().flatten().try_for_each(|values| self.update_batch(&[values]))
    }
}
