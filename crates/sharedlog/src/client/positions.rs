//! Requests positions from the sequencer: one request for all waiting appends.

use std::collections::BTreeSet;

use base::Monotonic;

use crate::client::task::{Fill, Task};
use crate::client::{CallId, CallOwner, Client};
use crate::limits::POSITIONS_AT_ONCE_MAX;
use crate::{Position, PositionRun, ProjectionEpoch};

impl Client {
    /// Assigns positions to the appends for which they were requested. The position of an append that has ended is
    /// filled, so that readers need not wait. An append that got no position requests one again.
    pub(super) fn given(
        &mut self,
        position_request: CallId,
        for_whom: Vec<CallId>,
        epoch: ProjectionEpoch,
        run: PositionRun,
        now: Monotonic,
    ) {
        self.end(position_request);
        self.position_request = None;
        self.note_tail(epoch, run.position(run.count as u64));
        let mut positions = run.positions();
        for id in for_whom {
            let Some(position) = positions.next() else {
                self.awaiting_position.push(id);
                continue;
            };
            match self.calls.get_mut(&id).map(|call| &mut call.task) {
                Some(Task::Append(append)) => {
                    append.given(position, epoch);
                    self.advance(id, now);
                }
                _ => {
                    self.start(CallOwner::Internal, Task::Fill(Fill::new(position)), now + self.timing.errand, now);
                }
            }
        }
    }

    /// Requests positions for all waiting appends, unless a request is pending. An append takes only a position that
    /// was requested after the append started: an earlier one may be below an append that has completed by then.
    pub(super) fn ask_positions(&mut self, now: Monotonic) {
        let calls = &self.calls;
        self.awaiting_position.retain(|id| calls.contains_key(id));
        if self.position_request.is_some() || self.awaiting_position.is_empty() {
            return;
        }
        let take = self.awaiting_position.len().min(POSITIONS_AT_ONCE_MAX as usize);
        let wanted = self.awaiting_position.drain(..take).collect();
        self.position_request = Some(self.last_call + 1);
        self.start(CallOwner::Internal, Task::Asking(self.id, wanted), Monotonic::NEVER, now);
    }

    /// Appends that will get a position from the pending request.
    pub(super) fn wait_for_positions(&self) -> BTreeSet<CallId> {
        let position_request = self.position_request.and_then(|id| self.calls.get(&id)).map(|call| &call.task);
        let asked_for = match position_request {
            Some(Task::Asking(_, wanted)) => wanted.as_slice(),
            _ => &[],
        };
        self.awaiting_position.iter().chain(asked_for).copied().collect()
    }

    /// Whether a call requests positions for appends that have all ended.
    pub(super) fn is_in_vain(&self, id: CallId) -> bool {
        match self.calls.get(&id).map(|call| &call.task) {
            Some(Task::Asking(_, wanted)) => !wanted.iter().any(|id| self.calls.contains_key(id)),
            _ => false,
        }
    }

    /// Records the highest known tail.
    pub(super) fn note_tail(&mut self, epoch: ProjectionEpoch, tail: Position) {
        if self.tail.is_none_or(|noted| noted < (epoch, tail)) {
            self.tail = Some((epoch, tail));
        }
    }
}
