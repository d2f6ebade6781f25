//! Errors of the planner and of executions, with PostgreSQL's SQLSTATE.

use datafusion::arrow::error::ArrowError;
use datafusion::common::{Column, DataFusionError, SchemaError};
use sql::{SqlError, sqlstate};

use crate::SourceError;

/// An error of DataFusion.
pub(crate) struct Failed(pub(crate) DataFusionError);

/// Why a query failed.
#[derive(Debug)]
pub enum QueryError {
    /// The statement is not valid, or exceeds a limit.
    Sql(SqlError),
    /// The source of rows failed.
    Source(SourceError),
}

impl From<SqlError> for QueryError {
    fn from(error: SqlError) -> Self {
        Self::Sql(error)
    }
}

impl From<DataFusionError> for QueryError {
    fn from(error: DataFusionError) -> Self {
        match source_of(error) {
            Ok(source) => Self::Source(source),
            Err(error) => Self::Sql(Failed(error).into()),
        }
    }
}

/// An error of the source of rows, as one of DataFusion.
#[derive(Debug)]
pub(crate) struct FromSource(pub(crate) std::sync::Mutex<Option<SourceError>>);

impl std::fmt::Display for FromSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the rows could not be read")
    }
}

impl std::error::Error for FromSource {}

pub(crate) fn from_source(error: SourceError) -> DataFusionError {
    DataFusionError::External(Box::new(FromSource(std::sync::Mutex::new(Some(error)))))
}

/// An SQL error within an error of DataFusion.
#[derive(Debug)]
struct Wrapped(SqlError);

impl std::fmt::Display for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Wrapped {}

pub(crate) fn wrap(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(Wrapped(error)))
}

pub(crate) fn internal(message: String) -> SqlError {
    SqlError::new(sqlstate::INTERNAL_ERROR, message)
}

fn source_of(error: DataFusionError) -> Result<SourceError, DataFusionError> {
    if let Some(found) = find::<FromSource>(&error)
        && let Some(source) = found.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    {
        return Ok(source);
    }
    Err(error)
}

/// Searches the causes of an error.
fn find<T: std::error::Error + 'static>(error: &DataFusionError) -> Option<&T> {
    match error {
        DataFusionError::External(inner) => match inner.downcast_ref::<T>() {
            Some(found) => Some(found),
            None => find(inner.downcast_ref::<DataFusionError>()?),
        },
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => find(inner),
        DataFusionError::Shared(inner) => find(inner),
        DataFusionError::Collection(errors) => errors.iter().find_map(find),
        DataFusionError::ArrowError(inner, _) => match &**inner {
            ArrowError::ExternalError(inner) => match inner.downcast_ref::<T>() {
                Some(found) => Some(found),
                None => find(inner.downcast_ref::<DataFusionError>()?),
            },
            _ => None,
        },
        _ => None,
    }
}

impl From<Failed> for SqlError {
    fn from(Failed(error): Failed) -> Self {
        if let Some(Wrapped(error)) = find(&error) {
            return error.clone();
        }
        of_datafusion(&error)
    }
}

