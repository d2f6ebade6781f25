//! The numbers that bound what the door holds for strangers, each with its reason.

use std::time::Duration;

use api::frugal::STREAM_BATCH_MAX;
use base::limits::{SCAN_PAGE_BYTES, SESSION_WINDOW, WAITS_IN_FLIGHT_MAX, WRITE_BYTES_MAX};
use sharedlog::limits::BATCH_BYTES_MAX;

/// Bytes of a request message: the largest write, with room for the framing of its fields (a kilobyte of columns, a
/// few bytes each) and the table's name.
pub const REQUEST_BYTES_MAX: usize = WRITE_BYTES_MAX + (64 << 10);

/// Bytes of the answer of a call of its own: a page of a scan may end with a row that reaches past the page's size, and
/// a row may have several of the largest values. Larger rows are read by naming columns.
pub const REPLY_BYTES_MAX: usize = SCAN_PAGE_BYTES + 2 * WRITE_BYTES_MAX + (4 << 20);

/// Connections at one time: an idle one costs some 30 KiB, so all of them stay below 128 MiB. More are closed at once.
pub(crate) const CONNECTIONS_MAX: usize = 4_096;

/// Calls under way on one connection: a session's whole window of writes. HTTP/2 itself makes a client with more wait.
pub(crate) const STREAMS_PER_CONNECTION_MAX: u32 = SESSION_WINDOW as u32;

