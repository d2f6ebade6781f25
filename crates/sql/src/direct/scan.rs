//! Statements that scan one table, and `SELECT` without `FROM`: all that is executed without a planner beyond keys.
//!
//! Rows are read in pages. Results, and rows that are sorted or changed, are in memory, limited to
//! [`RESULT_BYTES_MAX`].

use std::collections::BTreeMap;
use std::sync::Arc;

use base::limits::sql::RESULT_BYTES_MAX;
use bytes::Bytes;
use sqlparser::ast::{self, Expr, LimitClause, OrderByExpr, OrderByKind, Query, SelectItem, SetExpr, Value as Literal};

use super::change::Change;
use super::condition::{Condition, Lookup, by_index, divide};
use super::insert::count_sequences;
use super::select::single_table;
use super::{Checks, Outcome, OutputColumn, Page, Read, Step, expect_pages, output};
use crate::bind::{Binder, Unbound, function_name};
use crate::cast::Context;
use crate::error::{SqlError, sqlstate};
use crate::expression::{Environment, Expression, Rows};
use crate::ids::SequenceId;
use crate::keys::{self, KeyRange};
use crate::numeric::Numeric;
use crate::parse::fold;
use crate::rows::{StoredRow, TableRows, Wanted};
use crate::types::SqlType;
use crate::value::Value;

/// Rows that are read at once: one page of the store.
const PAGE_ROWS: usize = base::limits::SCAN_ROWS_MAX;
/// Maximum rows or index entries that a statement reads if a planner could execute it too, and bytes of its result.
const SHORT_ROWS_MAX: usize = 1_000;
const SHORT_BYTES_MAX: usize = 1 << 20;
/// Rows of which the descendants are read at once.
const PARENTS_MAX: usize = 64;
/// Maximum rows that a statement changes: a transaction cannot write more.
const CHANGES_MAX: usize = base::limits::TRANSACTION_WRITES_MAX;

#[derive(Clone, Debug)]
pub(super) enum Scan {
    Select(Box<Select>),
    /// `UPDATE` and `DELETE` of all rows that match.
    Change(Box<Change>),
}

#[derive(Clone, Debug)]
pub(super) struct Select {
    /// The table, and which of its rows. Without one there is a single row without columns.
    source: Option<(TableRows, Condition)>,
    /// Its columns that are used.
    wanted: Option<Wanted>,
    /// The index by which its rows are found.
    lookup: Option<Lookup>,
    /// A planner executes it if it exceeds [`SHORT_ROWS_MAX`] or [`SHORT_BYTES_MAX`].
    is_short: bool,
    results: Results,
    order: Vec<Order>,
    limit: Option<Expression>,
    offset: Option<Expression>,
}

#[derive(Clone, Debug)]
enum Results {
    Rows(Vec<Expression>),
    Aggregates(Vec<Aggregate>),
}

#[derive(Clone, Debug)]
struct Order {
    by: OrderBy,
    descending: bool,
    nulls_first: bool,
}

#[derive(Clone, Debug)]
enum OrderBy {
    /// A column of the result.
    Output(usize),
    Expression(Expression),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Count,
    Sum,
    Average,
    Min,
    Max,
}

/// An aggregate function, and its argument; none for `count(*)`.
#[derive(Clone, Debug)]
struct Aggregate {
    function: Function,
    argument: Option<Expression>,
    result: SqlType,
}

#[derive(Debug)]
pub(super) struct State {
    /// The read in progress. The descendants of deleted rows are read after it.
    reading: Option<Reading>,
    /// The results so far, each with the values by which it is sorted.
    found: Vec<(Vec<Value>, Vec<Value>)>,
    bytes: usize,
    aggregates: Vec<Accumulator>,
    skip: u64,
    limit: u64,
    /// The number of rows or entries that were read.
    read: usize,
    /// The rows that entries of an index refer to.
    rows: Vec<Read>,
    /// The key of an entry of a unique index.
    entry: Option<Vec<u8>>,
    /// The row of the entry has other values: the reads were of different moments.
    has_moved: bool,
    matched: Vec<(StoredRow, Vec<Value>)>,
    /// How many of them are changed.
    done: usize,
    checks: Checks,
}

#[derive(Debug)]
enum Reading {
    /// This many rows by their keys.
    Rows(usize),
    /// What remains of a range.
    Range(KeyRange),
    /// What remains of the entries of an index.
    Entries(KeyRange),
}

