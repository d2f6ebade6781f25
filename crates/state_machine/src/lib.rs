//! The common parts of Loggos' replicated state machines, and the interface by which a node hosts them.
//!
//! A cohort's log is a sequence of commands, and a [`StateMachine`] is the result of applying them: replicas that
//! applied the same entries hold logically equal states. The state and the entry alone determine an outcome. A node
//! knows its machines only through this interface: requests travel as (kind, body), bulk data is behind [`Storage`],
//! and snapshots travel as [`checkpoint`] chunks.
//!
//! * [`interface`]: the traits. [`mod@storage`]: flush, compaction, file transfer and write pacing.
//! * [`progress`]: checks that an entry is the next one. [`sessions`]: exactly-once retries.
//! * [`checkpoint`]: a snapshot to chunks, and back. [`consistency`]: the consistency level of a read.
//! * [`failure`]: errors of requests. [`ownership`], [`key_position`]: the key range that a machine serves.
//!   [`range_map`]: the ranges of all tables. [`locks`]:
//!   the keys that a change locks.
//!
//! **Architecture invariant:** no IO except through `store::files::Files`, no clock, no randomness, no iteration over
//! hash maps. Nothing here names a particular state machine.

pub mod checkpoint;
pub mod consistency;
pub mod failure;
pub mod hash;
pub mod interface;
pub mod key_position;
pub mod limits;
pub mod locks;
pub mod ownership;
mod pinning;
pub mod progress;
pub mod range_map;
pub mod sessions;
pub mod storage;

pub use checkpoint::{Chunks, Cursor, LoadError, Loader, Snapshot};
pub use consistency::{AsOf, Consistency, LogPlace};
pub use failure::{Failure, Outcome};
pub use hash::LogicalHash;
pub use interface::{
    Applied, Decision, Effect, Evaluated, Hold, Housekeeping, Kind, NoView, Past, Payload, Read, ReadStep, Request,
    Response, StateMachine, View, Wire,
};
pub use key_position::KeyPosition;
pub use locks::{LockKeys, LockMode, LockOwner, LockSpan, Locks};
pub use ownership::{KeyOwner, Ownership};
pub use pinning::owned;
pub use progress::{ApplyError, Progress};
pub use sessions::{ClientSessionId, SessionStamp};
pub use storage::{NoStorage, ReadError, Storage};
