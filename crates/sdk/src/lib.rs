//! The client library of Loggos: tables of versioned columns, and shared logs, for async Rust programs.
//!
//! A program needs a [tokio](https://docs.rs/tokio) runtime. One [`Client`] serves a whole program; it is cheap to clone,
//! as are the handles for tables and logs.
//!
//! ```no_run
//! # async fn example() -> Result<(), loggos_client::Error> {
//! let client = loggos_client::Client::connect(["127.0.0.1:7201", "127.0.0.1:7202", "127.0.0.1:7203"])?;
//! let airports = client.table("airports");
//! airports.create().send().await?;
//!
//! // A write of one row is atomic, and returns the new version of its columns.
//! let version = airports.write("JFK").put("city", "New York").put("runways", "4").send().await?;
//!
//! // It can depend on the versions of columns.
//! let moved = airports.write("JFK").put_if("city", "Queens", version).delete("runways").send().await;
//! match moved {
//!     Ok(version) => println!("version {version}"),
//!     Err(loggos_client::Error::Refused { actual, .. }) => println!("version {actual} was found"),
//!     Err(error) => return Err(error),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Reads are linearizable unless they ask for another [consistency level](Reads). Scans are streams:
//!
//! ```no_run
//! # async fn example(airports: loggos_client::Table) -> Result<(), loggos_client::Error> {
//! use loggos_client::Reads;
//!
//! if let Some(city) = airports.get("JFK", "city").await? {
//!     println!("{:?} since version {}", city.value, city.version);
//! }
//! let stale = airports.read("JFK").columns(["city"]).consistency(Reads::Timeline { stale_ok: false }).send().await?;
//! println!("{:?}, at most {:?} old", stale.cells, stale.as_of.and_then(|as_of| as_of.age));
//!
//! let mut rows = airports.scan().range("A".."M").limit(100).rows();
//! while let Some(row) = rows.next().await {
//!     println!("{:?}", row?.key);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A [transaction](Client::transaction) reads and changes rows of any tables, all or none, at one timestamp. Its function
//! runs again if another transaction interferes. Snapshots read any rows as of one moment, without locks:
//!
//! ```no_run
//! # async fn example(client: loggos_client::Client) -> Result<(), loggos_client::Error> {
//! use loggos_client::Staleness;
//! use std::time::Duration;
//!
//! let done = client
//!     .transaction(|tx| async move {
//!         let mut rows = tx.scan("orders").prefix("alice/").rows();
//!         let mut count = 0;
//!         while let Some(row) = rows.next().await {
//!             tx.put("archive", row?.key, "state", "moved")?;
//!             count += 1;
//!         }
//!         tx.put("customers", "alice", "orders", count.to_string())?;
//!         Ok(count)
//!     })
//!     .await?;
//! println!("{} orders as of {}", done.value, done.timestamp);
//!
//! let now = client.snapshot().await?;
//! let then = client.snapshot_of(Staleness::Exact(Duration::from_secs(10))).await?;
//! println!("{:?}, was {:?}", now.row("customers", "alice").await?, then.row("customers", "alice").await?);
//! # Ok(())
//! # }
//! ```
//!
//! Any number of programs append to a [`Log`], and any number read it; all see the same order:
//!
//! ```no_run
//! # async fn example(client: loggos_client::Client) -> Result<(), loggos_client::Error> {
//! let log = client.log("orders");
//! log.create().send().await?;
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
//! * *Transactions* of which the outcome is known, or can be asked for later ([`Error::CommitUnknown`],
//!   [`Client::resolve_transaction`]; guarantee 18).
//! * *Monotonic timeline reads*, across replicas ([`Reads::Timeline`], guarantee 15), and across processes with a
//!   [`TimelineToken`].
//! * [`Client::streaming`] batches concurrent calls into few messages, for programs with many calls.
//!
//! Keys, names of columns, values and records are [`Bytes`](bytes::Bytes). String literals, `String` and `Vec<u8>`
//! convert without a copy.
//!
//! The protocol is implemented by the crate `client`, a pure state machine that the simulator also drives. This crate
//! is its async driver: connections, calls, streams and the clock.
//!
//! **Architecture invariant:** an error other than [`Error::OutcomeUnknown`] and [`Error::CommitUnknown`] means that nothing
//! was written.

#![warn(missing_docs)]

mod call;
mod client_api;
mod disks;
mod driver;
mod endpoints;
mod fault;
pub mod formation;
mod hold;
mod logs;
mod reads;
mod request;
mod scan;
mod snapshot;
mod stream;
mod table;
mod token;
mod transaction;
mod types;

/// The cluster's status, nodes and the placement of logs, for operators' tools: the messages of the admin service.
/// Unlike the other types of this crate they change with the protocol.
pub mod admin {
    pub use api::admin::*;
    pub use api::log::{
        Chain as LogChain, DescribeLogResponse as LogDescription, Extent as LogExtent, Unit as LogUnit,
    };
}

pub use client::{Error, InvalidTransactionId, Stamp, TransactionId, Version};
pub use client_api::Client;
pub use disks::{CreateDisk, Disk, DiskCheck, DiskDescription};
pub use hold::SnapshotHold;
pub use logs::{Content, CreateLog, Cursor, Entry, Log, Snapshot, Subscription};
pub use reads::Reads;
pub use scan::{Page, Pages, Rows, Scan};
pub use snapshot::{Staleness, TableSnapshot};
pub use table::{CreateTable, Read, ReadResponse, Table, Write};
pub use token::TimelineToken;
pub use transaction::{Committed, Savepoint, Transaction, TransactionOutcome, TransactionRows, TransactionScan};
pub use types::{AsOf, Cell, Configuration, Durability, KeyRange, Range, Replication, Row, TableDescription};

/// Compiles the example of the package's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
