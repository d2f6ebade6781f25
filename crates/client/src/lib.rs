//! The client protocol as a pure state machine: choice of the node, timeouts, retries, sessions and their stamps, and
//! which outcomes are unknown.
//!
//! [`Client`] uses no clock, socket or runtime, and is generic over the types of requests and responses. Its driver
//! passes in events with a time, and carries out the resulting [`Action`]s in order. The Rust client library drives it
//! with gRPC, over single calls or streams; the simulator drives it in its virtual network.
//!
//! * *Writes are idempotent.* Each carries a stamp of a session of the range that contains its key. All retries carry
//!   the same stamp (guarantee 10). A session pipelines many writes ([`ledger`]).
//! * *A silent node is skipped soon.* So a stopped leader delays its clients no longer than the election does. A node
//!   that answers other requests is only slow, and gets more time, so that retries do not add load to an overloaded
//!   node. Earlier attempts may still be answered: the first definite response counts, from any node.
//! * *Timeline reads are monotonic.* Each carries the latest state of the range that the client has seen, for any
//!   replica to honor (guarantee 15). A [`TimelineToken`] passes these states to another client.
//! * *A transaction sees its own writes*, which are kept here until the commit ([`PendingWrites`]).
//! * *A log is followed without gaps.* Each position is delivered once, in order, across nodes ([`follower`]).
//! * *An error other than [`Error::OutcomeUnknown`] means that nothing was written.*
//!
//! **Architecture invariants:** no clock, no randomness, no socket, no `async`. Every call ends with one
//! [`Action::Done`] or [`Action::Opened`], by its deadline.

pub mod attempts;
mod calls;
mod client;
mod contract;
mod endpoints;
mod error;
pub mod follower;
pub mod ledger;
mod pending;
pub mod ranges;
mod seen;
mod sessions;
mod token;
mod version;

pub use attempts::Fault;
pub use client::Client;
pub use contract::{
    Action, Ask, AttemptId, CallId, Effect, InvalidTransactionId, Link, NodeResponse, Pace, Sent, Stamp, TransactionId,
};
pub use error::Error;
pub use follower::Follower;
pub use pending::{PendingCell, PendingWrites, RowName, RowWrite};
pub use seen::{CohortLsn, ScanStart, Shown};
pub use token::{TOKEN_BYTES_MAX, TimelineToken, TokenError};
pub use version::Version;

#[cfg(test)]
mod tests;
