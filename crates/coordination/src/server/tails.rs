//! Tail checks for `sync` and linearizable reads: a request sees all writes that completed before it if the server has
//! applied the log up to a tail that was obtained after the request arrived. One check is in flight at a time; requests
//! that arrive meanwhile share the next one.

use base::canary::{Bug, planted};

use super::TailId;
use crate::entry::Position;

/// Requests for the tail.
#[derive(Debug, Default)]
pub(super) struct Tails {
    /// The last tail request.
    last: TailId,
    /// Whether it is in flight.
    is_under_way: bool,
    /// Whether another one is needed.
    is_wanted: bool,
    has_failed: bool,
    /// The first answer that is ahead of the applied position. Later ones do not replace it: under load the server
    /// would never reach one.
    answered: Option<(TailId, Position)>,
    /// The last answer after that one.
    answered_later: Option<(TailId, Position)>,
    /// The last request with an applied tail.
    reached: TailId,
}

impl Tails {
    /// Registers interest in the tail from now on; returns the request to wait for.
    pub(super) const fn want(&mut self) -> TailId {
        self.is_wanted = true;
        TailId(self.last.0 + 1)
    }

    /// The next request to send, if any.
    pub(super) const fn request(&mut self) -> Option<TailId> {
        if !self.is_wanted || self.is_under_way || self.has_failed {
            return None;
        }
        self.is_wanted = false;
        self.is_under_way = true;
        self.last = TailId(self.last.0 + 1);
        Some(self.last)
    }

    pub(super) fn answered(&mut self, request: TailId, tail: Position) {
        if self.is_under_way && request == self.last {
            self.is_under_way = false;
            if self.answered.is_none() || planted(Bug::UnreachedTailReplaced) {
                self.answered = Some((request, tail));
            } else {
                self.answered_later = Some((request, tail));
            }
        }
    }

    /// Whether a tail is known that was not reached yet.
    pub(super) const fn is_behind(&self) -> bool {
        self.answered.is_some()
    }

    /// The next request, sent after a delay, also serves this one.
    pub(super) fn failed(&mut self, request: TailId) {
        if self.is_under_way && request == self.last {
            self.is_under_way = false;
            self.is_wanted = true;
            self.has_failed = true;
        }
    }

    pub(super) const fn retry(&mut self) {
        self.has_failed = false;
    }

    /// Called when all positions below `next` were applied. Returns whether a tail was reached.
    pub(super) fn note_applied(&mut self, next: Position) -> bool {
        let before = self.reached;
        while let Some((request, tail)) = self.answered
            && tail <= next
        {
            self.reached = request;
            self.answered = self.answered_later.take();
        }
        self.reached != before
    }

    pub(super) fn is_reached(&self, request: TailId) -> bool {
        request <= self.reached || planted(Bug::SyncAnsweredAtOnce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_reached_despite_later_tails() {
        let mut tails = Tails::default();
        let waiting = tails.want();
        for tail in 0..10 {
            let request = tails.request().unwrap();
            tails.answered(request, Position(100 + tail));
            tails.want();
            assert!(!tails.note_applied(Position(99)));
        }
        assert!(tails.note_applied(Position(100)));
        assert!(tails.is_reached(waiting) && !tails.is_reached(TailId(2)));
        // The last of the others serves them all.
        assert!(!tails.note_applied(Position(108)));
        assert!(tails.note_applied(Position(109)) && tails.is_reached(TailId(10)));
        assert!(!tails.note_applied(Position(110)));
    }
}
