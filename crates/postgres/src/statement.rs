//! Prepared statements, and their plans for a version of the schema.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sql::direct::{self, Command, OutputColumn, Plan};
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
    pub(crate) declared: Vec<Option<SqlType>>,
    planned: Mutex<Option<(Arc<Catalog>, Planned)>>,
    /// It reads too many rows to be executed without a planner.
    needs_planner: AtomicBool,
    /// It calls functions such as `pg_relation_size`.
    pub(crate) reads_sizes: bool,
    /// The columns of the result that were described to the client.
    result: OnceLock<Vec<(String, SqlType)>>,
}

/// The plan of a statement.
#[derive(Clone, Debug)]
pub(crate) enum Planned {
    /// Direct execution by keys.
    Direct(Arc<Plan>),
    Query(Arc<query::Query>),
    /// A change of the rows that a query finds.
    Change {
        source: Arc<query::Query>,
        /// The plan of the change for no rows.
        shape: Arc<Plan>,
    },
}

impl Planned {
    /// The columns of the result.
    pub(crate) fn columns(&self) -> &[OutputColumn] {
        match self {
            Self::Direct(plan) | Self::Change { shape: plan, .. } => &plan.columns,
            Self::Query(query) => &query.columns,
        }
    }

    /// The types of the parameters.
    pub(crate) fn parameters(&self) -> &[SqlType] {
        match self {
            Self::Direct(plan) | Self::Change { shape: plan, .. } => &plan.parameters,
            Self::Query(query) => &query.parameters,
        }
    }

    pub(crate) fn command(&self) -> Command {
        match self {
            Self::Direct(plan) | Self::Change { shape: plan, .. } => plan.command,
            Self::Query(_) => Command::Select,
        }
    }

    /// Its description in a line of `EXPLAIN`.
    pub(crate) fn describe(&self) -> String {
        let command = match self.command() {
            Command::Select => "Select",
            Command::Insert => "Insert",
            Command::Update => "Update",
            Command::Delete => "Delete",
        };
        match self {
            Self::Direct(plan) => match plan.index() {
                Some(index) => format!("{command} by index {index}, without a planner"),
                None => format!("{command} by key, without a planner"),
            },
            Self::Query(_) | Self::Change { .. } => command.to_owned(),
        }
    }
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
        Ok(Self::with(statement, text.into(), declared))
    }

    pub(crate) fn of(statement: Statement, text: &Arc<str>, declared: Vec<Option<SqlType>>) -> Self {
        Self::with(Some(statement), Arc::clone(text), declared)
    }

    fn with(statement: Option<Statement>, text: Arc<str>, declared: Vec<Option<SqlType>>) -> Self {
        let (planned, needs_planner, result) = (Mutex::default(), AtomicBool::new(false), OnceLock::new());
        // Wrong about texts that contain it for another reason, which costs little.
        let reads_sizes = text.contains("_size");
        Self { text, statement, declared, planned, needs_planner, reads_sizes, result }
    }

    /// Whether all further executions need a planner.
    pub(crate) fn needs_planner(&self) -> bool {
        self.needs_planner.load(Ordering::Relaxed)
    }

    /// Forgets the plan without a planner.
    pub(crate) fn set_needs_planner(&self) {
        self.needs_planner.store(true, Ordering::Relaxed);
        *self.planned.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The plan for a version of the schema, if there is one.
    pub(crate) fn cached(&self, catalog: &Arc<Catalog>) -> Option<Planned> {
        let cached = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        cached.as_ref().filter(|(of, _)| Arc::ptr_eq(of, catalog)).map(|(_, planned)| planned.clone())
    }

    pub(crate) fn remember(&self, catalog: &Arc<Catalog>, planned: Planned) {
        *self.planned.lock().unwrap_or_else(PoisonError::into_inner) = Some((Arc::clone(catalog), planned));
    }

    /// The plan without a planner, if the statement needs none.
    ///
    /// # Errors
    /// The statement is not valid.
    pub(crate) fn direct(&self, schema: &Schema, constants: &[(&str, Value)]) -> Result<Option<Plan>, SqlError> {
        let statement = self.statement.as_ref().ok_or_else(|| SqlError::unsupported("an empty statement here"))?;
        if let Some(plan) = direct::prepare(schema, statement, &self.text, &self.declared)? {
            return Ok(Some(plan));
        }
        if !self.is_query() {
            return Ok(None);
        }
        // A statement that it refuses may be valid for the planner.
        let plan = direct::prepare_scan(schema, statement, &self.text, &self.declared, constants);
        Ok(plan.ok().flatten().filter(Plan::is_without_reads))
    }

    /// Fixes the columns of the result for all later executions.
    pub(crate) fn fix_result(&self, columns: &[OutputColumn]) {
        let named = |column: &OutputColumn| (column.name.clone(), column.sql_type.clone());
        _ = self.result.set(columns.iter().map(named).collect());
    }

    /// Checks that the result still has the columns that were described to the client.
    ///
    /// # Errors
    /// 0A000: a change of the schema has changed them.
    pub(crate) fn check_result(&self, planned: &Planned) -> Result<(), SqlError> {
        let Some(known) = self.result.get() else { return Ok(()) };
        let found = planned.columns().iter().map(|column| (&column.name, &column.sql_type));
        if known.iter().map(|(name, sql_type)| (name, sql_type)).eq(found) {
            return Ok(());
        }
        Err(SqlError::new(sqlstate::FEATURE_NOT_SUPPORTED, "cached plan must not change result type"))
    }

    /// Whether it can be part of the implicit transaction of the statements in one message.
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

fn not_yet(what: &str) -> SqlError {
    SqlError::new(sqlstate::FEATURE_NOT_SUPPORTED, format!("{what} is not supported yet"))
}

/// A column of text in the result of a statement that the session executes itself, such as `SHOW`.
pub(crate) fn text_column(name: &str) -> OutputColumn {
    OutputColumn { name: name.to_owned(), sql_type: SqlType::Text, origin: None }
}

/// Checks that the columns of a view differ. `names` are those that its definition gives to the first columns.
pub(crate) fn check_view(names: &[String], columns: &[OutputColumn]) -> Result<(), SqlError> {
    let mut seen = HashSet::new();
    for (number, column) in columns.iter().enumerate() {
        let name = names.get(number).unwrap_or(&column.name);
        if !seen.insert(name) {
            let message = format!("column \"{name}\" specified more than once");
            return Err(SqlError::new(sqlstate::DUPLICATE_COLUMN, message));
        }
    }
    Ok(())
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
