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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stop {
    #[default]
    Running,
    /// Until then it waits for what was proposed.
    Waiting(Monotonic),
    /// Nothing is taken in any more; until then it waits for the log to be forced through there, ...
    Forcing(Monotonic, WriteId),
    /// ... and for the manifest with the mark.
    Marking(Monotonic, ManifestId),
    /// Stopped or halted: nothing happens any more.
    Ended,
}

impl Stop {
    pub(crate) fn next_timer(self) -> Option<Monotonic> {
        match self {
            Self::Waiting(until) | Self::Forcing(until, _) | Self::Marking(until, _) => Some(until),
            Self::Running | Self::Ended => None,
        }
    }
}

impl Node {
    /// Whether a clean stop is under way: new requests are refused.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop != Stop::Running
    }

    /// Whether nothing is taken in any more.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.stop, Stop::Forcing(..) | Stop::Marking(..))
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.stop == Stop::Ended
    }

    pub(crate) fn stop(&mut self, now: Now) {
        if self.stop == Stop::Running {
            self.stop = Stop::Waiting(now.monotonic + PATIENCE);
        }
    }

    /// Once what was proposed is committed, or patience ends: leaders hand over, and every request gets an answer.
    pub(crate) fn finish_stop(&mut self, now: Now) {
        let Stop::Waiting(until) = self.stop else { return };
        if (self.pendings.any_proposed() || self.logs.units.any_proposed()) && now.monotonic < until {
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
        self.stop = Stop::Forcing(now.monotonic + PATIENCE, self.outgoing.outbox.appended());
        self.leave(now, &Event::LogForced { through: self.outgoing.log_forced_through });
    }

    /// Whether there are replicas whose logs are in main memory, or such as left a mark and were not started since.
    fn has_marks_to_leave(&self) -> bool {
        let is_in_memory = |replica: &Replica| replica.cohort.config().durability == Durability::Memory;
        self.replicas.iter().any(|(_, replica)| is_in_memory(replica))
            || self.hosting.dormant.values().any(|dormant| dormant.manifest.whole)
    }

    /// What happens to a node that takes nothing in any more.
    pub(crate) fn leave(&mut self, now: Now, event: &Event) {
        match (self.stop, event) {
            (Stop::Forcing(_, wanted), Event::LogForced { through })
                if *through >= wanted || planted(Bug::StopMarkBeforeForce) =>
            {
                let manifest = self.outgoing.outbox.change_manifest();
                self.stop = Stop::Marking(now.monotonic + PATIENCE, manifest);
            }
            (Stop::Marking(_, wanted), Event::ManifestForced { through }) if *through >= wanted => self.end(),
            // A disk that is stuck or full gets no mark.
            (stop, _) if stop.next_timer().is_some_and(|until| until <= now.monotonic) => self.end(),
            _ => {}
        }
    }

    fn end(&mut self) {
        self.stop = Stop::Ended;
        self.actions.push(Action::Stopped);
    }
}
