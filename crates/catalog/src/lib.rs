//! The catalog: metadata of the cluster's tables, shared logs and nodes. It is the state machine of cohort 1.
//!
//! * [`mod@catalog`]: the state. [`command`]: the commands in its log. [`request`]: requests and responses.
//! * [`checkpoint`]: serialization of the state. [`mod@validate`]: limits and format checks for client requests.
//!
//! **Architecture invariant:** no IO, no clock, no randomness, no iteration over hash maps.

pub mod catalog;
pub mod checkpoint;
pub mod command;
mod hosted;
mod options;
pub mod request;
#[cfg(test)]
mod testing;
pub mod validate;

pub use catalog::{
    Catalog, Change, LogRecord, Move, NodeRecord, Part, RangeRecord, SplitUnderWay, Standing, TableRecord, cohort_of,
};
pub use checkpoint::CatalogSnapshot;
pub use command::CatalogCommand;
pub use options::{Replication, TableOptions};
pub use request::{CatalogRequest, CatalogResponse, NodeDescription, RangeDescription, TableDescription};
pub use validate::validate;
