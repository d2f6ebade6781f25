//! A node: composes all its cohort replicas, the requests in progress and the routes between nodes into one
//! deterministic machine.
//!
//! The [`contract`] defines its inputs and outputs. Inside, each [`replica`](self) pairs a cohort's protocol
//! (`replication`) with its state machine, of any kind that the `registry` lists. [`Node`] passes messages, completions and timers to them,
//! applies committed entries, answers and forwards requests, and decides when checkpoints are due.
//!
//! **Architecture invariant:** no clock, no randomness, no file, no socket, no thread: the same events produce the same
//! actions, byte for byte.

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
pub mod message;
mod moves;
mod node;
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
