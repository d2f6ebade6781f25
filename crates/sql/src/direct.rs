//! Statements that need no planner, because they name their rows by key: point reads and short scans, `INSERT ...
//! VALUES`, and `UPDATE` and `DELETE` by primary key.
//!
//! [`prepare_scan`] also covers simple statements that scan one table. Sessions use it for `SELECT` without `FROM`.
//!
//! [`prepare`] makes a [`Plan`], which is valid for one version of the schema and any parameters. [`Plan::start`]
//! begins an [`Execution`]: it asks for reads ([`Step::Read`]), and from their results makes further reads or the
//! outcome with its writes ([`Step::Done`]). The transaction layer carries them out; all reads and writes of a statement
//! belong to one transaction. If the transaction is retried, the execution starts again.
//!
//! Reads must show the transaction's snapshot with its own earlier writes. A locking clause (`FOR UPDATE`) is not needed
//! for correct results, because transactions are serializable: it only makes other transactions wait for the rows that
//! are named by key ([`Read::Locked`]), so that they do not fail.

mod change;
mod condition;
mod given;
mod insert;
mod output;
mod scan;
mod select;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use given::{ALL_COLUMNS, Source, of_rows, source};
pub use output::name_of;

use bytes::Bytes;
use sqlparser::ast::{GroupByExpr, Query, Select};

use crate::bind::{Binder, Unbound};
use crate::error::{SqlError, sqlstate};
use crate::expression::{Environment, Rows};
use crate::ids::{ColumnId, SequenceId, TableId};
use crate::keys::KeyRange;
use crate::rows::{Absent, StoredRow, Write};
use crate::schema::{Relation, Schema, Table};
use crate::statement::Statement;
use crate::types::SqlType;
use crate::value::Value;

pub use scan::row_bytes;

/// A column of the result.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputColumn {
    pub name: String,
    pub sql_type: SqlType,
    /// The column of a table that it is.
    pub origin: Option<(TableId, ColumnId)>,
}

/// A read that an execution asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The row with this key.
    Row(Bytes),
    /// The row with this key, which the transaction is about to change or to insert. Others that are about to change it
    /// wait, if the transaction takes locks.
    Locked(Bytes),
    /// The entry of a unique index with this key. If there is one, the row that it refers to is the next read, and nothing
    /// else: without transactions the two may be of different moments.
    Entry(Bytes),
    /// Rows of a range in the order of their keys: at least `limit`, or all.
    Range(KeyRange, usize),
    /// As [`Self::Range`], with these cells of the rows, and without rows that have none of them. A transaction may read
    /// all cells.
    Cells(KeyRange, usize, Arc<[Bytes]>),
}

impl Read {
    /// Rows of a range, or only these cells of them.
    #[must_use]
    pub fn range(range: KeyRange, limit: usize, cells: Option<&Arc<[Bytes]>>) -> Self {
        match cells {
            None => Self::Range(range, limit),
            Some(cells) => Self::Cells(range, limit, Arc::clone(cells)),
        }
    }
}

/// The result of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub rows: Vec<StoredRow>,
    /// Where the range continues, if it was not read to its end.
    pub next: Option<Bytes>,
}

/// The next step of an execution.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The results of these reads, in this order.
    Read(Vec<Read>),
    /// Nothing: it is done.
    Done(Outcome),
    /// As [`Step::Done`] if all reads were of one moment. Otherwise they must be.
    DoneIfOneMoment(Outcome),
    /// A planner, for these parameters: there are too many rows. Nothing was written.
    NeedsPlanner,
}

/// The result of a statement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The rows that it returns.
    pub rows: Vec<Vec<Value>>,
    /// The number of rows that it read or changed, for the command tag.
    pub affected: u64,
    pub writes: Vec<Write>,
}

/// The command of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `SELECT`
    Select,
    /// `INSERT`
    Insert,
    /// `UPDATE`
    Update,
    /// `DELETE`
    Delete,
}

#[derive(Clone, Debug)]
pub struct Plan {
    /// The version of the schema.
    pub version: u64,
    pub command: Command,
    /// The types of the parameters.
    pub parameters: Vec<SqlType>,
    /// The columns of the result; none if it has no result.
    pub columns: Vec<OutputColumn>,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Select(select::Select),
    Insert(insert::Insert),
    Change(change::Change),
    Scan(scan::Scan),
    Given(Box<given::Given>),
}

/// A statement in execution.
#[derive(Debug)]
pub struct Execution<'a> {
    plan: &'a Plan,
    state: State,
}

#[derive(Debug)]
enum State {
    Select(select::State),
    Insert(insert::State),
    Change(change::State),
    Scan(scan::State),
    Given(Box<given::State>),
    Check(Checks),
    Done,
}

