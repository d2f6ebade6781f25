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
//!
//! # A request
//!
//! A client sets a znode. The thread `zookeeper` (`endpoints/src/zookeeper/mod.rs`) does everything except the append
//! itself.
//!
//! 1. `endpoint.rs` reads from all ready sockets, and passes each frame (`take`) to
//!    `coordination::server::Server::handle`. `server/requests.rs` decodes a frame. A write gets a stamp of its
//!    ZooKeeper session and is added to the next batch; later reads of the session wait for its reply.
//! 2. At the end of the turn (`Server::end_turn`) the writes of all clients form one batch (group commit). While three
//!    batches are in flight, writes accumulate for the next. `log_port.rs` turns `Action::Append` into an append to the
//!    log `zookeeper`.
//! 3. `zookeeper/transport.rs` submits it to the node's machine, and it proceeds as any append (`sharedlog/src/lib.rs`). A server without a node
//!    (`loggos zk serve --at`) uses `remote.rs` and the Rust client instead.
//! 4. Meanwhile the server follows the log from its next position on. `Server::played` applies every position in order.
//!    A batch of its own is applied from memory when its append has completed and all earlier positions are applied.
//! 5. `apply_batch` applies each request to the tree (`state.rs`, `tree/write.rs`), first sends events to clients that
//!    watch the znode, and then queues the reply, which is sent in the order of the connection's requests.
//!
//! A read is answered on this thread from the local tree, after the earlier requests of its session. `sync` (and every
//! read, if `linearizable_reads` is set) first waits until the server has applied the log's tail, obtained after the
//! request arrived. Touches of ZooKeeper sessions travel with batches; an expiry is an entry that names the last touch
//! and has no effect if a later one is in the log. The server writes snapshots to the log and trims the log below them;
//! a starting server restores the newest one.

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
