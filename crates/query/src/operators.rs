//! Casts and operators with PostgreSQL's semantics. Those of DataFusion wrap on overflow and truncate fractions, and it
//! has neither `date - date` nor `->`.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::{Array as _, ArrayRef};
use datafusion::arrow::compute::kernels::numeric;
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Cast as PlanCast, ScalarFunction};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawAggregateExpr, RawBinaryExpr};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility, binary_expr,
};
use sql::cast::Context;
use sql::operators::{Arithmetic, Operands, apply, operands};
use sql::{SqlError, SqlType, Value, sqlstate};
use sqlparser::ast::BinaryOperator;

use crate::error::wrap;
use crate::functions::{FUNCTIONS, VECTOR};
use crate::values::{
    NUMERIC_PRECISION, NUMERIC_SCALE, arrow_type, column, field_ref, is_vector, scalar, type_of, value_of, values,
};

/// Types of parameters that were inferred, by their numbers from 0.
pub(crate) type Inferred = Arc<Mutex<Vec<Option<SqlType>>>>;

/// The SQL type of an expression; `None` for NULL, literals of text, and parameters without a type.
pub(crate) fn sql_type(expression: &Expr, schema: &DFSchema) -> Option<SqlType> {
    match expression {
        Expr::Literal(ScalarValue::Utf8(_) | ScalarValue::Null, None) => None,
        Expr::Literal(ScalarValue::Int64(Some(number)), None) => {
            Some(if i32::try_from(*number).is_ok() { SqlType::Int4 } else { SqlType::Int8 })
        }
        Expr::Literal(ScalarValue::UInt64(_), None) => Some(SqlType::Numeric(None)),
        Expr::Placeholder(placeholder) if placeholder.field.is_none() => None,
        Expr::Alias(alias) => sql_type(&alias.expr, schema),
        Expr::ScalarFunction(of) if of.func.inner().downcast_ref::<Function>().is_some() => {
            of.func.inner().downcast_ref::<Function>().map(|function| function.result.clone())
        }
        // The type of the branches. Literals have none.
        _ => {
            let (_, field) = expression.to_field(schema).ok()?;
            (*field.data_type() != DataType::Null).then(|| type_of(&field))
        }
    }
}

/// A function that is evaluated with SQL values, row by row, unless Arrow has one with the same semantics.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    kind: Kind,
    /// The SQL types of the arguments.
    arguments: Vec<SqlType>,
    result: SqlType,
    signature: Signature,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Cast,
    Implicit,
    /// Removes spaces at the end.
    Unpadded,
    Arithmetic(Arithmetic),
    Concatenate,
    /// `->`, `->>`
    JsonMember {
        is_text: bool,
    },
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Cast => "cast",
            Self::Implicit => "convert",
            Self::Unpadded => "unpadded",
            Self::Arithmetic(Arithmetic::Add) => "+",
            Self::Arithmetic(Arithmetic::Subtract) => "-",
            Self::Arithmetic(Arithmetic::Multiply) => "*",
            Self::Arithmetic(Arithmetic::Divide) => "/",
            Self::Arithmetic(Arithmetic::Modulo) => "%",
            Self::Concatenate => "||",
            Self::JsonMember { is_text: false } => "->",
            Self::JsonMember { is_text: true } => "->>",
        }
    }
}

