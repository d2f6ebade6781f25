//! Resolution of names and types in expressions.
//!
//! It covers the expressions of statements by key. For all others it returns [`Unbound::NeedsPlanner`]. That is not an
//! error: the statement is then planned.

use sqlparser::ast::{self, BinaryOperator, CastKind, Expr, UnaryOperator};

use crate::cast::{Context, cannot_cast, cast, is_allowed};
use crate::error::{SqlError, sqlstate};
use crate::expression::{Arithmetic, Comparison, Expression, Function};
use crate::ids::SequenceId;
use crate::operators::{Operands, common_number, operands};
use crate::parse::{fold, position, sql_type};
use crate::schema::{Schema, Table, undefined_column};
use crate::types::SqlType;
use crate::value::Value;

pub use base::limits::sql::PARAMETERS_MAX;

/// Maximum nesting of bound expressions.
const DEPTH_MAX: usize = 150;

/// Why an expression was not bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unbound {
    /// Direct execution does not support it. It may be valid.
    NeedsPlanner,
    /// It is not valid.
    Error(SqlError),
}

impl From<SqlError> for Unbound {
    fn from(error: SqlError) -> Self {
        Self::Error(error)
    }
}

/// An expression and its type; without a type, a literal, NULL or parameter that takes the type of its context.
#[derive(Clone, Debug)]
pub(crate) struct Typed {
    pub(crate) expression: Expression,
    pub(crate) sql_type: Option<SqlType>,
}

impl Typed {
    fn new(expression: Expression, sql_type: SqlType) -> Self {
        Self { expression, sql_type: Some(sql_type) }
    }
}

/// The names that expressions can use, and the types of parameters as far as they are known.
pub(crate) struct Binder<'a> {
    pub(crate) schema: &'a Schema,
    /// The text of the statement, for positions in errors.
    pub(crate) text: &'a str,
    pub(crate) parameters: Vec<Option<SqlType>>,
    /// The table with the visible columns, and its name in the statement.
    pub(crate) table: Option<(&'a Table, String)>,
    /// The values of functions without arguments that depend on the session.
    pub(crate) constants: &'a [(&'a str, Value)],
    /// `excluded` is visible too.
    pub(crate) has_excluded: bool,
    /// The nesting of the expression that is being bound.
    depth: usize,
}

fn boxed(expression: Expression) -> Box<Expression> {
    Box::new(expression)
}

impl<'a> Binder<'a> {
    pub(crate) fn new(schema: &'a Schema, text: &'a str, declared: &[Option<SqlType>]) -> Self {
        Self { schema, text, parameters: declared.to_vec(), table: None, constants: &[], has_excluded: false, depth: 0 }
    }

    /// Binds an expression. One that is nested deeply is left to a planner, because this and the evaluation are recursive.
    pub(crate) fn bind(&mut self, expression: &Expr) -> Result<Typed, Unbound> {
        if self.depth >= DEPTH_MAX {
            return Err(Unbound::NeedsPlanner);
        }
        self.depth += 1;
        let bound = self.bind_here(expression);
        self.depth -= 1;
        bound
    }

