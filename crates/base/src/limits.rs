//! The limits that clients can meet, each with its reason; `docs/limits.md` lists them with their effects. The endpoint
//! checks each of them, and the node that executes a request checks its part again.

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
/// Default memory in bytes for the clients of one node, of all protocols: requests, responses, results, queries. Requests
/// beyond it are rejected as overloaded.
pub const CLIENT_MEMORY_BYTES_DEFAULT: usize = 512 << 20;
/// Minimum of that setting: the largest response must fit into half of it.
pub const CLIENT_MEMORY_BYTES_MIN: usize = 128 << 20;
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

/// Of gRPC clients.
pub mod grpc {
    use crate::Duration;

    use super::{SCAN_PAGE_BYTES, SESSION_WINDOW, WRITE_BYTES_MAX};

    /// Bytes of a request message: the largest write, with the framing of its fields (1,024 columns, a few bytes each)
    /// and the table's name.
    pub const REQUEST_BYTES_MAX: usize = WRITE_BYTES_MAX + (64 << 10);
    /// Bytes of the response of a unary call: a page of a scan may end with a row that exceeds the page size, and a row may
    /// have several of the largest values. Larger rows are read by naming columns.
    pub const REPLY_BYTES_MAX: usize = SCAN_PAGE_BYTES + 2 * WRITE_BYTES_MAX + (4 << 20);
    /// Concurrent connections: an idle one costs about 30 KiB, so all of them take less than 128 MiB. Further ones are
    /// closed at once.
    pub const CONNECTIONS_MAX: usize = 4_096;
    /// Concurrent calls on one connection: a session's whole window of writes. HTTP/2 delays further calls.
    pub const STREAMS_PER_CONNECTION_MAX: u32 = SESSION_WINDOW as u32;
    /// Concurrent open streams over all connections: an idle one costs about 8 KiB.
    pub const STREAMS_MAX: usize = 4_096;
    /// Requests of one stream without a sent response: at this limit the server stops reading the stream. Two full messages.
    pub const STREAM_REQUESTS_MAX: usize = 2 * STREAM_BATCH_MAX;
    /// Prefetch of a subscription, or one entry if that is larger: enough to keep several disks busy while the client reads.
    pub const PREFETCH_BYTES: usize = 4 << 20;
    /// Timeout for the HTTP/2 preface of a new connection, which clients send at once.
    pub const PREFACE_TIME_MAX: Duration = Duration::from_millis(5_000);
    /// Timeout for receiving a message: enough for the largest one at about 3 Mbit/s.
    pub const MESSAGE_TIME_MAX: Duration = Duration::from_millis(30_000);
    /// Sessions that a connection may open at once: one for each of many ranges.
    pub const SESSIONS_AT_ONCE: f64 = 1_000.0;
    /// Sessions that it may open per second afterwards. Unused sessions expire after ten minutes, so that one connection has
    /// at most 7,000 of the 100,000 sessions of a range.
    pub const SESSIONS_PER_S: f64 = 10.0;
    /// Maximum requests in one message of a stream. Each takes some 200 bytes of memory in addition to its message.
    pub const STREAM_BATCH_MAX: usize = 1_024;
    /// Maximum bytes of an encoded token: about 10,000 ranges with short keys.
    pub const TOKEN_BYTES_MAX: usize = 1 << 20;
}

/// Of the console.
pub mod console {
    use crate::Duration;

    /// Concurrent connections of the console: a browser has up to six, a scraper one. With their buffers they take less
    /// than 16 MiB. Further ones are closed at once.
    pub const CONNECTIONS_MAX: usize = 128;
    /// Timeout for receiving a request to the console, from the start of the connection or the last response.
    pub const REQUEST_TIME_MAX: Duration = Duration::from_millis(5_000);
    /// A connection to the console is closed after this time, so that slow readers do not occupy all connections.
    pub const CONNECTION_TIME_MAX: Duration = Duration::from_millis(60_000);
    /// Bytes of a request to the console, which is all headers: browsers and proxies send a kilobyte or two.
    pub const HEADER_BYTES_MAX: usize = 16 << 10;
    /// Headers of a request to the console.
    pub const HEADERS_MAX: usize = 64;
}

/// Of shared logs.
pub mod logs {
    /// Maximum bytes in one batch: an append travels as one message and becomes one entry.
    pub const BATCH_BYTES_MAX: usize = 4 << 20;
    /// Maximum records in one batch.
    pub const RECORDS_MAX: usize = 65_536;
}

/// Of ZooKeeper clients.
pub mod zookeeper {
    use crate::Duration;

    /// Maximum length of a client's frame: ZooKeeper's default of `jute.maxbuffer`. A longer one
    /// closes its connection, as in ZooKeeper.
    pub const FRAME_BYTES_MAX: usize = 0xf_ffff;
    /// Maximum number of identities per connection: they are part of every batch with a request of the connection.
    pub const IDENTITIES_MAX: usize = 64;
    /// Maximum size of a connection's identities in a batch: enough for 64 digests with names of ordinary length.
    pub const IDENTITY_BYTES_MAX: usize = 4 << 10;
    /// Maximum size of a node's ACL. In a request, an entry with scheme `auth` stands for all identities of the client.
    pub const ACL_BYTES_MAX: usize = 64 << 10;
    /// Maximum number of queued requests per connection. Reading pauses at the limit and resumes at half of it.
    pub const QUEUE_REQUESTS_MAX: usize = 2_048;
    /// The same limit in bytes.
    pub const QUEUE_BYTES_MAX: usize = 4 << 20;
    /// Maximum bytes of all requests that wait for an append (backpressure): above this limit, connections with queued
    /// requests are not read.
    pub const GATHERED_BYTES_MAX: usize = 64 << 20;
    /// Maximum bytes of replies and events held back for one connection; it is closed above that.
    pub const HELD_BYTES_MAX: usize = 16 << 20;
    /// Maximum bytes of a reply. A listing of more children than fit fails.
    pub const REPLY_BYTES_MAX: usize = 64 << 20;
    /// Maximum bytes of a reply to multiRead, because a short request may read one large node many times. Clients refuse
    /// larger frames by default.
    pub const MULTI_READ_REPLY_BYTES_MAX: usize = 4 << 20;
    /// Maximum number of watches per server, at about 200 bytes each. Above it, the client with the most is disconnected.
    pub const WATCHES_MAX: usize = 4 << 20;
    /// Timeout for a client to send its first complete frame.
    pub const GREETING_TIMEOUT: Duration = Duration::from_millis(10_000);
    /// Lower bound of the shortest session timeout, in milliseconds: a server renews its sessions ten times per timeout.
    pub const SESSION_TIMEOUT_MIN_MS: u64 = 400;
}

