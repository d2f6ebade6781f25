//! Functions: those of DataFusion, and others where PostgreSQL's semantics differ.

mod numbers;
mod padded;
mod strings;
mod sums;
mod times;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{Array as _, ArrayRef};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::utils::take_function_args;
use datafusion::common::{Result, ScalarValue};
use datafusion::execution::SessionStateDefaults;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, GroupsAccumulator, ReturnFieldArgs, ReversedUDAF,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, WindowUDF,
};
use sql::operators::{Arithmetic, apply};
use sql::{Numeric, SqlError, SqlType, Value, sqlstate};

use crate::error::wrap;
use crate::values::{NUMERIC_PRECISION, average_field, column, field_ref, type_of, values};

pub(crate) use numbers::BIT_NOT;
pub(crate) use strings::VECTOR;
pub(crate) use times::{EXTRACT, EXTRACT_MILLIS, EXTRACT_SECONDS};

/// `pg_typeof`
pub(crate) const TYPE_OF: &str = "pg_typeof";

/// DataFusion's functions that PostgreSQL lacks or defines otherwise.
const OTHER_SEMANTICS: [&str; 17] = [
    "to_char",
    "now",
    "current_date",
    "current_time",
    "today",
    "version",
    "to_timestamp",
    "to_timestamp_micros",
    "to_timestamp_millis",
    "to_timestamp_nanos",
    "to_timestamp_seconds",
    "to_date",
    "to_time",
    "to_local_time",
    "date_format",
    "power",
    "from_unixtime",
];

/// The functions of all queries.
pub(crate) struct Functions {
    pub(crate) scalar: HashMap<String, Arc<ScalarUDF>>,
    pub(crate) aggregate: HashMap<String, Arc<AggregateUDF>>,
    pub(crate) window: HashMap<String, Arc<WindowUDF>>,
}

impl Functions {
    /// Whether there is a function of this name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.scalar.contains_key(name) || self.aggregate.contains_key(name) || self.window.contains_key(name)
    }
}

pub(crate) static FUNCTIONS: LazyLock<Functions> = LazyLock::new(|| {
    let mut functions = Functions { scalar: HashMap::new(), aggregate: HashMap::new(), window: HashMap::new() };
    for function in SessionStateDefaults::default_scalar_functions() {
        for name in std::iter::once(function.name()).chain(function.aliases().iter().map(String::as_str)) {
            if !OTHER_SEMANTICS.contains(&name) {
                functions.scalar.insert(name.to_owned(), padded::without_padding(name, &function));
            }
        }
    }
    for own in OWN.into_iter().chain(numbers::OWN).chain(strings::OWN).chain(times::OWN) {
        let function = ScalarUDF::new_from_impl(Own { signature: signature(own.arguments), own });
        functions.scalar.insert(own.name.to_owned(), Arc::new(function));
    }
    for function in SessionStateDefaults::default_aggregate_functions() {
        for name in std::iter::once(function.name()).chain(function.aliases().iter().map(String::as_str)) {
            functions.aggregate.insert(name.to_owned(), Arc::clone(&function));
        }
    }
    if let Some(inner) = functions.aggregate.get("sum").cloned() {
        let signature = Signature::user_defined(Volatility::Immutable);
        let sum = AggregateUDF::new_from_impl(Sum { inner, signature });
        functions.aggregate.insert("sum".to_owned(), Arc::new(sum));
    }
    let single = AggregateUDF::new_from_impl(Single { signature: Signature::any(1, Volatility::Immutable) });
    functions.aggregate.insert("/single".to_owned(), Arc::new(single));
    for function in SessionStateDefaults::default_window_functions() {
        functions.window.insert(function.name().to_owned(), function);
    }
    functions
});

fn signature(arguments: usize) -> Signature {
    match arguments {
        0 => Signature::nullary(Volatility::Stable),
        ANY_NUMBER => Signature::variadic_any(Volatility::Immutable),
        some => Signature::any(some, Volatility::Immutable),
    }
}

