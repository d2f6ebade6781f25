//! The client library: rows of versioned columns, from any async Rust program.
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
//! What it does so that its users needn't:
//! * It goes to another endpoint when one fails, and tries again until the call's deadline.
//! * *Writes apply once.* Each carries a stamp of a session that the table knows, and a retry carries the same stamp,
//!   so that the table answers it with what the first try came to (guarantee 10). When even that can't be learned by
//!   the deadline the error says so: [`Error::OutcomeUnknown`].
//!
//! What to do after which answer is decided in [`decide`], [`session`] and [`ranges`], which know no time, socket or
//! runtime; the rest is a thin async skin.
//!
//! **Architecture invariant:** an error other than [`Error::OutcomeUnknown`] means that nothing was written.

mod client;
pub mod decide;
mod endpoints;
mod error;
mod fault;
pub mod formation;
pub mod ranges;
pub mod session;
mod sessions;

pub use api::admin;
pub use api::columns::{Cell, DescribeTableResponse as TableDescription, Mutation, Range, Row};
pub use client::{Client, Page, Scan};
pub use error::Error;
