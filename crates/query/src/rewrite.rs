//! Rewrites statements in PostgreSQL's dialect as equivalent ones that DataFusion supports.

mod calls;
mod frames;
mod joins;
mod multisets;
mod subqueries;

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use sql::parse::{fold, sql_type};
use sql::{SqlError, SqlType, Value, sqlstate};
use sqlparser::ast::{
    self, BinaryOperator, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, LimitClause, ObjectName, ObjectNamePart, Query, Select, SelectItem, SetExpr, Statement,
    TableFactor, UnaryOperator, VisitMut, VisitorMut,
};

use self::subqueries::{
    array_of, has_subquery, is_named, is_row_of, name_of_table, selects_of, skip_items_without_rows, tables_of,
};
use crate::functions::FUNCTIONS;
use crate::operators::cast_name;
use crate::system::SystemFunctions;

pub(crate) use self::calls::with_types;

/// The suffix of internal names.
pub(crate) const INTERNAL: char = '\u{1}';
/// The function of the start of the transaction.
pub(crate) const NOW: &str = "/now";

/// Types of references to the catalogs, which are object identifiers.
const REFERENCES: [&str; 6] = ["regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regrole"];

/// Rewrites a query in place.
pub(crate) struct Rewrite<'a> {
    /// Values of functions without arguments.
    pub(crate) constants: &'a [(&'a str, Value)],
    /// Types of parameters that casts determine, by their numbers from 0.
    pub(crate) parameters: Vec<Option<SqlType>>,
    /// The number of parameters.
    pub(crate) count: usize,
    next_name: usize,
    functions: &'a SystemFunctions,
}

