//! Calls of functions and operators that have other names or arguments in DataFusion.

use sql::{SqlError, SqlType};
use sqlparser::ast::{self, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, UnaryOperator};

use super::{binary, call, null, string};
use crate::functions::{BIT_NOT, EXTRACT, EXTRACT_MILLIS, EXTRACT_SECONDS};
use crate::operators::cast_name;
use crate::rewrite::NOW;
use crate::system::SystemFunctions;

/// Functions of arrays and text that return `integer`. DataFusion's return wider types.
const INTEGERS: [&str; 6] =
    ["array_length", "array_upper", "array_ndims", "array_position", "cardinality", "regexp_count"];

/// The arguments of a call, if they are plain expressions.
fn arguments(function: &Function) -> Vec<&Expr> {
    let FunctionArguments::List(list) = &function.args else { return Vec::new() };
    let plain = |argument| match argument {
        &FunctionArg::Unnamed(FunctionArgExpr::Expr(ref expression)) => Some(expression),
        _ => None,
    };
    list.args.iter().filter_map(plain).collect()
}

fn literal(expression: &Expr) -> Option<String> {
    let Expr::Value(value) = expression else { return None };
    match &value.value {
        ast::Value::SingleQuotedString(text) | ast::Value::EscapedStringLiteral(text) => Some(text.clone()),
        _ => None,
    }
}

/// The expression for a call, if it is another one than a call of the function of that name.
pub(super) fn other_call(
    name: &str,
    function: &Function,
    functions: &SystemFunctions,
) -> Result<Option<Expr>, SqlError> {
    if function.over.is_some() {
        return Ok(None);
    }
    Ok(match (name, &arguments(function)[..]) {
        ("age", [from]) => {
            let today = call(&cast_name(&SqlType::Date), vec![call(NOW, Vec::new())]);
            Some(call("/age", vec![today, (*from).clone()]))
        }
        ("age", [to, from]) => Some(call("/age", vec![(*to).clone(), (*from).clone()])),
        ("encode", [bytes, format]) if literal(bytes).is_some() => {
            let bytes = call(&cast_name(&SqlType::Bytea), vec![(*bytes).clone()]);
            Some(call("encode", vec![bytes, (*format).clone()]))
        }
        (name, [_, ..]) if INTEGERS.contains(&name) => {
            let mut function = function.clone();
            let known = if name == "array_upper" { "array_length" } else { name };
            function.name = super::object_name(known);
            let mut result = Expr::Function(function);
            // The length of an empty array in a dimension is NULL.
            if known == "array_length" {
                let zero = Expr::Value(ast::Value::Number("0".to_owned(), false).into());
                result = call("nullif", vec![result, zero]);
            }
            Some(call(&cast_name(&SqlType::Int4), vec![result]))
        }
        ("nextval" | "currval" | "setval", [sequence, ..]) => {
            if let Some(text) = literal(sequence_name(sequence)) {
                functions.schema().sequence_named(&sql::relation_name(&text))?;
            }
            return Err(not_here(name));
        }
        ("lastval", []) => return Err(not_here(name)),
        (
            "pg_current_xact_id"
            | "pg_current_xact_id_if_assigned"
            | "pg_xact_status"
            | "txid_current"
            | "txid_current_if_assigned"
            | "txid_status",
            _,
        ) => return Err(not_here(name)),
        _ => None,
    })
}

/// The name within a cast to `regclass`, which was rewritten before.
fn sequence_name(sequence: &Expr) -> &Expr {
    match sequence {
        Expr::Function(function) => match arguments(function)[..] {
            [name] => name,
            _ => sequence,
        },
        other => other,
    }
}

fn not_here(name: &str) -> SqlError {
    let error = match name {
        "setval" => return SqlError::unsupported("setval"),
        name => SqlError::unsupported(format!("{name} in a query with FROM, or in a part of an expression")),
    };
    error.with_hint("It is supported in INSERT ... VALUES, and in SELECT without FROM.")
}

/// `EXTRACT(field FROM time)`
pub(super) fn extract(field: &ast::DateTimeField, time: Expr) -> Expr {
    let field = field.to_string().trim_matches(['\'', '"']).to_lowercase();
    let function = match field.as_str() {
        "second" | "seconds" | "sec" | "secs" | "s" | "epoch" => EXTRACT_SECONDS,
        "millisecond" | "milliseconds" | "ms" | "msec" | "msecs" => EXTRACT_MILLIS,
        _ => EXTRACT,
    };
    call(function, vec![string(&field), time])
}

/// An operator with one operand, as a call of a function.
pub(super) fn unary(operator: UnaryOperator, operand: &mut Expr) -> Option<Expr> {
    let function = match operator {
        UnaryOperator::PGSquareRoot => "sqrt",
        UnaryOperator::PGCubeRoot => "cbrt",
        UnaryOperator::PGAbs => "abs",
        UnaryOperator::BitwiseNot => BIT_NOT,
        UnaryOperator::Minus if !matches!(operand, Expr::Value(_)) => crate::functions::NEGATIVE,
        _ => return None,
    };
    let mut operand = std::mem::replace(operand, null());
    // Literals of the operator are `integer` if they fit.
    if let Expr::Value(value) = &operand
        && let ast::Value::Number(digits, _) = &value.value
        && function == BIT_NOT
        && digits.parse::<i32>().is_ok()
    {
        operand = call(&cast_name(&SqlType::Int4), vec![operand]);
    }
    Some(call(function, vec![operand]))
}

