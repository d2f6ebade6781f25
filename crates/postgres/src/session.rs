//! A session: the state of one connection, and the execution of its statements.
//!
//! A statement outside of a transaction block is a separate transaction, which is retried if others interfere. In a
//! block the client decides about retries: it receives 40001. A query outside of a block takes no locks: it is one
//! linearizable read, or reads a snapshot.

mod block;
mod copying;
mod live;
mod queries;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::budget::{ByteBudget, Reservation};
use sql::direct::{Command, Outcome, OutputColumn, Plan};
use sql::statement::{AsOf, Definition, DropKind, Statement};
use sql::{SqlError, SqlType, Value, sqlstate};
use tokio::time::Instant;

use self::block::Block;
use self::copying::{CopyIn, CopyOut};
pub use self::queries::RowStream;
use crate::database::{Catalog, DEFAULT_DATABASE, Database, Databases};
use crate::definition;
use crate::execute::Values;
use crate::failure::{Failure, of_client};
use crate::jobs::Progress;
use crate::limits::{Cancel, Interrupt, out_of_memory};
use crate::online;
use crate::settings::{SERVER_VERSION, Settings};
use crate::statement::{Planned, Prepared, check_view, text_column};
use crate::transaction::{EPOCH_MICROS, Source, Tx, now, read_only, report_of};

/// Time limit of the retries of a statement outside of a block.
pub(crate) const ATTEMPTS_TIME: Duration = Duration::from_secs(30);
/// The first pause between attempts; it doubles up to the second.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Maximum duration of a transaction.
const TRANSACTION_TIME: Duration = Duration::from_secs(3_600);
/// Maximum prepared statements of a session.
const PREPARED_MAX: usize = 10_000;
/// The estimated memory of a prepared statement: these bytes, and this many for each byte of its text.
const PREPARED_BYTES: usize = 2_048;
const PREPARED_BYTES_OF_TEXT: usize = 16;

/// A prepared statement that has a name.
#[derive(Debug)]
struct Kept {
    prepared: Arc<Prepared>,
    _memory: Reservation,
}

/// The result of a statement.
#[derive(Debug)]
pub enum Response {
    /// The statement was empty.
    Empty,
    /// It has no rows.
    Done { tag: String },
    Rows {
        columns: Vec<OutputColumn>,
        rows: Vec<Vec<Value>>,
        /// The command tag; that of a query ends with the number of rows.
        tag: String,
    },
    /// The rows of a query, as a stream: [`Session::next_rows`].
    Stream { columns: Vec<OutputColumn>, stream: RowStream },
    /// It expects data: [`Session::copy_data`].
    CopyIn {
        /// The number of columns.
        columns: usize,
    },
    /// It returns data: [`Session::copy_next`].
    CopyOut {
        /// The number of columns.
        columns: usize,
    },
}

/// The state of a session with respect to transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Outside of a transaction block.
    Idle,
    Block,
    /// In a block that has failed.
    Failed,
}

/// A session on a database.
#[derive(Debug)]
pub struct Session {
    databases: Arc<Databases>,
    database: Arc<Database>,
    user: String,
    settings: Settings,
    prepared: HashMap<String, Kept>,
    /// The planner for the version of the schema that was last used.
    planner: Option<(Arc<Catalog>, Arc<query::Planner>)>,
    block: Option<Block>,
    /// The transaction of a block that ended because of others. The next one keeps its age.
    overtaken: Option<(sdk::Transaction, Instant)>,
    values: Values,
    /// The number by which the client can cancel statements.
    process: i32,
    /// Those of class 00 are notices, the others warnings.
    notices: Vec<SqlError>,
    cancel: Cancel,
    memory: ByteBudget,
    copy_in: Option<CopyIn>,
    copy_out: Option<CopyOut>,
}

pub(crate) fn failed_block() -> SqlError {
    SqlError::new("25P02", "current transaction is aborted, commands ignored until end of transaction block")
}