/// An expression that calls a function.
fn call(kind: Kind, arguments: Vec<SqlType>, result: SqlType, expressions: Vec<Expr>) -> Expr {
    let function =
        Function { kind, arguments, result, signature: Signature::any(expressions.len(), Volatility::Immutable) };
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::new_from_impl(function)), expressions))
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn schema_name(&self, arguments: &[Expr]) -> Result<String> {
        let shown: Result<Vec<String>> =
            arguments.iter().map(|argument| Ok(argument.schema_name().to_string())).collect();
        let shown = shown?;
        Ok(match (self.kind, &shown[..]) {
            (Kind::Cast | Kind::Implicit, [operand]) => format!("{operand}::{}", self.result),
            (kind, [left, right]) => format!("({left} {} {right})", kind.name()),
            (kind, shown) => format!("{}({})", kind.name(), shown.join(", ")),
        })
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(arrow_type(&self.result))
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(field_ref(self.name(), &self.result))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_scalar = args.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { args.number_rows };
        if let (Kind::Cast | Kind::Implicit, true, [operand]) = (self.kind, self.result.is_text(), &args.args[..])
            && args.arg_fields.first().is_some_and(|field| is_vector(field))
            && let Some(vector) = FUNCTIONS.scalar.get(VECTOR)
        {
            return vector.invoke_with_args(ScalarFunctionArgs { args: vec![operand.clone()], ..args });
        }
        let arrays: Vec<ArrayRef> = args.args.iter().map(|argument| argument.to_array(rows)).collect::<Result<_>>()?;
        let found = match self.by_arrow(&arrays)? {
            Some(found) => found,
            None => {
                let types: Vec<SqlType> = args.arg_fields.iter().map(|field| type_of(field)).collect();
                self.by_rows(&arrays, &types).map_err(wrap)?
            }
        };
        if is_scalar {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&found, 0)?));
        }
        Ok(ColumnarValue::Array(found))
    }
}

impl Function {
    /// The result by Arrow's functions, where they check overflows and have the same semantics.
    fn by_arrow(&self, arrays: &[ArrayRef]) -> Result<Option<ArrayRef>> {
        let wanted = arrow_type(&self.result);
        match (self.kind, arrays) {
            (Kind::Cast | Kind::Implicit, [operand]) => {
                let from = operand.data_type();
                let is_widening = matches!(
                    (from, &wanted),
                    (DataType::Int16, DataType::Int32 | DataType::Int64 | DataType::Float64)
                        | (DataType::Int32, DataType::Int64 | DataType::Float64)
                        | (DataType::Int64 | DataType::Float32, DataType::Float64)
                );
                let is_same =
                    *from == wanted && self.result.modifier() == -1 && self.arguments == [self.result.clone()];
                if is_same {
                    return Ok(Some(Arc::clone(operand)));
                }
                Ok(is_widening.then(|| datafusion::arrow::compute::cast(operand, &wanted)).transpose()?)
            }
            (Kind::Arithmetic(operator), [left, right]) if self.result.is_integer() && *left.data_type() == wanted => {
                if left.data_type() != right.data_type() {
                    return Ok(None);
                }
                let out_of_range =
                    || SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, format!("{} out of range", self.result));
                let result = match operator {
                    Arithmetic::Add => numeric::add(left, right),
                    Arithmetic::Subtract => numeric::sub(left, right),
                    Arithmetic::Multiply => numeric::mul(left, right),
                    Arithmetic::Divide => numeric::div(left, right),
                    Arithmetic::Modulo => numeric::rem(left, right),
                };
                use datafusion::arrow::error::ArrowError;
                match result {
                    Ok(result) => Ok(Some(result)),
                    Err(ArrowError::ArithmeticOverflow(_)) => Err(wrap(out_of_range())),
                    Err(other) => Err(other.into()),
                }
            }
            _ => Ok(None),
        }
    }

    fn by_rows(&self, arrays: &[ArrayRef], types: &[SqlType]) -> std::result::Result<ArrayRef, SqlError> {
        let columns: Vec<Vec<Value>> =
            arrays.iter().zip(types).map(|(array, of)| values(array, of)).collect::<std::result::Result<_, _>>()?;
        let rows = columns.first().map_or(0, Vec::len);
        // Padding is not significant in other types of text.
        let is_cast = matches!(self.kind, Kind::Cast | Kind::Implicit);
        let is_unpadded = is_cast
            && types.first().is_some_and(is_padded)
            && matches!(self.result, SqlType::Text | SqlType::Varchar(_));
        let mut found = Vec::with_capacity(rows);
        for row in 0..rows {
            let mut arguments = columns.iter().map(|column| column.get(row).cloned().unwrap_or(Value::Null));
            let mut first = arguments.next().unwrap_or(Value::Null);
            if is_unpadded && let Value::Text(text) = &first {
                first = Value::Text(text.trim_end_matches(' ').to_owned());
            }
            found.push(self.evaluate(first, arguments.next())?);
        }
        column(&self.result, found.iter())
    }

    fn evaluate(&self, first: Value, second: Option<Value>) -> std::result::Result<Value, SqlError> {
        let second = second.unwrap_or(Value::Null);
        let converted = |value: Value, number: usize| match self.arguments.get(number) {
            Some(to) => sql::cast::cast(value, to, Context::Implicit),
            None => Ok(value),
        };
        match self.kind {
            Kind::Cast => sql::cast::cast(first, &self.result, Context::Explicit),
            Kind::Implicit => sql::cast::cast(first, &self.result, Context::Assignment),
            Kind::Unpadded => Ok(match first {
                Value::Text(text) => Value::Text(text.trim_end_matches(' ').to_owned()),
                other => other,
            }),
            Kind::Arithmetic(operator) => apply(operator, &converted(first, 0)?, &converted(second, 1)?),
            Kind::Concatenate => Ok(match (first, second) {
                (Value::Null, _) | (_, Value::Null) => Value::Null,
                (Value::Bytea(a), Value::Bytea(b)) => Value::Bytea([a, b].concat().into()),
                (a, b) => {
                    let mut text = a.to_text().unwrap_or_default();
                    b.write_text(&mut text);
                    Value::Text(text)
                }
            }),
            Kind::JsonMember { is_text } => Ok(match (first, second) {
                (Value::Jsonb(text), key) => match sql::json_member(&text, &key)? {
                    Some(member) if is_text => sql::json_text(&member)?.map_or(Value::Null, Value::Text),
                    Some(member) => Value::Jsonb(member),
                    None => Value::Null,
                },
                _ => Value::Null,
            }),
        }
    }
}

