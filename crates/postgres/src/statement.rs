//! Prepared statements, and their plans for a version of the schema.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sql::direct::{self, OutputColumn, Plan};
use sql::parse;
use sql::schema::Schema;
use sql::statement::{Copy, CopySource, Statement};
use sql::{SqlError, SqlType, Value, sqlstate};

use crate::copy::CopyColumn;
use crate::database::Catalog;

/// A statement, its text, and its plan for the version of the schema that it was last executed with.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) text: Arc<str>,
    /// None for an empty statement.
    pub(crate) statement: Option<Statement>,
    /// The types of parameters that the client has given.
    declared: Vec<Option<SqlType>>,
    planned: Mutex<Option<(Arc<Catalog>, Planned)>>,
    /// The columns of the result that the client knows, or may know.
    result: OnceLock<Vec<(String, SqlType)>>,
}

/// A plan, and whether it scans.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) plan: Arc<Plan>,
    pub(crate) is_scan: bool,
}

impl Prepared {
    /// Parses a statement. `oids` are the types of parameters that the client has given; 0 is unknown.
    ///
    /// # Errors
    /// 42601: the syntax is not valid.
    pub(crate) fn new(text: &str, oids: &[u32]) -> Result<Self, SqlError> {
        let mut parsed = parse::parse(text)?;
        let statement = parsed.pop().map(|parsed| parsed.statement);
        if !parsed.is_empty() {
            let message = "cannot insert multiple commands into a prepared statement";
            return Err(SqlError::new(sqlstate::SYNTAX_ERROR, message));
        }
        let declared = oids.iter().map(|oid| SqlType::from_oid(*oid)).collect();
        Ok(Self { text: text.into(), statement, declared, planned: Mutex::default(), result: OnceLock::new() })
    }

    pub(crate) fn of(statement: Statement, text: &Arc<str>, declared: Vec<Option<SqlType>>) -> Self {
        let (planned, result) = (Mutex::default(), OnceLock::new());
        Self { text: Arc::clone(text), statement: Some(statement), declared, planned, result }
    }

    /// The plan of a statement that has one.
    ///
    /// # Errors
    /// The statement is not valid, or not supported.
    pub(crate) fn plan(&self, catalog: &Arc<Catalog>, constants: &[(&str, Value)]) -> Result<Planned, SqlError> {
        let mut cached = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, planned)) = &*cached
            && Arc::ptr_eq(of, catalog)
        {
            return Ok(planned.clone());
        }
        let statement = self.statement.as_ref().ok_or_else(|| SqlError::unsupported("an empty statement here"))?;
        let planned = plan(&catalog.schema, statement, &self.text, &self.declared, constants)?;
        *cached = Some((Arc::clone(catalog), planned.clone()));
        Ok(planned)
    }

    /// From now on, the result must have these columns.
    pub(crate) fn fix_result(&self, columns: &[OutputColumn]) {
        let named = |column: &OutputColumn| (column.name.clone(), column.sql_type.clone());
        _ = self.result.set(columns.iter().map(named).collect());
    }

    /// Checks that the columns of the result are those that the client knows.
    ///
    /// # Errors
    /// 0A000: the schema has changed so that they are not.
    pub(crate) fn check_result(&self, planned: &Planned) -> Result<(), SqlError> {
        let Some(known) = self.result.get() else { return Ok(()) };
        let found = planned.plan.columns.iter().map(|column| (&column.name, &column.sql_type));
        if known.iter().map(|(name, sql_type)| (name, sql_type)).eq(found) {
            return Ok(());
        }
        Err(SqlError::new(sqlstate::FEATURE_NOT_SUPPORTED, "cached plan must not change result type"))
    }

    /// Whether it can be a part of the transaction that the statements of one message are.
    pub(crate) fn can_be_implicit(&self) -> bool {
        self.is_planned() && !matches!(self.statement, Some(Statement::Query(_, Some(_))))
            || matches!(
                self.statement,
                Some(
                    Statement::Definition(_)
                        | Statement::Truncate { .. }
                        | Statement::Copy(_)
                        | Statement::Execute { .. }
                )
            )
    }

    /// Whether it only reads rows.
    pub(crate) fn is_query(&self) -> bool {
        matches!(self.statement, Some(Statement::Query(..)))
    }

    /// Whether it has a plan: it reads or changes rows.
    pub(crate) fn is_planned(&self) -> bool {
        matches!(
            self.statement,
            Some(Statement::Query(..) | Statement::Insert(_) | Statement::Update(_) | Statement::Delete(_))
        )
    }
}

fn plan(
    schema: &Schema,
    statement: &Statement,
    text: &str,
    declared: &[Option<SqlType>],
    constants: &[(&str, Value)],
) -> Result<Planned, SqlError> {
    if let Some(plan) = direct::prepare(schema, statement, text, declared)? {
        return Ok(Planned { plan: Arc::new(plan), is_scan: false });
    }
    if let Some(plan) = direct::prepare_scan(schema, statement, text, declared, constants)? {
        return Ok(Planned { plan: Arc::new(plan), is_scan: true });
    }
    let (what, hint) = match statement {
        Statement::Insert(_) => ("this form of INSERT", "INSERT ... VALUES is supported."),
        Statement::Update(_) => ("this form of UPDATE", "One table without FROM is supported."),
        Statement::Delete(_) => ("this form of DELETE", "One table without USING is supported."),
        _ => (
            "this form of SELECT",
            "One table with WHERE, ORDER BY and LIMIT, and count, sum, avg, min and max without GROUP BY, are supported.",
        ),
    };
    Err(not_yet(what).with_hint(hint))
}

fn not_yet(what: &str) -> SqlError {
    SqlError::new(sqlstate::FEATURE_NOT_SUPPORTED, format!("{what} is not supported yet"))
}

/// The columns of a result that one of the session's own statements has.
pub(crate) fn text_column(name: &str) -> OutputColumn {
    OutputColumn { name: name.to_owned(), sql_type: SqlType::Text, origin: None }
}

/// The columns of COPY: their numbers in the table, names and types.
pub(crate) fn copy_columns(schema: &Schema, copy: &Copy) -> Result<(String, Vec<usize>, Vec<CopyColumn>), SqlError> {
    let CopySource::Table(name, wanted) = &copy.source else {
        return Err(not_yet("COPY of a query"));
    };
    let table = schema.table_named(name)?;
    let visible = table.columns.iter().enumerate().filter(|(_, column)| !column.is_hidden);
    let mut found = Vec::new();
    if wanted.is_empty() {
        found.extend(visible);
    } else {
        for name in wanted {
            let column = visible.clone().find(|(_, column)| column.name == *name);
            let column = column.ok_or_else(|| sql::schema::undefined_column(table, name))?;
            if found.iter().any(|(number, _)| *number == column.0) {
                let message = format!("column \"{name}\" specified more than once");
                return Err(SqlError::new(sqlstate::DUPLICATE_COLUMN, message));
            }
            found.push(column);
        }
    }
    let of = |(_, column): &(usize, &sql::schema::Column)| CopyColumn {
        name: column.name.clone(),
        sql_type: column.sql_type.clone(),
    };
    Ok((name.clone(), found.iter().map(|(number, _)| *number).collect(), found.iter().map(of).collect()))
}