pub(super) fn prepare(binder: &mut Binder, query: &Query) -> Result<(Scan, Vec<OutputColumn>), Unbound> {
    prepare_select(binder, query, false)
}

/// A query that probably reads few rows: by a narrow condition on the primary key, or by the values of all columns of an
/// index.
pub(super) fn prepare_short(binder: &mut Binder, query: &Query) -> Result<(Scan, Vec<OutputColumn>), Unbound> {
    if !query.locks.is_empty() || query.for_clause.is_some() {
        return Err(Unbound::NeedsPlanner);
    }
    prepare_select(binder, query, true)
}

fn prepare_select(binder: &mut Binder, query: &Query, is_short: bool) -> Result<(Scan, Vec<OutputColumn>), Unbound> {
    let mut lookup = None;
    let SetExpr::Select(select) = &*query.body else { return Err(Unbound::NeedsPlanner) };
    if !super::is_plain(query, select) {
        return Err(Unbound::NeedsPlanner);
    }
    let source = match &select.from[..] {
        [] => None,
        [from] => {
            let (table, alias) = single_table(binder, from)?;
            let rows = TableRows::bound(binder.schema, table)?;
            binder.table = Some((table, alias));
            let mut condition = divide(binder, &rows, select.selection.as_ref())?;
            if is_short && !condition.is_narrow(&rows) {
                let selection = select.selection.as_ref().ok_or(Unbound::NeedsPlanner)?;
                let found = by_index(binder, &rows, selection)?.ok_or(Unbound::NeedsPlanner)?;
                (lookup, condition) = (Some(found.0), found.1);
            }
            Some((rows, condition))
        }
        _ => return Err(Unbound::NeedsPlanner),
    };
    if source.is_none() && (is_short || select.selection.is_some()) {
        return Err(Unbound::NeedsPlanner);
    }
    let (results, columns) = if select.projection.iter().any(is_aggregate) {
        let (aggregates, columns) = aggregates(binder, &select.projection)?;
        (Results::Aggregates(aggregates), columns)
    } else {
        let (output, columns) = output::bind(binder, &select.projection)?;
        (Results::Rows(output), columns)
    };
    let order = match query.order_by.as_ref().map(|order| &order.kind) {
        None => Vec::new(),
        Some(OrderByKind::Expressions(order)) => {
            order.iter().map(|item| order_item(binder, item, &columns)).collect::<Result<_, _>>()?
        }
        Some(OrderByKind::All(_)) => return Err(Unbound::NeedsPlanner),
    };
    let mut integer = |expression: &Expr| {
        let typed = binder.bind(expression)?;
        binder.coerce(typed, &SqlType::Int8, Context::Assignment)
    };
    let (limit, offset) = match &query.limit_clause {
        None => (None, None),
        Some(LimitClause::LimitOffset { limit, offset, limit_by }) if limit_by.is_empty() => {
            let limit = limit.as_ref().map(&mut integer).transpose()?;
            (limit, offset.as_ref().map(|offset| integer(&offset.value)).transpose()?)
        }
        Some(_) => return Err(Unbound::NeedsPlanner),
    };
    let mut select = Select { source, wanted: None, lookup, is_short, results, order, limit, offset };
    select.wanted = select.find_wanted();
    Ok((Scan::Select(Box::new(select)), columns))
}

fn order_item(binder: &mut Binder, item: &OrderByExpr, columns: &[OutputColumn]) -> Result<Order, Unbound> {
    if item.with_fill.is_some() {
        return Err(Unbound::NeedsPlanner);
    }
    let descending = item.options.asc == Some(false);
    let by_name = |name: &ast::Ident| columns.iter().position(|column| column.name == fold(name));
    let output = match &item.expr {
        Expr::Value(value) => match &value.value {
            Literal::Number(..) => {
                let number = value.value.to_string().parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                let number = number.filter(|number| *number < columns.len()).ok_or_else(|| {
                    let message = format!("ORDER BY position {} is not in select list", value.value);
                    SqlError::new(sqlstate::INVALID_COLUMN_REFERENCE, message)
                })?;
                Some(number)
            }
            _ => None,
        },
        Expr::Identifier(name) => by_name(name),
        _ => None,
    };
    let by = match output {
        Some(number) => OrderBy::Output(number),
        None => {
            let typed = binder.bind(&item.expr)?;
            let of = typed.sql_type.clone().unwrap_or(SqlType::Text);
            // Equal `jsonb` values can have different texts.
            if matches!(of, SqlType::Jsonb) {
                return Err(Unbound::NeedsPlanner);
            }
            OrderBy::Expression(binder.coerce(typed, &of, Context::Implicit)?)
        }
    };
    Ok(Order { by, descending, nulls_first: item.options.nulls_first.unwrap_or(descending) })
}

