//! The client library: tables of versioned columns, and shared logs, for async Rust programs.
//!
//! ```no_run
//! # async fn example() -> Result<(), sdk::Error> {
//! let client = sdk::Client::connect(["127.0.0.1:7201", "127.0.0.1:7202", "127.0.0.1:7203"])?;
//! client.create_table("airports").await?;
//! let version = client.put("airports", "JFK", "city", "New York").await?;
//! client.conditional_put("airports", "JFK", "city", "Queens", version).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Any number of programs append to a [`Log`], and any number read it; all see the same order:
//!
//! ```no_run
//! # async fn example(client: sdk::Client) -> Result<(), sdk::Error> {
//! let log = client.log("orders");
//! log.create().await?;
//! let position = log.append(["one record", "another"]).await?;
//! let mut entries = log.subscribe(position);
//! while let Some(entry) = entries.next().await {
//!     println!("{:?}", entry?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Features:
//! * *Failover.* Calls are retried at other endpoints until their deadline.
//! * *Idempotent writes.* Each write carries a stamp of a session. A retry carries the same stamp, and returns the
//!   outcome of the first attempt (guarantee 10). If the outcome is still unknown at the deadline, the error is
//!   [`Error::OutcomeUnknown`].
//! * *Monotonic timeline reads*, across replicas ([`Reads::Timeline`], guarantee 15).
//! * [`Client::streaming`] batches concurrent calls into few messages, for programs with many calls.
//!
//! The protocol is implemented by [`client::Client`], a pure state machine that the simulator also drives. This crate
//! is its async driver: connections, calls, streams and the clock.
//!
//! **Architecture invariant:** an error other than [`Error::OutcomeUnknown`] means that nothing was written.

#![warn(missing_docs)]

mod call;
mod client_api;
mod driver;
mod endpoints;
mod fault;
pub mod formation;
mod logs;
mod reads;
mod request;
mod stream;

pub use api::admin;
pub use api::columns::{AsOf, Cell, DescribeTableResponse as TableDescription, Durability, Mutation, Range, Row};
pub use api::log::{Chain as LogChain, Extent as LogExtent, Unit as LogUnit};
pub use client::Error;
pub use client_api::{Client, NewTable, Page, Scan};
pub use logs::{Content, Cursor, Entry, Log, LogDescription, NewLog, Snapshot, Subscription};
pub use reads::Reads;
