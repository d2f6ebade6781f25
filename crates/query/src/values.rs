//! SQL types and values in Arrow's representation.
//!
//! Arrow has no equivalent of some types: `uuid` and `jsonb` are text, and `char(n)` is text with its padding. The SQL
//! type of a column is in the metadata of its field. A `numeric` without a declared precision is a decimal with
//! [`NUMERIC_SCALE`] digits after the point.

use std::sync::Arc;

use bigdecimal::num_bigint::{BigInt, Sign};
use datafusion::arrow::array::{
    Array as _, ArrayRef, AsArray, BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Decimal256Builder,
    Float32Builder, Float64Builder, Int16Builder, Int32Builder, Int64Builder, IntervalMonthDayNanoBuilder,
    StringBuilder, TimestampMicrosecondBuilder,
};
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Decimal256Type, Field, FieldRef, Float32Type, Float64Type, Int16Type,
    Int32Type, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
    TimestampMicrosecondType, i256,
};
use datafusion::common::ScalarValue;
use datafusion::common::metadata::FieldMetadata;
use sql::{Array, Interval, Numeric, SqlError, SqlType, Value, sqlstate};

use crate::error::{Failed, internal};

/// Digits after the point of a `numeric` without a declared precision, and the number of all its digits.
pub(crate) const NUMERIC_SCALE: i8 = 38;
pub(crate) const NUMERIC_PRECISION: u8 = 76;
/// The key of the SQL type in the metadata of a field: its object identifier and modifier.
const TYPE_KEY: &str = "loggos.type";
/// The key in the metadata of a field with averages, which are shown as PostgreSQL shows them.
const AVERAGE_KEY: &str = "loggos.average";
/// The key in the metadata of an array that PostgreSQL shows as items with spaces between them.
const VECTOR_KEY: &str = "loggos.vector";
/// Days and microseconds from 1970-01-01 to 2000-01-01.
const EPOCH_DAYS: i32 = 10_957;
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// Arrow's type for values of an SQL type.
pub(crate) fn arrow_type(of: &SqlType) -> DataType {
    match of {
        SqlType::Bool => DataType::Boolean,
        SqlType::Int2 => DataType::Int16,
        SqlType::Int4 => DataType::Int32,
        SqlType::Int8 => DataType::Int64,
        SqlType::Float4 => DataType::Float32,
        SqlType::Float8 => DataType::Float64,
        SqlType::Numeric(Some((precision, scale))) if *precision <= 38 => {
            DataType::Decimal128(*precision as u8, *scale as i8)
        }
        SqlType::Numeric(Some((precision, scale))) if *precision <= u16::from(NUMERIC_PRECISION) => {
            DataType::Decimal256(*precision as u8, *scale as i8)
        }
        SqlType::Numeric(_) => DataType::Decimal256(NUMERIC_PRECISION, NUMERIC_SCALE),
        SqlType::Text | SqlType::Varchar(_) | SqlType::Char(_) | SqlType::Uuid | SqlType::Jsonb => DataType::Utf8,
        SqlType::Bytea => DataType::Binary,
        SqlType::Date => DataType::Date32,
        SqlType::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
        SqlType::Timestamptz => DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())),
        SqlType::Interval => DataType::Interval(IntervalUnit::MonthDayNano),
        SqlType::Array(item) => DataType::List(Arc::new(Field::new_list_field(arrow_type(item), true))),
    }
}

/// Whether the Arrow type does not determine the SQL type.
pub(crate) fn needs_metadata(of: &SqlType) -> bool {
    match of {
        SqlType::Array(item) => needs_metadata(item),
        SqlType::Varchar(_) | SqlType::Char(_) | SqlType::Uuid | SqlType::Jsonb | SqlType::Numeric(_) => true,
        _ => false,
    }
}

/// A field with values of an SQL type.
pub(crate) fn field(name: &str, of: &SqlType, is_nullable: bool) -> Field {
    let field = Field::new(name, arrow_type(of), is_nullable);
    if needs_metadata(of) {
        let encoded = format!("{}:{}", of.oid(), of.modifier());
        return field.with_metadata([(TYPE_KEY.to_owned(), encoded)].into());
    }
    field
}