impl Session {
    /// Begins a session. `parameters` are those of the client's startup message. If they name no database, it uses that
    /// with the name of the user, or the default one if there is none.
    ///
    /// # Errors
    /// 3D000: there is no such database.
    pub async fn begin(
        databases: Arc<Databases>,
        parameters: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, SqlError> {
        let (mut user, mut database) = (None, None);
        let mut settings = Settings::default();
        for (name, value) in parameters {
            match name.as_str() {
                "user" => user = Some(value),
                "database" => database = Some(value),
                _ => settings.start(&name, &value)?,
            }
        }
        let user = user.ok_or_else(|| SqlError::new("28000", "no PostgreSQL user name specified in startup packet"))?;
        let name = database.filter(|name| !name.is_empty()).unwrap_or_else(|| user.clone());
        let database = match databases.open(&name).await {
            Err(error) if error.sqlstate == "3D000" && name == user => databases.open(DEFAULT_DATABASE).await?,
            outcome => outcome?,
        };
        settings.set_user(&user);
        Ok(Self {
            memory: databases.session_memory(),
            databases,
            database,
            user,
            settings,
            prepared: HashMap::new(),
            planner: None,
            block: None,
            overtaken: None,
            values: Values::default(),
            process: i32::try_from(std::process::id()).unwrap_or(0),
            notices: Vec::new(),
            cancel: Cancel::default(),
            copy_in: None,
            copy_out: None,
        })
    }

    /// The state with respect to transactions.
    #[must_use]
    pub fn status(&self) -> Status {
        match &self.block {
            Some(block) if block.has_failed => Status::Failed,
            Some(block) if !block.is_implicit => Status::Block,
            _ => Status::Idle,
        }
    }

    /// Whether there is a transaction that further statements are part of.
    #[must_use]
    pub fn has_block(&self) -> bool {
        self.block.is_some()
    }

    /// The memory for its messages and results.
    pub(crate) fn memory(&self) -> &ByteBudget {
        &self.memory
    }

    /// Notices since the last call.
    pub fn take_notices(&mut self) -> Vec<SqlError> {
        std::mem::take(&mut self.notices)
    }

    /// The reported settings that have changed since the last call.
    pub fn take_reports(&mut self) -> Vec<(String, String)> {
        self.settings.take_reports()
    }

    /// The settings that are reported to clients when they connect.
    #[must_use]
    pub fn reported_settings(&self) -> Vec<(String, String)> {
        self.settings.reported()
    }

    /// Cancels the statement in progress.
    #[must_use]
    pub fn cancel_handle(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Prepares a statement.
    ///
    /// # Errors
    /// It is not valid, or not supported.
    pub async fn prepare(&mut self, text: &str, oids: &[u32]) -> Result<Arc<Prepared>, SqlError> {
        let prepared = Arc::new(Prepared::new(text, oids)?);
        if self.status() == Status::Failed && !ends_failure(prepared.statement.as_ref()) {
            return Err(failed_block());
        }
        prepared.fix_result(&self.describe(&prepared).await?.1);
        Ok(prepared)
    }

    /// Keeps a prepared statement under a name. The empty name may be used again.
    ///
    /// # Errors
    /// 42P05: the name is in use. 53200: there is no memory for it. 54000: there are too many.
    pub fn store(&mut self, name: &str, prepared: Arc<Prepared>) -> Result<(), SqlError> {
        if !name.is_empty() && self.prepared.contains_key(name) {
            let message = format!("prepared statement \"{name}\" already exists");
            return Err(SqlError::new("42P05", message));
        }
        self.prepared.remove(name);
        if self.prepared.len() >= PREPARED_MAX {
            let message = format!("a session can have at most {PREPARED_MAX} prepared statements");
            return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message));
        }
        let bytes = PREPARED_BYTES + PREPARED_BYTES_OF_TEXT * prepared.text.len();
        let memory = self.memory.try_reserve(bytes).ok_or_else(out_of_memory)?;
        self.prepared.insert(name.to_owned(), Kept { prepared, _memory: memory });
        Ok(())
    }

    /// A prepared statement by its name.
    ///
    /// # Errors
    /// 26000: there is none.
    pub fn stored(&self, name: &str) -> Result<Arc<Prepared>, SqlError> {
        self.prepared.get(name).map(|kept| Arc::clone(&kept.prepared)).ok_or_else(|| {
            let message = if name.is_empty() {
                "unnamed prepared statement does not exist".to_owned()
            } else {
                format!("prepared statement \"{name}\" does not exist")
            };
            SqlError::new("26000", message)
        })
    }

