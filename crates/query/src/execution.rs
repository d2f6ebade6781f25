//! The planning and execution of queries, on threads of their own.
//!
//! These threads have large stacks, because DataFusion's planner is recursive. A panic in it fails one statement.

use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use base::budget::{ByteBudget, Reservation};
use datafusion::common::DataFusionError;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::execution::TaskContext;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use futures::StreamExt;
use sql::schema::Schema;
use sql::{SqlError, SqlType, Value};
use sqlparser::ast;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::Source;
use crate::error::{Failed, QueryError, internal};
use crate::planner::{Planner, Query, STATE, bind};
use crate::values::values;

/// Maximum batches of rows that wait for the client.
const BATCHES_AHEAD: usize = 2;
/// Stack of a thread, in bytes. Only its used part takes memory.
const STACK_BYTES: usize = 64 << 20;

/// The limits of a query.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum memory for sorting, grouping and joining, in bytes.
    pub memory: usize,
    /// The budget that it is charged to.
    pub budget: ByteBudget,
}

/// Plans and executes queries.
#[derive(Clone, Debug)]
pub struct Engine {
    runtime: Handle,
}

/// A query in execution. It ends when this is dropped.
#[derive(Debug)]
pub struct Execution {
    results: mpsc::Receiver<Message>,
    task: AbortHandle,
    plan: Arc<OnceLock<Arc<dyn ExecutionPlan>>>,
    is_done: bool,
}

#[derive(Debug)]
enum Message {
    Rows(Vec<Vec<Value>>),
    Failed(QueryError),
    /// All rows were sent.
    Done,
}

impl Drop for Execution {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Execution {
    /// The next rows; `None` at the end.
    ///
    /// # Errors
    /// The query has failed.
    pub async fn next(&mut self) -> Result<Option<Vec<Vec<Value>>>, QueryError> {
        if self.is_done {
            return Ok(None);
        }
        match self.results.recv().await {
            Some(Message::Rows(rows)) => Ok(Some(rows)),
            Some(Message::Failed(error)) => Err(error),
            Some(Message::Done) => {
                self.is_done = true;
                Ok(None)
            }
            None => Err(interrupted().into()),
        }
    }