/// A field with averages.
pub(crate) fn average_field(name: &str, of: &SqlType) -> FieldRef {
    let field = field(name, of, true);
    let mut metadata = field.metadata().clone();
    metadata.insert(AVERAGE_KEY.to_owned(), String::new());
    Arc::new(field.with_metadata(metadata))
}

/// A field with values of type `int2vector` or `oidvector`, which are arrays here.
pub(crate) fn as_vector(field: Field) -> Field {
    let mut metadata = field.metadata().clone();
    metadata.insert(VECTOR_KEY.to_owned(), String::new());
    field.with_metadata(metadata)
}

/// Whether a field has such values.
pub(crate) fn is_vector(field: &Field) -> bool {
    field.metadata().contains_key(VECTOR_KEY) && matches!(field.data_type(), DataType::List(_))
}

/// Whether a field has averages.
pub(crate) fn is_average(field: &Field) -> bool {
    field.metadata().contains_key(AVERAGE_KEY)
}

/// The SQL type of a field's values.
pub(crate) fn type_of(field: &Field) -> SqlType {
    let declared = field.metadata().get(TYPE_KEY).and_then(|encoded| {
        let (oid, modifier) = encoded.split_once(':')?;
        SqlType::from_oid(oid.parse().ok()?)?.with_modifier(modifier.parse().ok()?)
    });
    match declared {
        Some(declared) if arrow_type(&declared) == *field.data_type() => declared,
        // Its precision is a larger one than declared, or unknown, after an operation.
        Some(SqlType::Numeric(_)) => SqlType::Numeric(None),
        _ => type_of_arrow(field.data_type()),
    }
}

/// The SQL type for values of an Arrow type.
pub(crate) fn type_of_arrow(of: &DataType) -> SqlType {
    match of {
        DataType::Boolean => SqlType::Bool,
        DataType::Int8 | DataType::UInt8 | DataType::Int16 => SqlType::Int2,
        DataType::UInt16 | DataType::Int32 => SqlType::Int4,
        DataType::UInt32 | DataType::Int64 | DataType::UInt64 => SqlType::Int8,
        DataType::Float16 | DataType::Float32 => SqlType::Float4,
        DataType::Float64 => SqlType::Float8,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            SqlType::Numeric(None)
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            SqlType::Bytea
        }
        DataType::Date32 | DataType::Date64 => SqlType::Date,
        DataType::Timestamp(_, None) => SqlType::Timestamp,
        DataType::Timestamp(_, Some(_)) => SqlType::Timestamptz,
        DataType::Interval(_) | DataType::Duration(_) => SqlType::Interval,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => match type_of(item) {
            // The number of dimensions is not part of the type.
            array @ SqlType::Array(_) => array,
            scalar => SqlType::Array(Box::new(scalar)),
        },
        _ => SqlType::Text,
    }
}

fn too_precise() -> SqlError {
    let message = "numeric value has more than 38 digits before or after the point";
    SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, message)
}

/// The unscaled value of a number at a scale. It is rounded if the result of an operation has more digits.
fn at_scale(number: &Numeric, scale: i8) -> Result<BigInt, SqlError> {
    let scale = u16::try_from(scale).unwrap_or(0);
    let number = if number.scale() > scale { number.rounded(scale) } else { number.clone() };
    let (unscaled, found) = number.parts();
    Ok(unscaled * BigInt::from(10).pow(u32::from(scale - found.min(scale))))
}

fn to_i256(number: &BigInt) -> Option<i256> {
    let bytes = number.to_signed_bytes_le();
    let mut all = if number.sign() == Sign::Minus { [0xff; 32] } else { [0; 32] };
    all.get_mut(..bytes.len())?.copy_from_slice(&bytes);
    let number = i256::from_le_bytes(all);
    let limit = i256::from_i128(10).checked_pow(u32::from(NUMERIC_PRECISION))?;
    (number < limit && number > -limit).then_some(number)
}

/// A column of stored values, which are never rounded.
pub(crate) fn stored_column<'a>(
    of: &SqlType,
    values: impl Iterator<Item = &'a Value> + Clone,
) -> Result<ArrayRef, SqlError> {
    if matches!(of, SqlType::Numeric(_)) {
        let is_long = |value: &Value| matches!(value, Value::Numeric(number) if number.scale() > NUMERIC_SCALE as u16);
        if values.clone().any(is_long) {
            return Err(too_precise());
        }
    }
    column(of, values)
}

