//! The catalog: which tables, shared logs and nodes there are, as the state machine of the first, fixed cohort.
//!
//! * [`mod@catalog`]: the state. [`command`]: what its log carries. [`request`]: what it is asked and answers.
//! * [`checkpoint`]: the state as chunks. [`mod@validate`]: the limits and the form of what clients ask.
//!
//! **Architecture invariant:** no IO, no clock, no randomness, no iteration over hash maps.

pub mod catalog;
pub mod checkpoint;
pub mod command;
mod hosted;
pub mod request;
#[cfg(test)]
mod testing;
pub mod validate;

pub use catalog::{
    Catalog, Change, LogRecord, Move, NodeRecord, Part, RangeRecord, SplitUnderWay, Standing, TableRecord, cohort_of,
};
pub use checkpoint::CatalogSnapshot;
pub use command::CatalogCommand;
pub use request::{CatalogRequest, CatalogResponse, NodeDescription, RangeDescription, TableDescription};
pub use validate::validate;