    /// Removes a prepared statement.
    pub fn forget(&mut self, name: &str) {
        self.prepared.remove(name);
    }

    /// The types of the parameters of a statement, and the columns of its result.
    ///
    /// # Errors
    /// It is not valid any more, or not supported.
    pub async fn describe(&mut self, prepared: &Prepared) -> Result<(Vec<SqlType>, Vec<OutputColumn>), SqlError> {
        match &prepared.statement {
            _ if prepared.is_planned() => {
                let planned = self.plan(prepared).await?;
                prepared.check_result(&planned)?;
                Ok((planned.parameters().to_vec(), planned.columns().to_vec()))
            }
            Some(Statement::Show(name)) => Ok((Vec::new(), show_columns(name))),
            Some(Statement::Explain { statement, .. }) => {
                let inner = Prepared::of((**statement).clone(), &prepared.text, prepared.declared.clone());
                let parameters =
                    if inner.is_planned() { self.plan(&inner).await?.parameters().to_vec() } else { Vec::new() };
                Ok((parameters, queries::explain_columns()))
            }
            Some(Statement::Declare { query, .. }) => {
                let query = Prepared::of((**query).clone(), &prepared.text, prepared.declared.clone());
                Ok((self.plan(&query).await?.parameters().to_vec(), Vec::new()))
            }
            Some(Statement::Execute { name, .. }) => {
                let stored = self.stored(name)?;
                // One that executes another one, or itself, is refused when it is executed.
                if matches!(stored.statement, Some(Statement::Execute { .. })) {
                    return Err(SqlError::unsupported("EXECUTE of this statement"));
                }
                let columns = Box::pin(self.describe(&stored)).await?.1;
                Ok((Vec::new(), columns))
            }
            _ => Ok((Vec::new(), Vec::new())),
        }
    }

    /// A plan with the newest known schema. After an error, the schema is read again, because it may have changed.
    async fn plan(&mut self, prepared: &Prepared) -> Result<Planned, SqlError> {
        if let Some(tx) = self.block.as_ref().and_then(|block| block.tx.as_ref()) {
            let catalog = Arc::clone(&tx.catalog);
            return self.plan_for(prepared, &catalog).await;
        }
        let catalog = self.database.catalog();
        match self.plan_for(prepared, &catalog).await {
            Ok(planned) => Ok(planned),
            Err(_) => {
                self.database.refresh().await.map_err(of_client)?;
                let catalog = self.database.catalog();
                self.plan_for(prepared, &catalog).await
            }
        }
    }

    /// The values of functions that depend on the session.
    fn constants(&self) -> Vec<(&'static str, Value)> {
        let text = |text: &str| Value::Text(text.to_owned());
        let version = format!("PostgreSQL {SERVER_VERSION} (Loggos {})", env!("CARGO_PKG_VERSION"));
        vec![
            ("version", text(&version)),
            ("current_database", text(&self.database.name)),
            ("current_catalog", text(&self.database.name)),
            ("current_schema", text("public")),
            ("current_user", text(&self.user)),
            ("session_user", text(&self.user)),
            ("user", text(&self.user)),
            ("pg_is_in_recovery", Value::Bool(false)),
            ("pg_backend_pid", Value::Int4(self.process)),
        ]
    }

    /// Parses a text with any number of statements.
    ///
    /// # Errors
    /// 42601: the syntax is not valid.
    pub fn parse(&self, text: &str) -> Result<Vec<Arc<Prepared>>, SqlError> {
        let parsed = sql::parse::parse(text)?;
        let text = Arc::from(text);
        let prepared = |parsed: sql::parse::Parsed| {
            // Positions in errors refer to the whole text.
            Arc::new(Prepared::of(parsed.statement, &text, Vec::new()))
        };
        Ok(parsed.into_iter().map(prepared).collect())
    }

    /// Begins the implicit transaction of the statements in one message, unless there is a block.
    pub fn begin_implicit(&mut self) {
        if self.block.is_none() {
            self.block = Some(Block::implicit());
        }
    }

    /// Ends it.
    ///
    /// # Errors
    /// As a commit.
    pub async fn end_implicit(&mut self) -> Result<(), SqlError> {
        match self.block.take() {
            Some(block) if block.is_implicit => {
                let outcome = self.commit_block(block).await;
                self.settings.end_transaction();
                outcome
            }
            block => {
                self.block = block;
                Ok(())
            }
        }
    }

