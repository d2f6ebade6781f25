//! Holds of readers at a timestamp: the leader raises the watermark of garbage collection no further than the oldest of
//! them (guarantee 16). CockroachDB calls them protected timestamps.
//!
//! They are kept in the leader's memory only. A holder renews its hold three times in a lifetime, at the node that
//! leads the range then. A new leader, also of a range that was split off, raises no watermark during the first lifetime
//! that it leads, so that by then it knows all holds that were made before.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::limits::{HOLD_AGE_MAX, HOLDS_MAX};
use base::{Duration, Epoch, Monotonic, Now, Timestamp};
use state_machine::failure::{check_kept, precondition};
use state_machine::{Failure, Hold};

use crate::reads::in_the_future;
use crate::registry::Ask;
use crate::replica::Replica;

/// The holds at one leader.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    /// The epoch in which the holds were made, and when this leader first used them in it.
    epoch: Option<Epoch>,
    since: Monotonic,
    /// The highest watermark that this leader may have proposed.
    proposed: Timestamp,
    /// By timestamp and owner.
    by_holder: BTreeMap<(Timestamp, u64), Times>,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    made: Monotonic,
    renewed: Monotonic,
}

impl Times {
    /// Whether it is too old to be renewed. It is kept until its lifetime ends, to refuse renewals with the reason.
    fn is_over(self, now: Monotonic) -> bool {
        now.since(self.made) >= HOLD_AGE_MAX
    }
}

impl Holds {
    /// Makes, renews or releases a hold.
    fn record(&mut self, hold: Hold, epoch: Epoch, lifetime: Duration, now: Monotonic) -> Result<(), Failure> {
        self.enter(epoch, now);
        let Hold { owner, timestamp, release } = hold;
        if release {
            self.by_holder.remove(&(timestamp, owner));
            return Ok(());
        }
        check_kept(timestamp, self.proposed)?;
        if !self.by_holder.contains_key(&(timestamp, owner)) && self.by_holder.len() >= HOLDS_MAX {
            self.expire(lifetime, now);
            if self.by_holder.len() >= HOLDS_MAX {
                return Err(Failure::Overloaded(format!("limit of holds on old versions reached ({HOLDS_MAX})")));
            }
        }
        let times = self.by_holder.entry((timestamp, owner)).or_insert(Times { made: now, renewed: now });
        if times.is_over(now) {
            return Err(precondition(format!(
                "the versions at timestamp {timestamp} have been held for {HOLD_AGE_MAX}, the maximum"
            )));
        }
        times.renewed = now;
        Ok(())
    }

    /// The highest watermark that may be proposed now, given one that the retention permits.
    pub(crate) fn limit(
        &mut self,
        unretained: Option<Timestamp>,
        epoch: Epoch,
        lifetime: Duration,
        now: Monotonic,
    ) -> Option<Timestamp> {
        self.enter(epoch, now);
        self.expire(lifetime, now);
        let mut highest = unretained?;
        if !planted(Bug::WatermarkPassesHold) {
            if now.since(self.since) < lifetime {
                return None;
            }
            let oldest = self.by_holder.iter().find(|(_, times)| !times.is_over(now));
            highest = oldest.map_or(highest, |((timestamp, _), _)| highest.min(*timestamp));
        }
        self.proposed = self.proposed.max(highest);
        Some(highest)
    }

    fn enter(&mut self, epoch: Epoch, now: Monotonic) {
        if self.epoch != Some(epoch) {
            // A renewed lead keeps the proposals of the previous epoch, and the holds with them. A lost lead clears all.
            (self.epoch, self.since) = (Some(epoch), now);
        }
    }

    fn expire(&mut self, lifetime: Duration, now: Monotonic) {
        self.by_holder.retain(|_, times| now.since(times.renewed) < lifetime);
    }
}

