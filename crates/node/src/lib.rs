//! The node: every cohort it has a replica of, the requests under way, and the routes between, composed into one
//! deterministic machine.
//!
//! The [`contract`] says what goes in and what comes out. Inside, each [`replica`](self) pairs a cohort's protocol
//! (`replication`) with its state machine (`tablets`); [`Node`] hands messages, completions and moments to them,
//! applies what they commit, answers and forwards requests, and decides when checkpoints are due.
//!
//! **Architecture invariant:** no clock, no randomness, no file, no socket, no thread: the same events give the same
//! actions, byte for byte.

/// What an option holds that is never none here. Should it be none after all, tests and simulations stop, and a release
/// goes on without it.
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

mod beats;
mod brake;
mod checkpoints;
mod config;
pub mod contract;
mod drops;
mod evaluations;
mod hosting;
mod latches;
mod lives;
mod logs;
pub mod message;
mod moments;
mod moves;
mod node;
mod outgoing;
mod pending;
mod reads;
mod recovery;
pub mod registry;
mod replica;
mod replicas;
pub mod request;
mod requests;
mod room;
mod roster;
mod splits;
mod status;
mod stop;
#[cfg(test)]
mod testing;
mod timers;
mod transfer;
mod views;
mod writes;

pub use config::NodeConfig;
pub use node::Node;
pub use recovery::{Replays, StartError};
pub use request::Counters;
pub use views::{DoorRead, ReadView, Views};