/// Prepares a statement. `declared` are types of parameters that the client has given. `None` if it needs a planner.
///
/// # Errors
/// The statement is not valid for a planner either.
pub fn prepare(
    schema: &Schema,
    statement: &Statement,
    text: &str,
    declared: &[Option<SqlType>],
) -> Result<Option<Plan>, SqlError> {
    let mut binder = Binder::new(schema, text, declared);
    let bound =
        match statement {
            Statement::Query(query, None) => match select::prepare(&mut binder, query) {
                Err(Unbound::NeedsPlanner) => {
                    // A statement that is refused here may be valid for a planner.
                    binder = Binder::new(schema, text, declared);
                    let short = scan::prepare_short(&mut binder, query).map_err(|_| Unbound::NeedsPlanner);
                    short.map(|(scan, columns)| (Command::Select, Kind::Scan(scan), columns))
                }
                bound => bound.map(|(kind, columns)| (Command::Select, Kind::Select(kind), columns)),
            },
            Statement::Insert(insert) => insert::prepare(&mut binder, insert)
                .map(|(kind, columns)| (Command::Insert, Kind::Insert(kind), columns)),
            Statement::Update(update) => change::update(&mut binder, update)
                .map(|(kind, columns)| (Command::Update, Kind::Change(kind), columns)),
            Statement::Delete(delete) => change::delete(&mut binder, delete)
                .map(|(kind, columns)| (Command::Delete, Kind::Change(kind), columns)),
            _ => return Ok(None),
        };
    match bound {
        Ok((_, Kind::Change(change), _)) if !change::is_point(&change) => Ok(None),
        bound => finish(schema, binder, bound),
    }
}

/// As [`prepare`], for statements that scan one table of any size, and for `SELECT` without `FROM`: with sorting, and
/// with `count`, `sum`, `min`, `max` and `avg` without groups. `constants` are values of functions without arguments,
/// such as `version`.
///
/// # Errors
/// The statement is not valid.
pub fn prepare_scan(
    schema: &Schema,
    statement: &Statement,
    text: &str,
    declared: &[Option<SqlType>],
    constants: &[(&str, Value)],
) -> Result<Option<Plan>, SqlError> {
    let mut binder = Binder::new(schema, text, declared);
    binder.constants = constants;
    let bound = match statement {
        Statement::Query(query, _) => {
            scan::prepare(&mut binder, query).map(|(kind, columns)| (Command::Select, Kind::Scan(kind), columns))
        }
        Statement::Update(update) => change::update(&mut binder, update)
            .map(|(change, columns)| (Command::Update, Kind::Scan(scan::Scan::Change(Box::new(change))), columns)),
        Statement::Delete(delete) => change::delete(&mut binder, delete)
            .map(|(change, columns)| (Command::Delete, Kind::Scan(scan::Scan::Change(Box::new(change))), columns)),
        _ => return Ok(None),
    };
    finish(schema, binder, bound)
}

/// The insertion of rows that `COPY` read: each has a value for each of these columns.
///
/// # Errors
/// There is no such table or column.
pub fn insert_rows(schema: &Schema, table: &str, columns: &[usize], rows: Vec<Vec<Value>>) -> Result<Plan, SqlError> {
    let mut binder = Binder::new(schema, "", &[]);
    let bound = insert::of_rows(&mut binder, schema.table_named(table)?, columns, rows);
    let bound = bound.map(|kind| (Command::Insert, Kind::Insert(kind), Vec::new()));
    finish(schema, binder, bound)?.ok_or_else(|| SqlError::unsupported("a default value or condition of this table"))
}

/// The values of expressions without columns, as parameters of these types.
///
/// # Errors
/// There are more or fewer expressions than types; errors of the expressions.
pub fn evaluate(
    schema: &Schema,
    text: &str,
    expressions: &[sqlparser::ast::Expr],
    types: &[SqlType],
    environment: &mut Environment,
) -> Result<Vec<Value>, SqlError> {
    if expressions.len() != types.len() {
        let message = format!("wrong number of parameters: {} instead of {}", expressions.len(), types.len());
        return Err(SqlError::new(sqlstate::SYNTAX_ERROR, message));
    }
    let mut binder = Binder::new(schema, text, &[]);
    let value = |(expression, to): (&sqlparser::ast::Expr, &SqlType)| {
        let bound = binder.assigned("", to, expression).map_err(|unbound| match unbound {
            Unbound::Error(error) => error,
            Unbound::NeedsPlanner => SqlError::unsupported("this expression as a parameter"),
        })?;
        let bound =
            bound.ok_or_else(|| SqlError::new(sqlstate::SYNTAX_ERROR, "DEFAULT is not allowed in this context"))?;
        bound.evaluate(Rows::default(), environment)
    };
    expressions.iter().zip(types).map(value).collect()
}

