//! The limits for clients. The endpoint checks each of them, and the node that executes the request checks it again.

use crate::Duration;

/// Maximum bytes of a row key: keys are kept in memory and compared often.
pub const KEY_BYTES_MAX: usize = 8 << 10;
/// Maximum bytes of a column name.
pub const COLUMN_BYTES_MAX: usize = 8 << 10;
/// Maximum bytes of a column value: a value is part of a single log entry, message and batch.
pub const VALUE_BYTES_MAX: usize = 8 << 20;
/// Maximum bytes of a write (key, columns and values together): it is one log entry, and an entry is within one batch.
pub const WRITE_BYTES_MAX: usize = 12 << 20;
/// Maximum columns of one write.
pub const WRITE_COLUMNS_MAX: usize = 1_024;
/// Maximum rows that one transaction changes.
pub const TRANSACTION_WRITES_MAX: usize = 10_000;
/// Maximum ranges of keys that one transaction reads: a row, or a page of a scan.
pub const TRANSACTION_READS_MAX: usize = 10_000;
/// Maximum bytes of a table name, of letters, digits, `_`, `-` and `.`.
pub const TABLE_NAME_BYTES_MAX: usize = 128;
/// Maximum tables of a cluster: every node stores the list.
pub const TABLES_MAX: usize = 1_000;
/// Maximum ranges of a table: its record is within one chunk of a checkpoint and one message.
pub const RANGES_MAX: usize = 1_000;
/// Maximum ranges of a cluster: each is a cohort with its own timers and heartbeats.
pub const RANGES_IN_CLUSTER_MAX: usize = 10_000;
/// Maximum bytes of all split keys of a table: they are in one request and one log entry.
pub const SPLIT_BYTES_MAX: usize = 1 << 20;
/// Allowed numbers of nodes when a cluster is formed. Odd numbers, because each larger one tolerates one more failure.
pub const CLUSTER_NODES: [usize; 4] = [1, 3, 5, 7];
/// Maximum replicas of a range: five tolerate two failures.
pub const REPLICAS_MAX: u32 = 5;
/// Default retention of old versions of a table's rows.
pub const RETENTION_DEFAULT: Duration = Duration::from_millis(60_000);
/// Maximum retention of old versions of a table's rows: one week, because they take disk space.
pub const RETENTION_MAX: Duration = Duration::from_millis(7 * 24 * 3_600_000);
/// Maximum holds of one range: each is kept in its leader's memory, and keeps old versions on disk.
pub const HOLDS_MAX: usize = 1_000;
/// Default time after its last renewal at which a hold ends. Holders renew three times as often.
pub const HOLD_LIFETIME: Duration = Duration::from_millis(30_000);
/// Maximum age of a hold, however often it is renewed: old versions take disk space.
pub const HOLD_AGE_MAX: Duration = Duration::from_millis(24 * 3_600_000);
/// Maximum rows in one page of a scan.
pub const SCAN_ROWS_MAX: usize = 1_000;
/// Bytes after which a page of a scan ends, even with fewer rows than requested.
pub const SCAN_PAGE_BYTES: usize = 2 << 20;
/// Maximum writes of one session with outcomes that the client has not acknowledged.
pub const SESSION_WINDOW: u64 = 1_024;
/// Maximum open sessions of one range.
pub const SESSIONS_MAX: usize = 100_000;
/// Maximum encoded bytes of a log entry.
pub const ENTRY_BYTES_MAX: usize = WRITE_BYTES_MAX + (64 << 10);
/// Maximum bytes of a message between nodes: a maximal entry and other content.
pub const PEER_MESSAGE_BYTES_MAX: usize = 20 << 20;
/// Maximum requests in progress on one node: more are rejected as overloaded.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 8_192;
/// Maximum reads of shared logs that wait for new entries on one node. They are counted apart from other requests,
/// because they take little memory and wait for long.
pub const WAITS_IN_FLIGHT_MAX: usize = 8_192;
/// Default memory in bytes for clients' requests and responses on one node, half for each. Requests beyond it are
/// rejected as overloaded.
pub const CLIENT_MEMORY_BYTES_DEFAULT: usize = 512 << 20;
/// Minimum of that setting: the largest response must fit into half of it.
pub const CLIENT_MEMORY_BYTES_MIN: usize = 64 << 20;
/// Deadline of a request that has none of its own.
pub const DEADLINE_DEFAULT: Duration = Duration::from_millis(10_000);
/// Maximum deadline of a request.
pub const DEADLINE_MAX: Duration = Duration::from_millis(300_000);

/// Bytes of a block of a virtual disk: the unit of allocation and of atomic writes. The size of a disk is a multiple.
pub const DISK_BLOCK_BYTES: u64 = 4_096;
/// Maximum bytes of a virtual disk: 1 PiB. A block's number in its stripe has at most 38 bits.
pub const DISK_BYTES_MAX: u64 = 1 << 50;
/// Maximum stripes of a virtual disk.
pub const DISK_STRIPES_MAX: u16 = 16;

/// Maximum chains over which the positions of a shared log are striped: twice the nodes of a large cluster.
pub const LOG_STRIPES_MAX: u32 = 16;
/// Maximum copies of each position of a shared log: each copy adds a sequential step to every append.
pub const LOG_COPIES_MAX: u32 = 5;
/// Positions of a shared log are below this, so that the sum of two does not overflow.
pub const LOG_POSITION_MAX: u64 = 1 << 62;
/// Maximum bytes of a record of a shared log. A batch has at most 4 MiB, including 4 bytes for each record and 4 bytes
/// for the batch.
pub const LOG_RECORD_BYTES_MAX: usize = (4 << 20) - 8;
/// Maximum positions in one read request.
pub const LOG_READ_MAX: u32 = 1_000;
/// Maximum shared logs of a cluster: the catalog stores a record for each.
pub const LOGS_MAX: usize = 1_000;