    /// Executes a statement.
    ///
    /// # Errors
    /// With PostgreSQL's SQLSTATE. A block has then failed.
    pub async fn execute(&mut self, prepared: &Prepared, parameters: &[Value]) -> Result<Response, SqlError> {
        self.cancel.reset();
        let Some(statement) = &prepared.statement else { return Ok(Response::Empty) };
        if self.status() == Status::Failed && !ends_failure(Some(statement)) {
            return Err(failed_block());
        }
        let outcome = self.execute_statement(prepared, statement, parameters).await;
        if let Err(error) = &outcome {
            self.keep_age(error);
            self.fail_block().await;
        }
        if self.block.is_none() {
            self.settings.end_transaction();
        }
        outcome
    }

    async fn execute_statement(
        &mut self,
        prepared: &Prepared,
        statement: &Statement,
        parameters: &[Value],
    ) -> Result<Response, SqlError> {
        match statement {
            Statement::Begin(modes) => self.begin_block(modes),
            Statement::Commit { chain } => self.end_block(true, *chain).await,
            Statement::Rollback { chain } => self.end_block(false, *chain).await,
            Statement::Savepoint(name) => self.savepoint(name).await,
            Statement::Release(name) => self.release(name),
            Statement::RollbackTo(name) => self.rollback_to(name),
            Statement::SetTransaction { modes, session } => self.set_transaction(modes, *session),
            Statement::Set { name, value, local } => {
                self.settings.set(name, value.as_deref(), *local)?;
                Ok(done("SET"))
            }
            Statement::Reset(name) => {
                self.settings.reset(name.as_deref())?;
                Ok(done("RESET"))
            }
            Statement::Show(name) => self.show(name),
            Statement::Prepare { name, types, statement } => {
                let types = types.iter().cloned().map(Some).collect();
                let inner = Arc::new(Prepared::of((**statement).clone(), &prepared.text, types));
                inner.fix_result(&self.describe(&inner).await?.1);
                self.store(name, inner)?;
                Ok(done("PREPARE"))
            }
            Statement::Execute { name, parameters: given } => {
                let inner = self.stored(name)?;
                let types = self.describe(&inner).await?.0;
                let schema = self.database.catalog();
                let values = {
                    let mut environment = sql::Environment { parameters, now: now(), supply: &mut self.values };
                    sql::direct::evaluate(&schema.schema, &prepared.text, given, &types, &mut environment)?
                };
                let inner_statement = inner.statement.as_ref();
                let Some(inner_statement) = inner_statement.filter(|of| !matches!(of, Statement::Execute { .. }))
                else {
                    return Err(SqlError::unsupported("EXECUTE of this statement"));
                };
                Box::pin(self.execute_statement(&inner, inner_statement, &values)).await
            }
            Statement::Deallocate(name) => {
                match name {
                    Some(name) => {
                        self.stored(name)?;
                        self.prepared.remove(name);
                    }
                    None => self.prepared.clear(),
                }
                Ok(done(if name.is_some() { "DEALLOCATE" } else { "DEALLOCATE ALL" }))
            }
            Statement::Discard => {
                self.prepared.clear();
                self.settings.reset(None)?;
                self.values.forget();
                Ok(done("DISCARD ALL"))
            }
            Statement::CreateDatabase { name, if_not_exists, options } => {
                self.refuse_in_block("CREATE DATABASE")?;
                let notice = self.databases.create(name, *if_not_exists, options).await?;
                self.note(notice);
                Ok(done("CREATE DATABASE"))
            }
            Statement::DropDatabase { name, if_exists } => {
                self.refuse_in_block("DROP DATABASE")?;
                if *name == self.database.name {
                    return Err(SqlError::new("55006", "cannot drop the currently open database"));
                }
                let notice = self.databases.drop_database(name, *if_exists).await?;
                self.note(notice);
                Ok(done("DROP DATABASE"))
            }
            // The connection executes them.
            Statement::Declare { .. } | Statement::Fetch { .. } | Statement::Close(_) => {
                Err(SqlError::unsupported("a cursor here"))
            }
            Statement::NoEffect(tag) => Ok(done(tag)),
            Statement::Definition(definition) => {
                if self.block.is_none() && !self.settings.is_read_only_by_default() {
                    let done_online = online::define(&self.database, definition, &self.interrupt()).await?;
                    if let Some(notices) = done_online {
                        self.note(notices);
                        return Ok(done(definition_tag(definition)));
                    }
                }
                self.in_transaction(prepared, statement, parameters).await
            }
            Statement::Copy(copy) if copy.is_input => self.begin_copy_in(copy).await,
            Statement::Copy(copy) => self.begin_copy_out(copy).await,
            Statement::Query(..)
            | Statement::Insert(_)
            | Statement::Update(_)
            | Statement::Delete(_)
            | Statement::Truncate { .. }
            | Statement::Explain { .. } => self.in_transaction(prepared, statement, parameters).await,
        }
    }

