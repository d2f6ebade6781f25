//! Queries that need a planner: joins, groups, set operations, subqueries, windows. DataFusion plans and executes them.
//!
//! A [`Planner`] belongs to one version of a schema. [`Planner::prepare`] plans a statement as a [`Query`], and an
//! [`Engine`] executes it for parameters on a [`Source`] of rows. Rows are read in pages, when the client takes them.
//! The memory of a query is limited, and only that query fails when it needs more.
//!
//! Statements are rewritten where the two dialects differ, and operators with other semantics are replaced, so that
//! results, types and errors are PostgreSQL's.

mod branches;
mod checks;
mod error;
mod execution;
mod formats;
mod frames;
mod functions;
mod lists;
mod operators;
mod ordered;
mod origins;
mod planner;
mod rewrite;
mod rules;
mod series;
mod system;
mod table;
mod unions;
mod unnest;
mod values;

use std::fmt::Debug;

use futures::future::BoxFuture;
use sql::direct::{Page, Read};

pub use error::QueryError;
pub use execution::{Engine, Execution, Limits};
pub use planner::{Planner, Query};

/// An error of a source of rows.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Where a query reads rows, all as of one moment.
pub trait Source: Debug + Send + Sync {
    /// Reads rows: the results in the order of the reads.
    fn read(&self, reads: Vec<Read>) -> BoxFuture<'static, Result<Vec<Page>, SourceError>>;
}
