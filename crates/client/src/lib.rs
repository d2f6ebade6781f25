//! What a client of the columns door must do right, as a pure machine: which node to ask, how long to wait for it, whom
//! to ask next, in which session a write goes and under which number, what may be tried again and what must be called
//! unknown.
//!
//! [`Client`] knows no clock, socket or runtime, and nothing of what is asked or answered but what it decides by: it is
//! generic over both. Whoever drives it hands in what happened with a time, and carries out the [`Action`]s that come
//! of it, in order. The Rust client library does so with gRPC, over calls of their own or streams; the simulator with
//! its world.
//!
//! * *Writes apply once.* Each carries a stamp of a session of the range that holds its key, and every further attempt the
//!   same one (guarantee 10). A session has many writes under way at one time ([`ledger`]).
//! * *Silence is not an answer.* A node from which nothing comes is passed over soon: a stopped leader costs its clients no
//!   more than the election does. One that answers others is slow, and gets more time, so that nobody asks an overloaded
//!   node ever more. What was asked before may still be answered: the first definite answer counts, whoever gives it.
//! * *Timeline reads never go back.* Each carries how far the client has seen the range, whoever answers it (guarantee 15).
//! * *A log is followed without a gap.* Whichever nodes tell it, each position is told once, in order ([`follower`]).
//! * *An error other than [`Error::OutcomeUnknown`] means that nothing was written.*
//!
//! **Architecture invariants:** no clock, no randomness, no socket, no `async`. Every call ends with one
//! [`Action::Done`], by its deadline.

pub mod attempts;
mod calls;
mod contract;
mod endpoints;
mod error;
pub mod follower;
pub mod ledger;
mod machine;
pub mod ranges;
mod seen;
mod sessions;

pub use attempts::Fault;
pub use contract::{Action, Answer, Ask, AttemptId, CallId, Effect, Link, Pace, Sent, Stamp};
pub use error::Error;
pub use follower::Follower;
pub use machine::Client;
pub use seen::{Place, Position, Shown};

#[cfg(test)]
mod tests;