type Bound = Result<(Command, Kind, Vec<OutputColumn>), Unbound>;

fn finish(schema: &Schema, binder: Binder, bound: Bound) -> Result<Option<Plan>, SqlError> {
    let (command, kind, columns) = match bound {
        Ok(bound) => bound,
        Err(Unbound::NeedsPlanner) => return Ok(None),
        Err(Unbound::Error(error)) => return Err(error),
    };
    let typed = binder.parameters.into_iter().enumerate().map(|(number, sql_type)| {
        sql_type.ok_or_else(|| {
            let message = format!("could not determine data type of parameter ${}", number + 1);
            SqlError::new(sqlstate::INDETERMINATE_DATATYPE, message)
        })
    });
    let parameters = typed.collect::<Result<Vec<_>, _>>()?;
    Ok(Some(Plan { version: schema.version(), command, parameters, columns, kind }))
}

/// Whether a query has nothing but columns, one `FROM`, `WHERE`, `ORDER BY` and `LIMIT`.
fn is_plain(query: &Query, select: &Select) -> bool {
    query.with.is_none()
        && query.fetch.is_none()
        && query.pipe_operators.is_empty()
        && select.distinct.is_none()
        && select.top.is_none()
        && select.into.is_none()
        && select.lateral_views.is_empty()
        && select.having.is_none()
        && select.qualify.is_none()
        && select.named_window.is_empty()
        && matches!(&select.group_by, GroupByExpr::Expressions(by, modifiers) if by.is_empty() && modifiers.is_empty())
}

/// Whether values of one type are values of another one: the two differ at most in declared lengths.
fn has_values_of(found: &SqlType, wanted: &SqlType) -> bool {
    match (found, wanted) {
        (SqlType::Array(found), SqlType::Array(wanted)) => has_values_of(found, wanted),
        (found, wanted) => found.is_same_base(wanted) || found.is_text() && wanted.is_text(),
    }
}

impl Plan {
    /// The sequences from which an execution takes values, and how many.
    #[must_use]
    pub fn sequences(&self) -> Vec<(SequenceId, usize)> {
        match &self.kind {
            Kind::Insert(insert) => insert.sequences(),
            Kind::Scan(scan) => scan.sequences(),
            Kind::Select(_) | Kind::Change(_) | Kind::Given(_) => Vec::new(),
        }
    }

    /// The name of the index by which it finds rows; none if by their keys.
    #[must_use]
    pub fn index(&self) -> Option<&str> {
        if let Kind::Scan(scan) = &self.kind { scan.index() } else { None }
    }

    /// Whether its reads must be of one moment.
    #[must_use]
    pub fn needs_snapshot(&self) -> bool {
        match &self.kind {
            Kind::Select(select) => select.needs_snapshot(),
            Kind::Scan(scan) => scan.needs_snapshot(),
            Kind::Insert(_) | Kind::Change(_) | Kind::Given(_) => false,
        }
    }

    /// Whether it needs nothing from the store: a `SELECT` without `FROM`.
    #[must_use]
    pub fn is_without_reads(&self) -> bool {
        matches!(&self.kind, Kind::Scan(scan) if scan.is_without_reads())
    }

    /// Begins an execution.
    ///
    /// # Errors
    /// 08P01 for a wrong number of parameters; errors of expressions and constraints.
    pub fn start(&self, environment: &mut Environment) -> Result<(Execution<'_>, Step), SqlError> {
        let (wanted, given) = (self.parameters.len(), environment.parameters.len());
        if wanted != given {
            let message = format!("bind message supplies {given} parameters, but the statement requires {wanted}");
            return Err(SqlError::new(sqlstate::PROTOCOL_VIOLATION, message));
        }
        // The values are of the types that were inferred with the schema of before.
        let has_changed =
            |(value, wanted): (&Value, &SqlType)| value.sql_type().is_some_and(|found| !has_values_of(&found, wanted));
        if environment.parameters.iter().zip(&self.parameters).any(has_changed) {
            return Err(SqlError::unsupported("a statement whose parameters have other types since it was prepared"));
        }
        let (state, step) = match &self.kind {
            Kind::Select(select) => select.start(environment)?,
            Kind::Insert(insert) => insert.start(environment)?,
            Kind::Change(change) => change.start(environment)?,
            Kind::Scan(scan) => scan.start(environment)?,
            Kind::Given(given) => given.start()?,
        };
        Ok((Execution { plan: self, state }, step))
    }
}