/// A value converted as PostgreSQL does without being asked.
pub(crate) fn converted(operand: Expr, to: &SqlType) -> Expr {
    call(Kind::Implicit, Vec::new(), to.clone(), vec![operand])
}

/// The function of a cast by its name in a rewritten statement: `::` and the type's identifier and modifier.
pub(crate) fn cast_function(name: &str) -> Option<Arc<ScalarUDF>> {
    let to = cast_type(name)?;
    let function = Function {
        kind: Kind::Cast,
        arguments: Vec::new(),
        result: to,
        signature: Signature::any(1, Volatility::Immutable),
    };
    Some(Arc::new(ScalarUDF::new_from_impl(function)))
}

/// The type to which the function of this name casts.
pub(crate) fn cast_type(name: &str) -> Option<SqlType> {
    let (oid, modifier) = name.strip_prefix("::")?.split_once(':')?;
    SqlType::from_oid(oid.parse().ok()?)?.with_modifier(modifier.parse().ok()?)
}

/// The operand of a cast of a literal to the type that it has.
pub(crate) fn operand_of_same_type(cast: &ScalarFunction) -> Option<Expr> {
    let function = cast.func.inner().downcast_ref::<Function>()?;
    match (function.kind, &cast.args[..]) {
        (Kind::Cast | Kind::Implicit, [operand @ Expr::Literal(..)]) => {
            let (_, field) = operand.to_field(&DFSchema::empty()).ok()?;
            let is_same = *field.data_type() == arrow_type(&function.result) && type_of(&field) == function.result;
            is_same.then(|| operand.clone())
        }
        _ => None,
    }
}

/// The literal for a cast of an integer literal to `integer`.
pub(crate) fn narrow_literal(cast: &ScalarFunction) -> Option<Expr> {
    let function = cast.func.inner().downcast_ref::<Function>()?;
    match (function.kind, &function.result, &cast.args[..]) {
        (Kind::Cast, SqlType::Int4, [Expr::Literal(ScalarValue::Int64(Some(number)), None)]) => {
            i32::try_from(*number).ok().map(datafusion::logical_expr::lit)
        }
        _ => None,
    }
}

/// The name of a cast in a rewritten statement.
pub(crate) fn cast_name(to: &SqlType) -> String {
    format!("::{}:{}", to.oid(), to.modifier())
}

/// The cast of an assignment. An explicit one cuts text at a declared length; this one fails, as in PostgreSQL.
pub(crate) fn assignment(from: Option<SqlType>, to: &SqlType, operand: Expr) -> Expr {
    call(Kind::Implicit, from.into_iter().collect(), to.clone(), vec![operand])
}