/// Records the hold that a request makes, renews or releases at this leader, if it does. The request is then answered as
/// a strong read. So it is acknowledged only by a node that still leads, and only if the applied watermark permits it,
/// which includes the watermarks of earlier leaders.
pub(crate) fn record_hold(replica: &mut Replica, ask: &Ask, lifetime: Duration, now: Now) -> Result<(), Failure> {
    let Some(hold) = ask.hold() else { return Ok(()) };
    let cohort = &replica.cohort;
    if !hold.release {
        let future = in_the_future(hold.timestamp, cohort.next_timestamp(now), cohort.reading(now));
        // A hold that cannot be acknowledged must not keep versions either.
        let past = replica.state.view().and_then(|view| view.at(hold.timestamp).err());
        let past = past.filter(|failure| matches!(failure, Failure::Precondition(_)));
        future.or(past).map_or(Ok(()), Err)?;
    }
    replica.holds.record(hold, cohort.promised().epoch, lifetime, now.monotonic)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_millis(30_000);
    const EPOCH: Epoch = Epoch(1);

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * 1_000_000_000)
    }

    /// A leader whose first lifetime is over at second 30.
    fn leader() -> Holds {
        let mut holds = Holds::default();
        holds.enter(EPOCH, at(0));
        holds
    }

    fn hold(holds: &mut Holds, owner: u64, timestamp: i64, seconds: u64) -> Result<(), Failure> {
        let hold = Hold { owner, timestamp: Timestamp(timestamp), release: false };
        holds.record(hold, EPOCH, LIFETIME, at(seconds))
    }

    fn limit(holds: &mut Holds, seconds: u64) -> Option<i64> {
        holds.limit(Some(Timestamp(100)), EPOCH, LIFETIME, at(seconds)).map(|limit| limit.0)
    }

    #[test]
    fn new_leader_waits_for_renewals() {
        let mut holds = leader();
        assert_eq!(limit(&mut holds, 29), None);
        hold(&mut holds, 1, 50, 29).expect("nothing was collected");
        assert_eq!(limit(&mut holds, 30), Some(50));
        assert_eq!(holds.limit(Some(Timestamp(100)), Epoch(2), LIFETIME, at(31)), None);
        assert_eq!(holds.limit(Some(Timestamp(100)), Epoch(2), LIFETIME, at(61)), Some(Timestamp(100)));
    }

    #[test]
    fn oldest_hold_limits_watermark_until_it_ends() {
        let mut holds = leader();
        hold(&mut holds, 1, 50, 20).expect("nothing was collected");
        hold(&mut holds, 2, 60, 30).expect("nothing was collected");
        assert_eq!(limit(&mut holds, 40), Some(50));
        hold(&mut holds, 2, 60, 49).expect("a renewal");
        assert_eq!(limit(&mut holds, 50), Some(60), "the other has expired");
        holds
            .record(Hold { owner: 2, timestamp: Timestamp(60), release: true }, EPOCH, LIFETIME, at(51))
            .expect("ends");
        assert_eq!(limit(&mut holds, 51), Some(100));
        let late = hold(&mut holds, 3, 99, 52);
        assert_eq!(late, Err(precondition("timestamp 99 is before 100, the oldest readable one")));
        hold(&mut holds, 3, 100, 52).expect("the watermark itself is readable");
    }

    #[test]
    fn number_and_age_are_limited() {
        let mut holds = leader();
        for owner in 0..HOLDS_MAX as u64 {
            hold(&mut holds, owner, 50, 1).expect("below the limit");
        }
        assert!(matches!(hold(&mut holds, u64::MAX, 50, 2), Err(Failure::Overloaded(_))));
        hold(&mut holds, 0, 50, 30).expect("a renewal");
        hold(&mut holds, u64::MAX, 50, 31).expect("others have expired");
        let day = 24 * 3_600;
        for seconds in (40..day).step_by(10) {
            hold(&mut holds, 0, 50, seconds).expect("a renewal");
        }
        assert_eq!(limit(&mut holds, day), Some(50));
        let old = hold(&mut holds, 0, 50, day + 1);
        assert!(matches!(&old, Err(Failure::Precondition(reason)) if reason.contains("50 have been held")), "{old:?}");
        assert_eq!(limit(&mut holds, day + 1), Some(100), "although its lifetime has not ended");
    }
}
