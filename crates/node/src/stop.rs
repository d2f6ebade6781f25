//! A clean stop: what is proposed is waited for, leaders hand over, and every request gets an answer. A node with
//! replicas whose logs are in main memory then leaves a mark: all that they acknowledged is in the log on the disk
//! (guarantee 11).
//!
//! From the moment at which the log's last record is known, nothing is taken in any more, so that nothing is
//! acknowledged which isn't forced when the mark is.

use base::canary::{Bug, planted};
use base::{Durability, Duration, Monotonic, Now};
use replication::{ManifestId, WriteId};

use crate::contract::{Action, Event};
use crate::node::Node;
use crate::replica::Replica;

/// How long a clean stop waits for what is under way, and again for the disk.
const PATIENCE: Duration = Duration::from_millis(1_000);

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Until then it waits for what was proposed.
    Waiting(Monotonic),
    /// Nothing is taken in any more; until then it waits for the log to be forced through there, ...
    Forcing(Monotonic, WriteId),
    /// ... and for the manifest with the mark.
    Marking(Monotonic, ManifestId),
}

impl Stop {
    pub(crate) fn until(self) -> Monotonic {
        match self {
            Self::Waiting(until) | Self::Forcing(until, _) | Self::Marking(until, _) => until,
        }
    }
}

impl Node {
    /// Whether a clean stop is under way: new requests are refused.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Whether nothing is taken in any more.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.stopping, Some(Stop::Forcing(..) | Stop::Marking(..)))
    }

    /// Whether the manifest in the making leaves the mark.
    pub(crate) fn is_marking(&self) -> bool {
        matches!(self.stopping, Some(Stop::Marking(..)))
    }

    pub(crate) fn stop(&mut self, now: Now) {
        self.stopping.get_or_insert(Stop::Waiting(now.monotonic + PATIENCE));
    }

    /// Once what was proposed is committed, or patience ends: leaders hand over, and every request gets an answer.
    pub(crate) fn finish_stop(&mut self, now: Now) {
        let Some(Stop::Waiting(until)) = self.stopping else { return };
        if self.pendings.any_proposed() && now.monotonic < until {
            return;
        }
        self.each_cohort(now, |cohort, out| cohort.release(now, out));
        for id in self.pendings.ids() {
            self.give_up(id, "the node is stopping");
        }
        if !self.has_marks_to_leave() {
            return self.end();
        }
        self.each_cohort(now, |cohort, out| cohort.hurry(out));
        self.stopping = Some(Stop::Forcing(now.monotonic + PATIENCE, self.outgoing.outbox.appended()));
        self.leave(now, &Event::LogForced { through: self.log_forced_through });
    }

    /// Whether there are replicas whose logs are in main memory, or such as left a mark and were not started since.
    fn has_marks_to_leave(&self) -> bool {
        let is_in_memory = |replica: &Replica| replica.cohort.config().durability == Durability::Memory;
        self.replicas.iter().any(|(_, replica)| is_in_memory(replica))
            || self.dormant.values().any(|dormant| dormant.manifest.whole)
    }

    /// What happens to a node that takes nothing in any more.
    pub(crate) fn leave(&mut self, now: Now, event: &Event) {
        match (self.stopping, event) {
            (Some(Stop::Forcing(_, wanted)), Event::LogForced { through })
                if *through >= wanted || planted(Bug::StopMarkBeforeForce) =>
            {
                let manifest = self.outgoing.outbox.change_manifest();
                self.stopping = Some(Stop::Marking(now.monotonic + PATIENCE, manifest));
            }
            (Some(Stop::Marking(_, wanted)), Event::ManifestForced { through }) if *through >= wanted => self.end(),
            // A disk that is stuck or full gets no mark.
            (Some(stop), _) if stop.until() <= now.monotonic => self.end(),
            _ => {}
        }
    }

    fn end(&mut self) {
        self.halted = true;
        self.actions.push(Action::Stopped);
    }
}