    fn bind_here(&mut self, expression: &Expr) -> Result<Typed, Unbound> {
        Ok(match expression {
            Expr::Nested(inner) => self.bind(inner)?,
            Expr::Value(value) => self.literal(&value.value)?,
            Expr::TypedString(typed) => {
                let to = sql_type(&typed.data_type)?;
                let text = typed.value.value.clone().into_string().ok_or(Unbound::NeedsPlanner)?;
                Typed::new(Expression::Constant(to.parse(&text)?), to)
            }
            Expr::Interval(interval) if interval.leading_field.is_none() && interval.last_field.is_none() => {
                let Expr::Value(value) = &*interval.value else { return Err(Unbound::NeedsPlanner) };
                let text = value.value.clone().into_string().ok_or(Unbound::NeedsPlanner)?;
                Typed::new(Expression::Constant(SqlType::Interval.parse(&text)?), SqlType::Interval)
            }
            Expr::Identifier(name) => self.column(None, name)?,
            Expr::CompoundIdentifier(parts) => match &parts[..] {
                [table, column] => self.column(Some(&fold(table)), column)?,
                _ => return Err(Unbound::NeedsPlanner),
            },
            Expr::UnaryOp { op, expr } => self.unary(op, expr)?,
            Expr::BinaryOp { left, op, right } => self.binary(left, op, right)?,
            Expr::IsNull(inner) => Typed::new(Expression::IsNull(boxed(self.bind_any(inner)?)), SqlType::Bool),
            Expr::IsNotNull(inner) => {
                let is_null = Expression::IsNull(boxed(self.bind_any(inner)?));
                Typed::new(Expression::Not(boxed(is_null)), SqlType::Bool)
            }
            Expr::IsTrue(inner) => Typed::new(Expression::Is(boxed(self.condition(inner)?), true), SqlType::Bool),
            Expr::IsFalse(inner) => Typed::new(Expression::Is(boxed(self.condition(inner)?), false), SqlType::Bool),
            Expr::IsNotTrue(inner) => {
                let is = Expression::Is(boxed(self.condition(inner)?), true);
                Typed::new(Expression::Not(boxed(is)), SqlType::Bool)
            }
            Expr::IsDistinctFrom(a, b) => self.distinct(a, b)?,
            Expr::IsNotDistinctFrom(a, b) => {
                let distinct = self.distinct(a, b)?;
                Typed::new(Expression::Not(boxed(distinct.expression)), SqlType::Bool)
            }
            Expr::Between { expr, negated: false, low, high } => self.between(expr, low, high)?,
            Expr::InList { expr, list, negated } => self.in_list(expr, list, *negated)?,
            Expr::Cast { kind: CastKind::Cast | CastKind::DoubleColon, expr, data_type, format: None, .. } => {
                let to = sql_type(data_type)?;
                let inner = self.bind(expr)?;
                Typed::new(self.coerce(inner, &to, Context::Explicit)?, to)
            }
            Expr::Function(function) => self.function(function)?,
            Expr::Case { operand: None, conditions, else_result, .. } => {
                self.case(conditions, else_result.as_deref())?
            }
            _ => return Err(Unbound::NeedsPlanner),
        })
    }

    /// An expression of any type; a parameter needs one.
    fn bind_any(&mut self, expression: &Expr) -> Result<Expression, Unbound> {
        let typed = self.bind(expression)?;
        match (&typed.expression, &typed.sql_type) {
            (Expression::Parameter(_), None) => Err(Unbound::NeedsPlanner),
            _ => Ok(typed.expression),
        }
    }

    /// An expression of type boolean.
    pub(crate) fn condition(&mut self, expression: &Expr) -> Result<Expression, Unbound> {
        let typed = self.bind(expression)?;
        if let Some(other) = typed.sql_type.as_ref().filter(|other| **other != SqlType::Bool) {
            let message = format!("argument must be type boolean, not type {}", other.base_name());
            return Err(SqlError::new(sqlstate::DATATYPE_MISMATCH, message).into());
        }
        self.coerce(typed, &SqlType::Bool, Context::Implicit)
    }

    /// An expression for a column, or `None` for `DEFAULT`.
    pub(crate) fn assigned(&mut self, name: &str, to: &SqlType, value: &Expr) -> Result<Option<Expression>, Unbound> {
        if is_default(value) {
            return Ok(None);
        }
        let typed = self.bind(value)?;
        if let Some(from) = &typed.sql_type
            && !is_allowed(from, to, Context::Assignment)
        {
            let (to, from) = (to.base_name(), from.base_name());
            let message = format!("column \"{name}\" is of type {to} but expression is of type {from}");
            let error = SqlError::new(sqlstate::DATATYPE_MISMATCH, message);
            return Err(error.with_hint("You will need to rewrite or cast the expression.").into());
        }
        self.coerce(typed, to, Context::Assignment).map(Some)
    }

