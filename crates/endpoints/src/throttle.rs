//! Rate-limits log messages, so that untrusted clients cannot flood the log.

use std::collections::BTreeMap;

use base::{Duration, Monotonic};

/// Minimum time between two equal messages.
const PERIOD: Duration = Duration::from_millis(10_000);

/// When each message was last logged. Keys come from this program and from members' numbers, never from untrusted
/// clients, so the map stays small.
#[derive(Debug, Default)]
pub struct Throttle {
    logged: BTreeMap<(u32, &'static str), (Monotonic, u64)>,
}

impl Throttle {
    /// Whether to log the message now, and how often it was suppressed since the last time.
    pub fn admit(&mut self, about: u32, what: &'static str, now: Monotonic) -> Option<u64> {
        match self.logged.get_mut(&(about, what)) {
            Some((last, unsaid)) if now.since(*last) < PERIOD => {
                *unsaid += 1;
                None
            }
            Some((last, unsaid)) => {
                *last = now;
                Some(std::mem::take(unsaid))
            }
            None => {
                self.logged.insert((about, what), (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_message_is_rate_limited() {
        let mut throttle = Throttle::default();
        let at = |ms| Monotonic(0) + Duration::from_millis(ms);
        assert_eq!(throttle.admit(1, "x", at(0)), Some(0));
        assert_eq!(throttle.admit(1, "x", at(5)), None);
        assert_eq!(throttle.admit(2, "x", at(6)), Some(0));
        assert_eq!(throttle.admit(1, "x", at(9_999)), None);
        assert_eq!(throttle.admit(1, "x", at(10_001)), Some(2));
    }
}