/// A column of values, each of this SQL type or NULL.
pub(crate) fn column<'a>(of: &SqlType, values: impl Iterator<Item = &'a Value>) -> Result<ArrayRef, SqlError> {
    let wrong = |value: &Value| {
        SqlError::new(
            sqlstate::INTERNAL_ERROR,
            format!("a value of type {:?} in a column of type {of}", value.sql_type()),
        )
    };
    macro_rules! build {
        ($builder:expr, $($pattern:pat => $item:expr),+) => {{
            let mut builder = $builder;
            for value in values {
                match value {
                    Value::Null => builder.append_null(),
                    $($pattern => builder.append_value($item),)+
                    other => return Err(wrong(other)),
                }
            }
            Arc::new(builder.finish())
        }};
    }
    Ok(match of {
        SqlType::Bool => build!(BooleanBuilder::new(), Value::Bool(value) => *value),
        SqlType::Int2 => build!(Int16Builder::new(), Value::Int2(value) => *value),
        SqlType::Int4 => {
            build!(Int32Builder::new(), Value::Int4(value) => *value, Value::Int2(value) => i32::from(*value))
        }
        SqlType::Int8 => build!(
            Int64Builder::new(),
            Value::Int8(value) => *value, Value::Int4(value) => i64::from(*value), Value::Int2(value) => i64::from(*value)
        ),
        SqlType::Float4 => build!(Float32Builder::new(), Value::Float4(value) => *value),
        SqlType::Float8 => build!(Float64Builder::new(), Value::Float8(value) => *value),
        SqlType::Numeric(_) => return numbers(&arrow_type(of), values, wrong),
        SqlType::Text | SqlType::Varchar(_) | SqlType::Char(_) => {
            build!(StringBuilder::new(), Value::Text(text) => text)
        }
        SqlType::Jsonb => build!(StringBuilder::new(), Value::Jsonb(text) => text),
        SqlType::Uuid => build!(StringBuilder::new(), uuid @ Value::Uuid(_) => uuid.to_text().unwrap_or_default()),
        SqlType::Bytea => build!(BinaryBuilder::new(), Value::Bytea(bytes) => bytes),
        SqlType::Date => build!(Date32Builder::new(), Value::Date(day) => to_unix_day(*day)),
        SqlType::Timestamp => {
            build!(TimestampMicrosecondBuilder::new(), Value::Timestamp(micros) => to_unix_micros(*micros))
        }
        SqlType::Timestamptz => {
            let builder = TimestampMicrosecondBuilder::new().with_timezone("+00:00");
            build!(builder, Value::Timestamptz(micros) => to_unix_micros(*micros))
        }
        SqlType::Interval => {
            let mut builder = IntervalMonthDayNanoBuilder::new();
            for value in values {
                match value {
                    Value::Null => builder.append_null(),
                    Value::Interval(Interval { months, days, micros }) => {
                        let nanos = micros
                            .checked_mul(1_000)
                            .ok_or_else(|| SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, "interval out of range"))?;
                        builder.append_value(IntervalMonthDayNano::new(*months, *days, nanos));
                    }
                    other => return Err(wrong(other)),
                }
            }
            Arc::new(builder.finish())
        }
        SqlType::Array(item) => return lists(item, values, wrong),
    })
}

fn numbers<'a>(
    to: &DataType,
    values: impl Iterator<Item = &'a Value>,
    wrong: impl Fn(&Value) -> SqlError,
) -> Result<ArrayRef, SqlError> {
    let number = |value: &Value| match value {
        Value::Null => Ok(None),
        Value::Numeric(number) => Ok(Some(number.clone())),
        other => other.as_integer().map(|number| Some(Numeric::from(number))).ok_or_else(|| wrong(other)),
    };
    match to {
        DataType::Decimal128(precision, scale) => {
            let limit = 10_i128.checked_pow(u32::from(*precision)).ok_or_else(too_precise)?;
            let mut builder = Decimal128Builder::new().with_data_type(to.clone());
            for value in values {
                let Some(number) = number(value)? else {
                    builder.append_null();
                    continue;
                };
                let unscaled = i128::try_from(at_scale(&number, *scale)?).ok();
                let unscaled = unscaled.filter(|unscaled| *unscaled < limit && *unscaled > -limit);
                builder.append_value(unscaled.ok_or_else(too_precise)?);
            }
            Ok(Arc::new(builder.finish()))
        }
        DataType::Decimal256(_, scale) => {
            let mut builder = Decimal256Builder::new().with_data_type(to.clone());
            for value in values {
                match number(value)? {
                    None => builder.append_null(),
                    Some(number) => {
                        builder.append_value(to_i256(&at_scale(&number, *scale)?).ok_or_else(too_precise)?);
                    }
                }
            }
            Ok(Arc::new(builder.finish()))
        }
        other => Err(internal(format!("numbers as {other}"))),
    }
}