fn item_expression(item: &SelectItem) -> Option<&Expr> {
    match item {
        SelectItem::UnnamedExpr(expression) | SelectItem::ExprWithAlias { expr: expression, .. } => Some(expression),
        _ => None,
    }
}

fn aggregate_function(expression: &Expr) -> Option<(Function, &ast::Function)> {
    let Expr::Function(function) = expression else { return None };
    let kind = match function_name(function)?.as_str() {
        "count" => Function::Count,
        "sum" => Function::Sum,
        "avg" => Function::Average,
        "min" => Function::Min,
        "max" => Function::Max,
        _ => return None,
    };
    Some((kind, function))
}

fn is_aggregate(item: &SelectItem) -> bool {
    item_expression(item).is_some_and(|expression| aggregate_function(expression).is_some())
}

fn aggregates(binder: &mut Binder, items: &[SelectItem]) -> Result<(Vec<Aggregate>, Vec<OutputColumn>), Unbound> {
    let mut all = Vec::new();
    let mut columns = Vec::new();
    for item in items {
        let expression = item_expression(item).ok_or(Unbound::NeedsPlanner)?;
        let (kind, function) = aggregate_function(expression).ok_or(Unbound::NeedsPlanner)?;
        let aggregate = aggregate(binder, kind, function)?;
        let name = match item {
            SelectItem::ExprWithAlias { alias, .. } => fold(alias),
            _ => output::name_of(expression),
        };
        columns.push(OutputColumn { name, sql_type: aggregate.result.clone(), origin: None });
        all.push(aggregate);
    }
    Ok((all, columns))
}

fn aggregate(binder: &mut Binder, function: Function, call: &ast::Function) -> Result<Aggregate, Unbound> {
    use SqlType as T;
    let is_plain = call.filter.is_none() && call.over.is_none() && call.within_group.is_empty();
    let ast::FunctionArguments::List(list) = &call.args else { return Err(Unbound::NeedsPlanner) };
    let [ast::FunctionArg::Unnamed(argument)] = &list.args[..] else { return Err(Unbound::NeedsPlanner) };
    if !is_plain || list.duplicate_treatment.is_some() || !list.clauses.is_empty() {
        return Err(Unbound::NeedsPlanner);
    }
    let argument = match argument {
        ast::FunctionArgExpr::Wildcard if function == Function::Count => {
            return Ok(Aggregate { function, argument: None, result: T::Int8 });
        }
        ast::FunctionArgExpr::Expr(expression) => binder.bind(expression)?,
        _ => return Err(Unbound::NeedsPlanner),
    };
    let of = argument.sql_type.clone().ok_or(Unbound::NeedsPlanner)?;
    let result = match (function, &of) {
        (Function::Count, _) | (Function::Sum, T::Int2 | T::Int4) => T::Int8,
        (Function::Sum | Function::Average, T::Int2 | T::Int4 | T::Int8 | T::Numeric(_)) => T::Numeric(None),
        (Function::Sum, T::Float4) => T::Float4,
        (Function::Sum, T::Float8) | (Function::Average, T::Float4 | T::Float8) => T::Float8,
        (Function::Min | Function::Max, of) if !matches!(of, T::Jsonb | T::Array(_) | T::Bool) => {
            crate::bind::without_length(of)
        }
        _ => return Err(Unbound::NeedsPlanner),
    };
    Ok(Aggregate { function, argument: Some(argument.expression), result })
}

/// The state of an aggregate function.
#[derive(Clone, Debug)]
struct Accumulator {
    count: i64,
    integers: i128,
    numeric: Option<Numeric>,
    float: f64,
    extreme: Value,
}

impl Accumulator {
    fn new() -> Self {
        Self { count: 0, integers: 0, numeric: None, float: 0.0, extreme: Value::Null }
    }

