//! The socket endpoints of a node for ZooKeeper and NBD clients: one loop (`endpoint`) with a thread for each, and what
//! their protocols add. gRPC and PostgreSQL clients are served by tokio runtimes (`server`, `postgres`); connections
//! between nodes (`runtime`) share `transport`, `output` and `listener`.
//!
//! | file | contents |
//! |---|---|
//! | `endpoint` | the loop: waiting, accepting, reading in turns, writing, closing |
//! | `connections` | a connection, and the account of the memory of all |
//! | `protocol` | the interface of the loop to a protocol |
//! | `transport` | bytes of a socket: the place for TLS |
//! | `zookeeper`, `nbd` | the protocols |
//! | `node` | access to the node of this process |
//! | `clock`, `random`, `process` | the system, for the threads of a process |

pub mod clock;
mod connections;
mod endpoint;
pub mod listener;
pub mod nbd;
pub mod node;
pub mod output;
pub mod process;
mod protocol;
pub mod random;
pub mod throttle;
pub mod transport;
pub mod zookeeper;
