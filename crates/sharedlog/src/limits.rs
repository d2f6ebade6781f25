//! Size limits of the parts of a shared log, each with its reason.

use base::Duration;

pub use base::limits::logs::{BATCH_BYTES_MAX, RECORDS_MAX};

/// Maximum chains in one extent. A projection is stored as one entry in the catalog's log.
pub const STRIPES_MAX: usize = 64;
/// Maximum stripe width: consecutive positions in one chain.
pub const STRIPE_WIDTH_MAX: u64 = 1 << 10;
/// Stripe width of a new log. The appends that a busy server assigns positions to at one time (about ten) then mostly
/// go down one chain together and cost no more than in a log with one chain. A larger width would need more concurrent
/// appends to keep all chains busy.
pub const STRIPE_WIDTH: u64 = 64;
/// Maximum units in one chain. Each unit adds one step to every append.
pub const COPIES_MAX: usize = 8;
/// Maximum extents in a projection. Trimming and copying reduce their number.
pub const EXTENTS_MAX: usize = 64;
/// Maximum stripes assigned to one unit: one per current extent, and the same number of obsolete ones.
pub const UNIT_STRIPES_MAX: usize = 2 * EXTENTS_MAX;
/// Maximum damaged positions that a unit remembers. Further damage is found when the position is read.
pub const DAMAGED_MAX: usize = 1_024;
/// Positions of a log are below this.
pub const POSITION_MAX: u64 = base::limits::LOG_POSITION_MAX;
/// Maximum positions in one grant of a sequencer. Positions that the client does not write must be filled.
pub const POSITIONS_AT_ONCE_MAX: u64 = 4_096;
/// Maximum positions that a sequencer grants to one client within [`POSITIONS_WINDOW`]. Bounds the holes that the
/// client can leave. Small in this crate's own tests.
pub const POSITIONS_OUTSTANDING_MAX: u64 = if cfg!(test) { 8 } else { 262_144 };
/// The window over which a sequencer counts the positions granted to a client.
pub const POSITIONS_WINDOW: Duration = Duration::from_millis(if cfg!(test) { 40 } else { 1_000 });
/// Maximum holes that a unit reports in one reply. Small in this crate's own tests.
pub const HOLES_MAX: usize = if cfg!(test) { 3 } else { 1_024 };
/// Maximum positions in one multi-position request to a unit, or copied to it by one command. Keeps the processing time
/// at about that of a large append. Small in this crate's own tests.
pub const MANY_MAX: usize = if cfg!(test) { 3 } else { 256 };
/// Maximum bytes of values in a reply to such a request, or in such a command. A single value may be longer. In this
/// crate's own tests: two of their values.
pub const MANY_BYTES_MAX: usize = if cfg!(test) { 32 } else { 1 << 20 };
/// Longest time for which a unit parks a read of an unwritten position.
pub const AWAIT_MAX: Duration = Duration::from_millis(300);
/// Longest time for which a unit sends entries to a follower that does not renew its subscription.
pub const FOLLOW_LEASE_MAX: Duration = Duration::from_millis(2_000);
/// Maximum bytes that a unit sends to a follower that does not renew its subscription, not counting the last entries. A
/// follower renews when half of it is used.
pub const FOLLOW_CREDIT_MAX: usize = 2 << 20;
/// Maximum subscriptions of one node at the units of another. With [`FOLLOW_CREDIT_MAX`] it limits the bytes queued on
/// a stalled connection, which also carries consensus messages.
pub const FOLLOWED_MAX: usize = 8;
/// A subscription begins at most this many positions before the unit's tail. Readers that are further behind use
/// ordinary reads.
pub const FOLLOW_BEHIND_MAX: u64 = 1_024;
/// Maximum bytes of entries that a follower keeps for readers. Small in this crate's own tests.
pub const FOLLOW_BUFFER_BYTES: usize = if cfg!(test) { 240 } else { 2 << 20 };
/// Memory overhead of an entry in bytes.
pub const FOLLOW_ENTRY_BYTES: usize = 64;
/// Maximum positions in one range read of a client machine.
pub const ROW_MAX: usize = 4_096;
/// Maximum calls that a range read has in flight. Calls for many positions share [`ROW_BYTES_MAX`]. Small in this
/// crate's own tests.
pub const ROW_CALLS_MAX: usize = if cfg!(test) { 3 } else { 16 };
/// Maximum bytes that the calls of a range read may return together. At the limit no further call starts. Small in this
/// crate's own tests.
pub const ROW_BYTES_MAX: usize = if cfg!(test) { 96 } else { 2 << 20 };
/// Maximum intervals of sequences in the deduplication state, over all clients. An interval takes up to 130 bytes of
/// memory (each of another client), 1 MB in all, and 40 bytes in a snapshot, 330 KB in all. Small in this crate's own
/// tests, so that they reach it.
pub const DUPLICATES_MAX: usize = if cfg!(test) { 64 } else { 8_192 };
/// Maximum clients for which a sequencer counts positions within one [`POSITIONS_WINDOW`].
pub const GRANTED_CLIENTS_MAX: usize = 100_000;
/// Maximum bytes in one part of a snapshot, which is one append. Small in this crate's own tests, so that a snapshot
/// has several parts.
pub const SNAPSHOT_PART_BYTES: usize = if cfg!(test) { 32 } else { 1 << 20 };
/// Maximum parts of a snapshot: 4 GiB in all, and the pointer that names them remains a small append.
pub const SNAPSHOT_PARTS_MAX: usize = 1 << 12;
/// Maximum parts of a snapshot appended concurrently, so that other appends make progress.
pub const SNAPSHOT_PARTS_AT_ONCE: usize = 4;
