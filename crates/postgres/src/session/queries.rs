//! Planned statements: the choice of the plan, reads of rows in a transaction, and results as streams.

use std::io;
use std::sync::{Arc, LazyLock};

use base::budget::ByteBudget;
use base::limits::sql::{CHANGED_ROWS_MAX, QUERY_BYTES};
use futures::FutureExt;
use futures::future::BoxFuture;
use query::{Engine, Execution, Limits, Planner, Query, QueryError, Source, SourceError};
use sql::direct::{self, OutputColumn, Page, Read};
use sql::statement::Statement;
use sql::{SqlError, Value, sqlstate};

use super::{Response, Session};
use crate::database::Catalog;
use crate::failure::{Failure, of_client};
use crate::limits::Interrupt;
use crate::settings::SERVER_VERSION;
use crate::statement::{Planned, Prepared, text_column};
use crate::transaction::{Reader, Tx};

/// Minimum threads of queries. A join with a condition that few rows satisfy occupies a thread until its end, even if it is
/// cancelled; others must be left.
const THREADS_MIN: usize = 8;

/// The threads of queries, separate from those of sessions.
static ENGINE: LazyLock<io::Result<Engine>> =
    LazyLock::new(|| Engine::start(std::thread::available_parallelism().map_or(2, usize::from).max(THREADS_MIN)));

fn engine() -> Result<&'static Engine, SqlError> {
    ENGINE.as_ref().map_err(|error| SqlError::new("53000", format!("there are no threads for queries: {error}")))
}

impl Source for Reader {
    fn read(&self, reads: Vec<Read>) -> BoxFuture<'static, Result<Vec<Page>, SourceError>> {
        let reader = self.clone();
        async move { reader.read_rows(reads).await.map_err(|failure| Box::new(failure) as SourceError) }.boxed()
    }
}

fn failure(error: QueryError) -> Failure {
    match error {
        QueryError::Sql(error) => Failure::Sql(error),
        QueryError::Source(error) => match error.downcast::<Failure>() {
            Ok(failure) => *failure,
            Err(error) => Failure::Sql(SqlError::new(sqlstate::INTERNAL_ERROR, error.to_string())),
        },
    }
}

/// The rows of a query, which are computed as the client takes them.
#[derive(Debug)]
pub struct RowStream {
    execution: Execution,
    interrupt: Interrupt,
    count: u64,
}

impl RowStream {
    async fn next(&mut self) -> Result<Option<Vec<Vec<Value>>>, Failure> {
        let page = self.interrupt.run(self.execution.next()).await?.map_err(failure)?;
        self.count += page.as_ref().map_or(0, |page| page.len() as u64);
        Ok(page)
    }

    /// The command tag, after the last row.
    #[must_use]
    pub fn tag(&self) -> String {
        format!("SELECT {}", self.count)
    }
}

impl Session {
    /// The next rows of a query; none after the last.
    ///
    /// # Errors
    /// The query has failed, and with it the block.
    pub async fn next_rows(&mut self, stream: &mut RowStream) -> Result<Option<Vec<Vec<Value>>>, SqlError> {
        match stream.next().await {
            Ok(page) => Ok(page),
            Err(failure) => {
                let error = failure.into();
                self.keep_age(&error);
                self.fail_block().await;
                Err(error)
            }
        }
    }

    /// The plan of a statement for a version of the schema.
    pub(super) async fn plan_for(&mut self, prepared: &Prepared, catalog: &Arc<Catalog>) -> Result<Planned, SqlError> {
        if prepared.reads_sizes {
            let interrupt = self.interrupt();
            interrupt.run(self.database.refresh_sizes()).await?.map_err(of_client)?;
        }
        if let Some(planned) = prepared.cached(catalog) {
            return Ok(planned);
        }
        let direct =
            if prepared.needs_planner() { None } else { prepared.direct(&catalog.schema, &self.constants())? };
        let planned = match direct {
            Some(plan) => Planned::Direct(Arc::new(plan)),
            None => {
                let planner = self.planner(catalog).await?;
                let interrupt = self.interrupt();
                interrupt.run(planned(&planner, &catalog.schema, prepared)).await??
            }
        };
        prepared.remember(catalog, planned.clone());
        Ok(planned)
    }

    /// The planner for a version of the schema.
    async fn planner(&mut self, catalog: &Arc<Catalog>) -> Result<Arc<Planner>, SqlError> {
        if let Some((of, planner)) = &self.planner
            && Arc::ptr_eq(of, catalog)
        {
            return Ok(Arc::clone(planner));
        }
        let context = sql::system::Context {
            database: self.database.name.clone(),
            databases: self.databases.names().await?,
            user: self.user.clone(),
            server_version: SERVER_VERSION.to_owned(),
            settings: self.settings.all(),
            view_columns: Default::default(),
            live: Some(self.live()),
        };
        let interrupt = self.interrupt();
        let planner = interrupt.run(engine()?.planner(&catalog.schema, context, &self.constants())).await??;
        self.planner = Some((Arc::clone(catalog), Arc::clone(&planner)));
        Ok(planner)
    }

