//! ZooKeeper's protocol and its state, on a shared log (ZooKeeper-SL: Wei et al., LADIS 2013).
//!
//! ZooKeeper orders writes through an elected leader. Here translation servers append requests to a shared log, and
//! each replays the log into its own tree. The tree is soft state: servers can be added and removed at any time.
//!
//! | module | contents |
//! |---|---|
//! | [`jute`] | the encoding: frames, requests, replies, events |
//! | [`path`] | which paths are valid |
//! | [`acl`] | access control lists, authentication schemes |
//! | [`tree`] | the znodes, and the operations on them |
//! | [`session`] | the replicated session record |
//! | [`entry`] | the format of log entries |
//! | [`state`] | the replicated state machine: tree, sessions, deduplication; snapshots |
//! | [`watches`] | which connections are notified of which changes |
//! | [`server`] | the server between its clients and the log |
//! | `model` | clients and checks for simulations |
//! | [`log_port`] | the log as a server uses it: requests, following, snapshots |
//!
//! The order of checks, the error codes and the fields of a stat match Apache ZooKeeper 3.9, because clients rely on
//! them.
//!
//! **Architecture invariants:** no IO, no clock, no randomness. The same log gives the same state, byte for byte; the
//! same events give the same actions.

pub mod acl;
pub mod entry;
mod error;
pub mod jute;
pub mod limits;
pub mod log_port;
#[cfg(any(test, feature = "sim"))]
pub mod model;
pub mod path;
pub mod server;
pub mod session;
pub mod state;
pub mod tree;
pub mod watches;
#[cfg(test)]
mod world;

pub use error::ErrorCode;
