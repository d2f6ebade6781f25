//! The execution of queries, on threads of their own.

use std::sync::Arc;

use datafusion::execution::TaskContext;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use futures::StreamExt;
use sql::{SqlError, SqlType, Value};
use tokio::sync::mpsc;

use crate::Source;
use crate::error::{Failed, QueryError};
use crate::planner::{Query, STATE, bind};
use crate::values::values;

/// Batches that wait for the client.
const BATCHES_AHEAD: usize = 2;

/// The limits of a query.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum memory for sorting, grouping and joining, in bytes.
    pub memory: usize,
}

/// Executes queries.
#[derive(Clone, Debug)]
pub struct Engine {
    runtime: tokio::runtime::Handle,
}

/// A query in execution. It ends when this is dropped.
#[derive(Debug)]
pub struct Execution {
    batches: mpsc::Receiver<Result<Vec<Vec<Value>>, QueryError>>,
    task: tokio::task::AbortHandle,
    plan: Arc<dyn ExecutionPlan>,
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
        self.batches.recv().await.transpose()
    }

    /// The plan with what its steps have done so far, a line each.
    #[must_use]
    pub fn report(&self) -> Vec<String> {
        let text = datafusion::physical_plan::display::DisplayableExecutionPlan::with_metrics(self.plan.as_ref());
        text.indent(false).to_string().lines().map(str::to_owned).collect()
    }
}

impl Engine {
    /// Executes queries on the threads of a runtime.
    #[must_use]
    pub fn new(runtime: tokio::runtime::Handle) -> Self {
        Self { runtime }
    }

    /// Begins the execution of a query.
    ///
    /// # Errors
    /// Parameters are missing, or the plan is not possible.
    pub async fn execute(
        &self,
        query: &Query,
        parameters: &[Value],
        now: i64,
        source: &Arc<dyn Source>,
        limits: Limits,
    ) -> Result<Execution, QueryError> {
        let plan = physical(query, parameters, now, source).await?;
        let types: Vec<SqlType> = query.columns.iter().map(|column| column.sql_type.clone()).collect();
        let context = context(limits)?;
        let (sender, batches) = mpsc::channel(BATCHES_AHEAD);
        let running = Arc::clone(&plan);
        let task = self.runtime.spawn(async move {
            let mut stream = match datafusion::physical_plan::execute_stream(running, context) {
                Ok(stream) => stream,
                Err(error) => {
                    let _ = sender.send(Err(error.into())).await;
                    return;
                }
            };
            while let Some(batch) = stream.next().await {
                let rows = batch.map_err(QueryError::from).and_then(|batch| {
                    let mut columns = Vec::with_capacity(types.len());
                    for (array, of) in batch.columns().iter().zip(&types) {
                        columns.push(values(array, of)?.into_iter());
                    }
                    let row = |_| columns.iter_mut().map(|column| column.next().unwrap_or(Value::Null)).collect();
                    Ok((0..batch.num_rows()).map(row).collect())
                });
                let has_failed = rows.is_err();
                if sender.send(rows).await.is_err() || has_failed {
                    return;
                }
            }
        });
        Ok(Execution { batches, task: task.abort_handle(), plan })
    }

    /// The plan of a query, a line for each step.
    ///
    /// # Errors
    /// As [`Engine::execute`].
    pub async fn explain(
        &self,
        query: &Query,
        parameters: &[Value],
        now: i64,
        source: &Arc<dyn Source>,
    ) -> Result<Vec<String>, QueryError> {
        let plan = physical(query, parameters, now, source).await?;
        Ok(displayable(plan.as_ref()).indent(false).to_string().lines().map(str::to_owned).collect())
    }
}

async fn physical(
    query: &Query,
    parameters: &[Value],
    now: i64,
    source: &Arc<dyn Source>,
) -> Result<Arc<dyn ExecutionPlan>, QueryError> {
    let plan = bind(query, parameters, now, source)?;
    Ok(STATE.create_physical_plan(&plan).await?)
}

fn context(limits: Limits) -> Result<Arc<TaskContext>, SqlError> {
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(GreedyMemoryPool::new(limits.memory)))
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled))
        .build_arc()
        .map_err(|error| SqlError::from(Failed(error)))?;
    let task = STATE.task_ctx();
    Ok(Arc::new(TaskContext::new(
        None,
        task.session_id(),
        task.session_config().clone(),
        task.scalar_functions().clone(),
        task.higher_order_functions().clone(),
        task.aggregate_functions().clone(),
        task.window_functions().clone(),
        runtime,
    )))
}