    fn interrupt(&self) -> Interrupt {
        let until = self.settings.statement_timeout().map(|timeout| Instant::now() + timeout);
        Interrupt { cancel: self.cancel.clone(), until }
    }

    /// Executes a statement in the block, or in a separate transaction.
    async fn in_transaction(
        &mut self,
        prepared: &Prepared,
        statement: &Statement,
        parameters: &[Value],
    ) -> Result<Response, SqlError> {
        if self.block.is_some() {
            return self.in_block(prepared, statement, parameters).await;
        }
        let interrupt = self.interrupt();
        let until = Instant::now() + ATTEMPTS_TIME;
        let (mut pause, mut needs, mut earlier) = (PAUSE, Needs::default(), None);
        loop {
            let begun = self.begin_statement(prepared, statement, needs, earlier.take(), interrupt.clone());
            let mut tx = begun.await?;
            if statement.reads_past() {
                tx.load_schema().await?;
            }
            let outcome = match self.run(&mut tx, prepared, statement, parameters).await {
                Err(failure) => Err(tx.checked(failure).await),
                outcome => outcome,
            };
            let again = match outcome {
                Ok(response) if tx.is_read_only() => return Ok(response),
                Ok(response) => {
                    let retry = tx.for_retry();
                    match tx.commit().await {
                        Ok(committed) => return Ok(with_commit(response, statement, committed)),
                        Err(failure) => (failure, retry.map(|tx| tx.again())),
                    }
                }
                Err(failure @ (Failure::Conflict(_) | Failure::Stale | Failure::NeedsSnapshot | Failure::NeedsId)) => {
                    (failure, tx.again())
                }
                // Reads of several moments may have caused it.
                Err(Failure::Sql(error)) if is_of_rows(&error) => {
                    let retry = tx.for_retry();
                    match tx.confirm().await {
                        Ok(()) => return Err(error),
                        Err(failure) => (failure, retry.map(|tx| tx.again())),
                    }
                }
                Err(failure) => {
                    tx.rollback().await;
                    (failure, None)
                }
            };
            match again {
                (Failure::NeedsSnapshot, _) if !needs.snapshot => needs.snapshot = true,
                (Failure::NeedsId, _) if !needs.id && !self.settings.is_read_only_by_default() => needs.id = true,
                (Failure::Stale, tx) if Instant::now() < until => {
                    self.database.refresh().await.map_err(of_client)?;
                    earlier = tx;
                }
                (Failure::Conflict(_), tx) if Instant::now() + pause < until => {
                    interrupt.run(tokio::time::sleep(crate::jittered(pause))).await?;
                    pause = (pause * 2).min(PAUSE_MAX);
                    earlier = tx;
                }
                (failure, _) => return Err(failure.into()),
            }
        }
    }