/// Streams that are open at one time, over all connections: an idle one costs some 8 KiB.
pub(crate) const STREAMS_MAX: usize = 4_096;
/// Requests of one stream that are not answered, or whose answers have not left: with so many it isn't read on. Two
/// messages may be full.
pub(crate) const STREAM_REQUESTS_MAX: usize = 2 * STREAM_BATCH_MAX;
/// Bytes of answers that wait for one stream's client to take them: any single one fits. Those past it are refused as
/// overloaded.
pub(crate) const STREAM_ANSWER_BYTES_MAX: usize = 32 << 20;
/// The same over all streams.
pub(crate) const STREAMS_ANSWER_BYTES_MAX: usize = 128 << 20;
/// With so many, streams ask for nothing more: any single answer that is under way still fits.
pub(crate) const STREAMS_FULL_BYTES: usize = STREAMS_ANSWER_BYTES_MAX - (8 << 20);
/// Bytes of logs that reads in all streams together may read ahead of what their clients take, ...
pub(crate) const STREAM_READS_BYTES_MAX: usize = 96 << 20;
/// ... those left out that bring no more than this: so little that they wait for none of the others.
pub(crate) const SMALL_READ_BYTES: usize = 16 << 10;
/// Bytes of an answer that go to HTTP/2 at a time. It has two such portions of each answer at most: of all streams 256
/// MiB, if clients say that they take much, and take nothing.
pub(crate) const PORTION_BYTES: usize = 32 << 10;
/// Bytes of answers to calls of their own that have begun to leave, and are not with HTTP/2 yet, over all connections
/// together: with more, one of which nothing has been taken for [`ANSWER_IDLE_MAX`] is given up, ...
pub(crate) const ANSWERS_OF_CALLS_BYTES_MAX: usize = 96 << 20;
/// ... and with so many, which answers to calls of their own alone can come to, those that were touched longest ago.
pub(crate) const ANSWERS_OF_CALLS_AT_ONCE_BYTES_MAX: usize = 224 << 20;
/// The same of streams whose connection was seen to take what comes: with more, they begin no large message, ...
pub(crate) const ANSWERS_SEEN_BYTES_MAX: usize = 64 << 20;
/// ... and an answer of which nothing has been taken for so long is given up.
pub(crate) const ANSWER_IDLE_MAX: Duration = Duration::from_secs(1);
/// The same of all other streams, some twenty of the largest entries of logs, ...
pub(crate) const ANSWERS_UNSEEN_BYTES_MAX: usize = 96 << 20;
/// ... and how long. Others would wait for them by the second, one lot of strangers after the other.
pub(crate) const ANSWER_UNSEEN_IDLE_MAX: Duration = Duration::from_millis(300);
/// Streams that take nothing are looked for so often, at most, where others find no room.
pub(crate) const CLEARING_PAUSE: Duration = Duration::from_millis(50);
/// A connection is seen to take once so much has gone since something of its was given up: the system's buffers take
/// several MiB that no client has read.
pub(crate) const SEEN_BYTES: usize = 16 << 20;
/// Bytes that subscriptions of all other connections may have read, or be reading, that have not begun to leave.
pub(crate) const STRANGERS_READ_BYTES_MAX: usize = 64 << 20;
/// With so many bytes of streams' answers that have begun to leave, or [`STREAMS_CROWDED_BYTES`] that wait to, ...
pub(crate) const LEAVING_CROWDED_BYTES: usize = 64 << 20;
/// ... subscriptions read on only while their connection has less than this asked for, waiting and leaving: three of
/// the largest entries.
pub(crate) const AHEAD_OF_ONE_BYTES: usize = 12 << 20;
/// Bytes of logs that calls of one connection, or reads in one stream, may read ahead of what their client takes: two
/// of the largest entries.
pub(crate) const READ_AHEAD_BYTES_MAX: usize = 8 << 20;
/// What any read of a log asks for, at least, ...
pub(crate) const GUESS_LEAST_BYTES: usize = 4 << 10;
/// ... and what one does that knows nothing of its entries: so much for each, ...
pub(crate) const GUESS_BLIND_ENTRY_BYTES: usize = 16 << 10;
/// ... and for all at least so much, ...
pub(crate) const GUESS_BLIND_LEAST_BYTES: usize = 64 << 10;
/// ... and no more than this.
pub(crate) const GUESS_BLIND_MOST_BYTES: usize = 1 << 20;
/// Reads of logs that wait for something to come, by calls of their own and in streams: what is left of the places for
/// those once every stream is a subscription that waits.
pub(crate) const WAITING_READS_MAX: usize = WAITS_IN_FLIGHT_MAX - STREAMS_MAX;
/// The same of one connection, ...
pub(crate) const WAITING_READS_OF_ONE_MAX: usize = WAITING_READS_MAX / 4;
/// ... and of all that would wait for longer than this: ...
pub(crate) const WAITING_READS_LONG_MAX: usize = WAITING_READS_MAX / 4 * 3;
/// ... clients wait for less before an append to a log of which they know nothing.
pub(crate) const SHORT_WAIT_MAX: base::Duration = base::Duration::from_millis(250);
/// Logs of whose entries a connection remembers how large they are.
pub(crate) const GUESSES_MAX: usize = 64;
/// With so many, a subscription reads on only once its client has been seen to take something since it read last: else
/// those that take nothing would fill all of it, and those that do would be told nothing.
pub(crate) const STREAMS_CROWDED_BYTES: usize = STREAMS_ANSWER_BYTES_MAX / 4;
/// So long ago, at most.
pub(crate) const PROBE_TIME: Duration = Duration::from_millis(20);
/// A message of answers ends when it has so many bytes: clients take 4 MiB unless they are told otherwise. A larger
/// answer goes alone.
pub(crate) const STREAM_MESSAGE_BYTES: usize = 256 << 10;
/// An answer to a read of a log ends with the entry that brings it to so many bytes: with entries of a usual size it is
/// below what clients take.
pub(crate) const READ_ANSWER_BYTES: usize = 2 << 20;
/// Bytes that a read of a log by itself, or in a stream, may bring: any single entry fits.
pub(crate) const READ_BYTES_MAX: usize = BATCH_BYTES_MAX;
/// Bytes that the reads of all subscriptions may bring that the node has not answered: with several followers as much
/// as disks and network bring in some milliseconds. What goes between two nodes meanwhile waits behind no more than
/// this, which is far below the 96 MiB that may wait for a peer.
pub(crate) const READS_BYTES_MAX: usize = 16 << 20;
/// Bytes that one of a subscription's reads asks for, roughly, ...
pub(crate) const SUBSCRIPTION_STRETCH_BYTES: usize = 512 << 10;
/// ... and how many of them are under way, or wait to be told, while it is far behind its log's end: enough that a
/// client takes without a pause what several disks read. It begins with one, and has twice as many whenever its client
/// has taken one.
pub(crate) const SUBSCRIPTION_STRETCHES_MAX: usize = 8;
/// Where entries are large, all these have so many bytes, or two entries.
pub(crate) const SUBSCRIPTION_AHEAD_BYTES: usize = 8 << 20;
/// Positions of a subscription's first read: nothing is known of the log's entries yet. Where they are larger than was
/// guessed, one of them is read by itself.
pub(crate) const SUBSCRIPTION_FIRST: usize = 4;
/// Bytes of all reads under way above which a read that waits at a log's end takes none of them: it may bring ...
pub(crate) const WAITING_READS_BYTES_MAX: usize = READS_BYTES_MAX / 2;
/// ... so many bytes, which for all streams come to 4 MiB, and what is larger is read when there is room.
pub(crate) const WAITING_READ_BYTES: usize = 1 << 10;
/// How long a subscription's read waits for something to come. Whoever should have written there, and is gone, holds
/// all subscribers up for so long.
pub(crate) const SUBSCRIPTION_WAIT: Duration = Duration::from_millis(250);
/// A client that was told nothing for so long is told that its subscription lives.
pub(crate) const SUBSCRIPTION_SILENCE: Duration = Duration::from_secs(1);
/// How long such a read may take besides.
pub(crate) const SUBSCRIPTION_READ_TIME: Duration = Duration::from_secs(10);
/// The pause after the node had too much to do for a subscription's read.
pub(crate) const SUBSCRIPTION_PAUSE: Duration = Duration::from_millis(100);
/// The pause after such a read brought nothing, and did not wait.
pub(crate) const SUBSCRIPTION_PAUSE_MIN: Duration = Duration::from_millis(5);

