//! Limits of the coordination service, each with its reason.

use base::Duration;

pub use base::limits::zookeeper::{
    ACL_BYTES_MAX, FRAME_BYTES_MAX, GATHERED_BYTES_MAX, HELD_BYTES_MAX, IDENTITIES_MAX, IDENTITY_BYTES_MAX,
    MULTI_READ_REPLY_BYTES_MAX, QUEUE_BYTES_MAX, QUEUE_REQUESTS_MAX, REPLY_BYTES_MAX, WATCHES_MAX,
};

/// Target size of a batch: large enough to amortize one force of the log, small enough not to delay others. A batch is
/// closed when it reaches this size, so that its last request may exceed it.
pub const BATCH_BYTES: usize = 256 << 10;
/// Maximum size of an entry: a batch just below [`BATCH_BYTES`], to which the longest request of a connection with the
/// most identities is added, and its header. The log must accept entries of this size, because a refused append is
/// retried unchanged.
pub const ENTRY_BYTES_MAX: usize = BATCH_BYTES + FRAME_BYTES_MAX + IDENTITY_BYTES_MAX + 256;
const _: () = assert!(ENTRY_BYTES_MAX <= 2 << 20, "within half of the log's batch limit");
/// Maximum number of items per batch.
pub const BATCH_ITEMS_MAX: usize = 16_384;
/// Maximum number of concurrent appends per server: with a slower log, batches get larger instead.
pub const BATCHES_IN_FLIGHT_MAX: usize = 4;
/// A server without an applied batch in this many positions is removed, together with its batches that wait for a lost
/// predecessor. A live server rejoins under a new id. Small in this crate's own tests.
pub const INACTIVE_POSITIONS_MAX: u64 = if cfg!(test) { 400 } else { 1 << 16 };
/// Maximum number of servers; the least recently active one is removed first.
pub const SERVERS_MAX: usize = 1_024;
/// Size of a snapshot piece in bytes. Each piece is one log entry.
pub const SNAPSHOT_PIECE_BYTES: usize = if cfg!(test) { 512 } else { 256 << 10 };
/// Replies are sent on one connection until they have this many bytes in a turn; the others follow in later turns. So
/// the driver can report a full output buffer in between. Small in this crate's own tests.
pub const CONNECTION_TURN_BYTES: usize = if cfg!(test) { 1 << 10 } else { 1 << 20 };
/// The same for all connections together.
pub const TURN_BYTES: usize = if cfg!(test) { 4 << 10 } else { 16 << 20 };
/// Small replies share chunks of this size: large enough to save allocations, small enough that one unsent reply does
/// not keep much memory.
pub const OUTPUT_CHUNK_BYTES: usize = 4 << 10;
/// Maximum bytes of watched paths over all connections. Each path is stored up to three times. Small in this crate's
/// own tests.
pub const WATCHED_PATH_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// A client considers itself connected until two thirds of its session timeout T after it last received a frame (all
/// client libraries do). A server sends nothing on a connection if the last session touch that is known to be in the
/// log was created longer ago than this share of T. Clients send a request or a ping every third of T.
pub const STALE_PERCENT: u64 = 45;
/// A session expires this share of T after its last touch was applied, measured with a clock error of at most 1%. It is
/// greater than [`STALE_PERCENT`] plus two thirds, so that a client that considers itself connected has a live session.
/// ZooKeeper rounds expiry up to its next tick.
pub const EXPIRE_PERCENT: u64 = 115;
/// A connection whose session is not opened or moved within this share of T is closed, so that the client tries another
/// server: a server without a majority accepts connections too, and some clients wait for the reply longer than T.
pub const CONNECT_PERCENT: u64 = 50;
/// Minimum time between two touches of an active session, as a share of T.
pub const TOUCH_PERCENT: u64 = 10;
/// Delay before a failed append or tail request is retried.
pub const RETRY: Duration = Duration::from_millis(20);