    fn add(&mut self, aggregate: &Aggregate, value: Value) -> Result<(), SqlError> {
        if value.is_null() {
            return Ok(());
        }
        self.count += 1;
        match aggregate.function {
            Function::Count => {}
            Function::Sum | Function::Average => match value {
                Value::Float4(number) => self.float += f64::from(number),
                Value::Float8(number) => self.float += number,
                Value::Numeric(number) => {
                    self.numeric = Some(match self.numeric.take() {
                        Some(sum) => sum.add(&number)?,
                        None => number,
                    });
                }
                // At most 2^63 rows, so this cannot overflow.
                value => self.integers += i128::from(value.as_integer().unwrap_or(0)),
            },
            Function::Min | Function::Max => {
                let wanted = match aggregate.function {
                    Function::Min => std::cmp::Ordering::Less,
                    _ => std::cmp::Ordering::Greater,
                };
                if self.extreme.is_null() || value.compare(&self.extreme) == Some(wanted) {
                    self.extreme = value;
                }
            }
        }
        Ok(())
    }

    fn finish(self, aggregate: &Aggregate) -> Result<Value, SqlError> {
        let out_of_range =
            |what: &str| SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, format!("{what} out of range"));
        if aggregate.function == Function::Count {
            return Ok(Value::Int8(self.count));
        }
        if self.count == 0 {
            return Ok(Value::Null);
        }
        if matches!(aggregate.function, Function::Min | Function::Max) {
            return Ok(self.extreme);
        }
        let is_average = aggregate.function == Function::Average;
        Ok(match aggregate.result {
            SqlType::Int8 => Value::Int8(i64::try_from(self.integers).map_err(|_| out_of_range("bigint"))?),
            SqlType::Float4 => Value::Float4(self.float as f32),
            SqlType::Float8 if is_average => Value::Float8(self.float / self.count as f64),
            SqlType::Float8 => Value::Float8(self.float),
            _ => {
                let sum = match self.numeric {
                    Some(sum) => sum,
                    None => Numeric::new(self.integers.into(), 0)?,
                };
                Value::Numeric(if is_average { sum.divide(&Numeric::from(self.count))? } else { sum })
            }
        })
    }
}

impl State {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// About the memory of a row, in bytes.
#[must_use]
pub fn row_bytes(row: &[Value]) -> usize {
    let value = |value: &Value| match value {
        Value::Text(text) | Value::Jsonb(text) => text.len(),
        Value::Bytea(bytes) => bytes.len(),
        Value::Array(array) => array.items.len() * size_of::<Value>(),
        _ => 0,
    };
    size_of::<Vec<Value>>() + row.iter().map(|item| size_of::<Value>() + value(item)).sum::<usize>()
}

fn too_large() -> SqlError {
    let message = format!("the result takes more than {} MiB of memory", RESULT_BYTES_MAX >> 20);
    SqlError::new(sqlstate::OUT_OF_MEMORY, message).with_hint("Restrict it with WHERE or LIMIT.")
}

impl Scan {
    pub(super) fn is_without_reads(&self) -> bool {
        self.source().is_none()
    }

    pub(super) fn index(&self) -> Option<&str> {
        let Self::Select(select) = self else { return None };
        let (rows, _) = select.source.as_ref()?;
        select.lookup.as_ref()?.name(rows)
    }

    /// Whether it has several reads, which must be of one moment.
    pub(super) fn needs_snapshot(&self) -> bool {
        let Self::Select(select) = self else { return false };
        let is_by_keys = select.source.as_ref().is_some_and(|(_, condition)| condition.alternatives.is_some());
        is_by_keys || select.lookup.as_ref().is_some_and(|lookup| !lookup.is_unique)
    }

    /// Only a query without a table can take values: the number of rows is known.
    pub(super) fn sequences(&self) -> Vec<(SequenceId, usize)> {
        let mut counts = BTreeMap::new();
        if let Self::Select(select) = self
            && let (None, Results::Rows(output)) = (&select.source, &select.results)
        {
            output.iter().for_each(|expression| count_sequences(expression, &mut counts));
        }
        counts.into_iter().collect()
    }

    fn wanted(&self) -> Option<&Wanted> {
        if let Self::Select(select) = self { select.wanted.as_ref() } else { None }
    }

    fn cells(&self) -> Option<&Arc<[Bytes]>> {
        self.wanted()?.cells()
    }