/// Plans operators and aggregate functions.
#[derive(Debug)]
pub(crate) struct Operators {
    pub(crate) inferred: Inferred,
}

impl Operators {
    /// The operand with this type: a literal is parsed, and a parameter gets the type.
    fn typed(&self, operand: Expr, to: &SqlType) -> Result<Expr> {
        match operand {
            Expr::Literal(ScalarValue::Utf8(Some(text)), None) if !to.is_text() => {
                let value = to.parse(&text).map_err(wrap)?;
                let (scalar, metadata) = scalar(&value, to).map_err(wrap)?;
                Ok(Expr::Literal(scalar, metadata))
            }
            Expr::Literal(ScalarValue::Utf8(Some(ref text)), None) if matches!(to, SqlType::Char(_)) => {
                // A longer text equals no value of the type.
                let Ok(value) = to.parse(text) else { return Ok(operand) };
                let (scalar, metadata) = scalar(&value, to).map_err(wrap)?;
                Ok(Expr::Literal(scalar, metadata))
            }
            Expr::Placeholder(mut placeholder) if placeholder.field.is_none() => {
                let number = placeholder.id.trim_start_matches('$').parse::<usize>().ok();
                let mut inferred = self.inferred.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(slot) = number.and_then(|number| inferred.get_mut(number.checked_sub(1)?)) {
                    slot.get_or_insert_with(|| to.clone());
                }
                placeholder.field = Some(field_ref("", to));
                Ok(Expr::Placeholder(placeholder))
            }
            other => Ok(other),
        }
    }

    fn arithmetic(
        &self,
        operator: Arithmetic,
        raw: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        let RawBinaryExpr { op, left, right } = raw;
        let (a, b) = match (sql_type(&left, schema), sql_type(&right, schema)) {
            (Some(a), Some(b)) => (a, b),
            (Some(a), None) => {
                let b = unknown_operand(&a, operator);
                (a, b)
            }
            (None, Some(b)) => {
                let a = unknown_operand(&b, operator);
                (a, b)
            }
            (None, None) => return Ok(PlannerResult::Original(RawBinaryExpr { op, left, right })),
        };
        let (left, right) = (self.typed(left, &a)?, self.typed(right, &b)?);
        let Some(Operands { left: to_left, right: to_right, result }) = operands(operator, &a, &b) else {
            let message = format!("operator does not exist: {a} {op} {b}");
            return Err(wrap(SqlError::new(sqlstate::UNDEFINED_FUNCTION, message)));
        };
        let result = match (result, scale_of(&a, &left), scale_of(&b, &right)) {
            (SqlType::Numeric(_), Some(a), Some(b)) => SqlType::Numeric(result_scale(operator, a, b)),
            (other, ..) => other,
        };
        let left = widened(left, &a, &to_left);
        let right = widened(right, &b, &to_right);
        Ok(PlannerResult::Planned(call(Kind::Arithmetic(operator), vec![to_left, to_right], result, vec![left, right])))
    }

    fn comparison(&self, raw: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let RawBinaryExpr { op, left, right } = raw;
        let (a, b) = (sql_type(&left, schema), sql_type(&right, schema));
        let (left, right) = match (&a, &b) {
            (Some(a), None) => (left, self.typed(right, &unpadded(a))?),
            (None, Some(b)) => (self.typed(left, &unpadded(b))?, right),
            (Some(a), Some(b))
                if a.is_text() && (b.is_number() || *b == SqlType::Bool)
                    || b.is_text() && (a.is_number() || *a == SqlType::Bool) =>
            {
                let message = format!("operator does not exist: {a} {op} {b}");
                let error = SqlError::new(sqlstate::UNDEFINED_FUNCTION, message);
                let hint =
                    "No operator matches the given name and argument types. You might need to add explicit type casts.";
                return Err(wrap(error.with_hint(hint)));
            }
            // Numbers are compared with `real` as double precision.
            (Some(SqlType::Float4), Some(b)) if b.is_number() && *b != SqlType::Float4 => {
                (converted(left, &SqlType::Float8), converted(right, &SqlType::Float8))
            }
            (Some(a), Some(SqlType::Float4)) if a.is_number() && *a != SqlType::Float4 => {
                (converted(left, &SqlType::Float8), converted(right, &SqlType::Float8))
            }
            (Some(SqlType::Date), Some(to @ (SqlType::Timestamp | SqlType::Timestamptz))) => {
                (converted(left, to), right)
            }
            (Some(to @ (SqlType::Timestamp | SqlType::Timestamptz)), Some(SqlType::Date)) => {
                (left, converted(right, to))
            }
            // Padding is not significant.
            (Some(a), Some(b)) if a.is_text() && b.is_text() && a != b && [a, b].iter().any(|of| is_padded(of)) => {
                (without_padding(left, a), without_padding(right, b))
            }
            _ => (left, right),
        };
        Ok(PlannerResult::Original(RawBinaryExpr { op, left, right }))
    }
}