    fn literal(&mut self, value: &ast::Value) -> Result<Typed, Unbound> {
        Ok(match value {
            ast::Value::Number(..) => {
                let text = value.to_string();
                let integer = text.parse::<i64>().ok();
                match (integer.and_then(|number| i32::try_from(number).ok()), integer) {
                    (Some(number), _) => Typed::new(Expression::Constant(Value::Int4(number)), SqlType::Int4),
                    (_, Some(number)) => Typed::new(Expression::Constant(Value::Int8(number)), SqlType::Int8),
                    _ => {
                        let number = Value::Numeric(text.parse()?);
                        Typed::new(Expression::Constant(number), SqlType::Numeric(None))
                    }
                }
            }
            ast::Value::Boolean(value) => Typed::new(Expression::Constant(Value::Bool(*value)), SqlType::Bool),
            ast::Value::Null => Typed { expression: Expression::Constant(Value::Null), sql_type: None },
            ast::Value::SingleQuotedString(text)
            | ast::Value::EscapedStringLiteral(text)
            | ast::Value::UnicodeStringLiteral(text) => {
                Typed { expression: Expression::Constant(Value::Text(text.clone())), sql_type: None }
            }
            ast::Value::DollarQuotedString(text) => {
                Typed { expression: Expression::Constant(Value::Text(text.value.clone())), sql_type: None }
            }
            ast::Value::Placeholder(name) => {
                let number = name.strip_prefix('$').and_then(|number| number.parse::<usize>().ok());
                let number = number.filter(|number| (1..=PARAMETERS_MAX).contains(number)).ok_or_else(|| {
                    SqlError::new(sqlstate::UNDEFINED_PARAMETER, format!("there is no parameter {name}"))
                })?;
                if self.parameters.len() < number {
                    self.parameters.resize(number, None);
                }
                let sql_type = self.parameters[number - 1].clone();
                Typed { expression: Expression::Parameter(number - 1), sql_type }
            }
            _ => return Err(Unbound::NeedsPlanner),
        })
    }

    fn column(&mut self, qualifier: Option<&str>, name: &ast::Ident) -> Result<Typed, Unbound> {
        let Some((table, alias)) = &self.table else { return Err(self.undefined(name, None).into()) };
        let is_excluded = self.has_excluded && qualifier == Some("excluded");
        if !is_excluded && qualifier.is_some_and(|qualifier| qualifier != alias) {
            return Err(Unbound::NeedsPlanner);
        }
        let folded = fold(name);
        let Some(number) = table.columns.iter().position(|column| column.name == folded && !column.is_hidden) else {
            return Err(self.undefined(name, Some(table)).into());
        };
        let expression = if is_excluded { Expression::Excluded(number) } else { Expression::Column(number) };
        Ok(Typed::new(expression, table.columns[number].sql_type.clone()))
    }

    fn undefined(&self, name: &ast::Ident, table: Option<&Table>) -> SqlError {
        let folded = fold(name);
        let error = table.map_or_else(
            || SqlError::new(sqlstate::UNDEFINED_COLUMN, format!("column \"{folded}\" does not exist")),
            |table| undefined_column(table, &folded),
        );
        error.at(position(self.text, name.span.start))
    }

    /// Gives an expression a type.
    pub(crate) fn coerce(&mut self, typed: Typed, to: &SqlType, context: Context) -> Result<Expression, Unbound> {
        let Typed { expression, sql_type } = typed;
        let Some(from) = sql_type else {
            return Ok(match expression {
                Expression::Constant(Value::Text(text)) if context == Context::Explicit && to.is_text() => {
                    Expression::Constant(cast(Value::Text(text), to, context)?)
                }
                Expression::Constant(Value::Text(text)) => Expression::Constant(to.parse(&text)?),
                Expression::Parameter(number) => {
                    let base = without_length(to);
                    self.parameters[number] = Some(base.clone());
                    self.coerce(Typed::new(Expression::Parameter(number), base), to, context)?
                }
                other => other,
            });
        };
        if from == *to {
            return Ok(expression);
        }
        if !is_allowed(&from, to, context) {
            return Err(cannot_cast(Some(&from), to).into());
        }
        // The cast to `text` removes the padding.
        let is_unpadded = matches!(from, SqlType::Char(_)) && !matches!(to, SqlType::Char(_)) && to.is_text();
        let expression = if is_unpadded { Expression::Unpadded(boxed(expression)) } else { expression };
        if let Expression::Constant(value) = expression {
            return Ok(Expression::Constant(cast(value, to, context)?));
        }
        Ok(Expression::Cast(boxed(expression), to.clone(), context))
    }

