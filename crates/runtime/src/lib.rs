//! The driver of the node machine: sockets, files, clocks and threads. The machine itself (`node`) makes all decisions
//! and performs no IO. The runtime executes its actions in order, and passes events back (`node::contract`).
//!
//! Threads of a node:
//!
//! | thread | work | waits for |
//! |---|---|---|
//! | the main one (`event_loop`) | the machine, the peers' sockets (`peers`), framing, timers | sockets, timers, the inbox |
//! | `log` (`log_thread`) | writes and forces batches, at real-time priority | the disk |
//! | `manifests`, `segments`, `checkpoints`, `reads` (`disk`) | other disk work, one lane each | the disk |
//! | `server` (`server_thread`) | one tokio runtime for gRPC and HTTP | sockets |
//! | `zookeeper` (`endpoints::zookeeper`) | ZooKeeper's clients and their translation server | sockets, timers, the machine's responses |
//! | `nbd` (`endpoints::nbd`) | NBD clients, with the gateway of each | sockets, timers, the machine's responses |
//! | `resolver` (`resolver`) | resolves the host names of peers | name servers |
//! | `signals` | SIGTERM and SIGINT | signals |
//!
//! A write is handed over between threads four times: server to machine, machine to log, log to machine, machine to
//! server.
//!
//! **Architecture invariants:**
//! * The machine's thread never waits for a disk, or for a lock that is held during IO.
//! * The log's thread only writes and forces; its first error ends the process, with nothing acknowledged after it
//!   (guarantee 25).
//! * Only `clock` reads a clock, here and in `endpoints`.
//! * All input from other threads to the machine goes through `inbox`. It is bounded by its sources: requests by the
//!   limit of requests in progress (`gateway`), the rest by the machine's own disk work in progress.

mod budget;
mod clock;
mod cluster_view;
pub mod config;
mod descriptors;
pub mod directory_lock;
mod disk;
mod disk_metrics;
mod event_loop;
pub mod files;
mod founding;
mod frames;
mod gateway;
mod inbox;
mod job_thread;
mod log_thread;
mod parked;
mod peers;
#[cfg(feature = "sql")]
mod postgres;
mod resolver;
mod server_thread;
mod sstables;
pub mod start;
mod start_error;
mod translation_server;
mod unforced_writes;
mod views;
mod zoo_cfg;
pub mod zoo_serve;

pub use log_thread::ask_for_real_time;

use endpoints::process::{EXIT_HALTED, die, say, spawn};

pub use endpoints::random;

/// Exit status of a node that has left its cluster. A restart is of no use.
pub const EXIT_LEFT: u8 = 71;
