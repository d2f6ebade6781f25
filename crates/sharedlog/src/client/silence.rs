//! Who has answered nothing for how long, whichever calls asked.
//!
//! A call suspects whom it has asked twice in vain. Calls whose callers have less time than that takes would never
//! suspect anybody, though one after the other waits for the same unit: so they are counted together.

use std::collections::BTreeMap;

use base::{Duration, Monotonic};

use crate::AskId;
use crate::client::Suspect;

/// Who was asked nothing for so long is begun with anew.
const FORGOTTEN: Duration = Duration::from_millis(1_000);
/// Those that are remembered, at most: all of a projection's units, mostly.
const SILENT_MAX: usize = 1_024;
/// Askings that nobody waits for any more, and whose answers still say that there is somebody: so many, at most.
const LATE_MAX: usize = 1_024;

/// Those that were asked something, and have answered nothing since.
#[derive(Debug, Default)]
pub(super) struct Silences {
    by_whom: BTreeMap<Suspect, Silence>,
    late: BTreeMap<AskId, Suspect>,
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

    /// Nobody waits any more for the answer of an asking.
    pub(super) fn gave_up(&mut self, ask: AskId, whom: Suspect) {
        self.late.insert(ask, whom);
        if self.late.len() > LATE_MAX {
            self.late.pop_first();
        }
    }

    /// It was answered all the same.
    pub(super) fn heard_late(&mut self, ask: AskId) {
        if let Some(whom) = self.late.remove(&ask) {
            self.heard(whom);
        }
    }

    /// Whether it has answered nothing for twice as long as the first answer is waited for.
    pub(super) fn is_long(&self, whom: Suspect, answer: Duration, now: Monotonic) -> bool {
        self.by_whom.get(&whom).is_some_and(|silence| now.since(silence.since) >= Duration(2 * answer.0))
    }
}
