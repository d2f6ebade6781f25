//! The pure foundation of SQL: types and values, keys and cells, schemas, statements, and statements that need no
//! planner. It follows PostgreSQL in syntax, semantics, formats and error codes.
//!
//! A database is one Loggos table. A row of an SQL table is a row of that table: its key is a tuple ([`keys`]), and
//! each column is a cell ([`cells`]). Versions of the [`schema`] are immutable; a statement that changes the schema
//! creates the next one ([`ddl::apply`]). [`parse`](parse::parse) translates text to [statements](statement), and
//! [`direct`] translates those that name their rows by key to reads and writes. The planner for all others is in the
//! crate `query`. [`fence`] ensures that a transaction uses the current version of the schema.
//!
//! Deviations from PostgreSQL: `numeric` has no `NaN` and no infinities, and at most 1,000 digits on each side of the
//! point; text is ordered by its bytes; the time zone is UTC; the precision of `timestamp(p)` is ignored.
//!
//! **Architecture invariants:** no clock, no randomness, no IO, no `async`. Nothing that a client or a disk provides
//! causes a panic, and the depth of parsed input is limited.

mod binary;
mod bind;
pub mod calendar;
pub mod cast;
pub mod cells;
pub mod ddl;
pub mod direct;
mod error;
mod expression;
pub mod fence;
pub mod ids;
mod jsonb;
pub mod keys;
mod numeric;
pub mod operators;
pub mod parse;
pub mod rows;
pub mod schema;
pub mod statement;
pub mod system;
mod text;
mod types;
mod value;

pub use bind::{PARAMETERS_MAX, relation_name};
pub use error::{ErrorObject, SqlError, sqlstate};
pub use expression::{Environment, Supply};
pub use jsonb::{as_text as json_text, member as json_member, normalize as normalize_json, quote as quote_json};
pub use numeric::Numeric;
pub use types::{LENGTH_MAX, PRECISION_MAX, SqlType};
pub use value::{Array, Interval, Value};