    /// Executes a statement that has a plan.
    pub(super) async fn run_planned(
        &mut self,
        tx: &mut Tx,
        planned: &Planned,
        prepared: &Prepared,
        parameters: &[Value],
    ) -> Result<Response, Failure> {
        let (plan, read) = match planned {
            Planned::Direct(plan) => (Arc::clone(plan), None),
            Planned::Query(query) => {
                let execution = execute(tx, query, parameters, &self.memory).await?;
                let stream = RowStream { execution, interrupt: tx.interrupt.clone(), count: 0 };
                return Ok(Response::Stream { columns: query.columns.clone(), stream });
            }
            Planned::Change { source, .. } => {
                let mut execution = execute(tx, source, parameters, &self.memory).await?;
                let mut rows = Vec::new();
                let mut held = Vec::new();
                while let Some(page) = tx.interrupt.run(execution.next()).await?.map_err(failure)? {
                    held.push(crate::execute::hold(&self.memory, &page)?);
                    rows.extend(page);
                    if rows.len() > CHANGED_ROWS_MAX {
                        let message = format!("a statement cannot change more than {CHANGED_ROWS_MAX} rows");
                        let error = SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message);
                        return Err(error.with_hint("Change fewer rows at a time.").into());
                    }
                }
                let Some(statement) = &prepared.statement else { return Ok(Response::Empty) };
                let declared: Vec<_> = planned.parameters().iter().cloned().map(Some).collect();
                let plan = direct::of_rows(tx.schema(), statement, &prepared.text, &declared, rows)?;
                (Arc::new(plan), Some(held))
            }
        };
        let run = crate::execute::run(tx, &plan, parameters, &mut self.values, None, &self.memory);
        let outcome = match run.await {
            Err(Failure::NeedsPlanner) if !prepared.needs_planner() => {
                prepared.set_needs_planner();
                let planned = self.plan_for(prepared, &Arc::clone(&tx.catalog)).await?;
                prepared.check_result(&planned)?;
                return Box::pin(self.run_planned(tx, &planned, prepared, parameters)).await;
            }
            outcome => outcome?,
        };
        tx.write(&outcome.writes)?;
        drop(read);
        Ok(super::response(&plan, outcome))
    }

    /// `EXPLAIN`
    pub(super) async fn explain(
        &mut self,
        tx: &mut Tx,
        prepared: &Prepared,
        analyze: bool,
        parameters: &[Value],
    ) -> Result<Response, Failure> {
        let planned = self.plan_for(prepared, &Arc::clone(&tx.catalog)).await?;
        let started = tokio::time::Instant::now();
        let mut lines = Vec::new();
        match &planned {
            Planned::Query(query) if analyze => {
                let mut execution = execute(tx, query, parameters, &self.memory).await?;
                let mut count = 0;
                while let Some(page) = tx.interrupt.run(execution.next()).await?.map_err(failure)? {
                    count += page.len();
                }
                lines.extend(execution.report());
                lines.push(format!("Rows: {count}"));
            }
            Planned::Query(query) => {
                let source: Arc<dyn Source> = Arc::new(tx.reader());
                lines.extend(engine()?.explain(query, parameters, tx.now, &source).await.map_err(failure)?);
            }
            planned => {
                lines.push(planned.describe());
                if let Planned::Change { source, .. } = planned {
                    let rows: Arc<dyn Source> = Arc::new(tx.reader());
                    let plan = engine()?.explain(source, parameters, tx.now, &rows).await.map_err(failure)?;
                    lines.extend(plan.into_iter().map(|line| format!("  {line}")));
                }
                if analyze {
                    match self.run_planned(tx, planned, prepared, parameters).await? {
                        Response::Rows { tag, .. } | Response::Done { tag } => lines.push(format!("Result: {tag}")),
                        _ => {}
                    }
                }
            }
        }
        if analyze {
            lines.push(format!("Execution Time: {:.3} ms", started.elapsed().as_secs_f64() * 1_000.0));
            lines.extend(tx.report());
        }
        let rows = lines.into_iter().map(|line| vec![Value::Text(line)]).collect();
        Ok(Response::Rows { columns: explain_columns(), rows, tag: "EXPLAIN".to_owned() })
    }
}

/// The columns of the result of `EXPLAIN`.
pub(super) fn explain_columns() -> Vec<OutputColumn> {
    vec![text_column("QUERY PLAN")]
}

async fn execute(tx: &mut Tx, query: &Query, parameters: &[Value], memory: &ByteBudget) -> Result<Execution, Failure> {
    if tx.is_single_read() {
        return Err(Failure::NeedsSnapshot);
    }
    tx.verify_now().await?;
    let source: Arc<dyn Source> = Arc::new(tx.reader());
    let limits = Limits { memory: QUERY_BYTES, budget: memory.clone() };
    engine()?.execute(query, parameters, tx.now, &source, limits).map_err(failure)
}

async fn planned(
    planner: &Arc<Planner>,
    schema: &sql::schema::Schema,
    prepared: &Prepared,
) -> Result<Planned, SqlError> {
    let Some(statement) = &prepared.statement else { return Err(SqlError::unsupported("an empty statement here")) };
    if let Statement::Query(query, _) = statement {
        return Ok(Planned::Query(Arc::new(
            engine()?.prepare(planner, (**query).clone(), &prepared.text, &prepared.declared, None).await?,
        )));
    }
    let source = direct::source(schema, statement, &prepared.text)?;
    let query =
        engine()?.prepare(planner, source.query, &prepared.text, &prepared.declared, Some(source.types)).await?;
    let declared: Vec<_> = query.parameters.iter().cloned().map(Some).collect();
    let shape = direct::of_rows(schema, statement, &prepared.text, &declared, Vec::new())?;
    Ok(Planned::Change { source: Arc::new(query), shape: Arc::new(shape) })
}