    /// Begins the transaction of a statement outside of a block.
    async fn begin_statement(
        &mut self,
        prepared: &Prepared,
        statement: &Statement,
        needs: Needs,
        earlier: Option<sdk::Transaction>,
        interrupt: Interrupt,
    ) -> Result<Tx, SqlError> {
        let explained = match statement {
            Statement::Explain { statement, .. } => statement,
            other => other,
        };
        if let Statement::Query(_, as_of) = explained
            && !needs.id
        {
            let catalog = self.database.catalog();
            let is_long = match self.plan_for(prepared, &catalog).await {
                Ok(Planned::Query(_)) => true,
                Ok(Planned::Direct(plan)) => plan.needs_snapshot(),
                _ => false,
            };
            let source = match as_of {
                Some(as_of) => self.snapshot_of(as_of).await?,
                None if needs.snapshot || is_long => {
                    return Tx::at_present(&self.database, interrupt).await.map_err(of_client);
                }
                None => Source::Strong,
            };
            return Ok(Tx::new(&self.database, source, interrupt));
        }
        if self.settings.is_read_only_by_default() {
            let command = match statement {
                Statement::Definition(definition) => definition_tag(definition),
                Statement::Truncate { .. } => "TRUNCATE TABLE",
                _ => command_name(self.plan_for(prepared, &self.database.catalog()).await?.command()),
            };
            return Err(read_only(command));
        }
        let client = &self.database.client;
        let source = Source::ReadWrite(earlier.unwrap_or_else(|| client.begin_transaction_within(TRANSACTION_TIME)));
        Ok(Tx::new(&self.database, source, interrupt))
    }

    async fn snapshot_of(&self, as_of: &AsOf) -> Result<Source, SqlError> {
        let client = &self.database.client;
        let snapshot = match as_of {
            AsOf::Timestamp(micros) => {
                let nanos = micros.saturating_add(EPOCH_MICROS).saturating_mul(1_000);
                client.snapshot_at(sdk::Version::from_nanos(nanos.max(0)))
            }
            AsOf::Staleness(micros) => {
                let age = Duration::from_micros(u64::try_from(*micros).unwrap_or(0));
                client.snapshot_of(sdk::Staleness::Exact(age)).await.map_err(of_client)?
            }
        };
        Ok(Source::Snapshot(snapshot))
    }

    /// Executes a statement in a transaction.
    async fn run(
        &mut self,
        tx: &mut Tx,
        prepared: &Prepared,
        statement: &Statement,
        parameters: &[Value],
    ) -> Result<Response, Failure> {
        match statement {
            Statement::Definition(definition) => {
                if tx.is_read_only() {
                    return Err(read_only(definition_tag(definition)).into());
                }
                if let Definition::CreateView { query, columns, .. } = definition {
                    let inner = Prepared::of(sql::parse::parse_one(query)?, &Arc::from(query.as_str()), Vec::new());
                    let planned = self.plan_for(&inner, &Arc::clone(&tx.catalog)).await;
                    let planned = planned.map_err(|error| SqlError { position: None, ..error })?;
                    check_view(columns, planned.columns())?;
                }
                let notices = definition::define(tx, definition).await?;
                self.note(notices);
                Ok(done(definition_tag(definition)))
            }
            Statement::Truncate { tables, restart_identity, cascade } => {
                if tx.is_read_only() {
                    return Err(read_only("TRUNCATE TABLE").into());
                }
                definition::truncate(tx, tables, *restart_identity, *cascade).await?;
                Ok(done("TRUNCATE TABLE"))
            }
            Statement::Explain { analyze, statement } => {
                let inner = Prepared::of((**statement).clone(), &prepared.text, prepared.declared.clone());
                if !inner.is_planned() {
                    return Err(SqlError::unsupported("EXPLAIN of this statement").into());
                }
                self.explain(tx, &inner, *analyze, parameters).await
            }
            _ => {
                let planned = self.plan_for(prepared, &Arc::clone(&tx.catalog)).await?;
                prepared.check_result(&planned)?;
                if planned.command() != Command::Select && tx.is_read_only() {
                    return Err(read_only(command_name(planned.command())).into());
                }
                self.run_planned(tx, &planned, prepared, parameters).await
            }
        }
    }

    fn note(&mut self, notices: impl IntoIterator<Item = String>) {
        self.notices.extend(notices.into_iter().map(|notice| SqlError::new("00000", notice)));
    }

    /// Fails the block, after a message of the client was refused.
    pub async fn fail(&mut self) {
        self.fail_block().await;
    }

    /// Ends the session: a transaction in progress is rolled back.
    pub async fn close(&mut self) {
        if let Some(tx) = self.copy_in.take().and_then(CopyIn::into_tx) {
            tx.rollback().await;
        }
        if let Some(block) = self.block.take() {
            self.roll_back(block).await;
        }
    }