/// `sum`: of `bigint` as `numeric`, so that it does not overflow.
#[derive(Debug)]
struct Sum {
    inner: Arc<AggregateUDF>,
    signature: Signature,
}

impl PartialEq for Sum {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Sum {}

impl Hash for Sum {
    fn hash<H: Hasher>(&self, state: &mut H) {
        "sum".hash(state);
    }
}

impl AggregateUDFImpl for Sum {
    fn name(&self) -> &str {
        "sum"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let [of] = take_function_args("sum", arguments)?;
        Ok(vec![match of {
            // They are widened when they are added. A cast here would make them `bigint` if the types are derived again.
            DataType::Int8 | DataType::Int16 | DataType::UInt8 => DataType::Int16,
            DataType::Int32 | DataType::UInt16 | DataType::Null => DataType::Int32,
            DataType::Int64 | DataType::UInt64 | DataType::UInt32 => DataType::Decimal128(20, 0),
            DataType::Float16 | DataType::Float32 | DataType::Float64 => DataType::Float64,
            // A sum of 10^10 values has ten more digits.
            DataType::Decimal128(precision, scale) if *precision > 28 => {
                DataType::Decimal256(NUMERIC_PRECISION, *scale)
            }
            DataType::Decimal128(..) | DataType::Decimal256(..) | DataType::Duration(_) => of.clone(),
            other => {
                let message = format!("function sum({}) does not exist", crate::values::type_of_arrow(other));
                return Err(wrap(SqlError::new(sqlstate::UNDEFINED_FUNCTION, message)));
            }
        }])
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments {
            [DataType::Int16 | DataType::Int32] => Ok(DataType::Int64),
            _ => self.inner.return_type(arguments),
        }
    }

    fn accumulator(&self, arguments: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match arguments.return_field.data_type() {
            DataType::Decimal256(precision, scale) => {
                let sum = sums::CheckedSum::new(*precision, *scale);
                Ok(if arguments.is_distinct { Box::new(sums::DistinctSum::new(sum)) } else { Box::new(sum) })
            }
            DataType::Int64 => Ok(Box::new(sums::Widened(self.inner.accumulator(arguments)?))),
            _ => self.inner.accumulator(arguments),
        }
    }

    fn state_fields(&self, arguments: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        match arguments.return_field.data_type() {
            DataType::Decimal256(..) if !arguments.is_distinct => {
                let sum = Arc::new(arguments.return_field.as_ref().clone().with_name("sum").with_nullable(true));
                Ok(vec![sum, Arc::new(Field::new("count", DataType::Int64, false))])
            }
            _ => self.inner.state_fields(arguments),
        }
    }

    fn groups_accumulator_supported(&self, arguments: AccumulatorArgs) -> bool {
        !matches!(arguments.return_field.data_type(), DataType::Decimal256(..))
            && self.inner.groups_accumulator_supported(arguments)
    }

    fn create_groups_accumulator(&self, arguments: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        if *arguments.return_field.data_type() == DataType::Int64 {
            return Ok(Box::new(sums::Widened(self.inner.create_groups_accumulator(arguments)?)));
        }
        self.inner.create_groups_accumulator(arguments)
    }

    fn create_sliding_accumulator(&self, arguments: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match arguments.return_field.data_type() {
            DataType::Decimal256(..) => self.accumulator(arguments),
            DataType::Int64 => Ok(Box::new(sums::Widened(self.inner.create_sliding_accumulator(arguments)?))),
            _ => self.inner.create_sliding_accumulator(arguments),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}

/// The only value of a subquery.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Single {
    signature: Signature,
}

impl AggregateUDFImpl for Single {
    fn name(&self) -> &str {
        "/single"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        let [of] = take_function_args("/single", arguments)?;
        Ok(of.clone())
    }

    fn return_field(&self, arguments: &[FieldRef]) -> Result<FieldRef> {
        let [of] = take_function_args("/single", arguments)?;
        Ok(Arc::new(of.as_ref().clone().with_nullable(true)))
    }