    fn source(&self) -> Option<(&TableRows, &Condition)> {
        match self {
            Self::Select(select) => select.source.as_ref().map(|(rows, condition)| (rows, condition)),
            Self::Change(change) => Some((&change.rows, &change.condition)),
        }
    }

    pub(super) fn start(&self, environment: &mut Environment) -> Result<(super::State, Step), SqlError> {
        let mut state = State {
            reading: None,
            found: Vec::new(),
            bytes: 0,
            aggregates: Vec::new(),
            skip: 0,
            limit: u64::MAX,
            read: 0,
            rows: Vec::new(),
            entry: None,
            has_moved: false,
            matched: Vec::new(),
            done: 0,
            checks: Checks::default(),
        };
        if let Self::Select(select) = self {
            state.skip = count(select.offset.as_ref(), "OFFSET", environment)?.unwrap_or(0);
            state.limit = count(select.limit.as_ref(), "LIMIT", environment)?.unwrap_or(u64::MAX);
            if let Results::Aggregates(aggregates) = &select.results {
                state.aggregates = vec![Accumulator::new(); aggregates.len()];
            }
        }
        let Some((rows, condition)) = self.source() else {
            if let Self::Select(select) = self {
                select.take(&mut state, &[], environment)?;
            }
            return self.finish(state, environment);
        };
        if let Self::Select(select) = self
            && let Some(lookup) = &select.lookup
        {
            let Some(prefix) = lookup.prefix(rows, environment)? else { return self.finish(state, environment) };
            let range = keys::prefix_range(&prefix);
            state.reading = Some(Reading::Entries(range.clone()));
            let read = if lookup.is_unique {
                state.entry = Some(prefix.clone());
                Read::Entry(prefix.into())
            } else {
                Read::Range(range, SHORT_ROWS_MAX)
            };
            return Ok((super::State::Scan(state), Step::Read(vec![read])));
        }
        if let Some(keys) = condition.points(rows, environment)? {
            let read = if let Self::Change(_) = self { Read::Locked } else { Read::Row };
            let reads: Vec<Read> = keys.into_iter().map(|key| read(key.into())).collect();
            if reads.is_empty() {
                return self.finish(state, environment);
            }
            state.reading = Some(Reading::Rows(reads.len()));
            return Ok((super::State::Scan(state), Step::Read(reads)));
        }
        let Some(range) = condition.range(rows, environment)? else { return self.finish(state, environment) };
        let is_short = matches!(self, Self::Select(select) if select.is_short);
        let read = Read::range(range.clone(), if is_short { SHORT_ROWS_MAX } else { PAGE_ROWS }, self.cells());
        state.reading = Some(Reading::Range(range));
        Ok((super::State::Scan(state), Step::Read(vec![read])))
    }

