//! A node: composes all its cohort replicas, the requests in progress and the routes between nodes into one
//! deterministic machine.
//!
//! The [`contract`] defines its inputs and outputs. Inside, each [`replica`](self) pairs a cohort's protocol
//! (`replication`) with its state machine, of any kind that the `registry` lists. [`Node`] passes messages,
//! completions and timers to them, applies committed entries, answers and forwards requests, and decides when
//! checkpoints are due.
//!
//! **Architecture invariant:** no clock, no randomness, no file, no socket, no thread: the same events produce the same
//! actions, byte for byte.
//!
//! # Reconfiguration
//!
//! For a split, drop, move or leave, the catalog first records a plan, its leader drives the plan through the cohort
//! concerned, and the catalog records the end. Each step can be repeated, so that the next leader of the catalog
//! continues the plan.
//!
//! - **Create a table**: ranges get consecutive cohorts on consecutive nodes (chained declustering, Spinnaker's Figure
//!   2). A new tablet owns no keys until its first leader commits `Command::AssignRange`; requests wait.
//! - **Route**: a node that does not find the key in its map, or receives `Message::ElsewhereNow`, asks the catalog's
//!   leader and tries again.
//! - **Split** (`BeginSplit`, `EndSplit`; `node/src/splits.rs`): the range's cohort commits `Command::Split`. Each
//!   replica starts a replica of the new cohort that shares its SSTables and frozen memtables; later flushes and
//!   compactions separate them.
//! - **Drop** (`BeginDrop`, `EndDrop`; `node/src/drops.rs`): each cohort of the table commits `Command::Drop`, then its
//!   replicas are removed.
//! - **Move** (`BeginMove`, `EndMove`; `node/src/moves.rs`): new replicas join as learners, catch up and become voters,
//!   then old ones leave. The leader hands over if it leaves itself.
//! - **Configure** (`Configure`; `node/src/configurations.rs`): under primary/backup replication, a replica petitions
//!   the catalog for each change of members or primary, also those of a move. **Replace** (`Replace`): other nodes take
//!   the place of members that stay away.
//! - **Join** (`AddNode`; `node/src/roster.rs`): the cluster adds the node to its roster before the node formats its
//!   disk. **Leave** (`BeginLeave`, `EndLeave`): its ranges move away, another node takes over its vote in the catalog,
//!   then peers refuse it.

/// Unwraps an option that must be `Some`. If it is `None`, debug builds and simulations panic, and a release build
/// returns early.
macro_rules! expected {
    ($option:expr, $why:literal) => {
        expected!($option, $why, ())
    };
    ($option:expr, $why:literal, $otherwise:expr) => {
        match $option {
            Some(value) => value,
            None => {
                debug_assert!(false, $why);
                return $otherwise;
            }
        }
    };
}

mod checkpoint_schedule;
mod clock_watch;
mod config;
mod configurations;
pub mod contract;
mod disk_space;
mod drops;
mod evaluations;
mod heartbeat_batch;
mod holds;
mod hosting;
mod latches;
mod logs;
mod mending;
pub mod message;
mod moves;
mod node;
mod notices;
mod outage;
mod outgoing;
mod read_locks;
mod reads;
mod recovery;
pub mod registry;
mod replica;
mod replica_generation;
mod replicas;
pub mod request;
mod request_table;
mod requests;
mod roster;
mod splits;
mod spreading;
mod status;
mod stop;
#[cfg(test)]
mod testing;
mod timers;
mod timestamp_history;
mod transactions;
mod transfer;
mod views;
mod write_throttle;
mod writes;

pub use config::{ClockSource, NodeConfig};
pub use node::Node;
pub use recovery::{Replays, StartError};
pub use request::Counters;
pub use views::{LocalRead, ReadView, Views, should_read_here};