impl Execution<'_> {
    /// About the memory of the results so far, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        if let State::Scan(state) = &self.state { state.bytes() } else { 0 }
    }

    /// Continues with the results of the reads of the last step, in their order.
    ///
    /// # Errors
    /// Errors of expressions and constraints; the statement then has no effect.
    pub fn advance(&mut self, pages: Vec<Page>, environment: &mut Environment) -> Result<Step, SqlError> {
        let state = std::mem::replace(&mut self.state, State::Done);
        let (state, step) = match (&self.plan.kind, state) {
            (Kind::Select(select), State::Select(state)) => select.advance(state, pages, environment)?,
            (Kind::Insert(insert), State::Insert(state)) => insert.advance(state, &pages, environment)?,
            (Kind::Change(change), State::Change(state)) => change.advance(state, pages, environment)?,
            (Kind::Scan(scan), State::Scan(state)) => scan.advance(state, pages, environment)?,
            (Kind::Given(given), State::Given(state)) => given.advance(state, pages, environment)?,
            (_, State::Check(checks)) => (State::Done, checks.finish(&pages)?),
            _ => return Err(SqlError::new(sqlstate::INTERNAL_ERROR, "the execution is done")),
        };
        self.state = state;
        Ok(step)
    }
}

/// The checks of a statement's writes, which are its last reads.
#[derive(Debug, Default)]
struct Checks {
    absent: Vec<Absent>,
    /// Keys of rows that must exist, and the error if one does not.
    present: Vec<(Bytes, SqlError)>,
    outcome: Outcome,
}

impl Checks {
    /// The reads, or the outcome if there is nothing to check.
    fn start(mut self) -> Result<(State, Step), SqlError> {
        let mut keys = BTreeSet::new();
        for absent in &self.absent {
            // Two rows of the statement have the same unique key.
            if let Some(error) = absent.error()
                && !keys.insert(&absent.key)
            {
                return Err(error.clone());
            }
        }
        // A row may take the place that another one of the statement leaves: all old ones are deleted before new ones
        // are put.
        let writes = std::mem::take(&mut self.outcome.writes);
        let (mut deletes, puts): (Vec<_>, Vec<_>) =
            writes.into_iter().partition(|write| matches!(write, Write::Delete { .. }));
        let deleted: BTreeSet<&Bytes> = deletes.iter().map(Write::key).collect();
        self.absent.retain(|absent| !deleted.contains(&absent.key));
        deletes.extend(puts);
        self.outcome.writes = deletes;
        if self.absent.is_empty() && self.present.is_empty() {
            return Ok((State::Done, Step::Done(self.outcome)));
        }
        let present = self.present.iter().map(|(key, _)| Read::Row(key.clone()));
        let reads = self.absent.iter().map(|absent| Read::Locked(absent.key.clone())).chain(present);
        let step = Step::Read(reads.collect());
        Ok((State::Check(self), step))
    }

    fn finish(mut self, pages: &[Page]) -> Result<Step, SqlError> {
        expect_pages(pages, self.absent.len() + self.present.len())?;
        let (absent, present) = pages.split_at(self.absent.len());
        let found = || absent.iter().map(|page| page.rows.first()).zip(&self.absent);
        let left: BTreeSet<&Bytes> =
            found().filter(|(found, absent)| absent.deletes(*found)).map(|(_, absent)| &absent.key).collect();
        for (found, absent) in found().filter(|(_, absent)| !left.contains(&absent.key)) {
            absent.verify(found)?;
        }
        let deletes: Vec<Write> = left.into_iter().map(|key| Write::Delete { key: key.clone() }).collect();
        self.outcome.writes.splice(0..0, deletes);
        for (page, (_, error)) in present.iter().zip(self.present) {
            if page.rows.is_empty() {
                return Err(error);
            }
        }
        Ok(Step::Done(self.outcome))
    }
}

fn expect_pages(pages: &[Page], wanted: usize) -> Result<(), SqlError> {
    if pages.len() == wanted {
        return Ok(());
    }
    Err(SqlError::new(sqlstate::INTERNAL_ERROR, format!("{} results for {wanted} reads", pages.len())))
}

/// The table of a statement. Views and system catalogs need a planner.
fn table<'a>(
    schema: &'a Schema,
    name: &sqlparser::ast::ObjectName,
    text: &str,
) -> Result<&'a std::sync::Arc<Table>, Unbound> {
    let first = name.0.first().and_then(|part| part.as_ident());
    let is_system = |name: String| name.starts_with("pg_") || name == "information_schema";
    let short = first.map(crate::parse::fold);
    if short.is_some_and(|name| is_system(name.clone()) && schema.relation(&name).is_none()) {
        return Err(Unbound::NeedsPlanner);
    }
    let short = crate::parse::simple_name(name)?;
    match schema.relation(&short) {
        Some(Relation::View(_) | Relation::Sequence(_)) => Err(Unbound::NeedsPlanner),
        _ => schema.table_named(&short).map_err(|error| match first {
            Some(ident) => Unbound::Error(error.at(crate::parse::position(text, ident.span.start))),
            None => Unbound::Error(error),
        }),
    }
}