/// A comparison, as of a statement.
pub(crate) fn compared(left: Expr, op: Operator, right: Expr, schema: &DFSchema) -> Result<Expr> {
    let symbol = match op {
        Operator::Eq => BinaryOperator::Eq,
        Operator::NotEq => BinaryOperator::NotEq,
        Operator::Lt => BinaryOperator::Lt,
        Operator::LtEq => BinaryOperator::LtEq,
        Operator::Gt => BinaryOperator::Gt,
        Operator::GtEq => BinaryOperator::GtEq,
        other => return Err(wrap(SqlError::unsupported(format!("{other} with a subquery")))),
    };
    let operators = Operators { inferred: Inferred::default() };
    let PlannerResult::Original(RawBinaryExpr { left, right, .. }) =
        operators.comparison(RawBinaryExpr { op: symbol, left, right }, schema)?
    else {
        return Err(wrap(SqlError::unsupported("this comparison with a subquery")));
    };
    Ok(binary_expr(left, op, right))
}

/// The digits after the point of a number's type, if they are known.
fn scale_of(of: &SqlType, expression: &Expr) -> Option<u16> {
    match (of, expression) {
        (SqlType::Int2 | SqlType::Int4 | SqlType::Int8, _) => Some(0),
        (SqlType::Numeric(Some((_, scale))), _) => Some(*scale),
        (_, Expr::Literal(ScalarValue::Decimal128(_, _, scale), None)) => u16::try_from(*scale).ok(),
        _ => None,
    }
}

/// The precision and scale of a result, if PostgreSQL would show that scale.
fn result_scale(operator: Arithmetic, a: u16, b: u16) -> Option<(u16, u16)> {
    let scale = match operator {
        Arithmetic::Add | Arithmetic::Subtract | Arithmetic::Modulo => a.max(b),
        Arithmetic::Multiply => a + b,
        Arithmetic::Divide => return None,
    };
    (scale <= NUMERIC_SCALE as u16).then_some((u16::from(NUMERIC_PRECISION), scale))
}

fn is_padded(of: &SqlType) -> bool {
    matches!(of, SqlType::Char(_))
}

/// A text without the spaces that pad it.
fn without_padding(operand: Expr, of: &SqlType) -> Expr {
    if is_padded(of) { call(Kind::Unpadded, vec![of.clone()], SqlType::Text, vec![operand]) } else { operand }
}

/// `char(n)` is compared as such, so that a literal is padded.
fn unpadded(of: &SqlType) -> SqlType {
    match of {
        SqlType::Varchar(_) => SqlType::Text,
        SqlType::Numeric(_) => SqlType::Numeric(None),
        other => other.clone(),
    }
}

/// The type of a literal or parameter by that of the other operand.
fn unknown_operand(other: &SqlType, operator: Arithmetic) -> SqlType {
    let is_sum = matches!(operator, Arithmetic::Add | Arithmetic::Subtract);
    match other {
        SqlType::Timestamp | SqlType::Timestamptz if is_sum => SqlType::Interval,
        SqlType::Interval if !is_sum => SqlType::Float8,
        SqlType::Numeric(_) => SqlType::Numeric(None),
        other => other.clone(),
    }
}