fn lists<'a>(
    item: &SqlType,
    values: impl Iterator<Item = &'a Value>,
    wrong: impl Fn(&Value) -> SqlError,
) -> Result<ArrayRef, SqlError> {
    let (mut items, mut lengths) = (Vec::new(), Vec::new());
    for value in values {
        match value {
            Value::Null => lengths.push(None),
            Value::Array(array) if array.dimensions.len() <= 1 => {
                items.extend(array.items.iter());
                lengths.push(Some(array.items.len()));
            }
            Value::Array(_) => return Err(SqlError::unsupported("an array of several dimensions in a planned query")),
            other => return Err(wrong(other)),
        }
    }
    let items = column(item, items.into_iter())?;
    let data = items.to_data();
    let mut offsets = vec![0_i32];
    let mut valid = Vec::with_capacity(lengths.len());
    for length in lengths {
        let last = offsets.last().copied().unwrap_or(0);
        let length_now = i32::try_from(length.unwrap_or(0)).unwrap_or(i32::MAX);
        offsets.push(last.saturating_add(length_now));
        valid.push(length.is_some());
    }
    let list = datafusion::arrow::array::ListArray::try_new(
        Arc::new(Field::new_list_field(data.data_type().clone(), true)),
        datafusion::arrow::buffer::OffsetBuffer::new(offsets.into()),
        items,
        Some(valid.into()),
    );
    list.map(|list| Arc::new(list) as ArrayRef).map_err(|error| internal(error.to_string()))
}

fn to_unix_day(day: i32) -> i32 {
    match day {
        i32::MIN | i32::MAX => day,
        _ => day.saturating_add(EPOCH_DAYS),
    }
}

fn to_unix_micros(micros: i64) -> i64 {
    match micros {
        i64::MIN | i64::MAX => micros,
        _ => micros.saturating_add(EPOCH_MICROS),
    }
}

fn from_unix_micros(micros: i64) -> i64 {
    match micros {
        i64::MIN | i64::MAX => micros,
        _ => micros.saturating_sub(EPOCH_MICROS),
    }
}

/// A value as a constant of a plan, which keeps its SQL type.
pub(crate) fn scalar(value: &Value, of: &SqlType) -> Result<(ScalarValue, Option<FieldMetadata>), SqlError> {
    let column = column(of, std::iter::once(value))?;
    let scalar = ScalarValue::try_from_array(&column, 0).map_err(|error| internal(error.to_string()))?;
    let field = field("", of, true);
    let metadata = (!field.metadata().is_empty()).then(|| FieldMetadata::from(&field));
    Ok((scalar, metadata))
}

/// The value of a constant.
pub(crate) fn value_of(scalar: &ScalarValue, of: &SqlType) -> Result<Value, SqlError> {
    let array = scalar.to_array().map_err(|error| internal(error.to_string()))?;
    Ok(values(&array, of)?.pop().unwrap_or(Value::Null))
}

