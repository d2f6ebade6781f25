//! Basic types of all crates: identifiers, log sequence numbers, time, limits, checksums and the binary codec.
//!
//! **Architecture invariant:** this crate depends on no other crate of the workspace, does no IO and reads no clock.

mod address;
pub mod budget;
pub mod canary;
pub mod codec;
mod configuration;
mod durability;
mod failure_detector;
mod ids;
pub mod limits;
mod lsn;
mod membership;
mod range;
mod record;
mod splitmix;
mod starts;
mod text;
mod time;

pub use address::{HostPort, ParseHostPortError};
pub use configuration::{Configuration, NoSuccessor};
pub use durability::{Durability, Force};
pub use failure_detector::{AwakeClock, Backoff, DetectorConfig, FailureDetector};
pub use ids::{Boot, ClusterId, CohortId, Incarnation, Member, NodeId, Promise};
pub use lsn::{Epoch, Lsn, Sequence};
pub use membership::{MEMBERS_MAX, Membership, MembershipChange, NoStep, SharedMembership};
pub use range::KeyRange;
pub use record::{Entry, LogRecord, Record};
pub use splitmix::SplitMix64;
pub use starts::{ProcessStart, StartHistory};
pub use text::{counted, shown};
pub use time::{Duration, Interval, Monotonic, Now, Timestamp};

/// The reason of an aborted transaction that waited for another one, which waited for it, begins with this.
pub const DEADLOCK: &str = "deadlock detected";
/// The reason of an aborted transaction that has lost its locks to others.
pub const OVERTAKEN: &str = "another transaction has changed what it has read, or has priority";
/// The reason of a transaction that waited in vain for others with priority.
pub const PRIORITY: &str = "an older transaction has priority";
/// The reason of a transaction that was aborted because a range gave no answer, not because of another transaction,
/// begins with this.
pub const UNREACHABLE: &str = "a range gave no answer";

/// CRC-32C (Castagnoli) of `bytes`: the checksum of every frame and block that Loggos writes.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Continues a CRC-32C over further `bytes`.
#[must_use]
pub fn checksum_append(checksum: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(checksum, bytes)
}
