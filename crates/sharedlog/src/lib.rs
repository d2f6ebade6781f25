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
//!
//! # An append
//!
//! 1. `server/src/log.rs`: `append` translates the request, as for a write (ARCHITECTURE.md). In `node/src/logs/calls.rs`, `put_to_log` finds
//!    the log and its projection in the local catalog, and starts a call of the log's client machine
//!    (`sharedlog/src/client.rs`), which runs in this node.
//! 2. The client machine requests a position from the sequencer (`sharedlog/src/sequencer.rs`); one request serves all
//!    appends that wait for a position. The projection names its process; `Message::ToSequencer` carries the request if
//!    it is on another node. The sequencer hands out positions from memory. A position is valid in its projection epoch
//!    only.
//! 3. `client/append.rs` writes the entry to the units of the position's chain in order, head first. Each write is one
//!    `Message::ToUnit`.
//! 4. `node/src/logs/units.rs`: the unit's node proposes the command to the unit's cohort. Its only member is this
//!    node: it becomes a record of the node's write-ahead log and is forced together with other records. Once applied
//!    (`sharedlog/src/log_unit.rs`), the unit replies `Written`, or `Occupied` if the position already holds another
//!    entry.
//! 5. When the tail of the chain has replied, the append is complete, and its position is returned. Reads are answered
//!    at the tail. In a log with one chain, the tail also pushes complete entries to nodes with subscribers
//!    (`logs/feeds.rs`), which serve reads from them.
//!
//! *Failures.* A sealed unit refuses requests of its epoch: the controller (`sharedlog/src/controller.rs`, active at
//! the catalog's leader) sealed it to replace the projection. The client machine then resolves its position in the new
//! projection: if the position holds the entry, the append succeeded; otherwise the position is filled with junk and
//! another one is taken. The position of a dead writer is filled by readers or by the sequencer's node (`hole_fill.rs`).
//! An append is reported as unknown if its outcome cannot be resolved by its deadline, or its position was trimmed;
//! after a retry it may be in the log twice, and players and subscriptions deliver the first entry of each stamp.

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