    pub(super) fn advance(
        &self,
        mut state: State,
        pages: Vec<Page>,
        environment: &mut Environment,
    ) -> Result<(super::State, Step), SqlError> {
        let Some(reading) = state.reading.take() else { return self.read_descendants(state, pages, environment) };
        let Some((rows, condition)) = self.source() else { return self.finish(state, environment) };
        expect_pages(&pages, if let Reading::Rows(rows) = reading { rows } else { 1 })?;
        let short = if let Self::Select(select) = self { Some(select).filter(|select| select.is_short) } else { None };
        let lookup = short.and_then(|select| select.lookup.as_ref());
        if let (Reading::Entries(range), Some(lookup)) = (&reading, lookup) {
            for entry in pages.iter().flat_map(|page| &page.rows) {
                state.rows.extend(lookup.row(rows, entry)?.map(|key| Read::Row(key.into())));
            }
            let next = pages.into_iter().find_map(|page| page.next);
            let rest = next.map(|next| KeyRange { start: next, end: range.end.clone() });
            return self.read_entries(state, rest, environment);
        }
        state.read += pages.iter().map(|page| page.rows.len()).sum::<usize>();
        let mut next = None;
        for page in pages {
            state.has_moved |= state.entry.is_some() && page.rows.is_empty();
            for stored in page.rows {
                let decoded = match self.wanted() {
                    Some(wanted) => rows.decode_wanted(&stored, wanted)?,
                    None => rows.decode(&stored)?,
                };
                let Some(row) = decoded else { continue };
                if let (Some(entry), Some(lookup)) = (&state.entry, lookup)
                    && !lookup.is_of(rows, &row, entry)?
                {
                    state.has_moved = true;
                    continue;
                }
                if !condition.holds(&row, environment)? {
                    continue;
                }
                match self {
                    Self::Select(select) => {
                        select.take(&mut state, &row, environment)?;
                        // A planner returns it in pages.
                        if select.is_short && state.bytes > SHORT_BYTES_MAX {
                            return Ok((super::State::Done, Step::NeedsPlanner));
                        }
                    }
                    Self::Change(_) => {
                        if state.matched.len() == CHANGES_MAX {
                            let message = format!("a statement cannot change more than {CHANGES_MAX} rows");
                            return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message)
                                .with_hint("Change fewer rows at a time, by a range of the primary key."));
                        }
                        state.bytes += row_bytes(&row);
                        if state.bytes > RESULT_BYTES_MAX {
                            return Err(too_large());
                        }
                        // Only the key is needed.
                        state.matched.push((StoredRow { key: stored.key, cells: Vec::new() }, row));
                    }
                }
            }
            next = page.next;
        }
        let is_enough = match self {
            Self::Select(select) => select.is_enough(&state),
            Self::Change(_) => false,
        };
        if let (Some(next), Reading::Range(range), false) = (next, reading, is_enough) {
            if short.is_some() && state.read >= SHORT_ROWS_MAX {
                return Ok((super::State::Done, Step::NeedsPlanner));
            }
            let range = KeyRange { start: next, end: range.end };
            let read = Read::range(range.clone(), PAGE_ROWS, self.cells());
            state.reading = Some(Reading::Range(range));
            return Ok((super::State::Scan(state), Step::Read(vec![read])));
        }
        self.finish(state, environment)
    }

    /// Reads further entries, or the rows that all of them refer to.
    fn read_entries(
        &self,
        mut state: State,
        rest: Option<KeyRange>,
        environment: &mut Environment,
    ) -> Result<(super::State, Step), SqlError> {
        let reads = match rest {
            Some(_) if state.rows.len() >= SHORT_ROWS_MAX => return Ok((super::State::Done, Step::NeedsPlanner)),
            Some(range) => {
                state.reading = Some(Reading::Entries(range.clone()));
                vec![Read::Range(range, SHORT_ROWS_MAX)]
            }
            None if state.rows.is_empty() => return self.finish(state, environment),
            None => {
                state.reading = Some(Reading::Rows(state.rows.len()));
                std::mem::take(&mut state.rows)
            }
        };
        Ok((super::State::Scan(state), Step::Read(reads)))
    }

    /// All rows are read.
    fn finish(&self, mut state: State, environment: &mut Environment) -> Result<(super::State, Step), SqlError> {
        match self {
            Self::Select(select) => {
                let done = if state.has_moved { Step::DoneIfOneMoment } else { Step::Done };
                Ok((super::State::Done, done(select.finish(state)?)))
            }
            Self::Change(change) if change.descendants.is_empty() => {
                for (_, row) in &state.matched {
                    change.apply(row, &[], &mut state.checks, environment)?;
                }
                state.checks.start()
            }
            Self::Change(_) => Self::next_descendants(state),
        }
    }

    /// The reads of the descendants of the next rows that are deleted.
    fn next_descendants(state: State) -> Result<(super::State, Step), SqlError> {
        let rows = state.matched.iter().skip(state.done).take(PARENTS_MAX);
        // More could not be deleted.
        let reads: Vec<Read> = rows.map(|(row, _)| Read::Range(keys::descendants(&row.key), CHANGES_MAX + 1)).collect();
        if reads.is_empty() {
            return state.checks.start();
        }
        Ok((super::State::Scan(state), Step::Read(reads)))
    }

    fn read_descendants(
        &self,
        mut state: State,
        pages: Vec<Page>,
        environment: &mut Environment,
    ) -> Result<(super::State, Step), SqlError> {
        let Self::Change(change) = self else { return self.finish(state, environment) };
        expect_pages(&pages, (state.matched.len() - state.done).min(PARENTS_MAX))?;
        for page in pages {
            let (_, row) = &state.matched[state.done];
            state.done += 1;
            if page.next.is_some() {
                let message = format!("a statement cannot change more than {CHANGES_MAX} rows");
                return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message));
            }
            change.apply(row, &page.rows, &mut state.checks, environment)?;
        }
        Self::next_descendants(state)
    }
}

