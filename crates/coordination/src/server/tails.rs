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
    /// The last answer that is ahead of the applied position.
    answered: Option<(TailId, Position)>,
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
            // A later tail also serves earlier requests.
            self.answered = Some((request, tail));
        }
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
        let Some((request, tail)) = self.answered else { return false };
        if next < tail {
            return false;
        }
        self.answered = None;
        self.reached = request;
        true
    }

    pub(super) fn is_reached(&self, request: TailId) -> bool {
        request <= self.reached || planted(Bug::SyncAnsweredAtOnce)
    }
}
