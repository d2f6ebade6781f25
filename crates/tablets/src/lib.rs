//! Rows and columns: the state machines that cohorts replicate, and what clients may ask of them.
//!
//! A cohort's log is a list of [`Command`]s (or, in the catalogue's cohort, of [`CatalogueCommand`]s), and a [`State`]
//! is what they come to: two replicas that applied the same entries hold logically equal states (Spinnaker, section 3,
//! for what clients see). Everything that decides an outcome is *in* the state or in the entry: sessions, versions, the
//! watermark, and whether conditions were met. So every replica does the same, and a refusal rests on committed entries
//! only (guarantee 12).
//!
//! * [`request`]: what clients ask and are told. [`mod@validate`]: the limits and the form of what they ask.
//! * [`command`]: what the log carries.
//! * [`tablet`]: the rows and sessions of a range. [`log_unit`]: positions of a shared log. [`catalogue`]: tables, their ranges,
//!   logs, and nodes.
//! * [`state`]: any of them, as a cohort holds it. [`checkpoint`]: a frozen state, and its way to disk and peers.
//!
//! **Architecture invariant:** this crate does no IO, reads no clock, draws no randomness, and iterates over no hash map.

pub mod catalogue;
pub mod checkpoint;
pub mod command;
mod consistency;
pub mod evaluation;
mod hash;
pub mod log_unit;
mod pinning;
mod position;
mod progress;
pub mod request;
pub mod state;
pub mod tablet;
#[cfg(test)]
mod testing;
pub mod validate;

pub use catalogue::{
    Catalogue, Change, LogRecord, Move, NodeRecord, Part, RangeRecord, SplitUnderWay, Standing, TableRecord,
};
pub use checkpoint::{Chunks, LoadError, Loader, Snapshot};
pub use command::{CatalogueCommand, Command};
pub use evaluation::{Evaluated, Evaluation, Question};
pub use log_unit::{LogUnit, News};
pub use position::Position;
pub use progress::ApplyError;
pub use state::{Applied, Purpose, State};
pub use tablet::{Ownership, Tablet, TabletView};
pub use validate::validate;
