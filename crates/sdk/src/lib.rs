//! The client library: rows of versioned columns, and shared logs, from any async Rust program.
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
//! A [`Log`] is appended to by any number of programs and read by any number, in one order:
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
//! What it does so that its users needn't:
//! * It goes to another endpoint when one fails or falls silent, and tries again until the call's deadline.
//! * *Writes apply once.* Each carries a stamp of a session that the table knows, and a retry carries the same stamp,
//!   so that the table answers it with what the first try came to (guarantee 10). When even that can't be learned by
//!   the deadline the error says so: [`Error::OutcomeUnknown`].
//! * *Timeline reads never go back*, whichever replica answers them ([`Reads::Timeline`], guarantee 15).
//! * [`Client::streaming`] puts calls that are under way together into few messages: for programs that have many.
//!
//! What to do when is decided by [`client::Client`], a pure machine, which the simulator drives as well. What is here
//! is its async skin: connections, calls, streams and the clock.
//!
//! **Architecture invariant:** an error other than [`Error::OutcomeUnknown`] means that nothing was written.

mod call;
mod client_api;
mod endpoints;
mod fault;
pub mod formation;
mod logs;
mod reads;
mod request;
mod skin;
mod stream;

pub use api::admin;
pub use api::columns::{AsOf, Cell, DescribeTableResponse as TableDescription, Durability, Mutation, Range, Row};
pub use api::log::{Chain as LogChain, Extent as LogExtent, Unit as LogUnit};
pub use client::Error;
pub use client_api::{Client, NewTable, Page, Scan};
pub use logs::{Content, Cursor, Entry, Log, LogDescription, NewLog, Snapshot, Subscription};
pub use reads::Reads;
