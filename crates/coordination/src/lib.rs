//! ZooKeeper's protocol and its state, on a shared log (ZooKeeper-SL: Wei et al., LADIS 2013).
//!
//! ZooKeeper's servers agree on a leader, which orders the writes. Here the servers have no say in the order: they append
//! requests to a shared log and play the log, each into a tree of its own. The tree is soft state; any number of servers
//! may come and go.
//!
//! | module | contents |
//! |---|---|
//! | [`jute`] | the encoding: frames, requests, replies, events |
//! | [`path`] | which paths are valid |
//! | [`acl`] | access control lists, authentication schemes |
//! | [`tree`] | the znodes, and the operations on them |
//! | [`session`] | sessions, as the log has them |
//! | [`entry`] | what servers append |
//! | [`state`] | what the log leads to: tree and sessions; snapshots of it |
//! | [`watches`] | which connections are told of which changes |
//! | [`server`] | the server between its clients and the log |
//!
//! The order of checks, the error codes and what a stat shows are those of Apache ZooKeeper 3.9: clients rely on them.
//!
//! **Architecture invariants:** no IO, no clock, no randomness. The same log gives the same state, byte for byte; the same
//! events give the same actions.

pub mod acl;
pub mod entry;
mod error;
pub mod jute;
pub mod limits;
pub mod path;
pub mod server;
pub mod session;
pub mod state;
pub mod tree;
pub mod watches;
#[cfg(test)]
mod world;

pub use error::ErrorCode;
