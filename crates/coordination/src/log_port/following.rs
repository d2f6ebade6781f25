//! When the log is read (ZooKeeper-SL, section 4, "Polling", and section 5).
//!
//! | playback | reads |
//! |---|---|
//! | push | one read is always in flight, and waits at the tail for the next entry |
//! | an interval | all available entries, once per interval |
//! | adaptive | as with push while clients wait for the log, otherwise with an interval that fits the rate of entries |
//!
//! A longer interval reads more entries at a time and costs less, but delays the visibility of changes. Writes are
//! accepted regardless, and the server applies its own entries from memory once all earlier entries are applied.
//!
//! A read that does not wait fills no holes. A position that was empty for [`FOLLOW_WAIT`] is therefore read with a
//! wait, which fills it if the writer has crashed. So an idle log is not polled either.

use core::fmt;
use core::str::FromStr;

use base::canary::{Bug, planted};
use base::limits::LOG_READ_MAX;
use base::{Duration, Monotonic};
use sharedlog::limits::BATCH_BYTES_MAX;
use sharedlog::request::{Content, LogEntry, LogResponse};

use super::{LogOutcome, LogPort, Output, PAUSE, Purpose, entry, read};
use crate::entry::Position;
use crate::limits::ENTRY_BYTES_MAX;
use crate::server::Event;

/// Maximum time that a read waits at the tail. A hole left by a crashed writer is filled after this time.
pub(super) const FOLLOW_WAIT: Duration = Duration::from_millis(500);
/// Maximum bytes that one read returns, unless a single entry is larger.
pub(super) const FOLLOW_BYTES: usize = 2 << 20;
const INTERVAL_MIN: Duration = Duration::from_millis(1);
const INTERVAL_MAX: Duration = Duration::from_millis(1_000);
/// The longest interval of adaptive playback, as in the paper.
const ADAPTIVE_MAX: Duration = Duration::from_millis(100);
/// Adaptive playback shortens the interval if a read returns more positions than this.
const ADAPTIVE_COUNT: usize = 4;
/// Minimum number of positions of a read that does not wait.
const POLL_COUNT: u32 = 16;

/// When a server reads the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Playback {
    /// As soon as entries are written.
    #[default]
    Push,
    /// At this interval, from 1 ms to 1 s.
    Interval(Duration),
    /// Immediately while clients wait for entries, otherwise at intervals from 1 to 100 ms.
    Adaptive,
}

/// The text is not a playback mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `push`, `adaptive`, or an interval from 1 ms to 1 s, such as `10ms`")]
pub struct ParsePlaybackError;

impl FromStr for Playback {
    type Err = ParsePlaybackError;

    fn from_str(text: &str) -> Result<Self, ParsePlaybackError> {
        let (number, unit_ms) = match text {
            "push" => return Ok(Self::Push),
            "adaptive" => return Ok(Self::Adaptive),
            _ => match text.strip_suffix("ms") {
                Some(number) => (number, 1),
                None => (text.strip_suffix('s').ok_or(ParsePlaybackError)?, 1_000),
            },
        };
        let number: u32 = number.parse().map_err(|_| ParsePlaybackError)?;
        let interval = Duration::from_millis(u64::from(number) * unit_ms);
        let is_valid = (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval);
        if is_valid { Ok(Self::Interval(interval)) } else { Err(ParsePlaybackError) }
    }
}

impl fmt::Display for Playback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Push => f.write_str("push"),
            Self::Interval(interval) => interval.fmt(f),
            Self::Adaptive => f.write_str("adaptive"),
        }
    }
}

/// The reads that follow the log.
#[derive(Debug)]
pub(super) struct Follower {
    playback: Playback,
    reading: Option<ReadInFlight>,
    /// Positions of the next read: the number that is probably written once the first one is. At the tail, a read of
    /// one position takes one request to its unit.
    pub(super) count: u32,
    /// Size of the next read: larger after one entry did not fit.
    bytes: usize,
    /// When the log is read again after a failure.
    retry_at: Monotonic,
    /// When the log is read again, unless entries are pushed.
    next_at: Monotonic,
    /// The interval of adaptive playback.
    interval: Duration,
    /// When the next position was first found empty.
    empty_since: Option<Monotonic>,
}

/// The read in flight.
#[derive(Clone, Copy, Debug)]
struct ReadInFlight {
    began: Monotonic,
    count: u32,
}