    fn unary(&mut self, operator: &UnaryOperator, operand: &Expr) -> Result<Typed, Unbound> {
        match operator {
            UnaryOperator::Not => Ok(Typed::new(Expression::Not(boxed(self.condition(operand)?)), SqlType::Bool)),
            UnaryOperator::Minus => {
                // A literal with its sign, so that the least number is of its type.
                if let Expr::Value(value) = operand
                    && let ast::Value::Number(..) = &value.value
                    && let Ok(number) = format!("-{}", value.value).parse::<i64>()
                {
                    return Ok(match i32::try_from(number) {
                        Ok(number) => Typed::new(Expression::Constant(Value::Int4(number)), SqlType::Int4),
                        Err(_) => Typed::new(Expression::Constant(Value::Int8(number)), SqlType::Int8),
                    });
                }
                let operand = self.bind(operand)?;
                match operand.sql_type {
                    Some(of) if of.is_number() || of == SqlType::Interval => {
                        Ok(Typed::new(Expression::Negate(boxed(operand.expression)), without_length(&of)))
                    }
                    _ => Err(Unbound::NeedsPlanner),
                }
            }
            UnaryOperator::Plus => self.bind(operand),
            _ => Err(Unbound::NeedsPlanner),
        }
    }

    fn binary(&mut self, left: &Expr, operator: &BinaryOperator, right: &Expr) -> Result<Typed, Unbound> {
        let comparison = comparison(operator);
        if let Some(comparison) = comparison {
            return self.compare(comparison, left, right);
        }
        let arithmetic = match operator {
            BinaryOperator::And => {
                let (left, right) = (self.condition(left)?, self.condition(right)?);
                return Ok(Typed::new(Expression::And(boxed(left), boxed(right)), SqlType::Bool));
            }
            BinaryOperator::Or => {
                let (left, right) = (self.condition(left)?, self.condition(right)?);
                return Ok(Typed::new(Expression::Or(boxed(left), boxed(right)), SqlType::Bool));
            }
            BinaryOperator::StringConcat => return self.concatenate(left, right),
            BinaryOperator::Plus => Arithmetic::Add,
            BinaryOperator::Minus => Arithmetic::Subtract,
            BinaryOperator::Multiply => Arithmetic::Multiply,
            BinaryOperator::Divide => Arithmetic::Divide,
            BinaryOperator::Modulo => Arithmetic::Modulo,
            _ => return Err(Unbound::NeedsPlanner),
        };
        self.arithmetic(arithmetic, left, right)
    }

    fn arithmetic(&mut self, operator: Arithmetic, left: &Expr, right: &Expr) -> Result<Typed, Unbound> {
        let (left, right) = (self.bind(left)?, self.bind(right)?);
        let (a, b) = match (left.sql_type.clone(), right.sql_type.clone()) {
            (Some(a), Some(b)) => (a, b),
            // A literal or parameter has the type of the other operand if that is a number.
            (Some(a), None) if a.is_number() => (a.clone(), a),
            (None, Some(b)) if b.is_number() => (b.clone(), b),
            _ => return Err(Unbound::NeedsPlanner),
        };
        let Operands { left: a, right: b, result } = operands(operator, &a, &b).ok_or(Unbound::NeedsPlanner)?;
        let left = self.coerce(left, &a, Context::Implicit)?;
        let right = self.coerce(right, &b, Context::Implicit)?;
        Ok(Typed::new(Expression::Arithmetic(operator, boxed(left), boxed(right)), result))
    }