    fn accumulator(&self, arguments: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(SingleValue { found: ScalarValue::try_from(arguments.return_field.data_type())?, count: 0 }))
    }

    fn state_fields(&self, arguments: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let count = Field::new("count", DataType::Int64, false);
        Ok(vec![Arc::new(arguments.return_field.as_ref().clone().with_name("found")), Arc::new(count)])
    }
}

#[derive(Debug)]
struct SingleValue {
    found: ScalarValue,
    count: i64,
}

impl SingleValue {
    fn add(&mut self, array: &ArrayRef, row: usize, count: i64) -> Result<()> {
        self.count += count;
        if self.count > 1 {
            let message = "more than one row returned by a subquery used as an expression";
            return Err(wrap(SqlError::new(sqlstate::CARDINALITY_VIOLATION, message)));
        }
        if count > 0 {
            self.found = ScalarValue::try_from_array(array, row)?;
        }
        Ok(())
    }
}

impl Accumulator for SingleValue {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [array] = take_function_args("/single", values)?;
        (0..array.len()).try_for_each(|row| self.add(array, row, 1))
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.found.clone())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.found.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.found.clone(), ScalarValue::Int64(Some(self.count))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [found, counts] = take_function_args("/single", states)?;
        for row in 0..found.len() {
            let count = ScalarValue::try_from_array(counts, row)?;
            self.add(found, row, i64::try_from(count).unwrap_or(0))?;
        }
        Ok(())
    }
}

/// A function takes any number of arguments, but at least one.
const ANY_NUMBER: usize = usize::MAX;

/// A function on SQL values.
#[derive(Clone, Copy)]
struct Definition {
    name: &'static str,
    arguments: usize,
    /// The type of the result, from those of the arguments.
    result: fn(&[SqlType]) -> SqlType,
    evaluate: fn(&[Value]) -> std::result::Result<Value, SqlError>,
}

const OWN: [Definition; 17] = [
    Definition {
        name: NEGATIVE,
        arguments: 1,
        result: |of| of.first().cloned().unwrap_or(SqlType::Text),
        evaluate: negative,
    },
    Definition { name: "/round", arguments: 1, result: rounded_type, evaluate: half_even },
    Definition { name: "/avg", arguments: 2, result: average_type, evaluate: average },
    // Bound to the time of the transaction.
    Definition {
        name: crate::rewrite::NOW,
        arguments: 0,
        result: |_| SqlType::Timestamptz,
        evaluate: |_| Ok(Value::Null),
    },
    Definition { name: "ceil", arguments: 1, result: rounded_type, evaluate: |of| rounded(of, true) },
    Definition { name: "floor", arguments: 1, result: rounded_type, evaluate: |of| rounded(of, false) },
    Definition { name: "sqrt", arguments: 1, result: |_| SqlType::Float8, evaluate: square_root },
    // The session ignores it: it has one search path.
    Definition {
        name: "set_config",
        arguments: 3,
        result: |_| SqlType::Text,
        evaluate: |of| Ok(of.get(1).cloned().unwrap_or(Value::Null)),
    },
    Definition { name: "array_lower", arguments: 2, result: |_| SqlType::Int4, evaluate: array_lower },
    Definition { name: "json_build_object", arguments: ANY_NUMBER, result: |_| SqlType::Jsonb, evaluate: json_object },
    Definition { name: "jsonb_build_object", arguments: ANY_NUMBER, result: |_| SqlType::Jsonb, evaluate: json_object },
    Definition { name: "power", arguments: 2, result: |_| SqlType::Float8, evaluate: power },
    Definition { name: "mod", arguments: 2, result: common, evaluate: |of| modulo(of) },
    Definition { name: "div", arguments: 2, result: |_| SqlType::Numeric(None), evaluate: div },
    Definition { name: "timezone", arguments: 2, result: timezone_type, evaluate: timezone },
    Definition { name: "jsonb_typeof", arguments: 1, result: |_| SqlType::Text, evaluate: json_type },
    Definition { name: "json_typeof", arguments: 1, result: |_| SqlType::Text, evaluate: json_type },
];

