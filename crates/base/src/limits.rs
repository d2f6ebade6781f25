//! The limits that clients meet, in one place. Each is checked at the door, and again by the node
//! that takes the request.

use crate::Duration;

/// Bytes of a row's key, at most: keys are held in memory and compared often.
pub const KEY_BYTES_MAX: usize = 8 << 10;
/// Bytes of a column's name, at most.
pub const COLUMN_BYTES_MAX: usize = 8 << 10;
/// Bytes of one column's value, at most: one value is one part of a log entry, a message and a batch.
pub const VALUE_BYTES_MAX: usize = 8 << 20;
/// Bytes of one write (key, columns and values together), at most: it is one log entry, and an entry lies in one batch.
pub const WRITE_BYTES_MAX: usize = 12 << 20;
/// Columns that one write may touch.
pub const WRITE_COLUMNS_MAX: usize = 1_024;
/// Bytes of a table's name, at most; letters, digits, `_`, `-` and `.` only.
pub const TABLE_NAME_BYTES_MAX: usize = 128;
/// Tables in a universe, at most: every node holds the list.
pub const TABLES_MAX: usize = 1_000;
/// Ranges of one table, at most: its record is one part of a checkpoint and of a message.
pub const RANGES_MAX: usize = 1_000;
/// Ranges in a universe, at most: each is a cohort, with timers and heartbeats of its own.
pub const RANGES_IN_UNIVERSE_MAX: usize = 10_000;
/// Bytes of the keys that one table is split at, together, at most: they travel as one request and one log entry.
pub const SPLIT_BYTES_MAX: usize = 1 << 20;
/// Nodes that a universe may be formed of: groups of which no two majorities are apart, each larger one surviving one
/// failure more.
pub const UNIVERSE_NODES: [usize; 4] = [1, 3, 5, 7];
/// Replicas of each range, at most: a majority of five survives two.
pub const REPLICAS_MAX: u32 = 5;
/// How long old versions of a table's rows are kept, unless its creator wants another time.
pub const RETENTION_DEFAULT: Duration = Duration::from_millis(60_000);
/// How long old versions of a table's rows are kept, at most: a week. They take room meanwhile.
pub const RETENTION_MAX: Duration = Duration::from_millis(7 * 24 * 3_600_000);
/// Rows in one page of a scan, at most.
pub const SCAN_ROWS_MAX: usize = 1_000;
/// Bytes after which a page of a scan ends, even if fewer rows were asked for.
pub const SCAN_PAGE_BYTES: usize = 2 << 20;
/// Writes of one session whose outcome the client hasn't yet acknowledged.
pub const SESSION_WINDOW: u64 = 1_024;
/// Open sessions in one range of a table.
pub const SESSIONS_MAX: usize = 100_000;
/// Bytes of a log entry with all its parts, at most.
pub const ENTRY_BYTES_MAX: usize = WRITE_BYTES_MAX + (64 << 10);
/// Bytes of one message between nodes, at most: an entry with room for its neighbours.
pub const PEER_MESSAGE_BYTES_MAX: usize = 20 << 20;
/// Requests that one node holds unanswered: more are refused as overloaded.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 8_192;
/// The same of reads of shared logs that wait for something to come: they have places of their own, since they take
/// next to nothing, and stay for long.
pub const WAITS_IN_FLIGHT_MAX: usize = 8_192;
/// Bytes of memory for clients' requests and responses on one node, half for each, unless it is configured: what finds no
/// room is refused as overloaded.
pub const CLIENT_MEMORY_BYTES_DEFAULT: usize = 512 << 20;
/// The same, at least: the largest response fits into half of it.
pub const CLIENT_MEMORY_BYTES_MIN: usize = 64 << 20;
/// A request without a deadline of its own gets this one.
pub const DEADLINE_DEFAULT: Duration = Duration::from_millis(10_000);
/// A request's deadline, at most.
pub const DEADLINE_MAX: Duration = Duration::from_millis(300_000);

/// Chains that the positions of a shared log are spread over, at most: twice the nodes of a large universe.
pub const LOG_STRIPES_MAX: u32 = 16;
/// Copies of each position of a shared log, at most: each one more is a step more of every append.
pub const LOG_COPIES_MAX: u32 = 5;
/// The positions of a shared log lie below this, so that no sum of two overflows.
pub const LOG_POSITION_MAX: u64 = 1 << 62;
/// Bytes of a record of a shared log, at most: what is appended together takes 4 MiB, with 4 bytes more for each record
/// and 4 for all.
pub const LOG_RECORD_BYTES_MAX: usize = (4 << 20) - 8;
/// Positions that one request reads, at most.
pub const LOG_READ_MAX: u32 = 1_000;
/// Shared logs of a universe, at most: each one takes a part of the catalogue.
pub const LOGS_MAX: usize = 1_000;