/// `LIKE` and `ILIKE` with another escape character than a backslash.
pub(super) fn like(pattern: &mut Expr, escape: &mut Option<ast::ValueWithSpan>) -> Result<(), SqlError> {
    let Some(given) = escape.take() else { return Ok(()) };
    let text = given.value.clone().into_string().unwrap_or_default();
    check_escape(&text)?;
    if text != "\\" {
        let before = std::mem::replace(pattern, null());
        *pattern = call("like_escape", vec![before, string(&text)]);
    }
    Ok(())
}

fn check_escape(text: &str) -> Result<(), SqlError> {
    if text.chars().count() > 1 {
        let error = SqlError::new("22025", "invalid escape string");
        return Err(error.with_hint("Escape string must be empty or one character."));
    }
    Ok(())
}

/// `SIMILAR TO`, as a regular expression.
pub(super) fn similar(
    operand: Expr,
    pattern: Expr,
    escape: Option<&ast::ValueWithSpan>,
    negated: bool,
) -> Result<Expr, SqlError> {
    let mut given = vec![pattern];
    if let Some(escape) = escape {
        let text = escape.value.clone().into_string().unwrap_or_default();
        check_escape(&text)?;
        given.push(string(&text));
    }
    let operator = if negated { ast::BinaryOperator::PGRegexNotMatch } else { ast::BinaryOperator::PGRegexMatch };
    Ok(binary(operand, operator, call("similar_to_escape", given)))
}

/// Literals of text in the rows or results of an `INSERT`, as values of the types of its columns.
pub(crate) fn with_types(statement: &mut ast::Statement, wanted: &[SqlType]) {
    let ast::Statement::Query(query) = statement else { return };
    let typed = |expression: &mut Expr, to: &SqlType| {
        // Text is not cut at the length of the column, which a cast would do.
        if !to.is_text() && literal(expression).is_some() || is_float(to) && is_number(expression) {
            let value = std::mem::replace(expression, null());
            *expression = call(&cast_name(to), vec![value]);
        }
    };
    match &mut *query.body {
        ast::SetExpr::Values(values) => {
            for row in &mut values.rows {
                row.content.iter_mut().zip(wanted).for_each(|(value, to)| typed(value, to));
            }
        }
        ast::SetExpr::Select(select) => {
            for (item, to) in select.projection.iter_mut().zip(wanted) {
                match item {
                    ast::SelectItem::UnnamedExpr(value) | ast::SelectItem::ExprWithAlias { expr: value, .. } => {
                        typed(value, to);
                    }
                    // It has any number of columns.
                    _ => return,
                }
            }
        }
        _ => {}
    }
}

fn is_float(of: &SqlType) -> bool {
    matches!(of, SqlType::Float4 | SqlType::Float8)
}

fn is_number(expression: &Expr) -> bool {
    match expression {
        Expr::UnaryOp { op: UnaryOperator::Minus | UnaryOperator::Plus, expr } => is_number(expr),
        Expr::Value(value) => matches!(value.value, ast::Value::Number(..)),
        _ => false,
    }
}

/// Refuses window functions in clauses that are evaluated before them.
pub(super) fn check_windows(select: &ast::Select) -> Result<(), SqlError> {
    let refuse = |expression: &Expr, place: &str| match has_window(expression) {
        true => Err(SqlError::new("42P20", format!("window functions are not allowed in {place}"))),
        false => Ok(()),
    };
    select.selection.iter().try_for_each(|condition| refuse(condition, "WHERE"))?;
    select.having.iter().try_for_each(|condition| refuse(condition, "HAVING"))?;
    if let ast::GroupByExpr::Expressions(by, _) = &select.group_by {
        by.iter().try_for_each(|by| refuse(by, "GROUP BY"))?;
    }
    Ok(())
}

fn has_window(expression: &Expr) -> bool {
    struct Search(usize);
    impl ast::Visitor for Search {
        type Break = ();

        fn pre_visit_query(&mut self, _: &ast::Query) -> std::ops::ControlFlow<()> {
            self.0 += 1;
            std::ops::ControlFlow::Continue(())
        }

        fn post_visit_query(&mut self, _: &ast::Query) -> std::ops::ControlFlow<()> {
            self.0 = self.0.saturating_sub(1);
            std::ops::ControlFlow::Continue(())
        }

        fn pre_visit_expr(&mut self, expression: &Expr) -> std::ops::ControlFlow<()> {
            match expression {
                Expr::Function(function) if self.0 == 0 && function.over.is_some() => std::ops::ControlFlow::Break(()),
                _ => std::ops::ControlFlow::Continue(()),
            }
        }
    }
    ast::Visit::visit(expression, &mut Search(0)).is_break()
}
