//! Queries that need a planner: joins, groups, set operations, subqueries, windows. DataFusion plans and executes them.
//!
//! A [`Planner`] belongs to one version of a schema. [`Planner::prepare`] plans a statement as a [`Query`], and an
//! [`Engine`] executes it for parameters on a [`Source`] of rows. Rows are read in pages, when the client takes them.
//! The memory of a query is limited, and only that query fails when it needs more.
//!
//! Statements are rewritten where the two dialects differ, and operators with other semantics are replaced, so that
//! results, types and errors are PostgreSQL's.
//!
//! # Invariants
//!
//! - A value, an error or a type that differs between PostgreSQL and DataFusion is PostgreSQL's: statements are
//!   rewritten (`rewrite.rs`), operators and casts are functions of ours (`operators.rs`). *Reason:* clients must not
//!   tell which way executed a statement.
//! - A query that reads one table by keys, by a narrow range or by all columns of an index needs no planner
//!   (`sql/src/direct/`); with more than 1,000 rows it is planned. *Reason:* a planner takes longer than such a read.
//! - A plan is bound to its parameters before it is optimized. *Reason:* only constants select key ranges and indexes.
//! - Filters select what is read, and are evaluated again on the rows. *Reason:* a range may be too large, never too
//!   small.
//! - Queries run on threads of their own, with a limit of memory each. *Reason:* a query must not stop sessions or
//!   others.

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
