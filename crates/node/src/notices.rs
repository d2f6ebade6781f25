//! Notices for the operator's log: elections and changes of configurations. Their rate is bounded, because a node can
//! lead thousands of ranges.

use base::{CohortId, Duration, Monotonic, Now};

use crate::contract::Action;
use crate::node::Node;

/// Maximum notices within [`WINDOW`]. Further ones are only counted.
const NOTICES_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_millis(10_000);

/// The rate of notices.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    window_ends: Monotonic,
    given: u32,
    omitted: u64,
}

impl Notices {
    /// Whether a notice may be given, and how many were omitted before it.
    fn admit(&mut self, now: Monotonic) -> Option<u64> {
        if now >= self.window_ends {
            (self.window_ends, self.given) = (now + WINDOW, 0);
        }
        if self.given >= NOTICES_MAX {
            self.omitted += 1;
            return None;
        }
        self.given += 1;
        Some(std::mem::take(&mut self.omitted))
    }
}

impl Node {
    /// Logs a notice for the operator, unless there are too many.
    pub(crate) fn notice(&mut self, now: Now, what: impl FnOnce(&Self) -> String) {
        let Some(omitted) = self.notices.admit(now.monotonic) else { return };
        let mut what = what(self);
        if omitted > 0 {
            what.push_str(&format!(" ({omitted} earlier notices were omitted)"));
        }
        self.actions.push(Action::Inform { what });
    }

    /// This node has begun to lead a cohort.
    pub(crate) fn notice_election(&mut self, id: CohortId, now: Now) {
        self.notice(now, |node| {
            let epoch = node.replicas.get(&id).map_or(0, |replica| replica.cohort.promised().epoch.0);
            format!("leads {} in epoch {epoch}", node.name_of(id))
        });
    }

    /// A cohort, for the operator.
    pub(crate) fn name_of(&self, id: CohortId) -> String {
        match self.replicas.get(&id) {
            _ if id == CohortId::CATALOG => "the catalog".to_owned(),
            Some(replica) if replica.state.as_unit().is_none() => format!("range {id} of table {}", replica.table),
            _ => format!("log unit {id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_bounded() {
        let mut notices = Notices::default();
        let admitted = |notices: &mut Notices, at: u64| notices.admit(Monotonic(at));
        let first: Vec<_> = (0..25).map(|at| admitted(&mut notices, at)).collect();
        assert_eq!(first.iter().filter(|given| **given == Some(0)).count(), 20);
        assert_eq!(admitted(&mut notices, WINDOW.0), Some(5));
        assert_eq!(admitted(&mut notices, WINDOW.0 + 1), Some(0));
    }
}
