//! Who has answered nothing for how long, whichever calls asked.
//!
//! A call suspects whom it has asked twice in vain. Calls whose callers have less time than that takes would never
//! suspect anybody, though one after the other waits for the same unit: so they are counted together.

use std::collections::BTreeMap;

use base::{Duration, Monotonic};

use crate::client::Suspect;

/// Who was asked nothing for so long is begun with anew.
const FORGOTTEN: Duration = Duration::from_millis(1_000);
/// Those that are remembered, at most: all of a projection's units, mostly.
const SILENT_MAX: usize = 1_024;

/// Those that were asked something, and have answered nothing since.
#[derive(Debug, Default)]
pub(super) struct Silences {
    by_whom: BTreeMap<Suspect, Silence>,
}

#[derive(Clone, Copy, Debug)]
struct Silence {
    since: Monotonic,
    /// When it was asked last.
    asked: Monotonic,
}

impl Silences {
    /// Somebody is asked something that may be answered from then on.
    pub(super) fn asked(&mut self, whom: Suspect, from: Monotonic) {
        if self.by_whom.len() >= SILENT_MAX && !self.by_whom.contains_key(&whom) {
            self.by_whom.pop_first();
        }
        let silence = self.by_whom.entry(whom).or_insert(Silence { since: from, asked: from });
        if from.since(silence.asked) > FORGOTTEN {
            silence.since = from;
        }
        silence.asked = from.max(silence.asked);
    }

    /// It has answered.
    pub(super) fn heard(&mut self, whom: Suspect) {
        self.by_whom.remove(&whom);
    }

    /// Whether it has answered nothing for twice as long as the first answer is waited for.
    pub(super) fn is_long(&self, whom: Suspect, answer: Duration, now: Monotonic) -> bool {
        self.by_whom.get(&whom).is_some_and(|silence| now.since(silence.since) >= Duration(2 * answer.0))
    }
}