/// The values of a column, as those of an SQL type.
pub(crate) fn values(array: &ArrayRef, of: &SqlType) -> Result<Vec<Value>, SqlError> {
    let wanted = match array.data_type() {
        // Its own scale, not that of a number without a declared one.
        DataType::Decimal128(..) | DataType::Decimal256(..) if matches!(of, SqlType::Numeric(_)) => {
            array.data_type().clone()
        }
        DataType::Null => return Ok(vec![Value::Null; array.len()]),
        DataType::List(_) => array.data_type().clone(),
        _ => arrow_type(of),
    };
    let array = if *array.data_type() == wanted {
        Arc::clone(array)
    } else {
        let options = CastOptions { safe: false, ..CastOptions::default() };
        cast_with_options(array, &wanted, &options).map_err(|error| SqlError::from(Failed(error.into())))?
    };
    let mut found = Vec::with_capacity(array.len());
    macro_rules! read {
        ($array:expr, $convert:expr) => {{
            for item in $array.iter() {
                found.push(match item {
                    None => Value::Null,
                    Some(item) => $convert(item)?,
                });
            }
        }};
    }
    let ok = Ok::<Value, SqlError>;
    match of {
        SqlType::Bool => read!(array.as_boolean(), |item| ok(Value::Bool(item))),
        SqlType::Int2 => read!(array.as_primitive::<Int16Type>(), |item| ok(Value::Int2(item))),
        SqlType::Int4 => read!(array.as_primitive::<Int32Type>(), |item| ok(Value::Int4(item))),
        SqlType::Int8 => read!(array.as_primitive::<Int64Type>(), |item| ok(Value::Int8(item))),
        SqlType::Float4 => read!(array.as_primitive::<Float32Type>(), |item| ok(Value::Float4(item))),
        SqlType::Float8 => read!(array.as_primitive::<Float64Type>(), |item| ok(Value::Float8(item))),
        SqlType::Numeric(declared) => match array.data_type() {
            DataType::Decimal128(_, scale) => {
                read!(array.as_primitive::<Decimal128Type>(), |item: i128| number(
                    BigInt::from(item),
                    *scale,
                    declared
                ));
            }
            DataType::Decimal256(_, scale) => read!(array.as_primitive::<Decimal256Type>(), |item: i256| number(
                BigInt::from_signed_bytes_le(&item.to_le_bytes()),
                *scale,
                declared
            )),
            _ => return Err(internal(format!("{} as numeric", array.data_type()))),
        },
        SqlType::Text | SqlType::Varchar(_) | SqlType::Char(_) => {
            read!(array.as_string::<i32>(), |item: &str| ok(Value::Text(item.to_owned())));
        }
        SqlType::Jsonb => read!(array.as_string::<i32>(), |item: &str| ok(Value::Jsonb(item.to_owned()))),
        SqlType::Uuid => read!(array.as_string::<i32>(), |item: &str| SqlType::Uuid.parse(item)),
        SqlType::Bytea => {
            read!(array.as_binary::<i32>(), |item: &[u8]| ok(Value::Bytea(bytes::Bytes::copy_from_slice(item))));
        }
        SqlType::Date => read!(array.as_primitive::<Date32Type>(), |day| ok(Value::Date(match day {
            i32::MIN | i32::MAX => day,
            _ => day.saturating_sub(EPOCH_DAYS),
        }))),
        SqlType::Timestamp => read!(array.as_primitive::<TimestampMicrosecondType>(), |item| {
            ok(Value::Timestamp(from_unix_micros(item)))
        }),
        SqlType::Timestamptz => read!(array.as_primitive::<TimestampMicrosecondType>(), |item| {
            ok(Value::Timestamptz(from_unix_micros(item)))
        }),
        SqlType::Interval => read!(array.as_primitive::<IntervalMonthDayNanoType>(), |item: IntervalMonthDayNano| {
            let micros = item.nanoseconds / 1_000;
            ok(Value::Interval(Interval { months: item.months, days: item.days, micros }))
        }),
        SqlType::Array(item) => {
            let list = array.as_list_opt::<i32>().ok_or_else(|| internal("a list of another kind".to_owned()))?;
            for row in list.iter() {
                found.push(match row {
                    None => Value::Null,
                    Some(row) => Value::Array(Array::new((**item).clone(), values(&row, item)?)),
                });
            }
        }
    }
    Ok(found)
}

/// A decimal as a number: with its scale if that was declared, and otherwise without zeros at its end.
fn number(unscaled: BigInt, scale: i8, declared: &Option<(u16, u16)>) -> Result<Value, SqlError> {
    let mut number = Numeric::new(unscaled, i64::from(scale))?;
    if declared.is_none() && scale == NUMERIC_SCALE {
        number = number.trimmed();
    }
    Ok(Value::Numeric(number))
}

/// The field of a list's items.
pub(crate) fn field_ref(name: &str, of: &SqlType) -> FieldRef {
    Arc::new(field(name, of, true))
}
