//! A tablet is one range of a table: rows, versions and sessions, as the state machine that a cohort replicates. The
//! data model is that of Spinnaker, section 3.
//!
//! * [`request`]: client requests and responses. [`mod@validate`]: limits and format checks for requests.
//! * [`command`]: the commands in the log. [`tablet`]: the rows and sessions of a range.
//! * [`transaction`]: the protocol of transactions. [`two_phase`]: its driver, and the recovery after failures.
//! * [`evaluation`]: reads and decisions that may have to wait for the disk. [`checkpoint`]: the state as chunks.
//!
//! **Architecture invariant:** this crate does no IO, reads no clock, draws no randomness, and iterates over no hash
//! map.

pub mod checkpoint;
pub mod command;
pub mod evaluation;
pub mod request;
pub mod tablet;
#[cfg(test)]
mod testing;
pub mod transaction;
pub mod two_phase;
pub mod validate;

pub use checkpoint::TabletSnapshot;
pub use command::Command;
pub use evaluation::{Evaluation, Question};
pub use request::{TableRequest, TableResponse};
pub use tablet::{Tablet, TabletView};
pub use validate::validate;