    fn concatenate(&mut self, left: &Expr, right: &Expr) -> Result<Typed, Unbound> {
        let (left, right) = (self.bind(left)?, self.bind(right)?);
        let is_text = |typed: &Typed| typed.sql_type.as_ref().is_some_and(SqlType::is_text);
        let is_bytes = |typed: &Typed| typed.sql_type == Some(SqlType::Bytea);
        let result = if is_bytes(&left) && is_bytes(&right) {
            SqlType::Bytea
        } else if is_text(&left) || is_text(&right) || (left.sql_type.is_none() && right.sql_type.is_none()) {
            SqlType::Text
        } else {
            return Err(Unbound::NeedsPlanner);
        };
        let is_compound = |typed: &Typed| matches!(typed.sql_type, Some(SqlType::Array(_) | SqlType::Jsonb));
        if is_compound(&left) || is_compound(&right) {
            return Err(Unbound::NeedsPlanner);
        }
        // Any type is cast to text here.
        let left = self.coerce(left, &result, Context::Assignment)?;
        let right = self.coerce(right, &result, Context::Assignment)?;
        Ok(Typed::new(Expression::Concatenate(boxed(left), boxed(right)), result))
    }

    fn compare(&mut self, comparison: Comparison, left: &Expr, right: &Expr) -> Result<Typed, Unbound> {
        let (left, right) = self.operands(left, right)?;
        Ok(Typed::new(Expression::Compare(comparison, boxed(left), boxed(right)), SqlType::Bool))
    }

    fn distinct(&mut self, left: &Expr, right: &Expr) -> Result<Typed, Unbound> {
        let (left, right) = self.operands(left, right)?;
        Ok(Typed::new(Expression::IsDistinct(boxed(left), boxed(right)), SqlType::Bool))
    }

    /// Two operands of types that can be compared.
    fn operands(&mut self, left: &Expr, right: &Expr) -> Result<(Expression, Expression), Unbound> {
        let (left, right) = (self.bind(left)?, self.bind(right)?);
        self.comparable(left, right)
    }

    pub(crate) fn comparable(&mut self, left: Typed, right: Typed) -> Result<(Expression, Expression), Unbound> {
        let common = match (&left.sql_type, &right.sql_type) {
            (None, None) => SqlType::Text,
            (Some(a), None) => without_length(a),
            (None, Some(b)) => without_length(b),
            (Some(a), Some(b)) => {
                let is_time = |of: &SqlType| matches!(of, SqlType::Date | SqlType::Timestamp | SqlType::Timestamptz);
                let is_comparable = a.is_same_base(b)
                    || (a.is_number() && b.is_number())
                    || (a.is_text() && b.is_text())
                    || (is_time(a) && is_time(b));
                // Equal `jsonb` values can have different texts.
                if !is_comparable || matches!(a, SqlType::Jsonb | SqlType::Array(_)) {
                    return Err(Unbound::NeedsPlanner);
                }
                // With a `varchar`, the spaces at the end of both are insignificant; with a `text`, only the padding.
                if matches!((a, b), (SqlType::Char(_), SqlType::Varchar(_)) | (SqlType::Varchar(_), SqlType::Char(_))) {
                    let strip = |typed: Typed| Expression::Unpadded(boxed(typed.expression));
                    return Ok((strip(left), strip(right)));
                }
                // Values of these types compare as they are.
                return Ok((unpadded(left), unpadded(right)));
            }
        };
        if matches!(common, SqlType::Jsonb | SqlType::Array(_)) {
            return Err(Unbound::NeedsPlanner);
        }
        let is_padded =
            matches!(left.sql_type, Some(SqlType::Char(_))) || matches!(right.sql_type, Some(SqlType::Char(_)));
        let finish = |expression: Expression| {
            if is_padded { Expression::Unpadded(boxed(expression)) } else { expression }
        };
        let side = |binder: &mut Self, typed: Typed| match typed.sql_type {
            None => binder.coerce(typed, &common, Context::Implicit),
            Some(_) => Ok(typed.expression),
        };
        let left = side(self, left)?;
        let right = side(self, right)?;
        Ok((finish(left), finish(right)))
    }