/// Unary minus, which must not wrap.
pub(crate) const NEGATIVE: &str = "/negative";

fn negative(of: &[Value]) -> std::result::Result<Value, SqlError> {
    let [value] = of else { return Ok(Value::Null) };
    match value.sql_type() {
        Some(of) if !of.is_number() && of != SqlType::Interval => {
            Err(SqlError::new(sqlstate::UNDEFINED_FUNCTION, format!("operator does not exist: - {of}")))
        }
        _ => sql::operators::negate(value.clone()),
    }
}

/// `round` of one argument: of `double precision` to the nearest even number.
fn half_even(of: &[Value]) -> std::result::Result<Value, SqlError> {
    Ok(match of.first() {
        Some(Value::Float8(n)) => Value::Float8(n.round_ties_even()),
        Some(Value::Float4(n)) => Value::Float8(f64::from(*n).round_ties_even()),
        Some(Value::Numeric(n)) => Value::Numeric(n.rounded(0)),
        Some(Value::Int2(n)) => Value::Float8(f64::from(*n)),
        Some(Value::Int4(n)) => Value::Float8(f64::from(*n)),
        Some(n @ Value::Int8(_)) => sql::cast::cast(n.clone(), &SqlType::Float8, sql::cast::Context::Implicit)?,
        other => other.cloned().unwrap_or(Value::Null),
    })
}

struct Own {
    own: Definition,
    signature: Signature,
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.own.name)
    }
}

impl PartialEq for Own {
    fn eq(&self, other: &Self) -> bool {
        self.own.name == other.own.name
    }
}

impl Eq for Own {}

impl Hash for Own {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.own.name.hash(state);
    }
}

impl ScalarUDFImpl for Own {
    fn name(&self) -> &str {
        self.own.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        let types: Vec<SqlType> = arguments.iter().map(crate::values::type_of_arrow).collect();
        Ok(crate::values::arrow_type(&(self.own.result)(&types)))
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let types: Vec<SqlType> = arguments.arg_fields.iter().map(|field| type_of(field)).collect();
        let result = (self.own.result)(&types);
        Ok(if self.own.name == "/avg" {
            average_field(self.own.name, &result)
        } else {
            field_ref(self.own.name, &result)
        })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let types: Vec<SqlType> = arguments.arg_fields.iter().map(|field| type_of(field)).collect();
        if self.own.name == TYPE_OF {
            let shown = types.first().map(SqlType::base_name);
            return Ok(ColumnarValue::Scalar(ScalarValue::Utf8(shown)));
        }
        by_rows(&arguments, &types, &(self.own.result)(&types), |values| (self.own.evaluate)(values))
    }
}

/// Evaluates a function row by row.
pub(crate) fn by_rows(
    arguments: &ScalarFunctionArgs,
    types: &[SqlType],
    result: &SqlType,
    evaluate: impl Fn(&[Value]) -> std::result::Result<Value, SqlError>,
) -> Result<ColumnarValue> {
    let is_scalar = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
    let rows = if is_scalar { 1 } else { arguments.number_rows };
    let mut columns = Vec::with_capacity(types.len());
    for (argument, of) in arguments.args.iter().zip(types) {
        let array: ArrayRef = argument.to_array(rows)?;
        columns.push(values(&array, of).map_err(wrap)?);
    }
    let mut found = Vec::with_capacity(rows);
    let mut row = Vec::with_capacity(columns.len());
    for number in 0..rows {
        row.clear();
        row.extend(columns.iter().map(|column| column.get(number).cloned().unwrap_or(Value::Null)));
        found.push(evaluate(&row).map_err(wrap)?);
    }
    let array = column(result, found.iter()).map_err(wrap)?;
    if is_scalar {
        return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?));
    }
    Ok(ColumnarValue::Array(array))
}