impl Follower {
    pub(super) fn new(playback: Playback) -> Self {
        Self {
            playback,
            reading: None,
            count: 1,
            bytes: FOLLOW_BYTES,
            retry_at: Monotonic(0),
            next_at: Monotonic(0),
            interval: match playback {
                Playback::Interval(interval) => interval,
                Playback::Push | Playback::Adaptive => INTERVAL_MIN,
            },
            empty_since: None,
        }
    }

    pub(super) fn restart(&mut self) {
        *self = Self::new(self.playback);
    }

    pub(super) fn next_timer(&self) -> Monotonic {
        let next = self.retry_at.max(self.next_at);
        if self.reading.is_some() || next == Monotonic(0) { Monotonic::NEVER } else { next }
    }

    /// Adapts count, size and interval to the entries that were read.
    fn note_entries(&mut self, reading: ReadInFlight, count: usize, bytes: usize, now: Monotonic) {
        self.bytes = FOLLOW_BYTES;
        let is_full = count as u32 >= reading.count;
        let next_count = if is_full { 2 * count as u32 } else { count as u32 };
        self.count = next_count.clamp(1, LOG_READ_MAX);
        self.empty_since = if count > 0 { None } else { self.empty_since.or(Some(now)) };
        // The read ended at its limit, and there may be more.
        if count > 0 && (is_full || bytes + ENTRY_BYTES_MAX > FOLLOW_BYTES) {
            self.next_at = Monotonic(0);
            return;
        }
        if self.playback == Playback::Adaptive {
            self.interval = match count {
                0 => Duration(2 * self.interval.0).min(ADAPTIVE_MAX),
                count if count > ADAPTIVE_COUNT => Duration(self.interval.0 / 2).max(INTERVAL_MIN),
                _ => self.interval,
            };
        }
        if self.playback != Playback::Push {
            self.next_at = (reading.began + self.interval).max(now);
        }
    }
}

impl LogPort {
    /// Reads from the server's next position on, unless a read is in flight or none is due. Called at the end of each
    /// turn. `is_awaited`: whether clients wait for the log
    /// ([`Server::waits_for_log`](crate::server::Server::waits_for_log)).
    pub fn follow(&mut self, next: Position, is_awaited: bool, now: Monotonic) {
        let follower = &mut self.follower;
        let is_pushed = match follower.playback {
            Playback::Push => true,
            Playback::Interval(_) => false,
            Playback::Adaptive => is_awaited,
        };
        let is_due = now >= follower.retry_at && (is_pushed || now >= follower.next_at);
        if follower.reading.is_some() || !is_due || self.opening.is_some() {
            return;
        }
        let waits = is_pushed || follower.empty_since.is_some_and(|since| now.since(since) >= FOLLOW_WAIT);
        let (wait, count) =
            if waits { (FOLLOW_WAIT, follower.count) } else { (Duration::ZERO, follower.count.max(POLL_COUNT)) };
        let bytes = follower.bytes;
        follower.reading = Some(ReadInFlight { began: now, count });
        (follower.retry_at, follower.next_at) = (Monotonic(0), Monotonic(0));
        self.ask(Purpose::Follow(next), read(sharedlog::Position(next.0), count, wait, bytes), now);
    }

    pub(super) fn followed(&mut self, from: Position, answer: LogOutcome, now: Monotonic) {
        let Some(reading) = self.follower.reading.take() else {
            return debug_assert!(false, "one read is in flight");
        };
        let entries = match answer {
            Ok(LogResponse::Entries(entries)) => entries,
            Ok(LogResponse::Larger) => {
                self.follower.bytes = BATCH_BYTES_MAX;
                return;
            }
            _ => {
                self.follower.retry_at = now + PAUSE;
                if planted(Bug::FailedReadIsHole) {
                    self.outputs.push(Output::Event(Event::Played { position: from, entry: None }));
                }
                return;
            }
        };
        let sizes = entries.iter().map(|entry| match &entry.content {
            Content::Data(data) => data.batch.len(),
            Content::Junk | Content::Lost | Content::Trimmed { .. } => 0,
        });
        self.follower.note_entries(reading, entries.len(), sizes.sum(), now);
        for (LogEntry { position, content }, next) in entries.into_iter().zip(from.0..) {
            if let Content::Trimmed { mark } = content
                && mark > position
            {
                return self.outputs.push(Output::Trimmed(Position(mark.0)));
            }
            if position.0 != next {
                return debug_assert!(false, "a read returns consecutive positions");
            }
            self.outputs.push(Output::Event(Event::Played { position: Position(next), entry: entry(content) }));
        }
    }
}