fn count(expression: Option<&Expression>, what: &str, environment: &mut Environment) -> Result<Option<u64>, SqlError> {
    let Some(expression) = expression else { return Ok(None) };
    let Some(number) = expression.evaluate(Rows::default(), environment)?.as_integer() else { return Ok(None) };
    let state = if what == "LIMIT" { sqlstate::INVALID_ROW_COUNT_IN_LIMIT } else { "2201X" };
    u64::try_from(number).map(Some).map_err(|_| SqlError::new(state, format!("{what} must not be negative")))
}

impl Select {
    /// The columns that the results, their order and the condition use. All of them if rows are found by an index,
    /// because the index's columns are compared.
    fn find_wanted(&self) -> Option<Wanted> {
        let (rows, condition) = self.source.as_ref().filter(|_| self.lookup.is_none())?;
        let mut numbers = Vec::new();
        let mut add = |expression: &Expression| expression.add_columns(&mut numbers);
        condition.residual.iter().for_each(&mut add);
        match &self.results {
            Results::Rows(output) => output.iter().for_each(&mut add),
            Results::Aggregates(all) => all.iter().filter_map(|one| one.argument.as_ref()).for_each(&mut add),
        }
        for order in &self.order {
            if let OrderBy::Expression(expression) = &order.by {
                add(expression);
            }
        }
        Some(rows.wanted(numbers))
    }

    fn take(&self, state: &mut State, row: &[Value], environment: &mut Environment) -> Result<(), SqlError> {
        let output = match &self.results {
            Results::Aggregates(aggregates) => {
                for (aggregate, accumulator) in aggregates.iter().zip(&mut state.aggregates) {
                    let value = match &aggregate.argument {
                        Some(argument) => argument.evaluate(Rows { row, excluded: &[] }, environment)?,
                        None => Value::Bool(true),
                    };
                    accumulator.add(aggregate, value)?;
                }
                return Ok(());
            }
            Results::Rows(output) => output,
        };
        if self.is_enough(state) {
            return Ok(());
        }
        if self.order.is_empty() && state.skip > 0 {
            state.skip -= 1;
            return Ok(());
        }
        let result = output::evaluate(output, row, environment)?;
        let key = self.order.iter().map(|order| match &order.by {
            OrderBy::Output(number) => Ok(result.get(*number).cloned().unwrap_or(Value::Null)),
            OrderBy::Expression(expression) => expression.evaluate(Rows { row, excluded: &[] }, environment),
        });
        let key = key.collect::<Result<Vec<_>, _>>()?;
        state.bytes += row_bytes(&result) + row_bytes(&key);
        if state.bytes > RESULT_BYTES_MAX {
            return Err(too_large());
        }
        state.found.push((key, result));
        Ok(())
    }

    /// Whether no further row can be part of the result.
    fn is_enough(&self, state: &State) -> bool {
        self.order.is_empty() && state.aggregates.is_empty() && state.found.len() as u64 >= state.limit
    }

    fn finish(&self, mut state: State) -> Result<Outcome, SqlError> {
        if let Results::Aggregates(aggregates) = &self.results {
            let values = aggregates.iter().zip(state.aggregates).map(|(aggregate, state)| state.finish(aggregate));
            state.found = vec![(Vec::new(), values.collect::<Result<_, _>>()?)];
        } else if !self.order.is_empty() {
            state.found.sort_by(|(a, _), (b, _)| self.compare(a, b));
        }
        let skip = if self.order.is_empty() && matches!(self.results, Results::Rows(_)) { 0 } else { state.skip };
        let bounded = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let found = state.found.into_iter().map(|(_, row)| row);
        let rows: Vec<_> = found.skip(bounded(skip)).take(bounded(state.limit)).collect();
        Ok(Outcome { affected: rows.len() as u64, rows, writes: Vec::new() })
    }

    fn compare(&self, a: &[Value], b: &[Value]) -> std::cmp::Ordering {
        for ((a, b), order) in a.iter().zip(b).zip(&self.order) {
            let found = match (a.is_null(), b.is_null()) {
                (false, false) if order.descending => b.sort_order(a),
                (false, false) => a.sort_order(b),
                (a, b) if order.nulls_first => b.cmp(&a),
                (a, b) => a.cmp(&b),
            };
            if found.is_ne() {
                return found;
            }
        }
        std::cmp::Ordering::Equal
    }
}
