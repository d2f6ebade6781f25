//! Limits of the gRPC endpoint and the console, each with its reason. Memory is bounded by `flow_control`.

use std::time::Duration;

use base::limits::{console, grpc};
use sharedlog::limits::BATCH_BYTES_MAX;

pub use base::limits::console::CONNECTIONS_MAX as CONSOLE_CONNECTIONS_MAX;
pub(crate) use base::limits::console::{
    HEADER_BYTES_MAX as CONSOLE_HEADER_BYTES_MAX, HEADERS_MAX as CONSOLE_HEADERS_MAX,
};
pub(crate) use base::limits::grpc::{
    CONNECTIONS_MAX, PREFETCH_BYTES, STREAM_REQUESTS_MAX, STREAMS_MAX, STREAMS_PER_CONNECTION_MAX,
};
pub use base::limits::grpc::{REPLY_BYTES_MAX, REQUEST_BYTES_MAX};

pub(crate) const PREFACE_TIME_MAX: Duration = Duration::from_nanos(grpc::PREFACE_TIME_MAX.0);
pub(crate) const MESSAGE_TIME_MAX: Duration = Duration::from_nanos(grpc::MESSAGE_TIME_MAX.0);
pub(crate) const CONSOLE_REQUEST_TIME_MAX: Duration = Duration::from_nanos(console::REQUEST_TIME_MAX.0);
pub(crate) const CONSOLE_CONNECTION_TIME_MAX: Duration = Duration::from_nanos(console::CONNECTION_TIME_MAX.0);

/// Size of a message with several responses: clients accept 4 MiB by default. A larger response is sent alone.
pub(crate) const STREAM_MESSAGE_BYTES: usize = 256 << 10;
/// The response to a read of a log ends with the entry that reaches this size. With entries of a usual size it stays below
/// the clients' default limit.
pub(crate) const READ_ANSWER_BYTES: usize = 2 << 20;
/// Maximum bytes of a log read that is a unary call or in a stream: any single entry fits.
pub(crate) const READ_BYTES_MAX: usize = BATCH_BYTES_MAX;
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
