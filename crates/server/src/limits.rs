//! Limits of the gRPC endpoint and the console, each with its reason. Memory is bounded by `flow_control`.

use std::time::Duration;

use api::frugal::STREAM_BATCH_MAX;
use base::limits::{SCAN_PAGE_BYTES, SESSION_WINDOW, WRITE_BYTES_MAX};
use sharedlog::limits::BATCH_BYTES_MAX;

/// Bytes of a request message: the largest write, with the framing of its fields (1,024 columns, a few bytes each)
/// and the table's name.
pub const REQUEST_BYTES_MAX: usize = WRITE_BYTES_MAX + (64 << 10);

/// Bytes of the response of a unary call: a page of a scan may end with a row that exceeds the page size, and a row may
/// have several of the largest values. Larger rows are read by naming columns.
pub const REPLY_BYTES_MAX: usize = SCAN_PAGE_BYTES + 2 * WRITE_BYTES_MAX + (4 << 20);

/// Concurrent connections: an idle one costs about 30 KiB, so all of them take less than 128 MiB. Further ones are
/// closed at once.
pub(crate) const CONNECTIONS_MAX: usize = 4_096;

/// Concurrent calls on one connection: a session's whole window of writes. HTTP/2 delays further calls.
pub(crate) const STREAMS_PER_CONNECTION_MAX: u32 = SESSION_WINDOW as u32;

/// Concurrent open streams over all connections: an idle one costs about 8 KiB.
pub(crate) const STREAMS_MAX: usize = 4_096;
/// Requests of one stream without a sent response: at this limit the server stops reading the stream. Two full messages.
pub(crate) const STREAM_REQUESTS_MAX: usize = 2 * STREAM_BATCH_MAX;
/// Size of a message with several responses: clients accept 4 MiB by default. A larger response is sent alone.
pub(crate) const STREAM_MESSAGE_BYTES: usize = 256 << 10;
/// The response to a read of a log ends with the entry that reaches this size. With entries of a usual size it stays below
/// the clients' default limit.
pub(crate) const READ_ANSWER_BYTES: usize = 2 << 20;
/// Maximum bytes of a log read that is a unary call or in a stream: any single entry fits.
pub(crate) const READ_BYTES_MAX: usize = BATCH_BYTES_MAX;
/// Prefetch of a subscription, or one entry if that is larger: enough to keep several disks busy while the client reads.
pub(crate) const PREFETCH_BYTES: usize = 4 << 20;
/// Approximate size of a read of the prefetch.
pub(crate) const PREFETCH_READ_BYTES: usize = 512 << 10;
/// How long a subscription's read waits for an entry. A hole left by a dead writer delays subscribers for this long.
pub(crate) const SUBSCRIPTION_WAIT: Duration = Duration::from_millis(250);
/// Interval of heartbeats to a subscriber when there are no entries.
pub(crate) const SUBSCRIPTION_SILENCE: Duration = Duration::from_secs(1);
/// How long a subscription's read may take beyond its wait.
pub(crate) const SUBSCRIPTION_READ_TIME: Duration = Duration::from_secs(10);
/// Backoff after the node rejected a subscription's read as overloaded.
pub(crate) const SUBSCRIPTION_PAUSE: Duration = Duration::from_millis(100);
/// Backoff after a subscription's read returned nothing without waiting.
pub(crate) const SUBSCRIPTION_PAUSE_MIN: Duration = Duration::from_millis(5);

/// Interval at which a stream checks for requests without a response.
pub(crate) const STREAM_SWEEP: Duration = Duration::from_millis(100);

/// Timeout for the HTTP/2 preface of a new connection, which clients send at once.
pub(crate) const PREFACE_TIME_MAX: Duration = Duration::from_secs(5);

/// Timeout for receiving a message: enough for the largest one at about 3 Mbit/s.
pub(crate) const MESSAGE_TIME_MAX: Duration = Duration::from_secs(30);

/// A connection without traffic for this long is pinged ...
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// ... and closed if there is no response within this.
pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP/2's window of one stream: bytes that a client may send ahead of the server's reads.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 512 << 10;
/// HTTP/2's window of one connection.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// Pause after a failed `accept`, usually caused by a lack of file descriptors. Without it the loop would spin.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long calls in progress may take to complete at shutdown.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Characters of an error message. It is sent in a header, and most clients limit headers to 16 KiB.
pub(crate) const MESSAGE_CHARACTERS_MAX: usize = 512;
/// Bytes of a column's name in an error's details, for the same reason.
pub(crate) const DETAIL_COLUMN_BYTES_MAX: usize = 256;

/// How long the node's state machine may take to report its status: it does so between two turns, which take
/// milliseconds.
pub(crate) const STATUS_TIME_MAX: Duration = Duration::from_secs(1);
/// The server responds in its place this much later.
pub(crate) const STATUS_GUARD: Duration = Duration::from_millis(100);

/// Concurrent connections of the console: a browser has up to six, a scraper one. With their buffers they take less
/// than 16 MiB. Further ones are closed at once.
pub const CONSOLE_CONNECTIONS_MAX: usize = 128;
/// Timeout for receiving a request to the console, from the start of the connection or the last response.
pub(crate) const CONSOLE_REQUEST_TIME_MAX: Duration = Duration::from_secs(5);
/// A connection to the console is closed after this time, so that slow readers do not occupy all connections.
pub(crate) const CONSOLE_CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);
/// Bytes of a request to the console, which is all headers: browsers and proxies send a kilobyte or two.
pub(crate) const CONSOLE_HEADER_BYTES_MAX: usize = 16 << 10;
/// Headers of a request to the console.
pub(crate) const CONSOLE_HEADERS_MAX: usize = 64;
