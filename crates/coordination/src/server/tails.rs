//! The log's tail, for those who must see all that has ended before they asked. One request is under way at a time; what
//! asks meanwhile shares the next one.

use base::canary::{Bug, planted};

use super::TailId;
use crate::entry::Position;

/// Requests for the tail.
#[derive(Debug, Default)]
pub(super) struct Tails {
    /// The last request.
    last: TailId,
    /// Whether it is under way.
    is_under_way: bool,
    /// Whether somebody waits for the next one.
    is_wanted: bool,
    has_failed: bool,
    /// The last request that was answered, and the tail.
    answered: Option<(TailId, Position)>,
    /// The last request whose tail was reached.
    reached: TailId,
}

impl Tails {
    /// The request whose answer is as of now or later.
    pub(super) const fn want(&mut self) -> TailId {
        self.is_wanted = true;
        TailId(self.last.0 + 1)
    }

    /// The request that is to be sent, if any.
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
            // The tail grows, so that who waits for an earlier request is served by a later one.
            self.answered = Some((request, tail));
        }
    }

    /// The next request stands in for this one: it is sent after a while.
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

    /// Notes that all below `next` was applied. Returns whether that is as far as somebody waits for.
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
