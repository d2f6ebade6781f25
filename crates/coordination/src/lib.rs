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
//! | [`watches`] | which connections are told of which changes |
//!
//! The order of checks, the error codes and what a stat shows are those of Apache ZooKeeper 3.9: clients rely on them.
//!
//! **Architecture invariants:** no IO, no clock, no randomness. The same log gives the same tree, byte for byte.

pub mod acl;
mod error;
pub mod jute;
pub mod path;
pub mod tree;
pub mod watches;

pub use error::ErrorCode;
