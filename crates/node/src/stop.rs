//! Clean shutdown: waits for proposals, transfers leadership, and replies to every request. A node with in-memory logs
//! then writes a mark: everything that these replicas acknowledged is in the log on disk (guarantee 11).
//!
//! Once the last log record is known, the node accepts no more input, so that everything acknowledged is forced before
//! the mark.

use base::canary::{Bug, planted};
use base::{Durability, Duration, Monotonic, Now};
use replication::{ManifestId, WriteId};

use crate::contract::{Action, Event};
use crate::node::Node;
use crate::replica::Replica;

/// How long a clean stop waits for proposals, and then again for the disk.
const PATIENCE: Duration = Duration::from_millis(1_000);

/// The phase of a clean stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stop {
    #[default]
    Running,
    /// Waits for proposals until this time.
    Waiting(Monotonic),
    /// Accepts no input. Waits until this time for the log to be forced through this record.
    Forcing(Monotonic, WriteId),
    /// Waits until this time for the manifest with the mark.
    Marking(Monotonic, ManifestId),
    /// Stopped or halted: events are ignored.
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
    /// Whether a clean stop is in progress: new requests are refused.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop != Stop::Running
    }

    /// Whether the node no longer accepts input.
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

    /// Once all proposals are committed, or the wait times out: leaders hand over, and every request gets a reply.
    pub(crate) fn finish_stop(&mut self, now: Now) {
        let Stop::Waiting(until) = self.stop else { return };
        if (self.pending_requests.any_proposed() || self.logs.units.any_proposed()) && now.monotonic < until {
            return;
        }
        self.each_cohort(now, |cohort, out| cohort.release(now, out));
        for id in self.pending_requests.ids() {
            // It may have been completed together with its table lookup.
            if let Some(pending) = self.pending_requests.take(id) {
                self.give_up(pending, "the node is stopping");
            }
        }
        if !self.has_marks_to_leave() {
            return self.end();
        }
        self.each_cohort(now, |cohort, out| cohort.hurry(out));
        self.stop = Stop::Forcing(now.monotonic + PATIENCE, self.outgoing.outbox.appended());
        self.leave(now, &Event::LogForced { through: self.outgoing.log_forced_through });
    }

    /// Whether there are replicas with in-memory logs, or replicas that left a mark and were not started since.
    fn has_marks_to_leave(&self) -> bool {
        let is_in_memory = |replica: &Replica| replica.cohort.config().regime.durability() == Durability::Memory;
        self.replicas.iter().any(|(_, replica)| is_in_memory(replica))
            || self.hosting.stopped.values().any(|stopped| stopped.manifest.whole)
    }

    /// Handles an event during the final phases of a stop.
    pub(crate) fn leave(&mut self, now: Now, event: &Event) {
        match (self.stop, event) {
            (Stop::Forcing(_, wanted), Event::LogForced { through })
                if *through >= wanted || planted(Bug::StopMarkBeforeForce) =>
            {
                let manifest = self.outgoing.outbox.change_manifest();
                self.stop = Stop::Marking(now.monotonic + PATIENCE, manifest);
            }
            (Stop::Marking(_, wanted), Event::ManifestForced { through }) if *through >= wanted => self.end(),
            // If the disk is stuck or full, no mark is written.
            (stop, _) if stop.next_timer().is_some_and(|until| until <= now.monotonic) => self.end(),
            _ => {}
        }
    }

    fn end(&mut self) {
        self.stop = Stop::Ended;
        self.actions.push(Action::Stopped);
    }
}
