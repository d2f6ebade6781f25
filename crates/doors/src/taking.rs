//! What is known of one connection's client: how much of its streams waits for it, and whether it was seen to take
//! something.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::limits::{AHEAD_OF_ONE_BYTES, CLEARING_PAUSE, SEEN_BYTES};

/// Whether a client was seen to take what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Seen,
    Unseen,
}

/// What is known of one connection's client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taking(Arc<Known>);

/// How much a connection had taken at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken(usize);

#[derive(Debug, Default)]
struct Known {
    ahead: AtomicUsize,
    taken: AtomicUsize,
    /// When its streams were last looked through.
    looked_at: Mutex<Option<Instant>>,
}

impl Taking {
    /// So many bytes are asked for it, wait, or begin to leave, in a stream.
    pub(crate) fn charge(&self, bytes: usize) {
        self.0.ahead.fetch_add(bytes, Ordering::Relaxed);
    }

    /// They are so no longer.
    pub(crate) fn release(&self, bytes: usize) {
        self.0.ahead.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether so much waits for it that nothing more is to be read for it beside others who want room.
    pub(crate) fn has_much(&self) -> bool {
        self.0.ahead.load(Ordering::Relaxed) >= AHEAD_OF_ONE_BYTES
    }

    /// The connection has taken so many bytes.
    pub(crate) fn took(&self, bytes: usize) {
        self.0.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What it has taken until now.
    pub(crate) fn taken(&self) -> Taken {
        Taken(self.0.taken.load(Ordering::Relaxed))
    }

    /// Something was given up that waited for it since it had taken that.
    pub(crate) fn lost(&self, since: Taken) {
        // Who took something of other streams meanwhile keeps its standing.
        let _ = self.0.taken.compare_exchange(since.0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether it is time to look for streams of its that take nothing.
    pub(crate) fn may_look(&self) -> bool {
        let mut looked_at = self.0.looked_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_time = looked_at.is_none_or(|at| at.elapsed() >= CLEARING_PAUSE);
        if is_time {
            *looked_at = Some(Instant::now());
        }
        is_time
    }

    /// Whether another is of the same connection.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// It is seen that its client takes what comes once it took more than the system's buffers do, since something was
    /// given up.
    pub(crate) fn standing(&self) -> Standing {
        if self.0.taken.load(Ordering::Relaxed) >= SEEN_BYTES { Standing::Seen } else { Standing::Unseen }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_took_much_is_seen_until_something_is_given_up() {
        let taking = Taking::default();
        taking.took(SEEN_BYTES - 1);
        assert_eq!(taking.standing(), Standing::Unseen);
        taking.clone().took(1);
        assert_eq!(taking.standing(), Standing::Seen);
        let since = taking.taken();
        taking.took(1);
        taking.lost(since);
        assert_eq!(taking.standing(), Standing::Seen, "it takes");
        taking.lost(taking.taken());
        assert_eq!(taking.standing(), Standing::Unseen);
    }

    #[test]
    fn it_has_much_with_all_its_streams_together() {
        let taking = Taking::default();
        taking.charge(AHEAD_OF_ONE_BYTES - 1);
        taking.clone().charge(1);
        assert!(taking.has_much());
        taking.release(1);
        assert!(!taking.has_much());
    }
}