    /// The plan with the metrics of its operators, a line each.
    #[must_use]
    pub fn report(&self) -> Vec<String> {
        let plan = self.plan.get();
        let text = plan.map(|plan| DisplayableExecutionPlan::with_metrics(plan.as_ref()).indent(false).to_string());
        text.unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

/// The error of a task that ended without a result.
fn interrupted() -> SqlError {
    internal("the query ended unexpectedly".to_owned())
}

impl Engine {
    /// Starts the threads, which live as long as the process.
    ///
    /// # Errors
    /// There are no threads.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(threads).thread_name("query").thread_stack_size(STACK_BYTES).enable_all();
        let runtime: &'static Runtime = Box::leak(Box::new(builder.build()?));
        Ok(Self { runtime: runtime.handle().clone() })
    }

    /// [`Planner::new`] on a thread of the engine: it plans the views.
    ///
    /// # Errors
    /// The thread has failed.
    pub async fn planner(
        &self,
        schema: &Schema,
        context: sql::system::Context,
        constants: &[(&'static str, Value)],
    ) -> Result<Arc<Planner>, SqlError> {
        let (schema, constants) = (schema.clone(), constants.to_vec());
        let task = self.runtime.spawn(async move { Planner::new(&schema, context, &constants) });
        task.await.map_err(|_| interrupted())
    }

    /// [`Planner::prepare`] on a thread of the engine.
    ///
    /// # Errors
    /// As there.
    pub async fn prepare(
        &self,
        planner: &Arc<Planner>,
        query: ast::Query,
        text: &str,
        declared: &[Option<SqlType>],
        wanted: Option<Vec<SqlType>>,
    ) -> Result<Query, SqlError> {
        let (planner, text, declared) = (Arc::clone(planner), text.to_owned(), declared.to_vec());
        let task = self.runtime.spawn(async move { planner.prepare(&query, &text, &declared, wanted.as_deref()) });
        task.await.unwrap_or_else(|_| Err(interrupted()))
    }

    /// Begins the execution of a query.
    ///
    /// # Errors
    /// Settings of the query are not valid.
    pub fn execute(
        &self,
        query: &Query,
        parameters: &[Value],
        now: i64,
        source: &Arc<dyn Source>,
        limits: Limits,
    ) -> Result<Execution, QueryError> {
        let context = context(limits)?;
        let (sender, results) = mpsc::channel(BATCHES_AHEAD);
        let plan = Arc::new(OnceLock::new());
        let work = Work {
            query: query.clone(),
            parameters: parameters.to_vec(),
            now,
            source: Arc::clone(source),
            context,
            plan: Arc::clone(&plan),
        };
        let task = self.runtime.spawn(async move {
            let last = match work.run(&sender).await {
                Ok(()) => Message::Done,
                Err(error) => Message::Failed(error),
            };
            // It fails if the client has ended the query.
            _ = sender.send(last).await;
        });
        Ok(Execution { results, task: task.abort_handle(), plan, is_done: false })
    }

    /// The plan of a query, a line for each step.
    ///
    /// # Errors
    /// As the execution's.
    pub async fn explain(
        &self,
        query: &Query,
        parameters: &[Value],
        now: i64,
        source: &Arc<dyn Source>,
    ) -> Result<Vec<String>, QueryError> {
        let (query, parameters, source) = (query.clone(), parameters.to_vec(), Arc::clone(source));
        let task = self.runtime.spawn(async move {
            let plan = physical(&query, &parameters, now, &source).await?;
            Ok(displayable(plan.as_ref()).indent(false).to_string().lines().map(str::to_owned).collect())
        });
        task.await.unwrap_or_else(|_| Err(interrupted().into()))
    }
}

/// A query to execute.
struct Work {
    query: Query,
    parameters: Vec<Value>,
    now: i64,
    source: Arc<dyn Source>,
    context: Arc<TaskContext>,
    plan: Arc<OnceLock<Arc<dyn ExecutionPlan>>>,
}

impl Work {
    async fn run(self, sender: &mpsc::Sender<Message>) -> Result<(), QueryError> {
        let types: Vec<SqlType> = self.query.columns.iter().map(|column| column.sql_type.clone()).collect();
        let plan = physical(&self.query, &self.parameters, self.now, &self.source).await?;
        _ = self.plan.set(Arc::clone(&plan));
        let mut batches = execute_stream(plan, self.context)?;
        while let Some(batch) = batches.next().await {
            let batch = batch?;
            let mut columns = Vec::with_capacity(types.len());
            for ((array, of), is_average) in batch.columns().iter().zip(&types).zip(&self.query.averages) {
                let mut found = values(array, of)?;
                if *is_average {
                    for value in &mut found {
                        if let Value::Numeric(number) = value {
                            *number = number.as_average();
                        }
                    }
                }
                columns.push(found.into_iter());
            }
            let row = |_| columns.iter_mut().map(|column| column.next().unwrap_or(Value::Null)).collect();
            let rows = (0..batch.num_rows()).map(row).collect();
            if sender.send(Message::Rows(rows)).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

async fn physical(
    query: &Query,
    parameters: &[Value],
    now: i64,
    source: &Arc<dyn Source>,
) -> Result<Arc<dyn ExecutionPlan>, QueryError> {
    let plan = crate::ordered::with_order(bind(query, parameters, now, source)?)?;
    let plan = crate::unnest::unnest(plan)?;
    let plan = STATE.create_physical_plan(&plan).await?;
    Ok(plan.transform_up(yielding)?.data)
}

/// Makes operators that multiply rows yield from time to time. Otherwise an aggregate of a large join, which never waits
/// for its inputs, occupies a thread until its end, even if the query is cancelled.
fn yielding(plan: Arc<dyn ExecutionPlan>) -> datafusion::common::Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let multiplies = plan.name().ends_with("JoinExec") || plan.name() == "UnnestExec";
    if multiplies { Ok(Transformed::yes(Arc::new(CooperativeExec::new(plan)))) } else { Ok(Transformed::no(plan)) }
}

/// The memory of one query, within the budget of its session.
#[derive(Debug)]
struct QueryMemory {
    most: usize,
    held: Mutex<Reservation>,
}

impl QueryMemory {
    fn new(limits: Limits) -> Self {
        let Limits { memory: most, budget } = limits;
        Self { most, held: Mutex::new(budget.charge(0)) }
    }

    fn held(&self) -> MutexGuard<'_, Reservation> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Display for QueryMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the memory of a query")
    }
}

impl MemoryPool for QueryMemory {
    fn name(&self) -> &str {
        "query"
    }

    fn grow(&self, _: &MemoryReservation, additional: usize) {
        self.held().grow(additional);
    }

    fn shrink(&self, _: &MemoryReservation, shrink: usize) {
        let mut held = self.held();
        let rest = held.bytes().saturating_sub(shrink);
        held.shrink_to(rest);
    }

    fn try_grow(&self, _: &MemoryReservation, additional: usize) -> datafusion::common::Result<()> {
        let mut held = self.held();
        if held.bytes().saturating_add(additional) > self.most || !held.try_grow(additional) {
            return Err(DataFusionError::ResourcesExhausted(format!("{additional} bytes more for a query")));
        }
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.held().bytes()
    }
}

fn context(limits: Limits) -> Result<Arc<TaskContext>, SqlError> {
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(QueryMemory::new(limits)))
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled))
        .build_arc()
        .map_err(|error| SqlError::from(Failed(error)))?;
    // Physical plans contain their functions, so the context needs none: copies of all would take much longer than a
    // short query.
    let none = (Default::default(), Default::default(), Default::default(), Default::default());
    let (scalar, higher_order, aggregate, window) = none;
    let (session, config) = (STATE.session_id().to_owned(), STATE.config().clone());
    Ok(Arc::new(TaskContext::new(None, session, config, scalar, higher_order, aggregate, window, runtime)))
}
