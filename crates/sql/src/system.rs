//! The system catalogs: the tables of `pg_catalog` and `information_schema`, with PostgreSQL 15's columns, and the
//! functions over them.
//!
//! They are pure functions of a [`Schema`] and a [`Context`]. [`tables`] lists the tables, [`rows`] has their contents,
//! and [`call`] executes the functions. The definitions of the tables (`tables.txt`) and the rows that do not depend on
//! the schema (`rows.txt`) are data, in PostgreSQL's text format.
//!
//! * *Object identifiers* are those of PostgreSQL for its own objects, and derived from ours for the others ([`oids`]).
//! * *The number of a column* (`attnum`) is its [`ColumnId`](crate::ids::ColumnId), which never changes. Hidden columns
//!   and the keys on them are not listed.
//! * *Expressions* (`pg_node_tree`) are their SQL text, which `pg_get_expr` returns.
//! * *Interleaving* has no place in PostgreSQL's catalogs. It is shown as the comment of the table.
//!
//! Deviations from PostgreSQL: tables have no row types, TOAST tables or dropped columns; `pg_proc` and `pg_operator`
//! have few rows; there is one role, the user of the session, which is a superuser.

mod catalog;
mod definitions;
mod deparse;
mod fill;
mod functions;
mod information;
mod kinds;
mod names;
pub mod oids;
mod relations;
mod server;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use definitions::{SystemColumn, SystemTable};
pub(crate) use deparse::columns_of;
pub use deparse::{quote_identifier, quote_literal};
pub use functions::{Function, call, functions};
pub use kinds::CatalogType;

use crate::ids::ViewId;
use crate::schema::Schema;
use crate::types::SqlType;
use crate::value::Value;

/// The content of the catalogs that is not in the schema.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The name of the session's database.
    pub database: String,
    /// The names of all databases.
    pub databases: Vec<String>,
    /// The user of the session.
    pub user: String,
    /// The version that is reported to clients, such as `15.0`.
    pub server_version: String,
    /// The names and values of the session's settings.
    pub settings: Vec<(String, String)>,
    /// The columns of views, as the planner has determined them. For other views, only columns of queries that need no
    /// planner are known.
    pub view_columns: BTreeMap<ViewId, Vec<(String, SqlType)>>,
    /// The running node. Without it, there are no sessions, and sizes are unknown.
    pub live: Option<Arc<dyn Live>>,
}

impl Context {
    fn setting(&self, name: &str) -> Option<&str> {
        let is_wanted = |(known, _): &&(String, String)| known.eq_ignore_ascii_case(name);
        self.settings.iter().find(is_wanted).map(|(_, value)| value.as_str())
    }
}

/// Live data of the running node for the catalogs.
pub trait Live: std::fmt::Debug + Send + Sync {
    /// The sessions on this node.
    fn sessions(&self) -> Vec<SessionRow>;

    /// About the bytes of the rows with this identifier, those of a table or an index.
    fn size(&self, id: u32) -> Option<u64>;

    /// About the bytes of a database.
    fn database_size(&self, name: &str) -> Option<u64>;
}

/// A session, for `pg_stat_activity`. Times are in microseconds since 2000-01-01 UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// The number that the client knows, to cancel statements.
    pub process: i32,
    pub database: String,
    pub user: String,
    /// The setting `application_name`.
    pub application: String,
    /// The address and port of the client.
    pub client: Option<(String, u16)>,
    pub started: i64,
    /// The begin of the transaction in progress.
    pub transaction_started: Option<i64>,
    /// The begin of the last statement.
    pub statement_started: Option<i64>,
    /// When the state has changed.
    pub changed: i64,
    /// The state in PostgreSQL's words.
    pub state: &'static str,
    /// The text of the last message with statements, without the values of parameters.
    pub text: Arc<str>,
}

/// The tables, those of `pg_catalog` first.
#[must_use]
pub fn tables() -> &'static [SystemTable] {
    definitions::tables()
}

/// A table by its name. Without a schema, `pg_catalog` is meant.
#[must_use]
pub fn table(schema: Option<&str>, name: &str) -> Option<&'static SystemTable> {
    let schema = schema.unwrap_or("pg_catalog");
    tables().iter().find(|table| table.schema == schema && table.name == name)
}

/// The contents of a table: each row has a value for each column.
#[must_use]
pub fn rows(table: &SystemTable, schema: &Schema, context: &Context) -> Vec<Vec<Value>> {
    match generator(table) {
        Some(generate) => generate(table, schema, context),
        None => definitions::fixed_rows(table).to_vec(),
    }
}

type Generator = fn(&SystemTable, &Schema, &Context) -> Vec<Vec<Value>>;

/// The function that makes the rows that depend on the schema or the context.
fn generator(table: &SystemTable) -> Option<Generator> {
    match table.schema {
        "pg_catalog" => catalog::generator(table.name).or_else(|| server::generator(table.name)),
        _ => information::generator(table.name),
    }
}

impl SystemTable {
    /// Its rows change without a change of the schema, so each execution needs its own.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self.name, "pg_stat_activity" | "pg_locks" | "pg_stat_database")
    }

    /// It has no rows in any schema.
    #[must_use]
    pub fn is_always_empty(&self) -> bool {
        generator(self).is_none() && definitions::fixed_rows(self).is_empty()
    }
}
