//! The stamps of a client's appends, and what it knows of logs for when one must be tried again.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use tokio::time::timeout;

/// How far an append that has not ended may be behind the client's newest: players of a log remember 1,024 of each
/// client.
const WINDOW: u64 = 1_000;
/// What has been known for so long to be held of a log is no guide to its end any more: at 60,000 appends a second the
/// log remembers as many as come meanwhile.
const FRESH: Duration = Duration::from_millis(250);
/// Logs of which something is known, at most: as many as a universe has.
const LOGS_MAX: usize = 1_000;

/// The appends of a client to all its logs.
#[derive(Debug)]
pub(crate) struct Appends {
    /// Names the client in its stamps.
    pub(crate) client: u64,
    state: Mutex<State>,
    ended: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// Those that have not ended.
    open: BTreeSet<u64>,
    /// Of each log: one more than the highest position that is known to be held, and when that was noted. Whatever is
    /// appended from now on lies there or after, in whichever epoch.
    known: BTreeMap<String, (u64, Instant)>,
}

impl Default for Appends {
    fn default() -> Self {
        Self { client: drawn(), state: Mutex::default(), ended: Arc::default() }
    }
}

/// A number that nobody else has: the standard library's own keys are drawn at random for each process.
fn drawn() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    hasher.write_u128(since_epoch.as_nanos());
    // Those from 2^63 on are of nodes.
    (hasher.finish() >> 1).max(1)
}

impl Appends {
    /// Begins an append, once there is room in the window; none if there isn't in time.
    pub(crate) async fn begin(&self, time: Duration) -> Option<Open<'_>> {
        let room = async {
            loop {
                // Before the look, so that no end is missed.
                let ended = self.ended.notified();
                if let Some((sequence, oldest_open)) = self.state().begin() {
                    return Open { appends: self, sequence, oldest_open };
                }
                ended.await;
            }
        };
        timeout(time, room).await.ok()
    }

    /// An append that begins now lies there or after, in whichever attempt; none, if what is known is too old: the log
    /// might not remember what lies from there on.
    pub(crate) fn known(&self, log: &str) -> Option<u64> {
        let (known, at) = self.state().known.get(log).copied()?;
        (at.elapsed() < FRESH).then_some(known)
    }

    /// The same, however old it is; 0, if nothing is known.
    pub(crate) fn held(&self, log: &str) -> u64 {
        self.state().known.get(log).map_or(0, |(known, _)| *known)
    }

    /// All positions that an append gets from now on are `least` or more, whatever becomes of the sequencer: that says
    /// of the log what is read or was appended just before it, be it records or a hole, and not a tail. Where that is
    /// as much as was known, or more, it is how things are now.
    pub(crate) fn note(&self, log: &str, least: u64) {
        let (mut state, now) = (self.state(), Instant::now());
        let has_room = state.known.len() < LOGS_MAX;
        match state.known.get_mut(log) {
            Some(noted) if noted.0 <= least => *noted = (least, now),
            Some(_) => {}
            None if has_room => {
                state.known.insert(log.to_owned(), (least, now));
            }
            None => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is whole between any two of its calls, whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The sequence of the next append, and the oldest that has not ended.
    fn begin(&mut self) -> Option<(u64, u64)> {
        let next = self.last + 1;
        let oldest = self.open.first().copied().unwrap_or(next);
        if next - oldest >= WINDOW {
            return None;
        }
        self.last = next;
        self.open.insert(next);
        Some((next, oldest))
    }
}

/// An append that has not ended.
#[derive(Debug)]
pub(crate) struct Open<'a> {
    appends: &'a Appends,
    pub(crate) sequence: u64,
    /// The client's oldest append that had not ended when this one began.
    pub(crate) oldest_open: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.appends.state().open.remove(&self.sequence);
        self.appends.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_append_is_far_ahead_of_one_that_has_not_ended() {
        let appends = Appends::default();
        let soon = Duration::from_millis(10);
        let first = appends.begin(soon).await.expect("room");
        for sequence in 2..=WINDOW {
            let open = appends.begin(soon).await.expect("room");
            assert_eq!((open.sequence, open.oldest_open), (sequence, 1));
        }
        assert!(appends.begin(soon).await.is_none());
        let (second, ()) = tokio::join!(appends.begin(Duration::from_secs(5)), async { drop(first) });
        assert_eq!(second.expect("room, once the first has ended").sequence, WINDOW + 1);
    }

    #[test]
    fn what_is_known_of_a_log_only_grows() {
        let appends = Appends::default();
        assert_eq!((appends.known("l"), appends.held("l")), (None, 0));
        appends.note("l", 8);
        appends.note("l", 3);
        assert_eq!((appends.known("l"), appends.known("m")), (Some(8), None));
    }

    /// A reader far behind says nothing of where the log ends; that it has not grown says it anew.
    #[test]
    fn what_is_known_for_long_is_looked_at_again() {
        let appends = Appends::default();
        let long_ago = Instant::now().checked_sub(FRESH).expect("the machine runs for longer");
        appends.state().known.insert("l".to_owned(), (8, long_ago));
        appends.note("l", 3);
        assert_eq!((appends.known("l"), appends.held("l")), (None, 8));
        appends.note("l", 8);
        assert_eq!(appends.known("l"), Some(8));
    }

    #[test]
    fn clients_have_numbers_of_their_own() {
        assert_ne!(Appends::default().client, Appends::default().client);
    }
}