/// An operand with the type that its operator needs. Operators convert values of other types themselves.
fn widened(operand: Expr, from: &SqlType, to: &SqlType) -> Expr {
    match &operand {
        Expr::Literal(ScalarValue::Int64(Some(number)), None) => match to {
            SqlType::Int2 => i16::try_from(*number).map_or_else(|_| operand.clone(), datafusion::logical_expr::lit),
            SqlType::Int4 => i32::try_from(*number).map_or_else(|_| operand.clone(), datafusion::logical_expr::lit),
            SqlType::Float8 => datafusion::logical_expr::lit(*number as f64),
            _ => operand,
        },
        _ if from != to && to.is_integer() => Expr::Cast(PlanCast::new(Box::new(operand), arrow_type(to))),
        _ => operand,
    }
}

impl ExprPlanner for Operators {
    fn plan_binary_op(&self, raw: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        use BinaryOperator as B;
        match &raw.op {
            B::Plus => self.arithmetic(Arithmetic::Add, raw, schema),
            B::Minus => self.arithmetic(Arithmetic::Subtract, raw, schema),
            B::Multiply => self.arithmetic(Arithmetic::Multiply, raw, schema),
            B::Divide => self.arithmetic(Arithmetic::Divide, raw, schema),
            B::Modulo => self.arithmetic(Arithmetic::Modulo, raw, schema),
            B::Eq | B::NotEq | B::Lt | B::LtEq | B::Gt | B::GtEq => self.comparison(raw, schema),
            B::StringConcat => {
                let (a, b) = (sql_type(&raw.left, schema), sql_type(&raw.right, schema));
                let is_array = |of: &Option<SqlType>| matches!(of, Some(SqlType::Array(_)));
                if is_array(&a) || is_array(&b) {
                    return Ok(PlannerResult::Original(raw));
                }
                let is_json = |of: &Option<SqlType>| matches!(of, None | Some(SqlType::Jsonb));
                if is_json(&a) && is_json(&b) && (a.is_some() || b.is_some()) {
                    return Err(wrap(SqlError::unsupported("jsonb || jsonb")));
                }
                let is_bytes = |of: &Option<SqlType>| matches!(of, None | Some(SqlType::Bytea));
                let is_binary = is_bytes(&a) && is_bytes(&b) && (a.is_some() || b.is_some());
                let to = if is_binary { SqlType::Bytea } else { SqlType::Text };
                let is_text = |of: &Option<SqlType>| of.as_ref().is_none_or(SqlType::is_text);
                if !is_binary && !is_text(&a) && !is_text(&b) {
                    let shown =
                        |of: &Option<SqlType>| of.as_ref().map_or_else(|| "unknown".to_owned(), SqlType::to_string);
                    let message = format!("operator does not exist: {} || {}", shown(&a), shown(&b));
                    return Err(wrap(SqlError::new(sqlstate::UNDEFINED_FUNCTION, message)));
                }
                let (left, right) = (self.typed(raw.left, &to)?, self.typed(raw.right, &to)?);
                let text = |operand: Expr, of: &Option<SqlType>| match of {
                    Some(of) => without_padding(operand, of),
                    None => operand,
                };
                let (left, right) = (text(left, &a), text(right, &b));
                Ok(PlannerResult::Planned(call(Kind::Concatenate, Vec::new(), to, vec![left, right])))
            }
            B::Arrow | B::LongArrow if sql_type(&raw.left, schema) == Some(SqlType::Jsonb) => {
                let is_text = raw.op == B::LongArrow;
                let result = if is_text { SqlType::Text } else { SqlType::Jsonb };
                Ok(PlannerResult::Planned(call(
                    Kind::JsonMember { is_text },
                    Vec::new(),
                    result,
                    vec![raw.left, raw.right],
                )))
            }
            _ => Ok(PlannerResult::Original(raw)),
        }
    }

    fn plan_aggregate(&self, raw: RawAggregateExpr) -> Result<PlannerResult<RawAggregateExpr>> {
        Ok(PlannerResult::Original(raw))
    }
}

/// The value of a literal expression.
pub(crate) fn literal(expression: &Expr, of: &SqlType) -> Option<Value> {
    match expression {
        Expr::Literal(scalar, _) if scalar.is_null() => Some(Value::Null),
        Expr::Literal(scalar, _) => value_of(scalar, of).ok(),
        _ => None,
    }
}