impl<'a> Rewrite<'a> {
    pub(crate) fn new(constants: &'a [(&'a str, Value)], functions: &'a SystemFunctions) -> Self {
        Self { constants, parameters: Vec::new(), count: 0, next_name: 0, functions }
    }

    pub(crate) fn query(&mut self, query: &Query) -> Result<Statement, SqlError> {
        let mut statement = Statement::Query(Box::new(query.clone()));
        match VisitMut::visit(&mut statement, self) {
            ControlFlow::Continue(()) => Ok(statement),
            ControlFlow::Break(error) => Err(error),
        }
    }

    fn name_items(&mut self, select: &mut Select) {
        let has_wildcard = select
            .projection
            .iter()
            .any(|item| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..)));
        let mut names: HashMap<String, usize> = HashMap::new();
        for item in &select.projection {
            let name = match item {
                SelectItem::UnnamedExpr(expression) => sql::direct::name_of(expression),
                SelectItem::ExprWithAlias { alias, .. } => fold(alias),
                _ => continue,
            };
            *names.entry(name).or_default() += 1;
        }
        let column = |item: &SelectItem| match item {
            SelectItem::UnnamedExpr(column @ (Expr::Identifier(_) | Expr::CompoundIdentifier(_))) => {
                Some(sql::direct::name_of(column))
            }
            _ => None,
        };
        let mut named: HashSet<String> = select.projection.iter().filter_map(column).collect();
        let mut columns = Columns::new(&select.projection);
        for item in &mut select.projection {
            // References are shown as the names that they refer to.
            if let SelectItem::UnnamedExpr(expression) | SelectItem::ExprWithAlias { expr: expression, .. } = item
                && let Expr::Cast { data_type, .. } = &*expression
                && reference_type(data_type).is_some()
            {
                *expression = Expr::Cast {
                    kind: ast::CastKind::DoubleColon,
                    expr: Box::new(expression.clone()),
                    data_type: DataType::Text,
                    array: false,
                    format: None,
                };
            }
            if let SelectItem::ExprWithAlias { alias, .. } = item {
                let name = fold(alias);
                // The first one of several keeps its name.
                if names.get(&name).is_some_and(|count| *count > 1) && !named.insert(name.clone()) {
                    *alias = Ident::with_quote('"', self.internal_name(&name));
                }
                continue;
            }
            let SelectItem::UnnamedExpr(expression) = item else { continue };
            let name = sql::direct::name_of(expression);
            let is_alone = names.get(&name) == Some(&1);
            // The names of the tables distinguish equal names of columns.
            let is_column = matches!(expression, Expr::CompoundIdentifier(_))
                || matches!(expression, Expr::Identifier(_)) && (is_alone || has_wildcard);
            if is_column && columns.add(expression) {
                continue;
            }
            let alias = if is_alone && !has_wildcard { name } else { self.internal_name(&name) };
            *item = SelectItem::ExprWithAlias { expr: expression.clone(), alias: Ident::with_quote('"', alias) };
        }
    }

    fn internal_name(&mut self, shown: &str) -> String {
        self.next_name += 1;
        format!("{shown}{INTERNAL}{}", self.next_name)
    }

    fn body(&mut self, body: &mut SetExpr) -> Result<(), SqlError> {
        if let SetExpr::Values(values) = body
            && values.rows.iter().flat_map(|row| &row.content).any(has_subquery)
        {
            *body = selects_of(values)?;
        }
        multisets::replace(body)?;
        match body {
            SetExpr::Select(select) => {
                check_names(select)?;
                calls::check_windows(select)?;
                for window in &mut select.named_window {
                    if let ast::NamedWindowExpr::WindowSpec(window) = &mut window.1 {
                        frames::rewrite(self, window)?;
                    }
                }
                skip_items_without_rows(select);
                if let Some(condition) = &mut select.selection {
                    self.rows_in(condition)?;
                }
                self.name_items(select);
            }
            SetExpr::SetOperation { left, right, .. } => {
                self.body(left)?;
                self.body(right)?;
            }
            // Visited as a query by itself.
            _ => {}
        }
        Ok(())
    }

    /// In the conditions that `AND` joins in a `WHERE` clause, `(a, b) IN (query)` is whether a row of the query is equal.
    fn rows_in(&mut self, condition: &mut Expr) -> Result<(), SqlError> {
        match condition {
            Expr::Nested(inner) => self.rows_in(inner),
            Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
                self.rows_in(left)?;
                self.rows_in(right)
            }
            Expr::InSubquery { expr, subquery, negated: false } if matches!(**expr, Expr::Tuple(_)) => {
                let Expr::Tuple(values) = std::mem::replace(&mut **expr, null()) else { return Ok(()) };
                let names = values.iter().map(|_| Ident::with_quote('"', self.internal_name("item"))).collect();
                *condition = is_row_of(values, subquery, names)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn cast(&mut self, operand: Expr, to: &DataType) -> Result<Expr, SqlError> {
        if let Some(reference) = reference_type(to) {
            if let Some(number) = parameter(&operand) {
                self.slot(number)?.get_or_insert(SqlType::Text);
            }
            return Ok(call(&format!("/{reference}"), vec![operand]));
        }
        let to = type_named(to)?;
        if let (true, Some(reference)) = (to.is_text(), reference_of(&operand)) {
            let shown = if reference == "regprocedure" { "regproc" } else { reference };
            return Ok(call(&format!("{shown}out"), vec![operand]));
        }
        if let Some(number) = parameter(&operand) {
            let slot = self.slot(number)?;
            slot.get_or_insert(to.clone());
        }
        Ok(call(&cast_name(&to), vec![operand]))
    }

    fn slot(&mut self, number: usize) -> Result<&mut Option<SqlType>, SqlError> {
        if number >= sql::PARAMETERS_MAX {
            return Err(SqlError::new(sqlstate::UNDEFINED_PARAMETER, format!("there is no parameter ${}", number + 1)));
        }
        self.count = self.count.max(number + 1);
        if self.parameters.len() <= number {
            self.parameters.resize(number + 1, None);
        }
        self.parameters.get_mut(number).ok_or_else(|| SqlError::unsupported("this parameter"))
    }

    fn expression(&mut self, expression: &mut Expr) -> Result<(), SqlError> {
        let taken = |expression: &mut Expr| std::mem::replace(expression, null());
        match expression {
            Expr::Cast { expr, data_type, array: false, .. } => {
                let (operand, to) = (taken(expr), data_type.clone());
                *expression = self.cast(operand, &to)?;
            }
            Expr::TypedString(typed) => {
                let text = typed.value.clone().into_string().unwrap_or_default();
                let to = typed.data_type.clone();
                *expression = self.cast(string(&text), &to)?;
            }
            Expr::Interval(interval) if interval.leading_precision.is_none() => {
                let text = match (&*interval.value, &interval.leading_field) {
                    (Expr::Value(value), None) => value.value.clone().into_string(),
                    (Expr::Value(value), Some(field)) => {
                        value.value.clone().into_string().map(|text| format!("{text} {field}"))
                    }
                    _ => None,
                };
                if let Some(text) = text {
                    *expression = call(&cast_name(&SqlType::Interval), vec![string(&text)]);
                }
            }
            Expr::Collate { expr, .. } => *expression = taken(expr),
            Expr::Nested(inner) => *expression = taken(inner),
            Expr::Value(value) => match &value.value {
                ast::Value::Placeholder(name) => {
                    let number =
                        name.trim_start_matches('$').parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                    let number = number.ok_or_else(|| {
                        SqlError::new(sqlstate::UNDEFINED_PARAMETER, format!("there is no parameter {name}"))
                    })?;
                    self.slot(number)?;
                }
                ast::Value::Number(digits, _)
                    if digits.parse::<i64>().is_err() && digits.len() > 15 && !digits.contains(' ') =>
                {
                    let text = digits.clone();
                    *expression = call(&cast_name(&SqlType::Numeric(None)), vec![string(&text)]);
                }
                ast::Value::NationalStringLiteral(text) | ast::Value::UnicodeStringLiteral(text) => {
                    *expression = string(&text.clone());
                }
                _ => {}
            },
            Expr::BinaryOp { left, op, right } => match op {
                BinaryOperator::PGCustomBinaryOperator(parts) => {
                    let symbol = parts.last().cloned().unwrap_or_default();
                    *op = operator(&symbol).ok_or_else(|| SqlError::unsupported(format!("operator {symbol}")))?;
                }
                // Each column has the collation of its type. psql searches for others.
                BinaryOperator::NotEq if is_named(left, "attcollation") && is_named(right, "typcollation") => {
                    *expression = Expr::Value(ast::Value::Boolean(false).into());
                }
                BinaryOperator::PGExp => *expression = call("power", vec![taken(left), taken(right)]),
                BinaryOperator::Eq | BinaryOperator::NotEq => {
                    if let (Expr::Tuple(a), Expr::Tuple(b)) = (&**left, &**right) {
                        let is_equal = *op == BinaryOperator::Eq;
                        *expression = tuples(a.clone(), b.clone(), is_equal)?;
                    }
                }
                _ => {}
            },
            Expr::InList { expr, list, negated } if matches!(**expr, Expr::Tuple(_)) => {
                let Expr::Tuple(wanted) = taken(expr) else { return Ok(()) };
                let (list, negated) = (std::mem::take(list), *negated);
                let mut any: Option<Expr> = None;
                for item in list {
                    let Expr::Tuple(item) = item else {
                        return Err(SqlError::unsupported("a list of rows and values"));
                    };
                    let equal = tuples(wanted.clone(), item, true)?;
                    any = Some(match any {
                        None => equal,
                        Some(before) => binary(before, BinaryOperator::Or, equal),
                    });
                }
                let any = Expr::Nested(Box::new(any.unwrap_or_else(null)));
                *expression = if negated { Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(any) } } else { any };
            }
            Expr::UnaryOp { op, expr } => {
                if let Some(other) = calls::unary(*op, expr) {
                    *expression = other;
                }
            }
            Expr::Like { pattern, escape_char, .. } | Expr::ILike { pattern, escape_char, .. } => {
                calls::like(pattern, escape_char)?;
            }
            Expr::SimilarTo { negated, expr, pattern, escape_char } => {
                *expression = calls::similar(taken(expr), taken(pattern), escape_char.as_ref(), *negated)?;
            }
            Expr::Extract { field, expr, .. } => *expression = calls::extract(field, taken(expr)),
            Expr::AtTimeZone { timestamp, time_zone } => {
                *expression = call("timezone", vec![taken(time_zone), taken(timestamp)]);
            }
            Expr::Function(function) => {
                if let Some(other) = self.function(function)? {
                    *expression = other;
                }
            }
            Expr::Identifier(name) if name.quote_style.is_none() => {
                // Functions that are written without parentheses.
                let folded = fold(name);
                if ["current_user", "session_user", "current_catalog", "current_schema", "user"]
                    .contains(&folded.as_str())
                    && let Some(constant) = self.constant(&folded)
                {
                    *expression = constant;
                }
            }
            // The fields of the rows of `_pg_expandarray`: an element and its number.
            Expr::CompoundFieldAccess { root, access_chain } => {
                if let [ast::AccessExpr::Dot(Expr::Identifier(field))] = &access_chain[..] {
                    let place = match fold(field).as_str() {
                        "x" => "1",
                        "n" => "2",
                        _ => return Err(SqlError::unsupported("a field of a row")),
                    };
                    let row = std::mem::replace(&mut **root, null());
                    *expression = call("get_field", vec![row, string(place)]);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn constant(&self, name: &str) -> Option<Expr> {
        let (_, value) = self.constants.iter().find(|(constant, _)| *constant == name)?;
        let text = value.to_text()?;
        let of = value.sql_type()?;
        Some(if of.is_text() { string(&text) } else { call(&cast_name(&of), vec![string(&text)]) })
    }

    fn function(&mut self, function: &mut Function) -> Result<Option<Expr>, SqlError> {
        let parts: Vec<String> = function.name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect();
        let name = match &parts[..] {
            [name] => name.clone(),
            [schema, name] if schema == "pg_catalog" || schema == "public" || schema == "information_schema" => {
                name.clone()
            }
            _ => {
                return Err(SqlError::new(
                    sqlstate::UNDEFINED_FUNCTION,
                    format!("function {} does not exist", function.name),
                ));
            }
        };
        let count = match &function.args {
            FunctionArguments::None => 0,
            FunctionArguments::List(list) => list.args.len(),
            FunctionArguments::Subquery(_) => 1,
        };
        if count == 0 && function.over.is_none() {
            let now = || call(NOW, Vec::new());
            let now_as = |to: &SqlType| call(&cast_name(to), vec![now()]);
            match name.as_str() {
                "now" | "current_timestamp" | "transaction_timestamp" | "statement_timestamp" | "clock_timestamp" => {
                    return Ok(Some(now()));
                }
                "localtimestamp" => return Ok(Some(now_as(&SqlType::Timestamp))),
                "current_date" => return Ok(Some(now_as(&SqlType::Date))),
                _ => {}
            }
            if let Some(constant) = self.constant(&name) {
                return Ok(Some(constant));
            }
        }
        if let Some(other) = calls::other_call(&name, function, self.functions)? {
            return Ok(Some(other));
        }
        if name == "generate_series" {
            let mut series = function.clone();
            series.name = object_name("generate_series");
            return Ok(Some(call("unnest", vec![Expr::Function(series)])));
        }
        if let ("_pg_expandarray" | "generate_subscripts", FunctionArguments::List(list)) =
            (name.as_str(), &function.args)
            && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(array))) = list.args.first()
        {
            let one = Expr::Value(ast::Value::Number("1".to_owned(), false).into());
            let numbers = call("generate_series", vec![one, call("array_length", vec![array.clone()])]);
            let rows = if list.args.len() == 1 { call("arrays_zip", vec![array.clone(), numbers]) } else { numbers };
            return Ok(Some(call("unnest", vec![rows])));
        }
        if let ("array", FunctionArguments::Subquery(query)) = (name.as_str(), &function.args) {
            return Ok(Some(array_of(query)));
        }
        let renamed = match name.as_str() {
            "round" if count == 1 => "/round",
            "every" => "bool_and",
            "ceiling" => "ceil",
            "char_length" | "character_length" => "length",
            "pow" => "power",
            "gen_random_uuid" => "uuid",
            other => other,
        };
        let is_special = matches!(renamed, "array" | "unnest" | "grouping" | "avg") || renamed.starts_with(['/', ':']);
        if !is_special && self.functions.get(renamed).is_none() && !FUNCTIONS.contains(renamed) {
            let error = SqlError::new(sqlstate::UNDEFINED_FUNCTION, format!("function {name} does not exist"));
            let hint =
                "No function matches the given name and argument types. You might need to add explicit type casts.";
            return Err(error.with_hint(hint));
        }
        function.name = object_name(renamed);
        if name == "avg" {
            let (mut sum, mut count) = (function.clone(), function.clone());
            sum.name = object_name("sum");
            count.name = object_name("count");
            return Ok(Some(call("/avg", vec![Expr::Function(sum), Expr::Function(count)])));
        }
        Ok(None)
    }
}

impl VisitorMut for Rewrite<'_> {
    type Break = SqlError;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<SqlError> {
        let rewritten = joins::merge(query, self.functions.schema()).and_then(|()| self.body(&mut query.body));
        if let Err(error) = rewritten {
            return ControlFlow::Break(error);
        }
        query.locks.clear();
        if let Some(LimitClause::LimitOffset { limit, offset, .. }) = &query.limit_clause {
            for count in limit.iter().chain(offset.iter().map(|offset| &offset.value)) {
                if let Some(number) = parameter(count)
                    && let Ok(slot) = self.slot(number)
                {
                    slot.get_or_insert(SqlType::Int8);
                }
            }
        }
        if let Some(fetch) = query.fetch.take() {
            if fetch.with_ties || fetch.percent {
                return ControlFlow::Break(SqlError::unsupported("FETCH WITH TIES"));
            }
            let one = || Expr::Value(ast::Value::Number("1".to_owned(), false).into());
            let limit = Some(fetch.quantity.unwrap_or_else(one));
            match &mut query.limit_clause {
                Some(LimitClause::LimitOffset { limit: found, .. }) => *found = limit,
                other => *other = Some(LimitClause::LimitOffset { limit, offset: None, limit_by: Vec::new() }),
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<SqlError> {
        let what = match table {
            TableFactor::Table { sample: Some(_), .. } => "TABLESAMPLE",
            TableFactor::Table { with_ordinality: true, .. } => "WITH ORDINALITY",
            TableFactor::UNNEST { with_ordinality: true, .. } => "WITH ORDINALITY",
            TableFactor::Table { name, args: Some(_), alias, .. } if plain_name(name) == "generate_series" => {
                name_column(alias);
                return ControlFlow::Continue(());
            }
            _ => return ControlFlow::Continue(()),
        };
        ControlFlow::Break(SqlError::unsupported(what))
    }

    fn pre_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<SqlError> {
        let frame = match expression {
            Expr::Function(Function { over: Some(ast::WindowType::WindowSpec(window)), .. }) => {
                frames::rewrite(self, window)
            }
            _ => Ok(()),
        };
        match frame {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }

    fn pre_visit_relation(&mut self, relation: &mut ObjectName) -> ControlFlow<SqlError> {
        if let [schema, name] = &relation.0[..]
            && let Some(schema) = schema.as_ident().map(fold)
            && let Some(name) = name.as_ident().map(fold)
            && (schema == "public" || schema == "pg_catalog" && ["generate_series", "unnest"].contains(&name.as_str()))
        {
            relation.0.remove(0);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<SqlError> {
        match self.expression(expression) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

/// The columns that a list of results has already.
struct Columns {
    has_all: bool,
    /// Tables all of whose columns it has.
    whole: HashSet<String>,
    /// The tables by which it names each column; none without a table.
    tables: HashMap<String, Vec<Option<String>>>,
}

impl Columns {
    fn new(items: &[SelectItem]) -> Self {
        let table = |item: &SelectItem| match item {
            SelectItem::QualifiedWildcard(ast::SelectItemQualifiedWildcardKind::ObjectName(name), _) => {
                Some(plain_name(name))
            }
            _ => None,
        };
        Self {
            has_all: items.iter().any(|item| matches!(item, SelectItem::Wildcard(_))),
            whole: items.iter().filter_map(table).collect(),
            tables: HashMap::new(),
        }
    }

    /// Adds a column; returns false if it may be there already.
    fn add(&mut self, column: &Expr) -> bool {
        let (name, table) = match column {
            Expr::Identifier(name) => (fold(name), None),
            Expr::CompoundIdentifier(parts) => {
                let mut parts = parts.iter().rev().map(fold);
                (parts.next().unwrap_or_default(), parts.next())
            }
            _ => return true,
        };
        let others = self.tables.entry(name).or_default();
        let is_there = |other: &Option<String>| other.is_none() || table.is_none() || *other == table;
        if self.has_all || table.as_ref().is_some_and(|table| self.whole.contains(table)) || others.iter().any(is_there)
        {
            return false;
        }
        others.push(table);
        true
    }
}

/// The column of a function in `FROM` has the name of the function or its alias.
fn name_column(alias: &mut Option<ast::TableAlias>) {
    let alias = alias.get_or_insert_with(|| ast::TableAlias {
        explicit: false,
        name: Ident::with_quote('"', "generate_series"),
        columns: Vec::new(),
        at: None,
    });
    if alias.columns.is_empty() {
        alias.columns.push(ast::TableAliasColumnDef { name: alias.name.clone(), data_type: None });
    }
}

/// The number of a parameter, from 0.
pub(crate) fn parameter(expression: &Expr) -> Option<usize> {
    match expression {
        Expr::Value(value) => match &value.value {
            ast::Value::Placeholder(name) => name.trim_start_matches('$').parse::<usize>().ok()?.checked_sub(1),
            _ => None,
        },
        Expr::Nested(inner) => parameter(inner),
        _ => None,
    }
}

/// Checks that the names of the tables in `FROM` differ.
fn check_names(select: &Select) -> Result<(), SqlError> {
    let mut names = HashSet::new();
    for name in tables_of(select).into_iter().filter_map(name_of_table) {
        if !names.insert(name.clone()) {
            let message = format!("table name \"{name}\" specified more than once");
            return Err(SqlError::new("42712", message));
        }
    }
    Ok(())
}

pub(crate) fn null() -> Expr {
    Expr::Value(ast::Value::Null.into())
}

fn string(text: &str) -> Expr {
    Expr::Value(ast::Value::SingleQuotedString(text.to_owned()).into())
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) }
}

/// A name that is taken as it is.
fn object_name(name: &str) -> ObjectName {
    ObjectName(vec![ObjectNamePart::Identifier(Ident::with_quote('"', name))])
}

pub(crate) fn call(name: &str, arguments: Vec<Expr>) -> Expr {
    let args = arguments.into_iter().map(|argument| FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))).collect();
    Expr::Function(Function {
        name: object_name(name),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// The error with the position of the name that it is about.
pub(crate) fn locate(error: SqlError, query: &Query, text: &str) -> SqlError {
    let message = &error.message;
    let name = message.strip_prefix("column ").or_else(|| message.strip_prefix("relation ")).or_else(|| {
        let function = message.strip_prefix("function ")?;
        Some(function.split(['(', ' ']).next().unwrap_or(function))
    });
    let name = name
        .map(|name| name.split_once(" does not").or_else(|| name.split_once(" must")).map_or(name, |(name, _)| name));
    let Some(name) = name.map(|name| name.trim_matches('"')) else { return error };
    if error.position.is_some() {
        return error;
    }
    let mut search =
        Locate { name: name.rsplit('.').next().unwrap_or(name), is_table: message.starts_with("relation") };
    match ast::Visit::visit(query, &mut search) {
        ControlFlow::Break(start) if start.line > 0 => error.at(sql::parse::position(text, start)),
        _ => error,
    }
}

struct Locate<'a> {
    name: &'a str,
    is_table: bool,
}

impl ast::Visitor for Locate<'_> {
    type Break = sqlparser::tokenizer::Location;

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<Self::Break> {
        let parts = match expression {
            Expr::Identifier(name) => std::slice::from_ref(name),
            Expr::CompoundIdentifier(parts) => &parts[..],
            Expr::Function(function) => match function.name.0.last().and_then(|part| part.as_ident()) {
                Some(name) => std::slice::from_ref(name),
                None => return ControlFlow::Continue(()),
            },
            _ => return ControlFlow::Continue(()),
        };
        match (parts.first(), parts.last()) {
            (Some(first), Some(last)) if !self.is_table && fold(last) == self.name => {
                ControlFlow::Break(first.span.start)
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<Self::Break> {
        match relation.0.first().and_then(|part| part.as_ident()) {
            Some(first) if self.is_table && plain_name(relation) == self.name => ControlFlow::Break(first.span.start),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn tuples(a: Vec<Expr>, b: Vec<Expr>, is_equal: bool) -> Result<Expr, SqlError> {
    if a.len() != b.len() {
        return Err(SqlError::new(sqlstate::SYNTAX_ERROR, "unequal number of entries in row expressions"));
    }
    let (each, joined) =
        if is_equal { (BinaryOperator::Eq, BinaryOperator::And) } else { (BinaryOperator::NotEq, BinaryOperator::Or) };
    let pairs = a.into_iter().zip(b).map(|(a, b)| binary(a, each.clone(), b));
    let all = pairs.reduce(|all, pair| binary(all, joined.clone(), pair));
    Ok(Expr::Nested(Box::new(all.unwrap_or_else(null))))
}

fn operator(symbol: &str) -> Option<BinaryOperator> {
    use BinaryOperator as B;
    Some(match symbol {
        "~" => B::PGRegexMatch,
        "~*" => B::PGRegexIMatch,
        "!~" => B::PGRegexNotMatch,
        "!~*" => B::PGRegexNotIMatch,
        "~~" => B::PGLikeMatch,
        "!~~" => B::PGNotLikeMatch,
        "~~*" => B::PGILikeMatch,
        "!~~*" => B::PGNotILikeMatch,
        "=" => B::Eq,
        "<>" | "!=" => B::NotEq,
        "<" => B::Lt,
        "<=" => B::LtEq,
        ">" => B::Gt,
        ">=" => B::GtEq,
        "+" => B::Plus,
        "-" => B::Minus,
        "*" => B::Multiply,
        "/" => B::Divide,
        "%" => B::Modulo,
        "||" => B::StringConcat,
        _ => return None,
    })
}

fn plain_name(name: &ObjectName) -> String {
    name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default()
}

/// The function for a cast to a reference to the catalogs.
fn reference_type(to: &DataType) -> Option<String> {
    let name = match to {
        DataType::Regclass => "regclass".to_owned(),
        DataType::Custom(name, modifiers) if modifiers.is_empty() => plain_name(name),
        _ => return None,
    };
    REFERENCES.contains(&name.as_str()).then_some(name)
}

/// The kind of reference to the catalogs that an expression is.
fn reference_of(expression: &Expr) -> Option<&'static str> {
    let Expr::Function(function) = expression else { return None };
    let name = plain_name(&function.name);
    let name = name.strip_prefix('/')?;
    REFERENCES.into_iter().find(|reference| *reference == name)
}

/// The SQL type for values of a type that a statement names, also of types that only the catalogs have.
fn type_named(name: &DataType) -> Result<SqlType, SqlError> {
    match name {
        DataType::Custom(custom, modifiers) => match plain_name(custom).as_str() {
            "oid" | "xid" | "cid" => Ok(SqlType::Int8),
            "name" | "char" | "cstring" | "unknown" | "int2vector" | "oidvector" | "pg_node_tree" | "aclitem"
            | "sql_identifier" | "cardinal_number" | "yes_or_no" | "character_data" | "xml" | "inet" | "anyarray" => {
                Ok(SqlType::Text)
            }
            "json" => Ok(SqlType::Jsonb),
            // A type with its schema, such as `pg_catalog.int4`.
            short if custom.0.len() == 2 && modifiers.is_empty() => {
                let statement = sql::parse::parse_expression(&format!("NULL::{short}"))?;
                match statement {
                    Expr::Cast { data_type, .. } if !matches!(data_type, DataType::Custom(..)) => {
                        type_named(&data_type)
                    }
                    _ => sql_type(name),
                }
            }
            _ => sql_type(name),
        },
        DataType::JSON => Ok(SqlType::Jsonb),
        DataType::Array(ast::ArrayElemTypeDef::SquareBracket(item, _)) => match type_named(item)? {
            array @ SqlType::Array(_) => Ok(array),
            scalar => Ok(SqlType::Array(Box::new(scalar))),
        },
        _ => sql_type(name),
    }
}