/// How often a stream looks for requests that the node has left without an answer.
pub(crate) const STREAM_SWEEP: Duration = Duration::from_millis(100);

/// How long a new connection may take to send HTTP/2's preface: a client sends it at once.
pub(crate) const PREFACE_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a call's message may take to arrive whole: the largest at some 3 Mbit/s.
pub(crate) const MESSAGE_TIME_MAX: Duration = Duration::from_secs(30);

/// Bytes of messages that have begun to arrive and are not whole yet, over all connections: those past it are refused
/// as overloaded. With `CONNECTIONS_MAX` it keeps what strangers can fill below 256 MiB.
pub(crate) const ARRIVING_BYTES_MAX: usize = 96 << 20;

/// A connection that is silent for so long is pinged, ...
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// ... and closed if no answer comes within this.
pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP/2's window of one stream: what the peer may send before the door has read it.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 512 << 10;
/// HTTP/2's window of one connection.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// Pause after a failed `accept`, which is mostly a lack of file descriptors: without it the loop would spin.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long calls under way may take to end once the door is to close.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Characters of a message for people: it travels in a header, and those are bounded at 16 KiB by most clients.
pub(crate) const MESSAGE_CHARACTERS_MAX: usize = 512;
/// Bytes of a column's name in an error's details, for the same reason.
pub(crate) const DETAIL_COLUMN_BYTES_MAX: usize = 256;

/// How long the node's machine may take to say how it is: it answers between two turns, which take milliseconds.
pub(crate) const STATUS_TIME_MAX: Duration = Duration::from_secs(1);
/// So much later the door speaks for it.
pub(crate) const STATUS_GUARD: Duration = Duration::from_millis(100);

/// The console's connections at one time: a browser has up to six, a scraper one. With their buffers they stay below
/// 16 MiB. More are closed at once.
pub const CONSOLE_CONNECTIONS_MAX: usize = 128;
/// How long a request to the console may take to arrive whole, from the connection's beginning or the last answer.
pub(crate) const CONSOLE_REQUEST_TIME_MAX: Duration = Duration::from_secs(5);
/// A connection to the console is closed after so long, whoever reads too slowly with it: the others need its place.
pub(crate) const CONSOLE_CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);
/// Bytes of a request to the console, which is all headers: browsers and proxies send a kilobyte or two.
pub(crate) const CONSOLE_HEADER_BYTES_MAX: usize = 16 << 10;
/// Headers of a request to the console.
pub(crate) const CONSOLE_HEADERS_MAX: usize = 64;
