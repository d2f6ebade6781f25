//! Virtual disks: replicated block devices that clients attach with the Network Block Device protocol.
//!
//! The ranges of a disk's table are its stripes (Gaios, section 3.1). This crate has its three parts, each pure:
//! * [`nbd`]: the server's side of the protocol, from bytes to requests, and from results to bytes.
//! * [`gateway`]: executes the requests of one connection on the stripes, with retries.
//! * [`stripe`]: the replicated state machine of a stripe: blocks of 4 KiB in place, and the sessions of writers.
//! * [`layout`]: which byte of a disk is in which stripe.
//!
//! # Guarantees
//!
//! * *Durability.* A write, trim or write-zeroes is answered once its log entry is committed, hence forced to disk by a
//!   majority of replicas (or in the memory of a majority, if the disk was created so). Nothing is left for FLUSH and
//!   FUA to do: a flush is answered at once, and FUA is accepted and changes nothing.
//! * *Several connections.* All connections, also through different nodes, are ordered by the logs of the stripes. No gateway
//!   caches data or delays a write. So a read sees every write that was answered before the read began, on any
//!   connection, and a flush on one connection covers the answered writes of all: `CAN_MULTI_CONN` holds.
//! * *Atomicity.* A block of 4 KiB is written as a whole or not at all. A larger write may be interrupted between blocks.
//!   Two writes of different parts of one block, through different gateways, both take effect.
//! * *Retries.* A client is answered only when the outcome of its request is known. A write is executed at most once:
//!   each attempt carries the stamp of a session of the connection and the stripe, and the stripe's state contains the
//!   outcome. So a retry never overwrites a later write. If the session ends before the outcome is known (after
//!   ten minutes without a write, or if the stripe has too many sessions), the client receives an I/O error. The write
//!   was then executed before, or never will be.
//! * *Order.* Requests are answered in any order. Overlapping changes of one connection are executed in the order of the
//!   client's requests.
//! * *Space.* A trim and a write-zeroes without NO_HOLE free whole blocks. The allocation that is reported is a function of
//!   the log, so it is the same at all replicas. A block of zeros that was written as data counts as allocated.
//!
//! **Architecture invariant:** no IO, no clock, no randomness, no iteration over hash maps. No input from a client causes
//! a panic, or an allocation by a length that the client states.

pub mod gateway;
pub mod layout;
pub mod nbd;
pub mod stripe;
