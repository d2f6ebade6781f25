//! Fetches the successor of a projection that was replaced.

use base::Monotonic;

use crate::client::{Action, Call, Client, SUSPECT_AFTER, Suspect};

/// A fetch in progress.
#[derive(Debug)]
pub(super) struct Fetching {
    pub(super) again_at: Monotonic,
    failures: u32,
}

impl Client {
    /// Fetches a newer projection, and repeats the fetch while any call waits for one.
    pub(super) fn fetch(&mut self, now: Monotonic) {
        if self.fetching.is_none() {
            self.actions.push(Action::Fetch);
            let pause = self.backoff(self.timing.fetch, 0);
            self.fetching = Some(Fetching { again_at: now + pause, failures: 0 });
        }
    }

    pub(super) fn fetch_again(&mut self, now: Monotonic) {
        let known = self.projection.as_ref().map(|projection| projection.epoch);
        let waits = |call: &Call| known.is_none() || call.outdated.is_some_and(|outdated| known <= Some(outdated));
        let Some(mut fetching) = self.fetching.take() else { return };
        if !self.calls.values().any(waits) {
            return;
        }
        fetching.failures += 1;
        if fetching.failures >= SUSPECT_AFTER
            && let Some(epoch) = known
        {
            // Units are sealed, and no controller has installed a successor.
            self.actions.push(Action::Suspect { epoch, suspect: Suspect::Projection });
        }
        self.actions.push(Action::Fetch);
        fetching.again_at = now + self.backoff(self.timing.fetch, fetching.failures);
        self.fetching = Some(fetching);
    }
}
