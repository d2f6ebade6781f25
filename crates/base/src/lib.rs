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