    /// As [`Self::comparable`], for a left side of this type that is compared several times: whether its padding is
    /// removed, and the right side.
    fn comparable_to(&mut self, left: &SqlType, right: Typed) -> Result<(bool, Expression), Unbound> {
        // A left side with a type is used as it is, or without its padding.
        let left = Typed::new(Expression::Constant(Value::Null), left.clone());
        let (left, right) = self.comparable(left, right)?;
        Ok((matches!(left, Expression::Unpadded(_)), right))
    }

    /// Each operand is bound once: the time would be exponential in the nesting otherwise.
    fn between(&mut self, operand: &Expr, low: &Expr, high: &Expr) -> Result<Typed, Unbound> {
        let bound = self.bind(operand)?;
        let Some(of) = bound.sql_type else {
            // A literal, NULL or parameter.
            let low = self.compare(Comparison::GreaterOrEqual, operand, low)?;
            let high = self.compare(Comparison::LessOrEqual, operand, high)?;
            return Ok(Typed::new(Expression::And(boxed(low.expression), boxed(high.expression)), SqlType::Bool));
        };
        let low = self.bind(low)?;
        let (is_unpadded, low) = self.comparable_to(&of, low)?;
        let high = self.bind(high)?;
        let (is_unpadded_for_high, high) = self.comparable_to(&of, high)?;
        if is_unpadded != is_unpadded_for_high {
            return Err(Unbound::NeedsPlanner);
        }
        let operand = boxed(bound.expression);
        let operand = if is_unpadded { boxed(Expression::Unpadded(operand)) } else { operand };
        Ok(Typed::new(Expression::Between(operand, boxed(low), boxed(high)), SqlType::Bool))
    }

    /// Each operand is bound once, as for [`Self::between`].
    fn in_list(&mut self, operand: &Expr, list: &[Expr], negated: bool) -> Result<Typed, Unbound> {
        // The type of all operands together is beyond this.
        let Typed { expression: mut operand, sql_type: Some(of) } = self.bind(operand)? else {
            return Err(Unbound::NeedsPlanner);
        };
        let mut items = Vec::with_capacity(list.len());
        let mut is_unpadded = None;
        for item in list {
            let item = self.bind(item)?;
            if matches!(item.sql_type, Some(SqlType::Char(_))) && item.sql_type.as_ref() != Some(&of) {
                return Err(Unbound::NeedsPlanner);
            }
            let (is_unpadded_here, item) = self.comparable_to(&of, item)?;
            is_unpadded.get_or_insert(is_unpadded_here);
            items.push(item);
        }
        if is_unpadded.ok_or(Unbound::NeedsPlanner)? {
            operand = Expression::Unpadded(boxed(operand));
        }
        let found = Expression::In(boxed(operand), items);
        Ok(Typed::new(if negated { Expression::Not(boxed(found)) } else { found }, SqlType::Bool))
    }

    fn case(&mut self, branches: &[ast::CaseWhen], other: Option<&Expr>) -> Result<Typed, Unbound> {
        let mut conditions = Vec::new();
        let mut values = Vec::new();
        for branch in branches {
            conditions.push(self.condition(&branch.condition)?);
            values.push(self.bind(&branch.result)?);
        }
        let null = Typed { expression: Expression::Constant(Value::Null), sql_type: None };
        values.push(other.map_or(Ok(null), |other| self.bind(other))?);
        let (mut values, common) = self.same_type(values)?;
        let other = values.pop().ok_or(Unbound::NeedsPlanner)?;
        Ok(Typed::new(Expression::Case(conditions.into_iter().zip(values).collect(), boxed(other)), common))
    }

