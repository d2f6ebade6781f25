//! A transaction on a database, as a session executes it: the plans and definitions of `sql`, with reads that show the
//! transaction's own writes, and the check of the schema's token.
//!
//! A script runs from its beginning whenever replies have arrived. It takes the replies in order, and stops at the first
//! read that has none yet. So it needs no state of its own, and its decisions depend on replies and its seed alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{KeyRange, SplitMix64};
use bytes::Bytes;
use client::PendingWrites;
use sql::ddl::{self, Work};
use sql::direct::{self, Outcome, Page, Plan, Read, Step};
use sql::fence::{Catalog, SCHEMA, SCHEMA_ROW, TOKEN};
use sql::ids::SequenceId;
use sql::keys::prefix_range;
use sql::parse::parse_one;
use sql::rows::{StoredRow, TableRows, Write, fill_index};
use sql::schema::{Schema, Table};
use sql::statement::Statement;
use sql::{Environment, SqlError, Supply, Value, sqlstate};
use tablets::transaction::RowChange;

use super::super::{Change, TABLES};
use super::DATABASE;
use crate::list_append::Operation;

/// Rows of a page.
const PAGE_ROWS: usize = 100;

/// The reply to one read.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    /// The keys that it shows.
    pub(super) keys: KeyRange,
    /// Where the range that was asked for continues.
    pub(super) rest: Option<Bytes>,
    pub(super) rows: Vec<(Bytes, Vec<(Bytes, Bytes)>)>,
}

/// Why a script does not go on.
#[derive(Debug)]
pub(super) enum Stop {
    /// It needs the replies to these reads.
    Reads(Vec<Read>),
    /// The store has this version of the schema.
    Stale(Catalog),
    /// A statement failed, or the client has decided so.
    RolledBack,
    /// No consistent state explains the replies.
    Wrong(String),
}

/// Plans by the token of the schema and their text.
#[derive(Debug, Default)]
pub(super) struct Plans(BTreeMap<(Bytes, &'static str), Arc<Plan>>);

/// Maximum plans: with more, those of old versions are forgotten.
const PLANS_MAX: usize = 400;

/// Values that expressions take from outside.
struct Values(SplitMix64);

impl Supply for Values {
    fn next_value(&mut self, _: SequenceId) -> Result<i64, SqlError> {
        Err(SqlError::unsupported("a sequence in the simulator"))
    }

    fn random_uuid(&mut self) -> [u8; 16] {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&self.0.draw().to_be_bytes());
        uuid
    }
}

/// A transaction in progress.
pub(super) struct Tx<'a> {
    catalog: &'a Catalog,
    schema: Schema,
    is_changed: bool,
    /// The store has shown that the version of the schema is the current one.
    is_verified: bool,
    /// Whether the first reads follow the read of the token, or precede it.
    verifies_first: bool,
    replies: &'a [Reply],
    used: usize,
    pending: PendingWrites,
    plans: &'a mut Plans,
    values: Values,
    /// The decisions of the script.
    pub(super) random: SplitMix64,
    /// Reads and appends of lists.
    pub(super) operations: Vec<Operation>,
}

/// The effect of a script.
#[derive(Debug, Default)]
pub(super) struct Effect {
    pub(super) writes: Vec<Change>,
    pub(super) operations: Vec<Operation>,
    /// The version of the schema that it makes.
    pub(super) catalog: Option<Arc<Catalog>>,
}

/// Errors that are results of a workload.
fn is_expected(error: &SqlError) -> bool {
    [sqlstate::UNIQUE_VIOLATION, sqlstate::FOREIGN_KEY_VIOLATION].contains(&error.sqlstate)
}

#[expect(clippy::needless_pass_by_value, reason = "the function of map_err")]
fn stopped(error: SqlError) -> Stop {
    if is_expected(&error) { Stop::RolledBack } else { Stop::Wrong(format!("a statement failed: {error:?}")) }
}