fn of_datafusion(error: &DataFusionError) -> SqlError {
    let message = error.strip_backtrace();
    let text = || {
        let text = message.split_once(": ").map_or(message.as_str(), |(_, text)| text);
        text.lines().next().unwrap_or_default().trim().to_owned()
    };
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => of_datafusion(inner),
        DataFusionError::Shared(inner) => of_datafusion(inner),
        DataFusionError::Collection(errors) => errors.first().map_or_else(|| internal(message.clone()), of_datafusion),
        DataFusionError::ResourcesExhausted(_) => {
            let error = SqlError::new("53200", "the query needs more memory than one query may use");
            error.with_hint("Read fewer rows, or sort, join and group fewer at once.")
        }
        DataFusionError::SchemaError(error, _) => match &**error {
            SchemaError::FieldNotFound { field, valid_fields } => {
                let name = field.name();
                if let Some(relation) = &field.relation
                    && !valid_fields
                        .iter()
                        .any(|valid| valid.relation.as_ref().is_some_and(|known| known.table() == relation.table()))
                {
                    let message = format!("missing FROM-clause entry for table \"{}\"", relation.table());
                    return SqlError::new(sqlstate::UNDEFINED_TABLE, message);
                }
                let shown = match &field.relation {
                    Some(relation) => format!("column {}.{name} does not exist", relation.table()),
                    None => format!("column \"{name}\" does not exist"),
                };
                let error = SqlError::new(sqlstate::UNDEFINED_COLUMN, shown);
                let close = closest(name, valid_fields.iter().map(|field| field.name()));
                match close.and_then(|close| valid_fields.iter().find(|field| field.name() == close)) {
                    Some(Column { relation, name, .. }) => {
                        let table = relation.as_ref().map_or_else(String::new, |table| format!("{}.", table.table()));
                        error.with_hint(format!("Perhaps you meant to reference the column \"{table}{name}\"."))
                    }
                    None => error,
                }
            }
            SchemaError::AmbiguousReference { field } => {
                SqlError::new("42702", format!("column reference \"{}\" is ambiguous", field.name()))
            }
            SchemaError::DuplicateQualifiedField { qualifier, .. } => {
                SqlError::new("42712", format!("table name \"{}\" specified more than once", qualifier.table()))
            }
            SchemaError::DuplicateUnqualifiedField { name } => {
                SqlError::new(sqlstate::DUPLICATE_COLUMN, format!("column name \"{name}\" specified more than once"))
            }
        },
        DataFusionError::ArrowError(inner, _) => match &**inner {
            ArrowError::DivideByZero => SqlError::new(sqlstate::DIVISION_BY_ZERO, "division by zero"),
            ArrowError::ArithmeticOverflow(_) => {
                SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, "number out of range")
            }
            ArrowError::CastError(message) | ArrowError::ParseError(message) => {
                SqlError::new(sqlstate::INVALID_TEXT_REPRESENTATION, message.clone())
            }
            other => internal(other.to_string()),
        },
        DataFusionError::NotImplemented(_) => SqlError::new(sqlstate::FEATURE_NOT_SUPPORTED, text()),
        DataFusionError::Plan(_) => {
            let text = text();
            let lower = text.to_ascii_lowercase();
            if lower.contains("must appear in the group by clause")
                && let Some(name) = text.split('"').nth(1)
            {
                let message =
                    format!("column \"{name}\" must appear in the GROUP BY clause or be used in an aggregate function");
                return SqlError::new(sqlstate::GROUPING_ERROR, message);
            }
            if lower.starts_with("aggregate functions are not allowed in the where clause") {
                return SqlError::new(sqlstate::GROUPING_ERROR, "aggregate functions are not allowed in WHERE");
            }
            if let Some(name) = text.strip_prefix("Invalid qualifier ") {
                let message = format!("missing FROM-clause entry for table \"{name}\"");
                return SqlError::new(sqlstate::UNDEFINED_TABLE, message);
            }
            if lower.starts_with("aggregate function calls cannot be nested") {
                return SqlError::new(sqlstate::GROUPING_ERROR, "aggregate function calls cannot be nested");
            }
            let code = if lower.contains("invalid function") || lower.contains("no function matches") {
                sqlstate::UNDEFINED_FUNCTION
            } else if lower.contains("must be in the group by clause") || lower.contains("group by") {
                "42803"
            } else if lower.contains("cannot coerce") || lower.contains("type") {
                sqlstate::DATATYPE_MISMATCH
            } else {
                sqlstate::SYNTAX_ERROR
            };
            SqlError::new(code, text)
        }
        DataFusionError::Execution(message) if message.contains("more than one row") => {
            let message = "more than one row returned by a subquery used as an expression";
            SqlError::new(sqlstate::CARDINALITY_VIOLATION, message)
        }
        DataFusionError::Execution(message) if message.contains("negative count not allowed") => {
            SqlError::new("22011", "negative substring length not allowed")
        }
        DataFusionError::Execution(_) => SqlError::new("22000", text()),
        _ => internal(text()),
    }
}

/// The name that differs least from another one, if it is similar.
fn closest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = name.len() / 2;
    let close =
        names.map(|candidate| (distance(name, candidate), candidate)).filter(|(distance, _)| *distance <= limit);
    close.min().map(|(_, candidate)| candidate)
}

/// The number of characters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (number, a) in a.chars().enumerate() {
        let mut before = number;
        if let Some(first) = row.first_mut() {
            *first = number + 1;
        }
        for (column, b) in b.iter().enumerate() {
            let left = row.get(column).copied().unwrap_or(0);
            if let Some(above) = row.get_mut(column + 1) {
                let here = (before + usize::from(a != *b)).min(*above + 1).min(left + 1);
                before = std::mem::replace(above, here);
            }
        }
    }
    row.last().copied().unwrap_or(0)
}
