//! The pure foundation of SQL: types and values, keys and cells, schemas, statements, and statements that need no
//! planner. It follows PostgreSQL in syntax, semantics, formats and error codes.
//!
//! Values are the same in all three encodings: text and binary on the wire, and in the store.
//!
//! **Architecture invariants:** no clock, no randomness, no IO, no `async`. Nothing that a client or a disk provides
//! causes a panic, and the nesting of whatever is parsed has a limit.

mod binary;
mod bind;
mod calendar;
pub mod cast;
pub mod cells;
pub mod ddl;
pub mod direct;
mod error;
mod expression;
pub mod ids;
mod jsonb;
pub mod keys;
mod numeric;
pub mod parse;
pub mod rows;
pub mod schema;
pub mod statement;
mod text;
mod types;
mod value;

pub use bind::PARAMETERS_MAX;
pub use error::{SqlError, sqlstate};
pub use expression::{Environment, Supply};
pub use jsonb::normalize as normalize_json;
pub use numeric::Numeric;
pub use types::{LENGTH_MAX, PRECISION_MAX, SqlType};
pub use value::{Array, Interval, Value};

#[cfg(test)]
mod tests;