    /// Gives expressions one type: that of all with a type, or the widest number.
    fn same_type(&mut self, values: Vec<Typed>) -> Result<(Vec<Expression>, SqlType), Unbound> {
        let mut common: Option<SqlType> = None;
        for of in values.iter().filter_map(|value| value.sql_type.as_ref()) {
            common = Some(match (common, of) {
                (_, SqlType::Char(_)) => return Err(Unbound::NeedsPlanner),
                (None, SqlType::Varchar(_)) => SqlType::Varchar(None),
                (None, of) => without_length(of),
                (Some(common), of) if common.is_same_base(of) => common,
                // Unlike an operator, this does not make a number and a `real` a `double precision`.
                (Some(SqlType::Float4), of) if of.is_number() && *of != SqlType::Float8 => SqlType::Float4,
                (Some(common), SqlType::Float4) if common.is_number() && common != SqlType::Float8 => SqlType::Float4,
                (Some(common), of) => common_number(&common, of).ok_or(Unbound::NeedsPlanner)?,
            });
        }
        let common = common.unwrap_or(SqlType::Text);
        let values = values.into_iter().map(|value| self.coerce(value, &common, Context::Implicit));
        Ok((values.collect::<Result<_, _>>()?, common))
    }

    fn function(&mut self, function: &ast::Function) -> Result<Typed, Unbound> {
        let is_plain = function.filter.is_none() && function.over.is_none() && function.within_group.is_empty();
        let name = function_name(function).ok_or(Unbound::NeedsPlanner)?;
        let mut arguments = Vec::new();
        match &function.args {
            ast::FunctionArguments::None => {}
            ast::FunctionArguments::List(list) if list.clauses.is_empty() && list.duplicate_treatment.is_none() => {
                for argument in &list.args {
                    match argument {
                        ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument)) => arguments.push(argument),
                        _ => return Err(Unbound::NeedsPlanner),
                    }
                }
            }
            _ => return Err(Unbound::NeedsPlanner),
        }
        if !is_plain {
            return Err(Unbound::NeedsPlanner);
        }
        match (name.as_str(), &arguments[..]) {
            ("now" | "current_timestamp" | "transaction_timestamp", []) => {
                Ok(Typed::new(Expression::Now, SqlType::Timestamptz))
            }
            ("localtimestamp", []) => Ok(now_as(SqlType::Timestamp)),
            ("current_date", []) => Ok(now_as(SqlType::Date)),
            ("gen_random_uuid", []) => Ok(Typed::new(Expression::RandomUuid, SqlType::Uuid)),
            ("nextval", [name]) => Ok(Typed::new(Expression::NextValue(self.sequence(name)?.0), SqlType::Int8)),
            ("currval", [name]) => {
                let (sequence, name) = self.sequence(name)?;
                Ok(Typed::new(Expression::CurrentValue(sequence, name), SqlType::Int8))
            }
            ("pg_current_xact_id" | "txid_current", []) => {
                Ok(Typed::new(Expression::TransactionId { assigns: true }, SqlType::Int8))
            }
            ("pg_current_xact_id_if_assigned" | "txid_current_if_assigned", []) => {
                Ok(Typed::new(Expression::TransactionId { assigns: false }, SqlType::Int8))
            }
            ("pg_xact_status" | "txid_status", [id]) => {
                let id = self.bind(id)?;
                // A literal may be the text in the detail of an error.
                let to = match (&id.expression, &id.sql_type) {
                    (_, Some(of)) if of.is_text() => SqlType::Text,
                    (Expression::Constant(_), None) => SqlType::Text,
                    _ => SqlType::Int8,
                };
                let id = self.coerce(id, &to, Context::Implicit)?;
                Ok(Typed::new(Expression::TransactionStatus(boxed(id)), SqlType::Text))
            }
            ("lastval", []) => Ok(Typed::new(Expression::LastValue, SqlType::Int8)),
            ("coalesce", [_, ..]) => {
                let values = arguments.iter().map(|argument| self.bind(argument)).collect::<Result<Vec<_>, _>>()?;
                let (values, common) = self.same_type(values)?;
                Ok(Typed::new(Expression::Coalesce(values), common))
            }
            (name @ ("lower" | "upper" | "length"), [argument]) => {
                let argument = self.bind(argument)?;
                if !argument.sql_type.as_ref().is_none_or(SqlType::is_text) {
                    return Err(Unbound::NeedsPlanner);
                }
                let argument = self.coerce(argument, &SqlType::Text, Context::Implicit)?;
                let (function, result) = match name {
                    "lower" => (Function::Lower, SqlType::Text),
                    "upper" => (Function::Upper, SqlType::Text),
                    _ => (Function::Length, SqlType::Int4),
                };
                Ok(Typed::new(Expression::Call(function, boxed(argument)), result))
            }
            ("abs", [argument]) => {
                let argument = self.bind(argument)?;
                let of = argument.sql_type.filter(SqlType::is_number).ok_or(Unbound::NeedsPlanner)?;
                Ok(Typed::new(Expression::Call(Function::Abs, boxed(argument.expression)), without_length(&of)))
            }
            (name, []) => {
                let found = self.constants.iter().find(|(constant, _)| *constant == name);
                let (_, value) = found.ok_or(Unbound::NeedsPlanner)?;
                Ok(Typed::new(Expression::Constant(value.clone()), value.sql_type().unwrap_or(SqlType::Text)))
            }
            _ => Err(Unbound::NeedsPlanner),
        }
    }

    /// The sequence that a literal names.
    fn sequence(&self, name: &Expr) -> Result<(SequenceId, String), Unbound> {
        let name = match name {
            Expr::Cast { expr, data_type: ast::DataType::Regclass, .. } => expr,
            other => other,
        };
        let Expr::Value(value) = name else { return Err(Unbound::NeedsPlanner) };
        let text = value.value.clone().into_string().ok_or(Unbound::NeedsPlanner)?;
        let sequence = self.schema.sequence_named(&relation_name(&text))?;
        Ok((sequence.id, sequence.name.clone()))
    }
}