    fn show(&self, name: &str) -> Result<Response, SqlError> {
        let rows = if name == "all" {
            let all = self.settings.all().into_iter();
            all.map(|(name, value)| vec![Value::Text(name), Value::Text(value), Value::Text(String::new())]).collect()
        } else if name == ONLINE_CHANGES {
            let text = |text: &str| Value::Text(text.to_owned());
            let row = |of: Progress| {
                let rate = format!("{:.0}", of.rows_per_second());
                vec![text(&of.database), text(&of.table), text(of.command), text(&of.rows.to_string()), text(&rate)]
            };
            self.databases.progress().into_iter().map(row).collect()
        } else {
            let value = if name == "transaction_read_only" && self.block.as_ref().is_some_and(Block::is_read_only) {
                "on".to_owned()
            } else {
                self.settings.show(name)?
            };
            vec![vec![Value::Text(value)]]
        };
        Ok(Response::Rows { columns: show_columns(name), rows, tag: "SHOW".to_owned() })
    }

    fn refuse_in_block(&self, what: &str) -> Result<(), SqlError> {
        match &self.block {
            Some(_) => Err(SqlError::new("25001", format!("{what} cannot run inside a transaction block"))),
            None => Ok(()),
        }
    }
}

/// What another attempt of a statement outside of a block needs.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    snapshot: bool,
    /// A transaction that has an id.
    id: bool,
}

/// Whether the values of rows may have caused an error: of data, cardinality, constraints, or rows that do not match.
fn is_of_rows(error: &SqlError) -> bool {
    ["21", "22", "23", "XX"].iter().any(|class| error.sqlstate.starts_with(class))
}

/// Statements that a failed block accepts.
fn ends_failure(statement: Option<&Statement>) -> bool {
    matches!(statement, Some(Statement::Commit { .. } | Statement::Rollback { .. } | Statement::RollbackTo(_)))
}

/// `SHOW online_changes`: the statements of this node that work on the rows of tables, such as `CREATE INDEX`.
const ONLINE_CHANGES: &str = "online_changes";

fn show_columns(name: &str) -> Vec<OutputColumn> {
    match name {
        "all" => ["name", "setting", "description"].map(text_column).into(),
        ONLINE_CHANGES => ["database", "table", "command", "rows", "rows_per_second"].map(text_column).into(),
        name => vec![text_column(name)],
    }
}

/// Adds the commit of a statement to the result of its `EXPLAIN ANALYZE`.
fn with_commit(response: Response, statement: &Statement, committed: Option<sdk::Committed<()>>) -> Response {
    match (response, statement, committed) {
        (Response::Rows { columns, mut rows, tag }, Statement::Explain { analyze: true, .. }, Some(committed)) => {
            rows.extend(report_of(&committed).into_iter().map(|line| vec![Value::Text(line)]));
            Response::Rows { columns, rows, tag }
        }
        (response, ..) => response,
    }
}

fn command_name(command: Command) -> &'static str {
    match command {
        Command::Select => "SELECT",
        Command::Insert => "INSERT",
        Command::Update => "UPDATE",
        Command::Delete => "DELETE",
    }
}

fn done(tag: &str) -> Response {
    Response::Done { tag: tag.to_owned() }
}

fn response(plan: &Plan, outcome: Outcome) -> Response {
    let count = outcome.affected;
    let number_of_oid = if plan.command == Command::Insert { "0 " } else { "" };
    let tag = format!("{} {number_of_oid}{count}", command_name(plan.command));
    if plan.command != Command::Select && plan.columns.is_empty() {
        return Response::Done { tag };
    }
    Response::Rows { columns: plan.columns.clone(), rows: outcome.rows, tag }
}

fn definition_tag(definition: &Definition) -> &'static str {
    match definition {
        Definition::CreateTable(_) => "CREATE TABLE",
        Definition::AlterTable { .. } => "ALTER TABLE",
        Definition::CreateIndex(_) => "CREATE INDEX",
        Definition::CreateView { .. } => "CREATE VIEW",
        Definition::CreateSequence { .. } => "CREATE SEQUENCE",
        Definition::Drop { kind: DropKind::Table, .. } => "DROP TABLE",
        Definition::Drop { kind: DropKind::Index, .. } => "DROP INDEX",
        Definition::Drop { kind: DropKind::View, .. } => "DROP VIEW",
        Definition::Drop { kind: DropKind::Sequence, .. } => "DROP SEQUENCE",
    }
}
