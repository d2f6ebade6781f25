//! What bounds the parts of a coordination service, each with its reason.

use base::Duration;

/// Bytes of a batch after which no further item goes into it: large enough that a full one is worth its force, small
/// enough that others don't wait for it. One request may be larger.
pub const BATCH_BYTES: usize = 256 << 10;
/// Items of one batch, at most.
pub const BATCH_ITEMS_MAX: usize = 16_384;
/// Batches of a server that may be under way at one time, at most: a log that is slower than that needs larger ones.
pub const BATCHES_IN_FLIGHT_MAX: usize = 4;
/// Identities of one connection, at most: each travels with every batch that has a request of it.
pub const IDENTITIES_MAX: usize = 64;
/// A server of which nothing was applied in so many positions is forgotten, with the batches that wait for one that was
/// lost. It joins anew if it lives. Small in this crate's own tests.
pub const SILENT_POSITIONS_MAX: u64 = if cfg!(test) { 400 } else { 1 << 16 };
/// Servers that are remembered, at most; who was silent for longest is forgotten first.
pub const SERVERS_MAX: usize = 1_024;
/// Bytes of one piece of a snapshot: one entry of the log.
pub const SNAPSHOT_PIECE_BYTES: usize = if cfg!(test) { 512 } else { 256 << 10 };
/// Requests of one connection that wait, at most; no more is read from it until there are half as many.
pub const QUEUE_REQUESTS_MAX: usize = 2_048;
/// Bytes of them, at most, before the same.
pub const QUEUE_BYTES_MAX: usize = 4 << 20;
/// Bytes that wait to be appended in all connections' names; above it, who has a request waiting is not read from.
pub const GATHERED_BYTES_MAX: usize = 64 << 20;
/// Bytes of replies and events held back for one connection, at most. It is closed above.
pub const HELD_BYTES_MAX: usize = 16 << 20;
/// Watches of one server, at most, at some 200 bytes each. Who sets a further one is disconnected.
pub const WATCHES_MAX: usize = 4 << 20;

/// A client believes in its connection for two thirds of its session's timeout T after it last heard from the server
/// (all clients do). A server sends nothing on a connection once the last touch of the session that it knows to lie in
/// the log was made longer ago than this share of T; clients send something every third of it.
pub const STALE_PERCENT: u64 = 45;
/// A session expires when this share of T has passed, by a clock of at most 1% error, since its last touch was played.
/// More than [`STALE_PERCENT`] and two thirds together: who believes to hold a lock has a session. ZooKeeper rounds up to
/// its next tick.
pub const EXPIRE_PERCENT: u64 = 115;
/// A session is touched again after this share of T, if the client was heard of.
pub const TOUCH_PERCENT: u64 = 10;
/// How long a failed request for the tail, or a failed append, waits.
pub const RETRY: Duration = Duration::from_millis(20);