/// The name of a relation in the text of a `regclass`: without the schema, and in lower case unless it is quoted.
#[must_use]
pub fn relation_name(text: &str) -> String {
    let text = text.strip_prefix("public.").unwrap_or(text);
    let name = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    name.map_or_else(|| text.to_lowercase(), str::to_owned)
}

/// The name of a function of PostgreSQL, with or without its schema.
pub(crate) fn function_name(function: &ast::Function) -> Option<String> {
    let identifiers: Option<Vec<String>> = function.name.0.iter().map(|part| part.as_ident().map(fold)).collect();
    match &identifiers?[..] {
        [name] => Some(name.clone()),
        [schema, name] if schema == "pg_catalog" => Some(name.clone()),
        _ => None,
    }
}

fn now_as(to: SqlType) -> Typed {
    Typed::new(Expression::Cast(boxed(Expression::Now), to.clone(), Context::Assignment), to)
}

fn unpadded(typed: Typed) -> Expression {
    match typed.sql_type {
        Some(SqlType::Char(_)) => Expression::Unpadded(boxed(typed.expression)),
        _ => typed.expression,
    }
}

pub(crate) fn comparison(operator: &BinaryOperator) -> Option<Comparison> {
    Some(match operator {
        BinaryOperator::Eq => Comparison::Equal,
        BinaryOperator::NotEq => Comparison::NotEqual,
        BinaryOperator::Lt => Comparison::Less,
        BinaryOperator::LtEq => Comparison::LessOrEqual,
        BinaryOperator::Gt => Comparison::Greater,
        BinaryOperator::GtEq => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

pub(crate) fn is_default(value: &Expr) -> bool {
    matches!(value, Expr::Identifier(name) if name.quote_style.is_none() && name.value.eq_ignore_ascii_case("default"))
}

/// The type without a declared length.
pub(crate) fn without_length(of: &SqlType) -> SqlType {
    match of {
        SqlType::Numeric(_) => SqlType::Numeric(None),
        // A parameter or literal that is compared or assigned need not be padded.
        SqlType::Varchar(_) | SqlType::Char(_) => SqlType::Text,
        other => other.clone(),
    }
}
