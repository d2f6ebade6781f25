//! CORFU's shared log (Balakrishnan et al., NSDI 2012) as pure machines: one total order that many append to.
//!
//! A log is a sequence of *positions*, each written once. The positions are spread over *chains* of *log units*; every
//! unit of a chain holds a copy. A *projection* says which chain holds which positions, and who the *sequencer* is: it
//! hands positions out from memory, so that clients don't contend for them. It is a hint: what counts is what the units
//! take.
//!
//! * [`projection`]: which units hold which positions, as of an epoch, and what may follow.
//! * [`mod@unit`]: the replicated state of one unit: write once, seal, trim, copy.
//! * [`sequencer`]: positions from memory, and the tail, checked.
//! * [`client`]: appends, reads, fills and trims as a client must do them: head first, and read at the tail.
//! * [`recovery`]: replaces a projection: seals, finds the tail, proposes what follows. [`copier`] makes new units whole.
//! * [`hole_fill`]: fills what was given out and never written.
//! * [`controller`]: replaces projections where nodes fail, and has what they held copied.
//! * [`player`]: follows the log in order, and delivers each entry once ([`duplicates`]).
//! * [`snapshot`]: keeps what players have come to in the log, so that what is before may be trimmed.
//!
//! *Guarantee 20*, in short. A write goes down its chain head first. So the units that hold a position are the first ones of
//! its chain, what the tail holds the whole chain holds, and the head decides. Whoever finds a hole puts junk at the
//! head, or takes what it finds there down the chain. A unit that is *sealed* refuses everything of that epoch and
//! before. The next projection keeps sealed units only, at least one of every chain: what was complete is in it, and
//! nothing of an older epoch completes any more.
//!
//! **Architecture invariants:** no clock, no randomness but a seed's, no socket, no file, no thread, no `async`. Bytes and
//! messages from outside never panic. What a machine is asked for is bounded by [`limits`].

pub mod client;
pub mod controller;
pub mod copier;
pub mod duplicates;
mod entry;
pub mod hole_fill;
mod ids;
pub mod limits;
pub mod log_unit;
pub mod player;
pub mod projection;
pub mod recovery;
pub mod request;
mod run;
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
pub use projection::{Extent, Projection};
pub use run::Run;
pub use stripe::Stripe;