/// Of NBD clients.
pub mod nbd {
    use crate::Duration;

    /// Maximum number of connections.
    pub const CONNECTIONS_MAX: usize = 256;
    /// Timeout for a client to attach a disk.
    pub const ATTACH_TIMEOUT: Duration = Duration::from_millis(30_000);
    /// A node that holds a change longer does not execute it, and a loop that did not run for this time closes the connections
    /// with requests: the client may have gone, and changed the same blocks through another node.
    pub const STALL: Duration = Duration::from_millis(200);
    /// Bytes of requests in progress that each connection may have when memory for clients is short: the reserve is enough
    /// for all connections.
    pub const CONNECTION_BYTES: usize = 128 << 10;
    /// Bytes of unread replies at which a connection is not read any more.
    pub const OUTPUT_BYTES_MAX: usize = 64 << 20;
    /// Requests in progress at which a gateway is full.
    pub const REQUESTS_MAX: usize = 256;
    /// Bytes of requests in progress, written or to be read, at which a gateway is full: two of the largest requests.
    pub const BYTES_MAX: u64 = 64 << 20;
    /// Maximum bytes of the data of a read or a write: the size that all clients assume.
    pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
    /// Maximum bytes of the name of a holder.
    pub const HOLDER_BYTES_MAX: usize = 128;
    /// Maximum bytes of a name or another string, from the protocol.
    pub const STRING_BYTES_MAX: usize = 4096;
}

/// Prefix of the names of tables that store SQL databases.
pub const SQL_PREFIX: &str = "sql.";

/// Of PostgreSQL clients, and of SQL.
pub mod sql {
    /// Maximum columns of a table: with the marker, a row must fit into one write of the store.
    pub const COLUMNS_MAX: usize = 1_000;
    /// Maximum columns of a primary key or an index, as in PostgreSQL.
    pub const KEY_COLUMNS_MAX: usize = 32;
    /// Maximum indexes of a table: each write maintains all of them.
    pub const INDEXES_MAX: usize = 64;
    /// Maximum levels of interleaved tables.
    pub const LEVELS_MAX: usize = 7;
    /// Maximum tables, views and sequences of a database: each version of the schema lists them.
    pub const RELATIONS_MAX: usize = 10_000;
    /// Maximum bytes of a name, as in PostgreSQL. Longer ones are truncated.
    pub const NAME_BYTES_MAX: usize = 63;
    /// Maximum length of `varchar(n)` and `char(n)`, as in PostgreSQL.
    pub const LENGTH_MAX: u32 = 10_485_760;
    /// Maximum declared length of `char(n)`: each value has this length, however short its text is.
    pub const CHAR_LENGTH_MAX: u32 = 10_000;
    /// Maximum precision of `numeric(p, s)`, as in PostgreSQL.
    pub const PRECISION_MAX: u16 = 1_000;
    /// Maximum bytes of a text: a value of the largest size as hexadecimal digits, and more.
    pub const TEXT_BYTES_MAX: usize = 18 << 20;
    /// Maximum bytes of a text outside string literals: each may become a token, which takes about 100 bytes of memory.
    pub const CODE_BYTES_MAX: usize = 1 << 20;
    /// Maximum depth of an expression or a chain of set operations.
    pub const DEPTH_MAX: usize = 1_000;
    /// Maximum words that may start a statement inside another one; some have other meanings too.
    pub const STATEMENTS_MAX: usize = 200;
    /// Maximum nesting of parentheses, subqueries and other syntax.
    pub const NESTING_MAX: usize = 100;
    /// Maximum bytes of a result, or of rows that are sorted, in memory.
    pub const RESULT_BYTES_MAX: usize = 64 << 20;
    /// Maximum parameters of a statement: the protocol counts them with 16 bits.
    pub const PARAMETERS_MAX: usize = 65_535;
    /// Connections by default: each may hold a transaction and a result in memory.
    pub const CONNECTIONS: usize = 250;
    /// The greatest value of that setting.
    pub const CONNECTIONS_MAX: usize = 5_000;
    /// Maximum portals of a connection: each may have a result in memory.
    pub const PORTALS_MAX: usize = 100;
    /// Maximum savepoints of a transaction: each has a copy of its writes.
    pub const SAVEPOINTS_MAX: usize = 100;
    /// Memory of a session for messages, results and queries once the node's memory for clients is short.
    pub const SESSION_BYTES: usize = 1 << 20;
    /// Maximum memory of a query for sorting, grouping and joining, in bytes.
    pub const QUERY_BYTES: usize = 256 << 20;
    /// Maximum rows that the query of a planned change finds.
    pub const CHANGED_ROWS_MAX: usize = 500_000;
}
