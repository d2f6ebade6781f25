//! What every replicated state machine of Loggos has in common, and the interface behind which a node hosts them.
//!
//! A cohort's log is a list of commands, and a [`StateMachine`] is what they come to: replicas that applied the same
//! entries hold logically equal states. Everything that decides an outcome is in the state or in the entry. A node
//! knows its machines only by this interface: requests travel as (kind, body), bulk data lies behind [`Storage`], and
//! a frozen state travels in [`checkpoint`] chunks.
//!
//! * [`state_machine`]: the traits. [`mod@storage`]: flush, compaction, shipping and write pacing.
//! * [`progress`]: an entry's successor, and what is refused. [`sessions`]: retries that apply once.
//! * [`checkpoint`]: a frozen state as chunks, and back. [`consistency`]: what a read may show.
//! * [`failure`]: why a request was not done. [`ownership`], [`key_position`]: which part of a table's keys is whose.
//!
//! **Architecture invariant:** no IO but through `store::files::Files`, no clock, no randomness, no iteration over hash
//! maps. Nothing here names a particular state machine.

pub mod checkpoint;
pub mod consistency;
pub mod failure;
pub mod hash;
pub mod key_position;
pub mod limits;
pub mod ownership;
mod pinning;
pub mod progress;
pub mod sessions;
pub mod state_machine;
pub mod storage;

pub use checkpoint::{Chunks, Cursor, LoadError, Loader, Snapshot};
pub use consistency::{AsOf, Consistency, LogPlace};
pub use failure::{Failure, Outcome};
pub use hash::LogicalHash;
pub use key_position::KeyPosition;
pub use ownership::{Ownership, Standing};
pub use pinning::owned;
pub use progress::{ApplyError, Progress};
pub use sessions::{SessionId, SessionStamp};
pub use state_machine::{
    Applied, Effect, Evaluated, Housekeeping, Kind, Lock, NoView, Past, Payload, Read, Reading, Request, Response,
    StateMachine, Verdict, View, Wire,
};
pub use storage::{NoStorage, ReadError, Storage};
