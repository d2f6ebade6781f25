//! A shared log after CORFU (Balakrishnan et al., NSDI 2012) as pure state machines: one total order with many writers
//! and subscribers.
//!
//! A log is a sequence of *positions*, each written once. The positions are striped over *chains* of *log units*; every
//! unit of a chain holds a copy. A *projection* maps positions to chains and names the *sequencer*, which hands out
//! positions from memory so that clients do not contend for them. A position from the sequencer is only a hint: the
//! units decide which entry a position holds.
//!
//! * [`projection`]: the map from positions to units at one epoch, and the rules for its successor.
//! * [`mod@unit`]: the replicated state of one unit: write once, seal, trim, copy.
//! * [`sequencer`]: positions from memory, and the checked tail.
//! * [`client`]: the client side of appends, reads, fills and trims: writes go to the head first, reads go to the tail.
//! * [`follower`]: receives the entries that a chain's tail pushes, and serves readers at the end of the log.
//! * [`recovery`]: replaces a projection: seals units, finds the tail, proposes the successor. [`copier`] copies
//!   entries to new units.
//! * [`hole_fill`]: fills positions that were handed out and never written.
//! * [`controller`]: replaces projections when nodes fail, and re-replicates their entries.
//! * [`player`]: follows the log in order and delivers each entry once ([`duplicates`]).
//! * [`snapshot`]: stores players' snapshots in the log, so that earlier positions can be trimmed.
//!
//! *Guarantee 20*, in short. A write goes down its chain, head first. Therefore the units that hold a position form a
//! prefix of its chain, an entry at the tail is at every unit of the chain, and the head decides between competing
//! writers. A client that finds a hole writes junk to the head, or copies the entry found at the head down the chain. A
//! *sealed* unit refuses every request of that epoch and earlier ones. The next projection keeps only sealed units, at
//! least one of every chain: it contains every completed write, and no write of an older epoch can complete afterwards.
//!
//! **Architecture invariants:** no clock, no randomness except from a seed, no socket, no file, no thread, no `async`.
//! Bytes and messages from outside never panic. [`limits`] bounds every request to a machine.

pub mod client;
pub mod controller;
pub mod copier;
pub mod duplicates;
mod entry;
pub mod follower;
pub mod hole_fill;
mod ids;
pub mod limits;
pub mod log_unit;
pub mod player;
mod position_run;
pub mod projection;
pub mod recovery;
pub mod request;
mod request_source;
pub mod sequencer;
pub mod snapshot;
mod stripe;
pub mod unit;
pub mod validate;
pub mod wire;
#[cfg(any(test, feature = "sim"))]
pub mod world;

pub use entry::{Batch, BatchTooLarge, Data, Entry, Kept, Kind};
pub use ids::{AskId, ClientId, LogId, Position, ProjectionEpoch, SequencerId, Stamp, UnitId};
pub use position_run::PositionRun;
pub use projection::{Extent, Projection};
pub use request_source::RequestSource;
pub use stripe::Stripe;
