//! Commit wait (Spanner, section 4.1.2; guarantee 18): a leader commits an entry only once the entry's timestamp has
//! certainly passed.
//!
//! An entry gets a timestamp that no clock has reached when it is proposed (`TT.now().latest`), and no client or
//! replica learns of its commit before that timestamp has passed on every clock (`TT.after`). So if one write is
//! acknowledged before another begins anywhere, the first has the lower timestamp: timestamps agree with the order that
//! clients can observe. The wait overlaps with the force and the round trip to the followers, and is usually over before
//! them.
//!
//! Safety of the log does not depend on it. Without a bound on the clock's error there is no wait. If the log is further
//! ahead of the clock than any clock within its bound could have brought it, a clock was wrong before: the wait would be
//! as long as that error, and would not restore the order. Such entries are not waited for either.

use base::canary::{Bug, planted};
use base::{Duration, Monotonic, Now, Sequence, Timestamp};

use crate::cohort::{Cohort, Role};

/// Longest wait: four times the greatest bound that a node accepts, because a commit's timestamp may come from another
/// node's clock. A log that is further ahead of the clock got there by a clock outside of its bound.
pub const COMMIT_WAIT_MAX: Duration = Duration::from_millis(1_000);

impl Cohort {
    /// The last sequence through `reached` whose entry may be committed now. Notes when the next one may be.
    pub(crate) fn past(&mut self, reached: Sequence, now: Now) -> Sequence {
        let mut past = if self.config.waits { self.committed.min(reached) } else { reached };
        let mut until = Monotonic::NEVER;
        while past < reached {
            // One that is too far ahead to be waited for does not release those before it.
            if let Some(wait) = self.wait_for(past.next(), now) {
                until = now.monotonic + wait;
                break;
            }
            past = past.next();
        }
        self.note_wait(past, reached, now.monotonic);
        if let Role::Leader(leader) = &mut self.role {
            leader.waits_until = until;
        }
        past
    }

    /// Notes how long the entries that are committed now have waited.
    fn note_wait(&mut self, past: Sequence, reached: Sequence, now: Monotonic) {
        let committed = self.committed;
        let Role::Leader(leader) = &mut self.role else { return };
        if past > committed {
            leader.waited = leader.waits_since.map_or(Duration::ZERO, |since| now.since(since));
            leader.waits_since = None;
        }
        if past < reached {
            leader.waits_since.get_or_insert(now);
        }
    }

    /// Duration for which the last committed entries waited for their timestamps after a majority had them.
    #[must_use]
    pub fn commit_wait(&self) -> Duration {
        if let Role::Leader(leader) = &self.role { leader.waited } else { Duration::ZERO }
    }

    /// How long the entry at that sequence still has to wait.
    fn wait_for(&self, sequence: Sequence, now: Now) -> Option<Duration> {
        if !self.config.waits || planted(Bug::NoCommitWait) {
            return None;
        }
        let timestamp = self.log.entry(sequence)?.timestamp;
        let earliest = match now.interval() {
            Some(interval) => interval.earliest,
            // The clock has lost its bound since: the last one counts for the entries that got their timestamps with it.
            None => {
                let (_, bound) = self.last_bound.filter(|(until, _)| timestamp <= *until)?;
                Timestamp(now.wall.0.saturating_sub_unsigned(bound.0))
            }
        };
        let ahead = timestamp.0.checked_sub(earliest.0).filter(|ahead| *ahead >= 0)?;
        // One more, because the timestamp must be before the earliest possible time.
        let wait = Duration(ahead.unsigned_abs() + 1);
        (wait <= COMMIT_WAIT_MAX).then_some(wait)
    }

    /// How far the log is ahead of every clock within its bound; none if it is not, or if the clock has no bound.
    /// Entries that only wait for their timestamps do not count.
    #[must_use]
    pub fn ahead_of_clock(&self, now: Now) -> Option<Duration> {
        let ahead = |last: Timestamp| last.0.checked_sub(now.interval()?.earliest.0);
        let ahead = Duration(u64::try_from(ahead(self.last_timestamp())?).ok()?);
        (ahead > COMMIT_WAIT_MAX).then_some(ahead)
    }
}