/// The error for values of other types than a function has.
fn undefined(name: &str, of: &[Value]) -> SqlError {
    let types: Vec<String> =
        of.iter().map(|value| value.sql_type().map_or_else(|| "unknown".to_owned(), |of| of.to_string())).collect();
    let message = format!("function {name}({}) does not exist", types.join(", "));
    let hint = "No function matches the given name and argument types. You might need to add explicit type casts.";
    SqlError::new(sqlstate::UNDEFINED_FUNCTION, message).with_hint(hint)
}

fn common(of: &[SqlType]) -> SqlType {
    match of {
        [a, b] => sql::operators::common_number(a, b).unwrap_or(SqlType::Numeric(None)),
        _ => SqlType::Numeric(None),
    }
}

fn as_numeric(value: &Value) -> std::result::Result<Value, SqlError> {
    sql::cast::cast(value.clone(), &SqlType::Numeric(None), sql::cast::Context::Explicit)
}

fn average_type(of: &[SqlType]) -> SqlType {
    match of.first() {
        Some(SqlType::Float4 | SqlType::Float8) => SqlType::Float8,
        _ => SqlType::Numeric(None),
    }
}

/// A sum divided by a count; NULL for no values.
fn average(of: &[Value]) -> std::result::Result<Value, SqlError> {
    let [sum, count] = of else { return Ok(Value::Null) };
    let Some(count) = count.as_integer().filter(|count| *count > 0) else { return Ok(Value::Null) };
    match sum {
        Value::Null => Ok(Value::Null),
        Value::Float8(sum) => Ok(Value::Float8(sum / count as f64)),
        sum => apply(Arithmetic::Divide, &as_numeric(sum)?, &Value::Numeric(Numeric::from(count))),
    }
}

fn as_float(value: &Value) -> std::result::Result<Option<f64>, SqlError> {
    match sql::cast::cast(value.clone(), &SqlType::Float8, sql::cast::Context::Explicit)? {
        Value::Float8(number) => Ok(Some(number)),
        _ => Ok(None),
    }
}

fn power(of: &[Value]) -> std::result::Result<Value, SqlError> {
    let [a, b] = of else { return Ok(Value::Null) };
    let (Some(a), Some(b)) = (as_float(a)?, as_float(b)?) else { return Ok(Value::Null) };
    let invalid = |message: &str| Err(SqlError::new("2201F", message.to_owned()));
    if a == 0.0 && b < 0.0 {
        return invalid("zero raised to a negative power is undefined");
    }
    if a < 0.0 && b.fract() != 0.0 {
        return invalid("a negative number raised to a non-integer power yields a complex result");
    }
    let result = a.powf(b);
    if result.is_infinite() && a.is_finite() && b.is_finite() {
        return Err(SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, "value out of range: overflow"));
    }
    Ok(Value::Float8(result))
}

fn rounded_type(of: &[SqlType]) -> SqlType {
    match of {
        [SqlType::Numeric(_), ..] | [_, _] => SqlType::Numeric(None),
        _ => SqlType::Float8,
    }
}

fn rounded(of: &[Value], is_up: bool) -> std::result::Result<Value, SqlError> {
    let [value] = of else { return Ok(Value::Null) };
    if let Value::Numeric(number) = value {
        let one = Numeric::from(1);
        let rest = number.remainder(&one)?;
        let whole = number.subtract(&rest)?.rounded(0);
        return Ok(Value::Numeric(match (rest.is_zero(), rest.is_negative(), is_up) {
            (false, false, true) => whole.add(&one)?,
            (false, true, false) => whole.subtract(&one)?,
            _ => whole,
        }));
    }
    let number = as_float(value)?;
    Ok(number.map_or(Value::Null, |number| Value::Float8(if is_up { number.ceil() } else { number.floor() })))
}

fn array_lower(of: &[Value]) -> std::result::Result<Value, SqlError> {
    Ok(match of {
        [Value::Array(array), dimension]
            if dimension.as_integer().is_some_and(|wanted| (1..=array.dimensions.len() as i64).contains(&wanted)) =>
        {
            Value::Int4(1)
        }
        _ => Value::Null,
    })
}