impl<'a> Tx<'a> {
    pub(super) fn new(catalog: &'a Catalog, replies: &'a [Reply], plans: &'a mut Plans, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        Self {
            catalog,
            schema: catalog.schema.clone(),
            is_changed: false,
            is_verified: false,
            verifies_first: random.below(2) == 0,
            replies,
            used: 0,
            pending: PendingWrites::default(),
            plans,
            values: Values(SplitMix64::new(random.draw())),
            random,
            operations: Vec::new(),
        }
    }

    pub(super) fn schema(&self) -> &Schema {
        &self.schema
    }

    pub(super) fn set_schema(&mut self, schema: Schema) {
        self.schema = schema;
        self.is_changed = true;
    }

    /// Reads rows, with the transaction's own writes.
    pub(super) fn read(&mut self, reads: Vec<Read>) -> Result<Vec<Page>, Stop> {
        let asked = if self.is_verified { reads } else { self.with_token(reads) };
        let left = self.replies.get(self.used..).unwrap_or_default();
        let Some(replies) = left.get(..asked.len()) else { return Err(Stop::Reads(asked)) };
        self.used += asked.len();
        let mut replies = replies.to_vec();
        if !self.is_verified {
            let token = if self.verifies_first { replies.remove(0) } else { replies.pop().unwrap_or_else(absurd) };
            self.verify(&token)?;
        }
        Ok(replies.into_iter().map(|reply| self.page(reply)).collect())
    }

    fn with_token(&self, mut reads: Vec<Read>) -> Vec<Read> {
        let at = if self.verifies_first { 0 } else { reads.len() };
        reads.insert(at, Read::Row(SCHEMA_ROW));
        reads
    }

    fn verify(&mut self, reply: &Reply) -> Result<(), Stop> {
        let cells = reply.rows.first().map_or(&[][..], |(_, cells)| cells);
        let cell = |name| cells.iter().find(|(cell, _)| *cell == name).map(|(_, value)| value.clone());
        let token = cell(TOKEN);
        if self.catalog.is_current(token.as_ref()) {
            self.is_verified = true;
            return Ok(());
        }
        Err(match Catalog::decode(token, cell(SCHEMA)) {
            Ok(catalog) => Stop::Stale(catalog),
            Err(error) => Stop::Wrong(format!("the schema: {error:?}")),
        })
    }

    fn page(&self, reply: Reply) -> Page {
        let rows = self.pending.merged(TABLES[DATABASE], &reply.keys.start, reply.keys.end.as_ref(), reply.rows);
        Page { rows: rows.into_iter().map(|(key, cells)| StoredRow { key, cells }).collect(), next: reply.rest }
    }

    /// The statement failed. An old version of the schema can be the reason.
    fn failed(&mut self, error: SqlError) -> Stop {
        match self.read(Vec::new()) {
            Err(stop) => stop,
            Ok(_) => stopped(error),
        }
    }

    /// Reads a range to its end.
    pub(super) fn read_all(&mut self, mut range: sql::keys::KeyRange) -> Result<Vec<StoredRow>, Stop> {
        let mut rows = Vec::new();
        loop {
            let page = self.read(vec![Read::Range(range.clone(), PAGE_ROWS)])?.pop().unwrap_or_default();
            rows.extend(page.rows);
            match page.next {
                Some(next) => range.start = next,
                None => return Ok(rows),
            }
        }
    }

    pub(super) fn write(&mut self, writes: Vec<Write>) {
        for write in writes {
            match write {
                Write::Put { key, cells } => {
                    for (name, value) in cells {
                        self.pending.change((TABLES[DATABASE].to_owned(), key.clone()), name, value);
                    }
                }
                Write::Delete { key } => {
                    self.pending.delete_row((TABLES[DATABASE].to_owned(), key));
                }
            }
        }
    }

    fn plan(&mut self, text: &'static str) -> Result<Arc<Plan>, SqlError> {
        // Within a change of the schema, plans are of a version without a token.
        let name = (self.catalog.token.clone(), text);
        if let Some(plan) = self.plans.0.get(&name).filter(|_| !self.is_changed) {
            return Ok(Arc::clone(plan));
        }
        let statement = parse_one(text)?;
        let plan = match direct::prepare(&self.schema, &statement, text, &[])? {
            Some(plan) => Some(plan),
            None => direct::prepare_scan(&self.schema, &statement, text, &[], &[])?,
        };
        let plan = Arc::new(plan.ok_or_else(|| SqlError::unsupported(text))?);
        if !self.is_changed {
            if self.plans.0.len() >= PLANS_MAX {
                self.plans.0.clear();
            }
            self.plans.0.insert(name, Arc::clone(&plan));
        }
        Ok(plan)
    }

    /// Executes a statement, and adds its writes.
    pub(super) fn run(&mut self, text: &'static str, parameters: &[Value]) -> Result<Outcome, Stop> {
        let plan = self.plan(text);
        let plan = plan.map_err(|error| self.failed(error))?;
        let mut values = Values(SplitMix64::new(self.values.0.draw()));
        let mut environment = Environment { parameters, now: 0, supply: &mut values };
        let (mut execution, mut step) = plan.start(&mut environment).map_err(|error| self.failed(error))?;
        loop {
            match step {
                // The commit fails if the reads were of different moments.
                Step::Done(mut outcome) | Step::DoneIfOneMoment(mut outcome) => {
                    self.write(std::mem::take(&mut outcome.writes));
                    return Ok(outcome);
                }
                Step::NeedsPlanner => return Err(Stop::Wrong(format!("{text} needs a planner"))),
                Step::Read(reads) => {
                    let pages = self.read(reads)?;
                    step = execution.advance(pages, &mut environment).map_err(stopped)?;
                }
            }
        }
    }

    /// Changes the schema. Returns the work that completes the change.
    pub(super) fn define(&mut self, text: &'static str) -> Result<Vec<Work>, Stop> {
        // It must not be decided by an old version.
        self.read(Vec::new())?;
        let Ok(Statement::Definition(definition)) = parse_one(text) else {
            return Err(Stop::Wrong(format!("{text} is no definition")));
        };
        let change = ddl::apply(&self.schema, &definition).map_err(stopped)?;
        self.set_schema(change.schema);
        Ok(change.work)
    }

    /// Does the work of a definition in the same transaction.
    pub(super) fn complete(&mut self, work: &[Work]) -> Result<(), Stop> {
        for work in work {
            let Work::FillIndex(table, index) = work else { return Err(Stop::Wrong(format!("unexpected {work:?}"))) };
            let Some(of) = self.schema.table(*table).cloned() else { continue };
            let rows = TableRows::new(&self.schema, &of).map_err(stopped)?;
            for stored in self.read_all(self.range_of(&of)?)? {
                if let Some(row) = rows.decode(&stored).map_err(stopped)? {
                    let (write, _) = fill_index(&rows, *index, &row).map_err(stopped)?;
                    self.write(vec![write]);
                }
            }
            self.set_schema(ddl::publish_index(&self.schema, *table, *index).map_err(stopped)?);
        }
        Ok(())
    }

    /// The keys of a table's rows.
    pub(super) fn range_of(&self, table: &Table) -> Result<sql::keys::KeyRange, Stop> {
        Ok(prefix_range(&self.schema.row_layout(table).key(&[]).map_err(stopped)?))
    }

    /// The effect, once the script is at its end.
    pub(super) fn finish(mut self) -> Result<Effect, Stop> {
        // A transaction without reads checks its version, too.
        if !self.is_verified {
            self.read(Vec::new())?;
        }
        let mut catalog = None;
        if self.is_changed {
            let next = Catalog::next(self.schema.clone(), self.random.draw());
            let write = next.write().map_err(stopped)?;
            self.write(vec![write]);
            catalog = Some(Arc::new(next));
        }
        let change = |((_, key), write): (client::RowName, client::RowWrite)| {
            let deletes_row = write.deletes_row;
            // A row that is deleted has no columns to delete.
            let columns = write.columns.into_iter().filter(|(_, value)| value.is_some() || !deletes_row);
            Change { table: DATABASE, change: RowChange { key, deletes_row, columns: columns.collect() } }
        };
        let writes = self.pending.into_iter().map(change).collect();
        Ok(Effect { writes, operations: self.operations, catalog })
    }
}

fn absurd() -> Reply {
    Reply { keys: KeyRange::all(), rest: None, rows: Vec::new() }
}