fn square_root(of: &[Value]) -> std::result::Result<Value, SqlError> {
    let [value] = of else { return Ok(Value::Null) };
    match as_float(value)? {
        None => Ok(Value::Null),
        Some(number) if number < 0.0 => Err(SqlError::new("2201F", "cannot take square root of a negative number")),
        Some(number) => Ok(Value::Float8(number.sqrt())),
    }
}

fn modulo(of: &[Value]) -> std::result::Result<Value, SqlError> {
    let [a, b] = of else { return Ok(Value::Null) };
    let (Some(left), Some(right)) = (a.sql_type(), b.sql_type()) else { return Ok(Value::Null) };
    let to = common(&[left, right]);
    let cast = |value: &Value| sql::cast::cast(value.clone(), &to, sql::cast::Context::Explicit);
    apply(Arithmetic::Modulo, &cast(a)?, &cast(b)?)
}

fn div(of: &[Value]) -> std::result::Result<Value, SqlError> {
    let [a, b] = of else { return Ok(Value::Null) };
    let (a, b) = (as_numeric(a)?, as_numeric(b)?);
    match (&a, &b) {
        (Value::Numeric(dividend), Value::Numeric(divisor)) => {
            let rest = dividend.remainder(divisor)?;
            let quotient = dividend.subtract(&rest)?.divide(divisor)?;
            Ok(Value::Numeric(quotient.rounded(0)))
        }
        _ => Ok(Value::Null),
    }
}

fn timezone_type(of: &[SqlType]) -> SqlType {
    match of.get(1) {
        Some(SqlType::Timestamptz) => SqlType::Timestamp,
        _ => SqlType::Timestamptz,
    }
}

fn timezone(of: &[Value]) -> std::result::Result<Value, SqlError> {
    let [zone, value] = of else { return Ok(Value::Null) };
    let Value::Text(zone) = zone else { return Ok(Value::Null) };
    let is_utc = ["utc", "gmt", "etc/utc", "z", "zulu", "utc0", "+00", "+00:00", "0"]
        .contains(&zone.to_ascii_lowercase().as_str());
    if !is_utc {
        let error = SqlError::unsupported(format!("time zone \"{zone}\""));
        return Err(error.with_hint("The time zone is always UTC."));
    }
    Ok(match value {
        Value::Timestamptz(micros) => Value::Timestamp(*micros),
        Value::Timestamp(micros) => Value::Timestamptz(*micros),
        _ => Value::Null,
    })
}

/// A JSON object of alternating names and values.
fn json_object(of: &[Value]) -> std::result::Result<Value, SqlError> {
    if of.len() % 2 == 1 {
        let message = "argument list must have even number of elements";
        return Err(SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message));
    }
    let mut text = "{".to_owned();
    for pair in of.chunks(2) {
        let [name, value] = pair else { continue };
        let Some(name) = name.to_text() else {
            return Err(SqlError::new(sqlstate::NULL_VALUE_NOT_ALLOWED, "argument 1 cannot be null"));
        };
        if text.len() > 1 {
            text.push(',');
        }
        sql::quote_json(&name, &mut text);
        text.push(':');
        match value {
            Value::Null => text.push_str("null"),
            Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
            Value::Jsonb(value) => text.push_str(value),
            Value::Int2(_) | Value::Int4(_) | Value::Int8(_) | Value::Numeric(_) => value.write_text(&mut text),
            value => sql::quote_json(&value.to_text().unwrap_or_default(), &mut text),
        }
    }
    text.push('}');
    sql::normalize_json(&text).map(Value::Jsonb)
}

fn json_type(of: &[Value]) -> std::result::Result<Value, SqlError> {
    let [Value::Jsonb(text) | Value::Text(text)] = of else { return Ok(Value::Null) };
    let kind = match text.trim_start().chars().next() {
        Some('{') => "object",
        Some('[') => "array",
        Some('"') => "string",
        Some('t' | 'f') => "boolean",
        Some('n') => "null",
        _ => "number",
    };
    Ok(Value::Text(kind.to_owned()))
}
